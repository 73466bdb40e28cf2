//! The settings of a store, how one write is done, and the limits of what a store takes.

use ecotone_policy::compression::{CompressionMode, PARAMETERS, Parameters as CompressionParameters};
use ecotone_policy::dedup::DedupThreshold;
use ecotone_policy::gc::GcParameters;

use crate::choices::{Compression, Durability, MemtableOrder};
use crate::dedup::{DedupMode, ExtensionThreshold, SEPARATED_THRESHOLD};
use crate::memory::MIN_LIMIT_BYTES;
use crate::{DedupOptions, Error, Result, SpaceLimits};

/// The largest batch, in bytes of keys, values and a few bytes for each: below the 4 GiB that
/// RocksDB can frame.
pub const MAX_BATCH_BYTES: usize = 1024 * 1024 * 1024;

/// The fewest tables that may be held open: RocksDB takes a part of them for itself.
pub const MIN_OPEN_FILES: u32 = 16;

/// The shortest segment, and the longest: a pointer's offset has 32 bits.
pub(crate) const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 4 * KIB..=2 * GIB;

/// The least length of a value that `ecotone serve` and `ecotone bench` separate from its key, in
/// bytes. [`StoreSettings::default`] separates none: a caller of the library says what it wants.
///
/// A longer value is costlier to rewrite with each compaction than to write once and to reach
/// through a pointer; a shorter one is not. Why they meet about here: see
/// `docs/space.md#threshold`.
pub const DEFAULT_SEPARATION_BYTES: u32 = 128;

/// After how long a table that nothing compacts is rewritten for the values that have expired in
/// it: 30 days, in seconds. That costs a thirtieth of the tables' bytes a day on average, little
/// beside what writing them took, and is what RocksDB takes by itself. It is not spread over the
/// days: tables that were written together come due together, and so do all that are older when the
/// store is opened.
pub const EXPIRED_COMPACTION_SECONDS: u64 = 30 * 24 * 60 * 60;

/// Ten years: what is asked for beyond is a mistake of units.
const MAX_EXPIRED_COMPACTION_SECONDS: u64 = 10 * 365 * 24 * 60 * 60;

/// Pending compaction bytes that slow writers down, and those that stop them. Both are RocksDB's
/// defaults: what limits a store here is its count of L0 tables and its space.
pub const PENDING_SLOWDOWN_BYTES: u64 = 64 * GIB;
/// See [`PENDING_SLOWDOWN_BYTES`].
pub const PENDING_STOP_BYTES: u64 = 256 * GIB;

/// Bytes of a table or WAL after which the kernel is asked to begin writing them back: a sync then
/// finds little left to do.
pub const BYTES_PER_SYNC: u64 = MIB;

/// Which values go to the value log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Separation {
    /// Values of at least this many bytes; shorter ones stay with their keys. At least 1.
    pub min_bytes: u32,
    /// A segment is ended before it would grow beyond this; 4 KiB to 2 GiB. While there are few
    /// values it is ended earlier, at one part in 64 of all and 4 MiB at least.
    pub segment_bytes: u64,
}

impl Separation {
    /// Values of at least `min_bytes`, in segments of 64 MiB.
    pub const fn from_bytes(min_bytes: u32) -> Self {
        Self { min_bytes, segment_bytes: 64 * MIB }
    }
}

/// How one write is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// The durability of this write; `None` is the store's default.
    pub durability: Option<Durability>,
    /// Never waits until compactions have made room for it: it fails with
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) instead.
    pub no_wait: bool,
    /// A batch that leaves less behind than it found though it sets keys, such as a list without
    /// its last element. Where there is no room for other writes it goes where deletions go.
    pub frees: bool,
}

impl WriteOptions {
    /// This durability, whatever the store's default is.
    pub const fn durable(durability: Durability) -> Self {
        Self { durability: Some(durability), no_wait: false, frees: false }
    }
}

