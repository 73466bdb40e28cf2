//! For which compactions filters are made, and what they are told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Fate, Recording, compact_all};
use crate::common::{Numbers, content, key, small_store};
use ecotone_rocks::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, set_compaction_filter,
};
use ecotone_rocks::tables::live_tables;
use rust_rocksdb::{AsColumnFamilyRef, ColumnFamily, DB, IteratorMode, WaitForCompactOptions};

/// Puts random values, so that the tables are as large as they look, and flushes.
fn put_table(db: &DB, family: &ColumnFamily, keys: std::ops::Range<u64>) {
    let mut numbers = Numbers(keys.start);
    for number in keys {
        db.put_cf(family, key(number), numbers.bytes(200)).expect("writes");
    }
    db.flush_cf(family).expect("flushes");
}

#[test]
fn a_manual_compaction_says_so_and_whether_it_is_full() {
    let recording = Recording::new(|_, _, _| Fate::Keep);
    let directory = tempfile::tempdir().expect("a directory");
    let families = [("default", small_store()), ("other", small_store()), ("data", recording.options())];
    let db = DB::open_cf_with_opts(&small_store(), directory.path(), families).expect("opens");
    let family = db.cf_handle("data").expect("exists");
    assert_ne!(family.id(), 0);
    let expected = |is_full, level| FilterContext {
        column_family_id: family.id(),
        is_full,
        is_manual: true,
        input_level: Some(level),
    };
    put_table(&db, family, 0..2000);
    put_table(&db, family, 0..2000);
    db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
    assert_eq!(recording.take().contexts, [expected(true, 0)]);

    let bottom = live_tables(&db).expect("lists");
    assert!(bottom.len() > 3 && bottom.iter().all(|table| table.level == bottom[0].level), "{bottom:?}");
    put_table(&db, family, 100..110);
    db.compact_range_cf(family, Some(key(100)), Some(key(110)));
    assert_eq!(recording.take().contexts, [expected(false, 0)]);

    db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
    assert_eq!(recording.take().contexts, [expected(true, bottom[0].level)]);
}

#[test]
fn an_automatic_compaction_says_so_and_whether_it_is_full() {
    let recording = Recording::new(|_, _, _| Fate::Keep);
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = recording.options();
    options.set_disable_auto_compactions(false);
    options.set_level_zero_file_num_compaction_trigger(2);
    let db = DB::open_cf_with_opts(&options, directory.path(), [("default", options.clone())]).expect("opens");
    let family = db.cf_handle("default").expect("exists");
    let expected = |is_full| FilterContext { column_family_id: 0, is_full, is_manual: false, input_level: Some(0) };
    // The second needs one table of those that the first made: with none, RocksDB would only move
    // tables.
    for (keys, is_full) in [(2000, true), (10, false)] {
        put_table(&db, family, 0..keys);
        put_table(&db, family, 0..keys);
        db.wait_for_compact(&WaitForCompactOptions::default()).expect("waits");
        let log = recording.take();
        assert_eq!(log.contexts, [expected(is_full)]);
        let seen = log.seen.len() as u64;
        assert!(seen >= keys && is_full == (seen == 2000), "{seen} keys");
        assert!(log.seen.iter().map(|seen| seen.key.clone()).eq((0..seen).map(key)));
    }
}

/// So a filter cannot count on seeing an entry on its way down.
#[test]
fn a_table_that_is_only_moved_is_not_filtered() {
    let recording = Recording::new(|_, _, _| Fate::Remove);
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = recording.options();
    options.set_disable_auto_compactions(false);
    options.set_level_zero_file_num_compaction_trigger(1);
    let db = DB::open(&options, directory.path()).expect("opens");
    db.put(b"key", b"value").expect("writes");
    db.flush().expect("flushes");
    db.wait_for_compact(&WaitForCompactOptions::default()).expect("waits");
    let tables = live_tables(&db).expect("lists");
    assert!(tables.len() == 1 && tables[0].level > 0, "{tables:?}");
    assert!(recording.take().contexts.is_empty());
    assert_eq!(content(&db).len(), 1);
    compact_all(&db);
    assert_eq!(content(&db).len(), 0, "a manual compaction moves nothing unread");
}

