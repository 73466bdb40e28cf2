//! Samples the server once a second: for the policy, the coordinator, metrics and records.
//!
//! One thread samples the store, the meter and the federation. The policy is given each sample
//! once, in step with that thread's seconds; everybody else reads the last one.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ecotone_cluster::{
    Activity, Federation, FederationStatistics, JobEnded, JobObserver, JobOutcome, LoadSource, LocalLoad, Writers,
};
use ecotone_control::ids::ShardId;
use ecotone_energy::{EnergyThread, EnergyView, Reading};
use ecotone_engine::{
    CompressionProperties, Counters, DedupProperties, FreeSpace, StoreProperties, ValueLogProperties,
};
use ecotone_membership::Known;
use ecotone_policy::machine::ModelReport;
use ecotone_replication::Facts;
use parking_lot::Mutex;

use crate::host::copies::CopiesHandle;
use crate::host_load::HostLoad;
use crate::open_files::{OpenFiles, is_near};
use crate::options::ServeOptions;
use crate::record::{Job, Outcome, Record, Sample};
use crate::replica_reads::{ReadFacts, ReadsHandle};
use crate::stores::Stores;

/// Takes records as they come. Called from several threads; must not block for long.
pub type RecordSink = Arc<dyn Fn(Record) + Send + Sync>;

/// What the workload inside the server has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Operations.
    pub ops: u64,
    /// Gets, seeks and scans among them.
    pub reads: u64,
    /// Puts and deletes among them.
    pub writes: u64,
}

/// Where the workload's progress comes from.
pub type ProgressSource = Arc<dyn Fn() -> Progress + Send + Sync>;

/// Where the number of commands that clients have sent comes from.
pub(crate) type CommandSource = Box<dyn Fn() -> u64 + Send + Sync>;

/// Where the number of keys that clients have comes from; `None` before the first count.
pub(crate) type KeySource = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// What one look at the server found: the one source of its metrics and of whether it is ready.
///
/// It is taken once a second and waits for nobody. So readers, however many, take no lock of the
/// store, and all figures of one answer are of one moment.
#[derive(Debug, Clone)]
pub(crate) struct ServerSample {
    /// When it began.
    pub(crate) at: Instant,
    pub(crate) properties: StoreProperties,
    pub(crate) counters: Counters,
    /// `None` where the store has no value log. While the log was busy, as it was sampled the time
    /// before.
    pub(crate) values: Option<ValueLogProperties>,
    /// `None` where no separated value is compressed, nor ever was.
    pub(crate) compression: Option<CompressionProperties>,
    /// `None` where the store counts no duplicates. While it was busy counting, as it was sampled
    /// the time before.
    pub(crate) dedup: Option<DedupProperties>,
    pub(crate) room: Option<FreeSpace>,
    /// Keys of clients, as they were counted last; where none are served, entries by RocksDB's
    /// estimate. `None` before the first count.
    pub(crate) keys: Option<u64>,
    /// Why writes fail until the store recovers.
    pub(crate) write_failure: Option<String>,
    pub(crate) reading: Reading,
    /// Where its joules come from, and what is done about frequencies.
    pub(crate) energy: Arc<EnergyView>,
    /// The power since the sample before; `None` at the first.
    pub(crate) watts: Option<f64>,
    pub(crate) free_cores: f64,
    /// File descriptors of the process; `None` where Linux does not count them.
    pub(crate) open_files: Option<u64>,
    pub(crate) federation: FederationStatistics,
    /// What the control plane knows; `None` for a server without an identity.
    pub(crate) known: Option<Arc<Known>>,
    /// Of each copy of a shard that is driven here.
    pub(crate) copies: Vec<(ShardId, Facts)>,
    /// Of each copy that may be read here.
    pub(crate) reads: Vec<(ShardId, ReadFacts)>,
    pub(crate) models: ModelReport,
}

