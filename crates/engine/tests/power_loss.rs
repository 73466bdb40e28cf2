//! What a loss of power leaves: all that was synced, and of the rest any part, in any order, of any file.
//!
//! A store is copied while nobody writes, and in the copy bytes behind the last sync are cut off, zeroed or both, in WAL and
//! segments independently, as a kernel that writes back as it likes would leave them. The copy must open, hold every write
//! from before the sync, and of those after it a prefix.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::value_of;
use ecotone_engine::{Direction, Durability, OpenMode, Separation, Store, StoreOptions};
use ecotone_rocks_sys::filesystem::{FileSystemHooks, TapEvent, WriteTap};
use proptest::prelude::*;

fn options(segment_bytes: u64) -> StoreOptions {
    StoreOptions {
        durability: Durability::None,
        separation: Some(Separation { min_bytes: 100, segment_bytes }),
        memtable_bytes: 16 << 20,
        ..common::small()
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Inline and separated values in turn.
fn value(number: u64) -> Vec<u8> {
    value_of(&key(number), number, if number.is_multiple_of(3) { 20 } else { 300 })
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("values")).unwrap();
    for directory in ["", "values"] {
        for file in files(&from.join(directory)) {
            if file.file_name().unwrap() != "LOCK" {
                fs::copy(&file, to.join(directory).join(file.file_name().unwrap())).unwrap();
            }
        }
    }
}

fn lengths(store: &Path) -> Vec<(PathBuf, u64)> {
    let wals = files(store).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let segments = files(&store.join("values"));
    let segments = segments.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "segment"));
    wals.chain(segments).map(|path| (path.clone(), fs::metadata(path).unwrap().len())).collect()
}

/// What is durable right after a sync: the WAL as it is, and of the segments what the watermark says, so that a sync which
/// forgot one is found out.
fn durable_lengths(store: &Path) -> Vec<(PathBuf, u64)> {
    let watermark = fs::read(store.join("values/WATERMARK")).unwrap_or_default();
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    // The slots of docs/formats.md: count, segment, nothing, offset, checksum.
    let slot = |at: usize| {
        watermark
            .get(at..at + 28)
            .map_or((0, 0, 0), |slot| (number(&slot[..8]), number(&slot[8..12]), number(&slot[16..24])))
    };
    let (_, segment, offset) = slot(0).max(slot(512));
    let durable = |(path, bytes): (PathBuf, u64)| {
        let stem: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let is_segment = path.extension().is_some_and(|extension| extension == "segment");
        let bytes = match stem.cmp(&segment) {
            _ if !is_segment => bytes,
            std::cmp::Ordering::Less => bytes,
            std::cmp::Ordering::Equal => offset,
            std::cmp::Ordering::Greater => 0,
        };
        (path, bytes)
    };
    lengths(store).into_iter().map(durable).collect()
}

/// What becomes of the unsynced bytes of one file: kept up to a share, and of those a part zeroed.
#[derive(Debug, Clone)]
struct Loss {
    kept: f64,
    hole: Option<(f64, f64)>,
}

fn loss() -> impl Strategy<Value = Loss> {
    let share = || prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    (share(), proptest::option::of((share(), 0.0..0.5))).prop_map(|(kept, hole)| Loss { kept, hole })
}

fn lose(file: &Path, synced: u64, loss: &Loss) {
    let mut bytes = fs::read(file).unwrap();
    let unsynced = bytes.len() as u64 - synced;
    bytes.truncate((synced + (unsynced as f64 * loss.kept) as u64) as usize);
    if let Some((from, length)) = loss.hole {
        let rest = (bytes.len() as u64 - synced) as f64;
        let from = synced + (rest * from) as u64;
        let to = (from + (rest * length) as u64).min(bytes.len() as u64);
        bytes[from as usize..to as usize].fill(0);
    }
    fs::write(file, bytes).unwrap();
}

/// A disk that is full for tables.
struct NoTables;

