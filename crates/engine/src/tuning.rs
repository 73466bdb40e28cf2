//! What RocksDB is told: every option that this crate sets, and why.

use ecotone_rocks::memtable;
use rust_rocksdb::{
    BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, FileChecksumGenFactory, InfoLogger, LogLevel, Options,
    WriteBufferManager, statistics::StatsLevel,
};

use crate::collectors::add_collectors;
use crate::dedup::filters;
use crate::dedup::sketch::Sketching;
use crate::options::{BYTES_PER_SYNC, PENDING_SLOWDOWN_BYTES, PENDING_STOP_BYTES};
use crate::space::ballast::Shortage;
use crate::table_format::{Collects, TableFormat};
use crate::{Compression, DedupMode, MemoryLimit, MemtableOrder, StoreSettings, raw};

/// The block cache of a store that was given no [`MemoryLimit`](crate::MemoryLimit), in bytes.
const OWN_CACHE_BYTES: usize = 64 * 1024 * 1024;

/// Of a memtable, for a filter of its keys: some 8 bits for each of them where an entry has 100
/// bytes.
const MEMTABLE_FILTER_SHARE: f64 = 0.01;

/// RocksDB's own log: its size where there is space, and the number kept.
const INFO_LOG_BYTES: u64 = 16 * 1024 * 1024;
const INFO_LOGS_KEPT: usize = 3;

/// A MANIFEST is begun anew beyond this size, or beyond six times what the tables that there are take in
/// it, where that is more: a worker reads it whole for every job, and so does whoever opens the store.
const MANIFEST_BYTES: u64 = 8 * 1024 * 1024;

/// RocksDB's own log ends at one in so many parts of the space, and four such are kept; never more
/// than 16 MiB each.
const INFO_LOG_SHARE: u64 = 256;

/// A MANIFEST is begun anew at one in so many parts of the space, and never beyond 8 MiB.
const MANIFEST_SHARE: u64 = 64;

/// How long the files may get that RocksDB keeps for itself in a space of so many bytes: its log
/// and the MANIFEST. In a small one they would take much of it.
pub(crate) fn bookkeeping_bytes(space_bytes: u64) -> (u64, u64) {
    let log = (space_bytes / INFO_LOG_SHARE).clamp(64 * 1024, INFO_LOG_BYTES);
    (log, (space_bytes / MANIFEST_SHARE).clamp(1024 * 1024, MANIFEST_BYTES))
}

/// The layout of tables that follows from the settings.
pub(crate) fn table_format(settings: &StoreSettings, has_value_log: bool) -> TableFormat {
    let mode = settings.dedup_mode();
    TableFormat {
        block_bytes: settings.block_bytes,
        bloom_bits_per_key: settings.bloom_bits_per_key,
        collects: Collects {
            references: has_value_log,
            // Garbage collection goes by them as well.
            samples: has_value_log || mode.samples(),
            filter_bits_per_key: if mode == DedupMode::Filter { filters::BITS_PER_KEY } else { 0 },
            expiry: settings.reclaim_expired,
        },
    }
}

