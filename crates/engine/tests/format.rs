//! Stores written by earlier versions open for ever.
//!
//! `fixtures/format-1` and `fixtures/format-2` were written by the tests below, each with the version that introduced the format.
//! They are never written again: a change that cannot read it is a change of the format, and needs a new fixture beside it.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Model, assert_equals};
use ecotone_engine::{
    Attributes, Compression, DEFAULT_SEPARATION_BYTES, Durability, OpenMode, Separation, Store, StoreOptions,
    WriteOptions, verify,
};
use ecotone_policy::relocation::RelocationParameters;
use ecotone_policy::units::Bytes;

fn fixture(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{format}"))
}

/// What the fixture holds: tables of two levels and all three compressions, entries that are only in the WAL, values of
/// every header, deletions of keys and of ranges.
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
        let options = StoreOptions { compression, durability: Durability::Always, ..common::small() };
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
            let mut batch = store.batch();
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

fn copy_of_fixture(format: u32) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_files(&fixture(format), copy.path());
    if format > 1 {
        fs::create_dir(copy.path().join("values")).unwrap();
        copy_files(&fixture(format).join("values"), &copy.path().join("values"));
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
    let copy = copy_of_fixture(1);
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
fn a_store_of_format_1_keeps_new_values_apart_and_the_old_ones_where_they_are() {
    let copy = copy_of_fixture(1);
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
    assert_eq!(in_segments(&store), written);
    assert_eq!(format(), "format 2");
}

#[test]
fn the_fixture_is_small_and_whole() {
    let bytes: u64 = fs::read_dir(fixture(1)).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 256 * 1024, "{bytes} bytes");
    assert_eq!(fs::read_to_string(fixture(1).join("STORE")).unwrap(), "ecotone store\nformat 1\n");
}

fn separated() -> StoreOptions {
    StoreOptions {
        durability: Durability::Always,
        compression: Compression::Lz4,
        separation: Some(Separation { min_bytes: 15, segment_bytes: 4096 }),
        relocation: RelocationParameters {
            begin_ratio: 1.1,
            end_ratio: 1.05,
            min_garbage_bytes: Bytes(1024),
            ..RelocationParameters::default()
        },
        ..common::small()
    }
}

/// What the fixture of format 2 holds: inline and separated values of every header, in several segments, some of them relocated,
/// some named by the WAL only.
fn expected_2() -> Model {
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
    let mut batch = store.batch();
    batch.put_with(b"both", b"an expiry and a version", &BOTH).unwrap();
    store.write(&batch, WriteOptions::default()).unwrap();
    store.flush(true).unwrap();
    store.put(b"only in the WAL", b"never flushed, and long enough").unwrap();
    store.close().unwrap();
    remove_logs(directory);
}

#[test]
fn a_store_of_format_2_opens_and_works() {
    let copy = copy_of_fixture(2);
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