#[test]
fn each_subcompaction_has_a_filter_of_its_own() {
    let recording = Recording::new(|_, _, value| Fate::Change(value[..8].to_vec()));
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = recording.options();
    options.set_max_subcompactions(4);
    options.set_max_background_jobs(4);
    let db = DB::open_cf_with_opts(&options, directory.path(), [("default", options.clone())]).expect("opens");
    let family = db.cf_handle("default").expect("exists");
    put_table(&db, family, 0..4000);
    put_table(&db, family, 0..4000);
    let before = content(&db);
    compact_all(&db);

    let log = recording.take();
    assert!(log.contexts.len() > 1, "the compaction was split");
    assert_eq!(log.filters_dropped, log.contexts.len());
    let expected = FilterContext { column_family_id: 0, is_full: true, is_manual: true, input_level: Some(0) };
    assert!(log.contexts.iter().all(|context| *context == expected), "{:?}", log.contexts);
    let mut filters: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for seen in &log.seen {
        filters.entry(seen.filter).or_default().push(seen);
    }
    assert_eq!(filters.len(), log.contexts.len());
    for seen in filters.values() {
        assert!(seen.is_sorted_by(|one, next| one.key < next.key), "in the order of keys");
        assert!(seen.iter().all(|entry| entry.thread == seen[0].thread), "on one thread");
    }
    let mut ranges: Vec<_> = filters.values().map(|seen| (&seen[0].key, &seen[seen.len() - 1].key)).collect();
    ranges.sort();
    assert!(ranges.is_sorted_by(|one, next| one.1 < next.0), "each has a range of its own");
    assert_eq!(log.seen.len(), before.len(), "each key once");
    assert_eq!(log.seen.iter().map(|seen| &seen.key).collect::<BTreeSet<_>>(), before.keys().collect());
    let after = before.into_iter().map(|(key, value)| (key, value[..8].to_vec())).collect();
    assert!(content(&db) == after, "all are changed");
}

/// Filters the default column family only.
struct OnlyDefault {
    recording: Arc<Recording>,
    refused: AtomicU64,
}

impl CompactionFilterFactory for OnlyDefault {
    fn filter(&self, context: FilterContext) -> Option<Box<dyn CompactionFilter>> {
        if context.column_family_id == 0 {
            return self.recording.factory().filter(context);
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        None
    }
}

#[test]
fn a_factory_can_leave_a_compaction_unfiltered() {
    let recording = Recording::new(|_, _, _| Fate::Remove);
    let factory = Arc::new(OnlyDefault { recording: recording.clone(), refused: AtomicU64::new(0) });
    let mut options = small_store();
    set_compaction_filter(&mut options, factory.clone());
    let directory = tempfile::tempdir().expect("a directory");
    let families = [("default", options.clone()), ("data", options.clone())];
    let db = DB::open_cf_with_opts(&options, directory.path(), families).expect("opens");
    for name in ["default", "data"] {
        let family = db.cf_handle(name).expect("exists");
        put_table(&db, family, 0..100);
        db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
    }
    assert_eq!(factory.refused.load(Ordering::SeqCst), 1);
    let log = recording.take();
    assert_eq!((log.contexts.len(), log.seen.len()), (1, 100));
    assert_eq!(db.iterator(IteratorMode::Start).count(), 0);
    let data = db.cf_handle("data").expect("exists");
    assert_eq!(db.iterator_cf(data, IteratorMode::Start).count(), 100, "kept whole");
    assert!(live_tables(&db).expect("lists").iter().all(|table| table.level > 0), "and compacted all the same");
}
