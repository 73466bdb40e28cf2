//! Where copies belong, and the next steps that lead there: a pure choice over the map.
//!
//! In the end each shard has as many copies as it should, or as there are servers that may hold
//! one; they are in different zones as far as there are such; no two servers differ by more than
//! one, in copies where zones allow it, and in primaries where copies do; a server that is drained,
//! or given up, has none. All servers count for the same: nobody says what they can carry.
//!
//! A copy is added before another goes, and goes only when enough others are in sync: of the members
//! of the in-sync set that stay, there are as many as the shard should have copies, and a majority
//! of these where there are fewer servers. [`Change::RemoveCopy`] may name a member of the set: then
//! its primary is asked to let it leave first, and does when all that was acknowledged counts
//! without it. A primary that goes hands over before.
//!
//! Steps come one for a shard, few at a time, and those that only even things out come when nothing
//! else is left, none of them beside another that changes the same server. So each of them lowers
//! what is uneven, and there is an end. A shard without a primary is left alone: a failover is under
//! way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{MemberId, ShardId};
use crate::map::{MAX_COPIES, Map, Role, ServerState, Shard};

/// Steps at a time, those that are under way among them.
pub const MAX_CHANGES: usize = 4;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A server gets a copy.
    AddCopy {
        /// The shard.
        shard: ShardId,
        /// The server.
        member: MemberId,
    },
    /// A server gives its copy up, once it is not in sync any more.
    RemoveCopy {
        /// The shard.
        shard: ShardId,
        /// The server.
        member: MemberId,
    },
    /// The primary hands the shard over.
    HandOver {
        /// The shard.
        shard: ShardId,
        /// To this member of the in-sync set.
        to: MemberId,
    },
}

impl Change {
    /// The shard that it is about.
    pub fn shard(self) -> ShardId {
        match self {
            Self::AddCopy { shard, .. } | Self::RemoveCopy { shard, .. } | Self::HandOver { shard, .. } => shard,
        }
    }
}

/// Who is there, as the leader sees it.
#[derive(Clone, Copy, Debug)]
pub struct Presence<'a> {
    /// Servers that answer: they can get copies, and shards.
    pub alive: &'a BTreeSet<MemberId>,
    /// Servers that were away for so long that their copies are replaced.
    pub given_up: &'a BTreeSet<MemberId>,
}

/// The next steps, where each shard should have so many `copies`. Shards that are `busy` with an
/// earlier step are left alone.
pub fn next_changes(map: &Map, copies: usize, presence: Presence<'_>, busy: &BTreeSet<ShardId>) -> Vec<Change> {
    let view = View::of(map, copies, presence);
    let limit = MAX_CHANGES.saturating_sub(busy.len());
    if view.wanted == 0 || limit == 0 {
        return Vec::new();
    }
    let mut changes = view.repairs(busy, limit);
    if changes.is_empty() && !view.is_in_motion() {
        changes = view.spreads(busy, limit);
        if changes.is_empty() {
            changes = view.hand_overs(busy, limit);
        }
    }
    changes
}

/// What a server fails with; a server of which nobody says so, by itself.
type Zone<'a> = (&'a str, Option<MemberId>);

struct View<'a> {
    map: &'a Map,
    copies: usize,
    /// Who may hold copies, and its zone.
    holders: BTreeMap<MemberId, Zone<'a>>,
    alive: &'a BTreeSet<MemberId>,
    /// How many copies each shard should have now.
    wanted: usize,
    load: BTreeMap<MemberId, usize>,
}

impl<'a> View<'a> {
    fn of(map: &'a Map, copies: usize, presence: Presence<'a>) -> Self {
        let may_hold = |(member, server): &(MemberId, &crate::map::Server)| {
            server.role == Role::Data && server.state == ServerState::Active && !presence.given_up.contains(member)
        };
        let holders: BTreeMap<MemberId, Zone<'_>> = map
            .members()
            .filter(may_hold)
            .map(|(member, server)| (member, (server.zone.as_str(), server.zone.is_empty().then_some(member))))
            .collect();
        let mut load: BTreeMap<MemberId, usize> = holders.keys().map(|member| (*member, 0)).collect();
        for member in map.shards.values().flat_map(|shard| &shard.copies) {
            if let Some(load) = load.get_mut(member) {
                *load += 1;
            }
        }
        let copies = copies.clamp(1, MAX_COPIES);
        Self { map, copies, wanted: copies.min(holders.len()), holders, alive: presence.alive, load }
    }

    /// The shards that a step may be about.
    fn shards(&self, busy: &'a BTreeSet<ShardId>) -> impl Iterator<Item = (ShardId, &'a Shard, MemberId)> {
        let shards = self.map.shards.iter().filter(|(id, _)| !busy.contains(id));
        shards.filter_map(|(id, shard)| Some((*id, shard, shard.primary?)))
    }

    /// Its copies on servers that may hold them.
    fn placed(&self, shard: &Shard) -> BTreeSet<MemberId> {
        shard.copies.iter().copied().filter(|member| self.holders.contains_key(member)).collect()
    }