/// The numbers and choices that a store is opened with: plain data, which can be compared and
/// written down. What it shares with its process is given to [`StoreBuilder`](crate::StoreBuilder)
/// instead. [`Default`] is sound for a small server; opening refuses impossible values and names
/// the field.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreSettings {
    /// The durability of writes that do not say.
    pub durability: Durability,
    /// The limit of memory for block cache and memtables together, for this store alone; at least
    /// 4 MiB. `None`: a block cache of 64 MiB of the store's own, and memtables of
    /// `memtable_bytes` times `memtable_count` beside it. A
    /// [`MemoryLimit`](crate::StoreBuilder::memory) that stores share goes before it; what a store
    /// keeps beside both goes by this number then.
    pub memory_limit_bytes: Option<u64>,
    /// Bytes of rows that are kept in memory by their keys, beside that limit: short values, and
    /// the places of those separated, with the value itself where that is no longer than 2 KiB and was
    /// read since the key came here. A lookup that finds one does not go to RocksDB. 0 is none, and
    /// so is `None`, which leaves it to the layer above.
    pub row_cache_bytes: Option<u64>,
    /// Bytes of the store's files that the kernel is expected to keep in memory. Where values
    /// separated take four times as much, lookups that must not wait read those of up to 2 KiB past
    /// the kernel's cache. `None`: it keeps all.
    pub page_cache_bytes: Option<u64>,
    /// Size of a memtable before it is flushed, in bytes; at least 64 KiB.
    pub memtable_bytes: u64,
    /// Memtables, the active one included, before writers wait for a flush; at least 2.
    pub memtable_count: u32,
    /// How a memtable keeps its entries in order.
    pub memtable_order: MemtableOrder,
    /// L0 tables that start a compaction; at least 1.
    pub l0_compaction_trigger: u32,
    /// L0 tables that slow writers down: the stall threshold (WST). At least
    /// `l0_compaction_trigger`.
    pub l0_slowdown_trigger: u32,
    /// L0 tables that stop writers. At least `l0_slowdown_trigger`.
    pub l0_stop_trigger: u32,
    /// Target size of the first level below L0, in bytes; at least 1 MiB.
    pub level_base_bytes: u64,
    /// Growth of the target size from level to level; at least 2.
    pub level_multiplier: u32,
    /// Whether target sizes are counted from the last level upwards, so that little data stands
    /// twice; otherwise from the first level downwards, as RocksDB did by default before 8.4.
    pub dynamic_levels: bool,
    /// Size of a table, in bytes; at least 64 KiB.
    pub target_file_bytes: u64,
    /// Parts into which one L0 or manual compaction is split, each with a thread; at least 1.
    pub max_subcompactions: u32,
    /// Threads that flush; at least 1. The pools are the process's: the largest wish of any store
    /// holds.
    pub background_flushes: u32,
    /// Compactions at a time; at least 1. Each one that waits for a worker takes one, so a store
    /// that offloads needs more than it has cores.
    pub background_compactions: u32,
    /// Compression of all levels.
    pub compression: Compression,
    /// Bits per key of the Bloom filter, 0 for none; at most 30.
    pub bloom_bits_per_key: u32,
    /// Size of a data block before compression, in bytes; 1 KiB to 1 MiB.
    pub block_bytes: u64,
    /// Tables held open, and beside them no more segments than that; at least 16. `None`: all
    /// tables, and 256 segments.
    pub max_open_files: Option<u32>,
    /// Bytes of write-ahead logs beyond which memtables are flushed, so that logs can be removed; 0
    /// leaves it to RocksDB.
    pub max_wal_bytes: u64,
    /// Bytes that a compaction reads ahead; 0 is RocksDB's default.
    pub compaction_readahead_bytes: u64,
    /// Which values are separated from their keys, in the value log. `None`: none, from now on.
    /// Values that are there already can be read whatever this says.
    pub separation: Option<Separation>,
    /// How separated values are compressed. `None`, the default, compresses no value from now on;
    /// those that are compressed can be read whatever this says. With any other the store becomes
    /// one of format 3.
    pub value_compression: CompressionMode,
    /// By what it is decided how, and when a dictionary is trained.
    pub compression_parameters: CompressionParameters,
    /// Memory for compressing values: a quarter is of dictionaries that are not in force, and half of
    /// what threads keep to pack and unpack values, which is one bound for all stores of a process
    /// that open for writing: that of the last of them. The rest is of samples and trainings
    /// ([`training::MAX_TRAINING_BYTES`](ecotone_valuelog::compression::training::MAX_TRAINING_BYTES)
    /// at most, which may be more for the moment that one takes). Default 16 MiB.
    pub compression_memory_bytes: u64,
    /// How much space the store may take.
    pub space: SpaceLimits,
    /// How duplicates are counted, and when compactions are extended to where they are.
    pub dedup: DedupOptions,
    /// When values are relocated.
    pub gc: GcParameters,
    /// Whether compactions remove values whose expiry has passed, whether they are separated or
    /// not. Only for a layer above that takes such values for gone. Compactions that run on a
    /// worker remove none.
    pub reclaim_expired: bool,
    /// Age of a table, in seconds, at which it is rewritten where `reclaim_expired` is set, so that
    /// what has expired in it goes though nothing else compacts it; 10 years at most, 0 is never.
    /// Such a compaction always runs here. While writes are refused for want of space, tables in
    /// which something has expired are rewritten whatever their age. Default
    /// [`EXPIRED_COMPACTION_SECONDS`].
    pub expired_compaction_seconds: u64,
    /// Whether garbage is freed while nobody writes, also where little more would be needed for it
    /// to be freed by itself later: for stores whose space counts. A store that takes less than 1.4
    /// times what lives in it, or no more than 32 MiB, is left alone.
    pub reclaim_idle: bool,
    /// Bytes of segments that may be mapped into memory while values are relocated out of them, in
    /// which a copy takes less processor time. These pages count as resident, though the kernel can
    /// take them back. Default 512 MiB, 0 is none.
    pub mapped_bytes: u64,
    /// Bytes of segments that may be mapped into memory for users' reads, which take less than half
    /// the processor time there. Beyond it, values are read by calls. These pages count as
    /// resident, though the kernel can take them back. Default 256 MiB, 0 is none.
    pub mapped_read_bytes: u64,
}

