//! Merges of duplicates in a federation: they are placed at any level, by what presses for them,
//! and say why they stay.

use crate::common;

use std::time::Instant;

use common::merging::merging;
use common::{Owner, PATIENCE, Storeless, assert_equals, fill, wait_until};
use ecotone_cluster::JobOutcome;
use ecotone_policy::machine::LocalReason;
use ecotone_policy::policy::PolicyName;

/// An owner under `policy` and a coordinator that works for it.
fn federation(policy: PolicyName) -> (Storeless, Owner) {
    let coordinator = Storeless::start("coordinator", |options| options.policy.policy = policy);
    let address = coordinator.federation.address().to_owned();
    let owner = Owner::start(|options, store| {
        options.policy.policy = policy;
        options.join = Some(address);
        *store = merging();
    });
    (coordinator, owner)
}

/// Overwrites 20,000 keys until `enough`.
fn overwrite_until(owner: &mut Owner, what: &str, enough: impl Fn(&Owner) -> bool) {
    let (store, mut model) = (owner.store().clone(), std::mem::take(&mut owner.model));
    let began = Instant::now();
    for seed in 0.. {
        fill(&store, &mut model, seed, 1_000, 20_000);
        if enough(owner) {
            break;
        }
        // Where level 0 is full no merge begins, and on busy cores it would never be anything else.
        while store.properties().unwrap().l0_tables > 4 && began.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {seed} thousand writes, {:?}", store.dedup());
    }
    assert_equals(&store, &model);
    assert_eq!(store.write_failure(), None);
    owner.model = model;
}

#[test]
fn merges_of_any_level_are_placed_where_only_those_of_level_0_are_else() {
    let (coordinator, mut owner) = federation(PolicyName::EcoTarget);
    let deep = |owner: &Owner| {
        let jobs = owner.ended.of(JobOutcome::Offloaded);
        jobs.iter().filter(|job| job.report.input_level > 0).count()
    };
    // What presses for nothing but the shape of the tree is not considered. On busy cores none may
    // have come by the time of the fifth merge.
    let unconsidered = |owner: &Owner| owner.ended.because(LocalReason::NotLevelZero.name());
    overwrite_until(&mut owner, "five merges on a worker, and a compaction that is not considered", |owner| {
        deep(owner) >= 5 && unconsidered(owner) > 0
    });
    assert_eq!(owner.fallbacks("bad-result"), 0, "an honest result was refused");
    assert!(coordinator.federation.statistics().taken >= 5);
    // A job has ended when its tables are here; its compaction is counted when they are installed.
    let offloaded = owner.ended.count(JobOutcome::Offloaded) as u64;
    let counted = || owner.store().counters().remote_compactions;
    wait_until("all compactions that workers made are counted", || counted() >= offloaded);
    owner.finish();
}

#[test]
fn a_merge_that_nothing_presses_for_stays_and_says_so() {
    let (_coordinator, mut owner) = federation(PolicyName::Eco);
    let stayed = |owner: &Owner| owner.ended.because(LocalReason::EndsInTime.name());
    overwrite_until(&mut owner, "five merges at home", |owner| stayed(owner) >= 5);
    let merges = owner.store().dedup().unwrap().merges as usize;
    assert!(stayed(&owner) <= merges, "each merge gives one reason: {merges}");
    assert!(owner.ended.of(JobOutcome::Offloaded).is_empty());
    owner.finish();
}
