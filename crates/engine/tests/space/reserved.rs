//! Space that is reserved behind what was appended, in segments and WALs: it is zeros, means
//! nothing, and goes away.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::appended::{WAL_BLOCK_BYTES, copy_store, wal_records, written_bytes};
use common::random::{Random, with_seeds};
use common::tmpfs::Tmpfs;
use common::value_of;
use ecotone_engine::{Direction, Durability, Error, OpenMode, Separation, Store, StoreSettings, WriteOptions};
use ecotone_inspect::{repair, verify};

/// Longer than anything that is waited for here may take.
const LONG: Duration = Duration::from_secs(60);

fn options() -> StoreSettings {
    StoreSettings {
        durability: Durability::None,
        separation: Some(Separation::from_bytes(100)),
        memtable_bytes: 16 << 20,
        ..common::small()
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Separated values and inline ones, and some that are zeros.
fn value(number: u64) -> Vec<u8> {
    match number % 5 {
        0 => vec![0; 400],
        1 => value_of(&key(number), number, 20),
        _ => value_of(&key(number), number, 300 + number as usize % 200),
    }
}

fn put(store: &Store, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| store.put(&key(number), &value(number)).unwrap());
}

fn holds(store: &Store, numbers: std::ops::Range<u64>) {
    let found: Vec<_> = store.scan(.., Direction::Forward, None).unwrap().map(Result::unwrap).collect();
    let wanted: Vec<_> = numbers.map(|number| (key(number), value(number))).collect();
    assert!(found == wanted, "{} of {} entries", found.len(), wanted.len());
}

/// The files of WAL and value log.
fn appended_files(store: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for directory in [store.to_path_buf(), store.join("values")] {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "log" || it == "segment") {
                files.push(path);
            }
        }
    }
    files
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// What a kill leaves of `store`: all that was given to the kernel.
fn killed(store: &Store, directory: &Path) -> PathBuf {
    let left = directory.join("left");
    copy_store(store.directory(), &left);
    left
}

#[test]
fn a_kill_leaves_zeros_that_mean_nothing_to_anybody_and_are_cut_off() {
    let (directory, store) = common::store(options());
    put(&store, 0..3000);
    let left = killed(&store, directory.path());
    let reserved = appended_files(&left).iter().filter(|path| length(path) > written_bytes(path)).count();
    if reserved == 0 {
        // This file system reserves nothing.
        return;
    }
    assert_eq!(reserved, 2, "the active segment and the WAL");

    let read_only = Store::open(&left, OpenMode::ReadOnly, StoreSettings::default()).unwrap();
    holds(&read_only, 0..3000);
    drop(read_only);
    let found = verify(&left, |_| ()).unwrap();
    assert!(found.is_sound() && found.torn_ends.is_empty(), "{found:?}");
    let saved = directory.path().join("saved");
    let report = repair(&left, &saved, |_| ()).unwrap();
    assert_eq!((report.lost_wal_count, report.lost_value_count), (0, 0), "{report:?}");
    holds(&Store::open(&saved, OpenMode::Open, options()).unwrap(), 0..3000);

    let store = Store::open(&left, OpenMode::Open, options()).unwrap();
    holds(&store, 0..3000);
    for segment in appended_files(&left).iter().filter(|path| path.extension().is_some_and(|it| it == "segment")) {
        assert_eq!(length(segment), written_bytes(segment), "{segment:?}");
    }
    put(&store, 3000..3100);
    store.close().unwrap();
    for path in appended_files(&left) {
        assert_eq!(length(&path), written_bytes(&path), "{path:?} of a store that was closed");
    }
    holds(&Store::open(&left, OpenMode::Open, options()).unwrap(), 0..3100);
}

#[test]
fn a_segment_that_is_sealed_has_nothing_behind_its_last_record() {
    let options =
        StoreSettings { separation: Some(Separation { min_bytes: 100, segment_bytes: 300_000 }), ..options() };
    let (_directory, store) = common::store(options);
    put(&store, 0..3000);
    let mut segments = appended_files(store.directory());
    segments.retain(|path| path.extension().is_some_and(|it| it == "segment"));
    segments.sort();
    assert!(segments.len() > 3);
    for segment in &segments[..segments.len() - 1] {
        assert_eq!(length(segment), written_bytes(segment), "{segment:?}");
    }
}

#[test]
fn a_checkpoint_under_writes_copies_what_was_written() {
    let (directory, store) = common::store(options());
    put(&store, 0..1000);
    let copy = directory.path().join("copy");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1000.. {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                store.put(&key(number), &value(number)).unwrap();
            }
        });
        store.checkpoint(&copy).unwrap();
        stop.store(true, Ordering::Release);
    });
    for path in appended_files(&copy) {
        assert!(length(&path) - written_bytes(&path) < 1000, "{path:?}");
    }
    let copied = Store::open(&copy, OpenMode::Open, options()).unwrap();
    let entries = copied.scan(.., Direction::Forward, None).unwrap().map(Result::unwrap).count() as u64;
    assert!(entries >= 1000);
    holds(&copied, 0..entries);
}

