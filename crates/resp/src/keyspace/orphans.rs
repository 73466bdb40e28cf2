//! Large collections without a key: what is left of those that were deleted, overwritten or have expired.
//!
//! To delete a large collection removes its key and nothing else. Its elements go later, here. The ledger says under which key
//! each collection is; one whose key holds something else, or nothing, is an orphan. No number is given twice, so an orphan never
//! finds a key again: only a rename could bring it one, and that changes key and ledger at once, under both latches.
//!
//! A key whose time is over holds nothing: it goes with its elements, and need not wait for a compaction that an idle store does not make.
//!
//! Most orphans are told to this module when they become one, or when a command meets a key whose time is over. The others (overwritten
//! without a look, expired and asked for by nobody, or of a process that was killed) are found by [`Keyspace::find_orphans`], which reads
//! the whole ledger.
//!
//! None is removed as soon as it is known: a command may have found a collection by its key, and not its elements yet. Who reclaims sees to the
//! time between.
//!
//! Bounds: [`MAX_KNOWN`] collections; who is forgotten is found later. Threads: one reclaims, any number add.

use std::collections::{HashSet, VecDeque};
use std::ops::Bound;
use std::sync::atomic::Ordering;

use ecotone_engine::{Direction, Durability, Error as StoreError, WriteOptions};
use parking_lot::Mutex;

use super::Keyspace;
use super::latches::Latches;
use super::layout::{self, CollectionId, Tag};
use super::slot::Slot;

/// Orphans that are remembered.
const MAX_KNOWN: usize = 65_536;

/// Collections of at most so many elements are removed one by one: reads pay for each range that was removed until it is compacted.
const ONE_BY_ONE: usize = 512;

/// Entries of the ledger that are read at once.
const AT_ONCE: usize = 1024;

/// Collections that have lost their key.
#[derive(Debug, Default)]
pub struct Orphans(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// In the order in which they were told.
    queue: VecDeque<CollectionId>,
    /// The same: a key whose time is over may be met often.
    all: HashSet<CollectionId>,
}

impl Orphans {
    /// They have lost their key.
    pub fn add(&self, orphans: Vec<CollectionId>) {
        if orphans.is_empty() {
            return;
        }
        let mut known = self.0.lock();
        for orphan in orphans {
            if known.queue.len() < MAX_KNOWN && known.all.insert(orphan) {
                known.queue.push_back(orphan);
            }
        }
    }

    /// Whether no more are remembered.
    fn is_full(&self) -> bool {
        self.len() >= MAX_KNOWN
    }

    fn len(&self) -> usize {
        self.0.lock().queue.len()
    }

    /// The one that was told first.
    fn take(&self) -> Option<CollectionId> {
        let mut known = self.0.lock();
        let first = known.queue.pop_front()?;
        known.all.remove(&first);
        Some(first)
    }
}

/// The latch of a slot, given back at the end, whatever that is.
pub(super) struct Latched<'l> {
    latches: &'l Latches,
    slot: Slot,
}

impl<'l> Latched<'l> {
    pub(super) fn take(latches: &'l Latches, slot: Slot) -> Self {
        latches.take(slot, || true);
        Self { latches, slot }
    }
}

impl Drop for Latched<'_> {
    fn drop(&mut self) {
        self.latches.release(self.slot);
    }
}

/// What the key that a collection was last under has to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// It holds something else, or nothing.
    None,
    /// It holds the collection, and its time is over.
    Expired,
    /// It holds the collection, as far as this version understands what it holds.
    Holds,
}

/// What was reclaimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reclaimed {
    /// Collections.
    pub collections: u64,
}

impl Keyspace {
    /// How many orphans are known.
    pub fn known_orphans(&self) -> usize {
        self.orphans.len()
    }

    /// How many were removed since the start, or since that was to be forgotten.
    pub fn reclaimed_orphans(&self) -> u64 {
        self.reclaimed_orphans.load(Ordering::Relaxed)
    }

    /// Counts those that are removed from 0 again.
    pub fn forget_reclaimed_orphans(&self) {
        self.reclaimed_orphans.store(0, Ordering::Relaxed);
    }

    /// Removes the elements of the orphans that are known, at most `most` of them, those that were told first. May wait for the device. `goes_on` is asked before each;
    /// `false` ends it.
    ///
    /// # Errors
    ///
    /// Those of reads and writes; the others are left for the next time.
    pub fn reclaim_known(&self, most: usize, mut goes_on: impl FnMut() -> bool) -> Result<Reclaimed, StoreError> {
        let mut reclaimed = Reclaimed::default();
        for _ in 0..most {
            if !goes_on() {
                break;
            }
            let Some(id) = self.orphans.take() else { break };
            let outcome = self.reclaim(id).inspect_err(|_| self.orphans.add(vec![id]));
            reclaimed.collections += u64::from(outcome?);
        }
        Ok(reclaimed)
    }

