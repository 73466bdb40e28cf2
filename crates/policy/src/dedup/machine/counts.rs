//! What was decided about duplicates, counted.

use crate::dedup::decide::Why;
use crate::dedup::deferral::Deferral;

/// Since the machine was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedupCounts {
    /// Checks after compactions, or at intervals.
    pub checks: u64,
    /// Compactions that were not looked at because too many had ended before they could be.
    pub checks_dropped: u64,
    /// Checks that found enough to extend a compaction, or whose range waits for a merge already.
    pub extensions: u64,
    /// Merges that were made.
    pub merges: u64,
    /// Merges that RocksDB refused, because it compacts some of their tables.
    pub merges_aborted: u64,
    /// Stale versions that merges were expected to free.
    pub expected_keys: u64,
    /// Those that they freed.
    pub found_keys: u64,
    /// In the order of [`Deferral::ALL`].
    merges_deferred: [u64; Deferral::ALL.len()],
    /// In the order of [`Why::ALL`].
    checks_left: [u64; Why::ALL.len()],
}

impl DedupCounts {
    /// Times that a merge was deferred, by reason: once until the reason is another one or
    /// something was merged.
    pub fn merges_deferred(&self) -> impl Iterator<Item = (Deferral, u64)> {
        Deferral::ALL.into_iter().zip(self.merges_deferred)
    }

    /// Checks that extended nothing, by reason.
    pub fn checks_left(&self) -> impl Iterator<Item = (Why, u64)> {
        Why::ALL.into_iter().zip(self.checks_left)
    }

    pub(super) fn deferred(&mut self, why: Deferral) {
        add_one(&Deferral::ALL, &mut self.merges_deferred, why);
    }

    pub(super) fn left(&mut self, why: Why) {
        add_one(&Why::ALL, &mut self.checks_left, why);
    }
}

fn add_one<R: PartialEq>(all: &[R], counts: &mut [u64], reason: R) {
    if let Some((_, count)) = all.iter().zip(counts).find(|(one, _)| **one == reason) {
        *count += 1;
    }
}
