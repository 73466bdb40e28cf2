//! What a table is told to remember of its keys while RocksDB writes it: samples of them, and a
//! filter of all where one is wanted.
//!
//! [`crate::collectors`] says which collector a table gets.
//!
//! **Cost**: keys are hashed between all that RocksDB does for an entry, and the clock of a thread
//! takes longer than a hash. So of [`TIMED_ONE_IN`] batches of [`ENTRIES_AT_A_TIME`] entries one is
//! put aside and then sketched at one go, between two readings of the clock, whose own time does
//! not count. Nor does the way to a collector: RocksDB's call for each entry. Where nothing but
//! samples is wanted the shim hashes the keys of the other batches by the same function, which is
//! taken to cost as much there, and only those that are sampled come.
//!
//! Bounds: a batch that is put aside is sketched early at [`MAX_HELD_BYTES`]; the memory for it is
//! kept until the table ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ecotone_policy::duplicates::SAMPLED_ONE_IN;
use ecotone_rocks::properties::ENTRIES_AT_A_TIME;
use twox_hash::XxHash3_64;

use super::counts::COUNTED;
use super::filters::{self, FilterName, KeyHashes, KeysOfTable, RecentHashes};
use super::samples::{self, KeySampler, SampledValue};
use crate::duties::thread_cpu;
use crate::table_format::Collects;

// Beside so many keys two readings of the clock are little, and what the first of them wait for
// after the change of work.
const _: () = assert!(ENTRIES_AT_A_TIME >= 1024);

/// Of so many batches one is timed.
const TIMED_ONE_IN: u64 = 64;

/// The bits that the hash of a sampled key has not.
const NOT_SAMPLED: u64 = SAMPLED_ONE_IN - 1;
const _: () = assert!(SAMPLED_ONE_IN.is_power_of_two());

/// So many readings of the clock are made to know what one takes: some microseconds in all.
const CLOCK_READINGS: u32 = 16;

/// Of the keys of a batch that is put aside. Longer keys are timed in smaller groups.
const MAX_HELD_BYTES: usize = 256 * 1024;

/// What the collectors of all tables of a store share.
#[derive(Debug)]
pub(crate) struct Sketching {
    /// What two readings of the clock differ by when nothing is done between them.
    clock: Duration,
    batches: AtomicU64,
    cpu_ns: AtomicU64,
    recent: RecentHashes,
}

impl Sketching {
    /// Processor time that was spent on sketches, to write them and to keep them, in microseconds;
    /// the former by timing a part of it.
    pub(crate) fn cpu_us(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed) / 1000
    }

    /// Of the tables that were written last, so many bytes of hashes are kept.
    pub(crate) fn new(max_recent_bytes: usize) -> Self {
        Self {
            clock: time_of_the_clock(),
            batches: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            recent: RecentHashes::new(max_recent_bytes),
        }
    }

    /// The hashes of all keys of the table that was written with this filter.
    pub(crate) fn hashes_of(&self, filter: FilterName) -> Option<KeyHashes> {
        self.recent.of(filter)
    }

    fn is_timed(&self) -> bool {
        self.batches.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED_ONE_IN)
    }

    /// Runs `work`, and counts its time as that of `times` like it.
    pub(super) fn timed<T>(&self, times: u64, work: impl FnOnce() -> T) -> T {
        let began = thread_cpu();
        let outcome = work();
        let took = thread_cpu().saturating_sub(began).saturating_sub(self.clock);
        COUNTED.set(COUNTED.get() + took);
        self.cpu_ns.fetch_add(took.as_nanos() as u64 * times, Ordering::Relaxed);
        outcome
    }
}

/// The least of a few readings: others may have been interrupted.
fn time_of_the_clock() -> Duration {
    let between = |_| {
        let began = thread_cpu();
        thread_cpu().saturating_sub(began)
    };
    (0..CLOCK_READINGS).map(between).min().unwrap_or_default()
}

/// The sketch of the keys of one table.
#[derive(Debug)]
pub(crate) struct KeySketch {
    shared: Arc<Sketching>,
    sketched: Sketched,
    /// Whether this batch is timed.
    is_timed: bool,
    /// Its keys, if it is.
    held: HeldKeys,
}

