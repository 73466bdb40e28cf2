//! Writes: single ones and atomic batches, on one path. A write is measured, admitted, encoded once,
//! and committed.
//!
//! # Invariants
//!
//! - What is wrong with a write, or keeps it from being done now, is found before anything of it is
//!   appended to the value log.
//! - A write is whole or absent: all of it is one batch of RocksDB's.
//!
//! Failure: where RocksDB refuses the batch, values that were appended for it are garbage.
//!
//! Threads: any number, each with memory of its own that it uses again.

mod encoding;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::ops::RangeBounds;
use std::sync::atomic::Ordering;

use rust_rocksdb::{ErrorKind, WriteBatch};

use self::encoding::{Cuts, Encoding};
use crate::batch::{Operation, half_open, string_bytes};
use crate::batch_records::BATCH_HEADER_BYTES;
use crate::header::Attributes;
use crate::options::MAX_BATCH_BYTES;
use crate::row_cache::RowChange;
use crate::space::admission::{Admitted, WriteEffect, cost};
use crate::{Durability, Error, Result, StallCondition, Store, WriteOptions};

thread_local! {
    /// What this thread reuses from write to write; `None` before the first, and during one.
    static ENCODING: Cell<Option<Box<Encoding>>> = const { Cell::new(None) };
}

/// What a write is, before anything of it is done.
#[derive(Debug, Default)]
struct Measured {
    operations: usize,
    /// In RocksDB's batch, if no value went to the value log.
    bytes: usize,
    has_puts: bool,
    has_ranges: bool,
    max_value_bytes: usize,
    cuts: Cuts,
}

impl Measured {
    #[inline]
    fn add(&mut self, operation: &Operation<'_>) {
        self.operations += 1;
        self.bytes += operation.inline_bytes();
        match operation {
            Operation::Put { value, .. } => {
                self.has_puts = true;
                self.max_value_bytes = self.max_value_bytes.max(value.len());
            }
            Operation::Delete { .. } => {}
            Operation::DeleteRange { .. } => self.has_ranges = true,
        }
    }

    /// The last range, which was added, is cut at `cuts`.
    fn add_cuts(&mut self, cuts: Vec<Vec<u8>>) {
        // Each is where one piece ends and where another begins.
        self.bytes += cuts.iter().map(|cut| 2 + 2 * string_bytes(cut.len())).sum::<usize>();
        self.cuts.push(cuts);
    }
}

