//! Filters that panic: what they had to decide on is kept, and the store lives on.

use std::sync::Arc;

use super::{Fate, Recording, compact_all};
use crate::common::{Model, Numbers, content, key, small_store};
use ecotone_rocks::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, Verdict, set_compaction_filter,
};
use ecotone_rocks::contained_failures;
use ecotone_rocks::tables::live_tables;
use rust_rocksdb::{DB, Options};

const KEYS: u64 = 4000;

/// Two overlapping tables of random values.
fn filled(options: &Options, directory: &std::path::Path) -> (DB, Model) {
    let db = DB::open(options, directory).expect("opens");
    let mut numbers = Numbers(1);
    for _ in 0..2 {
        for number in 0..KEYS {
            db.put(key(number), numbers.bytes(200)).expect("writes");
        }
        db.flush().expect("flushes");
    }
    let model = content(&db);
    (db, model)
}

fn assert_compacted(db: &DB) {
    assert!(live_tables(db).expect("lists").iter().all(|table| table.level > 0), "the compaction went through");
    db.put(b"later", b"value").expect("the store takes writes");
    db.flush().expect("flushes");
    db.delete(b"later").expect("deletes");
}

/// A store that was filled and then compacted while a filter panicked, and what it held before.
fn compacted_despite_a_panic(options: &Options, directory: &std::path::Path) -> (DB, Model) {
    let (db, model) = filled(options, directory);
    let failures = contained_failures();
    compact_all(&db);
    assert!(contained_failures().filter_panics > failures.filter_panics);
    assert_compacted(&db);
    (db, model)
}

struct NoFilter;

impl CompactionFilterFactory for NoFilter {
    fn filter(&self, _context: FilterContext) -> Option<Box<dyn CompactionFilter>> {
        panic!("struck forcibly")
    }
}

#[test]
fn a_factory_that_panics_leaves_the_compaction_unfiltered() {
    let mut options = small_store();
    set_compaction_filter(&mut options, Arc::new(NoFilter));
    let directory = tempfile::tempdir().expect("a directory");
    let (db, model) = compacted_despite_a_panic(&options, directory.path());
    assert!(content(&db) == model, "all is kept");
}

#[test]
fn after_a_panic_a_filter_keeps_everything() {
    for fault in [0, 1, KEYS / 2, KEYS - 1] {
        let recording = Recording::new(move |_, its, _| {
            assert_ne!(its, key(fault), "struck forcibly");
            Fate::Change(b"changed".to_vec())
        });
        let directory = tempfile::tempdir().expect("a directory");
        let (db, model) = compacted_despite_a_panic(&recording.options(), directory.path());
        let expected = model
            .into_iter()
            .map(|(its, value)| if its < key(fault) { (its, b"changed".to_vec()) } else { (its, value) })
            .collect();
        assert!(content(&db) == expected, "changed before {fault}, kept from there on");
        let log = recording.take();
        assert_eq!(log.seen.len() as u64, fault + 1, "it is not asked again");
        assert_eq!((log.contexts.len(), log.filters_dropped), (1, 1));
    }
}

#[test]
fn a_panic_in_one_subcompaction_leaves_the_others_filtered() {
    let recording = Recording::new(|_, its, _| {
        assert_ne!(its, key(0), "struck forcibly");
        Fate::Change(b"changed".to_vec())
    });
    let mut options = recording.options();
    options.set_max_subcompactions(4);
    options.set_max_background_jobs(4);
    let directory = tempfile::tempdir().expect("a directory");
    let (db, mut model) = filled(&options, directory.path());
    compact_all(&db);
    assert_compacted(&db);
    let log = recording.take();
    assert!(log.contexts.len() > 1, "the compaction was split");
    assert_eq!(log.filters_dropped, log.contexts.len());
    assert!(log.seen.iter().any(|seen| seen.key == key(KEYS - 1)) && log.seen.iter().all(|seen| seen.key != key(1)));
    for seen in log.seen.iter().filter(|seen| seen.key != key(0)) {
        model.insert(seen.key.clone(), b"changed".to_vec());
    }
    assert!(content(&db) == model, "what was asked for is changed");
}

/// Gives a value that RocksDB would call corruption, and stop all writes for. Its pages are never
/// touched.
struct TooLong(Vec<u8>);

impl CompactionFilter for TooLong {
    fn decide(&mut self, _level: u32, _key: &[u8], _value: &[u8]) -> Verdict<'_> {
        Verdict::Change(&self.0)
    }
}

struct TooLongFactory;

impl CompactionFilterFactory for TooLongFactory {
    fn filter(&self, _context: FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(TooLong(vec![0; 1 << 32])))
    }
}

#[test]
fn a_value_that_is_too_long_counts_as_a_panic() {
    let mut options = small_store();
    set_compaction_filter(&mut options, Arc::new(TooLongFactory));
    let directory = tempfile::tempdir().expect("a directory");
    let (db, model) = compacted_despite_a_panic(&options, directory.path());
    assert!(content(&db) == model, "all is kept");
}

struct PanicsAtItsEnd;

impl CompactionFilter for PanicsAtItsEnd {
    fn decide(&mut self, _level: u32, _key: &[u8], _value: &[u8]) -> Verdict<'_> {
        Verdict::Change(b"changed")
    }
}

impl Drop for PanicsAtItsEnd {
    fn drop(&mut self) {
        panic!("struck forcibly");
    }
}

struct PanicsAtItsEndFactory;

impl CompactionFilterFactory for PanicsAtItsEndFactory {
    fn filter(&self, _context: FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(PanicsAtItsEnd))
    }
}

#[test]
fn a_filter_that_panics_when_dropped_has_decided_nevertheless() {
    let mut options = small_store();
    set_compaction_filter(&mut options, Arc::new(PanicsAtItsEndFactory));
    let directory = tempfile::tempdir().expect("a directory");
    let (db, _) = filled(&options, directory.path());
    let failures = contained_failures();
    compact_all(&db);
    assert!(contained_failures() != failures, "the failure is counted");
    assert_compacted(&db);
    assert!(content(&db).values().all(|value| value == b"changed"));
}

#[test]
fn nothing_outlives_the_store_and_its_options() {
    let [replaced, recording] = [(); 2].map(|()| Recording::new(|_, _, _| Fate::Keep));
    let mut options = replaced.options();
    set_compaction_filter(&mut options, recording.factory());
    assert_eq!(Arc::strong_count(&replaced), 1, "a factory that is replaced ends");
    let directory = tempfile::tempdir().expect("a directory");
    let (db, _) = filled(&options, directory.path());
    compact_all(&db);
    assert_eq!(recording.take().seen.len() as u64, KEYS);
    drop(options);
    assert!(Arc::strong_count(&recording) > 1, "the store needs its factory");
    drop(db);
    assert_eq!(Arc::strong_count(&recording), 1);
}
