//! The store of a running server, or that of one of its shards, asked as a client (`BACKUP`).
//!
//! Where a connection breaks another takes its place, [`MAX_RECONNECTS`] times before anything more
//! comes: the server holds the backup meanwhile. Of a shard another server may be the primary by
//! then: it is looked for sooner, and at once where this one was silent. Every wait has a bound.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use ecotone_bench::target::resp::{Bounds, Broken, Client, Credentials, Limits, Reply, ServerAddress, Tls};
use ecotone_server::backup::{BackupError, Begun, Limiter, MAX_PIECE_BYTES, Result, Source, SourceFile, sha256};

use crate::live_server::ConnectionArguments;

/// A backup begins with a flush of all memtables, which may take long on a busy device; of a shard
/// that takes longer than [`SHARD_SILENCE_TIMEOUT`] it is begun again, with less to flush. The
/// longest reply is a list of files, or what a federation of thousands of shards is like.
const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(10),
    silence_timeout: Duration::from_secs(300),
    reply_timeout: None,
    reply_bounds: Bounds { bytes: 64 << 20, elements: 4096 },
};

/// Of a shard that another server may have, which is asked once this one is silent for so long.
const SHARD_SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a federation is like a server says from memory.
const MAP_SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// All servers are asked for it, and whoever is gone is waited for.
const MAP_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Files that are asked for at a time.
const FILES: u64 = 1000;

/// Pieces that are asked for before the first has come: as many as keep a distant server busy.
const MAX_AHEAD: usize = 8;

/// Connections that are tried before it is given up.
const MAX_RECONNECTS: u32 = 5;

/// The same where a shard is read: another server may have it.
const MAX_SHARD_RECONNECTS: u32 = 2;

/// Before each of them.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Where a server is, and how it is reached.
///
/// # Errors
///
/// The argument that is wrong.
pub(crate) fn server(address: &str, connection: &ConnectionArguments) -> anyhow::Result<Server> {
    let password = connection.password()?;
    let (address, said) = match ServerAddress::is_meant_by(address) {
        true => ServerAddress::parse(address)?,
        false => (ServerAddress::Tcp(crate::top::with_port(address)), None),
    };
    Ok(Server { address, credentials: said.or(password.map(Credentials::password)), tls: connection.tls()? })
}

/// How a server is reached.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: ServerAddress,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) tls: Option<Tls>,
}

/// What is asked of a server.
enum Asked {
    /// Its only store.
    OnlyStore,
    /// What it knows of its federation.
    Map,
    /// A shard.
    Shard(OfShard),
}

/// One shard of a server in a federation.
#[derive(Clone)]
pub(crate) struct OfShard {
    /// Its number.
    pub(crate) shard: u32,
    /// Comes before the stamps of its files: those of two servers have nothing to do with each other.
    pub(crate) stamps: String,
}

/// A server whose store is copied.
pub(crate) struct Remote {
    server: Server,
    of: Asked,
    client: Option<Client>,
    id: String,
}

/// Why there is no reply.
enum Stop {
    /// Another connection may do.
    Broken(Broken),
    /// None does.
    Failed(BackupError),
}

impl From<Broken> for Stop {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<BackupError> for Stop {
    fn from(error: BackupError) -> Self {
        Self::Failed(error)
    }
}

impl Remote {
    /// Its only store.
    pub(crate) fn of(server: Server) -> Self {
        Self { server, of: Asked::OnlyStore, client: None, id: String::new() }
    }

    /// What it says of its federation.
    pub(crate) fn of_map(server: Server) -> Self {
        Self { server, of: Asked::Map, client: None, id: String::new() }
    }

    /// The store of a shard, of which it is the primary as far as is known.
    pub(crate) fn of_shard(server: Server, of: OfShard) -> Self {
        Self { server, of: Asked::Shard(of), client: None, id: String::new() }
    }

    /// Asks it anything, and expects a text.
    ///
    /// # Errors
    ///
    /// As [`Source::begin`]: [`BackupError::Gone`] where it cannot be asked now.
    pub(crate) fn text(&mut self, parts: &[&[u8]]) -> Result<Vec<u8>> {
        match self.lasting(|remote| remote.ask_once(parts))? {
            Reply::Bulk(Some(text)) => Ok(text),
            _ => Err(self.failed("its answer is no text")),
        }
    }