/// The options of the database and of its data family, whose blocks and memtables count against
/// `memory`.
pub(crate) fn database_options(settings: &StoreSettings, memory: Option<&MemoryLimit>) -> Options {
    let mut db = Options::default();

    // What rocksdb.md calls traps: WAL and MANIFEST stay append-only, acknowledged bytes reach the
    // operating system (and a tap) before the acknowledgement.
    db.set_recycle_log_file_num(0);
    db.set_reuse_manifest_on_open(false);
    db.set_async_wal_precreate(false);
    db.set_manual_wal_flush(false);
    // After a crash of the machine unsynced parts of the WAL may be missing in the middle: take the
    // consistent prefix. A WAL that was synced and is gone or short is an error (it is tracked in
    // the MANIFEST).
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    db.set_track_and_verify_wals_in_manifest(true);

    // Checks that cost little: they turn silent damage into errors.
    db.set_paranoid_checks(true);
    db.set_compaction_verify_record_count(true);
    db.set_flush_verify_memtable_count(true);
    db.set_verify_sst_unique_id_in_manifest(true);
    db.set_file_checksum_gen_factory(&FileChecksumGenFactory::crc32c());

    raw::use_session_directory(&mut db);
    // Else nobody would know how many entries the tables have that were there before. Where all are
    // held open their properties are at hand; else those of 20 are read, and stand for the others.
    db.set_skip_stats_update_on_db_open(false);
    limit_bookkeeping(&mut db, INFO_LOG_BYTES, MANIFEST_BYTES);
    db.set_keep_log_file_num(INFO_LOGS_KEPT);
    db.set_stats_dump_period_sec(0);
    db.set_stats_persist_period_sec(0);
    // The counters of `Store::counters`; histograms and timers would cost a clock reading for each
    // operation.
    db.enable_statistics();
    db.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);

    db.set_write_buffer_size(usize_of(settings.memtable_bytes));
    db.set_max_write_buffer_number(int_of(settings.memtable_count));
    if settings.memtable_order == MemtableOrder::Tree {
        memtable::use_tree(&mut db);
    }
    // Most keys that are asked for are not in a memtable, and a search of it costs as much as one
    // of a table.
    db.set_memtable_whole_key_filtering(true);
    db.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_SHARE);
    db.set_level_zero_file_num_compaction_trigger(int_of(settings.l0_compaction_trigger));
    db.set_level_zero_slowdown_writes_trigger(int_of(settings.l0_slowdown_trigger));
    db.set_level_zero_stop_writes_trigger(int_of(settings.l0_stop_trigger));
    db.set_max_bytes_for_level_base(settings.level_base_bytes);
    db.set_max_bytes_for_level_multiplier(settings.level_multiplier.into());
    db.set_level_compaction_dynamic_level_bytes(settings.dynamic_levels);
    db.set_target_file_size_base(settings.target_file_bytes);
    db.set_soft_pending_compaction_bytes_limit(usize_of(PENDING_SLOWDOWN_BYTES));
    db.set_hard_pending_compaction_bytes_limit(usize_of(PENDING_STOP_BYTES));
    // Said in any case, since RocksDB has periods of its own, of 30 days: for the tables of a store
    // with a compaction filter, and for what lies above the last level in any store (`ttl`).
    let expired_seconds = if settings.reclaim_expired { settings.expired_compaction_seconds } else { 0 };
    db.set_periodic_compaction_seconds(expired_seconds);
    db.set_ttl(expired_seconds);
    db.set_max_subcompactions(settings.max_subcompactions);
    set_background_jobs(&mut db, settings);
    db.set_compression_type(compression(settings.compression));
    db.set_max_open_files(settings.max_open_files.map_or(-1, int_of));
    if let Some(bits) = settings.table_cache_shard_bits() {
        db.set_table_cache_num_shard_bits(bits);
    }
    if settings.max_wal_bytes > 0 {
        db.set_max_total_wal_size(settings.max_wal_bytes);
    }
    db.set_bytes_per_sync(BYTES_PER_SYNC);
    db.set_wal_bytes_per_sync(BYTES_PER_SYNC);
    if settings.compaction_readahead_bytes > 0 {
        db.set_compaction_readahead_size(usize_of(settings.compaction_readahead_bytes));
    }

    // Collectors are added where it is known that there are values to count.
    let mut table = table_options(table_format(settings, false));
    match memory {
        Some(memory) => {
            db.set_write_buffer_manager(memory.memtables());
            table.set_block_cache(memory.cache());
            // Index and filter blocks count under the limit as well; those of L0 are read by every
            // lookup.
            table.set_cache_index_and_filter_blocks(true);
            table.set_cache_index_and_filter_blocks_with_high_priority(true);
            table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        }
        None => table.set_block_cache(&Cache::new_lru_cache(OWN_CACHE_BYTES)),
    }
    db.set_block_based_table_factory(&table);
    db
}

