//! Elements of a large collection that are found by a name: fields of a hash, members of a set.
//!
//! ```text
//!  sub-key:  hash:u32 name
//! ```
//!
//! `hash` is [`hash_of`] the name: elements are scanned in its order, so that a cursor is a number and needs no memory of the server's,
//! and a random number finds an element.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;

use super::{Large, corrupt};
use crate::error::{Failure, Outcome};
use crate::keyspace::{CollectionId, Keys, MAX_KEY_BYTES};

/// Bytes before the name in a sub-key.
pub const HASH_BYTES: usize = 4;

/// The longest name, in bytes: it is part of a key of the store's.
pub const MAX_NAME_BYTES: usize = MAX_KEY_BYTES - HASH_BYTES;

/// Elements that are drawn while other clients wait for the thread: each takes a look of its own.
const MOST_DRAWN_AT_ONCE: u64 = 100;

/// Draws for each different element that is wanted, before all are read instead.
const MOST_DRAWS_EACH: usize = 10;

/// A name and the value of its element, which is empty where there is none.
pub type Pair<'a> = [&'a [u8]; 2];

/// Where a name stands among the others: the upper half of its XXH3.
pub fn hash_of(name: &[u8]) -> u32 {
    (twox_hash::XxHash3_64::oneshot(name) >> 32) as u32
}

/// The sub-key of a name.
pub fn sub_key(name: &[u8]) -> Vec<u8> {
    [&hash_of(name).to_be_bytes(), name].concat()
}

/// Shows `visit` the elements from `hash` on, each with its hash.
///
/// # Errors
///
/// Those of reads.
pub fn visit_from(
    keys: &mut Keys<'_>,
    id: CollectionId,
    hash: u32,
    mut visit: impl FnMut(u32, Pair<'_>) -> ControlFlow<()>,
) -> Outcome {
    let mut makes_sense = true;
    keys.visit_elements_from(id, &hash.to_be_bytes(), |sub_key, value| match sub_key.split_first_chunk() {
        Some((hash, name)) => visit(u32::from_be_bytes(*hash), [name, value]),
        None => {
            makes_sense = false;
            ControlFlow::Break(())
        }
    })?;
    if makes_sense { Ok(()) } else { Err(corrupt("an element of a large collection has no name").into()) }
}

/// One step of a scan that began with the cursor 0: shows `visit` about `count` elements, and gives the next cursor, 0 at the end. What
/// is there from the first step to the last is shown.
///
/// # Errors
///
/// Those of reads.
pub fn scan(
    keys: &mut Keys<'_>,
    id: CollectionId,
    cursor: u64,
    count: usize,
    mut visit: impl FnMut(Pair<'_>),
) -> Outcome<u64> {
    // Beyond the last hash there is nothing.
    let Ok(from) = u32::try_from(cursor.saturating_sub(1)) else { return Ok(0) };
    let (mut visited, mut last, mut next) = (0, from, 0);
    visit_from(keys, id, from, |hash, pair| {
        // Elements of one hash go together: no cursor stands between them.
        if visited >= count && hash != last {
            next = u64::from(hash) + 1;
            return ControlFlow::Break(());
        }
        (visited, last) = (visited + 1, hash);
        visit(pair);
        ControlFlow::Continue(())
    })?;
    Ok(next)
}

/// Shows `visit` elements at random, `count` times or until it breaks; the same ones may come again. Those behind a long gap of hashes
/// are drawn more often.
///
/// # Errors
///
/// Those of reads.
pub fn draw(
    keys: &mut Keys<'_>,
    id: CollectionId,
    count: u64,
    mut visit: impl FnMut(Pair<'_>) -> ControlFlow<()>,
) -> Outcome {
    check_draws(keys, count)?;
    for _ in 0..count {
        let Some([name, value]) = draw_one(keys, id)? else { break };
        if visit([&name, &value]).is_break() {
            break;
        }
    }
    Ok(())
}

/// `count` different elements at random with their values; `None`: that would take more than to read all of them.
///
/// # Errors
///
/// Those of reads.
pub fn draw_different(keys: &mut Keys<'_>, large: Large, count: usize) -> Outcome<Option<Vec<[Vec<u8>; 2]>>> {
    // Of a collection that is much larger than what is wanted, few draws are in vain.
    if (count as u64).saturating_mul(3) > large.elements {
        return Ok(None);
    }
    check_draws(keys, count as u64)?;
    let (mut known, mut drawn) = (HashSet::new(), Vec::with_capacity(count));
    for _ in 0..count * MOST_DRAWS_EACH {
        if drawn.len() == count {
            break;
        }
        let Some(pair) = draw_one(keys, large.id)? else { break };
        if known.insert(pair[0].clone()) {
            drawn.push(pair);
        }
    }
    Ok((drawn.len() == count).then_some(drawn))
}

/// Refuses to draw so many while others wait for the thread.
///
/// # Errors
///
/// [`Failure::MustWait`].
pub fn check_draws(keys: &Keys<'_>, count: u64) -> Outcome {
    if count > MOST_DRAWN_AT_ONCE && !keys.may_take_long() {
        return Err(Failure::MustWait);
    }
    Ok(())
}

/// The element behind a random place. All elements of one hash have the same chance.
fn draw_one(keys: &mut Keys<'_>, id: CollectionId) -> Outcome<Option<[Vec<u8>; 2]>> {
    let place = random_below(1 << 32) as u32;
    for from in [place, 0] {
        let (mut drawn, mut found, mut same) = (None, None, 0);
        visit_from(keys, id, from, |hash, pair| {
            if found.is_some_and(|found| found != hash) {
                return ControlFlow::Break(());
            }
            (found, same) = (Some(hash), same + 1);
            if random_below(same) == 0 {
                drawn = Some(pair.map(<[u8]>::to_vec));
            }
            ControlFlow::Continue(())
        })?;
        if drawn.is_some() {
            return Ok(drawn);
        }
    }
    Ok(None)
}

/// Some of what is offered, at random: Vitter, "Random Sampling with a Reservoir" (1985), algorithm R.
#[derive(Debug)]
pub struct Reservoir<T> {
    drawn: Vec<T>,
    count: usize,
    offered: u64,
}

impl<T> Reservoir<T> {
    /// One of `count` places.
    pub fn new(count: usize) -> Self {
        Self { drawn: Vec::new(), count, offered: 0 }
    }

    /// Takes what `make` gives, or not.
    pub fn offer(&mut self, make: impl FnOnce() -> T) {
        self.offered += 1;
        if self.drawn.len() < self.count {
            self.drawn.push(make());
        } else if let Some(place) = self.drawn.get_mut(random_below(self.offered) as usize) {
            *place = make();
        }
    }

    /// What was drawn: `count`, or all that was offered where that is less.
    pub fn drawn(self) -> Vec<T> {
        self.drawn
    }
}

/// 0 to `end` - 1.
pub fn random_below(end: u64) -> u64 {
    // The upper half of the product: Lemire, "Fast Random Integer Generation in an Interval" (2019), without the rejection, whose bias is
    // beyond notice here.
    ((u128::from(RandomState::new().hash_one(())) * u128::from(end)) >> 64) as u64
}
