use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::ops::Range;

use ecotone_valuelog::pointer::Pointer;
use ecotone_valuelog::record::MAX_KEY_BYTES;
use tempfile::TempDir;

use super::*;
use crate::batch_records::{Record, records};
use crate::header::{Header, Kind, encode_inline};
use crate::mutation::Random;
use crate::mutation::random::with_seeds;
use crate::{Batch, OpenMode, Separation, StoreSettings};

/// Values of so many bytes go to the value log.
const MIN_BYTES: usize = 100;

/// Lengths on both sides of that, and of where a value is not copied any more.
const LENGTHS: [usize; 11] = [0, 1, 20, 98, MIN_BYTES - 1, MIN_BYTES, MIN_BYTES + 1, 500, 5000, 16 * 1024, 17 * 1024];

fn options(separates: bool) -> StoreSettings {
    StoreSettings {
        separation: separates.then_some(Separation { min_bytes: MIN_BYTES as u32, segment_bytes: 16 * 1024 }),
        durability: Durability::None,
        row_cache_bytes: Some(1 << 20),
        ..StoreSettings::default()
    }
}

fn store(separates: bool) -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("store"), OpenMode::Create, options(separates)).unwrap();
    (directory, store)
}

fn encoded<'b>(store: &Store, operations: impl IntoIterator<Item = Operation<'b>>, cuts: &Cuts) -> Encoding {
    let mut encoding = Encoding::default();
    encoding.encode(operations.into_iter(), cuts, store.values.as_ref(), store.family, true).unwrap();
    encoding
}

fn plain<'b>(key: &'b [u8], value: &'b [u8]) -> Operation<'b> {
    Operation::Put { key, attributes: Attributes::NONE, value }
}

#[test]
fn the_bytes_that_rocksdb_gets_never_change() {
    let (_directory, store) = store(true);
    let attributes = Attributes { expires_at_ms: Some(2), type_tag: NonZeroU8::new(5), version: None };
    let long = [b'l'; MIN_BYTES];
    let mut batch = Batch::new();
    batch.put(b"a", b"1").unwrap();
    batch.put_with(b"key", b"v", &attributes).unwrap();
    batch.delete(b"d").unwrap();
    batch.delete_range(&b"r"[..]..&b"s"[..]).unwrap();
    batch.put(b"", b"").unwrap();
    let of_short: &[u8] = b"\0\0\0\0\0\0\0\0\x05\0\0\0\
        \x05\x01\x01a\x02\x401\
        \x05\x01\x03key\x0b\x54\x02\0\0\0\0\0\0\0\x05v\
        \x04\x01\x01d\
        \x0e\x01\x01r\x01s\
        \x05\x01\0\x01\x40";
    assert_eq!(encoded(&store, &batch, &Cuts::new()).batch().data(), of_short);
    assert_eq!(batch.size_bytes(), of_short.len());
    assert_eq!(store.value_log().unwrap().bytes, 0);

    // A value that is separated.
    batch.clear();
    batch.put_with(b"key", &long, &attributes).unwrap();
    let bytes = encoded(&store, &batch, &Cuts::new()).batch().data().to_vec();
    let (before, pointer) = bytes.split_at(bytes.len() - 12);
    assert_eq!(
        before,
        b"\0\0\0\0\0\0\0\0\x01\0\0\0\
        \x05\x01\x03key\x16\x55\x02\0\0\0\0\0\0\0\x05"
    );
    let pointer = Pointer::decode(pointer).unwrap();
    assert_eq!((pointer.offset, pointer.value_bytes as usize), (32, MIN_BYTES), "the first of its segment");

    // A range that is cut.
    let cuts = vec![vec![b"m".to_vec(), b"p".to_vec()], Vec::new()];
    let ranges = [(b"a", b"z"), (b"A", b"B")].map(|(from, to)| Operation::DeleteRange { from, to });
    assert_eq!(
        encoded(&store, ranges, &cuts).batch().data(),
        b"\0\0\0\0\0\0\0\0\x04\0\0\0\
        \x0e\x01\x01a\x01m\
        \x0e\x01\x01m\x01p\
        \x0e\x01\x01p\x01z\
        \x0e\x01\x01A\x01B"
    );
    let mut measured = Measured { bytes: BATCH_HEADER_BYTES, ..Measured::default() };
    for (range, cuts) in ranges.iter().zip(cuts) {
        measured.add(range);
        measured.add_cuts(cuts);
    }
    assert_eq!(measured.bytes, 12 + 4 * 6);
}

