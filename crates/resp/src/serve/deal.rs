//! Which lane serves a client.
//!
//! A client is dealt to a lane when it comes, in turn. When [another number of lanes](super::width) is to serve, all are dealt anew, each as soon as it
//! has sent something and was answered: so those who send are spread evenly over the lanes that serve, and others stay where they
//! cost nothing. A client takes everything along: what it has sent and what it has begun.
//!
//! Threads: any deals; a client is moved by the lane that it leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::RuntimeMetrics;
use tokio::sync::mpsc;

use super::connection::Connection;
use super::stream::TlsSocket;
use super::width::{Width, Window};
use crate::client::ClientInfo;
use crate::occasions::Occasion;
use crate::service::Service;

/// Cores of the machine that nobody used since the last call; `None`: not known.
pub type IdleCores = Box<dyn FnMut() -> Option<f64> + Send>;

/// So often it is looked whether the number of lanes fits.
const WINDOW: Duration = Duration::from_millis(250);

/// A connection on its way to a lane.
pub(super) enum Stream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
    /// Still bound to the runtime of the thread that it comes from.
    Tls(Box<TlsSocket>),
}

/// A client on its way to a lane.
pub(super) struct Arrival {
    pub(super) stream: Stream,
    pub(super) seat: Seat,
    /// Where it comes from another lane.
    pub(super) connection: Option<Box<Connection>>,
}

/// One of the clients there may be. It is free again when this is dropped.
pub(super) struct Seat {
    pub(super) info: Arc<ClientInfo>,
    service: Arc<Service>,
    /// Its lane, once it has one, and the clients of that.
    of_lane: Option<(usize, Arc<AtomicUsize>)>,
    /// The last deal that it took part in.
    deal: usize,
}

impl Seat {
    fn leave_lane(&mut self) {
        if let Some((_, clients)) = self.of_lane.take() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.service.clients.remove(self.info.id);
        self.leave_lane();
    }
}

/// A lane as those see it who deal out clients.
pub(super) struct Inbox {
    pub(super) arrivals: mpsc::UnboundedSender<Arrival>,
    pub(super) clients: Arc<AtomicUsize>,
}

/// Deals out clients.
pub(super) struct Dealer {
    service: Arc<Service>,
    inboxes: Vec<Inbox>,
    /// The first so many lanes serve.
    lanes: AtomicUsize,
    /// How often that has changed.
    deals: AtomicUsize,
    /// How many were dealt: they go to the lanes in turn.
    turn: AtomicUsize,
}

impl Dealer {
    /// For `inboxes`, of which the first `lanes` serve.
    pub(super) fn new(service: Arc<Service>, inboxes: Vec<Inbox>, lanes: usize) -> Self {
        service.statistics.lanes.store(lanes, Ordering::Relaxed);
        Self { service, inboxes, lanes: lanes.into(), deals: 0.into(), turn: 0.into() }
    }

    /// A seat for a client; `None` where all are taken.
    pub(super) fn seat(&self, address: String, local_address: String) -> Option<Seat> {
        let most = self.service.limits.read().clients;
        let Some(info) = self.service.clients.add(address, local_address, most) else {
            if let Some(others) = self.note(Occasion::MaxClients) {
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
        Some(Seat { info, service: self.service.clone(), of_lane: None, deal: 0 })
    }

    /// See [`Occasions::note`](crate::occasions::Occasions::note).
    pub(super) fn note(&self, occasion: Occasion) -> Option<u64> {
        self.service.occasions.note(occasion)
    }

    /// Gives a client that has come to a lane.
    pub(super) fn deal(&self, stream: Stream, mut seat: Seat) {
        seat.deal = self.deals.load(Ordering::Acquire);
        self.send(self.next(), Arrival { stream, seat, connection: None });
    }

    /// In turn, and not the lane that has the fewest: clients that ask for nothing are still where they were dealt to before.
    fn next(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed) % self.lanes.load(Ordering::Relaxed)
    }

    /// The lane to which the client of `seat` is to go, where it was dealt to another one since it was last asked.
    pub(super) fn is_dealt_to(&self, seat: &mut Seat) -> Option<usize> {
        let deals = self.deals.load(Ordering::Acquire);
        if deals == seat.deal {
            return None;
        }
        seat.deal = deals;
        let lane = self.next();
        let is_there = seat.of_lane.as_ref().is_some_and(|(own, _)| *own == lane);
        (!is_there).then_some(lane)
    }

    /// Gives a client to `lane`.
    pub(super) fn send(&self, lane: usize, mut arrival: Arrival) {
        let inbox = &self.inboxes[lane];
        arrival.seat.leave_lane();
        inbox.clients.fetch_add(1, Ordering::Relaxed);
        arrival.seat.of_lane = Some((lane, inbox.clients.clone()));
        // A lane that has stopped takes none: connection and seat go.
        let _ = inbox.arrivals.send(arrival);
    }

    /// From now on the first `lanes` serve, of those there are.
    pub(super) fn use_lanes(&self, lanes: usize) {
        let lanes = lanes.clamp(1, self.inboxes.len());
        if self.lanes.swap(lanes, Ordering::Relaxed) != lanes {
            self.service.statistics.lanes.store(lanes, Ordering::Relaxed);
            // Behind the number: who sees the deal sees what is dealt to.
            self.deals.fetch_add(1, Ordering::Release);
            tracing::debug!(lanes, "another number of lanes serves clients");
        }
    }

    /// Lets as many lanes serve as pay, for ever. `runtimes` are those of the lanes.
    pub(super) async fn keep_width(self: Arc<Self>, runtimes: Vec<RuntimeMetrics>, mut idle_cores: Option<IdleCores>) {
        let mut width = Width::new(self.inboxes.len());
        let busy = || runtimes.iter().map(|runtime| runtime.worker_total_busy_duration(0)).sum::<Duration>();
        let requests = || self.service.statistics.commands.load(Ordering::Relaxed);
        // Since the last call: the first tells nothing.
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
                    busy_lanes: busy.saturating_sub(busy_before).as_secs_f64() / elapsed_s,
                    idle_cores,
                };
                let lanes = width.after(window);
                tracing::trace!(?window, lanes, "a window");
                self.use_lanes(lanes);
            }
            (at, busy_before, requests_before) = (now, busy, requests);
        }
    }
}
