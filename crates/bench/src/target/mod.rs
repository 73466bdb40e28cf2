//! What a workload runs against.
//!
//! Threads: a target is shared by all threads of a driver; every method may be called from any of them at once.

use std::path::Path;

use crate::Result;

/// A store under test.
pub trait Target: Send + Sync {
    /// The target's name in reports.
    fn name(&self) -> &'static str;

    /// Writes one pair with the durability the target was opened with.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Reads one value into `value` (cleared first). Returns whether the key was there.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Seeks to the first key at or after `key` and reads up to `entries` pairs in order, touching every key and value.
    /// Returns how many there were.
    fn seek_scan(&self, key: &[u8], entries: u32) -> Result<u32>;

    /// Removes one key; a key that is not there is no error.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Reads a value and writes `value` in its place, as YCSB's read-modify-write does: two operations, not one atomic one.
    /// `old` receives what was read. Returns whether the key was there.
    fn read_modify_write(&self, key: &[u8], old: &mut Vec<u8>, value: &[u8]) -> Result<bool> {
        let found = self.get(key, old)?;
        self.put(key, value)?;
        Ok(found)
    }

    /// Writes the memtables out as tables and returns when that is done.
    fn flush(&self) -> Result<()>;

    /// Flushes, and waits until no compaction is due, so that what follows starts with no debt (or what went before has paid
    /// its own). Gives up after `limit` and then returns `false`.
    fn settle(&self, limit: std::time::Duration) -> Result<bool>;

    /// Whether writes are slowed or stopped at this moment (a stall condition in RocksDB's sense: its write controller has a
    /// delay or a stop token). Cheap enough to be asked a hundred times a second.
    fn is_stalled(&self) -> Result<bool>;

    /// The directory that holds all of the target's files; none for a target in memory.
    fn directory(&self) -> Option<&Path>;
}
