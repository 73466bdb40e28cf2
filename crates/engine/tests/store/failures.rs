//! Full disks, failing syncs and broken reads: nothing acknowledged is lost, and each error says
//! what to do.

use crate::common;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::time::Instant;

use common::offloads::{OwnersFiles, SharedFiles};
use common::{Model, assert_equals, fill, value_of};
use ecotone_engine::{
    BackgroundError, CancelFlag, CompactionOffload, Durability, Error, OpenMode, RemoteJob, RemoteOutcome,
    SYNC_INTERVAL, Separation, Store, StoreEvents, StoreSettings, WorkerError, WorkerOptions, WorkerRequest,
    WriteOptions, run_remote_compaction,
};
use ecotone_io::remote_files::{RangedRead, RemoteFiles};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::FileSystemHooks;

/// A disk that fails, once it is told to: writes of some files, or syncs.
#[derive(Default)]
struct Disk {
    full_for: Mutex<Option<&'static str>>,
    unsyncable: Mutex<Option<&'static str>>,
    /// Whether the next sync is told that it succeeds, as the kernel does: it has dropped what it
    /// could not write, and said so.
    tells_once: AtomicBool,
    /// Whether a sync has failed.
    has_failed: AtomicBool,
}

impl Disk {
    fn fill_up(&self, end: &'static str) {
        *self.full_for.lock().unwrap() = Some(end);
    }

    fn fail_syncs(&self, end: Option<&'static str>) {
        *self.unsyncable.lock().unwrap() = end;
    }

    fn fail_one_sync(&self, end: &'static str) {
        self.tells_once.store(true, Ordering::SeqCst);
        self.fail_syncs(Some(end));
    }
}

impl WriteTap for Disk {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let is = |end: &str| event.path().extension().is_some_and(|found| found == end);
        match event {
            TapEvent::Appended { .. } if self.full_for.lock().unwrap().is_some_and(is) => {
                Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is full"))
            }
            TapEvent::Synced { .. } => {
                let mut unsyncable = self.unsyncable.lock().unwrap();
                if !unsyncable.is_some_and(is) {
                    return Ok(());
                }
                if self.tells_once.load(Ordering::SeqCst) {
                    *unsyncable = None;
                }
                self.has_failed.store(true, Ordering::SeqCst);
                Err(io::Error::other("the disk does not sync"))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Default)]
struct Errors(Mutex<Vec<BackgroundError>>);

impl StoreEvents for Errors {
    fn background_error(&self, event: &BackgroundError) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Errors {
    /// Waits until one is told.
    fn wait(&self) {
        let began = Instant::now();
        while self.0.lock().unwrap().is_empty() {
            assert!(began.elapsed() < 60 * SYNC_INTERVAL, "the failure never came up");
            std::thread::yield_now();
        }
    }
}

fn store_on(disk: &Arc<Disk>, durability: Durability) -> (tempfile::TempDir, Store, Arc<Errors>) {
    store_with(disk, StoreSettings { durability, ..common::small() })
}

/// The same, with values of 50 bytes and more apart from their keys.
fn separated_store_on(disk: &Arc<Disk>, durability: Durability) -> (tempfile::TempDir, Store, Arc<Errors>) {
    let separation = Some(Separation { min_bytes: 50, segment_bytes: 4096 });
    store_with(disk, StoreSettings { durability, separation, ..common::small() })
}

fn store_with(disk: &Arc<Disk>, settings: StoreSettings) -> (tempfile::TempDir, Store, Arc<Errors>) {
    let errors = Arc::<Errors>::default();
    let hooks = FileSystemHooks { tap: Some(disk.clone()), ..FileSystemHooks::default() };
    let (directory, store) = common::store_with(settings, |builder| builder.hooks(hooks).events(errors.clone()));
    (directory, store, errors)
}

/// Closes the store, whatever it says, and looks for the model in it on a disk that works.
fn assert_survives(directory: &Path, store: Store, model: &Model) {
    let _ = store.close();
    let store = Store::open(&directory.join("store"), OpenMode::Open, common::small()).unwrap();
    for (key, value) in model {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(value.as_slice()));
    }
    store.put(b"new", b"value").unwrap();
}

#[test]
fn a_full_disk_under_the_wal_refuses_writes_and_keeps_reading() {
    let disk = Arc::<Disk>::default();
    let (directory, store, _errors) = store_on(&disk, Durability::None);
    let mut model = Model::new();
    fill(&store, &mut model, 1, 2_000, 500);
    disk.fill_up("log");
    let refused = store.put(b"one more", b"value").unwrap_err();
    assert!(matches!(refused, Error::DiskFull { .. }), "{refused}");
    assert!(store.put(b"another", b"value").is_err());
    for (key, value) in &model {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(value.as_slice()));
    }
    assert_survives(directory.path(), store, &model);
}

