//! What a loss of power leaves: all that was synced, and of the rest any part, in any order, of any
//! file.
//!
//! A store is copied while nobody writes, and in the copy bytes behind the last sync are cut off,
//! zeroed or both, in WAL and segments independently, as a kernel that writes back as it likes
//! would leave them. The copy must open, hold every write from before the sync, and of those after
//! it a prefix.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::appended::written_bytes;
use common::disk::{Image, Recorder, zero_sectors};
use common::random::{Random, cases};
use common::writes::recount_tables;
use common::{directory_in_memory, value_of, warnings};
use ecotone_engine::{Direction, Durability, OpenMode, Separation, Store, StoreSettings};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::FileSystemHooks;
use proptest::prelude::*;

fn options(segment_bytes: u64) -> StoreSettings {
    StoreSettings {
        durability: Durability::None,
        separation: Some(Separation { min_bytes: 100, segment_bytes }),
        memtable_bytes: 16 << 20,
        ..common::small()
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Inline and separated values in turn.
fn value(number: u64) -> Vec<u8> {
    value_of(&key(number), number, if number.is_multiple_of(3) { 20 } else { 300 })
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("values")).unwrap();
    for directory in ["", "values"] {
        for file in files(&from.join(directory)) {
            if file.file_name().unwrap() != "LOCK" {
                fs::copy(&file, to.join(directory).join(file.file_name().unwrap())).unwrap();
            }
        }
    }
}

fn lengths(store: &Path) -> Vec<(PathBuf, u64)> {
    let wals = files(store).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let segments = files(&store.join("values"));
    let segments = segments.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "segment"));
    wals.chain(segments).map(|path| (path.clone(), written_bytes(&path))).collect()
}

/// The segment that the watermark of a store names, and how much of it.
fn watermark(store: &Path) -> (u64, u64) {
    let watermark = fs::read(store.join("values/WATERMARK")).unwrap_or_default();
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    // The slots of docs/internals/formats.md: count, segment, nothing, offset, checksum.
    let slot = |at: usize| {
        watermark
            .get(at..at + 28)
            .filter(|slot| number(&slot[24..]) == u64::from(crc32c::crc32c(&slot[..24])))
            .map_or((0, 0, 0), |slot| (number(&slot[..8]), number(&slot[8..12]), number(&slot[16..24])))
    };
    let (_, segment, offset) = slot(0).max(slot(512));
    (segment, offset)
}

/// What is durable right after a sync: the WAL as it is, and of the segments what the watermark
/// says, so that a sync which forgot one is found out.
fn durable_lengths(store: &Path) -> Vec<(PathBuf, u64)> {
    let (segment, offset) = watermark(store);
    let durable = |(path, bytes): (PathBuf, u64)| {
        let stem: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let is_segment = path.extension().is_some_and(|extension| extension == "segment");
        let bytes = match stem.cmp(&segment) {
            _ if !is_segment => bytes,
            std::cmp::Ordering::Less => bytes,
            std::cmp::Ordering::Equal => offset,
            std::cmp::Ordering::Greater => 0,
        };
        (path, bytes)
    };
    lengths(store).into_iter().map(durable).collect()
}

/// What becomes of the unsynced bytes of one file: kept up to a share, and of those a part zeroed.
/// With such a hole, what is reserved for the file is there as well.
#[derive(Debug, Clone)]
struct Loss {
    kept: f64,
    hole: Option<(f64, f64)>,
}

fn loss() -> impl Strategy<Value = Loss> {
    let share = || prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    (share(), proptest::option::of((share(), 0.0..0.5))).prop_map(|(kept, hole)| Loss { kept, hole })
}

fn lose(file: &Path, synced: u64, loss: &Loss) {
    let written = written_bytes(file);
    let mut bytes = fs::read(file).unwrap();
    let reserved = bytes.len();
    bytes.truncate(written as usize);
    let unsynced = bytes.len() as u64 - synced;
    bytes.truncate((synced + (unsynced as f64 * loss.kept) as u64) as usize);
    if let Some((from, length)) = loss.hole {
        let rest = (bytes.len() as u64 - synced) as f64;
        let from = synced + (rest * from) as u64;
        let to = (from + (rest * length) as u64).min(bytes.len() as u64);
        zero_sectors(&mut bytes, synced as usize, from as usize, to as usize);
        bytes.resize(reserved, 0);
    }
    fs::write(file, bytes).unwrap();
}

