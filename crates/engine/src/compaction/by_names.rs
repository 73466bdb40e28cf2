//! Compactions of tables that are named: RocksDB adds what they overlap down to the level that is
//! written to.

use std::path::Path;

use ecotone_policy::dedup::plan::{Merge, Table};
use ecotone_rocks::tables::FamilyTable;
use ecotone_types::units::Bytes;
use rust_rocksdb::compaction::CompactionOptions;
use rust_rocksdb::event_listener::OwnedCompactionJobInfo;
use rust_rocksdb::{DB, Error};

use super::internal::CompactionPermit;
use super::jobs::CompactionPurpose;
use crate::family::DataFamily;

/// As the policy sees a table.
pub(crate) fn table(table: &FamilyTable) -> Table {
    Table {
        number: table.file_number,
        level: table.level,
        first: table.smallest_user_key.clone(),
        last: table.largest_user_key.clone(),
        bytes: Bytes(table.bytes),
        entries: table.entries,
        is_busy: table.being_compacted,
    }
}

/// Runs `merge`, and returns what RocksDB tells of it.
pub(crate) fn run(
    db: &DB,
    family: DataFamily,
    permit: &CompactionPermit<'_>,
    purpose: CompactionPurpose,
    merge: &Merge,
    target_file_bytes: u64,
) -> Result<Option<OwnedCompactionJobInfo>, Error> {
    let mut options = CompactionOptions::default();
    // Otherwise all of it would become one table.
    options.set_output_file_size_limit(target_file_bytes);
    if purpose == CompactionPurpose::Dedup {
        // A worker takes all of it or nothing: see the offload's adapter. So it is with what
        // relocates, which seldom goes, and has as many subcompactions as the store's: where that
        // is more than one it stays here.
        options.set_max_subcompactions(1);
    }
    let names: Vec<_> = merge.seeds.iter().map(|number| format!("{number:06}.sst")).collect();
    // Levels are few.
    let level = merge.output_level as i32;
    let compact = || Ok(db.compact_files_cf(&family, &options, &names, level)?.job_info);
    permit.run(purpose, merge.bytes.0, compact)
}

/// The number in a table's path.
pub(crate) fn number_of(path: &[u8]) -> Option<u64> {
    Path::new(std::str::from_utf8(path).ok()?).file_stem()?.to_str()?.parse().ok()
}

