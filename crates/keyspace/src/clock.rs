//! The time by which keys expire.
//!
//! It never goes backwards, also not from one life of the process to the next: a small device may
//! wake up in 1970 because it has no battery for its clock, and keys that were gone must stay gone.
//! So the latest time is written down now and then, and from there on time goes on, whatever the
//! system's clock says, until that is ahead of it.
//!
//! Invariant: it never stands still either. A system's clock that was ahead by mistake has moved
//! this one for good ([`Clock::ahead_of_system`] tells by how much), but keys go on to expire after
//! the time they were given. But where shards have copies it stands still at the least limit that
//! their [gates](CommitGate::clock_limit_ms) give: what is gone here is to be gone at whoever is
//! the primary next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;

use crate::gate::CommitGate;

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
    /// Whether there are gates.
    is_limited: AtomicBool,
    gates: RwLock<Vec<Arc<dyn CommitGate>>>,
    /// The least limit of the gates when they were asked last. Limits only grow.
    limit_ms: AtomicU64,
    /// The latest time that was shown under a limit.
    shown_ms: AtomicU64,
}

impl Clock {
    /// A clock that shows at least `floor_ms`.
    pub fn from(floor_ms: u64) -> Self {
        Self::at(Instant::now(), floor_ms)
    }

    fn at(since: Instant, floor_ms: u64) -> Self {
        Self {
            since,
            base_ms: AtomicU64::new(floor_ms),
            is_limited: AtomicBool::new(false),
            gates: RwLock::default(),
            limit_ms: AtomicU64::new(0),
            shown_ms: AtomicU64::new(0),
        }
    }

    /// A clock that shows `floor_ms` at first, and never more than that or the limit of `gate`.
    pub(crate) fn under(gate: Arc<dyn CommitGate>, floor_ms: u64) -> Self {
        Self {
            is_limited: AtomicBool::new(true),
            gates: RwLock::new(vec![gate]),
            shown_ms: AtomicU64::new(floor_ms),
            ..Self::from(0)
        }
    }

    /// From now on it shows no time beyond the limits of these gates, but for what it has shown.
    pub(crate) fn limit_to(&self, gates: impl FnOnce() -> Vec<Arc<dyn CommitGate>>) {
        let mut limiting = self.gates.write();
        *limiting = gates();
        self.limit_ms.store(0, Ordering::Release);
        let was_limited = self.is_limited.swap(!limiting.is_empty(), Ordering::SeqCst);
        if !was_limited && !limiting.is_empty() {
            // Behind the flag: what others have shown without a limit is not later.
            let shown_ms = self.show(Instant::now(), system_ms());
            self.shown_ms.fetch_max(shown_ms, Ordering::AcqRel);
        }
    }

    /// Whether it has gates.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::SeqCst)
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
        let time_ms = self.show(now, system_ms());
        if self.is_limited() { self.limited(time_ms) } else { time_ms }
    }

    fn limited(&self, time_ms: u64) -> u64 {
        let mut limit_ms = self.limit_ms.load(Ordering::Acquire);
        if time_ms > limit_ms {
            // Held while the limit is noted: it is that of these gates.
            let gates = self.gates.read();
            limit_ms = gates.iter().map(|gate| gate.clock_limit_ms()).min().unwrap_or(u64::MAX);
            self.limit_ms.store(limit_ms, Ordering::Release);
        }
        let time_ms = time_ms.min(limit_ms);
        // Most often nothing is to be written to a line that all threads read.
        let shown_ms = self.shown_ms.load(Ordering::Acquire);
        if time_ms <= shown_ms { shown_ms } else { self.shown_ms.fetch_max(time_ms, Ordering::AcqRel).max(time_ms) }
    }

    /// How far the system's clock is behind this one.
    pub fn ahead_of_system(&self) -> Duration {
        let system_ms = system_ms();
        Duration::from_millis(self.show(Instant::now(), system_ms) - system_ms)
    }

    /// What is over by this time is over by this clock and by the system's: also if that is right,
    /// and this one was moved by a mistake.
    pub fn certain_ms(&self) -> u64 {
        self.now_ms().min(system_ms())
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
    use crate::gate::{Level, Place, Refused};

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

    /// A gate that is nothing but its limit.
    #[derive(Debug)]
    struct Limit(AtomicU64);

    impl CommitGate for Limit {
        fn written(&self) -> Place {
            Place::default()
        }

        fn answerable(&self, _: Level) -> Result<Place, Refused> {
            Ok(Place::default())
        }

        fn takes_writes(&self) -> bool {
            true
        }

        fn level(&self) -> Level {
            Level::One
        }

        fn copies_with(&self, _: Place, _: bool) -> usize {
            0
        }

        fn clock_limit_ms(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }

        fn wakes(&self, _: &Arc<dyn Fn() + Send + Sync>) {}
    }

    #[test]
    fn it_stands_still_at_the_least_limit_and_never_goes_back() {
        let clock = Clock::from(Clock::from(0).now_ms() + 3_600_000);
        let before_ms = clock.now_ms();
        let [near, far] = [5_000, 1_000_000].map(|ahead_ms| Arc::new(Limit(AtomicU64::new(before_ms + ahead_ms))));
        let all: Vec<Arc<dyn CommitGate>> = vec![near.clone(), far.clone()];
        let later = |ms| Instant::now() + Duration::from_millis(ms);
        clock.limit_to(|| all.clone());
        assert_eq!(clock.ms_at(later(60_000)), before_ms + 5_000);
        assert_eq!(clock.ms_at(later(0)), before_ms + 5_000, "what was shown stays");
        near.0.store(before_ms + 7_000, Ordering::SeqCst);
        assert_eq!(clock.ms_at(later(60_000)), before_ms + 7_000);
        near.0.store(before_ms + 2_000_000, Ordering::SeqCst);
        assert_eq!(clock.ms_at(later(3_000_000)), before_ms + 1_000_000, "the other one is less");
        // One that comes with less than what was shown takes nothing back.
        let behind: Arc<dyn CommitGate> = Arc::new(Limit(AtomicU64::new(5)));
        clock.limit_to(|| vec![behind]);
        assert_eq!(clock.ms_at(later(3_000_000)), before_ms + 1_000_000);
        clock.limit_to(Vec::new);
        assert!(clock.ms_at(later(3_000_000)) >= before_ms + 3_000_000, "no gate, no limit");
        // What was shown without a limit counts as shown.
        let fresh = Clock::from(0);
        let shown_ms = fresh.now_ms();
        fresh.limit_to(|| vec![Arc::new(Limit(AtomicU64::new(5))) as Arc<dyn CommitGate>]);
        assert!(fresh.now_ms() >= shown_ms && fresh.certain_ms() <= system_ms());
        let first_ms = fresh.now_ms();
        assert_eq!(fresh.ms_at(later(1000)), first_ms, "it stands still");
    }

    #[test]
    fn under_a_gate_it_has_shown_nothing_beyond_the_limit() {
        let limit = Arc::new(Limit(AtomicU64::new(5_000)));
        let clock = Clock::under(limit.clone(), 4_000);
        assert_eq!(clock.now_ms(), 5_000);
        clock.limit_to(|| vec![limit.clone() as Arc<dyn CommitGate>]);
        clock.show_at_least(9_000);
        assert_eq!(clock.now_ms(), 5_000);
        limit.0.store(7_000, Ordering::SeqCst);
        assert_eq!(clock.now_ms(), 7_000);
        assert_eq!(Clock::under(limit, 8_000).now_ms(), 8_000, "it was shown");
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
