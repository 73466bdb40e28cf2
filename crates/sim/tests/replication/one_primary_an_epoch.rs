//! One server acknowledges in an epoch, however leaders and switch-overs race.

use ecotone_sim::replication::{Faults, Profile};

use super::{profile, with_seeds};

#[test]
fn leaders_change_and_shards_are_handed_over() {
    let faults = Faults { leaders: 60, switches: 60, pauses: 30, ..Faults::all() };
    let sum = with_seeds("leaders", &Profile { faults, ..profile() });
    assert!(sum.opened > 300, "{sum:?}");
}
