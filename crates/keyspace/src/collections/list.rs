//! Lists: elements in an order.
//!
//! A small one is its elements, [packed], in their order. Of a large one the key holds a [`Large`]
//! and then the index of its first element and that of the one behind the last, two u64,
//! big-endian; each element has an entry:
//!
//! ```text
//!  sub-key:  index:u64              value:  the element
//! ```
//!
//! The first index that is given is [`MIDDLE`], so that both ends grow; an element is found by one
//! lookup. To insert or to remove in the middle moves the elements on the shorter side by one index
//! each: O(N) of reads and writes, in one batch.
//!
//! Invariants: a list has at least one element, the indices between the two ends are all taken and
//! no others, [`Large::elements`] is their number. A command that reads more than the key holds the
//! latch of its slot: else the ends may have moved.

use std::ops::{ControlFlow, Range};

use ecotone_engine::{Direction, Error as StoreError};

use super::{Large, MAX_SMALL_ELEMENTS, corrupt, packed};
use crate::error::{Failure, Outcome};
use crate::keys::{Entry, Keys};
use crate::layout::{CollectionId, Tag, Type};
use crate::memory::BoundedVec;

/// Index of the first element that a large list is given.
pub const MIDDLE: u64 = 1 << 63;

/// Entries that are removed unread while other clients wait for the thread.
const MAX_NONBLOCKING_REMOVALS: u64 = 1000;

/// More elements at an end are removed as a range, which is one entry of the write for any number
/// of them. But all reads of the store consider each range until a compaction has applied it, and a
/// client may remove any number of times, so there must not be thousands of them. Elements beyond
/// the ends are never read, so tombstones there are not stepped over.
const MAX_REMOVED_ONE_BY_ONE: u64 = 10_000;

/// One end of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Where the first element is.
    Left,
    /// Where the last element is.
    Right,
}

/// A list as a command has found it.
#[derive(Debug)]
pub struct List<'c> {
    entry: Entry<'c>,
    large: Option<Lay>,
}

/// Where the elements of a large list are.
#[derive(Debug, Clone, Copy)]
struct Lay {
    id: CollectionId,
    /// Index of the first element.
    first: u64,
    /// Index behind the last one.
    end: u64,
}

impl Lay {
    fn decode(payload: &[u8]) -> Result<Self, StoreError> {
        let (large, rest) = Large::decode(payload)?;
        let ends = rest.split_first_chunk::<8>().and_then(|(first, rest)| {
            let end = u64::from_be_bytes(rest.try_into().ok()?);
            Some((u64::from_be_bytes(*first), end))
        });
        match ends {
            Some((first, end)) if large.elements > 0 && end.checked_sub(first) == Some(large.elements) => {
                Ok(Self { id: large.id, first, end })
            }
            _ => Err(corrupt("the key of a large list does not say where its elements begin and end")),
        }
    }

    fn count(self) -> u64 {
        self.end - self.first
    }

    /// Puts it under `key`; without elements it removes the key.
    fn store(self, keys: &mut Keys<'_>, key: &[u8], expires_at_ms: Option<u64>) -> Outcome {
        if self.count() == 0 {
            keys.remove(key)?;
            keys.mark_reclaimable(self.id);
            return Ok(());
        }
        let mut payload = Vec::new();
        Large { id: self.id, elements: self.count() }.encode(&mut payload);
        payload.extend_from_slice(&self.first.to_be_bytes());
        payload.extend_from_slice(&self.end.to_be_bytes());
        keys.set(key, Tag::large(Type::List), expires_at_ms, &payload)
    }

    /// Takes one more index at `end` and puts `element` there.
    fn push(&mut self, keys: &mut Keys<'_>, end: End, element: &[u8]) -> Outcome {
        let index = self.grow(end)?;
        keys.set_element(self.id, &[&index.to_be_bytes()], element)
    }

    /// Takes one more index at `end`.
    fn grow(&mut self, end: End) -> Outcome<u64> {
        let used_up = || Failure::text("ERR the list has no index left at this end; copy it to a new one");
        match end {
            End::Left => {
                self.first = self.first.checked_sub(1).ok_or_else(used_up)?;
                Ok(self.first)
            }
            End::Right => {
                let index = self.end;
                self.end = index.checked_add(1).ok_or_else(used_up)?;
                Ok(index)
            }
        }
    }

