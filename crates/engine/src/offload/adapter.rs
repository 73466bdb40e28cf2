//! Puts a [`CompactionOffload`] under RocksDB's compaction service.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use ecotone_rocks::remote::RemoteInput;
use ecotone_rocks::tables::{CollectedProperties, TableMetadata, collected_properties_but, live_tables};
use ecotone_types::Duty;
use ecotone_types::JobPurpose;
use ecotone_valuelog::moves::MovePlan;
use ecotone_valuelog::pointer::SegmentMap;
use ecotone_valuelog::segment::InFlight;
use rust_rocksdb::event_listener::DBCompactionReason;
use rust_rocksdb::{
    CompactionService, CompactionServiceJobInfo, CompactionServiceJobStatus, DB, Range, ScheduleResponse,
};

use super::slots::LocalSlots;
use super::subcompactions::Subcompactions;
use super::verify::VerifiedResult;
use super::{CompactionOffload, InputTable, OnInstalled, RemoteJob, RemoteOutcome};
use crate::compaction::internal::InternalCompactions;
use crate::compaction::jobs::{CompactionPurpose, JobRegistry, compaction_of};
use crate::duties::ThreadDuties;
use crate::family::{DATA_FAMILY, DataFamily};
use crate::gc::copying::Gc;
use crate::gc::references;
use crate::table_format::TableFormat;

/// Numbers jobs of all stores of this process.
static NEXT_JOB: AtomicU64 = AtomicU64::new(1);

/// No name of a property begins so: inputs are asked for their entries alone.
const NO_PROPERTY: &str = "\0";

/// What compactions do here beside compacting, and workers do not.
pub(crate) struct OnlyHere {
    /// Whether values whose time is over are removed.
    pub(crate) reclaims_expired: bool,
}

impl OnlyHere {
    /// Whether a compaction for this reason is to meet values whose time is over, since its tables
    /// are old. A worker would give all of them back, in tables that are new again.
    fn is_expiry_rewrite(&self, reason: Option<DBCompactionReason>) -> bool {
        self.reclaims_expired
            && matches!(reason, Some(DBCompactionReason::KPeriodicCompaction | DBCompactionReason::KTtl))
    }
}

/// What the adapter shares with the store and its listener.
pub(crate) struct OffloadState {
    pub(crate) offload: Arc<dyn CompactionOffload>,
    pub(crate) slots: Arc<LocalSlots>,
    pub(crate) jobs: Arc<JobRegistry>,
    pub(crate) duties: ThreadDuties,
    pub(crate) table_format: TableFormat,
    pub(crate) subcompactions: Subcompactions,
    internal: Arc<InternalCompactions>,
    only_here: OnlyHere,
    /// Of a store with a value log.
    gc: Option<Arc<Gc>>,
    closing: AtomicBool,
    /// Set once the store is open. Weak: this state lives as long as the database. Upgraded only on
    /// RocksDB's compaction threads, which have ended before the store lets the database go.
    db: OnceLock<Weak<DB>>,
}

