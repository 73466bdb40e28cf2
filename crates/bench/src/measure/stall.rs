//! How long a store was stalled, from samples.
//!
//! For the bare target, which has no listener for RocksDB's stall conditions: it is asked now and
//! then whether the write controller slows or stops writers. Our store is notified of the same
//! conditions as they change, so both figures mean the same, but this one is only as fine as its
//! samples. RocksDB's own sum of delays would not do: it counts the wait of each writer instead of
//! the time the store was in that condition.

use std::time::Duration;

/// Adds up the time in a stall condition from samples of it.
#[derive(Clone, Debug, Default)]
pub struct StallClock {
    last: Option<(Duration, bool)>,
    stalled: Duration,
}

impl StallClock {
    /// Takes one sample. The time between two samples counts whole if both are stalled, half if one
    /// is.
    pub fn sample(&mut self, now: Duration, is_stalled: bool) {
        if let Some((then, was_stalled)) = self.last {
            let between = now.saturating_sub(then);
            self.stalled += between * (u32::from(was_stalled) + u32::from(is_stalled)) / 2;
        }
        self.last = Some((now, is_stalled));
    }

    /// The sum so far.
    pub fn stalled(&self) -> Duration {
        self.stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_stalled_samples_counts_and_edges_count_half() {
        let mut clock = StallClock::default();
        for (ms, stalled) in [(0, false), (10, true), (20, true), (35, true), (40, false), (50, false)] {
            clock.sample(Duration::from_millis(ms), stalled);
        }
        assert_eq!(clock.stalled(), Duration::from_micros(5_000 + 10_000 + 15_000 + 2_500));
    }

    #[test]
    fn one_sample_says_nothing() {
        let mut clock = StallClock::default();
        clock.sample(Duration::from_secs(5), true);
        assert_eq!(clock.stalled(), Duration::ZERO);
    }
}
