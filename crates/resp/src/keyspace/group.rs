//! Writes that are committed together, and can be read before.
//!
//! A thread that serves clients collects what they write in one group and commits it once for all of them: one record of the log instead
//! of one for each command. A command sees what the commands before it in its group have done, as if it were in the store already.
//!
//! Invariants:
//!
//! - The latch of each key's slot is held from before the first read that a write rests on until the group is committed or dropped.
//! - A command that fails leaves nothing in the group: [`Group::undo_to`].
//! - Nothing that a group has not committed may be told to a client.
//!
//! Failure: a commit that fails has written nothing; the group is empty afterwards, and its latches are free.
//!
//! Threads: a group belongs to one thread at a time and may be handed on.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::ops::{ControlFlow, Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_engine::{Attributes, Direction, Durability, Error as StoreError, Store, Value, WriteOptions};

use super::Keyspace;
use super::layout::{self, CollectionId, Tag, Type};
use super::slot::Slot;
use crate::error::{Failure, Outcome, texts};

/// The longest key that a client may use, in bytes: what the store takes, without what stands before it there.
pub const MAX_KEY_BYTES: usize = ecotone_engine::MAX_KEY_BYTES - 64;

/// Entries that are visited on behalf of one client while others wait for the thread.
const MOST_VISITED_AT_ONCE: usize = 1000;

/// Whether the thread may wait for the device or for another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It serves other clients as well: what cannot be had at once is [`Failure::MustWait`].
    Never,
    /// It serves one client only.
    Allowed,
}

/// What one thread has written and not committed.
#[derive(Debug)]
pub struct Group {
    keyspace: Arc<Keyspace>,
    state: State,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Slot>,
    /// By the store's keys; `None` is removed.
    pending: BTreeMap<Vec<u8>, Option<Pending>>,
    /// What stood in `pending` before the command that is being carried out, last first.
    undo: Vec<(Vec<u8>, Option<Option<Pending>>)>,
    /// All that was in the store before is to be removed.
    cleared: bool,
    bytes: usize,
    /// Large collections that have lost their key, if this is committed.
    orphans: Vec<CollectionId>,
    /// Memory for a key of the store's.
    stored_key: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Pending {
    attributes: Attributes,
    payload: Arc<[u8]>,
}

/// See [`Group::mark`].
#[derive(Debug, Clone, Copy)]
pub struct Mark(usize);

/// What a commit leaves to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Whether the writes are to be synced before a client is told.
    pub needs_sync: bool,
}

impl Group {
    /// An empty one.
    pub fn new(keyspace: Arc<Keyspace>) -> Self {
        Self { keyspace, state: State::default() }
    }

    /// The keyspace that it is for.
    pub fn keyspace(&self) -> &Arc<Keyspace> {
        &self.keyspace
    }

    /// Takes the latches of `slots`, ascending, each once, besides those it has. `false`: somebody else has one, and none was taken
    /// here. Only who may wait and holds none waits: else two could wait for each other.
    pub fn hold(&mut self, slots: &[Slot], waiting: Waiting) -> bool {
        let before = self.state.held.len();
        let waits = waiting == Waiting::Allowed && before == 0;
        for slot in slots {
            if before > 0 && self.state.held[..before].contains(slot) {
                continue;
            }
            if waits {
                self.keyspace.latches.take(*slot);
            } else if !self.keyspace.latches.try_take(*slot) {
                self.release_from(before);
                return false;
            }
            self.state.held.push(*slot);
        }
        true
    }

    /// Whether it has any latch.
    pub fn holds_any(&self) -> bool {
        !self.state.held.is_empty()
    }

    fn release_from(&mut self, first: usize) {
        for slot in self.state.held.drain(first..) {
            self.keyspace.latches.release(slot);
        }
    }

