//! What a store says of itself: its state now, and what it has done.

use std::ops::AddAssign;

use rust_rocksdb::statistics::Ticker;
use rust_rocksdb::{ColumnFamilyMetaDataOptions, DB, Options, properties};

use crate::compaction::jobs::Totals;
use crate::family::DataFamily;
use crate::space::admission::AdmissionControl;
use crate::stall::StallClock;
use crate::{DedupProperties, Result, StallCondition};

/// One level of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct LevelProperties {
    /// Tables.
    pub tables: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The state of a store. Reading it costs a dozen property lookups, some of them under RocksDB's
/// mutex, and a microsecond or two for each table: once a second is cheap, once an operation is
/// not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreProperties {
    /// Tables in L0.
    pub l0_tables: u64,
    /// The levels, L0 first, down to the last that has tables.
    pub levels: Vec<LevelProperties>,
    /// RocksDB's estimate of the bytes that compactions must rewrite until every level is within
    /// its target.
    pub pending_compaction_bytes: u64,
    /// Bytes of all memtables.
    pub memtable_bytes: u64,
    /// Memtables that wait for a flush.
    pub immutable_memtables: u64,
    /// Compactions running, those that wait for a worker included.
    pub running_compactions: u64,
    /// Compactions that wait for a worker.
    pub running_remote_compactions: u64,
    /// Flushes running.
    pub running_flushes: u64,
    /// Whether a compaction is due.
    pub compaction_pending: bool,
    /// Whether writers wait.
    pub write_stopped: bool,
    /// The rate that writers are slowed to, in bytes per second; 0 when they are not slowed.
    pub delayed_write_rate_bytes_per_s: u64,
    /// RocksDB's estimate of the bytes of live data.
    pub live_data_bytes_estimate: u64,
    /// RocksDB's estimate of the number of keys: what was put less what was deleted. Where a key
    /// lies in several tables or memtables, each counts.
    pub keys_estimate: u64,
    /// Entries of all memtables, deletions included.
    pub memtable_entries: u64,
    /// Bytes of all live tables.
    pub table_bytes: u64,
    /// Bytes in the block cache; of all stores that share it.
    pub block_cache_bytes: u64,
    /// Bytes in the row cache; none where that is shared.
    pub row_cache_bytes: u64,
    /// Background errors since the store was opened.
    pub background_errors: u64,
    /// The sequence number of the last write.
    pub last_sequence: u64,
}

impl StoreProperties {
    /// Keys, about, where `table_entries` are in the tables and newer ones in other tables shadow
    /// so many of them. What memtables shadow nobody knows.
    pub fn keys_about(&self, table_entries: u64, shadowed_entries: u64) -> u64 {
        // Puts and deletions together, and puts less deletions: the mean is the puts, of which
        // those are shadowed that were deleted as well.
        let entries = (table_entries + self.memtable_entries).max(self.keys_estimate);
        ((entries + self.keys_estimate) / 2).saturating_sub(shadowed_entries)
    }

    /// Tables in all levels.
    pub fn tables(&self) -> u64 {
        self.levels.iter().map(|level| level.tables).sum()
    }

    pub(crate) fn read(db: &DB, family: DataFamily, row_cache_bytes: u64) -> Result<Self> {
        let number = |name| -> Result<u64> { Ok(db.property_int_value_cf(&family, name)?.unwrap_or(0)) };
        let mut levels = vec![LevelProperties::default()];
        // RocksDB lists only levels that have tables.
        for level in db.get_column_family_metadata_cf_with_options(&family, &ColumnFamilyMetaDataOptions::new()) {
            let index = usize::try_from(level.level()).unwrap_or(0);
            levels.resize(levels.len().max(index + 1), LevelProperties::default());
            levels[index] = LevelProperties { tables: level.file_count() as u64, bytes: level.size() };
        }
        Ok(Self {
            l0_tables: levels[0].tables,
            levels,
            pending_compaction_bytes: number(properties::ESTIMATE_PENDING_COMPACTION_BYTES)?,
            memtable_bytes: number(properties::CUR_SIZE_ALL_MEM_TABLES)?,
            immutable_memtables: number(properties::NUM_IMMUTABLE_MEM_TABLE)?,
            running_compactions: number(properties::NUM_RUNNING_COMPACTIONS)?,
            running_remote_compactions: db
                .property_int_value_cf(&family, c"rocksdb.num-running-remote-compactions")?
                .unwrap_or(0),
            running_flushes: number(properties::NUM_RUNNING_FLUSHES)?,
            compaction_pending: number(properties::COMPACTION_PENDING)? != 0,
            write_stopped: number(properties::IS_WRITE_STOPPED)? != 0,
            delayed_write_rate_bytes_per_s: number(properties::ACTUAL_DELAYED_WRITE_RATE)?,
            live_data_bytes_estimate: number(properties::ESTIMATE_LIVE_DATA_SIZE)?,
            keys_estimate: number(properties::ESTIMATE_NUM_KEYS)?,
            memtable_entries: number(properties::NUM_ENTRIES_ACTIVE_MEM_TABLE)?
                + number(properties::NUM_ENTRIES_IMM_MEM_TABLES)?,
            table_bytes: number(properties::LIVE_SST_FILES_SIZE)?,
            block_cache_bytes: number(properties::BLOCK_CACHE_USAGE)?,
            row_cache_bytes,
            background_errors: number(properties::BACKGROUND_ERRORS)?,
            last_sequence: db.latest_sequence_number(),
        })
    }
}