    /// How many members must be in sync without one that goes.
    fn must_stay(&self) -> usize {
        self.wanted.max(self.copies / 2 + 1)
    }

    /// Whether a copy is on its way, or waits to go.
    fn is_in_motion(&self) -> bool {
        self.map.shards.values().any(|shard| self.placed(shard).len() > self.wanted)
    }

    /// Copies that are being made.
    fn seeds(&self) -> usize {
        let is_seeded = |shard: &&Shard| {
            let mut missing = shard.copies.difference(&shard.in_sync);
            missing.any(|member| self.alive.contains(member) && self.holders.contains_key(member))
        };
        self.map.shards.values().filter(is_seeded).count()
    }

    /// What is lacking, on the wrong server, or too much.
    fn repairs(&self, busy: &BTreeSet<ShardId>, limit: usize) -> Vec<Change> {
        let mut load = self.load.clone();
        let mut seeds = self.seeds();
        let mut changes = Vec::new();
        for (id, shard, primary) in self.shards(busy) {
            if changes.len() == limit {
                break;
            }
            let placed = self.placed(shard);
            let to = self.target(&placed, shard, &load).filter(|_| placed.len() < self.wanted);
            let change = match to {
                Some(member) if shard.copies.len() < MAX_COPIES => {
                    (seeds < MAX_CHANGES).then_some(Change::AddCopy { shard: id, member })
                }
                _ => self.leaving(&placed, shard, &load).and_then(|member| self.send_off(id, shard, primary, member)),
            };
            match change {
                Some(Change::AddCopy { member, .. }) => {
                    seeds += 1;
                    *load.entry(member).or_default() += 1;
                }
                Some(Change::RemoveCopy { member, .. }) => {
                    load.entry(member).and_modify(|load| *load = load.saturating_sub(1));
                }
                _ => {}
            }
            changes.extend(change);
        }
        changes
    }

    /// Which server had best get a copy, beside those that have one: one of the zone with fewest of
    /// them, of these the one with fewest in all.
    fn target(&self, placed: &BTreeSet<MemberId>, shard: &Shard, load: &BTreeMap<MemberId, usize>) -> Option<MemberId> {
        let in_zone = |member: &MemberId| placed.iter().filter(|other| self.are_near(**other, *member)).count();
        let free = self.holders.keys().filter(|member| self.alive.contains(member) && !shard.copies.contains(member));
        free.copied().min_by_key(|member| (in_zone(member), load.get(member).copied(), *member))
    }

    /// Whether two servers fail together.
    fn are_near(&self, one: MemberId, other: MemberId) -> bool {
        self.holders.get(&one) == self.holders.get(&other)
    }

    /// Which copy is to go, if one is: first those that are where they may not be, then those that
    /// are too many.
    fn leaving(
        &self,
        placed: &BTreeSet<MemberId>,
        shard: &Shard,
        load: &BTreeMap<MemberId, usize>,
    ) -> Option<MemberId> {
        // Who is the primary last: it hands over before. Of others first who counts for nothing.
        let rank = |member: &MemberId| (shard.primary == Some(*member), shard.in_sync.contains(member), *member);
        let misplaced = shard.copies.difference(placed).copied().min_by_key(rank);
        misplaced.or_else(|| self.surplus(placed, shard.primary, load).filter(|_| placed.len() > self.wanted))
    }

    /// Which copy the others can best do without: one of the zone with most of them, of these the
    /// one of the server with most in all.
    fn surplus(
        &self,
        placed: &BTreeSet<MemberId>,
        primary: Option<MemberId>,
        load: &BTreeMap<MemberId, usize>,
    ) -> Option<MemberId> {
        let in_zone = |member: &MemberId| placed.iter().filter(|other| self.are_near(**other, *member)).count();
        let rank = |member: &MemberId| (in_zone(member), load.get(member).copied(), primary != Some(*member), *member);
        placed.iter().copied().max_by_key(rank)
    }

    /// The next step on the way of a copy that is to go.
    fn send_off(&self, id: ShardId, shard: &Shard, primary: MemberId, member: MemberId) -> Option<Change> {
        let stay: BTreeSet<MemberId> =
            self.placed(shard).intersection(&shard.in_sync).copied().filter(|other| *other != member).collect();
        // Where no more copies may be added, one must go before another comes.
        let is_full = shard.copies.len() == MAX_COPIES && self.placed(shard).len() < self.wanted;
        let must_stay = if is_full { self.copies / 2 + 1 } else { self.must_stay() };
        let is_lost = !self.holders.contains_key(&member) && !shard.in_sync.contains(&member);
        if stay.len() < must_stay && !(is_lost && is_full) {
            return None;
        }
        if member != primary {
            return Some(Change::RemoveCopy { shard: id, member });
        }
        let to = self.successor(&stay)?;
        Some(Change::HandOver { shard: id, to })
    }

