//! Inspections of whole stores: sound ones, damaged ones, and those of killed processes.
#![allow(clippy::unwrap_used)] // a test fails where it is surprised

#[path = "../../../engine/tests/common/mod.rs"] // one copy for both crates
mod common;

mod compressed;
mod duplicates;
mod repair;
mod repair_killed;
mod repair_segments;
mod reports;
mod verify;
