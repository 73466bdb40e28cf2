//! The time by which keys expire.
//!
//! It never goes backwards, also not from one life of the process to the next: a small device may wake up in 1970 because it has no
//! battery for its clock, and keys that were gone must stay gone. So the latest time is written down now and then, and the clock of the
//! system counts only from there on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time between two notes of the latest time: by so much a clock may be set back over a restart and bring keys back.
pub const NOTED_EVERY: Duration = Duration::from_secs(10);

/// Milliseconds since 1970 UTC, as far as the system and the last life of the store know them.
#[derive(Debug)]
pub struct Clock {
    latest_ms: AtomicU64,
}

impl Clock {
    /// A clock that shows at least `floor_ms`.
    pub fn from(floor_ms: u64) -> Self {
        Self { latest_ms: AtomicU64::new(floor_ms) }
    }

    /// Now. Not less than any time it has shown.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        let system = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let latest = self.latest_ms.load(Ordering::Relaxed);
        // Most often the millisecond has been seen already, and nothing is to be written to a line that all threads read.
        if system <= latest { latest } else { self.latest_ms.fetch_max(system, Ordering::Relaxed).max(system) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_not_go_back_behind_what_is_known() {
        let clock = Clock::from(0);
        let now = clock.now_ms();
        assert!(now > 1_700_000_000_000);
        let later = Clock::from(now + 3_600_000);
        assert_eq!(later.now_ms(), now + 3_600_000);
    }
}