/// What a store has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Keys written, deletions included.
    pub keys_written: u64,
    /// Batches written, those of one key included: each is a record of the WAL.
    pub batches_written: u64,
    /// Bytes written to the tree: keys and values with a few bytes of framing for each, and of
    /// values separated their pointers.
    pub bytes_written: u64,
    /// Bytes of the values that were separated from their keys instead.
    pub separated_bytes: u64,
    /// Keys looked up, one at a time or many at once.
    pub keys_read: u64,
    /// Lookups of many keys at once.
    pub multi_gets: u64,
    /// Bytes of values read by lookups.
    pub bytes_read: u64,
    /// Bytes written to the WAL.
    pub wal_bytes: u64,
    /// Syncs of the WAL.
    pub wal_syncs: u64,
    /// Flushes that ended.
    pub flushes: u64,
    /// Bytes that flushes wrote.
    pub flush_bytes: u64,
    /// Compactions that ended, moves of tables included.
    pub compactions: u64,
    /// Those of which a part ran on a worker.
    pub remote_compactions: u64,
    /// Those that failed.
    pub failed_compactions: u64,
    /// Bytes that compactions read here.
    pub compaction_read_bytes: u64,
    /// Bytes that compactions wrote here.
    pub compaction_written_bytes: u64,
    /// Bytes that workers read for this store.
    pub remote_read_bytes: u64,
    /// Bytes that workers wrote for this store.
    pub remote_written_bytes: u64,
    /// Microseconds that writers waited, summed over writers (RocksDB's `STALL_MICROS`).
    pub writer_stall_us: u64,
    /// Microseconds during which writers were slowed, by the clock.
    pub delayed_us: u64,
    /// Microseconds during which writers were stopped, by the clock.
    pub stopped_us: u64,
    /// Writes that were refused because there was too little space.
    pub refused_writes: u64,
    /// How often the store stopped taking writes for that.
    pub times_out_of_space: u64,
    /// Compactions that were deferred because they would not have fitted; one that is tried again
    /// counts again.
    pub compactions_deferred: u64,
    /// Values that compactions here removed because their time was over.
    pub expired_values: u64,
    /// Entries that scans stepped over because they were gone: deletions, what these shadow, and
    /// older versions.
    pub skipped_entries: u64,
    /// Flushes and compactions of ranges that were made because scans stepped over so many.
    pub range_cleanups: u64,
    /// Blocks found in the block cache.
    pub block_cache_hits: u64,
    /// Blocks not found there.
    pub block_cache_misses: u64,
    /// Rows found in the row cache.
    pub row_cache_hits: u64,
    /// Rows not found there.
    pub row_cache_misses: u64,
}

impl Counters {
    /// Microseconds in a stall condition, slowed or stopped: the papers' stall time.
    pub fn stall_us(&self) -> u64 {
        self.delayed_us + self.stopped_us
    }

    /// Bytes of keys and values that users of the store wrote, with a few bytes for each: what
    /// write amplification is counted by.
    pub fn user_bytes(&self) -> u64 {
        self.bytes_written + self.separated_bytes
    }

