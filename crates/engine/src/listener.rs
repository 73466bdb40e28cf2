//! Hears what RocksDB's threads do, and tells duties, events, the stall clock and the counters.
//!
//! Callbacks come from C++: no panic may leave them. Those of flushes and compactions come on the
//! thread that does the work, without RocksDB's mutex; `OnBackgroundError` comes under it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_types::{Duty, Task};
use rust_rocksdb::event_listener::{
    BackgroundErrorRecoveryInfo, CompactionJobInfo, DBBackgroundErrorReason, DBCompactionReason, DBWriteStallCondition,
    EventListener, FlushJobInfo, MemTableInfo, MutableStatus, StatusSeverity, SubcompactionJobInfo, WriteStallInfo,
};

use crate::compaction::jobs::{BackgroundState, CompactionPurpose, JobRegistry, Totals, job_number};
use crate::compaction::table_changes::{CompactedTables, TableChanges};
use crate::duties::ThreadDuties;
use crate::events::{BackgroundError, CompactionFinished, FlushFinished, StallChanged, StallCondition, StoreEvents};
use crate::expired::take_removed;
use crate::gc::copying::mark_subcompaction;
use crate::offload::adapter::OffloadState;
use crate::space::admission::AdmissionControl;
use crate::stall::StallClock;
use crate::value_store::barrier::mark_flushing;

/// See the module.
pub(crate) struct Listener {
    pub(crate) jobs: Arc<JobRegistry>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) background: Arc<BackgroundState>,
    pub(crate) stall: Arc<StallClock>,
    pub(crate) duties: ThreadDuties,
    pub(crate) events: Option<Arc<dyn StoreEvents>>,
    pub(crate) offload: Option<Arc<OffloadState>>,
    pub(crate) changes: Arc<TableChanges>,
    /// Where the store takes writes.
    pub(crate) admission: Option<Arc<AdmissionControl>>,
}

impl Listener {
    /// What of ours the compaction is for that begins, if it is ours.
    fn purpose_of(&self, reason: DBCompactionReason, compaction: i32) -> Option<CompactionPurpose> {
        let is_manual = reason == DBCompactionReason::KManualCompaction;
        if is_manual { self.jobs.purpose_of(compaction) } else { None }
    }

    fn tell(&self, tell: impl FnOnce(&dyn StoreEvents)) {
        if let Some(events) = &self.events {
            tell(events.as_ref());
        }
    }
}

/// Writers wait for what empties level 0 only.
fn task_of(purpose: Option<CompactionPurpose>, input_level: i32) -> Task {
    let duty = purpose.map_or(Duty::Compaction, CompactionPurpose::duty);
    Task { duty, is_deep: duty == Duty::Compaction && input_level > 0 }
}

/// Runs what a callback does; a panic in it is logged and goes no further.
fn contained(callback: &'static str, act: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(act)).is_err() {
        tracing::error!(callback, "an observer of the store panicked");
    }
}

impl EventListener for Listener {
    fn on_memtable_sealed(&self, _: &MemTableInfo) {
        contained("the end of a memtable", || {
            self.changes.memtable_sealed();
        });
    }

    fn on_flush_begin(&self, info: &FlushJobInfo) {
        contained("flush begin", || {
            mark_flushing(true);
            self.jobs.begin_flush(info.job_id());
            self.duties.begin_job(Duty::Flush, info.job_id());
        });
    }

    fn on_flush_completed(&self, info: &FlushJobInfo) {
        contained("flush end", || {
            mark_flushing(false);
            self.changes.flushed(info);
            if let Some(admission) = &self.admission {
                admission.changed();
            }
            self.duties.end_job(info.job_id());
            self.totals.flushes.fetch_add(1, Ordering::Relaxed);
            let took = self.jobs.end_flush(info.job_id());
            self.tell(|events| {
                let table = info.table_properties();
                events.flush_finished(&FlushFinished {
                    job: info.job_id(),
                    bytes: info
                        .file_path()
                        .and_then(|path| std::fs::metadata(String::from_utf8_lossy(&path).as_ref()).ok())
                        .map_or_else(|| table.data_size(), |file| file.len()),
                    entries: table.num_entries(),
                    seconds: took.map_or(0.0, |took| took.as_secs_f64()),
                });
            });
        });
    }

    fn on_compaction_begin(&self, info: &CompactionJobInfo) {
        contained("compaction begin", || {
            self.jobs.begin_compaction(info.job_id(), input_records(info));
            if let Some(admission) = &self.admission {
                admission.compaction_begins(info.job_id(), input_bytes(info));
            }
            let purpose = self.purpose_of(info.compaction_reason(), info.job_id());
            self.duties.begin_job(task_of(purpose, info.base_input_level()), info.job_id());
        });
    }

    fn on_compaction_completed(&self, info: &CompactionJobInfo) {
        contained("compaction end", || {
            if let Some(admission) = &self.admission {
                admission.compaction_ended(info.job_id(), info.stats().total_output_bytes());
            }
            self.duties.end_job(info.job_id());
            if let Some(offload) = &self.offload {
                offload.subcompactions.forget(info.job_id());
            }
            let finished = CompactionFinished::of(info, self.jobs.end_compaction(info.job_id()));
            // One without subcompactions has only moved tables.
            let rewrites = finished.subcompactions > 0;
            self.changes.compacted(&CompactedTables { info, purpose: None, is_remote: finished.remote, rewrites });
            self.totals.compactions.fetch_add(1, Ordering::Relaxed);
            self.totals.remote_compactions.fetch_add(finished.remote.into(), Ordering::Relaxed);
            self.totals.failed_compactions.fetch_add(finished.error.is_some().into(), Ordering::Relaxed);
            self.tell(|events| events.compaction_finished(&finished));
        });
    }

    fn on_subcompaction_begin(&self, info: &SubcompactionJobInfo) {
        contained("subcompaction begin", || {
            mark_subcompaction(Some(info.output_level()));
            // Of one that was given up before, and told nobody of its end.
            take_removed();
            let purpose = self.purpose_of(info.compaction_reason(), info.job_id());
            self.duties.begin_subcompaction(task_of(purpose, info.base_input_level()), info.job_id());
            self.jobs.subcompaction_begins(info.job_id(), purpose.is_some());
        });
    }

    fn on_subcompaction_completed(&self, info: &SubcompactionJobInfo) {
        contained("subcompaction end", || {
            mark_subcompaction(None);
            // What one that failed has removed is still there, and is removed again when it is
            // tried again.
            let removed = take_removed();
            if info.status().is_ok() {
                self.totals.expired_values.fetch_add(removed, Ordering::Relaxed);
            }
            self.duties.end_subcompaction(info.job_id());
            let rocks_job = job_number(info.job_id(), info.subcompaction_job_id());
            if let (Some(job), Some(offload)) = (self.jobs.local_ended(rocks_job), &self.offload) {
                let stats = info.stats();
                let exact = info.status().is_ok() && stats.has_accurate_num_input_records();
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
