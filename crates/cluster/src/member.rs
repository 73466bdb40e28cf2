//! One server of a federation: the state that its sides (coordinator, owner, worker, reports,
//! services) share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ecotone_energy::{DutyScope, ThreadDuties};
use ecotone_policy::machine::{Command, Event, JobReport, LoadSample, ModelReport, PolicyCore};
use ecotone_transport::addresses::{Addresses, Retention};
use ecotone_transport::connections::Connections;
use ecotone_transport::exports::{Exports, Role};
use ecotone_transport::file_server::{FileServer, RangeObserver};
use ecotone_transport::security::Security;
use ecotone_transport::traffic::Traffic;
use ecotone_types::Duty;
use ecotone_types::ServerId;
use ecotone_types::units::{Seconds, Time};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::activity::{Activity, KnownServer, LoadSource, LocalLoad, ReceivedReport};
use crate::config::Options;
use crate::copies::HeldCopies;
use crate::error::{Error, Result};
use crate::finished_jobs::{JobEnded, JobObserver, JobOutcome, Unreported};
use crate::placement_queue::PlacementQueue;
use crate::registry::Registry;
use crate::statistics::{FederationStatistics, Statistics};
use crate::steps::Step;
use crate::worker_jobs::WorkerJobs;

/// One server of a federation: what its sides share.
pub(crate) struct Member {
    pub(crate) options: Options,
    /// This server's.
    pub(crate) name: ServerId,
    pub(crate) runtime: Handle,
    pub(crate) security: Arc<Security>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) exports: Arc<Exports>,
    pub(crate) file_server: Arc<FileServer>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) worker: WorkerJobs,
    /// Requests that wait for this server, where it coordinates.
    pub(crate) queue: PlacementQueue,
    pub(crate) statistics: Statistics,
    /// Jobs that the coordinator has not confirmed.
    pub(crate) unreported: Mutex<Unreported>,
    coordinator: Mutex<Coordinator>,
    /// At the coordinator: the servers that report to it.
    pub(crate) registry: Mutex<Registry>,
    /// Whether the coordinator, another server, has taken the last report. Else nothing is asked of
    /// it.
    pub(crate) is_accepted: AtomicBool,
    duties: Arc<ThreadDuties>,
    core: Mutex<PolicyCore>,
    started: Instant,
    address: String,
    addresses: Mutex<Addresses>,
    /// Bits of an `f64`.
    free_network: AtomicU64,
    load: OnceLock<Arc<dyn LoadSource>>,
    held_copies: OnceLock<Arc<dyn HeldCopies>>,
    last_sample: Mutex<Option<LoadSample>>,
    /// What the coordinator, another server, reported of itself with its last reply, and when.
    coordinator_report: Mutex<Option<(Instant, ReceivedReport)>>,
    observer: Arc<dyn JobObserver>,
}

/// Who places jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Coordinator {
    /// This server.
    Here,
    /// The server at this address.
    At(String),
    /// Nobody leads, or nobody knows who does: all jobs are local.
    Unknown,
}

/// What a [`Member`] is made of that exists before it.
pub(crate) struct Parts {
    pub(crate) options: Options,
    pub(crate) name: ServerId,
    pub(crate) address: String,
    pub(crate) runtime: Handle,
    pub(crate) core: PolicyCore,
    pub(crate) queue: PlacementQueue,
    pub(crate) security: Arc<Security>,
    pub(crate) duties: Arc<ThreadDuties>,
    pub(crate) observer: Arc<dyn JobObserver>,
}

