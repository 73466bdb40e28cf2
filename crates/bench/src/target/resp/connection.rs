//! A benchmark's connection to a server: the client, with what to do about whatever ends a run.
//!
//! Every wait has a bound ([`LIMITS`]). After an error the connection is of no more use, and
//! nothing is sent again.

use std::io::ErrorKind;
use std::time::Duration;

use super::client::{Broken, Client, Limits};
use super::reply::{Bounds, Reply};
use super::{Credentials, ServerAddress};
use crate::{Error, Result};

/// A store may hold a write for a while. The longest reply is sixteen times the longest value of a
/// workload.
const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(5),
    silence_timeout: Duration::from_secs(60),
    reply_timeout: None,
    reply_bounds: Bounds { bytes: 64 << 20, elements: 1 << 20 },
};

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    client: Client,
    address: ServerAddress,
}

impl Connection {
    /// Connects, and says the password where there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] with the address and what to do.
    pub fn open(address: &ServerAddress, credentials: Option<&Credentials>) -> Result<Self> {
        let client = Client::open(address, LIMITS).map_err(|broken| ended(address, &broken))?;
        let mut connection = Self { client, address: address.clone() };
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
        self.client.queue(parts);
    }

    /// Bytes of requests that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.client.queued_bytes()
    }

    /// Sends what was queued.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn send(&mut self) -> Result<()> {
        self.client.send().map_err(|broken| ended(&self.address, &broken))
    }

    /// The next reply; waits for it. An error reply is a reply.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn receive(&mut self) -> Result<Reply> {
        self.client.receive().map_err(|broken| ended(&self.address, &broken))
    }

    /// Whether [`Connection::receive`] would return at once.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if what came is no reply.
    pub fn has_reply(&self) -> Result<bool> {
        self.client.has_reply().map_err(|broken| ended(&self.address, &broken))
    }

    /// Sends one request and waits for its reply, which must be no error.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn ask(&mut self, parts: &[&[u8]]) -> Result<Reply> {
        match self.client.ask(parts).map_err(|broken| ended(&self.address, &broken))? {
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
        ended(&self.address, &Broken::NotRedis(format!("{shown} to {command}")))
    }
}

/// What ended a connection, and what to do.
fn ended(address: &ServerAddress, broken: &Broken) -> Error {
    let what = match broken {
        Broken::NoServer(error) => {
            format!("it cannot be reached: {error}; start it, or name the one to use with --target")
        }
        Broken::Lost(error) => match error.kind() {
            ErrorKind::UnexpectedEof => {
                "it closed the connection; it ended, or had too many clients: see its log, then start the run again"
                    .into()
            }
            ErrorKind::TimedOut => format!(
                "nothing moved for {} s; it hangs or is stopped: see its log, or use a smaller --pipeline",
                LIMITS.silence_timeout.as_secs()
            ),
            _ => format!("the connection broke: {error}; see the server's log, then start the run again"),
        },
        Broken::NotRedis(what) => format!("it does not speak the Redis protocol: {what}; is the address right?"),
        Broken::SpeaksTls => {
            "it speaks TLS, which the bench does not; name an address without it (`clients.listen` of an Ecotone)"
                .into()
        }
    };
    Error::server(address, what)
}
