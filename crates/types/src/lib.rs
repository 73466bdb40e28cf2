//! The vocabulary that all crates share: quantities with their units, names of servers and jobs,
//! what a thread is working on, and what a compaction is for.
//!
//! **Never in this crate:** decisions, IO, clocks, threads, and any other crate of the workspace. A
//! type belongs here when at least two crates speak of it and neither depends on the other.

mod duty;
mod ids;
mod purpose;
pub mod units;

pub use duty::{CoreClass, Duty, DutyObserver, Task};
pub use ids::{InvalidServerName, JobId, ServerId};
pub use purpose::JobPurpose;
