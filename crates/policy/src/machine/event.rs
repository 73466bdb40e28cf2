//! What goes into the machine, and what comes out.

use serde::{Deserialize, Serialize};

use crate::prequential::relative_error;
use ecotone_types::units::{Bytes, Joules, Seconds};
use ecotone_types::{JobId, JobPurpose, ServerId};

use super::message::{Holder, JobReport, LoadSample, PlacementAnswer, PlacementRequest, Prediction};
use super::reason::{DeclineReason, FailureReason, LocalReason};

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
        /// What it is for.
        purpose: JobPurpose,
        /// Bytes of the input tables.
        input_bytes: Bytes,
        /// Level of the inputs.
        input_level: i32,
        /// Level of the outputs.
        output_level: i32,
        /// Tables in level 0 now, those of this compaction included; `None`: as the last own load
        /// sample says.
        l0_tables: Option<u32>,
        /// Until when it must have ended for another reason than a stall: that long space lasts.
        /// `None`: there is no such reason.
        deadline: Option<Seconds>,
        /// Servers with a copy of the shard, and how much of the input each holds.
        holders: Vec<Holder>,
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
    /// Owner: the question found no coordinator, was not taken, or went unanswered for the
    /// placement timeout.
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
    /// What was predicted when the job was placed. `None` at all servers but its owner, and when
    /// nothing was known.
    pub at_decision: Option<Prediction>,
    /// What the models said just before they learned from this job; `samples` is the number of
    /// trainings before it. `None` when they knew nothing, not even a prior.
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

    /// Relative error of the energy predicted just before the training; `None` when nothing
    /// measured it.
    pub fn energy_error(&self) -> Option<f64> {
        relative_error(self.before_training?.joules.0, self.joules.0)
    }
}
