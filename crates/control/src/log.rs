//! The log on a disk: three files, written through a small [`Storage`].
//!
//! | file | what it holds | how it changes |
//! |---|---|---|
//! | `identity` | federation, generation, history, number and directory of the server | replaced |
//! | `snapshot` | the map at an index, and who votes | replaced |
//! | `log` | records: start, hard state, entries, how far it is synced | appended; replaced when it is compacted |
//!
//! A record is two bytes of magic, the length of its payload, a CRC32C over its offset in the file
//! and its payload, and the payload. The offset is in the checksum, so a record that lies where
//! another should is not taken for it.
//!
//! Invariants: nothing is answered before [`Log::persist`] has returned. A snapshot is durable
//! before the entries that it replaces are dropped. The identity is written last, so whoever has
//! one has had a log.
//!
//! Failure modes: what follows the last sync may be torn by a loss of power; it is cut, and
//! reported. After each sync a record says how far the log is synced (itself it is synced with
//! whatever comes next): what cannot be read before that end is damage, and [`open`] refuses the
//! log, naming file and offset. A log that is missing beside an identity is refused as well: this
//! server has voted, and without its log it could vote again. It returns under a new number. A
//! write or sync that fails is final: what the kernel holds then is unknown, so the process must
//! end and read its log anew.

use raft::eraftpb::{Entry, HardState, Snapshot};

use crate::codec::{Malformed, Problem, Reader, Writer, seal, unseal};
use crate::entry::MAX_ENTRY_BYTES;
use crate::ids::{DirectoryId, FederationId, HistoryId, MemberId};
use crate::wire;

/// The longest payload of a record: an entry, with what is around it.
pub const MAX_RECORD_BYTES: usize = MAX_ENTRY_BYTES + 64;
/// The longest log: beyond it the server does not start. It is compacted far below.
pub const MAX_LOG_BYTES: usize = 1 << 30;

const RECORD_MAGIC: [u8; 2] = [0xe7, 0x4c];
const RECORD_HEAD: usize = 10;
const IDENTITY_MAGIC: &[u8; 4] = b"eIDY";
const SNAPSHOT_MAGIC: &[u8; 4] = b"eSNP";
const VERSION: u8 = 1;

/// The files of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    /// Who the server is.
    Identity,
    /// The map at an index.
    Snapshot,
    /// What came after it.
    Log,
}

impl File {
    /// All of them.
    pub const ALL: [File; 3] = [File::Identity, File::Snapshot, File::Log];

    /// Its name in the directory.
    pub fn name(self) -> &'static str {
        match self {
            File::Identity => "identity",
            File::Snapshot => "snapshot",
            File::Log => "log",
        }
    }
}

/// Where the files lie: a directory, or the made-up disk of a test.
pub trait Storage {
    /// The content of a file; none where there is no such file.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(&mut self, file: File) -> Result<Option<Vec<u8>>, StorageError>;

    /// Gives a file this content: all of it or, after a crash, what it had before. Durable when
    /// this returns.
    ///
    /// # Errors
    /// When it cannot be written. It has the old or the new content then.
    fn replace(&mut self, file: File, content: &[u8]) -> Result<(), StorageError>;

    /// Appends to [`File::Log`]. After a crash any part of it may be missing.
    ///
    /// # Errors
    /// When it cannot be written. Any part may be there then.
    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError>;

    /// Makes durable all that was appended.
    ///
    /// # Errors
    /// When it fails: what is durable is not known then.
    fn sync(&mut self) -> Result<(), StorageError>;

    /// Cuts [`File::Log`] to this length. Durable when this returns.
    ///
    /// # Errors
    /// When it fails.
    fn truncate(&mut self, length: u64) -> Result<(), StorageError>;

