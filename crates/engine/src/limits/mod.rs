//! How much space a store may take: a gate in front of its writes, which closes before RocksDB or a segment meets the end
//! of the disk.
//!
//! - [`gate`]: what may still be written, and who may write it. [`watch`]: the thread that looks again and again.
//! - [`ballast`]: what is kept for an opening on a disk that is full.
//! - [`measure`]: what is free, and what the store takes.
//! - [`pieces`]: how deletions of ranges are cut where space is tight.
//! - [`pledges`]: what RocksDB has still to write.
//! - [`reclaim`]: how garbage is found where space is tight. [`expired_tables`]: what of it has expired.
//!
//! # What is kept free
//!
//! *Room* is the lesser of what the file system has free and what is left to `max_bytes`. Of it, some is *pledged*: memtables
//! will be flushed, the next WAL is allocated ahead, and compactions will write their outputs: those that run, or else the next
//! one, without which nothing would ever be freed. What is left is shared out in layers of the reserve R:
//!
//! ```text
//!  room - pledged:   R and more  everything
//!                    R/2 .. R    deletions, compactions, relocation; writes that take space are refused
//!                    R/4 .. R/2  compactions and relocation, as far as they fit
//!                    below R/4   flushes, the MANIFEST, the next opening: what was pledged is written whatever comes
//! ```
//!
//! Compactions are held to it by RocksDB itself, which is told how much its tables may grow ([`crate::raw::TableLimit`]).
//!
//! # How far it can be overrun
//!
//! A write takes its bytes from a budget before it begins, so any number of threads together write no more than the budget;
//! and nobody looks less often than after a quarter of the reserve ([`gate::BUDGET_SHARE`]). What is not counted: small writes
//! (less than [`gate::LARGE_BYTES`]) that were let through just before a look and have not reached the file system, and what
//! other processes write between two looks ([`watch::LOOK_INTERVAL`]). The lower layers of the reserve are there for both.

pub(crate) mod ballast;
pub(crate) mod expired_tables;
pub(crate) mod gate;
pub(crate) mod measure;
mod pieces;
pub(crate) mod pledges;
pub(crate) mod reclaim;
pub(crate) mod watch;

use crate::options::StoreOptions;
use crate::tuning::{INFO_LOG_BYTES, MANIFEST_BYTES};
use crate::{Error, Result};

const MIB: u64 = 1 << 20;

/// The least reserve. RocksDB allocates 4 MiB ahead for each MANIFEST, and an opening makes a second one beside the first.
pub(crate) const MIN_RESERVE_BYTES: u64 = 8 * MIB;

/// The reserve of a store that was given none, where a tenth of its space is as much.
const DEFAULT_RESERVE_BYTES: u64 = 64 * MIB;

/// With a value log, room for so many segments comes on top: of those that are worth relocating most is garbage, but they may be
/// begun for several levels at once.
const DEFAULT_RESERVE_SEGMENTS: u64 = 2;

/// The default reserve is at most this part of the file system or of `max_bytes` (one in so many).
const MAX_DEFAULT_RESERVE_SHARE: u64 = 10;

/// `max_bytes` is at least so many reserves: a store that keeps most of its space free takes nothing.
const MIN_RESERVES: u64 = 4;

/// And at least so many memtables: the WAL, the next one and what is flushed of it take 3.2, and a store without a compaction to
/// make would refuse writes for ever in less than 4.
const MIN_MEMTABLES: u64 = 5;

/// RocksDB's own log ends at one in so many parts of the space, and four such are kept; never more than 16 MiB each.
const INFO_LOG_SHARE: u64 = 256;

/// A MANIFEST is begun anew at one in so many parts of the space, and never beyond 64 MiB.
const MANIFEST_SHARE: u64 = 64;

/// How long the files may get that RocksDB keeps for itself in a space of so many bytes: its log and the MANIFEST. In a small one
/// they would take much of it.
pub(crate) fn bookkeeping_bytes(space_bytes: u64) -> (u64, u64) {
    let log = (space_bytes / INFO_LOG_SHARE).clamp(64 * 1024, INFO_LOG_BYTES);
    (log, (space_bytes / MANIFEST_SHARE).clamp(MIB, MANIFEST_BYTES))
}

