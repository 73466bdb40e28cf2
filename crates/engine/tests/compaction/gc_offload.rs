//! Garbage collection whose tables a worker merges: it says where values go, and this store copies
//! them there. Whatever the worker says or does, nothing is lost.

use crate::common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::offloads::{InProcess, Only, SpoilMoves};
use common::telemetry::telemetry;
use common::{Model, assert_equals, compressing_early, fill, halve, numbered, until, until_compression};
use ecotone_engine::{
    Codec, CompactionOffload, CompressionMode, CompressionProperties, OpenMode, RemoteJob, RemoteOutcome, Separation,
    Store, StoreSettings, VerifyError,
};
use ecotone_inspect::verify;
use ecotone_io::tap::{CopiedRange, TapEvent, WriteTap};
use ecotone_policy::gc::GcParameters;
use ecotone_rocks::filesystem::FileSystemHooks;
use ecotone_types::JobPurpose;
use ecotone_types::units::Bytes;
use ecotone_valuelog::moves::{MovePlan, Moves};
use tempfile::TempDir;

/// Garbage collection that begins early, over small segments and tables, and that nothing ever
/// presses for, so that it may go to a worker.
fn relocating() -> StoreSettings {
    StoreSettings {
        separation: Some(Separation { min_bytes: 50, segment_bytes: 64 * 1024 }),
        gc: GcParameters {
            begin_ratio: 1.2,
            end_ratio: 1.1,
            forced_ratio: 1.25,
            urgent_ratio: 100.0,
            throttle_ratio: 100.0,
            max_throttle_ratio: 101.0,
            ample_free_share: 1e-6,
            min_garbage_bytes: Bytes(64 * 1024),
            ..GcParameters::default()
        },
        ..common::small()
    }
}

fn is_gc(purpose: JobPurpose) -> bool {
    purpose == JobPurpose::Gc
}

/// A worker in this process that is asked for garbage collections, and for nothing else.
fn mover(worker: &TempDir, change: impl FnOnce(&mut InProcess)) -> Arc<Only<InProcess>> {
    let mut offload = InProcess::new(worker.path());
    offload.moves_values = true;
    change(&mut offload);
    Only::of(Arc::new(offload), is_gc)
}

/// Half of the values are deleted, and their tables are touched by nothing but garbage collection.
/// Returns once little of what is dead is left.
fn collect_half(store: &Store) -> Model {
    let mut model = numbered(store, 8_000);
    store.compact(..).unwrap();
    halve(store, &mut model);
    store.compact(..).unwrap();
    let live: u64 = model.iter().map(|(key, value)| 12 + key.len() as u64 + value.len() as u64).sum();
    until(store, |log| (log.bytes as f64) < 1.37 * live as f64);
    model
}

/// The store opens again, holds `model`, and is whole.
fn check_reopened(directory: &TempDir, store: Store, settings: StoreSettings, model: &Model) {
    assert_equals(&store, model);
    store.close().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path, OpenMode::Open, settings).unwrap();
    assert_equals(&store, model);
    store.close().unwrap();
    let report = verify(&path, |_| ()).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[test]
fn a_worker_that_sees_no_values_moves_them() {
    let worker = tempfile::tempdir().unwrap();
    let offload = mover(&worker, |_| ());
    let (directory, store) = common::store_with(relocating(), |builder| builder.offload(offload.clone()));
    let model = collect_half(&store);
    let InProcess { installed, not_taken, refused, worker_errors, opened, seen, .. } = &*offload.worker;
    assert!(installed.load(Ordering::Relaxed) > 0);
    assert!(refused.lock().unwrap().is_empty() && worker_errors.lock().unwrap().is_empty(), "{refused:?}");
    assert_eq!(not_taken.load(Ordering::Relaxed), 0);
    assert!(seen.lock().unwrap().iter().all(|job| is_gc(job.purpose)));
    assert!(store.value_log().unwrap().relocated_bytes > 0);
    for names in opened.lock().unwrap().iter() {
        assert!(names.keys().all(|name| !name.ends_with(".segment")), "{names:?}");
    }
    // Numbers are reserved once.
    let plans: Vec<_> = seen.lock().unwrap().iter().filter_map(|job| job.moves.clone()).collect();
    assert!(plans.windows(2).all(|pair| pair[1].first.0 >= pair[0].first.0 + pair[0].segments), "{plans:?}");
    check_reopened(&directory, store, relocating(), &model);
}

