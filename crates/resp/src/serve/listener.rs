//! Takes connections, deals them out to the lanes, and ends them.
//!
//! Threads: one for each lane; the first one takes connections as well. Each has a bounded number of threads that may wait
//! ([`Listen::waiting_threads`]); requests beyond that wait for one of them, and their clients with them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_engine::{Duty, DutyObserver};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::connection::{Connection, Ended};
use super::lane::Lane;
use super::pulse::{BEAT, Pulse};
use crate::client::{Client, ClientInfo, Then};
use crate::keyspace::Upkeep;
use crate::service::Service;

/// How long clients may take to get their last replies when the server stops.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// After an error of `accept` the next try waits so long: it is most often that there are no more file descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Where and how to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Addresses; port 0 takes any free one.
    pub addresses: Vec<SocketAddr>,
    /// A Unix socket besides.
    pub socket: Option<PathBuf>,
    /// Threads that serve clients: one for each core that is to serve.
    pub lanes: usize,
    /// Threads of each lane that may wait for the device.
    pub waiting_threads: usize,
}

impl Default for Listen {
    fn default() -> Self {
        Self { addresses: Vec::new(), socket: None, lanes: 1, waiting_threads: 16 }
    }
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
    /// The system gives no more threads.
    #[error("cannot start a thread to serve clients: {0}")]
    Thread(std::io::Error),
}

/// Serves until it is stopped.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    lanes: Vec<JoinHandle<()>>,
    listening: Listening,
    pulses: Arc<[Pulse]>,
    _upkeep: Upkeep,
}

/// Where it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// Addresses, with their ports.
    pub addresses: Vec<SocketAddr>,
    /// The Unix socket.
    pub socket: Option<PathBuf>,
}

enum Stream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

struct Newcomer {
    stream: Stream,
    info: Arc<ClientInfo>,
}

/// A lane as those see it who deal out clients.
struct LaneSeat {
    newcomers: mpsc::UnboundedSender<Newcomer>,
    clients: Arc<AtomicUsize>,
}

