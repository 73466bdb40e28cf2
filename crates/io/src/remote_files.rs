//! Files that are elsewhere: found by their path, read by ranges.
//!
//! Failure: an error of a read is the reader's; nobody tries again here.
//!
//! Threads: any number at once.

use std::io;
use std::path::Path;
use std::sync::Arc;

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

/// One file, here or elsewhere, open for reading from several threads.
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
