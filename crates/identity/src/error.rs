//! Errors of identities, by what the operator should do.

use std::path::{Path, PathBuf};

use crate::refusal::Refusal;

/// Result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no identity, token or certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operator must do something else: says what.
    #[error("{0}")]
    Usage(String),
    /// The authority does not take a token.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// A file of this server.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as an infinitive.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file of this server is not what was written.
    #[error("{} is damaged: {what}; restore the folder, or remove it and join anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The sealed authority does not open.
    #[error("the sealed authority cannot be opened: {0}")]
    Sealed(&'static str),
    /// What another server sent is no certificate, or not the one that was asked for.
    #[error("{0}")]
    Certificate(String),
    /// The library that signs or verifies refuses it.
    #[error("cannot {action}: {what}")]
    Crypto {
        /// What was tried, as an infinitive.
        action: &'static str,
        /// The library's answer.
        what: String,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, what: impl std::fmt::Display) -> Error {
        Error::Damaged { path: path.to_owned(), what: what.to_string() }
    }

    pub(crate) fn crypto(action: &'static str, what: impl std::fmt::Display) -> Error {
        Error::Crypto { action, what: what.to_string() }
    }

    /// A short name of the kind, for counters by reason and for the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Usage(_) => "usage",
            Error::Refused(refusal) => refusal.name(),
            Error::Io { .. } => "io",
            Error::Damaged { .. } => "damaged",
            Error::Sealed(_) => "sealed",
            Error::Certificate(_) => "certificate",
            Error::Crypto { .. } => "crypto",
        }
    }
}
