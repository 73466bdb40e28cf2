//! How much of what tables hold is replaced by something newer in another table, told from samples of their keys.
//!
//! What a write replaces is garbage from then on, but counts as live until a compaction brings both together. The same keys are
//! sampled in every table, by their hash; one that is sampled in several tables has older versions in all but one of them. So
//! garbage that still hides is counted without reading data, before any compaction has met it. (CaseDB with deduplication asks the
//! filters of the lower levels for every key instead: "Deduplication Adapted CaseDB for Edge Computing", section 3.)
//!
//! Bounds: at most as many samples are kept as the caller says; beyond that every second one is dropped, again and again.
//!
//! Failure modes: the count is an estimate; of n hidden values it is off by about the square root of n times
//! [`SAMPLED_ONE_IN`]. Range deletions are not seen.

use std::collections::BTreeMap;

use crate::units::Bytes;

/// A key is sampled when its hash is a multiple of it.
pub const SAMPLED_ONE_IN: u64 = 64;

/// No sparser sample is of use.
const SPARSEST: u64 = 1 << 40;

/// One sampled key of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySample {
    /// Of the key; the same function for every table.
    pub hash: u64,
    /// What the value takes on the device; `None` for a deletion.
    pub bytes: Option<u32>,
    /// The larger, the newer; 0 where nothing older can be left.
    pub sequence: u64,
}

/// Whether a key of this hash is sampled.
#[inline]
pub fn is_sampled(hash: u64) -> bool {
    hash.is_multiple_of(SAMPLED_ONE_IN)
}

/// How many of a table's sampled keys were in other tables when it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Keys that were sampled.
    pub sampled: u64,
    /// Those that another table held as well.
    pub replacing: u64,
}

/// The samples of all tables.
#[derive(Clone, Debug)]
pub struct Duplicates {
    /// Each sorted by hash.
    tables: BTreeMap<u64, Vec<KeySample>>,
    held: BTreeMap<u64, Held>,
    /// Bytes of samples that something replaces, and of those of values that lie apart.
    hidden: u64,
    hidden_apart: u64,
    /// Values of so many bytes lie apart.
    least_apart: u32,
    /// One in so many keys is kept; a power of two times [`SAMPLED_ONE_IN`].
    one_in: u64,
    samples: usize,
    most_samples: usize,
}

/// A key in all tables that hold it.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    values: u32,
    deletions: u32,
    bytes: u64,
    /// Of the newest value and deletion that were ever seen. Compactions drop the older first, so it is also the newest there is.
    newest_value: u64,
    newest_deletion: u64,
}

impl Held {
    fn hidden(self) -> u64 {
        match (self.values, self.deletions) {
            (0, _) => 0,
            (_, 1..) if self.newest_deletion > self.newest_value => self.bytes,
            (values, _) => self.bytes - self.bytes / u64::from(values),
        }
    }

    /// The same if values of `least_apart` bytes lie apart.
    fn hidden_apart(self, least_apart: u32) -> u64 {
        if self.bytes >= u64::from(least_apart) * u64::from(self.values) { self.hidden() } else { 0 }
    }
}

impl Duplicates {
    /// Nothing yet. Of `most_samples` samples (at least 2) 32 bytes each are kept in memory, and twice as much by key.
    #[must_use]
    pub fn new(most_samples: usize) -> Self {
        Self {
            tables: BTreeMap::new(),
            held: BTreeMap::new(),
            hidden: 0,
            hidden_apart: 0,
            least_apart: 0,
            one_in: SAMPLED_ONE_IN,
            samples: 0,
            most_samples: most_samples.max(2),
        }
    }

    /// The same where values of at least so many bytes lie apart in a value log. Those of keys whose values are as long on average count there.
    #[must_use]
    pub fn with_values_apart(most_samples: usize, least_bytes: u32) -> Self {
        Self { least_apart: least_bytes, ..Self::new(most_samples) }
    }

