//! Jobs where a copy is: what the worker's copy holds is not sent, and whatever is wrong with the
//! copy, the result is right. Copies are folders that hold what the owner's does.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::common;

use common::{Owner, Storeless, at, wait_until};
use ecotone_cluster::copies::{HeldCopies, NamedTable, PrimaryCopy, TableContent};
use ecotone_cluster::steps::Step;
use ecotone_cluster::{JobEnded, JobOutcome};
use ecotone_engine::{Separation, StoreSettings};
use ecotone_policy::gc::GcParameters;
use ecotone_policy::policy::PolicyName;
use ecotone_types::ServerId;
use ecotone_types::units::Bytes;

const SHARD: u32 = 3;
const EPOCH: u64 = 7;
/// What the metadata of one job may add: CURRENT, MANIFEST, OPTIONS and IDENTITY.
const METADATA_BYTES: u64 = 128 << 10;

/// Both sides compute it alike; that is all that jobs need of it.
fn content_of(path: &Path) -> Option<TableContent> {
    let bytes = std::fs::read(path).ok()?;
    let (front, back) = bytes.split_at(bytes.len() / 2);
    let hash = u128::from(crc32c::crc32c(front)) << 64 | u128::from(crc32c::crc32c(back));
    Some(TableContent { bytes: bytes.len() as u64, hash })
}

/// The owner's store as the primary of a shard.
struct Primary {
    store: PathBuf,
    holders: Vec<ServerId>,
    is_primary: AtomicBool,
}

impl Primary {
    fn held_by(holders: &[&str]) -> impl Fn(&Path) -> Arc<Primary> {
        let holders: Vec<_> = holders.iter().map(|name| ServerId::new(*name).unwrap()).collect();
        move |store| {
            Arc::new(Primary { store: store.to_owned(), holders: holders.clone(), is_primary: AtomicBool::new(true) })
        }
    }
}

impl PrimaryCopy for Primary {
    fn shard(&self) -> u32 {
        SHARD
    }

    fn epoch(&self) -> u64 {
        EPOCH
    }

    fn is_primary(&self) -> bool {
        self.is_primary.load(Ordering::SeqCst)
    }

    fn content_of(&self, table: u64) -> Option<(TableContent, Duration)> {
        Some((content_of(&self.store.join(format!("{table:06}.sst")))?, Duration::from_secs(60)))
    }

    fn holders(&self) -> Vec<ServerId> {
        self.holders.clone()
    }
}

/// What is wrong with the tables of a copy.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Those with odd numbers are not there yet.
    OddMissing,
    /// They are damaged in their middle, and nobody has noticed.
    Damaged,
    /// They are cut, and nobody has noticed.
    Cut,
    /// There is no copy.
    Gone,
}

/// A copy of what the owner's folder holds.
struct Copy {
    store: PathBuf,
    fault: Mutex<Fault>,
    epoch: AtomicU64,
    linked: AtomicUsize,
    distrusted: AtomicUsize,
    kept: Mutex<Vec<TableContent>>,
}

impl Copy {
    fn of(owner: &Owner, fault: Fault) -> Arc<Copy> {
        Arc::new(Copy {
            store: owner.path.clone(),
            fault: Mutex::new(fault),
            epoch: AtomicU64::new(EPOCH),
            linked: AtomicUsize::default(),
            distrusted: AtomicUsize::default(),
            kept: Mutex::default(),
        })
    }

    fn link_one(&self, table: &NamedTable) -> bool {
        let name = table.link.file_name().unwrap();
        let from = self.store.join(name);
        // As a copy knows it: by what it compared when the table came.
        if content_of(&from) != Some(table.content) {
            return false;
        }
        let number: u64 = Path::new(name).file_stem().unwrap().to_str().unwrap().parse().unwrap();
        match *self.fault.lock().unwrap() {
            Fault::Gone => return false,
            Fault::OddMissing if number % 2 == 1 => return false,
            Fault::None | Fault::OddMissing => std::fs::hard_link(from, &table.link).unwrap(),
            fault @ (Fault::Damaged | Fault::Cut) => {
                let mut bytes = std::fs::read(from).unwrap();
                let middle = bytes.len() / 2;
                if fault == Fault::Cut {
                    bytes.truncate(middle);
                } else {
                    bytes[middle / 2..middle].iter_mut().for_each(|byte| *byte ^= 0x55);
                }
                std::fs::write(&table.link, bytes).unwrap();
            }
        }
        self.linked.fetch_add(1, Ordering::SeqCst);
        true
    }
}

