//! A store that follows a copy's directory, against a model: whatever its primary does, and however
//! far the stream has come, it shows what was written up to some write, and never goes back. And
//! who opens the directory as the primary, whatever has come, finds all that came and nothing else.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

#[path = "../../engine/tests/common/random.rs"]
mod random;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_control::ids::Epoch;
use ecotone_engine::{Batch, Direction, Separation, Store, StoreSettings, WriteOptions};
use ecotone_mirror::directory::{Directory, check_fetched};
use ecotone_mirror::error::Error;
use ecotone_mirror::readers::{Readers, Reading};
use ecotone_mirror::recipe::spared_bytes;
use ecotone_mirror::seed::Building;
use ecotone_mirror::source::{Sink, Source};
use ecotone_policy::gc::GcParameters;
use ecotone_replica::position::{BootId, Mark, Position};
use ecotone_replica::receiver::Sync;
use ecotone_replica::standing::Standing;
use ecotone_replica::stream::{Item, Kind};
use ecotone_types::units::Bytes;
use parking_lot::Mutex;
use random::{soak_time, with_seeds};

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
        // GC begins early, and tells copies how its segments are made.
        gc: GcParameters {
            begin_ratio: 1.1,
            end_ratio: 1.05,
            min_garbage_bytes: Bytes(64 << 10),
            ..GcParameters::default()
        },
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
    /// Bytes that no item brought, as it said how a segment is made.
    spared: u64,
    /// Segments that were made so.
    made: usize,
}

impl Copy {
    /// Takes so many items more.
    fn take(&mut self, primary: &Primary, count: usize) {
        let items: Vec<Item> = primary.stream.0.lock().1[self.taken..].iter().take(count).copied().collect();
        self.taken += items.len();
        let bytes = |item: &Item| if item.bytes == 0 { Vec::new() } else { primary.source.read(item).unwrap() };
        let items: Vec<(Item, Vec<u8>)> = items.iter().map(|item| (*item, bytes(item))).collect();
        for (item, bytes) in &items {
            if let Kind::Collect { content, .. } = item.kind {
                self.spared += spared_bytes(bytes, content.len);
            }
        }
        self.directory.apply(&items).unwrap();
    }

