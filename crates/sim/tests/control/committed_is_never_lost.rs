//! Many changes, and machines that lose power in the middle of writing them down.

use ecotone_sim::Faults;

use super::{Profile, profile, with_seeds};

#[test]
fn committed_is_never_lost() {
    let faults = Faults { kills: 100, wipes: 6, members: 5, ..Faults::all() };
    let profile = Profile { faults, changes: 900, disk_ms: (1, 30), ..profile() };
    let report = with_seeds("committed is never lost", &profile);
    assert!(report.kills > 10 * super::SEEDS, "{} kills", report.kills);
    assert!(report.torn > 0, "no log was torn");
}

#[test]
fn committed_is_never_lost_by_two_servers_and_a_witness() {
    let faults = Faults { kills: 50, wipes: 0, members: 0, ..Faults::all() };
    with_seeds("two and a witness", &Profile { servers: 2, witnesses: 1, faults, ..profile() });
}
