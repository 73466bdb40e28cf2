//! Compactions that are extended to where duplicates are: what shadows is freed, nothing else
//! changes, and writers never wait for it.

use crate::common;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::offloads::{InProcess, Only};
use common::random::{Random, soak_time};
use common::tmpfs::Tmpfs;
use common::{Model, assert_equals, value_of};
use ecotone_engine::{
    Compression, DedupMode, DedupOptions, DedupProperties, Durability, Duty, DutyObserver, Error, ExtensionThreshold,
    OpenMode, Separation, Store, StoreBuilder, StoreSettings,
};
use ecotone_inspect::{space, verify};
use ecotone_io::remote_files::{RangedRead, RemoteFiles};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_policy::dedup::{DedupParameters, DedupThreshold};
use ecotone_policy::gc::GcParameters;
use ecotone_rocks::filesystem::FileSystemHooks;
use ecotone_rocks::verify::read_table;
use ecotone_types::JobPurpose;
use ecotone_types::units::{Bytes, Seconds};
use tempfile::TempDir;

/// Far more than any of this takes.
const LONG: Duration = Duration::from_secs(120);

/// So many writes go to each key, in no order.
const ROUNDS: u64 = 3;

/// The name of the thread that checks and merges.
const THREAD: &str = "ecotone-dedup";

/// Merges of whatever is found, without rests.
fn eager(mode: DedupMode) -> DedupOptions {
    DedupOptions {
        mode: Some(mode),
        threshold: ExtensionThreshold::At(DedupThreshold::try_from(30.0).unwrap()),
        parameters: DedupParameters {
            max_merge_bytes: Bytes::from_mib(4),
            check_interval: Seconds::ZERO,
            min_sampled_duplicates: 4,
            rest_share: 0.0,
            ..DedupParameters::default()
        },
        ..DedupOptions::default()
    }
}

/// A tree of four levels below L0, once it is full.
fn options(separated: bool, dedup: DedupOptions) -> StoreSettings {
    StoreSettings {
        memtable_bytes: 256 * 1024,
        level_base_bytes: 1024 * 1024,
        level_multiplier: 2,
        dynamic_levels: false,
        target_file_bytes: 128 * 1024,
        compression: Compression::None,
        separation: separated.then_some(Separation { min_bytes: 32, segment_bytes: 1024 * 1024 }),
        dedup,
        ..StoreSettings::default()
    }
}