    /// Whether another server may do.
    fn is_of_several(&self) -> bool {
        !matches!(self.of, Asked::OnlyStore)
    }

    fn failed(&self, what: impl std::fmt::Display) -> BackupError {
        BackupError::Source(format!("the server at {}: {what}", self.server.address))
    }

    /// The error of a connection that ended and is not replaced.
    fn ended(&self, broken: &Broken) -> BackupError {
        if self.is_of_several() && matches!(broken, Broken::Lost(_) | Broken::NoServer(_)) {
            return BackupError::Gone(format!("the server at {}: {broken}", self.server.address));
        }
        match broken {
            Broken::NoServer(error) if !self.id.is_empty() => self.failed(format!(
                "it cannot be reached any more: {error}; see its log, then run this again: it goes on from there"
            )),
            Broken::NoServer(error) => self.failed(format!(
                "it cannot be reached: {error}; name the address after `clients are served` in its log"
            )),
            Broken::SpeaksTls => self.failed("it speaks TLS: add --tls and --cacert FILE"),
            Broken::NotRedis(_) if self.server.tls.is_some() => {
                self.failed(format!("{broken}; is its port one of TLS?"))
            }
            broken => self.failed(format!("{broken}; see its log, then run this again: it goes on from there")),
        }
    }

    fn refused(&self, said: &str) -> BackupError {
        let code = said.split_whitespace().next();
        // Who begins, or is being ended, may answer so.
        if self.is_of_several() && matches!(code, Some("NOBACKUP" | "LOADING" | "CLUSTERDOWN")) {
            return BackupError::Gone(format!("the server at {}: {said}", self.server.address));
        }
        let next = match code {
            Some("NOAUTH") => "; give the password with --password-file FILE or in ECOTONE_CLIENTS_PASSWORD",
            Some("WRONGPASS") => "; --password-file or ECOTONE_CLIENTS_PASSWORD does not have its password",
            Some("NOBACKUP") => "; run this again: it goes on from there",
            _ if self.is_of_several() && said.contains("wrong number of arguments") => {
                "; it is of a version that cannot back up one shard of several: update it first"
            }
            _ if said.contains("is alone") => "; back it up by `ecotone backup`",
            _ if said.contains("unknown command") => "; it is no Ecotone, or one of a version that has no backups",
            _ => "",
        };
        self.failed(format!("{said}{next}"))
    }

    /// The connection, made if there is none.
    fn client(&mut self) -> Result<&mut Client, Stop> {
        if self.client.is_none() {
            let limits = match &self.of {
                Asked::OnlyStore => LIMITS,
                Asked::Map => {
                    Limits { connect_timeout: MAP_CONNECT_TIMEOUT, silence_timeout: MAP_SILENCE_TIMEOUT, ..LIMITS }
                }
                Asked::Shard(_) => Limits { silence_timeout: SHARD_SILENCE_TIMEOUT, ..LIMITS },
            };
            let Server { address, credentials, tls } = &self.server;
            let mut client = match tls {
                Some(tls) => Client::open_tls(address, tls, limits)?,
                None => Client::open(address, limits)?,
            };
            if let Some(Credentials { user, password }) = credentials {
                let parts = [Some("AUTH"), user.as_deref(), Some(password)];
                let parts: Vec<&[u8]> = parts.into_iter().flatten().map(str::as_bytes).collect();
                if let Reply::Error(said) = client.ask(&parts)? {
                    return Err(self.refused(&said).into());
                }
            }
            self.client = Some(client);
        }
        // It was just made.
        self.client.as_mut().ok_or(Stop::Failed(BackupError::Ended))
    }

    fn ask_once(&mut self, parts: &[&[u8]]) -> Result<Reply, Stop> {
        match self.client()?.ask(parts)? {
            Reply::Error(said) => Err(self.refused(&said).into()),
            reply => Ok(reply),
        }
    }

