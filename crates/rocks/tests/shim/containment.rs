//! Hooks that panic, fail or lie: one operation fails, the process and the store live on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{content, key, small_store};
use ecotone_io::remote_files::{RangedRead, RemoteFiles};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::contained_failures;
use ecotone_rocks::filesystem::{FileSystemHooks, PathRemap, hooked_env};
use ecotone_rocks::properties::{EntryKind, TableCollector, TableCollectorFactory, TableContext, add_table_collector};
use ecotone_rocks::tables::collected_properties;
use ecotone_rocks::version;
use rust_rocksdb::checkpoint::Checkpoint;
use rust_rocksdb::{DB, DBPath, ErrorKind, Options, SstFileWriter};

fn with_hooks(mut options: Options, hooks: FileSystemHooks) -> Options {
    options.set_env(&hooked_env(hooks).expect("an environment"));
    options
}

#[test]
fn the_linked_rocksdb_is_the_one_the_shim_was_written_for() {
    version::self_test().expect("fits");
    assert_eq!(version::headers(), version::library());
    assert_eq!((version::library().major, version::library().minor), version::SUPPORTED);
}

#[derive(Clone, Copy)]
enum Fault {
    Panic,
    Error(io::ErrorKind),
}

impl Fault {
    fn strike<T>(self) -> io::Result<T> {
        match self {
            Self::Panic => panic!("struck forcibly"),
            Self::Error(kind) => Err(io::Error::new(kind, "struck forcibly")),
        }
    }
}

/// Fails what touches files that end in `suffix`, once armed.
struct FaultyTap {
    armed: AtomicBool,
    suffix: &'static str,
    fault: Fault,
}

impl WriteTap for FaultyTap {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        if self.armed.load(Ordering::SeqCst) && event.path().to_string_lossy().ends_with(self.suffix) {
            return self.fault.strike();
        }
        Ok(())
    }
}

fn store_with_faulty_tap(directory: &Path, suffix: &'static str, fault: Fault) -> (DB, Arc<FaultyTap>) {
    let tap = Arc::new(FaultyTap { armed: AtomicBool::new(false), suffix, fault });
    let hooks = FileSystemHooks { tap: Some(tap.clone()), ..FileSystemHooks::default() };
    (DB::open(&with_hooks(small_store(), hooks), directory).expect("opens"), tap)
}

#[test]
fn a_tap_that_fails_on_the_wal_fails_that_write_and_loses_nothing_acknowledged() {
    for fault in [Fault::Panic, Fault::Error(io::ErrorKind::Other), Fault::Error(io::ErrorKind::StorageFull)] {
        let directory = tempfile::tempdir().expect("a directory");
        let (db, tap) = store_with_faulty_tap(directory.path(), ".log", fault);
        db.put(b"before", b"1").expect("writes");
        let failures = contained_failures();
        tap.armed.store(true, Ordering::SeqCst);
        let error = db.put(b"during", b"2").expect_err("the write fails");
        assert_eq!(error.kind(), ErrorKind::IOError, "{error}");
        assert!(error.as_ref().contains("struck forcibly"), "{error}");
        let counted = contained_failures();
        assert!(
            counted.hook_panics + counted.hook_errors > failures.hook_panics + failures.hook_errors,
            "the failure is counted"
        );
        assert_eq!(db.get(b"before").expect("reads").as_deref(), Some(&b"1"[..]), "reads go on");
        drop(db);
        let db = DB::open(&small_store(), directory.path()).expect("opens without hooks");
        assert_eq!(db.get(b"before").expect("reads").as_deref(), Some(&b"1"[..]));
    }
}

#[test]
fn a_tap_that_fails_on_tables_or_the_manifest_fails_the_flush() {
    for suffix in [".sst", "MANIFEST-000005"] {
        for fault in [Fault::Panic, Fault::Error(io::ErrorKind::Other)] {
            let directory = tempfile::tempdir().expect("a directory");
            let (db, tap) = store_with_faulty_tap(directory.path(), suffix, fault);
            db.put(b"key", b"value").expect("writes");
            tap.armed.store(true, Ordering::SeqCst);
            db.flush().expect_err("the flush fails");
            assert_eq!(db.get(b"key").expect("reads").as_deref(), Some(&b"value"[..]));
            drop(db);
            let db = DB::open(&small_store(), directory.path()).expect("opens without hooks");
            assert_eq!(db.get(b"key").expect("reads").as_deref(), Some(&b"value"[..]));
        }
    }
}

