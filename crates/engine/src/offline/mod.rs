//! What the crate `inspect` needs of a store and nobody else does: its files as they are on the
//! device, whether or not a store opens in their folder, and a few internals of an open one.
//!
//! Only `inspect` may use this; `crates/ecotone/tests/architecture` keeps that. Everybody else
//! calls a [`Store`], or `inspect`. What can be had from the public interface of a store is not
//! repeated here.
//!
//! Failure modes: those of the calls behind it; nothing is decided here. Threads: any.

pub mod log_file;
pub mod survey;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ecotone_rocks::tables::collected_properties;
use ecotone_valuelog::ValueLog;
use ecotone_valuelog::segment::InFlight;
use parking_lot::MutexGuard;
use rust_rocksdb::WriteBatch;

use crate::directory_lock::unless_in_use;
use crate::header::HeaderError;
use crate::identity::{self, Identity};
use crate::layout::{CHECKED_DIRECTORY, remove_checked_copy};
use crate::{Error, Result, Scan, Store};

pub use crate::batch_records::{Malformed, Record, Records, records, sequences};
pub use crate::dedup::samples::{PROPERTY as SAMPLES_PROPERTY, decode as decode_samples};
pub use crate::directory_lock::{DirectoryLock, Untouched};
pub use crate::error::Printable;
pub use crate::gc::references::{PROPERTY as REFERENCES_PROPERTY, References, decode as decode_references};

/// Bytes that an [`EntryWriter`] writes at once, one entry at least.
const BATCH_BYTES: usize = 1024 * 1024;

/// The value log of `store`, if it has one.
pub fn value_log(store: &Store) -> Option<&ValueLog> {
    store.values.as_ref().map(|values| &*values.log)
}

/// Whether the store in `directory` may have a value log, by its identity; the reason where that is
/// missing or damaged.
///
/// # Errors
///
/// [`Error::WrongFormat`] where a newer version wrote it.
pub fn has_value_log(directory: &Path) -> Result<Result<bool, String>> {
    Ok(identity::read_damaged(directory)?.map(Identity::has_value_log))
}

/// Tables with a lower number were written before the store had a value log, and reference nothing.
///
/// # Errors
///
/// [`Error::WrongFormat`], [`Error::Io`].
pub fn plain_tables_below(store: &Store) -> Result<u64> {
    Ok(identity::read(store.directory())?.plain_tables_below)
}

/// Where the opening could not read the logs any further, and what it left out; once.
pub fn left_out_by_replay(store: &Store) -> Vec<(String, String)> {
    std::mem::take(&mut *store.replayed.left_out.lock())
}

/// The key whose value could not be read, after an error of `scan`. `None` where the scan itself
/// failed.
pub fn key_at_error(scan: &Scan<'_>) -> Option<Vec<u8>> {
    scan.key_at_error()
}

/// The collected property `name` of each table, by the table's number; `None` for a table without
/// it. Opens all tables.
///
/// # Errors
///
/// [`Error::Rocks`] where a table cannot be read.
pub fn table_properties(store: &Store, name: &str) -> Result<HashMap<u64, Option<Vec<u8>>>> {
    let tables = collected_properties(&store.db, &store.family, name)
        .map_err(|error| Error::Rocks { detail: error.to_string() })?;
    Ok(tables.into_iter().map(|mut table| (table.file_number, table.properties.remove(name))).collect())
}

/// What the tables of `store` say that they reference.
///
/// # Errors
///
/// [`Error::Rocks`] where a table cannot be read, and those of the identity.
pub fn references(store: &Store) -> Result<References> {
    References::count(&store.db, &store.family, identity::read(store.directory())?)
}

/// Runs `read`. Of a store that is open read-only, damage becomes [`Error::InUse`] where somebody
/// else has it open for writing, who may have removed what is missing.
///
/// # Errors
///
/// Those of `read`.
pub fn reading<T>(store: &Store, read: impl FnOnce() -> Result<T>) -> Result<T> {
    let is_reader = store.admission.is_none();
    read().map_err(|error| if is_reader { unless_in_use(store.directory(), error) } else { error })
}