/// How much space a store may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceLimits {
    /// Bytes that stay free, at least 8 MiB and less than the file system has in all: writes are refused while there is less room beside what is pledged to flushes and
    /// compactions. Deletions are taken down to half of it. `None`: 64 MiB, and two segments where there is a value log; but at
    /// most a tenth of the file system and of `max_bytes`.
    pub reserve_bytes: Option<u64>,
    /// The most bytes that the store's directory may take, tables, segments, WAL and all, its compactions included; at least 4
    /// times `reserve_bytes` and 5 times `memtable_bytes`, and at least 32 MiB. The reserve is kept free below it. `None`: as much
    /// as the file system has.
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

    /// The reserve of a store with these `options`, on a file system of `disk_bytes`.
    pub(crate) fn reserve(&self, options: &StoreOptions, disk_bytes: u64) -> u64 {
        self.reserve_bytes.unwrap_or_else(|| {
            let segments =
                options.separation.map_or(0, |separation| separation.segment_bytes * DEFAULT_RESERVE_SEGMENTS);
            let wanted = DEFAULT_RESERVE_BYTES.saturating_add(segments);
            let space = disk_bytes.min(self.max_bytes.unwrap_or(u64::MAX));
            wanted.min(space / MAX_DEFAULT_RESERVE_SHARE).max(MIN_RESERVE_BYTES)
        })
    }
}

/// How much room a store has, as of the last look. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Free on the file system, for this process.
    pub free_bytes: u64,
    /// Those, and what is taken of the file system; not what it keeps back for its administrator.
    pub disk_bytes: u64,
    /// What the store's directory takes, what is allocated ahead of a file's end included; `None` without `max_bytes`: nobody
    /// counts it then.
    pub used_bytes: Option<u64>,
    /// The limit of `used_bytes`.
    pub max_bytes: Option<u64>,
    /// What memtables, the next WAL, compactions and large writes under way will still take.
    pub pledged_bytes: u64,
    /// What is to stay free beside that.
    pub reserve_bytes: u64,
    /// Whether writes are refused.
    pub writes_refused: bool,
}

impl Room {
    /// What may be written at all: the lesser of the two limits.
    pub fn room_bytes(&self) -> u64 {
        self.free_bytes.min(self.left_to_max().unwrap_or(u64::MAX))
    }

    /// What is left of it when all is written that is pledged; negative where it does not fit.
    pub fn spare_bytes(&self) -> i64 {
        signed(self.room_bytes()).saturating_sub(signed(self.pledged_bytes))
    }

    /// The share of the space that is free above the reserve, 0 to 1: of the file system or of `max_bytes`, whichever is less.
    pub fn free_share(&self) -> f64 {
        let above = |room: u64, of: u64| {
            let taken = self.pledged_bytes.saturating_add(self.reserve_bytes);
            room.saturating_sub(taken) as f64 / of.max(1) as f64
        };
        let of_max = self.left_to_max().zip(self.max_bytes).map_or(1.0, |(left, max)| above(left, max));
        above(self.free_bytes, self.disk_bytes).min(of_max).clamp(0.0, 1.0)
    }

    /// Whether `max_bytes` leaves less room than the file system.
    pub(crate) fn max_is_nearer(&self) -> bool {
        self.left_to_max().is_some_and(|left| left < self.free_bytes)
    }

    fn left_to_max(&self) -> Option<u64> {
        self.max_bytes.map(|max| max.saturating_sub(self.used_bytes.unwrap_or(0)))
    }
}

/// Bytes as a number that may fall below zero.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1024 * MIB;

    #[test]
    fn the_default_reserve_leaves_small_disks_usable() {
        let (plain, separated) = (StoreOptions::default(), StoreOptions::separated(128));
        for (options, max_bytes, disk, reserve) in [
            (&plain, None, 500 * GIB, 64 * MIB),
            (&separated, None, 500 * GIB, 192 * MIB),
            (&separated, None, GIB, 102 * MIB),
            (&plain, Some(400 * MIB), 500 * GIB, 40 * MIB),
            (&plain, None, 4 * MIB, 8 * MIB),
        ] {
            let limits = SpaceLimits { reserve_bytes: None, max_bytes };
            assert_eq!(limits.reserve(options, disk) / MIB, reserve / MIB, "{max_bytes:?} on {disk}");
        }
        let asked_for = SpaceLimits { reserve_bytes: Some(7 * MIB), max_bytes: None };
        assert_eq!(asked_for.reserve(&plain, GIB), 7 * MIB);
    }

    #[test]
    fn room_is_what_the_nearer_limit_leaves() {
        let disk = Room { free_bytes: 50, disk_bytes: 100, pledged_bytes: 5, reserve_bytes: 15, ..Room::default() };
        assert_eq!((disk.room_bytes(), disk.spare_bytes()), (50, 45));
        assert!((disk.free_share() - 0.3).abs() < 1e-9);
        let limited = Room { used_bytes: Some(70), max_bytes: Some(80), ..disk };
        assert!(limited.max_is_nearer());
        assert_eq!((limited.room_bytes(), limited.spare_bytes(), limited.free_share()), (10, 5, 0.0));
        let beyond = Room { used_bytes: Some(90), ..limited };
        assert_eq!((beyond.room_bytes(), beyond.spare_bytes()), (0, -5));
    }
}
