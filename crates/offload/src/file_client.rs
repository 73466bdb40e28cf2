//! Reads ranges of one job's files from the other side.
//!
//! Requests are sent without waiting for the answers of those before, which is all the read-ahead there is: what was asked for
//! waits in the sockets until it is wanted. Answers come in the order of the requests.
//!
//! # Threads
//!
//! Blocking; meant for the one thread of a compaction. Several threads may share it, each then waits for its turn.
//!
//! # Failure
//!
//! A range that does not come within `read_timeout`, or is refused, is an error, and so is everything asked for after it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::Limits;
use crate::exports::Token;
use crate::file_server::{MAGIC, RANGE_BYTES_MAX, STATUS_OK};
use crate::protocol::PROTOCOL_VERSION;
use crate::traffic::Traffic;

/// Buffers kept for reuse: as many as a compaction reads tables at a time.
const BUFFERS_KEPT: usize = 64;

/// A range that was asked for.
pub(crate) struct Pending {
    slot: Arc<Mutex<Slot>>,
}

#[derive(Default)]
struct Slot {
    length: usize,
    data: Option<io::Result<Vec<u8>>>,
}

struct Connection {
    stream: TcpStream,
    /// Asked for and not yet received, in order.
    expected: VecDeque<Arc<Mutex<Slot>>>,
    /// Why nothing more will come.
    broken: Option<String>,
}

/// A connection to the server that exports a job's files.
pub(crate) struct FileClient {
    connection: Mutex<Connection>,
    buffers: Mutex<Vec<Vec<u8>>>,
    range_timeout: Duration,
    traffic: Arc<Traffic>,
    bytes_received: Arc<AtomicU64>,
}

impl FileClient {
    /// Connects to `address` and shows the token. `bytes_received` counts along for whoever watches the job.
    pub(crate) fn connect(
        address: &str,
        token: Token,
        limits: &Limits,
        traffic: Arc<Traffic>,
        bytes_received: Arc<AtomicU64>,
    ) -> io::Result<Arc<FileClient>> {
        let to = address
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address")))?;
        let mut stream = TcpStream::connect_timeout(&to, limits.connect_timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limits.read_timeout))?;
        stream.set_write_timeout(Some(limits.read_timeout))?;
        let mut hello = Vec::with_capacity(40);
        hello.extend_from_slice(&MAGIC);
        hello.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        hello.extend_from_slice(&token.to_wire());
        stream.write_all(&hello)?;
        let mut status = [0];
        stream.read_exact(&mut status)?;
        if status[0] != STATUS_OK {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{address} refused the job's token")));
        }
        let connection = Mutex::new(Connection { stream, expected: VecDeque::new(), broken: None });
        Ok(Arc::new(FileClient {
            connection,
            buffers: Mutex::default(),
            range_timeout: limits.read_timeout,
            traffic,
            bytes_received,
        }))
    }

    /// Bytes received so far.
    pub(crate) fn bytes_received(&self) -> u64 {
        self.bytes_received.load(Ordering::Relaxed)
    }

    /// Asks for `length` bytes (at most [`RANGE_BYTES_MAX`]) of `file` from `offset`. What goes wrong is told by
    /// [`wait`](Self::wait).
    pub(crate) fn begin(&self, file: &str, offset: u64, length: usize) -> Pending {
        let slot = Arc::new(Mutex::new(Slot { length, data: None }));
        let mut connection = self.connection.lock();
        let mut request = Vec::with_capacity(1 + file.len() + 12);
        request.push(file.len().min(usize::from(u8::MAX)) as u8);
        request.extend_from_slice(file.as_bytes());
        request.extend_from_slice(&offset.to_le_bytes());
        request.extend_from_slice(&(length as u32).to_le_bytes());
        let sent = if file.len() > usize::from(u8::MAX) || length > RANGE_BYTES_MAX as usize {
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
    pub(crate) fn wait(&self, pending: Pending) -> io::Result<Vec<u8>> {
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
                // The place in the stream is lost: nothing after this can be told apart.
                connection.broken = Some(error.to_string());
                connection.expected.clear();
            }
            next.lock().data = Some(received);
        }
    }

    /// Gives a buffer back for reuse.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < BUFFERS_KEPT {
            buffers.push(buffer);
        }
    }

    fn receive(&self, stream: &mut TcpStream, wanted: usize) -> io::Result<Vec<u8>> {
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

/// Reads all of `buffer` before `until`: a peer that sends a byte now and then is as good as silent.
fn read_all(stream: &mut TcpStream, mut buffer: &mut [u8], until: Instant) -> io::Result<()> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the range did not come in time");
    while !buffer.is_empty() {
        if Instant::now() >= until {
            return Err(late());
        }
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
