//! Listens, starts the threads that serve, and ends them.
//!
//! Threads: one for each event loop, whether it serves at the moment or not; the first one takes
//! connections as well, and finds out how many are to serve. Each has a bounded number of threads
//! that may wait ([`Listen::blocking_threads`]); requests beyond that wait for one of them, and
//! their clients with them. Where TLS is listened for, one more makes the handshakes.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_engine::{Duty, DutyObserver};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::accept::accept_plain;
use super::control::{ControlSender, control};
use super::event_loop::EventLoop;
use super::handshake::TlsListener;
use super::liveness::{BEAT, BackgroundTasks, Heartbeat};
use super::rebalancing::{Balancer, IdleCores, Inbox};
use super::session::serve_event_loop;
use super::tls::{Identity, TlsError, TlsFiles};
use crate::service::Service;
use ecotone_keyspace::Maintenance;

/// Where and how to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Addresses; port 0 takes any free one.
    pub addresses: Vec<SocketAddr>,
    /// A Unix socket besides.
    pub socket: Option<PathBuf>,
    /// TLS besides.
    pub tls: Option<ListenTls>,
    /// Threads that serve clients.
    pub event_loops: EventLoops,
    /// Threads of each event loop that may wait for the device.
    pub blocking_threads: usize,
    /// Whether the kernel is to read what requests miss in memory, where it offers that; else those
    /// threads do.
    pub uses_io_uring: bool,
}

/// Threads that serve clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLoops {
    /// So many, always.
    All(usize),
    /// As many as pay, up to this.
    UpTo(usize),
}

/// How the threads are observed, and what they learn of the machine.
#[derive(Default)]
pub struct Machine {
    /// Is notified that the threads are [`Duty::Foreground`].
    pub duties: Option<Arc<dyn DutyObserver>>,
    /// For [`EventLoops::UpTo`].
    pub idle_cores: Option<IdleCores>,
    /// Is called on a thread that serves when that has panicked: its clients, and new ones, may not
    /// be served any more.
    pub panicked: Option<Panicked>,
}

/// Called after a panic. Must not block.
pub type Panicked = Arc<dyn Fn() + Send + Sync>;

impl Default for Listen {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            socket: None,
            tls: None,
            event_loops: EventLoops::All(1),
            blocking_threads: 16,
            uses_io_uring: true,
        }
    }
}

/// Where to listen for TLS, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenTls {
    /// Addresses; port 0 takes any free one.
    pub addresses: Vec<SocketAddr>,
    /// The server's identity.
    pub files: TlsFiles,
    /// How long a handshake may take.
    pub handshake_within: Duration,
}

impl ListenTls {
    /// How long a handshake may take where nothing else is said: far more than one across the world
    /// with a slow device does.
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
pub struct Server {
    service: Arc<Service>,
    sender: ControlSender,
    threads: Vec<JoinHandle<()>>,
    listening: Listening,
    /// Which file the Unix socket is: another process may put its own in its place.
    socket_inode: Option<(u64, u64)>,
    heartbeats: Arc<[Heartbeat]>,
    balancer: Arc<Balancer>,
    _maintenance: Maintenance,
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

impl Listening {
    /// As `INFO` shows it: a line for each kind and port.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (kind, addresses) in [("tcp", &self.addresses), ("tls", &self.tls_addresses)] {
            let ports: BTreeSet<u16> = addresses.iter().map(SocketAddr::port).collect();
            for port in ports {
                let bound: String = addresses
                    .iter()
                    .filter(|address| address.port() == port)
                    .map(|address| format!(",bind={}", address.ip()))
                    .collect();
                lines.push(format!("name={kind}{bound},port={port}"));
            }
        }
        lines.extend(self.socket.iter().map(|path| format!("name=unix,bind={}", path.display())));
        lines
    }
}

