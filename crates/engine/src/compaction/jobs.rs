//! What is known of the flushes and compactions that run, and counted of those that ended.
//!
//! The listener, the compactions of this program's own and the compaction service all write here,
//! and depend on nothing else of one another.
//!
//! Threads: any.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use ecotone_types::Duty;
use parking_lot::Mutex;
use rust_rocksdb::event_listener::{CompactionJobInfo, DBCompactionReason};

use crate::error::is_disk_full;
use crate::events::CompactionFinished;

/// Compactions and flushes whose end RocksDB never told are forgotten beyond this number.
const MAX_RUNNING: usize = 1024;

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

/// What is known of running flushes and compactions.
#[derive(Default)]
pub(crate) struct Running {
    compactions: Mutex<HashMap<i32, Compaction>>,
    flushes: Mutex<HashMap<i32, Instant>>,
}

#[derive(Default)]
struct Compaction {
    /// Entries of all inputs without range deletions; `None` when RocksDB did not know the
    /// properties of one.
    input_records: Option<u64>,
    local_subcompactions: u32,
    remote_subcompactions: u32,
}

impl Running {
    pub(crate) fn input_records(&self, compaction: i32) -> Option<u64> {
        self.compactions.lock().get(&compaction)?.input_records
    }

    pub(crate) fn subcompaction_is_remote(&self, compaction: i32) {
        if let Some(known) = self.compactions.lock().get_mut(&compaction) {
            known.remote_subcompactions += 1;
        }
    }

    /// The subcompaction that begins on this thread is what became of `job`.
    pub(crate) fn subcompaction_is_local(&self, job: u64) {
        LOCAL_JOB.set(Some(job));
    }

    /// Whether RocksDB has told of the begin of this compaction, and not of its end.
    pub(crate) fn has_begun(&self, compaction: i32) -> bool {
        self.compactions.lock().contains_key(&compaction)
    }

    pub(crate) fn begin_compaction(&self, number: i32, input_records: Option<u64>) {
        let mut compactions = self.compactions.lock();
        if compactions.len() >= MAX_RUNNING {
            compactions.clear();
        }
        compactions.insert(number, Compaction { input_records, ..Compaction::default() });
    }

    pub(crate) fn subcompaction_ran_here(&self, compaction: i32) {
        if let Some(known) = self.compactions.lock().get_mut(&compaction) {
            known.local_subcompactions += 1;
        }
    }

    pub(crate) fn begin_flush(&self, number: i32) {
        let mut flushes = self.flushes.lock();
        if flushes.len() >= MAX_RUNNING {
            flushes.clear();
        }
        flushes.insert(number, Instant::now());
    }

    /// A flush has ended. How long it took, where its begin was seen.
    pub(crate) fn end_flush(&self, number: i32) -> Option<Duration> {
        self.flushes.lock().remove(&number).map(|began| began.elapsed())
    }

    /// A compaction has ended. The subcompactions that ran here, and those that workers ran.
    pub(crate) fn end_compaction(&self, number: i32) -> (u32, u32) {
        let parts = self.compactions.lock().remove(&number).unwrap_or_default();
        (parts.local_subcompactions, parts.remote_subcompactions)
    }

    /// The job that the subcompaction on this thread was, when a compaction service sent it back.
    /// Told once.
    pub(crate) fn take_local_job(&self) -> Option<u64> {
        LOCAL_JOB.take()
    }
}

thread_local! {
    /// The job that the subcompaction on this thread was, when a compaction service sent it back.
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

    pub(crate) fn clear(&self) {
        *self.0.lock() = None;
    }
}

impl CompactionFinished {
    /// What RocksDB tells of a compaction of so many subcompactions.
    pub(crate) fn of(info: &CompactionJobInfo, local_subcompactions: u32, remote_subcompactions: u32) -> Self {
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
            remote: remote_subcompactions > 0,
            subcompactions: local_subcompactions + remote_subcompactions,
            is_manual: info.compaction_reason() == DBCompactionReason::KManualCompaction,
            error: info.status().err().map(rust_rocksdb::Error::into_string),
        }
    }
}
