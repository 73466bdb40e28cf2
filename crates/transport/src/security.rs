//! Who may connect: handshakes of both sides, counted, and the open connections that they led to.
//!
//! A server with an identity speaks mutual TLS 1.3 and nothing else, in both directions. One
//! without speaks plain text, which `ecotone-cluster` allows on loopback only.
//!
//! # Bounds
//!
//! Incoming handshakes: [`crate::under_way`], each within [`MAX_HANDSHAKE_TIME`]. Connections of
//! one peer: [`crate::peers::Quotas`].

use std::io;
use std::net::{IpAddr, TcpStream as BlockingStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_identity::failure::explain;
use ecotone_identity::tls::{self, Protocol};
use ecotone_identity::{HandshakeFailure, Identity, Timestamp};
use ecotone_types::ServerId;
use rustls::server::Acceptor;
use rustls::{ClientConnection, StreamOwned};
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, TlsStream};

use crate::file_stream::FileStream;
use crate::peers::{PeerConnection, Peers, Quotas};
use crate::under_way::{Place, UnderWay};

/// The longest incoming handshake: who begins one is a stranger for as long. Enough for a slow
/// device that does much else; that strangers keep nobody out does not rest on it.
pub const MAX_HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// Handshakes since the start, incoming and outgoing.
#[derive(Debug, Default)]
pub struct Handshakes {
    completed: AtomicU64,
    failed: [AtomicU64; HandshakeFailure::ALL.len()],
}

