//! Rows that a scan takes from RocksDB before its caller asks for them, so that the device reads
//! many values at a time.
//!
//! A scan whose values are in memory is not throttled by it: nothing is taken ahead until a value
//! was waited for. Then a few rows are, and twice as many each time a value is waited for all the
//! same. The kernel is asked to read their values; what is read is checked when its turn comes, so
//! an error comes at its own key.
//!
//! Invariants: at most [`MAX_ROWS`] rows are ahead, and no row is taken while those that are have
//! [`MAX_BYTES`] or more.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ecotone_valuelog::ValueLog;

use super::rows::Rows;
use crate::Result;
use crate::header::{Header, Kind};

/// Rows that are taken ahead at first, and at most: beyond, devices do not become faster.
const FIRST_ROWS: usize = 8;
pub(super) const MAX_ROWS: usize = 64;

/// Bytes of rows and of their values from which on no further row is taken ahead.
pub(super) const MAX_BYTES: usize = 1024 * 1024;

/// A value that took so long was waited for. From memory one takes less than a tenth of it, from a
/// fast device twice as long.
const WAITED: Duration = Duration::from_micros(40);

/// Of the values that are in memory one in so many is timed, and those whose number is a power of
/// two.
const TIMED: u32 = 16;

/// A row that was taken ahead.
pub(super) struct Row {
    pub(super) key: Vec<u8>,
    pub(super) stored: Vec<u8>,
    /// Of the row and its value.
    bytes: usize,
}

/// The rows that are ahead of the caller.
#[derive(Default)]
pub(super) struct Ahead {
    rows: VecDeque<Row>,
    bytes: usize,
    /// How many rows are to be ahead; 0: nothing is taken ahead.
    wanted: usize,
    /// Values that were read.
    values: u32,
    /// The end of the rows, or what is wrong with them, once it was met.
    end: Option<Result<()>>,
}

impl Ahead {
    /// Whether rows are taken ahead.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.wanted > 0
    }

    /// The next row, with those behind it taken ahead. `None` at the end; an error comes behind the
    /// rows before it.
    pub(super) fn next(&mut self, rows: &mut Rows<'_>, values: &ValueLog) -> Result<Option<Row>> {
        // Half of them at a time: the device is kept busy, and asked in batches.
        if self.rows.len() <= self.wanted / 2 {
            self.fill(rows, values);
        }
        match self.rows.pop_front() {
            Some(row) => {
                self.bytes -= row.bytes;
                Ok(Some(row))
            }
            None => self.end.take().unwrap_or(Ok(())).map(|()| None),
        }
    }

    fn fill(&mut self, rows: &mut Rows<'_>, values: &ValueLog) {
        while self.end.is_none() && self.rows.len() < self.wanted && self.bytes < MAX_BYTES {
            match rows.advance() {
                Ok(true) => {}
                Ok(false) => self.end = Some(Ok(())),
                Err(error) => self.end = Some(Err(error)),
            }
            let (None, Some((key, stored))) = (&self.end, rows.row()) else { continue };
            let mut bytes = key.len() + stored.len();
            // A header that makes no sense is an error when its turn comes.
            if let Ok(Header { kind: Kind::Separated(pointer), .. }) = Header::decode(stored) {
                values.will_need(key, pointer);
                bytes += pointer.value_bytes as usize;
            }
            self.bytes += bytes;
            self.rows.push_back(Row { key: key.to_vec(), stored: stored.to_vec(), bytes });
        }
    }

    /// Reads a value with `read`, and finds out now and then whether it was waited for.
    #[inline]
    pub(super) fn watch<T>(&mut self, read: impl FnOnce() -> T) -> T {
        self.values = self.values.wrapping_add(1);
        // The first decides nothing: a scan of one value has none to take ahead.
        let is_timed = self.values > 1 && (self.values.is_power_of_two() || self.values.is_multiple_of(TIMED));
        if !self.is_on() && !is_timed {
            return read();
        }
        let begin = Instant::now();
        let value = read();
        if begin.elapsed() >= WAITED {
            self.wanted = (2 * self.wanted).clamp(FIRST_ROWS, MAX_ROWS);
        }
        value
    }

    /// Takes so many rows ahead from now on, as if values had been waited for.
    #[cfg(test)]
    pub(super) fn take_ahead(&mut self, wanted: usize) {
        self.wanted = wanted.min(MAX_ROWS);
    }

    #[cfg(test)]
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// How many rows are ahead, and the bytes of them and their values.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        (self.rows.len(), self.bytes)
    }
}
