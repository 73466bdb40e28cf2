//! Ranks in large ordered collections: [how many elements](blocks) lie between which places, in
//! memory.
//!
//! In the store no entry says how many come before it. So a command that had to step over many
//! elements of a collection to count them notes here how many there are in each range, and from
//! then on a rank is found by reading some hundred of them. Nothing of this is persisted; what is
//! missing or was evicted is counted again on demand. A collection whose ranks are never asked for
//! has no index here.
//!
//! Elements with a place are added and removed by [`Keys::add_placed`](crate::Keys::add_placed) and
//! [`Keys::remove_placed`](crate::Keys::remove_placed), under the latch of the key's slot, and are
//! counted then, before they are committed: so a command sees what its group has written. Others
//! cannot read the index meanwhile, since they do not hold the latch.
//!
//! Invariants:
//!
//! - The index of a collection agrees with its elements as the group that holds the latch sees
//!   them.
//! - What is undone is counted back. An index that was begun after its group had changed the
//!   collection is dropped instead.
//! - Where a group is not committed the indexes of all collections that it has changed are dropped.
//! - Whatever changes a collection in another way drops its index
//!   ([`Keys::remove_elements`](crate::Keys::remove_elements)), and one with another number of
//!   elements than the collection's key says is dropped at the next lookup.
//!
//! Bounds: [`MAX_BYTES`], or what it is [limited to](Ranks::limit_to), for all collections
//! together: the least recently used are evicted first, and one that reaches the bound on its own
//! is refined no further.
//!
//! Threads: any; one lock for all, held for some microseconds, and never while the store is read.

mod blocks;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

pub use blocks::{BLOCK_ELEMENTS, Block, Blocks, Cut, Kept, separator};

use crate::layout::{self, CollectionId, StoredKey};
use crate::slot::SlotSet;

/// Memory that all of them take by default.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// What a collection takes besides its blocks, about.
const COLLECTION_BYTES: usize = 256;

/// The kind of an element, which precedes its place.
const KIND_BYTES: usize = 1;

/// What a write does to the number of a collection's elements with a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RankChange {
    /// The element has no place, or nothing changes.
    None,
    Added,
    Removed,
}

impl RankChange {
    fn undone(self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Added => Self::Removed,
            Self::Removed => Self::Added,
        }
    }
}

/// Those of all collections.
#[derive(Debug)]
pub struct Ranks {
    /// How many collections there are: where there is none the lock need not be taken.
    collections: AtomicUsize,
    bytes: AtomicUsize,
    max_bytes: AtomicUsize,
    cache: Mutex<Cache>,
}

impl Default for Ranks {
    fn default() -> Self {
        Self {
            collections: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            max_bytes: AtomicUsize::new(MAX_BYTES),
            cache: Mutex::default(),
        }
    }
}

#[derive(Debug, Default)]
struct Cache {
    indexes: HashMap<CollectionId, Index>,
    /// By the number of their last use.
    by_use: BTreeMap<u64, CollectionId>,
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Index {
    blocks: Blocks,
    /// The number of its last use.
    used: u64,
}

impl Cache {
    fn remove(&mut self, id: CollectionId) {
        if let Some(index) = self.indexes.remove(&id) {
            self.by_use.remove(&index.used);
            self.bytes -= index.blocks.bytes() + COLLECTION_BYTES;
        }
    }

    /// Applies `change` to the index of `id`, if there is one.
    fn change<T>(&mut self, id: CollectionId, change: impl FnOnce(&mut Blocks) -> (T, Kept)) -> Option<T> {
        let index = self.indexes.get_mut(&id)?;
        let before = index.blocks.bytes();
        let (outcome, kept) = change(&mut index.blocks);
        self.bytes = self.bytes + index.blocks.bytes() - before;
        if kept == Kept::Wrong {
            self.remove(id);
            return None;
        }
        Some(outcome)
    }

    fn use_now(&mut self, id: CollectionId, make: impl FnOnce() -> Blocks) {
        self.uses += 1;
        if let Some(index) = self.indexes.get_mut(&id) {
            self.by_use.remove(&index.used);
            index.used = self.uses;
        } else {
            let blocks = make();
            self.bytes += blocks.bytes() + COLLECTION_BYTES;
            self.indexes.insert(id, Index { blocks, used: self.uses });
        }
        self.by_use.insert(self.uses, id);
    }
}

impl Ranks {
    /// Limits the memory of all to `bytes`.
    pub fn limit_to(&self, bytes: usize) {
        self.max_bytes.store(bytes, Ordering::Relaxed);
        self.locked(|_| ());
    }

    /// How many collections have an index.
    pub fn collections(&self) -> usize {
        self.collections.load(Ordering::Relaxed)
    }

    /// The memory of all, about.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn max_bytes(&self) -> usize {
        self.max_bytes.load(Ordering::Relaxed)
    }

