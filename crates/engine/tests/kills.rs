//! Kills of a real process under load, hundreds of them, over one directory: nothing acknowledged
//! is lost, in any durability.
//!
//! The test starts itself again as a child that writes with several threads while the store
//! flushes, compacts, relocates and removes segments, and kills it with SIGKILL some milliseconds
//! later. Then it opens the store itself: each writer's newest acknowledged writes must be there,
//! at most the one that was under way beside them, each of its parts or none. What the tables that
//! it left name is counted anew, and every few rounds what those of a copy do once it is compacted.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use common::random::{Random, with_seeds};
use common::telemetry::telemetry;
use common::value_of;
use common::writes::{LONG_BYTES, live_bytes, recount_compacted, recount_compacted_packed, recount_tables};
use ecotone_engine::{CompressionMode, Direction, Durability, OpenMode, Store, StoreSettings, WriteOptions};
use ecotone_inspect::verify;

const DIRECTORY: &str = "ECOTONE_TEST_DIRECTORY";
const DURABILITY: &str = "ECOTONE_TEST_DURABILITY";
const SIZES: &str = "ECOTONE_TEST_SIZES";
/// The number of each writer's first write in this round, apart by commas.
const BEGIN: &str = "ECOTONE_TEST_BEGIN";

const WRITERS: usize = 3;

/// Groups of keys of each writer: so few that all are overwritten in each round.
const GROUPS: u64 = 150;

/// Keys of a group, written together.
const PARTS: u64 = 3;

/// Kills of each durability. Of 60, 30 come once values are relocated, 18 once a segment has gone, 3
/// after a second of writes, the others may come while the store opens.
const ROUNDS: u64 = 50;

/// Kills of each durability where values are compressed.
const ROUNDS_OF_COMPRESSED: u64 = 15;

/// Kills where all is large.
const ROUNDS_OF_LARGE: u64 = 20;

/// In one of so many rounds the child lives long enough for a sync in the background, in two it may
/// not come to open the store.
const LONG_ROUNDS: u64 = 20;

/// After one of so many rounds the live bytes are counted anew. What each table refers to is after
/// every one.
const COUNTED: u64 = 3;

/// How large all is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sizes {
    /// Values of up to 400 bytes, of which a compaction copies some KiB.
    Small,
    /// Sixteen times as large: a compaction copies more than is collected at a time.
    Large,
    /// As small, of values that are compressed with dictionaries, which come and go as values change
    /// their kind.
    Compressed,
}

impl Sizes {
    fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
            Self::Compressed => "compressed",
        }
    }

    fn named(name: &str) -> Self {
        [Self::Small, Self::Large, Self::Compressed].into_iter().find(|sizes| sizes.name() == name).unwrap()
    }

    fn scale(self) -> usize {
        if self == Sizes::Large { 16 } else { 1 }
    }

    fn options(self, durability: Durability) -> StoreSettings {
        let mode = if self == Self::Compressed { CompressionMode::Zstd } else { CompressionMode::None };
        let settings = common::collecting_early(64 * 1024 * self.scale() as u64);
        StoreSettings { durability, ..common::compressing_early(mode, settings) }
    }

    /// What a write leaves in a part of its group; `None` where it deletes.
    fn value(self, key: &[u8], number: u64) -> Option<Vec<u8>> {
        let bytes = [20, 150, 400, 150][number as usize % 4] * self.scale();
        let value = || match self {
            Self::Small | Self::Large => value_of(key, number, bytes),
            Self::Compressed => self::shrinking(key, number, bytes),
        };
        (!number.is_multiple_of(11)).then(value)
    }
}

/// A value that can be compressed: JSON for some writes, then lines that have nothing of it.
fn shrinking(key: &[u8], number: u64, bytes: usize) -> Vec<u8> {
    if (number / KIND_WRITES).is_multiple_of(2) {
        return telemetry(number << 8 | u64::from(key[key.len() - 1]), bytes);
    }
    let of_key = key.escape_ascii();
    let line = format!("<{}> {of_key} follower has acknowledged write {number}; ", number % 190);
    line.into_bytes().into_iter().cycle().take(bytes).collect()
}

/// Writes of a writer until its values are of another kind.
const KIND_WRITES: u64 = 400;

/// Which group a write is to.
fn group_of(writer: usize, number: u64) -> u64 {
    Random::new(writer as u64 ^ number << 8).next() % GROUPS
}

fn key(writer: usize, group: u64, part: u64) -> Vec<u8> {
    format!("w{writer}-g{group:04}-p{part}").into_bytes()
}

