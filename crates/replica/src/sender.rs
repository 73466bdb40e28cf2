//! The primary's end of the stream: what is kept for whom, and what may be sent.
//!
//! Nothing here waits: an item is appended whatever the copies do. Each copy gives credit in bytes;
//! what it has no credit for is not sent. Items stay until every copy that follows has synced them,
//! within [`Limits::max_lag_bytes`], or [`Limits::max_seed_bytes`] while a copy is being seeded, as
//! what is written meanwhile must follow its seed. An item counts with its cost, as many have few
//! bytes or none, and there are never more than [`MAX_KEPT_ITEMS`]. A copy that falls behind what is
//! kept begins again with its files.
//!
//! While a message to a copy is on its way, what is appended waits for the next one: until the copy
//! has acknowledged it, [`MIN_MESSAGE_BYTES`] have gathered, or [`MAX_HOLD_US`] have passed. So a
//! writer that waits for each of its writes is sent at once, and many writers share messages.
//!
//! Only what describes items is kept; their bytes are read again from the files that they are in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ecotone_control::ids::{Epoch, MemberId};

use crate::commit::Durability;
use crate::planted::Planted;
use crate::position::{History, Mark, Position, Relation};
use crate::stream::{
    Acknowledgement, Hello, ITEM_BYTES, Item, Kind, MAX_ITEMS, MAX_MESSAGE_BYTES, Resume, ToCopy, ToCopyBody,
};

/// Items that are kept, whatever their bytes: about 128 MiB of memory.
pub const MAX_KEPT_ITEMS: usize = 1 << 20;

/// So much is worth a message, whatever is on its way.
pub const MIN_MESSAGE_BYTES: u64 = 64 << 10;
/// Items wait no longer for others than this after the message before.
pub const MAX_HOLD_US: u64 = 2_000;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A copy that lacks more leaves the set (`replication.max_lag_bytes`).
    pub max_lag_bytes: u64,
    /// What is kept for a copy that is being seeded, and has not caught up yet.
    pub max_seed_bytes: u64,
}

/// What is known of a copy that follows.
#[derive(Clone, Debug)]
struct Follower {
    session: u64,
    /// Its files are being completed; what follows is kept from this item on.
    seeding_from: Option<u64>,
    sent: u64,
    /// When the last items were sent.
    sent_us: u64,
    received: Position,
    synced: Position,
    cost_sent: u64,
    credit: u64,
    echo_us: u64,
    has_caught_up: bool,
}

/// The stream of one epoch.
#[derive(Clone, Debug)]
pub struct Sender {
    epoch: Epoch,
    limits: Limits,
    history: History,
    /// What is kept, each with the bytes of the stream up to it.
    items: VecDeque<(Item, u64)>,
    /// What comes before it.
    before: (Mark, u64),
    followers: BTreeMap<MemberId, Follower>,
    sessions: u64,
    /// See [`is_holding`](Self::is_holding).
    is_holding: bool,
    planted: Option<Planted>,
}

impl Sender {
    /// The stream of `epoch`, which begins with what was held at the last end of `history`.
    pub fn new(epoch: Epoch, history: History, limits: Limits) -> Self {
        let opened = history.ends().last().copied().unwrap_or_default();
        Self {
            epoch,
            limits,
            before: (opened.open(epoch), 0),
            history,
            items: VecDeque::new(),
            followers: BTreeMap::new(),
            sessions: 0,
            is_holding: false,
            planted: None,
        }
    }

    #[doc(hidden)]
    pub fn plant(&mut self, planted: Option<Planted>) {
        self.planted = planted;
    }

    /// From now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The number of the first item that is kept, or of the next one.
    pub fn first_kept(&self) -> u64 {
        self.before.0.position.number + 1
    }

    /// The last item, or the beginning of the epoch.
    pub fn last(&self) -> Mark {
        self.items.back().map_or(self.before.0, |(item, _)| item.mark())
    }

    /// Where the epochs before this one ended.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The bytes of the stream, in this epoch.
    pub fn end_bytes(&self) -> u64 {
        self.items.back().map_or(self.before.1, |(_, end)| *end)
    }

