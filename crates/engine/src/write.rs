//! Writes: single ones and atomic batches.

use std::cell::RefCell;
use std::io::IoSlice;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::Ordering;

use ecotone_valuelog::record::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use rust_rocksdb::{ErrorKind, WriteBatch};

use crate::gc::removed_ranges::KeyRange;
use crate::header::{Attributes, PLAIN, encode_inline};
use crate::options::MAX_BATCH_BYTES;
use crate::row_cache::SeparatedWrites;
use crate::space::admission::{Admitted, WriteEffect, cost};
use crate::value_store::ValueStore;
use crate::{Durability, Error, Result, StallCondition, Store, WriteOptions};

/// Values up to this size are copied once to stand behind their header; longer ones are handed over
/// in two parts, which costs RocksDB's C API two small allocations.
const COPIED_BYTES: usize = 16 * 1024;

/// A thread keeps its buffers for the next write up to this size.
const KEPT_BYTES: usize = 1024 * 1024;

/// What a thread reuses from write to write, so that a small write allocates nothing here.
struct Scratch {
    batch: WriteBatch,
    stored: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        RefCell::new(Scratch { batch: WriteBatch::default(), stored: Vec::new() });
}

/// Several writes that are applied together or not at all. Made by [`Store::batch`], given to
/// [`Store::write`], and reusable after [`clear`](Self::clear). Later writes of a batch win over
/// earlier ones.
pub struct Batch<'s> {
    store: &'s Store,
    batch: WriteBatch,
    stored: Vec<u8>,
    /// Whether it has anything but deletions.
    has_puts: bool,
    /// The ranges that it removes.
    removed: Vec<KeyRange>,
}

impl Batch<'_> {
    /// Sets `key` to `value`.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        self.has_puts = true;
        add_put(self.store, &mut self.batch, &mut self.stored, key, value)
    }

    /// Sets `key` to `value` with expiry and version.
    pub fn put_with(&mut self, key: &[u8], value: &[u8], attributes: &Attributes) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        self.stored.clear();
        encode_inline(attributes, &mut self.stored).map_err(|e| Error::invalid("attributes", e.to_string()))?;
        self.has_puts = true;
        self.stored.extend_from_slice(value);
        self.batch.put_cf(&self.store.family, key, &self.stored);
        Ok(())
    }

    /// Removes `key`, if it is there.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        check_key(key)?;
        self.batch.delete_cf(&self.store.family, key);
        Ok(())
    }

    /// Removes all keys of `range`. A range that is empty or reversed removes nothing. Where space
    /// is low this is several writes in the batch, as in [`Store::delete_range`].
    pub fn delete_range<'k>(&mut self, range: impl RangeBounds<&'k [u8]>) -> Result<()> {
        if let Some((from, to)) = half_open(&range)? {
            let cuts = self.store.cuts(&from, &to);
            add_delete_range(self.store, &mut self.batch, &from, &cuts, &to);
            self.removed.push((from, to));
        }
        Ok(())
    }

    /// Writes in the batch.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Bytes of keys, values and framing.
    pub fn size_bytes(&self) -> usize {
        self.batch.size_in_bytes()
    }

    /// Empties the batch; its memory is kept.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.has_puts = false;
        self.removed.clear();
    }
}

