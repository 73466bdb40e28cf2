//! What cluster clients are told of a federation: its servers, which of them holds which hash
//! slots, and whether all is served.
//!
//! A [`ClusterView`] is a value: the server around the protocol makes one of what it knows and
//! [publishes](Cluster::publish) it whenever that changes. Whoever carries out a command looks
//! whether there is a newer one ([`SeenView::refresh`]): one atomic load, and no lock as long as
//! there is none.
//!
//! Invariants:
//!
//! - A view is whole and consistent: a slot has one shard at most, a shard one primary, and every
//!   server that is spoken of is in it. What is not is refused when it is made.
//! - No command takes effect under a view that has been replaced. A command that writes looks once
//!   more when it has its latches; one that reads, when it has read. So when [`Cluster::fence`]
//!   returns, what the views before let through is committed and visible, and no more comes.
//!
//! Threads: any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use ecotone_keyspace::slot::SLOTS;
use ecotone_keyspace::{Blocking, Keyspace, Slot, WriteGroup};
use parking_lot::RwLock;

/// Characters of the id of a server or a shard, as clients expect them.
pub const ID_CHARACTERS: usize = 40;

/// Servers of a view at most.
pub const MAX_SERVERS: usize = 4096;

/// Shards of a view at most: each has a slot at least.
pub const MAX_SHARDS: usize = SLOTS as usize;

/// No shard has the slot.
const UNSERVED: u16 = u16::MAX;

/// A server, as cluster clients know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerView {
    /// 40 hexadecimal digits that it keeps over restarts.
    pub id: String,
    /// The address that it announces; empty: unknown, and of this server the one that the client
    /// came to is told.
    pub ip: String,
    /// The host name that it announces; empty: none.
    pub host_name: String,
    /// Its port for clients; 0: none.
    pub port: u16,
    /// Its port for clients by TLS; 0: none.
    pub tls_port: u16,
    /// Its port for other servers.
    pub bus_port: u16,
    /// Whether it answers.
    pub health: Health,
    /// Whether this server has a connection to it.
    pub is_connected: bool,
    /// When it was last asked for a sign of life that has not come, in ms since 1970; 0: none is
    /// awaited.
    pub ping_sent_ms: u64,
    /// When its last sign of life came, in ms since 1970; 0: none has.
    pub pong_received_ms: u64,
    /// How many servers report that it does not answer.
    pub failure_reports: u32,
}

impl ServerView {
    /// A server that answers, at `ip` and `port`.
    pub fn at(id: String, ip: String, port: u16) -> Self {
        Self {
            id,
            ip,
            host_name: String::new(),
            port,
            tls_port: 0,
            bus_port: 0,
            health: Health::Online,
            is_connected: true,
            ping_sent_ms: 0,
            pong_received_ms: 0,
            failure_reports: 0,
        }
    }
}

/// Whether a server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// It does.
    #[default]
    Online,
    /// It does not answer this server.
    Suspected,
    /// The federation has agreed that it does not answer.
    Failed,
}

/// A shard: slots, and which servers hold them. Servers are named by their places in the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardView {
    /// 40 hexadecimal digits.
    pub id: String,
    /// The first and the last slot of each range, ascending.
    pub slots: Vec<(u16, u16)>,
    /// The server that serves it.
    pub primary: usize,
    /// The other copies.
    pub replicas: Vec<ReplicaView>,
    /// Counts its primaries.
    pub epoch: u64,
    /// Bytes that the primary has sent its copies in this epoch; 0: not known.
    pub written_bytes: u64,
}

/// A copy of a shard that is not its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaView {
    /// The place of its server.
    pub server: usize,
    /// Whether acknowledgements count it.
    pub is_in_sync: bool,
    /// How many bytes it is behind its primary; `None`: not known.
    pub lag_bytes: Option<u64>,
}

impl ReplicaView {
    /// A copy at a server that has everything, as far as is known.
    pub fn at(server: usize) -> Self {
        Self { server, is_in_sync: true, lag_bytes: None }
    }
}

