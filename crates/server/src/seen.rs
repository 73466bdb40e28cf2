//! What the last look at the server found: the one source of its metrics and of whether it is ready.
//!
//! The sampler looks once a second and waits for nobody. So who asks, however often, takes no lock of the store, and all figures of one
//! answer are of one moment.

use std::time::Instant;

use ecotone_engine::{Counters, DedupProperties, Room, StoreProperties, ValueLogProperties};
use ecotone_offload::FederationStatistics;
use ecotone_policy::machine::ModelReport;
use ecotone_power::Reading;

/// One look.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// When it began.
    pub(crate) at: Instant,
    pub(crate) properties: StoreProperties,
    pub(crate) counters: Counters,
    /// `None` where the store has no value log. While the log was busy, as it was found the time before.
    pub(crate) values: Option<ValueLogProperties>,
    /// `None` where the store counts no duplicates. While it was busy counting, as it was found the time before.
    pub(crate) dedup: Option<DedupProperties>,
    pub(crate) room: Option<Room>,
    /// Keys of clients, as they were counted last; where none are served, entries by RocksDB's estimate. `None` before the first count.
    pub(crate) keys: Option<u64>,
    /// Why writes fail until the store recovers.
    pub(crate) write_failure: Option<String>,
    pub(crate) reading: Reading,
    /// The power since the look before; `None` at the first.
    pub(crate) watts: Option<f64>,
    pub(crate) free_cores: f64,
    /// File descriptors of the process; `None` where Linux does not tell.
    pub(crate) open_files: Option<u64>,
    pub(crate) federation: FederationStatistics,
    pub(crate) models: ModelReport,
}
