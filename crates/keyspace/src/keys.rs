//! The keys, as one command sees them: what is in the store, under what its group has written.
//!
//! Nothing here waits unless the command may. Reads that do not find what they need in memory fail
//! with [`Failure::WouldBlock`].
//!
//! Threads: of one command, on one thread.

use std::collections::VecDeque;
use std::collections::btree_map::Entry as PendingEntry;
use std::ops::{ControlFlow, Deref, Range};
use std::sync::Arc;

use ecotone_engine::{Attributes, Description, MAX_BATCH_BYTES, Value};

use crate::cancellation::CancellationCheck;
use crate::error::{Blocking, Failure, Outcome, texts};
use crate::keyspace::{Keyspace, KeyspaceSnapshot};
use crate::layout::{self, CollectionId, StoredKey, Tag, Type};
use crate::memory::{MAX_NONBLOCKING_BYTES, MemoryReservation};
use crate::pending::{GroupState, PendingWrite, UndoStep};
use crate::prefetch::{MAX_PREFETCH_KEYS, Prefetched};
use crate::ranks::RankChange;
use crate::shards::{Shard, ShardTable};
use crate::slot::Slot;
use crate::value_arena::{DetachedValue, PendingValue, ValueArena};

/// The longest key that a client may use, in bytes: what the store takes, without what stands
/// before it there.
pub const MAX_KEY_BYTES: usize = ecotone_engine::MAX_KEY_BYTES - 64;

/// What a write takes besides its bytes, at most: places in the group, in what undoes it, and in
/// the batch.
const WRITE_BYTES: usize = 640;

/// What a batch needs for a write besides its bytes, at most: lengths and a header.
const BATCH_ENTRY_BYTES: usize = 64;

/// The keys, as one command sees them at one time: what is in the store, under what its group has
/// written.
pub struct Keys<'c> {
    pub(super) keyspace: &'c Keyspace,
    /// The newest ones when the command began, under the latches that it has.
    pub(super) shards: &'c ShardTable,
    pub(super) state: &'c mut GroupState,
    pub(super) blocking: Blocking,
    pub(super) now_ms: u64,
    stored_key: StoredKey,
    prefetched: Option<Prefetched<'c>>,
    /// What is read instead of the stores: they as they were, each at one moment.
    pub(super) snapshot: Option<&'c KeyspaceSnapshot<'c>>,
    pub(super) stats: ReadStats,
    /// Whether keys that are looked up are among those that were asked for.
    counts_lookups: bool,
    /// A write that was not done.
    refusal: Option<Failure>,
}

impl Drop for Keys<'_> {
    fn drop(&mut self) {
        self.state.stored_key = std::mem::take(&mut self.stored_key);
    }
}

/// What a command has looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadStats {
    /// Keys that were asked for and there.
    pub hits: u32,
    /// Keys that were asked for and not there.
    pub misses: u32,
    /// Whether any of it, or its absence, is not committed yet.
    pub is_uncommitted: bool,
    /// Entries of the store's that were visited one after the other.
    pub visited: u64,
}

/// What a key holds: its expiry, its type, and its bytes.
#[derive(Debug)]
pub struct Entry<'c> {
    /// Type and encoding.
    pub tag: Tag,
    /// When it expires, in ms since 1970 UTC.
    pub expires_at_ms: Option<u64>,
    value: Found<'c>,
}

#[derive(Debug)]
enum Found<'c> {
    Stored(Value<'c>),
    Pending(DetachedValue),
}

impl Deref for Entry<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.value {
            Found::Stored(value) => value,
            Found::Pending(value) => value,
        }
    }
}

impl<'c> Keys<'c> {
    /// Those of `keyspace`, in these `shards`, under what `state` has, at `now_ms`.
    pub(super) fn of(
        keyspace: &'c Keyspace,
        shards: &'c ShardTable,
        state: &'c mut GroupState,
        now_ms: u64,
        blocking: Blocking,
        prefetched: Option<Prefetched<'c>>,
        snapshot: Option<&'c KeyspaceSnapshot<'c>>,
    ) -> Self {
        let stored_key = std::mem::take(&mut state.stored_key);
        let (stats, counts_lookups, refusal) = (ReadStats::default(), false, None);
        Self {
            keyspace,
            shards,
            state,
            blocking,
            now_ms,
            stored_key,
            prefetched,
            snapshot,
            stats,
            counts_lookups,
            refusal,
        }
    }

