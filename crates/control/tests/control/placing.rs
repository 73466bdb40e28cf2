//! Where copies go, in a table that people can check; and that steps end well from anywhere, each of
//! them safe.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_control::entry::{Entry, Proposal};
use ecotone_control::ids::{Epoch, MemberId, ShardId};
use ecotone_control::machine::{Machine, Outcome};
use ecotone_control::map::{MAX_COPIES, Map, Role, ServerState, Shard, deal_slots};
use ecotone_control::placing::{Change, MAX_CHANGES, Presence, next_changes};
use proptest::prelude::*;

use super::voters_table::{map as servers, members};

const TABLE: &str = include_str!("../golden/placing.txt");

/// Shards by their copies: `1* 2 3?`: the primary, one in sync, one that is not.
fn with_shards(servers: &str, shards: &str) -> Map {
    let mut map = self::servers(servers);
    let shards: Vec<&str> = shards.split(", ").collect();
    for ((number, copies), slots) in (1..).zip(&shards).zip(deal_slots(shards.len() as u16)) {
        let number_of =
            |copy: &str| MemberId(copy.trim_end_matches(|sign: char| !sign.is_ascii_digit()).parse().unwrap());
        let of = |may: fn(&&str) -> bool| copies.split(' ').filter(may).map(number_of).collect::<BTreeSet<_>>();
        let shard = Shard {
            slots: vec![slots],
            copies: of(|_| true),
            in_sync: of(|copy| !copy.ends_with('?')),
            primary: of(|copy| copy.ends_with('*')).first().copied(),
            epoch: Epoch(1),
            set_version: 1,
        };
        map.shards.insert(ShardId(number), shard);
        map.next_shard = number + 1;
    }
    map.check().unwrap();
    map
}

fn written(changes: &[Change]) -> String {
    let write = |change: &Change| match change {
        Change::AddCopy { shard, member } => format!("{}+{}", shard.0, member.0),
        Change::RemoveCopy { shard, member } => format!("{}-{}", shard.0, member.0),
        Change::HandOver { shard, to } => format!("{}>{}", shard.0, to.0),
    };
    let all: Vec<String> = changes.iter().map(write).collect();
    if all.is_empty() { "-".into() } else { all.join(" ") }
}

fn all(map: &Map) -> BTreeSet<MemberId> {
    map.members().map(|(member, _)| member).collect()
}

/// Each case says what it is about, and then: servers; how many copies; who is away; who of them is
/// given up; the copies of each shard -> the next steps: `+` a copy is added, `-` one goes, `>` the
/// primary hands over.
#[test]
fn golden_table() {
    let cases: Vec<&str> = TABLE.lines().filter(|line| line.starts_with(' ')).collect();
    assert_eq!(cases.len(), 32);
    for case in cases {
        let (given, wanted) = case.trim().split_once(" -> ").unwrap();
        let [servers, copies, away, given_up, shards] = given.split("; ").collect::<Vec<_>>()[..] else {
            panic!("{case}")
        };
        let map = with_shards(servers, shards);
        let copies = copies.strip_prefix("copies ").unwrap().parse().unwrap();
        let away = members(away.strip_prefix("away ").unwrap());
        let given_up = members(given_up.strip_prefix("given up ").unwrap());
        let alive: BTreeSet<MemberId> = all(&map).difference(&away).copied().collect();
        let presence = Presence { alive: &alive, given_up: &given_up };
        let changes = next_changes(&map, copies, presence, &BTreeSet::new());
        assert_eq!(written(&changes), wanted, "{case}");
    }
}

#[test]
fn busy_shards_wait_and_count() {
    let map = with_shards("A1 B2", "1*, 1*, 1*, 1*, 1*, 1*");
    let alive = all(&map);
    let presence = Presence { alive: &alive, given_up: &BTreeSet::new() };
    let busy = |shards: &[u32]| shards.iter().map(|shard| ShardId(*shard)).collect();
    assert_eq!(written(&next_changes(&map, 2, presence, &busy(&[1, 3]))), "2+2 4+2");
    assert_eq!(written(&next_changes(&map, 2, presence, &busy(&[1, 2, 3, 4]))), "-");
}

/// Servers, what any shard is made of, how many copies, who is away, and who of them is given up.
type Drawn = (String, Vec<(u8, u8, u8)>, usize, u8, u8);

