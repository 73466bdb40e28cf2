//! The locks of a store's directory: one store at a time, of whatever process, has it for writing,
//! and anybody can ask who.
//!
//! There are two. RocksDB locks the file `LOCK` (`fcntl`) while its database is open; the kernel
//! tells the process that holds such a lock. That comes too late for segments, which are listed
//! before. So a store locks the open directory (`flock`) first: nothing is written, and it ends
//! with its process, however that ends. Who only reads may take that lock shared, and keeps writers
//! out.
//!
//! Invariants: the locks that a process has of a file by `fcntl` end when it closes any descriptor
//! of that file. So `LOCK` is not opened here while a store of this process has the directory for
//! writing, or is about to.
//!
//! Threads: any. Failure: where the file system has no locks, a writer that must have one is
//! refused, and nobody is known to write.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use parking_lot::Mutex;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::{Error, LockHolder, Result};

/// The file that RocksDB locks while a database is open for writing.
const ROCKS_LOCK: &str = "LOCK";

/// Names a directory on this machine: its device and its inode.
type Id = (u64, u64);

/// The locks that this process holds of each directory: the kernel does not tell of a lock by
/// `flock` whose it is.
static HELD: Mutex<BTreeMap<Id, Held>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Default)]
struct Held {
    locks: usize,
    /// How many of them are for writing: one, but for a moment, and more where the file system has
    /// no locks.
    for_writing: usize,
}

/// A lock, until it is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    /// `None` in the drop, and where the file system has no locks.
    file: Option<File>,
    id: Id,
    for_writing: bool,
}

impl DirectoryLock {
    /// For a store that may write. Nobody else has a lock of the directory meanwhile, or is relied
    /// on not to unless it `must` be locked.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], [`Error::Io`].
    pub(crate) fn for_writing(directory: &Path, must: bool) -> Result<Self> {
        match Self::take(directory, true, File::try_lock)? {
            (lock, Some(error)) if must => {
                drop(lock);
                Err(Error::io("lock", directory, &error))
            }
            (lock, _) => Ok(lock),
        }
    }

    /// Whether it keeps others out: not where the file system has no locks.
    pub(crate) const fn is_held(&self) -> bool {
        self.file.is_some()
    }

    /// For one that only reads, and keeps writers out. Where the file system has no locks it keeps
    /// nobody out.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], [`Error::Io`] where the directory cannot be opened.
    pub fn against_writers(directory: &Path) -> Result<Self> {
        Self::take(directory, false, File::try_lock_shared).map(|(lock, _)| lock)
    }

    /// The error beside the lock is that of a file system which has no locks.
    fn take(
        directory: &Path,
        for_writing: bool,
        lock: impl FnOnce(&File) -> Result<(), TryLockError>,
    ) -> Result<(Self, Option<std::io::Error>)> {
        let failed = |error| Error::io("open", directory, &error);
        let file = File::open(directory).map_err(failed)?;
        let id = id_of(&file.metadata().map_err(failed)?);
        // Who finds it locked must find it in here as well, where it is ours.
        let mut held = HELD.lock();
        let (file, error) = match lock(&file) {
            Ok(()) => (Some(file), None),
            Err(TryLockError::Error(error)) => (None, Some(error)),
            Err(TryLockError::WouldBlock) => {
                let is_ours = held.contains_key(&id);
                return Err(Error::Locked {
                    directory: directory.to_path_buf(),
                    holder: if is_ours { LockHolder::ThisProcess } else { another_process(directory) },
                    detail: "its directory is locked".into(),
                });
            }
        };
        let of_directory = held.entry(id).or_default();
        of_directory.locks += 1;
        of_directory.for_writing += usize::from(for_writing);
        Ok((Self { file, id, for_writing }, error))
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        self.file = None;
        if let Some(of_directory) = held.get_mut(&self.id) {
            of_directory.locks -= 1;
            of_directory.for_writing -= usize::from(self.for_writing);
            if of_directory.locks == 0 {
                held.remove(&self.id);
            }
        }
    }
}

fn id_of(metadata: &std::fs::Metadata) -> Id {
    (metadata.dev(), metadata.ino())
}

/// Who has the store in `directory` open for writing, by RocksDB's lock of it; `None`: nobody, or
/// nobody knows. Takes no lock itself, so that nobody who opens the store meanwhile is refused
/// because of it.
pub fn holder(directory: &Path) -> Option<LockHolder> {
    let id = id_of(&std::fs::metadata(directory).ok()?);
    // Kept until `LOCK` is closed again: see the module.
    let held = HELD.lock();
    if held.get(&id).is_some_and(|held| held.for_writing > 0) {
        return Some(LockHolder::ThisProcess);
    }
    locking_process(directory).map(|pid| LockHolder::AnotherProcess { pid })
}

/// Another process, by its number where the kernel tells it. Not to be asked where a store of this
/// process may have the directory for writing.
pub(crate) fn another_process(directory: &Path) -> LockHolder {
    LockHolder::AnotherProcess { pid: locking_process(directory).flatten() }
}

/// The process that has locked [`ROCKS_LOCK`]: its number, unless it lives where this process
/// cannot see it, as in another container.
fn locking_process(directory: &Path) -> Option<Option<i32>> {
    let file = File::open(directory.join(ROCKS_LOCK)).ok()?;
    let found = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()??;
    Some(found.pid.map(|pid| pid.as_raw_nonzero().get()).filter(|pid| *pid > 0))
}

/// Who has the store open for writing, or is about to. A store that is opened for writing at this
/// very moment by another process may find the directory locked, so ask only where there is a
/// reason to.
pub(crate) fn writer(directory: &Path) -> Option<LockHolder> {
    holder(directory).or_else(|| match DirectoryLock::against_writers(directory) {
        Err(Error::Locked { holder, .. }) => Some(holder),
        _ => None,
    })
}

/// The error of a reader, or, where somebody has the store open for writing who may have removed
/// what is missing, that.
pub(crate) fn unless_in_use(directory: &Path, error: Error) -> Error {
    match error {
        Error::Corrupt { .. } | Error::Io { .. } | Error::Rocks { .. } => match writer(directory) {
            Some(holder) => Error::in_use(directory, holder, &error),
            None => error,
        },
        other => other,
    }
}

/// Tells whether somebody had a store open for writing since a moment, also one who has closed it
/// again.
#[derive(Debug)]
pub struct Untouched<'d> {
    directory: &'d Path,
    writer: Option<LockHolder>,
    /// Which MANIFEST it has: a store that is opened for writing begins another one.
    current: Option<Vec<u8>>,
}

impl<'d> Untouched<'d> {
    /// Begins at this moment.
    pub fn since_now(directory: &'d Path) -> Self {
        Self { directory, writer: holder(directory), current: current(directory) }
    }

    /// Who, as far as that can be found out; `None`: nobody.
    pub fn writer(&self) -> Option<LockHolder> {
        self.writer
            .or_else(|| writer(self.directory))
            .or_else(|| (current(self.directory) != self.current).then_some(LockHolder::AnotherProcess { pid: None }))
    }
}

fn current(directory: &Path) -> Option<Vec<u8>> {
    std::fs::read(directory.join("CURRENT")).ok()
}
