//! Immutable files, and the one way to make, seal, open, check, link and remove them.
//!
//! An *object* is written once from front to back, sealed, and never changed after; then only names
//! of it come and go. Tables that a job brings, files of a backup and sealed segments are such
//! files. Where a copy lies does not matter to who reads it: an [`Object`] of this machine and a
//! file of another one are both [ranges that can be read](RangedRead), and [`read_whole`] gives the
//! same [`Summary`] of both if they are the same.
//!
//! # Invariants
//!
//! - [`Unsealed::seal`] returns once all bytes are on the device. A name is on it once
//!   [`ObjectDirectory::sync`] has returned after that, and gone from it once it has returned after
//!   a [`remove`](ObjectDirectory::remove). In this order, and a record that says that an object is
//!   there is written after both: that a name is found means nothing by itself, for a loss of power
//!   may leave the name of an object that was not sealed.
//! - No name is given twice. Only [`Unsealed::seal_as`] and [`ObjectDirectory::replace`] take the
//!   place of a file, and of one that is there whole before: so at every moment one of both is.
//! - What is not sealed goes when it is dropped, unless it [stays](Unsealed::stays) to be
//!   [resumed](Unsealed::resume).
//! - A name is one component of a path: nothing leads out of its directory.
//! - The [tap](crate::tap) of a directory is told of every change.
//!
//! # Failure
//!
//! After an append or a sync that failed nobody knows what of the object is on the device: it takes
//! no more and cannot be sealed. An object that is shorter than when it was opened is an error of
//! the read; damage is found by the checksum of the whole, and by those that its content has. One
//! that is removed while it is open can be read on.
//!
//! # Threads
//!
//! One writes an object; any number read it. Directories are values without state.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;

use crate::remote_files::RangedRead;
use crate::tap::{self, Tap, TapEvent};

/// Bytes that are copied or summed up at a time: enough for sequential reads, few enough for the
/// cache of a core.
const MAX_PIECE_BYTES: usize = 256 << 10;

/// What a read past the page cache begins, ends and lies in memory at a multiple of. No device in
/// use needs more.
const DIRECT_ALIGNMENT: usize = 4096;

/// What is computed of all bytes of an object as they pass.
pub trait Checksum: Default {
    /// What it comes to.
    type Value;

    /// These bytes follow.
    fn update(&mut self, bytes: &[u8]);

    /// They were all.
    fn finish(self) -> Self::Value;
}

/// The checksum that RocksDB keeps of whole tables, as a number.
#[derive(Debug, Clone, Copy, Default)]
pub struct Crc32c(u32);

impl Checksum for Crc32c {
    type Value = u32;

    fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    fn finish(self) -> u32 {
        self.0
    }
}

/// None, where the content has checksums of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unchecked;

impl Checksum for Unchecked {
    type Value = ();

    fn update(&mut self, _: &[u8]) {}

    fn finish(self) {}
}

/// What all of an object comes to: copies of one object have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary<V> {
    /// Its length.
    pub bytes: u64,
    /// Of the whole.
    pub checksum: V,
}

/// Where objects lie, and who is told of their changes.
#[derive(Debug, Clone)]
pub struct ObjectDirectory {
    path: PathBuf,
    tap: Tap,
}

impl ObjectDirectory {
    /// That at `path`, which need not be there yet.
    pub fn new(path: impl Into<PathBuf>, tap: Tap) -> Self {
        Self { path: path.into(), tap }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, and those above it that are missing. Their names are durable once what they lie in
    /// is synced.
    ///
    /// # Errors
    ///
    /// Those of the file system, and the tap's.
    pub fn make(&self) -> io::Result<()> {
        make(&self.path, &self.tap)
    }

    /// Begins a new object.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`: what has this name is left as it is. Those of the file system, and the
    /// tap's: nothing is left.
    pub fn create<C: Checksum>(&self, name: &str) -> io::Result<Unsealed<C>> {
        self.begin(name, OpenOptions::new().write(true).create_new(true))
    }

    /// The same; what was begun under this name and not sealed is lost.
    ///
    /// # Errors
    ///
    /// Those of the file system, and the tap's.
    pub fn create_over<C: Checksum>(&self, name: &str) -> io::Result<Unsealed<C>> {
        self.begin(name, OpenOptions::new().write(true).create(true).truncate(true))
    }

    fn begin<C: Checksum>(&self, name: &str, how: &OpenOptions) -> io::Result<Unsealed<C>> {
        let path = self.path_of(name)?;
        let file = how.open(&path)?;
        let unsealed = Unsealed {
            path,
            file,
            tap: self.tap.clone(),
            checksum: C::default(),
            bytes: 0,
            stays: false,
            has_failed: false,
        };
        self.tap.tell(TapEvent::Created { path: &unsealed.path })?;
        Ok(unsealed)
    }

    /// Opens an object for reading.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn open(&self, name: &str) -> io::Result<Object> {
        Object::open(&self.path_of(name)?)
    }

