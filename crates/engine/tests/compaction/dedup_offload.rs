//! Merges of duplicates that workers run: they are checked, counted and answered for as those that
//! run here, and whatever goes wrong ends as one that runs here.

use crate::common;

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::merging::merging;
use common::offloads::{InProcess, Only, edit};
use common::random::Random;
use common::{Model, assert_equals, value_of};
use ecotone_engine::{
    CompactionFinished, CompactionOffload, Counters, DedupProperties, Duty, DutyObserver, RemoteJob, RemoteOutcome,
    Separation, SpaceLimits, Store, StoreBuilder, StoreEvents, StoreSettings, VerifyError,
};
use ecotone_inspect::verify;
use ecotone_policy::gc::GcParameters;
use ecotone_types::JobPurpose;
use ecotone_types::units::Bytes;

/// Far more than any of this takes.
const LONG: Duration = Duration::from_secs(120);

/// Keys that fill three levels below L0 in the trees of these tests: with their values, and alone.
const KEYS: usize = 20_000;
const KEYS_ALONE: usize = 150_000;

/// Has `worker` run merges of duplicates, and leaves all other compactions here.
fn merges_by<T: CompactionOffload + 'static>(worker: Arc<T>) -> Arc<Only<T>> {
    Only::of(worker, |purpose| purpose == JobPurpose::Dedup)
}

fn separated(options: StoreSettings, gc: GcParameters) -> StoreSettings {
    let separation = Some(Separation { min_bytes: 32, segment_bytes: 256 * 1024 });
    StoreSettings { separation, gc, memtable_bytes: 256 * 1024, ..options }
}

/// Garbage collection for which no garbage is enough.
fn never() -> GcParameters {
    GcParameters { min_garbage_bytes: Bytes(u64::MAX / 2), ..Default::default() }
}

/// Writes after which all compactions and merges that are due are waited for: where other programs
/// have the cores, one who never rests leaves RocksDB pressed all the time, and merges are
/// forbidden then.
const CONCURRENT_WRITES: u64 = 20_000;

/// Overwrites random keys, now and then deletes one or a few in a row, until `done`.
fn overwrite_until(store: &Store, model: &mut Model, keys: usize, done: impl Fn() -> bool) {
    let mut random = Random::new(7);
    let begin = Instant::now();
    let key = |number: usize| format!("key{number:08}").into_bytes();
    for write in 0_u64.. {
        let number = random.below(keys);
        if write % 2_000 == 0 {
            let (from, to) = (key(number), key(number + 20));
            store.delete_range(&from[..]..&to[..]).unwrap();
            model.retain(|key, _| !(&from..&to).contains(&key));
        } else if write % 10 == 0 {
            store.delete(&key(number)).unwrap();
            model.remove(&key(number));
        } else {
            let value = value_of(&key(number), write, if keys == KEYS { 100 } else { 40 });
            store.put(&key(number), &value).unwrap();
            model.insert(key(number), value);
        }
        while write % CONCURRENT_WRITES == CONCURRENT_WRITES - 1 && is_busy(store) && !done() {
            assert!(begin.elapsed() < LONG, "{write} writes: {:?} {:?}", store.dedup(), store.counters());
            std::thread::yield_now();
        }
        if write % 1_000 == 0 && done() {
            return;
        }
        assert!(begin.elapsed() < LONG, "{write} writes: {:?} {:?}", store.dedup(), store.counters());
    }
}

fn is_busy(store: &Store) -> bool {
    let properties = store.properties().unwrap();
    properties.running_compactions > 0 || properties.compaction_pending || store.dedup().unwrap().is_busy
}

/// Waits until no compaction and no merge is to be made any more.
fn settled(store: &Store) -> (DedupProperties, Counters) {
    let begin = Instant::now();
    loop {
        let compactions = store.counters().compactions;
        if !is_busy(store) && store.counters().compactions == compactions {
            return (store.dedup().unwrap(), store.counters());
        }
        assert!(begin.elapsed() < LONG, "{:?} {:?}", store.properties(), store.dedup());
        std::thread::yield_now();
    }
}

