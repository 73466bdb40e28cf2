//! Opening a store, in steps.
//!
//! | step | what it may lose | how it fails |
//! |---|---|---|
//! | [`claim`] | copies that a check or a backup left half made | what the directory holds, or who has it |
//! | [`check_logs`] | nothing; the bytes of `BALLAST` are given back to a full disk | `Corrupt`, before anything is changed |
//! | [`prepare`] | the torn end of the newest segment | `Io`, `Corrupt`, a limit that the disk cannot keep |
//! | [`open_database`] | what was never synced: the end of the WAL behind the first lost write | `Corrupt`, `Locked`, `DiskFull` |
//! | [`finish_values`] | nothing | `Corrupt` where replay met a lost segment; `Io` |
//! | [`Threads::start`] | nothing | `Io`: the process may have no more threads |
//!
//! Each step leaves behind what a later opening takes up: whatever fails, the store can be opened
//! again as it was.
//!
//! Invariants: nothing is removed to make room before the logs were found whole; the lock is held
//! from before the first listing of files until the store is dropped; threads end before the
//! database goes, also where a later step fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ecotone_io::tap::{Tap, TapEvent};
use ecotone_rocks::compaction_filter::set_compaction_filter;
use ecotone_rocks::filesystem::{FileSystemHooks, hooked_env};
use ecotone_rocks::version::self_test;
use ecotone_types::DutyObserver;
use ecotone_valuelog::ValueLog;
use ecotone_valuelog::sync_failure::SyncFailure;
use parking_lot::Mutex;
use rust_rocksdb::{
    ColumnFamilyDescriptor, DB, DEFAULT_COLUMN_FAMILY_NAME, FlushOptions, Options, ReadOptions,
    WriteOptions as RocksWriteOptions,
};

use super::Store;
use crate::background::BackgroundThread;
use crate::collectors::add_collectors;
use crate::compaction::internal::InternalCompactions;
use crate::compaction::jobs::{BackgroundState, JobRegistry, Totals};
use crate::compaction::table_changes::{TableChanges, TableSubscriber};
use crate::dedup::sample_registry::{SampleRegistry, max_samples};
use crate::dedup::sketch::Sketching;
use crate::directory_lock::{DirectoryLock, another_process, unless_in_use};
use crate::durable_logs::DurableTap;
use crate::duties::ThreadDuties;
use crate::events::sync_failures_to;
use crate::expired::ExpiredValues;
use crate::family::{DATA_FAMILY, DataFamily};
use crate::gc::notifier::GcNotifier;
use crate::listener::Listener;
use crate::log_check::Logs;
use crate::non_blocking::{NonBlockingReads, ending_early};
use crate::offload::adapter::{Adapter, OffloadState, OnlyHere};
use crate::offload::slots::LocalSlots;
use crate::raw::TableLimit;
use crate::row_cache::RowCache;
use crate::shared_rows::StoreRows;
use crate::space::admission::AdmissionControl;
use crate::space::ballast::Shortage;
use crate::space::expired_tables::ExpiredTables;
use crate::space::watch;
use crate::stall::StallClock;
use crate::table_format::TableFormat;
use crate::value_store::replay::{Replay, ReplayOutcome};
use crate::value_store::{Components, Opening, ValueStore};
use crate::wal_sync::{NotSynced, Synced, WalSync, WalSyncs};
use crate::{
    CompactionOffload, Error, MemoryLimit, OpenMode, Result, SharedRows, SharedSpace, StoreEvents, StoreSettings,
    cleanup, dedup, identity, idle, layout, log_check, tuning,
};

/// Compactions that run here at a time after a failed offload, unless the store is given slots.
const DEFAULT_LOCAL_SLOTS: usize = 2;

