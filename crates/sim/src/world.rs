//! The world: servers, what is between them, and what happens to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ecotone_control::entry::{Entry, NewServer, Proposal};
use ecotone_control::ids::{DirectoryId, FederationId, HistoryId, KeyHash, MemberId, ShardId, TokenId};
use ecotone_control::log::{self, Identity, Log, Records};
use ecotone_control::machine::Outcome;
use ecotone_control::map::{Addresses, Features, Map, Role, ServerState};
use ecotone_control::node::{Command, Event, Node, Planted, TICK_MS};
use ecotone_control::recover;
use ecotone_control::voters::MAX_VOTERS;
use ecotone_types::ServerId;

use crate::check::{Check, Invariant, Violation};
use crate::disk::Disk;
use crate::random::Random;

const MS: u64 = 1_000;
/// Between two looks whether what is waited for has come.
const LOOK_US: u64 = MS;
/// Between two looks of the people who run the federation.
const OPERATE_US: u64 = 100 * MS;
/// How long a server needs to start again.
const START_US: (u64, u64) = (200 * MS, 4_000 * MS);
/// How long it may take to found a federation of hundreds.
const SETTLE_US: u64 = 300_000 * MS;
/// How soon all must be well after the last fault: elections, a slow disk and a snapshot that is
/// sent again after 5 s.
const CALM_US: u64 = 30_000 * MS;
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Servers with data at the beginning.
    pub servers: usize,
    /// Witnesses.
    pub witnesses: usize,
    /// Zones that they are spread over.
    pub zones: usize,
    /// Shards; none to leave the federation without.
    pub shards: usize,
    /// How long things happen, before all must be well again.
    pub seconds: u64,
    /// One way through the network, in milliseconds, least and most.
    pub latency_ms: (u64, u64),
    /// A write and sync, in milliseconds, least and most.
    pub disk_ms: (u64, u64),
    /// What goes wrong.
    pub faults: Faults,
    /// Changes that somebody asks for, of a thousand looks (ten a second).
    pub changes: u64,
    /// Entries after which a server compacts its log, and how many it keeps: few, so that snapshots
    /// are sent as well, or as many as servers do.
    pub compaction: (usize, u64),
    /// A failure that is planted.
    pub plant: Option<Plant>,
}

/// What goes wrong, in cases of a thousand: of messages, or of looks (ten a second).
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Messages that are lost.
    pub loss: u64,
    /// Messages that come twice.
    pub duplication: u64,
    /// Messages that are late, by up to two seconds.
    pub delay: u64,
    /// Servers that lose power.
    pub kills: u64,
    /// Servers that stand still for up to three seconds.
    pub pauses: u64,
    /// Clocks that jump by up to five seconds.
    pub jumps: u64,
    /// Groups of servers that are cut off, both ways or one.
    pub cuts: u64,
    /// Disks that are lost.
    pub wipes: u64,
    /// Servers that join, are drained, removed.
    pub members: u64,
}

impl Faults {
    /// A little of everything.
    pub fn all() -> Self {
        Self { loss: 20, duplication: 20, delay: 10, kills: 15, pauses: 10, jumps: 10, cuts: 12, wipes: 2, members: 15 }
    }
}

/// A failure that others had in public, made here to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A server answers before its log is durable (curvine#1368).
    AnswerBeforeDurable,
    /// A server that lost its disk comes back under its old number (qdrant#1235).
    WipedReturns,
    /// The log is cleared before the snapshot is durable (qdrant#7577).
    LogBeforeSnapshot,
    /// A rule of the map is left out.
    Rule(Planted),
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// A hash over all that happened, in its order.
    pub trace: u64,
    /// Changes that were applied.
    pub changes: usize,
    /// Terms that had a leader.
    pub terms: usize,
    /// Servers that lost power.
    pub kills: u64,
    /// Torn ends of logs that were cut off.
    pub torn: u64,
    /// Events.
    pub events: u64,
}

/// Runs `profile` with the choices of `seed`.
///
/// # Errors
/// With the invariant that was broken.
pub fn run(seed: u64, profile: &Profile) -> Result<Report, Violation> {
    let mut world = World::new(seed, profile.clone());
    world.settle()?;
    world.run_for(profile.seconds * 1_000 * MS)?;
    world.calm_down()?;
    Ok(world.report())
}

#[derive(Debug)]
enum Happens {
    Tick { server: usize, boot: u64 },
    Deliver { from: usize, to: usize, bytes: Vec<u8> },
    Ask { to: usize, ask: u64 },
    Persisted { server: usize, boot: u64 },
    Start { server: usize },
    Heal { cut: u64 },
    Operate,
}

