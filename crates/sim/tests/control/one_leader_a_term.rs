//! Elections without end: leaders stand still, are cut off one way and are killed right after they
//! have voted, before the vote is durable.

use ecotone_sim::Faults;

use super::{profile, with_seeds};

#[test]
fn one_leader_a_term() {
    let faults = Faults { kills: 60, pauses: 40, jumps: 40, cuts: 40, wipes: 0, members: 0, ..Faults::all() };
    let profile = super::Profile { faults, disk_ms: (1, 60), changes: 300, ..profile() };
    let report = with_seeds("one leader a term", &profile);
    assert!(report.terms as u64 > 4 * super::SEEDS, "{} terms", report.terms);
}
