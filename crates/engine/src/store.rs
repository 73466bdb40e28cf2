//! The store: maintenance, closing. Opening is in [`open`], writes in [`crate::write`], reads in
//! [`crate::read`] and [`crate::scan`].

mod builder;
mod open;

use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_io::tap::Tap;
use ecotone_rocks::tables::{FamilyTable, TableMetadata, family_tables, live_tables};
use parking_lot::Mutex;
use rust_rocksdb::checkpoint::Checkpoint;
use rust_rocksdb::{CompactOptions, DB, FlushOptions, Options, ReadOptions, WriteOptions as RocksWriteOptions};

pub use builder::StoreBuilder;

use crate::background::BackgroundThread;
use crate::cleanup;
use crate::compaction::internal::InternalCompactions;
use crate::compaction::jobs::{BackgroundState, Totals};
use crate::dedup;
use crate::dedup::sample_registry::SampleRegistry;
use crate::directory_lock::DirectoryLock;
use crate::durable_logs::DurableTap;
use crate::error::is_disk_full;
use crate::family::DataFamily;
use crate::non_blocking::NonBlockingReads;
use crate::offload::adapter::OffloadState;
use crate::offload::slots::LocalSlots;
use crate::options::MIN_OPEN_FILES;
use crate::row_cache::RowCounts;
use crate::shared_rows::StoreRows;
use crate::space::admission::AdmissionControl;
use crate::stall::StallClock;
use crate::value_store::ValueStore;
use crate::value_store::compression::CompressionProperties;
use crate::value_store::replay::ReplayOutcome;
use crate::wal_sync::{NotSynced, WalSync, WalSyncs};
use crate::{
    Counters, DedupProperties, Durability, Error, FreeSpace, OpenMode, Result, StoreProperties, StoreSettings,
    ValueLogProperties, identity, properties,
};

/// One LSM tree in one directory. `Send + Sync`; share it in an `Arc`. All calls block.
///
/// Dropping a store closes it like [`close`](Self::close), with errors logged. Nothing that was
/// acknowledged is lost either way, nor by a kill of the process.
pub struct Store {
    // These five before `db`: their threads must have ended, and no callback may reach the store,
    // when the database goes.
    wal_sync: Option<WalSync>,
    watch: Option<BackgroundThread>,
    dedup: Option<BackgroundThread>,
    cleanup: Option<BackgroundThread>,
    idle: Option<BackgroundThread>,
    pub(crate) values: Option<ValueStore>,
    pub(crate) db: Arc<DB>,
    pub(crate) family: DataFamily,
    pub(crate) read_options: ReadOptions,
    /// For lookups that end early.
    pub(crate) read_some: ReadOptions,
    pub(crate) non_blocking: NonBlockingReads,
    /// What scans have stepped over.
    pub(crate) skipped: Arc<cleanup::CleanupState>,
    pub(crate) rows: Option<StoreRows>,
    pub(crate) write_unsynced: RocksWriteOptions,
    pub(crate) write_synced: RocksWriteOptions,
    /// As `write_unsynced`, and never waits.
    pub(crate) write_non_blocking: RocksWriteOptions,
    pub(crate) durability: Durability,
    directory: PathBuf,
    mode: OpenMode,
    /// Somebody else writes it.
    pub(crate) follows: bool,
    rocks_options: Options,
    totals: Arc<Totals>,
    pub(crate) stall: Arc<StallClock>,
    pub(crate) background: Arc<BackgroundState>,
    wal_syncs: Arc<WalSyncs>,
    /// Where the store may be written.
    durable_logs: Option<Arc<DurableTap>>,
    /// What its opening met.
    pub(crate) replayed: Arc<ReplayOutcome>,
    /// Where the store takes writes.
    pub(crate) admission: Option<Arc<AdmissionControl>>,
    pub(crate) internal: Arc<InternalCompactions>,
    /// How many ranges of keys were removed.
    pub(crate) removed_ranges: Arc<AtomicU64>,
    offload: Option<Arc<OffloadState>>,
    /// Where tables tell of their keys.
    samples: Option<Arc<SampleRegistry>>,
    dedup_shared: Arc<dedup::DedupState>,
    max_subcompactions: AtomicU32,
    closed: bool,
    /// Held by the check that runs.
    pub(crate) checks: Mutex<()>,
    /// Last: held as long as anything may be written.
    _lock: Option<DirectoryLock>,
}

