//! Repair of a sound store whose process was killed: whatever it was doing, nothing is lost, and
//! nothing is said to be doubtful.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::random::Random;
use crate::common::{collecting_early, value_of};
use ecotone_engine::{Direction, OpenMode, Store, StoreSettings};
use ecotone_inspect::{RepairReport, repair};

/// Where the child has its store, and of which layout.
const DIRECTORY: &str = "ECOTONE_TEST_REPAIR_KILLED";
const SEPARATED: &str = "ECOTONE_TEST_REPAIR_KILLED_SEPARATED";

/// Kills of each layout. A compaction or flush is nearly always under way.
const KILLS: usize = 12;

/// The same where none of them met one.
const MAX_KILLS: usize = 3 * KILLS;

const KEYS: u64 = 1_500;

fn options(separated: bool) -> StoreSettings {
    let separation = collecting_early(32 * 1024).separation.filter(|_| separated);
    StoreSettings { separation, memtable_bytes: 64 * 1024, target_file_bytes: 64 * 1024, ..collecting_early(32 * 1024) }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Not a test of its own: the child that the test below starts. Without its variables it has
/// nothing to do.
#[test]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let separated = std::env::var(SEPARATED).is_ok();
    let store = Store::open(Path::new(&directory), OpenMode::CreateOrOpen, options(separated)).unwrap();
    println!("open");
    let mut random = Random::new(u64::from(std::process::id()));
    for round in 0.. {
        let number = random.below(KEYS as usize) as u64;
        match random.below(400) {
            0 => store.delete_range(&key(number)[..]..&key(number + 20)[..]).unwrap(),
            1..40 => store.delete(&key(number)).unwrap(),
            length => store.put(&key(number), &value_of(&key(number), round, length * 3)).unwrap(),
        }
        if round % 100 == 0 {
            println!("written");
        }
    }
}

/// A process writes the store in `directory`, and is killed after so many hundred writes.
fn killed_after(directory: &Path, separated: bool, hundreds: usize) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if separated {
        command.env(SEPARATED, "yes");
    }
    let mut child = command
        .args(["repair_killed::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let written = lines.filter(|line| line.contains("written")).take(hundreds).count();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(written, hundreds, "it ended by itself");
}

fn contents(path: &Path, mode: OpenMode) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let store = Store::open(path, mode, StoreSettings::default()).unwrap();
    let entries = store.scan(.., Direction::Forward, None).unwrap();
    entries.map(Result::unwrap).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Repairs the store in `path`, which is sound: the report and where the new one is.
fn repaired(path: &Path) -> (RepairReport, PathBuf) {
    let into = path.with_file_name("saved");
    let _ = fs::remove_dir_all(&into);
    (repair(path, &into, |_| ()).unwrap(), into)
}

/// Whether the kill came while a record was written, so that the last one, which nobody was told
/// of, is there in part: the kernel gives up at the end of a page, and what is written into a
/// mapped file ends anywhere, with the zeros behind it that were set aside.
fn has_cut_a_write(path: &Path, report: &RepairReport) -> bool {
    const PAGE_BYTES: u64 = 4096;
    const MAX_RECORD_BYTES: u64 = 2 * 1024;
    let [cut] = &report.lost_wals[..] else { return false };
    let (end, file_bytes) = (cut.offset + cut.bytes, fs::metadata(path.join(&cut.wal)).unwrap().len());
    let is_at_a_page = cut.reason == "the file ends within a record" && file_bytes.is_multiple_of(PAGE_BYTES);
    is_at_a_page || (cut.bytes <= MAX_RECORD_BYTES && end < file_bytes)
}

#[track_caller]
fn assert_nothing_is_doubtful(path: &Path, report: &RepairReport) {
    if has_cut_a_write(path, report) {
        assert!(report.lost_table_count == 0 && report.lost_value_count == 0, "{report:?}");
        return;
    }
    assert!(report.is_complete() && !report.older_may_be_back && report.doubtful_entries == 0, "{report:?}");
    assert_eq!(report.unlisted_tables, report.unfinished_tables, "{report:?}");
}

fn nothing_is_doubtful_after_kills(separated: bool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let (mut random, mut unlisted) = (Random::new(7), 0);
    // Whether a kill meets a table that is being made is chance.
    for kill in 0..MAX_KILLS {
        if kill >= KILLS && unlisted > 0 {
            break;
        }
        // Some right after the start, when what the last process left behind is being removed.
        let hundreds = if kill % 4 == 3 { 1 } else { 5 + random.below(20) };
        killed_after(&path, separated, hundreds);
        let (report, saved) = repaired(&path);
        assert_nothing_is_doubtful(&path, &report);
        unlisted += report.unlisted_tables;
        assert_eq!(contents(&saved, OpenMode::ReadOnly), contents(&path, OpenMode::ReadOnly), "after kill {kill}");
    }
}

#[test]
fn a_plain_store_that_was_killed_is_saved_without_a_doubt() {
    nothing_is_doubtful_after_kills(false);
}

#[test]
fn a_store_with_a_value_log_that_was_killed_is_saved_without_a_doubt() {
    nothing_is_doubtful_after_kills(true);
}

fn tables(path: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut tables: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "sst")).collect();
    tables.sort();
    tables
}

