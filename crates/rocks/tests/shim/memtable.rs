//! Memtables that are trees: the answers of a map, also while somebody writes.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ecotone_rocks::memtable;
use rust_rocksdb::{DB, Direction, IteratorMode, Options, ReadOptions, WriteBatch};

use crate::common::{Model, Numbers};

/// Nothing of what a test writes is flushed before it says so.
const MEMTABLE_BYTES: usize = 256 << 20;

fn tree_store(directory: &std::path::Path) -> DB {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_write_buffer_size(MEMTABLE_BYTES);
    memtable::use_tree(&mut options);
    DB::open(&options, directory).unwrap()
}

/// Makes a key of the number of an insertion.
type MakeKey = fn(&mut Numbers, u64) -> Vec<u8>;

/// What makes keys hard: in their order, against it, all alike for long, few and often, short with
/// zeros, long beyond one byte of length.
const KINDS: [(&str, MakeKey); 8] = [
    ("random", |numbers, _| numbers.bytes(16)),
    ("ascending", |_, number| number.to_be_bytes().to_vec()),
    ("descending", |_, number| (u64::MAX - number).to_be_bytes().to_vec()),
    ("alike", |numbers, _| format!("collection/of/somebody/{:06}", numbers.below(30_000)).into_bytes()),
    ("few", |numbers, _| vec![b'a'; numbers.below(5) as usize]),
    ("zeros", |numbers, _| {
        let len = numbers.below(14) as usize;
        (0..len).map(|_| numbers.below(2) as u8).collect()
    }),
    ("long", |numbers, _| {
        let mut key = vec![b'x'; 150];
        key.extend(numbers.below(100_000).to_be_bytes());
        key.extend(vec![b'y'; numbers.below(200) as usize]);
        key
    }),
    ("two ranges", |numbers, number| {
        let mut key = if number % 2 == 0 { b"first".to_vec() } else { b"second".to_vec() };
        key.extend(numbers.below(5_000).to_be_bytes());
        key
    }),
];

