//! A replica's end of the stream: what it takes, in which order it is applied and synced, and what
//! it may say of it (rules 6, 7 and 9).
//!
//! Invariants: items are handed over in their order, each once, and only if its number and checksum
//! follow from what is there; what a GC instruction makes is there before a later MANIFEST edit is
//! handed over; "synced" is said of what was applied when a sync of the segments began, once that
//! sync and then one of the WAL have ended.

use std::collections::{BTreeSet, VecDeque};

use ecotone_control::ids::Epoch;

use crate::planted::Planted;
use crate::position::{Mark, Position};
use crate::stream::{Acknowledgement, FileKind, Item, Kind};

/// Beats whose items have not come yet.
const MAX_BEATS: usize = 16;

/// How old what a replica shows is, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staleness {
    /// Bytes of the stream that it lacks of what it knows of.
    pub bytes: u64,
    /// Time since it held all that the primary had.
    pub us: u64,
}

/// What must be synced next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// The segments of the value log.
    Segments,
    /// WAL, MANIFEST, and whatever else.
    Wal,
}

/// Takes the stream of one primary.
#[derive(Clone, Debug)]
pub struct Receiver {
    epoch: Epoch,
    /// The session, once there is one.
    session: Option<u64>,
    taken: Mark,
    applied: Mark,
    synced: Position,
    /// Taken, and not handed over: a MANIFEST edit is first, and waits.
    waiting: VecDeque<Item>,
    /// Handed over, and not applied.
    handed: VecDeque<Item>,
    /// GC instructions that are not carried out.
    collecting: BTreeSet<u64>,
    syncing: Option<(Sync, Position)>,
    window_bytes: u64,
    cost_applied: u64,
    end_bytes: Option<u64>,
    known_end_bytes: u64,
    beats: VecDeque<(Position, u64)>,
    fresh_us: Option<u64>,
    clock_limit_ms: u64,
    planted: Option<Planted>,
}

/// The items do not follow from what is there: ask for another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream does not continue what this copy has: some of it was lost or damaged on the way")]
pub struct Broken;

impl Receiver {
    /// Who holds `at`, of which nothing is known to be durable, and takes up to `window_bytes` that
    /// are not applied.
    pub fn new(at: Mark, clock_limit_ms: u64, window_bytes: u64) -> Self {
        Self {
            epoch: Epoch(0),
            session: None,
            taken: at,
            applied: at,
            synced: Position::default(),
            waiting: VecDeque::new(),
            handed: VecDeque::new(),
            collecting: BTreeSet::new(),
            syncing: None,
            window_bytes,
            cost_applied: 0,
            end_bytes: None,
            known_end_bytes: 0,
            beats: VecDeque::new(),
            fresh_us: None,
            clock_limit_ms,
            planted: None,
        }
    }

    #[doc(hidden)]
    pub fn plant(&mut self, planted: Option<Planted>) {
        self.planted = planted;
    }

    /// What it holds.
    pub fn applied(&self) -> Mark {
        self.applied
    }

    /// What it holds durably, since it was started.
    pub fn synced(&self) -> Position {
        self.synced
    }

    /// The session, if items are taken in one.
    pub fn session(&self) -> Option<(Epoch, u64)> {
        self.session.map(|session| (self.epoch, session))
    }

    /// The last limit of the clock that was applied.
    pub fn clock_limit_ms(&self) -> u64 {
        self.clock_limit_ms
    }

    /// How many bytes it takes in a new session.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Whether all that was taken is applied. Only then another session may begin.
    pub fn is_idle(&self) -> bool {
        self.handed.is_empty()
    }

    /// Ends the session: what was not handed over is dropped, and comes again.
    pub fn end_session(&mut self) {
        self.session = None;
        self.waiting.clear();
        self.taken = self.handed.back().map_or(self.applied, Item::mark);
        self.beats.clear();
    }

    /// A session begins, behind what is applied, which is all that `epoch` began with if it is of
    /// an earlier one.
    pub fn begin_session(&mut self, epoch: Epoch, session: u64) {
        if self.applied.position.epoch < epoch {
            // Durable as before, under its new name.
            let is_synced = self.synced == self.applied.position;
            self.applied = self.applied.open(epoch);
            if is_synced {
                self.synced = self.applied.position;
            }
        }
        if self.epoch != epoch {
            // Bytes are counted anew in each epoch.
            self.known_end_bytes = 0;
        }
        (self.epoch, self.session) = (epoch, Some(session));
        self.taken = self.applied;
        self.waiting.clear();
        self.cost_applied = 0;
        self.end_bytes = None;
        self.beats.clear();
    }

