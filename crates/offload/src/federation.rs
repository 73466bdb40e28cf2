//! One server's part in a federation: what its sides share, and its start and stop.
//!
//! # Threads
//!
//! A run time with few threads carries all messages; they have the duty `transport`. A job of another server has a thread
//! of its own, a job of this server holds its compaction's thread.

mod known;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::{CompactionFinished, CompactionOffload};
use ecotone_policy::duty::{Duty, DutyObserver};
use ecotone_policy::ids::ServerId;
use ecotone_policy::machine::{
    Command, Event, JobObservation, JobReport, LoadSample, LocalReason, ModelReport, PolicyCore, Prediction,
};
use ecotone_policy::units::{Seconds, Time};
use ecotone_power::{DutyScope, ThreadDuties};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tracing::{debug, info, warn};

use crate::activity::{Activity, KnownServer, Told};
use crate::addresses::Addresses;
use crate::config::Options;
use crate::connections::{CONNECTION_WINDOW_BYTES, Connections, FRAME_BYTES, STREAM_WINDOW_BYTES};
use crate::coordinator::{self, Queue};
use crate::counted_stream::CountedStream;
use crate::error::{Error, Result};
use crate::exports::Exports;
use crate::file_server::{self, FileServer, MAGIC};
use crate::heard::{Heard, Room};
use crate::owner::OwnerSide;
use crate::protocol::wire::coordinator_server::CoordinatorServer;
use crate::protocol::wire::peer_server::PeerServer;
use crate::protocol::wire::worker_server::WorkerServer;
use crate::protocol::{MESSAGE_BYTES_MAX, refuse_other_versions};
use crate::reports::{self, Unreported};
use crate::services::Services;
use crate::steps::Step;
use crate::traffic::Traffic;
use crate::worker::WorkerSide;

/// Threads that carry messages. Moving bytes is cheap beside compacting them.
const TRANSPORT_THREADS: usize = 2;
/// Threads for what would block the run time: looking up names.
const BLOCKING_THREADS: usize = 2;
/// How long a stop waits for calls under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that wait to be served.
const CONNECTIONS_WAITING: usize = 64;
/// How long to wait for the rest of a greeting that came in parts.
const GREETING_LOOK: Duration = Duration::from_millis(5);
/// How often what was left behind is looked for.
const TICK: Duration = Duration::from_millis(100);

/// What a server knows of itself; once a second it goes into the report to the coordinator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalLoad {
    /// Tables in level 0.
    pub l0_tables: u32,
    /// User bytes written in the last second.
    pub input_bytes_per_s: f64,
    /// User bytes written since the start.
    pub input_bytes_total: u64,
    /// Bytes in memtables.
    pub memtable_bytes: u64,
    /// Tables made by flushes since the start.
    pub flushed_tables_total: u64,
    /// Cores of the server.
    pub cores: f64,
    /// Cores that were idle in the last second.
    pub free_cores: f64,
    /// Speed of one core relative to the reference core of the policy's parameters.
    pub core_speed: f64,
    /// Whether writes are slowed or stopped.
    pub stalled: bool,
    /// Watts of one busy core above idle.
    pub active_watts: f64,
    /// Watts of the idle server.
    pub idle_watts: f64,
    /// Joules used since the start.
    pub joules_total: f64,
}

/// Where the federation learns of its own server. Called from its threads; must not block.
pub trait LoadSource: Send + Sync {
    /// The load as last measured.
    fn load(&self) -> LocalLoad;

    /// The rest of what it knows of itself, for people who watch. The federation adds its jobs and the forecast.
    fn activity(&self) -> Activity {
        Activity::default()
    }
}

/// Where a job of this server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOutcome {
    /// Here, as the policy wanted.
    Local,
    /// At a worker.
    Offloaded,
    /// Here, after something went wrong.
    Fallback,
}

impl JobOutcome {
    /// Its name in records and reports.
    pub fn name(self) -> &'static str {
        match self {
            JobOutcome::Local => "local",
            JobOutcome::Offloaded => "offloaded",
            JobOutcome::Fallback => "fallback",
        }
    }
}

