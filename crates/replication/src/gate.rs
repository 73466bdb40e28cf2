//! What replies to clients wait for: how far the copies of a shard are.
//!
//! The shard's thread publishes after each step of the machine; who asks finds what was so then, and
//! looks at the clock for the lease. A gate belongs to one opening of the store: once the machine is
//! in another epoch, or closed, nothing of it is answerable any more.
//!
//! Threads: any.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_control::ids::{Epoch, ShardId};
use ecotone_replica::commit::{Durability, Level, Refusal};
use ecotone_replica::position::Position;

use crate::clock::now_us;
use crate::published::Publisher;

/// What a gate is the gate of.
pub(crate) trait Copied: Send + Sync {
    fn shard(&self) -> ShardId;
    fn publisher(&self) -> &Publisher;
    fn level(&self) -> Level;
    /// How many other copies have all up to a position.
    fn copies_with(&self, position: Position, durability: Durability) -> usize;
}

/// The gate of one opening of a shard's store.
pub struct CommitGate {
    copied: Arc<dyn Copied>,
    epoch: Epoch,
}

impl fmt::Debug for CommitGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitGate").field("shard", &self.copied.shard()).field("epoch", &self.epoch).finish()
    }
}

impl CommitGate {
    pub(crate) fn new(copied: Arc<dyn Copied>, epoch: Epoch) -> Arc<CommitGate> {
        Arc::new(CommitGate { copied, epoch })
    }

    /// Behind all that was written so far.
    pub fn written(&self) -> Position {
        let publisher = &self.copied.publisher();
        // What has no position is never answered.
        let is_cut_off = publisher.is_cut_off.load(Ordering::Acquire);
        let number = if is_cut_off { u64::MAX } else { publisher.written.load(Ordering::Acquire) };
        Position { epoch: self.epoch, number }
    }

    /// Up to where may be answered. To be asked after reading.
    ///
    /// # Errors
    /// When nothing may be.
    pub fn answerable(&self, level: Level) -> Result<Position, Refusal> {
        let state = self.copied.publisher().state.lock();
        if state.epoch != self.epoch {
            return Err(Refusal::NotPrimary);
        }
        let index = match level {
            Level::One => 0,
            Level::Quorum => 1,
            Level::All => 2,
        };
        let (committed, until_us) = (state.committed[index], state.lease_until_us);
        drop(state);
        // After what was read.
        if now_us() >= until_us {
            return Err(Refusal::NoLease);
        }
        // What comes before the epoch is no place in it: of it nothing is answerable yet.
        committed.map(|position| position.max(Position::begin(self.epoch)))
    }

    /// Whether writes may be made: not while another server is about to take the shard over.
    pub fn takes_writes(&self) -> bool {
        !self.copied.publisher().is_handing_over.load(Ordering::Acquire)
    }

    /// How many other copies have all up to a position of this epoch.
    pub fn copies_with(&self, position: Position, durability: Durability) -> usize {
        self.copied.copies_with(position, durability)
    }

    /// The level of clients that ask for none.
    pub fn level(&self) -> Level {
        self.copied.level()
    }

    /// Keys do not expire by a later time than this (milliseconds since 1970).
    pub fn clock_limit_ms(&self) -> u64 {
        self.copied.publisher().is_clock_read.store(true, Ordering::Release);
        self.copied.publisher().state.lock().clock_limit_ms
    }

    /// `wake` is called whenever more may be answered, or nothing more, while it lives.
    pub fn wakes(&self, wake: &Arc<dyn Fn() + Send + Sync>) {
        self.copied.publisher().wakes.lock().push(Arc::downgrade(wake));
    }
}
