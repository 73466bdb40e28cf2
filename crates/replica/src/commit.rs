//! Which writes may be acknowledged, and how the in-sync set changes (rules 1, 2 and 4).
//!
//! A write is acknowledged when enough members hold it that any promotion meets one of them: for
//! `quorum` a majority of the set S, and of all copies that there should be as far as S has so many;
//! for `all` all of S. What a promotion counts on is the majority of S alone: it is known from the
//! log, whatever each server takes the number of copies for. Nobody knows for certain
//! which set the log names while a change of it is under way, so a write counts only when it counts
//! in each set that the log may name; and a change is proposed only once all that was promised
//! counts in the new set too.
//!
//! Invariant: for each level, [`Commit::committed`] never falls, and a majority (all, for `all`) of
//! each set T that the log may name holds all of it.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_control::entry::Entry;
use ecotone_control::ids::{Epoch, MemberId, ShardId};
pub use ecotone_control::settings::Level;

use crate::planted::Planted;
use crate::position::Position;

/// The largest set of which any two members are a majority.
const MAX_PAIRED: usize = 3;
/// Changes of one version of the set whose outcome is not known.
pub const MAX_OUTSTANDING: usize = 4;

/// What "has it" means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It is in the kernel's memory.
    Received,
    /// It is synced.
    Synced,
}

/// What the federation asks of its writes. All of it may change at any time, and servers may know
/// different values for a while: no promotion and no lease depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// How many copies a shard should have (R).
    pub copies: usize,
    /// How many must be in sync for `all`.
    pub min_in_sync: usize,
    /// What counts.
    pub durability: Durability,
}

impl Levels {
    /// A majority of all copies: `quorum` is refused while fewer are in sync.
    pub fn quorum(self) -> usize {
        majority(self.copies)
    }

    /// How many of a set of `members` must hold what is acknowledged at `quorum`. Never fewer than a
    /// majority of them, which is what sealing counts on.
    pub fn held_by(self, members: usize) -> usize {
        majority(members).max(self.quorum()).min(members)
    }
}

/// More than half of them.
pub fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// How many members of a set must be sealed before another primary is chosen, so that one of them
/// is among any majority that acknowledged, or promised.
pub fn seals_needed(members: usize) -> usize {
    members.div_ceil(2)
}

/// Why a write cannot be acknowledged at its level, however long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The set is smaller than the level asks for.
    #[error("{in_sync} copies are in sync, and this level needs {needed}")]
    TooFewInSync {
        /// How many there are.
        in_sync: usize,
        /// How many it needs.
        needed: usize,
    },
    /// The leases have ended: another primary may have been chosen.
    #[error("this server has lost touch with the copies of the shard, and may not answer for it")]
    NoLease,
    /// It was sealed, or has handed the shard over.
    #[error("this server is not the primary of the shard any more")]
    NotPrimary,
}

/// Counts who holds what.
#[derive(Clone, Debug)]
pub struct Commit {
    shard: ShardId,
    epoch: Epoch,
    levels: Levels,
    version: u64,
    set: BTreeSet<MemberId>,
    /// Changes that were proposed for this version. The last is proposed again.
    outstanding: Vec<BTreeSet<MemberId>>,
    /// The next change; what it needs is being waited for. It counts as if it were outstanding, or
    /// what it waits for would run ahead of it.
    intended: Option<BTreeSet<MemberId>>,
    held: BTreeMap<MemberId, Position>,
    quorum: Position,
    all: Position,
    planted: Option<Planted>,
}

impl Commit {
    /// Counts for the primary `me` of `epoch`, which opened at `opened`. All that it holds may have
    /// been promised by primaries before it.
    pub fn new(shard: ShardId, epoch: Epoch, opened: Position, levels: Levels) -> Self {
        Self {
            shard,
            epoch,
            levels,
            version: 0,
            set: BTreeSet::new(),
            outstanding: Vec::new(),
            intended: None,
            held: BTreeMap::new(),
            quorum: opened,
            all: opened,
            planted: None,
        }
    }

