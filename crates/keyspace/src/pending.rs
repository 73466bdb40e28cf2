//! What a write group has written and not committed, how it is undone, and a scan over it.
//!
//! Invariant: whatever changes [`GroupState`] notes in its `undo` how that is taken back.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use ecotone_engine::{Attributes, Direction, Operation};

use crate::cancellation::CancellationToken;
use crate::keyspace::Unsynced;
use crate::layout::{CollectionId, StoredKey};
use crate::ranks::RankChange;
use crate::seen_gate::SeenGate;
use crate::shards::{Shard, ShardSet};
use crate::slot::{Slot, SlotSet};
use crate::value_arena::{PendingValue, ValueArena};

/// What is written, by the store's keys; `None` is removed.
pub(super) type PendingWrites = BTreeMap<StoredKey, Option<PendingWrite>>;

#[derive(Debug, Default)]
pub(super) struct GroupState {
    pub(super) held: HeldLatches,
    pub(super) pending: PendingWrites,
    /// The values of what is written.
    pub(super) arena: ValueArena,
    /// What it takes to be as before the command that is being carried out, the last step first.
    pub(super) undo: Vec<UndoStep>,
    /// All that was in the store before with a key in one of these is to be removed.
    pub(super) removed: Vec<Range<Vec<u8>>>,
    pub(super) bytes: usize,
    pub(super) taken: MemoryUse,
    /// Whether the store was read since somebody asked.
    pub(super) has_read: bool,
    /// Of the request that is carried out; none where its work is bounded.
    pub(super) cancellation: Option<CancellationToken>,
    /// Whether a command has written that may make the store grow.
    pub(super) takes: bool,
    /// The shards of what is written.
    pub(super) written: ShardSet,
    /// Those among them whose stores have all of it, from a commit that could not go on.
    pub(super) committed: ShardSet,
    /// The same, where a power loss may still take it.
    pub(super) unsynced: Option<Unsynced>,
    /// The shards whose uncommitted writes were made or seen since somebody asked.
    pub(super) touched: ShardSet,
    /// The shards with gates that were read, or written, since somebody asked.
    pub(super) seen: ShardSet,
    /// Their gates, as they were before, since somebody took them.
    pub(super) gates: Vec<SeenGate>,
    /// Whether anything was written since somebody asked.
    pub(super) wrote: bool,
    /// Large collections that have lost their key, if this is committed.
    pub(super) reclaimable: Vec<CollectionId>,
    /// Memory for a key of the store's.
    pub(super) stored_key: StoredKey,
}

/// How one step of a command is taken back.
#[derive(Debug)]
pub(super) enum UndoStep {
    /// Something was written under `key`, where `before` stood in `pending`.
    Written { key: StoredKey, before: Option<Option<PendingWrite>>, counted: RankChange },
    /// It was begun to count the elements of a collection that the group had changed already.
    Counting { id: CollectionId },
    /// A range was added to those that are removed: this is what stood in `pending` within it.
    Removed { pending: Vec<(StoredKey, Option<PendingWrite>)> },
    /// All keys were removed: this is what the group was until then.
    Cleared { pending: PendingWrites, reclaimable: Vec<CollectionId>, removed: Vec<Range<Vec<u8>>> },
}

