//! A loss of power at syncs and between: what was promised is there, and of the rest a prefix.
//!
//! A store is written by one thread while it flushes, compacts, relocates and removes segments, on
//! a disk that is recorded. Right before or after syncs, and at some moments between, the
//! directory is made as a loss of power would leave it (see `common/disk.rs`), opened, and compared
//! with the states that the store went through: exactly one of them must be there, and none from
//! before what was promised. What the tables say of the value log is counted anew; of some also
//! after they were compacted, and every byte verified.
//!
//! After some of these moments the store lives on for a while and loses power again, also when the
//! first death was but a kill, so that the second loss takes what the first process had left in the
//! kernel's hands.

use crate::common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::disk::{Change, Image, Recorded, Recorder, contents_below, moments};
use common::random::{Random, with_seeds};
use common::rounds::Rounds;
use common::writes::{
    Writes, read_all, recount_compacted, recount_compacted_packed, recount_tables, recount_tables_of,
};
use common::{directory_in_memory, until};
use ecotone_engine::{
    CompressionMode, DedupMode, Durability, OpenMode, SYNC_INTERVAL, Store, StoreSettings, WriteOptions,
};
use ecotone_inspect::verify;

/// In a folder that the store makes as well.
const STORE: &str = "new/store";

/// In these there are flushes and syncs forcibly. After them a WAL comes to have several blocks,
/// and what is durable is so by what the durability alone promises.
const BUSY_WRITES: usize = 300;

/// Rounds of the background sync that begin at least in a life of `everysec`.
const ROUNDS: usize = 4;

/// Moments of a life that are looked at beside those at a sync.
const ELSEWHERE: usize = 100;

/// One in so many states is counted anew and verified.
const COUNTED: usize = 8;

/// One in so many of these moments has a second life.
const SECOND_LIVES: usize = 25;

fn options(durability: Durability, compresses: bool) -> StoreSettings {
    let dedup = common::dedup_eagerly(DedupMode::Filter);
    let mode = if compresses { CompressionMode::Zstd } else { CompressionMode::None };
    let settings = common::compressing_early(mode, common::collecting_early(4096));
    StoreSettings { durability, dedup, memtable_bytes: 256 * 1024, ..settings }
}

/// A store that is written on a recorded disk.
struct Life {
    store: Store,
    recorder: std::sync::Arc<Recorder>,
    durability: Durability,
}

impl Life {
    fn begin(root: &Path, durability: Durability, compresses: bool) -> Self {
        let recorder = Recorder::below(root);
        let builder = Store::builder(&root.join(STORE)).settings(options(durability, compresses));
        let store = builder.hooks(recorder.hooks()).open().unwrap();
        Self { store, recorder, durability }
    }