impl Server {
    /// Listens, and serves `service` on threads of its own.
    ///
    /// # Errors
    ///
    /// An address that cannot be had, or a file of TLS that cannot be used; nothing is served then.
    pub fn start(service: Arc<Service>, listen: &Listen, machine: Machine) -> Result<Self, ServeError> {
        let Machine { duties, idle_cores, panicked } = machine;
        let identity = match &listen.tls {
            Some(tls) => {
                let identity = Identity::of(tls.files.clone(), service.certificate_ends.clone())?;
                Some((identity, tls.handshake_within))
            }
            None => None,
        };
        let tcp = bind(&listen.addresses)?;
        let tls = bind(listen.tls.as_ref().map_or(&[][..], |tls| &tls.addresses))?;
        let unix = listen.socket.as_ref().map(bind_unix).transpose()?;
        let own = |listeners: &[TcpListener]| listeners.iter().filter_map(|own| own.local_addr().ok()).collect();
        let listening = Listening { addresses: own(&tcp), tls_addresses: own(&tls), socket: listen.socket.clone() };
        let (sender, control) = control();
        let (max_loops, first_loops) = match listen.event_loops {
            EventLoops::All(event_loops) => (event_loops.max(1), event_loops.max(1)),
            EventLoops::UpTo(event_loops) => (event_loops.max(1), 1),
        };
        let (mut inboxes, mut event_loops, mut runtimes) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..max_loops {
            let (arrivals, inbox) = mpsc::unbounded_channel();
            let clients = Arc::new(AtomicUsize::new(0));
            inboxes.push(Inbox { arrivals, clients: clients.clone() });
            let mut runtime = Builder::new_current_thread();
            runtime.max_blocking_threads(listen.blocking_threads.max(1)).thread_name(format!("ecotone-wait-{number}"));
            let runtime = of_duty(runtime, duties.as_ref())?;
            runtimes.push(runtime.metrics());
            event_loops.push((runtime, inbox, clients));
        }
        service.statistics.loops.watch(runtimes.clone());
        *service.listeners.lock() = listening.lines();
        let balancer = Arc::new(Balancer::new(service.clone(), inboxes, first_loops));
        let maintenance =
            Maintenance::of(service.keyspace.clone(), Ending(panicked.clone())).map_err(ServeError::Thread)?;
        let heartbeats: Arc<[Heartbeat]> = event_loops.iter().map(|_| Heartbeat::default()).collect();
        let mut server = Self {
            service: service.clone(),
            sender,
            threads: Vec::new(),
            socket_inode: listening.socket.as_deref().and_then(inode_of),
            listening,
            heartbeats: heartbeats.clone(),
            balancer: balancer.clone(),
            _maintenance: maintenance,
        };
        let mut first = Some((tcp, unix, server.sender.clone()));
        let mut scaling = match listen.event_loops {
            EventLoops::UpTo(2..) => Some(balancer.clone().scale(runtimes, idle_cores)),
            _ => None,
        };
        for (number, (runtime, inbox, clients)) in event_loops.into_iter().enumerate() {
            let (service, control, balancer) = (service.clone(), control.clone(), balancer.clone());
            let (uses_io_uring, blocking_threads) = (listen.uses_io_uring, listen.blocking_threads.max(1));
            let (first, scaling, heartbeats) = (first.take(), scaling.take(), heartbeats.clone());
            let thread =
                spawn(format!("ecotone-loop-{number}"), runtime, duties.clone(), panicked.clone(), async move || {
                    let mut background = BackgroundTasks::default();
                    if let Some((tcp, unix, sender)) = first {
                        accept_plain(&mut background, &balancer, tcp, unix, &control);
                        background.begin(sender.pass_on_limits(service.clone(), control.clone()));
                    }
                    if let Some(scaling) = scaling {
                        background.begin(scaling);
                    }
                    background.begin(async move {
                        loop {
                            heartbeats[number].beat(Instant::now());
                            tokio::time::sleep(BEAT).await;
                        }
                    });
                    let event_loop = EventLoop::new(service, balancer, clients, uses_io_uring, blocking_threads);
                    serve_event_loop(event_loop, background, inbox, control).await;
                });
            server.threads.push(thread?);
        }
        if let Some((identity, handshake_within)) = identity {
            let tls_listener = TlsListener { listeners: tls, identity, handshake_within };
            let runtime = of_duty(Builder::new_current_thread(), duties.as_ref())?;
            let thread = spawn("ecotone-tls".into(), runtime, duties, panicked, async move || {
                tls_listener.open(balancer, control).await
            });
            server.threads.push(thread?);
        }
        Ok(server)
    }

