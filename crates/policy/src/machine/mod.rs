//! The state machine: events in, commands out.

mod message;
mod parameters;
mod report;

pub use message::{
    Command, DeclineReason, Event, FailureReason, JobObservation, JobReport, Link, LoadSample, LocalReason,
    OffloadOutcome, PlacementAnswer, PlacementRequest, Prediction,
};
pub use parameters::{ModelParameters, Parameters, RateParameters, Weighting, WhenNoneInTime};
pub use report::{ModelKind, ModelReport, ModelSummary, RateSummary};

use crate::error::Result;
use crate::ids::ServerId;
use crate::units::Time;

/// One server's decisions, in both of its roles: owner of its own jobs and, if it is the coordinator, placer of
/// everybody's.
#[derive(Clone, Debug)]
pub struct PolicyCore {
    own: ServerId,
    parameters: Parameters,
}

impl PolicyCore {
    /// A machine for the server `own`, which knows nothing yet.
    ///
    /// # Errors
    /// [`Error::Parameter`](crate::Error::Parameter) when a parameter is outside its range.
    pub fn new(own: ServerId, parameters: Parameters) -> Result<Self> {
        parameters.validate()?;
        Ok(Self { own, parameters })
    }

    /// The server that this machine decides for.
    pub fn own(&self) -> &ServerId {
        &self.own
    }

    /// The constants that it decides by.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Takes an event and gives the commands that follow from it, in the order in which they are to be carried out.
    pub fn handle(&mut self, _now: Time, event: Event) -> Vec<Command> {
        match event {
            Event::CompactionReady { job, .. } => {
                vec![Command::RunHere { job, reason: LocalReason::PolicyIsLocal }]
            }
            Event::PlacementRequested { request } => vec![Command::AnswerPlacement {
                owner: request.owner,
                job: request.job,
                answer: PlacementAnswer::Local { reason: LocalReason::PolicyIsLocal },
            }],
            _ => Vec::new(),
        }
    }

    /// What the models know now.
    pub fn models(&self) -> ModelReport {
        ModelReport::default()
    }
}