/// Keys that fill four levels, and the length of their values.
fn size(separated: bool) -> (usize, usize) {
    if separated { (220_000, 40) } else { (60_000, 100) }
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

/// Writes `rounds` times as many values as there are keys, in an order that the seed determines.
fn overwrite(store: &Store, model: &mut Model, seed: u64, rounds: u64, (keys, bytes): (usize, usize)) {
    let mut random = Random::new(seed);
    for number in 0..keys as u64 * rounds {
        let key = key(random.below(keys));
        let value = value_of(&key, seed ^ number, bytes);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
}

/// As [`eager`], but nothing is merged.
fn counting(mode: DedupMode) -> DedupOptions {
    DedupOptions { threshold: ExtensionThreshold::Off, ..eager(mode) }
}

/// A plain store in whose levels much shadows, of which nothing has been merged; then opened with
/// `settings`.
fn loaded(settings: StoreSettings) -> (TempDir, Store, Model) {
    loaded_with(settings, |builder| builder)
}

fn loaded_with(settings: StoreSettings, with: impl FnOnce(StoreBuilder) -> StoreBuilder) -> (TempDir, Store, Model) {
    let directory = tempfile::tempdir().unwrap();
    let (store, model) = loaded_at(&directory.path().join("store"), settings, with);
    (directory, store, model)
}

fn loaded_at(path: &Path, settings: StoreSettings, with: impl FnOnce(StoreBuilder) -> StoreBuilder) -> (Store, Model) {
    let dedup = counting(settings.dedup_mode());
    // Compacted as by default: sooner, and a quick machine leaves little that shadows.
    let StoreSettings { l0_compaction_trigger, l0_slowdown_trigger, .. } = StoreSettings::default();
    let load = StoreSettings { dedup, l0_compaction_trigger, l0_slowdown_trigger, ..settings.clone() };
    let store = Store::open(path, OpenMode::Create, load).unwrap();
    let mut model = Model::new();
    overwrite(&store, &mut model, 7, ROUNDS, size(false));
    store.flush(true).unwrap();
    let before = settled(&store).unwrap();
    assert!(before.duplicate_keys * 5 > model.len() as u64, "{before:?}");
    assert_eq!((before.extensions, before.merges), (0, 0), "it only counts");
    store.close().unwrap();
    (with(Store::builder(path).mode(OpenMode::Open).settings(settings)).open().unwrap(), model)
}

/// Writes as much, all over the keys, as makes RocksDB compact level 0: an occasion to look.
fn occasion(store: &Store, model: &mut Model, seed: u64) {
    let (keys, bytes) = size(false);
    let mut random = Random::new(seed);
    for table in 0..4_u64 {
        for number in 0..500 {
            let key = key(random.below(keys));
            let value = value_of(&key, seed ^ number ^ table << 32, bytes);
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        store.flush(true).unwrap();
    }
}

/// Makes occasions until what was done is as wanted.
fn until(store: &Store, model: &mut Model, wanted: impl Fn(&DedupProperties) -> bool) -> DedupProperties {
    let begin = Instant::now();
    for seed in 100.. {
        let done = store.dedup().unwrap();
        if wanted(&done) {
            return done;
        }
        assert!(begin.elapsed() < LONG, "{done:?}");
        if !done.is_busy {
            occasion(store, model, seed);
        }
        std::thread::yield_now();
    }
    unreachable!()
}

/// Waits until no compaction and no merge is to be made any more.
fn settled(store: &Store) -> Option<DedupProperties> {
    let begin = Instant::now();
    loop {
        // Merges leave compactions behind and these extensions, so it is asked for both between two
        // looks at what was done.
        let compactions = store.counters().compactions;
        let properties = store.properties().unwrap();
        let dedup = store.dedup();
        let is_busy = properties.running_compactions > 0
            || properties.compaction_pending
            || dedup.as_ref().is_some_and(|dedup| dedup.is_busy);
        if !is_busy && store.counters().compactions == compactions {
            return dedup;
        }
        assert!(begin.elapsed() < LONG, "{properties:?} {dedup:?}");
        std::thread::yield_now();
    }
}

/// Entries of all tables for each key that there is, and the deepest level.
fn amplification(store: &Store, model: &Model) -> (f64, u32) {
    let tables = store.live_tables().unwrap();
    let entries: u64 = tables.iter().map(|table| table.entries).sum();
    (entries as f64 / model.len() as f64, tables.iter().map(|table| table.level).max().unwrap())
}

#[test]
fn what_shadows_in_deep_levels_is_merged_away_and_no_answer_changes() {
    for separated in [false, true] {
        let mut amplified = Vec::new();
        // At last with no room for any filter.
        let modes =
            [(DedupMode::Off, 0), (DedupMode::Sample, 0), (DedupMode::Filter, 64 << 20), (DedupMode::Filter, 1)];
        // What finds merges does not see values: where they are separated, filters only in a soak.
        let some = if separated && soak_time().is_zero() { 2 } else { modes.len() };
        for (mode, max_filter_bytes) in modes.into_iter().take(some) {
            let off = DedupOptions { threshold: ExtensionThreshold::Off, ..DedupOptions::default() };
            let mut dedup = if mode == DedupMode::Off { off } else { eager(mode) };
            // So few samples promise too much now and then; a store that backs off would look as if
            // it were done.
            dedup.parameters.min_found_share = 0.01;
            dedup.max_filter_bytes = max_filter_bytes;
            // Compactions for garbage collection would meet what shadows as well.
            let gc = GcParameters { forced_ratio: 90.0, urgent_ratio: 91.0, ..GcParameters::default() };
            let options = StoreSettings { gc, ..options(separated, dedup) };
            let (directory, store) = common::store(options);
            let mut model = Model::new();
            overwrite(&store, &mut model, 1, ROUNDS, size(separated));
            store.flush(true).unwrap();
            let done = settled(&store);
            let (entries_per_key, deepest) = amplification(&store, &model);
            assert!(deepest >= 4 || mode != DedupMode::Off, "{deepest} levels only");
            assert_equals(&store, &model);
            amplified.push(entries_per_key);
            if let Some(done) = done.filter(|_| mode != DedupMode::Off) {
                assert!(done.merges > 0 && done.found_keys > 0 && done.read_bytes > done.written_bytes, "{done:?}");
                // What was expected was there.
                let found = done.found_keys as f64 / done.expected_keys as f64;
                assert!((0.7..1.5).contains(&found), "{done:?}");
                assert_eq!((done.unsampled_tables, done.checks_dropped), (0, 0), "{done:?}");
            }
            store.close().unwrap();
            let path = directory.path().join("store");
            let report = verify(&path, |_| ()).unwrap();
            assert!(report.is_sound(), "{report:?}");
        }
        let (off, with) = amplified.split_first().unwrap();
        assert!(*off > 1.2, "nothing shadows without it: {off}");
        for with in with {
            assert!(with - 1.0 < 0.6 * (off - 1.0), "{with} entries for each key with it, {off} without");
        }
    }
}

/// Nothing is written, so no compaction gives occasion to look.
#[test]
fn what_hid_when_a_store_was_closed_is_merged_away_once_it_is_open() {
    let mut dedup = eager(DedupMode::Sample);
    // As above.
    dedup.parameters.min_found_share = 0.01;
    let (_directory, store, model) = loaded(options(false, dedup));
    let begin = Instant::now();
    let done = loop {
        let done = store.dedup().unwrap();
        if done.merges > 0 && !done.is_busy {
            break done;
        }
        assert!(begin.elapsed() < LONG, "{done:?}");
        std::thread::yield_now();
    };
    assert!(done.duplicate_keys * 5 < model.len() as u64, "{done:?}");
    assert!(done.extensions >= 1, "{done:?}");
    assert_equals(&store, &model);
}

#[test]
fn without_a_threshold_it_only_counts_and_off_it_does_nothing() {
    let (directory, store) = common::store(options(false, counting(DedupMode::Sample)));
    let mut model = Model::new();
    overwrite(&store, &mut model, 7, ROUNDS, size(false));
    store.flush(true).unwrap();
    let counted = settled(&store).unwrap();
    // Entries of one key beyond the first are those that shadow.
    let (entries_per_key, _) = amplification(&store, &model);
    let shadowed = (entries_per_key - 1.0) * model.len() as f64;
    let error = (4.0 * counted.relative_error.unwrap()).min(0.15);
    assert!((counted.duplicate_keys as f64 / shadowed - 1.0).abs() < error, "{shadowed} of {counted:?}");
    assert!(counted.checks > 0 && counted.check_cpu_us > 0, "{counted:?}");
    assert_eq!((counted.extensions, counted.merges), (0, 0));
    let non_blocking = store.try_dedup().unwrap();
    assert_eq!((&non_blocking.levels, non_blocking.shadowed_bytes), (&counted.levels, counted.shadowed_bytes));
    store.close().unwrap();
    // Nobody tells of tables that were there already: the store looks at them by itself.
    let store =
        Store::open(&directory.path().join("store"), OpenMode::Open, options(false, counting(DedupMode::Sample)));
    let store = store.unwrap();
    let begin = Instant::now();
    while store.try_dedup().is_none_or(|again| (&again.levels, again.unsampled_tables) != (&counted.levels, 0)) {
        assert!(begin.elapsed() < LONG, "{:?} is not {counted:?}", store.try_dedup());
        std::thread::yield_now();
    }
    store.close().unwrap();
    let store = Store::open(&directory.path().join("store"), OpenMode::Open, options(false, DedupOptions::default()));
    let store = store.unwrap();
    assert_eq!(store.dedup(), None);
    assert_eq!(store.try_dedup(), None);
}

#[test]
fn levels_are_compared_at_intervals_where_that_is_asked_for() {
    let triggered = DedupMode::Triggered { interval: Duration::from_secs(1) };
    // Nothing holds it back: where writers may soon be slowed no other merge begins, and the rest
    // behind one would last for as long as this waits.
    let mut eager = eager(triggered);
    eager.parameters.rest_share = 1000.0;
    let throttled = StoreSettings { l0_compaction_trigger: 2, l0_slowdown_trigger: 2, ..options(false, eager) };
    let (directory, store, model) = loaded(throttled);
    let begin = Instant::now();
    let before = store.dedup().unwrap();
    // Nothing is written, nothing is compacted: it begins by itself. A level is compared with the
    // next one only, so not all of it goes.
    while store.dedup().unwrap().duplicate_keys * 4 > before.duplicate_keys * 3 {
        assert!(begin.elapsed() < LONG, "{:?}", store.dedup());
        std::thread::yield_now();
    }
    let done = store.dedup().unwrap();
    assert!(done.checks > 0 && done.merges > 0 && forbidden(&done) == 0, "{done:?}");
    assert_equals(&store, &model);
    // They are compared no more often where nothing is ever merged.
    store.close().unwrap();
    let begin = Instant::now();
    let store =
        Store::open(&directory.path().join("store"), OpenMode::Open, options(false, counting(triggered))).unwrap();
    let checks = || store.dedup().unwrap().checks;
    while checks() < 2 {
        assert!(begin.elapsed() < LONG, "{:?}", store.dedup());
        std::thread::yield_now();
    }
    let (checks, intervals) = (checks(), begin.elapsed().as_secs());
    assert!(checks <= intervals + 1, "{checks} in {intervals} s");
}

thread_local! {
    /// What this thread does, outermost first.
    static DUTIES: RefCell<Vec<Duty>> = const { RefCell::new(Vec::new()) };
}

/// That tables which our thread writes are of the duty that our thread has, and nobody else's.
#[derive(Default)]
struct Duties {
    tables: AtomicU64,
    wrong: AtomicU64,
}

fn is_on_thread() -> bool {
    std::thread::current().name() == Some(THREAD)
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "sst")
}

impl DutyObserver for Duties {
    fn begin(&self, duty: Duty) {
        DUTIES.with_borrow_mut(|duties| duties.push(duty));
        if (duty == Duty::Dedup) != is_on_thread() {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end(&self) {
        DUTIES.with_borrow_mut(|duties| duties.pop()).unwrap();
    }
}

impl WriteTap for Duties {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        if let TapEvent::Created { path } = event
            && is_table(path)
            && is_on_thread()
        {
            self.tables.fetch_add(1, Ordering::Relaxed);
            let is_right = DUTIES.with_borrow(|duties| *duties == [Duty::Dedup]);
            self.wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
        }
        Ok(())
    }
}

#[test]
fn merges_that_run_here_are_a_duty_of_their_own_also_where_others_go_away() {
    let worker = tempfile::tempdir().unwrap();
    let offload = Arc::new(InProcess::new(worker.path()));
    let duties = Arc::<Duties>::default();
    let hooks = FileSystemHooks { tap: Some(duties.clone()), ..FileSystemHooks::default() };
    let others = Only::of(offload.clone(), |purpose| purpose != JobPurpose::Dedup);
    let settings = StoreSettings { background_compactions: 4, ..options(false, eager(DedupMode::Sample)) };
    let (_directory, store, mut model) =
        loaded_with(settings, |builder| builder.hooks(hooks).duties(duties.clone()).offload(others));
    let before = store.counters();
    let went_away = || offload.installed.load(Ordering::Relaxed) > 0;
    let done = until(&store, &mut model, |done| done.merges > 3 && went_away());
    assert!(done.merge_cpu_us > 0 && done.check_cpu_us > 0 && done.sketch_cpu_us > 0, "{done:?}");
    assert_equals(&store, &model);
    let counters = store.counters();
    assert!(counters.compactions >= before.compactions + done.merges, "{counters:?}");
    assert_eq!(counters.failed_compactions, 0);
    store.close().unwrap();
    assert!(duties.tables.load(Ordering::Relaxed) > 0);
    assert_eq!(duties.wrong.load(Ordering::Relaxed), 0);
    assert!(offload.refused.lock().unwrap().is_empty(), "{:?}", offload.refused);
}

/// A read of a table: its begin and end, and where the table's data ends, which comes first.
#[derive(Debug, Clone, Copy)]
struct TableRead {
    offset: u64,
    end: u64,
    data_bytes: u64,
}

impl TableRead {
    /// Whether any of it is. What follows the data is read ahead when a table is opened, in whole
    /// pages: so the end of the data may come with it.
    fn is_of_data(&self) -> bool {
        let is_of_tail = self.offset == self.data_bytes / 4096 * 4096 && self.end > self.data_bytes;
        self.offset < self.data_bytes && !is_of_tail
    }
}

/// Answers for tables from the local ones, and notes what our thread reads of them.
#[derive(Default)]
struct Reads {
    noted: Arc<Mutex<Vec<TableRead>>>,
    /// Of each table that was opened.
    data_bytes: Mutex<HashMap<PathBuf, u64>>,
}

struct ReadTable {
    file: File,
    bytes: u64,
    data_bytes: u64,
    noted: Arc<Mutex<Vec<TableRead>>>,
}

impl RangedRead for ReadTable {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        // Who asks what is known looks as well.
        if is_on_thread() || std::thread::current().name() == Some("dedup::checks_read_no_data") {
            let end = offset + buffer.len() as u64;
            self.noted.lock().unwrap().push(TableRead { offset, end, data_bytes: self.data_bytes });
        }
        self.file.read_at(buffer, offset)
    }
}

impl RemoteFiles for Reads {
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        if !is_table(path) {
            return Ok(None);
        }
        let file = File::open(path)?;
        let known = self.data_bytes.lock().unwrap().get(path).copied();
        let data_bytes = match known {
            Some(known) => known,
            None => read_table(path, &AtomicBool::new(false)).map_err(io::Error::other)?.tail_offset,
        };
        self.data_bytes.lock().unwrap().insert(path.to_path_buf(), data_bytes);
        Ok(Some(Arc::new(ReadTable { bytes: file.metadata()?.len(), file, data_bytes, noted: self.noted.clone() })))
    }

    fn size(&self, _path: &Path) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn list(&self, _directory: &Path) -> io::Result<Option<Vec<String>>> {
        Ok(None)
    }
}

#[test]
fn checks_read_no_data() {
    for (mode, separated) in
        [DedupMode::Sample, DedupMode::Filter].into_iter().flat_map(|mode| [(mode, false), (mode, true)])
    {
        let reads = Arc::<Reads>::default();
        // Writers are about to be slowed, always: what is found is costed, and waits.
        let hooks = FileSystemHooks { remote: Some(reads.clone()), ..FileSystemHooks::default() };
        let settings = StoreSettings {
            // Fewer than there are tables: what closed ones tell is read.
            max_open_files: Some(16),
            l0_compaction_trigger: 2,
            l0_slowdown_trigger: 2,
            ..options(separated, eager(mode))
        };
        let (_directory, store, mut model) = loaded_with(settings, |builder| builder.hooks(hooks));
        let begin = Instant::now();
        while store.dedup().unwrap().checks <= 10 {
            assert!(begin.elapsed() < LONG, "{:?}", store.dedup());
            occasion(&store, &mut model, 100);
        }
        let done = store.dedup().unwrap();
        assert!(done.extensions > 0 && done.merges == 0, "{done:?}");
        let reads = reads.noted.lock().unwrap();
        assert!(reads.iter().any(|read| read.data_bytes > 32 * 1024), "nobody has looked: {} reads", reads.len());
        let of_data: Vec<_> = reads.iter().filter(|read| read.is_of_data()).collect();
        assert!(of_data.is_empty(), "{mode:?}, separated: {separated}: of {} reads: {of_data:?}", reads.len());
    }
}

#[test]
fn merges_stop_where_a_snapshot_holds_what_they_should_free() {
    let mut dedup = eager(DedupMode::Sample);
    (dedup.parameters.first_pause, dedup.parameters.longest_pause) = (Seconds(3600.0), Seconds(3600.0));
    let (_directory, store, mut model) = loaded(options(false, dedup));
    let snapshot = store.snapshot();
    let before = model.clone();
    let first = until(&store, &mut model, |done| done.merges > 0);
    let mut snapshots = Vec::new();
    if 2 * first.found_keys >= first.expected_keys {
        // What was there before the snapshot could go.
        for seed in 0..ROUNDS * 10 {
            snapshots.push(store.snapshot());
            occasion(&store, &mut model, 1000 + seed);
        }
    }
    let stopped = settled(&store).unwrap();
    let checks = stopped.checks;
    for seed in 0..20 {
        snapshots.push(store.snapshot());
        occasion(&store, &mut model, 2000 + seed);
    }
    let done = settled(&store).unwrap();
    assert!(done.checks > checks + 5, "{done:?}");
    assert_eq!(done.merges, stopped.merges, "{done:?}");
    assert!(done.merges_deferred["backed-off"] > 0, "{done:?}");
    assert!(2 * done.found_keys < done.expected_keys || stopped.merges > first.merges, "{done:?}");
    for (key, value) in before.iter().step_by(1000) {
        assert_eq!(store.get_at(key, &snapshot).unwrap().as_deref(), Some(&value[..]));
    }
    drop((snapshot, snapshots));
    assert_equals(&store, &model);
}

/// Times that a merge waited for the sake of writers.
fn forbidden(done: &DedupProperties) -> u64 {
    ["slowed", "l0-backlog", "pending-bytes", "would-stall"].map(|reason| done.merges_deferred[reason]).iter().sum()
}

#[test]
fn no_merge_begins_where_writers_would_soon_be_slowed() {
    // Less than two tables from there, always.
    let dedup = eager(DedupMode::Sample);
    let (_directory, store, mut model) =
        loaded(StoreSettings { l0_compaction_trigger: 2, l0_slowdown_trigger: 2, ..options(false, dedup) });
    let done = until(&store, &mut model, |done| forbidden(done) > 0);
    assert!(done.extensions > 0 && done.is_busy, "{done:?}");
    assert_eq!(done.merges, 0, "{done:?}");
    store.close().unwrap();
}

#[test]
fn how_fast_level_zero_fills_is_enough_to_forbid_a_merge() {
    let mut dedup = eager(DedupMode::Sample);
    // Then level 0 is far from any limit, but every merge takes longer than it would last.
    dedup.parameters.stall_margin = 1e9;
    let (_directory, store, mut model) =
        loaded(StoreSettings { l0_slowdown_trigger: 100, l0_stop_trigger: 200, ..options(false, dedup) });
    let done = until(&store, &mut model, |done| done.merges_deferred["would-stall"] > 0);
    assert_eq!(forbidden(&done), done.merges_deferred["would-stall"], "{done:?}");
    store.close().unwrap();
}

#[test]
fn a_store_of_one_compaction_at_a_time_takes_no_threshold() {
    let directory = tempfile::tempdir().unwrap();
    let one = |dedup| StoreSettings { background_compactions: 1, ..options(false, dedup) };
    let refused = Store::open(directory.path(), OpenMode::Create, one(eager(DedupMode::Sample))).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument { field: "background_compactions", .. }), "{refused}");
    Store::open(directory.path(), OpenMode::Create, one(counting(DedupMode::Sample))).unwrap();
}