impl Handshakes {
    fn count(&self, failure: HandshakeFailure) {
        if let Some(at) = HandshakeFailure::ALL.iter().position(|one| *one == failure) {
            self.failed[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Those that led to a connection.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Those that failed, by reason.
    pub fn failed(&self) -> impl Iterator<Item = (HandshakeFailure, u64)> {
        HandshakeFailure::ALL.into_iter().zip(self.failed.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// How this server takes and makes connections.
pub struct Security {
    identity: Option<Arc<Identity>>,
    peers: Arc<Peers>,
    handshakes: Handshakes,
    under_way: UnderWay,
    /// A server of the federation has refused this one because it was removed.
    is_removed: AtomicBool,
}

/// What a handshake has led to: what for, the stream, and the connection of who is known now.
type Shaken = (Protocol, Box<tokio_rustls::server::TlsStream<TcpStream>>, Option<Arc<PeerConnection>>);

/// A connection that was taken.
pub(crate) struct Accepted {
    pub(crate) protocol: Protocol,
    pub(crate) stream: Box<tokio_rustls::server::TlsStream<TcpStream>>,
    /// `None` of one that is about to join.
    pub(crate) connection: Option<Arc<PeerConnection>>,
    /// Of one that is about to join: it is a stranger until it has shown its token.
    pub(crate) place: Option<Place>,
}

impl Security {
    /// Of a server with an identity, or of one that speaks plain text.
    pub fn new(identity: Option<Arc<Identity>>, quotas: Quotas) -> Arc<Security> {
        let (peers, handshakes, under_way) = (Peers::new(quotas), Handshakes::default(), UnderWay::default());
        Arc::new(Security { identity, peers, handshakes, under_way, is_removed: AtomicBool::new(false) })
    }

    /// Plain text.
    pub fn plain_text() -> Arc<Security> {
        Security::new(None, Quotas::with_rate(f64::INFINITY))
    }

    /// This server's identity, if it has one.
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        self.identity.as_ref()
    }

    /// Handshakes since the start.
    pub fn handshakes(&self) -> &Handshakes {
        &self.handshakes
    }

    /// Open connections with identified peers.
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Cuts the connections of peers that were removed or whose certificates have ended.
    pub fn cut_unwelcome(&self, now: Timestamp) -> usize {
        let Some(identity) = &self.identity else { return 0 };
        self.peers.cut(|peer, protocol| match protocol {
            // It may have come with a certificate that has ended, for the next one.
            Protocol::Enroll => identity.may_stay(peer, peer.ends),
            Protocol::Calls | Protocol::Files => identity.may_stay(peer, now),
        })
    }

    /// Whether a server of the federation has refused this one because it was removed. That stays:
    /// numbers are given once.
    pub fn was_refused_as_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }

    /// Notes why a connection has failed that this server has made. What the other side says is
    /// encrypted, after it has shown its certificate of the federation.
    pub(crate) fn note_refusal(&self, error: &io::Error) {
        let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if matches!(of_tls, Some(rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRevoked))) {
            self.is_removed.store(true, Ordering::Relaxed);
        }
    }

    /// A place for a connection whose other side is not known yet.
    pub(crate) fn begin(&self, from: IpAddr) -> Place {
        self.under_way.begin(from)
    }

    /// Counts a connection that is refused after its handshake.
    pub(crate) fn count(&self, failure: HandshakeFailure) {
        self.handshakes.count(failure);
    }

    /// Takes a connection that has come to this `place` among those that are not known yet.
    /// Failures are counted here.
    pub(crate) async fn accept(
        &self,
        identity: &Arc<Identity>,
        stream: TcpStream,
        mut place: Place,
    ) -> Result<Accepted, HandshakeFailure> {
        let handshake = tokio::time::timeout(MAX_HANDSHAKE_TIME, self.shake_hands(identity, stream));
        let outcome = match place.hold(handshake).await {
            None => Err(HandshakeFailure::TooMany),
            Some(shaken) => shaken.unwrap_or(Err(HandshakeFailure::TimedOut)),
        };
        let outcome = outcome.map(|(protocol, stream, connection)| {
            let place = connection.is_none().then_some(place);
            Accepted { protocol, stream, connection, place }
        });
        match &outcome {
            Ok(_) => drop(self.handshakes.completed.fetch_add(1, Ordering::Relaxed)),
            Err(failure) => self.handshakes.count(*failure),
        }
        outcome
    }

    async fn shake_hands(&self, identity: &Arc<Identity>, stream: TcpStream) -> Result<Shaken, HandshakeFailure> {
        let failed = |error: io::Error| HandshakeFailure::of_io(&error);
        stream.set_nodelay(true).map_err(failed)?;
        let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(failed)?;
        let protocol = begun.client_hello().alpn().and_then(Protocol::named);
        let protocol = protocol.ok_or(HandshakeFailure::UnknownProtocol)?;
        let config = tls::server_config(identity, protocol).map_err(|error| HandshakeFailure::of(&error))?;
        let stream = begun.into_stream(config).await.map_err(failed)?;
        let (socket, session) = stream.get_ref();
        let connection = match (session.peer_certificates(), protocol) {
            (None, Protocol::Enroll) => None,
            (certificates, _) => {
                let peer = tls::shown_by(certificates).map_err(|error| HandshakeFailure::of(&error))?;
                let connection = self.peers.list(&peer, protocol, true, socket)?;
                // It may have been removed after it was checked and before it was listed.
                if identity.is_removed(peer.member) {
                    return Err(HandshakeFailure::Removed);
                }
                Some(connection)
            }
        };
        Ok((protocol, Box::new(stream), connection))
    }

    /// Connects to `address`, to the server called `expected` or to any of the federation.
    ///
    /// # Errors
    /// The system's; those of the handshake, explained, and counted.
    pub(crate) async fn connect(
        &self,
        identity: &Arc<Identity>,
        address: &str,
        protocol: Protocol,
        expected: Option<ServerId>,
    ) -> io::Result<(Box<TlsStream<TcpStream>>, Arc<PeerConnection>)> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let config = tls::client_config(identity, protocol, expected).map_err(io::Error::other)?;
        let connected = TlsConnector::from(config).connect(tls::server_name(identity), socket).await;
        let stream = connected.map_err(|error| self.failed(&error))?;
        let (socket, session) = stream.get_ref();
        let connection = self.connected(session.peer_certificates(), protocol, socket)?;
        Ok((Box::new(stream.into()), connection))
    }

    /// The same on a socket that is connected, by a thread that may block until `until`.
    pub(crate) fn connect_blocking(
        &self,
        identity: &Arc<Identity>,
        mut socket: BlockingStream,
        expected: Option<ServerId>,
        until: Instant,
    ) -> io::Result<(FileStream, Arc<PeerConnection>)> {
        let config = tls::client_config(identity, Protocol::Files, expected).map_err(io::Error::other)?;
        let mut session = ClientConnection::new(config, tls::server_name(identity)).map_err(io::Error::other)?;
        complete(&mut session, &mut socket, until).map_err(|error| self.failed(&error))?;
        let connection = self.connected(session.peer_certificates(), Protocol::Files, &socket)?;
        Ok((FileStream::Connected(Box::new(StreamOwned::new(session, socket))), connection))
    }

    fn connected(
        &self,
        certificates: Option<&[rustls::pki_types::CertificateDer<'_>]>,
        protocol: Protocol,
        socket: &impl std::os::fd::AsFd,
    ) -> io::Result<Arc<PeerConnection>> {
        let peer = tls::shown_by(certificates).map_err(io::Error::other)?;
        let listed = self.peers.list(&peer, protocol, false, socket);
        let connection = listed.map_err(|failure| io::Error::other(failure.name()))?;
        self.handshakes.completed.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }

    fn failed(&self, error: &io::Error) -> io::Error {
        self.handshakes.count(HandshakeFailure::of_io(error));
        io::Error::new(error.kind(), explained(error))
    }
}

/// What an error of a connection means, and what to do about it.
pub(crate) fn explained(error: &io::Error) -> String {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    of_tls.map_or_else(|| error.to_string(), explain)
}

/// Shakes hands within what is left of the time: a peer that sends a byte now and then is as good
/// as silent.
fn complete(session: &mut ClientConnection, socket: &mut BlockingStream, until: Instant) -> io::Result<()> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "no handshake in time");
    while session.is_handshaking() || session.wants_write() {
        while session.wants_write() {
            session.write_tls(socket)?;
        }
        if !session.is_handshaking() {
            break;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        socket.set_read_timeout(Some(left))?;
        match session.read_tls(socket) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side hung up")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(late());
            }
            Err(error) => return Err(error),
        }
        if let Err(error) = session.process_new_packets() {
            // The other side is to know why.
            let _ = session.write_tls(socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }
    Ok(())
}
