//! How the targets are opened: the one table.

use ecotone_engine::{
    Compression, CompressionMode, DEFAULT_SEPARATION_BYTES, Durability, Profile, Separation, StoreSettings,
};
use ecotone_server::set_store_option;
use serde::{Deserialize, Serialize};

use super::DedupSettings;
use crate::{Error, Result};

/// Which store runs a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// Our store.
    #[default]
    Engine,
    /// RocksDB with nothing of ours in between: the same library, options and column families.
    Rocksdb,
    /// The same with RocksDB's own separation of values, BlobDB, and its garbage collection.
    RocksdbBlob,
    /// A server of the Redis protocol, which somebody else has started.
    Resp,
}

impl TargetKind {
    /// All targets that are opened in this process.
    pub const ALL: [TargetKind; 3] = [TargetKind::Engine, TargetKind::Rocksdb, TargetKind::RocksdbBlob];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            TargetKind::Engine => "engine",
            TargetKind::Rocksdb => "rocksdb",
            TargetKind::RocksdbBlob => "rocksdb-blob",
            TargetKind::Resp => "resp",
        }
    }

    /// The least length of a value that `ecotone bench` separates from its key unless asked for
    /// otherwise, in bytes; none: all stay with their keys.
    pub const fn default_separation(self) -> Option<u32> {
        match self {
            TargetKind::Engine => Some(DEFAULT_SEPARATION_BYTES),
            TargetKind::Rocksdb | TargetKind::Resp => None,
            TargetKind::RocksdbBlob => Some(TargetSettings::MIN_BLOB_BYTES),
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
            Error::options(format!("unknown target {name:?}; choose one of: {names}, resp://HOST:PORT, unix:///PATH"))
        })
    }
}

/// What a benchmark may change of a store. Defaults and ranges are those of [`StoreSettings`]; what
/// is not named here is as the profile has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TargetSettings {
    /// Where all that is not named here comes from. Default `default`.
    pub profile: Profile,
    /// When a write is acknowledged. Default `everysec`.
    pub durability: Durability,
    /// The limit of memory for block cache and memtables together, in bytes; none: a block cache of
    /// 64 MiB, and the memtables beside it.
    pub memory_limit_bytes: Option<u64>,
    /// The size of a memtable in bytes.
    pub memtable_bytes: u64,
    /// Memtables, the active one included, before writers wait for a flush. At least 2.
    pub memtable_count: u32,
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
    /// Compression of all levels. With random values it mostly tells what trying costs.
    pub compression: Compression,
    /// Bits per key of the Bloom filter, 0 for none.
    pub bloom_bits_per_key: u32,
    /// Values of at least this many bytes are separated from their keys, in the value log or in
    /// BlobDB's files; none: all stay with their keys. Default none; what `ecotone bench` asks for
    /// is [`TargetKind::default_separation`].
    pub separation_min_bytes: Option<u32>,
    /// Of BlobDB: the share of its files, oldest first, whose live values a compaction moves when
    /// it meets them. Default 0.25, as RocksDB's; range 0 to 1.
    pub blob_gc_age_cutoff: f64,
    /// Of BlobDB: the share of garbage in those files from which on compactions are made for it
    /// alone. Default 1, as RocksDB's: never; range 0 to 1.
    pub blob_gc_force_threshold: f64,
    /// Of BlobDB: compression of its files. Default none, as RocksDB's.
    pub blob_compression: Compression,
    /// Of the engine: what is done about duplicates, and that they are counted at the end. Default
    /// none: they are not asked for.
    pub dedup: Option<DedupSettings>,
    /// Of the engine: further options, each `name=value` as `ecotone serve` takes them. Those that
    /// are named above are not among them. Default none.
    pub options: Vec<String>,
}

/// Options of the store that have a name of their own on the command line.
const NAMED_OPTIONS: [(&str, &str); 7] = [
    ("profile", "profile"),
    ("durability", "durability"),
    ("memory_limit_bytes", "memory-limit"),
    ("compression", "compression"),
    ("separation_min_bytes", "separation"),
    ("dedup", "dedup"),
    ("dedup_threshold", "threshold"),
];

impl Default for TargetSettings {
    fn default() -> Self {
        Self::of(Profile::default(), &StoreSettings::default())
    }
}

impl TargetSettings {
    /// Those of a profile, for a store that separates values of at least `min_bytes` or for one
    /// that separates none.
    pub fn of_profile(profile: Profile, min_bytes: Option<u32>) -> Self {
        let options = profile.settings();
        Self::of(
            profile,
            &match min_bytes {
                Some(min_bytes) => options.with_separation(min_bytes),
                None => options,
            },
        )
    }

