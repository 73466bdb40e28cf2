//! What the tests of a federation share: servers in this process, a load with a model beside it,
//! waits with a deadline.
#![allow(dead_code, missing_docs, clippy::unwrap_used)] // each test uses its part

#[path = "../../../engine/tests/common/contents.rs"] // one copy for both crates
mod contents;
pub mod files;
#[path = "../../../engine/tests/common/merging.rs"]
pub mod merging;
pub mod spoiler;
pub mod watched_offload;
pub mod wire;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ecotone_cluster::copies::PrimaryCopy;
use ecotone_cluster::steps::{Step, StepObserver};
use ecotone_cluster::{
    Federation, JobEnded, JobObserver, JobOutcome, Limits, LoadSource, LocalLoad, Options, StoreOffload,
};
use ecotone_energy::cores::Unbound;
use ecotone_energy::{EnergyMeter, PowerModel, ThreadDuties};
use ecotone_engine::{CompactionFinished, LocalSlots, OpenMode, Store, StoreEvents, StoreSettings};
use ecotone_policy::machine::{ModelParameters, Parameters};
use ecotone_policy::policy::PolicyName;
use ecotone_types::ServerId;
use ecotone_types::units::Seconds;
use tempfile::TempDir;

pub use contents::*;
use watched_offload::{GivenBack, OffloadEvent, Watched};

/// How long a test waits for what must come; only a broken test or product waits that long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Speeds that leave EdgePilot no doubt: whatever jobs take on the host of the test, a worker is
/// faster.
pub const SLOW: f64 = 1e-3;
pub const FAST: f64 = 1e3;

/// What a busy host may add to a wait. Less than the heartbeat's time-out, so that a second one
/// would be noticed.
pub const BUSY_HOST_ALLOWANCE: Duration = Duration::from_millis(900);

/// How long an owner may wait for a peer that no longer answers before it goes on by itself.
pub fn one_silence() -> Duration {
    limits().heartbeat_timeout + BUSY_HOST_ALLOWANCE
}

/// Waits until `condition` gives a value.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for: {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// EdgePilot that never learns: jobs go where the core speeds say, whatever the host of the test is
/// busy with.
pub fn policy() -> Parameters {
    let certain = 1e9;
    Parameters {
        policy: PolicyName::EdgePilot,
        min_deadline: Seconds(30.0),
        avoid_after_decline: Seconds(0.0),
        avoid_after_failure: Seconds(0.0),
        // Jobs of these stores are small.
        min_gc_entries: 0,
        models: ModelParameters {
            server_prior_samples: certain,
            pair_prior_samples: certain,
            shape_prior_samples: certain,
            ..ModelParameters::default()
        },
        // The load of these servers is measured once.
        stale_after: Seconds(3600.0),
        ..Parameters::default()
    }
}

/// Limits with short times, so that a test of a failure takes no longer than it must.
pub fn limits() -> Limits {
    Limits {
        worker_slots: 4,
        worker_disk_reserve_bytes: 0,
        report_interval: Duration::from_millis(100),
        heartbeat_interval: Duration::from_millis(100),
        heartbeat_timeout: Duration::from_millis(1000),
        chunk_bytes: 64 << 10,
        ..Limits::default()
    }
}

pub struct FixedLoad(pub f64);

impl LoadSource for FixedLoad {
    fn load(&self) -> LocalLoad {
        LocalLoad {
            l0_tables: 0,
            input_bytes_per_s: 1e6,
            input_bytes_total: 0,
            memtable_bytes: 0,
            flushed_tables_total: 0,
            cores: 16.0,
            free_cores: 16.0,
            core_speed: self.0,
            stalled: false,
            active_watts: 5.0,
            idle_watts: 5.0,
            joules_total: 0.0,
        }
    }
}

/// Keeps every job of its server that ended.
#[derive(Default)]
pub struct Ended(pub Mutex<Vec<JobEnded>>);

impl JobObserver for Ended {
    fn job_ended(&self, job: &JobEnded) {
        self.0.lock().unwrap().push(job.clone());
    }
}

impl Ended {
    pub fn of(&self, outcome: JobOutcome) -> Vec<JobEnded> {
        self.0.lock().unwrap().iter().filter(|job| job.outcome == outcome).cloned().collect()
    }

    pub fn count(&self, outcome: JobOutcome) -> usize {
        self.of(outcome).len()
    }

    pub fn because(&self, reason: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|job| job.reason == reason).count()
    }
}

