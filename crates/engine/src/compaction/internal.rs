//! Compactions that this program asks for by itself, beside those that RocksDB chooses: for garbage
//! collection, where duplicates are, where values have expired, and where scans step over what is
//! gone.
//!
//! RocksDB tells nobody of such a one when it is asked for by the names of its tables: neither its
//! begin nor its end is called back, and it does not count among those that run. So what else would
//! be missing is done here: admission control is told what it will write, counters and events what
//! it did, and who follows the tables that they [have changed](crate::compaction::table_changes).
//!
//! Invariants:
//!
//! - One at a time in a store. While one runs RocksDB begins no compaction of its own unless level
//!   0 fills, and two would take both cores of a small server. Who has waited longer goes first.
//! - Tables are chosen by who holds the permit: what was chosen before it may be gone.
//!
//! Failure: one that RocksDB refuses, because it compacts some of the tables already, is no failure
//! and is not counted as one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rust_rocksdb::ErrorKind;
use rust_rocksdb::event_listener::{CompactionJobInfo, OwnedCompactionJobInfo};

use super::jobs::{CompactionPurpose, JobRegistry, Totals};
use super::table_changes::{CompactedTables, TableChanges};
use crate::events::{CompactionFinished, StoreEvents};
use crate::space::admission::AdmissionControl;

/// See the module.
pub(crate) struct InternalCompactions {
    permit: Mutex<()>,
    admission: Option<Arc<AdmissionControl>>,
    jobs: Arc<JobRegistry>,
    totals: Arc<Totals>,
    events: Option<Arc<dyn StoreEvents>>,
    /// From the opening of the database on.
    changes: OnceLock<Arc<TableChanges>>,
}

impl InternalCompactions {
    pub(crate) fn new(
        admission: Option<Arc<AdmissionControl>>,
        jobs: Arc<JobRegistry>,
        totals: Arc<Totals>,
        events: Option<Arc<dyn StoreEvents>>,
    ) -> Self {
        Self { permit: Mutex::new(()), admission, jobs, totals, events, changes: OnceLock::new() }
    }

    /// Who is told from now on that tables have changed.
    pub(crate) fn set_table_changes(&self, changes: Arc<TableChanges>) {
        let _ = self.changes.set(changes);
    }

    /// For tests that run none.
    #[cfg(test)]
    pub(crate) fn idle() -> Arc<Self> {
        Arc::new(Self::new(None, Arc::default(), Arc::default(), None))
    }

    /// The purpose of the one that runs.
    pub(crate) fn current(&self) -> Option<CompactionPurpose> {
        self.jobs.internal()
    }

    /// How long the space lasts that it is to win; `None` where that is far.
    pub(crate) fn space_lasts(&self) -> Option<Duration> {
        self.admission.as_ref()?.space_lasts()
    }

    /// Waits for the permit, for `most` at most.
    pub(crate) fn permit(&self, most: Duration) -> Option<CompactionPermit<'_>> {
        Some(CompactionPermit { internal: self, held: Some(self.permit.try_lock_for(most)?) })
    }

    fn tell(&self, purpose: CompactionPurpose, info: &CompactionJobInfo) {
        let (parts, _) = self.jobs.internal_parts();
        let finished = CompactionFinished::of(info, parts);
        if let Some(changes) = self.changes.get() {
            let is_remote = finished.remote;
            changes.compacted(&CompactedTables { info, purpose: Some(purpose), is_remote, rewrites: true });
        }
        self.totals.compactions.fetch_add(1, Ordering::Relaxed);
        self.totals.remote_compactions.fetch_add(finished.remote.into(), Ordering::Relaxed);
        let Some(events) = &self.events else { return };
        if catch_unwind(AssertUnwindSafe(|| events.compaction_finished(&finished))).is_err() {
            tracing::error!("an observer of the store panicked");
        }
    }
}

/// The permit to compact. Who waits gets it when it is dropped.
pub(crate) struct CompactionPermit<'a> {
    internal: &'a InternalCompactions,
    held: Option<MutexGuard<'a, ()>>,
}

impl Drop for CompactionPermit<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            MutexGuard::unlock_fair(held);
        }
    }
}

impl CompactionPermit<'_> {
    /// Whether a worker made a subcompaction of the one that ran last.
    pub(crate) fn was_remote(&self) -> bool {
        self.internal.jobs.internal_parts().0.remote > 0
    }

    /// How long the one that ran last waited for a worker, or for the answer that there is none.
    pub(crate) fn was_away(&self) -> Duration {
        self.internal.jobs.internal_parts().1
    }

    /// Runs `compact`, which reads tables of so many bytes. It returns what RocksDB tells of a
    /// compaction by names, or nothing of one that RocksDB tells the listener of.
    ///
    /// # Errors
    ///
    /// Those of `compact`.
    pub(crate) fn run(
        &self,
        purpose: CompactionPurpose,
        input_bytes: u64,
        compact: impl FnOnce() -> Result<Option<OwnedCompactionJobInfo>, rust_rocksdb::Error>,
    ) -> Result<Option<OwnedCompactionJobInfo>, rust_rocksdb::Error> {
        let internal = self.internal;
        if let Some(admission) = &internal.admission {
            admission.compaction_begins(purpose.reservation(), input_bytes);
        }
        internal.jobs.begin_internal(purpose);
        let outcome = compact();
        internal.jobs.end_internal();
        let written = match &outcome {
            Ok(Some(info)) => info.info().stats().total_output_bytes(),
            // As much as it can have been: what others will write must not look less.
            Ok(None) | Err(_) => input_bytes,
        };
        if let Some(admission) = &internal.admission {
            admission.compaction_ended(purpose.reservation(), written);
        }
        match &outcome {
            Ok(Some(info)) => internal.tell(purpose, info.info()),
            Err(error) if !is_refusal(error) => {
                internal.totals.compactions.fetch_add(1, Ordering::Relaxed);
                internal.totals.failed_compactions.fetch_add(1, Ordering::Relaxed);
            }
            _ => (),
        }
        outcome
    }
}

/// Whether a compaction by names was refused before it began, or ended because the store closes.
pub(crate) fn is_refusal(error: &rust_rocksdb::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Aborted
            | ErrorKind::InvalidArgument
            | ErrorKind::Incomplete
            | ErrorKind::CompactionTooLarge
            | ErrorKind::ShutdownInProgress
    )
}