/// Not a test of its own: the child that the tests below start. Without its variables it has
/// nothing to do.
#[test]
fn child() {
    let variable = std::env::var;
    let (Ok(directory), Ok(name), Ok(begin)) = (variable(DIRECTORY), variable(DURABILITY), variable(BEGIN)) else {
        return;
    };
    let sizes = Sizes::named(&variable(SIZES).unwrap());
    let options = sizes.options(name.parse().unwrap());
    let store = Store::open(Path::new(&directory), OpenMode::CreateOrOpen, options).unwrap();
    // One write to the pipe for a line: lines of several threads do not mix.
    let say = |line: String| std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    say("opened\n".into());
    std::thread::scope(|scope| {
        for (writer, begin) in begin.split(',').map(|begin| begin.parse::<u64>().unwrap()).enumerate() {
            let (store, say) = (&store, &say);
            scope.spawn(move || {
                for number in begin.. {
                    let mut batch = ecotone_engine::Batch::new();
                    for part in 0..PARTS {
                        let key = key(writer, group_of(writer, number), part);
                        match sizes.value(&key, number) {
                            Some(value) => batch.put(&key, &value).unwrap(),
                            None => batch.delete(&key).unwrap(),
                        }
                    }
                    store.write(&batch, WriteOptions::default()).unwrap();
                    say(format!("acknowledged {writer} {number}\n"));
                }
            });
        }
        loop {
            store.flush(true).unwrap();
            let log = store.value_log().unwrap();
            say(format!("relocated {} {}\n", log.relocated_bytes, log.removed_segments));
            if let Some(now) = store.value_compression() {
                say(format!("installed {}\n", now.installed_dictionaries));
            }
        }
    });
}

fn start(directory: &Path, durability: Durability, sizes: Sizes, begin: [u64; WRITERS]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(DURABILITY, durability.name())
        .env(SIZES, sizes.name())
        .env(BEGIN, begin.map(|number| number.to_string()).join(","))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What a child said in its life.
#[derive(Default)]
struct Said {
    /// The number behind the last acknowledged write of each writer; none where none was.
    acknowledged: [Option<u64>; WRITERS],
    relocated_bytes: u64,
    removed_segments: u64,
    installed_dictionaries: u64,
}

/// When a child is killed.
#[derive(Clone, Copy)]
enum After {
    /// So long after it was started, which may be while it opens the store.
    Start(Duration),
    /// So long after it has opened the store.
    Opening(Duration),
    /// So long after it has begun to relocate values.
    Relocating(Duration),
    /// So long after a segment has gone.
    Removing(Duration),
}

/// However busy the machine: a life is a tenth of a second long where nobody else takes the cores.
const RELOCATES_WITHIN: Duration = Duration::from_secs(60);

/// Starts a child, kills it, and returns what it said.
fn live_and_die(directory: &Path, durability: Durability, sizes: Sizes, begin: [u64; WRITERS], after: After) -> Said {
    let mut child = start(directory, durability, sizes, begin);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    if !matches!(after, After::Start(_)) {
        assert!(lines.any(|line| line.unwrap().ends_with("opened")), "the child opens the store");
    }
    let mut said = Said::default();
    let (relocates, told) = channel();
    let is_awaited = |said: &Said| match after {
        After::Removing(_) => said.removed_segments > 0,
        _ => said.relocated_bytes > 0,
    };
    std::thread::scope(|scope| {
        let child = &mut child;
        scope.spawn(move || {
            let (after, came) = match after {
                After::Start(after) | After::Opening(after) => (after, Ok(())),
                After::Relocating(after) | After::Removing(after) => (after, told.recv_timeout(RELOCATES_WITHIN)),
            };
            std::thread::sleep(after);
            child.kill().unwrap();
            assert_ne!(
                came,
                Err(RecvTimeoutError::Timeout),
                "a life of {RELOCATES_WITHIN:?} without garbage collection"
            );
        });
        // Until it is dead. A line cut short does not count.
        for line in lines.map_while(Result::ok) {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["acknowledged", writer, number] => {
                    said.acknowledged[writer.parse::<usize>().unwrap()] = number.parse().ok().map(|it: u64| it + 1);
                }
                ["relocated", bytes, segments] => {
                    said.relocated_bytes = bytes.parse().unwrap_or(said.relocated_bytes);
                    said.removed_segments = segments.parse().unwrap_or(said.removed_segments);
                    if is_awaited(&said) {
                        let _ = relocates.send(());
                    }
                }
                ["installed", dictionaries] => {
                    said.installed_dictionaries = dictionaries.parse().unwrap_or(said.installed_dictionaries);
                }
                _ => (),
            }
        }
        drop(relocates);
    });
    child.wait().unwrap();
    said
}

/// What the directory holds, as far as its writers were told.
struct Kept {
    sizes: Sizes,
    /// The number of the next write of each writer.
    next: [u64; WRITERS],
    /// The last write to each group that has one.
    newest: HashMap<(usize, u64), u64>,
}

impl Kept {
    /// Takes over what was acknowledged, and then what is in the store of the writes that were
    /// under way.
    fn check(&mut self, store: &Store, said: &Said) {
        for writer in 0..WRITERS {
            let acknowledged = said.acknowledged[writer].unwrap_or(self.next[writer]);
            for number in self.next[writer]..acknowledged {
                self.newest.insert((writer, group_of(writer, number)), number);
            }
            // It may be there or not.
            let under_way = acknowledged;
            self.next[writer] = under_way + 1;
            for group in 0..GROUPS {
                let newest = self.newest.get(&(writer, group)).copied();
                let holds = |number: Option<u64>| {
                    (0..PARTS).all(|part| {
                        let key = key(writer, group, part);
                        let wanted = number.and_then(|number| self.sizes.value(&key, number));
                        store.get(&key).unwrap().as_deref() == wanted.as_deref()
                    })
                };
                if group == group_of(writer, under_way) && holds(Some(under_way)) {
                    self.newest.insert((writer, group), under_way);
                } else {
                    assert!(holds(newest), "group {group} of writer {writer} is not as its write {newest:?} left it");
                }
            }
        }
    }
}

