//! The rows of a range in RocksDB, one after the other.

use rust_rocksdb::DBRawIterator;

use super::Direction;
use crate::Result;
use crate::read::at_once;

/// Keys and what is stored with them, in one direction.
pub(super) struct Rows<'s> {
    rows: DBRawIterator<'s>,
    direction: Direction,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Within,
    End,
}

impl<'s> Rows<'s> {
    /// The rows that `rows` is bounded to; none where `is_empty`.
    pub(super) fn new(rows: DBRawIterator<'s>, direction: Direction, is_empty: bool) -> Self {
        Self { rows, direction, state: if is_empty { State::End } else { State::Begin } }
    }

    /// Goes to the next row. `false` where there is none; so it stays, also after an error.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        match (self.state, self.direction) {
            (State::Begin, Direction::Forward) => self.rows.seek_to_first(),
            (State::Begin, Direction::Reverse) => self.rows.seek_to_last(),
            (State::Within, Direction::Forward) => self.rows.next(),
            (State::Within, Direction::Reverse) => self.rows.prev(),
            (State::End, _) => return Ok(false),
        }
        if self.rows.valid() {
            self.state = State::Within;
            return Ok(true);
        }
        self.state = State::End;
        self.rows.status().map_err(|error| at_once(&error))?;
        Ok(false)
    }

    /// The key and what is stored with it, once [`advance`](Self::advance) has found a row.
    #[inline]
    pub(super) fn row(&self) -> Option<(&[u8], &[u8])> {
        self.rows.item()
    }
}
