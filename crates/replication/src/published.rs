//! What a shard's thread tells those who wait: how far the copies are, and whether the lease holds.
//!
//! Threads: the shard's thread publishes, any may look.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ecotone_control::ids::Epoch;
use ecotone_replica::commit::Refusal;
use ecotone_replica::position::Position;
use parking_lot::Mutex;

/// What was published last.
#[derive(Debug, Clone)]
pub(crate) struct Published {
    /// The epoch that is open here; 0 if none is.
    pub(crate) epoch: Epoch,
    pub(crate) lease_until_us: u64,
    /// By level.
    pub(crate) committed: [Result<Position, Refusal>; 3],
    pub(crate) clock_limit_ms: u64,
}

impl Default for Published {
    fn default() -> Self {
        Self { epoch: Epoch(0), lease_until_us: 0, committed: [Err(Refusal::NotPrimary); 3], clock_limit_ms: 0 }
    }
}

/// What a shard's thread tells those who wait.
#[derive(Default)]
pub(crate) struct Publisher {
    pub(crate) state: Mutex<Published>,
    /// The last position that was given, in the epoch that is open.
    pub(crate) written: AtomicU64,
    /// Something was written that has no position: nothing is answerable any more.
    pub(crate) is_cut_off: AtomicBool,
    /// Another server is about to take the shard over.
    pub(crate) is_handing_over: AtomicBool,
    /// Somebody has asked for the clock since the last look.
    pub(crate) is_clock_read: AtomicBool,
    pub(crate) wakes: Mutex<Vec<Weak<dyn Fn() + Send + Sync>>>,
}

impl Publisher {
    /// An epoch begins: nothing is written in it yet, and who waits in it will say so anew.
    pub(crate) fn begin(&self) {
        for wake in std::mem::take(&mut *self.wakes.lock()).iter().filter_map(Weak::upgrade) {
            wake();
        }
        self.written.store(0, Ordering::Release);
        self.is_cut_off.store(false, Ordering::Release);
        self.is_handing_over.store(false, Ordering::Release);
    }

    /// An item has this position; without one it has none, and never will.
    pub(crate) fn wrote(&self, position: Option<Position>) {
        match position {
            Some(position) => self.written.store(position.number, Ordering::Release),
            None => self.is_cut_off.store(true, Ordering::Release),
        }
    }

    /// Tells all that wait, if what they wait for may have come.
    pub(crate) fn publish(&self, new: Published) {
        let changes = {
            let mut state = self.state.lock();
            let changes = state.epoch != new.epoch || state.committed != new.committed;
            *state = new;
            changes
        };
        if changes {
            let mut wakes = self.wakes.lock();
            wakes.retain(|wake| wake.upgrade().map(|wake| wake()).is_some());
        }
    }

    /// The lease is not longer than this, whatever was published.
    pub(crate) fn shorten_lease(&self, until_us: u64) {
        let mut state = self.state.lock();
        state.lease_until_us = state.lease_until_us.min(until_us);
    }

    /// Whether somebody has asked for the clock since this was asked last.
    pub(crate) fn take_clock_read(&self) -> bool {
        self.is_clock_read.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn who_waited_in_an_epoch_is_woken_and_forgotten_when_another_one_begins() {
        let publisher = Publisher::default();
        let woken = Arc::new(AtomicUsize::new(0));
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new({
            let woken = woken.clone();
            move || {
                woken.fetch_add(1, Ordering::SeqCst);
            }
        });
        publisher.wakes.lock().push(Arc::downgrade(&wake));
        publisher.begin();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        publisher.publish(Published { epoch: Epoch(3), ..Published::default() });
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        assert!(publisher.wakes.lock().is_empty());
    }
}
