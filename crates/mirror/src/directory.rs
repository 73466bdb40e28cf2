//! A copy's directory D takes the items of a stream.
//!
//! Two sides. The **log side** is written at once: WALs, segments, the clock. The **file side**
//! (MANIFEST, `CURRENT`, finished files, deletions) is written to [`pending`](crate::pending), and
//! done later, as far as what it needs is here and durable ([`Directory::advance`]): tables that
//! live short are so never fetched. D can be opened at any time with what it shows: an older
//! MANIFEST, with all WALs that are not deleted yet, holds the same data. (Of a store that was just
//! made that is so from the first sync on; who [opens](Directory::prepare_opening) it earlier does
//! what is pending first.)
//!
//! Segments that GC has written are made here of what they were copied from, where the stream says
//! how ([`crate::collecting`]); that takes its time, and is of the file side.
//!
//! The first items of an epoch, up to its first `CURRENT`, are its **opening**: they are held in
//! memory, then what they name and D lacks is fetched, and then D is [switched](crate::opening) to
//! the new epoch, all at once. Until then it is exactly what it was in the old one.
//!
//! # Invariants
//!
//! - What [`Directory::apply`] returns is recorded in `mark`, in the kernel's memory as all that it
//!   rests on. At a start the files are cut to it.
//! - Nothing of the file side is done that is not synced as a whole: no durable MANIFEST names bytes
//!   that are not durable. So `synced` and the state of the file side are one state.
//! - Files are deleted once `synced` says that no MANIFEST in force names them, and
//!   [who reads D](crate::readers) has caught up with that.
//! - A file that others may hold by a link is never cut where it is.
//!
//! # Failure
//!
//! A full disk fails a call, changes nothing and may be tried again: items that are taken are passed
//! over. A failed sync loses what nobody knows: everything is refused, later syncs too
//! ([`Directory::has_failed`]), until the directory is opened again, and then holds what was synced
//! before. Files that are not what the records say make a
//! copy that holds nothing, and is built anew.
//!
//! # Threads
//!
//! One owner, which may be another one each time. A [`SyncJob`] and a [`VerifyJob`] run beside it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ecotone_replica::position::{BootId, Mark, Position, Relation};
use ecotone_replica::receiver::Sync;
use ecotone_replica::standing::Standing;
use ecotone_replica::stream::{ContentId, FileKind, Item, Kind};
use parking_lot::Mutex;

pub use ecotone_replica::copy::Found;

pub use crate::collecting::CollectJob;
pub use crate::fetched::{Want, check_fetched};

use crate::catalog::{Catalog, Hasher, hash_file};
use crate::collecting::making_path;
use crate::error::{Error, Result};
use crate::fetched::{checked_path, fetched_in, remove_fetched, temporary_in};
use crate::files::{
    crc_of, crc_of_open, create, cut, files_in, holds, len_of, make_parent, open, put_current, put_store,
};
use crate::names::{self, FileName, beside, path_of};
use crate::opening::{self, Opening};
use crate::pending::{self, Absent, Pending};
use crate::readers::{MAX_CLOSE_TIME, Readers};
use crate::record::{self, FileState, LogState, MAX_OPEN_FILES, SYNCED_FILE, Slots, Synced, Tail};
use crate::seed::{self, Built, Offer, OfferedFile};
use crate::switch;
use crate::{logs, whole};

/// How much the numbers are raised by that a primary gives: more than are given in between.
pub const NUMBER_GAP: u64 = 65_536;
/// A finished file that may be deleted again soon is fetched so much later.
pub const FETCH_DELAY_US: u64 = 1_000_000;
/// With so many items pending nothing is waited for.
pub const LONG_PENDING_ITEMS: usize = 1024;
/// Items of an opening that are held in memory, and of what follows until it is done.
pub const MAX_OPENING_BYTES: u64 = 64 << 20;
/// What is wanted at a time.
pub const MAX_WANTS: usize = 64;

const MARK_FILE: &str = "mark";
const OPENED_FILE: &str = "opened";

/// A file of the log side.
struct Growing {
    len: u64,
    crc: u32,
    file: Arc<File>,
    /// Of all its bytes, if they all passed by here.
    hasher: Option<Hasher>,
}

/// What was taken of files that grow and is not written yet: several items become one write.
#[derive(Default)]
struct Runs<'a> {
    files: BTreeMap<FileName, Vec<&'a [u8]>>,
    /// Where the last of these items leads.
    reach: Mark,
}

impl<'a> Runs<'a> {
    /// Takes bytes that go on where the file ends, with what was taken before.
    fn join(&mut self, growing: &BTreeMap<FileName, Growing>, file: FileName, offset: u64, bytes: &'a [u8]) -> bool {
        let Some(growing) = growing.get(&file) else { return false };
        let before: usize = self.files.get(&file).map_or(0, |parts| parts.iter().map(|part| part.len()).sum());
        let goes_on = growing.len + before as u64 == offset;
        if goes_on {
            self.files.entry(file).or_default().push(bytes);
        }
        goes_on
    }
}

/// What `synced` says.
struct Durable {
    slots: Slots,
    synced: Synced,
    /// What it will say when the sync that was begun has ended.
    begun: Option<LogState>,
    /// Something else has taken the place of what it speaks of.
    is_closed: bool,
}

impl Durable {
    /// Says it from now on. If that fails it says the one or the other.
    fn write(&mut self, synced: Synced) -> Result<()> {
        self.slots.write(&record::encode_synced(&synced))?;
        self.slots.sync()?;
        self.synced = synced;
        Ok(())
    }
}

/// What a sync has to do. It runs on any thread.
#[must_use]
pub struct SyncJob {
    what: Sync,
    files: Vec<(PathBuf, Arc<File>)>,
    directories: Vec<PathBuf>,
    finished: Vec<(FileName, ContentId)>,
    /// A directory of which all is synced, as nobody has recorded what is not.
    whole: Option<PathBuf>,
    durable: Arc<Mutex<Durable>>,
    has_failed: Arc<AtomicBool>,
    mark: PathBuf,
    is_run: bool,
}

/// A sync that has ended.
#[must_use]
pub struct SyncDone {
    what: Sync,
    durable: Arc<Mutex<Durable>>,
    finished: Vec<(FileName, ContentId)>,
}

impl SyncJob {
    /// Syncs.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]. Where that is of a file that was to be synced, the directory refuses everything
    /// until it is opened again. So does another sync of it: the kernel says once only what it lost.
    pub fn run(mut self) -> Result<SyncDone> {
        self.is_run = true;
        if self.has_failed.load(Ordering::SeqCst) {
            return Err(failed_before(&self.mark));
        }
        let synced = self
            .files
            .iter()
            .try_for_each(|(path, file)| record::flush(file).map_err(|error| Error::io("sync", path, error)));
        let synced = synced.and_then(|()| self.directories.iter().try_for_each(|path| record::sync_directory(path)));
        let synced = synced.and_then(|()| self.whole.as_deref().map_or(Ok(()), whole::sync));
        if let Err(error) = synced {
            self.has_failed.store(true, Ordering::SeqCst);
            // What is in the kernel's memory may be lost: the next start counts what was synced.
            record::remove_file(&self.mark)?;
            return Err(error);
        }
        if self.what == Sync::Wal {
            let mut durable = self.durable.lock();
            if self.has_failed.load(Ordering::SeqCst) {
                return Err(failed_before(&self.mark));
            }
            if let Some(log) = durable.begun.take().filter(|_| !durable.is_closed) {
                let side = durable.synced.side.clone();
                durable.write(Synced { log, side })?;
            }
        }
        Ok(SyncDone {
            what: self.what,
            durable: Arc::clone(&self.durable),
            finished: std::mem::take(&mut self.finished),
        })
    }
}

/// What a verification has to read. It runs on any thread, while more is taken.
#[must_use]
pub struct VerifyJob {
    /// Logs that the engine has written.
    logs: Vec<PathBuf>,
    tails: Vec<(PathBuf, Arc<File>, Tail)>,
    pending: Option<pending::Snapshot>,
    /// One of the files is not here.
    is_incomplete: bool,
    durable: Arc<Mutex<Durable>>,
}

/// A verification that has ended.
#[must_use]
pub struct VerifyDone {
    is_sound: bool,
    durable: Arc<Mutex<Durable>>,
}

