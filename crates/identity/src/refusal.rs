//! Why the record of tokens and servers takes an entry for nothing.

use ecotone_types::ServerId;

/// Why an entry changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No such token was issued, or it is long over.
    #[error(
        "the token is unknown here: it is of another federation, or was issued long ago; get a new one with `ecotone cluster token`"
    )]
    UnknownToken,
    /// Another server has spent it.
    #[error("the token is spent: each is good for one server; get a new one with `ecotone cluster token`")]
    SpentToken,
    /// Its hour is over.
    #[error("the token is no longer good: it was for an hour; get a new one with `ecotone cluster token`")]
    ExpiredToken,
    /// A server of this name is there.
    #[error(
        "the name {name} is that of server {member}; give another one (--name), or `ecotone cluster remove-server {name}` first"
    )]
    NameTaken {
        /// The name.
        name: ServerId,
        /// The id of whose it is.
        member: String,
    },
    /// No such server is one of the federation.
    #[error("{0} is no server of this federation, or no longer one; to join anew it needs a token and a new folder")]
    UnknownServer(String),
    /// The federation has its first server.
    #[error("the federation has servers already; others join with a token")]
    AlreadyFounded,
    /// A limit is reached.
    #[error("there are {0} already, as many as a federation keeps; wait an hour, or remove some")]
    Full(&'static str),
}

impl Refusal {
    /// A short name, for counters by reason and for the wire.
    pub fn name(&self) -> &'static str {
        match self {
            Refusal::UnknownToken => "unknown-token",
            Refusal::SpentToken => "spent-token",
            Refusal::ExpiredToken => "expired-token",
            Refusal::NameTaken { .. } => "name-taken",
            Refusal::UnknownServer(_) => "unknown-server",
            Refusal::AlreadyFounded => "already-founded",
            Refusal::Full(_) => "full",
        }
    }
}
