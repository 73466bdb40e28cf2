//! Write-ahead logs that are appended to through a window in memory: RocksDB finds in them what it
//! would find in others.

use std::path::{Path, PathBuf};

use crate::common::{Model, content, copy_directory, key, small_store};
use crate::tmpfs::Tmpfs;
use ecotone_rocks::filesystem::{FileSystemHooks, hooked_env};
use rust_rocksdb::checkpoint::Checkpoint;
use rust_rocksdb::{DB, DBRecoveryMode, Options, WriteOptions};

fn options(maps_wals: bool) -> Options {
    let mut options = small_store();
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_track_and_verify_wals(true);
    options.set_env(&hooked_env(FileSystemHooks { maps_wals, ..FileSystemHooks::default() }).expect("an environment"));
    options
}

const MEMTABLE_BYTES: usize = 64 << 10;

fn logs(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("lists").map(|entry| entry.expect("lists").path());
    let mut logs: Vec<_> = entries.filter(|path| path.extension().is_some_and(|it| it == "log")).collect();
    logs.sort();
    logs
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).expect("is there").len()
}

/// Fills several logs of which no table has anything yet, and copies what a kill would leave.
fn killed() -> (tempfile::TempDir, Model) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = options(true);
    options.set_write_buffer_size(MEMTABLE_BYTES);
    options.set_max_write_buffer_number(100);
    options.set_min_write_buffer_number_to_merge(50);
    let db = DB::open(&options, directory.path()).expect("opens");
    let mut synced = WriteOptions::default();
    synced.set_sync(true);
    for number in 0..4000 {
        let value = vec![number as u8; number as usize % 70];
        if number % 100 == 0 {
            db.put_opt(key(number), value, &synced).expect("writes");
        } else {
            db.put(key(number), value).expect("writes");
        }
    }
    let model = content(&db);
    assert_eq!(model.len(), 4000);
    let copy = tempfile::tempdir().expect("a directory");
    copy_directory(directory.path(), copy.path());
    (copy, model)
}

#[test]
fn a_kill_leaves_logs_that_are_read_to_their_end() {
    let (directory, model) = killed();
    let lengths: Vec<_> = logs(directory.path()).iter().map(|log| length(log)).collect();
    let (_, older) = lengths.split_last().expect("there are logs");
    assert!(older.len() > 2, "{lengths:?}");
    let none_has_a_window = older.iter().all(|bytes| *bytes < 2 * MEMTABLE_BYTES as u64);
    assert!(none_has_a_window, "a log that is followed by another ends where it ends: {lengths:?}");
    // First read-only, which leaves everything as it is.
    let db = DB::open_for_read_only(&options(true), directory.path(), false).expect("opens");
    assert_eq!(content(&db), model);
    drop(db);
    for maps_wals in [false, true] {
        let copy = tempfile::tempdir().expect("a directory");
        copy_directory(directory.path(), copy.path());
        let db = DB::open(&options(maps_wals), copy.path()).expect("opens");
        assert_eq!(content(&db), model);
    }
}

#[test]
fn a_log_that_is_closed_ends_where_it_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let db = DB::open(&options(true), directory.path()).expect("opens");
    db.put(b"key", b"value").expect("writes");
    drop(db);
    let logs = logs(directory.path());
    assert!(length(&logs[0]) < 100, "{}", length(&logs[0]));
}

#[test]
fn a_checkpoint_has_what_was_written_and_no_more() {
    let directory = tempfile::tempdir().expect("a directory");
    let db = DB::open(&options(true), directory.path()).expect("opens");
    (0..500).for_each(|number| db.put(key(number), b"value").expect("writes"));
    let copy = directory.path().join("copy");
    // So large a log need not be flushed first.
    let checkpoint = Checkpoint::new(&db).expect("a checkpoint");
    checkpoint.create_checkpoint_with_log_size(&copy, 1 << 30).expect("a copy");
    let logs = logs(&copy);
    assert!(length(&logs[0]) < 100_000, "{}", length(&logs[0]));
    assert_eq!(content(&DB::open(&options(false), &copy).expect("opens")), content(&db));
}

#[test]
fn a_full_disk_is_an_error_of_the_write() {
    let Some(disk) = Tmpfs::mount(8 << 20) else { return };
    let directory = disk.path().join("store");
    let db = DB::open(&options(true), &directory).expect("opens");
    db.put(b"first", vec![1; 1000]).expect("writes");
    disk.fill();
    let mut acknowledged = 0;
    let error = loop {
        match db.put(key(acknowledged), vec![2; 1000]) {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 3000, "what was reserved before is all there is");
    };
    assert!(error.to_string().contains("No space left"), "{error}");
    let model = content(&db);
    disk.empty();
    drop(db);
    let found = content(&DB::open(&options(true), &directory).expect("opens"));
    for number in 0..acknowledged {
        assert_eq!(found.get(&key(number)), model.get(&key(number)), "write {number}");
        assert!(found.contains_key(&key(number)), "write {number} was acknowledged");
    }
}
