//! What a workload runs against.
//!
//! Stores are opened with one kind of [`TargetSettings`], turned into one
//! `ecotone_engine::StoreSettings`; the bare ones map these to RocksDB's options as the engine does,
//! and a test compares what RocksDB then wrote down as its options. A server ([`resp`]) was opened
//! by somebody else.
//!
//! Threads: a target is shared by all threads of a driver; every method may be called from any of
//! them at once.

mod dedup;
mod engine;
pub mod resp;
mod rocksdb;
mod settings;
mod settle;

pub use dedup::{CountedDuplicates, DedupKind, DedupSettings, DedupWork};
pub use ecotone_engine::{Compression, Durability, Profile};
pub use engine::EngineTarget;
pub use rocksdb::RocksdbTarget;
pub use settings::{TargetKind, TargetSettings};

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::Result;
use crate::measure::Measured;

/// A store under test.
pub trait Target: Send + Sync {
    /// The target's name in reports.
    fn name(&self) -> &'static str;

    /// Writes one pair with the durability the target was opened with.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Reads one value into `value` (cleared first). Returns whether the key was there.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Seeks to the first key at or after `key` and reads up to `entries` pairs in order, touching
    /// every key and value. Returns how many there were.
    fn seek_scan(&self, key: &[u8], entries: u32) -> Result<u32>;

    /// Removes one key; a key that is not there is no error.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Reads a value and writes `value` in its place, as YCSB's read-modify-write does: two
    /// operations, not one atomic one. `old` receives what was read. Returns whether the key was
    /// there.
    fn read_modify_write(&self, key: &[u8], old: &mut Vec<u8>, value: &[u8]) -> Result<bool> {
        let found = self.get(key, old)?;
        self.put(key, value)?;
        Ok(found)
    }

    /// Writes the memtables out as tables and returns when that is done.
    fn flush(&self) -> Result<()>;

    /// Flushes, and waits until no compaction is due and no GC is due, so that what follows starts
    /// with no debt (or what went before has paid its own). Gives up after `limit`, or when `stop`
    /// is set, and then returns `false`.
    fn settle(&self, limit: Duration, stop: &AtomicBool) -> Result<bool>;

    /// How long writers were slowed or stopped since the target was opened, by the clock (RocksDB's
    /// stall conditions; not the sum of the writers' waits). The bare target samples the condition
    /// when it is asked, so ask at least every [`STALL_SAMPLE_INTERVAL`]; asking is cheap.
    fn stall_time(&self) -> Result<Duration>;

    /// What moving values out of garbage has cost since the target was opened; none for a target
    /// that moves none.
    fn gc(&self) -> Result<Option<GcWork>> {
        Ok(None)
    }

    /// What the target knows of its duplicates and has done about them since it was opened, without
    /// reading its tables; none for a target that counts none.
    fn dedup(&self) -> Result<Option<DedupWork>> {
        Ok(None)
    }

    /// Flushes, lets running compactions end, holds all others back, and counts the duplicates that
    /// the tables then hold; then compactions go on. None for a target that cannot tell. Nobody
    /// should write meanwhile.
    fn count_duplicates(&self) -> Result<Option<CountedDuplicates>> {
        Ok(None)
    }

    /// The directory that holds all of the target's files; none for a target in memory.
    fn directory(&self) -> Option<&Path>;

    /// A way to the target for the calling thread alone, on which operations may be under way; none
    /// where each call above returns when the operation is done.
    fn session(&self) -> Result<Option<Box<dyn Session>>> {
        Ok(None)
    }

    /// How many operations a measured thread has under way at once, at least 1; more than 1 only
    /// with sessions.
    fn pipeline(&self) -> u32 {
        1
    }
}

/// An operation that is begun now and answered later.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Read up to `entries` values from a key on, in the order of keys. For targets with an index.
    Scan {
        /// The key.
        key: &'a [u8],
        /// How many values, at least 1.
        entries: u32,
    },
    /// Write a value.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Read a value.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Read a value and write another in its place.
    ReadModifyWrite {
        /// The key.
        key: &'a [u8],
        /// The new value.
        value: &'a [u8],
    },
}

/// A thread's own way to a target. Operations end in the order in which they were begun. After an
/// error it is of no more use.
pub trait Session {
    /// Begins an operation. `is_alone`: no other is begun before this one has ended, so that the
    /// write of a read-modify-write waits for its read; else both are sent together.
    fn begin(&mut self, request: Request<'_>, is_alone: bool) -> Result<()>;

    /// Waits for the end of the oldest operation. Returns whether its key was there; of a put,
    /// `true`.
    fn finish(&mut self) -> Result<bool>;

    /// Whether [`Session::finish`] would most likely return at once.
    fn is_answered(&self) -> Result<bool>;

    /// Bytes of operations that are begun and not sent yet.
    fn unsent_bytes(&self) -> usize;
}

/// What moving values out of garbage has cost.
#[derive(Clone, Debug, PartialEq)]
pub struct GcWork {
    /// Bytes that were moved.
    pub bytes: u64,
    /// How long writers were made to rest for it, all threads together, in milliseconds.
    pub throttled_ms: u64,
    /// Processor time of all threads, in seconds: all of compactions that are made for it alone,
    /// and the copying that other compactions do on their way.
    pub cpu_seconds: Measured<f64>,
}

/// How often a target is to be asked for its stall time. A stall shorter than this may be missed or
/// counted whole by a target that samples; over a run both are equally likely.
pub const STALL_SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// Opens the target of `kind` in `directory`, which must be empty or missing unless `existing`:
/// then it must hold a store.
///
/// # Errors
///
/// [`Error::Options`](crate::Error::Options) if the settings do not suit `kind`; else what the
/// store or the file system said.
pub fn open(kind: TargetKind, directory: &Path, existing: bool, settings: &TargetSettings) -> Result<Arc<dyn Target>> {
    settings.validate_for(kind)?;
    Ok(match kind {
        TargetKind::Engine => Arc::new(EngineTarget::open(directory, existing, settings)?),
        TargetKind::Rocksdb | TargetKind::RocksdbBlob => Arc::new(RocksdbTarget::open(directory, existing, settings)?),
        TargetKind::Resp => return Err(crate::Error::options("a server has no directory here; connect to it")),
    })
}

#[cfg(test)]
mod tests;
