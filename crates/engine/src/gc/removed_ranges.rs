//! Ranges of keys that were removed, until a compaction has met what they shadow.
//!
//! A removed range is one entry, and what it shadows counts as live until a compaction brings both
//! together: no sample tells of it. RocksDB compacts only as more is written, so a store that is
//! left alone behind the removal of a large collection would keep all of it. Therefore ranges are
//! remembered, and once nothing is flushed any more the one that shadows most is compacted, where
//! more is freed so than rewritten.
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

use ecotone_rocks_sys::tables::FamilyTable;
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

/// What a compaction is weighed against.
pub(super) struct Data<'a> {
    pub(super) tables: &'a [FamilyTable],
    /// Bytes of values that the tables refer to; taken to lie evenly behind the keys, an estimate.
    pub(super) values: Bytes,
    /// What must be freed at the least.
    pub(super) least: Bytes,
}

impl Data<'_> {
    /// Whether what ranges shadow so much of the tables, with the values behind it, is at least
    /// `least` and as much as all tables together, which may be rewritten.
    fn is_worth_it(&self, shadowed: &[u64]) -> bool {
        let tables: u64 = self.tables.iter().map(|table| table.bytes).sum();
        let keys = shadowed.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)).min(tables);
        let freed = keys as f64 * (1.0 + self.values.0 as f64 / tables.max(1) as f64);
        freed >= self.least.0 as f64 && freed >= tables as f64
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

    /// Whether all of them together may be worth a compaction, if they shadow what lies in them;
    /// where not, there is none to look at until another is added. So nothing is flushed for a
    /// little.
    ///
    /// # Errors
    ///
    /// Where RocksDB does not tell how much lies in them.
    pub(super) fn may_be_worth_it(&self, db: &DB, family: DataFamily, data: &Data<'_>) -> Result<bool> {
        let state = self.begin_to_look(u64::MAX);
        let is = data.is_worth_it(&there(db, family, &state)?);
        self.state.lock().has_new |= is;
        Ok(is)
    }

    /// The first `flushed` of all that were added. Who adds one meanwhile makes it known that there
    /// is one to look at.
    fn begin_to_look(&self, flushed: u64) -> Vec<Removed> {
        let mut state = self.state.lock();
        state.has_new = false;
        state.ranges.iter().filter(|it| it.number < flushed).cloned().collect()
    }

    /// Takes the range to compact now, and what it may shadow of the tables; `None` where none is
    /// worth it, until another is added. Those that shadow nothing are forgotten. Only the first
    /// `flushed` of all that were added are looked at, of which no memtable holds the removal.
    ///
    /// # Errors
    ///
    /// Where RocksDB does not tell how much lies in them.
    pub(super) fn take(
        &self,
        db: &DB,
        family: DataFamily,
        data: &Data<'_>,
        flushed: u64,
    ) -> Result<Option<(KeyRange, Bytes)>> {
        // Who adds one must not wait for what RocksDB reads.
        let state = self.begin_to_look(flushed);
        let there = there(db, family, &state)?;
        let shadowed = state.iter().zip(there).map(|(it, there)| if it.is_held_by(data.tables) { there } else { 0 });
        let shadowed: Vec<_> = shadowed.collect();
        let largest = state.iter().zip(&shadowed).max_by_key(|(_, shadowed)| **shadowed);
        let largest = largest.filter(|_| data.is_worth_it(&shadowed));
        let is_gone = |removed: &Removed| {
            let shadows_nothing = state.iter().zip(&shadowed).any(|(it, shadowed)| *shadowed == 0 && it == removed);
            shadows_nothing || largest.is_some_and(|(largest, _)| largest == removed)
        };
        let mut now = self.state.lock();
        now.ranges.retain(|removed| !is_gone(removed));
        let is_left = now.ranges.iter().any(|removed| largest.is_some() || removed.number >= flushed);
        now.has_new |= is_left;
        let taken = largest.map(|(removed, shadowed)| (removed.range.clone(), Bytes(*shadowed)));
        Ok(taken)
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

    const MIB: u64 = 1024 * 1024;

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

    #[test]
    fn more_must_be_freed_than_may_be_rewritten() {
        let is = |shadowed: &[u64], tables: u64, values: u64| {
            let shadowed: Vec<_> = shadowed.iter().map(|mib| mib * MIB).collect();
            let tables = [FamilyTable { bytes: tables * MIB, ..FamilyTable::default() }];
            Data { tables: &tables, values: Bytes(values * MIB), least: Bytes(16 * MIB) }.is_worth_it(&shadowed)
        };
        // Ten tables' bytes of values for each: one in eleven of the keys shadows as much as all
        // tables are.
        assert!(is(&[10], 100, 1000) && is(&[5, 5], 100, 1000) && !is(&[9], 100, 1000));
        assert!(!is(&[1], 1, 14) && is(&[1], 1, 15));
        assert!(!is(&[], 0, 0) && is(&[u64::MAX / MIB, u64::MAX / MIB], 100, 1000));
    }
}
