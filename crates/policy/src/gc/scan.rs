//! In which order the tables that refer to a candidate set are compacted forcibly, so that what
//! costs least for each byte that it gives back is free first.
//!
//! A segment is free once all tables that refer to it are rewritten. So it is segments that have a
//! turn, the cheapest one first ([`SegmentUse::cost`]), and the tables that refer to it are
//! rewritten for it: the deepest level first, each in the order of keys. A table that is rewritten
//! for one segment lets go of all others of the candidate set that it names, so they share what it
//! costs; and where keys were written in no order, and each table refers to all segments, all of a
//! candidate set is free at the end of one scan.
//!
//! A segment of which a value cannot be read stays named, however often. So each segment has as
//! many compactions as there were tables to compact that named it, then those that still wait for
//! theirs come first. Each compaction for a segment goes on behind the last one for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ecotone_types::units::Bytes;

use super::SegmentUse;
use crate::dedup::plan::Table;

/// Where the scan is.
#[derive(Debug, Clone, Default)]
pub(super) struct GcScan {
    /// Of the segments that had a compaction.
    progress: BTreeMap<u32, Progress>,
    /// The segment that has its turn.
    current: Option<u32>,
}

/// Where the scan of one segment is.
#[derive(Debug, Clone)]
struct Progress {
    /// Compactions that are left to it until all others have had theirs.
    left: usize,
    /// The level of the table that was compacted last for it, and its last key.
    after: Option<(u32, Vec<u8>)>,
}

/// A segment of the candidate set, and the tables that refer to it.
#[derive(Default)]
struct Named<'a> {
    /// Their bytes; of one that names others, too, the part that falls to this one.
    bytes: u64,
    /// Those of them that can be compacted now.
    free: Vec<&'a Table>,
}

impl GcScan {
    /// The table to compact next, of those that refer to segments of the candidate set
    /// (`references`), whose use is among `uses`. While flushes go on (`is_flushing`) not what the
    /// next compaction of level 0 rewrites anyway.
    pub(super) fn next<'a>(
        &mut self,
        tables: &'a [Table],
        references: &BTreeMap<u64, Vec<u32>>,
        uses: &[SegmentUse],
        is_flushing: bool,
    ) -> Option<&'a Table> {
        let met = if is_flushing { met_by_flushes(tables) } else { BTreeSet::new() };
        let mut named: BTreeMap<u32, Named<'a>> = BTreeMap::new();
        for table in tables {
            let is_free = !met.contains(&table.number) && !table.is_busy;
            let segments = references.get(&table.number).map_or(&[][..], Vec::as_slice);
            for segment in segments {
                let named = named.entry(*segment).or_default();
                // All of them are rid of the table when it is rewritten for one.
                named.bytes += table.bytes.0 / segments.len() as u64;
                named.free.extend(is_free.then_some(table));
            }
        }
        self.progress.retain(|segment, _| named.contains_key(segment));
        let costs: BTreeMap<u32, f64> =
            uses.iter().filter_map(|it| Some((it.segment, it.cost(Bytes(named.get(&it.segment)?.bytes))))).collect();
        let cost = |segment: &u32| costs.get(segment).copied().unwrap_or(f64::INFINITY);
        let has_had_all = |segment: &u32| self.progress.get(segment).is_some_and(|progress| progress.left == 0);
        let place = |segment: &u32| (has_had_all(segment), cost(segment), *segment);
        let (segment, of) =
            named.iter().filter(|(_, named)| !named.free.is_empty()).min_by(|(one, _), (other, _)| {
                let (one, other) = (place(one), place(other));
                one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)).then(one.2.cmp(&other.2))
            })?;
        if has_had_all(segment) {
            // So have all others that can be compacted for.
            self.progress.clear();
        }
        self.current = Some(*segment);
        let progress = self.progress.entry(*segment).or_insert(Progress { left: of.free.len(), after: None });
        progress.left = progress.left.saturating_sub(1);
        of.free.iter().copied().min_by_key(|table| {
            let place = (Reverse(table.level), table.first.as_slice());
            let is_behind =
                progress.after.as_ref().is_some_and(|(level, key)| place <= (Reverse(*level), key.as_slice()));
            (is_behind, place)
        })
    }

    /// The next compaction for the segment is that of what lies behind this key.
    pub(super) fn pass_over(&mut self, level: u32, key: &[u8]) {
        if let Some(progress) = self.current.and_then(|segment| self.progress.get_mut(&segment)) {
            progress.after = Some((level, key.to_vec()));
        }
    }
}

