//! When a sync in the background begins.
//!
//! A loss of power takes what was written since the begin of the last sync that has ended. A write
//! that comes right behind the begin of one is covered by the next, which has ended two syncs and a
//! pause later: all three together are to be a [`SYNC_INTERVAL`].

use std::time::Duration;

/// So long after a write with [`Durability::EverySecond`](crate::Durability::EverySecond) it is
/// durable, where no sync takes longer than a third of that, nor longer than [`SyncPace`] expects.
pub const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// What a sync is expected to take on a device of which nothing is known: with more, two and a
/// pause as long do not fit in the interval.
const MAX_THAT_FITS: Duration = Duration::from_millis(SYNC_INTERVAL.as_millis() as u64 / 3);

/// How long syncs pause. They are expected to take as long as the longest one lately: what there is
/// to write changes from one to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncPace {
    expected: Duration,
}

impl SyncPace {
    /// No sync yet.
    pub const fn new() -> Self {
        Self { expected: MAX_THAT_FITS }
    }

    /// A sync took so long. One that was longer than others is forgotten by an eighth with each
    /// further one.
    pub fn took(&mut self, took: Duration) {
        self.expected = took.max(self.expected * 7 / 8);
    }

    /// From the end of a sync to the begin of the next. On a device too slow for the interval syncs
    /// take half of the time and no more, so that it has time for all else; at most the interval is
    /// paused.
    pub fn pause(&self) -> Duration {
        SYNC_INTERVAL.saturating_sub(2 * self.expected).max(self.expected.min(SYNC_INTERVAL))
    }
}

impl Default for SyncPace {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause_of(took: Duration) -> Duration {
        let mut pace = SyncPace::new();
        (0..100).for_each(|_| pace.took(took));
        pace.pause()
    }

    #[test]
    fn what_is_written_is_durable_within_a_second_where_the_device_can() {
        for took in [1, 50, 200, 333].map(Duration::from_millis) {
            let all = took + pause_of(took) + took;
            assert!(all <= SYNC_INTERVAL && all > SYNC_INTERVAL * 9 / 10, "{took:?}: {all:?}");
        }
        for took in [334, 700, 1000].map(Duration::from_millis) {
            assert_eq!(pause_of(took), took, "half of the time");
        }
        assert_eq!(pause_of(60 * SYNC_INTERVAL), SYNC_INTERVAL);
    }

    #[test]
    fn a_burst_after_little_is_durable_within_a_second_as_well() {
        let mut pace = SyncPace::new();
        // The first one may be of a burst.
        assert!(pace.pause() + 2 * MAX_THAT_FITS <= SYNC_INTERVAL);
        let burst = Duration::from_millis(250);
        pace.took(burst);
        for _ in 0..3 {
            let little = Duration::from_millis(5);
            pace.took(little);
            assert!(little + pace.pause() + burst <= SYNC_INTERVAL, "{pace:?}");
        }
    }
}
