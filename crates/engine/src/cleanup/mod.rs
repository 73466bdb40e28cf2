//! Rids ranges of keys of what is gone, where scans step over it time and again.
//!
//! What was deleted or overwritten stays until a compaction has met it, and each scan on its way
//! steps over it. A range that churns would be read slower and slower. So scans say what they
//! stepped over ([`skipped`]), and once that took as long in some range as to write anew what is in
//! the way ([`plan`]), it is: the memtable is flushed, if it holds much of the range, then tables
//! with deletions are compacted down in it.
//!
//! Invariant: what that costs was paid for before, by scans that stepped over as much. So it takes
//! at most as much time as they have lost, and half of it all where it is of no use (an old
//! snapshot keeps what is gone). Nothing is done where nobody scans.
//!
//! Failure: what RocksDB refuses is tried again when as much was stepped over again.
//!
//! Threads: any may say; one of its own cleans up, and waits for flushes and compactions. While
//! space is low it does nothing: see [`crate::space::reclaim`].

mod plan;
mod skipped;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ecotone_rocks::tables::{family_tables, memtable_entries};
use parking_lot::{Condvar, Mutex};
use rust_rocksdb::{BottommostLevelCompaction, CompactOptions, DB, FlushOptions, properties};

use crate::background::BackgroundThread;
use crate::compaction::internal::InternalCompactions;
use crate::compaction::jobs::CompactionPurpose;
use crate::family::DataFamily;
use crate::space::admission::AdmissionControl;
use crate::{Error, Result};

use plan::{Memtable, Next};
use skipped::{SkippedRange, SkippedRanges};

/// What a scan stepped over does not count below this: it is noise, and costs nobody anything.
pub(crate) const MIN_NOTED: u64 = 32;

/// Where something is in the way of a cleanup, it is looked again after so long.
const WAIT: Duration = Duration::from_millis(500);

/// the permit for an internal compaction is waited for so long.
const MAX_PERMIT_WAIT: Duration = Duration::from_secs(10);

/// What scans, the thread and the store share.
#[derive(Default)]
pub(crate) struct CleanupState {
    skipped: AtomicU64,
    cleanups: AtomicU64,
    noted: Mutex<Noted>,
    changed: Condvar,
}

#[derive(Default)]
struct Noted {
    ranges: SkippedRanges,
    /// Whether a range may be due.
    is_due: bool,
    stop: bool,
}

impl CleanupState {
    /// A scan from `first` to `last` stepped over so many `entries`.
    pub(crate) fn note(&self, first: Vec<u8>, last: Vec<u8>, entries: u64) {
        let mut noted = self.noted.lock();
        if noted.ranges.add(first, last, entries) && !std::mem::replace(&mut noted.is_due, true) {
            self.changed.notify_one();
        }
    }

    /// A scan stepped over so many entries, wherever that was.
    pub(crate) fn count(&self, entries: u64) {
        self.skipped.fetch_add(entries, Ordering::Relaxed);
    }

    /// What was stepped over between these keys is nobody's concern any more.
    pub(crate) fn forget(&self, first: &[u8], last: &[u8]) {
        self.noted.lock().ranges.forget(first, last);
    }

    /// Entries that scans stepped over, and flushes and compactions that were made for it.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.skipped.load(Ordering::Relaxed), self.cleanups.load(Ordering::Relaxed))
    }

    /// The range to look at; waits for one. `None` when the thread is to end.
    fn next(&self) -> Option<SkippedRange> {
        let mut noted = self.noted.lock();
        loop {
            if noted.stop {
                return None;
            }
            if let Some(range) = noted.ranges.due() {
                return Some(range);
            }
            noted.is_due = false;
            self.changed.wait(&mut noted);
        }
    }

    /// Waits for a little. False when the thread is to end.
    fn rest(&self) -> bool {
        let mut noted = self.noted.lock();
        self.changed.wait_while_for(&mut noted, |noted| !noted.stop, WAIT);
        !noted.stop
    }
}

