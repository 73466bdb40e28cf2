//! What servers tell one another, and what goes into and comes out of the machine.
//!
//! Everything with `serde` may cross the wire. Numbers from a peer are not believed: `problem()` of a message names what
//! is impossible in it, and the machine ignores such a message as a whole.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, ServerId};
use crate::prequential::relative_error;
use crate::units::{Bytes, BytesPerSecond, Cores, Joules, Seconds, Watts};

/// The range of core speeds that is believed, relative to the reference core.
const MIN_CORE_SPEED: f64 = 1e-6;
const MAX_CORE_SPEED: f64 = 1e6;

/// A path between two servers, as measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// What it carries one way. At least 1.
    pub bytes_per_s: BytesPerSecond,
    /// From a question to its answer, without payload. Zero or more.
    pub round_trip: Seconds,
}

/// What a server tells the coordinator, and its own machine, once a second (EdgePilot Algorithm 1; ECO-KVS section VI-B,
/// Monitor and Tracker).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadSample {
    /// The server that speaks.
    pub server: ServerId,
    /// Tables in level 0 now.
    pub l0_tables: u32,
    /// User bytes (keys and values) written in the last second, raw.
    pub input_bytes_per_s: BytesPerSecond,
    /// User bytes written since the server started.
    pub input_bytes_total: Bytes,
    /// Bytes in memtables now, flushed ones excepted.
    pub memtable_bytes: Bytes,
    /// L0 tables that flushes have made since the server started.
    pub flushed_tables_total: u64,
    /// Cores that are idle now.
    pub free_cores: Cores,
    /// All cores of the server.
    pub cores: Cores,
    /// The speed of one core, relative to the reference core of
    /// [`ModelParameters`](super::ModelParameters). From 1e-6 to 1e6.
    pub core_speed: f64,
    /// Bandwidth of the server's network that is unused now.
    pub free_network_bytes_per_s: BytesPerSecond,
    /// The measured path from this server to the coordinator; `None` at the coordinator itself, and until it has been
    /// measured.
    pub link: Option<Link>,
    /// Jobs that it would take from other servers now.
    pub worker_slots_free: u32,
    /// Whether its store delays or stops writes now.
    pub stalled: bool,
    /// Power of one busy core, above idle.
    pub active_watts: Watts,
    /// Power of the server when all its cores are idle.
    pub idle_watts: Watts,
    /// Energy used since the server started, by its best meter.
    pub joules_total: Joules,
}

impl LoadSample {
    /// What is impossible in this sample, if anything.
    pub fn problem(&self) -> Option<&'static str> {
        let checks = [
            (self.input_bytes_per_s.is_plausible(), "the input rate is out of range"),
            (self.free_cores.is_plausible(), "the number of free cores is out of range"),
            (self.cores.is_plausible(), "the number of cores is out of range"),
            ((MIN_CORE_SPEED..=MAX_CORE_SPEED).contains(&self.core_speed), "the core speed is out of range"),
            (self.free_network_bytes_per_s.is_plausible(), "the free bandwidth is out of range"),
            (self.active_watts.is_plausible(), "the active power is out of range"),
            (self.idle_watts.is_plausible(), "the idle power is out of range"),
            (self.joules_total.is_plausible(), "the energy is out of range"),
            (
                self.link.is_none_or(|link| {
                    link.bytes_per_s.is_plausible() && link.bytes_per_s.0 >= 1.0 && link.round_trip.is_plausible()
                }),
                "the link has no bandwidth or an impossible round trip",
            ),
        ];
        checks.into_iter().find_map(|(good, problem)| (!good).then_some(problem))
    }
}

/// A finished (sub)compaction. The owner gives it to its own machine and to the coordinator, each exactly once, whoever
/// ran it: a report that is delivered twice trains twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// Whose store it was.
    pub owner: ServerId,
    /// Who ran it; the owner itself when it was local.
    pub worker: ServerId,
    /// Its number at the owner.
    pub job: JobId,
    /// Bytes of the input tables. More than zero.
    pub input_bytes: Bytes,
    /// Bytes of the output tables.
    pub output_bytes: Bytes,
    /// From the moment it was started or sent until its output was at the owner. More than zero.
    pub seconds: Seconds,
    /// Energy that the worker (and, when local, the owner) used for it; zero when nothing measures energy: then no
    /// energy model learns from it.
    pub joules: Joules,
    /// The part of `seconds` in which bytes moved and nothing else; `None` when local or not measured.
    pub transfer_seconds: Option<Seconds>,
    /// Level of the inputs.
    pub input_level: i32,
    /// Level of the outputs.
    pub output_level: i32,
}