fn federation() -> impl Strategy<Value = Drawn> {
    let server = ("[ABC]", prop::sample::select(vec!["", "", "", "", "", "w", "d", "j"]));
    let zones = any::<bool>();
    let shards = prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 1..14);
    (prop::collection::vec(server, 1..9), zones, shards, 1..=MAX_COPIES, any::<u8>(), any::<u8>()).prop_map(
        |(servers, has_zones, shards, copies, away, gone)| {
            let name = |(at, (zone, kind)): (usize, &(String, &str))| {
                let zone = if has_zones { zone.clone() } else { ((b'A' + at as u8) as char).to_string() };
                format!("{zone}{kind}{}", at + 1)
            };
            let servers: Vec<String> = servers.iter().enumerate().map(name).collect();
            (servers.join(" "), shards, copies, away, away & gone)
        },
    )
}

/// Any copies on servers that hold data, any of them in sync, one of these the primary.
fn any_map(servers: &str, shards: &[(u8, u8, u8)]) -> Option<Map> {
    let mut map = self::servers(servers);
    let data: Vec<MemberId> = map
        .members()
        .filter(|(_, server)| server.role == Role::Data && server.state != ServerState::Joining)
        .map(|(member, _)| member)
        .collect();
    let some = |mask: u8, of: &[MemberId]| -> BTreeSet<MemberId> {
        of.iter().enumerate().filter(|(at, _)| mask & (1 << at) != 0).map(|(_, member)| *member).collect()
    };
    for ((number, (copies, in_sync, primary)), slots) in (1..).zip(shards).zip(deal_slots(shards.len() as u16)) {
        let mut copies = some(*copies, &data);
        copies.insert(*data.get(usize::from(*primary) % data.len().max(1))?);
        while copies.len() > MAX_COPIES {
            copies.pop_first();
        }
        let all: Vec<MemberId> = copies.iter().copied().collect();
        let primary = all[usize::from(*primary) % all.len()];
        let mut in_sync = some(*in_sync, &all);
        in_sync.insert(primary);
        let (primary, epoch) = (Some(primary), Epoch(1));
        map.shards
            .insert(ShardId(number), Shard { slots: vec![slots], copies, in_sync, primary, epoch, set_version: 1 });
        map.next_shard = number + 1;
    }
    map.check().unwrap();
    Some(map)
}

/// What the primary and the leader make of a step, by entries.
fn carry_out(machine: &mut Machine, change: Change) {
    let id = change.shard();
    let Shard { in_sync, epoch, set_version, .. } = machine.map().shards[&id].clone();
    let mut apply = |entry: Entry| {
        let index = machine.applied() + 1;
        let outcome = machine.apply(index, &Proposal { by: MemberId(1), entry });
        assert_eq!(outcome, Outcome::Changed, "{change:?}");
    };
    match change {
        Change::AddCopy { member, .. } => apply(Entry::AddCopy { shard: id, epoch, member }),
        Change::HandOver { to, .. } => apply(Entry::SetPrimary { shard: id, epoch, primary: Some(to) }),
        Change::RemoveCopy { member, .. } => {
            if in_sync.contains(&member) {
                let in_sync = in_sync.into_iter().filter(|other| *other != member).collect();
                apply(Entry::SetInSync { shard: id, epoch, set_version, in_sync });
            }
            apply(Entry::RemoveCopy { shard: id, epoch, member });
        }
    }
}

