//! Stores as they are used: opened, written, read, scanned, killed, and opened by later versions.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod cleanup;
#[path = "../common/mod.rs"]
mod common;
mod compressed_values;
mod descriptors;
mod durability;
mod expired;
mod failures;
mod format;
mod model;
mod non_blocking;
mod observers;
mod open;
mod scans;
mod uncommitted;
mod values;
mod written_back;