    fn write(&self, writes: &Writes, number: usize) {
        let busy = number < BUSY_WRITES || self.durability == Durability::Always;
        // In a store that syncs nothing one write now and then is synced, and with it all before.
        let synced = self.durability == Durability::None && busy && number % 40 == 7;
        let durability = if synced { Durability::Always } else { self.durability };
        writes.get(number).apply(&self.store, WriteOptions::durable(durability));
        self.recorder.note(Change::Acknowledged(number + 1));
        if durability == Durability::Always {
            self.recorder.note(Change::Promised(number + 1));
        }
        if number % 50 == 49 && busy {
            // While a flush is under way that nobody waits for, writes go to the next WAL.
            self.store.flush(number % 100 == 99).unwrap();
        }
        if number % 300 == 299 && busy {
            self.store.compact(..).unwrap();
        }
        if number % 160 == 150 && busy {
            self.store.sync().unwrap();
            self.recorder.note(Change::Promised(number + 1));
        }
        if self.durability == Durability::EverySecond {
            // A slow client: the background syncs are to meet a recording that can be replayed.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(self, written: usize) -> Vec<Recorded> {
        self.store.close().unwrap();
        self.recorder.note(Change::Promised(written));
        self.recorder.take()
    }
}

/// What must survive, by what was recorded so far.
#[derive(Debug, Clone, Default)]
struct Promises {
    acknowledged: usize,
    promised: usize,
    rounds: Rounds<usize>,
}

impl Promises {
    fn hear(&mut self, recorded: &Recorded) {
        match &recorded.change {
            Change::Acknowledged(writes) => self.acknowledged = *writes,
            Change::Promised(writes) => self.promised = self.promised.max(*writes),
            _ => (),
        }
        let acknowledged = self.acknowledged;
        if let Some(covered) = self.rounds.hear(recorded, Path::new(STORE), || acknowledged) {
            self.promised = self.promised.max(covered);
        }
    }
}

/// Opens what a death left, looks for the state it is in, and, where wanted, checks every byte.
fn check(root: &Path, promises: &Promises, writes: &mut Writes, durability: Durability, counts: bool, moment: &str) {
    let path = root.join(STORE);
    recount_tables(&path, moment);
    // Opened to compress nothing: it is what it was all the same.
    let store = Store::open(&path, OpenMode::CreateOrOpen, options(durability, false));
    let store = store.unwrap_or_else(|error| panic!("{moment}: {error}"));
    let found = read_all(&store).unwrap_or_else(|error| panic!("{moment}: {error}"));
    // One more may be there than was acknowledged.
    let written =
        (promises.promised..=promises.acknowledged + 1).rev().find(|it| writes.state_after(*it) == found.state);
    if written.is_none() {
        let before = (0..promises.promised).rev().find(|it| writes.state_after(*it) == found.state);
        panic!("{moment}: {} entries, the state after {before:?} writes; {promises:?}", found.entries);
    }
    if !counts {
        return store.close().unwrap();
    }
    // Those that recovery wrote.
    let pause = store.pause_compactions().unwrap();
    recount_tables_of(&store, moment);
    drop(pause);
    match store.value_compression() {
        Some(_) => drop(recount_compacted_packed(&store, found.long_entries)),
        None => recount_compacted(&store, found.live_bytes),
    }
    store.close().unwrap();
    let report = verify(&path, |_| ()).unwrap();
    assert!(report.is_sound(), "{moment}: {report:?}");
    assert_eq!(report.entries, found.entries as u64, "{moment}");
}

/// The store goes on after its first death, and loses power somewhere on its way.
fn second_life(
    image: &Image,
    promises: &Promises,
    writes: &mut Writes,
    durability: Durability,
    random: &mut Random,
    moment: &str,
) {
    let root = directory_in_memory();
    let killed = random.once_in(2);
    let mut image = image.clone();
    if killed {
        image.after_kill(root.path(), random);
    } else {
        image.after_power_loss(root.path(), random);
        image = Image::of(root.path());
    }
    let moment = format!("{moment}, {} and", if killed { "a kill" } else { "a loss of power" });
    recount_tables(&root.path().join(STORE), &moment);
    // What was not compressed may be from now on, and the other way round.
    let life = Life::begin(root.path(), durability, random.once_in(2));
    let found = read_all(&life.store).unwrap_or_else(|error| panic!("{moment}: {error}")).state;
    let least = if killed { promises.acknowledged } else { promises.promised };
    let begin = (least..=promises.acknowledged + 1).rev().find(|it| writes.state_after(*it) == found);
    let begin = begin.unwrap_or_else(|| panic!("{moment}: not found again; {promises:?}"));
    let end = begin + random.below(80);
    (begin..end).for_each(|number| life.write(writes, number));
    let changes = life.end(end);
    assert_all_was_told(&image, &changes, root.path());
    for _ in 0..3 {
        let cut = random.below(changes.len() + 1);
        let mut image = image.clone();
        let mut promises = Promises { promised: promises.promised, acknowledged: begin, ..Promises::default() };
        for recorded in &changes[..cut] {
            image.apply(&recorded.change);
            promises.hear(recorded);
        }
        let root = directory_in_memory();
        image.after_power_loss(root.path(), random);
        let moment = format!("{moment} after {cut} of {} further changes", changes.len());
        check(root.path(), &promises, writes, durability, true, &moment);
    }
}

/// For each round of the background sync but the first, what a loss of power right before it has
/// covered its writes takes at most: all since the begin of the one before.
fn unsafe_windows(changes: &[Recorded]) -> Vec<Duration> {
    let (mut rounds, mut begun, mut before) = (Rounds::default(), None, None);
    let mut windows = Vec::new();
    for recorded in changes {
        if rounds.hear(recorded, Path::new(STORE), || ()).is_some() {
            windows.extend(before.map(|before| recorded.at - before));
            before = begun;
        }
        if recorded.change == Change::SyncBegins {
            begun = Some(recorded.at);
        }
    }
    windows
}

/// That a disk which was `before`, with `changes`, is what is below `root`.
fn assert_all_was_told(before: &Image, changes: &[Recorded], root: &Path) {
    let mut whole = before.clone();
    changes.iter().for_each(|recorded| whole.apply(&recorded.change));
    let (told, there) = (whole.contents(), contents_below(root));
    assert!(told.keys().eq(there.keys()), "{:?} were told of, {:?} are there", told.keys(), there.keys());
    for (path, bytes) in there {
        assert!(told[&path] == bytes, "not all that was written to {path:?} was told");
    }
}

/// Returns what was recorded.
fn survives_a_loss_of_power_at_any_moment(durability: Durability, seed: u64) -> Vec<Recorded> {
    let mut random = Random::new(seed);
    // Of what syncs nothing by itself most is at stake at each moment.
    let compresses = durability == Durability::None;
    let mut writes = if compresses { Writes::shrinking(seed) } else { Writes::new(seed) };
    let root = directory_in_memory();
    let life = Life::begin(root.path(), durability, compresses);
    let mut written = 0;
    let rounds = if durability == Durability::EverySecond { ROUNDS } else { 0 };
    // Where every write is synced there are many syncs.
    let writes_at_least = if durability == Durability::Always { BUSY_WRITES + 50 } else { 2 * BUSY_WRITES };
    let begin = Instant::now();
    while written < writes_at_least || life.recorder.background_rounds() < rounds {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing is synced in the background");
        life.write(&writes, written);
        written += 1;
    }
    life.store.flush(true).unwrap();
    // Garbage collection and removal are in the recording, and what comes after them.
    until(&life.store, |log| log.relocated_bytes > 0 && log.removed_segments > 0);
    if compresses {
        let now = life.store.value_compression().unwrap();
        assert!(now.installed_dictionaries > 0 && now.written.stored_bytes < now.written.raw_bytes, "{now:?}");
    }
    (written..written + 100).for_each(|number| life.write(&writes, number));
    written += 100;
    let changes = life.end(written);

    assert_all_was_told(&Image::default(), &changes, root.path());

    let (mut image, mut promises, mut done) = (Image::default(), Promises::default(), 0);
    for (permit, moment) in moments(&changes, ELSEWHERE, &mut random).into_iter().enumerate() {
        for recorded in &changes[done..moment] {
            image.apply(&recorded.change);
            promises.hear(recorded);
        }
        done = moment;
        let lost = directory_in_memory();
        image.after_power_loss(lost.path(), &mut random);
        let last = moment.checked_sub(1).map(|last| format!("{:.120?}", format!("{:?}", changes[last].change)));
        let name = format!("{durability:?}, seed {seed}, after {moment} of {} changes, {last:?}", changes.len());
        check(lost.path(), &promises, &mut writes, durability, permit % COUNTED == 0, &name);
        if permit % SECOND_LIVES == 0 {
            second_life(&image, &promises, &mut writes, durability, &mut random, &name);
        }
    }
    changes
}

#[test]
fn what_was_synced_by_hand_survives_and_of_the_rest_a_prefix() {
    with_seeds(1, |seed| drop(survives_a_loss_of_power_at_any_moment(Durability::None, seed)));
}

#[test]
fn at_most_what_came_since_the_last_background_sync_is_lost() {
    with_seeds(1, |seed| {
        let changes = survives_a_loss_of_power_at_any_moment(Durability::EverySecond, seed);
        let windows = unsafe_windows(&changes);
        assert!(windows.len() >= 2, "{windows:?}");
        // A second, and what a busy machine adds.
        assert!(windows.iter().min().is_some_and(|window| *window < SYNC_INTERVAL * 3 / 2), "{windows:?}");
        assert!(windows.iter().all(|window| *window < 5 * SYNC_INTERVAL), "{windows:?}");
    });
}

#[test]
fn nothing_acknowledged_is_lost_where_every_write_is_synced() {
    with_seeds(1, |seed| drop(survives_a_loss_of_power_at_any_moment(Durability::Always, seed)));
}

/// A process may die between making a directory and syncing its name; the next one finds it there.
#[test]
fn names_that_a_killed_process_left_are_durable_before_anything_is_promised() {
    let mut image = Image::default();
    image.apply(&Change::DirectoryCreated("new".into()));
    let root = directory_in_memory();
    image.after_kill(root.path(), &mut Random::new(0));
    let life = Life::begin(root.path(), Durability::Always, false);
    life.write(&Writes::new(0), 0);
    for recorded in life.recorder.take() {
        image.apply(&recorded.change);
    }
    let lost = directory_in_memory();
    image.after_power_loss(lost.path(), &mut Random::new(0));
    assert!(lost.path().join(STORE).join("CURRENT").exists());
}