struct Server {
    name: String,
    zone: String,
    role: Role,
    directory: DirectoryId,
    token: TokenId,
    member: Option<MemberId>,
    disk: Option<Disk>,
    running: Option<Running>,
    boots: u64,
    paused_until: u64,
    /// Microseconds of its tick: no two clocks run alike.
    tick_us: u64,
    features: Features,
    is_lost: bool,
}

struct Running {
    node: Node,
    log: Log<Disk>,
    boot: u64,
    /// What is to be durable, in order; the number is that of the step that waits for it.
    queue: VecDeque<(Option<u64>, Records)>,
    is_writing: bool,
}

/// A federation in virtual time.
pub struct World {
    profile: Profile,
    random: Random,
    now_us: u64,
    happens: BTreeMap<(u64, u64), Happens>,
    sequence: u64,
    servers: Vec<Server>,
    federation: FederationId,
    cuts: BTreeMap<u64, BTreeSet<(usize, usize)>>,
    asks: BTreeMap<u64, Proposal>,
    answers: BTreeMap<u64, Outcome>,
    check: Check,
    trace: u64,
    kills: u64,
    torn: u64,
    events: u64,
    is_calm: bool,
    check_maps: bool,
}

impl World {
    /// A federation that is about to be founded.
    pub fn new(seed: u64, profile: Profile) -> Self {
        let mut random = Random::new(seed);
        let federation = FederationId(random.draw().to_le_bytes());
        let mut world = Self {
            random,
            now_us: 0,
            happens: BTreeMap::new(),
            sequence: 0,
            servers: Vec::new(),
            federation,
            cuts: BTreeMap::new(),
            asks: BTreeMap::new(),
            answers: BTreeMap::new(),
            check: Check::default(),
            trace: 0xcbf2_9ce4_8422_2325,
            kills: 0,
            torn: 0,
            events: 0,
            is_calm: false,
            check_maps: true,
            profile,
        };
        for at in 0..world.profile.servers + world.profile.witnesses {
            let role = if at < world.profile.servers { Role::Data } else { Role::Witness };
            world.add_server(role);
        }
        world.begin();
        world.after(OPERATE_US, Happens::Operate);
        world
    }

    /// Leaves out the comparison of maps after each entry, which large maps make slow.
    pub fn compare_maps(&mut self, compare: bool) {
        self.check_maps = compare;
    }

    /// What happened so far.
    pub fn report(&self) -> Report {
        Report {
            trace: self.trace,
            changes: self.check.changes(),
            terms: self.check.terms(),
            kills: self.kills,
            torn: self.torn,
            events: self.events,
        }
    }

    /// Virtual microseconds since the beginning.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// The server that leads and is heard: of those that think they do, the one of the latest term.
    pub fn leader(&self) -> Option<usize> {
        let leaders = self.running().filter(|(at, running)| running.node.leads() && !self.is_paused(*at));
        leaders.max_by_key(|(_, running)| running.node.term()).map(|(at, _)| at)
    }

    /// The map of a server that runs.
    pub fn map(&self, server: usize) -> Option<&Map> {
        Some(self.servers.get(server)?.running.as_ref()?.node.map())
    }

    /// Who votes, as a server that runs knows.
    pub fn voters(&self, server: usize) -> BTreeSet<MemberId> {
        let running = self.servers.get(server).and_then(|server| server.running.as_ref());
        running.map(|running| running.node.voters()).unwrap_or_default()
    }

    /// The number of a server.
    pub fn member(&self, server: usize) -> Option<MemberId> {
        self.servers.get(server)?.member
    }

    /// How many servers run.
    pub fn running_count(&self) -> usize {
        self.running().count()
    }

    /// Lets `us` microseconds pass.
    ///
    /// # Errors
    /// With the invariant that was broken.
    pub fn run_for(&mut self, us: u64) -> Result<(), Violation> {
        self.run_until(self.now_us + us, |_| false).map(drop)
    }

    /// Lets time pass until `done`, or until `end_us`; whether it was done.
    ///
    /// # Errors
    /// With the invariant that was broken.
    pub fn run_until(&mut self, end_us: u64, done: impl Fn(&Self) -> bool) -> Result<bool, Violation> {
        let mut look_us = self.now_us;
        loop {
            if self.now_us >= look_us {
                if done(self) {
                    return Ok(true);
                }
                look_us = self.now_us + LOOK_US;
            }
            match self.happens.first_key_value() {
                Some(((at, _), _)) if *at <= end_us => {}
                _ => {
                    self.now_us = end_us;
                    return Ok(done(self));
                }
            }
            let Some(((at, _), happens)) = self.happens.pop_first() else { return Ok(false) };
            self.now_us = at;
            self.events += 1;
            self.note(&happens);
            self.happen(happens)?;
        }
    }

