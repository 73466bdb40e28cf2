//! Golden table: garbage collection in a user's life, event by event, and the commands that follow.
//! The table says how it is written. `UPDATE=1 cargo test --release -p ecotone-policy --test
//! decisions gc_golden` writes the commands anew; whoever does so reads the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ecotone_policy::dedup::plan::Table;
use ecotone_policy::duplicates::{Overlap, ShadowedBytes};
use ecotone_policy::gc::{
    Command, CompactionOutcome, Conditions, Event, GcMachine, GcParameters, Hurry, RemovedRange, SegmentUse,
    StoreState, WriterTimes,
};
use ecotone_types::units::{Bytes, Seconds, Time};

const TABLE: &str = include_str!("../golden/gc.txt");
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/gc.txt");

/// Tables in level 0 with which compactions for the candidates begin.
const MAX_L0_TABLES: u64 = 4;

/// A store as the lines before an event have described it.
struct Scene {
    machine: GcMachine,
    now: f64,
    conditions: Conditions,
    store: StoreState,
    /// To which segments each table refers.
    references: BTreeMap<u64, Vec<u32>>,
    candidates: BTreeSet<u32>,
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is not a number"))
}

fn mib(word: &str) -> Bytes {
    Bytes((number::<f64>(word) * f64::from(1 << 20)) as u64)
}

/// The numbers of a list, as in `1,2,5`.
fn list(word: &str) -> Vec<u32> {
    word.split(',').map(number).collect()
}

impl Scene {
    fn new() -> Self {
        Self {
            machine: GcMachine::new(GcParameters::default(), MAX_L0_TABLES),
            now: 0.0,
            conditions: Conditions {
                hurry: Hurry::None,
                free_share: 1.0,
                free_for_copies: Bytes(u64::MAX),
                writers: WriterTimes::default(),
            },
            store: StoreState::default(),
            references: BTreeMap::new(),
            candidates: BTreeSet::new(),
        }
    }

    /// Takes a line. Returns the commands of each event that it stands for.
    fn line(&mut self, line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let has = |word: &str| words.contains(&word);
        match words[0] {
            "at" => self.now = number(words[1]),
            "segment" => self.segment(number(words[1]), &words[2..]),
            "table" => self.table(number(words[1]), &words[2..]),
            "shadowed" => {
                let shadowed = ShadowedBytes { estimate: mib(words[2]), at_least: mib(words[3]) };
                self.store.shadowed.insert(number(words[1]), shadowed);
            }
            "overlap" => {
                let overlap = Overlap { sampled: number(words[2]), replacing: number(words[3]) };
                self.store.overlaps.insert(number(words[1]), overlap);
            }
            "snapshot" => self.store.has_snapshots = !has("gone"),
            "unflushed" => self.store.unflushed = mib(words[1]),
            "wal" => self.store.oldest_wal = number(words[1]),
            "removed" => self.store.has_removed_ranges = !has("gone"),
            "next" => {
                self.store.waits = has("waits");
                self.store.found_unreferenced = has("unreferenced");
                self.store.is_unfinished = has("unfinished");
            }
            "free" => {
                self.conditions.free_share = number(words[1]);
                self.conditions.free_for_copies = words.get(2).map_or(Bytes(u64::MAX), |bytes| mib(bytes));
            }
            "hurry" => {
                self.conditions.hurry = match words[1] {
                    "none" => Hurry::None,
                    "idle" => Hurry::Idle,
                    "thorough" => Hurry::Thorough,
                    other => panic!("nobody is `{other}`"),
                };
            }
            "rested" => {
                self.conditions.writers =
                    WriterTimes { throttled: Seconds(number(words[1])), busy: Seconds(number(words[2])) };
            }
            "look" => {
                let removing = self.handle(Event::Woken { conditions: self.conditions });
                let inspected = self.inspected();
                return vec![removing, self.handle(inspected)];
            }
            "permitted" => return vec![self.handle(Event::Permitted { tables: self.store.tables.clone() })],
            "not-permitted" => return vec![self.handle(Event::NotPermitted)],
            "flushed" => return vec![self.handle(Event::Flushed { begun: words[1] == "yes" })],
            "measured" => {
                let ranges = words[2..].iter().map(|word| {
                    let (number_, rest) = word.split_once(':').unwrap();
                    let bytes = mib(rest.trim_end_matches('!'));
                    RemovedRange { number: number(number_), bytes, is_held: rest.ends_with('!') }
                });
                return vec![
                    self.handle(Event::RangesMeasured { removed: number(words[1]), ranges: ranges.collect() }),
                ];
            }
            "compacted" => {
                let outcome = match words[1] {
                    "done" => CompactionOutcome::Done,
                    "too-large" => CompactionOutcome::TooLarge,
                    "paused" => CompactionOutcome::Paused,
                    "failed" => CompactionOutcome::Failed,
                    other => panic!("no compaction ends `{other}`"),
                };
                let away = Seconds(words.get(2).map_or(0.0, |seconds| number(seconds)));
                return vec![self.handle(Event::CompactionEnded { outcome, away })];
            }
            "failed" => return vec![self.handle(Event::Failed)],
            other => panic!("the table does not know `{other}`"),
        }
        Vec::new()
    }

