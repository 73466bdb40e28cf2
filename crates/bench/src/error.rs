//! What can go wrong in a benchmark, by what the caller should do about it.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a benchmark.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options contradict each other or are out of range: fix them and start again.
    #[error("{0}")]
    Options(String),
    /// The store refused or failed an operation. The run was stopped; its numbers are worth
    /// nothing.
    #[error("{target} failed at {operation}: {reason}")]
    Target {
        /// Which target: `engine` or `rocksdb`.
        target: &'static str,
        /// What was asked of it.
        operation: &'static str,
        /// The target's own words.
        reason: String,
    },
    /// A server did not do what it was asked, or is not there: the reason says what to do. The run
    /// was stopped.
    #[error("the server at {address}: {reason}")]
    Server {
        /// Where it was looked for.
        address: String,
        /// What happened, and the next step.
        reason: String,
    },
    /// The file system failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// A thread of the driver panicked: a defect; the panic's message went to standard error.
    #[error("a thread of the benchmark panicked; its message is on standard error")]
    Panicked,
    /// A child process of a comparison failed or printed something that is no report.
    #[error("the run of {target} in a process of its own failed: {reason}")]
    Child {
        /// Which target it ran.
        target: &'static str,
        /// Its exit status, or what was wrong with its output.
        reason: String,
    },
}

impl Error {
    pub(crate) fn options(message: impl Into<String>) -> Self {
        Error::Options(message.into())
    }

    pub(crate) fn server(address: impl std::fmt::Display, reason: impl Into<String>) -> Self {
        Error::Server { address: address.to_string(), reason: reason.into() }
    }

    pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io { operation, path: path.into(), source }
    }

    pub(crate) fn target(target: &'static str, operation: &'static str, reason: impl std::fmt::Display) -> Self {
        Error::Target { target, operation, reason: reason.to_string() }
    }
}
