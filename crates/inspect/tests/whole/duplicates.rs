//! What is counted of duplicates: against a model by keys, against what RocksDB then drops, and on
//! tables that are known one by one.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::random::Random;
use ecotone_engine::{DATA_FAMILY, Error, OpenMode, Separation, Store, StoreSettings};
use ecotone_inspect::{CountedLevel, DuplicateCensus, count_duplicates, space};
use ecotone_rocks::properties::{EntryKind, TableCollector};
use ecotone_rocks::verify::recount_table;

/// What stands before key and value of a record in the value log, and before a value beside its
/// key.
const RECORD_HEADER_BYTES: u64 = 12;
const VALUE_HEADER_BYTES: u64 = 1;

const VALUE_BYTES: usize = 100;

fn plain() -> StoreSettings {
    StoreSettings { dynamic_levels: false, level_multiplier: 2, ..common::small() }
}

fn separated() -> StoreSettings {
    StoreSettings { separation: Some(Separation { min_bytes: 50, segment_bytes: 256 * 1024 }), ..plain() }
}

/// The same, and nothing is compacted unless it is asked for.
fn at_rest(options: StoreSettings) -> StoreSettings {
    StoreSettings { l0_compaction_trigger: 1000, l0_slowdown_trigger: 2000, l0_stop_trigger: 2000, ..options }
}

#[derive(Debug, Clone)]
struct Seen {
    sequence: u64,
    is_deletion: bool,
    table: usize,
    level: usize,
}

#[derive(Default)]
struct Entries {
    table: usize,
    level: usize,
    by_key: BTreeMap<Vec<u8>, Vec<Seen>>,
    ranges: Vec<(Vec<u8>, Vec<u8>, u64, usize)>,
}

struct Reading(Arc<Mutex<Entries>>);

impl TableCollector for Reading {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, sequence: u64, _: u64) {
        let mut entries = self.0.lock().unwrap();
        let (table, level) = (entries.table, entries.level);
        match kind {
            EntryKind::RangeDelete => entries.ranges.push((key.to_vec(), value.to_vec(), sequence, table)),
            _ => {
                let seen = Seen { sequence, is_deletion: kind != EntryKind::Put, table, level };
                entries.by_key.entry(key.to_vec()).or_default().push(seen);
            }
        }
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }
}

/// Hidden versions by level, every version against every other one of its key; how many keys end in
/// a deletion of theirs that nothing shadows; how many deletions of ranges there are.
fn model(store: &Store) -> (Vec<u64>, u64, u64) {
    let entries = Arc::new(Mutex::new(Entries::default()));
    for (place, table) in store.live_tables().unwrap().iter().enumerate() {
        assert_eq!(table.column_family, DATA_FAMILY);
        {
            let mut entries = entries.lock().unwrap();
            (entries.table, entries.level) = (place, table.level as usize);
        }
        let path = store.directory().join(&table.name);
        recount_table(&path, &AtomicBool::new(false), Box::new(Reading(Arc::clone(&entries))), &[]).unwrap();
    }
    let entries = entries.lock().unwrap();
    let (mut shadowed, mut deleted) = (vec![0; 7], 0);
    for (key, versions) in &entries.by_key {
        let ranges = || entries.ranges.iter().filter(|(begin, end, ..)| begin <= key && key < end);
        for one in versions {
            let by_version = versions.iter().any(|other| other.sequence > one.sequence && other.table != one.table);
            let by_range = ranges().any(|(_, _, sequence, table)| *sequence > one.sequence && *table != one.table);
            shadowed[one.level] += u64::from(by_version || by_range);
        }
        let newest = versions.iter().max_by_key(|one| one.sequence).unwrap();
        deleted += u64::from(newest.is_deletion && !ranges().any(|(_, _, sequence, _)| *sequence > newest.sequence));
    }
    (shadowed, deleted, entries.ranges.len() as u64)
}

fn shadowed_keys(census: &DuplicateCensus) -> Vec<u64> {
    let mut levels: Vec<_> = census.levels.iter().map(|level| level.shadowed_keys).collect();
    levels.resize(7, 0);
    levels
}

