//! Garbage collection: what is mostly garbage goes, what lives stays, whatever happens meanwhile.

use crate::common;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::offloads::InProcess;
use common::{Model, assert_equals, fill, halve, numbered, until, value_of};
use ecotone_engine::{
    Direction, Duty, DutyObserver, OpenMode, RemoteJob, Separation, Store, StoreSettings, ValueLogProperties,
    WriteOptions,
};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_policy::gc::GcParameters;
use ecotone_rocks::filesystem::FileSystemHooks;
use ecotone_types::JobPurpose;
use ecotone_types::units::{Bytes, Seconds};

/// Garbage collection that begins early, over small segments and tables.
fn relocating() -> StoreSettings {
    StoreSettings {
        separation: Some(Separation { min_bytes: 50, segment_bytes: 64 * 1024 }),
        gc: GcParameters {
            begin_ratio: 1.2,
            end_ratio: 1.1,
            min_garbage_bytes: Bytes(64 * 1024),
            ..GcParameters::default()
        },
        ..common::small()
    }
}

fn record_bytes((key, value): (&Vec<u8>, &Vec<u8>)) -> u64 {
    12 + key.len() as u64 + value.len() as u64
}

#[test]
fn space_stays_near_what_lives_while_everything_is_overwritten() {
    let (directory, store) = common::store(relocating());
    let mut model = Model::new();
    for round in 0..20 {
        fill(&store, &mut model, round, 4_000, 2_000);
    }
    store.flush(true).unwrap();
    // What is overwritten and not yet met by a compaction still counts as named.
    store.compact(..).unwrap();
    let live: u64 = model.iter().map(record_bytes).sum();
    let log = until(&store, |log| (log.bytes as f64) < 1.7 * live as f64);
    assert!(log.relocated_bytes > 0 && log.removed_segments > 0, "{log:?}");
    assert_equals(&store, &model);
    store.close().unwrap();
    let store = Store::open(&directory.path().join("store"), OpenMode::Open, relocating()).unwrap();
    assert_equals(&store, &model);
}

/// What is written flat out, faster than garbage collection could follow, is held to the size at
/// which writers are slowed down.
#[test]
fn a_store_that_is_overwritten_flat_out_does_not_outgrow_what_lives() {
    let options = StoreSettings { l0_compaction_trigger: 2, ..StoreSettings::separated(50) };
    let (_directory, store) = common::store(options);
    let (keys, value) = (64 * 1024_u64, vec![7; 1024]);
    let mut max_bytes = 0;
    for write in 0..16 * keys {
        // Every key once in each round, in an order that has nothing to do with theirs.
        let key = (write % keys).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        store.put(&key.to_be_bytes(), &value).unwrap();
        if write % 1024 == 0 {
            max_bytes = max_bytes.max(store.value_log().unwrap().bytes);
        }
    }
    let live = keys * (12 + 8 + 1024);
    // Twice what it comes to on idle cores: where others take them, garbage collection falls behind
    // writers that are slowed down to a tenth.
    assert!(max_bytes < 10 * live, "{} MiB for {} MiB that live", max_bytes >> 20, live >> 20);
}

#[test]
fn cold_tables_are_compacted_forcibly() {
    let (_directory, store) = common::store(relocating());
    let mut model = numbered(&store, 4_000);
    store.compact(..).unwrap();
    // Every second one is deleted; the rest lies in tables that nothing else would touch again.
    halve(&store, &mut model);
    store.compact(..).unwrap();
    let live: u64 = model.iter().map(record_bytes).sum();
    // Half of it is garbage. On purpose until `forced_ratio` at the least; the segment that is
    // written comes in addition.
    let log = until(&store, |log| (log.bytes as f64) < 1.36 * live as f64);
    assert!(log.relocated_bytes > live / 2, "{log:?}");
    assert_equals(&store, &model);
}

/// The segments that were made, in their order.
#[derive(Default)]
struct Made(Mutex<Vec<PathBuf>>);

impl WriteTap for Made {
    fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
        match event {
            TapEvent::Created { path } if path.extension().is_some_and(|extension| extension == "segment") => {
                self.0.lock().unwrap().push(path.to_path_buf());
            }
            _ => (),
        }
        Ok(())
    }
}

