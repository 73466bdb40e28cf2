//! A compaction of many tables, piece by piece.
//!
//! RocksDB compacts a range of keys level by level, however many tables that takes, and nobody can
//! stop it halfway. So the order of keys is cut where tables of the last level end, and one piece
//! is compacted after the other: whoever waits hears how far it is, may change his mind, and other
//! work has its turn.
//!
//! Invariant: pieces follow one another without a gap, from before the first key to behind the
//! last.
//!
//! Threads: any. A piece waits for its [permit](crate::compaction::internal) among the internal
//! compactions.

use std::cmp::Ordering;

use ecotone_rocks::tables::FamilyTable;
use rust_rocksdb::{BottommostLevelCompaction, CompactOptions, DB};

use crate::family::DataFamily;

/// Bytes of the last level in one piece, about: some seconds on a slow device.
pub(crate) const PIECE_BYTES: u64 = 128 << 20;

/// What one step compacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// From this key on; `None` is from the first.
    from: Option<Vec<u8>>,
    /// Up to this key; `None` is to the last.
    to: Option<Vec<u8>>,
    /// Bytes of the last level in it.
    pub(crate) bytes: u64,
}

/// The last level that has tables; 0 where there are none.
pub(crate) fn last_level(tables: &[FamilyTable]) -> u32 {
    tables.iter().map(|table| table.level).max().unwrap_or(0)
}

/// Whether a table lies where a compaction would bring it down: above the last level, or in level
/// 0.
pub(crate) fn is_above(table: &FamilyTable, last_level: u32) -> bool {
    table.level < last_level || table.level == 0
}

/// All keys, cut into pieces of about `piece_bytes`.
pub(crate) fn pieces(tables: &[FamilyTable], piece_bytes: u64) -> Vec<Piece> {
    let last = last_level(tables);
    let mut at_the_end: Vec<_> = tables.iter().filter(|table| table.level == last && last > 0).collect();
    at_the_end.sort_by(|one, other| one.smallest_user_key.cmp(&other.smallest_user_key));
    let mut pieces = Vec::new();
    let (mut from, mut bytes) = (None, 0);
    for (number, table) in at_the_end.iter().enumerate() {
        bytes += table.bytes;
        if bytes >= piece_bytes && number + 1 < at_the_end.len() {
            let to = table.largest_user_key.clone();
            // The next one begins behind that key.
            let next = [&to[..], &[0]].concat();
            pieces.push(Piece { from: from.replace(next), to: Some(to), bytes: std::mem::take(&mut bytes) });
        }
    }
    pieces.push(Piece { from, to: None, bytes });
    pieces
}

impl Piece {
    /// Whether a table has keys in it.
    pub(crate) fn meets(&self, table: &FamilyTable) -> bool {
        let ends_before = self.from.as_ref().is_some_and(|from| table.largest_user_key.cmp(from) == Ordering::Less);
        let begins_behind = self.to.as_ref().is_some_and(|to| table.smallest_user_key.cmp(to) == Ordering::Greater);
        !ends_before && !begins_behind
    }

    /// Brings its keys to the last level, and waits for it. `rewrites_last`: tables that lie there
    /// already are rewritten as well. RocksDB's C API does not return the outcome.
    pub(crate) fn compact(&self, db: &DB, family: DataFamily, rewrites_last: bool) {
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        options.set_bottommost_level_compaction(match rewrites_last {
            true => BottommostLevelCompaction::ForceOptimized,
            false => BottommostLevelCompaction::Skip,
        });
        db.compact_range_cf_opt(&family, self.from.as_deref(), self.to.as_deref(), &options);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(level: u32, from: &str, to: &str) -> FamilyTable {
        let (smallest_user_key, largest_user_key) = (from.into(), to.into());
        FamilyTable { level, bytes: 10, smallest_user_key, largest_user_key, ..FamilyTable::default() }
    }

    #[test]
    fn pieces_end_where_tables_of_the_last_level_do_and_leave_no_key_out() {
        let last = [table(6, "m", "p"), table(6, "a", "c"), table(6, "d", "l"), table(6, "q", "z")];
        let upper = [table(0, "a", "zz"), table(5, "d", "k")];
        let tables = [&last[..], &upper[..]].concat();
        let piece = |from: Option<&str>, to: Option<&str>, bytes| Piece {
            from: from.map(|key| key.as_bytes().to_vec()),
            to: to.map(|key| key.as_bytes().to_vec()),
            bytes,
        };
        let two = pieces(&tables, 15);
        assert_eq!(two, [piece(None, Some("l"), 20), piece(Some("l\0"), None, 20)]);
        assert_eq!(pieces(&tables, 1).len(), 4);
        assert_eq!(pieces(&tables, 1000), [piece(None, None, 40)]);
        // Nothing to cut by.
        assert_eq!(pieces(&upper[..1], 1), [piece(None, None, 0)]);
        assert_eq!(pieces(&[], 1), [piece(None, None, 0)]);
        let met = |table: &FamilyTable| two.iter().map(|piece| piece.meets(table)).collect::<Vec<_>>();
        assert_eq!(met(&upper[0]), [true, true]);
        assert_eq!(met(&upper[1]), [true, false]);
        assert_eq!(met(&table(5, "l\0", "m")), [false, true]);
        assert!(is_above(&upper[0], 6) && is_above(&upper[1], 6) && !is_above(&last[0], 6) && is_above(&upper[0], 0));
    }
}
