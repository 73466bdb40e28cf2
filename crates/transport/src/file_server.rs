//! Sends ranges of exported files to peers.
//!
//! Bulk bytes do not go through gRPC: framing and copying them there costs about as much CPU as
//! compacting them. Instead a connection that begins with [`MAGIC`] instead of HTTP/2's preface is
//! served by a blocking thread. In plain text it lets the kernel send straight from its page cache;
//! with TLS, whose handshake names the connection's purpose, it reads and encrypts.
//!
//! # Protocol
//!
//! All numbers are little-endian.
//!
//! ```text
//! client: "ECOF" version:u32 token:32 bytes
//! server: status:u8                                          0 = go on, 1 = the token is refused (the connection ends)
//!         version:u32                                        only after status 2 = another version (the connection ends)
//! client: name_length:u8 name offset:u64 length:u32          as many as it likes without waiting for answers
//! server: status:u8 length:u32 bytes                         in the order of the requests; shorter only at the end of file
//! ```
//!
//! # Bounds
//!
//! [`MAX_CONNECTIONS`] connections, and of one peer as its [`Quotas`](crate::peers::Quotas) say,
//! by which its bytes are paced as well; a range of at most [`MAX_RANGE_BYTES`]; a peer that neither
//! reads nor asks for [`IDLE_TIMEOUT`] is cut off. A withdrawn token ends its connection at the
//! next request.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ecotone_io::remote_files::RangedRead;
use ecotone_types::{Duty, DutyObserver};
use tracing::debug;

use crate::exports::{Export, Exports, Role};
use crate::file_stream::FileStream;
use crate::peers::PeerConnection;
use crate::protocol::PROTOCOL_VERSION;
use crate::traffic::Traffic;

/// How a connection for files begins.
pub const MAGIC: [u8; 4] = *b"ECOF";
/// Bytes of a token on the wire.
pub const TOKEN_BYTES: usize = 32;
/// The request is granted.
pub const STATUS_OK: u8 = 0;
/// The token does not open that.
pub const STATUS_REFUSED: u8 = 1;
/// The connection is of another version of the protocol; this server's follows.
pub const STATUS_OTHER_VERSION: u8 = 2;
/// Largest range of one request.
pub const MAX_RANGE_BYTES: u32 = 8 << 20;
/// Connections at a time: two for each of some dozens of jobs.
const MAX_CONNECTIONS: usize = 64;
/// Silence after which a peer is cut off. Longer than any pause of a compaction between two reads.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for the rest of a message that has begun.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest that one range is held back for its peer's quota: less than what its reader waits for.
const MAX_PACE: Duration = Duration::from_secs(1);
/// Bytes that are read and encrypted at a time: four of TLS's records.
const ENCRYPTED_BYTES: usize = 64 << 10;
/// How often a thread that waits for a request checks whether its token is still good.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Called for every range that is about to be sent, by what its file is to the job.
pub type RangeObserver = Arc<dyn Fn(Role) + Send + Sync>;

/// Sends ranges of exported files to whoever shows their token.
pub struct FileServer {
    exports: Arc<Exports>,
    traffic: Arc<Traffic>,
    /// Of the threads that serve connections.
    duties: Arc<dyn DutyObserver>,
    observer: RangeObserver,
    connections: AtomicUsize,
}

impl FileServer {
    /// Serves the files of `exports` and counts what it sends in `traffic`.
    pub fn new(
        exports: Arc<Exports>,
        traffic: Arc<Traffic>,
        duties: Arc<dyn DutyObserver>,
        observer: RangeObserver,
    ) -> FileServer {
        FileServer { exports, traffic, duties, observer, connections: AtomicUsize::new(0) }
    }

