//! A store looked at from outside: where its bytes are, whether all of them are as they were
//! written, and what can be saved where they are not.

mod duplicates;
mod findings;
pub(crate) mod live;
mod named;
pub(crate) mod repair;
mod space;
mod verify;

pub use duplicates::{CountedLevel, DuplicateCensus};
pub use findings::{Checking, Finding, FindingKind, VerifyReport};
pub use repair::{LostTable, LostValue, LostWal, ManifestState, RepairReport, Repairing, repair, repair_leaving_out};
pub use space::{SegmentSpace, Space};
pub use verify::verify;