#[test]
fn every_level_of_a_busy_store_is_counted_as_a_model_counts_it() {
    let separated_value = RECORD_HEADER_BYTES + "key000000".len() as u64;
    for (options, has_ranges, with_value) in [
        (plain(), false, VALUE_HEADER_BYTES),
        (plain(), true, VALUE_HEADER_BYTES),
        (separated(), false, separated_value),
        (separated(), true, separated_value),
    ] {
        let (_directory, store) = common::store(options);
        let mut random = Random::new(5);
        let mut write = |count: usize| {
            for number in 0..count as u64 {
                let key = format!("key{:06}", random.below(20_000));
                match random.below(20) {
                    0 => store.delete(key.as_bytes()).unwrap(),
                    1 if has_ranges && random.once_in(50) => {
                        let end = format!("{key}9");
                        store.delete_range(key.as_bytes()..end.as_bytes()).unwrap();
                    }
                    _ => store.put(key.as_bytes(), &common::value_of(key.as_bytes(), number, VALUE_BYTES)).unwrap(),
                }
            }
        };
        write(60_000);
        // Compactions may just have emptied the upper levels.
        let mut tries = 0..20;
        let (pause, census) = loop {
            write(500);
            let pause = store.pause_compactions().unwrap();
            let census = count_duplicates(&store).unwrap();
            if census.levels.iter().filter(|level| level.shadowed_keys > 0).count() >= 2 {
                break (pause, census);
            }
            assert!(tries.next().is_some(), "too few levels shadow anything for the test to say something: {census:?}");
        };
        let (shadowed, deleted, ranges) = model(&store);
        assert_eq!(shadowed_keys(&census), shadowed);
        let tables = store.live_tables().unwrap();
        assert_eq!(census.total_keys(), tables.iter().map(|table| table.entries).sum::<u64>());
        // Deletions take nothing, and all values are of one length.
        let value_bytes = VALUE_BYTES as u64 + with_value;
        assert!(census.shadowed_bytes().is_multiple_of(value_bytes), "{census:?}");
        let values = census.shadowed_bytes() / value_bytes;
        assert!(values <= census.duplicate_keys() && values > census.duplicate_keys() * 8 / 10, "{census:?}");
        drop(pause);
        // What is no duplicate is a key, or what deleted one.
        let keys = common::contents(&store).len() as u64;
        assert_eq!(census.total_keys() - census.duplicate_keys() - ranges, keys + deleted);
        store.compact(..).unwrap();
        let after = count_duplicates(&store).unwrap();
        assert_eq!((after.duplicate_keys(), after.shadowed_bytes(), after.ratio()), (0, 0, None), "{after:?}");
        assert_eq!(after.total_keys(), keys);
    }
}

#[test]
fn tables_that_are_known_are_counted_to_the_byte() {
    for (options, record_bytes) in [(plain(), None), (separated(), Some(RECORD_HEADER_BYTES))] {
        let (directory, store) = common::store(at_rest(options.clone()));
        let bytes =
            |key: &str, value: u64| record_bytes.map_or(value + VALUE_HEADER_BYTES, |it| it + key.len() as u64 + value);
        let put = |key: &str, value: usize| store.put(key.as_bytes(), &vec![7; value]).unwrap();
        let level = |entries, shadowed_keys, shadowed_bytes| CountedLevel { entries, shadowed_keys, shadowed_bytes };
        assert_eq!(count_duplicates(&store).unwrap().total_keys(), 0);

        for key in ["a", "b", "cc", "d"] {
            put(key, 100);
        }
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        // Within one table nothing is another one's duplicate.
        put("a", 200);
        put("a", 210);
        put("e", 60);
        store.flush(true).unwrap();
        put("a", 300);
        store.delete(b"cc").unwrap();
        store.flush(true).unwrap();
        let census = count_duplicates(&store).unwrap();
        let below = census.levels.len() - 1;
        assert!(below > 0);
        assert_eq!(census.levels[0], level(4, 1, bytes("a", 210)));
        assert_eq!(census.levels[below], level(4, 2, bytes("a", 100) + bytes("cc", 100)));
        assert_eq!((census.total_keys(), census.duplicate_keys(), census.ratio()), (8, 3, Some(8.0 / 3.0)));
        // A deletion is a version as well, and what it hid has one newer version more.
        put("cc", 70);
        store.flush(true).unwrap();
        assert_eq!(count_duplicates(&store).unwrap().levels[0], level(5, 2, bytes("a", 210)));
        // A range shadows what is older, in other tables.
        store.delete_range(&b"a"[..]..&b"d"[..]).unwrap();
        store.flush(true).unwrap();
        let whole = count_duplicates(&store).unwrap();
        assert_eq!(whole.levels[0], level(6, 4, bytes("a", 210) + bytes("a", 300) + bytes("cc", 70)));
        assert_eq!(whole.levels[below], level(4, 3, bytes("a", 100) + bytes("b", 100) + bytes("cc", 100)));

        // Another process sees the same.
        let path = directory.path().join("store");
        let reader = Store::open(&path, OpenMode::ReadOnly, options).unwrap();
        assert_eq!(count_duplicates(&reader).unwrap(), whole);
        let first = reader.live_tables().unwrap()[0].name.clone();
        store.close().unwrap();
        fs::remove_file(path.join(first)).unwrap();
        assert!(matches!(count_duplicates(&reader), Err(Error::Io { .. })));
    }
}

