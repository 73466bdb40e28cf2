//! The primary's half: a tap that makes the changes of a store's directory the items of a stream.
//!
//! | what happens to a file | items |
//! |---|---|
//! | bytes are appended to a WAL | `Append`, at once, each of at most [`MAX_ITEM_BYTES`] |
//! | bytes are appended to a segment | the same, for all that come before another item: what names them comes behind them |
//! | a MANIFEST is synced | `Append` of what is durable of it and was not in an item yet |
//! | `CURRENT` or `STORE` is renamed into place | `Put`, with its content |
//! | a table is closed, or renamed or linked into the directory; a segment is sealed | `Finished` |
//! | a segment is sealed of which it is known of what others it is made | `Collect`, in place of `Append` and `Finished` |
//! | a WAL, MANIFEST, segment or finished table is removed | `Delete` |
//! | a WAL or segment is synced | `Sync`, at most one in [`MIN_SYNC_DISTANCE`] |
//!
//! Whatever else happens is ignored: see [`names`](crate::names).
//!
//! # Invariants
//!
//! - Items are in an order in which what they name is there before they come: who changes a file
//!   is kept until its item is in the stream, so what happens after it comes after it.
//! - Bytes are in memory only while they pass, but for those of `Put` and `Collect`: the bytes of an
//!   item are read from the file, which stays under another name until no copy needs them
//!   ([`KeptFiles`]). A file may be longer than what was appended; a read ends where its item ends.
//! - The tap fails no operation, and waits for nobody.
//! - Once the sink takes no item nothing more is kept, and it is not asked again: a stream has no
//!   gaps.
//!
//! # Failure
//!
//! - What cannot be read when its item is due is logged. Of a finished file an id is given then that
//!   no file has, so copies go no further than to the MANIFEST edit that may name it; of a MANIFEST
//!   the bytes come with the next sync; of others a copy sees that an item does not follow.
//! - Bytes that were written over (a write in place after an error) are of another checksum than
//!   their item: [`Error::Mismatch`], and the copy is built anew.
//!
//! # Threads
//!
//! Any, several at once. One lock orders the stream; under it nothing is read or written but in the
//! rare cases that say so. Contents are summed up under a lock of each file. The sink is called under
//! the first one: whoever calls a method of a source holds no lock that the sink takes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_io::tap::{CopiedRange, TapEvent, WriteTap};
use ecotone_replica::position::{Mark, Position};
use ecotone_replica::stream::{ContentId, FileKind, Item, Kind, MAX_ITEM_BYTES};
use parking_lot::{Mutex, MutexGuard};

use crate::catalog::{Catalog, Hasher, hash_file};
use crate::error::{Error, Result};
use crate::instructions::{Instructions, Piece};
use crate::kept::{KeptFiles, Link};
use crate::names::{FileName, VALUES_DIRECTORY, named_by_current, parse, path_of};
use crate::seed::{Offer, OfferedFile};

mod contents;

/// From one `Sync` to the next.
pub const MIN_SYNC_DISTANCE: Duration = Duration::from_millis(10);

/// How often an offer is begun again because a file was removed meanwhile, a millisecond apart.
const MAX_OFFER_ATTEMPTS: usize = 100;

const OFFER_DISTANCE: Duration = Duration::from_millis(1);

/// The hash of a finished file that could not be read. XXH3 gives it to one file in 2^128.
const UNREADABLE: u128 = 0;

/// Where items go.
pub trait Sink: Send + Sync {
    /// The directory has changed. None when this server is no primary any more: nothing is kept
    /// then. Else where in the stream the item is. Called under the source's lock, so in order, by
    /// whatever thread changes the directory; must not call the source.
    fn append(&self, kind: Kind, bytes: u64, checksum: u32) -> Option<Position>;

    /// Where the last item leads, and the limit of the clock there in milliseconds since 1970.
    fn mark(&self) -> (Mark, u64);
}

/// See the module. One for each opening of a store as primary: positions of another one are others.
pub struct Source {
    directory: PathBuf,
    sink: Arc<dyn Sink>,
    kept: KeptFiles,
    state: Mutex<State>,
    /// Files that are being written and will be finished.
    passing: Mutex<HashMap<FileName, Arc<Mutex<Passing>>>>,
    /// Held while bytes of a MANIFEST are read that were synced.
    manifest: Mutex<()>,
    contents: Mutex<Contents>,
}

/// What is computed of a file as it is written.
#[derive(Default)]
struct Passing {
    hasher: Hasher,
    /// Bytes were written elsewhere than at the end: it is read once it is finished.
    is_rewritten: bool,
    /// So many bytes are on the device.
    synced: u64,
    /// Of a segment: how to make what of it is held back, if that may be of use.
    instructions: Option<Instructions>,
    /// It was of no use before.
    is_sent_as_bytes: bool,
    /// The file is complete.
    is_closed: bool,
}

