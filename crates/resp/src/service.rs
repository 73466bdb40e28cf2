//! What all threads that serve clients share, and what the server around them gives.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::backups::Backups;
use crate::client::{ClientInfo, Clients};
use crate::client_events::ClientEvents;
use crate::cluster_view::{Cluster, ClusterMode, ClusterView, ServerView};
use crate::compactions::Compactions;
use crate::federation::FederationRequests;
use crate::histogram::Times;
use crate::host::{Host, ReplicaReads};
use crate::inspections::Inspections;
use crate::process;
use crate::saves::Saves;
use crate::serve::CertificateEnds;
use crate::slowlog::Slowlog;
use crate::usage::{Loops, Rates, Usage};
use ecotone_engine::Store;
use ecotone_keyspace::Keyspace;
pub use ecotone_keyspace::memory::SMALL_BYTES;

/// What a client takes that is there and keeps nothing, about: what is known of it, the state of
/// its connection, and the task that serves it.
pub const CLIENT_BYTES: usize = 4 * 1024;

/// The version of Redis that clients may take this server for.
pub const COMPATIBLE_VERSION: &str = "7.2.0";

/// What is served, by which rules, and what has happened so far.
pub struct Service {
    /// The keys.
    pub keyspace: Arc<Keyspace>,
    /// Who is connected.
    pub clients: Clients,
    /// What can be changed while it runs, by [`set_limits`](Self::set_limits).
    pub limits: RwLock<Arc<Limits>>,
    /// Told when it was.
    pub limits_changed: watch::Sender<()>,
    /// Counts since the start.
    pub statistics: Statistics,
    /// What clients were disconnected for since the start.
    pub client_events: ClientEvents,
    /// Commands that took long.
    pub slowlog: Slowlog,
    /// The federation, as clients are told of it. Until something is published: this server alone
    /// has all slots.
    pub cluster: Cluster,
    /// Copies of other servers' shards that are read here, once there may be some.
    pub replicas: OnceLock<Arc<dyn ReplicaReads>>,
    /// The server around it.
    pub host: Arc<dyn Host>,
    /// Saves that clients ask for.
    pub saves: Arc<Saves>,
    /// Inspections that clients ask for.
    pub inspections: Arc<Inspections>,
    /// Compactions that clients ask for.
    pub compactions: Compactions,
    /// What clients ask of the federation.
    pub federation: FederationRequests,
    /// Backups that are being made.
    pub backups: Arc<Backups>,
    /// Bytes that the connections of all clients keep, and that their commands take meanwhile.
    pub client_memory: Arc<AtomicUsize>,
    /// 40 hexadecimal digits that no other run of a server has.
    pub run_id: String,
    /// When it began.
    pub since: Instant,
    /// What the process had in memory then.
    pub memory_at_start_bytes: u64,
    /// Where clients are listened for, as lines of `INFO`: kind, addresses and port of each.
    pub listeners: Mutex<Vec<String>>,
    /// When the certificates end that TLS is spoken with.
    pub certificate_ends: Arc<CertificateEnds>,
    /// Set for good when the server stops: commands that would keep it from that end with an error.
    pub stops: Arc<AtomicBool>,
}

impl Service {
    /// Serves `keyspace` from now on, and counts in `usage`.
    pub(crate) fn with_usage(keyspace: Arc<Keyspace>, limits: Limits, host: Arc<dyn Host>, usage: Usage) -> Self {
        keyspace.memory().limit_to(limits.memory_bytes);
        let run_id = run_id();
        let alone = ClusterView::of_one(ServerView::at(run_id.clone(), String::new(), 0), run_id.clone())
            .unwrap_or_else(|error| unreachable!("a run id is an id: {error}"));
        Self {
            cluster: Cluster::new(alone, ClusterMode::default()),
            clients: Clients::default(),
            client_memory: keyspace.memory().taken_bytes().clone(),
            keyspace,
            slowlog: Slowlog::new(limits.slow_after),
            limits: RwLock::new(Arc::new(limits)),
            limits_changed: watch::Sender::new(()),
            statistics: Statistics { usage, ..Statistics::default() },
            client_events: ClientEvents::default(),
            host,
            replicas: OnceLock::new(),
            saves: Arc::default(),
            inspections: Arc::default(),
            compactions: Compactions::default(),
            federation: FederationRequests::default(),
            backups: Arc::default(),
            run_id,
            since: Instant::now(),
            memory_at_start_bytes: process::memory().resident_bytes,
            listeners: Mutex::default(),
            certificate_ends: Arc::default(),
            stops: Arc::default(),
        }
    }

