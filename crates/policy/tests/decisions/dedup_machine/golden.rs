//! Golden table: scenes of a store's life, each event with the commands that follow and what was
//! counted. The table says how it is written.

use std::fmt::Write as _;
use std::str::FromStr;

use ecotone_policy::dedup::deferral::MergeFailure;
use ecotone_policy::dedup::machine::{Command, Counting, Event, Wait};
use ecotone_policy::dedup::plan::Table;
use ecotone_policy::dedup::{DedupMachine, DedupParameters, DedupThreshold};
use ecotone_types::units::{Bytes, Seconds, Time};

use super::store::{ONE_IN, Store, sample};

const TABLE: &str = include_str!("../../golden/dedup_machine.txt");

/// How a scene begins.
#[derive(Clone)]
struct Setting {
    counting: Counting,
    threshold: Option<DedupThreshold>,
    parameters: DedupParameters,
}

struct Scene {
    setting: Setting,
    machine: Option<DedupMachine>,
    store: Store,
    now: Time,
    counted: Vec<(&'static str, u64)>,
}

fn number<T: FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is not a number"))
}

/// The value after a word, as in `took 3`.
fn after<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().position(|word| *word == name).map(|at| words[at + 1])
}

impl Scene {
    fn new() -> Self {
        let setting = Setting {
            counting: Counting::Samples,
            threshold: Some(DedupThreshold::try_from(10.0).unwrap()),
            parameters: DedupParameters::default(),
        };
        Self { setting, machine: None, store: Store::default(), now: Time::default(), counted: Vec::new() }
    }

    /// Takes a line; what follows from it, where it is an event.
    fn line(&mut self, words: &[&str]) -> Option<String> {
        let (parameters, pressure) = (&mut self.setting.parameters, &mut self.store.pressure);
        match words[0] {
            "samples" => self.setting.counting = Counting::Samples,
            "filters" => self.setting.counting = Counting::Filters,
            "levels" => self.setting.counting = Counting::Levels { interval: Seconds(number(words[1])) },
            "threshold" => {
                let ratio = Some(words[1]).filter(|word| *word != "none");
                self.setting.threshold = ratio.map(|ratio| DedupThreshold::try_from(number::<f64>(ratio)).unwrap());
            }
            "max-merge" => parameters.max_merge_bytes = Bytes::from_mib(number(words[1])),
            "rest-share" => parameters.rest_share = number(words[1]),
            "table" => self.table(words),
            "gone" => {
                let gone: Vec<u64> = words[1..].iter().map(|word| number(word)).collect();
                self.store.remove(&gone);
            }
            "busy" | "free" => {
                for table in &mut self.store.tables {
                    if words[1..].iter().any(|word| number::<u64>(word) == table.number) {
                        table.is_busy = words[0] == "busy";
                    }
                }
            }
            "l0" => pressure.l0_tables = number(words[1]),
            "slowed" => pressure.is_slowed = words[1] == "yes",
            "pending" => pressure.pending_compaction_bytes = Bytes::from_mib(number(words[1])),
            "flushed" => self.store.flushed = number(words[1]),
            "space" => self.store.free_space = Bytes::from_mib(number(words[1])),
            "permit" => self.store.is_permit_free = words[1] == "free",
            "readable" => self.store.is_readable = words[1] == "yes",
            "background-error" => self.store.has_background_error = words[1] == "yes",
            "at" => return Some(self.event(words)),
            other => panic!("the table does not know `{other}`"),
        }
        None
    }

    /// `table 1 L2 a-f 4 keys 0-100`
    fn table(&mut self, words: &[&str]) {
        let (first, last) = words[3].split_once('-').unwrap();
        let level = number(&words[2][1..]);
        let keys = match after(words, "keys").and_then(|keys| keys.split_once('-')) {
            Some((from, to)) => number::<u64>(from)..number(to),
            None => 0..0,
        };
        let table = Table {
            number: number(words[1]),
            level,
            first: first.into(),
            last: last.into(),
            bytes: Bytes::from_mib(number(words[4])),
            entries: (keys.end - keys.start) * ONE_IN,
            is_busy: false,
        };
        self.store.add(table, keys.map(|key| sample(key, level)).collect());
    }

