//! What a copy records of itself beside its directory D, in `D.copy/`: its [`Standing`], and up to
//! where its files go.
//!
//! | file | what | written |
//! |---|---|---|
//! | `standing` | [`Standing`] | whole, durable before anything follows from it |
//! | `mark` | [`LogState`]: what is in the kernel's memory | after each batch, never synced |
//! | `synced` | [`LogState`] of the last sync, and [`FileState`] | synced each time |
//! | `opened` | [`Opened`]: what the engine that has the files open has synced | synced each time |
//!
//! `mark`, `synced` and `opened` have two slots each, written in turn:
//!
//! ```text
//!  0       8     12                  at 128 KiB the other one
//!  +-------+-----+---------+--------+
//!  | count | len | payload | crc32c |     little-endian; of two sound slots the greater count counts
//!  +-------+-----+---------+--------+
//! ```
//!
//! All other files of this module are `magic, payload, crc32c`, replaced whole.
//!
//! Invariants: a torn write leaves the state before it; what is decoded was written so, to the last
//! byte. Failure: damage is [`Error::Malformed`] or, of a slot, as if it had not been written.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ecotone_control::ids::Epoch;
use ecotone_replica::position::{BootId, History, MAX_EPOCHS, Mark, Position};
use ecotone_replica::standing::Standing;
use ecotone_replica::stream::{ContentId, FileKind, Item, Kind};

use crate::error::{Error, Result};
use crate::names::{FileName, beside};

/// Files that are appended to at a time: far more than a store has WALs and segments that grow.
pub const MAX_OPEN_FILES: usize = 4096;

const SLOT_BYTES: u64 = 128 << 10;
const SLOT_HEADER_BYTES: usize = 12;
const CHECKSUM_BYTES: usize = 4;
/// The content of `CURRENT`.
const MAX_CURRENT_BYTES: usize = 64;

/// What holds after a loss of power: a [`Synced`].
pub(crate) const SYNCED_FILE: &str = "synced";
const STANDING_FILE: &str = "standing";
const STANDING_MAGIC: &[u8; 8] = b"ECOSTND1";
const VERSION: u8 = 1;
/// What a [`LogState`] says of files that are foreign, and open.
const OPEN: u8 = 2;

/// A file that is appended to: how far it goes, and the checksum of all its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub file: FileName,
    pub len: u64,
    pub crc: u32,
}

/// How far the files go that take their bytes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogState {
    pub boot: BootId,
    pub mark: Mark,
    pub clock_limit_ms: u64,
    /// Counts what replaced all files at once. Of `mark` and `synced` the later one counts, and
    /// `mark` where both have the same.
    pub generation: u64,
    /// The files hold what nobody has recorded here: they were opened for writing, or never
    /// followed a stream.
    pub is_foreign: bool,
    /// They are open for writing, as far as is known here: there is more than `mark` says.
    pub is_open: bool,
    /// Where `pending` ends.
    pub pending_end: u64,
    /// WALs and segments that grow.
    pub tails: Vec<Tail>,
}

impl LogState {
    pub fn new(boot: BootId) -> Self {
        let (mark, clock_limit_ms, generation, pending_end) = (Mark::default(), 0, 0, 0);
        let (is_foreign, is_open, tails) = (true, false, Vec::new());
        Self { boot, mark, clock_limit_ms, generation, is_foreign, is_open, pending_end, tails }
    }
}

/// How far the files go that take their bytes from `pending`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileState {
    /// Where the file of `pending` that counts begins.
    pub start: u64,
    /// Up to where deletions were done.
    pub deleted: u64,
    /// Up to where all else was done.
    pub drained: u64,
    /// The MANIFESTs.
    pub manifests: Vec<Tail>,
    /// The MANIFEST in force, and the content of `CURRENT`.
    pub current: Option<(u64, Vec<u8>)>,
}

/// What holds after a loss of power of files that were open for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// Of which opening it speaks.
    pub generation: u64,
    pub mark: Mark,
    pub clock_limit_ms: u64,
}

/// What holds after a loss of power.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Synced {
    pub log: LogState,
    pub side: FileState,
}