    /// Lets the federation be founded, and its servers join, without faults.
    ///
    /// # Errors
    /// When that takes too long, or an invariant was broken.
    pub fn settle(&mut self) -> Result<(), Violation> {
        self.is_calm = true;
        let is_settled = self.run_until(self.now_us + SETTLE_US, Self::is_settled)?;
        self.is_calm = false;
        if is_settled { Ok(()) } else { Err(self.broken((Invariant::MapConverges, self.describe()))) }
    }

    /// Whether all servers run and are active, as many vote as should, and all have the same map.
    pub fn is_settled(&self) -> bool {
        let Some(running) = self.leader().and_then(|leader| self.servers[leader].running.as_ref()) else {
            return false;
        };
        let (node, map) = (&running.node, running.node.map());
        let active = map.members().filter(|(_, server)| server.state == ServerState::Active).count();
        let wanted = match active {
            MAX_VOTERS.. => MAX_VOTERS,
            3.. => 3,
            fewer => fewer.min(1),
        };
        active == self.servers.len()
            && self.running_count() == active
            && node.voters().len() == wanted
            && !node.is_joint()
            && (self.profile.shards == 0 || !map.shards.is_empty())
            && self.has_converged()
            && self.running().all(|(_, running)| running.node.voters() == node.voters() && !running.node.is_joint())
    }

    /// Ends all faults, and asks for a change. All servers must have the same map soon.
    ///
    /// # Errors
    /// When they do not, or an invariant was broken.
    pub fn calm_down(&mut self) -> Result<(), Violation> {
        self.is_calm = true;
        self.cuts.clear();
        for at in 0..self.servers.len() {
            self.servers[at].paused_until = 0;
        }
        let end = self.now_us + CALM_US;
        while self.now_us < end {
            let value = self.now_us.to_string();
            let ask = self.ask_leader(Entry::Set { name: "calm".into(), value: Some(value) });
            let until = self.now_us + 1_000 * MS;
            if self.run_until(until, |world| ask.is_some_and(|ask| world.answers.contains_key(&ask)))? {
                if self.run_until(end, Self::has_converged)? {
                    return Ok(());
                }
                break;
            }
        }
        Err(self.broken((Invariant::MapConverges, self.describe())))
    }

    /// What each server thinks, in words.
    pub fn describe(&self) -> String {
        let states: Vec<String> = self
            .servers
            .iter()
            .map(|server| match &server.running {
                None => format!("{} is down", server.name),
                Some(running) => {
                    let node = &running.node;
                    format!(
                        "{} is {:?}, term {}, applied {}, leader {:?}, voters {:?}",
                        server.name,
                        server.member,
                        node.term(),
                        node.applied(),
                        node.leader(),
                        node.voters()
                    )
                }
            })
            .collect();
        states.join("; ")
    }

    /// Whether all servers that run, and belong to it, have the map of the leader.
    pub fn has_converged(&self) -> bool {
        let Some(leader) = self.leader() else { return false };
        let Some(map) = self.map(leader) else { return false };
        let is_member = |running: &Running| map.server(running.node.member()).is_some();
        let maps = || self.running().filter(|(_, running)| is_member(running)).map(|(_, running)| running.node.map());
        // Versions first: maps are large, and all of them the same nearly always.
        maps().all(|other| other.version == map.version) && maps().all(|other| other == map)
    }

    /// Asks the leader for a change, at once; the number by which [`World::answer`] knows it.
    pub fn ask_leader(&mut self, entry: Entry) -> Option<u64> {
        let leader = self.leader()?;
        let by = self.servers[leader].member?;
        let ask = self.new_ask(Proposal { by, entry });
        self.after(0, Happens::Ask { to: leader, ask });
        Some(ask)
    }

    /// What became of a change.
    pub fn answer(&self, ask: u64) -> Option<&Outcome> {
        self.answers.get(&ask)
    }

    /// A server loses power.
    pub fn kill(&mut self, server: usize) {
        let World { servers, random, kills, .. } = self;
        let server = &mut servers[server];
        let Some(running) = server.running.take() else { return };
        *kills += 1;
        let Running { mut log, queue, is_writing, .. } = running;
        if is_writing && let Some((_, records)) = queue.front() {
            log.storage_mut().fail_after(random.below(5));
            // Cut short anywhere, or whole.
            let _ = log.persist(records);
        }
        let mut disk = log.into_storage();
        disk.lose_power(random);
        server.disk = Some(disk);
    }

    /// A server starts again after `us` microseconds.
    pub fn start_after(&mut self, server: usize, us: u64) {
        self.after(us, Happens::Start { server });
    }

    /// A server stands still.
    pub fn pause(&mut self, server: usize, us: u64) {
        self.servers[server].paused_until = self.now_us + us;
    }

    /// The clock of a server jumps.
    ///
    /// # Errors
    /// With the invariant that was broken.
    pub fn jump(&mut self, server: usize, us: u64) -> Result<(), Violation> {
        for _ in 0..us / (TICK_MS * MS) {
            self.handle(server, Event::Tick)?;
        }
        Ok(())
    }

