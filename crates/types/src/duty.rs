//! Duties: what a thread is for. Joules, cores and frequencies belong to duties.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a thread is for at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Duty {
    /// Operations of clients: reads and writes of the store.
    Foreground,
    /// A memtable becomes an L0 table.
    Flush,
    /// A compaction of this server's own store, on this server.
    Compaction,
    /// A compaction for another server's store.
    Worker,
    /// Bytes and messages moving between servers. The threads of the network run time serve owner,
    /// worker and coordinator at once, so that none of the other duties could claim them honestly.
    Transport,
    /// Applying the stream of a copy.
    Replica,
    /// Moving values within the value store, and training dictionaries for them.
    Gc,
    /// Erasure coding.
    Coding,
    /// Moving files to or from object storage.
    Tiering,
    /// Counting what upper levels have replaced in lower ones, and the merges that free it.
    Dedup,
    /// Opening a replica to be read, and catching up with what was applied: readers wait for it.
    Read,
    /// Filling a new copy, on both sides.
    Seed,
    /// Comparing the files of copies with what they should hold.
    Scrub,
}

impl Duty {
    /// Every duty, in the order of their declaration.
    pub const ALL: [Duty; 13] = [
        Duty::Foreground,
        Duty::Flush,
        Duty::Compaction,
        Duty::Worker,
        Duty::Transport,
        Duty::Replica,
        Duty::Gc,
        Duty::Coding,
        Duty::Tiering,
        Duty::Dedup,
        Duty::Read,
        Duty::Seed,
        Duty::Scrub,
    ];

    /// The name, as in metrics, JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Duty::Foreground => "foreground",
            Duty::Flush => "flush",
            Duty::Compaction => "compaction",
            Duty::Worker => "worker",
            Duty::Transport => "transport",
            Duty::Replica => "replica",
            Duty::Gc => "gc",
            Duty::Coding => "coding",
            Duty::Tiering => "tiering",
            Duty::Dedup => "dedup",
            Duty::Read => "read",
            Duty::Seed => "seed",
            Duty::Scrub => "scrub",
        }
    }

    /// The index of this duty in [`Duty::ALL`], for tables indexed by duty.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Duty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Work of a thread, as far as cores are chosen by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// What for.
    pub duty: Duty,
    /// A compaction that reads no table of level 0: no writer waits for it soon.
    pub is_deep: bool,
}

impl From<Duty> for Task {
    fn from(duty: Duty) -> Self {
        Self { duty, is_deep: false }
    }
}

/// Which cores of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CoreClass {
    /// Those that run fast.
    Fast,
    /// Those that run slow.
    Slow,
}

impl CoreClass {
    /// The name, as in metrics and reports.
    pub const fn name(self) -> &'static str {
        match self {
            CoreClass::Fast => "fast",
            CoreClass::Slow => "slow",
        }
    }
}

/// Notified when a thread changes its duty. Called on that very thread, in pairs that nest like a
/// stack: each [`begin`](DutyObserver::begin) has one [`end`](DutyObserver::end), after which the
/// duty before it holds again.
///
/// Both calls are on hot paths: they must not block and must not panic.
pub trait DutyObserver: Send + Sync {
    /// The calling thread takes up `duty`.
    fn begin(&self, duty: Duty);
    /// The same of a compaction that reads no table of level 0.
    fn begin_deep(&self, duty: Duty) {
        self.begin(duty);
    }
    /// The calling thread ends the duty that it took up last.
    fn end(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duty_has_its_index_and_a_unique_name() {
        let mut names: Vec<_> = Duty::ALL.iter().map(|duty| duty.name()).collect();
        for (index, duty) in Duty::ALL.into_iter().enumerate() {
            assert_eq!(duty.index(), index);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Duty::ALL.len());
    }
}
