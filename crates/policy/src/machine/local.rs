//! The owner's half: ECO-KVS's Local System (section VI-B) with Monitor, gate and Offloader, and
//! the bookkeeping that gives every compaction exactly one place to run.
//!
//! A job is *asking* (the coordinator has been asked), *offloaded*, or *settled* (it runs here, or
//! its output is installed, and only its report is awaited). Every job leaves *asking* through
//! exactly one of an answer or "unavailable", and *offloaded* through the end of the offload.
//! Whatever else arrives for a job is late and changes nothing.
//!
//! Bounded: jobs that ask, jobs that are offloaded, jobs that are remembered, and workers that are
//! avoided.

use std::collections::BTreeMap;

use crate::predictor::{Job, Predictor};
use crate::rate::InputRate;
use crate::stall::StallForecast;
use ecotone_types::units::{Bytes, Seconds, Tables, Time};
use ecotone_types::{JobId, JobPurpose, ServerId};

use super::event::{Command, OffloadOutcome};
use super::message::{Holder, LoadSample, PlacementAnswer, PlacementRequest, Prediction};
use super::parameters::Parameters;
use super::reason::LocalReason;
use super::report::RateSummary;

#[derive(Clone, Debug)]
enum Phase {
    Asking,
    Offloaded { reported: bool },
    Settled,
}

#[derive(Clone, Debug)]
struct OpenJob {
    purpose: JobPurpose,
    phase: Phase,
    /// What it was predicted to take here.
    local: Option<Prediction>,
    /// What it was predicted to take on its worker; `None` when it has none, or no longer.
    remote: Option<Prediction>,
}

/// A compaction that asks where it shall run.
#[derive(Clone, Debug)]
pub(super) struct ReadyCompaction {
    pub(super) job: JobId,
    pub(super) purpose: JobPurpose,
    pub(super) input_bytes: Bytes,
    pub(super) input_level: i32,
    pub(super) output_level: i32,
    pub(super) l0_tables: Option<u32>,
    pub(super) deadline: Option<Seconds>,
    pub(super) holders: Vec<Holder>,
}

/// The Local System of one server.
#[derive(Clone, Debug)]
pub(super) struct LocalSystem {
    own: ServerId,
    rate: InputRate,
    /// Of the last own load sample.
    l0_tables: Option<u32>,
    jobs: BTreeMap<JobId, OpenJob>,
    /// Workers not to be asked for, and until when.
    avoid: BTreeMap<ServerId, Time>,
}

impl LocalSystem {
    pub(super) fn new(own: ServerId, parameters: &Parameters) -> Self {
        Self {
            own,
            rate: InputRate::new(&parameters.rate),
            l0_tables: None,
            jobs: BTreeMap::new(),
            avoid: BTreeMap::new(),
        }
    }

    /// The Monitor: the own load sample of each second.
    pub(super) fn observe(&mut self, sample: &LoadSample) {
        self.rate.observe(sample);
        self.l0_tables = Some(sample.l0_tables);
    }

    pub(super) fn rate(&self) -> RateSummary {
        self.rate.summary()
    }

    /// A compaction asks where to run. `None` when its number is that of a job still under way.
    pub(super) fn ready(
        &mut self,
        now: Time,
        compaction: ReadyCompaction,
        parameters: &Parameters,
        predictor: &Predictor,
    ) -> Option<Command> {
        let (job, purpose) = (compaction.job, compaction.purpose);
        if self.jobs.get(&job).is_some_and(|open| !matches!(open.phase, Phase::Settled)) {
            return None;
        }
        let local = predictor.local(&self.own, Job::new(compaction.input_bytes, compaction.input_level));
        Some(match self.decide(now, compaction, local, parameters) {
            Ok(request) => {
                self.remember(job, OpenJob { purpose, phase: Phase::Asking, local, remote: None }, parameters);
                Command::AskCoordinator { request }
            }
            Err(reason) => {
                if purpose != JobPurpose::Gc {
                    self.remember(job, OpenJob { purpose, phase: Phase::Settled, local, remote: None }, parameters);
                }
                Command::RunHere { job, reason }
            }
        })
    }