    /// `at 3 wake`, `at 4 merged ...`
    fn event(&mut self, words: &[&str]) -> String {
        self.now = Time::from_seconds(number(words[1]));
        let Setting { counting, threshold, parameters } = self.setting.clone();
        let mut machine = self.machine.take().unwrap_or_else(|| DedupMachine::new(counting, threshold, parameters));
        let commands = match words[2] {
            "wake" => {
                let mut compactions: Vec<Vec<u64>> = Vec::new();
                for word in &words[3..] {
                    match *word {
                        "wrote" => compactions.push(Vec::new()),
                        table => compactions.last_mut().unwrap().push(number(table)),
                    }
                }
                self.store.wake(&mut machine, &mut self.now, compactions)
            }
            "merged" => {
                let took = after(words, "took").map(|seconds| Seconds(number(seconds))).unwrap();
                let ended = Event::MergeEnded {
                    found_keys: number(after(words, "freed").unwrap()),
                    took,
                    took_here: (!words.contains(&"away")).then_some(took),
                    is_space_low: words.contains(&"low-space"),
                };
                vec![machine.handle(self.now, ended)]
            }
            "unreported" => vec![machine.handle(self.now, Event::MergeUnreported)],
            "failed" => {
                let failure = match words[3] {
                    "conflict" => MergeFailure::Conflict,
                    "no-space" => MergeFailure::NoSpace,
                    "closing" => MergeFailure::Closing,
                    "failure" => MergeFailure::Failure,
                    other => panic!("the table does not know `{other}`"),
                };
                vec![machine.handle(self.now, Event::MergeFailed(failure))]
            }
            other => panic!("the table does not know `{other}`"),
        };
        let mut text = commands.iter().map(|command| self.shown(command)).collect::<Vec<_>>().join(", ");
        let counted = counted(&machine);
        for (at, (name, count)) in counted.iter().enumerate() {
            let more = count - self.counted.get(at).map_or(0, |before| before.1);
            if more > 0 {
                write!(text, "; {name} {more}").unwrap();
            }
        }
        if machine.is_busy() {
            text.push_str("; busy");
        }
        self.counted = counted;
        self.machine = Some(machine);
        text
    }

    fn shown(&self, command: &Command) -> String {
        match command {
            Command::ReadTables => "read tables".to_owned(),
            Command::TakePermit { at_most: Seconds(at_most) } => format!("take permit {at_most}"),
            Command::ReadTablesAndSpace => "read tables and space".to_owned(),
            Command::Merge { merge, expected } => {
                let inputs: Vec<_> = merge.inputs.iter().map(u64::to_string).collect();
                let (mib, freed, entries) = (merge.bytes.0 >> 20, expected.duplicate_keys, expected.total_keys);
                let level = merge.output_level;
                format!("merge {} to L{level}: {mib} MiB, frees {freed} of {entries}", inputs.join(" "))
            }
            Command::Wait(Wait { at_most, checks_not_before }) => {
                let mut text = match at_most {
                    Some(Seconds(time)) => format!("wait {}", rounded(*time)),
                    None => "wait".to_owned(),
                };
                let Seconds(time) = checks_not_before.since(self.now);
                if time > 0.0 {
                    write!(text, " checks after {}", rounded(time)).unwrap();
                }
                text
            }
        }
    }
}

/// To a tenth of a millisecond.
fn rounded(seconds: f64) -> f64 {
    (seconds * 10_000.0).round() / 10_000.0
}

fn counted(machine: &DedupMachine) -> Vec<(&'static str, u64)> {
    let counts = machine.counts();
    let mut all = vec![
        ("checks", counts.checks),
        ("dropped", counts.checks_dropped),
        ("extensions", counts.extensions),
        ("merges", counts.merges),
        ("aborted", counts.merges_aborted),
        ("expected", counts.expected_keys),
        ("found", counts.found_keys),
    ];
    all.extend(counts.checks_left().map(|(why, count)| (why.name(), count)));
    all.extend(counts.merges_deferred().map(|(why, count)| (why.name(), count)));
    all
}

#[test]
fn every_scene_is_played_as_written() {
    let (mut title, mut scene, mut followed) = ("", Scene::new(), None::<String>);
    let (mut wrong, mut scenes) = (Vec::new(), 0);
    for (line, text) in (1..).zip(TABLE.lines()) {
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some(expected) = text.strip_prefix("=> ") {
            let got = followed.take().unwrap_or_else(|| panic!("line {line}: nothing has happened"));
            if got != expected {
                wrong.push(format!("line {line}, {title}\n  expected {expected}\n  got      {got}"));
            }
            continue;
        }
        assert_eq!(followed, None, "line {line}: what follows is not said");
        if let Some(next) = text.strip_prefix("== ") {
            (title, scene, scenes) = (next, Scene::new(), scenes + 1);
            continue;
        }
        followed = scene.line(&text.split_whitespace().collect::<Vec<_>>());
    }
    assert!(scenes > 12, "the table was read: {scenes} scenes");
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
