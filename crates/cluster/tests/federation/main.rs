//! Jobs between servers: with honest workers and hostile ones, with faults of the network and kills.

#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../common/mod.rs"]
mod common;
mod coordinator_moves;
mod copies;
mod duplicates;
mod faults;
mod garbage_collection;
mod happy;
mod hostile_worker;
mod identity;
mod kills;
mod made;
mod names;
mod reports;
mod two_stores;
mod versions;
