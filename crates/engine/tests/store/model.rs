//! The store against a sorted map: any sequence of operations gives the same answers, under any
//! options, also where they change from one opening to the next.

use crate::common;

use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::offloads::InProcess;
use common::random::{Random, cases};
use common::telemetry::telemetry;
use common::{Model, assert_equals, value_of};
use ecotone_engine::{
    Attributes, Compression, CompressionMode, DedupMode, DedupOptions, Description, Direction, Durability, Error,
    MemtableOrder, OpenMode, Separation, SpaceLimits, Store, StoreSettings, Value, WriteOptions,
};
use ecotone_inspect::verify;
use ecotone_policy::gc::GcParameters;
use ecotone_types::units::Bytes;
use proptest::prelude::*;

/// A time that no clock shows, in ms since 1970.
const FAR_MS: u64 = 1 << 60;

/// What a store holds: values, and of those that have attributes the number that these are made of.
#[derive(Debug, Clone, Default, PartialEq)]
struct Expected {
    values: Model,
    numbers: BTreeMap<Vec<u8>, u64>,
}

impl Expected {
    fn put(&mut self, key: &[u8], value: &[u8], number: Option<u64>) {
        self.values.insert(key.to_vec(), value.to_vec());
        self.numbers.remove(key);
        self.numbers.extend(number.map(|number| (key.to_vec(), number)));
    }

    fn remove(&mut self, key: &[u8]) {
        self.values.remove(key);
        self.numbers.remove(key);
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    fn attributes(&self, key: &[u8]) -> Option<Attributes> {
        self.describe(key).map(|description| description.attributes)
    }

    fn describe(&self, key: &[u8]) -> Option<Description> {
        let attributes = self.numbers.get(key).map_or(Attributes::NONE, |number| attributes(*number));
        self.values.get(key).map(|value| Description { attributes, value_bytes: value.len() })
    }

    fn assert_in(&self, store: &Store) {
        assert_equals(store, &self.values);
        for key in self.values.keys() {
            assert_eq!(store.describe(key, false).unwrap(), self.describe(key), "{key:?}");
        }
    }
}

/// They expire at no time within this test: whether such values are reclaimed must not matter.
fn attributes(number: u64) -> Attributes {
    Attributes { expires_at_ms: Some(number | FAR_MS), version: Some(number), type_tag: NonZeroU8::new(number as u8) }
}

#[derive(Debug, Clone)]
enum Op {
    Put(Vec<u8>, Vec<u8>, Durability),
    Delete(Vec<u8>),
    DeleteRange(Bound<Vec<u8>>, Bound<Vec<u8>>),
    Batch(Vec<BatchOp>),
    Get(Vec<u8>),
    MultiGet(Vec<Vec<u8>>),
    Scan(Bound<Vec<u8>>, Bound<Vec<u8>>, bool),
    /// The same three, of what can be told without waiting for the device.
    NonBlockingReads(Vec<Vec<u8>>, Bound<Vec<u8>>, Bound<Vec<u8>>, bool),
    /// Reads of the state so far, made after the operations inside.
    Snapshot(Vec<Op>),
    Flush(bool),
    Compact,
    Reopen,
    Checkpoint,
}

#[derive(Debug, Clone)]
enum BatchOp {
    Put(Vec<u8>, Vec<u8>),
    PutWith(Vec<u8>, Vec<u8>, u64),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// Few and short keys, so that operations meet; the empty key, prefixes and the greatest bytes
/// among them.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(0), Just(0xFF)], 0..4),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => proptest::collection::vec(any::<u8>(), 0..40),
        // Longer than what is copied behind its header.
        1 => (any::<u8>(), 16_000..40_000_usize).prop_map(|(byte, bytes)| vec![byte; bytes]),
    ]
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![key().prop_map(Bound::Included), key().prop_map(Bound::Excluded), Just(Bound::Unbounded)]
}

fn durability() -> impl Strategy<Value = Durability> {
    prop_oneof![6 => Just(Durability::None), 6 => Just(Durability::EverySecond), 1 => Just(Durability::Always)]
}

