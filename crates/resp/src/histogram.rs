//! How times are distributed: counts in buckets that grow by the power of two, so that a time finds
//! its bucket without a search.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The first bucket holds times up to 2^`MIN_BITS` nanoseconds, about a microsecond.
const MIN_BITS: u32 = 10;

/// The last bucket but one holds times up to 2^`MAX_BITS` nanoseconds, about 4.3 seconds; the last
/// what is longer.
const MAX_BITS: u32 = 32;

/// Buckets, the one for the longest times included.
pub const BUCKETS: usize = (MAX_BITS - MIN_BITS + 2) as usize;

/// Counts of times. Any thread may count; who reads meanwhile sees each count before or after.
#[derive(Debug, Default)]
pub struct Histogram([AtomicU64; BUCKETS]);

impl Histogram {
    /// One more.
    #[inline]
    pub fn record(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Bits of one less, so that the bounds belong to the bucket below them.
        let bits = u64::BITS - took_ns.saturating_sub(1).leading_zeros();
        let bucket = bits.clamp(MIN_BITS, MAX_BITS + 1) - MIN_BITS;
        self.0[bucket as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The count of each bucket.
    pub fn counts(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|bucket| self.0[bucket].load(Ordering::Relaxed))
    }

    /// A time in seconds that `percentile` of 100 did not exceed: the bound of a bucket. Nothing
    /// was counted: none.
    pub fn percentile_s(&self, percentile: f64) -> Option<f64> {
        let counts = self.counts();
        let all: u64 = counts.iter().sum();
        let within = (all as f64 * percentile / 100.0).ceil() as u64;
        let mut counted = 0;
        let reached = counts.iter().position(|count| {
            counted += count;
            counted >= within.max(1)
        })?;
        let bounds_s = Self::bounds_s();
        // What is longer than the last bound is at least that long.
        bounds_s.get(reached).or(bounds_s.last()).copied()
    }

    /// All from 0 again.
    pub fn reset(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// The longest time of each bucket but the last, in seconds.
    pub fn bounds_s() -> [f64; BUCKETS - 1] {
        std::array::from_fn(|bucket| (1u64 << (MIN_BITS + bucket as u32)) as f64 / 1e9)
    }
}

/// A histogram and the sum of what it counts.
#[derive(Debug, Default)]
pub struct Times {
    /// Their distribution.
    pub histogram: Histogram,
    /// All together.
    pub sum_ns: AtomicU64,
}

impl Times {
    /// One more.
    #[inline]
    pub fn record(&self, took: Duration) {
        self.histogram.record(took);
        self.sum_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// All from 0 again.
    pub fn reset(&self) {
        self.histogram.reset();
        self.sum_ns.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_bound_that_as_many_times_did_not_exceed() {
        let histogram = Histogram::default();
        assert_eq!(histogram.percentile_s(50.0), None);
        (0..98).for_each(|_| histogram.record(Duration::from_nanos(1)));
        histogram.record(Duration::from_millis(1));
        histogram.record(Duration::from_secs(1000));
        let bound_s = |bits: u32| (1u64 << bits) as f64 / 1e9;
        for (percentile, bits) in [(0.0, 10), (50.0, 10), (98.0, 10), (99.0, 20), (99.9, 32), (100.0, 32)] {
            assert_eq!(histogram.percentile_s(percentile), Some(bound_s(bits)), "{percentile}");
        }
    }

    #[test]
    fn each_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let bounds_ns = Histogram::bounds_s().map(|bound_s| (bound_s * 1e9).round() as u64);
        for took_ns in [0, 1, 1023, 1024, 1025, 1 << 20, (1 << 20) + 1, 1 << 32, (1 << 32) + 1, u64::MAX] {
            let histogram = Histogram::default();
            histogram.record(Duration::from_nanos(took_ns));
            let expected = bounds_ns.iter().position(|bound_ns| took_ns <= *bound_ns).unwrap_or(BUCKETS - 1);
            let found = histogram.counts().iter().position(|count| *count == 1);
            assert_eq!(found, Some(expected), "{took_ns} ns");
        }
    }
}