// What is written, little-endian.

#[derive(Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A length, which is far below 4 GiB by the bounds of this crate, and these bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u64(bytes.len() as u64).raw(bytes)
    }

    pub fn file(&mut self, file: FileName) -> &mut Self {
        self.u8(file.kind as u8).u64(file.number)
    }

    pub fn content(&mut self, content: ContentId) -> &mut Self {
        self.u64(content.len).raw(&content.hash.to_le_bytes())
    }

    pub fn mark(&mut self, mark: Mark) -> &mut Self {
        self.u64(mark.position.epoch.0).u64(mark.position.number).u32(mark.chain)
    }

    pub fn list<T>(&mut self, all: &[T], mut one: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.u64(all.len() as u64);
        all.iter().for_each(|value| one(self, value));
        self
    }

    fn tail(&mut self, tail: &Tail) {
        self.file(tail.file).u64(tail.len).u32(tail.crc);
    }

    fn log(&mut self, log: &LogState) -> &mut Self {
        self.u8(VERSION).raw(&log.boot.0).mark(log.mark).u64(log.clock_limit_ms).u64(log.generation);
        let files = if log.is_open { OPEN } else { u8::from(log.is_foreign) };
        self.u8(files).u64(log.pending_end).list(&log.tails, Self::tail)
    }

    pub fn synced(&mut self, synced: &Synced) -> &mut Self {
        let side = &synced.side;
        self.log(&synced.log).u64(side.start).u64(side.deleted).u64(side.drained).list(&side.manifests, Self::tail);
        match &side.current {
            None => self.u8(0),
            Some((number, content)) => self.u8(1).u64(*number).bytes(content),
        }
    }

    pub fn standing(&mut self, standing: &Standing) -> &mut Self {
        self.u64(standing.sealed.0).u64(standing.opened.0).u8(u8::from(standing.is_whole));
        match standing.unsynced_in {
            None => self.u8(0),
            Some(boot) => self.u8(1).raw(&boot.0),
        };
        self.list(standing.history.ends(), |writer, end| {
            writer.mark(*end);
        })
    }

    pub fn item(&mut self, item: &Item) -> &mut Self {
        self.mark(item.mark()).u64(item.bytes).u32(item.checksum);
        match item.kind {
            Kind::Append { file, number, offset } => self.u8(1).file(FileName { kind: file, number }).u64(offset),
            Kind::Truncate { file, number, len } => self.u8(2).file(FileName { kind: file, number }).u64(len),
            Kind::Finished { file, number, content } => {
                self.u8(3).file(FileName { kind: file, number }).content(content)
            }
            Kind::Put { file, number } => self.u8(4).file(FileName { kind: file, number }),
            Kind::Collect { content, number } => self.u8(5).u64(number).content(content),
            Kind::Delete { file, number } => self.u8(6).file(FileName { kind: file, number }),
            Kind::Sync => self.u8(7),
            Kind::Clock { limit_ms } => self.u8(8).u64(limit_ms),
        }
    }
}