    fn locked<T>(&self, work: impl FnOnce(&mut Cache) -> T) -> T {
        let mut cache = self.cache.lock();
        let outcome = work(&mut cache);
        while cache.bytes > self.max_bytes()
            && let Some((_, oldest)) = cache.by_use.first_key_value().map(|(used, id)| (*used, *id))
        {
            cache.remove(oldest);
        }
        self.bytes.store(cache.bytes, Ordering::Relaxed);
        self.collections.store(cache.indexes.len(), Ordering::Relaxed);
        outcome
    }

    /// Drops the index of `id`.
    pub(super) fn forget(&self, id: CollectionId) {
        if self.collections() > 0 {
            self.locked(|cache| cache.remove(id));
        }
    }

    /// Drops those of all collections in these slots.
    pub(super) fn forget_slots(&self, slots: &SlotSet) {
        if self.collections() > 0 {
            self.locked(|cache| {
                let of_slots: Vec<_> = cache.indexes.keys().filter(|id| slots.has(id.slot)).copied().collect();
                of_slots.into_iter().for_each(|id| cache.remove(id));
            });
        }
    }

    /// Drops all.
    pub(super) fn clear(&self) {
        if self.collections() > 0 {
            self.locked(|cache| *cache = Cache::default());
        }
    }

    /// An element was written or removed.
    #[inline]
    pub(super) fn count(&self, stored_key: &[u8], counted: RankChange) {
        if counted != RankChange::None && self.collections() > 0 {
            self.count_known(stored_key, counted);
        }
    }

    fn count_known(&self, stored_key: &[u8], counted: RankChange) {
        let Some((id, sub_key)) = layout::element_of(stored_key) else { return };
        let place = sub_key.get(KIND_BYTES..).unwrap_or_default();
        // It has its share, or is evicted for others that are used.
        let max_bytes = self.max_bytes().saturating_sub(COLLECTION_BYTES);
        self.locked(|cache| {
            cache.change(id, |blocks| {
                let kept = if counted == RankChange::Added {
                    blocks.add(place, max_bytes);
                    Kept::Whole
                } else {
                    blocks.remove(place)
                };
                ((), kept)
            })
        });
    }

    /// Undoes the same.
    pub(super) fn undo(&self, stored_key: &[u8], counted: RankChange) {
        self.count(stored_key, counted.undone());
    }

    /// Drops the indexes of the collections that these writes, which are not committed, changed.
    pub(super) fn forget_changed<'k>(&self, written: impl Iterator<Item = &'k StoredKey>, removed: &[Range<Vec<u8>>]) {
        if self.collections() == 0 {
            return;
        }
        let mut last = None;
        for (id, _) in written.filter_map(|key| layout::element_of(key)) {
            if last.replace(id) != Some(id) {
                self.forget(id);
            }
        }
        for range in removed {
            match layout::element_of(&range.start) {
                Some((id, _)) => self.forget(id),
                // Of all keys: what the same group wrote before is unknown here.
                None => self.clear(),
            }
        }
    }

    /// A commit has taken the keys of these collections, and removed these ranges.
    pub(super) fn forget_gone(&self, reclaimable: &[CollectionId], removed: &[Range<Vec<u8>>]) {
        reclaimable.iter().for_each(|id| self.forget(*id));
        if removed.iter().any(|range| layout::element_of(&range.start).is_none()) {
            self.clear();
        }
    }

    /// Whether `id` has an index.
    pub(super) fn has(&self, id: CollectionId) -> bool {
        self.collections() > 0 && self.cache.lock().indexes.contains_key(&id)
    }

    /// What `look` returns of the index of `id`, which has so many `elements` with a place, and
    /// whether the index is new.
    pub(super) fn look<T>(&self, id: CollectionId, elements: u64, look: impl FnOnce(&Blocks) -> T) -> (T, bool) {
        self.locked(|cache| {
            if cache.indexes.get(&id).is_some_and(|index| index.blocks.elements() != elements) {
                cache.remove(id);
            }
            let mut is_new = false;
            cache.use_now(id, || {
                is_new = true;
                Blocks::new(elements)
            });
            (look(&cache.indexes[&id].blocks), is_new)
        })
    }

    /// Cuts the block of `id` that begins at `start`, and notes which place is the `first`, or the
    /// `last`, of all.
    pub(super) fn cut(&self, id: CollectionId, start: &[u8], cuts: &[Cut], first: Option<&[u8]>, last: Option<&[u8]>) {
        let max_bytes = self.max_bytes().saturating_sub(COLLECTION_BYTES);
        self.locked(|cache| {
            cache.change(id, |blocks| {
                first.into_iter().for_each(|first| blocks.begin_at(first));
                last.into_iter().for_each(|last| blocks.end_at(last));
                ((), blocks.cut(start, cuts, max_bytes))
            })
        });
    }
}