/// A disk that is full for tables.
struct NoTables;

impl WriteTap for NoTables {
    fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
        match event {
            TapEvent::Created { path } if path.extension().is_some_and(|extension| extension == "sst") => {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(40), ..ProptestConfig::default() })]

    #[test]
    fn what_was_synced_is_there_and_of_the_rest_a_prefix(
        synced in 1..120_u64,
        more in 0..120_u64,
        flushed in any::<bool>(),
        interrupted in any::<bool>(),
        segment_bytes in prop_oneof![Just(4096_u64), Just(1 << 20)],
        losses in proptest::collection::vec(loss(), 64),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let store = Store::open(&path, OpenMode::Create, options(segment_bytes)).unwrap();
        for number in 0..synced {
            store.put(&key(number), &value(number)).unwrap();
            if flushed && number == synced / 2 {
                store.flush(true).unwrap();
            }
        }
        store.sync().unwrap();
        let durable = durable_lengths(&path);
        for number in synced..synced + more {
            store.put(&key(number), &value(number)).unwrap();
        }
        let lost = directory.path().join("lost");
        copy(&path, &lost);
        store.close().unwrap();

        for (number, (file, _)) in lengths(&lost).iter().enumerate() {
            // A file made after the sync had its name synced with it or is gone; here its bytes are
            // at the kernel's mercy.
            let name = file.strip_prefix(&lost).unwrap();
            let synced = durable.iter().find(|(known, _)| known.strip_prefix(&path).unwrap() == name);
            lose(file, synced.map_or(0, |(_, bytes)| *bytes), &losses[number % losses.len()]);
        }
        recount_tables(&lost, "a loss");
        if interrupted {
            // A first recovery that ends before it has written anything down must not make the
            // second one trust more.
            let hooks = FileSystemHooks { tap: Some(Arc::new(NoTables)), ..FileSystemHooks::default() };
            let builder = Store::builder(&lost).mode(OpenMode::Open).settings(options(segment_bytes));
            drop(builder.hooks(hooks).open());
        }
        let store = Store::open(&lost, OpenMode::Open, options(segment_bytes)).unwrap();
        let found: Vec<_> = store.scan(.., Direction::Forward, None).unwrap().map(Result::unwrap).collect();
        prop_assert!(found.len() as u64 >= synced, "{} of {} synced writes are there", found.len(), synced);
        for (number, (found_key, found_value)) in found.iter().enumerate() {
            prop_assert_eq!(found_key, &key(number as u64));
            prop_assert_eq!(found_value, &value(number as u64));
        }
        // It goes on, and what it goes on with is as good as any.
        for number in found.len() as u64..300 {
            store.put(&key(number), &value(number)).unwrap();
        }
        store.flush(true).unwrap();
        store.close().unwrap();
        prop_assert!(recount_tables(&lost, "what was written after a loss") > 0);
        let store = Store::open(&lost, OpenMode::Open, options(segment_bytes)).unwrap();
        prop_assert_eq!(store.scan(.., Direction::Forward, None).unwrap().map(Result::unwrap).count(), 300);
    }
}

