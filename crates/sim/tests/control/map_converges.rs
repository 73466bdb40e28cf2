//! A network that loses one message in seven, and servers that hardly keep up: when it ends, all
//! have the same map, within seconds.

use ecotone_sim::Faults;

use super::{Profile, profile, with_seeds};

#[test]
fn map_converges() {
    let faults = Faults { loss: 150, delay: 60, duplication: 60, cuts: 40, ..Faults::all() };
    with_seeds("map converges", &Profile { servers: 7, faults, ..profile() });
}
