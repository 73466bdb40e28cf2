//! One copy of a shard on one server: a replica, or the primary.
//!
//! A process that starts is a replica, whatever it was before (rule 5). It becomes the primary when
//! the map names it in an epoch in which it was not one yet, and it is whole. Invariants: it
//! acknowledges and promises nothing in an epoch that it has sealed, or once it knows of a later
//! one; it seals with a synced log, so what it reports a loss of power does not take; in one boot
//! it has recorded that it acknowledges what is not durable before it does.

use ecotone_control::ids::{Epoch, MemberId, ShardId};
use ecotone_control::map::Shard;

use crate::command::Command;
use crate::commit::{Durability, Levels};
use crate::lease::Held;
use crate::planted::Planted;
use crate::position::{History, Incarnation, Mark, Position};
use crate::primary::{Primary, Settings};
use crate::promotion::{SealReport, Serving};
use crate::receiver::{Receiver, Staleness};
use crate::standing::Standing;
use crate::stream::{Hello, Kind, Resume, ToCopy, ToCopyBody, ToPrimary, ToPrimaryBody};

/// How often the wait for an answer to a greeting is doubled.
const MAX_DOUBLINGS: u32 = 4;

/// How a copy behaves, beside what it does as primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySettings {
    /// As a primary.
    pub primary: Settings,
    /// Bytes that a replica takes before it has applied them.
    pub window_bytes: u64,
    /// A primary that says nothing for so long is greeted anew.
    pub silence_us: u64,
    /// A copy that has synced all, and got nothing for so long, records that it has.
    pub clean_after_us: u64,
}

#[derive(Clone, Debug)]
enum Role {
    Replica,
    Primary(Box<Primary>),
}

/// A copy.
#[derive(Clone, Debug)]
pub struct ShardCopy {
    me: MemberId,
    shard: ShardId,
    incarnation: Incarnation,
    settings: CopySettings,
    standing: Standing,
    role: Role,
    /// What it takes as a replica, and holds as either.
    receiver: Receiver,
    /// What the map says.
    epoch: Epoch,
    primary: Option<MemberId>,
    map: Option<Box<Shard>>,
    /// It is being sealed up to this epoch, its log synced.
    sealing: Option<Epoch>,
    /// When it greets its primary, if nothing has come until then.
    greet_us: u64,
    /// Greetings since it last had something.
    greetings: u32,
    /// The session for which another directory is being built.
    seeding: Option<(u64, History)>,
    /// Its directory takes no more items: only another one can.
    must_rebuild: bool,
    /// What it held when it was last looked at, and since when.
    rested: (Position, u64),
    planted: Option<Planted>,
}

/// What a process finds in the copy's directory.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its standing; none in a new directory.
    pub standing: Option<Standing>,
    /// How far its files go.
    pub at: Mark,
    /// The last limit of the clock in them.
    pub clock_limit_ms: u64,
}

impl ShardCopy {
    /// A process starts with what it finds.
    pub fn start(
        (me, shard): (MemberId, ShardId),
        incarnation: Incarnation,
        found: Found,
        settings: CopySettings,
        now_us: u64,
        planted: Option<Planted>,
        out: &mut Vec<Command>,
    ) -> Self {
        let is_new = found.standing.is_none();
        let mut standing = found.standing.unwrap_or_default();
        let has_changed = planted != Some(Planted::TrustAnyBoot) && standing.start(incarnation.boot);
        if is_new || has_changed {
            out.push(Command::Persist(standing.clone()));
        }
        let mut receiver = Receiver::new(found.at, found.clock_limit_ms, settings.window_bytes);
        receiver.plant(planted);
        Self {
            me,
            shard,
            incarnation,
            settings,
            standing,
            role: Role::Replica,
            receiver,
            epoch: Epoch(0),
            primary: None,
            map: None,
            sealing: None,
            greet_us: now_us,
            greetings: 0,
            seeding: None,
            must_rebuild: false,
            rested: (Position::default(), now_us),
            planted,
        }
    }

    /// The primary that it is, if it is one.
    pub fn primary(&self) -> Option<&Primary> {
        if let Role::Primary(primary) = &self.role { Some(primary) } else { None }
    }

    /// The primary that it is, if it is one.
    pub fn primary_mut(&mut self) -> Option<&mut Primary> {
        if let Role::Primary(primary) = &mut self.role { Some(primary) } else { None }
    }

