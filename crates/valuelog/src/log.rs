//! The value log of one store: appends, reads, syncs.
//!
//! Invariants:
//!
//! - A user's value is in the file, as far as this process can say so to the kernel, before its
//!   pointer is handed out, and a relocated one before a table that names it is said to be durable:
//!   so no kill of the process leaves a pointer that leads nowhere.
//! - Segments are synced in the order of their numbers, and the watermark is moved after that.
//! - After a sync that failed nothing is appended or synced any more: the kernel may have dropped
//!   what it could not write.
//!
//! Threads: everything may be called from any number of threads. Appends are one after the other,
//! reads are not throttled by them, syncs hold up neither; but one of relocated values holds up
//! other compactions' appends while it gives the kernel what is collected.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ecotone_io::direct_reads::{self, DirectRead};
use ecotone_io::tap::TapEvent;
use parking_lot::{Mutex, RwLock};

use crate::compression::cache::DictionaryCache;
use crate::compression::dictionary::{Dictionary, DictionaryError, DictionaryId};
use crate::compression::{self, Codec, Level, Method, Stored, UnpackError, WITHOUT_DICTIONARY, with_buffer};
use crate::copies::CopyOf;
use crate::damage;
use crate::descriptors::Descriptors;
use crate::mappings::Mappings;
use crate::packed_record::{self, PackedLayout, Packing};
use crate::pointer::{Pointer, RecordPointer, SegmentMap, SegmentNumber};
use crate::record::{self, RECORD_HEADER_BYTES};
use crate::segment::{self, Contents, Head, InFlight, Segment};
use crate::segment_header::{SEGMENT_HEADER_BYTES, SegmentFormat};
use crate::stream::Stream;
use crate::sync_failure::SyncFailure;
use crate::watermark::{self, Watermark, WatermarkFile};
use crate::{Error, Result};
use ecotone_io::tap::{Tap, sync_opened_directory};

/// The folder of the value log in a store's directory.
pub const VALUES_DIRECTORY: &str = "values";

/// Records up to this size are put together in memory and appended by one call of the kernel.
const COPIED_BYTES: usize = 64 * 1024;

/// Descriptors that segments have unless asked for fewer. A process may have 1024 unless it is
/// allowed more, and RocksDB needs some.
pub const MAX_OPEN: usize = 256;

/// Segments that are so many times what the kernel can keep of them are read past its cache: what
/// it brings in is seldom asked for again before it is gone, and takes the place of keys.
const CACHED_SHARE: u64 = 4;

/// The longest value that is kept in memory by its reader (the engine's row cache).
pub const MAX_CACHED_VALUE_BYTES: usize = 2048;

/// Longer records go by the kernel's cache: nobody keeps their values, so nothing else would.
const MAX_DIRECT_BYTES: usize = MAX_CACHED_VALUE_BYTES + RECORD_HEADER_BYTES + 256;

/// Longer values are not unpacked by who must not wait: it takes longer than to have another thread do
/// it (a quarter of a millisecond by zstd, and for 1 MiB one).
const MAX_UNBLOCKED_UNPACK_BYTES: usize = 256 * 1024;

/// Into so many parts the values are divided at least, as long as segments are not shorter than
/// [`MIN_SEGMENT_BYTES`].
const SEGMENTS: u64 = 64;

/// Where somebody follows what is a copy of what, relocated values are not left in a segment that is
/// appended to further once it has so much of what it could have: segments are at most that many
/// times as many.
const FOLLOWED_SHARE: u64 = 8;

/// Shorter segments are not worth a file, unless they were asked for.
const MIN_SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

thread_local! {
    static RECORD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Of so many segments, the newest, it is asked at opening whether they have a dictionary: each has
/// to be opened for that.
const MAX_ASKED_SEGMENTS: usize = 64;

/// Of so many values of a segment, the first, it is asked by what they are packed.
const MAX_ASKED_VALUES: usize = 8;

/// Levels that relocated values can come to rest in: those of RocksDB.
const LEVELS: usize = 7;

/// Which stream a value is appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueOrigin {
    /// A user wrote it.
    Written,
    /// It was relocated.
    Relocated {
        /// The level it rests in now. Deeper levels than RocksDB has count as its last.
        level: u32,
        /// Whether it had been before.
        again: bool,
    },
}

/// The directory of the segments, and the store's, which has its name.
#[derive(Debug)]
struct Directories {
    values: File,
    store: File,
}

impl Directories {
    fn open(values: &Path) -> Result<Self> {
        let open = |path: &Path| File::open(path).map_err(|error| Error::io("open", path, &error));
        Ok(Self { values: open(values)?, store: open(values.parent().unwrap_or(values))? })
    }
}

/// The value log of one store.
#[derive(Debug)]
pub struct ValueLog {
    directory: PathBuf,
    segment_bytes: u64,
    segment_bytes_now: AtomicU64,
    /// Of all segments, when they were last weighed.
    weighed_bytes: AtomicU64,
    max_open: usize,
    descriptors: Descriptors,
    syncs_each_write: bool,
    segments: RwLock<SegmentMap<Arc<Segment>>>,
    /// What the kernel is expected to keep in memory of them; `None`: all.
    page_cache_bytes: Option<u64>,
    /// Whether that is too little to be of use.
    reads_directly: AtomicBool,
    mappings: Mappings,
    /// Whether segments that no value asks for are of format 2.
    packs: bool,
    dictionaries: DictionaryCache,
    /// The one that further segments get.
    dictionary: RwLock<Option<Arc<Dictionary>>>,
    next_number: Mutex<u32>,
    /// The greatest number that a segment has had; those behind it are only reserved.
    made_to: AtomicU32,
    written: Stream,
    /// For each level one of values that were relocated once, and one of those that were more
    /// often.
    relocated: [[Stream; 2]; LEVELS],
    new_names: AtomicBool,
    /// Segments up to this number have names that are durable; 0 where nobody knows of any.
    names_durable_to: AtomicU32,
    syncing_names: Mutex<()>,
    /// Held open: a sync that finds no descriptor free is none that failed.
    directories: OnceLock<Directories>,
    /// Whether the watermark may be moved: not before replay has checked what lies behind it.
    is_open: AtomicBool,
    /// What replay may take on trust.
    watermark: Option<Watermark>,
    watermark_file: Mutex<Option<WatermarkFile>>,
    failure: Arc<SyncFailure>,
    /// Whether others append to the segments, begin and remove them.
    follows: bool,
    tap: Tap,
}

