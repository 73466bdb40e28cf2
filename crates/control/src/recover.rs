//! How a federation's log begins: new, with the shards of a backup, from an export, or by force after
//! most voters are lost.
//!
//! Each begins at index 1 or behind what was there, with one voter. By force, and from an export,
//! the generation rises: servers of the old one do not speak with the new, and whatever most of the
//! old voters had agreed on that this server has not heard is lost. The others, when the new
//! leader speaks to them, ask for its snapshot, check it, keep their old log aside and learn
//! ([`crate::node::Command::NewGeneration`]); so
//! the old voters must not decide anything any more when this is done, and cannot afterwards,
//! where one of them has heard of it.
//!
//! Numbers that lost entries have given must not be given again: there are certificates of servers,
//! and folders of shards, that name them. So a new generation leaves out [`SKIPPED_NUMBERS`]. Whom a
//! lost entry let in is refused from then on, as if it were removed, and joins anew. Where two servers
//! begin anew, each by itself, the generation is the same and the history is not, which is drawn at
//! random: neither takes what the other says. Tokens that
//! lost entries have spent are good again for the rest of their hour.

use std::collections::{BTreeMap, BTreeSet};

use raft::eraftpb::Snapshot;

use crate::codec::Malformed;
use crate::entry::{NewServer, Proposal};
use crate::error::Error;
use crate::ids::{Epoch, FederationId, HistoryId, MemberId, ShardId};
use crate::log::{Content, Identity};
use crate::machine::Machine;
use crate::map::{MAX_SETTINGS, MAX_SHARDS, Map, Role, ServerState, Shard, SlotRange};

/// Numbers of servers, and of shards, that a new generation leaves out: more than were given by
/// entries that this server had not heard of. It follows most voters closely, and a federation has
/// not as many servers.
pub const SKIPPED_NUMBERS: u32 = 4_096;

/// The epoch in which restored shards begin. What is in its first is founded empty where there is
/// no store, and these have one: if it is lost nothing takes its place.
const FIRST_RESTORED: Epoch = Epoch(2);

/// The beginning of a new federation: no servers yet, one voter, which is to propose
/// [`crate::entry::Entry::Found`].
pub fn found(federation: FederationId) -> Snapshot {
    begin(&Map::new(federation), MemberId(1), 1, 1)
}

/// The beginning of a new federation that has data already: what a backup of another one holds. Its
/// only server is the primary of all shards, which keep their numbers and slots. Nothing else of the
/// old federation is in it: other servers, epochs, tokens and its authority are not.
///
/// # Errors
/// Which invariant of a map does not hold, in words.
pub fn restored(
    federation: FederationId,
    server: &NewServer,
    authority: Vec<u8>,
    shards: &BTreeMap<ShardId, Vec<SlotRange>>,
    settings: BTreeMap<String, String>,
) -> Result<Snapshot, String> {
    let member = MemberId(1);
    if server.role == Role::Witness {
        return Err("a witness holds no shards".into());
    }
    if shards.is_empty() || shards.len() > MAX_SHARDS || settings.len() > MAX_SETTINGS {
        return Err(format!("a federation has 1 to {MAX_SHARDS} shards, and {MAX_SETTINGS} settings at most"));
    }
    let last = shards.last_key_value().map_or(0, |(last, _)| last.0);
    let own = BTreeSet::from([member]);
    let shard = |slots: &Vec<SlotRange>| Shard {
        slots: slots.clone(),
        copies: own.clone(),
        in_sync: own.clone(),
        primary: Some(member),
        epoch: FIRST_RESTORED,
        set_version: 1,
    };
    let map = Map {
        version: 1,
        // As for one that begins with nothing: the highest level that its only server knows.
        feature_level: server.features.max,
        next_member: member.0 + 1,
        next_shard: last.checked_add(1).ok_or("no numbers of shards are left")?,
        servers: BTreeMap::from([(member, server.in_state(ServerState::Active))]),
        shards: shards.iter().map(|(id, slots)| (*id, shard(slots))).collect(),
        settings,
        authority: Some(authority),
        ..Map::new(federation)
    };
    // What is written here is read by `Map::decode`, which checks the rest.
    Map::decode(&map.encode()).map_err(|why| why.to_string())?;
    Ok(begin(&map, member, 1, 1))
}

