//! A store whose garbage is collected, and a copy of its files: what GC moves is not sent again.

#![allow(clippy::unwrap_used)] // a test

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ecotone_control::ids::Epoch;
use ecotone_engine::{CompressionMode, Direction, OpenMode, Separation, Store, StoreSettings};
use ecotone_mirror::directory::{Directory, FETCH_DELAY_US};
use ecotone_mirror::names::{FileName, parse};
use ecotone_mirror::recipe::spared_bytes;
use ecotone_mirror::source::{Sink, Source};
use ecotone_policy::gc::GcParameters;
use ecotone_replica::position::{BootId, Mark, Position};
use ecotone_replica::receiver::Sync as SyncStage;
use ecotone_replica::stream::{FileKind, Item, Kind};
use ecotone_types::units::Bytes;

/// The stream of a primary.
#[derive(Default)]
struct Stream(Mutex<Vec<Item>>);

impl Stream {
    fn begin() -> Mark {
        Mark::default().open(Epoch(1))
    }
}

impl Sink for Stream {
    fn append(&self, kind: Kind, bytes: u64, checksum: u32) -> Option<Position> {
        let mut items = self.0.lock().unwrap();
        let item = Item::behind(items.last().map_or(Self::begin(), Item::mark), kind, bytes, checksum);
        items.push(item);
        Some(item.position)
    }

    fn mark(&self) -> (Mark, u64) {
        (self.0.lock().unwrap().last().map_or(Self::begin(), Item::mark), 0)
    }
}

/// Garbage collection that begins early, over small segments and tables.
fn settings() -> StoreSettings {
    StoreSettings {
        memtable_bytes: 64 * 1024,
        level_base_bytes: 1024 * 1024,
        target_file_bytes: 64 * 1024,
        separation: Some(Separation { min_bytes: 50, segment_bytes: 64 * 1024 }),
        value_compression: CompressionMode::None,
        gc: GcParameters {
            begin_ratio: 1.2,
            end_ratio: 1.1,
            min_garbage_bytes: Bytes(64 * 1024),
            ..GcParameters::default()
        },
        ..StoreSettings::default()
    }
}

/// A copy, and what came to it.
struct Copy {
    directory: Directory,
    stream: Arc<Stream>,
    source: Arc<Source>,
    next: usize,
    now_us: u64,
    sent_bytes: u64,
    spared_bytes: u64,
    made: u64,
    fetched: BTreeSet<FileName>,
}

impl Copy {
    /// Takes all there is, and does what is pending as far as it goes.
    fn follow(&mut self) {
        let items = self.stream.0.lock().unwrap()[self.next..].to_vec();
        self.next += items.len();
        for item in items {
            let bytes = self.source.read(&item).unwrap();
            self.sent_bytes += bytes.len() as u64;
            if let Kind::Collect { content, .. } = item.kind {
                self.spared_bytes += spared_bytes(&bytes, content.len);
            }
            self.directory.apply(&[(item, bytes)]).unwrap();
        }
        self.source.trim(self.next as u64 + 1);
        for stage in [SyncStage::Segments, SyncStage::Wal] {
            let done = self.directory.begin_sync(stage).run().unwrap();
            self.directory.synced(done).unwrap();
        }
        // As much later as files are fetched.
        self.now_us += 2 * FETCH_DELAY_US;
        self.directory.advance(self.now_us).unwrap();
        while let Some(job) = self.directory.to_collect().unwrap() {
            match job.run() {
                Ok(()) => {
                    self.directory.fetched(job.want()).unwrap();
                    self.made += 1;
                }
                Err(_) => self.directory.not_collected(job.want()),
            }
        }
        for want in self.directory.wants(self.now_us) {
            // One that is gone is deleted by an item that comes.
            let Some(opened) = self.source.open_finished(want.file).unwrap() else { continue };
            let mut bytes = vec![0; want.content.len as usize];
            opened.read_exact_at(&mut bytes, 0).unwrap();
            let temporary = self.directory.temporary(&want);
            fs::write(&temporary, bytes).unwrap();
            self.directory.fetched(&want).unwrap();
            self.fetched.insert(want.file);
        }
        self.directory.advance(self.now_us).unwrap();
    }
}

