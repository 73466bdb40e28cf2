//! Why a merge that is worth it has not begun, or was not made.

use ecotone_policy::dedup::forecast::Forbidden;
use rust_rocksdb::{Error, ErrorKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deferral {
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
    /// All that are told. [`Forbidden::RateUnknown`] is over in a second.
    pub(super) const ALL: [Self; Forbidden::LASTING.len() + 3] = {
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
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Forbidden(why) => why.name(),
            Self::NoSpace => "no-space",
            Self::TablesBusy => "tables-busy",
            Self::BackedOff => "backed-off",
        }
    }
}

/// What to make of a merge that RocksDB did not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeFailure {
    /// RocksDB compacts some of its tables, or has done so meanwhile.
    Conflict,
    /// There is no room for it now.
    NoSpace,
    /// The store closes.
    Closing,
    /// Anything else.
    Failure,
}

impl MergeFailure {
    pub(super) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Aborted | ErrorKind::InvalidArgument => Self::Conflict,
            ErrorKind::CompactionTooLarge => Self::NoSpace,
            ErrorKind::Incomplete | ErrorKind::ShutdownInProgress => Self::Closing,
            _ => Self::Failure,
        }
    }
}