impl JobReport {
    /// Whether the owner ran it itself.
    pub fn is_local(&self) -> bool {
        self.owner == self.worker
    }

    /// What is impossible in this report, if anything.
    pub fn problem(&self) -> Option<&'static str> {
        let checks = [
            (self.input_bytes > Bytes::ZERO, "the job read nothing"),
            (self.seconds.is_plausible() && self.seconds.0 > 0.0, "the job took no time or for ever"),
            (self.joules.is_plausible(), "the energy is out of range"),
            (self.transfer_seconds.is_none_or(Seconds::is_plausible), "the transfer time is out of range"),
        ];
        checks.into_iter().find_map(|(good, problem)| (!good).then_some(problem))
    }
}

/// What a model says about a job before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Time from start to output at the owner. Zero or more.
    pub seconds: Seconds,
    /// Energy at the worker. Zero or more.
    pub joules: Joules,
    /// Mean relative error of the time model's recent predictions, 0.05 for 5 %; zero while it has none.
    pub time_error: f64,
    /// Finished jobs that the time model has learned from; 0 means that this is a prior.
    pub samples: u64,
}

impl Prediction {
    /// Whether its numbers are finite and not negative.
    pub fn is_plausible(&self) -> bool {
        self.seconds.is_plausible()
            && self.joules.is_plausible()
            && self.time_error.is_finite()
            && self.time_error >= 0.0
    }
}

/// An owner asks the coordinator for a worker (ECO-KVS section VI-B, Offloader).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementRequest {
    /// Whose store it is.
    pub owner: ServerId,
    /// The job's number at the owner.
    pub job: JobId,
    /// Bytes of the input tables.
    pub input_bytes: Bytes,
    /// Level of the inputs.
    pub input_level: i32,
    /// Level of the outputs.
    pub output_level: i32,
    /// What the owner's own model says it takes at home; `None` while it has no model.
    pub local_time: Option<Seconds>,
    /// T_max of ECO-KVS: a worker must be predicted to take less. `None`: there is no deadline.
    pub latest: Option<Seconds>,
    /// Workers that declined or failed a job of this owner a short while ago.
    pub avoid: Vec<ServerId>,
}

impl PlacementRequest {
    /// What is impossible in this request, if anything. `max_servers` bounds the list of servers to avoid.
    pub fn problem(&self, max_servers: usize) -> Option<&'static str> {
        let checks = [
            (self.input_bytes > Bytes::ZERO, "the job reads nothing"),
            (self.local_time.is_none_or(Seconds::is_plausible), "the local time is out of range"),
            (self.latest.is_none_or(Seconds::is_plausible), "the latest time is out of range"),
            (self.avoid.len() <= max_servers, "it avoids more servers than a federation may have"),
        ];
        checks.into_iter().find_map(|(good, problem)| (!good).then_some(problem))
    }
}

/// The coordinator's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementAnswer {
    /// Send it there.
    Worker {
        /// The chosen worker; never the owner.
        worker: ServerId,
        /// What is expected of it.
        prediction: Prediction,
    },
    /// Run it at home.
    Local {
        /// Why.
        reason: LocalReason,
    },
}

/// Why a compaction runs on its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalReason {
    /// The policy never offloads.
    PolicyIsLocal,
    /// The policy considers compactions of level 0 only.
    NotLevelZero,
    /// It ends before L0 reaches the stall threshold (ECO-KVS equation 2 does not hold).
    NoStallForecast,
    /// The head of EdgePilot's queue would not be faster (EdgePilot equation 3 does not hold).
    NotFaster,
    /// No other server is enabled in the server table.
    NoServerEnabled,
    /// Servers are enabled, but none ends before the latest time (ECO-KVS equation 3 gives an empty set).
    NoneInTime,
    /// Nothing is known about how long it takes: neither a model nor a load sample.
    NoPrediction,
    /// As many placements or offloads of this owner are under way as may be.
    TooManyOutstanding,
    /// There is no coordinator, or it did not take the request.
    CoordinatorUnavailable,
    /// The coordinator did not answer in time.
    PlacementTimedOut,
    /// The coordinator's answer or the request made no sense.
    ImplausiblePlacement,
    /// The worker declined the job.
    Declined,
    /// The worker took the job, and it failed.
    Failed,
}