impl Server {
    /// Listens, and serves `service` on threads of its own. `duties` is told that they are [`Duty::Foreground`].
    ///
    /// # Errors
    ///
    /// An address that cannot be had; nothing is served then.
    pub fn start(
        service: Arc<Service>,
        listen: &Listen,
        duties: Option<Arc<dyn DutyObserver>>,
    ) -> Result<Self, ServeError> {
        let refused = |address: String| move |source| ServeError::Listen { address, source };
        let mut tcp = Vec::new();
        for address in &listen.addresses {
            let listener = std::net::TcpListener::bind(address).map_err(refused(address.to_string()))?;
            listener.set_nonblocking(true).map_err(refused(address.to_string()))?;
            tcp.push(listener);
        }
        let mut unix = None;
        if let Some(path) = &listen.socket {
            // Left by a process that was killed: who holds the store's lock is the one to have it.
            let _ = std::fs::remove_file(path);
            let listener = std::os::unix::net::UnixListener::bind(path).map_err(refused(path.display().to_string()))?;
            listener.set_nonblocking(true).map_err(refused(path.display().to_string()))?;
            unix = Some(listener);
        }
        let addresses = tcp.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let listening = Listening { addresses, socket: listen.socket.clone() };
        let (stop, stopping) = watch::channel(false);
        let mut seats = Vec::new();
        let mut inboxes = Vec::new();
        for _ in 0..listen.lanes.max(1) {
            let (newcomers, inbox) = mpsc::unbounded_channel();
            let clients = Arc::new(AtomicUsize::new(0));
            seats.push(LaneSeat { newcomers, clients: clients.clone() });
            inboxes.push((inbox, clients));
        }
        let seats = Arc::new(seats);
        let upkeep = Upkeep::of(service.keyspace.clone()).map_err(ServeError::Thread)?;
        let pulses: Arc<[Pulse]> = seats.iter().map(|_| Pulse::default()).collect();
        let mut server = Self { stop, lanes: Vec::new(), listening, pulses: pulses.clone(), _upkeep: upkeep };
        let mut listeners = Some((tcp, unix));
        for (number, (inbox, clients)) in inboxes.into_iter().enumerate() {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime
                .enable_all()
                .max_blocking_threads(listen.waiting_threads.max(1))
                .thread_name(format!("ecotone-wait-{number}"));
            if let Some((begin, end)) = duties.clone().zip(duties.clone()) {
                runtime.on_thread_start(move || begin.begin(Duty::Foreground)).on_thread_stop(move || end.end());
            }
            let runtime = runtime.build().map_err(ServeError::Thread)?;
            let duties = duties.clone();
            let (service, stopping, seats) = (service.clone(), stopping.clone(), seats.clone());
            let (listeners, pulses) = (listeners.take(), pulses.clone());
            let thread = std::thread::Builder::new()
                .name(format!("ecotone-lane-{number}"))
                .spawn(move || {
                    if let Some(duties) = &duties {
                        duties.begin(Duty::Foreground);
                    }
                    LocalSet::new().block_on(&runtime, async move {
                        if let Some((tcp, unix)) = listeners {
                            accept_all(&service, &seats, tcp, unix, &stopping);
                        }
                        tokio::task::spawn_local(async move {
                            loop {
                                pulses[number].beat(Instant::now());
                                tokio::time::sleep(BEAT).await;
                            }
                        });
                        serve_lane(Lane::new(service, clients), inbox, stopping).await;
                    });
                    if let Some(duties) = &duties {
                        duties.end();
                    }
                })
                .map_err(ServeError::Thread)?;
            server.lanes.push(thread);
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
        let _ = self.stop.send(true);
        for lane in self.lanes.drain(..) {
            if lane.join().is_err() {
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

fn accept_all(
    service: &Arc<Service>,
    seats: &Arc<Vec<LaneSeat>>,
    tcp: Vec<std::net::TcpListener>,
    unix: Option<std::os::unix::net::UnixListener>,
    stopping: &watch::Receiver<bool>,
) {
    for listener in tcp {
        let (service, seats, mut stopping) = (service.clone(), seats.clone(), stopping.clone());
        tokio::task::spawn_local(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = stopping.wait_for(|stop| *stop) => return,
                };
                match accepted.and_then(|(stream, address)| Ok((stream.local_addr()?, stream.into_std()?, address))) {
                    Ok((local, stream, address)) => {
                        // Without it small replies wait for an acknowledgement of those before.
                        let _ = stream.set_nodelay(true);
                        seat(&service, &seats, Stream::Tcp(stream), address.to_string(), local.to_string());
                    }
                    Err(error) => rest_after(&error).await,
                }
            }
        });
    }
    if let Some(listener) = unix {
        let (service, seats, mut stopping) = (service.clone(), seats.clone(), stopping.clone());
        tokio::task::spawn_local(async move {
            let Ok(listener) = UnixListener::from_std(listener) else { return };
            let path = listener.local_addr().ok().and_then(|own| Some(own.as_pathname()?.display().to_string()));
            let path = path.unwrap_or_default();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = stopping.wait_for(|stop| *stop) => return,
                };
                match accepted.and_then(|(stream, _)| stream.into_std()) {
                    Ok(stream) => {
                        let address = format!("{path}:0");
                        seat(&service, &seats, Stream::Unix(stream), address.clone(), address);
                    }
                    Err(error) => rest_after(&error).await,
                }
            }
        });
    }
}

async fn rest_after(error: &std::io::Error) {
    tracing::warn!(%error, "a connection could not be taken");
    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
}

fn seat(service: &Service, seats: &[LaneSeat], stream: Stream, address: String, local_address: String) {
    let most = service.limits.read().clients;
    let Some(info) = service.clients.add(address, local_address, most) else {
        service.statistics.refused.fetch_add(1, Ordering::Relaxed);
        refuse(stream);
        return;
    };
    service.statistics.connections.fetch_add(1, Ordering::Relaxed);
    let id = info.id;
    let least = seats.iter().min_by_key(|seat| seat.clients.load(Ordering::Relaxed));
    let Some(seat) = least else { return };
    seat.clients.fetch_add(1, Ordering::Relaxed);
    if seat.newcomers.send(Newcomer { stream, info }).is_err() {
        // It stops.
        service.clients.remove(id);
    }
}

fn refuse(stream: Stream) {
    use std::io::Write;
    // What does not fit into the socket's empty buffer is not sent.
    let _ = match stream {
        Stream::Tcp(mut stream) => stream.write_all(b"-ERR max number of clients reached\r\n"),
        Stream::Unix(mut stream) => stream.write_all(b"-ERR max number of clients reached\r\n"),
    };
}

