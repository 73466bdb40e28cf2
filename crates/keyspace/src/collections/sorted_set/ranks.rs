//! Members by their rank, and how many there are in a range.
//!
//! No entry says how many come before it. Near an end of a set, or of the range, members are
//! stepped over and counted. Where they are many the [index of ranks](crate::ranks) has the counts
//! of the ranges that were counted before: a rank is then found by stepping over the members of one
//! block. A range that was not is counted from both sides at once, in growing steps, and the result
//! is put into the index: so the first command pays about what counting from the nearer side costs,
//! and later ones do not.
//!
//! The index agrees with the current entries while the latch of the key's slot is held: so all of
//! this is done under the latch, never from a snapshot.
//!
//! Bounds: [`MAX_CUTS`] places are collected at a time. A command that must not block steps over no
//! more than others.

use std::ops::{ControlFlow, Range};

use ecotone_engine::Direction;

use super::{Form, Member, SortedSet, score};
use crate::collections::Large;
use crate::error::Outcome;
use crate::keys::Keys;
use crate::memory::BoundedVec;
use crate::ranks::{BLOCK_ELEMENTS, Block, Cut, separator};

/// Members that are stepped over before the index is asked, and counted from one side before as
/// many are from the other; twice as many each time.
const FIRST_COUNTED: u64 = 2 * BLOCK_ELEMENTS;

/// Members that are read in the opposite order and kept in memory to be reversed.
const MAX_TURNED: u64 = 16_384;

/// Places where blocks can be cut that are collected at a time: what is stepped over behind them is
/// counted and not put into the index.
const MAX_CUTS: usize = 16_384;

/// Members of a range that are counted step by step.
struct RangeCount {
    rest: Range<Vec<u8>>,
    direction: Direction,
    members: u64,
}

impl RangeCount {
    fn of(range: Range<Vec<u8>>, direction: Direction) -> Self {
        Self { rest: range, direction, members: 0 }
    }

    /// Counts up to `most` more. Returns whether that were all.
    fn is_all_after(&mut self, most: u64, set: &SortedSet<'_>, keys: &mut Keys<'_>) -> Outcome<bool> {
        let (mut left, mut last) = (most, None);
        set.visit(keys, &self.rest, self.direction, |score, name| {
            left -= 1;
            if left > 0 {
                return ControlFlow::Continue(());
            }
            last = Some(Member { score, name: name.to_vec() });
            ControlFlow::Break(())
        })?;
        self.members += most - left;
        let Some(last) = last else { return Ok(true) };
        match self.direction {
            Direction::Forward => self.rest.start = last.behind(),
            Direction::Reverse => self.rest.end = last.place(),
        }
        Ok(false)
    }
}

/// What was found by stepping over members of a block from one side of it.
#[derive(Debug, Default)]
struct Stepped {
    members: u64,
    /// Whether all of the range was counted.
    are_all: bool,
    /// The first one.
    first: Option<Vec<u8>>,
    /// Places between members; before the first of these are [`BLOCK_ELEMENTS`], and as many
    /// between each and the next.
    cuts: Vec<Vec<u8>>,
}

impl Stepped {
    /// Steps over up to `most` members within `range`.
    fn over(
        set: &SortedSet<'_>,
        keys: &mut Keys<'_>,
        range: &Range<Vec<u8>>,
        direction: Direction,
        most: u64,
    ) -> Outcome<Self> {
        let mut stepped = Self { are_all: true, ..Self::default() };
        let mut before: Option<Vec<u8>> = None;
        set.visit(keys, range, direction, |score, name| {
            if let Some(before) = before.take() {
                let place = score::place(score, name);
                let between = match direction {
                    Direction::Forward => separator(&before, &place),
                    Direction::Reverse => separator(&place, &before),
                };
                stepped.cuts.push(between.to_vec());
            }
            if stepped.members == most {
                stepped.are_all = false;
                return ControlFlow::Break(());
            }
            if stepped.members == 0 {
                stepped.first = Some(score::place(score, name));
            }
            stepped.members += 1;
            if stepped.members.is_multiple_of(BLOCK_ELEMENTS) && stepped.cuts.len() < MAX_CUTS {
                before = Some(score::place(score, name));
            }
            ControlFlow::Continue(())
        })?;
        Ok(stepped)
    }

