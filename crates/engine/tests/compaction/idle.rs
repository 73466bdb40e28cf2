//! What a store does about its garbage while nobody writes, and for who asks for it. Space is what
//! files take on disk.

use crate::common;

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ecotone_engine::{Attributes, CompactionStage, OpenMode, Separation, Store, StoreSettings, WriteOptions};

const MIB: u64 = 1 << 20;

/// What an idle store may take besides.
const LEFT_ALONE: u64 = 32 * MIB;

/// How long anything may take on a busy machine. What is promised is 30 s on one that is not.
const PATIENCE: Duration = Duration::from_secs(120);

const VALUE_BYTES: usize = 1000;
const KEYS: u32 = 60_000;

fn idle() -> StoreSettings {
    StoreSettings {
        reclaim_idle: true,
        memtable_bytes: 16 * MIB,
        target_file_bytes: 8 * MIB,
        ..StoreSettings::default()
    }
}

fn apart() -> StoreSettings {
    StoreSettings { separation: Some(Separation::from_bytes(128)), ..idle() }
}

/// Keys stand in no order, as a keyspace's do.
fn key(number: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Does not compress.
fn value(number: u32) -> Vec<u8> {
    let mut state = u64::from(number) + 1;
    let byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(byte).take(VALUE_BYTES).collect()
}

fn put(store: &Store, keys: Range<u32>) {
    keys.for_each(|number| store.put(&key(number), &value(number)).unwrap());
}

/// What all files below `directory` take of the device.
fn taken(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        // Removed meanwhile: the rest counts.
        let Ok(found) = entry.metadata() else { continue };
        bytes += if found.is_dir() { taken(&entry.path()) } else { found.blocks() * 512 };
    }
    bytes
}

/// Waits until the store takes no more than it may where so many keys live.
fn shrinks_to(directory: &Path, keys: u32, what: &str) {
    let lives = u64::from(keys) * VALUE_BYTES as u64;
    let most = (lives * 3 / 2).max(LEFT_ALONE);
    let began = Instant::now();
    loop {
        let now = taken(directory);
        if now <= most {
            eprintln!(
                "{what}: {} MiB for {} that live after {:.1} s",
                now / MIB,
                lives / MIB,
                began.elapsed().as_secs_f64()
            );
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {now} bytes where {lives} live");
        std::thread::yield_now();
    }
}

fn holds(store: &Store, keys: Range<u32>) {
    for number in 0..KEYS {
        let found = store.get(&key(number)).unwrap();
        let expected = keys.contains(&number).then(|| value(number));
        assert_eq!(found.as_deref(), expected.as_deref(), "{number}");
    }
}

#[test]
fn what_was_deleted_is_freed_while_nobody_writes() {
    for (options, layout) in [(idle(), "beside keys"), (apart(), "apart")] {
        let (directory, store) = common::store(options);
        put(&store, 0..KEYS);
        assert!(taken(directory.path()) > 50 * MIB);
        (KEYS / 10..KEYS).for_each(|number| store.delete(&key(number)).unwrap());
        shrinks_to(directory.path(), KEYS / 10, &format!("deleted, {layout}"));
        holds(&store, 0..KEYS / 10);
    }
}

#[test]
fn so_is_what_was_removed_as_a_range_also_before_a_restart() {
    for (options, layout) in [(idle(), "beside keys"), (apart(), "apart")] {
        let (directory, store) = common::store(options.clone());
        put(&store, 0..KEYS);
        store.flush(true).unwrap();
        store.delete_range(..).unwrap();
        // Nobody frees anything here.
        store.close().unwrap();
        assert!(taken(directory.path()) > 50 * MIB, "{layout}");
        let store = Store::open(&directory.path().join("store"), OpenMode::Open, options).unwrap();
        shrinks_to(directory.path(), 0, &format!("removed, {layout}"));
        holds(&store, 0..0);
    }
}

#[test]
fn so_is_what_was_overwritten_and_what_has_expired() {
    for (options, layout) in [(idle(), "beside keys"), (apart(), "apart")] {
        let (directory, store) = common::store(StoreSettings { reclaim_expired: true, ..options });
        put(&store, 0..KEYS);
        put(&store, 0..KEYS);
        shrinks_to(directory.path(), KEYS, &format!("overwritten, {layout}"));
        // Once it has moved to the last level nothing compacts it.
        store.compact(..).unwrap();
        let expires_at_ms = Some(1);
        let mut batch = ecotone_engine::Batch::new();
        for number in KEYS / 10..KEYS {
            batch.put_with(&key(number), &value(number), &Attributes { expires_at_ms, ..Attributes::NONE }).unwrap();
        }
        store.write(&batch, WriteOptions::default()).unwrap();
        shrinks_to(directory.path(), KEYS / 10, &format!("expired, {layout}"));
        for number in 0..KEYS / 10 {
            assert_eq!(store.get(&key(number)).unwrap().as_deref(), Some(&value(number)[..]), "{number}");
        }
    }
}

/// The library frees garbage late unless it is asked to, and all of it for who asks.
#[test]
fn a_compaction_of_everything_frees_it_and_tells_how_far_it_is() {
    for (options, layout) in [(StoreSettings::default(), "beside keys"), (StoreSettings::separated(128), "apart")] {
        let options = StoreSettings { memtable_bytes: MIB, target_file_bytes: 4 * MIB, ..options };
        let (directory, store) = common::store(options);
        put(&store, 0..KEYS);
        store.flush(true).unwrap();
        (KEYS / 3..KEYS).for_each(|number| store.delete(&key(number)).unwrap());
        let mut stages = Vec::new();
        let ended = store.compact_all(&mut |progress| {
            stages.push(progress.stage);
            progress.stage != CompactionStage::Tables
        });
        assert_eq!(ended.unwrap().stage, CompactionStage::Ended);
        assert_eq!(stages, [CompactionStage::Memtables, CompactionStage::Tables]);
        holds(&store, 0..KEYS / 3);
        let mut done = (0, 0);
        let progress = store
            .compact_all(&mut |progress| {
                assert!(progress.pieces_done >= done.0 && progress.pieces_done <= progress.pieces);
                done = (progress.pieces_done, progress.pieces);
                true
            })
            .unwrap();
        let lives = u64::from(KEYS / 3) * VALUE_BYTES as u64;
        assert_eq!((progress.stage, progress.pieces_done), (CompactionStage::Done, progress.pieces));
        assert!(progress.bytes < lives * 5 / 4, "{progress:?}, {layout}");
        assert!(taken(directory.path()) < lives * 5 / 4 + 8 * MIB, "{} for {lives}, {layout}", taken(directory.path()));
        holds(&store, 0..KEYS / 3);
    }
}
