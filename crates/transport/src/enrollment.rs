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
//! The leader of the federation's log answers; others say where it is ([`NOT_HERE`]), or that there
//! is none now ([`NO_LEADER`]). Who asks follows at most [`MAX_REDIRECTS`] times in turn. When that
//! leads nowhere, there is no leader, or the one that was named is gone, it begins again where it was
//! told to ask, after a pause, for as long as it was given. A request may arrive twice: joining is asked for by the id of
//! a directory, and gives one number however often.
//!
//! Who joins has checked by then that the other side has a certificate of the authority that the
//! token names, wherever it was sent: nothing secret is said to anybody else. Who renews has shown
//! its certificate.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ecotone_identity::join::{DirectoryId, Joining};
use ecotone_identity::names::check_name;
use ecotone_identity::tls::{self, Protocol};
use ecotone_identity::{Clock, Issued, Joined, MemberId, Peer, check_request};
use ecotone_types::ServerId;
use prost::Message;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::error::{Error, Result};
use crate::protocol::PROTOCOL_VERSION;
use crate::protocol::wire::{EnrollReply, EnrollRequest};
use crate::security::{Security, explained};

/// Bytes of a request or a reply.
pub const MAX_ENROLL_BYTES: u32 = 16 << 10;
/// How often in turn who asks is sent to another server.
pub const MAX_REDIRECTS: usize = 4;
/// The longest label of a zone.
pub const MAX_ZONE_BYTES: usize = 64;
/// The longest address: a host name of DNS, a colon and a port.
pub const MAX_ADDRESS_BYTES: usize = 261;
/// How long to wait for a leader before asking again.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Letters of a refusal that go to the log of who asked.
const MAX_DETAIL_CHARS: usize = 1024;

/// Name of a refusal: another server answers, at `elsewhere`.
pub const NOT_HERE: &str = "not-here";
/// Name of a refusal: nobody can answer now.
pub const NO_LEADER: &str = "no-leader";
/// Name of a refusal: the leader has not got the authority's key yet.
pub const NO_AUTHORITY: &str = "no-authority";

/// Answers those that want to join or to renew. May block.
pub trait Enrollment: Send + Sync {
    /// The answer to a request of `peer`, or of a server without a certificate.
    fn answer(&self, request: &EnrollRequest, peer: Option<&Peer>) -> EnrollReply;
}

/// What a server says of itself that joins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Introduction {
    /// What fails together with it; empty when nobody says.
    pub zone: String,
    /// It votes and holds no data.
    pub is_witness: bool,
    /// The lowest feature level that its build can work at.
    pub min_feature_level: u32,
    /// The highest.
    pub max_feature_level: u32,
    /// Where other servers reach it, if it knows yet.
    pub address: Option<String>,
}

/// What is asked for. All of it is of a length that the federation's log takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// A server wants to join.
    Join(Box<AskedToJoin>),
    /// A server wants its next certificate.
    Renew {
        /// As its certificate says, which may have ended.
        member: MemberId,
        /// Its name.
        name: ServerId,
        /// PKCS #10, signed by its key.
        certificate_request: Vec<u8>,
    },
}

/// What a server shows that wants to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedToJoin {
    /// The secret of a token, not checked yet.
    pub token: Vec<u8>,
    /// The name that it is to have.
    pub name: ServerId,
    /// PKCS #10, signed by its key.
    pub certificate_request: Vec<u8>,
    /// Its directory.
    pub directory: DirectoryId,
    /// What else it says of itself.
    pub about: Introduction,
}

fn refuse(name: &str, detail: impl ToString) -> Box<EnrollReply> {
    Box::new(refused(name, detail))
}

