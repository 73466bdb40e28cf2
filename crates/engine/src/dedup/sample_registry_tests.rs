//! [`SampleRegistry`] over tables that RocksDB writes, with all reads of tables counted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ecotone_io::remote_files::{RangedRead, RemoteFiles};
use ecotone_rocks::filesystem::{FileSystemHooks, hooked_env};
use ecotone_rocks::verify::read_table;
use rust_rocksdb::event_listener::{CompactionJobInfo, EventListener};
use rust_rocksdb::statistics::Ticker;
use rust_rocksdb::{BlockBasedOptions, Cache, Options};

use super::*;
use crate::collectors::add_collectors;
use crate::family::{DATA_FAMILY, DataFamily};
use crate::table_format::Collects;

/// Which table was read, and from where on.
type Reads = Arc<Mutex<Vec<(PathBuf, u64)>>>;

/// Answers for tables, from the local file system.
struct Tables(Reads);

struct Table {
    file: File,
    path: PathBuf,
    reads: Reads,
}

impl RemoteFiles for Tables {
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        if path.extension().is_none_or(|end| end != "sst") {
            return Ok(None);
        }
        Ok(Some(Arc::new(Table { file: File::open(path)?, path: path.to_path_buf(), reads: self.0.clone() })))
    }

    fn size(&self, _path: &Path) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn list(&self, _directory: &Path) -> io::Result<Option<Vec<String>>> {
        Ok(None)
    }
}

impl RangedRead for Table {
    fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |file| file.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.reads.lock().push((self.path.clone(), offset));
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64)? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }
}

/// Tells of flushes and compactions, unless it is deaf.
struct Ear {
    known: Arc<SampleRegistry>,
    is_deaf: Arc<AtomicBool>,
    /// Whether compactions are made by workers.
    is_remote: Arc<AtomicBool>,
}

impl Ear {
    fn hears(&self) -> bool {
        !self.is_deaf.load(Ordering::SeqCst)
    }
}

impl EventListener for Ear {
    fn on_flush_completed(&self, info: &FlushJobInfo) {
        if self.hears() {
            self.known.flushed(info);
        }
    }

    fn on_compaction_completed(&self, info: &CompactionJobInfo) {
        if self.hears() {
            let is_remote = self.is_remote.load(Ordering::SeqCst);
            self.known.compacted(&CompactedTables { info, purpose: None, is_remote, rewrites: true });
        }
    }
}

struct Store {
    known: Arc<SampleRegistry>,
    is_deaf: Arc<AtomicBool>,
    is_remote: Arc<AtomicBool>,
    reads: Reads,
    options: Options,
    db: DB,
}

impl Store {
    fn open(directory: &Path, max_open: i32) -> Self {
        let (known, is_deaf, reads) =
            (SampleRegistry::new(max_samples(None), Some(64 << 20)), Arc::<AtomicBool>::default(), Reads::default());
        let hooks = FileSystemHooks { remote: Some(Arc::new(Tables(reads.clone()))), ..FileSystemHooks::default() };
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_env(&hooked_env(hooks).unwrap());
        options.set_max_open_files(max_open);
        options.set_disable_auto_compactions(true);
        options.set_target_file_size_base(64 * 1024);
        options.enable_statistics();
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&Cache::new_lru_cache(64 * 1024 * 1024));
        options.set_block_based_table_factory(&table);
        let collects = Collects { samples: true, filter_bits_per_key: filters::BITS_PER_KEY, ..Collects::default() };
        add_collectors(&mut options, collects, known.sketching());
        let is_remote = Arc::<AtomicBool>::default();
        let ear = Ear { known: known.clone(), is_deaf: is_deaf.clone(), is_remote: is_remote.clone() };
        options.add_event_listener(ear);
        let families = [("default", Options::default()), (DATA_FAMILY, options.clone())];
        let db = DB::open_cf_with_opts(&options, directory, families).unwrap();
        Self { known, is_deaf, is_remote, reads, options, db }
    }

    fn family(&self) -> DataFamily {
        DataFamily::of(&self.db).unwrap()
    }

    /// A table of these keys.
    fn flush(&self, keys: std::ops::Range<u32>) {
        for key in keys {
            match key % 8 {
                0 => self.db.delete_cf(&self.family(), key.to_be_bytes()).unwrap(),
                _ => self.db.put_cf(&self.family(), key.to_be_bytes(), [7; 100]).unwrap(),
            }
        }
        self.db.flush_cf(&self.family()).unwrap();
    }

    fn look(&self) -> Vec<FamilyTable> {
        self.known.look(&self.db, &self.family()).unwrap().0
    }

    /// Of each read of a table whether it began in the data, before index and properties. Forgets
    /// the reads.
    fn take_reads(&self) -> Vec<bool> {
        let began_in_data = |(path, offset): (PathBuf, u64)| {
            let table = read_table(&path, &AtomicBool::new(false)).unwrap();
            offset < table.tail_offset
        };
        std::mem::take(&mut *self.reads.lock()).into_iter().map(began_in_data).collect()
    }

    fn ticks(&self) -> [u64; 3] {
        let tickers = [Ticker::BlockCacheDataMiss, Ticker::BlockCacheDataHit, Ticker::NumberDirectLoadTableProperties];
        tickers.map(|ticker| self.options.get_ticker_count(ticker))
    }

    /// What is known is what is found when everything is read anew.
    fn assert_is_all(&self) {
        let anew = SampleRegistry::new(max_samples(None), Some(64 << 20));
        let tables = anew.look(&self.db, &self.family()).unwrap().0;
        let (known, anew) = (self.known.now(), anew.now());
        assert!(known.tables.keys().eq(anew.tables.keys()));
        assert_eq!(known.tables.len(), tables.len());
        assert_eq!(known.duplicates().shadowed_bytes(), anew.duplicates().shadowed_bytes());
        assert!(tables.iter().all(|table| known.is_sampled(table.file_number)));
        assert_eq!(known.filter_bytes, anew.filter_bytes);
        for number in tables.iter().map(|table| table.file_number) {
            assert!(known.filter(number).is_some());
            assert_eq!(known.duplicates().samples(number), anew.duplicates().samples(number));
            assert_eq!(known.tables[&number].filter, anew.tables[&number].filter);
        }
    }
}

