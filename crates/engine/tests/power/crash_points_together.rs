//! A loss of power while several writers write: of what each has written a prefix is there, and
//! nothing that was promised is missing. And what is there has with it all that had been
//! acknowledged, to whomever, when it was begun.
//!
//! As `crash_points.rs`, whose single writer goes through more kinds of writes.

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::disk::{Change, Image, Recorded, Recorder, moments};
use common::random::{Random, with_seeds};
use common::rounds::Rounds;
use common::telemetry::telemetry;
use common::writes::recount_tables;
use common::{directory_in_memory, value_of};
use ecotone_engine::{CompressionMode, Direction, Durability, OpenMode, Store, StoreSettings, WriteOptions};

const STORE: &str = "store";

const WRITERS: usize = 4;

/// Of each writer. Most writes overwrite.
const KEYS: usize = 12;

/// Writes of each writer, at least.
const WRITES: usize = 120;

/// Rounds of the background sync that begin at least in a life of `everysec`.
const ROUNDS: usize = 3;

/// Moments that are looked at beside those at a sync.
const ELSEWHERE: usize = 60;

/// How many writes of each writer.
type Far = [usize; WRITERS];

fn compresses(durability: Durability) -> bool {
    durability == Durability::Always
}

fn options(durability: Durability) -> StoreSettings {
    // One of the three.
    let mode = if compresses(durability) { CompressionMode::Zstd } else { CompressionMode::None };
    let settings = common::compressing_early(mode, common::collecting_early(4096));
    StoreSettings { durability, memtable_bytes: 256 * 1024, ..settings }
}

/// A writer and how many of its writes, as one number for the recording.
fn told(writer: usize, writes: usize) -> usize {
    writes * WRITERS + writer
}

fn decoded(told: usize) -> (usize, usize) {
    (told % WRITERS, told / WRITERS)
}

fn key(writer: usize, number: usize) -> Vec<u8> {
    format!("writer{writer} key{:02}", number % KEYS).into_bytes()
}

/// Inline and separated values in turn, and sometimes one that is longer than a segment.
fn value(durability: Durability, writer: usize, number: usize) -> Vec<u8> {
    let bytes = match number % 7 {
        0 | 1 => 30,
        6 if number.is_multiple_of(5) => 5_000,
        _ => 300,
    };
    match compresses(durability) {
        true => telemetry((writer << 20 | number) as u64, bytes),
        false => value_of(&key(writer, number), number as u64, bytes),
    }
}

/// Every other write is a batch, which counts as well.
fn has_count(number: usize) -> bool {
    number.is_multiple_of(2)
}

fn key_of_count(writer: usize) -> Vec<u8> {
    format!("writer{writer} count").into_bytes()
}

fn count(number: usize) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// What a writer has in the store after so many of its writes.
fn state_after(durability: Durability, writer: usize, writes: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut state = BTreeMap::new();
    for number in 0..writes {
        state.insert(key(writer, number), value(durability, writer, number));
        if has_count(number) {
            state.insert(key_of_count(writer), count(number));
        }
    }
    state
}

struct Life {
    store: Store,
    recorder: std::sync::Arc<Recorder>,
    durability: Durability,
    acknowledged: [AtomicUsize; WRITERS],
}

