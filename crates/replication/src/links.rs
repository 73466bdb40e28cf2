//! What this server says to others about copies: for each of them two queues, and for each queue a
//! task that keeps a call open and sends what comes.
//!
//! Small messages (heartbeats, promises, acknowledgements, what a leader asks) go by one call, items
//! by another one, over another connection, so that no heartbeat waits behind megabytes. A message is
//! sent or lost; within a call they arrive in order. What has waited when a call breaks is lost: the
//! machines say again what matters, and a copy notices what it has not got.
//!
//! # Bounds
//!
//! [`MAX_WAITING_MESSAGES`] and [`MAX_WAITING_BYTES`] for each queue; a call that takes nothing for
//! [`MAX_SEND_TIME`] ([`MAX_BULK_SEND_TIME`] for items, which may go over a thin link) is ended.
//!
//! # Threads
//!
//! Tasks run on the run times of the [`Route`]s. Messages become bytes, compressed where that pays,
//! on the thread that sends them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ecotone_control::ids::MemberId;
use ecotone_membership::Known;
use ecotone_replica::wire::Parcel;
use ecotone_transport::connections::Connections;
use ecotone_transport::wire::CopyParcel;
use ecotone_transport::wire::copies_client::CopiesClient;
use ecotone_types::ServerId;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, error};

use crate::packing::{FRAMING_BYTES, MAX_PACKED_BYTES, Sampling, pack};
use crate::service::Incoming;

/// Messages to one server that wait in a queue.
pub const MAX_WAITING_MESSAGES: usize = 1_024;
/// Bytes of them. A copy must not be given more credit than this, all shards together.
pub const MAX_WAITING_BYTES: usize = 32 << 20;
/// After a failure nothing is tried for so long.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// A small message that cannot be passed on for so long is lost, and the call with it.
const MAX_SEND_TIME: Duration = Duration::from_secs(3);
/// The same of items: a full message takes as long over a link of 300 kbit/s.
const MAX_BULK_SEND_TIME: Duration = Duration::from_secs(30);

/// How calls of one kind are made.
#[derive(Clone)]
pub struct Route {
    /// Where their tasks run, and the connections that they open.
    pub runtime: Handle,
    /// Over which connections.
    pub connections: Arc<Connections>,
}

/// The ways to all other servers; cheap to clone. Its calls end when the last one is dropped.
#[derive(Clone)]
pub struct Links(Arc<Inner>);

struct Inner {
    small: Paths,
    bulk: Paths,
    /// Bounded by the servers of the map.
    peers: Mutex<HashMap<MemberId, Arc<Peer>>>,
}

/// Where a queue leads.
#[derive(Clone)]
pub(crate) struct Paths {
    pub(crate) route: Route,
    known: watch::Receiver<Arc<Known>>,
    incoming: Arc<RwLock<Option<Weak<dyn Incoming>>>>,
}

/// The two queues to one server.
struct Peer {
    small: Queue,
    bulk: Queue,
    is_reachable: Arc<AtomicBool>,
    sampling: Mutex<Sampling>,
}

struct Queue {
    messages: mpsc::Sender<Waiting>,
    waiting_bytes: Arc<AtomicUsize>,
}

/// A message that waits, counted until it is dropped.
struct Waiting {
    bytes: Vec<u8>,
    counted: usize,
    all: Arc<AtomicUsize>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.all.fetch_sub(self.counted, Ordering::AcqRel);
    }
}

impl Queue {
    fn new() -> (Queue, mpsc::Receiver<Waiting>) {
        let (messages, queue_end) = mpsc::channel(MAX_WAITING_MESSAGES);
        (Queue { messages, waiting_bytes: Arc::default() }, queue_end)
    }

    /// False where it is full.
    fn offer(&self, bytes: Vec<u8>) -> bool {
        let counted = bytes.len();
        let before = self.waiting_bytes.fetch_add(counted, Ordering::AcqRel);
        let waiting = Waiting { bytes, counted, all: self.waiting_bytes.clone() };
        // One alone fits always.
        (before == 0 || before + counted <= MAX_WAITING_BYTES) && self.messages.try_send(waiting).is_ok()
    }
}

impl Paths {
    /// Where a server is, by the map; none of one that is removed or has not said where it is.
    pub(crate) fn to(&self, member: MemberId) -> Option<(String, ServerId)> {
        let known = self.known.borrow();
        let server = known.map.server(member).filter(|server| !server.addresses.peers.is_empty())?;
        Some((server.addresses.peers.clone(), server.name.clone()))
    }

    fn unreachable(&self, member: MemberId) {
        let incoming = self.incoming.read().as_ref().and_then(Weak::upgrade);
        if let Some(incoming) = incoming {
            incoming.unreachable(member);
        }
    }
}

impl Links {
    /// Small messages by one route, all else by another one: its connections must be others.
    pub fn new(small: Route, bulk: Route, known: watch::Receiver<Arc<Known>>) -> Links {
        let incoming = Arc::new(RwLock::new(None));
        let paths = |route| Paths { route, known: known.clone(), incoming: incoming.clone() };
        Links(Arc::new(Inner { small: paths(small), bulk: paths(bulk), peers: Mutex::default() }))
    }

    /// Who is asked from now on when a server cannot be reached. It is not kept alive.
    pub fn attach(&self, incoming: &Arc<dyn Incoming>) {
        *self.0.small.incoming.write() = Some(Arc::downgrade(incoming));
    }

    /// The name of a server, by the map.
    pub(crate) fn name_of(&self, member: MemberId) -> Option<ServerId> {
        self.0.small.known.borrow().map.server(member).map(|server| server.name.clone())
    }