    /// The bytes of items that are kept.
    pub fn kept_bytes(&self) -> u64 {
        self.end_bytes() - self.before.1
    }

    /// What flow control counts of them.
    fn kept_cost(&self) -> u64 {
        self.kept_bytes() + self.items.len() as u64 * ITEM_BYTES
    }

    /// What it counts of those behind `position`, as far as they are kept.
    fn cost_behind(&self, position: Position) -> u64 {
        let number = if position.epoch == self.epoch { position.number } else { 0 };
        let items =
            self.last().position.number - number.clamp(self.before.0.position.number, self.last().position.number);
        self.end_bytes() - self.end_at(position) + items * ITEM_BYTES
    }

    /// The directory has changed.
    pub fn append(&mut self, kind: Kind, bytes: u64, checksum: u32) -> Item {
        let item = Item::behind(self.last(), kind, bytes, checksum);
        let end = self.end_bytes() + bytes;
        self.items.push_back((item, end));
        item
    }

    /// A copy asks for a session. None if it is ahead of this epoch.
    pub fn hello(&mut self, from: MemberId, hello: &Hello, is_distrusted: bool) -> Option<ToCopy> {
        let resume = self.resume(hello)?;
        self.sessions += 1;
        let session = self.sessions;
        let is_here = hello.applied.position.epoch == self.epoch && resume == Resume::Stream;
        let at = if is_here { hello.applied.position } else { Position::begin(self.epoch) };
        let at = if resume == Resume::Stream { at } else { self.last().position };
        let synced = if is_here { self.before.0.position } else { Position::begin(self.epoch) };
        let follower = Follower {
            session,
            seeding_from: (resume != Resume::Stream).then_some(at.number),
            sent: at.number,
            sent_us: 0,
            received: if resume == Resume::Stream { at } else { Position::default() },
            // What it has synced it will say. Until then all that is kept is kept for it.
            synced,
            cost_sent: 0,
            credit: hello.credit,
            echo_us: 0,
            has_caught_up: false,
        };
        self.followers.insert(from, follower);
        let history = self.history.clone();
        Some(self.to_copy(session, ToCopyBody::Open { resume, history, is_distrusted }))
    }

    fn resume(&self, hello: &Hello) -> Option<Resume> {
        let at = hello.applied.position;
        if at.epoch > self.epoch {
            return None;
        }
        if self.planted == Some(Planted::AttachAnywhere) && at.epoch < self.epoch && self.before.0.position.number == 0
        {
            return Some(Resume::Stream);
        }
        if !hello.is_exact {
            return Some(Resume::Rebuild);
        }
        if at.epoch < self.epoch {
            return Some(match self.history.relation(hello.applied) {
                Relation::Same if self.before.0.position.number == 0 => Resume::Stream,
                Relation::Same | Relation::Behind => Resume::Complete,
                Relation::Diverged => Resume::Rebuild,
            });
        }
        if at.number < self.before.0.position.number {
            return Some(Resume::Complete);
        }
        // Also when it has more than there is: a position that was never told.
        let known = self.mark_at(at.number);
        let is_ours = known == Some(hello.applied);
        Some(if is_ours { Resume::Stream } else { Resume::Rebuild })
    }

    fn mark_at(&self, number: u64) -> Option<Mark> {
        let (before, _) = self.before;
        let at = number.checked_sub(before.position.number)?;
        if at == 0 { Some(before) } else { self.items.get(at as usize - 1).map(|(item, _)| item.mark()) }
    }

    /// The bytes of the stream up to an item of this epoch; what is no longer kept counts as its
    /// end.
    fn end_at(&self, position: Position) -> u64 {
        let number = if position.epoch == self.epoch { position.number } else { 0 };
        let at = number.saturating_sub(self.before.0.position.number) as usize;
        at.checked_sub(1).and_then(|at| self.items.get(at)).map_or(self.before.1, |(_, end)| *end)
    }

