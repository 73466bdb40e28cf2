//! Collections whose elements are found by their names, as a command finds them: [hashes](Hash) and
//! [sets](Set). A [`Kind`] says in what they differ.
//!
//! Invariants: no name is there twice, a collection has at least one, [`Large::elements`] is their
//! number.

use std::marker::PhantomData;
use std::ops::ControlFlow;

use ecotone_engine::Error as StoreError;

use super::by_hash::{self, MAX_NAME_BYTES, Pair, Selection, SubKey, min_bytes};
use super::draw::random_below;
use super::page::{Page, ScanPosition};
use super::{Large, MAX_SMALL_ELEMENTS, corrupt, large_of, packed};
use crate::error::{Failure, Outcome};
use crate::keys::{Entry, Keys};
use crate::layout::{Tag, Type};
use crate::memory::BoundedVec;
use crate::slot::Slot;

/// Removed elements that a draw which also removes steps over before the collection is rewritten
/// without them: more than these, and more than there are elements left. Rewriting then costs less
/// than was removed, and all draws together no more than all removals.
const MIN_SKIPPED: u64 = 1024;

/// Elements of a collection that is rewritten. One with more has no such gaps, or was made to have
/// them.
const MAX_MADE_ANEW: u64 = 4096;

/// Bytes of such elements.
const MAX_MADE_ANEW_BYTES: usize = 1024 * 1024;

/// A kind of these collections.
pub trait Kind {
    /// The type of its keys.
    const TYPE: Type;
    /// What clients call a name.
    const NAME: &'static str;
    /// Whether a name has a value. Without, a small collection is its names alone, and putting a
    /// name again changes nothing.
    const HAS_VALUES: bool;
}

/// A collection as a command has found it.
#[derive(Debug)]
pub struct Named<'c, K> {
    entry: Entry<'c>,
    large: Option<Large>,
    kind: PhantomData<K>,
}

impl<'c, K: Kind> Named<'c, K> {
    /// The collection under `key`.
    ///
    /// # Errors
    ///
    /// [`WRONG_TYPE`](crate::error::texts::WRONG_TYPE), and those of a read.
    pub fn read(keys: &mut Keys<'c>, key: &[u8]) -> Outcome<Option<Self>> {
        let Some(entry) = keys.entry_of(key, K::TYPE)? else { return Ok(None) };
        let large = large_of(&entry)?;
        Ok(Some(Self { entry, large, kind: PhantomData }))
    }

    /// How many names it has.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`].
    pub fn count(&self) -> Result<u64, StoreError> {
        match self.large {
            Some(large) => Ok(large.elements),
            None => pairs::<K>(&self.entry).try_fold(0, |count, pair| pair.map(|_| count + 1)),
        }
    }