#[derive(Debug)]
struct Sketched {
    /// Of the key before; several versions of a key follow one another.
    last: Option<u64>,
    samples: KeySampler,
    filter: Option<KeysOfTable>,
}

#[derive(Debug, Default)]
struct HeldKeys {
    keys: Vec<u8>,
    entries: Vec<HeldEntry>,
}

#[derive(Debug)]
struct HeldEntry {
    key_bytes: usize,
    value: Option<SampledValue>,
    sequence: u64,
}

impl Sketched {
    #[inline]
    fn add(&mut self, key: &[u8], value: Option<SampledValue>, sequence: u64) {
        let hash = XxHash3_64::oneshot(key);
        if self.last.replace(hash) == Some(hash) {
            return;
        }
        self.samples.add(hash, value, sequence);
        if let Some(filter) = &mut self.filter {
            filter.add(key, hash);
        }
    }
}

impl KeySketch {
    pub(crate) fn new(collects: Collects, shared: Arc<Sketching>) -> Self {
        let filter = (collects.filter_bits_per_key > 0).then(|| KeysOfTable::new(collects.filter_bits_per_key));
        let sketched = Sketched { last: None, samples: KeySampler::default(), filter };
        Self { shared, sketched, is_timed: false, held: HeldKeys::default() }
    }

    /// Before a batch of entries: which of their keys it need not be told of
    /// ([`TableCollector::begin`](ecotone_rocks::properties::TableCollector::begin)).
    pub(crate) fn begin(&mut self) -> u64 {
        self.sketch_held();
        self.is_timed = self.shared.is_timed();
        match (self.is_timed, &self.sketched.filter) {
            (false, None) => NOT_SAMPLED,
            // The time of all is asked for, or a filter for all.
            _ => 0,
        }
    }

    /// An entry, in the order of the table; `None` for a deletion. Of a key with several versions
    /// the newest comes first.
    #[inline]
    pub(crate) fn add(&mut self, key: &[u8], value: Option<SampledValue>, sequence: u64) {
        match self.is_timed {
            false => self.sketched.add(key, value, sequence),
            true => self.hold(key, value, sequence),
        }
    }

