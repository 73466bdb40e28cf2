//! A table that came from elsewhere, checked whole before it may enter a store.
//!
//! [`read_table`] reads every block and every entry, in C++, at the speed of the disk and without a
//! call per key. It accepts a table only when all of these hold:
//!
//! - it is a block-based table in bytewise order, every block has the checksum it was written with;
//! - its entries are in strictly ascending internal order (user key ascending, then sequence number
//!   descending);
//! - what was counted equals the table's own properties.
//!
//! [`recount_table`] does the same, and finds out whether what collectors left in the table is what
//! its entries amount to.
//!
//! [`TableSummary::check`] compares what was found with a promise, which may come later than the
//! table. It accepts only when:
//!
//! - each user key is inside `[begin, end)` and each sequence number inside the range that was
//!   promised;
//! - first and last key are those promised, or a range deletion accounts for the difference;
//! - size, identity and all counts are those promised.
//!
//! [`verify_table`] does both, and compares the checksum of the file; [`verify_and_recount_table`]
//! does all of it.
//!
//! A worker that forges a consistent table is outside what this can find: see the threat model.
//!
//! Threads: any; nothing is shared between calls. Memory: one block at a time, and all range
//! deletions of the table.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use ecotone_io::objects::{Crc32c, Object, summary_of};

use crate::properties::TableCollector;
use crate::remote::RemoteOutput;

/// What a table must be. What is `None` is not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedTable {
    /// Size of the file in bytes.
    pub file_bytes: Option<u64>,
    /// The least user key allowed.
    pub begin: Option<Vec<u8>>,
    /// The user key that all must be less than.
    pub end: Option<Vec<u8>>,
    /// Where the table begins, as an internal key.
    pub smallest_internal_key: Option<Vec<u8>>,
    /// Where the table ends, as an internal key.
    pub largest_internal_key: Option<Vec<u8>>,
    /// Smallest sequence number allowed.
    pub smallest_seqno: Option<u64>,
    /// Largest sequence number allowed.
    pub largest_seqno: Option<u64>,
    /// Entries, deletions included.
    pub entries: Option<u64>,
    /// Deletions of all kinds.
    pub deletions: Option<u64>,
    /// Deletions of ranges.
    pub range_deletions: Option<u64>,
    /// Bytes of all internal keys.
    pub raw_key_bytes: Option<u64>,
    /// Bytes of all values.
    pub raw_value_bytes: Option<u64>,
    /// Where the data blocks end.
    pub tail_offset: Option<u64>,
    /// The identity of the table.
    pub unique_id: Option<[u64; 2]>,
    /// RocksDB's crc32c checksum of the whole file (see [`file_checksum`]).
    pub file_checksum: Option<Vec<u8>>,
}

impl ExpectedTable {
    /// All that a job's result promises of one output, inside the job's range.
    #[must_use]
    pub fn of_output(output: &RemoteOutput, begin: Option<&[u8]>, end: Option<&[u8]>) -> Self {
        let crc32c = output.file_checksum_func_name == FILE_CHECKSUM_FUNCTION;
        Self {
            file_bytes: Some(output.file_bytes),
            begin: begin.map(<[u8]>::to_vec),
            end: end.map(<[u8]>::to_vec),
            smallest_internal_key: Some(output.smallest_internal_key.clone()),
            largest_internal_key: Some(output.largest_internal_key.clone()),
            smallest_seqno: Some(output.smallest_seqno),
            largest_seqno: Some(output.largest_seqno),
            entries: Some(output.entries),
            deletions: Some(output.deletions),
            range_deletions: Some(output.range_deletions),
            raw_key_bytes: Some(output.raw_key_bytes),
            raw_value_bytes: Some(output.raw_value_bytes),
            tail_offset: Some(output.tail_offset),
            unique_id: (output.unique_id != [0, 0]).then_some(output.unique_id),
            file_checksum: crc32c.then(|| output.file_checksum.clone()),
        }
    }
}

/// What was found in a sound table. Sizes are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableSummary {
    /// Size of the file.
    pub file_bytes: u64,
    /// Entries, deletions included.
    pub entries: u64,
    /// Deletions of all kinds.
    pub deletions: u64,
    /// Deletions of ranges.
    pub range_deletions: u64,
    /// Bytes of all internal keys.
    pub raw_key_bytes: u64,
    /// Bytes of all values.
    pub raw_value_bytes: u64,
    /// Smallest sequence number found, 0 in an empty table.
    pub smallest_seqno: u64,
    /// Largest sequence number found, 0 in an empty table.
    pub largest_seqno: u64,
    /// Where the data blocks end.
    pub tail_offset: u64,
    /// The identity of the table.
    pub unique_id: [u64; 2],
    /// The first entry's internal key; empty in a table of range deletions only.
    pub first_key: Vec<u8>,
    /// The last entry's internal key; empty in a table of range deletions only.
    pub last_key: Vec<u8>,
    /// The least user key that a range deletion covers; empty without range deletions.
    pub deleted_begin: Vec<u8>,
    /// The user key behind all that range deletions cover; empty without range deletions.
    pub deleted_end: Vec<u8>,
}