    /// For one command: the keys as it sees them.
    pub fn keys(&mut self, waiting: Waiting) -> Keys<'_> {
        let now_ms = self.keyspace.clock.now_ms();
        let stored_key = std::mem::take(&mut self.state.stored_key);
        Keys { keyspace: &self.keyspace, state: &mut self.state, waiting, now_ms, stored_key, seen: Seen::default() }
    }

    /// What was written so far stays in the group.
    #[inline]
    pub fn keep(&mut self) {
        self.state.undo.clear();
    }

    /// Where the group stands, for [`undo_to`](Self::undo_to). Valid until what stands is kept.
    pub fn mark(&self) -> Mark {
        Mark(self.state.undo.len())
    }

    /// A command failed: takes out of the group what was written since `mark`.
    pub fn undo_to(&mut self, mark: Mark) {
        while self.state.undo.len() > mark.0
            && let Some((key, before)) = self.state.undo.pop()
        {
            match before {
                Some(before) => self.state.pending.insert(key, before),
                None => self.state.pending.remove(&key),
            };
        }
    }

    /// Whether there is nothing to commit. Latches may be held all the same.
    pub fn is_empty(&self) -> bool {
        self.state.pending.is_empty() && !self.state.cleared
    }

    /// Bytes of keys and values that wait for the commit, about.
    pub fn bytes(&self) -> usize {
        self.state.bytes
    }

    /// Writes all of it, or nothing, and gives the latches back. Who never waits must see to the sync, where one is due.
    ///
    /// # Errors
    ///
    /// Those of [`Store::write`]. After [`StoreError::WouldWait`] everything is as it was: commit it where waiting is allowed. After any
    /// other the group is empty.
    pub fn commit(&mut self, waiting: Waiting) -> Result<Committed, StoreError> {
        let written = if self.is_empty() { Ok(Committed { needs_sync: false }) } else { self.write(waiting) };
        if written == Err(StoreError::WouldWait) {
            return written;
        }
        self.release_from(0);
        let orphans = std::mem::take(&mut self.state.orphans);
        if written.is_ok() {
            self.keyspace.orphans.add(orphans);
        }
        self.state.pending.clear();
        self.state.undo.clear();
        self.state.cleared = false;
        self.state.bytes = 0;
        written
    }

    fn write(&mut self, waiting: Waiting) -> Result<Committed, StoreError> {
        let store = &self.keyspace.store;
        let mut batch = store.batch();
        if self.state.cleared {
            for all in [layout::all_keys(), layout::all_elements(), layout::whole_ledger()] {
                batch.delete_range(all.start.as_slice()..all.end.as_slice())?;
            }
        }
        for (key, pending) in &self.state.pending {
            match pending {
                Some(Pending { attributes, payload }) => batch.put_with(key, payload, attributes)?,
                None if self.state.cleared => {}
                None => batch.delete(key)?,
            }
        }
        let needs_sync = waiting == Waiting::Never && self.keyspace.syncs_each_write;
        let durability = needs_sync.then_some(Durability::None);
        store.write(&batch, WriteOptions { durability, no_wait: waiting == Waiting::Never })?;
        self.keyspace.is_written.store(true, Ordering::Relaxed);
        Ok(Committed { needs_sync })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.release_from(0);
    }
}

/// The keys, as one command sees them at one time: what is in the store, under what its group has written.
pub struct Keys<'c> {
    keyspace: &'c Keyspace,
    state: &'c mut State,
    waiting: Waiting,
    now_ms: u64,
    stored_key: Vec<u8>,
    seen: Seen,
}

impl Drop for Keys<'_> {
    fn drop(&mut self) {
        self.state.stored_key = std::mem::take(&mut self.stored_key);
    }
}

/// What a command has looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Keys that were there.
    pub hits: u32,
    /// Keys that were not.
    pub misses: u32,
    /// Whether any of it, or its absence, is not committed yet.
    pub is_uncommitted: bool,
}

impl Seen {
    fn note(&mut self, is_there: bool) {
        if is_there {
            self.hits += 1;
        } else {
            self.misses += 1;
        }
    }
}

/// What a key holds: its expiry, its type, and its bytes.
#[derive(Debug)]
pub struct Entry<'c> {
    /// Type and encoding.
    pub tag: Tag,
    /// When it expires, in ms since 1970 UTC.
    pub expires_at_ms: Option<u64>,
    payload: Payload<'c>,
}

#[derive(Debug)]
enum Payload<'c> {
    Stored(Value<'c>),
    Pending(Arc<[u8]>),
}

impl Deref for Entry<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.payload {
            Payload::Stored(value) => value,
            Payload::Pending(payload) => payload,
        }
    }
}