    /// From now on these limits hold, also for clients that are connected. Only whether a client
    /// gave a password is not asked again.
    pub fn set_limits(&self, limits: Limits) {
        self.keyspace.memory().limit_to(limits.memory_bytes);
        self.slowlog.set_slow_after(limits.slow_after);
        *self.limits.write() = Arc::new(limits);
        self.limits_changed.send_replace(());
    }

    /// Ends whatever takes long with a store whose shard was given up: it is to be closed.
    pub fn let_go(&self, store: &Store) {
        self.inspections.let_go(store);
        self.backups.let_go(store);
        store.end_compactions();
    }
}

impl Service {
    /// Bytes of all clients: what their connections keep and their commands take, and what each
    /// takes that is only there.
    pub fn clients_bytes(&self) -> u64 {
        let own = self.clients.len() * CLIENT_BYTES;
        (self.client_memory.load(Ordering::Relaxed) + own) as u64
    }

    /// Whether a client that keeps `bytes` beside its connection may not, because all together keep
    /// too much.
    pub fn is_short_of_memory(&self, bytes: usize) -> bool {
        bytes > SMALL_BYTES && self.client_memory.load(Ordering::Relaxed) >= self.limits.read().memory_bytes
    }
}

/// From the system's random numbers, with which the standard library keys its hashes.
fn run_id() -> String {
    let mut digits: String = (0..3).map(|part| format!("{:016x}", RandomState::new().hash_one(part))).collect();
    digits.truncate(40);
    digits
}

/// Bounds of what clients may take. Each refusal names its limit as the configuration does; that of
/// `argument_bytes` has Redis' text. How many arguments a request has is no setting: see
/// [`request::Limits`](crate::protocol::request::Limits::DEFAULT).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Clients at a time.
    pub clients: usize,
    /// Bytes of one request, with all its arguments.
    pub request_bytes: usize,
    /// Bytes of one argument, and of a string that a command makes.
    pub argument_bytes: usize,
    /// Requests of one client that are carried out before its replies are sent.
    pub pipeline_requests: usize,
    /// Bytes of replies that wait for one client: a reply that would be longer is an error instead.
    pub output_bytes: usize,
    /// Time a client may send nothing; none: for ever.
    pub idle: Option<Duration>,
    /// Time a client may take nothing of what it is owed.
    pub send: Duration,
    /// Bytes of commands queued by `MULTI`, and of keys that one client watches.
    pub transaction_bytes: usize,
    /// Bytes that all clients together may take: requests that have not come whole, replies that
    /// were not sent, what they queued, and what commands collect, build and write until it is
    /// replied and committed.
    pub memory_bytes: usize,
    /// Passwords: none is asked for if there is none.
    pub password: Option<String>,
    /// Commands that took longer stand in the slow log; none: no command.
    pub slow_after: Option<Duration>,
    /// Entries of the slow log.
    pub slowlog_entries: usize,
    /// Who may use `DEBUG`; it does not change while the server runs.
    pub debug_command: DebugCommand,
}

/// Who may use `DEBUG`, as Redis has it (`enable-debug-command`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DebugCommand {
    /// Nobody.
    #[default]
    No,
    /// Clients of this machine: on loopback, or at a Unix socket.
    Local,
    /// Every client.
    Yes,
}

impl DebugCommand {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::No, Self::Local, Self::Yes];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Local => "local",
            Self::Yes => "yes",
        }
    }

    /// What this word stands for.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == word)
    }

    /// Whether this client may.
    pub fn lets(self, client: &ClientInfo) -> bool {
        match self {
            Self::No => false,
            Self::Local => client.is_local(),
            Self::Yes => true,
        }
    }
}