    /// Removes the entries of `indices`, which are at an end.
    fn remove(&mut self, keys: &mut Keys<'_>, indices: Range<u64>) -> Outcome {
        let removed = indices.end.saturating_sub(indices.start);
        if removed > MAX_NONBLOCKING_REMOVALS && !keys.may_take_long() {
            return Err(Failure::WouldBlock);
        }
        if removed > MAX_REMOVED_ONE_BY_ONE {
            keys.remove_elements(self.id, &indices.start.to_be_bytes()..&indices.end.to_be_bytes())?;
        } else {
            for index in indices.clone() {
                keys.remove_element(self.id, &[&index.to_be_bytes()]);
            }
        }
        if indices.start == self.first {
            self.first = indices.end;
        } else {
            self.end = indices.start;
        }
        Ok(())
    }

    /// Shows `visit` the elements with `indices`, each with its index, in their order or against
    /// it, until it breaks.
    fn visit(
        self,
        keys: &mut Keys<'_>,
        indices: Range<u64>,
        direction: Direction,
        mut visit: impl FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let (mut left, mut makes_sense) = (indices.clone(), true);
        let (from, to) = (indices.start.to_be_bytes(), indices.end.to_be_bytes());
        let mut is_over = false;
        keys.visit_elements(self.id, &from[..]..&to[..], direction, |sub_key, element| {
            let index = match direction {
                Direction::Forward => left.next(),
                Direction::Reverse => left.next_back(),
            };
            match index.filter(|index| index.to_be_bytes() == sub_key) {
                Some(index) => {
                    let flow = visit(index, element);
                    is_over = flow.is_break();
                    flow
                }
                None => {
                    makes_sense = false;
                    ControlFlow::Break(())
                }
            }
        })?;
        if makes_sense && (is_over || left.is_empty()) { Ok(()) } else { Err(missing().into()) }
    }
}

fn missing() -> StoreError {
    corrupt("an element of a large list is not where it should be")
}

impl<'c> List<'c> {
    /// The list under `key`.
    ///
    /// # Errors
    ///
    /// [`WRONG_TYPE`](crate::error::texts::WRONG_TYPE), and those of a read.
    pub fn read(keys: &mut Keys<'c>, key: &[u8]) -> Outcome<Option<Self>> {
        let Some(entry) = keys.entry_of(key, Type::List)? else { return Ok(None) };
        let large = if entry.tag.is_large { Some(Lay::decode(&entry)?) } else { None };
        if large.is_none() && entry.is_empty() {
            // One without elements is no key: a command that takes an element would have no reply.
            return Err(corrupt("a small list has no elements").into());
        }
        Ok(Some(Self { entry, large }))
    }

    /// How many elements it has.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`].
    pub fn count(&self) -> Result<u64, StoreError> {
        match self.large {
            Some(lay) => Ok(lay.count()),
            None => packed::items(&self.entry).try_fold(0, |count, item| item.map(|_| count + 1)),
        }
    }

