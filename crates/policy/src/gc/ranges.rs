//! Which removed range is worth a compaction.
//!
//! A removed range is one entry, and what it shadows counts as live until a compaction brings both
//! together: no sample tells of it. A range shadows something while a table holds its removal.
//! Behind the last level's compaction none does, and the range is forgotten, whatever was written
//! to it since. What it shadows is measured in the bytes of tables that lie in it; values are taken
//! to lie evenly behind the keys, an estimate.

use ecotone_types::units::Bytes;

use super::event::RemovedRange;

/// What a compaction is weighed against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RangeWorth {
    /// Of all tables, which may be rewritten.
    pub(super) tables: Bytes,
    /// Of the values that they refer to.
    pub(super) values: Bytes,
    /// What must be freed at the least.
    pub(super) least: Bytes,
}

impl RangeWorth {
    /// Whether ranges that shadow so much of the tables, with the values behind it, free at least
    /// `least`, and as much as all tables are.
    pub(super) fn pays(&self, shadowed: impl IntoIterator<Item = Bytes>) -> bool {
        let tables = self.tables.0;
        let keys = shadowed.into_iter().fold(0, |sum: u64, bytes| sum.saturating_add(bytes.0)).min(tables);
        let freed = keys as f64 * (1.0 + self.values.0 as f64 / tables.max(1) as f64);
        freed >= self.least.0 as f64 && freed >= tables as f64
    }

    /// What to do about these ranges.
    pub(super) fn choose(&self, ranges: &[RemovedRange]) -> RangeChoice {
        let shadowed = |range: &RemovedRange| if range.is_held { range.bytes } else { Bytes::ZERO };
        let largest = ranges.iter().max_by_key(|range| shadowed(range).0);
        let compact = largest.filter(|_| self.pays(ranges.iter().map(shadowed)));
        let compact = compact.map(|range| RemovedRange { bytes: shadowed(range), ..*range });
        let others =
            ranges.iter().copied().filter(|range| compact.is_none_or(|compact| compact.number != range.number));
        let (shadowing, forget): (Vec<RemovedRange>, Vec<RemovedRange>) =
            others.partition(|range| shadowed(range) > Bytes::ZERO);
        RangeChoice {
            compact,
            forget: forget.into_iter().map(|range| range.number).collect(),
            is_left: !shadowing.is_empty(),
        }
    }
}

/// What to do about removed ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RangeChoice {
    /// The one that shadows most, and how much, where that pays.
    pub(super) compact: Option<RemovedRange>,
    /// Those that shadow nothing.
    pub(super) forget: Vec<u64>,
    /// Whether there are others.
    pub(super) is_left: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn more_must_be_freed_than_may_be_rewritten() {
        let is = |shadowed: &[u64], tables: u64, values: u64| {
            RangeWorth { tables: Bytes(tables * MIB), values: Bytes(values * MIB), least: Bytes::from_mib(16) }
                .pays(shadowed.iter().map(|mib| Bytes(mib * MIB)))
        };
        // Ten tables' bytes of values for each: one in eleven of the keys shadows as much as all
        // tables are.
        assert!(is(&[10], 100, 1000) && is(&[5, 5], 100, 1000) && !is(&[9], 100, 1000));
        assert!(!is(&[1], 1, 14) && is(&[1], 1, 15));
        assert!(!is(&[], 0, 0) && is(&[u64::MAX / MIB, u64::MAX / MIB], 100, 1000));
    }

    #[test]
    fn the_largest_is_compacted_and_what_shadows_nothing_is_forgotten() {
        let range = |number, mib, is_held| RemovedRange { number, bytes: Bytes::from_mib(mib), is_held };
        let worth = RangeWorth { tables: Bytes::from_mib(10), values: Bytes::from_mib(90), least: Bytes::from_mib(1) };
        let ranges = [range(0, 1, true), range(1, 9, false), range(2, 3, true), range(3, 0, true)];
        let choice = RangeChoice { compact: Some(range(2, 3, true)), forget: vec![1, 3], is_left: true };
        assert_eq!(worth.choose(&ranges), choice);
        let dear = RangeWorth { values: Bytes::ZERO, ..worth };
        assert_eq!(dear.choose(&ranges), RangeChoice { compact: None, forget: vec![1, 3], is_left: true });
        assert_eq!(worth.choose(&[]), RangeChoice { compact: None, forget: vec![], is_left: false });
    }
}
