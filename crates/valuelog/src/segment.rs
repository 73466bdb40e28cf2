//! One file of the value log: its name and its bytes. Records follow one another behind a header
//! ([`crate::segment_header`]).
//!
//! A segment is appended to by one process until it is sealed, and never changed after. What a
//! process that died was appending to is taken as sealed; behind its last whole record may be
//! anything. Most often these are zeros: space that was reserved for further records (see
//! [`MappedFile`], [`crate::collected`] and [`crate::tail`]).
//!
//! What was relocated may be in memory only until the segment is sealed and synced, and cannot be
//! read before.
//!
//! Threads: reads come from any number of threads; [`Segment::append`] is called under the log's
//! lock.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ecotone_io::direct_reads::{DirectFile, DirectRead, FileNumber};
use ecotone_io::mapped_file::MappedFile;
use ecotone_io::mapped_reads::MappedReads;
use ecotone_io::missed_reads::note_missed;
use ecotone_io::tap::{self, Tap, TapEvent};
use parking_lot::{Mutex, RwLock};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::collected::CollectedAppends;
use crate::compression::Stored;
use crate::compression::dictionary::{self, Dictionary, DictionaryError, DictionaryId, MAX_DICTIONARY_BYTES};
use crate::copies::{Copies, CopyOf};
use crate::descriptors::{Counted, Descriptors};
use crate::packed_record::{self, DICTIONARY_KEY_BYTES, Packing};
use crate::pointer::SegmentNumber;
use crate::segment_header::{self, HeaderError, SEGMENT_HEADER_BYTES, SegmentFormat, SegmentHeader};
use crate::{Error, Result};

const SUFFIX: &str = ".segment";

/// So much is read of a dictionary before its length is known.
const FIRST_READ_BYTES: u64 = 16 * 1024;

/// A segment, with its file where that is open.
#[derive(Debug)]
pub struct Segment {
    number: SegmentNumber,
    path: PathBuf,
    /// Whether a WAL can name its values.
    may_be_in_wal: bool,
    /// What its header says: of a segment that was found, once that was read.
    says: OnceLock<SegmentHeader>,
    /// Where its first record of a value begins, if it was not found.
    begin: u64,
    /// Whether its dictionary is whole, once somebody has looked.
    has_dictionary: Mutex<Option<bool>>,
    descriptors: Descriptors,
    file: Mutex<Option<Counted<Arc<File>>>>,
    /// For users' reads.
    mapping: RwLock<Mapping>,
    direct: Mutex<Direct>,
    /// Of its bytes, once it is sealed.
    file_number: FileNumber,
    /// Until it is sealed, and all of it is in the file.
    appends: Mutex<Option<Appends>>,
    /// Bytes that were appended; what lies behind them is not yet, or no longer, of any meaning.
    written: AtomicU64,
    /// Bytes that are on the device.
    durable: AtomicU64,
    /// Whether it was there already: what another process has left to the kernel is no error that a
    /// descriptor of this one would tell of.
    was_found: bool,
    /// Writes whose value is here and whose key is not in RocksDB yet.
    writers: AtomicU32,
    sealed: AtomicBool,
    removed: AtomicBool,
    /// Whether records count that stand behind a damaged header.
    ignores_header: AtomicBool,
    tap: Tap,
}

/// How a segment is appended to.
#[derive(Debug)]
enum Appends {
    /// By users' writes: what was appended survives a kill of the process.
    Mapped(MappedFile),
    /// By garbage collection: what was appended does once it is synced. With what of it is a copy,
    /// where somebody follows that.
    Collected(CollectedAppends, Option<Copies>),
}

impl Appends {
    fn len(&self) -> u64 {
        match self {
            Self::Mapped(file) => file.len(),
            Self::Collected(appends, _) => appends.len(),
        }
    }

    fn trim(&mut self) -> io::Result<()> {
        match self {
            Self::Mapped(file) => file.trim(),
            Self::Collected(appends, _) => appends.trim(),
        }
    }
}

/// Whether a segment is in memory.
#[derive(Debug, Default)]
enum Mapping {
    #[default]
    Without,
    In(Arc<Mapped>),
    /// A page of it could not be had, or it was removed.
    Never,
}

