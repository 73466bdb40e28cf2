//! Operations as RocksDB gets them: gone through once, with the values that are separated appended
//! to the value log on the way.
//!
//! # Invariants
//!
//! - What a pointer in the batch leads to was appended before: so it is in the kernel before the
//!   batch, and with it the WAL, can be.
//! - Segments that were appended to are pinned until [`release`](Encoding::release), which comes
//!   when RocksDB has the pointers or has refused them.
//!
//! Failure: where an append fails nothing more is encoded, and what is must not be written. What
//! was appended until then is garbage.
//!
//! Threads: of one writer.

use std::io::IoSlice;

use ecotone_valuelog::segment::InFlight;
use rust_rocksdb::WriteBatch;

use crate::batch::Operation;
use crate::family::DataFamily;
use crate::header::encode_inline;
use crate::row_cache::RowChange;
use crate::value_store::ValueStore;
use crate::{Error, Result};

/// Values up to this size are copied once to stand behind their header; longer ones are handed over
/// in two parts, which costs RocksDB's C API two small allocations.
const COPIED_BYTES: usize = 16 * 1024;

/// A thread keeps its memory for the next write up to this size: what clients write in one turn of
/// an event loop is seldom longer without its separated values, and there are many threads.
const KEPT_BYTES: usize = 256 * 1024;

/// Where each removed range is cut, in the order of the ranges: rising keys. None at all where no
/// range is.
pub(super) type Cuts = Vec<Vec<Vec<u8>>>;

/// See the module. Its memory is used again from write to write, so that a small write allocates
/// nothing here.
#[derive(Default)]
pub(super) struct Encoding {
    batch: WriteBatch,
    header: Vec<u8>,
    stored: Vec<u8>,
    /// One for each value, in order.
    spans: Vec<StoredSpan>,
    in_flight: Vec<InFlight>,
}

/// Where in the batch it is what is stored for a value.
#[derive(Debug, Clone, Copy)]
struct StoredSpan {
    end: usize,
    bytes: u32,
    is_separated: bool,
}

impl Encoding {
    /// Encodes `operations`, with `values` where the store separates any. Whether it `notes_spans`
    /// says whether [`row_changes`](Self::row_changes) will be asked for.
    ///
    /// # Errors
    ///
    /// Those of an append.
    pub(super) fn encode<'b>(
        &mut self,
        operations: impl Iterator<Item = Operation<'b>>,
        cuts: &Cuts,
        values: Option<&ValueStore>,
        family: DataFamily,
        notes_spans: bool,
    ) -> Result<()> {
        self.batch.clear();
        self.spans.clear();
        let mut cuts = cuts.iter();
        for operation in operations {
            match operation {
                Operation::Put { key, attributes, value } => {
                    self.header.clear();
                    encode_inline(&attributes, &mut self.header)
                        .map_err(|error| Error::invalid("attributes", error.to_string()))?;
                    let separating = values.filter(|values| values.takes(value.len()));
                    let bytes = match separating {
                        Some(values) => self.put_separated(values, family, key, value)?,
                        None => self.put_inline(family, key, value)?,
                    };
                    if notes_spans {
                        // What is stored comes last in what a put adds, and is shorter than 4 GiB.
                        let (end, is_separated) = (self.batch.size_in_bytes(), separating.is_some());
                        self.spans.push(StoredSpan { end, bytes: bytes as u32, is_separated });
                    }
                }
                Operation::Delete { key } => self.batch.delete_cf(&family, key),
                Operation::DeleteRange { from, to } => {
                    let cuts = cuts.next().map_or(&[][..], Vec::as_slice).iter().map(Vec::as_slice);
                    for (begin, end) in std::iter::once(from).chain(cuts.clone()).zip(cuts.chain([to])) {
                        self.batch.delete_range_cf(&family, begin, end);
                    }
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn put_separated(&mut self, values: &ValueStore, family: DataFamily, key: &[u8], value: &[u8]) -> Result<usize> {
        self.in_flight.push(values.separate(key, &self.header, value, &mut self.stored)?);
        self.batch.put_cf(&family, key, &self.stored);
        Ok(self.stored.len())
    }

    #[inline]
    fn put_inline(&mut self, family: DataFamily, key: &[u8], value: &[u8]) -> Result<usize> {
        if value.len() <= COPIED_BYTES {
            self.stored.clear();
            self.stored.extend_from_slice(&self.header);
            self.stored.extend_from_slice(value);
            self.batch.put_cf(&family, key, &self.stored);
        } else {
            let parts = [IoSlice::new(&self.header), IoSlice::new(value)];
            self.batch
                .put_cf_vectored(&family, &[IoSlice::new(key)], &parts)
                .map_err(|error| Error::Rocks { detail: error.to_string() })?;
        }
        Ok(self.header.len() + value.len())
    }

    /// What was encoded.
    pub(super) fn batch(&self) -> &WriteBatch {
        &self.batch
    }

    /// What changes for rows with the same `operations`.
    pub(super) fn row_changes<'e, O>(&'e self, operations: O) -> RowChanges<'e, O> {
        RowChanges { operations, spans: self.spans.iter(), batch: &self.batch }
    }

    /// RocksDB has what was encoded, or has refused it, or will not be asked.
    pub(super) fn release(&mut self) {
        self.in_flight.clear();
        if self.batch.size_in_bytes() > KEPT_BYTES {
            self.batch = WriteBatch::default();
        }
        self.spans.clear();
        self.spans.shrink_to(KEPT_BYTES / size_of::<StoredSpan>());
        self.in_flight.shrink_to(KEPT_BYTES / size_of::<InFlight>());
    }
}

/// The changes of a write, read from where its operations stand and what was encoded of them.
#[derive(Clone)]
pub(super) struct RowChanges<'e, O> {
    operations: O,
    spans: std::slice::Iter<'e, StoredSpan>,
    /// Not its bytes: RocksDB writes the sequence number before them while it has the batch.
    batch: &'e WriteBatch,
}

impl<'b: 'e, 'e, O: Iterator<Item = Operation<'b>>> Iterator for RowChanges<'e, O> {
    type Item = RowChange<'e>;

    #[inline]
    fn next(&mut self) -> Option<RowChange<'e>> {
        Some(match self.operations.next()? {
            Operation::Put { key, value, .. } => {
                let StoredSpan { end, bytes, is_separated } = *self.spans.next()?;
                let stored = &self.batch.data()[end - bytes as usize..end];
                RowChange::Put { key, stored, separated: is_separated.then_some(value) }
            }
            Operation::Delete { key } => RowChange::Delete { key },
            Operation::DeleteRange { from, to } => RowChange::DeleteRange { from, to },
        })
    }
}
