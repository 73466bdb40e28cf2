//! Hashes: fields with values.
//!
//! A small one is its fields and values, [packed]: field, value, field, value, in the order in which the fields came. Of
//! a large one the key holds a [`Large`] and nothing more, and each field has an entry:
//!
//! ```text
//!  sub-key:  hash:u32 field         value:  the field's value
//! ```
//!
//! `hash` is [`hash_of`] the field: fields are scanned in its order, so that a cursor is a number and needs no memory of the server's,
//! and a random number finds a field.
//!
//! Invariants: no field is there twice, a hash has at least one, [`Large::elements`] is their number.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;

use ecotone_engine::Error as StoreError;

use super::{Large, MOST_SMALL_BYTES, MOST_SMALL_ELEMENTS, corrupt, packed};
use crate::error::{Failure, Outcome};
use crate::keyspace::{CollectionId, Entry, Keys, MAX_KEY_BYTES, Tag, Type, Waiting};

/// Bytes before the field in a sub-key.
const HASH_BYTES: usize = 4;

/// The longest field of a large hash, in bytes: it is part of a key of the store's. A small hash is smaller than that.
pub const MAX_FIELD_BYTES: usize = MAX_KEY_BYTES - HASH_BYTES;

/// Fields that are drawn from a large hash while other clients wait for the thread: each takes a look of its own.
const MOST_DRAWN_AT_ONCE: u64 = 100;

/// Draws for each different field that is wanted, before all are read instead.
const MOST_DRAWS_EACH: usize = 10;

/// A field and its value.
pub type Pair<'a> = [&'a [u8]; 2];

/// Where a field stands among those of a large hash: the upper half of its XXH3.
pub fn hash_of(field: &[u8]) -> u32 {
    (twox_hash::XxHash3_64::oneshot(field) >> 32) as u32
}

/// The sub-key of a field.
pub fn sub_key(field: &[u8]) -> Vec<u8> {
    [&hash_of(field).to_be_bytes(), field].concat()
}

/// A hash as a command has found it.
#[derive(Debug)]
pub struct Hash<'c> {
    entry: Entry<'c>,
    large: Option<Large>,
}

impl<'c> Hash<'c> {
    /// The hash under `key`.
    ///
    /// # Errors
    ///
    /// [`WRONG_TYPE`](crate::error::texts::WRONG_TYPE), and those of a read.
    pub fn read(keys: &mut Keys<'c>, key: &[u8]) -> Outcome<Option<Self>> {
        let Some(entry) = keys.entry_of(key, Type::Hash)? else { return Ok(None) };
        let large = match entry.tag.is_large {
            false => None,
            true => match Large::decode(&entry)? {
                (large, []) => Some(large),
                _ => return Err(corrupt("the key of a large hash holds more than where its fields are").into()),
            },
        };
        Ok(Some(Self { entry, large }))
    }

    /// How many fields it has.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`].
    pub fn count(&self) -> Result<u64, StoreError> {
        match self.large {
            Some(large) => Ok(large.elements),
            None => pairs(&self.entry).try_fold(0, |count, pair| pair.map(|_| count + 1)),
        }
    }

