//! Rewrites large collections whose reads are slow because of removed entries.
//!
//! Each read of a large collection steps over removed entries until the store has cleaned up its
//! range. Where few elements are left among many removed ones, copying them is far cheaper: all
//! elements get a new collection id (see [`crate::layout`]), and those of the old id become
//! reclaimable. So reads report what they skipped ([`SlowReads`](crate::slow_reads::SlowReads)),
//! and once that took as long as a copy the copy is made. Collections of more than [`MAX_ENTRIES`]
//! or [`MAX_BYTES`] are left to the store, which cleans up any range in the same way, only with
//! more work each time (`ecotone_engine`, "cleanup").
//!
//! Clients see nothing of it but the time that reads take: the key, its expiry, the order of
//! elements and the cursors of scans stay what they are, and watchers of the key are not notified.
//!
//! Invariant: rewriting takes no more time than reads have lost before.
//!
//! Bounds: the latch of the slot is held while up to [`MAX_ENTRIES`] are copied.
//!
//! Failure: a rewrite that failed is tried again once as much was skipped again.
//!
//! Threads: any may report; one of [`crate::maintenance`] rewrites.

use std::sync::atomic::Ordering;

use ecotone_engine::{Batch, Direction, Durability, Error as StoreError, WriteOptions};

use crate::collections::Large;
use crate::error::Blocking;
use crate::keyspace::Keyspace;
use crate::latches::LatchGuard;
use crate::layout::{self, CollectionId, Tag, Type};
use crate::shards::Shard;
use crate::slot::Slot;

/// Entries of the store that are copied at a time: some 20 ms.
const MAX_ENTRIES: u64 = 8_192;

/// The same in bytes of keys and values.
const MAX_BYTES: usize = 1024 * 1024;

/// To copy one entry, and to remove it where it was, takes as long as to step over so many. By
/// estimate: some 4 us, and 0.1 to 0.2.
const COST_PER_ENTRY: u64 = 32;

/// To wake, to take the latch and to commit takes as long as to step over so many.
const COST_PER_REWRITE: u64 = 4_096;

/// What became of a collection that was to be made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RewriteOutcome {
    Done,
    /// It is not there any more.
    Gone,
    /// It would take as long as to step over so many entries more than were stepped over.
    NotProfitable(u64),
}

impl Keyspace {
    /// How many collections were made anew since the start.
    pub fn rewritten_collections(&self) -> u64 {
        self.slow_reads.rewritten.load(Ordering::Relaxed)
    }

