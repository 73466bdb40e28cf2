//! Whole directories: what one copy [offers](Offer), and how another one is [built](Building) from
//! it, beside the directory D whose place it takes.
//!
//! Files that are finished are the same by content, never by number: what D has is linked, the
//! rest is fetched by ranges. Until all is there, bytes are in `D.copy/pool/`, finished files by
//! content, so that they are of use also to another listing after an interruption:
//!
//! | name | what |
//! |---|---|
//! | `LENGTH-HASH` | the first bytes of this content |
//! | `LENGTH-HASH.done` | all of it: compared, and on the device |
//!
//! Files that grow are known by no content. They are fetched anew, into `D.new/`.
//!
//! # Invariants
//!
//! - What an [`Offer`] names can be read until it is dropped: hard links hold it. Of a file that
//!   grows only the offered length is read.
//! - [`Building::finish`] returns once all bytes and names are on the device, each finished file
//!   compared with its content id.
//!
//! Failure: bytes that do not come to their content id are thrown away ([`Error::Mismatch`]), and
//! asked for again. Threads: values without threads of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ecotone_replica::position::Mark;
use ecotone_replica::stream::{ContentId, FileKind, Item};

use crate::catalog::{Catalog, hash_file};
use crate::error::{Error, Result};
use crate::files::{crc_of, files_in, names_in};
use crate::names::{self, FileName, beside, new_directory, path_of};
use crate::pending::MAX_PENDING_ITEMS;
use crate::record::{self, Reader, Tail, Writer};

/// Files of a store. One of 100 TB, with tables of 64 MiB and segments of 256 MiB, has two million.
pub const MAX_OFFERED_FILES: usize = 4 << 20;
/// Bytes of `CURRENT` or `STORE`.
const MAX_SMALL_FILE_BYTES: u64 = 64 << 10;

const POOL_DIRECTORY: &str = "pool";
const OFFER_PREFIX: &str = "offer-";
const DONE_SUFFIX: &str = ".done";

/// A file that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedFile {
    /// Which one.
    pub file: FileName,
    /// Its length, beyond which it may grow.
    pub len: u64,
    /// What it holds, if it is finished.
    pub content: Option<ContentId>,
}

/// A directory as it was at one mark.
#[derive(Debug)]
pub struct Offer {
    /// The mark.
    pub mark: Mark,
    /// The last limit of the clock.
    pub clock_limit_ms: u64,
    /// Its files.
    pub files: Vec<OfferedFile>,
    /// What its files do not show yet, with bytes.
    pub pending: Vec<(Item, Vec<u8>)>,
    links: PathBuf,
}

impl Offer {
    /// An offer whose files are linked in `links`, each as [`path_of`] calls it there. It owns the
    /// folder.
    #[must_use]
    pub fn new(
        mark: Mark,
        clock_limit_ms: u64,
        files: Vec<OfferedFile>,
        pending: Vec<(Item, Vec<u8>)>,
        links: PathBuf,
    ) -> Self {
        Self { mark, clock_limit_ms, files, pending, links }
    }

    /// Opens one of its files for reading.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] for one that is not offered, [`Error::Io`].
    pub fn open(&self, file: FileName) -> Result<File> {
        let path = path_of(&self.links, file);
        File::open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::Missing { file },
            _ => Error::io("open", &path, error),
        })
    }

    /// What it says, without its files.
    #[must_use]
    pub fn listing(&self) -> Listing {
        let (files, pending) = (self.files.clone(), self.pending.clone());
        Listing { mark: self.mark, clock_limit_ms: self.clock_limit_ms, files, pending }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Err(error) = record::remove_directory(&self.links) {
            tracing::warn!(%error, "an offer's links stay until the next start");
        }
    }
}

/// What an [`Offer`] says, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The mark that is offered.
    pub mark: Mark,
    /// The last limit of the clock.
    pub clock_limit_ms: u64,
    /// The files.
    pub files: Vec<OfferedFile>,
    /// What they do not show yet, with bytes.
    pub pending: Vec<(Item, Vec<u8>)>,
}