/// Whether a sealed segment is read past the kernel's cache.
#[derive(Debug, Default)]
enum Direct {
    #[default]
    Unknown,
    Open(Counted<Arc<DirectFile>>),
    /// Its file system offers it not.
    Never,
}

/// Says, while it lives, that a value is in its segment and its key not in RocksDB yet.
#[derive(Debug)]
pub struct InFlight(Arc<Segment>);

impl InFlight {
    /// The segment.
    pub fn segment(&self) -> SegmentNumber {
        self.0.number
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.writers.fetch_sub(1, Ordering::Release);
    }
}

/// How a segment begins.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// The level that its values are relocated for, if they are.
    pub resting_level: Option<u32>,
    /// What it is to hold.
    pub contents: Contents<'a>,
}

/// What a segment is to hold.
#[derive(Debug, Clone, Copy)]
pub enum Contents<'a> {
    /// Records of format 1.
    Plain,
    /// Records of format 2, packed with that dictionary, if with any.
    Packed(Option<&'a Dictionary>),
}

impl Head<'_> {
    fn says(&self) -> SegmentHeader {
        let format = match self.contents {
            Contents::Plain => SegmentFormat::Plain,
            Contents::Packed(dictionary) => SegmentFormat::Packed(dictionary.map(Dictionary::id)),
        };
        SegmentHeader { format, resting_level: self.resting_level }
    }

    /// The header, and the record of the dictionary behind it.
    pub(crate) fn encode(&self, number: SegmentNumber) -> Vec<u8> {
        let mut bytes = segment_header::encode(number, self.says()).to_vec();
        if let Contents::Packed(Some(dictionary)) = self.contents {
            let (name, packed) = (dictionary.id().get().to_le_bytes(), dictionary.packed());
            let packing = Packing::Dictionary(packed.stored.method);
            let header = packed_record::encode_header(packing, &name, &packed.bytes, packed.stored.value_bytes);
            bytes.extend_from_slice(&header);
            bytes.extend_from_slice(&name);
            bytes.extend_from_slice(&packed.bytes);
        }
        bytes
    }
}

/// The longest record of a dictionary.
pub(crate) const MAX_DICTIONARY_RECORD_BYTES: usize =
    packed_record::MAX_HEADER_BYTES + DICTIONARY_KEY_BYTES + MAX_DICTIONARY_BYTES;