/// Reads what [`Writer`] wrote; `None` where something else was written.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// All of `bytes`, and nothing behind it.
    pub fn whole<T>(bytes: &'a [u8], read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let mut reader = Self(bytes);
        let value = read(&mut reader)?;
        reader.0.is_empty().then_some(value)
    }

    pub fn raw(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.raw(N)?.try_into().ok()
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(|[value]| value)
    }

    pub fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u64()?;
        self.raw(usize::try_from(len).ok()?)
    }

    pub fn kind(&mut self) -> Option<FileKind> {
        let kind = self.u8()?;
        FileKind::ALL.into_iter().find(|known| *known as u8 == kind)
    }

    pub fn file(&mut self) -> Option<FileName> {
        Some(FileName { kind: self.kind()?, number: self.u64()? })
    }

    pub fn content(&mut self) -> Option<ContentId> {
        Some(ContentId { len: self.u64()?, hash: u128::from_le_bytes(self.array()?) })
    }

    pub fn mark(&mut self) -> Option<Mark> {
        let position = Position { epoch: Epoch(self.u64()?), number: self.u64()? };
        Some(Mark { position, chain: self.u32()? })
    }

    pub fn boot(&mut self) -> Option<BootId> {
        self.array().map(BootId)
    }

    /// At most `limit` of them. Memory is taken as they come: a count is only a claim.
    pub fn list<T>(&mut self, limit: usize, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u64()?;
        if count > limit as u64 {
            return None;
        }
        (0..count).map(|_| one(self)).collect()
    }

    fn tail(&mut self) -> Option<Tail> {
        Some(Tail { file: self.file()?, len: self.u64()?, crc: self.u32()? })
    }

    fn log(&mut self) -> Option<LogState> {
        if self.u8()? != VERSION {
            return None;
        }
        let (boot, mark, clock_limit_ms, generation) = (self.boot()?, self.mark()?, self.u64()?, self.u64()?);
        let files = self.u8().filter(|files| *files <= OPEN)?;
        Some(LogState {
            boot,
            mark,
            clock_limit_ms,
            generation,
            is_foreign: files != 0,
            is_open: files == OPEN,
            pending_end: self.u64()?,
            tails: self.list(MAX_OPEN_FILES, Self::tail)?,
        })
    }

    pub fn synced(&mut self) -> Option<Synced> {
        let log = self.log()?;
        let (start, deleted, drained) = (self.u64()?, self.u64()?, self.u64()?);
        let manifests = self.list(MAX_OPEN_FILES, Self::tail)?;
        let current = match self.bool()? {
            false => None,
            true => {
                let (number, content) = (self.u64()?, self.bytes()?);
                Some((number, content.to_vec())).filter(|_| content.len() <= MAX_CURRENT_BYTES)?.into()
            }
        };
        let is_ordered = start <= deleted && deleted <= drained;
        is_ordered.then_some(Synced { log, side: FileState { start, deleted, drained, manifests, current } })
    }

    pub fn standing(&mut self) -> Option<Standing> {
        let (sealed, opened, is_whole) = (Epoch(self.u64()?), Epoch(self.u64()?), self.bool()?);
        let unsynced_in = if self.bool()? { Some(self.boot()?) } else { None };
        let ends = self.list(MAX_EPOCHS, Self::mark)?;
        let is_ordered = ends.is_sorted_by(|one, next| one.position.epoch < next.position.epoch);
        let history = ends.into_iter().fold(History::default(), |history, end| history.and(end));
        is_ordered.then_some(Standing { sealed, opened, unsynced_in, is_whole, history })
    }

    pub fn item(&mut self) -> Option<Item> {
        let (mark, bytes, checksum) = (self.mark()?, self.u64()?, self.u32()?);
        let kind = match self.u8()? {
            1 => {
                let FileName { kind: file, number } = self.file()?;
                Kind::Append { file, number, offset: self.u64()? }
            }
            2 => {
                let FileName { kind: file, number } = self.file()?;
                Kind::Truncate { file, number, len: self.u64()? }
            }
            3 => {
                let FileName { kind: file, number } = self.file()?;
                Kind::Finished { file, number, content: self.content()? }
            }
            4 => {
                let FileName { kind: file, number } = self.file()?;
                Kind::Put { file, number }
            }
            5 => Kind::Collect { number: self.u64()?, content: self.content()? },
            6 => {
                let FileName { kind: file, number } = self.file()?;
                Kind::Delete { file, number }
            }
            7 => Kind::Sync,
            8 => Kind::Clock { limit_ms: self.u64()? },
            _ => return None,
        };
        Some(Item { position: mark.position, kind, bytes, checksum, chain: mark.chain })
    }
}

/// Two slots in a file, of which a torn write leaves one.
pub(crate) struct Slots {
    path: PathBuf,
    file: File,
    count: u64,
}