    /// What `look` makes of the value of `field`.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn value<T>(&self, keys: &mut Keys<'c>, field: &[u8], look: impl FnOnce(Option<&[u8]>) -> T) -> Outcome<T> {
        match self.large {
            Some(_) if field.len() > MAX_FIELD_BYTES => Ok(look(None)),
            Some(large) => Ok(look(keys.element(large.id, &sub_key(field))?.as_deref())),
            None => Ok(look(find(&self.entry, field)?)),
        }
    }

    /// Whether it has `field`.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn has(&self, keys: &mut Keys<'c>, field: &[u8]) -> Outcome<bool> {
        match self.large {
            Some(large) => Ok(field.len() <= MAX_FIELD_BYTES && keys.has_element(large.id, &sub_key(field))?),
            None => Ok(find(&self.entry, field)?.is_some()),
        }
    }

    /// Shows `visit` all fields, each with its value.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn visit(&self, keys: &mut Keys<'c>, mut visit: impl FnMut(Pair<'_>)) -> Outcome {
        if let Some(large) = self.large {
            return visit_from(keys, large.id, 0, |_, pair| {
                visit(pair);
                ControlFlow::Continue(())
            });
        }
        for pair in pairs(&self.entry) {
            visit(pair?);
        }
        Ok(())
    }

    /// One step of a scan that began with the cursor 0: shows `visit` about `count` fields, and gives the next cursor, 0 at the end. A
    /// small hash is shown whole. What is there from the first step to the last is shown, as long as the hash is not made anew.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn scan(
        &self,
        keys: &mut Keys<'c>,
        cursor: u64,
        count: usize,
        mut visit: impl FnMut(Pair<'_>),
    ) -> Outcome<u64> {
        let Some(large) = self.large else { return self.visit(keys, visit).map(|()| 0) };
        // Beyond the last hash there is nothing.
        let Ok(from) = u32::try_from(cursor.saturating_sub(1)) else { return Ok(0) };
        let (mut visited, mut last, mut next) = (0, from, 0);
        visit_from(keys, large.id, from, |hash, pair| {
            // Fields of one hash go together: no cursor stands between them.
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

    /// Shows `visit` fields at random, `count` times or until it breaks; the same ones may come again. In a large hash those behind a long
    /// gap of hashes are drawn more often.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn draw(&self, keys: &mut Keys<'c>, count: u64, mut visit: impl FnMut(Pair<'_>) -> ControlFlow<()>) -> Outcome {
        if let Some(large) = self.large {
            check_draws(keys, count)?;
            for _ in 0..count {
                let Some([field, value]) = draw_one(keys, large.id)? else { break };
                if visit([&field, &value]).is_break() {
                    break;
                }
            }
            return Ok(());
        }
        let pairs = pairs(&self.entry).collect::<Result<Vec<_>, _>>()?;
        if pairs.is_empty() {
            return Ok(());
        }
        for _ in 0..count {
            if visit(pairs[random_below(pairs.len() as u64) as usize]).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// `count` different fields at random with their values, or all where there are no more.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn draw_different(&self, keys: &mut Keys<'c>, count: usize) -> Outcome<Vec<[Vec<u8>; 2]>> {
        // Of a hash that is much larger than what is wanted, few draws are in vain.
        if let Some(large) = self.large
            && (count as u64).saturating_mul(3) <= large.elements
        {
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
            if drawn.len() == count {
                return Ok(drawn);
            }
        }
        // Reservoir sampling: Vitter, "Random Sampling with a Reservoir" (1985), algorithm R.
        let (mut drawn, mut visited) = (Vec::new(), 0);
        self.visit(keys, |pair| {
            visited += 1;
            if drawn.len() < count {
                drawn.push(pair.map(<[u8]>::to_vec));
            } else if let Some(drawn) = drawn.get_mut(random_below(visited) as usize) {
                *drawn = pair.map(<[u8]>::to_vec);
            }
        })?;
        Ok(drawn)
    }

    /// Sets fields of the hash under `key`, whose slot is held and where `hash` was found. Of a field that is named twice the last value
    /// counts. Tells how many are new.
    ///
    /// # Errors
    ///
    /// A field is too long for a large hash; those of reads and writes.
    pub fn set(keys: &mut Keys<'c>, key: &[u8], hash: Option<&Self>, new: &[Pair<'_>]) -> Outcome<u64> {
        let expires_at_ms = hash.and_then(|hash| hash.entry.expires_at_ms);
        if let Some(Self { large: Some(large), .. }) = hash {
            return set_in_large(keys, key, expires_at_ms, *large, *large, new);
        }
        let stored = hash.map_or(&[][..], |hash| &hash.entry);
        let mut fields = pairs(stored).collect::<Result<Vec<_>, _>>()?;
        let (before, mut rest) = (fields.len(), new);
        // From here on the fields are too many to look through for each one that is set.
        while fields.len() <= MOST_SMALL_ELEMENTS
            && let [pair, behind @ ..] = rest
        {
            match fields.iter_mut().find(|known| known[0] == pair[0]) {
                Some(known) => known[1] = pair[1],
                None => fields.push(*pair),
            }
            rest = behind;
        }
        let created = (fields.len() - before) as u64;
        if let Some(packed) = pack(&fields) {
            keys.set(key, Tag::small(Type::Hash), expires_at_ms, &packed)?;
            return Ok(created);
        }
        let large = Large { id: keys.new_collection(key)?, elements: fields.len() as u64 };
        for [field, value] in fields {
            check_field(field)?;
            keys.set_element(large.id, &sub_key(field), value)?;
        }
        Ok(created + set_in_large(keys, key, expires_at_ms, Large { elements: 0, ..large }, large, rest)?)
    }

    /// Removes fields of the hash, which was found under `key`, whose slot is held; with the last one the key. Tells how many were there.
    ///
    /// # Errors
    ///
    /// Those of reads and writes.
    pub fn remove(&self, keys: &mut Keys<'c>, key: &[u8], fields: &[&[u8]]) -> Outcome<u64> {
        let expires_at_ms = self.entry.expires_at_ms;
        let Some(large) = self.large else {
            let mut left = pairs(&self.entry).collect::<Result<Vec<_>, _>>()?;
            let before = left.len();
            left.retain(|[field, _]| !fields.contains(field));
            if left.is_empty() {
                keys.remove(key)?;
            } else if left.len() < before {
                let mut packed = Vec::with_capacity(self.entry.len());
                left.iter().flatten().for_each(|item| packed::push(&mut packed, item));
                keys.set(key, Tag::small(Type::Hash), expires_at_ms, &packed)?;
            }
            return Ok((before - left.len()) as u64);
        };
        let mut left = large.elements;
        for field in fields {
            if self.has(keys, field)? {
                keys.remove_element(large.id, &sub_key(field));
                left = left.saturating_sub(1);
            }
        }
        if left == 0 {
            keys.remove(key)?;
            keys.orphan(large.id);
        } else if left < large.elements {
            set_key(keys, key, expires_at_ms, Large { elements: left, ..large })?;
        }
        Ok(large.elements - left)
    }
}

/// Sets fields of a large hash, whose key says `stored` and which is `large` by now. Tells how many are new.
fn set_in_large(
    keys: &mut Keys<'_>,
    key: &[u8],
    expires_at_ms: Option<u64>,
    stored: Large,
    mut large: Large,
    new: &[Pair<'_>],
) -> Outcome<u64> {
    let before = large.elements;
    for [field, value] in new {
        check_field(field)?;
        let sub_key = sub_key(field);
        large.elements += u64::from(!keys.has_element(large.id, &sub_key)?);
        keys.set_element(large.id, &sub_key, value)?;
    }
    if large == stored {
        keys.changed_within(key);
    } else {
        set_key(keys, key, expires_at_ms, large)?;
    }
    Ok(large.elements - before)
}

fn set_key(keys: &mut Keys<'_>, key: &[u8], expires_at_ms: Option<u64>, large: Large) -> Outcome {
    let mut payload = Vec::new();
    large.encode(&mut payload);
    keys.set(key, Tag::large(Type::Hash), expires_at_ms, &payload)
}

fn check_field(field: &[u8]) -> Outcome {
    if field.len() > MAX_FIELD_BYTES {
        let text = format!("ERR the field has {} bytes, the most is {MAX_FIELD_BYTES}", field.len());
        return Err(Failure::with(text));
    }
    Ok(())
}

fn check_draws(keys: &Keys<'_>, count: u64) -> Outcome {
    if count > MOST_DRAWN_AT_ONCE && keys.waiting() == Waiting::Never {
        return Err(Failure::MustWait);
    }
    Ok(())
}

/// The fields and values of a small hash.
fn pairs(packed: &[u8]) -> impl Iterator<Item = Result<Pair<'_>, StoreError>> {
    let mut items = packed::items(packed);
    std::iter::from_fn(move || {
        let field = items.next()?;
        let value =
            items.next().unwrap_or_else(|| Err(corrupt("a small hash ends without the value of its last field")));
        Some(field.and_then(|field| Ok([field, value?])))
    })
}

fn find<'p>(packed: &'p [u8], field: &[u8]) -> Result<Option<&'p [u8]>, StoreError> {
    for pair in pairs(packed) {
        let [known, value] = pair?;
        if known == field {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// The value of a small hash; `None` if that would be too large.
fn pack(fields: &[Pair<'_>]) -> Option<Vec<u8>> {
    if fields.len() > MOST_SMALL_ELEMENTS {
        return None;
    }
    let mut packed = Vec::new();
    for item in fields.iter().flatten() {
        // Before it is copied: it can be long.
        if packed.len() + item.len() >= MOST_SMALL_BYTES {
            return None;
        }
        packed::push(&mut packed, item);
    }
    (packed.len() <= MOST_SMALL_BYTES).then_some(packed)
}

/// Shows `visit` the fields of a large hash from `hash` on, each with its hash and its value.
fn visit_from(
    keys: &mut Keys<'_>,
    id: CollectionId,
    hash: u32,
    mut visit: impl FnMut(u32, Pair<'_>) -> ControlFlow<()>,
) -> Outcome {
    let mut makes_sense = true;
    keys.visit_elements_from(id, &hash.to_be_bytes(), |sub_key, value| match sub_key.split_first_chunk() {
        Some((hash, field)) => visit(u32::from_be_bytes(*hash), [field, value]),
        None => {
            makes_sense = false;
            ControlFlow::Break(())
        }
    })?;
    if makes_sense { Ok(()) } else { Err(corrupt("an element of a large hash has no field").into()) }
}

/// A field of a large hash: the one behind a random place. All fields of one hash have the same chance.
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

/// 0 to `end` - 1.
fn random_below(end: u64) -> u64 {
    // The upper half of the product: Lemire, "Fast Random Integer Generation in an Interval" (2019), without the rejection, whose bias is
    // beyond notice here.
    ((u128::from(RandomState::new().hash_one(())) * u128::from(end)) >> 64) as u64
}
