//! Hashes: fields with values.
//!
//! A small one is its fields and values, [packed]: field, value, field, value, in the order in which the fields came. Of
//! a large one the key holds a [`Large`] and nothing more, and each field has an entry:
//!
//! ```text
//!  sub-key:  hash:u32 field         value:  the field's value
//! ```
//!
//! See [`by_hash`].
//!
//! Invariants: no field is there twice, a hash has at least one, [`Large::elements`] is their number.

use std::ops::ControlFlow;

use ecotone_engine::Error as StoreError;

use super::by_hash::{self, MAX_NAME_BYTES, Pair, Selection, random_below, sub_key};
use super::page::{Page, Place};
use super::{Large, MOST_SMALL_ELEMENTS, corrupt, large_of, packed};
use crate::error::{Failure, Outcome};
use crate::keyspace::{Entry, Keys, Tag, Type};

/// The longest field of a large hash, in bytes. A small hash is smaller than that.
pub const MAX_FIELD_BYTES: usize = MAX_NAME_BYTES;

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
        let large = large_of(&entry)?;
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

    /// Shows `visit` all fields, each with its value, until it breaks.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn visit(&self, keys: &mut Keys<'c>, mut visit: impl FnMut(Pair<'_>) -> ControlFlow<()>) -> Outcome {
        if let Some(large) = self.large {
            return by_hash::visit_from(keys, large.id, 0, |_, pair| visit(pair));
        }
        for pair in pairs(&self.entry) {
            if visit(pair?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// One step of a scan that began with the cursor 0: offers `page` fields until it has enough. A small hash is one place. What is there
    /// from the first step to the last is offered, as long as the hash is not made anew.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn scan<T>(
        &self,
        keys: &mut Keys<'c>,
        cursor: u64,
        page: &mut Page<'_, T>,
        mut offer: impl FnMut(&mut Page<'_, T>, Place, Pair<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        match self.large {
            Some(large) => by_hash::scan(keys, large.id, cursor, page, offer),
            None => self.visit(keys, |pair| offer(page, Place::ONLY, pair)),
        }
    }

    /// Shows `visit` fields at random, with their values where `with_values`, `count` times or until it breaks; the same ones may come again. In
    /// a large hash those behind a long gap of hashes are drawn more often.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn draw(
        &self,
        keys: &mut Keys<'c>,
        count: u64,
        with_values: bool,
        mut visit: impl FnMut(Pair<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        if let Some(large) = self.large {
            return by_hash::draw(keys, large.id, count, with_values, visit);
        }
        let pairs = pairs(&self.entry).collect::<Result<Vec<_>, _>>()?;
        if pairs.is_empty() {
            return Ok(());
        }
        by_hash::check_draws(keys, count)?;
        for _ in 0..count {
            if visit(pairs[random_below(pairs.len() as u64) as usize]).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Shows `visit` up to `count` different fields at random of the hash, which was found under `key`, with their values where `with_values`,
    /// until it breaks. What is shown is of one moment.
    ///
    /// # Errors
    ///
    /// Those of reads; there is no memory for so many.
    pub fn draw_different(
        &self,
        keys: &mut Keys<'c>,
        key: &[u8],
        count: u64,
        with_values: bool,
        mut visit: impl FnMut(Pair<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        if let Some(large) = self.large {
            if let Some(drawn) = by_hash::draw_different(keys, large, count, with_values)? {
                let _ = drawn.iter().try_for_each(|[field, value]| visit([field, value]));
                return Ok(());
            }
            // As many as its key says.
            keys.hold_still(key)?;
        }
        let mut selection = Selection::new(count, self.count()?);
        self.visit(keys, |pair| {
            if selection.takes() {
                visit(pair)?;
            }
            if selection.is_whole() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
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
    packed::pack_small(fields.iter().flatten().copied())
}
