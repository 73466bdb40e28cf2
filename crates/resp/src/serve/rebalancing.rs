//! Which event loop serves a client.
//!
//! A client is assigned to an event loop when it connects, round-robin. When [another number of
//! event loops](super::scaling) is to serve, all clients are rebalanced, each as soon as it has
//! sent something and was answered: so active clients are spread evenly over the event loops that
//! serve, and idle ones stay where they cost nothing. A client takes everything along: what it has
//! sent and what it has begun.
//!
//! Threads: any assigns; a client is moved by the event loop that it leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::RuntimeMetrics;
use tokio::sync::mpsc;

use super::connection::Connection;
use super::scaling::{Scaler, Window};
use super::stream::DetachedStream;
use crate::client::ClientInfo;
use crate::client_events::ClientEvent;
use crate::service::Service;

/// Idle cores of the machine since the last call; `None`: unknown.
pub type IdleCores = Box<dyn FnMut() -> Option<f64> + Send>;

/// How often the number of event loops is checked.
const WINDOW: Duration = Duration::from_millis(250);

/// A client on its way to an event loop.
pub(super) struct Arrival {
    pub(super) stream: DetachedStream,
    pub(super) slot: ConnectionSlot,
    /// Where it comes from another event loop.
    pub(super) connection: Option<Box<Connection>>,
}

/// One of the clients there may be. It is free again when this is dropped.
pub(super) struct ConnectionSlot {
    pub(super) info: Arc<ClientInfo>,
    service: Arc<Service>,
    /// Its event loop, once it has one, and the clients of that.
    of_event_loop: Option<(usize, Arc<AtomicUsize>)>,
    /// The last rebalancing that it took part in.
    rebalance: usize,
}

impl ConnectionSlot {
    fn leave_event_loop(&mut self) {
        if let Some((_, clients)) = self.of_event_loop.take() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.service.clients.remove(self.info.id);
        self.leave_event_loop();
    }
}

/// An event loop as the balancer sees it.
pub(super) struct Inbox {
    pub(super) arrivals: mpsc::UnboundedSender<Arrival>,
    pub(super) clients: Arc<AtomicUsize>,
}

/// Spreads clients over the event loops.
pub(super) struct Balancer {
    service: Arc<Service>,
    inboxes: Vec<Inbox>,
    /// The first so many event loops serve.
    event_loops: AtomicUsize,
    /// How often that has changed.
    rebalances: AtomicUsize,
    /// How many were assigned: round-robin.
    turn: AtomicUsize,
}

impl Balancer {
    /// For `inboxes`, of which the first `event_loops` serve.
    pub(super) fn new(service: Arc<Service>, inboxes: Vec<Inbox>, event_loops: usize) -> Self {
        service.statistics.event_loops.store(event_loops, Ordering::Relaxed);
        Self { service, inboxes, event_loops: event_loops.into(), rebalances: 0.into(), turn: 0.into() }
    }

    /// A connection slot for a client; `None` where all are taken.
    pub(super) fn slot(&self, address: String, local_address: String) -> Option<ConnectionSlot> {
        let most = self.service.limits.read().clients;
        let Some(info) = self.service.clients.add(address, local_address, most) else {
            if let Some(others) = self.note(ClientEvent::MaxClients) {
                tracing::warn!(
                    limit = "max_clients",
                    limit_clients = most,
                    others,
                    "there are as many clients as there may be; more are refused"
                );
            }
            return None;
        };
        self.service.statistics.connections.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionSlot { info, service: self.service.clone(), of_event_loop: None, rebalance: 0 })
    }

    /// See [`ClientEvents::note`](crate::client_events::ClientEvents::note).
    pub(super) fn note(&self, event: ClientEvent) -> Option<u64> {
        self.service.client_events.note(event)
    }

    /// Gives a client that has come to an event loop.
    pub(super) fn assign(&self, stream: DetachedStream, mut slot: ConnectionSlot) {
        slot.rebalance = self.rebalances.load(Ordering::Acquire);
        self.send(self.next(), Arrival { stream, slot, connection: None });
    }

    /// Round-robin, and not the event loop with the fewest clients: idle clients are still where
    /// they were before.
    fn next(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed) % self.event_loops.load(Ordering::Relaxed)
    }

    /// The event loop to which the client of `slot` is to move, where it was rebalanced since the
    /// last call.
    pub(super) fn rebalanced_to(&self, slot: &mut ConnectionSlot) -> Option<usize> {
        let rebalances = self.rebalances.load(Ordering::Acquire);
        if rebalances == slot.rebalance {
            return None;
        }
        slot.rebalance = rebalances;
        let event_loop = self.next();
        let is_there = slot.of_event_loop.as_ref().is_some_and(|(own, _)| *own == event_loop);
        (!is_there).then_some(event_loop)
    }

    /// Gives a client to `event loop`.
    pub(super) fn send(&self, event_loop: usize, mut arrival: Arrival) {
        let inbox = &self.inboxes[event_loop];
        arrival.slot.leave_event_loop();
        inbox.clients.fetch_add(1, Ordering::Relaxed);
        arrival.slot.of_event_loop = Some((event_loop, inbox.clients.clone()));
        // An event loop that has stopped takes none: connection and connection slot go.
        let _ = inbox.arrivals.send(arrival);
    }

    /// From now on the first `event_loops` serve, of those there are.
    pub(super) fn use_event_loops(&self, event_loops: usize) {
        let event_loops = event_loops.clamp(1, self.inboxes.len());
        if self.event_loops.swap(event_loops, Ordering::Relaxed) != event_loops {
            self.service.statistics.event_loops.store(event_loops, Ordering::Relaxed);
            // After the number: whoever sees the rebalancing sees the number.
            self.rebalances.fetch_add(1, Ordering::Release);
            tracing::debug!(event_loops, "another number of event loops serves clients");
        }
    }

    /// Lets as many event loops serve as pay, for ever. `runtimes` are those of the event loops.
    pub(super) async fn scale(self: Arc<Self>, runtimes: Vec<RuntimeMetrics>, mut idle_cores: Option<IdleCores>) {
        let mut scaler = Scaler::new(self.inboxes.len());
        let busy = || runtimes.iter().map(|runtime| runtime.worker_total_busy_duration(0)).sum::<Duration>();
        let requests = || self.service.statistics.commands.load(Ordering::Relaxed);
        // Since the last call: the first returns nothing useful.
        let mut idle_cores = move || idle_cores.as_mut().and_then(|idle_cores| idle_cores());
        idle_cores();
        let (mut at, mut busy_before, mut requests_before) = (Instant::now(), busy(), requests());
        loop {
            tokio::time::sleep(WINDOW).await;
            let (now, busy, requests) = (Instant::now(), busy(), requests());
            let elapsed_s = now.saturating_duration_since(at).as_secs_f64();
            let idle_cores = idle_cores();
            // Unless `CONFIG RESETSTAT` has set the count of requests back.
            if let Some(requests) = requests.checked_sub(requests_before) {
                let window = Window {
                    clients: self.inboxes.iter().map(|inbox| inbox.clients.load(Ordering::Relaxed)).sum(),
                    requests_per_s: requests as f64 / elapsed_s,
                    busy_loops: busy.saturating_sub(busy_before).as_secs_f64() / elapsed_s,
                    idle_cores,
                };
                let event_loops = scaler.after(window);
                tracing::trace!(?window, event_loops, "a window");
                self.use_event_loops(event_loops);
            }
            (at, busy_before, requests_before) = (now, busy, requests);
        }
    }
}
