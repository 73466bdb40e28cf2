//! No table before its values: segments are synced before a flush begins its table.
//!
//! All values that a memtable names are in the kernel before the flush that writes it begins; so
//! one sync at the creation of the table covers them. A sync that fails fails the creation, and
//! with it the flush. Compactions only pass on pointers of tables that are durable already, and are
//! not throttled; what they relocate is written, as far as it was only collected, and synced right
//! after the table that names it, and before RocksDB hears that the table is durable.
//!
//! It also stops an opening that must not go on. RocksDB takes a corrupt record for the end of the
//! WAL, flushes what came before and removes the WAL; so from the moment that [`super::replay`] has
//! met one, nothing may be changed any more.
//!
//! Threads: a flush runs whole on one thread, which is marked while it does.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_valuelog::log::ValueLog;

use super::replay::ReplayOutcome;
use crate::gc::copying;

thread_local! {
    static FLUSHING: Cell<bool> = const { Cell::new(false) };
}

/// Says whether the calling thread is running a flush.
pub(crate) fn mark_flushing(flushing: bool) {
    FLUSHING.set(flushing);
}

/// Sits in the file system under RocksDB, before the tap that the store was given.
pub(crate) struct Barrier {
    log: Arc<ValueLog>,
    replay: Arc<ReplayOutcome>,
    /// Tables that are made while the store opens come from replay, on a thread that nobody has
    /// marked.
    opening: Arc<AtomicBool>,
    next: Option<Arc<dyn WriteTap>>,
}

impl Barrier {
    /// `opening` is true until the store is open.
    pub(crate) fn new(
        log: Arc<ValueLog>,
        replay: Arc<ReplayOutcome>,
        opening: Arc<AtomicBool>,
        next: Option<Arc<dyn WriteTap>>,
    ) -> Self {
        Self { log, replay, opening, next }
    }
}

impl WriteTap for Barrier {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        if let Some(reason) = self.replay.corrupt.get() {
            return Err(io::Error::other(reason.to_string()));
        }
        if let TapEvent::Created { path } = event
            && is_table(path)
            && (FLUSHING.get() || self.opening.load(Ordering::Acquire))
        {
            self.log.sync().map_err(io::Error::other)?;
        }
        if let TapEvent::Synced { path, .. } = event
            && is_table(path)
            && copying::take_unsynced()
        {
            self.log.sync_relocated().map_err(|error| {
                copying::mark_unsynced();
                io::Error::other(error)
            })?;
        }
        self.next.as_ref().map_or(Ok(()), |next| next.record(event))
    }
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sst")
}