impl Limits {
    /// Bytes of replies that are sent before more of what their client has asked is carried out.
    pub const ROUND_REPLY_BYTES: usize = 256 * 1024;

    /// What [`output_bytes`](Self::output_bytes) must have beyond
    /// [`argument_bytes`](Self::argument_bytes), so that the longest string can be read wherever a
    /// client asks for it: in a pipeline behind the replies that are sent together with it, and in
    /// a transaction behind about as much of the commands before it.
    pub const AROUND_LONGEST_BYTES: usize = 2 * Self::ROUND_REPLY_BYTES;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 10_000,
            request_bytes: 1 << 30,
            argument_bytes: 512 << 20,
            pipeline_requests: 1024,
            // More than what must be around the longest string: whole mebibytes are easier to read.
            output_bytes: (512 << 20) + (1 << 20),
            idle: None,
            send: Duration::from_secs(60),
            transaction_bytes: 64 << 20,
            memory_bytes: 1 << 30,
            password: None,
            slow_after: Some(Duration::from_millis(10)),
            slowlog_entries: 128,
            debug_command: DebugCommand::No,
        }
    }
}

/// Counts since the start, or since `CONFIG RESETSTAT`.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Commands carried out.
    pub commands: AtomicU64,
    /// Connections taken.
    pub connections: AtomicU64,
    /// How often something was received of a client.
    pub reads: AtomicU64,
    /// How often replies were sent to one.
    pub writes: AtomicU64,
    /// Bytes received.
    pub bytes_in: AtomicU64,
    /// Bytes sent.
    pub bytes_out: AtomicU64,
    /// Lookups that found their key.
    pub hits: AtomicU64,
    /// Lookups that did not.
    pub misses: AtomicU64,
    /// Replies that were errors.
    pub errors: AtomicU64,
    /// From the receipt of requests until their replies may be sent, commits and rests of writers
    /// included: what a client waits for here. Requests that came together count once.
    pub responses: Times,
    /// Event loops that serve clients now.
    pub event_loops: AtomicUsize,
    /// Clients that wait for the device, or for a thread that may wait.
    pub waiting: AtomicUsize,
    /// Clients whose replies wait for copies of a shard.
    pub awaiting_copies: AtomicUsize,
    /// How often one waited until the kernel had read what was not in memory.
    pub reads_awaited: AtomicU64,
    /// How often one was moved to a blocking thread to a thread that may wait.
    pub blocking_requests: AtomicU64,
    /// Requests that other servers were asked to carry out (`clients.proxy`).
    pub forwarded: AtomicU64,
    /// Of these, those that were not answered.
    pub forwards_failed: AtomicU64,
    /// By the error's code word.
    pub errors_by_word: Mutex<BTreeMap<String, u64>>,
    /// By command.
    pub usage: Usage,
    /// Passwords that were wrong. They count on over `CONFIG RESETSTAT`, as in Redis.
    pub wrong_passwords: AtomicU64,
    /// The event loops' turns.
    pub loops: Loops,
    /// Of commands, bytes received and bytes sent, turns of event loops and the microseconds that
    /// those took.
    pub rates: Rates,
}

impl Statistics {
    /// `count` clients were replied with the error `reply`.
    pub fn count_errors(&self, reply: &[u8], count: u64) {
        self.errors.fetch_add(count, Ordering::Relaxed);
        let word = reply.split(|byte| *byte == b' ').next().unwrap_or_default();
        let word = String::from_utf8_lossy(word).into_owned();
        *self.errors_by_word.lock().entry(word).or_default() += count;
    }

    /// All from 0 again, but for what is there now.
    pub fn reset(&self) {
        for count in [
            &self.commands,
            &self.connections,
            &self.reads,
            &self.writes,
            &self.bytes_in,
            &self.bytes_out,
            &self.hits,
            &self.misses,
            &self.errors,
            &self.reads_awaited,
            &self.blocking_requests,
            &self.forwarded,
            &self.forwards_failed,
        ] {
            count.store(0, Ordering::Relaxed);
        }
        self.errors_by_word.lock().clear();
        self.usage.reset();
        self.loops.reset();
        self.responses.reset();
    }
}
