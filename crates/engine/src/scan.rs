//! Reads of ranges, in both directions.

use std::ops::RangeBounds;

use rust_rocksdb::{DBRawIterator, ReadOptions};

use crate::data_layer::DataLayer;
use crate::header::{Attributes, Header, HeaderError, Kind};
use crate::values::readers::Reader;
use crate::write::{lower_bound, upper_bound};
use crate::{Error, Result, Snapshot, Store};

/// Which end of a range a scan begins at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the least key to the greatest.
    Forward,
    /// From the greatest key to the least.
    Reverse,
}

/// The entries of a range as they were when the scan was made, or when its snapshot was. Writes made since are not seen.
///
/// Walk it with [`next_entry`](Self::next_entry), which copies nothing, or as an [`Iterator`], which copies each entry. After
/// an error it is at its end. It pins blocks and memtables while it lives, so do not keep one for long.
pub struct Scan<'s> {
    store: &'s Store,
    rows: DBRawIterator<'s>,
    direction: Direction,
    state: State,
    /// The record of the last value that came from the value log.
    record: Vec<u8>,
    // After `rows`: keeps the segments that they refer to.
    _reader: Option<Reader>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Within,
    End,
}

/// One entry of a scan, where RocksDB or the scan holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'e> {
    /// The key.
    pub key: &'e [u8],
    /// The value, without its header.
    pub value: &'e [u8],
    /// Expiry and version.
    pub attributes: Attributes,
}

impl Store {
    /// The entries of `range`: `..` is all, `a..b` has `a` and not `b`, `a..=b` has both. A reversed range has none.
    pub fn scan<'s, 'k>(
        &'s self,
        range: impl RangeBounds<&'k [u8]>,
        direction: Direction,
        snapshot: Option<&Snapshot<'s>>,
    ) -> Result<Scan<'s>> {
        let mut options = match snapshot {
            Some(snapshot) if !snapshot.is_of(self) => {
                return Err(Error::invalid("snapshot", "it is of another store"));
            }
            Some(snapshot) => snapshot.read_options(),
            None => ReadOptions::default(),
        };
        let from = lower_bound(range.start_bound());
        let to = upper_bound(range.end_bound());
        let empty = to.as_ref().is_some_and(|to| *to <= from);
        if !from.is_empty() {
            options.set_iterate_lower_bound(from);
        }
        if let Some(to) = to {
            options.set_iterate_upper_bound(to);
        }
        // Before the iterator is made.
        let reader = self.values.as_ref().map(DataLayer::reader);
        let rows = self.db.raw_iterator_cf_opt(&self.family, options);
        let state = if empty { State::End } else { State::Begin };
        Ok(Scan { store: self, rows, direction, state, record: Vec::new(), _reader: reader })
    }
}

impl Scan<'_> {
    /// The next entry, or `None` after the last. The entry is valid until the next call.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>> {
        match (self.state, self.direction) {
            (State::Begin, Direction::Forward) => self.rows.seek_to_first(),
            (State::Begin, Direction::Reverse) => self.rows.seek_to_last(),
            (State::Within, Direction::Forward) => self.rows.next(),
            (State::Within, Direction::Reverse) => self.rows.prev(),
            (State::End, _) => return Ok(None),
        }
        // The end, unless there is an entry.
        self.state = State::End;
        if !self.rows.valid() {
            self.rows.status().map_err(|e| Error::from_rocks(&e))?;
            return Ok(None);
        }
        let Some((key, stored)) = self.rows.item() else {
            return Ok(None);
        };
        let header = Header::decode(stored).map_err(|reason| Error::corrupt_value(key, &reason))?;
        let value = match (header.kind, &self.store.values) {
            (Kind::Inline, _) => &stored[header.bytes..],
            (Kind::Separated(pointer), Some(values)) => {
                let value = values.log.read(key, pointer, &mut self.record)?;
                &self.record[value]
            }
            (Kind::Separated(_), None) => return Err(Error::corrupt_value(key, &HeaderError::NoValueLog)),
        };
        self.state = State::Within;
        Ok(Some(Entry { key, value, attributes: header.attributes }))
    }
}

impl Scan<'_> {
    /// After an error: the key whose value could not be read. `None` where the scan itself failed.
    pub(crate) fn key_at_error(&self) -> Option<Vec<u8>> {
        self.rows.key().map(<[u8]>::to_vec)
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_entry() {
            Ok(Some(entry)) => Some(Ok((entry.key.to_vec(), entry.value.to_vec()))),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
