//! Large collections whose reads step over many removed entries, and how many: those that
//! [`rewrite`](crate::rewrite) copies next.
//!
//! Bounds: [`MAX_TRACKED`] collections are remembered. Threads: any may report; one takes.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;

use parking_lot::{Condvar, Mutex};

use crate::layout::CollectionId;
use crate::slot::SlotSet;

/// What a read stepped over does not count below this.
const MIN_SKIPPED: u64 = 32;

/// A collection is looked at for the first time once reads have stepped over so much of it.
const MIN_TOTAL_SKIPPED: u64 = 8_192;

/// Collections that are remembered; of more, those are forgotten in which least was stepped over.
const MAX_TRACKED: usize = 1024;

/// Collections whose reads step over what is gone.
#[derive(Debug, Default)]
pub(super) struct SlowReads {
    tracked: Mutex<Tracked>,
    changed: Condvar,
    /// Collections that were rewritten since the start.
    pub(super) rewritten: AtomicU64,
}

#[derive(Debug, Default)]
struct Tracked {
    collections: HashMap<CollectionId, Skipped>,
    /// Those that are to be looked at.
    due: VecDeque<CollectionId>,
    stop: bool,
}

#[derive(Debug, Clone, Copy)]
struct Skipped {
    entries: u64,
    /// So many are to be stepped over before the collection is looked at.
    due_at: u64,
    /// Whether it is among those that are to be looked at.
    is_due: bool,
}

impl SlowReads {
    /// A read of the collection stepped over so many entries.
    pub(super) fn note(&self, id: CollectionId, entries: u64) {
        if entries < MIN_SKIPPED {
            return;
        }
        let mut tracked = self.tracked.lock();
        if tracked.collections.len() >= MAX_TRACKED && !tracked.collections.contains_key(&id) {
            tracked.forget_least();
        }
        let Tracked { collections, due, .. } = &mut *tracked;
        let skipped = collections.entry(id).or_insert(Skipped { entries: 0, due_at: MIN_TOTAL_SKIPPED, is_due: false });
        skipped.entries = skipped.entries.saturating_add(entries);
        if !skipped.is_due && skipped.entries >= skipped.due_at && due.len() < MAX_TRACKED {
            skipped.is_due = true;
            due.push_back(id);
            self.changed.notify_one();
        }
    }

    /// The next one to look at, and what was stepped over in it; waits for one. `None` when it is
    /// to end.
    pub(super) fn next(&self) -> Option<(CollectionId, u64)> {
        let mut tracked = self.tracked.lock();
        loop {
            if tracked.stop {
                return None;
            }
            if let Some(id) = tracked.due.pop_front() {
                let Some(skipped) = tracked.collections.get(&id) else { continue };
                return Some((id, skipped.entries));
            }
            self.changed.wait(&mut tracked);
        }
    }

    /// The collection is looked at again once so many more entries were stepped over.
    pub(super) fn defer(&self, id: CollectionId, more: u64) {
        if let Some(skipped) = self.tracked.lock().collections.get_mut(&id) {
            skipped.due_at = skipped.entries.saturating_add(more.max(1));
            skipped.is_due = false;
        }
    }

    pub(super) fn forget(&self, id: CollectionId) {
        self.tracked.lock().collections.remove(&id);
    }

    /// Forgets those in these slots: the store there will be another one.
    pub(super) fn forget_slots(&self, slots: &SlotSet) {
        self.tracked.lock().collections.retain(|id, _| !slots.has(id.slot));
    }

    /// Whoever waits for the next one ends.
    pub(super) fn stop(&self) {
        self.tracked.lock().stop = true;
        self.changed.notify_all();
    }
}

impl Tracked {
    fn forget_least(&mut self) {
        let least = self.collections.iter().min_by_key(|(_, skipped)| skipped.entries).map(|(id, _)| *id);
        if let Some(id) = least {
            self.collections.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Slot;

    fn id(number: u64) -> CollectionId {
        CollectionId { slot: Slot::of(b"k"), number }
    }

    #[test]
    fn a_collection_is_due_once_so_much_was_stepped_over() {
        let slow = SlowReads::default();
        slow.note(id(1), MIN_SKIPPED - 1);
        slow.note(id(2), MIN_TOTAL_SKIPPED - 1);
        assert!(slow.tracked.lock().due.is_empty());
        slow.note(id(2), MIN_SKIPPED);
        slow.note(id(2), MIN_SKIPPED);
        assert_eq!(slow.next(), Some((id(2), MIN_TOTAL_SKIPPED - 1 + 2 * MIN_SKIPPED)));
        assert!(slow.tracked.lock().due.is_empty(), "once");
        slow.defer(id(2), MIN_TOTAL_SKIPPED);
        slow.note(id(2), MIN_TOTAL_SKIPPED - 1);
        assert!(slow.tracked.lock().due.is_empty());
        slow.note(id(2), MIN_SKIPPED);
        assert_eq!(slow.next().unwrap().0, id(2));
        slow.stop();
        assert_eq!(slow.next(), None);
    }

    #[test]
    fn of_too_many_the_one_with_least_is_forgotten() {
        let slow = SlowReads::default();
        for number in 0..MAX_TRACKED as u64 {
            slow.note(id(number), MIN_SKIPPED + if number == 7 { 0 } else { 1 });
        }
        slow.note(id(5000), MIN_SKIPPED);
        let tracked = slow.tracked.lock();
        assert_eq!(tracked.collections.len(), MAX_TRACKED);
        assert!(tracked.collections.contains_key(&id(5000)) && !tracked.collections.contains_key(&id(7)));
    }
}