    /// Seals what somebody else has written whole, and opens it.
    ///
    /// # Errors
    ///
    /// Those of the file system, and the tap's: nobody knows then what is durable.
    pub fn adopt(&self, name: &str) -> io::Result<Object> {
        let path = self.path_of(name)?;
        let object = Object::open(&path)?;
        object.file.sync_all()?;
        self.tap.tell(TapEvent::Synced { path: &path, len: object.bytes })?;
        Ok(object)
    }

    /// Gives an object its name in another directory, on the same file system.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`: what has the name there is left as it is. Those of the file system, which
    /// may know no links, and the tap's.
    pub fn link(&self, name: &str, into: &Self) -> io::Result<()> {
        tap::hard_link(&self.path_of(name)?, &into.path_of(name)?, &into.tap)
    }

    /// Removes a name. Readers that have the object open go on.
    ///
    /// # Errors
    ///
    /// `NotFound`, those of the file system, and the tap's.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        tap::remove_file(&self.path_of(name)?, &self.tap)
    }

    /// Writes a small file, durably: it, or what had its name before, is there whole at every
    /// moment. Its name is durable after a [`sync`](Self::sync). Until it is whole it has the name
    /// `unfinished`, under which a process that was killed may have left one.
    ///
    /// # Errors
    ///
    /// Those of the file system, and the tap's.
    pub fn replace(&self, name: &str, unfinished: &str, bytes: &[u8]) -> io::Result<()> {
        let mut new = self.create_over::<Unchecked>(unfinished)?;
        new.append(bytes)?;
        new.seal_as(self, |()| name.to_owned()).map(|_| ())
    }

    /// Makes durable which names are here.
    ///
    /// # Errors
    ///
    /// Those of the file system, and the tap's: nobody knows then which names are durable.
    pub fn sync(&self) -> io::Result<()> {
        tap::sync_directory(&self.path, &self.tap)
    }

    /// Names and lengths of all files here, in no order. Names that are no text are nobody's.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            // Of what a link leads to: an object may have been moved to another disk.
            let metadata = match fs::metadata(entry.path()) {
                // Removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if metadata.is_file() {
                all.push((name, metadata.len()));
            }
        }
        Ok(all)
    }

    fn path_of(&self, name: &str) -> io::Result<PathBuf> {
        let mut components = Path::new(name).components();
        match (components.next(), components.next()) {
            (Some(Component::Normal(only)), None) if only == name => Ok(self.path.join(name)),
            _ => Err(io::Error::new(ErrorKind::InvalidInput, format!("{name:?} is no name of an object"))),
        }
    }
}

fn make(path: &Path, tap: &Tap) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => tap.tell(TapEvent::DirectoryCreated { path }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make(path.parent().filter(|above| !above.as_os_str().is_empty()).ok_or(error)?, tap)?;
            make(path, tap)
        }
        Err(_) if path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// An object that is being written.
#[derive(Debug)]
pub struct Unsealed<C> {
    path: PathBuf,
    file: File,
    tap: Tap,
    checksum: C,
    bytes: u64,
    stays: bool,
    has_failed: bool,
}

