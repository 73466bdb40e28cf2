//! Admission control: every write takes what it costs from a budget, and where that is used up
//! somebody looks how much room there is.
//!
//! Far from the limit a write costs one atomic subtraction. A probe costs a question to the file
//! system and one to RocksDB, and with `max_bytes` a listing of the store's directory.
//!
//! A compaction that begins between two probes is taken off all budgets at once, as if it were not
//! reserved yet: what is left in doubt for the time of a probe is never more than there is.
//!
//! Failure: where the room cannot be asked for, the last answer holds.
//!
//! Threads: any number of writers, compactions and the thread of [`super::watch`]. A probe is made
//! under one lock, which no callback of RocksDB that comes under its mutex may take.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ecotone_policy::dedup::forecast::deadline;
use ecotone_rocks::tables::live_tables;
use ecotone_types::units::{Bytes, BytesPerSecond};
use ecotone_valuelog::ValueLog;
use parking_lot::Mutex;
use rust_rocksdb::statistics::Ticker;
use rust_rocksdb::{DB, Options, properties};

use super::SpaceLimits;
use super::free_space::{FreeSpace, signed};
use super::measure::{self, OwnBytes};
use super::notifier::ProbeNotifier;
use super::pieces::cuts;
use super::reservations::{Backlog, RunningCompactions, deep_compaction_bytes};
use super::shared::{SharedSpace, SpaceMember, TakenByOthers};
use crate::events::{SpaceChanged, StoreEvents};
use crate::family::DataFamily;
use crate::raw::TableLimit;
use crate::{Error, Result, StoreSettings};

/// The budget of writers is at most one in so many parts of the reserve, so that compactions are
/// told often enough what room is left to them. That of garbage collection is half as large. What
/// is larger by itself is let through after a probe.
pub(crate) const BUDGET_SHARE: i64 = 4;

/// Writes are refused from where less than one in so many parts of the reserve is left above it:
/// smaller budgets would be used up by a probe for each few writes.
const CLOSE_SHARE: i64 = 16;

/// Writes are taken again from where one in so many parts of the reserve is left above it: the
/// difference keeps admission control from flapping.
const RESUME_SHARE: i64 = 8;

/// Deletions are taken while the spare room is at least one in so many parts of the reserve.
const DELETIONS_SHARE: i64 = 2;

/// Compactions and garbage collection begin what leaves one in so many parts of the reserve.
const COMPACTIONS_SHARE: i64 = 4;

/// Space is low while less than so many reserves are spare: it is worth an effort then to find out
/// what is garbage.
const LOW_SPACE_RESERVES: i64 = 2;

/// A write that costs at least so many bytes is counted until it is done; smaller ones are not
/// worth it.
pub(crate) const LARGE_BYTES: i64 = 1 << 20;

/// What a write takes beside its bytes: framing in the WAL, in the memtable and in the table, in
/// bytes.
const FRAMING_BYTES: usize = 128;

/// A byte that RocksDB takes is written to the WAL now, to a table later, and will be in the next
/// compaction.
const COPIES: usize = 3;

/// A budget that no write fits in, far enough from both ends of its range that nobody gets it
/// there.
const NOTHING: i64 = i64::MIN / 2;

/// What a write is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteEffect {
    /// It takes space.
    Takes,
    /// It only deletes, so that space is freed in the end.
    Frees,
}

/// What `bytes` in RocksDB and a record of `value_log_bytes` in a segment cost.
#[inline]
pub(crate) fn cost(bytes: usize, value_log_bytes: usize) -> i64 {
    (bytes * COPIES + value_log_bytes + FRAMING_BYTES) as i64
}

/// Takes so many bytes from a budget. A budget that has not as many is used up: the next one looks.
#[inline]
fn take(budget: &AtomicI64, bytes: i64) -> bool {
    budget.fetch_sub(bytes, Ordering::Relaxed) >= bytes
}