impl VerifyJob {
    /// Reads all of it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn run(self) -> Result<VerifyDone> {
        Ok(VerifyDone { is_sound: self.is_sound()?, durable: self.durable })
    }

    fn is_sound(&self) -> Result<bool> {
        if self.is_incomplete {
            return Ok(false);
        }
        for path in &self.logs {
            if logs::is_damaged(path)? {
                return Ok(false);
            }
        }
        for (path, file, tail) in &self.tails {
            match crc_of_open(file, path, tail.file, tail.len) {
                Ok(crc) if crc == tail.crc => (),
                Ok(_) | Err(Error::Mismatch { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.pending.as_ref().map_or(Ok(true), pending::Snapshot::is_sound)
    }
}

impl Drop for SyncJob {
    fn drop(&mut self) {
        if !self.is_run {
            // Nobody else knows what it was to sync.
            self.has_failed.store(true, Ordering::SeqCst);
        }
    }
}

/// See the module.
pub struct Directory {
    path: PathBuf,
    boot: BootId,
    catalog: Mutex<Catalog>,
    durable: Arc<Mutex<Durable>>,
    marks: Slots,
    generation: u64,
    is_foreign: bool,
    /// The engine has it open for writing.
    is_opened: bool,
    /// What is applied.
    reached: Mark,
    /// Up to where `mark` says so.
    recorded: Mark,
    clock_limit_ms: u64,
    /// Up to where items are applied or held.
    taken: Mark,
    /// What is applied and not in `mark` yet.
    is_unrecorded: bool,
    growing: BTreeMap<FileName, Growing>,
    pending: Pending,
    opening: Option<Opening>,
    /// Taken behind an opening, or behind what failed.
    queue: VecDeque<(Item, Vec<u8>)>,
    queue_bytes: u64,
    synced: Position,
    /// What the next sync has to sync: files, and whether names are new.
    dirty_segments: HashMap<FileName, Arc<File>>,
    dirty_wals: HashMap<FileName, Arc<File>>,
    /// Segments that a sync was begun of, and has not ended.
    syncing_segments: HashMap<FileName, Arc<File>>,
    has_new_segments: bool,
    has_new_wals: bool,
    /// Segments that were finished since the last sync began.
    finished: Vec<(FileName, ContentId)>,
    has_failed: Arc<AtomicBool>,
    now_us: u64,
    readers: Arc<Readers>,
}

impl Directory {
    /// Opens the copy's directory, or begins one: finishes what a crash has interrupted, and cuts the
    /// files to what counts. After another boot than the last one's that is what was synced.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], also of a full disk; [`Error::Malformed`] where the standing is damaged.
    pub fn open(path: &Path, boot: BootId) -> Result<(Self, Found)> {
        record::make_directory(&names::copy_directory(path))?;
        switch::recover(path)?;
        seed::remove_offers(path)?;
        opening::recover(path)?;
        Self::load(path, boot)
    }

    fn load(path: &Path, boot: BootId) -> Result<(Self, Found)> {
        record::make_directory(&fetched_in(path))?;
        let mut standing = record::read_standing(path)?;
        let (slots, synced) = Slots::open(beside(path, SYNCED_FILE), record::decode_synced)?;
        let (marks, log) = Slots::open(beside(path, MARK_FILE), record::decode_log)?;
        record::sync_directory(&names::copy_directory(path))?;
        let synced = synced.unwrap_or_else(|| Synced { log: LogState::new(boot), side: FileState::default() });
        let log = log.filter(|log| log.boot == boot && log.generation <= synced.log.generation);
        // In this boot it acknowledged more than was synced, and nobody knows how much.
        let mut has_lost =
            log.is_none() && standing.as_ref().is_some_and(|standing| standing.unsynced_in == Some(boot));
        // A sync may have recorded what a full disk kept out of `mark`.
        let log =
            log.filter(|log| log.generation == synced.log.generation && log.mark.position >= synced.log.mark.position);
        let is_of_this_boot = log.is_some();
        let mut log = LogState { boot, ..log.unwrap_or_else(|| synced.log.clone()) };
        if std::mem::take(&mut log.is_open) {
            let opened = Self::last_synced_open(path, &synced.log)?;
            log.clock_limit_ms = opened.map_or(0, |opened| opened.clock_limit_ms).max(log.clock_limit_ms);
            if is_of_this_boot {
                // The engine was killed. What it wrote is in the kernel's memory, and so is all that
                // anybody was told of its epoch.
                let position = Position::behind_all(log.mark.position.epoch);
                log.mark = Mark { position, chain: !log.mark.chain };
            } else if let Some(opened) = opened {
                log.mark = opened.mark;
            }
        }
        let mut synced = synced;
        let mut opened = reconcile(path, &mut log, &synced.side);
        if let Err(Error::Malformed { .. } | Error::Mismatch { .. } | Error::Missing { .. }) = &opened {
            if let Err(error) = &opened {
                tracing::warn!(%error, directory = %path.display(), "a copy is damaged, and holds nothing from now on");
            }
            has_lost = true;
            let generation = synced.log.generation + 1;
            // Where no file of `pending` begins.
            let start = synced.log.pending_end.max(log.pending_end) + 1;
            log = LogState { generation, pending_end: start, ..LogState::new(boot) };
            let side = FileState { start, deleted: start, drained: start, ..FileState::default() };
            synced = Synced { log: log.clone(), side };
            opened = reconcile(path, &mut log, &synced.side);
        }
        let (pending, growing) = opened?;
        if let Some(standing) = standing.as_mut().filter(|standing| has_lost && standing.is_whole) {
            standing.is_whole = false;
            record::write_standing(path, standing)?;
        }
        let [dirty_segments, dirty_wals] = Self::unsynced(path, &log, &synced, &pending, &growing)?;
        let durable = Durable { slots, synced, begun: None, is_closed: false };
        let mut directory = Self {
            path: path.to_path_buf(),
            boot,
            catalog: Mutex::new(Catalog::open(path)?),
            synced: durable.synced.log.mark.position,
            durable: Arc::new(Mutex::new(durable)),
            marks,
            generation: log.generation,
            is_foreign: log.is_foreign,
            is_opened: false,
            reached: log.mark,
            recorded: log.mark,
            clock_limit_ms: log.clock_limit_ms,
            taken: log.mark,
            is_unrecorded: true,
            growing,
            pending,
            opening: None,
            queue: VecDeque::new(),
            queue_bytes: 0,
            has_new_segments: !dirty_segments.is_empty(),
            has_new_wals: !dirty_wals.is_empty(),
            dirty_segments,
            dirty_wals,
            syncing_segments: HashMap::new(),
            finished: Vec::new(),
            has_failed: Arc::new(AtomicBool::new(false)),
            now_us: 0,
            readers: Arc::default(),
        };
        {
            let mut durable = directory.durable.lock();
            let synced = durable.synced.clone();
            durable.write(synced)?;
        }
        directory.pending.remove_others()?;
        directory.finish_deletions()?;
        directory.look_for_absent()?;
        directory.record_mark()?;
        let found = Found { standing, at: directory.reached, clock_limit_ms: directory.clock_limit_ms };
        Ok((directory, found))
    }

    /// What `opened` says of files that `log` says are open.
    fn last_synced_open(path: &Path, log: &LogState) -> Result<Option<record::Opened>> {
        let (_, opened) = Slots::open(beside(path, OPENED_FILE), record::decode_opened)?;
        let is_its = |opened: &record::Opened| {
            opened.generation == log.generation && opened.mark.position.epoch == log.mark.position.epoch
        };
        Ok(opened.filter(is_its))
    }

    /// What was written after the last sync, by this process or one before it.
    fn unsynced(
        path: &Path,
        log: &LogState,
        synced: &Synced,
        pending: &Pending,
        growing: &BTreeMap<FileName, Growing>,
    ) -> Result<[HashMap<FileName, Arc<File>>; 2]> {
        let (mut segments, mut wals) = (HashMap::new(), HashMap::new());
        if log.mark == synced.log.mark {
            return Ok([segments, wals]);
        }
        for (file, open) in growing {
            let into = if file.kind == FileKind::Segment { &mut segments } else { &mut wals };
            into.insert(*file, Arc::clone(&open.file));
        }
        // Segments that were finished since.
        let later = pending.entries().iter().filter(|entry| entry.item.position > synced.log.mark.position);
        let finished = later.filter_map(|entry| entry.finished()).map(|(file, _)| file);
        let grew = synced.log.tails.iter().map(|tail| tail.file);
        for file in finished.chain(grew).filter(|file| file.kind == FileKind::Segment) {
            if segments.contains_key(&file) {
                continue;
            }
            let path = path_of(path, file);
            match File::open(&path) {
                Ok(opened) => drop(segments.insert(file, Arc::new(opened))),
                Err(error) if error.kind() == ErrorKind::NotFound => (),
                Err(error) => return Err(Error::io("open", &path, error)),
            }
        }
        Ok([segments, wals])
    }

    /// The same, which `readers` may read while it is a replica's, and whom deletions wait for.
    #[must_use]
    pub fn with_readers(mut self, readers: Arc<Readers>) -> Self {
        self.readers = readers;
        self.admit_readers();
        self
    }

    /// Of files that the engine has written nobody follows what comes.
    fn admit_readers(&self) {
        let is_shown = self.durable.lock().synced.side.current.is_some();
        self.readers.admit(is_shown && !self.is_opened && !self.is_foreign);
    }

    /// Other files are about to take the place of what is there.
    fn close_readers(&self) {
        if !self.readers.close(MAX_CLOSE_TIME) {
            tracing::warn!(directory = %self.path.display(), "who reads a copy does not end in time; it goes on without");
        }
    }

    /// Records the standing: durable when it returns.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: what was recorded before holds.
    pub fn persist(&mut self, standing: &Standing) -> Result<()> {
        record::write_standing(&self.path, standing)
    }

    /// What it holds, and has recorded.
    #[must_use]
    pub fn applied(&self) -> Mark {
        self.recorded
    }

    /// Whether an opening is held back.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Takes items in order. Up to the position that it returns all is in the kernel's memory: that
    /// does not change while an opening is held back. Items that were taken before are passed over.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: it may be tried again, with all items or those that were not taken.
    /// [`Error::Malformed`], [`Error::Mismatch`] where they cannot be behind what is here, and
    /// [`Error::TooMuch`]: the copy is built anew.
    pub fn apply(&mut self, items: &[(Item, Vec<u8>)]) -> Result<Position> {
        self.check_usable()?;
        self.go_on()?;
        let mut runs = Runs::default();
        let taken = items.iter().try_for_each(|(item, bytes)| self.take(item, bytes, &mut runs));
        let written = self.write_runs(&mut runs);
        self.record_mark()?;
        written.and(taken)?;
        Ok(self.recorded.position)
    }

    /// Whether a sync has failed. What was written since the last one that did not may be lost, and
    /// nothing is taken or synced any more. It goes on by [`open`](Self::open), with a position that
    /// counts only what was synced: more than that may have been acknowledged, and the standing then
    /// says so.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    fn check_usable(&self) -> Result<()> {
        if self.has_failed() {
            return Err(failed_before(&self.path));
        }
        if self.is_opened {
            return Err(self.malformed("it is open for writing".to_owned()));
        }
        Ok(())
    }

    fn malformed(&self, what: String) -> Error {
        Error::Malformed { path: self.path.clone(), what }
    }

    fn take<'a>(&mut self, item: &Item, bytes: &'a [u8], runs: &mut Runs<'a>) -> Result<()> {
        let (position, taken) = (item.position, self.taken.position);
        if position.epoch == taken.epoch && position.number <= taken.number {
            return Ok(());
        }
        let begins = position.epoch > taken.epoch && position.number == 1;
        if !begins && !item.follows(self.taken) {
            return Err(self.malformed(format!("an item of {position:?} does not follow {taken:?}")));
        }
        if bytes.len() as u64 != item.bytes || crc32c::crc32c(bytes) != item.checksum {
            return Err(self.malformed(format!("the bytes of an item of {position:?} are damaged")));
        }
        check_kind(item, bytes).map_err(|what| self.malformed(format!("an item of {position:?} {what}")))?;
        if let Kind::Append { file: kind @ (FileKind::Segment | FileKind::Wal), number, offset } = item.kind
            && self.opening.is_none()
            && !self.is_foreign
            && !begins
            && runs.join(&self.growing, FileName { kind, number }, offset, bytes)
        {
            (runs.reach, self.taken) = (item.mark(), item.mark());
            return Ok(());
        }
        self.write_runs(runs)?;
        if begins {
            self.abandon()?;
            self.opening = Some(Opening::default());
        }
        if let Some(opening) = &mut self.opening {
            let held_bytes = opening.bytes() + self.queue_bytes + item.cost();
            if held_bytes > MAX_OPENING_BYTES {
                return Err(Error::TooMuch { what: "bytes of an opening", limit: MAX_OPENING_BYTES });
            }
            if opening.is_whole() {
                self.queue.push_back((*item, bytes.to_vec()));
                self.queue_bytes += item.cost();
                self.taken = item.mark();
                return Ok(());
            }
            opening.hold(*item, bytes);
            self.taken = item.mark();
            return self.go_on();
        }
        if self.is_foreign {
            return Err(self.malformed(format!("an item of {position:?} came where nothing was taken")));
        }
        self.apply_one(item, bytes)?;
        self.taken = item.mark();
        Ok(())
    }

    /// Applies an item, or changes nothing.
    fn apply_one(&mut self, item: &Item, bytes: &[u8]) -> Result<()> {
        match item.kind {
            Kind::Append { file: kind @ (FileKind::Segment | FileKind::Wal), number, offset } => {
                self.append(FileName { kind, number }, offset, bytes)?;
            }
            Kind::Truncate { file: kind @ (FileKind::Segment | FileKind::Wal), number, len } => {
                self.truncate(FileName { kind, number }, len)?;
            }
            Kind::Clock { limit_ms } => self.clock_limit_ms = self.clock_limit_ms.max(limit_ms),
            Kind::Sync => (),
            _ => {
                let finished = pending::finished_by(item);
                let is_present = match finished {
                    Some((file, content)) => self.is_here(file, content)?,
                    None => true,
                };
                self.pending.push(item, bytes, is_present, self.now_us)?;
                if let Some((file, content)) = finished.filter(|_| is_present)
                    && self.growing.remove(&file).is_some()
                {
                    self.finished.push((file, content));
                }
            }
        }
        self.reached = item.mark();
        self.is_unrecorded = true;
        Ok(())
    }

    /// Whether the file is here and holds this.
    fn is_here(&mut self, file: FileName, content: ContentId) -> Result<bool> {
        let path = path_of(&self.path, file);
        if let Some(growing) = self.growing.get_mut(&file) {
            if growing.len != content.len {
                return Ok(false);
            }
            let found = match growing.hasher.take() {
                Some(hasher) => hasher.finish(),
                None => hash_file(&path)?,
            };
            return Ok(found == content);
        }
        holds(&mut self.catalog.lock(), &self.path, file, content)
    }

    fn append(&mut self, file: FileName, offset: u64, bytes: &[u8]) -> Result<()> {
        let path = path_of(&self.path, file);
        if !self.growing.contains_key(&file) {
            if self.growing.len() >= MAX_OPEN_FILES {
                let limit = MAX_OPEN_FILES as u64;
                return Err(Error::TooMuch { what: "files that are appended to", limit });
            }
            let growing = if offset == 0 {
                let created = Arc::new(create(&path)?);
                Growing { len: 0, crc: 0, file: created, hasher: Some(Hasher::new()) }
            } else {
                grow_on(&path, file, offset)?
            };
            self.catalog.lock().remove(file)?;
            self.growing.insert(file, growing);
            match file.kind {
                FileKind::Segment => self.has_new_segments = true,
                _ => self.has_new_wals = true,
            }
        }
        let Some(growing) = self.growing.get_mut(&file) else { return Ok(()) };
        let end = offset + bytes.len() as u64;
        if offset != growing.len {
            let is_repeated = end <= growing.len && holds_at(&growing.file, &path, offset, bytes)?;
            let what = format!("{} bytes at {offset} do not continue {}", bytes.len(), growing.len);
            return if is_repeated { Ok(()) } else { Err(Error::Mismatch { file, what }) };
        }
        if let Err(error) = record::write_at(&growing.file, bytes, offset) {
            // What was written of it is behind what counts, and is cut off where that works.
            drop(record::set_len(&growing.file, growing.len));
            return Err(Error::io("write", &path, error));
        }
        self.grew(file, &[bytes]);
        Ok(())
    }

    /// These bytes are behind what a file had.
    fn grew(&mut self, file: FileName, parts: &[&[u8]]) {
        let Some(growing) = self.growing.get_mut(&file) else { return };
        for bytes in parts {
            growing.len += bytes.len() as u64;
            growing.crc = crc32c::crc32c_append(growing.crc, bytes);
            if let Some(hasher) = &mut growing.hasher {
                hasher.update(bytes);
            }
        }
        let dirty = if file.kind == FileKind::Segment { &mut self.dirty_segments } else { &mut self.dirty_wals };
        dirty.entry(file).or_insert_with(|| Arc::clone(&growing.file));
    }

    /// Writes what was taken of files that grow, each at once, or changes nothing.
    fn write_runs(&mut self, runs: &mut Runs<'_>) -> Result<()> {
        let Runs { files, reach } = std::mem::take(runs);
        if files.is_empty() {
            return Ok(());
        }
        let growing = |file: &FileName| self.growing.get(file).map(|growing| (&growing.file, growing.len));
        let written = files.iter().try_for_each(|(file, parts)| {
            let Some((opened, len)) = growing(file) else { return Ok(()) };
            let written = match parts.as_slice() {
                [bytes] => record::write_at(opened, bytes, len),
                parts => record::write_at(opened, &parts.concat(), len),
            };
            written.map_err(|error| Error::io("write", &path_of(&self.path, *file), error))
        });
        if let Err(error) = written {
            // What was written is behind what counts, and is cut off where that works.
            for (opened, len) in files.keys().filter_map(growing) {
                drop(record::set_len(opened, len));
            }
            self.taken = self.reached;
            return Err(error);
        }
        for (file, parts) in &files {
            self.grew(*file, parts);
        }
        (self.reached, self.is_unrecorded) = (reach, true);
        Ok(())
    }

    fn truncate(&mut self, file: FileName, len: u64) -> Result<()> {
        let path = path_of(&self.path, file);
        let before = match self.growing.get(&file) {
            Some(growing) => growing.len,
            None => len_of(&path, file)?,
        };
        if len > before {
            return Err(Error::Mismatch { file, what: format!("it has {before} bytes, not {len}") });
        }
        if len == before && self.growing.contains_key(&file) {
            return Ok(());
        }
        self.catalog.lock().remove(file)?;
        let crc = crc_of(&path, file, len)?;
        // All records first: what they say is longer than the file would be damage.
        let shorten = |log: &mut LogState| {
            for tail in log.tails.iter_mut().filter(|tail| tail.file == file && tail.len > len) {
                (tail.len, tail.crc) = (len, crc);
            }
        };
        {
            let mut durable = self.durable.lock();
            let mut synced = durable.synced.clone();
            shorten(&mut synced.log);
            durable.write(synced)?;
            durable.begun.iter_mut().for_each(shorten);
        }
        // Who reads it may have what is cut off, and goes on from there.
        self.close_readers();
        let uncut = Growing { len, crc, file: Arc::new(open(&path)?), hasher: None };
        let before = self.growing.insert(file, uncut);
        self.is_unrecorded = true;
        let cut = self.record_mark().and_then(|()| cut(&self.path, &path, len));
        self.admit_readers();
        let cut = match cut {
            Ok(cut) => Arc::new(cut),
            Err(error) => {
                self.growing.remove(&file);
                self.growing.extend(before.map(|before| (file, before)));
                self.is_unrecorded = true;
                return Err(error);
            }
        };
        let dirty = if file.kind == FileKind::Segment { &mut self.dirty_segments } else { &mut self.dirty_wals };
        dirty.insert(file, Arc::clone(&cut));
        // Another file may have its name now.
        match file.kind {
            FileKind::Segment => self.has_new_segments = true,
            _ => self.has_new_wals = true,
        }
        self.growing.insert(file, Growing { len, crc, file: cut, hasher: None });
        Ok(())
    }

    fn log_state(&self) -> LogState {
        LogState {
            boot: self.boot,
            mark: self.reached,
            clock_limit_ms: self.clock_limit_ms,
            generation: self.generation,
            is_foreign: self.is_foreign,
            is_open: self.is_opened,
            pending_end: self.pending.end(),
            tails: tails_of(&self.growing),
        }
    }

    /// Records in the kernel's memory what is applied.
    fn record_mark(&mut self) -> Result<()> {
        if self.is_unrecorded {
            self.marks.write(&record::encode_log(&self.log_state()))?;
            (self.recorded, self.is_unrecorded) = (self.reached, false);
        }
        Ok(())
    }

    /// Goes on with an opening, and with what waits behind it.
    fn go_on(&mut self) -> Result<()> {
        if let Some(opening) = &mut self.opening {
            if opening.needs_plan() {
                let base = opening::Base {
                    directory: &self.path,
                    fetched: fetched_in(&self.path),
                    log: LogState {
                        boot: self.boot,
                        mark: self.reached,
                        clock_limit_ms: self.clock_limit_ms,
                        generation: self.generation,
                        is_foreign: self.is_foreign,
                        is_open: false,
                        pending_end: self.pending.end(),
                        tails: tails_of(&self.growing),
                    },
                };
                opening.plan(&base, &mut self.catalog.lock())?;
            }
            if !opening.is_ready() {
                return Ok(());
            }
            self.switch_epoch()?;
        }
        while let Some((item, bytes)) = self.queue.pop_front() {
            if let Err(error) = self.apply_one(&item, &bytes) {
                self.queue.push_front((item, bytes));
                return Err(error);
            }
            self.queue_bytes -= item.cost();
        }
        self.record_mark()
    }

    /// The opening has all it needs.
    fn switch_epoch(&mut self) -> Result<()> {
        let Some(opening) = &mut self.opening else { return Ok(()) };
        if !opening.is_committed() {
            // What stays was in the kernel's memory only.
            for (file, opened) in self.dirty_segments.iter().chain(&self.syncing_segments) {
                if let Err(error) = record::flush(opened) {
                    self.has_failed.store(true, Ordering::SeqCst);
                    record::remove_file(&beside(&self.path, MARK_FILE))?;
                    return Err(Error::io("sync", &path_of(&self.path, *file), error));
                }
            }
            opening.commit(&self.path)?;
        }
        self.close_readers();
        self.durable.lock().is_closed = true;
        opening::recover(&self.path)?;
        let expected = self.opening.as_ref().and_then(Opening::end);
        let (switched, found) = Self::load(&self.path, self.boot)?;
        if Some(found.at) != expected {
            // It holds nothing, and its standing says so. Who drives it opens it again.
            self.has_failed.store(true, Ordering::SeqCst);
            return Err(self.malformed(format!("it holds {:?} after an epoch was opened", found.at)));
        }
        let mut switched = switched.with_readers(self.readers.clone());
        (switched.taken, switched.now_us) = (self.taken, self.now_us);
        switched.queue = std::mem::take(&mut self.queue);
        switched.queue_bytes = self.queue_bytes;
        *self = switched;
        Ok(())
    }

    fn is_switching(&self) -> bool {
        self.opening.as_ref().is_some_and(Opening::is_committed)
    }

    /// Throws away an opening that is held back, and all behind it: they come again, or others.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn abandon(&mut self) -> Result<()> {
        if self.is_switching() {
            return self.go_on();
        }
        if let Some(opening) = &mut self.opening {
            opening.withdraw(&self.path)?;
        }
        if self.opening.take().is_some() {
            self.queue.clear();
            self.queue_bytes = 0;
            self.taken = self.reached;
            let absent = self.pending.absent();
            let is_wanted = |want: &Want| absent.iter().any(|it| (it.file, it.content) == (want.file, want.content));
            remove_fetched(&self.path, is_wanted)?;
        }
        Ok(())
    }

    /// What to fetch now, most urgent first.
    #[must_use]
    pub fn wants(&self, now_us: u64) -> Vec<Want> {
        if let Some(opening) = &self.opening {
            return opening.lacking().take(MAX_WANTS).collect();
        }
        let is_long = self.pending.entries().len() >= LONG_PENDING_ITEMS;
        let is_due = |since_us: u64| is_long || now_us >= since_us + FETCH_DELAY_US;
        let absent = self.pending.absent().into_iter();
        let absent = absent.filter(|it| it.made_by.is_none() && is_due(it.since_us) && self.may_be_placed(it));
        absent.map(|it| Want { file: it.file, content: it.content }).take(MAX_WANTS).collect()
    }

    /// The first segment that this copy is to make of others that it has.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    pub fn to_collect(&self) -> Result<Option<CollectJob>> {
        if self.is_opened || self.is_foreign || self.opening.is_some() || self.has_failed() {
            return Ok(None);
        }
        let made_by = |it: Absent| Some((it, self.pending.entries().get(it.made_by?)?));
        let mut absent = self.pending.absent().into_iter().filter(|it| self.may_be_placed(it));
        let Some((it, entry)) = absent.find_map(made_by) else { return Ok(None) };
        let want = Want { file: it.file, content: it.content };
        let (recipe, temporary) = (self.pending.bytes_of(entry)?, self.temporary(&want));
        Ok(Some(CollectJob { directory: self.path.clone(), want, recipe, temporary }))
    }

    /// Whether the file may take its place. Not that of one that is appended to, unless it is durable
    /// that nothing more is: after a loss of power the same bytes would be appended once more.
    fn may_be_placed(&self, it: &Absent) -> bool {
        it.position <= self.synced || !self.growing.contains_key(&it.file)
    }

    /// It cannot be made of what is here: from now on it is among the [`wants`](Self::wants).
    pub fn not_collected(&mut self, want: &Want) {
        self.pending.refuse(want.file, want.content);
    }

    /// Where a fetch writes.
    #[must_use]
    pub fn temporary(&self, want: &Want) -> PathBuf {
        temporary_in(&fetched_in(&self.path), want)
    }

    /// All of a file is at its temporary place: it is compared, synced and renamed. That may advance
    /// the file side, or end an opening. To have it compared on another thread: [`check_fetched`].
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] where it is not what was wanted: it is removed, and fetched again.
    /// [`Error::Io`].
    pub fn fetched(&mut self, want: &Want) -> Result<Position> {
        self.check_usable()?;
        let temporary = self.temporary(want);
        let checked = checked_path(&temporary);
        if !checked.exists() {
            check_fetched(&temporary, want)?;
        }
        if let Some(opening) = &mut self.opening {
            opening.fetched(want);
            self.go_on()?;
            return Ok(self.recorded.position);
        }
        let absent = self.pending.absent();
        let wanted = absent.iter().find(|it| (it.file, it.content) == (want.file, want.content));
        if wanted.is_some_and(|it| !self.may_be_placed(it)) {
            // It is asked for again, once it may.
            return Ok(self.recorded.position);
        }
        let is_wanted = wanted.is_some();
        // What was damaged here is fetched to repair it.
        let is_repair =
            !self.growing.contains_key(&want.file) && self.catalog.lock().get(want.file) == Some(want.content);
        if !is_wanted && !is_repair {
            record::remove_file(&checked)?;
            return Ok(self.recorded.position);
        }
        if self.growing.contains_key(&want.file) {
            self.forget(&[want.file], None)?;
        }
        let path = path_of(&self.path, want.file);
        make_parent(&path)?;
        record::rename(&checked, &path)?;
        path.parent().map_or(Ok(()), record::sync_directory)?;
        self.catalog.lock().put(want.file, want.content)?;
        self.look_for_absent()?;
        self.drain()?;
        Ok(self.recorded.position)
    }

    fn look_for_absent(&mut self) -> Result<()> {
        let (catalog, path) = (&self.catalog, &self.path);
        let growing = &self.growing;
        self.pending.look_for(|file, content| {
            Ok(!growing.contains_key(&file) && holds(&mut catalog.lock(), path, file, content)?)
        })
    }

    /// These files are not appended to any more, and the file side is so far.
    fn forget(&mut self, files: &[FileName], side: Option<FileState>) -> Result<()> {
        let forget = |log: &mut LogState| log.tails.retain(|tail| !files.contains(&tail.file));
        {
            let mut durable = self.durable.lock();
            let mut synced = durable.synced.clone();
            forget(&mut synced.log);
            synced.side = side.unwrap_or(synced.side);
            durable.write(synced)?;
            durable.begun.iter_mut().for_each(forget);
        }
        for file in files {
            self.growing.remove(file);
            self.dirty_segments.remove(file);
            self.dirty_wals.remove(file);
            self.is_unrecorded = true;
        }
        self.record_mark()
    }

    /// Does what is pending, as far as it goes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: it may be tried again. [`Error::Malformed`], [`Error::Mismatch`]: the copy is
    /// built anew.
    pub fn advance(&mut self, now_us: u64) -> Result<()> {
        self.now_us = self.now_us.max(now_us);
        if self.is_opened || self.is_foreign && self.opening.is_none() {
            return Ok(());
        }
        self.check_usable()?;
        self.go_on()?;
        self.drain()
    }

    fn drain(&mut self) -> Result<()> {
        if self.opening.is_some() || self.is_foreign {
            return Ok(());
        }
        let ready = self.pending.ready(self.synced);
        if ready == 0 {
            return Ok(());
        }
        let mut side = self.durable.lock().synced.side.clone();
        if side.deleted < side.drained {
            // A try before this one came so far, or a reader was behind it.
            return if self.finish_deletions()? { self.drain() } else { Ok(()) };
        }
        let drained = self.drain_first(ready, &mut side);
        let deleted = drained.inspect_err(|_| {
            // What was written of it may name files that are not here. If this fails too, who opens
            // the directory does it.
            drop(self.settle());
        })?;
        // On the device before anything is deleted.
        self.forget(&deleted, Some(side))?;
        self.admit_readers();
        self.finish_deletions().map(drop)
    }

    /// Cuts off what was written and does not count.
    fn settle(&self) -> Result<()> {
        let side = self.durable.lock().synced.side.clone();
        if let Some((_, content)) = &side.current {
            put_current(&self.path, content)?;
        }
        for tail in &side.manifests {
            let path = path_of(&self.path, tail.file);
            if len_of(&path, tail.file)? > tail.len {
                cut(&self.path, &path, tail.len)?;
            }
        }
        Ok(())
    }

    /// Writes what the first entries say, all but deletions, to the device. Says what is deleted.
    fn drain_first(&self, ready: usize, side: &mut FileState) -> Result<Vec<FileName>> {
        let before = side.current.clone();
        let mut written = BTreeMap::new();
        let mut deleted = Vec::new();
        for entry in self.pending.entries().iter().take(ready) {
            match entry.item.kind {
                Kind::Append { file: kind, number, offset } => {
                    let (file, bytes) = (FileName { kind, number }, self.pending.bytes_of(entry)?);
                    let opened = append_manifest(&self.path, side, file, offset, &bytes)?;
                    written.extend(opened.map(|opened| (file, opened)));
                }
                Kind::Truncate { file: kind, number, len } => {
                    let file = FileName { kind, number };
                    // Whoever closes one may cut it to the length that it has.
                    if !side.manifests.contains(&Tail { file, len, ..tail_in(side, file) }) {
                        return Err(Error::Mismatch { file, what: format!("it is cut to {len}") });
                    }
                }
                Kind::Put { file: FileKind::Current, number } => {
                    side.current = Some((number, self.pending.bytes_of(entry)?));
                }
                Kind::Put { .. } => put_store(&self.path, &self.pending.bytes_of(entry)?)?,
                Kind::Delete { file: kind, number } => deleted.push(FileName { kind, number }),
                _ => (),
            }
            side.drained = entry.end;
        }
        let in_force = side.current.as_ref().map(|(number, _)| FileName::new(FileKind::Manifest, *number));
        deleted.retain(|file| Some(*file) != in_force);
        side.manifests.retain(|tail| !deleted.contains(&tail.file));
        for (file, opened) in &written {
            // What failed before may have left more.
            let tail = tail_in(side, *file);
            if tail.len > 0 {
                record::set_len(opened, tail.len)
                    .map_err(|error| Error::io("cut", &path_of(&self.path, *file), error))?;
            }
            record::flush(opened).map_err(|error| Error::io("sync", &path_of(&self.path, *file), error))?;
        }
        if !written.is_empty() {
            record::sync_directory(&self.path)?;
        }
        if side.current != before
            && let Some((_, content)) = &side.current
        {
            put_current(&self.path, content)?;
        }
        Ok(deleted)
    }

    /// Deletes what the file side says is not needed any more; false while a reader may need it.
    fn finish_deletions(&mut self) -> Result<bool> {
        let readers = self.readers.clone();
        let mut durable = self.durable.lock();
        let Some(_deleting) = readers.deleting(durable.synced.side.drained) else { return Ok(false) };
        let mut synced = durable.synced.clone();
        let side = &mut synced.side;
        let done = self.pending.entries().partition_point(|entry| entry.end <= side.drained);
        let in_force = side.current.as_ref().map(|(number, _)| FileName::new(FileKind::Manifest, *number));
        for entry in self.pending.entries().iter().take(done) {
            if let Some(file) = entry.deleted().filter(|file| Some(*file) != in_force) {
                record::remove_file(&path_of(&self.path, file))?;
                self.catalog.lock().remove(file)?;
            }
            // What was fetched of it, and is deleted or was here after all.
            if let Some((file, content)) = entry.finished() {
                let temporary = temporary_in(&fetched_in(&self.path), &Want { file, content });
                record::remove_file(&checked_path(&temporary))?;
                record::remove_file(&temporary)?;
                if let Kind::Collect { .. } = entry.item.kind {
                    record::remove_file(&making_path(&temporary))?;
                }
            }
        }
        self.pending.drop_first(done);
        side.deleted = side.drained;
        durable.synced.side.deleted = side.drained;
        if let Some(cut) = self.pending.cut()? {
            side.start = cut.start();
            durable.write(synced)?;
            self.pending = cut;
            self.pending.remove_others()?;
        }
        Ok(true)
    }

    /// What a sync has to do, of what is applied now. It may run on another thread while items are
    /// applied. Segments first, then all else: then what was applied when the first began is durable.
    ///
    /// Of files that the engine has written all are synced: nobody has recorded which.
    pub fn begin_sync(&mut self, what: Sync) -> SyncJob {
        let whole = self.is_foreign.then(|| self.path.clone());
        let log = (!self.is_opened).then(|| self.log_state());
        let (dirty, is_new, directory) = match what {
            Sync::Segments => {
                self.durable.lock().begun = log;
                let values = self.path.join(names::VALUES_DIRECTORY);
                let dirty = self.dirty_segments.iter().map(|(file, opened)| (*file, Arc::clone(opened)));
                self.syncing_segments.extend(dirty);
                (&mut self.dirty_segments, &mut self.has_new_segments, values)
            }
            Sync::Wal => {
                if whole.is_some() {
                    // Files of which the first sync was of another kind, or nothing new.
                    self.durable.lock().begun = log;
                }
                (&mut self.dirty_wals, &mut self.has_new_wals, self.path.clone())
            }
        };
        let mut files: Vec<_> = dirty.drain().map(|(file, opened)| (path_of(&self.path, file), opened)).collect();
        let directories = if std::mem::take(is_new) { vec![directory] } else { Vec::new() };
        let mut finished = Vec::new();
        match what {
            Sync::Segments => finished = std::mem::take(&mut self.finished),
            Sync::Wal if std::mem::take(&mut self.pending.is_dirty) => files.push(self.pending.file()),
            Sync::Wal => (),
        }
        SyncJob {
            what,
            files,
            directories,
            finished,
            whole,
            durable: Arc::clone(&self.durable),
            has_failed: Arc::clone(&self.has_failed),
            mark: beside(&self.path, MARK_FILE),
            is_run: false,
        }
    }

    /// A sync has ended. What it made durable can be [advanced](Self::advance) over.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn synced(&mut self, done: SyncDone) -> Result<()> {
        if !Arc::ptr_eq(&done.durable, &self.durable) {
            // Something else has taken the place of what it synced.
            return Ok(());
        }
        if self.has_failed() {
            return Err(failed_before(&self.path));
        }
        self.synced = self.durable.lock().synced.log.mark.position;
        if done.what == Sync::Segments {
            self.syncing_segments.clear();
        }
        for (file, content) in done.finished {
            match self.catalog.lock().put(file, content) {
                // It was deleted meanwhile, or is appended to again.
                Err(Error::Missing { .. } | Error::Mismatch { .. }) => (),
                result => result?,
            }
        }
        Ok(())
    }

    /// Up to where all is durable.
    #[must_use]
    pub fn synced_up_to(&self) -> Position {
        self.synced
    }

    /// Begins to look whether the files of the log side, MANIFESTs and what is pending are what was
    /// taken; of files that the engine has written, whether its logs are without damage. All of them
    /// are read, as long as they are now.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn begin_verify(&self) -> Result<VerifyJob> {
        let mut job = VerifyJob {
            logs: Vec::new(),
            tails: Vec::new(),
            pending: None,
            is_incomplete: false,
            durable: Arc::clone(&self.durable),
        };
        // An opening that a full disk has interrupted leaves files of both epochs, until it is done.
        if self.is_opened || self.is_switching() {
            return Ok(job);
        }
        if self.is_foreign {
            let files = files_in(&self.path)?.into_iter().map(|(file, _)| file);
            let logs = files.filter(|file| matches!(file.kind, FileKind::Wal | FileKind::Manifest));
            job.logs = logs.map(|file| path_of(&self.path, file)).collect();
            return Ok(job);
        }
        for (tail, growing) in tails_of(&self.growing).into_iter().zip(self.growing.values()) {
            job.tails.push((path_of(&self.path, tail.file), Arc::clone(&growing.file), tail));
        }
        let side = self.durable.lock().synced.side.clone();
        for tail in side.manifests {
            let path = path_of(&self.path, tail.file);
            match File::open(&path) {
                Ok(file) => job.tails.push((path, Arc::new(file), tail)),
                Err(error) if error.kind() == ErrorKind::NotFound => job.is_incomplete = true,
                Err(error) => return Err(Error::io("open", &path, error)),
            }
        }
        job.pending = Some(self.pending.snapshot());
        Ok(job)
    }

    /// Whether all was sound when that began. None if something else has taken the place of what was
    /// read.
    #[must_use]
    pub fn verified(&self, done: &VerifyDone) -> Option<bool> {
        Arc::ptr_eq(&done.durable, &self.durable).then_some(done.is_sound)
    }

    /// Offers what it holds to another copy.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] where nothing is in force; [`Error::Io`].
    pub fn offer(&self) -> Result<Offer> {
        let side = self.durable.lock().synced.side.clone();
        let current = FileName::new(FileKind::Current, 0);
        if self.is_opened || self.is_foreign || self.is_switching() || side.current.is_none() {
            return Err(Error::Missing { file: current });
        }
        let mut pending = Vec::with_capacity(self.pending.entries().len());
        for entry in self.pending.entries() {
            pending.push((entry.item, self.pending.bytes_of(entry)?));
        }
        let links = seed::new_links(&self.path)?;
        // From here on the folder goes with the offer.
        let mut offer = Offer::new(self.reached, self.clock_limit_ms, Vec::new(), pending, links.clone());
        let tails = tails_of(&self.growing).into_iter().chain(side.manifests).map(|tail| (tail.file, tail.len));
        let tails: HashMap<FileName, u64> = tails.collect();
        for (file, len) in files_in(&self.path)? {
            let (len, content) = match (file.kind, tails.get(&file)) {
                (_, Some(len)) => (*len, None),
                (FileKind::Wal | FileKind::Manifest, None) => continue,
                (FileKind::Current | FileKind::Store, None) => (len, None),
                (FileKind::Segment | FileKind::Table, None) => {
                    let content = self.catalog.lock().content_of(&self.path, file)?;
                    (content.len, Some(content))
                }
            };
            let (from, to) = (path_of(&self.path, file), path_of(&links, file));
            record::link(&from, &to).map_err(|error| Error::io("link", &from, error))?;
            offer.files.push(OfferedFile { file, len, content });
        }
        Ok(offer)
    }

    /// Opens a finished file, for a copy that lacks it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn open_finished(&self, file: FileName) -> Result<Option<File>> {
        if !file.is_finished_once() || self.growing.contains_key(&file) {
            return Ok(None);
        }
        let path = path_of(&self.path, file);
        match File::open(&path) {
            Ok(opened) => Ok(Some(opened)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("open", &path, error)),
        }
    }

    /// Links a table that holds this to `to`; false where there is none. The link keeps its bytes,
    /// whatever becomes of the copy. It is found by its content, which was compared when it came, and
    /// has not been written to since; its number says nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn link_table(&self, content: ContentId, to: &Path) -> Result<bool> {
        let Some(file) = self.catalog.lock().find(content).filter(|file| file.kind == FileKind::Table) else {
            return Ok(false);
        };
        match record::link(&path_of(&self.path, file), to) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("link", to, error)),
        }
    }

    /// Who read a table that should hold this found that it does not: it is found by that no more,
    /// until it was compared.
    pub fn distrust(&self, content: ContentId) {
        self.catalog.lock().distrust(content);
    }

    /// Before the engine opens it for writing, as the primary of an epoch that begins at `at`: drops
    /// what is pending, and raises the numbers that are given. Returns the least number that segments
    /// may get. Nothing is taken or recorded from then on, until it is [`closed`](Self::closed).
    ///
    /// # Errors
    ///
    /// [`Error::TooMuch`] where no numbers are left, [`Error::Io`].
    pub fn prepare_opening(&mut self, at: Mark, clock_limit_ms: u64) -> Result<u64> {
        self.close_readers();
        self.abandon()?;
        if !self.is_foreign {
            self.show_what_is_new()?;
            self.settle()?;
            for tail in tails_of(&self.growing) {
                cut(&self.path, &path_of(&self.path, tail.file), tail.len)?;
            }
        }
        for (file, opened) in self.dirty_segments.iter().chain(&self.syncing_segments).chain(&self.dirty_wals) {
            record::flush(opened).map_err(|error| Error::io("sync", &path_of(&self.path, *file), error))?;
        }
        let there = files_in(&self.path)?.into_iter().map(|(file, _)| file);
        let pending = self.pending.entries().iter().filter_map(|entry| file_of(&entry.item));
        let (mut segment, mut other) = (None, None);
        for file in there.chain(pending).chain(self.growing.keys().copied()) {
            let greatest = if file.kind == FileKind::Segment { &mut segment } else { &mut other };
            *greatest = (*greatest).max(Some(file.number));
        }
        let least_segment = segment.map_or(1, |segment| segment + NUMBER_GAP);
        if least_segment > u64::from(u32::MAX) {
            return Err(Error::TooMuch { what: "numbers of segments", limit: u64::from(u32::MAX) });
        }
        // RocksDB counts the file, which nothing refers to, and deletes it. Numbers are raised before
        // anything is forgotten that they are raised by. Where no MANIFEST is in force a crash has
        // interrupted the first opening ever: nobody has a file of it, and the engine begins anew,
        // which it does not where it finds a table.
        let has_store = path_of(&self.path, FileName::new(FileKind::Current, 0)).exists();
        if let Some(other) = other.filter(|_| has_store) {
            let raised = FileName::new(FileKind::Table, other.saturating_add(NUMBER_GAP));
            let path = path_of(&self.path, raised);
            File::create(&path).map_err(|error| Error::io("create", &path, error))?;
            record::sync_directory(&self.path)?;
        }
        self.write_foreign(at, clock_limit_ms, true)?;
        Ok(least_segment)
    }

    /// Nothing behind the opening of its epoch may be done yet. Of a store that was just made the
    /// column family of its data is behind that: without it the engine would pass over all that WALs
    /// hold, and say nothing.
    fn show_what_is_new(&mut self) -> Result<()> {
        let side = self.durable.lock().synced.side.clone();
        if side.drained > side.start || self.pending.entries().is_empty() {
            return Ok(());
        }
        let growing = self.growing.iter().map(|(file, growing)| (file, &growing.file));
        for (file, opened) in self.dirty_segments.iter().chain(&self.syncing_segments).chain(growing) {
            record::flush(opened).map_err(|error| Error::io("sync", &path_of(&self.path, *file), error))?;
        }
        for named in [self.path.join(names::VALUES_DIRECTORY), self.path.clone()] {
            if named.exists() {
                record::sync_directory(&named)?;
            }
        }
        let (path, pending) = self.pending.file();
        record::flush(&pending).map_err(|error| Error::io("sync", &path, error))?;
        {
            let log = self.log_state();
            let mut durable = self.durable.lock();
            durable.write(Synced { log, side })?;
            durable.begun = None;
        }
        self.synced = self.reached.position;
        self.drain()
    }

    /// Of the directory at `path`, which the engine has open: all is on the device that it had
    /// written at `at`, as a sync has ended that began then. Another boot counts it from there; one
    /// without any from where its epoch began. It may be called while a [`Directory`] is elsewhere,
    /// and says nothing of one that is closed, or open in another epoch.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: what was recorded before holds.
    pub fn synced_open(path: &Path, boot: BootId, at: Mark, clock_limit_ms: u64) -> Result<()> {
        let (_, synced) = Slots::open(beside(path, SYNCED_FILE), record::decode_synced)?;
        let is_its = |log: &LogState| log.is_open && log.boot == boot && log.mark.position.epoch == at.position.epoch;
        let Some(log) = synced.map(|synced| synced.log).filter(is_its) else { return Ok(()) };
        let opened_path = beside(path, OPENED_FILE);
        let is_new = !opened_path.exists();
        let (mut slots, before) = Slots::open(opened_path, record::decode_opened)?;
        let before = before.filter(|before| before.generation == log.generation);
        if before.is_some_and(|before| before.mark.position >= at.position && before.clock_limit_ms >= clock_limit_ms) {
            return Ok(());
        }
        let mark = before.map(|before| before.mark).filter(|mark| mark.position > at.position).unwrap_or(at);
        let clock_limit_ms = before.map_or(0, |before| before.clock_limit_ms).max(clock_limit_ms);
        slots.write(&record::encode_opened(&record::Opened { generation: log.generation, mark, clock_limit_ms }))?;
        slots.sync()?;
        if is_new { record::sync_directory(&names::copy_directory(path)) } else { Ok(()) }
    }

    /// The engine has closed it: `at` is where it was, as primary. That is durable when the next
    /// [sync](Self::begin_sync) has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn closed(&mut self, at: Mark, clock_limit_ms: u64) -> Result<()> {
        if !self.is_foreign {
            self.write_foreign(at, clock_limit_ms, false)?;
        }
        self.is_opened = false;
        // The source has written on in the catalog.
        self.catalog = Mutex::new(Catalog::open(&self.path)?);
        (self.reached, self.taken) = (at, at);
        self.clock_limit_ms = self.clock_limit_ms.max(clock_limit_ms);
        self.is_unrecorded = true;
        self.record_mark()
    }

    /// Records that the files hold what nobody has recorded here.
    fn write_foreign(&mut self, at: Mark, clock_limit_ms: u64, is_open: bool) -> Result<()> {
        let start = self.pending.end();
        let generation = self.generation + 1;
        let clock_limit_ms = self.clock_limit_ms.max(clock_limit_ms);
        let pending = Pending::open(&self.path, start, start, start)?;
        let log =
            LogState { mark: at, clock_limit_ms, generation, is_open, pending_end: start, ..LogState::new(self.boot) };
        {
            let mut durable = self.durable.lock();
            let side = FileState { start, deleted: start, drained: start, ..FileState::default() };
            durable.write(Synced { log, side })?;
            durable.begun = None;
        }
        (self.generation, self.is_foreign, self.is_opened, self.pending) = (generation, true, is_open, pending);
        (self.reached, self.taken, self.clock_limit_ms) = (at, at, clock_limit_ms);
        self.synced = at.position;
        self.growing.clear();
        self.dirty_segments.clear();
        self.dirty_wals.clear();
        self.syncing_segments.clear();
        self.finished.clear();
        self.is_unrecorded = true;
        self.record_mark()?;
        self.pending.remove_others()?;
        remove_fetched(&self.path, |_| false)
    }

    /// How many WALs are kept aside, of the last directory that was replaced and may have diverged.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn kept_aside(&self) -> Result<usize> {
        switch::kept_aside(&self.path)
    }

    /// Another directory takes the place of what is there, with `standing`. If what was there may
    /// have a tail that no other copy has, its WALs are kept aside.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: the directory is opened again, and is the old one or the new one.
    pub fn switch(self, built: Built, standing: &Standing) -> Result<Self> {
        if built.directory != self.path {
            return Err(self.malformed(format!("what was built is {}'s", built.directory.display())));
        }
        let start = self.pending.end();
        let pending_end = pending::write_new(&self.path, start, &built.listing.pending)?;
        let (manifests, tails) = built.tails.iter().partition(|tail| tail.file.kind == FileKind::Manifest);
        let mark = built.mark();
        let log = LogState {
            mark,
            clock_limit_ms: self.clock_limit_ms.max(built.clock_limit_ms()),
            generation: self.generation + 1,
            is_foreign: false,
            is_open: false,
            pending_end,
            tails,
            ..LogState::new(self.boot)
        };
        let side = FileState { start, deleted: start, drained: start, manifests, current: Some(built.current.clone()) };
        let is_diverged = self.is_foreign || standing.history.relation(self.reached) == Relation::Diverged;
        self.close_readers();
        self.durable.lock().is_closed = true;
        switch::commit(&self.path, &Synced { log, side }, standing, is_diverged)?;
        let (path, boot, readers) = (self.path.clone(), self.boot, self.readers.clone());
        drop(self);
        switch::recover(&path)?;
        let (directory, found) = Self::load(&path, boot)?;
        if found.at != mark {
            return Err(directory.malformed(format!("it holds {:?} after it was built", found.at)));
        }
        let directory = directory.with_readers(readers);
        for offered in &built.listing.files {
            if let Some(content) = offered.content {
                directory.catalog.lock().put(offered.file, content)?;
            }
        }
        Ok(directory)
    }
}

