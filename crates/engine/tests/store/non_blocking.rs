//! Reads and writes that never wait for the device.

use crate::common;

use std::fs::File;
use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::random::Random;
use ecotone_engine::{
    Attributes, AwaitedReads, Description, Direction, Durability, Error, OpenMode, Store, StoreSettings, WriteOptions,
    noting_missed, with_arrived,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, ReadWriteFlags};

fn options() -> StoreSettings {
    StoreSettings {
        durability: Durability::None,
        memory_limit_bytes: Some(64 << 20),
        mapped_read_bytes: 0,
        ..StoreSettings::default()
    }
    .with_separation(200)
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Some with their keys, some apart.
fn value(number: u64) -> Vec<u8> {
    vec![number as u8; (number % 400) as usize]
}

/// The files of tables and of values.
fn files(store: &Store) -> Vec<PathBuf> {
    let folders = [store.directory().join("values"), store.directory().to_path_buf()];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "segment" || it == "sst")).collect()
}

/// Makes the kernel forget what it can of them.
fn forget(store: &Store) {
    store.sync().unwrap();
    // The store asks each table once what it says of its keys, on a thread of its own: that is over
    // then.
    store.dedup().unwrap();
    for path in files(store) {
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// The store in `directory`, of which nothing is in the block cache, nor in the kernel's memory: a
/// question takes waiting. The kernel may begin to read what it is asked for, and a fast device be
/// done with it at once, so several are asked.
fn opened_cold(directory: &Path) -> Store {
    let found = (0..20).find_map(|_| {
        let store = Store::open(directory, OpenMode::Open, options()).unwrap();
        forget(&store);
        let takes_waiting = store.try_get(&key(1)).is_err_and(|error| error == Error::WouldBlock);
        if takes_waiting { Some(store) } else { store.close().map(|()| None).unwrap() }
    });
    found.expect("what is not in memory takes waiting")
}

/// Whether the file system of `store` can tell what the kernel has of a file.
fn can_tell(store: &Store) -> bool {
    let file = File::open(&files(store)[0]).unwrap();
    let read = |flags| rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut [0; 8])], 0, flags);
    read(ReadWriteFlags::empty()).unwrap();
    read(ReadWriteFlags::NOWAIT) == Ok(8)
}

#[test]
fn what_is_told_immediately_is_what_is_there_and_what_is_not_is_told_after_a_read_that_waits() {
    const KEYS: u64 = 5000;
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), OpenMode::Create, options()).unwrap();
    for number in 0..KEYS {
        store.put(&key(number), &value(number)).unwrap();
    }
    // From the memtable; from the value log, which the kernel has in memory where it can tell.
    let can_tell = store.try_get(&key(399)).is_ok();
    for number in (0..KEYS).step_by(7) {
        match store.try_get(&key(number)) {
            Ok(found) => assert_eq!(&*found.unwrap(), &value(number)),
            Err(error) => assert!(error == Error::WouldBlock && !can_tell, "{error}"),
        }
    }
    store.flush(true).unwrap();
    store.close().unwrap();
    let store = opened_cold(directory.path());
    // One that is not there is known from filters once they are in memory.
    let mut numbers = Random::new(7);
    let (mut told, mut waited) = (0, 0);
    for _ in 0..20_000 {
        let number = numbers.below(KEYS as usize + 100) as u64;
        let expected = (number < KEYS).then(|| value(number));
        match store.try_get(&key(number)) {
            Ok(found) => {
                assert_eq!(found.as_deref(), expected.as_deref());
                told += 1;
            }
            Err(error) => {
                assert_eq!(error, Error::WouldBlock);
                waited += 1;
                let found = store.get(&key(number)).unwrap();
                assert_eq!(found.as_deref(), expected.as_deref());
            }
        }
        let description = |value: Vec<u8>| Description { attributes: Attributes::NONE, value_bytes: value.len() };
        assert_eq!(store.describe(&key(number), false).unwrap(), expected.map(description));
    }
    assert!(told > waited || !can_tell, "what was read once stays in memory: {told}, {waited}");
    store.close().unwrap();
}