    /// Keeps a copy of all files beside them, in place of the one that was kept before: they are of
    /// this generation, and about to be replaced. Durable when this returns. Nothing in this crate
    /// reads it; a storage whose files nobody may want back keeps none.
    ///
    /// # Errors
    /// When it fails. The files are as they were.
    fn keep_aside(&mut self, _generation: u64) -> Result<(), StorageError> {
        Ok(())
    }
}

/// The disk failed: end the process, and look at the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StorageError(pub String);

/// Why a log cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Something that was durable cannot be read: the disk is at fault. Restore nothing by hand;
    /// empty the directory, and let this server join under a new number.
    #[error(
        "control plane: `{}` is damaged at byte {offset} ({why}); this server must not vote any more: remove it from \
         the federation, and join with an empty directory",
        file.name()
    )]
    Damaged {
        /// Which file.
        file: File,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        why: Malformed,
    },
    /// A file is gone that was there.
    #[error(
        "control plane: `{}` is missing beside `identity`; without it this server could vote twice: remove it from \
         the federation, and join with an empty directory",
        file.name()
    )]
    Missing {
        /// Which file.
        file: File,
    },
    /// The directory belongs to a server already.
    #[error("control plane: this directory belongs to {0} already")]
    Exists(MemberId),
}

/// Who a server is, for as long as its directory lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its federation.
    pub federation: FederationId,
    /// How often its log was begun anew.
    pub generation: u64,
    /// Which history of that generation; [`HistoryId::UNKNOWN`] until the leader has told it.
    pub history: HistoryId,
    /// Its number there.
    pub member: MemberId,
    /// Its directory.
    pub directory: DirectoryId,
}

/// What is to be made durable, in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Records {
    /// A snapshot that replaces all before it.
    pub(crate) snapshot: Option<Snapshot>,
    /// With a snapshot: index and term of the entry before the first of `entries`, which are all
    /// that the log is to hold then.
    pub(crate) base: (u64, u64),
    /// With a snapshot: the history that it is of.
    pub(crate) history: HistoryId,
    /// Term, vote and commit. Always there with a snapshot.
    pub(crate) hard_state: Option<HardState>,
    /// Entries; they replace those of the log from the first one's index on.
    pub(crate) entries: Vec<Entry>,
    /// Whether an answer depends on this being durable.
    pub(crate) sync: bool,
}

impl Records {
    pub(crate) fn new(history: HistoryId, sync: bool) -> Self {
        Self { snapshot: None, base: (0, 0), history, hard_state: None, entries: Vec::new(), sync }
    }

    /// Whether an answer depends on this being durable.
    pub fn must_sync(&self) -> bool {
        self.sync
    }

    /// How many entries there are.
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// Whether a snapshot replaces the log.
    pub fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }
}

/// What a log held when it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// Who the server is.
    pub identity: Identity,
    pub(crate) snapshot: Snapshot,
    pub(crate) base: (u64, u64),
    pub(crate) entries: Vec<Entry>,
    pub(crate) hard_state: HardState,
    /// The bytes of a torn end that were cut off: what a loss of power took, and nobody was
    /// promised.
    pub torn_bytes: u64,
}

impl Content {
    /// The entries behind the snapshot.
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// The term that this server has reached.
    pub fn term(&self) -> u64 {
        self.hard_state.term
    }
}

/// A log that is open for writing.
#[derive(Debug)]
pub struct Log<S> {
    storage: S,
    length: u64,
    start: Start,
}

/// The first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    identity: Identity,
    base: (u64, u64),
}

enum Record {
    Start(Start),
    HardState(HardState),
    Entry(Entry),
    Synced(u64),
}

