//! What scans have stepped over, by ranges of keys.
//!
//! Ranges that overlap are one. Of too many, the two neighbours whose keys have most in common
//! become one: so what is read here and there in one collection becomes its range before two
//! collections do.
//!
//! Bounds: [`MAX_RANGES`].

/// Ranges that are told apart.
pub(super) const MAX_RANGES: usize = 64;

/// A range is looked at once so much was stepped over in it, and after that once a look has found
/// that it would pay.
pub(super) const MIN_WANTED: u64 = 50_000;

/// Keys from the first to the last, both in it, and what was stepped over between them since it was
/// cleaned up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SkippedRange {
    pub(super) first: Vec<u8>,
    pub(super) last: Vec<u8>,
    /// Entries, of all scans.
    pub(super) entries: u64,
    /// Of the scan that met most since the last step of a cleanup.
    pub(super) most: u64,
    /// So many entries have to be stepped over before it is looked at (again).
    pub(super) wanted: u64,
}

impl SkippedRange {
    fn new(first: Vec<u8>, last: Vec<u8>, entries: u64) -> Self {
        Self { first, last, entries, most: entries, wanted: MIN_WANTED }
    }

    fn overlaps(&self, first: &[u8], last: &[u8]) -> bool {
        *self.first <= *last && *first <= *self.last
    }

    fn take_in(&mut self, other: Self) {
        self.first = std::mem::take(&mut self.first).min(other.first);
        self.last = std::mem::take(&mut self.last).max(other.last);
        self.entries = self.entries.saturating_add(other.entries);
        self.most = self.most.max(other.most);
        self.wanted = self.wanted.max(other.wanted);
    }

    fn is_due(&self) -> bool {
        self.entries >= self.wanted
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SkippedRanges {
    /// By key; no two overlap.
    ranges: Vec<SkippedRange>,
}

impl SkippedRanges {
    /// A scan from `first` to `last` stepped over so many `entries`. Whether the range that this
    /// belongs to is to be looked at.
    pub(super) fn add(&mut self, first: Vec<u8>, last: Vec<u8>, entries: u64) -> bool {
        if last < first {
            return false;
        }
        let mut added = SkippedRange::new(first, last, entries);
        let begin = self.ranges.partition_point(|range| range.last < added.first);
        let end = begin + self.ranges[begin..].partition_point(|range| range.first <= added.last);
        self.ranges.drain(begin..end).for_each(|range| added.take_in(range));
        let is_due = added.is_due();
        self.ranges.insert(begin, added);
        if self.ranges.len() > MAX_RANGES {
            return self.join_nearest() || is_due;
        }
        is_due
    }

    /// Makes one of two neighbours. Whether that one is to be looked at.
    fn join_nearest(&mut self) -> bool {
        let in_common = |pair: &[SkippedRange]| {
            let keys = pair[0].first.iter().zip(&pair[1].last);
            keys.take_while(|(one, other)| one == other).count()
        };
        // Of those that have as much in common, the last two.
        let nearest = self.ranges.windows(2).enumerate().max_by_key(|(_, pair)| in_common(pair));
        let Some((at, _)) = nearest else { return false };
        let behind = self.ranges.remove(at + 1);
        self.ranges[at].take_in(behind);
        self.ranges[at].is_due()
    }

    /// Of the ranges that are to be looked at, the one in which most was stepped over.
    pub(super) fn due(&self) -> Option<SkippedRange> {
        self.ranges.iter().filter(|range| range.is_due()).max_by_key(|range| range.entries).cloned()
    }

    /// A cleanup of `range` cost as much as stepping over so many `entries`: they are paid for.
    pub(super) fn pay(&mut self, range: &SkippedRange, entries: u64) {
        let ranges = self.ranges.iter_mut().filter(|it| it.overlaps(&range.first, &range.last));
        ranges.for_each(|it| {
            it.entries = it.entries.saturating_sub(entries);
            it.most = 0;
            it.wanted = MIN_WANTED;
        });
    }

    /// `range` is not looked at again before so many `entries` were stepped over in it.
    pub(super) fn deferred(&mut self, range: &SkippedRange, entries: u64) {
        let ranges = self.ranges.iter_mut().filter(|it| it.overlaps(&range.first, &range.last));
        ranges.for_each(|it| it.wanted = entries.max(it.entries.saturating_add(1)));
    }

    /// Nothing counts any more that was stepped over between these keys.
    pub(super) fn forget(&mut self, first: &[u8], last: &[u8]) {
        self.ranges.retain(|range| !(*first <= *range.first && *range.last <= *last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: &str, last: &str, entries: u64, most: u64) -> SkippedRange {
        SkippedRange { most, ..SkippedRange::new(first.into(), last.into(), entries) }
    }

    fn add(ranges: &mut SkippedRanges, first: &str, last: &str, entries: u64) -> bool {
        ranges.add(first.into(), last.into(), entries)
    }

    #[test]
    fn ranges_that_overlap_are_one_and_others_are_told_apart() {
        let mut ranges = SkippedRanges::default();
        assert!(!add(&mut ranges, "b", "c", 10));
        assert!(!add(&mut ranges, "x", "y", 20));
        assert!(!add(&mut ranges, "e", "f", 30));
        assert_eq!(ranges.ranges, [range("b", "c", 10, 10), range("e", "f", 30, 30), range("x", "y", 20, 20)]);
        assert!(!add(&mut ranges, "c", "e", 40));
        assert_eq!(ranges.ranges, [range("b", "f", 80, 40), range("x", "y", 20, 20)]);
        assert!(!add(&mut ranges, "z", "y", 1_000_000), "a reversed range is none");
        assert!(add(&mut ranges, "a", "z", MIN_WANTED), "all together");
        assert_eq!(ranges.ranges, [range("a", "z", MIN_WANTED + 100, MIN_WANTED)]);
    }

    #[test]
    fn of_too_many_those_that_begin_alike_become_one() {
        let mut ranges = SkippedRanges::default();
        for number in 0..MAX_RANGES {
            let key = format!("{number:02}/").into_bytes();
            ranges.add(key.clone(), key, 1);
        }
        ranges.add(b"07/x".to_vec(), b"07/y".to_vec(), 5);
        assert_eq!(ranges.ranges.len(), MAX_RANGES);
        assert!(ranges.ranges.contains(&range("07/", "07/y", 6, 5)), "{ranges:?}");
    }

    #[test]
    fn the_range_in_which_most_was_stepped_over_comes_first_until_that_is_paid_for() {
        let mut ranges = SkippedRanges::default();
        assert!(add(&mut ranges, "a", "b", MIN_WANTED));
        assert!(add(&mut ranges, "c", "d", 3 * MIN_WANTED));
        let first = ranges.due().unwrap();
        assert_eq!(first.first, b"c");
        // It would cost more.
        ranges.deferred(&first, 5 * MIN_WANTED);
        assert_eq!(ranges.due().unwrap().first, b"a");
        assert!(!add(&mut ranges, "c", "d", MIN_WANTED));
        assert!(add(&mut ranges, "c", "d", MIN_WANTED));
        let first = ranges.due().unwrap();
        assert_eq!((&first.first[..], first.entries), (&b"c"[..], 5 * MIN_WANTED));
        ranges.pay(&first, 5 * MIN_WANTED);
        assert_eq!(ranges.due().unwrap().first, b"a");
        ranges.forget(b"a", b"b");
        assert_eq!(ranges.due(), None);
    }
}
