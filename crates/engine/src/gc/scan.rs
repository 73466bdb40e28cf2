//! Compacts the tables that refer to a candidate set forcibly, so that what costs least for each
//! byte that it gives back is free first.
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
//!
//! A table is rewritten together with what overlaps it in levels above, where that is not too much:
//! a value that was overwritten there is not copied, and keys that would go down before long do so
//! now.

use std::cmp::Reverse;
use std::collections::HashSet;

use ecotone_policy::dedup::plan::{MergeLimits, with_those_above};
use ecotone_policy::gc::SegmentUse;
use ecotone_rocks_sys::tables::FamilyTable;
use ecotone_types::units::Bytes;
use ecotone_valuelog::pointer::{SegmentMap, SegmentNumber};
use rust_rocksdb::{CompactOptions, DB, ErrorKind};

use crate::compaction::by_names;
use crate::compaction::internal::CompactionPermit;
use crate::compaction::jobs::CompactionPurpose;
use crate::family::DataFamily;
use crate::gc::references::TableReferences;

/// What one compaction takes at most, where a single table is not more than that: a second of one
/// core. RocksDB begins none of its own meanwhile, and nobody looks how fast garbage grows.
const MAX_STEP_BYTES: Bytes = Bytes::from_mib(16);

/// Where the scan is.
#[derive(Debug, Default)]
pub(super) struct GcScan {
    /// Of the segments that had a compaction.
    progress: SegmentMap<Progress>,
    /// The segment that has its turn.
    current: Option<SegmentNumber>,
}

/// Where the scan of one segment is.
#[derive(Debug)]
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
    free: Vec<&'a FamilyTable>,
}

impl GcScan {
    /// The table to compact next, of those that name segments of the candidate set (`naming`),
    /// whose use is among `uses`. While flushes go on (`is_flushing`) not what the next compaction
    /// of level 0 rewrites anyway.
    pub(super) fn next<'a>(
        &mut self,
        tables: &'a [FamilyTable],
        references: &TableReferences,
        uses: &[SegmentUse],
        is_flushing: bool,
    ) -> Option<&'a FamilyTable> {
        let met = if is_flushing { met_by_flushes(tables) } else { HashSet::new() };
        let mut named: SegmentMap<Named<'a>> = SegmentMap::default();
        for table in tables {
            let is_free = !met.contains(&table.file_number) && !table.being_compacted;
            let segments = references.get(&table.file_number).map_or(&[][..], Vec::as_slice);
            for segment in segments {
                let named = named.entry(*segment).or_default();
                // All of them are rid of the table when it is rewritten for one.
                named.bytes += table.bytes / segments.len() as u64;
                named.free.extend(is_free.then_some(table));
            }
        }
        self.progress.retain(|segment, _| named.contains_key(segment));
        let costs: SegmentMap<f64> = uses
            .iter()
            .map(|segment| (SegmentNumber(segment.segment), segment))
            .filter_map(|(number, segment)| Some((number, segment.cost(Bytes(named.get(&number)?.bytes)))))
            .collect();
        let cost = |segment: &SegmentNumber| costs.get(segment).copied().unwrap_or(f64::INFINITY);
        let has_had_all =
            |segment: &SegmentNumber| self.progress.get(segment).is_some_and(|progress| progress.left == 0);
        let place = |segment: &SegmentNumber| (has_had_all(segment), cost(segment), segment.0);
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
            let place = (Reverse(table.level), table.smallest_user_key.as_slice());
            let is_behind =
                progress.after.as_ref().is_some_and(|(level, key)| place <= (Reverse(*level), key.as_slice()));
            (is_behind, place)
        })
    }

    /// Rewrites `table` in its level, with what overlaps it above. Tables of level 0 overlap and go
    /// down with what is below them. False where it cannot be had now, because of a compaction that
    /// runs.
    ///
    /// # Errors
    ///
    /// What RocksDB refuses. The scan goes on behind it in any case.
    pub(super) fn compact(
        &mut self,
        db: &DB,
        family: DataFamily,
        tables: &[FamilyTable],
        table: &FamilyTable,
        target_file_bytes: u64,
        permit: &CompactionPermit<'_>,
    ) -> Result<bool, rust_rocksdb::Error> {
        self.pass_over(table.level, &table.largest_user_key);
        if table.level == 0 {
            return compact_down(db, family, table, permit).map(|()| true);
        }
        let tables: Vec<_> = tables.iter().map(by_names::table).collect();
        let mut limits = MergeLimits { max_bytes: MAX_STEP_BYTES };
        loop {
            let Ok(step) = with_those_above(&tables, table.file_number, &limits) else {
                return Ok(false);
            };
            match by_names::run(db, family, permit, CompactionPurpose::Gc, &step, target_file_bytes) {
                // The table alone may fit where more does not.
                Err(error) if error.kind() == ErrorKind::CompactionTooLarge && step.bytes <= limits.max_bytes => {
                    limits.max_bytes = Bytes::ZERO;
                }
                Err(error) => return Err(error),
                Ok(_) => {
                    let internal =
                        tables.iter().filter(|it| it.level == table.level && step.inputs.contains(&it.number));
                    if let Some(last) = internal.map(|it| &it.last).max() {
                        self.pass_over(table.level, last);
                    }
                    return Ok(true);
                }
            }
        }
    }

    /// The next compaction for the segment is that of what stands behind this key.
    fn pass_over(&mut self, level: u32, key: &[u8]) {
        if let Some(progress) = self.current.and_then(|segment| self.progress.get_mut(&segment)) {
            progress.after = Some((level, key.to_vec()));
        }
    }
}

