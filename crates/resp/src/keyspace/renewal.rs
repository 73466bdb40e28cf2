//! Makes collections anew that are read slowly because of what was removed from them.
//!
//! What was removed from a large collection is stepped over by each read on its way, until the store has cleaned up its range. Where few
//! elements are left among much that is gone, it is far cheaper to copy them: all of them get another number (see [`super::layout`]), and
//! what has the old one is an orphan, which nobody reads any more. So reads say what they stepped over ([`Slow`]), and once that took as long as
//! the copy it is made. Collections of more than [`MAX_ENTRIES`] or [`MAX_BYTES`] are left to the store, which sees to any range in the
//! same way, only with more to do each time (`ecotone_engine`, "cleanup").
//!
//! Nobody sees it but by the time that reads take: the key, its time, the order of the elements and the cursors of scans stay what they are, and
//! who watches the key is not told.
//!
//! Invariant: it takes no more time than reads have lost before.
//!
//! Bounds: [`MAX_KNOWN`] collections are remembered. The latch of the slot is held while up to [`MAX_ENTRIES`] are copied.
//!
//! Failure: what could not be done is tried again once as much was stepped over again.
//!
//! Threads: any may say; one of [`super::upkeep`] copies.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use ecotone_engine::{Direction, Durability, Error as StoreError, WriteOptions};
use parking_lot::{Condvar, Mutex};

use super::layout::{self, CollectionId, Tag, Type};
use super::orphans::Latched;
use super::slot::Slot;
use super::{Keyspace, Waiting};
use crate::collections::Large;

/// What a read stepped over does not count below this.
const MIN_NOTED: u64 = 32;

/// A collection is looked at for the first time once reads have stepped over so much of it.
const MIN_WANTED: u64 = 8_192;

/// Collections that are remembered; of more, those are forgotten in which least was stepped over.
const MAX_KNOWN: usize = 1024;

/// Entries of the store that are copied at a time: some 20 ms.
const MAX_ENTRIES: u64 = 8_192;

/// The same in bytes of keys and values.
const MAX_BYTES: usize = 1024 * 1024;

/// To copy one entry, and to remove it where it was, takes as long as to step over so many. By estimate: some 4 us, and 0.1 to 0.2.
const ENTRIES_A_COPY: u64 = 32;

/// To wake, to take the latch and to commit takes as long as to step over so many.
const ENTRIES_A_RENEWAL: u64 = 4_096;

/// Collections whose reads step over what is gone.
#[derive(Debug, Default)]
pub(super) struct Slow {
    known: Mutex<Known>,
    changed: Condvar,
    renewed: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    collections: HashMap<CollectionId, Skipped>,
    /// Those that are to be looked at.
    due: VecDeque<CollectionId>,
    stop: bool,
}

#[derive(Debug, Clone, Copy)]
struct Skipped {
    entries: u64,
    /// So many are to be stepped over before the collection is looked at.
    wanted: u64,
    /// Whether it is among those that are to be looked at.
    is_due: bool,
}

impl Slow {
    /// A read of the collection stepped over so many entries.
    pub(super) fn note(&self, id: CollectionId, entries: u64) {
        if entries < MIN_NOTED {
            return;
        }
        let mut known = self.known.lock();
        if known.collections.len() >= MAX_KNOWN && !known.collections.contains_key(&id) {
            known.forget_least();
        }
        let Known { collections, due, .. } = &mut *known;
        let skipped = collections.entry(id).or_insert(Skipped { entries: 0, wanted: MIN_WANTED, is_due: false });
        skipped.entries = skipped.entries.saturating_add(entries);
        if !skipped.is_due && skipped.entries >= skipped.wanted && due.len() < MAX_KNOWN {
            skipped.is_due = true;
            due.push_back(id);
            self.changed.notify_one();
        }
    }