    #[doc(hidden)]
    pub fn plant(&mut self, planted: Option<Planted>) {
        self.planted = planted;
    }

    /// What writes need from now on. What was acknowledged stays so.
    pub fn set_levels(&mut self, levels: Levels) {
        self.levels = levels;
        self.advance();
    }

    /// What writes need.
    pub fn levels(&self) -> Levels {
        self.levels
    }

    /// The set that the log was last seen to name.
    pub fn set(&self) -> &BTreeSet<MemberId> {
        &self.set
    }

    /// Every set that the log may name, or soon may.
    pub fn sets(&self) -> impl Iterator<Item = &BTreeSet<MemberId>> {
        let early = self.planted == Some(Planted::CountNewSetEarly);
        let newest = self.outstanding.last().or(self.intended.as_ref()).filter(|_| early);
        let old = Some(&self.set).filter(|_| newest.is_none());
        old.into_iter().chain(self.outstanding.iter().chain(&self.intended).filter(move |_| !early)).chain(newest)
    }

    /// The log names `set` in this epoch.
    pub fn applied(&mut self, version: u64, set: &BTreeSet<MemberId>) {
        if version <= self.version {
            return;
        }
        self.version = version;
        self.set.clone_from(set);
        self.outstanding.clear();
        if self.intended.as_ref() == Some(set) {
            self.intended = None;
        }
        self.advance();
    }

    /// `member` holds all up to `position`, in the way that counts.
    pub fn holds(&mut self, member: MemberId, position: Position) {
        let held = self.held.entry(member).or_insert(position);
        *held = (*held).max(position);
        self.advance();
    }

    /// What `member` held no longer counts.
    pub fn forget(&mut self, member: MemberId) {
        self.held.remove(&member);
    }

    /// Up to where `member` is known to hold everything.
    pub fn held(&self, member: MemberId) -> Option<Position> {
        self.held.get(&member).copied()
    }

    /// All that was promised to anybody, at any level beyond `one`.
    pub fn promised(&self) -> Position {
        self.quorum.max(self.all)
    }

    /// What no promotion within the set can lose.
    pub fn safe(&self) -> Position {
        self.quorum
    }

    /// Up to where writes of this level may be acknowledged, and what they wrote shown, as far as
    /// copies are concerned. For [`Level::One`], what `me` holds.
    ///
    /// What was there when the epoch began its primary holds, and whoever wrote it did: in a set of
    /// three that is a majority. In a larger one it may be lost again with these two, so nothing of it
    /// is shown before a majority has come to this epoch.
    ///
    /// # Errors
    /// When the set is too small for it.
    pub fn committed(&self, level: Level, me: MemberId) -> Result<Position, Refusal> {
        let in_sync = self.set.len();
        let (needed, position) = match level {
            Level::One => (0, self.held(me).unwrap_or_default()),
            Level::Quorum => (self.levels.quorum(), self.quorum),
            Level::All => (self.levels.min_in_sync, self.all),
        };
        let is_shown = level == Level::One || in_sync <= MAX_PAIRED || position.epoch == self.epoch;
        if in_sync < needed {
            return Err(Refusal::TooFewInSync { in_sync, needed });
        }
        Ok(if is_shown { position } else { Position::default() })
    }

    /// Asks for another set, or takes back what was asked for and not proposed yet. It holds the
    /// primary. What was proposed cannot be taken back: it is proposed until the log names another
    /// version.
    pub fn intend(&mut self, set: BTreeSet<MemberId>) {
        let is_asked = set == self.set || self.outstanding.last() == Some(&set);
        let is_new = !is_asked && self.outstanding.len() < MAX_OUTSTANDING;
        self.intended = Some(set).filter(|_| is_new);
        self.advance();
    }