/// A compaction of this server's store that has ended.
#[derive(Debug, Clone)]
pub struct JobEnded {
    /// The facts.
    pub report: JobReport,
    /// What was expected when it was placed or, for a local one, just before the models learned from it.
    pub predicted: Option<Prediction>,
    /// Where it ran.
    pub outcome: JobOutcome,
    /// Why it ran here; empty if it did not.
    pub reason: &'static str,
}

impl JobEnded {
    pub(crate) fn of(
        report: &JobReport,
        predicted: Option<Prediction>,
        outcome: JobOutcome,
        reason: &'static str,
    ) -> JobEnded {
        JobEnded { report: report.clone(), predicted, outcome, reason }
    }
}

/// Told of what happens. Called on the federation's threads; must not block.
pub trait JobObserver: Send + Sync {
    /// A compaction of this server's store has ended.
    fn job_ended(&self, job: &JobEnded) {
        let _ = job;
    }

    /// A model met a job: what it had said, and what came.
    fn observed(&self, observation: &JobObservation) {
        let _ = observation;
    }
}

/// Counters since the start.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    offloaded: AtomicU64,
    taken: AtomicU64,
    declined: Mutex<HashMap<&'static str, u64>>,
    fallbacks: Mutex<HashMap<&'static str, u64>>,
    kept: Mutex<HashMap<&'static str, u64>>,
}

impl Statistics {
    pub(crate) fn count_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_declined(&self, reason: &'static str) {
        *self.declined.lock().entry(reason).or_default() += 1;
    }

    pub(crate) fn count_fallback(&self, reason: &'static str) {
        *self.fallbacks.lock().entry(reason).or_default() += 1;
    }

    /// A compaction runs here for this reason. What has failed elsewhere counts by its error, see above.
    pub(crate) fn count_here(&self, reason: LocalReason) {
        if !reason.is_fallback() {
            *self.kept.lock().entry(reason.name()).or_default() += 1;
        }
    }
}

/// A copy of a server's counters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FederationStatistics {
    /// Compactions of this store that ran elsewhere.
    pub offloaded: u64,
    /// Compactions of other stores that ran here.
    pub taken: u64,
    /// Offers declined, by reason.
    pub declined: HashMap<&'static str, u64>,
    /// Compactions that ran here because an offload failed, by kind of error.
    pub fallbacks: HashMap<&'static str, u64>,
    /// Compactions that ran here because the policy wants them here, by its reason. The parts of one that is split count each.
    pub kept: HashMap<&'static str, u64>,
    /// File bytes sent to other servers.
    pub network_bytes_sent: u64,
    /// File bytes received from other servers.
    pub network_bytes_received: u64,
    /// Jobs of other servers that run now.
    pub running_worker_jobs: usize,
}

/// What all sides of a server share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    /// This server's.
    pub(crate) name: ServerId,
    pub(crate) runtime: Handle,
    pub(crate) connections: Connections,
    pub(crate) exports: Arc<Exports>,
    pub(crate) file_server: FileServer,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) worker: WorkerSide,
    pub(crate) queue: Option<Queue>,
    pub(crate) statistics: Statistics,
    /// Jobs that the coordinator has not heard of yet.
    pub(crate) unreported: Mutex<Unreported>,
    /// What the coordinator has heard of each server.
    pub(crate) heard: Mutex<Heard>,
    /// Whether the coordinator, another server, has taken the last report. Else nothing is asked of it.
    pub(crate) is_accepted: AtomicBool,
    duties: Arc<ThreadDuties>,
    core: Mutex<PolicyCore>,
    started: Instant,
    address: String,
    addresses: Mutex<Addresses>,
    /// Bits of an `f64`.
    free_network: AtomicU64,
    load: OnceLock<Arc<dyn LoadSource>>,
    last_sample: Mutex<Option<LoadSample>>,
    /// What the coordinator, another server, told of itself with its last answer to a report, and when.
    coordinator_told: Mutex<Option<(Instant, Told)>>,
    observer: Arc<dyn JobObserver>,
}

impl Shared {
    pub(crate) fn step(&self, step: Step) {
        if let Some(steps) = &self.options.steps {
            steps(step);
        }
    }

    /// Hands an event to the policy. Observations are passed on; all other commands are the caller's.
    pub(crate) fn decide(&self, event: Event) -> Vec<Command> {
        let now = Time(Seconds(self.started.elapsed().as_secs_f64()));
        let commands = self.core.lock().handle(now, event);
        for command in &commands {
            if let Command::Observed(observation) = command {
                self.observer.observed(observation);
            }
        }
        commands
    }

