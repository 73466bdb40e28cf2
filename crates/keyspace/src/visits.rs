//! Range reads as one command sees them: the pending writes of its group merged with a scan of the
//! store.
//!
//! Bounds: [`MAX_NONBLOCKING_VISITS`] entries for a thread that must not block.
//!
//! Threads: of one command, on one thread.

use std::ops::{ControlFlow, Range};

use ecotone_engine::{Attributes, Direction, Scan};

use crate::error::{Blocking, Failure, Outcome, texts};
use crate::key_count::{KeyCountEstimate, MAX_COUNTED, SlotSample};
use crate::keys::Keys;
use crate::layout::{self, CollectionId, Tag};
use crate::pending::PendingScan;
use crate::shards::Shard;
use crate::slot::Slot;
use crate::slow_reads::SlowReads;

/// Entries that are visited on behalf of one client while others wait for the thread.
const MAX_NONBLOCKING_VISITS: usize = 1000;

/// Removed entries in a row that are stepped over while others wait for a latch. The store has a
/// bound of its own where they wait for the thread.
const MAX_BRIEF_SKIPS: u64 = 2000;

/// A scan of the store that says at its end what it has stepped over.
struct Read<'s> {
    scan: Scan<'s>,
    slow_reads: &'s SlowReads,
    /// The collection whose elements it reads.
    of: Option<CollectionId>,
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        if let Some(of) = self.of {
            self.slow_reads.note(of, self.scan.skipped());
        }
    }
}

