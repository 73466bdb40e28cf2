//! Hears what RocksDB's threads do, and tells duties, events, the stall clock and the counters.
//!
//! Callbacks come from C++: no panic may leave them. Those of flushes and compactions come on the thread that does the
//! work, without RocksDB's mutex; `OnBackgroundError` comes under it.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ecotone_policy::duty::Duty;
use parking_lot::Mutex;
use rust_rocksdb::event_listener::{
    BackgroundErrorRecoveryInfo, CompactionJobInfo, DBBackgroundErrorReason, DBCompactionReason, DBWriteStallCondition,
    EventListener, FlushJobInfo, MemTableInfo, MutableStatus, StatusSeverity, SubcompactionJobInfo, WriteStallInfo,
};

use crate::duties::ThreadDuties;
use crate::error::is_disk_full;
use crate::events::{BackgroundError, CompactionFinished, FlushFinished, StallChanged, StallCondition, StoreEvents};
use crate::expired::take_removed;
use crate::limits::gate::Gate;
use crate::offload::adapter::{OffloadState, part_number};
use crate::offload::slots::release_on_this_thread;
use crate::own_compactions::{OwnCompactions, Purpose};
use crate::stall::StallClock;
use crate::table_changes::TableChanges;
use crate::values::barrier::mark_flushing;
use crate::values::relocation::mark_part;

/// Compactions and flushes whose end RocksDB never told are forgotten beyond this number.
const MAX_RUNNING: usize = 1024;

/// What is known of running flushes and compactions.
#[derive(Default)]
pub(crate) struct Running {
    compactions: Mutex<HashMap<i32, Compaction>>,
    flushes: Mutex<HashMap<i32, Instant>>,
}

#[derive(Default)]
struct Compaction {
    /// Entries of all inputs without range deletions; `None` when RocksDB did not know the properties of one.
    input_records: Option<u64>,
    local_parts: u32,
    remote_parts: u32,
}

fn input_records(info: &CompactionJobInfo) -> Option<u64> {
    info.input_files().try_fold(0_u64, |sum, path| {
        let table = info.table_properties_for_file(path)?;
        Some(sum.saturating_add(table.num_entries().saturating_sub(table.num_range_deletions())))
    })
}

/// Bytes of the input tables.
fn input_bytes(info: &CompactionJobInfo) -> u64 {
    let bytes = |path: &[u8]| std::fs::metadata(String::from_utf8_lossy(path).as_ref()).map_or(0, |file| file.len());
    info.input_files().fold(0, |sum, path| sum.saturating_add(bytes(path)))
}

impl Running {
    pub(crate) fn input_records(&self, compaction: i32) -> Option<u64> {
        self.compactions.lock().get(&compaction)?.input_records
    }

    pub(crate) fn part_is_remote(&self, compaction: i32) {
        if let Some(known) = self.compactions.lock().get_mut(&compaction) {
            known.remote_parts += 1;
        }
    }

    /// The part that begins on this thread is what became of `job`.
    pub(crate) fn part_is_local(&self, job: u64) {
        LOCAL_JOB.set(Some(job));
    }

    /// Whether RocksDB has told of the begin of this compaction, and not of its end.
    pub(crate) fn has_begun(&self, compaction: i32) -> bool {
        self.compactions.lock().contains_key(&compaction)
    }

    fn begin_compaction(&self, number: i32, input_records: Option<u64>) {
        let mut compactions = self.compactions.lock();
        if compactions.len() >= MAX_RUNNING {
            compactions.clear();
        }
        compactions.insert(number, Compaction { input_records, ..Compaction::default() });
    }

    fn part_ran_here(&self, compaction: i32) {
        if let Some(known) = self.compactions.lock().get_mut(&compaction) {
            known.local_parts += 1;
        }
    }

    fn begin_flush(&self, number: i32) {
        let mut flushes = self.flushes.lock();
        if flushes.len() >= MAX_RUNNING {
            flushes.clear();
        }
        flushes.insert(number, Instant::now());
    }
}

thread_local! {
    /// The job that the part on this thread was, when a compaction service sent it back.
    static LOCAL_JOB: Cell<Option<u64>> = const { Cell::new(None) };
}

/// What the listener counts and RocksDB's own counters do not tell.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) flushes: AtomicU64,
    pub(crate) compactions: AtomicU64,
    pub(crate) remote_compactions: AtomicU64,
    pub(crate) failed_compactions: AtomicU64,
    /// Values that compactions removed because their time was over.
    pub(crate) expired_values: AtomicU64,
}

/// The first background error that stopped writes, until RocksDB recovers from it.
#[derive(Default)]
pub(crate) struct BackgroundState(Mutex<Option<String>>);

