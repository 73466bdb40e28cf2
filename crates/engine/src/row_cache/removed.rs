//! Ranges of keys that were removed lately, so that a row tells when it is asked for whether it is
//! in one. To look through all rows for each range would hold up everybody, the longer the more
//! there are.
//!
//! Bounds: [`MAX_RANGES`]; a row that nobody asked for since more of them is taken for removed.
//!
//! Threads: any.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

/// Ranges that are remembered. To look through all of them takes some microseconds, once for each
/// row that was not asked for meanwhile.
pub(super) const MAX_RANGES: usize = 1024;

/// The ranges that were removed last.
#[derive(Debug, Default)]
pub(super) struct RemovedRanges {
    /// How many were ever removed.
    count: AtomicU64,
    /// The last of them.
    last: RwLock<VecDeque<Range<Box<[u8]>>>>,
}

impl RemovedRanges {
    /// How many were removed so far.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// One more was removed. Returns how many are now.
    pub(super) fn add(&self, range: Range<&[u8]>) -> u64 {
        let mut last = self.last.write();
        if last.len() == MAX_RANGES {
            last.pop_front();
        }
        last.push_back(range.start.into()..range.end.into());
        self.count.fetch_add(1, Ordering::Release) + 1
    }

    /// Whether `key` is known to be in none of those that were removed after the first `before`.
    pub(super) fn spare(&self, key: &[u8], before: u64) -> bool {
        let last = self.last.read();
        let since = self.count.load(Ordering::Relaxed).saturating_sub(before);
        let is_in = |range: &Range<Box<[u8]>>| *range.start <= *key && *key < *range.end;
        since <= last.len() as u64 && !last.iter().rev().take(since as usize).any(is_in)
    }
}
