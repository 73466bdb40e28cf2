//! The job that an owner sends and the result that a worker returns, as plain data.
//!
//! RocksDB exchanges both as opaque bytes (`CompactionService::schedule`, `open_and_compact`,
//! `CompactionService::wait`). An owner must look into a result before it hands it to RocksDB: what
//! RocksDB finds wrong after a reported success becomes a background error that stops the store.
//!
//! Bytes that come from another process are never trusted: whatever they are, parsing ends in a
//! value or in [`crate::Error::Malformed`].

use crate::Result;

/// What RocksDB asks a worker to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteInput {
    /// The column family. RocksDB 11.12's worker crashes when the owner's OPTIONS file does not
    /// name it, so compare first.
    pub cf_name: String,
    /// Names of all input tables, without directory.
    pub input_files: Vec<String>,
    /// The level that the output goes to.
    pub output_level: i32,
    /// User key where the output begins; `None` without limit.
    pub begin: Option<Vec<u8>>,
    /// User key before which the output ends; `None` without limit.
    pub end: Option<Vec<u8>>,
    /// Sequence numbers of live snapshots, ascending.
    pub snapshots: Vec<u64>,
    /// The owner's store identity, kept across restarts.
    pub db_id: String,
    /// The number of the OPTIONS file that the worker reads.
    pub options_file_number: u64,
    /// The oldest MANIFEST that the worker may work from; 0 when the owner set no floor.
    pub min_manifest_file_number: u64,
    /// How many bytes of that MANIFEST the worker must have seen.
    pub min_manifest_file_bytes: u64,
}

impl RemoteInput {
    /// Reads the bytes that `CompactionService::schedule` was given.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Malformed`] when they are not such bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        codec::parse_input(bytes)
    }
}

/// What a worker returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteResult {
    /// Whether the compaction succeeded; RocksDB's words when not.
    pub status: std::result::Result<(), String>,
    /// The directory of the outputs, as the owner will rename from it.
    pub output_path: std::path::PathBuf,
    /// The level that the outputs are for.
    pub output_level: i32,
    /// The output tables in key order.
    pub output_files: Vec<RemoteOutput>,
    /// What the job did.
    pub stats: RemoteStats,
}

/// One output table of a job. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteOutput {
    /// Name without directory. [`RemoteResult::parse`] refuses all but `<digits>.sst`.
    pub file_name: String,
    /// Size of the file.
    pub file_bytes: u64,
    /// Smallest sequence number.
    pub smallest_seqno: u64,
    /// Largest sequence number.
    pub largest_seqno: u64,
    /// Where the table begins: user key and 8 bytes of sequence number and kind.
    pub smallest_internal_key: Vec<u8>,
    /// Where the table ends, in the same form.
    pub largest_internal_key: Vec<u8>,
    /// Checksum of the whole file, empty when none was made.
    pub file_checksum: Vec<u8>,
    /// The function of that checksum.
    pub file_checksum_func_name: String,
    /// Entries, deletions included.
    pub entries: u64,
    /// Deletions of all kinds.
    pub deletions: u64,
    /// Deletions of ranges.
    pub range_deletions: u64,
    /// Bytes of all user keys with their 8 bytes of sequence number and kind.
    pub raw_key_bytes: u64,
    /// Bytes of all values.
    pub raw_value_bytes: u64,
    /// Where the data blocks end and index, filter and properties begin; 0 when unknown.
    pub tail_offset: u64,
    /// The identity of the table, from the worker's session and file number.
    pub unique_id: [u64; 2],
    /// Hash of all keys and values, 0 when none was made.
    pub paranoid_hash: u64,
    /// Whether RocksDB is to compact the table again soon.
    pub marked_for_compaction: bool,
    /// Whether the table goes to the level above the output level.
    pub proximal_level: bool,
}

/// What a job did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Bytes that the worker read.
    pub bytes_read: u64,
    /// Bytes that the worker wrote.
    pub bytes_written: u64,
    /// Entries read from the inputs.
    pub input_records: u64,
    /// Whether that count is exact: only then does RocksDB compare it with the inputs' own.
    pub input_records_exact: bool,
    /// Entries written.
    pub output_records: u64,
    /// Output tables.
    pub output_files: u64,
    /// Bytes of the output tables.
    pub output_bytes: u64,
    /// Time of the job, in microseconds.
    pub elapsed_us: u64,
    /// What RocksDB calls CPU time, in microseconds. RocksDB 11.12's worker puts the elapsed time
    /// here: who needs CPU time measures the worker's threads.
    pub cpu_us: u64,
    /// Keys that could not be parsed.
    pub corrupt_keys: u64,
}

impl RemoteResult {
    /// Reads the bytes that `open_and_compact` returned.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Malformed`] when they are not such bytes, or name an output in a way that
    /// could lead out of its directory.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        codec::parse_result(bytes)
    }

    /// The same result with its outputs in another directory: for an owner that fetched them. The
    /// path is the one that the owner's RocksDB renames from, so it must be on the file system of
    /// the store.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Malformed`] when `bytes` are not a result.
    pub fn with_output_path(bytes: &[u8], new_path: &std::path::Path) -> Result<Vec<u8>> {
        codec::with_output_path(bytes, new_path)
    }
}

/// Makes an owner keep the outputs of remote jobs under `<store>/session_tmp/`, where it removes
/// what an earlier run left when it opens. The worker must be given the same option
/// (`use_session_tmp_dir_for_remote_compaction` comes to it with the owner's OPTIONS file).
pub fn keep_outputs_in_session_directory(options: &mut rust_rocksdb::Options) {
    codec::keep_outputs_in_session_directory(options);
}

#[allow(unsafe_code)] // passes byte ranges to the shim
mod codec;