    /// Makes collections anew as they become due, until
    /// [`SlowReads::stop`](crate::slow_reads::SlowReads::stop).
    pub(super) fn rewrite_slow_collections(&self) {
        let mut has_failed = false;
        while let Some((id, skipped)) = self.slow_reads.next() {
            match self.rewrite(id, skipped) {
                Ok(RewriteOutcome::Done) => {
                    self.slow_reads.forget(id);
                    self.slow_reads.rewritten.fetch_add(1, Ordering::Relaxed);
                    let elements = layout::elements(id);
                    self.shards.look(|newest| {
                        if let Some(shard) = newest.of(id.slot) {
                            shard.store().forget_skipped(&elements.start, &elements.end);
                        }
                    });
                    has_failed = false;
                }
                Ok(RewriteOutcome::Gone) => self.slow_reads.forget(id),
                Ok(RewriteOutcome::NotProfitable(more)) => self.slow_reads.defer(id, more),
                Err(error) => {
                    self.slow_reads.defer(id, skipped);
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(%error, "a collection that is read slowly cannot be made anew; it is tried again");
                    }
                }
            }
        }
    }

    /// Makes the collection anew, of which reads have `skipped` so many entries, if that pays.
    fn rewrite(&self, id: CollectionId, skipped: u64) -> Result<RewriteOutcome, StoreError> {
        let held = self.shards.now();
        let Some(shard) = held.of(id.slot) else { return Ok(RewriteOutcome::Gone) };
        // Of what takes room there is none to waste then.
        if shard.store().is_space_low() {
            return Ok(RewriteOutcome::NotProfitable(skipped));
        }
        let Some(key) = shard.store().get(&layout::ledger(id))?.map(|key| key.to_vec()) else {
            return Ok(RewriteOutcome::Gone);
        };
        let slot = Slot::of(&key);
        // Before anybody is held up.
        match self.assess(shard, id, slot, &key, skipped)? {
            RewriteOutcome::Done => {}
            other => return Ok(other),
        }
        let _latch = LatchGuard::take(&self.latches, slot);
        // Its slots may have been given away before.
        if !self.shards.has(shard, slot) {
            return Ok(RewriteOutcome::Gone);
        }
        self.rewrite_latched(shard, id, slot, &key, skipped)
    }

    /// Whether the collection would be made anew.
    fn assess(
        &self,
        shard: &Shard,
        id: CollectionId,
        slot: Slot,
        key: &[u8],
        skipped: u64,
    ) -> Result<RewriteOutcome, StoreError> {
        let Some(held) = shard.store().get(&layout::key(slot, key))? else { return Ok(RewriteOutcome::Gone) };
        let Some(tag) = Tag::of(held.attributes()).filter(|tag| tag.is_large) else { return Ok(RewriteOutcome::Gone) };
        let large = Large::decode(&held)?.0;
        if large.id != id || !self.is_there(held.attributes().expires_at_ms, self.clock.now_ms()) {
            return Ok(RewriteOutcome::Gone);
        }
        // By member and by place.
        let entries = large.elements.saturating_mul(if tag.of == Type::SortedSet { 2 } else { 1 });
        let cost = COST_PER_REWRITE + COST_PER_ENTRY * entries.min(MAX_ENTRIES);
        Ok(match cost.checked_sub(skipped) {
            Some(more) if more > 0 => RewriteOutcome::NotProfitable(more),
            // It may shrink.
            _ if entries > MAX_ENTRIES => RewriteOutcome::NotProfitable(cost),
            _ => RewriteOutcome::Done,
        })
    }

    fn rewrite_latched(
        &self,
        shard: &Shard,
        id: CollectionId,
        slot: Slot,
        key: &[u8],
        skipped: u64,
    ) -> Result<RewriteOutcome, StoreError> {
        let store = shard.store();
        // Again, now that nobody can change it.
        if store.get(&layout::ledger(id))?.is_none_or(|under| *under != *key) {
            return Ok(RewriteOutcome::Gone);
        }
        match self.assess(shard, id, slot, key, skipped)? {
            RewriteOutcome::Done => {}
            other => return Ok(other),
        }
        let stored = layout::key(slot, key);
        let Some(held) = store.get(&stored)? else { return Ok(RewriteOutcome::Gone) };
        // In the slot that its key is in now.
        let new = CollectionId { slot, number: shard.id_allocator.allocate(store, Blocking::Allowed)? };
        let mut batch = Batch::new();
        let elements = layout::elements(id);
        let mut scan = store.scan(elements.start.as_slice()..elements.end.as_slice(), Direction::Forward, None)?;
        while let Some(entry) = scan.next_entry()? {
            if batch.len() as u64 >= MAX_ENTRIES || batch.size_bytes() + entry.value.len() > MAX_BYTES {
                return Ok(RewriteOutcome::NotProfitable(COST_PER_ENTRY * MAX_ENTRIES));
            }
            batch.put(&layout::element(new, &[layout::sub_key(entry.key)]), entry.value)?;
        }
        drop(scan);
        let mut payload = new.encode().to_vec();
        payload.extend_from_slice(&held[payload.len()..]);
        batch.put_with(&stored, &payload, held.attributes())?;
        drop(held);
        batch.put(&layout::ledger(new), key)?;
        // Nobody is told, so nobody of this slot need wait for a sync: what a loss of power takes
        // back is the collection as it was.
        store.write(&batch, WriteOptions::durable(Durability::None))?;
        self.reclaimable.add(vec![id]);
        Ok(RewriteOutcome::Done)
    }
}
