//! Values whose time is over: compactions remove them where asked to, in either layout, and in
//! tables that nothing else compacts.

use crate::common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use common::contents;
use common::offloads::InProcess;
use ecotone_engine::{
    Attributes, Compression, Error, OpenMode, Separation, SpaceLimits, Store, StoreSettings, WriteOptions,
};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::FileSystemHooks;
use ecotone_rocks::salvage::SalvagedTable;

/// Of each kind.
const VALUES: u64 = 100;

/// Values with their keys, and separated values; expired ones are reclaimed, but by no scan.
fn layouts() -> [StoreSettings; 2] {
    let plain = StoreSettings { reclaim_expired: true, expired_compaction_seconds: 0, ..common::small() };
    let separation = Some(Separation { min_bytes: 50, segment_bytes: 64 * 1024 });
    [plain.clone(), StoreSettings { separation, ..plain }]
}

/// Values long and short, with and without other attributes, whose time is over, and as many whose
/// time comes or that have none. One table.
fn write(store: &Store) {
    let mut batch = ecotone_engine::Batch::new();
    for number in 0..VALUES {
        let over = Attributes { expires_at_ms: Some(1 + number), ..Attributes::NONE };
        batch.put_with(format!("over{number}").as_bytes(), &[1; 100], &over).unwrap();
        let short = Attributes { expires_at_ms: Some(1 + number), version: Some(7), type_tag: None };
        batch.put_with(format!("short{number}").as_bytes(), &[1; 10], &short).unwrap();
        let typed = Attributes { type_tag: 3.try_into().ok(), ..over };
        batch.put_with(format!("typed{number}").as_bytes(), &[1; 10], &typed).unwrap();
        let later = Attributes { expires_at_ms: Some(u64::MAX), ..Attributes::NONE };
        batch.put_with(format!("later{number}").as_bytes(), &[2; 100], &later).unwrap();
        batch.put(format!("never{number}").as_bytes(), &[3; 10]).unwrap();
    }
    store.write(&batch, WriteOptions::default()).unwrap();
    store.flush(true).unwrap();
}

/// How many are left whose time is over. All others must be there.
fn over_left(store: &Store) -> u64 {
    let (alive, over): (Vec<_>, Vec<_>) =
        contents(store).into_iter().partition(|(key, _)| key.starts_with(b"later") || key.starts_with(b"never"));
    assert_eq!(alive.len() as u64, 2 * VALUES);
    for (key, value) in alive {
        assert_eq!(value, if key.starts_with(b"later") { vec![2; 100] } else { vec![3; 10] });
    }
    over.len() as u64
}

#[test]
fn values_whose_time_is_over_are_reclaimed_where_asked_for_and_only_there() {
    for options in layouts() {
        for reclaim_expired in [false, true] {
            let (_directory, store) = common::store(StoreSettings { reclaim_expired, ..options.clone() });
            // It does not appear again where the newer one goes.
            store.put(b"over7", b"older").unwrap();
            store.flush(true).unwrap();
            write(&store);
            store.compact(..).unwrap();
            let removed = if reclaim_expired { 3 * VALUES } else { 0 };
            assert_eq!((over_left(&store), store.counters().expired_values), (3 * VALUES - removed, removed));
            assert_eq!(store.get(b"over7").unwrap().is_some(), !reclaim_expired);
        }
    }
}

/// Makes a store of one table that compactions have moved to the last level and never rewritten.
fn moved(path: &Path, options: &StoreSettings) {
    let store =
        Store::open(path, OpenMode::Create, StoreSettings { l0_compaction_trigger: 1, ..options.clone() }).unwrap();
    write(&store);
    wait(&store, |store| store.properties().unwrap().l0_tables == 0);
    let (properties, counters) = (store.properties().unwrap(), store.counters());
    assert_eq!(properties.levels.last().unwrap().tables, 1, "{properties:?}");
    assert_eq!(counters.compaction_written_bytes, 0, "it was moved, not rewritten");
    assert_eq!((over_left(&store), counters.expired_values), (3 * VALUES, 0));
    store.close().unwrap();
}

