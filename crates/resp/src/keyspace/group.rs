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
//! Failure: a commit that fails has written nothing; the group is empty afterwards, and its latches are free. What was counted of its writes
//! ([`super::ranks`]) is forgotten, as it is where a group is dropped.
//!
//! Threads: a group belongs to one thread at a time and may be handed on.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_engine::{Attributes, Durability, Error as StoreError, Snapshot, WriteOptions};

use super::Keyspace;
use super::keys::Keys;
use super::known::Known;
use super::layout::{CollectionId, StoredKey};
use super::payload::{Payload, SideBySide};
use super::ranks::Counted;
use super::slot::{SLOTS, Slot};
use super::unsynced::Unsynced;
use super::wanted::Wanted;
use crate::error::Failure;
use crate::memory::SMALL_BYTES;

/// A group that has grown to this is committed before more is written into it: far from what a batch may hold, so that no client's write
/// makes the batch of all others too large.
pub const FULL_BYTES: usize = 16 * 1024 * 1024;

/// A group that has taken this without asking is committed before more is written into it: what many small commands may each take
/// is not to become much. Far more than those have that come at a time.
const MAX_UNASKED_BYTES: usize = 4 * 1024 * 1024;

/// A group that has grown beyond this is not committed by a thread that is not to wait: writing it takes longer than handing it on, and may
/// have to wait until the device has taken some of it.
const MAX_BYTES_AT_ONCE: usize = 4 * 1024 * 1024;

/// Whether the thread may wait for the device or for another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It serves other clients as well: what cannot be had at once is [`crate::error::Failure::MustWait`].
    Never,
    /// It serves one client only, and holds latches of what that has written: a look at the device is short enough, what takes longer is
    /// [`crate::error::Failure::MustWait`].
    Briefly,
    /// It serves one client only.
    Allowed,
}

/// What one thread has written and not committed.
#[derive(Debug)]
pub struct Group {
    keyspace: Arc<Keyspace>,
    state: State,
}

/// What is written, by the store's keys; `None` is removed.
pub(super) type Written = BTreeMap<StoredKey, Option<Pending>>;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) held: Held,
    pub(super) pending: Written,
    /// Payloads of what is written.
    pub(super) beside: SideBySide,
    /// What it takes to be as before the command that is being carried out, the last step first.
    pub(super) undo: Vec<Undo>,
    /// All that was in the store before with a key in one of these is to be removed.
    pub(super) removed: Vec<Range<Vec<u8>>>,
    pub(super) bytes: usize,
    pub(super) taken: Taken,
    /// Whether the store was read since somebody asked.
    pub(super) has_read: bool,
    /// Whether the request that is carried out is; none where what it does is bounded.
    pub(super) wanted: Option<Wanted>,
    /// Whether a command has written that may make the store grow.
    takes: bool,
    /// Large collections that have lost their key, if this is committed.
    pub(super) orphans: Vec<CollectionId>,
    /// Memory for a key of the store's.
    pub(super) stored_key: StoredKey,
}

/// How one step of a command is taken back.
#[derive(Debug)]
pub(super) enum Undo {
    /// Something was written under `key`, where `before` stood in `pending`.
    Written { key: StoredKey, before: Option<Option<Pending>>, counted: Counted },
    /// It was begun to count the elements of a collection that the group had changed already.
    Counting { id: CollectionId },
    /// A range was added to those that are removed: this is what stood in `pending` within it.
    Removed { pending: Vec<(StoredKey, Option<Pending>)> },
    /// All keys were removed: this is what the group was until then.
    Cleared { pending: Written, orphans: Vec<CollectionId>, removed: Vec<Range<Vec<u8>>> },
}

impl State {
    /// Whether nothing is to be written.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.removed.is_empty()
    }

    /// Whether what was in the store under `key` is to be removed with the range that it is in.
    #[inline]
    pub(super) fn removes(&self, key: &[u8]) -> bool {
        self.removed.iter().any(|removed| *removed.start <= *key && *key < *removed.end)
    }

    /// Whether anything in `range` is changed.
    pub(super) fn changes(&self, range: &Range<Vec<u8>>) -> bool {
        let (start, end) = (range.start.as_slice(), range.end.as_slice());
        self.pending.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end))).next().is_some()
            || self.removed.iter().any(|removed| removed.start < range.end && range.start < removed.end)
    }

    /// Whether all that was in the store in `range` is to be removed.
    pub(super) fn removes_all(&self, range: &Range<Vec<u8>>) -> bool {
        self.removed.iter().any(|removed| removed.start <= range.start && range.end <= removed.end)
    }
}

