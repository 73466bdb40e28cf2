//! Listens, starts the threads that serve, and ends them.
//!
//! Threads: one for each lane; the first one takes connections as well. Each has a bounded number of threads that may wait
//! ([`Listen::waiting_threads`]); requests beyond that wait for one of them, and their clients with them. Where TLS is listened for,
//! one more makes the handshakes.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_engine::{Duty, DutyObserver};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::accept::{Dealer, Inbox, accept_plain};
use super::handshake::Gate;
use super::lane::Lane;
use super::pulse::{BEAT, Pulse};
use super::session::serve_lane;
use super::signal::{Teller, signal};
use super::tls::{Identity, TlsError, TlsFiles};
use crate::keyspace::Upkeep;
use crate::service::Service;

/// Where and how to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Addresses; port 0 takes any free one.
    pub addresses: Vec<SocketAddr>,
    /// A Unix socket besides.
    pub socket: Option<PathBuf>,
    /// TLS besides.
    pub tls: Option<ListenTls>,
    /// Threads that serve clients: one for each core that is to serve.
    pub lanes: usize,
    /// Threads of each lane that may wait for the device.
    pub waiting_threads: usize,
    /// Whether the kernel is to read what requests miss in memory, where it offers that; else those threads do.
    pub uses_io_uring: bool,
}

impl Default for Listen {
    fn default() -> Self {
        Self { addresses: Vec::new(), socket: None, tls: None, lanes: 1, waiting_threads: 16, uses_io_uring: true }
    }
}

/// Where to listen for TLS, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenTls {
    /// Addresses; port 0 takes any free one.
    pub addresses: Vec<SocketAddr>,
    /// Who the server is.
    pub files: TlsFiles,
    /// How long a handshake may take.
    pub handshake_within: Duration,
}

impl ListenTls {
    /// How long a handshake may take where nothing else is said: far more than one across the world with a slow device does.
    pub const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
}

/// Why it does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on: choose another, or end who has it.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address, or the path of the socket.
        address: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file of TLS cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The system gives no more threads.
    #[error("cannot start a thread to serve clients: {0}")]
    Thread(std::io::Error),
}

/// Serves until it is stopped.
#[derive(Debug)]
pub struct Server {
    teller: Teller,
    threads: Vec<JoinHandle<()>>,
    listening: Listening,
    pulses: Arc<[Pulse]>,
    _upkeep: Upkeep,
}

/// Where it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// Addresses, with their ports.
    pub addresses: Vec<SocketAddr>,
    /// Those for TLS.
    pub tls_addresses: Vec<SocketAddr>,
    /// The Unix socket.
    pub socket: Option<PathBuf>,
}