    /// What it takes as a replica.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// What it has recorded.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// How stale a read of a replica is. None until it is known.
    pub fn staleness(&self, now_us: u64) -> Option<Staleness> {
        self.receiver.staleness(now_us)
    }

    /// What it tells the leader about serving, with every report of its server.
    pub fn serving(&self, held: &Held, now_us: u64) -> Serving {
        match &self.role {
            Role::Primary(primary) => {
                Serving::Primary { epoch: primary.epoch(), has_lease: primary.has_lease(held, now_us) }
            }
            Role::Replica => Serving::Replica,
        }
    }

    /// Whether it may promise not to be sealed.
    pub fn may_promise(&self, epoch: Epoch) -> bool {
        if self.planted == Some(Planted::AcknowledgeSealed) {
            return epoch >= self.epoch;
        }
        epoch >= self.epoch && epoch > self.standing.sealed && self.sealing.is_none_or(|sealing| epoch > sealing)
    }

    /// The map has changed.
    pub fn map(&mut self, state: &Shard, now_us: u64, out: &mut Vec<Command>) {
        let is_ignored = self.planted == Some(Planted::AcknowledgeSealed) && state.primary.is_none();
        if state.epoch < self.epoch || is_ignored {
            return;
        }
        if state.epoch > self.epoch || state.primary != self.primary {
            (self.epoch, self.primary) = (state.epoch, state.primary);
            self.receiver.end_session();
            (self.greet_us, self.greetings) = (now_us, 0);
            self.seeding = None;
            if self.primary().is_some_and(|primary| primary.epoch() < state.epoch) {
                self.step_down(out);
            }
        }
        if self.map.as_deref() != Some(state) {
            self.map = Some(Box::new(state.clone()));
        }
        self.try_open(now_us, out);
        if let Role::Primary(primary) = &mut self.role {
            primary.map(state, now_us);
        }
    }

    /// It becomes the primary, if the map says so, it has not been in this epoch, and it is whole.
    fn try_open(&mut self, now_us: u64, out: &mut Vec<Command>) {
        let standing = &self.standing;
        let is_named = self.primary == Some(self.me) && matches!(self.role, Role::Replica);
        let is_fit = standing.is_whole && standing.opened < self.epoch && standing.sealed < self.epoch;
        if !is_named || !is_fit || self.sealing.is_some() || !self.receiver.is_idle() {
            return;
        }
        let mut end = self.receiver.applied();
        if !self.is_exact() {
            // It holds more than the stream told: others at this place hold a part of it.
            end.position = end.position.next();
            end = Mark { chain: !end.chain, ..end };
        }
        self.standing.history = self.standing.history.and(end);
        self.standing.opened = self.epoch;
        if self.settings.primary.levels.durability == Durability::Received {
            self.standing.unsynced_in = Some(self.incarnation.boot);
        }
        out.extend([Command::Persist(self.standing.clone()), Command::Opened]);
        let history = self.standing.history.clone();
        let clock_limit_ms = self.receiver.clock_limit_ms();
        let id = (self.me, self.shard, self.epoch);
        let mut primary = Primary::new(id, history, clock_limit_ms, self.settings.primary, now_us);
        primary.plant(self.planted);
        // It may have been named long before it could be opened.
        if let Some(map) = &self.map {
            primary.map(map, now_us);
        }
        self.receiver.replaced(end.open(self.epoch), clock_limit_ms);
        self.must_rebuild = false;
        self.role = Role::Primary(Box::new(primary));
    }

    /// What it wrote as primary may be more than anybody was told: its files are no exact prefix of
    /// any stream, until it has built others.
    fn is_exact(&self) -> bool {
        self.planted == Some(Planted::AttachAnywhere)
            || self.standing.opened == Epoch(0)
            || self.standing.opened < self.receiver.applied().position.epoch
    }

    fn step_down(&mut self, out: &mut Vec<Command>) {
        if let Role::Primary(primary) = &mut self.role {
            primary.close();
            self.role = Role::Replica;
            out.push(Command::Closed);
        }
    }