/// Whether a server votes alone, and so has decided all that its log holds: the log of one that is
/// about to get others holds that, too, and whether they have agreed is not known from it.
pub fn has_voted_alone(content: &Content) -> bool {
    let voters = &content.snapshot.get_metadata().get_conf_state().voters;
    let changes = |entry: &raft::eraftpb::Entry| {
        entry.get_entry_type() != raft::eraftpb::EntryType::EntryNormal
            && entry.index > content.snapshot.get_metadata().index
    };
    voters[..] == [content.identity.member.0] && !content.entries.iter().any(changes)
}

/// The map that a log leads to, entries that may not be committed among them, and its last index.
///
/// # Errors
/// When the log holds what this build cannot read.
pub fn replay(content: &Content) -> Result<(Map, u64), Error> {
    let metadata = content.snapshot.get_metadata();
    let map = if metadata.index == 0 {
        let Identity { federation, generation, history, .. } = content.identity;
        Map { generation, history, ..Map::new(federation) }
    } else {
        Map::decode(&content.snapshot.data).map_err(Error::Map)?
    };
    let mut machine = Machine::new(map, metadata.index);
    for entry in content.entries.iter().filter(|entry| entry.index > metadata.index) {
        let is_ours = entry.get_entry_type() == raft::eraftpb::EntryType::EntryNormal && !entry.data.is_empty();
        if is_ours {
            let index = entry.index;
            let proposal = Proposal::decode(&entry.data).map_err(|why| Error::Entry { index, why })?;
            machine.apply(index, &proposal);
        } else {
            machine.skip(entry.index);
        }
    }
    Ok((machine.map().clone(), machine.applied()))
}

/// The beginning of a new generation, with `member` as its only voter: of what [`replay`] found
/// there, or of an exported map (`last_index` 0). `history` is drawn at random.
///
/// # Errors
/// When `member` is not in the map, or removed, or no numbers are left.
pub fn force_new(map: &Map, last_index: u64, content: &Content, history: HistoryId) -> Result<Snapshot, CannotBegin> {
    let member = content.identity.member;
    if map.server(member).is_none() {
        return Err(CannotBegin::NotAMember(member));
    }
    let next_member = map.next_member.checked_add(u64::from(SKIPPED_NUMBERS)).ok_or(CannotBegin::NoNumbers)?;
    let next_shard = map.next_shard.checked_add(SKIPPED_NUMBERS).ok_or(CannotBegin::NoNumbers)?;
    let after = |number: u64| number.checked_add(1).ok_or(CannotBegin::NoNumbers);
    let generation = after(map.generation.max(content.identity.generation))?;
    let index = after(last_index.max(map.version))?;
    let term = after(content.hard_state.term)?;
    let map = Map { generation, history, version: index, next_member, next_shard, ..map.clone() };
    Ok(begin(&map, member, index, term))
}

/// Why no new generation begins here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotBegin {
    /// Only a server that the map knows can go on with it.
    #[error("{0} is not a server of this map: run this on one that is")]
    NotAMember(MemberId),
    /// As no federation comes to.
    #[error("this map has given nearly all numbers that there are: it is not one that a federation has made")]
    NoNumbers,
}

/// Who a server is that begins the generation of this snapshot, and was `before`.
///
/// # Errors
/// When its map cannot be read.
pub fn identity(before: &Identity, snapshot: &Snapshot) -> Result<Identity, Malformed> {
    let map = Map::decode(&snapshot.data)?;
    Ok(Identity { generation: map.generation, history: map.history, ..*before })
}