#[test]
fn a_value_that_was_read_by_its_row_is_told_immediately_wherever_it_lies_until_it_is_changed() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let with_rows = StoreSettings { row_cache_bytes: Some(8 << 20), ..options() };
    let store = Store::open(directory.path(), OpenMode::Open, with_rows).unwrap();
    let long: Vec<u64> = (0..5000).filter(|number| number % 400 >= 200).collect();
    let (often, once): (Vec<u64>, Vec<u64>) = long.iter().partition(|number| **number % 2 == 0);
    // The first read brings the row, the second one the value.
    for number in once.iter().chain(&often).chain(&often) {
        assert_eq!(store.get(&key(*number)).unwrap().as_deref(), Some(&*value(*number)));
    }
    forget(&store);
    for number in &often {
        assert_eq!(store.try_get(&key(*number)).unwrap().as_deref(), Some(&*value(*number)));
        let found = store.multi_get_first(&[key(*number)], true);
        assert_eq!(found[0].as_ref().unwrap().as_deref(), Some(&*value(*number)));
    }
    // A fast device may be done at once with what the kernel began to read, so several are asked.
    let takes_waiting = |number: &u64| {
        forget(&store);
        store.try_get(&key(*number)).is_err_and(|error| error == Error::WouldBlock)
    };
    assert!(once.iter().take(20).any(takes_waiting), "only their places are known");
    let (changed, removed) = (key(often[0]), key(often[1]));
    store.put(&changed, &[b'n'; 300]).unwrap();
    store.delete(&removed).unwrap();
    for _ in 0..3 {
        assert_eq!(store.get(&changed).unwrap().as_deref(), Some(&[b'n'; 300][..]));
        assert!(store.get(&removed).unwrap().is_none());
    }
    store.close().unwrap();
}

/// A closed store of a few thousand keys in tables.
fn filled(directory: &Path) {
    let store = Store::open(directory, OpenMode::Create, options()).unwrap();
    for number in 0..5000 {
        store.put(&key(number), &value(number)).unwrap();
    }
    store.flush(true).unwrap();
    store.close().unwrap();
}

#[test]
fn what_the_kernel_has_in_memory_is_told_immediately_though_the_block_cache_has_nothing() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let store = opened_cold(directory.path());
    let in_memory: usize = files(&store).iter().map(|path| std::fs::read(path).unwrap().len()).sum();
    assert!(in_memory > 500_000, "{in_memory}");
    if !can_tell(&store) {
        return;
    }
    let mut numbers = Random::new(5);
    for _ in 0..300 {
        let number = numbers.below(5000) as u64;
        assert_eq!(store.try_get(&key(number)).unwrap().as_deref(), Some(&*value(number)));
        assert_eq!(store.describe(&key(number + 5000), true), Ok(None));
        let keys: Vec<_> = (number..number + 5).map(key).collect();
        for (number, found) in (number..5000).zip(store.multi_get_first(&keys, true)) {
            assert_eq!(found.unwrap().as_deref(), Some(&*value(number)));
        }
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut scan = store.try_scan(.., direction);
        let mut entries = 0;
        while let Some(entry) = scan.next_entry().unwrap() {
            assert_eq!(entry.value[..], value(if direction == Direction::Forward { entries } else { 4999 - entries }));
            entries += 1;
        }
        assert_eq!(entries, 5000);
    }
    // What was asked of this thread is over, and holds for no other.
    forget(&store);
    assert_eq!(store.get(&key(7)).unwrap().as_deref(), Some(&*value(7)));
    store.close().unwrap();
}

#[test]
fn what_was_not_in_memory_is_noted_and_told_immediately_when_it_was_brought_there() {
    what_was_not_in_memory_is_noted(options());
}

#[test]
fn what_is_read_past_the_kernels_cache_is_noted_and_told_immediately_when_it_has_arrived() {
    what_was_not_in_memory_is_noted(StoreSettings { page_cache_bytes: Some(0), ..options() });
}

fn what_was_not_in_memory_is_noted(options: StoreSettings) {
    const LONG: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let store = Store::open(directory.path(), OpenMode::Open, options).unwrap();
    let (mut reads, over) = match AwaitedReads::new() {
        Ok(reads) => reads,
        Err(error) => return eprintln!("not tested: {error}"),
    };
    forget(&store);
    let (mut numbers, mut awaited) = (Random::new(11), 0);
    for _ in 0..300 {
        let number = numbers.below(5000) as u64;
        // Filters and indices, a block of keys, a value; more where memory is short.
        let (mut rounds, mut arrived) = (0..64, Vec::new());
        loop {
            let look_up = || noting_missed(|| store.try_get(&key(number)));
            let (found, missed) = with_arrived(&mut arrived, look_up);
            match found {
                Ok(found) => {
                    assert_eq!(found.as_deref(), Some(&*value(number)));
                    assert!(missed.is_empty());
                    break;
                }
                Err(error) => assert_eq!(error, Error::WouldBlock),
            }
            if !missed.is_empty() {
                let token = Arc::new(());
                assert!(reads.add(missed, &token).unwrap());
                reads.submit().unwrap();
                while Arc::strong_count(&token) > 1 {
                    let told = rustix::event::poll(&mut [PollFd::new(&over, PollFlags::IN)], Some(&LONG));
                    assert!(matches!(told, Ok(1) | Err(Errno::INTR)), "a read does not end: {told:?}");
                    let _ = rustix::io::read(&over, &mut [0; 8]);
                    reads.end_some(|_, one| arrived.push(one)).unwrap();
                }
                awaited += 1;
            }
            if rounds.next().is_none() {
                assert!(!can_tell(&store), "key {number} does not come into memory");
                return;
            }
        }
    }
    assert!(awaited > 3, "{awaited}");
    // Of what is in memory nothing is noted, and nothing where a read waits.
    forget(&store);
    let ((), missed) = noting_missed(|| {
        for number in 0..5000 {
            store.get(&key(number)).unwrap();
        }
    });
    assert!(missed.is_empty());
    store.close().unwrap();
}

