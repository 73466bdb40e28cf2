//! Reads ranges of one job's files from the other side.
//!
//! Requests are sent without waiting for the answers of those before, which is all the read-ahead
//! there is: what was asked for waits in the sockets until it is wanted. Answers come in the order
//! of the requests.
//!
//! # Threads
//!
//! Blocking; meant for the one thread of a compaction. Several threads may share it, each then
//! waits for its turn.
//!
//! # Failure
//!
//! A range that does not come within the read timeout, or is refused, is an error, and so is
//! everything asked for after it. So is a connection that is not open within the connect timeout,
//! its name looked up, or not answered within the read timeout.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_types::ServerId;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::connections::Timeouts;
use crate::error::{Error, Result};
use crate::exports::Token;
use crate::file_server::{MAGIC, MAX_RANGE_BYTES, STATUS_OK, STATUS_OTHER_VERSION, STATUS_REFUSED};
use crate::file_stream::FileStream;
use crate::peers::PeerConnection;
use crate::protocol::PROTOCOL_VERSION;
use crate::resolve::resolve;
use crate::security::{Security, explained};
use crate::traffic::Traffic;

/// Buffers kept for reuse: as many as a compaction reads tables at a time.
const BUFFERS_KEPT: usize = 64;

/// A range that was asked for.
pub struct Pending {
    slot: Arc<Mutex<Slot>>,
}

#[derive(Default)]
struct Slot {
    length: usize,
    data: Option<io::Result<Vec<u8>>>,
}

struct Connection {
    stream: FileStream,
    /// Listed among those of its peer for as long.
    _listed: Option<Arc<PeerConnection>>,
    /// Asked for and not yet received, in order.
    expected: VecDeque<Arc<Mutex<Slot>>>,
    /// Why nothing more will come.
    broken: Option<String>,
}

/// The server that exports a job's files.
pub struct Peer<'a> {
    /// As errors name it.
    pub name: String,
    /// `host:port`.
    pub address: &'a str,
    /// The server that must be there, where servers have identities.
    pub server: &'a ServerId,
}

/// A connection to the server that exports a job's files.
pub struct FileClient {
    connection: Mutex<Connection>,
    buffers: Mutex<Vec<Vec<u8>>>,
    range_timeout: Duration,
    traffic: Arc<Traffic>,
    bytes_received: Arc<AtomicU64>,
}

impl FileClient {
    /// Connects to `peer` and shows the token. `bytes_received` counts along for whoever watches
    /// the job. The calling thread must not be one of the run time's.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Version`] and [`Error::Unauthorised`] as the peer says.
    pub fn connect(
        (runtime, security): (&Handle, &Security),
        peer: Peer<'_>,
        token: Token,
        timeouts: &Timeouts,
        traffic: Arc<Traffic>,
        bytes_received: Arc<AtomicU64>,
    ) -> Result<Arc<FileClient>> {
        let (stream, listed, greeting) = greet((runtime, security), &peer, token, timeouts)
            .map_err(|error| Error::unreachable(peer.name.as_str(), explained(&error)))?;
        match greeting {
            Greeting::Welcome => {}
            Greeting::Refused => {
                return Err(Error::Unauthorised(format!("{} does not know the job's token, or no longer", peer.name)));
            }
            Greeting::OtherVersion(theirs) => {
                return Err(Error::Version { peer: peer.name, theirs, ours: PROTOCOL_VERSION });
            }
        }
        let connection = Mutex::new(Connection { stream, _listed: listed, expected: VecDeque::new(), broken: None });
        Ok(Arc::new(FileClient {
            connection,
            buffers: Mutex::default(),
            range_timeout: timeouts.read,
            traffic,
            bytes_received,
        }))
    }

    /// Bytes received so far.
    pub fn bytes_received(&self) -> u64 {
        self.bytes_received.load(Ordering::Relaxed)
    }