    /// Serves one connection on a thread of its own.
    pub(crate) fn serve(self: &Arc<Self>, stream: FileStream, caller: Option<Arc<PeerConnection>>) {
        if self.connections.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            debug!("too many connections for files; one is refused");
            return;
        }
        let inside = self.clone();
        let spawned = std::thread::Builder::new().name("ecotone-files".into()).spawn(move || {
            let serving = Serving::begin(&inside);
            if let Err(error) = inside.converse(stream, caller.as_deref()) {
                debug!(%error, "a connection for files ended");
            }
            drop(serving);
        });
        if let Err(error) = spawned {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            debug!(%error, "no thread for a connection for files");
        }
    }

    fn converse(&self, mut stream: FileStream, caller: Option<&PeerConnection>) -> io::Result<()> {
        stream.set_read_timeout(TOKEN_CHECK_INTERVAL)?;
        stream.set_write_timeout(IDLE_TIMEOUT)?;
        let find = |token: &[u8]| self.exports.find(token, caller.map(|caller| &caller.peer().name));
        let mut hello = [0; 8 + TOKEN_BYTES];
        read_rest(&mut stream, &mut hello)?;
        let version = u32::from_le_bytes([hello[4], hello[5], hello[6], hello[7]]);
        let token = &hello[8..];
        if version != PROTOCOL_VERSION {
            let [a, b, c, d] = PROTOCOL_VERSION.to_le_bytes();
            return stream.write_all(&[STATUS_OTHER_VERSION, a, b, c, d]);
        }
        if find(token).is_err() {
            return stream.write_all(&[STATUS_REFUSED]);
        }
        stream.write_all(&[STATUS_OK])?;
        loop {
            let request = next_request(&mut stream, || find(token).is_ok())?;
            let Some((name, offset, length)) = request else { return Ok(()) };
            let Ok(export) = find(token) else { return Ok(()) };
            (self.observer)(export.role);
            let sent = self.send(&mut stream, &export, &name, offset, length)?;
            if let Some(caller) = caller {
                std::thread::sleep(caller.pace(sent as usize).min(MAX_PACE));
            }
        }
    }

    /// Answers a request. Returns how many bytes of the file were sent.
    fn send(&self, stream: &mut FileStream, export: &Export, name: &str, offset: u64, length: u32) -> io::Result<u32> {
        let file = match export.file(name) {
            Ok(file) if length <= MAX_RANGE_BYTES => file,
            _ => return stream.write_all(&answer(STATUS_REFUSED, 0)).map(|()| 0),
        };
        let length = file.len().saturating_sub(offset).min(u64::from(length)) as u32;
        stream.write_all(&answer(STATUS_OK, length))?;
        let end = offset.saturating_add(u64::from(length));
        // The file is shorter than it was: the answer's length was a promise that cannot be kept.
        let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, format!("{name} was cut"));
        match stream.plain() {
            Some(socket) => self.send_plain(socket, file.file(), (offset, end), cut)?,
            None => self.send_encrypted(stream, file.file(), (offset, end), cut)?,
        }
        Ok(length)
    }

    fn send_plain(
        &self,
        socket: &TcpStream,
        file: &File,
        (mut position, end): (u64, u64),
        cut: impl Fn() -> io::Error,
    ) -> io::Result<()> {
        while position < end {
            let left = (end - position) as usize;
            match rustix::fs::sendfile(socket, file, Some(&mut position), left) {
                Ok(0) => return Err(cut()),
                Ok(sent) => self.traffic.add_sent(sent),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn send_encrypted(
        &self,
        stream: &mut FileStream,
        file: &File,
        (mut position, end): (u64, u64),
        cut: impl Fn() -> io::Error,
    ) -> io::Result<()> {
        let mut buffer = vec![0; ENCRYPTED_BYTES.min((end - position) as usize)];
        while position < end {
            let wanted = buffer.len().min((end - position) as usize);
            match file.read_at(&mut buffer[..wanted], position) {
                Ok(0) => return Err(cut()),
                Ok(read) => {
                    stream.write_all(&buffer[..read])?;
                    position += read as u64;
                    self.traffic.add_sent(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        stream.flush()
    }
}

/// The duty of a thread that serves a connection, and its count. Ends when dropped, also by a
/// panic.
struct Serving<'a>(&'a FileServer);

impl Serving<'_> {
    fn begin(server: &FileServer) -> Serving<'_> {
        server.duties.begin(Duty::Transport);
        Serving(server)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.duties.end();
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The next request; `None` when the peer hung up or its token was withdrawn.
fn next_request(stream: &mut FileStream, is_wanted: impl Fn() -> bool) -> io::Result<Option<(String, u64, u32)>> {
    let mut name_length = [0];
    let mut waited = Duration::ZERO;
    loop {
        match stream.read(&mut name_length) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                waited += TOKEN_CHECK_INTERVAL;
                if waited >= IDLE_TIMEOUT || !is_wanted() {
                    return Ok(None);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let mut rest = vec![0; usize::from(name_length[0]) + 12];
    read_rest(stream, &mut rest)?;
    let (name, numbers) = rest.split_at(usize::from(name_length[0]));
    let (offset, length) = numbers.split_at(8);
    let offset = u64::from_le_bytes(offset.try_into().unwrap_or_default());
    let length = u32::from_le_bytes(length.try_into().unwrap_or_default());
    Ok(Some((String::from_utf8_lossy(name).into_owned(), offset, length)))
}

/// The rest of a message that has begun. One lost packet delays it for longer than
/// [`TOKEN_CHECK_INTERVAL`].
fn read_rest(stream: &mut FileStream, mut rest: &mut [u8]) -> io::Result<()> {
    let until = Instant::now() + MESSAGE_TIMEOUT;
    while !rest.is_empty() {
        match stream.read(rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => rest = &mut rest[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if Instant::now() >= until {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn answer(status: u8, length: u32) -> [u8; 5] {
    let mut bytes = [status, 0, 0, 0, 0];
    bytes[1..].copy_from_slice(&length.to_le_bytes());
    bytes
}