#[test]
fn values_are_moved_while_everything_is_overwritten_and_a_snapshot_holds_old_versions() {
    let worker = tempfile::tempdir().unwrap();
    let offload = mover(&worker, |_| ());
    let settings = StoreSettings { l0_compaction_trigger: 2, ..relocating() };
    let (directory, store) = common::store_with(settings.clone(), |builder| builder.offload(offload.clone()));
    let mut model = Model::new();
    fill(&store, &mut model, 99, 4_000, 2_000);
    let before = model.clone();
    let snapshot = store.snapshot();
    for round in 0..12 {
        fill(&store, &mut model, round, 4_000, 2_000);
    }
    for (key, value) in &before {
        assert_eq!(snapshot.get(key).unwrap().as_deref(), Some(&value[..]));
    }
    drop(snapshot);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    let live: u64 = model.iter().map(|(key, value)| 12 + key.len() as u64 + value.len() as u64).sum();
    until(&store, |log| (log.bytes as f64) < 1.7 * live as f64);
    assert!(offload.worker.refused.lock().unwrap().is_empty(), "{:?}", offload.worker.refused);
    check_reopened(&directory, store, settings, &model);
}

/// With a dictionary that new segments name as well; what is packed with another one stays for a
/// compaction here, which packs it anew.
#[test]
fn packed_values_are_moved_as_they_are() {
    let worker = tempfile::tempdir().unwrap();
    let offload = mover(&worker, |_| ());
    let settings = compressing_early(CompressionMode::Zstd, relocating());
    let (directory, store) = common::store_with(settings.clone(), |builder| builder.offload(offload.clone()));
    let mut model = Model::new();
    let mut put = |number: u64| {
        let (key, value) = (format!("key{:06}", number % 4_000).into_bytes(), telemetry(number, 300));
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    };
    let is_packing = |now: &CompressionProperties| now.dictionary.is_some() && now.relocated_by != Codec::None;
    until_compression(&store, is_packing, &mut put);
    let InProcess { installed, refused, .. } = &*offload.worker;
    for round in 1..=MAX_ROUNDS {
        (0..4_000).for_each(|number| put(round * 8_000 + number));
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        (0..4_000).step_by(2).for_each(|number| put(round * 8_000 + 4_000 + number));
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        until(&store, |log| log.gc_segments == 0 && log.bytes * 10 < log.referenced_bytes * 14);
        if installed.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    assert!(installed.load(Ordering::Relaxed) > 0);
    assert!(refused.lock().unwrap().is_empty(), "{refused:?}");
    check_reopened(&directory, store, settings, &model);
}

const MAX_ROUNDS: u64 = 10;

/// Two records of a length change places: a result that is consistent in all numbers.
fn swapped(plan: &MovePlan, moved: Vec<u8>) -> Vec<u8> {
    let mut moves = Moves::decode(&moved, plan).unwrap();
    if let Some(segment) = moves.0.iter_mut().find(|segment| segment.records.len() > 1) {
        segment.records.swap(0, 1);
    }
    moves.encode()
}

fn cut(_plan: &MovePlan, mut moved: Vec<u8>) -> Vec<u8> {
    moved.pop();
    moved
}

fn elsewhere(plan: &MovePlan, moved: Vec<u8>) -> Vec<u8> {
    let mut moves = Moves::decode(&moved, plan).unwrap();
    moves.0.iter_mut().for_each(|segment| segment.records[0].offset += 1);
    moves.encode()
}

fn one_less(plan: &MovePlan, moved: Vec<u8>) -> Vec<u8> {
    let mut moves = Moves::decode(&moved, plan).unwrap();
    moves.0.iter_mut().for_each(|segment| _ = segment.records.pop());
    moves.0.retain(|segment| !segment.records.is_empty());
    moves.encode()
}

#[test]
fn what_a_worker_says_of_places_is_not_believed() {
    // At once: each mostly waits.
    std::thread::scope(|scope| {
        for spoil in [swapped, cut, elsewhere, one_less] {
            scope.spawn(move || is_not_believed(spoil));
        }
    });
}

fn is_not_believed(spoil: SpoilMoves) {
    let worker = tempfile::tempdir().unwrap();
    let offload = mover(&worker, |offload| offload.spoil_moves = Some(spoil));
    let (directory, store) = common::store_with(relocating(), |builder| builder.offload(offload.clone()));
    let model = collect_half(&store);
    let InProcess { installed, not_taken, refused, jobs, .. } = &*offload.worker;
    check_reopened(&directory, store, relocating(), &model);
    let refused = refused.lock().unwrap();
    assert!(refused.iter().all(|error| matches!(error, VerifyError::Malformed(_))), "{refused:?}");
    let given_up = refused.len() as u64 + not_taken.load(Ordering::Relaxed);
    let (jobs, installed) = (jobs.load(Ordering::Relaxed), installed.load(Ordering::Relaxed));
    // One that has moved nothing, or one value, may be what it says.
    assert!(given_up > 0 && installed <= jobs - given_up, "{installed} of {jobs}, {given_up} given up");
}

/// A worker that dies whenever it is asked.
#[derive(Default)]
struct Dying(AtomicU64);

impl CompactionOffload for Dying {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        assert!(!is_gc(job.purpose) || job.moves.is_some());
        self.0.fetch_add(u64::from(is_gc(job.purpose)), Ordering::Relaxed);
        RemoteOutcome::Fallback
    }

    fn moves_values(&self, _entries: u64) -> bool {
        true
    }

    fn cancel_all(&self) {}
}