/// In memory where that is there: many tables are synced.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// More than may be open.
const TABLES: u32 = 40;

#[test]
fn no_data_is_read_to_learn_of_tables_that_come_and_go() {
    for max_open in [-1, 16] {
        let directory = directory();
        let store = Store::open(directory.path(), max_open);
        for table in 0..TABLES {
            store.flush(table * 500..table * 500 + 1000);
        }
        let before = store.ticks();
        store.reads.lock().clear();
        assert_eq!(store.look().len() as u32, TABLES);
        assert!(store.known.now().duplicates().shadowed_bytes().0 > 0);
        assert_eq!((store.take_reads(), store.ticks()), (Vec::new(), before), "{max_open}: flushes");

        // All at once, and a part of it again.
        store.db.compact_range_cf(&store.family(), None::<&[u8]>, None::<&[u8]>);
        store.flush(2000..4000);
        let before = store.ticks();
        store.reads.lock().clear();
        assert!(store.look().len() > 2);
        assert_eq!((store.take_reads(), store.ticks()), (Vec::new(), before), "{max_open}: a compaction");
        assert!(store.known.now().duplicates().shadowed_bytes().0 > 0);
        store.assert_is_all();

        // This test would see a read of data.
        store.reads.lock().clear();
        store.db.get_cf(&store.family(), 2001_u32.to_be_bytes()).unwrap();
        assert!(store.take_reads().contains(&true));
        assert_ne!(store.ticks()[..2], before[..2]);
    }
}

#[test]
fn what_was_there_before_is_learned_once_and_without_data() {
    for max_open in [-1, 16] {
        let directory = directory();
        let store = Store::open(directory.path(), max_open);
        for table in 0..TABLES {
            store.flush(table * 500..table * 500 + 1000);
        }
        drop(store);
        let store = Store::open(directory.path(), max_open);
        store.reads.lock().clear();
        let [miss, hit, read] = store.ticks();
        store.look();
        let reads = store.take_reads();
        assert!(!reads.contains(&true), "{max_open}: data were read");
        assert_eq!(reads.is_empty(), max_open == -1, "tables that are open need not be read");
        assert_eq!(store.ticks()[..2], [miss, hit]);
        assert_eq!(store.ticks()[2] > read, max_open != -1);
        store.assert_is_all();

        let before = store.ticks();
        store.reads.lock().clear();
        for round in 0..3 {
            store.flush(round * 10..round * 10 + 5);
            store.reads.lock().clear();
            store.look();
            assert_eq!((store.take_reads(), store.ticks()[2]), (Vec::new(), before[2]), "the new one was heard of");
        }
        // Also where a look has to ask: those that are closed and known are not read again.
        store.is_deaf.store(true, Ordering::SeqCst);
        store.flush(100..105);
        store.look();
        assert!(store.ticks()[2] <= before[2] + 1, "all but the new one were known");
        store.assert_is_all();
    }
}