    /// Lets the first `event_loops` serve from now on, whether it pays or not: for tests, with
    /// [`EventLoops::All`].
    #[doc(hidden)]
    pub fn use_event_loops(&self, event_loops: usize) {
        self.balancer.use_event_loops(event_loops);
    }

    /// Where it listens.
    pub fn listening(&self) -> &Listening {
        &self.listening
    }

    /// The signs of life of the event loops, about one a second each.
    pub fn heartbeats(&self) -> &Arc<[Heartbeat]> {
        &self.heartbeats
    }

    /// Takes no more connections and requests, sends what is owed, and closes all connections.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.service.stops.store(true, Ordering::Relaxed);
        self.sender.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that serves clients panicked");
            }
        }
        self.service.statistics.loops.watch(Vec::new());
        self.service.listeners.lock().clear();
        if let Some(path) = self.listening.socket.take()
            && self.socket_inode.is_some_and(|own| inode_of(&path) == Some(own))
        {
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
    let bound = remove_left_socket(path).and_then(|()| UnixListener::bind(path)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| ServeError::Listen { address: path.display().to_string(), source })
}

/// Removes a socket that was left by a process that was killed.
///
/// # Errors
///
/// Another process listens on it, or may.
fn remove_left_socket(path: &Path) -> std::io::Result<()> {
    // It does not wait for one that takes no connections.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        Ok(()) | Err(Errno::AGAIN) => Err(std::io::ErrorKind::AddrInUse.into()),
        Err(error) => Err(error.into()),
    }
}

/// Device and number of a file: whether it is still the one that was made.
fn inode_of(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// A runtime whose threads are foreground.
fn of_duty(mut runtime: Builder, duties: Option<&Arc<dyn DutyObserver>>) -> Result<Runtime, ServeError> {
    if let Some((begin, end)) = duties.cloned().zip(duties.cloned()) {
        runtime.on_thread_start(move || begin.begin(Duty::Foreground)).on_thread_stop(move || end.end());
    }
    runtime.enable_all().build().map_err(ServeError::Thread)
}

/// Reports a thread that ends by a panic.
#[derive(Clone)]
struct Ending(Option<Panicked>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(panicked) = self.0.as_ref().filter(|_| std::thread::panicking()) {
            panicked();
        }
    }
}

/// Starts a thread that serves, by `runtime`.
fn spawn<W: Future<Output = ()>>(
    name: String,
    runtime: Runtime,
    duties: Option<Arc<dyn DutyObserver>>,
    panicked: Option<Panicked>,
    work: impl FnOnce() -> W + Send + 'static,
) -> Result<JoinHandle<()>, ServeError> {
    let run = move || {
        // First, so that it is dropped last: what the thread held is free when its panic is
        // reported.
        let _ending = Ending(panicked);
        if let Some(duties) = &duties {
            duties.begin(Duty::Foreground);
        }
        LocalSet::new().block_on(&runtime, async move { work().await });
        // Clients had their time. What still waits for the store may wait for as long as the store
        // has no room.
        runtime.shutdown_background();
        if let Some(duties) = &duties {
            duties.end();
        }
    };
    std::thread::Builder::new().name(name).spawn(run).map_err(ServeError::Thread)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails where it is surprised

    use super::*;

    #[test]
    fn a_thread_that_panics_is_told_of_and_one_that_ends_is_not() {
        let (sender, told) = std::sync::mpsc::channel();
        let panicked: Panicked = Arc::new(move || sender.send(()).unwrap());
        let runtime = || of_duty(Builder::new_current_thread(), None).unwrap();
        let ends = spawn("ends".into(), runtime(), None, Some(panicked.clone()), async || {}).unwrap();
        ends.join().unwrap();
        assert!(told.try_recv().is_err());
        let panics =
            spawn("panics".into(), runtime(), None, Some(panicked), async || panic!("as a test asks")).unwrap();
        panics.join().unwrap_err();
        told.try_recv().unwrap();
    }
}