    /// As primary: the directory has changed.
    pub fn append(&mut self, kind: Kind, bytes: u64, checksum: u32, out: &mut Vec<Command>) -> Option<Position> {
        if self.primary().is_none_or(Primary::is_closed) {
            return None;
        }
        self.mark_unsynced(out);
        let primary = self.primary_mut()?;
        let item = primary.append(kind, bytes, checksum);
        self.receiver.wrote(item.mark(), 0);
        Some(item.position)
    }

    fn mark_unsynced(&mut self, out: &mut Vec<Command>) {
        let boot = Some(self.incarnation.boot);
        if self.settings.primary.levels.durability == Durability::Received && self.standing.unsynced_in != boot {
            self.standing.unsynced_in = boot;
            out.push(Command::Persist(self.standing.clone()));
        }
    }

    /// The leader asks to seal `epoch` and all before it. `wait_until_us` is what
    /// [`crate::lease::Given::must_wait_until`] says; while it says something, nothing is done.
    pub fn seal(&mut self, epoch: Epoch, wait_until_us: Option<u64>, now_us: u64, out: &mut Vec<Command>) {
        if epoch < self.standing.sealed || epoch < self.epoch {
            return;
        }
        let is_synced = self.receiver.synced() == self.receiver.applied().position;
        if epoch == self.standing.sealed && is_synced {
            out.push(Command::Sealed(self.seal_report()));
            return;
        }
        let waits = wait_until_us.is_some_and(|until_us| now_us < until_us);
        if waits && self.planted != Some(Planted::SealAtOnce) {
            return;
        }
        // A primary stops answering now, whatever it was promised.
        self.step_down(out);
        if self.planted != Some(Planted::AcknowledgeSealed) {
            self.receiver.end_session();
        }
        self.seeding = None;
        self.sealing = Some(epoch);
        self.finish_seal(out);
    }

    /// Once all is applied and synced.
    fn finish_seal(&mut self, out: &mut Vec<Command>) {
        let Some(epoch) = self.sealing else { return };
        if !self.receiver.is_idle() {
            return;
        }
        let goes_on = self.planted == Some(Planted::AcknowledgeSealed);
        if self.receiver.synced() != self.receiver.applied().position && !goes_on {
            out.extend(self.receiver.begin_sync().map(Command::Sync));
            return;
        }
        self.sealing = None;
        self.standing.sealed = self.standing.sealed.max(epoch);
        self.standing.unsynced_in = None;
        out.extend([Command::Persist(self.standing.clone()), Command::Sealed(self.seal_report())]);
    }

    fn seal_report(&self) -> SealReport {
        SealReport {
            shard: self.shard,
            member: self.me,
            epoch: self.standing.sealed,
            incarnation: self.incarnation,
            position: self.receiver.applied().position,
            is_whole: self.standing.is_whole,
        }
    }

    /// By force: it is to be opened although it may lack what was acknowledged.
    pub fn force(&mut self, now_us: u64, out: &mut Vec<Command>) {
        if !self.standing.is_whole {
            self.standing.is_whole = true;
            out.push(Command::Persist(self.standing.clone()));
        }
        self.try_open(now_us, out);
    }

