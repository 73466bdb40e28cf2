//! The errors of a copy's files.

use std::io;
use std::path::{Path, PathBuf};

use crate::names::FileName;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed: the kinds are what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation: it may succeed later, or needs people.
    #[error("cannot {action} {path:?}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file of this crate's own is not what any version has written.
    #[error("{path:?} cannot be understood: {what}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file of the store has another length or other bytes than it should: it is fetched again,
    /// or the copy is built anew.
    #[error("{file} is not what it should be: {what}")]
    Mismatch {
        /// Which file.
        file: FileName,
        /// What differs.
        what: String,
    },
    /// A file of the store is not there (any more): whoever asked begins again from what is there.
    #[error("{file} is missing")]
    Missing {
        /// Which file.
        file: FileName,
    },
    /// A bound of this crate is reached: the copy is built anew, or the caller tries again later.
    #[error("{what}: more than {limit}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
}

impl Error {
    /// What the operating system said of `action` on `path`.
    pub fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_path_buf(), source }
    }
}