    /// Does what may be done again, until a connection lasts.
    fn lasting<T>(&mut self, mut work: impl FnMut(&mut Self) -> Result<T, Stop>) -> Result<T> {
        let mut tries = 0;
        loop {
            match work(self) {
                Ok(done) => return Ok(done),
                Err(Stop::Failed(error)) => {
                    // Replies to what was asked ahead may be in it.
                    self.client = None;
                    return Err(error);
                }
                Err(Stop::Broken(broken)) => {
                    self.client = None;
                    tries += 1;
                    // Who speaks something else will again.
                    let may_pass = match &broken {
                        // It would be waited for as long again.
                        Broken::Lost(error) | Broken::NoServer(error) if self.is_of_several() => {
                            error.kind() != ErrorKind::TimedOut
                        }
                        Broken::Lost(_) | Broken::NoServer(_) => true,
                        _ => false,
                    } && !self.id.is_empty();
                    let most = if self.is_of_several() { MAX_SHARD_RECONNECTS } else { MAX_RECONNECTS };
                    if !may_pass || tries > most {
                        return Err(self.ended(&broken));
                    }
                    std::thread::sleep(RECONNECT_PAUSE);
                }
            }
        }
    }

    fn files(&mut self, number: u64) -> Result<Vec<SourceFile>> {
        let mut files: Vec<SourceFile> = Vec::new();
        while (files.len() as u64) < number {
            let (id, first) = (self.id.clone(), files.len().to_string());
            let reply = self.lasting(|remote| {
                let count = FILES.to_string();
                remote.ask_once(&[b"BACKUP", b"FILES", id.as_bytes(), first.as_bytes(), count.as_bytes()])
            })?;
            let more = array(&reply).unwrap_or_default().chunks(3).map(|file| match file {
                [path, Reply::Integer(bytes), stamp] => {
                    let bytes = u64::try_from(*bytes).ok()?;
                    Some(SourceFile { path: text(path)?.to_owned(), bytes, stamp: text(stamp)?.to_owned() })
                }
                _ => None,
            });
            let more: Option<Vec<SourceFile>> = more.collect();
            match more {
                Some(more) if !more.is_empty() => files.extend(more),
                _ => return Err(self.failed("what it says of the files of the backup makes no sense")),
            }
        }
        Ok(files)
    }

