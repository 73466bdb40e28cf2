//! Values that are compressed one by one: what they take, who reads them, and how they come to be so
//! and cease to be.

use crate::common;

use std::fs;
use std::num::NonZeroU8;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::appended::{copy_store, dictionary_record, is_packed, segment_records};
use common::offloads::InProcess;
use common::telemetry::telemetry;
use common::writes::recounted;
use common::{Model, assert_equals, compressing_early, contents, fill, until, until_compression, value_of};
use ecotone_engine::{
    Attributes, Batch, Codec, CompressionMode, Description, Direction, Durability, Error, OpenMode, Separation, Store,
    StoreSettings, WriteOptions,
};
use ecotone_inspect::{space, verify};
use ecotone_policy::gc::GcParameters;
use ecotone_types::units::Bytes;

/// Those that compress.
const MODES: [CompressionMode; 3] = [CompressionMode::Auto, CompressionMode::Lz4, CompressionMode::Zstd];

/// Short segments, and garbage collection that begins early.
fn settings(mode: CompressionMode) -> StoreSettings {
    let collecting = StoreSettings {
        separation: Some(Separation { min_bytes: 50, segment_bytes: 64 * 1024 }),
        gc: GcParameters {
            begin_ratio: 1.05,
            end_ratio: 1.02,
            forced_ratio: 1.06,
            min_garbage_bytes: Bytes(4 * 1024),
            ..GcParameters::default()
        },
        ..common::small()
    };
    compressing_early(mode, collecting)
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

fn put(store: &Store, model: &mut Model, key: Vec<u8>, value: Vec<u8>) {
    store.put(&key, &value).unwrap();
    model.insert(key, value);
}

const KEYS: u64 = 2_000;

/// A store whose values are compressed with a dictionary of its own, and what it holds.
fn compressing(mode: CompressionMode) -> (tempfile::TempDir, Store, Model) {
    let (directory, store) = common::store(settings(mode));
    let mut model = Model::new();
    until_compression(
        &store,
        |now| now.installed_dictionaries > 0 && now.written_by != Codec::None,
        |number| put(&store, &mut model, key(number % KEYS), telemetry(number, 300)),
    );
    overwrite(&store, &mut model, 0..KEYS, 1);
    (directory, store, model)
}

/// Writes all of `keys` anew, as values that shrink.
fn overwrite(store: &Store, model: &mut Model, keys: std::ops::Range<u64>, round: u64) {
    for number in keys {
        put(store, model, key(number), telemetry(round << 20 | number, 300));
    }
}

/// Every way in which a store is asked.
fn assert_reads(store: &Store, model: &Model) {
    assert_equals(store, model);
    let reversed = store.scan(.., Direction::Reverse, None).unwrap().map(Result::unwrap);
    assert!(reversed.eq(model.iter().rev().map(|(key, value)| (key.clone(), value.clone()))));
    let keys: Vec<_> = model.keys().collect();
    for (key, found) in keys.iter().zip(store.multi_get(&keys)) {
        assert_eq!(found.unwrap().as_deref(), model.get(*key).map(Vec::as_slice));
    }
    let snapshot = store.snapshot();
    for (key, value) in model {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(&value[..]));
        assert_eq!(snapshot.get(key).unwrap().as_deref(), Some(&value[..]));
        match store.try_get(key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Err(error) => assert_eq!(error, Error::WouldBlock),
        }
    }
    let mut scan = store.try_scan(.., Direction::Forward);
    for (key, value) in model {
        match scan.next_entry() {
            Ok(Some(entry)) => assert_eq!((entry.key, entry.value), (&key[..], &value[..])),
            Ok(None) => panic!("a scan ends before {key:?}"),
            Err(error) => {
                assert_eq!(error, Error::WouldBlock);
                break;
            }
        }
    }
}

/// The segments of a store, oldest first.
fn segments(store: &Path) -> Vec<Vec<u8>> {
    let mut found: Vec<_> = fs::read_dir(store.join("values")).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "segment"));
    found.sort();
    // One may have gone meanwhile.
    found.iter().filter_map(|path| fs::read(path).ok()).collect()
}

