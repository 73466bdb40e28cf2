//! Who gets which shard: by examples that people can check, and what holds of any map.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_control::dealing::{ShardMove, deal, holders, moves};
use ecotone_control::entry::{Entry, Proposal};
use ecotone_control::ids::{DirectoryId, FederationId, MemberId, ShardId};
use ecotone_control::machine::{Machine, Outcome};
use ecotone_control::map::{Features, Map, Role, Server, ServerState};
use proptest::prelude::*;

use super::server;

/// Servers 1, 2, ... of these zones; a small letter is one that can hold nothing.
fn map(zones: &str) -> Map {
    let mut map = Map::new(FederationId([0; 8]));
    for (number, zone) in (1_u8..).zip(zones.chars()) {
        let of = server(number);
        let server = Server {
            directory: DirectoryId([number; 16]),
            name: of.name,
            addresses: of.addresses,
            zone: if zone == '-' { String::new() } else { zone.to_ascii_uppercase().to_string() },
            role: if zone == 'w' { Role::Witness } else { Role::Data },
            state: if zone.is_lowercase() && zone != 'w' { ServerState::Draining } else { ServerState::Active },
            features: Features { min: 1, max: 1 },
        };
        map.servers.insert(MemberId(number.into()), server);
        map.next_member = u64::from(number) + 1;
    }
    map
}

fn numbers(members: &[MemberId]) -> Vec<u64> {
    members.iter().map(|member| member.0).collect()
}

fn apply(map: Map, entry: Entry) -> Map {
    let mut machine = Machine::new(map, 10);
    assert_eq!(machine.apply(11, &Proposal { by: MemberId(1), entry }), Outcome::Changed);
    machine.map().check().unwrap();
    machine.map().clone()
}

#[test]
fn neighbours_are_in_different_zones_as_far_as_there_are_such() {
    for (zones, order) in [
        ("A", vec![1]),
        ("AAB", vec![1, 3, 2]),
        ("AABB", vec![1, 3, 2, 4]),
        ("AAAB", vec![1, 4, 2, 3]),
        ("ABCAB", vec![1, 2, 4, 5, 3]),
        ("---", vec![1, 2, 3]),
        ("AwBa", vec![1, 3]),
        ("wa", vec![]),
    ] {
        assert_eq!(numbers(&holders(&map(zones))), order, "{zones}");
    }
    assert_eq!(numbers(&deal(&map("AAB"), 5)), [1, 3, 2, 1, 3]);
    assert!(deal(&map("w"), 5).is_empty());
}

#[test]
fn shards_go_to_new_servers_and_away_from_drained_ones() {
    let dealt = |zones, shards| {
        let map = map(zones);
        let primaries = deal(&map, shards);
        apply(map, Entry::Deal { primaries })
    };
    assert_eq!(moves(&dealt("ABC", 7)), []);
    // A fourth server comes.
    let mut grown = dealt("ABC", 6);
    grown.servers.insert(MemberId(4), map("ABCD").servers[&MemberId(4)].clone());
    grown.next_member = 5;
    let to_fourth = |shard, from| ShardMove { shard: ShardId(shard), from: Some(MemberId(from)), to: MemberId(4) };
    assert_eq!(moves(&grown), [to_fourth(4, 1)]);
    // One is drained: what it has goes to the others, and nothing else moves.
    let drained = apply(dealt("ABC", 6), Entry::Drain { member: MemberId(2), drain: true });
    let moved = moves(&drained);
    assert_eq!(
        moved.iter().map(|moved| (moved.shard.0, moved.from)).collect::<Vec<_>>(),
        [(2, Some(MemberId(2))), (5, Some(MemberId(2)))]
    );
    assert_eq!(moved.iter().map(|moved| moved.to.0).collect::<BTreeSet<_>>(), BTreeSet::from([1, 3]));
    // One is lost: nobody has its shards.
    let lost = Entry::Remove { member: MemberId(3), force: true };
    let lost = moves(&apply(dealt("ABC", 3), lost));
    assert_eq!(lost.iter().map(|lost| (lost.shard.0, lost.from)).collect::<Vec<_>>(), [(3, None)]);
}

proptest! {
    /// Made one by one, moves leave all shards where they may be, evenly; and then there is
    /// nothing more to do.
    #[test]
    fn moves_end_even(zones in "[A-Ca-c]{1,6}", shards in 1..20_usize, drained in prop::collection::vec(1..7_u64, 0..3)) {
        let began = map(&zones);
        prop_assume!(!holders(&began).is_empty());
        let primaries = deal(&began, shards);
        let mut map = apply(began, Entry::Deal { primaries });
        for member in drained.into_iter().map(MemberId) {
            if let Some(server) = map.servers.get_mut(&member) {
                server.state = ServerState::Draining;
            }
        }
        let holders = holders(&map);
        prop_assume!(!holders.is_empty());
        for ShardMove { shard, from, to } in moves(&map) {
            prop_assert_eq!(map.shards[&shard].primary, from);
            let epoch = map.shards[&shard].epoch;
            map = apply(map, Entry::Move { shard, epoch, to });
        }
        prop_assert_eq!(moves(&map), []);
        let mut counts: BTreeMap<MemberId, usize> = holders.iter().map(|holder| (*holder, 0)).collect();
        for shard in map.shards.values() {
            *counts.get_mut(&shard.primary.unwrap()).unwrap() += 1;
        }
        prop_assert!(counts.values().max().unwrap() - counts.values().min().unwrap() <= 1, "{:?}", counts);
    }
}
