//! Values in the value log: where they go, how long they stay, and what damage does to them.

use crate::common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::appended::written_bytes;
use common::offloads::InProcess;
use common::{Model, assert_equals, contents, fill, until, value_of};
use ecotone_engine::{Direction, Durability, Error, OpenMode, Separation, Store, StoreSettings, WriteOptions};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::FileSystemHooks;

/// Small segments, so that a few thousand values fill many.
fn separated(min_bytes: u32) -> StoreSettings {
    StoreSettings { separation: Some(Separation { min_bytes, segment_bytes: 64 * 1024 }), ..common::small() }
}

fn segments(store: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(store.join("values"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "segment"))
        .collect();
    found.sort();
    found
}

/// The length of a record, as docs/internals/formats.md has it.
fn record_bytes(key: &[u8], value: &[u8]) -> u64 {
    12 + key.len() as u64 + value.len() as u64
}

#[test]
fn long_values_go_to_the_log_and_short_ones_stay_with_their_keys() {
    let (directory, store) = common::store(separated(100));
    store.put(b"short", &[1; 99]).unwrap();
    assert_eq!(store.value_log().unwrap().segments, 0, "nothing is made before it is needed");
    store.put(b"long", &[2; 100]).unwrap();
    let mut batch = ecotone_engine::Batch::new();
    batch.put(b"short too", &[3; 99]).unwrap();
    batch.put(b"long too", &[4; 100]).unwrap();
    batch.delete(b"nothing").unwrap();
    store.write(&batch, WriteOptions::default()).unwrap();
    let expected = 32 + record_bytes(b"long", &[0; 100]) + record_bytes(b"long too", &[0; 100]);
    assert_eq!(store.value_log().unwrap().bytes, expected);
    assert_eq!(written_bytes(&segments(&directory.path().join("store"))[0]), expected);
    for (key, value) in
        [(&b"short"[..], [1; 99].to_vec()), (b"long", [2; 100].to_vec()), (b"long too", [4; 100].to_vec())]
    {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(&value[..]));
    }
}

#[test]
fn a_batch_with_everything_in_it_can_be_written_twice() {
    let (_directory, store) = common::store(separated(10));
    store.put(b"b1", &[9; 50]).unwrap();
    let mut batch = ecotone_engine::Batch::new();
    batch.put(b"a", &[1; 50]).unwrap();
    batch.delete_range(&b"b"[..]..&b"c"[..]).unwrap();
    // Behind a range deletion, where an iteration by the C API would have ended.
    batch.put(b"d", &[2; 50]).unwrap();
    batch.delete(b"a").unwrap();
    batch.put(b"e", &[3; 5]).unwrap();
    for _ in 0..2 {
        store.write(&batch, WriteOptions::default()).unwrap();
        assert_eq!(contents(&store), [(b"d".to_vec(), vec![2; 50]), (b"e".to_vec(), vec![3; 5])]);
    }
}