impl Listing {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.mark(self.mark).u64(self.clock_limit_ms);
        writer.list(&self.files, |writer, offered| {
            writer.file(offered.file).u64(offered.len).u8(u8::from(offered.content.is_some()));
            if let Some(content) = offered.content {
                writer.content(content);
            }
        });
        writer.list(&self.pending, |writer, (item, bytes)| {
            writer.item(item).bytes(bytes);
        });
        writer.0
    }

    /// From bytes; `None` where they are not what [`encode`](Self::encode) makes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let offered = |reader: &mut Reader| {
            let (file, len) = (reader.file()?, reader.u64()?);
            let content = if reader.bool()? { Some(reader.content()?) } else { None };
            Some(OfferedFile { file, len, content })
        };
        let pending = |reader: &mut Reader| Some((reader.item()?, reader.bytes()?.to_vec()));
        Reader::whole(bytes, |reader| {
            Some(Self {
                mark: reader.mark()?,
                clock_limit_ms: reader.u64()?,
                files: reader.list(MAX_OFFERED_FILES, offered)?,
                pending: reader.list(MAX_PENDING_ITEMS, pending)?,
            })
        })
    }

    /// Whether a directory can be built from it.
    fn check(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for offered in &self.files {
            let file = offered.file;
            // `CURRENT` and `STORE` are one file each, whatever their numbers.
            if !seen.insert(file.to_string()) {
                return Err(format!("it names {file} twice"));
            }
            let is_growing = file.is_appended_to();
            let is_small = matches!(file.kind, FileKind::Current | FileKind::Store);
            let is_sound = match offered.content {
                Some(content) => file.is_finished_once() && content.len == offered.len,
                None if is_small => offered.len <= MAX_SMALL_FILE_BYTES,
                None => is_growing,
            };
            if !is_sound {
                return Err(format!("what it says of {file} cannot be"));
            }
        }
        let grows = self.files.iter().filter(|offered| offered.content.is_none()).count();
        if grows > record::MAX_OPEN_FILES {
            return Err(format!("{grows} files grow"));
        }
        if !self.files.iter().any(|offered| offered.file.kind == FileKind::Current) {
            return Err("no MANIFEST is in force".to_owned());
        }
        Ok(())
    }
}

/// A file that is not there whole.
#[derive(Debug)]
struct Part {
    file: FileName,
    /// Bytes that are there.
    have: u64,
    len: u64,
    content: Option<ContentId>,
    /// Where they are.
    path: PathBuf,
    opened: Option<File>,
}

/// A directory that is being built.
#[derive(Debug)]
pub struct Building {
    directory: PathBuf,
    new: PathBuf,
    pool: PathBuf,
    listing: Listing,
    /// Those that are not whole.
    parts: BTreeMap<FileName, Part>,
    done_bytes: u64,
    all_bytes: u64,
}

/// A directory that is whole, and can take the place of another one.
#[derive(Debug)]
pub struct Built {
    pub(crate) directory: PathBuf,
    pub(crate) listing: Listing,
    /// The files that grow, MANIFESTs among them.
    pub(crate) tails: Vec<Tail>,
    /// The MANIFEST in force, and the content of `CURRENT`.
    pub(crate) current: (u64, Vec<u8>),
}

impl Built {
    /// What it holds.
    #[must_use]
    pub fn mark(&self) -> Mark {
        self.listing.mark
    }

    /// The last limit of the clock in it.
    #[must_use]
    pub fn clock_limit_ms(&self) -> u64 {
        self.listing.clock_limit_ms
    }
}

impl Building {
    /// Begins to build what takes the place of the directory at `path`, or goes on with it: what was
    /// fetched for any listing before is used. Files of unknown content at `path` that have the
    /// length of one that is needed are read once.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for a listing of which no directory can be built, [`Error::Io`].
    pub fn begin(path: &Path, listing: Listing) -> Result<Self> {
        listing.check().map_err(|what| Error::Malformed { path: path.to_path_buf(), what })?;
        let (new, pool) = (new_directory(path), beside(path, POOL_DIRECTORY));
        // What is in it under a file's name was made of the pool, or is fetched anew.
        record::remove_directory(&new)?;
        record::make_directory(&new.join(names::VALUES_DIRECTORY))?;
        record::make_directory(&pool)?;
        let mut building = Self {
            directory: path.to_path_buf(),
            new,
            pool,
            parts: BTreeMap::new(),
            done_bytes: 0,
            all_bytes: listing.files.iter().map(|offered| offered.len).sum(),
            listing,
        };
        building.take_stock()?;
        Ok(building)
    }

