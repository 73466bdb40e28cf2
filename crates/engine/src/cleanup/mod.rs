//! Rids ranges of keys of what is gone, where scans step over it time and again.
//!
//! What was deleted or overwritten stays until a compaction has met it, and each scan on its way steps over it. A range that churns would
//! be read slower and slower. So scans say what they stepped over ([`skipped`]), and once that took as long in some range as to write anew what is
//! in the way ([`plan`]), it is: the memtable is flushed, if it holds much of the range, then tables with deletions are compacted down in
//! it.
//!
//! Invariant: what that costs was paid for before, by scans that stepped over as much. So it takes at most as much time as they have lost, and
//! half of it all where it is of no use (an old snapshot keeps what is gone). Nothing is done where nobody scans.
//!
//! Failure: what RocksDB refuses is tried again when as much was stepped over again.
//!
//! Threads: any may say; one of its own cleans up, and waits for flushes and compactions. While space is tight it does nothing: see
//! [`crate::limits::reclaim`].

mod plan;
mod skipped;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ecotone_rocks_sys::tables::{family_tables, memtable_entries};
use parking_lot::{Condvar, Mutex};
use rust_rocksdb::{BottommostLevelCompaction, CompactOptions, DB, FlushOptions, properties};

use crate::family::DataFamily;
use crate::limits::gate::Gate;
use crate::own_compactions::{OwnCompactions, Purpose};
use crate::{Error, Result};

use plan::{Memtable, Next};
use skipped::{SkippedRange, SkippedRanges};

/// What a scan stepped over does not count below this: it is noise, and costs nobody anything.
pub(crate) const MIN_NOTED: u64 = 32;

/// Where something is in the way of a cleanup, it is looked again after so long.
const WAIT: Duration = Duration::from_millis(500);

/// The turn among compactions of our own is waited for so long.
const MAX_TURN_WAIT: Duration = Duration::from_secs(10);

/// What scans, the thread and the store share.
#[derive(Default)]
pub(crate) struct Shared {
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

impl Shared {
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

/// The thread, while it lives.
pub(crate) struct Cleanup {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread needs of the store.
pub(crate) struct Parts {
    pub(crate) own: Arc<OwnCompactions>,
    pub(crate) gate: Option<Arc<Gate>>,
    pub(crate) family: DataFamily,
}

impl Cleanup {
    pub(crate) fn start(shared: Arc<Shared>, parts: Parts, db: &Arc<DB>) -> std::io::Result<Self> {
        let (of_thread, db) = (shared.clone(), Arc::downgrade(db));
        let thread = std::thread::Builder::new()
            .name("ecotone-cleanup".into())
            .spawn(move || Thread { shared: of_thread, parts, db }.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Tells the thread to end. A compaction that it waits for must be stopped by the caller.
    pub(crate) fn ask_to_stop(&self) {
        self.shared.noted.lock().stop = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, its message is on standard error.
            let _ = thread.join();
        }
    }
}

struct Thread {
    shared: Arc<Shared>,
    parts: Parts,
    db: Weak<DB>,
}

/// What became of a step.
enum Done {
    /// It cost so much.
    Paid(u64),
    /// It would cost so much, and that was not stepped over yet.
    TooDear(u64),
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
                Done::TooDear(cost) => noted.ranges.put_off(&range, cost),
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
        if self.parts.gate.as_ref().is_some_and(|gate| gate.is_tight()) {
            return Ok(Done::Later);
        }
        let family = self.parts.family;
        let failed = |error: ecotone_rocks_sys::Error| Error::Rocks { detail: error.to_string() };
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
            return Ok(Done::TooDear(cost));
        }
        match next {
            Next::Compact { first, last, bytes, .. } => {
                let Some(turn) = self.parts.own.turn(MAX_TURN_WAIT) else { return Ok(Done::Later) };
                let mut options = CompactOptions::default();
                options.set_exclusive_manual_compaction(false);
                // RocksDB moves a table down as it is where nothing lies below it: its deletions go only by a compaction there.
                options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
                let compact = || {
                    db.compact_range_cf_opt(&family, Some(&first), Some(&last), &options);
                    Ok(None)
                };
                turn.run(Purpose::Cleanup, bytes, compact).map_err(|error| Error::from_rocks(&error))?;
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