#[test]
fn referenced_bytes_are_exact_also_after_reopening() {
    let (directory, store) = common::store(separated(50));
    let mut model = Model::new();
    for round in 0..3 {
        fill(&store, &mut model, round, 4_000, 1_000);
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    // One version of each key is left, so the sum over the model is what the tables refer to.
    let live: u64 = model.iter().map(|(key, value)| record_bytes(key, value)).sum();
    until(&store, |log| log.referenced_bytes == live);
    let path = directory.path().join("store");
    store.close().unwrap();
    let store = Store::open(&path, OpenMode::Open, separated(50)).unwrap();
    until(&store, |log| log.referenced_bytes == live);
    assert_equals(&store, &model);
}

#[test]
fn a_segment_goes_when_nothing_names_it_and_not_before() {
    let (directory, store) = common::store(separated(50));
    let (mut old, mut new) = (Model::new(), Model::new());
    fill(&store, &mut old, 1, 2_000, 500);
    let before = store.value_log().unwrap().segments;
    assert!(before > 2);
    let mut scan = store.scan(.., Direction::Forward, None).unwrap();
    let first = scan.next().unwrap().unwrap();

    for key in old.keys() {
        let value = value_of(key, 2, 100);
        store.put(key, &value).unwrap();
        new.insert(key.clone(), value);
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    let live: u64 = new.iter().map(|(key, value)| record_bytes(key, value)).sum();
    until(&store, |log| log.referenced_bytes == live);
    assert_eq!(store.value_log().unwrap().removed_segments, 0, "the scan still follows the old pointers");
    let seen: Model = std::iter::once(first).chain(scan.by_ref().map(Result::unwrap)).collect();
    assert_eq!(seen, old);
    drop(scan);

    // Nothing of the first round is named: all its segments go but the one it shares with the
    // second.
    let log = until(&store, |log| log.removed_segments >= before - 1);
    assert_eq!(segments(&directory.path().join("store")).len() as u64, log.segments);
    assert_equals(&store, &new);
}

#[test]
fn the_last_long_value_gives_its_space_back_without_another_one() {
    let (directory, store) = common::store(separated(50));
    let path = directory.path().join("store");
    store.put(b"long", &[1; 1 << 20]).unwrap();
    store.flush(true).unwrap();
    let of_value = segments(&path);
    assert_eq!(of_value.len(), 1);
    store.delete(b"long").unwrap();
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    let log = until(&store, |log| log.removed_segments == 1);
    assert!(log.bytes < 100, "{log:?}");
    store.close().unwrap();
    // What is left is one without a value, of which openings make no more.
    let left = segments(&path);
    assert!(left.len() == 1 && left[0] > of_value[0], "{left:?}: no number comes twice");
    for _ in 0..2 {
        let store = Store::open(&path, OpenMode::Open, separated(50)).unwrap();
        // Each flush is a reason to look at the segments.
        for _ in 0..20 {
            store.put(b"short", b"").unwrap();
            store.flush(true).unwrap();
        }
        store.close().unwrap();
        assert_eq!(segments(&path), left);
    }
}

#[test]
fn what_only_memtable_and_wal_name_stays() {
    let (directory, store) = common::store(StoreSettings { memtable_bytes: 64 << 20, ..separated(50) });
    let mut model = Model::new();
    fill(&store, &mut model, 1, 3_000, 50);
    // Most values were overwritten inside the memtable: they are in no table ever, but the WAL
    // names them.
    let before = store.value_log().unwrap().segments;
    assert!(before > 3);
    let path = directory.path().join("store");
    drop(store);
    let store = Store::open(&path, OpenMode::Open, separated(50)).unwrap();
    assert_equals(&store, &model);
    // Replay has put the live ones into a table; the others can go.
    until(&store, |log| log.removed_segments > 0);
    assert_equals(&store, &model);
}

#[test]
fn reads_go_on_while_everything_is_overwritten_and_removed() {
    let (_directory, store) = common::shared(StoreSettings { l0_compaction_trigger: 2, ..separated(50) });
    let keys: Vec<_> = (0..200_u64).map(|number| format!("key{number:04}").into_bytes()).collect();
    for key in &keys {
        store.put(key, &value_of(key, 0, 200)).unwrap();
    }
    let round = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (store, keys, round) = (&store, &keys, round.clone());
            scope.spawn(move || {
                while round.load(Ordering::Acquire) < 60 {
                    for key in keys.iter().skip(reader) {
                        let oldest = round.load(Ordering::Acquire);
                        let found = store.get(key).unwrap().unwrap();
                        let newest = round.load(Ordering::Acquire) + 1;
                        assert!((oldest..=newest).any(|number| *found == value_of(key, number, 200)[..]));
                    }
                    let seen = store.scan(.., Direction::Reverse, None).unwrap().map(Result::unwrap).count();
                    assert_eq!(seen, keys.len());
                }
            });
        }
        for number in 1..=60 {
            for key in &keys {
                store.put(key, &value_of(key, number, 200)).unwrap();
            }
            round.store(number, Ordering::Release);
            store.flush(true).unwrap();
        }
    });
    store.compact(..).unwrap();
    until(&store, |log| log.removed_segments > 20);
}

