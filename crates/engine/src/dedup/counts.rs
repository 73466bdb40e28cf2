//! What has been done about duplicates since the store was opened, and what is known of them now.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ecotone_policy::dedup::estimate::Estimate;
use ecotone_policy::dedup::levels::hidden_by_level;
use ecotone_rocks_sys::tables::TableMetadata;

use super::known::Sketches;
use super::{DedupLevel, DedupProperties};

/// Counted by the thread, read by anybody.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(super) checks: AtomicU64,
    pub(super) extensions: AtomicU64,
    pub(super) merges: AtomicU64,
    pub(super) merges_aborted: AtomicU64,
    pub(super) merges_forbidden: AtomicU64,
    pub(super) expected_keys: AtomicU64,
    pub(super) found_keys: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) check_cpu_us: AtomicU64,
    pub(super) merge_cpu_us: AtomicU64,
    pub(super) is_busy: AtomicBool,
}

impl Counts {
    /// What was done, nothing of what there is.
    pub(super) fn properties(&self) -> DedupProperties {
        let count = |count: &AtomicU64| count.load(Relaxed);
        DedupProperties {
            checks: count(&self.checks),
            extensions: count(&self.extensions),
            merges: count(&self.merges),
            merges_aborted: count(&self.merges_aborted),
            merges_forbidden: count(&self.merges_forbidden),
            expected_keys: count(&self.expected_keys),
            found_keys: count(&self.found_keys),
            read_bytes: count(&self.read_bytes),
            written_bytes: count(&self.written_bytes),
            check_cpu_us: count(&self.check_cpu_us),
            merge_cpu_us: count(&self.merge_cpu_us),
            is_busy: self.is_busy.load(Relaxed),
            ..DedupProperties::default()
        }
    }
}

/// Adds to `properties` what `tables` hold twice, by what is known of them.
pub(crate) fn with_levels(
    properties: DedupProperties,
    tables: &[TableMetadata],
    sketches: &Sketches,
) -> DedupProperties {
    let duplicates = sketches.duplicates();
    let one_in = duplicates.one_in();
    let level_of: HashMap<_, _> = tables.iter().map(|table| (table.file_number, table.level)).collect();
    let levels = hidden_by_level(duplicates, |table| level_of.get(&table).copied().unwrap_or(0));
    let entries = |table: &TableMetadata| match table.entries {
        // RocksDB has not looked at it since the store was opened.
        0 => duplicates.samples(table.file_number).map_or(0, <[_]>::len) as u64 * one_in,
        entries => entries,
    };
    let hidden_keys = levels.iter().map(|level| level.keys).sum();
    let estimate = Estimate {
        duplicate_keys: hidden_keys,
        sampled_duplicates: levels.iter().map(|level| level.sampled).sum(),
        one_in,
        ..Estimate::default()
    };
    DedupProperties {
        total_keys: tables.iter().map(entries).sum(),
        duplicate_keys: hidden_keys,
        relative_error: estimate.relative_error(),
        hidden_bytes: duplicates.hidden_bytes().0,
        levels: levels
            .iter()
            .map(|level| DedupLevel { hidden_keys: level.keys, hidden_bytes: level.bytes.0 })
            .collect(),
        unsampled_tables: tables.iter().filter(|table| !sketches.is_sampled(table.file_number)).count() as u64,
        ..properties
    }
}
