//! How a server joins a federation, and how it gets its next certificate: one request and one reply
//! on a connection of its own ([`Protocol::Enroll`]).
//!
//! # Protocol
//!
//! ```text
//! client: length:u32 EnrollRequest        at most MAX_ENROLL_BYTES; little-endian, protobuf
//! server: length:u32 EnrollReply          and the connection ends
//! ```
//!
//! Who joins has checked by then that the other side has a certificate of the authority that the
//! token names: nothing secret is said to anybody else. Who renews has shown its certificate.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ecotone_identity::join::Joining;
use ecotone_identity::tls::{self, Protocol};
use ecotone_identity::{Authority, Clock, Issued, Peer};
use ecotone_types::ServerId;
use prost::Message;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::{Error, Result};
use crate::protocol::PROTOCOL_VERSION;
use crate::protocol::wire::{EnrollReply, EnrollRequest};
use crate::security::{Security, explained};

/// Bytes of a request or a reply.
pub const MAX_ENROLL_BYTES: u32 = 16 << 10;

/// Answers those that want to join or to renew. May block.
pub trait Enrollment: Send + Sync {
    /// The answer to a request of `peer`, or of a server without a certificate.
    fn answer(&self, request: &EnrollRequest, peer: Option<&Peer>) -> EnrollReply;
}

fn refusal(name: &str, detail: impl ToString) -> EnrollReply {
    EnrollReply { refusal: name.to_owned(), detail: detail.to_string(), ..EnrollReply::default() }
}

/// A server that does not keep the authority sends who asks to one that may.
pub struct Elsewhere(pub String);

impl Enrollment for Elsewhere {
    fn answer(&self, _request: &EnrollRequest, _peer: Option<&Peer>) -> EnrollReply {
        refusal("not-here", format!("the authority is kept by the coordinator; ask it at {} (--join)", self.0))
    }
}

/// The authority answers.
pub struct AtAuthority {
    /// The authority.
    pub authority: Arc<Authority>,
    /// Its time.
    pub clock: Arc<dyn Clock>,
}

impl Enrollment for AtAuthority {
    fn answer(&self, request: &EnrollRequest, peer: Option<&Peer>) -> EnrollReply {
        if request.protocol_version != PROTOCOL_VERSION {
            let theirs = request.protocol_version;
            return refusal(
                "version",
                format!("this server speaks protocol version {PROTOCOL_VERSION}, you {theirs}; run the same release"),
            );
        }
        let (now, asked) = (self.clock.now(), &request.certificate_request);
        let issued = match peer {
            Some(peer) if request.token.is_empty() => self.authority.renew(peer.member, asked, now),
            _ => match ServerId::new(&request.server) {
                Ok(name) => self.authority.join(&request.token, &name, asked, now),
                Err(error) => return refusal("name", error),
            },
        };
        match issued {
            Ok(issued) => EnrollReply {
                certificate: issued.certificate.to_vec(),
                authority: issued.authority.to_vec(),
                ..EnrollReply::default()
            },
            Err(error) => {
                let name = peer.map_or(request.server.as_str(), |peer| peer.name.as_str());
                let name: String = name.chars().take(64).flat_map(char::escape_debug).collect();
                // Who guesses is counted; it must not fill the log.
                if error.kind() == "unknown-token" {
                    tracing::debug!(server = name, %error, "a server is not given a certificate");
                } else {
                    tracing::warn!(server = name, %error, "a server is not given a certificate");
                }
                refusal(error.kind(), error)
            }
        }
    }
}

/// Answers one request on a connection. Returns whether it was granted.
pub(crate) async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    enrollment: Arc<dyn Enrollment>,
    peer: Option<Peer>,
) -> io::Result<bool> {
    let request: EnrollRequest = receive(&mut stream).await?;
    let answer = tokio::task::spawn_blocking(move || enrollment.answer(&request, peer.as_ref()));
    let reply = answer.await.map_err(io::Error::other)?;
    send(&mut stream, &reply).await?;
    stream.shutdown().await?;
    Ok(reply.refusal.is_empty())
}

/// Joins the federation of the token: asks the server at `address`, and stores what it gives.
///
/// # Errors
/// [`Error::Unreachable`] if it does not answer, or is not of that federation;
/// [`Error::Refused`] with its reason; [`Error::Identity`] for an answer that is no good.
pub async fn join(joining: Joining, address: &str, clock: &Arc<dyn Clock>, longest: Duration) -> Result<()> {
    let asked = async {
        let socket = TcpStream::connect(address).await?;
        let config = tls::joining_config(joining.token(), clock).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(tls::joining_server_name(), socket).await?;
        let request = EnrollRequest {
            protocol_version: PROTOCOL_VERSION,
            token: joining.token().secret().to_vec(),
            server: joining.name().as_str().to_owned(),
            certificate_request: joining.request.clone(),
        };
        ask(stream, &request).await
    };
    let issued = granted(address, within(address, longest, asked).await?)?;
    joining.end(&issued, clock.now())?;
    Ok(())
}

/// Asks the server at `address` for the next certificate of this one, and takes it into use.
///
/// # Errors
/// As [`join`].
pub async fn renew(security: &Security, address: &str, longest: Duration) -> Result<()> {
    let Some(identity) = security.identity() else { return Ok(()) };
    let renewal = identity.begin_renewal()?;
    let asked = async {
        let (stream, _connection) = security.connect(identity, address, Protocol::Enroll, None).await?;
        let request = EnrollRequest {
            protocol_version: PROTOCOL_VERSION,
            certificate_request: renewal.request.clone(),
            ..EnrollRequest::default()
        };
        ask(stream, &request).await
    };
    let issued = granted(address, within(address, longest, asked).await?)?;
    Ok(identity.end_renewal(&renewal, &issued)?)
}

async fn within(
    address: &str,
    longest: Duration,
    asked: impl Future<Output = io::Result<EnrollReply>>,
) -> Result<EnrollReply> {
    match tokio::time::timeout(longest, asked).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(Error::unreachable(address, explained(&error))),
        Err(_) => Err(Error::unreachable(address, "no answer in time")),
    }
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &EnrollRequest) -> io::Result<EnrollReply> {
    send(&mut stream, request).await?;
    receive(&mut stream).await
}

fn granted(address: &str, reply: EnrollReply) -> Result<Issued> {
    if !reply.refusal.is_empty() {
        // It comes from a server of the federation, and goes to a log all the same.
        let detail = reply.detail.chars().take(1024).filter(|letter| !letter.is_control()).collect();
        return Err(Error::Refused { peer: address.to_owned(), reason: reply.refusal, what: detail });
    }
    Ok(Issued {
        certificate: CertificateDer::from(reply.certificate),
        authority: CertificateDer::from(reply.authority),
    })
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 + message.encoded_len());
    bytes.extend_from_slice(&(message.encoded_len() as u32).to_le_bytes());
    bytes.extend_from_slice(&message.encode_to_vec());
    stream.write_all(&bytes).await?;
    stream.flush().await
}

async fn receive<M: Message + Default>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<M> {
    let length = stream.read_u32_le().await?;
    if length > MAX_ENROLL_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    M::decode(&bytes[..]).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
