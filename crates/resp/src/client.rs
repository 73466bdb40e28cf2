//! What the server knows of one client.
//!
//! [`Client`] belongs to the thread that carries out its commands; [`ClientInfo`] is what others
//! may see of it and do to it (`CLIENT LIST`, `CLIENT KILL`).

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::answer::Answer;
use crate::buffers::Buffers;
use crate::cluster_view::{Cluster, SeenView};
use crate::compactions::Following;
use crate::copies::{CopiesAwaited, LastWrites};
use crate::federation::FederationAnswer;
use ecotone_keyspace::gate::Level;
use ecotone_keyspace::{CancelReason, CancellationSource, Keyspace, WatchFlag};

/// One client, as the thread that serves it has it.
#[derive(Debug)]
pub struct Client {
    /// What others may see.
    pub info: Arc<ClientInfo>,
    /// Whether it may use commands: it gave the password, or none is asked for.
    pub is_authenticated: bool,
    /// From `MULTI` on.
    pub transaction: Option<Transaction>,
    /// The keys of `WATCH`, each with the epoch of its shard where that has copies.
    pub watched: HashMap<Vec<u8>, (Watched, Option<u64>)>,
    /// What they take, about.
    pub watched_bytes: usize,
    /// Set when one of them is written.
    pub watch_flag: WatchFlag,
    /// How often all keys had been removed when the first of them that was there was watched.
    pub cleared: Option<u64>,
    /// What its connection does after the command. Who carries it out takes it, and leaves
    /// [`Then::Go`].
    pub then: Then,
    /// What it waits for.
    pub awaited: Option<Awaited>,
    /// `CLIENT LEVEL`; none: that of each shard.
    pub level: Option<Level>,
    /// What it has written last, as far as that is committed.
    pub last_writes: LastWrites,
    /// The federation as its last command found it.
    seen: Option<SeenView>,
}

/// What a watched key was like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// It was not there, or its time was over.
    Missing,
    /// It was there.
    There {
        /// When its time is over, in ms since 1970 UTC. To give it another one is a write.
        expires_at_ms: Option<u64>,
    },
}

/// Commands that were queued since `MULTI`.
#[derive(Debug, Default)]
pub struct Transaction {
    /// Each with its arguments, the command's name first.
    pub queued: Vec<Vec<Vec<u8>>>,
    /// Bytes of all of them.
    pub bytes: usize,
    /// One was refused: `EXEC` will be.
    pub is_refused: bool,
}

/// What a connection does after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Then {
    /// Goes on.
    #[default]
    Go,
    /// Sends what the commands before it replied; its own reply, and what follows, only after a
    /// while.
    Rest(Duration),
    /// The same until what the client [waits for](Client::awaited) is over, whose answer or failure
    /// takes the place of its own reply.
    Follow,
    /// Sends what was replied and closes.
    Close,
}

/// What a client waits for.
#[derive(Debug)]
pub enum Awaited {
    /// A compaction, which ends when this is dropped.
    Compaction(Following),
    /// The federation, which does what was asked of it also when nobody waits.
    Federation(FederationAnswer),
    /// A failover: what the server says of it is nothing.
    FailOver(FederationAnswer),
    /// Copies.
    Copies(CopiesAwaited),
}

impl Awaited {
    /// Waits until it is over. Returns what is replied instead of what the command has replied.
    ///
    /// # Errors
    ///
    /// Why it has failed, as a client is told it.
    pub async fn over(&mut self) -> Result<Option<Answer>, String> {
        match self {
            Self::Compaction(following) => following.over().await.map(|()| None),
            Self::Federation(answer) => answer.answered().await.map(|answer| Some(Answer::Bulk(answer))),
            Self::FailOver(answer) => answer.answered().await.map(|_| None),
            Self::Copies(copies) => Ok(Some(copies.over().await)),
        }
    }
}

impl Client {
    /// A new client.
    pub fn new(info: Arc<ClientInfo>, is_authenticated: bool) -> Self {
        Self {
            info,
            is_authenticated,
            transaction: None,
            watched: HashMap::new(),
            watched_bytes: 0,
            watch_flag: WatchFlag::default(),
            cleared: None,
            then: Then::Go,
            awaited: None,
            level: None,
            last_writes: LastWrites::default(),
            seen: None,
        }
    }

    /// The federation as its last command found it; as it is now, if there was none.
    pub fn seen(&mut self, cluster: &Cluster) -> &mut SeenView {
        self.seen.get_or_insert_with(|| SeenView::of(cluster))
    }

    /// Whether the federation has changed since.
    pub fn is_outdated(&self, cluster: &Cluster) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.is_outdated(cluster))
    }

    /// Whether its commands are carried out as they come.
    pub fn is_plain(&self) -> bool {
        self.is_authenticated && self.transaction.is_none()
    }

    /// Whether another server may be asked for it: that knows nothing of its level.
    pub fn is_forwardable(&self) -> bool {
        self.is_plain() && self.level.is_none()
    }

    /// Bytes of what it has queued and watches.
    pub fn memory_bytes(&self) -> usize {
        self.transaction.as_ref().map_or(0, |transaction| transaction.bytes) + self.watched_bytes
    }

    /// Its replies wait for copies at this level from now on.
    pub fn set_level(&mut self, level: Option<Level>) {
        self.level = level;
        *self.info.level.lock() = level;
    }

    /// Watches nothing from now on.
    pub fn unwatch(&mut self, keyspace: &Keyspace) {
        for (key, _) in std::mem::take(&mut self.watched) {
            keyspace.watches().remove(&key, &self.watch_flag);
        }
        self.watch_flag = WatchFlag::default();
        self.cleared = None;
        self.watched_bytes = 0;
        self.info.watched.store(0, Ordering::Relaxed);
    }
}

