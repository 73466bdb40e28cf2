//! Damaged stores: what is refused, and what is dropped with a warning.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod log_damage;
