//! `verify` and `space`: what they say of a sound store, and of one that is not.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common;
use crate::common::{Model, fill};
use ecotone_engine::header::{Header, Kind};
use ecotone_engine::{DATA_FAMILY, Error, LockHolder, OpenMode, Separation, Store, StoreSettings};
use ecotone_inspect::{Checking, FindingKind, space, verify};
use ecotone_rocks::properties::{EntryKind, TableCollector, TableCollectorFactory, TableContext, add_table_collector};

const DIRECTORY: &str = "ECOTONE_TEST_DIRECTORY";

fn separated() -> StoreSettings {
    StoreSettings { separation: Some(Separation { min_bytes: 50, segment_bytes: 64 * 1024 }), ..common::small() }
}

/// A store with tables and segments, closed, and how many entries it has.
fn closed() -> (tempfile::TempDir, PathBuf, u64) {
    let (directory, store) = common::store(separated());
    let mut model = Model::new();
    fill(&store, &mut model, 1, 4_000, 1_000);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    store.put(b"in the WAL", &[1; 100]).unwrap();
    store.close().unwrap();
    let path = directory.path().join("store");
    (directory, path, model.len() as u64 + 1)
}

/// Files whose names end so, the oldest first.
fn files(directory: &Path, end: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == end)).collect();
    files.sort();
    files
}

fn newest(directory: &Path, end: &str) -> PathBuf {
    files(directory, end).pop().unwrap()
}

#[test]
fn a_sound_store_is_sound_and_every_byte_has_its_place() {
    let (_directory, path, entries) = closed();
    let report = verify(&path, |_| ()).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.entries, entries);
    assert!(report.tables > 0 && report.segments > 0 && report.records > 0, "{report:?}");
    assert_eq!(report.torn_ends, []);

    let store = Store::open(&path, OpenMode::ReadOnly, separated()).unwrap();
    let space = space(&store).unwrap();
    let on_disk = |directory: &Path, end: &str| -> u64 {
        files(directory, end).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
    };
    assert_eq!(space.table_bytes(), on_disk(&path, "sst"));
    assert_eq!(space.segment_bytes(), on_disk(&path.join("values"), "segment"));
    assert_eq!(space.wal_bytes, on_disk(&path, "log"));
    assert!(space.referenced_bytes() > 0 && space.referenced_bytes() <= space.segment_bytes());
    assert_eq!((report.table_bytes, report.segment_bytes), (space.table_bytes(), space.segment_bytes()));
}

/// A store may have more segments than a process may have files open.
#[test]
fn few_segments_are_open_at_a_time_however_many_there_are() {
    let (_directory, path, _) = closed();
    let segments = files(&path.join("values"), "segment");
    let open_segments = || {
        let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|open| fs::read_link(open.unwrap().path()).ok());
        open.filter(|open| segments.contains(open)).count()
    };
    let mut most = 0;
    let report = verify(&path, |checking| {
        if matches!(checking, Checking::Segment { .. }) {
            most = most.max(open_segments());
        }
    });
    assert!(report.unwrap().is_sound());
    assert!(segments.len() > 5 && most <= 2, "{most} of {} at a time", segments.len());
}

#[test]
fn damage_is_found_wherever_it_is_and_named() {
    let (_directory, path, entries) = closed();
    for file in [newest(&path, "sst"), newest(&path.join("values"), "segment")] {
        let good = fs::read(&file).unwrap();
        for share in [0.3, 0.6, 0.9] {
            let mut bad = good.clone();
            let at = (bad.len() as f64 * share) as usize;
            bad[at] ^= 0x10;
            fs::write(&file, &bad).unwrap();
            let report = verify(&path, |_| ()).unwrap();
            let name = file.file_name().unwrap().to_str().unwrap();
            let named = report.damaged.iter().chain(&report.torn_ends).any(|finding| finding.place.contains(name));
            assert!(named, "{at} of {name}: {report:?}");
        }
        fs::write(&file, good).unwrap();
    }
    let report = verify(&path, |_| ()).unwrap();
    assert!(report.is_sound() && report.entries == entries);
}

