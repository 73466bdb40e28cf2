//! How much space a store may take: admission control in front of its writes, which closes before
//! RocksDB or a segment meets the end of the disk.
//!
//! - [`admission`]: what may still be written, and who may write it. [`watch`]: the thread that
//!   looks again and again.
//! - [`ballast`]: what is kept for an opening on a disk that is full.
//! - [`measure`]: what is free, and what the store takes.
//! - [`pieces`]: how deletions of ranges are cut where space is low.
//! - [`reservations`]: what RocksDB has still to write. [`shared`]: what other stores have, where
//!   several share the space.
//! - [`reclaim`]: how garbage is found where space is low. [`expired_tables`]: what of it has
//!   expired.
//!
//! # What is kept free
//!
//! *Room* is the lesser of what the file system has free and what is left to `max_bytes`, of all
//! stores that share it. Of it,
//! some is *reserved*: memtables will be flushed, the next WAL is allocated ahead, and compactions
//! will write their outputs: those that run, or else the next one, without which nothing would ever
//! be freed. What is left is shared out in layers of the reserve R:
//!
//! ```text
//!  room - reserved:   R and more  everything
//!                    R/2 .. R    deletions, compactions, garbage collection; writes that take space are refused
//!                    R/4 .. R/2  compactions and garbage collection, as far as they fit
//!                    below R/4   flushes, the MANIFEST, the next opening: what was reserved is written whatever comes
//! ```
//!
//! Compactions are held to it by RocksDB itself, which is told how much its tables may grow
//! ([`crate::raw::TableLimit`]).
//!
//! # How far it can be overrun
//!
//! A write takes its bytes from a budget before it begins, so any number of threads together write
//! no more than the budget; and nobody looks less often than after a quarter of the reserve
//! ([`admission::BUDGET_SHARE`]). What is not counted: small writes (less than
//! [`admission::LARGE_BYTES`]) that were let through just before a probe and have not reached the
//! file system, and what other processes write between two probes ([`notifier::PROBE_INTERVAL`]).
//! The lower layers of the reserve are there for both.

pub(crate) mod admission;
pub(crate) mod ballast;
pub(crate) mod expired_tables;
pub(crate) mod free_space;
pub(crate) mod measure;
pub(crate) mod notifier;
mod pieces;
pub(crate) mod reclaim;
pub(crate) mod reservations;
pub(crate) mod shared;
pub(crate) mod watch;

use crate::{Error, Result};

const MIB: u64 = 1 << 20;

/// The least reserve. RocksDB allocates 4 MiB ahead for each MANIFEST, and an opening makes a
/// second one beside the first.
pub(crate) const MIN_RESERVE_BYTES: u64 = 8 * MIB;

/// The reserve of a store that was given none, where a tenth of its space is as much.
const DEFAULT_RESERVE_BYTES: u64 = 64 * MIB;

/// With a value log, room for so many segments comes on top: of those that are worth relocating
/// most is garbage, but they may be begun for several levels at once.
const DEFAULT_RESERVE_SEGMENTS: u64 = 2;

/// The default reserve is at most this part of the file system or of `max_bytes` (one in so many).
const MAX_DEFAULT_RESERVE_SHARE: u64 = 10;

/// `max_bytes` is at least so many reserves: a store that keeps most of its space free takes
/// nothing.
const MIN_RESERVES: u64 = 4;

/// And at least so many memtables: the WAL, the next one and what is flushed of it take 3.2, and a
/// store without a compaction to make would refuse writes for ever in less than 4.
const MIN_MEMTABLES: u64 = 5;

/// How much space a store may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceLimits {
    /// Bytes that stay free, at least 8 MiB and less than the file system has in all: writes are
    /// refused while there is less room beside what is reserved to flushes and compactions.
    /// Deletions are taken down to half of it. `None`: 64 MiB, and two segments where there is a
    /// value log; but at most a tenth of the file system and of `max_bytes`.
    pub reserve_bytes: Option<u64>,
    /// The most bytes that the store's directory may take, tables, segments, WAL and all, its
    /// compactions included; at least 4 times `reserve_bytes` and 5 times `memtable_bytes`, and at
    /// least 32 MiB. The reserve is kept free below it. `None`: as much as the file system has.
    pub max_bytes: Option<u64>,
}

impl SpaceLimits {
    pub(crate) fn validate(&self, memtable_bytes: u64) -> Result<()> {
        if let Some(reserve) = self.reserve_bytes
            && reserve < MIN_RESERVE_BYTES
        {
            let reason = format!("{reserve} is below the least, {MIN_RESERVE_BYTES}");
            return Err(Error::invalid("space.reserve_bytes", reason));
        }
        let of_reserves = self.reserve_bytes.unwrap_or(MIN_RESERVE_BYTES).saturating_mul(MIN_RESERVES);
        let least = of_reserves.max(memtable_bytes.saturating_mul(MIN_MEMTABLES));
        match self.max_bytes {
            Some(max) if max < least => {
                let reason = format!(
                    "{max} is below {least}: {MIN_RESERVES} times the reserve or {MIN_MEMTABLES} times the memtable"
                );
                Err(Error::invalid("space.max_bytes", reason))
            }
            _ => Ok(()),
        }
    }

    /// The reserve of a store whose segments have so many bytes, `None` without a value log, on a
    /// file system of `disk_bytes`.
    pub(crate) fn reserve(&self, segment_bytes: Option<u64>, disk_bytes: u64) -> u64 {
        self.reserve_bytes.unwrap_or_else(|| {
            let segments = segment_bytes.map_or(0, |segment_bytes| segment_bytes * DEFAULT_RESERVE_SEGMENTS);
            let wanted = DEFAULT_RESERVE_BYTES.saturating_add(segments);
            let space = disk_bytes.min(self.max_bytes.unwrap_or(u64::MAX));
            wanted.min(space / MAX_DEFAULT_RESERVE_SHARE).max(MIN_RESERVE_BYTES)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1024 * MIB;

    #[test]
    fn the_default_reserve_leaves_small_disks_usable() {
        let (plain, separated) = (None, Some(64 * MIB));
        for (segment_bytes, max_bytes, disk, reserve) in [
            (plain, None, 500 * GIB, 64 * MIB),
            (separated, None, 500 * GIB, 192 * MIB),
            (separated, None, GIB, 102 * MIB),
            (plain, Some(400 * MIB), 500 * GIB, 40 * MIB),
            (plain, None, 4 * MIB, 8 * MIB),
        ] {
            let limits = SpaceLimits { reserve_bytes: None, max_bytes };
            assert_eq!(limits.reserve(segment_bytes, disk) / MIB, reserve / MIB, "{max_bytes:?} on {disk}");
        }
        let asked_for = SpaceLimits { reserve_bytes: Some(7 * MIB), max_bytes: None };
        assert_eq!(asked_for.reserve(plain, GIB), 7 * MIB);
    }
}
