//! Lookups and snapshots.

use std::ops::{Deref, Range};

use ecotone_valuelog::pointer::RecordPointer;
use rust_rocksdb::{DBPinnableSlice, ErrorKind, ReadOptions};

use crate::error::Printable;
use crate::header::{Attributes, Header, HeaderError, Kind};
use crate::non_blocking::{LOOKED_UP_BYTES, ending_early};
use crate::row_cache::{Absent, Row};
use crate::value_store::ValueStore;
use crate::{Error, Result, Store, non_blocking};

/// A value. Derefs to its bytes. One that stands with its key is where RocksDB holds it, and
/// nothing is copied: keep it for a short time only, it may pin a block of the cache. One from the
/// value log has memory of its own, or shares a row's.
pub struct Value<'s> {
    attributes: Attributes,
    place: ValueSource<'s>,
}

enum ValueSource<'s> {
    /// Behind a header of so many bytes.
    Inline(Stored<'s>, usize),
    /// Within its record.
    Separated(Vec<u8>, Range<usize>),
    /// Beside the pointer to it.
    InRow(Row),
}

/// What is stored with a key, where it was found.
pub(crate) enum Stored<'s> {
    InRocks(DBPinnableSlice<'s>),
    InRow(Row),
}

impl Deref for Stored<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Stored::InRocks(stored) => stored,
            Stored::InRow(row) => row.stored(),
        }
    }
}

impl Stored<'_> {
    fn row(&self) -> Option<&Row> {
        match self {
            Stored::InRocks(_) => None,
            Stored::InRow(row) => Some(row),
        }
    }
}

impl Value<'_> {
    /// Expiry and version.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.place {
            ValueSource::Inline(stored, header_bytes) => &stored[*header_bytes..],
            ValueSource::Separated(record, value) => &record[value.clone()],
            ValueSource::InRow(row) => row.value().unwrap_or_default(),
        }
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

/// What is known of a value without reading it, wherever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// Expiry, version and type.
    pub attributes: Attributes,
    /// Its length, before it was compressed.
    pub value_bytes: usize,
}

impl Description {
    fn of(key: &[u8], stored: &[u8]) -> Result<Self> {
        let header = Header::decode(stored).map_err(|reason| Error::corrupt_value(key, &reason))?;
        let value_bytes = match header.kind {
            Kind::Inline => stored.len() - header.bytes,
            Kind::Separated(pointer) => pointer.value_bytes as usize,
        };
        Ok(Self { attributes: header.attributes, value_bytes })
    }
}

/// How often a lookup follows a pointer that has changed. Each time a whole segment has gone
/// between two reads of one key.
const MAX_FOLLOWED: usize = 16;