/// The last sample, and the records' clock and destination.
pub(crate) struct SamplerState {
    load: Mutex<LocalLoad>,
    activity: Mutex<Activity>,
    watts: Mutex<Option<f64>>,
    commands: OnceLock<CommandSource>,
    keys: OnceLock<KeySource>,
    copies: OnceLock<CopiesHandle>,
    reads: OnceLock<ReadsHandle>,
    started: Instant,
    sink: Option<RecordSink>,
    began: Mutex<Option<Instant>>,
    stalls: Mutex<Stalls>,
    sample: Mutex<Option<Arc<ServerSample>>>,
    /// What the sampler does, and since when.
    doing: Mutex<(Instant, Doing)>,
}

/// What the sampler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It asks the store.
    AskingTheStore,
    /// Anything else; most of the time it waits for its next second.
    Sampling,
}

/// Stalls since the workload began.
#[derive(Debug, Default)]
struct Stalls {
    since: Option<Instant>,
    ended_ms: Vec<f64>,
    l0_max: u64,
}

/// Stalls kept for the distribution of their lengths; a store that stalls more often is only
/// counted.
const STALLS_KEPT: usize = 100_000;

impl SamplerState {
    pub(crate) fn new(options: &ServeOptions, sink: Option<RecordSink>) -> SamplerState {
        let load = LocalLoad {
            l0_tables: 0,
            input_bytes_per_s: 0.0,
            input_bytes_total: 0,
            memtable_bytes: 0,
            flushed_tables_total: 0,
            cores: f64::from(options.cores),
            free_cores: f64::from(options.cores),
            core_speed: options.core_speed(),
            stalled: false,
            active_watts: options.active_watts,
            idle_watts: options.idle_watts,
            joules_total: 0.0,
        };
        SamplerState {
            load: Mutex::new(load),
            activity: Mutex::default(),
            watts: Mutex::default(),
            commands: OnceLock::new(),
            keys: OnceLock::new(),
            copies: OnceLock::new(),
            reads: OnceLock::new(),
            started: Instant::now(),
            sink,
            began: Mutex::new(None),
            stalls: Mutex::default(),
            sample: Mutex::default(),
            doing: Mutex::new((Instant::now(), Doing::Sampling)),
        }
    }

    /// The last sample; `None` before the first.
    pub(crate) fn sample(&self) -> Option<Arc<ServerSample>> {
        self.sample.lock().clone()
    }

    /// The sampler lives at `now`, and does this from then on.
    pub(crate) fn does(&self, now: Instant, what: Doing) {
        *self.doing.lock() = (now, what);
    }

    /// What the sampler does, and since when.
    pub(crate) fn doing(&self) -> (Instant, Doing) {
        *self.doing.lock()
    }

    /// The power of the last second; `None` before the second sample.
    pub(crate) fn watts(&self) -> Option<f64> {
        *self.watts.lock()
    }

    /// Clients are served from now on.
    pub(crate) fn count_commands(&self, source: CommandSource) {
        let _ = self.commands.set(source);
    }

    /// The same: what they have is counted so.
    pub(crate) fn count_keys(&self, source: KeySource) {
        let _ = self.keys.set(source);
    }

    /// Copies of shards are driven here, or will be.
    pub(crate) fn watch_copies(&self, handle: &CopiesHandle, reads: &ReadsHandle) {
        let _ = self.copies.set(handle.clone());
        let _ = self.reads.set(reads.clone());
    }

    /// The workload begins: times of records count from here.
    pub(crate) fn begin(&self) {
        let now = Instant::now();
        *self.began.lock() = Some(now);
        let mut stalls = self.stalls.lock();
        let goes_on = stalls.since.map(|_| now);
        *stalls = Stalls { since: goes_on, ..Stalls::default() };
    }

    /// Writers are slowed or stopped from now on, or no longer.
    pub(crate) fn note_stall(&self, is_stalled: bool) {
        let now = Instant::now();
        let mut stalls = self.stalls.lock();
        match (stalls.since, is_stalled) {
            (None, true) => stalls.since = Some(now),
            (Some(since), false) => {
                stalls.since = None;
                if stalls.ended_ms.len() < STALLS_KEPT {
                    stalls.ended_ms.push(now.duration_since(since).as_secs_f64() * 1e3);
                }
            }
            _ => {}
        }
    }

    fn note_l0(&self, tables: u64) {
        let mut stalls = self.stalls.lock();
        stalls.l0_max = stalls.l0_max.max(tables);
    }

