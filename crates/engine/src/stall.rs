//! How long a store has held its writers back.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::StallCondition;

/// Adds up the time spent in each stall condition, by a monotonic clock. RocksDB tells the changes.
pub(crate) struct StallClock(Mutex<State>);

struct State {
    condition: StallCondition,
    since: Instant,
    delayed: Duration,
    stopped: Duration,
}

/// Time in stall conditions since the store was opened, the one under way included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StallTimes {
    pub(crate) delayed: Duration,
    pub(crate) stopped: Duration,
}

impl StallClock {
    pub(crate) fn start() -> Self {
        Self::start_at(Instant::now())
    }

    fn start_at(now: Instant) -> Self {
        Self(Mutex::new(State {
            condition: StallCondition::Normal,
            since: now,
            delayed: Duration::ZERO,
            stopped: Duration::ZERO,
        }))
    }

    pub(crate) fn change_to(&self, condition: StallCondition) {
        self.change_at(condition, Instant::now());
    }

    fn change_at(&self, condition: StallCondition, now: Instant) {
        let mut state = self.0.lock();
        state.settle(now);
        state.condition = condition;
    }

    pub(crate) fn condition(&self) -> StallCondition {
        self.0.lock().condition
    }

    pub(crate) fn times(&self) -> StallTimes {
        self.times_at(Instant::now())
    }

    fn times_at(&self, now: Instant) -> StallTimes {
        let mut state = self.0.lock();
        state.settle(now);
        StallTimes { delayed: state.delayed, stopped: state.stopped }
    }
}

impl State {
    fn settle(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        match self.condition {
            StallCondition::Normal => {}
            StallCondition::Delayed => self.delayed += passed,
            StallCondition::Stopped => self.stopped += passed,
        }
        self.since = self.since.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_condition_is_charged_for_its_own_time() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let clock = StallClock::start_at(begin);
        clock.change_at(StallCondition::Delayed, at(10));
        clock.change_at(StallCondition::Stopped, at(15));
        clock.change_at(StallCondition::Delayed, at(35));
        clock.change_at(StallCondition::Normal, at(36));
        let times = StallTimes { delayed: Duration::from_millis(6), stopped: Duration::from_millis(20) };
        assert_eq!(clock.times_at(at(100)), times);
        assert_eq!(clock.condition(), StallCondition::Normal);
    }

    #[test]
    fn a_stall_under_way_counts_already() {
        let begin = Instant::now();
        let clock = StallClock::start_at(begin);
        clock.change_at(StallCondition::Stopped, begin);
        assert_eq!(clock.times_at(begin + Duration::from_secs(2)).stopped, Duration::from_secs(2));
        assert_eq!(clock.times_at(begin + Duration::from_secs(3)).stopped, Duration::from_secs(3));
    }
}