impl OffloadState {
    #[allow(clippy::too_many_arguments)] // parts of one store, each named once
    pub(crate) fn new(
        offload: Arc<dyn CompactionOffload>,
        slots: Arc<LocalSlots>,
        jobs: Arc<JobRegistry>,
        duties: ThreadDuties,
        table_format: TableFormat,
        internal: Arc<InternalCompactions>,
        only_here: OnlyHere,
        gc: Option<Arc<Gc>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            offload,
            slots,
            jobs,
            duties,
            table_format,
            subcompactions: Subcompactions::default(),
            internal,
            only_here,
            gc,
            closing: AtomicBool::new(false),
            db: OnceLock::new(),
        })
    }

    pub(crate) fn set_database(&self, db: &Arc<DB>) {
        // Called once, when the store has opened.
        let _ = self.db.set(Arc::downgrade(db));
    }

    /// The store is closing: no new job begins, running ones are asked to return, nobody waits for
    /// a slot.
    pub(crate) fn close(&self) {
        if self.closing.swap(true, Ordering::SeqCst) {
            return;
        }
        self.jobs.stop();
        self.slots.wake_all();
        self.subcompactions.wake_all();
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
        self.0.jobs.thread_is_free();
        let local = || ScheduleResponse::from_status(CompactionServiceJobStatus::UseLocal);
        if self.0.is_closing() {
            return local();
        }
        let job = match catch_unwind(AssertUnwindSafe(|| self.0.describe(info, input))) {
            Ok(Ok(Some(job))) => job,
            Ok(Ok(None)) => {
                self.0.stays_here(compaction_of(info.job_id()));
                return local();
            }
            Ok(Err(reason)) => {
                self.0.stays_here(compaction_of(info.job_id()));
                tracing::warn!(reason, "a compaction stays local: it cannot be described");
                return local();
            }
            Err(_) => {
                self.0.stays_here(compaction_of(info.job_id()));
                tracing::error!("a compaction stays local: describing it panicked");
                return local();
            }
        };
        if job.purpose == JobPurpose::Gc && job.moves.is_none() {
            self.0.stays_here(compaction_of(info.job_id()));
            self.0.tell_stays(&job);
            return local();
        }
        let Ok(response) = ScheduleResponse::scheduled(&job.id.to_string(), CompactionServiceJobStatus::Success) else {
            return local();
        };
        if job.is_subcompaction() {
            let request = &job.request;
            self.0.subcompactions.begin(job.rocks_job, request.begin.as_deref(), request.end.as_deref());
        }
        if !self.0.jobs.schedule(job) {
            self.0.stays_here(compaction_of(info.job_id()));
            return local();
        }
        response
    }

    fn wait(&self, scheduled_job_id: &CStr, result: &mut Vec<u8>) -> CompactionServiceJobStatus {
        let Some(job) = number(scheduled_job_id).and_then(|id| self.0.jobs.take(id)) else {
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
        if let Some(on_installed) = self.0.jobs.installed(id) {
            tell_installed(id, status == Some(CompactionServiceJobStatus::Success), on_installed);
        }
    }
}

fn number(id: &CStr) -> Option<u64> {
    id.to_str().ok()?.parse().ok()
}

impl OffloadState {
    /// A subcompaction runs here that nobody can follow. An internal compaction that RocksDB tells
    /// nobody of goes to a worker whole or not at all: it has no others that would wait, and no end
    /// at which they were forgotten.
    fn stays_here(&self, compaction: i32) {
        if self.jobs.has_begun(compaction) {
            self.subcompactions.give_up(compaction);
        }
    }