pub(crate) const KIB: u64 = 1024;
pub(crate) const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            memory_limit_bytes: None,
            row_cache_bytes: None,
            page_cache_bytes: None,
            memtable_bytes: 64 * MIB,
            memtable_count: 2,
            memtable_order: MemtableOrder::default(),
            l0_compaction_trigger: 4,
            l0_slowdown_trigger: 20,
            l0_stop_trigger: 36,
            level_base_bytes: 256 * MIB,
            level_multiplier: 10,
            dynamic_levels: true,
            target_file_bytes: 64 * MIB,
            max_subcompactions: 1,
            background_flushes: 1,
            background_compactions: 2,
            compression: Compression::default(),
            bloom_bits_per_key: 10,
            block_bytes: 4 * KIB,
            max_open_files: None,
            max_wal_bytes: 0,
            compaction_readahead_bytes: 0,
            separation: None,
            value_compression: CompressionMode::None,
            compression_parameters: PARAMETERS,
            compression_memory_bytes: 16 * MIB,
            space: SpaceLimits::default(),
            dedup: DedupOptions::default(),
            gc: GcParameters::default(),
            reclaim_expired: false,
            expired_compaction_seconds: EXPIRED_COMPACTION_SECONDS,
            reclaim_idle: false,
            mapped_bytes: 512 * MIB,
            mapped_read_bytes: 256 * MIB,
        }
    }
}

impl StoreSettings {
    /// Into how many parts RocksDB is to divide its cache of tables, as a power of two, where
    /// tables are held to a number; its own are 64. Each part rounds up, so that a sixteenth more
    /// are open at most.
    pub fn table_cache_shard_bits(&self) -> Option<i32> {
        self.max_open_files.map(|files| (files / MIN_OPEN_FILES).max(1).ilog2().min(6) as i32)
    }

    /// Up to which ratio compactions are extended, if at all. By itself only where new values are
    /// separated, `background_compactions` is 2 or more and the mode is not one that counts nothing
    /// or that is for measurements.
    pub fn dedup_threshold(&self) -> Option<DedupThreshold> {
        let suits_mode = matches!(self.dedup.mode, None | Some(DedupMode::Sample | DedupMode::Filter));
        match self.dedup.threshold {
            ExtensionThreshold::Off => None,
            ExtensionThreshold::At(threshold) => Some(threshold),
            ExtensionThreshold::Auto if self.separation.is_some() && self.background_compactions >= 2 && suits_mode => {
                SEPARATED_THRESHOLD.try_into().ok()
            }
            ExtensionThreshold::Auto => None,
        }
    }

    /// How duplicates are counted.
    pub fn dedup_mode(&self) -> DedupMode {
        let by_threshold = if self.dedup_threshold().is_some() { DedupMode::Sample } else { DedupMode::Off };
        self.dedup.mode.unwrap_or(by_threshold)
    }

