//! A sequence of writes that a seed determines, and what a store holds after each of them.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use ecotone_engine::header::{Header, Kind};
use ecotone_engine::{Attributes, Direction, OpenMode, RecordPointer, Result, Store, StoreSettings, WriteOptions};
use ecotone_inspect::space;
use ecotone_rocks::properties::{EntryKind, TableCollector};
use ecotone_rocks::verify::recount_table;

use super::random::Random;
use super::telemetry::telemetry;
use super::value_of;

/// Values from this length on are for the value log.
pub const LONG_BYTES: u32 = 100;

/// Few, so that most writes overwrite.
const KEYS: usize = 100;

#[derive(Debug, Clone)]
pub enum Write {
    Put(Vec<u8>, Vec<u8>),
    PutWith(Vec<u8>, Vec<u8>, Attributes),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    Batch(Vec<Write>),
}

impl Write {
    pub fn apply(&self, store: &Store, options: WriteOptions) {
        match self {
            Self::Put(key, value) => store.put_opt(key, value, options).unwrap(),
            Self::Delete(key) => store.delete_opt(key, options).unwrap(),
            other => {
                let mut batch = ecotone_engine::Batch::new();
                other.add_to(&mut batch);
                store.write(&batch, options).unwrap();
            }
        }
    }

    fn add_to(&self, batch: &mut ecotone_engine::Batch) {
        match self {
            Self::Put(key, value) => batch.put(key, value).unwrap(),
            Self::PutWith(key, value, attributes) => batch.put_with(key, value, attributes).unwrap(),
            Self::Delete(key) => batch.delete(key).unwrap(),
            Self::DeleteRange(from, to) => batch.delete_range(&from[..]..&to[..]).unwrap(),
            Self::Batch(writes) => writes.iter().for_each(|write| write.add_to(batch)),
        }
    }
}

type Entries = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

pub struct Writes {
    seed: u64,
    /// Whether values are such that shrink.
    shrink: bool,
    entries: Entries,
    /// After how many writes comes which state.
    states: Vec<u64>,
}

impl Writes {
    pub fn new(seed: u64) -> Self {
        Self { seed, shrink: false, entries: Entries::new(), states: vec![0] }
    }

    /// The same with values that can be compressed.
    pub fn shrinking(seed: u64) -> Self {
        Self { shrink: true, ..Self::new(seed) }
    }

    /// The write of this number; the first is 0.
    pub fn get(&self, number: usize) -> Write {
        let mut random = Random::new(self.seed ^ (number as u64).wrapping_mul(0xA076_1D64_78BD_642F));
        match random.below(20) {
            0..10 => self.single(&mut random, number),
            10..18 => Write::Batch((0..2 + random.below(5)).map(|_| self.single(&mut random, number)).collect()),
            18 => Write::Delete(key(&mut random)),
            _ => range(&mut random),
        }
    }

    fn single(&self, random: &mut Random, number: usize) -> Write {
        let key = key(random);
        let bytes = match random.below(40) {
            0..12 => random.below(LONG_BYTES as usize),
            // Longer than a segment of the tests.
            39 => 5_000,
            _ => LONG_BYTES as usize + random.below(300),
        };
        let number = random.next() ^ number as u64;
        let value = if self.shrink { telemetry(number >> 32, bytes) } else { value_of(&key, number, bytes) };
        let field = |random: &mut Random| (!random.once_in(3)).then(|| random.next() | 1);
        match random.below(10) {
            0 => Write::Delete(key),
            1 => {
                let (expires_at_ms, version) = (field(random), field(random));
                Write::PutWith(key, value, Attributes { expires_at_ms, version, type_tag: None })
            }
            _ => Write::Put(key, value),
        }
    }

    /// The state after so many writes.
    pub fn state_after(&mut self, writes: usize) -> u64 {
        while self.states.len() <= writes {
            let write = self.get(self.states.len() - 1);
            let state = apply(&mut self.entries, &write, self.states[self.states.len() - 1]);
            self.states.push(state);
        }
        self.states[writes]
    }
}

fn key(random: &mut Random) -> Vec<u8> {
    format!("key{:04}", random.below(KEYS)).into_bytes()
}

fn range(random: &mut Random) -> Write {
    let from = random.below(KEYS);
    let bound = |number: usize| format!("key{number:04}").into_bytes();
    Write::DeleteRange(bound(from), bound(from + 1 + random.below(5)))
}

