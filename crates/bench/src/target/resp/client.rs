//! A blocking client of the Redis protocol: requests out, replies in, whatever they are for.
//!
//! Every wait and every reply has a bound, which is the caller's ([`Limits`]). After a [`Broken`]
//! the client is of no more use: what was asked may or may not have been done, so nothing is sent
//! again.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use super::ServerAddress;
use super::reply::{self, Arrived, Bounds, Reply};
use super::tls::Tls;

/// What an alert of TLS begins with, and no reply.
const TLS_ALERT: u8 = 0x15;

/// How much is asked of the kernel at once.
const READ_BYTES: usize = 64 << 10;

/// How long a server may take, and how much it may say.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a connection, to each address of a name.
    pub connect_timeout: Duration,
    /// While nothing moves: the server keeps silent, or takes nothing.
    pub silence_timeout: Duration,
    /// For a reply as a whole; none: as long as something moves.
    pub reply_timeout: Option<Duration>,
    /// For each reply.
    pub reply_bounds: Bounds,
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// Nobody listens there.
    #[error("{0}")]
    NoServer(Error),
    /// The connection ended ([`ErrorKind::UnexpectedEof`]), nothing came in time
    /// ([`ErrorKind::TimedOut`]), or the system's error.
    #[error("{0}")]
    Lost(Error),
    /// What came is not Redis' protocol.
    #[error("it answers, but not in Redis' protocol: {0}")]
    NotRedis(String),
    /// A request was answered by an alert of TLS.
    #[error("it speaks TLS")]
    SpeaksTls,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Broken::Lost(match error.kind() {
            // As the kernel says that a time-out has passed.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::new(ErrorKind::TimedOut, "no answer in time"),
            ErrorKind::UnexpectedEof => Error::new(error.kind(), "the connection was closed"),
            _ => error,
        })
    }
}

/// A client with a connection of its own.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    limits: Limits,
    /// Requests that are not sent yet.
    out: Vec<u8>,
    /// What was received is before `filled`, and up to `taken` it was read. What is behind it is
    /// space for more, kept as it is: space that is made for each read costs more than a small
    /// reply.
    input: Vec<u8>,
    filled: usize,
    taken: usize,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Unix(UnixStream),
}

impl Client {
    /// Connects to the first address of a server that answers.
    ///
    /// # Errors
    ///
    /// [`Broken::NoServer`].
    pub fn open(address: &ServerAddress, limits: Limits) -> Result<Self, Broken> {
        let stream = connect(address, &limits).map_err(Broken::NoServer)?;
        Ok(Self { stream, limits, out: Vec::new(), input: Vec::new(), filled: 0, taken: 0 })
    }

    /// The same by TLS, with a server that `tls` trusts.
    ///
    /// # Errors
    ///
    /// [`Broken::NoServer`], also where the certificate of either side is not taken.
    pub fn open_tls(address: &ServerAddress, tls: &Tls, limits: Limits) -> Result<Self, Broken> {
        let stream = match connect(address, &limits).map_err(Broken::NoServer)? {
            Stream::Tcp(stream) => tls.handshake(address, stream).map_err(Broken::NoServer)?,
            _ => return Err(Broken::NoServer(Error::new(ErrorKind::Unsupported, "there is no TLS on a Unix socket"))),
        };
        let stream = Stream::Tls(Box::new(stream));
        Ok(Self { stream, limits, out: Vec::new(), input: Vec::new(), filled: 0, taken: 0 })
    }

    /// Adds a request to those that are sent with the next [`Client::send`].
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
    /// [`Broken::Lost`].
    pub fn send(&mut self) -> Result<(), Broken> {
        if self.out.is_empty() {
            return Ok(());
        }
        self.stream.write_all(&self.out)?;
        self.stream.flush()?;
        self.out.clear();
        Ok(())
    }

    /// The next reply; waits for it. An error reply is a reply.
    ///
    /// # Errors
    ///
    /// [`Broken::Lost`], [`Broken::NotRedis`].
    pub fn receive(&mut self) -> Result<Reply, Broken> {
        let until = self.limits.reply_timeout.map(|timeout| Instant::now() + timeout);
        loop {
            match self.arrived()? {
                Arrived::Whole(bytes) => {
                    let reply = reply::decode(self.unread(), self.limits.reply_bounds);
                    self.taken += bytes;
                    if self.taken == self.filled {
                        (self.filled, self.taken) = (0, 0);
                    }
                    // `arrived` went over the same bytes.
                    return reply.ok_or_else(|| Broken::NotRedis("a reply that cannot be decoded".into()));
                }
                Arrived::Needs(bytes) => self.read_more(bytes, until)?,
            }
        }
    }

    /// Whether [`Client::receive`] would return at once.
    ///
    /// # Errors
    ///
    /// [`Broken::NotRedis`].
    pub fn has_reply(&self) -> Result<bool, Broken> {
        Ok(self.taken < self.filled && matches!(self.arrived()?, Arrived::Whole(_)))
    }

    /// Sends one request and waits for its reply.
    ///
    /// # Errors
    ///
    /// [`Broken::Lost`], [`Broken::NotRedis`].
    pub fn ask(&mut self, parts: &[&[u8]]) -> Result<Reply, Broken> {
        self.queue(parts);
        self.send()?;
        self.receive()
    }

    fn unread(&self) -> &[u8] {
        &self.input[self.taken..self.filled]
    }

    fn arrived(&self) -> Result<Arrived, Broken> {
        reply::arrived(self.unread(), self.limits.reply_bounds).map_err(|what| match self.unread().first() {
            Some(&TLS_ALERT) => Broken::SpeaksTls,
            _ => Broken::NotRedis(what),
        })
    }

    /// Reads until the reply that begins at `taken` has `bytes` bytes, or more.
    fn read_more(&mut self, bytes: usize, until: Option<Instant>) -> Result<(), Broken> {
        debug_assert!(bytes <= self.limits.reply_bounds.bytes);
        self.input.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        while self.filled < bytes {
            if let Some(until) = until {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::from(ErrorKind::TimedOut).into());
                }
                self.stream.set_read_timeout(left.min(self.limits.silence_timeout))?;
            }
            // What a length promises is allocated as it comes.
            let end = self.filled + READ_BYTES;
            if self.input.len() < end {
                self.input.resize(end, 0);
            }
            match self.stream.read(&mut self.input[self.filled..end]) {
                Ok(0) => return Err(Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn connect(address: &ServerAddress, limits: &Limits) -> std::io::Result<Stream> {
    let stream = match address {
        ServerAddress::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        ServerAddress::Tcp(text) => {
            let mut last = Error::new(ErrorKind::NotFound, "the name has no address");
            let mut found = None;
            for address in text.to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, limits.connect_timeout) {
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
    stream.set_read_timeout(limits.silence_timeout)?;
    match &stream {
        Stream::Tcp(stream) => stream.set_write_timeout(Some(limits.silence_timeout))?,
        Stream::Tls(stream) => stream.sock.set_write_timeout(Some(limits.silence_timeout))?,
        Stream::Unix(stream) => stream.set_write_timeout(Some(limits.silence_timeout))?,
    }
    Ok(stream)
}

impl Stream {
    fn set_read_timeout(&self, timeout: Duration) -> std::io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Tls(stream) => stream.sock.set_read_timeout(Some(timeout)),
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Tls(stream) => stream.flush(),
            _ => Ok(()),
        }
    }
}
