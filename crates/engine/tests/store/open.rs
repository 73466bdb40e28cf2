//! Which directories are opened, which are refused, and with which words.

use crate::common;

use std::fs;
use std::path::Path;

use common::{Model, assert_equals, small};
use ecotone_engine::{Error, LockHolder, MAX_KEY_BYTES, OpenMode, Store, StoreSettings, WriteOptions};

#[test]
fn each_mode_keeps_its_word() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/store");
    for mode in [OpenMode::Open, OpenMode::ReadOnly] {
        assert!(matches!(Store::open(&path, mode, small()), Err(Error::NotFound { .. })), "{mode:?}");
        assert!(!path.exists(), "{mode:?} makes no directory");
    }
    Store::open(&path, OpenMode::Create, small()).unwrap().close().unwrap();
    assert!(matches!(Store::open(&path, OpenMode::Create, small()), Err(Error::AlreadyExists { .. })));
    Store::open(&path, OpenMode::CreateOrOpen, small()).unwrap().put(b"k", b"v").unwrap();
    assert_eq!(Store::open(&path, OpenMode::Open, small()).unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn impossible_options_are_refused_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let options = StoreSettings { block_bytes: 0, ..small() };
    let refused = Store::open(&path, OpenMode::Create, options).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument { field: "block_bytes", .. }), "{refused}");
    assert!(!path.exists());
}

#[test]
fn a_store_in_use_says_where_and_by_whom() {
    let (directory, store) = common::store(small());
    let path = directory.path().join("store");
    let refused = Store::open(&path, OpenMode::Open, small()).unwrap_err();
    assert!(
        matches!(&refused, Error::Locked { directory, holder: LockHolder::ThisProcess, .. } if *directory == path),
        "{refused}"
    );
    // So does one with a value log, which has a lock of its own.
    let (other, separated) = common::store(common::collecting_early(64 * 1024));
    let refused = Store::open(&other.path().join("store"), OpenMode::Open, small()).unwrap_err();
    assert!(matches!(&refused, Error::Locked { holder: LockHolder::ThisProcess, .. }), "{refused}");
    separated.close().unwrap();
    Store::open(&other.path().join("store"), OpenMode::Open, small()).unwrap().close().unwrap();
    // Reading does not need the lock.
    store.put(b"k", b"v").unwrap();
    let reader = Store::open(&path, OpenMode::ReadOnly, small()).unwrap();
    assert_eq!(reader.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_plain_rocksdb_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = rust_rocksdb::Options::default();
    options.create_if_missing(true);
    drop(rust_rocksdb::DB::open(&options, directory.path()).unwrap());
    for mode in [OpenMode::Open, OpenMode::CreateOrOpen, OpenMode::Create, OpenMode::ReadOnly] {
        let refused = Store::open(directory.path(), mode, small()).unwrap_err();
        assert!(
            matches!(&refused, Error::WrongFormat { reason, .. } if reason.contains("RocksDB")),
            "{mode:?}: {refused}"
        );
    }
}

#[test]
fn read_only_reads_and_nothing_else() {
    let (directory, store) = common::store(small());
    let mut model = Model::new();
    common::fill(&store, &mut model, 5, 2_000, 500);
    store.close().unwrap();
    let path = directory.path().join("store");
    let before = files(&path);
    let reader = Store::open(&path, OpenMode::ReadOnly, small()).unwrap();
    assert_equals(&reader, &model);
    let batch = ecotone_engine::Batch::new();
    let refused = [
        reader.put(b"k", b"v"),
        reader.delete(b"k"),
        reader.delete_range(..),
        reader.write(&batch, WriteOptions::default()),
        reader.flush(true),
        reader.compact(..),
        reader.sync(),
        reader.set_max_subcompactions(2),
        reader.checkpoint(&directory.path().join("copy")),
    ];
    for outcome in refused {
        assert!(matches!(outcome, Err(Error::ReadOnly { .. })), "{outcome:?}");
    }
    reader.properties().unwrap();
    reader.close().unwrap();
    assert_eq!(files(&path), before, "a reader leaves no trace");
}

fn files(directory: &Path) -> Vec<(String, u64)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(Result::unwrap)
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.metadata().unwrap().len()))
        .collect();
    files.sort();
    files
}

#[test]
fn limits_of_keys_are_named() {
    let (_directory, store) = common::store(small());
    let longest = vec![b'k'; MAX_KEY_BYTES];
    store.put(&longest, b"v").unwrap();
    assert_eq!(store.get(&longest).unwrap().as_deref(), Some(&b"v"[..]));
    let longer = vec![b'k'; MAX_KEY_BYTES + 1];
    let mut batch = ecotone_engine::Batch::new();
    for refused in [store.put(&longer, b"v"), store.delete(&longer), batch.put(&longer, b"v"), batch.delete(&longer)] {
        assert!(matches!(refused, Err(Error::InvalidArgument { field: "key", .. })), "{refused:?}");
    }
    assert!(batch.is_empty());
    // Unbounded ranges reach the longest and greatest key.
    let greatest = vec![0xFF; MAX_KEY_BYTES];
    store.put(&greatest, b"v").unwrap();
    store.delete_range(..).unwrap();
    assert_eq!(common::contents(&store), []);
}

#[test]
fn a_snapshot_belongs_to_its_store_and_a_batch_to_none() {
    let (_one, first) = common::store(small());
    let (_other, second) = common::store(small());
    let mut batch = ecotone_engine::Batch::new();
    batch.put(b"k", b"v").unwrap();
    for store in [&first, &second] {
        store.write(&batch, WriteOptions::default()).unwrap();
        assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    }
    let snapshot = first.snapshot();
    assert!(matches!(second.get_at(b"k", &snapshot), Err(Error::InvalidArgument { field: "snapshot", .. })));
}