impl Slots {
    /// Opens it, and says the newest payload for which `decode` gives something.
    pub fn open<T>(path: PathBuf, decode: impl Fn(&[u8]) -> Option<T>) -> Result<(Self, Option<T>)> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|error| Error::io("open", &path, error))?;
        let (mut count, mut newest) = (0, None);
        for slot in 0..2 {
            let mut bytes = Vec::new();
            read_up_to(&file, slot * SLOT_BYTES, SLOT_BYTES as usize, &mut bytes)
                .map_err(|error| Error::io("read", &path, error))?;
            if let Some((of, payload)) = decode_slot(&bytes)
                && of % 2 == slot
                && of > count
                && let Some(value) = decode(payload)
            {
                (count, newest) = (of, Some(value));
            }
        }
        Ok((Self { path, file, count }, newest))
    }

    /// Writes it to the kernel.
    pub fn write(&mut self, payload: &[u8]) -> Result<()> {
        let count = self.count + 1;
        let mut slot = Writer(Vec::with_capacity(SLOT_HEADER_BYTES + payload.len() + CHECKSUM_BYTES));
        slot.u64(count).u32(payload.len() as u32).raw(payload);
        let checksum = crc32c::crc32c(&slot.0);
        slot.u32(checksum);
        if slot.0.len() as u64 > SLOT_BYTES {
            return Err(Error::TooMuch { what: "files that are appended to", limit: MAX_OPEN_FILES as u64 });
        }
        let written = write_at(&self.file, &slot.0, count % 2 * SLOT_BYTES);
        written.map_err(|error| Error::io("write", &self.path, error))?;
        self.count = count;
        Ok(())
    }

    /// Brings it to the device. Where that fails the next write takes the place of what was written,
    /// and leaves the other slot alone, which may be the only one that is there.
    pub fn sync(&mut self) -> Result<()> {
        flush(&self.file).map_err(|error| {
            self.count = self.count.saturating_sub(1);
            Error::io("sync", &self.path, error)
        })
    }
}

fn decode_slot(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut reader = Reader(bytes);
    let (count, len) = (reader.u64()?, reader.u32()? as usize);
    let payload = reader.raw(len)?;
    let checksum = crc32c::crc32c(bytes.get(..SLOT_HEADER_BYTES + len)?);
    // Nothing written is 0 with the checksum of nothing written; counts begin at 1.
    (reader.u32()? == checksum && count != 0).then_some((count, payload))
}

/// As many bytes as there are.
fn read_up_to(file: &File, offset: u64, bytes: usize, into: &mut Vec<u8>) -> std::io::Result<()> {
    into.resize(bytes, 0);
    let mut done = 0;
    while done < bytes {
        match file.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    into.truncate(done);
    Ok(())
}

pub(crate) fn encode_log(log: &LogState) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.log(log);
    writer.0
}

pub(crate) fn decode_log(bytes: &[u8]) -> Option<LogState> {
    Reader::whole(bytes, Reader::log)
}

pub(crate) fn encode_opened(opened: &Opened) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u8(VERSION).u64(opened.generation).mark(opened.mark).u64(opened.clock_limit_ms);
    writer.0
}

pub(crate) fn decode_opened(bytes: &[u8]) -> Option<Opened> {
    Reader::whole(bytes, |reader| {
        if reader.u8()? != VERSION {
            return None;
        }
        Some(Opened { generation: reader.u64()?, mark: reader.mark()?, clock_limit_ms: reader.u64()? })
    })
}

pub(crate) fn encode_synced(synced: &Synced) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.synced(synced);
    writer.0
}

pub(crate) fn decode_synced(bytes: &[u8]) -> Option<Synced> {
    Reader::whole(bytes, Reader::synced)
}

// All that changes files goes by here, so that tests can have each step fail.

pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    #[cfg(test)]
    if let Err(error) = faults::step() {
        file.write_all_at(&bytes[..faults::torn(bytes.len())], offset)?;
        return Err(error);
    }
    file.write_all_at(bytes, offset)
}

pub(crate) fn flush(file: &File) -> std::io::Result<()> {
    #[cfg(test)]
    faults::step()?;
    file.sync_all()
}

pub(crate) fn set_len(file: &File, len: u64) -> std::io::Result<()> {
    #[cfg(test)]
    faults::step()?;
    file.set_len(len)
}

pub(crate) fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    #[cfg(test)]
    faults::step()?;
    fs::hard_link(from, to)
}

