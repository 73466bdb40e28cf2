//! Which server becomes the primary of a shard (rules 2, 3, 5 and 8): what the leader of the control
//! plane decides.
//!
//! 1. A primary is **suspected** when it has not said for a while that it serves with a lease.
//! 2. The log is asked to name no primary, in the next epoch. From then on nobody changes the
//!    in-sync set S but the leader, so that it is known of which set enough must be sealed.
//! 3. Members of S are asked to **seal** that epoch. Each waits for the end of what it promised, syncs,
//!    and then reports how far it is. With reports of half of S, rounded up, from members that are
//!    whole, one of them is among any majority of S, and so holds all that was acknowledged.
//! 4. The log with the greatest position among them is **verified**, and repaired if it must be.
//! 5. If fewer are sealed than a lease needs, the set becomes this copy alone: it holds all that was
//!    promised, and need not wait until it is known who is gone.
//! 6. It is named, in the next epoch.
//!
//! Everything may be asked again, by another leader too: what is decided is in the log, what is
//! sealed at the members. [`need`] is a function of the map and of what was reported; [`Promotions`]
//! remembers the reports.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_control::entry::Entry;
use ecotone_control::ids::{Epoch, MemberId, ShardId};
use ecotone_control::map::{Map, Shard};

use crate::commit::{majority, seals_needed};
use crate::planted::Planted;
use crate::position::{Incarnation, Position};

/// After so long it is tried again to repair what could not be repaired: who was asked for it may have
/// been busy, or not there.
pub const REPAIR_AGAIN_US: u64 = 5_000_000;

/// What a sealed copy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealReport {
    /// The shard.
    pub shard: ShardId,
    /// Whose copy.
    pub member: MemberId,
    /// Up to which epoch it is sealed.
    pub epoch: Epoch,
    /// Which copy.
    pub incarnation: Incarnation,
    /// How far it is, durably.
    pub position: Position,
    /// It holds all that it acknowledged.
    pub is_whole: bool,
}

/// What a server says of a copy, with each report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// It is the primary.
    Primary {
        /// In this epoch.
        epoch: Epoch,
        /// Enough members have promised.
        has_lease: bool,
    },
    /// It is not.
    Replica,
}

/// What is known about a shard.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The primary has not said for too long that it serves.
    pub is_suspected: bool,
    /// What sealed members reported, in the epoch of the map.
    pub sealed: BTreeMap<MemberId, SealReport>,
    /// Whose logs were verified since, and whether they are undamaged.
    pub verified: BTreeMap<MemberId, bool>,
    /// Whose logs could not be repaired.
    pub irreparable: BTreeSet<MemberId>,
    /// Who was named, and never served. What they wrote then nobody acknowledged beyond `one`, or
    /// others hold it, so others are named instead, if enough of these are sealed and whole.
    pub set_aside: BTreeSet<MemberId>,
    /// Others than these have had the time to be sealed.
    pub has_waited: bool,
}

/// What a shard needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// No primary, before another one.
    Freeze,
    /// Members are to be sealed.
    Seal {
        /// Who has not reported.
        members: Vec<MemberId>,
        /// How many whole members must still report.
        missing: usize,
        /// All have reported, and too few are whole: one of the others, or force.
        needs_force: bool,
    },
    /// Its log is to be verified.
    Verify(MemberId),
    /// Its log is damaged, and to be repaired from others that are sealed.
    Repair(MemberId, Vec<MemberId>),
    /// It holds all that was promised, and too few others are there to give it a lease: it is the
    /// only one in sync, until others have come back to it.
    Shrink(MemberId),
    /// It becomes the primary.
    Promote(MemberId),
    /// The best logs are damaged and cannot be repaired: force, and lose what is behind the damage.
    Damaged(Vec<MemberId>),
}

/// What `shard` needs.
pub fn need(shard: &Shard, facts: &Facts) -> Need {
    need_of(shard, facts, seals_needed(shard.in_sync.len()))
}