#[test]
fn damage_in_a_table_is_reported_with_the_table() {
    let (directory, store) = common::store(StoreSettings { compression: ecotone_engine::Compression::None, ..small() });
    store.put(b"key", b"the value that will be damaged").unwrap();
    store.flush(true).unwrap();
    let table = store.live_tables().unwrap().remove(0).name;
    store.close().unwrap();
    let path = directory.path().join("store").join(&table);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|window| window == b"the value").unwrap();
    bytes[at] ^= 0x20;
    fs::write(&path, bytes).unwrap();
    let store = Store::open(&directory.path().join("store"), OpenMode::Open, small()).unwrap();
    match store.get(b"key") {
        Err(Error::Corrupt { location: Some(location), .. }) => assert!(location.contains(&table), "{location}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_checkpoint_is_a_store_of_its_own() {
    let (directory, store) = common::store(small());
    let mut model = Model::new();
    common::fill(&store, &mut model, 9, 2_000, 500);
    let copy = directory.path().join("copy");
    store.checkpoint(&copy).unwrap();
    assert!(matches!(store.checkpoint(&copy), Err(Error::AlreadyExists { .. })));
    store.delete_range(..).unwrap();
    store.compact(..).unwrap();
    let copied = Store::open(&copy, OpenMode::Open, small()).unwrap();
    assert_equals(&copied, &model);
    copied.put(b"new", b"v").unwrap();
    assert_eq!(common::contents(&store), []);
}

#[test]
fn rocksdbs_own_log_and_default_family_stay_as_they_should() {
    let (directory, store) = common::store(small());
    let mut model = Model::new();
    common::fill(&store, &mut model, 9, 2_000, 500);
    store.close().unwrap();
    let path = directory.path().join("store");
    for _ in 0..8 {
        Store::open(&path, OpenMode::Open, small()).unwrap().close().unwrap();
    }
    let logs = files(&path).into_iter().filter(|(name, _)| name.starts_with("LOG")).count();
    assert!(logs <= 4, "{logs} of RocksDB's own logs");
    let options = rust_rocksdb::Options::default();
    let mut families = rust_rocksdb::DB::list_cf(&options, &path).unwrap();
    families.sort();
    assert_eq!(families, ["data", "default"]);
    let plain = rust_rocksdb::DB::open_cf_for_read_only(&options, &path, ["data"], false).unwrap();
    assert_eq!(plain.iterator(rust_rocksdb::IteratorMode::Start).count(), 0, "the default family is empty");
}

/// The flags for it stand in `.cargo/config.toml`, which cargo passes over where the environment
/// has RUSTFLAGS.
#[test]
#[cfg(target_arch = "x86_64")]
fn rocksdb_computes_crc32c_with_the_processors_instruction() {
    let (directory, store) = common::store(small());
    store.close().unwrap();
    let log = fs::read_to_string(directory.path().join("store/LOG")).unwrap();
    let told = log.lines().find(|line| line.contains("Fast CRC32 supported")).unwrap();
    assert!(
        told.ends_with(": Supported on x86"),
        "{told}; if RUSTFLAGS is set, add -Ctarget-cpu=x86-64-v2 -Ctarget-feature=+pclmulqdq to it and build anew"
    );
}

/// Tables in `directory` that this process has open.
fn open_tables(directory: &Path) -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let is_table = |path: &std::path::PathBuf| {
        path.starts_with(directory) && path.extension().is_some_and(|extension| extension == "sst")
    };
    descriptors.filter(is_table).count()
}

#[test]
fn open_tables_are_bounded_once_that_is_asked_for() {
    let never = StoreSettings {
        l0_compaction_trigger: 1000,
        l0_slowdown_trigger: 1000,
        l0_stop_trigger: 1000,
        max_open_files: None,
        mapped_read_bytes: 0,
        ..small()
    };
    let (directory, store) = common::store(never.clone());
    let path = fs::canonicalize(directory.path().join("store")).unwrap();
    let mut written = 0..;
    let mut write = |tables: usize| {
        for number in written.by_ref().take(tables) {
            store.put(format!("{number:08}").as_bytes(), b"value").unwrap();
            store.flush(true).unwrap();
        }
    };
    write(40);
    let before = open_tables(&path);
    assert!(before >= 40, "all are held open: {before}");
    assert!(matches!(store.bound_open_tables(15), Err(Error::InvalidArgument { .. })));
    // RocksDB has them in 64 parts, each of which rounds up.
    store.bound_open_tables(64).unwrap();
    write(260);
    let with = open_tables(&path);
    assert!(with < before + 140, "{with} of 300 tables are open, of which {before} were before");
    for number in 0..300 {
        assert!(store.get(format!("{number:08}").as_bytes()).unwrap().is_some(), "{number}");
    }
    let with = open_tables(&path);
    assert!(with < before + 140, "{with} are open after all were read");
    store.close().unwrap();
    // Held to so few from the start, they are.
    let few = StoreSettings { max_open_files: Some(16), ..never };
    let store = Store::open(&path, OpenMode::Open, few).unwrap();
    for number in 0..300 {
        assert!(store.get(format!("{number:08}").as_bytes()).unwrap().is_some(), "{number}");
    }
    let open = open_tables(&path);
    assert!(open <= 16, "{open} are open");
}