    /// All but what the value log, scans and the row cache count.
    pub(crate) fn read(
        options: &Options,
        totals: &Totals,
        stall: &StallClock,
        admission: Option<&AdmissionControl>,
    ) -> Self {
        use std::sync::atomic::Ordering::Relaxed;
        let ticker = |ticker| options.get_ticker_count(ticker);
        let times = stall.times();
        Self {
            keys_written: ticker(Ticker::NumberKeysWritten),
            batches_written: ticker(Ticker::WriteDoneBySelf) + ticker(Ticker::WriteDoneByOther),
            bytes_written: ticker(Ticker::BytesWritten),
            separated_bytes: 0,
            keys_read: ticker(Ticker::NumberKeysRead) + ticker(Ticker::NumberMultigetKeysRead),
            multi_gets: ticker(Ticker::NumberMultigetCalls),
            bytes_read: ticker(Ticker::BytesRead) + ticker(Ticker::NumberMultigetBytesRead),
            wal_bytes: ticker(Ticker::WalFileBytes),
            wal_syncs: ticker(Ticker::WalFileSynced),
            flushes: totals.flushes.load(Relaxed),
            flush_bytes: ticker(Ticker::FlushWriteBytes),
            compactions: totals.compactions.load(Relaxed),
            remote_compactions: totals.remote_compactions.load(Relaxed),
            failed_compactions: totals.failed_compactions.load(Relaxed),
            compaction_read_bytes: ticker(Ticker::CompactReadBytes),
            compaction_written_bytes: ticker(Ticker::CompactWriteBytes),
            remote_read_bytes: ticker(Ticker::RemoteCompactReadBytes),
            remote_written_bytes: ticker(Ticker::RemoteCompactWriteBytes),
            writer_stall_us: ticker(Ticker::StallMicros),
            delayed_us: times.delayed.as_micros() as u64,
            stopped_us: times.stopped.as_micros() as u64,
            refused_writes: admission.map_or(0, AdmissionControl::refused_writes),
            times_out_of_space: admission.map_or(0, AdmissionControl::times_closed),
            compactions_deferred: ticker(Ticker::CompactionCancelled),
            expired_values: totals.expired_values.load(Relaxed),
            skipped_entries: 0,
            range_cleanups: 0,
            block_cache_hits: ticker(Ticker::BlockCacheHit),
            block_cache_misses: ticker(Ticker::BlockCacheMiss),
            row_cache_hits: 0,
            row_cache_misses: 0,
        }
    }
}

impl AddAssign for StoreProperties {
    /// Of several stores that share a block cache. What stalls are judged by is that of the store
    /// that is nearest to one: most tables in L0, the lowest rate, stopped where one is.
    fn add_assign(&mut self, other: Self) {
        let Self {
            l0_tables,
            levels,
            pending_compaction_bytes,
            memtable_bytes,
            immutable_memtables,
            running_compactions,
            running_remote_compactions,
            running_flushes,
            compaction_pending,
            write_stopped,
            delayed_write_rate_bytes_per_s,
            live_data_bytes_estimate,
            keys_estimate,
            memtable_entries,
            table_bytes,
            block_cache_bytes,
            row_cache_bytes,
            background_errors,
            last_sequence,
        } = other;
        self.l0_tables = self.l0_tables.max(l0_tables);
        if self.levels.len() < levels.len() {
            self.levels.resize(levels.len(), LevelProperties::default());
        }
        for (sum, level) in self.levels.iter_mut().zip(levels) {
            sum.tables += level.tables;
            sum.bytes += level.bytes;
        }
        self.pending_compaction_bytes += pending_compaction_bytes;
        self.memtable_bytes += memtable_bytes;
        self.immutable_memtables += immutable_memtables;
        self.running_compactions += running_compactions;
        self.running_remote_compactions += running_remote_compactions;
        self.running_flushes += running_flushes;
        self.compaction_pending |= compaction_pending;
        self.write_stopped |= write_stopped;
        self.delayed_write_rate_bytes_per_s =
            match (self.delayed_write_rate_bytes_per_s, delayed_write_rate_bytes_per_s) {
                (0, rate) | (rate, 0) => rate,
                (one, other) => one.min(other),
            };
        self.live_data_bytes_estimate += live_data_bytes_estimate;
        self.keys_estimate += keys_estimate;
        self.memtable_entries += memtable_entries;
        self.table_bytes += table_bytes;
        self.block_cache_bytes = self.block_cache_bytes.max(block_cache_bytes);
        self.row_cache_bytes += row_cache_bytes;
        self.background_errors += background_errors;
        self.last_sequence += last_sequence;
    }
}