#[test]
fn a_full_disk_under_the_tables_loses_nothing() {
    let disk = Arc::<Disk>::default();
    let (directory, store, errors) = store_on(&disk, Durability::None);
    let mut model = Model::new();
    fill(&store, &mut model, 1, 2_000, 500);
    disk.fill_up("sst");
    let refused = store.flush(true).unwrap_err();
    assert!(matches!(refused, Error::DiskFull { .. }), "{refused}");
    assert!(errors.0.lock().unwrap().iter().any(|error| error.during == "flush"), "{:?}", errors.0);
    for (key, value) in &model {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(value.as_slice()));
    }
    assert_survives(directory.path(), store, &model);
}

#[test]
fn a_write_that_cannot_be_synced_is_not_acknowledged() {
    let disk = Arc::<Disk>::default();
    let (directory, store, _errors) = store_on(&disk, Durability::Always);
    let mut model = Model::new();
    store.put(b"synced", b"value").unwrap();
    model.insert(b"synced".to_vec(), b"value".to_vec());
    disk.fail_syncs(Some("log"));
    store.put(b"not synced", b"value").unwrap_err();
    assert!(
        store.put(b"after it", b"value").is_err(),
        "after a failed sync nothing is taken, whatever the disk says then"
    );
    disk.fail_syncs(None);
    assert_survives(directory.path(), store, &model);
}

/// Every call that would change something says that the store takes no writes, and reads go on.
fn assert_takes_nothing(directory: &Path, store: &Store, model: &Model) {
    let (long, none) = ([1; 200], WriteOptions::durable(Durability::None));
    let batch = |value: &[u8]| {
        let mut batch = ecotone_engine::Batch::new();
        batch.put(b"in a batch", value).unwrap();
        batch
    };
    let refused = [
        store.put(b"short", b"value"),
        store.put(b"long", &long),
        store.put_opt(b"short", b"value", none),
        store.put_opt(b"long", &long, none),
        store.delete(b"key0001"),
        store.delete_opt(b"key0001", none),
        store.delete_range(..),
        store.write(&batch(b"value"), WriteOptions::default()),
        store.write(&batch(&long), WriteOptions::default()),
        store.write(&batch(&long), WriteOptions { no_wait: true, ..none }),
        store.write(&ecotone_engine::Batch::new(), none),
        store.sync(),
        store.flush(true),
        store.compact(..),
        store.checkpoint(&directory.join("copy")),
    ];
    for (number, refused) in refused.iter().enumerate() {
        assert!(matches!(refused, Err(Error::Background { .. })), "call {number}: {refused:?}");
    }
    for (key, value) in model {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(value.as_slice()));
    }
}

