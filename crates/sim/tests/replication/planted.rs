//! Failures that others had in public, and rules left out, planted here: the worlds of the
//! invariants find each within their seeds, and name an invariant that it breaks.

use ecotone_replica::commit::Durability;
use ecotone_replica::planted::Planted;
use ecotone_sim::replication::{Faults, Invariant, Profile, run};

use super::{first_seed, profile};

/// Seeds that a planted failure is given.
const SEEDS: u64 = 600;

fn is_found(profile: &Profile, by: &[Invariant]) {
    for seed in first_seed()..first_seed() + SEEDS {
        if let Err(violation) = run(seed, profile) {
            assert!(by.contains(&violation.invariant), "seed {seed} found something else: {violation}");
            println!("{:?}: seed {seed}: {violation}", profile.planted);
            return;
        }
    }
    panic!("{:?} is not found by {SEEDS} seeds", profile.planted);
}

fn plant(planted: Planted) -> Profile {
    Profile { planted: Some(planted), ..profile() }
}

const LOST: &[Invariant] = &[Invariant::AcknowledgedIsNeverLost, Invariant::NoStaleRead];
const DIFFER: &[Invariant] =
    &[Invariant::AcknowledgedIsNeverLost, Invariant::NoStaleRead, Invariant::CopiesConverge, Invariant::SyncedIsKept];

/// kvrocks#3380: no lease, and the old primary goes on.
#[test]
fn no_lease() {
    let faults = Faults { pauses: 60, cuts: 60, ..Faults::all() };
    let by = &[Invariant::NoStaleRead, Invariant::ClockNeverGoesBack, Invariant::AcknowledgedIsNeverLost];
    is_found(&Profile { faults, ..plant(Planted::NoLease) }, by);
}

/// Promises that nobody waits for.
#[test]
fn sealed_at_once() {
    let faults = Faults { cuts: 150, kills: 2, power: 2, ..Faults::all() };
    let by = &[Invariant::NoStaleRead, Invariant::ClockNeverGoesBack, Invariant::AcknowledgedIsNeverLost];
    is_found(&Profile { faults, requests: 400, ..plant(Planted::SealAtOnce) }, by);
}

/// slatedb#352, #1622: a fenced writer is acknowledged.
#[test]
fn a_sealed_copy_acknowledges() {
    let faults = Faults { cuts: 200, kills: 2, power: 0, ..Faults::all() };
    is_found(&Profile { faults, requests: 200, ..plant(Planted::AcknowledgeSealed) }, LOST);
}

/// kvrocks-controller#109: a primary is named by who asks first.
#[test]
fn promoted_without_sealing() {
    is_found(&plant(Planted::PromoteUnsealed), LOST);
}

/// kvrocks#3496: no promotion while one server is away.
#[test]
fn everyone_must_be_sealed() {
    let profile = Profile { servers: 3, loses_one: true, ..plant(Planted::SealEveryone) };
    is_found(&profile, &[Invariant::CopiesConverge]);
}

/// rocksdb#12190: a damaged copy reads short without an error, and is promoted.
#[test]
fn promoted_without_verifying() {
    let faults = Faults { damage: 150, switches: 0, kills: 40, ..Faults::all() };
    is_found(&Profile { faults, ..plant(Planted::PromoteUnverified) }, LOST);
}

/// dragonfly#5730: copies attach to a new primary wherever they are.
#[test]
fn attached_without_a_look_at_epochs() {
    is_found(&plant(Planted::AttachAnywhere), DIFFER);
}

/// garnet#2087: a copy that has lost its way says that the link is up.
#[test]
fn anything_is_taken() {
    let faults = Faults { loss: 30, ..Faults::all() };
    is_found(&Profile { faults, ..plant(Planted::TakeAnything) }, DIFFER);
}

/// kvrocks#1319: full synchronizations without end, under writes.
#[test]
fn seeds_are_not_pinned() {
    let profile = Profile { requests: 600, max_lag_bytes: 4_000, ..plant(Planted::SeedUnpinned) };
    is_found(&profile, &[Invariant::CopiesConverge]);
}

/// kvrocks#3356: everybody waits for a copy that takes nothing.
#[test]
fn laggards_are_waited_for() {
    let profile = Profile { servers: 3, loses_one: true, ..plant(Planted::WaitForLaggards) };
    is_found(&profile, &[Invariant::CopiesConverge]);
}

/// kvrocks#3219: a store that stands still looks like a dead server.
#[test]
fn heartbeats_wait_for_the_store() {
    let faults = Faults { stalls: 80, ..Faults::default() };
    let profile = Profile { faults, heartbeats_stall: true, ..profile() };
    is_found(&profile, &[Invariant::NoNeedlessFailover]);
}

/// The new set counts before the log names it.
#[test]
fn the_new_set_counts_early() {
    is_found(&plant(Planted::CountNewSetEarly), LOST);
}

/// A set shrinks to members that lack what was acknowledged.
#[test]
fn sets_shrink_blindly() {
    let faults = Faults { kills: 60, loss: 40, stalls: 40, ..Faults::all() };
    is_found(&Profile { faults, latency_ms: (1, 60), requests: 150, ..plant(Planted::ShrinkBlindly) }, LOST);
}

/// Who lost power is taken for who it was.
#[test]
fn any_boot_is_trusted() {
    let faults = Faults { power: 60, ..Faults::all() };
    is_found(&Profile { servers: 3, faults, ..plant(Planted::TrustAnyBoot) }, LOST);
}

/// WAL before segments.
#[test]
fn the_wal_is_synced_first() {
    let faults = Faults { power: 80, ..Faults::all() };
    let profile = Profile { faults, durability: Durability::Synced, ..plant(Planted::WalFirst) };
    is_found(&profile, &[Invariant::SyncedIsKept]);
}

/// NATS 2.12.1: what is acknowledged as synced is not.
#[test]
fn synced_is_not_synced() {
    let faults = Faults { power: 60, ..Faults::all() };
    let profile = Profile { faults, durability: Durability::Synced, ..plant(Planted::SyncedUnsynced) };
    is_found(&profile, &[Invariant::SyncedIsKept]);
}

/// A promoted copy judges expiry by its own clock.
#[test]
fn the_clock_is_not_carried() {
    let faults = Faults { jumps: 100, ..Faults::all() };
    is_found(&Profile { faults, ..plant(Planted::OwnClock) }, &[Invariant::ClockNeverGoesBack]);
}