fn need_of(shard: &Shard, facts: &Facts, needed: usize) -> Need {
    if shard.primary.is_some() {
        return if facts.is_suspected { Need::Freeze } else { Need::Nothing };
    }
    let is_sealed =
        |(member, report): &(&MemberId, &SealReport)| shard.in_sync.contains(member) && report.epoch >= shard.epoch;
    let sealed: Vec<&SealReport> = facts.sealed.iter().filter(is_sealed).map(|(_, report)| report).collect();
    let mut whole: Vec<&SealReport> = sealed.iter().copied().filter(|report| report.is_whole).collect();
    let all_whole = whole.len();
    let others = whole.iter().filter(|report| !facts.set_aside.contains(&report.member)).count();
    let may_come = sealed.len() < shard.in_sync.len() && !facts.has_waited;
    if others >= needed || may_come {
        whole.retain(|report| !facts.set_aside.contains(&report.member));
    }
    if whole.len() < needed {
        let has_reported = |member: &MemberId| sealed.iter().any(|report| report.member == *member);
        let members: Vec<MemberId> = shard.in_sync.iter().copied().filter(|member| !has_reported(member)).collect();
        let missing = needed - whole.len();
        let needs_force = members.len() + all_whole < needed;
        return Need::Seal { members, missing, needs_force };
    }
    let Some(greatest) = whole.iter().map(|report| report.position).max() else {
        return Need::Seal { members: Vec::new(), missing: 1, needs_force: true };
    };
    let best: Vec<MemberId> =
        whole.iter().filter(|report| report.position == greatest).map(|report| report.member).collect();
    if let Some(member) = best.iter().find(|member| facts.verified.get(member) == Some(&true)) {
        let can_lease = sealed.len() >= majority(shard.in_sync.len());
        return if can_lease { Need::Promote(*member) } else { Need::Shrink(*member) };
    }
    if let Some(member) = best.iter().find(|member| !facts.verified.contains_key(member)) {
        return Need::Verify(*member);
    }
    match best.iter().find(|member| !facts.irreparable.contains(member)) {
        Some(member) => {
            let others = whole.iter().map(|report| report.member).filter(|other| other != member).collect();
            Need::Repair(*member, others)
        }
        None => Need::Damaged(best),
    }
}

/// The next entry on the way to `member` as primary by force, whatever is lost. None when it is.
/// Its copy is to be told, too ([`crate::copy::ShardCopy::force`]). A primary that nobody reaches
/// goes on for as long as promises last, and without end if it is alone in the set: whoever forces
/// must know that it is stopped.
pub fn forced(id: ShardId, shard: &Shard, member: MemberId) -> Option<Entry> {
    if shard.primary == Some(member) {
        return None;
    }
    let (epoch, in_sync) = (shard.epoch, BTreeSet::from([member]));
    Some(if shard.primary.is_some() {
        Entry::SetPrimary { shard: id, epoch, primary: None }
    } else if shard.in_sync != in_sync {
        Entry::SetInSync { shard: id, epoch, set_version: shard.set_version, in_sync }
    } else {
        Entry::SetPrimary { shard: id, epoch, primary: Some(member) }
    })
}

/// When the leader acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionSettings {
    /// A primary that does not say that it serves for so long is suspected. Longer than a primary
    /// waits for members before they leave the set, or it has no time to go on without them.
    pub suspect_after_us: u64,
    /// Between two questions to the same member.
    pub ask_every_us: u64,
    /// How long others are waited for instead of who was named and never served. Longer than members
    /// wait for the end of what they promised.
    pub wait_for_others_us: u64,
}

/// What the leader is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderCommand {
    /// Propose it.
    Propose(Entry),
    /// Ask a server to seal its copy up to an epoch.
    Seal(MemberId, ShardId, Epoch),
    /// Ask it to verify all checksums of its log, then `verified`.
    Verify(MemberId, ShardId),
    /// Ask it to get what is damaged from the others, then `repaired`.
    Repair(MemberId, ShardId, Vec<MemberId>),
    /// People must know: nobody can be promoted without force, or as long as nobody comes back.
    Stuck(ShardId, Need),
}