fn batch_op() -> impl Strategy<Value = BatchOp> {
    prop_oneof![
        (key(), value()).prop_map(|(k, v)| BatchOp::Put(k, v)),
        (key(), value(), 1..u64::MAX).prop_map(|(k, v, n)| BatchOp::PutWith(k, v, n)),
        key().prop_map(BatchOp::Delete),
        (key(), key()).prop_map(|(a, b)| BatchOp::DeleteRange(a, b)),
    ]
}

fn simple() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (key(), value(), durability()).prop_map(|(k, v, d)| Op::Put(k, v, d)),
        4 => key().prop_map(Op::Delete),
        1 => (bound(), bound()).prop_map(|(a, b)| Op::DeleteRange(a, b)),
        3 => proptest::collection::vec(batch_op(), 0..6).prop_map(Op::Batch),
        5 => key().prop_map(Op::Get),
        2 => proptest::collection::vec(key(), 0..6).prop_map(Op::MultiGet),
        3 => (bound(), bound(), any::<bool>()).prop_map(|(a, b, r)| Op::Scan(a, b, r)),
        3 => (proptest::collection::vec(key(), 1..6), bound(), bound(), any::<bool>())
            .prop_map(|(keys, a, b, r)| Op::NonBlockingReads(keys, a, b, r)),
        1 => any::<bool>().prop_map(Op::Flush),
        1 => Just(Op::Compact),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => simple(),
        2 => proptest::collection::vec(simple(), 1..8).prop_map(Op::Snapshot),
        1 => Just(Op::Reopen),
        1 => Just(Op::Checkpoint),
    ]
}

/// Off, on from any threshold; each opening has its own.
fn separation() -> impl Strategy<Value = Option<Separation>> {
    let min_bytes = prop_oneof![Just(1_u32), Just(20), Just(150), Just(1_000)];
    let segment_bytes = prop_oneof![Just(4096_u64), Just(1 << 20)];
    proptest::option::of((min_bytes, segment_bytes))
        .prop_map(|chosen| chosen.map(|(min_bytes, segment_bytes)| Separation { min_bytes, segment_bytes }))
}

/// As it is, or such that garbage collection and removal are at work after a few hundred writes.
fn gc() -> impl Strategy<Value = GcParameters> {
    let eager = (1.01..1.25_f64, 1_u64..20_000).prop_map(|(begin_ratio, garbage)| GcParameters {
        begin_ratio,
        end_ratio: 1.005,
        min_garbage_share: 0.01,
        min_garbage_bytes: Bytes(garbage),
        ..GcParameters::default()
    });
    prop_oneof![1 => Just(GcParameters::default()), 3 => eager]
}

/// Off, or such that every duplicate that is seen is worth a merge.
fn dedup() -> impl Strategy<Value = DedupOptions> {
    let triggered = DedupMode::Triggered { interval: Duration::from_secs(1) };
    let mode = prop_oneof![Just(DedupMode::Sample), Just(DedupMode::Filter), Just(triggered)];
    prop_oneof![Just(DedupOptions::default()), mode.prop_map(common::dedup_eagerly)]
}