impl ShardView {
    /// Its copy at a server that is not its primary.
    pub fn replica_at(&self, server: usize) -> Option<&ReplicaView> {
        self.replicas.iter().find(|replica| replica.server == server)
    }

    /// Up to which of the [bytes](Self::written_bytes) a server has it; 0: not known.
    pub fn offset_at(&self, server: usize) -> u64 {
        match self.replica_at(server) {
            Some(replica) => replica.lag_bytes.map_or(0, |lag_bytes| self.written_bytes.saturating_sub(lag_bytes)),
            None if server == self.primary => self.written_bytes,
            None => 0,
        }
    }

    /// Whether the same servers serve the same slots in both, however far copies are.
    fn routes_as(&self, other: &Self) -> bool {
        let copies = |shard: &Self| shard.replicas.iter().map(|replica| replica.server).collect::<Vec<_>>();
        (&self.id, &self.slots, self.primary, self.epoch) == (&other.id, &other.slots, other.primary, other.epoch)
            && copies(self) == copies(other)
    }
}

/// A connection between this server and another one. It is no part of a view: connections come and
/// go without the map's changing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkView {
    /// The other one's id.
    pub node: String,
    /// Whether this server opened it.
    pub is_outgoing: bool,
    /// When, in ms since 1970.
    pub since_ms: u64,
    /// Bytes that wait to be sent.
    pub queued_bytes: u64,
    /// Memory for them.
    pub buffer_bytes: u64,
}

/// Under which name clients are told to reach servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Endpoint {
    /// Their addresses.
    #[default]
    Ip,
    /// Their host names.
    HostName,
    /// The one that the client came by, with another port.
    Unknown,
}

impl Endpoint {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ip, Self::HostName, Self::Unknown];

    /// Redis' word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::HostName => "hostname",
            Self::Unknown => "unknown-endpoint",
        }
    }

    /// What this word stands for.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == word)
    }
}

/// A federation at one moment, as its clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    servers: Vec<ServerView>,
    own: usize,
    shards: Vec<ShardView>,
    map_epoch: u64,
    failure: Option<String>,
    endpoint: Endpoint,
    /// By slot: the place of its shard, or [`UNSERVED`].
    by_slot: Vec<u16>,
    /// One shard has all slots, and this server is its primary.
    is_whole_here: bool,
}

/// What is wrong with a view.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterViewError {
    /// An id that is not [`ID_CHARACTERS`] lower-case hexadecimal digits, or is there twice.
    #[error("the id {0:?} is not 40 hexadecimal digits, or is not the only one")]
    Id(String),
    /// A server that is not in the view.
    #[error("server {0} is spoken of, and is not there")]
    NoServer(usize),
    /// A range of slots that is none.
    #[error("{0}-{1} is no range of slots")]
    Range(u16, u16),
    /// A slot with two shards.
    #[error("slot {0} is in two shards")]
    Twice(u16),
    /// A text that a line of `CLUSTER NODES` cannot have.
    #[error("{0:?} is no address and no host name")]
    Host(String),
    /// More than [`MAX_SERVERS`] or [`MAX_SHARDS`].
    #[error("{0} servers or shards are too many")]
    TooMany(usize),
}

