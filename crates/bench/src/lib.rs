//! Workloads and what they run against: the room that asks "how fast, at what cost?".
//!
//! A [`workload`] is a pure generator of operations. A [`driver`] runs it with threads against a [`target`] (our store, or
//! RocksDB with nothing of ours in between) and times every operation. [`measure`] reads what the run cost the machine.
//! [`command`] puts these together as `ecotone bench`. The [`lab`] plays unequal servers on one machine, and [`report`] draws what
//! it saw.
//!
//! Never in this room: anything a store or a federation needs in order to work. Nothing below depends on it.

pub mod command;
pub mod driver;
mod error;
pub mod lab;
pub mod measure;
pub mod report;
pub mod target;
pub mod workload;

pub use ecotone_server::record;
pub use error::{Error, Result};