    /// What `look` returns for the element at `position`, counted from 0, if there is one.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn element<T>(&self, keys: &mut Keys<'c>, position: u64, look: impl FnOnce(Option<&[u8]>) -> T) -> Outcome<T> {
        match self.large {
            Some(lay) if position >= lay.count() => Ok(look(None)),
            Some(lay) => {
                let found = keys.element(lay.id, &[&(lay.first + position).to_be_bytes()])?;
                Ok(look(Some(&found.ok_or_else(missing)?)))
            }
            None => Ok(look(self.small()?.get(position as usize).copied())),
        }
    }

    /// Shows `visit` the elements at `positions`, each with its position, in their order or against
    /// it, until it breaks. All positions are below [`count`](Self::count), or the range is empty.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn visit(
        &self,
        keys: &mut Keys<'c>,
        mut positions: Range<u64>,
        direction: Direction,
        mut visit: impl FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        if positions.is_empty() {
            return Ok(());
        }
        if let Some(lay) = self.large {
            let indices = lay.first + positions.start..lay.first + positions.end;
            return lay.visit(keys, indices, direction, |index, element| visit(index - lay.first, element));
        }
        let small = self.small()?;
        let mut show = |position: u64| match small.get(position as usize) {
            Some(element) => visit(position, element),
            None => ControlFlow::Break(()),
        };
        // Ending early is no failure.
        let _ = match direction {
            Direction::Forward => positions.try_for_each(&mut show),
            Direction::Reverse => positions.rev().try_for_each(&mut show),
        };
        Ok(())
    }

    /// Puts `elements`, one after the other, at an end of the list under `key`, whose slot is held
    /// and where `list` was found. Returns how many elements it has then.
    ///
    /// # Errors
    ///
    /// Those of reads and writes.
    pub fn push(keys: &mut Keys<'c>, key: &[u8], list: Option<&Self>, end: End, elements: &[&[u8]]) -> Outcome<u64> {
        let expires_at_ms = list.and_then(|list| list.entry.expires_at_ms);
        if let Some(Self { large: Some(lay), .. }) = list {
            let mut lay = *lay;
            for element in elements {
                lay.push(keys, end, element)?;
            }
            lay.store(keys, key, expires_at_ms)?;
            return Ok(lay.count());
        }
        let mut all = list.map_or_else(|| Ok(Vec::new()), Self::small)?;
        match end {
            End::Left => drop(all.splice(..0, elements.iter().rev().copied())),
            End::Right => all.extend_from_slice(elements),
        }
        store_small(keys, key, expires_at_ms, &all)?;
        Ok(all.len() as u64)
    }

    /// Sets the element at `position`, which is below [`count`](Self::count), of the list, which
    /// was found under `key`, whose slot is held.
    ///
    /// # Errors
    ///
    /// Those of reads and writes.
    pub fn set(&self, keys: &mut Keys<'c>, key: &[u8], position: u64, element: &[u8]) -> Outcome {
        if let Some(lay) = self.large {
            keys.set_element(lay.id, &[&(lay.first + position).to_be_bytes()], element)?;
            keys.changed_within(key);
            return Ok(());
        }
        let mut all = self.small()?;
        if let Some(place) = all.get_mut(position as usize) {
            *place = element;
        }
        store_small(keys, key, self.entry.expires_at_ms, &all)
    }

    /// Keeps the elements at `positions` only, which are below [`count`](Self::count), of the list,
    /// which was found under `key`, whose slot is held; where there are none the key is removed.
    ///
    /// # Errors
    ///
    /// Those of reads and writes.
    pub fn trim(&self, keys: &mut Keys<'c>, key: &[u8], positions: Range<u64>) -> Outcome {
        if positions.is_empty() {
            keys.remove(key)?;
            if let Some(lay) = self.large {
                keys.mark_reclaimable(lay.id);
            }
            return Ok(());
        }
        let Some(mut lay) = self.large else {
            let mut all = self.small()?;
            all.truncate(positions.end as usize);
            all.drain(..positions.start as usize);
            return store_small(keys, key, self.entry.expires_at_ms, &all);
        };
        let (first, end) = (lay.first, lay.end);
        // The right end first: an empty range would else be taken for the left one.
        if first + positions.end < end {
            lay.remove(keys, first + positions.end..end)?;
        }
        if positions.start > 0 {
            lay.remove(keys, first..first + positions.start)?;
        }
        lay.store(keys, key, self.entry.expires_at_ms)
    }

    /// Takes up to `count` elements, at least one, from an end of the list, which was found under
    /// `key`, whose slot is held, and shows them to `visit` in the order in which they are taken;
    /// with the last one the key is removed. Where `visit` breaks not all are shown, and the
    /// command must fail.
    ///
    /// # Errors
    ///
    /// Those of [`trim`](Self::trim).
    pub fn pop(
        &self,
        keys: &mut Keys<'c>,
        key: &[u8],
        end: End,
        count: u64,
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let all = self.count()?;
        let taken = count.min(all);
        let (positions, direction, kept) = match end {
            End::Left => (0..taken, Direction::Forward, taken..all),
            End::Right => (all - taken..all, Direction::Reverse, 0..all - taken),
        };
        self.visit(keys, positions, direction, |_, element| visit(element))?;
        self.trim(keys, key, kept)
    }

    /// The same of one element.
    ///
    /// # Errors
    ///
    /// Those of reads and writes.
    pub fn pop_one(&self, keys: &mut Keys<'c>, key: &[u8], end: End) -> Outcome<Vec<u8>> {
        let mut popped = Vec::new();
        self.pop(keys, key, end, 1, |element| {
            popped = element.to_vec();
            ControlFlow::Continue(())
        })?;
        Ok(popped)
    }

    /// Moves an element of the list, which was found under `key`, whose slot is held, from one end
    /// to the other or the same one, and returns it.
    ///
    /// # Errors
    ///
    /// Those of reads and writes.
    pub fn rotate(&self, keys: &mut Keys<'c>, key: &[u8], from: End, to: End) -> Outcome<Vec<u8>> {
        let count = self.count()?;
        let position = if from == End::Left { 0 } else { count.saturating_sub(1) };
        let element = self.element(keys, position, |element| element.map(<[u8]>::to_vec))?.ok_or_else(missing)?;
        if from == to || count == 1 {
            keys.changed_within(key);
            return Ok(element);
        }
        self.pop_one(keys, key, from)?;
        let rest = Self::read(keys, key)?;
        Self::push(keys, key, rest.as_ref(), to, &[&element])?;
        Ok(element)
    }

    /// Inserts `element` before `position`, which is not above [`count`](Self::count), into the
    /// list, which was found under `key`, whose slot is held.
    ///
    /// # Errors
    ///
    /// There is no memory for the elements to be moved; those of reads and writes.
    pub fn insert(&self, keys: &mut Keys<'c>, key: &[u8], position: u64, element: &[u8]) -> Outcome {
        let Some(mut lay) = self.large else {
            let mut all = self.small()?;
            all.insert((position as usize).min(all.len()), element);
            return store_small(keys, key, self.entry.expires_at_ms, &all);
        };
        let place = lay.first + position;
        if position < lay.count() / 2 {
            let moved = collect(keys, lay, lay.first..place, &[])?;
            let first = lay.grow(End::Left)?;
            put(keys, lay.id, first, moved.iter().map(Vec::as_slice).chain([element]))?;
        } else {
            let moved = collect(keys, lay, place..lay.end, &[])?;
            lay.grow(End::Right)?;
            put(keys, lay.id, place, [element].into_iter().chain(moved.iter().map(Vec::as_slice)))?;
        }
        lay.store(keys, key, self.entry.expires_at_ms)
    }

    /// Removes the elements at `positions`, ascending and below [`count`](Self::count), from the
    /// list, which was found under `key`, whose slot is held; with the last one the key is removed.
    ///
    /// # Errors
    ///
    /// There is no memory for the elements to be moved; those of reads and writes.
    pub fn remove(&self, keys: &mut Keys<'c>, key: &[u8], positions: &[u64]) -> Outcome {
        let ([first, ..], [.., last]) = (positions, positions) else { return Ok(()) };
        let (count, removed) = (self.count()?, positions.len() as u64);
        if removed >= count {
            return self.trim(keys, key, 0..0);
        }
        let Some(mut lay) = self.large else {
            let (mut all, mut at) = (self.small()?, 0..);
            all.retain(|_| at.next().is_some_and(|at: u64| positions.binary_search(&at).is_err()));
            return store_small(keys, key, self.entry.expires_at_ms, &all);
        };
        // Those before the last move to the right, or those behind the first to the left.
        if *last < count - first {
            let moved = collect(keys, lay, lay.first..lay.first + last + 1, positions)?;
            put(keys, lay.id, lay.first + removed, moved.iter().map(Vec::as_slice))?;
            lay.remove(keys, lay.first..lay.first + removed)?;
        } else {
            let moved = collect(keys, lay, lay.first + first..lay.end, positions)?;
            put(keys, lay.id, lay.first + first, moved.iter().map(Vec::as_slice))?;
            lay.remove(keys, lay.end - removed..lay.end)?;
        }
        lay.store(keys, key, self.entry.expires_at_ms)
    }

    /// The elements of a small list.
    fn small(&self) -> Outcome<Vec<&[u8]>> {
        Ok(packed::items(&self.entry).collect::<Result<_, _>>()?)
    }
}