    /// The change to propose, now and again until the log names another version of the set.
    pub fn proposal(&mut self) -> Option<Entry> {
        if let Some(set) = self.intended.take_if(|set| {
            let blindly = self.planted == Some(Planted::ShrinkBlindly);
            blindly
                || greatest(&self.held, set, self.levels.held_by(set.len())) >= self.quorum
                    && greatest(&self.held, set, set.len()) >= self.all
        }) {
            self.outstanding.push(set);
        }
        let in_sync = self.outstanding.last()?.clone();
        Some(Entry::SetInSync { shard: self.shard, epoch: self.epoch, set_version: self.version, in_sync })
    }

    fn advance(&mut self) {
        let by_quorum = self.sets().map(|set| greatest(&self.held, set, self.levels.held_by(set.len()))).min();
        let by_all = self.sets().map(|set| greatest(&self.held, set, set.len())).min();
        self.quorum = self.quorum.max(by_quorum.unwrap_or_default());
        self.all = self.all.max(by_all.unwrap_or_default());
    }
}

/// The greatest position that `count` members of `set` hold, or all of it if they are fewer.
fn greatest(held: &BTreeMap<MemberId, Position>, set: &BTreeSet<MemberId>, count: usize) -> Position {
    let mut positions: Vec<Position> = set.iter().map(|member| held.get(member).copied().unwrap_or_default()).collect();
    positions.sort_unstable();
    let at = positions.len().saturating_sub(count.max(1));
    positions.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ME: MemberId = MemberId(1);
    const LEVELS: Levels = Levels { copies: 3, min_in_sync: 2, durability: Durability::Received };

    fn at(number: u64) -> Position {
        Position { epoch: Epoch(2), number }
    }

    fn set(members: &[u64]) -> BTreeSet<MemberId> {
        members.iter().map(|member| MemberId(*member)).collect()
    }

    fn commit(members: &[u64]) -> Commit {
        let mut commit = Commit::new(ShardId(1), Epoch(2), Position { epoch: Epoch(1), number: 9 }, LEVELS);
        commit.applied(1, &set(members));
        commit
    }

    fn holds(commit: &mut Commit, held: &[(u64, u64)]) {
        held.iter().for_each(|(member, number)| commit.holds(MemberId(*member), at(*number)));
    }

    #[test]
    fn levels_count_members() {
        let mut commit = commit(&[1, 2, 3]);
        let opened = Position { epoch: Epoch(1), number: 9 };
        assert_eq!(commit.committed(Level::Quorum, ME), Ok(opened), "what was there may have been promised");
        holds(&mut commit, &[(1, 7), (2, 5), (3, 2), (4, 6)]);
        assert_eq!(commit.committed(Level::One, ME), Ok(at(7)));
        assert_eq!(commit.committed(Level::Quorum, ME), Ok(at(5)), "4 is no member");
        assert_eq!(commit.committed(Level::All, ME), Ok(at(2)));
    }

    #[test]
    fn a_large_set_shows_what_was_there_once_a_majority_has_come() {
        let mut commit = commit(&[1, 2, 3, 4, 5]);
        holds(&mut commit, &[(1, 0), (2, 0)]);
        // 1 and who wrote it may be the only ones that ever had it.
        assert_eq!(commit.committed(Level::Quorum, ME), Ok(Position::default()));
        assert_eq!(commit.committed(Level::One, ME), Ok(at(0)));
        holds(&mut commit, &[(3, 0)]);
        assert_eq!(commit.committed(Level::Quorum, ME), Ok(at(0)));
        assert_eq!(commit.committed(Level::All, ME), Ok(Position::default()));
        assert_eq!(commit.promised(), at(0), "but all of it counts, for who leaves and joins");
    }

    #[test]
    fn a_small_set_refuses() {
        let mut commit = commit(&[1]);
        holds(&mut commit, &[(1, 7)]);
        let refusal = Err(Refusal::TooFewInSync { in_sync: 1, needed: 2 });
        assert_eq!(commit.committed(Level::Quorum, ME), refusal);
        assert_eq!(commit.committed(Level::All, ME), refusal);
        assert_eq!(commit.committed(Level::One, ME), Ok(at(7)));
    }

    #[test]
    fn a_member_leaves_only_when_others_hold_what_it_did() {
        let mut commit = commit(&[1, 2, 3]);
        holds(&mut commit, &[(1, 7), (2, 7), (3, 2)]);
        commit.intend(set(&[1, 3]));
        assert_eq!(commit.proposal(), None, "3 lacks what 1 and 2 acknowledged");
        holds(&mut commit, &[(1, 9), (2, 9)]);
        assert_eq!(commit.committed(Level::Quorum, ME), Ok(at(7)), "or the change would never be possible");
        holds(&mut commit, &[(3, 7)]);
        let entry = |in_sync| Entry::SetInSync { shard: ShardId(1), epoch: Epoch(2), set_version: 1, in_sync };
        assert_eq!(commit.proposal(), Some(entry(set(&[1, 3]))));
        assert_eq!(commit.proposal(), Some(entry(set(&[1, 3]))), "until the log has said something");
        holds(&mut commit, &[(3, 9)]);
        assert_eq!(commit.committed(Level::All, ME), Ok(at(9)));
        commit.applied(2, &set(&[1, 3]));
        holds(&mut commit, &[(1, 12), (3, 12)]);
        assert_eq!(commit.committed(Level::All, ME), Ok(at(12)), "2 is not waited for any more");
        assert_eq!(commit.proposal(), None);
    }

    #[test]
    fn nothing_counts_by_a_set_that_is_not_applied() {
        let mut commit = commit(&[1, 2, 3]);
        holds(&mut commit, &[(1, 5), (2, 5), (3, 5)]);
        commit.intend(set(&[1]));
        assert!(commit.proposal().is_some());
        holds(&mut commit, &[(1, 8)]);
        assert_eq!(commit.committed(Level::Quorum, ME), Ok(at(5)));
        assert_eq!(commit.committed(Level::All, ME), Ok(at(5)));
    }

    /// Any two sets that the log may name: what counts is met by the members that a promotion in
    /// either would seal, whichever they are.
    fn is_met(commit: &Commit) -> Result<(), TestCaseError> {
        let held = |member: &MemberId| commit.held(*member).unwrap_or_default();
        // What is intended only is not proposed: the log cannot name it.
        for set in [&commit.set].into_iter().chain(&commit.outstanding) {
            let needed = seals_needed(set.len());
            let mut positions: Vec<Position> = set.iter().map(held).collect();
            positions.sort_unstable();
            // The worst choice: those that hold least.
            let best = positions[needed - 1];
            let opened = Position { epoch: Epoch(1), number: 9 };
            prop_assert!(commit.quorum <= best.max(opened), "{commit:?}");
            prop_assert!(commit.all <= positions[0].max(opened), "{commit:?}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_sealed_members_hold_what_was_promised(
            steps in prop::collection::vec((0..4_u8, 1..5_u64, 1..30_u64, 0..16_u8), 1..60),
        ) {
            let mut commit = commit(&[1, 2, 3, 4]);
            let mut version = 1;
            for (step, member, number, mask) in steps {
                let members = (1..5).filter(|member| *member == 1 || mask & (1 << (member - 1)) != 0);
                match step {
                    0 | 1 => commit.holds(MemberId(member), at(number)),
                    2 => commit.intend(members.map(MemberId).collect()),
                    _ => {
                        // The log applies one of what was proposed, or nothing.
                        let newest = commit.proposal();
                        let any = commit.outstanding.get(member as usize % commit.outstanding.len().max(1)).cloned();
                        prop_assert_eq!(newest.is_some(), any.is_some());
                        if let Some(in_sync) = any.filter(|_| mask % 2 == 0) {
                            version += 1;
                            commit.applied(version, &in_sync);
                        }
                    }
                }
                is_met(&commit)?;
            }
        }
    }
}
