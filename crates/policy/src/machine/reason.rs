//! Why things go the way they go: every fallback names its reason, and every reason has one name
//! for metrics and logs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::policy::PolicyName;
use ecotone_types::JobPurpose;

/// Why a compaction runs on its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalReason {
    /// It moves values, and no other server has a copy of its tables.
    ValuesAreHere,
    /// The policy never offloads.
    PolicyIsLocal,
    /// The policy considers compactions of level 0 only.
    NotLevelZero,
    /// It ends before L0 reaches the stall threshold (ECO-KVS equation 2 does not hold).
    NoStallForecast,
    /// It merges duplicates, which nothing presses for: it ends before L0 reaches the stall
    /// threshold and before space is short.
    EndsInTime,
    /// The head of EdgePilot's queue would not be faster (EdgePilot equation 3 does not hold).
    NotFaster,
    /// No other server is enabled in the server table.
    NoServerEnabled,
    /// Servers are enabled, but none ends before the latest time (ECO-KVS equation 3 gives an empty
    /// set).
    NoneInTime,
    /// Nothing is known about how long it takes: neither a model nor a load sample.
    NoPrediction,
    /// As many placements or offloads of this owner are under way as may be.
    TooManyOutstanding,
    /// There is no coordinator, or it did not take the request, or did not answer in time.
    CoordinatorUnavailable,
    /// The coordinator's answer or the request made no sense.
    ImplausiblePlacement,
    /// The worker declined the job.
    Declined,
    /// The worker took the job, and it failed.
    Failed,
}

impl LocalReason {
    /// Every reason.
    pub const ALL: [LocalReason; 14] = [
        LocalReason::ValuesAreHere,
        LocalReason::PolicyIsLocal,
        LocalReason::NotLevelZero,
        LocalReason::NoStallForecast,
        LocalReason::EndsInTime,
        LocalReason::NotFaster,
        LocalReason::NoServerEnabled,
        LocalReason::NoneInTime,
        LocalReason::NoPrediction,
        LocalReason::TooManyOutstanding,
        LocalReason::CoordinatorUnavailable,
        LocalReason::ImplausiblePlacement,
        LocalReason::Declined,
        LocalReason::Failed,
    ];

    /// Why such a job stays at home whatever is known of servers; `None` where it may go.
    /// `is_held`: somebody has a copy of some of its input.
    pub(super) const fn of_policy(
        policy: PolicyName,
        purpose: JobPurpose,
        input_level: i32,
        is_held: bool,
    ) -> Option<Self> {
        if purpose.needs_copy() && !is_held {
            Some(LocalReason::ValuesAreHere)
        } else if !policy.may_offload() {
            Some(LocalReason::PolicyIsLocal)
        } else if !policy.considers(purpose, input_level) {
            Some(LocalReason::NotLevelZero)
        } else {
            None
        }
    }

    /// The name, as in metrics, logs and reports.
    pub const fn name(self) -> &'static str {
        match self {
            LocalReason::ValuesAreHere => "values-are-here",
            LocalReason::PolicyIsLocal => "policy-is-local",
            LocalReason::NotLevelZero => "not-level-zero",
            LocalReason::NoStallForecast => "no-stall-forecast",
            LocalReason::EndsInTime => "ends-in-time",
            LocalReason::NotFaster => "not-faster",
            LocalReason::NoServerEnabled => "no-server-enabled",
            LocalReason::NoneInTime => "none-in-time",
            LocalReason::NoPrediction => "no-prediction",
            LocalReason::TooManyOutstanding => "too-many-outstanding",
            LocalReason::CoordinatorUnavailable => "coordinator-unavailable",
            LocalReason::ImplausiblePlacement => "implausible-placement",
            LocalReason::Declined => "declined",
            LocalReason::Failed => "failed",
        }
    }

    /// Whether something went wrong, as opposed to the policy's choice. Such fallbacks are worth a
    /// log line.
    pub const fn is_fallback(self) -> bool {
        matches!(
            self,
            LocalReason::TooManyOutstanding
                | LocalReason::CoordinatorUnavailable
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
    /// Its memory limit leaves no space.
    NoMemory,
    /// Its disk leaves no space for the output.
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