    /// A table came. Its samples are of different keys. A table that is known already is not counted twice.
    pub fn add(&mut self, table: u64, samples: Vec<KeySample>) -> Overlap {
        let mut overlap = Overlap::default();
        if self.tables.contains_key(&table) {
            return overlap;
        }
        let mut samples = samples;
        samples.retain(|sample| sample.hash.is_multiple_of(self.one_in));
        samples.sort_unstable_by_key(|sample| sample.hash);
        // Those of two keys with one hash; or of who wants to be counted often.
        samples.dedup_by_key(|sample| sample.hash);
        for sample in &samples {
            overlap.sampled += 1;
            let held = self.held.entry(sample.hash).or_default();
            overlap.replacing += u64::from(held.values + held.deletions > 0);
            let (before, before_apart) = (held.hidden(), held.hidden_apart(self.least_apart));
            match sample.bytes {
                Some(bytes) => {
                    held.values += 1;
                    held.bytes += u64::from(bytes);
                    held.newest_value = held.newest_value.max(sample.sequence);
                }
                None => {
                    held.deletions += 1;
                    held.newest_deletion = held.newest_deletion.max(sample.sequence);
                }
            }
            self.hidden = self.hidden - before + held.hidden();
            self.hidden_apart = self.hidden_apart - before_apart + held.hidden_apart(self.least_apart);
        }
        self.samples += samples.len();
        self.tables.insert(table, samples);
        while self.samples > self.most_samples && self.one_in < SPARSEST {
            self.thin();
        }
        overlap
    }

    /// Forgets the tables that are gone.
    pub fn retain(&mut self, is_live: impl Fn(u64) -> bool) {
        let gone: Vec<_> = self.tables.keys().copied().filter(|table| !is_live(*table)).collect();
        for samples in gone.into_iter().filter_map(|table| self.tables.remove(&table)) {
            self.samples -= samples.len();
            for sample in samples {
                let Some(held) = self.held.get_mut(&sample.hash) else { continue };
                let (before, before_apart) = (held.hidden(), held.hidden_apart(self.least_apart));
                match sample.bytes {
                    Some(bytes) => {
                        held.values -= 1;
                        held.bytes -= u64::from(bytes);
                    }
                    None => held.deletions -= 1,
                }
                self.hidden = self.hidden - before + held.hidden();
                self.hidden_apart = self.hidden_apart - before_apart + held.hidden_apart(self.least_apart);
                if held.values + held.deletions == 0 {
                    self.held.remove(&sample.hash);
                }
            }
        }
    }

    /// Bytes that are replaced by something in another table.
    pub fn hidden_bytes(&self) -> Bytes {
        Bytes(self.hidden.saturating_mul(self.one_in))
    }

    /// Of those, what lies in the value log. Samples do not say where a value is: it is told by its length.
    pub fn hidden_apart_bytes(&self) -> Bytes {
        Bytes(self.hidden_apart.saturating_mul(self.one_in))
    }

    /// The samples of a table, rising by hash; `None` where it is not known.
    pub fn samples(&self, table: u64) -> Option<&[KeySample]> {
        self.tables.get(&table).map(Vec::as_slice)
    }

    /// One in so many keys is kept: [`SAMPLED_ONE_IN`], or a power of two times that.
    pub fn one_in(&self) -> u64 {
        self.one_in
    }

