//! Losses of power on a made-up disk, at every moment and at single ones.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

#[path = "../common/mod.rs"]
mod common;
mod crash_points;
mod crash_points_together;
mod moved_values;
mod power_loss;
mod prefixes;
