//! Damage of the logs and segments of a store that was killed, against what was acknowledged: every
//! kind of it, at every place, with each durability, in both layouts.
//!
//! What was synced is never taken for a torn end: the store is refused, with the file and an offset
//! at or before the damage. What was not may be dropped, with what follows it, and then a warning
//! says how much. Values that are separated and are damaged are an error of who reads them. What
//! `verify` says agrees with that.

use crate::common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::appended::{segment_records, wal_records};
use common::disk::{contents_below, write_contents};
use common::random::Random;
use common::{directory_in_memory, value_of, warnings};
use ecotone_engine::{Direction, Durability, Error, OpenMode, Separation, Store, StoreSettings, WriteOptions};
use ecotone_inspect::{FindingKind, verify};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::FileSystemHooks;

type Contents = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// Writes that a flush has brought into a table.
const IN_TABLE: u64 = 50;

/// Up to here all is durable, whatever the durability of the store.
const SYNCED: u64 = 400;

/// Writes in all.
const WRITES: u64 = 700;

/// What a page and a sector are, and one byte.
const AREAS: [usize; 3] = [4096, 512, 1];

fn options(durability: Durability, separated: bool) -> StoreSettings {
    StoreSettings {
        durability,
        separation: separated.then_some(Separation { min_bytes: 100, segment_bytes: 1 << 20 }),
        memtable_bytes: 16 << 20,
        ..common::small()
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// So that pages of the WAL begin in records and between them.
fn value(number: u64) -> Vec<u8> {
    value_of(&key(number), number, 110 + (number % 7) as usize)
}

/// Of a store that is open: what is there twice in a row.
fn contents_at_rest(path: &Path) -> Contents {
    let look = || std::panic::catch_unwind(|| contents_below(path)).ok();
    let mut before = look();
    loop {
        std::thread::sleep(Duration::from_millis(20));
        match look() {
            Some(now) if before.as_ref() == Some(&now) => return now,
            now => before = now,
        }
    }
}

/// What a kill left.
struct Killed {
    files: Contents,
    durability: Durability,
    /// The logs as they were when all was durable.
    synced: Contents,
}

impl Killed {
    fn new(durability: Durability, separated: bool) -> Self {
        let directory = directory_in_memory();
        let path = directory.path().join("store");
        let store = Store::open(&path, OpenMode::Create, options(durability, separated)).unwrap();
        (0..IN_TABLE).for_each(|number| store.put(&key(number), &value(number)).unwrap());
        store.flush(true).unwrap();
        (IN_TABLE..SYNCED - 1).for_each(|number| store.put(&key(number), &value(number)).unwrap());
        // One write that is to be durable vouches for all before it.
        store.put_opt(&key(SYNCED - 1), &value(SYNCED - 1), WriteOptions::durable(Durability::Always)).unwrap();
        let synced = contents_at_rest(&path);
        (SYNCED..WRITES).for_each(|number| store.put(&key(number), &value(number)).unwrap());
        let files = contents_at_rest(&path);
        store.close().unwrap();
        Self { files, durability, synced }
    }

    fn file(&self, is_it: impl Fn(&str) -> bool) -> (PathBuf, Vec<u8>) {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut found = self.files.iter().filter(|(path, bytes)| bytes.is_some() && is_it(&name(path)));
        let (path, bytes) = found.next_back().unwrap();
        (path.clone(), bytes.clone().unwrap())
    }

    /// So many bytes of a file are durable for certain. The rest may be, where syncs come by
    /// themselves.
    fn durable_bytes(&self, file: &Path) -> usize {
        let of = if self.durability == Durability::Always { &self.files } else { &self.synced };
        written(of[file].as_ref().unwrap())
    }
}

/// Without the zeros at its end.
fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Random,
    Zeros,
    /// What another page of the file holds.
    Older,
    Cut,
    /// Zeros up to the end of the file, whatever the area.
    ZeroTail,
}

/// Damages `bytes` in the area of this size that the byte `at` lies in. Where they differ first, if
/// they do.
fn damage(bytes: &mut Vec<u8>, kind: Kind, at: usize, area: usize, random: &mut Random) -> Option<usize> {
    let sound = bytes.clone();
    if at >= written(bytes) {
        return None;
    }
    let begin = at / area * area;
    let end = (begin + area).min(written(bytes));
    match kind {
        Kind::Random if area == 1 => bytes[at] ^= 0x5A,
        Kind::Random => bytes[begin..end].iter_mut().for_each(|byte| *byte = random.next() as u8),
        Kind::Zeros => bytes[begin..end].fill(0),
        Kind::Older => {
            let from = begin.checked_sub(4096).unwrap_or(4096.min(bytes.len() / 2));
            let end = end.min(begin + bytes.len() - from);
            bytes.copy_within(from..from + (end - begin), begin);
        }
        Kind::Cut => bytes.truncate(begin),
        Kind::ZeroTail => bytes[at..].fill(0),
    }
    let differs = sound.iter().zip(&*bytes).position(|(before, now)| before != now);
    differs.or((bytes.len() < written(&sound)).then_some(bytes.len()))
}

/// All damages of a file with records at these places.
fn damages(sound: &[u8], records: &[usize], mut look: impl FnMut(&[u8], usize, Kind, &str)) {
    let mut random = Random::new(1);
    let places = [records[0], records[records.len() / 2], *records.last().unwrap()];
    for kind in [Kind::Random, Kind::Zeros, Kind::Older, Kind::Cut, Kind::ZeroTail] {
        for (place, record) in ["first", "middle", "last"].iter().zip(places) {
            for area in AREAS {
                // Its begin, or within it.
                for at in [record, record + 20] {
                    if kind == Kind::ZeroTail && area != AREAS[0] {
                        continue;
                    }
                    let mut bytes = sound.to_vec();
                    if let Some(hit) = damage(&mut bytes, kind, at, area, &mut random) {
                        let what = format!("{kind:?}, {area} bytes at {at}, in the {place} record");
                        look(&bytes, hit, kind, &what);
                    }
                }
            }
        }
    }
}

/// What became of a damaged store.
enum Outcome {
    /// Where it is said to be damaged.
    Refused(String),
    /// The values that can be read, in the order of their numbers; and whether it was said that
    /// something was left out.
    Opened { found: Vec<Result<u64, String>>, warned: bool },
}

/// Opens a store, and asks `verify` before.
fn look(files: &Contents, options: StoreSettings, what: &str) -> Outcome {
    let directory = directory_in_memory();
    let path = directory.path().join("store");
    write_contents(&path, files);
    let report = verify(&path, |_| ()).unwrap_or_else(|error| panic!("{what}: verify says {error}"));
    match Store::open(&path, OpenMode::Open, options) {
        Err(Error::Corrupt { location: Some(location), detail }) => {
            let is_it = |place: &str| Path::new(place).file_name() == Path::new(&location).file_name();
            let found = report.damaged.iter().any(|finding| is_it(&finding.place));
            assert!(found, "{what}: {location}: {detail}, and verify says {report:?}");
            assert!(!detail.contains("record") || detail.contains("would lose"), "{what}: {detail}");
            Outcome::Refused(location)
        }
        Err(error) => panic!("{what}: {error:?}"),
        Ok(store) => {
            let found = (0..WRITES).filter_map(|number| match store.get(&key(number)) {
                Ok(None) => None,
                Ok(Some(found)) => {
                    assert_eq!(&found[..], value(number), "{what}: of write {number}");
                    Some(Ok(number))
                }
                Err(Error::Corrupt { location, .. }) => Some(Err(location.unwrap())),
                Err(error) => panic!("{what}: {error}"),
            });
            let found: Vec<_> = found.collect();
            let said = warnings::about(&path);
            let warned = said.iter().any(|said| said.contains("dropped_"));
            let noted = report.torn_ends.iter().any(|finding| finding.detail.contains("left out"));
            assert_eq!(warned, noted, "{what}: {said:?}, and verify says {report:?}");
            let unreadable = found.iter().any(Result::is_err);
            assert_eq!(report.is_sound(), !unreadable, "{what}: {report:?}");
            store.close().unwrap();
            Outcome::Opened { found, warned }
        }
    }
}

/// The first numbers, one after the other.
fn assert_prefix(found: &[Result<u64, String>], least: u64, what: &str) {
    assert!(found.iter().cloned().eq((0..found.len() as u64).map(Ok)), "{what}: not the first writes: {found:?}");
    assert!(found.len() as u64 >= least, "{what}: {} of {least} durable writes", found.len());
}

/// From the begin of the record that `hit` lies in up to there. Before the first one may be what is
/// said of the WAL before.
fn record_of(records: &[usize], hit: usize) -> Range<usize> {
    let number = records.partition_point(|begin| *begin <= hit);
    number.checked_sub(1).map_or(0, |number| records[number])..hit + 1
}

fn offset_in(location: &str, file: &Path) -> usize {
    let name = file.file_name().unwrap().to_str().unwrap();
    let offset = location.split_once(&format!("{name} at offset ")).map(|(_, offset)| offset.parse());
    offset.unwrap_or_else(|| panic!("{location} names {name}")).unwrap()
}

fn every_damage_of_the_wal(durability: Durability, separated: bool) {
    warnings::listen();
    let killed = Killed::new(durability, separated);
    let (wal, sound) = killed.file(|name| name.ends_with(".log"));
    let records = wal_records(&sound);
    assert_eq!(records.len() as u64, WRITES - IN_TABLE);
    let durable_bytes = killed.durable_bytes(&wal);
    let durable = if durability == Durability::Always { WRITES } else { SYNCED };
    let (mut refused, mut dropped) = (0, 0);
    damages(&sound, &records, |bytes, hit, kind, what| {
        let what = format!("{durability:?}, apart: {separated}, {what}, {durable_bytes} of {} durable", sound.len());
        let mut files = killed.files.clone();
        files.insert(wal.clone(), Some(bytes.to_vec()));
        match look(&files, options(durability, separated), &what) {
            Outcome::Refused(location) => {
                let offset = offset_in(&location, &wal);
                assert!(record_of(&records, hit).contains(&offset), "{what}: {location}, it begins at {hit}");
                // Nothing that a crash leaves is refused: zeros and a shorter file.
                let may_be_a_crash =
                    durability == Durability::None && matches!(kind, Kind::Zeros | Kind::Cut | Kind::ZeroTail);
                assert!(hit < durable_bytes || !may_be_a_crash, "{what}: {location}");
                refused += 1;
            }
            Outcome::Opened { found, warned } => {
                assert!(hit >= durable_bytes, "{what}: the damage begins at {hit}");
                assert_prefix(&found, durable, &what);
                let is_whole = found.len() as u64 == WRITES;
                // Cut between two records nobody can tell.
                let is_between = matches!(kind, Kind::Cut | Kind::ZeroTail) && records.contains(&hit);
                assert!(is_whole || warned || is_between, "{what}: {} left", found.len());
                dropped += u64::from(!is_whole);
            }
        }
    });
    assert!(refused > 20, "{refused}");
    // Syncs that come by themselves may have come.
    assert!((dropped > 0) == (durability == Durability::None) || durability == Durability::EverySecond, "{dropped}");
}

#[test]
fn every_damage_of_a_wal_where_each_write_is_synced_is_refused() {
    [false, true].into_iter().for_each(|separated| every_damage_of_the_wal(Durability::Always, separated));
}

#[test]
fn damage_of_what_was_synced_by_hand_is_refused_and_what_was_not_is_dropped_with_a_warning() {
    [false, true].into_iter().for_each(|separated| every_damage_of_the_wal(Durability::None, separated));
}

#[test]
fn damage_of_what_was_synced_in_the_background_is_refused() {
    [false, true].into_iter().for_each(|separated| every_damage_of_the_wal(Durability::EverySecond, separated));
}

#[test]
fn every_damage_of_the_manifest_is_refused() {
    warnings::listen();
    let killed = Killed::new(Durability::None, false);
    let (manifest, sound) = killed.file(|name| name.starts_with("MANIFEST-"));
    let records = wal_records(&sound);
    assert!(records.len() > 3, "{records:?}");
    damages(&sound, &records, |bytes, hit, _, what| {
        let mut files = killed.files.clone();
        files.insert(manifest.clone(), Some(bytes.to_vec()));
        let Outcome::Refused(location) = look(&files, options(Durability::None, false), what) else {
            panic!("{what}: it was opened");
        };
        let offset = offset_in(&location, &manifest);
        assert!(record_of(&records, hit).contains(&offset), "{what}: {location}, it begins at {hit}");
    });
    // Where nobody knows what is durable, as in a store of an earlier version, by what stands
    // behind it.
    for begin in [records[0], records[1], records[records.len() - 2]] {
        let mut files = killed.files.clone();
        files.remove(Path::new("DURABLE")).unwrap();
        let mut holed = sound.clone();
        holed[begin..begin + 20].fill(0);
        files.insert(manifest.clone(), Some(holed));
        let Outcome::Refused(location) = look(&files, options(Durability::None, false), "a hole") else {
            panic!("a hole at {begin}: it was opened");
        };
        assert_eq!(offset_in(&location, &manifest), begin);
    }
}

/// Of values that are separated each is read with a checksum of its own: who reads one that is
/// damaged is told, and none is missing.
#[test]
fn every_damage_of_a_segment_is_told_to_who_reads_it() {
    warnings::listen();
    for durability in [Durability::Always, Durability::None] {
        let killed = Killed::new(durability, true);
        let (segment, sound) = killed.file(|name| name.ends_with(".segment"));
        let records: Vec<_> = segment_records(&sound).iter().map(|record| record.start).collect();
        let durable_bytes = killed.durable_bytes(&segment);
        let durable = if durability == Durability::Always { WRITES } else { SYNCED };
        damages(&sound, &records, |bytes, hit, _, what| {
            let what = format!("{durability:?}, {what}, {durable_bytes} of {} durable", sound.len());
            let mut files = killed.files.clone();
            files.insert(segment.clone(), Some(bytes.to_vec()));
            match look(&files, options(durability, true), &what) {
                Outcome::Refused(location) => {
                    assert!(location.contains(".segment at offset "), "{what}: {location}");
                }
                Outcome::Opened { found, warned } => {
                    let unreadable: Vec<_> = found.iter().filter_map(|found| found.as_ref().err()).collect();
                    assert!(
                        unreadable.iter().all(|place| place.contains(".segment at offset ")),
                        "{what}: {unreadable:?}"
                    );
                    assert!(found.len() as u64 >= durable, "{what}: {} left", found.len());
                    assert!(found.len() as u64 == WRITES || warned, "{what}: {} left", found.len());
                    assert!(hit >= durable_bytes || !unreadable.is_empty(), "{what}: all can be read");
                }
            }
        });
    }
}

/// Holds up the tables that flushes make until it is told to go on.
#[derive(Default)]
struct NoTableYet {
    waits: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl WriteTap for NoTableYet {
    fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
        if let TapEvent::Created { path } = event
            && path.extension().is_some_and(|extension| extension == "sst")
        {
            let mut waits = self.waits.lock().unwrap();
            waits.0 = true;
            self.changed.notify_all();
            drop(self.changed.wait_while(waits, |(_, may_go_on)| !*may_go_on).unwrap());
        }
        Ok(())
    }
}

/// While a memtable is flushed its writes are in a WAL that another one follows.
#[test]
fn damage_of_any_of_several_wals_is_refused() {
    warnings::listen();
    for separated in [false, true] {
        let directory = directory_in_memory();
        let path = directory.path().join("store");
        let tables = Arc::<NoTableYet>::default();
        let hooks = FileSystemHooks { tap: Some(tables.clone()), ..FileSystemHooks::default() };
        let builder = Store::builder(&path).mode(OpenMode::Create).settings(options(Durability::Always, separated));
        let store = builder.hooks(hooks).open().unwrap();
        (0..SYNCED).for_each(|number| store.put(&key(number), &value(number)).unwrap());
        store.flush(false).unwrap();
        drop(tables.changed.wait_while(tables.waits.lock().unwrap(), |(wait, _)| !*wait).unwrap());
        (SYNCED..WRITES).for_each(|number| store.put(&key(number), &value(number)).unwrap());
        let sound = contents_at_rest(&path);
        tables.waits.lock().unwrap().1 = true;
        tables.changed.notify_all();
        store.close().unwrap();

        let plain = || options(Durability::Always, separated);
        match look(&sound, plain(), "nothing is damaged") {
            Outcome::Opened { found, warned } => {
                assert_prefix(&found, WRITES, "nothing is damaged");
                assert!(!warned);
            }
            Outcome::Refused(location) => panic!("nothing is damaged but {location}"),
        }
        let wals: Vec<_> = sound.keys().filter(|path| path.extension().is_some_and(|it| it == "log")).collect();
        assert_eq!(wals.len(), 2);
        for wal in wals {
            let bytes = sound[wal].as_ref().unwrap();
            let records = wal_records(bytes);
            let (middle, last) = (records[records.len() / 2], *records.last().unwrap());
            let holed = |at: usize| {
                let mut bytes = bytes.clone();
                bytes[at..at + 30].fill(0);
                Some(bytes)
            };
            let cut = |at: usize| Some(bytes[..at].to_vec());
            for (what, damaged) in [
                ("a hole in the middle", holed(middle)),
                ("a hole at its end", holed(last)),
                ("its last record cut off", cut(last)),
                ("all cut off", cut(0)),
                ("the file removed", None),
            ] {
                let what = format!("{what} of {wal:?}");
                let mut files = sound.clone();
                files.remove(wal);
                files.extend(damaged.map(|bytes| (wal.clone(), Some(bytes))));
                let directory = directory_in_memory();
                let path = directory.path().join("store");
                write_contents(&path, &files);
                let refused = Store::open(&path, OpenMode::Open, plain()).map(drop).unwrap_err();
                let said = refused.to_string();
                // Of a WAL in the middle that is gone RocksDB says its number.
                let name = wal.to_str().unwrap();
                let number = name.trim_start_matches('0').trim_end_matches(".log");
                assert!(matches!(refused, Error::Corrupt { .. }), "{what}: {refused:?}");
                let is_missed = said.contains("Missing WAL") && said.contains(&format!(": {number}"));
                assert!(said.contains(name) || is_missed, "{what}: {said}");
                assert!(!verify(&path, |_| ()).unwrap().is_sound(), "{what}");
            }
        }
    }
}

#[test]
fn a_record_that_a_kill_has_cut_is_told_and_a_clean_end_is_not() {
    warnings::listen();
    for separated in [false, true] {
        let killed = Killed::new(Durability::Always, separated);
        let (wal, sound) = killed.file(|name| name.ends_with(".log"));
        let last = *wal_records(&sound).last().unwrap();
        // A record may end in zeros.
        let end = last + 7 + usize::from(u16::from_le_bytes([sound[last + 4], sound[last + 5]]));
        for torn in [0, 1, 6, 7, 40] {
            let directory = directory_in_memory();
            let path = directory.path().join("store");
            let mut files = killed.files.clone();
            let mut bytes = sound[..end].to_vec();
            bytes.extend_from_slice(&sound[last..last + torn]);
            let dropped = written(&bytes) - end;
            bytes.resize(bytes.len().next_multiple_of(4096), 0);
            files.insert(wal.clone(), Some(bytes));
            write_contents(&path, &files);
            let report = verify(&path, |_| ()).unwrap();
            assert!(report.is_sound() && report.torn_ends.len() == usize::from(torn > 0), "{torn}: {report:?}");
            assert!(report.torn_ends.iter().all(|finding| finding.kind == FindingKind::TornEnd), "{report:?}");
            let before = warnings::about(&path).len();
            let store = Store::open(&path, OpenMode::Open, options(Durability::Always, separated)).unwrap();
            let said = warnings::about(&path).split_off(before);
            assert_eq!(store.scan(.., Direction::Forward, None).unwrap().count() as u64, WRITES);
            store.close().unwrap();
            match &said[..] {
                [] => assert_eq!(torn, 0),
                [said] => assert!(
                    said.contains(&format!(
                        "offset: {end} dropped_bytes: {dropped} dropped_records: 0 dropped_writes: 0 "
                    )),
                    "{said}"
                ),
                more => panic!("{torn}: {more:?}"),
            }
        }
    }
}

/// A store of an earlier version, or one that a loss of power has left, does not say what was
/// durable.
#[test]
fn where_nobody_knows_what_was_durable_it_is_said_how_much_is_dropped() {
    warnings::listen();
    for separated in [false, true] {
        let killed = Killed::new(Durability::Always, separated);
        let (wal, sound) = killed.file(|name| name.ends_with(".log"));
        let records = wal_records(&sound);
        let hole = records[100];
        for hole_bytes in [64, 4096] {
            let mut files = killed.files.clone();
            files.remove(Path::new("DURABLE")).unwrap();
            let mut bytes = sound.clone();
            bytes[hole..hole + hole_bytes].fill(0);
            files.insert(wal.clone(), Some(bytes));
            let directory = directory_in_memory();
            let path = directory.path().join("store");
            write_contents(&path, &files);
            let store = Store::open(&path, OpenMode::Open, options(Durability::Always, separated)).unwrap();
            let kept = IN_TABLE + 100;
            assert_eq!(store.scan(.., Direction::Forward, None).unwrap().count() as u64, kept);
            store.close().unwrap();
            let said = warnings::about(&path);
            let dropped = format!("offset: {hole} dropped_bytes: {} dropped_records: ", written(&sound) - hole);
            let writes = format!("dropped_writes: {} from_write: {} ", WRITES - kept, kept + 1);
            assert!(said.len() == 1 && said[0].contains(&dropped) && said[0].contains(&writes), "{said:?}");
        }
    }
}

#[test]
fn damage_of_a_wal_whose_writes_are_all_in_tables_is_no_reason_to_refuse() {
    for separated in [false, true] {
        let directory = directory_in_memory();
        let path = directory.path().join("store");
        let store = Store::open(&path, OpenMode::Create, options(Durability::Always, separated)).unwrap();
        (0..WRITES).for_each(|number| store.put(&key(number), &value(number)).unwrap());
        let wals =
            |files: Contents| files.into_iter().filter(|(path, _)| path.extension().is_some_and(|it| it == "log"));
        let mut before: Contents = wals(contents_at_rest(&path)).collect();
        store.flush(true).unwrap();
        store.put(&key(WRITES), &value(WRITES)).unwrap();
        store.close().unwrap();
        // What a kill leaves between the record of the MANIFEST and the removal.
        let now: Contents = wals(contents_below(&path)).collect();
        before.retain(|wal, _| !now.contains_key(wal));
        assert_eq!(before.len(), 1, "{before:?}");
        for (wal, bytes) in before {
            let mut bytes = bytes.unwrap();
            bytes[2000] ^= 0x5A;
            std::fs::write(path.join(wal), bytes).unwrap();
        }
        let store = Store::open(&path, OpenMode::Open, options(Durability::Always, separated)).unwrap();
        for number in 0..=WRITES {
            assert_eq!(store.get(&key(number)).unwrap().as_deref(), Some(&value(number)[..]), "{number}");
        }
    }
}
