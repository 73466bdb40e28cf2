//! What must hold whatever happens. Each invariant has a name, and a file of tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ecotone_control::ids::{Epoch, MemberId};
use ecotone_replica::commit::Level;
use ecotone_replica::position::Position;

/// The invariants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// What was acknowledged at `quorum` or `all` is held by every primary that is opened later
    /// without force; what was acknowledged at `one` is lost by a change of the primary only.
    AcknowledgedIsNeverLost,
    /// One server acknowledges in an epoch.
    OnePrimaryAnEpoch,
    /// A read at a primary shows all that was acknowledged, or read, before it began; one at a
    /// replica all that was there as long before as it says.
    NoStaleRead,
    /// The clock by which keys expire never goes back.
    ClockNeverGoesBack,
    /// What a copy said is synced, a loss of power does not take.
    SyncedIsKept,
    /// Once faults end, somebody serves, and all copies are in sync and the same, soon.
    CopiesConverge,
    /// A store that stands still is no failure of its server.
    NoNeedlessFailover,
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

pub(crate) type Broken = (Invariant, String);

/// What a client was told.
#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    value: u64,
    key: u64,
    level: Level,
    position: Position,
    at_us: u64,
}

/// What a read may not be older than.
#[derive(Clone, Copy, Debug, Default)]
pub struct Floor {
    pub position: Position,
    pub clock_ms: u64,
    /// Force makes another history.
    histories: u64,
}

/// Watches all servers and clients at once, which none of them can.
#[derive(Debug, Default)]
pub struct Check {
    acknowledged: Vec<Acknowledged>,
    primaries: BTreeMap<Epoch, (MemberId, u64)>,
    shown: BTreeMap<u64, Position>,
    clock_ms: u64,
    synced: BTreeMap<MemberId, Position>,
    histories: u64,
    /// Acknowledgements, in all.
    pub writes: u64,
    /// Those that were lost as their level allows.
    pub lost_at_one: u64,
    /// Those that force has lost.
    pub lost_by_force: u64,
}

impl Check {
    /// A client is told that its write is done; `process` numbers the processes of a server.
    pub(crate) fn acknowledged(
        &mut self,
        (member, process, epoch): (MemberId, u64, Epoch),
        (key, value): (u64, u64),
        level: Level,
        position: Position,
        at_us: u64,
    ) -> Result<(), Broken> {
        let first = *self.primaries.entry(epoch).or_insert((member, process));
        if first != (member, process) {
            let what = format!("in epoch {epoch} {} acknowledged, and {member} does", first.0);
            return Err((Invariant::OnePrimaryAnEpoch, what));
        }
        self.writes += 1;
        self.acknowledged.push(Acknowledged { value, key, level, position, at_us });
        if level != Level::One {
            let shown = self.shown.entry(key).or_default();
            *shown = (*shown).max(position);
        }
        Ok(())
    }

    /// What a read of `key` that begins now may not be older than.
    pub(crate) fn floor(&self, key: u64) -> Floor {
        let position = self.shown.get(&key).copied().unwrap_or_default();
        Floor { position, clock_ms: self.clock_ms, histories: self.histories }
    }

    /// A primary answers a read.
    pub(crate) fn read(
        &mut self,
        member: MemberId,
        key: u64,
        level: Level,
        (found, clock_ms): (Position, u64),
        floor: Floor,
    ) -> Result<(), Broken> {
        if floor.histories != self.histories {
            return Ok(());
        }
        if found < floor.position {
            let what = format!("{member} shows {found:?} of key {key}, and {:?} was there before", floor.position);
            return Err((Invariant::NoStaleRead, what));
        }
        if clock_ms < floor.clock_ms {
            let what = format!("{member} shows {clock_ms} ms, and {} ms were shown before", floor.clock_ms);
            return Err((Invariant::ClockNeverGoesBack, what));
        }
        self.clock_ms = self.clock_ms.max(clock_ms);
        if level != Level::One {
            let shown = self.shown.entry(key).or_default();
            *shown = (*shown).max(found);
        }
        Ok(())
    }

    /// A replica answers a read, and says that what it shows is not older than `as_of_us`.
    pub(crate) fn replica_read(
        &self,
        member: MemberId,
        key: u64,
        found: Position,
        as_of_us: u64,
    ) -> Result<(), Broken> {
        let mut there = self.acknowledged.iter().filter(|write| {
            write.key == key && write.level != Level::One && write.at_us < as_of_us && write.position > found
        });
        let Some(missed) = there.next_back() else { return Ok(()) };
        let what = format!("{member} shows {found:?} of key {key} as of {as_of_us} us, and lacks {missed:?}");
        Err((Invariant::NoStaleRead, what))
    }

    /// A primary is opened with `values`.
    pub(crate) fn opened(
        &mut self,
        member: MemberId,
        epoch: Epoch,
        values: &BTreeSet<u64>,
        by_force: bool,
    ) -> Result<(), Broken> {
        let before = self.acknowledged.len() as u64;
        if by_force {
            self.acknowledged.retain(|write| values.contains(&write.value));
            self.lost_by_force += before - self.acknowledged.len() as u64;
            self.shown.clear();
            self.clock_ms = 0;
            self.histories += 1;
            return Ok(());
        }
        let lost = |write: &&Acknowledged| write.level != Level::One && !values.contains(&write.value);
        if let Some(lost) = self.acknowledged.iter().find(lost) {
            let what = format!("{member} is opened in epoch {epoch} without {lost:?}");
            return Err((Invariant::AcknowledgedIsNeverLost, what));
        }
        self.acknowledged.retain(|write| values.contains(&write.value));
        self.lost_at_one += before - self.acknowledged.len() as u64;
        Ok(())
    }

    /// What the only primary holds at the end.
    pub(crate) fn ended(&self, member: MemberId, values: &BTreeSet<u64>) -> Result<(), Broken> {
        match self.acknowledged.iter().find(|write| !values.contains(&write.value)) {
            Some(lost) => Err((
                Invariant::AcknowledgedIsNeverLost,
                format!("{member} is the primary at the end, without {lost:?}"),
            )),
            None => Ok(()),
        }
    }

    /// A copy says that it has synced.
    pub(crate) fn said_synced(&mut self, member: MemberId, position: Position) {
        if position.number > 0 {
            self.synced.insert(member, position);
        }
    }

    /// A copy has other files.
    pub(crate) fn replaced(&mut self, member: MemberId) {
        self.synced.remove(&member);
    }

    /// After a loss of power a copy holds everything up to `position`.
    pub(crate) fn lost_power(&self, member: MemberId, position: Position) -> Result<(), Broken> {
        match self.synced.get(&member) {
            Some(said) if *said > position => {
                Err((Invariant::SyncedIsKept, format!("{member} said {said:?} is synced, and has {position:?}")))
            }
            _ => Ok(()),
        }
    }
}
