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

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_io::remote_files::RemoteFiles;
use ecotone_io::tap::{Tap, WriteTap};

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
    /// allows it: see [`ecotone_io::mapped_file`]. The tap sees the appends all the same. Until a log is
    /// closed or followed by the next one its file ends in zeros, which RocksDB takes for nothing;
    /// a secondary instance of RocksDB on the same directory would not.
    pub maps_wals: bool,
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

impl FileSystemHooks {
    /// The tap among the hooks that a store was given.
    #[must_use]
    pub fn tap_of(hooks: Option<&Self>) -> Tap {
        hooks.and_then(|hooks| hooks.tap.clone()).into()
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
