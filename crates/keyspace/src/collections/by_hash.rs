//! Elements of a large collection that are found by a name: fields of a hash, members of a set.
//!
//! ```text
//!  sub-key:  hash:u32 name
//! ```
//!
//! `hash` is [`hash_of`] the name: elements are scanned in its order, so that a cursor is a number
//! and the server keeps no state for it, and a random number finds an element.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};

use super::draw::{Draw, LOOKED_AT, random_below};
use super::page::{Page, ScanPosition};
use super::{Large, corrupt};
use crate::error::{Failure, Outcome};
use crate::keys::{Keys, MAX_KEY_BYTES};
use crate::layout::CollectionId;
use crate::memory::BoundedVec;

/// Bytes before the name in a sub-key.
pub const HASH_BYTES: usize = 4;

/// The longest name, in bytes: it is part of a key of the store's.
pub const MAX_NAME_BYTES: usize = MAX_KEY_BYTES - HASH_BYTES;

/// Elements that are drawn while other clients wait for the thread: each takes a lookup.
const MAX_NONBLOCKING_DRAWS: u64 = 100;

/// Draws for each different element that is wanted, before all are read instead.
const MAX_DRAWS_EACH: u64 = 10;

/// Bytes of a collection that is read once and drawn from in memory, where so many draws are wanted
/// that this costs less than a lookup for each.
pub const MAX_READ_ONCE_BYTES: usize = 64 * 1024 * 1024;

/// What a name that was drawn takes besides its bytes: an entry of a hash table.
const KNOWN_NAME_BYTES: usize = 48;

/// All values of [`hash_of`].
pub const ALL_HASHES: Range<u64> = 0..1 << 32;

/// A name and the value of its element, which is empty where there is none.
pub type Pair<'a> = [&'a [u8]; 2];

/// The position of a name in the order of elements: the upper half of its XXH3.
pub fn hash_of(name: &[u8]) -> u32 {
    (twox_hash::XxHash3_64::oneshot(name) >> 32) as u32
}

/// The sub-key of a name.
#[derive(Debug, Clone, Copy)]
pub struct SubKey<'n> {
    hash: [u8; HASH_BYTES],
    name: &'n [u8],
}

impl<'n> SubKey<'n> {
    /// That of `name`.
    pub fn of(name: &'n [u8]) -> Self {
        Self { hash: hash_of(name).to_be_bytes(), name }
    }

    /// Its bytes, one behind the other.
    pub fn parts(&self) -> [&[u8]; 2] {
        [&self.hash, self.name]
    }
}

/// Shows `visit` the elements from `hash` on, each with its hash, as long as none is behind more
/// than `max_skipped` removed ones in a row; values that are not read are empty.
///
/// # Errors
///
/// Those of reads; [`Failure::WouldBlock`], also where blocking is allowed, if one is.
pub fn visit_from(
    keys: &mut Keys<'_>,
    id: CollectionId,
    hash: u32,
    max_skipped: Option<u64>,
    reads_values: bool,
    mut visit: impl FnMut(u32, Pair<'_>) -> ControlFlow<()>,
) -> Outcome {
    let mut makes_sense = true;
    keys.visit_elements_from(id, &hash.to_be_bytes(), max_skipped, reads_values, |sub_key, value| {
        match sub_key.split_first_chunk() {
            Some((hash, name)) => visit(u32::from_be_bytes(*hash), [name, value]),
            None => {
                makes_sense = false;
                ControlFlow::Break(())
            }
        }
    })?;
    if makes_sense { Ok(()) } else { Err(corrupt("an element of a large collection has no name").into()) }
}

/// One step of a scan that began with the cursor 0: offers `page` the elements behind the `cursor`
/// until it has enough. The next cursor is that of the page. What is there from the first step to
/// the last is offered.
///
/// # Errors
///
/// Those of reads.
pub fn scan<T>(
    keys: &mut Keys<'_>,
    id: CollectionId,
    cursor: u64,
    page: &mut Page<'_, T>,
    mut offer: impl FnMut(&mut Page<'_, T>, ScanPosition, Pair<'_>) -> ControlFlow<()>,
) -> Outcome {
    // Beyond the last hash there is nothing.
    let Ok(from) = u32::try_from(cursor.saturating_sub(1)) else { return Ok(()) };
    // A cursor is the hash that the scan goes on from, and one more, so that it is not 0.
    visit_from(keys, id, from, None, true, |hash, pair| {
        offer(page, ScanPosition { number: hash, cursor: u64::from(hash) + 1 }, pair)
    })
}

/// Shows `visit` elements at random of the collection under `key`, with their values where
/// `with_values`, `count` times or until it breaks; the same ones may come again. What is shown is
/// of one moment. Before the first, `check` is called with the least bytes of each, where that is
/// known.
///
/// # Errors
///
/// Those of reads, and of `check`.
pub fn draw(
    keys: &mut Keys<'_>,
    key: &[u8],
    large: Large,
    count: u64,
    with_values: bool,
    check: impl FnOnce(usize) -> Outcome,
    mut visit: impl FnMut(Pair<'_>) -> ControlFlow<()>,
) -> Outcome {
    hold_still_for(keys, key, count)?;
    if let Some(all) = read_once(keys, large, count, with_values)? {
        let pairs: &[[Vec<u8>; 2]] = &all;
        check(min_bytes(pairs.iter().map(|[name, value]| [name.as_slice(), value.as_slice()])))?;
        for _ in 0..count {
            let [name, value] = &pairs[random_below(pairs.len() as u64) as usize];
            if visit([name, value]).is_break() {
                break;
            }
        }
        return Ok(());
    }
    for _ in 0..count {
        let Some([name, value]) = draw_one(keys, large.id, with_values, None)? else {
            // All of it was replaced since its key was read; else it is damaged.
            keys.hold_still(key)?;
            break;
        };
        if visit([&name, &value]).is_break() {
            break;
        }
    }
    Ok(())
}

/// Bytes of the shortest of `pairs`.
pub fn min_bytes<'p>(pairs: impl Iterator<Item = Pair<'p>>) -> usize {
    pairs.map(|[name, value]| name.len() + value.len()).min().unwrap_or(0)
}

/// Whether reading so many elements once costs no more than `count` draws, each with a lookup.
pub fn is_read_once(keys: &Keys<'_>, elements: u64, count: u64) -> bool {
    keys.may_take_long() && count.saturating_mul(LOOKED_AT) >= elements
}

/// All elements, with their values where `with_values`; `None`: `count` draws are cheaper, or they
/// take too much memory, or there is none.
fn read_once<'c>(
    keys: &mut Keys<'c>,
    large: Large,
    count: u64,
    with_values: bool,
) -> Outcome<Option<BoundedVec<'c, [Vec<u8>; 2]>>> {
    if !is_read_once(keys, large.elements, count) {
        return Ok(None);
    }
    let (mut all, mut bytes) = (BoundedVec::new(keys.reserve_memory()), 0);
    visit_from(keys, large.id, 0, None, with_values, |_, [name, value]| {
        bytes += name.len() + value.len();
        if bytes > MAX_READ_ONCE_BYTES {
            return ControlFlow::Break(());
        }
        all.add(name.len() + value.len(), || [name.to_vec(), value.to_vec()])
    })?;
    let is_whole = bytes <= MAX_READ_ONCE_BYTES && all.refusal().is_none() && !all.is_empty();
    Ok(is_whole.then_some(all))
}