    /// `None` for one that is to stay here and that nobody else needs to know of.
    fn describe(&self, info: &CompactionServiceJobInfo<'_>, input: &[u8]) -> Result<Option<RemoteJob>, String> {
        let compaction = compaction_of(info.job_id());
        let internal = if info.is_manual_compaction() { self.jobs.purpose_of(compaction) } else { None };
        if self.only_here.is_expiry_rewrite(info.compaction_reason()) {
            return Ok(None);
        }
        let purpose = match internal {
            // A worker gives back what has expired.
            Some(CompactionPurpose::Expired) => return Ok(None),
            Some(CompactionPurpose::Gc) => JobPurpose::Gc,
            Some(CompactionPurpose::Dedup) => JobPurpose::Dedup,
            Some(CompactionPurpose::Cleanup) | None => JobPurpose::Compaction,
        };
        let deadline = internal.and_then(|_| self.internal.space_lasts());
        let request = RemoteInput::parse(input).map_err(|error| error.to_string())?;
        let store_directory = PathBuf::from(OsStr::from_bytes(info.db_name()));
        let rocks_job = info.job_id();
        // Without the database, which is being opened: the sizes from the file system, and nothing
        // else.
        let db = self.db.get().and_then(Weak::upgrade);
        let tables = db.as_deref().map(Tables::of).unwrap_or_default();
        let mut input_files = Vec::with_capacity(request.input_files.len());
        for name in &request.input_files {
            let name = base_name(name).to_owned();
            let (bytes, level) = match tables.0.get(&name) {
                Some(table) => (table.bytes, Some(table.level)),
                None => (file_bytes(&store_directory.join(&name))?, None),
            };
            input_files.push(InputTable { name, bytes, level });
        }
        let input_bytes = input_files.iter().map(|table| table.bytes).sum();
        let is_subcompaction = request.begin.is_some() || request.end.is_some();
        // Of one that RocksDB tells of, entries are known only by its own counters.
        let moves = purpose == JobPurpose::Gc
            && !is_subcompaction
            && !self.jobs.has_begun(compaction)
            && self.gc.as_ref().is_some_and(|gc| gc.may_go())
            && self.offload.moves_values(tables.entries(&input_files));
        let share = db.as_deref().filter(|_| is_subcompaction).and_then(|db| range_share(db, &request));
        // RocksDB told of the inputs when the compaction began, but for one of our own.
        let (mut plan, mut named_segments) = (None, Vec::new());
        let input_records = match internal {
            Some(CompactionPurpose::Cleanup) | None => self.jobs.input_records(compaction),
            Some(CompactionPurpose::Gc) if !moves => None,
            Some(_) => {
                let db = db.as_deref().ok_or("the store is being opened")?;
                let property = if moves { references::PROPERTY } else { NO_PROPERTY };
                let inputs = ask_inputs(db, &tables, &input_files, property)?;
                let records = inputs.iter().fold(0, |sum, table| table.points.saturating_add(sum));
                if let (true, Some(gc), Some(named)) = (moves, &self.gc, named_by(&inputs)) {
                    plan = gc.plan_moves(&named, records);
                    named_segments.extend(named.into_keys());
                    named_segments.sort_unstable();
                }
                Some(records)
            }
        };
        Ok(Some(RemoteJob {
            id: NEXT_JOB.fetch_add(1, Ordering::Relaxed),
            rocks_job,
            purpose,
            deadline,
            db_session_id: String::from_utf8_lossy(info.db_session_id()).into_owned(),
            store_directory,
            input: input.to_vec(),
            key_bounds: tables.bounds(&input_files),
            input_files,
            input_bytes,
            estimated_bytes: share.map_or(input_bytes, |share| (input_bytes as f64 * share) as u64),
            input_records,
            l0_tables: tables.in_level_0(),
            input_level: info.base_input_level(),
            output_level: info.output_level(),
            is_manual: info.is_manual_compaction(),
            table_format: self.table_format,
            moves: plan,
            named_segments,
            request,
        }))
    }

    /// Sees a job through. The bytes for RocksDB, or `None` when the subcompaction is to run here.
    fn run(&self, job: RemoteJob) -> Option<Vec<u8>> {
        let (id, rocks_job, is_subcompaction, input_records) =
            (job.id, job.rocks_job, job.is_subcompaction(), job.input_records);
        let (purpose, level, plan) = (job.purpose, job.output_level, job.moves.clone());
        let is_internal = purpose != JobPurpose::Compaction;
        // RocksDB begins no other compaction while it runs one of ours, unless writers press.
        let is_urgent = job.input_level == 0 || is_internal;
        let began = Instant::now();
        let outcome = {
            let _duty = self.duties.enter(match purpose {
                JobPurpose::Compaction => Duty::Compaction,
                JobPurpose::Dedup => Duty::Dedup,
                JobPurpose::Gc => Duty::Gc,
            });
            catch_unwind(AssertUnwindSafe(|| self.offload.run(job))).unwrap_or_else(|_| {
                tracing::error!(job = id, "the compaction offload panicked: the compaction runs locally");
                RemoteOutcome::Fallback
            })
        };
        if is_internal {
            self.jobs.internal_was_away(began.elapsed());
        }
        if let (RemoteOutcome::Fallback | RemoteOutcome::Local, Some(gc), Some(plan)) = (&outcome, &self.gc, &plan) {
            gc.forget_plan(plan);
        }
        match outcome {
            RemoteOutcome::Installed { result, on_installed } if result.job() == id => {
                if is_subcompaction && !self.subcompactions_agree(rocks_job, input_records, &result) {
                    tracing::warn!(job = id, "the parts did not read what the inputs hold: this one runs locally");
                    tell_installed(id, false, on_installed);
                    self.wait_for_slot(id, is_urgent);
                    return None;
                }
                // RocksDB marks the inputs as being compacted until it has taken the tables, or
                // not. So long what was made stays, though nobody holds it any more.
                let _made = match self.make_moved(plan.as_ref(), &result, level) {
                    Ok(made) => made,
                    Err(reason) => {
                        tracing::warn!(
                            job = id,
                            reason,
                            "values could not be moved as a worker says: the job runs locally"
                        );
                        tell_installed(id, false, on_installed);
                        self.wait_for_slot(id, is_urgent);
                        return None;
                    }
                };
                self.jobs.install(id, is_internal, on_installed);
                Some(result.into_bytes())
            }
            RemoteOutcome::Installed { result, on_installed } => {
                tracing::error!(job = id, of = result.job(), "a result of another job: the compaction runs locally");
                tell_installed(id, false, on_installed);
                self.wait_for_slot(id, is_urgent);
                None
            }
            RemoteOutcome::Fallback => {
                self.wait_for_slot(id, is_urgent);
                None
            }
            RemoteOutcome::Local => {
                self.jobs.run_here(id, None);
                None
            }
        }
    }

