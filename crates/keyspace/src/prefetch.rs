//! Keys that are looked up together before their commands are carried out: the reads of a pipeline,
//! or of one command that names many keys.
//!
//! A prefetched value is as good as a lookup as long as its client has neither read nor written
//! anything since: kept for longer, it would show its client an older state after a newer one.

use std::collections::VecDeque;

use ecotone_engine::{Error as StoreError, Value};

use crate::error::Blocking;
use crate::keyspace::KeyspaceSnapshot;
use crate::layout::{self, StoredKey};
use crate::shards::{HeldShards, Shard, ShardSet, ShardTable};
use crate::slot::Slot;

/// Keys that are looked up together at most.
pub const MAX_PREFETCH_KEYS: usize = 128;

/// What a lookup of one key came to.
#[derive(Debug)]
pub struct Prefetched<'s> {
    pub(super) stored_key: StoredKey,
    pub(super) found: Result<Option<Value<'s>>, StoreError>,
}

impl HeldShards {
    /// Looks up the first of `keys`, at least one and at most [`MAX_PREFETCH_KEYS`]: as many as do
    /// not take much memory together; none where the first one is not held here. With a `snapshot`
    /// as they are there.
    pub fn prefetch<'s, 'k>(
        &'s self,
        keys: impl Iterator<Item = &'k [u8]>,
        blocking: Blocking,
        snapshot: Option<&KeyspaceSnapshot<'s>>,
    ) -> VecDeque<Prefetched<'s>> {
        self.0.prefetch(keys, blocking, snapshot)
    }
}

impl ShardTable {
    /// See [`HeldShards::prefetch`].
    pub(crate) fn prefetch<'s, 'k>(
        &'s self,
        keys: impl Iterator<Item = &'k [u8]>,
        blocking: Blocking,
        snapshot: Option<&KeyspaceSnapshot<'s>>,
    ) -> VecDeque<Prefetched<'s>> {
        let (mut stored, mut shards) = (Vec::new(), Vec::new());
        let mut all = ShardSet::default();
        for key in keys.take(MAX_PREFETCH_KEYS) {
            let slot = Slot::of(key);
            let Some(shard) = self.of(slot) else { break };
            all.insert(shard.index());
            stored.push(layout::key(slot, key));
            shards.push(shard);
        }
        let look_up = |shard: &'s Shard, keys: &[&StoredKey]| match snapshot {
            Some(snapshot) => snapshot.of(shard).map_or_else(Vec::new, |snapshot| snapshot.multi_get_first(keys)),
            None => shard.store().multi_get_first(keys, blocking == Blocking::Never),
        };
        if let [first, ..] = shards[..]
            && all.only().is_some()
        {
            let found = look_up(first, &stored.iter().collect::<Vec<_>>());
            return stored.into_iter().zip(found).map(|(stored_key, found)| Prefetched { stored_key, found }).collect();
        }
        // Each store is asked once.
        let mut by_key: Vec<Option<Result<_, _>>> = stored.iter().map(|_| None).collect();
        for index in all.places() {
            let (places, keys): (Vec<usize>, Vec<&StoredKey>) =
                stored.iter().enumerate().filter(|(place, _)| shards[*place].index() == index).unzip();
            let Some(shard) = self.at(index) else { continue };
            for (place, found) in places.into_iter().zip(look_up(shard, &keys)) {
                by_key[place] = Some(found);
            }
        }
        // Those before the first that was too much.
        let found = by_key.into_iter().map_while(|found| found);
        stored.into_iter().zip(found).map(|(stored_key, found)| Prefetched { stored_key, found }).collect()
    }
}