#[test]
fn a_tapped_store_refuses_writes_through_memory_maps() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = small_store();
    options.set_allow_mmap_writes(true);
    let tap = Arc::new(FaultyTap { armed: AtomicBool::new(false), suffix: ".log", fault: Fault::Panic });
    let options = with_hooks(options, FileSystemHooks { tap: Some(tap), ..FileSystemHooks::default() });
    // RocksDB never maps its WAL and MANIFEST, only tables.
    let db = DB::open(&options, directory.path()).expect("opens");
    db.put(b"key", b"value").expect("writes");
    let error = db.flush().expect_err("must not write a table");
    assert!(error.as_ref().contains("memory maps"), "{error}");
}

struct FaultyRemap(fn(&Path) -> Option<PathBuf>);

impl PathRemap for FaultyRemap {
    fn map(&self, path: &Path) -> Option<PathBuf> {
        (self.0)(path)
    }
}

#[test]
fn a_remap_that_panics_or_gives_no_path_fails_the_open() {
    use std::os::unix::ffi::OsStringExt;
    let faults: [fn(&Path) -> Option<PathBuf>; 3] = [
        |_| panic!("struck forcibly"),
        |_| Some(PathBuf::new()),
        |_| Some(PathBuf::from(std::ffi::OsString::from_vec(b"/tmp/a\0b".to_vec()))),
    ];
    for fault in faults {
        let directory = tempfile::tempdir().expect("a directory");
        let remap: Arc<dyn PathRemap> = Arc::new(FaultyRemap(fault));
        let options = with_hooks(small_store(), FileSystemHooks { remap: Some(remap), ..FileSystemHooks::default() });
        DB::open(&options, directory.path()).expect_err("must not open");
        assert_eq!(std::fs::read_dir(directory.path()).expect("lists").count(), 0, "nothing was made");
    }
}

/// The tables of a local directory, served as if from elsewhere, with a fault that can be switched
/// on.
struct Elsewhere {
    directory: PathBuf,
    mode: AtomicU64,
}

const SOUND: u64 = 0;
const PANIC_ON_READ: u64 = 1;
const ERROR_ON_READ: u64 = 2;
const SHORT_READ: u64 = 3;
const LONG_READ: u64 = 4;
const PANIC_ON_SIZE: u64 = 5;
const MISSING_ON_READ: u64 = 6;
const GARBAGE: u64 = 7;

struct ElsewhereFile {
    bytes: Vec<u8>,
    mode: u64,
}

impl Elsewhere {
    fn file(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        if path.extension().is_none_or(|extension| extension != "sst") {
            return Ok(None);
        }
        let name = path.file_name().expect("a file has a name");
        match std::fs::read(self.directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }
}

impl RemoteFiles for Elsewhere {
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        let mode = self.mode.load(Ordering::SeqCst);
        Ok(self.file(path)?.map(|bytes| Arc::new(ElsewhereFile { bytes, mode }) as Arc<dyn RangedRead>))
    }

    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        assert_ne!(self.mode.load(Ordering::SeqCst), PANIC_ON_SIZE, "struck forcibly");
        Ok(self.file(path)?.map(|bytes| bytes.len() as u64))
    }

    fn list(&self, _directory: &Path) -> io::Result<Option<Vec<String>>> {
        Ok(None)
    }
}

impl RangedRead for ElsewhereFile {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self.mode {
            PANIC_ON_READ => panic!("struck forcibly"),
            ERROR_ON_READ => return Err(io::Error::other("struck forcibly")),
            MISSING_ON_READ => return Err(io::Error::new(io::ErrorKind::NotFound, "struck forcibly")),
            LONG_READ => return Ok(buffer.len() + 1),
            _ => {}
        }
        let rest = &self.bytes[offset as usize..];
        let wanted = buffer.len().min(rest.len());
        let count = if self.mode == SHORT_READ { wanted / 2 } else { wanted };
        buffer[..count].copy_from_slice(&rest[..count]);
        if self.mode == GARBAGE {
            buffer.fill(0xa5);
        }
        Ok(count)
    }
}

/// A store whose tables have been moved to another directory, and the content it should have.
fn store_with_tables_elsewhere() -> (tempfile::TempDir, PathBuf, PathBuf, crate::common::Model) {
    let root = tempfile::tempdir().expect("a directory");
    let (store, tables) = (root.path().join("store"), root.path().join("tables"));
    let db = DB::open(&small_store(), &store).expect("opens");
    for number in 0..500 {
        db.put(key(number), vec![number as u8; 200]).expect("writes");
    }
    db.flush().expect("flushes");
    let model = content(&db);
    drop(db);
    std::fs::create_dir(&tables).expect("makes a directory");
    for entry in std::fs::read_dir(&store).expect("lists") {
        let entry = entry.expect("lists");
        if entry.path().extension().is_some_and(|extension| extension == "sst") {
            std::fs::rename(entry.path(), tables.join(entry.file_name())).expect("moves");
        }
    }
    (root, store, tables, model)
}