fn all(db: &DB, mode: IteratorMode<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    db.iterator(mode).map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

fn compare(name: &str, db: &DB, model: &Model, numbers: &mut Numbers, make: MakeKey) {
    let entries: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert!(all(db, IteratorMode::Start) == entries, "{name}: forwards");
    assert!(all(db, IteratorMode::End).into_iter().rev().eq(entries), "{name}: backwards");
    for number in 0..200 {
        let number = numbers.below(1 + 20 * number);
        let target = make(numbers, number);
        assert_eq!(db.get(&target).unwrap().as_ref(), model.get(&target), "{name}");
        let after = db.iterator(IteratorMode::From(&target, Direction::Forward)).next().map(|entry| entry.unwrap().0);
        assert_eq!(after.as_deref(), model.range(target.clone()..).next().map(|(key, _)| key.as_slice()), "{name}");
        let before = db.iterator(IteratorMode::From(&target, Direction::Reverse)).next().map(|entry| entry.unwrap().0);
        let expected = model.range(..=target.clone()).next_back().map(|(key, _)| key.as_slice());
        assert_eq!(before.as_deref(), expected, "{name}");
    }
}

#[test]
fn a_tree_answers_as_a_map_does_in_memory_and_when_it_is_flushed() {
    const WRITES: u64 = 6_000;
    for (seed, (name, make)) in (1..).zip(KINDS) {
        let directory = tempfile::tempdir().unwrap();
        let db = tree_store(directory.path());
        let (mut numbers, mut model) = (Numbers(seed), BTreeMap::new());
        for number in 0..WRITES {
            let key = make(&mut numbers, number);
            if numbers.below(5) == 0 {
                db.delete(&key).unwrap();
                model.remove(&key);
            } else {
                let value = number.to_le_bytes().to_vec();
                db.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            // Sizes at which nodes have just been split, and others.
            if number < 40 || number % 1500 == 0 {
                compare(name, &db, &model, &mut numbers, make);
            }
        }
        compare(name, &db, &model, &mut numbers, make);
        assert_eq!(db.property_int_value("rocksdb.num-entries-active-mem-table").unwrap(), Some(WRITES));
        // RocksDB refuses tables whose keys are out of order, and counts what it finds in the
        // memtable.
        db.flush().unwrap();
        compare(name, &db, &model, &mut numbers, make);
    }
}

/// The order in which one writer inserts, and readers ask.
fn distinct(make: MakeKey, seed: u64) -> Vec<Vec<u8>> {
    const MAX: u64 = 60_000;
    let mut numbers = Numbers(seed);
    let mut known = std::collections::BTreeSet::new();
    (0..MAX).map(|number| make(&mut numbers, number)).filter(|key| known.insert(key.clone())).collect()
}

#[test]
fn readers_beside_a_writer_miss_nothing_and_see_everything_in_its_order() {
    for (seed, (name, make)) in (1..).zip(KINDS) {
        let directory = tempfile::tempdir().unwrap();
        let db = tree_store(directory.path());
        let keys = distinct(make, seed);
        let (written, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|reader| {
                    let (db, keys, written, is_over) = (&db, &keys, &written, &is_over);
                    scope.spawn(move || {
                        let mut numbers = Numbers(reader);
                        while !is_over.load(Ordering::SeqCst) {
                            let before = written.load(Ordering::SeqCst);
                            if before > 0 {
                                read(name, db, &keys[..before], &mut numbers);
                            }
                        }
                    })
                })
                .collect();
            for (number, key) in keys.iter().enumerate() {
                db.put(key, b"").unwrap();
                written.store(number + 1, Ordering::SeqCst);
                if readers.iter().any(|reader| reader.is_finished()) {
                    break;
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
        read(name, &db, &keys, &mut Numbers(seed));
    }
}

/// Looks whether all of `written` are there, by one of the ways.
fn read(name: &str, db: &DB, written: &[Vec<u8>], numbers: &mut Numbers) {
    let any = |numbers: &mut Numbers| &written[numbers.below(written.len() as u64) as usize];
    match numbers.below(4) {
        0 => (0..200).for_each(|_| assert!(db.get(any(numbers)).unwrap().is_some(), "{name}")),
        1 | 2 => {
            let forwards = numbers.below(2) == 0;
            let mut seen = db.raw_iterator_opt(ReadOptions::default());
            let (mut count, mut last) = (0, None::<Vec<u8>>);
            if forwards {
                seen.seek_to_first()
            } else {
                seen.seek_to_last()
            }
            while let Some(key) = seen.key() {
                let is_behind = last.as_deref().is_none_or(|last| if forwards { last < key } else { last > key });
                assert!(is_behind, "{name}: order");
                last = Some(key.to_vec());
                count += 1;
                if forwards { seen.next() } else { seen.prev() }
            }
            seen.status().unwrap();
            assert!(count >= written.len(), "{name}: {count} of {}", written.len());
        }
        _ => {
            let mut seen = db.raw_iterator_opt(ReadOptions::default());
            for _ in 0..50 {
                // To and fro over the borders of nodes.
                let key = any(numbers);
                seen.seek(key);
                assert_eq!(seen.key(), Some(key.as_slice()), "{name}");
                let steps = numbers.below(40);
                let mut taken = 0;
                while taken < steps && seen.valid() {
                    seen.next();
                    taken += 1;
                }
                if !seen.valid() {
                    seen.seek_to_last();
                    taken = 0;
                }
                let far = seen.key().unwrap().to_vec();
                (0..taken).for_each(|_| seen.prev());
                assert!(seen.key().unwrap() <= far.as_slice(), "{name}");
                seen.seek_for_prev(key);
                assert_eq!(seen.key(), Some(key.as_slice()), "{name}");
            }
        }
    }
}

/// `tests/memtable_tree` is in C++: RocksDB gives nobody a hand in the midst of an operation.
#[test]
fn the_tree_by_itself_answers_as_a_set_does_also_in_the_midst_of_insertions() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/memtable_tree/main.cc");
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("memtable_tree");
    // The compiler that has built RocksDB.
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let compiled = Command::new(compiler).args(["-std=c++20", "-O2", source, "-o"]).arg(&program).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = Command::new(&program).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn reads_that_check_what_they_meet_find_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let db = tree_store(directory.path());
    (0..5_000_u32).for_each(|key| db.put(key.to_be_bytes(), b"value").unwrap());
    // Options that anybody may set while the store is open.
    for option in ["paranoid_memory_checks", "memtable_verify_per_key_checksum_on_seek"] {
        db.set_options(&[(option, "true")]).unwrap();
        assert_eq!(db.get(77_u32.to_be_bytes()).unwrap().as_deref(), Some(&b"value"[..]), "{option}");
        assert!(db.get(77_777_u32.to_be_bytes()).unwrap().is_none());
        assert_eq!(all(&db, IteratorMode::Start).len(), 5_000, "{option}");
        assert_eq!(all(&db, IteratorMode::End).len(), 5_000, "{option}");
        db.set_options(&[(option, "false")]).unwrap();
    }
}

#[test]
fn deletions_of_ranges_hold_beside_entries_and_many_are_read_together() {
    let directory = tempfile::tempdir().unwrap();
    let db = tree_store(directory.path());
    (0..2_000_u32).for_each(|key| db.put(key.to_be_bytes(), b"").unwrap());
    let mut batch = WriteBatch::default();
    batch.delete_range(500_u32.to_be_bytes(), 1_500_u32.to_be_bytes());
    db.write(&batch).unwrap();
    db.put(1_000_u32.to_be_bytes(), b"again").unwrap();
    let left: Vec<u32> = (0..500).chain([1_000]).chain(1_500..2_000).collect();
    let keys = all(&db, IteratorMode::Start).into_iter().map(|(key, _)| key);
    assert!(keys.eq(left.iter().map(|key| key.to_be_bytes().to_vec())));
    let found = db.multi_get((0..2_000_u32).map(u32::to_be_bytes)).into_iter().map(|found| found.unwrap().is_some());
    assert!(found.eq((0..2_000).map(|key| left.binary_search(&key).is_ok())));
}

#[test]
fn a_store_with_trees_can_be_opened_without_and_the_other_way_round() {
    let directory = tempfile::tempdir().unwrap();
    let plain = Options::default();
    for round in 0..4_u32 {
        let with_tree = || tree_store(directory.path());
        let db = if round % 2 == 0 { with_tree() } else { DB::open(&plain, directory.path()).unwrap() };
        for key in 0..round * 100 {
            // What the log has is inserted anew.
            assert!(db.get(key.to_be_bytes()).unwrap().is_some(), "{round}: {key}");
        }
        (round * 100..(round + 1) * 100).for_each(|key| db.put(key.to_be_bytes(), b"").unwrap());
    }
    let options: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("OPTIONS-"))
        .collect();
    assert!(!options.is_empty());
    for path in options {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("memtable_factory=SkipListFactory"), "{text}");
    }
}

#[test]
fn keys_that_are_ordered_otherwise_get_a_skip_list() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_comparator("backwards", Box::new(|one: &[u8], other: &[u8]| other.cmp(one)));
    memtable::use_tree(&mut options);
    let db = DB::open(&options, directory.path()).unwrap();
    (0..100_u32).for_each(|key| db.put(key.to_be_bytes(), b"").unwrap());
    let keys: Vec<_> = all(&db, IteratorMode::Start).into_iter().map(|(key, _)| key).collect();
    assert!(keys.into_iter().eq((0..100_u32).rev().map(|key| key.to_be_bytes().to_vec())));
}
