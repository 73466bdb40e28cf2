//! The log as Raft reads it, in memory: the last snapshot, and entries since a base before it, so
//! that a server which lags a little needs no snapshot.
//!
//! It is ahead of the disk by what [`crate::node::Node`] has told to persist and not heard back.

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

/// The log in memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entries {
    hard_state: HardState,
    /// Index and term of the entry before the first.
    base: (u64, u64),
    entries: Vec<Entry>,
    snapshot: Snapshot,
}

impl Entries {
    /// A log that was read from a disk, or is new.
    pub fn new(snapshot: Snapshot, base: (u64, u64), entries: Vec<Entry>, hard_state: HardState) -> Self {
        Self { hard_state, base, entries, snapshot }
    }

    pub fn hard_state(&self) -> &HardState {
        &self.hard_state
    }

    pub fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    pub fn base(&self) -> (u64, u64) {
        self.base
    }

    pub fn all(&self) -> &[Entry] {
        &self.entries
    }

    pub fn snapshot_index(&self) -> u64 {
        self.snapshot.get_metadata().index
    }

    pub fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    /// The term of the entry at `index`, if it is known.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        let metadata = self.snapshot.get_metadata();
        if index == self.base.0 {
            Some(self.base.1)
        } else if index == metadata.index {
            Some(metadata.term)
        } else {
            let at = index.checked_sub(self.base.0 + 1)?;
            self.entries.get(at as usize).map(|entry| entry.term)
        }
    }

    /// Appends, in place of what was there from the first of `entries` on.
    pub fn append(&mut self, entries: &[Entry]) {
        if let Some(first) = entries.first() {
            debug_assert!(self.base.0 < first.index && first.index <= self.last() + 1);
            self.entries.truncate((first.index - self.base.0 - 1) as usize);
            self.entries.extend_from_slice(entries);
        }
    }

    /// Takes a snapshot of another server in place of everything.
    pub fn install(&mut self, snapshot: Snapshot) {
        let metadata = snapshot.get_metadata();
        self.base = (metadata.index, metadata.term);
        self.entries.clear();
        self.hard_state.commit = self.hard_state.commit.max(metadata.index);
        self.snapshot = snapshot;
    }

    /// Takes a newer snapshot of our own, to send to others.
    pub fn set_snapshot(&mut self, snapshot: Snapshot) {
        self.snapshot = snapshot;
    }

    /// Takes a snapshot of our own, and drops entries before it, but for the last `keep`.
    pub fn compact(&mut self, snapshot: Snapshot, keep: u64) {
        let base = snapshot.get_metadata().index.saturating_sub(keep).max(self.base.0);
        let term = self.term_at(base);
        self.snapshot = snapshot;
        if let Some(term) = term {
            self.entries.drain(..(base - self.base.0) as usize);
            self.base = (base, term);
        }
    }
}

impl Storage for Entries {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let configuration: ConfState = self.snapshot.get_metadata().get_conf_state().clone();
        Ok(RaftState::new(self.hard_state.clone(), configuration))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base.0 {
            return Err(StorageError::Compacted.into());
        }
        let range = (low - self.base.0 - 1) as usize..(high - self.base.0 - 1) as usize;
        let found = self.entries.get(range).ok_or(raft::Error::Store(StorageError::Unavailable))?;
        let limit = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0;
        let fit = found.iter().take_while(|entry| {
            size += entry.data.len() as u64 + 16;
            size <= limit
        });
        let count = fit.count().max(1).min(found.len());
        Ok(found[..count].to_vec())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let missing = if index < self.base.0 { StorageError::Compacted } else { StorageError::Unavailable };
        self.term_at(index).ok_or(raft::Error::Store(missing))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let configuration = self.snapshot.get_metadata().get_conf_state();
        let all = [&configuration.voters, &configuration.voters_outgoing, &configuration.learners];
        let knows = all.iter().any(|members| members.contains(&to));
        // Nobody takes one that does not know it: the next one will.
        if self.snapshot_index() < request_index || !knows {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        Ok(self.snapshot.clone())
    }
}
