//! Once faults end somebody serves, under load, and all copies are the same.

use ecotone_sim::replication::{Faults, Profile};

use super::{profile, with_seeds};

/// The primary does not come back: the others go on without it, without anybody's help.
#[test]
fn the_primary_is_lost_for_good() {
    let faults = Faults { power: 0, ..Faults::all() };
    let sum = with_seeds("one is lost", &Profile { servers: 3, loses_one: true, faults, ..profile() });
    assert_eq!(sum.forced, 0);
}

/// Servers far from each other: an answer takes longer than a greeting waits.
#[test]
fn the_network_is_slow() {
    let faults = Faults { pauses: 2, ..Faults::all() };
    with_seeds("slow network", &Profile { latency_ms: (100, 220), faults, ..profile() });
}

/// Copies are built anew while more is written than a copy may lack.
#[test]
fn copies_are_seeded_under_load() {
    let faults = Faults { wipes: 15, stalls: 30, ..Faults::all() };
    let sum = with_seeds("seeds", &Profile { requests: 200, max_lag_bytes: 20_000, faults, ..profile() });
    assert!(sum.seeds > 300, "{sum:?}");
}