/// Sets how long RocksDB's own log and the MANIFEST may get.
pub(crate) fn limit_bookkeeping(db: &mut Options, info_log_bytes: u64, manifest_bytes: u64) {
    db.set_max_log_file_size(usize_of(info_log_bytes));
    db.set_max_manifest_file_size(usize_of(manifest_bytes));
    // 4 MiB are RocksDB's default.
    db.set_manifest_preallocation_size(usize_of(manifest_bytes.min(4 * 1024 * 1024)));
}

/// How large a memtable is where replay must not fill one: an entry takes some bytes more in memory
/// than in the WAL.
fn replayed_memtable_bytes(settings: &StoreSettings, wal_bytes: u64) -> u64 {
    settings.memtable_bytes.saturating_add(wal_bytes.saturating_mul(4))
}

/// Has the database write as little as it can while it is opened, and take nothing of the device
/// ahead: there is hardly anything free.
pub(crate) fn write_little(db: &mut Options, settings: &StoreSettings, Shortage { wal_bytes }: Shortage) {
    raw::avoid_flush_during_recovery(db);
    db.set_write_buffer_size(usize_of(replayed_memtable_bytes(settings, wal_bytes)));
    db.set_allow_fallocate(false);
    // Its log for people would be longer than all that.
    db.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Fatal, |_, _| ()));
}

/// Has the database write no log for people, and look at no more tables than it needs to, where it
/// follows the files of others. Its memtables take from the block cache, and from nothing else: no
/// flush of its own would make them smaller, and those of other stores are not to be flushed for it.
pub(crate) fn write_nothing(db: &mut Options, memory: Option<&MemoryLimit>) {
    if let Some(memory) = memory {
        let uncapped = 0;
        let cache = memory.cache().clone();
        db.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager_with_cache(uncapped, false, cache));
    }
    db.set_skip_stats_update_on_db_open(true);
    db.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Fatal, |_, _| ()));
}

/// The options of RocksDB's `default` family, which stays empty: plain, but for the size of its
/// memtable. RocksDB allocates the first WAL after an opening for the largest memtable of any
/// family, and recovers from a full disk only once so much is free.
pub(crate) fn empty_family_options(settings: &StoreSettings) -> Options {
    let mut empty = Options::default();
    empty.set_write_buffer_size(usize_of(settings.memtable_bytes));
    empty
}

/// Both numbers set, RocksDB takes them as they are (`DBImpl::GetBGJobLimits`). From
/// `max_background_jobs` alone it would give a quarter to flushes, and a store that offloads needs
/// more compactions than that leaves.
#[allow(deprecated)] // deprecated in favour of that division, and still the only way to name both
fn set_background_jobs(db: &mut Options, settings: &StoreSettings) {
    db.set_max_background_flushes(int_of(settings.background_flushes));
    db.set_max_background_compactions(int_of(settings.background_compactions));
}

/// The options from which a worker's override is made: only what RocksDB does not take from the
/// owner's OPTIONS file.
pub(crate) fn worker_options(table_format: TableFormat) -> Options {
    let mut worker = Options::default();
    let mut table = table_options(table_format);
    // A compaction reads every block once.
    table.disable_cache();
    worker.set_block_based_table_factory(&table);
    // Nobody asks here for the hashes of keys.
    add_collectors(&mut worker, table_format.collects, &Sketching::new(0).into());
    worker.set_file_checksum_gen_factory(&FileChecksumGenFactory::crc32c());
    worker
}

/// What decides how a table looks on disk: alike on owner and worker.
fn table_options(format: TableFormat) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_size(usize_of(format.block_bytes));
    if format.bloom_bits_per_key > 0 {
        table.set_bloom_filter(format.bloom_bits_per_key.into(), false);
    }
    table
}

fn compression(compression: Compression) -> DBCompressionType {
    match compression {
        Compression::None => DBCompressionType::None,
        Compression::Lz4 => DBCompressionType::Lz4,
        Compression::Zstd => DBCompressionType::Zstd,
    }
}

/// Options are validated below these limits; beyond them the greatest value is meant.
fn usize_of(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn int_of(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
