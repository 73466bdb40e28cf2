//! How both targets are opened: the one table.

use ecotone_engine::{Compression, Durability, MemoryLimit, StoreOptions};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Which store runs a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    /// Our store.
    #[default]
    Engine,
    /// RocksDB with nothing of ours in between: the same library, options and column families.
    Rocksdb,
}

impl TargetKind {
    /// Both targets.
    pub const ALL: [TargetKind; 2] = [TargetKind::Engine, TargetKind::Rocksdb];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            TargetKind::Engine => "engine",
            TargetKind::Rocksdb => "rocksdb",
        }
    }
}

impl std::fmt::Display for TargetKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}

impl std::str::FromStr for TargetKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        TargetKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = TargetKind::ALL.map(TargetKind::name).join(", ");
            Error::options(format!("unknown target {name:?}; choose one of: {names}"))
        })
    }
}

/// What a benchmark may change of a store. Defaults and ranges are those of [`StoreOptions`]; what is not named here has
/// its default there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSettings {
    /// When a write is acknowledged. Default `everysec`.
    pub durability: Durability,
    /// The limit of memory for block cache and memtables together, in bytes. Default none: a block cache of 64 MiB, and two
    /// memtables beside it.
    pub memory_limit_bytes: Option<u64>,
    /// The size of a memtable in bytes.
    pub memtable_bytes: u64,
    /// Target size of the first level below L0, in bytes.
    pub level_base_bytes: u64,
    /// The size of a table in bytes.
    pub target_file_bytes: u64,
    /// Parts into which one L0 compaction is split.
    pub max_subcompactions: u32,
    /// Threads that flush.
    pub background_flushes: u32,
    /// Compactions at a time.
    pub background_compactions: u32,
    /// Compression of all levels. Values of the workloads are random, so it mostly tells what trying costs.
    pub compression: Compression,
    /// Bits per key of the Bloom filter, 0 for none.
    pub bloom_bits_per_key: u32,
}

impl Default for StoreSettings {
    fn default() -> Self {
        let options = StoreOptions::default();
        Self {
            durability: Durability::default(),
            memory_limit_bytes: None,
            memtable_bytes: options.memtable_bytes,
            level_base_bytes: options.level_base_bytes,
            target_file_bytes: options.target_file_bytes,
            max_subcompactions: options.max_subcompactions,
            background_flushes: options.background_flushes,
            background_compactions: options.background_compactions,
            compression: Compression::default(),
            bloom_bits_per_key: options.bloom_bits_per_key,
        }
    }
}

impl StoreSettings {
    /// The options of the engine, from which the bare target's are made too.
    pub fn store_options(&self) -> StoreOptions {
        StoreOptions {
            durability: self.durability,
            memory: self.memory_limit_bytes.map(MemoryLimit::new),
            memtable_bytes: self.memtable_bytes,
            level_base_bytes: self.level_base_bytes,
            target_file_bytes: self.target_file_bytes,
            max_subcompactions: self.max_subcompactions,
            background_flushes: self.background_flushes,
            background_compactions: self.background_compactions,
            compression: self.compression,
            bloom_bits_per_key: self.bloom_bits_per_key,
            ..StoreOptions::default()
        }
    }
}