fn format(store: &Path) -> String {
    fs::read_to_string(store.join("STORE")).unwrap().lines().nth(1).unwrap().to_owned()
}

/// Once the tables are known, what they refer to is what they were counted to.
fn assert_counted(store: &Store) {
    store.flush(true).unwrap();
    let pause = store.pause_compactions().unwrap();
    let (tables, referenced) = recounted(store, "now");
    assert!(tables > 0);
    drop(pause);
    store.compact(..).unwrap();
    let log = until(store, |log| {
        // Until no compaction comes between.
        let pause = store.pause_compactions().unwrap();
        let (_, now) = recounted(store, "compacted");
        drop(pause);
        (log.referenced_bytes, log.saved_bytes) == (now.bytes, now.saved)
    });
    assert!(log.saved_bytes > 0 && referenced.saved > 0, "{log:?}");
}

#[test]
fn what_shrinks_takes_less_and_is_read_in_every_way() {
    for mode in MODES {
        let (directory, store, mut model) = compressing(mode);
        let path = directory.path().join("store");
        assert_eq!(format(&path), "format 3");
        // Some of it is in no table yet.
        assert_reads(&store, &model);
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        let users: u64 = model.values().map(|value| value.len() as u64).sum();
        let log = until(&store, |log| log.saved_bytes > users / 3);
        assert!(log.referenced_bytes < users * 2 / 3, "{mode:?}: {log:?} of {users}");
        assert_counted(&store);
        assert_reads(&store, &model);
        let found = space(&store).unwrap();
        assert!(found.compression_ratio().unwrap() > 1.5, "{:?}", found.compression_ratio());

        let copy = directory.path().join("copy");
        store.checkpoint(&copy).unwrap();
        let at_copy = model.clone();
        // Garbage collection moves what it is packed with.
        (0..KEYS).step_by(2).for_each(|number| put(&store, &mut model, key(number), telemetry(2 << 20 | number, 300)));
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        until(&store, |log| log.relocated_bytes > 0 && log.removed_segments > 0);
        assert_reads(&store, &model);
        store.close().unwrap();

        let reader = Store::open(&path, OpenMode::ReadOnly, StoreSettings::default()).unwrap();
        assert_reads(&reader, &model);
        drop(reader);
        let store = Store::open(&path, OpenMode::Open, settings(mode)).unwrap();
        assert!(store.value_compression().unwrap().dictionary.is_some(), "that of the last process");
        assert_reads(&store, &model);
        assert_counted(&store);
        store.close().unwrap();
        let report = verify(&path, |_| ()).unwrap();
        assert!(report.is_sound() && report.entries == model.len() as u64, "{report:?}");
        let copied = Store::open(&copy, OpenMode::Open, settings(mode)).unwrap();
        assert_eq!(format(&copy), "format 3");
        assert_reads(&copied, &at_copy);
    }
}

#[test]
fn what_does_not_shrink_is_stored_as_it_is_and_soon_not_tried() {
    let (directory, store) = common::store(settings(CompressionMode::Auto));
    let mut model = Model::new();
    let random = |number| value_of(&key(number), number, 300);
    let now = until_compression(
        &store,
        |now| now.trainings > 1 && now.written.raw_bytes > 300_000,
        |number| put(&store, &mut model, key(number), random(number)),
    );
    assert_eq!((now.written_by, now.relocated_by, now.installed_dictionaries), (Codec::None, Codec::None, 0));
    assert_eq!(now.written.raw_bytes, now.written.stored_bytes);
    // What is stored has a few bytes beside it, and no dictionary.
    store.flush(true).unwrap();
    for segment in segments(&directory.path().join("store")) {
        assert!(is_packed(&segment));
        assert!(segment_records(&segment).iter().all(|record| record.len() <= 9 + 300 + 8), "{}", segment.len());
    }
    assert_reads(&store, &model);
    assert_eq!(until(&store, |log| log.referenced_bytes > 0).saved_bytes, 0);
    // It tries again now and then.
    let first = model.len() as u64;
    until_compression(
        &store,
        |now| now.written_by != Codec::None && now.installed_dictionaries > 0,
        |number| put(&store, &mut model, key(first + number), telemetry(number, 300)),
    );
    assert_reads(&store, &model);
}