impl<C: Checksum> Unsealed<C> {
    /// Goes on with one that has [stayed](Self::stays), or begins it. What is there of it counts as
    /// far as `is_right` says so, up to `max_bytes`, of one piece of at most `piece_bytes` after
    /// the other; the rest goes. It stays again.
    ///
    /// # Errors
    ///
    /// Those of the file system, the tap, and `is_right`.
    pub fn resume<E: From<io::Error>>(
        directory: &ObjectDirectory,
        name: &str,
        max_bytes: u64,
        piece_bytes: usize,
        mut is_right: impl FnMut(u64, &[u8]) -> Result<bool, E>,
    ) -> Result<Self, E> {
        let path = directory.path_of(name)?;
        let is_new = !path.try_exists()?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        if is_new {
            directory.tap.tell(TapEvent::Created { path: &path })?;
        }
        let there = file.metadata()?.len().min(max_bytes);
        let (mut checksum, mut bytes) = (C::default(), 0);
        let mut piece = vec![0; usize::try_from(there).map_or(piece_bytes, |there| there.min(piece_bytes))];
        while bytes < there {
            let next = usize::try_from(there - bytes).map_or(piece.len(), |left| left.min(piece.len()));
            file.read_exact_at(&mut piece[..next], bytes)?;
            if !is_right(bytes, &piece[..next])? {
                break;
            }
            checksum.update(&piece[..next]);
            bytes += next as u64;
        }
        file.set_len(bytes)?;
        directory.tap.tell(TapEvent::Truncated { path: &path, len: bytes })?;
        Ok(Self { path, file, tap: directory.tap.clone(), checksum, bytes, stays: true, has_failed: false })
    }

    /// It is left as it is when it is dropped unsealed.
    #[must_use]
    pub fn stays(mut self) -> Self {
        self.stays = true;
        self
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that were appended.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    ///
    /// Those of the file system, and the tap's: it takes no more then.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.refuse_after_failure()?;
        let appended = self.file.write_all_at(bytes, self.bytes);
        let event = TapEvent::Appended { path: &self.path, offset: self.bytes, bytes };
        if let Err(error) = appended.and_then(|()| self.tap.tell(event)) {
            self.has_failed = true;
            return Err(error);
        }
        self.checksum.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Appends the first `bytes` bytes of `from`, or all where it has no more. The kernel is not
    /// asked to do it: it might let both files share their blocks, and one that is still appended
    /// to must own what it has reserved.
    ///
    /// # Errors
    ///
    /// As of [`append`](Self::append), and those of reading.
    pub fn append_from(&mut self, from: &dyn RangedRead, bytes: u64) -> io::Result<()> {
        read_first::<Unchecked, io::Error>(from, bytes, MAX_PIECE_BYTES, |piece| self.append(piece)).map(|_| ())
    }

    /// Makes all bytes durable: from here on it does not change.
    ///
    /// # Errors
    ///
    /// Those of the file system, and the tap's: it is not sealed, and never will be.
    pub fn seal(mut self) -> io::Result<Summary<C::Value>> {
        self.sync()?;
        self.stays = true;
        Ok(self.summary())
    }

    /// The same under the name that `name` makes of its checksum, in a directory on the same file
    /// system. What has this name there is replaced.
    ///
    /// # Errors
    ///
    /// As of [`seal`](Self::seal).
    pub fn seal_as(
        mut self,
        directory: &ObjectDirectory,
        name: impl FnOnce(&C::Value) -> String,
    ) -> io::Result<Summary<C::Value>> {
        self.sync()?;
        let summary = self.summary();
        let to = directory.path_of(&name(&summary.checksum))?;
        tap::rename(&self.path, &to, &directory.tap)?;
        // Its former name is no longer its own.
        self.stays = true;
        Ok(summary)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.refuse_after_failure()?;
        self.has_failed = true;
        self.file.sync_all()?;
        self.tap.tell(TapEvent::Synced { path: &self.path, len: self.bytes })?;
        self.tap.tell(TapEvent::Closed { path: &self.path, len: self.bytes })?;
        self.has_failed = false;
        Ok(())
    }

    fn summary(&mut self) -> Summary<C::Value> {
        Summary { bytes: self.bytes, checksum: std::mem::take(&mut self.checksum).finish() }
    }

    fn refuse_after_failure(&self) -> io::Result<()> {
        match self.has_failed {
            true => Err(io::Error::other("a write of this file failed before")),
            false => Ok(()),
        }
    }
}

impl<C> Drop for Unsealed<C> {
    fn drop(&mut self) {
        if !self.stays {
            // Nothing refers to it; what is left of it is met by who begins it anew.
            let _ = tap::remove_file(&self.path, &self.tap);
        }
    }
}

/// A sealed object of this machine, open for reading.
#[derive(Debug)]
pub struct Object {
    file: File,
    bytes: u64,
}

impl Object {
    /// That at `path`.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { file, bytes })
    }

