//! Deterministic simulation of the control plane, and in [`replication`] of the copies of shards: servers, network, disks and clocks of a
//! federation in one thread, in virtual time, from a seed.
//!
//! The servers run `control` as the daemon does; what is made up is around them: a [`World`] with a
//! [`disk`] that loses and tears what was not synced, messages that are lost, doubled, late and cut
//! off one way, servers that are killed, stopped, wiped, and whose clocks jump. [`check`] watches
//! all of them and names what is broken. The same seed gives the same trace.
//!
//! **Never in this crate:** clocks, threads, randomness without a seed, and anything that the daemon
//! depends on. It is a tool of tests.

pub mod check;
pub mod disk;
pub mod random;
pub mod replication;
mod world;

pub use check::{Check, Invariant, Violation};
pub use world::{Faults, Plant, Profile, Report, World, run};
