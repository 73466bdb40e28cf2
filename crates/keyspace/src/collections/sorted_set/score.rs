//! Scores as bytes that sort as the scores do, and the places of members.
//!
//! The eight bytes of a score are its IEEE 754 bits, big-endian, with the sign bit flipped where it
//! is clear and all bits flipped where it is set. -0 is written as 0: both are the same score, and
//! members of one score are ordered by their bytes. No score is NaN.
//!
//! The place of a member is its score's bytes and then its own: what sorted sets are ordered by,
//! whatever their form.

use std::ops::Range;

use ecotone_engine::Error as StoreError;

use crate::collections::corrupt;

/// Bytes of a score.
pub const SCORE_BYTES: usize = 8;

const SIGN: u64 = 1 << 63;

/// The rank of `score` among all scores.
fn rank(score: f64) -> u64 {
    debug_assert!(!score.is_nan(), "no score is NaN");
    let bits = if score == 0.0 { 0 } else { score.to_bits() };
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}

/// `score` as bytes.
pub fn encode(score: f64) -> [u8; SCORE_BYTES] {
    rank(score).to_be_bytes()
}

/// The score that `bytes` are.
///
/// # Errors
///
/// [`StoreError::Corrupt`].
pub fn decode(bytes: &[u8]) -> Result<f64, StoreError> {
    let score = <[u8; SCORE_BYTES]>::try_from(bytes).ok().map(|bytes| {
        let rank = u64::from_be_bytes(bytes);
        f64::from_bits(if rank & SIGN == 0 { !rank } else { rank ^ SIGN })
    });
    score.filter(|score| !score.is_nan()).ok_or_else(|| corrupt("a score of a sorted set is not a number"))
}

/// The place of `member` with `score`.
pub fn place(score: f64, member: &[u8]) -> Vec<u8> {
    [&encode(score)[..], member].concat()
}

/// Score and member of a place.
///
/// # Errors
///
/// [`StoreError::Corrupt`].
pub fn split(place: &[u8]) -> Result<(f64, &[u8]), StoreError> {
    let (score, member) = place.split_at(place.len().min(SCORE_BYTES));
    Ok((decode(score)?, member))
}

/// Before all places with `score`.
pub fn before(score: f64) -> Vec<u8> {
    encode(score).to_vec()
}

/// Behind all places with `score`.
pub fn behind(score: f64) -> Vec<u8> {
    // The greatest score, infinity, is far below the greatest number of 64 bits.
    (rank(score) + 1).to_be_bytes().to_vec()
}

/// All places.
pub fn all() -> Range<Vec<u8>> {
    Vec::new()..vec![u8::MAX; SCORE_BYTES]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scores_are_these_bytes() {
        for (score, bytes) in [
            (f64::NEG_INFINITY, 0x000F_FFFF_FFFF_FFFF_u64),
            (-f64::MAX, 0x0010_0000_0000_0000),
            (-1.0, 0x400F_FFFF_FFFF_FFFF),
            (-f64::from_bits(1), 0x7FFF_FFFF_FFFF_FFFE),
            (-0.0, 0x8000_0000_0000_0000),
            (0.0, 0x8000_0000_0000_0000),
            (f64::from_bits(1), 0x8000_0000_0000_0001),
            (1.0, 0xBFF0_0000_0000_0000),
            (1.23e9, 0xC1D2_5413_E000_0000),
            (f64::MAX, 0xFFEF_FFFF_FFFF_FFFF),
            (f64::INFINITY, 0xFFF0_0000_0000_0000),
        ] {
            assert_eq!(u64::from_be_bytes(encode(score)), bytes, "{score}");
        }
        assert!(decode(&[0xFF; 8]).is_err() && decode(&[0; 8]).is_err() && decode(&[0x80; 7]).is_err());
    }

    proptest! {
        #[test]
        fn places_sort_as_scores_and_members(a: f64, b: f64, one: Vec<u8>, two: Vec<u8>) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            let order = a.partial_cmp(&b).unwrap().then_with(|| one.cmp(&two));
            prop_assert_eq!(place(a, &one).cmp(&place(b, &two)), order);
            let found = place(a, &one);
            prop_assert_eq!(split(&found).unwrap(), (a, &one[..]));
            prop_assert!(before(a) <= found && found < behind(a) && all().contains(&found));
        }
    }
}