    /// Asks for `length` bytes (at most [`MAX_RANGE_BYTES`]) of `file` from `offset`. A failure is
    /// returned by [`wait`](Self::wait).
    pub fn begin(&self, file: &str, offset: u64, length: usize) -> Pending {
        let slot = Arc::new(Mutex::new(Slot { length, data: None }));
        let mut connection = self.connection.lock();
        let mut request = Vec::with_capacity(1 + file.len() + 12);
        request.push(file.len().min(usize::from(u8::MAX)) as u8);
        request.extend_from_slice(file.as_bytes());
        request.extend_from_slice(&offset.to_le_bytes());
        request.extend_from_slice(&(length as u32).to_le_bytes());
        let sent = if file.len() > usize::from(u8::MAX) || length > MAX_RANGE_BYTES as usize {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "the name or the range is too long"))
        } else if let Some(why) = &connection.broken {
            Err(io::Error::other(why.clone()))
        } else {
            connection.stream.write_all(&request)
        };
        match sent {
            Ok(()) => connection.expected.push_back(slot.clone()),
            Err(error) => {
                connection.broken.get_or_insert_with(|| error.to_string());
                slot.lock().data = Some(Err(error));
            }
        }
        Pending { slot }
    }

    /// Waits for a range.
    pub fn wait(&self, pending: Pending) -> io::Result<Vec<u8>> {
        let mut connection = self.connection.lock();
        loop {
            if let Some(data) = pending.slot.lock().data.take() {
                return data;
            }
            let Some(next) = connection.expected.pop_front() else {
                let why = connection.broken.clone().unwrap_or_else(|| "the range was already taken".into());
                return Err(io::Error::other(why));
            };
            let length = next.lock().length;
            let received = self.receive(&mut connection.stream, length);
            if let Err(error) = &received {
                // The place in the stream is lost: nothing after this can be parsed.
                connection.broken = Some(error.to_string());
                connection.expected.clear();
            }
            next.lock().data = Some(received);
        }
    }

    /// Gives a buffer back for reuse.
    pub fn recycle(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < BUFFERS_KEPT {
            buffers.push(buffer);
        }
    }

    fn receive(&self, stream: &mut FileStream, wanted: usize) -> io::Result<Vec<u8>> {
        let mut head = [0; 5];
        let until = Instant::now() + self.range_timeout;
        read_all(stream, &mut head, until)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if head[0] != STATUS_OK {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the other side refused a range"));
        }
        if length > wanted {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side sent more than was asked for"));
        }
        let mut data = self.buffers.lock().pop().unwrap_or_default();
        data.resize(length, 0);
        read_all(stream, &mut data, until)?;
        self.traffic.add_received(length);
        self.bytes_received.fetch_add(length as u64, Ordering::Relaxed);
        Ok(data)
    }
}

/// How a new connection is answered.
enum Greeting {
    Welcome,
    Refused,
    /// The version that the other side speaks.
    OtherVersion(u32),
}

/// A connection, where it is listed, and how it was answered.
type Greeted = (FileStream, Option<Arc<PeerConnection>>, Greeting);

fn greet(
    (runtime, security): (&Handle, &Security),
    peer: &Peer<'_>,
    token: Token,
    timeouts: &Timeouts,
) -> io::Result<Greeted> {
    let until = Instant::now() + timeouts.connect;
    let address = peer.address;
    let socket = connect_any(&resolve(runtime, address, timeouts.connect)?, until)?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(timeouts.read))?;
    let (mut stream, listed) = match security.identity() {
        Some(identity) => {
            let until = Instant::now() + timeouts.read;
            let (stream, listed) = security.connect_blocking(identity, socket, Some(peer.server.clone()), until)?;
            (stream, Some(listed))
        }
        None => (FileStream::Plain(socket), None),
    };
    let mut hello = Vec::with_capacity(40);
    hello.extend_from_slice(&MAGIC);
    hello.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    hello.extend_from_slice(&token.to_wire());
    stream.write_all(&hello)?;
    let until = Instant::now() + timeouts.read;
    let mut status = [0];
    read_all(&mut stream, &mut status, until)?;
    let greeting = match status[0] {
        STATUS_OK => Greeting::Welcome,
        STATUS_REFUSED => Greeting::Refused,
        STATUS_OTHER_VERSION => {
            let mut version = [0; 4];
            read_all(&mut stream, &mut version, until)?;
            Greeting::OtherVersion(u32::from_le_bytes(version))
        }
        other => {
            let what = format!("{address} answers a connection for files with {other}, which means nothing");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
    };
    Ok((stream, listed, greeting))
}