impl AddAssign for Counters {
    /// Of several stores.
    fn add_assign(&mut self, other: Self) {
        let Self {
            keys_written,
            batches_written,
            bytes_written,
            separated_bytes,
            keys_read,
            multi_gets,
            bytes_read,
            wal_bytes,
            wal_syncs,
            flushes,
            flush_bytes,
            compactions,
            remote_compactions,
            failed_compactions,
            compaction_read_bytes,
            compaction_written_bytes,
            remote_read_bytes,
            remote_written_bytes,
            writer_stall_us,
            delayed_us,
            stopped_us,
            refused_writes,
            times_out_of_space,
            compactions_deferred,
            expired_values,
            skipped_entries,
            range_cleanups,
            block_cache_hits,
            block_cache_misses,
            row_cache_hits,
            row_cache_misses,
        } = other;
        self.keys_written += keys_written;
        self.batches_written += batches_written;
        self.bytes_written += bytes_written;
        self.separated_bytes += separated_bytes;
        self.keys_read += keys_read;
        self.multi_gets += multi_gets;
        self.bytes_read += bytes_read;
        self.wal_bytes += wal_bytes;
        self.wal_syncs += wal_syncs;
        self.flushes += flushes;
        self.flush_bytes += flush_bytes;
        self.compactions += compactions;
        self.remote_compactions += remote_compactions;
        self.failed_compactions += failed_compactions;
        self.compaction_read_bytes += compaction_read_bytes;
        self.compaction_written_bytes += compaction_written_bytes;
        self.remote_read_bytes += remote_read_bytes;
        self.remote_written_bytes += remote_written_bytes;
        self.writer_stall_us += writer_stall_us;
        self.delayed_us += delayed_us;
        self.stopped_us += stopped_us;
        self.refused_writes += refused_writes;
        self.times_out_of_space += times_out_of_space;
        self.compactions_deferred += compactions_deferred;
        self.expired_values += expired_values;
        self.skipped_entries += skipped_entries;
        self.range_cleanups += range_cleanups;
        self.block_cache_hits += block_cache_hits;
        self.block_cache_misses += block_cache_misses;
        self.row_cache_hits += row_cache_hits;
        self.row_cache_misses += row_cache_misses;
    }
}

/// The stall condition that RocksDB's properties show. Notifications of two changes can pass each
/// other on two threads; this is the truth that the clock is set by.
pub(crate) fn stall_condition(db: &DB, family: DataFamily) -> Option<StallCondition> {
    let number = |name| db.property_int_value_cf(&family, name).ok().flatten();
    let stopped = number(properties::IS_WRITE_STOPPED)?;
    let rate = number(properties::ACTUAL_DELAYED_WRITE_RATE)?;
    Some(match (stopped, rate) {
        (0, 0) => StallCondition::Normal,
        (0, _) => StallCondition::Delayed,
        _ => StallCondition::Stopped,
    })
}

impl DedupProperties {
    /// Keys of the store, about; `of` is what it tells at the same time.
    pub fn keys_about(&self, of: &StoreProperties) -> u64 {
        of.keys_about(self.total_keys, self.duplicate_keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_stores_the_worst_one_tells_of_stalls_and_the_rest_is_a_sum() {
        let level = |tables| LevelProperties { tables, bytes: 100 * tables };
        let mut sum = StoreProperties {
            l0_tables: 3,
            levels: vec![level(3)],
            delayed_write_rate_bytes_per_s: 50,
            block_cache_bytes: 1000,
            table_bytes: 300,
            ..StoreProperties::default()
        };
        sum += StoreProperties {
            l0_tables: 2,
            levels: vec![level(2), level(7)],
            write_stopped: true,
            block_cache_bytes: 900,
            table_bytes: 900,
            ..StoreProperties::default()
        };
        assert_eq!((sum.l0_tables, sum.tables(), sum.table_bytes), (3, 12, 1200));
        assert_eq!(sum.levels, [level(5), level(7)]);
        assert_eq!((sum.delayed_write_rate_bytes_per_s, sum.write_stopped, sum.block_cache_bytes), (50, true, 1000));
        let mut counters = Counters { flushes: 2, delayed_us: 5, ..Counters::default() };
        counters += Counters { flushes: 3, stopped_us: 7, ..Counters::default() };
        assert_eq!((counters.flushes, counters.stall_us()), (5, 12));
    }
}