/// What the thread needs of the store.
pub(crate) struct CleanupComponents {
    pub(crate) internal: Arc<InternalCompactions>,
    pub(crate) admission: Option<Arc<AdmissionControl>>,
    pub(crate) family: DataFamily,
}

/// Starts the thread.
pub(crate) fn start(
    shared: Arc<CleanupState>,
    components: CleanupComponents,
    db: &Arc<DB>,
) -> std::io::Result<BackgroundThread> {
    let (of_thread, db) = (shared.clone(), Arc::downgrade(db));
    let ask_to_stop = move || {
        shared.noted.lock().stop = true;
        shared.changed.notify_all();
    };
    BackgroundThread::start("ecotone-cleanup", ask_to_stop, move || Thread { shared: of_thread, components, db }.run())
}

struct Thread {
    shared: Arc<CleanupState>,
    components: CleanupComponents,
    db: Weak<DB>,
}

/// What became of a step.
enum Done {
    /// It cost so much.
    Paid(u64),
    /// It would cost so much, and that was not stepped over yet.
    NotProfitable(u64),
    /// There is nothing to be done about it.
    Useless,
    /// Not now.
    Later,
}

impl Thread {
    fn run(self) {
        while let Some(range) = self.shared.next() {
            let Some(db) = self.db.upgrade() else { return };
            let done = self.step(&db, &range).unwrap_or_else(|error| {
                tracing::debug!(%error, "a range that scans step through slowly cannot be cleaned up; trying again");
                Done::Useless
            });
            drop(db);
            let mut noted = self.shared.noted.lock();
            match done {
                Done::Paid(cost) => noted.ranges.pay(&range, cost),
                Done::NotProfitable(cost) => noted.ranges.deferred(&range, cost),
                Done::Useless => noted.ranges.pay(&range, range.entries),
                Done::Later => {
                    drop(noted);
                    if !self.shared.rest() {
                        return;
                    }
                }
            }
        }
    }

    fn step(&self, db: &DB, range: &SkippedRange) -> Result<Done> {
        if self.components.admission.as_ref().is_some_and(|admission| admission.is_space_low()) {
            return Ok(Done::Later);
        }
        let family = self.components.family;
        let failed = |error: ecotone_rocks::Error| Error::Rocks { detail: error.to_string() };
        let entries = db.property_int_value_cf(&family, properties::NUM_ENTRIES_ACTIVE_MEM_TABLE);
        let memtable = Memtable {
            entries: entries.map_err(|error| Error::from_rocks(&error))?.unwrap_or(0),
            in_range: memtable_entries(db, &family, &range.first, &range.last).map_err(failed)?,
        };
        let next = plan::next(range, memtable, &family_tables(db, &family).map_err(failed)?);
        let cost = match next {
            Next::Nothing => return Ok(Done::Useless),
            Next::Wait => return Ok(Done::Later),
            Next::Flush { cost } | Next::Compact { cost, .. } => cost,
        };
        if cost > range.entries {
            return Ok(Done::NotProfitable(cost));
        }
        match next {
            Next::Compact { first, last, bytes, .. } => {
                let Some(permit) = self.components.internal.permit(MAX_PERMIT_WAIT) else { return Ok(Done::Later) };
                let mut options = CompactOptions::default();
                options.set_exclusive_manual_compaction(false);
                // RocksDB moves a table down as it is where nothing lies below it: its deletions go
                // only by a compaction there.
                options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
                let compact = || {
                    db.compact_range_cf_opt(&family, Some(&first), Some(&last), &options);
                    Ok(None)
                };
                permit.run(CompactionPurpose::Cleanup, bytes, compact).map_err(|error| Error::from_rocks(&error))?;
            }
            _ => {
                let mut options = FlushOptions::default();
                options.set_wait(true);
                // Otherwise it would wait, without limit, until compactions have caught up.
                options.set_allow_write_stall(true);
                db.flush_cf_opt(&family, &options).map_err(|error| Error::from_rocks(&error))?;
            }
        }
        self.shared.cleanups.fetch_add(1, Ordering::Relaxed);
        Ok(Done::Paid(cost))
    }
}
