//! Sorted sets: members in the order of their scores, and of their bytes where scores are equal.
//!
//! A small one is the [places](score) of its members in one value. A large one has two entries for
//! each member: `m`, a hash and the member with its score, and `s` and the member's place; its key
//! says what [`Large`] does, and between which [ends] the places lie.
//!
//! What it costs in a large one, where n is the number of members: a score O(1); a range of scores
//! O(1) and what is visited; a [rank](ranks), or what lies behind an offset, O(log n) and some
//! hundred members that are stepped over, once its part of the set has been counted: no entry says
//! how many come before it, so the first time costs O(n) from the nearer end.
//!
//! Unlike Redis, -0 is always 0. Redis does so in small sets, and keeps the sign in large ones.

mod ends;
mod large;
mod ranks;
pub mod score;
mod small;

use std::ops::{ControlFlow, Range};

use ecotone_engine::Direction;
use twox_hash::XxHash3_64;

use super::Large;
use crate::error::{Failure, Outcome};
use crate::keys::{Keys, MAX_KEY_BYTES};
use crate::layout::{Tag, Type};

use ends::Ends;
pub use large::hash;
use score::SCORE_BYTES;
use small::Small;

/// The longest member, in bytes: with its score it is a key of the store.
pub const MAX_MEMBER_BYTES: usize = MAX_KEY_BYTES - SCORE_BYTES - 1;

/// A member with its score.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// The score, not NaN.
    pub score: f64,
    /// The member.
    pub name: Vec<u8>,
}

impl Member {
    /// Its [place](score).
    pub fn place(&self) -> Vec<u8> {
        score::place(self.score, &self.name)
    }

    /// The least place behind its own.
    pub fn behind(&self) -> Vec<u8> {
        [&self.place()[..], &[0]].concat()
    }
}

/// One removal in so many checks whether it was at an end: often enough for clients that take the
/// first member again and again, and seldom enough that removals from the middle cost hardly more.
const LOOKS_ONE_IN: u64 = 128;

/// What the key of a large one says is seldom longer.
const LARGE_BYTES: usize = 64;

/// Notes in `left` one in so many of the places that were left.
fn note_left(left: &mut Option<Vec<u8>>, member: &[u8], score: f64) {
    // Of places, not of members: one member may be moved again and again.
    if XxHash3_64::oneshot_with_seed(score.to_bits(), member).is_multiple_of(LOOKS_ONE_IN) {
        *left = Some(score::place(score, member));
    }
}

/// The sorted set under a key, as one command sees and changes it. Changes count once it is
/// [saved](Self::save).
#[derive(Debug)]
pub struct SortedSet<'k> {
    key: &'k [u8],
    expires_at_ms: Option<u64>,
    form: Form,
    /// A place that a member has left, which may have been the first or last.
    left: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Form {
    Small(Small),
    Large(Large, Ends),
}

impl<'k> SortedSet<'k> {
    /// The one under `key`.
    ///
    /// # Errors
    ///
    /// Those of reads; [`WRONG_TYPE`](crate::error::texts::WRONG_TYPE).
    pub fn find(keys: &mut Keys<'_>, key: &'k [u8]) -> Outcome<Option<Self>> {
        let Some(entry) = keys.entry_of(key, Type::SortedSet)? else { return Ok(None) };
        let form = if entry.tag.is_large {
            let (large, ends) = Large::decode(&entry)?;
            Form::Large(large, Ends::decode(ends)?)
        } else {
            Form::Small(Small::decode(&entry)?)
        };
        Ok(Some(Self { key, expires_at_ms: entry.expires_at_ms, form, left: None }))
    }

    /// One without members, which is not under `key` until it is saved.
    pub fn new(key: &'k [u8]) -> Self {
        Self { key, expires_at_ms: None, form: Form::Small(Small::default()), left: None }
    }

