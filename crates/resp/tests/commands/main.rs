//! What each command answers and stores, and that all of it stays fast and exact.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod churn;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod compact;
mod compressed;
mod federation;
mod fields;
mod hashes;
mod key_count;
mod keys;
mod large_hashes;
mod large_lists;
mod large_sets;
mod lists;
mod removed_ranges;
mod replica_reads;
mod sets;
mod shards;
mod sorted_sets;
mod strings;
mod time;
mod transactions;