/// The store as it was at one moment. Holds back the removal of overwritten values while it lives.
pub struct Snapshot<'s> {
    pub(crate) store: &'s Store,
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

    /// The values of the first of `keys` at the moment of the snapshot, in their order: as many as
    /// fit in [`LOOKED_UP_BYTES`], and at least one.
    pub fn multi_get_first<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<Value<'s>>>> {
        let store = self.store;
        // Before the lookup: no segment goes between the first value and the last.
        let _reader = store.values.as_ref().map(ValueStore::reader);
        let (asked, options) = (keys.iter().map(AsRef::as_ref), ending_early(self.read_options()));
        let found = store.db.batched_multi_get_pinned_cf_opt(&store.family, asked, false, &options);
        let (mut values, mut bytes) = (Vec::with_capacity(keys.len()), 0);
        for (key, found) in keys.iter().zip(found) {
            let stored = match found {
                // It goes through the keys in their order in the tables: the first one may be among
                // those it has left out.
                Err(error) if error.kind() == ErrorKind::Aborted && !values.is_empty() => break,
                Err(error) if error.kind() == ErrorKind::Aborted => {
                    store.stored_in_rocks(key.as_ref(), &self.read_options)
                }
                found => found.map_err(|error| Error::from_rocks(&error)),
            };
            let value = match stored {
                Ok(Some(stored)) => store.value(key.as_ref(), Stored::InRocks(stored), &self.read_options),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            bytes += value.as_ref().map_or(0, |value| value.as_ref().map_or(0, |value| value.len()));
            values.push(value);
            if bytes >= LOOKED_UP_BYTES {
                break;
            }
        }
        values
    }

    /// What is known of the value of `key` at the moment of the snapshot. The value itself is not
    /// read.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub fn describe(&self, key: &[u8]) -> Result<Option<Description>> {
        let stored = self.store.stored_in_rocks(key, &self.read_options)?;
        stored.map(|stored| Description::of(key, &stored)).transpose()
    }

    /// The number of the last write that the snapshot has.
    pub fn sequence(&self) -> Option<u64> {
        self.snapshot.sequence_number()
    }

    pub(crate) fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        if !self.store.follows {
            options.set_snapshot(&self.snapshot);
        }
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
    /// [`Error::Corrupt`] when a block is damaged or the value has a header that this version does
    /// not know.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<Value<'_>>> {
        let Some(stored) = self.stored(key)? else { return Ok(None) };
        self.value(key, stored, &self.read_options)
    }

    /// The value of `key`, if that can be told without waiting for the device.
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`] where it cannot; as [`get`](Self::get) else.
    #[inline]
    pub fn try_get(&self, key: &[u8]) -> Result<Option<Value<'_>>> {
        let Some(stored) = self.try_stored(key)? else { return Ok(None) };
        self.try_value(key, stored)
    }

    /// The values of the first of `keys`, in their order: as many as fit in [`LOOKED_UP_BYTES`],
    /// and at least one. Each is what is there at some moment of the call. With `non_blocking`
    /// those that cannot be told without waiting for the device are [`Error::WouldBlock`].
    pub fn multi_get_first<K: AsRef<[u8]>>(&self, keys: &[K], non_blocking: bool) -> Vec<Result<Option<Value<'_>>>> {
        // Before the lookup: no segment goes between the first value and the last.
        let _reader = self.values.as_ref().map(ValueStore::reader);
        let mut rows = Vec::with_capacity(keys.len());
        let mut asked = Vec::with_capacity(keys.len());
        for key in keys {
            let key = key.as_ref();
            let row = self.row(key).map_or(Err(None), |row| row.map_err(Some));
            if row.is_err() {
                asked.push(key);
            }
            rows.push(row);
        }
        let look_up =
            |options| self.db.batched_multi_get_pinned_cf_opt(&self.family, asked.iter().copied(), false, options);
        let found = match non_blocking {
            _ if asked.is_empty() => Vec::new(),
            true => self.non_blocking.read(|| look_up(&self.non_blocking.some)),
            false => look_up(&self.read_some),
        };
        let (mut found, mut values, mut bytes) = (found.into_iter(), Vec::with_capacity(keys.len()), 0);
        for (key, row) in keys.iter().zip(rows) {
            let key = key.as_ref();
            let stored = match row {
                Ok(row) => Ok(Some(Stored::InRow(row))),
                Err(absent) => match found.next() {
                    // It goes through the keys in their order in the tables: the first one may be
                    // among those it has left out.
                    Some(Err(error)) if error.kind() == ErrorKind::Aborted && !values.is_empty() => break,
                    Some(Err(error)) if error.kind() == ErrorKind::Aborted && non_blocking => self.try_stored(key),
                    Some(Err(error)) if error.kind() == ErrorKind::Aborted => self.stored(key),
                    Some(Err(error)) if non_blocking => Err(non_blocking::error(&error)),
                    Some(Err(error)) => Err(Error::from_rocks(&error)),
                    Some(Ok(stored)) => Ok(self.kept(absent, key, stored)),
                    None => break,
                },
            };
            let value = match stored {
                Err(error) => Err(error),
                Ok(None) => Ok(None),
                Ok(Some(stored)) if non_blocking => self.try_value(key, stored),
                Ok(Some(stored)) => self.value(key, stored, &self.read_options),
            };
            bytes += value.as_ref().map_or(0, |value| value.as_ref().map_or(0, |value| value.len()));
            values.push(value);
            if bytes >= LOOKED_UP_BYTES {
                break;
            }
        }
        values
    }

    /// What is known of the value of `key`, its length too. The value itself is not read, wherever
    /// it is. With `non_blocking` it is told without waiting for the device or not at all.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get), or [`try_get`](Self::try_get).
    pub fn describe(&self, key: &[u8], non_blocking: bool) -> Result<Option<Description>> {
        let stored = if non_blocking { self.try_stored(key)? } else { self.stored(key)? };
        stored.map(|stored| Description::of(key, &stored)).transpose()
    }

    #[inline]
    fn stored(&self, key: &[u8]) -> Result<Option<Stored<'_>>> {
        self.stored_by(key, || self.stored_in_rocks(key, &self.read_options))
    }

    #[inline]
    fn try_stored(&self, key: &[u8]) -> Result<Option<Stored<'_>>> {
        self.stored_by(key, || {
            let look_up = || self.db.get_pinned_cf_opt(&self.family, key, &self.non_blocking.one);
            self.non_blocking.read(look_up).map_err(|error| non_blocking::error(&error))
        })
    }

    /// What is stored with `key`: its row, else what `look_up` finds.
    #[inline]
    fn stored_by<'s>(
        &'s self,
        key: &[u8],
        look_up: impl FnOnce() -> Result<Option<DBPinnableSlice<'s>>>,
    ) -> Result<Option<Stored<'s>>> {
        match self.row(key) {
            Some(Ok(row)) => Ok(Some(Stored::InRow(row))),
            Some(Err(absent)) => Ok(self.kept(Some(absent), key, look_up()?)),
            None => Ok(look_up()?.map(Stored::InRocks)),
        }
    }

    /// The keys of this store may be in another one from now on that shares its rows, or no longer:
    /// rows that are there go, and what lookups here still find is not kept.
    pub fn give_rows_up(&self, gives_up: bool) {
        if let Some(rows) = &self.rows {
            rows.give_up(gives_up);
        }
    }

    /// The row of `key`, where rows are kept. One that names a place whose segment has gone is of
    /// no use, and RocksDB is asked.
    #[inline]
    fn row(&self, key: &[u8]) -> Option<std::result::Result<Row, Absent>> {
        let rows = self.rows.as_ref().filter(|rows| rows.may_have(key))?;
        let row = rows.get(key);
        if row.as_ref().is_ok_and(|row| self.leads_nowhere(row)) {
            rows.forget(key);
            return Some(rows.get(key));
        }
        Some(row)
    }

    #[inline]
    fn leads_nowhere(&self, row: &Row) -> bool {
        if row.value().is_some() {
            return false;
        }
        match (Header::decode(row.stored()).map(|header| header.kind), &self.values) {
            (Ok(Kind::Separated(pointer)), Some(values)) => !values.log.has_segment(pointer.segment),
            _ => false,
        }
    }

    /// Keeps what was found in RocksDB.
    #[inline]
    fn kept<'s>(
        &'s self,
        absent: Option<Absent>,
        key: &[u8],
        found: Option<DBPinnableSlice<'s>>,
    ) -> Option<Stored<'s>> {
        let found = found?;
        if let (Some(rows), Some(absent)) = (&self.rows, absent)
            && rows.keeps()
        {
            rows.keep(absent, key, &found);
        }
        Some(Stored::InRocks(found))
    }

    #[inline]
    fn stored_in_rocks(&self, key: &[u8], options: &ReadOptions) -> Result<Option<DBPinnableSlice<'_>>> {
        self.db.get_pinned_cf_opt(&self.family, key, options).map_err(|error| Error::from_rocks(&error))
    }

    fn try_value<'s>(&'s self, key: &[u8], stored: Stored<'s>) -> Result<Option<Value<'s>>> {
        let Header { attributes, kind, bytes } =
            Header::decode(&stored).map_err(|reason| Error::corrupt_value(key, &reason))?;
        let place = match (kind, stored, &self.values) {
            (Kind::Inline, stored, _) => ValueSource::Inline(stored, bytes),
            (Kind::Separated(_), Stored::InRow(row), _) if row.value().is_some() => ValueSource::InRow(row),
            (Kind::Separated(pointer), stored, Some(values)) => {
                let mut record = Vec::new();
                // Where the value is not in its place any more, who may wait finds out why.
                let value = values.log.try_read(key, pointer, &mut record).map_err(|_| Error::WouldBlock)?;
                self.keep_value(stored.row(), &record[value.clone()]);
                ValueSource::Separated(record, value)
            }
            (Kind::Separated(_), _, None) => return Err(Error::corrupt_value(key, &HeaderError::NoValueLog)),
        };
        Ok(Some(Value { attributes, place }))
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
        // RocksDB knows none where it follows others. There nothing changes while anybody reads.
        if !self.follows {
            read_options.set_snapshot(&snapshot);
        }
        Snapshot { store: self, read_options, snapshot }
    }

    #[inline]
    fn lookup(&self, key: &[u8], options: &ReadOptions) -> Result<Option<Value<'_>>> {
        let Some(stored) = self.stored_in_rocks(key, options)? else { return Ok(None) };
        self.value(key, Stored::InRocks(stored), options)
    }

    #[inline]
    fn value<'s>(&'s self, key: &[u8], stored: Stored<'s>, options: &ReadOptions) -> Result<Option<Value<'s>>> {
        let Header { attributes, kind, bytes } =
            Header::decode(&stored).map_err(|reason| Error::corrupt_value(key, &reason))?;
        let place = match (kind, stored) {
            (Kind::Inline, stored) => ValueSource::Inline(stored, bytes),
            (Kind::Separated(_), Stored::InRow(row)) if row.value().is_some() => ValueSource::InRow(row),
            (Kind::Separated(pointer), stored) => {
                let row = stored.row().cloned();
                drop(stored);
                let value = self.separated_value(key, attributes, pointer, options)?;
                value.iter().for_each(|value| self.keep_value(row.as_ref(), value));
                return Ok(value);
            }
        };
        Ok(Some(Value { attributes, place }))
    }

    /// Keeps the value that the pointer of `row` has led to.
    #[inline]
    fn keep_value(&self, row: Option<&Row>, value: &[u8]) {
        if let (Some(rows), Some(row)) = (&self.rows, row) {
            rows.keep_value(row, value);
        }
    }

    /// Reads the value that `pointer` leads to. Between the lookup and this its segment may have
    /// been removed, because the key has another value now, or the same one elsewhere: a pointer
    /// that has changed is followed again.
    fn separated_value<'s>(
        &'s self,
        key: &[u8],
        mut attributes: Attributes,
        mut pointer: RecordPointer,
        options: &ReadOptions,
    ) -> Result<Option<Value<'s>>> {
        let Some(values) = &self.values else {
            return Err(Error::corrupt_value(key, &HeaderError::NoValueLog));
        };
        let mut record = Vec::new();
        for _ in 0..MAX_FOLLOWED {
            let error = match values.log.read(key, pointer, &mut record) {
                Ok(value) => return Ok(Some(Value { attributes, place: ValueSource::Separated(record, value) })),
                Err(error) => error,
            };
            self.rows.as_ref().inspect(|rows| rows.forget(key));
            let Some(stored) = self.stored_in_rocks(key, options)? else { return Ok(None) };
            let header = Header::decode(&stored).map_err(|reason| Error::corrupt_value(key, &reason))?;
            match header.kind {
                Kind::Separated(changed) if changed != pointer => (attributes, pointer) = (header.attributes, changed),
                Kind::Separated(_) => return Err(error.into()),
                Kind::Inline => {
                    return Ok(Some(Value {
                        attributes: header.attributes,
                        place: ValueSource::Inline(Stored::InRocks(stored), header.bytes),
                    }));
                }
            }
        }
        Err(Error::Busy { detail: format!("the value of key {} is moved all the time", Printable(key)) })
    }

    fn lookup_all<K: AsRef<[u8]>>(&self, keys: &[K], options: &ReadOptions) -> Vec<Result<Option<Value<'_>>>> {
        // Before the lookup: no segment goes between the first value and the last, so all are of
        // one moment.
        let _reader = self.values.as_ref().map(ValueStore::reader);
        let stored =
            self.db.batched_multi_get_pinned_cf_opt(&self.family, keys.iter().map(AsRef::as_ref), false, options);
        let decode = |(key, stored): (&K, _)| match stored {
            Ok(Some(stored)) => self.value(key.as_ref(), Stored::InRocks(stored), options),
            Ok(None) => Ok(None),
            Err(error) => Err(Error::from_rocks(&error)),
        };
        keys.iter().zip(stored).map(decode).collect()
    }
}