fn failed_before(path: &Path) -> Error {
    let lost = std::io::Error::other("a sync has failed: what was written before may be lost");
    Error::io("go on with", path, lost)
}

/// What the records say, and what is there: cuts, removes and puts back until they agree.
fn reconcile(path: &Path, log: &mut LogState, side: &FileState) -> Result<(Pending, BTreeMap<FileName, Growing>)> {
    let pending = Pending::open(path, side.start, side.deleted, log.pending_end)?;
    let mut growing = BTreeMap::new();
    if log.is_foreign {
        return Ok((pending, growing));
    }
    let done = pending.entries().iter().take_while(|entry| entry.end <= side.drained);
    let deleted: Vec<FileName> = done.filter_map(|entry| entry.deleted()).collect();
    log.tails.retain(|tail| !deleted.contains(&tail.file));
    let current = path_of(path, FileName::new(FileKind::Current, 0));
    if let Some((_, content)) = &side.current
        && fs::read(&current).ok().as_ref() != Some(content)
    {
        put_current(path, content)?;
    }
    for tail in log.tails.iter().chain(&side.manifests) {
        let file_path = path_of(path, tail.file);
        let len = len_of(&file_path, tail.file)?;
        if len < tail.len {
            let what = format!("it has {len} bytes, and had {}", tail.len);
            return Err(Error::Mismatch { file: tail.file, what });
        }
        let opened = if len > tail.len { cut(path, &file_path, tail.len)? } else { open(&file_path)? };
        if tail.file.kind != FileKind::Manifest {
            let file = Arc::new(opened);
            growing.insert(tail.file, Growing { len: tail.len, crc: tail.crc, file, hasher: None });
        }
    }
    // What was written and never counted.
    for (file, _) in files_in(path)? {
        let is_recorded = match file.kind {
            FileKind::Wal => growing.contains_key(&file) || deleted.contains(&file),
            FileKind::Manifest => side.manifests.iter().any(|tail| tail.file == file),
            _ => true,
        };
        if !is_recorded {
            record::remove_file(&path_of(path, file))?;
        }
    }
    Ok((pending, growing))
}