impl Asked {
    /// Reads a request of `peer`, or of a server without a certificate.
    ///
    /// # Errors
    /// With the reply to one that nobody could grant.
    pub fn read(request: &EnrollRequest, peer: Option<&Peer>) -> std::result::Result<Asked, Box<EnrollReply>> {
        if request.protocol_version != PROTOCOL_VERSION {
            let theirs = request.protocol_version;
            return Err(refuse(
                "version",
                format!("this server speaks protocol version {PROTOCOL_VERSION}, you {theirs}; run the same release"),
            ));
        }
        let certificate_request = request.certificate_request.clone();
        check_request(&certificate_request).map_err(|error| refuse(error.kind(), error))?;
        if let Some(peer) = peer.filter(|_| request.token.is_empty()) {
            return Ok(Asked::Renew { member: peer.member, name: peer.name.clone(), certificate_request });
        }
        let name = ServerId::new(&request.server).map_err(|error| refuse("name", error))?;
        check_name(&name).map_err(|error| refuse("name", error))?;
        let directory = request.directory.as_slice().try_into();
        let directory = directory.map_err(|_| refuse("malformed", "the id of the directory has not 16 bytes"))?;
        Ok(Asked::Join(Box::new(AskedToJoin {
            token: request.token.clone(),
            name,
            certificate_request,
            directory,
            about: Introduction::read(request).map_err(|what| refuse("malformed", what))?,
        })))
    }
}

impl Introduction {
    fn read(request: &EnrollRequest) -> std::result::Result<Introduction, &'static str> {
        let EnrollRequest { zone, min_feature_level, max_feature_level, announced_address, .. } = request;
        if zone.len() > MAX_ZONE_BYTES || zone.contains(char::is_control) {
            return Err("the zone is longer than 64 bytes, or no text");
        }
        if *min_feature_level == 0 || min_feature_level > max_feature_level {
            return Err("there are no such feature levels");
        }
        if !announced_address.is_empty() && !is_address(announced_address) {
            return Err("the announced address is not of the form host:port");
        }
        Ok(Introduction {
            zone: zone.clone(),
            is_witness: request.witness,
            min_feature_level: *min_feature_level,
            max_feature_level: *max_feature_level,
            address: Some(announced_address.clone()).filter(|address| !address.is_empty()),
        })
    }
}