/// A sync by one writer covers what others wrote before it without one: else replay would stop
/// before the first.
#[test]
fn one_writer_that_syncs_vouches_for_those_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path, OpenMode::Create, options(1 << 20)).unwrap();
    store.put(&key(1), &value(1)).unwrap();
    // Inline: itself it has nothing in the value log.
    store.put_opt(&key(0), &value(0), ecotone_engine::WriteOptions::durable(Durability::Always)).unwrap();
    let durable = durable_lengths(&path);
    store.put(&key(2), &value(2)).unwrap();
    let lost = directory.path().join("lost");
    copy(&path, &lost);
    store.close().unwrap();
    for (file, _) in lengths(&lost) {
        let name = file.strip_prefix(&lost).unwrap();
        let (_, bytes) = durable.iter().find(|(known, _)| known.strip_prefix(&path).unwrap() == name).unwrap();
        // The kernel has written back all of the WAL, and of the segments nothing that was not
        // synced.
        if file.extension().is_some_and(|extension| extension == "segment") {
            lose(&file, *bytes, &Loss { kept: 0.0, hole: None });
        }
    }
    recount_tables(&lost, "a loss");
    warnings::listen();
    let store = Store::open(&lost, OpenMode::Open, options(1 << 20)).unwrap();
    let found: Vec<_> = store.scan(.., Direction::Forward, None).unwrap().map(|entry| entry.unwrap().0).collect();
    assert_eq!(found, [key(0), key(1)]);
    // Who runs it is told which log was cut, from where, and what is missing.
    let said = warnings::about(&lost);
    let cut = said.iter().find(|said| said.contains("loss of power")).unwrap();
    assert!(cut.contains(".log\" from_write: 3 ") && cut.contains(".segment at offset "), "{cut}");
}

/// Behind an old watermark damage passes for a loss of power, and what was synced later is dropped
/// with it.
#[test]
fn the_watermark_is_never_older_than_the_begin_of_the_last_segment_that_was_synced() {
    let directory = directory_in_memory();
    let recorder = Recorder::below(directory.path());
    let mut image = Image::of(directory.path());
    let path = directory.path().join("store");
    let builder = Store::builder(&path).mode(OpenMode::Create).settings(options(4096));
    let store = builder.hooks(recorder.hooks()).open().unwrap();
    let mut random = Random::new(1);
    let mut segments = 0;
    for number in 0..100 {
        store.put(&key(number), &value(number)).unwrap();
        store.sync().unwrap();
        recorder.take().iter().for_each(|recorded| image.apply(&recorded.change));
        let (segment, offset) = watermark(&path);
        segments = segments.max(segment);
        let lost = directory_in_memory();
        image.after_power_loss(lost.path(), &mut random);
        let (found, up_to) = watermark(&lost.path().join("store"));
        assert!(found == segment && up_to <= offset, "{found} {up_to} of {segment} {offset}");
    }
    assert!(segments > 4, "{segments}");
    store.close().unwrap();
    // And once it is closed, nothing is left for replay to look at.
    let closed = watermark(&path);
    recorder.take().iter().for_each(|recorded| image.apply(&recorded.change));
    for _ in 0..20 {
        let lost = directory_in_memory();
        image.after_power_loss(lost.path(), &mut random);
        assert_eq!(watermark(&lost.path().join("store")), closed);
    }
}

/// Where the records of a WAL begin: its framing is a checksum of 4 bytes, a length of 2 and a
/// type, in blocks.
fn record_begins(wal: &[u8]) -> Vec<usize> {
    let (mut begins, mut at) = (Vec::new(), 0);
    while at + WAL_HEADER_BYTES <= wal.len() {
        if WAL_BLOCK_BYTES - at % WAL_BLOCK_BYTES < WAL_HEADER_BYTES {
            at = at.next_multiple_of(WAL_BLOCK_BYTES);
            continue;
        }
        let kind = wal[at + 6];
        if kind == FULL || kind == FIRST {
            begins.push(at);
        }
        at += WAL_HEADER_BYTES + usize::from(u16::from_le_bytes([wal[at + 4], wal[at + 5]]));
    }
    begins
}

const WAL_BLOCK_BYTES: usize = 32 * 1024;
const WAL_HEADER_BYTES: usize = 7;
const FULL: u8 = 1;
const FIRST: u8 = 2;

/// The numbers of the keys that are there, which must be the first ones.
fn prefix(path: &Path, options: StoreSettings, what: &str) -> u64 {
    recount_tables(path, what);
    let store = Store::open(path, OpenMode::Open, options).unwrap();
    let found: Vec<_> = store.scan(.., Direction::Forward, None).unwrap().map(|entry| entry.unwrap().0).collect();
    assert!(
        found.iter().eq((0..found.len() as u64).map(key).collect::<Vec<_>>().iter()),
        "{what}: a write is missing among others"
    );
    found.len() as u64
}

