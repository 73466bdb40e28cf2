//! Compactions that this program asks for by itself, beside those that RocksDB chooses: for relocation, where duplicates are, where values
//! have expired, and where scans step over what is gone.
//!
//! RocksDB tells nobody of such a one when it is asked for by the names of its tables: neither its begin nor its end is called back, and
//! it does not count among those that run. So what else would be missing is done here: the gate is told what it will write, counters and
//! events what it did, and who follows the tables that they [have changed](crate::table_changes).
//!
//! Invariants:
//!
//! - One at a time in a store. While one runs RocksDB begins no compaction of its own unless level 0 fills, and two would take both cores
//!   of a small server. Who has waited longer goes first.
//! - Tables are chosen by who has the turn: what was chosen before it may be gone.
//!
//! Failure: one that RocksDB refuses, because it compacts some of the tables already, is no failure and is not counted as one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ecotone_policy::duty::Duty;
use parking_lot::{Mutex, MutexGuard};
use rust_rocksdb::ErrorKind;
use rust_rocksdb::event_listener::{CompactionJobInfo, OwnedCompactionJobInfo};

use crate::events::{CompactionFinished, StoreEvents};
use crate::limits::gate::Gate;
use crate::listener::{Running, Totals};
use crate::table_changes::TableChanges;

/// What a compaction of our own is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// Its tables name values that are to be relocated.
    Relocation = 1,
    /// It brings versions together of which only the newest is of use.
    Dedup = 2,
    /// Values in its tables have expired.
    Expired = 3,
    /// Scans step over deletions in its tables, and what these hide.
    Cleanup = 4,
}

impl Purpose {
    /// The duty of its threads.
    pub(crate) fn duty(self) -> Duty {
        match self {
            Self::Relocation => Duty::Relocation,
            Self::Dedup => Duty::Dedup,
            Self::Expired | Self::Cleanup => Duty::Compaction,
        }
    }

    /// Whether it copies values of the cohort on its way. Not where duplicates are merged: how long a merge takes is foretold from the bytes of its
    /// tables, level 0 fills meanwhile, and the values that these name may be many times that. What it makes known to be garbage is also a reason to
    /// choose another cohort than the one of its begin. Nor where a range is cleaned up: that has been paid for by its entries alone.
    pub(crate) const fn copies_values(self) -> bool {
        match self {
            Self::Relocation | Self::Expired => true,
            Self::Dedup | Self::Cleanup => false,
        }
    }

    /// Whether RocksDB tells the listener of its begin and its end, since it is a range of keys that is compacted and not some tables. Relocation does
    /// both.
    const fn may_be_told(self) -> bool {
        matches!(self, Self::Relocation | Self::Cleanup)
    }

    /// The number under which the gate knows it: RocksDB gives its own from 1 on.
    fn pledge(self) -> i32 {
        -(self as i32)
    }
}

/// See the module.
pub(crate) struct OwnCompactions {
    turn: Mutex<()>,
    /// The purpose of the one that runs, 0 while none does.
    current: AtomicU8,
    /// Parts of it that have begun here.
    parts: AtomicU32,
    /// Parts of it that workers have run.
    remote_parts: AtomicU32,
    /// How long it waited for somebody else to run it, in microseconds: also where nobody did.
    away_us: AtomicU64,
    gate: Option<Arc<Gate>>,
    running: Arc<Running>,
    totals: Arc<Totals>,
    events: Option<Arc<dyn StoreEvents>>,
    /// From the opening of the database on.
    changes: OnceLock<Arc<TableChanges>>,
}

