//! Connections, and what they may take.
//!
//! A connection has one request and is closed after its answer. Each ends within [`HEAD_WITHIN`], [`SEND_WITHIN`] and
//! [`LINGER`] together, whatever its other end does, and sooner where there is no [seat](super::seats) for another one.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::answer::answer;
use super::face::Face;
use super::head::{Refusal, end, is_head, parse};
use super::seats::{Progress, Seat, Seats};
use crate::error::{Error, Result};
use crate::options::HttpOptions;

/// Bytes of a request's head. Programs that watch send a tenth of it.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// Time for the whole head to come.
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// Time for the answer to be taken.
const SEND_WITHIN: Duration = Duration::from_secs(10);

/// Time for the other end to close after the answer. Closed before it has read all that was sent, it would lose the answer.
const LINGER: Duration = Duration::from_secs(1);

/// What is read and thrown away meanwhile.
const MAX_LINGERING_BYTES: usize = 64 * 1024;

/// After an error of `accept` the next try waits so long: it is most often that there are no more file descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Answers until it is dropped.
pub(crate) struct HttpServer {
    addresses: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Listens, and tells what `face` has. `None`: the address is taken, and nobody asked for it.
    pub(crate) fn start(options: &HttpOptions, face: Arc<Face>) -> Result<Option<HttpServer>> {
        let mut listeners = Vec::new();
        for address in &options.addresses {
            match bind(address) {
                Ok(listener) => listeners.push(listener),
                Err(error) if options.is_default && error.kind() == std::io::ErrorKind::AddrInUse => {
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
            .spawn(move || runtime.block_on(accept_all(listeners, face, stopping)))
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

fn bind(address: &SocketAddr) -> std::io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns when it is to stop; connections that are open are cut.
async fn accept_all(listeners: Vec<StdListener>, face: Arc<Face>, mut stopping: watch::Receiver<bool>) {
    let seats = Seats::<AbortHandle>::new();
    for listener in listeners {
        let (face, seats) = (face.clone(), seats.clone());
        tokio::spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        let face = face.clone();
                        let leaves = seats.take(peer.ip(), |seat| {
                            tokio::spawn(async move { converse(stream, &face, &seat).await }).abort_handle()
                        });
                        if let Some(leaves) = leaves {
                            leaves.abort();
                        }
                        // A request that came with its connection is read before another connection can take its seat.
                        tokio::task::yield_now().await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection for metrics or a health check could not be taken");
                        tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                    }
                }
            }
        });
    }
    let _ = stopping.wait_for(|stop| *stop).await;
}

async fn converse(mut stream: TcpStream, face: &Face, seat: &Seat<AbortHandle>) {
    let mut head = Vec::with_capacity(1024);
    let received = match timeout(HEAD_WITHIN, receive(&mut stream, &mut head)).await {
        Ok(Some(received)) => received,
        // It is gone, or was never there.
        Ok(None) => return,
        Err(_) => Err(Refusal::TooSlow),
    };
    seat.reaches(Progress::Asked);
    let request = received.and_then(|end| parse(&head[..end]));
    let answer = answer(face, request.as_ref().map_err(|refusal| (*refusal, is_head(&head))));
    if !matches!(timeout(SEND_WITHIN, stream.write_all(&answer)).await, Ok(Ok(()))) || stream.shutdown().await.is_err()
    {
        return;
    }
    seat.reaches(Progress::Answered);
    let _ = timeout(LINGER, throw_away(&mut stream)).await;
}

/// Reads into `head` until it is whole: where it ends. `None` if the other end closes before.
async fn receive(stream: &mut TcpStream, head: &mut Vec<u8>) -> Option<std::result::Result<usize, Refusal>> {
    loop {
        let mut part = [0; 1024];
        let bytes = stream.read(&mut part).await.ok()?;
        if bytes == 0 {
            return None;
        }
        head.extend_from_slice(&part[..bytes]);
        if let Some(end) = end(head) {
            return Some(Ok(end));
        }
        if head.len() >= MAX_HEAD_BYTES {
            return Some(Err(Refusal::TooLong));
        }
    }
}

async fn throw_away(stream: &mut TcpStream) {
    let mut part = [0; 4096];
    let mut thrown_away = 0;
    while thrown_away < MAX_LINGERING_BYTES {
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => return,
            Ok(bytes) => thrown_away += bytes,
        }
    }
}
