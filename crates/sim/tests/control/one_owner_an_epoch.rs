//! Servers ask for changes of shards by maps that are old, late and twice.

use ecotone_sim::Faults;

use super::{Profile, profile, with_seeds};

#[test]
fn one_owner_an_epoch() {
    let faults = Faults { delay: 150, duplication: 100, members: 25, ..Faults::all() };
    with_seeds("one owner an epoch", &Profile { faults, changes: 1_000, shards: 2, ..profile() });
}
