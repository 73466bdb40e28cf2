//! Garbage collection of the value log: which segments may go, and what makes those go that are
//! mostly garbage.
//!
//! - [`references`], [`readers`], [`removal`]: when a segment may go. [`uncommitted`]: tables that
//!   may still come to refer to one.
//! - [`copying`]: compactions copy values out of the candidates. [`worker`]: the thread that sets
//!   these, and compacts the tables that refer to them, as [`ecotone_policy::gc::GcMachine`] says.
//!   [`moving`], [`places`]: a worker merges, and says where values are to be copied.
//!   [`removed_ranges`]: segments of collections that were deleted.
//! - [`throttle`]: writes are no faster than garbage can be collected. [`urgency`]: who waits for
//!   it. [`notifier`]: what wakes the thread.

pub(crate) mod copying;
pub(crate) mod moving;
pub(crate) mod notifier;
pub(crate) mod places;
pub(crate) mod readers;
pub(crate) mod references;
pub(crate) mod removal;
pub(crate) mod removed_ranges;
pub(crate) mod throttle;
mod uncommitted;
pub(crate) mod urgency;
pub(crate) mod worker;

pub use places::Mover;
pub use removal::ValueLogProperties;