#[test]
fn a_segment_that_cannot_be_synced_ends_all_writing_and_is_told() {
    for durability in [Durability::Always, Durability::EverySecond] {
        let disk = Arc::<Disk>::default();
        let (directory, store, errors) = separated_store_on(&disk, durability);
        let mut model = Model::new();
        let acknowledged = |model: &mut Model, key: &[u8], bytes| {
            let value = value_of(key, 0, bytes);
            store.put(key, &value).unwrap();
            model.insert(key.to_vec(), value);
        };
        for number in 0..100 {
            acknowledged(&mut model, format!("key{number:04}").as_bytes(), if number % 3 == 0 { 20 } else { 200 });
        }
        store.sync().unwrap();
        assert_eq!((store.write_failure(), errors.0.lock().unwrap().len()), (None, 0));
        disk.fail_one_sync("segment");
        if durability == Durability::Always {
            let refused = store.put(b"not synced", &[1; 200]).unwrap_err();
            assert!(matches!(refused, Error::Background { .. }), "{refused}");
        } else {
            acknowledged(&mut model, b"not synced yet", 200);
        }
        errors.wait();
        let failure = store.write_failure().unwrap();
        assert!(failure.contains(".segment") && failure.contains("the disk does not sync"), "{failure}");
        assert_takes_nothing(directory.path(), &store, &model);
        // Once, whoever meets it.
        let told = errors.0.lock().unwrap().clone();
        assert!(matches!(&told[..], [event] if event.writes_stopped && failure.contains(&event.detail)), "{told:?}");
        assert_survives(directory.path(), store, &model);
    }
}

#[test]
fn a_wal_that_cannot_be_synced_ends_all_writing_beside_a_value_log_too() {
    for durability in [Durability::Always, Durability::EverySecond] {
        let disk = Arc::<Disk>::default();
        let (directory, store, errors) = separated_store_on(&disk, durability);
        let mut model = Model::new();
        store.put(b"synced", &[7; 200]).unwrap();
        store.sync().unwrap();
        model.insert(b"synced".to_vec(), vec![7; 200]);
        disk.fail_syncs(Some("log"));
        let outcome = store.put(b"not synced", &[1; 200]);
        assert_eq!(outcome.is_err(), durability == Durability::Always, "{outcome:?}");
        errors.wait();
        assert!(store.write_failure().is_some());
        disk.fail_syncs(None);
        assert_takes_nothing(directory.path(), &store, &model);
        assert_survives(directory.path(), store, &model);
    }
}

/// Writers share syncs. After the first that failed none of them may be told that its value is
/// durable.
#[test]
fn no_writer_is_acknowledged_by_a_sync_after_one_that_failed() {
    const WRITERS: usize = 8;
    const BEFORE: usize = 5;
    for file in ["segment", "log"].repeat(10) {
        let disk = Arc::<Disk>::default();
        let (directory, store, errors) = separated_store_on(&disk, Durability::Always);
        let begin = Barrier::new(WRITERS + 1);
        let model: Model = std::thread::scope(|scope| {
            let (store, disk, begin) = (&store, &disk, &begin);
            let write = move |writer: usize| {
                let mut acknowledged = Model::new();
                for number in 0.. {
                    if number == BEFORE {
                        begin.wait();
                    }
                    let key = format!("key{writer}-{number}").into_bytes();
                    let value = value_of(&key, 0, 200);
                    let is_after = disk.has_failed.load(Ordering::SeqCst);
                    match store.put(&key, &value) {
                        Ok(()) => assert!(!is_after, "it is acknowledged, and nothing can be synced any more"),
                        Err(Error::Background { .. }) => return acknowledged,
                        Err(other) => panic!("{other}"),
                    }
                    acknowledged.insert(key, value);
                }
                unreachable!("the failure never came up")
            };
            let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
            begin.wait();
            disk.fail_one_sync(file);
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        assert!(model.len() >= WRITERS * BEFORE);
        let told = errors.0.lock().unwrap().clone();
        assert!(told.iter().any(|event| event.during.contains("sync") && event.writes_stopped), "{told:?}");
        assert_takes_nothing(directory.path(), &store, &model);
        assert_survives(directory.path(), store, &model);
    }
}

/// Fails the first sync of a WAL, once another thread waits for it.
#[derive(Default)]
struct FailsWhileAwaited {
    is_awaited_by: OnceLock<PathBuf>,
    begun: AtomicBool,
}

impl WriteTap for FailsWhileAwaited {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let is_wal = event.path().extension().is_some_and(|found| found == "log");
        if !(is_wal && matches!(event, TapEvent::Synced { .. })) || self.begun.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let began = Instant::now();
        let is_waiting = || {
            let stat = fs::read_to_string(self.is_awaited_by.get()?.join("stat")).ok()?;
            Some(stat.rsplit_once(") ")?.1.starts_with('S'))
        };
        while is_waiting() != Some(true) {
            assert!(began.elapsed() < 60 * SYNC_INTERVAL, "the other one does not wait");
            std::thread::yield_now();
        }
        Err(io::Error::other("the disk does not sync"))
    }
}

/// The kernel tells of what it has dropped once: who waited for the sync that it told must not be
/// told that its own went well.
#[test]
fn who_waits_for_a_wal_sync_that_fails_is_told_of_it() {
    for _ in 0..10 {
        let disk = Arc::<FailsWhileAwaited>::default();
        let hooks = FileSystemHooks { tap: Some(disk.clone()), ..FileSystemHooks::default() };
        let settings = StoreSettings { durability: Durability::None, ..common::small() };
        let (_directory, store) = common::store_with(settings, |builder| builder.hooks(hooks));
        store.put(b"key", b"value").unwrap();
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let (store, disk) = (&store, &disk);
            let first = scope.spawn(|| store.sync());
            let second = scope.spawn(move || {
                while !disk.begun.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let thread = fs::read_link("/proc/thread-self").unwrap();
                disk.is_awaited_by.set(Path::new("/proc").join(thread)).unwrap();
                store.sync()
            });
            [first, second].map(|sync| sync.join().unwrap()).into()
        });
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::Background { .. }))), "{outcomes:?}");
    }
}