    /// A copy says how far it is. False if it speaks of another session, or of what there is not.
    pub fn acknowledged(&mut self, from: MemberId, session: u64, said: &Acknowledgement) -> bool {
        let last = self.last().position;
        let Some(follower) = self.followers.get_mut(&from) else { return false };
        let is_credible = said.synced <= said.received && said.received <= last;
        if follower.session != session || follower.seeding_from.is_some() || !is_credible {
            return false;
        }
        // It may have more than it was sent in this session: it greeted twice, and took items in the
        // session that the first greeting began before the answer to the second one came. They are of
        // this epoch, so nobody else has sent them, and they need not be sent again.
        if said.received.epoch == self.epoch {
            follower.sent = follower.sent.max(said.received.number);
        }
        follower.received = follower.received.max(said.received);
        follower.synced = follower.synced.max(said.synced);
        follower.credit = follower.credit.max(said.credit);
        follower.echo_us = follower.echo_us.max(said.now_us);
        let received = follower.received;
        let lag = self.cost_behind(received);
        if let Some(follower) = self.followers.get_mut(&from) {
            follower.has_caught_up |= lag <= self.limits.max_lag_bytes / 2;
        }
        true
    }

    /// Whether a copy is in a session, gets items, and has been within reach of the end.
    pub fn is_following(&self, member: MemberId) -> bool {
        self.followers.get(&member).is_some_and(|follower| follower.seeding_from.is_none() && follower.has_caught_up)
    }

    /// The session of a copy.
    pub fn session(&self, member: MemberId) -> Option<u64> {
        self.followers.get(&member).map(|follower| follower.session)
    }

    /// The bytes that a copy has not received, if it is followed.
    pub fn lag_bytes(&self, member: MemberId) -> Option<u64> {
        let follower = self.followers.get(&member).filter(|follower| follower.seeding_from.is_none())?;
        Some(self.end_bytes() - self.end_at(follower.received))
    }

    /// How many copies have `position`: what WAIT and WAITAOF count.
    pub fn count(&self, position: Position, durability: Durability) -> usize {
        let has = |follower: &&Follower| match durability {
            Durability::Received => follower.received >= position,
            Durability::Synced => follower.synced >= position,
        };
        self.followers.values().filter(has).count()
    }

    /// From where a copy is best seeded: the one that has most, and is not the primary.
    pub fn seed_source(&self, copy: MemberId) -> Option<MemberId> {
        let others = self.followers.iter().filter(|(member, _)| **member != copy && self.is_following(**member));
        others
            .max_by_key(|(member, follower)| (follower.synced, std::cmp::Reverse(**member)))
            .map(|(member, _)| *member)
    }

    /// What a seed from `source` is followed by is kept from here on.
    pub fn pin_seed(&mut self, copy: MemberId, source: MemberId) {
        let from = self.followers.get(&source).map(|source| source.received);
        let from = from.filter(|from| from.epoch == self.epoch).map(|from| from.number);
        if let (Some(from), Some(follower)) = (from, self.followers.get_mut(&copy))
            && let Some(seeding_from) = &mut follower.seeding_from
        {
            *seeding_from = (*seeding_from).min(from);
        }
    }

    /// Whether something on its way to a copy was not acknowledged yet.
    fn is_awaited(&self, follower: &Follower) -> bool {
        let received = if follower.received.epoch == self.epoch { follower.received.number } else { 0 };
        received < follower.sent
    }

    /// What flow control counts of all that was not sent to a copy.
    fn unsent_cost(&self, follower: &Follower) -> u64 {
        self.cost_behind(Position { epoch: self.epoch, number: follower.sent })
    }

    /// Whether the item that was appended last is a reason to look at [`next_items`](Self::next_items)
    /// now. If not, one that was appended before was.
    pub fn is_due(&self) -> bool {
        let last = self.last().position.number;
        self.followers.values().filter(|follower| follower.seeding_from.is_none()).any(|follower| {
            follower.sent + 1 == last || !self.is_awaited(follower) || self.unsent_cost(follower) >= MIN_MESSAGE_BYTES
        })
    }

