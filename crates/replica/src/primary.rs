//! A primary: what it may answer, whom it counts, and what it sends.
//!
//! Invariants: nothing is answered without a lease, or beyond what [`Commit`] says; a copy counts
//! only while it is whole and follows in a session; the clock by which keys expire never passes a
//! limit that the set has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ecotone_control::entry::Entry;
use ecotone_control::ids::{Epoch, MemberId, ShardId};
use ecotone_control::map::Shard;

use crate::command::Command;
use crate::commit::{Commit, Durability, Level, Levels, Refusal};
use crate::lease;
use crate::planted::Planted;
use crate::position::{History, Mark, Position, Relation};
use crate::sender::{Limits, Sender};
use crate::stream::{Acknowledgement, Hello, Item, Kind, Resume, ToCopyBody, ToPrimary, ToPrimaryBody};

/// How far the limit of the clock is ahead, and so how much too early a key may expire after a
/// failover.
pub const CLOCK_AHEAD_MS: u64 = 1_000;
/// How long a member that was asked to leave the set does not come back into it.
pub const EXCUSED_US: u64 = 5_000_000;
/// How long a hand-over goes on that is not repeated: whoever planned it may be gone.
pub const HAND_OVER_LAPSES_US: u64 = 1_000_000;
/// Who joins the set has all that was there so long before: then it lacks what it will have very
/// soon, and writes that wait for it do not wait for long.
pub const MAX_JOIN_LAG_US: u64 = 500_000;
/// The same where only what is synced counts.
pub const MAX_JOIN_LAG_SYNCED_US: u64 = 1_000_000;
/// Limits of the clock that copies do not have yet.
const MAX_CLOCK_LIMITS: usize = 16;

/// How a primary behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What writes need.
    pub levels: Levels,
    /// What is kept for copies.
    pub limits: Limits,
    /// A member that says nothing for so long leaves the set.
    pub leave_after_us: u64,
    /// Between two looks: beats, proposals, changes of the set.
    pub every_us: u64,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    /// It may be counted.
    is_whole: bool,
    /// It was told that it is, and has not recorded it yet.
    is_granted: bool,
    /// When it last said something.
    last_us: u64,
    /// Since when it does not follow.
    away_since_us: Option<u64>,
    /// What was there when it greeted last.
    greeted_at: Position,
    /// What it must have to count as one that follows: it came back from a session in which it did not
    /// even get what was there when that began.
    must_reach: Position,
    /// What it must have before it may be counted again: all that was promised when it came back
    /// without.
    owes: Position,
    /// What it has, in the way that counts, in its session.
    has: Position,
    /// Its last seed was to come from another replica. If it asks again, that was no good.
    was_sent_to_sibling: bool,
}

/// The primary of an epoch.
#[derive(Clone, Debug)]
pub struct Primary {
    me: MemberId,
    shard: ShardId,
    epoch: Epoch,
    settings: Settings,
    commit: Commit,
    sender: Sender,
    copies: BTreeSet<MemberId>,
    peers: BTreeMap<MemberId, Peer>,
    next_us: u64,
    /// The last item at each look, as far back as who joins must have it.
    looks: VecDeque<(u64, Position)>,
    /// What it hands the shard over to, and when that was last wished for.
    successor: Option<(MemberId, u64)>,
    /// Who should not be in the set, although they could, and until when that was wished for.
    excused: BTreeMap<MemberId, Option<u64>>,
    is_closed: bool,
    clock_ms: u64,
    is_clock_read: bool,
    clock_limits: VecDeque<(Position, u64)>,
    planted: Option<Planted>,
}

impl Primary {
    /// Opens an epoch with what was held at the last end of `history`.
    pub fn new(
        (me, shard, epoch): (MemberId, ShardId, Epoch),
        history: History,
        clock_limit_ms: u64,
        settings: Settings,
        now_us: u64,
    ) -> Self {
        let opened = history.ends().last().copied().unwrap_or_default();
        Self {
            me,
            shard,
            epoch,
            settings,
            commit: Commit::new(shard, epoch, opened.position, settings.levels),
            sender: Sender::new(epoch, history, settings.limits),
            copies: BTreeSet::new(),
            peers: BTreeMap::new(),
            next_us: now_us,
            looks: VecDeque::new(),
            successor: None,
            excused: BTreeMap::new(),
            is_closed: false,
            clock_ms: clock_limit_ms,
            is_clock_read: true,
            clock_limits: VecDeque::new(),
            planted: None,
        }
    }

    #[doc(hidden)]
    pub fn plant(&mut self, planted: Option<Planted>) {
        self.planted = planted;
        self.commit.plant(planted);
        self.sender.plant(planted);
        if planted == Some(Planted::OwnClock) {
            self.clock_ms = 0;
        }
    }

    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Its last item.
    pub fn last(&self) -> Mark {
        self.sender.last()
    }