    /// The properties for the table.
    pub(crate) fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        self.sketch_held();
        let mut properties = vec![(samples::PROPERTY.into(), self.sketched.samples.finish())];
        if let Some(keys) = self.sketched.filter.take() {
            let filter = self.shared.timed(1, || keys.build(&self.shared.recent));
            properties.extend(filter.map(|filter| (filters::PROPERTY.into(), filter)));
        }
        properties
    }

    #[cold]
    fn hold(&mut self, key: &[u8], value: Option<SampledValue>, sequence: u64) {
        self.held.keys.extend_from_slice(key);
        self.held.entries.push(HeldEntry { key_bytes: key.len(), value, sequence });
        if self.held.keys.len() >= MAX_HELD_BYTES {
            self.sketch_held();
        }
    }

    /// What is not done for the keys of other batches is not in the time: to put keys aside, and to
    /// give their memory back.
    fn sketch_held(&mut self) {
        let Self { shared, sketched, held, .. } = self;
        if held.entries.is_empty() {
            return;
        }
        shared.timed(TIMED_ONE_IN, || {
            let mut rest = &held.keys[..];
            for HeldEntry { key_bytes, value, sequence } in &held.entries {
                let (key, after) = rest.split_at(*key_bytes);
                rest = after;
                sketched.add(key, *value, *sequence);
            }
        });
        held.keys.clear();
        held.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::recounting;
    use ecotone_policy::dedup::filter::FilterView;
    use ecotone_rocks::properties::EntryKind;

    /// A sketch that is told of entries as RocksDB tells a collector.
    struct CollectedSketch {
        sketch: KeySketch,
        left: u32,
        passes_over: u64,
    }

    impl CollectedSketch {
        fn new(collects: Collects, shared: &Arc<Sketching>) -> Self {
            Self { sketch: KeySketch::new(collects, shared.clone()), left: 0, passes_over: 0 }
        }

        fn add(&mut self, key: &[u8], value: Option<SampledValue>, sequence: u64) {
            if self.left == 0 {
                self.left = ENTRIES_AT_A_TIME;
                self.passes_over = self.sketch.begin();
            }
            self.left -= 1;
            if self.passes_over == 0 || XxHash3_64::oneshot(key) & self.passes_over == 0 {
                self.sketch.add(key, value, sequence);
            }
        }
    }

    fn properties(
        keys: std::ops::Range<u32>,
        filter_bits_per_key: u8,
        shared: &Arc<Sketching>,
    ) -> Vec<(String, Vec<u8>)> {
        let mut collected =
            CollectedSketch::new(Collects { samples: true, filter_bits_per_key, ..Collects::default() }, shared);
        for key in keys {
            for version in 0..2 {
                let value = (key % 2 == 0).then_some(SampledValue::inline(key as usize));
                collected.add(format!("key{key:08}").as_bytes(), value, 7 - version);
            }
        }
        collected.sketch.finish()
    }

    #[test]
    fn what_a_table_tells_does_not_depend_on_which_batches_are_timed() {
        for filter_bits_per_key in [0, 11] {
            let shared = Arc::new(Sketching::new(1 << 20));
            let first = properties(0..20_000, filter_bits_per_key, &shared);
            for begun in 1..TIMED_ONE_IN {
                let shared = Arc::new(Sketching { batches: AtomicU64::new(begun), ..Sketching::new(0) });
                assert_eq!(properties(0..20_000, filter_bits_per_key, &shared), first);
            }
            assert!(shared.cpu_us() > 0);
            // Who counts a table again tells of all, and times nothing.
            let collects = Collects { samples: true, filter_bits_per_key, ..Collects::default() };
            let (mut again, _) = recounting(collects);
            for key in 0..20_000_usize {
                for version in 0..2 {
                    let kind = if key % 2 == 0 { EntryKind::Put } else { EntryKind::Delete };
                    again.add(format!("key{key:08}").as_bytes(), &vec![0; key], kind, 7 - version, 0);
                }
            }
            assert_eq!(again.finish(), first);
        }
    }

    #[test]
    fn the_filter_finds_each_key_and_the_hashes_are_those_of_all() {
        let shared = Arc::new(Sketching::new(1 << 20));
        let properties = properties(0..10_000, 11, &shared);
        let names: Vec<_> = properties.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [samples::PROPERTY, filters::PROPERTY]);
        let filter = &properties[1].1;
        let hashes = shared.hashes_of(FilterName::of(filter)).expect("it is the newest");
        assert_eq!(hashes.all().len(), 10_000, "each key once");
        let view = FilterView::parse(filter).unwrap();
        let hash = |key: u32| XxHash3_64::oneshot(format!("key{key:08}").as_bytes());
        assert!((0..10_000).all(|key| view.may_hold(hash(key)) && hashes.all()[key as usize] == hash(key)));
        assert!(hashes.within(b"key00005000", b"key00005999").len() < 1000 + 2 * 64, "and they are in order");
        assert!((10_000..20_000).filter(|key| view.may_hold(hash(*key))).count() < 250);
    }

    #[test]
    fn the_time_of_the_timed_batches_stands_for_that_of_all() {
        let shared = Arc::new(Sketching::new(1 << 20));
        let began = thread_cpu();
        let mut collected = CollectedSketch::new(Collects { samples: true, ..Collects::default() }, &shared);
        let key = [7; 1024];
        for _ in 0..ENTRIES_AT_A_TIME * TIMED_ONE_IN as u32 * 8 {
            collected.add(&key, Some(SampledValue::inline(1)), 1);
        }
        collected.sketch.finish();
        let all = thread_cpu() - began;
        let share = shared.cpu_us() as f64 / all.as_micros() as f64;
        // Nearly all of the time goes into hashing such keys.
        assert!((0.3..3.0).contains(&share), "{share}");
    }

    #[test]
    fn to_read_the_clock_counts_as_nothing() {
        // The clock is read twice each time, and one of these readings would be counted; others may
        // have kept the processor busy meanwhile.
        let counts_little = |_| {
            let (shared, began) = (Sketching::new(0), thread_cpu());
            (0..10_000).for_each(|_| shared.timed(1, || ()));
            Duration::from_micros(shared.cpu_us()) * 4 < thread_cpu() - began
        };
        assert!((0..10).any(counts_little));
    }
}