/// Copies on servers that answer come into the set.
fn catch_up(machine: &mut Machine, alive: &BTreeSet<MemberId>) {
    for (id, shard) in machine.map().shards.clone() {
        let in_sync: BTreeSet<MemberId> = shard
            .copies
            .iter()
            .copied()
            .filter(|member| shard.in_sync.contains(member) || alive.contains(member))
            .collect();
        let entry = Entry::SetInSync { shard: id, epoch: shard.epoch, set_version: shard.set_version, in_sync };
        let index = machine.applied() + 1;
        machine.apply(index, &Proposal { by: MemberId(1), entry });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// From anywhere, all together or only the first of each time: there is an end, on the way each
    /// step is safe, and in the end all is as it should be.
    #[test]
    fn steps_end_well((servers, shards, copies, away, given_up) in federation(), one_by_one in any::<bool>()) {
        let Some(map) = any_map(&servers, &shards) else { return Ok(()) };
        let some = |mask: u8| -> BTreeSet<MemberId> {
            all(&map).into_iter().filter(|member| mask & (1 << (member.0 - 1)) != 0).collect()
        };
        // Who leads is there, and most others are: one in four is away.
        let mut away = some(away & away.rotate_left(3));
        away.remove(&MemberId(1));
        let given_up: BTreeSet<MemberId> = some(given_up).intersection(&away).copied().collect();
        let alive: BTreeSet<MemberId> = all(&map).difference(&away).copied().collect();
        let presence = Presence { alive: &alive, given_up: &given_up };
        let holders: BTreeSet<MemberId> = map
            .members()
            .filter(|(member, server)| {
                server.role == Role::Data && server.state == ServerState::Active && !given_up.contains(member)
            })
            .map(|(member, _)| member)
            .collect();
        let wanted = copies.min(holders.len());
        let mut machine = Machine::new(map, 1);
        let mut steps = 0;
        loop {
            let changes = next_changes(machine.map(), copies, presence, &BTreeSet::new());
            let again = next_changes(machine.map(), copies, presence, &BTreeSet::new());
            prop_assert_eq!(&changes, &again, "the same map, the same steps");
            prop_assert!(changes.len() <= MAX_CHANGES);
            let about: BTreeSet<ShardId> = changes.iter().map(|change| change.shard()).collect();
            prop_assert_eq!(about.len(), changes.len(), "never two for one shard");
            if changes.is_empty() {
                let before = machine.map().clone();
                catch_up(&mut machine, &alive);
                if *machine.map() == before {
                    break;
                }
                continue;
            }
            for change in changes.into_iter().take(if one_by_one { 1 } else { MAX_CHANGES }) {
                let before = machine.map().shards[&change.shard()].clone();
                carry_out(&mut machine, change);
                machine.map().check().unwrap();
                let after = &machine.map().shards[&change.shard()];
                // Whoever counts for what is acknowledged stays, unless enough others do.
                let stay = after.in_sync.intersection(&holders).count();
                let is_enough = stay > copies / 2 && (stay >= wanted || before.copies.len() == MAX_COPIES);
                prop_assert!(after.in_sync.is_superset(&before.in_sync) || is_enough, "{:?}: {:?}", change, before);
                prop_assert!(after.primary.is_some() && after.in_sync.contains(&after.primary.unwrap()));
                if let Change::AddCopy { member, .. } = change {
                    prop_assert!(holders.contains(&member) && alive.contains(&member));
                }
                if let Change::HandOver { to, .. } = change {
                    prop_assert!(alive.contains(&to) && holders.contains(&to));
                }
                steps += 1;
            }
            prop_assert!(steps <= 40 * shards.len(), "no end after {} steps: {:?}", steps, machine.map().shards);
            // Now and then all that is being made is done.
            if steps % 3 == 0 {
                catch_up(&mut machine, &alive);
            }
        }
        let map = machine.map();
        if !away.is_empty() || holders.is_empty() || copies == MAX_COPIES {
            return Ok(());
        }
        // All are there: nothing is left to wish for.
        let zone = |member: &MemberId| map.servers[member].zone.clone();
        let zones: BTreeSet<String> = holders.iter().map(zone).collect();
        let (mut held, mut primaries) = (BTreeMap::new(), BTreeMap::new());
        for holder in &holders {
            held.insert(*holder, 0_usize);
            primaries.insert(*holder, 0_usize);
        }
        for (id, shard) in &map.shards {
            let placed: BTreeSet<MemberId> = shard.copies.intersection(&holders).copied().collect();
            prop_assert_eq!(placed.len(), wanted, "{} has {:?}", id, shard.copies);
            let spread: BTreeSet<String> = placed.iter().map(zone).collect();
            prop_assert_eq!(spread.len(), wanted.min(zones.len()), "{} is in {:?}", id, spread);
            // A majority of copies is more than there may be servers: then drained ones keep theirs.
            let can_go = wanted > copies / 2;
            prop_assert!(!can_go || shard.copies.is_subset(&holders), "{} is on {:?}", id, shard.copies);
            placed.iter().for_each(|member| *held.get_mut(member).unwrap() += 1);
            if let Some(count) = shard.primary.and_then(|primary| primaries.get_mut(&primary)) {
                *count += 1;
            }
        }
        let unevenness = |counts: &BTreeMap<MemberId, usize>| {
            counts.values().max().unwrap() - counts.values().min().unwrap()
        };
        // Where no zone has two servers, and each shard is on all of them, nothing stands in the way.
        if zones.len() == holders.len() {
            prop_assert!(unevenness(&held) <= 1, "copies: {:?}", held);
if wanted > copies / 2 && wanted == holders.len() {
                prop_assert!(unevenness(&primaries) <= 1, "primaries: {:?}", primaries);
            }
        }
    }
}
