//! Stores written by earlier versions open for ever.
//!
//! `fixtures/format-1` and `fixtures/format-2` were written by the tests below, each with the
//! version that introduced the format, and `fixtures/format-2-killed` by one whose tables tell
//! more, of a store that nobody closed. They are never written again: a change that cannot read it
//! is a change of the format, and needs a new fixture beside it.

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::telemetry::telemetry;
use common::{Model, assert_equals, value_of};
use ecotone_engine::{
    Attributes, Codec, Compression, CompressionMode, DEFAULT_SEPARATION_BYTES, DedupMode, DedupOptions, Direction,
    Durability, ExtensionThreshold, OpenMode, Separation, Store, StoreSettings, WriteOptions,
};
use ecotone_inspect::verify;
use ecotone_policy::gc::GcParameters;
use ecotone_types::units::Bytes;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// What the fixture holds: tables of two levels and all three compressions, entries that are only
/// in the WAL, values of every header, deletions of keys and of ranges.
fn expected() -> Model {
    let mut model = Model::new();
    for number in 0..60_u64 {
        let key = format!("key{number:03}").into_bytes();
        model.insert(key.clone(), common::value_of(&key, 1, 20));
    }
    model.retain(|key, _| !(b"key010".as_slice()..b"key020".as_slice()).contains(&key.as_slice()));
    model.remove(b"key030".as_slice());
    model.insert(b"".to_vec(), b"the empty key".to_vec());
    model.insert(b"empty value".to_vec(), Vec::new());
    model.insert(b"expires".to_vec(), b"an expiry".to_vec());
    model.insert(b"versioned".to_vec(), b"a version".to_vec());
    model.insert(b"both".to_vec(), b"an expiry and a version".to_vec());
    model.insert(b"only in the WAL".to_vec(), b"never flushed".to_vec());
    model
}

const BOTH: Attributes = Attributes { expires_at_ms: Some(1_900_000_000_000), version: Some(7), type_tag: None };

/// Writes the fixture where `ECOTONE_WRITE_FIXTURE` says. Without it there is nothing to do.
#[test]
fn write_fixture() {
    let Ok(directory) = std::env::var("ECOTONE_WRITE_FIXTURE") else {
        return;
    };
    let directory = Path::new(&directory);
    for (round, compression) in [Compression::None, Compression::Lz4, Compression::Zstd].into_iter().enumerate() {
        let options = StoreSettings { compression, durability: Durability::Always, ..common::small() };
        let store = Store::open(directory, OpenMode::CreateOrOpen, options).unwrap();
        for number in (round as u64 * 20)..(round as u64 * 20 + 20) {
            let key = format!("key{number:03}").into_bytes();
            store.put(&key, &common::value_of(&key, 1, 20)).unwrap();
        }
        if round == 0 {
            store.put(b"", b"the empty key").unwrap();
            store.put(b"empty value", b"").unwrap();
            store.flush(true).unwrap();
            store.compact(..).unwrap();
        }
        if round == 2 {
            store.delete(b"key030").unwrap();
            store.delete_range(&b"key010"[..]..&b"key020"[..]).unwrap();
            let mut batch = ecotone_engine::Batch::new();
            batch.put_with(b"expires", b"an expiry", &Attributes { version: None, ..BOTH }).unwrap();
            batch.put_with(b"versioned", b"a version", &Attributes { expires_at_ms: None, ..BOTH }).unwrap();
            batch.put_with(b"both", b"an expiry and a version", &BOTH).unwrap();
            store.write(&batch, WriteOptions::default()).unwrap();
        }
        store.flush(true).unwrap();
        store.put(b"only in the WAL", b"never flushed").unwrap();
        store.close().unwrap();
    }
    remove_logs(directory);
}

/// RocksDB's own logs and the lock are no part of a store.
fn remove_logs(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("LOG") || name == "LOCK" {
            fs::remove_file(path).unwrap();
        }
    }
}

