//! Compactions that run elsewhere, and every way in which that can go wrong: the store keeps its
//! data and goes on.

use crate::common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::offloads::{InProcess, edit};
use common::{Model, assert_equals, fill, value_of};
use ecotone_engine::{
    CompactionOffload, LocalSlots, OpenMode, RemoteJob, RemoteOutcome, Separation, Store, StoreBuilder, StoreSettings,
    VerifyError, WorkerError, verify_outputs,
};
use ecotone_rocks::properties::{EntryKind, TableCollector, TableCollectorFactory, TableContext, add_table_collector};
use ecotone_rocks::verify::VerifyError as TableError;
use rust_rocksdb::compaction_service::open_and_compact_with_options;
use rust_rocksdb::{CompactionServiceOptionsOverride, OpenAndCompactOptions};

fn offloading() -> StoreSettings {
    StoreSettings { l0_compaction_trigger: 2, background_compactions: 4, ..common::small() }
}

/// Fills a store that offloads to `offload`, compacts all of it, and checks it against the model,
/// also after a reopen without any offload; with values beside their keys, and apart.
fn exercise(offload: Arc<dyn CompactionOffload>, change: impl Fn(&mut StoreSettings)) {
    exercise_with(change, |builder| builder.offload(offload.clone()));
}

fn exercise_with(change: impl Fn(&mut StoreSettings), with: impl Fn(StoreBuilder) -> StoreBuilder) {
    for separation in [None, Some(Separation::from_bytes(50))] {
        let mut settings = StoreSettings { separation, ..offloading() };
        change(&mut settings);
        exercise_one(settings, &with);
    }
}

fn exercise_one(settings: StoreSettings, with: impl Fn(StoreBuilder) -> StoreBuilder) {
    let (directory, store) = common::store_with(settings, with);
    let mut model = Model::new();
    for round in 0..2 {
        fill(&store, &mut model, round, 6_000, 2_000);
        store.delete_range(&b"key00000100"[..]..&b"key00000200"[..]).unwrap();
        model.retain(|key, _| !(&b"key00000100"[..]..&b"key00000200"[..]).contains(&key.as_slice()));
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        assert_equals(&store, &model);
    }
    // Writes still go through: no failure of an offload is a failure of the store.
    fill(&store, &mut model, 77, 500, 2_000);
    assert_equals(&store, &model);
    store.close().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path, OpenMode::Open, common::small()).unwrap();
    assert_equals(&store, &model);
    let leftovers = fs::read_dir(path.join("session_tmp")).unwrap().count();
    assert_eq!(leftovers, 0, "outputs left from the earlier session are removed at open");
}

#[test]
fn a_worker_gives_the_same_data() {
    let worker = tempfile::tempdir().unwrap();
    let offload = Arc::new(InProcess::new(worker.path()));
    exercise(offload.clone(), |_| ());
    assert!(offload.installed.load(Ordering::Relaxed) > 0);
    assert_eq!(*offload.worker_errors.lock().unwrap(), []);
    assert!(offload.refused.lock().unwrap().is_empty(), "{:?}", offload.refused);
    assert_eq!(offload.local_finished.load(Ordering::Relaxed), 0);
    assert!(offload.canceled.load(Ordering::Relaxed), "closing the store ends offloads");
    assert_eq!(fs::read_dir(worker.path()).unwrap().count(), 0, "a worker writes nothing but outputs");
}

