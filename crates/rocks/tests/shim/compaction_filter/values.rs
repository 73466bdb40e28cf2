//! Which entries a filter is asked for, and what becomes of them.

use std::sync::Arc;

use super::{Fate, Recording, compact_all};
use crate::common::{content, small_store};
use ecotone_rocks::properties::{EntryKind, TableCollector, TableCollectorFactory, TableContext, add_table_collector};
use ecotone_rocks::tables::{collected_properties, live_tables};
use rust_rocksdb::{CompactOptions, DB, MergeOperands, Options, WriteBatch};

/// Each level is compacted into the next, and the last into itself.
const LEVELS: i32 = 4;

fn levelled(mut options: Options) -> Options {
    options.set_num_levels(LEVELS);
    options.set_level_compaction_dynamic_level_bytes(false);
    options
}

/// For each level, a key that is removed as that level is compacted; older versions of all keys lie
/// at the bottom.
#[test]
fn values_are_changed_removed_and_kept_at_each_level() {
    let keys = ["changed", "kept", "removed at 0", "removed at 1", "removed at 2", "removed at 3"];
    let directory = tempfile::tempdir().expect("a directory");
    let db = DB::open(&levelled(small_store()), directory.path()).expect("opens");
    for key in keys {
        db.put(key, b"old").expect("writes");
    }
    let mut to_the_bottom = CompactOptions::default();
    to_the_bottom.set_change_level(true);
    to_the_bottom.set_target_level(LEVELS - 1);
    db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &to_the_bottom);
    drop(db);

    let recording = Recording::new(|level, key, value| {
        if key == b"changed" {
            Fate::Change([value, level.to_string().as_bytes()].concat())
        } else if key == format!("removed at {level}").as_bytes() {
            Fate::Remove
        } else {
            Fate::Keep
        }
    });
    let db = DB::open(&levelled(recording.options()), directory.path()).expect("opens");
    assert!(live_tables(&db).expect("lists").iter().all(|table| table.level == 3), "the old values are at the bottom");
    for key in keys {
        db.put(key, b"new").expect("writes");
    }
    compact_all(&db);
    let seen = recording.take().seen;
    for (level, gone) in [(0, 0), (1, 1), (2, 2)] {
        let at_level = seen.iter().filter(|seen| seen.level == level);
        let expected: Vec<&str> = keys[..2].iter().chain(&keys[2 + gone..]).copied().collect();
        let found: Vec<_> = at_level.map(|seen| String::from_utf8_lossy(&seen.key)).collect();
        assert_eq!(found, expected, "level {level}");
    }
    assert!(seen.iter().all(|seen| seen.level < 3 && seen.value.starts_with(b"new")), "{seen:?}");
    let expected = [("changed", "new012"), ("kept", "new"), ("removed at 3", "new")];
    assert_eq!(content(&db), model(&expected), "nothing old came back");

    compact_all(&db);
    assert!(recording.take().seen.iter().all(|seen| seen.level == 3));
    let expected = model(&[("changed", "new0123"), ("kept", "new")]);
    assert_eq!(content(&db), expected);
    drop(db);
    let db = DB::open(&levelled(small_store()), directory.path()).expect("opens without the filter");
    assert_eq!(content(&db), expected);
}