    /// Reads on from `got`, up to the end of `file` or until the connection breaks.
    fn read_on(
        &mut self,
        file: &SourceFile,
        got: &mut u64,
        limiter: &mut Limiter<'_>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<(), Stop> {
        let piece_bytes = limiter.piece_bytes();
        // What is slow on purpose needs none of it, and is shown as it comes.
        let ahead = if piece_bytes < MAX_PIECE_BYTES { 1 } else { MAX_AHEAD };
        let (mut asked, mut under_way) = (*got, VecDeque::new());
        let id = self.id.clone();
        while *got < file.bytes {
            while under_way.len() < ahead && asked < file.bytes {
                let bytes = (file.bytes - asked).min(piece_bytes as u64);
                limiter.wait_for(bytes)?;
                let (from, length) = (asked.to_string(), bytes.to_string());
                let parts: [&[u8]; 6] =
                    [b"BACKUP", b"READ", id.as_bytes(), file.path.as_bytes(), from.as_bytes(), length.as_bytes()];
                let client = self.client()?;
                client.queue(&parts);
                client.send()?;
                under_way.push_back(bytes);
                asked += bytes;
            }
            let reply = self.client()?.receive()?;
            let expected = under_way.pop_front().unwrap_or_default();
            let piece = match &reply {
                Reply::Error(said) => return Err(self.refused(said).into()),
                reply => match array(reply) {
                    Some([Reply::Bulk(Some(piece)), sum]) if text(sum) == Some(sha256(piece).as_str()) => piece,
                    Some([Reply::Bulk(Some(_)), _]) => {
                        let what = format!(
                            "what it sent of {} came damaged; run this again: it goes on from there",
                            file.path
                        );
                        return Err(self.failed(what).into());
                    }
                    _ => return Err(self.failed("its answer to BACKUP READ makes no sense").into()),
                },
            };
            if piece.len() as u64 != expected {
                let what = format!("it sent {} bytes of {} and not {expected}", piece.len(), file.path);
                return Err(self.failed(what).into());
            }
            take(piece)?;
            *got += expected;
        }
        Ok(())
    }
}

impl Source for Remote {
    fn begin(&mut self) -> Result<Begun> {
        let shard = match &self.of {
            Asked::Shard(of) => Some(of.shard.to_string()),
            Asked::OnlyStore | Asked::Map => None,
        };
        let mut request: Vec<&[u8]> = vec![b"BACKUP", b"BEGIN"];
        request.extend(shard.iter().flat_map(|shard| [b"SHARD", shard.as_bytes()]));
        let reply = self.lasting(|remote| remote.ask_once(&request))?;
        let fields = array(&reply).unwrap_or_default();
        let field = |name: &str| {
            let pair = fields.chunks(2).find(|pair| pair.first().and_then(text) == Some(name));
            pair.and_then(|pair| pair.get(1))
        };
        let number = |name: &str| match field(name) {
            Some(Reply::Integer(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        let word = |name: &str| field(name).and_then(text).map(str::to_owned);
        let (Some(id), Some(store), Some(time_ms), Some(files)) =
            (word("id"), word("store"), number("time_ms"), number("files"))
        else {
            return Err(self.failed("its answer to BACKUP BEGIN makes no sense"));
        };
        let position = number("epoch").zip(number("number"));
        self.id = id;
        let listed = self.files(files);
        if matches!(&listed, Err(error) if !matches!(error, BackupError::Gone(_))) {
            // Nobody else knows that it is held. Where it cannot be ended it ends by itself.
            let _ = self.end(false);
        }
        let mut files = listed?;
        if let Asked::Shard(of) = &self.of {
            files.iter_mut().for_each(|file| file.stamp = format!("{}{}", of.stamps, file.stamp));
        }
        Ok(Begun { store, time_ms, position, files })
    }

    fn read(
        &mut self,
        file: &SourceFile,
        from: u64,
        limiter: &mut Limiter<'_>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut got = from;
        while got < file.bytes {
            let before = got;
            // Whatever came gives it all its tries again.
            self.lasting(|remote| match remote.read_on(file, &mut got, limiter, take) {
                Err(Stop::Broken(_)) if got > before => {
                    remote.client = None;
                    Ok(())
                }
                outcome => outcome,
            })?;
        }
        Ok(())
    }

    fn hash(&mut self, file: &SourceFile, from: u64, bytes: u64) -> Result<String> {
        let (id, from, bytes) = (self.id.clone(), from.to_string(), bytes.to_string());
        let reply = self.lasting(|remote| {
            let parts: [&[u8]; 6] =
                [b"BACKUP", b"HASH", id.as_bytes(), file.path.as_bytes(), from.as_bytes(), bytes.as_bytes()];
            remote.ask_once(&parts)
        })?;
        text(&reply).map(str::to_owned).ok_or_else(|| self.failed("its answer to BACKUP HASH makes no sense"))
    }

    /// Asks for none of its files, which counts as asking.
    fn keep(&mut self) -> Result<()> {
        let id = self.id.clone();
        self.lasting(|remote| remote.ask_once(&[b"BACKUP", b"FILES", id.as_bytes(), b"0", b"0"])).map(drop)
    }

    fn end(&mut self, is_completed: bool) -> Result<()> {
        let id = self.id.clone();
        let parts: [&[u8]; 4] = [b"BACKUP", b"END", id.as_bytes(), b"COMPLETED"];
        let asked = self.ask_once(&parts[..if is_completed { 4 } else { 3 }]);
        asked.map(drop).map_err(|stop| match stop {
            Stop::Broken(broken) => self.ended(&broken),
            Stop::Failed(error) => error,
        })
    }
}

fn array(reply: &Reply) -> Option<&[Reply]> {
    match reply {
        Reply::Array(Some(items)) => Some(items),
        _ => None,
    }
}

fn text(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::Bulk(Some(bytes)) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}
