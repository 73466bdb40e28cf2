//! One step of a scan: what it finds until it has enough.
//!
//! Elements are scanned in the order of places, which are numbers derived from the names. Cursors
//! are between places, so all elements of one place are found in one step. A step ends when it has
//! examined as many as were asked for, or when what it found takes as much as the reply may, or as
//! there is memory for; the next one goes on from there.

use std::ops::ControlFlow;

use crate::error::{Failure, Outcome};
use crate::memory::{BoundedVec, MemoryReservation};

/// What a reply needs for something that was found, besides its bytes: its header and its end.
const ANSWER_BYTES: usize = 32;

/// What is found takes no more than this part of what the reply may have: both are in memory at the
/// same time, and the reply's grows by doubling.
const REPLY_SHARE: usize = 4;

/// Where something lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanPosition {
    /// Ascending.
    pub number: u32,
    /// The cursor of a step that begins here.
    pub cursor: u64,
}

impl ScanPosition {
    /// That of a collection which lies in one value: it is found in one step.
    pub const ONLY: Self = Self { number: 0, cursor: 0 };
}

/// One step of a scan.
#[derive(Debug)]
pub struct Page<'m, T> {
    found: BoundedVec<'m, T>,
    /// How many may still be examined.
    count: usize,
    /// What may still be found.
    bytes_left: usize,
    /// The place that was examined last, and how much was found before it.
    last: Option<(u32, usize)>,
    is_first_place: bool,
    next_cursor: u64,
    is_refused: bool,
    would_block: bool,
}

impl<'m, T> Page<'m, T> {
    /// For a reply that may have so many bytes.
    pub fn for_reply(reservation: MemoryReservation<'m>, count: usize, reply_bytes: usize) -> Self {
        Self::new(reservation, count, reply_bytes / REPLY_SHARE)
    }

    /// Nothing yet; about `count` are to be examined, and what is found should take no more than
    /// `max_bytes`.
    pub fn new(reservation: MemoryReservation<'m>, count: usize, max_bytes: usize) -> Self {
        Self {
            found: BoundedVec::new(reservation),
            count,
            bytes_left: max_bytes,
            last: None,
            is_first_place: true,
            next_cursor: 0,
            is_refused: false,
            would_block: false,
        }
    }

    /// The next place is not examined any more.
    pub fn has_enough(&mut self) {
        self.count = 0;
    }

    /// It takes too long for a thread that must not block.
    pub fn would_block(&mut self) -> ControlFlow<()> {
        self.would_block = true;
        ControlFlow::Break(())
    }

    /// Examines an element in `place`. If it is wanted, `bytes` has the lengths of what `make` then
    /// returns. Breaks where there is enough.
    pub fn offer(&mut self, place: ScanPosition, bytes: Option<usize>, make: impl FnOnce() -> T) -> ControlFlow<()> {
        if self.last.is_none_or(|(last, _)| last != place.number) {
            self.is_first_place = self.last.is_none();
            if self.count == 0 {
                self.next_cursor = place.cursor;
                return ControlFlow::Break(());
            }
            self.last = Some((place.number, self.found.len()));
        }
        self.count = self.count.saturating_sub(1);
        let Some(bytes) = bytes else { return ControlFlow::Continue(()) };
        let left = self.bytes_left.checked_sub(bytes + ANSWER_BYTES);
        // What is too much even for a step of its own is found all the same: the reply fails then.
        let is_enough = left.is_none() && !self.is_first_place;
        self.bytes_left = left.unwrap_or(0);
        if is_enough || self.found.add(bytes, make).is_break() {
            // The next step begins with all of this place. Where this one did as well there would
            // be no progress.
            self.is_refused = self.is_first_place;
            if let Some((_, found_before)) = self.last {
                self.found.truncate(found_before);
            }
            self.next_cursor = place.cursor;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// What was found, and the next cursor: 0 at the end.
    ///
    /// # Errors
    ///
    /// There is no memory for what lies in one place; [`Failure::WouldBlock`], where there is more
    /// of it, or it [takes too long](Self::would_block).
    pub fn found(mut self) -> Outcome<(BoundedVec<'m, T>, u64)> {
        if self.would_block {
            return Err(Failure::WouldBlock);
        }
        match self.found.refusal() {
            Some(failure) if self.is_refused || matches!(failure, Failure::WouldBlock) => Err(failure),
            _ => Ok((self.found, self.next_cursor)),
        }
    }
}
