//! What compacts by itself: garbage collection, merges of duplicates, idle work; here and on workers.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

#[path = "../common/mod.rs"]
mod common;
mod dedup;
mod dedup_offload;
mod dedup_sketches;
mod gc;
mod gc_failures;
mod gc_offload;
mod idle;
mod offload;
