//! The store: tree, writers, value log, space.

use ecotone_engine::{Codec, CompressionProperties, DedupProperties, FreeSpace, ValueLogProperties};

use super::page::Page;
use crate::http::status::ServingParts;
use crate::monitor::ServerSample;
use crate::monitor::taken_and_live_bytes;

pub(super) fn write(page: &mut Page, sample: Option<&ServerSample>, parts: Option<&ServingParts>) {
    writers(page, sample, parts);
    tree(page, sample);
    work(page, sample);
    values(page, sample.and_then(|sample| sample.values.as_ref()));
    compression(page, sample.and_then(|sample| sample.compression.as_ref()));
    duplicates(page, sample.and_then(|sample| sample.dedup.as_ref()));
    space(page, sample, sample.and_then(|sample| sample.room.as_ref()));
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn writers(page: &mut Page, sample: Option<&ServerSample>, parts: Option<&ServingParts>) {
    let states = sample.into_iter().flat_map(|sample| {
        let of = &sample.properties;
        let slowed = !of.write_stopped && of.delayed_write_rate_bytes_per_s > 0;
        [(["run"], !of.write_stopped && !slowed), (["slowed"], slowed), (["stopped"], of.write_stopped)]
    });
    page.gauges(
        "ecotone_store_writers",
        "1 for the state that writers are in: they run, are slowed, or are stopped until compactions catch up.",
        ["state"],
        states,
    );
    let stalls = sample.into_iter().flat_map(|sample| {
        [(["slowed"], seconds(sample.counters.delayed_us)), (["stopped"], seconds(sample.counters.stopped_us))]
    });
    page.counters(
        "ecotone_store_stall_seconds_total",
        "Time by the clock in which writers were slowed or stopped.",
        ["state"],
        stalls,
    );
    page.counter(
        "ecotone_store_writer_wait_seconds_total",
        "Time that writers waited because of it, summed over writers.",
        sample.map(|sample| seconds(sample.counters.writer_stall_us)),
    );
    page.gauge(
        "ecotone_store_slowed_write_bytes_per_second",
        "The rate that writers are slowed to; 0 when they are not.",
        sample.map(|sample| sample.properties.delayed_write_rate_bytes_per_s),
    );
    page.gauge(
        "ecotone_store_stall_threshold_tables",
        "Tables in level 0 from which on writers are slowed.",
        parts.map(|parts| parts.stall_threshold_tables),
    );
}

fn tree(page: &mut Page, sample: Option<&ServerSample>) {
    let levels = || sample.into_iter().flat_map(|sample| sample.properties.levels.iter().enumerate());
    page.gauges(
        "ecotone_store_level_tables",
        "Tables by level; level 0 holds what flushes wrote.",
        ["level"],
        levels().map(|(level, of)| ([level.to_string()], of.tables)),
    );
    page.gauges(
        "ecotone_store_level_bytes",
        "Bytes of the tables by level.",
        ["level"],
        levels().map(|(level, of)| ([level.to_string()], of.bytes)),
    );
    let tree = sample.map(|sample| &sample.properties);
    for (name, help, value) in [
        ("ecotone_store_table_bytes", "Bytes of all live tables.", tree.map(|of| of.table_bytes)),
        (
            "ecotone_store_live_bytes",
            "Bytes of what lives in tables and segments, by RocksDB's estimate and the value log's count, without shadowed versions.",
            sample.map(|sample| taken_and_live(sample).1),
        ),
        (
            "ecotone_store_keys",
            "Keys of clients, as INFO keyspace counts them: within a tenth and a minute. Without clients entries, by RocksDB's estimate.",
            sample.and_then(|sample| sample.keys),
        ),
        ("ecotone_store_memtable_bytes", "Bytes of all memtables.", tree.map(|of| of.memtable_bytes)),
        ("ecotone_store_memtables_waiting", "Memtables that wait for a flush.", tree.map(|of| of.immutable_memtables)),
        (
            "ecotone_store_pending_compaction_bytes",
            "RocksDB's estimate of what compactions must rewrite until every level is within its target.",
            tree.map(|of| of.pending_compaction_bytes),
        ),
        ("ecotone_store_running_flushes", "Flushes that run.", tree.map(|of| of.running_flushes)),
        (
            "ecotone_store_running_compactions",
            "Compactions that run, those that wait for a worker included.",
            tree.map(|of| of.running_compactions),
        ),
        (
            "ecotone_store_running_offloaded_compactions",
            "Compactions that wait for a worker.",
            tree.map(|of| of.running_remote_compactions),
        ),
        ("ecotone_store_block_cache_bytes", "Bytes in the block cache.", tree.map(|of| of.block_cache_bytes)),
        ("ecotone_store_row_cache_bytes", "Bytes in the row cache.", tree.map(|of| of.row_cache_bytes)),
    ] {
        page.gauge(name, help, value);
    }
    page.gauge(
        "ecotone_store_space_amplification_ratio",
        "SAR: bytes of tables and segments for each byte that lives, by estimate; of what has left the memtables.",
        sample.and_then(space_amplification),
    );
}

fn taken_and_live(sample: &ServerSample) -> (u64, u64) {
    taken_and_live_bytes(&sample.properties, sample.values.as_ref(), sample.dedup.as_ref())
}

/// None before anything was flushed.
fn space_amplification(sample: &ServerSample) -> Option<f64> {
    let (taken, live) = taken_and_live(sample);
    (live > 0 && sample.counters.flushes > 0).then(|| taken as f64 / live as f64)
}

fn work(page: &mut Page, sample: Option<&ServerSample>) {
    let done = sample.map(|sample| &sample.counters);
    for (name, help, value) in [
        ("ecotone_store_written_keys_total", "Keys written, deletions included.", done.map(|of| of.keys_written)),
        (
            "ecotone_store_written_bytes_total",
            "Bytes of keys and values written by users of the store: what write amplification is counted by.",
            done.map(ecotone_engine::Counters::user_bytes),
        ),
        (
            "ecotone_store_inserted_bytes_total",
            "Bytes that came into memtables: keys, and values or their pointers.",
            done.map(|of| of.bytes_written),
        ),
        ("ecotone_store_read_keys_total", "Keys looked up.", done.map(|of| of.keys_read)),
        ("ecotone_store_read_bytes_total", "Bytes of values read by lookups.", done.map(|of| of.bytes_read)),
        ("ecotone_store_wal_bytes_total", "Bytes written to the write-ahead log.", done.map(|of| of.wal_bytes)),
        ("ecotone_store_wal_syncs_total", "Syncs of the write-ahead log.", done.map(|of| of.wal_syncs)),
        ("ecotone_store_flushes_total", "Flushes that ended.", done.map(|of| of.flushes)),
        ("ecotone_store_flush_bytes_total", "Bytes that flushes wrote.", done.map(|of| of.flush_bytes)),
        (
            "ecotone_store_compactions_total",
            "Compactions that ended, wherever they ran.",
            done.map(|of| of.compactions),
        ),
        (
            "ecotone_store_compactions_offloaded_total",
            "Compactions of which a part ran on a worker.",
            done.map(|of| of.remote_compactions),
        ),
        ("ecotone_store_compactions_failed_total", "Compactions that failed.", done.map(|of| of.failed_compactions)),
        (
            "ecotone_store_compactions_deferred_total",
            "Compactions that were deferred because they would not have fitted; one that is tried again counts again.",
            done.map(|of| of.compactions_deferred),
        ),
        (
            "ecotone_store_expired_values_total",
            "Values that compactions of this server removed because they had expired.",
            done.map(|of| of.expired_values),
        ),
        (
            "ecotone_store_skipped_entries_total",
            "Entries that scans stepped over: deletions, what these shadow, and older versions.",
            done.map(|of| of.skipped_entries),
        ),
        (
            "ecotone_store_range_cleanups_total",
            "Flushes and compactions of ranges that were made because scans stepped over so many entries there.",
            done.map(|of| of.range_cleanups),
        ),
        (
            "ecotone_store_block_cache_hits_total",
            "Blocks found in the block cache.",
            done.map(|of| of.block_cache_hits),
        ),
        (
            "ecotone_store_block_cache_misses_total",
            "Blocks not found in the block cache.",
            done.map(|of| of.block_cache_misses),
        ),
        (
            "ecotone_store_row_cache_hits_total",
            "Lookups of keys that found a row in the row cache.",
            done.map(|of| of.row_cache_hits),
        ),
        (
            "ecotone_store_row_cache_misses_total",
            "Lookups of keys that found none there.",
            done.map(|of| of.row_cache_misses),
        ),
        (
            "ecotone_store_background_errors_total",
            "Errors of flushes and compactions.",
            sample.map(|sample| sample.properties.background_errors),
        ),
    ] {
        page.counter(name, help, value);
    }
    page.counters(
        "ecotone_store_compaction_read_bytes_total",
        "Bytes that compactions of this store read, here or on a worker.",
        ["place"],
        done.into_iter().flat_map(|of| [(["here"], of.compaction_read_bytes), (["worker"], of.remote_read_bytes)]),
    );
    page.counters(
        "ecotone_store_compaction_written_bytes_total",
        "Bytes that compactions of this store wrote, here or on a worker.",
        ["place"],
        done.into_iter()
            .flat_map(|of| [(["here"], of.compaction_written_bytes), (["worker"], of.remote_written_bytes)]),
    );
}

fn values(page: &mut Page, values: Option<&ValueLogProperties>) {
    for (name, help, value) in [
        ("ecotone_value_log_segments", "Segments of the value log.", values.map(|of| of.segments)),
        ("ecotone_value_log_bytes", "Bytes of all segments.", values.map(|of| of.bytes)),
        (
            "ecotone_value_log_referenced_bytes",
            "Bytes of records that a table references; values in memtables are not counted yet.",
            values.map(|of| of.referenced_bytes),
        ),
        (
            "ecotone_value_log_user_bytes",
            "The same with each value as long as it was before it was compressed.",
            values.map(|of| of.referenced_bytes + of.saved_bytes),
        ),
        (
            "ecotone_value_log_gc_segments",
            "Segments that forced garbage collection is working on.",
            values.map(|of| of.gc_segments),
        ),
    ] {
        page.gauge(name, help, value);
    }
    for (name, help, value) in [
        (
            "ecotone_value_log_gc_bytes_total",
            "Bytes of records that garbage collection copied.",
            values.map(|of| of.relocated_bytes),
        ),
        ("ecotone_value_log_removed_segments_total", "Segments removed.", values.map(|of| of.removed_segments)),
        ("ecotone_value_log_removed_bytes_total", "Bytes of removed segments.", values.map(|of| of.removed_bytes)),
    ] {
        page.counter(name, help, value);
    }
    page.gauge(
        "ecotone_value_log_compression_ratio",
        "How many times what is stored of them the values are that a table references: `ecotone_value_log_user_bytes` for each of `ecotone_value_log_referenced_bytes`.",
        values.map(ValueLogProperties::compression_ratio),
    );
    page.gauge(
        "ecotone_value_log_gc_ratio",
        "The ratio of the bytes of all segments to those that may live at which garbage collection is forced: higher while writers are throttled, as far as burst credit goes, lower as space gets short.",
        values.map(|of| of.ratio_per_mille as f64 / 1e3),
    );
    page.counter(
        "ecotone_value_log_throttled_seconds_total",
        "Time for which writers were throttled so that garbage collection keeps up, summed over writers.",
        values.map(|of| of.throttled_ms as f64 / 1e3),
    );
}

fn compression(page: &mut Page, compression: Option<&CompressionProperties>) {
    const CODECS: [Codec; 3] = [Codec::None, Codec::Lz4, Codec::Zstd];
    let codecs = compression.into_iter().flat_map(|of| {
        let origins = [("written", of.written_by), ("relocated", of.relocated_by)];
        origins
            .into_iter()
            .flat_map(|(origin, used)| CODECS.into_iter().map(move |codec| ([origin, codec.name()], codec == used)))
    });
    page.gauges(
        "ecotone_value_compression_codec",
        "1 for the codec by which separated values are compressed that clients write, and those that garbage collection moves.",
        ["origin", "codec"],
        codecs,
    );
    let by_origin = |of: &CompressionProperties| [("written", of.written), ("relocated", of.relocated)];
    page.counters(
        "ecotone_value_compression_user_bytes_total",
        "Bytes of separated values, before they were compressed, that were written or moved since the store was opened.",
        ["origin"],
        compression.into_iter().flat_map(by_origin).map(|(origin, of)| ([origin], of.raw_bytes)),
    );
    page.counters(
        "ecotone_value_compression_stored_bytes_total",
        "Bytes that were stored of them.",
        ["origin"],
        compression.into_iter().flat_map(by_origin).map(|(origin, of)| ([origin], of.stored_bytes)),
    );
    page.gauges(
        "ecotone_value_compression_memory_bytes",
        "Memory for compressing values: dictionaries, what threads keep to compress and decompress, and samples with a training that runs.",
        ["of"],
        compression.into_iter().flat_map(|of| {
            [
                (["dictionaries"], of.dictionary_memory_bytes),
                (["threads"], of.thread_memory_bytes),
                (["trainings"], of.training_memory_bytes),
            ]
        }),
    );
    for (name, help, value) in [
        (
            "ecotone_value_compression_trainings_total",
            "Trainings of a dictionary since the store was opened.",
            compression.map(|of| of.trainings),
        ),
        (
            "ecotone_value_compression_dictionaries_total",
            "Dictionaries among them that took the place of the one before.",
            compression.map(|of| of.installed_dictionaries),
        ),
    ] {
        page.counter(name, help, value);
    }
}

fn duplicates(page: &mut Page, dedup: Option<&DedupProperties>) {
    let levels = || dedup.into_iter().flat_map(|of| of.levels.iter().enumerate());
    page.gauges(
        "ecotone_store_shadowed_keys",
        "Versions by level that newer ones in other tables shadow, by estimate; only where keys are sampled.",
        ["level"],
        levels().map(|(level, of)| ([level.to_string()], of.shadowed_keys)),
    );
    page.gauges(
        "ecotone_store_shadowed_bytes",
        "Bytes by level that shadowed versions take, in tables or in the value log, by estimate: garbage that no compaction has met. What range deletions shadow is not among it.",
        ["level"],
        levels().map(|(level, of)| ([level.to_string()], of.shadowed_bytes)),
    );
    page.gauge(
        "ecotone_dedup_ratio",
        "DUP_RATIO: entries of all tables for each shadowed version, by estimate; none where nothing is shadowed.",
        dedup.and_then(DedupProperties::ratio),
    );
    page.gauge(
        "ecotone_dedup_error_ratio",
        "One standard deviation of that estimate by itself.",
        dedup.and_then(|of| of.relative_error),
    );
    for (name, help, value) in [
        (
            "ecotone_dedup_unsampled_tables",
            "Tables without samples of their keys: what is shadowed in them is not estimated.",
            dedup.map(|of| of.unsampled_tables),
        ),
        (
            "ecotone_dedup_unfiltered_tables",
            "Tables whose keys no check finds, where filters are asked: there is no filter of theirs in memory.",
            dedup.map(|of| of.unfiltered_tables),
        ),
        (
            "ecotone_dedup_busy",
            "1 while a merge for duplicates runs, or an extension waits for its permit.",
            dedup.map(|of| u64::from(of.is_busy)),
        ),
    ] {
        page.gauge(name, help, value);
    }
    for (name, help, value) in [
        (
            "ecotone_dedup_checks_total",
            "Compactions that were checked for duplicates below.",
            dedup.map(|of| of.checks),
        ),
        (
            "ecotone_dedup_checks_dropped_total",
            "Compactions that were not checked because too many had ended.",
            dedup.map(|of| of.checks_dropped),
        ),
        (
            "ecotone_dedup_extensions_total",
            "Checks that found a range in which a merge to the last level is profitable, the one after a start among them.",
            dedup.map(|of| of.extensions),
        ),
        ("ecotone_dedup_merges_total", "Merges made for that.", dedup.map(|of| of.merges)),
        (
            "ecotone_dedup_merges_aborted_total",
            "Merges aborted because a compaction had taken some of their tables.",
            dedup.map(|of| of.merges_aborted),
        ),
        (
            "ecotone_dedup_expected_keys_total",
            "Versions that merges were expected to free.",
            dedup.map(|of| of.expected_keys),
        ),
        ("ecotone_dedup_found_keys_total", "Versions that merges freed.", dedup.map(|of| of.found_keys)),
        ("ecotone_dedup_read_bytes_total", "Bytes of tables that merges read.", dedup.map(|of| of.read_bytes)),
        ("ecotone_dedup_written_bytes_total", "Bytes of tables that merges wrote.", dedup.map(|of| of.written_bytes)),
    ] {
        page.counter(name, help, value);
    }
    for (name, help, counts) in [
        (
            "ecotone_dedup_checks_skipped_total",
            "Checks that extended nothing, by reason; only with a threshold.",
            dedup.map(|of| &of.checks_left),
        ),
        (
            "ecotone_dedup_merges_deferred_total",
            "Times that merges were deferred, by reason: for the sake of writers, for space or tables, or since those before freed little or failed.",
            dedup.map(|of| &of.merges_deferred),
        ),
    ] {
        let counts = counts.into_iter().flatten();
        page.counters(name, help, ["reason"], counts.map(|(reason, count)| ([*reason], *count)));
    }
    page.counters(
        "ecotone_dedup_cpu_seconds_total",
        "Processor time for duplicates: collecting samples and filters and keeping them, checking, merging.",
        ["work"],
        dedup.into_iter().flat_map(|of| {
            [
                (["collecting"], seconds(of.sketch_cpu_us)),
                (["checking"], seconds(of.check_cpu_us)),
                (["merging"], seconds(of.merge_cpu_us)),
            ]
        }),
    );
}

fn space(page: &mut Page, sample: Option<&ServerSample>, space: Option<&FreeSpace>) {
    for (name, help, value) in [
        ("ecotone_space_free_bytes", "Free on the file system of the store.", space.map(|of| of.free_bytes)),
        (
            "ecotone_space_disk_bytes",
            "Bytes of that file system that are free or taken.",
            space.map(|of| of.disk_bytes),
        ),
        (
            "ecotone_space_used_bytes",
            "What the store's folder takes; only with space.max_bytes.",
            space.and_then(|of| of.used_bytes),
        ),
        (
            "ecotone_space_max_bytes",
            "What it may take: space.max_bytes; only where it is set.",
            space.and_then(|of| of.max_bytes),
        ),
        (
            "ecotone_space_reserve_bytes",
            "What is to stay free beside the reservations; with less, writes are refused.",
            space.map(|of| of.reserve_bytes),
        ),
        (
            "ecotone_space_reservations_bytes",
            "What is reserved for memtables, the next log and compactions.",
            space.map(|of| of.reserved_bytes),
        ),
    ] {
        page.gauge(name, help, value);
    }
    page.gauge(
        "ecotone_space_spare_bytes",
        "What is left when all that is reserved is written: compare it with the reserve. Negative where it does not fit.",
        space.map(FreeSpace::spare_bytes),
    );
    page.gauge(
        "ecotone_space_writes_refused",
        "1 while writes are refused because space is low.",
        space.map(|of| of.writes_refused),
    );
    let done = sample.map(|sample| &sample.counters);
    page.counter(
        "ecotone_space_refused_writes_total",
        "Writes refused because space was low.",
        done.map(|of| of.refused_writes),
    );
    page.counter(
        "ecotone_space_exhausted_total",
        "How often the store began to refuse writes because space was low.",
        done.map(|of| of.times_out_of_space),
    );
}