#[test]
fn what_a_dead_worker_was_to_do_is_done_here() {
    let offload = Arc::<Dying>::default();
    let (directory, store) = common::store_with(relocating(), |builder| builder.offload(offload.clone()));
    let model = collect_half(&store);
    assert!(offload.0.load(Ordering::Relaxed) > 0);
    check_reopened(&directory, store, relocating(), &model);
}

/// A device on which no more segments of relocated values can be begun, while it is full. Tells of
/// what is a copy, as copies of the store want it.
#[derive(Default)]
struct Device {
    is_full: AtomicBool,
    refused: AtomicU64,
    copied_bytes: AtomicU64,
}

impl WriteTap for Device {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        match event {
            TapEvent::Created { path }
                if self.is_full.load(Ordering::Relaxed) && path.extension().is_some_and(|it| it == "segment") =>
            {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    fn follows_copies(&self) -> bool {
        true
    }

    fn copied(&self, _path: &std::path::Path, ranges: &[CopiedRange]) {
        let bytes = ranges.iter().map(|range| range.len).sum();
        self.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn a_full_device_moves_nothing_and_what_is_moved_later_is_told_as_copies() {
    let worker = tempfile::tempdir().unwrap();
    let offload = mover(&worker, |_| ());
    let device = Arc::<Device>::default();
    let hooks = FileSystemHooks { tap: Some(device.clone()), ..FileSystemHooks::default() };
    let (directory, store) =
        common::store_with(relocating(), |builder| builder.offload(offload.clone()).hooks(hooks.clone()));
    let mut model = numbered(&store, 8_000);
    store.compact(..).unwrap();
    device.is_full.store(true, Ordering::Relaxed);
    halve(&store, &mut model);
    store.compact(..).unwrap();
    until(&store, |_| device.refused.load(Ordering::Relaxed) > 3);
    assert_equals(&store, &model);
    assert_eq!(offload.worker.installed.load(Ordering::Relaxed), 0);
    device.is_full.store(false, Ordering::Relaxed);
    until(&store, |_| offload.worker.installed.load(Ordering::Relaxed) > 0);
    let relocated = store.value_log().unwrap().relocated_bytes;
    assert!(relocated > 0 && device.copied_bytes.load(Ordering::Relaxed) > 0);
    check_reopened(&directory, store, relocating(), &model);
}