#[test]
fn compression_is_turned_off_and_what_is_compressed_stays_so_wherever_it_goes() {
    let (directory, store, mut model) = compressing(CompressionMode::Zstd);
    let path = directory.path().join("store");
    store.close().unwrap();

    let store = Store::open(&path, OpenMode::Open, settings(CompressionMode::None)).unwrap();
    assert_reads(&store, &model);
    // Every second one is overwritten; the others are copied.
    for number in (0..KEYS).step_by(2) {
        put(&store, &mut model, key(number), telemetry(2 << 20 | number, 300));
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    until(&store, |log| log.relocated_bytes > 0 && log.removed_segments > 0);
    let now = store.value_compression().unwrap();
    assert_eq!((now.written_by, now.relocated_by, now.trainings), (Codec::None, Codec::None, 0));
    assert_eq!(now.written.raw_bytes, now.written.stored_bytes, "new ones are as they are");
    assert!(now.relocated.stored_bytes * 3 < now.relocated.raw_bytes * 2, "{now:?}");
    assert_reads(&store, &model);
    assert_counted(&store);
    store.close().unwrap();
    assert_eq!(format(&path), "format 3");
}

/// Also by a process that knows no longer of any dictionary but its own.
#[test]
fn what_is_compressed_stays_so_where_the_dictionary_is_another_by_now() {
    let (directory, store, mut model) = compressing(CompressionMode::Zstd);
    let path = directory.path().join("store");
    let first = store.value_compression().unwrap().dictionary;
    until_compression(
        &store,
        |now| now.dictionary != first,
        |number| put(&store, &mut model, format!("log{number:06}").into_bytes(), log_line(number)),
    );
    store.close().unwrap();
    let store = Store::open(&path, OpenMode::Open, settings(CompressionMode::None)).unwrap();
    for number in (0..KEYS).step_by(2) {
        put(&store, &mut model, key(number), telemetry(2 << 20 | number, 300));
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    until(&store, |log| log.relocated_bytes > 0 && log.removed_segments > 0);
    let now = store.value_compression().unwrap();
    assert!(now.relocated.stored_bytes < now.relocated.raw_bytes * 7 / 8, "{now:?}");
    assert_reads(&store, &model);
}

#[test]
fn a_store_of_format_2_becomes_one_of_format_3_and_collection_converts_its_values() {
    let copy = crate::format::copy_of("format-2");
    let mut model = crate::format::expected_2();
    let apart = |mode| {
        let separation = Some(Separation { min_bytes: 15, segment_bytes: 4096 });
        let gc = GcParameters { min_garbage_bytes: Bytes(1024), ..settings(mode).gc };
        StoreSettings { separation, gc, ..settings(mode) }
    };
    // Whoever does not compress leaves it as it is.
    Store::open(copy.path(), OpenMode::Open, apart(CompressionMode::None)).unwrap().close().unwrap();
    assert_eq!(format(copy.path()), "format 2");
    let plain = |path: &Path| segments(path).iter().filter(|segment| !is_packed(segment)).count();
    let before = plain(copy.path());
    assert!(before > 1);

    let store = Store::open(copy.path(), OpenMode::Open, apart(CompressionMode::Auto)).unwrap();
    assert_eq!(format(copy.path()), "format 3");
    assert_reads(&store, &model);
    // Values that stay lie beside others that go.
    for number in (0..300).filter(|number| number % 3 != 0) {
        let key = format!("key{number:03}").into_bytes();
        put(&store, &mut model, key, telemetry(number, 60));
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    until(&store, |log| log.relocated_bytes > 0 && log.removed_segments > 0);
    let moved = store.value_compression().unwrap().relocated;
    assert!(moved.raw_bytes > 0 && plain(copy.path()) < before, "{moved:?}");
    assert_reads(&store, &model);
    store.close().unwrap();
    let report = verify(copy.path(), |_| ()).unwrap();
    assert!(report.is_sound() && report.entries == model.len() as u64, "{report:?}");

    // A store that was killed has values that only its WAL names.
    let copy = crate::format::copy_of("format-2-killed");
    let before = {
        let reader = Store::open(copy.path(), OpenMode::ReadOnly, StoreSettings::default()).unwrap();
        contents(&reader)
    };
    let store = Store::open(copy.path(), OpenMode::Open, apart(CompressionMode::Zstd)).unwrap();
    assert_eq!((format(copy.path()), contents(&store)), ("format 3".into(), before.clone()));
    fill(&store, &mut Model::new(), 1, 3_000, 500);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    for (key, value) in before.iter().filter(|(key, _)| key.len() < 8) {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(&value[..]));
    }
}

#[test]
fn what_collection_moves_trains_a_dictionary_where_nothing_is_written() {
    let (directory, store) = common::store(settings(CompressionMode::None));
    let mut model = Model::new();
    overwrite(&store, &mut model, 0..KEYS, 1);
    store.flush(true).unwrap();
    store.close().unwrap();
    let path = directory.path().join("store");
    assert_eq!(format(&path), "format 2");
    let store = Store::open(&path, OpenMode::Open, settings(CompressionMode::Zstd)).unwrap();
    common::halve(&store, &mut model);
    let compact = |_| store.compact(..).unwrap();
    until_compression(&store, |now| now.relocated_by == Codec::Zstd, compact);
    // What is moved from now on is compressed.
    common::halve(&store, &mut model);
    until_compression(&store, |now| now.relocated.stored_bytes < now.relocated.raw_bytes, compact);
    assert_eq!(store.value_compression().unwrap().written.raw_bytes, 0);
    assert_reads(&store, &model);
}

/// Lines of a log: nothing of telemetry is in them.
fn log_line(number: u64) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "accepted",
        "connection",
        "timeout",
        "kernel",
        "scheduler",
        "partition",
        "replica",
        "follower",
        "election",
        "heartbeat",
        "snapshotting",
        "compacted",
        "throttled",
        "recovered",
        "handshake",
        "certificate",
    ];
    let mut line = format!("<{}>1 host{} daemon[{}]:", number % 190, number % 7, 1000 + number % 31);
    let mut state = number;
    while line.len() < 290 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        line.push(' ');
        line.push_str(WORDS[(state >> 40) as usize % WORDS.len()]);
    }
    line.into_bytes()
}

