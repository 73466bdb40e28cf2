//! The hashes of all keys of a table in the order of the keys, and those of them that may lie in a
//! range of keys.
//!
//! Filters of lower tables are asked for the keys of an upper one. Each of a level's tables holds
//! keys of its own range, so to ask all of them for every key would take as many times longer as
//! there are of them, and find as many more that are not there. Of every [`FENCE_EVERY`]th key the
//! beginning is kept for that.
//!
//! Invariant: no key of a range is left out. Some beside it come along: those between its ends and
//! the next fences, and more where many keys begin with the same [`FENCE_BYTES`].

/// Keys from one fence to the next: a filter is asked for some 64 keys in vain for each table, and
/// fences take little beside the hashes of so many.
const FENCE_EVERY: usize = 64;

/// Of a fence. A longer key is cut, so that fences are bounded.
const FENCE_BYTES: usize = 64;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderedHashes {
    hashes: Vec<u64>,
    /// The beginnings of the first key, of the one [`FENCE_EVERY`] further on, and so on.
    fences: Vec<Box<[u8]>>,
}

impl OrderedHashes {
    /// One more key, greater than all before it.
    pub fn push(&mut self, key: &[u8], hash: u64) {
        if self.hashes.len().is_multiple_of(FENCE_EVERY) {
            self.fences.push(beginning(key).into());
        }
        self.hashes.push(hash);
    }

    /// Of all keys.
    pub fn all(&self) -> &[u64] {
        &self.hashes
    }

    /// Of all keys from `first` to `last`, themselves in it, and of some beside them.
    pub fn within(&self, first: &[u8], last: &[u8]) -> &[u64] {
        // What comes before another key begins with what comes before the beginning of that, or
        // with the same.
        let (first, last) = (beginning(first), beginning(last));
        let before = self.fences.partition_point(|fence| **fence < *first);
        let until = self.fences.partition_point(|fence| **fence <= *last);
        let from = before.saturating_sub(1) * FENCE_EVERY;
        let to = (until * FENCE_EVERY).min(self.hashes.len());
        self.hashes.get(from..to).unwrap_or_default()
    }

    /// What it takes of memory, once nothing more comes.
    pub fn bytes(&self) -> usize {
        let of_fences = self.fences.iter().map(|fence| fence.len()).sum::<usize>();
        size_of_val(&*self.hashes) + size_of_val(&*self.fences) + of_fences
    }

    /// Nothing more comes: gives back the memory that was for it.
    pub fn shrink_to_fit(&mut self) {
        self.hashes.shrink_to_fit();
        self.fences.shrink_to_fit();
    }
}

fn beginning(key: &[u8]) -> &[u8] {
    &key[..key.len().min(FENCE_BYTES)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    /// The keys, each with its place as its hash.
    fn ordered(keys: &BTreeSet<Vec<u8>>) -> OrderedHashes {
        let mut hashes = OrderedHashes::default();
        (0..).zip(keys).for_each(|(place, key)| hashes.push(key, place));
        hashes
    }

    #[test]
    fn a_range_takes_its_keys_and_at_most_the_rest_of_two_blocks() {
        let keys: BTreeSet<_> = (0..100_000_u64).map(|key| (key * 10).to_be_bytes().to_vec()).collect();
        let hashes = ordered(&keys);
        for (first, last) in
            [(0_u64, 0_u64), (1, 9), (5_000, 5_001), (639_990, 640_000), (123_456, 876_543), (999_990, u64::MAX)]
        {
            let taken = hashes.within(&first.to_be_bytes(), &last.to_be_bytes());
            let least = first.div_ceil(10)..(last / 10 + 1).min(100_000);
            assert!(least.clone().all(|place| taken.contains(&place)), "{first} to {last}");
            assert!(
                taken.len() as u64 <= (least.end - least.start) + 2 * FENCE_EVERY as u64,
                "{first} to {last}: {}",
                taken.len()
            );
        }
        assert_eq!(hashes.within(&2_000_000_u64.to_be_bytes(), &[0xFF; 9]).len(), 100_000 % FENCE_EVERY);
        let later = ordered(&keys.iter().skip(10).cloned().collect());
        assert_eq!(later.within(&0_u64.to_be_bytes(), &99_u64.to_be_bytes()), [0_u64; 0], "all before the first key");
        assert_eq!(OrderedHashes::default().within(b"a", b"z"), [0_u64; 0]);
    }

    proptest! {
        #[test]
        fn no_key_of_a_range_is_left_out(
            keys in prop::collection::btree_set(
                // Some that differ only behind what fences keep, and some that one is the beginning
                // of.
                (0..4_usize, prop::collection::vec(0..3_u8, 0..8)).prop_map(|(pieces, end)| [vec![1; pieces * 31], end].concat()), 0..400),
            ends in any::<[prop::sample::Index; 2]>(),
        ) {
            let hashes = ordered(&keys);
            prop_assert_eq!(hashes.all().len(), keys.len());
            prop_assume!(!keys.is_empty());
            let [one, other] = ends.map(|end| keys.iter().nth(end.index(keys.len())).unwrap());
            let (first, last) = (one.min(other), one.max(other));
            let taken: BTreeSet<_> = hashes.within(first, last).iter().copied().collect();
            for (place, key) in (0..).zip(&keys) {
                prop_assert!(taken.contains(&place) || key < first || key > last, "{:?}", key);
            }
        }
    }
}