    /// Checks every field; the error names the first one that is out of its range.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`].
    pub fn validate(&self) -> Result<()> {
        at_least("memtable_bytes", self.memtable_bytes, 64 * KIB)?;
        at_most("memtable_bytes", self.memtable_bytes, 16 * GIB)?;
        at_least("memtable_count", self.memtable_count.into(), 2)?;
        at_most("memtable_count", self.memtable_count.into(), 1024)?;
        at_least("l0_compaction_trigger", self.l0_compaction_trigger.into(), 1)?;
        ordered("l0_slowdown_trigger", self.l0_slowdown_trigger, "l0_compaction_trigger", self.l0_compaction_trigger)?;
        ordered("l0_stop_trigger", self.l0_stop_trigger, "l0_slowdown_trigger", self.l0_slowdown_trigger)?;
        at_most("l0_stop_trigger", self.l0_stop_trigger.into(), 1 << 20)?;
        at_least("level_base_bytes", self.level_base_bytes, MIB)?;
        at_least("level_multiplier", self.level_multiplier.into(), 2)?;
        at_most("level_multiplier", self.level_multiplier.into(), 1000)?;
        at_least("target_file_bytes", self.target_file_bytes, 64 * KIB)?;
        at_most("target_file_bytes", self.target_file_bytes, 4 * GIB)?;
        at_least("max_subcompactions", self.max_subcompactions.into(), 1)?;
        at_most("max_subcompactions", self.max_subcompactions.into(), 256)?;
        at_least("background_flushes", self.background_flushes.into(), 1)?;
        at_most("background_flushes", self.background_flushes.into(), 256)?;
        at_least("background_compactions", self.background_compactions.into(), 1)?;
        at_most("background_compactions", self.background_compactions.into(), 256)?;
        at_most("bloom_bits_per_key", self.bloom_bits_per_key.into(), 30)?;
        at_least("block_bytes", self.block_bytes, KIB)?;
        at_most("block_bytes", self.block_bytes, MIB)?;
        if let Some(files) = self.max_open_files {
            at_least("max_open_files", files.into(), MIN_OPEN_FILES.into())?;
            at_most("max_open_files", files.into(), 1 << 24)?;
        }
        if self.max_wal_bytes != 0 {
            at_least("max_wal_bytes", self.max_wal_bytes, self.memtable_bytes)?;
        }
        at_most("compaction_readahead_bytes", self.compaction_readahead_bytes, GIB)?;
        if let Some(separation) = &self.separation {
            at_least("separation.min_bytes", separation.min_bytes.into(), 1)?;
            at_least("separation.segment_bytes", separation.segment_bytes, *SEGMENT_BYTES.start())?;
            at_most("separation.segment_bytes", separation.segment_bytes, *SEGMENT_BYTES.end())?;
        }
        self.space.validate(self.memtable_bytes)?;
        self.dedup.validate()?;
        if self.dedup_threshold().is_some() && self.background_compactions < 2 {
            let problem =
                "1 is too few with a dedup.threshold: RocksDB would compact nothing else while duplicates are merged";
            return Err(Error::invalid("background_compactions", problem));
        }
        at_most("expired_compaction_seconds", self.expired_compaction_seconds, MAX_EXPIRED_COMPACTION_SECONDS)?;
        self.gc.validate().map_err(|error| Error::invalid("gc", error.to_string()))?;
        if let Some(bytes) = self.memory_limit_bytes {
            at_least("memory_limit_bytes", bytes, MIN_LIMIT_BYTES)?;
        }
        Ok(())
    }
}

fn at_least(field: &'static str, value: u64, least: u64) -> Result<()> {
    if value < least {
        return Err(Error::invalid(field, format!("{value} is below the least, {least}")));
    }
    Ok(())
}

fn at_most(field: &'static str, value: u64, most: u64) -> Result<()> {
    if value > most {
        return Err(Error::invalid(field, format!("{value} is above the most, {most}")));
    }
    Ok(())
}

