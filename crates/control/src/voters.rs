//! Who votes: three or five of the servers, or one.
//!
//! Pure and stable: given its own answer as the voters of today, the answer is the same. What comes
//! first: servers that are there before those that are gone for long, then zones that have fewest
//! voters, then those that vote already, then witnesses, who have nothing else to do, then the
//! oldest. Two servers have one voter: with two, the loss of either would stop both.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::MemberId;
use crate::map::{Map, Role, ServerState};

/// The most voters. More would make each entry wait for more disks, and protect little better.
pub const MAX_VOTERS: usize = 5;

/// Chooses the voters.
///
/// `current` are those of today, `gone` the servers that the leader has not heard for long,
/// `leader` stays one before others of its zone.
pub fn choose(
    map: &Map,
    current: &BTreeSet<MemberId>,
    gone: &BTreeSet<MemberId>,
    leader: MemberId,
) -> BTreeSet<MemberId> {
    let mut candidates: Vec<MemberId> =
        map.members().filter(|(_, server)| server.state == ServerState::Active).map(|(member, _)| member).collect();
    let count = match candidates.len() {
        MAX_VOTERS.. => MAX_VOTERS,
        3.. => 3,
        fewer => fewer.min(1),
    };
    let mut chosen = BTreeSet::new();
    let mut in_zone: BTreeMap<&str, usize> = BTreeMap::new();
    while chosen.len() < count {
        let rank = |member: &MemberId| {
            let server = map.servers.get(member);
            let zone = server.map_or("", |server| server.zone.as_str());
            let is_witness = server.is_some_and(|server| server.role == Role::Witness);
            (
                gone.contains(member),
                in_zone.get(zone).copied().unwrap_or_default(),
                !current.contains(member),
                *member != leader,
                !is_witness,
                *member,
            )
        };
        let Some(best) = candidates.iter().copied().min_by_key(rank) else { break };
        candidates.retain(|candidate| *candidate != best);
        if let Some(server) = map.servers.get(&best) {
            *in_zone.entry(server.zone.as_str()).or_default() += 1;
        }
        chosen.insert(best);
    }
    chosen
}
