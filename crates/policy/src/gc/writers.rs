//! How much writers have been throttled lately, as who slows them down sees it.
//!
//! Each writer rests for a share of its time ([`throttle`](super::throttle)), behind its write. How
//! much they rest so decides in turn how much garbage may stay for a burst ([`BurstCredit`]).

use ecotone_types::units::{Seconds, Time};

use super::BurstCredit;

/// No write rests for longer, in milliseconds.
pub const MAX_WRITE_DELAY_MS: u64 = 100;

/// Rests are some milliseconds each, and who looks may look again immediately.
const MIN_OBSERVED: Seconds = Seconds(0.1);

/// How long writers have rested, and been at work while they were to rest: all together, since the
/// store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WriterTimes {
    /// Rests.
    pub throttled: Seconds,
    /// Writes that owed a rest.
    pub busy: Seconds,
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct WriterObserver {
    credit: BurstCredit,
    /// Since when writers are slowed down, if they are, and for how long they were before. They are
    /// until their last rests are over.
    slowed_since: Option<Time>,
    slowed_until: Option<Time>,
    slowed: Seconds,
    /// When it last looked, and how long writers had rested, been busy and been slowed down by
    /// then.
    sampled: Option<(Time, WriterTimes, Seconds)>,
}

impl WriterObserver {
    /// Nobody has been throttled yet. For how long more garbage may stay for them is
    /// `burst_credit`.
    pub(super) fn new(burst_credit: Seconds) -> Self {
        Self {
            credit: BurstCredit::new(burst_credit),
            slowed_since: None,
            slowed_until: None,
            slowed: Seconds::ZERO,
            sampled: None,
        }
    }

    /// From `now` on writers rest for this share of their time.
    pub(super) fn slow_down(&mut self, share: f64, now: Time) {
        self.count_slowed(now);
        if share > 0.0 {
            (self.slowed_since, self.slowed_until) = (Some(now), None);
        } else if self.slowed_since.is_some() {
            self.slowed_until.get_or_insert(now + Seconds(MAX_WRITE_DELAY_MS as f64 / 1000.0));
        }
    }

    fn count_slowed(&mut self, now: Time) {
        let Some(since) = &mut self.slowed_since else { return };
        let end = self.slowed_until.filter(|until| *until < now).unwrap_or(now);
        self.slowed += end.since(*since);
        *since = end;
        if self.slowed_until.is_some_and(|until| until <= now) {
            (self.slowed_since, self.slowed_until) = (None, None);
        }
    }

    /// By `now` writers have rested and been busy for so long.
    pub(super) fn sample(&mut self, times: WriterTimes, now: Time) {
        self.count_slowed(now);
        let (at, before, slowed_before) = *self.sampled.get_or_insert((now, times, self.slowed));
        let elapsed = now.since(at);
        if elapsed >= MIN_OBSERVED {
            let since = |now: Seconds, before: Seconds| (now - before).max(Seconds::ZERO);
            self.credit.observe(
                since(times.throttled, before.throttled),
                since(times.busy, before.busy),
                since(self.slowed, slowed_before),
                elapsed,
            );
            self.sampled = Some((now, times, self.slowed));
        }
    }

    /// 0 where they are not throttled, to 1.
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

    fn at(seconds: f64) -> Time {
        Time::from_seconds(seconds)
    }

    fn times(throttled: f64, busy: f64) -> WriterTimes {
        WriterTimes { throttled: Seconds(throttled), busy: Seconds(busy) }
    }

    #[test]
    fn rests_are_looked_at_as_they_come_and_each_once() {
        let mut writers = WriterObserver::new(Seconds(120.0));
        // What was before the first look is not known to be recent.
        let mut throttled = 1000.0;
        writers.sample(times(throttled, 0.0), at(0.0));
        writers.sample(times(throttled, 0.0), at(1.0));
        assert_eq!(writers.degree(), 0.0);
        // Half of the next seconds, looked at ever again.
        writers.slow_down(0.5, at(1.0));
        for tenth in 11..=310 {
            throttled += 0.05;
            writers.sample(times(throttled, 0.0), at(f64::from(tenth) / 10.0 - 0.05));
            writers.sample(times(throttled, 0.0), at(f64::from(tenth) / 10.0));
        }
        assert_eq!(writers.degree(), 1.0);
        writers.slow_down(0.0, at(31.0));
        // Nothing since, seen late.
        writers.sample(times(throttled, 0.0), at(91.0));
        assert_eq!(writers.degree(), 0.0);
    }

    #[test]
    fn writers_that_are_slowed_for_a_moment_are_not_throttled() {
        let [a_moment, most] = [0.06, 9.0].map(|slowed| {
            let mut writers = WriterObserver::new(Seconds(120.0));
            writers.sample(times(0.0, 0.0), at(0.0));
            writers.slow_down(0.9, at(0.0));
            // Of 50 writers, most of the time in which they are slowed down.
            writers.slow_down(0.0, at(slowed));
            writers.sample(times(slowed * 45.0, slowed * 5.0), at(10.0));
            writers.degree()
        });
        assert_eq!((a_moment, most), (0.0, 1.0));
    }

    #[test]
    fn rests_that_end_after_the_slowing_that_made_them_count() {
        let mut writers = WriterObserver::new(Seconds(120.0));
        // Again and again slowed down for 60 ms, of which 50 writers learn with one write each, and
        // rest for 100.
        let (mut throttled, mut busy) = (0.0, 0.0);
        for round in 0..300 {
            let begin = f64::from(round) * 0.3;
            writers.slow_down(0.9, at(begin));
            busy += 50.0 * 0.01;
            writers.slow_down(0.0, at(begin + 0.06));
            writers.sample(times(throttled, busy), at(begin + 0.07));
            throttled += 50.0 * 0.1;
            writers.sample(times(throttled, busy), at(begin + 0.2));
        }
        assert_eq!(writers.degree(), 1.0, "they rest for a third of the time");
        writers.slow_down(0.0, at(91.0));
        writers.sample(times(throttled, busy), at(150.0));
        assert_eq!(writers.degree(), 0.0);
    }
}
