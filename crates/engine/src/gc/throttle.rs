//! Slows writers down while garbage grows faster than garbage collection can free it, so that a
//! store has a size that it does not outgrow however fast it is written.
//!
//! Each writer rests for a share of its time ([`ecotone_policy::gc::throttle`]), behind its write
//! and with no lock held. Rests are collected until they are worth a sleep. How much writers are
//! throttled so decides in turn how much garbage may stay for a burst
//! ([`ecotone_policy::gc::BurstCredit`]).
//!
//! Threads: any number of writers; each owes its own rests. Away from the limit a write costs one
//! load.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_policy::gc::BurstCredit;
use ecotone_types::units::Seconds;

/// Shorter rests are deferred: a sleep takes some 50 us longer than asked for.
const MIN_DELAY: Duration = Duration::from_millis(1);

/// No write rests for longer.
const MAX_DELAY: Duration = Duration::from_millis(100);

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

/// Rests are some milliseconds each, and who looks may look again at once.
const MIN_OBSERVED: Duration = Duration::from_millis(100);

/// How much writers have been throttled lately, as the thread sees it that looks after garbage
/// collection and slows them down.
#[derive(Debug)]
pub(super) struct ThrottleObserver {
    credit: BurstCredit,
    /// Since when writers are slowed down, if they are, and for how long they were before. They are
    /// until their last rests are over.
    slowed_since: Option<Instant>,
    slowed_until: Option<Instant>,
    slowed: Duration,
    /// When it last looked, and how long writers had rested, been busy and been slowed down by
    /// then.
    sampled: Option<(Instant, [Duration; 3])>,
}

impl ThrottleObserver {
    /// Nobody has been yet. For how long more garbage may stay for them is `burst_credit`.
    pub(super) fn new(burst_credit: Seconds) -> Self {
        Self {
            credit: BurstCredit::new(burst_credit),
            slowed_since: None,
            slowed_until: None,
            slowed: Duration::ZERO,
            sampled: None,
        }
    }

    /// From `now` on writers rest for this share of their time.
    pub(super) fn slow_down(&mut self, throttle: &WriteThrottle, share: f64, now: Instant) {
        self.count_slowed(now);
        if share > 0.0 {
            (self.slowed_since, self.slowed_until) = (Some(now), None);
        } else if self.slowed_since.is_some() {
            self.slowed_until.get_or_insert(now + MAX_DELAY);
        }
        throttle.set(share);
    }

    fn count_slowed(&mut self, now: Instant) {
        let Some(since) = &mut self.slowed_since else { return };
        let end = self.slowed_until.map_or(now, |until| until.min(now));
        self.slowed += end.saturating_duration_since(*since);
        *since = end;
        if self.slowed_until.is_some_and(|until| until <= now) {
            (self.slowed_since, self.slowed_until) = (None, None);
        }
    }

    /// Looks at how long writers have rested by `now`.
    pub(super) fn sample(&mut self, throttle: &WriteThrottle, now: Instant) {
        self.count_slowed(now);
        let spent =
            [throttle.throttled(), Duration::from_micros(throttle.busy_us.load(Ordering::Relaxed)), self.slowed];
        let (at, before) = *self.sampled.get_or_insert((now, spent));
        let elapsed = now.saturating_duration_since(at);
        if elapsed >= MIN_OBSERVED {
            let since = |which: usize| Seconds(spent[which].saturating_sub(before[which]).as_secs_f64());
            self.credit.observe(since(0), since(1), since(2), Seconds(elapsed.as_secs_f64()));
            self.sampled = Some((now, spent));
        }
    }

    /// 0 where they are not, to 1.
    pub(super) fn degree(&self) -> f64 {
        self.credit.degree()
    }

    /// How much of what may stay for writers that are throttled may stay now: 0 to 1.
    pub(super) fn allowed(&self) -> f64 {
        self.credit.allowed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_looked_at_as_they_come_and_each_once() {
        let (throttle, mut writers) = (WriteThrottle::default(), ThrottleObserver::new(Seconds(120.0)));
        let begin = Instant::now();
        let at = |tenths: u32| begin + MIN_OBSERVED * tenths;
        // What was before the first look is not known to be recent.
        throttle.was_throttled(Duration::from_secs(1000));
        writers.sample(&throttle, begin);
        writers.sample(&throttle, at(10));
        assert_eq!(writers.degree(), 0.0);
        // Half of the next seconds, looked at ever again.
        writers.slow_down(&throttle, 0.5, at(10));
        for tenth in 11..=310 {
            throttle.was_throttled(MIN_OBSERVED / 2);
            writers.sample(&throttle, at(tenth) - MIN_OBSERVED / 2);
            writers.sample(&throttle, at(tenth));
        }
        assert_eq!(writers.degree(), 1.0);
        writers.slow_down(&throttle, 0.0, at(310));
        // Nothing since, seen late.
        writers.sample(&throttle, at(310) + Duration::from_secs(60));
        assert_eq!(writers.degree(), 0.0);
    }

    #[test]
    fn writers_that_are_slowed_for_a_moment_are_not_throttled() {
        let begin = Instant::now();
        let [a_moment, most] = [60, 9000].map(|slowed_ms| {
            let (throttle, mut writers) = (WriteThrottle::default(), ThrottleObserver::new(Seconds(120.0)));
            writers.sample(&throttle, begin);
            writers.slow_down(&throttle, 0.9, begin);
            // Of 50 writers, most of the time in which they are slowed down.
            throttle.was_throttled(Duration::from_millis(slowed_ms) * 45);
            throttle.was_busy(Duration::from_millis(slowed_ms) * 5);
            writers.slow_down(&throttle, 0.0, begin + Duration::from_millis(slowed_ms));
            writers.sample(&throttle, begin + Duration::from_secs(10));
            writers.degree()
        });
        assert_eq!((a_moment, most), (0.0, 1.0));
    }

    #[test]
    fn rests_that_end_after_the_slowing_that_made_them_count() {
        let begin = Instant::now();
        let (throttle, mut writers) = (WriteThrottle::default(), ThrottleObserver::new(Seconds(120.0)));
        writers.sample(&throttle, begin);
        // Again and again slowed down for 60 ms, of which 50 writers learn with one write each, and
        // rest for 100.
        for round in 0..300 {
            let at = |ms: u64| begin + Duration::from_millis(round * 300 + ms);
            writers.slow_down(&throttle, 0.9, at(0));
            throttle.was_busy(Duration::from_millis(50 * 10));
            writers.slow_down(&throttle, 0.0, at(60));
            writers.sample(&throttle, at(70));
            throttle.was_throttled(Duration::from_millis(50 * 100));
            writers.sample(&throttle, at(200));
        }
        assert_eq!(writers.degree(), 1.0, "they rest for a third of the time");
        writers.slow_down(&throttle, 0.0, begin + Duration::from_secs(91));
        writers.sample(&throttle, begin + Duration::from_secs(150));
        assert_eq!(writers.degree(), 0.0);
    }

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
