//! Errors of replication, by what the caller should do.

use std::io;
use std::path::{Path, PathBuf};

use ecotone_control::ids::MemberId;
use ecotone_mirror::error::Error as MirrorError;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The other server does not answer, or hung up: ask again later, for what is still missing.
    #[error("{server}: {what}")]
    Unreachable {
        /// Which server.
        server: MemberId,
        /// What was tried and how it ended.
        what: String,
    },
    /// What is asked for is not there, or not any more: begin again from a new offer.
    #[error("not there: {0}")]
    NotThere(String),
    /// The other server does as much as it may: ask again later.
    #[error("busy: {0}")]
    Busy(String),
    /// By its map this server may not have it. Ask again when the map has changed.
    #[error("refused: {0}")]
    Refused(String),
    /// The other server sends what cannot be.
    #[error("{server} sends what cannot be: {what}")]
    Malformed {
        /// Which server.
        server: MemberId,
        /// What is wrong with it.
        what: String,
    },
    /// A file of this server.
    #[error("cannot {action} {path:?}: {source}")]
    Io {
        /// What was tried, as an infinitive.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The files of a copy.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The system gives no thread.
    #[error("cannot start {what}: {source}")]
    Thread {
        /// For what.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The server around cannot do it: why, for people.
    #[error("{0}")]
    Host(String),
    /// What is asked of the federation.
    #[error(transparent)]
    Membership(#[from] ecotone_membership::Error),
    /// This server, or this copy, stops.
    #[error("it stops")]
    Stopped,
}

impl Error {
    /// An error of a file of this server.
    pub fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    /// The other server cannot be reached, or did not answer.
    pub fn unreachable(server: MemberId, what: impl std::fmt::Display) -> Self {
        Self::Unreachable { server, what: what.to_string() }
    }

    /// A short name of the kind, for counters by reason.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::NotThere(_) => "not-there",
            Self::Busy(_) => "busy",
            Self::Refused(_) => "refused",
            Self::Malformed { .. } => "malformed",
            Self::Io { source, .. } | Self::Mirror(MirrorError::Io { source, .. }) if is_full(source) => "disk-full",
            Self::Io { .. } | Self::Mirror(MirrorError::Io { .. }) => "io",
            Self::Thread { .. } => "thread",
            Self::Host(_) => "host",
            Self::Mirror(_) => "files",
            Self::Membership(_) => "federation",
            Self::Stopped => "stopped",
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
