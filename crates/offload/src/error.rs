//! Errors of a federation, by what the caller should do.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ecotone_policy::machine::DeclineReason;

/// Result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation between servers failed. Everything but [`Error::Configuration`] and [`Error::Listen`] ends as a local compaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operator must change something; until then the server does not start, or stays out of the federation.
    #[error("{0}")]
    Configuration(String),
    /// Nothing can listen there; until it can the server does not start.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The federation has as many servers as its coordinator takes. Everything is local until one of them is gone.
    #[error("{0}")]
    NoRoom(String),
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
    /// A token that does not cover what was asked for.
    #[error("refused: {0}")]
    Unauthorised(String),
    /// The worker will not take the job now.
    #[error("declined ({0}): {1}")]
    Declined(DeclineReason, String),
    /// The job outlived its deadline.
    #[error("the job took longer than its deadline of {seconds:.1} s")]
    Deadline {
        /// The deadline, from the offer on.
        seconds: f64,
    },
    /// The worker fell silent.
    #[error("no sign of life for {seconds:.1} s")]
    Silent {
        /// [`crate::Limits::heartbeat_timeout`].
        seconds: f64,
    },
    /// The worker reported that the job failed there.
    #[error("the worker failed: {0}")]
    Worker(String),
    /// What the worker sent is not what a compaction of these inputs can give.
    #[error("bad result: {0}")]
    BadResult(String),
    /// The job was cancelled: the store is closing.
    #[error("cancelled")]
    Cancelled,
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
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn unreachable(peer: impl Into<String>, what: impl std::fmt::Display) -> Error {
        Error::Unreachable { peer: peer.into(), what: what.to_string() }
    }

    /// A short name of the kind, for counters by reason.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Listen { .. } | Error::Configuration(_) => "configuration",
            Error::NoRoom(_) => "no-room",
            Error::Unreachable { .. } => "unreachable",
            Error::Version { .. } => "version",
            Error::Unauthorised(_) => "unauthorised",
            Error::Declined(..) => "declined",
            Error::Deadline { .. } => "deadline",
            Error::Silent { .. } => "silent",
            Error::Worker(_) => "worker-failed",
            Error::BadResult(_) => "bad-result",
            Error::Cancelled => "cancelled",
            Error::Io { source, .. } if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                "disk-full"
            }
            Error::Io { .. } => "io",
        }
    }
}
