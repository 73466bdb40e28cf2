//! What stands between a commit and its acknowledgement where a shard has copies on other servers.
//!
//! Invariants that whoever implements it keeps: what is [`CommitGate::answerable`] never falls within
//! an epoch; a place of another epoch than the gate's is never answerable.
//!
//! Threads: any may ask, and waits for nobody.

use std::fmt;
use std::sync::Arc;

/// Who must have a write before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The primary.
    One,
    /// A majority of all copies that there should be.
    Quorum,
    /// Every copy that is in sync.
    All,
}

/// A place in what a primary has written. Places of a later epoch are greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Counts the primaries of the shard.
    pub epoch: u64,
    /// Counts changes in the epoch.
    pub number: u64,
}

/// Why nothing may be answered for a shard at a level, however long it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The level asks for more copies in sync than there are.
    #[error("{in_sync} copies are in sync, and this level needs {needed}")]
    TooFewInSync {
        /// How many there are.
        in_sync: usize,
        /// How many it needs.
        needed: usize,
    },
    /// Another primary may have been chosen.
    #[error("this server has lost touch with the copies of the shard, and may not answer for it")]
    NoLease,
    /// Another server is the primary, or will be.
    #[error("this server is not the primary of the shard any more")]
    NotPrimary,
    /// Another server is about to be the primary: only of writes that are not made yet.
    #[error("the shard is being handed over to another server: ask again")]
    HandingOver,
}

/// How far the copies of one shard are, of which this server has the primary.
pub trait CommitGate: Send + Sync + fmt::Debug {
    /// Behind all that was written here so far: to be asked after a commit, or after a read.
    fn written(&self) -> Place;

    /// Up to where may be answered at a level. To be asked after reading.
    ///
    /// # Errors
    ///
    /// When nothing may be.
    fn answerable(&self, level: Level) -> Result<Place, Refused>;

    /// Whether writes may be made: not while another server is about to take the shard over.
    fn takes_writes(&self) -> bool;

    /// The level of clients that ask for none.
    fn level(&self) -> Level;

    /// How many other copies have all up to `place`: in memory, or synced.
    fn copies_with(&self, place: Place, synced: bool) -> usize;

    /// The time by which keys expire is not beyond this (milliseconds since 1970).
    fn clock_limit_ms(&self) -> u64;

    /// `wake` is called whenever more may be answered, or nothing more may, as long as it lives.
    fn wakes(&self, wake: &Arc<dyn Fn() + Send + Sync>);
}

/// Whether a reply may be sent that waits for `place`; one to a write, unless it `only_reads`: at
/// level `one` a read waits for nobody, and only the lease is looked at.
///
/// # Errors
///
/// What the gate refuses; [`Refused::NotPrimary`] where the epoch is over.
pub fn has_reached(gate: &dyn CommitGate, level: Level, place: Place, only_reads: bool) -> Result<bool, Refused> {
    let answerable = gate.answerable(level)?;
    if answerable.epoch != place.epoch {
        return Err(Refused::NotPrimary);
    }
    Ok(answerable >= place || (only_reads && level == Level::One))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// A gate that answers what it is given: what is written, and what may be answered.
    #[derive(Debug)]
    struct Given(Mutex<(Place, Result<Place, Refused>)>);

    impl CommitGate for Given {
        fn written(&self) -> Place {
            self.0.lock().0
        }

        fn answerable(&self, _: Level) -> Result<Place, Refused> {
            self.0.lock().1
        }

        fn takes_writes(&self) -> bool {
            true
        }

        fn level(&self) -> Level {
            Level::Quorum
        }

        fn copies_with(&self, _: Place, _: bool) -> usize {
            0
        }

        fn clock_limit_ms(&self) -> u64 {
            u64::MAX
        }

        fn wakes(&self, _: &Arc<dyn Fn() + Send + Sync>) {}
    }

    fn place(epoch: u64, number: u64) -> Place {
        Place { epoch, number }
    }

    #[test]
    fn a_reply_waits_for_its_place_in_its_epoch() {
        let gate = Given(Mutex::new((place(3, 7), Ok(place(3, 6)))));
        let reached = |level, only_reads| has_reached(&gate, level, place(3, 7), only_reads);
        for level in [Level::One, Level::Quorum, Level::All] {
            assert_eq!(reached(level, false), Ok(false), "{level:?}");
            assert_eq!(reached(level, true), Ok(level == Level::One), "{level:?}");
        }
        gate.0.lock().1 = Ok(place(3, 7));
        assert_eq!(reached(Level::All, false), Ok(true));
        // A later epoch is greater, and has not what was written in this one.
        gate.0.lock().1 = Ok(place(4, 9));
        assert_eq!(reached(Level::All, false), Err(Refused::NotPrimary));
        assert_eq!(reached(Level::One, true), Err(Refused::NotPrimary));
        gate.0.lock().1 = Err(Refused::NoLease);
        assert_eq!(reached(Level::One, true), Err(Refused::NoLease));
    }
}
