//! A compaction run by a second process, as a worker of a federation will: the process sees the
//! store under its owner's path, reads its tables by ranges over a socket, and finds nothing of it
//! on the local file system.

mod owner;
mod wire;
mod worker;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Model, Numbers, key, small_store};
use ecotone_rocks::filesystem::{FileSystemHooks, hooked_env};
use ecotone_rocks::properties::{EntryKind, TableCollector, TableCollectorFactory, TableContext, add_table_collector};
use ecotone_rocks::remote::keep_outputs_in_session_directory;
use ecotone_rocks::tables::{collected_properties, live_tables};
use owner::{Offloading, Owner, StoreElsewhere};
use rust_rocksdb::{ColumnFamily, DB, IteratorMode, Options};

/// Set for the worker: where its owner listens, and the name of its job.
const WORKER_SOCKET: &str = "ECOTONE_TEST_WORKER_SOCKET";
const WORKER_JOB: &str = "ECOTONE_TEST_WORKER_JOB";

/// All data is in this column family; `default` stays plain, because a worker opens it without any
/// override.
const FAMILY: &str = "data";

/// Not a test of its own: the body of the second process.
#[test]
fn worker_process() {
    if let (Some(socket), Ok(job)) = (std::env::var_os(WORKER_SOCKET), std::env::var(WORKER_JOB)) {
        worker::run(socket.as_ref(), &job);
    }
}

struct CountEntries(u64);

impl TableCollector for CountEntries {
    fn add(&mut self, _key: &[u8], _value: &[u8], _kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        self.0 += 1;
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        vec![("test.entries".to_owned(), self.0.to_string().into_bytes())]
    }
}

struct CountEntriesFactory;

impl TableCollectorFactory for CountEntriesFactory {
    fn collector(&self, _context: TableContext) -> Option<Box<dyn TableCollector>> {
        Some(Box::new(CountEntries(0)))
    }
}

/// Options of the data, the same on owner and worker.
fn data_options() -> Options {
    let mut options = small_store();
    add_table_collector(&mut options, Arc::new(CountEntriesFactory));
    options
}

fn open(owner: &Arc<Owner>, subcompactions: u32) -> DB {
    let mut options = small_store();
    let hooks = FileSystemHooks { remap: Some(Arc::new(StoreElsewhere(owner.clone()))), ..FileSystemHooks::default() };
    options.set_env(&hooked_env(hooks).expect("an environment"));
    options.set_compaction_service(Offloading(owner.clone()));
    options.set_max_subcompactions(subcompactions);
    options.set_max_background_jobs(4);
    keep_outputs_in_session_directory(&mut options);
    let families = [("default", small_store()), (FAMILY, data_options())];
    DB::open_cf_with_opts(&options, &owner.name, families).expect("opens")
}

fn content(db: &DB) -> Model {
    let entries = db.iterator_cf(family(db), IteratorMode::Start);
    entries.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).expect("reads")).collect()
}

fn family(db: &DB) -> &ColumnFamily {
    db.cf_handle(FAMILY).expect("exists")
}

/// Puts `count` random keys of `range` and deletes a few; the model follows.
fn change(db: &DB, model: &mut Model, numbers: &mut Numbers, range: std::ops::Range<u64>, count: u64) {
    for _ in 0..count {
        let key = key(range.start + numbers.below(range.end - range.start));
        if numbers.below(6) == 0 {
            db.delete_cf(family(db), &key).expect("deletes");
            model.remove(&key);
        } else {
            let len = 100 + numbers.below(300) as usize;
            let value = numbers.bytes(len);
            db.put_cf(family(db), &key, &value).expect("writes");
            model.insert(key, value);
        }
    }
}

fn delete_range(db: &DB, model: &mut Model, from: u64, to: u64) {
    db.delete_range_cf(family(db), key(from), key(to)).expect("deletes");
    model.retain(|held, _| *held < key(from) || *held >= key(to));
}