/// What a store shares with the process around it: see the methods of
/// [`StoreBuilder`](crate::StoreBuilder). Unlike [`StoreSettings`] these live, so they are neither
/// compared nor written down; clones share them.
#[derive(Clone, Default)]
pub(crate) struct StoreComponents {
    pub(crate) memory: Option<MemoryLimit>,
    pub(crate) rows: Option<SharedRows>,
    pub(crate) space: Option<SharedSpace>,
    pub(crate) hooks: Option<FileSystemHooks>,
    pub(crate) offload: Option<Arc<dyn CompactionOffload>>,
    pub(crate) local_slots: Option<Arc<LocalSlots>>,
    pub(crate) duties: Option<Arc<dyn DutyObserver>>,
    pub(crate) events: Option<Arc<dyn StoreEvents>>,
    pub(crate) flush_on_open: bool,
    pub(crate) least_segment: u32,
    /// Of a store that follows the files of another process or part.
    pub(crate) follows_beside: Option<PathBuf>,
}

/// What is asked for.
struct Request<'r> {
    mode: OpenMode,
    settings: &'r StoreSettings,
    components: StoreComponents,
}

impl Request<'_> {
    fn is_writable(&self) -> bool {
        self.mode != OpenMode::ReadOnly
    }

    fn follows(&self) -> bool {
        self.components.follows_beside.is_some()
    }

    /// Tells the hooks of what this crate itself writes.
    fn tap(&self) -> Tap {
        FileSystemHooks::tap_of(self.components.hooks.as_ref())
    }
}

/// Opens the store in `directory`. On a disk that turns out to be full only when it is written to
/// it is tried once more, with what can be freed.
pub(crate) fn open(
    directory: &Path,
    mode: OpenMode,
    settings: &StoreSettings,
    components: StoreComponents,
) -> Result<Store> {
    let request = Request { mode, settings, components };
    let opened = match open_once(directory, &request, false) {
        Err(Error::DiskFull { .. }) if request.is_writable() => open_once(directory, &request, true),
        opened => opened,
    };
    opened.map_err(|error| if request.is_writable() { error } else { unless_in_use(directory, error) })
}

fn open_once(directory: &Path, request: &Request<'_>, meets_full_disk: bool) -> Result<Store> {
    request.settings.validate()?;
    if let Some(memory) = &request.components.memory {
        memory.validate()?;
    }
    self_test().map_err(|error| Error::Rocks { detail: error.to_string() })?;
    let Claimed { directory, lock } = claim(directory, request)?;
    let Checked { logs, shortage } = check_logs(&directory, request, meets_full_disk)?;
    let mut prepared = prepare(&directory, request, logs, shortage)?;
    let (db, family) = open_database(&directory, request, &mut prepared, shortage)?;
    let value_events = prepared.values.as_ref().map(|values| values.notifier().clone());
    let values = finish_values(&directory, request, &mut prepared, &db, family)?;
    let wal_syncs = WalSyncs::new(&directory, prepared.parts.failure.clone(), prepared.parts.background.clone());
    let opened = Opened {
        directory: &directory,
        request,
        prepared: &prepared,
        db: &db,
        family,
        values: values.as_ref(),
        wal_syncs: &wal_syncs,
        memtable_bytes: shortage.map(|_| request.settings.memtable_bytes),
    };
    let state = ThreadState::default();
    let threads = Threads::start(opened, value_events, &state)?;
    let Prepared { rocks_options, parts, durable_logs, samples, offload, dedup_state, .. } = prepared;
    // Nothing fails from here on: the database must not be dropped while a compaction thread
    // borrows it.
    if let Some(offload) = &offload {
        offload.set_database(&db);
    }
    let mut write_synced = RocksWriteOptions::default();
    write_synced.set_sync(true);
    let mut write_non_blocking = RocksWriteOptions::default();
    write_non_blocking.set_no_slowdown(true);
    let has_pointers = values.is_some();
    let own_rows = || {
        let bytes = request.settings.row_cache_bytes.filter(|bytes| *bytes > 0)?;
        Some(StoreRows::own(RowCache::new(bytes, has_pointers)))
    };
    let rows = request.components.rows.clone().map(StoreRows::shared).or_else(own_rows);
    Ok(Store {
        wal_sync: threads.wal_sync,
        watch: threads.watch,
        dedup: threads.dedup,
        cleanup: threads.cleanup,
        idle: threads.idle,
        values,
        db,
        family,
        read_options: ReadOptions::default(),
        read_some: ending_early(ReadOptions::default()),
        non_blocking: NonBlockingReads::of(request.settings),
        skipped: state.skipped,
        rows,
        write_unsynced: RocksWriteOptions::default(),
        write_synced,
        write_non_blocking,
        durability: request.settings.durability,
        directory,
        mode: request.mode,
        follows: request.follows(),
        rocks_options,
        totals: parts.totals,
        stall: parts.stall,
        background: parts.background,
        wal_syncs,
        durable_logs,
        replayed: parts.replayed,
        admission: parts.admission,
        internal: parts.internal,
        removed_ranges: state.removed_ranges,
        offload,
        samples,
        dedup_shared: dedup_state,
        max_subcompactions: AtomicU32::new(request.settings.max_subcompactions),
        closed: false,
        checks: Mutex::default(),
        _lock: lock,
    })
}

