//! How much of what tables hold is replaced by something newer in another table, told from samples
//! of their keys.
//!
//! What a write replaces is garbage from then on, but counts as live until a compaction brings both
//! together. The same keys are sampled in every table, by their hash; one that is sampled in
//! several tables has older versions in all but one of them. So garbage that still shadows is
//! counted without reading data, before any compaction has met it. (CaseDB with deduplication asks
//! the filters of the lower levels for every key instead: "Deduplication Adapted CaseDB for Edge
//! Computing", section 3.)
//!
//! Bounds: at most as many samples are kept as the caller says; beyond that every second one is
//! dropped, again and again.
//!
//! Failure modes: the count is an estimate; of n shadowed values it is off by about the square root
//! of n times [`SAMPLED_ONE_IN`]. Range deletions are not seen.

mod versions;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use ecotone_types::units::Bytes;
use versions::{Value, Version, Versions};

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
    /// The segment of the value log that the value lies in; `None` where it lies beside its key,
    /// and for a deletion.
    pub segment: Option<u32>,
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

/// Fewer samples of a segment tell nothing for certain: of thousands of segments in which little
/// shadows some have two or three.
pub const MIN_SAMPLES: u32 = 8;

/// Garbage that no compaction has met yet, as samples tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShadowedBytes {
    /// How much it is likely to be.
    pub estimate: Bytes,
    /// The same less a standard deviation, and nothing where there are fewer than [`MIN_SAMPLES`]:
    /// of few samples next to nothing is known.
    pub at_least: Bytes,
}

/// The samples of all tables.
#[derive(Clone, Debug)]
pub struct Duplicates {
    /// Each sorted by hash.
    tables: BTreeMap<u64, Vec<KeySample>>,
    /// All versions of a key, by its hash.
    versions: BTreeMap<u64, Versions>,
    shadowed: Shadowed,
    /// One in so many keys is kept; a power of two times [`SAMPLED_ONE_IN`].
    one_in: u64,
    samples: usize,
    max_samples: usize,
    max_steps: usize,
}

/// A sample of a table that came, with its place among these, or is gone.
struct Step {
    came: Option<usize>,
    table: u64,
    sample: KeySample,
}

/// So many are put in the order of their keys at a time: more would take memory and save nothing.
const MAX_STEPS: usize = 1 << 16;

/// What something replaces.
#[derive(Clone, Debug, Default)]
struct Shadowed {
    bytes: u64,
    /// Of that, what lies in each segment.
    in_segments: BTreeMap<u32, InSegment>,
}

#[derive(Clone, Copy, Debug, Default)]
struct InSegment {
    samples: u32,
    bytes: u64,
    /// Of the bytes of each.
    squares: u128,
}

impl InSegment {
    /// Whether a key is sampled is chance, so the root of the squares is the standard deviation of
    /// the sum.
    fn at_least(&self) -> f64 {
        if self.samples < MIN_SAMPLES { 0.0 } else { self.bytes as f64 - (self.squares as f64).sqrt() }
    }
}

impl KeySample {
    fn version(&self, table: u64) -> Version {
        let value = self.bytes.map(|bytes| Value { bytes, segment: self.segment });
        Version { sequence: self.sequence, table, value }
    }
}

impl Duplicates {
    /// Nothing yet. Of `max_samples` samples (at least 2) 32 bytes each are kept by table, and some
    /// 50 by key.
    #[must_use]
    pub fn new(max_samples: usize) -> Self {
        Self {
            tables: BTreeMap::new(),
            versions: BTreeMap::new(),
            shadowed: Shadowed::default(),
            one_in: SAMPLED_ONE_IN,
            samples: 0,
            max_samples: max_samples.max(2),
            max_steps: MAX_STEPS,
        }
    }

