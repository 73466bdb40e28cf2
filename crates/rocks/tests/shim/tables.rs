//! Collectors and table metadata, as the space accounting of a store uses them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::common::{key, small_store};
use ecotone_rocks::properties::{
    ENTRIES_AT_A_TIME, EntryKind, TableCollector, TableCollectorFactory, TableContext, add_table_collector,
};
use ecotone_rocks::tables::{FamilyTable, collected_properties, family_tables, live_tables};
use rust_rocksdb::{DB, WriteBatch};

/// Counts the bytes that a table refers to in each "segment": the first byte of a value is the
/// segment's number.
#[derive(Default)]
struct References {
    bytes: BTreeMap<u8, u64>,
    kinds: BTreeMap<&'static str, u64>,
    last_sequence: u64,
}

impl TableCollector for References {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, sequence: u64, _file_bytes: u64) {
        assert!(key.starts_with(b"key"));
        self.last_sequence = self.last_sequence.max(sequence);
        let name = match kind {
            EntryKind::Put => "put",
            EntryKind::Delete => "delete",
            EntryKind::SingleDelete => "single",
            EntryKind::RangeDelete => "range",
            _ => "other",
        };
        *self.kinds.entry(name).or_default() += 1;
        if kind == EntryKind::Put {
            *self.bytes.entry(value[0]).or_default() += value.len() as u64;
        }
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        let segments = self.bytes.iter().map(|(segment, bytes)| (format!("test.segment.{segment}"), bytes.to_string()));
        let kinds = self.kinds.iter().map(|(kind, count)| (format!("test.kind.{kind}"), count.to_string()));
        let sequence = [("test.sequence".to_owned(), self.last_sequence.to_string())];
        segments.chain(kinds).chain(sequence).map(|(name, value)| (name, value.into_bytes())).collect()
    }
}

#[derive(Default)]
struct ReferencesFactory(Mutex<Vec<TableContext>>);

impl TableCollectorFactory for ReferencesFactory {
    fn collector(&self, context: TableContext) -> Option<Box<dyn TableCollector>> {
        self.0.lock().expect("not poisoned").push(context);
        Some(Box::<References>::default())
    }
}

fn sum(db: &DB, name: &str) -> u64 {
    let family = db.cf_handle("data").expect("exists");
    collected_properties(db, family, "test.")
        .expect("reads properties")
        .iter()
        .filter_map(|table| table.properties.get(name))
        .map(|value| String::from_utf8_lossy(value).parse::<u64>().expect("a number"))
        .sum()
}

#[test]
fn references_to_segments_are_known_from_the_tables_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let factory = Arc::new(ReferencesFactory::default());
    let mut data = small_store();
    add_table_collector(&mut data, factory.clone());
    let open = || {
        let families = [("default", small_store()), ("data", data.clone())];
        DB::open_cf_with_opts(&small_store(), directory.path(), families).expect("opens")
    };
    let db = open();
    let family = db.cf_handle("data").expect("exists");
    for number in 0..1000 {
        let mut value = vec![0; 100];
        value[0] = (number % 4) as u8;
        db.put_cf(family, key(number), value).expect("writes");
    }
    db.flush_cf(family).expect("flushes");
    assert_eq!((0..4).map(|segment| sum(&db, &format!("test.segment.{segment}"))).collect::<Vec<_>>(), [25_000; 4]);
    assert_eq!(sum(&db, "test.sequence"), 1000);

    // Segment 0 loses half of its values to newer ones in segment 9, and segment 1 all of its own.
    for number in (0..1000).step_by(8) {
        db.put_cf(family, key(number), [&[9][..], &[0; 49]].concat()).expect("writes");
    }
    let mut batch = WriteBatch::default();
    for number in (1..1000).step_by(4) {
        batch.delete_cf(family, key(number));
    }
    batch.delete_range_cf(family, key(2000), key(3000));
    db.write(&batch).expect("deletes");
    db.flush_cf(family).expect("flushes");
    assert_eq!(sum(&db, "test.kind.delete"), 250);
    assert_eq!(sum(&db, "test.kind.range"), 1);
    assert_eq!(sum(&db, "test.segment.0"), 25_000, "garbage still counts until a compaction meets it");
    db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
    assert_eq!(sum(&db, "test.segment.0"), 12_500);
    assert_eq!(sum(&db, "test.segment.1"), 0);
    assert_eq!(sum(&db, "test.segment.9"), 6_250);
    assert_eq!(sum(&db, "test.kind.delete"), 0);

    let contexts = factory.0.lock().expect("not poisoned").clone();
    assert!(
        contexts.contains(&TableContext { column_family_id: Some(family_id(&db)), level: Some(0) }),
        "{contexts:?}"
    );
    assert!(contexts.iter().any(|context| context.level.is_some_and(|level| level > 0)), "{contexts:?}");
    drop(db);
    assert_eq!(sum(&open(), "test.segment.2"), 25_000, "also after it is opened again");
}

/// Wants all of every other group of entries, and of the others those that no key is likely to be.
#[derive(Default)]
struct EveryOther {
    groups: u64,
    entries: u64,
}

impl TableCollector for EveryOther {
    fn begin(&mut self) -> u64 {
        self.groups += 1;
        if self.groups.is_multiple_of(2) { u64::MAX } else { 0 }
    }

