//! Who follows every change of the files of a store: of tables, WAL and MANIFEST as the file system
//! under RocksDB tells them, of all else (identity, segments, watermark, objects) as those tell
//! them that make the change.
//!
//! Of a checkpoint, which is made beside the store, only RocksDB's part is told.
//!
//! Invariants: a change is told after it has happened and before anything rests on it; a sync is
//! told with a length that it covers for certain. An error of the tap fails the operation.
//!
//! Threads: changes are told by the threads that make them, several at once.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Sees every change of the file system.
///
/// Of RocksDB's part, with a tap writes through memory maps are refused (`allow_mmap_writes` must
/// stay false), because nobody would see them; the info log (`LOG`) is tapped like any file.
pub trait WriteTap: Send + Sync {
    /// Called after the change, before who made it learns of its success.
    ///
    /// # Errors
    ///
    /// An error fails the operation: who made the change is told that it did not happen, though it
    /// did. The file may then hold bytes that the tap has refused; nobody writes to that file again.
    fn record(&self, event: TapEvent<'_>) -> io::Result<()>;

    /// Whether [`copied`](Self::copied) is of use to it.
    fn follows_copies(&self) -> bool {
        false
    }

    /// Of the bytes of `path` that are recorded next as appended, these are copies, in the order of
    /// their offsets. Called only if it [follows them](Self::follows_copies). Nothing fails where
    /// that is not said, or said of bytes that are never appended.
    fn copied(&self, _path: &Path, _ranges: &[CopiedRange]) {}
}

/// Bytes of a file that are the same as bytes of another file, from which they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedRange {
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub len: u64,
    /// The number of the other file. It lies beside the first one, and is called as that is but for
    /// its number.
    pub from: u64,
    /// Where they begin there.
    pub from_offset: u64,
}

/// One change of the file system. Paths are as they were given, before any remap; lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TapEvent<'a> {
    /// The file is new and empty; one of the same name is gone.
    Created {
        /// The file.
        path: &'a Path,
    },
    /// Bytes were written. `offset` is the end of the file except for files written in place
    /// (recycled WALs, direct IO, which rewrites its last page).
    Appended {
        /// The file.
        path: &'a Path,
        /// Where the bytes begin.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The file was cut or extended to `len`.
    Truncated {
        /// The file.
        path: &'a Path,
        /// Its length now.
        len: u64,
    },
    /// The first `len` bytes are durable. Bytes that were being written meanwhile may be durable
    /// too.
    Synced {
        /// The file.
        path: &'a Path,
        /// The durable length.
        len: u64,
    },
    /// The file is complete. A file that is dropped unclosed sends no such event.
    Closed {
        /// The file.
        path: &'a Path,
        /// Its length.
        len: u64,
    },
    /// `from` is now called `to`; a former `to` is gone.
    Renamed {
        /// The name before.
        from: &'a Path,
        /// The name after.
        to: &'a Path,
    },
    /// `to` is a second name of the same file.
    Linked {
        /// The name that was there.
        from: &'a Path,
        /// The new name.
        to: &'a Path,
    },
    /// The file is gone.
    Deleted {
        /// The file.
        path: &'a Path,
    },
    /// The directory is new.
    DirectoryCreated {
        /// The directory.
        path: &'a Path,
    },
    /// The directory is gone.
    DirectoryDeleted {
        /// The directory.
        path: &'a Path,
    },
    /// The names in the directory are durable.
    DirectorySynced {
        /// The directory.
        path: &'a Path,
    },
    /// No change: what was written below the directory before is about to be synced, file by file.
    /// The file system never says so; who owns the directory may.
    SyncBegins {
        /// The directory.
        path: &'a Path,
    },
}

impl<'a> TapEvent<'a> {
    /// The file or directory that changed; of a rename or a link, the name it has afterwards.
    #[must_use]
    pub fn path(&self) -> &'a Path {
        match *self {
            Self::Created { path }
            | Self::Appended { path, .. }
            | Self::Truncated { path, .. }
            | Self::Synced { path, .. }
            | Self::Closed { path, .. }
            | Self::Deleted { path }
            | Self::DirectoryCreated { path }
            | Self::DirectoryDeleted { path }
            | Self::DirectorySynced { path }
            | Self::SyncBegins { path }
            | Self::Renamed { to: path, .. }
            | Self::Linked { to: path, .. } => path,
        }
    }
}

/// The tap of a store, where it has one.
#[derive(Clone, Default)]
pub struct Tap(Option<Arc<dyn WriteTap>>);

impl Tap {
    /// Nobody listens.
    pub const SILENT: Self = Self(None);

    /// `tap` listens.
    pub fn new(tap: Arc<dyn WriteTap>) -> Self {
        Self(Some(tap))
    }

    /// Tells of a change that has happened.
    #[inline]
    pub fn tell(&self, event: TapEvent<'_>) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |tap| tap.record(event))
    }

    /// Whether somebody wants to know what is a copy of what.
    #[must_use]
    pub fn follows_copies(&self) -> bool {
        self.0.as_ref().is_some_and(|tap| tap.follows_copies())
    }

    /// Tells what of the bytes that are appended next is a copy.
    pub fn copied(&self, path: &Path, ranges: &[CopiedRange]) {
        if let Some(tap) = &self.0
            && !ranges.is_empty()
        {
            tap.copied(path, ranges);
        }
    }
}

impl From<Option<Arc<dyn WriteTap>>> for Tap {
    fn from(tap: Option<Arc<dyn WriteTap>>) -> Self {
        Self(tap)
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Tap" } else { "Tap::SILENT" })
    }
}

/// Removes the name of a file.
///
/// # Errors
///
/// Those of the file system, and the tap's.
pub fn remove_file(path: &Path, tap: &Tap) -> io::Result<()> {
    fs::remove_file(path)?;
    tap.tell(TapEvent::Deleted { path })
}

/// Calls `from` from now on `to`; what was called so is gone.
///
/// # Errors
///
/// Those of the file system, and the tap's.
pub fn rename(from: &Path, to: &Path, tap: &Tap) -> io::Result<()> {
    fs::rename(from, to)?;
    tap.tell(TapEvent::Renamed { from, to })
}

/// Gives `from` a second name.
///
/// # Errors
///
/// Those of the file system, and the tap's.
pub fn hard_link(from: &Path, to: &Path, tap: &Tap) -> io::Result<()> {
    fs::hard_link(from, to)?;
    tap.tell(TapEvent::Linked { from, to })
}

/// Makes the names in `directory` durable.
///
/// # Errors
///
/// Those of opening and syncing it, and the tap's. Nobody knows then which names are durable.
pub fn sync_directory(directory: &Path, tap: &Tap) -> io::Result<()> {
    sync_opened_directory(&File::open(directory)?, directory, tap)
}

/// The same of one that is open.
///
/// # Errors
///
/// As above.
pub fn sync_opened_directory(opened: &File, directory: &Path, tap: &Tap) -> io::Result<()> {
    opened.sync_all()?;
    tap.tell(TapEvent::DirectorySynced { path: directory })
}
