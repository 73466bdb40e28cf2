//! Errors of a federation, by what the caller should do.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ecotone_policy::machine::DeclineReason;
use ecotone_transport::Error as TransportError;

/// Result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation between servers failed. Everything but [`Error::Configuration`] and
/// [`Error::Listen`] ends as a local compaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operator must change something; until then the server does not start, or stays out of
    /// the federation.
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
    /// The federation has as many servers as its coordinator takes. Everything is local until one
    /// of them is gone.
    #[error("{0}")]
    FederationFull(String),
    /// Its part in the control plane. The server does not start.
    #[error(transparent)]
    Membership(#[from] ecotone_membership::Error),
    /// Bytes or a call did not arrive.
    #[error(transparent)]
    Transport(#[from] TransportError),
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
    /// The shard is in another epoch than the job, or this server is its primary no more.
    #[error("the job belongs to an epoch of its shard that has ended")]
    EpochEnded,
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
        Error::Transport(TransportError::unreachable(peer, what))
    }

    /// Whether the connection to the peer is of no further use.
    pub(crate) fn is_of_connection(&self) -> bool {
        matches!(
            self,
            Error::Silent { .. }
                | Error::Transport(TransportError::Unreachable { .. } | TransportError::Version { .. })
        )
    }

    /// A short name of the kind, for counters by reason.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Listen { .. } | Error::Configuration(_) => "configuration",
            Error::Membership(error) => error.kind(),
            Error::FederationFull(_) => "federation-full",
            Error::Transport(error) => error.kind(),
            Error::Declined(..) => "declined",
            Error::Deadline { .. } => "deadline",
            Error::Silent { .. } => "silent",
            Error::Worker(_) => "worker-failed",
            Error::BadResult(_) => "bad-result",
            Error::Cancelled => "cancelled",
            Error::EpochEnded => "epoch-ended",
            Error::Io { source, .. } if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                "disk-full"
            }
            Error::Io { .. } => "io",
        }
    }
}