fn ordered(field: &'static str, value: u32, below: &'static str, least: u32) -> Result<()> {
    if value < least {
        return Err(Error::invalid(field, format!("{value} is below {below} = {least}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ecotone_policy::dedup::DedupThreshold;

    use super::*;
    use crate::{DedupMode, ExtensionThreshold};

    #[test]
    fn the_default_is_valid() {
        StoreSettings::default().validate().unwrap();
    }

    #[test]
    fn each_impossible_value_is_refused_by_the_name_of_its_field() {
        type Spoil = fn(&mut StoreSettings);
        let spoiled: [(&str, Spoil); 23] = [
            ("memory_limit_bytes", |o| o.memory_limit_bytes = Some(MIN_LIMIT_BYTES - 1)),
            ("memtable_bytes", |o| o.memtable_bytes = 1),
            ("memtable_count", |o| o.memtable_count = 1),
            ("l0_compaction_trigger", |o| o.l0_compaction_trigger = 0),
            ("l0_slowdown_trigger", |o| o.l0_slowdown_trigger = 3),
            ("l0_stop_trigger", |o| o.l0_stop_trigger = 19),
            ("level_base_bytes", |o| o.level_base_bytes = 0),
            ("level_multiplier", |o| o.level_multiplier = 1),
            ("target_file_bytes", |o| o.target_file_bytes = 0),
            ("max_subcompactions", |o| o.max_subcompactions = 0),
            ("background_compactions", |o| o.background_compactions = 0),
            ("bloom_bits_per_key", |o| o.bloom_bits_per_key = 31),
            ("block_bytes", |o| o.block_bytes = 12),
            ("max_open_files", |o| o.max_open_files = Some(1)),
            ("space.reserve_bytes", |o| o.space.reserve_bytes = Some(8 * MIB - 1)),
            ("space.max_bytes", |o| o.space.max_bytes = Some(5 * o.memtable_bytes - 1)),
            ("space.max_bytes", |o| {
                o.space = SpaceLimits { reserve_bytes: Some(GIB), max_bytes: Some(4 * GIB - 1) };
            }),
            ("max_wal_bytes", |o| o.max_wal_bytes = o.memtable_bytes - 1),
            ("separation.min_bytes", |o| o.separation = Some(Separation::from_bytes(0))),
            ("separation.segment_bytes", |o| o.separation = Some(Separation { min_bytes: 1, segment_bytes: 3 * GIB })),
            ("dedup", |o| o.dedup.parameters.rest_share = f64::NAN),
            ("dedup.threshold", |o| {
                let ten = ExtensionThreshold::At(DedupThreshold::try_from(10.0).unwrap());
                (o.dedup.mode, o.dedup.threshold) = (Some(DedupMode::Off), ten);
            }),
            ("dedup.interval", |o| o.dedup.mode = Some(DedupMode::Triggered { interval: Duration::ZERO })),
        ];
        for (field, spoil) in spoiled {
            let mut options = StoreSettings::default();
            spoil(&mut options);
            match options.validate() {
                Err(Error::InvalidArgument { field: named, .. }) => assert_eq!(named, field),
                other => panic!("{field}: {other:?}"),
            }
        }
    }

    #[test]
    fn compactions_are_extended_by_themselves_only_where_values_are_separated_and_another_one_can_run() {
        let threshold = |separated: bool, set: fn(&mut StoreSettings)| {
            let mut options =
                if separated { StoreSettings::default().with_separation(128) } else { StoreSettings::default() };
            set(&mut options);
            options.validate().unwrap();
            options.dedup_threshold().map(f64::from)
        };
        assert_eq!(threshold(true, |_| ()), Some(10.0));
        assert_eq!(threshold(true, |o| o.dedup.mode = Some(DedupMode::Filter)), Some(10.0));
        assert_eq!(threshold(false, |_| ()), None);
        assert_eq!(threshold(false, |o| o.dedup.mode = Some(DedupMode::Sample)), None);
        assert_eq!(threshold(true, |o| o.background_compactions = 1), None);
        assert_eq!(threshold(true, |o| o.dedup.mode = Some(DedupMode::Off)), None);
        assert_eq!(threshold(true, |o| o.dedup.threshold = ExtensionThreshold::Off), None);
        let interval = Duration::from_secs(1);
        let mut triggered = StoreSettings::default().with_separation(128);
        triggered.dedup.mode = Some(DedupMode::Triggered { interval });
        assert_eq!(triggered.dedup_threshold(), None, "what is for measurements is asked for");
        assert_eq!(StoreSettings::small_device().with_separation(128).dedup_threshold().map(f64::from), Some(10.0));
    }
}