    /// Syncs, makes segments, fetches files and does what is pending. False where an opening cannot
    /// go on, as its primary has let go of a file that it names.
    fn go_on(&mut self, primary: &Primary) -> bool {
        for what in [Sync::Segments, Sync::Wal] {
            let done = self.directory.begin_sync(what).run().unwrap();
            self.directory.synced(done).unwrap();
        }
        self.now_us += 700_000;
        self.directory.advance(self.now_us).unwrap();
        while let Some(job) = self.directory.to_collect().unwrap() {
            let want = *job.want();
            match job.run() {
                Ok(()) => {
                    self.directory.fetched(&want).unwrap();
                    self.made += 1;
                }
                // Then it is fetched below.
                Err(Error::Missing { .. } | Error::Mismatch { .. }) => self.directory.not_collected(&want),
                Err(error) => panic!("{error}"),
            }
        }
        for want in self.directory.wants(self.now_us) {
            let Some(mut found) = primary.source.open_finished(want.file).unwrap() else {
                if self.directory.is_opening() {
                    self.directory.abandon().unwrap();
                    return false;
                }
                continue;
            };
            let temporary = self.directory.temporary(&want);
            let mut to = fs::File::create(&temporary).unwrap();
            std::io::copy(&mut found, &mut to).unwrap();
            check_fetched(&temporary, &want).unwrap();
            self.directory.fetched(&want).unwrap();
        }
        true
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

/// Where there is one: then syncs take no time.
fn directory_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn tables(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut tables: Vec<String> = names.filter(|name| name.ends_with(".sst")).collect();
    tables.sort();
    tables
}

/// Builds the directory anew from all files of the primary, as who needs other files does. Returns
/// it, and how many items it has.
fn rebuilt(directory: Directory, primary: &Primary, at: &Path) -> (Directory, usize) {
    let offer = primary.source.offer().unwrap();
    let mut building = Building::begin(at, offer.listing()).unwrap();
    while let Some((file, offset, len)) = building.next() {
        let mut bytes = vec![0; len as usize];
        offer.open(file).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        building.write(file, offset, &bytes).unwrap();
    }
    let built = building.finish().unwrap();
    let mark = built.mark();
    let directory = directory.switch(built, &Standing::founded()).unwrap();
    let taken = primary.stream.0.lock().1.iter().rposition(|item| item.mark() == mark).unwrap() + 1;
    (directory, taken)
}

/// What a copy of the directory is opened with, one in so many times; in a soak each time.
const PROMOTED: u64 = 10;

/// All that is below a folder, once more.
fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy_all(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

/// The store of a copy that becomes the primary of an epoch.
fn opened(mut directory: Directory, at: &Path, epoch: u64) -> Store {
    let least_segment = directory.prepare_opening(directory.applied().open(Epoch(epoch)), 0).unwrap();
    let builder = Store::builder(at).settings(settings()).flush_on_open();
    builder.least_segment(u32::try_from(least_segment).unwrap()).open().unwrap()
}

/// What the copy would hold as the primary of the next epoch, and how many items it has taken.
fn promoted(copy: &Copy, primary: &Primary, copied_to: &Path, folder: &Path, random: &mut Random) -> (Model, usize) {
    let to = folder.join("promoted");
    copy_all(copied_to, &to);
    copy_all(&copied_to.with_extension("copy"), &to.with_extension("copy"));
    let (mut directory, found) = Directory::open(&to, BOOT).unwrap();
    let at = copy.directory.applied();
    assert_eq!(found.at, at);
    let taken = primary.stream.0.lock().1.iter().rposition(|item| item.mark() == at).map_or(0, |place| place + 1);
    // Whoever is sealed before has synced all. Who takes a shard over by a plan may not.
    if random.once_in(2) {
        for what in [Sync::Segments, Sync::Wal] {
            let done = directory.begin_sync(what).run().unwrap();
            directory.synced(done).unwrap();
        }
        directory.advance(0).unwrap();
    }
    let store = opened(directory, &to, primary.epoch + 1);
    let model = contents(&store, random);
    store.close().unwrap();
    for gone in [&to, &to.with_extension("copy")] {
        fs::remove_dir_all(gone).unwrap();
    }
    (model, taken)
}

/// Returns how many segments the copy has made of others, and how many bytes that has spared.
fn run(seed: u64, rounds: u64) -> (usize, u64) {
    let folder = directory_in_memory();
    let (at, copied_to) = (folder.path().join("primary"), folder.path().join("copy"));
    let mut random = Random(seed);
    let mut primary = Primary::new(&at);
    let readers = Arc::new(Readers::default());
    let directory = Directory::open(&copied_to, BOOT).unwrap().0.with_readers(readers.clone());
    let mut copy = Copy { directory, taken: 0, now_us: 0, spared: 0, made: 0 };
    // What there was after each write, from the one on that was shown last.
    let mut models: Vec<Model> = vec![Model::new()];
    let mut reader: Option<Reader> = None;
    let (mut compared, mut epochs) = (0, 0);
    // How many items there were after each write, and the number of the first model.
    let (mut ends, mut first) = (vec![0], 0);
    for round in 0..rounds {
        for _ in 0..random.below(60) {
            let mut model = models.last().unwrap().clone();
            let key = key(random.below(KEYS));
            match random.below(10) {
                0 => {
                    primary.store().delete(&key).unwrap();
                    model.remove(&key);
                }
                1 if random.once_in(3) => {
                    let other = self::key(random.below(KEYS));
                    let (from, to) = (key.clone().min(other.clone()), key.max(other));
                    let mut batch = Batch::new();
                    batch.delete_range(&from[..]..&to[..]).unwrap();
                    batch.put(&to, b"removed up to here").unwrap();
                    primary.store().write(&batch, WriteOptions::default()).unwrap();
                    model.retain(|key, _| !(from.clone()..to.clone()).contains(key));
                    model.insert(to, b"removed up to here"[..].into());
                }
                of => {
                    let len = if of < 4 { random.below(40) } else { 100 + random.below(3_000) };
                    let value = vec![random.below(256) as u8; len as usize];
                    primary.store().put(&key, &value).unwrap();
                    model.insert(key, value.into());
                }
            }
            models.push(model);
            ends.push(primary.stream.0.lock().1.len());
        }
        match random.below(12) {
            0 | 1 => primary.store().flush(true).unwrap(),
            2 => primary.store().compact(..).unwrap(),
            4 if random.once_in(3) => {
                let checkpoint = folder.path().join("checkpoint");
                primary.store().checkpoint(&checkpoint).unwrap();
                fs::remove_dir_all(&checkpoint).unwrap();
            }
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
        if random.once_in(2) && !copy.go_on(&primary) {
            (copy.directory, copy.taken) = rebuilt(copy.directory, &primary, &copied_to);
        }
        let is_begun = copied_to.join("CURRENT").exists();
        if is_begun && (random.once_in(PROMOTED) || !soak_time().is_zero()) {
            let (found, taken) = promoted(&copy, &primary, &copied_to, folder.path(), &mut random);
            let whole = ends.partition_point(|end| *end <= taken) - 1;
            let may_be = [whole, whole + 1].map(|writes| writes.checked_sub(first).and_then(|place| models.get(place)));
            assert!(may_be.contains(&Some(&found)), "round {round}: not what there was after {whole} writes");
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
        first += place;
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
        if !copy.go_on(&primary) {
            (copy.directory, copy.taken) = rebuilt(copy.directory, &primary, &copied_to);
        }
        match &reader {
            Some(reader) if !reader.reading.is_over() => reader.catch_up(),
            _ => reader = None,
        }
        if tables(&copied_to) == tables(&at) {
            return (copy.made, copy.spared);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?} is left of {:?}", tables(&copied_to), tables(&at));
}

#[test]
fn what_it_shows_was_there_and_never_goes_back() {
    let (mut made, mut spared) = (0, 0);
    with_seeds(6, |seed| {
        let of_one = run(seed + 1, 120);
        (made, spared) = (made + of_one.0, spared + of_one.1);
    });
    assert!(made > 0 && spared > 0, "GC moved values, and no copy was told how: {made} segments, {spared} bytes");
}

/// Whoever takes a shard over by a plan need not have synced anything.
#[test]
fn a_copy_of_a_new_store_that_becomes_the_primary_before_its_first_sync_has_what_came() {
    let folder = directory_in_memory();
    let (at, copied_to) = (folder.path().join("primary"), folder.path().join("copy"));
    let primary = Primary::new(&at);
    let values = [vec![1; 10], vec![2; 1_000]];
    for (number, value) in (0..).zip(&values) {
        primary.store().put(&key(number), value).unwrap();
    }
    let directory = Directory::open(&copied_to, BOOT).unwrap().0;
    let mut copy = Copy { directory, taken: 0, now_us: 0, spared: 0, made: 0 };
    copy.take(&primary, usize::MAX);
    assert_eq!(copy.directory.applied(), primary.stream.mark().0);
    let store = opened(copy.directory, &copied_to, 2);
    for (number, value) in (0..).zip(&values) {
        assert_eq!(store.get(&key(number)).unwrap().as_deref(), Some(&value[..]));
    }
    store.close().unwrap();
}

/// Flushes, each of which is an edit of the MANIFEST at least; compactions make more.
const EDITS: u64 = 400;
const EDITS_IN_A_SOAK: u64 = 50_000;

/// A copy that follows for weeks opens as soon as one that was just made.
#[test]
fn a_copy_that_has_taken_many_edits_is_opened_soon() {
    let folder = directory_in_memory();
    let (at, copied_to) = (folder.path().join("primary"), folder.path().join("copy"));
    let primary = Primary::new(&at);
    let directory = Directory::open(&copied_to, BOOT).unwrap().0;
    let mut copy = Copy { directory, taken: 0, now_us: 0, spared: 0, made: 0 };
    let edits = if soak_time().is_zero() { EDITS } else { EDITS_IN_A_SOAK };
    for number in 0..edits {
        primary.store().put(&key(number % KEYS), &number.to_le_bytes()).unwrap();
        primary.store().flush(true).unwrap();
        if number % 50 == 49 || number + 1 == edits {
            copy.take(&primary, usize::MAX);
            assert!(copy.go_on(&primary));
        }
    }
    let begin = Instant::now();
    let store = opened(copy.directory, &copied_to, 2);
    let took = begin.elapsed();
    let manifest = fs::read_to_string(at.join("CURRENT")).unwrap();
    let bytes = fs::metadata(at.join(manifest.trim())).unwrap().len();
    println!("opened in {took:?}, after {edits} flushes, which left a MANIFEST of {bytes} bytes");
    assert!(took < Duration::from_secs(1), "{took:?}");
    for number in edits.saturating_sub(KEYS)..edits {
        assert_eq!(store.get(&key(number % KEYS)).unwrap().as_deref(), Some(&number.to_le_bytes()[..]));
    }
    store.close().unwrap();
}
