//! What a store tells while it works.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ecotone_valuelog::sync_failure::Report;

use crate::space::free_space::FreeSpace;

/// Is told what happened in a store. Called from background threads and writers, some of them under
/// a lock of the store: an implementation must never block, never call the store, and never panic
/// (a panic is caught, logged and dropped).
pub trait StoreEvents: Send + Sync {
    /// A memtable became an L0 table.
    fn flush_finished(&self, event: &FlushFinished) {
        let _ = event;
    }
    /// A compaction ended, well or not. Comes once for a whole compaction, however many
    /// subcompactions it had.
    fn compaction_finished(&self, event: &CompactionFinished) {
        let _ = event;
    }
    /// Writers are slowed, stopped or released.
    fn stall_changed(&self, event: &StallChanged) {
        let _ = event;
    }
    /// Writes are refused from now on because there is too little space, or taken again. May come
    /// on a writer's thread.
    fn space_changed(&self, event: &SpaceChanged) {
        let _ = event;
    }
    /// A flush, a compaction, or a sync of the WAL or of segments failed.
    fn background_error(&self, event: &BackgroundError) {
        let _ = event;
    }
}

/// A flush that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct FlushFinished {
    /// RocksDB's job number, unique since the store was opened.
    pub job: i32,
    /// Bytes of the new table.
    pub bytes: u64,
    /// Entries of the new table.
    pub entries: u64,
    /// From the begin to the end of the flush.
    pub seconds: f64,
}

/// A compaction that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct CompactionFinished {
    /// RocksDB's job number, unique since the store was opened. The high 32 bits of a
    /// [`RemoteJob`](crate::RemoteJob)'s `rocks_job` hold the same number.
    pub job: i32,
    /// The level it began at.
    pub input_level: i32,
    /// The level it wrote to.
    pub output_level: i32,
    /// Input tables.
    pub input_tables: usize,
    /// Bytes of the input tables.
    pub input_bytes: u64,
    /// Bytes of the output tables.
    pub output_bytes: u64,
    /// Entries read.
    pub input_records: u64,
    /// Entries written.
    pub output_records: u64,
    /// Wall time.
    pub seconds: f64,
    /// CPU time of all its subcompactions; for subcompactions that ran on a worker, the worker's.
    pub cpu_seconds: f64,
    /// Whether any subcompaction ran on a worker.
    pub remote: bool,
    /// Subcompactions that ran here or there, as far as they were seen; 0 for a mere move of tables
    /// to another level.
    pub subcompactions: u32,
    /// RocksDB asked for by hand ([`Store::compact`](crate::Store::compact)).
    pub is_manual: bool,
    /// RocksDB's words when it failed.
    pub error: Option<String>,
}

/// How writers are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StallCondition {
    /// Not at all.
    Normal,
    /// They are slowed to the delayed write rate.
    Delayed,
    /// They wait.
    Stopped,
}

/// A change of the stall condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallChanged {
    /// The condition before.
    pub from: StallCondition,
    /// The condition now.
    pub to: StallCondition,
}

/// The store refuses writes from now on, or takes them again; `free_space.writes_refused` says
/// which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceChanged {
    /// What was found.
    pub free_space: FreeSpace,
}

/// A failure of background work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackgroundError {
    /// What was being done.
    pub during: &'static str,
    /// RocksDB's words, or those of the system.
    pub detail: String,
    /// Whether the store stopped taking writes.
    pub writes_stopped: bool,
}

/// Tells `events` of the first sync that fails; a panic of theirs is logged.
pub(crate) fn sync_failures_to(events: Option<Arc<dyn StoreEvents>>) -> Option<Report> {
    let events = events?;
    Some(Box::new(move |during, detail| {
        let event = BackgroundError { during, detail: detail.to_owned(), writes_stopped: true };
        if catch_unwind(AssertUnwindSafe(|| events.background_error(&event))).is_err() {
            tracing::error!("an observer of the store panicked");
        }
    }))
}
