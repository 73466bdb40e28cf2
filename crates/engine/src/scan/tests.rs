//! Scans that take rows ahead, as they do where values must be waited for. (Whether they must is a
//! matter of the device, so here they are told to.)

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use super::ahead::{MAX_BYTES, MAX_ROWS};
use super::*;
use crate::{OpenMode, Separation, StoreSettings};

const VALUES: usize = 500;

/// Values of 0 to 2000 bytes, of which those from 100 on are separated, over several segments.
fn filled() -> (tempfile::TempDir, Store, BTreeMap<Vec<u8>, Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let separation = Some(Separation { min_bytes: 100, segment_bytes: 64 * 1024 });
    let options = StoreSettings { separation, ..StoreSettings::default() };
    let store = Store::open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
    let mut entries = BTreeMap::new();
    // Written in another order than they are read in.
    for number in (0..VALUES).map(|number| number * 7 % VALUES) {
        let (key, value) = (format!("key{number:05}").into_bytes(), vec![number as u8; number * 97 % 2000]);
        store.put(&key, &value).unwrap();
        entries.insert(key, value);
    }
    (directory, store, entries)
}

fn ahead(store: &Store, direction: Direction, wanted: usize) -> Scan<'_> {
    let mut scan = store.scan(.., direction, None).unwrap();
    scan.ahead.take_ahead(wanted);
    scan
}

#[test]
fn entries_taken_ahead_are_those_that_are_not() {
    let (_directory, store, entries) = filled();
    for wanted in [1, 2, 8, MAX_ROWS] {
        let forward: Vec<_> = ahead(&store, Direction::Forward, wanted).map(Result::unwrap).collect();
        assert!(forward.iter().map(|(key, value)| (key, value)).eq(&entries));
        let reverse: Vec<_> = ahead(&store, Direction::Reverse, wanted).map(Result::unwrap).collect();
        assert!(reverse.iter().map(|(key, value)| (key, value)).eq(entries.iter().rev()));
    }
    // Begun anywhere within.
    for begin in 0..VALUES {
        let mut scan = store.scan(.., Direction::Forward, None).unwrap();
        let mut found = Vec::new();
        while let Some(entry) = scan.next_entry().unwrap() {
            found.push((entry.key.to_vec(), entry.value.to_vec()));
            if found.len() == begin {
                scan.ahead.take_ahead(8);
            }
        }
        assert!(found.iter().map(|(key, value)| (key, value)).eq(&entries), "{begin}");
    }
}

#[test]
fn a_damaged_value_is_an_error_at_its_own_key_and_the_entries_before_it_come_first() {
    let (_directory, store, entries) = filled();
    let damaged = b"key00300".to_vec();
    let Header { kind: Kind::Separated(pointer), .. } = ({
        let rows = store.db.get_pinned_cf(&store.family, &damaged).unwrap().unwrap();
        Header::decode(&rows).unwrap()
    }) else {
        panic!("it is separated")
    };
    let path = store.values.as_ref().unwrap().log.segment(pointer.segment).unwrap().path().to_path_buf();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"damage", u64::from(pointer.offset) + 30).unwrap();
    for (direction, before) in [(Direction::Forward, 300), (Direction::Reverse, VALUES - 301)] {
        for wanted in [1, 16, MAX_ROWS] {
            let mut scan = ahead(&store, direction, wanted);
            for read in 0..before {
                let entry = scan.next_entry().unwrap().unwrap();
                assert_eq!(entry.value, entries[entry.key], "entry {read}");
            }
            let error = scan.next_entry().unwrap_err();
            let place = format!("{} at offset {}", path.display(), pointer.offset);
            assert!(matches!(&error, Error::Corrupt { location: Some(it), .. } if *it == place), "{error}");
            assert_eq!(scan.key_at_error().as_ref(), Some(&damaged));
            assert!(scan.next_entry().unwrap().is_none());
        }
    }
}

#[test]
fn what_is_ahead_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("store"), OpenMode::Create, StoreSettings::separated(100)).unwrap();
    let value = vec![7; MAX_BYTES / 8];
    (0..300_u32).for_each(|number| store.put(&number.to_be_bytes(), &value[..300]).unwrap());
    (300..340_u32).for_each(|number| store.put(&number.to_be_bytes(), &value).unwrap());
    let mut scan = ahead(&store, Direction::Forward, usize::MAX);
    let mut most = (0, 0);
    while scan.next_entry().unwrap().is_some() {
        let (rows, bytes) = scan.ahead.size();
        most = (most.0.max(rows), most.1.max(bytes));
    }
    // The last one that is taken may exceed the limit of bytes, by its own.
    assert!(most.0 > MAX_ROWS / 2 && most.0 <= MAX_ROWS, "{most:?}");
    assert!(most.1 >= MAX_BYTES - value.len() && most.1 <= MAX_BYTES + value.len() + 100, "{most:?}");
}

#[test]
fn nothing_is_ahead_of_a_scan_that_did_not_wait() {
    let (_directory, store, _) = filled();
    let mut scan = store.scan(.., Direction::Forward, None).unwrap();
    scan.next_entry().unwrap();
    assert!(!scan.ahead.is_on(), "the first value decides nothing");
    let ahead = &mut Ahead::default();
    (0..100).for_each(|_| ahead.watch(|| ()));
    assert!(!ahead.is_on());
    let slow = || std::thread::sleep(std::time::Duration::from_millis(1));
    (0..MAX_TIMED_INTERVAL).for_each(|_| ahead.watch(slow));
    assert!(ahead.is_on());
    (0..20).for_each(|_| ahead.watch(slow));
    assert_eq!(ahead.wanted(), MAX_ROWS);
}

/// More values than there are between two that are timed.
const MAX_TIMED_INTERVAL: u32 = 20;
