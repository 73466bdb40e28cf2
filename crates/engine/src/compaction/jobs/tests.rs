//! The registry as a state machine: whatever RocksDB, a worker and the closing of the store do, in
//! which order.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ecotone_rocks::remote::RemoteInput;
use ecotone_types::JobPurpose;

use super::*;
use crate::offload::slots::LocalSlots;
use crate::table_format::{Collects, TableFormat};

const COMPACTION: i32 = 7;

fn job(id: u64, subcompaction: i32) -> RemoteJob {
    let collects = Collects { references: false, samples: false, filter_bits_per_key: 0, expiry: false };
    RemoteJob {
        id,
        rocks_job: job_number(COMPACTION, subcompaction),
        purpose: JobPurpose::Compaction,
        deadline: None,
        db_session_id: String::new(),
        store_directory: PathBuf::new(),
        input: Vec::new(),
        request: RemoteInput {
            cf_name: String::new(),
            input_files: Vec::new(),
            output_level: 1,
            begin: None,
            end: None,
            snapshots: Vec::new(),
            db_id: String::new(),
            options_file_number: 0,
            min_manifest_file_number: 0,
            min_manifest_file_bytes: 0,
        },
        input_files: Vec::new(),
        input_bytes: 0,
        estimated_bytes: 0,
        input_records: None,
        key_bounds: None,
        l0_tables: None,
        input_level: 0,
        output_level: 1,
        is_manual: false,
        table_format: TableFormat { block_bytes: 4096, bloom_bits_per_key: 10, collects },
        moves: None,
        named_segments: Vec::new(),
    }
}

fn nothing() -> OnInstalled {
    Box::new(|_| ())
}

fn offered(registry: &JobRegistry) -> usize {
    registry.jobs.lock().offered.len()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Schedule,
    Take,
    RunHere,
    Install,
    LocalEnded,
    Installed,
    CompactionEnds,
    Stop,
}

const STEPS: [Step; 8] = [
    Step::Schedule,
    Step::Take,
    Step::RunHere,
    Step::Install,
    Step::LocalEnded,
    Step::Installed,
    Step::CompactionEnds,
    Step::Stop,
];

/// What one order of steps came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Came {
    scheduled: bool,
    taken: bool,
    ended_here: bool,
    installed: bool,
    counted_remote: u32,
}

/// Takes the steps in this order, as RocksDB's threads might. Asserts what holds in any.
fn take_steps(order: &[Step]) -> Came {
    let registry = JobRegistry::default();
    let told = Arc::<AtomicU32>::default();
    registry.begin_compaction(COMPACTION, Some(10));
    let mut came = Came::default();
    for step in order {
        match step {
            Step::Schedule => came.scheduled = registry.schedule(job(1, 0)),
            Step::Take => came.taken = registry.take(1).is_some_and(|job| job.id == 1),
            Step::RunHere => registry.run_here(1, None),
            Step::Install => {
                let told = told.clone();
                let on_installed = Box::new(move |_| {
                    told.fetch_add(1, Ordering::Relaxed);
                });
                registry.install(1, false, on_installed);
            }
            Step::LocalEnded => came.ended_here = registry.local_ended(job_number(COMPACTION, 0)) == Some(1),
            Step::Installed => {
                if let Some(on_installed) = registry.installed(1) {
                    on_installed(true);
                    came.installed = true;
                }
            }
            Step::CompactionEnds => came.counted_remote = registry.end_compaction(COMPACTION).remote,
            Step::Stop => registry.stop(),
        }
    }
    assert_eq!(told.load(Ordering::Relaxed), u32::from(came.installed), "{order:?}: {came:?}");
    // All is told twice, and nothing comes of it.
    assert!(registry.take(1).is_none() || !came.taken, "{order:?}");
    assert!(registry.installed(1).is_none() || !came.installed, "{order:?}");
    assert!(registry.local_ended(job_number(COMPACTION, 0)).is_none() || !came.ended_here, "{order:?}");
    registry.end_compaction(COMPACTION);
    assert_eq!(offered(&registry), 0, "{order:?}: nothing outlives its compaction");
    assert!(!registry.has_begun(COMPACTION), "{order:?}");
    came
}

/// Calls `each` with every order of `steps`.
fn permute(steps: &mut [Step], fixed: usize, each: &mut impl FnMut(&[Step])) {
    if fixed == steps.len() {
        return each(steps);
    }
    for next in fixed..steps.len() {
        steps.swap(fixed, next);
        permute(steps, fixed + 1, each);
        steps.swap(fixed, next);
    }
}

#[test]
fn in_every_order_a_job_is_taken_and_ended_once_at_most_and_only_by_who_has_it() {
    let (mut steps, mut orders) = (STEPS, 0);
    permute(&mut steps, 0, &mut |order| {
        orders += 1;
        let came = take_steps(order);
        let at = |step| order.iter().position(|one| *one == step).unwrap();
        let follow = |steps: &[Step]| steps.is_sorted_by_key(|step| at(*step));
        assert_eq!(came.scheduled, follow(&[Step::Schedule, Step::Stop]), "{order:?}");
        if came.taken {
            assert!(came.scheduled && follow(&[Step::Schedule, Step::Take, Step::Stop]), "{order:?}");
        }
        assert!(!(came.ended_here && came.installed), "{order:?}: {came:?}");
        if came.ended_here {
            assert!(came.taken && follow(&[Step::Take, Step::RunHere, Step::LocalEnded]), "{order:?}");
        }
        if came.installed {
            assert!(came.taken && follow(&[Step::Take, Step::Install, Step::Installed]), "{order:?}");
        }
        if came.counted_remote > 0 {
            assert!(came.taken && follow(&[Step::Take, Step::Install, Step::CompactionEnds]), "{order:?}");
            assert!(!came.ended_here, "{order:?}: {came:?}");
        }
    });
    assert_eq!(orders, 40_320);
}