    /// What `kind` is opened with where values of at least `separation_min_bytes` are to be
    /// separated: each target with the sizes of the profile that suit its layout.
    ///
    /// - `engine`: as [`TargetSettings::of_profile`].
    /// - `rocksdb` keeps all values with their keys, so that what is asked for changes nothing.
    /// - `rocksdb-blob`: its tables hold keys and references, as those of the engine, and get the
    ///   same sizes. Its memtables hold the values until they are flushed, so they stay as large
    ///   and as many as without separation. Unless asked for otherwise, values of
    ///   [`TargetSettings::MIN_BLOB_BYTES`] are separated.
    pub fn for_target(kind: TargetKind, profile: Profile, separation_min_bytes: Option<u32>) -> Self {
        let plain = Self::of_profile(profile, None);
        match kind {
            TargetKind::Engine => Self::of_profile(profile, separation_min_bytes),
            TargetKind::Rocksdb | TargetKind::Resp => plain,
            TargetKind::RocksdbBlob => Self {
                memtable_bytes: plain.memtable_bytes,
                memtable_count: plain.memtable_count,
                ..Self::of_profile(profile, separation_min_bytes.or(Some(Self::MIN_BLOB_BYTES)))
            },
        }
    }

    /// The least length of a value that BlobDB separates unless asked for otherwise, in bytes.
    pub const MIN_BLOB_BYTES: u32 = 128;

    /// Refuses what makes no sense for `kind`, by name. Impossible sizes are refused by the store
    /// when it is opened.
    pub fn validate_for(&self, kind: TargetKind) -> Result<()> {
        match (kind, self.separation_min_bytes) {
            (TargetKind::Rocksdb, Some(_)) => {
                return Err(Error::options(
                    "rocksdb keeps all values with their keys, so separation must be off; the target rocksdb-blob separates them",
                ));
            }
            (TargetKind::RocksdbBlob, None) => {
                return Err(Error::options("rocksdb-blob separates values; give separation a number of bytes"));
            }
            _ => {}
        }
        for (name, share) in
            [("blob-gc-age-cutoff", self.blob_gc_age_cutoff), ("blob-gc-force-threshold", self.blob_gc_force_threshold)]
        {
            if !(0.0..=1.0).contains(&share) {
                return Err(Error::options(format!("{name} is {share}; it must be between 0 and 1")));
            }
        }
        if kind != TargetKind::Engine {
            let only_ours = |name| format!("{name} is for the target engine; {kind} has no such thing");
            if self.dedup.is_some() {
                return Err(Error::options(only_ours("dedup")));
            }
            if !self.options.is_empty() {
                return Err(Error::options(only_ours("store-option")));
            }
        }
        self.store_options().map(drop)
    }

    fn of(profile: Profile, options: &StoreSettings) -> Self {
        Self {
            profile,
            durability: Durability::default(),
            memory_limit_bytes: options.memory_limit_bytes,
            memtable_bytes: options.memtable_bytes,
            memtable_count: options.memtable_count,
            level_base_bytes: options.level_base_bytes,
            target_file_bytes: options.target_file_bytes,
            max_subcompactions: options.max_subcompactions,
            background_flushes: options.background_flushes,
            background_compactions: options.background_compactions,
            compression: Compression::default(),
            bloom_bits_per_key: options.bloom_bits_per_key,
            separation_min_bytes: options.separation.map(|separation| separation.min_bytes),
            blob_gc_age_cutoff: 0.25,
            blob_gc_force_threshold: 1.0,
            blob_compression: Compression::None,
            dedup: None,
            options: Vec::new(),
        }
    }

    /// The options of the engine, from which the bare targets' are made too.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] names what does not fit together, or what is no option.
    pub fn store_options(&self) -> Result<StoreSettings> {
        let mut options = StoreSettings {
            durability: self.durability,
            memory_limit_bytes: self.memory_limit_bytes,
            memtable_bytes: self.memtable_bytes,
            memtable_count: self.memtable_count,
            level_base_bytes: self.level_base_bytes,
            target_file_bytes: self.target_file_bytes,
            max_subcompactions: self.max_subcompactions,
            background_flushes: self.background_flushes,
            background_compactions: self.background_compactions,
            compression: self.compression,
            bloom_bits_per_key: self.bloom_bits_per_key,
            separation: self.separation_min_bytes.map(Separation::from_bytes),
            value_compression: CompressionMode::Auto,
            ..self.profile.settings()
        };
        for (index, assignment) in self.options.iter().enumerate() {
            let name = |assignment: &str| assignment.split('=').next().unwrap_or_default().to_owned();
            let given = name(assignment);
            if let Some((_, instead)) = NAMED_OPTIONS.iter().find(|(named, _)| *named == given) {
                return Err(Error::options(format!("store-option {given} has a name of its own here: {instead}")));
            }
            if self.options[..index].iter().any(|other| name(other) == given) {
                return Err(Error::options(format!("store-option {given} is given twice")));
            }
            set_store_option(&mut options, assignment).map_err(|error| Error::options(error.to_string()))?;
        }
        if let Some(dedup) = &self.dedup {
            dedup.set(&mut options.dedup)?;
        }
        Ok(options)
    }
}