struct Contents {
    catalog: Catalog,
    /// Finished, and not on the device.
    unsynced: HashMap<FileName, ContentId>,
    has_warned: bool,
}

struct State {
    /// The directory as the stream has it.
    files: HashMap<FileName, Known>,
    /// The content of `CURRENT`, and the number of the MANIFEST that it names.
    current: Option<(u64, Arc<[u8]>)>,
    store: Option<Arc<[u8]>>,
    /// `CURRENT` was put in place by this opening.
    is_opened: bool,
    /// Files that were removed while items name them: the last such item, and where they are.
    gone: HashMap<FileName, (u64, Arc<Link>)>,
    /// Files of which no further items come, and that items name.
    ended: Vec<FileName>,
    /// The bytes of `Put` and `Collect` items.
    puts: VecDeque<(u64, Arc<[u8]>)>,
    /// No copy needs items before.
    first_kept: u64,
    synced_at: Option<Instant>,
    /// Appended to a segment, and no item yet. Each value is an append of its own, and many precede
    /// the one of the WAL that names them all.
    run: Option<Run>,
    /// The sink took an item no more.
    is_over: bool,
    /// To be removed without the lock.
    released: Vec<Arc<Link>>,
}

/// Bytes of a file, one behind the other.
struct Run {
    file: FileName,
    offset: u64,
    bytes: u64,
    checksum: u32,
}

/// A file that is in the stream, or was there before.
struct Known {
    /// Bytes of it that are in the stream.
    len: u64,
    /// What it holds, once it is finished.
    content: Option<ContentId>,
    /// When that was said.
    finished: Option<Instant>,
    link: Option<Arc<Link>>,
    /// Whether a link was tried, whatever came of it.
    was_linked: bool,
    /// The last item that names bytes of it; 0 before one.
    last_item: u64,
    is_appended_to: bool,
    /// Whether copies may know of it.
    is_in_stream: bool,
}

impl Known {
    fn new() -> Self {
        Self {
            len: 0,
            content: None,
            finished: None,
            link: None,
            was_linked: false,
            last_item: 0,
            is_appended_to: false,
            is_in_stream: false,
        }
    }

    /// That was there before.
    fn found(len: u64) -> Self {
        Self { len, is_in_stream: true, ..Self::new() }
    }
}

impl State {
    /// The next item. Its number, where there is a stream.
    fn emit(&mut self, sink: &dyn Sink, kind: Kind, bytes: u64, checksum: u32) -> Option<u64> {
        if self.is_over {
            return None;
        }
        let Some(position) = sink.append(kind, bytes, checksum) else {
            self.is_over = true;
            self.puts.clear();
            self.ended.clear();
            self.released.extend(self.gone.drain().map(|(_, (_, link))| link));
            self.released.extend(self.files.values_mut().filter_map(|known| known.link.take()));
            return None;
        };
        Some(position.number)
    }

    fn emit_bare(&mut self, sink: &dyn Sink, kind: Kind) {
        self.emit(sink, kind, 0, 0);
    }

    /// No further items name bytes of the file.
    fn end(&mut self, file: FileName) {
        let first_kept = self.first_kept;
        if let Some(known) = self.files.get_mut(&file) {
            known.is_appended_to = false;
            if known.link.is_none() {
                return;
            }
            if known.last_item < first_kept {
                self.released.extend(known.link.take());
                known.was_linked = false;
                return;
            }
        }
        if !self.ended.contains(&file) {
            self.ended.push(file);
        }
    }

    /// Lets go what no item names that a copy needs.
    fn trim(&mut self) {
        let first_kept = self.first_kept;
        while self.puts.front().is_some_and(|(number, _)| *number < first_kept) {
            self.puts.pop_front();
        }
        let Self { files, gone, ended, released, .. } = self;
        ended.retain(|file| {
            let mut is_needed = false;
            match gone.get(file) {
                Some((last, _)) if *last < first_kept => released.extend(gone.remove(file).map(|(_, link)| link)),
                Some(_) => is_needed = true,
                None => (),
            }
            match files.get_mut(file) {
                Some(known) if known.link.is_some() && !known.is_appended_to => {
                    if known.last_item < first_kept {
                        released.extend(known.link.take());
                        known.was_linked = false;
                    } else {
                        is_needed = true;
                    }
                }
                _ => (),
            }
            is_needed
        });
    }
}

/// What is offered, before it is linked.
struct Snapshot {
    mark: Mark,
    clock_limit_ms: u64,
    files: Vec<(OfferedFile, Option<Arc<Link>>)>,
    small: Vec<(FileName, Arc<[u8]>)>,
}

