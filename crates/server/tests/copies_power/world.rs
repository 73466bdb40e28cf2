//! Servers with a copy each of one shard: real machines, directories and stores, driven as
//! `ecotone-replication` drives them, in a time that the test makes. What the control plane decides
//! is there at once, and survives all; messages between copies are late, and keep their order.
//!
//! Threads: the test's, and those of the stores, which append to the stream.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_control::entry::{Entry, NewServer, Proposal};
use ecotone_control::ids::{DirectoryId, Epoch, FederationId, KeyHash, MemberId, ShardId, TokenId};
use ecotone_control::machine::Machine;
use ecotone_control::map::{Addresses, Features, Map, Role, Shard};
use ecotone_engine::{Durability as StoreDurability, Separation, Store, StoreSettings};
use ecotone_mirror::directory::{Directory, SyncJob, check_fetched};
use ecotone_mirror::error::Error as MirrorError;
use ecotone_mirror::record;
use ecotone_mirror::seed::{Building, Built, Listing};
use ecotone_mirror::source::{Sink, Source};
use ecotone_mirror::whole;
use ecotone_policy::gc::GcParameters;
use ecotone_replica::command::Command;
use ecotone_replica::commit::{Durability, Level, Levels};
use ecotone_replica::copy::{CopySettings, Found, ShardCopy};
use ecotone_replica::lease::{Given, Heartbeat, Held, LeaseTimes, Promise};
use ecotone_replica::position::{BootId, Incarnation, Mark, Position};
use ecotone_replica::primary::{Primary, Settings};
use ecotone_replica::promotion::{LeaderCommand, Need, PromotionSettings, Promotions, forced};
use ecotone_replica::receiver::Sync as Stage;
use ecotone_replica::sender::Limits;
use ecotone_replica::standing::Standing;
use ecotone_replica::stream::{Item, Kind, Resume, ToCopy, ToCopyBody, ToPrimary};
use ecotone_types::ServerId;
use ecotone_types::units::Bytes;
use parking_lot::Mutex;

use crate::calls::Recorder;
use crate::random::Random;
use crate::writes::{COUNT, Write};

pub const SHARD: ShardId = ShardId(1);
pub const SERVERS: usize = 3;
pub const LEVELS: [Level; 3] = [Level::One, Level::Quorum, Level::All];

const MS: u64 = 1_000;
/// All servers look at what has come so often.
const ROUND_US: u64 = 20 * MS;
const SYNC_EVERY_US: u64 = 1_000 * MS;
const MAX_SEED_WAIT_US: u64 = 3_000 * MS;
/// After so many rounds a federation that has what it needs serves.
const MAX_ROUNDS: usize = 1_500;

/// What the test says of its progress, between the calls that were recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A write is about to be made. They count from 1.
    Begun(usize),
    /// So many are acknowledged at the level of this place in [`LEVELS`].
    Acknowledged(usize, usize),
    /// The control plane has decided this, by its place in [`World::decided`].
    Decided(usize),
    /// So many are durable at this server, as it has said.
    SaidSynced(usize, usize),
}

/// What a federation is like.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    pub durability: Durability,
    pub min_in_sync: usize,
}

impl Profile {
    fn settings(self) -> CopySettings {
        let levels = Levels { copies: SERVERS, min_in_sync: self.min_in_sync, durability: self.durability };
        let limits = Limits { max_lag_bytes: 4 << 20, max_seed_bytes: 64 << 20 };
        let primary = Settings { levels, limits, leave_after_us: 450 * MS, every_us: 100 * MS };
        CopySettings { primary, window_bytes: 1 << 20, silence_us: 300 * MS, clean_after_us: 2_000 * MS }
    }

    fn store(self) -> StoreSettings {
        StoreSettings {
            separation: Some(Separation { min_bytes: 100, segment_bytes: 16 << 10 }),
            memtable_bytes: 64 << 10,
            target_file_bytes: 64 << 10,
            level_base_bytes: 1 << 20,
            l0_compaction_trigger: 2,
            gc: GcParameters {
                begin_ratio: 1.1,
                end_ratio: 1.05,
                min_garbage_bytes: Bytes(16 << 10),
                ..GcParameters::default()
            },
            durability: match self.durability {
                Durability::Synced => StoreDurability::Always,
                Durability::Received => StoreDurability::EverySecond,
            },
            ..StoreSettings::default()
        }
    }
}

