//! The file system under RocksDB, with three hooks, and a cheaper way to append to write-ahead
//! logs.
//!
//! [`hooked_env`] wraps the operating system's files and returns an [`rust_rocksdb::Env`] for
//! `Options::set_env`:
//!
//! - [`WriteTap`] sees every change of the file system (replication mirrors a store from it).
//! - [`PathRemap`] lets RocksDB use names that are not where its files lie (a worker sees a store
//!   under its owner's path).
//! - [`RemoteFiles`] answers for files that are elsewhere, by ranged reads (a worker reads its
//!   owner's tables).
//!
//! # Order of the hooks
//!
//! Tap and remote files are given paths as RocksDB gave them; the remap is asked last, for the path
//! that goes to the operating system.
//!
//! # A store that is elsewhere
//!
//! With a remap and remote files together, the names are another server's. Then only what the remap
//! leads somewhere may be changed: every write, rename, lock or directory under another name, or
//! under one with `..` in it, is refused with an `IOError` that names the path, and never falls
//! through to the local disk. Reads go on as they would.
//!
//! # Order of tap events
//!
//! An event is delivered after the change has succeeded and before RocksDB learns that it has. So
//! of two changes where RocksDB makes the second because the first is done (a table before the
//! MANIFEST that names it, a MANIFEST before CURRENT), the tap has seen the first before the second
//! begins. Independent changes come from several threads at once; a tap that wants one sequence
//! locks, and any order in which it takes them is one in which they may have happened.
//!
//! # Failure
//!
//! A hook's error fails the operation with RocksDB's `IOError`, `NotFound`, `NoSpace`,
//! `NotSupported` or `Corruption`, by the kind of the `std::io::Error`. A panic is contained,
//! counted ([`crate::contained_failures`]) and becomes an `IOError`. RocksDB stops writing to a
//! store whose WAL or MANIFEST cannot be written, so a tap should fail only when the store must
//! stop.
//!
//! # Threads
//!
//! All hooks are called from RocksDB's threads, foreground and background, concurrently. They must
//! not call back into the store they serve: some calls are made under its mutex.

#[allow(unsafe_code)] // the C functions that C++ calls: raw pointers in, panics contained
mod trampolines;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Result;

/// The hooks of one file system. Those that are absent cost nothing.
#[derive(Clone, Default)]
pub struct FileSystemHooks {
    /// Sees every change.
    pub tap: Option<Arc<dyn WriteTap>>,
    /// Moves names.
    pub remap: Option<Arc<dyn PathRemap>>,
    /// Answers for files that are elsewhere.
    pub remote: Option<Arc<dyn RemoteFiles>>,
    /// Whether write-ahead logs are appended to through a window in memory, where the file system
    /// allows it: see [`crate::mapped_file`]. The tap sees the appends all the same. Until a log is
    /// closed or followed by the next one its file ends in zeros, which RocksDB takes for nothing;
    /// a secondary instance of RocksDB on the same directory would not.
    pub maps_wals: bool,
}

/// Sees every change of the file system that RocksDB makes.
///
/// With a tap, writes through memory maps are refused (`allow_mmap_writes` must stay false),
/// because nobody would see them; the info log (`LOG`) is tapped like any file.
pub trait WriteTap: Send + Sync {
    /// Called after the change, before RocksDB learns of its success.
    ///
    /// # Errors
    ///
    /// An error fails the operation: RocksDB is told that the change did not happen, though it did.
    /// The file may then hold bytes that the tap has refused; RocksDB does not write to that file
    /// again.
    fn record(&self, event: TapEvent<'_>) -> io::Result<()>;
}

/// One change of the file system. Paths are as RocksDB gave them, before any [`PathRemap`]; bytes
/// and lengths are in bytes.
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
    /// The file is complete. A file that RocksDB drops unclosed sends no such event.
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

/// Moves names: RocksDB says one path, the operating system gets another.
///
/// Applied to every path of every operation: files, directories, listings, locks, both ends of
/// renames and links. Names that RocksDB asks back (`GetAbsolutePath`) stay RocksDB's, so that it
/// never sees where a name leads. `rust_rocksdb::DB::open` makes an empty directory under the name
/// itself, past RocksDB and this file system.
pub trait PathRemap: Send + Sync {
    /// Where `path` lies; `None` leaves it unchanged. Must be pure: the same path always leads to
    /// the same place.
    fn map(&self, path: &Path) -> Option<PathBuf>;
}

/// Files that are elsewhere. Asked before the local file system, with the path as RocksDB gave it.
///
/// Such files can be opened for reading, sized and listed. To write, truncate, link, rename or
/// delete one is refused with `NotSupported`. Their modification time is 0. A directory that
/// [`list`](Self::list) knows counts as existing: to create it where missing and to sync it succeed
/// and do nothing.
pub trait RemoteFiles: Send + Sync {
    /// Opens a file for reading; `None` when the local file system is to be asked.
    ///
    /// # Errors
    ///
    /// `NotFound` when the file exists nowhere; any other when it cannot be reached.
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>>;

    /// The length of a file in bytes; `None` when the local file system is to be asked.
    ///
    /// # Errors
    ///
    /// `NotFound` when the file exists nowhere; any other when it cannot be known.
    fn size(&self, path: &Path) -> io::Result<Option<u64>>;

    /// The names in a directory, all of them; `None` when the local file system is to be asked.
    ///
    /// # Errors
    ///
    /// `NotFound` when the directory exists nowhere; any other when it cannot be known.
    fn list(&self, directory: &Path) -> io::Result<Option<Vec<String>>>;
}

/// One file that is elsewhere, open for reading from several threads.
pub trait RangedRead: Send + Sync {
    /// The length of the file in bytes. Must not change while it is open.
    fn len(&self) -> u64;

    /// Whether the file is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads at `offset` into `buffer` and returns the bytes read: all that `buffer` holds, fewer
    /// only at the end of the file. A short read elsewhere is reported to RocksDB as an error.
    ///
    /// # Errors
    ///
    /// Any error fails the read; RocksDB does not retry it.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Says that this range will be read soon. Return true to have it at hand when it is asked for:
    /// RocksDB then reads it block by block (a few KiB each). Return false, the default, to leave
    /// reading ahead to RocksDB, which then asks for large ranges (`compaction_readahead_size`) in
    /// one [`read_at`](Self::read_at).
    fn will_need(&self, offset: u64, len: u64) -> bool {
        let _ = (offset, len);
        false
    }
}

/// Makes an environment whose files go through `hooks`. Everything else (threads, clock) is that of
/// RocksDB's default one, and shared with it.
///
/// Keep the environment in the `Options` of the store; it is freed when the last store and handle
/// that use it are gone.
///
/// # Errors
///
/// [`crate::Error::RocksDb`] when RocksDB cannot make the environment (out of memory).
pub fn hooked_env(hooks: FileSystemHooks) -> Result<rust_rocksdb::Env> {
    trampolines::new_env(hooks)
}
