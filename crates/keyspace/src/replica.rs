//! A copy of a shard that another server writes, as clients read it here.
//!
//! Its store follows the files of the copy and shows something new only in
//! [`Replica::change`], while nobody reads: so a command, or a transaction of commands that only
//! read, sees one moment without a snapshot. It is a keyspace of its own, in which nothing can be
//! written: its gate takes no writes, and its store is read only. What of its memory goes by keys
//! that were read (counts of ranks) is not used: the keys change behind its back.
//!
//! Invariant: its clock shows no time beyond the limit that came with the stream, and none that is
//! earlier than one that was shown.
//!
//! Failure: once it is [over](Replica::end), whatever was read of it is given to nobody.
//!
//! Threads: any. Who changes it waits for those who read, and they for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ecotone_engine::{Durability, Store};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::clock::Clock;
use crate::gate::{CommitGate, Level, Place, Refused};
use crate::keyspace::Keyspace;
use crate::memory::Memory;
use crate::shards::{OpenShard, ShardError, ShardId, SlotRanges};
use crate::slot::Slot;

/// Who may wait to read waits no longer: what is new is shown sooner, unless the device is stuck.
const MAX_READ_WAIT: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Replica {
    keyspace: Arc<Keyspace>,
    gate: Arc<ReplicaGate>,
    /// Written by who shows something new.
    shown: RwLock<()>,
    is_over: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
}

/// While it is there, what is read stays as it is.
pub type Held<'r> = RwLockReadGuard<'r, ()>;

impl Replica {
    /// The shard of `slots`, whose `store` follows others. Its clock begins at `clock_floor_ms` and
    /// ends at `clock_limit_ms`; what clients take for it is counted in `memory`, and commands in
    /// `reads`.
    ///
    /// It is over once `is_over` is set: whoever has the files changed sets it before.
    ///
    /// # Errors
    ///
    /// Those of reads; a store that no server wrote.
    pub fn open(
        (id, slots): (ShardId, SlotRanges),
        (store, is_over): (Arc<Store>, Arc<AtomicBool>),
        (clock_floor_ms, clock_limit_ms): (u64, u64),
        memory: Arc<Memory>,
        reads: Arc<AtomicU64>,
    ) -> Result<Self, ShardError> {
        let gate = Arc::new(ReplicaGate { clock_limit_ms: AtomicU64::new(clock_limit_ms) });
        let clock = Clock::under(gate.clone(), clock_floor_ms);
        let keyspace = Keyspace::empty(Durability::None, clock, memory);
        keyspace.add_shard(OpenShard { id, slots, store, gate: Some(gate.clone()) })?;
        Ok(Self { keyspace: Arc::new(keyspace), gate, shown: RwLock::default(), is_over, reads })
    }

    /// Its keys. To be read while they are [held](Self::read).
    pub fn keyspace(&self) -> &Arc<Keyspace> {
        &self.keyspace
    }

    /// Whether it has all of these slots.
    pub fn has(&self, mut slots: impl Iterator<Item = Slot>) -> bool {
        slots.all(|slot| self.keyspace.epoch_of(slot).is_some())
    }

    /// Begins to read. None where that would have to wait, and may not or waits for too long, and
    /// where it is over.
    pub fn read(&self, may_wait: bool) -> Option<Held<'_>> {
        let held = if may_wait { self.shown.try_read_for(MAX_READ_WAIT) } else { self.shown.try_read() };
        held.filter(|_| !self.is_over())
    }

    /// A command has been answered from it.
    pub fn was_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Shows something new, while nobody reads. None where somebody has read for `within`.
    pub fn change<T>(&self, within: Duration, change: impl FnOnce() -> T) -> Option<T> {
        let _changing = self.shown.try_write_for(within)?;
        Some(change())
    }

    /// Keys expire up to this time from now on.
    pub fn limit_clock(&self, limit_ms: u64) {
        self.gate.clock_limit_ms.fetch_max(limit_ms, Ordering::AcqRel);
    }

    /// Nobody begins to read it, and who reads is cancelled.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Whether it has ended. To be asked after reading.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// The same, for who is to be cancelled.
    pub fn over(&self) -> &Arc<AtomicBool> {
        &self.is_over
    }
}

/// Takes nothing.
#[derive(Debug)]
struct ReplicaGate {
    clock_limit_ms: AtomicU64,
}

impl CommitGate for ReplicaGate {
    fn written(&self) -> Place {
        Place::default()
    }

    fn answerable(&self, _: Level) -> Result<Place, Refused> {
        Err(Refused::NotPrimary)
    }

    fn takes_writes(&self) -> bool {
        false
    }

    fn level(&self) -> Level {
        Level::One
    }

    fn copies_with(&self, _: Place, _: bool) -> usize {
        0
    }

    fn clock_limit_ms(&self) -> u64 {
        self.clock_limit_ms.load(Ordering::Acquire)
    }

    fn wakes(&self, _: &Arc<dyn Fn() + Send + Sync>) {}
}