pub fn copy_of(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_files(&fixture(name), copy.path());
    let values = fixture(name).join("values");
    if values.is_dir() {
        fs::create_dir(copy.path().join("values")).unwrap();
        copy_files(&values, &copy.path().join("values"));
    }
    copy
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn a_store_of_format_1_opens_and_works() {
    let copy = copy_of("format-1");
    let mut model = expected();
    let reader = Store::open(copy.path(), OpenMode::ReadOnly, common::small()).unwrap();
    assert_equals(&reader, &model);
    drop(reader);
    let store = Store::open(copy.path(), OpenMode::Open, common::small()).unwrap();
    assert_equals(&store, &model);
    assert_eq!(*store.get(b"both").unwrap().unwrap().attributes(), BOTH);
    assert_eq!(store.get(b"expires").unwrap().unwrap().attributes().expires_at_ms, BOTH.expires_at_ms);
    assert_eq!(store.get(b"versioned").unwrap().unwrap().attributes().version, BOTH.version);
    assert_eq!(*store.get(b"key000").unwrap().unwrap().attributes(), Attributes::NONE);
    common::fill(&store, &mut model, 1, 3_000, 1_000);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    assert_equals(&store, &model);
    store.close().unwrap();
    assert_equals(&Store::open(copy.path(), OpenMode::Open, common::small()).unwrap(), &model);
}

#[test]
fn a_store_of_format_1_keeps_new_values_separated_and_the_old_ones_where_they_are() {
    let copy = copy_of("format-1");
    let mut model = expected();
    let format = || fs::read_to_string(copy.path().join("STORE")).unwrap().lines().nth(1).unwrap().to_owned();
    let apart = || common::small().with_separation(DEFAULT_SEPARATION_BYTES);
    // Whoever only looks changes nothing.
    assert_equals(&Store::open(copy.path(), OpenMode::ReadOnly, apart()).unwrap(), &model);
    assert_eq!(format(), "format 1");

    let store = Store::open(copy.path(), OpenMode::Open, apart()).unwrap();
    assert_eq!(format(), "format 2");
    assert_equals(&store, &model);
    assert_eq!(*store.get(b"both").unwrap().unwrap().attributes(), BOTH);
    let in_segments = |store: &Store| store.value_log().unwrap().referenced_bytes;
    assert_eq!(in_segments(&store), 0);
    // What a compaction moves stays with its key.
    store.compact(..).unwrap();
    assert_eq!(in_segments(&store), 0);

    let long = DEFAULT_SEPARATION_BYTES as usize;
    // Half of the keys have an old value.
    for number in 0..120_u64 {
        let key = format!("key{number:03}").into_bytes();
        let value = vec![number as u8; if number % 2 == 0 { long } else { long - 1 }];
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    store.delete(b"versioned").unwrap();
    model.remove(b"versioned".as_slice());
    store.flush(true).unwrap();
    // The long ones and no others, once somebody has looked at the tables.
    let written = 60 * (12 + "key000".len() + long) as u64;
    common::until(&store, |log| log.referenced_bytes == written);
    assert_equals(&store, &model);
    store.close().unwrap();

    let found = verify(copy.path(), |_| ()).unwrap();
    assert!(found.is_sound() && found.entries == model.len() as u64, "{found:?}");
    // And back: what is apart is read, and new values stay with their keys.
    let store = Store::open(copy.path(), OpenMode::Open, common::small()).unwrap();
    assert_equals(&store, &model);
    store.put(b"later", &vec![1; 10 * long]).unwrap();
    store.flush(true).unwrap();
    common::until(&store, |log| log.referenced_bytes == written);
    assert_eq!(format(), "format 2");
}

#[test]
fn a_store_of_format_1_compresses_new_values_and_becomes_one_of_format_3() {
    let copy = copy_of("format-1");
    let mut model = expected();
    let settings =
        || common::compressing_early(CompressionMode::Auto, common::small().with_separation(DEFAULT_SEPARATION_BYTES));
    let store = Store::open(copy.path(), OpenMode::Open, settings()).unwrap();
    assert_equals(&store, &model);
    common::until_compression(
        &store,
        |now| now.installed_dictionaries > 0 && now.written_by != Codec::None && now.written.stored_bytes > 0,
        |number| {
            let (key, value) = (format!("key{:03}", number % 120).into_bytes(), telemetry(number, 300));
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        },
    );
    assert_eq!(*store.get(b"both").unwrap().unwrap().attributes(), BOTH);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    assert_equals(&store, &model);
    store.close().unwrap();
    assert!(fs::read_to_string(copy.path().join("STORE")).unwrap().starts_with("ecotone store\nformat 3\n"));
    let found = verify(copy.path(), |_| ()).unwrap();
    assert!(found.is_sound() && found.entries == model.len() as u64, "{found:?}");
    assert_equals(&Store::open(copy.path(), OpenMode::Open, settings()).unwrap(), &model);
}

#[test]
fn the_fixture_is_small_and_whole() {
    let bytes = |path: PathBuf| -> u64 {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    assert!(bytes(fixture("format-1")) < 256 * 1024);
    // Most of it are zeros behind the log.
    let killed = fixture("format-2-killed");
    assert!(bytes(killed.clone()) + bytes(killed.join("values")) < 512 * 1024);
    assert!(fs::read_to_string(killed.join("STORE")).unwrap().starts_with("ecotone store\nformat 2\n"));
    assert_eq!(fs::read_to_string(fixture("format-1").join("STORE")).unwrap(), "ecotone store\nformat 1\n");
}

fn separated() -> StoreSettings {
    StoreSettings {
        durability: Durability::Always,
        compression: Compression::Lz4,
        separation: Some(Separation { min_bytes: 15, segment_bytes: 4096 }),
        gc: GcParameters {
            begin_ratio: 1.1,
            end_ratio: 1.05,
            min_garbage_bytes: Bytes(1024),
            ..GcParameters::default()
        },
        ..common::small()
    }
}

/// What the fixture of format 2 holds: inline and separated values of every header, in several
/// segments, some of them relocated, some named by the WAL only.
pub fn expected_2() -> Model {
    let mut model = Model::new();
    for number in 0..300_u64 {
        let key = format!("key{number:03}").into_bytes();
        model.insert(key.clone(), common::value_of(&key, if number % 3 == 0 { 2 } else { 1 }, 60));
        let key = format!("short{number:03}").into_bytes();
        model.insert(key.clone(), common::value_of(&key, 1, 10));
    }
    model.insert(b"both".to_vec(), b"an expiry and a version".to_vec());
    model.insert(b"only in the WAL".to_vec(), b"never flushed, and long enough".to_vec());
    model
}

/// Writes the fixture where `ECOTONE_WRITE_FIXTURE_2` says. Without it there is nothing to do.
#[test]
fn write_fixture_2() {
    let Ok(directory) = std::env::var("ECOTONE_WRITE_FIXTURE_2") else {
        return;
    };
    let directory = Path::new(&directory);
    let store = Store::open(directory, OpenMode::Create, separated()).unwrap();
    for version in [1, 2] {
        for number in (0..300_u64).filter(|number| version == 1 || number % 3 == 0) {
            let key = format!("key{number:03}").into_bytes();
            store.put(&key, &common::value_of(&key, version, 60)).unwrap();
            let key = format!("short{number:03}").into_bytes();
            store.put(&key, &common::value_of(&key, 1, 10)).unwrap();
        }
        store.flush(true).unwrap();
        store.compact(..).unwrap();
    }
    while store.value_log().unwrap().relocated_bytes == 0 || store.value_log().unwrap().removed_segments == 0 {
        std::thread::yield_now();
    }
    let mut batch = ecotone_engine::Batch::new();
    batch.put_with(b"both", b"an expiry and a version", &BOTH).unwrap();
    store.write(&batch, WriteOptions::default()).unwrap();
    store.flush(true).unwrap();
    store.put(b"only in the WAL", b"never flushed, and long enough").unwrap();
    store.close().unwrap();
    remove_logs(directory);
}

#[test]
fn a_store_of_format_2_opens_and_works() {
    let copy = copy_of("format-2");
    let mut model = expected_2();
    let found = verify(copy.path(), |_| ()).unwrap();
    assert!(found.is_sound() && found.segments > 1 && found.entries == model.len() as u64, "{found:?}");
    let store = Store::open(copy.path(), OpenMode::Open, separated()).unwrap();
    assert_equals(&store, &model);
    assert_eq!(*store.get(b"both").unwrap().unwrap().attributes(), BOTH);
    common::fill(&store, &mut model, 1, 3_000, 1_000);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    assert_equals(&store, &model);
    store.close().unwrap();
    assert_equals(&Store::open(copy.path(), OpenMode::Open, common::small()).unwrap(), &model);
}

const TYPE: NonZeroU8 = NonZeroU8::new(5).unwrap();

/// Values that somebody may want to be gone: in a thousand years, and long ago.
const EXPIRES_LATE_MS: u64 = 33_000_000_000_000;
const EXPIRED_MS: u64 = 1;

fn killed() -> StoreSettings {
    StoreSettings {
        dynamic_levels: false,
        l0_compaction_trigger: 3,
        reclaim_expired: true,
        dedup: DedupOptions {
            mode: Some(DedupMode::Filter),
            threshold: ExtensionThreshold::Off,
            ..DedupOptions::default()
        },
        separation: Some(Separation { min_bytes: 50, segment_bytes: 4096 }),
        ..separated()
    }
}

/// Inline and separated values of all types and ends in turn, and a few that are longer than a
/// segment.
fn value_of_killed(number: u64, version: u64) -> (Vec<u8>, Vec<u8>, Attributes) {
    let key = format!("key{number:03}").into_bytes();
    let bytes = match number % 3 {
        _ if number % 100 == 7 => 5_000,
        0 => 20,
        _ => 60,
    };
    let attributes = Attributes {
        expires_at_ms: number.is_multiple_of(4).then_some(EXPIRES_LATE_MS + number),
        version: number.is_multiple_of(5).then_some(version + 1),
        type_tag: number.is_multiple_of(2).then_some(TYPE),
    };
    let value = value_of(&key, version, bytes);
    (key, value, attributes)
}

/// What each of its generations writes and deletes: the first two lie in the last level, the others
/// above it, and the last in the WAL.
fn generation(version: u64) -> (impl Iterator<Item = u64>, std::ops::Range<u64>) {
    let every = [1, 2, 4, 5, 7][version as usize];
    ((0..400_u64).filter(move |number| number % every == 0), 30 * version..30 * version + 5)
}

/// The last generation of the fixture.
const NEWEST: u64 = 4;

/// What the fixture of a killed store holds.
fn expected_of_killed() -> BTreeMap<Vec<u8>, (Vec<u8>, Attributes)> {
    let mut model = BTreeMap::new();
    for version in 0..=NEWEST {
        let (written, removed) = generation(version);
        for (key, value, attributes) in written.map(|number| value_of_killed(number, version)) {
            model.insert(key, (value, attributes));
        }
        removed.for_each(|number| drop(model.remove(format!("key{number:03}").as_bytes())));
        model.remove(format!("key{:03}", 200 + version).as_bytes());
    }
    model
}

fn write_generation(store: &Store, version: u64) {
    let (written, removed) = generation(version);
    for (number, (key, value, attributes)) in written.map(|number| (number, value_of_killed(number, version))) {
        let mut batch = ecotone_engine::Batch::new();
        // One that a later write of the same batch replaces.
        if number.is_multiple_of(10) {
            batch.put(&key, b"replaced at once").unwrap();
        }
        batch.put_with(&key, &value, &attributes).unwrap();
        store.write(&batch, WriteOptions::default()).unwrap();
    }
    let [from, to] = [removed.start, removed.end].map(|number| format!("key{number:03}").into_bytes());
    store.delete_range(&from[..]..&to[..]).unwrap();
    store.delete(format!("key{:03}", 200 + version).as_bytes()).unwrap();
}

/// Writes the fixture of a killed store where `ECOTONE_WRITE_FIXTURE_KILLED` says. Without it there
/// is nothing to do.
#[test]
fn write_fixture_of_a_killed_store() {
    let Ok(to) = std::env::var("ECOTONE_WRITE_FIXTURE_KILLED") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let lowest = StoreSettings { dynamic_levels: true, reclaim_expired: false, ..killed() };
    let store = Store::open(directory.path(), OpenMode::CreateOrOpen, lowest).unwrap();
    write_generation(&store, 0);
    let mut batch = ecotone_engine::Batch::new();
    let expired = Attributes { expires_at_ms: Some(EXPIRED_MS), ..Attributes::NONE };
    batch.put_with(b"expired", &[1; 100], &expired).unwrap();
    store.write(&batch, WriteOptions::default()).unwrap();
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    write_generation(&store, 1);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    common::until(&store, |log| log.relocated_bytes > 0 && log.removed_segments > 0);
    store.close().unwrap();

    let store = Store::open(directory.path(), OpenMode::Open, killed()).unwrap();
    for version in 2..NEWEST {
        write_generation(&store, version);
        store.flush(true).unwrap();
    }
    // The third table of level 0 has them compacted.
    store.put(b"in level 1", &[1; 100]).unwrap();
    store.flush(true).unwrap();
    let begin = Instant::now();
    while store.properties().unwrap().l0_tables > 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "level 0 is not compacted");
        std::thread::yield_now();
    }
    // One that nothing has compacted, and what only the WAL has.
    store.put(b"in level 0", &[2; 100]).unwrap();
    store.flush(true).unwrap();
    write_generation(&store, NEWEST);
    let as_it_is = store.pause_compactions().unwrap();
    let to = Path::new(&to);
    fs::create_dir_all(to.join("values")).unwrap();
    copy_files(directory.path(), to);
    copy_files(&directory.path().join("values"), &to.join("values"));
    drop(as_it_is);
    remove_logs(to);
}

/// Tables in three levels with all that they tell of their keys, a WAL and segments that end in
/// what is reserved, values of every type and end.
#[test]
fn a_killed_store_of_format_2_opens_and_works() {
    let copy = copy_of("format-2-killed");
    common::writes::recount_tables(copy.path(), "as it was written");
    let mut model = expected_of_killed();
    model.insert(b"in level 0".to_vec(), (vec![2; 100], Attributes::NONE));
    model.insert(b"in level 1".to_vec(), (vec![1; 100], Attributes::NONE));
    let is_as_expected = |store: &Store| {
        let mut scan = store.scan(.., Direction::Forward, None).unwrap();
        let mut expected = model.iter();
        while let Some(entry) = scan.next_entry().unwrap() {
            // It is the layer above that takes it for gone.
            if entry.attributes.expires_at_ms == Some(EXPIRED_MS) {
                continue;
            }
            let (key, (value, attributes)) = expected.next().unwrap();
            assert_eq!((entry.key, entry.value, entry.attributes), (&key[..], &value[..], *attributes));
        }
        assert_eq!(expected.next(), None);
    };
    is_as_expected(&Store::open(copy.path(), OpenMode::ReadOnly, killed()).unwrap());
    let store = Store::open(copy.path(), OpenMode::Open, killed()).unwrap();
    is_as_expected(&store);
    let with_tables = store.properties().unwrap().levels.iter().filter(|level| level.tables > 0).count();
    assert!(with_tables >= 3, "{with_tables} levels");
    let begin = Instant::now();
    while store.dedup().is_none_or(|found| found.total_keys < 400) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", store.dedup());
        std::thread::yield_now();
    }
    let found = store.dedup().unwrap();
    assert_eq!((found.unsampled_tables, found.unfiltered_tables), (0, 0), "what its tables tell is read");
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    is_as_expected(&store);
    assert!(store.get(b"expired").unwrap().is_none(), "its time is over, and a compaction has met it");
    let live = model.iter().filter(|(_, (value, _))| value.len() >= 50);
    let live: u64 = live.map(|(key, (value, _))| 12 + (key.len() + value.len()) as u64).sum();
    common::until(&store, |log| log.referenced_bytes == live);
    store.close().unwrap();
    let found = verify(copy.path(), |_| ()).unwrap();
    assert!(found.is_sound() && found.entries == model.len() as u64, "{found:?}");
}