impl HeldCopies for Copy {
    fn epoch_of(&self, shard: u32) -> Option<u64> {
        (shard == SHARD).then(|| self.epoch.load(Ordering::SeqCst))
    }

    fn link(&self, shard: u32, tables: &[NamedTable]) -> Vec<bool> {
        assert_eq!(shard, SHARD);
        tables.iter().map(|table| self.link_one(table)).collect()
    }

    fn distrust(&self, shard: u32, _: TableContent) {
        assert_eq!(shard, SHARD);
        self.distrusted.fetch_add(1, Ordering::SeqCst);
        *self.fault.lock().unwrap() = Fault::Gone;
    }

    fn keep(&self, shard: u32, table: &Path) {
        assert_eq!(shard, SHARD);
        self.kept.lock().unwrap().push(content_of(table).unwrap());
    }
}

/// A store with jobs of some ten tables of 1 MiB: much longer than their metadata.
fn owner(holders: &[&str]) -> Owner {
    let primary = Primary::held_by(holders);
    Owner::start_as_primary(
        move |path| primary(path),
        |_, store| {
            store.memtable_bytes = 1 << 20;
            store.target_file_bytes = 1 << 20;
            store.level_base_bytes = 4 << 20;
            store.l0_compaction_trigger = 4;
            store.compression = ecotone_engine::Compression::None;
        },
    )
}

/// Offloads some jobs of `owner`, and waits until nothing is under way.
fn run_jobs(owner: &mut Owner, worker: &Storeless, jobs: usize) -> Vec<JobEnded> {
    let store = owner.store().clone();
    let mut number = owner.model.len() as u64;
    while owner.ended.count(JobOutcome::Offloaded) < jobs {
        let key = format!("key{:08}", number.wrapping_mul(7_919) % 20_000).into_bytes();
        let value = common::value_of(&key, number, 1_000);
        store.put(&key, &value).unwrap();
        owner.model.insert(key, value);
        number += 1;
        assert!(number < 400_000, "{:?}", owner.federation.statistics());
    }
    drop(store);
    wait_until("all jobs to end", || {
        let at_worker = worker.federation.statistics();
        at_worker.running_worker_jobs == 0
            && at_worker.taken as usize == owner.ended.count(JobOutcome::Offloaded)
            && owner.federation.statistics().held_bytes == sum(&owner.ended.of(JobOutcome::Offloaded), held)
    });
    owner.ended.of(JobOutcome::Offloaded)
}

fn sum(jobs: &[JobEnded], of: impl Fn(&JobEnded) -> u64) -> u64 {
    jobs.iter().map(of).sum()
}

fn held(job: &JobEnded) -> u64 {
    job.report.held_bytes.0
}

fn input(job: &JobEnded) -> u64 {
    job.report.input_bytes.0
}

fn worker_of(owner: &Owner, name: &str) -> Storeless {
    let address = owner.federation.address().to_owned();
    Storeless::start(name, |options| options.join = Some(address))
}

#[test]
fn where_the_worker_has_a_copy_no_input_is_sent() {
    let mut owner = owner(&["worker"]);
    let worker = worker_of(&owner, "worker");
    let copy = Copy::of(&owner, Fault::None);
    worker.federation.set_held_copies(copy.clone());
    let jobs = run_jobs(&mut owner, &worker, 5);
    assert_eq!(owner.federation.statistics().fallbacks, Default::default());
    let (inputs, to_worker) = (sum(&jobs, input), worker.federation.statistics().network_bytes_received);
    println!("{} jobs: {inputs} bytes of input, {to_worker} sent to the worker", jobs.len());
    assert!(jobs.iter().all(|job| held(job) == input(job)), "{jobs:?}");
    assert!(to_worker <= METADATA_BYTES * jobs.len() as u64 && inputs > 4 * to_worker, "{to_worker} of {inputs}");
    // The copy was offered what the worker made, and the owner has just that.
    let kept = copy.kept.lock().unwrap().clone();
    let live: Vec<_> = owner.store().live_tables().unwrap();
    let mut made = live.iter().filter_map(|table| content_of(&table.directory.join(&table.name)));
    assert!(made.any(|content| kept.contains(&content)), "none of {} tables", kept.len());
    assert_eq!(copy.distrusted.load(Ordering::SeqCst), 0);

    // Beside jobs of the same server without a copy.
    *copy.fault.lock().unwrap() = Fault::Gone;
    let with = jobs.len();
    let jobs = run_jobs(&mut owner, &worker, 2 * with);
    let sent = worker.federation.statistics().network_bytes_received - to_worker;
    assert!(sent >= sum(&jobs[with..], input), "{sent}");
    for (what, jobs) in [("with", &jobs[..with]), ("without", &jobs[with..])] {
        let mib = sum(jobs, input) as f64 / f64::from(1 << 20);
        let on_the_wire = sum(jobs, input) - sum(jobs, held);
        let seconds: f64 = jobs.iter().map(|job| job.report.seconds.0).sum();
        let joules: f64 = jobs.iter().map(|job| job.report.joules.0).sum();
        println!(
            "{what} a copy: {} jobs, {mib:.1} MiB of input, {on_the_wire} bytes of it on the wire, {:.2} ms and {:.2} mJ for each MiB",
            jobs.len(),
            seconds * 1e3 / mib,
            joules * 1e3 / mib,
        );
    }
    wait_until("the worker's folder to be empty", || worker.worker_folders() == 0);
    owner.finish();
}