impl BackgroundState {
    pub(crate) fn error(&self) -> Option<String> {
        self.0.lock().clone()
    }

    /// Whether it is one that RocksDB recovers from by itself once there is space again.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.0.lock().as_deref().is_some_and(is_disk_full)
    }

    pub(crate) fn set(&self, detail: String) {
        self.0.lock().get_or_insert(detail);
    }

    fn clear(&self) {
        *self.0.lock() = None;
    }
}

/// See the module.
pub(crate) struct Listener {
    pub(crate) running: Arc<Running>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) background: Arc<BackgroundState>,
    pub(crate) stall: Arc<StallClock>,
    pub(crate) duties: ThreadDuties,
    pub(crate) events: Option<Arc<dyn StoreEvents>>,
    pub(crate) offload: Option<Arc<OffloadState>>,
    pub(crate) own: Arc<OwnCompactions>,
    pub(crate) changes: Arc<TableChanges>,
    /// Where the store takes writes.
    pub(crate) gate: Option<Arc<Gate>>,
}

impl Listener {
    /// What of ours the compaction is for that begins, if it is ours.
    fn purpose_of(&self, reason: DBCompactionReason, compaction: i32) -> Option<Purpose> {
        let is_manual = reason == DBCompactionReason::KManualCompaction;
        if is_manual { self.own.purpose_of(compaction) } else { None }
    }

    fn tell(&self, tell: impl FnOnce(&dyn StoreEvents)) {
        if let Some(events) = &self.events {
            tell(events.as_ref());
        }
    }
}

/// Runs what a callback does; a panic in it is logged and goes no further.
fn contained(callback: &'static str, act: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(act)).is_err() {
        tracing::error!(callback, "an observer of the store panicked");
    }
}

impl CompactionFinished {
    /// What RocksDB tells of a compaction of so many parts.
    pub(crate) fn of(info: &CompactionJobInfo, local_parts: u32, remote_parts: u32) -> Self {
        let stats = info.stats();
        Self {
            job: info.job_id(),
            input_level: info.base_input_level(),
            output_level: info.output_level(),
            input_tables: info.input_file_count(),
            input_bytes: stats.total_input_bytes(),
            output_bytes: stats.total_output_bytes(),
            input_records: stats.num_input_records(),
            output_records: stats.num_output_records(),
            seconds: stats.elapsed_micros() as f64 / 1e6,
            cpu_seconds: stats.cpu_micros() as f64 / 1e6,
            remote: remote_parts > 0,
            subcompactions: local_parts + remote_parts,
            is_manual: info.compaction_reason() == DBCompactionReason::KManualCompaction,
            error: info.status().err().map(rust_rocksdb::Error::into_string),
        }
    }
}

impl EventListener for Listener {
    fn on_memtable_sealed(&self, _: &MemTableInfo) {
        contained("the end of a memtable", || {
            if let Some(values) = &self.changes.values {
                values.memtable_begins();
            }
        });
    }

    fn on_flush_begin(&self, info: &FlushJobInfo) {
        contained("flush begin", || {
            mark_flushing(true);
            self.running.begin_flush(info.job_id());
            self.duties.begin_job(Duty::Flush, info.job_id());
        });
    }

    fn on_flush_completed(&self, info: &FlushJobInfo) {
        contained("flush end", || {
            mark_flushing(false);
            self.changes.flushed(info);
            if let Some(gate) = &self.gate {
                gate.changed();
            }
            self.duties.end_job(info.job_id());
            self.totals.flushes.fetch_add(1, Ordering::Relaxed);
            let began = self.running.flushes.lock().remove(&info.job_id());
            self.tell(|events| {
                let table = info.table_properties();
                events.flush_finished(&FlushFinished {
                    job: info.job_id(),
                    bytes: info
                        .file_path()
                        .and_then(|path| std::fs::metadata(String::from_utf8_lossy(&path).as_ref()).ok())
                        .map_or_else(|| table.data_size(), |file| file.len()),
                    entries: table.num_entries(),
                    seconds: began.map_or(0.0, |began| began.elapsed().as_secs_f64()),
                });
            });
        });
    }

    fn on_compaction_begin(&self, info: &CompactionJobInfo) {
        contained("compaction begin", || {
            self.running.begin_compaction(info.job_id(), input_records(info));
            if let Some(gate) = &self.gate {
                gate.compaction_begins(info.job_id(), input_bytes(info));
            }
            let purpose = self.purpose_of(info.compaction_reason(), info.job_id());
            self.duties.begin_job(purpose.map_or(Duty::Compaction, Purpose::duty), info.job_id());
        });
    }