    /// Who of these has fewest primaries.
    fn successor(&self, members: &BTreeSet<MemberId>) -> Option<MemberId> {
        let primaries = self.primaries();
        let alive = members.iter().copied().filter(|member| self.alive.contains(member));
        alive.min_by_key(|member| (primaries.get(member).copied(), *member))
    }

    fn primaries(&self) -> BTreeMap<MemberId, usize> {
        let mut primaries: BTreeMap<MemberId, usize> = self.holders.keys().map(|member| (*member, 0)).collect();
        for primary in self.map.shards.values().filter_map(|shard| shard.primary) {
            if let Some(count) = primaries.get_mut(&primary) {
                *count += 1;
            }
        }
        primaries
    }

    /// Copies that would be better elsewhere: zones first, then numbers. Each gets another copy, and
    /// then one too many. No server is in two of them.
    fn spreads(&self, busy: &BTreeSet<ShardId>, limit: usize) -> Vec<Change> {
        let mut load = self.load.clone();
        let (mut changes, mut used) = (Vec::new(), BTreeSet::new());
        let limit = limit.min(MAX_CHANGES.saturating_sub(self.seeds()));
        for (id, shard, _) in self.shards(busy) {
            if changes.len() == limit {
                break;
            }
            let is_settled = shard.copies == shard.in_sync && shard.copies.len() == self.wanted;
            if !is_settled || shard.copies.len() == MAX_COPIES {
                continue;
            }
            let Some(to) = self.target(&shard.copies, shard, &load) else { continue };
            let mut placed = shard.copies.clone();
            placed.insert(to);
            *load.entry(to).or_default() += 1;
            let from = self.surplus(&placed, shard.primary, &load);
            *load.entry(to).or_default() -= 1;
            let Some(from) = from.filter(|from| *from != to) else { continue };
            let near = |member: MemberId| {
                shard.copies.iter().filter(|other| **other != from && self.are_near(**other, member)).count()
            };
            let count = |member: MemberId| load.get(&member).copied().unwrap_or_default();
            let is_better = near(to) < near(from) || near(to) == near(from) && count(from) >= count(to) + 2;
            if is_better && !used.contains(&to) && !used.contains(&from) {
                used.extend([to, from]);
                changes.push(Change::AddCopy { shard: id, member: to });
            }
        }
        changes
    }

    /// Primaries that had better be elsewhere among the copies. Where no server with few shares a
    /// shard with one that has many, those between them pass one on each, the last first.
    fn hand_overs(&self, busy: &BTreeSet<ShardId>, limit: usize) -> Vec<Change> {
        let mut primaries = self.primaries();
        let mut at: BTreeMap<ShardId, MemberId> =
            self.map.shards.iter().filter_map(|(id, shard)| Some((*id, shard.primary?))).collect();
        let (mut changes, mut moved) = (Vec::new(), busy.clone());
        while changes.len() < limit {
            let Some(path) = self.path(&primaries, &at, &moved) else { break };
            for (shard, to) in path.into_iter().rev() {
                if changes.len() == limit {
                    break;
                }
                if let Some(from) = at.insert(shard, to) {
                    primaries.entry(from).and_modify(|count| *count -= 1);
                }
                *primaries.entry(to).or_default() += 1;
                moved.insert(shard);
                changes.push(Change::HandOver { shard, to });
            }
        }
        changes
    }

    /// The shortest way from a server with most primaries to one that has two less.
    fn path(
        &self,
        primaries: &BTreeMap<MemberId, usize>,
        at: &BTreeMap<ShardId, MemberId>,
        moved: &BTreeSet<ShardId>,
    ) -> Option<Vec<(ShardId, MemberId)>> {
        let most = *primaries.values().max()?;
        // From whom a server was reached, and by which shard.
        let mut reached: BTreeMap<MemberId, Option<(ShardId, MemberId)>> =
            primaries.iter().filter(|(_, count)| **count == most).map(|(member, _)| (*member, None)).collect();
        let mut queue: VecDeque<MemberId> = reached.keys().copied().collect();
        let mut held: BTreeMap<MemberId, Vec<ShardId>> = BTreeMap::new();
        for (shard, member) in at.iter().filter(|(shard, _)| !moved.contains(shard)) {
            held.entry(*member).or_default().push(*shard);
        }
        while let Some(from) = queue.pop_front() {
            for id in held.get(&from).into_iter().flatten() {
                let Some(shard) = self.map.shards.get(id) else { continue };
                let may = |to: &&MemberId| self.alive.contains(to) && self.holders.contains_key(to);
                for to in shard.in_sync.iter().filter(may) {
                    if reached.contains_key(to) {
                        continue;
                    }
                    reached.insert(*to, Some((*id, from)));
                    queue.push_back(*to);
                    if primaries.get(to).is_some_and(|count| count + 2 <= most) {
                        let (mut path, mut end) = (Vec::new(), *to);
                        while let Some((shard, from)) = reached.get(&end).copied().flatten() {
                            path.push((shard, end));
                            end = from;
                        }
                        path.reverse();
                        return Some(path);
                    }
                }
            }
        }
        None
    }
}
