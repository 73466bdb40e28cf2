//! Which server gets which shard, for people who ask for it: a pure choice over the map.
//!
//! Shards are dealt in the order of slots to servers that take turns, so that their numbers differ
//! by one at most. Neighbours are in different zones as far as there are such: a range of slots
//! that is busy, and the one beside it, then lie on what does not fail together.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{MemberId, ShardId};
use crate::map::{Map, Role, ServerState, Shard};

/// The shards that a server is dealt at most. It can hold twice as many, of which some are those
/// that it gave up since its start.
pub const MAX_SHARDS_PER_SERVER: usize = 64;

/// A shard that had better be on another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMove {
    /// The shard.
    pub shard: ShardId,
    /// Who has it; nobody, where its server was removed by force.
    pub from: Option<MemberId>,
    /// Who should have it.
    pub to: MemberId,
}

/// The servers that can get shards, in the order in which they take turns.
pub fn holders(map: &Map) -> Vec<MemberId> {
    // By zone, and servers of which nobody says it each by itself; both ascending.
    let mut zones: BTreeMap<(&str, Option<MemberId>), Vec<MemberId>> = BTreeMap::new();
    let can_hold = |state, role| state == ServerState::Active && role == Role::Data;
    for (member, server) in map.members().filter(|(_, server)| can_hold(server.state, server.role)) {
        let alone = server.zone.is_empty().then_some(member);
        zones.entry((&server.zone, alone)).or_default().push(member);
    }
    let mut zones: Vec<Vec<MemberId>> = zones.into_values().collect();
    zones.iter_mut().for_each(|zone| zone.reverse());
    let (mut order, mut last) = (Vec::new(), None);
    loop {
        // The fullest zone but the last one; of equals the first.
        let full = |index: &usize| !zones[*index].is_empty();
        let rank = |index: &usize| (Some(*index) != last, zones[*index].len(), usize::MAX - index);
        let Some(zone) = (0..zones.len()).filter(full).max_by_key(rank) else { return order };
        order.extend(zones[zone].pop());
        last = Some(zone);
    }
}

/// The primaries of so many shards, in the order of slots; none where no server can hold one.
pub fn deal(map: &Map, shards: usize) -> Vec<MemberId> {
    let holders = holders(map);
    holders.iter().copied().cycle().take(if holders.is_empty() { 0 } else { shards }).collect()
}

/// The fewest moves after which each shard is on a server that may hold it, and no two
/// servers differ by more than one. Shards with several copies stay.
pub fn moves(map: &Map) -> Vec<ShardMove> {
    let holders = holders(map);
    let mut held: BTreeMap<MemberId, BTreeSet<ShardId>> =
        holders.iter().map(|holder| (*holder, BTreeSet::new())).collect();
    let mut homeless = Vec::new();
    let is_moved_by_hand = |shard: &Shard| shard.copies.len() <= 1;
    for (id, shard) in map.shards.iter().filter(|(_, shard)| is_moved_by_hand(shard)) {
        match shard.primary.and_then(|primary| held.get_mut(&primary)) {
            Some(shards) => {
                shards.insert(*id);
            }
            None => homeless.push((*id, shard.primary)),
        }
    }
    let mut moves = Vec::new();
    let fewest = |held: &BTreeMap<MemberId, BTreeSet<ShardId>>| {
        holders.iter().copied().min_by_key(|holder| held.get(holder).map_or(0, BTreeSet::len))
    };
    for (shard, from) in homeless {
        let Some(to) = fewest(&held) else { break };
        held.entry(to).or_default().insert(shard);
        moves.push(ShardMove { shard, from, to });
    }
    // One that has just come is no reason to move another, so what is moved again is what was there.
    let moved: BTreeSet<ShardId> = moves.iter().map(|shard_move| shard_move.shard).collect();
    loop {
        let most = holders.iter().copied().rev().max_by_key(|holder| held.get(holder).map_or(0, BTreeSet::len));
        let (Some(from), Some(to)) = (most, fewest(&held)) else { return moves };
        let count = |holder: MemberId| held.get(&holder).map_or(0, BTreeSet::len);
        if count(from) <= count(to) + 1 {
            return moves;
        }
        let last = held.get(&from).and_then(|shards| shards.iter().rev().find(|shard| !moved.contains(shard)));
        let Some(shard) = last.copied() else { return moves };
        held.entry(from).or_default().remove(&shard);
        held.entry(to).or_default().insert(shard);
        moves.push(ShardMove { shard, from: Some(from), to });
    }
}