    /// The next one to look at, and what was stepped over in it; waits for one. `None` when it is to end.
    fn next(&self) -> Option<(CollectionId, u64)> {
        let mut known = self.known.lock();
        loop {
            if known.stop {
                return None;
            }
            if let Some(id) = known.due.pop_front() {
                let Some(skipped) = known.collections.get(&id) else { continue };
                return Some((id, skipped.entries));
            }
            self.changed.wait(&mut known);
        }
    }

    /// The collection is looked at again once so many more entries were stepped over.
    fn put_off(&self, id: CollectionId, more: u64) {
        if let Some(skipped) = self.known.lock().collections.get_mut(&id) {
            skipped.wanted = skipped.entries.saturating_add(more.max(1));
            skipped.is_due = false;
        }
    }

    fn forget(&self, id: CollectionId) {
        self.known.lock().collections.remove(&id);
    }

    /// Whoever waits for the next one ends.
    pub(super) fn stop(&self) {
        self.known.lock().stop = true;
        self.changed.notify_all();
    }
}

impl Known {
    fn forget_least(&mut self) {
        let least = self.collections.iter().min_by_key(|(_, skipped)| skipped.entries).map(|(id, _)| *id);
        if let Some(id) = least {
            self.collections.remove(&id);
        }
    }
}

/// What became of a collection that was to be made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renewal {
    Done,
    /// It is not there any more.
    Gone,
    /// It would take as long as to step over so many entries more than were stepped over.
    TooDear(u64),
}

impl Keyspace {
    /// How many collections were made anew since the start.
    pub fn renewed_collections(&self) -> u64 {
        self.slow.renewed.load(Ordering::Relaxed)
    }