struct Claimed {
    /// Absolute, without links.
    directory: PathBuf,
    /// Where the store may be written.
    lock: Option<DirectoryLock>,
}

/// Lock and identity: the directory holds what `mode` allows, and is nobody else's.
///
/// May lose: half-made copies of a process that ended; nothing of the store. Fails with `NotFound`,
/// `AlreadyExists`, `WrongFormat`, `Locked` or `Io`; a directory that was made for a new store may
/// stay, and is taken for one that is still to be created.
fn claim(directory: &Path, request: &Request<'_>) -> Result<Claimed> {
    let directory = std::path::absolute(directory).map_err(|e| Error::io("resolve", directory, &e))?;
    identity::prepare(&directory, request.mode, &request.tap())?;
    // RocksDB writes its paths into files and hands them to workers: they must not depend on
    // the working directory, and a worker refuses to write where a path climbs.
    let directory = std::fs::canonicalize(&directory).map_err(|e| Error::io("resolve", &directory, &e))?;
    if !request.is_writable() {
        return Ok(Claimed { directory, lock: None });
    }
    // Before anything is listed: segments of a process that is still alive would grow behind our
    // back.
    let must = request.settings.separation.is_some() || identity::read(&directory)?.has_value_log();
    let lock = DirectoryLock::for_writing(&directory, must)?;
    layout::remove_checked(&directory);
    if lock.is_held() {
        layout::remove_held_checkpoints(&directory);
    }
    Ok(Claimed { directory, lock: Some(lock) })
}

struct Checked {
    logs: Arc<Logs>,
    /// Where the disk is full.
    shortage: Option<Shortage>,
}

/// Recovery checks: what was synced of WALs and MANIFEST is there and can be read. Then a full disk
/// is given what can be freed.
///
/// May lose: nothing. Fails with `Corrupt`, by file and offset, before anything is removed to make
/// room: of a damaged store every file may be needed.
fn check_logs(directory: &Path, request: &Request<'_>, meets_full_disk: bool) -> Result<Checked> {
    if request.follows() {
        // They are appended to all the time: where they end nothing is wrong.
        return Ok(Checked { logs: Arc::default(), shortage: None });
    }
    let logs = Arc::new(log_check::check(directory)?);
    let shortage = if request.is_writable() {
        let found = Shortage::relieve(directory, meets_full_disk, logs.has_whole_manifest());
        found.map_err(|error| Error::io("ask for free space on", directory, &error))?
    } else {
        None
    };
    Ok(Checked { logs, shortage })
}

/// What the parts of a store share before there is a database.
struct Parts {
    /// Where the store takes writes.
    admission: Option<Arc<AdmissionControl>>,
    jobs: Arc<JobRegistry>,
    totals: Arc<Totals>,
    internal: Arc<InternalCompactions>,
    failure: Arc<SyncFailure>,
    replayed: Arc<ReplayOutcome>,
    background: Arc<BackgroundState>,
    stall: Arc<StallClock>,
    duties: ThreadDuties,
    expired: Option<ExpiredValues>,
}

