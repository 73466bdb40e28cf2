//! What rids a range of keys of entries that are gone, and whether that pays.
//!
//! All is counted in entries that a scan steps over. To write one anew takes as long as to step
//! over [`ENTRIES_A_REWRITE`], and each flush or compaction as long as [`ENTRIES_A_JOB`] beside
//! that.

use std::cmp::Reverse;

use ecotone_rocks::tables::FamilyTable;

use super::skipped::SkippedRange;

/// By estimate: a scan steps over an entry in 0.1 to 0.2 us; a flush or compaction takes 1 to 1.5
/// us for one.
const ENTRIES_A_REWRITE: u64 = 8;

/// By estimate: a job that has nothing to do takes some 5 ms, mostly for what it makes durable.
const ENTRIES_A_JOB: u64 = 40_000;

/// Tables with fewer deletions are left alone: nobody is throttled by them.
const MIN_DELETIONS: u64 = 64;

/// Tables that are weighed against each other: those with most deletions.
const MAX_WEIGHED: usize = 64;

/// The memtable is flushed first where it holds one in so many entries that the worst scan has
/// stepped over.
const MEMTABLE_SHARE: u64 = 4;

/// The memtable that is written to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memtable {
    /// All its entries.
    pub(super) entries: u64,
    /// Those in the range, about.
    pub(super) in_range: u64,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing that would help.
    Nothing,
    /// Wait until compactions that run have ended.
    Wait,
    /// Flush the memtable, which takes as long as to step over so many entries.
    Flush { cost: u64 },
    /// Compact this range down; tables of so many bytes are read.
    Compact { first: Vec<u8>, last: Vec<u8>, bytes: u64, cost: u64 },
}

/// What frees a scan of `range` from most for its cost.
pub(super) fn next(range: &SkippedRange, memtable: Memtable, tables: &[FamilyTable]) -> Next {
    // Nobody has read since the last step: the memtable is as little in the way as it was then.
    let has_new = range.most > 0;
    if has_new && memtable.in_range >= (range.most / MEMTABLE_SHARE).max(MIN_DELETIONS) {
        return Next::Flush { cost: cost(memtable.entries) };
    }
    let within: Vec<_> = tables.iter().filter(|table| overlaps(table, &range.first, &range.last)).collect();
    // Also at the bottom: a table that was moved there as it is still has its deletions.
    let mut to_sink: Vec<_> = within.iter().filter(|table| table.deletions >= MIN_DELETIONS).collect();
    to_sink.sort_by_key(|table| Reverse(table.deletions));
    to_sink.truncate(MAX_WEIGHED);
    let mut is_busy = false;
    let mut best: Option<(f64, Next)> = None;
    for table in to_sink {
        let first = (&range.first).max(&table.smallest_user_key);
        let last = (&range.last).min(&table.largest_user_key);
        let inputs = inputs(tables, table.level, first, last);
        if inputs.iter().any(|input| input.being_compacted) {
            is_busy = true;
            continue;
        }
        let sum = |of: fn(&FamilyTable) -> u64| inputs.iter().fold(0, |sum: u64, input| sum.saturating_add(of(input)));
        let cost = cost(sum(|input| input.entries));
        let gain = table.deletions as f64 / cost as f64;
        if best.as_ref().is_none_or(|(most, _)| gain > *most) {
            let (first, last, bytes) = (first.clone(), last.clone(), sum(|input| input.bytes));
            best = Some((gain, Next::Compact { first, last, bytes, cost }));
        }
    }
    match best {
        Some((_, next)) => next,
        None if is_busy => Next::Wait,
        // How much of the memtable is in the range is an estimate: where no table can be in the
        // way, it is the memtable.
        None if has_new && memtable.entries >= (range.most / MEMTABLE_SHARE).max(MIN_DELETIONS) => {
            Next::Flush { cost: cost(memtable.entries) }
        }
        None => Next::Nothing,
    }
}

fn overlaps(table: &FamilyTable, first: &[u8], last: &[u8]) -> bool {
    *table.smallest_user_key <= *last && *first <= *table.largest_user_key
}

fn is_below(lower: &FamilyTable, upper: &FamilyTable) -> bool {
    lower.level > upper.level && overlaps(lower, &upper.smallest_user_key, &upper.largest_user_key)
}