    /// Makes collections anew as they become due, until [`Slow::stop`].
    pub(super) fn renew_slow(&self) {
        let mut has_failed = false;
        while let Some((id, skipped)) = self.slow.next() {
            match self.renew(id, skipped) {
                Ok(Renewal::Done) => {
                    self.slow.forget(id);
                    self.slow.renewed.fetch_add(1, Ordering::Relaxed);
                    let elements = layout::elements(id);
                    self.store.forget_skipped(&elements.start, &elements.end);
                    has_failed = false;
                }
                Ok(Renewal::Gone) => self.slow.forget(id),
                Ok(Renewal::TooDear(more)) => self.slow.put_off(id, more),
                Err(error) => {
                    self.slow.put_off(id, skipped);
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(%error, "a collection that is read slowly cannot be made anew; it is tried again");
                    }
                }
            }
        }
    }

    /// Makes the collection anew, of which reads have `skipped` so many entries, if that pays.
    fn renew(&self, id: CollectionId, skipped: u64) -> Result<Renewal, StoreError> {
        // Of what takes room there is none to waste then.
        if self.store.is_tight() {
            return Ok(Renewal::TooDear(skipped));
        }
        let Some(key) = self.store.get(&layout::ledger(id))?.map(|key| key.to_vec()) else { return Ok(Renewal::Gone) };
        let slot = Slot::of(&key);
        // Before anybody is held up.
        match self.renewal_of(id, slot, &key, skipped)? {
            Renewal::Done => {}
            other => return Ok(other),
        }
        let _latch = Latched::take(&self.latches, slot);
        self.renew_latched(id, slot, &key, skipped)
    }

    /// Whether the collection would be made anew.
    fn renewal_of(&self, id: CollectionId, slot: Slot, key: &[u8], skipped: u64) -> Result<Renewal, StoreError> {
        let Some(held) = self.store.get(&layout::key(slot, key))? else { return Ok(Renewal::Gone) };
        let Some(tag) = Tag::of(held.attributes()).filter(|tag| tag.is_large) else { return Ok(Renewal::Gone) };
        let large = Large::decode(&held)?.0;
        if large.id != id || !self.is_there(held.attributes().expires_at_ms, self.clock.now_ms()) {
            return Ok(Renewal::Gone);
        }
        // By member and by place.
        let entries = large.elements.saturating_mul(if tag.of == Type::SortedSet { 2 } else { 1 });
        let cost = ENTRIES_A_RENEWAL + ENTRIES_A_COPY * entries.min(MAX_ENTRIES);
        Ok(match cost.checked_sub(skipped) {
            Some(more) if more > 0 => Renewal::TooDear(more),
            // It may shrink.
            _ if entries > MAX_ENTRIES => Renewal::TooDear(cost),
            _ => Renewal::Done,
        })
    }

    fn renew_latched(&self, id: CollectionId, slot: Slot, key: &[u8], skipped: u64) -> Result<Renewal, StoreError> {
        // Again, now that nobody can change it.
        if self.store.get(&layout::ledger(id))?.is_none_or(|under| *under != *key) {
            return Ok(Renewal::Gone);
        }
        match self.renewal_of(id, slot, key, skipped)? {
            Renewal::Done => {}
            other => return Ok(other),
        }
        let stored = layout::key(slot, key);
        let Some(held) = self.store.get(&stored)? else { return Ok(Renewal::Gone) };
        // In the slot that its key is in now.
        let new = CollectionId { slot, number: self.numbers.next(&self.store, Waiting::Allowed)? };
        let mut batch = self.store.batch();
        let elements = layout::elements(id);
        let mut scan = self.store.scan(elements.start.as_slice()..elements.end.as_slice(), Direction::Forward, None)?;
        while let Some(entry) = scan.next_entry()? {
            if batch.len() as u64 >= MAX_ENTRIES || batch.size_bytes() + entry.value.len() > MAX_BYTES {
                return Ok(Renewal::TooDear(ENTRIES_A_COPY * MAX_ENTRIES));
            }
            batch.put(&layout::element(new, &[layout::sub_key(entry.key)]), entry.value)?;
        }
        drop(scan);
        let mut payload = new.encode().to_vec();
        payload.extend_from_slice(&held[payload.len()..]);
        batch.put_with(&stored, &payload, held.attributes())?;
        drop(held);
        batch.put(&layout::ledger(new), key)?;
        // Nobody is told, so nobody of this slot need wait for a sync: what a loss of power takes back is the collection as it was.
        self.store.write(&batch, WriteOptions::durable(Durability::None))?;
        self.orphans.add(vec![id]);
        Ok(Renewal::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> CollectionId {
        CollectionId { slot: Slot::of(b"k"), number }
    }

    #[test]
    fn a_collection_is_due_once_so_much_was_stepped_over() {
        let slow = Slow::default();
        slow.note(id(1), MIN_NOTED - 1);
        slow.note(id(2), MIN_WANTED - 1);
        assert!(slow.known.lock().due.is_empty());
        slow.note(id(2), MIN_NOTED);
        slow.note(id(2), MIN_NOTED);
        assert_eq!(slow.next(), Some((id(2), MIN_WANTED - 1 + 2 * MIN_NOTED)));
        assert!(slow.known.lock().due.is_empty(), "once");
        slow.put_off(id(2), MIN_WANTED);
        slow.note(id(2), MIN_WANTED - 1);
        assert!(slow.known.lock().due.is_empty());
        slow.note(id(2), MIN_NOTED);
        assert_eq!(slow.next().unwrap().0, id(2));
        slow.stop();
        assert_eq!(slow.next(), None);
    }

    #[test]
    fn of_too_many_the_one_with_least_is_forgotten() {
        let slow = Slow::default();
        for number in 0..MAX_KNOWN as u64 {
            slow.note(id(number), MIN_NOTED + if number == 7 { 0 } else { 1 });
        }
        slow.note(id(5000), MIN_NOTED);
        let known = slow.known.lock();
        assert_eq!(known.collections.len(), MAX_KNOWN);
        assert!(known.collections.contains_key(&id(5000)) && !known.collections.contains_key(&id(7)));
    }
}
