//! What a copy says is synced, a loss of power does not take.

use ecotone_replica::commit::Durability;
use ecotone_sim::replication::{Faults, Profile};

use super::{profile, with_seeds};

#[test]
fn power_is_lost_in_the_midst_of_syncs() {
    let faults = Faults { power: 80, stalls: 40, ..Faults::all() };
    for durability in [Durability::Received, Durability::Synced] {
        let sum = with_seeds("syncs", &Profile { faults, durability, requests: 150, ..profile() });
        assert!(sum.power > 400, "{sum:?}");
    }
}
