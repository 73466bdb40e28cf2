//! Why a merge that is worth it has not begun.

use ecotone_policy::dedup::forecast::Forbidden;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PutOff {
    /// Writers would have to wait for it.
    Forbidden(Forbidden),
    /// What it writes does not fit beside what it replaces.
    NoRoom,
    /// Other compactions have its tables.
    TablesBusy,
    /// The merges before it freed less than was expected of them, or failed.
    BackedOff,
}

impl PutOff {
    /// All that are told. [`Forbidden::RateUnknown`] is over in a second.
    pub(super) const ALL: [Self; Forbidden::LASTING.len() + 3] = {
        let [slowed, l0_pressed, pending_bytes, would_stall] = Forbidden::LASTING;
        [
            Self::Forbidden(slowed),
            Self::Forbidden(l0_pressed),
            Self::Forbidden(pending_bytes),
            Self::Forbidden(would_stall),
            Self::NoRoom,
            Self::TablesBusy,
            Self::BackedOff,
        ]
    };

    /// As it is told.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Forbidden(why) => why.name(),
            Self::NoRoom => "no-room",
            Self::TablesBusy => "tables-busy",
            Self::BackedOff => "backed-off",
        }
    }
}
