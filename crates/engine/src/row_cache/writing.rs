//! A write that is under way: while it is, what it changes is neither told nor kept; when it is
//! over, rows have what it wrote, or are gone.
//!
//! Threads: any number at a time, each with a write of its own.

use rust_rocksdb::WriteBatch;
use twox_hash::XxHash3_64;

use super::RowCache;
use crate::batch_records::{Record, records};
use crate::header::{Header, Kind};

/// Where the values are that the pointers of a batch lead to.
#[derive(Clone, Copy)]
pub(crate) enum SeparatedWrites<'v> {
    /// The batch has no pointers.
    Nothing,
    /// That of its only record.
    Value(&'v [u8]),
    /// The same records in the same order, with values in the place of pointers.
    Records(&'v WriteBatch),
}

/// What a record of a batch of pointers was made of.
#[derive(Clone, Copy)]
pub(super) enum MadeOf<'v> {
    Value(&'v [u8]),
    /// A header and a value.
    Stored(&'v [u8]),
}

impl<'v> SeparatedWrites<'v> {
    /// One for each record of the batch, or none at all.
    fn records(self) -> impl Iterator<Item = Option<MadeOf<'v>>> {
        let (value, batch) = match self {
            SeparatedWrites::Nothing => (None, None),
            SeparatedWrites::Value(value) => (Some(MadeOf::Value(value)), None),
            SeparatedWrites::Records(batch) => (None, Some(batch)),
        };
        let made_of = |record| match record {
            Ok(Record::Put { value, .. }) => Some(MadeOf::Stored(value)),
            _ => None,
        };
        value.map(Some).into_iter().chain(batch.into_iter().flat_map(move |batch| records(batch.data()).map(made_of)))
    }
}

impl<'v> MadeOf<'v> {
    pub(super) fn value(self) -> Option<&'v [u8]> {
        match self {
            MadeOf::Value(value) => Some(value),
            MadeOf::Stored(stored) => {
                let header = Header::decode(stored).ok().filter(|header| header.kind == Kind::Inline)?;
                Some(&stored[header.bytes..])
            }
        }
    }
}

/// A write that is under way.
#[must_use]
pub(crate) struct Writing<'c> {
    pub(super) cache: &'c RowCache,
    pub(super) batch: &'c WriteBatch,
    pub(super) separated: SeparatedWrites<'c>,
    pub(super) changes_all: bool,
    pub(super) is_written: bool,
}

impl Writing<'_> {
    /// RocksDB has all of it.
    pub(crate) fn succeed(mut self) {
        self.is_written = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut separated = self.separated.records();
        for record in records(self.batch.data()) {
            let made_of = separated.next().flatten();
            match record {
                Ok(Record::Put { key, value: stored, .. }) => {
                    let hash = XxHash3_64::oneshot(key);
                    let mut shard = self.cache.shard(hash).lock();
                    if self.is_written && !self.changes_all {
                        self.cache.put(&mut shard, hash, key, stored, made_of);
                    } else {
                        self.cache.remove_key(&mut shard, hash, key);
                    }
                    shard.end();
                }
                Ok(Record::Delete { key }) => {
                    let hash = XxHash3_64::oneshot(key);
                    let mut shard = self.cache.shard(hash).lock();
                    self.cache.remove_key(&mut shard, hash, key);
                    shard.end();
                }
                Ok(Record::DeleteRange { from, to }) => self.cache.remove(from..to),
                Ok(Record::Other) | Err(_) => self.cache.clear(),
            }
        }
        if self.changes_all {
            self.cache.shards.iter().for_each(|shard| shard.lock().end());
        }
    }
}
