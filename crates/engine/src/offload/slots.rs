//! The bound of local compactions that follow failed offloads: a worker that dies releases all its
//! waiters at once.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longest wait for a slot. A compaction that has waited for so long is needed more than the bound.
/// Much shorter, and the bound would be none: a compaction of deep levels takes tens of seconds on
/// a slow server.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A number of slots for compactions that run here after an offload failed. Shared by clones of the
/// `Arc`, so that several stores of a process can have one bound.
pub struct LocalSlots {
    capacity: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    used: usize,
    waiting: usize,
}

/// One slot. Freed when dropped.
#[must_use]
pub struct LocalPermit {
    slots: Arc<LocalSlots>,
}

impl LocalSlots {
    /// `capacity` slots, at least one.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity: capacity.max(1), state: Mutex::default(), freed: Condvar::new() })
    }

    /// Waits for a slot, at most [`LONGEST_WAIT`]; then there is none, and the compaction runs
    /// without. `give_up` is asked before each wait; when it says true, nothing is waited for and
    /// nothing taken. Whoever makes it true calls [`wake_all`](Self::wake_all).
    pub fn acquire(self: &Arc<Self>, give_up: impl Fn() -> bool) -> Option<LocalPermit> {
        let until = Instant::now() + LONGEST_WAIT;
        let mut state = self.state.lock();
        state.waiting += 1;
        while state.used >= self.capacity && !give_up() {
            if self.freed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.waiting -= 1;
        if give_up() || state.used >= self.capacity {
            return None;
        }
        state.used += 1;
        Some(LocalPermit { slots: self.clone() })
    }

    /// Makes every waiter ask its `give_up` again.
    pub fn wake_all(&self) {
        // Under the lock, so that a waiter is either before its question or in its wait.
        let _state = self.state.lock();
        self.freed.notify_all();
    }

    /// The number of slots.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Slots taken now.
    pub fn used(&self) -> usize {
        self.state.lock().used
    }

    /// Compactions waiting for a slot now.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}

impl fmt::Debug for LocalSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSlots").field("capacity", &self.capacity).field("used", &self.used()).finish()
    }
}

impl Drop for LocalPermit {
    fn drop(&mut self) {
        self.slots.state.lock().used -= 1;
        self.slots.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn never_more_are_inside_than_there_are_slots() {
        let slots = LocalSlots::new(2);
        let inside = AtomicUsize::new(0);
        let most = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let permit = slots.acquire(|| false);
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 2);
        assert_eq!((slots.used(), slots.waiting()), (0, 0));
    }

    #[test]
    fn a_waiter_gives_up_when_it_is_told() {
        let slots = LocalSlots::new(1);
        let taken = slots.acquire(|| false);
        let closing = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| slots.acquire(|| closing.load(Ordering::SeqCst)).is_none());
            while slots.waiting() == 0 {
                std::thread::yield_now();
            }
            closing.store(true, Ordering::SeqCst);
            slots.wake_all();
            assert!(waiter.join().unwrap());
        });
        drop(taken);
        assert_eq!(slots.used(), 0);
    }
}
