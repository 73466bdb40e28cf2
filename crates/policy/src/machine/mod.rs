//! The state machine: events in, commands out.
//!
//! One machine serves a server in both of its roles. As **owner** it decides for each of its
//! compactions whether to ask for a worker (`local`, after ECO-KVS's Local System). As
//! **coordinator** it finds the worker (`global`, after ECO-KVS's Global System and EdgePilot's
//! Scheduler). Both use the same models, so that the coordinator's own jobs train them once.
//!
//! ```text
//!   CompactionReady ---> gate ---> RunHere
//!                          |
//!                          +-----> AskCoordinator ==> PlacementRequested ---> AnswerPlacement
//!                                                                                   ||
//!   RunHere <---+------------------------ PlacementAnswered / PlacementUnavailable <=+
//!               |                          |
//!               |                          +-----> Offload ==> OffloadEnded ---> RunHere (declined, failed)
//!               |                                                   |
//!               +---- JobFinished <=================================+  ---> Observed
//! ```
//!
//! **Invariants.**
//! 1. Each `CompactionReady` is followed, at the latest by the end of the wait for its answer, by
//!    exactly one `RunHere` or one `Offload`; an `Offload` that is declined or fails by exactly one
//!    `RunHere`; nothing else gives these two. Whoever waits ends the wait after the placement
//!    timeout with `PlacementUnavailable`.
//! 2. The worker of an `Offload` or of an answer is never the owner.
//! 3. At most `max_placements_outstanding` jobs wait for an answer, and at most
//!    `max_offloads_outstanding` are on workers.
//! 4. Decisions do not depend on the order in which servers reported.
//! 5. A message with an impossible number changes nothing and is counted.
//!
//! **Failure modes.** None: in doubt the answer is "here". **Threads.** None: whoever drives the
//! machine gives it one event at a time.

mod event;
mod global;
mod local;
mod message;
mod parameters;
mod reason;
mod report;

pub use event::{Command, Event, JobObservation, OffloadOutcome};
pub use message::{Holder, JobReport, Link, LoadSample, PlacementAnswer, PlacementRequest, Prediction};
pub use parameters::{ModelParameters, Parameters, RateParameters, Weighting, WhenNoneInTime};
pub use reason::{DeclineReason, FailureReason, LocalReason};
pub use report::{ModelKind, ModelReport, ModelSummary, RateSummary};

use crate::error::Result;
use crate::predictor::Predictor;
use crate::server_table::Disabled;
use crate::stall::StallForecast;
use ecotone_types::ServerId;
use ecotone_types::units::Time;

use global::GlobalSystem;
use local::{LocalSystem, ReadyCompaction};

/// One server's decisions, in both of its roles: owner of its own jobs and, if it is the
/// coordinator, placer of everybody's.
#[derive(Clone, Debug)]
pub struct PolicyCore {
    own: ServerId,
    parameters: Parameters,
    predictor: Predictor,
    local: LocalSystem,
    global: GlobalSystem,
    /// The time of the latest event; time does not run backwards here.
    now: Time,
    ignored_messages_total: u64,
}

impl PolicyCore {
    /// A machine for the server `own`, which knows nothing yet.
    ///
    /// # Errors
    /// [`Error::Parameter`](crate::Error::Parameter) when a parameter is outside its range.
    pub fn new(own: ServerId, parameters: Parameters) -> Result<Self> {
        parameters.validate()?;
        Ok(Self {
            predictor: Predictor::new(&parameters.models, parameters.max_servers),
            local: LocalSystem::new(own.clone(), &parameters),
            global: GlobalSystem::new(&parameters),
            own,
            parameters,
            now: Time::default(),
            ignored_messages_total: 0,
        })
    }

    /// The server that this machine decides for.
    pub fn own(&self) -> &ServerId {
        &self.own
    }

