//! A store looked at from outside: where its bytes are, whether all of them are as they were written, and what can be saved
//! where they are not.

mod duplicates;
pub(crate) mod live;
mod named;
mod repair;
mod space;
mod verify;

pub use duplicates::{CountedLevel, DuplicateCensus};
pub use repair::{LostTable, LostValue, LostWal, ManifestState, RepairReport, Repairing, repair, repair_leaving_out};
pub(crate) use repair::{first_wal, unnamed_tables};
pub use space::{SegmentSpace, Space};
pub use verify::{Checking, Finding, FindingKind, VerifyReport, verify};