    /// What counts for acknowledgements.
    pub fn commit(&self) -> &Commit {
        &self.commit
    }

    /// What is kept for copies, and how far they are.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Whether it takes writes.
    pub fn is_open(&self) -> bool {
        !self.is_closed && self.successor.is_none()
    }

    /// Whether it answers nothing any more. Until then what its directory does is told to copies, also
    /// while it hands over.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The time by which keys expire is not beyond this: copies have it.
    pub fn shown_limit_ms(&self) -> u64 {
        let safe = self.commit.safe();
        let limits = self.clock_limits.iter().filter(|(position, _)| *position <= safe);
        limits.map(|(_, limit_ms)| *limit_ms).max().unwrap_or_default().max(self.clock_ms)
    }

    /// The log has named a set, and copies, for this epoch.
    pub fn map(&mut self, state: &Shard, now_us: u64) {
        for member in self.copies.difference(&state.copies) {
            self.sender.forget(*member);
            self.peers.remove(member);
        }
        self.copies.clone_from(&state.copies);
        self.excused.retain(|member, _| state.copies.contains(member));
        for member in state.copies.iter().filter(|member| **member != self.me) {
            self.peers.entry(*member).or_insert(Peer {
                is_whole: false,
                is_granted: false,
                last_us: now_us,
                away_since_us: Some(now_us),
                greeted_at: Position::default(),
                must_reach: Position::default(),
                owes: Position::default(),
                has: Position::default(),
                was_sent_to_sibling: false,
            });
        }
        self.commit.applied(state.set_version, &state.in_sync);
    }

    /// The directory has changed: bytes are in the kernel's memory.
    pub fn append(&mut self, kind: Kind, bytes: u64, checksum: u32) -> Item {
        let item = self.sender.append(kind, bytes, checksum);
        if self.settings.levels.durability == Durability::Received {
            self.commit.holds(self.me, item.position);
        }
        item
    }

    /// Whether what was appended last is a reason to [`tick`](Self::tick) at once.
    pub fn is_due(&self) -> bool {
        self.sender.is_due()
    }

    /// Whether something waits that is to be sent within [`crate::sender::MAX_HOLD_US`].
    pub fn is_holding(&self) -> bool {
        self.sender.is_holding()
    }

    /// All up to `position` is durable here.
    pub fn synced(&mut self, position: Position) {
        if self.settings.levels.durability == Durability::Synced {
            self.commit.holds(self.me, position);
        }
    }

    /// Up to where writes of `level` may be acknowledged, and reads that saw them answered. To be
    /// asked after reading.
    ///
    /// # Errors
    /// When nothing may be.
    pub fn answerable(&self, level: Level, held: &lease::Held, now_us: u64) -> Result<Position, Refusal> {
        if self.is_closed {
            return Err(Refusal::NotPrimary);
        }
        if !self.has_lease(held, now_us) {
            return Err(Refusal::NoLease);
        }
        self.commit.committed(level, self.me)
    }

    /// Whether enough members have promised.
    pub fn has_lease(&self, held: &lease::Held, now_us: u64) -> bool {
        self.planted == Some(Planted::NoLease)
            || held.holds((self.shard, self.epoch), self.me, self.commit.sets(), now_us)
    }

    /// Until when it has a lease if no more promises come and no set is proposed: `u64::MAX` where
    /// it needs no promise. None if it never had enough of them.
    pub fn lease_until_us(&self, held: &lease::Held) -> Option<u64> {
        held.until_us((self.shard, self.epoch), self.me, self.commit.sets())
    }

    /// The number of the first item that is kept for copies: of those before it nobody asks for the
    /// bytes any more. One more than the last where nothing is kept.
    pub fn first_kept(&self) -> u64 {
        self.sender.first_kept()
    }

    /// Other settings of the federation. What counts as held, and times, stay as they were.
    pub fn configure(&mut self, settings: Settings) {
        let durability = self.settings.levels.durability;
        self.settings.levels = Levels { durability, ..settings.levels };
        self.settings.limits = settings.limits;
        self.commit.set_levels(self.settings.levels);
        self.sender.set_limits(settings.limits);
    }

    /// `member` is to leave the set on purpose, and not to join it: it is being drained, or has
    /// moved. It leaves once all that was promised counts without it, and only while enough others
    /// are in sync for `quorum` and for `all`. That is forgotten after [`EXCUSED_US`], and by the next
    /// primary: whoever wishes it says so again, and who does no more says nothing.
    pub fn excuse(&mut self, member: MemberId) {
        if member != self.me && self.copies.contains(&member) {
            self.excused.insert(member, None);
        }
    }

