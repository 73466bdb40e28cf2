//! The world: servers with a copy each, what is between them, and what happens to them.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_control::entry::{Entry as LogEntry, NewServer, Proposal};
use ecotone_control::ids::{DirectoryId, Epoch, FederationId, KeyHash, MemberId, ShardId, TokenId};
use ecotone_control::machine::Machine;
use ecotone_control::map::{Addresses, Features, Map, Role, Shard};
use ecotone_replica::command::Command;
use ecotone_replica::commit::{Durability, Level, Levels};
use ecotone_replica::copy::{CopySettings, Found, ShardCopy};
use ecotone_replica::lease::{Given, Heartbeat, Held, LeaseTimes, Promise};
use ecotone_replica::planted::Planted;
use ecotone_replica::position::{BootId, Incarnation, Mark, Position};
use ecotone_replica::primary::{Primary, Settings};
use ecotone_replica::promotion::{LeaderCommand, PromotionSettings, Promotions, SealReport, Serving, forced};
use ecotone_replica::receiver::Sync;
use ecotone_replica::sender::Limits;
use ecotone_replica::standing::Standing;
use ecotone_replica::stream::{FileKind, Item, Kind, Resume, ToCopy, ToPrimary, ToPrimaryBody};
use ecotone_types::ServerId;

use super::check::{Broken, Check, Floor, Invariant, Violation};
use super::store::{Content, Entry, Store, Write};
use crate::random::Random;

const MS: u64 = 1_000;
const SHARD: ShardId = ShardId(1);
const TICK_US: u64 = 20 * MS;
const LOOK_US: u64 = 100 * MS;
const KEYS: u64 = 4;
/// How soon all must be well after the last fault.
const CALM_US: u64 = 30_000 * MS;
/// How long people look at a shard that needs force before they use it.
const PATIENCE_US: u64 = 4_000 * MS;
/// A client waits no longer.
const TIMEOUT_US: u64 = 3_000 * MS;
/// A seed that has not come is given up.
const SEED_US: u64 = 3_000 * MS;
/// A switch-over that takes longer is given up.
const SWITCH_US: u64 = 500 * MS;

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Servers.
    pub servers: u64,
    /// Copies of the shard.
    pub copies: usize,
    /// How many must be in sync for `all`.
    pub min_in_sync: usize,
    /// What counts for acknowledgements.
    pub durability: Durability,
    /// How long things happen, before all must be well again.
    pub seconds: u64,
    /// One way through the network, in milliseconds, least and most.
    pub latency_ms: (u64, u64),
    /// Requests of clients, in a second.
    pub requests: u64,
    /// What a copy may lack.
    pub max_lag_bytes: u64,
    /// What goes wrong.
    pub faults: Faults,
    /// One server does not come back at the end.
    pub loses_one: bool,
    /// A rule that is left out.
    pub planted: Option<Planted>,
    /// Heartbeats wait for a store that stands still (kvrocks#3219).
    pub heartbeats_stall: bool,
}

/// What goes wrong, in cases of a thousand: of messages, or of looks (ten a second).
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Messages that are lost.
    pub loss: u64,
    /// Processes that are killed.
    pub kills: u64,
    /// Servers that lose power.
    pub power: u64,
    /// Power that goes everywhere.
    pub site: u64,
    /// Processes that stand still for up to three seconds.
    pub pauses: u64,
    /// Stores that stand still for up to three seconds.
    pub stalls: u64,
    /// Clocks of the wall that jump by up to ten seconds.
    pub jumps: u64,
    /// Servers that are cut off from another, one way or both.
    pub cuts: u64,
    /// Directories that are lost.
    pub wipes: u64,
    /// Bytes that are damaged in a replica.
    pub damage: u64,
    /// Another leader of the control plane, or none for a while.
    pub leaders: u64,
    /// Switch-overs that somebody plans.
    pub switches: u64,
    /// Members that should leave the set for a while.
    pub excuses: u64,
}

impl Faults {
    /// A little of everything but lost directories and damage.
    pub fn all() -> Self {
        Self {
            loss: 4,
            kills: 12,
            power: 10,
            site: 0,
            pauses: 10,
            stalls: 10,
            jumps: 10,
            cuts: 14,
            wipes: 0,
            damage: 0,
            leaders: 10,
            switches: 8,
            excuses: 8,
        }
    }
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// A hash over all that happened, in its order.
    pub trace: u64,
    /// Events.
    pub events: u64,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Those at `one` that a change of the primary lost.
    pub lost_at_one: u64,
    /// Those that force lost.
    pub lost_by_force: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Primaries that were opened.
    pub opened: u64,
    /// Times that force was used.
    pub forced: u64,
    /// Copies that were built anew.
    pub seeds: u64,
    /// Losses of power.
    pub power: u64,
    /// Openings that a directory held back and then threw away.
    pub abandoned: u64,
    /// Members that were asked to leave the set.
    pub excused: u64,
}

/// Runs `profile` with the choices of `seed`.
///
/// # Errors
/// With the invariant that was broken.
pub fn run(seed: u64, profile: &Profile) -> Result<Report, Violation> {
    let mut world = World::new(seed, profile.clone());
    let result = world.run();
    result.map_err(|(invariant, what)| Violation { invariant, what, at_us: world.now_us })?;
    let Check { writes, lost_at_one, lost_by_force, .. } = world.check;
    Ok(Report { writes, lost_at_one, lost_by_force, ..world.report })
}

#[derive(Clone, Debug)]
enum Message {
    ToCopy(ToCopy),
    ToPrimary(ToPrimary),
    Heartbeat(Heartbeat),
    Promise(Promise),
    Map(Shard),
    Propose(LogEntry),
    Report(Serving),
    Seal(Epoch),
    Sealed(SealReport),
    Verify,
    Verified(bool),
    Repair(Vec<MemberId>),
    Repaired(bool),
    SendSeed { copy: usize, session: (Epoch, u64) },
    Seed { session: (Epoch, u64), at: Option<(Mark, u64)>, entries: Vec<Entry> },
    Request(Request),
    HandOver(Option<MemberId>),
    Excuse(MemberId),
}

#[derive(Clone, Copy, Debug)]
struct Request {
    key: u64,
    level: Level,
    what: Asked,
    floor: Floor,
    until_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Write(u64),
    Read,
    ReplicaRead,
}

