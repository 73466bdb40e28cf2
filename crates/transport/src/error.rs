//! Errors between two servers, by what the caller should do.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::security::explained;

/// Result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why bytes or a call did not arrive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operator must change it: nobody can be reached there.
    #[error("{0}")]
    Address(String),
    /// The peer did not answer, answered too late or hung up. It may be well again later.
    #[error("{peer}: {what}")]
    Unreachable {
        /// Name or address of the peer.
        peer: String,
        /// What was tried and how it ended.
        what: String,
    },
    /// The peer speaks another version of the protocol.
    #[error("{peer} speaks protocol version {theirs}, this server {ours}; run the same release of ecotone on both")]
    Version {
        /// Name or address of the peer.
        peer: String,
        /// Version that the peer named.
        theirs: u32,
        /// [`crate::PROTOCOL_VERSION`].
        ours: u32,
    },
    /// The peer gives no certificate; it says why, and what to do.
    #[error("{peer} refuses ({reason}): {what}")]
    Refused {
        /// Address of the peer.
        peer: String,
        /// A name of the reason.
        reason: String,
        /// For people.
        what: String,
    },
    /// The identity of this server, or what it was given as one.
    #[error(transparent)]
    Identity(#[from] ecotone_identity::Error),
    /// A token that does not cover what was asked for.
    #[error("refused: {0}")]
    Unauthorised(String),
    /// A file of this server.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, as an infinitive.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl Error {
    /// An error of a file of this server.
    pub fn io(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }

    /// The peer cannot be reached, or did not answer.
    pub fn unreachable(peer: impl Into<String>, what: impl std::fmt::Display) -> Error {
        Error::Unreachable { peer: peer.into(), what: what.to_string() }
    }

    /// A short name of the kind, for counters by reason.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Address(_) => "configuration",
            Error::Unreachable { .. } => "unreachable",
            Error::Version { .. } => "version",
            Error::Refused { .. } => "refused",
            Error::Identity(_) => "identity",
            Error::Unauthorised(_) => "unauthorised",
            Error::Io { source, .. } if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                "disk-full"
            }
            Error::Io { .. } => "io",
        }
    }
}

/// The innermost cause, which says what happened ("connection refused") where the outer ones say
/// "transport error".
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.downcast_ref::<std::io::Error>().map_or_else(|| innermost.to_string(), explained)
}