    /// The time by which keys expire, when clocks of the wall say `wall_ms`. It never goes back,
    /// also not from one primary to the next.
    pub fn clock_ms(&mut self, wall_ms: u64) -> u64 {
        self.is_clock_read = true;
        let safe = self.commit.safe();
        let mut limit_ms = None;
        for (position, limit) in &self.clock_limits {
            limit_ms = limit_ms.max(Some(*limit).filter(|_| *position <= safe));
        }
        if self.planted == Some(Planted::OwnClock) {
            limit_ms = Some(u64::MAX);
        }
        self.clock_ms = self.clock_ms.max(wall_ms.min(limit_ms.unwrap_or_default()));
        self.clock_ms
    }

    /// The last limit of the clock that it told copies.
    pub fn clock_limit_ms(&self) -> u64 {
        self.clock_limits.back().map_or(0, |(_, limit_ms)| *limit_ms)
    }

    /// The greatest `now` that a compaction may be given: copies have it.
    pub fn compaction_now_ms(&self) -> u64 {
        self.clock_ms
    }

    /// A copy speaks.
    pub fn said(&mut self, from: MemberId, said: &ToPrimary, now_us: u64, out: &mut Vec<Command>) {
        if said.epoch != self.epoch || self.is_closed || !self.peers.contains_key(&from) {
            return;
        }
        match &said.body {
            ToPrimaryBody::Hello(hello) => self.greeted(from, hello, now_us, out),
            ToPrimaryBody::Acknowledge(said_) => self.acknowledged(from, said.session, said_, now_us, out),
            ToPrimaryBody::IsWhole => {
                if self.sender.session(from) == Some(said.session)
                    && let Some(peer) = self.peers.get_mut(&from)
                    && peer.is_granted
                {
                    (peer.is_whole, peer.is_granted) = (true, false);
                    self.commit.holds(from, peer.has);
                }
            }
        }
    }

    fn greeted(&mut self, from: MemberId, hello: &Hello, now_us: u64, out: &mut Vec<Command>) {
        // Where the epoch before ended it has all that this one began with, which it acknowledged under
        // this name: a directory that holds an opening back is there still when it starts again.
        let is_same = hello.is_exact && self.sender.history().relation(hello.applied) == Relation::Same;
        let has = if is_same { Position::begin(self.epoch) } else { hello.applied.position };
        let is_distrusted = self.commit.held(from).is_some_and(|held| has < held);
        let trusts = self.planted == Some(Planted::TrustAnyBoot);
        let is_whole = hello.is_whole && !is_distrusted || trusts;
        let owes = self.commit.promised().max(self.commit.held(from).unwrap_or_default());
        if !is_whole {
            self.commit.forget(from);
        }
        let last = self.sender.last().position;
        if let Some(peer) = self.peers.get_mut(&from) {
            let away_since_us = peer.away_since_us.or(Some(now_us));
            // A disk that is full, or items that cannot be read again: it follows, fails and greets, some
            // times a second, and is never away for long.
            let must_reach = match (peer.has != Position::default(), hello.applied.position < peer.greeted_at) {
                (true, true) => last,
                (true, false) => Position::default(),
                (false, _) => peer.must_reach,
            };
            *peer = Peer {
                is_whole,
                is_granted: false,
                last_us: now_us,
                away_since_us,
                greeted_at: last,
                must_reach,
                owes,
                has: Position::default(),
                was_sent_to_sibling: peer.was_sent_to_sibling,
            };
        }
        let Some(open) = self.sender.hello(from, hello, is_distrusted && !trusts) else { return };
        let (session, seed) = (open.session, open.body.clone());
        out.push(Command::ToCopy(from, open));
        if let ToCopyBody::Open { resume, .. } = seed
            && resume != Resume::Stream
        {
            let may_try = self.peers.get(&from).is_some_and(|peer| !peer.was_sent_to_sibling);
            // One that has less would take the copy back behind what it acknowledged.
            let has_enough = |sibling: &MemberId| self.commit.held(*sibling) >= self.commit.held(from);
            let may_try = may_try && resume == Resume::Rebuild;
            let sibling = self.sender.seed_source(from).filter(has_enough).filter(|_| may_try);
            if let Some(peer) = self.peers.get_mut(&from) {
                peer.was_sent_to_sibling = sibling.is_some();
            }
            let source = sibling.unwrap_or(self.me);
            self.sender.pin_seed(from, source);
            out.push(Command::Seed { copy: from, source, session, resume });
        }
    }

