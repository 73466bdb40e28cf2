//! In which levels stale versions hide.

use std::cmp::Reverse;

use crate::duplicates::Duplicates;
use crate::units::Bytes;

/// What of one level is replaced: by a level above, or by a newer table of L0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HiddenLevel {
    /// Versions that a newer one hides.
    pub keys: u64,
    /// What they take.
    pub bytes: Bytes,
    /// How many of them were sampled: what the error of `keys` follows from.
    pub sampled: u64,
}

/// Per level, L0 first, as far as tables go. Its bytes sum to [`Duplicates::hidden_bytes`], and are as that is: of a key that was written
/// several times, what is newest takes as much as the others on average.
///
/// `level_of` gives a table's level; for one that is gone meanwhile any will do.
pub fn hidden_by_level(duplicates: &Duplicates, level_of: impl Fn(u64) -> u32) -> Vec<HiddenLevel> {
    let mut levels = Vec::new();
    let mut versions = Vec::new();
    for (table, samples) in duplicates.tables() {
        let level = level_of(table) as usize;
        if levels.len() <= level {
            levels.resize(level + 1, HiddenLevel::default());
        }
        let repeated = samples.iter().filter(|sample| duplicates.is_repeated(sample.hash));
        versions.extend(repeated.map(|sample| (sample.hash, level, Reverse(sample.sequence), sample.bytes)));
    }
    versions.sort_by_key(|(hash, level, sequence, _)| (*hash, *level, *sequence));
    let one_in = duplicates.one_in();
    for versions in versions.chunk_by(|a, b| a.0 == b.0) {
        let [(hash, ..), older @ ..] = versions else { continue };
        let mut bytes = duplicates.hidden_of(*hash);
        let mut weight: u64 = older.iter().map(|(.., bytes)| u64::from(bytes.unwrap_or(0))).sum();
        for (at, (_, level, _, own)) in older.iter().enumerate() {
            let own = u64::from(own.unwrap_or(0));
            let is_last = at + 1 == older.len();
            let share = if is_last { bytes } else { (bytes as u128 * own as u128 / u128::from(weight.max(1))) as u64 };
            weight -= own;
            bytes -= share;
            let hidden = &mut levels[*level];
            hidden.keys += one_in;
            hidden.sampled += 1;
            hidden.bytes += Bytes(share.saturating_mul(one_in));
        }
    }
    levels
}