impl Source {
    /// Of the store in `directory`, which is not open and need not be there yet. What is left of
    /// bytes that were kept for an earlier stream is removed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], also where the file system has no hard links.
    pub fn new(directory: &Path, sink: Arc<dyn Sink>) -> Result<Arc<Self>> {
        let kept = KeptFiles::prepare(directory)?;
        let catalog = Catalog::open(directory)?;
        Ok(Arc::new(Self {
            directory: directory.to_path_buf(),
            sink,
            kept,
            state: Mutex::new(State {
                files: HashMap::new(),
                current: None,
                store: None,
                is_opened: false,
                gone: HashMap::new(),
                ended: Vec::new(),
                puts: VecDeque::new(),
                first_kept: 1,
                synced_at: None,
                run: None,
                is_over: false,
                released: Vec::new(),
            }),
            passing: Mutex::default(),
            manifest: Mutex::default(),
            contents: Mutex::new(Contents { catalog, unsynced: HashMap::new(), has_warned: false }),
        }))
    }

    /// Removes what a killed process kept of a store that is a primary's no more: it takes space.
    /// A new source does so itself.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn clear(directory: &Path) -> Result<()> {
        KeptFiles::clear(directory)
    }

    /// Begins the stream with `Finished` of each segment and table that is there, by their numbers.
    /// Before the store is opened. Files whose content is not in the catalog are read, and brought
    /// to the device.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]. What was found before is in the stream.
    pub fn take_stock(&self) -> Result<()> {
        self.contents.lock().catalog.forget_missing()?;
        for (file, len) in list(&self.directory)? {
            if file.is_finished_once() {
                let content = self.contents.lock().catalog.content_of(&self.directory, file)?;
                self.finished(file, content);
            } else if file.is_appended_to() {
                self.state.lock().files.insert(file, Known::found(len));
            } else {
                let content = self.small_file(file)?;
                let mut state = self.state.lock();
                match file.kind {
                    FileKind::Current => state.current = Some((named_by(&content)?, content)),
                    _ => state.store = Some(content),
                }
            }
        }
        Ok(())
    }

    /// The bytes that come with an item.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] for an item that was trimmed, or of an earlier stream; [`Error::Mismatch`]
    /// where its bytes have changed; [`Error::Io`].
    pub fn read(&self, item: &Item) -> Result<Vec<u8>> {
        let (file, bytes) = match item.kind {
            Kind::Append { file, number, offset } => {
                let file = FileName { kind: file, number };
                (file, self.appended_bytes(file, offset, item.bytes)?)
            }
            Kind::Put { file, number } => {
                let file = FileName { kind: file, number };
                (file, self.put_bytes(file, item)?)
            }
            Kind::Collect { number, .. } => {
                let file = FileName { kind: FileKind::Segment, number };
                (file, self.put_bytes(file, item)?)
            }
            _ => return Ok(Vec::new()),
        };
        if bytes.len() as u64 != item.bytes || crc32c::crc32c(&bytes) != item.checksum {
            return Err(Error::Mismatch { file, what: "its bytes have changed since they were appended".into() });
        }
        Ok(bytes)
    }

    fn put_bytes(&self, file: FileName, item: &Item) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let at = state.puts.binary_search_by_key(&item.position.number, |(number, _)| *number);
        let at = at.map_err(|_| Error::Missing { file })?;
        Ok(state.puts[at].1.to_vec())
    }

    fn appended_bytes(&self, file: FileName, offset: u64, len: u64) -> Result<Vec<u8>> {
        let len = usize::try_from(len).ok().filter(|len| *len <= MAX_ITEM_BYTES);
        let len = len.ok_or(Error::TooMuch { what: "bytes of an item", limit: MAX_ITEM_BYTES as u64 })?;
        let mut bytes = vec![0; len];
        let path = path_of(&self.directory, file);
        let read = self.opened(file).and_then(|opened| opened.read_exact_at(&mut bytes, offset));
        read.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::Missing { file },
            ErrorKind::UnexpectedEof => {
                Error::Mismatch { file, what: format!("it ends before {}", offset + len as u64) }
            }
            _ => Error::io("read", &path, error),
        })?;
        Ok(bytes)
    }

    /// A file that is appended to, wherever it is.
    fn opened(&self, file: FileName) -> io::Result<Arc<File>> {
        let link = {
            let state = self.state.lock();
            let known = state.files.get(&file).and_then(|known| known.link.clone());
            known.or_else(|| state.gone.get(&file).map(|(_, link)| link.clone()))
        };
        match link {
            Some(link) => self.kept.open(&link),
            None => File::open(path_of(&self.directory, file)).map(Arc::new),
        }
    }

    /// Items with smaller numbers than that are needed no more.
    pub fn trim(&self, first_kept: u64) {
        let mut state = self.state.lock();
        if first_kept > state.first_kept {
            state.first_kept = first_kept;
            state.trim();
        }
        self.release(state);
    }

    /// The directory as it is at the last item: for who is to follow from there on. Its files are
    /// linked.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] before this opening has put `CURRENT` in place (until then items count
    /// all together or not at all), once this server is no primary any more, and where a file
    /// cannot be found; [`Error::Io`].
    pub fn offer(&self) -> Result<Offer> {
        let links = self.kept.offer_directory()?;
        let offer = self.offer_in(&links);
        if offer.is_err() {
            let _ = fs::remove_dir_all(&links);
        }
        offer
    }

    fn offer_in(&self, links: &Path) -> Result<Offer> {
        let mut linked = HashSet::new();
        let mut attempts = 1;
        loop {
            let Snapshot { mark, clock_limit_ms, mut files, small } = self.snapshot()?;
            let missing = self.link(&files, links, &mut linked)?;
            let Some(file) = missing else {
                for (file, content) in &small {
                    let path = path_of(links, *file);
                    fs::write(&path, content).map_err(|error| Error::io("write", &path, error))?;
                    files.push((OfferedFile { file: *file, len: content.len() as u64, content: None }, None));
                }
                let mut files: Vec<_> = files.into_iter().map(|(offered, _)| offered).collect();
                for OfferedFile { file, content, .. } in &mut files {
                    // It could not be read when it was finished.
                    if let Some(content) = content
                        && content.hash == UNREADABLE
                    {
                        *content = hash_file(&path_of(links, *file))?;
                    }
                }
                return Ok(Offer::new(mark, clock_limit_ms, files, Vec::new(), links.to_path_buf()));
            };
            // Its removal is about to be in the stream.
            if attempts == MAX_OFFER_ATTEMPTS {
                return Err(Error::Missing { file });
            }
            attempts += 1;
            std::thread::sleep(OFFER_DISTANCE);
        }
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let state = self.lock();
        let current = state.current.as_ref().filter(|_| state.is_opened && !state.is_over);
        let Some((number, current)) = current else {
            return Err(Error::Missing { file: FileName { kind: FileKind::Current, number: 0 } });
        };
        let (mark, clock_limit_ms) = self.sink.mark();
        let is_offered = |known: &Known| known.content.is_some() || known.is_in_stream;
        let files = state.files.iter().filter(|(_, known)| is_offered(known)).map(|(file, known)| {
            let offered = OfferedFile { file: *file, len: known.len, content: known.content };
            (offered, known.link.clone())
        });
        let mut files: Vec<_> = files.collect();
        files.sort_unstable_by_key(|(offered, _)| offered.file);
        let current = (FileName { kind: FileKind::Current, number: *number }, current.clone());
        let store = state.store.clone().map(|store| (FileName { kind: FileKind::Store, number: 0 }, store));
        Ok(Snapshot { mark, clock_limit_ms, files, small: store.into_iter().chain([current]).collect() })
    }

    /// Links them but those that are `linked` already. The first that is not there.
    fn link(
        &self,
        files: &[(OfferedFile, Option<Arc<Link>>)],
        links: &Path,
        linked: &mut HashSet<FileName>,
    ) -> Result<Option<FileName>> {
        for (OfferedFile { file, .. }, link) in files {
            if linked.contains(file) {
                continue;
            }
            let to = path_of(links, *file);
            let made = match fs::hard_link(path_of(&self.directory, *file), &to) {
                Err(error) if error.kind() == ErrorKind::NotFound => match link {
                    Some(link) => self.kept.link_to(link, &to),
                    None => Err(error),
                },
                made => made,
            };
            match made {
                Ok(()) => _ = linked.insert(*file),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(*file)),
                Err(error) => return Err(Error::io("link", &to, error)),
            }
        }
        Ok(None)
    }

    /// A finished table or segment, if it is still there.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn open_finished(&self, file: FileName) -> Result<Option<File>> {
        let path = path_of(&self.directory, file);
        let gone = {
            let state = self.state.lock();
            match state.files.get(&file) {
                Some(known) if known.content.is_some() => None,
                // An opening names it, which a copy can only take with it.
                None if file.kind == FileKind::Table && state.gone.contains_key(&file) => {
                    state.gone.get(&file).map(|(_, link)| link.clone())
                }
                _ => return Ok(None),
            }
        };
        if let Some(link) = gone {
            let opened = self.kept.open(&link).and_then(|opened| opened.try_clone());
            return opened.map(Some).map_err(|error| Error::io("open", &path, error));
        }
        match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).map_err(|error| Error::io("open", &path, error)),
        }
    }

    /// What a finished table or segment holds, and for how long the stream has said so.
    pub fn content_of(&self, file: FileName) -> Option<(ContentId, Duration)> {
        let state = self.state.lock();
        let known = state.files.get(&file)?;
        let content = known.content.filter(|content| content.hash != UNREADABLE)?;
        Some((content, known.finished?.elapsed()))
    }

    fn release(&self, mut state: MutexGuard<'_, State>) {
        if state.released.is_empty() {
            return;
        }
        let links = std::mem::take(&mut state.released);
        drop(state);
        self.kept.release(links);
    }

    fn created(&self, file: FileName) {
        if file.is_finished_once() {
            self.passing.lock().insert(file, Arc::default());
        }
        if !file.is_appended_to() {
            return;
        }
        let is_over = self.state.lock().is_over;
        let link = if is_over { None } else { self.kept.keep(&self.directory, file) };
        let mut state = self.lock();
        let before = state.files.remove(&file);
        let mut known = Known { was_linked: true, link, is_appended_to: true, ..Known::new() };
        if let Some(before) = before {
            known.is_in_stream = before.is_in_stream;
            state.released.extend(before.link);
            if before.len > 0 {
                state.emit_bare(&*self.sink, Kind::Truncate { file: file.kind, number: file.number, len: 0 });
            }
        }
        state.files.insert(file, known);
        self.release(state);
    }

    fn appended(&self, file: FileName, offset: u64, bytes: &[u8]) {
        if file.is_finished_once() && self.passed(file, offset, bytes) {
            return;
        }
        match file.kind {
            FileKind::Segment => {
                let mut at = offset;
                for piece in bytes.chunks(MAX_ITEM_BYTES) {
                    self.extend(file, at, piece);
                    at += piece.len() as u64;
                }
            }
            FileKind::Wal => Piece::all(offset, bytes).for_each(|piece| self.append_piece(file, piece)),
            FileKind::Manifest => {
                // Its bytes wait for the sync. What is written over was synced before.
                let state = self.lock();
                if state.files.get(&file).is_some_and(|known| offset < known.len) {
                    self.cut(state, file, offset);
                }
            }
            FileKind::Table | FileKind::Current | FileKind::Store => (),
        }
    }

    /// Bytes were written to a file that will be finished. Whether they are held back.
    fn passed(&self, file: FileName, offset: u64, bytes: &[u8]) -> bool {
        let passing = self.passing.lock().entry(file).or_default().clone();
        let passing = &mut *passing.lock();
        if passing.hasher.bytes() == offset {
            passing.hasher.update(bytes);
        } else {
            passing.is_rewritten = true;
        }
        let Some(instructions) = &mut passing.instructions else { return false };
        if !passing.is_rewritten && instructions.hold(offset, bytes) {
            return true;
        }
        passing.is_sent_as_bytes = true;
        self.let_go(file, passing);
        passing.instructions = None;
        false
    }

    /// What is held back of a file goes into the stream as bytes. Under the lock of the file, so that
    /// whoever finds nothing held back finds it there.
    fn let_go(&self, file: FileName, passing: &mut Passing) {
        let held = passing.instructions.as_mut().map(Instructions::let_go).unwrap_or_default();
        held.into_iter().for_each(|piece| self.append_piece(file, piece));
    }

    fn append_piece(&self, file: FileName, piece: Piece) {
        self.append(self.lock(), file, piece.offset, piece.len, piece.checksum);
    }

    /// The state, in which all that was appended is in the stream.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        self.end_run(&mut state);
        state
    }

    fn end_run(&self, state: &mut State) {
        if let Some(Run { file, offset, bytes, checksum }) = state.run.take() {
            self.append_item(state, file, offset, bytes, checksum);
        }
    }

    /// These bytes are part of the next item.
    fn extend(&self, file: FileName, offset: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        let is_next = |run: &&mut Run| {
            (run.file, run.offset + run.bytes) == (file, offset)
                && run.bytes + bytes.len() as u64 <= MAX_ITEM_BYTES as u64
        };
        if let Some(run) = state.run.as_mut().filter(is_next) {
            run.bytes += bytes.len() as u64;
            run.checksum = crc32c::crc32c_append(run.checksum, bytes);
            return;
        }
        self.end_run(&mut state);
        state.run = Some(Run { file, offset, bytes: bytes.len() as u64, checksum: crc32c::crc32c(bytes) });
        self.release(state);
    }

    /// These bytes of a file are an item.
    fn append(&self, mut state: MutexGuard<'_, State>, file: FileName, offset: u64, bytes: u64, checksum: u32) {
        self.append_item(&mut state, file, offset, bytes, checksum);
        self.release(state);
    }

    fn append_item(&self, state: &mut State, file: FileName, offset: u64, bytes: u64, checksum: u32) {
        let FileName { kind, number } = file;
        let is_over = state.is_over;
        let known = state.files.entry(file).or_insert_with(Known::new);
        if !known.was_linked && !is_over {
            // Rare: it was there before, or was closed before.
            known.was_linked = true;
            known.link = self.kept.keep(&self.directory, file);
        }
        known.is_appended_to = true;
        known.content = None;
        let before = known.len;
        if offset < before {
            state.emit_bare(&*self.sink, Kind::Truncate { file: kind, number, len: offset });
        } else if offset > before {
            self.append_missed(state, file, before, offset);
        }
        let item = state.emit(&*self.sink, Kind::Append { file: kind, number, offset }, bytes, checksum);
        if let Some(known) = state.files.get_mut(&file) {
            known.len = offset + bytes;
            known.is_in_stream = true;
            known.last_item = item.unwrap_or(known.last_item);
        }
    }

    /// Bytes that did not pass are items too. Rare, so it reads under the lock: they belong before
    /// those that did.
    #[cold]
    fn append_missed(&self, state: &mut State, file: FileName, from: u64, to: u64) {
        let FileName { kind, number } = file;
        let link = state.files.get(&file).and_then(|known| known.link.clone());
        let path = path_of(&self.directory, file);
        let opened = match link {
            Some(link) => self.kept.open(&link),
            None => File::open(&path).map(Arc::new),
        };
        let mut at = from;
        let read = opened.and_then(|opened| {
            while at < to {
                let piece = read_piece(&opened, at, to)?;
                let (bytes, checksum) = (piece.len() as u64, crc32c::crc32c(&piece));
                let item = state.emit(&*self.sink, Kind::Append { file: kind, number, offset: at }, bytes, checksum);
                at += bytes;
                if let (Some(known), Some(item)) = (state.files.get_mut(&file), item) {
                    known.last_item = item;
                }
            }
            Ok(())
        });
        if let Err(error) = read {
            tracing::error!(?path, %error, from = at, to, "what was appended to a file of the store cannot be read: its copies must be built anew");
        }
    }

    fn truncated(&self, file: FileName, len: u64) {
        if file.is_finished_once() {
            let passing = self.passing.lock().get(&file).cloned();
            if let Some(passing) = passing {
                let passing = &mut *passing.lock();
                self.let_go(file, passing);
                passing.is_rewritten |= passing.hasher.bytes() != len;
            }
        }
        let state = self.lock();
        let Some(known) = state.files.get(&file) else { return };
        match known.content {
            // What was found is cut to its records before the store is opened.
            Some(content) if content.len != len => {
                drop(state);
                self.finished_unseen(file, len);
            }
            Some(_) => (),
            // What is beyond the length of a MANIFEST is not synced.
            None if known.len > len || (known.len < len && file.kind != FileKind::Manifest) => {
                self.cut(state, file, len);
            }
            None => (),
        }
    }

    /// A file that is appended to has this length now.
    fn cut(&self, mut state: MutexGuard<'_, State>, file: FileName, len: u64) {
        if let Some(known) = state.files.get_mut(&file) {
            known.len = len;
        }
        state.emit_bare(&*self.sink, Kind::Truncate { file: file.kind, number: file.number, len });
        self.release(state);
    }

    fn synced(&self, file: FileName, len: u64) {
        match file.kind {
            FileKind::Manifest => self.manifest_synced(file, len),
            FileKind::Table | FileKind::Segment => {
                let passing = self.passing.lock().get(&file).cloned();
                let is_passing = passing.is_some_and(|passing| {
                    let passing = &mut *passing.lock();
                    passing.synced = passing.synced.max(len);
                    // A table may refer to it from now on.
                    self.let_go(file, passing);
                    !passing.is_closed
                });
                if !is_passing {
                    self.settle(file, len);
                }
            }
            FileKind::Wal | FileKind::Current | FileKind::Store => (),
        }
        if matches!(file.kind, FileKind::Segment | FileKind::Wal) {
            let now = Instant::now();
            let mut state = self.lock();
            if state.synced_at.is_none_or(|at| now.saturating_duration_since(at) >= MIN_SYNC_DISTANCE) {
                state.synced_at = Some(now);
                state.emit_bare(&*self.sink, Kind::Sync);
                self.release(state);
            }
        }
    }

    /// What is durable of a MANIFEST and not in the stream yet comes now.
    fn manifest_synced(&self, file: FileName, len: u64) {
        let _one_at_a_time = self.manifest.lock();
        let mut at = self.state.lock().files.get(&file).map_or(0, |known| known.len);
        while at < len {
            let piece = self.opened(file).and_then(|opened| read_piece(&opened, at, len));
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    // The next sync begins from there.
                    tracing::error!(%file, %error, "what was synced of a MANIFEST cannot be read: copies of the store wait for it");
                    return;
                }
            };
            self.append(self.lock(), file, at, piece.len() as u64, crc32c::crc32c(&piece));
            at += piece.len() as u64;
        }
    }

    /// The file is complete, and `len` bytes long.
    fn closed(&self, file: FileName, len: u64) {
        if !file.is_finished_once() {
            let mut state = self.lock();
            state.end(file);
            return self.release(state);
        }
        let passing = self.passing.lock().get(&file).cloned();
        let Some(passing) = passing else {
            return self.finished_unseen(file, len);
        };
        self.closed_passing(file, len, &mut passing.lock());
        self.passing.lock().remove(&file);
    }

    /// The same of a file whose bytes passed. Its lock is held until all of it is in the stream.
    fn closed_passing(&self, file: FileName, len: u64, passing: &mut Passing) {
        passing.is_closed = true;
        let hasher = std::mem::take(&mut passing.hasher);
        if passing.is_rewritten || hasher.bytes() != len {
            self.let_go(file, passing);
            return self.finished_unseen(file, len);
        }
        let content = hasher.finish();
        self.remember(file, content, passing.synced);
        let recipe = passing.instructions.as_mut().and_then(Instructions::finish);
        if recipe.is_none() {
            self.let_go(file, passing);
        }
        self.finished_by(file, content, recipe);
        passing.instructions = None;
    }

    /// The file is complete, and its bytes did not pass.
    fn finished_unseen(&self, file: FileName, len: u64) {
        let path = path_of(&self.directory, file);
        let hashed = hash_file(&path).and_then(|content| {
            let opened = File::open(&path).map_err(|error| Error::io("open", &path, error))?;
            // It was synced, so this costs nothing.
            opened.sync_data().map_err(|error| Error::io("sync", &path, error))?;
            Ok(content)
        });
        match hashed {
            Ok(content) => {
                self.remember(file, content, content.len);
                self.finished(file, content);
            }
            Err(error) => {
                tracing::error!(%error, "a finished file of the store cannot be read: its copies must be built anew");
                self.finished(file, ContentId { len, hash: UNREADABLE });
            }
        }
    }

    fn finished(&self, file: FileName, content: ContentId) {
        self.finished_by(file, content, None);
    }

    /// With a recipe, copies are to make what is not in the stream.
    fn finished_by(&self, file: FileName, content: ContentId, recipe: Option<Vec<u8>>) {
        let mut state = self.lock();
        let is_opening = !state.is_opened && !state.is_over;
        let known = state.files.entry(file).or_insert_with(Known::new);
        if known.content == Some(content) {
            return;
        }
        // Copies take an opening all at once, with all tables that it names: these are kept until
        // they have, though the first compaction may remove them a moment later.
        let is_kept = is_opening && file.kind == FileKind::Table && known.link.is_none();
        if is_kept {
            known.was_linked = true;
            known.link = self.kept.keep(&self.directory, file);
        }
        // An append that failed half was in the stream, and nothing was written over it.
        let is_longer = known.is_appended_to && known.len > content.len;
        known.content = Some(content);
        known.finished = Some(Instant::now());
        known.len = content.len;
        known.is_in_stream = true;
        if is_longer {
            let cut = Kind::Truncate { file: file.kind, number: file.number, len: content.len };
            state.emit_bare(&*self.sink, cut);
        }
        let item = if let Some(recipe) = recipe {
            let kind = Kind::Collect { content, number: file.number };
            let item = state.emit(&*self.sink, kind, recipe.len() as u64, crc32c::crc32c(&recipe));
            state.puts.extend(item.map(|item| (item, recipe.into())));
            item
        } else {
            state.emit(&*self.sink, Kind::Finished { file: file.kind, number: file.number, content }, 0, 0)
        };
        if let (true, Some(item), Some(known)) = (is_kept, item, state.files.get_mut(&file)) {
            known.last_item = item;
        }
        state.end(file);
        self.release(state);
    }

    /// A file has its name now, complete.
    fn arrived(&self, file: FileName) {
        match file.kind {
            FileKind::Current | FileKind::Store => self.put(file),
            FileKind::Table | FileKind::Segment => {
                self.passing.lock().remove(&file);
                self.finished_unseen(file, 0);
            }
            // RocksDB makes none so, unless it uses old ones again, which is off.
            FileKind::Wal | FileKind::Manifest => {
                self.created(file);
                let len = fs::metadata(path_of(&self.directory, file)).map_or(0, |metadata| metadata.len());
                let mut state = self.lock();
                self.append_missed(&mut state, file, 0, len);
                if let Some(known) = state.files.get_mut(&file) {
                    (known.len, known.is_in_stream) = (len, true);
                }
                self.release(state);
            }
        }
    }

    /// A small file was replaced.
    fn put(&self, file: FileName) {
        let read = self.small_file(file).and_then(|content| match file.kind {
            FileKind::Current => Ok((named_by(&content)?, content)),
            _ => Ok((0, content)),
        });
        let (number, content) = match read {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(%error, "a file of the store that was replaced cannot be read: its copies must be built anew");
                return;
            }
        };
        let mut state = self.lock();
        let kind = Kind::Put { file: file.kind, number };
        let item = state.emit(&*self.sink, kind, content.len() as u64, crc32c::crc32c(&content));
        if let Some(item) = item {
            state.puts.push_back((item, content.clone()));
        }
        if file.kind == FileKind::Current {
            state.current = Some((number, content));
            state.is_opened = true;
        } else {
            state.store = Some(content);
        }
        self.release(state);
    }

    fn small_file(&self, file: FileName) -> Result<Arc<[u8]>> {
        let path = path_of(&self.directory, file);
        let content = fs::read(&path).map_err(|error| Error::io("read", &path, error))?;
        if content.len() > MAX_ITEM_BYTES {
            return Err(Error::TooMuch { what: "bytes of a small file of the store", limit: MAX_ITEM_BYTES as u64 });
        }
        Ok(content.into())
    }

    /// Its name is gone.
    fn deleted(&self, file: FileName) {
        let mut was_passing = false;
        if file.is_finished_once() {
            was_passing = self.passing.lock().remove(&file).is_some();
            let contents = &mut *self.contents.lock();
            contents.unsynced.remove(&file);
            let removed = contents.catalog.remove(file);
            contents.warn_once(removed);
        } else if !file.is_appended_to() {
            return;
        }
        let mut state = self.lock();
        let known = state.files.remove(&file);
        if let Some(Known { link: Some(link), last_item, .. }) = &known {
            if *last_item < state.first_kept {
                let link = link.clone();
                state.released.push(link);
            } else {
                let replaced = state.gone.insert(file, (*last_item, link.clone()));
                state.released.extend(replaced.map(|(_, link)| link));
                state.end(file);
            }
        }
        // What was never in the stream is in no copy; of what was there before nobody knows.
        if known.map_or(!was_passing, |known| known.is_in_stream) {
            state.emit_bare(&*self.sink, Kind::Delete { file: file.kind, number: file.number });
        }
        self.release(state);
    }

    /// So many bytes of a finished file are on the device: it is in the catalog once all are.
    fn remember(&self, file: FileName, content: ContentId, synced: u64) {
        self.contents.lock().unsynced.insert(file, content);
        self.settle(file, synced);
    }

    fn settle(&self, file: FileName, synced: u64) {
        let contents = &mut *self.contents.lock();
        if let Some(content) = contents.unsynced.get(&file)
            && content.len <= synced
        {
            let put = contents.catalog.put(file, *content);
            contents.unsynced.remove(&file);
            contents.warn_once(put);
        }
    }
}