#[test]
fn a_dictionary_is_replaced_when_values_are_of_another_kind() {
    for mode in MODES {
        let (directory, store, mut model) = compressing(mode);
        let path = directory.path().join("store");
        let first = store.value_compression().unwrap();
        let log_key = |number: u64| format!("log{number:06}").into_bytes();
        let second = until_compression(
            &store,
            |now| now.installed_dictionaries > first.installed_dictionaries,
            |number| put(&store, &mut model, log_key(number), log_line(number)),
        );
        assert_ne!(first.dictionary, second.dictionary);
        // Those of both are moved, into one segment or another.
        let gone: Vec<_> = model.keys().step_by(3).cloned().collect();
        for key in gone {
            store.delete(&key).unwrap();
            model.remove(&key);
        }
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        until(&store, |log| log.relocated_bytes > 0 && log.removed_segments > 0);
        assert_reads(&store, &model);
        assert_counted(&store);
        store.close().unwrap();
        let store = Store::open(&path, OpenMode::Open, settings(mode)).unwrap();
        assert_reads(&store, &model);
        let memory = store.value_compression().unwrap().dictionary_memory_bytes;
        assert!(memory > 0 && memory < 4 << 20, "{memory} bytes");
    }
}

#[test]
fn values_of_all_lengths_are_what_they_were() {
    const LENGTHS: [usize; 10] = [0, 1, 31, 32, 49, 50, 256 * 1024, 256 * 1024 + 1, 5 << 20, 20 << 20];
    for mode in MODES {
        let apart = |mode| {
            let separation = Some(Separation { min_bytes: 31, segment_bytes: 64 * 1024 });
            StoreSettings { separation, ..settings(mode) }
        };
        let (directory, store) = common::store(apart(mode));
        let mut model = Model::new();
        until_compression(
            &store,
            |now| now.written_by != Codec::None,
            |number| put(&store, &mut model, key(number), telemetry(number, 300)),
        );
        for (number, bytes) in LENGTHS.into_iter().enumerate() {
            let of_key = |kind: &str| format!("{kind}{bytes:08}").into_bytes();
            put(&store, &mut model, of_key("shrinks"), telemetry(number as u64, bytes));
            put(&store, &mut model, of_key("zeros"), vec![0; bytes]);
            put(&store, &mut model, of_key("random"), value_of(b"random", number as u64, bytes));
        }
        assert_equals(&store, &model);
        store.flush(true).unwrap();
        // The long ones are copied as well: what lies before them goes.
        let path = directory.path().join("store");
        store.close().unwrap();
        let store = Store::open(&path, OpenMode::Open, apart(mode)).unwrap();
        assert_equals(&store, &model);
        for kind in ["random", "shrinks", "zeros"] {
            // Stated without a read, and right.
            let bytes = LENGTHS[9];
            let value = store.get(format!("{kind}{bytes:08}").as_bytes()).unwrap().unwrap();
            assert_eq!(value.len(), bytes);
        }
        assert_counted(&store);
    }
}