/// Of one entry; the state of a store is the sum over its entries.
fn state_of(key: &[u8], value: &[u8], attributes: &Attributes) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, value, attributes.expires_at_ms, attributes.version).hash(&mut hasher);
    hasher.finish()
}

fn apply(entries: &mut Entries, write: &Write, mut state: u64) -> u64 {
    let remove = |entries: &mut Entries, key: &[u8], mut state: u64| {
        if let Some((value, attributes)) = entries.remove(key) {
            state = state.wrapping_sub(state_of(key, &value, &attributes));
        }
        state
    };
    match write {
        Write::Put(key, value) => {
            state = remove(entries, key, state);
            state = state.wrapping_add(state_of(key, value, &Attributes::NONE));
            entries.insert(key.clone(), (value.clone(), Attributes::NONE));
        }
        Write::PutWith(key, value, attributes) => {
            state = remove(entries, key, state);
            state = state.wrapping_add(state_of(key, value, attributes));
            entries.insert(key.clone(), (value.clone(), *attributes));
        }
        Write::Delete(key) => state = remove(entries, key, state),
        Write::DeleteRange(from, to) => {
            let gone: Vec<_> = entries.range(from.clone()..to.clone()).map(|(key, _)| key.clone()).collect();
            for key in gone {
                state = remove(entries, &key, state);
            }
        }
        Write::Batch(writes) => {
            for write in writes {
                state = apply(entries, write, state);
            }
        }
    }
    state
}

/// What a store holds.
pub struct Found {
    pub state: u64,
    pub entries: usize,
    /// Bytes of the records of its long values.
    pub live_bytes: u64,
    /// How many there are.
    pub long_entries: u64,
}

/// Reads all of a store, each entry by scan and by lookup.
pub fn read_all(store: &Store) -> Result<Found> {
    let mut found = Found { state: 0, entries: 0, live_bytes: 0, long_entries: 0 };
    let mut scan = store.scan(.., Direction::Forward, None)?;
    while let Some(entry) = scan.next_entry()? {
        let looked_up = store.get(entry.key)?;
        assert_eq!(looked_up.as_deref(), Some(entry.value), "scan and lookup differ");
        found.state = found.state.wrapping_add(state_of(entry.key, entry.value, &entry.attributes));
        found.entries += 1;
        found.live_bytes += live_bytes(entry.key, entry.value);
        found.long_entries += u64::from(entry.value.len() >= LONG_BYTES as usize);
    }
    Ok(found)
}

/// The bytes that the value log keeps for an entry, as docs/internals/formats.md has it.
pub fn live_bytes(key: &[u8], value: &[u8]) -> u64 {
    if value.len() < LONG_BYTES as usize { 0 } else { 12 + key.len() as u64 + value.len() as u64 }
}

/// What entries of tables refer to, all versions of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Referenced {
    /// Of their records.
    pub bytes: u64,
    /// By how much their values are longer than what is stored of them.
    pub saved: u64,
    pub entries: u64,
}

/// What the entries of one table name, all versions of them.
#[derive(Default)]
struct Names {
    bytes: BTreeMap<u32, u64>,
    /// By how much the values are longer than what is stored of them.
    saved: u64,
    sums: Arc<Mutex<Referenced>>,
    /// Where the last record ends that any table refers to, by segment.
    ends: Arc<Mutex<BTreeMap<u32, u64>>>,
}

impl TableCollector for Names {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        if kind == EntryKind::Put
            && let Kind::Separated(pointer) = Header::decode(value).unwrap().kind
        {
            let bytes = record_bytes(key.len(), &pointer);
            *self.bytes.entry(pointer.segment.0).or_default() += bytes;
            let saved = pointer.stored_bytes.map_or(0, |stored| u64::from(pointer.value_bytes - stored));
            self.saved += saved;
            let mut sums = self.sums.lock().unwrap();
            *sums = Referenced { bytes: sums.bytes + bytes, saved: sums.saved + saved, entries: sums.entries + 1 };
            drop(sums);
            let mut ends = self.ends.lock().unwrap();
            let end = ends.entry(pointer.segment.0).or_default();
            *end = (*end).max(u64::from(pointer.offset) + bytes);
        }
    }

    /// As docs/internals/formats.md has it.
    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        let items = self.bytes.iter();
        let items = items.flat_map(|(segment, bytes)| [&segment.to_le_bytes()[..], &bytes.to_le_bytes()].concat());
        let mut properties = vec![("ecotone.values".into(), items.collect())];
        if self.saved > 0 {
            properties.push(("ecotone.values.saved".into(), self.saved.to_le_bytes().to_vec()));
        }
        properties
    }
}