impl Segment {
    /// Makes a new segment in `directory`, with its head, for appending up to about `limit` bytes.
    /// Its name is not durable yet. `syncs_often`: after every few appends.
    ///
    /// # Errors
    ///
    /// [`Error::DiskFull`], [`Error::Io`]; a file of that name is never touched.
    pub fn create(
        directory: &Path,
        number: SegmentNumber,
        head: Head<'_>,
        limit: u64,
        syncs_often: bool,
        descriptors: &Descriptors,
        tap: &Tap,
    ) -> Result<Arc<Self>> {
        let path = directory.join(file_name(number));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|error| Error::io("create", &path, &error))?;
        let (resting_level, begin) = (head.resting_level, head.encode(number));
        let begun = tap
            .tell(TapEvent::Created { path: &path })
            .and_then(|()| file.write_all_at(&begin, 0))
            .and_then(|()| tap.tell(TapEvent::Appended { path: &path, offset: 0, bytes: &begin }));
        // It would be refused as damaged at the next open; nothing refers to it.
        let remove = || tap::remove_file(&path, tap);
        if let Err(error) = begun {
            let _ = remove();
            return Err(Error::io("write", &path, &error));
        }
        let file = Arc::new(file);
        let len = begin.len() as u64;
        let appends = match resting_level {
            Some(_) => {
                let copies = tap.follows_copies().then(Copies::default);
                Appends::Collected(CollectedAppends::new(file.clone(), len, limit), copies)
            }
            None => MappedFile::new(file.clone(), len, limit, !syncs_often)
                .map(Appends::Mapped)
                .inspect_err(|_| _ = remove())
                .map_err(|error| Error::io("append to", &path, &error))?,
        };
        Ok(Arc::new(Self {
            number,
            path,
            may_be_in_wal: resting_level.is_none(),
            says: OnceLock::from(head.says()),
            begin: len,
            has_dictionary: Mutex::default(),
            appends: Mutex::new(Some(appends)),
            file: Mutex::new(Some(descriptors.count(file))),
            descriptors: descriptors.clone(),
            mapping: RwLock::default(),
            direct: Mutex::default(),
            file_number: FileNumber::next(),
            written: AtomicU64::new(len),
            durable: AtomicU64::new(0),
            was_found: false,
            writers: AtomicU32::new(0),
            sealed: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            ignores_header: AtomicBool::new(false),
            tap: tap.clone(),
        }))
    }

    /// A segment that is there, sealed. Its file is opened and its header checked when it is first
    /// read.
    pub fn found(
        directory: &Path,
        number: SegmentNumber,
        bytes: u64,
        descriptors: &Descriptors,
        tap: &Tap,
    ) -> Arc<Self> {
        Arc::new(Self {
            number,
            path: directory.join(file_name(number)),
            may_be_in_wal: true,
            says: OnceLock::new(),
            begin: SEGMENT_HEADER_BYTES as u64,
            has_dictionary: Mutex::default(),
            appends: Mutex::new(None),
            file: Mutex::new(None),
            descriptors: descriptors.clone(),
            mapping: RwLock::default(),
            direct: Mutex::default(),
            file_number: FileNumber::next(),
            written: AtomicU64::new(bytes),
            durable: AtomicU64::new(0),
            was_found: true,
            writers: AtomicU32::new(0),
            sealed: AtomicBool::new(true),
            removed: AtomicBool::new(false),
            ignores_header: AtomicBool::new(false),
            tap: tap.clone(),
        })
    }

    /// Its number.
    pub fn number(&self) -> SegmentNumber {
        self.number
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes, header included, once all that was appended is in the file.
    pub fn bytes(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// How much of that is in the file: all, but of relocated values that were not synced and that
    /// no table refers to.
    pub fn bytes_in_file(&self) -> u64 {
        match &*self.appends.lock() {
            Some(Appends::Collected(appends, _)) => appends.written(),
            Some(Appends::Mapped(_)) | None => self.bytes(),
        }
    }

    /// Whether a WAL may name its values, or a compaction of another process may have been about
    /// to: of a segment that was found at opening nobody knows, whatever its header says.
    pub fn may_be_in_wal(&self) -> bool {
        self.may_be_in_wal
    }

    /// Whether its values were relocated before. Reads the header of a segment that was found and
    /// has not been read yet; where that cannot be had nobody knows, and who reads a value meets
    /// the reason.
    pub fn is_relocated(&self) -> bool {
        self.resting_level().is_some()
    }

    /// The level that its values came to rest in when they were relocated, found out in the same
    /// way; none where users wrote them.
    pub fn resting_level(&self) -> Option<u32> {
        let known = || self.says.get().copied();
        // All segments are asked; they are not all to be left open.
        known().or_else(|| self.open().ok().and_then(|_| known())).and_then(|says| says.resting_level)
    }

    /// Which records it holds, as its header says.
    ///
    /// # Errors
    ///
    /// Those of opening it. [`Error::Corrupt`] too where a damaged header is ignored: its records
    /// say of themselves what they are.
    pub fn format(&self) -> Result<SegmentFormat> {
        if self.says.get().is_none() {
            self.open()?;
        }
        self.says.get().map(|says| says.format).ok_or_else(|| self.corrupt(0, "its header does not say what it holds"))
    }

    /// The name of its dictionary, if it has one and that can be known, found out as its
    /// [level](Self::resting_level) is.
    pub fn dictionary_named(&self) -> Option<DictionaryId> {
        let known = || self.says.get().copied();
        known().or_else(|| self.open().ok().and_then(|_| known())).and_then(|says| says.format.dictionary())
    }

    /// The length of its header, and of its dictionary unless it was found.
    pub fn head_bytes(&self) -> u64 {
        self.begin
    }

    /// Whether no value was appended to it. Not of one that was found.
    pub fn is_empty(&self) -> bool {
        self.bytes() == self.begin
    }

    /// Whether it has the dictionary in it that its header names, if it names one. That is read once.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::NoMemory`] where nobody can tell.
    pub fn has_dictionary(&self) -> Result<bool> {
        if self.format()?.dictionary().is_none() {
            return Ok(true);
        }
        // Whoever else asks meanwhile reads it as well.
        let known = *self.has_dictionary.lock();
        if let Some(known) = known {
            return Ok(known);
        }
        match self.read_dictionary(|offset, into| self.read(offset, into)) {
            Ok(_) => {
                self.has_dictionary.lock().get_or_insert(true);
                Ok(true)
            }
            Err(error @ Error::Corrupt { .. }) => {
                self.has_lost_dictionary(&error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// A reader has found that its dictionary is not the one that was written. Warns the first time.
    #[cold]
    pub fn has_lost_dictionary(&self, error: &Error) {
        if self.has_dictionary.lock().replace(false) != Some(false) {
            tracing::warn!(%error, "what was compressed with it needs another segment that has the same: repair the store");
        }
    }

    /// Whether its head would survive a loss of power. One that was found is synced for that, once:
    /// whoever made it may have been killed before that, and left it in the kernel's hands.
    pub fn has_durable_head(&self) -> bool {
        let is_durable = || self.durable.load(Ordering::Acquire) >= self.begin;
        let sync = || match self.sync() {
            Ok(_) => is_durable(),
            Err(error) => {
                tracing::warn!(path = ?self.path, %error, "a segment that was found could not be synced");
                false
            }
        };
        is_durable() || (self.was_found && sync())
    }

    /// Reads the content of the dictionary that is its first record, by `read`. Which one that must
    /// be its header says; where that is damaged and ignored, the record.
    ///
    /// # Errors
    ///
    /// Those of `read`, and [`Error::Corrupt`] where it is not that dictionary.
    pub fn read_dictionary(&self, read: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<Vec<u8>> {
        let begin = SEGMENT_HEADER_BYTES as u64;
        let corrupt = |reason: &dyn std::fmt::Display| {
            self.corrupt(begin, format!("the dictionary of its values cannot be read: {reason}"))
        };
        let mut record = vec![0; self.bytes().saturating_sub(begin).min(FIRST_READ_BYTES) as usize];
        read(begin, &mut record)?;
        let bytes = packed_record::announced_bytes(&record).map_err(|reason| corrupt(&reason))?;
        if bytes > MAX_DICTIONARY_RECORD_BYTES || begin + bytes as u64 > self.bytes() {
            return Err(corrupt(&"it is longer than one"));
        }
        if bytes > record.len() {
            record.resize(bytes, 0);
            read(begin, &mut record)?;
        }
        let layout = packed_record::check(&record).map_err(|reason| corrupt(&reason))?;
        let (Packing::Dictionary(method), Some(name)) = (layout.packing, record[layout.key].first_chunk::<8>()) else {
            return Err(corrupt(&"there is none"));
        };
        let found = DictionaryId::decode(u64::from_le_bytes(*name));
        let named = self.says.get().and_then(|says| says.format.dictionary()).or(found);
        let Some(id) = named.filter(|_| named == found) else {
            return Err(corrupt(&"it is another one than its header says"));
        };
        let stored = Stored { method, dictionary: None, value_bytes: layout.value_bytes };
        dictionary::unpack(id, stored, &record[layout.stored]).map_err(|reason| match reason {
            DictionaryError::NoMemory => self.no_memory(begin, reason),
            reason => corrupt(&reason),
        })
    }

    /// Whether nothing is appended any more.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Ends appending.
    pub fn seal(&self) {
        let mut appends = self.appends.lock();
        match self.write_collected(&mut appends) {
            Ok(()) => self.end_appends(&mut appends),
            // It is offered again by the sync before which nothing refers to it.
            Err(error) => tracing::warn!(path = ?self.path, %error, "relocated values could not be written yet"),
        }
        self.sealed.store(true, Ordering::Release);
    }

    fn end_appends(&self, appends: &mut Option<Appends>) {
        let Some(mut appends) = appends.take() else { return };
        if let Err(error) = appends.trim() {
            tracing::warn!(path = ?self.path, %error, "what was reserved for a segment and not used could not be freed");
        }
        if let Err(error) = self.tap.tell(TapEvent::Closed { path: &self.path, len: appends.len() }) {
            tracing::warn!(path = ?self.path, %error, "who follows the changes of the store refuses to know that a segment is sealed");
        }
    }

    fn write_collected(&self, appends: &mut Option<Appends>) -> io::Result<()> {
        match appends {
            Some(Appends::Collected(appends, copies)) => {
                appends.write(|offset, bytes| self.note_collected(copies, offset, bytes))
            }
            Some(Appends::Mapped(_)) | None => Ok(()),
        }
    }

    /// Gives the kernel all that was appended, and returns how much that is.
    fn in_file(&self) -> io::Result<u64> {
        // Users' appends are there, and a sync must not wait for one.
        if self.may_be_in_wal {
            return Ok(self.written.load(Ordering::Acquire));
        }
        let mut appends = self.appends.lock();
        match self.write_collected(&mut appends) {
            // Removed meanwhile: nothing refers to it.
            Err(_) if self.removed.load(Ordering::Acquire) => (),
            written => written?,
        }
        if self.is_sealed() {
            self.end_appends(&mut appends);
        }
        Ok(self.written.load(Ordering::Acquire))
    }

    /// Whether a write has its value here and its key not in RocksDB yet.
    pub fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Acquire) > 0
    }

    /// Appends `parts`, one behind the other, and returns where they begin. One caller at a time.
    ///
    /// # Errors
    ///
    /// On any error nothing was appended: the next call writes over what this one left.
    pub fn append(self: &Arc<Self>, parts: &[&[u8]]) -> Result<(u64, InFlight)> {
        self.append_from(parts, None)
    }

    /// The same of bytes that are a copy of those that begin `from` there, if of any.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub(crate) fn append_from(self: &Arc<Self>, parts: &[&[u8]], from: Option<CopyOf>) -> Result<(u64, InFlight)> {
        let mut appends = self.appends.lock();
        let appends = appends.as_mut().filter(|_| !self.is_sealed());
        let appended = appends.ok_or_else(|| io::Error::other("it is sealed")).and_then(|appends| {
            let begin = match appends {
                Appends::Mapped(file) => {
                    let begin = file.append(parts)?;
                    self.note(begin, parts).inspect_err(|_| file.take_back(begin))?;
                    begin
                }
                Appends::Collected(appends, copies) => {
                    let (begin, len) = (appends.len(), parts.iter().map(|part| part.len() as u64).sum());
                    copies.iter_mut().for_each(|copies| copies.begin(begin, len, from));
                    let appended = appends.append(parts, |offset, bytes| self.note_collected(copies, offset, bytes));
                    appended.inspect_err(|_| copies.iter_mut().for_each(|copies| copies.take_back(begin)))?
                }
            };
            Ok((begin, appends.len()))
        });
        let (begin, end) = appended.map_err(|error| Error::io("append to", &self.path, &error))?;
        self.writers.fetch_add(1, Ordering::Relaxed);
        self.written.store(end, Ordering::Release);
        Ok((begin, InFlight(self.clone())))
    }

    /// Whether it should get no more, since too much would have to be said of what it is copied
    /// from.
    pub(crate) fn is_full_of_copies(&self) -> bool {
        if self.may_be_in_wal {
            return false;
        }
        match &*self.appends.lock() {
            Some(Appends::Collected(appends, Some(copies))) => copies.is_full(appends.len()),
            _ => false,
        }
    }

    fn note_collected(&self, copies: &mut Option<Copies>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(copies) = copies {
            self.tap.copied(&self.path, &copies.take_before(offset + bytes.len() as u64));
        }
        self.note(offset, &[bytes])
    }

    fn note(&self, mut offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        for bytes in parts {
            self.tap.tell(TapEvent::Appended { path: &self.path, offset, bytes })?;
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// Reads `into.len()` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] where the segment ends before, [`Error::Io`] where it cannot be read.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.file()?.read_exact_at(into, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.corrupt(offset, "the segment ends before the record does"),
            _ => Error::io("read", &self.path, &error),
        })
    }

    /// The same past the kernel's cache, if it has been read so; refused where that cannot be.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_directly(&self, offset: u64, into: &mut [u8]) -> Result<DirectRead> {
        Ok(self.direct()?.map_or(DirectRead::Refused, |direct| direct.try_read(offset, into)))
    }

    /// The same past the kernel's cache, which waits for the device; false where that cannot be, or
    /// failed.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_past_cache(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        let Some(direct) = self.direct()? else { return Ok(false) };
        // Who reads it in another way finds out why it failed.
        let read = direct.read(offset, into);
        if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidInput) {
            *self.direct.lock() = Direct::Never;
        }
        Ok(read.is_ok())
    }

    /// The same, if all of it is in the kernel's memory.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`Error::WouldBlock`] where it is not, or the file system
    /// cannot tell.
    pub fn try_read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let bytes = into.len();
        let file = self.file()?;
        match preadv2(&*file, &mut [IoSliceMut::new(into)], offset, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == bytes => Ok(()),
            // A part of it is there, or it ends: who may wait finds out.
            Ok(_) | Err(Errno::AGAIN) => {
                note_missed(&file, offset, bytes as u64);
                Err(Error::WouldBlock)
            }
            Err(Errno::OPNOTSUPP | Errno::INTR) => Err(Error::WouldBlock),
            Err(error) => Err(Error::io("read", &self.path, &error.into())),
        }
    }

    /// The same through memory.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_mapped(&self, mapped: &MappedReads, offset: u64, into: &mut [u8]) -> Result<()> {
        mapped.read_exact_at(into, offset).map_err(|error| Error::io("read", &self.path, &error))
    }

    /// Maps it into memory, for many reads; `None` where it cannot be had, or is not sealed.
    pub fn mapped(&self) -> Option<MappedReads> {
        // What is mapped needs the file no more.
        let open = || self.file.lock().as_ref().map(Counted::get).map_or_else(|| self.open(), Ok).ok();
        self.is_sealed().then(open).flatten().and_then(|file| MappedReads::new(&file, self.bytes()))
    }

    /// It in memory, where it was left there by [`keep_mapped`](Self::keep_mapped).
    #[inline]
    pub fn in_memory(&self) -> Option<Arc<Mapped>> {
        match &*self.mapping.read() {
            Mapping::In(mapped) => Some(mapped.clone()),
            Mapping::Without | Mapping::Never => None,
        }
    }

    /// Whether [`keep_mapped`](Self::keep_mapped) would keep it.
    pub fn may_be_mapped(&self) -> bool {
        matches!(*self.mapping.read(), Mapping::Without)
    }

    /// Leaves it in memory for users' reads, unless it is to be in none any more.
    pub fn keep_mapped(&self, mapped: Mapped) {
        let mut mapping = self.mapping.write();
        if !matches!(*mapping, Mapping::Never) {
            *mapping = Mapping::In(Arc::new(mapped));
        }
    }

    /// Takes it out of memory; reads under way end in peace.
    pub fn unmap(&self) {
        let mut mapping = self.mapping.write();
        if let Mapping::In(_) = *mapping {
            *mapping = Mapping::Without;
        }
    }

    /// Takes it out of memory for good.
    #[cold]
    pub fn never_map(&self) {
        *self.mapping.write() = Mapping::Never;
    }

    /// Asks the kernel to begin reading `bytes` bytes at `offset`, where they are not in memory. It
    /// need not.
    pub fn will_need(&self, offset: u64, bytes: u64) {
        if let (Ok(file), Some(bytes)) = (self.file(), NonZeroU64::new(bytes)) {
            // Whatever is wrong, the read that follows meets it.
            let _ = rustix::fs::fadvise(&file, offset, Some(bytes), rustix::fs::Advice::WillNeed);
        }
    }

    /// Whether nothing but zeros stands behind `offset`.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn is_zero_from(&self, offset: u64) -> Result<bool> {
        let file = self.file()?;
        is_zero(&file, offset, self.bytes()).map_err(|error| Error::io("read", &self.path, &error))
    }

    /// Makes all bytes durable that were appended before the call, and returns how many there are.
    /// Its name in the directory is not its concern.
    ///
    /// # Errors
    ///
    /// After an error nobody knows which bytes are durable: the store must take no more writes.
    pub fn sync(&self) -> Result<u64> {
        let written = self.in_file().map_err(|error| Error::io("append to", &self.path, &error))?;
        if self.durable.load(Ordering::Acquire) < written && !self.removed.load(Ordering::Acquire) {
            // Found ones too, whose header a loss of power may have taken: that is for their
            // readers to find.
            let open = self.file.lock().as_ref().map(Counted::get);
            let file = open.map_or_else(|| File::open(&self.path).map(Arc::new), Ok);
            let synced = file.and_then(|file| file.sync_data());
            match synced.and_then(|()| self.tap.tell(TapEvent::Synced { path: &self.path, len: written })) {
                // Removed meanwhile: nothing refers to it.
                Err(_) if self.removed.load(Ordering::Acquire) => (),
                synced => synced.map_err(|error| Error::io("sync", &self.path, &error))?,
            }
            self.durable.fetch_max(written, Ordering::AcqRel);
        }
        Ok(written)
    }

    /// It as it is read past the kernel's cache. Not while it is appended to: what is in that cache
    /// only would have to be written first.
    fn direct(&self) -> Result<Option<Arc<DirectFile>>> {
        if !self.is_sealed() {
            return Ok(None);
        }
        if self.says.get().is_none() {
            // Its header has not been read yet.
            self.open()?;
        }
        let mut direct = self.direct.lock();
        if let Direct::Unknown = *direct {
            *direct = match DirectFile::open(&self.path, self.file_number) {
                Ok(Some(file)) => Direct::Open(self.descriptors.count(Arc::new(file))),
                Ok(None) => Direct::Never,
                // Who reads it in another way finds out why.
                Err(_) => Direct::Unknown,
            };
        }
        Ok(match &*direct {
            Direct::Open(file) => Some(file.get()),
            Direct::Unknown | Direct::Never => None,
        })
    }

    /// Whether a read, with `direct` past the kernel's cache, has to open it first.
    pub fn is_to_be_opened(&self, direct: bool) -> bool {
        match direct {
            true => self.is_sealed() && matches!(*self.direct.lock(), Direct::Unknown),
            false => self.file.lock().is_none(),
        }
    }

    /// Closes the file, where it is open and sealed; a read opens it again. Reads under way end in
    /// peace.
    pub fn close(&self) {
        // Where the kernel fails to write what it was given, and nobody has the file open, nobody
        // may ever be told.
        let is_settled = self.was_found || self.durable.load(Ordering::Acquire) >= self.bytes();
        if self.is_sealed() && is_settled {
            *self.file.lock() = None;
            let mut direct = self.direct.lock();
            if let Direct::Open(_) = *direct {
                *direct = Direct::Unknown;
            }
        }
    }

    /// Removes the file's name. Readers that have it open can go on.
    pub fn remove(&self) -> Result<()> {
        self.removed.store(true, Ordering::Release);
        // What is mapped keeps its space on the device.
        self.never_map();
        match tap::remove_file(&self.path, &self.tap) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", &self.path, &error)),
            _ => Ok(()),
        }
    }

    /// That the bytes at `offset` are not what they should be.
    #[cold]
    pub fn corrupt(&self, offset: u64, detail: impl ToString) -> Error {
        Error::Corrupt {
            location: Some(format!("{} at offset {offset}", self.path.display())),
            detail: detail.to_string(),
        }
    }

    /// That what is packed at `offset` cannot be unpacked for want of memory.
    #[cold]
    pub fn no_memory(&self, offset: u64, detail: impl ToString) -> Error {
        Error::NoMemory { location: format!("{} at offset {offset}", self.path.display()), detail: detail.to_string() }
    }

    /// Its file, which is left open for the next one.
    fn file(&self) -> Result<Arc<File>> {
        let mut slot = self.file.lock();
        if let Some(file) = &*slot {
            return Ok(file.get());
        }
        let file = self.open()?;
        *slot = Some(self.descriptors.count(file.clone()));
        Ok(file)
    }

    /// Opens its file once more, and reads its header.
    fn open(&self) -> Result<Arc<File>> {
        let file = File::open(&self.path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => self.corrupt(0, "the segment is missing"),
            _ => Error::io("open", &self.path, &error),
        })?;
        match segment_header::check(&self.header_in(&file)?, self.number) {
            Ok(says) => {
                self.says.get_or_init(|| says);
            }
            Err(HeaderError::Damaged(_)) if self.ignores_header() => (),
            Err(reason) => return Err(self.corrupt(0, reason)),
        }
        Ok(Arc::new(file))
    }

    fn header_in(&self, file: &File) -> Result<[u8; SEGMENT_HEADER_BYTES]> {
        let mut header = [0; SEGMENT_HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.corrupt(0, "the segment ends inside its header"),
            _ => Error::io("read", &self.path, &error),
        })?;
        Ok(header)
    }

    /// Its header, whatever that is; `None` where it is missing, or ends before.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where it cannot be read.
    pub fn header(&self) -> Result<Option<[u8; SEGMENT_HEADER_BYTES]>> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| Error::io("open", &self.path, &error))?,
        };
        match self.header_in(&file) {
            Err(Error::Corrupt { .. }) => Ok(None),
            header => header.map(Some),
        }
    }

    /// From now on records are read though the header is damaged. Each has a checksum of its own,
    /// and says whose it is.
    pub fn ignore_header(&self) {
        self.ignores_header.store(true, Ordering::Relaxed);
    }

    /// Whether [`ignore_header`](Self::ignore_header) was called.
    pub fn ignores_header(&self) -> bool {
        self.ignores_header.load(Ordering::Relaxed)
    }
}

