//! RocksDB's options for the bare targets: the same as the engine sets, from the same table; and
//! BlobDB's beside them.
//!
//! The engine's own list is private to it, and stays so: the point of this target is that nothing
//! of ours is in it. A test opens both and compares the option files that RocksDB wrote, so the two
//! lists cannot drift apart.

use ecotone_engine::{
    BYTES_PER_SYNC, Compression, PENDING_SLOWDOWN_BYTES, PENDING_STOP_BYTES, Separation, StoreSettings,
};
use rust_rocksdb::statistics::StatsLevel;
use rust_rocksdb::{
    BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, FileChecksumGenFactory, Options, WriteBufferManager,
};

use crate::target::TargetSettings;

/// The block cache where no memory limit is set, in bytes: the engine's.
const OWN_CACHE_BYTES: usize = 64 << 20;

/// Memtables may take one part in so many of a memory limit: the engine's.
const MEMTABLE_SHARE: usize = 2;

/// Of a memtable, for a filter of its keys: the engine's.
const MEMTABLE_FILTER_SHARE: f64 = 0.01;

/// The options of the database and of its data column family.
pub(super) fn database(options: &StoreSettings) -> Options {
    let mut db = Options::default();
    log_and_manifest(&mut db);
    checks(&mut db);
    shape(&mut db, options);
    db.set_memtable_whole_key_filtering(true);
    db.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_SHARE);

    let mut table = BlockBasedOptions::default();
    table.set_block_size(size(options.block_bytes));
    if options.bloom_bits_per_key > 0 {
        table.set_bloom_filter(options.bloom_bits_per_key.into(), false);
    }
    match options.memory_limit_bytes {
        Some(limit_bytes) => {
            let limit = size(limit_bytes);
            let cache = Cache::new_lru_cache(limit);
            db.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager_with_cache(
                limit / MEMTABLE_SHARE,
                false,
                cache.clone(),
            ));
            table.set_block_cache(&cache);
            table.set_cache_index_and_filter_blocks(true);
            table.set_cache_index_and_filter_blocks_with_high_priority(true);
            table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        }
        None => table.set_block_cache(&Cache::new_lru_cache(OWN_CACHE_BYTES)),
    }
    db.set_block_based_table_factory(&table);
    db
}

/// BlobDB: values separated from their keys in files as long as our segments, moved by compactions
/// out of old files as the settings say.
pub(super) fn blobs(db: &mut Options, separation: &Separation, settings: &TargetSettings) {
    db.set_enable_blob_files(true);
    db.set_min_blob_size(separation.min_bytes.into());
    db.set_blob_file_size(separation.segment_bytes);
    db.set_enable_blob_gc(true);
    db.set_blob_gc_age_cutoff(settings.blob_gc_age_cutoff);
    db.set_blob_gc_force_threshold(settings.blob_gc_force_threshold);
    db.set_blob_compression_type(compression(settings.blob_compression));
}

fn log_and_manifest(db: &mut Options) {
    db.set_recycle_log_file_num(0);
    db.set_reuse_manifest_on_open(false);
    db.set_async_wal_precreate(false);
    db.set_manual_wal_flush(false);
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    db.set_track_and_verify_wals_in_manifest(true);
    db.set_max_manifest_file_size(64 << 20);
    db.set_max_log_file_size(16 << 20);
    db.set_keep_log_file_num(3);
}

fn checks(db: &mut Options) {
    db.set_paranoid_checks(true);
    db.set_compaction_verify_record_count(true);
    db.set_flush_verify_memtable_count(true);
    db.set_verify_sst_unique_id_in_manifest(true);
    db.set_file_checksum_gen_factory(&FileChecksumGenFactory::crc32c());
    db.set_skip_stats_update_on_db_open(false);
    db.set_stats_dump_period_sec(0);
    db.set_stats_persist_period_sec(0);
    db.enable_statistics();
    db.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
}

fn shape(db: &mut Options, options: &StoreSettings) {
    db.set_write_buffer_size(size(options.memtable_bytes));
    db.set_max_write_buffer_number(count(options.memtable_count));
    db.set_level_zero_file_num_compaction_trigger(count(options.l0_compaction_trigger));
    db.set_level_zero_slowdown_writes_trigger(count(options.l0_slowdown_trigger));
    db.set_level_zero_stop_writes_trigger(count(options.l0_stop_trigger));
    db.set_max_bytes_for_level_base(options.level_base_bytes);
    db.set_max_bytes_for_level_multiplier(options.level_multiplier.into());
    db.set_target_file_size_base(options.target_file_bytes);
    db.set_soft_pending_compaction_bytes_limit(size(PENDING_SLOWDOWN_BYTES));
    db.set_hard_pending_compaction_bytes_limit(size(PENDING_STOP_BYTES));
    db.set_max_subcompactions(options.max_subcompactions);
    background_jobs(db, options);
    db.set_compression_type(compression(options.compression));
    db.set_max_open_files(options.max_open_files.map_or(-1, count));
    if let Some(bits) = options.table_cache_shard_bits() {
        db.set_table_cache_num_shard_bits(bits);
    }
    if options.max_wal_bytes > 0 {
        db.set_max_total_wal_size(options.max_wal_bytes);
    }
    db.set_bytes_per_sync(BYTES_PER_SYNC);
    db.set_wal_bytes_per_sync(BYTES_PER_SYNC);
    if options.compaction_readahead_bytes > 0 {
        db.set_compaction_readahead_size(size(options.compaction_readahead_bytes));
    }
}

fn compression(compression: Compression) -> DBCompressionType {
    match compression {
        Compression::None => DBCompressionType::None,
        Compression::Lz4 => DBCompressionType::Lz4,
        Compression::Zstd => DBCompressionType::Zstd,
    }
}

#[allow(deprecated)] // the engine names both numbers too; the newer option divides one between them
fn background_jobs(db: &mut Options, options: &StoreSettings) {
    db.set_max_background_flushes(count(options.background_flushes));
    db.set_max_background_compactions(count(options.background_compactions));
}

/// Beyond the greatest number of the platform that number is meant.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
