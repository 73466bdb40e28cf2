//! Messages about copies between servers in one process, with real connections and certificates.

#![allow(clippy::unwrap_used)] // a test may panic

mod carrying;
mod common;
mod fetching;