/// Counts again what each table of a store names, as a crash has left it and before anything is
/// compacted, and compares it with what the table says of itself; whatever is named must be there.
/// Returns how many tables there are. Nobody has the store open for writing.
pub fn recount_tables(path: &Path, moment: &str) -> usize {
    let mut files = fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path());
    if !files.any(|path| path.extension().is_some_and(|end| end == "sst")) {
        // Perhaps the crash came before there was a store.
        return 0;
    }
    let store = Store::open(path, OpenMode::ReadOnly, StoreSettings::default());
    let store = store.unwrap_or_else(|error| panic!("{moment}: {error}"));
    if store.value_log().is_some() { recount_tables_of(&store, moment) } else { 0 }
}

/// The same, of a store with a value log whose tables stay as they are meanwhile.
pub fn recount_tables_of(store: &Store, moment: &str) -> usize {
    recounted(store, moment).0
}

/// The same, and what all of them refer to.
pub fn recounted(store: &Store, moment: &str) -> (usize, Referenced) {
    let path = store.directory();
    let sums = Arc::<Mutex<Referenced>>::default();
    let tables = store.live_tables().unwrap();
    let ends = Arc::<Mutex<BTreeMap<u32, u64>>>::default();
    for table in &tables {
        let names = Names { ends: ends.clone(), sums: sums.clone(), ..Names::default() };
        recount_table(&path.join(&table.name), &AtomicBool::new(false), Box::new(names), &[])
            .unwrap_or_else(|error| panic!("{moment}: {error}"));
    }
    for (segment, end) in &*ends.lock().unwrap() {
        let segment = path.join(format!("values/{segment:06}.segment"));
        let bytes = fs::metadata(&segment)
            .map(|metadata| metadata.len())
            .unwrap_or_else(|error| panic!("{moment}: {segment:?}: {error}"));
        assert!(*end <= bytes, "{moment}: {segment:?} has {bytes} bytes, a table refers to what ends at {end}");
    }
    let sums = *sums.lock().unwrap();
    (tables.len(), sums)
}

/// As [`recount_compacted`], of a store whose values may be compressed: what is stored of each is
/// what its pointer says.
pub fn recount_compacted_packed(store: &Store, long_entries: u64) -> Referenced {
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    let pause = store.pause_compactions().unwrap();
    let (_, referenced) = recounted(store, "compacted");
    let found = space(store).unwrap();
    assert_eq!((found.referenced_bytes(), found.saved_bytes), (referenced.bytes, referenced.saved));
    assert_eq!((referenced.entries, found.silent_tables), (long_entries, vec![]), "one version of each is left");
    drop(pause);
    referenced
}

/// Compacts the store until there is one version of each entry, and compares what its tables refer
/// to with what they must. That writes all tables anew: what they said before is seen by
/// [`recount_tables`].
pub fn recount_compacted(store: &Store, live_bytes: u64) {
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    // A segment that goes between the count and the list is in the one and not in the other; once
    // is enough.
    let counts = (0..10).map(|_| space(store).unwrap().referenced_bytes());
    let counts: Vec<_> = counts.take_while(|count| *count != live_bytes).collect();
    assert!(counts.len() < 10, "{counts:?} bytes are said to be live, {live_bytes} are");
    assert_eq!(space(store).unwrap().silent_tables, [""; 0]);
}

/// The length of the record that `pointer` leads to, as docs/internals/formats.md has it.
fn record_bytes(key_bytes: usize, pointer: &RecordPointer) -> u64 {
    let varint = |number: u64| u64::from((64 - (number | 1).leading_zeros()).div_ceil(7));
    let (key_bytes, value_bytes) = (key_bytes as u64, u64::from(pointer.value_bytes));
    match pointer.stored_bytes.map(u64::from) {
        None => 12 + key_bytes + value_bytes,
        Some(stored) => {
            let saved = if stored < value_bytes { varint(value_bytes - stored) } else { 0 };
            5 + varint(key_bytes) + varint(stored) + saved + key_bytes + stored
        }
    }
}
