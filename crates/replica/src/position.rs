//! What orders a stream, and what tells two histories apart.

use ecotone_control::ids::{DirectoryId, Epoch};

/// Epochs whose ends a copy remembers. A copy whose last epoch is older is built anew.
pub const MAX_EPOCHS: usize = 64;

/// A place in the stream of a shard. Position 0 of an epoch is what the copy held that opened it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The epoch of the primary that numbered it.
    pub epoch: Epoch,
    /// From 1 on, without gaps.
    pub number: u64,
}

impl Position {
    /// The place before the first item of `epoch`.
    pub fn begin(epoch: Epoch) -> Self {
        Self { epoch, number: 0 }
    }

    /// The next place in the same epoch. Numbers that are counted do not come to the last one.
    #[must_use]
    pub fn next(self) -> Self {
        Self { number: self.number.saturating_add(1), ..self }
    }

    /// Behind all that anybody was told of `epoch`: where its primary is that was killed, and whose
    /// files have all that it wrote. Something is still behind it.
    pub fn behind_all(epoch: Epoch) -> Self {
        Self { epoch, number: u64::MAX - 1 }
    }
}

/// A place, and the checksum over all that leads there. The same position with another checksum is
/// another history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The place.
    pub position: Position,
    /// Over the checksums of all items up to it.
    pub chain: u32,
}

impl Mark {
    /// Where `epoch` begins, opened at this mark.
    #[must_use]
    pub fn open(self, epoch: Epoch) -> Self {
        let chain = crc32c::crc32c_append(self.chain, &epoch.0.to_le_bytes());
        Self { position: Position::begin(epoch), chain }
    }
}

/// The machine since it was started: what the kernel held in memory lasts as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub [u8; 16]);

/// Which copy this is: another directory or another boot may hold less than was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incarnation {
    /// The directory of the copy, drawn when it is made.
    pub directory: DirectoryId,
    /// The boot of the machine.
    pub boot: BootId,
}

/// Where passed epochs ended, in the history of one copy, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History(Vec<Mark>);

/// How a returning copy stands to a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It holds exactly what the epoch began with.
    Same,
    /// It may hold a part of it and nothing else: lengths and checksums tell.
    Behind,
    /// It holds what is not in it, or nobody knows.
    Diverged,
}

impl History {
    /// Where passed epochs ended, oldest first.
    pub fn ends(&self) -> &[Mark] {
        &self.0
    }

    /// The history of who opens an epoch at `end`.
    #[must_use]
    pub fn and(&self, end: Mark) -> Self {
        let passed = self.0.iter().filter(|mark| mark.position.epoch < end.position.epoch);
        let mut ends: Vec<Mark> = passed.copied().chain([end]).collect();
        let surplus = ends.len().saturating_sub(MAX_EPOCHS);
        ends.drain(..surplus);
        Self(ends)
    }

    /// How a copy stands to it whose last epoch is a passed one.
    pub fn relation(&self, copy: Mark) -> Relation {
        let Some(at) = self.0.iter().position(|end| end.position.epoch == copy.position.epoch) else {
            return Relation::Diverged;
        };
        let end = self.0[at];
        if copy == end && at + 1 == self.0.len() {
            Relation::Same
        } else if copy.position.number < end.position.number || copy == end {
            Relation::Behind
        } else {
            Relation::Diverged
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(epoch: u64, number: u64) -> Mark {
        Mark { position: Position { epoch: Epoch(epoch), number }, chain: number as u32 }
    }

    #[test]
    fn histories_tell_prefixes_from_branches() {
        let history = History::default().and(mark(1, 20)).and(mark(3, 12));
        assert_eq!(history.relation(mark(3, 12)), Relation::Same);
        assert_eq!(history.relation(mark(3, 11)), Relation::Behind);
        assert_eq!(history.relation(mark(3, 13)), Relation::Diverged);
        assert_eq!(history.relation(mark(1, 20)), Relation::Behind, "it lacks all of epoch 3");
        assert_eq!(history.relation(mark(1, 21)), Relation::Diverged);
        assert_eq!(history.relation(mark(2, 1)), Relation::Diverged, "an epoch that this history does not have");
        let other = Mark { chain: 77, ..mark(3, 12) };
        assert_eq!(history.relation(other), Relation::Diverged, "the same place in another history");
    }

    #[test]
    fn a_copy_that_goes_back_forgets_later_ends() {
        let history = History::default().and(mark(1, 20)).and(mark(3, 12));
        assert_eq!(history.and(mark(1, 25)).ends(), [mark(1, 25)]);
        let long = (1..200).fold(History::default(), |history, epoch| history.and(mark(epoch, 1)));
        assert_eq!(long.ends().len(), MAX_EPOCHS);
        assert_eq!(long.relation(mark(100, 1)), Relation::Diverged);
    }
}
