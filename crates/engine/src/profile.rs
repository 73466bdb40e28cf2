//! Sets of settings that fit together, by name.

use crate::choices::by_name;
use crate::options::{KIB, MIB};
use crate::{DedupOptions, Error, Separation, StoreSettings};

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A set of settings to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// [`StoreSettings::default`].
    #[default]
    Default,
    /// [`StoreSettings::small_device`].
    SmallDevice,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 2] = [Profile::Default, Profile::SmallDevice];

    /// `default` or `small-device`.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Default => "default",
            Profile::SmallDevice => "small-device",
        }
    }

    /// Its settings.
    pub fn settings(self) -> StoreSettings {
        match self {
            Profile::Default => StoreSettings::default(),
            Profile::SmallDevice => StoreSettings::small_device(),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Profile {
    type Err = Error;

    fn from_str(name: &str) -> crate::Result<Self> {
        by_name("profile", name, &Self::ALL, Self::name)
    }
}

/// The largest sizes of a store that separates values. Memtables and tables hold keys and pointers
/// then, so a half and a sixteenth of their usual sizes are many more values. What a memtable
/// replaces can be reclaimed once it is flushed, so it is flushed before it is full where that is
/// much of the store (`gc::notifier`); a table is relocated in one step.
const SEPARATED_MEMTABLE_BYTES: u64 = 32 * MIB;
const SEPARATED_TABLE_BYTES: u64 = 4 * MIB;
/// One fills, one is written out, one waits: small ones are full in less time than a busy machine
/// may take to begin a flush. With four RocksDB would slow writers where it stops them with three.
const SEPARATED_MEMTABLE_COUNT: u32 = 3;

impl StoreSettings {
    /// The default of a store that keeps values of at least `min_bytes` apart.
    pub fn separated(min_bytes: u32) -> Self {
        Self::default().with_separation(min_bytes)
    }

    /// The same, and values of at least `min_bytes` are separated: memtables and tables are cut to
    /// 32 and 4 MiB where they are larger, and of smaller memtables there are at least 3. Of
    /// [`small_device`](Self::small_device) only the tables are cut. The first level is as large as
    /// it is where values lie beside their keys, which is many more keys: as long as they fit into
    /// it there is one level only, where every compaction of level 0 meets all that it overwrites.
    /// In two, the upper one would shadow values from garbage collection, and as long as level 0
    /// brings a tenth of all keys at a time would cost more writing than it saves.
    pub fn with_separation(self, min_bytes: u32) -> Self {
        let segment_bytes =
            self.separation.map_or(Separation::from_bytes(min_bytes).segment_bytes, |it| it.segment_bytes);
        Self {
            memtable_bytes: self.memtable_bytes.min(SEPARATED_MEMTABLE_BYTES),
            memtable_count: if self.memtable_bytes > SEPARATED_MEMTABLE_BYTES {
                self.memtable_count.max(SEPARATED_MEMTABLE_COUNT)
            } else {
                self.memtable_count
            },
            target_file_bytes: self.target_file_bytes.min(SEPARATED_TABLE_BYTES),
            separation: Some(Separation { min_bytes, segment_bytes }),
            ..self
        }
    }

    /// For a device with little memory, such as a gateway with 512 MiB that has other work to do:
    /// the process stays below 128 MiB resident under load, with separated values
    /// ([`with_separation`](Self::with_separation)) or not. It costs throughput: see
    /// `docs/space.md`.
    ///
    /// - `memory_limit_bytes`: 32 MiB for block cache and memtables, indexes and filters included.
    /// - `memtable_bytes`, `memtable_count`: 3 times 4 MiB, so that one can fill and one wait while
    ///   one is written out. They are within the limit.
    /// - `level_base_bytes`: 16 MiB, four memtables, as by default.
    /// - `target_file_bytes`: 8 MiB. A table's filter is one block of the cache, which must have
    ///   room for many: 10 bits for each of some 200,000 keys with pointers are 250 KiB. Smaller
    ///   tables would be too many to hold open.
    /// - `background_flushes`, `background_compactions`, `max_subcompactions`: 1, 2 and 1. Each
    ///   compaction holds buffers of a few MiB; with one alone a long one would hold up those of
    ///   level 0, and writers with them.
    /// - `max_open_files`: 256 tables and as many segments, half of what a process may usually
    ///   open.
    /// - `compaction_readahead_bytes`: 256 KiB for each input of a compaction instead of 2 MiB.
    /// - `max_wal_bytes`: 32 MiB of write-ahead logs: what is to be replayed after a crash.
    /// - `mapped_bytes`, `mapped_read_bytes`: 0, since mapped pages count as resident.
    /// - `dedup.max_filter_bytes`: 4 MiB, where filters are asked: those of some 3 million keys.
    pub fn small_device() -> Self {
        Self {
            memory_limit_bytes: Some(32 * MIB),
            memtable_bytes: 4 * MIB,
            memtable_count: 3,
            level_base_bytes: 16 * MIB,
            target_file_bytes: 8 * MIB,
            max_subcompactions: 1,
            background_flushes: 1,
            background_compactions: 2,
            max_open_files: Some(256),
            compaction_readahead_bytes: 256 * KIB,
            max_wal_bytes: 32 * MIB,
            mapped_bytes: 0,
            mapped_read_bytes: 0,
            dedup: DedupOptions { max_filter_bytes: 4 * MIB, ..DedupOptions::default() },
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_profile_is_valid_with_values_separated_and_without() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse::<Profile>().unwrap(), profile);
            profile.settings().validate().unwrap();
            profile.settings().with_separation(128).validate().unwrap();
        }
        assert!("small_device".parse::<Profile>().unwrap_err().to_string().contains("small-device"));
    }

    #[test]
    fn values_separated_make_large_sizes_small_and_leave_small_ones() {
        assert_eq!(StoreSettings::separated(128).memtable_count, 3);
        let many = StoreSettings { memtable_count: 5, ..StoreSettings::default() };
        assert_eq!(many.with_separation(128).memtable_count, 5);
        let sizes =
            |it: &StoreSettings| (it.memtable_bytes / MIB, it.level_base_bytes / MIB, it.target_file_bytes / MIB);
        assert_eq!(sizes(&StoreSettings::separated(128)), (32, 256, 4));
        let small = StoreSettings::small_device();
        assert_eq!(sizes(&small.clone().with_separation(128)), (4, 16, 4));
        assert_eq!(small.clone().with_separation(128).memtable_count, small.memtable_count);
        let short = Separation { min_bytes: 64, segment_bytes: MIB };
        let kept = StoreSettings { separation: Some(short), ..small }.with_separation(128);
        assert_eq!(kept.separation, Some(Separation { min_bytes: 128, segment_bytes: MIB }));
    }

    #[test]
    fn memtables_of_a_small_device_fit_their_share_of_its_limit() {
        let small = StoreSettings::small_device();
        let limit = small.memory_limit_bytes.unwrap_or(0);
        assert!(small.memtable_bytes * u64::from(small.memtable_count) <= limit / 2);
        assert!(small.max_wal_bytes >= small.memtable_bytes * u64::from(small.memtable_count));
    }
}