fn begin(map: &Map, voter: MemberId, index: u64, term: u64) -> Snapshot {
    let mut snapshot = Snapshot { data: map.encode().into(), ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (index, term);
    metadata.mut_conf_state().voters = vec![voter.0];
    snapshot
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::{Entry, EntryType, HardState};

    use super::*;
    use crate::ids::DirectoryId;
    use crate::map::{Addresses, Features};

    fn first(role: Role) -> NewServer {
        NewServer {
            directory: DirectoryId([1; 16]),
            name: ecotone_types::ServerId::new("first").unwrap(),
            addresses: Addresses::default(),
            zone: "north".into(),
            role,
            features: Features { min: 1, max: 2 },
        }
    }

    #[test]
    fn what_is_restored_is_a_federation_of_one_that_gives_no_number_of_a_shard_again() {
        let range = |first, last| SlotRange { first, last };
        let shards = BTreeMap::from([
            (ShardId(3), vec![range(8000, 16_383)]),
            (ShardId(9), vec![range(0, 99), range(100, 7999)]),
        ]);
        let settings = BTreeMap::from([("replication.copies".to_owned(), "1".to_owned())]);
        let begun = |shards: &BTreeMap<_, _>, role| {
            restored(FederationId([5; 8]), &first(role), vec![1, 2], shards, settings.clone())
        };
        let snapshot = begun(&shards, Role::Data).unwrap();
        let map = Map::decode(&snapshot.data).unwrap();
        assert_eq!((map.federation, map.history, map.generation), (FederationId([5; 8]), HistoryId([5; 8]), 1));
        assert_eq!((map.next_member, map.next_shard, map.feature_level), (2, 10, 2));
        assert_eq!((map.authority.as_deref(), &map.settings), (Some(&[1, 2][..]), &settings));
        for (id, shard) in &map.shards {
            assert_eq!((&shard.slots, shard.primary, shard.epoch), (&shards[id], Some(MemberId(1)), Epoch(2)));
            assert_eq!((shard.copies.len(), &shard.in_sync), (1, &shard.copies));
        }
        assert_eq!(snapshot.get_metadata().get_conf_state().voters, [1]);
        // It goes on like any other: nobody founds it once more, and the next server is the second.
        let mut machine = Machine::new(map, 1);
        let founds = crate::entry::Entry::Found { server: first(Role::Data), authority: None, with_shard: true };
        let outcome = machine.apply(2, &Proposal { by: MemberId(1), entry: founds });
        assert_eq!((outcome, machine.map().shards.len()), (crate::machine::Outcome::Unchanged, 2));
        // What makes no map is refused: a slot that is nobody's, a number that is none, nothing, a
        // witness.
        let without = BTreeMap::from([(ShardId(3), shards[&ShardId(3)].clone())]);
        assert!(begun(&without, Role::Data).unwrap_err().contains("slots 8000"));
        let zero = BTreeMap::from([(ShardId(0), vec![range(0, 16_383)])]);
        begun(&zero, Role::Data).unwrap_err();
        begun(&BTreeMap::new(), Role::Data).unwrap_err();
        begun(&shards, Role::Witness).unwrap_err();
    }

    #[test]
    fn who_may_have_got_other_voters_is_not_known_to_vote_alone() {
        let federation = FederationId([1; 8]);
        let snapshot = found(federation);
        let history = Map::decode(&snapshot.data).unwrap().history;
        let member = MemberId(1);
        let identity = Identity { federation, generation: 1, history, member, directory: DirectoryId([1; 16]) };
        let hard_state = HardState::default();
        let entry = |index, kind| {
            let mut entry = Entry { index, term: 1, ..Entry::default() };
            entry.set_entry_type(kind);
            entry
        };
        let entries = vec![entry(2, EntryType::EntryNormal)];
        let mut content = Content { identity, snapshot, base: (1, 1), entries, hard_state, torn_bytes: 0 };
        assert!(has_voted_alone(&content));
        // Whether the others had agreed on what follows is not known from this log.
        content.entries.push(entry(3, EntryType::EntryConfChangeV2));
        assert!(!has_voted_alone(&content));
        content.entries.pop();
        content.snapshot.mut_metadata().mut_conf_state().voters.push(2);
        assert!(!has_voted_alone(&content));
    }
}