#[derive(Clone, Debug, Default)]
struct Attempt {
    epoch: Epoch,
    /// Who is named in it.
    primary: Option<MemberId>,
    has_served: bool,
    served_us: u64,
    asked_us: Option<u64>,
    /// How many repairs have failed: each is tried from another one.
    failed_repairs: usize,
    /// Since when all that could be named is damaged.
    damaged_us: Option<u64>,
    facts: Facts,
}

impl Attempt {
    /// Another epoch begins.
    fn next(&self, shard: &Shard, now_us: u64) -> Self {
        let mut set_aside = self.facts.set_aside.clone();
        if self.has_served {
            set_aside.clear();
        }
        set_aside.extend(self.primary.filter(|_| !self.has_served));
        let facts = Facts { set_aside, ..Facts::default() };
        Self { epoch: shard.epoch, primary: shard.primary, served_us: now_us, facts, ..Self::default() }
    }
}

/// Remembers reports, for as long as a server leads.
#[derive(Clone, Debug)]
pub struct Promotions {
    settings: PromotionSettings,
    shards: BTreeMap<ShardId, Attempt>,
    planted: Option<Planted>,
}

impl Promotions {
    /// A leader that knows nothing yet.
    pub fn new(settings: PromotionSettings) -> Self {
        Self { settings, shards: BTreeMap::new(), planted: None }
    }

    #[doc(hidden)]
    pub fn plant(&mut self, planted: Option<Planted>) {
        self.planted = planted;
    }

    /// A server says what it serves.
    pub fn reported(&mut self, shard: ShardId, serving: Serving, now_us: u64) {
        if let Serving::Primary { epoch, has_lease: true } = serving
            && let Some(attempt) = self.shards.get_mut(&shard).filter(|attempt| attempt.epoch == epoch)
        {
            attempt.served_us = now_us;
            attempt.has_served = true;
        }
    }

    /// A server has sealed its copy.
    pub fn sealed(&mut self, report: SealReport) {
        if let Some(attempt) = self.shards.get_mut(&report.shard).filter(|attempt| attempt.epoch <= report.epoch) {
            let before = attempt.facts.sealed.insert(report.member, report);
            // It was started anew, or repaired: what was verified was something else.
            if before.is_some_and(|before| before != report) {
                attempt.facts.verified.remove(&report.member);
            }
        }
    }

    /// A server has verified the log of its copy.
    pub fn verified(&mut self, shard: ShardId, member: MemberId, is_sound: bool) {
        if let Some(attempt) = self.shards.get_mut(&shard).filter(|attempt| attempt.facts.sealed.contains_key(&member))
        {
            attempt.facts.verified.insert(member, is_sound);
            attempt.asked_us = None;
        }
    }

    /// A server has repaired its log, or could not.
    pub fn repaired(&mut self, shard: ShardId, member: MemberId, is_repaired: bool) {
        let Some(attempt) = self.shards.get_mut(&shard) else { return };
        attempt.asked_us = None;
        if is_repaired {
            attempt.facts.verified.remove(&member);
        } else {
            attempt.facts.irreparable.insert(member);
            attempt.failed_repairs += 1;
        }
    }

    /// Time passes, or something was reported.
    pub fn tick(&mut self, map: &Map, now_us: u64) -> Vec<LeaderCommand> {
        self.shards.retain(|shard, _| map.shards.contains_key(shard));
        let mut commands = Vec::new();
        for (id, shard) in &map.shards {
            let attempt = self.shards.entry(*id).or_insert_with(|| Attempt::default().next(shard, now_us));
            if attempt.epoch != shard.epoch {
                *attempt = attempt.next(shard, now_us);
            }
            attempt.facts.has_waited = now_us >= attempt.served_us + self.settings.wait_for_others_us;
            attempt.facts.is_suspected = now_us >= attempt.served_us + self.settings.suspect_after_us;
            let need = self.need(shard, *id);
            self.ask(*id, shard, need, now_us, &mut commands);
        }
        commands
    }