/// Connects to the first of the addresses that answers: a name has several where its server listens
/// on one of them.
fn connect_any(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        // What is left of the time, and never none, which the system does not take.
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Reads all of `buffer` before `until`: a peer that sends a byte now and then is as good as
/// silent.
fn read_all(stream: &mut FileStream, mut buffer: &mut [u8], until: Instant) -> io::Result<()> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the other side did not answer in time");
    while !buffer.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        stream.set_read_timeout(left)?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side hung up")),
            Ok(read) => buffer = &mut buffer[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A socket's own time-out says "try again", which is not what happened.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(late());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const READ_TIMEOUT: Duration = Duration::from_secs(1);

    /// What connecting comes to, and what `use_it` makes of the connection, where `peer` is at the
    /// other end.
    fn with_peer<T>(peer: impl FnOnce(&mut TcpStream) + Send, use_it: impl FnOnce(Arc<FileClient>) -> T) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; 40]).unwrap();
                peer(&mut stream);
                // Until the client is gone.
                let _ = stream.read_to_end(&mut Vec::new());
            });
            let server = ServerId::new("edge").unwrap();
            let peer = Peer { name: "worker edge".into(), address: &address, server: &server };
            let timeouts = Timeouts { connect: READ_TIMEOUT, read: READ_TIMEOUT, silence: Duration::from_secs(3) };
            let token = Token::new().unwrap();
            let through = (runtime.handle(), &*Security::plain_text());
            FileClient::connect(through, peer, token, &timeouts, Arc::default(), Arc::default()).map(use_it)
        })
    }

    #[test]
    fn a_refusal_says_why() {
        let refusal = |answer: &[u8]| with_peer(|stream| stream.write_all(answer).unwrap(), |_| ()).unwrap_err();
        let version = refusal(&[STATUS_OTHER_VERSION, 9, 0, 0, 0]);
        assert!(matches!(&version, Error::Version { theirs: 9, ours: PROTOCOL_VERSION, .. }), "{version}");
        assert!(version.to_string().starts_with("worker edge speaks"), "{version}");
        let token = refusal(&[STATUS_REFUSED]);
        assert!(matches!(&token, Error::Unauthorised(what) if what.contains("worker edge")), "{token}");
        let nonsense = refusal(&[77]);
        assert!(matches!(&nonsense, Error::Unreachable { what, .. } if what.contains("77")), "{nonsense}");
    }

    #[test]
    fn a_range_that_begins_to_come_late_gets_no_further_time() {
        let late = |stream: &mut TcpStream| {
            stream.write_all(&[STATUS_OK]).unwrap();
            let mut request = [0; 1 + 1 + 12];
            stream.read_exact(&mut request).unwrap();
            thread::sleep(READ_TIMEOUT * 7 / 10);
            stream.write_all(&[STATUS_OK, 100, 0, 0, 0]).unwrap();
        };
        let waited = with_peer(late, |client| {
            let began = Instant::now();
            let error = client.wait(client.begin("f", 0, 100)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
            began.elapsed()
        })
        .unwrap();
        assert!(waited >= READ_TIMEOUT && waited < READ_TIMEOUT * 3 / 2, "{waited:?}");
    }
}