#[test]
fn the_usual_ways_come_to_their_ends() {
    let elsewhere = take_steps(&[Step::Schedule, Step::Take, Step::Install, Step::Installed, Step::CompactionEnds]);
    let came = Came { scheduled: true, taken: true, installed: true, counted_remote: 1, ended_here: false };
    assert_eq!(elsewhere, came);
    let here = take_steps(&[Step::Schedule, Step::Take, Step::RunHere, Step::LocalEnded, Step::CompactionEnds]);
    assert_eq!(here, Came { installed: false, counted_remote: 0, ended_here: true, ..came });
    // A job that a worker has when the store closes is seen through.
    let closing = take_steps(&[Step::Schedule, Step::Take, Step::Stop, Step::Install, Step::Installed]);
    assert_eq!((closing.installed, closing.ended_here), (true, false));
    // One that RocksDB has not waited for yet stays.
    assert!(!take_steps(&[Step::Schedule, Step::Stop, Step::Take]).taken);
}

#[test]
fn what_there_is_no_room_for_runs_here_and_nothing_is_forgotten_for_it() {
    let registry = JobRegistry::default();
    let most = MAX_OFFERED as u64;
    assert!((0..most).all(|id| registry.schedule(job(id, id as i32))));
    assert!(!registry.schedule(job(most, most as i32)));
    assert!((0..most).all(|id| registry.take(id).is_some()));
    registry.install(0, false, nothing());
    assert!(!registry.schedule(job(most, most as i32)), "each still has somebody who sees it through");
    assert!(registry.installed(0).is_some());
    assert!(registry.schedule(job(most, most as i32)));
}

#[test]
fn one_whose_end_rocksdb_never_told_makes_room_or_goes_with_its_compaction() {
    let registry = JobRegistry::default();
    let most = MAX_OFFERED as u64;
    for id in 0..most {
        assert!(registry.schedule(job(id, id as i32)) && registry.take(id).is_some());
    }
    registry.run_here(3, None);
    registry.run_here(5, None);
    assert!(registry.schedule(job(most, most as i32)));
    assert_eq!(offered(&registry), MAX_OFFERED);
    assert_eq!(registry.local_ended(job_number(COMPACTION, 3)), None, "the oldest was forgotten");
    assert_eq!(registry.local_ended(job_number(COMPACTION, 5)), Some(5));
    registry.end_compaction(COMPACTION + 1);
    assert_eq!(offered(&registry), MAX_OFFERED - 1);
    registry.end_compaction(COMPACTION);
    assert_eq!(offered(&registry), 0);
}

#[test]
fn the_oldest_flush_or_compaction_is_forgotten_for_one_too_many() {
    let registry = JobRegistry::default();
    registry.begin_flush(0);
    (1..=MAX_RUNNING as i32).for_each(|number| registry.begin_compaction(number, Some(1)));
    assert!(registry.end_flush(0).is_none());
    assert!((1..=MAX_RUNNING as i32).all(|number| registry.has_begun(number)));
    registry.begin_flush(MAX_RUNNING as i32 + 1);
    assert!(!registry.has_begun(1) && registry.has_begun(2));
    assert!(registry.end_flush(MAX_RUNNING as i32 + 1).is_some());
}

#[test]
fn what_internal_compactions_are_for_is_known_of_those_that_rocksdb_is_silent_about() {
    let registry = JobRegistry::default();
    registry.begin_compaction(1, Some(5));
    assert_eq!(registry.purpose_of(2), None);
    registry.begin_internal(CompactionPurpose::Dedup);
    assert_eq!(registry.purpose_of(1), None, "a user's: RocksDB has told of it");
    assert_eq!(registry.purpose_of(2), Some(CompactionPurpose::Dedup));
    registry.subcompaction_begins(1, false);
    registry.subcompaction_begins(2, true);
    registry.internal_was_away(Duration::from_secs(3));
    registry.end_internal();
    assert_eq!(registry.internal(), None);
    let counted = SubcompactionCounts { here: 1, remote: 0 };
    assert_eq!(registry.internal_parts(), (counted, Duration::from_secs(3)), "until the next one");
    assert_eq!(registry.end_compaction(1), counted);
    registry.begin_internal(CompactionPurpose::Gc);
    assert_eq!(registry.internal_parts(), Default::default());
    registry.begin_compaction(3, None);
    assert_eq!(registry.purpose_of(3), Some(CompactionPurpose::Gc), "told of by RocksDB as well");
}

#[test]
fn a_slot_is_freed_by_the_end_of_its_job_or_thread_or_by_the_next_job_there() {
    let (registry, slots) = (Arc::<JobRegistry>::default(), LocalSlots::new(1));
    let take = |id: u64| {
        assert!(registry.schedule(job(id, id as i32)) && registry.take(id).is_some());
        registry.run_here(id, slots.acquire(|| false));
        assert_eq!(slots.used(), 1);
    };
    take(1);
    assert_eq!(registry.local_ended(job_number(COMPACTION, 1)), Some(1));
    assert_eq!(slots.used(), 0);
    take(2);
    registry.thread_is_free();
    assert_eq!(slots.used(), 0);
    take(3);
    registry.end_compaction(COMPACTION);
    assert_eq!(slots.used(), 0);
    std::thread::scope(|scope| scope.spawn(|| take(4)).join().unwrap());
    // Its thread's locals are dropped before it can be joined.
    assert_eq!(slots.used(), 0);
}