/// Bytes that workers read and wrote while so many values of 1000 bytes were written twice, in any
/// order, and compacted.
fn moved_bytes(separation: Option<Separation>) -> u64 {
    let worker = tempfile::tempdir().unwrap();
    let written = Arc::<AtomicU64>::default();
    let sum = written.clone();
    let offload = Arc::new(InProcess::spoiled(worker.path(), move |_, outputs, _| {
        let tables = fs::read_dir(outputs).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        sum.fetch_add(tables.sum(), Ordering::Relaxed);
    }));
    let settings = StoreSettings { separation, memtable_bytes: 1 << 20, ..offloading() };
    let (_directory, store) = common::store_with(settings, |builder| builder.offload(offload.clone()));
    let mut model = Model::new();
    for round in 0..2 {
        for number in 0..6_000_u64 {
            let key = format!("key{:08}", number * 7919 % 6_000).into_bytes();
            let value = value_of(&key, number + round, 1000);
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        store.flush(true).unwrap();
        store.compact(..).unwrap();
    }
    assert_equals(&store, &model);
    store.close().unwrap();
    assert_eq!(*offload.worker_errors.lock().unwrap(), []);
    assert!(offload.refused.lock().unwrap().is_empty() && offload.installed.load(Ordering::Relaxed) > 0);
    let read: u64 = offload.seen.lock().unwrap().iter().map(|job| job.input_bytes).sum();
    read + written.load(Ordering::Relaxed)
}

#[test]
fn with_values_separated_a_worker_moves_less_than_a_tenth_of_the_bytes() {
    let (beside, apart) = (moved_bytes(None), moved_bytes(Some(Separation::from_bytes(256))));
    println!("beside their keys {beside} bytes, apart {apart}");
    assert!(apart * 10 < beside, "{apart} bytes instead of {beside}");
}

#[test]
fn the_parts_of_one_compaction_go_to_workers_each() {
    let worker = tempfile::tempdir().unwrap();
    let offload = Arc::new(InProcess::new(worker.path()));
    exercise(offload.clone(), |options| options.max_subcompactions = 4);
    assert!(offload.refused.lock().unwrap().is_empty(), "{:?}", offload.refused);
    let seen = offload.seen.lock().unwrap();
    let parts: Vec<&RemoteJob> = seen.iter().filter(|job| job.is_subcompaction()).collect();
    assert!(parts.len() >= 2, "no compaction was split");
    assert!(parts.iter().any(|job| job.estimated_bytes < job.input_bytes), "a part is expected to read its share only");
}

#[test]
fn a_job_says_what_it_will_read() {
    let worker = tempfile::tempdir().unwrap();
    let offload = Arc::new(InProcess::new(worker.path()));
    // First RocksDB begins compactions itself, then nearly only the test does.
    exercise(offload.clone(), |_| ());
    exercise(offload.clone(), |options| options.l0_compaction_trigger = 19);
    let seen = offload.seen.lock().unwrap();
    let ids: std::collections::HashSet<_> = seen.iter().map(|job| job.id).collect();
    assert_eq!(ids.len(), seen.len(), "no id is given twice");
    for job in seen.iter() {
        assert!(!job.input_files.is_empty());
        assert_eq!(job.input_bytes, job.input_files.iter().map(|table| table.bytes).sum::<u64>());
        assert!(job.input_files.iter().all(|table| table.bytes > 0 && table.level.is_some()), "{:?}", job.input_files);
        assert!(job.input_records.is_some_and(|records| records > 0));
        assert!(job.key_bounds.as_ref().is_some_and(|(least, greatest)| least < greatest));
        assert!(!job.db_session_id.is_empty());
        assert!(job.output_level >= job.input_level);
        let in_level_0 = job.input_files.iter().filter(|table| table.level == Some(0)).count();
        assert!(job.l0_tables.is_some_and(|tables| tables as usize >= in_level_0), "the inputs are there still");
    }
    assert!(seen.iter().any(|job| job.is_manual) && seen.iter().any(|job| !job.is_manual));
    // The worker read what names the tables and few tables besides its inputs; never the WAL.
    for opened in offload.opened.lock().unwrap().iter() {
        for name in opened.keys() {
            let known = name == "CURRENT" || name == "IDENTITY" || name.ends_with(".sst");
            assert!(known || name.starts_with("MANIFEST-") || name.starts_with("OPTIONS-"), "a worker opened {name}");
        }
    }
}

/// An offload that does one thing with every job.
struct Always<F>(F, AtomicU64);

impl<F: Fn(&RemoteJob) -> RemoteOutcome + Send + Sync> CompactionOffload for Always<F> {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        self.1.fetch_add(1, Ordering::Relaxed);
        (self.0)(&job)
    }
    fn cancel_all(&self) {}
}

fn always(run: impl Fn(&RemoteJob) -> RemoteOutcome + Send + Sync + 'static) -> Arc<dyn CompactionOffload> {
    Arc::new(Always(run, AtomicU64::new(0)))
}

#[test]
fn a_decision_for_local_stays_local() {
    exercise(always(|_| RemoteOutcome::Local), |_| ());
}

#[test]
fn a_failed_offload_falls_back() {
    exercise(always(|_| RemoteOutcome::Fallback), |_| ());
}

