//! Write groups: writes of many commands that are committed together, and can be read before.
//!
//! A thread that serves clients collects what they write in one group and commits it once for all
//! of them: one record of the write-ahead log instead of one for each command, or one for each store
//! that it has written to. A command sees the writes of the commands before it in its group as if
//! they were in the store already.
//!
//! Invariants:
//!
//! - The latch of each key's slot is held from before the first read that a write depends on until
//!   the group is committed or dropped.
//! - A command that fails leaves nothing in the group: [`WriteGroup::rollback_to`].
//! - No client is told anything that its group has not committed.
//!
//! Failure: a commit that fails has written nothing to the stores that it names ([`CommitError`]),
//! and all to the others; a command but for one that removes everything writes to one store, so it
//! is whole or absent. The group is empty afterwards, and its latches are free. The ranks that were counted of its writes ([`crate::ranks`]) are dropped, as they are
//! when a group is dropped.
//!
//! Threads: a group belongs to one thread at a time and may move to another.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_engine::{Durability, Error as StoreError, Operation, Store, WriteOptions};

use crate::cancellation::CancellationToken;
use crate::error::{Blocking, Failure};
use crate::keys::Keys;
use crate::keyspace::{Keyspace, KeyspaceSnapshot, Unsynced};
use crate::layout::{self, CollectionId};
use crate::memory::SMALL_BYTES;
use crate::pending::{GroupState, MemoryUse, UndoStep};
use crate::prefetch::Prefetched;
use crate::seen_gate::SeenGate;
use crate::shards::{Pin, Shard, ShardSet};
use crate::slot::Slot;

/// A group that has grown to this is committed before more is written into it: far from what a
/// batch may hold, so that no client's write makes the batch of all others too large.
pub const MAX_GROUP_BYTES: usize = 16 * 1024 * 1024;

/// A group that has taken this without asking is committed before more is written into it: what
/// many small commands may each take is not to become much. Far more than those have that come at a
/// time.
const MAX_UNCHARGED_BYTES: usize = 4 * 1024 * 1024;

/// A group that has grown beyond this is not committed by a thread that is not to wait: writing it
/// takes longer than handing it on, and may have to wait until the device has taken some of it.
const MAX_NONBLOCKING_COMMIT_BYTES: usize = 4 * 1024 * 1024;

/// What one thread has written and not committed.
#[derive(Debug)]
pub struct WriteGroup {
    keyspace: Arc<Keyspace>,
    /// Before a command begins that needs them they are the newest.
    pin: Pin,
    state: GroupState,
}

/// See [`WriteGroup::savepoint`].
#[derive(Debug, Clone, Copy)]
pub struct Savepoint {
    undo: usize,
    arena: usize,
    bytes: usize,
    uncharged_bytes: usize,
    charged_bytes: usize,
}

/// Why a commit failed, and where.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct CommitError {
    /// Why: of several stores the first.
    pub error: StoreError,
    /// The shards whose writes are not done. The others' are.
    pub failed: ShardSet,
}

impl From<CommitError> for StoreError {
    fn from(failed: CommitError) -> Self {
        failed.error
    }
}

/// What became of the writes to several stores.
#[derive(Debug, Default)]
struct Parts {
    done: ShardSet,
    failed: ShardSet,
    /// Why not all is done: [`StoreError::WouldBlock`] where the rest was not tried.
    why: Option<StoreError>,
}

/// What a commit leaves to do.
#[derive(Debug, Default)]
pub struct Committed {
    /// The writes are to be synced before a client is told. Keep it until they are.
    pub unsynced: Option<Unsynced>,
}

impl WriteGroup {
    /// An empty one.
    pub fn new(keyspace: Arc<Keyspace>) -> Self {
        Self { keyspace, pin: Pin::default(), state: GroupState::default() }
    }

    /// The keyspace that it is for.
    pub fn keyspace(&self) -> &Arc<Keyspace> {
        &self.keyspace
    }

    /// A request begins that may be cancelled, on a thread that may block; or without
    /// `cancellation`, where its work is bounded.
    pub fn begin_request(&mut self, cancellation: Option<CancellationToken>) {
        let before = self.state.cancellation.as_ref();
        self.state.cancellation = cancellation.map(|cancellation| cancellation.inherit_latches(before));
    }

    /// Why the request is cancelled, if it is: nothing of it may stay.
    pub fn cancellation(&self) -> Option<Failure> {
        self.state.cancellation.as_ref().and_then(CancellationToken::reason)
    }