/// What items of each kind can be about.
fn check_kind(item: &Item, bytes: &[u8]) -> Result<(), String> {
    let is_sound = match item.kind {
        Kind::Append { file, offset, .. } => {
            matches!(file, FileKind::Segment | FileKind::Wal | FileKind::Manifest)
                && offset.checked_add(item.bytes).is_some_and(|end| end <= i64::MAX as u64)
        }
        Kind::Truncate { file, .. } => matches!(file, FileKind::Segment | FileKind::Wal | FileKind::Manifest),
        Kind::Finished { file, .. } => matches!(file, FileKind::Segment | FileKind::Table),
        Kind::Put { file: FileKind::Current, number } => names::named_by_current(bytes) == Some(number),
        Kind::Put { file, .. } => file == FileKind::Store,
        Kind::Delete { file, .. } => !matches!(file, FileKind::Current | FileKind::Store),
        Kind::Collect { .. } | Kind::Sync | Kind::Clock { .. } => true,
    };
    if is_sound { Ok(()) } else { Err(format!("cannot be: {:?}", item.kind)) }
}

/// The file that an item is about.
fn file_of(item: &Item) -> Option<FileName> {
    match item.kind {
        Kind::Append { file, number, .. }
        | Kind::Truncate { file, number, .. }
        | Kind::Finished { file, number, .. }
        | Kind::Put { file, number }
        | Kind::Delete { file, number } => Some(FileName { kind: file, number }),
        Kind::Collect { number, .. } => Some(FileName { kind: FileKind::Segment, number }),
        Kind::Sync | Kind::Clock { .. } => None,
    }
}

