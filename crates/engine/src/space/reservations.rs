//! What RocksDB has still to write for what it has taken already.

use std::collections::HashMap;

use rust_rocksdb::{DB, properties};

use crate::StoreSettings;
use crate::family::DataFamily;

const MIB: u64 = 1 << 20;

/// What is to come when nothing runs: memtables, and the compaction that comes next.
///
/// That is one of two. Level 0 goes whole, with what memtables will add to it, into the level that
/// RocksDB calls its base. A deeper one takes a table and what it overlaps in the next level, on
/// average as many as one level is larger than the other. Were there no room for either, RocksDB
/// could never free any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Backlog {
    /// Bytes of all memtables.
    pub(crate) memtable_bytes: u64,
    /// Bytes that the next compaction reads, and so writes at most.
    pub(crate) next_compaction_bytes: u64,
}

/// Bytes of a compaction of one table in one of the deeper levels, its margins included.
pub(crate) fn deep_compaction_bytes(options: &StoreSettings) -> u64 {
    u64::from(options.level_multiplier).saturating_add(2).saturating_mul(options.target_file_bytes)
}

impl Backlog {
    /// Asks the database; nothing where it does not answer.
    pub(crate) fn read(db: &DB, family: DataFamily, deep_compaction_bytes: u64) -> Self {
        let memtables = db.property_int_value_cf(&family, properties::CUR_SIZE_ALL_MEM_TABLES);
        let levels = db.property_value_cf(&family, properties::LEVELSTATS);
        let memtable_bytes = memtables.ok().flatten().unwrap_or(0);
        let levels = level_bytes(&levels.ok().flatten().unwrap_or_default());
        let base = db.property_int_value_cf(&family, properties::BASE_LEVEL).ok().flatten();
        let base = base.and_then(|level| usize::try_from(level).ok()).unwrap_or(0).max(1);
        let next_compaction_bytes = next_compaction(&levels, base, memtable_bytes, deep_compaction_bytes);
        Self { memtable_bytes, next_compaction_bytes }
    }
}

/// Bytes of each level, from RocksDB's table of them: number, tables, MiB. Those are rounded, so a
/// level that has tables counts one MiB more.
fn level_bytes(stats: &str) -> Vec<u64> {
    let level = |line: &str| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().ok());
        let (_level, tables, mib) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(if tables > 0 { (mib + 1).saturating_mul(MIB) } else { 0 })
    };
    stats.lines().filter_map(level).collect()
}

fn next_compaction(levels: &[u64], base: usize, memtable_bytes: u64, deep_compaction_bytes: u64) -> u64 {
    let of = |levels: Option<&[u64]>| levels.unwrap_or_default().iter().copied().fold(0, u64::saturating_add);
    let of_level_0 = of(levels.get(..1)).saturating_add(of(levels.get(base..=base))).saturating_add(memtable_bytes);
    let deep = match of(levels.get(base + 1..)) {
        0 => 0,
        below => deep_compaction_bytes.min(of(levels.get(base..=base)).saturating_add(below)),
    };
    of_level_0.max(deep)
}

/// What running compactions will still write: no more than their inputs, less what they have
/// written already.
///
/// RocksDB counts what all compactions write, not each of them; so what those wrote that have ended
/// meanwhile is taken off. What a worker writes for this store is not counted while it writes, so
/// such a compaction counts whole until it ends.
///
/// Numbers of bytes that compactions have written come from RocksDB's counter, which never falls.
#[derive(Debug, Default)]
pub(crate) struct RunningCompactions {
    inputs: HashMap<i32, u64>,
    /// The counter when none ran last.
    base: u64,
    /// What those have written that ended since then.
    ended_outputs: u64,
}

impl RunningCompactions {
    /// A compaction of so many bytes begins.
    pub(crate) fn begin(&mut self, job: i32, input_bytes: u64, written_by_all: u64) {
        if self.inputs.is_empty() {
            (self.base, self.ended_outputs) = (written_by_all, 0);
        }
        self.inputs.insert(job, input_bytes);
    }

    /// It has ended, well or not.
    pub(crate) fn end(&mut self, job: i32, output_bytes: u64) {
        if self.inputs.remove(&job).is_some() {
            self.ended_outputs = self.ended_outputs.saturating_add(output_bytes);
        }
    }

    /// RocksDB runs none in the background: those whose end it never told are forgotten. It does
    /// not count those of our own, which have negative numbers ([`crate::compaction::internal`]).
    pub(crate) fn none_runs(&mut self) {
        self.inputs.retain(|job, _| *job < 0);
    }

    /// Bytes that are still to be written.
    pub(crate) fn to_write(&self, written_by_all: u64) -> u64 {
        let inputs = self.inputs.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let written = written_by_all.saturating_sub(self.base).saturating_sub(self.ended_outputs);
        inputs.saturating_sub(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_compaction_is_that_of_level_0_or_a_deep_one() {
        for (levels, base, expected) in [
            (&[][..], 1, 5),
            (&[0, 0, 0], 2, 5),
            (&[40, 0, 0], 2, 45),
            (&[40, 0, 30], 2, 75),
            // Level 0 goes to the empty base, so that the last level is left alone.
            (&[40, 0, 300], 1, 200),
            (&[240, 0, 300], 1, 245),
            // The deep one is at most all there is below.
            (&[0, 1, 30], 1, 31),
            (&[0, 10, 500], 1, 200),
            (&[40, 170, 500], 1, 215),
        ] {
            assert_eq!(next_compaction(levels, base, 5, 200), expected, "{levels:?}");
        }
    }

    #[test]
    fn levels_are_read_from_what_rocksdb_prints() {
        let printed = "Level Files Size(MB)\n--------------------\n  0        3        1\n  1        0        0\n  2        1        0\n  3       12     1700\n";
        assert_eq!(level_bytes(printed), [2 * MIB, 0, MIB, 1701 * MIB]);
        assert_eq!(level_bytes("something else"), [0; 0]);
    }

    #[test]
    fn what_is_to_come_shrinks_as_it_is_written_and_with_the_end() {
        let mut running = RunningCompactions::default();
        assert_eq!(running.to_write(500), 0);
        running.begin(1, 100, 500);
        assert_eq!(running.to_write(500), 100);
        assert_eq!(running.to_write(540), 60);
        running.begin(2, 50, 540);
        assert_eq!(running.to_write(560), 90, "both wrote 60 together");
        // The first wrote 45 in all, the second 25 of its 50 so far.
        running.end(1, 45);
        assert_eq!(running.to_write(570), 25);
        running.end(2, 40);
        assert_eq!(running.to_write(585), 0);
        running.begin(3, 10, 700);
        assert_eq!(running.to_write(700), 10, "what was written before does not count");
        running.begin(-1, 7, 700);
        running.begin(-2, 4, 700);
        running.none_runs();
        assert_eq!(running.to_write(700), 11, "nor does RocksDB count what it was asked for");
        running.end(-1, 7);
        running.end(-2, 4);
        assert_eq!(running.to_write(700), 0);
    }

    #[test]
    fn outputs_that_came_from_elsewhere_never_shadow_what_is_to_come() {
        let mut running = RunningCompactions::default();
        running.begin(1, 100, 0);
        running.begin(2, 80, 0);
        // A worker wrote it: the counter stays.
        running.end(1, 90);
        assert_eq!(running.to_write(0), 80);
        running.end(7, 1);
        assert_eq!(running.to_write(0), 80);
    }
}
