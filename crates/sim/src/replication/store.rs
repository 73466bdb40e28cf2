//! A store that loses what was not synced, segments and WAL each for itself.

use ecotone_control::ids::DirectoryId;
use ecotone_replica::position::{Mark, Position};
use ecotone_replica::standing::Standing;
use ecotone_replica::stream::Kind;

use crate::random::Random;

/// A write of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: u64,
    pub value: u64,
}

/// What one item left in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it led.
    pub mark: Mark,
    pub content: Content,
    pub is_damaged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A value: the next entry of the WAL leads to it.
    Segment,
    Wal(Write),
    /// A write that the stream never told: the process died before.
    Untold(Write),
    Clock(u64),
    /// A primary was opened here.
    Opening,
}

impl Content {
    pub fn of(kind: Kind, write: Option<Write>) -> Self {
        match (kind, write) {
            (Kind::Clock { limit_ms }, _) => Self::Clock(limit_ms),
            (_, Some(write)) => Self::Wal(write),
            _ => Self::Segment,
        }
    }
}

/// The directory of a copy.
#[derive(Clone, Debug)]
pub struct Store {
    pub directory: DirectoryId,
    /// Durable as soon as it is written.
    pub standing: Option<Standing>,
    pub entries: Vec<Entry>,
    segments_synced: usize,
    wal_synced: usize,
}

impl Store {
    pub fn new(directory: DirectoryId, standing: Option<Standing>) -> Self {
        Self { directory, standing, entries: Vec::new(), segments_synced: 0, wal_synced: 0 }
    }

    /// Where its last entry led.
    pub fn mark(&self) -> Mark {
        self.entries.last().map_or_else(Mark::default, |entry| entry.mark)
    }

    pub fn clock_limit_ms(&self) -> u64 {
        let limits = self.entries.iter().filter_map(|entry| match entry.content {
            Content::Clock(limit_ms) => Some(limit_ms),
            _ => None,
        });
        limits.max().unwrap_or_default()
    }

    pub fn push(&mut self, mark: Mark, content: Content) {
        self.entries.push(Entry { mark, content, is_damaged: false });
    }

    pub fn sync_segments(&mut self, up_to: usize) {
        self.segments_synced = self.segments_synced.max(up_to.min(self.entries.len()));
    }

    pub fn sync_wal(&mut self, up_to: usize) {
        self.wal_synced = self.wal_synced.max(up_to.min(self.entries.len()));
    }

    /// Other entries, durable, take the place of these.
    pub fn replace(&mut self, entries: Vec<Entry>) {
        (self.segments_synced, self.wal_synced) = (entries.len(), entries.len());
        self.entries = entries;
    }

    /// The last write of `key`, and where it is.
    pub fn read(&self, key: u64) -> Option<(Position, u64)> {
        self.entries.iter().rev().find_map(|entry| match entry.content {
            Content::Wal(write) | Content::Untold(write) if write.key == key && !entry.is_damaged => {
                Some((entry.mark.position, write.value))
            }
            _ => None,
        })
    }

    pub fn values(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().filter(|entry| !entry.is_damaged).filter_map(|entry| match entry.content {
            Content::Wal(write) | Content::Untold(write) => Some(write.value),
            _ => None,
        })
    }

    pub fn is_sound(&self) -> bool {
        self.entries.iter().all(|entry| !entry.is_damaged)
    }

    /// The power is gone: of what was not synced, some is there. What follows a WAL entry without
    /// its value is not replayed.
    pub fn lose_power(&mut self, random: &mut Random) {
        let length = self.entries.len() as u64;
        let segments = random.between(self.segments_synced as u64, length) as usize;
        let wal = random.between(self.wal_synced as u64, length) as usize;
        // The value of a WAL entry is the entry before it.
        let is_there = |(at, entry): (usize, &Entry)| match entry.content {
            Content::Segment => true,
            Content::Wal(_) | Content::Untold(_) => at < wal && at.saturating_sub(1) < segments,
            Content::Clock(_) | Content::Opening => at < wal,
        };
        let kept = self.entries.iter().enumerate().take_while(|at| is_there(*at)).count();
        // A value alone says nothing of a position.
        let named = self.entries[..kept].iter().rposition(|entry| entry.content != Content::Segment);
        self.entries.truncate(named.map_or(0, |at| at + 1).max(self.wal_synced.min(kept)));
        let length = self.entries.len();
        (self.segments_synced, self.wal_synced) = (length, length);
    }
}