fn model(entries: &[(&str, &str)]) -> crate::common::Model {
    entries.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

#[test]
fn flushes_and_recovery_ask_nobody() {
    let recording = Recording::new(|_, _, _| Fate::Change(b"changed".to_vec()));
    let directory = tempfile::tempdir().expect("a directory");
    let db = DB::open(&recording.options(), directory.path()).expect("opens");
    db.put(b"flushed", b"1").expect("writes");
    db.put(b"flushed", b"2").expect("writes");
    db.flush().expect("flushes");
    db.put(b"recovered", b"3").expect("writes");
    drop(db);
    let db = DB::open(&recording.options(), directory.path()).expect("opens");
    assert_eq!(live_tables(&db).expect("lists").len(), 2, "recovery wrote a table");
    assert_eq!(content(&db), model(&[("flushed", "2"), ("recovered", "3")]));
    let log = recording.take();
    assert!(log.contexts.is_empty() && log.seen.is_empty(), "{log:?}");

    compact_all(&db);
    assert_eq!(recording.take().entries(), [(&b"flushed"[..], &b"2"[..]), (b"recovered", b"3")]);
    assert_eq!(content(&db), model(&[("flushed", "changed"), ("recovered", "changed")]));
}

fn concatenate(_key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands) -> Option<Vec<u8>> {
    Some(existing.into_iter().chain(operands).flatten().copied().collect())
}

#[test]
fn only_the_newest_plain_value_of_a_key_comes() {
    let recording = Recording::new(|_, _, _| Fate::Change(b"changed".to_vec()));
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = recording.options();
    options.set_merge_operator_associative("concatenate", concatenate);
    let db = DB::open(&options, directory.path()).expect("opens");
    for key in ["deleted", "single", "value"] {
        db.put(key, b"old").expect("writes");
    }
    // Keeps these through the compaction.
    let snapshot = db.snapshot();
    db.put(b"extended", b"base").expect("writes");
    // Else the flush would merge that with what follows, and a plain value would come.
    db.flush().expect("flushes");
    db.merge(b"extended", b" and more").expect("merges");
    db.merge(b"operands", b"one, ").expect("merges");
    db.merge(b"operands", b"two").expect("merges");
    db.delete(b"deleted").expect("deletes");
    db.single_delete(b"single").expect("deletes");
    let mut batch = WriteBatch::default();
    batch.delete_range(b"x", b"y");
    db.write(&batch).expect("deletes");
    db.put(b"value", b"newer").expect("writes");
    db.put(b"value", b"newest").expect("writes");
    compact_all(&db);

    assert_eq!(recording.take().entries(), [(&b"value"[..], &b"newest"[..])]);
    let expected = model(&[("extended", "base and more"), ("operands", "one, two"), ("value", "changed")]);
    assert_eq!(content(&db), expected);
    for key in ["deleted", "single", "value"] {
        assert_eq!(snapshot.get(key).expect("reads").as_deref(), Some(&b"old"[..]), "{key} as the snapshot sees it");
    }
}

/// So a filter may change only what means the same to each reader.
#[test]
fn a_snapshot_does_not_protect_the_value_it_sees() {
    let recording = Recording::new(|_, key, _| match key {
        b"changed" => Fate::Change(b"changed".to_vec()),
        _ => Fate::Remove,
    });
    let directory = tempfile::tempdir().expect("a directory");
    let db = DB::open(&recording.options(), directory.path()).expect("opens");
    db.put(b"changed", b"value").expect("writes");
    db.put(b"removed", b"value").expect("writes");
    let snapshot = db.snapshot();
    compact_all(&db);
    assert_eq!(snapshot.get(b"changed").expect("reads").as_deref(), Some(&b"changed"[..]));
    assert_eq!(snapshot.get(b"removed").expect("reads"), None);
}

#[test]
fn keys_and_values_of_any_length_pass_through() {
    let long = vec![7; 3 << 20];
    let changes = [
        (b"".to_vec(), b"".to_vec(), b"grown".to_vec()),
        (b"emptied".to_vec(), b"value".to_vec(), b"".to_vec()),
        (b"long".to_vec(), b"short".to_vec(), long.clone()),
        (b"short".to_vec(), long, b"short".to_vec()),
        (vec![0xff; 5000], b"\0".to_vec(), b"\0\0".to_vec()),
    ];
    let expected = changes.clone();
    let recording = Recording::new(move |_, key, value| {
        let change = changes.iter().find(|(its, before, _)| its == key && before == value);
        change.map_or(Fate::Keep, |(_, _, after)| Fate::Change(after.clone()))
    });
    let directory = tempfile::tempdir().expect("a directory");
    let db = DB::open(&recording.options(), directory.path()).expect("opens");
    db.put(b"empty", b"").expect("writes");
    for (key, before, _) in &expected {
        db.put(key, before).expect("writes");
    }
    compact_all(&db);
    let mut model: crate::common::Model = expected.into_iter().map(|(key, _, after)| (key, after)).collect();
    model.insert(b"empty".to_vec(), Vec::new());
    assert!(content(&db) == model, "each as it was changed");
    assert_eq!(recording.take().seen.len(), model.len());

    // A key that is empty can be removed, too.
    let removing = Recording::new(|_, key, _| if key.is_empty() { Fate::Remove } else { Fate::Keep });
    drop(db);
    let db = DB::open(&removing.options(), directory.path()).expect("opens");
    compact_all(&db);
    model.remove(&b""[..]);
    assert!(content(&db) == model, "only that one is gone");
}

/// Adds up the values of a table.
struct ValueBytes(u64);

impl TableCollector for ValueBytes {
    fn add(&mut self, _key: &[u8], value: &[u8], kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        assert_eq!(kind, EntryKind::Put);
        self.0 += value.len() as u64;
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        vec![("test.value_bytes".to_owned(), self.0.to_string().into_bytes())]
    }
}

struct ValueBytesFactory;

impl TableCollectorFactory for ValueBytesFactory {
    fn collector(&self, _context: TableContext) -> Option<Box<dyn TableCollector>> {
        Some(Box::new(ValueBytes(0)))
    }
}

#[test]
fn table_collectors_see_what_was_decided() {
    let recording = Recording::new(|_, key, _| match key {
        b"removed" => Fate::Remove,
        _ => Fate::Change(vec![1; 100]),
    });
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = recording.options();
    add_table_collector(&mut options, Arc::new(ValueBytesFactory));
    let db = DB::open_cf_with_opts(&options, directory.path(), [("default", options.clone())]).expect("opens");
    db.put(b"changed", b"value").expect("writes");
    db.put(b"removed", b"value").expect("writes");
    let sum = || {
        db.flush().expect("flushes");
        let family = db.cf_handle("default").expect("exists");
        let tables = collected_properties(&db, family, "test.").expect("reads properties");
        assert_eq!(tables.len(), 1);
        String::from_utf8_lossy(&tables[0].properties["test.value_bytes"]).into_owned()
    };
    assert_eq!(sum(), "10");
    compact_all(&db);
    assert_eq!(sum(), "100");
}
