//! Deletions of ranges, and ranges in which something is lost: both are asked for keys that rise.
//!
//! A range deletion shadows every older version of a key that it covers. Where a compaction has set
//! the sequence number of a version to 0 its age is unknown. Then it is shadowed only where the
//! range deletion holds within the bounds of its own table: within these nothing newer lies in a
//! deeper level. Beyond them the same range deletion was in other tables, which may have met, and
//! outlived, newer versions since.
//!
//! A saved entry is doubtful where a part of a table is lost that may have held a newer version of
//! it, or its deletion.

use ecotone_rocks::salvage::RangeDeletion;

use super::merge::Version;

/// Doubtful ranges that are searched for each entry; more are united to wider ones.
const MAX_RANGES: usize = 64;

/// Where a range deletion shadows versions without an age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
    pub(super) ends_before_to: bool,
}

impl Bounds {
    fn contain(&self, key: &[u8]) -> bool {
        let to = &self.to[..];
        &self.from[..] <= key && (key < to || key == to && !self.ends_before_to)
    }
}

struct Tombstone {
    range: RangeDeletion,
    /// `None`: nowhere.
    ageless: Option<Bounds>,
}

/// All range deletions of a store.
#[derive(Default)]
pub(super) struct Tombstones {
    /// Those that may cover a key to come, the next one last.
    coming: Vec<Tombstone>,
    /// Those that cover the key asked for last, or did before.
    open: Vec<Tombstone>,
}

impl Tombstones {
    pub(super) fn add(&mut self, range: RangeDeletion, ageless: Option<Bounds>) {
        self.coming.push(Tombstone { range, ageless });
    }

    /// All are added; keys are asked for from now on.
    pub(super) fn begin(&mut self) {
        self.coming.sort_by(|one, other| other.range.from.cmp(&one.range.from));
    }

    /// Whether `version` is deleted. Keys must not fall from call to call.
    pub(super) fn shadow(&mut self, version: &Version) -> bool {
        let key = &version.key[..];
        while let Some(next) = self.coming.pop_if(|next| &next.range.from[..] <= key) {
            self.open.push(next);
        }
        self.open.retain(|tombstone| &tombstone.range.to[..] > key);
        self.open.iter().any(|Tombstone { range, ageless }| {
            range.sequence > version.sequence
                && (version.sequence > 0 || ageless.as_ref().is_some_and(|bounds| bounds.contain(key)))
        })
    }
}

#[derive(Debug, Clone)]
struct DoubtfulRange {
    /// `None`: from the first key on.
    from: Option<Vec<u8>>,
    from_included: bool,
    /// `None`: to the last key.
    to: Option<Vec<u8>>,
    newest: u64,
}

/// Ranges of keys in which something is lost, and how new that may have been.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    ranges: Vec<DoubtfulRange>,
}

impl Doubt {
    /// Something as new as `newest` is lost between two keys.
    pub(super) fn add(&mut self, from: Option<Vec<u8>>, from_included: bool, to: Option<Vec<u8>>, newest: u64) {
        let mut range = DoubtfulRange { from, from_included, to, newest };
        if self.ranges.len() >= MAX_RANGES
            && let Some(last) = self.ranges.pop()
        {
            range.from_included |= last.from_included;
            // No bound is the widest, below as above.
            range.from = range.from.min(last.from);
            range.to = range.to.zip(last.to).map(|(one, other)| one.max(other));
            range.newest = range.newest.max(last.newest);
        }
        self.ranges.push(range);
    }

    /// Whether what is lost may have been newer than the version of `key` with this sequence
    /// number. Keys must not fall from call to call.
    pub(super) fn covers(&mut self, key: &[u8], sequence: u64) -> bool {
        self.ranges.retain(|range| range.to.as_ref().is_none_or(|to| &to[..] >= key));
        self.ranges.iter().any(|range| {
            let begun = range.from.as_ref().is_none_or(|from| &from[..] < key || from == key && range.from_included);
            begun && sequence < range.newest
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u8) -> Vec<u8> {
        vec![number]
    }

    proptest! {
        #[test]
        fn nothing_that_is_doubtful_is_missed_and_a_few_ranges_are_told_apart(
            ranges in proptest::collection::vec((proptest::option::of(any::<u8>()), any::<bool>(), proptest::option::of(any::<u8>()), 0..4_u64), 0..100),
            sequence in 0..4_u64,
        ) {
            let mut doubt = Doubt::default();
            for (from, included, to, newest) in &ranges {
                doubt.add(from.map(key), *included, to.map(key), *newest);
            }
            for number in 0..=u8::MAX {
                let expected = ranges.iter().any(|(from, included, to, newest)| {
                    let begun = from.is_none_or(|from| if *included { from <= number } else { from < number });
                    begun && to.is_none_or(|to| to >= number) && sequence < *newest
                });
                let covered = doubt.covers(&key(number), sequence);
                prop_assert!(covered || !expected, "{}", number);
                prop_assert!(!covered || expected || ranges.len() > MAX_RANGES, "{}", number);
            }
        }
    }
}