    /// Another directory has taken the place of what was there, or it was completed.
    pub fn replaced(&mut self, at: Mark, clock_limit_ms: u64) {
        let planted = self.planted;
        let clock_limit_ms = self.clock_limit_ms.max(clock_limit_ms);
        *self = Self { planted, ..Self::new(at, clock_limit_ms, self.window_bytes) };
    }

    /// Takes items.
    ///
    /// # Errors
    /// When they do not follow: nothing of them was taken from there on.
    pub fn items(&mut self, items: &[Item], end_bytes: u64) -> Result<(), Broken> {
        for item in items {
            if item.position.number <= self.taken.position.number {
                // It came in the session before. Its credit is given back all the same.
                self.cost_applied += item.cost();
                continue;
            }
            if !item.follows(self.taken) && !self.takes_anything() {
                return Err(Broken);
            }
            self.taken = item.mark();
            self.waiting.push_back(*item);
        }
        self.known_end_bytes = self.known_end_bytes.max(end_bytes);
        self.end_bytes = Some(end_bytes);
        Ok(())
    }

    /// The next item to apply.
    pub fn next_item(&mut self) -> Option<Item> {
        let edits = |item: &Item| matches!(item.kind, Kind::Append { file: FileKind::Manifest, .. });
        let item = self.waiting.pop_front_if(|item| !edits(item) || self.collecting.is_empty())?;
        if let Kind::Collect { .. } = item.kind {
            self.collecting.insert(item.position.number);
        }
        self.handed.push_back(item);
        Some(item)
    }

    /// It is the primary, and has written this itself.
    pub fn wrote(&mut self, at: Mark, clock_limit_ms: u64) {
        (self.taken, self.applied) = (at, at);
        self.clock_limit_ms = self.clock_limit_ms.max(clock_limit_ms);
    }

    /// What a GC instruction makes is there, verified and durable: copied here, or fetched where
    /// that was not possible. Or the directory has written it down, and itself keeps edits that may
    /// name it out of force until it is.
    pub fn collected(&mut self, position: Position) {
        self.collecting.remove(&position.number);
    }

    /// All items up to `position` are in the kernel's memory. (A GC instruction is applied when it
    /// is written down.)
    pub fn applied_up_to(&mut self, position: Position) {
        while let Some(item) = self.handed.pop_front_if(|item| item.position <= position) {
            self.applied = item.mark();
            self.cost_applied += item.cost();
            if let Kind::Clock { limit_ms } = item.kind {
                self.clock_limit_ms = self.clock_limit_ms.max(limit_ms);
            }
        }
        self.judge_beats();
    }

    /// What was handed over and is not applied was thrown away by the directory. It comes again, in
    /// another session.
    pub fn abandoned(&mut self) {
        for item in self.handed.drain(..) {
            self.collecting.remove(&item.position.number);
        }
        self.end_session();
    }

    /// Begins to sync what is applied, if that is not under way and is of use.
    pub fn begin_sync(&mut self) -> Option<Sync> {
        if self.syncing.is_some() || self.synced == self.applied.position {
            return None;
        }
        let first = if self.planted == Some(Planted::WalFirst) { Sync::Wal } else { Sync::Segments };
        self.syncing = Some((first, self.applied.position));
        Some(first)
    }

    /// A sync has ended. Says what is synced next; nothing when what was applied at the beginning
    /// is durable.
    pub fn sync_ended(&mut self) -> Option<Sync> {
        let (stage, up_to) = self.syncing.take()?;
        let is_first = (stage == Sync::Segments) != (self.planted == Some(Planted::WalFirst));
        if self.planted == Some(Planted::WalFirst) && is_first {
            self.synced = self.synced.max(up_to);
        }
        if is_first {
            let next = if stage == Sync::Segments { Sync::Wal } else { Sync::Segments };
            self.syncing = Some((next, up_to));
            return Some(next);
        }
        self.synced = self.synced.max(up_to);
        None
    }

    /// A sync has failed: the next one begins anew.
    pub fn sync_failed(&mut self) {
        self.syncing = None;
    }

    /// What it may say.
    pub fn acknowledgement(&self, now_us: u64) -> Acknowledgement {
        let received = self.applied.position;
        // What was synced before an epoch began is all of what it began with, or is not known here.
        let synced = if self.synced.epoch == self.epoch { self.synced } else { Position::default() };
        let synced = if self.planted == Some(Planted::SyncedUnsynced) { received } else { synced };
        Acknowledgement { received, synced, credit: self.cost_applied + self.window_bytes, now_us }
    }