    /// Admission control: the question for the coordinator, or why there is none.
    fn decide(
        &self,
        now: Time,
        compaction: ReadyCompaction,
        local: Option<Prediction>,
        parameters: &Parameters,
    ) -> Result<PlacementRequest, LocalReason> {
        let policy = parameters.policy;
        if let Some(reason) =
            LocalReason::of_policy(policy, compaction.purpose, compaction.input_level, !compaction.holders.is_empty())
        {
            return Err(reason);
        }
        let forecast = self.forecast(compaction.l0_tables, parameters);
        if policy.has_gate() {
            let (Some(forecast), Some(local)) = (forecast, local) else { return Err(LocalReason::NoPrediction) };
            let is_late = compaction.deadline.is_some_and(|deadline| local.seconds >= deadline);
            if !is_late && !forecast.stalls_after(local.seconds) {
                return Err(match compaction.purpose {
                    JobPurpose::Compaction => LocalReason::NoStallForecast,
                    JobPurpose::Dedup | JobPurpose::Gc => LocalReason::EndsInTime,
                });
            }
        }
        if !self.has_room(parameters) {
            return Err(LocalReason::TooManyOutstanding);
        }
        let request = PlacementRequest {
            owner: self.own.clone(),
            job: compaction.job,
            purpose: compaction.purpose,
            input_bytes: compaction.input_bytes,
            input_level: compaction.input_level,
            output_level: compaction.output_level,
            local_time: local.map(|local| local.seconds),
            latest: if policy.has_energy_target() { latest(forecast, compaction.deadline) } else { None },
            avoid: self.avoid.iter().filter(|(_, until)| now < **until).map(|(worker, _)| worker.clone()).collect(),
            away: self.away() as u32,
            holders: compaction.holders,
        };
        match request.problem(parameters.max_servers) {
            None => Ok(request),
            Some(_) => Err(LocalReason::ImplausiblePlacement),
        }
    }

    /// `None` before the first own load sample.
    pub(super) fn forecast(&self, l0_tables: Option<u32>, parameters: &Parameters) -> Option<StallForecast> {
        Some(StallForecast {
            current: Tables(f64::from(l0_tables.or(self.l0_tables)?)),
            input: self.rate.tables_per_s()?,
            threshold: parameters.stall_threshold_tables - parameters.stall_margin_tables,
        })
    }

    fn has_room(&self, parameters: &Parameters) -> bool {
        self.asking() < parameters.max_placements_outstanding && self.away() < parameters.max_offloads_outstanding
    }

    fn asking(&self) -> usize {
        self.jobs.values().filter(|open| matches!(open.phase, Phase::Asking)).count()
    }

    /// A question counts as an offload already, since each may be answered with a worker.
    fn away(&self) -> usize {
        self.asking() + self.jobs.values().filter(|open| matches!(open.phase, Phase::Offloaded { .. })).count()
    }

    /// Keeps a job in mind; of settled ones, whose reports may never come, the oldest is dropped.
    fn remember(&mut self, job: JobId, open: OpenJob, parameters: &Parameters) {
        self.jobs.insert(job, open);
        if self.jobs.len() > parameters.max_jobs_remembered {
            let oldest = self.jobs.iter().find(|(_, open)| matches!(open.phase, Phase::Settled));
            if let Some(oldest) = oldest.map(|(job, _)| *job) {
                self.jobs.remove(&oldest);
            }
        }
    }

