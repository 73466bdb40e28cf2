//! The driver's time, which a test can replace.

use std::time::{Duration, Instant};

/// Nanoseconds since the measured part began.
pub(super) trait Clock: Send + Sync {
    /// Now.
    fn now_ns(&self) -> u64;

    /// Waits until `due_ns`, or less long: the caller asks again.
    fn wait_until(&self, due_ns: u64);
}

/// The machine's monotonic clock.
pub(super) struct MonotonicClock {
    begin: Instant,
}

/// The longest single wait: a stop must not hang behind a low rate.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

impl MonotonicClock {
    pub(super) fn starting_now() -> Self {
        Self { begin: Instant::now() }
    }
}

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        // 584 years fit.
        self.begin.elapsed().as_nanos() as u64
    }

    fn wait_until(&self, due_ns: u64) {
        let wait = Duration::from_nanos(due_ns.saturating_sub(self.now_ns()));
        std::thread::sleep(wait.min(LONGEST_WAIT));
    }
}
