//! Errors of a server's part in the control plane, by what the caller should do.

use std::path::{Path, PathBuf};

use ecotone_control::ids::MemberId;
use ecotone_control::log::LogError;

/// Result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The log in the server's folder cannot be used. The server does not start.
    #[error("{}", of_log(path, source))]
    Log {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        source: LogError,
    },
    /// The log holds what this build cannot read.
    #[error(transparent)]
    Control(#[from] ecotone_control::Error),
    /// A file beside the log.
    #[error(transparent)]
    Identity(#[from] ecotone_identity::Error),
    /// What is in the folder does not fit together, or not to what was asked.
    #[error("{0}")]
    Usage(String),
    /// The system gives no thread or run time.
    #[error("cannot start {what}: {source}")]
    Thread {
        /// For what.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Nobody leads, or the leader does not answer: nothing can be changed now. Try again.
    /// Says so where it may have been decided all the same.
    #[error("no change can be decided now: {0}")]
    NotDecided(String),
    /// It cannot be, as the federation is.
    #[error("{0}")]
    Refused(String),
    /// The server has not got the authority's key.
    #[error("{0} has not got the key of the federation's authority, so it cannot do this: ask one of the voters ({1})")]
    NotAVoter(MemberId, String),
}

/// A failure of the disk names the file that it met; damage says what to do about it.
fn of_log(path: &Path, source: &LogError) -> String {
    match source {
        LogError::Storage(_) => source.to_string(),
        _ => format!("{}: {source}", path.display()),
    }
}

impl Error {
    /// A short name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Log { .. } => "log",
            Error::Control(_) => "control",
            Error::Identity(error) => error.kind(),
            Error::Usage(_) => "usage",
            Error::Thread { .. } => "thread",
            Error::NotDecided(_) => "undecided",
            Error::Refused(_) => "refused",
            Error::NotAVoter(..) => "not-a-voter",
        }
    }
}
