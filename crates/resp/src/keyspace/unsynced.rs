//! Writes that everybody can see and a power loss may still take.
//!
//! With a sync before each reply a group is written, then synced with others, and then its clients are told. Who reads its keys meanwhile must
//! not be told either, until a sync that began later has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many such writes there are.
#[derive(Debug, Default)]
pub(super) struct UnsyncedWrites(Arc<AtomicUsize>);

/// One of them, until it is dropped: it is synced then, or has failed.
#[derive(Debug)]
pub struct Unsynced(Arc<AtomicUsize>);

impl UnsyncedWrites {
    /// Before it can be seen.
    pub(super) fn begin(&self) -> Unsynced {
        self.0.fetch_add(1, Ordering::SeqCst);
        Unsynced(self.0.clone())
    }

    /// Whether what was read before this call may be one of them.
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Unsynced {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