/// RocksDB does not know of tables that it has not looked at since it was opened.
pub(crate) fn may_hold_deletions(table: &FamilyTable) -> bool {
    table.deletions > 0 || table.entries == 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use ecotone_policy::dedup::estimate::freed_at_bottom;
    use ecotone_policy::dedup::plan::closure;
    use ecotone_policy::dedup::sketches::KeySketches;
    use ecotone_policy::gc::GcParameters;
    use ecotone_rocks::tables::family_tables;

    use super::*;
    use crate::compaction::internal::InternalCompactions;
    use crate::compaction::table_changes::TableChanges;
    use crate::dedup::DedupState;
    use crate::dedup::sample_registry::{SampleRegistry, max_samples};
    use crate::dedup::{DedupMode, DedupOptions, ExtensionThreshold};
    use crate::{Compression, OpenMode, Separation, Store, StoreSettings};

    fn settled(store: &Store) -> Vec<Table> {
        loop {
            let properties = store.properties().unwrap();
            if properties.running_compactions == 0 && !properties.compaction_pending {
                return family_tables(&store.db, &store.family).unwrap().iter().map(table).collect();
            }
            std::thread::yield_now();
        }
    }

    /// RocksDB tells the listener of none of them.
    #[test]
    fn what_is_compacted_by_names_is_looked_at_unless_it_merges_duplicates() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store"), OpenMode::Create, StoreSettings::default()).unwrap();
        let shared = Arc::<DedupState>::default();
        let internal = InternalCompactions::idle();
        internal.set_table_changes(Arc::new(TableChanges::new(vec![shared.clone()])));
        let permit = internal.permit(Duration::ZERO).unwrap();
        (0..1000_u32).for_each(|key| store.put(&key.to_be_bytes(), &[7; 100]).unwrap());
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        for (purpose, is_looked_at) in
            [(CompactionPurpose::Dedup, false), (CompactionPurpose::Gc, true), (CompactionPurpose::Expired, true)]
        {
            let tables = settled(&store);
            let all = closure(&tables, &[tables[0].number], tables[0].level).unwrap();
            run(&store.db, store.family, &permit, purpose, &all, 64 * 1024).unwrap();
            let looked_at = shared.queue.wait(Some(Duration::ZERO), Instant::now()).unwrap();
            assert_eq!(looked_at.iter().flatten().count() > 0, is_looked_at, "{purpose:?}");
        }
    }

    /// The values may be many times what the forecast of the merge knows of.
    #[test]
    fn a_merge_copies_no_values_though_its_tables_name_the_candidate_set() {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreSettings {
            separation: Some(Separation { min_bytes: 50, segment_bytes: 1 << 20 }),
            // Nobody else chooses a candidate set.
            gc: GcParameters { min_garbage_bytes: Bytes(1 << 50), ..GcParameters::default() },
            ..StoreSettings::default()
        };
        let store = Store::open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
        (0..1000_u32).for_each(|key| store.put(&key.to_be_bytes(), &[7; 100]).unwrap());
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        let values = store.values.as_ref().unwrap();
        values.log.seal_active();
        values.gc.set_candidates(values.log.segments().iter().map(|segment| segment.number()).collect());
        let permit = values.gc.internal.permit(Duration::from_secs(60)).unwrap();
        for (purpose, copies) in [(CompactionPurpose::Dedup, false), (CompactionPurpose::Gc, true)] {
            let tables = settled(&store);
            let all = closure(&tables, &[tables[0].number], tables[0].level).unwrap();
            run(&store.db, store.family, &permit, purpose, &all, 64 * 1024).unwrap().unwrap();
            assert_eq!(store.value_log().unwrap().relocated_bytes > 0, copies, "{purpose:?}");
        }
        for key in 0..1000_u32 {
            assert_eq!(store.get(&key.to_be_bytes()).unwrap().as_deref(), Some(&[7; 100][..]));
        }
    }

    #[test]
    fn rocksdb_frees_with_a_deletion_what_it_deletes_as_foretold() {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreSettings {
            dynamic_levels: false,
            l0_compaction_trigger: 2,
            dedup: DedupOptions {
                mode: Some(DedupMode::Sample),
                threshold: ExtensionThreshold::Off,
                ..DedupOptions::default()
            },
            ..StoreSettings::default()
        };
        let store = Store::open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
        let keys = 0..120_000_u32;
        keys.clone().step_by(2).for_each(|key| store.put(&key.to_be_bytes(), &[7; 100]).unwrap());
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        // One table a level further down: in a gap between two no deletion would wait to be merged.
        let tables = settled(&store);
        let bottom = tables.iter().map(|table| table.level).max().unwrap() + 1;
        let all: Vec<_> = tables.iter().map(|table| table.number).collect();
        let internal = InternalCompactions::idle();
        let permit = internal.permit(Duration::ZERO).unwrap();
        run(
            &store.db,
            store.family,
            &permit,
            CompactionPurpose::Dedup,
            &closure(&tables, &all, bottom).unwrap(),
            1 << 30,
        )
        .unwrap();
        // Half of them are deleted, some of these twice; and as many that never were.
        for part in 0..2 {
            let deleted = keys.clone().filter(|key| key % 4 < 2 && (key / 4 % 2 == part || key % 12 == 0));
            deleted.for_each(|key| store.delete(&key.to_be_bytes()).unwrap());
            store.flush(true).unwrap();
        }
        let tables = settled(&store);
        let seeds: Vec<_> = tables.iter().filter(|it| (1..bottom).contains(&it.level)).map(|it| it.number).collect();
        let merge = closure(&tables, &seeds, bottom).unwrap();
        let known = SampleRegistry::new(max_samples(None), None);
        let (_, known) = known.look(&store.db, &store.family).unwrap();
        let inputs = tables.iter().filter(|table| merge.inputs.contains(&table.number));
        let sketches: Vec<_> = inputs.map(|table| known.sketch(table)).collect();
        let expected = freed_at_bottom(&sketches, known.duplicates().one_in()).duplicate_keys;
        drop(sketches);
        drop(known);
        let told = run(&store.db, store.family, &permit, CompactionPurpose::Dedup, &merge, 1 << 20).unwrap().unwrap();
        let stats = told.info().stats();
        let freed = stats.num_input_records() - stats.num_output_records();
        // 30,000 values with what deletes them, and 30,000 deletions of nothing.
        assert_eq!((freed, stats.num_output_records()), (90_000, 30_000));
        // Five standard deviations of 470 keys that are sampled with their deletions and 470
        // without values.
        assert!((expected as f64 / freed as f64 - 1.0).abs() < 0.2, "{expected} of {freed}");
    }

    #[test]
    fn rocksdb_takes_the_tables_that_are_foretold() {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreSettings {
            memtable_bytes: 256 * 1024,
            level_base_bytes: 1024 * 1024,
            level_multiplier: 2,
            dynamic_levels: false,
            target_file_bytes: 64 * 1024,
            compression: Compression::None,
            ..StoreSettings::default()
        };
        let store = Store::open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
        let mut state = 1_u64;
        let mut write = |entries: u64| {
            for _ in 0..entries {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                store.put(format!("key{:08}", (state >> 33) % 60_000).as_bytes(), &[7; 100]).unwrap();
            }
            store.flush(true).unwrap();
        };
        write(150_000);
        let internal = InternalCompactions::idle();
        let permit = internal.permit(Duration::ZERO).unwrap();
        let (mut deepest, mut most) = (0, 0);
        for attempt in 0_usize..40 {
            let tables = settled(&store);
            let last_level = tables.iter().map(|table| table.level).max().unwrap();
            let seeds: Vec<_> = tables.iter().filter(|table| (1..last_level).contains(&table.level)).collect();
            let Some(seed) = seeds.get(attempt * 7 % seeds.len().max(1)) else {
                write(20_000);
                continue;
            };
            // Two seeds with something between them, too.
            let level = seed.level;
            let second = seeds.iter().filter(|table| table.level == level).nth(3).filter(|_| attempt % 2 == 0);
            let numbers: Vec<_> = [Some(seed), second].into_iter().flatten().map(|table| table.number).collect();
            let to_level = if attempt % 3 == 0 { level + 1 } else { last_level };
            let foretold = closure(&tables, &numbers, to_level).unwrap();
            let told =
                run(&store.db, store.family, &permit, CompactionPurpose::Dedup, &foretold, 64 * 1024).unwrap().unwrap();
            let mut taken: Vec<_> = told.info().input_files().filter_map(number_of).collect();
            let mut inputs = foretold.inputs.clone();
            taken.sort_unstable();
            inputs.sort_unstable();
            assert_eq!(taken, inputs, "{numbers:?} to level {to_level}");
            assert_eq!(told.info().stats().num_input_records(), foretold.entries);
            (deepest, most) = (deepest.max(to_level - level), most.max(inputs.len()));
            if attempt % 4 == 3 {
                write(10_000);
            }
        }
        assert!(deepest > 1 && most > 10, "{deepest} levels, {most} tables");
    }
}