/// Returns whether a write met the end of the disk: the store may have looked first, and have seen
/// it coming.
fn refuses_a_write_and_takes_it_later(disk: &Tmpfs) -> bool {
    let path = disk.store();
    let store = Store::open(&path, OpenMode::Create, options()).unwrap();
    put(&store, 0..1000);
    disk.fill();
    // Longer ones than what is reserved for the WAL: so it is the segment that is full first.
    let long = |number: u64| value_of(&key(number), number, 30_000);
    let mut number = 1000;
    let error = loop {
        match store.put(&key(number), &long(number)) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 2000, "what was reserved before is all there is");
    };
    assert!(matches!(error, Error::DiskFull { .. } | Error::OutOfSpace { .. }), "{error}");
    disk.empty();
    let began = Instant::now();
    for number in number..number + 100 {
        // The store may have seen the full disk meanwhile, and looks a second later whether it
        // still is.
        while let Err(error) = store.put(&key(number), &long(number)) {
            let for_want_of_space = matches!(error, Error::DiskFull { .. } | Error::OutOfSpace { .. });
            assert!(for_want_of_space && began.elapsed() < LONG, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for number in 1000..number + 100 {
        assert_eq!(store.get(&key(number)).unwrap().as_deref(), Some(&long(number)[..]), "{number}");
    }
    let left = tempfile::tempdir().unwrap();
    let left = killed(&store, left.path());
    let store = Store::open(&left, OpenMode::Open, options()).unwrap();
    for number in 1000..number + 100 {
        assert_eq!(store.get(&key(number)).unwrap().as_deref(), Some(&long(number)[..]), "{number}");
    }
    matches!(error, Error::DiskFull { .. })
}

#[test]
fn a_full_disk_refuses_a_write_and_takes_it_when_there_is_room() {
    let met_the_end = (0..50).any(|_| {
        // None where this process may not mount one.
        Tmpfs::mount(48 << 20).is_none_or(|disk| refuses_a_write_and_takes_it_later(&disk))
    });
    assert!(met_the_end, "the store always saw it coming");
}

/// A kill may come in the middle of a copy into a window, and nobody knows in which order the
/// processor copies.
#[test]
fn a_kill_in_the_middle_of_an_append_costs_the_write_that_was_appended() {
    let (directory, store) = common::store(options());
    put(&store, 0..200);
    let mut last = ecotone_engine::Batch::new();
    // Fragments of two blocks, and still a copy.
    (200..800).for_each(|number| last.put(&key(number), &[number as u8; 60]).unwrap());
    store.write(&last, WriteOptions::default()).unwrap();
    let whole = killed(&store, directory.path());
    let is = |path: &Path, extension| path.extension().is_some_and(|it| it == extension);
    let wal = appended_files(&whole).into_iter().find(|path| is(path, "log")).unwrap();
    let sound = fs::read(&wal).unwrap();
    let (begin, end) = (*wal_records(&sound).last().unwrap(), written_bytes(&wal) as usize);
    assert!(begin / WAL_BLOCK_BYTES < end / WAL_BLOCK_BYTES && end - begin < 64 * 1024, "{begin} to {end}");
    with_seeds(60, |seed| {
        let mut random = Random::new(seed);
        let mut bytes = sound.clone();
        // Vectors of a copy, or single bytes at its begin.
        let chunk = *random.of(&[1, 16, 64, 4096]);
        let some = if chunk == 1 { begin..begin + 20 } else { begin..end };
        let missing = some.step_by(chunk).filter(|_| random.once_in(2)).collect::<Vec<_>>();
        missing.iter().for_each(|from| bytes[*from..end.min(from + chunk)].fill(0));
        let torn = tempfile::tempdir().unwrap();
        copy_store(&whole, torn.path());
        fs::write(torn.path().join(wal.file_name().unwrap()), &bytes).unwrap();
        let store =
            Store::open(torn.path(), OpenMode::Open, options()).unwrap_or_else(|error| panic!("{seed}: {error}"));
        let entries = store.scan(.., Direction::Forward, None).unwrap().count() as u64;
        assert_eq!(entries, if bytes == sound { 800 } else { 200 }, "seed {seed}");
        assert_eq!(store.get(&key(199)).unwrap().as_deref(), Some(&value(199)[..]), "seed {seed}");
    });
}

/// A loss of power leaves zeros where a page never reached the device. RocksDB passes over them to
/// the end of their block, and goes on where the next one begins with a record.
#[test]
fn a_hole_in_the_wal_ends_its_replay() {
    let (directory, store) = common::store(options());
    (0..20_000).for_each(|number| store.put(&key(number), &vec![7; number as usize % 23]).unwrap());
    let left = killed(&store, directory.path());
    let wal = appended_files(&left).into_iter().find(|path| path.extension().is_some_and(|it| it == "log")).unwrap();
    let mut bytes = fs::read(&wal).unwrap();
    let begins = wal_records(&bytes);
    let of_block = begins.iter().position(|begin| *begin > 0 && begin % WAL_BLOCK_BYTES == 0);
    let of_block = of_block.expect("a block begins with a record");
    bytes[begins[of_block - 10]..begins[of_block]].fill(0);
    fs::write(&wal, bytes).unwrap();
    let store = Store::open(&left, OpenMode::Open, options()).unwrap();
    let found: Vec<_> = store.scan(.., Direction::Forward, None).unwrap().map(|entry| entry.unwrap().0).collect();
    assert!((1..20_000).contains(&found.len()), "{} entries", found.len());
    let first: Vec<_> = (0..found.len() as u64).map(key).collect();
    assert!(found == first, "a write is missing among others");
}