/// The memory of what is written.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// By the commands that began together, all of it.
    pub(super) bytes: usize,
    /// What they may still take without asking.
    pub(super) free_bytes: usize,
    /// What the group has without having asked.
    pub(super) unasked_bytes: usize,
    /// What the group has beyond that, and is counted among what all clients take.
    pub(super) charged_bytes: usize,
    /// Whether a command got no more.
    pub(super) is_refused: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) attributes: Attributes,
    pub(super) payload: Payload,
}

/// The slots whose latches a group has.
#[derive(Debug)]
pub(super) struct Held {
    /// In the order in which they were taken.
    slots: Vec<Slot>,
    /// The same, a bit for each slot.
    bits: Box<[u64]>,
}

impl Default for Held {
    fn default() -> Self {
        Self { slots: Vec::new(), bits: vec![0; usize::from(SLOTS).div_ceil(64)].into_boxed_slice() }
    }
}

impl Held {
    #[inline]
    pub(super) fn has(&self, slot: Slot) -> bool {
        let (word, bit) = place(slot);
        self.bits[word] & bit != 0
    }

    fn push(&mut self, slot: Slot) {
        let (word, bit) = place(slot);
        self.bits[word] |= bit;
        self.slots.push(slot);
    }

    fn pop(&mut self) -> Option<Slot> {
        let slot = self.slots.pop()?;
        let (word, bit) = place(slot);
        self.bits[word] &= !bit;
        Some(slot)
    }
}

fn place(slot: Slot) -> (usize, u64) {
    let number = usize::from(slot.number());
    (number / 64, 1 << (number % 64))
}

/// See [`Group::mark`].
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    undo: usize,
    beside: usize,
    bytes: usize,
    unasked_bytes: usize,
    charged_bytes: usize,
}

/// What a commit leaves to do.
#[derive(Debug, Default)]
pub struct Committed {
    /// The writes are to be synced before a client is told. Keep it until they are.
    pub unsynced: Option<Unsynced>,
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

    /// A request begins that is carried out as long as it is `wanted`, on a thread that may wait; or without such an end, where what it does is bounded.
    pub fn begins_request(&mut self, wanted: Option<Wanted>) {
        let before = self.state.wanted.as_ref();
        self.state.wanted = wanted.map(|wanted| wanted.latched_as(before));
    }

    /// Why the request is not wanted any more, or may not go on, if so: nothing of it may stay.
    pub fn unwanted(&self) -> Option<Failure> {
        self.state.wanted.as_ref().and_then(Wanted::look)
    }

    /// Takes the latches of `slots`, ascending, each once, besides those it has. `false`: somebody else has one, or the request is
    /// [not wanted](Self::unwanted) any more, and none was taken here. Only who may wait and holds none waits: else two could wait for each other.
    pub fn hold(&mut self, slots: &[Slot], waiting: Waiting) -> bool {
        let before = self.state.held.slots.len();
        let waits = waiting == Waiting::Allowed && before == 0;
        for slot in slots {
            if self.state.held.has(*slot) {
                continue;
            }
            let goes_on = || self.state.wanted.as_ref().is_none_or(|wanted| wanted.look().is_none());
            let latches = &self.keyspace.latches;
            let is_taken = if waits { latches.take(*slot, goes_on) } else { latches.try_take(*slot) };
            if !is_taken {
                self.release_from(before);
                return false;
            }
            self.state.held.push(*slot);
            self.note_latched();
        }
        true
    }

    #[inline]
    fn note_latched(&self) {
        if let Some(wanted) = &self.state.wanted {
            wanted.set_latched(!self.state.held.slots.is_empty());
        }
    }

    /// Whether it has any latch.
    pub fn holds_any(&self) -> bool {
        !self.state.held.slots.is_empty()
    }

