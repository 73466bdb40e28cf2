//! A store that follows a copy's directory, against a model: whatever its primary does, and however
//! far the stream has come, it shows what was written up to some write, and never goes back.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ecotone_control::ids::Epoch;
use ecotone_engine::{Direction, Separation, Store, StoreSettings};
use ecotone_mirror::directory::{Directory, check_fetched};
use ecotone_mirror::readers::{Readers, Reading};
use ecotone_mirror::source::{Sink, Source};
use ecotone_replica::position::{BootId, Mark, Position};
use ecotone_replica::receiver::Sync;
use ecotone_replica::stream::{Item, Kind};
use parking_lot::Mutex;

type Model = BTreeMap<Vec<u8>, Rc<[u8]>>;

/// Small, and the same for one seed everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The stream of a primary: what its taps say.
#[derive(Default)]
struct Stream(Mutex<(Mark, Vec<Item>)>);

impl Sink for Stream {
    fn append(&self, kind: Kind, bytes: u64, checksum: u32) -> Option<Position> {
        let mut stream = self.0.lock();
        let item = Item::behind(stream.0, kind, bytes, checksum);
        stream.0 = item.mark();
        stream.1.push(item);
        Some(item.position)
    }

    fn mark(&self) -> (Mark, u64) {
        (self.0.lock().0, 0)
    }
}

const BOOT: BootId = BootId([3; 16]);

fn settings() -> StoreSettings {
    StoreSettings {
        separation: Some(Separation { min_bytes: 100, segment_bytes: 64 << 10 }),
        memtable_bytes: 64 << 10,
        target_file_bytes: 64 << 10,
        level_base_bytes: 1 << 20,
        l0_compaction_trigger: 2,
        max_open_files: Some(16),
        ..StoreSettings::default()
    }
}

/// A store that is written, and its stream.
struct Primary {
    path: PathBuf,
    directory: Directory,
    stream: Arc<Stream>,
    source: Arc<Source>,
    store: Option<Store>,
    epoch: u64,
}

impl Primary {
    fn new(path: &Path) -> Primary {
        let (mut directory, _) = Directory::open(path, BOOT).unwrap();
        let stream = Arc::<Stream>::default();
        let (source, store) = Self::open(path, &mut directory, &stream, 1);
        Primary { path: path.to_path_buf(), directory, stream, source, store: Some(store), epoch: 1 }
    }

    fn open(path: &Path, directory: &mut Directory, stream: &Arc<Stream>, epoch: u64) -> (Arc<Source>, Store) {
        let begin = {
            let mut stream = stream.0.lock();
            stream.0 = stream.0.open(Epoch(epoch));
            stream.0
        };
        let least_segment = directory.prepare_opening(begin, 0).unwrap();
        let source = Source::new(path, stream.clone()).unwrap();
        source.take_stock().unwrap();
        let builder = Store::builder(path).settings(settings()).tap(source.clone()).flush_on_open();
        (source, builder.least_segment(u32::try_from(least_segment).unwrap()).open().unwrap())
    }

    /// The end of an epoch: what it has still written can be read.
    fn close(&mut self) {
        self.store.take().unwrap().close().unwrap();
    }

    /// Another epoch, with another MANIFEST.
    fn reopen(&mut self) {
        let mark = self.stream.mark().0;
        self.directory.closed(mark, 0).unwrap();
        self.epoch += 1;
        let (source, store) = Self::open(&self.path, &mut self.directory, &self.stream, self.epoch);
        (self.source, self.store) = (source, Some(store));
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }
}

/// A copy of it, which takes items.
struct Copy {
    directory: Directory,
    /// Of all items.
    taken: usize,
    now_us: u64,
}

impl Copy {
    /// Takes so many items more.
    fn take(&mut self, primary: &Primary, count: usize) {
        let items: Vec<Item> = primary.stream.0.lock().1[self.taken..].iter().take(count).copied().collect();
        self.taken += items.len();
        let bytes = |item: &Item| if item.bytes == 0 { Vec::new() } else { primary.source.read(item).unwrap() };
        let items: Vec<(Item, Vec<u8>)> = items.iter().map(|item| (*item, bytes(item))).collect();
        self.directory.apply(&items).unwrap();
    }

    /// Syncs, fetches tables and does what is pending.
    fn go_on(&mut self, primary: &Primary) {
        for what in [Sync::Segments, Sync::Wal] {
            let done = self.directory.begin_sync(what).run().unwrap();
            self.directory.synced(done).unwrap();
        }
        self.now_us += 700_000;
        self.directory.advance(self.now_us).unwrap();
        for want in self.directory.wants(self.now_us) {
            let Some(mut found) = primary.source.open_finished(want.file).unwrap() else { continue };
            let temporary = self.directory.temporary(&want);
            let mut to = fs::File::create(&temporary).unwrap();
            std::io::copy(&mut found, &mut to).unwrap();
            check_fetched(&temporary, &want).unwrap();
            self.directory.fetched(&want).unwrap();
        }
    }
}

/// Who reads the copy.
struct Reader {
    store: Store,
    reading: Reading,
}