impl<'c> Keys<'c> {
    /// The time of this command, in ms since 1970 UTC.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Whether the thread may wait. Long work that looks at many keys asks this first, and fails with [`Failure::MustWait`] else.
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// What was looked at so far.
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// Bytes of keys and values that the group has written so far, about.
    pub fn written_bytes(&self) -> usize {
        self.state.bytes
    }

    /// The keyspace.
    pub fn keyspace(&self) -> &'c Keyspace {
        self.keyspace
    }

    /// What `key` holds, unless its time is over.
    pub fn entry(&mut self, key: &[u8]) -> Outcome<Option<Entry<'c>>> {
        check_key(key)?;
        layout::key_into(Slot::of(key), key, &mut self.stored_key);
        let entry = self.read()?.filter(|entry| entry.expires_at_ms.is_none_or(|at| at > self.now_ms));
        self.seen.note(entry.is_some());
        Ok(entry)
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
        check_key(key)?;
        layout::key_into(Slot::of(key), key, &mut self.stored_key);
        let attributes = match self.pending() {
            Some(pending) => pending.map(|pending| pending.attributes),
            None => self.keyspace.store.attributes(&self.stored_key, self.waiting == Waiting::Never)?,
        };
        let found = attributes.filter(|attributes| attributes.expires_at_ms.is_none_or(|at| at > self.now_ms));
        self.seen.note(found.is_some());
        found.map(|attributes| Ok((tag(&attributes)?, attributes.expires_at_ms))).transpose()
    }

    /// Sets `key`, whose slot is held, to `payload`. What it held before is gone; a large collection's elements must be given up with
    /// [`orphan`](Self::orphan), or are found later.
    pub fn set(&mut self, key: &[u8], tag: Tag, expires_at_ms: Option<u64>, payload: &[u8]) -> Outcome {
        check_key(key)?;
        let slot = self.begin_write(key);
        let attributes = Attributes { expires_at_ms, type_tag: tag.encode(), ..Attributes::NONE };
        let stored = layout::key(slot, key);
        self.put(stored, Some(Pending { attributes, payload: payload.into() }));
        Ok(())
    }

    /// Removes `key`, whose slot is held.
    pub fn remove(&mut self, key: &[u8]) -> Outcome {
        check_key(key)?;
        let slot = self.begin_write(key);
        self.put(layout::key(slot, key), None);
        Ok(())
    }

    fn begin_write(&mut self, key: &[u8]) -> Slot {
        let slot = Slot::of(key);
        debug_assert!(self.state.held.contains(&slot), "a key is changed under the latch of its slot");
        self.keyspace.watches.touch(slot, key);
        slot
    }

    /// Removes all keys. All slots are held.
    pub fn clear(&mut self) {
        self.keyspace.watches.touch_all();
        // Nothing of it comes back: a command that clears does not fail after this.
        self.state.undo.clear();
        self.state.pending.clear();
        self.state.orphans.clear();
        self.state.cleared = true;
    }

    /// A new large collection that will be under `key`. Its elements may be set from now on.
    pub fn new_collection(&mut self, key: &[u8]) -> Outcome<CollectionId> {
        let number = self.keyspace.numbers.next(&self.keyspace.store)?;
        let id = CollectionId { slot: Slot::of(key), number };
        self.note_in_ledger(id, key);
        Ok(id)
    }

    /// The large collection `id` has another key from now on: it was renamed.
    pub fn moved(&mut self, id: CollectionId, to: &[u8]) {
        self.note_in_ledger(id, to);
    }

    fn note_in_ledger(&mut self, id: CollectionId, key: &[u8]) {
        let pending = Pending { attributes: Attributes::NONE, payload: key.into() };
        self.put(layout::ledger(id), Some(pending));
    }

    /// The large collection `id` has lost its key; its elements are removed later.
    pub fn orphan(&mut self, id: CollectionId) {
        self.state.orphans.push(id);
    }

    /// The value of an element of a large collection.
    pub fn element(&mut self, id: CollectionId, sub_key: &[u8]) -> Outcome<Option<Entry<'c>>> {
        self.stored_key = layout::element(id, sub_key);
        self.read()
    }

    /// Whether a large collection has an element. Its value is not read.
    pub fn has_element(&mut self, id: CollectionId, sub_key: &[u8]) -> Outcome<bool> {
        self.stored_key = layout::element(id, sub_key);
        if let Some(pending) = self.pending() {
            return Ok(pending.is_some());
        }
        Ok(self.keyspace.store.attributes(&self.stored_key, self.waiting == Waiting::Never)?.is_some())
    }

    /// The elements of the large collection under `key`, whose slot is held, are changed, and what is under the key itself is not.
    pub fn changed_within(&mut self, key: &[u8]) {
        self.begin_write(key);
    }

    /// Sets an element of a large collection whose key's slot is held.
    pub fn set_element(&mut self, id: CollectionId, sub_key: &[u8], value: &[u8]) -> Outcome {
        check_key(sub_key)?;
        let pending = Pending { attributes: Attributes::NONE, payload: value.into() };
        self.put(layout::element(id, sub_key), Some(pending));
        Ok(())
    }

    /// Removes an element of a large collection whose key's slot is held.
    pub fn remove_element(&mut self, id: CollectionId, sub_key: &[u8]) {
        self.put(layout::element(id, sub_key), None);
    }

    /// Shows `visit` the elements of a large collection with sub-keys in `range`, in their order or against it, until it breaks.
    pub fn visit_elements(
        &mut self,
        id: CollectionId,
        range: Range<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        self.visit(
            layout::element(id, range.start)..layout::element(id, range.end),
            direction,
            true,
            |key, _, value| visit(layout::sub_key(key), value),
        )
    }

    /// The same for all elements of the collection.
    pub fn visit_all_elements(
        &mut self,
        id: CollectionId,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        self.visit(layout::elements(id), direction, true, |key, _, value| visit(layout::sub_key(key), value))
    }

    /// The same, in their order, for those with sub-keys from `from` on.
    pub fn visit_elements_from(
        &mut self,
        id: CollectionId,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let range = layout::element(id, from)..layout::elements(id).end;
        self.visit(range, Direction::Forward, true, |key, _, value| visit(layout::sub_key(key), value))
    }

    /// Shows `visit` the keys from `place` on whose time is not over: place, key and tag.
    pub fn visit_keys(
        &mut self,
        from_place: u32,
        mut visit: impl FnMut(u32, &[u8], Tag) -> ControlFlow<()>,
    ) -> Outcome {
        let now_ms = self.now_ms;
        let range = layout::from_place(from_place)..layout::all_keys().end;
        self.visit(range, Direction::Forward, false, |stored, attributes, _| {
            match (layout::place_of(stored), Tag::of(attributes)) {
                (Some(place), Some(tag)) if attributes.expires_at_ms.is_none_or(|at| at > now_ms) => {
                    visit(place, layout::user_key(stored), tag)
                }
                _ => ControlFlow::Continue(()),
            }
        })
    }

    /// Shows `visit` what stands in `range`: key, what stands beside the value, and the value, or nothing instead of it where
    /// it does not read values.
    fn visit(
        &mut self,
        range: Range<Vec<u8>>,
        direction: Direction,
        reads_values: bool,
        mut visit: impl FnMut(&[u8], &Attributes, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        if range.start >= range.end {
            return Ok(());
        }
        self.seen.is_uncommitted |= !self.state.pending.is_empty() || self.state.cleared;
        let mut pending = Pendings::new(&self.state.pending, range.clone(), direction);
        if !self.state.cleared {
            let range = range.start.as_slice()..range.end.as_slice();
            let mut scan = match self.waiting {
                Waiting::Never => self.keyspace.store.scan_at_once(range, direction),
                Waiting::Allowed => self.keyspace.store.scan(range, direction, None)?,
            };
            let mut visited = 0;
            loop {
                let (key, attributes, value) = if reads_values {
                    let Some(entry) = scan.next_entry()? else { break };
                    (entry.key, entry.attributes, entry.value)
                } else {
                    let Some((key, attributes)) = scan.next_key()? else { break };
                    (key, attributes, &[][..])
                };
                visited += 1;
                if visited > MOST_VISITED_AT_ONCE && self.waiting == Waiting::Never {
                    return Err(Failure::MustWait);
                }
                while let Some((key, written)) = pending.next_before(key) {
                    if let Some(written) = written
                        && visit(key, &written.attributes, &written.payload).is_break()
                    {
                        return Ok(());
                    }
                }
                if !pending.hides(key) && visit(key, &attributes, value).is_break() {
                    return Ok(());
                }
            }
        }
        while let Some((key, written)) = pending.next() {
            if let Some(written) = written
                && visit(key, &written.attributes, &written.payload).is_break()
            {
                return Ok(());
            }
        }
        Ok(())
    }

    fn put(&mut self, key: Vec<u8>, pending: Option<Pending>) {
        self.state.bytes += key.len() + pending.as_ref().map_or(0, |pending| pending.payload.len());
        match self.state.pending.entry(key) {
            Place::Occupied(mut place) => {
                let before = place.insert(pending);
                self.state.undo.push((place.key().clone(), Some(before)));
            }
            Place::Vacant(place) => {
                self.state.undo.push((place.key().clone(), None));
                place.insert(pending);
            }
        }
    }

    /// What the group has written under `stored_key`; `None`: nothing, and what is in the store counts.
    fn pending(&mut self) -> Option<Option<&Pending>> {
        if self.state.pending.is_empty() && !self.state.cleared {
            return None;
        }
        let pending = self.state.pending.get(&self.stored_key).map(Option::as_ref);
        let pending = if self.state.cleared { Some(pending.flatten()) } else { pending };
        self.seen.is_uncommitted |= pending.is_some();
        pending
    }

    /// What stands under `stored_key`, whatever its time.
    fn read(&mut self) -> Outcome<Option<Entry<'c>>> {
        let (attributes, payload) = match self.pending() {
            Some(None) => return Ok(None),
            Some(Some(Pending { attributes, payload })) => (*attributes, Payload::Pending(payload.clone())),
            None => match lookup(&self.keyspace.store, &self.stored_key, self.waiting)? {
                Some(value) => (*value.attributes(), Payload::Stored(value)),
                None => return Ok(None),
            },
        };
        let tag = tag(&attributes)?;
        Ok(Some(Entry { tag, expires_at_ms: attributes.expires_at_ms, payload }))
    }
}