    /// Takes the latches of `slots`, ascending, each once, besides those it has. `false`: somebody
    /// else has one, or the request is [cancelled](Self::cancellation), and none was taken here.
    /// Only a thread that may block and holds none waits: else two could wait for each other.
    pub fn hold(&mut self, slots: &[Slot], blocking: Blocking) -> bool {
        let before = self.state.held.slots.len();
        let waits = blocking == Blocking::Allowed && before == 0;
        for slot in slots {
            if self.state.held.has(*slot) {
                continue;
            }
            let goes_on =
                || self.state.cancellation.as_ref().is_none_or(|cancellation| cancellation.reason().is_none());
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
        if let Some(cancellation) = &self.state.cancellation {
            cancellation.set_latched(!self.state.held.slots.is_empty());
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
    pub fn keys(&mut self, blocking: Blocking) -> Keys<'_> {
        let now_ms = self.keyspace.clock.now_ms();
        self.keys_at(now_ms, blocking, None, None)
    }

    /// The same at a time that the clock has shown, with what is known of the key that the command
    /// reads first; or all of it as it is in a `snapshot`, beside which the group has written
    /// nothing.
    pub fn keys_at<'c>(
        &'c mut self,
        now_ms: u64,
        blocking: Blocking,
        prefetched: Option<Prefetched<'c>>,
        snapshot: Option<&'c KeyspaceSnapshot<'c>>,
    ) -> Keys<'c> {
        debug_assert!(snapshot.is_none() || self.is_empty());
        // Under the latches: what it has written to has stayed where it was.
        let shards = self.pin.newest(&self.keyspace.shards);
        Keys::of(&self.keyspace, shards, &mut self.state, now_ms, blocking, prefetched, snapshot)
    }

    /// Refuses what takes room where the store of one of these slots has none. A slot that is not
    /// held is refused when something is written to it.
    ///
    /// # Errors
    ///
    /// [`StoreError::OutOfSpace`].
    pub fn check_free_space(&mut self, slots: impl IntoIterator<Item = Slot>) -> Result<(), StoreError> {
        self.pin.newest(&self.keyspace.shards).check_free_space(slots)
    }

    /// Where nothing was written and no latch is held: stores that are to be closed need not wait for
    /// this group. To be called when nothing more comes at once.
    #[inline]
    pub fn rest(&mut self) {
        if self.is_empty() && !self.holds_any() {
            self.pin.release();
        }
    }

    /// Whether commands have read the store since the last call, and not only what was known.
    pub fn take_has_read(&mut self) -> bool {
        std::mem::take(&mut self.state.has_read)
    }

    /// The shards whose uncommitted writes commands have made or seen since the last call.
    pub fn take_touched(&mut self) -> ShardSet {
        std::mem::take(&mut self.state.touched)
    }

    /// The shards of `slots` are read next without [`Keys`], or what becomes of them is told.
    pub fn see(&mut self, slots: impl IntoIterator<Item = Slot>) {
        let table = self.pin.newest(&self.keyspace.shards);
        for shard in slots.into_iter().filter_map(|slot| table.of(slot)) {
            self.state.see(shard);
        }
    }

    /// The shards with gates that commands have read, or written, since the last call: a reply that
    /// tells of them waits for their [gates](Self::take_gates).
    pub fn take_seen(&mut self) -> ShardSet {
        std::mem::take(&mut self.state.seen)
    }

    /// From now on as if no other shards had been read or written than these, which were taken.
    pub fn set_seen(&mut self, seen: ShardSet) {
        self.state.seen = seen;
    }

    /// The gates of all shards that [`take_seen`](Self::take_seen) has named since the last call of
    /// this, as they were before they were read or written.
    pub fn take_gates(&mut self) -> Vec<SeenGate> {
        std::mem::take(&mut self.state.gates)
    }

    /// Whether commands have written anything since the last call, also what was undone.
    pub fn take_wrote(&mut self) -> bool {
        std::mem::take(&mut self.state.wrote)
    }

    /// What was written so far stays in the group.
    #[inline]
    pub fn keep(&mut self) {
        self.state.undo.clear();
    }

    /// Where the group stands, for [`rollback_to`](Self::rollback_to). Valid until what stands is
    /// kept.
    pub fn savepoint(&self) -> Savepoint {
        let MemoryUse { uncharged_bytes, charged_bytes, .. } = self.state.taken;
        Savepoint {
            undo: self.state.undo.len(),
            arena: self.state.arena.end(),
            bytes: self.state.bytes,
            uncharged_bytes,
            charged_bytes,
        }
    }

