//! Ranges of keys that were removed, until a compaction has met what they shadow.
//!
//! A removed range is one entry, and what it shadows counts as live until a compaction brings both
//! together: no sample tells of it. RocksDB compacts only as more is written, so a store that is
//! left alone behind the removal of a large collection would keep all of it. Therefore ranges are
//! remembered, and compacted where that pays ([`ecotone_policy::gc::GcMachine`]).
//!
//! A range shadows something while a table holds its removal, or may: one with deletions that
//! overlaps it. Behind the last level's compaction none does, and the range is forgotten, whatever
//! was written to it since.
//!
//! Bounds: [`MAX_RANGES`] and [`MAX_BYTES`]; of more the oldest are forgotten. What is forgotten,
//! by a restart too, waits for a compaction that runs for another reason, and so does a range whose
//! compaction RocksDB refuses.
//!
//! Threads: any may add; that of [`super::worker`] takes.

use std::collections::VecDeque;

use ecotone_policy::gc::RemovedRange;
use ecotone_rocks::tables::FamilyTable;
use ecotone_types::units::Bytes;
use parking_lot::Mutex;
use rust_rocksdb::{DB, Range};

use crate::compaction::by_names::may_hold_deletions;
use crate::family::DataFamily;
use crate::{Error, Result};

/// Who removes more at a time writes enough for compactions to run anyway, or should have removed
/// one range.
const MAX_RANGES: usize = 256;

/// Of the keys of all ranges.
const MAX_BYTES: usize = 1024 * 1024;

/// The keys from the first to before the second.
pub(crate) type KeyRange = (Vec<u8>, Vec<u8>);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RemovedRanges {
    state: Mutex<RangeState>,
}

#[derive(Debug, Default)]
struct RangeState {
    ranges: VecDeque<Removed>,
    /// How many were ever added.
    added: u64,
    /// Whether one was added since all of them were found to be not worth it.
    has_new: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Removed {
    range: KeyRange,
    /// How many were added before it.
    number: u64,
}

impl Removed {
    fn bytes(&self) -> usize {
        self.range.0.len() + self.range.1.len()
    }

    fn covers(&self, (from, to): &KeyRange) -> bool {
        self.range.0 <= *from && *to <= self.range.1
    }

    /// Whether a table may hold the removal.
    fn is_held_by(&self, tables: &[FamilyTable]) -> bool {
        let (from, to) = &self.range;
        let overlaps = |table: &FamilyTable| table.smallest_user_key < *to && *from <= table.largest_user_key;
        tables.iter().any(|table| may_hold_deletions(table) && overlaps(table))
    }
}

impl RemovedRanges {
    /// A range was removed. Returns whether there was none to look at before.
    pub(super) fn add(&self, range: KeyRange) -> bool {
        let mut state = self.state.lock();
        let removed = Removed { range, number: state.added };
        state.added += 1;
        state.ranges.retain(|other| !removed.covers(&other.range));
        state.ranges.push_back(removed);
        let mut bytes: usize = state.ranges.iter().map(Removed::bytes).sum();
        while state.ranges.len() > 1 && (state.ranges.len() > MAX_RANGES || bytes > MAX_BYTES) {
            bytes -= state.ranges.pop_front().map_or(0, |removed| removed.bytes());
        }
        !std::mem::replace(&mut state.has_new, true)
    }

    /// How many were ever added.
    pub(super) fn added(&self) -> u64 {
        self.state.lock().added
    }

    /// Whether there is one to look at.
    pub(super) fn has_new(&self) -> bool {
        self.state.lock().has_new
    }

    /// What there is in each of them; there is none to look at then until another is added, or
    /// [`keep`](Self::keep) is called.
    ///
    /// # Errors
    ///
    /// Where RocksDB does not tell how much lies in them.
    pub(super) fn measure(&self, db: &DB, family: DataFamily, tables: &[FamilyTable]) -> Result<Vec<RemovedRange>> {
        // Who adds one must not wait for what RocksDB reads.
        let ranges: Vec<_> = {
            let mut state = self.state.lock();
            state.has_new = false;
            state.ranges.iter().cloned().collect()
        };
        let there = there(db, family, &ranges)?;
        let measured = ranges.iter().zip(there).map(|(range, bytes)| RemovedRange {
            number: range.number,
            bytes: Bytes(bytes),
            is_held: range.is_held_by(tables),
        });
        Ok(measured.collect())
    }

    /// There are some to look at again.
    pub(super) fn keep(&self) {
        self.state.lock().has_new = true;
    }

    /// These shadow nothing any more.
    pub(super) fn forget(&self, numbers: &[u64]) {
        self.state.lock().ranges.retain(|removed| !numbers.contains(&removed.number));
    }

    /// Takes one to compact it; `None` where one that was removed since takes its place.
    pub(super) fn take(&self, number: u64) -> Option<KeyRange> {
        let mut state = self.state.lock();
        let at = state.ranges.iter().position(|removed| removed.number == number)?;
        state.ranges.remove(at).map(|removed| removed.range)
    }
}

/// What of the tables lies in each range.
fn there(db: &DB, family: DataFamily, ranges: &[Removed]) -> Result<Vec<u64>> {
    let asked: Vec<_> = ranges.iter().map(|it| Range::new(&it.range.0, &it.range.1)).collect();
    db.get_approximate_sizes_cf(&family, &asked).map_err(|error| Error::from_rocks(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize, bytes: usize) -> Vec<u8> {
        format!("{number:0bytes$}").into_bytes()
    }

    #[test]
    fn the_oldest_are_forgotten_where_there_are_too_many_or_too_long_ones() {
        for (count, key_bytes, first) in [(MAX_RANGES, 8, 0), (MAX_RANGES + 3, 8, 3), (40, 32 * 1024, 24)] {
            let ranges = RemovedRanges::default();
            for number in 0..count {
                ranges.add((key(number, key_bytes), key(number + 1, key_bytes)));
            }
            let state = ranges.state.lock();
            assert_eq!(state.ranges.front().unwrap().range.0, key(first, key_bytes));
            assert_eq!(state.ranges.len(), count - first);
        }
    }

    #[test]
    fn a_range_takes_the_place_of_those_within_it() {
        let ranges = RemovedRanges::default();
        for (from, to) in [(2, 3), (3, 5), (6, 8), (0, 1), (2, 6)] {
            ranges.add((key(from, 1), key(to, 1)));
        }
        let state = ranges.state.lock();
        let left: Vec<_> = state.ranges.iter().map(|it| it.range.clone()).collect();
        assert_eq!(left, [(6, 8), (0, 1), (2, 6)].map(|(from, to)| (key(from, 1), key(to, 1))));
    }

    #[test]
    fn somebody_is_woken_for_the_first_that_nobody_has_looked_at() {
        let ranges = RemovedRanges::default();
        assert!(!ranges.has_new());
        assert!(ranges.add((key(1, 1), key(2, 1))) && !ranges.add((key(3, 1), key(4, 1))));
        assert!(ranges.has_new());
        // Found to be not worth it.
        ranges.state.lock().has_new = false;
        assert!(!ranges.has_new() && ranges.add((key(5, 1), key(6, 1))) && ranges.has_new());
    }
}
