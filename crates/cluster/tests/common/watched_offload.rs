//! When a store gets a compaction back to run it itself. One of level 0 then goes on; a deeper one
//! may wait for a local slot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_engine::{CompactionOffload, RemoteJob, RemoteOutcome};

/// What becomes of a job that a store asks about.
#[derive(Debug, Clone, Copy)]
pub enum OffloadEvent {
    Asked {
        job: u64,
    },
    GivenBack(GivenBack),
    /// Given back or done elsewhere, the store has it again.
    Over {
        job: u64,
    },
}

/// A job that its offload gave back.
#[derive(Debug, Clone, Copy)]
pub struct GivenBack {
    pub job: u64,
    pub asked: Instant,
    pub at: Instant,
    /// It had been elsewhere, or was to be.
    pub is_fallback: bool,
}

impl GivenBack {
    /// How long the job waited for something that happened at `begin`, perhaps before it was there.
    pub fn since(&self, begin: Instant) -> Duration {
        self.at.saturating_duration_since(self.asked.max(begin))
    }
}

/// Passes everything on, and reports the jobs.
pub struct Watched<F> {
    offload: Arc<dyn CompactionOffload>,
    notify: F,
}

impl<F: Fn(OffloadEvent) + Send + Sync> Watched<F> {
    pub fn new(offload: Arc<dyn CompactionOffload>, notify: F) -> Self {
        Watched { offload, notify }
    }
}

impl<F: Fn(OffloadEvent) + Send + Sync> CompactionOffload for Watched<F> {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        let (asked, job_id) = (Instant::now(), job.id);
        (self.notify)(OffloadEvent::Asked { job: job_id });
        let outcome = self.offload.run(job);
        if !matches!(outcome, RemoteOutcome::Installed { .. }) {
            let is_fallback = matches!(outcome, RemoteOutcome::Fallback);
            (self.notify)(OffloadEvent::GivenBack(GivenBack { job: job_id, asked, at: Instant::now(), is_fallback }));
        }
        (self.notify)(OffloadEvent::Over { job: job_id });
        outcome
    }

    fn moves_values(&self, entries: u64) -> bool {
        self.offload.moves_values(entries)
    }

    fn stays(&self, job: &RemoteJob) {
        self.offload.stays(job);
    }

    fn cancel_all(&self) {
        self.offload.cancel_all();
    }

    fn local_finished(&self, job: u64) {
        self.offload.local_finished(job);
    }
}
