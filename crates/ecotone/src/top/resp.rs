//! A small client of Redis' protocol: it sends words and reads a text or an error. It blocks, with limits for time and size.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The port of Redis, where none is said.
const DEFAULT_PORT: u16 = 6379;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a reply may take as a whole: a server that is busy answers late, one that is gone never.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest reply that is read: INFO of the largest federation is a tenth of it.
const REPLY_BYTES_MAX: usize = 4 << 20;

/// The longest first line of a reply.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Bytes that are shown of what is no reply.
const SHOWN_BYTES: usize = 48;

/// What a server answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Text(String),
    /// The server's own words, with the code word first.
    Error(String),
}

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum Broken {
    /// Nobody listens there.
    NoServer(std::io::Error),
    /// The connection ended, or nothing came in time.
    Lost(std::io::Error),
    /// What came is not Redis' protocol: its beginning.
    NotRedis(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::NoServer(error) | Broken::Lost(error) => write!(f, "{error}"),
            Broken::NotRedis(seen) => write!(f, "it answers, but not in Redis' protocol: {seen:?}"),
        }
    }
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Broken::Lost(match error.kind() {
            // As the kernel says that a time-out has passed.
            std::io::ErrorKind::WouldBlock => std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time"),
            std::io::ErrorKind::UnexpectedEof => std::io::Error::new(error.kind(), "the connection was closed"),
            _ => error,
        })
    }
}

/// `HOST:PORT`, also where only one of the two was said.
pub(super) fn with_port(address: &str) -> String {
    let is_port = !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_digit());
    if is_port {
        format!("127.0.0.1:{address}")
    } else if address.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']')) {
        address.to_owned()
    } else if address.contains(':') && !address.starts_with('[') {
        format!("[{address}]:{DEFAULT_PORT}")
    } else {
        format!("{address}:{DEFAULT_PORT}")
    }
}

/// A connection to a server. After a [`Broken`] it is of no use any more.
pub(super) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects to the first address of `HOST:PORT` that answers.
    pub(super) fn open(address: &str) -> Result<Self, Broken> {
        let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
        for address in address.to_socket_addrs().map_err(Broken::NoServer)? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
                    return Ok(Self(BufReader::new(stream)));
                }
                Err(error) => last = error,
            }
        }
        Err(Broken::NoServer(last))
    }

    /// Sends one request and waits for its reply.
    pub(super) fn ask(&mut self, words: &[&str]) -> Result<Reply, Broken> {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        let until = Instant::now() + REPLY_TIMEOUT;
        self.0.get_mut().write_all(request.as_bytes())?;
        let line = self.line(until)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match line.split_first() {
            Some((b'+' | b':', rest)) => Ok(Reply::Text(text(rest))),
            Some((b'-', rest)) => Ok(Reply::Error(text(rest))),
            Some((b'$', b"-1")) => Ok(Reply::Text(String::new())),
            Some((b'$', length)) => {
                let length = text(length).parse().ok().filter(|length| *length <= REPLY_BYTES_MAX);
                let body = self.bytes(length.ok_or_else(|| not_redis(&line))?, until)?;
                Ok(Reply::Text(text(&body)))
            }
            _ => Err(not_redis(&line)),
        }
    }

    /// Up to the end of a line, without it. What does not begin like a reply is given back as far as it came.
    fn line(&mut self, until: Instant) -> Result<Vec<u8>, Broken> {
        let mut line = Vec::new();
        loop {
            let came = self.more(until)?;
            let end = came.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(came.len(), |end| end + 1);
            line.extend_from_slice(&came[..taken]);
            self.0.consume(taken);
            if !matches!(line[0], b'+' | b'-' | b':' | b'$') || line.len() > LINE_BYTES_MAX {
                return Err(not_redis(&line));
            }
            if end.is_some() {
                line.truncate(line.trim_ascii_end().len());
                return Ok(line);
            }
        }
    }

    /// So many bytes, and the end of line behind them.
    fn bytes(&mut self, length: usize, until: Instant) -> Result<Vec<u8>, Broken> {
        let mut body = Vec::new();
        while body.len() < length + 2 {
            let came = self.more(until)?;
            let taken = came.len().min(length + 2 - body.len());
            body.extend_from_slice(&came[..taken]);
            self.0.consume(taken);
        }
        if !body.ends_with(b"\r\n") {
            return Err(not_redis(&body[length.saturating_sub(SHOWN_BYTES)..]));
        }
        body.truncate(length);
        Ok(body)
    }

    /// What has come and was not consumed; never empty.
    fn more(&mut self, until: Instant) -> Result<&[u8], Broken> {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.0.get_ref().set_read_timeout(Some(left))?;
        if Instant::now() >= until {
            return Err(std::io::Error::from(std::io::ErrorKind::WouldBlock).into());
        }
        let came = self.0.fill_buf()?;
        if came.is_empty() {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        Ok(came)
    }
}

fn not_redis(seen: &[u8]) -> Broken {
    let shown = &seen.trim_ascii_end()[..seen.trim_ascii_end().len().min(SHOWN_BYTES)];
    Broken::NotRedis(String::from_utf8_lossy(shown).into_owned())
}