/// Opens the log in `storage`, if a server has ever run there.
///
/// # Errors
/// When it is damaged or incomplete, see the head of this module.
pub fn open<S: Storage>(mut storage: S) -> Result<Option<(Log<S>, Content)>, LogError> {
    let Some(identity) = storage.read(File::Identity)? else { return Ok(None) };
    let mut identity = decode_identity(&identity).map_err(|why| damaged(File::Identity, 0, why))?;
    let missing = |file| LogError::Missing { file };
    let snapshot = storage.read(File::Snapshot)?.ok_or(missing(File::Snapshot))?;
    let ((generation, history), snapshot) =
        decode_snapshot(&snapshot).map_err(|why| damaged(File::Snapshot, 0, why))?;
    let bytes = storage.read(File::Log)?.ok_or(missing(File::Log))?;
    if generation < identity.generation {
        let why = Problem::Inconsistent(format!("it is of generation {generation}, not {}", identity.generation));
        return Err(damaged(File::Snapshot, 0, Malformed::new("snapshot of the map", why)));
    }
    // A new generation was begun, or the first snapshot has told the history, and the identity, which
    // is written last, was not written any more.
    if (generation, history) != (identity.generation, identity.history) {
        (identity.generation, identity.history) = (generation, history);
        storage.replace(File::Identity, &encode_identity(&identity))?;
    }
    let Read { mut content, start, end } = read_log(&bytes, identity, snapshot)?;
    content.torn_bytes = bytes.len() as u64 - end;
    if content.base != start.base {
        // A snapshot came, and the log that belongs to it was not written any more.
        let mut log = Log { storage, length: 0, start };
        log.rewrite(content.base, &content.hard_state, &content.entries)?;
        return Ok(Some((log, content)));
    }
    if content.torn_bytes > 0 {
        storage.truncate(end)?;
    } else {
        // The process may have been killed, and the machine lost power later: what is read here
        // is acted upon, so it must be durable.
        storage.sync()?;
    }
    let mut log = Log { storage, length: end, start: Start { identity, base: content.base } };
    log.mark_synced()?;
    Ok(Some((log, content)))
}

/// Begins the log of a new server, from a snapshot: that of [`crate::recover`], or nothing for a
/// server that joins.
///
/// # Errors
/// When there is a server already, or the disk fails.
pub fn create<S: Storage>(
    mut storage: S,
    identity: Identity,
    snapshot: Snapshot,
) -> Result<(Log<S>, Content), LogError> {
    if let Some(there) = storage.read(File::Identity)? {
        let there = decode_identity(&there).map_err(|why| damaged(File::Identity, 0, why))?;
        return Err(LogError::Exists(there.member));
    }
    let created = begin(storage, identity, snapshot)?;
    let (mut log, content) = created;
    log.storage.replace(File::Identity, &encode_identity(&identity))?;
    Ok((log, content))
}

/// Begins another generation of the federation in a directory that has one, with a snapshot of it:
/// that of [`crate::recover`], or what its leader has sent. What was there is kept aside.
///
/// # Errors
/// When the disk fails. The directory is of the old or of the new generation then.
pub fn begin_generation<S: Storage>(
    mut storage: S,
    identity: Identity,
    snapshot: Snapshot,
) -> Result<(Log<S>, Content), LogError> {
    if let Some(there) = storage.read(File::Identity)? {
        let there = decode_identity(&there).map_err(|why| damaged(File::Identity, 0, why))?;
        storage.keep_aside(there.generation)?;
    }
    let (mut log, content) = begin(storage, identity, snapshot)?;
    log.storage.replace(File::Identity, &encode_identity(&identity))?;
    Ok((log, content))
}

fn begin<S: Storage>(storage: S, identity: Identity, snapshot: Snapshot) -> Result<(Log<S>, Content), LogError> {
    let metadata = snapshot.get_metadata();
    let base = (metadata.index, metadata.term);
    let mut hard_state = HardState::default();
    (hard_state.term, hard_state.commit) = (metadata.term, metadata.index);
    let mut log = Log { storage, length: 0, start: Start { identity, base } };
    log.persist(&Records {
        snapshot: Some(snapshot.clone()),
        base,
        hard_state: Some(hard_state.clone()),
        ..Records::new(identity.history, true)
    })?;
    Ok((log, Content { identity, snapshot, base, entries: Vec::new(), hard_state, torn_bytes: 0 }))
}