impl ClusterView {
    /// The view of the server at place `own` of `servers`.
    ///
    /// # Errors
    ///
    /// What does not fit together.
    pub fn new(
        servers: Vec<ServerView>,
        own: usize,
        shards: Vec<ShardView>,
        map_epoch: u64,
    ) -> Result<Self, ClusterViewError> {
        if servers.len() > MAX_SERVERS || shards.len() > MAX_SHARDS {
            return Err(ClusterViewError::TooMany(servers.len().max(shards.len())));
        }
        check_ids(servers.iter().map(|server| &server.id))?;
        check_ids(shards.iter().map(|shard| &shard.id))?;
        for host in servers.iter().flat_map(|server| [&server.ip, &server.host_name]) {
            if host.chars().any(|letter| letter.is_whitespace() || letter.is_control() || ",@".contains(letter)) {
                return Err(ClusterViewError::Host(host.clone()));
            }
        }
        let copies = |shard: &ShardView| shard.replicas.iter().map(|replica| replica.server).collect::<Vec<_>>();
        let spoken_of = shards.iter().flat_map(|shard| copies(shard).into_iter().chain([shard.primary]));
        if let Some(missing) = spoken_of.chain([own]).find(|server| *server >= servers.len()) {
            return Err(ClusterViewError::NoServer(missing));
        }
        let mut by_slot = vec![UNSERVED; SLOTS.into()];
        for (number, shard) in shards.iter().enumerate() {
            for &(first, last) in &shard.slots {
                if first > last || last >= SLOTS {
                    return Err(ClusterViewError::Range(first, last));
                }
                for slot in first..=last {
                    if std::mem::replace(&mut by_slot[usize::from(slot)], number as u16) != UNSERVED {
                        return Err(ClusterViewError::Twice(slot));
                    }
                }
            }
        }
        let first = by_slot[0];
        let is_whole_here = by_slot.iter().all(|shard| *shard == first)
            && shards.get(usize::from(first)).is_some_and(|shard| shard.primary == own);
        Ok(Self { servers, own, shards, map_epoch, failure: None, endpoint: Endpoint::Ip, by_slot, is_whole_here })
    }

    /// A federation of one: `server` has all slots, in one shard.
    ///
    /// # Errors
    ///
    /// What is wrong with the server's names.
    pub fn of_one(server: ServerView, shard_id: String) -> Result<Self, ClusterViewError> {
        let (slots, replicas) = (vec![(0, SLOTS - 1)], Vec::new());
        let shard = ShardView { id: shard_id, slots, primary: 0, replicas, epoch: 1, written_bytes: 0 };
        Self::new(vec![server], 0, vec![shard], 1)
    }

    /// The same where nothing is served but what names no keys, and why.
    pub fn failing(self, why: impl Into<String>) -> Self {
        Self { failure: Some(why.into()), ..self }
    }

    /// The same whose servers are told by other names.
    pub fn told_by(self, endpoint: Endpoint) -> Self {
        Self { endpoint, ..self }
    }

    /// All servers.
    pub fn servers(&self) -> &[ServerView] {
        &self.servers
    }

    /// This server's place among them.
    pub fn own(&self) -> usize {
        self.own
    }

    /// All shards.
    pub fn shards(&self) -> &[ShardView] {
        &self.shards
    }

    /// The version of the map.
    pub fn map_epoch(&self) -> u64 {
        self.map_epoch
    }

    /// Why keys are not served; `None`: they are.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Under which name clients are told to reach servers.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The shard that has `slot`; `None`: it is not served.
    pub fn shard_of(&self, slot: Slot) -> Option<&ShardView> {
        self.shards.get(usize::from(self.by_slot[usize::from(slot.number())]))
    }

    /// Whether a server is the primary of a shard with slots.
    pub fn is_primary(&self, server: usize) -> bool {
        self.shards.iter().any(|shard| shard.primary == server && !shard.slots.is_empty())
    }

    /// The shard that a server has a copy of, where it is the primary of none.
    pub fn replica_of(&self, server: usize) -> Option<&ShardView> {
        let is_copy = |shard: &&ShardView| shard.replica_at(server).is_some();
        if self.shards.iter().any(|shard| shard.primary == server) { None } else { self.shards.iter().find(is_copy) }
    }

    /// The place of the server with this id.
    pub fn find(&self, id: &[u8]) -> Option<usize> {
        self.servers.iter().position(|server| server.id.as_bytes() == id)
    }