    /// How many members it has.
    pub fn len(&self) -> u64 {
        match &self.form {
            Form::Small(small) => small.len() as u64,
            Form::Large(large, _) => large.elements,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The score of `member`.
    pub fn score(&self, keys: &mut Keys<'_>, member: &[u8]) -> Outcome<Option<f64>> {
        match &self.form {
            Form::Small(small) => Ok(small.score(member)?),
            // None is longer.
            Form::Large(..) if member.len() > MAX_MEMBER_BYTES => Ok(None),
            Form::Large(large, _) => large::score_of(*large, keys, member),
        }
    }

    /// Adds `member`, whose score so far is `old`.
    pub fn put(&mut self, keys: &mut Keys<'_>, member: &[u8], score: f64, old: Option<f64>) -> Outcome {
        if member.len() > MAX_MEMBER_BYTES {
            let text = format!("ERR the member has {} bytes, the most is {MAX_MEMBER_BYTES}", member.len());
            return Err(Failure::with(text));
        }
        match &mut self.form {
            Form::Small(small) => {
                small.put(member, score);
                if small.is_too_large() {
                    self.grow(keys)?;
                }
            }
            Form::Large(large, ends) => {
                large::put(large.id, keys, member, score, old)?;
                if let Some(old) = old {
                    note_left(&mut self.left, member, old);
                }
                ends.include(score, member);
                large.elements += u64::from(old.is_none());
            }
        }
        Ok(())
    }

    fn grow(&mut self, keys: &mut Keys<'_>) -> Outcome {
        let Form::Small(small) = &self.form else { return Ok(()) };
        let id = keys.new_collection(self.key)?;
        for place in small.places() {
            let (score, member) = score::split(place)?;
            large::put(id, keys, member, score, None)?;
        }
        self.form = Form::Large(Large { id, elements: small.len() as u64 }, Ends::default());
        Ok(())
    }

    /// Removes `member`, which is in it with `score`.
    pub fn remove(&mut self, keys: &mut Keys<'_>, member: &[u8], score: f64) {
        match &mut self.form {
            Form::Small(small) => small.remove(member),
            Form::Large(large, _) => {
                large::remove(large.id, keys, member, score);
                // In a damaged one they may be fewer than there are.
                large.elements = large.elements.saturating_sub(1);
                note_left(&mut self.left, member, score);
            }
        }
    }

    /// Removes `members`, which are in it and all that are in `range`, and saves it. All of them at
    /// once cost no more than one.
    pub fn remove_and_save(mut self, keys: &mut Keys<'_>, members: &[Member], range: &Range<Vec<u8>>) -> Outcome {
        if members.len() as u64 == self.len() {
            return self.delete(keys);
        }
        if let Form::Large(_, ends) = &mut self.form {
            ends.exclude(range);
        }
        members.iter().for_each(|member| self.remove(keys, &member.name, member.score));
        // What lies beyond is excluded already.
        self.left = None;
        self.save(keys)
    }

    /// Writes what has changed under its key; one without members is removed.
    pub fn save(mut self, keys: &mut Keys<'_>) -> Outcome {
        if self.is_empty() {
            return self.delete(keys);
        }
        if let Some(left) = self.left.take() {
            self.exclude_beyond(keys, &left)?;
        }
        match &self.form {
            Form::Small(small) => {
                let packing = small.packing();
                let tag = Tag::small(Type::SortedSet);
                keys.set_to(self.key, tag, self.expires_at_ms, packing.bytes(), || packing.pack())
            }
            Form::Large(large, ends) => {
                let mut payload = Vec::with_capacity(LARGE_BYTES);
                large.encode(&mut payload);
                ends.encode(&mut payload);
                keys.set(self.key, Tag::large(Type::SortedSet), self.expires_at_ms, &payload)
            }
        }
    }

    /// If the member at the place `left` was the first or the last one, narrows the [ends] up to
    /// the one that is now.
    fn exclude_beyond(&mut self, keys: &mut Keys<'_>, left: &[u8]) -> Outcome {
        let all = score::all();
        let first = self.end(keys, Direction::Forward)?.map(|first| all.start..first.place());
        let last = self.end(keys, Direction::Reverse)?.map(|last| last.behind()..all.end);
        if let Form::Large(_, ends) = &mut self.form {
            let beyond =
                [first, last].into_iter().flatten().filter(|beyond| *beyond.start <= *left && *left < *beyond.end);
            beyond.for_each(|beyond| ends.exclude(&beyond));
        }
        Ok(())
    }

    fn delete(self, keys: &mut Keys<'_>) -> Outcome {
        keys.remove(self.key)?;
        if let Form::Large(large, _) = self.form {
            keys.mark_reclaimable(large.id);
        }
        Ok(())
    }

    /// Shows `visit` score and member of those with a [place](score) in `range`, in their order or
    /// against it, until it breaks.
    pub fn visit(
        &self,
        keys: &mut Keys<'_>,
        range: &Range<Vec<u8>>,
        direction: Direction,
        mut visit: impl FnMut(f64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let small = match &self.form {
            Form::Small(small) => small,
            Form::Large(large, ends) => {
                let within = ends.within(range);
                // Members that come to lie beyond the ends after they were read would be missed.
                if within != *range {
                    self.hold_still(keys)?;
                }
                return large::visit(*large, keys, &within, direction, visit);
            }
        };
        let mut places = small.within(range);
        while let Some(place) = if direction == Direction::Forward { places.next() } else { places.next_back() } {
            let (score, member) = score::split(place)?;
            if visit(score, member).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Ensures that what is read from here on is of one moment: it does not change until the
    /// command has ended.
    ///
    /// # Errors
    ///
    /// [`Failure::NeedsLatch`](crate::error::Failure::NeedsLatch).
    pub fn hold_still(&self, keys: &Keys<'_>) -> Outcome {
        match self.form {
            // Read with its key.
            Form::Small(_) => Ok(()),
            Form::Large(..) => keys.hold_still(self.key),
        }
    }

    /// The same, of the current moment: the [index of ranks](crate::keyspace::ranks) agrees with
    /// it.
    fn hold_latch(&self, keys: &Keys<'_>) -> Outcome {
        match self.form {
            Form::Small(_) => Ok(()),
            Form::Large(..) => keys.hold_latch(self.key),
        }
    }

    /// The first member, or the last one.
    pub fn end(&self, keys: &mut Keys<'_>, direction: Direction) -> Outcome<Option<Member>> {
        let mut found = None;
        self.visit(keys, &score::all(), direction, |score, name| {
            found = Some(Member { score, name: name.to_vec() });
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Shows `visit` hash, member and score of those whose [`hash`] is from `from` on, in the order
    /// of their hashes. `false`, and nothing is shown, where it is small and has no such order.
    pub fn visit_by_hash(
        &self,
        keys: &mut Keys<'_>,
        from: u32,
        visit: impl FnMut(u32, &[u8], f64) -> ControlFlow<()>,
    ) -> Outcome<bool> {
        match &self.form {
            Form::Small(_) => Ok(false),
            Form::Large(large, _) => large::visit_by_hash(*large, keys, from, visit).map(|()| true),
        }
    }
}