impl<S: Storage> Log<S> {
    /// Makes `records` durable, if an answer depends on them; else they are on their way.
    ///
    /// # Errors
    /// When the disk fails. Nothing may be answered then, and the process must end.
    pub fn persist(&mut self, records: &Records) -> Result<(), LogError> {
        if let Some(snapshot) = &records.snapshot {
            self.start.identity.history = records.history;
            let of = (self.start.identity.generation, records.history);
            let bytes = encode_snapshot(of, snapshot);
            self.storage.replace(File::Snapshot, &bytes)?;
            let hard_state = records.hard_state.clone().unwrap_or_default();
            return self.rewrite(records.base, &hard_state, &records.entries);
        }
        let mut bytes = Vec::new();
        put_all(&mut bytes, self.length, records.hard_state.as_ref(), &records.entries);
        if bytes.is_empty() {
            return Ok(());
        }
        self.storage.append(&bytes)?;
        self.length += bytes.len() as u64;
        if records.sync {
            self.storage.sync()?;
            self.mark_synced()?;
        }
        Ok(())
    }

    /// Writes anew what was read when the log was opened: after a sync that failed nobody knows
    /// whether what can be read is on the disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn write_anew(&mut self, content: &Content) -> Result<(), LogError> {
        self.rewrite(content.base, &content.hard_state, &content.entries)
    }

    fn rewrite(&mut self, base: (u64, u64), hard_state: &HardState, entries: &[Entry]) -> Result<(), LogError> {
        self.start.base = base;
        let mut bytes = Vec::new();
        put(&mut bytes, 0, &Record::Start(self.start));
        put_all(&mut bytes, 0, Some(hard_state), entries);
        let end = bytes.len() as u64;
        put(&mut bytes, 0, &Record::Synced(end));
        self.storage.replace(File::Log, &bytes)?;
        self.length = bytes.len() as u64;
        Ok(())
    }

    /// The length of the file, in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The disk below.
    pub fn into_storage(self) -> S {
        self.storage
    }

    /// The disk below, to make it fail.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    fn mark_synced(&mut self) -> Result<(), LogError> {
        let mut bytes = Vec::new();
        put(&mut bytes, self.length, &Record::Synced(self.length));
        self.storage.append(&bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

struct Read {
    content: Content,
    start: Start,
    /// Up to where it could be read.
    end: u64,
}

fn read_log(bytes: &[u8], identity: Identity, snapshot: Snapshot) -> Result<Read, LogError> {
    const WHAT: &str = "log of the control plane";
    let inconsistent = |offset: usize, why: String| {
        damaged(File::Log, offset as u64, Malformed::new(WHAT, Problem::Inconsistent(why)))
    };
    if bytes.len() > MAX_LOG_BYTES {
        return Err(inconsistent(0, format!("{} bytes are more than {MAX_LOG_BYTES}", bytes.len())));
    }
    let (mut offset, mut synced) = (0, 0);
    let mut start = None;
    let mut entries: Vec<Entry> = Vec::new();
    let mut hard_state = HardState::default();
    while offset < bytes.len() {
        let (record, next) = match take(bytes, offset) {
            Ok(taken) => taken,
            Err(why) => {
                let durable = last_synced(bytes, offset + 1).max(synced);
                // The file is made whole with its start, never appended to without.
                if start.is_none() || durable > offset as u64 {
                    return Err(damaged(File::Log, offset as u64, why));
                }
                break;
            }
        };
        match record {
            Record::Start(read) if start.is_none() => {
                let (of, ours) = (read.identity, identity);
                if (of.federation, of.member, of.directory) != (ours.federation, ours.member, ours.directory) {
                    return Err(inconsistent(offset, format!("it is the log of {} in {}", of.member, of.directory)));
                }
                start = Some(read);
            }
            Record::Start(_) => return Err(inconsistent(offset, "it begins twice".into())),
            Record::HardState(state) => hard_state = state,
            Record::Synced(up_to) => synced = synced.max(up_to),
            Record::Entry(entry) => {
                let base = start.map_or(0, |start| start.base.0);
                if start.is_none() || entry.index <= base || entry.index > base + entries.len() as u64 + 1 {
                    return Err(inconsistent(offset, format!("entry {} has no place here", entry.index)));
                }
                entries.truncate((entry.index - base - 1) as usize);
                entries.push(entry);
            }
        }
        offset = next;
    }
    let Some(start) = start else { return Err(inconsistent(0, "it is empty".into())) };
    let start = Start { identity, ..start };
    if start.base.0 > snapshot.get_metadata().index {
        let why = format!("it begins behind entry {}, and no snapshot leads there", start.base.0);
        return Err(inconsistent(0, why));
    }
    let (base, entries) = behind(&snapshot, start.base, entries);
    let metadata = snapshot.get_metadata();
    hard_state.commit = hard_state.commit.max(metadata.index).min(base.0 + entries.len() as u64);
    hard_state.term = hard_state.term.max(metadata.term);
    if hard_state.commit < metadata.index || entries.last().is_some_and(|last| last.term > hard_state.term) {
        return Err(inconsistent(offset, "its hard state is older than its entries".into()));
    }
    let content = Content { identity, snapshot, base, entries, hard_state, torn_bytes: 0 };
    Ok(Read { content, start, end: offset as u64 })
}

/// The log that belongs to `snapshot`: all of it if it leads there, nothing if the snapshot came
/// from another server and the log was not replaced any more.
fn behind(snapshot: &Snapshot, base: (u64, u64), entries: Vec<Entry>) -> ((u64, u64), Vec<Entry>) {
    let metadata = snapshot.get_metadata();
    let (index, term) = (metadata.index, metadata.term);
    let leads_there = base == (index, term)
        || index
            .checked_sub(base.0 + 1)
            .and_then(|at| entries.get(at as usize))
            .is_some_and(|entry| entry.term == term);
    if leads_there { (base, entries) } else { ((index, term), Vec::new()) }
}

/// The greatest end that any record from `from` on says is synced, wherever such a record begins.
fn last_synced(bytes: &[u8], from: usize) -> u64 {
    let begins = (from..bytes.len().saturating_sub(1)).filter(|at| bytes[*at..*at + 2] == RECORD_MAGIC);
    let synced = begins.filter_map(|at| match take(bytes, at) {
        Ok((Record::Synced(up_to), _)) => Some(up_to),
        _ => None,
    });
    synced.max().unwrap_or_default()
}

fn take(bytes: &[u8], offset: usize) -> Result<(Record, usize), Malformed> {
    let mut r = Reader::new(&bytes[offset..], "record of the log");
    if r.array()? != RECORD_MAGIC {
        return Err(r.wrong(Problem::Checksum));
    }
    let length = u32::from_le_bytes(r.array()?);
    let sum = u32::from_le_bytes(r.array()?);
    if length as usize > MAX_RECORD_BYTES {
        return Err(r.wrong(Problem::TooMany { found: u64::from(length), limit: MAX_RECORD_BYTES as u64 }));
    }
    let payload = r.raw(length as usize)?;
    if checksum(offset as u64, payload) != sum {
        return Err(r.wrong(Problem::Checksum));
    }
    Ok((decode_record(payload)?, offset + RECORD_HEAD + payload.len()))
}

fn put_all(bytes: &mut Vec<u8>, origin: u64, hard_state: Option<&HardState>, entries: &[Entry]) {
    // The term before the entries of it: a log cut between them is consistent.
    if let Some(state) = hard_state {
        put(bytes, origin, &Record::HardState(state.clone()));
    }
    for entry in entries {
        put(bytes, origin, &Record::Entry(entry.clone()));
    }
}

/// Appends a record to `bytes`, which begin at `origin` of the file.
fn put(bytes: &mut Vec<u8>, origin: u64, record: &Record) {
    let payload = encode_record(record);
    let offset = origin + bytes.len() as u64;
    bytes.extend_from_slice(&RECORD_MAGIC);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&checksum(offset, &payload).to_le_bytes());
    bytes.extend_from_slice(&payload);
}