    /// What `look` returns for the value of `name`.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn value<T>(&self, keys: &mut Keys<'c>, name: &[u8], look: impl FnOnce(Option<&[u8]>) -> T) -> Outcome<T> {
        match self.large {
            Some(_) if name.len() > MAX_NAME_BYTES => Ok(look(None)),
            Some(large) => Ok(look(keys.element(large.id, &SubKey::of(name).parts())?.as_deref())),
            None => Ok(look(find::<K>(&self.entry, name)?)),
        }
    }

    /// Whether it has `name`.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn has(&self, keys: &mut Keys<'c>, name: &[u8]) -> Outcome<bool> {
        match self.large {
            Some(large) => Ok(name.len() <= MAX_NAME_BYTES && keys.has_element(large.id, &SubKey::of(name).parts())?),
            None => Ok(find::<K>(&self.entry, name)?.is_some()),
        }
    }

    /// Bytes that this takes in memory: a small one includes all its names.
    pub fn bytes(&self) -> usize {
        self.entry.len()
    }

    /// Shows `visit` all names, each with its value, until it breaks.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn visit(&self, keys: &mut Keys<'c>, visit: impl FnMut(Pair<'_>) -> ControlFlow<()>) -> Outcome {
        self.visit_skipping(keys, None, visit)
    }

    fn visit_skipping(
        &self,
        keys: &mut Keys<'c>,
        max_skipped: Option<u64>,
        mut visit: impl FnMut(Pair<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        if let Some(large) = self.large {
            return by_hash::visit_from(keys, large.id, 0, max_skipped, true, |_, pair| visit(pair));
        }
        for pair in pairs::<K>(&self.entry) {
            if visit(pair?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// One step of a scan that began with the cursor 0: offers `page` names until it has enough. A
    /// small collection is one place. What is there from the first step to the last is offered, as
    /// long as the collection is not rewritten.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn scan<T>(
        &self,
        keys: &mut Keys<'c>,
        cursor: u64,
        page: &mut Page<'_, T>,
        mut offer: impl FnMut(&mut Page<'_, T>, ScanPosition, Pair<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        match self.large {
            Some(large) => by_hash::scan(keys, large.id, cursor, page, offer),
            None => self.visit(keys, |pair| offer(page, ScanPosition::ONLY, pair)),
        }
    }

    /// Shows `visit` names at random of the collection, which was found under `key`, with their
    /// values where `with_values`, `count` times or until it breaks; the same ones may come again.
    /// In a large collection those behind a long gap of hashes are drawn more often, where it takes
    /// fewer draws than to read all of it. What is shown is of one moment. Before the first,
    /// `check` is called with the least bytes of each, where that is known.
    ///
    /// # Errors
    ///
    /// Those of reads, and of `check`.
    pub fn draw(
        &self,
        keys: &mut Keys<'c>,
        key: &[u8],
        count: u64,
        with_values: bool,
        check: impl FnOnce(usize) -> Outcome,
        mut visit: impl FnMut(Pair<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        if let Some(large) = self.large {
            return by_hash::draw(keys, key, large, count, with_values, check, visit);
        }
        let pairs = pairs::<K>(&self.entry).collect::<Result<Vec<_>, _>>()?;
        if pairs.is_empty() {
            return Ok(());
        }
        by_hash::check_draws(keys, count)?;
        check(min_bytes(pairs.iter().map(|[name, value]| [*name, if with_values { *value } else { &[][..] }])))?;
        for _ in 0..count {
            if visit(pairs[random_below(pairs.len() as u64) as usize]).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Shows `visit` up to `count` different names at random of the collection, which was found
    /// under `key`, with their values where `with_values`, until it breaks. What is shown is of one
    /// moment.
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
        visit: impl FnMut(Pair<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        self.draw_skipping(keys, key, count, with_values, None, visit)
    }

    fn draw_skipping(
        &self,
        keys: &mut Keys<'c>,
        key: &[u8],
        count: u64,
        with_values: bool,
        max_skipped: Option<u64>,
        mut visit: impl FnMut(Pair<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        if let Some(large) = self.large {
            if let Some(drawn) = by_hash::draw_different(keys, key, large, count, with_values, max_skipped)? {
                let _ = drawn.iter().try_for_each(|[name, value]| visit([name, value]));
                return Ok(());
            }
            // As many as its key says.
            keys.hold_still(key)?;
        }
        let mut selection = Selection::new(count, self.count()?);
        self.visit_skipping(keys, max_skipped, |pair| {
            if selection.takes() {
                visit(pair)?;
            }
            if selection.is_whole() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }

    /// Up to `count` different names at random of the collection, which was found under `key`,
    /// whose slot is held, and where the caller then removes them from; it may be another one by
    /// then. So a draw does not step over what those before it have removed, again and again.
    ///
    /// # Errors
    ///
    /// Those of reads and writes; there is no memory for so many.
    pub fn draw_to_remove(
        self,
        keys: &mut Keys<'c>,
        key: &[u8],
        count: u64,
    ) -> Outcome<(Self, BoundedVec<'c, Vec<u8>>)> {
        // Rewriting takes time, and space that a full store has not.
        let may_be_made_anew = keys.may_take_long() && keys.keyspace().check_free_space([Slot::of(key)]).is_ok();
        if let Some(large) = self.large
            && large.elements <= MAX_MADE_ANEW
            && may_be_made_anew
        {
            match self.collect_drawn(keys, key, count, Some(large.elements.max(MIN_SKIPPED))) {
                Err(Failure::WouldBlock) => {
                    let made_anew = self.made_anew(keys, key, large)?.unwrap_or(self);
                    let drawn = made_anew.collect_drawn(keys, key, count, None)?;
                    return Ok((made_anew, drawn));
                }
                drawn => return Ok((self, drawn?)),
            }
        }
        let drawn = self.collect_drawn(keys, key, count, None)?;
        Ok((self, drawn))
    }

    fn collect_drawn(
        &self,
        keys: &mut Keys<'c>,
        key: &[u8],
        count: u64,
        max_skipped: Option<u64>,
    ) -> Outcome<BoundedVec<'c, Vec<u8>>> {
        let mut drawn = BoundedVec::new(keys.reserve_memory());
        self.draw_skipping(keys, key, count, false, max_skipped, |[name, _]| drawn.add(name.len(), || name.to_vec()))?;
        drawn.whole()
    }

    /// The collection with the same elements, and without entries of removed ones between them;
    /// `None`: it takes too much memory.
    fn made_anew(&self, keys: &mut Keys<'c>, key: &[u8], large: Large) -> Outcome<Option<Self>> {
        let (mut left, mut bytes) = (BoundedVec::new(keys.reserve_memory()), 0);
        self.visit(keys, |[name, value]| {
            bytes += name.len() + value.len();
            left.add(name.len() + value.len(), || [name.to_vec(), value.to_vec()])?;
            if bytes > MAX_MADE_ANEW_BYTES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let left = left.whole()?;
        if bytes > MAX_MADE_ANEW_BYTES {
            return Ok(None);
        }
        let pairs = left.iter().map(|[name, value]| [name.as_slice(), value.as_slice()]);
        Self::put_beside(keys, key, &[], self.entry.expires_at_ms, pairs)?;
        keys.mark_reclaimable(large.id);
        Self::read(keys, key)
    }

    /// Puts names into the collection under `key`, whose slot is held and where `found` was found.
    /// Of a name that comes twice the last value counts. Returns how many are new.
    ///
    /// # Errors
    ///
    /// A name is too long for a large collection; those of reads and writes.
    pub fn put<'n>(
        keys: &mut Keys<'c>,
        key: &[u8],
        found: Option<&Self>,
        new: impl IntoIterator<Item = Pair<'n>>,
    ) -> Outcome<u64> {
        let expires_at_ms = found.and_then(|found| found.entry.expires_at_ms);
        if let Some(Self { large: Some(large), .. }) = found {
            return put_in_large::<K>(keys, key, expires_at_ms, *large, *large, new.into_iter());
        }
        let stored = found.map_or(&[][..], |found| &found.entry);
        Self::put_beside(keys, key, stored, expires_at_ms, new)
    }

    /// The same beside those of a small collection, `stored`.
    fn put_beside<'n>(
        keys: &mut Keys<'c>,
        key: &[u8],
        stored: &[u8],
        expires_at_ms: Option<u64>,
        new: impl IntoIterator<Item = Pair<'n>>,
    ) -> Outcome<u64> {
        let mut rest = new.into_iter();
        let mut pairs = collected::<K>(stored)?;
        let before = pairs.len();
        // From here on the names are too many to be searched for each one that is put.
        while pairs.len() <= MAX_SMALL_ELEMENTS
            && let Some(pair) = rest.next()
        {
            match pairs.iter_mut().find(|known| known[0] == pair[0]) {
                Some(known) => known[1] = pair[1],
                None => pairs.push(pair),
            }
        }
        let created = (pairs.len() - before) as u64;
        if created == 0 && !K::HAS_VALUES {
            return Ok(0);
        }
        if pairs.len() <= MAX_SMALL_ELEMENTS
            && let Some(small) = packed::Small::of(items::<K>(&pairs))
        {
            keys.set_to(key, Tag::small(K::TYPE), expires_at_ms, small.bytes(), || small.pack())?;
            return Ok(created);
        }
        let large = Large { id: keys.new_collection(key)?, elements: pairs.len() as u64 };
        for [name, value] in pairs {
            check_name::<K>(name)?;
            keys.set_element(large.id, &SubKey::of(name).parts(), value)?;
        }
        Ok(created + put_in_large::<K>(keys, key, expires_at_ms, Large { elements: 0, ..large }, large, rest)?)
    }

    /// Removes names from the collection, which was found under `key`, whose slot is held; with the
    /// last one the key. Returns how many were there.
    ///
    /// # Errors
    ///
    /// Those of reads and writes.
    pub fn remove(&self, keys: &mut Keys<'c>, key: &[u8], names: &[&[u8]]) -> Outcome<u64> {
        let expires_at_ms = self.entry.expires_at_ms;
        let Some(large) = self.large else {
            let mut left = collected::<K>(&self.entry)?;
            let before = left.len();
            left.retain(|[name, _]| !names.contains(name));
            if left.is_empty() {
                keys.remove(key)?;
            } else if left.len() < before {
                let small = packed::Small::all(items::<K>(&left));
                keys.set_to(key, Tag::small(K::TYPE), expires_at_ms, small.bytes(), || small.pack())?;
            }
            return Ok((before - left.len()) as u64);
        };
        let mut left = large.elements;
        for name in names {
            if self.has(keys, name)? {
                keys.remove_element(large.id, &SubKey::of(name).parts());
                left = left.saturating_sub(1);
            }
        }
        if left == 0 {
            keys.remove(key)?;
            keys.mark_reclaimable(large.id);
        } else if left < large.elements {
            set_key::<K>(keys, key, expires_at_ms, Large { elements: left, ..large })?;
        }
        Ok(large.elements - left)
    }
}

/// Puts names into a large collection, whose key has `stored` and which is `large` by now. Returns
/// how many are new.
fn put_in_large<'n, K: Kind>(
    keys: &mut Keys<'_>,
    key: &[u8],
    expires_at_ms: Option<u64>,
    stored: Large,
    mut large: Large,
    new: impl Iterator<Item = Pair<'n>>,
) -> Outcome<u64> {
    let before = large.elements;
    for [name, value] in new {
        check_name::<K>(name)?;
        let sub_key = SubKey::of(name);
        let is_new = !keys.has_element(large.id, &sub_key.parts())?;
        if is_new || K::HAS_VALUES {
            keys.set_element(large.id, &sub_key.parts(), value)?;
        }
        large.elements += u64::from(is_new);
    }
    if large != stored {
        set_key::<K>(keys, key, expires_at_ms, large)?;
    } else if K::HAS_VALUES {
        keys.changed_within(key);
    }
    Ok(large.elements - before)
}

fn set_key<K: Kind>(keys: &mut Keys<'_>, key: &[u8], expires_at_ms: Option<u64>, large: Large) -> Outcome {
    let mut payload = Vec::new();
    large.encode(&mut payload);
    keys.set(key, Tag::large(K::TYPE), expires_at_ms, &payload)
}

fn check_name<K: Kind>(name: &[u8]) -> Outcome {
    if name.len() > MAX_NAME_BYTES {
        let text = format!("ERR the {} has {} bytes, the most is {MAX_NAME_BYTES}", K::NAME, name.len());
        return Err(Failure::with(text));
    }
    Ok(())
}

/// The names and values of a small collection.
fn pairs<K: Kind>(packed: &[u8]) -> impl Iterator<Item = Result<Pair<'_>, StoreError>> {
    let mut items = packed::items(packed);
    std::iter::from_fn(move || {
        let name = items.next()?;
        let value = match K::HAS_VALUES {
            true => {
                items.next().unwrap_or_else(|| Err(corrupt("a small hash ends without the value of its last field")))
            }
            false => Ok(&[][..]),
        };
        Some(name.and_then(|name| Ok([name, value?])))
    })
}

/// All of them, with a place for one more.
fn collected<K: Kind>(packed: &[u8]) -> Result<Vec<Pair<'_>>, StoreError> {
    let mut all = Vec::with_capacity(pairs::<K>(packed).count() + 1);
    for pair in pairs::<K>(packed) {
        all.push(pair?);
    }
    Ok(all)
}

/// What a small collection of `pairs` is packed from.
fn items<'p, K: Kind>(pairs: &'p [Pair<'p>]) -> impl Iterator<Item = &'p [u8]> + Clone {
    let each = if K::HAS_VALUES { 2 } else { 1 };
    pairs.iter().flat_map(move |pair| &pair[..each]).copied()
}

fn find<'p, K: Kind>(packed: &'p [u8], name: &[u8]) -> Result<Option<&'p [u8]>, StoreError> {
    for pair in pairs::<K>(packed) {
        let [known, value] = pair?;
        if known == name {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// A hash as a command has found it: fields with values.
///
/// A small one is its fields and values, [packed]: field, value, field, value, in the order in
/// which the fields came. Of a large one the key holds a [`Large`] and nothing more, and each field
/// has an entry:
///
/// ```text
///  sub-key:  hash:u32 field         value:  the field's value
/// ```
///
/// See [`by_hash`].
pub type Hash<'c> = Named<'c, Fields>;

/// The elements of hashes.
#[derive(Debug)]
pub struct Fields;

impl Kind for Fields {
    const TYPE: Type = Type::Hash;
    const NAME: &'static str = "field";
    const HAS_VALUES: bool = true;
}

/// A set as a command has found it: members, each once.
///
/// A small one is its members, [packed] in the order in which they came. Of a large one the key
/// holds a [`Large`] and nothing more, and each member has an entry:
///
/// ```text
///  sub-key:  hash:u32 member        value:  none
/// ```
///
/// See [`by_hash`].
pub type Set<'c> = Named<'c, Members>;

/// The elements of sets.
#[derive(Debug)]
pub struct Members;

impl Kind for Members {
    const TYPE: Type = Type::Set;
    const NAME: &'static str = "member";
    const HAS_VALUES: bool = false;
}

impl<'c> Set<'c> {
    /// Adds members to the set under `key`, whose slot is held and where `set` was found. Returns
    /// how many are new.
    ///
    /// # Errors
    ///
    /// Those of [`Named::put`].
    pub fn add(keys: &mut Keys<'c>, key: &[u8], set: Option<&Self>, new: &[&[u8]]) -> Outcome<u64> {
        Self::put(keys, key, set, new.iter().map(|member| [*member, b""]))
    }

    /// Puts a set of `members`, which are different, under `key`, whose slot is held. Whatever was
    /// there is deleted, also where there are no members.
    ///
    /// # Errors
    ///
    /// Those of [`Named::put`].
    pub fn replace(keys: &mut Keys<'c>, key: &[u8], members: &[&[u8]]) -> Outcome {
        if members.is_empty() {
            keys.delete(key)?;
            return Ok(());
        }
        let old = keys.metadata(key)?;
        Self::add(keys, key, None, members)?;
        if let Some(old) = old {
            keys.give_up(old);
        }
        Ok(())
    }
}
