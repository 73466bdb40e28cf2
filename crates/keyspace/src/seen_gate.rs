//! Which gates a command has passed, and in which epoch: whoever read or wrote in one that is over
//! by the time of its reply does not know what became of it.
//!
//! Threads: any.

use std::sync::Arc;

use crate::gate::{CommitGate, Place, Refused};
use crate::shards::ShardSet;

/// A shard's gate as a command found it before it read or wrote there.
#[derive(Debug, Clone)]
pub struct SeenGate {
    /// Which shard of the keyspace it was of.
    shard: ShardSet,
    gate: Arc<dyn CommitGate>,
    /// What was read and written is of this epoch, or of the one before it was over.
    epoch: u64,
}

impl SeenGate {
    /// What is read and written of a shard from now on is seen behind its gate.
    pub fn of(shard: ShardSet, gate: &Arc<dyn CommitGate>) -> Self {
        Self { shard, gate: gate.clone(), epoch: gate.written().epoch }
    }

    /// The shard that it is of.
    pub fn shard(&self) -> ShardSet {
        self.shard
    }

    /// The gate.
    pub fn gate(&self) -> &Arc<dyn CommitGate> {
        &self.gate
    }

    /// What replies to all that was done before this call wait for.
    ///
    /// # Errors
    ///
    /// [`Refused::NotPrimary`] where the epoch is over in which it was done.
    pub fn awaited(&self) -> Result<Place, Refused> {
        let place = self.gate.written();
        if place.epoch == self.epoch { Ok(place) } else { Err(Refused::NotPrimary) }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::gate::Level;

    /// A gate that says how much is written.
    #[derive(Debug)]
    struct Written(Mutex<Place>);

    impl CommitGate for Written {
        fn written(&self) -> Place {
            *self.0.lock()
        }

        fn answerable(&self, _: Level) -> Result<Place, Refused> {
            Ok(self.written())
        }

        fn takes_writes(&self) -> bool {
            true
        }

        fn level(&self) -> Level {
            Level::Quorum
        }

        fn copies_with(&self, _: Place, _: bool) -> usize {
            0
        }

        fn clock_limit_ms(&self) -> u64 {
            u64::MAX
        }

        fn wakes(&self, _: &Arc<dyn Fn() + Send + Sync>) {}
    }

    #[test]
    fn what_was_done_before_an_epoch_began_is_awaited_in_none() {
        let place = |epoch, number| Place { epoch, number };
        let gate = Arc::new(Written(Mutex::new(place(3, 7))));
        let seen = SeenGate::of(ShardSet::ALL, &(gate.clone() as Arc<dyn CommitGate>));
        *gate.0.lock() = place(3, 8);
        assert_eq!(seen.awaited(), Ok(place(3, 8)));
        *gate.0.lock() = place(4, 0);
        assert_eq!(seen.awaited(), Err(Refused::NotPrimary));
    }
}