    fn acknowledged(
        &mut self,
        from: MemberId,
        session: u64,
        said: &Acknowledgement,
        now_us: u64,
        out: &mut Vec<Command>,
    ) {
        let is_ours = self.sender.session(from) == Some(session);
        let is_sent_to = self.sender.acknowledged(from, session, said);
        let follows = self.sender.is_following(from);
        let Some(peer) = self.peers.get_mut(&from).filter(|_| is_ours) else { return };
        peer.last_us = now_us;
        if !is_sent_to {
            return;
        }
        if follows && said.received >= peer.must_reach {
            peer.away_since_us = None;
            peer.was_sent_to_sibling = false;
        }
        let has = match self.settings.levels.durability {
            Durability::Received => said.received,
            Durability::Synced => said.synced,
        };
        peer.has = peer.has.max(has);
        if peer.is_whole {
            self.commit.holds(from, peer.has);
        } else if peer.has >= peer.owes && peer.has.epoch == self.epoch {
            peer.is_granted = true;
            out.push(Command::ToCopy(from, self.sender.to_copy(session, ToCopyBody::Whole)));
        }
    }

    /// The bytes of an item can be read no more, for whoever lacks it.
    pub fn lost(&mut self, position: Position, now_us: u64) {
        for member in self.sender.lose(position) {
            if let Some(peer) = self.peers.get_mut(&member) {
                peer.away_since_us = peer.away_since_us.or(Some(now_us));
            }
        }
    }

    /// Plans to hand the shard over to a member whose log was just verified: takes no more writes.
    /// None takes it back, as long as nothing was proposed; whoever plans does so when it takes too
    /// long. It must be repeated: not to be for [`HAND_OVER_LAPSES_US`] takes it back as well.
    pub fn hand_over(&mut self, to: Option<MemberId>, now_us: u64) {
        self.successor = to.filter(|to| self.commit.set().contains(to)).map(|to| (to, now_us));
    }

    /// Whether it hands the shard over, and takes no writes for it.
    pub fn is_handing_over(&self) -> bool {
        self.successor.is_some()
    }

    /// Time passes, or something has happened.
    pub fn tick(&mut self, now_us: u64, wall_ms: u64, held: &lease::Held, out: &mut Vec<Command>) {
        if self.is_closed {
            return;
        }
        for member in self.sender.trim() {
            if self.planted != Some(Planted::WaitForLaggards)
                && let Some(peer) = self.peers.get_mut(&member)
            {
                peer.away_since_us = Some(now_us.saturating_sub(self.settings.leave_after_us));
            }
        }
        if now_us >= self.next_us {
            self.next_us = now_us + self.settings.every_us;
            self.limit_clock(wall_ms, out);
            self.change_set(now_us);
            out.extend(self.commit.proposal().map(Command::Propose));
            let has_lease = self.has_lease(held, now_us);
            out.extend(self.sender.beats(has_lease).into_iter().map(|(to, beat)| Command::ToCopy(to, beat)));
        }
        loop {
            let messages = self.sender.next_items(now_us);
            if messages.is_empty() {
                break;
            }
            out.extend(messages.into_iter().map(|(to, items)| Command::ToCopy(to, items)));
        }
        self.successor.take_if(|(_, since_us)| now_us >= *since_us + HAND_OVER_LAPSES_US);
        if let Some((to, _)) = self.successor
            && self.commit.held(to) >= Some(self.last().position)
        {
            self.is_closed = true;
            let entry = Entry::SetPrimary { shard: self.shard, epoch: self.epoch, primary: Some(to) };
            out.extend([Command::Closed, Command::Propose(entry)]);
        }
    }

    /// It answers nothing more in this epoch.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Tells copies how far the clock may go, while somebody reads it: a shard at rest is silent.
    fn limit_clock(&mut self, wall_ms: u64, out: &mut Vec<Command>) {
        let safe = self.commit.safe();
        // Of those that copies have, the last says all.
        while self.clock_limits.get(1).is_some_and(|(position, _)| *position <= safe) {
            self.clock_limits.pop_front();
        }
        let limit_ms = self.clock_limit_ms();
        let wanted_ms = wall_ms.max(self.clock_ms) + CLOCK_AHEAD_MS;
        let is_open = self.is_open() && self.clock_limits.len() < MAX_CLOCK_LIMITS;
        if is_open && self.is_clock_read && wanted_ms > limit_ms + CLOCK_AHEAD_MS / 2 {
            self.is_clock_read = false;
            let item = self.append(Kind::Clock { limit_ms: wanted_ms }, 0, 0);
            out.push(Command::Apply(item));
            self.clock_limits.push_back((item.position, wanted_ms));
        }
    }

