//! In which levels stale versions shadow.

use std::cmp::Reverse;

use crate::duplicates::Duplicates;
use ecotone_types::units::Bytes;

/// No tree is deeper; what is said to be counts here.
const DEEPEST: u32 = 63;

/// What of one level is replaced: by a level above, or by a newer table of L0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShadowedLevel {
    /// Versions that a newer one shadows.
    pub keys: u64,
    /// What they take.
    pub bytes: Bytes,
    /// How many of them were sampled: what the error of `keys` follows from.
    pub sampled: u64,
}

/// Per level, L0 first, as far as tables go. Where all tables have one, its bytes sum to
/// [`Duplicates::shadowed_bytes`].
///
/// `level_of` gives a table's level, `None` for one that is gone meanwhile: nothing shadows in it,
/// and it shadows nothing.
pub fn shadowed_by_level(duplicates: &Duplicates, level_of: impl Fn(u64) -> Option<u32>) -> Vec<ShadowedLevel> {
    let mut levels = Vec::new();
    let mut versions = Vec::new();
    for (table, samples) in duplicates.tables() {
        let Some(level) = level_of(table) else { continue };
        let level = level.min(DEEPEST) as usize;
        if levels.len() <= level {
            levels.resize(level + 1, ShadowedLevel::default());
        }
        let repeated = samples.iter().filter(|sample| duplicates.is_repeated(sample.hash));
        versions.extend(repeated.map(|sample| (sample.hash, Reverse(sample.sequence), table, level, sample.bytes)));
    }
    // As they lie in `duplicates`: the newest first.
    versions.sort_unstable();
    let one_in = duplicates.one_in();
    for (_, _, _, level, bytes) in versions.chunk_by(|a, b| a.0 == b.0).flat_map(|versions| &versions[1..]) {
        let shadowed = &mut levels[*level];
        shadowed.keys += one_in;
        shadowed.sampled += 1;
        shadowed.bytes += Bytes(u64::from(bytes.unwrap_or(0)).saturating_mul(one_in));
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duplicates::{KeySample, SAMPLED_ONE_IN};

    fn sample(key: u64, bytes: Option<u32>, sequence: u64) -> KeySample {
        KeySample { hash: key * SAMPLED_ONE_IN, bytes, segment: None, sequence }
    }

    #[test]
    fn what_is_shadowed_counts_where_it_stands_and_not_where_it_was_replaced() {
        let mut duplicates = Duplicates::new(1000);
        // Key 1: in L0 twice, and in L2. Key 2: deleted in L1, in L2 still. Key 3: once.
        duplicates.add(10, vec![sample(1, Some(100), 8)]);
        duplicates.add(11, vec![sample(1, Some(100), 9)]);
        duplicates.add(12, vec![sample(2, None, 7)]);
        duplicates.add(13, vec![sample(1, Some(100), 0), sample(2, Some(50), 0), sample(3, Some(70), 0)]);
        let shadowed = shadowed_by_level(&duplicates, |table| Some([0, 0, 1, 2][(table - 10) as usize]));
        let level = |sampled, bytes: u64| ShadowedLevel { keys: sampled * 64, bytes: Bytes(bytes * 64), sampled };
        assert_eq!(shadowed, [level(1, 100), level(0, 0), level(2, 150)]);
        assert_eq!(shadowed.iter().map(|level| level.bytes).sum::<Bytes>(), duplicates.shadowed_bytes());
        // The newer one of L0 is gone, and so is that of L1.
        let shadowed = shadowed_by_level(&duplicates, |table| [Some(0), None, None, Some(2)][(table - 10) as usize]);
        assert_eq!(shadowed, [level(0, 0), level(0, 0), level(1, 100)]);
    }

    #[test]
    fn a_deletion_that_was_overwritten_shadows_without_bytes() {
        let mut duplicates = Duplicates::new(1000);
        duplicates.add(1, vec![sample(1, Some(30), 9)]);
        duplicates.add(2, vec![sample(1, None, 8)]);
        let shadowed = shadowed_by_level(&duplicates, |table| Some(table as u32));
        assert_eq!((shadowed[2].keys, shadowed[2].bytes), (64, Bytes(0)));
    }

    #[test]
    fn a_level_that_cannot_be_takes_no_memory() {
        let mut duplicates = Duplicates::new(1000);
        duplicates.add(1, vec![sample(1, Some(30), 9)]);
        assert_eq!(shadowed_by_level(&duplicates, |_| Some(u32::MAX)).len(), 64);
    }
}