    fn add(&mut self, _key: &[u8], _value: &[u8], _kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        self.entries += 1;
        assert!(!self.groups.is_multiple_of(2), "its key has no hash without any bit");
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        let counts = [("test.groups", self.groups), ("test.entries", self.entries)];
        counts.map(|(name, count)| (name.to_owned(), count.to_string().into_bytes())).into()
    }
}

impl TableCollectorFactory for EveryOther {
    fn collector(&self, _context: TableContext) -> Option<Box<dyn TableCollector>> {
        Some(Box::<Self>::default())
    }
}

#[test]
fn a_collector_sees_the_entries_that_it_asks_for() {
    let whole = u64::from(ENTRIES_AT_A_TIME);
    for (entries, expected) in
        [(1, [1, 1]), (whole, [1, whole]), (whole + 1, [2, whole]), (whole * 2 + 10, [3, whole + 10])]
    {
        let directory = tempfile::tempdir().expect("a directory");
        let mut options = small_store();
        add_table_collector(&mut options, Arc::new(EveryOther::default()));
        let db = DB::open_cf_with_opts(&small_store(), directory.path(), [("data", options)]).expect("opens");
        let family = db.cf_handle("data").expect("exists");
        for number in 0..entries {
            db.put_cf(family, key(number), b"value").expect("writes");
        }
        db.flush_cf(family).expect("flushes");
        assert_eq!(["test.groups", "test.entries"].map(|name| sum(&db, name)), expected);
    }
}

fn family_id(db: &DB) -> u32 {
    use rust_rocksdb::AsColumnFamilyRef;
    db.cf_handle("data").expect("exists").id()
}

#[test]
fn each_live_table_is_described() {
    let directory = tempfile::tempdir().expect("a directory");
    let db = DB::open(&small_store(), directory.path()).expect("opens");
    assert_eq!(live_tables(&db).expect("lists"), []);
    for number in 0..300 {
        db.put(key(number), [7; 50]).expect("writes");
    }
    for number in 290..300 {
        db.delete(key(number)).expect("deletes");
    }
    let snapshot = db.snapshot();
    db.flush().expect("flushes");
    drop(snapshot);
    let tables = live_tables(&db).expect("lists");
    assert_eq!(tables.len(), 1);
    let table = &tables[0];
    assert_eq!(table.name, format!("{:06}.sst", table.file_number));
    let path = table.directory.join(&table.name);
    assert_eq!(table.bytes, std::fs::metadata(&path).expect("exists").len());
    assert_eq!((table.level, table.column_family.as_str()), (0, "default"));
    assert_eq!((table.smallest_user_key.clone(), table.largest_user_key.clone()), (key(0), key(299)));
    assert_eq!((table.smallest_seqno, table.largest_seqno), (1, 310));
    // Values that a deletion in the same memtable shadows are gone already.
    assert_eq!((table.entries, table.deletions), (300, 10));
    assert_eq!((table.reads_sampled, table.being_compacted), (0, false));
    let checksum = ecotone_rocks::verify::file_checksum(&path).expect("reads");
    assert_eq!(table.file_checksum, checksum, "our checksum of a file is RocksDB's");
    assert_eq!(table.file_checksum_function, ecotone_rocks::verify::FILE_CHECKSUM_FUNCTION);
    assert!(table.created_s > 1_500_000_000);

    // One of 1024 reads is sampled.
    for _ in 0..200_000 {
        db.get(key(5)).expect("reads");
    }
    let sampled = live_tables(&db).expect("lists")[0].reads_sampled;
    assert!((50_000..800_000).contains(&sampled), "{sampled}");
}

#[test]
fn the_tables_of_one_family_are_told_as_those_of_all_are() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = small_store();
    options.create_missing_column_families(true);
    let mut db = DB::open_cf(&options, directory.path(), ["other"]).expect("opens");
    db.create_cf("empty", &options).expect("creates");
    for family in ["default", "other"] {
        let handle = db.cf_handle(family).expect("is there");
        for round in 0..5 {
            for number in round * 50..round * 50 + 100 {
                db.put_cf(&handle, [family.as_bytes(), &key(number)].concat(), [7; 50]).expect("writes");
            }
            db.flush_cf(&handle).expect("flushes");
            if round == 2 {
                db.compact_range_cf(&handle, None::<&[u8]>, None::<&[u8]>);
            }
        }
    }
    let mut levels = Vec::new();
    for family in ["default", "other", "empty"] {
        let handle = db.cf_handle(family).expect("is there");
        let mut tables = family_tables(&db, &handle).expect("lists");
        let of_family = live_tables(&db).expect("lists").into_iter().filter(|table| table.column_family == family);
        let mut expected: Vec<_> = of_family
            .map(|table| FamilyTable {
                file_number: table.file_number,
                level: table.level,
                bytes: table.bytes,
                smallest_user_key: table.smallest_user_key,
                largest_user_key: table.largest_user_key,
                entries: table.entries,
                deletions: table.deletions,
                being_compacted: table.being_compacted,
            })
            .collect();
        levels.extend(tables.iter().map(|table| table.level));
        tables.sort_by_key(|table| table.file_number);
        expected.sort_by_key(|table| table.file_number);
        assert_eq!(tables, expected);
        assert_eq!(tables.is_empty(), family == "empty");
    }
    levels.sort_unstable();
    levels.dedup();
    assert!(levels.len() > 1, "more than one level: {levels:?}");
}
