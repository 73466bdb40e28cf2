//! Reads at a primary are linearizable; those at a replica are as old as they say.

use ecotone_sim::replication::{Faults, Profile};

use super::{profile, with_seeds};

/// Pauses between a read and the look at the lease, cuts one way, clocks that run apart.
#[test]
fn primaries_that_stand_still_or_are_cut_off() {
    let faults = Faults { pauses: 60, cuts: 60, kills: 2, power: 2, ..Faults::all() };
    with_seeds("pauses and cuts", &Profile { faults, requests: 120, ..profile() });
}
