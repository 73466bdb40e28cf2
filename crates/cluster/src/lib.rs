//! Who does what in a federation of servers that compact for one another.
//!
//! Load reports and the registry of servers, the coordinator, the owner's and the worker's side of
//! a job. Who belongs and who leads is known from [`ecotone_membership`]; the leader coordinates. Decisions are not made here: [`ecotone_policy::machine::PolicyCore`] is a state machine
//! of events and commands, and this crate is its interpreter. Bytes and calls travel by
//! [`ecotone_transport`]. A store is reached only through [`ecotone_engine`]'s interfaces for
//! offloaded compactions.
//!
//! What must never be in it: decisions (policy), RocksDB (engine, rocks), client protocols
//! (resp), configuration files and process wiring (server).
//!
//! # What holds whatever fails
//!
//! A job either ends with tables that are complete, durable and verified, or its compaction runs on
//! the owner. No failure of a worker, of the coordinator or of the network reaches the store or a
//! foreground operation.

mod activity;
pub mod config;
mod convert;
mod coordinator;
pub mod copies;
pub mod error;
mod federation;
mod finished_jobs;
mod member;
mod outputs;
mod owner;
mod placement_queue;
mod registry;
mod reports;
mod services;
mod statistics;
pub mod steps;
mod worker;
mod worker_jobs;

pub use activity::{Activity, KnownServer, LoadSource, LocalLoad, Writers};
pub use config::{Limits, Options};
pub use ecotone_transport::PROTOCOL_VERSION;
pub use ecotone_transport::enrollment::Introduction;
pub use error::{Error, Result};
pub use federation::{Federation, StoreOffload, join_federation};
pub use finished_jobs::{JobEnded, JobObserver, JobOutcome};
pub use statistics::FederationStatistics;
pub use worker_jobs::free_bytes;
