//! Reads that never wait for the device: from memtables, the block cache, and what the kernel has
//! in memory of the tables.
//!
//! The last only where all tables are held open: else RocksDB opens one when it is first read, and
//! who asks for it meanwhile waits.

use ecotone_rocks::local_file::without_waiting;
use rust_rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use rust_rocksdb::{ErrorKind, ReadOptions, ReadTier};

use crate::{Error, StoreSettings};

/// Bytes of values after which [`Snapshot::multi_get_first`](crate::Snapshot::multi_get_first)
/// ends: what it has then is kept in memory until it is used.
pub const LOOKED_UP_BYTES: usize = 1024 * 1024;

/// Removed entries that a scan steps over before it says that it would take waiting.
pub(crate) const MAX_SKIPPED: u64 = 2000;

/// How one store is read so.
pub(crate) struct NonBlockingReads {
    pub(crate) one: ReadOptions,
    /// For lookups that end early.
    pub(crate) some: ReadOptions,
    asks_kernel: bool,
}

impl NonBlockingReads {
    pub(crate) fn of(options: &StoreSettings) -> Self {
        let asks_kernel = options.max_open_files.is_none();
        Self { one: read_options(asks_kernel), some: ending_early(read_options(asks_kernel)), asks_kernel }
    }

    /// For a scan.
    pub(crate) fn scan_options(&self) -> ReadOptions {
        let mut options = read_options(self.asks_kernel);
        // Stepping over what was removed takes time as well, also within one step.
        options.set_max_skippable_internal_keys(MAX_SKIPPED);
        options
    }

    /// Calls `read`, which uses options of this.
    #[inline]
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        if self.asks_kernel { without_waiting(read) } else { read() }
    }
}

fn read_options(asks_kernel: bool) -> ReadOptions {
    let mut options = ReadOptions::default();
    if !asks_kernel {
        options.set_read_tier(ReadTier::BlockCache);
    }
    options
}

thread_local! {
    /// What RocksDB counts on this thread while it is told to.
    static COUNTED: PerfContext = PerfContext::default();
}

/// What scans of one thread have stepped over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Skipped {
    /// Deletions.
    pub(crate) deletions: u64,
    /// All entries: deletions, what they shadow, older versions, and the one that a step leaves.
    pub(crate) entries: u64,
}

impl Skipped {
    /// What RocksDB has counted on this thread.
    fn now(counted: &PerfContext) -> Self {
        let deletions = counted.metric(PerfMetric::InternalDeleteSkippedCount);
        Self { deletions, entries: deletions + counted.metric(PerfMetric::InternalKeySkippedCount) }
    }

    /// What was counted since it was `before`; nothing where that was on another thread.
    fn since(self, before: Self) -> Self {
        let deletions = self.deletions.saturating_sub(before.deletions);
        Self { deletions, entries: self.entries.saturating_sub(before.entries) }
    }
}

/// What `step` of a scan stepped over.
#[inline]
pub(crate) fn skipped_by(step: impl FnOnce()) -> Skipped {
    COUNTED.with(|counted| {
        let before = Skipped::now(counted);
        set_perf_stats(PerfStatsLevel::EnableCount);
        step();
        set_perf_stats(PerfStatsLevel::Disable);
        Skipped::now(counted).since(before)
    })
}

/// The error of a scan that may wait, and may be told how many removed entries to step over.
pub(crate) fn skipping_error(error: &rust_rocksdb::Error) -> Error {
    if error.kind() == ErrorKind::Incomplete { Error::WouldBlock } else { Error::from_rocks(error) }
}

/// The error of a read that never waits.
pub(crate) fn error(error: &rust_rocksdb::Error) -> Error {
    match error.kind() {
        // What is not in the block cache, and what the kernel has not.
        ErrorKind::Incomplete | ErrorKind::Busy => Error::WouldBlock,
        _ => Error::from_rocks(error),
    }
}

/// Lookups of many keys that end when they have found enough.
pub(crate) fn ending_early(mut options: ReadOptions) -> ReadOptions {
    options.set_value_size_soft_limit(LOOKED_UP_BYTES as u64);
    options
}