#[test]
fn a_missing_segment_and_every_value_lost_with_it_are_named() {
    let (_directory, path, entries) = closed();
    let segments: Vec<_> = fs::read_dir(path.join("values")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let oldest = segments.iter().filter(|path| path.extension().is_some_and(|end| end == "segment")).min().unwrap();
    fs::remove_file(oldest).unwrap();
    let report = verify(&path, |_| ()).unwrap();
    assert!(!report.is_sound());
    let missing = &report.damaged[0];
    assert_eq!(missing.kind, FindingKind::DanglingPointer);
    assert!(missing.detail.contains("is missing") && missing.detail.contains(".sst"), "{missing:?}");
    assert_eq!(report.entries + report.damaged_count - 1, entries, "each lost value is one finding");
}

/// What a table is to say of the segments that its entries name, by what they do name.
type Say = fn(&mut BTreeMap<u32, u64>) -> Option<Vec<u8>>;

struct Sayers(Say);

impl TableCollectorFactory for Sayers {
    fn collector(&self, _context: TableContext) -> Option<Box<dyn TableCollector>> {
        Some(Box::new(Sayer { named: BTreeMap::new(), say: self.0 }))
    }
}

struct Sayer {
    named: BTreeMap<u32, u64>,
    say: Say,
}

impl TableCollector for Sayer {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        if kind == EntryKind::Put
            && let Kind::Separated(pointer) = Header::decode(value).unwrap().kind
        {
            let bytes = 12 + key.len() as u64 + u64::from(pointer.value_bytes);
            *self.named.entry(pointer.segment.0).or_default() += bytes;
        }
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        (self.say)(&mut self.named).map(|says| ("ecotone.values".into(), says)).into_iter().collect()
    }
}