fn options() -> impl Strategy<Value = StoreSettings> {
    let compression = prop_oneof![Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd)];
    (
        compression,
        prop_oneof![Just(0_u32), Just(10)],
        prop_oneof![Just(1024_u64), Just(4096), Just(65_536)],
        1..4_u32,
        1..5_u32,
        (
            proptest::option::of(prop_oneof![Just(8_u64 << 20), Just(64 << 20)]),
            prop_oneof![Just(64_u64 << 10), Just(4 << 20)],
        ),
        durability(),
        separation(),
        (
            gc(),
            any::<bool>(),
            proptest::option::of(64..100_u32),
            // Room for twenty pointers, and for as many without their rows; or for all.
            proptest::option::of(prop_oneof![Just(4_u64 << 10), Just(8 << 20)]),
            dedup(),
            prop_oneof![3 => Just(MemtableOrder::Tree), 1 => Just(MemtableOrder::SkipList)],
            (
                any::<bool>(),
                1..4_u32,
                prop_oneof![Just(0_u64), Just(4096), Just(512 << 20)],
                prop_oneof![Just(0_u64), Just(4096), Just(256 << 20)],
                // Never full, and measured all the same.
                proptest::option::of(Just(1_u64 << 30)),
                // Values are read past the kernel's cache, or are not.
                prop_oneof![Just(None), Just(Some(0_u64))],
                // Values are compressed, with dictionaries that are soon trained; or are not.
                prop_oneof![
                    3 => Just(CompressionMode::None),
                    1 => Just(CompressionMode::Auto),
                    1 => Just(CompressionMode::Lz4),
                    1 => Just(CompressionMode::Zstd),
                ],
                // Many levels and small tables, or few.
                prop_oneof![Just((1_u64 << 20, 2_u32, 64_u64 << 10)), Just((8 << 20, 10, 1 << 20))],
            ),
        ),
    )
        .prop_map(
            |(compression, bloom_bits_per_key, block_bytes, trigger, parts, memory, durability, separation, rest)| {
                let (
                    reclaim_expired,
                    compactions,
                    mapped_bytes,
                    mapped_read_bytes,
                    max_bytes,
                    page_cache_bytes,
                    mode,
                    levels,
                ) = rest.6;
                let (level_base_bytes, level_multiplier, target_file_bytes) = levels;
                StoreSettings {
                    reclaim_expired,
                    // Merges of duplicates are refused with one.
                    background_compactions: compactions.max(if rest.4.mode.is_some() { 2 } else { 1 }),
                    mapped_bytes,
                    mapped_read_bytes,
                    page_cache_bytes,
                    level_base_bytes,
                    level_multiplier,
                    target_file_bytes,
                    space: SpaceLimits { max_bytes, ..SpaceLimits::default() },
                    durability,
                    compression,
                    bloom_bits_per_key,
                    block_bytes,
                    l0_compaction_trigger: trigger,
                    max_subcompactions: parts,
                    separation,
                    memory_limit_bytes: memory.0,
                    memtable_bytes: memory.1,
                    gc: rest.0,
                    dynamic_levels: rest.1,
                    max_open_files: rest.2,
                    row_cache_bytes: rest.3,
                    dedup: rest.4,
                    memtable_order: rest.5,
                    ..common::compressing_early(mode, common::small())
                }
            },
        )
}

