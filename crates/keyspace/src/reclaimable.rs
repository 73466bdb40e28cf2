//! Large collections that have lost their key and whose elements are still stored: those that
//! [`reclaim`](crate::reclaim) removes next.
//!
//! Bounds: [`MAX_QUEUED`] collections; what is forgotten is found in the ledger later. Threads: one
//! takes, any number add.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;

use crate::layout::CollectionId;
use crate::slot::SlotSet;

/// Reclaimable collections that are remembered.
const MAX_QUEUED: usize = 65_536;

/// Collections that have lost their key.
#[derive(Debug, Default)]
pub struct ReclaimableCollections(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// In the order in which they were added.
    ids: VecDeque<CollectionId>,
    /// The same: a key whose time is over may be met often.
    all: HashSet<CollectionId>,
}

impl ReclaimableCollections {
    /// Queues collections that have lost their key.
    pub fn add(&self, reclaimable: Vec<CollectionId>) {
        if reclaimable.is_empty() {
            return;
        }
        let mut queue = self.0.lock();
        for id in reclaimable {
            if queue.ids.len() < MAX_QUEUED && queue.all.insert(id) {
                queue.ids.push_back(id);
            }
        }
    }

    /// Forgets those in these slots: the store there will be another one.
    pub(super) fn forget_slots(&self, slots: &SlotSet) {
        let Queue { ids, all } = &mut *self.0.lock();
        ids.retain(|id| !slots.has(id.slot));
        all.retain(|id| !slots.has(id.slot));
    }

    /// Whether no more are queued.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= MAX_QUEUED
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().ids.len()
    }

    /// The one that was added first.
    pub(super) fn take(&self) -> Option<CollectionId> {
        let mut queue = self.0.lock();
        let first = queue.ids.pop_front()?;
        queue.all.remove(&first);
        Some(first)
    }
}