/// The tables that the next compaction of level 0 rewrites: those of level 0, and what they overlap
/// in the first level below.
fn met_by_flushes(tables: &[FamilyTable]) -> HashSet<u64> {
    let flushed: Vec<_> = tables.iter().filter(|table| table.level == 0).collect();
    let first_level = tables.iter().map(|table| table.level).filter(|level| *level > 0).min();
    let overlaps = |table: &FamilyTable, other: &FamilyTable| {
        table.smallest_user_key <= other.largest_user_key && other.smallest_user_key <= table.largest_user_key
    };
    let is_met = |table: &&FamilyTable| {
        let is_near = table.level == 0 || Some(table.level) == first_level;
        is_near && flushed.iter().any(|other| overlaps(table, other))
    };
    tables.iter().filter(is_met).map(|table| table.file_number).collect()
}

/// Brings the keys of a table's range to the last level.
pub(super) fn compact_down(
    db: &DB,
    family: DataFamily,
    table: &FamilyTable,
    permit: &CompactionPermit<'_>,
) -> Result<(), rust_rocksdb::Error> {
    compact_range(db, family, (&table.smallest_user_key, &table.largest_user_key), table.bytes, permit)
}

/// Brings the keys of a range to the last level, of which tables have so many bytes.
pub(super) fn compact_range(
    db: &DB,
    family: DataFamily,
    (from, to): (&[u8], &[u8]),
    bytes: u64,
    permit: &CompactionPermit<'_>,
) -> Result<(), rust_rocksdb::Error> {
    let mut options = CompactOptions::default();
    options.set_exclusive_manual_compaction(false);
    let compact = || {
        db.compact_range_cf_opt(&family, Some(from), Some(to), &options);
        Ok(None)
    };
    permit.run(CompactionPurpose::Gc, bytes, compact).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ecotone_policy::dedup::plan::Merge;
    use ecotone_policy::gc::GcParameters;
    use ecotone_rocks_sys::tables::live_tables;
    use parking_lot::Mutex;

    use super::*;
    use crate::{CompactionFinished, OpenMode, Separation, Store, StoreEvents, StoreOptions};

    /// How many parts each compaction had.
    #[derive(Default)]
    struct SubcompactionEvents(Mutex<Vec<u32>>);

    impl StoreEvents for SubcompactionEvents {
        fn compaction_finished(&self, event: &CompactionFinished) {
            self.0.lock().push(event.subcompactions);
        }
    }

    /// By whichever thread, and whatever that one has done before.
    #[test]
    fn what_is_relocated_goes_to_segments_of_the_level_that_its_tables_go_to() {
        let directory = tempfile::tempdir().unwrap();
        let subcompactions = Arc::new(SubcompactionEvents::default());
        let options = StoreOptions {
            separation: Some(Separation { min_bytes: 50, segment_bytes: 256 * 1024 }),
            dynamic_levels: false,
            target_file_bytes: 64 * 1024,
            max_subcompactions: 4,
            // The candidate set is set here and by nobody else.
            gc: GcParameters {
                min_garbage_bytes: Bytes(u64::MAX),
                forced_ratio: 1e6,
                urgent_ratio: 2e6,
                ..GcParameters::default()
            },
            events: Some(subcompactions.clone()),
            ..StoreOptions::default()
        };
        let store = Store::open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
        for number in 0..20_000_u32 {
            store.put(&number.to_be_bytes(), &[7; 100]).unwrap();
        }
        store.flush(true).unwrap();
        let values = store.values.as_ref().unwrap();
        for level in [2, 4] {
            values.log.seal_active();
            let before: Vec<_> = values.log.segments().iter().map(|segment| segment.number()).collect();
            let last = *before.last().unwrap();
            values.gc.set_candidates(before.into_iter().collect());
            let numbers: Vec<_> = live_tables(&store.db).unwrap().iter().map(|table| table.file_number).collect();
            let (bytes, entries) = (Bytes::from_mib(1), 20_000);
            let all = Merge { seeds: numbers.clone(), inputs: numbers, output_level: level, bytes, entries };
            let permit = values.gc.internal.permit(Duration::from_secs(60)).unwrap();
            by_names::run(&store.db, store.family, &permit, CompactionPurpose::Gc, &all, 64 * 1024).unwrap();
            let copies = values.log.segments().into_iter().filter(|segment| segment.number() > last);
            let levels: Vec<_> = copies.map(|segment| std::fs::read(segment.path()).unwrap()[16]).collect();
            assert!(levels.len() > 1 && levels.iter().all(|found| u32::from(*found) == level + 1), "{levels:?}");
        }
        let subcompactions = subcompactions.0.lock();
        assert!(
            subcompactions.len() == 2 && subcompactions.iter().all(|subcompactions| *subcompactions > 1),
            "{subcompactions:?}"
        );
    }

    fn table(file_number: u64, level: u32, keys: (u8, u8)) -> FamilyTable {
        FamilyTable {
            file_number,
            level,
            bytes: 1,
            smallest_user_key: vec![keys.0],
            largest_user_key: vec![keys.1],
            entries: 1,
            ..FamilyTable::default()
        }
    }

    /// What lives of a segment of 100 bytes, and the tables that refer to it.
    type Use<'a> = (u32, u64, &'a [u64]);

    fn named(segments: &[Use<'_>]) -> (TableReferences, Vec<SegmentUse>) {
        let mut references = TableReferences::new();
        for (segment, _, tables) in segments {
            tables.iter().for_each(|table| references.entry(*table).or_default().push(SegmentNumber(*segment)));
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
    fn turns(scan: &mut GcScan, tables: &[FamilyTable], segments: &[Use<'_>], turns: usize) -> Vec<u64> {
        let (references, uses) = named(segments);
        let mut taken = Vec::new();
        for _ in 0..turns {
            let next = scan.next(tables, &references, &uses, false).unwrap();
            scan.pass_over(next.level, &next.largest_user_key);
            taken.push(next.file_number);
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
    fn freed(tables: &[FamilyTable], segments: &[Use<'_>]) -> Vec<(u64, Vec<u32>)> {
        let (mut references, uses) = named(segments);
        let mut scan = GcScan::default();
        let mut freed = Vec::new();
        while let Some(next) = scan.next(tables, &references, &uses, false) {
            scan.pass_over(next.level, &next.largest_user_key);
            let before = references.remove(&next.file_number).unwrap();
            let is_named = |segment: &SegmentNumber| references.values().any(|names| names.contains(segment));
            freed.push((next.file_number, before.into_iter().filter(|it| !is_named(it)).map(|it| it.0).collect()));
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
        let large = FamilyTable { bytes: 1_000, ..table(0, 2, (0, 0)) };
        let tables_of_each: Vec<_> =
            (1..=5).map(|number| FamilyTable { file_number: number, ..large.clone() }).collect();
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
        assert_eq!(met_by_flushes(&tables), HashSet::new(), "nothing was flushed");
        tables.push(table(4, 0, (10, 20)));
        assert_eq!(met_by_flushes(&tables), HashSet::from([1, 4]));
        tables.push(table(5, 0, (40, 41)));
        assert_eq!(met_by_flushes(&tables), HashSet::from([1, 2, 4, 5]));
        tables.drain(..2);
        assert_eq!(met_by_flushes(&tables), HashSet::from([3, 4, 5]));
    }

    #[test]
    fn while_flushes_go_on_what_they_meet_waits_and_nothing_deeper_does() {
        let tables = [table(1, 0, (0, 40)), table(2, 1, (0, 90)), table(3, 2, (0, 40)), table(4, 2, (41, 90))];
        let next = |tables: &[FamilyTable], tables_referencing: &[u64], is_flushing| {
            let (references, uses) = named(&[(1, 50, tables_referencing)]);
            GcScan::default().next(tables, &references, &uses, is_flushing).map(|table| table.file_number)
        };
        assert_eq!((next(&tables, &[1, 2, 3], true), next(&tables, &[1, 2, 4], true)), (Some(3), Some(4)));
        assert_eq!((next(&tables, &[1, 2], true), next(&tables, &[1, 2], false)), (None, Some(2)));
        assert_eq!(next(&tables[1..], &[2], true), Some(2), "nothing is flushed that would meet it");
    }

    #[test]
    fn tables_that_are_compacted_or_name_nothing_are_passed_over() {
        let mut tables = [table(1, 1, (0, 90)), table(2, 2, (0, 40)), table(3, 2, (41, 90))];
        tables[1].being_compacted = true;
        let mut scan = GcScan::default();
        assert_eq!(turns(&mut scan, &tables, &[(1, 50, &[1, 2, 3])], 3), [3, 1, 3]);
        assert_eq!(turns(&mut scan, &tables, &[(1, 50, &[1])], 2), [1, 1]);
        let (references, uses) = named(&[(1, 50, &[2])]);
        assert!(scan.next(&tables, &references, &uses, false).is_none());
    }
}
