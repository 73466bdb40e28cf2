//! Scans and lookups of a store with a value log, whether they read through memory or by calls.

use crate::common;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use common::random::{Random, with_seeds};
use common::{Model, until, value_of};
use ecotone_engine::{Direction, Error, Scan, Separation, Store, StoreSettings};

const SEGMENT_BYTES: u64 = 64 * 1024;

/// Values of 100 bytes and more are separated, in small segments of which `mapped_read_bytes` may
/// be mapped.
fn options(mapped_read_bytes: u64) -> StoreSettings {
    StoreSettings {
        separation: Some(Separation { min_bytes: 100, segment_bytes: SEGMENT_BYTES }),
        mapped_read_bytes,
        ..common::small()
    }
}

/// What is mapped for reading of the files below `store`: name and bytes.
fn mapped(store: &Path) -> Vec<(String, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let segment = |line: &str| {
        let (fields, path) = line.split_at_checked(line.find(store.to_str()?)?)?;
        let mut fields = fields.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        // What is appended to is mapped for writing.
        (fields.next()? == "r--s").then_some((path.to_owned(), address(to)? - address(from)?))
    };
    maps.lines().filter_map(segment).collect()
}

fn segments(store: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(store.join("values")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = files.filter(|path| path.extension().is_some_and(|it| it == "segment")).collect();
    found.sort();
    found
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

/// Values of 1000 bytes in the order of their keys, in sealed segments.
fn filled(store: &Store, values: usize) -> Model {
    let mut model = Model::new();
    for number in 0..values {
        let value = value_of(&key(number), 1, 1000);
        store.put(&key(number), &value).unwrap();
        model.insert(key(number), value);
    }
    store.flush(true).unwrap();
    model
}

fn assert_yields<'m>(scan: Scan<'_>, expected: impl Iterator<Item = (&'m Vec<u8>, &'m Vec<u8>)>) {
    let found: Vec<_> = scan.map(Result::unwrap).collect();
    let expected: Vec<_> = expected.collect();
    assert_eq!(found.len(), expected.len());
    for ((key, value), (expected_key, expected_value)) in found.iter().zip(expected) {
        assert_eq!(key, expected_key);
        assert!(value == expected_value, "of {}", String::from_utf8_lossy(key));
    }
}

#[test]
fn scans_of_mixed_values_are_those_of_a_model_in_both_directions() {
    with_seeds(6, |seed| {
        let mut random = Random::new(seed);
        // None, few, all.
        let mapped_bytes = *random.of(&[0, 3 * SEGMENT_BYTES, 128 << 20]);
        let (_directory, store) = common::store(options(mapped_bytes));
        let mut model = Model::new();
        for number in 0..3000 {
            let key = key(random.below(500));
            let value = value_of(&key, number, *random.of(&[0, 20, 99, 100, 101, 1000, 5000]));
            store.put(&key, &value).unwrap();
            model.insert(key, value);
            if random.once_in(10) {
                let key = self::key(random.below(500));
                store.delete(&key).unwrap();
                model.remove(&key);
            }
            if random.once_in(300) {
                store.flush(true).unwrap();
            }
            if random.once_in(60) {
                let (one, other) = (self::key(random.below(510)), self::key(random.below(510)));
                let range = (Bound::Included(one.clone().min(other.clone())), Bound::Excluded(one.max(other)));
                let of_keys = (range.0.as_ref().map(Vec::as_slice), range.1.as_ref().map(Vec::as_slice));
                let snapshot = random.once_in(2).then(|| store.snapshot());
                let scan = |direction| store.scan(of_keys, direction, snapshot.as_ref()).unwrap();
                assert_yields(scan(Direction::Forward), model.range(range.clone()));
                assert_yields(scan(Direction::Reverse), model.range(range.clone()).rev());
            }
        }
        assert_yields(store.scan(.., Direction::Reverse, None).unwrap(), model.iter().rev());
        for (key, value) in &model {
            assert_eq!(store.get(key).unwrap().as_deref(), Some(&value[..]));
        }
    });
}

#[test]
fn no_more_is_mapped_than_is_allowed_and_all_is_where_that_is_enough() {
    for (mapped_bytes, least, most) in [
        (0, 0, 0),
        (SEGMENT_BYTES / 2, 0, 0),
        (3 * SEGMENT_BYTES, 2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES),
        (128 << 20, 900_000, 2_000_000),
    ] {
        let (directory, store) = common::store(options(mapped_bytes));
        let path = directory.path().join("store");
        let model = filled(&store, 1000);
        for direction in [Direction::Forward, Direction::Reverse].repeat(3) {
            assert_eq!(store.scan(.., direction, None).unwrap().map(Result::unwrap).count(), 1000);
            let bytes: u64 = mapped(&path).iter().map(|(_, bytes)| bytes).sum();
            assert!(bytes <= most, "{bytes} of {mapped_bytes}");
        }
        let bytes: u64 = mapped(&path).iter().map(|(_, bytes)| bytes).sum();
        assert!((least..=most).contains(&bytes), "{bytes} of {mapped_bytes}");
        assert_yields(store.scan(.., Direction::Forward, None).unwrap(), model.iter());
        store.close().unwrap();
        assert_eq!(mapped(&path), []);
    }
}

#[test]
fn what_is_read_no_more_gives_way_to_what_is() {
    let (directory, store) = common::store(options(3 * SEGMENT_BYTES));
    let path = directory.path().join("store");
    filled(&store, 1000);
    let names = |first: usize, last: usize| {
        for _ in 0..500 {
            for number in first..last {
                store.get(&key(number)).unwrap().unwrap();
            }
        }
        mapped(&path).into_iter().map(|(name, _)| name).collect::<BTreeSet<_>>()
    };
    // Each lies in two segments or three, and there is room for three.
    let first = names(0, 100);
    let last = names(800, 900);
    assert!(first.len() >= 2 && last.difference(&first).count() >= 2, "{first:?} and {last:?}");
}

#[test]
fn a_segment_that_is_cut_while_it_is_mapped_is_an_error_at_its_values_only() {
    let (directory, store) = common::store(options(128 << 20));
    let path = directory.path().join("store");
    let model = filled(&store, 1000);
    let all = || store.scan(.., Direction::Forward, None).unwrap();
    for _ in 0..20 {
        assert_yields(all(), model.iter());
    }
    let cut = segments(&path).swap_remove(3);
    let name = cut.to_str().unwrap();
    assert!(mapped(&path).iter().any(|(mapped, _)| mapped == name), "it is read through memory");
    OpenOptions::new().write(true).open(&cut).unwrap().set_len(20_000).unwrap();
    // The keys lie in the segments in their order.
    let mut entries = model.iter();
    let mut scan = all();
    let error = loop {
        match scan.next_entry() {
            Ok(Some(entry)) => {
                let (key, value) = entries.next().unwrap();
                assert!(entry.key == key && entry.value == value);
            }
            Ok(None) => panic!("the damage was not noticed"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&error, Error::Corrupt { location: Some(location), .. } if location.contains(&format!("{name} at offset"))),
        "{error}"
    );
    assert!(scan.next_entry().unwrap().is_none(), "a scan is over after an error");
    drop(scan);
    let (lost, (mut found, mut damaged)) = (entries.next().unwrap().0.clone(), (0, 0));
    assert!(store.get(&lost).is_err());
    for (key, value) in &model {
        match store.get(key) {
            Ok(read) => {
                assert_eq!(read.as_deref(), Some(&value[..]));
                found += 1;
            }
            Err(Error::Corrupt { .. }) => damaged += 1,
            Err(other) => panic!("{other}"),
        }
    }
    // A segment has room for 64 records of 1020 bytes, and 19 of them are left.
    assert_eq!((found, damaged), (1000 - 45, 45));
    assert!(mapped(&path).iter().all(|(mapped, _)| mapped != name), "it is read by calls from now on");
}

#[test]
fn a_segment_whose_values_are_garbage_is_neither_lost_to_a_scan_nor_kept_by_its_mapping() {
    let (directory, store) = common::store(options(128 << 20));
    let path = directory.path().join("store");
    let model = filled(&store, 500);
    for _ in 0..20 {
        assert_yields(store.scan(.., Direction::Forward, None).unwrap(), model.iter());
    }
    assert!(!mapped(&path).is_empty());
    let before = segments(&path).len();
    let mut scan = store.scan(.., Direction::Forward, None).unwrap();
    scan.next_entry().unwrap().unwrap();
    for number in 0..500 {
        store.put(&key(number), b"short").unwrap();
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    assert_yields(scan, model.iter().skip(1));
    // The one that is appended to stays.
    until(&store, |values| values.removed_segments + 1 >= before as u64);
    assert_eq!(mapped(&path), [], "what is mapped keeps its space");
    assert_eq!(store.scan(.., Direction::Forward, None).unwrap().count(), 500);
}

#[test]
fn a_scan_steps_over_as_many_removed_entries_as_it_may() {
    let (_directory, store) = common::store(StoreSettings::default());
    for number in 0..3000 {
        store.put(format!("{number:04}").as_bytes(), b"").unwrap();
    }
    // A hundred are left, and nowhere are many removed in a row.
    for number in (0..3000).filter(|number| number % 30 != 0) {
        store.delete(format!("{number:04}").as_bytes()).unwrap();
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let rows = |scan: Scan<'_>| scan.collect::<Result<Vec<_>, _>>().map(|rows| rows.len());
        assert_eq!(rows(store.scan(.., direction, None).unwrap()), Ok(100));
        assert_eq!(rows(store.scan_skipping(.., direction, 100)), Ok(100));
        assert_eq!(rows(store.scan_skipping(.., direction, 20)), Err(Error::WouldBlock));
        // Where nobody waits all of them count.
        assert_eq!(rows(store.try_scan(&b"1500"[..].., direction)), Ok(50));
        assert_eq!(rows(store.try_scan(.., direction)), Err(Error::WouldBlock));
    }
}