    /// The own load as last measured.
    pub(crate) fn last_sample(&self) -> Option<LoadSample> {
        self.last_sample.lock().clone()
    }

    pub(crate) fn set_last_sample(&self, sample: LoadSample) {
        *self.last_sample.lock() = Some(sample);
    }

    pub(crate) fn local_load(&self) -> Option<LocalLoad> {
        self.load.get().map(|source| source.load())
    }

    pub(crate) fn require_coordinator(&self) -> Result<&Queue> {
        self.queue.as_ref().ok_or_else(|| Error::Unreachable {
            peer: self.name.as_str().to_owned(),
            what: "this server is not the coordinator".into(),
        })
    }

    pub(crate) fn coordinator_address(&self) -> String {
        self.options.join.clone().unwrap_or_else(|| self.address.clone())
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    pub(crate) fn address_of(&self, server: &ServerId) -> Option<String> {
        if *server == self.name { Some(self.address()) } else { self.addresses.lock().of(server) }
    }

    /// Keeps in mind where another server listens; `false` when there is no room for it.
    pub(crate) fn learn_address(&self, server: &ServerId, address: &str) -> bool {
        let mut addresses = self.addresses.lock();
        let moved = addresses.of(server).is_none_or(|known| known != address);
        let learned = addresses.learn(server, address, Instant::now(), self.room());
        if moved {
            let coordinator = self.coordinator_address();
            self.connections.keep_only(|open| open == coordinator || addresses.has(open));
        }
        learned
    }

    pub(crate) fn placement_timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.options.policy.placement_timeout.0).unwrap_or(Duration::MAX)
    }

    /// Silence after which a server counts as gone.
    pub(crate) fn stale_after(&self) -> Duration {
        Duration::try_from_secs_f64(self.options.policy.stale_after.0).unwrap_or(Duration::MAX)
    }

    /// For what is known of other servers: the policy counts this one, too.
    pub(crate) fn room(&self) -> Room {
        let policy = &self.options.policy;
        let forget_after = Duration::try_from_secs_f64(policy.forget_after.0).unwrap_or(Duration::MAX);
        Room { max_servers: policy.max_servers.saturating_sub(1), forget_after }
    }

    /// Bandwidth that was unused in the last second.
    pub(crate) fn free_network_bytes_per_s(&self) -> f64 {
        f64::from_bits(self.free_network.load(Ordering::Relaxed))
    }

    pub(crate) fn set_free_network(&self, bytes_per_s: f64) {
        self.free_network.store(bytes_per_s.to_bits(), Ordering::Relaxed);
    }

    /// A duty of the calling thread that ends with the value, also by a panic.
    pub(crate) fn duty(&self, duty: Duty) -> DutyScope<'_> {
        DutyScope::begin(&*self.duties, duty)
    }

    /// CPU and energy of the calling thread so far, where the meter knows it.
    pub(crate) fn thread_use(&self) -> ThreadCost {
        let used = self.duties.meter().thread_use();
        ThreadCost { cpu_seconds: used.cpu.0, joules: used.energy.0 }
    }

    /// Energy of CPU time that some threads of this server spent at the present frequency.
    pub(crate) fn joules_of(&self, cpu_seconds: f64) -> f64 {
        let meter = self.duties.meter();
        meter.model().active_joules(Seconds(cpu_seconds), meter.p_state()).0
    }

    /// A job of this store has ended: the models learn, the coordinator will be told, and whoever watches.
    pub(crate) fn finished(&self, mut ended: JobEnded, report: JobReport) {
        if ended.outcome == JobOutcome::Offloaded {
            self.statistics.offloaded.fetch_add(1, Ordering::Relaxed);
        }
        for command in self.decide(Event::JobFinished(report.clone())) {
            if let Command::Observed(observation) = command {
                ended.predicted = ended.predicted.or(observation.before_training);
            }
        }
        if self.queue.is_none() {
            self.unreported.lock().push(report, self.options.limits.reports_waiting);
        }
        self.tell(&ended);
    }

    /// A job of this store has ended of which nobody learns.
    pub(crate) fn tell(&self, ended: &JobEnded) {
        self.observer.job_ended(ended);
    }
}

