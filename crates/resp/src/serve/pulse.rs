//! Signs of life of a thread, for who looks whether it hangs.
//!
//! Threads: one beats, any may look.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two beats of a lane.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// When a thread last gave a sign of life.
#[derive(Debug)]
pub struct Pulse {
    base: Instant,
    /// Milliseconds from `base` to the last beat.
    beat_ms: AtomicU64,
}

impl Default for Pulse {
    /// Beats now for the first time.
    fn default() -> Self {
        Self { base: Instant::now(), beat_ms: AtomicU64::new(0) }
    }
}

impl Pulse {
    /// The thread lives at `now`.
    pub fn beat(&self, now: Instant) {
        self.beat_ms.store(now.saturating_duration_since(self.base).as_millis() as u64, Ordering::Relaxed);
    }

    /// From the last beat to `now`.
    pub fn silent_for(&self, now: Instant) -> Duration {
        let beat = Duration::from_millis(self.beat_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(self.base).saturating_sub(beat)
    }
}
