//! Replication of a shard, in virtual time: servers that run `replica` as the daemon does, on
//! stores, networks and clocks that are made up.
//!
//! The control plane is a register here, sometimes out of reach, that applies entries as the real
//! one does; its own simulation is beside this one. The same seed gives the same trace.

mod check;
mod store;
mod world;

pub use check::{Check, Invariant, Violation};
pub use world::{Faults, Profile, Report, run};