    /// The ranges of slots that a server serves, ascending and joined.
    pub fn slots_of(&self, server: usize) -> Vec<(u16, u16)> {
        let serves = |shard: u16| self.shards.get(usize::from(shard)).is_some_and(|shard| shard.primary == server);
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for (slot, shard) in (0..SLOTS).zip(&self.by_slot) {
            match ranges.last_mut() {
                _ if !serves(*shard) => {}
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
    }

    /// The ranges of slots that the view has, ascending, each with its shard. Neighbours of two
    /// shards are two ranges.
    pub fn ranges(&self) -> Vec<(u16, u16, &ShardView)> {
        let mut ranges: Vec<(u16, u16, u16)> = Vec::new();
        for (slot, shard) in (0..SLOTS).zip(&self.by_slot) {
            match ranges.last_mut() {
                _ if *shard == UNSERVED => {}
                Some((_, last, same)) if same == shard && *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot, *shard)),
            }
        }
        ranges.into_iter().map(|(first, last, shard)| (first, last, &self.shards[usize::from(shard)])).collect()
    }

    /// The greatest epoch of the shards that a server is the primary of.
    pub fn epoch_of(&self, server: usize) -> u64 {
        let of_server = |shard: &&ShardView| shard.primary == server;
        self.shards.iter().filter(of_server).map(|shard| shard.epoch).max().unwrap_or(0)
    }

    /// Whether the same servers serve the same slots in both, whatever else is told of them.
    fn routes_as(&self, other: &Self) -> bool {
        let ids = |view: &Self| view.servers.iter().map(|server| server.id.clone()).collect::<Vec<_>>();
        self.own == other.own
            && self.shards.len() == other.shards.len()
            && self.shards.iter().zip(&other.shards).all(|(own, other)| own.routes_as(other))
            && self.failure.is_some() == other.failure.is_some()
            && ids(self) == ids(other)
    }

    /// The greatest epoch there is.
    pub fn current_epoch(&self) -> u64 {
        self.shards.iter().map(|shard| shard.epoch).max().unwrap_or(0).max(self.map_epoch)
    }
}

/// Whether all are ids, each once.
fn check_ids<'i>(ids: impl Iterator<Item = &'i String>) -> Result<(), ClusterViewError> {
    let mut sorted: Vec<&String> = ids.collect();
    sorted.sort_unstable();
    let is_id = |id: &str| id.len() == ID_CHARACTERS && id.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
    let is_twice = sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    match is_twice.or_else(|| sorted.into_iter().find(|id| !is_id(id))) {
        Some(id) => Err(ClusterViewError::Id(id.clone())),
        None => Ok(()),
    }
}

/// How this server treats clients that ask for keys of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClusterMode {
    /// Clients speak to it as to a server of a Redis cluster.
    pub is_cluster: bool,
    /// It asks other servers on behalf of clients that do not follow redirects.
    pub is_proxy: bool,
}

/// The newest view, and the mode.
#[derive(Debug)]
pub struct Cluster {
    /// Counts what was published.
    version: AtomicU64,
    /// Counts what changed who serves which slots. Else a request that takes long would begin anew
    /// whenever a server gives a sign of life.
    routing: AtomicU64,
    current: RwLock<Current>,
}

/// What was published last.
#[derive(Debug, Clone)]
struct Current {
    version: u64,
    routing: u64,
    view: Arc<ClusterView>,
    mode: ClusterMode,
}

impl Cluster {
    /// Begins with this view.
    pub fn new(view: ClusterView, mode: ClusterMode) -> Self {
        let current = Current { version: 0, routing: 0, view: Arc::new(view), mode };
        Self { version: AtomicU64::new(0), routing: AtomicU64::new(0), current: RwLock::new(current) }
    }

    /// From now on this view counts. A command that is under way ends under the old one, or begins
    /// anew; who has to know when none is left calls [`fence`](Self::fence) then.
    pub fn publish(&self, view: ClusterView) {
        self.replace(|current| current.view = Arc::new(view));
    }

    /// From now on this mode counts.
    pub fn set_mode(&self, mode: ClusterMode) {
        self.replace(|current| current.mode = mode);
    }

    fn replace(&self, change: impl FnOnce(&mut Current)) {
        let mut current = self.current.write();
        let before = current.clone();
        change(&mut current);
        current.version += 1;
        if current.mode != before.mode || !current.view.routes_as(&before.view) {
            current.routing += 1;
        }
        // Behind the view: who sees the numbers finds it.
        self.routing.store(current.routing, Ordering::Release);
        self.version.store(current.version, Ordering::Release);
    }