impl Server {
    /// Listens, and serves `service` on threads of its own. `duties` is told that they are [`Duty::Foreground`].
    ///
    /// # Errors
    ///
    /// An address that cannot be had, or a file of TLS that cannot be used; nothing is served then.
    pub fn start(
        service: Arc<Service>,
        listen: &Listen,
        duties: Option<Arc<dyn DutyObserver>>,
    ) -> Result<Self, ServeError> {
        let identity = match &listen.tls {
            Some(tls) => Some((Identity::of(tls.files.clone())?, tls.handshake_within)),
            None => None,
        };
        let tcp = bind(&listen.addresses)?;
        let tls = bind(listen.tls.as_ref().map_or(&[][..], |tls| &tls.addresses))?;
        let unix = listen.socket.as_ref().map(bind_unix).transpose()?;
        let own = |listeners: &[TcpListener]| listeners.iter().filter_map(|own| own.local_addr().ok()).collect();
        let listening = Listening { addresses: own(&tcp), tls_addresses: own(&tls), socket: listen.socket.clone() };
        let (teller, signal) = signal();
        let (mut inboxes, mut lanes) = (Vec::new(), Vec::new());
        for _ in 0..listen.lanes.max(1) {
            let (newcomers, inbox) = mpsc::unbounded_channel();
            let clients = Arc::new(AtomicUsize::new(0));
            inboxes.push(Inbox { newcomers, clients: clients.clone() });
            lanes.push((inbox, clients));
        }
        let dealer = Arc::new(Dealer { service: service.clone(), inboxes });
        let upkeep = Upkeep::of(service.keyspace.clone()).map_err(ServeError::Thread)?;
        let pulses: Arc<[Pulse]> = lanes.iter().map(|_| Pulse::default()).collect();
        let mut server = Self { teller, threads: Vec::new(), listening, pulses: pulses.clone(), _upkeep: upkeep };
        let mut first = Some((tcp, unix, server.teller.clone()));
        for (number, (inbox, clients)) in lanes.into_iter().enumerate() {
            let mut runtime = Builder::new_current_thread();
            runtime
                .enable_all()
                .max_blocking_threads(listen.waiting_threads.max(1))
                .thread_name(format!("ecotone-wait-{number}"));
            let (service, signal, dealer) = (service.clone(), signal.clone(), dealer.clone());
            let uses_io_uring = listen.uses_io_uring;
            let (first, pulses) = (first.take(), pulses.clone());
            let thread = spawn(format!("ecotone-lane-{number}"), runtime, duties.clone(), async move || {
                if let Some((tcp, unix, teller)) = first {
                    accept_plain(&dealer, tcp, unix, &signal);
                    tokio::task::spawn_local(teller.pass_on_limits(service.clone(), signal.clone()));
                }
                drop(dealer);
                tokio::task::spawn_local(async move {
                    loop {
                        pulses[number].beat(Instant::now());
                        tokio::time::sleep(BEAT).await;
                    }
                });
                serve_lane(Lane::new(service, clients, uses_io_uring), inbox, signal).await;
            });
            server.threads.push(thread?);
        }
        if let Some((identity, handshake_within)) = identity {
            let gate = Gate { listeners: tls, identity, handshake_within };
            let mut runtime = Builder::new_current_thread();
            runtime.enable_all();
            let thread = spawn("ecotone-tls".into(), runtime, duties, async move || gate.open(dealer, signal).await);
            server.threads.push(thread?);
        }
        Ok(server)
    }

    /// Where it listens.
    pub fn listening(&self) -> &Listening {
        &self.listening
    }

    /// The signs of life of the lanes, about one a second each.
    pub fn pulses(&self) -> &Arc<[Pulse]> {
        &self.pulses
    }

    /// Takes no more connections and requests, sends what is owed, and closes all connections.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.teller.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that serves clients panicked");
            }
        }
        if let Some(path) = self.listening.socket.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn bind(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, ServeError> {
    let listener = |address: &SocketAddr| {
        let bound = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        bound.map_err(|source| ServeError::Listen { address: address.to_string(), source })
    };
    addresses.iter().map(listener).collect()
}

fn bind_unix(path: &PathBuf) -> Result<UnixListener, ServeError> {
    // Left by a process that was killed: who holds the store's lock is the one to have it.
    let _ = std::fs::remove_file(path);
    let bound = UnixListener::bind(path).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| ServeError::Listen { address: path.display().to_string(), source })
}

/// Starts a thread that serves, with a runtime of its own.
fn spawn<W: Future<Output = ()>>(
    name: String,
    mut runtime: Builder,
    duties: Option<Arc<dyn DutyObserver>>,
    work: impl FnOnce() -> W + Send + 'static,
) -> Result<JoinHandle<()>, ServeError> {
    if let Some((begin, end)) = duties.clone().zip(duties.clone()) {
        runtime.on_thread_start(move || begin.begin(Duty::Foreground)).on_thread_stop(move || end.end());
    }
    let runtime = runtime.build().map_err(ServeError::Thread)?;
    let run = move || {
        if let Some(duties) = &duties {
            duties.begin(Duty::Foreground);
        }
        LocalSet::new().block_on(&runtime, async move { work().await });
        // Clients had their time. What still waits for the store may wait for as long as the store has no room.
        runtime.shutdown_background();
        if let Some(duties) = &duties {
            duties.end();
        }
    };
    std::thread::Builder::new().name(name).spawn(run).map_err(ServeError::Thread)
}
