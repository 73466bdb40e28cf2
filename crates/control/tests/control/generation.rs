//! A federation that is begun anew: by force after the loss of most voters, and from an export.

use ecotone_control::Snapshot;
use ecotone_control::entry::{Entry, NewServer, Proposal};
use ecotone_control::ids::{DirectoryId, MemberId, TokenId};
use ecotone_control::log::{File, Identity, begin_generation, create, open};
use ecotone_control::machine::{Machine, Outcome};
use ecotone_control::map::{Addresses, Features, Map, Role};
use ecotone_control::node::{Command, Event, Node};
use ecotone_control::recover::{self, CannotBegin};
use ecotone_types::ServerId;

use super::log_files::{IDENTITY, Memory, Single};

#[test]
fn by_force_all_that_this_server_knows_goes_on() {
    let mut single = Single::begin();
    (1..=25).for_each(|value| single.set(value));
    let before = single.node.map().clone();
    let storage = single.log.into_storage();
    let (log, content) = open(storage).unwrap().unwrap();
    let (map, last) = recover::replay(&content).unwrap();
    assert_eq!(map, before);
    let snapshot = recover::force_new(&map, last, &content).unwrap();
    let generation = recover::generation(&snapshot).unwrap();
    assert_eq!(generation, 2);
    let identity = Identity { generation, ..content.identity };
    let begun = Map::decode(&snapshot.data).unwrap();
    assert_eq!((begun.servers, begun.shards), (map.servers, map.shards));

    // Cut short between any two writes it is of the old generation or of the new, and can be begun
    // again.
    let storage = log.into_storage();
    for writes in 0..5 {
        let cut = Memory { writes_left: Some(writes), ..storage.clone() };
        let mut cut_short = cut.clone();
        let _ = begin_generation(Shared(&mut cut_short), identity, snapshot.clone());
        cut_short.writes_left = None;
        let (log, content) = open(cut_short).unwrap().unwrap();
        let mut single = Single::of(log, content);
        single.lead();
        assert_eq!(single.value(), 25, "after {writes} writes");
    }

    let (log, content) = begin_generation(storage, identity, snapshot).unwrap();
    let mut single = Single::of(log, content);
    single.lead();
    assert_eq!(single.node.map().generation, 2);
    single.set(26);
    let (log, content) = open(single.log.into_storage()).unwrap().unwrap();
    assert_eq!(content.identity, identity);
    let mut single = Single::of(log, content);
    single.lead();
    assert_eq!(single.value(), 26);
}

/// A server that joins.
fn joins(number: u8) -> Entry {
    Entry::Join {
        token: TokenId([number; 16]),
        token_expires_s: 1,
        server: NewServer {
            directory: DirectoryId([number; 16]),
            name: ServerId::new(format!("s{number}")).unwrap(),
            addresses: Addresses::default(),
            zone: String::new(),
            role: Role::Data,
            features: Features { min: 1, max: 2 },
        },
    }
}

#[test]
fn by_force_no_number_is_given_that_a_lost_entry_may_have_given() {
    let single = Single::begin();
    let known = single.node.map().clone();
    let (_, content) = open(single.log.into_storage()).unwrap().unwrap();
    let (map, last) = recover::replay(&content).unwrap();
    // What other voters decided meanwhile, and was lost with them.
    let mut lost = Machine::new(known, last);
    let given: Vec<Outcome> = (3..200)
        .map(|number| lost.apply(last + u64::from(number), &Proposal { by: MemberId(1), entry: joins(number) }))
        .collect();
    let snapshot = recover::force_new(&map, last, &content).unwrap();
    let mut begun = Machine::new(Map::decode(&snapshot.data).unwrap(), snapshot.get_metadata().index);
    for outcome in &given {
        let Outcome::Joined(member) = outcome else { panic!("{outcome:?}") };
        assert!(begun.map().is_removed(*member), "{member}, of whom nobody knows, is let in");
    }
    let by = Proposal { by: MemberId(1), entry: joins(3) };
    let again = begun.apply(begun.applied() + 1, &by);
    assert!(matches!(again, Outcome::Joined(_)) && !given.contains(&again), "{again:?} was given before");
    assert!(begun.map().next_shard >= map.next_shard + recover::SKIPPED_NUMBERS);

    for spent in [Map { next_member: u64::MAX, ..map.clone() }, Map { next_shard: u32::MAX - 1, ..map }] {
        assert_eq!(recover::force_new(&spent, last, &content), Err(CannotBegin::NoNumbers));
    }
}

