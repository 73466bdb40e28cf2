//! What was acknowledged at `quorum` or `all` is there after any failover that needed no force.

use ecotone_replica::commit::Durability;
use ecotone_sim::replication::{Faults, Profile};

use super::{profile, with_seeds};

#[test]
fn three_copies() {
    let sum = with_seeds("three copies", &profile());
    assert!(sum.opened > 200 && sum.lost_at_one > 0, "failovers must happen: {sum:?}");
    assert!(sum.excused > 50, "members leave on purpose: {sum:?}");
}

/// Three servers that lose power often, and whose copies acknowledge what they have not synced.
#[test]
fn power_is_lost_often() {
    let faults = Faults { power: 60, ..Faults::all() };
    let sum = with_seeds("power", &Profile { servers: 3, faults, ..profile() });
    assert!(sum.power > 300, "{sum:?}");
}

/// With two copies each must have what is acknowledged at `quorum`; at `all` one goes on alone.
#[test]
fn two_copies() {
    with_seeds("two copies", &Profile { servers: 3, copies: 2, ..profile() });
}

/// Nothing that is synced before it is acknowledged needs force after the power went everywhere.
#[test]
fn power_goes_everywhere_and_all_was_synced() {
    let faults = Faults { site: 10, wipes: 0, ..Faults::all() };
    let profile = Profile { faults, durability: Durability::Synced, ..profile() };
    let sum = with_seeds("synced", &profile);
    assert!(sum.power > 400, "{sum:?}");
    assert_eq!((sum.forced, sum.lost_by_force), (0, 0));
}

/// Directories that are lost, files that are damaged: five copies on five servers.
#[test]
fn directories_are_lost_and_files_damaged() {
    let faults = Faults { wipes: 8, damage: 20, ..Faults::all() };
    let sum = with_seeds("wipes and damage", &Profile { servers: 5, copies: 5, faults, ..profile() });
    assert!(sum.abandoned > 5, "openings that directories held back are thrown away: {sum:?}");
}

/// Kills alone take nothing from the kernel's memory, so nobody ever needs force.
#[test]
fn kills_never_need_force() {
    let faults = Faults { kills: 60, power: 0, ..Faults::all() };
    let sum = with_seeds("kills", &Profile { faults, ..profile() });
    assert_eq!(sum.forced, 0);
}