    /// Throws away what was fetched for directories that were never finished.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn discard(path: &Path) -> Result<()> {
        record::remove_directory(&new_directory(path))?;
        record::remove_directory(&beside(path, POOL_DIRECTORY))
    }

    /// Sees what is there.
    fn take_stock(&mut self) -> Result<()> {
        let wanted: BTreeSet<ContentId> = self.listing.files.iter().filter_map(|offered| offered.content).collect();
        self.clean_pool(&wanted)?;
        let missing = wanted.iter().filter(|content| !done_path(&self.pool, **content).exists());
        self.link_from_directory(missing.copied().collect())?;
        for offered in &self.listing.files {
            let OfferedFile { file, len, content } = *offered;
            let path = match content {
                Some(content) if done_path(&self.pool, content).exists() => {
                    self.done_bytes += len;
                    continue;
                }
                Some(content) => part_path(&self.pool, content),
                None => path_of(&self.new, file),
            };
            let have = match (content, fs::metadata(&path)) {
                (Some(_), Ok(metadata)) => metadata.len().min(len),
                _ => 0,
            };
            self.done_bytes += have;
            self.parts.insert(file, Part { file, have, len, content, path, opened: None });
        }
        // Two files of one content are fetched as one, and files without bytes not at all.
        let mut contents = BTreeSet::new();
        let (mut whole, mut twice) = (Vec::new(), Vec::new());
        for part in self.parts.values() {
            if part.content.is_some_and(|content| !contents.insert(content)) {
                twice.push((part.file, part.len - part.have));
            } else if part.have == part.len {
                whole.push(part.file);
            }
        }
        for (file, missing) in twice {
            self.parts.remove(&file);
            self.done_bytes += missing;
        }
        whole.into_iter().try_for_each(|file| match self.complete(file) {
            // It is fetched again.
            Err(Error::Mismatch { .. }) => Ok(()),
            result => result,
        })
    }

    /// Removes what no file of the listing needs.
    fn clean_pool(&self, wanted: &BTreeSet<ContentId>) -> Result<()> {
        let is_needed = |name: &str| {
            let name = name.strip_suffix(DONE_SUFFIX).unwrap_or(name);
            content_in(name).is_some_and(|content| wanted.contains(&content))
        };
        for name in names_in(&self.pool)? {
            if !is_needed(&name) {
                record::remove_file(&self.pool.join(name))?;
            }
        }
        Ok(())
    }

    /// Links what the directory whose place is taken has.
    fn link_from_directory(&self, mut missing: BTreeSet<ContentId>) -> Result<()> {
        let catalog = Catalog::open(&self.directory)?;
        let link = |file: FileName, content: ContentId, is_finished: bool| {
            let (from, to) = (path_of(&self.directory, file), done_path(&self.pool, content));
            let taken = File::open(&from).and_then(|opened| {
                if is_finished {
                    record::flush(&opened)?;
                    return record::link(&from, &to);
                }
                // A segment that nobody has finished may grow where it is.
                let part = part_path(&self.pool, content);
                fs::copy(&from, &part)?;
                record::flush(&File::open(&part)?)?;
                fs::rename(&part, &to)
            });
            match taken {
                Ok(()) => Ok(true),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => Ok(false),
                Err(error) => Err(Error::io("link", &from, error)),
            }
        };
        let lengths: BTreeSet<u64> = missing.iter().map(|content| content.len).collect();
        let mut unknown = Vec::new();
        for (file, len) in finished_files_in(&self.directory)? {
            match catalog.get(file) {
                Some(content) if missing.contains(&content) && link(file, content, true)? => {
                    missing.remove(&content);
                }
                Some(_) => (),
                None if lengths.contains(&len) => unknown.push((file, len)),
                None => (),
            }
        }
        for (file, len) in unknown {
            if missing.iter().any(|content| content.len == len) {
                let content = hash_file(&path_of(&self.directory, file))?;
                if missing.contains(&content) && link(file, content, file.kind == FileKind::Table)? {
                    missing.remove(&content);
                }
            }
        }
        Ok(())
    }

    /// The next bytes to fetch: of which file, from where on, how many at most. They may come in
    /// pieces.
    #[must_use]
    pub fn next(&self) -> Option<(FileName, u64, u64)> {
        self.parts.values().next().map(|part| (part.file, part.have, part.len - part.have))
    }

    /// Takes bytes that follow what is there of the file.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] where they do not follow (nothing changed), or all of the file came and is
    /// not what was offered (it is fetched again). [`Error::Io`]: they may come again.
    pub fn write(&mut self, file: FileName, offset: u64, bytes: &[u8]) -> Result<()> {
        let part = self.parts.get_mut(&file).ok_or(Error::Missing { file })?;
        if offset != part.have || bytes.len() as u64 > part.len - part.have {
            let what = format!("{} bytes at {offset} do not follow {} of {}", bytes.len(), part.have, part.len);
            return Err(Error::Mismatch { file, what });
        }
        if part.opened.is_none() {
            let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&part.path);
            part.opened = Some(opened.map_err(|error| Error::io("open", &part.path, error))?);
        }
        if let Some(opened) = &part.opened {
            record::write_at(opened, bytes, offset).map_err(|error| Error::io("write", &part.path, error))?;
        }
        part.have += bytes.len() as u64;
        self.done_bytes += bytes.len() as u64;
        if part.have == part.len { self.complete(file) } else { Ok(()) }
    }

    /// All bytes of a file are there.
    fn complete(&mut self, file: FileName) -> Result<()> {
        let Some(part) = self.parts.get_mut(&file) else { return Ok(()) };
        part.opened = None;
        // One without bytes was never written to. One of the pool may be longer than it should be.
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&part.path);
        let synced = opened.and_then(|opened| {
            record::set_len(&opened, part.len)?;
            record::flush(&opened)
        });
        synced.map_err(|error| Error::io("sync", &part.path, error))?;
        if let Some(content) = part.content {
            let found = hash_file(&part.path)?;
            if found != content {
                record::remove_file(&part.path)?;
                self.done_bytes -= part.have;
                part.have = 0;
                let what = "what was fetched has another checksum".to_owned();
                return Err(Error::Mismatch { file, what });
            }
            record::rename(&part.path, &done_path(&self.pool, content))?;
        }
        self.parts.remove(&file);
        Ok(())
    }

    /// How many bytes are there, and how many there will be.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.done_bytes, self.all_bytes)
    }

    /// Everything is there: gives files their names, and makes all durable.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] names a file of which bytes lack; [`Error::Io`].
    pub fn finish(self) -> Result<Built> {
        if let Some(file) = self.parts.keys().next() {
            return Err(Error::Missing { file: *file });
        }
        record::sync_directory(&self.pool)?;
        let mut tails = Vec::new();
        let mut current = None;
        for offered in &self.listing.files {
            let path = path_of(&self.new, offered.file);
            if let Some(content) = offered.content {
                let from = done_path(&self.pool, content);
                record::link(&from, &path).map_err(|error| Error::io("link", &from, error))?;
                let linked = fs::metadata(&path).map_err(|error| Error::io("look at", &path, error))?;
                if linked.len() != content.len {
                    record::remove_file(&from)?;
                    let what = format!("it has {} bytes, not {}", linked.len(), content.len);
                    return Err(Error::Mismatch { file: offered.file, what });
                }
            } else if offered.file.kind == FileKind::Current {
                let content = fs::read(&path).map_err(|error| Error::io("read", &path, error))?;
                let number = names::named_by_current(&content);
                let number = number
                    .ok_or_else(|| Error::Mismatch { file: offered.file, what: "it names no MANIFEST".to_owned() })?;
                current = Some((number, content));
            } else if offered.file.is_appended_to() {
                let crc = crc_of(&path, offered.file, offered.len)?;
                tails.push(Tail { file: offered.file, len: offered.len, crc });
            }
        }
        let current = current.ok_or(Error::Missing { file: FileName::new(FileKind::Current, 0) })?;
        let manifest = FileName::new(FileKind::Manifest, current.0);
        if !tails.iter().any(|tail| tail.file == manifest) {
            return Err(Error::Missing { file: manifest });
        }
        record::sync_directory(&self.new.join(names::VALUES_DIRECTORY))?;
        record::sync_directory(&self.new)?;
        if let Some(above) = self.new.parent() {
            record::sync_directory(above)?;
        }
        Ok(Built { directory: self.directory, listing: self.listing, tails, current })
    }
}

