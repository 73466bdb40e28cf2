//! What the tables that there are hold twice, by what is known of them.

use std::collections::HashMap;

use ecotone_policy::dedup::estimate::Estimate;
use ecotone_policy::dedup::levels::shadowed_by_level;
use ecotone_rocks::tables::FamilyTable;

use super::sample_registry::Sketches;
use super::{DedupLevel, DedupProperties};

/// Adds to `properties` what `tables` hold twice, by what is known of them.
pub(crate) fn with_levels(properties: DedupProperties, tables: &[FamilyTable], sketches: &Sketches) -> DedupProperties {
    let duplicates = sketches.duplicates();
    let one_in = duplicates.one_in();
    let level_of: HashMap<_, _> = tables.iter().map(|table| (table.file_number, table.level)).collect();
    let levels = shadowed_by_level(duplicates, |table| level_of.get(&table).copied());
    let entries = |table: &FamilyTable| match table.entries {
        // RocksDB has not looked at it since the store was opened.
        0 => duplicates.samples(table.file_number).map_or(0, <[_]>::len) as u64 * one_in,
        entries => entries,
    };
    let shadowed_keys = levels.iter().map(|level| level.keys).sum();
    let estimate = Estimate {
        duplicate_keys: shadowed_keys,
        sampled_duplicates: levels.iter().map(|level| level.sampled).sum(),
        one_in,
        ..Estimate::default()
    };
    DedupProperties {
        total_keys: tables.iter().map(entries).sum(),
        duplicate_keys: shadowed_keys,
        relative_error: estimate.relative_error(),
        shadowed_bytes: duplicates.shadowed_bytes().0,
        levels: levels
            .iter()
            .map(|level| DedupLevel { shadowed_keys: level.keys, shadowed_bytes: level.bytes.0 })
            .collect(),
        unsampled_tables: tables.iter().filter(|table| !sketches.is_sampled(table.file_number)).count() as u64,
        unfiltered_tables: tables.iter().filter(|table| sketches.lacks_filter(table.file_number)).count() as u64,
        ..properties
    }
}