    /// Puts it into the index, as part of `block`.
    fn note(self, large: Large, keys: &mut Keys<'_>, block: &Block, direction: Direction) {
        let many = |at: usize| (at as u64 + 1) * BLOCK_ELEMENTS;
        let cuts = self.cuts.into_iter().enumerate();
        let first = self.first.as_deref();
        match direction {
            Direction::Forward => {
                let cuts: Vec<Cut> = cuts.map(|(at, cut)| Cut { at: cut, before: many(at) }).collect();
                let is_first = block.before == 0;
                keys.cut_ranks(large.id, &block.start, &cuts, first.filter(|_| is_first), None);
            }
            Direction::Reverse => {
                // A damaged set may have more than its key says.
                let before = |at: usize| block.elements.checked_sub(many(at));
                let mut cuts: Vec<Cut> =
                    cuts.map_while(|(at, cut)| Some(Cut { at: cut, before: before(at)? })).collect();
                cuts.reverse();
                let is_last = block.end.is_none();
                keys.cut_ranks(large.id, &block.start, &cuts, None, first.filter(|_| is_last));
            }
        }
    }
}

fn end_of(block: &Block) -> Vec<u8> {
    block.end.clone().unwrap_or_else(|| score::all().end)
}

/// So many or a few more, so that they end where a block can be cut.
fn whole_blocks(members: u64) -> u64 {
    members.div_ceil(BLOCK_ELEMENTS) * BLOCK_ELEMENTS
}

