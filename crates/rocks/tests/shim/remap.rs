//! A store under a name that leads elsewhere: nothing of it may appear, or be looked for, under the
//! name.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::{FileSystemHooks, PathRemap, hooked_env};
use ecotone_rocks::tables::live_tables;
use rust_rocksdb::checkpoint::Checkpoint;
use rust_rocksdb::{DB, DBPath, Options};

use crate::common::{content, key, small_store};

struct Elsewhere {
    name: PathBuf,
    directory: PathBuf,
}

impl PathRemap for Elsewhere {
    fn map(&self, path: &Path) -> Option<PathBuf> {
        Some(self.directory.join(path.strip_prefix(&self.name).ok()?))
    }
}

#[derive(Default)]
struct Paths(Mutex<Vec<(PathBuf, &'static str)>>);

impl WriteTap for Paths {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let kind = match event {
            TapEvent::Linked { .. } => "linked",
            TapEvent::Renamed { .. } => "renamed",
            TapEvent::DirectoryCreated { .. } => "directory",
            _ => "other",
        };
        self.0.lock().expect("not poisoned").push((event.path().to_owned(), kind));
        Ok(())
    }
}

/// What lies in a directory, and nothing when it is gone.
fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.expect("lists").path()).collect()
}

/// With directories for WALs and tables of their own, or with a checkpoint, which RocksDB makes
/// only without these.
fn leaves_no_trace(own_directories: bool) {
    let (name, real) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let tap = Arc::new(Paths::default());
    let remap = Elsewhere { name: name.path().to_owned(), directory: real.path().to_owned() };
    let hooks = FileSystemHooks { tap: Some(tap.clone()), remap: Some(Arc::new(remap)), ..FileSystemHooks::default() };
    let env = hooked_env(hooks).expect("an environment");
    let options = || {
        let mut options: Options = small_store();
        options.set_env(&env);
        if own_directories {
            options.set_wal_dir(name.path().join("wal"));
            let paths = [DBPath::new(name.path().join("tables"), 1 << 30).expect("a path")];
            options.set_db_paths(&paths);
        }
        options
    };
    let db = DB::open(&options(), name.path()).expect("opens");
    for number in 0..200 {
        db.put(key(number), b"value").expect("writes");
        if number % 50 == 0 {
            db.flush().expect("flushes");
        }
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>);
    let model = content(&db);
    let (tables, wals) = if own_directories { ("tables", "wal") } else { ("", "") };
    if !own_directories {
        Checkpoint::new(&db).expect("can").create_checkpoint(name.path().join("checkpoint")).expect("a checkpoint");
        let mut plain = small_store();
        plain.create_if_missing(false);
        let copy = DB::open(&plain, real.path().join("checkpoint")).expect("a plain store, without hooks");
        assert_eq!(content(&copy), model);
    }
    assert!(DB::open(&options(), name.path()).is_err(), "the lock is found, too");
    for table in live_tables(&db).expect("lists") {
        assert!(table.directory.starts_with(name.path()), "RocksDB knows only the name");
        assert!(real.path().join(tables).join(&table.name).exists());
    }
    drop(db);
    assert_eq!(content(&DB::open(&options(), name.path()).expect("opens again")), model);
    assert_eq!(files(name.path()), [] as [PathBuf; 0], "nothing lies under the name");
    let wal = |path: &Path| path.extension().is_some_and(|extension| extension == "log");
    assert!(files(&real.path().join(wals)).iter().any(|path| wal(path)));

    let seen = tap.0.lock().expect("not poisoned");
    assert!(seen.iter().all(|(path, _)| path.starts_with(name.path())), "the tap is told RocksDB's names");
    let saw = |kind| seen.iter().any(|(_, seen)| *seen == kind);
    assert!(saw("renamed") && saw("directory"));
    assert_eq!(saw("linked"), !own_directories, "a checkpoint links tables");
    drop(seen);
    DB::destroy(&options(), name.path()).expect("destroys");
    let table = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sst");
    assert!(!files(&real.path().join(tables)).iter().any(table), "its files are gone, where they lay");
}

#[test]
fn a_store_under_another_name_leaves_no_trace_there() {
    leaves_no_trace(false);
}

#[test]
fn a_store_of_several_directories_under_another_name_leaves_no_trace_there() {
    leaves_no_trace(true);
}
