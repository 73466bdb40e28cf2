//! Ranges of keys that were removed, until a compaction has met what they hide.
//!
//! A removed range is one entry, and what it hides counts as live until a compaction brings both together: no sample tells of it. RocksDB
//! compacts only as more is written, so a store that is left alone behind the removal of a large collection would keep all of it. Therefore
//! ranges are remembered, and once nothing is flushed any more the one that hides most is compacted, where more is freed so than rewritten.
//!
//! Bounds: [`MOST_RANGES`] and [`MOST_BYTES`]; of more the oldest are forgotten. What is forgotten, by a restart too, waits for a compaction that
//! runs for another reason.
//!
//! Threads: any may add; that of [`super::upkeep`] takes.

use std::collections::VecDeque;

use ecotone_policy::units::Bytes;
use parking_lot::Mutex;
use rust_rocksdb::{DB, Range};

use crate::family::DataFamily;
use crate::{Error, Result};

/// Who removes more at a time writes enough for compactions to run anyway, or should have removed one range.
const MOST_RANGES: usize = 256;

/// Of the keys of all ranges.
const MOST_BYTES: usize = 1024 * 1024;

/// The keys from the first to before the second.
pub(super) type KeyRange = (Vec<u8>, Vec<u8>);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RemovedRanges {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    ranges: VecDeque<KeyRange>,
    bytes: usize,
    added: u64,
}

impl RemovedRanges {
    /// A range is about to be removed. Returns whether no other was known.
    pub(super) fn add(&self, from: &[u8], to: &[u8]) -> bool {
        let mut known = self.known.lock();
        let is_first = known.ranges.is_empty();
        known.added += 1;
        known.bytes += from.len() + to.len();
        known.ranges.push_back((from.to_vec(), to.to_vec()));
        while known.ranges.len() > 1 && (known.ranges.len() > MOST_RANGES || known.bytes > MOST_BYTES) {
            let forgotten = known.ranges.pop_front().map_or(0, |(from, to)| from.len() + to.len());
            known.bytes -= forgotten;
        }
        is_first
    }

    /// How many were ever added; `None` where none is known.
    pub(super) fn added(&self) -> Option<u64> {
        let known = self.known.lock();
        (!known.ranges.is_empty()).then_some(known.added)
    }

    fn retain(&self, is_kept: impl Fn(&KeyRange) -> bool) {
        let mut known = self.known.lock();
        known.ranges.retain(is_kept);
        known.bytes = known.ranges.iter().map(|(from, to)| from.len() + to.len()).sum();
    }

    /// Takes the range to compact now, and what of the tables lies in it; `None` where that is not worth it. Those in which tables have nothing are
    /// forgotten.
    ///
    /// Values lie behind keys as evenly as `values` behind `tables`, both of the whole store: an estimate. As much as all tables may be rewritten.
    ///
    /// # Errors
    ///
    /// Where RocksDB does not tell how much lies in them.
    pub(super) fn take(
        &self,
        db: &DB,
        family: DataFamily,
        tables: Bytes,
        values: Bytes,
        least: Bytes,
    ) -> Result<Option<(KeyRange, Bytes)>> {
        let ranges: Vec<_> = self.known.lock().ranges.iter().cloned().collect();
        let asked: Vec<_> = ranges.iter().map(|(from, to)| Range::new(from, to)).collect();
        let hidden = db.get_approximate_sizes_cf(&family, &asked).map_err(|error| Error::from_rocks(&error))?;
        let largest = ranges.iter().zip(&hidden).max_by_key(|(_, bytes)| **bytes);
        let taken = largest.filter(|_| is_worth_it(&hidden, tables, values, least));
        let taken = taken.map(|(range, bytes)| (range.clone(), Bytes(*bytes)));
        let is_gone = |range: &KeyRange| {
            taken.as_ref().is_some_and(|(taken, _)| taken == range)
                || ranges.iter().zip(&hidden).any(|(other, bytes)| *bytes == 0 && other == range)
        };
        self.retain(|range| !is_gone(range));
        Ok(taken)
    }
}

/// Whether what the ranges hide, with the values behind it, is at least `least` and as much as all tables together.
fn is_worth_it(hidden: &[u64], tables: Bytes, values: Bytes, least: Bytes) -> bool {
    let keys: u64 = hidden.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)).min(tables.0);
    let freed = keys as f64 * (1.0 + values.0 as f64 / tables.0.max(1) as f64);
    freed >= least.0 as f64 && freed >= tables.0 as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn added(count: usize, key_bytes: usize) -> RemovedRanges {
        let ranges = RemovedRanges::default();
        for number in 0..count {
            let key = format!("{number:0key_bytes$}");
            assert_eq!(ranges.add(key.as_bytes(), key.as_bytes()), number == 0);
        }
        ranges
    }

    #[test]
    fn the_oldest_are_forgotten_where_there_are_too_many_or_too_long_ones() {
        assert_eq!(RemovedRanges::default().added(), None);
        for (count, key_bytes, first) in [(MOST_RANGES, 8, 0), (MOST_RANGES + 3, 8, 3), (40, 32 * 1024, 24)] {
            let ranges = added(count, key_bytes);
            assert_eq!(ranges.added(), Some(count as u64));
            let known = ranges.known.lock();
            assert_eq!(known.ranges.front().unwrap().0, format!("{first:0key_bytes$}").into_bytes());
            assert_eq!(known.ranges.len(), count - first);
            assert_eq!(known.bytes, known.ranges.len() * 2 * key_bytes);
        }
    }

    #[test]
    fn more_must_be_freed_than_may_be_rewritten() {
        let is = |hidden: &[u64], tables: u64, values: u64| {
            let hidden: Vec<_> = hidden.iter().map(|mib| mib * MIB).collect();
            is_worth_it(&hidden, Bytes(tables * MIB), Bytes(values * MIB), Bytes(16 * MIB))
        };
        // Ten tables' bytes of values for each: one in eleven of the keys hides as much as all tables are.
        assert!(is(&[10], 100, 1000) && is(&[5, 5], 100, 1000) && !is(&[9], 100, 1000));
        assert!(!is(&[1], 1, 14) && is(&[1], 1, 15));
        assert!(!is(&[], 0, 0) && is(&[u64::MAX / MIB, u64::MAX / MIB], 100, 1000));
    }
}