impl Store {
    /// Sets `key` to `value`, with the store's durability.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_opt(key, value, WriteOptions::default())
    }

    /// Sets `key` to `value`.
    pub fn put_opt(&self, key: &[u8], value: &[u8], options: WriteOptions) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        match &self.values {
            Some(values) if values.takes(value.len()) => {
                let _admitted = self.admit(WriteEffect::Takes, cost(key.len(), key.len() + value.len()))?;
                values.throttle().around(|| self.put_separated(values, key, value, options))
            }
            _ => {
                let _admitted = self.admit(WriteEffect::Takes, cost(key.len() + value.len(), 0))?;
                let add = |scratch: &mut Scratch| add_put(self, &mut scratch.batch, &mut scratch.stored, key, value);
                self.write_scratch(SeparatedWrites::Nothing, options, add)
            }
        }
    }

    #[inline]
    fn put_separated(&self, values: &ValueStore, key: &[u8], value: &[u8], options: WriteOptions) -> Result<()> {
        self.check_writable()?;
        let mut in_flight = None;
        self.write_scratch(SeparatedWrites::Value(value), options, |scratch| {
            in_flight = Some(values.separate(key, &[PLAIN], value, &mut scratch.stored)?);
            scratch.batch.put_cf(&self.family, key, &scratch.stored);
            Ok(())
        })
    }

    /// Removes `key`, if it is there, with the store's durability.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.delete_opt(key, WriteOptions::default())
    }

    /// Removes `key`, if it is there.
    pub fn delete_opt(&self, key: &[u8], options: WriteOptions) -> Result<()> {
        check_key(key)?;
        let _admitted = self.admit(WriteEffect::Frees, cost(key.len(), 0))?;
        self.write_scratch(SeparatedWrites::Nothing, options, |scratch| {
            scratch.batch.delete_cf(&self.family, key);
            Ok(())
        })
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
        let cuts = self.cuts(&from, &to);
        let cut_bytes: usize = cuts.iter().map(Vec::len).sum();
        let _admitted = self.admit(WriteEffect::Frees, cost(from.len() + to.len() + 2 * cut_bytes, 0))?;
        self.write_scratch(SeparatedWrites::Nothing, WriteOptions::default(), |scratch| {
            add_delete_range(self, &mut scratch.batch, &from, &cuts, &to);
            Ok(())
        })?;
        self.removed_ranges.fetch_add(1, Ordering::Relaxed);
        if let Some(values) = &self.values {
            values.removed((from, to));
        }
        Ok(())
    }

    /// An empty batch for this store.
    pub fn batch(&self) -> Batch<'_> {
        Batch { store: self, batch: WriteBatch::default(), stored: Vec::new(), has_puts: false, removed: Vec::new() }
    }

    /// Applies all of `batch`, or on an error nothing of it. The batch can be written again.
    pub fn write(&self, batch: &Batch<'_>, options: WriteOptions) -> Result<()> {
        if !std::ptr::eq(self, batch.store) {
            return Err(Error::invalid("batch", "it was made by another store"));
        }
        if batch.size_bytes() > MAX_BATCH_BYTES {
            return Err(Error::invalid(
                "batch",
                format!("{} bytes, the most is {MAX_BATCH_BYTES}", batch.size_bytes()),
            ));
        }
        if batch.is_empty() {
            return self.check_writable().map(|_| ());
        }
        let purpose = if batch.has_puts && !options.frees { WriteEffect::Takes } else { WriteEffect::Frees };
        // As if all of it went to RocksDB: more than it costs where values go to the value log.
        let _admitted = self.admit(purpose, cost(batch.size_bytes(), 0))?;
        let separated = match &self.values {
            Some(values) => {
                self.check_writable()?;
                // Before values are appended that would be appended again.
                if options.no_wait && self.stall.condition() != StallCondition::Normal {
                    return Err(Error::WouldBlock);
                }
                values.separate_all(&batch.batch, self.family, options.no_wait)?
            }
            None => None,
        };
        match separated {
            Some((separated, _in_flights)) => {
                self.commit(&separated, SeparatedWrites::Records(&batch.batch), options)?
            }
            None => self.commit(&batch.batch, SeparatedWrites::Nothing, options)?,
        }
        if !batch.removed.is_empty() {
            self.removed_ranges.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(values) = &self.values {
            batch.removed.iter().for_each(|range| values.removed(range.clone()));
        }
        Ok(())
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

    #[inline]
    fn write_scratch(
        &self,
        separated: SeparatedWrites<'_>,
        options: WriteOptions,
        fill: impl FnOnce(&mut Scratch) -> Result<()>,
    ) -> Result<()> {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.batch.clear();
            fill(scratch)?;
            let outcome = self.commit(&scratch.batch, separated, options);
            if scratch.batch.size_in_bytes() > KEPT_BYTES {
                scratch.batch = WriteBatch::default();
            }
            outcome
        })
    }

    #[inline]
    fn commit(&self, batch: &WriteBatch, separated: SeparatedWrites<'_>, options: WriteOptions) -> Result<()> {
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
        let rows = self.rows.as_ref().map(|rows| rows.begin_write(batch, separated));
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

/// Adds the deletion of a range in pieces, which `cuts`, rising, are the ends of.
fn add_delete_range(store: &Store, batch: &mut WriteBatch, from: &Vec<u8>, cuts: &[Vec<u8>], to: &Vec<u8>) {
    for (begin, end) in std::iter::once(from).chain(cuts).zip(cuts.iter().chain([to])) {
        batch.delete_range_cf(&store.family, begin, end);
    }
}

#[inline]
fn add_put(store: &Store, batch: &mut WriteBatch, stored: &mut Vec<u8>, key: &[u8], value: &[u8]) -> Result<()> {
    if value.len() <= COPIED_BYTES {
        stored.clear();
        stored.push(PLAIN);
        stored.extend_from_slice(value);
        batch.put_cf(&store.family, key, &*stored);
        return Ok(());
    }
    let parts = [IoSlice::new(&[PLAIN]), IoSlice::new(value)];
    batch.put_cf_vectored(&store.family, &[IoSlice::new(key)], &parts).map_err(|e| store.failure(&e))
}

#[inline]
fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES { Err(too_long("key", key.len(), MAX_KEY_BYTES)) } else { Ok(()) }
}

#[inline]
fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE_BYTES { Err(too_long("value", value.len(), MAX_VALUE_BYTES)) } else { Ok(()) }
}

#[cold]
fn too_long(what: &'static str, bytes: usize, most: usize) -> Error {
    Error::invalid(what, format!("{bytes} bytes, the most is {most}"))
}

/// A range as RocksDB takes it: from a key to before a key. `None` when it holds nothing.
pub(crate) fn half_open<'k>(range: &impl RangeBounds<&'k [u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    let from = lower_bound(range.start_bound());
    let to = match upper_bound(range.end_bound()) {
        Some(to) => to,
        // Greater than every key that is not longer than the longest.
        None => vec![0xFF; MAX_KEY_BYTES + 1],
    };
    // An end may be one byte longer than a key: the one after it.
    if from.len() > MAX_KEY_BYTES + 1 || to.len() > MAX_KEY_BYTES + 1 {
        return Err(too_long("range", from.len().max(to.len()), MAX_KEY_BYTES));
    }
    Ok((from < to).then_some((from, to)))
}

/// The least key of a range.
pub(crate) fn lower_bound(bound: Bound<&&[u8]>) -> Vec<u8> {
    match bound {
        Bound::Included(key) => key.to_vec(),
        Bound::Excluded(key) => after(key),
        Bound::Unbounded => Vec::new(),
    }
}

/// The key before which a range ends.
pub(crate) fn upper_bound(bound: Bound<&&[u8]>) -> Option<Vec<u8>> {
    match bound {
        Bound::Included(key) => Some(after(key)),
        Bound::Excluded(key) => Some(key.to_vec()),
        Bound::Unbounded => None,
    }
}

/// The least key that is greater than `key`.
fn after(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}