/// An operation that owns what it is of.
#[derive(Debug, Clone)]
enum Wanted {
    Put(Vec<u8>, Attributes, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Range<Vec<u8>>),
}

impl Wanted {
    fn any(random: &mut Random) -> Self {
        let key = |random: &mut Random| format!("key {:02}", random.below(60)).into_bytes();
        match random.below(10) {
            0..7 => {
                let value = (0..*random.of(&LENGTHS)).map(|_| random.next() as u8).collect();
                Self::Put(key(random), any_attributes(random), value)
            }
            7 | 8 => Self::Delete(key(random)),
            _ => {
                let (from, to) = (key(random), key(random));
                // Some are reversed; others have one key, since wide ones leave little to compare.
                let to = if random.once_in(3) { to } else { [&from, &b"z"[..]].concat() };
                Self::DeleteRange(from..to)
            }
        }
    }

    fn operation(&self) -> Operation<'_> {
        match self {
            Self::Put(key, attributes, value) => Operation::Put { key, attributes: *attributes, value },
            Self::Delete(key) => Operation::Delete { key },
            Self::DeleteRange(range) => Operation::DeleteRange { from: &range.start, to: &range.end },
        }
    }

    fn add_to(&self, batch: &mut Batch) {
        match self {
            Self::Put(key, Attributes::NONE, value) => batch.put(key, value),
            Self::Put(key, attributes, value) => batch.put_with(key, value, attributes),
            Self::Delete(key) => batch.delete(key),
            Self::DeleteRange(range) => batch.delete_range(range.start.as_slice()..range.end.as_slice()),
        }
        .unwrap();
    }

    fn apply(&self, model: &mut Model) {
        match self.clone() {
            Self::Put(key, attributes, value) => _ = model.insert(key, (attributes, value)),
            Self::Delete(key) => _ = model.remove(&key),
            Self::DeleteRange(range) => model.retain(|key, _| !range.contains(key)),
        }
    }
}

type Model = BTreeMap<Vec<u8>, (Attributes, Vec<u8>)>;

fn any_attributes(random: &mut Random) -> Attributes {
    if random.once_in(2) {
        return Attributes::NONE;
    }
    let mut number = |once_in| random.once_in(once_in).then(|| 1 + random.next() % (u64::MAX - 1));
    let (expires_at_ms, version) = (number(2), number(2));
    Attributes { expires_at_ms, version, type_tag: NonZeroU8::new(random.below(3) as u8) }
}