#[test]
fn the_owner_may_be_named_by_a_path_that_climbs() {
    let (worker, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(directory.path().join("sibling")).unwrap();
    let offload = Arc::new(InProcess::new(worker.path()));
    let path = directory.path().join("sibling/../store");
    let builder = Store::builder(&path).mode(OpenMode::Create).settings(offloading());
    let store = builder.offload(offload.clone()).open().unwrap();
    let mut model = Model::new();
    fill(&store, &mut model, 1, 4_000, 2_000);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    assert_equals(&store, &model);
    assert!(offload.installed.load(Ordering::Relaxed) > 0);
    assert_eq!(*offload.worker_errors.lock().unwrap(), []);
}

#[test]
fn a_panic_falls_back() {
    common::hide_panics("is too much");
    exercise(always(|job| panic!("job {} is too much", job.id)), |options| options.max_subcompactions = 3);
}

#[test]
fn a_worker_that_cannot_read_its_input_falls_back() {
    let worker = tempfile::tempdir().unwrap();
    let directory = worker.path().to_path_buf();
    let offload = always(move |job| {
        let gone = RemoteJob { store_directory: directory.join("nothing here"), ..job.clone() };
        let offload = InProcess::new(&directory);
        let outcome = offload.run(gone);
        assert!(matches!(offload.worker_errors.lock().unwrap()[..], [WorkerError::Failed(_)]));
        fs::remove_dir_all(directory.join(job.output_name())).unwrap();
        outcome
    });
    exercise(offload, |_| ());
}

/// Spoils every result of a worker; every one must be refused, and the store must go on with its
/// own compaction.
fn refused(spoil: impl Fn(&RemoteJob, &Path, &mut Vec<u8>) + Send + Sync + 'static) -> Vec<VerifyError> {
    let worker = tempfile::tempdir().unwrap();
    let offload = Arc::new(InProcess::spoiled(worker.path(), spoil));
    exercise(offload.clone(), |_| ());
    assert!(offload.jobs.load(Ordering::Relaxed) > 0);
    assert_eq!(offload.installed.load(Ordering::Relaxed), 0, "a spoiled result was installed");
    assert!(offload.local_finished.load(Ordering::Relaxed) > 0);
    std::mem::take(&mut offload.refused.lock().unwrap())
}

fn tables(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut tables: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "sst"))
        .collect();
    tables.sort();
    tables
}

#[test]
fn a_flipped_bit_is_refused_wherever_it_is() {
    let place = AtomicUsize::new(0);
    let errors = refused(move |_, directory, _| {
        let table = tables(directory).pop().unwrap();
        let mut bytes = fs::read(&table).unwrap();
        let step = place.fetch_add(1, Ordering::Relaxed);
        let at = (step * 7919) % bytes.len();
        bytes[at] ^= 1 << (step % 8);
        fs::write(&table, bytes).unwrap();
    });
    assert!(errors.iter().all(|error| matches!(error, VerifyError::Table(_))), "{errors:?}");
}

#[test]
fn a_cut_table_is_refused() {
    let errors = refused(|_, directory, _| {
        let table = tables(directory).remove(0);
        let bytes = fs::metadata(&table).unwrap().len();
        fs::OpenOptions::new().write(true).open(&table).unwrap().set_len(bytes / 2).unwrap();
    });
    assert!(errors.iter().all(|error| matches!(error, VerifyError::Table(_))), "{errors:?}");
}

#[test]
fn a_missing_table_is_refused() {
    let errors = refused(|_, directory, _| fs::remove_file(tables(directory).remove(0)).unwrap());
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, VerifyError::Table(TableError::Io { .. } | TableError::NotATable { .. }))),
        "{errors:?}"
    );
}

#[test]
fn a_table_of_another_job_is_refused() {
    let errors = refused(|job, directory, _| {
        // A sound table with entries in the same range: an input of the job.
        let foreign = job.store_directory.join(&job.input_files[0].name);
        fs::copy(foreign, tables(directory).remove(0)).unwrap();
    });
    assert!(errors.iter().all(|error| matches!(error, VerifyError::Table(_))), "{errors:?}");
}

