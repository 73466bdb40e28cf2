//! The rows of a range in RocksDB, one after the other.
//!
//! What it stepped over on its way, since that is gone, it tells at the end, with the range in
//! which that was: see [`crate::cleanup`].

use rust_rocksdb::DBRawIterator;

use super::Direction;
use crate::cleanup::{self, MIN_NOTED};
use crate::non_blocking::{self, MAX_SKIPPED, NonBlockingReads, skipped_by};
use crate::{Error, Result};

/// Keys and what is stored with them, in one direction.
pub(super) struct Rows<'s> {
    rows: DBRawIterator<'s>,
    direction: Direction,
    state: State,
    /// How it is read where nobody waits for the device.
    non_blocking: Option<&'s NonBlockingReads>,
    /// From the first key to before the second, or to the end.
    bounds: (Vec<u8>, Option<Vec<u8>>),
    /// Deletions that it has stepped over.
    deletions: u64,
    /// All entries.
    skipped: u64,
    /// Who is told.
    told: &'s cleanup::CleanupState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Within,
    End,
}

/// Stands behind the keys of a range that has no end, as far as what was skipped is concerned.
const BEHIND_ALL: [u8; 16] = [u8::MAX; 16];

impl<'s> Rows<'s> {
    /// The rows that `rows` is bounded to; none where there are no `bounds`.
    pub(super) fn new(
        rows: DBRawIterator<'s>,
        direction: Direction,
        bounds: Option<(Vec<u8>, Option<Vec<u8>>)>,
        non_blocking: Option<&'s NonBlockingReads>,
        told: &'s cleanup::CleanupState,
    ) -> Self {
        let state = if bounds.is_none() { State::End } else { State::Begin };
        let bounds = bounds.unwrap_or_default();
        Self { rows, direction, state, non_blocking, bounds, deletions: 0, skipped: 0, told }
    }

    /// Goes to the next row. `false` where there is none; so it stays, also after an error.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        if self.state == State::End {
            return Ok(false);
        }
        let leaves_one = self.state == State::Within;
        let skipped = match self.non_blocking {
            None => skipped_by(|| self.step()),
            Some(non_blocking) => skipped_by(|| non_blocking.read(|| self.step())),
        };
        self.deletions += skipped.deletions;
        self.skipped += skipped.entries.saturating_sub(leaves_one.into());
        if self.non_blocking.is_some() && self.deletions > MAX_SKIPPED {
            self.state = State::End;
            return Err(Error::WouldBlock);
        }
        if self.rows.valid() {
            self.state = State::Within;
            return Ok(true);
        }
        self.state = State::End;
        let map_error = if self.non_blocking.is_some() { non_blocking::error } else { non_blocking::skipping_error };
        if let Err(error) = self.rows.status() {
            // Who waits comes this way again, and tells as far as where.
            self.told.count(std::mem::take(&mut self.skipped));
            return Err(map_error(&error));
        }
        Ok(false)
    }

    #[inline]
    fn step(&mut self) {
        match (self.state, self.direction) {
            (State::Begin, Direction::Forward) => self.rows.seek_to_first(),
            (State::Begin, Direction::Reverse) => self.rows.seek_to_last(),
            (State::Within, Direction::Forward) => self.rows.next(),
            (State::Within, Direction::Reverse) => self.rows.prev(),
            (State::End, _) => {}
        }
    }

    /// The key and what is stored with it, once [`advance`](Self::advance) has found a row.
    #[inline]
    pub(super) fn row(&self) -> Option<(&[u8], &[u8])> {
        self.rows.item()
    }

    /// Entries that it has stepped over.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl Drop for Rows<'_> {
    fn drop(&mut self) {
        if self.skipped == 0 {
            return;
        }
        self.told.count(self.skipped);
        if self.skipped >= MIN_NOTED {
            let (from, to) = std::mem::take(&mut self.bounds);
            let to = to.unwrap_or_else(|| BEHIND_ALL.to_vec());
            let at = self.rows.key().map(<[u8]>::to_vec);
            let (first, last) = match (self.direction, at) {
                (Direction::Forward, Some(at)) => (from, at),
                (Direction::Reverse, Some(at)) => (at, to),
                (_, None) => (from, to),
            };
            self.told.note(first, last, self.skipped);
        }
    }
}