    /// The primary speaks.
    pub fn from_primary(&mut self, from: MemberId, said: ToCopy, now_us: u64, out: &mut Vec<Command>) {
        let is_ours = self.primary == Some(from) && self.epoch == said.epoch && matches!(self.role, Role::Replica);
        if !is_ours || !self.may_promise(said.epoch) {
            return;
        }
        if let ToCopyBody::Open { resume, history, is_distrusted } = said.body {
            // A greeting that was repeated is answered twice: the last session is the one that counts.
            let is_newer = self.receiver.session().is_none_or(|(_, session)| session < said.session)
                && self.seeding.as_ref().is_none_or(|(session, _)| *session < said.session);
            if self.receiver.is_idle() && is_newer {
                self.receiver.end_session();
                self.seeding = None;
                self.open_session(from, said.session, resume, history, is_distrusted, now_us, out);
            }
            return;
        }
        if self.receiver.session() != Some((said.epoch, said.session)) {
            return;
        }
        self.greet_us = now_us + self.settings.silence_us;
        self.greetings = 0;
        let result = match said.body {
            ToCopyBody::Items { items, end_bytes } => {
                let result = self.receiver.items(&items, end_bytes);
                self.hand_over_items(out);
                result
            }
            ToCopyBody::Beat { last, sent, end_bytes, echo_us } => {
                let result = self.receiver.beat(last, sent, end_bytes, echo_us);
                self.acknowledge(now_us, out);
                result
            }
            ToCopyBody::Whole => {
                if !self.standing.is_whole {
                    self.standing.is_whole = true;
                    out.push(Command::Persist(self.standing.clone()));
                }
                self.say(ToPrimaryBody::IsWhole, out);
                Ok(())
            }
            ToCopyBody::Open { .. } => Ok(()),
        };
        if result.is_err() {
            self.receiver.end_session();
            self.greet_us = now_us;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    fn open_session(
        &mut self,
        primary: MemberId,
        session: u64,
        resume: Resume,
        history: History,
        is_distrusted: bool,
        now_us: u64,
        out: &mut Vec<Command>,
    ) {
        self.greet_us = now_us + self.patience_us();
        if is_distrusted && self.standing.is_whole {
            self.standing.is_whole = false;
            out.push(Command::Persist(self.standing.clone()));
        }
        if resume != Resume::Stream {
            self.seeding = Some((session, history));
            out.push(Command::AwaitSeed { primary, session, resume });
            return;
        }
        if self.standing.history != history {
            self.standing.history = history;
            out.push(Command::Persist(self.standing.clone()));
        }
        self.receiver.begin_session(self.epoch, session);
        self.acknowledge(now_us, out);
    }

    /// The session for which another directory is being built. Until it is [`ShardCopy::seeded`] this
    /// copy asks for nothing, so whoever builds directories looks at this. Each primary counts its
    /// sessions from one.
    pub fn awaits_seed(&self) -> Option<(Epoch, u64)> {
        self.seeding.as_ref().map(|(session, _)| (self.epoch, *session))
    }

    /// The directory is completed, or another one is in its place: it holds what its source held at
    /// `at`. None if that failed. Only if this returns true the directory may take the place of the
    /// old one, and must before any command is done.
    pub fn seeded(&mut self, of: (Epoch, u64), at: Option<(Mark, u64)>, now_us: u64, out: &mut Vec<Command>) -> bool {
        let is_awaited = self.awaits_seed() == Some(of);
        let Some((_, history)) = self.seeding.take_if(|_| is_awaited) else { return false };
        self.greet_us = now_us;
        let Some((at, clock_limit_ms)) = at else { return false };
        // Whoever it was had less than this copy, which acknowledged what it had.
        self.standing.is_whole &= at.position >= self.receiver.applied().position;
        self.standing.history = history;
        out.push(Command::Persist(self.standing.clone()));
        self.mark_unsynced(out);
        self.receiver.replaced(at, clock_limit_ms);
        self.must_rebuild = false;
        true
    }

    fn hand_over_items(&mut self, out: &mut Vec<Command>) {
        while let Some(item) = self.receiver.next_item() {
            out.push(Command::Apply(item));
        }
    }

    /// Items up to `position` are in the kernel's memory.
    pub fn applied(&mut self, position: Position, now_us: u64, out: &mut Vec<Command>) {
        self.receiver.applied_up_to(position);
        self.hand_over_items(out);
        self.acknowledge(now_us, out);
        self.finish_seal(out);
        self.try_open(now_us, out);
    }

    /// Whether items are handed over behind which none come any more: a directory that holds them
    /// back until it has more throws them away, and then says [`ShardCopy::abandoned`]. Until they
    /// are applied or abandoned it neither seals nor greets a primary.
    pub fn awaits_directory(&self) -> bool {
        self.receiver.session().is_none() && !self.receiver.is_idle()
    }

    /// The directory has thrown away what was handed over and is not applied: it is as if that had
    /// never come.
    pub fn abandoned(&mut self, now_us: u64, out: &mut Vec<Command>) {
        if self.receiver.is_idle() {
            return;
        }
        self.receiver.abandoned();
        self.greet_us = now_us;
        self.finish_seal(out);
        self.try_open(now_us, out);
    }

    /// The directory refuses for good what was handed over, and has thrown it away: what it holds
    /// stays what it is, but the stream does not go on from there. It greets as who needs another
    /// directory, until it has one.
    pub fn must_rebuild(&mut self, now_us: u64, out: &mut Vec<Command>) {
        if !matches!(self.role, Role::Replica) {
            return;
        }
        self.must_rebuild = true;
        self.receiver.end_session();
        self.receiver.abandoned();
        self.greet_us = now_us;
        self.finish_seal(out);
        self.try_open(now_us, out);
    }

    /// Other settings of the federation, for what is acknowledged and what is kept.
    pub fn configure(&mut self, settings: Settings) {
        let durability = self.settings.primary.levels.durability;
        self.settings.primary.levels = Levels { durability, ..settings.levels };
        self.settings.primary.limits = settings.limits;
        if let Role::Primary(primary) = &mut self.role {
            primary.configure(self.settings.primary);
        }
    }

    /// What a GC instruction makes is there and durable, or the directory sees to what waits for it.
    pub fn collected(&mut self, position: Position, out: &mut Vec<Command>) {
        self.receiver.collected(position);
        self.hand_over_items(out);
    }

    /// It is time to sync.
    pub fn sync(&mut self, out: &mut Vec<Command>) {
        out.extend(self.receiver.begin_sync().map(Command::Sync));
    }

    /// A sync has ended.
    pub fn sync_ended(&mut self, now_us: u64, out: &mut Vec<Command>) {
        if let Some(next) = self.receiver.sync_ended() {
            out.push(Command::Sync(next));
            return;
        }
        let synced = self.receiver.synced();
        if let Role::Primary(primary) = &mut self.role {
            primary.synced(synced);
        }
        self.acknowledge(now_us, out);
        self.finish_seal(out);
        self.try_open(now_us, out);
    }

    /// A sync has failed: nothing more is known to be durable by it. It may be tried again.
    pub fn sync_failed(&mut self) {
        self.receiver.sync_failed();
    }

    /// The process ends: a primary closes.
    pub fn stop(&mut self, out: &mut Vec<Command>) {
        self.step_down(out);
    }

    /// It was stopped, its directory is closed, and all that it holds is durable: it acknowledges
    /// nothing more, and another boot will hold the same.
    pub fn stopped_synced(&mut self, out: &mut Vec<Command>) {
        self.step_down(out);
        self.receiver.end_session();
        self.greet_us = u64::MAX;
        if self.standing.unsynced_in.take().is_some() {
            out.push(Command::Persist(self.standing.clone()));
        }
    }

    fn acknowledge(&mut self, now_us: u64, out: &mut Vec<Command>) {
        let is_fenced = !self.may_promise(self.epoch);
        if self.receiver.session().is_none() || is_fenced || !matches!(self.role, Role::Replica) {
            return;
        }
        if self.receiver.synced() != self.receiver.applied().position {
            self.mark_unsynced(out);
        }
        self.say(ToPrimaryBody::Acknowledge(self.receiver.acknowledgement(now_us)), out);
    }

    fn say(&self, body: ToPrimaryBody, out: &mut Vec<Command>) {
        let session = self.receiver.session().map_or(0, |(_, session)| session);
        if let Some(primary) = self.primary {
            out.push(Command::ToPrimary(primary, ToPrimary { epoch: self.epoch, session, body }));
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now_us: u64, wall_ms: u64, held: &Held, out: &mut Vec<Command>) {
        if let Role::Primary(primary) = &mut self.role {
            let before = primary.last();
            let first = out.len();
            primary.tick(now_us, wall_ms, held, out);
            let (last, clock_limit_ms) = (primary.last(), primary.clock_limit_ms());
            let is_closed = out[first..].contains(&Command::Closed);
            if last != before {
                self.receiver.wrote(last, clock_limit_ms);
            }
            if is_closed {
                self.role = Role::Replica;
            }
            return;
        }
        if now_us < self.greet_us || self.seeding.is_some() {
            return;
        }
        let may_greet = self.primary.is_some_and(|primary| primary != self.me) && self.may_promise(self.epoch);
        self.receiver.end_session();
        if may_greet && self.receiver.is_idle() {
            self.greetings += 1;
            self.greet_us = now_us + self.patience_us();
            let hello = Hello {
                incarnation: self.incarnation,
                applied: self.receiver.applied(),
                is_exact: self.is_exact() && !self.must_rebuild,
                is_whole: self.standing.is_whole,
                credit: self.receiver.window_bytes(),
            };
            self.say(ToPrimaryBody::Hello(hello), out);
        }
    }

    /// How long it waits for an answer: longer each time, as the network may be slower than it
    /// waits, and each greeting makes another session.
    fn patience_us(&self) -> u64 {
        self.settings.silence_us << self.greetings.min(MAX_DOUBLINGS)
    }

    /// All is synced and nothing has come for [`CopySettings::clean_after_us`]: another boot will
    /// hold the same.
    pub fn rest(&mut self, now_us: u64, out: &mut Vec<Command>) {
        let applied = self.receiver.applied().position;
        if self.rested.0 != applied {
            self.rested = (applied, now_us);
        }
        let is_synced = self.receiver.is_idle() && self.receiver.synced() == applied;
        let is_quiet = now_us >= self.rested.1 + self.settings.clean_after_us;
        if is_synced && is_quiet && self.standing.unsynced_in.is_some() {
            self.standing.unsynced_in = None;
            out.push(Command::Persist(self.standing.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ecotone_control::ids::DirectoryId;

    use super::*;
    use crate::lease::LeaseTimes;
    use crate::position::BootId;
    use crate::receiver::Sync;
    use crate::sender::Limits;
    use crate::stream::{FileKind, Item};

    const SHARD: ShardId = ShardId(1);
    const WAL: Kind = Kind::Append { file: FileKind::Wal, number: 1, offset: 0 };

    fn settings() -> CopySettings {
        let levels = Levels { copies: 2, min_in_sync: 1, durability: Durability::Received };
        let limits = Limits { max_lag_bytes: 1_000, max_seed_bytes: 10_000 };
        let primary = Settings { levels, limits, leave_after_us: 600_000, every_us: 50_000 };
        CopySettings { primary, window_bytes: 10_000, silence_us: 300_000, clean_after_us: 1_000_000 }
    }

    fn shard(epoch: u64, primary: Option<u64>) -> Shard {
        let members: BTreeSet<MemberId> = [MemberId(1), MemberId(2)].into();
        let (copies, in_sync) = (members.clone(), members);
        Shard {
            slots: Vec::new(),
            copies,
            in_sync,
            primary: primary.map(MemberId),
            epoch: Epoch(epoch),
            set_version: 1,
        }
    }

    /// A replica on server 2 in a session of epoch 3, with items that the directory holds back.
    fn replica(items: usize) -> (ShardCopy, Vec<Item>) {
        let mut out = Vec::new();
        let incarnation = Incarnation { directory: DirectoryId([0; 16]), boot: BootId([0; 16]) };
        let found = Found { standing: Some(Standing::founded()), at: Mark::default(), clock_limit_ms: 0 };
        let mut copy = ShardCopy::start((MemberId(2), SHARD), incarnation, found, settings(), 0, None, &mut out);
        copy.map(&shard(3, Some(1)), 0, &mut out);
        let to_copy = |body| ToCopy { epoch: Epoch(3), session: 7, body };
        let history = History::default().and(Mark::default());
        let open = ToCopyBody::Open { resume: Resume::Stream, history, is_distrusted: false };
        copy.from_primary(MemberId(1), to_copy(open), 0, &mut out);
        let mut sent: Vec<Item> = Vec::new();
        for _ in 0..items {
            let before = sent.last().map_or(Mark::default().open(Epoch(3)), Item::mark);
            sent.push(Item::behind(before, WAL, 10, 0));
        }
        let body = ToCopyBody::Items { items: sent.clone(), end_bytes: 10 * items as u64 };
        copy.from_primary(MemberId(1), to_copy(body), 0, &mut out);
        assert_eq!(out.iter().filter(|command| matches!(command, Command::Apply(_))).count(), items);
        (copy, sent)
    }

    fn sealed(out: &[Command]) -> Option<Position> {
        out.iter().find_map(|command| match command {
            Command::Sealed(report) => Some(report.position),
            _ => None,
        })
    }

    #[test]
    fn a_seal_waits_until_what_is_held_back_is_abandoned() {
        let (mut copy, items) = replica(3);
        let mut out = Vec::new();
        copy.applied(items[0].position, 0, &mut out);
        assert!(!copy.awaits_directory(), "more may come in its session");
        out.clear();
        copy.seal(Epoch(4), None, 0, &mut out);
        assert_eq!(out, [], "two items are handed over, and neither applied nor thrown away");
        assert!(copy.awaits_directory());
        copy.abandoned(0, &mut out);
        assert!(!copy.awaits_directory());
        assert_eq!(out, [Command::Sync(Sync::Segments)]);
        for _ in 0..2 {
            copy.sync_ended(0, &mut out);
        }
        assert_eq!(sealed(&out), Some(items[0].position));
        assert!(!copy.may_promise(Epoch(4)) && copy.may_promise(Epoch(5)));
    }

    #[test]
    fn who_has_abandoned_greets_from_where_it_is() {
        let (mut copy, items) = replica(3);
        let (held, mut out) = (Held::new(LeaseTimes::default()), Vec::new());
        copy.applied(items[1].position, 0, &mut out);
        // The primary is silent for too long.
        out.clear();
        copy.tick(400_000, 0, &held, &mut out);
        assert!(copy.awaits_directory());
        assert_eq!(out, [], "no greeting: what is handed over may still be applied");
        copy.abandoned(400_000, &mut out);
        copy.tick(400_000, 0, &held, &mut out);
        let greeted = out.iter().find_map(|command| match command {
            Command::ToPrimary(_, ToPrimary { body: ToPrimaryBody::Hello(hello), .. }) => Some(hello.applied),
            _ => None,
        });
        assert_eq!(greeted, Some(items[1].mark()));
        // The directory applies late what it was to throw away: nothing comes of it.
        copy.applied(items[2].position, 400_000, &mut out);
        assert_eq!(copy.receiver().applied(), items[1].mark());
    }

    fn greeting(copy: &mut ShardCopy, now_us: u64) -> Option<Hello> {
        let mut out = Vec::new();
        copy.tick(now_us, 0, &Held::new(LeaseTimes::default()), &mut out);
        out.into_iter().find_map(|command| match command {
            Command::ToPrimary(_, ToPrimary { body: ToPrimaryBody::Hello(hello), .. }) => Some(hello),
            _ => None,
        })
    }

    #[test]
    fn a_copy_whose_directory_refuses_items_asks_for_another_one_until_it_has_it() {
        let (mut copy, items) = replica(3);
        let mut out = Vec::new();
        copy.applied(items[0].position, 0, &mut out);
        copy.must_rebuild(10_000, &mut out);
        let hello = greeting(&mut copy, 10_000).expect("it greets at once");
        assert_eq!((hello.applied, hello.is_exact), (items[0].mark(), false));
        // The primary answers, and the seed fails.
        let history = History::default().and(Mark::default());
        let open = ToCopyBody::Open { resume: Resume::Rebuild, history, is_distrusted: false };
        for (session, seed, is_exact) in [(8, None, false), (9, Some((items[2].mark(), 0)), true)] {
            let opened = ToCopy { epoch: Epoch(3), session, body: open.clone() };
            copy.from_primary(MemberId(1), opened, 20_000, &mut out);
            assert_eq!(copy.seeded((Epoch(3), session), seed, 30_000, &mut out), seed.is_some());
            assert_eq!(greeting(&mut copy, 30_000).map(|hello| hello.is_exact), Some(is_exact));
        }
        assert_eq!(copy.receiver().applied(), items[2].mark());
    }

    #[test]
    fn who_is_opened_by_force_knows_its_set() {
        let mut out = Vec::new();
        let incarnation = Incarnation { directory: DirectoryId([0; 16]), boot: BootId([0; 16]) };
        let found = Found { standing: Some(Standing::default()), at: Mark::default(), clock_limit_ms: 0 };
        let mut copy = ShardCopy::start((MemberId(2), SHARD), incarnation, found, settings(), 0, None, &mut out);
        copy.map(&shard(3, Some(2)), 0, &mut out);
        assert!(copy.primary().is_none(), "it is not whole");
        copy.force(10_000, &mut out);
        let set = copy.primary().map(|primary| primary.commit().set().clone());
        assert_eq!(set, Some([MemberId(1), MemberId(2)].into()), "or it has no lease until the map changes");
    }

    #[test]
    fn a_seed_of_another_primary_is_not_the_one_that_is_awaited() {
        let (mut copy, items) = replica(1);
        let mut out = Vec::new();
        copy.applied(items[0].position, 0, &mut out);
        let open = |epoch| ToCopy {
            epoch,
            session: 8,
            body: ToCopyBody::Open {
                resume: Resume::Rebuild,
                history: History::default().and(Mark::default()),
                is_distrusted: false,
            },
        };
        copy.map(&shard(5, Some(1)), 10_000, &mut out);
        copy.from_primary(MemberId(1), open(Epoch(5)), 10_000, &mut out);
        assert_eq!(copy.awaits_seed(), Some((Epoch(5), 8)));
        // It was asked for in epoch 3, in a session of the same number.
        assert!(!copy.seeded((Epoch(3), 8), Some((items[0].mark(), 0)), 20_000, &mut out));
        assert_eq!(copy.awaits_seed(), Some((Epoch(5), 8)), "it is waited for still");
        assert!(copy.seeded((Epoch(5), 8), Some((Mark::default().open(Epoch(5)), 0)), 20_000, &mut out));
        assert_eq!(copy.awaits_seed(), None);
    }

    #[test]
    fn a_seed_that_takes_a_copy_back_leaves_it_not_whole() {
        for (number, is_whole) in [(1, false), (2, true)] {
            let (mut copy, items) = replica(3);
            let mut out = Vec::new();
            copy.applied(items[1].position, 0, &mut out);
            copy.must_rebuild(10_000, &mut out);
            let open = ToCopyBody::Open {
                resume: Resume::Rebuild,
                history: History::default().and(Mark::default()),
                is_distrusted: false,
            };
            copy.from_primary(MemberId(1), ToCopy { epoch: Epoch(3), session: 8, body: open }, 20_000, &mut out);
            out.clear();
            assert!(copy.seeded((Epoch(3), 8), Some((items[number - 1].mark(), 0)), 30_000, &mut out));
            let Some(Command::Persist(recorded)) = out.first() else { panic!("it is recorded first: {out:?}") };
            assert_eq!((recorded.is_whole, copy.standing().is_whole), (is_whole, is_whole));
        }
    }

    #[test]
    fn who_rests_synced_records_it_once() {
        let (mut copy, items) = replica(2);
        let mut out = Vec::new();
        copy.applied(items[1].position, 0, &mut out);
        copy.sync(&mut out);
        (0..2).for_each(|_| copy.sync_ended(0, &mut out));
        let mut recorded = |now_us: u64| {
            let mut out = Vec::new();
            let beat = ToCopyBody::Beat { last: items[1].mark(), sent: items[1].position, end_bytes: 20, echo_us: 0 };
            copy.from_primary(MemberId(1), ToCopy { epoch: Epoch(3), session: 7, body: beat }, now_us, &mut out);
            copy.rest(now_us, &mut out);
            out.iter().filter(|command| matches!(command, Command::Persist(_))).count()
        };
        let times = (0..30).map(|beat| recorded(beat * 100_000));
        assert_eq!(times.sum::<usize>(), 1, "beats are acknowledged, and nothing that is not durable");
        assert_eq!(copy.standing().unsynced_in, None);
    }

    #[test]
    fn who_ends_with_all_synced_is_whole_in_another_boot() {
        let (mut copy, items) = replica(2);
        let mut out = Vec::new();
        copy.applied(items[1].position, 0, &mut out);
        assert!(copy.standing().unsynced_in.is_some(), "it acknowledged what is not durable");
        let start = |standing: &Standing| {
            let incarnation = Incarnation { directory: DirectoryId([0; 16]), boot: BootId([1; 16]) };
            let found = Found { standing: Some(standing.clone()), at: items[1].mark(), clock_limit_ms: 0 };
            let started =
                ShardCopy::start((MemberId(2), SHARD), incarnation, found, settings(), 0, None, &mut Vec::new());
            started.standing().is_whole
        };
        assert!(!start(copy.standing()), "killed, and another boot");
        out.clear();
        copy.stop(&mut out);
        copy.stopped_synced(&mut out);
        let recorded = out.iter().find_map(|command| match command {
            Command::Persist(standing) => Some(standing.clone()),
            _ => None,
        });
        assert!(start(&recorded.expect("it is recorded")));
        // A primary that has not noticed yet gets no more acknowledgements of it.
        out.clear();
        let beat = ToCopyBody::Beat { last: items[1].mark(), sent: items[1].position, end_bytes: 20, echo_us: 0 };
        copy.from_primary(MemberId(1), ToCopy { epoch: Epoch(3), session: 7, body: beat }, 10_000, &mut out);
        assert_eq!(out, []);
        assert_eq!(greeting(&mut copy, 10_000_000), None);
    }
}