fn tag(attributes: &Attributes) -> Outcome<Tag> {
    Tag::of(attributes).ok_or_else(|| {
        Failure::with("ERR the key is of a type that this version does not know: it was written by a later one")
    })
}

fn lookup<'s>(store: &'s Store, key: &[u8], waiting: Waiting) -> Outcome<Option<Value<'s>>> {
    Ok(match waiting {
        Waiting::Never => store.get_at_once(key)?,
        Waiting::Allowed => store.get(key)?,
    })
}

fn check_key(key: &[u8]) -> Outcome {
    if key.len() > MAX_KEY_BYTES {
        return Err(Failure::with(format!("ERR the key has {} bytes, the most is {MAX_KEY_BYTES}", key.len())));
    }
    Ok(())
}

/// What a group has written within a range, beside a scan of the store.
struct Pendings<'p> {
    rest: Vec<(&'p Vec<u8>, Option<&'p Pending>)>,
    direction: Direction,
    /// The last one that was taken.
    last: Option<&'p Vec<u8>>,
}

impl<'p> Pendings<'p> {
    fn new(pending: &'p BTreeMap<Vec<u8>, Option<Pending>>, range: Range<Vec<u8>>, direction: Direction) -> Self {
        let within = pending.range(range).map(|(key, written)| (key, written.as_ref()));
        // Taken from the end.
        let rest = match direction {
            Direction::Forward => within.rev().collect(),
            Direction::Reverse => within.collect(),
        };
        Self { rest, direction, last: None }
    }

    fn next(&mut self) -> Option<(&'p [u8], Option<&'p Pending>)> {
        let (key, written) = self.rest.pop()?;
        self.last = Some(key);
        Some((key, written))
    }

    /// The next one, if it stands before `key` or at it.
    fn next_before(&mut self, key: &[u8]) -> Option<(&'p [u8], Option<&'p Pending>)> {
        let (next, _) = self.rest.last()?;
        let comes = match self.direction {
            Direction::Forward => next.as_slice() <= key,
            Direction::Reverse => next.as_slice() >= key,
        };
        if comes { self.next() } else { None }
    }

    /// Whether the one that was taken last stands in the place of `key`.
    fn hides(&self, key: &[u8]) -> bool {
        self.last.is_some_and(|last| last == key)
    }
}