/// The tables that are read where a range is compacted down from `level`: of that level they are
/// taken whole, and so is all that they meet in the next one; further down what meets the range.
fn inputs<'t>(tables: &'t [FamilyTable], level: u32, first: &[u8], last: &[u8]) -> Vec<&'t FamilyTable> {
    let meets = |table: &&FamilyTable| overlaps(table, first, last);
    let top: Vec<_> = tables.iter().filter(|table| table.level == level).filter(meets).collect();
    let next_level = tables.iter().map(|table| table.level).filter(|other| *other > level).min();
    let below = tables.iter().filter(|table| table.level > level).filter(|table| {
        let is_met = |upper: &&FamilyTable| is_below(table, upper);
        if Some(table.level) == next_level { top.iter().any(is_met) } else { meets(table) }
    });
    top.iter().copied().chain(below).collect()
}

fn cost(rewritten: u64) -> u64 {
    ENTRIES_A_JOB.saturating_add(rewritten.saturating_mul(ENTRIES_A_REWRITE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_MEMTABLE: Memtable = Memtable { entries: 0, in_range: 0 };

    fn range(first: u8, last: u8, most: u64) -> SkippedRange {
        SkippedRange { first: vec![first], last: vec![last], entries: most, most, wanted: 0 }
    }

    fn table(file_number: u64, level: u32, keys: (u8, u8), entries: u64, deletions: u64) -> FamilyTable {
        FamilyTable {
            file_number,
            level,
            bytes: 10 * entries,
            smallest_user_key: vec![keys.0],
            largest_user_key: vec![keys.1],
            entries,
            deletions,
            being_compacted: false,
        }
    }

    fn compaction(next: Next) -> (u8, u8, u64) {
        match next {
            Next::Compact { first, last, bytes, .. } => (first[0], last[0], bytes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_memtable_goes_first_where_it_may_hold_what_is_in_the_way() {
        let tables = [table(1, 0, (1, 9), 1000, 900)];
        let memtable = Memtable { entries: 5000, in_range: 2500 };
        assert_eq!(next(&range(1, 9, 10_000), memtable, &tables), Next::Flush { cost: 80_000 });
        assert_eq!(compaction(next(&range(1, 9, 10_004), memtable, &tables)), (1, 9, 10_000));
        assert_eq!(compaction(next(&range(1, 9, 0), memtable, &tables)), (1, 9, 10_000), "nobody has read meanwhile");
        let underestimated = Memtable { entries: 5000, in_range: 0 };
        assert_eq!(next(&range(1, 9, 10_000), underestimated, &[]), Next::Flush { cost: 80_000 });
        assert_eq!(next(&range(1, 9, 0), underestimated, &[]), Next::Nothing);
        let small = Memtable { entries: 5000, in_range: 63 };
        assert_eq!(compaction(next(&range(1, 9, 1), small, &tables)), (1, 9, 10_000));
    }

    #[test]
    fn tables_whose_deletions_cost_least_to_carry_out_go_first_and_only_their_part_of_the_range() {
        let tables = [
            // Many deletions, and very much below them.
            table(1, 2, (1, 4), 1000, 500),
            table(2, 3, (1, 4), 1_000_000, 0),
            // Fewer, and little.
            table(3, 2, (5, 9), 1000, 400),
            table(4, 3, (5, 9), 10_000, 0),
            // None, and beyond the range.
            table(5, 3, (10, 20), 1000, 0),
            table(6, 2, (21, 30), 1000, 1000),
            table(7, 3, (21, 30), 1000, 0),
        ];
        assert_eq!(compaction(next(&range(2, 20, 1000), NO_MEMTABLE, &tables)), (5, 9, 110_000));
        assert_eq!(compaction(next(&range(2, 4, 1000), NO_MEMTABLE, &tables)), (2, 4, 10_010_000));
        assert_eq!(next(&range(10, 20, 1000), NO_MEMTABLE, &tables), Next::Nothing);
        // A table that was moved to the bottom as it is.
        let moved = [table(8, 6, (1, 9), 1000, 900)];
        assert_eq!(compaction(next(&range(2, 4, 1000), NO_MEMTABLE, &moved)), (2, 4, 10_000));
    }

    #[test]
    fn a_table_of_level_0_takes_all_with_it_that_it_meets_in_the_next_level() {
        let tables = [
            table(1, 0, (1, 90), 1000, 500),
            table(2, 4, (1, 9), 1000, 0),
            table(3, 4, (80, 90), 1000, 0),
            table(4, 5, (1, 9), 1000, 0),
            table(5, 5, (80, 90), 1000, 0),
        ];
        assert_eq!(compaction(next(&range(2, 4, 1000), NO_MEMTABLE, &tables)), (2, 4, 40_000));
    }

    #[test]
    fn what_is_compacted_already_is_waited_for() {
        let mut tables = [table(1, 1, (1, 4), 1000, 500), table(2, 3, (1, 4), 1000, 0)];
        tables[1].being_compacted = true;
        assert_eq!(next(&range(1, 4, 1000), NO_MEMTABLE, &tables), Next::Wait);
    }
}