    fn on_compaction_completed(&self, info: &CompactionJobInfo) {
        contained("compaction end", || {
            if let Some(gate) = &self.gate {
                gate.compaction_ended(info.job_id(), info.stats().total_output_bytes());
            }
            release_on_this_thread();
            self.duties.end_job(info.job_id());
            if let Some(offload) = &self.offload {
                offload.siblings.forget(info.job_id());
            }
            let parts = self.running.compactions.lock().remove(&info.job_id()).unwrap_or_default();
            let finished = CompactionFinished::of(info, parts.local_parts, parts.remote_parts);
            // One without parts has only moved tables.
            self.changes.compacted(info, None, finished.remote, finished.subcompactions > 0);
            self.totals.compactions.fetch_add(1, Ordering::Relaxed);
            self.totals.remote_compactions.fetch_add(finished.remote.into(), Ordering::Relaxed);
            self.totals.failed_compactions.fetch_add(finished.error.is_some().into(), Ordering::Relaxed);
            self.tell(|events| events.compaction_finished(&finished));
        });
    }

    fn on_subcompaction_begin(&self, info: &SubcompactionJobInfo) {
        contained("subcompaction begin", || {
            mark_part(Some(info.output_level()));
            // Of one that was given up before, and told nobody of its end.
            take_removed();
            let purpose = self.purpose_of(info.compaction_reason(), info.job_id());
            self.duties.begin_part(purpose.map_or(Duty::Compaction, Purpose::duty), info.job_id());
            self.running.part_ran_here(info.job_id());
            if purpose.is_some() {
                self.own.part_begins();
            }
        });
    }

    fn on_subcompaction_completed(&self, info: &SubcompactionJobInfo) {
        contained("subcompaction end", || {
            mark_part(None);
            // What one that failed has removed is still there, and is removed again when it is tried again.
            let removed = take_removed();
            if info.status().is_ok() {
                self.totals.expired_values.fetch_add(removed, Ordering::Relaxed);
            }
            self.duties.end_part(info.job_id());
            release_on_this_thread();
            if let (Some(job), Some(offload)) = (LOCAL_JOB.take(), &self.offload) {
                let stats = info.stats();
                let exact = info.status().is_ok() && stats.has_accurate_num_input_records();
                let rocks_job = part_number(info.job_id(), info.subcompaction_job_id());
                offload.local_ended(job, rocks_job, exact.then(|| stats.num_input_records()));
            }
        });
    }

    fn on_stall_conditions_changed(&self, info: &WriteStallInfo) {
        contained("stall change", || {
            let (from, to) = (condition(info.prev()), condition(info.cur()));
            self.stall.change_to(to);
            self.tell(|events| events.stall_changed(&StallChanged { from, to }));
        });
    }

    fn on_background_error(&self, reason: DBBackgroundErrorReason, status: MutableStatus) {
        contained("background error", || {
            let detail = match status.result() {
                Ok(()) => String::from("no reason given"),
                Err(error) => error.as_ref().to_owned(),
            };
            let writes_stopped = status.severity() >= StatusSeverity::KHardError;
            let during = during(reason);
            tracing::error!(during, detail, writes_stopped, "background work of the store failed");
            if writes_stopped {
                self.background.set(detail.clone());
            }
            self.tell(|events| events.background_error(&BackgroundError { during, detail, writes_stopped }));
        });
    }

    fn on_error_recovery_end(&self, info: &BackgroundErrorRecoveryInfo) {
        contained("error recovery", || {
            if info.new_bg_error().result().is_ok() {
                tracing::info!("the store recovered from its background error");
                self.background.clear();
            }
        });
    }
}

fn condition(condition: DBWriteStallCondition) -> StallCondition {
    match condition {
        DBWriteStallCondition::KNormal => StallCondition::Normal,
        DBWriteStallCondition::KDelayed => StallCondition::Delayed,
        DBWriteStallCondition::KStopped => StallCondition::Stopped,
    }
}

fn during(reason: DBBackgroundErrorReason) -> &'static str {
    match reason {
        DBBackgroundErrorReason::KFlush | DBBackgroundErrorReason::KFlushNoWAL => "flush",
        DBBackgroundErrorReason::KCompaction => "compaction",
        DBBackgroundErrorReason::KWriteCallback => "write",
        DBBackgroundErrorReason::KMemTable => "memtable insert",
        DBBackgroundErrorReason::KManifestWrite | DBBackgroundErrorReason::KManifestWriteNoWAL => "MANIFEST write",
        DBBackgroundErrorReason::KAsyncFileOpen => "table open",
        DBBackgroundErrorReason::KUnknown => "background work",
    }
}
