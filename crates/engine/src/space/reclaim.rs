//! Finds out what is garbage where space is low.
//!
//! What was deleted or overwritten takes space until a compaction has met it, in tables and in
//! segments alike, and RocksDB compacts only as more is written. Where writes are refused that
//! would be never. So the memtable is flushed, which also frees its WAL, and tables are compacted
//! down until they lie in the last level, those first that hold the most deletions for their size.
//! Which ones:
//!
//! - Without a value log those with deletions, once writes are refused. What else is garbage there
//!   is little: RocksDB keeps the levels above the last at a tenth of it.
//! - With a value log all, as soon as space is low. They are small, and what they overwrite is
//!   large.
//! - Where values expire, those of any level in which one has, once writes are refused and nothing
//!   else is left: see [`super::expired_tables`].
//!
//! Invariant: nothing is flushed where the device may not have room for it. RocksDB recovers by
//! itself from a write that met the end of the device, but not if the log that a flush begins does
//! too: then only opening the store again helps.
//!
//! Bounds: [`MAX_TABLES`] at a time and [`MAX_ROUNDS`] times between two rests; the rests take most
//! of the time, or half of it while writes are refused. Where nothing is written there is nothing
//! to do in the end.
//!
//! Threads: that of [`super::watch`]. What is asked for runs in RocksDB's threads, but for the
//! first compaction of a store that has nothing below level 0, and those of tables in which
//! something has expired, which have no other way: they are small, and nobody but the thread waits
//! for them.

use std::time::{Duration, Instant};

use ecotone_rocks::tables::{FamilyTable, family_tables};
use rust_rocksdb::{CompactOptions, DB, FlushOptions, properties};

use super::expired_tables::ExpiredTables;
use crate::compaction::by_names::may_hold_deletions;
use crate::family::DataFamily;
use crate::{Error, FreeSpace, Result};

/// While writes are taken it works for at most this part of the time (one in so many).
const TIME_SHARE: u32 = 5;

/// It rests at least so long then, so that a few writes a second are not compacted one by one.
const MIN_REST: Duration = Duration::from_secs(1);

/// Compactions are asked for so often between two rests: once for each level, and once for what was
/// written meanwhile.
const MAX_ROUNDS: u32 = 8;

/// Beside the memtable itself a flush writes a new log, which grows by blocks, and a record of the
/// table.
const FLUSH_ALSO_BYTES: u64 = 2 * 1024 * 1024;

/// Tables that are asked for at a time: RocksDB goes through all tables for each.
const MAX_TABLES: usize = 64;

/// See the module.
pub(crate) struct Reclaim {
    has_value_log: bool,
    /// Where values that have expired are reclaimed.
    expired: Option<ExpiredTables>,
    /// Since when it works, and how often it has asked for something since then.
    began: Option<(Instant, u32)>,
    /// Rests until then.
    again: Option<Instant>,
}

impl Reclaim {
    pub(crate) fn new(has_value_log: bool, expired: Option<ExpiredTables>) -> Self {
        Self { has_value_log, expired, began: None, again: None }
    }

    /// Asks for the next step where the last is done. To be called again and again while space is
    /// low.
    pub(crate) fn step(&mut self, db: &DB, family: DataFamily, free_space: &FreeSpace) -> Result<()> {
        let refuses_writes = free_space.writes_refused;
        let rests = self.again.is_some_and(|again| Instant::now() < again);
        if rests || !(refuses_writes || self.has_value_log) || is_any(db, family, &RUNNING)? {
            return Ok(());
        }
        let is_awaited = is_any(db, family, &AWAITED)?;
        if is_awaited && !(refuses_writes && self.expired.is_some()) {
            return Ok(());
        }
        let (began, rounds) = self.began.unwrap_or_else(|| (Instant::now(), 0));
        // What waits may wait for room, which only what has expired can give then.
        let mut next = || {
            let asked = !is_awaited && self.ask(db, family, free_space.free_bytes)?;
            match &mut self.expired {
                Some(expired) if refuses_writes && !asked => expired.rewrite(db, family),
                _ => Ok(asked),
            }
        };
        if rounds < MAX_ROUNDS && next()? {
            self.began = Some((began, rounds + 1));
        } else if self.began.take().is_some() {
            let took = began.elapsed();
            let rest = if refuses_writes { took } else { MIN_REST.max(took * (TIME_SHARE - 1)) };
            self.again = Some(Instant::now() + rest);
        }
        Ok(())
    }

    /// Asks RocksDB for whatever comes next. False where there is nothing.
    fn ask(&self, db: &DB, family: DataFamily, free_bytes: u64) -> Result<bool> {
        if number(db, family, properties::NUM_ENTRIES_ACTIVE_MEM_TABLE)? > 0 {
            let memtables = number(db, family, properties::CUR_SIZE_ALL_MEM_TABLES)?;
            if free_bytes < memtables + FLUSH_ALSO_BYTES {
                return Ok(false);
            }
            let mut options = FlushOptions::default();
            options.set_wait(false);
            // Otherwise it would wait, without limit, until compactions have caught up.
            options.set_allow_write_stall(true);
            db.flush_cf_opt(&family, &options).map_err(|error| Error::from_rocks(&error))?;
            return Ok(true);
        }
        let mut tables = family_tables(db, &family).map_err(|error| Error::Rocks { detail: error.to_string() })?;
        let last_level = tables.iter().map(|table| table.level).max();
        if last_level == Some(0) {
            let mut options = CompactOptions::default();
            options.set_exclusive_manual_compaction(false);
            db.compact_range_cf_opt(&family, None::<&[u8]>, None::<&[u8]>, &options);
            return Ok(true);
        }
        tables.retain(|table| Some(table.level) < last_level && (self.has_value_log || may_hold_deletions(table)));
        let deletions_per_byte = |table: &FamilyTable| table.deletions as f64 / table.bytes.max(1) as f64;
        tables.sort_by(|one, other| deletions_per_byte(other).total_cmp(&deletions_per_byte(one)));
        tables.truncate(MAX_TABLES);
        for table in &tables {
            let (from, to) = (&table.smallest_user_key, &table.largest_user_key);
            let suggested = db.suggest_compact_range_cf(&family, Some(from), Some(to));
            suggested.map_err(|error| Error::from_rocks(&error))?;
        }
        Ok(!tables.is_empty())
    }
}

/// What is written and may free space.
const RUNNING: [&properties::PropName; 2] = [properties::NUM_RUNNING_COMPACTIONS, properties::NUM_RUNNING_FLUSHES];

/// What would be, and begins soon or waits until there is room for it.
const AWAITED: [&properties::PropName; 2] = [properties::COMPACTION_PENDING, properties::MEM_TABLE_FLUSH_PENDING];

/// Whether RocksDB says more than 0 of one of these.
fn is_any(db: &DB, family: DataFamily, of: &[&properties::PropName]) -> Result<bool> {
    for property in of {
        if number(db, family, property)? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn number(db: &DB, family: DataFamily, property: &properties::PropName) -> Result<u64> {
    let found = db.property_int_value_cf(&family, property).map_err(|error| Error::from_rocks(&error))?;
    Ok(found.unwrap_or(0))
}