fn compact_elsewhere(subcompactions: u32, with_range_deletions: bool, seed: u64) {
    let root = tempfile::tempdir().expect("a directory");
    let owner = Arc::new(Owner::new(root.path().join("name"), root.path().join("real")));
    std::fs::create_dir(&owner.directory).expect("makes a directory");
    let mut numbers = Numbers(seed);
    let mut model = Model::new();
    let db = open(&owner, subcompactions);

    // Many tables at the bottom, of which a job will need few.
    for _ in 0..5 {
        change(&db, &mut model, &mut numbers, 0..8000, 1600);
        db.flush_cf(family(&db)).expect("flushes");
    }
    db.compact_range_cf(family(&db), None::<&[u8]>, None::<&[u8]>);
    let at_bottom = live_tables(&db).expect("lists").len();
    assert!(at_bottom > 15, "{at_bottom} tables");

    change(&db, &mut model, &mut numbers, 2000..3000, 400);
    db.flush_cf(family(&db)).expect("flushes");
    let (snapshot, then) = (db.snapshot(), model.clone());
    change(&db, &mut model, &mut numbers, 2000..3000, 400);
    if with_range_deletions {
        delete_range(&db, &mut model, 2100, 2300);
        delete_range(&db, &mut model, 2250, 2700);
    }
    db.flush_cf(family(&db)).expect("flushes");
    change(&db, &mut model, &mut numbers, 2000..3000, 100);
    db.flush_cf(family(&db)).expect("flushes");

    owner.offload.store(true, Ordering::SeqCst);
    db.compact_range_cf(family(&db), Some(key(2000)), Some(key(3000)));
    owner.offload.store(false, Ordering::SeqCst);

    assert_eq!(*owner.failures.lock().expect("not poisoned"), Vec::<String>::new());
    let reports = std::mem::take(&mut *owner.reports.lock().expect("not poisoned"));
    assert!(!reports.is_empty(), "something was given away");
    if subcompactions > 1 {
        assert!(reports.iter().any(|report| report.input.begin.is_some()), "a compaction was split");
    }
    for report in &reports {
        let inputs: BTreeSet<&String> = report.input.input_files.iter().collect();
        assert!(inputs.len() < at_bottom, "a job of {} tables of {at_bottom}", inputs.len());
        assert!(report.opened.keys().all(|table| inputs.contains(table)), "only inputs: {:?}", report.opened);
        // At most once as the store is opened and once to be compacted.
        assert!(report.opened.values().all(|times| *times <= 2), "{:?}", report.opened);
        assert_eq!(report.input.cf_name, FAMILY);
        assert_eq!(report.input.output_level, report.result.output_level);
        eprintln!("{} of {}", report.table_bytes_read, report.input_bytes);
        let limit = report.input_bytes + report.input_bytes / 5;
        assert!(report.table_bytes_read <= limit, "{} bytes read of {}", report.table_bytes_read, report.input_bytes);
        let entries: u64 = report.result.output_files.iter().map(|output| output.entries).sum();
        if !with_range_deletions {
            assert_eq!(report.result.stats.output_records, entries);
        }
        assert!(report.result.stats.cpu_us > 0 && report.result.stats.bytes_written > 0);
    }

    assert_eq!(content(&db), model);
    let mut at_snapshot = rust_rocksdb::ReadOptions::default();
    at_snapshot.set_snapshot(&snapshot);
    let seen: Model = db
        .iterator_cf_opt(family(&db), at_snapshot, IteratorMode::Start)
        .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).expect("reads"))
        .collect();
    assert!(seen == then, "the snapshot still sees what it saw");
    drop(snapshot);

    // The worker's tables carry what the collectors left, and are known to the owner like its own.
    let tables = live_tables(&db).expect("lists");
    let collected = collected_properties(&db, family(&db), "test.").expect("reads properties");
    assert_eq!(collected.len(), tables.len());
    for table in &tables {
        let of_table = collected.iter().find(|it| it.path.ends_with(&table.name)).expect("has properties");
        let counted: u64 = String::from_utf8_lossy(&of_table.properties["test.entries"]).parse().expect("a number");
        assert!(counted > 0);
        assert_eq!(table.file_checksum_function, "FileChecksumCrc32c", "{}", table.name);
    }
    drop(db);
    assert_eq!(content(&open(&owner, subcompactions)), model, "also after it is opened again");
}

#[test]
fn a_second_process_compacts() {
    compact_elsewhere(1, false, 1);
}

#[test]
fn a_second_process_compacts_with_range_deletions() {
    compact_elsewhere(1, true, 2);
}

#[test]
fn several_processes_share_a_split_compaction() {
    compact_elsewhere(3, false, 3);
}

#[test]
fn several_processes_share_a_split_compaction_with_range_deletions() {
    compact_elsewhere(3, true, 4);
}