pub fn duties() -> Arc<ThreadDuties> {
    let meter = EnergyMeter::start(PowerModel::hardware(5.0, 5.0).unwrap()).unwrap();
    Arc::new(ThreadDuties::new(meter, Arc::new(Unbound)))
}

pub fn options(name: &str, worker_directory: &Path) -> Options {
    Options {
        name: Some(ServerId::new(name).unwrap()),
        listen: "127.0.0.1:0".parse().unwrap(),
        announce: None,
        join: None,
        worker_directory: worker_directory.to_owned(),
        policy: policy(),
        network_bytes_per_s: 1e9,
        identity: None,
        membership: None,
        limits: limits(),
        steps: None,
    }
}

/// Does `action` at each `step` of a server.
pub fn at(step: Step, action: impl Fn() + Send + Sync + 'static) -> StepObserver {
    Arc::new(move |reached| {
        if reached == step {
            action();
        }
    })
}

/// A server without a store: it works for others, and coordinates.
pub struct Storeless {
    pub federation: Federation,
    pub directory: TempDir,
    pub ended: Arc<Ended>,
}

impl Storeless {
    pub fn start(name: &str, change: impl FnOnce(&mut Options)) -> Storeless {
        let directory = tempfile::tempdir().unwrap();
        let mut options = options(name, &directory.path().join("worker"));
        change(&mut options);
        let ended = Arc::new(Ended::default());
        let federation = Federation::start(options, duties(), ended.clone()).unwrap();
        federation.set_load_source(Arc::new(FixedLoad(FAST)));
        federation.load_measured();
        Storeless { federation, directory, ended }
    }

    pub fn worker_folders(&self) -> usize {
        entries(&self.directory.path().join("worker"))
    }
}

/// Files and folders in `directory`; none if it is not there.
pub fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

/// A server with a store whose compactions are placed by its federation.
pub struct Owner {
    /// `None` once closed. Before the federation, which must outlive it.
    pub store: Option<Arc<Store>>,
    pub federation: Arc<Federation>,
    pub ended: Arc<Ended>,
    pub given_back: Arc<Mutex<Vec<GivenBack>>>,
    pub model: Model,
    pub path: PathBuf,
    _directory: Option<TempDir>,
    seed: u64,
}

struct Events(StoreOffload);

impl StoreEvents for Events {
    fn compaction_finished(&self, event: &CompactionFinished) {
        self.0.compaction_finished(event);
    }
}

/// A small store whose compactions are many, and several at a time.
pub fn small() -> StoreSettings {
    StoreSettings { l0_compaction_trigger: 2, background_compactions: 4, ..contents::small() }
}

/// A store at `path`, offloading through a federation of `options`. `notify` is called for each job
/// that it asks about.
pub fn open(
    path: &Path,
    options: Options,
    settings: StoreSettings,
    observer: Arc<dyn JobObserver>,
    notify: impl Fn(OffloadEvent) + Send + Sync + 'static,
) -> (Arc<Store>, Arc<Federation>) {
    open_of(None, path, options, settings, observer, notify)
}

/// The same of a shard that may have copies.
fn open_of(
    primary: Option<Arc<dyn PrimaryCopy>>,
    path: &Path,
    options: Options,
    settings: StoreSettings,
    observer: Arc<dyn JobObserver>,
    notify: impl Fn(OffloadEvent) + Send + Sync + 'static,
) -> (Arc<Store>, Arc<Federation>) {
    let slots = options.limits.fallback_slots;
    let federation = Arc::new(Federation::start(options, duties(), observer).unwrap());
    let placed = match primary {
        Some(primary) => federation.store_offload_of(primary),
        None => federation.store_offload(),
    };
    let offload = Arc::new(Watched::new(placed.offload(), notify));
    let events = Arc::new(Events(placed));
    let builder = Store::builder(path).settings(settings).offload(offload);
    let store = Arc::new(builder.local_slots(LocalSlots::new(slots)).events(events).open().unwrap());
    federation.set_load_source(Arc::new(FixedLoad(SLOW)));
    federation.load_measured();
    (store, federation)
}

/// One more store of the same server.
pub fn open_beside(federation: &Federation, path: &Path, settings: StoreSettings) -> Store {
    let placed = federation.store_offload();
    let builder = Store::builder(path).settings(settings).offload(placed.offload());
    builder.local_slots(LocalSlots::new(limits().fallback_slots)).events(Arc::new(Events(placed))).open().unwrap()
}

impl Owner {
    pub fn start(change: impl FnOnce(&mut Options, &mut StoreSettings)) -> Owner {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let worker_directory = directory.path().join("worker");
        Owner { _directory: Some(directory), ..Owner::start_at(path, &worker_directory, change) }
    }

