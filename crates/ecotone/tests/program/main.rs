//! The real program and its commands.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod backup;
mod bench_server;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod compact;
mod copies;
mod counting;
mod energy;
mod federation_backup;
mod inspection;
mod lab_cluster;
mod lab_concerto;
mod lab_copies;
mod replica_reads;
mod scripts;
mod serve;
mod small_device;
#[path = "../../../engine/tests/common/tmpfs.rs"]
#[allow(dead_code)] // the tests of the engine use the rest
mod tmpfs;

/// Held while a lab measures.
static LAB: std::sync::Mutex<()> = std::sync::Mutex::new(());
