//! Less and less often, while merges free less than was expected of them.
//!
//! An old snapshot or iterator keeps every version: the samples still tell of duplicates, and no
//! merge frees one. After each such merge the next one waits twice as long, until one frees what it
//! should.
//!
//! Few samples promise little: merges of which few duplicates were sampled are judged together,
//! once they have as many as one that is worth making must have. That a merge has freed nothing at
//! all is no chance, and is judged at once.

use super::DedupParameters;
use super::estimate::Estimate;
use ecotone_types::units::{Seconds, Time};

/// A merge that freed this share of what was expected ends the waiting. Above the default of
/// `min_found_share`, so that what lies between neither lengthens nor ends it.
const SATISFYING_SHARE: f64 = 0.8;

/// When the next merge may begin.
#[derive(Clone, Debug)]
pub struct BackOff {
    min_found_share: f64,
    min_sampled: u64,
    first_pause: Seconds,
    longest_pause: Seconds,
    pause: Seconds,
    until: Option<Time>,
    /// Of merges that were not judged yet: keys expected, of these sampled, and keys found.
    pending: (u64, u64, u64),
}

impl BackOff {
    /// Nothing to wait for.
    pub fn new(parameters: &DedupParameters) -> Self {
        Self {
            min_found_share: parameters.min_found_share,
            min_sampled: parameters.min_sampled_duplicates,
            first_pause: parameters.first_pause,
            longest_pause: parameters.longest_pause,
            pause: Seconds::ZERO,
            until: None,
            pending: (0, 0, 0),
        }
    }

    /// A merge ended of which so much was expected, and `found` entries went. Whether that was so
    /// few that what is left of the extension is to be dropped.
    pub fn observe(&mut self, now: Time, expected: &Estimate, found: u64) -> bool {
        if found == 0 {
            self.pending = (0, 0, 0);
            self.lengthen(now);
            return true;
        }
        self.pending.0 += expected.duplicate_keys;
        self.pending.1 += expected.sampled_duplicates;
        self.pending.2 += found;
        if self.pending.1 < self.min_sampled {
            return false;
        }
        let (expected, _, found) = std::mem::take(&mut self.pending);
        let (expected, found) = (expected as f64, found as f64);
        if found < self.min_found_share * expected {
            self.lengthen(now);
            return true;
        }
        if found >= SATISFYING_SHARE.max(self.min_found_share) * expected {
            self.pause = Seconds::ZERO;
            self.until = None;
        }
        false
    }

    /// A merge failed: as one that freed nothing.
    pub fn failed(&mut self, now: Time) {
        self.lengthen(now);
    }

    /// How long the next merge must still wait; zero if it need not.
    pub fn remaining(&self, now: Time) -> Seconds {
        self.until.map_or(Seconds::ZERO, |until| until.since(now))
    }

    fn lengthen(&mut self, now: Time) {
        self.pause = (self.pause * 2.0).max(self.first_pause).min(self.longest_pause);
        self.until = Some(now + self.pause);
    }
}