/// Packing it would hold up the clients of a thread.
#[test]
fn a_long_value_is_not_packed_by_a_thread_that_must_not_wait() {
    const LONG: usize = 64 * 1024;
    let no_wait = WriteOptions { no_wait: true, ..WriteOptions::default() };
    let (_directory, store, mut model) = compressing(CompressionMode::Zstd);
    let is_written = |store: &Store, key: &[u8], value: &[u8]| match store.put_opt(key, value, no_wait) {
        Ok(()) => true,
        Err(Error::WouldBlock) => false,
        Err(error) => panic!("{error}"),
    };
    for (bytes, at_once) in [(LONG, true), (LONG + 1, false), (1 << 20, false)] {
        let (key, value) = (format!("long{bytes}").into_bytes(), telemetry(3, bytes));
        if at_once {
            // The store may have to wait for something else, but not for ever. Notifications of stalls can
            // pass each other, so the last one may be of one that is over: who asks for counters, as a
            // server does again and again, has it looked at anew.
            until(&store, |_| {
                store.counters();
                is_written(&store, &key, &value)
            });
        } else {
            assert!((0..20).all(|_| !is_written(&store, &key, &value)), "{bytes} bytes");
        }
        assert_eq!(store.get(&key).unwrap().is_some(), at_once);
        // By one that may, it is packed.
        let before = store.value_compression().unwrap().written;
        put(&store, &mut model, key, value);
        let after = store.value_compression().unwrap().written;
        assert!((after.stored_bytes - before.stored_bytes) * 2 < after.raw_bytes - before.raw_bytes, "{after:?}");
    }
    assert_equals(&store, &model);
    // Nor does it matter where nothing is packed.
    let (_directory, store) = common::store(settings(CompressionMode::None));
    until(&store, |_| is_written(&store, b"key", &telemetry(3, 1 << 20)));
}

/// Half of what it is given is of threads, a quarter of dictionaries.
#[test]
fn memory_for_compression_is_counted_and_little_of_it_suffices() {
    const LITTLE: u64 = 256 * 1024;
    let little = StoreSettings { compression_memory_bytes: LITTLE, ..settings(CompressionMode::Zstd) };
    let (directory, store) = common::store(little.clone());
    let path = directory.path().join("store");
    let mut model = Model::new();
    let first = until_compression(
        &store,
        |now| now.installed_dictionaries > 0 && now.written_by == Codec::Zstd,
        |number| put(&store, &mut model, key(number % KEYS), telemetry(number, 300)),
    );
    assert!(first.dictionary_memory_bytes > 0);
    let second = until_compression(
        &store,
        |now| now.dictionary != first.dictionary,
        |number| put(&store, &mut model, format!("log{number:06}").into_bytes(), log_line(number)),
    );
    assert_eq!(second.trainings, store.value_compression().unwrap().trainings);
    overwrite(&store, &mut model, 0..KEYS, 1);
    assert_reads(&store, &model);
    store.close().unwrap();
    // Values of both are read, whichever dictionary goes for the other.
    let store = Store::open(&path, OpenMode::Open, little).unwrap();
    assert_reads(&store, &model);
    let now = store.value_compression().unwrap();
    // The one in force counts beside what others may take.
    assert!(now.dictionary_memory_bytes < LITTLE, "{now:?}");
}

