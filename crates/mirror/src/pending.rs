//! What a copy has taken and its files do not show yet: MANIFEST bytes, `CURRENT`, finished files
//! that may not be here, or are to be made here, deletions. In `D.copy/pending-START`, appended to:
//!
//! ```text
//!  +-----+--------+------+-------+
//!  | len | crc32c | item | bytes |     little-endian; len and checksum are of item and bytes
//!  +-----+--------+------+-------+
//! ```
//!
//! Places in it are counted from the first byte that the copy ever had pending, and go on when what
//! is done is cut off at the front: then the rest is written to a file of its own, whose name says
//! where it begins.
//!
//! Invariant: the records of the copy say up to where the file counts; what is behind is cut when it
//! is opened. Failure: an entry that is damaged is [`Error::Malformed`]. Bounds:
//! [`MAX_PENDING_ITEMS`], [`MAX_PENDING_BYTES`].

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_replica::position::Position;
use ecotone_replica::stream::{ContentId, FileKind, Item, Kind};

use crate::error::{Error, Result};
use crate::files::names_in;
use crate::names::{FileName, beside};
use crate::record::{self, Reader, Writer};

/// Items that are pending. Then the copy is so far behind that it is built anew.
pub const MAX_PENDING_ITEMS: usize = 1 << 16;
/// Bytes of these.
pub const MAX_PENDING_BYTES: u64 = 1 << 30;

const FILE_PREFIX: &str = "pending-";
const HEADER_BYTES: u64 = 8;
/// What is done is cut off once it is so much, and more than what is left.
const MIN_CUT_BYTES: u64 = 4 << 20;

/// An item that is pending.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub item: Item,
    /// Where its bytes begin, and end.
    bytes_at: u64,
    pub end: u64,
    /// What it says is finished is here. True of all others.
    pub is_present: bool,
    /// When it was first seen.
    pub since_us: u64,
    /// This copy cannot make it, though it was told how.
    is_refused: bool,
}

/// A file that is finished and not here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absent {
    pub file: FileName,
    pub content: ContentId,
    /// Since when it is wanted.
    pub since_us: u64,
    /// Where the stream says so.
    pub position: Position,
    /// It is to be made here, by the entry of this index.
    pub made_by: Option<usize>,
}

impl Entry {
    /// What it says is finished.
    pub fn finished(&self) -> Option<(FileName, ContentId)> {
        finished_by(&self.item)
    }

    pub fn deleted(&self) -> Option<FileName> {
        deleted_by(&self.item)
    }
}

/// What an item says is finished. What GC makes is fetched as well, where it cannot be made here.
pub(crate) fn finished_by(item: &Item) -> Option<(FileName, ContentId)> {
    match item.kind {
        Kind::Finished { file, number, content } => Some((FileName { kind: file, number }, content)),
        Kind::Collect { content, number } => Some((FileName { kind: FileKind::Segment, number }, content)),
        _ => None,
    }
}

pub(crate) fn deleted_by(item: &Item) -> Option<FileName> {
    match item.kind {
        Kind::Delete { file, number } => Some(FileName { kind: file, number }),
        _ => None,
    }
}

/// What was pending at a moment, to be read by any thread.
pub(crate) struct Snapshot {
    path: PathBuf,
    file: Arc<File>,
    start: u64,
    entries: Vec<Entry>,
}