    /// Whether [`next_items`](Self::next_items) has left items that wait for others: it sends them
    /// within [`MAX_HOLD_US`] if somebody looks. That their time has passed since is no reason not to.
    pub fn is_holding(&self) -> bool {
        self.is_holding
    }

    /// The next message for each copy that has credit for it. Call it until there is none.
    pub fn next_items(&mut self, now_us: u64) -> Vec<(MemberId, ToCopy)> {
        let mut messages = Vec::new();
        let first = self.before.0.position.number;
        let waits = |follower: &Follower| {
            now_us < follower.sent_us + MAX_HOLD_US
                && self.is_awaited(follower)
                && self.unsent_cost(follower) < MIN_MESSAGE_BYTES
        };
        let waiting: BTreeSet<MemberId> =
            self.followers.iter().filter(|(_, follower)| waits(follower)).map(|(member, _)| *member).collect();
        let last = self.last().position.number;
        self.is_holding =
            waiting.iter().any(|member| self.followers.get(member).is_some_and(|follower| follower.sent < last));
        for (member, follower) in &mut self.followers {
            if follower.seeding_from.is_some() || follower.sent < first || waiting.contains(member) {
                continue;
            }
            let (mut items, mut bytes, mut end_bytes) = (Vec::new(), 0, 0);
            for (item, end) in self.items.range((follower.sent - first) as usize..) {
                let cost = item.cost();
                let is_full = items.len() == MAX_ITEMS || (!items.is_empty() && bytes + cost > MAX_MESSAGE_BYTES);
                // One item is sent however large it is, if all before it was taken.
                let has_credit = follower.cost_sent + cost <= follower.credit || follower.cost_sent == 0;
                if is_full || !has_credit {
                    break;
                }
                follower.cost_sent += cost;
                (follower.sent, follower.sent_us) = (item.position.number, now_us);
                (bytes, end_bytes) = (bytes + cost, *end);
                items.push(*item);
            }
            if !items.is_empty() {
                let body = ToCopyBody::Items { items, end_bytes };
                messages.push((*member, ToCopy { epoch: self.epoch, session: follower.session, body }));
            }
        }
        messages
    }

    /// What is sent when nothing else is, so that each copy knows how far behind it is. A primary
    /// without a lease does not know how old its own state is, and echoes no time.
    pub fn beats(&self, has_lease: bool) -> Vec<(MemberId, ToCopy)> {
        let beat = |follower: &Follower| ToCopyBody::Beat {
            last: self.last(),
            sent: Position { epoch: self.epoch, number: follower.sent },
            end_bytes: self.end_bytes(),
            echo_us: if has_lease { follower.echo_us } else { 0 },
        };
        let followers = self.followers.iter();
        followers.map(|(member, follower)| (*member, self.to_copy(follower.session, beat(follower)))).collect()
    }

    /// Drops what nobody needs or what is too much, and says which copies must begin again.
    pub fn trim(&mut self) -> Vec<MemberId> {
        let mut dropped: Vec<MemberId> = Vec::new();
        for (member, follower) in &self.followers {
            let is_streaming = follower.seeding_from.is_none() && follower.has_caught_up;
            if is_streaming && self.cost_behind(follower.received) > self.limits.max_lag_bytes {
                dropped.push(*member);
            }
        }
        for member in &dropped {
            self.followers.remove(member);
        }
        let pins_seeds = self.planted != Some(Planted::SeedUnpinned);
        let number = |position: Position| if position.epoch == self.epoch { position.number } else { 0 };
        let pins = self.followers.values().filter_map(|follower| match follower.seeding_from {
            Some(from) => Some(from).filter(|_| pins_seeds),
            None => Some(number(follower.synced)),
        });
        let pin = pins.min().unwrap_or(u64::MAX);
        let is_seeding = self.followers.values().any(|follower| !follower.has_caught_up) && pins_seeds;
        let limit = if is_seeding { self.limits.max_seed_bytes } else { self.limits.max_lag_bytes };
        while let Some((item, end)) = self.items.front() {
            let is_much = self.kept_cost() > limit || self.items.len() > MAX_KEPT_ITEMS;
            if item.position.number > pin && !is_much {
                break;
            }
            self.before = (item.mark(), *end);
            self.items.pop_front();
        }
        let first = self.before.0.position.number;
        let is_lost = |follower: &Follower| follower.seeding_from.unwrap_or(follower.sent) < first;
        let lost = self.followers.iter().filter(|(_, follower)| is_lost(follower) && pins_seeds);
        let lost: Vec<MemberId> = lost.map(|(member, _)| *member).collect();
        for member in &lost {
            self.followers.remove(member);
        }
        dropped.extend(lost);
        dropped
    }