    /// The newest view.
    pub fn view(&self) -> Arc<ClusterView> {
        self.current.read().view.clone()
    }

    /// The mode.
    pub fn mode(&self) -> ClusterMode {
        self.current.read().mode
    }

    /// Waits until no write to `slots` that a view before the newest let through is uncommitted:
    /// none comes after that. May wait as long as a latch is held, so no event loop may call it.
    /// `false`: the commit failed, and so do all later ones.
    pub fn fence(keyspace: &Arc<Keyspace>, slots: &[Slot]) -> bool {
        let mut group = WriteGroup::new(keyspace.clone());
        group.hold(slots, Blocking::Allowed) && group.commit(Blocking::Allowed).is_ok()
    }
}

/// The view as a client has it.
#[derive(Debug, Clone)]
pub struct SeenView {
    current: Current,
    /// Whether a command with keys may have to be refused.
    has_rules: bool,
    /// Its client has said that it follows redirects.
    pub follows_redirects: bool,
    /// Its client has said `READONLY`: commands that only read are answered by replicas as well.
    pub reads_replicas: bool,
}

impl SeenView {
    /// The newest view of `cluster`.
    pub fn of(cluster: &Cluster) -> Self {
        let current = cluster.current.read().clone();
        let mut seen = Self { current, has_rules: false, follows_redirects: false, reads_replicas: false };
        seen.judge();
        seen
    }

    /// Takes the newest view of `cluster`.
    #[inline]
    pub fn refresh(&mut self, cluster: &Cluster) {
        if cluster.version.load(Ordering::Acquire) != self.current.version {
            self.current = cluster.current.read().clone();
            self.judge();
        }
    }

    /// Whether there is one by which other servers serve other slots. What was read before is not
    /// read after this.
    #[inline]
    pub fn is_outdated(&self, cluster: &Cluster) -> bool {
        fence(Ordering::Acquire);
        cluster.routing.load(Ordering::Acquire) != self.current.routing
    }

    fn judge(&mut self) {
        let Current { view, mode, .. } = &self.current;
        self.has_rules = mode.is_cluster || !view.is_whole_here || view.failure.is_some();
    }

    /// Whether a command with keys may have to be refused.
    #[inline]
    pub fn has_rules(&self) -> bool {
        self.has_rules
    }

    /// The view.
    pub fn view(&self) -> &Arc<ClusterView> {
        &self.current.view
    }

    /// Whether clients speak to the server as to one of a Redis cluster.
    pub fn is_cluster(&self) -> bool {
        self.current.mode.is_cluster
    }

    /// Whether other servers are asked for its client.
    pub fn is_proxied(&self) -> bool {
        self.current.mode.is_proxy && !self.follows_redirects
    }
}

/// What becomes of a command, by its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// It is carried out here.
    Here,
    /// It is for the server at this place of the view, which has the slot.
    Moved {
        /// The slot of its keys.
        slot: Slot,
        /// The server's place.
        server: usize,
    },
    /// Its keys are not together.
    CrossSlot,
    /// Nobody has the slot.
    Unserved,
    /// No key is served.
    Down,
}