fn finished_files_in(directory: &Path) -> Result<HashMap<FileName, u64>> {
    Ok(files_in(directory)?.into_iter().filter(|(file, _)| file.is_finished_once()).collect())
}

pub(crate) fn pool_of(directory: &Path) -> PathBuf {
    beside(directory, POOL_DIRECTORY)
}

/// An empty folder for the links of an offer of `directory`.
///
/// # Errors
///
/// [`Error::Io`].
pub fn new_links(directory: &Path) -> Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let links = beside(directory, &format!("{OFFER_PREFIX}{number}"));
        if !links.exists() {
            record::make_directory(&links.join(names::VALUES_DIRECTORY))?;
            return Ok(links);
        }
    }
}

/// Removes the folders of offers that a process before this one made.
pub(crate) fn remove_offers(directory: &Path) -> Result<()> {
    for name in names_in(&names::copy_directory(directory))? {
        if name.starts_with(OFFER_PREFIX) {
            record::remove_directory(&beside(directory, &name))?;
        }
    }
    Ok(())
}

fn part_path(pool: &Path, content: ContentId) -> PathBuf {
    pool.join(format!("{}-{:032x}", content.len, content.hash))
}

fn done_path(pool: &Path, content: ContentId) -> PathBuf {
    pool.join(format!("{}-{:032x}{DONE_SUFFIX}", content.len, content.hash))
}

fn content_in(name: &str) -> Option<ContentId> {
    let (len, hash) = name.split_once('-')?;
    Some(ContentId { len: len.parse().ok()?, hash: u128::from_str_radix(hash, 16).ok()? })
}
