//! What a copy asks of whoever drives it.

use ecotone_control::entry::Entry;
use ecotone_control::ids::MemberId;

use crate::promotion::SealReport;
use crate::receiver::Sync;
use crate::standing::Standing;
use crate::stream::{Item, Resume, ToCopy, ToPrimary};

/// Done in their order; none before what a [`Command::Persist`] ahead of it asks for is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Record it, durably.
    Persist(Standing),
    /// Send it to the primary, or lose it.
    ToPrimary(MemberId, ToPrimary),
    /// Send it to a replica, or lose it.
    ToCopy(MemberId, ToCopy),
    /// Apply the item to the directory, then `applied`.
    Apply(Item),
    /// Sync, then `sync_ended`.
    Sync(Sync),
    /// A replica: build another directory, then `seeded`, which says whether it takes the place of
    /// the old one. A crash in between leaves the old one.
    AwaitSeed {
        /// Who sends them, or says who does.
        primary: MemberId,
        /// For which session.
        session: u64,
        /// How.
        resume: Resume,
    },
    /// The primary: have `source` send its files to a replica.
    Seed {
        /// The replica.
        copy: MemberId,
        /// The primary itself, or another replica.
        source: MemberId,
        /// For which session.
        session: u64,
        /// How.
        resume: Resume,
    },
    /// Ask the control plane for it. It is asked again while it is wanted.
    Propose(Entry),
    /// Tell the leader of the control plane.
    Sealed(SealReport),
    /// It is the primary from now on: open the directory for writing.
    Opened,
    /// It is no primary any more: answer nothing that waits, refuse what comes, and close.
    Closed,
}