    /// The primary says where it is, and up to where it has sent items; `echo_us` is a time of this
    /// server's clock, before which the primary was not there yet.
    ///
    /// # Errors
    /// When something that was sent is not there, or there is something else.
    pub fn beat(&mut self, last: Mark, sent: Position, end_bytes: u64, echo_us: u64) -> Result<(), Broken> {
        self.known_end_bytes = self.known_end_bytes.max(end_bytes);
        let is_other = last.position == self.taken.position && last != self.taken;
        if (is_other || sent > self.taken.position) && !self.takes_anything() {
            return Err(Broken);
        }
        if echo_us > 0 && self.beats.len() < MAX_BEATS {
            self.beats.push_back((last.position, echo_us));
        }
        self.judge_beats();
        Ok(())
    }

    fn takes_anything(&self) -> bool {
        matches!(self.planted, Some(Planted::TakeAnything | Planted::AttachAnywhere))
    }

    fn judge_beats(&mut self) {
        while let Some((_, echo_us)) = self.beats.pop_front_if(|(last, _)| *last <= self.applied.position) {
            self.fresh_us = self.fresh_us.max(Some(echo_us));
        }
    }

    /// How stale what it shows is. None until that is known.
    pub fn staleness(&self, now_us: u64) -> Option<Staleness> {
        let behind = self.waiting.iter().chain(&self.handed).map(|item| item.bytes).sum::<u64>();
        let untaken = self.known_end_bytes.saturating_sub(self.end_bytes?);
        Some(Staleness { bytes: behind + untaken, us: now_us.saturating_sub(self.fresh_us?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::ContentId;

    const WINDOW_BYTES: u64 = 1_000;

    /// Items that follow each other, of these kinds.
    fn items(kinds: &[Kind]) -> Vec<Item> {
        let mut before = start();
        let behind = |kind: &Kind| {
            let item = Item::behind(before, *kind, 10, 0);
            before = item.mark();
            item
        };
        kinds.iter().map(behind).collect()
    }

    fn start() -> Mark {
        Mark::default().open(Epoch(1))
    }

    fn receiver() -> Receiver {
        let mut receiver = Receiver::new(Mark::default(), 0, WINDOW_BYTES);
        receiver.begin_session(Epoch(1), 1);
        receiver
    }

    fn append(file: FileKind) -> Kind {
        Kind::Append { file, number: 1, offset: 0 }
    }

    const COLLECT: Kind = Kind::Collect { content: ContentId { len: 1, hash: 1 }, number: 9 };

    #[test]
    fn an_edit_waits_for_what_it_may_name() {
        let kinds = [COLLECT, append(FileKind::Wal), append(FileKind::Manifest), append(FileKind::Wal)];
        let items = items(&kinds);
        let mut receiver = receiver();
        receiver.items(&items, 40).unwrap();
        assert_eq!(receiver.next_item(), Some(items[0]));
        assert_eq!(receiver.next_item(), Some(items[1]), "the WAL does not wait");
        assert_eq!(receiver.next_item(), None, "the edit may name what is being collected");
        receiver.applied_up_to(items[1].position);
        assert_eq!(receiver.acknowledgement(0).received, items[1].position, "nor is it acknowledged");
        receiver.collected(items[0].position);
        assert_eq!((receiver.next_item(), receiver.next_item()), (Some(items[2]), Some(items[3])));
    }

    #[test]
    fn what_is_abandoned_comes_again() {
        let kinds = [append(FileKind::Wal), COLLECT, append(FileKind::Manifest), append(FileKind::Wal)];
        let items = items(&kinds);
        let mut receiver = receiver();
        receiver.items(&items, 40).unwrap();
        while receiver.next_item().is_some() {}
        receiver.applied_up_to(items[0].position);
        assert!(!receiver.is_idle());
        receiver.abandoned();
        assert!(receiver.is_idle());
        assert_eq!((receiver.applied(), receiver.session()), (items[0].mark(), None));
        receiver.begin_session(Epoch(1), 2);
        receiver.items(&items[1..], 40).unwrap();
        assert_eq!((receiver.next_item(), receiver.next_item()), (Some(items[1]), None), "collected anew");
        receiver.collected(items[1].position);
        assert_eq!(receiver.next_item(), Some(items[2]));
    }

    #[test]
    fn synced_is_what_was_applied_when_both_syncs_began() {
        let items = items(&[append(FileKind::Segment), append(FileKind::Wal), append(FileKind::Wal)]);
        let mut receiver = receiver();
        receiver.items(&items, 30).unwrap();
        while receiver.next_item().is_some() {}
        receiver.applied_up_to(items[1].position);
        assert_eq!(receiver.begin_sync(), Some(Sync::Segments));
        assert_eq!(receiver.begin_sync(), None, "one at a time");
        receiver.applied_up_to(items[2].position);
        assert_eq!(receiver.sync_ended(), Some(Sync::Wal));
        assert_eq!(receiver.acknowledgement(0).synced, start().position, "nothing, durably");
        assert_eq!(receiver.sync_ended(), None);
        let said = receiver.acknowledgement(0);
        assert_eq!((said.received, said.synced), (items[2].position, items[1].position));
    }

    #[test]
    fn bytes_behind_are_those_of_the_epoch() {
        let mut receiver = receiver();
        let item = items(&[append(FileKind::Wal)])[0];
        receiver.items(&[item], 10 << 30).unwrap();
        receiver.next_item();
        receiver.applied_up_to(item.position);
        receiver.begin_session(Epoch(2), 1);
        let first = Item::behind(receiver.applied(), append(FileKind::Wal), 10, 0);
        receiver.items(&[first], 10).unwrap();
        receiver.next_item();
        receiver.applied_up_to(first.position);
        receiver.beat(first.mark(), first.position, 10, 100).unwrap();
        assert_eq!(receiver.staleness(150), Some(Staleness { bytes: 0, us: 50 }));
    }

    #[test]
    fn what_is_missing_or_damaged_breaks_the_session() {
        let items = items(&[append(FileKind::Wal), append(FileKind::Wal), append(FileKind::Wal)]);
        let mut one = receiver();
        assert_eq!(one.items(&items[1..], 30), Err(Broken));
        let mut damaged = items.clone();
        damaged[1].checksum ^= 1;
        assert_eq!(one.items(&damaged, 30), Err(Broken));
        assert_eq!(one.next_item(), Some(items[0]), "what came before it was taken");
        assert_eq!(one.next_item(), None);
        assert_eq!(one.items(&items[..2], 20), Ok(()), "what is there is passed over");
        assert_eq!(one.next_item(), Some(items[1]));
        // The last item was lost, and nothing follows it.
        assert_eq!(one.beat(items[2].mark(), items[1].position, 30, 0), Ok(()), "not sent yet");
        assert_eq!(one.beat(items[2].mark(), items[2].position, 30, 0), Err(Broken));
        let other = Mark { chain: 77, ..items[1].mark() };
        assert_eq!(one.beat(other, items[1].position, 30, 0), Err(Broken), "the same place, other contents");
    }

    #[test]
    fn credit_counts_what_is_applied() {
        let items = items(&[append(FileKind::Wal), append(FileKind::Wal)]);
        let mut receiver = receiver();
        receiver.items(&items, 20).unwrap();
        while receiver.next_item().is_some() {}
        assert_eq!(receiver.acknowledgement(0).credit, WINDOW_BYTES);
        receiver.applied_up_to(items[0].position);
        assert_eq!(receiver.acknowledgement(0).credit, WINDOW_BYTES + items[0].cost());
    }

    #[test]
    fn staleness_is_known_by_what_the_primary_echoed() {
        let items = items(&[append(FileKind::Wal), append(FileKind::Wal)]);
        let mut receiver = receiver();
        assert_eq!(receiver.staleness(50), None);
        receiver.items(&items[..1], 10).unwrap();
        receiver.beat(items[1].mark(), items[0].position, 20, 100).unwrap();
        assert_eq!(receiver.staleness(150), None, "what was there at 100 is not");
        receiver.items(&items[1..], 20).unwrap();
        while receiver.next_item().is_some() {}
        receiver.applied_up_to(items[0].position);
        assert_eq!(receiver.staleness(150), None);
        receiver.applied_up_to(items[1].position);
        assert_eq!(receiver.staleness(150), Some(Staleness { bytes: 0, us: 50 }));
        // A primary without a lease echoes nothing.
        receiver.beat(items[1].mark(), items[1].position, 25, 0).unwrap();
        assert_eq!(receiver.staleness(250), Some(Staleness { bytes: 5, us: 150 }));
    }

    #[test]
    fn the_limit_of_the_clock_never_falls() {
        let items = items(&[Kind::Clock { limit_ms: 70 }, Kind::Clock { limit_ms: 50 }]);
        let mut receiver = receiver();
        receiver.items(&items, 20).unwrap();
        while receiver.next_item().is_some() {}
        assert_eq!(receiver.clock_limit_ms(), 0, "not applied");
        receiver.applied_up_to(items[1].position);
        assert_eq!(receiver.clock_limit_ms(), 70);
        receiver.replaced(items[0].mark(), 60);
        assert_eq!(receiver.clock_limit_ms(), 70);
    }
}
