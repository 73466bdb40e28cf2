//! The daemon: one server of a federation, wired together.
//!
//! This room reads the [`config`]uration, opens a store, meters its energy, joins a federation, serves clients, watches all of it once a
//! second and tells what it sees as [`record`]s. What clients speak belongs to the protocol's room; the workload that the lab
//! runs inside a server belongs to the bench.
//!
//! What must never be in it: decisions (policy), how a job is carried out (offload), how values are stored (engine).

mod clients;
mod colocated;
pub mod config;
mod daemon;
mod error;
mod host;
mod host_load;
mod host_memory;
mod monitor;
mod options;
pub mod record;
mod requests;
mod sample_base;
mod store_options;

pub use daemon::{Daemon, Sums};
pub use ecotone_offload::free_bytes;
pub use error::{Error, Result};
pub use monitor::{Progress, RecordSink};
pub use options::{ClientOptions, EmulatedCores, ServeOptions};
pub use requests::Requests;
pub use store_options::{STORE_OPTIONS, StoreOption, set_store_option, store_options};
