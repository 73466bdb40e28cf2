//! When a store gets a compaction back to run it itself: the moment at which its owner goes on locally.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_engine::{CompactionOffload, RemoteJob, RemoteOutcome};

/// A job that its offload gave back.
#[derive(Debug, Clone, Copy)]
pub struct GivenBack {
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

/// Passes everything on, and tells of the jobs that come back.
pub struct Watched<F> {
    offload: Arc<dyn CompactionOffload>,
    tell: F,
}

impl<F: Fn(GivenBack) + Send + Sync> Watched<F> {
    pub fn new(offload: Arc<dyn CompactionOffload>, tell: F) -> Self {
        Watched { offload, tell }
    }
}

impl<F: Fn(GivenBack) + Send + Sync> CompactionOffload for Watched<F> {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        let asked = Instant::now();
        let outcome = self.offload.run(job);
        if !matches!(outcome, RemoteOutcome::Installed { .. }) {
            let is_fallback = matches!(outcome, RemoteOutcome::Fallback);
            (self.tell)(GivenBack { asked, at: Instant::now(), is_fallback });
        }
        outcome
    }

    fn cancel_all(&self) {
        self.offload.cancel_all();
    }

    fn installed(&self, job: u64, ok: bool) {
        self.offload.installed(job, ok);
    }

    fn local_finished(&self, job: u64) {
        self.offload.local_finished(job);
    }
}