    /// The constants that it decides by.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Takes an event and gives the commands that follow from it, in the order in which they are to
    /// be carried out. A `now` before that of an earlier event counts as that earlier one.
    pub fn handle(&mut self, now: Time, event: Event) -> Vec<Command> {
        if now.0.is_plausible() && now > self.now {
            self.now = now;
        }
        let now = self.now;
        match event {
            Event::CompactionReady {
                job,
                purpose,
                input_bytes,
                input_level,
                output_level,
                l0_tables,
                deadline,
                holders,
            } => {
                let compaction = ReadyCompaction {
                    job,
                    purpose,
                    input_bytes,
                    input_level,
                    output_level,
                    l0_tables,
                    deadline,
                    holders,
                };
                let command = self.local.ready(now, compaction, &self.parameters, &self.predictor);
                self.or_ignored(command)
            }
            Event::PlacementRequested { request } => {
                let answer = self.place(now, &request);
                vec![Command::AnswerPlacement { owner: request.owner, job: request.job, answer }]
            }
            Event::PlacementAnswered { job, answer } => {
                self.local.answered(job, answer, &self.parameters).into_iter().collect()
            }
            Event::PlacementUnavailable { job } => self.local.unavailable(job).into_iter().collect(),
            Event::OffloadEnded { job, outcome } => {
                self.local.offload_ended(now, job, outcome, &self.parameters).into_iter().collect()
            }
            Event::JobFinished(report) => self.job_finished(now, &report),
            Event::LoadSampled(sample) => self.load_sampled(now, sample),
        }
    }

    /// What the models know now.
    pub fn models(&self) -> ModelReport {
        ModelReport {
            models: self.predictor.summaries(self.now),
            rate: self.local.rate(),
            ignored_messages_total: self.ignored_messages_total,
        }
    }

    /// What the own store's L0 is heading for, as admission control sees it between jobs; `None`
    /// before the first own load sample.
    pub fn stall_forecast(&self) -> Option<StallForecast> {
        self.local.forecast(None, &self.parameters)
    }

    /// Whether a server may be given jobs now, as far as its load was reported to this machine.
    ///
    /// # Errors
    /// The first reason why not.
    pub fn takes_jobs(&self, now: Time, server: &ServerId) -> core::result::Result<(), Disabled> {
        self.global.check(now, server)
    }

    fn place(&mut self, now: Time, request: &PlacementRequest) -> PlacementAnswer {
        if request.problem(self.parameters.max_servers).is_some() {
            self.ignored_messages_total += 1;
            return PlacementAnswer::Local { reason: LocalReason::ImplausiblePlacement };
        }
        self.global.place(now, request, &self.parameters, &self.predictor)
    }

    fn job_finished(&mut self, now: Time, report: &JobReport) -> Vec<Command> {
        if report.problem().is_some() {
            self.ignored_messages_total += 1;
            return Vec::new();
        }
        let at_decision = if report.owner == self.own { self.local.finished(report.job) } else { None };
        let before_training = self.predictor.train(now, report);
        vec![Command::Observed(JobObservation {
            owner: report.owner.clone(),
            worker: report.worker.clone(),
            job: report.job,
            input_bytes: report.input_bytes,
            at_decision,
            before_training,
            seconds: report.seconds,
            joules: report.joules,
        })]
    }

    fn load_sampled(&mut self, now: Time, sample: LoadSample) -> Vec<Command> {
        if sample.problem().is_some() {
            self.ignored_messages_total += 1;
            return Vec::new();
        }
        if sample.server == self.own {
            self.local.observe(&sample);
        }
        self.predictor.observe_load(now, &sample);
        if !self.global.observe(now, sample) {
            self.ignored_messages_total += 1;
        }
        Vec::new()
    }

    fn or_ignored(&mut self, command: Option<Command>) -> Vec<Command> {
        if command.is_none() {
            self.ignored_messages_total += 1;
        }
        command.into_iter().collect()
    }
}