struct Driven {
    copy: ShardCopy,
    commands: Vec<Command>,
}

/// What the tap of a store shares with the driver.
struct Shared(Mutex<Driven>);

impl Shared {
    fn step<T>(&self, step: impl FnOnce(&mut ShardCopy, &mut Vec<Command>) -> T) -> T {
        let mut driven = self.0.lock();
        let Driven { copy, commands } = &mut *driven;
        step(copy, commands)
    }
}

impl Sink for Shared {
    fn append(&self, kind: Kind, bytes: u64, checksum: u32) -> Option<Position> {
        self.step(|copy, out| copy.append(kind, bytes, checksum, out))
    }

    fn mark(&self) -> (Mark, u64) {
        self.step(|copy, _| (copy.receiver().applied(), copy.receiver().clock_limit_ms()))
    }
}

enum Files {
    Own(Box<Directory>),
    Opened {
        directory: Box<Directory>,
        source: Arc<Source>,
        store: Box<Store>,
    },
    /// For a moment.
    Between,
}

enum Syncing {
    Job(Box<SyncJob>),
    Store(Mark, u64),
}

#[derive(Clone)]
enum Message {
    ToCopy(ToCopy, Vec<Vec<u8>>),
    ToPrimary(ToPrimary),
    Heartbeat(Heartbeat),
    Promise(Promise),
    Seed { of: (Epoch, u64), source: usize },
}

struct Server {
    path: PathBuf,
    boot: BootId,
    shared: Arc<Shared>,
    files: Files,
    held: Held,
    given: Given,
    /// Of items that the machine has taken, or not yet.
    bytes: BTreeMap<Position, Vec<u8>>,
    /// A sync, and the round in which it is done.
    syncing: Option<(Syncing, usize)>,
    next_sync: Option<Stage>,
    awaits_seed: Option<((Epoch, u64), u64)>,
    beat_us: u64,
    synced_us: u64,
}

/// See the module.
pub struct World {
    profile: Profile,
    random: Random,
    recorder: Option<Recorder>,
    pub notes: Vec<Note>,
    /// What the control plane has decided, and then.
    pub decided: Vec<Machine>,
    servers: Vec<Server>,
    promotions: Promotions,
    links: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// Nothing comes on these ways before a round.
    late: BTreeMap<(usize, usize), usize>,
    round: usize,
    now_us: u64,
    /// Where each write of this epoch ended.
    written: Vec<(Position, usize)>,
    acknowledged: [usize; 3],
    /// Nobody can be promoted without force.
    pub needs_force: bool,
}

fn member(at: usize) -> MemberId {
    MemberId(at as u64 + 1)
}

fn index(member: MemberId) -> usize {
    member.0 as usize - 1
}

/// The folder of a server below the root.
pub fn folder(at: usize) -> PathBuf {
    format!("server{at}").into()
}

/// A federation of which each server is to have a copy, before any is there.
fn founded() -> Machine {
    let mut machine = Machine::new(Map::new(FederationId([7; 8])), 0);
    let mut apply = |by: MemberId, entry: Entry| {
        let index = machine.applied() + 1;
        machine.apply(index, &Proposal { by, entry });
    };
    for at in 0..SERVERS {
        let (member, directory) = (member(at), DirectoryId([at as u8; 16]));
        let server = NewServer {
            directory,
            name: ServerId::new(format!("s{at}")).unwrap(),
            addresses: Addresses::default(),
            zone: String::new(),
            role: Role::Data,
            features: Features { min: 1, max: 1 },
        };
        let NewServer { addresses, zone, features, .. } = server.clone();
        if at == 0 {
            apply(member, Entry::Found { server, authority: None, with_shard: true });
        } else {
            let (token, key) = (TokenId([at as u8; 16]), KeyHash([at as u8; 32]));
            apply(self::member(0), Entry::Join { token, token_expires_s: 9, key, server });
        }
        apply(member, Entry::Announce { member, directory, addresses, zone, features });
        if at > 0 {
            apply(self::member(0), Entry::AddCopy { shard: SHARD, epoch: Epoch(1), member });
        }
    }
    machine
}