    pub(crate) fn bulk(&self) -> &Paths {
        &self.0.bulk
    }

    /// Sends a message, or loses it. Never waits for the other server; one with items takes the time
    /// to make bytes of it.
    pub fn send(&self, to: MemberId, parcel: &Parcel) {
        let peer = self.peer(to);
        let is_bulk = parcel.message.is_bulk();
        match pack(parcel, is_bulk.then_some(&peer.sampling)) {
            Ok(bytes) => {
                let queue = if is_bulk { &peer.bulk } else { &peer.small };
                if !queue.offer(bytes) {
                    debug!(%to, is_bulk, "a message is lost: too many wait");
                }
            }
            // A defect of this server: no limit of the machines is above those of the wire.
            Err(why) => error!(%to, %why, "a message cannot be sent"),
        }
    }

    /// The bytes of items that may be sent to a server now without loss.
    pub fn free_bytes(&self, to: MemberId) -> usize {
        let peers = self.0.peers.lock();
        let waiting = peers.get(&to).map_or(0, |peer| peer.bulk.waiting_bytes.load(Ordering::Acquire));
        MAX_WAITING_BYTES.saturating_sub(waiting)
    }

    /// Whether the last attempt to reach a server went well: small messages to it are under way.
    pub fn is_reachable(&self, to: MemberId) -> bool {
        self.0.peers.lock().get(&to).is_some_and(|peer| peer.is_reachable.load(Ordering::Acquire))
    }

    fn peer(&self, to: MemberId) -> Arc<Peer> {
        let mut peers = self.0.peers.lock();
        if let Some(peer) = peers.get(&to) {
            return peer.clone();
        }
        let map = self.0.small.known.borrow().map.clone();
        // What leads to servers that are gone ends. What is asked for of servers that are not in the
        // map has no place to go, and is forgotten next time.
        peers.retain(|member, _| map.server(*member).is_some());
        let ((small, small_end), (bulk, bulk_end)) = (Queue::new(), Queue::new());
        let is_reachable = Arc::new(AtomicBool::new(false));
        let peer = Arc::new(Peer {
            small,
            bulk,
            is_reachable: is_reachable.clone(),
            sampling: Mutex::new(Sampling::default()),
        });
        let Inner { small, bulk, .. } = &*self.0;
        small.route.runtime.spawn(deliver(to, small_end, small.clone(), Some(is_reachable)));
        bulk.route.runtime.spawn(deliver(to, bulk_end, bulk.clone(), None));
        peers.insert(to, peer.clone());
        peer
    }
}

/// Delivers messages until nobody sends any more. Those of the small kind say whether the server is
/// reachable.
async fn deliver(
    to: MemberId,
    mut messages: mpsc::Receiver<Waiting>,
    paths: Paths,
    is_reachable: Option<Arc<AtomicBool>>,
) {
    while let Some(first) = messages.recv().await {
        let Some((address, name)) = paths.to(to) else { continue };
        let longest = if is_reachable.is_some() { MAX_SEND_TIME } else { MAX_BULK_SEND_TIME };
        let call = Call { to, address: &address, name: &name, is_reachable: is_reachable.as_deref(), longest };
        let why = call.carry(first, &mut messages, &paths).await;
        debug!(server = %name, address, why, is_bulk = is_reachable.is_none(), "messages about copies are interrupted");
        paths.route.connections.forget(&address);
        if let Some(is_reachable) = &is_reachable {
            is_reachable.store(false, Ordering::Release);
            paths.unreachable(to);
        }
        tokio::time::sleep(RETRY_DELAY).await;
        // What has waited meanwhile is old.
        while messages.try_recv().is_ok() {}
    }
}

struct Call<'a> {
    to: MemberId,
    address: &'a str,
    name: &'a ServerId,
    is_reachable: Option<&'a AtomicBool>,
    longest: Duration,
}

impl Call<'_> {
    /// Sends over one call until it breaks, the server moves or nobody sends any more. Returns why.
    async fn carry(&self, first: Waiting, messages: &mut mpsc::Receiver<Waiting>, paths: &Paths) -> String {
        let channel = match paths.route.connections.to(self.address, Some(self.name)).await {
            Ok(channel) => channel,
            Err(error) => return error.to_string(),
        };
        if let Some(is_reachable) = self.is_reachable {
            is_reachable.store(true, Ordering::Release);
        }
        let (passing, passed) = mpsc::channel(1);
        let mut client = CopiesClient::new(channel).max_encoding_message_size(MAX_PACKED_BYTES + FRAMING_BYTES);
        let call = client.carry(ReceiverStream::new(passed));
        tokio::pin!(call);
        let mut next = Some(first);
        loop {
            let Some(mut message) = next.take() else { return "nothing more is sent to it".into() };
            let parcel = std::mem::take(&mut message.bytes).into();
            let sent = tokio::time::timeout(self.longest, passing.send(CopyParcel { parcel }));
            tokio::select! {
                ended = &mut call => return ended.map_or_else(|status| status.message().to_owned(), |_| "it ended the call".into()),
                sent = sent => match sent {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return "the call has ended".into(),
                    Err(_) => return "it takes no messages".into(),
                },
            }
            // Counted among those that wait until now.
            drop(message);
            next = tokio::select! {
                ended = &mut call => return ended.map_or_else(|status| status.message().to_owned(), |_| "it ended the call".into()),
                message = messages.recv() => message,
            };
            if paths.to(self.to).is_none_or(|(address, _)| address != self.address) {
                return "it has moved, or was removed".into();
            }
        }
    }
}