/// Runs `read` as [`reading`] does. A store that is open for writing removes no table meanwhile.
///
/// # Errors
///
/// Those of `read`, and [`Store`]'s.
pub fn keeping_tables<T>(store: &Store, read: impl FnOnce() -> Result<T>) -> Result<T> {
    if store.admission.is_none() {
        return reading(store, read);
    }
    store.db.disable_file_deletions().map_err(|error| store.failure(&error))?;
    let done = read();
    store.db.enable_file_deletions().map_err(|error| store.failure(&error))?;
    done
}

/// A checkpoint of a store in its own folder, to be checked. Removed when this is dropped, or when
/// the store is opened after a kill; until then it keeps tables and segments from being freed.
pub struct CheckedCopy<'s> {
    path: PathBuf,
    _only_one: MutexGuard<'s, ()>,
}

impl<'s> CheckedCopy<'s> {
    /// Flushes, and begins another segment.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while there is another one; [`Error::DiskFull`] where there is no space for
    /// a flush; those of [`Store::checkpoint`].
    pub fn of(store: &'s Store) -> Result<Self> {
        let Some(only_one) = store.checks.try_lock() else {
            return Err(Error::Busy { detail: "the store is being checked already".into() });
        };
        // A flush that met the end of the disk would stop all writes.
        if store.free_space().is_some_and(|free_space| free_space.spare_bytes() < 0) {
            let detail = "a check begins with a flush, for which there is no room".into();
            return Err(Error::DiskFull { detail });
        }
        let copy = Self { path: store.directory().join(CHECKED_DIRECTORY), _only_one: only_one };
        store.checkpoint(&copy.path)?;
        Ok(copy)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for CheckedCopy<'_> {
    fn drop(&mut self) {
        remove_checked_copy(&self.path);
    }
}

/// Compresses what is written to `store` from now on by zstd, with the dictionary of that `content`
/// where there is one and it can be used. The store was opened to compress values, and may find a
/// better dictionary as it goes on.
pub fn compress_values(store: &Store, content: Option<Vec<u8>>) {
    if let Some(values) = &store.values {
        values.compress_by_zstd(content);
    }
}

/// Fills a new store with entries as another one stored them: their headers are kept, and a value
/// is separated where it was, whatever its length. Nothing is synced.
pub struct EntryWriter<'s> {
    store: &'s Store,
    batch: WriteBatch,
    in_flight: Vec<InFlight>,
}

impl<'s> EntryWriter<'s> {
    /// Fills `store`.
    pub fn new(store: &'s Store) -> Self {
        Self { store, batch: WriteBatch::default(), in_flight: Vec::new() }
    }

    /// Adds an entry, whose `stored` value is inline.
    ///
    /// # Errors
    ///
    /// Those of a write, of this entry or of one before.
    pub fn put(&mut self, key: &[u8], stored: &[u8]) -> Result<()> {
        self.batch.put_cf(&self.store.family, key, stored);
        if self.batch.size_in_bytes() >= BATCH_BYTES { self.write() } else { Ok(()) }
    }

    /// Adds an entry with a separated `value`; `header` is what is stored before the pointer.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub fn put_separated(&mut self, key: &[u8], header: &[u8], value: &[u8]) -> Result<()> {
        let Some(values) = &self.store.values else { return Err(Error::corrupt_value(key, &HeaderError::NoValueLog)) };
        let mut stored = Vec::new();
        self.in_flight.push(values.separate(key, header, value, &mut stored)?);
        self.put(key, &stored)
    }

    /// Writes what was added since the last write.
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn write(&mut self) -> Result<()> {
        self.store.db.write_opt(&self.batch, &self.store.write_unsynced).map_err(|error| self.store.failure(&error))?;
        self.batch.clear();
        // Their pointers are in RocksDB.
        self.in_flight.clear();
        Ok(())
    }
}