    /// The bytes of an item can be read no more: it and all before it are kept no longer. Says which
    /// copies lack it, and must begin again with their files.
    pub fn lose(&mut self, lost: Position) -> Vec<MemberId> {
        while let Some((item, end)) = self.items.pop_front_if(|(item, _)| item.position <= lost) {
            self.before = (item.mark(), end);
        }
        // What is on its way to a copy never comes.
        let has = |follower: &Follower| match follower.seeding_from {
            Some(from) => Position { epoch: self.epoch, number: from },
            None => follower.received,
        };
        let lacking = self.followers.iter().filter(|(_, follower)| has(follower) < lost);
        let lacking: Vec<MemberId> = lacking.map(|(member, _)| *member).collect();
        for member in &lacking {
            self.followers.remove(member);
        }
        lacking
    }

    /// Nothing more is sent to it.
    pub fn forget(&mut self, member: MemberId) {
        self.followers.remove(&member);
    }

    /// The messages of `session`.
    pub fn to_copy(&self, session: u64, body: ToCopyBody) -> ToCopy {
        ToCopy { epoch: self.epoch, session, body }
    }
}

#[cfg(test)]
mod tests {
    use ecotone_control::ids::DirectoryId;
    use proptest::prelude::*;

    use super::*;
    use crate::position::{BootId, Incarnation};
    use crate::receiver::Receiver;
    use crate::stream::FileKind;

    const COPY: MemberId = MemberId(2);
    const NOW: u64 = 1_000_000;
    const LIMITS: Limits = Limits { max_lag_bytes: 1_000, max_seed_bytes: 10_000 };
    const WAL: Kind = Kind::Append { file: FileKind::Wal, number: 1, offset: 0 };

    fn end(epoch: u64, number: u64) -> Mark {
        Mark { position: Position { epoch: Epoch(epoch), number }, chain: 5 }
    }

    fn sender() -> Sender {
        Sender::new(Epoch(3), History::default().and(end(1, 40)), LIMITS)
    }

    fn hello(applied: Mark) -> Hello {
        let incarnation = Incarnation { directory: DirectoryId([0; 16]), boot: BootId([0; 16]) };
        Hello { incarnation, applied, is_exact: true, is_whole: true, credit: 100_000 }
    }

    fn resume(sender: &mut Sender, hello: &Hello) -> Option<Resume> {
        match sender.hello(COPY, hello, false)?.body {
            ToCopyBody::Open { resume, .. } => Some(resume),
            _ => None,
        }
    }

    fn acknowledge(sender: &mut Sender, number: u64, credit: u64) -> bool {
        let at = Position { epoch: Epoch(3), number };
        let session = sender.session(COPY).unwrap();
        sender.acknowledged(COPY, session, &Acknowledgement { received: at, synced: at, credit, now_us: 1 })
    }

    #[test]
    fn copies_go_on_where_they_are_or_begin_again() {
        let mut sender = sender();
        let items: Vec<Item> = (0..5).map(|_| sender.append(WAL, 10, 0)).collect();
        let mut resumes = |applied| resume(&mut sender, &hello(applied));
        assert_eq!(resumes(items[2].mark()), Some(Resume::Stream));
        assert_eq!(resumes(end(1, 40)), Some(Resume::Stream), "all that the epoch began with");
        assert_eq!(resumes(end(1, 39)), Some(Resume::Complete));
        assert_eq!(resumes(end(1, 41)), Some(Resume::Rebuild));
        assert_eq!(resumes(end(2, 1)), Some(Resume::Rebuild));
        assert_eq!(resumes(end(4, 1)), None, "this primary is not the last one");
        assert_eq!(resumes(Mark { chain: 7, ..items[2].mark() }), Some(Resume::Rebuild));
        assert_eq!(resumes(end(3, 9)), Some(Resume::Rebuild), "more than there is");
        let inexact = Hello { is_exact: false, ..hello(items[2].mark()) };
        assert_eq!(resume(&mut sender, &inexact), Some(Resume::Rebuild));
    }