#[test]
fn what_is_encoded_is_what_was_wanted() {
    for separates in [false, true] {
        let (_directory, store) = store(separates);
        let mut encoding = Encoding::default();
        with_seeds(300, |seed| {
            let mut random = Random::new(seed);
            let wanted: Vec<_> = (0..random.below(12)).map(|_| Wanted::any(&mut random)).collect();
            let mut batch = Batch::new();
            wanted.iter().for_each(|wanted| wanted.add_to(&mut batch));
            let values = store.values.as_ref();
            encoding.encode(batch.operations(), &Cuts::new(), values, store.family, true).unwrap();
            let mut found = records(encoding.batch().data());
            let mut changes = encoding.row_changes(batch.operations());
            // The same put together by RocksDB, of values with the pointers that were found.
            let mut expected = WriteBatch::default();
            for operation in wanted.iter().map(Wanted::operation).filter(Operation::has_effect) {
                let (record, change) = (found.next().unwrap().unwrap(), changes.next().unwrap());
                match operation {
                    Operation::Put { key, attributes, value } => {
                        let Record::Put { value: stored, .. } = record else { panic!("{record:?}") };
                        let header = Header::decode(stored).unwrap();
                        let mut inline = Vec::new();
                        encode_inline(&attributes, &mut inline).unwrap();
                        let (payload, separated) = match header.kind {
                            Kind::Inline => (value.to_vec(), None),
                            Kind::Separated(pointer) => {
                                let mut bytes = Vec::new();
                                let place = values.unwrap().log.read(key, pointer, &mut bytes).unwrap();
                                assert_eq!(&bytes[place], value, "seed {seed}");
                                inline[0] |= 1;
                                let mut encoded = Vec::new();
                                pointer.encode(&mut encoded);
                                (encoded, Some(value))
                            }
                        };
                        assert_eq!(separated.is_some(), separates && value.len() >= MIN_BYTES, "seed {seed}");
                        expected.put_cf(&store.family, key, [inline, payload].concat());
                        let RowChange::Put { key: of_row, stored: row, separated: with_row } = change else {
                            panic!("{change:?}")
                        };
                        assert_eq!((of_row, row, with_row), (key, stored, separated), "seed {seed}");
                    }
                    Operation::Delete { key } => {
                        expected.delete_cf(&store.family, key);
                        assert!(matches!(change, RowChange::Delete { key: of_row } if of_row == key));
                    }
                    Operation::DeleteRange { from, to } => {
                        expected.delete_range_cf(&store.family, from, to);
                        assert!(matches!(change, RowChange::DeleteRange { from: a, to: b } if (a, b) == (from, to)));
                    }
                }
            }
            assert_eq!(expected.data(), encoding.batch().data(), "seed {seed}");
            assert!(changes.next().is_none());
            if !separates {
                assert_eq!(batch.size_bytes(), expected.size_in_bytes(), "seed {seed}");
            }
            let measured = store.measure(batch.operations()).unwrap();
            assert_eq!((measured.operations, measured.bytes), (batch.len(), batch.size_bytes()));
            encoding.release();
        });
    }
}

fn assert_holds(store: &Store, key: &[u8], model: &Model, seed: u64) {
    for _ in 0..2 {
        // The second time there may be a row with the value.
        let found = store.get(key).unwrap();
        let found = found.as_ref().map(|value| (*value.attributes(), value.to_vec()));
        assert_eq!(found, model.get(key).cloned(), "seed {seed}: {}", String::from_utf8_lossy(key));
    }
}

#[test]
fn batches_do_what_a_map_does_with_the_same() {
    with_seeds(12, |seed| {
        let (separates, mut random) = (seed % 4 > 0, Random::new(seed));
        let (directory, store) = store(separates);
        let (mut model, mut batch) = (Model::new(), Batch::new());
        let mut max_segments = 0_u64;
        for _ in 0..60 {
            let wanted: Vec<_> = (0..random.below(30)).map(|_| Wanted::any(&mut random)).collect();
            match random.below(4) {
                0 => store.write(wanted.iter().map(Wanted::operation), WriteOptions::default()).unwrap(),
                1 => wanted.iter().for_each(|wanted| match wanted.operation() {
                    Operation::Put { key, attributes: Attributes::NONE, value } => store.put(key, value).unwrap(),
                    put @ Operation::Put { .. } => store.write([put], WriteOptions::default()).unwrap(),
                    Operation::Delete { key } => store.delete(key).unwrap(),
                    Operation::DeleteRange { from, to } => store.delete_range(from..to).unwrap(),
                }),
                way => {
                    batch.clear();
                    assert!(batch.is_empty() && batch.size_bytes() == BATCH_HEADER_BYTES);
                    for wanted in &wanted {
                        wanted.add_to(&mut batch);
                        if random.once_in(5) {
                            refuse_all(&mut batch);
                        }
                    }
                    for _ in 1..way {
                        store.write(&batch, WriteOptions::default()).unwrap();
                    }
                }
            }
            wanted.iter().for_each(|wanted| wanted.apply(&mut model));
            for wanted in &wanted {
                if let Wanted::Put(key, ..) | Wanted::Delete(key) = wanted {
                    assert_holds(&store, key, &model, seed);
                }
            }
            max_segments = max_segments.max(store.value_log().map_or(0, |log| log.segments));
            if random.once_in(20) {
                store.flush(true).unwrap();
            }
        }
        assert_eq!(max_segments > 2, separates, "{max_segments} segments");
        store.close().unwrap();
        // From the WAL.
        let store = Store::open(&directory.path().join("store"), OpenMode::Open, options(separates)).unwrap();
        for number in 0..60 {
            assert_holds(&store, format!("key {number:02}").as_bytes(), &model, seed);
        }
        let mut scan = store.scan(.., crate::Direction::Forward, None).unwrap();
        let mut left = model.iter();
        while let Some(entry) = scan.next_entry().unwrap() {
            let (key, (_, value)) = left.next().unwrap();
            assert_eq!((entry.key, entry.value), (key.as_slice(), value.as_slice()), "seed {seed}");
        }
        assert!(left.next().is_none());
    });
}

