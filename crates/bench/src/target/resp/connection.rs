//! A blocking connection to a server: requests out, replies in.
//!
//! Every wait has a bound: [`CONNECT_TIMEOUT`], and [`REPLY_TIMEOUT`] for each time nothing moves. After an error the connection is
//! of no more use: what was asked may or may not have been done, so nothing is sent again.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::reply::{self, Arrived, MAX_REPLY_BYTES, Reply};
use super::{Credentials, ServerAddress};
use crate::{Error, Result};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server may keep silent, or take nothing, before it is given up: a store may hold a write for a while.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// How much is asked of the kernel at once.
const READ_BYTES: usize = 64 << 10;

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    address: ServerAddress,
    /// Requests that are not sent yet.
    out: Vec<u8>,
    /// What was received stands before `filled`, and up to `taken` it was read. What stands behind is room for more, kept as it is:
    /// room that is made for each read costs more than a small reply.
    input: Vec<u8>,
    filled: usize,
    taken: usize,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    /// Connects, and says the password where there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] with the address and what to do.
    pub fn open(address: &ServerAddress, credentials: Option<&Credentials>) -> Result<Self> {
        let stream = connect(address).map_err(|error| {
            let what = format!("it cannot be reached: {error}; start it, or name the one to use with --target");
            Error::server(address, what)
        })?;
        let mut connection =
            Self { stream, address: address.clone(), out: Vec::new(), input: Vec::new(), filled: 0, taken: 0 };
        if let Some(Credentials { user, password }) = credentials {
            let parts = [Some("AUTH"), user.as_deref(), Some(password)];
            let parts: Vec<&[u8]> = parts.into_iter().flatten().map(str::as_bytes).collect();
            connection.ask(&parts)?;
        }
        Ok(connection)
    }

    /// Where the server is.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Adds a request to those that are sent with the next [`Connection::send`].
    pub fn queue(&mut self, parts: &[&[u8]]) {
        fn head(out: &mut Vec<u8>, mark: u8, number: usize) {
            out.push(mark);
            // Writing to memory cannot fail.
            let _ = write!(out, "{number}\r\n");
        }
        head(&mut self.out, b'*', parts.len());
        for part in parts {
            head(&mut self.out, b'$', part.len());
            self.out.extend_from_slice(part);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Bytes of requests that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.out.len()
    }

    /// Sends what was queued.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn send(&mut self) -> Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        self.stream.write_all(&self.out).map_err(|error| self.broken(&error))?;
        self.out.clear();
        Ok(())
    }

    /// The next reply; waits for it. An error reply is a reply.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn receive(&mut self) -> Result<Reply> {
        loop {
            match self.arrived()? {
                Arrived::Whole(bytes) => {
                    let reply = reply::decode(self.unread());
                    self.taken += bytes;
                    if self.taken == self.filled {
                        (self.filled, self.taken) = (0, 0);
                    }
                    // `arrived` went over the same bytes.
                    return reply.ok_or_else(|| self.nonsense("a reply that cannot be decoded"));
                }
                Arrived::Needs(bytes) => self.read_more(bytes)?,
            }
        }
    }

    /// Whether [`Connection::receive`] would return at once.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if what came is no reply.
    pub fn has_reply(&self) -> Result<bool> {
        Ok(self.taken < self.filled && matches!(self.arrived()?, Arrived::Whole(_)))
    }

    /// Sends one request and waits for its reply, which must be no error.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn ask(&mut self, parts: &[&[u8]]) -> Result<Reply> {
        self.queue(parts);
        self.send()?;
        match self.receive()? {
            Reply::Error(said) => Err(self.refused(parts.first().copied().unwrap_or_default(), &said)),
            reply => Ok(reply),
        }
    }

    /// What the server said to `command` where it ought to have said something else.
    pub fn refused(&self, command: &[u8], said: &str) -> Error {
        let command = command.escape_ascii();
        let next = match said.split_whitespace().next() {
            Some("NOAUTH") => "; give it as resp://:PASSWORD@HOST:PORT or in ECOTONE_BENCH_PASSWORD",
            Some("WRONGPASS") => "; the password in --target or ECOTONE_BENCH_PASSWORD is not the server's",
            Some("MOVED" | "ASK" | "CLUSTERDOWN") => {
                "; it is part of a cluster, of which a benchmark drives one server only"
            }
            Some("READONLY") => "; name the one that takes writes",
            _ => "",
        };
        Error::server(&self.address, format!("it refused {command}: {said}{next}"))
    }

    /// A reply of a kind that `command` does not have.
    pub fn unexpected(&self, command: &str, reply: &Reply) -> Error {
        let shown: String = format!("{reply:?}").chars().take(100).collect();
        self.nonsense(&format!("{shown} to {command}"))
    }

    fn unread(&self) -> &[u8] {
        &self.input[self.taken..self.filled]
    }

    fn arrived(&self) -> Result<Arrived> {
        reply::arrived(self.unread()).map_err(|what| self.nonsense(&what))
    }

    /// Reads until the reply that begins at `taken` has `bytes` bytes, or more.
    fn read_more(&mut self, bytes: usize) -> Result<()> {
        debug_assert!(bytes <= MAX_REPLY_BYTES + 1);
        self.input.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        while self.filled < bytes {
            // What a length promises is allocated as it comes.
            let end = self.filled + READ_BYTES;
            if self.input.len() < end {
                self.input.resize(end, 0);
            }
            match self.stream.read(&mut self.input[self.filled..end]) {
                Ok(0) => {
                    let what = "it closed the connection; it ended, or had too many clients: see its log, then start the run again";
                    return Err(Error::server(&self.address, what));
                }
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(())
    }

    fn broken(&self, error: &std::io::Error) -> Error {
        let seconds = REPLY_TIMEOUT.as_secs();
        let what = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                format!(
                    "nothing moved for {seconds} s; it hangs or is stopped: see its log, or use a smaller --pipeline"
                )
            }
            _ => format!("the connection broke: {error}; see the server's log, then start the run again"),
        };
        Error::server(&self.address, what)
    }

    fn nonsense(&self, what: &str) -> Error {
        Error::server(&self.address, format!("it does not speak the Redis protocol: {what}; is the address right?"))
    }
}

fn connect(address: &ServerAddress) -> std::io::Result<Stream> {
    let stream = match address {
        ServerAddress::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        ServerAddress::Tcp(text) => {
            let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
            let mut found = None;
            for address in text.to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                    Ok(stream) => {
                        found = Some(stream);
                        break;
                    }
                    Err(error) => last = error,
                }
            }
            let stream = found.ok_or(last)?;
            stream.set_nodelay(true)?;
            Stream::Tcp(stream)
        }
    };
    let limit = Some(REPLY_TIMEOUT);
    match &stream {
        Stream::Tcp(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))?,
        Stream::Unix(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))?,
    }
    Ok(stream)
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
