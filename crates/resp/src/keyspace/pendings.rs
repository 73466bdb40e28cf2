//! What a group has written, in the order of a scan of the store.

use std::ops::{Bound, Range};

use ecotone_engine::Direction;

use super::group::{Pending, Written};
use super::layout::StoredKey;

/// What a group has written within a range, beside a scan of the store.
pub(super) struct Pendings<'p> {
    rest: Vec<(&'p StoredKey, Option<&'p Pending>)>,
    direction: Direction,
    /// The last one that was taken.
    last: Option<&'p StoredKey>,
}

impl<'p> Pendings<'p> {
    pub(super) fn new(pending: &'p Written, range: Range<&[u8]>, direction: Direction) -> Self {
        let within = pending.range::<[u8], _>((Bound::Included(range.start), Bound::Excluded(range.end)));
        let within = within.map(|(key, written)| (key, written.as_ref()));
        // Taken from the end.
        let rest = match direction {
            Direction::Forward => within.rev().collect(),
            Direction::Reverse => within.collect(),
        };
        Self { rest, direction, last: None }
    }

    pub(super) fn next(&mut self) -> Option<(&'p [u8], Option<&'p Pending>)> {
        let (key, written) = self.rest.pop()?;
        self.last = Some(key);
        Some((key, written))
    }

    /// The next one, if it stands before `key` or at it.
    pub(super) fn next_before(&mut self, key: &[u8]) -> Option<(&'p [u8], Option<&'p Pending>)> {
        let (next, _) = self.rest.last()?;
        let comes = match self.direction {
            Direction::Forward => next.as_slice() <= key,
            Direction::Reverse => next.as_slice() >= key,
        };
        if comes { self.next() } else { None }
    }

    /// Whether the one that was taken last stands in the place of `key`.
    pub(super) fn hides(&self, key: &[u8]) -> bool {
        self.last.is_some_and(|last| last.as_slice() == key)
    }
}