    /// Looks through the ledger for orphans, from its begin, and has them known. Tells whether it came to the end: not where no more are remembered,
    /// or `goes_on`, which is asked before each entry, says `false`.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn find_orphans(&self, mut goes_on: impl FnMut() -> bool) -> Result<bool, StoreError> {
        let mut from = layout::whole_ledger().start;
        let end = layout::whole_ledger().end;
        'ledger: while goes_on() {
            let mut ids = Vec::new();
            {
                let range = (Bound::Excluded(from.as_slice()), Bound::Excluded(end.as_slice()));
                let mut ledger = self.store.scan(range, Direction::Forward, None)?;
                while ids.len() < AT_ONCE
                    && let Some((key, _)) = ledger.next_key()?
                {
                    ids.extend(layout::ledger_id(key));
                }
            }
            let Some(last) = ids.last() else { return Ok(true) };
            from = layout::ledger(*last);
            for id in ids {
                if self.orphans.is_full() || !goes_on() {
                    break 'ledger;
                }
                if self.loser(id)?.is_some() {
                    self.orphans.add(vec![id]);
                }
            }
        }
        Ok(false)
    }

    /// The key under which the collection is an orphan, and its slot. Seen without a latch, which holds up nobody: most of the ledger is in order.
    fn loser(&self, id: CollectionId) -> Result<Option<(Slot, Vec<u8>)>, StoreError> {
        let Some(key) = self.store.get(&layout::ledger(id))?.map(|key| key.to_vec()) else { return Ok(None) };
        let slot = Slot::of(&key);
        Ok((self.holder(id, slot, &key)? != Holder::Holds).then_some((slot, key)))
    }

    /// Removes what is left of the collection, if it is an orphan.
    fn reclaim(&self, id: CollectionId) -> Result<bool, StoreError> {
        let Some((slot, key)) = self.loser(id)? else { return Ok(false) };
        let _latch = Latched::take(&self.latches, slot);
        let outcome = self.reclaim_latched(id, slot, &key);
        if matches!(outcome, Ok(true)) {
            self.reclaimed_orphans.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    fn reclaim_latched(&self, id: CollectionId, slot: Slot, key: &[u8]) -> Result<bool, StoreError> {
        // Again, now that nobody can rename it, or give it more time.
        let in_ledger = self.store.get(&layout::ledger(id))?;
        if in_ledger.is_none_or(|under| *under != *key) {
            return Ok(false);
        }
        let holder = self.holder(id, slot, key)?;
        if holder == Holder::Holds {
            return Ok(false);
        }
        let mut batch = self.store.batch();
        self.remove_elements(id, &mut batch)?;
        if holder == Holder::Expired {
            batch.delete(&layout::key(slot, key))?;
        }
        batch.delete(&layout::ledger(id))?;
        // Nobody is told, so nobody of this slot need wait for a sync: what a loss of power brings back is an orphan again.
        self.store.write(&batch, WriteOptions::durable(Durability::None))?;
        self.ranks.forget(id);
        let elements = layout::elements(id);
        self.store.forget_skipped(&elements.start, &elements.end);
        Ok(true)
    }

    fn holder(&self, id: CollectionId, slot: Slot, key: &[u8]) -> Result<Holder, StoreError> {
        let held = self.store.get(&layout::key(slot, key))?;
        let Some(held) = held.filter(|value| Tag::of(value.attributes()).is_none_or(|tag| tag.is_large)) else {
            return Ok(Holder::None);
        };
        Ok(match CollectionId::decode(&held) {
            Some((found, _)) if found != id => Holder::None,
            // Else it could not be had back by who puts right a clock that was ahead.
            Some(_) if !self.is_there(held.attributes().expires_at_ms, self.clock.certain_ms()) => Holder::Expired,
            Some(_) => Holder::Holds,
            // Bytes that this version does not know: nothing is removed that may be meant by them.
            None => Holder::Holds,
        })
    }

    fn remove_elements(&self, id: CollectionId, batch: &mut ecotone_engine::Batch<'_>) -> Result<(), StoreError> {
        let elements = layout::elements(id);
        let range = elements.start.as_slice()..elements.end.as_slice();
        let mut scan = self.store.scan(range.clone(), Direction::Forward, None)?;
        while let Some((key, _)) = scan.next_key()? {
            if batch.len() == ONE_BY_ONE {
                batch.clear();
                return batch.delete_range(range);
            }
            batch.delete(key)?;
        }
        Ok(())
    }
}
