//! Lookups and snapshots.

use std::ops::{Deref, RangeBounds};

use rust_rocksdb::{DBPinnableSlice, ReadOptions};

use crate::header::{Attributes, Header};
use crate::scan::{Direction, Scan};
use crate::{Error, Result, Store};

/// A value, where RocksDB holds it: nothing is copied. Derefs to its bytes. Keep it for a short time only: it may pin a
/// block of the cache.
pub struct Value<'s> {
    stored: DBPinnableSlice<'s>,
    header: Header,
}

impl<'s> Value<'s> {
    #[inline]
    fn decode(key: &[u8], stored: DBPinnableSlice<'s>) -> Result<Self> {
        match Header::decode(&stored) {
            Ok(header) => Ok(Self { stored, header }),
            Err(reason) => Err(Error::corrupt_value(key, &reason)),
        }
    }

    /// Expiry and version.
    pub fn attributes(&self) -> &Attributes {
        &self.header.attributes
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.stored[self.header.bytes..]
    }
}

impl AsRef<[u8]> for Value<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Value").field("bytes", &self.len()).field("attributes", self.attributes()).finish()
    }
}

/// The store as it was at one moment. Holds back the removal of overwritten values while it lives.
pub struct Snapshot<'s> {
    store: &'s Store,
    read_options: ReadOptions,
    // After `read_options`, which refers to it.
    snapshot: rust_rocksdb::Snapshot<'s>,
}

impl<'s> Snapshot<'s> {
    /// The value of `key` at the moment of the snapshot.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value<'s>>> {
        self.store.lookup(key, &self.read_options)
    }

    /// The values of `keys` at the moment of the snapshot, in the order of `keys`.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<Value<'s>>>> {
        self.store.lookup_all(keys, &self.read_options)
    }

    /// The entries of `range` at the moment of the snapshot.
    pub fn scan<'k>(&self, range: impl RangeBounds<&'k [u8]>, direction: Direction) -> Result<Scan<'s>> {
        self.store.scan(range, direction, Some(self))
    }

    /// The number of the last write that the snapshot has.
    pub fn sequence(&self) -> Option<u64> {
        self.snapshot.sequence_number()
    }

    pub(crate) fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        options
    }

    pub(crate) fn is_of(&self, store: &Store) -> bool {
        std::ptr::eq(self.store, store)
    }
}

impl Store {
    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] when a block is damaged or the value has a header that this version does not know.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<Value<'_>>> {
        self.lookup(key, &self.read_options)
    }

    /// The value of `key` in `snapshot`, which must be of this store.
    pub fn get_at<'s>(&'s self, key: &[u8], snapshot: &Snapshot<'s>) -> Result<Option<Value<'s>>> {
        if !snapshot.is_of(self) {
            return Err(Error::invalid("snapshot", "it is of another store"));
        }
        snapshot.get(key)
    }

    /// The values of `keys`, in their order, all of one moment. Cheaper than as many lookups.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<Value<'_>>>> {
        self.lookup_all(keys, &self.read_options)
    }

    /// The store as it is now, to be read from as often as wanted.
    pub fn snapshot(&self) -> Snapshot<'_> {
        let snapshot = self.db.snapshot();
        let mut read_options = ReadOptions::default();
        read_options.set_snapshot(&snapshot);
        Snapshot { store: self, read_options, snapshot }
    }

    #[inline]
    fn lookup(&self, key: &[u8], options: &ReadOptions) -> Result<Option<Value<'_>>> {
        match self.db.get_pinned_cf_opt(&self.family, key, options) {
            Ok(Some(stored)) => Value::decode(key, stored).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(Error::from_rocks(&error)),
        }
    }

    fn lookup_all<K: AsRef<[u8]>>(&self, keys: &[K], options: &ReadOptions) -> Vec<Result<Option<Value<'_>>>> {
        let stored =
            self.db.batched_multi_get_pinned_cf_opt(&self.family, keys.iter().map(AsRef::as_ref), false, options);
        let decode = |(key, stored): (&K, _)| match stored {
            Ok(Some(stored)) => Value::decode(key.as_ref(), stored).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(Error::from_rocks(&error)),
        };
        keys.iter().zip(stored).map(decode).collect()
    }
}
