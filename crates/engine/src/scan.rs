//! Reads of ranges, in both directions.

use std::ops::RangeBounds;

use rust_rocksdb::ReadOptions;

use crate::batch::{lower_bound, upper_bound};
use crate::gc::readers::Reader;
use crate::header::{Attributes, Header, HeaderError, Kind};
use crate::non_blocking::NonBlockingReads;
use crate::value_store::ValueStore;
use crate::{Error, Result, Snapshot, Store};

mod ahead;
mod rows;

use ahead::{Ahead, Row};
use rows::Rows;

/// Which end of a range a scan begins at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the least key to the greatest.
    Forward,
    /// From the greatest key to the least.
    Reverse,
}

/// The entries of a range as they were when the scan was made, or when its snapshot was. Writes
/// made since are not seen.
///
/// Walk it with [`next_entry`](Self::next_entry), which copies nothing, or as an [`Iterator`],
/// which copies each entry. After an error it is at its end. It pins blocks and memtables while it
/// lives, so do not keep one for long.
pub struct Scan<'s> {
    store: &'s Store,
    rows: Rows<'s>,
    ahead: Ahead,
    /// Whether it never waits for the device.
    is_non_blocking: bool,
    /// The entry's, where it was taken ahead.
    row: Option<Row>,
    /// The record of the last value that came from the value log.
    record: Vec<u8>,
    /// Whether there is no entry any more.
    has_ended: bool,
    // After `rows`: keeps the segments that they refer to.
    _reader: Option<Reader>,
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
    /// The entries of `range`: `..` is all, `a..b` has `a` and not `b`, `a..=b` has both. A
    /// reversed range has none.
    pub fn scan<'s, 'k>(
        &'s self,
        range: impl RangeBounds<&'k [u8]>,
        direction: Direction,
        snapshot: Option<&Snapshot<'s>>,
    ) -> Result<Scan<'s>> {
        let options = match snapshot {
            Some(snapshot) if !snapshot.is_of(self) => {
                return Err(Error::invalid("snapshot", "it is of another store"));
            }
            Some(snapshot) => snapshot.read_options(),
            None => ReadOptions::default(),
        };
        Ok(self.scan_with(range, direction, options, None))
    }

    /// The entries of `range`, for who looks at many of them once: what is read for it stays out of
    /// the block cache.
    pub fn scan_aside<'k>(&self, range: impl RangeBounds<&'k [u8]>, direction: Direction) -> Scan<'_> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        self.scan_with(range, direction, options, None)
    }

    /// The entries of `range` as long as none is behind more than `max_skipped` removed ones in a
    /// row: that ends the scan with [`Error::WouldBlock`].
    pub fn scan_skipping<'k>(
        &self,
        range: impl RangeBounds<&'k [u8]>,
        direction: Direction,
        max_skipped: u64,
    ) -> Scan<'_> {
        let mut options = ReadOptions::default();
        options.set_max_skippable_internal_keys(max_skipped);
        self.scan_with(range, direction, options, None)
    }

    /// The entries of `range` as far as they can be had without waiting, and without stepping over
    /// many that were removed: what cannot ends the scan with [`Error::WouldBlock`].
    pub fn try_scan<'k>(&self, range: impl RangeBounds<&'k [u8]>, direction: Direction) -> Scan<'_> {
        self.scan_with(range, direction, self.non_blocking.scan_options(), Some(&self.non_blocking))
    }

    fn scan_with<'s, 'k>(
        &'s self,
        range: impl RangeBounds<&'k [u8]>,
        direction: Direction,
        mut options: ReadOptions,
        non_blocking: Option<&'s NonBlockingReads>,
    ) -> Scan<'s> {
        let from = lower_bound(range.start_bound());
        let to = upper_bound(range.end_bound());
        let empty = to.as_ref().is_some_and(|to| *to <= from);
        let bounds = (from.clone(), to.clone());
        if !from.is_empty() {
            options.set_iterate_lower_bound(from);
        }
        if let Some(to) = to {
            options.set_iterate_upper_bound(to);
        }
        // Before the iterator is made.
        let reader = self.values.as_ref().map(ValueStore::reader);
        let begin = || self.db.raw_iterator_cf_opt(&self.family, options);
        let rows = match non_blocking {
            Some(non_blocking) => non_blocking.read(begin),
            None => begin(),
        };
        let rows = Rows::new(rows, direction, if empty { None } else { Some(bounds) }, non_blocking, &self.skipped);
        let (ahead, record, is_non_blocking) = (Ahead::default(), Vec::new(), non_blocking.is_some());
        Scan { store: self, rows, ahead, is_non_blocking, row: None, record, has_ended: false, _reader: reader }
    }
}

