//! Workloads and what they run against: how fast a store is, and at what cost.
//!
//! A [`workload`] is a pure generator of operations. A [`driver`] runs it with threads against a
//! [`target`] (our store, RocksDB alone, or a server of the Redis protocol) and times every
//! operation. [`measure`] reads what the run cost the machine. [`command`] puts these together as
//! `ecotone bench`, and [`report`] draws what it measured.
//!
//! **Never in this crate:** anything a store or a federation needs in order to work, and anything
//! of the lab, which stands on it.

pub mod command;
pub mod driver;
mod error;
pub mod measure;
pub mod report;
pub mod target;
pub mod workload;

pub use error::{Error, Result};
