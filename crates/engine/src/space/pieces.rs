//! Where to cut a deletion of a range, so that the space it frees can be had in parts.
//!
//! RocksDB ends a table only at a key or where a range deletion begins. One deletion of a whole
//! store therefore comes to lie in one table that overlaps all of the next level, and a compaction
//! of the two must have room for all of it, though it writes next to nothing. Cut where tables
//! begin, the deletion is spread over tables of which each overlaps a few.

use ecotone_rocks::tables::TableMetadata;

/// Pieces of one range: they cost a read a little until a compaction has met them.
const MAX_PIECES: usize = 256;

/// The keys at which a deletion from `from` to before `to` is cut, rising: first keys of tables of
/// the deepest level in the range, with at least `piece_bytes` of tables between two of them.
pub(crate) fn cuts(tables: &[TableMetadata], from: &[u8], to: &[u8], piece_bytes: u64) -> Vec<Vec<u8>> {
    let inside =
        |table: &&TableMetadata| table.largest_user_key.as_slice() >= from && table.smallest_user_key.as_slice() < to;
    let Some(deepest) = tables.iter().filter(inside).map(|table| table.level).max() else { return Vec::new() };
    let mut of_level: Vec<_> = tables.iter().filter(inside).filter(|table| table.level == deepest).collect();
    of_level.sort_by(|one, other| one.smallest_user_key.cmp(&other.smallest_user_key));
    let all = of_level.iter().fold(0, |sum: u64, table| sum.saturating_add(table.bytes));
    let piece_bytes = piece_bytes.max(all / MAX_PIECES as u64).max(1);
    let (mut cuts, mut bytes) = (Vec::new(), 0);
    for table in of_level {
        if bytes >= piece_bytes && table.smallest_user_key.as_slice() > from {
            cuts.push(table.smallest_user_key.clone());
            bytes = 0;
        }
        bytes += table.bytes;
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(level: u32, smallest: &[u8], largest: &[u8], bytes: u64) -> TableMetadata {
        let (smallest_user_key, largest_user_key) = (smallest.to_vec(), largest.to_vec());
        TableMetadata { level, bytes, smallest_user_key, largest_user_key, ..TableMetadata::default() }
    }

    #[test]
    fn a_range_is_cut_where_tables_of_the_deepest_level_begin() {
        let tables = [
            table(6, b"m", b"p", 10),
            table(6, b"a", b"c", 10),
            table(5, b"b", b"r", 10),
            table(6, b"d", b"k", 10),
            table(6, b"q", b"x", 10),
        ];
        assert_eq!(cuts(&tables, b"b", b"r", 10), [b"d", b"m", b"q"]);
        assert_eq!(cuts(&tables, b"b", b"r", 11), [b"m"]);
        assert_eq!(cuts(&tables, b"d", b"q", 10), [b"m"], "neither at its begin nor at its end");
        assert_eq!(cuts(&tables, b"y", b"z", 10), [[0; 0]; 0]);
        assert_eq!(cuts(&[], b"a", b"z", 0), [[0; 0]; 0]);
    }

    #[test]
    fn there_are_never_many_pieces() {
        let tables: Vec<_> = (0..9999_u32).map(u32::to_be_bytes).map(|key| table(6, &key, &key, 100)).collect();
        let cuts = cuts(&tables, b"", b"z", 1);
        assert!(cuts.len() < MAX_PIECES && cuts.len() > MAX_PIECES / 2, "{}", cuts.len());
    }
}
