//! Reclaims large collections that have lost their key: deleted, overwritten or expired.
//!
//! Deleting a large collection removes its key and nothing else; its elements are removed later,
//! here. The ledger says under which key each collection is; one whose key holds something else, or
//! nothing, is reclaimable. No id is allocated twice, so it never gets a key again: only a rename
//! could give it one, and that changes key and ledger at once, under both latches.
//!
//! An expired key holds nothing: it is removed with its elements, and need not wait for a
//! compaction that an idle store does not make.
//!
//! Most collections are [queued](crate::reclaimable) when they lose their key, or when a command
//! meets an expired one. The others (overwritten without a lookup, expired and never asked for, or
//! of a process that was killed) are found by [`Keyspace::find_reclaimable`], which reads the whole
//! ledger of each shard.
//!
//! None is removed as soon as it is queued: a command may have found a collection by its key, and
//! not read its elements yet. The caller leaves time between.
//!
//! Threads: one reclaims.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use ecotone_engine::{Batch, Direction, Durability, Error as StoreError, Store, WriteOptions};

use crate::keyspace::Keyspace;
use crate::latches::LatchGuard;
use crate::layout::{self, CollectionId, Tag};
use crate::shards::Shard;
use crate::slot::Slot;

/// Collections of at most so many elements are removed one by one: reads pay for each range that
/// was removed until it is compacted.
const MAX_POINT_DELETES: usize = 512;

/// Entries of the ledger that are read at once.
const LEDGER_BATCH: usize = 1024;

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
    /// How many collections are queued to be reclaimed.
    pub fn reclaimable_collections(&self) -> usize {
        self.reclaimable.len()
    }

    /// How many were removed since the start, or since that was to be forgotten.
    pub fn reclaimed_collections(&self) -> u64 {
        self.reclaimed_collections.load(Ordering::Relaxed)
    }

    /// Counts those that are removed from 0 again.
    pub fn reset_reclaimed_collections(&self) {
        self.reclaimed_collections.store(0, Ordering::Relaxed);
    }

    /// Removes the elements of queued collections, at most `most` of them, in the order of the
    /// queue. May wait for the device. `goes_on` is asked before each; `false` ends it.
    ///
    /// # Errors
    ///
    /// Those of reads and writes; the others are left for the next time.
    pub fn reclaim_collections(&self, most: usize, mut goes_on: impl FnMut() -> bool) -> Result<Reclaimed, StoreError> {
        let mut reclaimed = Reclaimed::default();
        for _ in 0..most {
            if !goes_on() {
                break;
            }
            let Some(id) = self.reclaimable.take() else { break };
            let outcome = self.reclaim(id).inspect_err(|_| self.reclaimable.add(vec![id]));
            reclaimed.collections += u64::from(outcome?);
        }
        Ok(reclaimed)
    }

    /// Reads the ledger from its beginning and queues the reclaimable collections. Tells whether it
    /// came to the end: not where no more are remembered, or `goes_on`, which is asked before each
    /// entry, says `false`.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn find_reclaimable(&self, mut goes_on: impl FnMut() -> bool) -> Result<bool, StoreError> {
        let mut is_whole = true;
        for shard in self.held().iter() {
            is_whole &= self.find_reclaimable_in(shard, &mut || goes_on() && shard.is_held())?;
        }
        Ok(is_whole)
    }

    fn find_reclaimable_in(&self, shard: &Shard, goes_on: &mut impl FnMut() -> bool) -> Result<bool, StoreError> {
        let mut from = layout::whole_ledger().start;
        let end = layout::whole_ledger().end;
        'ledger: while goes_on() {
            let mut ids = Vec::new();
            {
                let range = (Bound::Excluded(from.as_slice()), Bound::Excluded(end.as_slice()));
                let mut ledger = shard.store().scan(range, Direction::Forward, None)?;
                while ids.len() < LEDGER_BATCH
                    && let Some((key, _)) = ledger.next_key()?
                {
                    ids.extend(layout::ledger_id(key));
                }
            }
            let Some(last) = ids.last() else { return Ok(true) };
            from = layout::ledger(*last);
            for id in ids {
                if self.reclaimable.is_full() || !goes_on() {
                    break 'ledger;
                }
                if self.reclaimable_key(shard, id)?.is_some() {
                    self.reclaimable.add(vec![id]);
                }
            }
        }
        Ok(false)
    }

    /// The key under which the collection is reclaimable, and its slot. Seen without a latch, which
    /// holds up nobody: most of the ledger is in order.
    fn reclaimable_key(&self, shard: &Shard, id: CollectionId) -> Result<Option<(Slot, Vec<u8>)>, StoreError> {
        let Some(key) = shard.store().get(&layout::ledger(id))?.map(|key| key.to_vec()) else { return Ok(None) };
        let slot = Slot::of(&key);
        Ok((self.holder(shard, id, slot, &key)? != Holder::Holds).then_some((slot, key)))
    }

    /// Removes what is left of the collection, if it is reclaimable.
    fn reclaim(&self, id: CollectionId) -> Result<bool, StoreError> {
        // Of a shard that is not here any more nothing is removed.
        let held = self.shards.now();
        let Some(shard) = held.of(id.slot) else { return Ok(false) };
        let Some((slot, key)) = self.reclaimable_key(shard, id)? else { return Ok(false) };
        let _latch = LatchGuard::take(&self.latches, slot);
        // Its slots may have been given away before.
        if !self.shards.has(shard, slot) {
            return Ok(false);
        }
        let outcome = self.reclaim_latched(shard, id, slot, &key);
        if matches!(outcome, Ok(true)) {
            self.reclaimed_collections.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    fn reclaim_latched(&self, shard: &Shard, id: CollectionId, slot: Slot, key: &[u8]) -> Result<bool, StoreError> {
        let store = shard.store();
        // Again, now that nobody can rename it, or give it more time.
        let in_ledger = store.get(&layout::ledger(id))?;
        if in_ledger.is_none_or(|under| *under != *key) {
            return Ok(false);
        }
        let holder = self.holder(shard, id, slot, key)?;
        if holder == Holder::Holds {
            return Ok(false);
        }
        let mut batch = Batch::new();
        remove_elements(store, id, &mut batch)?;
        if holder == Holder::Expired {
            batch.delete(&layout::key(slot, key))?;
        }
        batch.delete(&layout::ledger(id))?;
        // Nobody is told, so nobody of this slot need wait for a sync: what a loss of power brings
        // back is reclaimable again.
        store.write(&batch, WriteOptions::durable(Durability::None))?;
        self.ranks.forget(id);
        let elements = layout::elements(id);
        store.forget_skipped(&elements.start, &elements.end);
        Ok(true)
    }

    fn holder(&self, shard: &Shard, id: CollectionId, slot: Slot, key: &[u8]) -> Result<Holder, StoreError> {
        let held = shard.store().get(&layout::key(slot, key))?;
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
}

fn remove_elements(store: &Store, id: CollectionId, batch: &mut Batch) -> Result<(), StoreError> {
    let elements = layout::elements(id);
    let range = elements.start.as_slice()..elements.end.as_slice();
    let mut scan = store.scan(range.clone(), Direction::Forward, None)?;
    while let Some((key, _)) = scan.next_key()? {
        if batch.len() == MAX_POINT_DELETES {
            batch.clear();
            return batch.delete_range(range);
        }
        batch.delete(key)?;
    }
    Ok(())
}
