//! Keys that are looked up together before their commands are carried out: the reads of a pipeline,
//! or of one command that names many keys.
//!
//! A prefetched value is as good as a lookup as long as its client has neither read nor written
//! anything since: kept for longer, it would show its client an older state after a newer one.

use std::collections::VecDeque;

use ecotone_engine::{Error as StoreError, Snapshot, Value};

use crate::error::Blocking;
use crate::keyspace::Keyspace;
use crate::layout::{self, StoredKey};
use crate::slot::Slot;

/// Keys that are looked up together at most.
pub const MAX_PREFETCH_KEYS: usize = 128;

/// What a lookup of one key came to.
#[derive(Debug)]
pub struct Prefetched<'s> {
    pub(super) stored_key: StoredKey,
    pub(super) found: Result<Option<Value<'s>>, StoreError>,
}

impl Keyspace {
    /// Looks up the first of `keys`, at least one and at most [`MAX_PREFETCH_KEYS`]: as many as do
    /// not take much memory together. With a `snapshot` as they are there.
    pub fn prefetch<'s, 'k>(
        &'s self,
        keys: impl Iterator<Item = &'k [u8]>,
        blocking: Blocking,
        snapshot: Option<&Snapshot<'s>>,
    ) -> VecDeque<Prefetched<'s>> {
        let stored = |key: &[u8]| layout::key(Slot::of(key), key);
        let stored: Vec<StoredKey> = keys.take(MAX_PREFETCH_KEYS).map(stored).collect();
        let found = match snapshot {
            Some(snapshot) => snapshot.multi_get_first(&stored),
            None => self.store.multi_get_first(&stored, blocking == Blocking::Never),
        };
        stored.into_iter().zip(found).map(|(stored_key, found)| Prefetched { stored_key, found }).collect()
    }
}