#[test]
fn tables_elsewhere_are_read_like_local_ones() {
    let (_root, store, tables, model) = store_with_tables_elsewhere();
    DB::open(&small_store(), &store).expect_err("does not open without its tables");
    let remote = Arc::new(Elsewhere { directory: tables, mode: AtomicU64::new(SOUND) });
    let options = with_hooks(small_store(), FileSystemHooks { remote: Some(remote), ..FileSystemHooks::default() });
    let db = DB::open(&options, &store).expect("opens");
    assert_eq!(content(&db), model);
    assert_eq!(db.get(key(77)).expect("reads"), Some(vec![77; 200]));
    let many = db.multi_get((0..500).step_by(7).map(key));
    assert!(many.into_iter().all(|value| value.expect("reads").is_some()));
}

#[test]
fn reads_from_elsewhere_that_fail_fail_the_operation_only() {
    for mode in [PANIC_ON_READ, ERROR_ON_READ, SHORT_READ, LONG_READ, MISSING_ON_READ, GARBAGE] {
        let (_root, store, tables, model) = store_with_tables_elsewhere();
        let remote = Arc::new(Elsewhere { directory: tables, mode: AtomicU64::new(mode) });
        let hooks = FileSystemHooks { remote: Some(remote.clone()), ..FileSystemHooks::default() };
        let options = with_hooks(small_store(), hooks);
        if let Ok(db) = DB::open(&options, &store) {
            db.get(key(77)).expect_err("the read fails");
        }
        remote.mode.store(SOUND, Ordering::SeqCst);
        let db = DB::open(&options, &store).expect("opens once the files can be read");
        assert_eq!(content(&db), model, "mode {mode}");
    }
}

#[test]
fn a_panic_while_sizing_a_file_fails_the_open() {
    let (_root, store, tables, _) = store_with_tables_elsewhere();
    let remote = Arc::new(Elsewhere { directory: tables, mode: AtomicU64::new(PANIC_ON_SIZE) });
    let options = with_hooks(small_store(), FileSystemHooks { remote: Some(remote), ..FileSystemHooks::default() });
    let failures = contained_failures();
    DB::open(&options, &store).expect_err("must not open");
    assert!(contained_failures().hook_panics > failures.hook_panics);
}

#[test]
fn files_elsewhere_cannot_be_deleted_or_renamed() {
    let (_root, store, tables, _) = store_with_tables_elsewhere();
    let remote = Arc::new(Elsewhere { directory: tables.clone(), mode: AtomicU64::new(SOUND) });
    let hooks = FileSystemHooks { remote: Some(remote), ..FileSystemHooks::default() };
    let db = DB::open(&with_hooks(small_store(), hooks), &store).expect("opens");
    let before = std::fs::read_dir(&tables).expect("lists").count();
    for number in 0..500 {
        db.put(key(number), b"new").expect("writes");
    }
    db.flush().expect("flushes");
    // The table elsewhere becomes obsolete; RocksDB then asks to delete it.
    db.compact_range(None::<&[u8]>, None::<&[u8]>);
    drop(db);
    assert_eq!(std::fs::read_dir(&tables).expect("lists").count(), before, "nothing elsewhere is touched");
    let db = DB::open(&small_store(), &store).expect("opens without them: they are obsolete");
    assert!(content(&db).values().all(|value| value == b"new"));
}

/// Nothing is elsewhere, but it might be.
struct NothingElsewhere;

impl RemoteFiles for NothingElsewhere {
    fn open(&self, _path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        Ok(None)
    }

    fn size(&self, _path: &Path) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn list(&self, _directory: &Path) -> io::Result<Option<Vec<String>>> {
        Ok(None)
    }
}

struct Led {
    name: PathBuf,
    here: PathBuf,
}

impl PathRemap for Led {
    fn map(&self, path: &Path) -> Option<PathBuf> {
        Some(self.here.join(path.strip_prefix(&self.name).ok()?))
    }
}

