//! A server of the Redis protocol under test: Ecotone, Redis, Kvrocks or another.
//!
//! Keys and values are plain strings (SET, GET, DEL). There is no seek: SCAN visits keys in no
//! order, so workloads that read in key order are refused. A target with an index
//! ([`RespTarget::open_indexed`]) scans as YCSB's own client of Redis does: every write also adds its
//! key to a sorted set, from which a scan takes keys before it reads their values. Flushing is the
//! server's own business.
//!
//! Threads: each thread of a driver has a connection of its own ([`RespTarget::session`]); what the
//! target is asked itself goes over one more. Failure: a connection that breaks ends the run with
//! an error that names the server. Nothing is sent again, because nobody knows whether it was done.

mod address;
mod client;
mod connection;
mod info;
mod reply;
mod tls;

pub use address::{Credentials, ServerAddress};
pub use client::{Broken, Client, Limits};
pub use connection::Connection;
pub use info::ServerInfo;
pub use reply::{Bounds, Reply};
pub use tls::{Tls, TlsError};

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::settle::until_idle;
use super::{Request, Session, Target, TargetKind};
use crate::workload::Workload;
use crate::{Error, Result};

/// How long a server must do nothing until it is taken to have settled.
const QUIET: Duration = Duration::from_secs(3);

/// A server, and how it is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerOptions {
    /// Where it listens.
    pub address: ServerAddress,
    /// What it asks for. Never written down.
    #[serde(skip)]
    pub credentials: Option<Credentials>,
    /// How many requests each connection has under way at once. Default 1, range 1 to 1024.
    pub pipeline: u32,
}

impl ServerOptions {
    /// The most requests under way on one connection.
    pub const MAX_PIPELINE: u32 = 1024;

    /// The server at `address`, asked one request at a time.
    pub fn new(address: ServerAddress) -> Self {
        Self { address, credentials: None, pipeline: 1 }
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    ///
    /// [`Error::Options`].
    pub fn validate(&self) -> Result<()> {
        if (1..=Self::MAX_PIPELINE).contains(&self.pipeline) {
            return Ok(());
        }
        Err(Error::options(format!("pipeline is {}; it must be between 1 and {}", self.pipeline, Self::MAX_PIPELINE)))
    }
}

/// Whether a workload needs commands that the protocol does not have.
fn reads_in_order(workload: Workload) -> bool {
    matches!(workload, Workload::MixGraph | Workload::SeekRandom | Workload::YcsbE)
}

/// Refuses workloads for which the protocol has no command.
///
/// # Errors
///
/// [`Error::Options`] with the reason and what runs.
pub fn check_workload(workload: Workload) -> Result<()> {
    if !reads_in_order(workload) {
        return Ok(());
    }
    let runs = Workload::ALL.into_iter().filter(|&other| !reads_in_order(other)).map(Workload::name);
    Err(Error::options(format!(
        "{workload} reads keys in their order, for which the Redis protocol has no command (SCAN visits keys in no order); \
         through a server run one of: {}",
        runs.collect::<Vec<_>>().join(", ")
    )))
}

/// The sorted set of all keys of a target with an index.
const INDEX: &[u8] = b"ycsb:index";

/// A server as a target.
#[derive(Debug)]
pub struct RespTarget {
    options: ServerOptions,
    has_index: bool,
    quiet: Duration,
    connection: Mutex<Connection>,
}

impl RespTarget {
    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the options are refused, [`Error::Server`] if the server cannot be
    /// reached.
    pub fn open(options: &ServerOptions) -> Result<Self> {
        options.validate()?;
        let mut connection = Connection::open(&options.address, options.credentials.as_ref())?;
        connection.ask(&[b"PING"])?;
        let connection = Mutex::new(connection);
        Ok(Self { options: options.clone(), has_index: false, quiet: QUIET, connection })
    }

    /// The same with an index, so that it can scan. Of a scan all replies are waited for, so that it
    /// is asked one request at a time.
    ///
    /// # Errors
    ///
    /// As of [`RespTarget::open`]; [`Error::Options`] for a pipeline.
    pub fn open_indexed(options: &ServerOptions) -> Result<Self> {
        if options.pipeline != 1 {
            return Err(Error::options("scans through an index are asked one at a time: give no pipeline"));
        }
        Ok(Self { has_index: true, ..Self::open(options)? })
    }