impl Store {
    /// Opens the store in `directory` with nothing beside its settings: a short
    /// [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// Those of [`StoreBuilder::open`].
    pub fn open(directory: &Path, mode: OpenMode, settings: StoreSettings) -> Result<Self> {
        Self::builder(directory).mode(mode).settings(settings).open()
    }

    /// Opens the store in `directory`: `Store::builder(path).settings(..).offload(..).open()`.
    pub fn builder(directory: &Path) -> StoreBuilder {
        StoreBuilder::new(directory)
    }

    /// The store's directory, absolute.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Shows what the files hold now, of a store that [follows](StoreBuilder::following) them.
    /// Nobody may read it meanwhile: what a reader has of before may be gone afterwards. With
    /// `looks_for_segments`, what was removed of the value log is let go.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] of a store that follows nothing. Else whatever RocksDB meets: it
    /// shows what it showed before, or is to be opened anew.
    pub fn catch_up(&self, looks_for_segments: bool) -> Result<()> {
        if !self.follows {
            return Err(Error::invalid("catch_up", "the store follows nobody"));
        }
        self.db.try_catch_up_with_primary().map_err(|error| Error::from_rocks(&error))?;
        match &self.values {
            Some(values) if looks_for_segments => Ok(values.log.look_for_segments()?),
            _ => Ok(()),
        }
    }

    /// Writes all memtables to tables. With `wait`, returns when they are durable; without, when it
    /// has begun.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] without `wait` while writes are stopped: RocksDB begins no flush then that
    /// nobody waits for. Try again.
    pub fn flush(&self, wait: bool) -> Result<()> {
        self.check_writable()?;
        let mut options = FlushOptions::default();
        options.set_wait(wait);
        // Otherwise it would wait, without limit, until compactions have caught up.
        options.set_allow_write_stall(true);
        self.db.flush_cf_opt(&self.family, &options).map_err(|e| self.failure(&e))
    }

