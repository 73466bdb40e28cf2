//! Keys that are looked up together before the commands come to them: the reads of a pipeline, or of one command that names many.
//!
//! What is known of a key is as good as a lookup as long as its client has neither read nor written anything since: who keeps it for
//! longer would show its client an older state behind a newer one.

use std::collections::VecDeque;

use ecotone_engine::{Error as StoreError, Snapshot, Value};

use super::layout::{self, StoredKey};
use super::slot::Slot;
use super::{Keyspace, Waiting};

/// Keys that are looked up together at most.
pub const MAX_TOGETHER: usize = 128;

/// What a lookup of one key came to.
#[derive(Debug)]
pub struct Known<'s> {
    pub(super) stored_key: StoredKey,
    pub(super) found: Result<Option<Value<'s>>, StoreError>,
}

impl Keyspace {
    /// Looks up the first of `keys`, at least one and at most [`MAX_TOGETHER`]: as many as do not take much memory together. With a `snapshot` as
    /// they are there.
    pub fn look_up<'s, 'k>(
        &'s self,
        keys: impl Iterator<Item = &'k [u8]>,
        waiting: Waiting,
        snapshot: Option<&Snapshot<'s>>,
    ) -> VecDeque<Known<'s>> {
        let stored = |key: &[u8]| layout::key(Slot::of(key), key);
        let stored: Vec<StoredKey> = keys.take(MAX_TOGETHER).map(stored).collect();
        let found = match snapshot {
            Some(snapshot) => snapshot.multi_get_first(&stored),
            None => self.store.multi_get_first(&stored, waiting == Waiting::Never),
        };
        stored.into_iter().zip(found).map(|(stored_key, found)| Known { stored_key, found }).collect()
    }
}
