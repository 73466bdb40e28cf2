//! Accepts connections of other servers: those for files go to threads of their own, those for
//! calls to the services, those that ask for a certificate to who answers them.
//!
//! With an identity each begins with a handshake of TLS, whose protocol name says what it is for;
//! without, in plain text, by its first bytes. The number of connections for calls is bounded: each
//! holds a permit until it ends. Where servers have identities a permit is for those that have
//! shown theirs: strangers have few places of their own ([`crate::under_way`]), and take none from
//! them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ecotone_identity::tls::Protocol;
use ecotone_identity::{HandshakeFailure, Identity};
use rustls::StreamOwned;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use crate::enrollment::{self, Enrollment};
use crate::file_server::{FileServer, MAGIC};
use crate::file_stream::FileStream;
use crate::peers::PeerConnection;
use crate::security::{Accepted, Security};
use crate::stream::Stream;
use crate::under_way::Place;

/// How long to wait for the rest of a greeting that came in parts.
const GREETING_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long to wait after a connection could not be accepted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Where connections lead, and what bounds them.
#[derive(Clone)]
pub struct Accepting {
    /// Who may connect.
    pub security: Arc<Security>,
    /// Connections for files.
    pub file_server: Arc<FileServer>,
    /// Connections for calls.
    pub for_calls: mpsc::Sender<io::Result<CountedStream>>,
    /// Connections of servers that ask for a certificate.
    pub enrollment: Arc<dyn Enrollment>,
    /// Connections for calls at a time.
    pub max_connections: usize,
    /// Longest wait until a connection in plain text has said what it is for, or one that asks for
    /// a certificate has its answer.
    pub greeting_timeout: Duration,
}

/// Accepts connections until the run time ends.
pub async fn accept(listener: TcpListener, accepting: Accepting) {
    let permits = Arc::new(Semaphore::new(accepting.max_connections));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, mostly; it passes.
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let (accepting, permits) = (accepting.clone(), permits.clone());
        match accepting.security.identity().cloned() {
            Some(identity) => {
                // Before the next one is accepted, so that all that are accepted are bounded.
                let place = accepting.security.begin(from.ip());
                tokio::spawn(async move {
                    if let Err(failure) = accepting.take_encrypted(&identity, (stream, place), &permits).await {
                        debug!(%from, reason = failure.name(), "a connection is refused");
                    }
                });
            }
            None => {
                let Ok(permit) = permits.try_acquire_owned() else {
                    debug!("too many connections; one is refused");
                    continue;
                };
                tokio::spawn(async move { accepting.take_plain(stream, permit).await });
            }
        }
    }
}

impl Accepting {
    async fn take_encrypted(
        &self,
        identity: &Arc<Identity>,
        (stream, place): (TcpStream, Place),
        permits: &Arc<Semaphore>,
    ) -> Result<(), HandshakeFailure> {
        let Accepted { protocol, stream, connection, place } = self.security.accept(identity, stream, place).await?;
        match (protocol, connection) {
            (Protocol::Calls, Some(connection)) => {
                let Ok(permit) = permits.clone().try_acquire_owned() else {
                    self.security.count(HandshakeFailure::OverQuota);
                    return Err(HandshakeFailure::OverQuota);
                };
                let stream = Stream::Tls(Box::new((*stream).into()));
                let counted = CountedStream { stream, caller: Caller(Some(connection)), _permit: permit };
                let _ = self.for_calls.send(Ok(counted)).await;
            }
            (Protocol::Files, Some(connection)) => {
                let (socket, session) = stream.into_inner();
                let socket = socket.into_std().map_err(|_| HandshakeFailure::Closed)?;
                socket.set_nonblocking(false).map_err(|_| HandshakeFailure::Closed)?;
                let stream = FileStream::Accepted(Box::new(StreamOwned::new(session, socket)));
                self.file_server.serve(stream, Some(connection));
            }
            (Protocol::Enroll, connection) => {
                let peer = connection.as_ref().map(|connection| connection.peer().clone());
                let served = enrollment::serve(stream, self.enrollment.clone(), peer);
                let served = tokio::time::timeout(self.greeting_timeout, served);
                let served = match place {
                    Some(mut place) => place.hold(served).await.ok_or(HandshakeFailure::TooMany),
                    None => Ok(served.await),
                };
                match served {
                    Ok(Ok(Ok(true))) => {}
                    Ok(Ok(Ok(false))) => self.security.count(HandshakeFailure::NotEnrolled),
                    Ok(Ok(Err(_)) | Err(_)) => debug!("a connection that asked for a certificate ended early"),
                    // What was asked for goes on; who asks again has the same answer.
                    Err(failure) => {
                        self.security.count(failure);
                        return Err(failure);
                    }
                }
            }
            // Nobody gets so far without a certificate.
            (Protocol::Calls | Protocol::Files, None) => return Err(HandshakeFailure::NoCertificate),
        }
        Ok(())
    }

    async fn take_plain(&self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        let mut first = [0; MAGIC.len()];
        let greeting = async {
            // Either side speaks first on a new connection, and both greetings are longer than
            // this.
            while stream.peek(&mut first).await? < first.len() {
                tokio::time::sleep(GREETING_POLL_INTERVAL).await;
            }
            stream.set_nodelay(true)
        };
        match tokio::time::timeout(self.greeting_timeout, greeting).await {
            Ok(Ok(())) if first == MAGIC => {
                let blocking = stream.into_std().and_then(|stream| {
                    stream.set_nonblocking(false)?;
                    Ok(stream)
                });
                match blocking {
                    Ok(stream) => self.file_server.serve(FileStream::Plain(stream), None),
                    Err(error) => debug!(%error, "a connection for files was lost"),
                }
            }
            Ok(Ok(())) => {
                let counted = CountedStream { stream: Stream::Plain(stream), caller: Caller(None), _permit: permit };
                let _ = self.for_calls.send(Ok(counted)).await;
            }
            Ok(Err(_)) | Err(_) => debug!("a connection ended before it said anything"),
        }
    }
}

/// Who makes a call: an extension of each request. `None` in plain text, where nobody says.
#[derive(Clone)]
pub struct Caller(pub Option<Arc<PeerConnection>>);

/// A connection for calls, and its permit.
pub struct CountedStream {
    stream: Stream,
    caller: Caller,
    _permit: OwnedSemaphorePermit,
}

impl Connected for CountedStream {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
