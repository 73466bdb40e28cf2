//! What this server says to others in the group: for each a queue, and a task that keeps a call
//! open and sends what comes.
//!
//! What cannot be sent is lost, and the node is told that the server cannot be reached; Raft sends
//! again what matters. A server is found where it said that it is when it last called ([`Callers`]):
//! this server may have just joined and have no map, or the other may have been started elsewhere,
//! which the map learns only through answers. Else it is found by the map.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ecotone_control::ids::MemberId;
use ecotone_transport::connections::Connections;
use ecotone_transport::protocol::MAX_MESSAGE_BYTES;
use ecotone_transport::wire::RaftMessage;
use ecotone_transport::wire::control_client::ControlClient;
use ecotone_types::ServerId;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tracing::debug;

use crate::events::{Events, Input};
use crate::known::{Announced, Known};

/// Messages to one server that wait. Raft has no more than 64 in flight that are not answered.
const MAX_WAITING_MESSAGES: usize = 128;
/// After a failure nothing is tried for so long.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// A message that cannot be passed on for so long is lost, and the call with it.
const MAX_SEND_TIME: Duration = Duration::from_secs(3);

/// The longest address that a server may say it has.
pub(crate) const MAX_ADDRESS_BYTES: usize = ecotone_control::map::MAX_ADDRESS_BYTES;
/// Servers whose addresses are remembered from their calls: all that may be.
const MAX_CALLERS: usize = ecotone_control::map::MAX_SERVERS;

/// Where servers have said that they are, and how their certificates call them. Who cannot be
/// reached there is forgotten.
#[derive(Default)]
pub(crate) struct Callers(Mutex<HashMap<MemberId, (String, ServerId)>>);

impl Callers {
    pub(crate) fn note(&self, from: MemberId, address: &str, name: &ServerId) {
        let mut callers = self.0.lock();
        if callers.len() < MAX_CALLERS || callers.contains_key(&from) {
            callers.insert(from, (address.to_owned(), name.clone()));
        }
    }

    fn of(&self, member: MemberId) -> Option<(String, ServerId)> {
        self.0.lock().get(&member).cloned()
    }

    fn forget(&self, member: MemberId) {
        self.0.lock().remove(&member);
    }
}

/// What a task that delivers messages needs.
#[derive(Clone)]
pub(crate) struct Paths {
    pub(crate) connections: Arc<Connections>,
    pub(crate) known: watch::Receiver<Arc<Known>>,
    pub(crate) announced: watch::Receiver<Option<Announced>>,
    pub(crate) callers: Arc<Callers>,
}

impl Paths {
    fn to(&self, member: MemberId) -> Option<(String, ServerId)> {
        let map = &self.known.borrow().map;
        if map.is_removed(member) {
            return None;
        }
        let in_map = || map.server(member).map(|server| (server.addresses.peers.clone(), server.name.clone()));
        // Until it has said where it is nobody can reach it.
        self.callers.of(member).or_else(in_map).filter(|(address, _)| !address.is_empty())
    }
}

/// The queues by server. Bounded by the servers of the map.
pub(crate) struct Outboxes {
    runtime: Handle,
    paths: Paths,
    events: Events,
    queues: HashMap<MemberId, mpsc::Sender<Vec<u8>>>,
}

impl Outboxes {
    pub(crate) fn new(runtime: Handle, paths: Paths, events: Events) -> Outboxes {
        Outboxes { runtime, paths, events, queues: HashMap::new() }
    }

    /// Sends a message, or loses it. Never blocks.
    pub(crate) fn send(&mut self, to: MemberId, bytes: Vec<u8>) {
        let map = self.paths.known.borrow().map.clone();
        if self.queues.len() > map.servers.len() + MAX_CALLERS
            || self.queues.get(&to).is_some_and(mpsc::Sender::is_closed)
        {
            self.queues.retain(|member, queue| !map.is_removed(*member) && !queue.is_closed());
        }
        let queue = self.queues.entry(to).or_insert_with(|| {
            let (queue, messages) = mpsc::channel(MAX_WAITING_MESSAGES);
            self.runtime.spawn(deliver(to, messages, self.paths.clone(), self.events.clone()));
            queue
        });
        let _ = queue.try_send(bytes);
    }
}

/// Delivers messages until nobody sends any more.
async fn deliver(to: MemberId, mut messages: mpsc::Receiver<Vec<u8>>, paths: Paths, events: Events) {
    while let Some(first) = messages.recv().await {
        let Some((address, name)) = paths.to(to) else { continue };
        let call = Call { to, address: &address, name: &name };
        let why = call.carry(first, &mut messages, &paths).await;
        debug!(server = %name, address, why, "messages to a server are interrupted");
        events.offer(Input::Unreachable(to));
        paths.connections.forget(&address);
        paths.callers.forget(to);
        tokio::time::sleep(RETRY_DELAY).await;
        // What has waited meanwhile is old.
        while messages.try_recv().is_ok() {}
    }
}

struct Call<'a> {
    to: MemberId,
    address: &'a str,
    name: &'a ServerId,
}

impl Call<'_> {
    /// Sends over one call until it breaks, the server moves or nobody sends any more. Returns why.
    async fn carry(&self, first: Vec<u8>, messages: &mut mpsc::Receiver<Vec<u8>>, paths: &Paths) -> String {
        let channel = match paths.connections.to(self.address, Some(self.name)).await {
            Ok(channel) => channel,
            Err(error) => return error.to_string(),
        };
        let (passing, passed) = mpsc::channel(1);
        let mut client = ControlClient::new(channel).max_encoding_message_size(MAX_MESSAGE_BYTES);
        let call = client.raft(ReceiverStream::new(passed));
        tokio::pin!(call);
        let mut next = Some(first);
        let mut own = paths.announced.borrow().as_ref().map(|own| own.peers.clone()).unwrap_or_default();
        loop {
            let Some(message) = next.take() else { return "nothing more is sent to it".into() };
            let sent = tokio::time::timeout(
                MAX_SEND_TIME,
                passing.send(RaftMessage { message, address: std::mem::take(&mut own) }),
            );
            tokio::select! {
                ended = &mut call => return ended.map_or_else(|status| status.message().to_owned(), |_| "it ended the call".into()),
                sent = sent => match sent {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return "the call has ended".into(),
                    Err(_) => return "it takes no messages".into(),
                },
            }
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