impl Reader {
    fn begin(readers: &Arc<Readers>, path: &Path) -> Option<Reader> {
        let reading = readers.begin()?;
        let drained = reading.drained();
        let settings = StoreSettings { row_cache_bytes: None, mapped_read_bytes: 0, ..settings() };
        let store = Store::builder(path).settings(settings).following(&path.with_extension("reader")).open();
        // Of a store that was just made not all files have come.
        let store = store.ok()?;
        reading.passed(drained);
        Some(Reader { store, reading })
    }

    fn catch_up(&self) {
        let drained = self.reading.drained();
        self.store.catch_up(true).unwrap();
        self.reading.passed(drained);
    }
}

/// All that it shows, however it is asked.
fn contents(store: &Store, random: &mut Random) -> Model {
    let entry = |entry: ecotone_engine::Result<(Vec<u8>, Vec<u8>)>| {
        entry.map(|(key, value)| (key, Rc::<[u8]>::from(value))).unwrap()
    };
    let forward: Model = store.scan(.., Direction::Forward, None).unwrap().map(entry).collect();
    let snapshot = store.snapshot();
    let backward: Model = snapshot.scan(.., Direction::Reverse).unwrap().map(entry).collect();
    assert_eq!(forward, backward);
    let keys: Vec<Vec<u8>> = (0..20).map(|_| key(random.below(KEYS))).collect();
    for (key, found) in keys.iter().zip(store.multi_get(&keys)) {
        let expected = forward.get(key).map(|value| &**value);
        assert_eq!(found.unwrap().as_deref(), expected);
        assert_eq!(store.get(key).unwrap().as_deref(), expected);
        assert_eq!(snapshot.get(key).unwrap().as_deref(), expected);
        if let Ok(found) = store.try_get(key) {
            assert_eq!(found.as_deref(), expected);
        }
    }
    forward
}

const KEYS: u64 = 300;

fn key(number: u64) -> Vec<u8> {
    format!("key:{number:05}").into_bytes()
}

fn tables(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut tables: Vec<String> = names.filter(|name| name.ends_with(".sst")).collect();
    tables.sort();
    tables
}

fn run(seed: u64, rounds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let (at, copied_to) = (folder.path().join("primary"), folder.path().join("copy"));
    let mut random = Random(seed);
    let mut primary = Primary::new(&at);
    let readers = Arc::new(Readers::default());
    let directory = Directory::open(&copied_to, BOOT).unwrap().0.with_readers(readers.clone());
    let mut copy = Copy { directory, taken: 0, now_us: 0 };
    // What there was after each write, from the one on that was shown last.
    let mut models: Vec<Model> = vec![Model::new()];
    let mut reader: Option<Reader> = None;
    let (mut compared, mut epochs) = (0, 0);
    for round in 0..rounds {
        for _ in 0..random.below(60) {
            let mut model = models.last().unwrap().clone();
            let key = key(random.below(KEYS));
            match random.below(10) {
                0 => {
                    primary.store().delete(&key).unwrap();
                    model.remove(&key);
                }
                of => {
                    let len = if of < 4 { random.below(40) } else { 100 + random.below(3_000) };
                    let value = vec![random.below(256) as u8; len as usize];
                    primary.store().put(&key, &value).unwrap();
                    model.insert(key, value.into());
                }
            }
            models.push(model);
        }
        match random.below(12) {
            0 | 1 => primary.store().flush(true).unwrap(),
            2 => primary.store().compact(..).unwrap(),
            3 if epochs == 0 || random.once_in(4) => {
                primary.close();
                // All of an epoch is read before its source goes.
                copy.take(&primary, usize::MAX);
                primary.reopen();
                epochs += 1;
            }
            _ => {}
        }
        let is_whole = random.once_in(3) || round + 1 == rounds;
        let count = if is_whole { usize::MAX } else { random.below(80) as usize };
        copy.take(&primary, count);
        if random.once_in(2) {
            copy.go_on(&primary);
        }
        // It may have been asked to end, as its files were replaced.
        reader = reader.filter(|reader| !reader.reading.is_over() && !random.once_in(15));
        match &reader {
            Some(reader) => reader.catch_up(),
            None => reader = Reader::begin(&readers, &copied_to),
        }
        let Some(reader) = &reader else { continue };
        let shown = contents(&reader.store, &mut random);
        let place = models.iter().position(|model| *model == shown);
        let place = place.unwrap_or_else(|| panic!("round {round}: what is shown was never there, or is older"));
        models.drain(..place);
        compared += 1;
        if is_whole && !copy.directory.is_opening() {
            // GC and compactions change nothing that can be seen.
            assert_eq!(shown, *models.last().unwrap(), "round {round}: all has come");
        }
        if reader.store.put(b"key", b"value").is_ok() {
            panic!("a store that follows takes writes");
        }
    }
    assert!(compared > rounds / 2, "{compared} of {rounds}");
    assert!(rounds < 100 || epochs > 0);
    // Nothing stays that a reader was waited for.
    for _ in 0..200 {
        copy.take(&primary, usize::MAX);
        copy.go_on(&primary);
        match &reader {
            Some(reader) if !reader.reading.is_over() => reader.catch_up(),
            _ => reader = None,
        }
        if tables(&copied_to) == tables(&at) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?} is left of {:?}", tables(&copied_to), tables(&at));
}

#[test]
fn what_it_shows_was_there_and_never_goes_back() {
    for seed in 1..=6 {
        run(seed, 120);
    }
}