impl Parts {
    /// `options` are those of the database, without anything yet that holds one of these.
    fn new(directory: &Path, request: &Request<'_>, options: &Options) -> Result<Self> {
        let StoreComponents { events, duties, space, .. } = &request.components;
        let admission = if request.is_writable() {
            Some(Arc::new(AdmissionControl::new(
                directory,
                request.settings,
                options.clone(),
                events.clone(),
                space.as_ref(),
            )?))
        } else {
            None
        };
        let (jobs, totals) = (Arc::<JobRegistry>::default(), Arc::<Totals>::default());
        let internal = InternalCompactions::new(admission.clone(), jobs.clone(), totals.clone(), events.clone());
        Ok(Self {
            admission,
            jobs,
            totals,
            internal: Arc::new(internal),
            failure: SyncFailure::reporting_to(sync_failures_to(events.clone())),
            replayed: Arc::default(),
            background: Arc::default(),
            stall: Arc::new(StallClock::start()),
            duties: ThreadDuties::new(duties.clone()),
            expired: ExpiredValues::of(request.settings.reclaim_expired),
        })
    }
}

/// All that the database is opened with.
struct Prepared {
    rocks_options: Options,
    parts: Parts,
    /// Where the store has a value log, until [`finish_values`].
    values: Option<Opening>,
    /// Where the store may be written.
    durable_logs: Option<Arc<DurableTap>>,
    samples: Option<Arc<SampleRegistry>>,
    offload: Option<Arc<OffloadState>>,
    dedup: Option<dedup::Settings>,
    dedup_state: Arc<dedup::DedupState>,
}

/// RocksDB's options, with everything that is to hear of what it does.
///
/// May lose: the torn end of the newest segment, which no synced write refers to. Fails with `Io`
/// or `Corrupt` of the value log, and names the limit of space that the disk cannot keep.
fn prepare(directory: &Path, request: &Request<'_>, logs: Arc<Logs>, shortage: Option<Shortage>) -> Result<Prepared> {
    let (settings, components) = (request.settings, &request.components);
    let own_limit = || settings.memory_limit_bytes.map(MemoryLimit::new);
    let memory = components.memory.clone().or_else(own_limit);
    let mut rocks_options = tuning::database_options(settings, memory.as_ref());
    // The first WAL as a whole is what no numbers of writes miss.
    rocks_options.set_track_and_verify_wals(logs.may_want_a_wal() && !request.follows());
    if request.follows() {
        tuning::write_nothing(&mut rocks_options, memory.as_ref());
    }
    let parts = Parts::new(directory, request, &rocks_options)?;
    let mut hooks = components.hooks.clone();
    let values = prepare_values(directory, request, &parts, logs, &mut hooks, &mut rocks_options)?;
    let durable_logs = hook_file_system(directory, request, &parts, hooks.unwrap_or_default(), &mut rocks_options)?;
    let table_format = tuning::table_format(settings, values.is_some());
    let samples = add_samples(settings, memory.as_ref(), table_format, &mut rocks_options);
    let offload = components.offload.clone().filter(|_| request.is_writable()).map(|offload| {
        let slots = components.local_slots.clone().unwrap_or_else(|| LocalSlots::new(DEFAULT_LOCAL_SLOTS));
        let only_here = OnlyHere { reclaims_expired: settings.reclaim_expired };
        let (jobs, duties) = (parts.jobs.clone(), parts.duties.clone());
        let gc = values.as_ref().map(|values| values.gc().clone());
        OffloadState::new(offload, slots, jobs, duties, table_format, parts.internal.clone(), only_here, gc)
    });
    if let Some(offload) = &offload {
        rocks_options.set_compaction_service(Adapter(offload.clone()));
    }
    let dedup = dedup::Settings::of(settings).filter(|_| request.is_writable());
    let dedup_state = Arc::<dedup::DedupState>::default();
    let mut subscribers: Vec<Arc<dyn TableSubscriber>> = Vec::new();
    if let Some(samples) = &samples {
        subscribers.push(samples.clone());
    }
    if let Some(values) = &values {
        subscribers.push(values.notifier().clone());
    }
    if dedup.is_some() {
        subscribers.push(dedup_state.clone());
    }
    let changes = Arc::new(TableChanges::new(subscribers));
    parts.internal.set_table_changes(changes.clone());
    rocks_options.add_event_listener(Listener {
        jobs: parts.jobs.clone(),
        totals: parts.totals.clone(),
        background: parts.background.clone(),
        stall: parts.stall.clone(),
        duties: parts.duties.clone(),
        events: components.events.clone(),
        offload: offload.clone(),
        changes,
        admission: parts.admission.clone(),
    });
    if let Some(shortage) = shortage.filter(|_| !components.flush_on_open) {
        tuning::write_little(&mut rocks_options, settings, shortage);
    }
    Ok(Prepared { rocks_options, parts, values, durable_logs, samples, offload, dedup, dedup_state })
}