/// See the module.
pub(crate) struct AdmissionControl {
    directory: PathBuf,
    space_bytes: u64,
    reserve: i64,
    max_bytes: Option<u64>,
    /// What RocksDB allocates for a WAL before it writes to it. In a store with a value log that is
    /// done window by window, but a WAL grows as long in the end.
    next_wal_bytes: u64,
    deep_compaction_bytes: u64,
    /// What may still be written before somebody must look.
    budget: AtomicI64,
    deletions: AtomicI64,
    gc: AtomicI64,
    large_in_flight: AtomicI64,
    refuses: AtomicBool,
    /// Whether writes are refused, or soon will be.
    low_space: AtomicBool,
    growth_bytes_per_s: AtomicU64,
    refused_writes: AtomicU64,
    times_closed: AtomicU64,
    /// Held during a probe.
    probe: Mutex<ProbeState>,
    free_space: Mutex<FreeSpace>,
    compactions: Mutex<RunningCompactions>,
    /// With the other stores that share the space.
    space: SpaceMember,
    /// Options that share RocksDB's counters with the database and nothing else of it.
    counters: Options,
    tables: OnceLock<TableLimit>,
    database: OnceLock<(Weak<DB>, DataFamily)>,
    /// Where the store has one.
    values: OnceLock<Arc<ValueLog>>,
    events: Option<Arc<dyn StoreEvents>>,
    pub(crate) notifier: ProbeNotifier,
}

/// What the last probe found, and what the next one builds on.
#[derive(Debug, Default)]
struct ProbeState {
    own: OwnBytes,
    warned: bool,
    /// What is spare of the room; a budget may be less, see [`BUDGET_SHARE`].
    spare: i64,
    others: TakenByOthers,
}

/// A write that was let through, until it is done.
#[derive(Debug)]
pub(crate) struct Admitted<'g> {
    large: Option<(&'g AtomicI64, i64)>,
}

impl Drop for Admitted<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((large_in_flight, cost)) = self.large {
            large_in_flight.fetch_sub(cost, Ordering::Release);
        }
    }
}

impl AdmissionControl {
    /// Admission control of the store in `directory`, which is there. `counters` are the options
    /// that the database's were made from.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the file system does not say what it has free, and a wrong option where
    /// it is not larger than the reserve.
    pub(crate) fn new(
        directory: &Path,
        settings: &StoreSettings,
        counters: Options,
        events: Option<Arc<dyn StoreEvents>>,
        space: Option<&SharedSpace>,
    ) -> Result<Self> {
        let file_system = measure::file_system(directory);
        let (_, disk_bytes) = file_system.map_err(|error| Error::io("ask for free space on", directory, &error))?;
        let SpaceLimits { max_bytes, reserve_bytes } = settings.space;
        if reserve_bytes.is_some_and(|reserve| reserve >= disk_bytes) {
            let reason = format!("the file system of {directory:?} has {disk_bytes} bytes in all, which is no more");
            return Err(Error::invalid("space.reserve_bytes", reason));
        }
        let segment_bytes = settings.separation.map(|separation| separation.segment_bytes);
        Ok(Self {
            directory: directory.to_path_buf(),
            space_bytes: disk_bytes.min(max_bytes.unwrap_or(u64::MAX)),
            reserve: signed(settings.space.reserve(segment_bytes, disk_bytes)),
            max_bytes,
            // `DBImpl::GetWalPreallocateBlockSize`.
            next_wal_bytes: settings.memtable_bytes.saturating_add(settings.memtable_bytes / 10),
            deep_compaction_bytes: deep_compaction_bytes(settings),
            budget: AtomicI64::new(0),
            deletions: AtomicI64::new(0),
            gc: AtomicI64::new(0),
            large_in_flight: AtomicI64::new(0),
            refuses: AtomicBool::new(false),
            low_space: AtomicBool::new(false),
            growth_bytes_per_s: AtomicU64::new(0),
            refused_writes: AtomicU64::new(0),
            times_closed: AtomicU64::new(0),
            probe: Mutex::default(),
            free_space: Mutex::default(),
            compactions: Mutex::default(),
            space: space.cloned().unwrap_or_default().join(),
            counters,
            tables: OnceLock::new(),
            database: OnceLock::new(),
            values: OnceLock::new(),
            events,
            notifier: ProbeNotifier::default(),
        })
    }

    /// The store's.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// All the space there is: the file system's size or `max_bytes`.
    pub(crate) fn space_bytes(&self) -> u64 {
        self.space_bytes
    }