impl Member {
    /// # Errors
    /// Those of [`WorkerJobs::open`].
    pub(crate) fn new(parts: Parts) -> Result<Member> {
        let Parts { options, name, address, runtime, core, queue, security, duties, observer } = parts;
        let (exports, traffic): (Arc<Exports>, Arc<Traffic>) = Default::default();
        let steps = options.steps.clone();
        let range_observer: RangeObserver = Arc::new(move |role| {
            if let Some(steps) = &steps {
                steps(match role {
                    Role::Inputs => Step::ReadingInput,
                    Role::Outputs => Step::ReadingOutput,
                });
            }
        });
        let file_server = FileServer::new(exports.clone(), traffic.clone(), duties.clone(), range_observer);
        // With others the leader coordinates, and who that is comes from them.
        let coordinator = match (&options.membership, &options.join) {
            (Some(_), _) => Coordinator::Unknown,
            (None, Some(join)) => Coordinator::At(join.clone()),
            (None, None) => Coordinator::Here,
        };
        let connections = Connections::new(name.clone(), options.limits.timeouts(), security.clone());
        Ok(Member {
            runtime,
            connections: Arc::new(connections),
            coordinator: Mutex::new(coordinator),
            security,
            exports,
            file_server: Arc::new(file_server),
            traffic,
            worker: WorkerJobs::open(&options.worker_directory)?,
            queue,
            statistics: Statistics::default(),
            unreported: Mutex::default(),
            registry: Mutex::default(),
            is_accepted: AtomicBool::new(false),
            duties,
            core: Mutex::new(core),
            started: Instant::now(),
            addresses: Mutex::default(),
            address,
            free_network: AtomicU64::new(options.network_bytes_per_s.to_bits()),
            load: OnceLock::new(),
            held_copies: OnceLock::new(),
            last_sample: Mutex::default(),
            coordinator_report: Mutex::default(),
            observer,
            options,
            name,
        })
    }

    /// Where the load is read from now on; later calls change nothing.
    pub(crate) fn set_load_source(&self, source: Arc<dyn LoadSource>) {
        let _ = self.load.set(source);
    }

    /// The copies of shards here; later calls change nothing.
    pub(crate) fn set_held_copies(&self, copies: Arc<dyn HeldCopies>) {
        let _ = self.held_copies.set(copies);
    }

    /// The copies of shards here, where there may be some.
    pub(crate) fn held_copies(&self) -> Option<&Arc<dyn HeldCopies>> {
        self.held_copies.get()
    }

    /// What the models know.
    pub(crate) fn models(&self) -> ModelReport {
        self.core.lock().models()
    }

    /// Counters since the start.
    pub(crate) fn counters(&self) -> FederationStatistics {
        FederationStatistics {
            network_bytes_sent: self.traffic.sent(),
            network_bytes_received: self.traffic.received(),
            running_worker_jobs: self.worker.running(),
            handshakes: self.security.handshakes().completed(),
            failed_handshakes: self.failed_handshakes(),
            certificate_expiry_s: self.security.identity().map(|identity| identity.own().ends.0),
            ..self.statistics.snapshot()
        }
    }

