//! Jobs of this server that have ended: as observers get them, and those that the coordinator has
//! not confirmed.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

use ecotone_policy::machine::{JobObservation, JobReport, Prediction};

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
    /// What was expected when it was placed or, for a local one, just before the models learned
    /// from it.
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

/// Notified of what happens. Called on the federation's threads; must not block.
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

/// Finished jobs that the coordinator has not confirmed, numbered in the order in which they ended.
#[derive(Debug)]
pub(crate) struct Unreported {
    session: u64,
    last_number: u64,
    jobs: VecDeque<(u64, JobReport)>,
}

impl Default for Unreported {
    fn default() -> Self {
        // The standard library seeds each of these at random.
        let session = RandomState::new().build_hasher().finish();
        Unreported { session, last_number: 0, jobs: VecDeque::new() }
    }
}

impl Unreported {
    /// Keeps a job until it is confirmed; of more than `limit` the oldest go.
    pub(crate) fn push(&mut self, job: JobReport, limit: usize) {
        self.last_number += 1;
        self.jobs.push_back((self.last_number, job));
        while self.jobs.len() > limit {
            self.jobs.pop_front();
        }
    }

    /// Drawn at this start of the server.
    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    /// Those with numbers, in their order.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = &(u64, JobReport)> {
        self.jobs.iter()
    }

    /// The coordinator has confirmed them up to this number.
    pub(crate) fn forget_until(&mut self, last: u64) {
        self.jobs.retain(|(number, _)| *number > last);
    }
}