    fn need(&self, shard: &Shard, id: ShardId) -> Need {
        let facts = &self.shards[&id].facts;
        match self.planted {
            Some(Planted::PromoteUnsealed) if shard.primary.is_none() => {
                let first =
                    facts.sealed.values().find(|report| report.is_whole && shard.in_sync.contains(&report.member));
                first.map_or_else(
                    || Need::Seal { members: shard.in_sync.iter().copied().collect(), missing: 1, needs_force: false },
                    |report| Need::Promote(report.member),
                )
            }
            Some(Planted::SealEveryone) => need_of(shard, facts, shard.in_sync.len()),
            Some(Planted::PromoteUnverified) => match need(shard, facts) {
                Need::Verify(member) => Need::Promote(member),
                other => other,
            },
            _ => need(shard, facts),
        }
    }

    fn ask(&mut self, id: ShardId, shard: &Shard, need: Need, now_us: u64, commands: &mut Vec<LeaderCommand>) {
        let Some(attempt) = self.shards.get_mut(&id) else { return };
        let is_due = attempt.asked_us.is_none_or(|asked_us| now_us >= asked_us + self.settings.ask_every_us);
        if need == Need::Nothing || !is_due {
            return;
        }
        attempt.asked_us = Some(now_us);
        let epoch = shard.epoch;
        match need {
            Need::Nothing => {}
            Need::Freeze => {
                commands.push(LeaderCommand::Propose(Entry::SetPrimary { shard: id, epoch, primary: None }))
            }
            Need::Seal { ref members, needs_force, .. } => {
                // Who reported that it is not whole may have been repaired since.
                let unfit = attempt.facts.sealed.values().filter(|report| !report.is_whole);
                let again = unfit.map(|report| report.member);
                commands
                    .extend(members.iter().copied().chain(again).map(|member| LeaderCommand::Seal(member, id, epoch)));
                let is_late = now_us >= attempt.served_us + self.settings.suspect_after_us;
                if needs_force || is_late {
                    commands.push(LeaderCommand::Stuck(id, need));
                }
            }
            Need::Verify(member) => commands.push(LeaderCommand::Verify(member, id)),
            Need::Repair(member, mut from) => {
                let first = attempt.failed_repairs % from.len().max(1);
                from.rotate_left(first);
                commands.push(LeaderCommand::Repair(member, id, from));
            }
            Need::Shrink(member) => {
                let (set_version, in_sync) = (shard.set_version, BTreeSet::from([member]));
                commands.push(LeaderCommand::Propose(Entry::SetInSync { shard: id, epoch, set_version, in_sync }));
            }
            Need::Promote(member) => {
                let entry = Entry::SetPrimary { shard: id, epoch, primary: Some(member) };
                commands.push(LeaderCommand::Propose(entry));
            }
            Need::Damaged(_) => {
                let damaged_us = *attempt.damaged_us.get_or_insert(now_us);
                if now_us >= damaged_us + REPAIR_AGAIN_US {
                    attempt.damaged_us = None;
                    attempt.facts.irreparable.clear();
                }
                commands.push(LeaderCommand::Stuck(id, need));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ecotone_control::ids::DirectoryId;

    use super::*;
    use crate::position::BootId;

    fn shard(in_sync: &[u64], primary: Option<u64>) -> Shard {
        let in_sync: BTreeSet<MemberId> = in_sync.iter().map(|member| MemberId(*member)).collect();
        let copies = in_sync.clone();
        let primary = primary.map(MemberId);
        Shard { slots: Vec::new(), copies, in_sync, primary, epoch: Epoch(4), set_version: 7 }
    }

    fn report(member: u64, (epoch, number): (u64, u64), is_whole: bool) -> (MemberId, SealReport) {
        let incarnation = Incarnation { directory: DirectoryId([0; 16]), boot: BootId([0; 16]) };
        let position = Position { epoch: Epoch(epoch), number };
        let member = MemberId(member);
        (member, SealReport { shard: ShardId(1), member, epoch: Epoch(4), incarnation, position, is_whole })
    }

    fn facts(sealed: &[(MemberId, SealReport)]) -> Facts {
        Facts { sealed: sealed.iter().copied().collect(), ..Facts::default() }
    }

    #[test]
    fn a_suspected_primary_is_frozen_first() {
        let calm = Facts::default();
        assert_eq!(need(&shard(&[1, 2, 3], Some(1)), &calm), Need::Nothing);
        let suspected = Facts { is_suspected: true, ..Facts::default() };
        assert_eq!(need(&shard(&[1, 2, 3], Some(1)), &suspected), Need::Freeze);
    }

    #[test]
    fn enough_whole_members_are_sealed() {
        let state = shard(&[1, 2, 3], None);
        let seal = |members: &[u64], missing, needs_force| Need::Seal {
            members: members.iter().map(|member| MemberId(*member)).collect(),
            missing,
            needs_force,
        };
        assert_eq!(need(&state, &Facts::default()), seal(&[1, 2, 3], 2, false));
        let one = [report(2, (3, 5), true)];
        assert_eq!(need(&state, &facts(&one)), seal(&[1, 3], 1, false));
        let not_whole = [report(2, (3, 5), true), report(3, (3, 9), false)];
        assert_eq!(need(&state, &facts(&not_whole)), seal(&[1], 1, false));
        let lost = [report(1, (3, 9), false), report(2, (3, 5), true), report(3, (3, 9), false)];
        assert_eq!(need(&state, &facts(&lost)), seal(&[], 1, true));
        let foreign = [report(2, (3, 5), true), report(9, (3, 9), true)];
        assert_eq!(need(&state, &facts(&foreign)), seal(&[1, 3], 1, false), "9 is no member");
        let (member, old) = report(3, (3, 9), true);
        let old = [report(2, (3, 5), true), (member, SealReport { epoch: Epoch(3), ..old })];
        assert_eq!(need(&state, &facts(&old)), seal(&[1, 3], 1, false), "sealed in an earlier epoch only");
    }

    #[test]
    fn the_greatest_position_is_verified_and_named() {
        let state = shard(&[1, 2, 3], None);
        // An epoch counts for more than a number.
        let mut facts = facts(&[report(2, (3, 5), true), report(3, (2, 900), true)]);
        assert_eq!(need(&state, &facts), Need::Verify(MemberId(2)));
        facts.verified.insert(MemberId(3), true);
        assert_eq!(need(&state, &facts), Need::Verify(MemberId(2)));
        facts.verified.insert(MemberId(2), true);
        assert_eq!(need(&state, &facts), Need::Promote(MemberId(2)));
    }

    #[test]
    fn a_damaged_log_is_repaired_and_never_passed_over() {
        let state = shard(&[1, 2, 3], None);
        let mut facts = facts(&[report(2, (3, 5), true), report(3, (3, 4), true)]);
        facts.verified.insert(MemberId(2), false);
        assert_eq!(need(&state, &facts), Need::Repair(MemberId(2), vec![MemberId(3)]));
        facts.irreparable.insert(MemberId(2));
        assert_eq!(need(&state, &facts), Need::Damaged(vec![MemberId(2)]), "3 has less");
        facts.sealed.extend([report(1, (3, 5), true)]);
        assert_eq!(need(&state, &facts), Need::Verify(MemberId(1)), "1 has as much");
    }

    #[test]
    fn a_repair_is_tried_from_others_and_again() {
        let settings = PromotionSettings { suspect_after_us: 600, ask_every_us: 1, wait_for_others_us: 2_000 };
        let (id, best) = (ShardId(1), MemberId(2));
        let mut promotions = Promotions::new(settings);
        let mut map = Map::new(ecotone_control::ids::FederationId([0; 8]));
        map.shards.insert(id, shard(&[1, 2, 3], None));
        promotions.tick(&map, 0);
        for (member, number) in [(1, 4), (2, 5), (3, 4)] {
            promotions.sealed(report(member, (3, number), true).1);
        }
        promotions.verified(id, best, false);
        let others = [MemberId(1), MemberId(3)];
        assert_eq!(promotions.tick(&map, 10), [LeaderCommand::Repair(best, id, others.to_vec())]);
        promotions.repaired(id, best, false);
        let stuck = [LeaderCommand::Stuck(id, Need::Damaged(vec![best]))];
        assert_eq!(promotions.tick(&map, 20), stuck);
        assert_eq!(promotions.tick(&map, 20 + REPAIR_AGAIN_US), stuck);
        let again = promotions.tick(&map, 30 + REPAIR_AGAIN_US);
        assert_eq!(again, [LeaderCommand::Repair(best, id, vec![others[1], others[0]])]);
    }

    #[test]
    fn a_lone_survivor_becomes_the_set() {
        let mut facts = facts(&[report(2, (3, 5), true)]);
        facts.verified.insert(MemberId(2), true);
        assert_eq!(need(&shard(&[1, 2], None), &facts), Need::Shrink(MemberId(2)));
        assert_eq!(need(&shard(&[2], None), &facts), Need::Promote(MemberId(2)));
    }

    #[test]
    fn who_was_named_and_never_served_is_not_named_again_while_others_are_whole() {
        let settings = PromotionSettings { suspect_after_us: 600, ask_every_us: 1, wait_for_others_us: 2_000 };
        let id = ShardId(1);
        for served in [false, true] {
            let mut promotions = Promotions::new(settings);
            let mut map = Map::new(ecotone_control::ids::FederationId([0; 8]));
            let mut at = |promotions: &mut Promotions, state: Shard, now_us: u64| {
                map.shards.insert(id, state);
                promotions.tick(&map, now_us)
            };
            let mut state = shard(&[2, 3], Some(2));
            at(&mut promotions, state.clone(), 0);
            if served {
                promotions.reported(id, Serving::Primary { epoch: state.epoch, has_lease: true }, 0);
            }
            (state.epoch, state.primary) = (Epoch(5), None);
            at(&mut promotions, state.clone(), 1_000);
            // It has written its opening, and reports first, as nobody waits for its promises.
            let sealed = |member, at| SealReport { epoch: Epoch(5), ..report(member, at, true).1 };
            promotions.sealed(sealed(2, (4, 9)));
            let asked = |commands: Vec<LeaderCommand>| {
                let ask = |command| match command {
                    LeaderCommand::Verify(member, _) => Some(member.0),
                    _ => None,
                };
                commands.into_iter().find_map(ask)
            };
            let mut verified = |promotions: &mut Promotions, now_us| asked(at(promotions, state.clone(), now_us));
            assert_eq!(verified(&mut promotions, 1_100), served.then_some(2), "it may be all that there is");
            let mut alone = promotions.clone();
            assert_eq!(verified(&mut alone, 3_100), Some(2), "and is taken if nobody else comes");
            promotions.sealed(sealed(3, (4, 0)));
            assert_eq!(verified(&mut promotions, 1_700), Some(if served { 2 } else { 3 }));
        }
    }

    #[test]
    fn who_never_served_is_named_again_where_nobody_else_is_whole() {
        let state = shard(&[2, 3], None);
        let set_aside = BTreeSet::from([MemberId(2)]);
        let known = Facts { set_aside, ..facts(&[report(2, (4, 9), true), report(3, (4, 0), false)]) };
        assert_eq!(need(&state, &known), Need::Verify(MemberId(2)));
    }

    #[test]
    fn force_goes_step_by_step() {
        let id = ShardId(1);
        let freeze = Entry::SetPrimary { shard: id, epoch: Epoch(4), primary: None };
        assert_eq!(forced(id, &shard(&[1, 2], Some(1)), MemberId(3)), Some(freeze));
        let in_sync = BTreeSet::from([MemberId(3)]);
        let alone = Entry::SetInSync { shard: id, epoch: Epoch(4), set_version: 7, in_sync };
        assert_eq!(forced(id, &shard(&[1, 2], None), MemberId(3)), Some(alone));
        let name = Entry::SetPrimary { shard: id, epoch: Epoch(4), primary: Some(MemberId(3)) };
        assert_eq!(forced(id, &shard(&[3], None), MemberId(3)), Some(name));
        assert_eq!(forced(id, &shard(&[3], Some(3)), MemberId(3)), None);
    }
}
