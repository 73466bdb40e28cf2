//! The copies that are driven on a server.
//!
//! Threads: any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ecotone_control::ids::{MemberId, ShardId};
use ecotone_membership::Known;
use parking_lot::RwLock;

use crate::shard::{Driven, Shared};

/// The copies of a server, by shard.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) copies: RwLock<BTreeMap<ShardId, Driven>>,
    pub(crate) map: RwLock<Option<Arc<Known>>>,
}

impl Table {
    pub(crate) fn get(&self, shard: ShardId) -> Option<Arc<Shared>> {
        self.copies.read().get(&shard).map(|copy| copy.shared.clone())
    }

    pub(crate) fn all(&self) -> Vec<(ShardId, Arc<Shared>)> {
        self.copies.read().iter().map(|(shard, copy)| (*shard, copy.shared.clone())).collect()
    }

    pub(crate) fn copies_of(&self, shard: ShardId) -> BTreeSet<MemberId> {
        let known = self.map.read().clone();
        known.and_then(|known| known.map.shards.get(&shard).map(|state| state.copies.clone())).unwrap_or_default()
    }
}
