//! A second directory that takes what a tap tells, as a copy on another server does: WAL and
//! segments as they are appended to, the MANIFEST up to its syncs, tables once they are whole,
//! CURRENT and STORE when they are put in their places, deletions, late or not. After whatever part
//! of it, it opens as a store that holds every write which was acknowledged by then.

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::random::{Random, with_seeds};
use common::writes::{Writes, read_all, recount_tables};
use common::{directory_in_memory, until, value_of};
use ecotone_engine::{CompressionMode, Durability, OpenMode, Store, StoreBuilder, StoreSettings};
use ecotone_inspect::verify;
use ecotone_io::tap::{TapEvent, WriteTap};

/// Moments that are looked at, beside those around each CURRENT.
const MOMENTS: usize = 60;

/// One in so many is verified whole.
const VERIFIED: usize = 10;

/// How late deletions are at most, in items.
const MAX_LATE: usize = 200;

/// Numbers are given from here on when the store is opened once more.
const NUMBER_GAP: u64 = 65_536;

/// One step of a copy, or what the test says of its progress. Paths are relative to the store's.
#[derive(Debug, Clone)]
enum Item {
    Append(PathBuf, u64, Vec<u8>),
    Truncate(PathBuf, u64),
    Whole(PathBuf, Vec<u8>),
    Delete(PathBuf),
    Acknowledged(usize),
}

/// The tap: makes items.
struct Stream {
    root: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    /// What was written to MANIFESTs and is not synced.
    unsynced: BTreeMap<PathBuf, Vec<(u64, Vec<u8>)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Told as it is written.
    Log,
    Manifest,
    Table,
    /// Replaced as a whole.
    Small,
}

fn kind_of(path: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_str()?;
    let is =
        |suffix: &str| name.strip_suffix(suffix).is_some_and(|stem| stem.bytes().all(|byte| byte.is_ascii_digit()));
    match (path.parent()?.to_str()?, name) {
        ("values", _) if is(".segment") => Some(Kind::Log),
        ("", _) if is(".log") => Some(Kind::Log),
        ("", _) if is(".sst") => Some(Kind::Table),
        ("", "CURRENT" | "STORE") => Some(Kind::Small),
        ("", name) if name.starts_with("MANIFEST-") => Some(Kind::Manifest),
        _ => None,
    }
}

fn number_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.trim_start_matches("MANIFEST-").split('.').next()?.parse().ok()
}

impl Stream {
    fn of(root: &Path) -> Arc<Self> {
        fs::create_dir_all(root).unwrap();
        Arc::new(Self { root: root.canonicalize().unwrap(), state: Mutex::default() })
    }

    fn acknowledged(&self, writes: usize) {
        self.state.lock().unwrap().items.push(Item::Acknowledged(writes));
    }

    fn take(&self) -> Vec<Item> {
        std::mem::take(&mut self.state.lock().unwrap().items)
    }
}

impl WriteTap for Stream {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let Ok(path) = event.path().strip_prefix(&self.root) else { return Ok(()) };
        let Some(kind) = kind_of(path) else { return Ok(()) };
        let path = path.to_path_buf();
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        match (kind, event) {
            (Kind::Log, TapEvent::Created { .. }) => state.items.push(Item::Append(path, 0, Vec::new())),
            (Kind::Log, TapEvent::Appended { offset, bytes, .. }) => {
                state.items.push(Item::Append(path, offset, bytes.to_vec()));
            }
            (Kind::Log, TapEvent::Truncated { len, .. }) => state.items.push(Item::Truncate(path, len)),
            (Kind::Manifest, TapEvent::Appended { offset, bytes, .. }) => {
                state.unsynced.entry(path).or_default().push((offset, bytes.to_vec()));
            }
            (Kind::Manifest, TapEvent::Synced { len, .. }) => {
                let unsynced = state.unsynced.entry(path.clone()).or_default();
                let (covered, left) = std::mem::take(unsynced).into_iter().partition(|(offset, _)| *offset < len);
                *unsynced = left;
                let covered: Vec<(u64, Vec<u8>)> = covered;
                state
                    .items
                    .extend(covered.into_iter().map(|(offset, bytes)| Item::Append(path.clone(), offset, bytes)));
            }
            (Kind::Table, TapEvent::Closed { .. } | TapEvent::Renamed { .. } | TapEvent::Linked { .. })
            | (Kind::Small, TapEvent::Renamed { .. }) => {
                let bytes = fs::read(event.path())?;
                state.items.push(Item::Whole(path, bytes));
            }
            (_, TapEvent::Deleted { .. }) => state.items.push(Item::Delete(path)),
            _ => (),
        }
        Ok(())
    }
}