impl WriteTap for NoTables {
    fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
        match event {
            TapEvent::Created { path } if path.extension().is_some_and(|extension| extension == "sst") => {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn what_was_synced_is_there_and_of_the_rest_a_prefix(
        synced in 1..120_u64,
        more in 0..120_u64,
        flushed in any::<bool>(),
        interrupted in any::<bool>(),
        segment_bytes in prop_oneof![Just(4096_u64), Just(1 << 20)],
        losses in proptest::collection::vec(loss(), 64),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let store = Store::open(&path, OpenMode::Create, options(segment_bytes)).unwrap();
        for number in 0..synced {
            store.put(&key(number), &value(number)).unwrap();
            if flushed && number == synced / 2 {
                store.flush(true).unwrap();
            }
        }
        store.sync().unwrap();
        let durable = durable_lengths(&path);
        for number in synced..synced + more {
            store.put(&key(number), &value(number)).unwrap();
        }
        let lost = directory.path().join("lost");
        copy(&path, &lost);
        store.close().unwrap();

        for (number, (file, _)) in lengths(&lost).iter().enumerate() {
            // A file made after the sync had its name synced with it or is gone; here its bytes are at the kernel's mercy.
            let name = file.strip_prefix(&lost).unwrap();
            let synced = durable.iter().find(|(known, _)| known.strip_prefix(&path).unwrap() == name);
            lose(file, synced.map_or(0, |(_, bytes)| *bytes), &losses[number % losses.len()]);
        }
        if interrupted {
            // A first recovery that ends before it has written anything down must not make the second one trust more.
            let hooks = FileSystemHooks { tap: Some(Arc::new(NoTables)), ..FileSystemHooks::default() };
            drop(Store::open(&lost, OpenMode::Open, StoreOptions { hooks: Some(hooks), ..options(segment_bytes) }));
        }
        let store = Store::open(&lost, OpenMode::Open, options(segment_bytes)).unwrap();
        let found: Vec<_> = store.scan(.., Direction::Forward, None).unwrap().map(Result::unwrap).collect();
        prop_assert!(found.len() as u64 >= synced, "{} of {} synced writes are there", found.len(), synced);
        for (number, (found_key, found_value)) in found.iter().enumerate() {
            prop_assert_eq!(found_key, &key(number as u64));
            prop_assert_eq!(found_value, &value(number as u64));
        }
        // It goes on, and what it goes on with is as good as any.
        for number in found.len() as u64..300 {
            store.put(&key(number), &value(number)).unwrap();
        }
        store.flush(true).unwrap();
        store.close().unwrap();
        let store = Store::open(&lost, OpenMode::Open, options(segment_bytes)).unwrap();
        prop_assert_eq!(store.scan(.., Direction::Forward, None).unwrap().map(Result::unwrap).count(), 300);
    }
}

/// A sync by one writer covers what others wrote before it without one: else replay would stop before the first.
#[test]
fn one_writer_that_syncs_vouches_for_those_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path, OpenMode::Create, options(1 << 20)).unwrap();
    store.put(&key(1), &value(1)).unwrap();
    // Inline: itself it has nothing in the value log.
    store.put_opt(&key(0), &value(0), ecotone_engine::WriteOptions::durable(Durability::Always)).unwrap();
    let durable = durable_lengths(&path);
    store.put(&key(2), &value(2)).unwrap();
    let lost = directory.path().join("lost");
    copy(&path, &lost);
    store.close().unwrap();
    for (file, _) in lengths(&lost) {
        let name = file.strip_prefix(&lost).unwrap();
        let (_, bytes) = durable.iter().find(|(known, _)| known.strip_prefix(&path).unwrap() == name).unwrap();
        // The kernel has written back all of the WAL, and of the segments nothing that was not synced.
        if file.extension().is_some_and(|extension| extension == "segment") {
            lose(&file, *bytes, &Loss { kept: 0.0, hole: None });
        }
    }
    let store = Store::open(&lost, OpenMode::Open, options(1 << 20)).unwrap();
    let found: Vec<_> = store.scan(.., Direction::Forward, None).unwrap().map(|entry| entry.unwrap().0).collect();
    assert_eq!(found, [key(0), key(1)]);
}
