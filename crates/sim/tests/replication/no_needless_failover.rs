//! A store that stands still is no failure of its server: leases are off the data path.

use ecotone_sim::replication::{Faults, Profile};

use super::{profile, with_seeds};

#[test]
fn stores_stand_still() {
    let faults = Faults { stalls: 80, jumps: 30, ..Faults::default() };
    with_seeds("stalls", &Profile { faults, ..profile() });
}
