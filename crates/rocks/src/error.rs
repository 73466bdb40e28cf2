//! What can go wrong in the shim, by what the caller can do about it.

/// The result of a call into the shim.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the shim.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// RocksDB refused. The message is RocksDB's; retrying without a change will not help.
    #[error("RocksDB refused to {action}: {message}")]
    RocksDb {
        /// What was asked of RocksDB.
        action: &'static str,
        /// RocksDB's own words.
        message: String,
    },
    /// Bytes that came from another process cannot be what they claim to be. Drop them and fall
    /// back to a local job.
    #[error("malformed {what}: {message}")]
    Malformed {
        /// What the bytes should have been.
        what: &'static str,
        /// Where they stop making sense.
        message: String,
    },
    /// The linked RocksDB is not the one that this shim was written for. Nothing in this crate may
    /// be used; build again with the pinned version.
    #[error("this RocksDB does not fit the shim: {0}; build with the pinned version of rust-librocksdb-sys")]
    Unfit(String),
    /// A path holds a NUL byte, which no file system accepts.
    #[error("the path {0:?} holds a NUL byte")]
    NulInPath(std::path::PathBuf),
}