impl Store {
    /// Sets `key` to `value`, with the store's durability.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_opt(key, value, WriteOptions::default())
    }

    /// Sets `key` to `value`.
    pub fn put_opt(&self, key: &[u8], value: &[u8], options: WriteOptions) -> Result<()> {
        let operation = Operation::Put { key, attributes: Attributes::NONE, value };
        operation.check()?;
        match &self.values {
            Some(values) if values.takes(value.len()) => {
                let _admitted = self.admit(WriteEffect::Takes, cost(key.len(), key.len() + value.len()))?;
                values.throttle().around(|| self.write_one(operation, options))
            }
            _ => {
                let _admitted = self.admit(WriteEffect::Takes, cost(key.len() + value.len(), 0))?;
                self.write_one(operation, options)
            }
        }
    }

    /// Removes `key`, if it is there, with the store's durability.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.delete_opt(key, WriteOptions::default())
    }

    /// Removes `key`, if it is there.
    pub fn delete_opt(&self, key: &[u8], options: WriteOptions) -> Result<()> {
        let operation = Operation::Delete { key };
        operation.check()?;
        let _admitted = self.admit(WriteEffect::Frees, cost(key.len(), 0))?;
        self.write_one(operation, options)
    }

    /// Where a deletion of the keys from `from` to before `to` is cut, so that no compaction has to
    /// take all of it at once; nowhere unless space is low.
    fn cuts(&self, from: &[u8], to: &[u8]) -> Vec<Vec<u8>> {
        self.admission.as_ref().map_or_else(Vec::new, |admission| admission.cuts(&self.db, from, to))
    }

    /// Removes all keys of `range` at once, with the store's durability: a range from `a` to `b`,
    /// `a..b`, has `a` and not `b`. Costs one small write; the space is freed by later compactions.
    /// Many of them make reads slower until then.
    pub fn delete_range<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<()> {
        let Some((from, to)) = half_open(&range)? else {
            return Ok(());
        };
        let operations = std::iter::once(Operation::DeleteRange { from: &from, to: &to });
        let measured = self.measure(operations.clone())?;
        let cut_bytes: usize = measured.cuts.iter().flatten().map(Vec::len).sum();
        let _admitted = self.admit(WriteEffect::Frees, cost(from.len() + to.len() + 2 * cut_bytes, 0))?;
        self.write_admitted(operations, &measured, WriteOptions::default())
    }

    /// Applies all operations of `batch` in their order, or on an error none of them: a
    /// [`Batch`](crate::Batch), which can be written again, or any iterator, which is gone through
    /// several times and must give the same each time.
    pub fn write<'b, B>(&self, batch: B, options: WriteOptions) -> Result<()>
    where
        B: IntoIterator<Item = Operation<'b>, IntoIter: Clone>,
    {
        let operations = batch.into_iter().filter(|operation| operation.has_effect());
        let measured = self.measure(operations.clone())?;
        if measured.bytes > MAX_BATCH_BYTES {
            return Err(Error::invalid("batch", format!("{} bytes, the most is {MAX_BATCH_BYTES}", measured.bytes)));
        }
        if measured.operations == 0 {
            return self.check_writable().map(|_| ());
        }
        let effect = if measured.has_puts && !options.frees { WriteEffect::Takes } else { WriteEffect::Frees };
        // As if all of it went to RocksDB: more than it costs where values go to the value log.
        let _admitted = self.admit(effect, cost(measured.bytes, 0))?;
        self.write_admitted(operations, &measured, options)
    }

    /// Refuses what would take room while there is none: as [`put`](Self::put) does, before
    /// anything is made ready for it. Costs a look at memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfSpace`].
    #[inline]
    pub fn check_free_space(&self) -> Result<()> {
        self.admission.as_ref().map_or(Ok(()), |admission| admission.check())
    }

    /// Whether there is so little room that some writes may be refused while others are not, as of
    /// the last probe. Who writes for others had better not mix what takes room with what
    /// [frees](WriteOptions::frees) it.
    #[inline]
    pub fn is_space_low(&self) -> bool {
        self.admission.as_ref().is_some_and(|admission| admission.is_space_low())
    }

    /// Makes everything durable up to every write that was acknowledged before the call.
    pub fn sync(&self) -> Result<()> {
        self.check_writable()?;
        self.sync_all()
    }

    /// Asks whether there is room. A store that is open read-only says later what it thinks of
    /// writes.
    #[inline]
    fn admit(&self, purpose: WriteEffect, cost: i64) -> Result<Option<Admitted<'_>>> {
        self.admission.as_ref().map(|admission| admission.admit(purpose, cost)).transpose()
    }

    /// Checks and measures a write.
    fn measure<'b>(&self, operations: impl Iterator<Item = Operation<'b>>) -> Result<Measured> {
        let mut measured = Measured { bytes: BATCH_HEADER_BYTES, ..Measured::default() };
        // Once: either all ranges have a place among the cuts or none has.
        let cuts_ranges = self.is_space_low();
        for operation in operations {
            operation.check()?;
            measured.add(&operation);
            if let Operation::DeleteRange { from, to } = operation
                && cuts_ranges
            {
                measured.add_cuts(self.cuts(from, to));
            }
        }
        Ok(measured)
    }

    /// Writes what was checked and admitted, and is no range.
    #[inline]
    fn write_one(&self, operation: Operation<'_>, options: WriteOptions) -> Result<()> {
        let mut measured = Measured::default();
        measured.add(&operation);
        self.write_admitted(std::iter::once(operation), &measured, options)
    }

    /// Writes what was checked, measured and admitted.
    #[inline]
    fn write_admitted<'b>(
        &self,
        operations: impl Iterator<Item = Operation<'b>> + Clone,
        measured: &Measured,
        options: WriteOptions,
    ) -> Result<()> {
        if let Some(values) = &self.values {
            // Before values are appended that nobody would name, or that would be appended again.
            self.check_writable()?;
            let separates = measured.has_puts && values.takes(measured.max_value_bytes);
            let is_blocked = || {
                // Asked of all writes: one that RocksDB refuses takes its rows out of the row cache.
                let is_slow = || values.packs_slowly(measured.max_value_bytes) || !values.log.is_unblocked();
                self.stall.condition() != StallCondition::Normal || (separates && is_slow())
            };
            if options.no_wait && is_blocked() {
                return Err(Error::WouldBlock);
            }
        }
        // Taken, not borrowed: whoever is told of the write by RocksDB may write as well.
        let mut encoding = ENCODING.take().unwrap_or_default();
        let written = encoding
            .encode(operations.clone(), &measured.cuts, self.values.as_ref(), self.family, self.rows.is_some())
            .and_then(|()| self.commit(encoding.batch(), encoding.row_changes(operations.clone()), options));
        encoding.release();
        ENCODING.set(Some(encoding));
        written?;
        if measured.has_ranges {
            self.note_removed(operations);
        }
        Ok(())
    }

    /// The ranges among `operations` were removed.
    fn note_removed<'b>(&self, operations: impl Iterator<Item = Operation<'b>>) {
        self.removed_ranges.fetch_add(1, Ordering::Relaxed);
        let Some(values) = &self.values else { return };
        for operation in operations {
            if let Operation::DeleteRange { from, to } = operation {
                values.removed((from.to_vec(), to.to_vec()));
            }
        }
    }

    #[inline]
    fn commit<'c>(
        &'c self,
        batch: &WriteBatch,
        changes: impl Iterator<Item = RowChange<'c>> + Clone,
        options: WriteOptions,
    ) -> Result<()> {
        let wal_sync = self.check_writable()?;
        let durability = options.durability.unwrap_or(self.durability);
        // With a value log the sync comes after the write: all values that the WAL names before
        // this write are in the kernel by then, so one sync of both sides makes all of that prefix
        // durable.
        let synced = durability == Durability::Always && self.values.is_none() && !options.no_wait;
        let rocks_options = match (synced, options.no_wait) {
            (true, _) => &self.write_synced,
            (false, true) => &self.write_non_blocking,
            (false, false) => &self.write_unsynced,
        };
        let rows = self.rows.as_ref().map(|rows| rows.begin_write(changes));
        self.db.write_opt(batch, rocks_options).map_err(|error| match error.kind() {
            ErrorKind::Incomplete if options.no_wait => Error::WouldBlock,
            _ => self.failure(&error),
        })?;
        if let Some(rows) = rows {
            rows.succeed();
        }
        match durability {
            Durability::Always if !synced => self.sync_all(),
            Durability::EverySecond => {
                // After the write: a sync that begins later covers it.
                wal_sync.want();
                Ok(())
            }
            Durability::Always | Durability::None => Ok(()),
        }
    }
}