/// Makes durable which names are in the directory.
pub(crate) fn sync_directory(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|opened| flush(&opened));
    #[cfg(test)]
    if synced.is_ok() {
        faults::names_synced(directory);
    }
    synced.map_err(|error| Error::io("sync", directory, error))
}

pub(crate) fn make_directory(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).map_err(|error| Error::io("create the directory", directory, error))
}

/// Removes a file, if it is there.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    #[cfg(test)]
    faults::step().map_err(|error| Error::io("remove", path, error))?;
    unless_missing(fs::remove_file(path)).map_err(|error| Error::io("remove", path, error))
}

/// Removes a directory with all in it, if it is there.
pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    #[cfg(test)]
    faults::step().map_err(|error| Error::io("remove", path, error))?;
    unless_missing(fs::remove_dir_all(path)).map_err(|error| Error::io("remove", path, error))
}

fn unless_missing(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    #[cfg(test)]
    faults::step().map_err(|error| Error::io("rename", from, error))?;
    fs::rename(from, to).map_err(|error| Error::io("rename", from, error))
}

/// Writes a small file, durably: at every moment it is whole, or the one before it is. `unfinished`
/// is on the same file system.
pub(crate) fn replace_file(path: &Path, unfinished: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create(unfinished).and_then(|file| {
        write_at(&file, bytes, 0)?;
        flush(&file)
    });
    written.map_err(|error| Error::io("write", unfinished, error))?;
    rename(unfinished, path)?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// The same of a payload that is known by its magic and checked.
pub(crate) fn write_checked(path: &Path, magic: &[u8; 8], payload: &[u8]) -> Result<()> {
    let mut bytes = Writer(Vec::with_capacity(magic.len() + payload.len() + CHECKSUM_BYTES));
    bytes.raw(magic).raw(payload);
    let checksum = crc32c::crc32c(&bytes.0);
    bytes.u32(checksum);
    replace_file(path, &path.with_extension("new"), &bytes.0)
}

/// Reads it; `None` where there is none.
pub(crate) fn read_checked<T>(
    path: &Path,
    magic: &[u8; 8],
    decode: impl FnOnce(&mut Reader) -> Option<T>,
) -> Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path, error)),
    };
    let malformed = |what: &str| Error::Malformed { path: path.to_path_buf(), what: what.to_owned() };
    let (checked, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(|| malformed("it is too short"))?;
    if u32::from_le_bytes(*checksum) != crc32c::crc32c(checked) {
        return Err(malformed("its checksum does not match"));
    }
    let payload = checked.strip_prefix(magic).ok_or_else(|| malformed("it is of another version"))?;
    Reader::whole(payload, decode).map(Some).ok_or_else(|| malformed("it says what nobody writes"))
}

/// Records the standing of the copy whose directory is `directory`, durably.
///
/// # Errors
///
/// [`Error::Io`]: what was recorded before holds.
pub fn write_standing(directory: &Path, standing: &Standing) -> Result<()> {
    let mut payload = Writer::default();
    payload.standing(standing);
    write_checked(&beside(directory, STANDING_FILE), STANDING_MAGIC, &payload.0)
}

/// The standing of the copy whose directory is `directory`; `None` for a new one.
///
/// # Errors
///
/// [`Error::Io`], [`Error::Malformed`].
pub fn read_standing(directory: &Path) -> Result<Option<Standing>> {
    read_checked(&beside(directory, STANDING_FILE), STANDING_MAGIC, |reader| reader.standing())
}

/// Steps that fail, in tests.
#[cfg(test)]
pub(crate) mod faults {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::io;
    use std::path::{Path, PathBuf};

    thread_local! {
        /// Files whose names no sync of their directory has followed.
        static NAMED: RefCell<BTreeSet<PathBuf>> = const { RefCell::new(BTreeSet::new()) };
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
        static IS_CRASH: Cell<bool> = const { Cell::new(false) };
        static TORN: Cell<usize> = const { Cell::new(0) };
        static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
    }

    /// After so many steps one fails, or with `is_crash` all do. Of a write that fails so many bytes
    /// are written, or as many as there are.
    pub fn fail_after(steps: u64, is_crash: bool, torn: usize) {
        LEFT.set(Some(steps));
        IS_CRASH.set(is_crash);
        TORN.set(torn);
        HAS_FAILED.set(false);
    }