impl GroupState {
    /// Whether nothing is to be written.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.removed.is_empty()
    }

    /// A shard is read or written next.
    #[inline]
    pub(super) fn see(&mut self, shard: &Shard) {
        if let Some(gate) = shard.gate()
            && !self.seen.contains(shard.index())
        {
            let of = ShardSet::of(shard.index());
            self.seen = self.seen.union(of);
            if self.gates.iter().all(|seen| seen.shard() != of) {
                self.gates.push(SeenGate::of(of, gate));
            }
        }
    }

    /// Something is written to a shard.
    #[inline]
    pub(super) fn written(&mut self, shard: &Shard) {
        self.see(shard);
        self.wrote = true;
        let of = ShardSet::of(shard.index());
        self.written = self.written.union(of);
        self.touched = self.touched.union(of);
        self.committed = self.committed.without(of);
    }

    /// Whether what was in the store under `key` is to be removed with the range that it is in.
    #[inline]
    pub(super) fn removes(&self, key: &[u8]) -> bool {
        self.removed.iter().any(|removed| *removed.start <= *key && *key < *removed.end)
    }

    /// What is to be written, as stores take it: ranges before what was written into them
    /// afterwards.
    pub(super) fn operations(&self) -> impl Iterator<Item = Operation<'_>> + Clone {
        let removed = self.removed.iter().map(|range| Operation::DeleteRange { from: &range.start, to: &range.end });
        let written = self.pending.iter().filter_map(|(key, pending)| match pending {
            Some(PendingWrite { attributes, value }) => {
                Some(Operation::Put { key, attributes: *attributes, value: self.arena.bytes(value) })
            }
            None if self.removes(key) => None,
            None => Some(Operation::Delete { key }),
        });
        removed.chain(written)
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
pub(super) struct MemoryUse {
    /// By the commands that began together, all of it.
    pub(super) bytes: usize,
    /// What they may still take without asking.
    pub(super) free_bytes: usize,
    /// What the group has without having asked.
    pub(super) uncharged_bytes: usize,
    /// What the group has beyond that, and is counted among what all clients take.
    pub(super) charged_bytes: usize,
    /// Whether a command got no more.
    pub(super) is_refused: bool,
}

#[derive(Debug, Clone)]
pub(super) struct PendingWrite {
    pub(super) attributes: Attributes,
    pub(super) value: PendingValue,
}

/// The slots whose latches a group has.
#[derive(Debug, Default)]
pub(super) struct HeldLatches {
    /// In the order in which they were taken.
    pub(super) slots: Vec<Slot>,
    /// The same.
    all: SlotSet,
}

impl HeldLatches {
    #[inline]
    pub(super) fn has(&self, slot: Slot) -> bool {
        self.all.has(slot)
    }

    pub(super) fn push(&mut self, slot: Slot) {
        self.all.insert(slot);
        self.slots.push(slot);
    }

    pub(super) fn pop(&mut self) -> Option<Slot> {
        let slot = self.slots.pop()?;
        self.all.remove(slot);
        Some(slot)
    }
}

/// What a group has written within a range, beside a scan of the store.
pub(super) struct PendingScan<'p> {
    rest: Vec<(&'p StoredKey, Option<&'p PendingWrite>)>,
    direction: Direction,
    /// The last one that was taken.
    last: Option<&'p StoredKey>,
}

impl<'p> PendingScan<'p> {
    pub(super) fn new(pending: &'p PendingWrites, range: Range<&[u8]>, direction: Direction) -> Self {
        let within = pending.range::<[u8], _>((Bound::Included(range.start), Bound::Excluded(range.end)));
        let within = within.map(|(key, written)| (key, written.as_ref()));
        // Taken from the end.
        let rest = match direction {
            Direction::Forward => within.rev().collect(),
            Direction::Reverse => within.collect(),
        };
        Self { rest, direction, last: None }
    }

    pub(super) fn next(&mut self) -> Option<(&'p [u8], Option<&'p PendingWrite>)> {
        let (key, written) = self.rest.pop()?;
        self.last = Some(key);
        Some((key, written))
    }

    /// The next one, if it stands before `key` or at it.
    pub(super) fn next_before(&mut self, key: &[u8]) -> Option<(&'p [u8], Option<&'p PendingWrite>)> {
        let (next, _) = self.rest.last()?;
        let comes = match self.direction {
            Direction::Forward => next.as_slice() <= key,
            Direction::Reverse => next.as_slice() >= key,
        };
        if comes { self.next() } else { None }
    }

    /// Whether the one that was taken last stands in the place of `key`.
    pub(super) fn hides(&self, key: &[u8]) -> bool {
        self.last.is_some_and(|last| last.as_slice() == key)
    }
}