    /// Where to cut a deletion of the keys from `from` to before `to`; nowhere unless space is low.
    pub(crate) fn cuts(&self, db: &DB, from: &[u8], to: &[u8]) -> Vec<Vec<u8>> {
        if !self.is_space_low() {
            return Vec::new();
        }
        // Without the tables the deletion is as good, only harder to make use of.
        live_tables(db).map_or_else(|_| Vec::new(), |tables| cuts(&tables, from, to, self.deep_compaction_bytes))
    }

    /// Holds the compactions of the database that is about to be opened to what room there is.
    pub(crate) fn limit_tables(&self, tables: TableLimit) -> Result<()> {
        let failed = |error| Error::io("measure", &self.directory, &error);
        // It counts those that are there before it begins the first compaction.
        let there = measure::table_bytes(&self.directory).map_err(failed)?;
        let mut probe = self.probe.lock();
        let free_space = self.measure(&mut probe, Backlog::default()).map_err(failed)?;
        let left = self.for_compactions(&free_space, Backlog::default(), probe.others);
        tables.allow(there.saturating_add(left));
        let _ = self.tables.set(tables);
        Ok(())
    }

    /// Says which segments lie in the store's directory, before they are appended to.
    pub(crate) fn has_values(&self, values: &Arc<ValueLog>) {
        let _ = self.values.set(values.clone());
    }

    /// The database is open; from now on there are budgets.
    pub(crate) fn opened(&self, db: &Arc<DB>, family: DataFamily) {
        let _ = self.database.set((Arc::downgrade(db), family));
        self.probe();
    }

