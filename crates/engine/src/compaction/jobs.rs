//! Every flush and compaction of a store that runs, from RocksDB's word of its begin to that of its
//! end, and what is counted of those that ended.
//!
//! A flush or a compaction has RocksDB's number. A subcompaction that is offered to the
//! [offload](crate::offload) has one id from [`schedule`](JobRegistry::schedule) to its end, and
//! one state:
//!
//! ```text
//! schedule ----> Scheduled --take--> Remote --install--> Installing --installed--> ended
//!                    |                  |
//!                    | stop             +-----run_here-> RunningHere --local_ended--> ended
//!                    +-> ended: RocksDB runs it here, and nobody else hears of it
//! ```
//!
//! The listener, the offload's adapter and the internal compactions write here, and depend on
//! nothing else of one another.
//!
//! # Invariants
//!
//! - A job is taken once at most, and installed or ended here once at most, whatever RocksDB, a
//!   worker and the closing of the store do in which order.
//! - What is not in the state that a call is for is left alone.
//!
//! # What RocksDB does not tell
//!
//! The end of a subcompaction is not told once the store closes, nor where a manual compaction was
//! cancelled. Such a job goes with its compaction, or is forgotten for a newer one once there are
//! [`MAX_OFFERED`]. Of [`MAX_RUNNING`] flushes and compactions the oldest is forgotten.
//!
//! Threads: any. Nothing is called under the lock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use ecotone_types::Duty;
use parking_lot::Mutex;
use rust_rocksdb::event_listener::{CompactionJobInfo, DBCompactionReason};

use crate::error::is_disk_full;
use crate::events::CompactionFinished;
use crate::offload::slots::LocalPermit;
use crate::offload::{OnInstalled, RemoteJob};

/// Flushes and compactions that are known at a time. RocksDB runs fewer unless it has told no ends.
const MAX_RUNNING: usize = 1024;

/// Subcompactions offered elsewhere that are known at a time. Each holds a thread of RocksDB.
const MAX_OFFERED: usize = 1024;

/// What an internal compaction is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CompactionPurpose {
    /// Its tables refer to values that are to be relocated.
    Gc = 1,
    /// It brings versions together of which only the newest is of use.
    Dedup = 2,
    /// Values in its tables have expired.
    Expired = 3,
    /// Scans step over deletions in its tables, and what these shadow.
    Cleanup = 4,
}

impl CompactionPurpose {
    /// The duty of its threads.
    pub(crate) fn duty(self) -> Duty {
        match self {
            Self::Gc => Duty::Gc,
            Self::Dedup => Duty::Dedup,
            Self::Expired | Self::Cleanup => Duty::Compaction,
        }
    }

    /// Whether it copies values of the candidate set on its way. Not where duplicates are merged:
    /// how long a merge takes is foretold from the bytes of its tables, level 0 fills meanwhile,
    /// and the values that these name may be many times that. What it makes known to be garbage is
    /// also a reason to choose another candidate set than the one of its begin. Nor where a range
    /// is cleaned up: that has been paid for by its entries alone.
    pub(crate) const fn copies_values(self) -> bool {
        match self {
            Self::Gc | Self::Expired => true,
            Self::Dedup | Self::Cleanup => false,
        }
    }

    /// Whether RocksDB tells the listener of its begin and its end, since it is a range of keys
    /// that is compacted and not some tables. Garbage collection does both.
    pub(super) const fn is_reported_by_rocksdb(self) -> bool {
        matches!(self, Self::Gc | Self::Cleanup)
    }