#[test]
fn what_the_copy_lacks_is_fetched_and_all_of_it_where_there_is_none() {
    let mut owner = owner(&["worker"]);
    let worker = worker_of(&owner, "worker");
    let copy = Copy::of(&owner, Fault::OddMissing);
    worker.federation.set_held_copies(copy.clone());
    let jobs = run_jobs(&mut owner, &worker, 4);
    let (inputs, all_held) = (sum(&jobs, input), sum(&jobs, held));
    let to_worker = worker.federation.statistics().network_bytes_received;
    assert!(0 < all_held && all_held < inputs, "{all_held} of {inputs}");
    let allowed = (inputs - all_held) * 103 / 100 + METADATA_BYTES * jobs.len() as u64;
    assert!(inputs - all_held <= to_worker && to_worker <= allowed, "{to_worker}, {all_held} of {inputs} are held");

    *copy.fault.lock().unwrap() = Fault::Gone;
    let before = jobs.len();
    let jobs = run_jobs(&mut owner, &worker, before + 2);
    assert_eq!(sum(&jobs[before..], held), 0);
    assert_eq!(owner.federation.statistics().fallbacks, Default::default());
    owner.finish();
}

#[test]
fn a_copy_that_is_damaged_is_not_believed_twice_and_the_result_is_right() {
    for fault in [Fault::Damaged, Fault::Cut] {
        let mut owner = owner(&["worker"]);
        let worker = worker_of(&owner, "worker");
        let copy = Copy::of(&owner, fault);
        worker.federation.set_held_copies(copy.clone());
        let jobs = run_jobs(&mut owner, &worker, 3);
        assert_eq!(sum(&jobs, held), 0, "what could not be read was fetched");
        assert!(copy.linked.load(Ordering::SeqCst) > 0);
        // A table of another length is fetched without a word; in a damaged one a block is.
        let is_found = copy.distrusted.load(Ordering::SeqCst) > 0;
        assert_eq!(is_found, fault == Fault::Damaged);
        assert_eq!(owner.fallbacks("bad-result"), 0);
        owner.check();
        owner.finish();
    }
}

#[test]
fn a_result_of_an_epoch_that_has_ended_is_not_taken() {
    // All outputs are there, and are about to be taken.
    let primary: Arc<OnceLock<Arc<Primary>>> = Arc::default();
    let (of_step, of_owner) = (primary.clone(), primary.clone());
    let new = Primary::held_by(&["worker"]);
    let mut owner = Owner::start_as_primary(
        move |path| of_owner.get_or_init(|| new(path)).clone(),
        move |options, _| {
            options.steps = Some(at(Step::Verifying, move || {
                of_step.get().unwrap().is_primary.store(false, Ordering::SeqCst);
            }));
        },
    );
    let worker = worker_of(&owner, "worker");
    worker.federation.set_held_copies(Copy::of(&owner, Fault::None));
    owner.write_until("a job whose epoch ends", |owner| owner.fallbacks("epoch-ended") > 0);
    assert_eq!(owner.offloaded(), 0, "its result was taken");
    // Nor does another one begin.
    let taken = worker.federation.statistics().taken;
    let before = owner.fallbacks("epoch-ended");
    owner.write_until("more jobs", |owner| owner.fallbacks("epoch-ended") > before);
    assert_eq!((owner.offloaded(), worker.federation.statistics().taken), (0, taken));
    owner.check();
    owner.finish();
}

