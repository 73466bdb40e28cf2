//! Several servers of a federation in one process, with real connections, certificates and logs.

#![allow(clippy::unwrap_used)] // a test may panic

mod common;
mod federation;
mod loss;
mod mishaps;
mod upgrades;
