//! Little space: writes are refused before anything meets the end of it, nothing acknowledged is
//! lost, and writing resumes.

use crate::common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::tmpfs::{Tmpfs, Watched, free_bytes, skipped};
use common::{Model, assert_equals, until, value_of};
use ecotone_engine::{
    BackgroundError, Compression, Durability, Duty, DutyObserver, Error, OpenMode, Separation, SpaceChanged,
    SpaceLimits, Store, StoreEvents, StoreSettings, WriteOptions,
};
use ecotone_inspect::verify;
use ecotone_types::units::Bytes;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Longer than anything that is waited for here may take.
const LONG: Duration = Duration::from_secs(60);

/// What the store has said.
#[derive(Default)]
struct Recorded {
    spaces: Mutex<Vec<SpaceChanged>>,
    changed: Condvar,
    errors: Mutex<Vec<BackgroundError>>,
}

impl StoreEvents for Recorded {
    fn space_changed(&self, event: &SpaceChanged) {
        self.spaces.lock().unwrap().push(*event);
        self.changed.notify_all();
    }

    fn background_error(&self, event: &BackgroundError) {
        self.errors.lock().unwrap().push(event.clone());
    }
}

impl Recorded {
    /// Opens a store that tells it.
    fn open(self: &Arc<Self>, path: &Path, mode: OpenMode, settings: StoreSettings) -> ecotone_engine::Result<Store> {
        Store::builder(path).mode(mode).settings(settings).events(self.clone()).open()
    }

    /// Waits until writes are taken, or not.
    fn wait_until_refused(&self, refused: bool) {
        let spaces = self.spaces.lock().unwrap();
        let is =
            |spaces: &Vec<SpaceChanged>| spaces.last().is_some_and(|last| last.free_space.writes_refused) == refused;
        let (spaces, timeout) = self.changed.wait_timeout_while(spaces, LONG, |spaces| !is(spaces)).unwrap();
        assert!(!timeout.timed_out(), "{spaces:?}");
    }

    /// That each change came once, and nothing but space was ever wrong.
    fn assert_sound(&self, store: &Store) {
        let spaces = self.spaces.lock().unwrap();
        for (number, space) in spaces.iter().enumerate() {
            assert_eq!(space.free_space.writes_refused, number % 2 == 0, "closed and opened in turn: {spaces:?}");
        }
        let closed = spaces.iter().filter(|space| space.free_space.writes_refused).count() as u64;
        let counters = store.counters();
        assert_eq!(counters.times_out_of_space, closed);
        assert_eq!(counters.failed_compactions, 0, "a compaction that does not fit is never begun");
        let errors = self.errors.lock().unwrap();
        assert!(errors.is_empty(), "RocksDB met the end of the disk: {errors:?}");
    }
}

