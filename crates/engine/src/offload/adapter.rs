//! Puts a [`CompactionOffload`] under RocksDB's compaction service.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ecotone_policy::duty::Duty;
use ecotone_rocks_sys::remote::RemoteInput;
use parking_lot::Mutex;
use rust_rocksdb::{CompactionService, CompactionServiceJobInfo, CompactionServiceJobStatus, ScheduleResponse};

use super::slots::{LocalSlots, hold_on_this_thread, release_on_this_thread};
use super::{CompactionOffload, InputTable, RemoteJob, RemoteOutcome, TableFormat};
use crate::duties::ThreadDuties;
use crate::listener::Running;

/// Numbers jobs of all stores of this process.
static NEXT_JOB: AtomicU64 = AtomicU64::new(1);

/// What the adapter shares with the store and its listener.
pub(crate) struct OffloadState {
    pub(crate) offload: Arc<dyn CompactionOffload>,
    pub(crate) slots: Arc<LocalSlots>,
    pub(crate) running: Arc<Running>,
    pub(crate) duties: ThreadDuties,
    pub(crate) table_format: TableFormat,
    closing: AtomicBool,
    /// Jobs between RocksDB's schedule and wait: one for each of its threads at most.
    scheduled: Mutex<HashMap<u64, RemoteJob>>,
    /// How much of the store lies in a range; set once the store is open.
    share: std::sync::OnceLock<RangeShare>,
}

/// Says which part of the store's bytes lies in `[begin, end)`, 0 to 1.
pub(crate) type RangeShare = Box<dyn Fn(Option<&[u8]>, Option<&[u8]>) -> Option<f64> + Send + Sync>;

impl OffloadState {
    pub(crate) fn new(
        offload: Arc<dyn CompactionOffload>,
        slots: Arc<LocalSlots>,
        running: Arc<Running>,
        duties: ThreadDuties,
        table_format: TableFormat,
    ) -> Arc<Self> {
        Arc::new(Self {
            offload,
            slots,
            running,
            duties,
            table_format,
            closing: AtomicBool::new(false),
            scheduled: Mutex::default(),
            share: std::sync::OnceLock::new(),
        })
    }

    pub(crate) fn set_range_share(&self, share: RangeShare) {
        // Set once, when the store has opened.
        let _ = self.share.set(share);
    }

    /// The store is closing: no new job begins, running ones are asked to return, nobody waits for a slot.
    pub(crate) fn close(&self) {
        if self.closing.swap(true, Ordering::SeqCst) {
            return;
        }
        self.slots.wake_all();
        if catch_unwind(AssertUnwindSafe(|| self.offload.cancel_all())).is_err() {
            tracing::error!("the compaction offload panicked while it canceled its jobs");
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }
}

/// RocksDB's side of the seam.
pub(crate) struct Adapter(pub(crate) Arc<OffloadState>);

impl CompactionService for Adapter {
    fn name(&self) -> &CStr {
        c"ecotone"
    }

    fn schedule(&self, info: &CompactionServiceJobInfo<'_>, input: &[u8]) -> ScheduleResponse {
        // A part that ended without notice on this thread may have left its slot.
        release_on_this_thread();
        let local = || ScheduleResponse::from_status(CompactionServiceJobStatus::UseLocal);
        if self.0.is_closing() {
            return local();
        }
        let job = match catch_unwind(AssertUnwindSafe(|| self.0.describe(info, input))) {
            Ok(Ok(job)) => job,
            Ok(Err(reason)) => {
                tracing::warn!(reason, "a compaction stays local: it cannot be described");
                return local();
            }
            Err(_) => {
                tracing::error!("a compaction stays local: describing it panicked");
                return local();
            }
        };
        let id = job.id;
        let Ok(response) = ScheduleResponse::scheduled(&id.to_string(), CompactionServiceJobStatus::Success) else {
            return local();
        };
        self.0.scheduled.lock().insert(id, job);
        response
    }

    fn wait(&self, scheduled_job_id: &CStr, result: &mut Vec<u8>) -> CompactionServiceJobStatus {
        let Some(job) = number(scheduled_job_id).and_then(|id| self.0.scheduled.lock().remove(&id)) else {
            return CompactionServiceJobStatus::UseLocal;
        };
        match self.0.run(job) {
            Some(bytes) => {
                *result = bytes;
                CompactionServiceJobStatus::Success
            }
            None => CompactionServiceJobStatus::UseLocal,
        }
    }