impl ValueLog {
    /// The value log of the store in `store_directory`, which need not have one yet. Nothing is
    /// written before the first append. A segment is sealed before it would grow beyond
    /// `segment_bytes`, and earlier while there is little: what is sealed whole must be garbage
    /// whole before it goes. A longer record has one of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where it cannot be listed.
    pub fn open(store_directory: &Path, segment_bytes: u64, tap: Tap) -> Result<Self> {
        let directory = store_directory.join(VALUES_DIRECTORY);
        let found = segment::list(&directory)?;
        let watermark = watermark::read(&directory)?;
        let last = found.last().map(|(number, _)| *number).max(watermark.map(|watermark| watermark.segment));
        let descriptors = Descriptors::default();
        let segments: SegmentMap<_> = found
            .into_iter()
            .map(|(number, bytes)| (number, Segment::found(&directory, number, bytes, &descriptors, &tap)))
            .collect();
        let has_segments = !segments.is_empty();
        let directories = OnceLock::new();
        if has_segments {
            let _ = directories.set(Directories::open(&directory)?);
        }
        // What the last process may have left in the kernel's hands: relocated values are synced
        // before a table refers to them.
        let mut unsynced: Vec<_> = segments
            .values()
            .filter(|segment| watermark.is_none_or(|watermark| segment.number() >= watermark.segment))
            .cloned()
            .collect();
        unsynced.sort_by_key(|segment| segment.number());
        Ok(Self {
            directory,
            segment_bytes,
            segment_bytes_now: AtomicU64::new(MIN_SEGMENT_BYTES),
            weighed_bytes: AtomicU64::new(0),
            max_open: MAX_OPEN,
            descriptors,
            syncs_each_write: false,
            next_number: Mutex::new(last.map_or(1, |last| last.0.saturating_add(1))),
            made_to: AtomicU32::new(last.map_or(0, |last| last.0)),
            written: Stream::after(unsynced),
            relocated: Default::default(),
            segments: RwLock::new(segments),
            page_cache_bytes: None,
            reads_directly: AtomicBool::new(false),
            mappings: Mappings::new(0),
            packs: false,
            dictionaries: DictionaryCache::default(),
            dictionary: RwLock::default(),
            // The last process may have died before it synced its names.
            new_names: AtomicBool::new(has_segments),
            names_durable_to: AtomicU32::new(0),
            is_open: AtomicBool::new(false),
            syncing_names: Mutex::default(),
            directories,
            watermark,
            watermark_file: Mutex::default(),
            failure: Arc::default(),
            follows: false,
            tap,
        })
    }

    /// The same, with at most `max_open` descriptors of segments, those that are appended to among
    /// them, where that is fewer. What is not synced yet stays open beyond that.
    pub fn with_max_open(self, max_open: usize) -> Self {
        Self { max_open: max_open.min(MAX_OPEN), ..self }
    }

    /// The same, whose next segment has this number at least.
    pub fn with_least_number(self, number: u32) -> Self {
        let next = (*self.next_number.lock()).max(number);
        Self { next_number: Mutex::new(next), made_to: AtomicU32::new(next.saturating_sub(1)), ..self }
    }

    /// The same, that tells of a sync that failed there, and takes nothing after one of others.
    pub fn with_failure(self, failure: Arc<SyncFailure>) -> Self {
        Self { failure, ..self }
    }

    /// The same, with at most `bytes` bytes of segments mapped into memory for users' reads.
    pub fn with_mapped_reads(self, bytes: u64) -> Self {
        Self { mappings: Mappings::new(bytes), ..self }
    }

    /// The same, whose values are appended by [`append_packed`](Self::append_packed), and of whose
    /// dictionaries those that are not in use take at most so many bytes of memory.
    pub fn with_packed_values(self, dictionary_bytes: u64) -> Self {
        Self { packs: true, dictionaries: DictionaryCache::new(dictionary_bytes), ..self }
    }

    /// The same, of a log that others write: segments that are not known yet, or have grown, are
    /// looked for when a value is read. None is mapped, or read past the kernel's cache.
    pub fn following(self) -> Self {
        let is_direct = AtomicBool::new(false);
        Self { follows: true, mappings: Mappings::new(0), page_cache_bytes: None, reads_directly: is_direct, ..self }
    }

    /// The same, of which the kernel is expected to keep so many bytes in memory.
    pub fn with_page_cache(self, page_cache_bytes: Option<u64>) -> Self {
        let log = Self { page_cache_bytes, ..self };
        log.weigh();
        log
    }

    /// The same, of a store that syncs each write.
    pub fn with_synced_writes(self, syncs_each_write: bool) -> Self {
        Self { syncs_each_write, ..self }
    }

    /// Replay is over: from now on a sync moves the watermark.
    pub fn opened(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    /// Its folder.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Appends a value and says where it lies. Keep the second part until the pointer is in
    /// RocksDB, or given up.
    ///
    /// # Errors
    ///
    /// [`Error::DiskFull`] and [`Error::Io`]: nothing was appended. [`Error::Background`] after a
    /// sync that failed.
    pub fn append(&self, place: ValueOrigin, key: &[u8], value: &[u8]) -> Result<(Pointer, InFlight)> {
        self.failure.check()?;
        let header = record::encode_header(key, value);
        if header.len() + key.len() + value.len() <= COPIED_BYTES {
            RECORD.with_borrow_mut(|record| {
                record.clear();
                record.extend_from_slice(&header);
                record.extend_from_slice(key);
                record.extend_from_slice(value);
                self.append_parts(place, None, &[record], value.len())
            })
        } else {
            self.append_parts(place, None, &[&header, key, value], value.len())
        }
    }

    /// The same of a whole record of format 1, which was read from where `pointer` leads.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn append_record(&self, place: ValueOrigin, pointer: Pointer, record: &[u8]) -> Result<(Pointer, InFlight)> {
        self.failure.check()?;
        let from = CopyOf { segment: pointer.segment, offset: pointer.offset };
        self.append_parts(place, Some(from), &[record], pointer.value_bytes as usize)
    }