/// What a thread has used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadCost {
    pub(crate) cpu_seconds: f64,
    pub(crate) joules: f64,
}

impl ThreadCost {
    pub(crate) fn since(self, earlier: ThreadCost) -> ThreadCost {
        ThreadCost {
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
            joules: (self.joules - earlier.joules).max(0.0),
        }
    }
}

/// One server's part in a federation. Stops when dropped.
pub struct Federation {
    pub(crate) shared: Arc<Shared>,
    owner: Arc<OwnerSide>,
    runtime: Option<Runtime>,
}

impl Federation {
    /// Starts to listen, to report and, without [`Options::join`], to coordinate. A coordinator that cannot be reached yet is
    /// no error: everything is local until it can.
    ///
    /// # Errors
    /// [`Error::Configuration`] for options that cannot work; [`Error::Listen`]; [`Error::Io`] for
    /// the worker's folder.
    pub fn start(options: Options, duties: Arc<ThreadDuties>, observer: Arc<dyn JobObserver>) -> Result<Federation> {
        options.validate()?;
        let (begin, end) = (duties.clone(), duties.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(TRANSPORT_THREADS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("ecotone-transport")
            .on_thread_start(move || begin.begin(Duty::Transport))
            .on_thread_stop(move || end.end())
            .enable_all()
            .build()
            .map_err(|error| Error::Configuration(format!("no run time for the network: {error}")))?;
        let listener = runtime
            .block_on(TcpListener::bind(options.listen))
            .and_then(|listener| listener.local_addr().map(|address| (listener, address)))
            .map_err(|source| Error::Listen { address: options.listen, source });
        let (listener, listening): (_, SocketAddr) = listener?;
        let address = options.advertise.clone().unwrap_or_else(|| listening.to_string());
        let unusable = |error: &dyn std::fmt::Display| Error::Configuration(error.to_string());
        let name = match &options.name {
            Some(name) => name.clone(),
            // Of the port that it got: servers that all ask for any would have one name.
            None => ServerId::new(address.clone()).map_err(|error| unusable(&error))?,
        };
        let core = PolicyCore::new(name.clone(), options.policy.clone()).map_err(|error| unusable(&error))?;

        let (queue, queue_end) = match options.join {
            Some(_) => (None, None),
            None => {
                let (queue, end) = Queue::new(options.limits.placement_queue);
                (Some(queue), Some(end))
            }
        };
        let shared = Arc::new(Shared {
            runtime: runtime.handle().clone(),
            connections: Connections::new(name.clone(), &options.limits),
            exports: Arc::default(),
            file_server: FileServer::default(),
            traffic: Arc::default(),
            worker: WorkerSide::new(&options.worker_directory)?,
            queue,
            statistics: Statistics::default(),
            unreported: Mutex::default(),
            heard: Mutex::default(),
            is_accepted: AtomicBool::new(false),
            duties,
            core: Mutex::new(core),
            started: Instant::now(),
            addresses: Mutex::default(),
            address,
            free_network: AtomicU64::new(options.network_bytes_per_s.to_bits()),
            load: OnceLock::new(),
            last_sample: Mutex::default(),
            coordinator_told: Mutex::default(),
            observer,
            options,
            name,
        });

        let (for_calls, calls) = tokio::sync::mpsc::channel(CONNECTIONS_WAITING);
        runtime.spawn(accept(shared.clone(), listener, for_calls));
        let services = Services { shared: shared.clone() };
        let routes = Routes::new(PeerServer::new(services.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
            .add_service(CoordinatorServer::new(services.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
            .add_service(WorkerServer::new(services).max_decoding_message_size(MESSAGE_BYTES_MAX));
        let limits = &shared.options.limits;
        let serving = Server::builder()
            .http2_keepalive_interval(Some(limits.heartbeat_timeout / 2))
            .http2_keepalive_timeout(Some(limits.heartbeat_timeout))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_concurrent_streams(limits.calls_per_connection)
            .add_routes(refuse_other_versions(routes))
            .serve_with_incoming(ReceiverStream::new(calls));
        runtime.spawn(async move {
            if let Err(error) = serving.await {
                warn!(%error, "the federation's services ended");
            }
        });
        if shared.queue.is_none() {
            runtime.spawn(reports::run(shared.clone()));
        }
        runtime.spawn(tick(shared.clone()));
        if let Some(end) = queue_end {
            runtime.spawn(coordinator::serve(shared.clone(), end));
        }
        info!(
            server = %shared.name,
            address = shared.address,
            coordinator = shared.coordinator_address(),
            policy = %shared.options.policy.policy,
            "in the federation"
        );
        let owner = Arc::new(OwnerSide::new(shared.clone()));
        Ok(Federation { shared, owner, runtime: Some(runtime) })
    }

    /// Where other servers reach this one.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// What the store's options need to have its compactions placed.
    pub fn offload(&self) -> Arc<dyn CompactionOffload> {
        self.owner.clone()
    }

    /// Where the server's load is read from now on. Called once, when its store is open; later calls change nothing.
    pub fn set_load_source(&self, source: Arc<dyn LoadSource>) {
        let _ = self.shared.load.set(source);
    }

    /// The load source has a new measurement, which is taken now: once a second, as the forecast of the input rate counts in
    /// seconds. Without a load source it does nothing. Never waits for the network.
    pub fn load_measured(&self) {
        reports::measured(&self.shared);
    }

    /// To be called with every compaction that the store reports: the models learn from those that ran here.
    pub fn compaction_finished(&self, event: &CompactionFinished) {
        self.owner.compaction_finished(event);
    }

    /// Counters since the start.
    pub fn statistics(&self) -> FederationStatistics {
        let statistics = &self.shared.statistics;
        FederationStatistics {
            offloaded: statistics.offloaded.load(Ordering::Relaxed),
            taken: statistics.taken.load(Ordering::Relaxed),
            declined: statistics.declined.lock().clone(),
            fallbacks: statistics.fallbacks.lock().clone(),
            kept: statistics.kept.lock().clone(),
            network_bytes_sent: self.shared.traffic.sent(),
            network_bytes_received: self.shared.traffic.received(),
            running_worker_jobs: self.shared.worker.running(),
        }
    }

    /// This server's name.
    pub fn name(&self) -> &ServerId {
        &self.shared.name
    }

    /// This server first, then the others that it knows, by name: all that report where it is the coordinator, else its
    /// coordinator. Bounded by the policy's `max_servers`.
    pub fn servers(&self) -> Vec<KnownServer> {
        self.shared.known()
    }

    /// What the models of this server know.
    pub fn models(&self) -> ModelReport {
        self.shared.core.lock().models()
    }
}

impl Drop for Federation {
    fn drop(&mut self) {
        self.owner.cancel_all();
        self.shared.worker.cancel_all();
        self.shared.worker.wait_for_threads(STOP_TIMEOUT);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP_TIMEOUT);
        }
    }
}

/// Accepts connections: those for files go to threads of their own, those for calls to the services.
async fn accept(
    shared: Arc<Shared>,
    listener: TcpListener,
    for_calls: tokio::sync::mpsc::Sender<std::io::Result<CountedStream>>,
) {
    let places = Arc::new(Semaphore::new(shared.options.limits.connections));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files, mostly; it passes.
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(TICK).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            debug!("too many connections; one is refused");
            continue;
        };
        let (shared, for_calls) = (shared.clone(), for_calls.clone());
        tokio::spawn(async move {
            let mut first = [0; MAGIC.len()];
            let greeting = async {
                // Either side speaks first on a new connection, and both greetings are longer than this.
                while stream.peek(&mut first).await? < first.len() {
                    tokio::time::sleep(GREETING_LOOK).await;
                }
                stream.set_nodelay(true)
            };
            match tokio::time::timeout(shared.options.limits.heartbeat_timeout, greeting).await {
                Ok(Ok(())) if first == MAGIC => match stream.into_std() {
                    Ok(stream) => file_server::serve(&shared, stream),
                    Err(error) => debug!(%error, "a connection for files was lost"),
                },
                Ok(Ok(())) => {
                    let _ = for_calls.send(Ok(CountedStream::new(stream, place))).await;
                }
                Ok(Err(_)) | Err(_) => debug!("a connection ended before it said anything"),
            }
        });
    }
}

async fn tick(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(TICK);
    loop {
        tick.tick().await;
        shared.worker.forget_orphans(&shared.options.limits);
    }
}