    /// The number under which admission control knows it: RocksDB gives its own from 1 on.
    pub(super) fn reservation(self) -> i32 {
        -(self as i32)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct JobRegistry {
    jobs: Mutex<Jobs>,
}

#[derive(Default)]
struct Jobs {
    /// Flushes and compactions by RocksDB's number, which grows.
    running: BTreeMap<i32, Running>,
    /// Subcompactions that were offered elsewhere by their id, which grows.
    offered: BTreeMap<u64, Offered>,
    /// The internal compaction that runs, or ran last.
    internal: InternalJob,
    /// The store closes: nothing is taken any more.
    is_stopped: bool,
}

enum Running {
    Flush { began: Instant },
    Compaction(Compaction),
}

#[derive(Default)]
struct Compaction {
    /// Entries of all inputs without range deletions; `None` when RocksDB did not know the
    /// properties of one.
    input_records: Option<u64>,
    parts: SubcompactionCounts,
}

/// How many subcompactions ran where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SubcompactionCounts {
    pub(crate) here: u32,
    pub(crate) remote: u32,
}

/// One that this program asked for: RocksDB tells of it only where it is a range of keys.
#[derive(Default)]
struct InternalJob {
    /// `None` once it has ended.
    purpose: Option<CompactionPurpose>,
    parts: SubcompactionCounts,
    /// How long it waited for somebody else to run it: also where nobody did.
    away: Duration,
}

/// A subcompaction that was offered elsewhere.
struct Offered {
    /// RocksDB's number of it and of its compaction.
    rocks_job: u64,
    state: State,
}

enum State {
    /// RocksDB has asked, and does not wait yet.
    Scheduled(Box<RemoteJob>),
    /// The offload has it, which looks for a place or waits for a worker.
    Remote,
    /// RocksDB runs it, or it waits for a slot.
    RunningHere,
    /// RocksDB has the result, and has not said whether it took it.
    Installing(OnInstalled),
}

impl JobRegistry {
    pub(crate) fn begin_flush(&self, number: i32) {
        self.jobs.lock().begin(number, Running::Flush { began: Instant::now() });
    }

    /// A flush has ended. How long it took, where its begin was seen.
    pub(crate) fn end_flush(&self, number: i32) -> Option<Duration> {
        match self.jobs.lock().running.remove(&number)? {
            Running::Flush { began } => Some(began.elapsed()),
            Running::Compaction(_) => None,
        }
    }

    pub(crate) fn begin_compaction(&self, number: i32, input_records: Option<u64>) {
        let compaction = Compaction { input_records, ..Compaction::default() };
        self.jobs.lock().begin(number, Running::Compaction(compaction));
    }

    /// A compaction has ended, and with it whatever is left of its subcompactions.
    pub(crate) fn end_compaction(&self, number: i32) -> SubcompactionCounts {
        release_on_this_thread();
        let (ended, left) = {
            let mut jobs = self.jobs.lock();
            let left: Vec<_> = jobs.offered.extract_if(.., |_, job| compaction_of(job.rocks_job) == number).collect();
            (jobs.running.remove(&number), left)
        };
        // What an installation was to do is dropped outside of the lock.
        drop(left);
        match ended {
            Some(Running::Compaction(compaction)) => compaction.parts,
            _ => SubcompactionCounts::default(),
        }
    }

    /// Entries of all inputs of a compaction, where RocksDB has told of its begin and knew them.
    pub(crate) fn input_records(&self, compaction: i32) -> Option<u64> {
        self.jobs.lock().compaction(compaction)?.input_records
    }

    /// Whether RocksDB has told of the begin of this compaction, and not of its end.
    pub(crate) fn has_begun(&self, compaction: i32) -> bool {
        self.jobs.lock().compaction(compaction).is_some()
    }

    /// An internal compaction begins: the only one.
    pub(super) fn begin_internal(&self, purpose: CompactionPurpose) {
        self.jobs.lock().internal = InternalJob { purpose: Some(purpose), ..InternalJob::default() };
    }

    /// It has ended. What is counted of it stays until the next one.
    pub(super) fn end_internal(&self) {
        self.jobs.lock().internal.purpose = None;
    }

    /// The purpose of the internal compaction that runs.
    pub(crate) fn internal(&self) -> Option<CompactionPurpose> {
        self.jobs.lock().internal.purpose
    }

