//! Files of copies that the map gives to this server no more: they are removed, as others have the
//! shard. Those of a copy which was given up while this server was off are found by a look from time
//! to time.
//!
//! Invariants: nothing is removed by a map that this server has no place in. A look removes nothing
//! before the leader was there for [`MIN_LEADER_TIME`], which brings a map up to date many times over,
//! and of shards of which two others are in sync only. What was never a copy that replication has
//! driven, such as a store that people have put here to state that a shard was moved, is not touched.
//!
//! Threads: that which follows the map; files are removed on one of their own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_control::ids::{MemberId, ShardId};
use ecotone_control::map::{Map, ServerState, Shard};
use ecotone_membership::Known;
use ecotone_mirror::record::read_standing;
use ecotone_mirror::whole;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::shard::Around;
use crate::table::Table;

/// A map counts as up to date once a leader was known for so long.
const MIN_LEADER_TIME: Duration = Duration::from_secs(30);

/// Whether others have the shard, and this server does not. A map that it has no place in says
/// nothing of its files.
pub(crate) fn is_elsewhere(map: &Map, id: ShardId, me: MemberId) -> bool {
    let is_others = |shard: &Shard| !shard.in_sync.is_empty() && !shard.copies.contains(&me);
    let belongs =
        map.server(me).is_some_and(|server| matches!(server.state, ServerState::Active | ServerState::Draining));
    belongs && map.shards.get(&id).is_some_and(is_others)
}

/// Removes the files of a copy that was reserved, and gives it back.
pub(crate) fn remove(around: &Around, id: ShardId) {
    info!(shard = id.0, "the copy that was here is elsewhere now; its files are removed");
    if let Err(error) = whole::remove(&around.host.directory(id)) {
        warn!(shard = id.0, %error, "files of a copy that is elsewhere now cannot be removed");
    }
    around.host.release(id);
}

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// Others that must be in sync.
const MIN_OTHERS: usize = 2;

/// Looks from time to time.
#[derive(Default)]
pub(crate) struct Leftovers {
    leads_since: Option<Instant>,
    looked: Option<Instant>,
}

impl Leftovers {
    /// `is_replicated` says of which shards copies are driven, `ending` of which files are touched still.
    pub(crate) fn look(
        &mut self,
        known: &Known,
        table: &Table,
        around: &Arc<Around>,
        ending: &Arc<Mutex<BTreeSet<ShardId>>>,
        is_replicated: impl Fn(&Map, &Shard) -> bool,
    ) {
        if !self.is_due(known.leader.is_some() && !known.is_removed(), Instant::now()) {
            return;
        }
        let map = &known.map;
        let is_safe = |shard: &Shard| is_replicated(map, shard) && shard.in_sync.len() >= MIN_OTHERS;
        for (id, _) in map.shards.iter().filter(|(_, shard)| is_safe(shard)) {
            let is_over = table.get(*id).is_none() && !ending.lock().contains(id);
            if is_over && is_elsewhere(map, *id, around.me) && around.host.reserve(*id) {
                // Where replication has never written its standing it has driven nothing.
                match read_standing(&around.host.directory(*id)) {
                    Ok(Some(_)) => {
                        let (removing, left, id) = (around.clone(), ending.clone(), *id);
                        ending.lock().insert(id);
                        let work = move || {
                            remove(&removing, id);
                            left.lock().remove(&id);
                        };
                        if let Err(error) = std::thread::Builder::new().name("ecotone-copy-end".into()).spawn(work) {
                            warn!(shard = id.0, %error, "files of a copy that is elsewhere stay until the next start");
                            around.host.release(id);
                            ending.lock().remove(&id);
                        }
                    }
                    _ => _ = around.host.release(*id),
                }
            }
        }
    }

    fn is_due(&mut self, has_leader: bool, now: Instant) -> bool {
        if !has_leader {
            self.leads_since = None;
            return false;
        }
        let leads_since = *self.leads_since.get_or_insert(now);
        let is_due = now.saturating_duration_since(leads_since) >= MIN_LEADER_TIME
            && self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_EVERY);
        if is_due {
            self.looked = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_needs_a_leader_that_stays_and_is_made_from_time_to_time() {
        let (mut leftovers, began) = (Leftovers::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert!(!leftovers.is_due(false, at(100)));
        assert!(!leftovers.is_due(true, at(101)));
        assert!(!leftovers.is_due(true, at(120)));
        // It was lost, and another one is there.
        assert!(!leftovers.is_due(false, at(125)));
        assert!(!leftovers.is_due(true, at(126)));
        assert!(!leftovers.is_due(true, at(150)));
        assert!(leftovers.is_due(true, at(156)));
        assert!(!leftovers.is_due(true, at(500)));
        assert!(leftovers.is_due(true, at(156 + 600)));
        assert!(!leftovers.is_due(false, at(2_000)));
        assert!(!leftovers.is_due(true, at(2_001)));
        assert!(leftovers.is_due(true, at(2_031)));
    }
}
