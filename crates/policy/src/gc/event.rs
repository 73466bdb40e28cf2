//! What goes into the machine of garbage collection, and what comes out.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_types::units::{Bytes, Seconds};

use super::SegmentUse;
use super::writers::WriterTimes;
use crate::dedup::plan::{Merge, Table};
use crate::duplicates::{Overlap, ShadowedBytes};

/// How patient garbage collection is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hurry {
    /// As its parameters say.
    #[default]
    None,
    /// Nobody writes: it waits for no flush and no other compaction, and does not rest.
    Idle,
    /// Somebody waits for it: the same, and hardly any garbage stays.
    Thorough,
}

/// What surrounds a store at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// Who waits.
    pub hurry: Hurry,
    /// The share of the space that is free, 0 to 1.
    pub free_share: f64,
    /// What copies may take of it.
    pub free_for_copies: Bytes,
    /// How long writers have rested and been at work.
    pub writers: WriterTimes,
}

/// What there is in a store, once what could go has gone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreState {
    /// The sealed segments that are still referenced, or not settled.
    pub segments: Vec<SegmentUse>,
    /// Those of them whose values were relocated.
    pub relocated: BTreeSet<u32>,
    /// What counts as referenced and is replaced by something that no compaction has brought
    /// together with it, by the segment that it lies in.
    pub shadowed: BTreeMap<u32, ShadowedBytes>,
    /// How many keys of the tables that came since the last time were in others, by the table's
    /// number.
    pub overlaps: BTreeMap<u64, Overlap>,
    /// The tables that refer to candidates, and to which ones.
    pub referencing: BTreeMap<u64, Vec<u32>>,
    /// The oldest WAL that replay would need.
    pub oldest_wal: u64,
    /// Whether a segment waits for something that no flush or compaction will tell of.
    pub waits: bool,
    /// Whether one was found unreferenced for the first time: it may be removed the next time.
    pub found_unreferenced: bool,
    /// Whether one that could go was left for want of time: it is removed the next time.
    pub is_unfinished: bool,
    /// The live tables.
    pub tables: Vec<Table>,
    /// Whether somebody holds old versions, so that compactions free none.
    pub has_snapshots: bool,
    /// Whether a range of keys was removed that nobody has measured.
    pub has_removed_ranges: bool,
    /// Values that users have written since the memtable was begun.
    pub unflushed: Bytes,
}

/// A range of keys that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedRange {
    /// How many were removed before it.
    pub number: u64,
    /// What of the tables lies in it.
    pub bytes: Bytes,
    /// Whether a table may hold the removal.
    pub is_held: bool,
}

/// How a compaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactionOutcome {
    /// Its tables are there.
    Done,
    /// It takes more space than there is.
    TooLarge,
    /// Compactions are paused.
    Paused,
    /// It was refused, or failed.
    Failed,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A flush or a compaction has ended, somebody waits, or what was slept for is over.
    Woken {
        /// What surrounds the store.
        conditions: Conditions,
    },
    /// What [`Command::RemoveSegments`] has left.
    Inspected {
        /// What surrounds the store.
        conditions: Conditions,
        /// What there is in it.
        store: Box<StoreState>,
    },
    /// An answer to [`Command::Flush`].
    Flushed {
        /// `false`: writes are stopped, and no flush begins.
        begun: bool,
    },
    /// An answer to [`Command::TakePermit`].
    Permitted {
        /// The live tables, read since there is the permit.
        tables: Vec<Table>,
    },
    /// An answer to [`Command::TakePermit`]: others compact.
    NotPermitted,
    /// An answer to [`Command::MeasureRanges`].
    RangesMeasured {
        /// How many ranges had been removed before they were measured.
        removed: u64,
        /// Those that are remembered, in the order in which they were removed.
        ranges: Vec<RemovedRange>,
    },
    /// A compaction is over.
    CompactionEnded {
        /// How it ended.
        outcome: CompactionOutcome,
        /// So long it waited for another server, or for the answer that there is none.
        away: Seconds,
    },
    /// What was asked for cannot be told or done.
    Failed,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// From now on compactions copy what lies in these segments.
    SetCandidates(BTreeSet<u32>),
    /// Say whether tables are compacted for the candidates alone.
    SetForced(bool),
    /// Say from which ratio on they would be.
    SetForcedRatio(f64),
    /// From now on writers rest for this share of their time, 0 to 0.9.
    Throttle(f64),
    /// Wake the machine once so many bytes of values were written since the memtable was begun.
    AwaitWrites(Bytes),
    /// Tell the user that these segments could not be freed, and for how long they are left alone.
    LeaveAlone(BTreeSet<u32>, Seconds),
    /// These removed ranges shadow nothing.
    ForgetRanges(Vec<u64>),
    /// There are removed ranges to measure again.
    KeepRanges,
    /// Wait for so long, whatever happens.
    Rest(Seconds),
    /// There was nothing more to do: tell those who have asked before the last [`Event::Woken`].
    AnswerWaiting,

    /// Remove the segments that nothing refers to, seal those of relocated values of which the
    /// share `seal_from` (0 to 1) is garbage, and bring what is left as [`Event::Inspected`].
    RemoveSegments {
        /// See above.
        seal_from: f64,
    },
    /// Begin a flush, and bring [`Event::Flushed`].
    Flush {
        /// The memtable is not flushed if it was begun meanwhile and holds less than this.
        at_least: Option<Bytes>,
    },
    /// Wait for the permit to compact, but not for long: [`Event::Permitted`] or
    /// [`Event::NotPermitted`]. It lasts until a compaction has ended for which there was space, or
    /// until the machine sleeps.
    TakePermit(Seconds),
    /// Find out what of the tables lies in each removed range: [`Event::RangesMeasured`].
    MeasureRanges,
    /// Compact tables by their names: [`Event::CompactionEnded`].
    CompactTables {
        /// Which.
        merge: Merge,
        /// Whether another server may do it. Meanwhile no segment goes, and writers stay slowed
        /// down: not where that presses.
        may_go: bool,
    },
    /// Bring the keys from the first to the last, both included, to the last level:
    /// [`Event::CompactionEnded`].
    CompactDown {
        /// The first key.
        first: Vec<u8>,
        /// The last key.
        last: Vec<u8>,
        /// Of tables that lie there.
        bytes: Bytes,
    },
    /// Bring the keys of a removed range to the last level, and forget it:
    /// [`Event::CompactionEnded`].
    CompactRemoved(RemovedRange),
    /// Wait for so long, or without end, for what wakes the machine: [`Event::Woken`].
    Sleep(Option<Seconds>),
}

impl Command {
    /// Whether an event answers it.
    pub fn is_answered(&self) -> bool {
        match self {
            Self::SetCandidates(_)
            | Self::SetForced(_)
            | Self::SetForcedRatio(_)
            | Self::Throttle(_)
            | Self::AwaitWrites(_)
            | Self::LeaveAlone(..)
            | Self::ForgetRanges(_)
            | Self::KeepRanges
            | Self::Rest(_)
            | Self::AnswerWaiting => false,
            Self::RemoveSegments { .. }
            | Self::Flush { .. }
            | Self::TakePermit(_)
            | Self::MeasureRanges
            | Self::CompactTables { .. }
            | Self::CompactDown { .. }
            | Self::CompactRemoved(_)
            | Self::Sleep(_) => true,
        }
    }

    /// Whether it is a compaction, for which there must be the permit.
    pub fn is_compaction(&self) -> bool {
        matches!(self, Self::CompactTables { .. } | Self::CompactDown { .. } | Self::CompactRemoved(_))
    }
}
