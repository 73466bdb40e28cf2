//! Servers come, are drained and removed, lose their disks; removed ones do not hear of it and go
//! on.

use ecotone_sim::Faults;

use super::{Profile, profile, with_seeds};

#[test]
fn removed_never_acts() {
    let faults = Faults { members: 150, wipes: 10, ..Faults::all() };
    with_seeds("removed never acts", &Profile { servers: 4, faults, changes: 900, seconds: 45, ..profile() });
}