#[test]
fn a_worker_that_knows_of_a_later_epoch_does_not_work_for_an_earlier_one() {
    let mut owner = owner(&["worker"]);
    let worker = worker_of(&owner, "worker");
    let copy = Copy::of(&owner, Fault::None);
    copy.epoch.store(EPOCH + 1, Ordering::SeqCst);
    worker.federation.set_held_copies(copy.clone());
    let declined =
        |worker: &Storeless| worker.federation.statistics().declined.get("stale-input").copied().unwrap_or(0);
    owner.write_until("a job to be declined", |_| declined(&worker) > 0);
    assert_eq!((owner.offloaded(), copy.linked.load(Ordering::SeqCst)), (0, 0));
    // It may know less than the owner.
    copy.epoch.store(EPOCH - 1, Ordering::SeqCst);
    owner.write_until("a job to be taken", |owner| owner.offloaded() > 0);
    owner.finish();
}

#[test]
fn of_equal_workers_the_one_with_a_copy_is_given_the_jobs() {
    // By name the other one would come first.
    let mut owner = owner(&["with-a-copy"]);
    let (near, far) = (worker_of(&owner, "with-a-copy"), worker_of(&owner, "another"));
    near.federation.set_held_copies(Copy::of(&owner, Fault::None));
    let taken = |worker: &Storeless| worker.federation.statistics().taken;
    wait_until("both to report", || owner.federation.servers().len() == 3);
    // The first: later ones go elsewhere too, while that worker is at work or was slow.
    owner.write_until("a job", |_| taken(&near) + taken(&far) > 0);
    assert!(taken(&near) >= 1.max(taken(&far)), "{} elsewhere, {} where the copy is", taken(&far), taken(&near));
    owner.finish();
}

/// An owner that collects garbage early, by compactions that nobody else makes, and sends them
/// where a copy is.
fn collecting_owner() -> Owner {
    let primary = Primary::held_by(&["worker"]);
    Owner::start_as_primary(
        move |path| primary(path),
        |options, store| {
            options.policy.policy = PolicyName::EdgePilot;
            *store = StoreSettings {
                separation: Some(Separation { min_bytes: 50, segment_bytes: 64 * 1024 }),
                gc: GcParameters {
                    begin_ratio: 1.02,
                    end_ratio: 1.01,
                    forced_ratio: 1.05,
                    // Nothing ever presses for it, so that it may go.
                    urgent_ratio: 100.0,
                    throttle_ratio: 100.0,
                    max_throttle_ratio: 101.0,
                    ample_free_share: 1e-6,
                    min_garbage_bytes: Bytes(64 * 1024),
                    ..GcParameters::default()
                },
                ..std::mem::take(store)
            };
        },
    )
}

/// Garbage collections that ended so: nothing else stays in a level below the first.
fn collections(owner: &Owner, outcome: JobOutcome) -> usize {
    let is_gc = |job: &&JobEnded| job.report.input_level > 0 && job.report.input_level == job.report.output_level;
    owner.ended.of(outcome).iter().filter(is_gc).count()
}

/// Writes, and then lets the store rest for as long as a pass waits for compactions that run anyway:
/// while writers wait none goes.
fn collect_until(owner: &mut Owner, what: &str, enough: impl Fn(&Owner) -> bool) {
    owner.write(8_000);
    owner.write_until(what, |owner| {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(12) {
            if enough(owner) {
                return true;
            }
            std::thread::yield_now();
        }
        false
    });
}

/// The worker has tables and no values; the owner copies these, and the reads are the model's.
#[test]
fn garbage_collections_go_where_a_copy_is() {
    let mut owner = collecting_owner();
    let worker = worker_of(&owner, "worker");
    worker.federation.set_held_copies(Copy::of(&owner, Fault::None));
    collect_until(&mut owner, "garbage collections", |owner| collections(owner, JobOutcome::Offloaded) >= 3);
    for kind in ["bad-result", "not-installed", "worker-failed"] {
        assert_eq!(owner.fallbacks(kind), 0, "{kind}");
    }
    assert!(owner.store().value_log().unwrap().relocated_bytes > 0);
    owner.check();
    owner.finish();
}

#[test]
fn garbage_collections_of_a_worker_that_goes_are_made_at_home() {
    let mut owner = collecting_owner();
    let worker = worker_of(&owner, "worker");
    worker.federation.set_held_copies(Copy::of(&owner, Fault::None));
    collect_until(&mut owner, "a garbage collection", |owner| collections(owner, JobOutcome::Offloaded) > 0);
    let goes = std::thread::spawn(move || drop(worker));
    let at_home = |owner: &Owner| collections(owner, JobOutcome::Fallback) + collections(owner, JobOutcome::Local);
    let done = at_home(&owner);
    collect_until(&mut owner, "garbage collections at home", |owner| at_home(owner) >= done + 2);
    goes.join().unwrap();
    owner.check();
    owner.finish();
}
