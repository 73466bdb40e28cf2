//! The clock by which keys expire goes on from one primary to the next.

use ecotone_sim::replication::{Faults, Profile};

use super::{profile, with_seeds};

#[test]
fn clocks_of_the_wall_jump() {
    let faults = Faults { jumps: 200, switches: 40, ..Faults::all() };
    with_seeds("jumps", &Profile { faults, ..profile() });
}
