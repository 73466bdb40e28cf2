//! Segments with a flipped bit that nobody knows to have been synced: a repair loses that value
//! alone, or nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::appended::{SEGMENT_HEADER_BYTES, segment_records};
use crate::common::disk::{contents_below, write_contents};
use crate::common::{Model, assert_equals, directory_in_memory, value_of};
use ecotone_engine::{Durability, OpenMode, Separation, Store, StoreSettings};
use ecotone_inspect::{RepairReport, repair};

fn options() -> StoreSettings {
    StoreSettings {
        durability: Durability::None,
        separation: Some(Separation { min_bytes: 50, segment_bytes: 1 << 20 }),
        ..common::small()
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:04}").into_bytes()
}

/// A store as a kill leaves it, and what it held: long values and short ones in turn, some in
/// tables and some in the WAL.
fn killed(at: &Path) -> (PathBuf, Model) {
    let living = at.join("living");
    let store = Store::open(&living, OpenMode::Create, options()).unwrap();
    let mut model = Model::new();
    for number in 0..40 {
        let value = value_of(&key(number), number, if number % 2 == 0 { 200 } else { 20 });
        store.put(&key(number), &value).unwrap();
        model.insert(key(number), value);
        if number == 19 {
            store.flush(true).unwrap();
        }
    }
    let path = at.join("killed");
    write_contents(&path, &contents_below(&living));
    store.close().unwrap();
    let _ = fs::remove_file(path.join("values/WATERMARK"));
    (path, model)
}

fn segment(store: &Path) -> PathBuf {
    let mut segments: Vec<_> = fs::read_dir(store.join("values")).unwrap().map(|it| it.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "segment"));
    let [segment] = &segments[..] else { panic!("{segments:?}") };
    segment.clone()
}

fn flip(file: &Path, bit: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(file, bytes).unwrap();
}

fn repaired(path: &Path, into: &Path) -> (RepairReport, Store) {
    let report = repair(path, into, |_| ()).unwrap();
    let store = Store::open(into, OpenMode::Open, options()).unwrap();
    (report, store)
}

#[test]
fn a_damaged_header_costs_nothing_and_is_told() {
    let directory = directory_in_memory();
    let (path, model) = killed(directory.path());
    let segment = segment(&path);
    for bit in (0..SEGMENT_HEADER_BYTES * 8).step_by(13) {
        flip(&segment, bit);
        assert!(Store::open(&path, OpenMode::Open, options()).is_err(), "bit {bit}");
        let into = directory.path().join(format!("saved-{bit}"));
        let (report, store) = repaired(&path, &into);
        assert_equals(&store, &model);
        assert!(report.is_complete(), "bit {bit}: {report:?}");
        let name = segment.file_name().unwrap().to_str().unwrap();
        assert!(report.notes.iter().any(|note| note.contains(name)), "bit {bit}: {report:?}");
        drop(store);
        flip(&segment, bit);
    }
    let (report, store) = repaired(&path, &directory.path().join("sound"));
    assert_equals(&store, &model);
    assert_eq!(report.notes, [""; 0]);
}

#[test]
fn of_a_damaged_value_in_the_wal_that_one_is_lost_and_none_behind_it() {
    let directory = directory_in_memory();
    let (path, model) = killed(directory.path());
    let segment = segment(&path);
    let records = segment_records(&fs::read(&segment).unwrap());
    assert_eq!(records.len(), 20);
    // In a table; in the midst of the WAL; the last one, behind which a short one was written.
    for (at, record) in [3, 12, 19].map(|at| (at, records[at].clone())) {
        let bit = record.start * 8 + 300;
        flip(&segment, bit);
        let into = directory.path().join(format!("saved-{at}"));
        let (report, store) = repaired(&path, &into);
        let mut expected = model.clone();
        expected.remove(&key(at as u64 * 2));
        assert_equals(&store, &expected);
        assert_eq!((report.lost_value_count, report.lost_wal_count), (1, 0), "{report:?}");
        assert_eq!(report.lost_values[0].key.as_bytes(), key(at as u64 * 2));
        flip(&segment, bit);
    }
}