#[derive(Debug)]
enum Happens {
    Tick {
        server: usize,
        process: u64,
    },
    /// From a process, which may have died since, and its connections with it.
    Deliver {
        from: usize,
        sender: Option<u64>,
        to: usize,
        /// Of all messages on the same way; 0 where they have no order.
        number: u64,
        message: Message,
    },
    /// What a directory held back of an opening is applied, if it was not thrown away.
    Open {
        server: usize,
        process: u64,
        opening: u64,
    },
    Applied {
        server: usize,
        process: u64,
        position: Position,
    },
    SyncEnded {
        server: usize,
        process: u64,
        sync: Sync,
        length: usize,
    },
    Answer {
        server: usize,
        process: u64,
        waiting: Waiting,
    },
    Start {
        server: usize,
    },
    Heal {
        cut: (usize, usize),
    },
    Look,
    Ask,
}

/// A request that was carried out, and waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: Request,
    epoch: Epoch,
    /// What it wrote or saw.
    position: Position,
    clock_ms: u64,
}

struct Server {
    member: MemberId,
    store: Store,
    process: Option<Process>,
    boot: u64,
    clock_start_us: u64,
    /// How its clocks run, in thousandths.
    rate: u64,
    wall_ms: i64,
    paused_until_us: u64,
    stalled_until_us: u64,
    known: Option<Shard>,
    is_gone: bool,
}

struct Process {
    id: u64,
    copy: ShardCopy,
    held: Held,
    given: Given,
    waiting: Vec<Waiting>,
    beat_us: u64,
    synced_us: u64,
    report_us: u64,
    seed: Option<((Epoch, u64), u64)>,
    /// What the directory holds back, and which time that is.
    opening: Option<(u64, Vec<Item>)>,
}

struct Leader {
    server: usize,
    promotions: Promotions,
}

struct World {
    profile: Profile,
    random: Random,
    now_us: u64,
    happens: BTreeMap<(u64, u64), Happens>,
    sequence: u64,
    servers: Vec<Server>,
    machine: Machine,
    leader: Option<Leader>,
    no_leader_until_us: u64,
    /// When the last message between two servers comes: they keep their order.
    arrives_us: BTreeMap<(usize, usize), u64>,
    arrived: BTreeMap<(usize, usize), u64>,
    cuts: BTreeSet<(usize, usize)>,
    /// What the bytes of an item are.
    contents: BTreeMap<(Position, u32), Write>,
    values: u64,
    processes: u64,
    switched_us: u64,
    stuck_since_us: Option<u64>,
    force: Option<MemberId>,
    is_calm: bool,
    may_force: bool,
    calm_all: u64,
    check: Check,
    report: Report,
}

impl World {
    fn new(seed: u64, profile: Profile) -> Self {
        let mut random = Random::new(seed);
        let mut machine = Machine::new(Map::new(FederationId([7; 8])), 0);
        let mut servers = Vec::new();
        let mut apply = |by: u64, entry: LogEntry| {
            let index = machine.applied() + 1;
            machine.apply(index, &Proposal { by: MemberId(by), entry });
        };
        for number in 1..=profile.servers {
            let member = MemberId(number);
            let directory = DirectoryId(random.bytes());
            let name = format!("s{number}");
            let server = NewServer {
                directory,
                name: ServerId::new(&name).unwrap_or_else(|_| unreachable!("a short name")),
                addresses: Addresses::default(),
                zone: String::new(),
                role: Role::Data,
                features: Features { min: 1, max: 1 },
            };
            let NewServer { addresses, zone, features, .. } = server.clone();
            if number == 1 {
                apply(1, LogEntry::Found { server, authority: None, with_shard: true });
            } else {
                let (token, key) = (TokenId(random.bytes()), KeyHash([number as u8; 32]));
                apply(1, LogEntry::Join { token, token_expires_s: 9, key, server });
            }
            apply(number, LogEntry::Announce { member, directory, addresses, zone, features });
            if number > 1 && number <= profile.copies as u64 {
                apply(1, LogEntry::AddCopy { shard: SHARD, epoch: Epoch(1), member });
            }
            let standing = (number == 1).then(Standing::founded);
            servers.push(Server {
                member,
                store: Store::new(DirectoryId(random.bytes()), standing),
                process: None,
                boot: 1,
                clock_start_us: random.below(1_000_000 * MS),
                rate: random.between(996, 1_004),
                wall_ms: 1_000_000_000 + random.between(0, 400) as i64,
                paused_until_us: 0,
                stalled_until_us: 0,
                known: None,
                is_gone: false,
            });
        }
        Self {
            profile,
            random,
            now_us: 0,
            happens: BTreeMap::new(),
            sequence: 0,
            servers,
            machine,
            leader: None,
            no_leader_until_us: 0,
            arrives_us: BTreeMap::new(),
            arrived: BTreeMap::new(),
            cuts: BTreeSet::new(),
            contents: BTreeMap::new(),
            values: 0,
            processes: 0,
            switched_us: 0,
            stuck_since_us: None,
            force: None,
            is_calm: false,
            may_force: true,
            calm_all: 0,
            check: Check::default(),
            report: Report::default(),
        }
    }

    fn settings(&self) -> CopySettings {
        let levels = Levels {
            copies: self.profile.copies,
            min_in_sync: self.profile.min_in_sync,
            durability: self.profile.durability,
        };
        let max_lag_bytes = self.profile.max_lag_bytes;
        let limits = Limits { max_lag_bytes, max_seed_bytes: 64 * max_lag_bytes };
        let primary = Settings { levels, limits, leave_after_us: 600 * MS, every_us: 50 * MS };
        CopySettings { primary, window_bytes: max_lag_bytes, silence_us: 300 * MS, clean_after_us: 1_000 * MS }
    }

    fn shard(&self) -> Shard {
        // The machine was founded with it.
        self.machine.map().shards.get(&SHARD).cloned().unwrap_or_else(|| unreachable!("the shard is there"))
    }

    // ---- Time ----

    fn after(&mut self, us: u64, what: Happens) {
        self.sequence += 1;
        self.happens.insert((self.now_us + us, self.sequence), what);
    }

    fn local_us(&self, at: usize) -> u64 {
        let server = &self.servers[at];
        server.clock_start_us + self.now_us * server.rate / 1_000
    }