impl LocalReason {
    /// Every reason.
    pub const ALL: [LocalReason; 13] = [
        LocalReason::PolicyIsLocal,
        LocalReason::NotLevelZero,
        LocalReason::NoStallForecast,
        LocalReason::NotFaster,
        LocalReason::NoServerEnabled,
        LocalReason::NoneInTime,
        LocalReason::NoPrediction,
        LocalReason::TooManyOutstanding,
        LocalReason::CoordinatorUnavailable,
        LocalReason::PlacementTimedOut,
        LocalReason::ImplausiblePlacement,
        LocalReason::Declined,
        LocalReason::Failed,
    ];

    /// The name, as in metrics, logs and reports.
    pub const fn name(self) -> &'static str {
        match self {
            LocalReason::PolicyIsLocal => "policy-is-local",
            LocalReason::NotLevelZero => "not-level-zero",
            LocalReason::NoStallForecast => "no-stall-forecast",
            LocalReason::NotFaster => "not-faster",
            LocalReason::NoServerEnabled => "no-server-enabled",
            LocalReason::NoneInTime => "none-in-time",
            LocalReason::NoPrediction => "no-prediction",
            LocalReason::TooManyOutstanding => "too-many-outstanding",
            LocalReason::CoordinatorUnavailable => "coordinator-unavailable",
            LocalReason::PlacementTimedOut => "placement-timed-out",
            LocalReason::ImplausiblePlacement => "implausible-placement",
            LocalReason::Declined => "declined",
            LocalReason::Failed => "failed",
        }
    }

    /// Whether something went wrong, as opposed to the policy's choice. Such fallbacks are worth a log line.
    pub const fn is_fallback(self) -> bool {
        matches!(
            self,
            LocalReason::TooManyOutstanding
                | LocalReason::CoordinatorUnavailable
                | LocalReason::PlacementTimedOut
                | LocalReason::ImplausiblePlacement
                | LocalReason::Declined
                | LocalReason::Failed
        )
    }
}

impl fmt::Display for LocalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why a worker declined a job before it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeclineReason {
    /// No core is free.
    NoFreeCore,
    /// It runs as many jobs as it may.
    NoFreeSlot,
    /// Its memory limit leaves no room.
    NoMemory,
    /// Its disk leaves no room for the output.
    NoDisk,
    /// Its network is busy.
    NoBandwidth,
    /// Its own store is stalled.
    Stalled,
    /// The owner's files had changed when it opened them.
    StaleInput,
    /// The two speak different protocol versions.
    VersionMismatch,
    /// It is going down.
    ShuttingDown,
}

impl DeclineReason {
    /// Every reason.
    pub const ALL: [DeclineReason; 9] = [
        DeclineReason::NoFreeCore,
        DeclineReason::NoFreeSlot,
        DeclineReason::NoMemory,
        DeclineReason::NoDisk,
        DeclineReason::NoBandwidth,
        DeclineReason::Stalled,
        DeclineReason::StaleInput,
        DeclineReason::VersionMismatch,
        DeclineReason::ShuttingDown,
    ];

    /// The name, as in metrics, logs and reports.
    pub const fn name(self) -> &'static str {
        match self {
            DeclineReason::NoFreeCore => "no-free-core",
            DeclineReason::NoFreeSlot => "no-free-slot",
            DeclineReason::NoMemory => "no-memory",
            DeclineReason::NoDisk => "no-disk",
            DeclineReason::NoBandwidth => "no-bandwidth",
            DeclineReason::Stalled => "stalled",
            DeclineReason::StaleInput => "stale-input",
            DeclineReason::VersionMismatch => "version-mismatch",
            DeclineReason::ShuttingDown => "shutting-down",
        }
    }
}

impl fmt::Display for DeclineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why a job that a worker had taken came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureReason {
    /// The worker could not be reached.
    Unreachable,
    /// Its heartbeats stopped.
    HeartbeatLost,
    /// It ran past the deadline.
    DeadlineMissed,
    /// The owner cancelled it.
    Cancelled,
    /// The worker reported an error of its own.
    WorkerFailed,
    /// The output was damaged, truncated, misordered or foreign.
    OutputRefused,
    /// The owner could not store or install the output.
    OwnerFailed,
}