/// What the second directory holds.
#[derive(Debug, Clone, Default)]
struct Copied {
    files: BTreeMap<PathBuf, Vec<u8>>,
    acknowledged: usize,
}

impl Copied {
    /// After so many items, of which deletions come late.
    fn after(items: &[Item], end: usize, late: usize) -> Self {
        let mut copied = Self::default();
        items[..end].iter().enumerate().for_each(|(number, item)| match item {
            Item::Append(path, offset, bytes) => {
                let file = copied.files.entry(path.clone()).or_default();
                assert!(file.len() as u64 >= *offset, "{path:?} is appended to at {offset}");
                file.truncate(*offset as usize);
                file.extend_from_slice(bytes);
            }
            Item::Truncate(path, len) => {
                if let Some(file) = copied.files.get_mut(path) {
                    file.truncate(*len as usize);
                }
            }
            Item::Whole(path, bytes) => _ = copied.files.insert(path.clone(), bytes.clone()),
            Item::Delete(path) if number + late < end => _ = copied.files.remove(path),
            Item::Delete(_) => (),
            Item::Acknowledged(writes) => copied.acknowledged = *writes,
        });
        copied
    }

    fn write(&self, root: &Path) {
        fs::create_dir_all(root.join("values")).unwrap();
        for (path, bytes) in &self.files {
            fs::write(root.join(path), bytes).unwrap();
        }
    }
}

fn settings() -> StoreSettings {
    let settings = common::compressing_early(CompressionMode::Zstd, common::collecting_early(4096));
    StoreSettings { durability: Durability::None, memtable_bytes: 256 * 1024, ..settings }
}

/// An empty table that nobody refers to: the numbers behind its own are given next.
fn raise_numbers(root: &Path) -> (u64, u32) {
    let names = |directory: PathBuf| {
        fs::read_dir(directory).into_iter().flatten().filter_map(|entry| number_of(&entry.unwrap().path()))
    };
    let number = names(root.to_path_buf()).max().unwrap() + NUMBER_GAP;
    fs::write(root.join(format!("{number:06}.sst")), []).unwrap();
    let segment = names(root.join("values")).max().unwrap() + NUMBER_GAP;
    (number, segment as u32)
}

fn write(store: &Store, stream: &Stream, writes: &Writes, numbers: std::ops::Range<usize>) {
    for number in numbers {
        writes.get(number).apply(store, ecotone_engine::WriteOptions::default());
        stream.acknowledged(number + 1);
        if number % 50 == 49 {
            store.flush(number % 100 == 99).unwrap();
        }
        if number % 300 == 299 {
            store.compact(..).unwrap();
        }
    }
}

/// The places of items after which another MANIFEST is in force.
fn switches(items: &[Item]) -> Vec<usize> {
    let is_current = |item: &Item| matches!(item, Item::Whole(path, _) if path.as_os_str() == "CURRENT");
    (0..items.len()).filter(|number| is_current(&items[*number])).collect()
}

/// What is in the directory at that moment opens, and holds all that was acknowledged by then.
fn check(copied: &Copied, writes: &mut Writes, verifies: bool, moment: &str) {
    let root = directory_in_memory();
    let path = root.path().join("store");
    copied.write(&path);
    recount_tables(&path, moment);
    let store = Store::open(&path, OpenMode::Open, settings()).unwrap_or_else(|error| panic!("{moment}: {error}"));
    let found = read_all(&store).unwrap_or_else(|error| panic!("{moment}: {error}"));
    // The write that was under way may be there, or not.
    let states = [copied.acknowledged, copied.acknowledged + 1].map(|number| writes.state_after(number));
    assert!(states.contains(&found.state), "{moment}: not the state after {} writes", copied.acknowledged);
    store.close().unwrap();
    if verifies {
        let report = verify(&path, |_| ()).unwrap();
        assert!(report.is_sound(), "{moment}: {report:?}");
    }
}

fn opened(path: &Path, stream: &Arc<Stream>, with: impl FnOnce(StoreBuilder) -> StoreBuilder) -> Store {
    with(Store::builder(path).settings(settings()).tap(stream.clone())).open().unwrap()
}