    /// Tables are gone, and then others came, in this order; how many of the keys of each were in
    /// other tables. The samples of a table are of different keys. One that is known already is not
    /// counted twice.
    ///
    /// Tables that a compaction reads and those that it writes name the same keys, so both are
    /// taken at once.
    pub fn replace(&mut self, is_gone: impl Fn(u64) -> bool, came: Vec<(u64, Vec<KeySample>)>) -> Vec<(u64, Overlap)> {
        let mut steps = Vec::new();
        let mut overlaps = Vec::with_capacity(came.len());
        let gone: Vec<_> = self.tables.keys().copied().filter(|table| is_gone(*table)).collect();
        for table in gone {
            let samples = self.tables.remove(&table).unwrap_or_default();
            self.samples -= samples.len();
            steps.extend(samples.iter().map(|sample| Step { came: None, table, sample: *sample }));
            self.take_many(&mut steps, &mut overlaps);
        }
        for (table, mut samples) in came {
            let came = Some(overlaps.len());
            overlaps.push((table, Overlap::default()));
            if self.tables.contains_key(&table) {
                continue;
            }
            samples.retain(|sample| sample.hash.is_multiple_of(self.one_in));
            samples.sort_unstable_by_key(|sample| sample.hash);
            // Those of two keys with one hash; or of who wants to be counted often.
            samples.dedup_by_key(|sample| sample.hash);
            steps.extend(samples.iter().map(|sample| Step { came, table, sample: *sample }));
            self.samples += samples.len();
            self.tables.insert(table, samples);
            self.take_many(&mut steps, &mut overlaps);
        }
        self.take(&mut steps, &mut overlaps);
        overlaps
    }

    /// Bytes that are replaced by something in another table.
    pub fn shadowed_bytes(&self) -> Bytes {
        Bytes(self.shadowed.bytes.saturating_mul(self.one_in))
    }

    /// Of those, what lies in each segment of the value log that holds any.
    pub fn shadowed_in_segments(&self) -> impl Iterator<Item = (u32, ShadowedBytes)> {
        self.shadowed.in_segments.iter().map(|(segment, shadowed)| {
            let estimate = Bytes(shadowed.bytes.saturating_mul(self.one_in));
            let at_least = Bytes((shadowed.at_least() * self.one_in as f64) as u64);
            (*segment, ShadowedBytes { estimate, at_least })
        })
    }

    /// The samples of a table, rising by hash; `None` where it is not known.
    pub fn samples(&self, table: u64) -> Option<&[KeySample]> {
        self.tables.get(&table).map(Vec::as_slice)
    }

    /// One in so many keys is kept: [`SAMPLED_ONE_IN`], or a power of two times that.
    pub fn one_in(&self) -> u64 {
        self.one_in
    }

    /// Whether fewer keys are kept than there is room for, because there were more once: who has
    /// the samples of all tables should begin anew with them.
    pub fn is_needlessly_thin(&self) -> bool {
        // Of twice as many keys there are about twice as many samples, which then stay.
        self.one_in > SAMPLED_ONE_IN && self.samples < self.max_samples / 4
    }

    /// Nothing, as at first.
    pub fn clear(&mut self) {
        *self = Self { max_steps: self.max_steps, ..Self::new(self.max_samples) };
    }

    /// All tables with their samples.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u64, &[KeySample])> {
        self.tables.iter().map(|(table, samples)| (*table, samples.as_slice()))
    }

    /// Whether more than one table holds a sampled key.
    pub(crate) fn is_repeated(&self, hash: u64) -> bool {
        self.versions.get(&hash).is_some_and(|versions| versions.len() > 1)
    }

    fn take_many(&mut self, steps: &mut Vec<Step>, overlaps: &mut [(u64, Overlap)]) {
        if steps.len() >= self.max_steps {
            self.take(steps, overlaps);
        }
    }

    /// All that happens to one key at one go, and keys in their order.
    fn take(&mut self, steps: &mut Vec<Step>, overlaps: &mut [(u64, Overlap)]) {
        // What is gone comes first, as it did. Each table's samples are in this order already,
        // which a stable sort makes use of.
        steps.sort_by_key(|step| step.sample.hash);
        for of_key in steps.chunk_by(|one, other| one.sample.hash == other.sample.hash) {
            let mut key = match self.versions.entry(of_key[0].sample.hash) {
                Entry::Occupied(key) => key,
                Entry::Vacant(key) => key.insert_entry(Versions::default()),
            };
            let versions = key.get_mut();
            for Step { came, table, sample } in of_key {
                let Some(came) = came else {
                    self.shadowed.show(versions.remove(sample.sequence, *table));
                    continue;
                };
                let (_, overlap) = &mut overlaps[*came];
                overlap.sampled += 1;
                overlap.replacing += u64::from(versions.len() > 0);
                self.shadowed.shadow(versions.add(sample.version(*table)));
            }
            if versions.len() == 0 {
                key.remove();
            }
        }
        steps.clear();
        while self.samples > self.max_samples && self.one_in < SPARSEST {
            self.thin();
        }
    }

    fn thin(&mut self) {
        self.one_in *= 2;
        let one_in = self.one_in;
        self.versions.clear();
        self.shadowed = Shadowed::default();
        for (table, samples) in &mut self.tables {
            samples.retain(|sample| sample.hash.is_multiple_of(one_in));
            samples.shrink_to_fit();
            for sample in samples.iter() {
                let versions = self.versions.entry(sample.hash).or_default();
                self.shadowed.shadow(versions.add(sample.version(*table)));
            }
        }
        self.samples = self.tables.values().map(Vec::len).sum();
    }
}