/// Segments of relocated values that are not full are no exception.
#[test]
fn a_store_whose_keys_are_all_gone_keeps_the_segment_that_is_written_and_the_last_one() {
    let made = Arc::<Made>::default();
    let hooks = FileSystemHooks { tap: Some(made.clone()), ..FileSystemHooks::default() };
    let (directory, store) = common::store_with(relocating(), |builder| builder.hooks(hooks.clone()));
    let mut model = numbered(&store, 4_000);
    halve(&store, &mut model);
    store.compact(..).unwrap();
    let live: u64 = model.iter().map(record_bytes).sum();
    until(&store, |log| log.relocated_bytes > live / 2 && log.gc_segments == 0);
    for key in model.keys() {
        store.delete(key).unwrap();
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    until(&store, |log| log.segments <= 2);
    let before = made.0.lock().unwrap().len();
    // One of them is that of a process before now, and goes as well.
    store.close().unwrap();
    let builder = Store::builder(&directory.path().join("store")).mode(OpenMode::Open).settings(relocating());
    let store = builder.hooks(hooks).open().unwrap();
    until(&store, |log| log.segments == 1);
    // Numbers go on behind all that there ever were.
    numbered(&store, 1_000);
    let made = made.0.lock().unwrap();
    assert!(before > 4 && made.len() > before && made.is_sorted_by(|one, next| one < next), "{made:?}");
}

#[test]
fn what_shadows_is_met_when_nothing_is_written_any_more_though_a_candidate_set_waits() {
    let options =
        StoreSettings { gc: GcParameters { forced_ratio: 1.9, urgent_ratio: 2.5, ..relocating().gc }, ..relocating() };
    let (_directory, store) = common::store(options);
    let mut model = Model::new();
    let mut write = |keys: std::ops::Range<u64>, round: u64| {
        for number in keys {
            let key = format!("key{number:06}").into_bytes();
            let value = value_of(&key, round, 100);
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        store.flush(true).unwrap();
        model.iter().map(record_bytes).sum::<u64>()
    };
    write(0..2_000, 0);
    store.compact(..).unwrap();
    // A third of all bytes is garbage, and is known to be: that waits for compactions.
    write(0..1_000, 1);
    store.compact(..).unwrap();
    // As much again shadows above the last level.
    let live = write(1_000..2_000, 2);
    until(&store, |log| log.bytes < live * 13 / 10);
    assert_equals(&store, &model);
}

/// A store that is left alone behind the removal of a large collection does not keep it, and keeps
/// what was not removed.
#[test]
fn a_removed_range_is_met_when_nothing_is_written_any_more() {
    let (_directory, store) = common::store(relocating());
    let mut model = numbered(&store, 4_000);
    store.compact(..).unwrap();
    let before = store.value_log().unwrap();
    // Not worth it by itself.
    store.delete_range(&b"key003900"[..]..&b"key003902"[..]).unwrap();
    model.retain(|key, _| !(&b"key003900"[..]..&b"key003902"[..]).contains(&&key[..]));
    let mut batch = ecotone_engine::Batch::new();
    // In pieces that do not follow one another.
    for piece in [0, 3, 1, 2] {
        let key = |number: u64| format!("key{number:06}").into_bytes();
        let (from, to) = (key(500 + piece * 700), key(1200 + piece * 700));
        batch.delete_range(&from[..]..&to[..]).unwrap();
        model.retain(|key, _| *key < from || *key >= to);
    }
    store.write(&batch, WriteOptions::default()).unwrap();
    let live: u64 = model.iter().map(record_bytes).sum();
    let log = until(&store, |log| (log.bytes as f64) < 1.36 * live as f64);
    assert!(log.bytes < before.bytes / 2, "{before:?} {log:?}");
    assert_equals(&store, &model);
}

#[test]
fn readers_see_every_value_while_it_moves() {
    let (_directory, store) = common::shared(StoreSettings { l0_compaction_trigger: 2, ..relocating() });
    let keys: Vec<_> = (0..500_u64).map(|number| format!("key{number:04}").into_bytes()).collect();
    let still: Vec<_> = (0..500_u64).map(|number| format!("still{number:04}").into_bytes()).collect();
    for key in keys.iter().chain(&still) {
        store.put(key, &value_of(key, 0, 200)).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reverse in [false, true] {
            let (store, still, done) = (&store, &still, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    for key in still {
                        assert_eq!(store.get(key).unwrap().as_deref(), Some(&value_of(key, 0, 200)[..]));
                    }
                    let direction = if reverse { Direction::Reverse } else { Direction::Forward };
                    let snapshot = store.snapshot();
                    let seen = snapshot.scan(&b"still"[..].., direction).unwrap().map(Result::unwrap);
                    assert!(
                        seen.inspect(|(key, value)| assert_eq!(*value, value_of(key, 0, 200))).count() == still.len()
                    );
                }
            });
        }
        for number in 1..=60 {
            for key in &keys {
                store.put(key, &value_of(key, number, 200)).unwrap();
            }
            store.flush(true).unwrap();
        }
        until(&store, |log| log.relocated_bytes > 0 && log.removed_segments > 20);
        done.store(true, Ordering::Release);
    });
}

#[derive(Default)]
struct Duties {
    relocations: AtomicU64,
}