#[test]
fn servers_of_the_old_generation_learn_and_old_messages_are_refused() {
    // The messages of a leader of each generation to a second server, which each has as a learner.
    let message_of = |generation: u64| {
        let mut map = Map::new(IDENTITY.federation);
        map.generation = generation;
        let identity = Identity { generation, ..IDENTITY };
        let storage = Memory::default();
        let (log, content) = create(storage, identity, two_voters(&map)).unwrap();
        let mut node = Node::new(content, 3).unwrap();
        let mut log = log;
        for _ in 0..200 {
            let mut commands = Vec::new();
            node.handle(Event::Tick, &mut commands).unwrap();
            while let Some(command) = commands.pop() {
                match command {
                    Command::Send { to: MemberId(2), bytes } => return bytes,
                    Command::Persist { number, records } => {
                        log.persist(&records).unwrap();
                        node.handle(Event::Persisted(number), &mut commands).unwrap();
                    }
                    _ => {}
                }
            }
        }
        panic!("no message in 5 s");
    };
    let (old, new) = (message_of(1), message_of(2));
    let identity = Identity { member: MemberId(2), directory: DirectoryId([3; 16]), ..IDENTITY };
    let (log, content) = create(Memory::default(), identity, Snapshot::default()).unwrap();
    let mut node = Node::new(content, 1).unwrap();
    let mut commands = Vec::new();
    node.handle(Event::Receive { from: MemberId(1), bytes: new.clone() }, &mut commands).unwrap();
    assert_eq!(commands, [Command::NewGeneration(2)]);
    commands.clear();
    node.handle(Event::Receive { from: MemberId(1), bytes: old.clone() }, &mut commands).unwrap();
    assert!(commands.is_empty(), "it takes no further part");

    let identity = Identity { generation: 2, ..identity };
    let (log, content) = begin_generation(log.into_storage(), identity, Snapshot::default()).unwrap();
    let mut node = Node::new(content, 1).unwrap();
    node.handle(Event::Receive { from: MemberId(1), bytes: old }, &mut commands).unwrap();
    assert!(commands.is_empty());
    assert_eq!(node.refused_messages(), 1);
    node.handle(Event::Receive { from: MemberId(3), bytes: new.clone() }, &mut commands).unwrap();
    assert_eq!(node.refused_messages(), 2, "it is not from whom it says");
    node.handle(Event::Receive { from: MemberId(1), bytes: new }, &mut commands).unwrap();
    assert_eq!(node.refused_messages(), 2);
    // An empty log under the old number of the new generation: it never voted there.
    assert!(log.into_storage().files.contains_key(&File::Identity));
}

/// The beginning of a group of two, which no federation has: to see messages before it has servers.
fn two_voters(map: &Map) -> Snapshot {
    let mut snapshot = recover::found(map.federation);
    snapshot.data = map.encode().into();
    snapshot.mut_metadata().mut_conf_state().voters = vec![1, 2];
    snapshot
}

/// Storage that the test keeps.
struct Shared<'a>(&'a mut Memory);

impl ecotone_control::log::Storage for Shared<'_> {
    fn read(&mut self, file: File) -> Result<Option<Vec<u8>>, ecotone_control::log::StorageError> {
        self.0.read(file)
    }

    fn replace(&mut self, file: File, content: &[u8]) -> Result<(), ecotone_control::log::StorageError> {
        self.0.replace(file, content)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), ecotone_control::log::StorageError> {
        self.0.append(bytes)
    }

    fn sync(&mut self) -> Result<(), ecotone_control::log::StorageError> {
        self.0.sync()
    }

    fn truncate(&mut self, length: u64) -> Result<(), ecotone_control::log::StorageError> {
        self.0.truncate(length)
    }
}
