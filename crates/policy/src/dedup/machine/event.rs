//! What goes into the machine, and what comes out.

use ecotone_types::units::{Bytes, Seconds, Time};

use crate::dedup::decide::Why;
use crate::dedup::deferral::MergeFailure;
use crate::dedup::estimate::Estimate;
use crate::dedup::forecast::Pressure;
use crate::dedup::plan::{Merge, Table};
use crate::dedup::sketches::KeySketches;

/// The tables of one moment, and what is known of their keys. Of one moment, since a table of which
/// nothing is known any more would make its range look worthless.
#[derive(Clone, Copy)]
pub struct TableFacts<'a> {
    /// All tables of the store.
    pub tables: &'a [Table],
    /// What is known of their keys.
    pub keys: &'a dyn KeySketches,
}

/// What has happened. All but [`Woken`](Self::Woken) answer a command.
#[derive(Clone)]
pub enum Event<'a> {
    /// A [`Command::Wait`] is over.
    Woken {
        /// Compactions that have ended since the last time and were no merges: the numbers of the
        /// tables that each of them wrote.
        compactions: Vec<Vec<u64>>,
        /// Tables that have been flushed since the store was opened.
        flushed_tables: u64,
    },
    /// After [`Command::ReadTables`].
    TablesRead(TableFacts<'a>),
    /// After [`Command::TakePermit`]: it is held.
    PermitTaken {
        /// How pressed the store is; `None` after a background error, when RocksDB compacts
        /// nothing.
        pressure: Option<Pressure>,
    },
    /// After [`Command::TakePermit`]: somebody else held it all the time.
    PermitUnavailable,
    /// After [`Command::ReadTablesAndSpace`].
    TablesAndSpaceRead {
        /// The tables.
        facts: TableFacts<'a>,
        /// What a merge may take beside what it replaces.
        free_space: Bytes,
    },
    /// What was asked for could not be read.
    FactsUnreadable,
    /// The merge was made.
    MergeEnded {
        /// Entries that it freed.
        found_keys: u64,
        /// How long it took.
        took: Seconds,
        /// What of that it ran here; `None` where a worker made it.
        took_here: Option<Seconds>,
        /// Whether the store is short of space.
        is_space_low: bool,
    },
    /// The merge succeeded, and RocksDB says nothing of it. It says nothing only of tables that it
    /// moves, which it was not allowed to.
    MergeUnreported,
    /// The merge was not made.
    MergeFailed(MergeFailure),
}

/// What is to be done, and to be answered with an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Give the permit back where it is held, and wait.
    Wait(Wait),
    /// Read the tables and what is known of their keys.
    ReadTables,
    /// Take the permit for internal compactions, waiting for it so long, and read how pressed the
    /// store is. Tables are chosen by who holds it.
    TakePermit {
        /// So long.
        at_most: Seconds,
    },
    /// Probe the free space, and read the tables and what is known of their keys.
    ReadTablesAndSpace,
    /// Merge, and give the permit back.
    Merge {
        /// What.
        merge: Merge,
        /// What it is expected to free.
        expected: Estimate,
    },
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    /// At most so long; `None`: until compactions have ended.
    pub at_most: Option<Seconds>,
    /// Compactions that end are a reason to wake from then on, and are kept until then.
    pub checks_not_before: Time,
}

impl Wait {
    /// What comes before the first event: no wait at all.
    pub const ZERO: Self = Self { at_most: Some(Seconds::ZERO), checks_not_before: Time::from_seconds(0.0) };
}

/// What was found for one compaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The tables that it wrote.
    pub written: Vec<u64>,
    /// What they replace below them.
    pub estimate: Estimate,
    /// Whether its range waits for a merge now, or why not.
    pub outcome: Result<(), Why>,
}
