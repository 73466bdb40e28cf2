//! Inspections of whole stores: whether all bytes are as they were written ([`verify`]), what can
//! be saved where they are not ([`repair`]), where the bytes are ([`space()`]), and what newer
//! versions shadow ([`count_duplicates`]).
//!
//! What must never be in here: anything that a running store needs, so that the engine never
//! depends on this crate; any change to the store that is inspected. `verify` opens it read-only,
//! `repair` reads its files and writes a new store beside it. A store that is open for writing is
//! verified by a checkpoint of it ([`verify_running`]).
//!
//! The files are read through `ecotone_engine::offline`. The reports are printed as JSON by
//! `ecotone verify`, `repair` and `space`, and sent by `INSPECT`: the names of their fields are an
//! interface, which `tests/` pins.
//!
//! Threads: any; each call runs on its caller's. Failure: what is wrong with a store is in a
//! report; an error is what keeps the inspection from going on.

mod duplicates;
mod findings;
mod references;
mod repair;
mod space;
mod verify;

pub use duplicates::{CountedLevel, DuplicateCensus, count_duplicates};
pub use ecotone_engine::offline::survey::ManifestState;
pub use findings::{Checking, Finding, FindingKind, VerifyReport};
pub use repair::report::{LostTable, LostValue, LostWal, RepairReport, Repairing};
pub use repair::{repair, repair_leaving_out};
pub use space::{SegmentSpace, Space, space};
pub use verify::{verify, verify_running};