fn encoded(named: &BTreeMap<u32, u64>) -> Option<Vec<u8>> {
    let item = |(segment, bytes): (&u32, &u64)| [&segment.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
    Some(named.iter().flat_map(item).collect())
}

/// Writes all tables of a closed store anew, each of which then says of itself what it is to.
fn write_tables_anew(path: &Path, say: Say) {
    let mut data = rust_rocksdb::Options::default();
    add_table_collector(&mut data, Arc::new(Sayers(say)));
    let options = rust_rocksdb::Options::default();
    let families = [("default", options.clone()), (DATA_FAMILY, data)];
    let db = rust_rocksdb::DB::open_cf_with_opts(&options, path, families).unwrap();
    let family = db.cf_handle(DATA_FAMILY).unwrap();
    db.flush_cf(&family).unwrap();
    let mut all = rust_rocksdb::CompactOptions::default();
    all.set_bottommost_level_compaction(rust_rocksdb::BottommostLevelCompaction::Force);
    db.compact_range_cf_opt(&family, None::<&[u8]>, None::<&[u8]>, &all);
}

#[test]
fn a_table_that_says_less_or_more_than_its_entries_name_is_found() {
    use FindingKind::{OverstatedReferences, UnderstatedReferences};
    let (_directory, path, entries) = closed();
    let cases: [(Say, Option<FindingKind>); 8] = [
        (|named| encoded(named), None),
        // It may name anything, and all is kept.
        (|_| None, None),
        (|_| Some(Vec::new()), Some(UnderstatedReferences)),
        (|_| Some(vec![7; 5]), Some(UnderstatedReferences)),
        (
            |named| {
                named.pop_first();
                encoded(named)
            },
            Some(UnderstatedReferences),
        ),
        (
            |named| {
                *named.first_entry().unwrap().get_mut() += 1;
                encoded(named)
            },
            Some(OverstatedReferences),
        ),
        (
            |named| {
                named.insert(99_999, 100);
                encoded(named)
            },
            Some(OverstatedReferences),
        ),
        // As much in all, but not of each.
        (
            |named| {
                *named.first_entry().unwrap().get_mut() += 1;
                *named.last_entry().unwrap().get_mut() -= 1;
                encoded(named)
            },
            Some(UnderstatedReferences),
        ),
    ];
    for (case, (say, kind)) in cases.into_iter().enumerate() {
        write_tables_anew(&path, say);
        let report = verify(&path, |_| ()).unwrap();
        assert_eq!((report.entries, report.tables), (entries, 1), "case {case}");
        let table = newest(&path, "sst").display().to_string();
        // What is said too much keeps garbage, and is no damage.
        let is_damage = kind == Some(UnderstatedReferences);
        let (listed, others) =
            if is_damage { (&report.damaged, &report.overstated) } else { (&report.overstated, &report.damaged) };
        let found: Vec<_> = listed.iter().map(|finding| (finding.kind, finding.place.clone())).collect();
        let expected: Vec<_> = kind.map(|kind| (kind, table)).into_iter().collect();
        assert_eq!(found, expected, "case {case}: {report:?}");
        assert!(others.is_empty(), "case {case}: {report:?}");
        assert_eq!(report.damaged_count + report.overstated_count, expected.len() as u64);
        assert_eq!((report.is_sound(), report.loses_by_writing()), (!is_damage, is_damage), "case {case}");
    }
}

/// The segment stays as long as a table refers to it, so what it names must be there, whoever can
/// read it.
#[test]
fn what_only_a_shadowed_version_names_is_missed_as_well() {
    for in_one_table in [false, true] {
        let (directory, store) = common::store(separated());
        store.put(b"visible", &[1; 100]).unwrap();
        store.put(b"hidden", &[2; 100]).unwrap();
        // It holds both versions until there is a copy.
        let snapshot = store.snapshot();
        if !in_one_table {
            store.flush(true).unwrap();
        }
        store.put(b"hidden", &[3; 10]).unwrap();
        store.flush(true).unwrap();
        let path = directory.path().join("copy");
        store.checkpoint(&path).unwrap();
        drop(snapshot);
        store.close().unwrap();
        let report = verify(&path, |_| ()).unwrap();
        assert!(report.is_sound() && report.entries == 2 && report.records == 2, "{report:?}");
        assert_eq!(report.tables, if in_one_table { 1 } else { 2 });

        let oldest_table = files(&path, "sst")[0].display().to_string();
        let segment = newest(&path.join("values"), "segment");
        let bytes = fs::metadata(&segment).unwrap().len();
        fs::OpenOptions::new().write(true).open(&segment).unwrap().set_len(bytes - 1).unwrap();
        let report = verify(&path, |_| ()).unwrap();
        let [finding] = &report.damaged[..] else { panic!("{report:?}") };
        assert_eq!((finding.kind, &finding.place), (FindingKind::DanglingPointer, &oldest_table));
        assert!(finding.detail.starts_with("1 of its entries") && finding.detail.contains("\"hidden\""), "{finding:?}");
        assert_eq!(report.entries, 2, "all that can be read is read");
    }
}

#[test]
fn the_end_of_a_segment_that_a_crash_tore_is_no_damage() {
    let (_directory, path, _) = closed();
    let last = newest(&path.join("values"), "segment");
    let mut bytes = fs::read(&last).unwrap();
    let sound = bytes.len();
    bytes.extend([7; 5]);
    fs::write(&last, bytes).unwrap();
    let report = verify(&path, |_| ()).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert!(report.torn_ends[0].place.ends_with(&format!("at offset {sound}")), "{:?}", report.torn_ends);
}

#[test]
fn what_is_missing_of_a_store_in_use_is_no_damage() {
    let (directory, store) = common::store(separated());
    let path = directory.path().join("store");
    // So few that only the WAL names them; and they are durable.
    fill(&store, &mut Model::new(), 1, 100, 100);
    store.sync().unwrap();
    fs::remove_file(path.join("values/000001.segment")).unwrap();
    let by_this_process = |error: &Error| matches!(error, Error::InUse { holder: LockHolder::ThisProcess, .. });
    let refused = Store::open(&path, OpenMode::ReadOnly, separated()).unwrap_err();
    assert!(by_this_process(&refused) && refused.to_string().contains("000001"), "{refused}");
    let refused = verify(&path, |_| ()).unwrap_err();
    assert!(by_this_process(&refused), "{refused}");
    // Once nobody else can have removed it, it is what it is.
    store.close().unwrap();
    let refused = Store::open(&path, OpenMode::ReadOnly, separated()).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
    assert!(!verify(&path, |_| ()).unwrap().is_sound());
}

/// Not a test of its own: the child that the test below starts. Without its variable it has nothing
/// to do.
#[test]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let store = Store::open(Path::new(&directory), OpenMode::Create, common::collecting_early(64 * 1024)).unwrap();
    for round in 0.. {
        fill(&store, &mut Model::new(), round, 2_000, 1_000);
        println!("removed {}", store.value_log().unwrap().removed_segments);
    }
}

#[test]
fn a_store_is_never_said_to_be_damaged_while_another_process_removes_segments() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["verify::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, &path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut removed = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok).filter_map(|line| {
        let number = line.strip_prefix("removed ")?.parse::<u64>().ok()?;
        Some(number)
    });
    let (mut before, mut in_use) = (0, 0);
    let mut expect = |outcome: Result<bool, Error>| match outcome {
        Ok(is_sound) => assert!(is_sound),
        Err(Error::InUse { holder: LockHolder::AnotherProcess { .. }, .. }) => in_use += 1,
        Err(other) => panic!("{other}"),
    };
    for _ in 0..20 {
        // Some go between two looks, and so probably during one.
        before = removed.find(|removed| *removed > before).unwrap();
        expect(verify(&path, |_| ()).map(|report| report.is_sound()));
        let reader = Store::open(&path, OpenMode::ReadOnly, separated());
        expect(reader.and_then(|reader| space(&reader)).map(|space| space.segment_bytes() > 0));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(in_use > 0, "nothing was missing of a store in use, so this has tested nothing");
    let report = verify(&path, |_| ()).unwrap();
    assert!(report.is_sound(), "{report:?}");
}
