//! The log of a server that does not run: found a federation, with nothing or with the shards of a
//! backup, begin a server's log, begin a federation's log anew by force, and write the map out and
//! take it in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_control::entry::{Entry, NewServer, Proposal};
use ecotone_control::ids::{DirectoryId, FederationId, HistoryId, MemberId, ShardId};
use ecotone_control::log::{self, Content, Identity, Log};
use ecotone_control::machine::Outcome;
use ecotone_control::map::{Map, SlotRange};
use ecotone_control::node::{Command, Event, Node};
use ecotone_control::{Snapshot, recover};
use ecotone_identity::names::random;
use ecotone_raftlog::Directory;

use crate::error::{Error, Result};
use crate::known::{Known, known_of};

/// The folder of the control plane in a server's.
pub const CONTROL_FOLDER: &str = "control";
/// Steps in which a federation of one has founded itself, many times over.
const MAX_FOUNDING_TICKS: usize = 10_000;

/// The log's content at a start, and the log.
pub(crate) struct Opened {
    pub(crate) log: Log<Directory>,
    pub(crate) content: Content,
}

impl Opened {
    pub(crate) fn node(&self) -> Result<Node> {
        // Nobody need be unable to foresee it: it keeps two servers from doing the same at once.
        let seed = u64::from(std::process::id()) << 32 ^ self.content.identity.member.0 ^ now_ns();
        Ok(Node::new(self.content.clone(), seed)?)
    }

    /// What is known from the log alone: what it knows to be decided, and all of it where this server
    /// votes alone.
    pub(crate) fn known(&self) -> Result<Known> {
        let mut node = self.node()?;
        // Its commands are those of the node that follows.
        node.handle(Event::Tick, &mut Vec::new())?;
        let mut known = known_of(&node, Arc::new(node.map().clone()));
        if recover::has_voted_alone(&self.content) {
            let (map, last_index) = recover::replay(&self.content)?;
            (known.map, known.applied) = (Arc::new(map), last_index);
        }
        Ok(known)
    }
}

fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

fn log_error(path: &Path) -> impl Fn(log::LogError) -> Error + '_ {
    move |source| Error::Log { path: path.to_owned(), source }
}

fn storage(path: &Path) -> Result<Directory> {
    Directory::open(path).map_err(|error| log_error(path)(error.into()))
}

/// The log in `path`, which must be there.
pub(crate) fn open(path: &Path) -> Result<Opened> {
    let opened = log::open(storage(path)?).map_err(log_error(path))?;
    let (log, content) =
        opened.ok_or_else(|| Error::Usage(format!("{}: there is no log of a federation", path.display())))?;
    if content.torn_bytes > 0 {
        tracing::warn!(
            bytes = content.torn_bytes,
            "the end of the control plane's log was torn by a crash; it is cut off"
        );
    }
    Ok(Opened { log, content })
}

/// Whether there is a log in `path`.
pub fn is_there(path: &Path) -> bool {
    path.join(log::File::Identity.name()).exists()
}

/// Founds a federation with `server` as its first: its log begins, and is durable when this
/// returns. All slots are its shard's if it has data already (`with_shard`).
///
/// # Errors
/// [`Error::Log`] if there is a log already, or the disk fails.
pub fn found(
    path: &Path,
    federation: FederationId,
    server: NewServer,
    authority: Vec<u8>,
    with_shard: bool,
) -> Result<()> {
    let history = HistoryId(federation.0);
    let identity = Identity { federation, generation: 1, history, member: MemberId(1), directory: server.directory };
    let (mut log, content) = if is_there(path) {
        // Interrupted: what is there goes on, if it is this server's.
        let Opened { log, content } = open(path)?;
        if content.identity.directory != server.directory {
            return Err(log_error(path)(log::LogError::Exists(content.identity.member)));
        }
        (log, content)
    } else {
        log::create(storage(path)?, identity, recover::found(federation)).map_err(log_error(path))?
    };
    let mut node = Node::new(content, 1)?;
    let entry = Entry::Found { server, authority: Some(authority), with_shard };
    let mut is_asked = false;
    for _ in 0..MAX_FOUNDING_TICKS {
        let mut events = vec![Event::Tick];
        if node.leads() && !is_asked {
            is_asked = true;
            events.push(Event::Propose { id: 1, proposal: Proposal { by: MemberId(1), entry: entry.clone() } });
        }
        if let Some(outcome) = run(&mut node, &mut log, events, path)? {
            return match outcome {
                Outcome::Joined(_) | Outcome::Unchanged => Ok(()),
                other => Err(Error::Refused(format!("{other:?}"))),
            };
        }
    }
    Err(Error::NotDecided("a federation of one did not come to lead itself".into()))
}