#[test]
fn what_space_tells_is_an_estimate_of_what_is_counted() {
    let (directory, store) = common::store(at_rest(separated()));
    for round in 0..3_u64 {
        for key in round * 10_000..40_000 {
            let key = format!("key{key:06}");
            match key.ends_with('7') && round == 2 {
                true => store.delete(key.as_bytes()).unwrap(),
                false => store.put(key.as_bytes(), &[7; VALUE_BYTES]).unwrap(),
            }
        }
        if round == 0 {
            store.compact(..).unwrap();
        }
    }
    store.flush(true).unwrap();
    let truth = count_duplicates(&store).unwrap();
    assert_eq!(truth.duplicate_keys(), 50_000, "each key of both rounds shadows one");
    store.close().unwrap();
    // Whatever it is opened with.
    let reader = Store::open(&directory.path().join("store"), OpenMode::ReadOnly, StoreSettings::default()).unwrap();
    let estimate = space(&reader).unwrap().duplicates.unwrap();
    assert_eq!(count_duplicates(&reader).unwrap(), truth);
    let error = estimate.relative_error.unwrap();
    assert!(error > 0.02 && error < 0.06, "50,000 shadowed keys, one in 64: {error}");
    assert_eq!((estimate.unsampled_tables, estimate.levels.len()), (0, truth.levels.len()));
    for (level, (estimated, counted)) in estimate.levels.iter().zip(&truth.levels).enumerate() {
        // Four standard deviations of what shadows in this level.
        let allowed = 4.0 * (64.0 * counted.shadowed_keys as f64).sqrt() + 0.5;
        let off = (estimated.shadowed_keys as f64 - counted.shadowed_keys as f64).abs();
        assert!(off < allowed, "level {level}: {estimated:?}, {counted:?}");
        let of_one = |level: &CountedLevel| level.shadowed_bytes as f64 / level.shadowed_keys.max(1) as f64;
        assert!((of_one(estimated) - of_one(counted)).abs() < 8.0, "level {level}: {estimated:?}, {counted:?}");
    }
    assert!(truth.levels.iter().filter(|level| level.shadowed_keys > 0).count() == 2, "{truth:?}");
}

#[test]
fn tables_without_samples_are_told_and_a_store_of_such_tells_nothing() {
    let (_directory, store) = common::store(at_rest(plain()));
    store.put(b"key", &[1; VALUE_BYTES]).unwrap();
    store.flush(true).unwrap();
    assert_eq!(space(&store).unwrap().duplicates, None);
}

#[test]
fn compactions_wait_for_the_end_of_a_pause() {
    let (_directory, store) = common::store(StoreSettings { l0_compaction_trigger: 2, ..plain() });
    let tables = || {
        let tables = store.live_tables().unwrap();
        tables.into_iter().map(|table| (table.file_number, table.level)).collect::<HashMap<_, _>>()
    };
    let pause = store.pause_compactions().unwrap();
    let other = store.pause_compactions().unwrap();
    drop(pause);
    for key in 0..400_u32 {
        store.put(&key.to_be_bytes(), &[1; VALUE_BYTES]).unwrap();
    }
    let before = tables();
    store.compact(..).unwrap();
    assert_eq!(tables(), before, "the second pause holds");
    drop(other);
    for key in 0..3_u32 {
        store.put(&key.to_be_bytes(), &[1; VALUE_BYTES]).unwrap();
        store.flush(true).unwrap();
    }
    until(|| store.properties().unwrap().l0_tables < 2);
}

/// What relocates begins compactions of its own, again and again; it must neither go on meanwhile
/// nor give up.
#[test]
fn gc_waits_for_the_end_of_a_pause_and_goes_on() {
    let (_directory, store) = common::store(common::collecting_early(64 * 1024));
    let put = |round: u64| {
        for number in 0..4_000_u64 {
            let key = format!("key{:06}", number * 7 % 4_000);
            store.put(key.as_bytes(), &common::value_of(key.as_bytes(), number + round, 300)).unwrap();
        }
    };
    put(0);
    put(1);
    let pause = store.pause_compactions().unwrap();
    let (tables, begin) = (store.live_tables().unwrap(), Instant::now());
    let relocated = store.value_log().unwrap().relocated_bytes;
    let census = count_duplicates(&store).unwrap();
    // Longer than its thread waits between two rounds.
    while begin.elapsed() < Duration::from_millis(1500) {
        assert_eq!(store.live_tables().unwrap().len(), tables.len());
        std::thread::yield_now();
    }
    assert_eq!(count_duplicates(&store).unwrap(), census);
    assert_eq!(store.value_log().unwrap().relocated_bytes, relocated);
    drop(pause);
    let live = 4_000 * 330;
    common::until(&store, |values| values.bytes < live * 3 / 2 && values.gc_segments == 0);
}

fn until(wanted: impl Fn() -> bool) {
    let begin = Instant::now();
    while !wanted() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
}
