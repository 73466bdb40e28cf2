//! The errors of a value log.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bytes that were read are not those that were written.
    #[error("corrupt data in {}: {detail}", location.as_deref().unwrap_or("the store"))]
    Corrupt {
        /// The file, where it is known.
        location: Option<String>,
        /// What does not match.
        detail: String,
    },
    /// The device is full.
    #[error("no space left for the store: {detail}: free space on the device")]
    DiskFull {
        /// What was tried.
        detail: String,
    },
    /// The operating system refused an operation.
    #[error("cannot {action} {path:?}: {detail}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The reason.
        detail: String,
    },
    /// What is packed may be as it was written, but there is no memory to unpack it.
    #[error("no memory to decompress what is in {location}: {detail}")]
    NoMemory {
        /// The file.
        location: String,
        /// What could not be had.
        detail: String,
    },
    /// A sync failed earlier, and nothing is written any more.
    #[error("the store stopped taking writes after a background error: {detail}: remove the cause, then reopen it")]
    Background {
        /// The first error.
        detail: String,
    },
    /// What was laid out for a segment of relocated values does not hold any more.
    #[error("values could not be moved: {detail}")]
    NotMoved {
        /// What has changed.
        detail: String,
    },
    /// It would block, and the caller does not wait.
    #[error("this cannot be had without waiting")]
    WouldBlock,
}

impl Error {
    /// What the operating system said of `action` on `path`.
    pub fn io(action: &'static str, path: &Path, error: &std::io::Error) -> Self {
        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            return Self::DiskFull { detail: format!("cannot {action} {path:?}: {error}") };
        }
        Self::Io { action, path: path.to_path_buf(), detail: error.to_string() }
    }
}