async fn serve_lane(lane: Rc<Lane>, mut inbox: mpsc::UnboundedReceiver<Newcomer>, mut stopping: watch::Receiver<bool>) {
    tokio::task::spawn_local(lane.clone().commit_groups());
    tokio::task::spawn_local(lane.clone().sync_groups());
    let served = Rc::new(tokio::sync::Notify::new());
    loop {
        let newcomer = tokio::select! {
            newcomer = inbox.recv() => newcomer,
            _ = stopping.wait_for(|stop| *stop) => None,
        };
        let Some(Newcomer { stream, info }) = newcomer else { break };
        let (lane, stopping, served) = (lane.clone(), stopping.clone(), served.clone());
        tokio::task::spawn_local(async move {
            let id = info.id;
            match stream {
                Stream::Tcp(stream) => match TcpStream::from_std(stream) {
                    Ok(stream) => serve(&lane, stream, info, stopping).await,
                    Err(error) => tracing::warn!(%error, "a connection could not be served"),
                },
                Stream::Unix(stream) => match UnixStream::from_std(stream) {
                    Ok(stream) => serve(&lane, stream, info, stopping).await,
                    Err(error) => tracing::warn!(%error, "a connection could not be served"),
                },
            }
            lane.service.clients.remove(id);
            lane.clients.fetch_sub(1, Ordering::Relaxed);
            served.notify_one();
        });
    }
    let all_gone = async {
        while lane.clients.load(Ordering::Relaxed) > 0 {
            served.notified().await;
        }
    };
    if timeout(STOP_WITHIN, all_gone).await.is_err() {
        tracing::warn!(
            clients = lane.clients.load(Ordering::Relaxed),
            "clients did not take their last replies in time"
        );
    }
}

/// Serves one client until it goes, or is made to.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    lane: &Rc<Lane>,
    mut stream: S,
    info: Arc<ClientInfo>,
    mut stopping: watch::Receiver<bool>,
) {
    let limits = lane.service.limits.read().clone();
    let client = Client::new(info.clone(), limits.password.is_none());
    let mut connection = Box::new(Connection::new(client, limits.clone()));
    let statistics = &lane.service.statistics;
    loop {
        let received = tokio::select! {
            biased;
            () = info.killed.notified() => break,
            // Before what is received: who always sends would never be stopped.
            _ = stopping.wait_for(|stop| *stop) => break,
            received = receive(lane, &mut stream, &mut connection, limits.idle) => received,
        };
        let Some(bytes) = received else { break };
        info.is_active();
        statistics.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut closes = false;
        loop {
            let began = Instant::now();
            let ended;
            (connection, ended) = lane.round(connection).await;
            statistics.responses.record(began.elapsed());
            closes |= ended == Ended::Closes || info.is_killed.load(Ordering::Acquire);
            if let Then::Rest(rest) = std::mem::take(&mut connection.client.then) {
                // A rest may be long, and an error here is met again below.
                let _ = timeout(limits.send, stream.write_all(connection.before_rest())).await;
                connection.has_rested();
                tokio::select! {
                    () = tokio::time::sleep(rest) => {}
                    () = info.killed.notified() => closes = true,
                    _ = stopping.wait_for(|stop| *stop) => closes = true,
                }
            }
            if !connection.reply.is_empty() {
                let bytes = connection.reply.bytes();
                info.output_bytes.store(bytes.len(), Ordering::Relaxed);
                if !matches!(timeout(limits.send, stream.write_all(bytes)).await, Ok(Ok(()))) {
                    closes = true;
                }
                statistics.bytes_out.fetch_add(connection.reply.len() as u64, Ordering::Relaxed);
                info.output_bytes.store(0, Ordering::Relaxed);
                connection.sent();
            }
            if closes || ended != Ended::Full {
                break;
            }
        }
        if closes {
            break;
        }
    }
    connection.client.unwatch(&lane.service.keyspace);
    // TLS says that it ends.
    let _ = timeout(limits.send, stream.shutdown()).await;
}

/// Receives more bytes of a client: how many. `None` at its end.
async fn receive<S: AsyncRead + Unpin>(
    lane: &Lane,
    stream: &mut S,
    connection: &mut Connection,
    idle: Option<Duration>,
) -> Option<usize> {
    let reading = std::future::poll_fn(|context| {
        let mut scratch = lane.scratch.borrow_mut();
        let mut into = ReadBuf::new(&mut scratch);
        match Pin::new(&mut *stream).poll_read(context, &mut into) {
            Poll::Ready(Ok(())) if !into.filled().is_empty() => {
                connection.receive(into.filled());
                Poll::Ready(Some(into.filled().len()))
            }
            // The end, or an error, which is one.
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    match idle {
        None => reading.await,
        Some(idle) => timeout(idle, reading).await.ok().flatten(),
    }
}
