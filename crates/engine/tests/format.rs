//! Stores written by earlier versions open for ever.
//!
//! `fixtures/format-1` was written by [`write_fixture`] below, with the version that introduced format 1. It is never written
//! again: a change that cannot read it is a change of the format, and needs a new fixture beside it.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Model, assert_equals};
use ecotone_engine::{Attributes, Compression, Durability, OpenMode, Store, StoreOptions, WriteOptions};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1")
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

const BOTH: Attributes = Attributes { expires_at_ms: Some(1_900_000_000_000), version: Some(7) };

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
    // RocksDB's own logs and the lock are no part of a store.
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("LOG") || name == "LOCK" {
            fs::remove_file(path).unwrap();
        }
    }
}

fn copy_of_fixture() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

#[test]
fn a_store_of_format_1_opens_and_works() {
    let copy = copy_of_fixture();
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
fn the_fixture_is_small_and_whole() {
    let bytes: u64 = fs::read_dir(fixture()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 256 * 1024, "{bytes} bytes");
    assert_eq!(fs::read_to_string(fixture().join("STORE")).unwrap(), "ecotone store\nformat 1\n");
}