fn checksum(offset: u64, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&offset.to_le_bytes()), payload)
}

fn encode_record(record: &Record) -> Vec<u8> {
    let mut w = Writer::new();
    match record {
        Record::Start(start) => {
            w.byte(1);
            w.byte(VERSION);
            w.bytes(&encode_identity(&start.identity));
            w.number(start.base.0);
            w.number(start.base.1);
        }
        Record::HardState(state) => {
            w.byte(2);
            wire::encode_hard_state(state, &mut w);
        }
        Record::Entry(entry) => {
            w.byte(3);
            wire::encode_entry(entry, &mut w);
        }
        Record::Synced(up_to) => {
            w.byte(4);
            w.number(*up_to);
        }
    }
    w.done()
}

fn decode_record(payload: &[u8]) -> Result<Record, Malformed> {
    const MAX_IDENTITY_BYTES: usize = 128;
    let mut r = Reader::new(payload, "record of the log");
    let record = match r.byte()? {
        1 => {
            let version = r.byte()?;
            if version != VERSION {
                return Err(r.wrong(Problem::Version(u64::from(version))));
            }
            let identity = decode_identity(&r.bytes(MAX_IDENTITY_BYTES)?)?;
            Record::Start(Start { identity, base: (r.number()?, r.number()?) })
        }
        2 => Record::HardState(wire::decode_hard_state(&mut r)?),
        3 => Record::Entry(wire::decode_entry(&mut r)?),
        4 => Record::Synced(r.number()?),
        other => return Err(r.wrong(Problem::Value(u64::from(other)))),
    };
    r.end()?;
    Ok(record)
}

