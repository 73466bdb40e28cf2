//! How both targets are opened: the one table.

use ecotone_engine::{MemoryLimit, StoreOptions};
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
        by_name("target", name, TargetKind::ALL, TargetKind::name)
    }
}

/// When a write is acknowledged; see [`ecotone_engine::Durability`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The write-ahead log is written and never synced (db_bench's default).
    None,
    /// It is synced every second, in the background.
    #[default]
    Everysec,
    /// It is synced before every acknowledgement.
    Always,
}

impl Durability {
    /// All durabilities.
    pub const ALL: [Durability; 3] = [Durability::None, Durability::Everysec, Durability::Always];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Everysec => "everysec",
            Durability::Always => "always",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        by_name("durability", name, Durability::ALL, Durability::name)
    }
}

/// How tables are compressed. Values of the workloads are random, so this mostly tells what trying costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4.
    #[default]
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// All compressions.
    pub const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

impl std::str::FromStr for Compression {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        by_name("compression", name, Compression::ALL, Compression::name)
    }
}

fn by_name<T: Copy, const N: usize>(what: &str, name: &str, all: [T; N], name_of: fn(T) -> &'static str) -> Result<T> {
    all.into_iter().find(|&one| name_of(one) == name).ok_or_else(|| {
        Error::options(format!("unknown {what} {name:?}; choose one of: {}", all.map(name_of).join(", ")))
    })
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
    /// Compression of all levels.
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
            durability: match self.durability {
                Durability::None => ecotone_engine::Durability::None,
                Durability::Everysec => ecotone_engine::Durability::EverySecond,
                Durability::Always => ecotone_engine::Durability::Always,
            },
            memory: self.memory_limit_bytes.map(MemoryLimit::new),
            memtable_bytes: self.memtable_bytes,
            level_base_bytes: self.level_base_bytes,
            target_file_bytes: self.target_file_bytes,
            max_subcompactions: self.max_subcompactions,
            background_flushes: self.background_flushes,
            background_compactions: self.background_compactions,
            compression: match self.compression {
                Compression::None => ecotone_engine::Compression::None,
                Compression::Lz4 => ecotone_engine::Compression::Lz4,
                Compression::Zstd => ecotone_engine::Compression::Zstd,
            },
            bloom_bits_per_key: self.bloom_bits_per_key,
            ..StoreOptions::default()
        }
    }
}