    /// By reason: all reasons where there are handshakes at all.
    fn failed_handshakes(&self) -> HashMap<&'static str, u64> {
        let failed = self.security.handshakes().failed().map(|(failure, count)| (failure.name(), count));
        if self.security.identity().is_some() { failed.collect() } else { HashMap::new() }
    }

    pub(crate) fn step(&self, step: Step) {
        if let Some(steps) = &self.options.steps {
            steps(step);
        }
    }

    /// Hands an event to the policy. Observations are passed on; all other commands are the
    /// caller's.
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

    /// Who places jobs.
    pub(crate) fn coordinator(&self) -> Coordinator {
        self.coordinator.lock().clone()
    }

    /// Whether this server does.
    pub(crate) fn coordinates(&self) -> bool {
        *self.coordinator.lock() == Coordinator::Here
    }

    /// Another server places jobs from now on. What was reported to this one, and by it, is of the
    /// past; jobs that were placed go on.
    pub(crate) fn set_coordinator(&self, coordinator: Coordinator) -> bool {
        if std::mem::replace(&mut *self.coordinator.lock(), coordinator.clone()) == coordinator {
            return false;
        }
        self.is_accepted.store(false, Ordering::Release);
        *self.registry.lock() = Registry::default();
        *self.coordinator_report.lock() = None;
        true
    }

    pub(crate) fn require_coordinator(&self) -> Result<&PlacementQueue> {
        let refused = || Error::unreachable(self.name.as_str(), "this server is not the coordinator");
        self.coordinates().then_some(&self.queue).ok_or_else(refused)
    }

    /// Where the coordinator is; `None` while nobody knows.
    pub(crate) fn coordinator_address(&self) -> Option<String> {
        match self.coordinator() {
            Coordinator::Here => Some(self.address.clone()),
            Coordinator::At(address) => Some(address),
            Coordinator::Unknown => None,
        }
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    pub(crate) fn own_address(&self) -> &str {
        &self.address
    }

    pub(crate) fn address_of(&self, server: &ServerId) -> Option<String> {
        if *server == self.name { Some(self.address()) } else { self.addresses.lock().of(server) }
    }

    /// Keeps where another server listens; `false` when the table is full.
    pub(crate) fn learn_address(&self, server: &ServerId, address: &str) -> bool {
        let mut addresses = self.addresses.lock();
        let moved = addresses.of(server).is_none_or(|former| former != address);
        let learned = addresses.learn(server, address, Instant::now(), self.retention());
        if moved {
            let coordinator = self.coordinator_address();
            self.connections.keep_only(|open| coordinator.as_deref() == Some(open) || addresses.has(open));
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

    /// For the tables of other servers: the policy counts this one, too.
    pub(crate) fn retention(&self) -> Retention {
        let policy = &self.options.policy;
        let forget_after = Duration::try_from_secs_f64(policy.forget_after.0).unwrap_or(Duration::MAX);
        Retention { max_servers: policy.max_servers.saturating_sub(1), forget_after }
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

    /// A job of this store has ended: the models learn, the coordinator gets it with the next
    /// report, the observer now.
    pub(crate) fn finished(&self, mut ended: JobEnded, report: JobReport) {
        if ended.outcome == JobOutcome::Offloaded {
            self.statistics.count_offloaded();
        }
        for command in self.decide(Event::JobFinished(report.clone())) {
            if let Command::Observed(observation) = command {
                ended.predicted = ended.predicted.or(observation.before_training);
            }
        }
        if !self.coordinates() {
            self.unreported.lock().push(report, self.options.limits.reports_waiting);
        }
        self.notify_observer(&ended);
    }

    /// A job of this store has ended that no model learns from.
    pub(crate) fn notify_observer(&self, ended: &JobEnded) {
        self.observer.job_ended(ended);
    }

    /// How this server fares, for people who watch.
    pub(crate) fn activity(&self) -> Activity {
        let statistics = self.statistics.snapshot();
        let sum = |counts: &HashMap<&'static str, u64>| counts.values().sum();
        let forecast = self.core.lock().stall_forecast();
        Activity {
            stall_in_s: forecast.and_then(|forecast| forecast.latest()).map(|latest| latest.0),
            running_worker_jobs: self.worker.running() as u32,
            jobs_offloaded_total: statistics.offloaded,
            jobs_taken_total: statistics.taken,
            jobs_declined_total: sum(&statistics.declined),
            jobs_fallen_back_total: sum(&statistics.fallbacks),
            ..self.load.get().map(|source| source.activity()).unwrap_or_default()
        }
    }

    pub(crate) fn set_coordinator_report(&self, report: ReceivedReport) {
        *self.coordinator_report.lock() = Some((Instant::now(), report));
    }

    /// This server and the others of which it has reports: all that report where it is the
    /// coordinator, else its coordinator.
    pub(crate) fn servers(&self) -> Vec<KnownServer> {
        let own = KnownServer {
            name: self.name.clone(),
            address: self.address(),
            is_self: true,
            is_coordinator: self.coordinates(),
            silent_for: Duration::ZERO,
            load: self.last_sample(),
            activity: Some(self.activity()),
            takes_jobs: None,
        };
        let mut servers = vec![own];
        let other = |name: &ServerId, address: &str, at: Instant, report: Option<&ReceivedReport>| KnownServer {
            name: name.clone(),
            address: address.to_owned(),
            is_self: false,
            is_coordinator: false,
            silent_for: at.elapsed(),
            load: report.and_then(|report| report.load.clone()),
            activity: report.and_then(|report| report.activity.clone()),
            takes_jobs: None,
        };
        if self.coordinates() {
            let registry = self.registry.lock();
            servers.extend(registry.each().map(|(name, address, at, report)| other(name, address, at, report)));
            drop(registry);
            let (now, core) = (Time(Seconds(self.started.elapsed().as_secs_f64())), self.core.lock());
            for server in &mut servers {
                server.takes_jobs = Some(core.takes_jobs(now, &server.name));
            }
        } else if let Some((at, report)) = &*self.coordinator_report.lock()
            && let Some(load) = &report.load
        {
            let address = self.coordinator_address().unwrap_or_default();
            let coordinator = other(&load.server, &address, *at, Some(report));
            servers.push(KnownServer { is_coordinator: true, ..coordinator });
        }
        servers[1..].sort_by(|one, other| one.name.cmp(&other.name));
        servers
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