/// The tables that the next compaction of level 0 rewrites: those of level 0, and what they overlap
/// in the first level below.
fn met_by_flushes(tables: &[Table]) -> BTreeSet<u64> {
    let flushed: Vec<_> = tables.iter().filter(|table| table.level == 0).collect();
    let first_level = tables.iter().map(|table| table.level).filter(|level| *level > 0).min();
    let overlaps = |table: &Table, other: &Table| table.first <= other.last && other.first <= table.last;
    let is_met = |table: &&Table| {
        let is_near = table.level == 0 || Some(table.level) == first_level;
        is_near && flushed.iter().any(|other| overlaps(table, other))
    };
    tables.iter().filter(is_met).map(|table| table.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(number: u64, level: u32, keys: (u8, u8)) -> Table {
        let (first, last) = (vec![keys.0], vec![keys.1]);
        Table { number, level, first, last, bytes: Bytes(1), entries: 1, is_busy: false }
    }

    /// What lives of a segment of 100 bytes, and the tables that refer to it.
    type Use<'a> = (u32, u64, &'a [u64]);

    fn named(segments: &[Use<'_>]) -> (BTreeMap<u64, Vec<u32>>, Vec<SegmentUse>) {
        let mut references = BTreeMap::<u64, Vec<u32>>::new();
        for (segment, _, tables) in segments {
            tables.iter().for_each(|table| references.entry(*table).or_default().push(*segment));
        }
        let uses = segments.iter().map(|(segment, referenced, _)| SegmentUse {
            segment: *segment,
            bytes: Bytes(100),
            referenced: Bytes(*referenced),
            settled: true,
        });
        (references, uses.collect())
    }

    /// Makes no compaction: a table keeps its number and its place, and names the same segments
    /// again at once.
    fn turns(scan: &mut GcScan, tables: &[Table], segments: &[Use<'_>], turns: usize) -> Vec<u64> {
        let (references, uses) = named(segments);
        let mut taken = Vec::new();
        for _ in 0..turns {
            let next = scan.next(tables, &references, &uses, false).unwrap();
            scan.pass_over(next.level, &next.last);
            taken.push(next.number);
        }
        taken
    }

    #[test]
    fn all_tables_have_their_turn_though_the_first_ones_name_a_growing_candidate_set_again() {
        let tables = [
            table(1, 1, (0, 90)),
            table(2, 2, (0, 40)),
            table(3, 2, (41, 90)),
            table(4, 3, (5, 30)),
            table(5, 3, (31, 60)),
        ];
        let mut scan = GcScan::default();
        assert_eq!(turns(&mut scan, &tables, &[(1, 50, &[1, 2, 3, 4, 5])], 12), [4, 5, 2, 3, 1, 4, 5, 2, 3, 1, 4, 5]);
    }

    /// The tables in the order of their compactions, each of which lets go of all that its table
    /// refers to; with the segments that are free then.
    fn freed(tables: &[Table], segments: &[Use<'_>]) -> Vec<(u64, Vec<u32>)> {
        let (mut references, uses) = named(segments);
        let mut scan = GcScan::default();
        let mut freed = Vec::new();
        while let Some(next) = scan.next(tables, &references, &uses, false) {
            scan.pass_over(next.level, &next.last);
            let before = references.remove(&next.number).unwrap();
            let is_named = |segment: &u32| references.values().any(|names| names.contains(segment));
            freed.push((next.number, before.into_iter().filter(|it| !is_named(it)).collect()));
        }
        freed
    }

    #[test]
    fn what_costs_least_for_a_byte_is_free_first() {
        let tables: Vec<_> = (1..=6).map(|number| table(number, 2, (number as u8, number as u8))).collect();
        // Written in the order of keys: each has tables of its own. By cost 2, 3, 1.
        let in_order: [Use<'_>; 3] = [(1, 70, &[1, 2]), (2, 20, &[5, 6]), (3, 60, &[3, 4])];
        let order = [(5, vec![]), (6, vec![2]), (3, vec![]), (4, vec![3]), (1, vec![]), (2, vec![1])];
        assert_eq!(freed(&tables, &in_order), order);
        // As much garbage, and one of them in fewer tables.
        let alike: [Use<'_>; 2] = [(1, 50, &[1, 2, 3, 4]), (2, 50, &[5, 6])];
        assert_eq!(freed(&tables, &alike)[..2], [(5, vec![]), (6, vec![2])]);
        // Ten of which a scan over four large tables frees all, beside a better one with a table of
        // its own.
        let large = Table { bytes: Bytes(1_000), ..table(0, 2, (0, 0)) };
        let tables_of_each: Vec<_> = (1..=5).map(|number| Table { number, ..large.clone() }).collect();
        let mut shared: Vec<Use<'_>> = (1..=10).map(|segment| (segment, 40, &[1, 2, 3, 4][..])).collect();
        shared.push((11, 30, &[5]));
        assert_eq!(freed(&tables_of_each, &shared)[3], (4, (1..=10).collect()));
        // In no order: one scan frees all.
        let all: [Use<'_>; 2] = [(1, 70, &[1, 2, 3, 4, 5, 6]), (2, 20, &[1, 2, 3, 4, 5, 6])];
        assert_eq!(freed(&tables, &all)[5], (6, vec![1, 2]));
    }

    #[test]
    fn each_segment_has_the_deepest_of_its_tables_first() {
        let tables = [table(1, 3, (0, 50)), table(2, 2, (0, 50)), table(3, 3, (60, 70)), table(4, 2, (51, 99))];
        let order = freed(&tables, &[(1, 20, &[1, 2]), (2, 50, &[3, 4])]);
        assert_eq!(order, [(1, vec![]), (2, vec![1]), (3, vec![]), (4, vec![2])]);
    }

    #[test]
    fn a_segment_that_stays_named_takes_no_turn_of_the_others() {
        let tables: Vec<_> = (1..=5).map(|number| table(number, 2, (number as u8, number as u8))).collect();
        let mut scan = GcScan::default();
        // The cheapest one, whose values cannot be read: it has two turns, as the others have one
        // and two.
        let segments: [Use<'_>; 3] = [(1, 10, &[1, 2]), (2, 80, &[3]), (3, 90, &[4, 5])];
        assert_eq!(turns(&mut scan, &tables, &segments, 10), [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_is_flushed_meets_what_it_overlaps_in_the_first_level_below_and_no_deeper_one() {
        let mut tables = vec![table(1, 3, (0, 40)), table(2, 3, (41, 90)), table(3, 5, (0, 90))];
        assert_eq!(met_by_flushes(&tables), BTreeSet::new(), "nothing was flushed");
        tables.push(table(4, 0, (10, 20)));
        assert_eq!(met_by_flushes(&tables), BTreeSet::from([1, 4]));
        tables.push(table(5, 0, (40, 41)));
        assert_eq!(met_by_flushes(&tables), BTreeSet::from([1, 2, 4, 5]));
        tables.drain(..2);
        assert_eq!(met_by_flushes(&tables), BTreeSet::from([3, 4, 5]));
    }

    #[test]
    fn while_flushes_go_on_what_they_meet_waits_and_nothing_deeper_does() {
        let tables = [table(1, 0, (0, 40)), table(2, 1, (0, 90)), table(3, 2, (0, 40)), table(4, 2, (41, 90))];
        let next = |tables: &[Table], tables_referencing: &[u64], is_flushing| {
            let (references, uses) = named(&[(1, 50, tables_referencing)]);
            GcScan::default().next(tables, &references, &uses, is_flushing).map(|table| table.number)
        };
        assert_eq!((next(&tables, &[1, 2, 3], true), next(&tables, &[1, 2, 4], true)), (Some(3), Some(4)));
        assert_eq!((next(&tables, &[1, 2], true), next(&tables, &[1, 2], false)), (None, Some(2)));
        assert_eq!(next(&tables[1..], &[2], true), Some(2), "nothing is flushed that would meet it");
    }

    #[test]
    fn tables_that_are_compacted_or_name_nothing_are_passed_over() {
        let mut tables = [table(1, 1, (0, 90)), table(2, 2, (0, 40)), table(3, 2, (41, 90))];
        tables[1].is_busy = true;
        let mut scan = GcScan::default();
        assert_eq!(turns(&mut scan, &tables, &[(1, 50, &[1, 2, 3])], 3), [3, 1, 3]);
        assert_eq!(turns(&mut scan, &tables, &[(1, 50, &[1])], 2), [1, 1]);
        let (references, uses) = named(&[(1, 50, &[2])]);
        assert!(scan.next(&tables, &references, &uses, false).is_none());
    }
}