    /// No more. Says whether one failed.
    pub fn stop() -> bool {
        LEFT.set(None);
        HAS_FAILED.get()
    }

    /// A file was created.
    pub fn named(path: &Path) {
        NAMED.with_borrow_mut(|named| named.insert(path.to_path_buf()));
    }

    pub fn names_synced(directory: &Path) {
        NAMED.with_borrow_mut(|named| named.retain(|path| path.parent() != Some(directory)));
    }

    /// A loss of power: files of the directory are gone whose names were not synced.
    pub fn lose_names(directory: &Path) {
        NAMED.with_borrow_mut(|named| {
            for path in named.extract_if(.., |path| path.parent() == Some(directory)) {
                drop(std::fs::remove_file(path));
            }
        });
    }

    pub fn torn(bytes: usize) -> usize {
        TORN.get().min(bytes)
    }

    pub fn step() -> io::Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => {
                HAS_FAILED.set(true);
                if !IS_CRASH.get() {
                    LEFT.set(None);
                }
                Err(io::Error::other("injected"))
            }
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mark(epoch: u64, number: u64) -> Mark {
        Mark { position: Position { epoch: Epoch(epoch), number }, chain: 7 }
    }

    fn some_log() -> LogState {
        let tail = |kind, number| Tail { file: FileName { kind, number }, len: 17, crc: 99 };
        let tails = vec![tail(FileKind::Segment, 3), tail(FileKind::Wal, 12)];
        let (clock_limit_ms, generation, pending_end) = (5, 2, 1000);
        let (boot, mark, is_foreign, is_open) = (BootId([4; 16]), mark(2, 9), false, false);
        LogState { boot, mark, clock_limit_ms, generation, is_foreign, is_open, pending_end, tails }
    }

    fn some_synced() -> Synced {
        let manifests = vec![Tail { file: FileName { kind: FileKind::Manifest, number: 11 }, len: 4, crc: 1 }];
        let current = Some((11, b"MANIFEST-000011\n".to_vec()));
        Synced { log: some_log(), side: FileState { start: 1, deleted: 2, drained: 3, manifests, current } }
    }

    fn some_standing() -> Standing {
        let history = History::default().and(mark(1, 5)).and(mark(3, 2));
        let unsynced_in = Some(BootId([9; 16]));
        Standing { sealed: Epoch(3), opened: Epoch(2), unsynced_in, is_whole: true, history }
    }

    fn some_items() -> Vec<Item> {
        let content = ContentId { len: 70, hash: 1 << 100 };
        let kinds = [
            Kind::Append { file: FileKind::Wal, number: 1, offset: 2 },
            Kind::Truncate { file: FileKind::Segment, number: 1, len: 2 },
            Kind::Finished { file: FileKind::Table, number: 1, content },
            Kind::Put { file: FileKind::Current, number: 1 },
            Kind::Collect { content, number: 3 },
            Kind::Delete { file: FileKind::Manifest, number: 8 },
            Kind::Sync,
            Kind::Clock { limit_ms: 5 },
        ];
        kinds.into_iter().map(|kind| Item::behind(mark(1, 1), kind, 3, 4)).collect()
    }

    #[test]
    fn what_is_written_is_read_and_no_prefix_or_more_of_it() {
        let (log, synced) = (some_log(), some_synced());
        assert_eq!(decode_log(&encode_log(&log)), Some(log));
        let bytes = encode_synced(&synced);
        assert_eq!(decode_synced(&bytes), Some(synced));
        (0..bytes.len()).for_each(|len| assert_eq!(decode_synced(&bytes[..len]), None));
        assert_eq!(decode_synced(&[&bytes[..], &[0]].concat()), None);
        for item in some_items() {
            let mut writer = Writer::default();
            writer.item(&item);
            assert_eq!(Reader::whole(&writer.0, Reader::item), Some(item));
        }
    }

