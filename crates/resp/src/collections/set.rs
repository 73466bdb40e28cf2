//! Sets: members, each once.
//!
//! A small one is its members, [packed] in the order in which they came. Of a large one the key holds a [`Large`] and nothing
//! more, and each member has an entry:
//!
//! ```text
//!  sub-key:  hash:u32 member        value:  none
//! ```
//!
//! See [`by_hash`].
//!
//! Invariants: no member is there twice, a set has at least one, [`Large::elements`] is their number.

use std::ops::ControlFlow;

use ecotone_engine::Error as StoreError;

use super::by_hash::{self, MAX_NAME_BYTES, Selection, random_below, sub_key};
use super::page::{Page, Place};
use super::{Large, MOST_SMALL_ELEMENTS, large_of, packed};
use crate::error::{Failure, Outcome};
use crate::keyspace::{Entry, Keys, Tag, Type};

/// The longest member of a large set, in bytes. A small set is smaller than that.
pub const MAX_MEMBER_BYTES: usize = MAX_NAME_BYTES;

/// A set as a command has found it.
#[derive(Debug)]
pub struct Set<'c> {
    entry: Entry<'c>,
    large: Option<Large>,
}

impl<'c> Set<'c> {
    /// The set under `key`.
    ///
    /// # Errors
    ///
    /// [`WRONG_TYPE`](crate::error::texts::WRONG_TYPE), and those of a read.
    pub fn read(keys: &mut Keys<'c>, key: &[u8]) -> Outcome<Option<Self>> {
        let Some(entry) = keys.entry_of(key, Type::Set)? else { return Ok(None) };
        let large = large_of(&entry)?;
        Ok(Some(Self { entry, large }))
    }

    /// How many members it has.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`].
    pub fn count(&self) -> Result<u64, StoreError> {
        match self.large {
            Some(large) => Ok(large.elements),
            None => packed::items(&self.entry).try_fold(0, |count, member| member.map(|_| count + 1)),
        }
    }

    /// Bytes that this takes itself: a small one has all its members with it.
    pub fn bytes(&self) -> usize {
        self.entry.len()
    }