#[test]
fn the_value_log_learns_of_each_merge_what_it_has_let_go() {
    // Nothing but the merges gives a reason to look at segments.
    let gc = GcParameters { min_garbage_bytes: Bytes(1 << 50), ..GcParameters::default() };
    let separated = StoreSettings { gc, ..options(true, eager(DedupMode::Sample)) };
    let (_directory, store, mut model) = loaded(separated);
    until(&store, &mut model, |done| done.merges > 0);
    settled(&store);
    let begin = Instant::now();
    let (mut known, mut exact) = (0, 1);
    while known != exact {
        assert!(begin.elapsed() < LONG, "{exact} bytes are named, but it is taken for {known}: {:?}", store.dedup());
        known = store.value_log().unwrap().referenced_bytes;
        exact = space(&store).unwrap().referenced_bytes();
        std::thread::yield_now();
    }
    assert_equals(&store, &model);
}

/// A disk on which our thread takes its time, once it merges.
#[derive(Default)]
struct Slow {
    merges: Mutex<bool>,
    changed: Condvar,
    closes: AtomicBool,
    created_since: AtomicU64,
}

impl WriteTap for Slow {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        if let TapEvent::Created { path } = event
            && is_table(path)
            && is_on_thread()
        {
            *self.merges.lock().unwrap() = true;
            self.changed.notify_all();
            if self.closes.load(Ordering::Acquire) {
                self.created_since.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

#[test]
fn closing_waits_for_no_merge() {
    let slow = Arc::<Slow>::default();
    let mut dedup = eager(DedupMode::Sample);
    dedup.parameters.max_merge_bytes = Bytes::from_mib(64);
    let hooks = FileSystemHooks { tap: Some(slow.clone()), ..FileSystemHooks::default() };
    // To close it waits for no device either.
    let settings = StoreSettings { durability: Durability::None, ..options(false, dedup.clone()) };
    let (directory, store, mut model) = loaded_with(settings, |builder| builder.hooks(hooks));
    let tables = store.live_tables().unwrap().len();
    std::thread::scope(|scope| {
        scope.spawn(|| occasion(&store, &mut model, 1));
        let merges = slow.merges.lock().unwrap();
        let (merges, _) = slow.changed.wait_timeout_while(merges, LONG, |merges| !*merges).unwrap();
        assert!(*merges, "{:?}", store.dedup());
    });
    slow.closes.store(true, Ordering::Release);
    store.close().unwrap();
    let created = slow.created_since.load(Ordering::Relaxed);
    assert!(created < 8 && tables > 40, "{created} more tables were written, of some {tables}");
    let path = directory.path().join("store");
    assert!(verify(&path, |_| ()).unwrap().is_sound());
    let store = Store::open(&path, OpenMode::Open, options(false, dedup)).unwrap();
    assert_equals(&store, &model);
}

#[test]
fn merges_and_other_compactions_harm_each_other_in_nothing() {
    for separated in [false, true] {
        let (_directory, store) = common::shared(options(separated, eager(DedupMode::Sample)));
        let mut model = Model::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random::new(3);
                while !done.load(Ordering::Acquire) {
                    let from = random.below(size(separated).0);
                    store.compact(&key(from)[..]..&key(from + 20_000)[..]).unwrap();
                }
            });
            overwrite(&store, &mut model, 1, 2, size(separated));
            done.store(true, Ordering::Release);
        });
        store.flush(true).unwrap();
        let done = settled(&store).unwrap();
        assert_equals(&store, &model);
        assert_eq!(store.counters().failed_compactions, 0);
        assert_eq!((store.properties().unwrap().background_errors, store.write_failure()), (0, None));
        assert!(done.merges + done.merges_aborted > 0, "{done:?}");
    }
}