/// How long a value is stands beside its key: of segments that cannot be read nobody needs a byte.
#[test]
fn the_length_of_a_value_is_told_without_a_read_of_it() {
    let cached = StoreSettings { row_cache_bytes: Some(64 * 1024), ..settings(CompressionMode::Zstd) };
    let (directory, store) = common::store(cached.clone());
    let mut model = Model::new();
    until_compression(
        &store,
        |now| now.written_by == Codec::Zstd,
        |number| put(&store, &mut model, key(number), telemetry(number, 300 + number as usize % 7)),
    );
    for bytes in [0, 49, 50, 70_000] {
        put(&store, &mut model, format!("random{bytes}").into_bytes(), value_of(b"random", 1, bytes));
    }
    store.flush(true).unwrap();
    store.close().unwrap();
    let path = directory.path().join("store");
    let values = fs::read_dir(path.join("values")).unwrap().map(|entry| entry.unwrap().path());
    for segment in values.filter(|path| path.extension().is_some_and(|end| end == "segment")) {
        let mut bytes = fs::read(&segment).unwrap();
        bytes.iter_mut().skip(32).step_by(3).for_each(|byte| *byte ^= 0x55);
        fs::write(&segment, bytes).unwrap();
    }
    let store = Store::open(&path, OpenMode::ReadOnly, cached).unwrap();
    let snapshot = store.snapshot();
    let mut unreadable = 0;
    for (key, value) in &model {
        let expected = Description { attributes: Attributes::NONE, value_bytes: value.len() };
        // Also from the cache of rows, the second time.
        for _ in 0..2 {
            assert_eq!(store.describe(key, false), Ok(Some(expected)));
            assert!(matches!(store.describe(key, true), Err(Error::WouldBlock) | Ok(Some(_))));
        }
        assert_eq!(snapshot.describe(key), Ok(Some(expected)));
        unreadable += u32::from(matches!(store.get(key), Err(Error::Corrupt { .. })));
    }
    assert!(unreadable > 100 && unreadable as usize + 2 == model.len(), "{unreadable} of {}", model.len());
    assert_eq!(store.describe(b"nothing", false), Ok(None));
}

/// A loss of power that takes the dictionary of a segment, and nothing behind it: what is in there can
/// be read as long as another segment has the same, and is given up while that is no loss of anything
/// that was promised.
#[test]
fn what_has_lost_its_dictionary_with_power_is_lost() {
    let unsynced =
        StoreSettings { durability: Durability::None, memtable_bytes: 4 << 20, ..settings(CompressionMode::Zstd) };
    let (directory, store) = common::store(unsynced.clone());
    let mut model = Model::new();
    until_compression(
        &store,
        |now| now.installed_dictionaries > 0,
        |number| put(&store, &mut model, key(number), telemetry(number, 300)),
    );
    put(&store, &mut model, b"compressed".to_vec(), telemetry(7, 300));
    store.flush(true).unwrap();
    // Ends the segment.
    store.checkpoint(&directory.path().join("checkpoint")).unwrap();
    put(&store, &mut model, b"stored as it is".to_vec(), value_of(b"random", 1, 300));
    let before = model.clone();
    put(&store, &mut model, b"then compressed".to_vec(), telemetry(8, 300));
    put(&store, &mut model, b"and stored as it is".to_vec(), value_of(b"random", 2, 300));

    let copy = |name: &str| {
        let copy = directory.path().join(name);
        copy_store(&directory.path().join("store"), &copy);
        let newest = fs::read_dir(copy.join("values")).unwrap().map(|entry| entry.unwrap().path());
        let newest = newest.filter(|path| path.extension().is_some_and(|end| end == "segment")).max().unwrap();
        let bytes = fs::read(&newest).unwrap();
        let dictionary = dictionary_record(&bytes).unwrap();
        (copy, newest, bytes, dictionary)
    };
    let (lost, newest, mut bytes, dictionary) = copy("lost");
    bytes[32..dictionary.end.min(512)].fill(0);
    fs::write(&newest, &bytes).unwrap();
    for mode in [OpenMode::ReadOnly, OpenMode::Open, OpenMode::Open] {
        let store = Store::open(&lost, mode, unsynced.clone()).unwrap();
        assert_reads(&store, &before);
        store.close().unwrap();
    }
    assert!(verify(&lost, |_| ()).unwrap().is_sound());

    // No loss of power flips a bit.
    let (damaged, newest, mut bytes, dictionary) = copy("damaged");
    bytes[dictionary.end - 100] ^= 1;
    fs::write(&newest, &bytes).unwrap();
    let store = Store::open(&damaged, OpenMode::Open, unsynced.clone()).unwrap();
    assert_reads(&store, &model);
    store.close().unwrap();
    assert!(!verify(&damaged, |_| ()).unwrap().is_sound());

    // Nor does it leave a record that is whole and does not decompress.
    let (forged, newest, mut bytes, _) = copy("forged");
    let record = segment_records(&bytes).into_iter().rev().nth(1).unwrap();
    let key = bytes[record.clone()].windows(15).position(|found| found == b"then compressed").unwrap();
    bytes[record.start + key + 15..][..4].fill(0xff);
    let checksum = crc32c::crc32c(&bytes[record.start + 4..record.end]);
    bytes[record.start..record.start + 4].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&newest, &bytes).unwrap();
    let refused = Store::open(&forged, OpenMode::Open, unsynced).unwrap_err();
    assert!(matches!(&refused, Error::Corrupt { detail, .. } if detail.contains("does not give")), "{refused}");
}