    fn wall_ms(&self, at: usize) -> u64 {
        let server = &self.servers[at];
        (server.wall_ms + (self.now_us / MS) as i64).max(0) as u64
    }

    fn run(&mut self) -> Result<(), Broken> {
        for at in 0..self.servers.len() {
            self.start(at)?;
        }
        self.elect(0);
        self.after(LOOK_US, Happens::Look);
        self.after(0, Happens::Ask);
        let end_us = self.profile.seconds * 1_000 * MS;
        self.run_until(end_us, |_| false)?;
        self.calm_down()
    }

    fn run_until(&mut self, end_us: u64, mut is_done: impl FnMut(&Self) -> bool) -> Result<bool, Broken> {
        while let Some(((at_us, sequence), what)) = self.happens.pop_first() {
            self.now_us = self.now_us.max(at_us);
            if self.now_us > end_us {
                self.happens.insert((at_us, sequence), what);
                return Ok(false);
            }
            self.report.events += 1;
            let is_look = matches!(what, Happens::Look);
            self.happen(sequence, what)?;
            if is_look && is_done(self) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn trace(&mut self, tag: u64, at: usize) {
        for word in [self.now_us, tag, at as u64] {
            self.report.trace = (self.report.trace ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
        }
    }

    /// Whether the process of an event still runs, and does not stand still. Puts off what comes to
    /// one that does, in the order in which it came: messages between two servers keep theirs.
    fn is_due(
        &mut self,
        at: usize,
        process: Option<u64>,
        is_data: bool,
        (sequence, what): (u64, Happens),
    ) -> Option<Happens> {
        let server = &self.servers[at];
        let running = server.process.as_ref()?;
        if process.is_some_and(|process| process != running.id) {
            return None;
        }
        let until_us = server.paused_until_us.max(if is_data { server.stalled_until_us } else { 0 });
        if until_us > self.now_us {
            self.happens.insert((until_us, sequence), what);
            return None;
        }
        Some(what)
    }

    fn happen(&mut self, sequence: u64, what: Happens) -> Result<(), Broken> {
        let (at, process, is_data) = match &what {
            Happens::Tick { server, process } => (*server, Some(*process), false),
            Happens::Deliver { to, message, .. } => {
                let is_data = match message {
                    Message::Request(_) => true,
                    Message::Heartbeat(_) | Message::Promise(_) => self.profile.heartbeats_stall,
                    _ => false,
                };
                (*to, None, is_data)
            }
            Happens::Open { server, process, .. }
            | Happens::Applied { server, process, .. }
            | Happens::SyncEnded { server, process, .. } => (*server, Some(*process), true),
            Happens::Answer { server, process, .. } => (*server, Some(*process), false),
            Happens::Start { server } => return self.start(*server),
            Happens::Heal { cut } => {
                self.cuts.remove(cut);
                return Ok(());
            }
            Happens::Look => return self.look(),
            Happens::Ask => return self.ask(),
        };
        let Some(what) = self.is_due(at, process, is_data, (sequence, what)) else { return Ok(()) };
        let mut out = Vec::new();
        let now_us = self.local_us(at);
        match what {
            Happens::Tick { process, .. } => {
                self.trace(1, at);
                self.after(TICK_US, Happens::Tick { server: at, process });
                self.tick(at, &mut out);
            }
            Happens::Deliver { from, sender, number, message, .. } => {
                self.trace(2, at);
                let before = self.arrived.entry((from, at)).or_default();
                assert!(number == 0 || number > *before, "messages from {from} to {at} keep their order");
                *before = number.max(*before);
                let lives = self.servers[from].process.as_ref().map(|process| process.id) == sender;
                if sender.is_some() && !lives && self.random.per_mille(500) {
                    return Ok(());
                }
                self.deliver(from, at, message, &mut out)?;
            }
            Happens::Open { opening, .. } => self.open(at, opening),
            Happens::Applied { position, .. } => {
                if let Some(process) = &mut self.servers[at].process {
                    process.copy.applied(position, now_us, &mut out);
                }
            }
            Happens::SyncEnded { sync, length, .. } => {
                let server = &mut self.servers[at];
                match sync {
                    Sync::Segments => server.store.sync_segments(length),
                    Sync::Wal => server.store.sync_wal(length),
                }
                if let Some(process) = &mut server.process {
                    process.copy.sync_ended(now_us, &mut out);
                }
            }
            Happens::Answer { waiting, .. } => {
                if let Some(process) = &mut self.servers[at].process {
                    process.waiting.push(waiting);
                }
            }
            _ => {}
        }
        self.carry_out(at, out)?;
        self.answer(at)
    }

    // ---- A server ----

    fn start(&mut self, at: usize) -> Result<(), Broken> {
        if self.servers[at].process.is_some() || self.servers[at].is_gone {
            return Ok(());
        }
        self.trace(3, at);
        self.processes += 1;
        let (id, now_us, settings) = (self.processes, self.local_us(at), self.settings());
        let server = &mut self.servers[at];
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&server.boot.to_le_bytes());
        let incarnation = Incarnation { directory: server.store.directory, boot: BootId(boot) };
        let found = Found {
            standing: server.store.standing.clone(),
            at: server.store.mark(),
            clock_limit_ms: server.store.clock_limit_ms(),
        };
        let mut out = Vec::new();
        let names = (server.member, SHARD);
        let planted = self.profile.planted;
        let copy = ShardCopy::start(names, incarnation, found, settings, now_us, planted, &mut out);
        let times = LeaseTimes::default();
        server.process = Some(Process {
            id,
            copy,
            held: Held::new(times),
            given: Given::new(times, now_us),
            waiting: Vec::new(),
            beat_us: 0,
            synced_us: 0,
            report_us: 0,
            seed: None,
            opening: None,
        });
        self.carry_out(at, out)?;
        let within = self.random.below(TICK_US);
        self.after(within, Happens::Tick { server: at, process: id });
        Ok(())
    }

    fn kill(&mut self, at: usize, power: bool) -> Result<(), Broken> {
        self.trace(4, at);
        let Some(process) = self.servers[at].process.take() else { return Ok(()) };
        self.servers[at].paused_until_us = 0;
        self.servers[at].stalled_until_us = 0;
        // Nothing that was on its way to it reaches another process.
        self.happens.retain(|_, what| !matches!(what, Happens::Deliver { to, sender: Some(_), .. } if *to == at));
        if process.copy.primary().is_some_and(Primary::is_open) && self.random.per_mille(300) {
            // It died between writing and telling.
            self.values += 1;
            let write = Write { key: self.random.below(KEYS), value: self.values };
            let mark = self.servers[at].store.mark();
            self.servers[at].store.push(mark, Content::Untold(write));
        }
        if power {
            self.report.power += 1;
            self.servers[at].store.lose_power(&mut self.random);
            let (member, mark) = (self.servers[at].member, self.servers[at].store.mark());
            self.check.lost_power(member, mark.position)?;
            self.servers[at].boot += 1;
            self.servers[at].clock_start_us = self.random.below(1_000_000 * MS);
        }
        if !self.is_calm {
            let takes = self.random.between(100 * MS, 4_000 * MS);
            self.after(takes, Happens::Start { server: at });
        }
        Ok(())
    }

    fn tick(&mut self, at: usize, out: &mut Vec<Command>) {
        let (now_us, wall_ms, settings) = (self.local_us(at), self.wall_ms(at), self.settings());
        let is_stalled = self.servers[at].stalled_until_us > self.now_us;
        let sync_every_us = if self.profile.durability == Durability::Synced { 0 } else { 400 * MS };
        let server = &mut self.servers[at];
        let Some(process) = &mut server.process else { return };
        if let Some(known) = &server.known {
            process.copy.map(known, now_us, out);
        }
        process.copy.tick(now_us, wall_ms, &process.held, out);
        if process.copy.awaits_directory() && process.opening.take().is_some() {
            self.report.abandoned += 1;
            process.copy.abandoned(now_us, out);
        }
        if now_us >= process.synced_us + sync_every_us {
            process.synced_us = now_us;
            process.copy.sync(out);
        }
        process.copy.rest(now_us, out);
        if let Some((session, since_us)) = process.seed
            && now_us > since_us + SEED_US
        {
            process.seed = None;
            process.copy.seeded(session, None, now_us, out);
        }
        let mut messages = Vec::new();
        if now_us >= process.beat_us + LeaseTimes::default().every_us && !(is_stalled && self.profile.heartbeats_stall)
        {
            process.beat_us = now_us;
            let asks = process.copy.primary().map(|primary| (SHARD, primary.epoch())).into_iter().collect();
            messages.push(Message::Heartbeat(Heartbeat { sent_us: now_us, asks }));
        }
        let _ = settings;
        let mut report = None;
        if now_us >= process.report_us + LOOK_US {
            process.report_us = now_us;
            report = Some(process.copy.serving(&process.held, now_us));
        }
        for message in messages {
            for to in 0..self.servers.len() {
                if to != at {
                    self.send(at, to, message.clone());
                }
            }
        }
        if let (Some(serving), Some(leader)) = (report, self.leader.as_ref().map(|leader| leader.server)) {
            self.send(at, leader, Message::Report(serving));
        }
        if self.leader.as_ref().is_some_and(|leader| leader.server == at) {
            self.lead(at);
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let is_local = from == to;
        if !is_local && (self.cuts.contains(&(from, to)) || self.random.per_mille(self.profile.faults.loss)) {
            return;
        }
        let (first_ms, last_ms) = self.profile.latency_ms;
        let takes = if is_local { 100 } else { self.random.between(first_ms * MS, last_ms * MS) };
        let arrives_us = self.arrives_us.entry((from, to)).or_default();
        *arrives_us = (*arrives_us).max(self.now_us + takes);
        let takes = *arrives_us - self.now_us;
        let sender = self.servers[from].process.as_ref().map(|process| process.id);
        // Those of leases have a way of their own where they wait for the store.
        let has_own_way = matches!(message, Message::Heartbeat(_) | Message::Promise(_));
        let number = if has_own_way { 0 } else { self.sequence + 1 };
        self.after(takes, Happens::Deliver { from, sender, to, number, message });
    }

    fn index(member: MemberId) -> usize {
        member.0 as usize - 1
    }

    fn deliver(&mut self, from: usize, at: usize, message: Message, out: &mut Vec<Command>) -> Result<(), Broken> {
        let now_us = self.local_us(at);
        let leads = self.leader.as_ref().is_some_and(|leader| leader.server == at);
        let from_member = MemberId(from as u64 + 1);
        let server = &mut self.servers[at];
        let Some(process) = &mut server.process else { return Ok(()) };
        match message {
            Message::ToCopy(said) => process.copy.from_primary(from_member, said, now_us, out),
            Message::ToPrimary(said) => {
                if let Some(primary) = process.copy.primary_mut() {
                    primary.said(from_member, &said, now_us, out);
                    // What it frees may be sent at once.
                    process.copy.tick(now_us, 0, &process.held, out);
                }
            }
            Message::Heartbeat(heartbeat) => {
                let may = |_: ShardId, epoch: Epoch| process.copy.may_promise(epoch);
                let promise = process.given.answer(&heartbeat, may, now_us);
                self.send(at, from, Message::Promise(promise));
            }
            Message::Promise(promise) => process.held.promised(from_member, &promise),
            Message::Map(shard) => {
                let is_new = |known: &Shard| {
                    (known.epoch, known.set_version, known.copies.len())
                        < (shard.epoch, shard.set_version, shard.copies.len())
                };
                if server.known.as_ref().is_none_or(is_new) {
                    process.copy.map(&shard, now_us, out);
                    server.known = Some(shard);
                }
            }
            Message::Propose(entry) => {
                if leads && self.now_us >= self.no_leader_until_us {
                    self.apply(from_member, entry);
                }
            }
            Message::Report(serving) => {
                if let Some(leader) = self.leader.as_mut().filter(|_| leads) {
                    leader.promotions.reported(SHARD, serving, now_us);
                }
            }
            Message::Seal(epoch) => {
                let wait = process.given.must_wait_until(SHARD, now_us);
                process.copy.seal(epoch, wait, now_us, out);
            }
            Message::Sealed(report) => {
                if let Some(leader) = self.leader.as_mut().filter(|_| leads) {
                    leader.promotions.sealed(report);
                    self.lead(at);
                }
            }
            Message::Verify => {
                let is_sound = server.store.is_sound();
                self.send(at, from, Message::Verified(is_sound));
            }
            Message::Verified(is_sound) => {
                if let Some(leader) = self.leader.as_mut().filter(|_| leads) {
                    leader.promotions.verified(SHARD, from_member, is_sound);
                    self.lead(at);
                }
            }
            Message::Repair(others) => {
                let is_repaired = self.repair(at, &others);
                self.send(at, from, Message::Repaired(is_repaired));
            }
            Message::Repaired(is_repaired) => {
                if let Some(leader) = self.leader.as_mut().filter(|_| leads) {
                    leader.promotions.repaired(SHARD, from_member, is_repaired);
                }
            }
            Message::SendSeed { copy, session } => {
                let at_mark = process.copy.receiver().applied();
                let is_sound = server.store.is_sound() && process.copy.receiver().is_idle();
                let found = is_sound.then(|| (at_mark, server.store.clock_limit_ms()));
                let entries = server.store.entries.clone();
                // A link carries it in its time.
                // Behind what the primary has said of it.
                let takes = 20 * MS + entries.len() as u64 * 100 + 2 * self.profile.latency_ms.1 * MS;
                let sender = Some(process.id);
                let message = Message::Seed { session, at: found, entries };
                if !self.cuts.contains(&(at, copy)) {
                    self.after(takes, Happens::Deliver { from: at, sender, to: copy, number: 0, message });
                }
            }
            Message::Seed { session, at: found, mut entries } => {
                process.seed.take_if(|(of, _)| *of == session);
                if process.copy.seeded(session, found, now_us, out)
                    && let Some((mark, _)) = found
                {
                    if entries.last().is_none_or(|last| last.mark != mark) {
                        entries.push(Entry { mark, content: Content::Opening, is_damaged: false });
                    }
                    server.store.replace(entries);
                    self.check.replaced(server.member);
                    self.report.seeds += 1;
                }
            }
            Message::HandOver(to) => {
                if let Some(primary) = process.copy.primary_mut() {
                    primary.hand_over(to, now_us);
                }
            }
            Message::Excuse(member) => {
                if let Some(primary) = process.copy.primary_mut() {
                    primary.excuse(member);
                }
            }
            Message::Request(request) => self.request(at, request, out)?,
        }
        Ok(())
    }

    fn repair(&mut self, at: usize, others: &[MemberId]) -> bool {
        for place in 0..self.servers[at].store.entries.len() {
            let entry = self.servers[at].store.entries[place];
            if !entry.is_damaged {
                continue;
            }
            let sound = Entry { is_damaged: false, ..entry };
            let has = |other: &&MemberId| {
                let other = &self.servers[Self::index(**other)];
                other.process.is_some() && other.store.entries.contains(&sound)
            };
            if others.iter().find(has).is_none() {
                return false;
            }
            self.servers[at].store.entries[place] = sound;
        }
        true
    }

    fn carry_out(&mut self, at: usize, commands: Vec<Command>) -> Result<(), Broken> {
        for command in commands {
            let Some(process) = self.servers[at].process.as_ref().map(|process| process.id) else { return Ok(()) };
            match command {
                Command::Persist(standing) => self.servers[at].store.standing = Some(standing),
                Command::ToPrimary(to, said) => {
                    if let ToPrimaryBody::Acknowledge(said) = &said.body {
                        self.check.said_synced(self.servers[at].member, said.synced);
                    }
                    self.send(at, Self::index(to), Message::ToPrimary(said));
                }
                Command::ToCopy(to, said) => self.send(at, Self::index(to), Message::ToCopy(said)),
                Command::Apply(item) => {
                    let is_opened = self.servers[at].store.mark().position.epoch == item.position.epoch;
                    if is_opened {
                        self.write(at, process, &[item]);
                    } else {
                        self.hold_back(at, process, item);
                    }
                }
                Command::Sync(sync) => {
                    let length = self.servers[at].store.entries.len();
                    let takes = self.random.between(MS, 15 * MS);
                    self.after(takes, Happens::SyncEnded { server: at, process, sync, length });
                }
                Command::AwaitSeed { .. } => {
                    let now_us = self.local_us(at);
                    if let Some(process) = &mut self.servers[at].process {
                        process.seed = process.copy.awaits_seed().map(|session| (session, now_us));
                    }
                }
                Command::Seed { copy, source, session, resume } => {
                    debug_assert!(resume != Resume::Stream, "a stream needs no seed");
                    let copy = Self::index(copy);
                    let process = self.servers[at].process.as_ref();
                    let epoch = process.and_then(|process| process.copy.primary()).map(Primary::epoch);
                    let session = (epoch.unwrap_or_default(), session);
                    self.send(at, Self::index(source), Message::SendSeed { copy, session });
                }
                Command::Propose(entry) => self.propose(at, entry),
                Command::Sealed(report) => {
                    self.check.said_synced(report.member, report.position);
                    if let Some(leader) = self.leader.as_ref().map(|leader| leader.server) {
                        self.send(at, leader, Message::Sealed(report));
                    }
                }
                Command::Opened => self.opened(at)?,
                Command::Closed => {
                    if let Some(process) = &mut self.servers[at].process {
                        process.waiting.clear();
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, at: usize, process: u64, items: &[Item]) {
        for item in items {
            let write = self.contents.get(&(item.position, item.checksum)).copied();
            let is_wal = matches!(item.kind, Kind::Append { file: FileKind::Wal, .. });
            let content = Content::of(item.kind, write.filter(|_| is_wal));
            self.servers[at].store.push(item.mark(), content);
        }
        if let Some(position) = items.last().map(|item| item.position) {
            let takes = self.random.between(100, 2 * MS);
            self.after(takes, Happens::Applied { server: at, process, position });
        }
    }

    /// A directory takes the opening of an epoch as a whole: nothing of it before all of it is there.
    fn hold_back(&mut self, at: usize, process: u64, item: Item) {
        let Some(running) = &mut self.servers[at].process else { return };
        if let Some((_, items)) = &mut running.opening {
            items.push(item);
            return;
        }
        self.sequence += 1;
        let opening = self.sequence;
        running.opening = Some((opening, vec![item]));
        let is_long = self.random.per_mille(300);
        let takes = self.random.below(if is_long { 2_500 * MS } else { 30 * MS });
        self.after(takes, Happens::Open { server: at, process, opening });
    }

    fn open(&mut self, at: usize, opening: u64) {
        let Some(process) = &mut self.servers[at].process else { return };
        if let Some((_, items)) = process.opening.take_if(|(of, _)| *of == opening) {
            let id = process.id;
            self.write(at, id, &items);
        }
    }

    fn opened(&mut self, at: usize) -> Result<(), Broken> {
        self.trace(5, at);
        self.report.opened += 1;
        let server = &mut self.servers[at];
        let Some(process) = &server.process else { return Ok(()) };
        let (mark, epoch) = (process.copy.receiver().applied(), process.copy.standing().opened);
        server.store.push(mark, Content::Opening);
        let values: BTreeSet<u64> = server.store.values().collect();
        let by_force = self.force.take_if(|member| *member == server.member).is_some();
        let shard = &self.machine.map().shards[&SHARD];
        if (shard.epoch, shard.primary) != (epoch, Some(server.member)) {
            // It has not read that others were named since. It will have no lease.
            return Ok(());
        }
        self.check.opened(server.member, epoch, &values, by_force)
    }

    // ---- The control plane ----

    fn elect(&mut self, server: usize) {
        let settings =
            PromotionSettings { suspect_after_us: 1_000 * MS, ask_every_us: 60 * MS, wait_for_others_us: 3_000 * MS };
        let mut promotions = Promotions::new(settings);
        promotions.plant(self.profile.planted);
        self.leader = Some(Leader { server, promotions });
        self.publish();
    }

    fn publish(&mut self) {
        let Some(leader) = self.leader.as_ref().map(|leader| leader.server) else { return };
        let shard = self.shard();
        for to in 0..self.servers.len() {
            self.send(leader, to, Message::Map(shard.clone()));
        }
    }

    fn propose(&mut self, at: usize, entry: LogEntry) {
        if let Some(leader) = self.leader.as_ref().map(|leader| leader.server) {
            self.send(at, leader, Message::Propose(entry));
        }
    }

    fn apply(&mut self, by: MemberId, entry: LogEntry) {
        let before = self.machine.map().version;
        let index = self.machine.applied() + 1;
        self.machine.apply(index, &Proposal { by, entry });
        if self.machine.map().version != before {
            self.trace(6, 0);
            self.publish();
        }
    }

    fn lead(&mut self, at: usize) {
        let now_us = self.local_us(at);
        if self.now_us < self.no_leader_until_us {
            return;
        }
        let Some(leader) = &mut self.leader else { return };
        let mut is_stuck = false;
        for command in leader.promotions.tick(self.machine.map(), now_us) {
            match command {
                LeaderCommand::Propose(entry) => self.propose(at, entry),
                LeaderCommand::Seal(member, _, epoch) => self.send(at, Self::index(member), Message::Seal(epoch)),
                LeaderCommand::Verify(member, _) => self.send(at, Self::index(member), Message::Verify),
                LeaderCommand::Repair(member, _, from) => self.send(at, Self::index(member), Message::Repair(from)),
                LeaderCommand::Stuck(..) => is_stuck = true,
            }
        }
        if is_stuck && self.stuck_since_us.is_none() {
            self.stuck_since_us = Some(self.now_us);
        }
        if self.shard().primary.is_some() {
            self.stuck_since_us = None;
        }
    }

    /// People force a shard that stays stuck once all servers are back.
    fn force(&mut self) -> Result<(), Broken> {
        let shard = self.shard();
        let is_due = self.stuck_since_us.is_some_and(|since_us| self.now_us > since_us + PATIENCE_US);
        if self.force.is_none() {
            if !is_due || !self.is_calm || !self.may_force || shard.primary.is_some() {
                return Ok(());
            }
            let position = |member: &MemberId| self.servers[Self::index(*member)].store.mark().position;
            let runs = |member: &&MemberId| self.servers[Self::index(**member)].process.is_some();
            let best = shard.copies.iter().filter(runs).max_by_key(|member| position(member)).copied();
            self.force = best;
            self.report.forced += 1;
        }
        let Some(member) = self.force else { return Ok(()) };
        if let Some(entry) = forced(SHARD, &shard, member) {
            self.apply(member, entry);
        }
        let at = Self::index(member);
        let (now_us, mut out) = (self.local_us(at), Vec::new());
        if let Some(process) = &mut self.servers[at].process {
            process.copy.force(now_us, &mut out);
        }
        self.carry_out(at, out)
    }

    // ---- Clients ----

    fn ask(&mut self) -> Result<(), Broken> {
        if self.profile.requests == 0 {
            return Ok(());
        }
        let every_us = 1_000 * MS / self.profile.requests;
        let wait = self.random.between(every_us / 2, every_us * 3 / 2);
        self.after(wait, Happens::Ask);
        let key = self.random.below(KEYS);
        let level = [Level::One, Level::Quorum, Level::All][self.random.below(3) as usize];
        let what = match self.random.below(10) {
            0..5 => {
                self.values += 1;
                Asked::Write(self.values)
            }
            5..8 => Asked::Read,
            _ => Asked::ReplicaRead,
        };
        let any = self.random.below(self.servers.len() as u64) as usize;
        let primary = self.shard().primary.map(Self::index);
        // Many clients do not know who is the primary now.
        let to = primary.filter(|_| what != Asked::ReplicaRead && self.random.per_mille(700)).unwrap_or(any);
        let request = Request { key, level, what, floor: self.check.floor(key), until_us: self.now_us + TIMEOUT_US };
        self.after(MS, Happens::Deliver { from: to, sender: None, to, number: 0, message: Message::Request(request) });
        Ok(())
    }

    fn request(&mut self, at: usize, request: Request, out: &mut Vec<Command>) -> Result<(), Broken> {
        let (now_us, wall_ms) = (self.local_us(at), self.wall_ms(at));
        let server = &mut self.servers[at];
        let Some(process) = &mut server.process else { return Ok(()) };
        let Request { key, what, .. } = request;
        let found = server.store.read(key).map_or(Position::default(), |(position, _)| position);
        if what == Asked::ReplicaRead {
            let Some(staleness) = process.copy.staleness(now_us).filter(|_| process.copy.primary().is_none()) else {
                return Ok(());
            };
            let is_sound = server.store.is_sound();
            self.report.reads += 1;
            // By a clock that may run faster than the one that rules here.
            let as_of_us = self.now_us.saturating_sub(staleness.us * 1_010 / 1_000 + 10);
            let member = server.member;
            return if is_sound { self.check.replica_read(member, key, found, as_of_us) } else { Ok(()) };
        }
        let Some(primary) = process.copy.primary_mut().filter(|primary| primary.is_open()) else { return Ok(()) };
        let epoch = primary.epoch();
        let clock_ms = primary.clock_ms(wall_ms);
        let position = match what {
            Asked::Write(value) => {
                let write = Write { key, value };
                let kind = |file| Kind::Append { file, number: 1, offset: value };
                let bytes = self.random.between(100, 1_000);
                for file in [FileKind::Segment, FileKind::Wal] {
                    let Some(position) = process.copy.append(kind(file), bytes, value as u32, out) else {
                        return Ok(());
                    };
                    let mark = process.copy.receiver().applied();
                    debug_assert_eq!(mark.position, position);
                    self.contents.insert((position, value as u32), write);
                    let content = if file == FileKind::Wal { Content::Wal(write) } else { Content::Segment };
                    server.store.push(mark, content);
                }
                server.store.mark().position
            }
            _ => found,
        };
        if self.profile.durability == Durability::Synced && matches!(what, Asked::Write(_)) {
            process.copy.sync(out);
        }
        process.copy.tick(now_us, wall_ms, &process.held, out);
        let waiting = Waiting { request, epoch, position, clock_ms };
        let id = process.id;
        // Between reading and looking at the lease anything may happen.
        let wait = if what == Asked::Read { self.random.below(3 * MS) } else { 0 };
        self.after(wait, Happens::Answer { server: at, process: id, waiting });
        Ok(())
    }

    /// Answers what may be answered.
    fn answer(&mut self, at: usize) -> Result<(), Broken> {
        let now_us = self.local_us(at);
        let server = &mut self.servers[at];
        let Some(process) = &mut server.process else { return Ok(()) };
        if process.waiting.is_empty() {
            return Ok(());
        }
        let member = server.member;
        let Some(primary) = process.copy.primary() else {
            process.waiting.clear();
            return Ok(());
        };
        let now = self.now_us;
        process.waiting.retain(|waiting| waiting.epoch == primary.epoch() && waiting.request.until_us > now);
        let mut answered = Vec::new();
        process.waiting.retain(|waiting| {
            let Request { level, what, .. } = waiting.request;
            // A read at `one` shows what is there, committed or not.
            let upto = primary.answerable(level, &process.held, now_us);
            let is_read_at_one = what == Asked::Read && level == Level::One;
            let may = upto.is_ok_and(|position| is_read_at_one || position >= waiting.position);
            if may {
                answered.push(*waiting);
            }
            !may
        });
        let (process, epoch) = (process.id, primary.epoch());
        for Waiting { request: Request { key, level, what, floor, .. }, position, clock_ms, .. } in answered {
            match what {
                Asked::Write(value) => {
                    self.calm_all += u64::from(self.is_calm && level == Level::All);
                    let by = (member, process, epoch);
                    self.check.acknowledged(by, (key, value), level, position, self.now_us)?;
                }
                _ => {
                    self.report.reads += 1;
                    self.check.read(member, key, level, (position, clock_ms), floor)?;
                }
            }
        }
        Ok(())
    }

    // ---- What goes wrong ----

    fn look(&mut self) -> Result<(), Broken> {
        self.after(LOOK_US, Happens::Look);
        if self.random.per_mille(200) {
            self.publish();
        }
        self.force()?;
        if self.is_calm {
            if self.leader.is_none() {
                self.elect_any();
            }
            return Ok(());
        }
        let faults = self.profile.faults;
        for at in 0..self.servers.len() {
            // What is said for a server is said for all together.
            let scale = self.servers.len() as u64 * 1_000;
            let mut strikes = |per_mille: u64| self.random.below(scale) < per_mille;
            let (kill, power) = (strikes(faults.kills), strikes(faults.power));
            let (pause, stall, jump) = (strikes(faults.pauses), strikes(faults.stalls), strikes(faults.jumps));
            let (wipe, damage) = (strikes(faults.wipes), strikes(faults.damage));
            if kill || power {
                self.kill(at, power)?;
            }
            // Whoever stands still does so to the end: what was put off until then would come behind what
            // comes now.
            if pause {
                let until_us = self.now_us + self.random.below(3_000 * MS);
                self.servers[at].paused_until_us = until_us.max(self.servers[at].paused_until_us);
            }
            if stall {
                let until_us = self.now_us + self.random.below(3_000 * MS);
                self.servers[at].stalled_until_us = until_us.max(self.servers[at].stalled_until_us);
            }
            if jump {
                self.servers[at].wall_ms += self.random.below(20_000) as i64 - 10_000;
            }
            if wipe {
                self.wipe(at)?;
            }
            if damage {
                self.damage(at);
            }
        }
        if self.random.per_mille(faults.site) {
            for at in 0..self.servers.len() {
                self.kill(at, true)?;
            }
        }
        if self.random.per_mille(faults.cuts) {
            self.cut();
        }
        if self.random.per_mille(faults.leaders) {
            self.leader = None;
            self.no_leader_until_us = self.now_us + self.random.below(2_000 * MS);
        }
        if self.leader.as_ref().is_some_and(|leader| self.servers[leader.server].process.is_none()) {
            self.leader = None;
            self.no_leader_until_us = self.now_us + self.random.between(300 * MS, 1_500 * MS);
        }
        if self.leader.is_none() && self.now_us >= self.no_leader_until_us {
            self.elect_any();
        }
        if self.random.per_mille(faults.switches) {
            self.switch_over();
        }
        if self.random.per_mille(faults.excuses) {
            self.excuse();
        }
        Ok(())
    }

    /// A member is wanted out of the set.
    fn excuse(&mut self) {
        let shard = self.shard();
        let members: Vec<MemberId> = shard.copies.iter().copied().collect();
        let (Some(primary), Some(member)) = (shard.primary, self.random.one_of(&members).copied()) else { return };
        self.report.excused += 1;
        let to = Self::index(primary);
        self.after(0, Happens::Deliver { from: to, sender: None, to, number: 0, message: Message::Excuse(member) });
    }

    fn switch_over(&mut self) {
        let shard = self.shard();
        let Some(primary) = shard.primary else { return };
        // Its log is verified before.
        let fits = |member: &MemberId| *member != primary && self.servers[Self::index(*member)].store.is_sound();
        let others: Vec<MemberId> = shard.in_sync.iter().copied().filter(fits).collect();
        let to = Self::index(primary);
        if let Some(member) = self.random.one_of(&others) {
            self.switched_us = self.now_us;
            for (wait, successor) in [(0, Some(*member)), (SWITCH_US, None)] {
                self.after(
                    wait,
                    Happens::Deliver { from: to, sender: None, to, number: 0, message: Message::HandOver(successor) },
                );
            }
        }
    }

    fn elect_any(&mut self) {
        let running: Vec<usize> = (0..self.servers.len()).filter(|at| self.servers[*at].process.is_some()).collect();
        if let Some(at) = self.random.one_of(&running).copied() {
            self.elect(at);
        }
    }

    fn cut(&mut self) {
        let count = self.servers.len() as u64;
        let at = self.random.below(count) as usize;
        let all = self.random.per_mille(400);
        let (inward, outward) = (self.random.per_mille(700), self.random.per_mille(700));
        let lasts = self.random.between(100 * MS, 4_000 * MS);
        let other = self.random.below(count) as usize;
        for to in (0..count as usize).filter(|to| *to != at && (all || *to == other)) {
            for cut in [(at, to)].into_iter().filter(|_| outward).chain([(to, at)].into_iter().filter(|_| inward)) {
                self.cuts.insert(cut);
                self.after(lasts, Happens::Heal { cut });
            }
        }
    }

    /// A directory is lost, and comes back empty. The last copy in sync must stay.
    fn wipe(&mut self, at: usize) -> Result<(), Broken> {
        let shard = self.shard();
        if shard.in_sync.len() < 2 || shard.primary == Some(self.servers[at].member) {
            return Ok(());
        }
        self.kill(at, true)?;
        self.servers[at].store = Store::new(DirectoryId(self.random.bytes()), None);
        self.check.replaced(self.servers[at].member);
        Ok(())
    }

    /// A replica's files are damaged, while nobody asks for it to become the primary, and while
    /// another copy is undamaged.
    fn damage(&mut self, at: usize) {
        let shard = self.shard();
        let is_replica = self.servers[at].process.as_ref().is_some_and(|process| process.copy.primary().is_none());
        let others = self.servers.iter().all(|server| server.store.is_sound());
        let switches = self.now_us < self.switched_us + 4_000 * MS;
        if !is_replica || !others || switches || shard.primary.is_none_or(|primary| primary == self.servers[at].member)
        {
            return;
        }
        let length = self.servers[at].store.entries.len() as u64;
        let place = self.random.below(length) as usize;
        if let Some(entry) = self.servers[at].store.entries.get_mut(place)
            && matches!(entry.content, Content::Wal(_))
        {
            entry.is_damaged = true;
        }
    }

    // ---- The end ----

    /// No more faults: all must be well soon.
    fn calm_down(&mut self) -> Result<(), Broken> {
        let has_failed = self.profile.faults.kills + self.profile.faults.power + self.profile.faults.cuts > 0;
        if !has_failed && self.profile.faults.pauses + self.profile.faults.loss == 0 && self.report.opened > 1 {
            let what = format!("{} primaries were opened, and no server had failed", self.report.opened);
            return Err((Invariant::NoNeedlessFailover, what));
        }
        self.is_calm = true;
        self.stuck_since_us = None;
        self.cuts.clear();
        self.profile.faults = Faults::default();
        self.no_leader_until_us = 0;
        // A scrub has found what was damaged.
        for server in &mut self.servers {
            server.store.entries.iter_mut().for_each(|entry| entry.is_damaged = false);
        }
        for at in 0..self.servers.len() {
            self.start(at)?;
        }
        // While clients go on all copies come into the set.
        self.comes_back()?;
        if self.profile.loses_one {
            // All were well: without this one, too, nobody needs help.
            self.may_force = false;
            let primary = self.shard().primary.map(Self::index);
            let at = primary.unwrap_or_default();
            self.kill(at, false)?;
            self.servers[at].is_gone = true;
            if self.leader.as_ref().is_some_and(|leader| leader.server == at) {
                self.leader = None;
            }
            self.comes_back()?;
        }
        self.profile.requests = 0;
        let end_us = self.now_us + CALM_US;
        if !self.run_until(end_us, Self::is_same)? {
            return Err((Invariant::CopiesConverge, format!("copies differ: {}", self.describe())));
        }
        let Some(primary) = self.shard().primary else { return Ok(()) };
        let values: BTreeSet<u64> = self.servers[Self::index(primary)].store.values().collect();
        self.check.ended(primary, &values)
    }

    fn comes_back(&mut self) -> Result<(), Broken> {
        let end_us = self.now_us + CALM_US;
        self.calm_all = 0;
        let is_done = self.run_until(end_us, |world| world.calm_all > 2 && world.is_in_sync())?;
        if is_done { Ok(()) } else { Err((Invariant::CopiesConverge, self.describe())) }
    }

    fn is_in_sync(&self) -> bool {
        let shard = self.shard();
        let is_there = |member: &&MemberId| !self.servers[Self::index(**member)].is_gone;
        shard.primary.is_some() && shard.copies.iter().filter(is_there).eq(&shard.in_sync)
    }

    fn is_same(&self) -> bool {
        let shard = self.shard();
        let values = |member: &MemberId| -> Vec<u64> { self.servers[Self::index(*member)].store.values().collect() };
        let Some(primary) = shard.primary else { return false };
        let all = values(&primary);
        self.is_in_sync() && shard.in_sync.iter().all(|member| values(member) == all)
    }

    fn describe(&self) -> String {
        let copies = self.servers.iter().map(|server| {
            let runs = server.process.as_ref().map(|process| {
                let has_lease = process.copy.serving(&process.held, self.now_us);
                (process.copy.standing().is_whole, process.copy.receiver().session(), has_lease)
            });
            format!("{}: {:?} of {} entries, {runs:?}", server.member, server.store.mark(), server.store.entries.len())
        });
        let copies: Vec<String> = copies.collect();
        format!("{:?}, {} writes at all, {}", self.shard(), self.calm_all, copies.join("; "))
    }
}
