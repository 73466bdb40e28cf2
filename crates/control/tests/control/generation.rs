//! A federation that is begun anew: by force after the loss of most voters, and from an export.

use ecotone_control::entry::{Entry, NewServer, Proposal};
use ecotone_control::ids::{DirectoryId, HistoryId, KeyHash, MemberId, TokenId};
use ecotone_control::log::{File, Identity, begin_generation, open};
use ecotone_control::machine::{Machine, Outcome};
use ecotone_control::map::{Addresses, Features, Map, Role};
use ecotone_control::recover::{self, CannotBegin};
use ecotone_types::ServerId;

use super::log_files::{Memory, Single};

const HISTORY: HistoryId = HistoryId([7; 8]);

#[test]
fn by_force_all_that_this_server_knows_goes_on() {
    let mut single = Single::begin();
    (1..=25).for_each(|value| single.set(value));
    let before = single.node.map().clone();
    let storage = single.log.into_storage();
    let (log, content) = open(storage).unwrap().unwrap();
    let (map, last) = recover::replay(&content).unwrap();
    assert_eq!(map, before);
    let snapshot = recover::force_new(&map, last, &content, HISTORY).unwrap();
    let identity = recover::identity(&content.identity, &snapshot).unwrap();
    assert_eq!(identity, Identity { generation: 2, history: HISTORY, ..content.identity });
    let begun = Map::decode(&snapshot.data).unwrap();
    assert_eq!((begun.servers, begun.shards), (map.servers, map.shards));

    // Cut short between any two writes it is of the old generation or of the new, and can be begun
    // again.
    let storage = log.into_storage();
    for writes in 0..6 {
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
        key: KeyHash([number; 32]),
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
    let snapshot = recover::force_new(&map, last, &content, HISTORY).unwrap();
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
        assert_eq!(recover::force_new(&spent, last, &content, HISTORY), Err(CannotBegin::NoNumbers));
    }
}

#[test]
fn by_force_nothing_overflows() {
    let single = Single::begin();
    let (_, content) = open(single.log.into_storage()).unwrap().unwrap();
    let (map, last) = recover::replay(&content).unwrap();
    let spent = [
        (Map { generation: u64::MAX, ..map.clone() }, last),
        (Map { version: u64::MAX, ..map.clone() }, last),
        (map, u64::MAX),
    ];
    for (map, last) in spent {
        assert_eq!(recover::force_new(&map, last, &content, HISTORY), Err(CannotBegin::NoNumbers));
    }
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

    fn keep_aside(&mut self, generation: u64) -> Result<(), ecotone_control::log::StorageError> {
        self.0.keep_aside(generation)
    }
}