impl Shadowed {
    fn shadow(&mut self, value: Option<Value>) {
        let Some(value) = value else { return };
        self.bytes += u64::from(value.bytes);
        if let Some(segment) = value.segment {
            let in_segment = self.in_segments.entry(segment).or_default();
            in_segment.samples += 1;
            in_segment.bytes += u64::from(value.bytes);
            in_segment.squares += u128::from(value.bytes).pow(2);
        }
    }

    /// What was shadowed is not any more.
    fn show(&mut self, value: Option<Value>) {
        let Some(value) = value else { return };
        self.bytes -= u64::from(value.bytes);
        let Some(segment) = value.segment else { return };
        if let Entry::Occupied(mut in_segment) = self.in_segments.entry(segment) {
            in_segment.get_mut().samples -= 1;
            in_segment.get_mut().bytes -= u64::from(value.bytes);
            in_segment.get_mut().squares -= u128::from(value.bytes).pow(2);
            if in_segment.get().samples == 0 {
                in_segment.remove();
            }
        }
    }
}

#[cfg(test)]
impl Duplicates {
    /// A table came.
    pub(crate) fn add(&mut self, table: u64, samples: Vec<KeySample>) -> Overlap {
        self.replace(|_| false, vec![(table, samples)]).pop().unwrap_or_default().1
    }