    /// An answer of the session before arrives, and items with it, when the copy has greeted again.
    #[test]
    fn a_copy_that_took_more_than_its_session_sent_goes_on_from_there() {
        let mut sender = sender();
        let cost = 100 + crate::stream::ITEM_BYTES;
        let greeting = |number: u64| {
            let position = Position { epoch: Epoch(3), number };
            let applied = if number == 0 { end(1, 40) } else { Mark { position, chain: 0 } };
            Hello { credit: 2 * cost, ..hello(applied) }
        };
        let items: Vec<Item> = (0..9).map(|_| sender.append(WAL, 100, 0)).collect();
        // It greets, waits for too long, greets again; the first session sends two items, which are
        // acknowledged, and then two more, and then the second greeting is answered.
        resume(&mut sender, &greeting(0));
        assert_eq!(sender.next_items(NOW).len(), 1);
        assert!(acknowledge(&mut sender, 2, 4 * cost));
        assert_eq!(sender.next_items(NOW).len(), 1);
        resume(&mut sender, &greeting(0));
        let mut receiver = Receiver::new(end(1, 40), 0, 2 * cost);
        receiver.begin_session(Epoch(3), 1);
        receiver.items(&items[..4], 400).unwrap();
        while let Some(item) = receiver.next_item() {
            receiver.applied_up_to(item.position);
        }
        receiver.end_session();
        receiver.begin_session(Epoch(3), 2);
        for _ in 0..5 {
            for (_, message) in sender.next_items(NOW) {
                if let ToCopyBody::Items { items, end_bytes } = message.body {
                    receiver.items(&items, end_bytes).unwrap();
                }
            }
            while let Some(item) = receiver.next_item() {
                receiver.applied_up_to(item.position);
            }
            assert!(sender.acknowledged(COPY, 2, &receiver.acknowledgement(1)));
        }
        assert_eq!(receiver.applied(), sender.last());
    }

    #[test]
    fn items_share_a_message_while_one_is_on_its_way_but_not_for_long() {
        let limits = Limits { max_lag_bytes: 1 << 30, max_seed_bytes: 1 << 30 };
        let mut sender = Sender::new(Epoch(3), History::default().and(end(1, 40)), limits);
        let hello = Hello { credit: 1 << 30, ..hello(end(1, 40)) };
        assert_eq!(resume(&mut sender, &hello), Some(Resume::Stream));
        let sent = |sender: &mut Sender, now_us| {
            let messages = sender.next_items(now_us).into_iter();
            let items = messages.map(|(_, message)| match message.body {
                ToCopyBody::Items { items, .. } => items.len(),
                _ => 0,
            });
            items.collect::<Vec<_>>()
        };
        // Nothing is on its way: at once.
        sender.append(WAL, 100, 0);
        assert!(sender.is_due());
        assert_eq!(sent(&mut sender, NOW), [1]);
        assert!(!sender.is_holding());
        // The first that waits is a reason to look at the clock, others are not.
        sender.append(WAL, 100, 0);
        assert!(sender.is_due());
        assert_eq!(sent(&mut sender, NOW + 1), []);
        assert!(sender.is_holding());
        sender.append(WAL, 100, 0);
        assert!(!sender.is_due());
        // What was acknowledged is on its way no more.
        assert!(acknowledge(&mut sender, 1, 1 << 30));
        assert_eq!(sent(&mut sender, NOW + 2), [2]);
        sender.append(WAL, 100, 0);
        assert_eq!(sent(&mut sender, NOW + 1 + MAX_HOLD_US), []);
        assert!(sender.is_holding(), "whenever it is asked");
        assert_eq!(sent(&mut sender, NOW + 2 + MAX_HOLD_US), [1], "nobody has waited longer");
        assert!(!sender.is_holding());
        // Much is sent at once.
        sender.append(WAL, 100, 0);
        sender.append(WAL, MIN_MESSAGE_BYTES, 0);
        assert!(sender.is_due());
        assert_eq!(sent(&mut sender, NOW + 3 + MAX_HOLD_US), [2]);
    }