    fn cancel_awaiting_jobs(&self) {
        self.0.close();
    }

    fn on_installation(&self, scheduled_job_id: &CStr, status: Option<CompactionServiceJobStatus>) {
        let Some(id) = number(scheduled_job_id) else {
            return;
        };
        let ok = status == Some(CompactionServiceJobStatus::Success);
        if catch_unwind(AssertUnwindSafe(|| self.0.offload.installed(id, ok))).is_err() {
            tracing::error!(job = id, ok, "the compaction offload panicked when it was told of an installation");
        }
    }
}

fn number(id: &CStr) -> Option<u64> {
    id.to_str().ok()?.parse().ok()
}

impl OffloadState {
    fn describe(&self, info: &CompactionServiceJobInfo<'_>, input: &[u8]) -> Result<RemoteJob, String> {
        let request = RemoteInput::parse(input).map_err(|error| error.to_string())?;
        let store_directory = PathBuf::from(OsStr::from_bytes(info.db_name()));
        let rocks_job = info.job_id();
        let known = self.running.inputs_of(compaction_of(rocks_job));
        let mut input_files = Vec::with_capacity(request.input_files.len());
        for name in &request.input_files {
            let name = base_name(name);
            let path = store_directory.join(name);
            let bytes = std::fs::metadata(&path).map_err(|error| format!("input {path:?}: {error}"))?.len();
            let level = known.as_ref().and_then(|known| known.level_of(name));
            input_files.push(InputTable { name: name.to_owned(), bytes, level });
        }
        let input_bytes = input_files.iter().map(|table| table.bytes).sum();
        let share = self.share_of(&request);
        Ok(RemoteJob {
            id: NEXT_JOB.fetch_add(1, Ordering::Relaxed),
            rocks_job,
            db_session_id: String::from_utf8_lossy(info.db_session_id()).into_owned(),
            store_directory,
            input: input.to_vec(),
            input_files,
            input_bytes,
            estimated_bytes: share.map_or(input_bytes, |share| (input_bytes as f64 * share) as u64),
            input_records: known.and_then(|known| known.records),
            input_level: info.base_input_level(),
            output_level: info.output_level(),
            is_manual: info.is_manual_compaction(),
            table_format: self.table_format,
            request,
        })
    }

    fn share_of(&self, request: &RemoteInput) -> Option<f64> {
        if request.begin.is_none() && request.end.is_none() {
            return None;
        }
        self.share.get()?(request.begin.as_deref(), request.end.as_deref())
    }

    /// Sees a job through. The bytes for RocksDB, or `None` when the part is to run here.
    fn run(&self, job: RemoteJob) -> Option<Vec<u8>> {
        let (id, rocks_job) = (job.id, job.rocks_job);
        let outcome = {
            let _duty = self.duties.enter(Duty::Compaction);
            catch_unwind(AssertUnwindSafe(|| self.offload.run(job))).unwrap_or_else(|_| {
                tracing::error!(job = id, "the compaction offload panicked: the compaction runs locally");
                RemoteOutcome::Fallback
            })
        };
        match outcome {
            RemoteOutcome::Installed { result } if result.job() == id => {
                self.running.part_is_remote(compaction_of(rocks_job));
                Some(result.into_bytes())
            }
            RemoteOutcome::Installed { result } => {
                tracing::error!(job = id, result_of = result.job(), "a result of another job: the compaction runs locally");
                self.wait_for_slot(id);
                None
            }
            RemoteOutcome::Fallback => {
                self.wait_for_slot(id);
                None
            }
            RemoteOutcome::Local => {
                self.running.part_is_local(id);
                None
            }
        }
    }

    fn wait_for_slot(&self, job: u64) {
        hold_on_this_thread(self.slots.acquire(|| self.is_closing()));
        self.running.part_is_local(job);
    }

    /// The part of `job` that ran on this thread has ended.
    pub(crate) fn local_ended(&self, job: u64) {
        if catch_unwind(AssertUnwindSafe(|| self.offload.local_finished(job))).is_err() {
            tracing::error!(job, "the compaction offload panicked when it was told of a local end");
        }
    }
}

/// RocksDB's number of the compaction that a part belongs to (`CompactionJob::GetCompactionId`).
pub(crate) fn compaction_of(rocks_job: u64) -> i32 {
    (rocks_job >> 32) as i32
}

fn base_name(name: &str) -> &str {
    Path::new(name).file_name().and_then(OsStr::to_str).unwrap_or(name)
}