fn encode_identity(identity: &Identity) -> Vec<u8> {
    let mut w = Writer::new();
    w.raw(&identity.federation.0);
    w.number(identity.generation);
    w.raw(&identity.history.0);
    w.number(identity.member.0);
    w.raw(&identity.directory.0);
    seal(IDENTITY_MAGIC, VERSION, &w.done())
}

fn decode_identity(bytes: &[u8]) -> Result<Identity, Malformed> {
    const WHAT: &str = "identity of the server";
    let mut r = Reader::new(unseal(IDENTITY_MAGIC, VERSION, bytes, WHAT)?, WHAT);
    let identity = Identity {
        federation: FederationId(r.array()?),
        generation: r.number()?,
        history: HistoryId(r.array()?),
        member: MemberId(r.number()?),
        directory: DirectoryId(r.array()?),
    };
    if identity.member.0 == 0 {
        return Err(r.wrong(Problem::Value(0)));
    }
    r.end()?;
    Ok(identity)
}

fn encode_snapshot((generation, history): (u64, HistoryId), snapshot: &Snapshot) -> Vec<u8> {
    let mut w = Writer::new();
    w.number(generation);
    w.raw(&history.0);
    wire::encode_snapshot(snapshot, &mut w);
    seal(SNAPSHOT_MAGIC, VERSION, &w.done())
}

fn decode_snapshot(bytes: &[u8]) -> Result<((u64, HistoryId), Snapshot), Malformed> {
    const WHAT: &str = "snapshot of the map";
    let mut r = Reader::new(unseal(SNAPSHOT_MAGIC, VERSION, bytes, WHAT)?, WHAT);
    let of = (r.number()?, HistoryId(r.array()?));
    let snapshot = wire::decode_snapshot(&mut r)?;
    r.end()?;
    Ok((of, snapshot))
}

fn damaged(file: File, offset: u64, why: Malformed) -> LogError {
    LogError::Damaged { file, offset, why }
}