    /// Where the subcompactions of the internal compaction ran that runs, or ran last, and how long
    /// it waited for a worker, or for the answer that there is none.
    pub(super) fn internal_parts(&self) -> (SubcompactionCounts, Duration) {
        let internal = &self.jobs.lock().internal;
        (internal.parts, internal.away)
    }

    /// What a manual compaction is for that RocksDB numbers so; `None` for one that a user asked
    /// for.
    ///
    /// RocksDB has told of the begin of those of users, and of none that was asked for by the names
    /// of its tables. Garbage collection and cleanups compact ranges of keys, so one of a user
    /// counts as theirs when both run at a time.
    pub(crate) fn purpose_of(&self, compaction: i32) -> Option<CompactionPurpose> {
        let jobs = self.jobs.lock();
        let is_it =
            |purpose: &CompactionPurpose| purpose.is_reported_by_rocksdb() || jobs.compaction(compaction).is_none();
        jobs.internal.purpose.filter(is_it)
    }

    /// A subcompaction begins here, of an internal compaction or another.
    pub(crate) fn subcompaction_begins(&self, compaction: i32, is_internal: bool) {
        self.jobs.lock().count(compaction, is_internal, |parts| parts.here += 1);
    }

    /// RocksDB is told that `job` is scheduled elsewhere. It is not where there are too many, or
    /// the store closes: then RocksDB runs it here.
    pub(crate) fn schedule(&self, job: RemoteJob) -> bool {
        let mut jobs = self.jobs.lock();
        if jobs.is_stopped || !jobs.has_room() {
            return false;
        }
        let (id, rocks_job) = (job.id, job.rocks_job);
        jobs.offered.insert(id, Offered { rocks_job, state: State::Scheduled(Box::new(job)) });
        true
    }

    /// RocksDB waits for what it scheduled. `None` where that is not to leave any more: RocksDB
    /// runs it here.
    pub(crate) fn take(&self, id: u64) -> Option<RemoteJob> {
        let mut jobs = self.jobs.lock();
        let is_stopped = jobs.is_stopped;
        let offered = jobs.offered.get_mut(&id)?;
        match std::mem::replace(&mut offered.state, State::Remote) {
            State::Scheduled(job) if !is_stopped => return Some(*job),
            State::Scheduled(_) => {
                jobs.offered.remove(&id);
            }
            other => offered.state = other,
        }
        None
    }

    /// The offload of a subcompaction of the internal compaction has answered after so long.
    pub(crate) fn internal_was_away(&self, time: Duration) {
        self.jobs.lock().internal.away += time;
    }

    /// RocksDB gets the result of a job, and tells whether it has taken it.
    pub(crate) fn install(&self, id: u64, is_internal: bool, on_installed: OnInstalled) {
        let mut jobs = self.jobs.lock();
        let Some(offered) = jobs.offered.get_mut(&id).filter(|offered| matches!(offered.state, State::Remote)) else {
            return;
        };
        offered.state = State::Installing(on_installed);
        let compaction = compaction_of(offered.rocks_job);
        jobs.count(compaction, is_internal, |parts| parts.remote += 1);
    }

    /// RocksDB has taken the result of a job, or has not: what there is to do for it.
    pub(crate) fn installed(&self, id: u64) -> Option<OnInstalled> {
        let mut jobs = self.jobs.lock();
        if !matches!(jobs.offered.get(&id)?.state, State::Installing(_)) {
            return None;
        }
        match jobs.offered.remove(&id)?.state {
            State::Installing(on_installed) => Some(on_installed),
            _ => None,
        }
    }

    /// A job came back, and runs here once it has `permit`, on this thread. A permit that the
    /// thread had before is freed.
    pub(crate) fn run_here(&self, id: u64, permit: Option<LocalPermit>) {
        hold_on_this_thread(permit);
        if let Some(offered) = self.jobs.lock().offered.get_mut(&id)
            && matches!(offered.state, State::Remote)
        {
            offered.state = State::RunningHere;
        }
    }

