//! Why a token is not taken.

/// Why a token is not taken. That it is spent, the federation's log knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It was not issued by this authority, or was altered.
    #[error(
        "the token is unknown here: it is of another federation, or not what was issued; get a new one with `ecotone cluster token`"
    )]
    UnknownToken,
    /// Its hour is over.
    #[error("the token is no longer good: it was for an hour; get a new one with `ecotone cluster token`")]
    ExpiredToken,
}

impl Refusal {
    /// A short name, for counters by reason and for the wire.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::UnknownToken => "unknown-token",
            Refusal::ExpiredToken => "expired-token",
        }
    }
}