impl DutyObserver for Duties {
    fn begin(&self, duty: Duty) {
        if duty == Duty::Gc {
            self.relocations.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end(&self) {}
}

#[test]
fn compactions_forcibly_stay_here_are_told_of_and_have_a_duty_of_their_own() {
    let worker = tempfile::tempdir().unwrap();
    let offload = Arc::new(InProcess::new(worker.path()));
    let duties = Arc::new(Duties::default());
    let settings = StoreSettings { l0_compaction_trigger: 2, background_compactions: 4, ..relocating() };
    let (_directory, store) =
        common::store_with(settings, |builder| builder.offload(offload.clone()).duties(duties.clone()));
    let mut model = Model::new();
    for round in 0..12 {
        fill(&store, &mut model, round, 4_000, 2_000);
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    let live: u64 = model.iter().map(record_bytes).sum();
    until(&store, |log| (log.bytes as f64) < 1.7 * live as f64);
    assert!(offload.installed.load(Ordering::Relaxed) > 0);
    assert!(offload.refused.lock().unwrap().is_empty(), "{:?}", offload.refused);
    assert!(duties.relocations.load(Ordering::Relaxed) > 0);
    let is_gc = |job: &RemoteJob| job.purpose == JobPurpose::Gc;
    assert!(!offload.seen.lock().unwrap().iter().any(is_gc), "no worker has the values");
    let stayed = offload.stayed.lock().unwrap();
    assert!(!stayed.is_empty() && stayed.iter().all(is_gc));
    assert!(stayed.iter().all(|job| job.input_bytes > 0 && !job.input_files.is_empty()));
    assert_equals(&store, &model);
}

#[test]
fn a_damaged_value_stays_where_it_is_and_hinders_nothing_else() {
    let options = || StoreSettings {
        // One segment is enough.
        gc: GcParameters { min_garbage_bytes: Bytes(4096), ..relocating().gc },
        ..relocating()
    };
    let (directory, store) = common::store(options());
    let mut model = numbered(&store, 2_000);
    store.close().unwrap();
    let path = directory.path().join("store");
    let segment = path.join("values/000001.segment");
    let mut bytes = std::fs::read(&segment).unwrap();
    // Within the value of the first record.
    bytes[60] ^= 1;
    std::fs::write(&segment, bytes).unwrap();

    let store = Store::open(&path, OpenMode::Open, options()).unwrap();
    for number in (1..2_000_u64).step_by(2) {
        let key = format!("key{number:06}").into_bytes();
        store.delete(&key).unwrap();
        model.remove(&key);
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    until(&store, |log| log.relocated_bytes > 80 * 800 && log.removed_segments > 0);
    for (key, value) in &model {
        match store.get(key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Err(error) => {
                assert_eq!(key, b"key000000");
                assert!(error.to_string().contains("000001.segment at offset 32"), "{error}");
            }
        }
    }
    assert!(segment.exists());
}

/// A store whose writers are throttled as soon as there is garbage, however full the disk is, and
/// the ratio in force before there is any.
fn holding_up(burst_credit: Seconds) -> (tempfile::TempDir, Store, u64) {
    let gc = GcParameters {
        min_garbage_bytes: Bytes(4096),
        throttle_ratio: 1.01,
        max_throttle_ratio: 1.02,
        ample_free_share: 1e-6,
        burst_credit,
        ..relocating().gc
    };
    let calm = (gc.forced_ratio * 1e3).round() as u64;
    let (directory, store) = common::store(StoreSettings { gc, l0_compaction_trigger: 2, ..relocating() });
    // The first round may come before free space was probed, and be careful.
    until(&store, |log| log.ratio_per_mille == calm);
    (directory, store, calm)
}

/// Overwrites the store again and again until its value log is as it should be, within a minute.
fn overwrite_until(store: &Store, model: &mut Model, mut is_so: impl FnMut(&ValueLogProperties) -> bool) {
    let begin = Instant::now();
    for round in 0.. {
        // Asked often: what lasts for a burst is over before a slow machine has written a round.
        fill(store, model, round, 100, 2_000);
        if round % 10 == 9 {
            store.flush(true).unwrap();
        }
        let log = store.value_log().unwrap();
        if is_so(&log) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{log:?}");
    }
}

#[test]
fn more_garbage_may_stay_while_writers_are_throttled() {
    let (_directory, store, calm) = holding_up(GcParameters::default().burst_credit);
    let mut model = Model::new();
    overwrite_until(&store, &mut model, |log| log.ratio_per_mille > calm);
    assert!(store.value_log().unwrap().throttled_ms > 0, "nobody was throttled");
    assert_equals(&store, &model);
}

#[test]
fn no_more_garbage_may_stay_once_a_burst_has_lasted_long_enough() {
    let (_directory, store, calm) = holding_up(Seconds(2.0));
    let mut model = Model::new();
    overwrite_until(&store, &mut model, |log| log.ratio_per_mille > calm);
    let throttled_ms = store.value_log().unwrap().throttled_ms;
    overwrite_until(&store, &mut model, |log| log.ratio_per_mille == calm);
    let went_on = store.value_log().unwrap().throttled_ms;
    assert!(went_on > throttled_ms, "it is as it was because nobody is throttled any more");
    assert_equals(&store, &model);
}

#[test]
fn no_more_garbage_may_ever_stay_without_bursts() {
    let (_directory, store, calm) = holding_up(Seconds(0.0));
    let mut model = Model::new();
    overwrite_until(&store, &mut model, |log| {
        assert_eq!(log.ratio_per_mille, calm);
        log.throttled_ms > 3_000
    });
    assert_equals(&store, &model);
}