impl World {
    /// A new federation below `root`, which is recorded.
    pub fn found(root: &Path, profile: Profile, seed: u64) -> Self {
        for at in 0..SERVERS {
            std::fs::create_dir(root.join(folder(at))).unwrap();
        }
        let recorder = Recorder::below(root);
        Self::start(root, profile, seed, founded(), [0; SERVERS], Some(recorder))
    }

    /// What lies below `root` starts again, in these boots of its machines.
    pub fn revive(root: &Path, profile: Profile, seed: u64, machine: Machine, boots: [u8; SERVERS]) -> Self {
        Self::start(root, profile, seed, machine, boots, None)
    }

    fn start(
        root: &Path,
        profile: Profile,
        seed: u64,
        machine: Machine,
        boots: [u8; SERVERS],
        recorder: Option<Recorder>,
    ) -> Self {
        let now_us = 10_000 * MS;
        let settings =
            PromotionSettings { suspect_after_us: 600 * MS, ask_every_us: 60 * MS, wait_for_others_us: 2_000 * MS };
        let shard = machine.map().shards[&SHARD].clone();
        let start = |at: usize| Server::start(root, at, BootId([boots[at]; 16]), &shard, profile, now_us);
        let servers = (0..SERVERS).map(start).collect();
        let mut world = Self {
            profile,
            random: Random::new(seed),
            recorder,
            notes: Vec::new(),
            decided: Vec::new(),
            servers,
            promotions: Promotions::new(settings),
            links: BTreeMap::new(),
            late: BTreeMap::new(),
            round: 0,
            now_us,
            written: Vec::new(),
            acknowledged: [0; 3],
            needs_force: false,
        };
        world.publish(machine);
        world
    }

    fn note(&mut self, note: Note) {
        if let Some(recorder) = &self.recorder {
            recorder.note(self.notes.len());
        }
        self.notes.push(note);
    }

    pub fn recorder(&mut self) -> Recorder {
        self.recorder.take().unwrap()
    }

    pub fn shard(&self) -> &Shard {
        &self.decided[self.decided.len() - 1].map().shards[&SHARD]
    }

    fn step<T>(&self, at: usize, step: impl FnOnce(&mut ShardCopy, &mut Vec<Command>) -> T) -> T {
        self.servers[at].shared.step(step)
    }

    // ---- What happens ----

    /// All servers look at what has come.
    pub fn round(&mut self) {
        self.round += 1;
        self.now_us += ROUND_US;
        self.deliver();
        for at in 0..SERVERS {
            self.tick(at);
        }
        self.lead();
        self.acknowledge();
    }

    /// Nothing comes to a server, or from it, for so many rounds.
    pub fn cut_off(&mut self, at: usize, rounds: usize) {
        for other in 0..SERVERS {
            for way in [(at, other), (other, at)] {
                self.late.insert(way, self.round + rounds);
            }
        }
    }