    /// Members that are not whole or say nothing leave; copies that follow, are whole and lack next to
    /// nothing join. Who leaves waits for nobody who joins, and who joins for nobody who is slower: a
    /// set that is wished for counts already, so what it waits for everybody waits for. Who is excused
    /// is left out, unless too few would be in sync.
    fn change_set(&mut self, now_us: u64) {
        let leave_after_us = self.settings.leave_after_us;
        let before = self.last_before(now_us);
        let in_sync = self.commit.set();
        let stays = |member: &MemberId| {
            if *member == self.me || self.planted == Some(Planted::WaitForLaggards) {
                return true;
            }
            let Some(peer) = self.peers.get(member) else { return false };
            let is_silent = now_us >= peer.last_us + leave_after_us;
            let is_away = peer.away_since_us.is_some_and(|since_us| now_us >= since_us + leave_after_us);
            // A member has its time to come back, unless it came back without what it had.
            let may_come = self.sender.session(*member).is_none() || peer.is_whole;
            may_come && !is_silent && !is_away
        };
        let mut able: BTreeSet<MemberId> =
            in_sync.intersection(&self.copies).filter(|member| stays(member)).copied().collect();
        let does_anybody_leave = able.len() < in_sync.len();
        let joins = |member: &MemberId| {
            let Some(peer) = self.peers.get(member) else { return *member == self.me };
            let is_silent = now_us >= peer.last_us + leave_after_us;
            let has_enough = before.is_some_and(|before| peer.has >= before);
            // Nothing more is promised meanwhile, so it soon has all, or is no help.
            let has_promised = !does_anybody_leave || peer.has >= self.commit.promised();
            peer.is_whole && !is_silent && peer.away_since_us.is_none() && has_enough && has_promised
        };
        let joining: Vec<MemberId> = self.copies.difference(in_sync).filter(|member| joins(member)).copied().collect();
        able.extend(joining);
        self.excused.retain(|_, until_us| now_us < *until_us.get_or_insert(now_us + EXCUSED_US));
        let wanted: BTreeSet<MemberId> =
            able.iter().copied().filter(|member| !self.excused.contains_key(member)).collect();
        let levels = self.settings.levels;
        let is_enough = wanted.len() >= levels.quorum().max(levels.min_in_sync);
        self.commit.intend(if is_enough { wanted } else { able });
    }