/// Closes the store, and has every byte of it checked.
fn assert_sound(directory: &Path, store: Store) {
    store.close().unwrap();
    let report = verify(&directory.join("store"), |_| ()).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[derive(Default)]
struct Seen {
    compactions: Mutex<Vec<CompactionFinished>>,
    of_dedup: AtomicU64,
}

impl StoreEvents for Seen {
    fn compaction_finished(&self, event: &CompactionFinished) {
        self.compactions.lock().unwrap().push(event.clone());
    }
}

impl DutyObserver for Seen {
    fn begin(&self, duty: Duty) {
        self.of_dedup.fetch_add(u64::from(duty == Duty::Dedup), Relaxed);
    }
    fn end(&self) {}
}

fn merges_on_a_worker(keys: usize, options: impl Fn(StoreSettings) -> StoreSettings) {
    let worker = tempfile::tempdir().unwrap();
    let offload = merges_by(Arc::new(InProcess::new(worker.path())));
    let seen = Arc::new(Seen::default());
    let with = |builder: StoreBuilder| builder.offload(offload.clone()).events(seen.clone()).duties(seen.clone());
    let (directory, store) = common::store_with(options(self::merging()), with);
    let mut model = Model::new();
    let InProcess { jobs, installed, .. } = &*offload.worker;
    overwrite_until(&store, &mut model, keys, || installed.load(Relaxed) >= 20);
    store.flush(true).unwrap();
    let (dedup, counters) = settled(&store);
    assert_equals(&store, &model);

    let jobs_run = jobs.load(Relaxed);
    assert_eq!(
        (jobs_run, offload.worker.refused.lock().unwrap().len()),
        (installed.load(Relaxed), 0),
        "{:?}",
        offload.worker.refused
    );
    assert_eq!(*offload.worker.worker_errors.lock().unwrap(), []);
    assert_eq!(
        (dedup.merges, counters.remote_compactions, counters.failed_compactions),
        (jobs_run, jobs_run, 0),
        "{dedup:?}"
    );
    let jobs = std::mem::take(&mut *offload.worker.seen.lock().unwrap());
    let sum = |of: fn(&RemoteJob) -> u64| jobs.iter().map(of).sum::<u64>();
    assert_eq!(sum(|job| job.input_bytes), dedup.read_bytes);
    assert!(jobs.iter().all(|job| job.is_manual && !job.is_subcompaction() && job.input_level > 0));
    // Each was held to the entries of its inputs, and RocksDB counts the same.
    let events: Vec<_> = seen.compactions.lock().unwrap().iter().filter(|event| event.remote).cloned().collect();
    assert_eq!(events.len() as u64, jobs_run);
    for event in &events {
        let of = |job: &&RemoteJob| (job.rocks_job >> 32) as i32 == event.job;
        let job = jobs.iter().find(of).unwrap();
        assert_eq!(
            (event.input_records, event.input_bytes),
            (job.input_records.unwrap(), job.input_bytes),
            "{event:?}"
        );
        assert_eq!((event.is_manual, event.subcompactions, event.error.as_deref()), (true, 1, None));
        assert_eq!(event.output_level, job.output_level);
    }
    let found: u64 = events.iter().map(|event| event.input_records - event.output_records).sum();
    assert_eq!(found, dedup.found_keys);
    assert_eq!(events.iter().map(|event| event.output_bytes).sum::<u64>(), dedup.written_bytes);
    assert!((0.5..2.0).contains(&(dedup.found_keys as f64 / dedup.expected_keys as f64)), "{dedup:?}");
    assert_eq!(dedup.unsampled_tables, 0, "what a worker writes tells of its keys");
    assert!(seen.of_dedup.load(Relaxed) > jobs_run, "the wait for a worker is the merge's duty");
    assert_sound(directory.path(), store);
}

#[test]
fn a_worker_merges_duplicates_and_no_answer_changes() {
    merges_on_a_worker(KEYS, |options| options);
}

#[test]
fn so_it_does_where_values_lie_separated() {
    merges_on_a_worker(KEYS_ALONE, |options| separated(options, never()));
}

/// A merge copies none of them, so it needs none.
#[test]
fn a_merge_goes_away_though_its_tables_name_values_that_are_to_be_relocated() {
    let worker = tempfile::tempdir().unwrap();
    let offload = merges_by(Arc::new(InProcess::new(worker.path())));
    // What is a little garbage is relocated opportunistically, so nearly every table refers to some
    // of that.
    let early = GcParameters {
        begin_ratio: 1.01,
        end_ratio: 1.005,
        forced_ratio: 1e6,
        urgent_ratio: 2e6,
        min_garbage_bytes: Bytes(1),
        ..Default::default()
    };
    let (directory, store) =
        common::store_with(separated(merging(), early), |builder| builder.offload(offload.clone()));
    let mut model = Model::new();
    let relocated = || store.value_log().unwrap().relocated_bytes;
    overwrite_until(&store, &mut model, KEYS_ALONE, || relocated() > 0 && offload.worker.installed.load(Relaxed) >= 20);
    assert_equals(&store, &model);
    assert_eq!(offload.worker.stayed.lock().unwrap().len(), 0, "nothing is relocated forcibly");
    assert_sound(directory.path(), store);
}

/// Lets every merge go wrong by `spoil`, and has it made here instead.
fn falls_back<T: CompactionOffload + 'static>(offload: Arc<T>) {
    let offload = merges_by(offload);
    let (directory, store) = common::store_with(merging(), |builder| builder.offload(offload));
    let mut model = Model::new();
    let merged = || store.dedup().unwrap().merges;
    overwrite_until(&store, &mut model, KEYS, || merged() >= 10);
    store.flush(true).unwrap();
    let (dedup, counters) = settled(&store);
    assert_equals(&store, &model);
    assert!(dedup.found_keys > 0, "{dedup:?}");
    assert_eq!((counters.remote_compactions, counters.failed_compactions), (0, 0));
    assert_eq!(store.write_failure(), None);
    assert_sound(directory.path(), store);
}

