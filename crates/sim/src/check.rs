//! What must hold whatever happens. Each invariant has a name, and a file of tests.

use std::collections::BTreeMap;
use std::fmt;

use ecotone_control::entry::{Entry, Proposal};
use ecotone_control::ids::{Epoch, MemberId, ShardId, TokenId};
use ecotone_control::machine::Outcome;
use ecotone_control::map::Map;

/// The invariants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No two servers lead in one term.
    OneLeaderATerm,
    /// What was answered as decided is in the log of every server that gets there, in that place.
    CommittedIsNeverLost,
    /// A shard has at most one owner in an epoch, and who owned it in a passed epoch is confirmed
    /// in nothing.
    OneOwnerAnEpoch,
    /// Nothing comes of what a removed server asks, and a token lets one server in.
    RemovedNeverActs,
    /// Once faults end, all servers have the same map, soon, and changes are decided again.
    MapConverges,
    /// A server whose disk did what it promised can start.
    ServersStart,
}

/// An invariant that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// How.
    pub what: String,
    /// When, in virtual microseconds.
    pub at_us: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, after {} ms: {}", self.invariant, self.at_us / 1_000, self.what)
    }
}

/// Watches all servers at once, which none of them can.
#[derive(Debug, Default)]
pub struct Check {
    leaders: BTreeMap<u64, MemberId>,
    /// What the first server that applied an index found there, and the checksum of its map then.
    applied: BTreeMap<u64, (Proposal, Option<u32>)>,
    decided: BTreeMap<u64, Proposal>,
    owners: BTreeMap<(ShardId, Epoch), MemberId>,
    /// Epoch and primary of each shard, by what entries have done.
    shards: BTreeMap<ShardId, (Epoch, Option<MemberId>)>,
    /// When, by index.
    removed: BTreeMap<MemberId, u64>,
    spent: BTreeMap<TokenId, MemberId>,
    /// The last index whose outcome was looked at.
    judged: u64,
}

type Broken = (Invariant, String);

impl Check {
    /// Terms that had a leader.
    pub fn terms(&self) -> usize {
        self.leaders.len()
    }

    /// Changes that were applied.
    pub fn changes(&self) -> usize {
        self.applied.len()
    }

    pub(crate) fn leads(&mut self, member: MemberId, term: u64) -> Result<(), Broken> {
        let leader = *self.leaders.entry(term).or_insert(member);
        if leader == member {
            return Ok(());
        }
        Err((Invariant::OneLeaderATerm, format!("{leader} and {member} lead in term {term}")))
    }

    pub(crate) fn decided(&mut self, index: u64, proposal: &Proposal) -> Result<(), Broken> {
        let broken = |other: &Proposal| {
            let what = format!("entry {index} was answered as {proposal:?}, and is {other:?}");
            Err((Invariant::CommittedIsNeverLost, what))
        };
        match self.decided.entry(index).or_insert_with(|| proposal.clone()) {
            other if other != proposal => return broken(other),
            _ => {}
        }
        match self.applied.get(&index) {
            Some((other, _)) if other != proposal => broken(other),
            _ => Ok(()),
        }
    }

    /// An entry was applied. The map after it is there unless more were applied in the same step.
    pub(crate) fn applied(
        &mut self,
        member: MemberId,
        index: u64,
        proposal: &Proposal,
        outcome: &Outcome,
        map: Option<&Map>,
    ) -> Result<(), Broken> {
        let (first, first_sum) = self.applied.entry(index).or_insert_with(|| (proposal.clone(), None));
        let sum = map.map(|map| crc32c::crc32c(&map.encode()));
        let same_map = sum.is_none_or(|sum| *first_sum.get_or_insert(sum) == sum);
        if &*first != proposal || !same_map {
            let what = format!("entry {index} is {first:?} (map {first_sum:x?}), at {member} {proposal:?} ({sum:x?})");
            return Err((Invariant::CommittedIsNeverLost, what));
        }
        if let Some(decided) = self.decided.get(&index)
            && decided != proposal
        {
            let what = format!("entry {index} was answered as {decided:?}, and at {member} is {proposal:?}");
            return Err((Invariant::CommittedIsNeverLost, what));
        }
        if index > self.judged {
            self.judged = index;
            self.judge(index, proposal, outcome)?;
        }
        let Some(map) = map else { return Ok(()) };
        if index == self.judged {
            let shards = map.shards.iter().map(|(id, shard)| (*id, (shard.epoch, shard.primary)));
            if !shards.eq(self.shards.iter().map(|(id, shard)| (*id, *shard))) {
                let what = format!("entries lead to {:?}, the map after {index} has {:?}", self.shards, map.shards);
                return Err((Invariant::OneOwnerAnEpoch, what));
            }
        }
        self.map(member, index, map)
    }