#[test]
fn a_sync_that_fails_in_the_background_fails_later_writes() {
    let disk = Arc::<Disk>::default();
    let (directory, store, errors) = store_on(&disk, Durability::EverySecond);
    let mut model = Model::new();
    disk.fail_syncs(Some("log"));
    let began = Instant::now();
    let refused = loop {
        match store.put(b"key", b"value") {
            Ok(()) => assert!(began.elapsed() < 60 * SYNC_INTERVAL, "the failure never came up"),
            Err(error) => break error,
        }
        model.insert(b"key".to_vec(), b"value".to_vec());
    };
    assert!(matches!(refused, Error::Background { .. }), "{refused}");
    // Also where this write asks for less.
    assert!(store.put_opt(b"key", b"value", WriteOptions::durable(Durability::None)).is_err());
    assert!(!errors.0.lock().unwrap().is_empty());
    disk.fail_syncs(None);
    assert!(store.put(b"key", b"value").is_err(), "what was lost is not regained");
    assert_survives(directory.path(), store, &model);
}

/// Files of an owner whose connection breaks after so many bytes.
struct Breaking {
    files: SharedFiles,
    left: Arc<AtomicU64>,
}

struct BreakingFile {
    file: Arc<dyn RangedRead>,
    left: Arc<AtomicU64>,
}

impl RangedRead for BreakingFile {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len() as u64;
        let enough = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(wanted));
        if enough.is_err() {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the owner is gone"));
        }
        self.file.read_at(offset, buffer)
    }
}

impl RemoteFiles for Breaking {
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        let file = self.files.open(path)?;
        Ok(file.map(|file| Arc::new(BreakingFile { file, left: self.left.clone() }) as Arc<dyn RangedRead>))
    }

    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        self.files.size(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Option<Vec<String>>> {
        self.files.list(directory)
    }
}

/// Offloads every job to a worker that fails in one way after another, and sees what it says.
struct FailingWorkers {
    directory: tempfile::TempDir,
    jobs: AtomicU64,
    errors: Mutex<Vec<WorkerError>>,
}