    fn deliver(&mut self) {
        for from in 0..SERVERS {
            for to in 0..SERVERS {
                if self.late.get(&(from, to)).is_some_and(|until| self.round < *until) {
                    continue;
                }
                let waiting = self.links.entry((from, to)).or_default();
                let some = if self.random.once_in(4) { self.random.below(waiting.len() + 1) } else { waiting.len() };
                for message in waiting.drain(..some).collect::<Vec<_>>() {
                    self.take(from, to, message);
                    self.do_commands(to);
                }
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        self.links.entry((from, to)).or_default().push_back(message);
    }

    fn take(&mut self, from: usize, at: usize, message: Message) {
        let now_us = self.now_us;
        match message {
            Message::ToCopy(said, bytes) => {
                if let ToCopyBody::Items { items, .. } = &said.body {
                    let applied = self.step(at, |copy, _| copy.receiver().applied().position);
                    for (item, bytes) in items.iter().zip(bytes).filter(|(item, _)| item.position > applied) {
                        self.servers[at].bytes.insert(item.position, bytes);
                    }
                }
                self.step(at, |copy, out| copy.from_primary(member(from), said, now_us, out));
            }
            Message::ToPrimary(said) => {
                let Server { shared, held, .. } = &self.servers[at];
                shared.step(|copy, out| {
                    if let Some(primary) = copy.primary_mut() {
                        primary.said(member(from), &said, now_us, out);
                    }
                    copy.tick(now_us, now_us / MS, held, out);
                });
            }
            Message::Heartbeat(heartbeat) => {
                let Server { shared, given, .. } = &mut self.servers[at];
                let may = |_: ShardId, epoch: Epoch| shared.step(|copy, _| copy.may_promise(epoch));
                let promise = given.answer(&heartbeat, may, now_us);
                self.send(at, from, Message::Promise(promise));
            }
            Message::Promise(promise) => self.servers[at].held.promised(member(from), &promise),
            Message::Seed { of, source } => self.seed(at, of, source),
        }
    }

    fn tick(&mut self, at: usize) {
        let (now_us, round) = (self.now_us, self.round);
        let server = &mut self.servers[at];
        if let Files::Own(directory) = &mut server.files {
            directory.advance(now_us).unwrap();
            let position = directory.applied().position;
            server.shared.step(|copy, out| {
                if !copy.receiver().is_idle() && copy.receiver().applied().position < position {
                    copy.applied(position, now_us, out);
                }
            });
        }
        server.abandon_stale(now_us);
        if server.syncing.as_ref().is_some_and(|(_, due)| *due <= round) {
            server.sync_ends(now_us);
            self.says_synced(at);
        }
        let server = &mut self.servers[at];
        let is_due = self.profile.durability == Durability::Synced || now_us >= server.synced_us + SYNC_EVERY_US;
        let is_syncing = server.syncing.is_some();
        let held = &server.held;
        server.shared.step(|copy, out| {
            copy.tick(now_us, now_us / MS, held, out);
            if is_due && !is_syncing {
                copy.sync(out);
            }
            copy.rest(now_us, out);
        });
        if is_due {
            server.synced_us = now_us;
        }
        let awaited = server.shared.step(|copy, _| copy.awaits_seed());
        if server.awaits_seed.map(|(of, _)| of) != awaited {
            server.awaits_seed = awaited.map(|of| (of, now_us));
        }
        if let Some((of, since_us)) = server.awaits_seed
            && now_us > since_us + MAX_SEED_WAIT_US
        {
            server.awaits_seed = None;
            server.shared.step(|copy, out| copy.seeded(of, None, now_us, out));
        }
        server.go_on(now_us);
        self.fetch(at);
        self.do_commands(at);
        let server = &mut self.servers[at];
        if now_us >= server.beat_us + LeaseTimes::default().every_us {
            server.beat_us = now_us;
            let epoch = server.shared.step(|copy, _| copy.primary().map(Primary::epoch));
            let asks = epoch.map(|epoch| (SHARD, epoch)).into_iter().collect();
            let heartbeat = Heartbeat { sent_us: now_us, asks };
            for to in (0..SERVERS).filter(|to| *to != at) {
                self.send(at, to, Message::Heartbeat(heartbeat.clone()));
            }
            let Server { shared, held, .. } = &self.servers[at];
            let serving = shared.step(|copy, _| copy.serving(held, now_us));
            self.promotions.reported(SHARD, serving, now_us);
        }
    }

    fn says_synced(&mut self, at: usize) {
        let synced = self.step(at, |copy, _| copy.receiver().synced());
        if self.written.last().is_none_or(|(position, _)| position.epoch != self.shard().epoch) {
            return;
        }
        let writes = self.written.iter().take_while(|(position, _)| *position <= synced).last();
        if let Some((_, writes)) = writes.copied() {
            self.note(Note::SaidSynced(at, writes));
        }
    }

    fn do_commands(&mut self, at: usize) {
        loop {
            let mut commands: VecDeque<Command> = std::mem::take(&mut self.servers[at].shared.0.lock().commands).into();
            if commands.is_empty() {
                return;
            }
            while let Some(command) = commands.pop_front() {
                if let Command::Apply(first) = command {
                    let mut items = vec![first];
                    while let Some(Command::Apply(next)) = commands.front() {
                        items.push(*next);
                        commands.pop_front();
                    }
                    self.servers[at].apply(items, self.now_us);
                } else {
                    self.carry_out(at, command);
                }
            }
        }
    }

    fn carry_out(&mut self, at: usize, command: Command) {
        match command {
            Command::Persist(standing) => self.servers[at].persist(&standing),
            Command::ToPrimary(to, said) => self.send(at, index(to), Message::ToPrimary(said)),
            Command::ToCopy(to, said) => {
                let bytes = match &said.body {
                    ToCopyBody::Items { items, .. } => self.servers[at].read(items),
                    _ => Vec::new(),
                };
                self.send(at, index(to), Message::ToCopy(said, bytes));
            }
            Command::Apply(_) | Command::AwaitSeed { .. } => (),
            Command::Sync(stage) => {
                let due = self.round + self.random.below(3);
                self.servers[at].begin_sync(stage, due);
            }
            Command::Seed { copy, source, session, resume } => {
                assert!(resume != Resume::Stream, "a stream needs no files");
                let of = (self.shard().epoch, session);
                self.send(at, index(copy), Message::Seed { of, source: index(source) });
            }
            Command::Propose(entry) => self.decide(at, entry),
            Command::Sealed(report) => self.promotions.sealed(report),
            Command::Opened => self.servers[at].open(self.profile),
            Command::Closed => self.servers[at].close(),
        }
    }

    // ---- The control plane ----

    fn decide(&mut self, by: usize, entry: Entry) {
        let mut machine = self.decided[self.decided.len() - 1].clone();
        let before = machine.map().version;
        let index = machine.applied() + 1;
        machine.apply(index, &Proposal { by: member(by), entry });
        if machine.map().version != before {
            self.publish(machine);
        }
    }

    fn publish(&mut self, machine: Machine) {
        self.decided.push(machine);
        self.note(Note::Decided(self.decided.len() - 1));
        let shard = self.shard().clone();
        for at in 0..SERVERS {
            self.step(at, |copy, out| copy.map(&shard, self.now_us, out));
        }
    }

    fn lead(&mut self) {
        let now_us = self.now_us;
        let map = self.decided[self.decided.len() - 1].map().clone();
        for command in self.promotions.tick(&map, now_us) {
            match command {
                LeaderCommand::Propose(entry) => self.decide(0, entry),
                LeaderCommand::Seal(member, _, epoch) => {
                    let server = &mut self.servers[index(member)];
                    let wait = server.given.must_wait_until(SHARD, now_us);
                    server.shared.step(|copy, out| copy.seal(epoch, wait, now_us, out));
                    server.abandon_stale(now_us);
                }
                LeaderCommand::Verify(member, _) => {
                    let Files::Own(directory) = &self.servers[index(member)].files else { continue };
                    let done = directory.begin_verify().unwrap().run().unwrap();
                    if let Some(is_sound) = directory.verified(&done) {
                        self.promotions.verified(SHARD, member, is_sound);
                    }
                }
                LeaderCommand::Repair(member, ..) => panic!("the log of {member} is taken for damaged"),
                LeaderCommand::Stuck(_, need) => {
                    assert!(!matches!(need, Need::Damaged(_)), "{need:?}");
                    self.needs_force |= matches!(need, Need::Seal { needs_force: true, .. });
                }
            }
        }
        for at in 0..SERVERS {
            self.do_commands(at);
        }
    }

    /// People make the copy the primary that is furthest. Returns which one.
    pub fn force(&mut self) -> usize {
        let position = |at: &usize| self.step(*at, |copy, _| copy.receiver().applied().position);
        let best = (0..SERVERS).max_by_key(position).unwrap();
        while let Some(entry) = forced(SHARD, &self.shard().clone(), member(best)) {
            self.decide(best, entry);
        }
        let now_us = self.now_us;
        self.step(best, |copy, out| copy.force(now_us, out));
        self.do_commands(best);
        best
    }

    // ---- Clients ----

    /// The primary, if it answers.
    fn serving(&self) -> Option<usize> {
        let at = index(self.shard().primary?);
        let Server { shared, held, files, .. } = &self.servers[at];
        let answers = shared.step(|copy, _| {
            copy.primary().is_some_and(|primary| primary.answerable(Level::One, held, self.now_us).is_ok())
        });
        (answers && matches!(files, Files::Opened { .. })).then_some(at)
    }

    pub fn store(&self) -> Option<&Store> {
        match &self.servers[self.serving()?].files {
            Files::Opened { store, .. } => Some(store),
            _ => None,
        }
    }

    /// Makes a write, of this number, if somebody takes it.
    pub fn write(&mut self, number: usize, write: &Write) -> bool {
        let Some(at) = self.serving() else { return false };
        self.note(Note::Begun(number));
        let Files::Opened { store, .. } = &self.servers[at].files else { return false };
        write.apply(store);
        let position = self.step(at, |copy, _| copy.receiver().applied().position);
        self.written.push((position, number));
        self.do_commands(at);
        true
    }

    fn acknowledge(&mut self) {
        let Some(at) = self.serving() else { return };
        for (place, level) in LEVELS.into_iter().enumerate() {
            let Server { shared, held, .. } = &self.servers[at];
            let answerable = shared.step(|copy, _| {
                let primary = copy.primary()?;
                primary.answerable(level, held, self.now_us).ok().map(|upto| (upto, primary.epoch()))
            });
            let Some((upto, epoch)) = answerable else { continue };
            let mut all = self.written.iter().filter(|(position, _)| position.epoch == epoch && *position <= upto);
            let last = all.next_back().map_or(0, |(_, writes)| *writes);
            if last > self.acknowledged[place] {
                self.acknowledged[place] = last;
                self.note(Note::Acknowledged(place, last));
            }
        }
    }

    pub fn acknowledged(&self) -> [usize; 3] {
        self.acknowledged
    }

    pub fn runs_until(&mut self, mut is_done: impl FnMut(&Self) -> bool) -> bool {
        (0..MAX_ROUNDS).any(|_| {
            self.round();
            is_done(self)
        })
    }

    pub fn is_serving(&self) -> bool {
        self.serving().is_some()
    }

    /// All copies are in sync, and hold the same.
    pub fn is_same(&self) -> bool {
        let position = |at| self.step(at, |copy, _| copy.receiver().applied().position);
        self.serving().is_some()
            && self.shard().in_sync.len() == SERVERS
            && (1..SERVERS).all(|at| position(at) == position(0))
    }

    pub fn describe(&self) -> String {
        let copies = (0..SERVERS).map(|at| {
            self.step(at, |copy, _| {
                let (standing, at_mark) = (copy.standing().clone(), copy.receiver().applied());
                format!("{:?}, {standing:?}", at_mark.position)
            })
        });
        format!("{:?}, {}", self.shard(), copies.collect::<Vec<_>>().join("; "))
    }

    /// All servers end as by command. Returns where their copies lie.
    pub fn stop(&mut self) -> Vec<PathBuf> {
        for at in 0..SERVERS {
            self.step(at, |copy, out| copy.stop(out));
            self.do_commands(at);
            let server = &mut self.servers[at];
            while server.syncing.is_some() {
                server.sync_ends(self.now_us);
            }
            let Files::Own(directory) = &mut server.files else { panic!("it is closed") };
            for stage in [Stage::Segments, Stage::Wal] {
                let done = directory.begin_sync(stage).run().unwrap();
                directory.synced(done).unwrap();
            }
            // What is pending of a store that was just made may be all that it is.
            directory.advance(self.now_us).unwrap();
            whole::sync(&server.path).unwrap();
            server.shared.step(|copy, out| copy.stopped_synced(out));
            self.do_commands(at);
        }
        self.servers.iter().map(|server| server.path.clone()).collect()
    }

    // ---- Files of others ----

    fn fetch(&mut self, at: usize) {
        let Some(primary) = self.shard().primary.map(index).filter(|primary| *primary != at) else { return };
        let now_us = self.now_us;
        let Files::Own(directory) = &self.servers[at].files else { return };
        for want in directory.wants(now_us).into_iter().take(4) {
            let Files::Opened { source, .. } = &self.servers[primary].files else { return };
            let found = source.open_finished(want.file).unwrap();
            let server = &mut self.servers[at];
            let Files::Own(directory) = &mut server.files else { return };
            let Some(mut found) = found else {
                if directory.is_opening() && directory.wants(now_us).contains(&want) {
                    server.abandon(now_us);
                    server.shared.step(|copy, out| copy.must_rebuild(now_us, out));
                    return;
                }
                continue;
            };
            let temporary = directory.temporary(&want);
            let mut to = std::fs::File::create(&temporary).unwrap();
            std::io::copy(&mut found, &mut to).unwrap();
            drop(to);
            // What the copy still wants of an epoch that has passed may be something else by now.
            match check_fetched(&temporary, &want) {
                Err(MirrorError::Mismatch { .. }) => continue,
                checked => checked.unwrap(),
            }
            let position = directory.fetched(&want).unwrap();
            server.shared.step(|copy, out| copy.applied(position, now_us, out));
        }
    }

    fn seed(&mut self, at: usize, of: (Epoch, u64), source: usize) {
        if self.step(at, |copy, _| copy.awaits_seed()) != Some(of) {
            return;
        }
        let now_us = self.now_us;
        self.servers[at].awaits_seed = None;
        let built = self.build(at, source);
        let found = built.as_ref().map(|built| (built.mark(), built.clock_limit_ms()));
        if self.step(at, |copy, out| copy.seeded(of, found, now_us, out)) {
            self.servers[at].switch(built.unwrap());
        }
    }

    fn build(&self, at: usize, source: usize) -> Option<Built> {
        let offer = match &self.servers[source].files {
            Files::Opened { source, .. } => source.offer().unwrap(),
            Files::Own(directory) if !directory.is_opening() => directory.offer().ok()?,
            _ => return None,
        };
        let listing = Listing::decode(&offer.listing().encode()).unwrap();
        let mut building = Building::begin(&self.servers[at].path, listing).unwrap();
        while let Some((file, offset, len)) = building.next() {
            let mut bytes = vec![0; len as usize];
            offer.open(file).unwrap().read_exact_at(&mut bytes, offset).unwrap();
            building.write(file, offset, &bytes).unwrap();
        }
        Some(building.finish().unwrap())
    }
}

impl Server {
    fn start(root: &Path, at: usize, boot: BootId, shard: &Shard, profile: Profile, now_us: u64) -> Self {
        let path = root.join(folder(at)).join("store");
        let (mut directory, mut found) = Directory::open(&path, boot).unwrap();
        Source::clear(&path).unwrap();
        let is_only = shard.in_sync == BTreeSet::from([member(at)]);
        let is_first = shard.epoch.0 <= 1 && shard.set_version <= 1;
        if found.standing.is_none() && is_only && (is_first || path.join("CURRENT").exists()) {
            let standing = Standing::founded();
            directory.persist(&standing).unwrap();
            found.standing = Some(standing);
        }
        let found = Found { standing: found.standing, at: found.at, clock_limit_ms: found.clock_limit_ms };
        let incarnation = Incarnation { directory: DirectoryId([at as u8; 16]), boot };
        let mut commands = Vec::new();
        let copy =
            ShardCopy::start((member(at), SHARD), incarnation, found, profile.settings(), now_us, None, &mut commands);
        let times = LeaseTimes::default();
        Self {
            path,
            boot,
            shared: Arc::new(Shared(Mutex::new(Driven { copy, commands }))),
            files: Files::Own(Box::new(directory)),
            held: Held::new(times),
            given: Given::new(times, now_us),
            bytes: BTreeMap::new(),
            syncing: None,
            next_sync: None,
            awaits_seed: None,
            beat_us: 0,
            synced_us: now_us,
        }
    }

    fn persist(&mut self, standing: &Standing) {
        match &mut self.files {
            Files::Own(directory) => directory.persist(standing).unwrap(),
            _ => record::write_standing(&self.path, standing).unwrap(),
        }
    }

    fn read(&self, items: &[Item]) -> Vec<Vec<u8>> {
        let Files::Opened { source, .. } = &self.files else { return vec![Vec::new(); items.len()] };
        let bytes = |item: &Item| if item.bytes == 0 { Vec::new() } else { source.read(item).unwrap() };
        items.iter().map(bytes).collect()
    }

    fn apply(&mut self, items: Vec<Item>, now_us: u64) {
        let Files::Own(directory) = &mut self.files else { return };
        let last = items[items.len() - 1].position;
        let items: Vec<(Item, Vec<u8>)> =
            items.into_iter().map(|item| (item, self.bytes.remove(&item.position).unwrap_or_default())).collect();
        let position = directory.apply(&items).unwrap();
        self.bytes.retain(|position, _| *position > last);
        self.shared.step(|copy, out| {
            copy.applied(position, now_us, out);
            for (item, _) in items.iter().filter(|(item, _)| matches!(item.kind, Kind::Collect { .. })) {
                copy.collected(item.position, out);
            }
        });
    }

    fn begin_sync(&mut self, stage: Stage, due: usize) {
        if self.syncing.is_some() {
            self.next_sync = Some(stage);
            return;
        }
        let what = match &mut self.files {
            Files::Own(directory) => Syncing::Job(Box::new(directory.begin_sync(stage))),
            _ => {
                let (mark, clock_limit_ms) = self.shared.mark();
                Syncing::Store(mark, clock_limit_ms)
            }
        };
        self.syncing = Some((what, due));
    }

    fn sync_ends(&mut self, now_us: u64) {
        let Some((what, due)) = self.syncing.take() else { return };
        let is_done = match (what, &mut self.files) {
            (Syncing::Job(job), files) => {
                let done = job.run().unwrap();
                if let Files::Own(directory) = files {
                    directory.synced(done).unwrap();
                }
                true
            }
            (Syncing::Store(mark, clock_limit_ms), Files::Opened { store, .. }) => {
                store.sync().unwrap();
                Directory::synced_open(&self.path, self.boot, mark, clock_limit_ms).unwrap();
                true
            }
            _ => false,
        };
        if let Some(next) = self.next_sync.take() {
            return self.begin_sync(next, due);
        }
        self.shared.step(|copy, out| if is_done { copy.sync_ended(now_us, out) } else { copy.sync_failed() });
    }

    fn open(&mut self, profile: Profile) {
        let Files::Own(mut directory) = std::mem::replace(&mut self.files, Files::Between) else {
            panic!("it is open already")
        };
        let (mark, clock_limit_ms) = self.shared.mark();
        let least_segment = directory.prepare_opening(mark, clock_limit_ms).unwrap();
        let source = Source::new(&self.path, self.shared.clone()).unwrap();
        source.take_stock().unwrap();
        let builder = Store::builder(&self.path).settings(profile.store()).tap(source.clone()).flush_on_open();
        let store = builder.least_segment(u32::try_from(least_segment).unwrap()).open();
        let store = Box::new(store.unwrap_or_else(|error| panic!("{}: {error}", self.path.display())));
        self.files = Files::Opened { directory, source, store };
    }

    fn close(&mut self) {
        let files = std::mem::replace(&mut self.files, Files::Between);
        self.files = match files {
            Files::Opened { mut directory, store, .. } => {
                store.close().unwrap();
                let (mark, clock_limit_ms) = self.shared.mark();
                directory.closed(mark, clock_limit_ms).unwrap();
                Files::Own(directory)
            }
            files => files,
        };
    }

    fn abandon_stale(&mut self, now_us: u64) {
        if matches!(self.files, Files::Own(_)) && self.shared.step(|copy, _| copy.awaits_directory()) {
            self.abandon(now_us);
        }
    }

    fn abandon(&mut self, now_us: u64) {
        let Files::Own(directory) = &mut self.files else { return };
        directory.abandon().unwrap();
        let position = directory.applied().position;
        self.shared.step(|copy, out| {
            copy.applied(position, now_us, out);
            copy.abandoned(now_us, out);
        });
    }

    /// Makes segments of others, forgets what nobody asks for any more.
    fn go_on(&mut self, now_us: u64) {
        match &mut self.files {
            Files::Own(directory) => {
                if let Some(job) = directory.to_collect().unwrap() {
                    let want = *job.want();
                    match job.run() {
                        Ok(()) => {
                            let position = directory.fetched(&want).unwrap();
                            self.shared.step(|copy, out| copy.applied(position, now_us, out));
                        }
                        Err(_) => directory.not_collected(&want),
                    }
                }
                let goes_on = self.shared.step(|copy, _| copy.receiver().session().is_some());
                if goes_on && self.awaits_seed.is_none() {
                    Building::discard(&self.path).unwrap();
                }
            }
            Files::Opened { source, .. } => {
                let first = self.shared.step(|copy, _| copy.primary().map(|primary| primary.first_kept()));
                first.into_iter().for_each(|first| source.trim(first));
            }
            Files::Between => (),
        }
    }

    fn switch(&mut self, built: Built) {
        let Files::Own(directory) = std::mem::replace(&mut self.files, Files::Between) else { return };
        let standing = self.shared.step(|copy, _| copy.standing().clone());
        self.files = Files::Own(Box::new(directory.switch(built, &standing).unwrap()));
        self.bytes.clear();
    }
}

/// How many writes a store has seen.
pub fn count_in(store: &Store) -> usize {
    store.get(COUNT).unwrap().map_or(0, |count| usize::from_le_bytes((*count).try_into().unwrap()))
}
