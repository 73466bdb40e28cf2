//! The rows of a range in RocksDB, one after the other.

use rust_rocksdb::DBRawIterator;

use super::Direction;
use crate::at_once::{self, AtOnce, MOST_SKIPPED};
use crate::{Error, Result};

/// Keys and what is stored with them, in one direction.
pub(super) struct Rows<'s> {
    rows: DBRawIterator<'s>,
    direction: Direction,
    state: State,
    /// How it is read where nobody waits for the device.
    at_once: Option<&'s AtOnce>,
    /// Removed entries that it has stepped over, where nobody waits.
    skipped: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Within,
    End,
}

impl<'s> Rows<'s> {
    /// The rows that `rows` is bounded to; none where `is_empty`.
    pub(super) fn new(
        rows: DBRawIterator<'s>,
        direction: Direction,
        is_empty: bool,
        at_once: Option<&'s AtOnce>,
    ) -> Self {
        Self { rows, direction, state: if is_empty { State::End } else { State::Begin }, at_once, skipped: 0 }
    }

    /// Goes to the next row. `false` where there is none; so it stays, also after an error.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        if self.state == State::End {
            return Ok(false);
        }
        match self.at_once {
            None => self.step(),
            Some(at_once) => {
                self.skipped += at_once::skipped_by(|| at_once.read(|| self.step()));
                if self.skipped > MOST_SKIPPED {
                    self.state = State::End;
                    return Err(Error::WouldWait);
                }
            }
        }
        if self.rows.valid() {
            self.state = State::Within;
            return Ok(true);
        }
        self.state = State::End;
        let map_error = if self.at_once.is_some() { at_once::error } else { at_once::skipping_error };
        self.rows.status().map_err(|error| map_error(&error))?;
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
}