#[test]
fn what_was_not_heard_of_is_found_at_the_next_look() {
    let directory = directory();
    let store = Store::open(directory.path(), -1);
    let deaf = |is_deaf| store.is_deaf.store(is_deaf, Ordering::SeqCst);
    for round in 0..12 {
        deaf(round % 3 == 0);
        store.flush(round * 300..round * 300 + 1000);
        deaf(round % 2 == 0);
        if round % 4 == 3 {
            store.db.compact_range_cf(&store.family(), Some(100_u32.to_be_bytes()), Some(2000_u32.to_be_bytes()));
        }
        store.look();
        store.assert_is_all();
    }
    // More than fits.
    deaf(false);
    for key in 0..MAX_CHANGES as u32 + 10 {
        store.flush(key * 8 + 1..key * 8 + 3);
    }
    assert!(store.known.pending.lock().changes.len() <= MAX_CHANGES);
    store.look();
    store.assert_is_all();
}

#[test]
fn a_store_that_has_shrunk_is_sampled_as_densely_again() {
    let directory = directory();
    let store = Store::open(directory.path(), -1);
    let known = SampleRegistry::new(200, None);
    for table in 0..TABLES {
        store.flush(table * 1000..table * 1000 + 1000);
    }
    let look = || drop(known.look(&store.db, &store.family()).unwrap());
    look();
    let thin = known.now().duplicates().one_in();
    assert!(thin > 64, "{thin}");
    store.db.delete_range_cf(&store.family(), 1000_u32.to_be_bytes(), u32::MAX.to_be_bytes()).unwrap();
    store.db.compact_range_cf(&store.family(), None::<&[u8]>, None::<&[u8]>);
    known.now().take_overlaps();
    look();
    assert!(known.now().take_overlaps().is_empty(), "what was known has not come");
    assert_eq!(known.now().duplicates().one_in(), 64);
    let samples = |known: &SampleRegistry| {
        let known = known.now();
        known.tables.keys().flat_map(|table| known.duplicates().samples(*table).unwrap().to_vec()).collect::<Vec<_>>()
    };
    let anew = SampleRegistry::new(max_samples(None), None);
    drop(anew.look(&store.db, &store.family()).unwrap());
    assert!(!samples(&anew).is_empty());
    assert_eq!(samples(&known), samples(&anew));
}

#[test]
fn what_a_worker_says_of_its_tables_is_read_from_them_instead() {
    let directory = directory();
    let store = Store::open(directory.path(), -1);
    store.flush(0..1000);
    store.flush(500..1500);
    store.look();
    store.is_remote.store(true, Ordering::SeqCst);
    store.db.compact_range_cf(&store.family(), None::<&[u8]>, None::<&[u8]>);
    let written = family_tables(&store.db, &store.family()).unwrap();
    let is_known = |table: &FamilyTable| store.known.now().is_sampled(table.file_number);
    assert!(!written.is_empty() && !written.iter().any(is_known));
    assert!(store.known.now().tables.is_empty(), "those that went are gone");
    store.look();
    assert!(written.iter().all(is_known));
    store.assert_is_all();
}

#[test]
fn the_keys_of_a_new_table_are_at_hand_and_those_of_an_old_one_are_not() {
    let directory = directory();
    let store = Store::open(directory.path(), -1);
    store.flush(0..1000);
    let table = store.look()[0].file_number;
    assert_eq!(store.known.now().key_hashes(table).unwrap().all().len(), 1000);
    drop(store);
    let store = Store::open(directory.path(), -1);
    let table = store.look()[0].file_number;
    assert!(store.known.now().key_hashes(table).is_none());
}

#[test]
fn a_number_is_read_from_the_path_of_a_table_only() {
    assert_eq!(number_of(b"/a/b/000123.sst"), Some(123));
    for path in [&b"/a/b/x.sst"[..], b"", b"/", b"/a/\xFF.sst", b"/a/-1.sst"] {
        assert_eq!(number_of(path), None);
    }
}

#[test]
fn a_small_limit_of_memory_bounds_samples_too() {
    let mib = |number: u64| Some(number << 20);
    assert_eq!([None, mib(1024), mib(32), mib(4)].map(max_samples), [MAX_SAMPLES, MAX_SAMPLES, 21_845, MIN_SAMPLES]);
    assert!(MIN_SAMPLES as u64 * SAMPLE_BYTES <= 3 << 19);
}