    /// Appends a value, packed where that is worth it, to a segment of format 2 of the
    /// [dictionary](Self::dictionary) that it is packed with. It is packed before any lock is
    /// taken. A new segment begins with the dictionary where values are packed, by this codec, or
    /// one of those that came to the segment before needed it; where they are not it has none.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn append_packed(
        &self,
        place: ValueOrigin,
        codec: Codec,
        key: &[u8],
        value: &[u8],
    ) -> Result<(RecordPointer, InFlight)> {
        self.failure.check()?;
        let dictionary = self.dictionary();
        let to = Target { place, dictionary: dictionary.as_deref(), packs: codec != Codec::None };
        with_buffer(value.len(), |packed| match compression::pack(codec, dictionary.as_deref(), value, packed) {
            Some(stored) => self.append_stored(to, key, packed, stored),
            None => self.append_stored(to, key, value, Stored::as_it_is(value.len())),
        })
    }

    fn append_stored(
        &self,
        to: Target<'_>,
        key: &[u8],
        bytes: &[u8],
        stored: Stored,
    ) -> Result<(RecordPointer, InFlight)> {
        let header = packed_record::encode_header(Packing::of(&stored), key, bytes, stored.value_bytes);
        let lengths = packed_record::Lengths { stored_bytes: bytes.len(), value_bytes: stored.value_bytes };
        if header.len() + key.len() + bytes.len() <= COPIED_BYTES {
            RECORD.with_borrow_mut(|record| {
                record.clear();
                record.extend_from_slice(&header);
                record.extend_from_slice(key);
                record.extend_from_slice(bytes);
                self.append_packed_parts(to, stored.dictionary, None, &[record], lengths)
            })
        } else {
            self.append_packed_parts(to, stored.dictionary, None, &[&header, key, bytes], lengths)
        }
    }

    fn append_packed_parts(
        &self,
        Target { place, dictionary, packs }: Target<'_>,
        needs: Option<DictionaryId>,
        from: Option<CopyOf>,
        parts: &[&[u8]],
        lengths: packed_record::Lengths,
    ) -> Result<(RecordPointer, InFlight)> {
        let takes = |segment: &Segment| match segment.format() {
            Ok(SegmentFormat::Packed(has)) => needs.is_none() || has == needs,
            Ok(SegmentFormat::Plain) | Err(_) => false,
        };
        let stream = self.stream(place);
        let create = || {
            // Where some values need it and some do not, one that begins without would soon be sealed.
            let is_needed = stream.begins_with_needed_dictionary(needs.is_some());
            self.create_segment(place, Contents::Packed(dictionary.filter(|_| packs || is_needed)))
        };
        let (offset, in_flight) = stream.append(parts, from, self.max_segment_bytes(), takes, create)?;
        if needs.is_some() {
            stream.needs_dictionary();
        }
        let pointer = RecordPointer {
            segment: in_flight.segment(),
            // All of them fit, as in `append_parts`.
            offset: offset as u32,
            value_bytes: lengths.value_bytes as u32,
            stored_bytes: Some(lengths.stored_bytes as u32),
        };
        Ok((pointer, in_flight))
    }

    /// Appends the value of a whole record of either format, which `pointer` leads to and
    /// [`read_record_by`](Self::read_record_by) has read: the record as it is where it is packed by
    /// that codec already, and with the dictionary in force, and the value anew where it is not. By
    /// no codec is a record as it is, unless it needs another dictionary: then the value is packed
    /// with the one in force as it was before, so that it takes no more space than where it was.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append), and those of [`read`](Self::read) where it must be unpacked.
    pub fn append_copy(
        &self,
        place: ValueOrigin,
        codec: Codec,
        key: &[u8],
        pointer: impl Into<RecordPointer>,
        record: &[u8],
    ) -> Result<(RecordPointer, InFlight)> {
        self.failure.check()?;
        let pointer = pointer.into();
        let segment = self.segment_of(pointer)?;
        let corrupt = |reason| segment.corrupt(u64::from(pointer.offset), reason);
        let Some(lengths) = pointer.packed_lengths() else {
            let value = record::check_for(record, key).map_err(corrupt)?;
            return self.append_packed(place, codec, key, &record[value]);
        };
        let layout = packed_record::check_for(record, key, lengths).map_err(corrupt)?;
        let dictionary = self.dictionary();
        let in_force = dictionary.as_ref().map(|dictionary| dictionary.id());
        let of_segment = segment.format().ok().and_then(SegmentFormat::dictionary);
        let is_packed_so = match (layout.packing, codec) {
            // As it is, where nothing stands against it.
            (Packing::Value { with_dictionary, .. }, Codec::None) => {
                !with_dictionary || (of_segment.is_some() && of_segment == in_force)
            }
            // What did not shrink may do so by another codec, or with another dictionary.
            (Packing::Value { method: Method::Lz4, with_dictionary }, Codec::Lz4)
            | (Packing::Value { method: Method::Zstd, with_dictionary }, Codec::Zstd(_)) => {
                with_dictionary == in_force.is_some() && (!with_dictionary || of_segment == in_force)
            }
            _ => false,
        };
        if is_packed_so {
            let needs = layout.value_in(of_segment).and_then(|stored| stored.dictionary);
            let to = Target { place, dictionary: dictionary.as_deref(), packs: codec != Codec::None };
            let from = CopyOf { segment: pointer.segment, offset: pointer.offset };
            return self.append_packed_parts(to, needs, Some(from), &[record], lengths);
        }
        let mut value = Vec::new();
        self.unpack(&segment, pointer, &layout, record, true, &mut value)?;
        let codec = match (codec, layout.packing.method()) {
            (Codec::None, Method::Lz4) => Codec::Lz4,
            (Codec::None, Method::Zstd) => Codec::Zstd(Level::MIN),
            (codec, _) => codec,
        };
        self.append_packed(place, codec, key, &value)
    }

    /// The dictionary that values are packed with from now on, and that further segments get.
    pub fn dictionary(&self) -> Option<Arc<Dictionary>> {
        self.dictionary.read().clone()
    }

    /// Sets that dictionary. Segments that are appended to are left with theirs: the next value that
    /// needs this one begins another.
    ///
    /// # Errors
    ///
    /// [`DictionaryError::Length`]: it stays as it was.
    pub fn set_dictionary(&self, content: Option<Vec<u8>>) -> Result<Option<DictionaryId>, DictionaryError> {
        let dictionary = content.map(|content| self.dictionaries.insert(content)).transpose()?;
        dictionary.iter().for_each(|dictionary| _ = dictionary.packed());
        let id = dictionary.as_ref().map(|dictionary| dictionary.id());
        *self.dictionary.write() = dictionary;
        Ok(id)
    }

    /// The longest dictionary that segments are to begin with: a sixteenth of one, of which it takes a
    /// fraction, since it is compressed there.
    pub fn max_dictionary_bytes(&self) -> usize {
        usize::try_from(self.segment_bytes / 16).unwrap_or(usize::MAX)
    }

    /// Sets the dictionary of the newest segment that has one: that of the last process. Damaged
    /// ones are passed over, and so is what is behind the newest 64 segments.
    pub fn take_over_dictionary(&self) -> Option<DictionaryId> {
        let segments = self.segments();
        let found =
            segments.iter().rev().take(MAX_ASKED_SEGMENTS).find_map(|segment| self.dictionary_in(segment).ok()?)?;
        found.packed();
        let id = found.id();
        *self.dictionary.write() = Some(found);
        Some(id)
    }

    /// By what the first value of the newest segment with a dictionary is packed: what the last process
    /// did. By nothing where that cannot be read.
    pub fn newest_method(&self) -> Method {
        let method_in = |segment: &Arc<Segment>| {
            segment.format().ok()?.dictionary()?;
            self.first_methods(segment, 1)?.first().copied()
        };
        let segments = self.segments();
        segments.iter().rev().take(MAX_ASKED_SEGMENTS).find_map(method_in).unwrap_or(Method::None)
    }

    /// By what the first so many values of a segment of format 2 are packed; `None` where that cannot
    /// be read.
    fn first_methods(&self, segment: &Segment, most: usize) -> Option<Vec<Method>> {
        self.will_open(segment, false);
        let mut begin = SEGMENT_HEADER_BYTES as u64;
        let has_dictionary = segment.format().ok()?.dictionary().is_some();
        let mut methods = Vec::new();
        for number in 0..most + usize::from(has_dictionary) {
            let left = segment.bytes().saturating_sub(begin).min(packed_record::MAX_HEADER_BYTES as u64);
            if left == 0 {
                break;
            }
            let mut head = [0; packed_record::MAX_HEADER_BYTES];
            let head = &mut head[..left as usize];
            segment.read(begin, head).ok()?;
            if number > 0 || !has_dictionary {
                methods.push(packed_record::packing(head)?.method());
            }
            begin += packed_record::announced_bytes(head).ok()? as u64;
        }
        Some(methods)
    }

    /// Whether [`append_copy`](Self::append_copy) by `codec` would leave the records of a segment
    /// of format 2 as they are, that begins with the dictionary in force. By its first values: one
    /// that did not shrink says nothing, since by the same codec it would not again.
    pub(crate) fn is_packed_by(&self, segment: &Segment, codec: Codec) -> bool {
        let method = match codec {
            Codec::None => return true,
            Codec::Lz4 => Method::Lz4,
            Codec::Zstd(_) => Method::Zstd,
        };
        let mut methods = self.first_methods(segment, MAX_ASKED_VALUES).unwrap_or_default();
        methods.retain(|found| *found != Method::None);
        !methods.is_empty() && methods.iter().all(|found| *found == method)
    }

    /// Bytes of memory that dictionaries take.
    pub fn dictionary_memory(&self) -> u64 {
        self.dictionaries.bytes()
    }

    /// The dictionary that the values of `segment` are packed with; `None` where there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] where it cannot be read, neither there nor in another segment that has
    /// the same: values that are packed with it cannot be read.
    pub fn dictionary_in(&self, segment: &Arc<Segment>) -> Result<Option<Arc<Dictionary>>> {
        match segment.format() {
            Ok(format) => format.dictionary().map(|id| self.load_dictionary(segment, id, true)).transpose(),
            Err(_) if segment.ignores_header() => self.dictionary_behind_damaged_header(segment, true).map(Some),
            Err(error) => Err(error),
        }
    }

    /// The dictionary `id` of `segment`, if it may not wait only from memory.
    fn load_dictionary(&self, segment: &Arc<Segment>, id: DictionaryId, may_wait: bool) -> Result<Arc<Dictionary>> {
        if let Some(dictionary) = self.dictionaries.get(id) {
            return Ok(dictionary);
        }
        let content = match self.read_dictionary(segment, may_wait) {
            Err(error @ Error::Corrupt { .. }) => {
                if !may_wait {
                    return Err(Error::WouldBlock);
                }
                segment.has_lost_dictionary(&error);
                self.copy_of_dictionary(segment, id).ok_or(error)?
            }
            content => content?,
        };
        self.dictionaries.insert(content).map_err(|reason| segment.corrupt(SEGMENT_HEADER_BYTES as u64, reason))
    }

    fn dictionary_behind_damaged_header(&self, segment: &Arc<Segment>, may_wait: bool) -> Result<Arc<Dictionary>> {
        let content = self.read_dictionary(segment, may_wait)?;
        self.dictionaries.insert(content).map_err(|reason| segment.corrupt(SEGMENT_HEADER_BYTES as u64, reason))
    }

    fn read_dictionary(&self, segment: &Arc<Segment>, may_wait: bool) -> Result<Vec<u8>> {
        self.will_open(segment, false);
        segment.read_dictionary(|offset, into| match may_wait {
            true => segment.read(offset, into),
            false => segment.try_read(offset, into),
        })
    }

    /// The content of that dictionary in any other segment.
    #[cold]
    fn copy_of_dictionary(&self, but: &Segment, id: DictionaryId) -> Option<Vec<u8>> {
        self.others_with(but, id).iter().find_map(|segment| self.read_dictionary(segment, true).ok())
    }

    /// The other segments that name that dictionary, oldest first. Reads the headers of those that
    /// were not read yet.
    fn others_with(&self, but: &Segment, id: DictionaryId) -> Vec<Arc<Segment>> {
        let mut segments = self.segments();
        segments.retain(|segment| {
            segment.number() != but.number() && segment.dictionary_named().is_some_and(|named| named == id)
        });
        segments
    }

    /// Whether other segments need the dictionary of this one: they name it, and none of them has a
    /// whole copy that is on the device, as far as one can tell. Reads, once for each segment, the
    /// dictionaries of others until it finds one.
    fn is_last_with_its_dictionary(&self, segment: &Segment) -> bool {
        let Some(id) = segment.dictionary_named() else { return false };
        let others = self.others_with(segment, id);
        let is_whole = |segment: &Arc<Segment>| {
            self.will_open(segment, false);
            segment.has_dictionary().unwrap_or(false) && segment.has_durable_head()
        };
        // Its own copy is asked for last: where it is damaged it is of no use to the others.
        !others.is_empty() && !others.iter().any(is_whole) && segment.has_dictionary().unwrap_or(true)
    }

    /// Appends the value of a record of `segment` to `to`.
    fn unpack(
        &self,
        segment: &Arc<Segment>,
        pointer: RecordPointer,
        layout: &PackedLayout,
        record: &[u8],
        may_wait: bool,
        to: &mut Vec<u8>,
    ) -> Result<()> {
        let offset = u64::from(pointer.offset);
        let dictionary = match layout.packing {
            Packing::Value { with_dictionary: true, .. } => {
                let found = match segment.format() {
                    Ok(SegmentFormat::Packed(Some(id))) => self.load_dictionary(segment, id, may_wait),
                    Err(_) if segment.ignores_header() => self.dictionary_behind_damaged_header(segment, may_wait),
                    Ok(_) => Err(segment.corrupt(SEGMENT_HEADER_BYTES as u64, "its header names no dictionary")),
                    Err(error) => Err(error),
                };
                // Which record cannot be read, and why.
                Some(found.map_err(|error| match error {
                    Error::Corrupt { detail, .. } => segment.corrupt(offset, format!("{WITHOUT_DICTIONARY}{detail}")),
                    error => error,
                })?)
            }
            _ => None,
        };
        let stored = layout.value_in(dictionary.as_ref().map(|dictionary| dictionary.id()));
        let stored = stored.ok_or_else(|| segment.corrupt(offset, "the record holds no value"))?;
        let bytes = &record[layout.stored.clone()];
        compression::unpack(stored, dictionary.as_deref(), bytes, to).map_err(|reason| match reason {
            UnpackError::NoMemory | UnpackError::Dictionary(_) => segment.no_memory(offset, reason),
            UnpackError::NotThatLength { .. } | UnpackError::WithoutDictionary(_) => segment.corrupt(offset, reason),
        })
    }

    /// Whether a user's value can be appended without waiting for another one.
    pub fn is_unblocked(&self) -> bool {
        self.written.is_unblocked()
    }

    /// Gives `count` numbers of segments to nobody else, and says the first.
    ///
    /// # Errors
    ///
    /// [`Error::Background`]: there are no more.
    pub(crate) fn take_numbers(&self, count: u32) -> Result<SegmentNumber> {
        let mut next = self.next_number.lock();
        let first = SegmentNumber(*next);
        *next = next.checked_add(count).ok_or_else(numbers_are_used_up)?;
        Ok(first)
    }

    /// Gives numbers back of which no segment was begun and none will be, if none were taken since.
    pub fn give_back_numbers(&self, first: SegmentNumber, count: u32) {
        let mut next = self.next_number.lock();
        if first.0.checked_add(count) == Some(*next) {
            *next = first.0;
        }
    }

    pub(crate) fn failure(&self) -> &SyncFailure {
        &self.failure
    }

    fn append_parts(
        &self,
        place: ValueOrigin,
        from: Option<CopyOf>,
        parts: &[&[u8]],
        value_bytes: usize,
    ) -> Result<(Pointer, InFlight)> {
        let max_bytes = self.max_segment_bytes();
        let takes = |segment: &Segment| matches!(segment.format(), Ok(SegmentFormat::Plain));
        let create = || self.create_segment(place, Contents::Plain);
        let (offset, in_flight) = self.stream(place).append(parts, from, max_bytes, takes, create)?;
        // Both fit: a segment is shorter than 4 GiB unless it holds one record only.
        let (offset, value_bytes) = (offset as u32, value_bytes as u32);
        Ok((Pointer { segment: in_flight.segment(), offset, value_bytes }, in_flight))
    }

    /// Sees to it that there is a segment behind `number`, which the next user's value goes to:
    /// where that [stays](Self::stays) it can go then.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn go_behind(&self, number: SegmentNumber) -> Result<()> {
        self.failure.check()?;
        // Without a dictionary, so that one that no value ever comes to takes nothing.
        let contents = if self.packs { Contents::Packed(None) } else { Contents::Plain };
        self.written.begin_behind(number, || self.create_segment(ValueOrigin::Written, contents))
    }

    pub(crate) fn max_segment_bytes(&self) -> u64 {
        self.segment_bytes.min(self.segment_bytes_now.load(Ordering::Relaxed))
    }

    /// A segment of relocated values that is sealed although more could be appended has so many
    /// bytes at least.
    pub(crate) fn followed_bytes(&self) -> u64 {
        self.max_segment_bytes() / FOLLOWED_SHARE
    }

    fn stream(&self, place: ValueOrigin) -> &Stream {
        match place {
            ValueOrigin::Written => &self.written,
            ValueOrigin::Relocated { level, again } => {
                &self.relocated[(level as usize).min(LEVELS - 1)][usize::from(again)]
            }
        }
    }

    fn create_segment(&self, place: ValueOrigin, contents: Contents<'_>) -> Result<Arc<Segment>> {
        self.close_some();
        let mut next = self.next_number.lock();
        let number = SegmentNumber(*next);
        let Some(after) = next.checked_add(1) else { return Err(numbers_are_used_up()) };
        let resting_level = match place {
            ValueOrigin::Written => None,
            ValueOrigin::Relocated { level, .. } => Some(level),
        };
        let segment = self.make_segment(number, Head { resting_level, contents }, self.max_segment_bytes());
        // Where it cannot be made, what is left of it would be in the way of the next one.
        if segment.is_ok() || self.directory.join(segment::file_name(number)).exists() {
            *next = after;
        }
        segment
    }

    /// Makes a segment whose number was given to nobody else.
    pub(crate) fn make_segment(&self, number: SegmentNumber, head: Head<'_>, limit: u64) -> Result<Arc<Segment>> {
        let created = std::fs::create_dir(&self.directory);
        match created.and_then(|()| self.tap.tell(TapEvent::DirectoryCreated { path: &self.directory })) {
            Ok(()) => self.new_names.store(true, Ordering::Release),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => (),
            Err(error) => return Err(Error::io("create the directory", &self.directory, &error)),
        }
        self.directories()?;
        let syncs_often = self.syncs_each_write && head.resting_level.is_none();
        let segment = Segment::create(&self.directory, number, head, limit, syncs_often, &self.descriptors, &self.tap)?;
        self.made_to.fetch_max(number.0, Ordering::AcqRel);
        let all = self.weigh();
        self.segment_bytes_now.store((all / SEGMENTS).max(MIN_SEGMENT_BYTES), Ordering::Relaxed);
        self.new_names.store(true, Ordering::Release);
        self.segments.write().insert(number, segment.clone());
        Ok(segment)
    }

    /// The bytes of all segments. From them follows how they are read.
    fn weigh(&self) -> u64 {
        let all = self.segments.read().values().map(|segment| segment.bytes()).sum();
        self.weighed_bytes.store(all, Ordering::Relaxed);
        let is_too_little = |cached: u64| all > cached.saturating_mul(CACHED_SHARE);
        self.reads_directly.store(self.page_cache_bytes.is_some_and(is_too_little), Ordering::Relaxed);
        all
    }

    /// Bytes of all segments, as of the last one that was begun or removed.
    pub fn weighed_bytes(&self) -> u64 {
        self.weighed_bytes.load(Ordering::Relaxed)
    }

    /// Ends the segments that are appended to; the next appends begin others.
    pub fn seal_active(&self) {
        self.written.seal();
        self.relocated.iter().flatten().for_each(Stream::seal);
    }

    /// Ends `segment`, where relocated values are appended to it and none were behind `bytes`.
    /// False where it is not so.
    pub fn seal_relocated(&self, segment: &Segment, bytes: u64) -> bool {
        self.relocated.iter().flatten().any(|stream| stream.seal_at(segment, bytes))
    }

    /// Whether a user's value was appended that may not be durable.
    pub fn is_dirty(&self) -> bool {
        self.written.is_dirty()
    }

    /// Makes every value durable that a user's write appended before the call.
    ///
    /// # Errors
    ///
    /// [`Error::Background`], now and from now on.
    pub fn sync(&self) -> Result<()> {
        if let Some(watermark) = self.sync_stream(&self.written)?
            && self.is_open.load(Ordering::Acquire)
        {
            self.keep(watermark);
        }
        // Those that stayed open until now.
        if self.descriptors.open() > self.max_open + 1 {
            self.close_some();
        }
        Ok(())
    }

    /// Makes every value durable that was relocated before the call. Where somebody follows what is
    /// a copy of what, segments that have got long enough are sealed: what they are made of is said
    /// whole then, before anything refers to them.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync).
    pub fn sync_relocated(&self) -> Result<()> {
        if self.tap.follows_copies() {
            let bytes = self.followed_bytes();
            self.relocated.iter().flatten().for_each(|stream| stream.seal_from(bytes));
        }
        self.relocated.iter().flatten().try_for_each(|stream| self.sync_stream(stream).map(drop))
    }

    fn sync_stream(&self, stream: &Stream) -> Result<Option<Watermark>> {
        stream.sync(&self.failure, || self.sync_names())
    }

    /// Makes the names of all segments durable that were begun before the call.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync).
    pub fn sync_names(&self) -> Result<()> {
        // Who finds nothing to do must find it done; and who waited for one that failed would sync
        // again, though the kernel has told of it already.
        let _one_at_a_time = self.syncing_names.lock();
        self.failure.check()?;
        let directories = self.directories()?;
        // Made before it is taken back.
        let made_to = self.made_to.load(Ordering::Acquire);
        if self.new_names.swap(false, Ordering::AcqRel) {
            let sync = |opened, directory| {
                sync_opened_directory(opened, directory, &self.tap)
                    .map_err(|error| Error::io("sync", directory, &error))
            };
            let synced = sync(&directories.values, &*self.directory);
            let own_name = |()| sync(&directories.store, self.directory.parent().unwrap_or(&self.directory));
            synced.and_then(own_name).map_err(|error| {
                self.failure.set("value log sync", format!("the names of segments could not be synced: {error}"))
            })?;
            self.names_durable_to.store(made_to, Ordering::Release);
        }
        Ok(())
    }

    fn directories(&self) -> Result<&Directories> {
        match self.directories.get() {
            Some(opened) => Ok(opened),
            None => {
                let opened = Directories::open(&self.directory)?;
                Ok(self.directories.get_or_init(|| opened))
            }
        }
    }

    /// Only users' segments count for the watermark: the WAL names no others, and theirs are sealed
    /// in the order of their numbers.
    fn keep(&self, watermark: Watermark) {
        let mut file = self.watermark_file.lock();
        let opened = file.take().map_or_else(|| WatermarkFile::open(&self.directory, &self.tap), Ok);
        // It is opened again after a failure.
        *file = opened.and_then(|mut opened| opened.set(watermark).map(|()| opened)).inspect_err(not_kept).ok();
    }

    /// The store is closed: ends the segments that are appended to, and brings the watermark to the
    /// device.
    pub fn close(&self) {
        self.seal_active();
        if let Some(file) = &mut *self.watermark_file.lock() {
            let _ = file.sync().inspect_err(not_kept);
        }
    }

    /// Reads the value of `key` that `pointer` leads to. The record is left in `into`, or the value
    /// alone where it was packed; where the value lies in it is returned.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] names file and offset, and says so where a dictionary is what is missing.
    pub fn read(
        &self,
        key: &[u8],
        pointer: impl Into<RecordPointer>,
        into: &mut Vec<u8>,
    ) -> Result<std::ops::Range<usize>> {
        self.read_value(key, pointer.into(), into, true, |segment, offset, into| {
            if let Some(mapped) = segment.in_memory() {
                if segment.read_mapped(mapped.reads(), offset, into).is_ok() {
                    return Ok(());
                }
                segment.never_map();
            }
            self.read_by_call(segment, offset, into)
        })
    }

    /// The same, if its bytes are in memory.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`Error::WouldBlock`].
    pub fn try_read(
        &self,
        key: &[u8],
        pointer: impl Into<RecordPointer>,
        into: &mut Vec<u8>,
    ) -> Result<std::ops::Range<usize>> {
        let pointer = pointer.into();
        let value_bytes = pointer.value_bytes as usize;
        if pointer.saved_bytes() > 0 && value_bytes > MAX_UNBLOCKED_UNPACK_BYTES {
            return Err(Error::WouldBlock);
        }
        // By the length that its reader would keep, whatever it is packed to.
        let directly = value_bytes <= MAX_CACHED_VALUE_BYTES
            && self.reads_past_cache(pointer.record_bytes(key.len()))
            && direct_reads::are_of_use();
        let read = |segment: &Arc<Segment>, offset, into: &mut [u8]| {
            if directly {
                self.will_open(segment, true);
                match segment.read_directly(offset, into)? {
                    DirectRead::Arrived => return Ok(()),
                    DirectRead::Noted => return Err(Error::WouldBlock),
                    DirectRead::Refused => (),
                }
            }
            self.will_open(segment, false);
            segment.try_read(offset, into)
        };
        self.read_value(key, pointer, into, false, read)
    }

    /// Whether a record of so many bytes is better read past the kernel's cache: it can keep so
    /// little of the segments that others would go for its page.
    fn reads_past_cache(&self, record_bytes: usize) -> bool {
        record_bytes <= MAX_DIRECT_BYTES && self.reads_directly.load(Ordering::Relaxed)
    }

    /// Whether so many bytes of segments, read in any order, are likely to stay in the kernel's
    /// cache until all of them were: half of it is for others.
    pub fn fits_in_cache(&self, bytes: u64) -> bool {
        self.page_cache_bytes.is_none_or(|cached| bytes <= cached / 2)
    }

    /// Reads a record of `segment` past the kernel's cache, and waits for the device; false where
    /// it is too long for that, or cannot be read so.
    ///
    /// # Errors
    ///
    /// The segment's file cannot be opened.
    pub fn read_past_cache(&self, segment: &Segment, offset: u64, record: &mut [u8]) -> Result<bool> {
        if record.len() > MAX_DIRECT_BYTES {
            return Ok(false);
        }
        self.will_open(segment, true);
        segment.read_past_cache(offset, record)
    }

    fn read_by_call(&self, segment: &Arc<Segment>, offset: u64, into: &mut [u8]) -> Result<()> {
        self.will_open(segment, false);
        segment.read(offset, into)?;
        self.mappings.was_called(segment);
        Ok(())
    }

    /// Asks the kernel to begin reading the record that `pointer` leads to, where it is not in
    /// memory, and does not wait for it. A pointer that leads nowhere is left to the
    /// [`read`](Self::read) that follows.
    pub fn will_need(&self, key: &[u8], pointer: impl Into<RecordPointer>) {
        let pointer = pointer.into();
        if let Some(segment) = self.segment(pointer.segment)
            && pointer.end(key.len()) <= segment.bytes()
        {
            self.will_open(&segment, false);
            segment.will_need(u64::from(pointer.offset), pointer.record_bytes(key.len()) as u64);
        }
    }

    /// Reads the whole record that `pointer` leads to, checks it, and leaves it in `into` as it is
    /// stored, for [`append_copy`](Self::append_copy). It is read by another way than the segment's
    /// own, which [says](Self::will_open) what it opens.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_record_by(
        &self,
        key: &[u8],
        pointer: impl Into<RecordPointer>,
        into: &mut Vec<u8>,
        read: impl FnOnce(&Arc<Segment>, u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.read_whole(key, pointer.into(), into, read).map(drop)
    }

    fn read_value(
        &self,
        key: &[u8],
        pointer: RecordPointer,
        into: &mut Vec<u8>,
        may_wait: bool,
        read: impl FnOnce(&Arc<Segment>, u64, &mut [u8]) -> Result<()>,
    ) -> Result<std::ops::Range<usize>> {
        let (segment, layout) = match self.read_whole(key, pointer, into, read)? {
            (_, Whole::Plain(value)) => return Ok(value),
            (segment, Whole::Packed(layout)) => (segment, layout),
        };
        if layout.packing.method() == Method::None {
            return Ok(layout.stored);
        }
        with_buffer(layout.value_bytes, |value| {
            self.unpack(&segment, pointer, &layout, into, may_wait, value)?;
            std::mem::swap(into, value);
            Ok(0..into.len())
        })
    }

    fn read_whole(
        &self,
        key: &[u8],
        pointer: RecordPointer,
        into: &mut Vec<u8>,
        read: impl FnOnce(&Arc<Segment>, u64, &mut [u8]) -> Result<()>,
    ) -> Result<(Arc<Segment>, Whole)> {
        let offset = u64::from(pointer.offset);
        if self.follows {
            self.look_for_segment(pointer.segment, pointer.end(key.len()))?;
        }
        let segment = self.segment_of(pointer)?;
        if pointer.end(key.len()) > segment.bytes() || pointer.offset < SEGMENT_HEADER_BYTES as u32 {
            return Err(segment.corrupt(offset, "the pointer leads outside of the segment"));
        }
        // What it held is overwritten, or means nothing.
        into.resize(pointer.record_bytes(key.len()), 0);
        read(&segment, offset, into)?;
        let whole = match pointer.packed_lengths() {
            None => record::check_for(into, key).map(Whole::Plain),
            Some(lengths) => packed_record::check_for(into, key, lengths).map(Whole::Packed),
        };
        let whole = whole.map_err(|reason| segment.corrupt(offset, reason))?;
        Ok((segment, whole))
    }

    fn segment_of(&self, pointer: RecordPointer) -> Result<Arc<Segment>> {
        self.segment(pointer.segment).ok_or_else(|| Error::Corrupt {
            location: Some(self.place(pointer)),
            detail: "the segment is missing".into(),
        })
    }

    /// Where `pointer` leads, whether or not there is something.
    pub fn place(&self, pointer: impl Into<RecordPointer>) -> String {
        let pointer = pointer.into();
        let file = self.directory.join(segment::file_name(pointer.segment));
        format!("{} at offset {}", file.display(), pointer.offset)
    }

    /// Whether a value that does not read right is damaged, and was not lost with power.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::NoMemory`] where nobody can tell.
    pub fn is_damaged(&self, key: &[u8], pointer: impl Into<RecordPointer>) -> Result<bool> {
        let pointer = pointer.into();
        let Some(segment) = self.segment(pointer.segment) else { return Ok(false) };
        damage::is_damaged(&segment, key, pointer, || match self.dictionary_in(&segment) {
            Ok(found) => Ok(found.is_some()),
            Err(Error::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error),
        })
    }

    /// Whether a loss of power took the dictionary of `segment`, if it has one: it is not whole, and
    /// was not damaged.
    ///
    /// # Errors
    ///
    /// As [`is_damaged`](Self::is_damaged).
    pub fn has_lost_dictionary(&self, segment: &Segment) -> Result<bool> {
        Ok(!segment.has_dictionary()? && !damage::is_dictionary_damaged(segment)?)
    }

    /// The same, that reads what stands behind damaged headers: for who saves what can be saved.
    pub fn ignoring_headers(self) -> Self {
        self.segments.read().values().for_each(|segment| segment.ignore_header());
        self
    }

    /// Finds out how long a segment is by now that others append to, if it was not so long before.
    fn look_for_segment(&self, number: SegmentNumber, end: u64) -> Result<()> {
        if self.segment(number).is_some_and(|segment| segment.bytes() >= end) {
            return Ok(());
        }
        let path = self.directory.join(segment::file_name(number));
        match std::fs::metadata(&path) {
            Ok(metadata) => {
                self.note_segment(&mut self.segments.write(), number, metadata.len());
                Ok(())
            }
            // Who follows the pointer says so.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::io("look at", &path, &error)),
        }
    }

    /// Finds out which segments there are, of a log that others write, and lets those go that were
    /// removed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn look_for_segments(&self) -> Result<()> {
        let found = segment::list(&self.directory)?;
        let mut segments = self.segments.write();
        segments.retain(|number, _| found.binary_search_by_key(number, |(number, _)| *number).is_ok());
        found.into_iter().for_each(|(number, bytes)| self.note_segment(&mut segments, number, bytes));
        Ok(())
    }

    /// A file that has grown may be another one as well, with the same bytes before.
    fn note_segment(&self, segments: &mut SegmentMap<Arc<Segment>>, number: SegmentNumber, bytes: u64) {
        if segments.get(&number).is_none_or(|known| known.bytes() != bytes) {
            segments.insert(number, Segment::found(&self.directory, number, bytes, &self.descriptors, &self.tap));
        }
    }

    /// The segment of this number, where there is one.
    pub fn segment(&self, number: SegmentNumber) -> Option<Arc<Segment>> {
        self.segments.read().get(&number).cloned()
    }

    /// Whether there is such a segment.
    pub fn has_segment(&self, number: SegmentNumber) -> bool {
        self.segments.read().contains_key(&number)
    }

    /// All segments, in the order of their numbers.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        let mut segments: Vec<_> = self.segments.read().values().cloned().collect();
        segments.sort_by_key(|segment| segment.number());
        segments
    }

    /// Whether replay must take the pointer on trust: it lies before the watermark that was found
    /// at opening.
    pub fn was_durable(&self, key: &[u8], pointer: impl Into<RecordPointer>) -> bool {
        let pointer = pointer.into();
        self.watermark.is_some_and(|watermark| {
            pointer.segment < watermark.segment
                || (pointer.segment == watermark.segment && pointer.end(key.len()) <= watermark.offset)
        })
    }

    /// Whether nobody may remove it: the one with the greatest number. Who opens the store goes on
    /// behind it, and a number is not to be given twice.
    pub fn stays(&self, segment: &Segment) -> bool {
        segment.number().0 >= self.made_to.load(Ordering::Acquire)
    }

    /// Removes a segment that nobody can name any more. False for one that [`stays`](Self::stays), or
    /// whose dictionary others need of which none has a whole copy: it can go once they are gone.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; it is forgotten all the same, and found again when the store is opened.
    /// [`Error::Background`], as [`sync`](Self::sync).
    pub fn remove(&self, segment: &Segment) -> Result<bool> {
        if self.stays(segment) || self.is_last_with_its_dictionary(segment) {
            return Ok(false);
        }
        if self.names_durable_to.load(Ordering::Acquire) <= segment.number().0 {
            // One with a greater number must be found after a loss of power as well.
            self.new_names.store(true, Ordering::Release);
            self.sync_names()?;
        }
        self.segments.write().remove(&segment.number());
        self.weigh();
        std::iter::once(&self.written).chain(self.relocated.iter().flatten()).for_each(|stream| stream.forget(segment));
        segment.remove().map(|()| true)
    }

    /// Before a read of `segment`, with `directly` past the kernel's cache.
    #[inline]
    pub fn will_open(&self, segment: &Segment, directly: bool) {
        if self.descriptors.open() >= self.max_open && segment.is_to_be_opened(directly) {
            self.close_some();
        }
    }

    /// Closes all sealed segments where as many are open as may be. Those in use are opened again;
    /// where few may be open and most are appended to, which stay open, that is often.
    #[cold]
    pub(crate) fn close_some(&self) {
        if self.descriptors.open() >= self.max_open {
            self.segments.read().values().for_each(|segment| segment.close());
        }
    }
}

fn numbers_are_used_up() -> Error {
    Error::Background { detail: "the numbers of segments are used up".into() }
}

/// Where a value of format 2 goes.
#[derive(Clone, Copy)]
struct Target<'d> {
    place: ValueOrigin,
    /// That in force.
    dictionary: Option<&'d Dictionary>,
    /// Whether values that go there are packed where that is worth it.
    packs: bool,
}

/// A record that was read and is whole.
enum Whole {
    /// Of format 1, with where its value lies.
    Plain(std::ops::Range<usize>),
    /// Of format 2.
    Packed(PackedLayout),
}

/// Without the watermark opening takes longer, and damage behind it may pass for a loss of power;
/// what it said before stays true.
fn not_kept(error: &Error) {
    tracing::warn!(%error, "the watermark of the value log could not be kept");
}

// The record's own header is within what the first segment has room for.
const _: () = assert!(RECORD_HEADER_BYTES + SEGMENT_HEADER_BYTES < COPIED_BYTES);

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "log_packed_tests.rs"]
mod packed_tests;