fn nothing_acknowledged_is_lost(durability: Durability, sizes: Sizes, rounds: u64, seed: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let mut random = Random::new(seed);
    let mut kept = Kept { sizes, next: [1; WRITERS], newest: HashMap::new() };
    let (mut relocating_lives, mut removing_lives, mut recounted_tables, mut max_relocated) = (0, 0, 0, 0);
    let mut installing_lives = 0;
    for round in 0..rounds {
        let up_to = |random: &mut Random, max_ms| Duration::from_millis(random.below(max_ms) as u64);
        let after = match round % LONG_ROUNDS {
            1 => After::Opening(Duration::from_millis(1_100) + up_to(&mut random, 200)),
            2 | 12 => After::Start(up_to(&mut random, 60)),
            // While it opens, or soon after.
            7 => After::Opening(up_to(&mut random, 60)),
            third if third.is_multiple_of(3) => After::Removing(up_to(&mut random, 100)),
            _ => After::Relocating(up_to(&mut random, 100)),
        };
        let said = live_and_die(&path, durability, sizes, kept.next, after);
        relocating_lives += u64::from(said.relocated_bytes > 0);
        max_relocated = max_relocated.max(said.relocated_bytes);
        removing_lives += u64::from(said.removed_segments > 0);
        installing_lives += u64::from(said.installed_dictionaries > 0);

        recounted_tables += recount_tables(&path, &format!("kill {round}"));

        let options = sizes.options(durability);
        let store = Store::open(&path, OpenMode::Open, options.clone()).unwrap();
        kept.check(&store, &said);
        let (mut entries, mut live, mut long) = (0, 0, 0);
        let mut scan = store.scan(.., Direction::Forward, None).unwrap();
        while let Some(entry) = scan.next_entry().unwrap() {
            entries += 1;
            live += live_bytes(entry.key, entry.value);
            long += u64::from(entry.value.len() >= LONG_BYTES as usize);
        }
        drop(scan);
        let there = kept.newest.values().filter(|number| !number.is_multiple_of(11)).count() as u64;
        assert_eq!(entries, there * PARTS, "nothing else is there");
        if round % COUNTED == 0 {
            // In a copy: to compact the store itself would make all rounds begin alike.
            let copy = directory.path().join("copy");
            store.checkpoint(&copy).unwrap();
            recounted_tables += recount_tables(&copy, &format!("after kill {round}"));
            let copied = Store::open(&copy, OpenMode::Open, options).unwrap();
            match sizes {
                Sizes::Small | Sizes::Large => recount_compacted(&copied, live),
                Sizes::Compressed => drop(recount_compacted_packed(&copied, long)),
            }
            copied.close().unwrap();
            std::fs::remove_dir_all(&copy).unwrap();
        }
        store.close().unwrap();
        if round % 10 == 0 {
            let report = verify(&path, |_| ()).unwrap();
            assert!(report.is_sound() && report.entries == entries, "{report:?}");
        }
    }
    assert!(recounted_tables as u64 > rounds, "{recounted_tables} tables only");
    let met = format!("{relocating_lives} lives relocated, {removing_lives} removed segments");
    // Two thirds of all, whatever others take of the cores.
    assert!(
        3 * relocating_lives >= 2 * rounds && removing_lives >= rounds / 4,
        "the kills were to meet garbage collection: {met}"
    );
    // More than is collected of one stream.
    assert!(sizes != Sizes::Large || max_relocated > 512 << 10, "{max_relocated} bytes relocated at most");
    assert!(
        sizes != Sizes::Compressed || 4 * installing_lives >= rounds,
        "{installing_lives} lives had a new dictionary"
    );
}

/// Of values as they are, and of compressed ones.
fn in_both_ways(durability: Durability) {
    with_seeds(1, |seed| {
        nothing_acknowledged_is_lost(durability, Sizes::Small, ROUNDS, seed);
        nothing_acknowledged_is_lost(durability, Sizes::Compressed, ROUNDS_OF_COMPRESSED, seed);
    });
}

#[test]
fn kills_take_nothing_without_sync() {
    in_both_ways(Durability::None);
}

#[test]
fn kills_take_nothing_with_a_sync_every_second() {
    in_both_ways(Durability::EverySecond);
}

#[test]
fn kills_take_nothing_with_a_sync_always() {
    in_both_ways(Durability::Always);
}

/// What is collected is given to the kernel because it is full, again and again, as well as at a
/// sync.
#[test]
fn kills_take_nothing_while_copies_are_many() {
    with_seeds(1, |seed| nothing_acknowledged_is_lost(Durability::EverySecond, Sizes::Large, ROUNDS_OF_LARGE, seed));
}