/// The value log, its filter of compactions and its replay; without one, a replay that only counts.
fn prepare_values(
    directory: &Path,
    request: &Request<'_>,
    parts: &Parts,
    logs: Arc<Logs>,
    hooks: &mut Option<FileSystemHooks>,
    rocks_options: &mut Options,
) -> Result<Option<Opening>> {
    let components = Components {
        admission: parts.admission.as_ref(),
        internal: &parts.internal,
        failure: &parts.failure,
        logs: &logs,
        outcome: &parts.replayed,
        duties: &parts.duties,
        least_segment: request.components.least_segment,
        follows: request.follows(),
    };
    let values = Opening::prepare(directory, components, parts.expired, request.settings, hooks, rocks_options)?;
    if values.is_none() {
        rocks_options.set_wal_filter(Replay::new(directory, None, logs, parts.replayed.clone()));
        if let Some(expired) = parts.expired {
            set_compaction_filter(rocks_options, Arc::new(expired));
        }
    }
    Ok(values)
}

/// Puts the hooks under RocksDB's files: ours, which follow what is durable, over those given.
fn hook_file_system(
    directory: &Path,
    request: &Request<'_>,
    parts: &Parts,
    mut hooks: FileSystemHooks,
    rocks_options: &mut Options,
) -> Result<Option<Arc<DurableTap>>> {
    let durable_logs = request
        .is_writable()
        .then(|| DurableTap::new(directory, request.tap(), hooks.tap.take()))
        .inspect(|tap| hooks.tap = Some(tap.clone()));
    let env = hooked_env(hooks).map_err(|error| Error::Rocks { detail: error.to_string() })?;
    rocks_options.set_env(&env);
    if let Some(admission) = &parts.admission {
        let (info_log_bytes, manifest_bytes) = tuning::bookkeeping_bytes(admission.space_bytes());
        tuning::limit_bookkeeping(rocks_options, info_log_bytes, manifest_bytes);
        admission.limit_tables(TableLimit::new(rocks_options, &env)?)?;
    }
    Ok(durable_logs)
}

/// What tables tell of their keys, and who remembers it.
fn add_samples(
    settings: &StoreSettings,
    memory: Option<&MemoryLimit>,
    table_format: TableFormat,
    rocks_options: &mut Options,
) -> Option<Arc<SampleRegistry>> {
    let samples = table_format.collects.samples.then(|| {
        let asks_filters = table_format.collects.filter_bits_per_key > 0;
        // Stores that share a limit have each a part of it for what lies beside.
        let memory_bytes = settings.memory_limit_bytes.or(memory.map(MemoryLimit::limit_bytes));
        SampleRegistry::new(max_samples(memory_bytes), asks_filters.then_some(settings.dedup.max_filter_bytes))
    });
    let sketching = samples.as_ref().map_or_else(|| Sketching::new(0).into(), |samples| samples.sketching().clone());
    add_collectors(rocks_options, table_format.collects, &sketching);
    samples
}