    /// Whether keys that are looked up from now on count as asked for (`keyspace_hits`,
    /// `keyspace_misses`): with a command that only reads all do, with one that writes those whose
    /// value it reads for the client or for another key, and not those that it looks at to change
    /// them.
    pub fn count_lookups(&mut self, counts: bool) {
        self.counts_lookups = counts;
    }

    /// A key that was looked up, and is there, counts as asked for after all.
    pub fn count_as_asked_for(&mut self) {
        self.stats.hits += 1;
    }

    fn note(&mut self, is_there: bool) {
        self.stats.hits += u32::from(self.counts_lookups && is_there);
        self.stats.misses += u32::from(self.counts_lookups && !is_there);
    }

    /// The time of this command, in ms since 1970 UTC.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Whether what looks at many keys may be done here: else it fails with
    /// [`Failure::WouldBlock`].
    pub fn may_take_long(&self) -> bool {
        self.blocking == Blocking::Allowed
    }

    /// Nobody else changes `key` until the command has ended, or it reads what was there at one
    /// moment: for what reads a large collection more than once.
    ///
    /// # Errors
    ///
    /// [`Failure::NeedsLatch`].
    pub fn hold_still(&self, key: &[u8]) -> Outcome {
        let is_still = self.snapshot.is_some() || self.state.held.has(Slot::of(key));
        if is_still { Ok(()) } else { Err(Failure::NeedsLatch) }
    }

    /// The slot's latch is held, and what is read is what is there now, not what was there at some
    /// moment before: for what is noted for others of a collection as it is read.
    ///
    /// # Errors
    ///
    /// [`Failure::NeedsLatch`].
    pub fn hold_latch(&self, key: &[u8]) -> Outcome {
        let is_latched = self.snapshot.is_none() && self.state.held.has(Slot::of(key));
        if is_latched { Ok(()) } else { Err(Failure::NeedsLatch) }
    }

    /// Whether what is read may be of an earlier moment.
    pub(super) const fn reads_earlier(&self) -> bool {
        self.snapshot.is_some()
    }

    /// For work beside what is read and written here that may take long as well.
    pub fn cancellation_check(&self) -> CancellationCheck {
        CancellationCheck::of(self.state.cancellation.as_ref())
    }

    /// Before each lookup and write, and behind each entry of a visit.
    #[inline]
    fn step(&self) -> Outcome {
        self.state.cancellation.as_ref().map_or(Ok(()), |cancellation| cancellation.step(1))
    }

    /// What was looked at so far.
    pub fn read_stats(&self) -> ReadStats {
        self.stats
    }

