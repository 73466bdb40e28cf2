//! A latch for each hash slot: who changes a key holds the latch of its slot from the first read
//! until the write is committed.
//!
//! Invariant: a thread that serves clients never waits for a latch. It tries; where that fails it
//! commits what it holds, and hands the command to a thread that may wait. Who waits for a latch
//! takes all it needs in ascending order and holds no other, so nobody waits in a circle. How long
//! one is held is bounded by [`MAX_LATCH_HOLD`](crate::MAX_LATCH_HOLD), what is waited for others
//! included.
//!
//! Threads: a latch may be released by another thread than took it, with the group that holds it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::slot::{SLOTS, Slot};

/// Who waits looks so often whether it still is to.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Who waits does so in one of these queues.
const QUEUES: usize = 64;

/// The latches of all slots.
#[derive(Debug)]
pub struct Latches {
    taken: Box<[AtomicBool]>,
    queues: Box<[Queue]>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: AtomicU32,
    lock: Mutex<()>,
    freed: Condvar,
}

impl Default for Latches {
    fn default() -> Self {
        Self {
            taken: (0..SLOTS).map(|_| AtomicBool::new(false)).collect(),
            queues: (0..QUEUES).map(|_| Queue::default()).collect(),
        }
    }
}

impl Latches {
    /// Takes the latch of `slot` unless somebody has it.
    #[inline]
    pub fn try_take(&self, slot: Slot) -> bool {
        !self.taken[usize::from(slot.number())].swap(true, Ordering::SeqCst)
    }

    /// Takes the latch of `slot`, and waits for it where somebody has it, as long as `goes_on` says
    /// so. Whether it was taken.
    pub fn take(&self, slot: Slot, mut goes_on: impl FnMut() -> bool) -> bool {
        if self.try_take(slot) {
            return true;
        }
        let queue = self.queue(slot);
        queue.waiting.fetch_add(1, Ordering::SeqCst);
        let mut lock = queue.lock.lock();
        // After it is counted as waiting: who releases from here on wakes it.
        let is_taken = loop {
            if self.try_take(slot) {
                break true;
            }
            if !goes_on() {
                break false;
            }
            queue.freed.wait_for(&mut lock, LOOK_EVERY);
        };
        drop(lock);
        queue.waiting.fetch_sub(1, Ordering::SeqCst);
        is_taken
    }

    /// Gives the latch of `slot` back.
    #[inline]
    pub fn release(&self, slot: Slot) {
        self.taken[usize::from(slot.number())].store(false, Ordering::SeqCst);
        let queue = self.queue(slot);
        if queue.waiting.load(Ordering::SeqCst) > 0 {
            // Under the lock, so that who waits is either before its try or in its wait.
            drop(queue.lock.lock());
            queue.freed.notify_all();
        }
    }

    fn queue(&self, slot: Slot) -> &Queue {
        &self.queues[usize::from(slot.number()) % QUEUES]
    }
}

/// The latch of a slot, given back at the end, whatever that is.
pub(super) struct LatchGuard<'l> {
    latches: &'l Latches,
    slot: Slot,
}

impl<'l> LatchGuard<'l> {
    pub(super) fn take(latches: &'l Latches, slot: Slot) -> Self {
        latches.take(slot, || true);
        Self { latches, slot }
    }
}

impl Drop for LatchGuard<'_> {
    fn drop(&mut self) {
        self.latches.release(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn one_has_a_latch_at_a_time_and_nobody_is_forgotten() {
        let latches = Arc::new(Latches::default());
        let counts = Arc::new([const { Mutex::new(0_u64) }; 3]);
        // Three slots of one queue, so that wakes meant for another slot come as well.
        let slots = [1, 1 + QUEUES as u16, 1 + 2 * QUEUES as u16].map(|number| Slot::new(number).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (latches, counts) = (latches.clone(), counts.clone());
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let which = (thread + round) % 3;
                        assert!(latches.take(slots[which], || true));
                        // Never contended, or the latch is none.
                        *counts[which].try_lock().unwrap() += 1;
                        latches.release(slots[which]);
                    }
                });
            }
        });
        assert_eq!(counts.iter().map(|count| *count.lock()).sum::<u64>(), 80_000);
        assert!(slots.iter().all(|slot| latches.try_take(*slot)));
        assert!(slots.iter().all(|slot| !latches.try_take(*slot)));
        let mut looks = 3;
        let goes_on = || {
            looks -= 1;
            looks > 0
        };
        assert!(!latches.take(slots[0], goes_on), "who is to wait no longer does not");
    }
}
