//! Decisions of placement, garbage collection, dedup and compression.

#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "../common/mod.rs"]
mod common;
mod compression;
mod decisions;
mod dedup_accuracy;
mod dedup_candidates;
mod dedup_golden;
mod dedup_machine;
mod dedup_properties;
mod gc_golden;
mod gc_properties;
mod golden;
mod machine;
mod names;
mod power;
mod predictor;
mod queue_order;
mod rate;
mod regression;