/// A store with one table, which has `name` and `other`.
fn one_table(path: &Path) -> Store {
    let store = Store::open(path, OpenMode::Create, StoreSettings::default()).unwrap();
    store.put(b"name", b"old").unwrap();
    store.put(b"other", b"kept").unwrap();
    store.flush(true).unwrap();
    store
}

#[test]
fn a_table_that_was_given_up_and_not_removed_brings_nothing_back() {
    let directory = tempfile::tempdir().unwrap();
    let (path, other) = (directory.path().join("store"), directory.path().join("other"));
    one_table(&path).close().unwrap();
    // The MANIFEST of this process begins with what there is, and names the WAL that follows a
    // flush.
    let store = Store::open(&path, OpenMode::Open, StoreSettings::default()).unwrap();
    store.put(b"later", b"flushed").unwrap();
    store.flush(true).unwrap();
    store.put(b"last", b"logged").unwrap();
    store.close().unwrap();
    let expected = contents(&path, OpenMode::ReadOnly);
    // What a compaction long ago has deleted, in a table whose removal was cut short.
    let ghost = one_table(&other);
    ghost.put(b"ghost", b"value").unwrap();
    ghost.flush(true).unwrap();
    fs::copy(tables(&other).pop().unwrap(), path.join("000003.sst")).unwrap();
    let (report, saved) = repaired(&path);
    assert_nothing_is_doubtful(&path, &report);
    assert!(report.notes.iter().any(|note| note.contains("000003.sst")), "{report:?}");
    assert_eq!(contents(&saved, OpenMode::ReadOnly), expected);
}

#[test]
fn a_table_that_holds_what_nothing_else_does_counts_and_is_told() {
    let directory = tempfile::tempdir().unwrap();
    for is_deletion in [false, true] {
        let path = directory.path().join(format!("store-{is_deletion}"));
        let store = one_table(&path);
        store.close().unwrap();
        // As if the MANIFEST had lost its end: a table with a greater number, newer than all that
        // is named.
        let other = directory.path().join(format!("other-{is_deletion}"));
        copy(&path, &other);
        let store = Store::open(&other, OpenMode::Open, StoreSettings::default()).unwrap();
        if is_deletion {
            store.delete_range(&b"n"[..]..&b"nz"[..]).unwrap();
        } else {
            store.put(b"name", b"new").unwrap();
        }
        store.flush(true).unwrap();
        let newest = tables(&other).pop().unwrap();
        fs::copy(&newest, path.join("900000.sst")).unwrap();
        let (report, saved) = repaired(&path);
        assert_eq!((report.unlisted_tables, report.unfinished_tables), (1, 0), "{report:?}");
        assert!(report.older_may_be_back);
        let name = contents(&saved, OpenMode::ReadOnly).remove(&b"name"[..]);
        assert_eq!(name.as_deref(), (!is_deletion).then_some(&b"new"[..]));
    }
}

#[test]
fn a_copy_of_a_part_of_the_store_adds_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = one_table(&path);
    store.delete_range(&b"a"[..]..&b"b"[..]).unwrap();
    store.flush(true).unwrap();
    store.close().unwrap();
    for (number, table) in tables(&path).into_iter().enumerate() {
        fs::copy(&table, path.join(format!("{}.sst", 900_000 + number))).unwrap();
    }
    // And one that was cut while it was written.
    let bytes = fs::read(tables(&path).remove(0)).unwrap();
    fs::write(path.join("900009.sst"), &bytes[..bytes.len() / 2]).unwrap();
    let (report, saved) = repaired(&path);
    assert_nothing_is_doubtful(&path, &report);
    assert_eq!(report.unfinished_tables, 2, "{report:?}");
    assert_eq!(contents(&saved, OpenMode::ReadOnly), contents(&path, OpenMode::ReadOnly));
}