impl FailureReason {
    /// The name, as in metrics, logs and reports.
    pub const fn name(self) -> &'static str {
        match self {
            FailureReason::Unreachable => "unreachable",
            FailureReason::HeartbeatLost => "heartbeat-lost",
            FailureReason::DeadlineMissed => "deadline-missed",
            FailureReason::Cancelled => "cancelled",
            FailureReason::WorkerFailed => "worker-failed",
            FailureReason::OutputRefused => "output-refused",
            FailureReason::OwnerFailed => "owner-failed",
        }
    }

    /// Whether the worker is to blame, so that the owner avoids it for a while.
    pub const fn blames_worker(self) -> bool {
        !matches!(self, FailureReason::Cancelled | FailureReason::OwnerFailed)
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How an offload ended at its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OffloadOutcome {
    /// The worker did not take it.
    Declined {
        /// Who declined.
        worker: ServerId,
        /// Why.
        reason: DeclineReason,
    },
    /// The worker took it, and it failed.
    Failed {
        /// Who failed.
        worker: ServerId,
        /// Why.
        reason: FailureReason,
    },
    /// The output is verified, durable and installed.
    Installed,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Owner: this server's store asks where a (sub)compaction shall run.
    CompactionReady {
        /// Its number; used once.
        job: JobId,
        /// Bytes of the input tables.
        input_bytes: Bytes,
        /// Level of the inputs.
        input_level: i32,
        /// Level of the outputs.
        output_level: i32,
        /// Tables in level 0 now, those of this compaction included; `None`: as the last own load sample says.
        l0_tables: Option<u32>,
    },
    /// Coordinator: a server asks for a worker.
    PlacementRequested {
        /// The question.
        request: PlacementRequest,
    },
    /// Owner: the coordinator's answer.
    PlacementAnswered {
        /// The job that was asked about.
        job: JobId,
        /// The answer.
        answer: PlacementAnswer,
    },
    /// Owner: the question found no coordinator, was not taken, or went unanswered.
    PlacementUnavailable {
        /// The job that was asked about.
        job: JobId,
    },
    /// Owner: an offload is over.
    OffloadEnded {
        /// The job.
        job: JobId,
        /// How it ended.
        outcome: OffloadOutcome,
    },
    /// A job is finished and installed: own jobs at their owner, every server's at the coordinator.
    JobFinished(JobReport),
    /// A load sample: the own one once a second, every server's at the coordinator.
    LoadSampled(LoadSample),
    /// A server is gone.
    ServerLost {
        /// Which.
        server: ServerId,
    },
    /// Time has passed: give at least one each half of the placement timeout.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Owner: run the compaction here.
    RunHere {
        /// The job.
        job: JobId,
        /// Why here.
        reason: LocalReason,
    },
    /// Owner: ask the coordinator, and bring its answer as an event.
    AskCoordinator {
        /// The question.
        request: PlacementRequest,
    },
    /// Coordinator: answer a server's question.
    AnswerPlacement {
        /// Who asked.
        owner: ServerId,
        /// About which of its jobs.
        job: JobId,
        /// The answer.
        answer: PlacementAnswer,
    },
    /// Owner: send the compaction to a worker, and bring the end of it as an event.
    Offload {
        /// The job.
        job: JobId,
        /// To whom.
        worker: ServerId,
        /// What is expected.
        prediction: Prediction,
        /// Cancel it after this time, counted from now.
        deadline: Seconds,
    },
    /// Record what the models said about a finished job beside what came true.
    Observed(JobObservation),
}

/// What the models said about a finished job, and what came true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobObservation {
    /// Whose store it was.
    pub owner: ServerId,
    /// Who ran it.
    pub worker: ServerId,
    /// Its number at the owner.
    pub job: JobId,
    /// Bytes of the input tables.
    pub input_bytes: Bytes,
    /// What was predicted when the job was placed. `None` at all servers but its owner, and when nothing was known.
    pub at_decision: Option<Prediction>,
    /// What the models said just before they learned from this job; `samples` is the number of trainings before it.
    /// `None` when they knew nothing, not even a prior.
    pub before_training: Option<Prediction>,
    /// How long it took.
    pub seconds: Seconds,
    /// What it cost; zero when nothing measured it.
    pub joules: Joules,
}

impl JobObservation {
    /// Relative error of the time predicted just before the training: 0.05 for 5 %.
    pub fn time_error(&self) -> Option<f64> {
        relative_error(self.before_training?.seconds.0, self.seconds.0)
    }

    /// Relative error of the energy predicted just before the training; `None` when nothing measured it.
    pub fn energy_error(&self) -> Option<f64> {
        relative_error(self.before_training?.joules.0, self.joules.0)
    }
}