/// Every way in which a store can be told to write outside its folder.
#[test]
fn for_a_store_that_is_elsewhere_nothing_is_written_but_where_its_names_are_led() {
    let root = tempfile::tempdir().expect("a directory");
    let [name, here, outside] = ["name", "here", "outside"].map(|part| root.path().join(part));
    for directory in [&name, &here, &outside] {
        std::fs::create_dir(directory).expect("makes a directory");
    }
    let victim = outside.join("000007.sst");
    std::fs::write(&victim, b"not yours").expect("writes");
    let remap = Arc::new(Led { name: name.clone(), here: here.clone() });
    let hooks =
        FileSystemHooks { remap: Some(remap), remote: Some(Arc::new(NothingElsewhere)), ..FileSystemHooks::default() };
    let env = hooked_env(hooks).expect("an environment");
    let options = || {
        let mut options = small_store();
        options.set_env(&env);
        options
    };
    let refused = |result: Result<(), rust_rocksdb::Error>, path: &Path| {
        let error = result.expect_err("must be refused");
        assert_eq!(error.kind(), ErrorKind::IOError, "{error}");
        assert!(error.as_ref().contains(&*path.to_string_lossy()), "{error}");
    };
    // The second is a name that seems to be led, and whose place is not below the one it is led to.
    for elsewhere in [outside.clone(), name.join("../outside")] {
        let mut wal = options();
        wal.set_wal_dir(elsewhere.join("wal"));
        refused(DB::open(&wal, &name).map(drop), &elsewhere);
        let mut tables = options();
        tables.set_db_paths(&[DBPath::new(elsewhere.join("tables"), 1 << 30).expect("a path")]);
        refused(DB::open(&tables, &name).map(drop), &elsewhere);

        let mut logged = options();
        logged.set_db_log_dir(&elsewhere);
        refused(DB::open(&logged, &name).map(drop), &elsewhere);

        let options = options();
        let db = DB::open(&options, &name).expect("opens");
        db.put(b"key", b"value").expect("writes");
        db.flush().expect("flushes");
        db.compact_range(None::<&[u8]>, None::<&[u8]>);
        refused(Checkpoint::new(&db).expect("can").create_checkpoint(elsewhere.join("checkpoint")), &elsewhere);
        drop(db);
        let written = elsewhere.join("000009.sst");
        refused(SstFileWriter::create(&options).open(&written), &written);
        let overwritten = elsewhere.join("000007.sst");
        refused(SstFileWriter::create(&options).open(&overwritten), &overwritten);
        // Says whether it could; only whether it did counts.
        let _ = DB::destroy(&options, &elsewhere);
    }
    assert_eq!(std::fs::read(&victim).expect("is still there"), b"not yours");
    assert_eq!(std::fs::read_dir(&outside).expect("lists").count(), 1, "nothing was made outside");
    assert_eq!(std::fs::read_dir(&name).expect("lists").count(), 0, "nothing lies under the name");
    let db = DB::open(&options(), &name).expect("opens");
    assert_eq!(db.get(b"key").expect("reads").as_deref(), Some(&b"value"[..]), "where it may, it wrote");
    assert!(here.join("CURRENT").exists());
}

/// Where a collector panics, or the factory of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PanicAt {
    Creation,
    Begin,
    Entry(u64),
    End,
    Nowhere,
}

/// Counts entries.
struct Counting {
    entries: u64,
    panic_at: PanicAt,
}

impl TableCollector for Counting {
    fn begin(&mut self) -> u64 {
        assert!(self.panic_at != PanicAt::Begin, "struck forcibly");
        0
    }

    fn add(&mut self, _key: &[u8], _value: &[u8], _kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        self.entries += 1;
        assert!(self.panic_at != PanicAt::Entry(self.entries), "struck forcibly");
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        assert!(self.panic_at != PanicAt::End, "struck forcibly");
        vec![("test.entries".to_owned(), self.entries.to_string().into_bytes())]
    }
}

struct CountingFactory(PanicAt);

impl TableCollectorFactory for CountingFactory {
    fn collector(&self, _context: TableContext) -> Option<Box<dyn TableCollector>> {
        assert!(self.0 != PanicAt::Creation, "struck forcibly");
        Some(Box::new(Counting { entries: 0, panic_at: self.0 }))
    }
}

#[test]
fn a_collector_that_panics_costs_the_table_its_properties_and_nothing_else() {
    for panic_at in [PanicAt::Creation, PanicAt::Begin, PanicAt::Entry(1), PanicAt::Entry(50), PanicAt::End] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut options = small_store();
        add_table_collector(&mut options, Arc::new(CountingFactory(panic_at)));
        // A second, sound collector beside the faulty one.
        add_table_collector(&mut options, Arc::new(CountingFactory(PanicAt::Nowhere)));
        let failures = contained_failures();
        let db = DB::open_cf_with_opts(&options, directory.path(), [("default", options.clone())]).expect("opens");
        for number in 0..100 {
            db.put(key(number), b"value").expect("writes");
        }
        db.flush().expect("flushes");
        assert_eq!(content(&db).len(), 100);
        assert!(contained_failures().collector_panics > failures.collector_panics);
        let family = db.cf_handle("default").expect("exists");
        let tables = collected_properties(&db, family, "test.").expect("reads properties");
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].properties["test.entries"], b"100", "the sound collector was not disturbed");
    }
}
