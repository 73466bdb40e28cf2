//! The daemon: one server of a federation, wired together.
//!
//! This crate reads the [`config`]uration, opens the stores of its shards, meters its energy, joins a federation,
//! serves clients, samples all of it once a second, and shows the samples as [`record`]s and, by
//! HTTP, as metrics and health checks. What clients speak belongs to resp; the workload that the
//! lab runs inside a server belongs to bench.
//!
//! What must never be in it: decisions (policy), how a job is carried out (cluster), how values are
//! stored (engine).

pub mod addresses;
pub mod backup;
mod clients;
mod cluster_view;
mod colocated;
pub mod config;
mod copies;
mod daemon;
mod error;
mod founding;
mod host;
mod host_load;
mod host_memory;
mod http;
mod identity;
mod memory_shares;
mod monitor;
mod open_files;
mod options;
mod power;
pub mod record;
mod replica_reads;
mod requests;
mod sample_base;
mod shards;
mod store_options;
mod stores;
mod witness;

pub use daemon::{Daemon, Sums};
pub use ecotone_cluster::free_bytes;
pub use ecotone_keyspace::{DerivedKeys, ShardId, SlotRanges};
pub use ecotone_resp::host::{Allocator, AllocatorCounts};
pub use error::{Error, Result};
pub use founding::{IDENTITY_FOLDER, RestoredServer, begin_log, host_name};
pub use http::health::{Health, SILENT_LIMIT};
pub use http::reference as metrics_reference;
pub use monitor::{Progress, RecordSink};
pub use open_files::raise_descriptor_limit;
pub use options::{ClientOptions, EmulatedCores, HttpOptions, LostLines, ServeOptions};
pub use power::{LIMITS_FILE, restore_frequencies};
pub use requests::Requests;
pub use store_options::{STORE_OPTIONS, StoreOption, set_store_option, store_options};
pub use stores::{ShardOptions, stores_of_server};
pub use witness::Witness;
