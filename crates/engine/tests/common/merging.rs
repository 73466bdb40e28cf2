//! A store in which duplicates are found and merged soon.

use ecotone_engine::{Compression, DedupMode, DedupOptions, ExtensionThreshold, StoreSettings};
use ecotone_policy::dedup::{DedupParameters, DedupThreshold};
use ecotone_types::units::Bytes;

/// A tree whose levels below the last hold half as many keys as that; merges of whatever is found
/// in it, without rests.
pub fn merging() -> StoreSettings {
    StoreSettings {
        memtable_bytes: 128 * 1024,
        level_base_bytes: 1024 * 1024,
        level_multiplier: 2,
        dynamic_levels: false,
        target_file_bytes: 128 * 1024,
        compression: Compression::None,
        dedup: DedupOptions {
            mode: Some(DedupMode::Sample),
            threshold: ExtensionThreshold::At(DedupThreshold::try_from(50.0).unwrap()),
            parameters: DedupParameters {
                max_merge_bytes: Bytes::from_mib(4),
                min_sampled_duplicates: 4,
                rest_share: 0.0,
                ..DedupParameters::default()
            },
            ..DedupOptions::default()
        },
        ..StoreSettings::default()
    }
}