    #[test]
    fn a_standing_survives_and_damage_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        make_directory(&crate::names::copy_directory(&store)).unwrap();
        assert_eq!(read_standing(&store).unwrap(), None);
        for standing in [Standing::default(), Standing::founded(), some_standing()] {
            write_standing(&store, &standing).unwrap();
            assert_eq!(read_standing(&store).unwrap(), Some(standing));
        }
        let path = beside(&store, STANDING_FILE);
        let good = fs::read(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bad).unwrap();
            assert!(matches!(read_standing(&store), Err(Error::Malformed { .. })));
        }
    }

    #[test]
    fn a_crash_at_any_step_leaves_one_standing_or_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        make_directory(&crate::names::copy_directory(&store)).unwrap();
        let mut before = Standing::founded();
        write_standing(&store, &before).unwrap();
        for steps in 0.. {
            let next = Standing { sealed: Epoch(steps + 1), ..some_standing() };
            faults::fail_after(steps, true, 9);
            let written = write_standing(&store, &next);
            if !faults::stop() {
                break;
            }
            let found = read_standing(&store).unwrap().unwrap();
            assert!(found == before || found == next);
            assert!(written.is_err());
            before = found;
        }
    }

    #[test]
    fn damage_of_a_slot_leaves_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("slots");
        let decode = |bytes: &[u8]| Some(bytes.to_vec());
        let (mut slots, none) = Slots::open(path.clone(), decode).unwrap();
        assert_eq!(none, None);
        for number in 0..5_u8 {
            slots.write(&vec![number; 10 + usize::from(number)]).unwrap();
        }
        let good = fs::read(&path).unwrap();
        // The fifth write went to the second slot, the fourth to the first one.
        let newest = SLOT_BYTES as usize;
        for bit in newest * 8..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bad).unwrap();
            let (mut slots, found) = Slots::open(path.clone(), decode).unwrap();
            assert_eq!(found, Some(vec![3; 13]));
            slots.write(b"more").unwrap();
            assert_eq!(Slots::open(path.clone(), decode).unwrap().1, Some(b"more".to_vec()));
        }
    }

    #[test]
    fn a_record_of_too_many_files_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (mut slots, _) = Slots::open(directory.path().join("slots"), decode_log).unwrap();
        let tail = |number| Tail { file: FileName { kind: FileKind::Segment, number }, len: 1, crc: 1 };
        let of = |files: usize| LogState { tails: (0..files as u64).map(tail).collect(), ..some_log() };
        slots.write(&encode_log(&of(MAX_OPEN_FILES))).unwrap();
        assert_eq!(decode_log(&encode_log(&of(MAX_OPEN_FILES + 1))), None);
        assert!(slots.write(&encode_log(&of(2 * MAX_OPEN_FILES))).is_err());
    }

    proptest! {
        /// Whatever the bytes are, they are refused or written the same again.
        #[test]
        fn mutated_records_are_refused_or_sound(
            which in 0..4_usize,
            at in any::<prop::sample::Index>(),
            with in any::<[u8; 8]>(),
            how in 0..3,
        ) {
            let mut writer = Writer::default();
            match which {
                0 => {
                    writer.synced(&some_synced());
                }
                1 => {
                    writer.standing(&some_standing());
                }
                2 => writer.0 = encode_log(&some_log()),
                _ => {
                    for item in some_items() {
                        writer.item(&item);
                    }
                }
            }
            let mut bytes = writer.0;
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = with[0],
                1 => bytes.truncate(at),
                _ => drop(bytes.splice(at..at, with)),
            }
            let mut again = Writer::default();
            let is_read = match which {
                0 => decode_synced(&bytes).map(|synced| again.synced(&synced)).is_some(),
                1 => Reader::whole(&bytes, |reader| reader.standing()).map(|standing| again.standing(&standing)).is_some(),
                2 => decode_log(&bytes).map(|log| again.0 = encode_log(&log)).is_some(),
                _ => {
                    let mut reader = Reader(&bytes);
                    let items: Option<Vec<Item>> = (0..some_items().len()).map(|_| reader.item()).collect();
                    let is_whole = reader.0.is_empty();
                    for item in items.iter().flatten() {
                        again.item(item);
                    }
                    items.is_some() && is_whole
                }
            };
            prop_assert!(!is_read || again.0 == bytes);
        }
    }
}