    fn segment(&mut self, segment: u32, words: &[&str]) {
        self.store.segments.retain(|it| it.segment != segment);
        self.store.relocated.remove(&segment);
        if words == ["gone"] {
            self.store.shadowed.remove(&segment);
            return;
        }
        let settled = !words.contains(&"unsettled");
        self.store.segments.push(SegmentUse { segment, bytes: mib(words[0]), referenced: mib(words[1]), settled });
        if words.contains(&"relocated") {
            self.store.relocated.insert(segment);
        }
    }

    fn table(&mut self, number_: u64, words: &[&str]) {
        self.store.tables.retain(|it| it.number != number_);
        self.references.remove(&number_);
        if words == ["gone"] {
            return;
        }
        let (first, last) = words[1].split_once('-').unwrap();
        self.store.tables.push(Table {
            number: number_,
            level: number(&words[0][1..]),
            first: first.into(),
            last: last.into(),
            bytes: mib(words[2]),
            entries: 1000,
            is_busy: words.contains(&"busy"),
        });
        if let Some(at) = words.iter().position(|word| *word == "names") {
            self.references.insert(number_, list(words[at + 1]));
        }
    }

    fn inspected(&mut self) -> Event {
        let to_candidates = |segments: &Vec<u32>| -> Vec<u32> {
            segments.iter().copied().filter(|segment| self.candidates.contains(segment)).collect()
        };
        let referencing = self.references.iter().map(|(table, segments)| (*table, to_candidates(segments)));
        self.store.referencing = referencing.filter(|(_, segments)| !segments.is_empty()).collect();
        let event = Event::Inspected { conditions: self.conditions, store: Box::new(self.store.clone()) };
        // It is told once.
        self.store.overlaps.clear();
        (self.store.waits, self.store.found_unreferenced, self.store.is_unfinished) = (false, false, false);
        event
    }

    fn handle(&mut self, event: Event) -> String {
        let commands = self.machine.handle(Time::from_seconds(self.now), event);
        for command in &commands {
            if let Command::SetCandidates(candidates) = command {
                self.candidates.clone_from(candidates);
            }
        }
        commands.iter().map(shown).collect::<Vec<_>>().join("; ")
    }
}

/// Up to four places.
fn float(number: f64) -> String {
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn in_mib(bytes: Bytes) -> String {
    format!("{} MiB", float(bytes.as_f64() / f64::from(1 << 20)))
}

fn numbers<T: ToString>(numbers: impl IntoIterator<Item = T>) -> String {
    let all: Vec<_> = numbers.into_iter().map(|number| number.to_string()).collect();
    if all.is_empty() { "none".into() } else { all.join(",") }
}

fn shown(command: &Command) -> String {
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    match command {
        Command::SetCandidates(segments) => format!("candidates {}", numbers(segments)),
        Command::SetForced(true) => "forced".into(),
        Command::SetForced(false) => "not forced".into(),
        Command::SetForcedRatio(ratio) => format!("ratio {}", float(*ratio)),
        Command::Throttle(share) => format!("throttle {}", float(*share)),
        Command::AwaitWrites(bytes) => format!("await {}", in_mib(*bytes)),
        Command::LeaveAlone(segments, time) => format!("leave {} alone for {} s", numbers(segments), float(time.0)),
        Command::ForgetRanges(ranges) => format!("forget ranges {}", numbers(ranges)),
        Command::KeepRanges => "keep ranges".into(),
        Command::Rest(time) => format!("rest {} s", float(time.0)),
        Command::AnswerWaiting => "answer".into(),
        Command::RemoveSegments { seal_from } => format!("remove segments, seal from {}", float(*seal_from)),
        Command::Flush { at_least: Some(bytes) } => format!("flush if {}", in_mib(*bytes)),
        Command::Flush { at_least: None } => "flush".into(),
        Command::TakePermit(time) => format!("permit within {} s", float(time.0)),
        Command::MeasureRanges => "measure ranges".into(),
        Command::CompactTables { merge, may_go } => {
            let elsewhere = if *may_go { ", or elsewhere" } else { "" };
            format!("compact {} to L{}{elsewhere}", numbers(&merge.inputs), merge.output_level)
        }
        Command::CompactDown { first, last, bytes } => {
            format!("compact down {}-{}, {}", text(first), text(last), in_mib(*bytes))
        }
        Command::CompactRemoved(range) => format!("compact range {}, {}", range.number, in_mib(range.bytes)),
        Command::Sleep(Some(time)) => format!("sleep {} s", float(time.0)),
        Command::Sleep(None) => "sleep".into(),
    }
}

/// The table with the commands that follow by now, and how many scenes there are.
fn played() -> (String, usize) {
    let mut text = String::new();
    let mut scenes = 0;
    let mut scene = Scene::new();
    for line in TABLE.lines().filter(|line| !line.starts_with("=>")) {
        writeln!(text, "{line}").unwrap();
        if line.starts_with("== ") {
            scene = Scene::new();
            scenes += 1;
        } else if !line.trim().is_empty() && !line.starts_with('#') {
            for commands in scene.line(line) {
                writeln!(text, "=> {commands}").unwrap();
            }
        }
    }
    (text, scenes)
}

#[test]
fn garbage_collection_does_what_the_table_says() {
    let (text, scenes) = played();
    assert!(scenes > 10, "the table was read: {scenes} scenes");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PATH, text).unwrap();
        return;
    }
    let different = TABLE.lines().zip(text.lines()).enumerate().find(|(_, (expected, got))| expected != got);
    if let Some((at, (expected, got))) = different {
        panic!("line {} of {PATH}\n  expected {expected}\n  got      {got}", at + 1);
    }
    assert_eq!(TABLE, text);
}