impl SeenView {
    /// What becomes of a command with keys in these `slots`, in whatever order. As Redis decides it:
    /// the first key names the shard, the others must be in it. In cluster mode they must be in one
    /// slot, as in Redis; otherwise in one shard. Only the primary carries it out.
    pub fn destination(&self, slots: impl IntoIterator<Item = Slot>) -> Destination {
        let (view, mut slots) = (&*self.current.view, slots.into_iter());
        let Some(first) = slots.next() else { return Destination::Here };
        let shard_of = |slot: Slot| view.by_slot[usize::from(slot.number())];
        let number = shard_of(first);
        let Some(shard) = view.shards.get(usize::from(number)) else { return Destination::Unserved };
        let is_together = |slot: Slot| slot == first || (!self.current.mode.is_cluster && shard_of(slot) == number);
        if !slots.all(is_together) {
            return Destination::CrossSlot;
        }
        if view.failure.is_some() {
            return Destination::Down;
        }
        if shard.primary == view.own {
            return Destination::Here;
        }
        Destination::Moved { slot: first, server: shard.primary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> String {
        format!("{number:040x}")
    }

    fn server(number: usize) -> ServerView {
        ServerView::at(id(number), format!("10.0.0.{number}"), 6379)
    }

    fn shard(number: usize, slots: &[(u16, u16)], primary: usize) -> ShardView {
        let (id, slots, replicas) = (id(number), slots.to_vec(), Vec::new());
        ShardView { id, slots, primary, replicas, epoch: number as u64, written_bytes: 0 }
    }

    fn view(shards: Vec<ShardView>) -> Result<ClusterView, ClusterViewError> {
        ClusterView::new(vec![server(1), server(2)], 0, shards, 7)
    }

    #[test]
    fn what_does_not_fit_together_is_no_view() {
        for (shards, why) in [
            (vec![shard(1, &[(0, 16384)], 0)], ClusterViewError::Range(0, 16384)),
            (vec![shard(1, &[(5, 4)], 0)], ClusterViewError::Range(5, 4)),
            (vec![shard(1, &[(0, 5)], 0), shard(2, &[(5, 6)], 0)], ClusterViewError::Twice(5)),
            (vec![shard(1, &[], 2)], ClusterViewError::NoServer(2)),
            (vec![ShardView { replicas: vec![ReplicaView::at(3)], ..shard(1, &[], 0) }], ClusterViewError::NoServer(3)),
            (vec![shard(1, &[], 0), shard(1, &[], 1)], ClusterViewError::Id(id(1))),
        ] {
            assert_eq!(view(shards), Err(why));
        }
        for (host, is_host) in [("a b", false), ("a\n", false), ("a,b", false), ("edge-7.example", true), ("::1", true)]
        {
            let named = ServerView { host_name: host.into(), ..server(1) };
            assert_eq!(ClusterView::of_one(named, id(9)).is_ok(), is_host, "{host:?}");
        }
        for wrong in ["", "1234", &"A".repeat(40), &"g".repeat(40)] {
            assert!(ClusterView::of_one(ServerView { id: wrong.into(), ..server(1) }, id(9)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn ranges_are_joined_by_server_and_apart_by_shard() {
        let view = view(vec![shard(1, &[(0, 9), (30, 30)], 0), shard(2, &[(10, 19)], 0), shard(3, &[(20, 29)], 1)]);
        let view = view.unwrap();
        assert_eq!(view.slots_of(0), [(0, 19), (30, 30)]);
        assert_eq!(view.slots_of(1), [(20, 29)]);
        let ranges: Vec<_> = view.ranges().into_iter().map(|(first, last, shard)| (first, last, shard.epoch)).collect();
        assert_eq!(ranges, [(0, 9, 1), (10, 19, 2), (20, 29, 3), (30, 30, 1)]);
        assert_eq!((view.epoch_of(0), view.epoch_of(1), view.current_epoch()), (2, 3, 7));
    }

    #[test]
    fn keys_go_together_by_slot_in_a_cluster_and_by_shard_otherwise() {
        let slot = |number| Slot::new(number).unwrap();
        let shards = vec![shard(1, &[(0, 9)], 0), shard(2, &[(10, 19)], 0), shard(3, &[(20, 29)], 1)];
        let cluster = Cluster::new(view(shards.clone()).unwrap(), ClusterMode::default());
        let mut seen = SeenView::of(&cluster);
        let moved = Destination::Moved { slot: slot(20), server: 1 };
        assert!(seen.has_rules());
        for (slots, apart, together) in [
            (&[][..], Destination::Here, Destination::Here),
            (&[3, 3], Destination::Here, Destination::Here),
            (&[3, 4], Destination::Here, Destination::CrossSlot),
            (&[3, 14], Destination::CrossSlot, Destination::CrossSlot),
            (&[20], moved, moved),
            (&[20, 21], moved, Destination::CrossSlot),
            (&[30], Destination::Unserved, Destination::Unserved),
            (&[30, 3], Destination::Unserved, Destination::Unserved),
        ] {
            let slots: Vec<Slot> = slots.iter().map(|number| slot(*number)).collect();
            cluster.set_mode(ClusterMode::default());
            seen.refresh(&cluster);
            assert_eq!(seen.destination(slots.iter().copied()), apart, "{slots:?}");
            cluster.set_mode(ClusterMode { is_cluster: true, is_proxy: false });
            seen.refresh(&cluster);
            assert_eq!(seen.destination(slots.iter().copied()), together, "{slots:?}");
        }
        cluster.publish(view(shards).unwrap().failing("too few voters"));
        assert!(seen.is_outdated(&cluster));
        seen.refresh(&cluster);
        assert!(!seen.is_outdated(&cluster));
        assert_eq!(seen.destination([slot(3)]), Destination::Down);
        assert_eq!(seen.destination([]), Destination::Here);
    }

    #[test]
    fn signs_of_life_disturb_no_request() {
        let shards = vec![shard(1, &[(0, SLOTS - 1)], 0)];
        let cluster = Cluster::new(view(shards.clone()).unwrap(), ClusterMode::default());
        let mut seen = SeenView::of(&cluster);
        let alive = ServerView { pong_received_ms: 7, health: Health::Suspected, ..server(2) };
        cluster.publish(ClusterView::new(vec![server(1), alive.clone()], 0, shards.clone(), 8).unwrap());
        assert!(!seen.is_outdated(&cluster));
        seen.refresh(&cluster);
        assert_eq!(seen.view().servers()[1], alive);
        let later = vec![ShardView { epoch: 2, ..shards[0].clone() }];
        for moved in [later, vec![shard(1, &[(0, SLOTS - 1)], 1)], vec![shard(1, &[(1, SLOTS - 1)], 0)]] {
            cluster.publish(view(moved).unwrap());
            assert!(seen.is_outdated(&cluster));
            seen.refresh(&cluster);
            assert!(!seen.is_outdated(&cluster));
        }
        cluster.set_mode(ClusterMode { is_cluster: true, is_proxy: false });
        assert!(seen.is_outdated(&cluster));
    }

    #[test]
    fn a_replica_sends_readers_to_the_primary_however_far_it_is() {
        let copy = ShardView { replicas: vec![ReplicaView::at(0)], ..shard(1, &[(0, SLOTS - 1)], 1) };
        let mode = ClusterMode { is_cluster: true, is_proxy: false };
        let cluster = Cluster::new(view(vec![copy.clone()]).unwrap(), mode);
        let mut seen = SeenView::of(&cluster);
        let slot = Slot::of(b"a");
        let moved = Destination::Moved { slot, server: 1 };
        assert_eq!(seen.destination([slot]), moved);
        seen.reads_replicas = true;
        assert_eq!(seen.destination([slot]), moved);
        // How far it is disturbs no request; where it is does.
        let behind = ReplicaView { is_in_sync: false, lag_bytes: Some(30), ..ReplicaView::at(0) };
        let behind = ShardView { replicas: vec![behind], written_bytes: 100, ..copy.clone() };
        assert_eq!((behind.offset_at(0), behind.offset_at(1), copy.offset_at(0)), (70, 100, 0));
        cluster.publish(view(vec![behind]).unwrap());
        assert!(!seen.is_outdated(&cluster));
        cluster.publish(view(vec![ShardView { replicas: Vec::new(), ..copy }]).unwrap());
        assert!(seen.is_outdated(&cluster));
    }

    #[test]
    fn a_federation_of_one_outside_of_cluster_mode_has_no_rules() {
        let cluster = Cluster::new(ClusterView::of_one(server(1), id(9)).unwrap(), ClusterMode::default());
        assert!(!SeenView::of(&cluster).has_rules());
        cluster.set_mode(ClusterMode { is_cluster: true, is_proxy: false });
        assert!(SeenView::of(&cluster).has_rules());
    }
}