    /// The primary of a shard with copies; `primary` is given the store's folder.
    pub fn start_as_primary(
        primary: impl FnOnce(&Path) -> Arc<dyn PrimaryCopy>,
        change: impl FnOnce(&mut Options, &mut StoreSettings),
    ) -> Owner {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let worker_directory = directory.path().join("worker");
        let primary = primary(&path);
        Owner { _directory: Some(directory), ..Owner::start_of(Some(primary), path, &worker_directory, change) }
    }

    pub fn start_at(
        path: PathBuf,
        worker_directory: &Path,
        change: impl FnOnce(&mut Options, &mut StoreSettings),
    ) -> Owner {
        Owner::start_of(None, path, worker_directory, change)
    }

    fn start_of(
        primary: Option<Arc<dyn PrimaryCopy>>,
        path: PathBuf,
        worker_directory: &Path,
        change: impl FnOnce(&mut Options, &mut StoreSettings),
    ) -> Owner {
        let (mut options, mut store_options) = (options("owner", worker_directory), small());
        change(&mut options, &mut store_options);
        let ended = Arc::new(Ended::default());
        let given_back: Arc<Mutex<Vec<GivenBack>>> = Arc::default();
        let list = Arc::clone(&given_back);
        let notify = move |event| {
            if let OffloadEvent::GivenBack(job) = event {
                list.lock().unwrap().push(job);
            }
        };
        let (store, federation) = open_of(primary, &path, options, store_options, ended.clone(), notify);
        let model = Model::new();
        Owner { store: Some(store), federation, ended, given_back, model, path, _directory: None, seed: 0 }
    }

    pub fn store(&self) -> &Arc<Store> {
        self.store.as_ref().expect("open until it is closed")
    }

    /// Some thousands of overwrites and deletions, single and of a range.
    pub fn write(&mut self, writes: u64) {
        let store = self.store.as_ref().unwrap();
        self.seed += 1;
        fill(store, &mut self.model, self.seed, writes, 2_000);
        let (begin, end) = (&b"key00000100"[..], &b"key00000150"[..]);
        store.delete_range(begin..end).unwrap();
        self.model.retain(|key, _| !(begin..end).contains(&key.as_slice()));
    }

    pub fn flush(&self) {
        self.store().flush(true).unwrap();
    }

    /// Writes until `enough`, and a little at least.
    pub fn write_until(&mut self, what: &str, mut enough: impl FnMut(&Owner) -> bool) {
        let began = Instant::now();
        loop {
            self.write(500);
            if enough(self) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "wrote {PATIENCE:?} in vain for: {what}");
        }
    }

    pub fn compact(&self) {
        self.store().compact(..).unwrap();
    }

    pub fn check(&self) {
        assert_equals(self.store(), &self.model);
    }

    pub fn session_folders(&self) -> usize {
        entries(&self.path.join("session_tmp"))
    }

    pub fn fallbacks(&self, kind: &str) -> u64 {
        self.federation.statistics().fallbacks.get(kind).copied().unwrap_or(0)
    }

    /// The jobs that were elsewhere, or were to be, and came back after `begin`.
    pub fn fallbacks_since(&self, begin: Instant) -> Vec<GivenBack> {
        let given_back = self.given_back.lock().unwrap();
        given_back.iter().copied().filter(|job| job.is_fallback && job.at >= begin).collect()
    }

    /// The longest that a job waited after `begin` until it was given back.
    pub fn longest_wait_since(&self, begin: Instant) -> Duration {
        let given_back = self.given_back.lock().unwrap();
        given_back.iter().filter(|job| job.at >= begin).map(|job| job.since(begin)).max().unwrap_or_default()
    }

    pub fn offloaded(&self) -> u64 {
        self.federation.statistics().offloaded
    }

    /// Compacts what is left, checks the store, closes it, and checks it again without any
    /// federation.
    pub fn finish(mut self) {
        self.write(500);
        self.flush();
        self.compact();
        self.check();
        wait_until("session_tmp to be empty", || self.session_folders() == 0);
        let Ok(store) = Arc::try_unwrap(self.store.take().unwrap()) else { panic!("somebody else holds the store") };
        store.close().unwrap();
        let store = Store::open(&self.path, OpenMode::Open, small()).unwrap();
        assert_equals(&store, &self.model);
        store.close().unwrap();
    }
}

/// Fails with what was expected and what came.
pub fn unexpected(what: &str, got: &dyn Debug) -> ! {
    panic!("{what}, not {got:?}")
}