    /// A command failed: takes out of the group what was written since `savepoint`.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        debug_assert!(savepoint.undo <= self.state.undo.len(), "what was kept since is not undone");
        self.state.bytes = savepoint.bytes;
        self.state.taken.uncharged_bytes = savepoint.uncharged_bytes;
        self.give_back_to(savepoint.charged_bytes);
        self.state.arena.forget_from(savepoint.arena);
        while self.state.undo.len() > savepoint.undo
            && let Some(undo) = self.state.undo.pop()
        {
            match undo {
                UndoStep::Written { key, before, counted } => {
                    self.keyspace.ranks.undo(&key, counted);
                    match before {
                        Some(before) => _ = self.state.pending.insert(key, before),
                        None => _ = self.state.pending.remove(&key),
                    }
                }
                UndoStep::Counting { id } => self.keyspace.ranks.forget(id),
                UndoStep::Removed { pending } => {
                    self.state.removed.pop();
                    self.state.pending.extend(pending);
                }
                UndoStep::Cleared { pending, reclaimable, removed } => {
                    self.keyspace.watches.undo_clear();
                    self.state.pending = pending;
                    self.state.reclaimable = reclaimable;
                    self.state.removed = removed;
                }
            }
        }
    }

    /// Whether there is nothing to commit. Latches may be held all the same.
    pub fn is_empty(&self) -> bool {
        self.state.is_empty()
    }

    /// A command begins that `takes` room if it writes. Where none does, a full store takes the
    /// group all the same.
    pub fn begins(&mut self, takes: bool) {
        if self.is_empty() {
            self.state.takes = false;
        }
        self.state.takes |= takes;
    }

    /// A command begins, or the commands of a transaction, with arguments of so many bytes: what
    /// those take when they are written was counted when they came, everything beyond is asked for.
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

    /// Bytes of keys and values that were written since `savepoint`, about; what was overwritten
    /// again is among them.
    pub fn written_since(&self, savepoint: Savepoint) -> usize {
        self.state.bytes.saturating_sub(savepoint.bytes)
    }

    /// Whether anything was written since `savepoint`.
    pub fn has_written_since(&self, savepoint: Savepoint) -> bool {
        self.state.undo.len() > savepoint.undo
    }

    /// Whether it is to be committed before a command writes into it that `takes` room, or one that
    /// does not: it has grown large, or there is so little room that a write which is refused would
    /// take others with it which need not be.
    pub fn is_closed_to(&self, takes: bool) -> bool {
        self.state.bytes >= MAX_GROUP_BYTES
            || self.state.taken.uncharged_bytes >= MAX_UNCHARGED_BYTES
            || self.state.takes != takes && !self.is_empty() && self.is_space_low()
    }

    /// Of any store: what comes next may be for another one than what is there.
    fn is_space_low(&self) -> bool {
        self.keyspace.shards.look(|newest| newest.all().any(|shard| shard.store().is_space_low()))
    }

    fn shards(&self, of: ShardSet) -> impl Iterator<Item = &Shard> {
        of.places().filter_map(|index| self.pin.held()?.at(index))
    }

    /// Bytes of keys and values that wait for the commit, about.
    pub fn bytes(&self) -> usize {
        self.state.bytes
    }

    /// Writes all of it, to each store in one batch, and gives the latches back. Who never waits
    /// must see to the sync, where one is due.
    ///
    /// # Errors
    ///
    /// Those of [`ecotone_engine::Store::write`]. After [`StoreError::WouldBlock`] the group is as it
    /// was: commit it where waiting is allowed. After any other it is empty, and what was for the
    /// shards that [`CommitError`] names is not written.
    pub fn commit(&mut self, blocking: Blocking) -> Result<Committed, CommitError> {
        let written = if self.is_empty() { Ok(Committed::default()) } else { self.write(blocking) };
        if matches!(written, Err(CommitError { error: StoreError::WouldBlock, .. })) {
            return written;
        }
        let mut reclaimable = std::mem::take(&mut self.state.reclaimable);
        let ranks = &self.keyspace.ranks;
        if let Err(CommitError { failed, .. }) = &written {
            ranks.forget_changed(self.state.pending.keys(), &self.state.removed);
            let shard = |id: &CollectionId| self.pin.held()?.of(id.slot);
            reclaimable.retain(|id| shard(id).is_some_and(|shard| !failed.contains(shard.index())));
        }
        ranks.forget_gone(&reclaimable, if written.is_ok() { &self.state.removed } else { &[] });
        self.release_from(0);
        self.keyspace.reclaimable.add(reclaimable);
        self.state.pending.clear();
        self.state.arena.forget_from(0);
        self.state.undo.clear();
        self.state.removed.clear();
        (self.state.written, self.state.committed) = (ShardSet::default(), ShardSet::default());
        self.state.bytes = 0;
        self.state.taken.uncharged_bytes = 0;
        self.give_back_to(0);
        self.state.takes = false;
        self.rest();
        written
    }

    fn write(&mut self, blocking: Blocking) -> Result<Committed, CommitError> {
        let all = self.state.written;
        let no_wait = blocking == Blocking::Never;
        if no_wait && self.state.bytes > MAX_NONBLOCKING_COMMIT_BYTES {
            return Err(CommitError { error: StoreError::WouldBlock, failed: all });
        }
        let table = self.pin.held().filter(|_| self.keyspace.syncs_each_write);
        let unsynced = table.map(|table| Unsynced::begin(&self.keyspace, table, all));
        // One of a commit that could not go on is over with this one.
        let _before = self.state.unsynced.take();
        let takes = self.state.takes;
        let options = |durability| WriteOptions { durability, no_wait, frees: !takes };
        if let Some(only) = all.only().and_then(|index| self.pin.held()?.at(index)) {
            let durability = (no_wait && unsynced.is_some()).then_some(Durability::None);
            self.write_whole(only, options(durability)).map_err(|error| CommitError { error, failed: all })?;
            // Who may wait has waited for the sync as well.
            return Ok(Committed { unsynced: unsynced.filter(|_| no_wait) });
        }
        // One sync for all stores, side by side, behind the writes.
        let options = options(unsynced.is_some().then_some(Durability::None));
        let Parts { done, failed, why } = self.write_parts(all.without(self.state.committed), options);
        self.state.committed = self.state.committed.union(done);
        match why {
            Some(StoreError::WouldBlock) => {
                // What is done can be seen from now on.
                self.state.unsynced = unsynced;
                Err(CommitError { error: StoreError::WouldBlock, failed: all })
            }
            why => {
                if !no_wait && unsynced.is_some() {
                    // What it does not make durable is there, and may be lost.
                    self.keyspace.sync_unsynced().map_err(|error| CommitError { error, failed: all })?;
                }
                match why {
                    Some(error) => Err(CommitError { error, failed }),
                    None => Ok(Committed { unsynced: unsynced.filter(|_| no_wait) }),
                }
            }
        }
    }

    /// To each of these stores what is for it, until one would have to be waited for.
    fn write_parts(&self, shards: ShardSet, options: WriteOptions) -> Parts {
        let mut parts = Parts::default();
        for (shard, operations) in self.by_shard(shards) {
            match self.write_to(shard, operations.iter().copied(), options) {
                Ok(()) => parts.done.insert(shard.index()),
                Err(StoreError::WouldBlock) => {
                    parts.why = Some(StoreError::WouldBlock);
                    break;
                }
                Err(error) => {
                    parts.failed.insert(shard.index());
                    parts.why.get_or_insert(error);
                }
            }
        }
        parts
    }

    /// All of it to one store.
    fn write_whole(&self, shard: &Shard, options: WriteOptions) -> Result<(), StoreError> {
        if self.state.removed.is_empty() {
            self.write_to(shard, self.state.operations(), options)
        } else {
            // They are gone through more than once, and in which range a key is is asked once.
            let operations: Vec<_> = self.state.operations().collect();
            self.write_to(shard, operations.iter().copied(), options)
        }
    }

    fn write_to<'o>(
        &self,
        shard: &Shard,
        operations: impl Iterator<Item = Operation<'o>> + Clone,
        options: WriteOptions,
    ) -> Result<(), StoreError> {
        let store: &Store = shard.store();
        store.write(operations, options)?;
        shard.is_to_note.store(true, Ordering::Relaxed);
        shard.key_count.changed(self.state.pending.len(), !self.state.removed.is_empty());
        Ok(())
    }

    /// What is for each of these shards.
    fn by_shard(&self, shards: ShardSet) -> Vec<(&Shard, Vec<Operation<'_>>)> {
        let mut all: Vec<(&Shard, Vec<Operation<'_>>)> = self.shards(shards).map(|shard| (shard, Vec::new())).collect();
        let mut last = 0;
        for operation in self.state.operations() {
            let key = match operation {
                Operation::Put { key, .. } | Operation::Delete { key } => key,
                // A range without a slot is of everything.
                Operation::DeleteRange { from, .. } => from,
            };
            let Some(slot) = layout::slot_of(key) else {
                all.iter_mut().for_each(|(_, operations)| operations.push(operation));
                continue;
            };
            let Some(index) = self.pin.held().and_then(|held| held.of(slot)).map(Shard::index) else { continue };
            // Most often the same as before: keys are in the order of their slots.
            if all.get(last).is_none_or(|(shard, _)| shard.index() != index) {
                let Some(place) = all.iter().position(|(shard, _)| shard.index() == index) else { continue };
                last = place;
            }
            all[last].1.push(operation);
        }
        all
    }
}

impl Drop for WriteGroup {
    fn drop(&mut self) {
        self.keyspace.ranks.forget_changed(self.state.pending.keys(), &self.state.removed);
        self.release_from(0);
        self.give_back_to(0);
    }
}