    /// Lengths of all stalls since the workload began, the one under way included, and the most L0
    /// tables.
    pub(crate) fn stalls(&self) -> (Vec<f64>, u64) {
        let stalls = self.stalls.lock();
        let under_way = stalls.since.map(|since| since.elapsed().as_secs_f64() * 1e3);
        (stalls.ended_ms.iter().copied().chain(under_way).collect(), stalls.l0_max)
    }

    /// Seconds since the workload began; `None` before.
    fn seconds(&self) -> Option<f64> {
        self.began.lock().map(|began| began.elapsed().as_secs_f64())
    }

    /// Whether the workload had begun by then.
    fn had_begun(&self, by: Instant) -> bool {
        self.began.lock().is_some_and(|began| began <= by)
    }

    fn emit(&self, record: impl FnOnce(f64) -> Record) {
        if let (Some(sink), Some(at_s)) = (&self.sink, self.seconds()) {
            sink(record(at_s));
        }
    }
}

impl LoadSource for SamplerState {
    fn load(&self) -> LocalLoad {
        *self.load.lock()
    }

    fn activity(&self) -> Activity {
        self.activity.lock().clone()
    }
}

impl JobObserver for SamplerState {
    fn job_ended(&self, job: &JobEnded) {
        let report = &job.report;
        self.emit(|at_s| {
            Record::Job(Job {
                at_s,
                job: report.job.0,
                owner: report.owner.as_str().to_owned(),
                worker: report.worker.as_str().to_owned(),
                input_level: report.input_level.unsigned_abs(),
                output_level: report.output_level.unsigned_abs(),
                input_bytes: report.input_bytes.0,
                held_bytes: report.held_bytes.0,
                output_bytes: report.output_bytes.0,
                seconds: report.seconds.0,
                joules: report.joules.0,
                predicted_seconds: job.predicted.map(|predicted| predicted.seconds.0),
                predicted_joules: job.predicted.map(|predicted| predicted.joules.0),
                trainings: job.predicted.map_or(0, |predicted| predicted.samples),
                outcome: match job.outcome {
                    JobOutcome::Local => Outcome::Local,
                    JobOutcome::Offloaded => Outcome::Offloaded,
                    JobOutcome::Fallback => Outcome::Fallback,
                },
                reason: job.reason.to_owned(),
            })
        });
    }
}

/// The sampling thread's memory between two samples.
pub(crate) struct Monitor {
    pub(crate) sampler: Arc<SamplerState>,
    pub(crate) stores: Arc<Stores>,
    pub(crate) energy: Arc<EnergyThread>,
    pub(crate) federation: Arc<Federation>,
    pub(crate) progress: Arc<Mutex<Option<ProgressSource>>>,
    pub(crate) colocated: Arc<Mutex<crate::colocated::Colocated>>,
    pub(crate) cores: f64,
    pub(crate) is_emulated: bool,
    host: HostLoad,
    open_files: OpenFiles,
    last: Option<Last>,
}

struct Last {
    at: Instant,
    reading: Reading,
    input_bytes: u64,
    user_bytes: u64,
    progress: Progress,
    operations: u64,
}

/// Keys, by RocksDB's estimate of entries, without those that are counted as shadowed.
pub(crate) fn keys_about(properties: &StoreProperties, dedup: Option<&DedupProperties>) -> u64 {
    dedup.map_or(properties.keys_estimate, |dedup| dedup.keys_about(properties))
}

/// Bytes of a store's tables and segments, and of what lives in them by RocksDB's estimate, without
/// shadowed versions where these are counted: of what has left the memtables.
pub(crate) fn taken_and_live_bytes(
    properties: &StoreProperties,
    values: Option<&ValueLogProperties>,
    dedup: Option<&DedupProperties>,
) -> (u64, u64) {
    let taken = properties.table_bytes + values.map_or(0, |values| values.bytes);
    // RocksDB leaves out what is shadowed in tables, so that only separated values are left to
    // subtract.
    let shadowed = dedup.map_or(0, |dedup| dedup.shadowed_bytes);
    let referenced = values.map_or(0, |values| values.referenced_bytes.saturating_sub(shadowed));
    (taken, properties.live_data_bytes_estimate + referenced)
}