    /// Lets a write through that costs so much, see [`cost`]; keep the answer until the write is
    /// done.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfSpace`]
    #[inline]
    pub(crate) fn admit(&self, purpose: WriteEffect, cost: i64) -> Result<Admitted<'_>> {
        if cost < LARGE_BYTES && take(&self.budget, cost) {
            return Ok(Admitted { large: None });
        }
        self.admit_with_care(purpose, cost)
    }

    /// Lets a copy of `bytes` through that garbage collection makes.
    pub(crate) fn admit_gc(&self, bytes: usize) -> bool {
        let bytes = bytes as i64;
        take(&self.gc, bytes)
            || self.take_or_probe(&mut self.probe.lock(), &self.gc, self.reserve / COMPACTIONS_SHARE, bytes)
    }

    /// A compaction of so many bytes begins.
    pub(crate) fn compaction_begins(&self, job: i32, input_bytes: u64) {
        self.compactions.lock().begin(job, input_bytes, self.written_by_compactions());
        // Until the next probe, which knows it.
        let reserved = signed(input_bytes);
        for budget in [&self.budget, &self.deletions, &self.gc] {
            budget.fetch_sub(reserved.min(-NOTHING / 2), Ordering::Relaxed);
        }
    }

    /// It has ended, well or not.
    pub(crate) fn compaction_ended(&self, job: i32, output_bytes: u64) {
        self.compactions.lock().end(job, output_bytes);
        self.changed();
    }

    /// Something may have been freed.
    pub(crate) fn changed(&self) {
        if self.refuses.load(Ordering::Relaxed) {
            self.notifier.probe_now();
        }
    }

    /// So fast the room of this store gets less.
    pub(crate) fn grows_by(&self, growth: BytesPerSecond) {
        self.growth_bytes_per_s.store(growth.0 as u64, Ordering::Relaxed);
    }

    /// How long it lasts until writes are refused, if they go on so; `None` where that is far.
    pub(crate) fn space_lasts(&self) -> Option<Duration> {
        let above = self.free_space().spare_bytes().saturating_sub(self.reserve);
        let growth = self.growth_bytes_per_s.load(Ordering::Relaxed);
        let lasts = deadline(Bytes(u64::try_from(above).unwrap_or(0)), BytesPerSecond(growth as f64))?;
        Duration::try_from_secs_f64(lasts.0).ok()
    }

    /// What was found at the last probe.
    pub(crate) fn free_space(&self) -> FreeSpace {
        *self.free_space.lock()
    }

    /// Bytes that garbage collection may copy now.
    pub(crate) fn for_gc(&self) -> u64 {
        let free_space = self.free_space();
        u64::try_from(free_space.spare_bytes().saturating_sub(self.reserve / COMPACTIONS_SHARE)).unwrap_or(0)
    }

    /// Refuses where the last probe has found that writes are.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.refuses.load(Ordering::Relaxed) { Err(self.refuse()) } else { Ok(()) }
    }

    #[cold]
    fn refuse(&self) -> Error {
        self.refused_writes.fetch_add(1, Ordering::Relaxed);
        self.out_of_space()
    }

    /// Whether writes are refused, or soon will be.
    pub(crate) fn is_space_low(&self) -> bool {
        self.low_space.load(Ordering::Relaxed)
    }

    /// Writes that were refused.
    pub(crate) fn refused_writes(&self) -> u64 {
        self.refused_writes.load(Ordering::Relaxed)
    }

    /// How often writing was stopped.
    pub(crate) fn times_closed(&self) -> u64 {
        self.times_closed.load(Ordering::Relaxed)
    }

    /// Compactions that RocksDB has deferred because they would not have fitted.
    pub(crate) fn compactions_deferred(&self) -> u64 {
        self.counters.get_ticker_count(Ticker::CompactionCancelled)
    }

    /// Looks. Returns whether the limit is near.
    pub(crate) fn probe(&self) -> bool {
        self.probe_with(&mut self.probe.lock())
    }

    /// That there is no room.
    #[cold]
    pub(crate) fn out_of_space(&self) -> Error {
        Error::OutOfSpace { directory: self.directory.clone(), free_space: Box::new(self.free_space()) }
    }

    /// A large write is admitted and counted under the lock of probes, so that no probe misses it;
    /// and one that is refused was never counted, and takes nothing from others.
    #[cold]
    fn admit_with_care(&self, purpose: WriteEffect, cost: i64) -> Result<Admitted<'_>> {
        // The thread looks often enough where it is known that nothing is admitted: who is refused
        // waits for nobody.
        let refuses = self.refuses.load(Ordering::Relaxed);
        let may_delete =
            || purpose == WriteEffect::Frees && self.free_space().spare_bytes() >= self.reserve / DELETIONS_SHARE;
        if !refuses || may_delete() {
            let mut probe = self.probe.lock();
            if self.takes_write(&mut probe, cost) || may_delete() && self.takes_deletion(&mut probe, cost) {
                if cost < LARGE_BYTES {
                    return Ok(Admitted { large: None });
                }
                self.large_in_flight.fetch_add(cost, Ordering::Relaxed);
                return Ok(Admitted { large: Some((&self.large_in_flight, cost)) });
            }
        }
        Err(self.refuse())
    }

    fn takes_write(&self, probe: &mut ProbeState, cost: i64) -> bool {
        let takes =
            !self.refuses.load(Ordering::Relaxed) && self.take_or_probe(probe, &self.budget, self.reserve, cost);
        takes && !self.refuses.load(Ordering::Relaxed)
    }

    fn takes_deletion(&self, probe: &mut ProbeState, cost: i64) -> bool {
        self.take_or_probe(probe, &self.deletions, self.reserve / DELETIONS_SHARE, cost)
    }

    /// Takes so many bytes from a budget that leaves `kept` bytes spare, after a probe if need be.
    /// What is larger than any budget is taken, too, where there is room for it: all others will
    /// look then.
    fn take_or_probe(&self, probe: &mut ProbeState, budget: &AtomicI64, kept: i64, bytes: i64) -> bool {
        // Somebody else may have looked meanwhile.
        if take(budget, bytes) {
            return true;
        }
        self.probe_with(probe);
        let fits = probe.spare.saturating_sub(kept) >= bytes;
        if fits {
            budget.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Returns whether the limit is near.
    fn probe_with(&self, probe: &mut ProbeState) -> bool {
        // Before the rest: a write that is done meanwhile is counted twice, not never.
        let in_flight = self.large_in_flight.load(Ordering::Acquire);
        // Before the room: a table that is finished meanwhile is missing from both.
        let tables = self.tables.get().map_or(0, TableLimit::table_bytes);
        let backlog = self.backlog();
        let mut free_space = match self.measure(probe, backlog) {
            Ok(free_space) => free_space,
            Err(error) => {
                if !std::mem::replace(&mut probe.warned, true) {
                    tracing::warn!(directory = ?self.directory, %error, "the free space of the store cannot be asked for");
                }
                return true;
            }
        };
        probe.warned = false;
        free_space.reserved_bytes = free_space.reserved_bytes.saturating_add(u64::try_from(in_flight).unwrap_or(0));
        let spare = free_space.spare_bytes();
        probe.spare = spare;
        let above = spare.saturating_sub(self.reserve);
        let refused = self.refuses.load(Ordering::Relaxed);
        free_space.writes_refused = above < self.reserve / if refused { RESUME_SHARE } else { CLOSE_SHARE };
        // Others have as much at the same time.
        let most = self.reserve / (BUDGET_SHARE * self.space.members());
        let gc = spare.saturating_sub(self.reserve / COMPACTIONS_SHARE);
        self.gc.store(gc.min(most / 2), Ordering::Relaxed);
        self.deletions.store(spare.saturating_sub(self.reserve / DELETIONS_SHARE).min(most), Ordering::Relaxed);
        self.budget.store(if free_space.writes_refused { NOTHING } else { above.min(most) }, Ordering::Relaxed);
        if let Some(limit) = self.tables.get() {
            limit.allow(tables.saturating_add(self.for_compactions(&free_space, backlog, probe.others)));
        }
        self.low_space
            .store(free_space.spare_bytes() < self.reserve.saturating_mul(LOW_SPACE_RESERVES), Ordering::Relaxed);
        *self.free_space.lock() = free_space;
        if free_space.writes_refused != refused {
            self.tell(free_space);
        }
        above < self.reserve.saturating_mul(RESUME_SHARE)
    }

    fn tell(&self, free_space: FreeSpace) {
        self.refuses.store(free_space.writes_refused, Ordering::Relaxed);
        if free_space.writes_refused {
            self.times_closed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("writes are refused from now on: {}", self.out_of_space());
        } else {
            tracing::info!(directory = ?self.directory, free_space = free_space.available_bytes(), "there is space again: writes are taken");
        }
        if let Some(events) = &self.events {
            let tell = || events.space_changed(&SpaceChanged { free_space });
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(tell)).is_err() {
                tracing::error!("an observer of the store panicked");
            }
        }
    }

    fn measure(&self, probe: &mut ProbeState, backlog: Backlog) -> std::io::Result<FreeSpace> {
        let (free_bytes, disk_bytes) = measure::file_system(&self.directory)?;
        let used_bytes = match self.max_bytes {
            Some(_) => Some(probe.own.measure(&self.directory, self.values.get().map(Arc::as_ref))?),
            None => None,
        };
        let running = self.compactions.lock().to_write(self.written_by_compactions());
        // Not both: the next one may be among those that run, or begins when they have ended.
        let compactions = running.max(backlog.next_compaction_bytes);
        let flushes = backlog.memtable_bytes.saturating_add(self.next_wal_bytes);
        let reserved_bytes = flushes.saturating_add(compactions);
        self.space.tell(used_bytes.unwrap_or(0), reserved_bytes);
        probe.others = self.space.others();
        Ok(FreeSpace {
            free_bytes,
            disk_bytes,
            used_bytes: used_bytes.map(|bytes| bytes.saturating_add(probe.others.used_bytes)),
            max_bytes: self.max_bytes,
            reserved_bytes: reserved_bytes.saturating_add(probe.others.reserved_bytes),
            reserve_bytes: self.reserve.unsigned_abs(),
            writes_refused: false,
        })
    }

    /// What all compactions together may take of the room, running ones whole: RocksDB knows those
    /// itself.
    fn for_compactions(&self, free_space: &FreeSpace, backlog: Backlog, others: TakenByOthers) -> u64 {
        let flushes = backlog.memtable_bytes.saturating_add(self.next_wal_bytes);
        let kept = flushes.saturating_add((self.reserve / COMPACTIONS_SHARE).unsigned_abs());
        let kept = kept.saturating_add(others.reserved_bytes);
        free_space.available_bytes().saturating_sub(kept)
    }

    fn backlog(&self) -> Backlog {
        let Some((db, family)) = self.database() else { return Backlog::default() };
        // Locked before it is asked: one that begins meanwhile waits, and is not forgotten.
        let mut compactions = self.compactions.lock();
        if db.property_int_value_cf(&family, properties::NUM_RUNNING_COMPACTIONS) == Ok(Some(0)) {
            compactions.none_runs();
        }
        drop(compactions);
        Backlog::read(&db, family, self.deep_compaction_bytes)
    }

    /// `None` until the store is open. The store outlives every writer and the thread, and closes
    /// the database after them: the family is good while the database is.
    pub(crate) fn database(&self) -> Option<(Arc<DB>, DataFamily)> {
        let (db, family) = self.database.get()?;
        Some((db.upgrade()?, *family))
    }

    fn written_by_compactions(&self) -> u64 {
        self.counters.get_ticker_count(Ticker::CompactWriteBytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A gate of 64 MiB with a reserve of 16, of which the WAL that comes next takes 1.1, and the
    /// file that fills its directory.
    fn admission() -> (tempfile::TempDir, AdmissionControl, impl Fn(u64)) {
        let directory = tempfile::tempdir().unwrap();
        let space = SpaceLimits { reserve_bytes: Some(16 * MIB), max_bytes: Some(64 * MIB) };
        let settings = StoreSettings { memtable_bytes: MIB, space, ..StoreSettings::default() };
        let admission = AdmissionControl::new(directory.path(), &settings, Options::default(), None, None).unwrap();
        let filler = directory.path().join("filler");
        // Whole blocks without holes: what is taken is what the file is long.
        let take = move |bytes: u64| std::fs::write(&filler, vec![7; bytes as usize]).unwrap();
        (directory, admission, take)
    }

    #[test]
    fn the_less_is_spare_the_fewer_are_let_through() {
        let (_directory, admission, take) = admission();
        // Writes are taken again only some way above the limit at which they are refused.
        for (taken_mib, puts, deletions, copies) in [
            (0, true, true, true),
            (45, true, true, true),
            (46, false, true, true),
            (45, false, true, true),
            (44, true, true, true),
            (54, false, true, true),
            (55, false, false, true),
            (58, false, false, true),
            (59, false, false, false),
            (70, false, false, false),
            (0, true, true, true),
        ] {
            take(taken_mib * MIB);
            admission.probe();
            let found = (
                admission.admit(WriteEffect::Takes, 100).is_ok(),
                admission.admit(WriteEffect::Frees, 100).is_ok(),
                admission.admit_gc(100),
            );
            assert_eq!(found, (puts, deletions, copies), "{taken_mib} MiB taken: {:?}", admission.free_space());
        }
        assert_eq!((admission.times_closed(), admission.refused_writes()), (2, 7 + 4));
    }

    #[test]
    fn space_lasts_until_writes_would_be_refused() {
        let (_directory, admission, take) = admission();
        take(22 * MIB);
        admission.probe();
        // 64 less what is taken and reserved is 40 and something, less the reserve 24.
        let above = (admission.free_space().spare_bytes() - 16 * MIB as i64) as f64;
        assert_eq!(admission.space_lasts(), None, "nothing grows");
        admission.grows_by(BytesPerSecond(MIB as f64));
        assert_eq!(admission.space_lasts(), Some(Duration::from_secs_f64(above / MIB as f64)));
        take(60 * MIB);
        admission.probe();
        assert_eq!(admission.space_lasts(), Some(Duration::ZERO), "it is short already");
        take(22 * MIB);
        admission.probe();
        admission.grows_by(BytesPerSecond(1000.0));
        assert_eq!(admission.space_lasts(), None, "in some hours");
    }

    #[test]
    fn what_is_reserved_is_not_given_away_again() {
        let (_directory, admission, _take) = admission();
        admission.probe();
        let spare_mib = || admission.free_space().spare_bytes() / MIB as i64;
        assert_eq!(spare_mib(), 62);
        // A large write counts until it is done; what is left of the room is for others.
        let large = admission.admit(WriteEffect::Takes, 30 * MIB as i64).unwrap();
        assert!(admission.admit(WriteEffect::Takes, 30 * MIB as i64).is_err());
        assert!(admission.admit(WriteEffect::Takes, 1000).is_ok(), "others fit");
        admission.probe();
        assert_eq!(spare_mib(), 32);
        drop(large);
        drop(admission.admit(WriteEffect::Takes, 30 * MIB as i64).unwrap());
        // So does a compaction, at once: also from budgets that were given before it.
        admission.probe();
        admission.compaction_begins(1, 48 * MIB);
        assert!(admission.admit(WriteEffect::Takes, 1000).is_err());
        admission.compaction_ended(1, 0);
        admission.probe();
        assert!(admission.admit(WriteEffect::Takes, 1000).is_ok());
    }
}