    /// Nothing gets from `from` to any other server, for `us` microseconds; with `both_ways`,
    /// nothing gets there either.
    pub fn cut_off(&mut self, server: usize, both_ways: bool, us: u64) {
        let others = (0..self.servers.len()).filter(|other| *other != server);
        let mut links: BTreeSet<(usize, usize)> = others.clone().map(|other| (server, other)).collect();
        if both_ways {
            links.extend(others.map(|other| (other, server)));
        }
        self.cut(links, us);
    }

    /// Nothing gets to `server`, for `us` microseconds.
    pub fn deafen(&mut self, server: usize, us: u64) {
        let links = (0..self.servers.len()).filter(|other| *other != server).map(|other| (other, server)).collect();
        self.cut(links, us);
    }

    fn cut(&mut self, links: BTreeSet<(usize, usize)>, us: u64) {
        let cut = self.sequence;
        self.cuts.insert(cut, links);
        self.after(us, Happens::Heal { cut });
    }

    fn add_server(&mut self, role: Role) -> usize {
        let at = self.servers.len();
        let zone = at % self.profile.zones.max(1);
        let server = Server {
            name: format!("server-{at}"),
            zone: LETTERS.get(zone..=zone).unwrap_or("other").to_owned(),
            role,
            directory: DirectoryId(self.random.bytes()),
            token: TokenId(self.random.bytes()),
            member: None,
            disk: None,
            running: None,
            boots: 0,
            paused_until: 0,
            tick_us: TICK_MS * MS + self.random.below(501) - 250,
            features: Features { min: 1, max: 2 },
            is_lost: false,
        };
        self.servers.push(server);
        at
    }

    /// The first server makes the federation.
    fn begin(&mut self) {
        let snapshot = recover::found(self.federation);
        self.servers[0].member = Some(MemberId(1));
        self.create_log(0, snapshot);
        self.after(0, Happens::Start { server: 0 });
    }

    fn create_log(&mut self, at: usize, snapshot: ecotone_control::Snapshot) {
        let disk = Disk::new(self.profile.plant == Some(Plant::LogBeforeSnapshot));
        let server = &mut self.servers[at];
        let Some(member) = server.member else { return };
        // Who joins hears of the history from its leader.
        let history = if member.0 == 1 { HistoryId(self.federation.0) } else { HistoryId::UNKNOWN };
        let (federation, directory) = (self.federation, server.directory);
        let identity = Identity { federation, generation: 1, history, member, directory };
        // Nothing of a made-up disk fails that was not told to.
        if let Ok((log, _)) = log::create(disk, identity, snapshot) {
            server.disk = Some(log.into_storage());
        }
    }

    fn running(&self) -> impl Iterator<Item = (usize, &Running)> {
        self.servers.iter().enumerate().filter_map(|(at, server)| Some((at, server.running.as_ref()?)))
    }

    fn is_paused(&self, server: usize) -> bool {
        self.servers[server].paused_until > self.now_us
    }

    fn after(&mut self, us: u64, happens: Happens) {
        self.sequence += 1;
        self.happens.insert((self.now_us + us, self.sequence), happens);
    }

    fn broken(&self, (invariant, what): (Invariant, String)) -> Violation {
        Violation { invariant, what, at_us: self.now_us }
    }

