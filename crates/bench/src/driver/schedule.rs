//! When each operation of a run at a rate is due, and the clock that tells the time, which a test
//! can replace.
//!
//! The load is open: an operation is due at its time whether or not the store has answered those
//! before it, and its latency counts from then. A store that stalls for a second is charged with
//! the second by every operation that was due in it; measuring from the moment an operation was
//! issued would charge it once ("coordinated omission").
//!
//! Operations arrive in groups: those whose exact times fall within one tick are all due at its
//! begin. A thread that slept before each of 20 000 operations a second would spend more on waking
//! than on the store, and its waking would be measured. Up to one operation per tick and thread the
//! times are exact.

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

/// The length of a tick in nanoseconds: far below what a stall lasts, far above what a wake-up
/// costs.
pub(super) const TICK_NS: u64 = 1_000_000;

/// The due times of one thread's operations.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    interval_ns: f64,
    first_ns: f64,
    count: u64,
}

impl Schedule {
    /// The schedule of one of `threads` threads that offer `rate_ops_per_s` in total. The threads'
    /// operations interleave: thread `thread` begins that many intervals of the total after the
    /// others.
    pub(super) fn new(rate_ops_per_s: f64, thread: u32, threads: u32) -> Self {
        let total_interval_ns = 1e9 / rate_ops_per_s;
        Self {
            interval_ns: total_interval_ns * f64::from(threads),
            first_ns: total_interval_ns * f64::from(thread),
            count: 0,
        }
    }

    /// When the next operation is due, in nanoseconds since the begin.
    pub(super) fn next_due_ns(&mut self) -> u64 {
        // From the count, not by adding up: no error grows.
        let exact_ns = self.first_ns + self.interval_ns * self.count as f64;
        self.count += 1;
        if self.interval_ns >= TICK_NS as f64 {
            return exact_ns as u64;
        }
        exact_ns as u64 / TICK_NS * TICK_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many operations of all threads are due before a moment.
    fn due_before(rate: f64, threads: u32, moment_ns: u64) -> u64 {
        (0..threads)
            .map(|thread| {
                let mut schedule = Schedule::new(rate, thread, threads);
                std::iter::from_fn(|| Some(schedule.next_due_ns())).take_while(|&due| due < moment_ns).count() as u64
            })
            .sum()
    }

    #[test]
    fn the_threads_together_offer_the_rate_in_every_second() {
        for (rate, threads) in [(1.0, 1), (10.0, 3), (20_000.0, 1), (20_000.0, 7), (123_457.0, 4)] {
            for second in 1..=5u64 {
                let due = due_before(rate, threads, second * 1_000_000_000) as f64;
                assert!(
                    (due - rate * second as f64).abs() <= f64::from(threads),
                    "{rate} x {threads}: {due} in {second} s"
                );
            }
        }
    }

    #[test]
    fn slow_rates_are_exact_and_fast_ones_come_in_ticks() {
        let mut slow = Schedule::new(400.0, 0, 1);
        assert_eq!([slow.next_due_ns(), slow.next_due_ns(), slow.next_due_ns()], [0, 2_500_000, 5_000_000]);
        let mut fast = Schedule::new(3_000.0, 0, 1);
        let due: Vec<u64> = (0..7).map(|_| fast.next_due_ns() / TICK_NS).collect();
        assert_eq!(due, [0, 0, 0, 1, 1, 1, 2]);
    }

    #[test]
    fn no_error_adds_up_over_a_day() {
        let mut schedule = Schedule::new(30_000.0, 0, 1);
        schedule.count = 30_000 * 86_400;
        assert_eq!(schedule.next_due_ns(), 86_400 * 1_000_000_000);
    }
}