#[test]
fn tables_in_each_others_place_are_refused() {
    let swapped = Arc::new(AtomicUsize::new(0));
    let count = swapped.clone();
    let errors = refused(move |_, directory, result| {
        let tables = tables(directory);
        let [first, .., last] = &tables[..] else {
            // One table has no place to be swapped with: spoil the result in another way.
            result.clear();
            return;
        };
        let aside = directory.join("aside");
        fs::rename(first, &aside).unwrap();
        fs::rename(last, first).unwrap();
        fs::rename(&aside, last).unwrap();
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(swapped.load(Ordering::Relaxed) > 0, "no job had two outputs");
    assert!(
        errors.iter().all(|error| matches!(error, VerifyError::Table(_) | VerifyError::Malformed(_))),
        "{errors:?}"
    );
}

#[test]
fn garbage_instead_of_a_result_is_refused() {
    let step = AtomicUsize::new(0);
    let errors = refused(move |_, _, result| match step.fetch_add(1, Ordering::Relaxed) % 3 {
        0 => result.clear(),
        1 => result.truncate(result.len() / 2),
        _ => *result = b"no result at all".to_vec(),
    });
    assert!(!errors.is_empty());
}

#[test]
fn lost_and_added_records_are_refused() {
    // The job's counts begin the result; RocksDB's internal ones, which it compares, stand further
    // on.
    for (section, field, change) in [
        ("stats={", "num_input_records", -1),
        ("stats={", "num_output_records", -1),
        ("output_level_stats={", "num_output_records", 1),
        ("output_level_stats={", "num_input_records", 1),
        ("proximal_level_stats={", "num_output_records", 1),
    ] {
        let errors = refused(move |_, _, result| {
            edit(result, section, field, |number| number.checked_add_signed(change).unwrap());
        });
        assert!(errors.iter().all(|error| matches!(error, VerifyError::Counts(_))), "{section} {field}: {errors:?}");
    }
}

/// One part alone cannot be checked for records it did not read; all parts of a compaction together
/// can. RocksDB would stop the store for it.
#[test]
fn records_that_one_part_lost_are_found_in_the_sum_of_all() {
    let worker = tempfile::tempdir().unwrap();
    let spoiled = Arc::new(AtomicUsize::new(0));
    let count = spoiled.clone();
    let offload = Arc::new(InProcess::spoiled(worker.path(), move |job, _, result| {
        if job.is_subcompaction() && job.request.begin.is_none() {
            edit(result, "stats={", "num_input_records", |number| number - 1);
            count.fetch_add(1, Ordering::Relaxed);
        }
    }));
    // Enough in L0 and below it that a compaction is worth splitting.
    exercise(offload.clone(), |options| {
        options.max_subcompactions = 4;
        options.l0_compaction_trigger = 8;
    });
    let spoiled = spoiled.load(Ordering::Relaxed) as u64;
    assert!(spoiled > 0, "no compaction was split");
    assert!(offload.refused.lock().unwrap().is_empty(), "{:?}", offload.refused);
    assert!(offload.not_taken.load(Ordering::Relaxed) >= spoiled, "each spoiled part ran here in the end");
    assert!(offload.local_finished.load(Ordering::Relaxed) >= spoiled);
    assert!(offload.installed.load(Ordering::Relaxed) > 0, "compactions of one part were still taken");
}

#[test]
fn a_result_for_another_level_is_refused() {
    let errors = refused(|_, _, result| edit(result, "", "output_level", |level| level + 1));
    assert!(errors.iter().all(|error| matches!(error, VerifyError::Foreign(_))), "{errors:?}");
}

/// A worker that leaves in its tables what it likes of the properties by which the owner knows what
/// they name. It writes where the owner would put what it has fetched.
struct Forging {
    collectors: Option<Arc<dyn TableCollectorFactory>>,
    refused: Mutex<Vec<VerifyError>>,
}

impl CompactionOffload for Forging {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        let mut options = rust_rocksdb::Options::default();
        let mut table = rust_rocksdb::BlockBasedOptions::default();
        table.set_block_size(job.table_format.block_bytes as usize);
        options.set_block_based_table_factory(&table);
        options.set_file_checksum_gen_factory(&rust_rocksdb::FileChecksumGenFactory::crc32c());
        if let Some(collectors) = &self.collectors {
            add_table_collector(&mut options, collectors.clone());
        }
        let mut overrides = CompactionServiceOptionsOverride::from_options(&options);
        overrides.set_option("use_session_tmp_dir_for_remote_compaction", "true").unwrap();
        let directory = job.output_directory();
        fs::create_dir_all(&directory).unwrap();
        let run = OpenAndCompactOptions::default();
        let result =
            open_and_compact_with_options(&run, &job.store_directory, job.output_name(), &job.input, &overrides);
        let outcome = verify_outputs(&job, &result.unwrap());
        fs::remove_dir_all(&directory).unwrap();
        self.refused.lock().unwrap().push(outcome.unwrap_err());
        RemoteOutcome::Fallback
    }

    fn cancel_all(&self) {}
}

/// Says the same of every table: that it names nothing, or one byte.
struct Says(&'static [u8]);

impl TableCollectorFactory for Says {
    fn collector(&self, _context: TableContext) -> Option<Box<dyn TableCollector>> {
        Some(Box::new(Self(self.0)))
    }
}

impl TableCollector for Says {
    fn add(&mut self, _key: &[u8], _value: &[u8], _kind: EntryKind, _sequence: u64, _file_bytes: u64) {}

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        vec![("ecotone.values".into(), self.0.to_vec()), ("ecotone.samples".into(), Vec::new())]
    }
}

/// Segments are removed by what tables say that they name.
#[test]
fn tables_that_do_not_say_what_they_name_are_refused() {
    let one_byte = &[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    for (says, refused_for) in [(None, "ecotone.values"), (Some(&[][..]), "ecotone.values"), (Some(one_byte), "amount")]
    {
        let collectors = says.map(|says| Arc::new(Says(says)) as Arc<dyn TableCollectorFactory>);
        let forging = Arc::new(Forging { collectors, refused: Mutex::default() });
        exercise(forging.clone(), |options| options.separation = Some(Separation::from_bytes(50)));
        let refused = forging.refused.lock().unwrap();
        assert!(!refused.is_empty());
        assert!(refused.iter().all(|error| error.to_string().contains(refused_for)), "{refused:?}");
    }
}

#[test]
fn every_part_whose_offload_failed_runs_here_and_leaves_no_slot_behind() {
    #[derive(Default)]
    struct Failing {
        asked: AtomicUsize,
        finished: AtomicUsize,
    }
    impl CompactionOffload for Failing {
        fn run(&self, _job: RemoteJob) -> RemoteOutcome {
            self.asked.fetch_add(1, Ordering::Relaxed);
            RemoteOutcome::Fallback
        }
        fn cancel_all(&self) {}
        fn local_finished(&self, _job: u64) {
            self.finished.fetch_add(1, Ordering::Relaxed);
        }
    }
    let slots = LocalSlots::new(1);
    let failing = Arc::new(Failing::default());
    let with = |builder: StoreBuilder| builder.offload(failing.clone()).local_slots(slots.clone());
    exercise_with(|settings| settings.max_subcompactions = 4, with);
    let finished = failing.finished.load(Ordering::Relaxed);
    assert!(finished > 0);
    assert_eq!(finished, failing.asked.load(Ordering::Relaxed));
    assert_eq!((slots.used(), slots.waiting()), (0, 0), "every slot was given back");
}

#[test]
fn closing_ends_a_job_that_waits_for_its_worker() {
    struct Hanging {
        began: std::sync::mpsc::Sender<()>,
        canceled: (std::sync::Mutex<bool>, std::sync::Condvar),
    }
    impl CompactionOffload for Hanging {
        fn run(&self, _job: RemoteJob) -> RemoteOutcome {
            self.began.send(()).unwrap();
            let canceled = self.canceled.0.lock().unwrap();
            drop(self.canceled.1.wait_while(canceled, |canceled| !*canceled).unwrap());
            RemoteOutcome::Fallback
        }
        fn cancel_all(&self) {
            *self.canceled.0.lock().unwrap() = true;
            self.canceled.1.notify_all();
        }
    }
    let (began, recorded) = std::sync::mpsc::channel();
    let hanging = Arc::new(Hanging { began, canceled: Default::default() });
    let slots = LocalSlots::new(1);
    // The only slot is taken: the job must not wait for it once the store closes.
    let taken = slots.acquire(|| false);
    let with = |builder: StoreBuilder| builder.offload(hanging).local_slots(slots.clone());
    let (directory, store) = common::store_with(offloading(), with);
    let mut model = Model::new();
    fill(&store, &mut model, 1, 3_000, 1_000);
    store.flush(true).unwrap();
    recorded.recv().unwrap();
    store.close().unwrap();
    drop(taken);
    let store = Store::open(&directory.path().join("store"), OpenMode::Open, common::small()).unwrap();
    assert_equals(&store, &model);
}