/// Fails in its own way.
struct Always<F>(F);

impl<F: Fn(&RemoteJob) -> RemoteOutcome + Send + Sync> CompactionOffload for Always<F> {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        (self.0)(&job)
    }
    fn cancel_all(&self) {}
}

#[test]
fn a_merge_whose_worker_fails_is_made_here() {
    falls_back(Arc::new(Always(|_: &RemoteJob| RemoteOutcome::Fallback)));
}

#[test]
fn a_merge_whose_offload_panics_is_made_here() {
    falls_back(Arc::new(Always(|job: &RemoteJob| panic!("job {} is too much", job.id))));
}

/// RocksDB would find it, too, and stop the store.
#[test]
fn a_merge_whose_worker_read_too_little_is_refused_and_made_here() {
    let worker = tempfile::tempdir().unwrap();
    let refused = Arc::new(InProcess::spoiled(worker.path(), |_, _, result| {
        edit(result, "stats={", "num_input_records", |number| number - 1);
    }));
    falls_back(refused.clone());
    let errors = refused.refused.lock().unwrap();
    assert!(!errors.is_empty() && errors.iter().all(|error| matches!(error, VerifyError::Counts(_))), "{errors:?}");
    assert_eq!(refused.installed.load(Relaxed), 0);
    assert!(refused.local_finished.load(Relaxed) > 0);
}

/// A worker that never ends by itself.
#[derive(Default)]
struct Endless {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Endless {
    fn wait(&self, until: impl Fn(&(bool, bool)) -> bool) {
        let mut state = self.state.lock().unwrap();
        while !until(&state) {
            state = self.changed.wait(state).unwrap();
        }
    }
    fn set(&self, change: impl Fn(&mut (bool, bool))) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }
}

impl CompactionOffload for Endless {
    fn run(&self, _job: RemoteJob) -> RemoteOutcome {
        self.set(|state| state.0 = true);
        self.wait(|state| state.1);
        RemoteOutcome::Local
    }
    fn cancel_all(&self) {
        self.set(|state| state.1 = true);
    }
}

#[test]
fn a_store_closes_while_a_worker_merges() {
    let offload = merges_by(Arc::<Endless>::default());
    let (directory, store) = common::store_with(merging(), |builder| builder.offload(offload.clone()));
    let mut model = Model::new();
    overwrite_until(&store, &mut model, KEYS, || offload.worker.state.lock().unwrap().0);
    assert_equals(&store, &model);
    assert_sound(directory.path(), store);
}

#[test]
fn merges_say_how_long_space_lasts_and_other_compactions_do_not() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let jobs = seen.clone();
    let note = move |job: &RemoteJob| {
        jobs.lock().unwrap().push((job.purpose, job.deadline));
        RemoteOutcome::Local
    };
    let space = SpaceLimits { max_bytes: Some(256 << 20), ..SpaceLimits::default() };
    let (directory, store) =
        common::store_with(StoreSettings { space, ..merging() }, |builder| builder.offload(Arc::new(Always(note))));
    let mut model = Model::new();
    // Growth is known once the room was looked at for a second or two.
    let has_deadline = |(purpose, deadline): &(JobPurpose, Option<Duration>)| {
        *purpose == JobPurpose::Dedup && deadline.is_some_and(|deadline| deadline <= Duration::from_secs(3600))
    };
    // Overwriting alone may take no more than merges give back: the store grows by new keys as
    // well, all the time.
    let grown = RefCell::new(Model::new());
    overwrite_until(&store, &mut model, KEYS, || {
        let mut grown = grown.borrow_mut();
        for number in grown.len()..grown.len() + 100 {
            let key = format!("new{number:08}").into_bytes();
            store.put(&key, &value_of(&key, 0, 500)).unwrap();
            grown.insert(key.clone(), value_of(&key, 0, 500));
        }
        seen.lock().unwrap().iter().any(has_deadline)
    });
    model.append(&mut grown.into_inner());
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let others: Vec<_> = seen.iter().filter(|(purpose, _)| *purpose == JobPurpose::Compaction).collect();
    assert!(!others.is_empty() && others.iter().all(|(_, deadline)| deadline.is_none()), "{others:?}");
    assert_equals(&store, &model);
    assert_sound(directory.path(), store);
}
