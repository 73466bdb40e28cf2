//! Why a merge that is worth it has not begun, or was not made.

use ecotone_types::units::Seconds;

use super::forecast::Forbidden;

/// What meets running compactions is tried again after this time, and then after twice as long each
/// time: six times are 6 s in all.
const FIRST_RETRY: Seconds = Seconds(0.1);

/// No pause is longer than after so many attempts.
const MAX_DOUBLINGS: u32 = 6;

/// Why a merge waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deferral {
    /// Writers would have to wait for it.
    Forbidden(Forbidden),
    /// What it writes does not fit beside what it replaces.
    NoSpace,
    /// Other compactions have its tables.
    TablesBusy,
    /// The merges before it freed less than was expected of them, or failed.
    BackedOff,
}

impl Deferral {
    /// All that are counted. [`Forbidden::RateUnknown`] is over in a second.
    pub const ALL: [Self; Forbidden::LASTING.len() + 3] = {
        let [slowed, l0_backlog, pending_bytes, would_stall] = Forbidden::LASTING;
        [
            Self::Forbidden(slowed),
            Self::Forbidden(l0_backlog),
            Self::Forbidden(pending_bytes),
            Self::Forbidden(would_stall),
            Self::NoSpace,
            Self::TablesBusy,
            Self::BackedOff,
        ]
    };

    /// As it is told.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forbidden(why) => why.name(),
            Self::NoSpace => "no-space",
            Self::TablesBusy => "tables-busy",
            Self::BackedOff => "backed-off",
        }
    }
}

/// Why RocksDB did not make a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeFailure {
    /// It compacts some of the tables, or has done so meanwhile.
    Conflict,
    /// There is no room for it now.
    NoSpace,
    /// The store closes.
    Closing,
    /// Anything else.
    Failure,
}

/// How long what has met running compactions so often before now rests this time.
pub(super) fn retry_pause(attempts: u32) -> Seconds {
    FIRST_RETRY * f64::from(1_u32 << attempts.min(MAX_DOUBLINGS))
}