    /// Looks at a map that came whole.
    pub(crate) fn map(&mut self, member: MemberId, applied: u64, map: &Map) -> Result<(), Broken> {
        map.check().map_err(|broken| (Invariant::OneOwnerAnEpoch, format!("the map of {member}: {broken}")))?;
        for (id, shard) in &map.shards {
            if let Some(primary) = shard.primary {
                let owner = *self.owners.entry((*id, shard.epoch)).or_insert(primary);
                if owner != primary {
                    let what = format!("{owner} and {primary} own {id} in epoch {}", shard.epoch);
                    return Err((Invariant::OneOwnerAnEpoch, what));
                }
            }
        }
        let is_back = |(removed, at): &(&MemberId, &u64)| applied >= **at && map.server(**removed).is_some();
        if let Some((back, _)) = self.removed.iter().find(is_back) {
            return Err((Invariant::RemovedNeverActs, format!("{back} was removed, and {member} has it again")));
        }
        Ok(())
    }

    /// What the next entry may have become, by what those before did, and not by what the map says.
    fn judge(&mut self, index: u64, proposal: &Proposal, outcome: &Outcome) -> Result<(), Broken> {
        let Proposal { by, entry } = proposal;
        let has_effect = matches!(outcome, Outcome::Changed | Outcome::Joined(_));
        if has_effect && self.removed.contains_key(by) {
            let what = format!("entry {index} of {by}, which is removed, became {outcome:?}: {entry:?}");
            return Err((Invariant::RemovedNeverActs, what));
        }
        let assumed = match entry {
            Entry::AddCopy { shard, epoch, .. }
            | Entry::RemoveCopy { shard, epoch, .. }
            | Entry::SetInSync { shard, epoch, .. }
            | Entry::SetPrimary { shard, epoch, .. }
            | Entry::Move { shard, epoch, .. } => Some((*shard, *epoch)),
            _ => None,
        };
        if let Some((shard, assumed)) = assumed.filter(|_| has_effect) {
            let now = self.shards.get(&shard).map(|(epoch, _)| *epoch);
            if now != Some(assumed) {
                let what = format!("entry {index} assumed epoch {assumed} of {shard}, changed it in epoch {now:?}");
                return Err((Invariant::OneOwnerAnEpoch, what));
            }
        }
        if has_effect {
            self.follow(entry);
        }
        match (entry, outcome) {
            (Entry::Remove { member, .. }, Outcome::Changed) => {
                self.removed.insert(*member, index);
            }
            (Entry::Join { token, .. }, Outcome::Joined(member)) => {
                let first = *self.spent.entry(*token).or_insert(*member);
                if first != *member {
                    let what = format!("{first} and {member} joined with one token");
                    return Err((Invariant::RemovedNeverActs, what));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Does to shards what an entry does that has an effect.
    fn follow(&mut self, entry: &Entry) {
        let mut begin = |shard: ShardId, primary: Option<MemberId>| {
            let (epoch, owner) = self.shards.entry(shard).or_insert((Epoch(0), None));
            (epoch.0, *owner) = (epoch.0 + 1, primary);
        };
        match entry {
            Entry::Found { with_shard: true, .. } => begin(ShardId(1), Some(MemberId(1))),
            Entry::Deal { primaries } => {
                (1..).zip(primaries).for_each(|(shard, primary)| begin(ShardId(shard), Some(*primary)));
            }
            Entry::SetPrimary { shard, primary, .. } => begin(*shard, *primary),
            Entry::Move { shard, to, .. } => begin(*shard, Some(*to)),
            Entry::Remove { member, .. } => {
                for (epoch, owner) in self.shards.values_mut().filter(|(_, owner)| *owner == Some(*member)) {
                    (epoch.0, *owner) = (epoch.0 + 1, None);
                }
            }
            _ => {}
        }
    }
}