impl Contents {
    fn warn_once(&mut self, outcome: Result<()>) {
        match outcome {
            Err(Error::Missing { .. }) | Ok(()) => (),
            Err(error) if self.has_warned => tracing::debug!(%error, "the catalog of finished files lacks one"),
            Err(error) => {
                self.has_warned = true;
                tracing::warn!(%error, "the catalog of finished files lacks some, which are read once more at the next start");
            }
        }
    }
}

impl WriteTap for Source {
    fn follows_copies(&self) -> bool {
        true
    }

    fn copied(&self, path: &Path, ranges: &[CopiedRange]) {
        let file = parse(&self.directory, path).filter(|file| file.kind == FileKind::Segment);
        let Some(passing) = file.and_then(|file| self.passing.lock().get(&file).cloned()) else { return };
        let passing = &mut *passing.lock();
        if !passing.is_sent_as_bytes && !passing.is_rewritten {
            let base = passing.hasher.bytes();
            passing.instructions.get_or_insert_with(|| Instructions::new(base)).copied(ranges);
        }
    }

    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let named = |path| parse(&self.directory, path);
        match event {
            TapEvent::Appended { path, offset, bytes } => {
                if let Some(file) = named(path).filter(|_| !bytes.is_empty()) {
                    self.appended(file, offset, bytes);
                }
            }
            TapEvent::Synced { path, len } => _ = named(path).map(|file| self.synced(file, len)),
            TapEvent::Created { path } => _ = named(path).map(|file| self.created(file)),
            TapEvent::Truncated { path, len } => _ = named(path).map(|file| self.truncated(file, len)),
            TapEvent::Closed { path, len } => _ = named(path).map(|file| self.closed(file, len)),
            TapEvent::Deleted { path } => _ = named(path).map(|file| self.deleted(file)),
            TapEvent::Renamed { from, to } => {
                let _ = named(to).map(|file| self.arrived(file));
                let _ = named(from).map(|file| self.deleted(file));
            }
            TapEvent::Linked { to, .. } => _ = named(to).map(|file| self.arrived(file)),
            TapEvent::DirectoryCreated { .. }
            | TapEvent::DirectoryDeleted { .. }
            | TapEvent::DirectorySynced { .. }
            | TapEvent::SyncBegins { .. } => (),
        }
        Ok(())
    }
}

/// As many bytes from `at` to `to` as an item takes.
fn read_piece(file: &File, at: u64, to: u64) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; (to - at).min(MAX_ITEM_BYTES as u64) as usize];
    file.read_exact_at(&mut piece, at)?;
    Ok(piece)
}

fn named_by(current: &[u8]) -> Result<u64> {
    named_by_current(current).ok_or_else(|| Error::Mismatch {
        file: FileName { kind: FileKind::Current, number: 0 },
        what: "it names no MANIFEST".into(),
    })
}

/// The files of the store with their lengths, segments first, each kind by its numbers.
fn list(directory: &Path) -> Result<Vec<(FileName, u64)>> {
    let mut files = Vec::new();
    for below in [directory.to_path_buf(), directory.join(VALUES_DIRECTORY)] {
        let failed = |error| Error::io("list", &below, error);
        let entries = match fs::read_dir(&below) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if let Some(file) = parse(directory, &entry.path()) {
                files.push((file, entry.metadata().map_err(failed)?.len()));
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}
