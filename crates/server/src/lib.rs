//! The daemon: one server of a federation, wired together.
//!
//! This room opens a store, meters its energy, joins a federation, watches all three once a second and tells what it sees as
//! [`record`]s. What clients will speak to it belongs to the protocol's room; the workload that the lab runs inside a
//! server belongs to the bench.
//!
//! What must never be in it: decisions (policy), how a job is carried out (offload), how values are stored (engine).

mod colocated;
mod daemon;
mod error;
mod host_load;
mod monitor;
mod options;
pub mod record;
mod sample_base;
mod store_options;

pub use daemon::{Daemon, Sums};
pub use ecotone_offload::free_bytes;
pub use error::{Error, Result};
pub use monitor::{Progress, RecordSink};
pub use options::{EmulatedCores, ServeOptions};
pub use store_options::{STORE_OPTIONS, set_store_option, store_options};