/// The files that copies have, and what they hold.
fn files(directory: &Path) -> BTreeMap<FileName, Vec<u8>> {
    let mut files = BTreeMap::new();
    for below in [directory.to_path_buf(), directory.join("values")] {
        for entry in fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            if let Some(file) = parse(directory, &path) {
                files.insert(file, fs::read(path).unwrap());
            }
        }
    }
    files
}

fn value(key: u32, round: u32) -> Vec<u8> {
    (0..1000_u32).map(|at| (key.wrapping_mul(31) ^ round.wrapping_mul(977) ^ at.wrapping_mul(7)) as u8).collect()
}

#[test]
fn values_that_are_collected_are_not_sent_again_and_the_copy_is_the_same() {
    const KEYS: u32 = 2_000;
    let above = tempfile::tempdir().unwrap();
    let (path, copy_path) = (above.path().join("primary/store"), above.path().join("copy/store"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::create_dir_all(copy_path.parent().unwrap()).unwrap();
    let stream = Arc::<Stream>::default();
    let source = Source::new(&path, stream.clone()).unwrap();
    let builder = Store::builder(&path).mode(OpenMode::Create).settings(settings());
    let store = builder.tap(source.clone()).open().unwrap();
    let (directory, _) = Directory::open(&copy_path, BootId([1; 16])).unwrap();
    let mut copy = Copy {
        directory,
        stream,
        source,
        next: 0,
        now_us: 0,
        sent_bytes: 0,
        spared_bytes: 0,
        made: 0,
        fetched: BTreeSet::new(),
    };
    let mut model = BTreeMap::new();
    let mut round = 0;
    let deadline = Instant::now() + Duration::from_secs(120);
    // Other keys are overwritten in each round, so that segments have both values that live and
    // garbage.
    while round < 12 || store.value_log().unwrap().relocated_bytes < 4 << 20 {
        assert!(Instant::now() < deadline, "{:?}", store.value_log());
        for key in (0..KEYS).filter(|key| key.wrapping_mul(2_654_435_761) >> 16 & 3 == round & 3) {
            store.put(&key.to_be_bytes(), &value(key, round)).unwrap();
            model.insert(key.to_be_bytes().to_vec(), value(key, round));
        }
        store.flush(true).unwrap();
        copy.follow();
        round += 1;
    }
    let relocated = store.value_log().unwrap().relocated_bytes;
    store.close().unwrap();
    for _ in 0..10 {
        copy.follow();
    }
    let primary = files(&path);
    let segments = |of: &BTreeSet<FileName>| of.iter().filter(|file| file.kind == FileKind::Segment).count() as u64;
    let Copy { directory, spared_bytes, sent_bytes, made, fetched, .. } = copy;
    assert!(made > 0 && segments(&fetched) <= made / 10, "{made} were made, and {fetched:?} fetched");
    // Not all of it: values move more than once, and what a compaction gives up moves again.
    assert!(spared_bytes > relocated / 2, "{spared_bytes} of {relocated} were spared, {sent_bytes} sent");
    let copied = files(&copy_path);
    let names: Vec<_> = copied.keys().collect();
    assert_eq!(names, primary.keys().collect::<Vec<_>>());
    for (file, bytes) in &primary {
        assert!(*bytes == copied[file], "{file} differs");
    }
    // What the copy holds is a store with the same values.
    drop(directory);
    let store = Store::open(&copy_path, OpenMode::Open, settings()).unwrap();
    let found: BTreeMap<_, _> = store.scan(.., Direction::Forward, None).unwrap().map(Result::unwrap).collect();
    assert!(found == model, "{} of {} keys", found.len(), model.len());
    store.close().unwrap();
}
