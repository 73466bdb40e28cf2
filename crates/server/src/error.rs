//! Errors of the daemon. All of them end the start; none comes later.

/// Result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operator must change an option.
    #[error("{0}")]
    Configuration(String),
    /// The store could not be opened or closed.
    #[error("store: {0}")]
    Store(#[from] ecotone_engine::Error),
    /// The federation could not be started.
    #[error("federation: {0}")]
    Federation(#[from] ecotone_offload::Error),
    /// Energy or cores could not be set up.
    #[error("power: {0}")]
    Power(#[from] ecotone_power::PowerError),
    /// The system refused a thread.
    #[error("cannot start a thread for {what}: {source}")]
    Thread {
        /// What the thread was for.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}