/// Takes nearly all that is free when the first check begins.
struct Rival {
    disk: Arc<Tmpfs>,
    came: AtomicBool,
}

impl DutyObserver for Rival {
    fn begin(&self, duty: Duty) {
        if duty == Duty::Dedup && !self.came.swap(true, Ordering::Relaxed) {
            self.disk.fill_but(6 << 20);
        }
    }

    fn end(&self) {}
}

#[test]
fn a_merge_that_has_no_room_waits_until_it_has() {
    let Some(disk) = Tmpfs::mount(96 << 20).map(Arc::new) else { return };
    let rival = Arc::new(Rival { disk: disk.clone(), came: AtomicBool::new(false) });
    let mut dedup = eager(DedupMode::Sample);
    dedup.parameters.max_merge_bytes = Bytes::from_mib(64);
    // The first look is at what was there before the store was opened.
    let (store, model) = loaded_at(&disk.store(), options(false, dedup), |builder| builder.duties(rival.clone()));
    let begin = Instant::now();
    while !store.dedup().is_some_and(|done| done.extensions > 0 && done.is_busy && done.merges_deferred["no-space"] > 0)
    {
        assert!(begin.elapsed() < LONG, "{:?}", store.dedup());
        std::thread::yield_now();
    }
    assert!(store.free_space().unwrap().writes_refused);
    let tables = store.live_tables().unwrap();
    for key in model.keys().step_by(100) {
        assert!(store.get(key).unwrap().is_some());
    }
    let done = store.dedup().unwrap();
    assert_eq!((done.merges, done.is_busy), (0, true), "{} tables, {done:?}", tables.len());
    disk.empty();
    while store.dedup().unwrap().merges == 0 {
        assert!(begin.elapsed() < LONG, "{:?}", store.dedup());
        std::thread::yield_now();
    }
    assert_equals(&store, &model);
    assert_eq!(store.counters().failed_compactions, 0);
    assert_eq!((store.properties().unwrap().background_errors, store.write_failure()), (0, None));
}