/// RocksDB passes over zeros to the end of their block, and goes on with the next one where that
/// begins with a record.
#[test]
fn zeros_between_two_records_of_the_wal_end_its_replay() {
    for separation in [None, options(4096).separation] {
        let options = StoreSettings { separation, ..options(4096) };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let store = Store::open(&path, OpenMode::Create, options.clone()).unwrap();
        let records = 20_000;
        (0..records).for_each(|number| store.put(&key(number), &vec![7; number as usize % 23]).unwrap());
        let lost = directory.path().join("lost");
        copy(&path, &lost);
        store.close().unwrap();
        let wal = lengths(&lost)
            .into_iter()
            .map(|(path, _)| path)
            .find(|path| path.extension().is_some_and(|it| it == "log"));
        let wal = wal.unwrap();
        let bytes = fs::read(&wal).unwrap();
        let begins = record_begins(&bytes);
        let at_block = begins.iter().position(|begin| *begin > 0 && begin % WAL_BLOCK_BYTES == 0);
        let at_block = at_block.expect("a block begins with a record");
        let mut holed = bytes.clone();
        holed[begins[at_block - 10]..begins[at_block]].fill(0);
        fs::write(&wal, holed).unwrap();
        let found = prefix(&lost, options, "a hole");
        assert!((1..records).contains(&found));
    }
}

/// Holds up the sync of a WAL, with which a flush begins, until it is told to go on.
#[derive(Default)]
struct SyncWaits {
    waits: std::sync::Mutex<(bool, bool)>,
    changed: std::sync::Condvar,
}

impl WriteTap for SyncWaits {
    fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
        if let TapEvent::Synced { path, .. } = event
            && path.extension().is_some_and(|extension| extension == "log")
        {
            let mut waits = self.waits.lock().unwrap();
            waits.0 = true;
            self.changed.notify_all();
            drop(self.changed.wait_while(waits, |(_, may_go_on)| !*may_go_on).unwrap());
        }
        Ok(())
    }
}

/// When a memtable is full, writes go to the next WAL. A loss of power may take any part of the WAL
/// before it until a flush has synced that.
#[test]
fn what_is_behind_the_lost_end_of_a_wal_is_lost_in_the_next_one_too() {
    for separation in [None, options(4096).separation] {
        let options = StoreSettings { separation, ..options(4096) };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let sync = Arc::<SyncWaits>::default();
        let hooks = FileSystemHooks { tap: Some(sync.clone()), ..FileSystemHooks::default() };
        let builder = Store::builder(&path).mode(OpenMode::Create).settings(options.clone());
        let store = builder.hooks(hooks).open().unwrap();
        (0..100).for_each(|number| store.put(&key(number), &value(number)).unwrap());
        store.flush(false).unwrap();
        drop(sync.changed.wait_while(sync.waits.lock().unwrap(), |(wait, _)| !*wait).unwrap());
        (100..150).for_each(|number| store.put(&key(number), &value(number)).unwrap());
        let left = directory.path().join("left");
        copy(&path, &left);
        sync.waits.lock().unwrap().1 = true;
        sync.changed.notify_all();
        store.close().unwrap();

        let wals: Vec<_> =
            files(&left).into_iter().filter(|path| path.extension().is_some_and(|it| it == "log")).collect();
        assert_eq!(wals.len(), 2);
        let bytes = fs::read(&wals[0]).unwrap();
        let cuts: Vec<_> = record_begins(&bytes).into_iter().step_by(9).chain([bytes.len()]).collect();
        for cut in cuts {
            for zeros in [false, true] {
                let lost = directory.path().join(format!("lost{cut}{zeros}"));
                copy(&left, &lost);
                let mut kept = bytes[..cut].to_vec();
                if zeros {
                    kept.resize(bytes.len(), 0);
                }
                fs::write(lost.join(wals[0].file_name().unwrap()), kept).unwrap();
                let what = format!("{cut} of {} bytes, then zeros: {zeros}", bytes.len());
                let found = prefix(&lost, options.clone(), &what);
                assert!(if cut == bytes.len() { found == 150 } else { found < 100 }, "{what}: {found}");
            }
        }
        // The file itself, whose name was never synced.
        fs::remove_file(left.join(wals[0].file_name().unwrap())).unwrap();
        assert_eq!(prefix(&left, options, "no first WAL"), 0);
    }
}