fn tails_of(growing: &BTreeMap<FileName, Growing>) -> Vec<Tail> {
    growing.iter().map(|(file, growing)| Tail { file: *file, len: growing.len, crc: growing.crc }).collect()
}

/// A file that is here, and is appended to again.
fn grow_on(path: &Path, file: FileName, offset: u64) -> Result<Growing> {
    let len = len_of(path, file)?;
    if len != offset {
        return Err(Error::Mismatch { file, what: format!("it has {len} bytes, and goes on at {offset}") });
    }
    let crc = crc_of(path, file, len)?;
    Ok(Growing { len, crc, file: Arc::new(open(path)?), hasher: None })
}

fn holds_at(file: &File, path: &Path, offset: u64, bytes: &[u8]) -> Result<bool> {
    let mut there = vec![0; bytes.len()];
    file.read_exact_at(&mut there, offset).map_err(|error| Error::io("read", path, error))?;
    Ok(there == bytes)
}

/// Appends to a MANIFEST, unless that was done before.
fn append_manifest(
    directory: &Path,
    side: &mut FileState,
    file: FileName,
    offset: u64,
    bytes: &[u8],
) -> Result<Option<File>> {
    let path = path_of(directory, file);
    let at = side.manifests.iter().position(|tail| tail.file == file).unwrap_or(side.manifests.len());
    if at >= MAX_OPEN_FILES {
        return Err(Error::TooMuch { what: "MANIFESTs", limit: MAX_OPEN_FILES as u64 });
    }
    if at == side.manifests.len() {
        side.manifests.push(Tail { file, len: 0, crc: 0 });
    }
    let tail = &mut side.manifests[at];
    if offset + bytes.len() as u64 <= tail.len {
        return Ok(None);
    }
    if offset != tail.len {
        let what = format!("{} bytes at {offset} do not continue {}", bytes.len(), tail.len);
        return Err(Error::Mismatch { file, what });
    }
    // One that is not recorded may be here, and in force, since a try that failed: it stays whole.
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let opened = opened.map_err(|error| Error::io("open", &path, error))?;
    record::write_at(&opened, bytes, offset).map_err(|error| Error::io("write", &path, error))?;
    (tail.len, tail.crc) = (offset + bytes.len() as u64, crc32c::crc32c_append(tail.crc, bytes));
    Ok(Some(opened))
}

fn tail_in(side: &FileState, file: FileName) -> Tail {
    side.manifests.iter().find(|tail| tail.file == file).copied().unwrap_or(Tail { file, len: 0, crc: 0 })
}

mod comparing;
#[cfg(test)]
mod tests;