/// Opens the database, which replays its WALs.
///
/// May lose: what replay stops before, which was never synced. Fails with `Corrupt` where a synced
/// write is missing or leads nowhere, `Locked`, `DiskFull`, and whatever RocksDB meets; WALs and
/// tables are then as they were.
fn open_database(
    directory: &Path,
    request: &Request<'_>,
    prepared: &mut Prepared,
    shortage: Option<Shortage>,
) -> Result<(Arc<DB>, DataFamily)> {
    let options = &mut prepared.rocks_options;
    let create = matches!(request.mode, OpenMode::Create | OpenMode::CreateOrOpen);
    options.create_if_missing(create);
    options.create_missing_column_families(create);
    let families = [
        ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, tuning::empty_family_options(request.settings)),
        ColumnFamilyDescriptor::new(DATA_FAMILY, options.clone()),
    ];
    let opened = match &request.components.follows_beside {
        Some(beside) => DB::open_cf_descriptors_as_secondary(options, directory, beside.as_path(), families),
        None if request.is_writable() => DB::open_cf_descriptors(options, directory, families),
        None => DB::open_cf_descriptors_read_only(options, directory, families, false),
    };
    let opened = opened.map_err(|error| Error::from_open(directory, &error, another_process));
    let of_values = || prepared.values.as_ref().and_then(Opening::failure);
    let db = Arc::new(opened.map_err(|error| of_values().unwrap_or(error))?);
    let Some(family) = DataFamily::of(&db) else {
        let reason = format!("it has no column family {DATA_FAMILY:?}");
        return Err(Error::WrongFormat { directory: directory.to_path_buf(), reason });
    };
    // On a full disk what was replayed stays in its WALs. Where a part of them was passed over
    // they must go before anything else is written, as at any other opening: the next replay
    // would take that part for acknowledged, or stop before what follows it.
    if shortage.is_some() && prepared.parts.replayed.is_stopped.load(Ordering::Relaxed) {
        db.flush_cf_opt(&family, &FlushOptions::default()).map_err(|error| Error::from_rocks(&error))?;
    }
    if request.is_writable() {
        // Where the file system has no locks, nobody else has the store now.
        layout::remove_held_checkpoints(directory);
    }
    Ok((db, family))
}

/// The value store of the open database.
///
/// May lose: nothing. Fails with what replay met (`Corrupt`), or `Io` of the value log; nothing was
/// written by then but the tables that replay made.
fn finish_values(
    directory: &Path,
    request: &Request<'_>,
    prepared: &mut Prepared,
    db: &Arc<DB>,
    family: DataFamily,
) -> Result<Option<ValueStore>> {
    match (prepared.values.take(), &prepared.samples) {
        (Some(values), Some(samples)) => {
            values.finish(directory, db, family, samples.clone(), request.is_writable()).map(Some)
        }
        _ => Ok(None),
    }
}

/// What threads and the store share from now on.
#[derive(Default)]
struct ThreadState {
    skipped: Arc<cleanup::CleanupState>,
    removed_ranges: Arc<AtomicU64>,
}

/// What threads are started from.
#[derive(Clone, Copy)]
struct Opened<'o> {
    directory: &'o Path,
    request: &'o Request<'o>,
    prepared: &'o Prepared,
    db: &'o Arc<DB>,
    family: DataFamily,
    values: Option<&'o ValueStore>,
    wal_syncs: &'o Arc<WalSyncs>,
    /// Where memtables were made larger for a replay on a full disk: as large as they are to be.
    memtable_bytes: Option<u64>,
}

/// The threads of a store, but for the value log's. Those that were started end where a later one
/// cannot be.
struct Threads {
    wal_sync: Option<WalSync>,
    watch: Option<BackgroundThread>,
    dedup: Option<BackgroundThread>,
    cleanup: Option<BackgroundThread>,
    idle: Option<BackgroundThread>,
}

impl Threads {
    /// May lose: nothing. Fails with `Io` where the process may have no more threads.
    fn start(opened: Opened<'_>, values: Option<Arc<GcNotifier>>, state: &ThreadState) -> Result<Self> {
        let wal_sync = if opened.request.is_writable() { Some(opened.start_wal_sync()?) } else { None };
        Ok(Self {
            wal_sync,
            watch: opened.start_watch(values)?,
            dedup: opened.start_dedup()?,
            cleanup: opened.start_cleanup(&state.skipped)?,
            idle: opened.start_idle(&state.removed_ranges)?,
        })
    }
}