#[test]
fn a_flipped_bit_anywhere_is_an_error_that_names_the_file_or_no_harm_at_all() {
    let (directory, store) = common::store(separated(10));
    let path = directory.path().join("store");
    let mut model = Model::new();
    for number in 0..20_u64 {
        let key = format!("key{number}").into_bytes();
        let value = value_of(&key, number, 40);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    store.flush(true).unwrap();
    store.close().unwrap();
    let file = segments(&path)[0].clone();
    let good = fs::read(&file).unwrap();
    for byte in (0..good.len()).step_by(3) {
        let mut bad = good.clone();
        bad[byte] ^= 1 << (byte % 8);
        fs::write(&file, &bad).unwrap();
        let store = Store::open(&path, OpenMode::ReadOnly, separated(10)).unwrap();
        let mut damaged = 0;
        for (key, value) in &model {
            match store.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
                Err(Error::Corrupt { location: Some(location), .. }) => {
                    assert!(location.contains("000001.segment at offset"), "{location}");
                    damaged += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(damaged == 1 || (byte < 32 && damaged == model.len()), "byte {byte}: {damaged} values");
    }
}

#[test]
fn a_lost_segment_is_an_error_and_no_wrong_answer() {
    let (directory, store) = common::store(separated(10));
    let path = directory.path().join("store");
    store.put(b"key", &[7; 50]).unwrap();
    store.flush(true).unwrap();
    store.put(b"after", &[7; 50]).unwrap();
    store.close().unwrap();
    // The WAL names a value in it that was synced: to go on would be to forget it.
    let segment = segments(&path)[0].clone();
    let elsewhere = directory.path().join("segment");
    let is_wal = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let wal = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).find(is_wal).unwrap();
    fs::rename(&segment, &elsewhere).unwrap();
    for mode in [OpenMode::ReadOnly, OpenMode::Open, OpenMode::Open] {
        let refused = Store::open(&path, mode, separated(10)).unwrap_err();
        // Behind the header and the record of "key": by docs/internals/formats.md.
        let place = format!("{} at offset {}", segment.display(), 32 + 12 + 3 + 50);
        let Error::Corrupt { location: Some(location), detail } = &refused else { panic!("{refused:?}") };
        assert_eq!(*location, place);
        let wal = wal.display().to_string();
        assert!(detail.contains(&wal) && detail.contains("write 2"), "{detail}");
    }
    // The refusals have changed nothing.
    fs::rename(&elsewhere, &segment).unwrap();
    let store = Store::open(&path, OpenMode::Open, separated(10)).unwrap();
    assert_eq!(store.get(b"after").unwrap().as_deref(), Some(&[7; 50][..]));
}

#[test]
fn an_opening_that_is_refused_says_nothing_of_the_segments_of_another() {
    let (directory, store) = common::store(StoreSettings { durability: Durability::None, ..separated(10) });
    let path = directory.path().join("store");
    store.put(b"key", &[7; 50]).unwrap();
    let refused = Store::open(&path, OpenMode::Open, separated(10)).unwrap_err();
    assert!(matches!(refused, Error::Locked { .. }), "{refused}");
    assert!(!path.join("values/WATERMARK").exists(), "it would tell of a segment that is still appended to");
}

#[test]
fn a_checkpoint_has_its_values_and_is_a_store_of_its_own() {
    let (directory, store) = common::store(separated(50));
    let mut model = Model::new();
    fill(&store, &mut model, 1, 2_000, 500);
    let copy = directory.path().join("copy");
    store.checkpoint(&copy).unwrap();
    let at_copy = model.clone();
    fill(&store, &mut model, 2, 4_000, 500);
    store.compact(..).unwrap();
    until(&store, |log| log.removed_segments > 0);
    let copied = Store::open(&copy, OpenMode::Open, separated(50)).unwrap();
    assert_equals(&copied, &at_copy);
    // Neither writes into a segment of the other.
    let mut copied_model = at_copy;
    fill(&copied, &mut copied_model, 3, 2_000, 500);
    assert_equals(&copied, &copied_model);
    assert_equals(&store, &model);
}

#[test]
fn checkpoints_taken_while_writers_write_are_whole() {
    let (directory, store) = common::shared(separated(50));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (writing, stop) = (&store, &stop);
        scope.spawn(move || {
            for number in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let key = format!("key{:03}", number % 100).into_bytes();
                writing.put(&key, &value_of(&key, number, 300)).unwrap();
            }
        });
        for round in 0..8 {
            let copy = directory.path().join(format!("copy{round}"));
            store.checkpoint(&copy).unwrap();
            let copied = Store::open(&copy, OpenMode::Open, separated(50)).unwrap();
            // Reading checks every record that is named.
            contents(&copied);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn separation_can_be_turned_on_and_off_and_its_threshold_changed() {
    let (directory, store) = common::store(common::small());
    let path = directory.path().join("store");
    let mut model = Model::new();
    fill(&store, &mut model, 0, 2_000, 500);
    store.close().unwrap();
    let format = |path: &Path| fs::read_to_string(path.join("STORE")).unwrap().lines().nth(1).unwrap().to_owned();
    assert_eq!(format(&path), "format 1");
    let settings = [Some(50), None, Some(100), Some(1), None, Some(100_000)];
    for (round, min_bytes) in settings.into_iter().enumerate() {
        let options = min_bytes.map_or_else(common::small, separated);
        let store = Store::open(&path, OpenMode::Open, options).unwrap();
        assert_equals(&store, &model);
        fill(&store, &mut model, 1 + round as u64, 2_000, 500);
        assert_equals(&store, &model);
        if round == 0 {
            // Tables from before count as what they are, plain: they hinder no removal.
            store.compact(&b"key00000000"[..]..&b"key00000001"[..]).unwrap();
            fill(&store, &mut model, 9, 4_000, 500);
            store.flush(true).unwrap();
            store.compact(&b"key00000000"[..]..).unwrap();
            until(&store, |log| log.removed_segments > 0);
        }
        store.close().unwrap();
        assert_eq!(format(&path), "format 2");
    }
}

#[test]
fn compactions_of_keys_run_on_a_worker_and_move_no_values() {
    let worker = tempfile::tempdir().unwrap();
    let offload = Arc::new(InProcess::new(worker.path()));
    let settings = StoreSettings { l0_compaction_trigger: 2, ..separated(500) };
    let (_directory, store) = common::store_with(settings, |builder| builder.offload(offload.clone()));
    let mut model = Model::new();
    for number in 0..6_000_u64 {
        let key = format!("key{:08}", number * 7919 % 2000).into_bytes();
        let value = value_of(&key, number, 1000);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    assert_equals(&store, &model);
    assert!(offload.installed.load(Ordering::Relaxed) > 0);
    assert!(offload.refused.lock().unwrap().is_empty(), "{:?}", offload.refused);
    let moved: u64 = offload.seen.lock().unwrap().iter().map(|job| job.input_bytes).sum();
    assert!(moved * 10 < 6_000 * 1_000, "{moved} bytes");
    // The worker's tables say what they refer to, so segments go.
    let live: u64 = model.iter().map(|(key, value)| record_bytes(key, value)).sum();
    until(&store, |log| log.referenced_bytes == live && log.removed_segments > 0);
    assert_equals(&store, &model);
}

/// At the moment a flush makes its table, everything in the segments is durable.
struct SegmentsFirst {
    values: PathBuf,
    flushes: AtomicU64,
}

impl WriteTap for SegmentsFirst {
    fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
        let TapEvent::Created { path } = event else { return Ok(()) };
        if path.extension().is_none_or(|extension| extension != "sst") {
            return Ok(());
        }
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let newest = fs::read_dir(&self.values)?
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "segment"))
            .max()
            .unwrap();
        // The slots of docs/internals/formats.md; the greater count holds.
        let watermark = fs::File::open(self.values.join("WATERMARK"))?;
        let slot = |at: u64| {
            let mut slot = [0_u8; 28];
            let _ = watermark.read_exact_at(&mut slot, at);
            (u64::from_le_bytes(slot[..8].try_into().unwrap()), u64::from_le_bytes(slot[16..24].try_into().unwrap()))
        };
        let (_, durable) = slot(0).max(slot(512));
        assert_eq!(durable, written_bytes(&newest));
        Ok(())
    }
}

#[test]
fn values_are_durable_before_a_table_names_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let tap = Arc::new(SegmentsFirst { values: path.join("values"), flushes: AtomicU64::new(0) });
    let options = StoreSettings {
        durability: Durability::None,
        l0_compaction_trigger: 1 << 10,
        l0_slowdown_trigger: 1 << 11,
        l0_stop_trigger: 1 << 12,
        ..separated(50)
    };
    let hooks = FileSystemHooks { tap: Some(tap.clone()), ..FileSystemHooks::default() };
    let store = Store::builder(&path).mode(OpenMode::Create).settings(options).hooks(hooks).open().unwrap();
    for number in 0..20_u64 {
        store.put(&number.to_le_bytes(), &[1; 5_000]).unwrap();
        store.flush(true).unwrap();
    }
    assert_eq!(tap.flushes.load(Ordering::Relaxed), 20);
}