    /// The subcompaction that RocksDB numbers so has ended here, on this thread. The job that it
    /// was, where it was offered elsewhere.
    pub(crate) fn local_ended(&self, rocks_job: u64) -> Option<u64> {
        release_on_this_thread();
        let mut jobs = self.jobs.lock();
        let is_it = |job: &Offered| job.rocks_job == rocks_job && matches!(job.state, State::RunningHere);
        let id = jobs.offered.iter().find_map(|(id, job)| is_it(job).then_some(*id))?;
        jobs.offered.remove(&id);
        Some(id)
    }

    /// Another subcompaction begins on this thread: one that ended without notice may have left its
    /// slot.
    pub(crate) fn thread_is_free(&self) {
        release_on_this_thread();
    }

    /// The store closes: nothing leaves any more.
    pub(crate) fn stop(&self) {
        self.jobs.lock().is_stopped = true;
    }
}

impl Jobs {
    fn begin(&mut self, number: i32, job: Running) {
        if self.running.len() >= MAX_RUNNING {
            self.running.pop_first();
        }
        self.running.insert(number, job);
    }

    fn compaction(&self, number: i32) -> Option<&Compaction> {
        match self.running.get(&number)? {
            Running::Compaction(compaction) => Some(compaction),
            Running::Flush { .. } => None,
        }
    }

    fn count(&mut self, compaction: i32, is_internal: bool, count: impl Fn(&mut SubcompactionCounts)) {
        if let Some(Running::Compaction(compaction)) = self.running.get_mut(&compaction) {
            count(&mut compaction.parts);
        }
        if is_internal {
            count(&mut self.internal.parts);
        }
    }

    /// Whether one more can be offered. The oldest that runs here is forgotten for it: RocksDB has
    /// not told of its end.
    fn has_room(&mut self) -> bool {
        if self.offered.len() < MAX_OFFERED {
            return true;
        }
        let oldest = self.offered.iter().find(|(_, job)| matches!(job.state, State::RunningHere));
        let Some(oldest) = oldest.map(|(id, _)| *id) else { return false };
        self.offered.remove(&oldest);
        true
    }
}

thread_local! {
    /// The slot of the subcompaction that runs on this thread. Here and not with its job, so that
    /// it is dropped with the thread: a subcompaction whose end RocksDB does not tell frees it, too.
    static HELD: RefCell<Option<LocalPermit>> = const { RefCell::new(None) };
}

/// Keeps `permit` for the subcompaction that now runs on this thread; one kept before is freed.
fn hold_on_this_thread(permit: Option<LocalPermit>) {
    HELD.with(|held| drop(held.replace(permit)));
}

fn release_on_this_thread() {
    hold_on_this_thread(None);
}

/// RocksDB's number of the compaction that a subcompaction belongs to
/// (`CompactionJob::GetCompactionId`).
pub(crate) fn compaction_of(rocks_job: u64) -> i32 {
    (rocks_job >> 32) as i32
}

/// RocksDB's number of a subcompaction within its compaction (`CompactionJob::GetCompactionId`).
pub(crate) fn subcompaction_of(rocks_job: u64) -> u32 {
    rocks_job as u32
}

/// The number that names a subcompaction, of its compaction's and its own.
pub(crate) fn job_number(compaction: i32, subcompaction: i32) -> u64 {
    (u64::from(compaction as u32) << 32) | u64::from(subcompaction as u32)
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

    pub(crate) fn clear(&self) {
        *self.0.lock() = None;
    }
}

impl CompactionFinished {
    /// What RocksDB tells of a compaction of these subcompactions.
    pub(crate) fn of(info: &CompactionJobInfo, parts: SubcompactionCounts) -> Self {
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
            remote: parts.remote > 0,
            subcompactions: parts.here + parts.remote,
            is_manual: info.compaction_reason() == DBCompactionReason::KManualCompaction,
            error: info.status().err().map(rust_rocksdb::Error::into_string),
        }
    }
}

#[cfg(test)]
mod tests;