    /// Tables are gone.
    fn retain(&mut self, is_live: impl Fn(u64) -> bool) {
        self.replace(|table| !is_live(table), Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put_in(key: u64, bytes: u32, sequence: u64, segment: Option<u32>) -> KeySample {
        KeySample { hash: key * SAMPLED_ONE_IN, bytes: Some(bytes), segment, sequence }
    }

    fn put(key: u64, bytes: u32) -> KeySample {
        put_in(key, bytes, 1, None)
    }

    fn delete(key: u64, sequence: u64) -> KeySample {
        KeySample { hash: key * SAMPLED_ONE_IN, bytes: None, segment: None, sequence }
    }

    /// A hash in whose multiples nothing is to be seen.
    fn hash(key: u64) -> u64 {
        let mut mixed = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn shadowed_in(duplicates: &Duplicates) -> Vec<(u32, u64)> {
        duplicates.shadowed_in_segments().map(|(segment, shadowed)| (segment, shadowed.estimate.0)).collect()
    }

    #[test]
    fn what_shadows_is_told_by_the_segment_that_it_lies_in() {
        let mut duplicates = Duplicates::new(1000);
        // Forty values in each of two segments, and some beside their keys.
        let place = |key: u64| (key < 80).then_some(key as u32 / 40);
        duplicates.add(1, (0..100).map(|key| put_in(key, 1000, 1, place(key))).collect());
        assert_eq!(shadowed_in(&duplicates), []);
        // Ten and twenty of them are replaced by values in a third one, five by short ones, and
        // five are deleted.
        let news = (30..60).map(|key| put_in(key, 1000, 2, Some(7)));
        duplicates.add(2, news.chain((60..65).map(|key| put_in(key, 9, 2, None))).collect());
        duplicates.add(3, (65..70).map(|key| delete(key, 3)).chain([delete(90, 3)]).collect());
        assert_eq!(shadowed_in(&duplicates), [(0, 10 * 1000 * 64), (1, 30 * 1000 * 64)]);
        assert_eq!(duplicates.shadowed_bytes(), Bytes((40 + 1) * 1000 * 64));
        // Replaced in turn, by what is older than the deletions and came later.
        duplicates
            .add(4, (50..55).map(|key| put_in(key, 1000, 4, Some(8))).chain([put_in(65, 1000, 2, Some(8))]).collect());
        assert_eq!(shadowed_in(&duplicates), [(0, 10_000 * 64), (1, 30_000 * 64), (7, 5_000 * 64), (8, 1_000 * 64)]);
        // The first three become one, and the numbers of the writes are forgotten.
        duplicates.retain(|table| table == 4);
        let merged = (30..60).map(|key| put_in(key, 1000, 0, Some(9)));
        duplicates.add(5, (0..30).map(|key| put_in(key, 1000, 0, Some(9))).chain(merged).collect());
        assert_eq!(shadowed_in(&duplicates), [(9, 5_000 * 64)]);
        duplicates.retain(|table| table == 5);
        duplicates.retain(|_| false);
        assert_eq!((shadowed_in(&duplicates), duplicates.shadowed_bytes()), (vec![], Bytes(0)));
    }

    #[test]
    fn of_few_samples_little_is_known_for_certain() {
        let mut duplicates = Duplicates::new(10_000);
        let counts = [(1_u32, 1_u64), (2, 4), (3, 100), (4, 2_500)];
        let keys = counts.into_iter().flat_map(|(segment, count)| (0..count).map(move |key| (segment, key)));
        let table = |sequence| {
            keys.clone()
                .map(move |(segment, key)| put_in(u64::from(segment) * 10_000 + key, 100, sequence, Some(segment)))
                .collect()
        };
        duplicates.add(1, table(1));
        duplicates.add(2, table(2));
        let shares = duplicates.shadowed_in_segments().map(|(_, it)| it.at_least.0 as f64 / it.estimate.0 as f64);
        assert_eq!(shares.collect::<Vec<_>>(), [0.0, 0.0, 0.9, 0.98]);
        assert_eq!(shadowed_in(&duplicates)[3], (4, 2_500 * 100 * 64));
        // One long value among many short ones: nearly all rests on that one.
        let table = |sequence| {
            let lengths = (0..101).map(|key| if key == 0 { 4 << 20 } else { 200 });
            (50_000..).zip(lengths).map(|(key, bytes)| put_in(key, bytes, sequence, Some(9))).collect()
        };
        duplicates.add(3, table(1));
        duplicates.add(4, table(2));
        let (_, of_lengths) = duplicates.shadowed_in_segments().last().unwrap();
        assert!(of_lengths.at_least.0 < of_lengths.estimate.0 / 100, "{of_lengths:?}");
    }

    /// Events may be told late: of tables that came and went before somebody looked.
    #[test]
    fn what_came_late_and_went_leaves_nothing_behind() {
        let mut duplicates = Duplicates::new(100);
        duplicates.add(4, vec![put_in(1, 10, 0, Some(1))]);
        for late in [2, 3] {
            duplicates.add(late, vec![put_in(1, 10, 9, Some(1)), delete(2, 9)]);
            assert_eq!(shadowed_in(&duplicates), [(1, 10 * 64)]);
            duplicates.retain(|table| table != late);
            assert_eq!((duplicates.shadowed_bytes(), shadowed_in(&duplicates)), (Bytes(0), vec![]));
        }
        duplicates.retain(|_| false);
        assert_eq!((duplicates.shadowed_bytes(), duplicates.samples, duplicates.versions.len()), (Bytes(0), 0, 0));
    }

    #[test]
    fn tables_that_claim_the_same_write_are_counted_as_often_as_they_come_and_go() {
        // As no store writes them: in any order, with other lengths.
        let claims = [put_in(1, 10, 5, Some(1)), put_in(1, 70, 5, Some(2)), delete(1, 5), put_in(1, 3, 0, None)];
        for first in 0..4 {
            let mut duplicates = Duplicates::new(100);
            for (table, claim) in (0..).zip(claims) {
                duplicates.add(table, vec![claim]);
            }
            (0..4).for_each(|table| duplicates.retain(|it| it > table && it != first));
            assert_eq!((duplicates.shadowed_bytes(), shadowed_in(&duplicates)), (Bytes(0), vec![]));
        }
    }

    #[test]
    fn what_a_table_replaces_shadows_until_a_compaction_has_met_both() {
        let mut duplicates = Duplicates::new(1000);
        let table = |sequence: u64, keys: &[u64]| keys.iter().map(|key| put_in(*key, 100, sequence, None)).collect();
        assert_eq!(duplicates.add(1, table(1, &[1, 2, 3])), Overlap { sampled: 3, replacing: 0 });
        assert_eq!(duplicates.shadowed_bytes(), Bytes(0));
        assert_eq!(duplicates.add(2, table(2, &[2, 3, 4])), Overlap { sampled: 3, replacing: 2 });
        assert_eq!(duplicates.shadowed_bytes(), Bytes(200 * 64));
        assert_eq!(duplicates.add(3, table(3, &[3])), Overlap { sampled: 1, replacing: 1 });
        assert_eq!(duplicates.shadowed_bytes(), Bytes(300 * 64));
        // Told twice.
        assert_eq!(duplicates.add(3, table(3, &[3])), Overlap::default());
        // Tables 1 and 2 become 4.
        duplicates.retain(|table| table == 3);
        assert_eq!(duplicates.shadowed_bytes(), Bytes(0));
        duplicates.add(4, table(2, &[1, 2, 3, 4]));
        assert_eq!(duplicates.shadowed_bytes(), Bytes(100 * 64));
        duplicates.retain(|_| false);
        assert_eq!(duplicates.shadowed_bytes(), Bytes(0));
    }

    #[test]
    fn a_table_that_names_a_key_again_and_again_counts_once() {
        let mut duplicates = Duplicates::new(10);
        assert_eq!(duplicates.add(1, vec![put(0, u32::MAX); 1000]), Overlap { sampled: 1, replacing: 0 });
        assert_eq!((duplicates.shadowed_bytes(), duplicates.one_in()), (Bytes(0), SAMPLED_ONE_IN));
    }

    #[test]
    fn what_was_deleted_shadows_as_a_whole_unless_it_was_written_again() {
        let mut duplicates = Duplicates::new(1000);
        duplicates.add(1, vec![put_in(1, 700, 1, None)]);
        duplicates.add(2, vec![put_in(1, 300, 2, None)]);
        assert_eq!(duplicates.add(3, vec![delete(1, 3), delete(2, 3)]), Overlap { sampled: 2, replacing: 1 });
        assert_eq!(duplicates.shadowed_bytes(), Bytes(1000 * 64));
        duplicates.add(4, vec![put_in(1, 200, 4, None)]);
        assert_eq!(duplicates.shadowed_bytes(), Bytes(1000 * 64));
        // What was deleted is gone, and its deletion waits for the last level: nothing shadows.
        duplicates.retain(|table| table >= 3);
        assert_eq!(duplicates.shadowed_bytes(), Bytes(0));
        duplicates.retain(|table| table == 3);
        assert_eq!(duplicates.shadowed_bytes(), Bytes(0));
    }

    #[test]
    fn what_was_thinned_is_needlessly_so_once_little_is_left() {
        let samples = |keys: std::ops::Range<u64>| keys.map(|key| put(hash(key) >> 6, 1000)).collect::<Vec<_>>();
        let mut duplicates = Duplicates::new(1000);
        for table in 0..10 {
            assert!(!duplicates.is_needlessly_thin());
            duplicates.add(table, samples(table * 1000..table * 1000 + 1000));
        }
        let thin = duplicates.one_in();
        assert!(thin >= 8 * SAMPLED_ONE_IN && !duplicates.is_needlessly_thin(), "{thin}");
        duplicates.retain(|table| table == 9);
        assert!(duplicates.is_needlessly_thin());
        duplicates.clear();
        duplicates.add(9, samples(9000..10_000));
        assert!(duplicates.one_in() < thin && !duplicates.is_needlessly_thin());
        assert!(duplicates.samples(9).is_some_and(|samples| samples.len() > 400));
    }

    #[test]
    fn with_fewer_samples_the_estimate_stays_near_the_truth() {
        // 200,000 keys, of which 80,000 are written again: 80 MB shadow.
        let sampled = |keys: std::ops::Range<u64>| {
            let samples = keys.map(|key| KeySample { hash: hash(key), bytes: Some(1000), segment: None, sequence: 1 });
            samples.filter(|sample| is_sampled(sample.hash)).collect::<Vec<_>>()
        };
        for most in [100_000, 2_000, 500] {
            let mut duplicates = Duplicates::new(most);
            duplicates.add(1, sampled(0..200_000));
            let overlap = duplicates.add(2, sampled(120_000..240_000));
            let share = overlap.replacing as f64 / overlap.sampled as f64;
            let shadowed = duplicates.shadowed_bytes().0 as f64;
            // Four standard deviations of the fewest samples: about 130 of those keys.
            assert!((share - 2.0 / 3.0).abs() < 0.17, "{most}: {share}");
            assert!((shadowed / 80e6 - 1.0).abs() < 0.35, "{most}: {shadowed}");
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
            let segment_of = |sequence: u64| (sequence % 3) as u32;
            let mut duplicates = Duplicates::new(most);
            let mut tables: BTreeMap<u64, BTreeMap<u64, (bool, u64)>> = BTreeMap::new();
            for (sequence, (comes, table, keys)) in steps.into_iter().enumerate() {
                let sequence = sequence as u64 + 1;
                if comes {
                    let number = table + 6 * sequence;
                    let samples = keys.iter().map(|(key, is_value)| match is_value {
                        true => put_in(*key, 10, sequence, Some(segment_of(sequence))),
                        false => delete(*key, sequence),
                    });
                    duplicates.add(number, samples.collect());
                    tables.insert(number, keys.into_iter().map(|(key, is_value)| (key, (is_value, sequence))).collect());
                } else if let Some(gone) = tables.keys().nth(table as usize % tables.len().max(1)).copied() {
                    duplicates.retain(|it| it != gone);
                    tables.remove(&gone);
                }
                prop_assert!(duplicates.samples <= most || duplicates.one_in >= SPARSEST);
                let (mut expected, mut in_segments) = (0, BTreeMap::<u32, u64>::new());
                for key in (0..30).filter(|key| (key * SAMPLED_ONE_IN).is_multiple_of(duplicates.one_in)) {
                    let versions: Vec<_> = tables.values().filter_map(|table| table.get(&key)).collect();
                    let newest = versions.iter().map(|(_, sequence)| *sequence).max();
                    for (_, sequence) in versions.iter().filter(|(is_value, at)| *is_value && Some(*at) != newest) {
                        expected += 1;
                        *in_segments.entry(segment_of(*sequence)).or_default() += 10 * duplicates.one_in;
                    }
                }
                prop_assert_eq!(duplicates.shadowed_bytes(), Bytes(expected * 10 * duplicates.one_in));
                prop_assert_eq!(shadowed_in(&duplicates), in_segments.into_iter().collect::<Vec<_>>());
            }
        }

        #[test]
        fn tables_that_go_and_come_immediately_count_as_one_after_the_other(
            rounds in proptest::collection::vec(
                (any::<u8>(), proptest::collection::vec(proptest::collection::btree_map(0_u64..30, (any::<bool>(), 0_u64..9), 0..20), 0..4)),
                1..20,
            ),
            most in prop_oneof![Just(10_000_usize), 2..40_usize],
            max_steps in prop_oneof![Just(MAX_STEPS), 1..30_usize],
        ) {
            let (mut together, mut one_by_one) = (Duplicates::new(most), Duplicates::new(most));
            together.max_steps = max_steps;
            for (round, (gone, came)) in rounds.into_iter().enumerate() {
                let is_gone = |table: u64| gone & 1 << (table % 8) != 0;
                let samples = |keys: &BTreeMap<u64, (bool, u64)>| -> Vec<_> {
                    keys.iter().map(|(key, (is_value, sequence))| match is_value {
                        true => put_in(*key, 10 + *key as u32, *sequence, Some(*sequence as u32 % 3)),
                        false => delete(*key, *sequence),
                    }).collect()
                };
                let numbered = (round as u64 * 4..).zip(&came).map(|(table, keys)| (table, samples(keys)));
                let came: Vec<_> = numbered.collect();
                one_by_one.retain(|table| !is_gone(table));
                let expected: Vec<_> = came.iter().map(|(table, samples)| (*table, one_by_one.add(*table, samples.clone()))).collect();
                let overlaps = together.replace(is_gone, came);
                if together.one_in == SAMPLED_ONE_IN {
                    prop_assert_eq!(overlaps, expected);
                }
                prop_assert_eq!(together.one_in, one_by_one.one_in);
                prop_assert_eq!(together.shadowed_bytes(), one_by_one.shadowed_bytes());
                prop_assert_eq!(shadowed_in(&together), shadowed_in(&one_by_one));
                prop_assert!(together.tables().eq(one_by_one.tables()));
                for key in 0..30 {
                    prop_assert_eq!(together.is_repeated(key * SAMPLED_ONE_IN), one_by_one.is_repeated(key * SAMPLED_ONE_IN));
                }
            }
        }
    }
}
