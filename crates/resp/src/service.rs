//! What all threads that serve clients share, and what the server around them gives.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::client::Clients;
use crate::histogram::Times;
use crate::keyspace::Keyspace;
pub use crate::memory::SMALL_BYTES;
use crate::occasions::Occasions;
use crate::process;
use crate::saves::Saves;
use crate::slowlog::Slowlog;
use crate::usage::{Rates, Usage};

/// The version of Redis that clients may take this server for.
pub const COMPATIBLE_VERSION: &str = "7.0.15";

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
    pub occasions: Occasions,
    /// Commands that took long.
    pub slowlog: Slowlog,
    /// The server around it.
    pub host: Arc<dyn Host>,
    /// Saves that clients ask for.
    pub saves: Arc<Saves>,
    /// Bytes that the connections of all clients keep, and that their commands take meanwhile.
    pub client_memory: Arc<AtomicUsize>,
    /// 40 hexadecimal digits that no other run of a server has.
    pub run_id: String,
    /// When it began.
    pub since: Instant,
    /// What the process had in memory then.
    pub memory_at_start_bytes: u64,
    /// Set for good when the server stops: commands that would keep it from that end with an error.
    pub stops: AtomicBool,
}

impl Service {
    /// Serves `keyspace` from now on.
    pub fn new(keyspace: Arc<Keyspace>, limits: Limits, host: Arc<dyn Host>) -> Self {
        keyspace.memory().limit_to(limits.memory_bytes);
        Self {
            clients: Clients::default(),
            client_memory: keyspace.memory().taken_bytes().clone(),
            keyspace,
            slowlog: Slowlog::new(limits.slow_after),
            limits: RwLock::new(Arc::new(limits)),
            limits_changed: watch::Sender::new(()),
            statistics: Statistics::default(),
            occasions: Occasions::default(),
            host,
            saves: Arc::default(),
            run_id: run_id(),
            since: Instant::now(),
            memory_at_start_bytes: process::memory().resident_bytes,
            stops: AtomicBool::new(false),
        }
    }

    /// From now on these limits hold, also for clients that are connected. Only whether a client gave a password is not asked again.
    pub fn set_limits(&self, limits: Limits) {
        self.keyspace.memory().limit_to(limits.memory_bytes);
        self.slowlog.set_slow_after(limits.slow_after);
        *self.limits.write() = Arc::new(limits);
        self.limits_changed.send_replace(());
    }
}

impl Service {
    /// Whether a client that keeps `bytes` beside its connection may not, because all together keep too much.
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

/// The server around the protocol: what its commands need and a store does not know.
pub trait Host: Send + Sync {
    /// Sections of `INFO`: name, and lines of key and value. `name` is what was asked for, in lower case: a section, `default`, `all` or
    /// `everything`. Lines of a section that the protocol has itself (`server`, `memory`) are added to it.
    fn info(&self, name: &str) -> Vec<InfoSection>;

    /// The settings whose names match one of the lower-case glob patterns, by name.
    fn settings(&self, matches: &dyn Fn(&str) -> bool) -> BTreeMap<String, String>;

    /// Whether the value of a setting is a password. `name` is in lower case.
    fn is_secret(&self, name: &str) -> bool;

    /// The allocator of the process; `None`: the C library's.
    fn allocator(&self) -> Option<&dyn Allocator> {
        None
    }

    /// Changes settings, all or none. Names are as the client wrote them, in any case. The error is a text without code word.
    ///
    /// # Errors
    ///
    /// Which setting, and why.
    fn change(&self, settings: &[(String, String)]) -> Result<(), String>;

    /// Writes the settings into the file they came from.
    ///
    /// # Errors
    ///
    /// Why not.
    fn rewrite(&self) -> Result<(), String>;

    /// A client asks the server to stop. It returns at once; the server stops after. What was acknowledged is made durable.
    fn shut_down(&self);
}

/// The allocator of the process, as far as it can be asked. Any thread may.
pub trait Allocator: Send + Sync {
    /// Its name and version, as Redis writes them: `jemalloc-5.3.1`.
    fn name(&self) -> String;

    /// What it has given out and holds; `None`: it does not say.
    fn counts(&self) -> Option<AllocatorCounts>;

    /// All that it tells of itself, for people.
    fn report(&self) -> String;

    /// Gives back to the system what nobody uses, at once: some milliseconds where that is much. `false`: it cannot.
    fn purge(&self) -> bool;
}

/// Bytes of an [`Allocator`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocatorCounts {
    /// Given out.
    pub allocated: u64,
    /// In pages of which something is given out.
    pub active: u64,
    /// In memory, with pages that are kept and what it needs for itself.
    pub resident: u64,
}

/// A section of `INFO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoSection {
    /// As in `# Name`.
    pub name: &'static str,
    /// Keys and values.
    pub lines: Vec<(String, String)>,
}

/// Bounds of what clients may take. Each refusal names its limit as the configuration does; that of `argument_bytes` has Redis' text. How many
/// arguments a request has is no setting: see [`request::Limits`](crate::protocol::request::Limits::DEFAULT).
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
    /// Bytes that all clients together may take: requests that have not come whole, replies that were not sent, what they queued, and what
    /// commands collect, build and write until it is replied and committed.
    pub memory_bytes: usize,
    /// Passwords: none is asked for if there is none.
    pub password: Option<String>,
    /// Commands that took longer stand in the slow log; none: no command.
    pub slow_after: Option<Duration>,
    /// Entries of the slow log.
    pub slowlog_entries: usize,
}

impl Limits {
    /// Bytes of replies that are sent before more of what their client has asked is carried out.
    pub const ROUND_REPLY_BYTES: usize = 256 * 1024;

    /// What [`output_bytes`](Self::output_bytes) must have beyond [`argument_bytes`](Self::argument_bytes), so that the longest string can be read
    /// wherever a client asks for it: in a pipeline behind the replies that are sent together with it, and in a transaction behind about
    /// as much of the commands before it.
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
    /// From the receipt of requests until their replies may be sent, commits and rests of writers included: what a client waits for here.
    /// Requests that came together count once.
    pub responses: Times,
    /// Lanes that serve clients now.
    pub lanes: AtomicUsize,
    /// Clients that wait for the device, or for a thread that may wait.
    pub waiting: AtomicUsize,
    /// How often one waited until the kernel had read what was not in memory.
    pub reads_awaited: AtomicU64,
    /// How often one was handed on to a thread that may wait.
    pub handed_on: AtomicU64,
    /// By the error's code word.
    pub errors_by_word: Mutex<BTreeMap<String, u64>>,
    /// By command.
    pub usage: Usage,
    /// Of commands, bytes received and bytes sent.
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
            &self.handed_on,
        ] {
            count.store(0, Ordering::Relaxed);
        }
        self.errors_by_word.lock().clear();
        self.usage.reset();
        self.responses.reset();
    }
}