/// The elements of a large list with `indices`, without those at the positions `without`, to be put
/// elsewhere.
fn collect<'c>(
    keys: &mut Keys<'c>,
    lay: Lay,
    indices: Range<u64>,
    without: &[u64],
) -> Outcome<BoundedVec<'c, Vec<u8>>> {
    let mut found = BoundedVec::new(keys.reserve_memory());
    if !indices.is_empty() {
        lay.visit(keys, indices, Direction::Forward, |index, element| {
            if without.binary_search(&(index - lay.first)).is_ok() {
                return ControlFlow::Continue(());
            }
            found.add(element.len(), || element.to_vec())
        })?;
    }
    found.whole()
}

/// Puts `elements` at the indices from `first` on.
fn put<'e>(keys: &mut Keys<'_>, id: CollectionId, first: u64, elements: impl Iterator<Item = &'e [u8]>) -> Outcome {
    for (index, element) in (first..).zip(elements) {
        keys.set_element(id, &[&index.to_be_bytes()], element)?;
    }
    Ok(())
}

/// Puts a list that is not large yet under `key`; it becomes so where it must.
fn store_small(keys: &mut Keys<'_>, key: &[u8], expires_at_ms: Option<u64>, all: &[&[u8]]) -> Outcome {
    if all.len() <= MAX_SMALL_ELEMENTS
        && let Some(small) = packed::Small::of(all.iter().copied())
    {
        return keys.set_to(key, Tag::small(Type::List), expires_at_ms, small.bytes(), || small.pack());
    }
    let mut lay = Lay { id: keys.new_collection(key)?, first: MIDDLE, end: MIDDLE };
    for element in all {
        lay.push(keys, End::Right, element)?;
    }
    lay.store(keys, key, expires_at_ms)
}
