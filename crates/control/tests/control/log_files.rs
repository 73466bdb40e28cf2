//! The log as bytes: cut, torn, flipped, missing, and cut short between any two writes.

use std::collections::BTreeMap;

use ecotone_control::entry::{Entry, Proposal};
use ecotone_control::ids::{DirectoryId, FederationId, HistoryId, MemberId};
use ecotone_control::log::{Content, File, Identity, Log, LogError, Storage, StorageError, create, open};
use ecotone_control::node::{Command, Event, Node};
use ecotone_control::recover;
use proptest::prelude::*;

use super::found;

pub(crate) const IDENTITY: Identity = Identity {
    federation: FederationId([1; 8]),
    generation: 1,
    history: HistoryId([1; 8]),
    member: MemberId(1),
    directory: DirectoryId([2; 16]),
};

/// Files in memory, and how much of the log is synced. Fails after so many writes, if it is told to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub files: BTreeMap<File, Vec<u8>>,
    pub synced: usize,
    pub writes_left: Option<usize>,
    /// The generation that was kept aside, and its snapshot.
    pub aside: Option<(u64, Vec<u8>)>,
}

impl Memory {
    fn write(&mut self) -> Result<(), StorageError> {
        match &mut self.writes_left {
            Some(0) => Err(StorageError("no power".into())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub fn log(&self) -> &[u8] {
        &self.files[&File::Log]
    }
}

impl Storage for Memory {
    fn read(&mut self, file: File) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.files.get(&file).cloned())
    }

    fn replace(&mut self, file: File, content: &[u8]) -> Result<(), StorageError> {
        self.write()?;
        self.files.insert(file, content.to_vec());
        if file == File::Log {
            self.synced = content.len();
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.write()?;
        self.files.get_mut(&File::Log).unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.write()?;
        self.synced = self.log().len();
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> Result<(), StorageError> {
        self.write()?;
        self.files.get_mut(&File::Log).unwrap().truncate(length as usize);
        self.synced = length as usize;
        Ok(())
    }

    fn keep_aside(&mut self, generation: u64) -> Result<(), StorageError> {
        self.write()?;
        self.aside = Some((generation, self.files[&File::Snapshot].clone()));
        Ok(())
    }
}

/// A federation of one that runs on `storage`, until the storage fails.
pub(crate) struct Single {
    pub node: Node,
    pub log: Log<Memory>,
    pub has_failed: bool,
    /// Entries that were answered as decided.
    pub decided: u64,
    asks: u64,
}

impl Single {
    pub fn begin() -> Self {
        let (log, content) = create(Memory::default(), IDENTITY, recover::found(IDENTITY.federation)).unwrap();
        let mut single = Self::of(log, content);
        single.lead();
        single.ask(found());
        single
    }

    pub fn of(log: Log<Memory>, content: Content) -> Self {
        let mut node = Node::new(content, 7).unwrap();
        node.set_compaction(10, 3);
        Self { node, log, has_failed: false, decided: 0, asks: 0 }
    }

    pub fn lead(&mut self) {
        for _ in 0..100 {
            self.handle(Event::Tick);
        }
        assert!(self.node.leads() || self.has_failed);
    }

    pub fn set(&mut self, value: u64) {
        let entry = Entry::Set { name: "value".into(), value: Some(value.to_string()) };
        self.ask(Proposal { by: MemberId(1), entry });
    }

    pub fn ask(&mut self, proposal: Proposal) {
        self.asks += 1;
        self.handle(Event::Propose { id: self.asks, proposal });
    }

    fn handle(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut commands = Vec::new();
            self.node.handle(event, &mut commands).unwrap();
            for command in commands {
                match command {
                    Command::Persist { .. } | Command::Compact(_) if self.has_failed => {}
                    Command::Persist { number, records } => match self.log.persist(&records) {
                        Ok(()) => events.push(Event::Persisted(number)),
                        Err(_) => self.has_failed = true,
                    },
                    Command::Compact(records) => self.has_failed |= self.log.persist(&records).is_err(),
                    Command::Decided { .. } => self.decided += 1,
                    _ => {}
                }
            }
        }
    }

    pub fn value(&self) -> u64 {
        self.node.map().settings.get("value").map_or(0, |value| value.parse().unwrap())
    }
}

fn reopened(storage: Memory) -> Result<Option<Single>, LogError> {
    Ok(open(storage)?.map(|(log, content)| Single::of(log, content)))
}

/// A log that was not compacted, with values 1 to 6.
fn short() -> Memory {
    let mut single = Single::begin();
    (1..=6).for_each(|value| single.set(value));
    single.log.into_storage()
}

#[test]
fn nothing_is_lost_between_starts() {
    let mut single = Single::begin();
    for round in 1..=20 {
        (1..=5).for_each(|value| single.set(round * 10 + value));
        let map = single.node.map().clone();
        single = reopened(single.log.into_storage()).unwrap().unwrap();
        single.lead();
        assert_eq!(single.value(), round * 10 + 5);
        assert_eq!(*single.node.map(), map);
        assert!(single.node.entry_count() < 40, "{} entries are kept", single.node.entry_count());
    }
}

#[test]
fn a_torn_end_is_cut_and_reported() {
    let whole = short();
    let log = whole.log().to_vec();
    let mut torn_ends = 0;
    for cut in whole.synced..log.len() {
        let cut_to = |length: usize| {
            let mut torn = whole.clone();
            torn.files.insert(File::Log, log[..length].to_vec());
            open(torn).unwrap().unwrap().1
        };
        let content = cut_to(cut);
        let kept = cut - content.torn_bytes as usize;
        torn_ends += usize::from(kept < cut);
        assert!(kept >= whole.synced, "cut to {cut}, {} were synced", whole.synced);
        assert_eq!(cut_to(kept).torn_bytes, 0, "what is kept ends with a whole record");
        assert_eq!(cut_to(kept).entry_count(), content.entry_count());
    }
    assert!(torn_ends > 0);
    // Whatever the sectors hold that were not synced.
    let mut garbage = whole.clone();
    let mut bytes = log[..whole.synced].to_vec();
    bytes.extend((0..5_000_u32).map(|at| (at * 7 % 251) as u8));
    garbage.files.insert(File::Log, bytes);
    let mut single = reopened(garbage).unwrap().unwrap();
    single.lead();
    assert_eq!(single.value(), 6);
    single.set(7);
    let mut single = reopened(single.log.into_storage()).unwrap().unwrap();
    single.lead();
    assert_eq!(single.value(), 7);
}

#[test]
fn a_flipped_bit_anywhere_is_damage() {
    let whole = short();
    for file in File::ALL {
        // The record that says how far the log is synced is not synced itself.
        let end = if file == File::Log { whole.synced } else { whole.files[&file].len() };
        for bit in 0..end * 8 {
            let mut flipped = whole.clone();
            flipped.files.get_mut(&file).unwrap()[bit / 8] ^= 1 << (bit % 8);
            match open(flipped) {
                Err(LogError::Damaged { file: found, offset, .. }) => {
                    assert_eq!(found, file);
                    assert!(offset <= bit as u64 / 8, "bit {bit} of {file:?} is found at {offset}");
                }
                other => panic!("bit {bit} of {file:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_missing_file_is_refused_by_name() {
    for file in [File::Snapshot, File::Log] {
        let mut storage = short();
        storage.files.remove(&file);
        let error = open(storage).unwrap_err();
        assert_eq!(error, LogError::Missing { file });
        assert!(error.to_string().contains("vote twice"), "{error}");
    }
    let mut nobody = short();
    nobody.files.remove(&File::Identity);
    assert!(open(nobody).unwrap().is_none(), "without an identity nobody was here");
}

#[test]
fn the_log_of_another_server_is_refused() {
    let (log, _) =
        create(Memory::default(), Identity { member: MemberId(2), ..IDENTITY }, recover::found(IDENTITY.federation))
            .unwrap();
    let mut mixed = short();
    mixed.files.insert(File::Log, log.into_storage().log().to_vec());
    assert!(matches!(open(mixed), Err(LogError::Damaged { file: File::Log, .. })));
    assert!(matches!(
        create(short(), IDENTITY, recover::found(IDENTITY.federation)),
        Err(LogError::Exists(MemberId(1)))
    ));
}

#[test]
fn a_log_without_its_snapshot_is_refused() {
    let mut single = Single::begin();
    let first = single.log.storage_mut().files[&File::Snapshot].clone();
    (1..=30).for_each(|value| single.set(value));
    let mut storage = single.log.into_storage();
    storage.files.insert(File::Snapshot, first);
    let error = open(storage).unwrap_err().to_string();
    assert!(error.contains("no snapshot leads there"), "{error}");
}

/// A life with compactions, cut short after each write in turn; then what survives of the unsynced
/// end is cut anywhere. All that was answered is there.
#[test]
fn a_crash_between_any_two_writes_loses_nothing() {
    let mut writes = 0;
    loop {
        let mut single = Single::begin();
        single.log.storage_mut().writes_left = Some(writes);
        let mut last = 0;
        for value in 1..=30 {
            let before = single.decided;
            single.set(value);
            if single.decided > before {
                last = value;
            }
        }
        let has_failed = single.has_failed;
        let mut storage = single.log.into_storage();
        storage.writes_left = None;
        for survives in [0, 1, 7, usize::MAX] {
            let mut storage = storage.clone();
            let length = storage.synced.saturating_add(survives).min(storage.log().len());
            storage.files.get_mut(&File::Log).unwrap().truncate(length);
            let mut single = reopened(storage).unwrap().unwrap();
            single.lead();
            let value = single.value();
            assert!(value == last || value == last + 1, "{writes} writes: {last} was answered, {value} is there");
        }
        if !has_failed {
            assert!(writes > 60, "a life of {writes} writes tests little");
            return;
        }
        writes += 1;
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_log_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), keep in 0..200_usize) {
        let mut storage = short();
        let keep = keep.min(storage.log().len());
        let log = storage.files.get_mut(&File::Log).unwrap();
        log.truncate(keep);
        log.extend_from_slice(&bytes);
        let _ = open(storage);
    }
}