    /// Makes the segments that the worker of a garbage collection has laid out.
    fn make_moved(
        &self,
        plan: Option<&MovePlan>,
        result: &VerifiedResult,
        level: i32,
    ) -> Result<Vec<InFlight>, String> {
        let (Some(gc), Some(plan)) = (&self.gc, plan) else { return Ok(Vec::new()) };
        let moved = result.moved().ok_or("the result does not say which values were moved")?;
        let _duty = self.duties.enter(Duty::Gc);
        let made = catch_unwind(AssertUnwindSafe(|| gc.make_moved(plan, moved, u32::try_from(level).unwrap_or(0))));
        made.unwrap_or_else(|_| Err("making a segment panicked".into()))
    }

    fn subcompactions_agree(&self, rocks_job: u64, input_records: Option<u64>, result: &VerifiedResult) -> bool {
        let stats = &result.result().stats;
        let read = stats.input_records_exact.then_some(stats.input_records);
        self.subcompactions.ended(rocks_job, read);
        input_records.is_none_or(|inputs| self.subcompactions.agree(rocks_job, inputs, || self.is_closing()))
    }

    fn tell_stays(&self, job: &RemoteJob) {
        if catch_unwind(AssertUnwindSafe(|| self.offload.stays(job))).is_err() {
            tracing::error!(job = job.id, "the compaction offload panicked when it was told of a garbage collection");
        }
    }

    /// An urgent one waits for nobody: for a compaction of level 0 writers may be waiting, and
    /// RocksDB runs one at a time, in at most `max_subcompactions` subcompactions.
    fn wait_for_slot(&self, job: u64, is_urgent: bool) {
        let permit = if is_urgent { None } else { self.slots.acquire(|| self.is_closing()) };
        self.jobs.run_here(job, permit);
    }

    /// The subcompaction that ran on this thread has ended, after `run` sent `job` back, and read
    /// so many records.
    pub(crate) fn local_ended(&self, job: u64, rocks_job: u64, records: Option<u64>) {
        self.subcompactions.ended(rocks_job, records);
        if catch_unwind(AssertUnwindSafe(|| self.offload.local_finished(job))).is_err() {
            tracing::error!(job, "the compaction offload panicked when it was told of a local end");
        }
    }
}

fn tell_installed(job: u64, ok: bool, on_installed: OnInstalled) {
    if catch_unwind(AssertUnwindSafe(|| on_installed(ok))).is_err() {
        tracing::error!(job, ok, "the compaction offload panicked when it was told of an installation");
    }
}

fn base_name(name: &str) -> &str {
    Path::new(name).file_name().and_then(OsStr::to_str).unwrap_or(name)
}