fn wait(store: &Store, is_so: impl Fn(&Store) -> bool) {
    let begin = Instant::now();
    while !is_so(store) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?} {:?}", store.properties(), store.counters());
        std::thread::yield_now();
    }
}

#[test]
fn what_was_only_ever_moved_is_reclaimed_once_it_is_old() {
    for options in layouts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        moved(&path, &options);
        let store =
            Store::open(&path, OpenMode::Open, StoreSettings { expired_compaction_seconds: 1, ..options }).unwrap();
        // Nobody writes, flushes or compacts.
        wait(&store, |store| store.counters().expired_values > 0);
        wait(&store, |store| over_left(store) == 0);
        assert_eq!(store.counters().expired_values, 3 * VALUES);
    }
}

#[test]
fn a_rewrite_stays_here_and_other_compactions_do_not() {
    for options in layouts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        moved(&path, &options);
        let worker = tempfile::tempdir().unwrap();
        let offload = Arc::new(InProcess::new(worker.path()));
        let open = |expired_compaction_seconds| {
            let settings = StoreSettings { expired_compaction_seconds, ..options.clone() };
            Store::builder(&path).mode(OpenMode::Open).settings(settings).offload(offload.clone()).open().unwrap()
        };
        let store = open(1);
        wait(&store, |store| over_left(store) == 0);
        assert_eq!(offload.jobs.load(Ordering::Relaxed), 0);
        assert_eq!(store.counters().remote_compactions, 0);
        store.close().unwrap();
        // A worker gives back what has expired as well, in tables that tell of it.
        let store = open(0);
        write(&store);
        store.compact(..).unwrap();
        assert!(offload.installed.load(Ordering::Relaxed) > 0, "{:?}", offload.refused);
        assert_eq!(offload.worker_errors.lock().unwrap()[..], []);
        assert_eq!((over_left(&store), store.counters().expired_values), (3 * VALUES, 0));
        for table in store.live_tables().unwrap() {
            let described = SalvagedTable::open(&path.join(&table.name)).unwrap().description().clone();
            assert!(described.collected.contains_key("ecotone.expiry"), "{:?}", described.collected);
        }
    }
}

/// A disk on which no table can be written, once it is told so.
#[derive(Default)]
struct Disk {
    is_full: AtomicBool,
}

