//! The control plane: who leads, who votes, and who holds which shard. A server without an identity
//! has none of it.

use ecotone_control::map::Map;
use ecotone_membership::Known;

use super::page::Page;
use crate::host::federation::servers_by_state;

pub(super) fn write(page: &mut Page, known: Option<&Known>) {
    page.gauge(
        "ecotone_control_running",
        "Whether this server takes part in the control plane: 0 once its log could not be written or read.",
        known.map(|known| known.stopped.is_none()),
    );
    page.gauge("ecotone_control_is_leader", "Whether this server leads.", known.map(Known::leads));
    page.gauge(
        "ecotone_control_has_leader",
        "Whether this server knows who leads. While nobody does, nothing about the federation can be changed.",
        known.map(|known| known.leader.is_some()),
    );
    page.gauge("ecotone_control_term", "The term; it rises with each election.", known.map(|known| known.term));
    page.gauge(
        "ecotone_control_voters",
        "Servers that vote; while that changes the old ones and the new.",
        known.map(|known| known.voters.len()),
    );
    page.gauge(
        "ecotone_control_is_voter",
        "Whether this server votes.",
        known.map(|known| known.voters.contains(&known.member)),
    );
    page.gauge(
        "ecotone_control_generation",
        "How often the control plane was begun anew by force, or from an export, and 1.",
        known.map(|known| known.map.generation),
    );
    page.gauge(
        "ecotone_control_map_version",
        "The last change of the map that this server knows; a server that stays behind hears of no changes.",
        known.map(|known| known.map.version),
    );
    page.gauge(
        "ecotone_control_applied_index",
        "The last entry of the log that this server has applied.",
        known.map(|known| known.applied),
    );
    page.gauge(
        "ecotone_control_feature_level",
        "What all servers may do: it rises when all builds can.",
        known.map(|known| known.map.feature_level),
    );
    let states = known.map(|known| servers_by_state(&known.map)).into_iter().flatten();
    page.gauges(
        "ecotone_control_servers",
        "Servers by state; removed ones are not counted.",
        ["state"],
        states.map(|(state, count)| ([state], count)),
    );
    page.gauge(
        "ecotone_control_silent_servers",
        "Servers that the leader has not heard for 30 s. Only the leader says it.",
        known.filter(|known| known.leads()).map(|known| known.gone.len()),
    );
    page.gauge("ecotone_control_shards", "Shards of the federation.", known.map(|known| known.map.shards.len()));
    page.gauge(
        "ecotone_control_shards_owned",
        "Shards that this server is the primary of.",
        known.map(|known| shards_of(&known.map, |primary| primary == Some(known.member.0))),
    );
    page.gauge(
        "ecotone_control_shards_without_primary",
        "Shards that nobody serves: their servers were removed by force.",
        known.map(|known| shards_of(&known.map, |primary| primary.is_none())),
    );
}

fn shards_of(map: &Map, has: impl Fn(Option<u64>) -> bool) -> usize {
    map.shards.values().filter(|shard| has(shard.primary.map(|primary| primary.0))).count()
}