fn file_bytes(path: &Path) -> Result<u64, String> {
    std::fs::metadata(path).map(|file| file.len()).map_err(|error| format!("input {path:?}: {error}"))
}

/// The live tables of the data family by name, now. Asking for them takes RocksDB's mutex, which it
/// does not hold when it schedules a job or waits for one: `DBImpl::BackgroundCompaction` lets go
/// of it for all of `CompactionJob::Run`.
#[derive(Default)]
struct Tables(HashMap<String, TableMetadata>);

impl Tables {
    fn of(db: &DB) -> Self {
        let tables = live_tables(db).unwrap_or_else(|error| {
            tracing::debug!(%error, "a job is described without its tables");
            Vec::new()
        });
        let of_data = tables.into_iter().filter(|table| table.column_family == DATA_FAMILY);
        Self(of_data.map(|table| (table.name.clone(), table)).collect())
    }

    /// How many lie in level 0; `None` when no table is known.
    fn in_level_0(&self) -> Option<u32> {
        let tables = self.0.values().filter(|table| table.level == 0).count();
        u32::try_from(tables).ok().filter(|_| !self.0.is_empty())
    }

    /// The entries of all inputs, as far as they are known.
    fn entries(&self, inputs: &[InputTable]) -> u64 {
        inputs.iter().filter_map(|input| self.0.get(&input.name)).map(|table| table.entries).sum()
    }

    /// The least and the greatest key of all inputs; `None` when one of them is not known.
    fn bounds(&self, inputs: &[InputTable]) -> Option<(Vec<u8>, Vec<u8>)> {
        let inputs: Vec<_> = inputs.iter().map(|input| self.0.get(&input.name)).collect::<Option<_>>()?;
        let least = inputs.iter().map(|table| &table.smallest_user_key).min()?;
        let greatest = inputs.iter().map(|table| &table.largest_user_key).max()?;
        Some((least.clone(), greatest.clone()))
    }
}

/// What the input tables tell of their entries. Those that are open have it in memory.
fn ask_inputs(
    db: &DB,
    tables: &Tables,
    inputs: &[InputTable],
    property: &str,
) -> Result<Vec<CollectedProperties>, String> {
    let family = DataFamily::of(db).ok_or("the store has no data")?;
    let is_input = |name: &str| inputs.iter().any(|input| input.name == name);
    let others = tables.0.values().filter(|table| !is_input(&table.name)).map(|table| table.file_number);
    let mut others: Vec<_> = others.collect();
    others.sort_unstable();
    let mut told = collected_properties_but(db, &family, property, &others).map_err(|error| error.to_string())?;
    told.retain(|table| is_input(base_name(&table.path.to_string_lossy())));
    if told.len() == inputs.len() { Ok(told) } else { Err("some of its inputs are not live".to_owned()) }
}

/// The bytes that the inputs name of each segment; `None` where one of them does not say.
fn named_by(inputs: &[CollectedProperties]) -> Option<SegmentMap<u64>> {
    let mut named = SegmentMap::default();
    for table in inputs {
        for (segment, bytes) in references::decode(table.properties.get(references::PROPERTY)?)? {
            *named.entry(segment).or_default() += bytes;
        }
    }
    Some(named)
}

/// The part of the store's bytes that lies in the range of a request, 0 to 1, as RocksDB estimates
/// both.
fn range_share(db: &DB, request: &RemoteInput) -> Option<f64> {
    // Beyond every key that begins with fewer than this many bytes 0xFF: for an estimate enough.
    const LAST: [u8; 32] = [0xFF; 32];
    let family = DataFamily::of(db)?;
    let part = Range::new(request.begin.as_deref().unwrap_or_default(), request.end.as_deref().unwrap_or(&LAST));
    match db.get_approximate_sizes_cf(&family, &[part, Range::new(&[], &LAST)]).ok()?[..] {
        [part, all] if all > 0 => Some((part as f64 / all as f64).clamp(0.0, 1.0)),
        _ => None,
    }
}