    #[test]
    fn what_a_copy_lacks_is_kept_within_limits() {
        let mut sender = sender();
        assert_eq!(resume(&mut sender, &hello(end(1, 40))), Some(Resume::Stream));
        for _ in 0..5 {
            sender.append(WAL, 100, 0);
        }
        assert_eq!(sender.next_items(NOW).len(), 1);
        assert!(acknowledge(&mut sender, 3, 100_000));
        assert!(sender.trim().is_empty());
        assert_eq!((sender.kept_bytes(), sender.lag_bytes(COPY)), (200, Some(200)));
        assert!(sender.is_following(COPY));
        assert!(!acknowledge(&mut sender, 9, 100_000), "it says more than there is");
        for _ in 0..9 {
            sender.append(WAL, 100, 0);
        }
        assert_eq!(sender.trim(), [COPY], "1100 bytes behind");
        assert!(!sender.is_following(COPY));
        assert!(sender.kept_bytes() <= LIMITS.max_lag_bytes);
    }

    #[test]
    fn items_without_bytes_are_not_kept_without_end() {
        let limits = Limits { max_lag_bytes: 1_000, max_seed_bytes: u64::MAX };
        let mut sender = Sender::new(Epoch(3), History::default().and(end(1, 40)), limits);
        // It follows, and lacks more items than bytes.
        assert_eq!(resume(&mut sender, &hello(end(1, 40))), Some(Resume::Stream));
        assert!(acknowledge(&mut sender, 0, 100_000));
        for _ in 0..1_000 / ITEM_BYTES {
            sender.append(Kind::Sync, 0, 0);
        }
        assert!(sender.trim().is_empty());
        sender.append(Kind::Sync, 0, 0);
        assert_eq!(sender.trim(), [COPY]);
        // It is seeded, which takes long.
        assert_eq!(resume(&mut sender, &hello(end(1, 1))), Some(Resume::Complete));
        let first = sender.last().position.number;
        for _ in 0..MAX_KEPT_ITEMS {
            sender.append(Kind::Sync, 0, 0);
        }
        assert!(sender.trim().is_empty());
        assert_eq!(sender.first_kept(), first + 1, "all that follows its seed");
        sender.append(Kind::Sync, 0, 0);
        assert_eq!(sender.trim(), [COPY], "more than is kept for any seed");
        assert!(sender.items.len() <= MAX_KEPT_ITEMS);
    }

    #[test]
    fn what_follows_a_seed_is_kept_for_it() {
        let mut sender = sender();
        let seeded = sender.append(WAL, 100, 0).mark();
        assert_eq!(resume(&mut sender, &hello(end(1, 1))), Some(Resume::Complete));
        for _ in 0..50 {
            sender.append(WAL, 100, 0);
            assert!(sender.trim().is_empty());
        }
        assert!(sender.next_items(NOW).is_empty(), "nothing is sent meanwhile");
        assert_eq!(resume(&mut sender, &hello(seeded)), Some(Resume::Stream));
        for _ in 0..60 {
            sender.append(WAL, 100, 0);
        }
        assert_eq!(sender.trim(), [COPY], "more than is kept for any seed");
    }

