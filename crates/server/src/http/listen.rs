//! Connections, and what they may take.
//!
//! A connection has one request and is closed after its answer. Each ends within [`HEAD_TIMEOUT`],
//! [`SEND_TIMEOUT`] and [`LINGER_TIMEOUT`] together, whatever its other end does, and sooner where
//! its [slot](super::slots) is needed.
//!
//! hyper reads the request and writes the answer. What it cannot read it would refuse itself,
//! without a word why or not at all; [`GatedStream`] discards such a refusal, and ours is sent
//! instead.

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::answer::{answer, malformed, text};
use super::slots::{ConnectionProgress, ConnectionSlot, ConnectionSlots};
use super::status::ServerStatus;
use crate::error::{Error, Result};
use crate::options::HttpOptions;

/// Bytes of a request's head. Programs that watch send a tenth of it.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// Time for the whole head to come.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for the answer to be taken.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the other end to close after the answer. Closed before it has read all that was sent,
/// it would lose the answer.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// What is read and discarded meanwhile.
const MAX_LINGERING_BYTES: usize = 64 * 1024;

/// After an error of `accept` the next try waits so long: it is most often that there are no more
/// file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Answers until it is dropped.
pub(crate) struct HttpServer {
    addresses: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Listens, and answers by `status`. `None`: the address is taken, and nobody asked for it.
    pub(crate) fn start(options: &HttpOptions, status: Arc<ServerStatus>) -> Result<Option<HttpServer>> {
        let mut listeners = Vec::new();
        for address in &options.addresses {
            match bind(address) {
                Ok(listener) => listeners.push(listener),
                Err(error) if options.is_default && error.kind() == io::ErrorKind::AddrInUse => {
                    tracing::warn!(
                        %address,
                        "another process has the default address for metrics and health checks, so there are none of this server: \
                         set http.listen"
                    );
                    return Ok(None);
                }
                Err(error) => {
                    return Err(Error::Configuration(format!(
                        "http: cannot listen on {address}: {error}; choose another address (--http or http.listen), or end the \
                         process that has it"
                    )));
                }
            }
        }
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let failed = |source| Error::Thread { what: "metrics and health checks", source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopping) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("ecotone-http".into())
            .spawn(move || runtime.block_on(accept_all(listeners, status, stopping)))
            .map_err(failed)?;
        Ok(Some(HttpServer { addresses, stop, thread: Some(thread) }))
    }

    /// Where it listens.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for metrics and health checks panicked");
        }
    }
}

fn bind(address: &SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns when it is to stop; connections that are open are cut.
async fn accept_all(listeners: Vec<StdListener>, status: Arc<ServerStatus>, mut stopping: watch::Receiver<bool>) {
    let slots = ConnectionSlots::<AbortHandle>::new();
    for listener in listeners {
        let (status, slots) = (status.clone(), slots.clone());
        tokio::spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        let status = status.clone();
                        let evicted = slots.take(peer.ip(), |slot| {
                            tokio::spawn(async move { converse(stream, &status, &slot).await }).abort_handle()
                        });
                        if let Some(evicted) = evicted {
                            evicted.abort();
                        }
                        // A request that came with its connection is read before another connection
                        // can take its slot.
                        tokio::task::yield_now().await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection for metrics or a health check could not be taken");
                        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    }
                }
            }
        });
    }
    let _ = stopping.wait_for(|stop| *stop).await;
}

async fn converse(stream: TcpStream, status: &ServerStatus, slot: &ConnectionSlot<AbortHandle>) {
    let (is_answering, head_came) = (AtomicBool::new(false), Notify::new());
    let service = service_fn(|request: Request<Incoming>| {
        slot.reaches(ConnectionProgress::Asked);
        is_answering.store(true, Ordering::Relaxed);
        head_came.notify_one();
        ready(Ok::<_, Infallible>(answer(status, &request)))
    });
    let mut connection = http1::Builder::new()
        // Who has said all may close its side and still wait for the answer.
        .half_close(true)
        .keep_alive(false)
        .title_case_headers(true)
        .auto_date_header(false)
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(GatedStream { stream, is_open: &is_answering }, service);
    let deadline = async {
        if timeout(HEAD_TIMEOUT, head_came.notified()).await.is_ok() {
            tokio::time::sleep(SEND_TIMEOUT).await;
        }
    };
    let outcome = tokio::select! {
        outcome = poll_fn(|context| connection.poll_without_shutdown(context)) => Some(outcome),
        () = deadline => None,
    };
    let parts = connection.into_parts();
    let mut stream = parts.io.stream;
    if !is_answering.load(Ordering::Relaxed) {
        slot.reaches(ConnectionProgress::Asked);
        let Some(refusal) = refusal(outcome.map(|outcome| outcome.err()), &parts.read_buf) else { return };
        let refusal = on_the_wire(&refusal, parts.read_buf.starts_with(b"HEAD "));
        if !matches!(timeout(SEND_TIMEOUT, stream.write_all(&refusal)).await, Ok(Ok(()))) {
            return;
        }
    } else if !matches!(outcome, Some(Ok(()))) {
        return;
    }
    if stream.shutdown().await.is_ok() {
        slot.reaches(ConnectionProgress::Answered);
        let _ = timeout(LINGER_TIMEOUT, discard(&mut stream)).await;
    }
}

/// What is said of a request that could not be read from `head`: why, or `None` for the deadline.
/// Nothing is said where the other end is gone.
fn refusal(failure: Option<Option<hyper::Error>>, head: &[u8]) -> Option<Response<String>> {
    let Some(failure) = failure else {
        return Some(text(StatusCode::REQUEST_TIMEOUT, "the request has not come in time\n"));
    };
    let failure = failure?;
    let first_line = head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let version = first_line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    let is_readable = matches!(version, b"HTTP/1.0" | b"HTTP/1.1");
    if failure.is_parse_too_large() {
        Some(text(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too long\n"))
    } else if !is_readable && version.starts_with(b"HTTP/") {
        Some(text(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.0 and HTTP/1.1 are spoken here\n"))
    } else if failure.is_parse() {
        let why = if is_readable { "its head cannot be read" } else { "the first line is not METHOD TARGET VERSION" };
        Some(malformed(why))
    } else {
        None
    }
}

/// An answer that hyper does not send: it sends nothing without a request that it can read.
fn on_the_wire(answer: &Response<String>, is_head: bool) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {}\r\nContent-Length: {}\r\n", answer.status(), answer.body().len()).into_bytes();
    for (name, value) in answer.headers() {
        bytes.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend_from_slice(b"\r\n");
    if !is_head {
        bytes.extend_from_slice(answer.body().as_bytes());
    }
    bytes
}

async fn discard(stream: &mut TcpStream) {
    let mut part = [0; 4096];
    let mut discarded = 0;
    while discarded < MAX_LINGERING_BYTES {
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => return,
            Ok(bytes) => discarded += bytes,
        }
    }
}

/// A connection as hyper reads and writes it. What it writes before the gate is open is discarded.
struct GatedStream<'a> {
    stream: TcpStream,
    is_open: &'a AtomicBool,
}

impl Read for GatedStream<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut part = [0; 4096];
        let capacity = buffer.remaining().min(part.len());
        let mut read = ReadBuf::new(&mut part[..capacity]);
        let outcome = Pin::new(&mut self.stream).poll_read(context, &mut read);
        buffer.put_slice(read.filled());
        outcome
    }
}

impl Write for GatedStream<'_> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.is_open.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