    /// How many latches it has.
    pub fn latches_held(&self) -> usize {
        self.state.held.slots.len()
    }

    /// Gives back all latches but the first `held`, under which nothing was written.
    pub fn release_beyond(&mut self, held: usize) {
        self.release_from(held);
    }

    fn release_from(&mut self, first: usize) {
        while self.state.held.slots.len() > first
            && let Some(slot) = self.state.held.pop()
        {
            self.keyspace.latches.release(slot);
        }
        self.note_latched();
    }

    /// For one command: the keys as it sees them now.
    pub fn keys(&mut self, waiting: Waiting) -> Keys<'_> {
        let now_ms = self.keyspace.clock.now_ms();
        self.keys_at(now_ms, waiting, None, None)
    }

    /// The same at a time that the clock has shown, with what is known of the key that the command reads first; or all of it as it is in a `snapshot`, beside which
    /// the group has written nothing.
    pub fn keys_at<'c>(
        &'c mut self,
        now_ms: u64,
        waiting: Waiting,
        known: Option<Known<'c>>,
        snapshot: Option<&'c Snapshot<'c>>,
    ) -> Keys<'c> {
        debug_assert!(snapshot.is_none() || self.is_empty());
        Keys::of(&self.keyspace, &mut self.state, now_ms, waiting, known, snapshot)
    }

    /// Whether commands have read the store since the last call, and not only what was known.
    pub fn take_has_read(&mut self) -> bool {
        std::mem::take(&mut self.state.has_read)
    }

    /// What was written so far stays in the group.
    #[inline]
    pub fn keep(&mut self) {
        self.state.undo.clear();
    }

    /// Where the group stands, for [`undo_to`](Self::undo_to). Valid until what stands is kept.
    pub fn mark(&self) -> Mark {
        let Taken { unasked_bytes, charged_bytes, .. } = self.state.taken;
        Mark {
            undo: self.state.undo.len(),
            beside: self.state.beside.end(),
            bytes: self.state.bytes,
            unasked_bytes,
            charged_bytes,
        }
    }

    /// A command failed: takes out of the group what was written since `mark`.
    pub fn undo_to(&mut self, mark: Mark) {
        debug_assert!(mark.undo <= self.state.undo.len(), "what was kept since is not undone");
        self.state.bytes = mark.bytes;
        self.state.taken.unasked_bytes = mark.unasked_bytes;
        self.give_back_to(mark.charged_bytes);
        self.state.beside.forget_from(mark.beside);
        while self.state.undo.len() > mark.undo
            && let Some(undo) = self.state.undo.pop()
        {
            match undo {
                Undo::Written { key, before, counted } => {
                    self.keyspace.ranks.undo(&key, counted);
                    match before {
                        Some(before) => _ = self.state.pending.insert(key, before),
                        None => _ = self.state.pending.remove(&key),
                    }
                }
                Undo::Counting { id } => self.keyspace.ranks.forget(id),
                Undo::Removed { pending } => {
                    self.state.removed.pop();
                    self.state.pending.extend(pending);
                }
                Undo::Cleared { pending, orphans, removed } => {
                    self.keyspace.watches.undo_clear();
                    self.state.pending = pending;
                    self.state.orphans = orphans;
                    self.state.removed = removed;
                }
            }
        }
    }

    /// Whether there is nothing to commit. Latches may be held all the same.
    pub fn is_empty(&self) -> bool {
        self.state.is_empty()
    }

    /// A command begins that `takes` room if it writes. Where none does, a full store takes the group all the same.
    pub fn begins(&mut self, takes: bool) {
        if self.is_empty() {
            self.state.takes = false;
        }
        self.state.takes |= takes;
    }

    /// A command begins, or the commands of a transaction, with arguments of so many bytes: what those take when they are written was
    /// counted when they came, everything beyond is asked for.
    pub fn takes_memory_beyond(&mut self, argument_bytes: usize) {
        let taken = &mut self.state.taken;
        (taken.bytes, taken.is_refused) = (0, false);
        taken.free_bytes = argument_bytes.saturating_mul(2).saturating_add(SMALL_BYTES);
    }

    /// Whether a command that has begun since was refused memory for what it writes.
    pub fn is_refused_memory(&self) -> bool {
        self.state.taken.is_refused
    }

    /// What was taken beyond `charged_bytes` is free again.
    fn give_back_to(&mut self, charged_bytes: usize) {
        let charged = &mut self.state.taken.charged_bytes;
        if *charged > charged_bytes {
            self.keyspace.memory.give_back(*charged - charged_bytes);
            *charged = charged_bytes;
        }
    }

    /// Bytes of keys and values that were written since `mark`, about; what was overwritten again is among them.
    pub fn written_since(&self, mark: Mark) -> usize {
        self.state.bytes.saturating_sub(mark.bytes)
    }

    /// Whether anything was written since `mark`.
    pub fn has_written_since(&self, mark: Mark) -> bool {
        self.state.undo.len() > mark.undo
    }

    /// Whether it is to be committed before a command writes into it that `takes` room, or one that does not: it has grown large, or there is so
    /// little room that a write which is refused would take others with it which need not be.
    pub fn is_closed_to(&self, takes: bool) -> bool {
        self.state.bytes >= FULL_BYTES
            || self.state.taken.unasked_bytes >= MAX_UNASKED_BYTES
            || self.state.takes != takes && !self.is_empty() && self.keyspace.store.is_tight()
    }

    /// Bytes of keys and values that wait for the commit, about.
    pub fn bytes(&self) -> usize {
        self.state.bytes
    }

    /// Writes all of it, or nothing, and gives the latches back. Who never waits must see to the sync, where one is due.
    ///
    /// # Errors
    ///
    /// Those of [`ecotone_engine::Store::write`]. After [`StoreError::WouldWait`] everything is as it was: commit it where waiting is allowed. After any
    /// other the group is empty.
    pub fn commit(&mut self, waiting: Waiting) -> Result<Committed, StoreError> {
        let written = if self.is_empty() { Ok(Committed::default()) } else { self.write(waiting) };
        if matches!(written, Err(StoreError::WouldWait)) {
            return written;
        }
        let orphans = std::mem::take(&mut self.state.orphans);
        let ranks = &self.keyspace.ranks;
        if written.is_err() {
            ranks.forget_changed(&self.state.pending, &self.state.removed);
        } else {
            ranks.forget_gone(&orphans, &self.state.removed);
        }
        self.release_from(0);
        if written.is_ok() {
            self.keyspace.orphans.add(orphans);
        }
        self.state.pending.clear();
        self.state.beside.forget_from(0);
        self.state.undo.clear();
        self.state.removed.clear();
        self.state.bytes = 0;
        self.state.taken.unasked_bytes = 0;
        self.give_back_to(0);
        self.state.takes = false;
        written
    }

    fn write(&mut self, waiting: Waiting) -> Result<Committed, StoreError> {
        let store = &self.keyspace.store;
        if waiting == Waiting::Never && self.state.bytes > MAX_BYTES_AT_ONCE {
            return Err(StoreError::WouldWait);
        }
        let mut batch = store.batch();
        // Before what was written into them afterwards.
        for removed in &self.state.removed {
            batch.delete_range(removed.start.as_slice()..removed.end.as_slice())?;
        }
        for (key, pending) in &self.state.pending {
            match pending {
                Some(Pending { attributes, payload }) => {
                    batch.put_with(key, self.state.beside.bytes(payload), attributes)?
                }
                None if self.state.removes(key) => {}
                None => batch.delete(key)?,
            }
        }
        let no_wait = waiting == Waiting::Never;
        let unsynced = self.keyspace.syncs_each_write.then(|| self.keyspace.unsynced.begin());
        let durability = (no_wait && unsynced.is_some()).then_some(Durability::None);
        store.write(&batch, WriteOptions { durability, no_wait, frees: !self.state.takes })?;
        self.keyspace.is_to_note.store(true, Ordering::Relaxed);
        self.keyspace.counts.changed(self.state.pending.len(), !self.state.removed.is_empty());
        // Who may wait has waited for the sync as well.
        Ok(Committed { unsynced: unsynced.filter(|_| no_wait) })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.keyspace.ranks.forget_changed(&self.state.pending, &self.state.removed);
        self.release_from(0);
        self.give_back_to(0);
    }
}
