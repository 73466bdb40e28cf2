//! The time by which keys expire.
//!
//! It never goes backwards, also not from one life of the process to the next: a small device may
//! wake up in 1970 because it has no battery for its clock, and keys that were gone must stay gone.
//! So the latest time is written down now and then, and from there on time goes on, whatever the
//! system's clock says, until that is ahead of it.
//!
//! Invariant: it never stands still either. A system's clock that was ahead by mistake has moved
//! this one for good ([`Clock::ahead_of_system`] tells by how much), but keys go on to expire after
//! the time they were given.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between two notes of the latest time: a key that a client has found gone for longer than
/// that, and a second or so, does not come back when the clock is set back and the process was
/// killed. After an orderly end none does, unless the store held up its writers then.
pub const CLOCK_PERSIST_INTERVAL: Duration = Duration::from_secs(10);

/// Milliseconds since 1970 UTC, as far as the system and the last life of the store know them.
#[derive(Debug)]
pub struct Clock {
    since: Instant,
    /// The time at `since`. Only grows: by what the system's clock was found to be ahead.
    base_ms: AtomicU64,
}

impl Clock {
    /// A clock that shows at least `floor_ms`.
    pub fn from(floor_ms: u64) -> Self {
        Self::at(Instant::now(), floor_ms)
    }

    fn at(since: Instant, floor_ms: u64) -> Self {
        Self { since, base_ms: AtomicU64::new(floor_ms) }
    }

    /// It shows at least `floor_ms` from now on.
    pub fn show_at_least(&self, floor_ms: u64) {
        let passed_ms = self.since.elapsed().as_millis() as u64;
        self.base_ms.fetch_max(floor_ms.saturating_sub(passed_ms), Ordering::Relaxed);
    }

    /// Now. Not less than any time it has shown.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    /// The same, where `now` was looked at just now.
    #[inline]
    pub fn ms_at(&self, now: Instant) -> u64 {
        self.show(now, system_ms())
    }

    /// How far the system's clock is behind this one.
    pub fn ahead_of_system(&self) -> Duration {
        let system_ms = system_ms();
        Duration::from_millis(self.show(Instant::now(), system_ms) - system_ms)
    }

    /// What is over by this time is over by the system's clock as well: also if that is right, and
    /// this one was moved by a mistake.
    pub fn certain_ms(&self) -> u64 {
        let system_ms = system_ms();
        self.show(Instant::now(), system_ms).min(system_ms)
    }

    fn show(&self, now: Instant, system_ms: u64) -> u64 {
        let passed_ms = now.saturating_duration_since(self.since).as_millis() as u64;
        let of_system = system_ms.saturating_sub(passed_ms);
        let known = self.base_ms.load(Ordering::Relaxed);
        // Most often it is known, and nothing is to be written to a line that all threads read.
        let base = if of_system <= known {
            known
        } else {
            self.base_ms.fetch_max(of_system, Ordering::Relaxed).max(of_system)
        };
        base + passed_ms
    }
}

fn system_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_from_what_is_known_whatever_the_system_says() {
        let since = Instant::now();
        let clock = Clock::at(since, 5_000_000);
        let after = |ms| since + Duration::from_millis(ms);
        assert_eq!(clock.show(after(10), 0), 5_000_010, "a system that woke up in 1970");
        assert_eq!(clock.show(after(20), 5_100_000), 5_100_000, "it was set right");
        assert_eq!(clock.show(after(30), 5_100_010), 5_100_010);
        assert_eq!(clock.show(after(1030), 4_000_000), 5_101_010, "it was set back: time goes on");
        assert_eq!(clock.show(after(2030), 4_001_000), 5_102_010);
        assert_eq!(clock.show(after(2030), 5_102_500), 5_102_500);
        assert_eq!(clock.show(after(2040), 5_102_505), 5_102_510, "two clocks do not tick as one");
    }

    #[test]
    fn it_tells_how_far_the_system_is_behind() {
        assert_eq!(Clock::from(0).ahead_of_system(), Duration::ZERO);
        let later = Clock::from(Clock::from(0).now_ms() + 3_600_000);
        assert!(later.ahead_of_system() > Duration::from_secs(3590));
        let shown = later.now_ms();
        assert!(later.now_ms() >= shown);
        let told = Clock::from(0);
        told.show_at_least(shown + 7_200_000);
        assert!(told.now_ms() >= shown + 7_200_000);
        told.show_at_least(5);
        assert!(told.now_ms() >= shown + 7_200_000, "it never goes back");
    }
}