impl SortedSet<'_> {
    /// How many members precede `member`, which is in it. The set [holds
    /// still](Self::hold_still).
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn rank(&self, keys: &mut Keys<'_>, member: &Member) -> Outcome<u64> {
        self.hold_still(keys)?;
        let (all, place) = (score::all(), member.place());
        let is_known = self.large().is_some_and(|large| keys.knows_ranks(large.id));
        if !is_known {
            let mut before = RangeCount::of(all.start..place.clone(), Direction::Forward);
            if before.is_all_after(FIRST_COUNTED, self, keys)? {
                return Ok(before.members);
            }
            let mut behind = RangeCount::of(member.behind()..all.end, Direction::Forward);
            if behind.is_all_after(FIRST_COUNTED, self, keys)? {
                return Ok((self.len() - 1).saturating_sub(behind.members));
            }
        }
        self.hold_latch(keys)?;
        let mut most = FIRST_COUNTED;
        loop {
            if let Some(rank) = self.count_before(keys, &place, most)? {
                return Ok(rank);
            }
            most *= 2;
        }
    }

    /// How many members have a [place](score) in `range`.
    ///
    /// # Errors
    ///
    /// Those of reads; [`Failure::NeedsLatch`](crate::error::Failure::NeedsLatch) where they are
    /// many.
    pub fn count(&self, keys: &mut Keys<'_>, range: &Range<Vec<u8>>) -> Outcome<u64> {
        let mut within = RangeCount::of(range.clone(), Direction::Forward);
        let mut most = FIRST_COUNTED;
        if within.is_all_after(most, self, keys)? {
            return Ok(within.members);
        }
        self.hold_latch(keys)?;
        loop {
            let start = self.count_before(keys, &range.start, most)?;
            let end = self.count_before(keys, &range.end, most)?;
            if let (Some(start), Some(end)) = (start, end) {
                return Ok(end.saturating_sub(start));
            }
            if within.is_all_after(most, self, keys)? {
                return Ok(within.members);
            }
            most *= 2;
        }
    }

    fn large(&self) -> Option<Large> {
        match self.form {
            Form::Small(_) => None,
            Form::Large(large, _) => Some(large),
        }
    }

    /// How many members have a place before this one, unless more than `most` members had to be
    /// stepped over from either side. The result is put into the index, as far as there is memory.
    /// The set holds still.
    fn count_before(&self, keys: &mut Keys<'_>, place: &[u8], most: u64) -> Outcome<Option<u64>> {
        let Some(large) = self.large() else { return Ok(Some(self.count_all_before(keys, place)?)) };
        let find = |keys: &mut Keys<'_>| keys.look_at_ranks(large.id, large.elements, |blocks| blocks.at_place(place));
        let block = find(keys);
        let most = if block.is_wide() { most } else { u64::MAX };
        let range = block.start.clone()..place.to_vec();
        let left = Stepped::over(self, keys, &range, Direction::Forward, most)?;
        if left.members > block.elements {
            // More than there can be: the set is damaged, or its index is wrong.
            keys.forget_ranks(large.id);
            return Ok(Some(self.count_all_before(keys, place)?));
        }
        let rank = left.are_all.then_some(block.before + left.members);
        if block.is_wide() {
            left.note(large, keys, &block, Direction::Forward);
        }
        if rank.is_some() {
            return Ok(rank);
        }
        let block = find(keys);
        let range = place.to_vec()..end_of(&block);
        let right = Stepped::over(self, keys, &range, Direction::Reverse, most)?;
        let rank = right.are_all.then(|| block.before + block.elements.saturating_sub(right.members));
        right.note(large, keys, &block, Direction::Reverse);
        Ok(rank)
    }

    fn count_all_before(&self, keys: &mut Keys<'_>, place: &[u8]) -> Outcome<u64> {
        let mut before = RangeCount::of(Vec::new()..place.to_vec(), Direction::Forward);
        before.is_all_after(u64::MAX, self, keys)?;
        Ok(before.members)
    }

    /// From where to visit members in `direction` to come to the one with this rank, which is less
    /// than their number, and how many to pass before. The set holds still.
    fn seek(
        &self,
        large: Large,
        keys: &mut Keys<'_>,
        rank: u64,
        direction: Direction,
    ) -> Outcome<(Range<Vec<u8>>, u64)> {
        let find = |keys: &mut Keys<'_>| keys.look_at_ranks(large.id, large.elements, |blocks| blocks.at_rank(rank));
        let mut block = find(keys);
        while block.is_wide() {
            let range = block.start.clone()..end_of(&block);
            let offset = rank.saturating_sub(block.before);
            let (from, members) = if offset < block.elements / 2 {
                (Direction::Forward, whole_blocks(offset + 1))
            } else {
                (Direction::Reverse, whole_blocks(block.elements.saturating_sub(offset)))
            };
            let members = members.min(MAX_CUTS as u64 * BLOCK_ELEMENTS);
            Stepped::over(self, keys, &range, from, members)?.note(large, keys, &block, from);
            let found = find(keys);
            if found == block {
                // There is no memory for the index, or the set is damaged.
                break;
            }
            block = found;
        }
        let all = score::all();
        Ok(match direction {
            Direction::Forward => (block.start..all.end, rank.saturating_sub(block.before)),
            Direction::Reverse => {
                let end = end_of(&block);
                (all.start..end, (block.before + block.elements).saturating_sub(rank + 1))
            }
        })
    }

    /// Shows `visit` members in `range` but the first `offset`, in their order or against it, until
    /// it breaks.
    ///
    /// # Errors
    ///
    /// Those of reads; [`Failure::NeedsLatch`](crate::error::Failure::NeedsLatch) where the offset
    /// is great.
    pub fn visit_behind(
        &self,
        keys: &mut Keys<'_>,
        range: &Range<Vec<u8>>,
        direction: Direction,
        offset: u64,
        visit: impl FnMut(f64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let Some(large) = self.large().filter(|_| offset > FIRST_COUNTED) else {
            return self.visit_skipping(keys, range, direction, offset, visit);
        };
        self.hold_latch(keys)?;
        let from = match direction {
            Direction::Forward => &range.start,
            Direction::Reverse => &range.end,
        };
        let mut passed = RangeCount::of(range.clone(), direction);
        let mut most = FIRST_COUNTED;
        loop {
            if let Some(before) = self.count_before(keys, from, most)? {
                let rank = match direction {
                    Direction::Forward => before.checked_add(offset),
                    Direction::Reverse => before.checked_sub(1).and_then(|last| last.checked_sub(offset)),
                };
                let Some(rank) = rank.filter(|rank| *rank < self.len()) else { return Ok(()) };
                let (found, skip) = self.seek(large, keys, rank, direction)?;
                let rest = match direction {
                    Direction::Forward => found.start..range.end.clone(),
                    Direction::Reverse => range.start.clone()..found.end,
                };
                return self.visit_skipping(keys, &rest, direction, skip, visit);
            }
            let left = offset - passed.members;
            if passed.is_all_after(most.min(left), self, keys)? {
                return Ok(());
            }
            if passed.members == offset {
                return self.visit(keys, &passed.rest, direction, visit);
            }
            most *= 2;
        }
    }

    fn visit_skipping(
        &self,
        keys: &mut Keys<'_>,
        range: &Range<Vec<u8>>,
        direction: Direction,
        mut skip: u64,
        mut visit: impl FnMut(f64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        self.visit(keys, range, direction, |score, name| {
            if skip > 0 {
                skip -= 1;
                return ControlFlow::Continue(());
            }
            visit(score, name)
        })
    }

    /// Shows `visit` up to `count` members from the one with the rank `first` on; ranks are counted
    /// from the end if `direction` says so. Near the other end they are read from there, if they
    /// are not too many to be reversed. The set [holds still](Self::hold_still).
    ///
    /// # Errors
    ///
    /// Those of reads; there is no memory to reverse them.
    pub fn visit_ranks(
        &self,
        keys: &mut Keys<'_>,
        first: u64,
        count: u64,
        direction: Direction,
        mut visit: impl FnMut(f64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let count = count.min(self.len().saturating_sub(first));
        if count == 0 {
            return Ok(());
        }
        self.hold_still(keys)?;
        let behind = self.len() - first - count;
        let is_near_other_end = behind < first && behind <= FIRST_COUNTED && count <= MAX_TURNED;
        let mut left = count;
        if let Some(large) = self.large().filter(|_| first > FIRST_COUNTED && !is_near_other_end) {
            self.hold_latch(keys)?;
            let rank = match direction {
                Direction::Forward => first,
                Direction::Reverse => self.len() - 1 - first,
            };
            let (range, skip) = self.seek(large, keys, rank, direction)?;
            return self.visit_skipping(keys, &range, direction, skip, |score, name| {
                left -= 1;
                let flow = visit(score, name);
                if left == 0 { ControlFlow::Break(()) } else { flow }
            });
        }
        let (direction, skip) = match (is_near_other_end, direction) {
            (false, direction) => (direction, first),
            (true, Direction::Forward) => (Direction::Reverse, behind),
            (true, Direction::Reverse) => (Direction::Forward, behind),
        };
        let mut turned = BoundedVec::new(keys.reserve_memory());
        self.visit_skipping(keys, &score::all(), direction, skip, |score, name| {
            left -= 1;
            let flow = if is_near_other_end {
                turned.add(name.len(), || Member { score, name: name.to_vec() })
            } else {
                visit(score, name)
            };
            if left == 0 { ControlFlow::Break(()) } else { flow }
        })?;
        for member in turned.whole()?.iter().rev() {
            if visit(member.score, &member.name).is_break() {
                break;
            }
        }
        Ok(())
    }
}