    #[test]
    fn who_lacks_what_cannot_be_read_begins_again() {
        let mut sender = sender();
        let items: Vec<Item> = (0..5).map(|_| sender.append(WAL, 100, 0)).collect();
        for (copy, has) in [(2, 1), (3, 3)] {
            let hello = hello(items[has].mark());
            assert!(sender.hello(MemberId(copy), &hello, false).is_some());
        }
        assert_eq!(sender.next_items(NOW).len(), 2);
        assert_eq!(sender.lose(items[2].position), [COPY]);
        assert!(sender.session(COPY).is_none() && sender.session(MemberId(3)).is_some());
        assert_eq!((sender.first_kept(), sender.kept_bytes()), (4, 200));
        assert_eq!(resume(&mut sender, &hello(items[1].mark())), Some(Resume::Complete));
        // The other one goes on.
        let last = items[4].position;
        let session = sender.session(MemberId(3)).unwrap();
        let said = Acknowledgement { received: last, synced: last, credit: 100_000, now_us: 1 };
        assert!(sender.acknowledged(MemberId(3), session, &said));
    }

    #[test]
    fn nothing_is_sent_without_credit() {
        let mut sender = sender();
        let stingy = Hello { credit: 150, ..hello(end(1, 40)) };
        assert_eq!(resume(&mut sender, &stingy), Some(Resume::Stream));
        for _ in 0..5 {
            sender.append(WAL, 10, 0);
        }
        let sent = |sender: &mut Sender| -> usize {
            let all = sender.next_items(NOW).into_iter().map(|(_, message)| match message.body {
                ToCopyBody::Items { items, .. } => items.len(),
                _ => 0,
            });
            all.sum()
        };
        assert_eq!((sent(&mut sender), sent(&mut sender)), (2, 0));
        assert!(acknowledge(&mut sender, 2, 150 + 2 * (10 + crate::stream::ITEM_BYTES)));
        assert_eq!(sent(&mut sender), 2);
    }

    proptest! {
        /// Over a link that loses messages a copy ends with exactly what the primary has, whatever
        /// was lost, and was never sent what it had no credit for.
        #[test]
        fn both_ends_agree_in_the_end(
            steps in prop::collection::vec((0..3_u8, 1..200_u64, any::<bool>()), 1..80),
            window in 300..2_000_u64,
        ) {
            let limits = Limits { max_lag_bytes: 1 << 20, max_seed_bytes: 1 << 20 };
            let mut sender = Sender::new(Epoch(3), History::default().and(end(1, 40)), limits);
            let mut receiver = Receiver::new(end(1, 40), 0, window);
            let mut applied = Vec::new();
            let mut told = Vec::new();
            let ending = (0..200).map(|_| (1, 0, true));
            for (step, bytes, arrives) in steps.into_iter().chain(ending) {
                if step == 0 {
                    told.push(sender.append(WAL, bytes, bytes as u32));
                }
                let mut messages: Vec<ToCopy> = sender.next_items(NOW).into_iter().map(|(_, message)| message).collect();
                messages.extend(sender.beats(true).into_iter().map(|(_, message)| message));
                for message in messages.into_iter().filter(|_| arrives) {
                    let result = match message.body {
                        ToCopyBody::Items { items, end_bytes } => receiver.items(&items, end_bytes),
                        ToCopyBody::Beat { last, sent, end_bytes, echo_us } => {
                            receiver.beat(last, sent, end_bytes, echo_us)
                        }
                        _ => Ok(()),
                    };
                    let taken: Vec<Item> = std::iter::from_fn(|| receiver.next_item()).collect();
                    let cost: u64 = taken.iter().map(Item::cost).sum();
                    prop_assert!(cost <= window || taken.len() == 1, "{cost} bytes, {window} allowed");
                    if let Some(last) = taken.last() {
                        receiver.applied_up_to(last.position);
                    }
                    applied.extend(taken);
                    if result.is_err() {
                        receiver.end_session();
                    }
                }
                match receiver.session() {
                    Some((_, session)) if arrives => {
                        sender.acknowledged(COPY, session, &receiver.acknowledgement(1));
                    }
                    None if arrives => {
                        let greeting = Hello { credit: window, ..hello(receiver.applied()) };
                        let open = sender.hello(COPY, &greeting, false).unwrap();
                        let goes_on = matches!(open.body, ToCopyBody::Open { resume: Resume::Stream, .. });
                        prop_assert!(goes_on);
                        receiver.begin_session(Epoch(3), open.session);
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(applied, told);
            prop_assert_eq!(receiver.applied(), sender.last());
        }
    }
}
