//! The lock of a store's directory, where the store has a value log: one store at a time, of whatever process, has it for writing.
//!
//! RocksDB's own lock comes too late, because segments are listed before, and nobody can ask who holds it. This one is a lock of the
//! open directory (`flock`): nothing is written, and it ends with its process, however that ends.
//!
//! Threads: any. Failure: where the file system has no locks a writer is refused, and nobody is known to write.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use parking_lot::Mutex;

use crate::{Error, LockHolder, Result};

/// Names a directory on this machine: its device and its inode.
type Id = (u64, u64);

/// How many locks this process holds of each directory: the kernel does not tell whose a lock is.
static HELD: Mutex<BTreeMap<Id, usize>> = Mutex::new(BTreeMap::new());

/// A lock, until it is dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    /// `None` in the drop only.
    file: Option<File>,
    id: Id,
}

impl DirectoryLock {
    /// For a store that may write. Nobody else has a lock of the directory meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], [`Error::Io`].
    pub(crate) fn for_writing(directory: &Path) -> Result<Self> {
        Self::take(directory, File::try_lock)?.map_err(|error| Error::io("lock", directory, &error))
    }

    /// For one that only reads, and keeps writers out. Where the file system has no locks it keeps nobody out.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], [`Error::Io`] where the directory cannot be opened.
    pub(crate) fn against_writers(directory: &Path) -> Result<Option<Self>> {
        Ok(Self::take(directory, File::try_lock_shared)?.ok())
    }

    /// The inner error is that of a file system which has no locks.
    fn take(
        directory: &Path,
        lock: impl FnOnce(&File) -> Result<(), TryLockError>,
    ) -> Result<std::result::Result<Self, std::io::Error>> {
        let failed = |error| Error::io("open", directory, &error);
        let file = File::open(directory).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let id = (metadata.dev(), metadata.ino());
        // Who finds it locked must find it in here as well, where it is ours.
        let mut held = HELD.lock();
        match lock(&file) {
            Ok(()) => {
                *held.entry(id).or_default() += 1;
                Ok(Ok(Self { file: Some(file), id }))
            }
            Err(TryLockError::WouldBlock) => Err(Error::Locked {
                directory: directory.to_path_buf(),
                holder: if held.contains_key(&id) { LockHolder::ThisProcess } else { LockHolder::AnotherProcess },
                detail: "its directory is locked".into(),
            }),
            Err(TryLockError::Error(error)) => Ok(Err(error)),
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        self.file = None;
        if let Some(count) = held.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.id);
            }
        }
    }
}

/// Who has the store open for writing, as far as that can be found out. A store that is opened for writing at this very moment by another
/// process may find the directory locked, so ask only where there is a reason to.
pub(crate) fn writer(directory: &Path) -> Option<LockHolder> {
    match DirectoryLock::against_writers(directory) {
        Err(Error::Locked { holder, .. }) => Some(holder),
        _ => None,
    }
}

/// The error of a reader, or, where somebody has the store open for writing who may have removed what is missing, that.
pub(crate) fn unless_in_use(directory: &Path, error: Error) -> Error {
    match error {
        Error::Corrupt { .. } | Error::Io { .. } | Error::Rocks { .. } => match writer(directory) {
            Some(holder) => Error::in_use(directory, holder, &error),
            None => error,
        },
        other => other,
    }
}