impl<'c> Keys<'c> {
    /// The shard of what stands under a key of the store's.
    fn shard_of(&self, stored: &[u8]) -> Outcome<&'c Shard> {
        self.shards.of_stored(stored).ok_or(texts::NOT_SERVED)
    }

    /// Shows `visit` the elements of a large collection with sub-keys in `range`, in their order or
    /// against it, until it breaks.
    pub fn visit_elements(
        &mut self,
        id: CollectionId,
        range: Range<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        self.visit(layout::element_range(id, range), direction, true, |key, _, value| {
            visit(layout::sub_key(key), value)
        })
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

    /// The same, in their order, for those with sub-keys from `from` on, as long as none is behind
    /// more than `max_skipped` removed ones in a row; nothing stands instead of values where it
    /// does not read those.
    ///
    /// # Errors
    ///
    /// [`Failure::WouldBlock`], also for who may wait, where one is.
    pub fn visit_elements_from(
        &mut self,
        id: CollectionId,
        from: &[u8],
        max_skipped: Option<u64>,
        reads_values: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let range = layout::element(id, &[from]).into_vec()..layout::elements(id).end;
        let visit = |key: &[u8], _: &Attributes, value: &[u8]| visit(layout::sub_key(key), value);
        let shard = self.shard_of(&range.start)?;
        self.visit_skipping(shard, range, Direction::Forward, reads_values, max_skipped, visit)
    }

    /// Shows `visit` the keys from `place` on whose time is not over: place, key and tag.
    pub fn visit_keys(&mut self, from_position: u32, visit: impl FnMut(u32, &[u8], Tag) -> ControlFlow<()>) -> Outcome {
        self.visit_keys_in(layout::from_position(from_position)..layout::all_keys().end, visit)
    }

    /// The same for the keys of one slot.
    pub fn visit_keys_of_slot(&mut self, slot: Slot, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Outcome {
        self.visit_keys_in(layout::keys_of_slot(slot), |_, key, _| visit(key))
    }

    fn visit_keys_in(
        &mut self,
        range: Range<Vec<u8>>,
        mut visit: impl FnMut(u32, &[u8], Tag) -> ControlFlow<()>,
    ) -> Outcome {
        let (keyspace, now_ms) = (self.keyspace, self.now_ms);
        self.visit_user_keys(range, |stored, attributes| match (layout::position_of(stored), Tag::of(attributes)) {
            (Some(place), Some(tag)) if keyspace.is_there(attributes.expires_at_ms, now_ms) => {
                visit(place, layout::user_key(stored), tag)
            }
            _ => ControlFlow::Continue(()),
        })
    }

    /// Shows `visit` the store's keys of users' keys in `range`, in their order, whichever shards
    /// they are in.
    fn visit_user_keys(
        &mut self,
        range: Range<Vec<u8>>,
        mut visit: impl FnMut(&[u8], &Attributes) -> ControlFlow<()>,
    ) -> Outcome {
        let first = layout::slot_of(&range.start).unwrap_or(Slot::FIRST);
        // One that ends where a slot begins has nothing of that slot.
        let last = layout::slot_of(&range.end).unwrap_or(Slot::LAST);
        let visited_before = self.stats.visited;
        let mut is_over = false;
        let shards = self.shards;
        for (shard, first, last) in shards.runs(first, last) {
            let [Some(first), Some(last)] = [first, last].map(Slot::new) else { continue };
            let from = range.start.clone().max(layout::keys_of_slot(first).start);
            let to = range.end.clone().min(layout::keys_of_slot(last).end);
            self.visit_skipping(shard, from..to, Direction::Forward, false, None, |stored, attributes, _| {
                let flow = visit(stored, attributes);
                is_over = flow.is_break();
                flow
            })?;
            if is_over {
                break;
            }
            let visited = self.stats.visited - visited_before;
            if visited > MAX_NONBLOCKING_VISITS as u64 && self.blocking != Blocking::Allowed {
                return Err(Failure::WouldBlock);
            }
        }
        Ok(())
    }

    /// Shows `visit` what stands in `range`, which is of one slot: key, what stands beside the
    /// value, and the value, or nothing instead of it where it does not read values.
    pub(super) fn visit(
        &mut self,
        range: Range<Vec<u8>>,
        direction: Direction,
        reads_values: bool,
        visit: impl FnMut(&[u8], &Attributes, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let shard = self.shard_of(&range.start)?;
        self.visit_skipping(shard, range, direction, reads_values, None, visit)
    }

    fn visit_skipping(
        &mut self,
        shard: &Shard,
        range: Range<Vec<u8>>,
        direction: Direction,
        reads_values: bool,
        max_skipped: Option<u64>,
        mut visit: impl FnMut(&[u8], &Attributes, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        if range.start >= range.end {
            return Ok(());
        }
        if !self.state.is_empty() {
            self.stats.is_uncommitted = true;
            self.state.touched.insert(shard.index());
        }
        self.state.has_read = true;
        self.state.see(shard);
        let store = shard.store();
        let snapshot = self.snapshot.and_then(|snapshot| snapshot.of(shard));
        let arena = &self.state.arena;
        let mut pending =
            PendingScan::new(&self.state.pending, range.start.as_slice()..range.end.as_slice(), direction);
        let removed: Vec<_> =
            self.state.removed.iter().filter(|it| it.start < range.end && range.start < it.end).collect();
        let is_removed = |key: &[u8]| removed.iter().any(|it| *it.start <= *key && *key < *it.end);
        if !self.state.removes_all(&range) {
            let range = range.start.as_slice()..range.end.as_slice();
            let max_skipped = if self.blocking == Blocking::Briefly { Some(MAX_BRIEF_SKIPS) } else { max_skipped };
            let scan = match (self.blocking, max_skipped) {
                (Blocking::Never, _) => store.try_scan(range.clone(), direction),
                (_, Some(most)) => store.scan_skipping(range.clone(), direction, most),
                (_, None) => store.scan(range.clone(), direction, snapshot)?,
            };
            let mut read = Read {
                scan,
                slow_reads: &self.keyspace.slow_reads,
                of: layout::element_of(range.start).map(|(id, _)| id),
            };
            let scan = &mut read.scan;
            let cancellation = self.state.cancellation.as_ref();
            let mut visited = 0;
            loop {
                if let Some(cancellation) = cancellation {
                    cancellation.step(1)?;
                }
                // Whoever is to close the store waits for this.
                if !shard.is_held() {
                    return Err(texts::NOT_SERVED);
                }
                let (key, attributes, value) = if reads_values {
                    let Some(entry) = scan.next_entry()? else { break };
                    (entry.key, entry.attributes, entry.value)
                } else {
                    let Some((key, attributes)) = scan.next_key()? else { break };
                    (key, attributes, &[][..])
                };
                visited += 1;
                self.stats.visited += 1;
                if visited > MAX_NONBLOCKING_VISITS && self.blocking != Blocking::Allowed {
                    return Err(Failure::WouldBlock);
                }
                while let Some((key, written)) = pending.next_before(key) {
                    if let Some(written) = written
                        && visit(key, &written.attributes, arena.bytes(&written.value)).is_break()
                    {
                        return Ok(());
                    }
                }
                if !pending.hides(key) && !is_removed(key) && visit(key, &attributes, value).is_break() {
                    return Ok(());
                }
            }
        }
        while let Some((key, written)) = pending.next() {
            if let Some(written) = written
                && visit(key, &written.attributes, arena.bytes(&written.value)).is_break()
            {
                return Ok(());
            }
        }
        Ok(())
    }

    /// How many keys there are, about. Takes a few milliseconds most of the time: for who may wait.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn estimate_key_count(&mut self) -> Outcome<KeyCountEstimate> {
        let now_ms = self.now_ms();
        let mut sample = SlotSample::default();
        let mut is_whole = true;
        self.visit_user_keys(layout::all_keys(), |_, attributes| {
            is_whole = sample.entries < MAX_COUNTED;
            if !is_whole {
                return ControlFlow::Break(());
            }
            sample.take(attributes, now_ms);
            ControlFlow::Continue(())
        })?;
        if !is_whole {
            self.shards.all().for_each(|shard| self.state.see(shard));
            let recent = |shard: &Shard| shard.key_count.recent(shard.store(), &self.keyspace.clock);
            return Ok(self.shards.all().map(recent).sum::<Result<_, _>>()?);
        }
        let expiring = sample.expires_at_ms.len() as u64;
        let ttl_ms: u128 = sample.expires_at_ms.iter().map(|at_ms| u128::from(at_ms - now_ms)).sum();
        let average_ttl_ms = if expiring > 0 { (ttl_ms / u128::from(expiring)) as u64 } else { 0 };
        Ok(KeyCountEstimate { keys: sample.keys, expiring, average_ttl_ms })
    }
}