impl<'s> Snapshot<'s> {
    /// The entries of `range` at the moment of the snapshot.
    pub fn scan<'k>(&self, range: impl RangeBounds<&'k [u8]>, direction: Direction) -> Result<Scan<'s>> {
        self.store.scan(range, direction, Some(self))
    }
}

impl Scan<'_> {
    /// The next entry, or `None` after the last. The entry is valid until the next call.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>> {
        // The end, unless there is an entry.
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(None);
        }
        let values = self.store.values.as_ref().map(|values| &*values.log);
        self.row = None;
        match values {
            Some(values) if self.ahead.is_on() => {
                let Some(row) = self.ahead.next(&mut self.rows, values)? else { return Ok(None) };
                self.row = Some(row);
            }
            _ if !self.rows.advance()? => return Ok(None),
            _ => {}
        }
        let Some((key, stored)) = row(&self.row, &self.rows) else { return Ok(None) };
        let header = Header::decode(stored).map_err(|reason| Error::corrupt_value(key, &reason))?;
        let value = match (header.kind, values) {
            (Kind::Inline, _) => &stored[header.bytes..],
            (Kind::Separated(pointer), Some(values)) if self.is_non_blocking => {
                let value = values.try_read(key, pointer, &mut self.record).map_err(|_| Error::WouldBlock)?;
                &self.record[value]
            }
            (Kind::Separated(pointer), Some(values)) => {
                let value = self.ahead.watch(|| values.read(key, pointer, &mut self.record))?;
                &self.record[value]
            }
            (Kind::Separated(_), None) => return Err(Error::corrupt_value(key, &HeaderError::NoValueLog)),
        };
        self.has_ended = false;
        Ok(Some(Entry { key, value, attributes: header.attributes }))
    }

    /// The next key, with what stands beside its value, or `None` after the last. No value is read.
    /// Do not mix it with [`next_entry`](Self::next_entry).
    pub fn next_key(&mut self) -> Result<Option<(&[u8], Attributes)>> {
        if std::mem::replace(&mut self.has_ended, true) || !self.rows.advance()? {
            return Ok(None);
        }
        let Some((key, stored)) = self.rows.row() else { return Ok(None) };
        let header = Header::decode(stored).map_err(|reason| Error::corrupt_value(key, &reason))?;
        self.has_ended = false;
        Ok(Some((key, header.attributes)))
    }

    /// Entries that it has stepped over so far because they are gone: deletions, what these shadow,
    /// and older versions.
    pub fn skipped(&self) -> u64 {
        self.rows.skipped()
    }

    /// After an error: the key whose value could not be read. `None` where the scan itself failed.
    pub(crate) fn key_at_error(&self) -> Option<Vec<u8>> {
        row(&self.row, &self.rows).map(|(key, _)| key.to_vec())
    }
}

/// The row of the entry: the one that was taken ahead, else where the rows are.
fn row<'r>(taken: &'r Option<Row>, rows: &'r Rows<'_>) -> Option<(&'r [u8], &'r [u8])> {
    match taken {
        Some(row) => Some((&row.key, &row.stored)),
        None => rows.row(),
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

#[cfg(test)]
mod tests;
