//! A federation: servers that compact for one another.
//!
//! This room holds load reports, the coordinator, the owner's and the worker's side of a job, and the ranged transport of
//! immutable files between them. Decisions are not made here: [`ecotone_policy::machine::PolicyCore`] is a state machine of
//! events and commands, and this room is its interpreter. A store is reached only through
//! [`ecotone_engine`]'s seams for offloaded compactions.
//!
//! What must never be in it: decisions (policy), RocksDB (engine, rocks-sys), client protocols (resp), configuration files
//! and process wiring (server).
//!
//! # What holds whatever fails
//!
//! A job either ends with tables that are complete, durable and verified, or its compaction runs on the owner. No failure
//! of a worker, of the coordinator or of the network reaches the store or a foreground operation.

mod activity;
mod addresses;
pub mod config;
mod connections;
mod convert;
mod coordinator;
mod counted_stream;
mod disk;
pub mod error;
mod exports;
mod federation;
mod file_client;
mod file_server;
mod heard;
mod outputs;
mod owner;
mod protocol;
mod remote_files;
mod reports;
mod resolve;
mod services;
pub mod steps;
mod traffic;
mod worker;

pub use activity::{Activity, KnownServer, Writers};
pub use config::{Limits, Options};
pub use disk::free_bytes;
pub use error::{Error, Result};
pub use federation::{Federation, FederationStatistics, JobEnded, JobObserver, JobOutcome, LoadSource, LocalLoad};
pub use protocol::PROTOCOL_VERSION;