    /// The same, taken to have settled once it has done nothing for `quiet`: of runs that are shorter
    /// than what it would wait else.
    #[must_use]
    pub fn with_quiet(self, quiet: Duration) -> Self {
        Self { quiet, ..self }
    }

    /// What the server tells of itself now.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn info(&self) -> Result<ServerInfo> {
        let mut connection = self.connection.lock();
        match connection.ask(&[b"INFO"])? {
            Reply::Bulk(Some(text)) => Ok(ServerInfo::parse(&String::from_utf8_lossy(&text))),
            reply => Err(connection.unexpected("INFO", &reply)),
        }
    }

    /// Whether the server holds no key.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn is_empty(&self) -> Result<bool> {
        let mut connection = self.connection.lock();
        match connection.ask(&[b"RANDOMKEY"])? {
            Reply::Bulk(key) => Ok(key.is_none()),
            reply => Err(connection.unexpected("RANDOMKEY", &reply)),
        }
    }

    /// The values of several keys, in their order; none for one that is not there.
    ///
    /// # Errors
    ///
    /// [`Error::Server`].
    pub fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let parts: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(keys.iter().copied()).collect();
        let mut connection = self.connection.lock();
        let values = match connection.ask(&parts)? {
            Reply::Array(Some(values)) if values.len() == keys.len() => values,
            reply => return Err(connection.unexpected("MGET", &reply)),
        };
        let values = values.into_iter().map(|value| match value {
            Reply::Bulk(value) => Ok(value),
            reply => Err(connection.unexpected("MGET", &reply)),
        });
        values.collect()
    }
}

impl Target for RespTarget {
    fn name(&self) -> &'static str {
        TargetKind::Resp.name()
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut connection = self.connection.lock();
        let reply = connection.ask(&[b"SET", key, value])?;
        written(&connection, reply)?;
        if self.has_index {
            let reply = connection.ask(&add_to_index(key))?;
            indexed(&connection, &reply)?;
        }
        Ok(())
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let mut connection = self.connection.lock();
        match connection.ask(&[b"GET", key])? {
            Reply::Bulk(Some(found)) => value.extend_from_slice(&found),
            Reply::Bulk(None) => return Ok(false),
            reply => return Err(connection.unexpected("GET", &reply)),
        }
        Ok(true)
    }

    fn seek_scan(&self, key: &[u8], entries: u32) -> Result<u32> {
        if !self.has_index {
            return Err(Error::server(&self.options.address, "the Redis protocol has no seek"));
        }
        scan(&mut self.connection.lock(), key, entries)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut connection = self.connection.lock();
        match connection.ask(&[b"DEL", key])? {
            Reply::Integer(_) => Ok(()),
            reply => Err(connection.unexpected("DEL", &reply)),
        }
    }

    /// Does nothing: when a memtable becomes a table is for the server to say.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self, limit: Duration, stop: &AtomicBool) -> Result<bool> {
        // Who tells nothing of its background work cannot be waited for.
        let quiet = if self.info()?.is_ecotone() { self.quiet } else { Duration::ZERO };
        until_idle(limit, stop, quiet, || Ok(self.info()?.is_busy()))
    }

    /// Always zero: the driver asks a hundred times a second, which a server is not to be asked.
    /// What a server tells of its stalls stands in [`RespTarget::info`].
    fn stall_time(&self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn session(&self) -> Result<Option<Box<dyn Session>>> {
        let connection = Connection::open(&self.options.address, self.options.credentials.as_ref())?;
        Ok(Some(Box::new(RespSession { connection, has_index: self.has_index, begun: VecDeque::new() })))
    }

    fn pipeline(&self) -> u32 {
        self.options.pipeline
    }
}

/// A driver's thread and its connection.
#[derive(Debug)]
struct RespSession {
    connection: Connection,
    has_index: bool,
    /// What is under way, the oldest first.
    begun: VecDeque<Begun>,
}

#[derive(Clone, Copy, Debug)]
enum Begun {
    Read,
    Write,
    /// Read already; whether the key was there.
    WriteAfterRead(bool),
    ReadAndWrite,
    /// Written, and added to the index.
    IndexedWrite,
    /// Read already: whether there was anything.
    Scanned(bool),
}

