//! Any entries in any order keep the map's invariants, and the same entries make the same map.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_control::entry::{Entry, MAX_ENTRY_BYTES, NewServer, Proposal};
use ecotone_control::ids::{Epoch, FederationId, KeyHash, MemberId, ShardId, TokenId};
use ecotone_control::machine::{Machine, Outcome, RULES_OF_COPIES, Refusal};
use ecotone_control::map::{Addresses, Features, MAX_ZONE_BYTES, Map, Role, ServerState};
use ecotone_control::settings::{Level, Power, Replication, check_power};
use proptest::prelude::*;

use super::{found, server};

fn member() -> impl Strategy<Value = MemberId> {
    (1..7_u64).prop_map(MemberId)
}

fn shard_at() -> impl Strategy<Value = (ShardId, Epoch)> {
    ((1..5_u32).prop_map(ShardId), (1..5_u64).prop_map(Epoch))
}

fn members() -> impl Strategy<Value = BTreeSet<MemberId>> {
    prop::collection::btree_set(member(), 0..4)
}

fn new_server() -> impl Strategy<Value = NewServer> {
    (1..9_u8, any::<bool>(), 1..4_u32).prop_map(|(number, is_witness, max)| NewServer {
        role: if is_witness { Role::Witness } else { Role::Data },
        features: Features { min: 1, max },
        ..server(number)
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        1 => (new_server(), any::<bool>()).prop_map(|(server, with_shard)| Entry::Found {
            server,
            authority: None,
            with_shard
        }),
        // When a token ends is part of it.
        6 => (0..12_u8, new_server()).prop_map(|(token, server)| Entry::Join {
            token: TokenId([token; 16]),
            token_expires_s: u64::from(token % 9),
            key: KeyHash(server.directory.0.repeat(2).try_into().unwrap()),
            server
        }),
        6 => (member(), new_server()).prop_map(|(member, server)| Entry::Announce {
            member,
            directory: server.directory,
            addresses: server.addresses,
            zone: server.zone,
            features: server.features
        }),
        2 => (member(), any::<bool>()).prop_map(|(member, drain)| Entry::Drain { member, drain }),
        2 => (member(), any::<bool>()).prop_map(|(member, force)| Entry::Remove { member, force }),
        1 => prop::collection::vec(member(), 0..4).prop_map(|primaries| Entry::Deal { primaries }),
        4 => (shard_at(), member()).prop_map(|((shard, epoch), member)| Entry::AddCopy { shard, epoch, member }),
        1 => (shard_at(), member()).prop_map(|((shard, epoch), member)| Entry::RemoveCopy { shard, epoch, member }),
        4 => (shard_at(), 1..5_u64, members()).prop_map(|((shard, epoch), set_version, in_sync)| Entry::SetInSync {
            shard,
            epoch,
            set_version,
            in_sync
        }),
        3 => (shard_at(), prop::option::of(member()))
            .prop_map(|((shard, epoch), primary)| Entry::SetPrimary { shard, epoch, primary }),
        2 => (shard_at(), member()).prop_map(|((shard, epoch), to)| Entry::Move { shard, epoch, to }),
        1 => ("[a-c]", prop::option::of("[x-z]{0,2}")).prop_map(|(name, value)| Entry::Set { name, value }),
        1 => (1..5_u32).prop_map(|level| Entry::RaiseFeatureLevel { level }),
        1 => Just(Entry::Barrier),
        1 => prop::collection::vec(any::<u8>(), 0..9).prop_map(|authority| Entry::SetAuthority { authority }),
        1 => (0..9_u64).prop_map(|now_s| Entry::Prune { now_s }),
    ]
}

fn proposals() -> impl Strategy<Value = Vec<Proposal>> {
    let proposal = (member(), entry()).prop_map(|(by, entry)| Proposal { by, entry });
    // Most runs begin as federations do: with a founder that holds the shard, and servers that have
    // joined and run.
    (any::<bool>(), prop::collection::vec(proposal, 0..80)).prop_map(|(begun, mut proposals)| {
        if begun {
            let mut all = vec![found()];
            for number in 2..5 {
                let new = server(number);
                let token = TokenId([100 + number; 16]);
                let join = Entry::Join { token, token_expires_s: 9, key: KeyHash([number; 32]), server: new.clone() };
                let announce = Entry::Announce {
                    member: MemberId(u64::from(number)),
                    directory: new.directory,
                    addresses: new.addresses,
                    zone: new.zone,
                    features: new.features,
                };
                all.extend([join, announce].map(|entry| Proposal { by: MemberId(1), entry }));
            }
            all.append(&mut proposals);
            return all;
        }
        proposals
    })
}

fn machine() -> Machine {
    Machine::new(Map::new(FederationId([9; 8])), 1)
}

fn apply(machine: &mut Machine, proposals: &[Proposal]) {
    for proposal in proposals {
        let index = machine.applied() + 1;
        machine.apply(index, proposal);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn invariants_hold_after_every_entry(proposals in proposals()) {
        let mut machine = machine();
        let mut owners = BTreeMap::new();
        let mut present = BTreeSet::new();
        let mut removed = BTreeSet::new();
        let mut spent = BTreeMap::new();
        for (at, proposal) in proposals.iter().enumerate() {
            let before = machine.map().clone();
            let outcome = machine.apply(at as u64 + 2, proposal);
            let map = machine.map();
            prop_assert_eq!(map.check(), Ok(()), "after {:?}, which became {:?}", proposal, outcome);
            for (id, shard) in &map.shards {
                if let Some(primary) = shard.primary {
                    let owner = *owners.entry((*id, shard.epoch)).or_insert(primary);
                    prop_assert_eq!(owner, primary, "{} has two owners in epoch {}", id, shard.epoch);
                }
                if let Some(earlier) = before.shards.get(id) {
                    prop_assert!(shard.epoch >= earlier.epoch, "the epoch of {} fell", id);
                    prop_assert!(shard.set_version >= earlier.set_version);
                    prop_assert_eq!(&shard.slots, &earlier.slots);
                    prop_assert!(
                        shard.epoch > earlier.epoch || shard.primary == earlier.primary,
                        "{} got another primary in epoch {}", id, shard.epoch
                    );
                }
            }
            prop_assert!(before.shards.keys().all(|id| map.shards.contains_key(id)), "a shard is gone");
            prop_assert!(map.feature_level >= before.feature_level || before.servers.is_empty());
            let now: BTreeSet<MemberId> = map.members().map(|(member, _)| member).collect();
            removed.extend(present.difference(&now).copied());
            prop_assert!(now.is_disjoint(&removed), "one of {:?} is back", removed);
            if let (Entry::Join { token, server, .. }, Outcome::Joined(member)) = (&proposal.entry, &outcome) {
                let joined = *spent.entry(*token).or_insert(*member);
                prop_assert_eq!(joined, *member, "two servers joined with one token");
                prop_assert_eq!(machine.directory(*member), Some(server.directory));
            }
            let is_changed = *map != before;
            let has_effect = matches!(outcome, Outcome::Changed | Outcome::Joined(_));
            prop_assert!(has_effect || !is_changed, "{:?} changed the map", outcome);
            prop_assert!(!is_changed || !before.is_removed(proposal.by), "a removed server acted");
            prop_assert_eq!(is_changed, map.version == at as u64 + 2);
            present = now;
        }
    }

    #[test]
    fn an_entry_applied_twice_changes_nothing_the_second_time(proposals in proposals()) {
        let mut machine = machine();
        for (at, proposal) in proposals.iter().enumerate() {
            let index = at as u64 * 2 + 2;
            machine.apply(index, proposal);
            let once = machine.map().clone();
            machine.apply(index + 1, proposal);
            prop_assert_eq!(machine.map(), &once, "{:?}", proposal);
        }
    }

    #[test]
    fn a_snapshot_anywhere_and_the_rest_make_the_same_map(proposals in proposals(), cut in 0..80_usize) {
        let mut whole = machine();
        apply(&mut whole, &proposals);
        let (first, rest) = proposals.split_at(cut.min(proposals.len()));
        let mut before = machine();
        apply(&mut before, first);
        let bytes = before.map().encode();
        let mut after = Machine::new(Map::decode(&bytes).unwrap(), before.applied());
        apply(&mut after, rest);
        prop_assert_eq!(after.map(), whole.map());
        prop_assert_eq!(after.map().encode(), whole.map().encode());
    }

    #[test]
    fn entries_are_read_as_written(by in member(), entry in entry()) {
        let proposal = Proposal { by, entry };
        let bytes = proposal.encode();
        prop_assert_eq!(Proposal::decode(&bytes), Ok(proposal));
        for cut in 0..bytes.len() {
            prop_assert!(Proposal::decode(&bytes[..cut]).is_err(), "cut to {} bytes", cut);
        }
    }

    #[test]
    fn a_mutated_entry_is_refused_or_says_what_it_is(by in member(), entry in entry(), at in 0..200_usize, byte: u8) {
        let mut bytes = Proposal { by, entry }.encode();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(read) = Proposal::decode(&bytes) {
            prop_assert_eq!(read.encode(), bytes);
        }
    }

    #[test]
    fn a_mutated_map_is_refused(proposals in proposals(), at in any::<prop::sample::Index>(), bit in 0..8) {
        let mut machine = machine();
        apply(&mut machine, &proposals);
        let mut bytes = machine.map().encode();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(Map::decode(&bytes).is_err());
    }
}

fn begun() -> Machine {
    let mut machine = machine();
    apply(&mut machine, &[found()]);
    machine
}

fn ask(machine: &mut Machine, entry: Entry) -> Outcome {
    machine.apply(machine.applied() + 1, &Proposal { by: MemberId(1), entry })
}

fn join(machine: &mut Machine, number: u8) -> MemberId {
    let new = server(number);
    let entry = Entry::Join {
        token: TokenId([number; 16]),
        token_expires_s: 3_600,
        key: KeyHash([number; 32]),
        server: new.clone(),
    };
    let Outcome::Joined(member) = ask(machine, entry) else { panic!("server {number} was refused") };
    let announce = Entry::Announce {
        member,
        directory: new.directory,
        addresses: new.addresses,
        zone: new.zone,
        features: new.features,
    };
    assert_eq!(ask(machine, announce), Outcome::Changed);
    member
}

#[test]
fn who_announces_itself_without_an_address_for_clients_keeps_the_one_that_it_has() {
    let mut machine = begun();
    let member = join(&mut machine, 2);
    let announce = |peers: &str, clients: &str| {
        let NewServer { directory, zone, features, .. } = server(2);
        let addresses = Addresses { peers: peers.into(), clients: clients.into() };
        Entry::Announce { member, directory, addresses, zone, features }
    };
    assert_eq!(ask(&mut machine, announce("a:1", "a:2")), Outcome::Changed);
    assert_eq!(ask(&mut machine, announce("a:1", "")), Outcome::Unchanged);
    assert_eq!(ask(&mut machine, announce("b:1", "")), Outcome::Changed);
    let addresses = &machine.map().server(member).unwrap().addresses;
    assert_eq!((addresses.peers.as_str(), addresses.clients.as_str()), ("b:1", "a:2"));
}

#[test]
fn a_token_lets_one_server_in_and_lets_it_ask_again() {
    let mut machine = begun();
    let first = join(&mut machine, 2);
    let with = |key: u8, server: NewServer| {
        let (token, key) = (TokenId([8; 16]), KeyHash([key; 32]));
        Entry::Join { token, token_expires_s: 3_600, key, server }
    };
    let joins = ask(&mut machine, with(8, server(8)));
    let Outcome::Joined(second) = joins else { panic!("{joins:?}") };
    assert_eq!(ask(&mut machine, with(8, server(8))), Outcome::Joined(second), "its answer was lost");
    // Not for another key, under another name, or in another directory.
    let renamed = NewServer { name: server(7).name, ..server(8) };
    let moved = NewServer { directory: server(7).directory, ..server(8) };
    for taken in [with(9, server(8)), with(8, renamed), with(8, moved)] {
        assert_eq!(ask(&mut machine, taken), Outcome::Refused(Refusal::TokenSpent));
    }
    // Nor once it has begun, which it did with a certificate.
    let again =
        Entry::Join { token: TokenId([2; 16]), token_expires_s: 3_600, key: KeyHash([2; 32]), server: server(2) };
    assert_eq!(ask(&mut machine, again.clone()), Outcome::Refused(Refusal::TokenSpent));
    let other =
        Entry::Join { token: TokenId([2; 16]), token_expires_s: 3_600, key: KeyHash([3; 32]), server: server(3) };
    assert_eq!(ask(&mut machine, other.clone()), Outcome::Refused(Refusal::TokenSpent));
    // Nor when it is removed: not even itself.
    ask(&mut machine, Entry::Remove { member: first, force: false });
    assert_eq!(ask(&mut machine, again), Outcome::Refused(Refusal::TokenSpent));
    assert_eq!(ask(&mut machine, other), Outcome::Refused(Refusal::TokenSpent));
}

#[test]
fn a_spent_token_that_was_forgotten_is_never_good_again() {
    let mut machine = begun();
    join(&mut machine, 2);
    let old = |ends: u64| Entry::Join {
        token: TokenId([2; 16]),
        token_expires_s: ends,
        key: KeyHash([3; 32]),
        server: server(3),
    };
    // By a clock that is far ahead, and then set right.
    assert_eq!(ask(&mut machine, Entry::Prune { now_s: 1 << 40 }), Outcome::Changed);
    assert!(machine.map().spent_tokens.is_empty());
    assert_eq!(ask(&mut machine, old(3_600)), Outcome::Refused(Refusal::TokenExpired));
    assert_eq!(Map::decode(&machine.map().encode()).unwrap().tokens_pruned_until, 3_600);
    assert_eq!(ask(&mut machine, Entry::Prune { now_s: 1 }), Outcome::Unchanged);
    assert_eq!(ask(&mut machine, old(3_600)), Outcome::Refused(Refusal::TokenExpired));
    // Those that are made later are good.
    assert!(matches!(ask(&mut machine, old(3_601)), Outcome::Joined(_)));
}

#[test]
fn a_move_whose_answer_was_lost_is_done_already() {
    let mut machine = begun();
    let (second, third) = (join(&mut machine, 2), join(&mut machine, 3));
    let moves = |to| Entry::Move { shard: ShardId(1), epoch: Epoch(1), to };
    assert_eq!(ask(&mut machine, moves(second)), Outcome::Changed);
    assert_eq!(ask(&mut machine, moves(second)), Outcome::Unchanged);
    assert_eq!(ask(&mut machine, moves(third)), Outcome::Outdated { epoch: Epoch(2) });
    let on = Entry::Move { shard: ShardId(1), epoch: Epoch(2), to: third };
    assert_eq!(ask(&mut machine, on), Outcome::Changed);
    assert_eq!(ask(&mut machine, moves(second)), Outcome::Outdated { epoch: Epoch(3) });
}

#[test]
fn a_failover_and_a_move_that_race_become_one() {
    let mut machine = begun();
    let (second, third) = (join(&mut machine, 2), join(&mut machine, 3));
    let (shard, epoch) = (ShardId(1), Epoch(1));
    assert_eq!(ask(&mut machine, Entry::AddCopy { shard, epoch, member: second }), Outcome::Changed);
    let in_sync = BTreeSet::from([MemberId(1), second]);
    let set = Entry::SetInSync { shard, epoch, set_version: 1, in_sync };
    assert_eq!(ask(&mut machine, set), Outcome::Changed);
    // The failover is first, the old primary's wish to shrink the set comes too late.
    assert_eq!(ask(&mut machine, Entry::SetPrimary { shard, epoch, primary: Some(second) }), Outcome::Changed);
    let late = [
        Entry::SetInSync { shard, epoch, set_version: 2, in_sync: BTreeSet::from([MemberId(1)]) },
        Entry::SetPrimary { shard, epoch, primary: Some(MemberId(1)) },
        Entry::Move { shard, epoch, to: third },
        Entry::AddCopy { shard, epoch, member: third },
    ];
    for entry in late {
        assert_eq!(ask(&mut machine, entry), Outcome::Outdated { epoch: Epoch(2) });
    }
    // In the right epoch, but on top of a set that has changed.
    let set = Entry::SetInSync { shard, epoch: Epoch(2), set_version: 1, in_sync: BTreeSet::from([second]) };
    assert_eq!(ask(&mut machine, set), Outcome::Outdated { epoch: Epoch(2) });
}

#[test]
fn removal_takes_shards_only_by_force_and_is_for_ever() {
    let mut machine = begun();
    let second = join(&mut machine, 2);
    let remove = |force| Entry::Remove { member: MemberId(1), force };
    let by_second =
        |machine: &mut Machine, entry| machine.apply(machine.applied() + 1, &Proposal { by: second, entry });
    let refused = by_second(&mut machine, remove(false));
    assert_eq!(refused, Outcome::Refused(Refusal::LastCopy(MemberId(1), ShardId(1))));
    assert_eq!(by_second(&mut machine, remove(true)), Outcome::Changed);
    let shard = &machine.map().shards[&ShardId(1)];
    assert_eq!((shard.primary, shard.epoch), (None, Epoch(2)));

    // It asks, and its number is known to be removed also when nothing else is known of it.
    let set = Entry::Set { name: "a".into(), value: Some("b".into()) };
    assert_eq!(ask(&mut machine, set.clone()), Outcome::Refused(Refusal::Removed(MemberId(1))));
    assert_eq!(by_second(&mut machine, Entry::Prune { now_s: 1_000 }), Outcome::Changed);
    assert!(!machine.map().servers.contains_key(&MemberId(1)));
    assert_eq!(ask(&mut machine, set), Outcome::Refused(Refusal::Removed(MemberId(1))));
    // The next server gets a new number.
    let token = TokenId([9; 16]);
    let again = Entry::Join { token, token_expires_s: 3_601, key: KeyHash([9; 32]), server: server(9) };
    assert_eq!(by_second(&mut machine, again), Outcome::Joined(MemberId(3)));
    assert_eq!(by_second(&mut machine, Entry::Remove { member: MemberId(3), force: true }), Outcome::Changed);
    let last = by_second(&mut machine, Entry::Remove { member: second, force: true });
    assert_eq!(last, Outcome::Refused(Refusal::LastServer(second)));
}

#[test]
fn the_feature_level_rises_when_all_can_follow() {
    let mut machine = begun();
    assert_eq!(machine.map().feature_level, 2, "a federation begins with what its first server can do");
    let second = join(&mut machine, 2);
    let raise = Entry::RaiseFeatureLevel { level: 3 };
    let unable = Outcome::Refused(Refusal::FeatureLevel { level: 3, min: 1, max: 2 });
    assert_eq!(ask(&mut machine, raise.clone()), unable);
    let announce = |member: MemberId, max| {
        let number = u8::try_from(member.0).unwrap();
        let new = server(number);
        let features = Features { min: 1, max };
        let NewServer { directory, addresses, zone, .. } = new;
        Entry::Announce { member, directory, addresses, zone, features }
    };
    ask(&mut machine, announce(MemberId(1), 3));
    assert_eq!(ask(&mut machine, raise.clone()), unable, "one of two servers still has the old build");
    ask(&mut machine, announce(second, 3));
    assert_eq!(ask(&mut machine, raise.clone()), Outcome::Changed);
    assert_eq!(ask(&mut machine, raise), Outcome::Unchanged);
    // Now there is no way back, for a server that starts and for one that joins.
    let refused = Outcome::Refused(Refusal::FeatureLevel { level: 3, min: 1, max: 2 });
    assert_eq!(ask(&mut machine, announce(second, 2)), refused);
    let token = TokenId([7; 16]);
    assert_eq!(
        ask(&mut machine, Entry::Join { token, token_expires_s: 1, key: KeyHash([7; 32]), server: server(7) }),
        refused
    );
}

#[test]
fn witnesses_and_drained_servers_get_no_data() {
    let mut machine = begun();
    let second = join(&mut machine, 2);
    let witness = NewServer { role: Role::Witness, ..server(3) };
    let token = TokenId([3; 16]);
    let joined = ask(&mut machine, Entry::Join { token, token_expires_s: 1, key: KeyHash([8; 32]), server: witness });
    let Outcome::Joined(witness) = joined else { panic!("{joined:?}") };
    let copy = |member| Entry::AddCopy { shard: ShardId(1), epoch: Epoch(1), member };
    assert_eq!(ask(&mut machine, copy(witness)), Outcome::Refused(Refusal::CannotHold(witness)));
    ask(&mut machine, Entry::Drain { member: second, drain: true });
    assert_eq!(machine.map().servers[&second].state, ServerState::Draining);
    assert_eq!(ask(&mut machine, copy(second)), Outcome::Refused(Refusal::CannotHold(second)));
    ask(&mut machine, Entry::Drain { member: second, drain: false });
    assert_eq!(ask(&mut machine, copy(second)), Outcome::Changed);
}

#[test]
fn lengths_beyond_their_limits_are_refused() {
    let zone = "z".repeat(MAX_ZONE_BYTES + 1);
    let proposal = Proposal {
        by: MemberId(1),
        entry: Entry::Found { server: NewServer { zone, ..server(1) }, authority: None, with_shard: true },
    };
    let error = Proposal::decode(&proposal.encode()).unwrap_err().to_string();
    assert!(error.contains("65 is more than the limit of 64"), "{error}");
    let entry = Entry::SetAuthority { authority: vec![0; MAX_ENTRY_BYTES] };
    assert!(Proposal::decode(&Proposal { by: MemberId(1), entry }.encode()).is_err());
}

/// A federation of two at this feature level, whose only shard has a copy on each, both in sync.
fn two_in_sync(level: u32) -> Machine {
    let mut machine = machine();
    let new = server(2);
    let (member, shard) = (MemberId(2), ShardId(1));
    let Proposal { entry: Entry::Found { server: mut first, authority, with_shard }, .. } = found() else { panic!() };
    first.features.max = level;
    let found = Entry::Found { server: first, authority, with_shard };
    let join = Entry::Join { token: TokenId([9; 16]), token_expires_s: 9, key: KeyHash([2; 32]), server: new.clone() };
    let announce = Entry::Announce {
        member,
        directory: new.directory,
        addresses: new.addresses,
        zone: new.zone,
        features: new.features,
    };
    let add = Entry::AddCopy { shard, epoch: Epoch(1), member };
    let in_sync = BTreeSet::from([MemberId(1), member]);
    let set = Entry::SetInSync { shard, epoch: Epoch(1), set_version: 1, in_sync };
    let entries = [found, join, announce, add, set];
    apply(&mut machine, &entries.map(|entry| Proposal { by: MemberId(1), entry }));
    assert_eq!((machine.map().feature_level, machine.map().shards[&shard].in_sync.len()), (level, 2));
    machine
}

fn outcome(machine: &mut Machine, entry: Entry) -> Outcome {
    let index = machine.applied() + 1;
    machine.apply(index, &Proposal { by: MemberId(1), entry })
}

/// An older build applies each entry as it always did, so a newer one does until all are newer.
#[test]
fn rules_of_copies_begin_with_their_feature_level() {
    let remove = Entry::Remove { member: MemberId(2), force: false };
    let set = |name: &str, value: &str| Entry::Set { name: name.into(), value: Some(value.into()) };
    let mut old = two_in_sync(RULES_OF_COPIES - 1);
    assert_eq!(outcome(&mut old, set("replication.copies", "many")), Outcome::Changed);
    assert_eq!(outcome(&mut old, set("replication.copy", "3")), Outcome::Changed);
    assert_eq!(Replication::of(old.map()), Replication::default(), "what is no number counts for nothing");
    assert_eq!(outcome(&mut old.clone(), remove.clone()), Outcome::Changed);

    let mut new = two_in_sync(RULES_OF_COPIES);
    let refused = outcome(&mut new, remove.clone());
    assert_eq!(refused, Outcome::Refused(Refusal::InSync(MemberId(2), ShardId(1))));
    assert!(matches!(
        outcome(&mut new, set("replication.copies", "many")),
        Outcome::Refused(Refusal::Setting { name, .. }) if name == "replication.copies"
    ));
    assert!(matches!(outcome(&mut new, set("replication.copy", "3")), Outcome::Refused(Refusal::Setting { .. })));
    assert_eq!(outcome(&mut new, set("offload.copy", "3")), Outcome::Changed, "others have no rules here");

    // What was let in before can go.
    outcome(&mut old, Entry::RaiseFeatureLevel { level: RULES_OF_COPIES });
    assert_eq!(outcome(&mut old, Entry::Set { name: "replication.copy".into(), value: None }), Outcome::Changed);

    // Out of the set it may go; by force always.
    let alone = BTreeSet::from([MemberId(1)]);
    let shrink = Entry::SetInSync { shard: ShardId(1), epoch: Epoch(1), set_version: 2, in_sync: alone };
    let mut drained = new.clone();
    assert_eq!(outcome(&mut drained, shrink), Outcome::Changed);
    assert_eq!(outcome(&mut drained, remove), Outcome::Changed);
    let force = Entry::Remove { member: MemberId(2), force: true };
    assert_eq!(outcome(&mut new, force), Outcome::Changed);
}

/// The primary has asked for a set with a copy that goes meanwhile. It counts that set until the log
/// names another version, or for ever.
#[test]
fn a_copy_that_goes_outdates_sets_that_name_it() {
    let removals = [
        Entry::RemoveCopy { shard: ShardId(1), epoch: Epoch(1), member: MemberId(2) },
        Entry::Remove { member: MemberId(2), force: false },
    ];
    for (level, removal) in [RULES_OF_COPIES - 1, RULES_OF_COPIES]
        .into_iter()
        .flat_map(|level| removals.clone().map(|removal| (level, removal)))
    {
        let mut machine = two_in_sync(level);
        let set = |set_version, in_sync: &[u64]| {
            let in_sync = in_sync.iter().map(|member| MemberId(*member)).collect();
            Entry::SetInSync { shard: ShardId(1), epoch: Epoch(1), set_version, in_sync }
        };
        assert_eq!(outcome(&mut machine, set(2, &[1])), Outcome::Changed);
        assert_eq!(outcome(&mut machine, removal.clone()), Outcome::Changed);
        let has_rule = level >= RULES_OF_COPIES;
        assert_eq!(machine.map().shards[&ShardId(1)].set_version, 3 + u64::from(has_rule));
        let late = outcome(&mut machine, set(3, &[1, 2]));
        assert_eq!(late == Outcome::Outdated { epoch: Epoch(1) }, has_rule, "{late:?}");
        assert_eq!(machine.map().shards[&ShardId(1)].in_sync, BTreeSet::from([MemberId(1)]));
        assert_eq!(outcome(&mut machine, removal), Outcome::Unchanged);
    }
}

#[test]
fn settings_of_replication_are_checked_and_read() {
    let mut machine = two_in_sync(RULES_OF_COPIES);
    let mut set = |name: &str, value: &str| {
        let (name, value) = (format!("replication.{name}"), Some(value.to_owned()));
        outcome(&mut machine, Entry::Set { name, value }) == Outcome::Changed
    };
    for (name, values) in [
        ("copies", ["0", "8", "03", "+3", "-1", "3 ", "", "three"]),
        ("min_in_sync", ["0", "8", "1.0", "01", " 1", "-1", "", "all"]),
        ("level", ["One", "two", "ALL", "quorum ", "majority", "1", "", "none"]),
        ("max_lag_bytes", ["0", "1048575", "1mb", "-1", "1e9", "18446744073709551616", "", "none"]),
        ("max_staleness_ms", ["0", "-1", "1.5", "1s", "00", " 1", "", "none"]),
        ("seed_bytes_per_s", ["0", "65535", "1mb", "-1", "1e9", "18446744073709551616", "", "none"]),
    ] {
        for value in values {
            assert!(!set(name, value), "{name} = {value:?}");
        }
    }
    assert!(set("copies", "3"));
    assert!(set("max_lag_bytes", "1048576"));
    assert!(set("min_in_sync", "2"));
    assert!(set("max_staleness_ms", "1"));
    let read = Replication::of(machine.map());
    assert_eq!((read.copies, read.min_in_sync, read.max_lag_bytes), (3, 2, 1 << 20));
    assert_eq!((read.max_staleness_ms, read.seed_bytes_per_s), (Some(1), None));
    assert_eq!(read.level, Level::Quorum, "nobody said, and there are copies");
    let set = |name: &str, value: Option<&str>| Entry::Set { name: name.into(), value: value.map(str::to_owned) };
    for (name, level) in [("one", Level::One), ("quorum", Level::Quorum), ("all", Level::All)] {
        outcome(&mut machine, set("replication.level", Some(name)));
        assert_eq!(Replication::of(machine.map()).level, level);
    }
    outcome(&mut machine, set("replication.level", None));
    outcome(&mut machine, set("replication.copies", None));
    assert_eq!(Replication::of(machine.map()).level, Level::One);
}

#[test]
fn settings_of_power_are_read_where_they_may_be_set() {
    let mut machine = two_in_sync(RULES_OF_COPIES);
    let mut set = |name: &str, value: Option<&str>| {
        outcome(&mut machine, Entry::Set { name: name.into(), value: value.map(str::to_owned) });
        Power::of(machine.map())
    };
    assert_eq!(set("power.mode", Some("concerto")).mode.as_deref(), Some("concerto"));
    assert_eq!(set("power.cap_watts", Some("90")), Power { mode: Some("concerto".into()), cap_watts: Some(90) });
    // What another build has let in is as if it were not there.
    for (mode, cap) in [("Concerto", "0"), ("", "-3"), ("fast", "9.5"), ("all", "1000000001")] {
        assert_eq!(set("power.mode", Some(mode)).mode, None);
        assert_eq!(set("power.cap_watts", Some(cap)).cap_watts, None);
        assert!(check_power("power.mode", mode).is_err() && check_power("power.cap_watts", cap).is_err());
    }
    assert_eq!(set("power.cap_watts", None).cap_watts, None);
    assert!(check_power("power.modes", "concerto").is_err());
    assert!(check_power("replication.copies", "anything").is_ok());
}