impl TableSummary {
    /// Compares what was found in `file` with what was promised of it. A promised checksum of the
    /// file is not compared: it is none of the table's content.
    ///
    /// # Errors
    ///
    /// The first difference: [`VerifyError::Foreign`], [`VerifyError::CountMismatch`] or
    /// [`VerifyError::OutOfRange`].
    pub fn check(&self, file: &Path, expected: &ExpectedTable) -> Result<(), VerifyError> {
        compare::check(self, file, expected)
    }
}

/// Why a table was refused. Every kind means: do not install it, fall back to a local job.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The file is no block-based table, or cannot be opened as one.
    #[error("{} is not a table: {what}", file.display())]
    NotATable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A block or entry is damaged.
    #[error("{} is corrupt: {what}", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A key or sequence number is outside what was promised.
    #[error("{} holds what it must not: {what}", file.display())]
    OutOfRange {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Two entries are in the wrong order, or equal.
    #[error("{} is out of order: {what}", file.display())]
    Misordered {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Entries counted differ from the table's properties or from the promise.
    #[error("{} has the wrong counts: {what}", file.display())]
    CountMismatch {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A table, but not the one promised: size, identity, checksum or bounds differ.
    #[error("{} is another table than promised: {what}", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Whoever wanted to know whether the table is sound no longer does. It may be.
    #[error("{} was not read to its end: {what}", file.display())]
    Stopped {
        /// The file.
        file: PathBuf,
        /// How far it was read.
        what: String,
    },
    /// The file could not be read. The table may be sound; the disk may not.
    #[error("{} could not be read: {what}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What went wrong.
        what: String,
    },
}

/// The name RocksDB gives to the checksum of [`file_checksum`].
pub const FILE_CHECKSUM_FUNCTION: &str = "FileChecksumCrc32c";

/// Reads the whole table at `path` (on the local file system, not through any hook) and tells what
/// is in it. Ends at the next entry when another thread sets `stop`.
///
/// # Errors
///
/// The first fault found, or [`VerifyError::Stopped`].
pub fn read_table(path: &Path, stop: &AtomicBool) -> Result<TableSummary, VerifyError> {
    read::read_table(path, stop)
}

/// The same, and shows each entry to `collector` as if the table were being written; range
/// deletions are cut where they overlap. The properties that the collector would leave in it must
/// be those that are in it: whoever relies on them need not trust who wrote the table. Those named
/// in `may_lack` may be missing, not differ. Takes a call for each entry.
///
/// # Errors
///
/// As [`read_table`]; [`VerifyError::Foreign`] for a table without such a property,
/// [`VerifyError::CountMismatch`] where one says something else than the entries.
pub fn recount_table(
    path: &Path,
    stop: &AtomicBool,
    collector: Box<dyn TableCollector>,
    may_lack: &[&str],
) -> Result<TableSummary, VerifyError> {
    read::recount_table(path, stop, collector, may_lack)
}

/// Reads the whole table at `path` and compares it with what was promised.
///
/// # Errors
///
/// The first fault found.
pub fn verify_table(path: &Path, expected: &ExpectedTable) -> Result<TableSummary, VerifyError> {
    verify_as_read(path, expected, |stop| read_table(path, stop))
}

/// The same, and shows each entry to `collector` as [`recount_table`] does, in one reading.
///
/// # Errors
///
/// The first fault found.
pub fn verify_and_recount_table(
    path: &Path,
    expected: &ExpectedTable,
    collector: Box<dyn TableCollector>,
    may_lack: &[&str],
) -> Result<TableSummary, VerifyError> {
    verify_as_read(path, expected, |stop| recount_table(path, stop, collector, may_lack))
}

fn verify_as_read(
    path: &Path,
    expected: &ExpectedTable,
    read: impl FnOnce(&AtomicBool) -> Result<TableSummary, VerifyError>,
) -> Result<TableSummary, VerifyError> {
    let io = |error: std::io::Error| VerifyError::Io { file: path.to_owned(), what: error.to_string() };
    compare::check_size(std::fs::metadata(path).map_err(io)?.len(), path, expected.file_bytes)?;
    if let Some(promised) = &expected.file_checksum {
        let found = file_checksum(path).map_err(io)?;
        if found[..] != promised[..] {
            let what = format!("checksum of the file is {found:02X?}, promised was {promised:02X?}");
            return Err(VerifyError::Corrupt { file: path.to_owned(), what });
        }
    }
    let found = read(&AtomicBool::new(false))?;
    found.check(path, expected)?;
    Ok(found)
}

/// The crc32c of a whole file as RocksDB's `FileChecksumGenCrc32c` writes it into a MANIFEST: 4
/// bytes, most significant first.
///
/// # Errors
///
/// When the file cannot be read.
pub fn file_checksum(path: &Path) -> std::io::Result<[u8; 4]> {
    Ok(summary_of::<Crc32c>(&Object::open(path)?)?.checksum.to_be_bytes())
}

mod compare;
#[allow(unsafe_code)] // passes byte ranges and a collector to the shim
mod read;