impl Snapshot {
    /// Whether all bytes are what was taken.
    pub fn is_sound(&self) -> Result<bool> {
        for entry in &self.entries {
            match bytes_of(&self.file, &self.path, self.start, entry) {
                Ok(_) => (),
                Err(Error::Malformed { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn bytes_of(file: &File, path: &Path, start: u64, entry: &Entry) -> Result<Vec<u8>> {
    let mut bytes = vec![0; (entry.end - entry.bytes_at) as usize];
    let read = file.read_exact_at(&mut bytes, entry.bytes_at - start);
    read.map_err(|error| Error::io("read", path, error))?;
    if crc32c::crc32c(&bytes) != entry.item.checksum {
        let what = format!("what it says at {} is damaged", entry.bytes_at);
        return Err(Error::Malformed { path: path.to_path_buf(), what });
    }
    Ok(bytes)
}

/// See the module.
pub(crate) struct Pending {
    directory: PathBuf,
    path: PathBuf,
    file: Arc<File>,
    /// Where the file begins.
    start: u64,
    /// Where the first entry begins.
    first: u64,
    end: u64,
    entries: VecDeque<Entry>,
    /// Entries whose file is not here.
    absent: usize,
    /// It was written to since the last sync began.
    pub is_dirty: bool,
}

impl Pending {
    /// Opens the file that begins at `start`, of which counts what is from `first` to `end`.
    pub fn open(directory: &Path, start: u64, first: u64, end: u64) -> Result<Self> {
        let path = path_of(directory, start);
        let is_new = !path.exists();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = Arc::new(file.map_err(|error| Error::io("open", &path, error))?);
        if is_new {
            #[cfg(test)]
            record::faults::named(&path);
            // What is recorded of it later must not outlast its name.
            let named = path.parent().map_or(Ok(()), record::sync_directory);
            named.inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        }
        let mut pending = Self {
            directory: directory.to_path_buf(),
            path,
            file,
            start,
            first,
            end: first,
            entries: VecDeque::new(),
            absent: 0,
            is_dirty: false,
        };
        pending.load(end)?;
        Ok(pending)
    }

    fn load(&mut self, end: u64) -> Result<()> {
        let malformed = |what: String| Error::Malformed { path: self.path.clone(), what };
        let len = self.file.metadata().map_err(|error| Error::io("look at", &self.path, error))?.len();
        if end < self.first || self.start + len < end || end - self.first > MAX_PENDING_BYTES {
            return Err(malformed(format!("it has {len} bytes from {} on, and not up to {end}", self.start)));
        }
        let mut bytes = vec![0; (end - self.first) as usize];
        self.file
            .read_exact_at(&mut bytes, self.first - self.start)
            .and_then(|()| record::set_len(&self.file, end - self.start))
            .map_err(|error| Error::io("read", &self.path, error))?;
        let mut reader = Reader(&bytes);
        let mut entries = VecDeque::new();
        while !reader.0.is_empty() {
            let at = end - reader.0.len() as u64;
            let read = read_entry(&mut reader).filter(|_| entries.len() < MAX_PENDING_ITEMS);
            let (item, bytes) = read.ok_or_else(|| malformed(format!("what it says at {at} is damaged")))?;
            let entry_end = end - reader.0.len() as u64;
            let bytes_at = entry_end - bytes.len() as u64;
            let is_present = finished_by(&item).is_none();
            self.absent += usize::from(!is_present);
            entries.push_back(Entry { item, bytes_at, end: entry_end, is_present, since_us: 0, is_refused: false });
        }
        (self.entries, self.end) = (entries, end);
        Ok(())
    }

    /// Removes the files of `directory` that are not this one.
    pub fn remove_others(&self) -> Result<()> {
        for name in names_in(&beside(&self.directory, ""))? {
            let path = beside(&self.directory, &name);
            if name.starts_with(FILE_PREFIX) && path != self.path {
                record::remove_file(&path)?;
            }
        }
        Ok(())
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn entries(&self) -> &VecDeque<Entry> {
        &self.entries
    }

    pub fn file(&self) -> (PathBuf, Arc<File>) {
        (self.path.clone(), Arc::clone(&self.file))
    }

    /// Takes an item. Nothing has changed if that fails.
    pub fn push(&mut self, item: &Item, bytes: &[u8], is_present: bool, now_us: u64) -> Result<()> {
        if self.entries.len() >= MAX_PENDING_ITEMS {
            return Err(Error::TooMuch { what: "items that are pending", limit: MAX_PENDING_ITEMS as u64 });
        }
        let entry = entry_bytes(item, bytes);
        if self.end + entry.len() as u64 - self.first > MAX_PENDING_BYTES {
            return Err(Error::TooMuch { what: "bytes that are pending", limit: MAX_PENDING_BYTES });
        }
        let written = record::write_at(&self.file, &entry, self.end - self.start);
        written.map_err(|error| Error::io("write", &self.path, error))?;
        self.is_dirty = true;
        self.end += entry.len() as u64;
        let bytes_at = self.end - bytes.len() as u64;
        self.absent += usize::from(!is_present);
        let (end, since_us) = (self.end, now_us);
        self.entries.push_back(Entry { item: *item, bytes_at, end, is_present, since_us, is_refused: false });
        Ok(())
    }

    /// The bytes of an entry.
    pub fn bytes_of(&self, entry: &Entry) -> Result<Vec<u8>> {
        bytes_of(&self.file, &self.path, self.start, entry)
    }

    /// All entries as they are now. What comes or is done later changes nothing of it.
    pub fn snapshot(&self) -> Snapshot {
        let entries = self.entries.iter().cloned().collect();
        Snapshot { path: self.path.clone(), file: Arc::clone(&self.file), start: self.start, entries }
    }

    /// Says of each entry whose file is not here whether it is.
    pub fn look_for(&mut self, mut is_here: impl FnMut(FileName, ContentId) -> Result<bool>) -> Result<()> {
        for entry in self.entries.iter_mut().filter(|entry| !entry.is_present) {
            if let Some((file, content)) = entry.finished()
                && is_here(file, content)?
            {
                entry.is_present = true;
                self.absent -= 1;
            }
        }
        Ok(())
    }

    /// How many of the first entries can be done, of those up to `synced`: as many as leave none
    /// whose file is not here, unless one of them deletes it.
    pub fn ready(&self, synced: Position) -> usize {
        let limit = self.entries.partition_point(|entry| entry.item.position <= synced);
        if self.absent == 0 {
            return limit;
        }
        let mut ready = limit;
        // Where a file is deleted next, of those behind the entry that is looked at.
        let mut deleted = HashMap::new();
        for (at, entry) in self.entries.iter().enumerate().take(limit).rev() {
            if let Some(file) = entry.deleted() {
                deleted.insert(file, at);
            }
            if let (false, Some((file, _))) = (entry.is_present, entry.finished())
                && deleted.get(&file).is_none_or(|deletion| *deletion >= ready)
            {
                ready = at;
            }
        }
        ready
    }

    /// What is not here and is not deleted again, in order.
    pub fn absent(&self) -> Vec<Absent> {
        if self.absent == 0 {
            return Vec::new();
        }
        let mut deleted = HashMap::new();
        let mut absent = Vec::with_capacity(self.absent);
        for (at, entry) in self.entries.iter().enumerate().rev() {
            if let Some(file) = entry.deleted() {
                deleted.insert(file, ());
            }
            if let (false, Some((file, content))) = (entry.is_present, entry.finished())
                && !deleted.contains_key(&file)
            {
                let is_made = matches!(entry.item.kind, Kind::Collect { .. }) && !entry.is_refused;
                let (since_us, position) = (entry.since_us, entry.item.position);
                absent.push(Absent { file, content, since_us, position, made_by: is_made.then_some(at) });
            }
        }
        absent.reverse();
        absent
    }

    /// This copy cannot make the file.
    pub fn refuse(&mut self, file: FileName, content: ContentId) {
        let of_it = self.entries.iter_mut().filter(|entry| entry.finished() == Some((file, content)));
        of_it.for_each(|entry| entry.is_refused = true);
    }

    /// The first entries are done.
    pub fn drop_first(&mut self, count: usize) {
        for entry in self.entries.drain(..count) {
            self.first = entry.end;
            self.absent -= usize::from(!entry.is_present);
        }
    }

    /// A file with what is left, on the device, if it is worth while. It counts when the records
    /// say so.
    pub fn cut(&self) -> Result<Option<Self>> {
        let (done, left) = (self.first - self.start, self.end - self.first);
        if done < MIN_CUT_BYTES || done < left {
            return Ok(None);
        }
        let mut bytes = vec![0; left as usize];
        let read = self.file.read_exact_at(&mut bytes, done);
        read.map_err(|error| Error::io("read", &self.path, error))?;
        let (path, file) = create(&self.directory, self.first, &bytes)?;
        let (entries, directory) = (self.entries.clone(), self.directory.clone());
        let (start, first, end, absent) = (self.first, self.first, self.end, self.absent);
        Ok(Some(Self { directory, path, file, start, first, end, entries, absent, is_dirty: false }))
    }
}

/// Writes a file of `pending` that begins at `start`, durably. Says where it ends.
pub(crate) fn write_new(directory: &Path, start: u64, items: &[(Item, Vec<u8>)]) -> Result<u64> {
    let mut all = Vec::new();
    for (item, bytes) in items {
        all.extend_from_slice(&entry_bytes(item, bytes));
    }
    create(directory, start, &all)?;
    Ok(start + all.len() as u64)
}

fn create(directory: &Path, start: u64, bytes: &[u8]) -> Result<(PathBuf, Arc<File>)> {
    let path = path_of(directory, start);
    let written = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).and_then(|file| {
        record::write_at(&file, bytes, 0)?;
        record::flush(&file)?;
        Ok(file)
    });
    let file = written.map_err(|error| Error::io("write", &path, error))?;
    path.parent().map_or(Ok(()), record::sync_directory)?;
    Ok((path, Arc::new(file)))
}

fn path_of(directory: &Path, start: u64) -> PathBuf {
    beside(directory, &format!("{FILE_PREFIX}{start:016x}"))
}

fn entry_bytes(item: &Item, bytes: &[u8]) -> Vec<u8> {
    let mut body = Writer::default();
    body.item(item).raw(bytes);
    let mut entry = Writer(Vec::with_capacity(HEADER_BYTES as usize + body.0.len()));
    entry.u32(body.0.len() as u32).u32(crc32c::crc32c(&body.0)).raw(&body.0);
    entry.0
}

fn read_entry<'a>(reader: &mut Reader<'a>) -> Option<(Item, &'a [u8])> {
    let (len, checksum) = (reader.u32()? as usize, reader.u32()?);
    let body = reader.raw(len)?;
    if crc32c::crc32c(body) != checksum {
        return None;
    }
    let mut body = Reader(body);
    let item = body.item()?;
    (item.bytes == body.0.len() as u64).then_some((item, body.0))
}