    /// All tables with their samples.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u64, &[KeySample])> {
        self.tables.iter().map(|(table, samples)| (*table, samples.as_slice()))
    }

    /// Whether more than one table holds a sampled key.
    pub(crate) fn is_repeated(&self, hash: u64) -> bool {
        self.held.get(&hash).is_some_and(|held| held.values + held.deletions > 1)
    }

    /// Bytes of a sampled key that are replaced by something in another table.
    pub(crate) fn hidden_of(&self, hash: u64) -> u64 {
        self.held.get(&hash).map_or(0, |held| held.hidden())
    }

    fn thin(&mut self) {
        self.one_in *= 2;
        let one_in = self.one_in;
        for samples in self.tables.values_mut() {
            samples.retain(|sample| sample.hash.is_multiple_of(one_in));
            samples.shrink_to_fit();
        }
        self.held.retain(|hash, _| hash.is_multiple_of(one_in));
        self.samples = self.tables.values().map(Vec::len).sum();
        self.hidden = self.held.values().map(|held| held.hidden()).sum();
        self.hidden_apart = self.held.values().map(|held| held.hidden_apart(self.least_apart)).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(key: u64, bytes: u32) -> KeySample {
        KeySample { hash: key * SAMPLED_ONE_IN, bytes: Some(bytes), sequence: 1 }
    }

    fn delete(key: u64, sequence: u64) -> KeySample {
        KeySample { hash: key * SAMPLED_ONE_IN, bytes: None, sequence }
    }

    /// A hash in whose multiples nothing is to be seen.
    fn hash(key: u64) -> u64 {
        let mut mixed = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    #[test]
    fn of_what_hides_long_values_count_as_apart_and_short_ones_never() {
        let mut duplicates = Duplicates::with_values_apart(1000, 128);
        let table = || (0..60).map(|key| put(key, if key < 20 { 1000 } else { 20 })).chain([delete(70, 9)]).collect();
        duplicates.add(1, table());
        assert_eq!(duplicates.hidden_apart_bytes(), Bytes(0));
        duplicates.add(2, table());
        assert_eq!(duplicates.hidden_bytes(), Bytes((20 * 1000 + 40 * 20) * 64));
        assert_eq!(duplicates.hidden_apart_bytes(), Bytes(20 * 1000 * 64));
        duplicates.add(3, (0..10).map(|key| delete(key, 9)).collect());
        assert_eq!(duplicates.hidden_apart_bytes(), Bytes(30 * 1000 * 64), "of ten both values are hidden now");
        duplicates.retain(|table| table != 2);
        assert_eq!(duplicates.hidden_apart_bytes(), Bytes(10 * 1000 * 64));
        duplicates.retain(|_| false);
        assert_eq!((duplicates.hidden_bytes(), duplicates.hidden_apart_bytes()), (Bytes(0), Bytes(0)));
        // Of fewer samples the same share, and without a value log all of it.
        let mut thinned = Duplicates::with_values_apart(150, 128);
        let mut plain = Duplicates::new(1000);
        for table in 0..2 {
            let samples: Vec<_> = (0..100).map(|key| put(hash(key) >> 8, 1000)).collect();
            plain.add(table, samples.clone());
            thinned.add(table, samples);
        }
        assert!(thinned.one_in() > SAMPLED_ONE_IN);
        assert_eq!(thinned.hidden_apart_bytes(), thinned.hidden_bytes());
        assert_eq!(plain.hidden_apart_bytes(), Bytes(100 * 1000 * 64));
    }

    #[test]
    fn what_a_table_replaces_hides_until_a_compaction_has_met_both() {
        let mut duplicates = Duplicates::new(1000);
        assert_eq!(
            duplicates.add(1, vec![put(1, 100), put(2, 100), put(3, 100)]),
            Overlap { sampled: 3, replacing: 0 }
        );
        assert_eq!(duplicates.hidden_bytes(), Bytes(0));
        assert_eq!(
            duplicates.add(2, vec![put(2, 100), put(3, 100), put(4, 100)]),
            Overlap { sampled: 3, replacing: 2 }
        );
        assert_eq!(duplicates.hidden_bytes(), Bytes(200 * 64));
        assert_eq!(duplicates.add(3, vec![put(3, 100)]), Overlap { sampled: 1, replacing: 1 });
        assert_eq!(duplicates.hidden_bytes(), Bytes(300 * 64));
        // Told twice.
        assert_eq!(duplicates.add(3, vec![put(3, 100)]), Overlap::default());
        // Tables 1 and 2 become 4.
        duplicates.retain(|table| table == 3);
        assert_eq!(duplicates.hidden_bytes(), Bytes(0));
        duplicates.add(4, [1, 2, 3, 4].map(|key| put(key, 100)).to_vec());
        assert_eq!(duplicates.hidden_bytes(), Bytes(100 * 64));
        duplicates.retain(|_| false);
        assert_eq!(duplicates.hidden_bytes(), Bytes(0));
    }

    #[test]
    fn a_table_that_names_a_key_again_and_again_counts_once() {
        let mut duplicates = Duplicates::new(10);
        assert_eq!(duplicates.add(1, vec![put(0, u32::MAX); 1000]), Overlap { sampled: 1, replacing: 0 });
        assert_eq!((duplicates.hidden_bytes(), duplicates.one_in()), (Bytes(0), SAMPLED_ONE_IN));
    }

    #[test]
    fn what_was_deleted_hides_as_a_whole_unless_it_was_written_again() {
        let mut duplicates = Duplicates::new(1000);
        duplicates.add(1, vec![put(1, 700)]);
        duplicates.add(2, vec![put(1, 300)]);
        assert_eq!(duplicates.add(3, vec![delete(1, 2), delete(2, 2)]), Overlap { sampled: 2, replacing: 1 });
        assert_eq!(duplicates.hidden_bytes(), Bytes(1000 * 64));
        duplicates.add(4, vec![KeySample { sequence: 3, ..put(1, 200) }]);
        assert_eq!(duplicates.hidden_bytes(), Bytes((1200 - 400) * 64));
        // What was deleted is gone, and its deletion waits for the last level: nothing hides.
        duplicates.retain(|table| table >= 3);
        assert_eq!(duplicates.hidden_bytes(), Bytes(0));
        duplicates.retain(|table| table == 3);
        assert_eq!(duplicates.hidden_bytes(), Bytes(0));
    }

    #[test]
    fn with_fewer_samples_the_estimate_stays_near_the_truth() {
        // 200,000 keys, of which 80,000 are written again: 80 MB hide.
        let sampled = |keys: std::ops::Range<u64>| {
            let samples = keys.map(|key| KeySample { hash: hash(key), bytes: Some(1000), sequence: 1 });
            samples.filter(|sample| is_sampled(sample.hash)).collect::<Vec<_>>()
        };
        for most in [100_000, 2_000, 500] {
            let mut duplicates = Duplicates::new(most);
            duplicates.add(1, sampled(0..200_000));
            let overlap = duplicates.add(2, sampled(120_000..240_000));
            let share = overlap.replacing as f64 / overlap.sampled as f64;
            let hidden = duplicates.hidden_bytes().0 as f64;
            // Four standard deviations of the fewest samples: about 130 of those keys.
            assert!((share - 2.0 / 3.0).abs() < 0.17, "{most}: {share}");
            assert!((hidden / 80e6 - 1.0).abs() < 0.35, "{most}: {hidden}");
            assert!(duplicates.samples <= most);
        }
    }

    proptest! {
        #[test]
        fn the_count_is_that_of_counting_anew(
            steps in proptest::collection::vec(
                (any::<bool>(), 0_u64..6, proptest::collection::btree_map(0_u64..30, any::<bool>(), 0..20)), 1..40),
            most in prop_oneof![Just(10_000_usize), 2..40_usize],
        ) {
            let mut duplicates = Duplicates::new(most);
            let mut tables: BTreeMap<u64, BTreeMap<u64, (bool, u64)>> = BTreeMap::new();
            for (sequence, (comes, table, keys)) in steps.into_iter().enumerate() {
                let sequence = sequence as u64 + 1;
                if !comes {
                    // As compactions do, the oldest first: what is newest stays.
                    let Some(oldest) = tables.keys().next().copied() else { continue };
                    duplicates.retain(|it| it != oldest);
                    tables.remove(&oldest);
                    continue;
                }
                let number = table + 6 * sequence;
                let samples = keys.iter().map(|(key, is_value)| match is_value {
                    true => KeySample { sequence, ..put(*key, 10) },
                    false => delete(*key, sequence),
                });
                duplicates.add(number, samples.collect());
                tables.insert(number, keys.into_iter().map(|(key, is_value)| (key, (is_value, sequence))).collect());
                prop_assert!(duplicates.samples <= most || duplicates.one_in >= SPARSEST);
                let mut expected = 0;
                for key in (0..30).filter(|key| (key * SAMPLED_ONE_IN).is_multiple_of(duplicates.one_in)) {
                    let versions: Vec<_> = tables.values().filter_map(|table| table.get(&key)).collect();
                    let values = versions.iter().filter(|(is_value, _)| *is_value).count() as u64;
                    let newest = versions.iter().max_by_key(|(_, sequence)| *sequence);
                    expected += values - u64::from(newest.is_some_and(|(is_value, _)| *is_value));
                }
                prop_assert_eq!(duplicates.hidden_bytes(), Bytes(expected * 10 * duplicates.one_in));
            }
        }
    }
}