/// What others may see of a client, and do to it.
#[derive(Debug)]
pub struct ClientInfo {
    /// Its number, given once.
    pub id: u64,
    /// Its address, `host:port` or the path of a socket.
    pub address: String,
    /// The address it came to.
    pub local_address: String,
    /// When it came.
    pub since: Instant,
    /// `CLIENT SETNAME`.
    pub name: Mutex<Vec<u8>>,
    /// `CLIENT SETINFO LIB-NAME`.
    pub library_name: Mutex<Vec<u8>>,
    /// `CLIENT SETINFO LIB-VER`.
    pub library_version: Mutex<Vec<u8>>,
    /// The last command, as `CLIENT LIST` names it (`client|list`).
    pub last_command: Mutex<&'static str>,
    /// When it last sent something, in ms after `since`.
    pub active_ms: AtomicU64,
    /// 2 or 3.
    pub protocol: AtomicU8,
    /// Commands queued since `MULTI`, or -1.
    pub queued: AtomicI64,
    /// Keys watched.
    pub watched: AtomicUsize,
    /// The descriptor of its socket; -1 before it is assigned to an event loop.
    pub descriptor: AtomicI32,
    /// What it has in memory.
    pub buffers: Buffers,
    /// `CLIENT NO-EVICT`.
    pub is_no_evict: AtomicBool,
    /// `CLIENT NO-TOUCH`.
    pub is_no_touch: AtomicBool,
    /// `READONLY`: it reads from copies.
    pub is_readonly: AtomicBool,
    /// `CLIENT LEVEL`.
    pub level: Mutex<Option<Level>>,
    /// Whether it came by TLS.
    pub is_tls: AtomicBool,
    /// `CLIENT KILL`.
    pub is_killed: AtomicBool,
    /// Whether it waits for what it has asked for, as far as is known.
    pub cancellation: Arc<CancellationSource>,
    /// Whether what it has asked for is carried out by a thread that may wait, or waits for one.
    /// Who serves its connection looks whether it is still there, then.
    pub is_blocking: AtomicBool,
    /// Told when it is killed.
    killed: Notify,
}

impl ClientInfo {
    /// Closes its connection as soon as its thread looks.
    pub fn kill(&self) {
        self.is_killed.store(true, Ordering::Release);
        self.cancellation.cancel(CancelReason::Killed);
        self.killed.notify_waiters();
    }

    /// Waits until it is killed; any number may.
    pub async fn until_killed(&self) {
        // Made before the flag is looked at, it misses no kill after that.
        let killed = self.killed.notified();
        if !self.is_killed.load(Ordering::Acquire) {
            killed.await;
        }
    }

    /// It sent something at `now`.
    pub fn is_active(&self, now: Instant) {
        let active_ms = now.saturating_duration_since(self.since).as_millis() as u64;
        self.active_ms.store(active_ms, Ordering::Relaxed);
    }

    /// Whether it came by a Unix socket.
    pub fn is_of_unix_socket(&self) -> bool {
        self.address.parse::<SocketAddr>().is_err()
    }

    /// Whether it is of this machine, as far as its address says.
    pub fn is_local(&self) -> bool {
        self.address.parse::<SocketAddr>().map_or(true, |address| address.ip().to_canonical().is_loopback())
    }

    /// Milliseconds since it came.
    pub fn age_ms(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    /// Whether `MULTI` was sent, and the transaction has not ended; it has not while `EXEC` is
    /// carried out.
    pub fn is_in_transaction(&self) -> bool {
        self.queued.load(Ordering::Relaxed) >= 0
    }

    /// How long it has sent nothing.
    pub fn idle(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.active_ms.load(Ordering::Relaxed)))
    }
}

/// All clients that are connected.
#[derive(Debug, Default)]
pub struct Clients {
    next_id: AtomicU64,
    connected: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
}

impl Clients {
    /// A client has come. `None`: there are `most` already.
    pub fn add(&self, address: String, local_address: String, most: usize) -> Option<Arc<ClientInfo>> {
        let mut connected = self.connected.lock();
        if connected.len() >= most {
            return None;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let info = Arc::new(ClientInfo {
            id,
            address,
            local_address,
            since: Instant::now(),
            name: Mutex::default(),
            library_name: Mutex::default(),
            library_version: Mutex::default(),
            last_command: Mutex::new("NULL"),
            active_ms: AtomicU64::new(0),
            protocol: AtomicU8::new(2),
            queued: AtomicI64::new(-1),
            watched: AtomicUsize::new(0),
            descriptor: AtomicI32::new(-1),
            buffers: Buffers::default(),
            is_no_evict: AtomicBool::new(false),
            is_no_touch: AtomicBool::new(false),
            is_readonly: AtomicBool::new(false),
            level: Mutex::default(),
            is_tls: AtomicBool::new(false),
            is_killed: AtomicBool::new(false),
            cancellation: Arc::default(),
            is_blocking: AtomicBool::new(false),
            killed: Notify::new(),
        });
        connected.insert(id, info.clone());
        Some(info)
    }

    /// It has gone.
    pub fn remove(&self, id: u64) {
        self.connected.lock().remove(&id);
    }

    /// All, by their numbers.
    pub fn all(&self) -> Vec<Arc<ClientInfo>> {
        self.connected.lock().values().cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.connected.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