impl Session for RespSession {
    fn begin(&mut self, request: Request<'_>, is_alone: bool) -> Result<()> {
        let connection = &mut self.connection;
        self.begun.push_back(match request {
            Request::Put { key, value } => {
                connection.queue(&[b"SET", key, value]);
                if self.has_index {
                    connection.queue(&add_to_index(key));
                    Begun::IndexedWrite
                } else {
                    Begun::Write
                }
            }
            Request::Scan { key, entries } if self.has_index && is_alone => {
                Begun::Scanned(scan(connection, key, entries)? > 0)
            }
            Request::Scan { .. } => return Err(Error::options("a server without an index has no scans")),
            Request::Get { key } => {
                connection.queue(&[b"GET", key]);
                Begun::Read
            }
            Request::ReadModifyWrite { key, value } if is_alone => {
                connection.queue(&[b"GET", key]);
                connection.send()?;
                let reply = connection.receive()?;
                let found = found(connection, reply)?;
                connection.queue(&[b"SET", key, value]);
                Begun::WriteAfterRead(found)
            }
            Request::ReadModifyWrite { key, value } => {
                connection.queue(&[b"GET", key]);
                connection.queue(&[b"SET", key, value]);
                Begun::ReadAndWrite
            }
        });
        Ok(())
    }

    fn finish(&mut self) -> Result<bool> {
        self.connection.send()?;
        let Some(begun) = self.begun.pop_front() else {
            return Err(Error::server(self.connection.address(), "nothing was asked"));
        };
        if let Begun::Scanned(found) = begun {
            return Ok(found);
        }
        let reply = self.connection.receive()?;
        match begun {
            Begun::Scanned(found) => Ok(found),
            Begun::IndexedWrite => {
                written(&self.connection, reply)?;
                let reply = self.connection.receive()?;
                indexed(&self.connection, &reply).map(|()| true)
            }
            Begun::Read => found(&self.connection, reply),
            Begun::Write => written(&self.connection, reply).map(|()| true),
            Begun::WriteAfterRead(found) => written(&self.connection, reply).map(|()| found),
            Begun::ReadAndWrite => {
                let found = found(&self.connection, reply)?;
                let reply = self.connection.receive()?;
                written(&self.connection, reply).map(|()| found)
            }
        }
    }

    fn is_answered(&self) -> Result<bool> {
        if matches!(self.begun.front(), Some(Begun::Scanned(_))) {
            return Ok(true);
        }
        self.connection.has_reply()
    }

    fn unsent_bytes(&self) -> usize {
        self.connection.queued_bytes()
    }
}

/// All keys have one score, so that the set has them in their own order.
fn add_to_index(key: &[u8]) -> [&[u8]; 4] {
    [b"ZADD", INDEX, b"0", key]
}

fn indexed(connection: &Connection, reply: &Reply) -> Result<()> {
    match reply {
        Reply::Integer(_) => Ok(()),
        Reply::Error(said) => Err(connection.refused(b"ZADD", said)),
        reply => Err(connection.unexpected("ZADD", reply)),
    }
}

/// Reads up to `entries` values from `key` on; gives how many there were.
fn scan(connection: &mut Connection, key: &[u8], entries: u32) -> Result<u32> {
    let (from, count) = ([b"[", key].concat(), entries.to_string());
    let keys = match connection.ask(&[b"ZRANGEBYLEX", INDEX, &from, b"+", b"LIMIT", b"0", count.as_bytes()])? {
        Reply::Array(Some(keys)) => keys,
        reply => return Err(connection.unexpected("ZRANGEBYLEX", &reply)),
    };
    // One by one: a server of a cluster refuses keys of different slots in one request.
    for key in &keys {
        match key {
            Reply::Bulk(Some(key)) => connection.queue(&[b"GET", key]),
            reply => return Err(connection.unexpected("ZRANGEBYLEX", reply)),
        }
    }
    connection.send()?;
    let mut there = 0;
    for _ in &keys {
        let reply = connection.receive()?;
        there += u32::from(found(connection, reply)?);
    }
    Ok(there)
}

/// Whether a read found its key.
fn found(connection: &Connection, reply: Reply) -> Result<bool> {
    match reply {
        Reply::Bulk(value) => {
            std::hint::black_box(value.as_ref().map(|value| value.last()));
            Ok(value.is_some())
        }
        Reply::Error(said) => Err(connection.refused(b"GET", &said)),
        reply => Err(connection.unexpected("GET", &reply)),
    }
}

fn written(connection: &Connection, reply: Reply) -> Result<()> {
    match reply {
        Reply::Status(said) if said == "OK" => Ok(()),
        Reply::Error(said) => Err(connection.refused(b"SET", &said)),
        reply => Err(connection.unexpected("SET", &reply)),
    }
}

#[cfg(test)]
mod tests;
