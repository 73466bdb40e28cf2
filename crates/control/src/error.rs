//! What can go wrong beyond a refusal.

use crate::codec::Malformed;

/// Why a node cannot go on. The server goes on with the last map it has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Update this build, or restore the log: skipping the entry would be to have another map than
    /// the others.
    #[error("control plane: entry {index} cannot be applied by this build: {why}")]
    Entry {
        /// Where in the log.
        index: u64,
        /// What is wrong with it.
        why: Malformed,
    },
    /// A map that was read or received is damaged.
    #[error("control plane: {0}")]
    Map(Malformed),
    /// Raft refused what it should take: a bug.
    #[error("control plane: {0}")]
    Raft(String),
}

impl Error {
    pub(crate) fn raft(error: impl std::fmt::Display) -> Self {
        Self::Raft(error.to_string())
    }
}
