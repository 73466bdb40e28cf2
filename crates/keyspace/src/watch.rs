//! Who watches which key (`WATCH`), and is told when it is written. That all keys were removed is
//! counted for who watched one that was there; that the time of one is over is seen by who
//! remembers it.
//!
//! Bounds: a client watches what it has named and no more; what it sent is bounded by the limits of
//! requests.
//!
//! Threads: a write looks whether anybody watches anything and then at a counter of its slot, under
//! the slot's latch. Only where somebody watches a key of that slot is a lock taken, which one in
//! 64 slots shares.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::slot::{SLOTS, Slot, SlotSet};

/// What all watches of one client share: whether a key they name was written.
#[derive(Debug, Clone, Default)]
pub struct WatchFlag(Arc<AtomicBool>);

impl WatchFlag {
    /// Whether a key was written since it was watched.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The watched keys are in so many tables, by their slots.
const TABLES: usize = 64;

/// The watched keys of all clients.
#[derive(Debug)]
pub struct Watches {
    /// All of them: one word that all writes look at, and that seldom changes.
    count: AtomicUsize,
    /// How often all keys were removed.
    cleared: AtomicU64,
    in_slot: Box<[AtomicU32]>,
    tables: [Mutex<HashMap<Vec<u8>, Vec<WatchFlag>>>; TABLES],
}

impl Default for Watches {
    fn default() -> Self {
        Self {
            count: AtomicUsize::new(0),
            cleared: AtomicU64::new(0),
            in_slot: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
            tables: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl Watches {
    /// From now on a write of `key` sets `touched`. Once for each client and key.
    pub fn add(&self, key: &[u8], touched: &WatchFlag) {
        let slot = Slot::of(key);
        let mut keys = self.keys(slot).lock();
        keys.entry(key.to_vec()).or_default().push(touched.clone());
        self.in_slot(slot).fetch_add(1, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of what [`add`](Self::add) began.
    pub fn remove(&self, key: &[u8], touched: &WatchFlag) {
        let slot = Slot::of(key);
        let mut keys = self.keys(slot).lock();
        let Some(watching) = keys.get_mut(key) else { return };
        if let Some(found) = watching.iter().position(|other| Arc::ptr_eq(&other.0, &touched.0)) {
            watching.swap_remove(found);
            self.count.fetch_sub(1, Ordering::SeqCst);
            self.in_slot(slot).fetch_sub(1, Ordering::SeqCst);
        }
        if watching.is_empty() {
            keys.remove(key);
        }
    }

    /// How often all keys were removed. Compared under the latch of a slot it tells whether they
    /// were since it was looked at under that latch.
    pub fn cleared(&self) -> u64 {
        self.cleared.load(Ordering::Acquire)
    }

    /// All keys are being removed, under all latches.
    pub(super) fn clear(&self) {
        self.cleared.fetch_add(1, Ordering::Release);
    }

    /// They are not, after all; the latches were not given back between.
    pub(super) fn undo_clear(&self) {
        self.cleared.fetch_sub(1, Ordering::Release);
    }

    /// `key` is being written, under the latch of its slot.
    #[inline]
    pub fn touch(&self, slot: Slot, key: &[u8]) {
        if self.count.load(Ordering::SeqCst) > 0 && self.in_slot(slot).load(Ordering::SeqCst) > 0 {
            self.touch_watched(slot, key);
        }
    }

    #[cold]
    fn touch_watched(&self, slot: Slot, key: &[u8]) {
        for touched in self.keys(slot).lock().get(key).into_iter().flatten() {
            touched.0.store(true, Ordering::Release);
        }
    }

    /// The keys in these slots are others from now on; their latches are held.
    pub(super) fn touch_slots(&self, slots: &SlotSet) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for table in &self.tables {
            for (_, watching) in table.lock().iter().filter(|(key, _)| slots.has(Slot::of(key))) {
                watching.iter().for_each(|touched| touched.0.store(true, Ordering::Release));
            }
        }
    }

    fn in_slot(&self, slot: Slot) -> &AtomicU32 {
        &self.in_slot[usize::from(slot.number())]
    }

    fn keys(&self, slot: Slot) -> &Mutex<HashMap<Vec<u8>, Vec<WatchFlag>>> {
        &self.tables[usize::from(slot.number()) % TABLES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_watches_is_told_and_nobody_else() {
        let watches = Watches::default();
        let (one, other) = (WatchFlag::default(), WatchFlag::default());
        watches.add(b"a", &one);
        watches.add(b"b", &other);
        watches.touch(Slot::of(b"c"), b"c");
        assert!(!one.is_set() && !other.is_set());
        watches.touch(Slot::of(b"a"), b"a");
        assert!(one.is_set() && !other.is_set());
        watches.remove(b"b", &other);
        watches.remove(b"b", &other);
        watches.touch(Slot::of(b"b"), b"b");
        assert!(!other.is_set());
        watches.remove(b"a", &one);
        assert!(watches.tables.iter().all(|keys| keys.lock().is_empty()));
        assert_eq!(watches.count.load(Ordering::SeqCst), 0);
        assert!(watches.in_slot.iter().all(|count| count.load(Ordering::SeqCst) == 0));
    }
}