    /// Memory for what the command collects or builds. What it writes is counted by itself.
    pub fn reserve_memory(&self) -> MemoryReservation<'c> {
        MemoryReservation::new(&self.keyspace.memory, self.may_take_long())
    }

    /// Why something was not written, if so. Nothing of the command may stay.
    pub fn refusal(&mut self) -> Option<Failure> {
        self.refusal.take()
    }

    /// The keyspace.
    pub fn keyspace(&self) -> &'c Keyspace {
        self.keyspace
    }

    /// What `key` holds, unless its time is over.
    pub fn entry(&mut self, key: &[u8]) -> Outcome<Option<Entry<'c>>> {
        if !can_be_there(key) {
            self.note(false);
            return Ok(None);
        }
        layout::key_into(Slot::of(key), key, &mut self.stored_key);
        let entry = match self.read()? {
            Some(entry) if !self.keyspace.is_there(entry.expires_at_ms, self.now_ms) => {
                self.tell_expired(&entry);
                None
            }
            entry => entry,
        };
        self.note(entry.is_some());
        Ok(entry)
    }

    /// The elements under a key whose time is over go soon, also where the key is overwritten now.
    fn tell_expired(&self, entry: &Entry<'_>) {
        // One that cannot be told is found in the ledger later.
        if let Ok(Some(id)) = entry.collection() {
            self.keyspace.reclaimable.add(vec![id]);
        }
    }

    /// Shows `visit` what each of `keys` holds, in their order, until it breaks. They are looked up
    /// together.
    pub fn visit_entries(
        &mut self,
        keys: &[&[u8]],
        mut visit: impl FnMut(Option<Entry<'c>>) -> ControlFlow<()>,
    ) -> Outcome {
        let mut looked_up = VecDeque::new();
        for (index, key) in keys.iter().enumerate() {
            if looked_up.is_empty() && keys.len() > 1 && can_be_there(key) {
                let together = keys[index..].iter().copied().take_while(|key| can_be_there(key));
                for key in together.clone().take(MAX_PREFETCH_KEYS) {
                    self.shards.of(Slot::of(key)).into_iter().for_each(|shard| self.state.see(shard));
                }
                looked_up = self.shards.prefetch(together, self.blocking, self.snapshot);
            }
            self.prefetched = looked_up.pop_front();
            if visit(self.entry(key)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// What `key` holds, if that is of type `of`.
    ///
    /// # Errors
    ///
    /// [`texts::WRONG_TYPE`].
    pub fn entry_of(&mut self, key: &[u8], of: Type) -> Outcome<Option<Entry<'c>>> {
        match self.entry(key)? {
            Some(entry) if entry.tag.of != of => Err(texts::WRONG_TYPE),
            entry => Ok(entry),
        }
    }

    /// The string under `key`.
    ///
    /// # Errors
    ///
    /// [`texts::WRONG_TYPE`].
    pub fn string(&mut self, key: &[u8]) -> Outcome<Option<Entry<'c>>> {
        self.entry_of(key, Type::String)
    }

    /// Type and expiry of `key`, without its bytes.
    pub fn peek(&mut self, key: &[u8]) -> Outcome<Option<(Tag, Option<u64>)>> {
        let found = self.known(key)?;
        found.map(|Description { attributes, .. }| Ok((tag(&attributes)?, attributes.expires_at_ms))).transpose()
    }

    /// The length of the string under `key`, which is not read.
    ///
    /// # Errors
    ///
    /// [`texts::WRONG_TYPE`].
    pub fn string_bytes(&mut self, key: &[u8]) -> Outcome<Option<usize>> {
        let Some(found) = self.known(key)? else { return Ok(None) };
        if tag(&found.attributes)?.of != Type::String {
            return Err(texts::WRONG_TYPE);
        }
        Ok(Some(found.value_bytes))
    }

    /// What is known of the value of `key`, unless its time is over.
    fn known(&mut self, key: &[u8]) -> Outcome<Option<Description>> {
        let found = self.description(key)?;
        let found = found.filter(|found| self.keyspace.is_there(found.attributes.expires_at_ms, self.now_ms));
        self.note(found.is_some());
        Ok(found)
    }

    /// What is known of the value of `key`, whatever its time.
    pub(super) fn description(&mut self, key: &[u8]) -> Outcome<Option<Description>> {
        if !can_be_there(key) {
            return Ok(None);
        }
        layout::key_into(Slot::of(key), key, &mut self.stored_key);
        Ok(match self.pending() {
            Some(pending) => pending.map(|(PendingWrite { attributes, value }, arena)| Description {
                attributes: *attributes,
                value_bytes: arena.bytes(value).len(),
            }),
            None => match self.take_prefetched() {
                Some(Prefetched { found: Ok(found), .. }) => {
                    found.map(|value| Description { attributes: *value.attributes(), value_bytes: value.len() })
                }
                // That its value could not be read is no matter here.
                Some(Prefetched { found: Err(_), .. }) | None => self.stored_description()?,
            },
        })
    }

    /// Sets `key`, whose slot is held, to `payload`. What it held before is gone; a large
    /// collection's elements must be given up with [`mark_reclaimable`](Self::mark_reclaimable), or
    /// are found later.
    pub fn set(&mut self, key: &[u8], tag: Tag, expires_at_ms: Option<u64>, value: &[u8]) -> Outcome {
        self.set_value(key, tag, expires_at_ms, value.len(), |arena| arena.store(value))
    }

    /// The same with what `build` gives: `payload_bytes` that are built where they will be kept,
    /// once it is known that they may be.
    pub fn set_to(
        &mut self,
        key: &[u8],
        tag: Tag,
        expires_at_ms: Option<u64>,
        value_bytes: usize,
        build: impl FnOnce() -> Arc<[u8]>,
    ) -> Outcome {
        self.set_value(key, tag, expires_at_ms, value_bytes, |_| PendingValue::Long(build()))
    }

    fn set_value(
        &mut self,
        key: &[u8],
        tag: Tag,
        expires_at_ms: Option<u64>,
        value_bytes: usize,
        build: impl FnOnce(&mut ValueArena) -> PendingValue,
    ) -> Outcome {
        check_key(key)?;
        let attributes = Attributes { expires_at_ms, type_tag: tag.encode(), ..Attributes::NONE };
        let slot = Slot::of(key);
        let stored = layout::key(slot, key);
        self.put(stored, value_bytes, RankChange::None, |arena| {
            Some(PendingWrite { attributes, value: build(arena) })
        })?;
        self.changed(slot, key);
        Ok(())
    }

    /// Removes `key`, whose slot is held.
    pub fn remove(&mut self, key: &[u8]) -> Outcome {
        check_key(key)?;
        let slot = Slot::of(key);
        self.put(layout::key(slot, key), 0, RankChange::None, |_| None)?;
        self.changed(slot, key);
        Ok(())
    }

    /// Removes all keys. All slots are held. Who watches a key that was there finds that out by
    /// [`Watches::cleared`](crate::Watches::cleared).
    pub fn clear(&mut self) {
        self.keyspace.watches.clear();
        // One without slots has no keys, and may go.
        for shard in self.shards.with_slots().places().filter_map(|index| self.shards.at(index)) {
            self.state.written(shard);
        }
        // Kept until the end: a transaction may be taken back after it.
        self.state.undo.push(UndoStep::Cleared {
            pending: std::mem::take(&mut self.state.pending),
            reclaimable: std::mem::take(&mut self.state.reclaimable),
            removed: std::mem::replace(&mut self.state.removed, layout::everything().into()),
        });
    }

    /// A new large collection that will be under `key`. Its elements may be set from now on.
    pub fn new_collection(&mut self, key: &[u8]) -> Outcome<CollectionId> {
        let slot = Slot::of(key);
        let shard = self.shards.of(slot).ok_or(texts::NOT_SERVED)?;
        let number = shard.id_allocator.allocate(shard.store(), self.blocking)?;
        let id = CollectionId { slot, number };
        self.note_in_ledger(id, key)?;
        Ok(id)
    }

    /// The large collection `id` has another key from now on: it was renamed.
    pub fn moved(&mut self, id: CollectionId, to: &[u8]) -> Outcome {
        self.note_in_ledger(id, to)
    }

    fn note_in_ledger(&mut self, id: CollectionId, key: &[u8]) -> Outcome {
        self.put_plain(layout::ledger(id).into(), key, RankChange::None)
    }

    /// The large collection `id` has lost its key; its elements are removed later.
    pub fn mark_reclaimable(&mut self, id: CollectionId) {
        self.state.reclaimable.push(id);
    }

    /// The value of an element of a large collection. Its sub-key is all these parts, one behind
    /// the other, at most [`MAX_PARTS`](layout::MAX_PARTS), as with all that follow.
    pub fn element(&mut self, id: CollectionId, sub_key: &[&[u8]]) -> Outcome<Option<Entry<'c>>> {
        layout::element_into(id, sub_key, &mut self.stored_key);
        self.read()
    }

    /// Whether a large collection has an element. Its value is not read.
    pub fn has_element(&mut self, id: CollectionId, sub_key: &[&[u8]]) -> Outcome<bool> {
        layout::element_into(id, sub_key, &mut self.stored_key);
        if let Some(pending) = self.pending() {
            return Ok(pending.is_some());
        }
        Ok(self.stored_description()?.is_some())
    }

    /// What the store knows of the value under `stored_key`.
    fn stored_description(&mut self) -> Outcome<Option<Description>> {
        self.step()?;
        let shard = self.shard()?;
        Ok(match self.snapshot.and_then(|snapshot| snapshot.of(shard)) {
            Some(snapshot) => snapshot.describe(&self.stored_key)?,
            None => shard.store().describe(&self.stored_key, self.blocking == Blocking::Never)?,
        })
    }

    /// The elements of the large collection under `key`, whose slot is held, are changed, and what
    /// is under the key itself is not.
    pub fn changed_within(&mut self, key: &[u8]) {
        self.changed(Slot::of(key), key);
    }

    fn changed(&mut self, slot: Slot, key: &[u8]) {
        debug_assert!(self.state.held.has(slot), "a key is changed under the latch of its slot");
        self.keyspace.watches.touch(slot, key);
    }

    /// Sets an element of a large collection whose key's slot is held.
    pub fn set_element(&mut self, id: CollectionId, sub_key: &[&[u8]], value: &[u8]) -> Outcome {
        self.put_element(id, sub_key, value, RankChange::None)
    }

    pub(super) fn put_element(
        &mut self,
        id: CollectionId,
        sub_key: &[&[u8]],
        value: &[u8],
        counted: RankChange,
    ) -> Outcome {
        check_key_bytes(sub_key.iter().map(|part| part.len()).sum())?;
        self.put_plain(layout::element(id, sub_key), value, counted)
    }

    /// Removes an element of a large collection whose key's slot is held. Whether there was memory
    /// to note that is told by [`refusal`](Self::refusal).
    pub fn remove_element(&mut self, id: CollectionId, sub_key: &[&[u8]]) {
        self.put_removal(id, sub_key, RankChange::None);
    }

    pub(super) fn put_removal(&mut self, id: CollectionId, sub_key: &[&[u8]], counted: RankChange) {
        if self.refusal.is_none() {
            self.refusal = self.put(layout::element(id, sub_key), 0, counted, |_| None).err();
        }
    }

    /// Removes the elements with sub-keys in `range` of a large collection whose key's slot is
    /// held. However many there are, that is one entry of the batch; but it stays in the way of
    /// reads until compactions have carried it out, so few are better removed one by one.
    pub fn remove_elements(&mut self, id: CollectionId, range: Range<&[u8]>) -> Outcome {
        let range = layout::element_range(id, range);
        if range.start >= range.end {
            return Ok(());
        }
        let shard = self.shards.of(id.slot).ok_or(texts::NOT_SERVED)?;
        self.take_write(range.start.len() + range.end.len(), 0)?;
        self.state.written(shard);
        // How many there are is not known.
        self.keyspace.ranks.forget(id);
        // What stays in `pending` would be written after the range is removed.
        let pending = self
            .state
            .pending
            .extract_if(StoredKey::from_slice(&range.start)..StoredKey::from_slice(&range.end), |_, _| true)
            .collect();
        self.state.removed.push(range);
        self.state.undo.push(UndoStep::Removed { pending });
        Ok(())
    }

    fn put_plain(&mut self, key: StoredKey, value: &[u8], counted: RankChange) -> Outcome {
        self.put(key, value.len(), counted, |arena| {
            Some(PendingWrite { attributes: Attributes::NONE, value: arena.store(value) })
        })
    }

    fn put(
        &mut self,
        key: StoredKey,
        value_bytes: usize,
        counted: RankChange,
        make: impl FnOnce(&mut ValueArena) -> Option<PendingWrite>,
    ) -> Outcome {
        let shard = self.shards.of_stored(&key).ok_or(texts::NOT_SERVED)?;
        self.take_write(key.len(), value_bytes)?;
        self.state.written(shard);
        self.keyspace.ranks.count(&key, counted);
        let pending = make(&mut self.state.arena);
        match self.state.pending.entry(key) {
            PendingEntry::Occupied(mut entry) => {
                let before = entry.insert(pending);
                self.state.undo.push(UndoStep::Written { key: entry.key().clone(), before: Some(before), counted });
            }
            PendingEntry::Vacant(entry) => {
                self.state.undo.push(UndoStep::Written { key: entry.key().clone(), before: None, counted });
                entry.insert(pending);
            }
        }
        Ok(())
    }

    /// Takes room for one more entry of the batch.
    #[inline]
    fn take_write(&mut self, key_bytes: usize, value_bytes: usize) -> Outcome {
        self.step()?;
        let bytes = self.state.bytes + key_bytes + value_bytes;
        let entries = self.state.pending.len() + self.state.removed.len();
        if bytes + entries * BATCH_ENTRY_BYTES > MAX_BATCH_BYTES {
            return Err(Failure::with(format!(
                "ERR the command writes more at once than the store takes: {MAX_BATCH_BYTES} bytes; do it in parts"
            )));
        }
        // Here and in the batch; the key also in what undoes the write.
        self.take_memory(3 * key_bytes + 2 * value_bytes + WRITE_BYTES)?;
        self.state.bytes = bytes;
        Ok(())
    }

    /// Takes memory for what is written, which is given back with the group's commit.
    #[inline]
    fn take_memory(&mut self, bytes: usize) -> Outcome {
        let taken = &mut self.state.taken;
        taken.bytes = taken.bytes.saturating_add(bytes);
        if taken.bytes > MAX_NONBLOCKING_BYTES && self.blocking != Blocking::Allowed {
            return Err(Failure::WouldBlock);
        }
        let to_charge = bytes.saturating_sub(taken.free_bytes);
        taken.free_bytes = taken.free_bytes.saturating_sub(bytes);
        if to_charge > 0 && !self.keyspace.memory.take(to_charge) {
            taken.is_refused = true;
            return Err(texts::SHORT_OF_MEMORY);
        }
        taken.uncharged_bytes += bytes - to_charge;
        taken.charged_bytes += to_charge;
        Ok(())
    }

    /// What the group has written under `stored_key`; `None`: nothing, and what is in the store
    /// counts.
    fn pending(&mut self) -> Option<Option<(&PendingWrite, &ValueArena)>> {
        if self.state.is_empty() {
            return None;
        }
        let is_written = self.state.pending.contains_key(self.stored_key.as_slice());
        if !is_written && !self.state.removes(&self.stored_key) {
            return None;
        }
        self.stats.is_uncommitted = true;
        if let Some(shard) = self.shards.of_stored(&self.stored_key) {
            self.state.touched.insert(shard.index());
            self.state.see(shard);
        }
        let state = &*self.state;
        let pending = state.pending.get(self.stored_key.as_slice()).and_then(Option::as_ref);
        Some(pending.map(|pending| (pending, &state.arena)))
    }

    /// What the store has under `stored_key`.
    #[inline]
    fn stored(&mut self) -> Outcome<Option<Value<'c>>> {
        self.step()?;
        if let Some(prefetched) = self.take_prefetched() {
            let found = prefetched.found?;
            // Where its elements are is to be known as late as can be: they may go meanwhile.
            let is_large = |value: &Value<'_>| Tag::of(value.attributes()).is_none_or(|tag| tag.is_large);
            if !found.as_ref().is_some_and(is_large) {
                return Ok(found);
            }
        }
        let shard = self.shard()?;
        let snapshot = self.snapshot.and_then(|snapshot| snapshot.of(shard));
        Ok(match (snapshot, self.blocking) {
            (Some(snapshot), _) => snapshot.get(&self.stored_key)?,
            (None, Blocking::Never) => shard.store().try_get(&self.stored_key)?,
            (None, Blocking::Briefly | Blocking::Allowed) => shard.store().get(&self.stored_key)?,
        })
    }

    /// The shard of what stands under `stored_key`, whose store is to be read now.
    #[inline]
    fn shard(&mut self) -> Outcome<&'c Shard> {
        self.state.has_read = true;
        let shard = self.shards.of_stored(&self.stored_key).ok_or(texts::NOT_SERVED)?;
        self.state.see(shard);
        Ok(shard)
    }

    /// What a prefetch has read under `stored_key`.
    #[inline]
    fn take_prefetched(&mut self) -> Option<Prefetched<'c>> {
        let prefetched = self.prefetched.take_if(|prefetched| prefetched.stored_key == self.stored_key)?;
        if let Some(shard) = self.shards.of_stored(&self.stored_key) {
            self.state.see(shard);
        }
        Some(prefetched)
    }

    /// What stands under `stored_key`, whatever its time.
    fn read(&mut self) -> Outcome<Option<Entry<'c>>> {
        let (attributes, value) = match self.pending() {
            Some(None) => return Ok(None),
            Some(Some((PendingWrite { attributes, value }, arena))) => {
                (*attributes, Found::Pending(arena.detached(value)))
            }
            None => match self.stored()? {
                Some(value) => (*value.attributes(), Found::Stored(value)),
                None => return Ok(None),
            },
        };
        let tag = tag(&attributes)?;
        Ok(Some(Entry { tag, expires_at_ms: attributes.expires_at_ms, value }))
    }
}

fn tag(attributes: &Attributes) -> Outcome<Tag> {
    Tag::of(attributes).ok_or_else(|| {
        Failure::with("ERR the key is of a type that this version does not know: it was written by a later one")
    })
}

/// Whether the store may have such a key: it takes no longer one.
fn can_be_there(key: &[u8]) -> bool {
    key.len() <= MAX_KEY_BYTES
}

fn check_key(key: &[u8]) -> Outcome {
    check_key_bytes(key.len())
}

fn check_key_bytes(bytes: usize) -> Outcome {
    if bytes > MAX_KEY_BYTES {
        return Err(Failure::with(format!("ERR the key has {bytes} bytes, the most is {MAX_KEY_BYTES}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_takes_no_more_than_is_counted_for_it() {
        // Of a table whose nodes are half full, and of a list that has just doubled.
        let in_group = 2 * size_of::<(StoredKey, Option<PendingWrite>)>() + 2 * size_of::<UndoStep>();
        assert!(in_group + BATCH_ENTRY_BYTES <= WRITE_BYTES, "{in_group}");
    }
}