/// What a cache of rows keeps of values that have no row is of one length at most; pointers to long
/// values that shrink, behind headers with all there may be, are longer.
#[test]
fn pointers_of_any_length_are_read_by_way_of_the_cache_of_rows() {
    let cached = StoreSettings { row_cache_bytes: Some(16 * 1024), ..settings(CompressionMode::Zstd) };
    let (_directory, store) = common::store(cached);
    let mut model = Model::new();
    until_compression(
        &store,
        |now| now.written_by == Codec::Zstd,
        |number| put(&store, &mut model, key(number), telemetry(number, 300)),
    );
    for number in 0..60_u64 {
        let attributes = Attributes {
            expires_at_ms: (number % 2 == 0).then_some(33_000_000_000_000),
            version: (number % 3 == 0).then_some(number + 1),
            type_tag: NonZeroU8::new((number % 5) as u8),
        };
        let key = format!("long{number:03}").into_bytes();
        let value = telemetry(number, [300, 20_000, 2_000_000][number as usize % 3]);
        let mut batch = Batch::new();
        batch.put_with(&key, &value, &attributes).unwrap();
        store.write(&batch, WriteOptions::default()).unwrap();
        model.insert(key, value);
    }
    store.flush(true).unwrap();
    for _ in 0..3 {
        for (key, value) in &model {
            assert_eq!(store.get(key).unwrap().as_deref(), Some(&value[..]));
        }
    }
}

#[test]
fn a_worker_counts_what_compressed_values_take() {
    let worker = tempfile::tempdir().unwrap();
    let offload = Arc::new(InProcess::new(worker.path()));
    let offloaded = StoreSettings { l0_compaction_trigger: 2, ..settings(CompressionMode::Zstd) };
    let (_directory, store) = common::store_with(offloaded, |builder| builder.offload(offload.clone()));
    let mut model = Model::new();
    for number in 0..8_000_u64 {
        put(&store, &mut model, key(number * 7919 % 2000), telemetry(number, 300));
    }
    assert!(store.value_compression().unwrap().installed_dictionaries > 0);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    assert!(offload.installed.load(Ordering::Relaxed) > 0);
    assert!(offload.refused.lock().unwrap().is_empty(), "{:?}", offload.refused);
    assert_reads(&store, &model);
    assert_counted(&store);
}

