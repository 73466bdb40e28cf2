//! Connections to other servers, kept open and checked by a handshake.
//!
//! One HTTP/2 connection per peer carries everything. A connection that failed is dropped; the next
//! use opens a new one. Where the transport reconnects by itself there is no handshake: whether a
//! restarted peer speaks this version is checked by each call (see [`crate::protocol`]); who it is
//! is checked whenever a connection is opened.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ecotone_identity::Identity;
use ecotone_identity::tls::Protocol;
use ecotone_types::ServerId;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Result, root_cause};
use crate::peers::PeerConnection;
use crate::protocol::wire::peer_client::PeerClient;
use crate::protocol::wire::{HelloReply, HelloRequest};
use crate::protocol::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION, failed_call};
use crate::security::Security;
use crate::stream::Stream;

/// Bytes in flight on one stream: enough that a range is never cut by the window.
pub const STREAM_WINDOW_BYTES: u32 = MAX_MESSAGE_BYTES as u32;
/// Bytes in flight on one connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 2 * STREAM_WINDOW_BYTES;
/// HTTP/2 frames large enough that their headers do not count.
pub const FRAME_BYTES: u32 = 256 << 10;

/// How long this side waits for the other.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a connection and its handshake.
    pub connect: Duration,
    /// For one range of a file.
    pub read: Duration,
    /// For any sign of life, before the peer is taken for dead.
    pub silence: Duration,
}

/// Where a connection leads: an address, and the server that must be there; `None`: any of the
/// federation.
type Destination = (String, Option<ServerId>);

/// Open connections by destination. Bounded by the number of servers of the federation: see
/// [`Connections::keep_only`].
pub struct Connections {
    own: ServerId,
    timeouts: Timeouts,
    security: Arc<Security>,
    by_destination: Mutex<HashMap<Destination, Channel>>,
}

impl Connections {
    /// No connections yet, of the server called `own`.
    pub fn new(own: ServerId, timeouts: Timeouts, security: Arc<Security>) -> Connections {
        Connections { own, timeouts, security, by_destination: Mutex::default() }
    }

    /// The connection to `address`, opened and greeted if need be. Where servers have identities it
    /// must be the server called `expected`, if one is expected.
    pub async fn to(&self, address: &str, expected: Option<&ServerId>) -> Result<Channel> {
        let destination = (address.to_owned(), expected.cloned());
        if let Some(channel) = self.by_destination.lock().get(&destination) {
            return Ok(channel.clone());
        }
        let (channel, _) = self.greet(address, expected).await?;
        self.by_destination.lock().insert(destination, channel.clone());
        Ok(channel)
    }

    /// The connection to `address` if one is open, of whichever server was expected there.
    pub fn if_open(&self, address: &str) -> Option<Channel> {
        self.by_destination.lock().get(&(address.to_owned(), None)).cloned()
    }

    /// Opens a new connection and shakes hands.
    pub async fn greet(&self, address: &str, expected: Option<&ServerId>) -> Result<(Channel, HelloReply)> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Error::Address(format!("{address:?} is no address of a server (host:port): {error}")))?
            .connect_timeout(self.timeouts.connect)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(self.timeouts.silence / 2)
            .keep_alive_timeout(self.timeouts.silence)
            .keep_alive_while_idle(true);
        let connect = async {
            let connected = match self.security.identity() {
                Some(identity) => {
                    let connector = Connector {
                        security: self.security.clone(),
                        identity: identity.clone(),
                        address: address.to_owned(),
                        expected: expected.cloned(),
                    };
                    endpoint.connect_with_connector(connector).await
                }
                None => endpoint.connect().await,
            };
            let channel = connected.map_err(|error| Error::unreachable(address, root_cause(&error)))?;
            let request = HelloRequest { protocol_version: PROTOCOL_VERSION, server: self.own.as_str().to_owned() };
            let reply = PeerClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .hello(request)
                .await
                .map_err(|status| failed_call(address, &status))?
                .into_inner();
            if reply.protocol_version != PROTOCOL_VERSION {
                return Err(Error::Version {
                    peer: address.to_owned(),
                    theirs: reply.protocol_version,
                    ours: PROTOCOL_VERSION,
                });
            }
            Ok((channel, reply))
        };
        tokio::time::timeout(2 * self.timeouts.connect, connect)
            .await
            .map_err(|_| Error::unreachable(address, "no handshake in time"))?
    }

    /// Replaces each open connection by a new one, made with the certificate of now. Calls under
    /// way on the old ones go on; those to servers that do not answer are kept.
    pub async fn renew(&self) {
        let open: Vec<Destination> = self.by_destination.lock().keys().cloned().collect();
        for (address, expected) in open {
            if let Ok((channel, _)) = self.greet(&address, expected.as_ref()).await
                && let Some(there) = self.by_destination.lock().get_mut(&(address, expected))
            {
                *there = channel;
            }
        }
    }

    /// Forgets the connections to addresses where no server listens any more. Calls under way on
    /// them go on.
    pub fn keep_only(&self, is_known: impl Fn(&str) -> bool) {
        self.by_destination.lock().retain(|(address, _), _| is_known(address));
    }

    /// Forgets the connections to `address` after a failure.
    pub fn forget(&self, address: &str) {
        self.by_destination.lock().retain(|(there, _), _| there != address);
    }
}

/// Opens an encrypted connection, also where the channel reconnects by itself.
struct Connector {
    security: Arc<Security>,
    identity: Arc<Identity>,
    address: String,
    expected: Option<ServerId>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ListedStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<ListedStream>>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let (security, identity) = (self.security.clone(), self.identity.clone());
        let (address, expected) = (self.address.clone(), self.expected.clone());
        Box::pin(async move {
            let (stream, connection) = security.connect(&identity, &address, Protocol::Calls, expected).await?;
            Ok(TokioIo::new(ListedStream { stream: Stream::Tls(stream), security, _connection: connection }))
        })
    }
}

/// A connection that is listed among those of its peer.
struct ListedStream {
    stream: Stream,
    security: Arc<Security>,
    _connection: Arc<PeerConnection>,
}

impl AsyncRead for ListedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read {
            self.security.note_refusal(error);
        }
        read
    }
}

impl AsyncWrite for ListedStream {
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