    fn note(&mut self, happens: &Happens) {
        let (kind, a, b, c) = match happens {
            Happens::Tick { server, boot } => (1, *server as u64, *boot, 0),
            Happens::Deliver { from, to, bytes } => (2, *from as u64, *to as u64, u64::from(crc32c::crc32c(bytes))),
            Happens::Ask { to, ask } => (3, *to as u64, *ask, 0),
            Happens::Persisted { server, boot } => (4, *server as u64, *boot, 0),
            Happens::Start { server } => (5, *server as u64, 0, 0),
            Happens::Heal { cut } => (6, *cut, 0, 0),
            Happens::Operate => (7, 0, 0, 0),
        };
        for number in [self.now_us, kind, a, b, c] {
            // FNV-1a, by words.
            self.trace = (self.trace ^ number).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn happen(&mut self, happens: Happens) -> Result<(), Violation> {
        match happens {
            Happens::Tick { server, boot } => {
                if self.boot(server) != Some(boot) {
                    return Ok(());
                }
                let wait = self.servers[server].tick_us;
                if self.is_paused(server) {
                    // It has missed ticks, and makes up for one only.
                    let until = self.servers[server].paused_until - self.now_us;
                    self.after(until, Happens::Tick { server, boot });
                    return Ok(());
                }
                self.after(wait, Happens::Tick { server, boot });
                self.handle(server, Event::Tick)
            }
            Happens::Deliver { from, to, bytes } => {
                if self.is_paused(to) {
                    let until = self.servers[to].paused_until - self.now_us;
                    self.after(until, Happens::Deliver { from, to, bytes });
                    return Ok(());
                }
                let Some(from) = self.servers[from].member else { return Ok(()) };
                self.handle(to, Event::Receive { from, bytes })
            }
            Happens::Ask { to, ask } => {
                if self.is_paused(to) {
                    let until = self.servers[to].paused_until - self.now_us;
                    self.after(until, Happens::Ask { to, ask });
                    return Ok(());
                }
                let Some(proposal) = self.asks.get(&ask).cloned() else { return Ok(()) };
                self.handle(to, Event::Propose { id: ask, proposal })
            }
            Happens::Persisted { server, boot } => {
                if self.boot(server) == Some(boot) {
                    self.persisted(server)
                } else {
                    Ok(())
                }
            }
            Happens::Start { server } => self.start(server),
            Happens::Heal { cut } => {
                self.cuts.remove(&cut);
                Ok(())
            }
            Happens::Operate => {
                self.after(OPERATE_US, Happens::Operate);
                self.operate()
            }
        }
    }

    fn boot(&self, server: usize) -> Option<u64> {
        self.servers[server].running.as_ref().map(|running| running.boot)
    }

    fn start(&mut self, at: usize) -> Result<(), Violation> {
        let plant = self.profile.plant;
        if self.servers[at].running.is_some() {
            return Ok(());
        }
        let Some(disk) = self.servers[at].disk.take() else { return Ok(()) };
        let opened = match log::open(disk) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(()),
            Err(error) => {
                let what = format!("{}: {error}", self.servers[at].name);
                return Err(self.broken((Invariant::ServersStart, what)));
            }
        };
        let (log, content) = opened;
        self.torn += u64::from(content.torn_bytes > 0);
        let seed = self.random.draw();
        let mut node = match Node::new(content, seed) {
            Ok(node) => node,
            Err(error) => {
                let what = format!("{}: {error}", self.servers[at].name);
                return Err(self.broken((Invariant::ServersStart, what)));
            }
        };
        let (compact, keep) = self.profile.compaction;
        node.set_compaction(compact, keep);
        if let Some(Plant::Rule(planted)) = plant {
            node.plant(planted);
        }
        let server = &mut self.servers[at];
        server.boots += 1;
        let boot = server.boots;
        server.running = Some(Running { node, log, boot, queue: VecDeque::new(), is_writing: false });
        let wait = self.random.below(self.servers[at].tick_us);
        self.after(wait, Happens::Tick { server: at, boot });
        Ok(())
    }

    fn handle(&mut self, at: usize, event: Event) -> Result<(), Violation> {
        let Some(running) = &mut self.servers[at].running else { return Ok(()) };
        let mut commands = Vec::new();
        let node = &running.node;
        let is_quiet = event == Event::Tick && node.quiet_ticks() > 1;
        let before = (node.leader(), node.leads(), node.term());
        if let Err(error) = running.node.handle(event, &mut commands) {
            let what = format!("{}: {error}", self.servers[at].name);
            return Err(self.broken((Invariant::MapConverges, what)));
        }
        // The daemon sleeps over such ticks. (A leader may see later who should vote.)
        let node = &running.node;
        let is_same = (node.leader(), node.leads(), node.term()) == before && (commands.is_empty() || node.leads());
        assert!(!is_quiet || is_same, "{}: a tick that was to do nothing gave {commands:?}", self.servers[at].name);
        commands.into_iter().try_for_each(|command| self.carry_out(at, command))
    }

    fn carry_out(&mut self, at: usize, command: Command) -> Result<(), Violation> {
        match command {
            Command::Persist { number, records } => {
                if self.profile.plant == Some(Plant::AnswerBeforeDurable) {
                    self.write(at, None, records);
                    return self.handle(at, Event::Persisted(number));
                }
                self.write(at, Some(number), records);
                Ok(())
            }
            Command::Compact(records) => {
                self.write(at, None, records);
                Ok(())
            }
            Command::Send { to, bytes } => {
                self.send(at, to, bytes);
                Ok(())
            }
            Command::Applied { index, proposal, outcome } => {
                self.learn(&proposal, &outcome);
                let Self { servers, check, check_maps, .. } = self;
                let Some(running) = &servers[at].running else { return Ok(()) };
                let node = &running.node;
                let map = Some(node.map()).filter(|_| *check_maps && node.applied() == index);
                let checked = check.applied(node.member(), index, &proposal, &outcome, map);
                checked.map_err(|broken| self.broken(broken))
            }
            Command::MapReplaced => {
                let Self { servers, check, check_maps, .. } = self;
                let Some(running) = servers[at].running.as_ref().filter(|_| *check_maps) else { return Ok(()) };
                let node = &running.node;
                let checked = check.map(node.member(), node.applied(), node.map());
                checked.map_err(|broken| self.broken(broken))
            }
            Command::Decided { id, index, outcome } => {
                if let Some(proposal) = self.asks.get(&id) {
                    self.check.decided(index, proposal).map_err(|broken| self.broken(broken))?;
                }
                self.answers.insert(id, outcome);
                Ok(())
            }
            Command::NotProposed { .. } => Ok(()),
            Command::Leader { leader, term } => {
                let member = self.servers[at].member;
                match member.filter(|_| leader == member) {
                    Some(member) => self.check.leads(member, term).map_err(|broken| self.broken(broken)),
                    None => Ok(()),
                }
            }
            Command::NewGeneration { .. } => Ok(()),
        }
    }

    fn write(&mut self, at: usize, number: Option<u64>, records: Records) {
        let Some(running) = &mut self.servers[at].running else { return };
        running.queue.push_back((number, records));
        self.write_next(at);
    }

    fn write_next(&mut self, at: usize) {
        let (least, most) = self.profile.disk_ms;
        let Some(running) = &mut self.servers[at].running else { return };
        if running.is_writing || running.queue.is_empty() {
            return;
        }
        running.is_writing = true;
        let boot = running.boot;
        let takes = self.random.between(least * MS, most * MS);
        self.after(takes, Happens::Persisted { server: at, boot });
    }

    fn persisted(&mut self, at: usize) -> Result<(), Violation> {
        let Some(running) = &mut self.servers[at].running else { return Ok(()) };
        running.is_writing = false;
        let Some((number, records)) = running.queue.pop_front() else { return Ok(()) };
        if let Err(error) = running.log.persist(&records) {
            let what = format!("{}: {error}", self.servers[at].name);
            return Err(self.broken((Invariant::ServersStart, what)));
        }
        if let Some(number) = number {
            self.handle(at, Event::Persisted(number))?;
        }
        self.write_next(at);
        Ok(())
    }

    fn send(&mut self, from: usize, to: MemberId, bytes: Vec<u8>) {
        // The last with this number: a server that lost its disk has another.
        let Some(to) = self.servers.iter().rposition(|server| server.member == Some(to)) else { return };
        if self.is_cut(from, to) || self.servers[to].running.is_none() {
            return;
        }
        let faults = self.faults();
        let copies = 1 + u64::from(self.random.per_mille(faults.duplication));
        for _ in 0..copies {
            if self.random.per_mille(faults.loss) {
                continue;
            }
            let takes = self.latency();
            self.after(takes, Happens::Deliver { from, to, bytes: bytes.clone() });
        }
    }

    fn latency(&mut self) -> u64 {
        let (least, most) = self.profile.latency_ms;
        let late = if self.random.per_mille(self.faults().delay) { self.random.below(2_000 * MS) } else { 0 };
        self.random.between(least * MS, most * MS) + late
    }

    fn faults(&self) -> Faults {
        if self.is_calm { Faults::default() } else { self.profile.faults }
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.values().any(|links| links.contains(&(from, to)))
    }

    fn new_ask(&mut self, proposal: Proposal) -> u64 {
        let ask = self.asks.len() as u64;
        self.asks.insert(ask, proposal);
        ask
    }

    /// Somebody asks whoever they take for the leader, over the network.
    fn ask(&mut self, proposal: Proposal) {
        let leaders: Vec<usize> =
            self.running().filter(|(_, running)| running.node.leads()).map(|(at, _)| at).collect();
        let Some(to) = self.random.one_of(&leaders).copied() else { return };
        let ask = self.new_ask(proposal);
        let copies = 1 + u64::from(self.random.per_mille(self.faults().duplication));
        for _ in 0..copies {
            let takes = self.latency();
            self.after(takes, Happens::Ask { to, ask });
        }
    }

    /// A server that was let in begins.
    fn learn(&mut self, proposal: &Proposal, outcome: &Outcome) {
        let (Entry::Join { server, .. }, Outcome::Joined(member)) = (&proposal.entry, outcome) else { return };
        let Some(at) = self.servers.iter().position(|new| new.directory == server.directory) else { return };
        if self.servers[at].member.is_some() {
            return;
        }
        self.servers[at].member = Some(*member);
        self.create_log(at, ecotone_control::Snapshot::default());
        let takes = self.latency();
        self.after(takes, Happens::Start { server: at });
    }

    fn new_server(&self, at: usize) -> NewServer {
        let server = &self.servers[at];
        NewServer {
            directory: server.directory,
            // All names are short and printable.
            name: ServerId::new(&server.name).unwrap_or_else(|_| unreachable!("{}", server.name)),
            addresses: Addresses { peers: format!("{}:7000", server.name), clients: format!("{}:6379", server.name) },
            zone: server.zone.clone(),
            role: server.role,
            features: server.features,
        }
    }

    /// What people and the servers' own housekeeping do, ten times a second.
    fn operate(&mut self) -> Result<(), Violation> {
        self.found_and_join();
        if self.is_calm {
            for at in 0..self.servers.len() {
                self.start(at)?;
            }
            return Ok(());
        }
        self.change();
        self.go_wrong()
    }

    fn found_and_join(&mut self) {
        let Some(leader) = self.leader() else { return };
        let Some(map) = self.map(leader).cloned() else { return };
        let Some(by) = self.servers[leader].member else { return };
        if map.servers.is_empty() {
            let with_shard = self.profile.shards == 1;
            let entry = Entry::Found { server: self.new_server(0), authority: Some(vec![7; 100]), with_shard };
            return self.ask(Proposal { by, entry });
        }
        for at in 0..self.servers.len() {
            let server = &self.servers[at];
            let (token, member) = (server.token, server.member);
            match member {
                Some(member) if server.is_lost && map.server(member).is_some() => self.remove(at, true),
                None if !server.is_lost => {
                    let (token_expires_s, server) = (self.now_us + 3_600, self.new_server(at));
                    let entry = Entry::Join { token, token_expires_s, key: key_of(&server), server };
                    self.ask(Proposal { by, entry });
                }
                Some(member) if server.running.is_some() => {
                    let joins = map.server(member).is_some_and(|server| server.state == ServerState::Joining);
                    if joins {
                        let NewServer { directory, addresses, zone, features, .. } = self.new_server(at);
                        let entry = Entry::Announce { member, directory, addresses, zone, features };
                        self.ask(Proposal { by: member, entry });
                    }
                }
                _ => {}
            }
        }
        let active: Vec<MemberId> = map
            .members()
            .filter(|(_, server)| server.state == ServerState::Active && server.role == Role::Data)
            .map(|(member, _)| member)
            .collect();
        if map.shards.is_empty() && self.profile.shards > 1 && active.len() >= self.profile.servers {
            let primaries = (0..self.profile.shards).map(|shard| active[shard % active.len()]).collect();
            self.ask(Proposal { by, entry: Entry::Deal { primaries } });
        }
    }

    /// Somebody asks for a change, by the map of some server, which may be an old one.
    fn change(&mut self) {
        if !self.random.per_mille(self.profile.changes) {
            return;
        }
        let known: Vec<usize> = self.running().map(|(at, _)| at).collect();
        let Some(at) = self.random.one_of(&known).copied() else { return };
        let (Some(map), Some(by)) = (self.map(at).cloned(), self.servers[at].member) else { return };
        let members: Vec<MemberId> = map.members().map(|(member, _)| member).collect();
        let shards: Vec<ShardId> = map.shards.keys().copied().collect();
        let Some(member) = self.random.one_of(&members).copied() else { return };
        let shard = self.random.one_of(&shards).copied();
        let kind = self.random.below(if shard.is_some() { 12 } else { 5 });
        let entry = match (kind, shard.and_then(|id| Some((id, map.shards.get(&id)?)))) {
            (0, _) => {
                let value = Some(self.random.below(1_000).to_string()).filter(|value| value.len() > 1);
                Entry::Set { name: format!("setting-{}", self.random.below(5)), value }
            }
            (1, _) => Entry::Barrier,
            (2, _) => Entry::Prune { now_s: self.random.below(500) },
            (3, _) => Entry::RaiseFeatureLevel { level: self.random.between(1, 3) as u32 },
            // Somebody else tries a token that was used.
            (4, _) => {
                let joined: Vec<TokenId> =
                    self.servers.iter().filter(|server| server.member.is_some()).map(|server| server.token).collect();
                // The founder's was never given to anybody.
                let Some(token) = self.random.one_of(joined.get(1..).unwrap_or_default()).copied() else { return };
                let thief = NewServer {
                    directory: DirectoryId(self.random.bytes()),
                    name: ServerId::new(format!("thief-{}", self.now_us)).unwrap_or_else(|_| unreachable!()),
                    ..self.new_server(0)
                };
                Entry::Join { token, token_expires_s: self.now_us + 3_600, key: key_of(&thief), server: thief }
            }
            (5 | 6, Some((shard, state))) => Entry::AddCopy { shard, epoch: state.epoch, member },
            (7, Some((shard, state))) => Entry::RemoveCopy { shard, epoch: state.epoch, member },
            (8 | 9, Some((shard, state))) => {
                let mut in_sync = state.copies.clone();
                if !in_sync.is_empty() && self.random.per_mille(300) && Some(member) != state.primary {
                    in_sync.remove(&member);
                }
                Entry::SetInSync { shard, epoch: state.epoch, set_version: state.set_version, in_sync }
            }
            (10, Some((shard, state))) => Entry::Move { shard, epoch: state.epoch, to: member },
            (_, Some((shard, state))) => {
                let others: Vec<MemberId> = state.in_sync.iter().copied().collect();
                Entry::SetPrimary { shard, epoch: state.epoch, primary: self.random.one_of(&others).copied() }
            }
            (_, None) => return,
        };
        self.ask(Proposal { by, entry });
    }

    fn go_wrong(&mut self) -> Result<(), Violation> {
        let faults = self.faults();
        let running: Vec<usize> = self.running().map(|(at, _)| at).collect();
        let Some(victim) = self.random.one_of(&running).copied() else { return Ok(()) };
        let leader = self.leader().filter(|_| self.random.per_mille(400));
        let victim = leader.unwrap_or(victim);
        if self.random.per_mille(faults.kills) {
            self.kill(victim);
            let takes = self.random.between(START_US.0, START_US.1);
            self.after(takes, Happens::Start { server: victim });
        } else if self.random.per_mille(faults.pauses) {
            let takes = self.random.between(50 * MS, 3_000 * MS);
            self.pause(victim, takes);
        } else if self.random.per_mille(faults.jumps) {
            let jumps = self.random.between(100 * MS, 5_000 * MS);
            self.jump(victim, jumps)?;
        } else if self.random.per_mille(faults.cuts) {
            self.cut_some();
        } else if self.random.per_mille(faults.wipes) {
            self.wipe(victim);
        } else if self.random.per_mille(faults.members) {
            self.change_members();
        }
        Ok(())
    }

    fn cut_some(&mut self) {
        let side: BTreeSet<usize> = (0..self.servers.len()).filter(|_| self.random.per_mille(400)).collect();
        let both_ways = self.random.per_mille(500);
        let mut links = BTreeSet::new();
        for from in 0..self.servers.len() {
            for to in 0..self.servers.len() {
                if side.contains(&from) && !side.contains(&to) {
                    links.insert((from, to));
                    if both_ways {
                        links.insert((to, from));
                    }
                }
            }
        }
        let takes = self.random.between(300 * MS, 6_000 * MS);
        self.cut(links, takes);
    }

    /// The disk of a server is lost; people remove it, and begin it anew. One at a time: most of
    /// the voters must stay.
    fn wipe(&mut self, at: usize) {
        let Some(leader) = self.leader() else { return };
        let lost: Vec<MemberId> =
            self.servers.iter().filter(|server| server.is_lost).filter_map(|server| server.member).collect();
        let still_vote = lost.iter().any(|member| self.voters(leader).contains(member));
        if self.voters(leader).len() < 3 || still_vote || at == leader {
            return;
        }
        self.kill(at);
        let role = self.servers[at].role;
        if self.profile.plant == Some(Plant::WipedReturns) {
            self.create_log(at, ecotone_control::Snapshot::default());
            let takes = self.random.between(START_US.0, START_US.1);
            self.after(takes, Happens::Start { server: at });
            return;
        }
        self.servers[at].disk = None;
        self.servers[at].is_lost = true;
        self.add_server(role);
    }

    fn change_members(&mut self) {
        let running: Vec<usize> = self.running().map(|(at, _)| at).collect();
        let Some(at) = self.random.one_of(&running).copied() else { return };
        let (Some(member), Some(leader)) = (self.servers[at].member, self.leader()) else { return };
        let Some(by) = self.servers[leader].member else { return };
        let Some(map) = self.map(leader) else { return };
        let active = map.members().filter(|(_, server)| server.state == ServerState::Active).count();
        let state = map.server(member).map(|server| server.state);
        match state {
            Some(ServerState::Active) if active > 3 => {
                self.ask(Proposal { by, entry: Entry::Drain { member, drain: true } });
            }
            Some(ServerState::Draining) if self.random.per_mille(300) => {
                self.ask(Proposal { by, entry: Entry::Drain { member, drain: false } });
            }
            // Drained and no voter any more, or it is refused. It does not hear of it, goes on, and
            // is not listened to.
            Some(ServerState::Draining) => {
                let force = self.random.per_mille(500) && !self.votes(member);
                self.remove(at, force);
            }
            _ if self.servers.len() < 12 => {
                self.add_server(Role::Data);
            }
            _ => {}
        }
    }

    fn votes(&self, member: MemberId) -> bool {
        self.running().any(|(_, running)| running.node.voters().contains(&member))
    }

    fn remove(&mut self, at: usize, force: bool) {
        let (Some(member), Some(leader)) = (self.servers[at].member, self.leader()) else { return };
        let Some(by) = self.servers[leader].member else { return };
        self.ask(Proposal { by, entry: Entry::Remove { member, force } });
    }
}

/// Each directory has a key of its own.
fn key_of(server: &NewServer) -> KeyHash {
    let mut key = [0; 32];
    key[..16].copy_from_slice(&server.directory.0);
    KeyHash(key)
}