impl Life {
    fn write(&self, writer: usize, number: usize) {
        self.recorder.note(Change::Begun(told(writer, number + 1)));
        let options = WriteOptions::durable(self.durability);
        if has_count(number) {
            let mut batch = ecotone_engine::Batch::new();
            batch.put(&key(writer, number), &value(self.durability, writer, number)).unwrap();
            batch.put(&key_of_count(writer), &count(number)).unwrap();
            self.store.write(&batch, options).unwrap();
        } else {
            self.store.put_opt(&key(writer, number), &value(self.durability, writer, number), options).unwrap();
        }
        self.recorder.note(Change::Acknowledged(told(writer, number + 1)));
        self.acknowledged[writer].store(number + 1, Ordering::SeqCst);
        if self.durability == Durability::Always {
            self.recorder.note(Change::Promised(told(writer, number + 1)));
        }
        // The others write on meanwhile.
        if number % 40 == 10 * writer {
            self.store.flush(writer.is_multiple_of(2)).unwrap();
        }
        if number % 30 == 29 && writer == 0 {
            let before: Far = std::array::from_fn(|writer| self.acknowledged[writer].load(Ordering::SeqCst));
            self.store.sync().unwrap();
            for (writer, writes) in before.into_iter().enumerate() {
                self.recorder.note(Change::Promised(told(writer, writes)));
            }
        }
        if self.durability == Durability::EverySecond {
            // A slow client: the background syncs are to meet a recording that can be replayed.
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_long_enough(&self, writes: usize) -> bool {
        let rounds = if self.durability == Durability::EverySecond { ROUNDS } else { 0 };
        writes >= WRITES && self.recorder.background_rounds() >= rounds
    }
}

/// What was recorded so far.
#[derive(Debug, Clone, Default)]
struct Promises {
    begun: Far,
    acknowledged: Far,
    promised: Far,
    /// For each write how far all writers were when it was begun.
    at_begin: [Vec<Far>; WRITERS],
    rounds: Rounds<Far>,
}

impl Promises {
    fn hear(&mut self, recorded: &Recorded) {
        match recorded.change {
            Change::Begun(told) => {
                let (writer, writes) = decoded(told);
                self.begun[writer] = writes;
                self.at_begin[writer].push(self.acknowledged);
            }
            Change::Acknowledged(told) => {
                let (writer, writes) = decoded(told);
                self.acknowledged[writer] = writes;
            }
            Change::Promised(told) => {
                let (writer, writes) = decoded(told);
                self.promised[writer] = self.promised[writer].max(writes);
            }
            _ => (),
        }
        let acknowledged = self.acknowledged;
        if let Some(covered) = self.rounds.hear(recorded, Path::new(STORE), || acknowledged) {
            self.promised = std::array::from_fn(|writer| self.promised[writer].max(covered[writer]));
        }
    }
}

/// How far each writer is in what a death left. None is further than it had `begun`.
fn found(root: &Path, begun: Far, durability: Durability, moment: &str) -> Far {
    let path = root.join(STORE);
    recount_tables(&path, moment);
    let store = Store::open(&path, OpenMode::CreateOrOpen, options(durability));
    let store = store.unwrap_or_else(|error| panic!("{moment}: {error}"));
    let mut states: [BTreeMap<Vec<u8>, Vec<u8>>; WRITERS] = Default::default();
    let mut scan = store.scan(.., Direction::Forward, None).unwrap();
    while let Some(entry) = scan.next_entry().unwrap_or_else(|error| panic!("{moment}: {error}")) {
        let writer = usize::from(entry.key["writer".len()] - b'0');
        states[writer].insert(entry.key.to_vec(), entry.value.to_vec());
    }
    drop(scan);
    store.close().unwrap();
    std::array::from_fn(|writer| {
        let has =
            |number: &usize| states[writer].get(&key(writer, *number)) == Some(&value(durability, writer, *number));
        let last = (0..begun[writer]).rev().find(has);
        let writes = last.map_or(0, |last| last + 1);
        assert!(
            states[writer] == state_after(durability, writer, writes),
            "{moment}: not as after {writes} writes of {writer}"
        );
        writes
    })
}

fn check(image: &Image, promises: &Promises, durability: Durability, random: &mut Random, moment: &str) {
    let root = directory_in_memory();
    image.after_power_loss(root.path(), random);
    let found = found(root.path(), promises.begun, durability, moment);
    for (writer, writes) in found.into_iter().enumerate() {
        let promised = promises.promised[writer];
        assert!(writes >= promised, "{moment}: {writes} writes of {writer}, {promised} were promised");
        let Some(last) = writes.checked_sub(1) else { continue };
        let before = promises.at_begin[writer][last];
        let has_all = before.iter().zip(&found).all(|(before, found)| before <= found);
        assert!(has_all, "{moment}: {found:?}, but {before:?} were acknowledged before write {last} of {writer} began");
    }
}

fn survives_a_loss_of_power_at_any_moment(durability: Durability, seed: u64) {
    let mut random = Random::new(seed);
    let root = directory_in_memory();
    let recorder = Recorder::below(root.path());
    let builder = Store::builder(&root.path().join(STORE)).mode(OpenMode::Create).settings(options(durability));
    let store = builder.hooks(recorder.hooks()).open().unwrap();
    let life = Life { store, recorder, durability, acknowledged: Default::default() };
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let life = &life;
            scope.spawn(move || {
                let begin = Instant::now();
                let mut writes = 0;
                while !life.is_long_enough(writes) {
                    assert!(begin.elapsed() < Duration::from_secs(60), "nothing is synced in the background");
                    life.write(writer, writes);
                    writes += 1;
                }
            });
        }
    });
    let Life { store, recorder, acknowledged, .. } = life;
    store.close().unwrap();
    for (writer, writes) in acknowledged.into_iter().enumerate() {
        recorder.note(Change::Promised(told(writer, writes.into_inner())));
    }
    let changes = recorder.take();

    let (mut image, mut promises, mut done) = (Image::default(), Promises::default(), 0);
    let mut were_ahead = 0;
    for moment in moments(&changes, ELSEWHERE, &mut random) {
        for recorded in &changes[done..moment] {
            image.apply(&recorded.change);
            promises.hear(recorded);
        }
        done = moment;
        let name = format!("{durability:?}, seed {seed}, after {moment} of {} changes", changes.len());
        check(&image, &promises, durability, &mut random, &name);
        were_ahead += usize::from((0..WRITERS).any(|writer| promises.begun[writer] > promises.promised[writer] + 1));
    }
    assert!(durability == Durability::Always || were_ahead > 10, "nothing was ever at stake");
}

#[test]
fn of_several_writers_a_common_prefix_survives_where_some_sync_by_hand() {
    with_seeds(1, |seed| survives_a_loss_of_power_at_any_moment(Durability::None, seed));
}

#[test]
fn of_several_writers_at_most_what_came_since_the_last_background_sync_is_lost() {
    with_seeds(1, |seed| survives_a_loss_of_power_at_any_moment(Durability::EverySecond, seed));
}

#[test]
fn nothing_acknowledged_to_any_of_several_writers_is_lost_where_every_write_is_synced() {
    with_seeds(1, |seed| survives_a_loss_of_power_at_any_moment(Durability::Always, seed));
}