impl OwnCompactions {
    pub(crate) fn new(
        gate: Option<Arc<Gate>>,
        running: Arc<Running>,
        totals: Arc<Totals>,
        events: Option<Arc<dyn StoreEvents>>,
    ) -> Self {
        let (turn, current) = (Mutex::new(()), AtomicU8::new(0));
        let (parts, remote_parts, away_us) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU64::new(0));
        Self { turn, current, parts, remote_parts, away_us, gate, running, totals, events, changes: OnceLock::new() }
    }

    /// Who is told from now on that tables have changed.
    pub(crate) fn tell_of_changes(&self, changes: Arc<TableChanges>) {
        let _ = self.changes.set(changes);
    }

    /// For tests that run none.
    #[cfg(test)]
    pub(crate) fn idle() -> Arc<Self> {
        Arc::new(Self::new(None, Arc::default(), Arc::default(), None))
    }

    /// The purpose of the one that runs.
    pub(crate) fn current(&self) -> Option<Purpose> {
        match self.current.load(Ordering::Acquire) {
            1 => Some(Purpose::Relocation),
            2 => Some(Purpose::Dedup),
            3 => Some(Purpose::Expired),
            4 => Some(Purpose::Cleanup),
            _ => None,
        }
    }

    /// What a manual compaction is for that RocksDB numbers so; `None` for one that a user asked for.
    ///
    /// RocksDB has told of the begin of those of users, and of none that was asked for by the names of its tables. Relocation and cleanups compact
    /// ranges of keys, so one of a user counts as theirs when both run at a time.
    pub(crate) fn purpose_of(&self, compaction: i32) -> Option<Purpose> {
        self.current().filter(|purpose| purpose.may_be_told() || !self.running.has_begun(compaction))
    }

    /// A part of it begins here.
    pub(crate) fn part_begins(&self) {
        self.parts.fetch_add(1, Ordering::Relaxed);
    }

    /// A part of it has run on a worker.
    pub(crate) fn part_is_remote(&self) {
        self.remote_parts.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody was asked to run a part of it elsewhere, which took so long.
    pub(crate) fn part_was_away(&self, time: Duration) {
        self.away_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// How long the space lasts that it is to win; `None` where that is far.
    pub(crate) fn space_lasts(&self) -> Option<Duration> {
        self.gate.as_ref()?.space_lasts()
    }

    /// Waits for the turn, for `most` at most.
    pub(crate) fn turn(&self, most: Duration) -> Option<Turn<'_>> {
        Some(Turn { own: self, held: Some(self.turn.try_lock_for(most)?) })
    }

    fn tell(&self, purpose: Purpose, info: &CompactionJobInfo) {
        let parts = |parts: &AtomicU32| parts.load(Ordering::Relaxed);
        let finished = CompactionFinished::of(info, parts(&self.parts), parts(&self.remote_parts));
        if let Some(changes) = self.changes.get() {
            changes.compacted(info, Some(purpose), finished.remote, true);
        }
        self.totals.compactions.fetch_add(1, Ordering::Relaxed);
        self.totals.remote_compactions.fetch_add(finished.remote.into(), Ordering::Relaxed);
        let Some(events) = &self.events else { return };
        if catch_unwind(AssertUnwindSafe(|| events.compaction_finished(&finished))).is_err() {
            tracing::error!("an observer of the store panicked");
        }
    }
}

/// The turn to compact. Who waits gets it when it is dropped.
pub(crate) struct Turn<'a> {
    own: &'a OwnCompactions,
    held: Option<MutexGuard<'a, ()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            MutexGuard::unlock_fair(held);
        }
    }
}

impl Turn<'_> {
    /// Whether a worker made a part of the one that ran last.
    pub(crate) fn was_remote(&self) -> bool {
        self.own.remote_parts.load(Ordering::Relaxed) > 0
    }

    /// How long the one that ran last waited for a worker, or for the answer that there is none.
    pub(crate) fn was_away(&self) -> Duration {
        Duration::from_micros(self.own.away_us.load(Ordering::Relaxed))
    }

    /// Runs `compact`, which reads tables of so many bytes. It returns what RocksDB tells of a compaction by names, or nothing of one
    /// that RocksDB tells the listener of.
    ///
    /// # Errors
    ///
    /// Those of `compact`.
    pub(crate) fn run(
        &self,
        purpose: Purpose,
        input_bytes: u64,
        compact: impl FnOnce() -> Result<Option<OwnedCompactionJobInfo>, rust_rocksdb::Error>,
    ) -> Result<Option<OwnedCompactionJobInfo>, rust_rocksdb::Error> {
        let own = self.own;
        if let Some(gate) = &own.gate {
            gate.compaction_begins(purpose.pledge(), input_bytes);
        }
        own.parts.store(0, Ordering::Relaxed);
        own.remote_parts.store(0, Ordering::Relaxed);
        own.away_us.store(0, Ordering::Relaxed);
        own.current.store(purpose as u8, Ordering::Release);
        let outcome = compact();
        own.current.store(0, Ordering::Release);
        let written = match &outcome {
            Ok(Some(info)) => info.info().stats().total_output_bytes(),
            // As much as it can have been: what others will write must not look less.
            Ok(None) | Err(_) => input_bytes,
        };
        if let Some(gate) = &own.gate {
            gate.compaction_ended(purpose.pledge(), written);
        }
        match &outcome {
            Ok(Some(info)) => own.tell(purpose, info.info()),
            Err(error) if !is_refusal(error) => {
                own.totals.compactions.fetch_add(1, Ordering::Relaxed);
                own.totals.failed_compactions.fetch_add(1, Ordering::Relaxed);
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
