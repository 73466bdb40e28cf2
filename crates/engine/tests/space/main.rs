//! Disks that are full or nearly so, limits of space, and space that is reserved.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

#[path = "../common/mod.rs"]
mod common;
mod full_disk;
mod limits;
mod reserved;