impl WriteTap for Disk {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let is_table = event.path().extension().is_some_and(|end| end == "sst");
        match event {
            TapEvent::Appended { .. } if is_table && self.is_full.load(Ordering::SeqCst) => {
                Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is full"))
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn what_a_compaction_removes_that_fails_is_not_counted() {
    for options in layouts() {
        let disk = Arc::<Disk>::default();
        let hooks = FileSystemHooks { tap: Some(disk.clone()), ..FileSystemHooks::default() };
        let (_directory, store) = common::store_with(options, |builder| builder.hooks(hooks));
        write(&store);
        disk.is_full.store(true, Ordering::SeqCst);
        // It says so, or not: RocksDB may recover by itself.
        let _ = store.compact(..);
        assert!(store.counters().failed_compactions > 0);
        assert_eq!((over_left(&store), store.counters().expired_values), (3 * VALUES, 0));
    }
}

/// What RocksDB keeps of the options that the store was opened with: the values of `name` in its
/// families.
fn rocksdb_says(path: &Path, name: &str) -> Vec<u64> {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let is_options = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("OPTIONS-");
    let newest = files.filter(is_options).max().unwrap();
    let text = fs::read_to_string(newest).unwrap();
    let values = text.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('=')?.parse().ok());
    values.collect()
}

/// It has two periods: one for all tables, and one for those above the last level, which is 30 days
/// where nobody says it.
#[test]
fn no_table_is_rewritten_for_its_age_at_another_one_than_was_asked_for() {
    let day = 24 * 60 * 60;
    for (reclaim_expired, expired_compaction_seconds, expected) in
        [(true, 90 * day, 90 * day), (true, 0, 0), (false, 90 * day, 0)]
    {
        for options in layouts() {
            let options = StoreSettings { reclaim_expired, expired_compaction_seconds, ..options };
            let (_directory, store) = common::store(options);
            for name in ["periodic_compaction_seconds", "ttl"] {
                let said = rocksdb_says(store.directory(), name);
                assert_eq!(said.last(), Some(&expected), "{name} of the family that holds the data: {said:?}");
            }
        }
    }
}

const MIB: u64 = 1 << 20;

/// In so little space that it is full soon; nothing is rewritten for its age.
fn in_little_space() -> [StoreSettings; 2] {
    let plain = StoreSettings {
        reclaim_expired: true,
        expired_compaction_seconds: 0,
        memtable_bytes: MIB / 4,
        level_base_bytes: MIB,
        target_file_bytes: MIB / 4,
        compression: Compression::None,
        space: SpaceLimits { reserve_bytes: Some(8 * MIB), max_bytes: Some(48 * MIB) },
        ..StoreSettings::default()
    };
    let separation = Some(Separation { min_bytes: 100, segment_bytes: MIB });
    [plain.clone(), StoreSettings { separation, ..plain }]
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn long_value(number: u64) -> Vec<u8> {
    common::value_of(&number.to_be_bytes(), 0, 2_000)
}

/// In their order, so that tables are moved to the last level, and what is written later has
/// nothing to do with them.
fn key_of(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Values that never expire: this many, with the lowest numbers.
const STAY: u64 = 2_000;

/// Fills the store with values that expire then, beside those that stay, until it takes no more.
fn fill_up(store: &Store, expires_at_ms: u64) {
    for number in 0..STAY {
        store.put(&key_of(number), &long_value(number)).unwrap();
    }
    let expires = Attributes { expires_at_ms: Some(expires_at_ms), ..Attributes::NONE };
    let mut number = STAY;
    // What was in memtables takes less in tables.
    for _ in 0..3 {
        loop {
            let mut batch = ecotone_engine::Batch::new();
            batch.put_with(&key_of(number), &long_value(number), &expires).unwrap();
            match store.write(&batch, WriteOptions::default()) {
                Ok(()) => number += 1,
                Err(Error::OutOfSpace { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        store.flush(true).unwrap();
        wait(store, |store| {
            let properties = store.properties().unwrap();
            properties.running_compactions == 0 && !properties.compaction_pending
        });
    }
    assert!(number * 2_000 > 20 * MIB, "{number}");
}

/// Writes more than a store has room for from which nothing goes.
fn write_on(store: &Store) {
    let began = Instant::now();
    let numbers = 1 << 40..(1 << 40) + 16 * MIB / 2_000;
    for number in numbers.clone() {
        while let Err(error) = store.put(&key_of(number), &long_value(number)) {
            assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
            assert!(began.elapsed() < Duration::from_secs(60), "no more space came: {error}\n{:?}", store.properties());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    for number in (0..STAY).chain(numbers) {
        assert_eq!(store.get(&key_of(number)).unwrap().as_deref(), Some(&long_value(number)[..]), "{number}");
    }
    assert!(store.counters().expired_values > 0);
}

#[test]
fn a_full_store_takes_writes_again_once_what_is_in_it_has_expired() {
    std::thread::scope(|scope| {
        for options in in_little_space() {
            scope.spawn(|| {
                let (_directory, store) = common::store(options);
                let over = since_1970() + Duration::from_secs(10);
                fill_up(&store, over.as_millis() as u64);
                // Nobody does anything meanwhile.
                std::thread::sleep(over.saturating_sub(since_1970()));
                write_on(&store);
            });
        }
    });
}

/// By a version that reclaimed nothing, or for which nothing was to be reclaimed: its tables do not
/// tell.
#[test]
fn a_full_store_whose_tables_do_not_tell_takes_writes_again() {
    for options in in_little_space() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let before = StoreSettings { reclaim_expired: false, ..options.clone() };
        let store = Store::open(&path, OpenMode::Create, before).unwrap();
        fill_up(&store, 1);
        store.close().unwrap();
        let store = Store::open(&path, OpenMode::Open, options).unwrap();
        write_on(&store);
    }
}
