//! Slows writers down while garbage grows faster than garbage collection can free it, so that a
//! store has a size that it does not outgrow however fast it is written.
//!
//! Each writer rests for a share of its time ([`ecotone_policy::gc::throttle`]), behind its write
//! and with no lock held. Rests are collected until they are worth a sleep.
//!
//! Threads: any number of writers; each owes its own rests. Away from the limit a write costs one
//! load.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_policy::gc::{MAX_WRITE_DELAY_MS, WriterTimes};
use ecotone_types::units::Seconds;

/// Shorter rests are deferred: a sleep takes some 50 us longer than asked for.
const MIN_DELAY: Duration = Duration::from_millis(1);

/// No write rests for longer.
const MAX_DELAY: Duration = Duration::from_millis(MAX_WRITE_DELAY_MS);

thread_local! {
    static OWED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How slow writers are to be, and how long they have rested.
#[derive(Debug, Default)]
pub(crate) struct WriteThrottle {
    throttle_per_mille: AtomicU32,
    throttled_us: AtomicU64,
    /// How long writes took that owe a rest.
    busy_us: AtomicU64,
}

impl WriteThrottle {
    /// From now on writers rest for this share of their time, 0 to 0.9.
    pub(crate) fn set(&self, share: f64) {
        self.throttle_per_mille.store((share.clamp(0.0, 0.9) * 1000.0) as u32, Ordering::Relaxed);
    }

    /// Whether writers are to rest.
    #[inline]
    pub(crate) fn is_throttling(&self) -> bool {
        self.throttle_per_mille.load(Ordering::Relaxed) > 0
    }

    /// For a writer that rests by itself: how long after a write that took `busy`. It says so with
    /// [`was_throttled`](Self::was_throttled).
    pub(crate) fn throttle_delay(&self, busy: Duration) -> Duration {
        let share = f64::from(self.throttle_per_mille.load(Ordering::Relaxed)) / 1000.0;
        if share > 0.0 {
            self.was_busy(busy);
        }
        busy.mul_f64(share / (1.0 - share)).min(MAX_DELAY)
    }

    /// A writer has rested by itself.
    pub(crate) fn was_throttled(&self, time: Duration) {
        self.throttled_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn was_busy(&self, time: Duration) {
        self.busy_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// What has come of it so far.
    pub(super) fn times(&self) -> WriterTimes {
        let busy = Duration::from_micros(self.busy_us.load(Ordering::Relaxed));
        WriterTimes { throttled: Seconds(self.throttled().as_secs_f64()), busy: Seconds(busy.as_secs_f64()) }
    }

    /// How long writers have rested, all together.
    pub(crate) fn throttled(&self) -> Duration {
        Duration::from_micros(self.throttled_us.load(Ordering::Relaxed))
    }

    /// Makes a write, and rests after it if it must.
    #[inline]
    pub(crate) fn around<T>(&self, write: impl FnOnce() -> T) -> T {
        match self.throttle_per_mille.load(Ordering::Relaxed) {
            0 => write(),
            delay => self.slowly(f64::from(delay) / 1000.0, write),
        }
    }

    #[cold]
    fn slowly<T>(&self, share: f64, write: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let outcome = write();
        let busy = began.elapsed();
        let mut owed = OWED.get() + busy.mul_f64(share / (1.0 - share)).min(MAX_DELAY);
        self.was_busy(busy);
        if owed >= MIN_DELAY {
            let delay = Instant::now();
            std::thread::sleep(owed.min(MAX_DELAY));
            let throttled = delay.elapsed();
            self.throttled_us.fetch_add(throttled.as_micros() as u64, Ordering::Relaxed);
            owed = owed.saturating_sub(throttled);
        }
        OWED.set(owed);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn writers_rest_for_their_share_of_the_time_and_not_at_all_without_one() {
        let throttle = WriteThrottle::default();
        for _ in 0..20 {
            throttle.around(|| busy(Duration::from_micros(500)));
        }
        assert_eq!(throttle.throttled(), Duration::ZERO);
        throttle.set(0.75);
        for _ in 0..20 {
            throttle.around(|| busy(Duration::from_micros(500)));
        }
        // 10 ms of work; the last rest may still be owed. The work itself may have taken longer on
        // a busy machine.
        assert!(throttle.throttled() >= Duration::from_millis(28), "{:?}", throttle.throttled());
        throttle.set(0.0);
        let throttled = throttle.throttled();
        throttle.around(|| busy(Duration::from_micros(500)));
        assert_eq!(throttle.throttled(), throttled);
    }

    #[test]
    fn who_rests_by_itself_is_told_how_long() {
        let throttle = WriteThrottle::default();
        let busy = Duration::from_millis(3);
        assert_eq!(throttle.throttle_delay(busy), Duration::ZERO);
        throttle.set(0.75);
        assert_eq!(throttle.throttle_delay(busy), Duration::from_millis(9));
        assert_eq!(throttle.throttle_delay(Duration::from_secs(1)), MAX_DELAY);
        throttle.was_throttled(busy);
        assert_eq!(throttle.throttled(), busy);
    }

    #[test]
    fn no_write_rests_for_longer_than_the_most() {
        let throttle = WriteThrottle::default();
        throttle.set(0.9);
        throttle.around(|| busy(Duration::from_millis(30)));
        let throttled = throttle.throttled();
        assert!(throttled >= MAX_DELAY && throttled < 10 * MAX_DELAY, "{throttled:?}");
    }
}