    /// Compacts all tables that hold keys of `range`, down to the last level that has any, and
    /// waits for it.
    ///
    /// # Errors
    ///
    /// [`Error::Background`] when the compaction failed in a way that stopped the store.
    /// [`Error::OutOfSpace`] when a compaction was deferred meanwhile because it would not have
    /// fitted: a part of the range may be as it was.
    pub fn compact<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<()> {
        self.check_writable()?;
        let bound = |bound: Bound<&&'k [u8]>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(*key),
            Bound::Unbounded => None,
        };
        let (begin, end) = (bound(range.start_bound()), bound(range.end_bound()));
        let deferred = || self.admission.as_ref().map(|admission| admission.compactions_deferred());
        let deferred_before = deferred();
        self.db.compact_range_cf_opt(&self.family, begin, end, &CompactOptions::default());
        // RocksDB's C API does not return the outcome.
        match self.background.error() {
            Some(detail) => Err(Error::Background { detail }),
            None => match &self.admission {
                Some(admission) if deferred() != deferred_before => Err(admission.out_of_space()),
                _ => Ok(()),
            },
        }
    }

    /// Ends compactions that somebody waits for, and makes none any more that is asked for: whoever
    /// does returns soon. Before a store is closed that others still use.
    pub fn end_compactions(&self) {
        if self.mode != OpenMode::ReadOnly {
            self.db.disable_manual_compaction();
        }
    }

    /// Makes a copy of the store as it is now in `directory`, which must not exist; its parent
    /// must. Tables are linked, not copied, where both are on one file system. The copy is a store
    /// of its own.
    pub fn checkpoint(&self, directory: &Path) -> Result<()> {
        self.check_writable()?;
        // Its own name is made durable in the directory above, which a name alone does not tell.
        let directory = &std::path::absolute(directory).map_err(|error| Error::io("resolve", directory, &error))?;
        if directory.exists() {
            return Err(Error::AlreadyExists { directory: directory.clone() });
        }
        let identity = identity::read(&self.directory)?;
        let copy = || {
            let checkpoint = Checkpoint::new(&*self.db).map_err(|e| self.failure(&e))?;
            checkpoint.create_checkpoint(directory).map_err(|e| self.failure(&e))
        };
        match &self.values {
            Some(values) => values.checkpoint(directory, copy)?,
            None => copy()?,
        }
        // Last: without it the copy is no store.
        identity::write(directory, identity, &Tap::SILENT)
    }

    /// Sets into how many subcompactions an L0 or manual compaction is split that begins from now
    /// on; at least 1. Writes a new OPTIONS file where the number changes, so it is for the scale
    /// of seconds.
    pub fn set_max_subcompactions(&self, subcompactions: u32) -> Result<()> {
        self.check_writable()?;
        if subcompactions == 0 {
            return Err(Error::invalid("max_subcompactions", "0 is below the least, 1"));
        }
        if self.max_subcompactions.swap(subcompactions, Ordering::Relaxed) == subcompactions {
            return Ok(());
        }
        self.db.set_db_options(&[("max_subcompactions", &subcompactions.to_string())]).map_err(|e| self.failure(&e))
    }

    /// Holds no more than so many tables open from now on; at least 16. Those that are open stay so
    /// until they are removed. Writes a new OPTIONS file.
    pub fn bound_open_tables(&self, most: u32) -> Result<()> {
        self.check_writable()?;
        if most < MIN_OPEN_FILES {
            return Err(Error::invalid("most", format!("{most} is below the least, {MIN_OPEN_FILES}")));
        }
        self.db.set_db_options(&[("max_open_files", &most.to_string())]).map_err(|e| self.failure(&e))
    }

    /// The store's state now.
    pub fn properties(&self) -> Result<StoreProperties> {
        StoreProperties::read(&self.db, self.family, self.own_rows().bytes)
    }

    /// What the store has done since it was opened.
    pub fn counters(&self) -> Counters {
        if let Some(condition) = properties::stall_condition(&self.db, self.family)
            && condition != self.stall.condition()
        {
            self.stall.change_to(condition);
        }
        let separated_bytes = self.values.as_ref().map_or(0, ValueStore::separated_bytes);
        let counters = Counters::read(&self.rocks_options, &self.totals, &self.stall, self.admission.as_deref());
        let rows = self.own_rows();
        let (skipped_entries, range_cleanups) = self.skipped.counts();
        Counters {
            skipped_entries,
            range_cleanups,
            separated_bytes,
            // RocksDB counts those that come to it.
            keys_read: counters.keys_read + rows.hits,
            row_cache_hits: rows.hits,
            row_cache_misses: rows.misses,
            ..counters
        }
    }

    /// Of rows that are shared whoever made them tells.
    fn own_rows(&self) -> RowCounts {
        self.rows.as_ref().filter(|rows| !rows.are_shared()).map(|rows| rows.counts()).unwrap_or_default()
    }

    /// What scans have stepped over between two keys, both counted in, is no reason any more to
    /// clean up there: nobody will scan it again.
    pub fn forget_skipped(&self, first: &[u8], last: &[u8]) {
        self.skipped.forget(first, last);
    }

    /// What the store knows of its duplicates and has done about them; `None` where it counts none.
    pub fn dedup(&self) -> Option<DedupProperties> {
        let samples = self.samples.as_ref()?;
        let found = samples.look(&self.db, &self.family).or_else(|error| {
            tracing::debug!(%error, "a table cannot be asked for its keys; it counts as one without duplicates");
            Ok::<_, Error>((self.family_tables()?, samples.now()))
        });
        let (tables, sketches) = found.ok()?;
        Some(dedup::with_levels(self.dedup_done(samples), &tables, &sketches))
    }

    /// The same without reading anything, and what there is as it was within the last ten seconds,
    /// or before where somebody else looks or counts; `None` also where nobody has counted yet. Of
    /// tables that came before the store was opened it tells once somebody has looked at them,
    /// which the store does by itself soon after.
    pub fn try_dedup(&self) -> Option<DedupProperties> {
        let samples = self.samples.as_ref()?;
        let count = || {
            let sketches = samples.read_now()?;
            Some(dedup::with_levels(DedupProperties::default(), &self.family_tables().ok()?, &sketches))
        };
        self.dedup_shared.cached(Instant::now(), count).map(|cached| self.with_dedup_done(samples, cached))
    }

    /// As [`try_dedup`](Self::try_dedup), and where nobody has counted yet it is counted, once for
    /// all who ask meanwhile: tables that are not known yet are read for it. `None` also where
    /// somebody else takes long to do so.
    pub fn cached_dedup(&self) -> Option<DedupProperties> {
        let samples = self.samples.as_ref()?;
        self.try_dedup().or_else(|| {
            let counted = self.dedup_shared.cached_or_first(Instant::now(), || self.dedup());
            counted.map(|cached| self.with_dedup_done(samples, cached))
        })
    }

    /// What there was as it was counted, with what has been done until now.
    fn with_dedup_done(&self, samples: &SampleRegistry, cached: DedupProperties) -> DedupProperties {
        DedupProperties {
            total_keys: cached.total_keys,
            duplicate_keys: cached.duplicate_keys,
            relative_error: cached.relative_error,
            shadowed_bytes: cached.shadowed_bytes,
            levels: cached.levels,
            unsampled_tables: cached.unsampled_tables,
            unfiltered_tables: cached.unfiltered_tables,
            ..self.dedup_done(samples)
        }
    }

    fn dedup_done(&self, samples: &SampleRegistry) -> DedupProperties {
        DedupProperties { sketch_cpu_us: samples.sketch_cpu_us(), ..self.dedup_shared.properties() }
    }

    /// How much room the store has, found out now; `None` where it is open read-only.
    pub fn free_space(&self) -> Option<FreeSpace> {
        let admission = self.admission.as_ref()?;
        admission.probe();
        Some(admission.free_space())
    }

    /// The same as the store itself found it last, within about a second; nothing is asked of the
    /// file system, and nobody is waited for.
    pub fn try_free_space(&self) -> Option<FreeSpace> {
        self.admission.as_ref().map(|admission| admission.free_space())
    }

    /// Why writes fail until the store recovers or is opened again: a flush, a compaction, a write
    /// of the log, or a sync of log or segments failed.
    pub fn write_failure(&self) -> Option<String> {
        let sync = self.wal_sync.as_ref().and_then(|wal_sync| wal_sync.check().err());
        sync.map(|error| error.to_string()).or_else(|| self.background.error())
    }

    /// Whether who writes batches should rest after them now: see
    /// [`throttle_delay`](Self::throttle_delay).
    #[inline]
    pub fn is_throttling(&self) -> bool {
        self.values.as_ref().is_some_and(|values| values.throttle().is_throttling())
    }

    /// How long who writes batches should rest after a write that took `busy`: more than nothing
    /// while garbage grows faster than garbage collection frees it, so that the store does not
    /// outgrow what lives in it. [`put`](Self::put) rests by itself. Say with
    /// [`was_throttled`](Self::was_throttled) that it was done.
    pub fn throttle_delay(&self, busy: Duration) -> Duration {
        self.values.as_ref().map_or(Duration::ZERO, |values| values.throttle().throttle_delay(busy))
    }

    /// A writer has rested because of [`throttle_delay`](Self::throttle_delay).
    pub fn was_throttled(&self, time: Duration) {
        if let Some(values) = &self.values {
            values.throttle().was_throttled(time);
        }
    }

    /// What the value log holds, where the store has one.
    pub fn value_log(&self) -> Option<ValueLogProperties> {
        self.values.as_ref().map(ValueStore::properties)
    }

    /// How separated values are compressed, where any may be.
    pub fn value_compression(&self) -> Option<CompressionProperties> {
        self.values.as_ref().and_then(ValueStore::compression)
    }

    /// The same without waiting; `None` also while a checkpoint is made or segments are removed.
    pub fn try_value_log(&self) -> Option<ValueLogProperties> {
        self.values.as_ref().and_then(ValueStore::try_properties)
    }

    /// All live tables.
    pub fn live_tables(&self) -> Result<Vec<TableMetadata>> {
        live_tables(&self.db).map_err(|error| Error::Rocks { detail: error.to_string() })
    }

    fn family_tables(&self) -> Result<Vec<FamilyTable>> {
        family_tables(&self.db, &self.family).map_err(|error| Error::Rocks { detail: error.to_string() })
    }

    /// The slots of compactions that came back from a failed offload, where the store offloads.
    pub fn local_slots(&self) -> Option<&Arc<LocalSlots>> {
        self.offload.as_ref().map(|offload| &offload.slots)
    }

    /// Closes the store: ends offloads and background work, and syncs the WAL.
    ///
    /// # Errors
    ///
    /// What could not be made durable, or an earlier background error other than a full disk. The
    /// store is closed either way.
    pub fn close(mut self) -> Result<()> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        if let Some(offload) = &self.offload {
            offload.close();
        }
        let mut outcome = Ok(());
        if let Some(mut wal_sync) = self.wal_sync.take() {
            wal_sync.stop();
            outcome = wal_sync.check();
            let synced = self.sync_all();
            outcome = outcome.and(synced);
        }
        if let Some(watch) = &self.watch {
            watch.ask_to_stop();
        }
        if let Some(values) = &self.values {
            values.ask_to_stop();
        }
        if let Some(dedup) = &self.dedup {
            dedup.ask_to_stop();
        }
        if let Some(cleanup) = &self.cleanup {
            cleanup.ask_to_stop();
        }
        if let Some(idle) = &self.idle {
            idle.ask_to_stop();
        }
        if self.mode != OpenMode::ReadOnly {
            self.db.disable_manual_compaction();
            // One that was asked for by its tables looks at nothing else once it runs, and our
            // threads wait for theirs.
            self.db.cancel_all_background_work(false);
            self.watch = None;
            self.dedup = None;
            self.cleanup = None;
            self.idle = None;
            if let Some(values) = &mut self.values {
                values.stop();
            }
            self.db.cancel_all_background_work(true);
            if let Some(values) = &self.values {
                values.seal();
            }
            if let Some(durable_logs) = &self.durable_logs {
                durable_logs.close();
            }
            match self.background.error() {
                // What a flush or a compaction found no room for lies in the WAL, or in the tables
                // it was made from.
                Some(detail) if outcome.is_ok() && is_disk_full(&detail) => {
                    tracing::warn!(directory = ?self.directory, detail, "the store was closed on a full disk; nothing of it is lost");
                }
                Some(detail) => outcome = outcome.and(Err(Error::Background { detail })),
                None => (),
            }
        }
        outcome
    }

    /// Makes durable what was written before the call.
    pub(crate) fn sync_all(&self) -> Result<()> {
        let sync_wal = || {
            self.wal_syncs.sync(&self.db).map_err(|error| match error {
                NotSynced::Yet(error) => self.failure(&error),
                NotSynced::Ever(error) => error,
            })
        };
        match &self.values {
            Some(values) => values.sync(sync_wal),
            None => sync_wal(),
        }
    }

    /// Refuses writes to a store that takes none.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<&WalSync> {
        match &self.wal_sync {
            Some(wal_sync) => {
                wal_sync.check()?;
                Ok(wal_sync)
            }
            None => Err(Error::ReadOnly { directory: self.directory.clone() }),
        }
    }

    /// Sorts an error of RocksDB; one that follows from an earlier background error is named as
    /// such.
    #[cold]
    pub(crate) fn failure(&self, error: &rust_rocksdb::Error) -> Error {
        match (Error::from_rocks(error), self.background.error()) {
            (full @ Error::DiskFull { .. }, _) => full,
            (_, Some(detail)) => Error::Background { detail },
            (sorted, None) => sorted,
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::error!(directory = ?self.directory, %error, "the store was dropped with an error");
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("directory", &self.directory).field("mode", &self.mode).finish_non_exhaustive()
    }
}

const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Store>();
};