/// `count` different elements at random of the collection under `key`, with their values where
/// `with_values`, as they are at one moment; `None`: that would take more than to read all of them.
/// No draw steps over more than `max_skipped` removed ones.
///
/// # Errors
///
/// Those of reads; there is no memory for so many; [`Failure::WouldBlock`], also where blocking is
/// allowed, if a draw would.
pub fn draw_different<'c>(
    keys: &mut Keys<'c>,
    key: &[u8],
    large: Large,
    count: u64,
    with_values: bool,
    max_skipped: Option<u64>,
) -> Outcome<Option<BoundedVec<'c, [Vec<u8>; 2]>>> {
    // Of a collection that is much larger than what is wanted, few draws are in vain.
    if count.saturating_mul(3) > large.elements {
        return Ok(None);
    }
    hold_still_for(keys, key, count)?;
    let (mut known, mut drawn) = (HashSet::new(), BoundedVec::new(keys.reserve_memory()));
    for _ in 0..count * MAX_DRAWS_EACH {
        if drawn.len() as u64 == count {
            break;
        }
        let Some([name, value]) = draw_one(keys, large.id, with_values, max_skipped)? else { break };
        if known.contains(&name) {
            continue;
        }
        // The name twice: also among those that were drawn.
        let bytes = 2 * (name.len() + KNOWN_NAME_BYTES) + value.len();
        known.insert(name.clone());
        if drawn.add(bytes, || [name, value]).is_break() {
            break;
        }
    }
    let drawn = drawn.whole()?;
    Ok((drawn.len() as u64 == count).then_some(drawn))
}

/// Refuses to draw so many while others wait for the thread.
///
/// # Errors
///
/// [`Failure::WouldBlock`].
pub fn check_draws(keys: &Keys<'_>, count: u64) -> Outcome {
    if count > MAX_NONBLOCKING_DRAWS && !keys.may_take_long() {
        return Err(Failure::WouldBlock);
    }
    Ok(())
}

/// Before `count` draws from the large collection under `key`: ensures that it does not change
/// between them.
fn hold_still_for(keys: &Keys<'_>, key: &[u8], count: u64) -> Outcome {
    check_draws(keys, count)?;
    // One draw is one read.
    if count > 1 { keys.hold_still(key) } else { Ok(()) }
}

/// See [`Draw`]. `None`: there is none, or it was removed between two reads.
fn draw_one(
    keys: &mut Keys<'_>,
    id: CollectionId,
    with_values: bool,
    max_skipped: Option<u64>,
) -> Outcome<Option<[Vec<u8>; 2]>> {
    let mut draw = Draw::within(ALL_HASHES);
    while let Some(from) = draw.next_from() {
        // Of all that it samples only the value of what is drawn may be wanted.
        visit_from(keys, id, from as u32, max_skipped, false, |hash, [name, _]| {
            draw.offer(hash.into(), || name.to_vec())
        })?;
    }
    let Some(name) = draw.drawn() else { return Ok(None) };
    if !with_values {
        return Ok(Some([name, Vec::new()]));
    }
    let value = keys.element(id, &SubKey::of(&name).parts())?;
    Ok(value.map(|value| [name, value.to_vec()]))
}

/// Selects some of what is offered, at random and in that order: Knuth, "The Art of Computer
/// Programming", volume 2 (1997), section 3.4.2, algorithm S, which keeps nothing.
#[derive(Debug)]
pub struct Selection {
    wanted: u64,
    left: u64,
}

impl Selection {
    /// `count` of the `all` that will be offered, or all of them where that is less.
    pub fn new(count: u64, all: u64) -> Self {
        Self { wanted: count.min(all), left: all }
    }

    /// Whether the next one is selected.
    pub fn takes(&mut self) -> bool {
        let takes = self.wanted > 0 && (self.wanted >= self.left || random_below(self.left) < self.wanted);
        self.wanted -= u64::from(takes);
        self.left = self.left.saturating_sub(1);
        takes
    }

    /// Whether none of the rest is.
    pub fn is_whole(&self) -> bool {
        self.wanted == 0
    }
}
