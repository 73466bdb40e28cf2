//! The entries of a large sorted set: two for each member.
//!
//! ```text
//!  'm' hash:u32 member     score      which score a member has; by hash, for cursors and random picks
//!  's' score member                   which member comes next
//! ```
//!
//! The hash is big-endian: the upper half of the member's XXH3 of 64 bits.

use std::ops::{ControlFlow, Range};

use ecotone_engine::Direction;

use super::score;
use crate::collections::{Large, corrupt};
use crate::error::Outcome;
use crate::keys::Keys;
use crate::layout::CollectionId;

const MEMBER: u8 = b'm';
const PLACE: u8 = b's';
const HASH_BYTES: usize = 4;

/// The hash that a member is found by.
pub fn hash(member: &[u8]) -> u32 {
    (twox_hash::XxHash3_64::oneshot(member) >> 32) as u32
}

/// The sub-key of a member: what it is, one behind the other.
fn with_member_key<T>(member: &[u8], then: impl FnOnce(&[&[u8]]) -> T) -> T {
    then(&[&[MEMBER], &hash(member).to_be_bytes(), member])
}

fn place_key(place: &[u8]) -> Vec<u8> {
    [&[PLACE][..], place].concat()
}

pub(super) fn score_of(large: Large, keys: &mut Keys<'_>, member: &[u8]) -> Outcome<Option<f64>> {
    let entry = with_member_key(member, |sub_key| keys.element(large.id, sub_key))?;
    Ok(entry.map(|score| score::decode(&score)).transpose()?)
}

/// Adds `member`, which is not in it, or is with the score `old`.
pub(super) fn put(id: CollectionId, keys: &mut Keys<'_>, member: &[u8], score: f64, old: Option<f64>) -> Outcome {
    if let Some(old) = old {
        keys.remove_placed(id, &[&[PLACE], &score::encode(old), member]);
    }
    let score = score::encode(score);
    with_member_key(member, |sub_key| keys.set_element(id, sub_key, &score))?;
    keys.add_placed(id, &[&[PLACE], &score, member], &[])
}

/// Removes `member`, which is in it with `score`.
pub(super) fn remove(id: CollectionId, keys: &mut Keys<'_>, member: &[u8], score: f64) {
    with_member_key(member, |sub_key| keys.remove_element(id, sub_key));
    keys.remove_placed(id, &[&[PLACE], &score::encode(score), member]);
}

pub(super) fn visit(
    large: Large,
    keys: &mut Keys<'_>,
    range: &Range<Vec<u8>>,
    direction: Direction,
    mut visit: impl FnMut(f64, &[u8]) -> ControlFlow<()>,
) -> Outcome {
    let (start, end) = (place_key(&range.start), place_key(&range.end));
    let mut failed = None;
    keys.visit_elements(large.id, &start..&end, direction, |sub_key, _| match score::split(&sub_key[1..]) {
        Ok((score, member)) => visit(score, member),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Shows `visit` hash, member and score of the members with a hash from `from` on, in the order of
/// their hashes.
pub(super) fn visit_by_hash(
    large: Large,
    keys: &mut Keys<'_>,
    from: u32,
    mut visit: impl FnMut(u32, &[u8], f64) -> ControlFlow<()>,
) -> Outcome {
    let start = [&[MEMBER][..], &from.to_be_bytes()].concat();
    let mut failed = None;
    keys.visit_elements(large.id, &start..&[MEMBER + 1], Direction::Forward, |sub_key, score| {
        let split = sub_key[1..].split_first_chunk::<HASH_BYTES>();
        let split = split.ok_or_else(|| corrupt("a member of a sorted set has no hash"));
        match split.and_then(|(hash, member)| Ok((u32::from_be_bytes(*hash), member, score::decode(score)?))) {
            Ok((hash, member, score)) => visit(hash, member, score),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}