    /// The coordinator has answered. `None` when the job no longer waits for an answer.
    pub(super) fn answered(&mut self, job: JobId, answer: PlacementAnswer, parameters: &Parameters) -> Option<Command> {
        let own = self.own.clone();
        let open = self.jobs.get_mut(&job).filter(|open| matches!(open.phase, Phase::Asking))?;
        let reason = match answer {
            PlacementAnswer::Worker { worker, prediction } if worker != own && prediction.is_plausible() => {
                open.phase = Phase::Offloaded { reported: false };
                open.remote = Some(prediction);
                return Some(Command::Offload { job, worker, prediction, deadline: deadline(&prediction, parameters) });
            }
            PlacementAnswer::Worker { .. } => LocalReason::ImplausiblePlacement,
            PlacementAnswer::Local { reason } => reason,
        };
        Some(self.runs_here(job, reason))
    }

    /// A job that is known is settled. The end of one that copies values is not reported: that is
    /// none of what the models foretell.
    fn runs_here(&mut self, job: JobId, reason: LocalReason) -> Command {
        match self.jobs.get_mut(&job) {
            Some(open) if open.purpose != JobPurpose::Gc => open.phase = Phase::Settled,
            _ => _ = self.jobs.remove(&job),
        }
        Command::RunHere { job, reason }
    }

    /// The question found nobody. `None` when the job no longer waits for an answer.
    pub(super) fn unavailable(&mut self, job: JobId) -> Option<Command> {
        self.jobs.get(&job).filter(|open| matches!(open.phase, Phase::Asking))?;
        Some(self.runs_here(job, LocalReason::CoordinatorUnavailable))
    }

    /// An offload is over. A job that failed runs here; `None` when there is nothing to do.
    pub(super) fn offload_ended(
        &mut self,
        now: Time,
        job: JobId,
        outcome: OffloadOutcome,
        parameters: &Parameters,
    ) -> Option<Command> {
        let open = self.jobs.get_mut(&job)?;
        let Phase::Offloaded { reported } = open.phase else { return None };
        open.phase = Phase::Settled;
        if !matches!(outcome, OffloadOutcome::Installed) {
            open.remote = None;
        }
        let reason = match outcome {
            OffloadOutcome::Installed => {
                if reported {
                    self.jobs.remove(&job);
                }
                return None;
            }
            OffloadOutcome::Declined { worker, .. } => {
                self.avoid_until(now, worker, parameters.avoid_after_decline, parameters);
                LocalReason::Declined
            }
            OffloadOutcome::Failed { worker, reason } => {
                if reason.blames_worker() {
                    self.avoid_until(now, worker, parameters.avoid_after_failure, parameters);
                }
                LocalReason::Failed
            }
        };
        Some(self.runs_here(job, reason))
    }

    fn avoid_until(&mut self, now: Time, worker: ServerId, time: Seconds, parameters: &Parameters) {
        self.avoid.retain(|_, until| now < *until);
        let until = now + time;
        if let Some(known) = self.avoid.get_mut(&worker) {
            *known = if *known < until { until } else { *known };
        } else if self.avoid.len() < parameters.max_servers {
            self.avoid.insert(worker, until);
        }
    }

    /// An own job is finished: what was predicted when it was placed.
    pub(super) fn finished(&mut self, job: JobId) -> Option<Prediction> {
        let open = self.jobs.get_mut(&job)?;
        match &mut open.phase {
            Phase::Settled => self.jobs.remove(&job).and_then(|open| open.remote.or(open.local)),
            // The report may overtake the end of the offload; the job stays until that comes.
            Phase::Offloaded { reported } => {
                *reported = true;
                open.remote
            }
            Phase::Asking => None,
        }
    }
}

/// When a job must have ended: before writers stall, and by its own deadline.
fn latest(forecast: Option<StallForecast>, deadline: Option<Seconds>) -> Option<Seconds> {
    match (forecast.and_then(|forecast| forecast.latest()), deadline) {
        (Some(stall), Some(deadline)) => Some(stall.min(deadline)),
        (stall, deadline) => stall.or(deadline),
    }
}

/// A multiple of what is expected, within bounds.
fn deadline(prediction: &Prediction, parameters: &Parameters) -> Seconds {
    (prediction.seconds * parameters.deadline_multiple).max(parameters.min_deadline).min(parameters.max_deadline)
}