#[test]
fn where_not_all_tables_are_open_only_the_block_cache_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let few = StoreSettings { max_open_files: Some(16), ..options() };
    let store = Store::open(directory.path(), OpenMode::Open, few).unwrap();
    assert_eq!(store.try_get(&key(1)).unwrap_err(), Error::WouldBlock);
    assert_eq!(store.describe(&key(1), true), Err(Error::WouldBlock));
    assert!(store.multi_get_first(&[key(1), key(2)], true).into_iter().all(|found| found.is_err()));
    let mut scan = store.try_scan(.., Direction::Forward);
    assert_eq!(scan.next_entry().unwrap_err(), Error::WouldBlock);
    assert!(scan.next_entry().unwrap().is_none(), "an error ends it");
    drop(scan);
    assert_eq!(store.get(&key(1)).unwrap().as_deref(), Some(&*value(1)));
    // Its table is open, and its block in the cache.
    assert_eq!(store.try_get(&key(1)).unwrap().as_deref(), Some(&*value(1)));
    store.close().unwrap();
}

#[test]
fn keys_are_scanned_without_their_values() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), OpenMode::Create, options()).unwrap();
    for number in 0..1000 {
        let mut batch = ecotone_engine::Batch::new();
        let attributes = Attributes { expires_at_ms: Some(number + 1), ..Attributes::NONE };
        batch.put_with(&key(number), &value(number), &attributes).unwrap();
        store.write(&batch, WriteOptions::default()).unwrap();
    }
    // Without the segments no value can be read.
    store.flush(true).unwrap();
    for entry in std::fs::read_dir(directory.path().join("values")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "segment") {
            File::options().write(true).open(path).unwrap().set_len(32).unwrap();
        }
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut scan = store.scan(.., direction, None).unwrap();
        let mut found = Vec::new();
        while let Some((key, attributes)) = scan.next_key().unwrap() {
            found.push((key.to_vec(), attributes.expires_at_ms.unwrap()));
        }
        if direction == Direction::Reverse {
            found.reverse();
        }
        assert_eq!(found, (0..1000).map(|number| (key(number), number + 1)).collect::<Vec<_>>());
    }
}

#[test]
fn a_write_that_would_wait_for_compactions_is_refused_and_goes_through_when_it_may_wait() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreSettings {
        durability: Durability::None,
        memtable_bytes: 1 << 20,
        memtable_count: 2,
        l0_compaction_trigger: 2,
        l0_slowdown_trigger: 2,
        l0_stop_trigger: 3,
        ..StoreSettings::default()
    };
    let store = Store::open(directory.path(), OpenMode::Create, options).unwrap();
    let mut numbers = Random::new(3);
    let mut written = Vec::new();
    let no_wait = WriteOptions { no_wait: true, ..WriteOptions::default() };
    let mut refused = 0;
    for number in 0..40_000 {
        let value: Vec<u8> = (0..100).flat_map(|_| numbers.next().to_le_bytes()).collect();
        match store.put_opt(&key(number), &value, no_wait) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, Error::WouldBlock);
                assert!(store.get(&key(number)).unwrap().is_none(), "nothing of it was written");
                store.put_opt(&key(number), &value, WriteOptions::default()).unwrap();
                refused += 1;
            }
        }
        written.push(value);
    }
    assert!(refused > 0, "tables came faster than they were compacted");
    for (number, value) in written.iter().enumerate().step_by(97) {
        assert_eq!(&*store.get(&key(number as u64)).unwrap().unwrap(), value);
    }
}