/// The entries of a range in the model; a reversed range has none.
fn range(model: &Model, from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let inside = |key: &Vec<u8>| {
        (match from {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        }) && (match to {
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
            Bound::Unbounded => true,
        })
    };
    model.iter().filter(|(key, _)| inside(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

fn apply(store: &Store, model: &mut Expected, op: &Op) {
    match op {
        Op::Put(key, value, durability) => {
            store.put_opt(key, value, WriteOptions::durable(*durability)).unwrap();
            model.put(key, value, None);
        }
        Op::Delete(key) => {
            store.delete(key).unwrap();
            model.remove(key);
        }
        Op::DeleteRange(from, to) => {
            store.delete_range((borrowed(from), borrowed(to))).unwrap();
            for (key, _) in range(&model.values, from, to) {
                model.remove(&key);
            }
        }
        Op::Batch(ops) => apply_batch(store, model, ops),
        Op::Get(key) => {
            let found = store.get(key).unwrap();
            assert_eq!(found.as_deref(), model.get(key));
            assert_eq!(found.map(|value| *value.attributes()), model.attributes(key));
            assert_eq!(store.describe(key, false).unwrap(), model.describe(key));
        }
        Op::MultiGet(keys) => {
            let found = store.multi_get(keys);
            assert_eq!(found.len(), keys.len());
            for (key, found) in keys.iter().zip(found) {
                assert_eq!(found.unwrap().as_deref(), model.get(key));
            }
        }
        Op::NonBlockingReads(keys, from, to, reverse) => {
            let check = |key: &Vec<u8>, found: Result<Option<Value<'_>>, Error>| match found {
                Err(Error::WouldBlock) => (),
                found => assert_eq!(found.unwrap().as_deref(), model.get(key)),
            };
            keys.iter().for_each(|key| check(key, store.try_get(key)));
            let found = store.multi_get_first(keys, true);
            assert!(!found.is_empty() && found.len() <= keys.len());
            keys.iter().zip(found).for_each(|(key, found)| check(key, found));
            match store.describe(&keys[0], true) {
                Err(Error::WouldBlock) => (),
                found => assert_eq!(found.unwrap(), model.describe(&keys[0])),
            }
            let direction = if *reverse { Direction::Reverse } else { Direction::Forward };
            let mut expected = range(&model.values, from, to);
            if *reverse {
                expected.reverse();
            }
            let mut expected = expected.into_iter();
            for found in store.try_scan((borrowed(from), borrowed(to)), direction) {
                match found {
                    Err(Error::WouldBlock) => return,
                    found => assert_eq!(Some(found.unwrap()), expected.next()),
                }
            }
            assert_eq!(expected.next(), None);
        }
        Op::Scan(from, to, reverse) => {
            let direction = if *reverse { Direction::Reverse } else { Direction::Forward };
            let scan = store.scan((borrowed(from), borrowed(to)), direction, None).unwrap();
            let found: Vec<_> = scan.map(Result::unwrap).collect();
            let mut expected = range(&model.values, from, to);
            if *reverse {
                expected.reverse();
            }
            assert_eq!(found, expected);
        }
        Op::Snapshot(ops) => {
            let (snapshot, before) = (store.snapshot(), model.clone());
            for op in ops {
                apply(store, model, op);
            }
            let seen: Vec<_> = snapshot.scan(.., Direction::Forward).unwrap().map(Result::unwrap).collect();
            assert_eq!(seen, before.values.clone().into_iter().collect::<Vec<_>>());
            let keys: Vec<_> = model.values.keys().chain(before.values.keys()).cloned().collect();
            for (key, found) in keys.iter().zip(snapshot.multi_get(&keys)) {
                let expected = before.get(key);
                assert_eq!(found.unwrap().as_deref(), expected);
                assert_eq!(store.get_at(key, &snapshot).unwrap().as_deref(), expected);
            }
        }
        Op::Flush(wait) => {
            // While writes are stopped a flush that nobody waits for is refused: try again, as the
            // error says.
            while let Err(error) = store.flush(*wait) {
                assert!(!wait && matches!(error, ecotone_engine::Error::Busy { .. }), "{error}");
                std::thread::yield_now();
            }
        }
        Op::Compact => store.compact(..).unwrap(),
        Op::Reopen | Op::Checkpoint => unreachable!("handled where the store can be replaced"),
    }
}

fn apply_batch(store: &Store, model: &mut Expected, ops: &[BatchOp]) {
    let mut batch = ecotone_engine::Batch::new();
    for op in ops {
        match op {
            BatchOp::Put(key, value) => {
                batch.put(key, value).unwrap();
                model.put(key, value, None);
            }
            BatchOp::PutWith(key, value, number) => {
                batch.put_with(key, value, &attributes(*number)).unwrap();
                model.put(key, value, Some(*number));
            }
            BatchOp::Delete(key) => {
                batch.delete(key).unwrap();
                model.remove(key);
            }
            BatchOp::DeleteRange(from, to) => {
                batch.delete_range(from.as_slice()..to.as_slice()).unwrap();
                let gone = range(&model.values, &Bound::Included(from.clone()), &Bound::Excluded(to.clone()));
                for (key, _) in gone {
                    model.remove(&key);
                }
            }
        }
    }
    store.write(&batch, WriteOptions::default()).unwrap();
}

/// Runs the operations on a store that is opened with the next of `options` each time, and with the
/// first again after the last.
fn run(options: &[StoreSettings], ops: &[Op]) -> Expected {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let workers = directory.path().join("worker");
    let mut next = options.iter().cycle().cloned();
    let mut open = |path: &Path, mode| {
        let settings = next.next().unwrap();
        // Compactions of some run elsewhere.
        let is_offloaded = settings.l0_compaction_trigger == 2;
        let builder = Store::builder(path).mode(mode).settings(settings);
        let builder = if is_offloaded { builder.offload(Arc::new(InProcess::new(&workers))) } else { builder };
        builder.open().unwrap()
    };
    let mut store = open(&path, OpenMode::Create);
    let mut model = Expected::default();
    for (step, op) in ops.iter().enumerate() {
        match op {
            Op::Reopen => {
                store.close().unwrap();
                store = open(&path, OpenMode::Open);
            }
            Op::Checkpoint => {
                let copy = directory.path().join(format!("copy{step}"));
                store.checkpoint(&copy).unwrap();
                let copy = open(&copy, OpenMode::Open);
                model.assert_in(&copy);
                copy.close().unwrap();
            }
            op => apply(&store, &mut model, op),
        }
    }
    model.assert_in(&store);
    store.close().unwrap();
    let reader = open(&path, OpenMode::ReadOnly);
    model.assert_in(&reader);
    drop(reader);
    let report = verify(&path, |_| ()).unwrap();
    assert!(report.is_sound() && report.entries == model.values.len() as u64, "{report:?}");
    model
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(80), ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_answers_like_a_sorted_map(options in options(), ops in proptest::collection::vec(op(), 1..60)) {
        run(&[options], &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(20), ..ProptestConfig::default() })]

    /// The options change how the store works, never what it answers: the answers are checked
    /// against the model inside, and must also be the same under both.
    #[test]
    fn options_change_no_answer(
        one in proptest::collection::vec(options(), 1..5),
        other in proptest::collection::vec(options(), 1..5),
        ops in proptest::collection::vec(op(), 1..60),
    ) {
        prop_assert_eq!(run(&one, &ops), run(&other, &ops));
    }
}

/// Many writes to few keys, and whatever else may be done to a store between.
fn long_ops() -> impl Strategy<Value = Vec<Op>> {
    let writes = (any::<u64>(), 50..400_u64).prop_map(|(seed, writes)| {
        let mut random = Random::new(seed);
        let write = |number| {
            let key = format!("key{:03}", random.below(80)).into_bytes();
            let bytes = *random.of(&[10, 30, 200, 300, 2_000]);
            let value = match random.once_in(2) {
                true => value_of(&key, seed ^ number, bytes),
                false => telemetry(seed >> 32 ^ number, bytes),
            };
            match random.below(12) {
                0 => Op::Delete(key),
                1 => Op::Batch(vec![
                    BatchOp::PutWith(key, value, 1 + number),
                    BatchOp::Put(b"last".to_vec(), vec![7; 160]),
                ]),
                2 => Op::Get(key),
                _ => Op::Put(key, value, Durability::None),
            }
        };
        (0..writes).map(write).collect::<Vec<_>>()
    });
    let between = prop_oneof![
        3 => Just(Op::Reopen),
        1 => Just(Op::Checkpoint),
        2 => Just(Op::Flush(true)),
        1 => Just(Op::Compact),
        1 => (bound(), bound(), any::<bool>()).prop_map(|(a, b, r)| Op::Scan(a, b, r)),
        1 => proptest::collection::vec(simple(), 1..8).prop_map(Op::Snapshot),
    ];
    let parts = proptest::collection::vec((writes, between), 4..14);
    parts
        .prop_map(|parts| parts.into_iter().flat_map(|(writes, between)| writes.into_iter().chain([between])).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(24), max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Thresholds that come and go, segments of all sizes, garbage collection at work: the answers
    /// are those of the other store.
    #[test]
    fn nothing_but_the_answers_stays_the_same_over_many_openings(
        one in proptest::collection::vec(options(), 2..7),
        other in proptest::collection::vec(options(), 2..7),
        ops in long_ops(),
    ) {
        prop_assert_eq!(run(&one, &ops), run(&other, &ops));
    }
}

#[test]
fn thousands_of_writes_through_every_level() {
    let (_directory, store) =
        common::store(StoreSettings { l0_compaction_trigger: 2, max_subcompactions: 3, ..common::small() });
    let mut model = Model::new();
    for round in 0..4 {
        common::fill(&store, &mut model, round, 8_000, 3_000);
        assert_equals(&store, &model);
    }
    store.compact(..).unwrap();
    assert_equals(&store, &model);
    let properties = store.properties().unwrap();
    assert_eq!(properties.l0_tables, 0, "{properties:?}");
    assert!(properties.levels.iter().skip(1).any(|level| level.tables > 0 && level.bytes > 0), "{properties:?}");
    let tables = store.live_tables().unwrap();
    assert_eq!(tables.len() as u64, properties.levels.iter().map(|level| level.tables).sum::<u64>());
    assert!(tables.iter().all(|table| table.column_family == ecotone_engine::DATA_FAMILY), "all data is in one family");
    assert!(tables.iter().all(|table| !table.file_checksum.is_empty()), "every table has its checksum in the MANIFEST");
}
