//! Where a saved entry may be older than it should be: a part of a table that is lost may have held
//! a newer version of it, or its deletion.

/// Ranges that are looked through for each entry; more are put together to wider ones.
const MAX_RANGES: usize = 64;

#[derive(Debug, Clone)]
struct Range {
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
    ranges: Vec<Range>,
}

impl Doubt {
    /// Something as new as `newest` is lost between two keys.
    pub(super) fn add(&mut self, from: Option<Vec<u8>>, from_included: bool, to: Option<Vec<u8>>, newest: u64) {
        let mut range = Range { from, from_included, to, newest };
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
