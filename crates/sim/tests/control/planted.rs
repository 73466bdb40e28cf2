//! Failures that others had in public, planted here: the worlds of the invariants find each within
//! their seeds, and name the right invariant.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ecotone_control::node::Planted;
use ecotone_sim::{Faults, Invariant, Plant, run};

use super::{Profile, first_seed, profile};

/// The words of raft where what a server has contradicts what it hears: it has lost what it promised.
const OF_RAFT: [&str; 2] = ["conflict with committed entry", "is out of range"];

/// What a planted failure may break. A server that lost what it promised may also end in one of
/// raft's own assertions.
fn is_found(profile: &Profile, by: &[Invariant], may_panic: bool) {
    for seed in first_seed()..first_seed() + super::SEEDS {
        match catch_unwind(AssertUnwindSafe(|| run(seed, profile))) {
            Ok(Ok(_)) => {}
            Ok(Err(violation)) => {
                assert!(by.contains(&violation.invariant), "seed {seed} found something else: {violation}");
                println!("{:?}: seed {seed}: {violation}", profile.plant);
                return;
            }
            Err(panic) => {
                let said = panic.downcast_ref::<String>().map_or("", String::as_str).to_owned();
                if may_panic && OF_RAFT.iter().any(|words| said.contains(words)) {
                    println!("{:?}: seed {seed}: raft's own assertion: {said}", profile.plant);
                    return;
                }
                std::panic::resume_unwind(panic)
            }
        }
    }
    panic!("{:?} is not found by {} seeds", profile.plant, super::SEEDS);
}

/// curvine#1368: entries and votes are answered before they are durable.
#[test]
fn answers_before_durable() {
    let faults = Faults { kills: 150, wipes: 0, members: 0, ..Faults::all() };
    let plant = Some(Plant::AnswerBeforeDurable);
    let profile = Profile { faults, disk_ms: (20, 200), changes: 900, plant, ..profile() };
    is_found(&profile, &[Invariant::OneLeaderATerm, Invariant::CommittedIsNeverLost], true);
}

/// qdrant#1235: a server whose disk was wiped comes back under its old number.
#[test]
fn a_wiped_server_returns() {
    let faults = Faults { wipes: 60, members: 0, ..Faults::all() };
    let profile = Profile { faults, changes: 900, plant: Some(Plant::WipedReturns), ..profile() };
    // Or it refuses what the leader takes it to have, and learns nothing any more.
    let broken = [Invariant::OneLeaderATerm, Invariant::CommittedIsNeverLost, Invariant::MapConverges];
    is_found(&profile, &broken, true);
}

/// qdrant#7577: the log is cleared before the snapshot that replaces it is durable.
#[test]
fn the_log_is_cleared_before_the_snapshot_is_durable() {
    let faults = Faults { kills: 150, wipes: 0, members: 0, ..Faults::all() };
    let profile = Profile { faults, changes: 900, plant: Some(Plant::LogBeforeSnapshot), ..profile() };
    is_found(&profile, &[Invariant::ServersStart], false);
}

/// kvrocks-controller#109: two masters, each of which is confirmed by a version of its own.
#[test]
fn owners_by_version() {
    let faults = Faults { delay: 150, duplication: 100, ..Faults::all() };
    let plant = Some(Plant::Rule(Planted::NoEpochs));
    let profile = Profile { faults, changes: 1_000, shards: 2, plant, ..profile() };
    is_found(&profile, &[Invariant::OneOwnerAnEpoch], false);
}

/// slatedb#352: a writer that is fenced is acknowledged.
#[test]
fn removed_servers_are_confirmed() {
    let faults = Faults { members: 150, wipes: 10, ..Faults::all() };
    let plant = Some(Plant::Rule(Planted::RemovedMayAsk));
    let profile = Profile { servers: 4, faults, changes: 900, seconds: 45, plant, ..profile() };
    is_found(&profile, &[Invariant::RemovedNeverActs], false);
}

/// slatedb#1622: the fence is a record, and garbage collection removes it.
#[test]
fn the_fence_is_pruned() {
    let faults = Faults { members: 150, wipes: 10, ..Faults::all() };
    let plant = Some(Plant::Rule(Planted::FencePruned));
    let profile = Profile { servers: 4, faults, changes: 900, seconds: 45, plant, ..profile() };
    is_found(&profile, &[Invariant::RemovedNeverActs], false);
}

/// A join token that is checked, and not spent by an entry of the log.
#[test]
fn a_token_is_good_twice() {
    let plant = Some(Plant::Rule(Planted::TokensForEver));
    is_found(&Profile { changes: 1_000, plant, ..profile() }, &[Invariant::RemovedNeverActs], false);
}