    /// For who lets the kernel read it: no more than [`len`](RangedRead::len) is its own.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl RangedRead for Object {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = buffer.len().min(left);
        self.file.read_exact_at(&mut buffer[..bytes], offset)?;
        Ok(bytes)
    }
}

/// Reads all of `from`, wherever it lies, and gives it to `take` in pieces of `piece_bytes`.
///
/// # Errors
///
/// Those of reading, and of `take`.
pub fn read_whole<C: Checksum, E: From<io::Error>>(
    from: &dyn RangedRead,
    piece_bytes: usize,
    take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<Summary<C::Value>, E> {
    read_first::<C, E>(from, u64::MAX, piece_bytes, take)
}

/// The same without looking at the bytes.
///
/// # Errors
///
/// Those of reading.
pub fn summary_of<C: Checksum>(from: &dyn RangedRead) -> io::Result<Summary<C::Value>> {
    read_whole::<C, io::Error>(from, MAX_PIECE_BYTES, |_| Ok(()))
}

fn read_first<C: Checksum, E: From<io::Error>>(
    from: &dyn RangedRead,
    max_bytes: u64,
    piece_bytes: usize,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<Summary<C::Value>, E> {
    let bytes = from.len().min(max_bytes);
    let (mut checksum, mut at) = (C::default(), 0);
    let mut piece = vec![0; usize::try_from(bytes).map_or(piece_bytes, |bytes| bytes.min(piece_bytes))];
    while at < bytes {
        let next = usize::try_from(bytes - at).map_or(piece.len(), |left| left.min(piece.len()));
        let piece = &mut piece[..next];
        if from.read_at(at, piece)? < next {
            return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
        }
        checksum.update(piece);
        take(piece)?;
        at += next as u64;
    }
    Ok(Summary { bytes, checksum: checksum.finish() })
}

/// Reads `bytes` bytes of the object at `path` from `offset` on past the kernel's page cache
/// (`O_DIRECT`) where its file system can, and through it elsewhere. For who reads much that nobody
/// will read again.
///
/// # Errors
///
/// Those of the file system, and `UnexpectedEof` where it ends before.
pub fn read_past_cache(path: &Path, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    read_directly(path, offset, bytes).or_else(|_| {
        let mut read = vec![0; bytes];
        File::open(path)?.read_exact_at(&mut read, offset)?;
        Ok(read)
    })
}

/// Any failure means that the file system cannot, or what the other way of reading will tell.
fn read_directly(path: &Path, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)?;
    let before = (offset % DIRECT_ALIGNMENT as u64) as usize;
    let wanted = (before + bytes).next_multiple_of(DIRECT_ALIGNMENT);
    let mut memory = vec![0; wanted + DIRECT_ALIGNMENT];
    let begin = memory.as_ptr().align_offset(DIRECT_ALIGNMENT);
    let aligned = memory.get_mut(begin..begin + wanted).ok_or(ErrorKind::Unsupported)?;
    let mut read = 0;
    while read < before + bytes {
        let more = file.read_at(&mut aligned[read..], offset - before as u64 + read as u64)?;
        read += more;
        // The file's end, which stands at no multiple.
        if more == 0 || more % DIRECT_ALIGNMENT != 0 {
            break;
        }
    }
    if read < before + bytes {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    memory.copy_within(begin + before..begin + before + bytes, 0);
    memory.truncate(bytes);
    Ok(memory)
}