/// Nothing of these stays in `batch`.
fn refuse_all(batch: &mut Batch) {
    let before = (batch.len(), batch.size_bytes(), batch.operations().last().map(|last| format!("{last:?}")));
    let long = vec![b'k'; MAX_KEY_BYTES + 2];
    let zero = Attributes { version: Some(0), ..Attributes::NONE };
    assert!(batch.put(&long, b"value").is_err());
    assert!(batch.put_with(b"key 01", b"value", &zero).is_err());
    assert!(batch.delete(&long).is_err());
    assert!(batch.delete_range(&b"a"[..]..&long[..]).is_err());
    batch.delete_range(&b"z"[..]..&b"a"[..]).unwrap();
    batch.delete_range(&b"a"[..]..&b"a"[..]).unwrap();
    let after = (batch.len(), batch.size_bytes(), batch.operations().last().map(|last| format!("{last:?}")));
    assert_eq!(before, after);
}

#[test]
fn of_a_write_that_is_refused_nothing_is_left() {
    let (_directory, store) = store(true);
    let long = [b'v'; 1 << 20];
    store.put(b"kept", &long).unwrap();
    let bytes = || store.value_log().unwrap().bytes;
    let before = bytes();
    let refused = |operations: &mut dyn FnMut() -> Result<()>, field: &str| {
        let error = operations().unwrap_err();
        assert!(matches!(&error, Error::InvalidArgument { field: found, .. } if *found == field), "{error}");
        assert_eq!(bytes(), before, "a value was appended for {field}");
        assert!(store.get(b"first").unwrap().is_none());
        assert_eq!(store.get(b"kept").unwrap().as_deref(), Some(&long[..]));
    };
    let first = [plain(b"first", &long), Operation::Delete { key: b"kept" }];
    let too_long = vec![b'z'; MAX_KEY_BYTES + 2];
    let zero = Attributes { expires_at_ms: Some(0), ..Attributes::NONE };
    let write = |last: Operation<'_>| store.write(first.into_iter().chain([last]), WriteOptions::default());
    refused(&mut || write(Operation::Put { key: b"last", attributes: zero, value: b"" }), "attributes");
    refused(&mut || write(plain(&too_long, b"")), "key");
    refused(&mut || write(Operation::Delete { key: &too_long }), "key");
    refused(&mut || write(Operation::DeleteRange { from: b"a", to: &too_long }), "range");
    let too_many = || std::iter::repeat_n(plain(b"first", &long), MAX_BATCH_BYTES / long.len());
    refused(&mut || store.write(too_many(), WriteOptions::default()), "batch");
    store.write(first, WriteOptions::default()).unwrap();
    assert!(bytes() > before && store.get(b"kept").unwrap().is_none());
    assert_eq!(store.get(b"first").unwrap().as_deref(), Some(&long[..]));
}

#[test]
fn an_empty_batch_is_written_where_writes_are() {
    let (_directory, store) = store(false);
    store.write(&Batch::new(), WriteOptions::default()).unwrap();
    store.write([Operation::DeleteRange { from: b"b", to: b"a" }], WriteOptions::default()).unwrap();
    store.write([Operation::DeleteRange { from: b"a", to: b"a" }], WriteOptions::default()).unwrap();
}