#[test]
fn every_prefix_of_what_a_tap_tells_opens_and_holds_what_was_acknowledged() {
    with_seeds(2, |seed| {
        let (mut random, mut writes) = (Random::new(seed), Writes::shrinking(seed));
        let root = directory_in_memory();
        let path = root.path().join("first");
        let stream = Stream::of(&path);
        let store = opened(&path, &stream, |builder| builder);
        write(&store, &stream, &writes, 0..700);
        store.flush(true).unwrap();
        until(&store, |log| log.relocated_bytes > 0 && log.removed_segments > 0);
        write(&store, &stream, &writes, 700..800);
        // It dies here. Another one opens what it was told by then, as the next primary.
        let mut items = stream.take();
        drop(store);
        let first = items.len();
        let path = root.path().join("second");
        Copied::after(&items, first, random.below(MAX_LATE)).write(&path);
        let (number, segment) = raise_numbers(&path);
        let stream = Stream::of(&path);
        let store = opened(&path, &stream, |builder| builder.flush_on_open().least_segment(segment));
        assert!(!path.join(format!("{number:06}.sst")).exists(), "what raised the numbers is obsolete");
        write(&store, &stream, &writes, 800..1300);
        store.close().unwrap();
        let second = stream.take();
        for item in &second {
            let (Item::Whole(path, _) | Item::Append(path, 0, _)) = item else { continue };
            let Some(given) = number_of(path) else { continue };
            let least = if path.starts_with("values") { u64::from(segment) } else { number + 1 };
            assert!(given >= least, "{path:?} was given once more, or may have been");
        }
        items.extend(second);
        // What is in force from its opening on needs no older log.
        let switch = switches(&items).into_iter().find(|place| *place >= first).unwrap();
        let mut flushed = Copied::after(&items, switch + 1, usize::MAX / 2);
        flushed.files.retain(|path, _| path.extension().is_none_or(|it| it != "log") || number_of(path) > Some(number));
        check(&flushed, &mut writes, true, "without the logs of the former primary");
        // Before the first write was acknowledged there may be no store yet.
        let begun = items.iter().position(|item| matches!(item, Item::Acknowledged(_))).unwrap() + 1;
        let mut ends: Vec<usize> = (0..MOMENTS).map(|_| begun + random.below(items.len() + 1 - begun)).collect();
        ends.extend(switches(&items).into_iter().flat_map(|place| [place, place + 1, place + 2]));
        ends.retain(|end| (begun..=items.len()).contains(end));
        for end in ends {
            let late = random.below(2) * random.below(MAX_LATE);
            let moment = format!("after {end} of {} items, deletions {late} late", items.len());
            check(&Copied::after(&items, end, late), &mut writes, random.once_in(VERIFIED), &moment);
        }
    });
}

/// The longest that a MANIFEST may get, with the edit that it ends with.
const MAX_MANIFEST_BYTES: u64 = 9 << 20;

/// What makes an edit long: a table's first and last key stand in it.
const LONG_KEY_BYTES: usize = 32 * 1024;

/// Keys of which there is one at a time.
const KEYS: u64 = 4;

#[test]
fn a_manifest_is_begun_anew_before_it_is_long_and_a_copy_follows() {
    let root = directory_in_memory();
    let path = root.path().join("store");
    let stream = Stream::of(&path);
    let settings = || StoreSettings { l0_compaction_trigger: 8, ..common::small() };
    let store = Store::builder(&path).settings(settings()).tap(stream.clone()).open().unwrap();
    let manifest = || path.join(fs::read_to_string(path.join("CURRENT")).unwrap().trim());
    let first = manifest();
    // By the first bytes of keys.
    let mut model = BTreeMap::new();
    let mut states = vec![model.clone()];
    // Some more once it is another one.
    let mut left = 20;
    for number in 0_u64.. {
        // The same keys come again, so that what there is stays little.
        let key = [&(number % KEYS).to_be_bytes()[..], &[7; LONG_KEY_BYTES]].concat();
        let value = value_of(&number.to_le_bytes(), number, 50);
        store.put(&key, &value).unwrap();
        model.insert(number % KEYS, value);
        states.push(model.clone());
        stream.acknowledged(states.len() - 1);
        store.flush(true).unwrap();
        let bytes = fs::metadata(manifest()).unwrap().len();
        assert!(bytes <= MAX_MANIFEST_BYTES, "{bytes} bytes after {number} flushes");
        left -= usize::from(manifest() != first);
        if left == 0 {
            break;
        }
    }
    store.close().unwrap();
    let items = stream.take();
    let switches = switches(&items);
    assert!(switches.len() > 1);
    let last = switches[switches.len() - 1];
    for end in [last - 1, last, last + 1, last + 2, last + 20, items.len()] {
        let copied = Copied::after(&items, end, 0);
        let copy = root.path().join(format!("after-{end}"));
        copied.write(&copy);
        let store = Store::open(&copy, OpenMode::Open, settings()).unwrap();
        let number = |key: &[u8]| u64::from_be_bytes(key[..8].try_into().unwrap());
        let found: BTreeMap<_, _> =
            common::contents(&store).into_iter().map(|(key, value)| (number(&key), value)).collect();
        let may_be = states[copied.acknowledged..].iter().take(2);
        assert!(may_be.into_iter().any(|state| *state == found), "after {end} of {} items", items.len());
    }
}