impl CompactionOffload for FailingWorkers {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        let output_directory = self.directory.path().join(job.output_name());
        fs::create_dir_all(&output_directory).unwrap();
        let way = self.jobs.fetch_add(1, Ordering::SeqCst) % 5;
        let disk = Arc::<Disk>::default();
        let cancel = CancelFlag::new();
        let bytes = if way == 0 { job.input_bytes / 2 } else { u64::MAX };
        let mut input = job.input.clone();
        match way {
            0 => {}
            1 => disk.fill_up("sst"),
            2 => cancel.cancel(),
            3 => input.truncate(input.len() / 2),
            _ => input = b"no job at all".to_vec(),
        }
        let error = run_remote_compaction(WorkerRequest {
            store_directory: job.store_directory.clone(),
            output_name: job.output_name(),
            output_directory,
            input: &input,
            files: Arc::new(Breaking {
                files: SharedFiles(OwnersFiles::of(&job.store_directory), Arc::default()),
                left: Arc::new(AtomicU64::new(bytes)),
            }),
            tap: Some(disk),
            mover: None,
            cancel,
            options: WorkerOptions::new(job.table_format),
        })
        .unwrap_err();
        let expected = match way {
            0 => matches!(error, WorkerError::Failed(_)),
            1 => matches!(error, WorkerError::DiskFull(_)),
            2 => error == WorkerError::Canceled,
            _ => matches!(error, WorkerError::InvalidRequest(_)),
        };
        assert!(expected, "way {way}: {error}");
        self.errors.lock().unwrap().push(error);
        RemoteOutcome::Fallback
    }

    fn cancel_all(&self) {}
}

/// Cuts the bytes of a job at every length and changes each of its numbers: the worker must refuse
/// or run it, and live.
#[test]
fn a_damaged_job_never_ends_the_worker() {
    struct Cutting(tempfile::TempDir, AtomicBool);
    impl CompactionOffload for Cutting {
        fn run(&self, job: RemoteJob) -> RemoteOutcome {
            if self.1.swap(true, Ordering::SeqCst) {
                return RemoteOutcome::Local;
            }
            let output_directory = self.0.path().join(job.output_name());
            let cut = (0..job.input.len()).map(|at| job.input[..at].to_vec());
            let digits = job.input.iter().enumerate().filter(|(_, byte)| byte.is_ascii_digit()).map(|(at, _)| at);
            let changed = digits.map(|at| {
                let mut input = job.input.clone();
                input[at] = if input[at] == b'9' { b'1' } else { b'9' };
                input
            });
            for input in cut.chain(changed) {
                fs::create_dir_all(&output_directory).unwrap();
                let _ = run_remote_compaction(WorkerRequest {
                    store_directory: job.store_directory.clone(),
                    output_name: job.output_name(),
                    output_directory: output_directory.clone(),
                    input: &input,
                    files: Arc::new(SharedFiles(OwnersFiles::of(&job.store_directory), Arc::default())),
                    tap: None,
                    mover: None,
                    cancel: CancelFlag::new(),
                    options: WorkerOptions::new(job.table_format),
                });
                fs::remove_dir_all(&output_directory).unwrap();
            }
            RemoteOutcome::Local
        }
        fn cancel_all(&self) {}
    }
    let cutting = Arc::new(Cutting(tempfile::tempdir().unwrap(), AtomicBool::new(false)));
    let settings = StoreSettings { l0_compaction_trigger: 2, ..common::small() };
    let (_directory, store) = common::store_with(settings, |builder| builder.offload(cutting.clone()));
    let mut model = Model::new();
    fill(&store, &mut model, 1, 3_000, 1_000);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    assert_equals(&store, &model);
    store.close().unwrap();
    assert!(cutting.1.load(Ordering::SeqCst), "no job came");
}

#[test]
fn a_worker_says_how_it_failed_and_the_owner_goes_on() {
    let workers = Arc::new(FailingWorkers {
        directory: tempfile::tempdir().unwrap(),
        jobs: AtomicU64::new(0),
        errors: Mutex::default(),
    });
    let settings = StoreSettings { l0_compaction_trigger: 2, ..common::small() };
    let (_directory, store) = common::store_with(settings, |builder| builder.offload(workers.clone()));
    let mut model = Model::new();
    for round in 0..4 {
        fill(&store, &mut model, round, 6_000, 2_000);
        store.flush(true).unwrap();
        store.compact(..).unwrap();
    }
    assert_equals(&store, &model);
    store.close().unwrap();
    let (jobs, errors) = (workers.jobs.load(Ordering::SeqCst) as usize, workers.errors.lock().unwrap());
    assert!(jobs >= 5, "every way of failing came");
    assert_eq!(errors.len(), jobs, "every failure was of the kind it should be");
}