fn options(separated: bool) -> StoreSettings {
    StoreSettings {
        memtable_bytes: 256 * KIB,
        level_base_bytes: MIB,
        target_file_bytes: 256 * KIB,
        compression: Compression::None,
        separation: separated.then_some(Separation { min_bytes: 100, segment_bytes: MIB }),
        ..StoreSettings::default()
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

/// The value that `number` has after `round`: of 100 to 4100 bytes.
fn value(number: u64, round: u64) -> Vec<u8> {
    let key = key(number);
    let bytes = 100 + (number.wrapping_mul(2_654_435_761) >> 7) % 4000;
    value_of(&key, round, bytes as usize)
}

/// Writes new keys from `begin` on until one is refused, and returns that one.
fn fill_up(store: &Store, begin: u64) -> u64 {
    for number in begin.. {
        match store.put(&key(number), &value(number, 0)) {
            Ok(()) => (),
            Err(Error::OutOfSpace { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the disk has no end")
}

/// Writes so many new keys from `begin` on; those that are refused are tried again.
fn write_on(store: &Store, begin: u64, count: u64) -> u64 {
    let began = Instant::now();
    for number in begin..begin + count {
        while let Err(error) = store.put(&key(number), &value(number, 0)) {
            assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
            assert!(began.elapsed() < LONG, "no more space came: {error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    begin + count
}

fn assert_holds(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(store.get(&key(number)).unwrap().as_deref(), Some(&value(number, 0)[..]), "{number}");
    }
}

/// Fills a disk, is refused, deletes, and writes on.
fn fills_deletes_and_writes_on(options: StoreSettings) {
    let Some(disk) = Tmpfs::mount(64 * MIB) else { return };
    let recorded = Arc::<Recorded>::default();
    let store = recorded.open(&disk.store(), OpenMode::Create, options.clone()).unwrap();
    let end = fill_up(&store, 0);
    assert!(end > 1_000, "{end}");
    recorded.wait_until_refused(true);
    let refused = store.put(b"another", &[0; 5000]).unwrap_err();
    // A running compaction may have ended meanwhile, and the first refusal be over; this one is as
    // large as any.
    let message = refused.to_string();
    assert!(message.contains("bytes free") && message.contains("delete data"), "{message}");
    // Reads go on, and what was refused is not there.
    assert_holds(&store, 0..end);
    assert!(store.get(&key(end)).unwrap().is_none());

    // Whatever is in memory fits.
    store.flush(true).unwrap();
    let end = fill_up(&store, end);
    store.flush(true).unwrap();
    assert!(free_bytes(disk.path()) > MIB);

    // Opening writes a MANIFEST and flushes what it replays.
    store.close().unwrap();
    recorded.spaces.lock().unwrap().clear();
    let store = recorded.open(&disk.store(), OpenMode::Open, options).unwrap();
    let end = fill_up(&store, end);
    assert_holds(&store, 0..end);

    // Deletions are taken, single and in ranges, and free space.
    store.delete(&key(0)).unwrap();
    let mut batch = ecotone_engine::Batch::new();
    batch.delete(&key(1)).unwrap();
    store.write(&batch, WriteOptions::default()).unwrap();
    let (from, to) = (key(0), key(end - 500));
    store.delete_range(&from[..]..&key(10)[..]).unwrap();
    let mut batch = ecotone_engine::Batch::new();
    batch.delete_range(&from[..]..&to[..]).unwrap();
    store.write(&batch, WriteOptions::default()).unwrap();
    recorded.wait_until_refused(false);
    let later = write_on(&store, end, 2_000);
    assert!(store.get(&key(0)).unwrap().is_none());
    assert_holds(&store, end - 500..later);
    assert!(store.counters().refused_writes > 0);
    recorded.assert_sound(&store);
    store.close().unwrap();
    let found = verify(&disk.store(), |_| ()).unwrap();
    assert!(found.is_sound(), "{found:?}");
}

#[test]
fn a_plain_store_stops_before_the_disk_is_full_and_goes_on_when_it_is_not() {
    fills_deletes_and_writes_on(options(false));
}

#[test]
fn a_store_with_a_value_log_stops_before_the_disk_is_full_and_goes_on_when_it_is_not() {
    fills_deletes_and_writes_on(options(true));
}

/// Memtables and tables that are an eighth of the disk: what was taken must be flushed, and
/// compactions must fit.
#[test]
fn memtables_that_are_large_for_the_disk_are_flushed_whatever_comes() {
    fills_deletes_and_writes_on(StoreSettings {
        memtable_bytes: 4 * MIB,
        target_file_bytes: 2 * MIB,
        level_base_bytes: 4 * MIB,
        ..options(false)
    });
}

/// Overwrites `keys` keys from `threads` threads until `bytes` of values were taken; those that are
/// refused are tried again. Returns what is stored then.
fn overwrite(store: &Store, threads: u64, keys: u64, bytes: u64) -> Model {
    let taken = AtomicU64::new(0);
    let began = Instant::now();
    let (taken, began) = (&taken, &began);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut model = Model::new();
                    for round in 0_u64.. {
                        // Each thread has keys of its own.
                        let number = thread + threads * (round.wrapping_mul(0x9E37_79B9) % (keys / threads));
                        let value = value(number, round);
                        while let Err(error) = store.put(&key(number), &value) {
                            assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
                            assert!(began.elapsed() < LONG, "no more space came: {error}\n{:?}", store.properties());
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        let all = taken.fetch_add(value.len() as u64, Ordering::Relaxed);
                        model.insert(key(number), value);
                        if all >= bytes {
                            return model;
                        }
                    }
                    unreachable!("rounds have no end")
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    })
}

#[test]
fn threads_that_overwrite_near_the_end_of_the_disk_never_reach_it_and_never_wait_for_ever() {
    for separated in [false, true] {
        let Some(disk) = Tmpfs::mount(64 * MIB) else { return };
        let recorded = Arc::<Recorded>::default();
        let store = recorded.open(&disk.store(), OpenMode::Create, options(separated)).unwrap();
        let watched = Watched::begin(disk.path());
        // 25 MiB live on a disk of 64, written five times over.
        let model = overwrite(&store, 6, 12_000, 120 * MIB);
        let (min_free, _) = watched.end();
        assert_equals(&store, &model);
        recorded.assert_sound(&store);
        assert!(min_free > MIB, "{min_free} bytes were left");
        store.close().unwrap();
        let store = recorded.open(&disk.store(), OpenMode::Open, options(separated)).unwrap();
        assert_equals(&store, &model);
    }
}

#[test]
fn no_store_grows_beyond_what_it_may_take() {
    let reserve_bytes = Some(8 * MIB);
    for separated in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let recorded = Arc::<Recorded>::default();
        let limited =
            |max_bytes| StoreSettings { space: SpaceLimits { reserve_bytes, max_bytes }, ..options(separated) };
        let store = recorded.open(&path, OpenMode::Create, limited(Some(48 * MIB))).unwrap();
        let watched = Watched::begin(&path);
        let ends: Vec<_> = std::thread::scope(|scope| {
            let store = &store;
            let writers: Vec<_> = (0..6).map(|it| scope.spawn(move || fill_up(store, it << 20))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        store.flush(true).unwrap();
        let (_, max_used) = watched.end();
        assert!(max_used <= 48 * MIB, "{max_used}");
        assert!(max_used > 24 * MIB, "{max_used}: most of what it may take can be used");
        let refused = fill_up(&store, 6 << 20);
        let message = store.put(&key(refused), &[1; 5000]).unwrap_err().to_string();
        assert!(message.contains("space.max_bytes"), "{message}");
        let check = |store: &Store| {
            for (begin, end) in ends.iter().enumerate() {
                assert_holds(store, (begin as u64) << 20..*end);
            }
            assert_holds(store, 6 << 20..refused);
        };
        check(&store);
        store.close().unwrap();
        recorded.spaces.lock().unwrap().clear();

        // Less than its live data take, which no compaction makes smaller.
        let store = recorded.open(&path, OpenMode::Open, limited(None)).unwrap();
        write_on(&store, 7 << 20, 34 * MIB / 2_000);
        store.close().unwrap();
        let store = recorded.open(&path, OpenMode::Open, limited(Some(32 * MIB))).unwrap();
        recorded.wait_until_refused(true);
        assert!(matches!(store.put(b"key", b"value"), Err(Error::OutOfSpace { .. })));
        assert!(
            store
                .free_space()
                .is_some_and(|free_space| free_space.writes_refused && free_space.used_bytes > Some(32 * MIB))
        );
        check(&store);
        recorded.assert_sound(&store);
        store.close().unwrap();

        let store = recorded.open(&path, OpenMode::Open, limited(None)).unwrap();
        store.put(b"key", b"value").unwrap();
        assert_eq!(store.free_space().unwrap().used_bytes, None);
        check(&store);
        store.close().unwrap();
        assert!(recorded.open(&path, OpenMode::ReadOnly, limited(Some(32 * MIB))).unwrap().free_space().is_none());
    }
}

/// The WAL, its successor and the memtable take most of it, and no memtable gets full.
#[test]
fn memtables_that_are_large_for_what_a_store_may_take_are_flushed_to_go_on() {
    for separated in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let recorded = Arc::<Recorded>::default();
        let options = StoreSettings {
            memtable_bytes: 8 * MIB,
            space: SpaceLimits { reserve_bytes: None, max_bytes: Some(40 * MIB) },
            ..options(separated)
        };
        let store = recorded.open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
        let model = overwrite(&store, 2, 200, 20 * MIB);
        assert_equals(&store, &model);
        recorded.assert_sound(&store);
    }
}

#[test]
fn a_reserve_that_the_disk_cannot_hold_is_refused_by_name() {
    let Some(disk) = Tmpfs::mount(16 * MIB) else { return };
    let recorded = Arc::<Recorded>::default();
    let with = |reserve| StoreSettings {
        space: SpaceLimits { reserve_bytes: Some(reserve), max_bytes: None },
        ..options(false)
    };
    let message = recorded.open(&disk.store(), OpenMode::Create, with(16 * MIB)).err().unwrap().to_string();
    assert!(message.contains("space.reserve_bytes") && message.contains("16777216 bytes in all"), "{message}");
    let store = recorded.open(&disk.store(), OpenMode::CreateOrOpen, with(8 * MIB)).unwrap();
    store.put(b"key", b"value").unwrap();
    store.close().unwrap();

    // What is there can be read whatever the disk has: of it more than the reserve is taken, and by
    // others.
    disk.fill_but(MIB);
    let store = recorded.open(&disk.store(), OpenMode::Open, with(8 * MIB)).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    let refused = store.put(b"key", b"other value").unwrap_err();
    assert!(matches!(refused, Error::OutOfSpace { .. }), "{refused}");
    disk.empty();
    recorded.wait_until_refused(false);
    store.put(b"key", b"other value").unwrap();
}

#[test]
fn garbage_that_nobody_minded_is_relocated_when_another_process_takes_the_space() {
    let Some(disk) = Tmpfs::mount(128 * MIB) else { return };
    let recorded = Arc::<Recorded>::default();
    let mut options = options(true);
    options.gc.min_garbage_bytes = Bytes(MIB);
    let store = recorded.open(&disk.store(), OpenMode::Create, options).unwrap();
    write_on(&store, 0, 10_000);
    // Not so many that a compaction finds them worth relocating without need of space.
    for number in 0..1_700 {
        store.put(&key(number * 5), b"short").unwrap();
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    let before = until(&store, |log| log.bytes > 20 * MIB && log.bytes > log.referenced_bytes + 3 * MIB);
    assert_eq!(before.removed_bytes, 0, "{before:?}");
    disk.fill_but(28 * MIB);
    until(&store, |log| log.removed_bytes > 3 * MIB && log.bytes < before.bytes);
    write_on(&store, 10_000, 1);
}

#[test]
fn a_compaction_that_does_not_fit_is_deferred_until_it_does() {
    let Some(disk) = Tmpfs::mount(64 * MIB) else { return };
    let recorded = Arc::<Recorded>::default();
    let store = recorded.open(&disk.store(), OpenMode::Create, options(false)).unwrap();
    let end = write_on(&store, 0, 12_000);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    // Here and there a key, so that all of it has to be compacted.
    for number in (0..end).step_by(10) {
        store.put(&key(number), &value(number, 0)).unwrap();
    }
    store.flush(true).unwrap();
    disk.fill_but(4 * MIB);
    assert!(store.free_space().unwrap().writes_refused);
    let watched = Watched::begin(disk.path());
    let refused = store.compact(..).unwrap_err();
    assert!(matches!(refused, Error::OutOfSpace { .. }), "{refused}");
    let (min_free, _) = watched.end();
    assert!(min_free > MIB, "{min_free} bytes were left");
    disk.empty();
    recorded.wait_until_refused(false);
    let began = Instant::now();
    while let Err(error) = store.compact(..) {
        // One that was deferred before is tried again, too.
        assert!(matches!(error, Error::OutOfSpace { .. }) && began.elapsed() < LONG, "{error}");
    }
    assert_holds(&store, 0..end);
    recorded.assert_sound(&store);
}

/// Takes nearly all that is free when garbage collection begins.
struct Rival {
    disk: Arc<Tmpfs>,
    came: AtomicBool,
}

impl DutyObserver for Rival {
    fn begin(&self, duty: Duty) {
        if duty == Duty::Gc && !self.came.swap(true, Ordering::Relaxed) {
            self.disk.fill_but(6 * MIB);
        }
    }

    fn end(&self) {}
}

#[test]
fn gc_stops_copying_where_the_room_for_it_is_gone() {
    let Some(disk) = Tmpfs::mount(128 * MIB).map(Arc::new) else { return };
    let recorded = Arc::<Recorded>::default();
    let rival = Arc::new(Rival { disk: disk.clone(), came: AtomicBool::new(false) });
    let mut options = options(true);
    options.gc.min_garbage_bytes = Bytes(5 * MIB);
    let builder = Store::builder(&disk.store()).mode(OpenMode::Create).settings(options);
    let store = builder.events(recorded.clone()).duties(rival.clone()).open().unwrap();
    write_on(&store, 0, 10_000);
    store.flush(true).unwrap();
    // Half of it is garbage, all at once.
    let mut batch = ecotone_engine::Batch::new();
    (0..5_000).for_each(|number| batch.put(&key(number * 2), b"short").unwrap());
    store.write(&batch, WriteOptions::default()).unwrap();
    store.flush(true).unwrap();
    let watched = Watched::begin(disk.path());
    store.compact(..).ok();
    until(&store, |log| log.relocated_bytes > 0);
    // As long as anything is still copied.
    let mut copied = 0;
    while copied != store.value_log().unwrap().relocated_bytes {
        copied = store.value_log().unwrap().relocated_bytes;
        std::thread::sleep(Duration::from_millis(300));
    }
    let (min_free, _) = watched.end();
    assert!(rival.came.load(Ordering::Relaxed));
    assert!(min_free > 2 * MIB, "{min_free} bytes were left");
    disk.empty();
    until(&store, |log| log.removed_bytes > 5 * MIB);
    recorded.wait_until_refused(false);
    let errors = recorded.errors.lock().unwrap();
    assert!(errors.is_empty(), "{errors:?}");
    assert_holds(&store, 9_999..10_000);
}

#[test]
fn a_batch_that_does_not_fit_is_refused_alone() {
    let Some(disk) = Tmpfs::mount(64 * MIB) else { return };
    let recorded = Arc::<Recorded>::default();
    let store = recorded.open(&disk.store(), OpenMode::Create, options(false)).unwrap();
    let mut batch = ecotone_engine::Batch::new();
    for number in 0..80 {
        batch.put(&key(number), &value_of(b"", number, MIB as usize)).unwrap();
    }
    let refused = store.write(&batch, WriteOptions::default()).unwrap_err();
    assert!(matches!(refused, Error::OutOfSpace { .. }), "{refused}");
    store.put(b"small", b"value").unwrap();
    assert!(recorded.spaces.lock().unwrap().is_empty(), "there is space for others");
    assert!(store.get(&key(0)).unwrap().is_none());
    let large = vec![1; 80 << 20];
    // Again and again, by many: what was refused leaves nothing behind, and never stops another.
    let at_it = AtomicU64::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let all_refused = (0..200).all(|_| store.put(b"large", &large).is_err());
                at_it.fetch_sub(1, Ordering::Relaxed);
                assert!(all_refused);
            });
        }
        while at_it.load(Ordering::Relaxed) > 0 {
            store.put(b"small", b"other value").unwrap();
        }
    });
    store.put(b"small", b"last value").unwrap();
    recorded.assert_sound(&store);
}

#[test]
fn a_write_may_be_far_larger_than_the_reserve_where_there_is_space() {
    for separated in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let recorded = Arc::<Recorded>::default();
        let options = StoreSettings {
            space: SpaceLimits { reserve_bytes: Some(8 * MIB), max_bytes: None },
            ..options(separated)
        };
        let store = recorded.open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
        if free_bytes(directory.path()) < 1024 * MIB {
            skipped("there is too little space here for large writes");
            return;
        }
        std::thread::scope(|scope| {
            for number in 0..4_u64 {
                let store = &store;
                scope.spawn(move || store.put(&key(number), &value_of(b"", number, 20 << 20)).unwrap());
            }
        });
        let mut batch = ecotone_engine::Batch::new();
        (0..20).for_each(|number| batch.put(&key(number), &value_of(b"", number, MIB as usize)).unwrap());
        store.write(&batch, WriteOptions::default()).unwrap();
        assert_eq!(store.get(&key(19)).unwrap().as_deref(), Some(&value_of(b"", 19, MIB as usize)[..]));
        recorded.assert_sound(&store);
    }
}

/// Another process takes all there is between two looks. Returns whether a write met the end of the
/// disk: where the store has looked first it has seen it coming, and there is nothing to recover
/// from.
fn meets_the_end(disk: &Tmpfs, separated: bool, durability: Durability) -> bool {
    let recorded = Arc::<Recorded>::default();
    let options = || StoreSettings { durability, ..options(separated) };
    let store = recorded.open(&disk.store(), OpenMode::Create, options()).unwrap();
    let mut model = Model::new();
    let put = |model: &mut Model, number: u64| {
        // Long ones, which are appended in parts and leave a torn record.
        let value = value_of(&key(number), 0, if number.is_multiple_of(3) { 200_000 } else { 3_000 });
        store.put(&key(number), &value).map(|()| model.insert(key(number), value))
    };
    // What is written now may be durable by the second's end only; the disk is full before.
    put(&mut model, 0).unwrap();
    let mut number = 1;
    disk.fill();
    let refused = loop {
        match put(&mut model, number) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
    };
    for (key, value) in &model {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(&value[..]), "reads go on");
    }
    disk.empty();
    let began = Instant::now();
    while let Err(error) = put(&mut model, number) {
        let for_want_of_space = matches!(error, Error::DiskFull { .. } | Error::OutOfSpace { .. });
        assert!(for_want_of_space || began.elapsed() < LONG, "{error}");
        assert!(began.elapsed() < LONG, "writing does not resume: {error}");
        std::thread::sleep(Duration::from_millis(1));
    }
    for number in number + 1..number + 100 {
        put(&mut model, number).unwrap();
    }
    assert_equals(&store, &model);
    store.sync().unwrap();
    store.close().unwrap();
    let found = verify(&disk.store(), |_| ()).unwrap();
    assert!(found.is_sound(), "{found:?}");
    let store = recorded.open(&disk.store(), OpenMode::Open, options()).unwrap();
    assert_equals(&store, &model);
    matches!(refused, Error::DiskFull { .. })
}

#[test]
fn a_disk_that_another_process_fills_loses_nothing_and_is_recovered_from() {
    let ways = [false, true]
        .into_iter()
        .flat_map(|separated| [Durability::EverySecond, Durability::Always].map(|durability| (separated, durability)));
    for (separated, durability) in ways {
        let met_the_end = (0..50).any(|_| {
            // None where this process may not mount one.
            Tmpfs::mount(64 * MIB).is_none_or(|disk| meets_the_end(&disk, separated, durability))
        });
        assert!(met_the_end, "the store always saw it coming");
    }
}