    /// What was there [`MAX_JOIN_LAG_US`] ago, or as long ago as looks go back, at the look before at
    /// the latest. None at the first look.
    fn last_before(&mut self, now_us: u64) -> Option<Position> {
        let longest_us = match self.settings.levels.durability {
            Durability::Received => MAX_JOIN_LAG_US,
            Durability::Synced => MAX_JOIN_LAG_SYNCED_US,
        };
        let is_over = |(at_us, _): &(u64, Position)| now_us >= at_us + longest_us;
        while self.looks.get(1).is_some_and(is_over) {
            self.looks.pop_front();
        }
        // Of an epoch that has just begun the first looks say that nothing is there.
        let before = self.looks.front().filter(|look| is_over(look)).or(self.looks.back());
        let before = before.map(|(_, last)| *last);
        self.looks.push_back((now_us, self.last().position));
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::{BootId, Incarnation};
    use ecotone_control::ids::DirectoryId;

    const ME: MemberId = MemberId(1);
    const SHARD: ShardId = ShardId(1);
    const EPOCH: Epoch = Epoch(3);

    fn set(members: &[u64]) -> BTreeSet<MemberId> {
        members.iter().map(|member| MemberId(*member)).collect()
    }

    fn settings() -> Settings {
        let levels = Levels { copies: 3, min_in_sync: 1, durability: Durability::Received };
        let limits = Limits { max_lag_bytes: 1_000, max_seed_bytes: 10_000 };
        Settings { levels, limits, leave_after_us: 600_000, every_us: 50_000 }
    }

    fn map(version: u64, copies: &[u64], in_sync: &[u64]) -> Shard {
        let (copies, in_sync) = (set(copies), set(in_sync));
        Shard { slots: Vec::new(), copies, in_sync, primary: Some(ME), epoch: EPOCH, set_version: version }
    }

    /// The primary of four copies, of which all follow and hold everything.
    fn primary(in_sync: &[u64]) -> Primary {
        let opened = Mark { position: Position { epoch: Epoch(1), number: 9 }, chain: 5 };
        let mut primary = Primary::new((ME, SHARD, EPOCH), History::default().and(opened), 0, settings(), 0);
        primary.map(&map(1, &[1, 2, 3, 4], in_sync), 0);
        primary.commit.holds(ME, Position::begin(EPOCH));
        for member in [2, 3, 4] {
            let incarnation = Incarnation { directory: DirectoryId([0; 16]), boot: BootId([0; 16]) };
            let hello = Hello { incarnation, applied: opened, is_exact: true, is_whole: true, credit: 1_000 };
            hear(&mut primary, member, ToPrimaryBody::Hello(hello), 0);
            acknowledge(&mut primary, member, 0);
        }
        primary
    }

    fn hear(primary: &mut Primary, member: u64, body: ToPrimaryBody, now_us: u64) {
        let session = primary.sender.session(MemberId(member)).unwrap_or_default();
        primary.said(MemberId(member), &ToPrimary { epoch: EPOCH, session, body }, now_us, &mut Vec::new());
    }

    fn acknowledge(primary: &mut Primary, member: u64, now_us: u64) {
        let all = primary.last().position;
        let said = Acknowledgement { received: all, synced: all, credit: 1_000, now_us };
        hear(primary, member, ToPrimaryBody::Acknowledge(said), now_us);
    }

    fn proposed(primary: &mut Primary, now_us: u64) -> Option<BTreeSet<MemberId>> {
        let mut out = Vec::new();
        primary.tick(now_us, 0, &lease::Held::new(lease::LeaseTimes::default()), &mut out);
        out.into_iter().find_map(|command| match command {
            Command::Propose(Entry::SetInSync { in_sync, .. }) => Some(in_sync),
            _ => None,
        })
    }

    #[test]
    fn who_is_excused_leaves_and_does_not_come_back() {
        let mut primary = primary(&[1, 2, 3, 4]);
        assert_eq!(proposed(&mut primary, 0), None, "all are in the set, and belong there");
        primary.excuse(MemberId(3));
        primary.excuse(ME);
        assert_eq!(proposed(&mut primary, 50_000), Some(set(&[1, 2, 4])), "who is the primary stays");
        primary.map(&map(2, &[1, 2, 3, 4], &[1, 2, 4]), 50_000);
        assert_eq!(proposed(&mut primary, 100_000), None, "it follows and is whole, and does not join");
        // It is wished for again, and then no more.
        primary.excuse(MemberId(3));
        let mut at = |now_us: u64| {
            [2, 3, 4].into_iter().for_each(|member| acknowledge(&mut primary, member, now_us));
            proposed(&mut primary, now_us)
        };
        assert_eq!(at(3_000_000), None);
        assert_eq!(at(3_000_000 + EXCUSED_US - 1), None);
        assert_eq!(at(3_000_000 + EXCUSED_US + 50_000), Some(set(&[1, 2, 3, 4])));
    }

    #[test]
    fn who_is_excused_stays_while_too_few_are_in_sync() {
        let mut primary = primary(&[1, 2, 3, 4]);
        primary.excuse(MemberId(3));
        primary.excuse(MemberId(4));
        assert_eq!(proposed(&mut primary, 0), Some(set(&[1, 2])), "two of three copies are a quorum");
        primary.map(&map(2, &[1, 2, 3, 4], &[1, 2]), 0);
        // 2 falls silent.
        for member in [3, 4] {
            acknowledge(&mut primary, member, 700_000);
        }
        assert_eq!(proposed(&mut primary, 700_000), Some(set(&[1, 3, 4])), "rather they than a refusal");
    }

    #[test]
    fn who_joins_waits_for_nobody_who_lacks_something() {
        // Alone in the set after a failover, with the opening written.
        let mut primary = primary(&[1]);
        primary.sender.set_limits(Limits { max_lag_bytes: 1 << 20, max_seed_bytes: 1 << 20 });
        proposed(&mut primary, 0);
        for _ in 0..3 {
            primary.append(Kind::Sync, 0, 0);
        }
        // 2 has all soon; 3 follows, is whole, says that it is there, and never gets on.
        let begin = Position::begin(EPOCH);
        let mut joined = None;
        for now_us in (50_000..=500_000_u64).step_by(50_000) {
            acknowledge(&mut primary, 2, now_us);
            let said = Acknowledgement { received: begin, synced: begin, credit: 1_000, now_us };
            hear(&mut primary, 3, ToPrimaryBody::Acknowledge(said), now_us);
            joined = joined.or(proposed(&mut primary, now_us));
            primary.append(Kind::Sync, 0, 0);
        }
        assert_eq!(joined, Some(set(&[1, 2])));
    }

    #[test]
    fn writes_wait_for_nobody_who_has_much_to_get_before_it_joins() {
        let mut primary = primary(&[1]);
        primary.sender.set_limits(Limits { max_lag_bytes: 1 << 20, max_seed_bytes: 1 << 20 });
        for now_us in (0..3_000_000_u64).step_by(50_000) {
            // 2 follows two seconds behind, on a thin link.
            let begin = Position { epoch: EPOCH, number: (now_us / 50_000_u64).saturating_sub(40) };
            let said = Acknowledgement { received: begin, synced: begin, credit: 1_000, now_us };
            hear(&mut primary, 2, ToPrimaryBody::Acknowledge(said), now_us);
            assert_eq!(proposed(&mut primary, now_us), None);
            let item = primary.append(Kind::Sync, 0, 0);
            let is_late = now_us >= 2 * MAX_JOIN_LAG_US;
            let all = primary.commit.committed(Level::All, ME);
            assert!(!is_late || all == Ok(item.position), "{now_us}: {all:?}, not {:?}", item.position);
        }
        acknowledge(&mut primary, 2, 3_000_000);
        assert_eq!(proposed(&mut primary, 3_000_000), Some(set(&[1, 2])));
    }

    #[test]
    fn who_leaves_waits_for_nobody_who_joins() {
        let mut primary = primary(&[1, 2]);
        primary.sender.set_limits(Limits { max_lag_bytes: 1 << 20, max_seed_bytes: 1 << 20 });
        primary.append(Kind::Sync, 0, 0);
        acknowledge(&mut primary, 2, 0);
        // 2 is silent from now on; 3 follows, and never gets on.
        let mut left = None;
        for now_us in (0..=600_000_u64).step_by(50_000) {
            let begin = Position::begin(EPOCH);
            let said = Acknowledgement { received: begin, synced: begin, credit: 1_000, now_us };
            hear(&mut primary, 3, ToPrimaryBody::Acknowledge(said), now_us);
            left = left.or(proposed(&mut primary, now_us));
        }
        assert_eq!(left, Some(set(&[1])));
    }

    #[test]
    fn a_number_of_copies_that_changes_takes_nothing_back() {
        let mut primary = primary(&[1, 2, 3, 4]);
        // A limit of the clock comes first.
        proposed(&mut primary, 0);
        let item = primary.append(Kind::Sync, 0, 0);
        primary.tick(10_000, 0, &lease::Held::new(lease::LeaseTimes::default()), &mut Vec::new());
        for member in [2, 3] {
            acknowledge(&mut primary, member, 10_000);
        }
        assert_eq!(primary.commit.committed(Level::Quorum, ME), Ok(item.position));
        let mut other = settings();
        other.levels.copies = 7;
        primary.configure(other);
        let next = primary.append(Kind::Sync, 0, 0);
        proposed(&mut primary, 50_000);
        for member in [2, 3] {
            acknowledge(&mut primary, member, 50_000);
        }
        assert_eq!(primary.commit.committed(Level::Quorum, ME), Ok(item.position), "of seven, four must have it");
        other.levels.copies = 1;
        primary.configure(other);
        assert_eq!(primary.commit.committed(Level::Quorum, ME), Ok(next.position), "three of four are a majority");
        let last = primary.append(Kind::Sync, 0, 0);
        proposed(&mut primary, 100_000);
        acknowledge(&mut primary, 2, 100_000);
        assert_eq!(primary.commit.committed(Level::Quorum, ME), Ok(next.position), "two of four are none");
        assert!(last.position > next.position);
    }

    #[test]
    fn who_comes_back_again_and_again_without_getting_on_leaves() {
        for gets_on in [false, true] {
            let mut primary = primary(&[1, 2, 3, 4]);
            primary.sender.set_limits(Limits { max_lag_bytes: 1 << 20, max_seed_bytes: 1 << 20 });
            let opened = primary.sender.history().ends()[0];
            proposed(&mut primary, 0);
            let mut left = None;
            for now_us in (50_000..1_500_000_u64).step_by(50_000) {
                primary.append(Kind::Sync, 0, 0);
                [3, 4].into_iter().for_each(|member| acknowledge(&mut primary, member, now_us));
                // It greets, says what it has, and cannot take what it is sent.
                let applied = if gets_on { primary.last() } else { opened };
                let incarnation = Incarnation { directory: DirectoryId([0; 16]), boot: BootId([0; 16]) };
                let hello = Hello { incarnation, applied, is_exact: true, is_whole: true, credit: 1_000 };
                hear(&mut primary, 2, ToPrimaryBody::Hello(hello), now_us);
                let received = applied.position.max(Position::begin(EPOCH));
                let said = Acknowledgement { received, synced: received, credit: 1_000, now_us };
                hear(&mut primary, 2, ToPrimaryBody::Acknowledge(said), now_us);
                left = left.or(proposed(&mut primary, now_us));
            }
            assert_eq!(left, (!gets_on).then(|| set(&[1, 3, 4])));
        }
    }

    #[test]
    fn a_hand_over_that_nobody_repeats_is_taken_back() {
        let mut primary = primary(&[1, 2, 3, 4]);
        let successor = Some(MemberId(2));
        primary.append(Kind::Sync, 0, 0);
        primary.hand_over(successor, 0);
        assert!(primary.is_handing_over() && !primary.is_open());
        proposed(&mut primary, HAND_OVER_LAPSES_US - 1);
        assert!(primary.is_handing_over(), "the successor lacks an item, and may still get it");
        primary.hand_over(successor, HAND_OVER_LAPSES_US);
        proposed(&mut primary, HAND_OVER_LAPSES_US * 2 - 1);
        assert!(primary.is_handing_over(), "it was repeated");
        proposed(&mut primary, HAND_OVER_LAPSES_US * 2);
        assert!(!primary.is_handing_over() && primary.is_open(), "writes are taken again");
        // Now the successor has all: nothing comes of what was taken back.
        acknowledge(&mut primary, 2, HAND_OVER_LAPSES_US * 2);
        proposed(&mut primary, HAND_OVER_LAPSES_US * 2 + 50_000);
        assert!(!primary.is_closed());
        acknowledge(&mut primary, 2, HAND_OVER_LAPSES_US * 2 + 50_000);
        primary.hand_over(successor, HAND_OVER_LAPSES_US * 3);
        proposed(&mut primary, HAND_OVER_LAPSES_US * 3);
        assert!(primary.is_closed(), "who is wished for in time takes it over");
    }

    #[test]
    fn who_starts_again_before_it_has_taken_the_opening_lacks_nothing() {
        let mut primary = primary(&[1, 2, 3, 4]);
        let opened = primary.sender.history().ends()[0];
        let is_distrusted = |primary: &mut Primary, applied: Mark| {
            let incarnation = Incarnation { directory: DirectoryId([0; 16]), boot: BootId([0; 16]) };
            let hello = Hello { incarnation, applied, is_exact: true, is_whole: true, credit: 1_000 };
            let said = ToPrimary { epoch: EPOCH, session: 0, body: ToPrimaryBody::Hello(hello) };
            let mut out = Vec::new();
            primary.said(MemberId(2), &said, 0, &mut out);
            out.iter().any(|command| {
                let Command::ToCopy(_, said) = command else { return false };
                matches!(said.body, ToCopyBody::Open { is_distrusted: true, .. })
            })
        };
        assert_eq!(primary.commit.held(MemberId(2)), Some(Position::begin(EPOCH)));
        assert!(!is_distrusted(&mut primary, opened), "all that it acknowledged");
        let position = Position { number: opened.position.number - 1, ..opened.position };
        assert!(is_distrusted(&mut primary, Mark { position, ..opened }));
        // Nor is it the same once an item of this epoch was acknowledged.
        primary.commit.holds(MemberId(2), Position { epoch: EPOCH, number: 1 });
        assert!(is_distrusted(&mut primary, opened));
    }

    /// Where a copy is to get its files from.
    fn seeded_from(primary: &mut Primary, member: u64, applied: Mark, now_us: u64) -> Option<MemberId> {
        let incarnation = Incarnation { directory: DirectoryId([0; 16]), boot: BootId([0; 16]) };
        let hello = Hello { incarnation, applied, is_exact: false, is_whole: true, credit: 1_000 };
        let said = ToPrimary { epoch: EPOCH, session: 0, body: ToPrimaryBody::Hello(hello) };
        let mut out = Vec::new();
        primary.said(MemberId(member), &said, now_us, &mut out);
        out.into_iter().find_map(|command| match command {
            Command::Seed { source, .. } => Some(source),
            _ => None,
        })
    }

    #[test]
    fn no_copy_is_seeded_from_one_that_has_less() {
        let mut primary = primary(&[1, 2, 3, 4]);
        primary.append(Kind::Sync, 0, 0);
        proposed(&mut primary, 0);
        acknowledge(&mut primary, 2, 0);
        let last = primary.last();
        assert_eq!(seeded_from(&mut primary, 2, last, 0), Some(ME), "3 and 4 lack an item that 2 acknowledged");
        acknowledge(&mut primary, 3, 0);
        assert_eq!(seeded_from(&mut primary, 2, last, 0), Some(MemberId(3)));
    }

    #[test]
    fn the_first_kept_is_what_a_source_may_trim_below() {
        let mut primary = primary(&[1, 2, 3, 4]);
        assert_eq!(primary.first_kept(), 1, "nothing is there");
        for _ in 0..3 {
            primary.append(Kind::Sync, 0, 0);
        }
        proposed(&mut primary, 0);
        assert_eq!(primary.first_kept(), 1, "nobody has them");
        for member in [2, 3, 4] {
            acknowledge(&mut primary, member, 0);
        }
        proposed(&mut primary, 50_000);
        assert_eq!(primary.first_kept(), primary.last().position.number + 1, "all have synced all");
    }
}
