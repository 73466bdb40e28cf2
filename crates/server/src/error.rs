//! Errors of the daemon, which end the start, and those of backups.

use std::path::PathBuf;

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
    Federation(#[from] ecotone_cluster::Error),
    /// Who this server is could not be read, or no federation lets it in.
    #[error("identity: {0}")]
    Identity(#[from] ecotone_identity::Error),
    /// The log of the federation cannot be used or begun.
    #[error("federation: {0}")]
    Membership(#[from] ecotone_membership::Error),
    /// Energy or cores could not be set up.
    #[error("power: {0}")]
    Power(#[from] ecotone_energy::EnergyError),
    /// The folder of a store could not be made.
    #[error("cannot make the folder {}: {source}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Shards that cannot be held together.
    #[error("{0}")]
    Shard(#[from] ecotone_keyspace::ShardError),
    /// Copies of shards cannot be driven.
    #[error("replication: {0}")]
    Copies(#[from] ecotone_replication::Error),
    /// The system refused a thread.
    #[error("cannot start a thread for {what}: {source}")]
    Thread {
        /// What the thread was for.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Why there is no backup, or nothing was restored. What was there before is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The system refused something: of a full device, free some; then run it again, and it goes on
    /// from there.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It would be wrong to go on: says why, and what to do.
    #[error("{0}")]
    Refused(String),
    /// What is to be copied cannot be had: says why, and what to do.
    #[error("{0}")]
    Source(String),
    /// Who was asked has it no more, or cannot be asked: another server may have it by now. Says why.
    #[error("{0}")]
    Gone(String),
    /// What lies in the folder of backups is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// Whoever asked for it wants it no more.
    #[error("the backup was ended before it was complete: run it again, and it goes on from there")]
    Ended,
}

impl BackupError {
    /// The system refused `action` with `path`.
    pub(crate) fn io(action: &'static str, path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.to_path_buf(), source }
    }
}