/// The bytes that the codec in force for them makes of values do not depend on who else writes, and
/// what several write while dictionaries come and go is what they read.
#[test]
fn writers_and_readers_go_on_while_dictionaries_are_replaced() {
    const KEYS: u64 = 300;
    let (_directory, store) =
        common::shared(StoreSettings { l0_compaction_trigger: 2, ..settings(CompressionMode::Zstd) });
    // A kind of values for a while, then another.
    let value = |writer: u64, round: u64, number: u64| {
        let number = round << 20 | writer << 16 | number;
        if (round / 3).is_multiple_of(2) { telemetry(number, 250) } else { log_line(number) }
    };
    let of_writer = |writer: u64, number: u64| format!("writer{writer}-{number:04}").into_bytes();
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..12 {
                    for number in 0..KEYS {
                        let key = of_writer(writer, number);
                        store.put(&key, &value(writer, round, number)).unwrap();
                        let other = of_writer(writer, (number * 7 + 1) % KEYS);
                        let found = store.get(&other).unwrap().map(|found| found.to_vec());
                        let is_before = |round: u64| found == Some(value(writer, round, (number * 7 + 1) % KEYS));
                        assert!(
                            is_before(round) || (round > 0 && is_before(round - 1)) || (round == 0 && found.is_none())
                        );
                    }
                    store.flush(false).unwrap();
                }
            });
        }
    });
    let now = store.value_compression().unwrap();
    assert!(now.trainings > 1 && now.installed_dictionaries > 1, "{now:?}");
    let model: Model = (0..3)
        .flat_map(|writer| (0..KEYS).map(move |number| (of_writer(writer, number), value(writer, 11, number))))
        .collect();
    assert_reads(&store, &model);
    assert_counted(&store);
}

/// Threads have their contexts in common for all stores of a process; dictionaries are each one's own.
#[test]
fn two_stores_of_one_process_read_what_they_wrote_by_turns() {
    let opened = [(); 2].map(|()| common::store(settings(CompressionMode::Zstd)));
    let mut models = [Model::new(), Model::new()];
    let value = |which: usize, number: u64| if which == 0 { telemetry(number, 300) } else { log_line(number) };
    let mut number = 0;
    for (which, (_, store)) in opened.iter().enumerate() {
        until_compression(
            store,
            |now| now.installed_dictionaries > 0 && now.written_by == Codec::Zstd,
            |_| {
                // The other one is written to as well.
                for (which, (_, store)) in opened.iter().enumerate() {
                    put(store, &mut models[which], key(number % KEYS), value(which, number));
                }
                number += 1;
            },
        );
        assert!(store.value_compression().unwrap().dictionary.is_some(), "store {which}");
    }
    let [one, other] = opened.each_ref().map(|(_, store)| store.value_compression().unwrap().dictionary);
    assert_ne!(one, other);
    for number in 0..500 {
        for (which, (_, store)) in opened.iter().enumerate() {
            put(store, &mut models[which], key(number), value(which, number << 20));
            let found = store.get(&key(number / 2)).unwrap().unwrap();
            assert_eq!(*found, models[which][&key(number / 2)]);
        }
    }
    for ((directory, store), model) in opened.iter().zip(&models) {
        assert_reads(store, model);
        // Nor does a copy need more than what is in it.
        let copy = directory.path().join("copy");
        store.checkpoint(&copy).unwrap();
        let copied = Store::open(&copy, OpenMode::Open, settings(CompressionMode::Auto)).unwrap();
        assert_eq!(format(&copy), "format 3");
        assert_reads(&copied, model);
        copied.close().unwrap();
        assert!(verify(&copy, |_| ()).unwrap().is_sound());
    }
}

/// Whatever it is doing, the thread that trains is ended, and what was written is there.
#[test]
fn a_store_is_closed_during_a_training() {
    let (mut trained, mut untrained) = (0, 0);
    for round in 0..16_u64 {
        let (directory, store) = common::store(settings(CompressionMode::Zstd));
        let mut model = Model::new();
        // Samples are complete after some fifty of these.
        for number in 0..50 + round {
            put(&store, &mut model, key(number), telemetry(round << 20 | number, 300));
        }
        match store.value_compression().unwrap().trainings {
            0 => untrained += 1,
            _ => trained += 1,
        }
        store.close().unwrap();
        let store = Store::open(&directory.path().join("store"), OpenMode::Open, settings(CompressionMode::Zstd));
        assert_equals(&store.unwrap(), &model);
    }
    assert!(untrained > 0, "each was closed after its training: {trained}");
}