    /// Whether `member` is one of its members.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn has(&self, keys: &mut Keys<'c>, member: &[u8]) -> Outcome<bool> {
        if let Some(large) = self.large {
            return Ok(member.len() <= MAX_MEMBER_BYTES && keys.has_element(large.id, &sub_key(member))?);
        }
        for known in packed::items(&self.entry) {
            if known? == member {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Shows `visit` all members, until it breaks.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn visit(&self, keys: &mut Keys<'c>, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Outcome {
        if let Some(large) = self.large {
            return by_hash::visit_from(keys, large.id, 0, |_, [member, _]| visit(member));
        }
        for member in packed::items(&self.entry) {
            if visit(member?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// One step of a scan that began with the cursor 0: offers `page` members until it has enough. A small set is one place. What is there
    /// from the first step to the last is offered, as long as the set is not made anew.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn scan<T>(
        &self,
        keys: &mut Keys<'c>,
        cursor: u64,
        page: &mut Page<'_, T>,
        mut offer: impl FnMut(&mut Page<'_, T>, Place, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        match self.large {
            Some(large) => {
                by_hash::scan(keys, large.id, cursor, page, |page, place, [member, _]| offer(page, place, member))
            }
            None => self.visit(keys, |member| offer(page, Place::ONLY, member)),
        }
    }

    /// Shows `visit` members at random, `count` times or until it breaks; the same ones may come again. In a large set those behind a long
    /// gap of hashes are drawn more often.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn draw(&self, keys: &mut Keys<'c>, count: u64, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Outcome {
        if let Some(large) = self.large {
            return by_hash::draw(keys, large.id, count, false, |[member, _]| visit(member));
        }
        let members = packed::items(&self.entry).collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Ok(());
        }
        by_hash::check_draws(keys, count)?;
        for _ in 0..count {
            if visit(members[random_below(members.len() as u64) as usize]).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Shows `visit` up to `count` different members at random of the set, which was found under `key`, until it breaks. What is shown is of
    /// one moment.
    ///
    /// # Errors
    ///
    /// Those of reads; there is no memory for so many.
    pub fn draw_different(
        &self,
        keys: &mut Keys<'c>,
        key: &[u8],
        count: u64,
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        if let Some(large) = self.large {
            if let Some(drawn) = by_hash::draw_different(keys, large, count, false)? {
                let _ = drawn.iter().try_for_each(|[member, _]| visit(member));
                return Ok(());
            }
            // As many as its key says.
            keys.hold_still(key)?;
        }
        let mut selection = Selection::new(count, self.count()?);
        self.visit(keys, |member| {
            if selection.takes() {
                visit(member)?;
            }
            if selection.is_whole() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }

    /// Adds members to the set under `key`, whose slot is held and where `set` was found. Tells how many are new.
    ///
    /// # Errors
    ///
    /// A member is too long for a large set; those of reads and writes.
    pub fn add(keys: &mut Keys<'c>, key: &[u8], set: Option<&Self>, new: &[&[u8]]) -> Outcome<u64> {
        let expires_at_ms = set.and_then(|set| set.entry.expires_at_ms);
        if let Some(Self { large: Some(large), .. }) = set {
            return add_to_large(keys, key, expires_at_ms, *large, *large, new);
        }
        let stored = set.map_or(&[][..], |set| &set.entry);
        let mut members = packed::items(stored).collect::<Result<Vec<_>, _>>()?;
        let (before, mut rest) = (members.len(), new);
        // From here on the members are too many to look through for each one that is added.
        while members.len() <= MOST_SMALL_ELEMENTS
            && let [member, behind @ ..] = rest
        {
            if !members.contains(member) {
                members.push(member);
            }
            rest = behind;
        }
        let created = (members.len() - before) as u64;
        if created == 0 {
            return Ok(0);
        }
        if members.len() <= MOST_SMALL_ELEMENTS
            && let Some(packed) = packed::pack_small(members.iter().copied())
        {
            keys.set(key, Tag::small(Type::Set), expires_at_ms, &packed)?;
            return Ok(created);
        }
        let large = Large { id: keys.new_collection(key)?, elements: members.len() as u64 };
        for member in members {
            check_member(member)?;
            keys.set_element(large.id, &sub_key(member), b"")?;
        }
        Ok(created + add_to_large(keys, key, expires_at_ms, Large { elements: 0, ..large }, large, rest)?)
    }

    /// Removes members of the set, which was found under `key`, whose slot is held; with the last one the key. Tells how many were there.
    ///
    /// # Errors
    ///
    /// Those of reads and writes.
    pub fn remove(&self, keys: &mut Keys<'c>, key: &[u8], members: &[&[u8]]) -> Outcome<u64> {
        let expires_at_ms = self.entry.expires_at_ms;
        let Some(large) = self.large else {
            let mut left = packed::items(&self.entry).collect::<Result<Vec<_>, _>>()?;
            let before = left.len();
            left.retain(|member| !members.contains(member));
            if left.is_empty() {
                keys.remove(key)?;
            } else if left.len() < before {
                let mut packed = Vec::with_capacity(self.entry.len());
                left.iter().for_each(|member| packed::push(&mut packed, member));
                keys.set(key, Tag::small(Type::Set), expires_at_ms, &packed)?;
            }
            return Ok((before - left.len()) as u64);
        };
        let mut left = large.elements;
        for member in members {
            if self.has(keys, member)? {
                keys.remove_element(large.id, &sub_key(member));
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

    /// Puts a set of `members`, which are different, under `key`, whose slot is held. Whatever was there is deleted, also where there are no
    /// members.
    ///
    /// # Errors
    ///
    /// A member is too long for a large set; those of reads and writes.
    pub fn replace(keys: &mut Keys<'c>, key: &[u8], members: &[&[u8]]) -> Outcome {
        if members.is_empty() {
            keys.delete(key)?;
            return Ok(());
        }
        let old = keys.entry(key)?;
        Self::add(keys, key, None, members)?;
        if let Some(old) = old {
            keys.give_up(&old);
        }
        Ok(())
    }
}

/// Adds members to a large set, whose key says `stored` and which is `large` by now. Tells how many are new.
fn add_to_large(
    keys: &mut Keys<'_>,
    key: &[u8],
    expires_at_ms: Option<u64>,
    stored: Large,
    mut large: Large,
    new: &[&[u8]],
) -> Outcome<u64> {
    let before = large.elements;
    for member in new {
        check_member(member)?;
        let sub_key = sub_key(member);
        if !keys.has_element(large.id, &sub_key)? {
            keys.set_element(large.id, &sub_key, b"")?;
            large.elements += 1;
        }
    }
    if large != stored {
        set_key(keys, key, expires_at_ms, large)?;
    }
    Ok(large.elements - before)
}

fn set_key(keys: &mut Keys<'_>, key: &[u8], expires_at_ms: Option<u64>, large: Large) -> Outcome {
    let mut payload = Vec::new();
    large.encode(&mut payload);
    keys.set(key, Tag::large(Type::Set), expires_at_ms, &payload)
}

fn check_member(member: &[u8]) -> Outcome {
    if member.len() > MAX_MEMBER_BYTES {
        let text = format!("ERR the member has {} bytes, the most is {MAX_MEMBER_BYTES}", member.len());
        return Err(Failure::with(text));
    }
    Ok(())
}
