//! Who votes, in a table that people can check; and that the choice is stable.

use std::collections::BTreeSet;

use ecotone_control::ids::{DirectoryId, FederationId, MemberId};
use ecotone_control::map::{Addresses, Features, Map, Role, Server, ServerState};
use ecotone_control::voters::{MAX_VOTERS, choose};
use ecotone_types::ServerId;
use proptest::prelude::*;

const TABLE: &str = include_str!("../golden/voters.txt");

/// A map of servers in zones: `N1 S2 Ww3`: letters of zone, `w` for a witness, `d` drained, `j`
/// joining, and the number.
pub fn map(servers: &str) -> Map {
    let mut map = Map::new(FederationId([0; 8]));
    for server in servers.split_whitespace() {
        let number: u64 = server.trim_start_matches(char::is_alphabetic).parse().unwrap();
        let state = match () {
            () if server.contains('d') => ServerState::Draining,
            () if server.contains('j') => ServerState::Joining,
            () => ServerState::Active,
        };
        let server = Server {
            directory: DirectoryId([number as u8; 16]),
            name: ServerId::new(format!("server-{number}")).unwrap(),
            addresses: Addresses::default(),
            zone: server[..1].into(),
            role: if server.contains('w') { Role::Witness } else { Role::Data },
            state,
            features: Features { min: 1, max: 1 },
        };
        map.servers.insert(MemberId(number), server);
        map.next_member = map.next_member.max(number + 1);
    }
    map
}

/// Numbers between spaces; `-` for none.
pub fn members(numbers: &str) -> BTreeSet<MemberId> {
    numbers.split_whitespace().filter(|number| *number != "-").map(|number| MemberId(number.parse().unwrap())).collect()
}

/// Each case says what it is about, and then: servers; who votes; who is gone -> who shall vote,
/// where server 1 leads.
#[test]
fn golden_table() {
    let lines: Vec<&str> = TABLE.lines().collect();
    assert_eq!(lines.len(), 2 * 18);
    for case in lines.chunks_exact(2) {
        let (given, wanted) = case[1].split_once(" -> ").unwrap();
        let [servers, current, gone] = given.split("; ").collect::<Vec<_>>()[..] else { panic!("{}", case[1]) };
        let current = members(current.strip_prefix("vote ").unwrap());
        let gone = members(gone.strip_prefix("gone ").unwrap());
        let chosen = choose(&map(servers), &current, &gone, MemberId(1));
        assert_eq!(chosen, members(wanted), "{}: {}", case[0], case[1]);
    }
}

fn federation() -> impl Strategy<Value = (Map, BTreeSet<MemberId>, BTreeSet<MemberId>)> {
    let server = ("[ABCD]", prop::sample::select(vec!["", "", "", "w", "d", "j"]));
    let some = || prop::collection::btree_set((1..12_u64).prop_map(MemberId), 0..6);
    (prop::collection::vec(server, 1..12), some(), some()).prop_map(|(servers, current, gone)| {
        let servers: Vec<String> =
            servers.iter().enumerate().map(|(at, (zone, kind))| format!("{zone}{kind}{}", at + 1)).collect();
        (map(&servers.join(" ")), current, gone)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_choice_is_stable((map, current, gone) in federation()) {
        let leader = MemberId(1);
        let chosen = choose(&map, &current, &gone, leader);
        prop_assert_eq!(&choose(&map, &chosen, &gone, leader), &chosen);
        // Who comes back takes nobody's place, unless that spreads voters better.
        let again = choose(&map, &chosen, &BTreeSet::new(), leader);
        prop_assert_eq!(&choose(&map, &again, &BTreeSet::new(), leader), &again);
    }

    #[test]
    fn the_choice_is_odd_present_and_spread((map, current, gone) in federation()) {
        let chosen = choose(&map, &current, &gone, MemberId(1));
        let active: BTreeSet<MemberId> = map
            .members()
            .filter(|(_, server)| server.state == ServerState::Active)
            .map(|(member, _)| member)
            .collect();
        prop_assert!(chosen.is_subset(&active));
        prop_assert!(chosen.len() <= MAX_VOTERS);
        prop_assert_eq!(chosen.is_empty(), active.is_empty());
        prop_assert!(chosen.is_empty() || chosen.len() % 2 == 1);
        let there: BTreeSet<MemberId> = active.difference(&gone).copied().collect();
        let is_served = chosen.is_disjoint(&gone) || there.is_subset(&chosen);
        prop_assert!(is_served, "{:?} are there, and {:?} vote", there, chosen);
        if chosen.is_disjoint(&gone) {
            // No zone has two voters more than another that has somebody to spare.
            let zone = |member: &MemberId| map.servers[member].zone.clone();
            let voters_in = |of: &str| chosen.iter().filter(|member| zone(member) == of).count();
            for spare in there.difference(&chosen) {
                let few = voters_in(&zone(spare));
                prop_assert!(chosen.iter().all(|member| voters_in(&zone(member)) <= few + 1));
            }
        }
    }
}