impl Opened<'_> {
    fn cannot_start(self, thread: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let directory = self.directory.to_path_buf();
        move |error| Error::io(thread, &directory, &error)
    }

    /// Rewrites what has expired, where that is asked for.
    fn expired_tables(self) -> Option<ExpiredTables> {
        let parts = &self.prepared.parts;
        parts.expired.map(|_| ExpiredTables::new(parts.internal.clone(), self.request.settings.target_file_bytes))
    }

    fn start_wal_sync(self) -> Result<WalSync> {
        let log: Option<Arc<ValueLog>> = self.values.map(|values| values.log.clone());
        let (wal_syncs, tap) = (self.wal_syncs.clone(), self.request.tap());
        let (of_thread, path) = (Arc::downgrade(self.db), self.directory.to_path_buf());
        let sync = move || match of_thread.upgrade() {
            Some(db) => {
                tap.tell(TapEvent::SyncBegins { path: &path }).map_err(|error| error.to_string())?;
                // Where that fails it has been told already.
                log.as_ref().map_or(Ok(()), |log| log.sync()).map_err(|error| error.to_string())?;
                match wal_syncs.sync(&db) {
                    Ok(()) => Ok(Synced::Now),
                    Err(NotSynced::Yet(_)) => Ok(Synced::Later),
                    Err(NotSynced::Ever(error)) => Err(error.to_string()),
                }
            }
            None => Ok(Synced::Now),
        };
        let started = WalSync::start(sync, self.prepared.parts.failure.clone());
        started.map_err(self.cannot_start("start the WAL sync thread of"))
    }

    fn start_watch(self, values: Option<Arc<GcNotifier>>) -> Result<Option<BackgroundThread>> {
        let Some(admission) = &self.prepared.parts.admission else { return Ok(None) };
        admission.opened(self.db, self.family);
        let started = watch::start(admission.clone(), values, self.expired_tables(), self.memtable_bytes);
        started.map(Some).map_err(self.cannot_start("start the thread that watches the space of"))
    }

    fn start_dedup(self) -> Result<Option<BackgroundThread>> {
        let (Some(settings), Some(samples)) = (&self.prepared.dedup, &self.prepared.samples) else { return Ok(None) };
        let parts = &self.prepared.parts;
        let components = dedup::DedupComponents {
            samples: samples.clone(),
            internal: parts.internal.clone(),
            admission: parts.admission.clone(),
            background: parts.background.clone(),
            totals: parts.totals.clone(),
            duties: parts.duties.clone(),
        };
        let state = self.prepared.dedup_state.clone();
        let started = dedup::start(settings.clone(), components, state, self.db, self.family);
        started.map(Some).map_err(self.cannot_start("start the thread that looks for duplicates in"))
    }

    fn start_cleanup(self, skipped: &Arc<cleanup::CleanupState>) -> Result<Option<BackgroundThread>> {
        if !self.request.is_writable() {
            return Ok(None);
        }
        let parts = &self.prepared.parts;
        let (internal, admission) = (parts.internal.clone(), parts.admission.clone());
        let components = cleanup::CleanupComponents { internal, admission, family: self.family };
        let started = cleanup::start(skipped.clone(), components, self.db);
        started.map(Some).map_err(self.cannot_start("start the thread that cleans up"))
    }

    fn start_idle(self, removed_ranges: &Arc<AtomicU64>) -> Result<Option<BackgroundThread>> {
        let parts = &self.prepared.parts;
        let Some(admission) = parts.admission.clone().filter(|_| self.request.settings.reclaim_idle) else {
            return Ok(None);
        };
        let components = idle::IdleComponents {
            directory: self.directory.to_path_buf(),
            internal: parts.internal.clone(),
            admission,
            removed_ranges: removed_ranges.clone(),
            expired: self.expired_tables(),
            values: self.values.and_then(ValueStore::for_reclaim),
        };
        let started = idle::start(components, self.db, self.family);
        started.map(Some).map_err(self.cannot_start("start the thread that frees the garbage of"))
    }
}