/// The name of a segment's file.
pub fn file_name(number: SegmentNumber) -> String {
    format!("{number}{SUFFIX}")
}

/// The number that a file's name gives; `None` for a file that is no segment.
pub fn number_in(name: &str) -> Option<SegmentNumber> {
    let digits = name.strip_suffix(SUFFIX)?;
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    // One name for each number, so that no two files are the same segment.
    (file_name(SegmentNumber(number)) == name).then_some(SegmentNumber(number))
}

/// The segments in `directory` with their lengths, in the order of their numbers; none where it is
/// missing.
pub fn list(directory: &Path) -> Result<Vec<(SegmentNumber, u64)>> {
    let failed = |error: io::Error| Error::io("list", directory, &error);
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let Some(number) = entry.file_name().to_str().and_then(number_in) else { continue };
        match entry.metadata() {
            Ok(metadata) => found.push((number, metadata.len())),
            // Removed meanwhile, by the process that writes the store: seen by one that only reads
            // it.
            Err(error) if error.kind() == ErrorKind::NotFound => (),
            Err(error) => return Err(failed(error)),
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// A segment in memory.
#[derive(Debug)]
pub struct Mapped {
    reads: MappedReads,
    // After it: what is counted no more is not mapped any more.
    _counted: MappedBytes,
}

#[derive(Debug)]
struct MappedBytes {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Mapped {
    /// These bytes of a segment, which count among `all` that are mapped until this is dropped.
    pub fn new(reads: MappedReads, bytes: u64, all: &Arc<AtomicU64>) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        Self { reads, _counted: MappedBytes { bytes, all: all.clone() } }
    }

    /// The bytes of the segment.
    pub fn reads(&self) -> &MappedReads {
        &self.reads
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes of a file that are compared with zero at once.
const CHECKED_BYTES: u64 = 1024 * 1024;

/// Whether the file holds nothing but zeros from `from` to `to`.
///
/// # Errors
///
/// Those of reading.
pub fn is_zero(file: &File, mut from: u64, to: u64) -> io::Result<bool> {
    let mut chunk = Vec::new();
    while from < to {
        let bytes = (to - from).min(CHECKED_BYTES);
        chunk.resize(bytes as usize, 0);
        file.read_exact_at(&mut chunk, from)?;
        if chunk.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        from += bytes;
    }
    Ok(true)
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