/// Founds a federation with `server` as its first, which holds these shards already: those of a
/// backup of another federation. Its log begins, and is durable when this returns. A log of this
/// server that is there already stays.
///
/// # Errors
/// [`Error::Usage`] where shards and settings make no map; [`Error::Log`] if there is a log of
/// another server, or the disk fails.
pub fn found_restored(
    path: &Path,
    federation: FederationId,
    server: &NewServer,
    authority: Vec<u8>,
    shards: &BTreeMap<ShardId, Vec<SlotRange>>,
    settings: BTreeMap<String, String>,
) -> Result<()> {
    let history = HistoryId(federation.0);
    let identity = Identity { federation, generation: 1, history, member: MemberId(1), directory: server.directory };
    if is_there(path) {
        // Interrupted: it is written with its last step, and so it is whole.
        let Opened { content, .. } = open(path)?;
        return match content.identity == identity {
            true => Ok(()),
            false => Err(log_error(path)(log::LogError::Exists(content.identity.member))),
        };
    }
    let snapshot = recover::restored(federation, server, authority, shards, settings)
        .map_err(|why| Error::Usage(format!("no federation can begin with these shards: {why}")))?;
    log::create(storage(path)?, identity, snapshot).map_err(log_error(path))?;
    Ok(())
}

/// Runs a node alone. Returns the outcome of a proposal, once it is decided.
fn run(node: &mut Node, log: &mut Log<Directory>, mut events: Vec<Event>, path: &Path) -> Result<Option<Outcome>> {
    let mut decided = None;
    while !events.is_empty() {
        let mut commands = Vec::new();
        for event in events.drain(..) {
            node.handle(event, &mut commands)?;
        }
        for command in commands {
            match command {
                Command::Persist { number, records } => {
                    log.persist(&records).map_err(log_error(path))?;
                    events.push(Event::Persisted(number));
                }
                Command::Decided { outcome, .. } => decided = Some(outcome),
                _ => {}
            }
        }
    }
    Ok(decided)
}

/// Begins the log of a server that has joined; what others know comes from the leader. A log that
/// is there already stays, if it is of this server.
///
/// # Errors
/// [`Error::Log`].
pub fn begin(
    path: &Path,
    federation: FederationId,
    generation: u64,
    member: MemberId,
    directory: DirectoryId,
) -> Result<()> {
    if is_there(path) {
        return Ok(());
    }
    let identity = Identity { federation, generation, history: HistoryId::UNKNOWN, member, directory };
    log::create(storage(path)?, identity, Snapshot::default()).map_err(log_error(path))?;
    Ok(())
}

/// What a server that does not run knows of the federation: entries that may not be committed
/// among it.
#[derive(Debug)]
pub struct Recovered {
    /// The map.
    pub map: Map,
    /// The last entry.
    pub last_index: u64,
    /// The server.
    pub member: MemberId,
}

fn recovered(content: &Content) -> Result<Recovered> {
    let (map, last_index) = recover::replay(content)?;
    Ok(Recovered { map, last_index, member: content.identity.member })
}

/// Reads what a server knows.
///
/// # Errors
/// [`Error::Log`], also while the server runs.
pub fn read(path: &Path) -> Result<Recovered> {
    recovered(&open(path)?.content)
}

/// Begins the federation's log anew, with this server as the only voter: after most voters were lost
/// for good. With a map that was written out before, that one is taken. The log that was there is
/// kept beside it.
///
/// # Errors
/// [`Error::Log`]; [`Error::Usage`] if the map is of another federation, or does not know this
/// server.
pub fn force_new(path: &Path, exported: Option<&[u8]>) -> Result<Recovered> {
    let Opened { log, content } = open(path)?;
    let own = recovered(&content)?;
    let (map, last_index) = match exported {
        None => (own.map.clone(), own.last_index),
        Some(bytes) => {
            let map = Map::decode(bytes).map_err(|why| Error::Usage(why.to_string()))?;
            if map.federation != content.identity.federation {
                return Err(Error::Usage(format!(
                    "the map is of federation {}, this server of {}",
                    map.federation, content.identity.federation
                )));
            }
            (map, own.last_index)
        }
    };
    let history = HistoryId(random()?);
    let snapshot = recover::force_new(&map, last_index, &content, history);
    let snapshot = snapshot.map_err(|error| Error::Usage(error.to_string()))?;
    let identity = recover::identity(&content.identity, &snapshot).map_err(|why| Error::Usage(why.to_string()))?;
    let begun = log::begin_generation(log.into_storage(), identity, snapshot).map_err(log_error(path))?;
    recovered(&begun.1)
}

/// Writes the map to a file, which is replaced whole.
///
/// # Errors
/// [`Error::Usage`] with the file.
pub fn export(map: &Map, file: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::Usage(format!("cannot write {}: {error}", file.display()));
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    fs::write(&new, map.encode()).map_err(failed)?;
    fs::File::open(&new).and_then(|open| open.sync_all()).map_err(failed)?;
    fs::rename(&new, file).map_err(failed)
}