/// Whether a store takes writes.
pub(crate) fn writers(properties: &StoreProperties) -> Writers {
    match properties {
        StoreProperties { write_stopped: true, .. } => Writers::Stopped,
        StoreProperties { delayed_write_rate_bytes_per_s: 1.., .. } => Writers::Slowed,
        _ => Writers::Run,
    }
}

impl Monitor {
    #[allow(clippy::too_many_arguments)] // the parts of one server, wired once
    pub(crate) fn new(
        sampler: Arc<SamplerState>,
        stores: Arc<Stores>,
        energy: Arc<EnergyThread>,
        federation: Arc<Federation>,
        progress: Arc<Mutex<Option<ProgressSource>>>,
        colocated: Arc<Mutex<crate::colocated::Colocated>>,
        options: &ServeOptions,
    ) -> Monitor {
        Monitor {
            sampler,
            stores,
            energy,
            federation,
            progress,
            colocated,
            cores: f64::from(options.cores),
            is_emulated: options.emulated.is_some(),
            host: HostLoad::new(),
            open_files: OpenFiles::default(),
            last: None,
        }
    }

    /// Takes one sample.
    pub(crate) fn sample(&mut self) {
        let at = Instant::now();
        self.sampler.does(at, Doing::AskingTheStore);
        let (properties, counters) = (self.stores.properties(), self.stores.counters());
        self.sampler.does(Instant::now(), Doing::Sampling);
        let properties = match properties {
            Ok(properties) => properties,
            Err(error) => {
                // Once a second until the store is closed; the next sample may be whole again.
                tracing::warn!(%error, "the store's properties cannot be read; this second has no sample");
                return;
            }
        };
        if self.stores.max_tables().is_some_and(|most| is_near(properties.tables(), most)) {
            self.stores.bound_tables();
        }
        let energy = self.energy.view();
        let reading = self.energy.reading();
        let progress = self.progress.lock().as_ref().map(|source| source()).unwrap_or_default();
        // Clients' requests are among their commands: where they are the workload, its progress
        // counts them a second time.
        let operations_so_far = self.sampler.commands.get().map_or(progress.ops, |source| source());
        let idle_host_cores = self.host.idle_cores();
        let models = self.federation.models();
        let predicted_before = (models.rate.samples > 0).then_some(models.rate.predicted.0);
        let (mut busy_cores, mut input_rate, mut done) = (0.0, 0.0, Progress::default());
        let (mut seconds, mut watts) = (1.0, 0.0);
        // Nothing here waits for the store: a health check gets the sample before.
        let before = self.sampler.sample();
        let before = before.as_deref();
        let values = self.stores.try_value_log().or_else(|| before.and_then(|before| before.values));
        let dedup = self.stores.try_dedup().or_else(|| before.and_then(|before| before.dedup.clone()));
        let room = self.stores.try_free_space();
        // Where clients are served their keys count, elements of large collections not among them.
        let keys = match self.sampler.keys.get() {
            Some(source) => source(),
            None => Some(keys_about(&properties, dedup.as_ref())),
        };
        let user_bytes = counters.user_bytes();
        // Clients may have been quicker than the first sample.
        let (mut operations, mut written) = (operations_so_far, user_bytes);
        if let Some(last) = &self.last {
            seconds = at.duration_since(last.at).as_secs_f64().max(1e-3);
            busy_cores = (reading.busy_core_seconds - last.reading.busy_core_seconds).max(0.0) / seconds;
            input_rate = counters.bytes_written.saturating_sub(last.input_bytes) as f64 / seconds;
            watts = (reading.total_joules - last.reading.total_joules).max(0.0) / seconds;
            // What is measured comes once a second, between two samples or not.
            watts = energy.watts.map_or(watts, |measured| measured.1.0);
            *self.sampler.watts.lock() = Some(watts);
            done = Progress {
                ops: progress.ops.saturating_sub(last.progress.ops),
                reads: progress.reads.saturating_sub(last.progress.reads),
                writes: progress.writes.saturating_sub(last.progress.writes),
            };
            written = user_bytes.saturating_sub(last.user_bytes);
            operations = operations_so_far.saturating_sub(last.operations);
        }
        let (store_bytes, live_bytes) = taken_and_live_bytes(&properties, values.as_ref(), dedup.as_ref());
        {
            let mut activity = self.sampler.activity.lock();
            *activity = Activity {
                uptime_ms: at.saturating_duration_since(self.sampler.started).as_millis() as u64,
                operations_total: activity.operations_total + operations,
                ops_per_s: operations as f64 / seconds,
                written_bytes_total: activity.written_bytes_total + written,
                write_bytes_per_s: written as f64 / seconds,
                writers: writers(&properties),
                stall_ms_total: counters.stall_us() / 1000,
                running_compactions: properties.running_compactions as u32,
                running_offloaded: properties.running_remote_compactions as u32,
                watts,
                energy_source: reading.source.name().to_owned(),
                frequency_hz: reading.frequency_hz,
                store_bytes,
                // As in INFO, where nothing is estimated before the first flush.
                live_bytes: if counters.flushes > 0 { live_bytes } else { 0 },
                free_bytes: room.map_or(0, |room| room.free_bytes),
                ..Activity::default()
            };
        }
        // Emulated cores are the server's own; on a real machine others use the cores as well.
        let free_cores = match idle_host_cores {
            Some(idle) if !self.is_emulated => idle.min(self.cores),
            _ => (self.cores - busy_cores).max(0.0),
        };
        {
            let mut load = self.sampler.load.lock();
            load.l0_tables = properties.l0_tables as u32;
            load.input_bytes_per_s = input_rate;
            load.input_bytes_total = counters.bytes_written;
            load.memtable_bytes = properties.memtable_bytes;
            load.flushed_tables_total = counters.flushes;
            load.free_cores = free_cores;
            load.stalled = properties.write_stopped || properties.delayed_write_rate_bytes_per_s > 0;
            // Notifications of RocksDB can pass one another; this sample corrects them.
            self.sampler.note_stall(load.stalled);
            load.joules_total = reading.total_joules;
        }
        self.federation.load_measured();
        // A second that began before the workload holds what came before it, such as the load of
        // its keys.
        let is_of_workload = self.last.as_ref().is_some_and(|last| self.sampler.had_begun(last.at));
        let sample = |at_s| {
            Record::Sample(Sample {
                at_s,
                ops: done.ops,
                reads: done.reads,
                writes: done.writes,
                l0_tables: properties.l0_tables,
                stall_ms: counters.stall_us() as f64 / 1e3,
                delayed_ms: counters.writer_stall_us as f64 / 1e3,
                input_rate_bytes_per_s: input_rate,
                input_rate_predicted_bytes_per_s: predicted_before,
                busy_cores,
                free_cores,
                colocated_threads: self.colocated.lock().count() as u64,
                energy_joules: reading.total_joules,
                running_worker_jobs: self.federation.statistics().running_worker_jobs as u64,
                pending_compaction_bytes: properties.pending_compaction_bytes,
            })
        };
        let reported = if is_of_workload {
            self.sampler.emit(sample);
            progress
        } else {
            // What the workload did in it belongs to its first whole second.
            Progress::default()
        };
        self.sampler.note_l0(properties.l0_tables);
        let input_bytes = counters.bytes_written;
        let server_sample = ServerSample {
            at,
            values,
            compression: self.stores.value_compression(),
            dedup,
            room,
            keys,
            write_failure: self.stores.write_failure(),
            reading: reading.clone(),
            energy,
            watts: self.sampler.watts(),
            free_cores,
            open_files: self.open_files.count(at),
            federation: self.federation.statistics(),
            known: self.federation.membership().map(|membership| membership.known()),
            copies: self.sampler.copies.get().map(CopiesHandle::facts).unwrap_or_default(),
            reads: self.sampler.reads.get().map(ReadsHandle::facts).unwrap_or_default(),
            models,
            properties,
            counters,
        };
        *self.sampler.sample.lock() = Some(Arc::new(server_sample));
        self.last =
            Some(Last { at, reading, input_bytes, user_bytes, progress: reported, operations: operations_so_far });
    }
}