/// Whether this may be `host:port`. Whether anybody is there is another matter.
fn is_address(text: &str) -> bool {
    let is_printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    text.len() <= MAX_ADDRESS_BYTES
        && is_printable(text)
        && text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// The reply to who is granted a certificate: with the number that the log has given, and the
/// generation of that log.
pub fn granted(issued: &Issued, member: MemberId, generation: u64) -> EnrollReply {
    EnrollReply {
        certificate: issued.certificate.to_vec(),
        authority: issued.authority.to_vec(),
        member: member.number(),
        generation,
        ..EnrollReply::default()
    }
}

/// The reply to who is refused: a name of the reason, and for people what to do.
pub fn refused(name: &str, detail: impl ToString) -> EnrollReply {
    EnrollReply { refusal: name.to_owned(), detail: detail.to_string(), ..EnrollReply::default() }
}

/// The reply of a server that does not lead: who does is at `address`.
pub fn not_here(address: &str) -> EnrollReply {
    let detail = format!("another server leads the federation; ask it at {address} (--join)");
    EnrollReply { elsewhere: address.to_owned(), ..refused(NOT_HERE, detail) }
}

/// The reply while nobody leads.
pub fn no_leader() -> EnrollReply {
    refused(NO_LEADER, "no server leads the federation now, so nobody can join; a moment later one may")
}

/// The reply of a leader that cannot sign yet.
pub fn no_authority() -> EnrollReply {
    refused(
        NO_AUTHORITY,
        "the server that leads the federation has not got the authority's key from another one yet, so nobody can \
         join; a moment later it may, if a server that has voted before is there",
    )
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

/// Joins the federation of the token: asks the server at `address`, those that it is sent to, and
/// again while nobody leads; stores what it is given.
///
/// # Errors
/// [`Error::Unreachable`] if nobody answers in time, or who answers is not of that federation;
/// [`Error::Refused`] with its reason; [`Error::Identity`] for an answer that is no good.
pub async fn join(
    joining: Joining,
    address: &str,
    about: &Introduction,
    clock: &Arc<dyn Clock>,
    longest: Duration,
) -> Result<Joined> {
    let request = EnrollRequest {
        protocol_version: PROTOCOL_VERSION,
        token: joining.token().secret().to_vec(),
        server: joining.name().as_str().to_owned(),
        certificate_request: joining.request.clone(),
        directory: joining.directory().to_vec(),
        zone: about.zone.clone(),
        witness: about.is_witness,
        min_feature_level: about.min_feature_level,
        max_feature_level: about.max_feature_level,
        announced_address: about.address.clone().unwrap_or_default(),
    };
    let config = tls::joining_config(joining.token(), clock);
    let config = config.map_err(|error| Error::unreachable(address, error))?;
    let (config, request) = (&config, &request);
    let ask_one = |address: String| async move {
        let socket = TcpStream::connect(&address).await?;
        let stream = TlsConnector::from(config.clone()).connect(tls::joining_server_name(), socket).await?;
        ask(stream, request).await
    };
    let reply = ask_in_turn(address, longest, ask_one).await?;
    let (member, generation) = (MemberId::from_number(reply.member), reply.generation);
    Ok(joining.end(&certificate_in(reply), member, generation, clock.now())?)
}

/// Asks the server at `address`, or those that it is sent to, for the next certificate of this one,
/// and takes it into use.
///
/// # Errors
/// As [`join`].
pub async fn renew(security: &Security, address: &str, longest: Duration) -> Result<()> {
    let Some(identity) = security.identity() else { return Ok(()) };
    let renewal = identity.begin_renewal()?;
    let request = EnrollRequest {
        protocol_version: PROTOCOL_VERSION,
        certificate_request: renewal.request.clone(),
        ..EnrollRequest::default()
    };
    let request = &request;
    let ask_one = |address: String| async move {
        let (stream, _connection) = security.connect(identity, &address, Protocol::Enroll, None).await?;
        ask(stream, request).await
    };
    let reply = ask_in_turn(address, longest, ask_one).await?;
    Ok(identity.end_renewal(&renewal, &certificate_in(reply))?)
}

/// Asks at `first`, follows, and asks again, until somebody grants it or refuses it for good.
async fn ask_in_turn<Asking>(first: &str, longest: Duration, ask_one: impl Fn(String) -> Asking) -> Result<EnrollReply>
where
    Asking: Future<Output = io::Result<EnrollReply>>,
{
    let until = Instant::now() + longest;
    let (mut at, mut redirects) = (first.to_owned(), 0);
    let mut has_answered = false;
    loop {
        let failure = match tokio::time::timeout_at(until, ask_one(at.clone())).await {
            Ok(Ok(reply)) if reply.refusal.is_empty() => return Ok(reply),
            Ok(Ok(reply)) => {
                has_answered = true;
                let (refusal, elsewhere) = (reply.refusal.clone(), reply.elsewhere.clone());
                let refused = refused_by(&at, reply);
                let may_follow = refusal == NOT_HERE && is_address(&elsewhere);
                if may_follow && redirects < MAX_REDIRECTS {
                    redirects += 1;
                    at = elsewhere;
                    continue;
                }
                // A circle ends when they have all heard who leads.
                if !may_follow && refusal != NO_LEADER && refusal != NO_AUTHORITY {
                    return Err(refused);
                }
                refused
            }
            Ok(Err(error)) => Error::unreachable(&at, explained(&error)),
            Err(_) => return Err(Error::unreachable(at, "no answer in time")),
        };
        // Where nobody has answered yet the address is wrong, mostly.
        if !has_answered || until.saturating_duration_since(Instant::now()) <= RETRY_PAUSE {
            return Err(failure);
        }
        tokio::time::sleep(RETRY_PAUSE).await;
        (at, redirects) = (first.to_owned(), 0);
    }
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &EnrollRequest) -> io::Result<EnrollReply> {
    send(&mut stream, request).await?;
    receive(&mut stream).await
}

/// It comes from a server of the federation, and goes to a log all the same.
fn refused_by(address: &str, reply: EnrollReply) -> Error {
    let printable =
        |text: &str| text.chars().take(MAX_DETAIL_CHARS).filter(|letter| !letter.is_control()).collect::<String>();
    Error::Refused { peer: address.to_owned(), reason: printable(&reply.refusal), what: printable(&reply.detail) }
}

fn certificate_in(reply: EnrollReply) -> Issued {
    Issued { certificate: CertificateDer::from(reply.certificate), authority: CertificateDer::from(reply.authority) }
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
