//! Coordinators that are absent, slow or busy, owners that lie or vanish, disks that are full, and
//! workers that die with many jobs: what each side promises the other, and itself.

use crate::common;

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::files::{Files, Range};
use common::spoiler::{Act, Behaviour, Spoiler, tempting};
use common::wire::coordinator_client::CoordinatorClient;
use common::wire::job_event::Event;
use common::wire::worker_client::WorkerClient;
use common::wire::{FinishedJob, InputFile, JobEvent, JobOffer, ReportRequest};
use common::{BUSY_HOST_ALLOWANCE, Owner, Storeless, at, one_silence, wait_for, wait_until};
use ecotone_cluster::JobOutcome;
use ecotone_cluster::steps::Step;
use ecotone_types::units::Seconds;

/// How long an owner waits for a coordinator that does not answer.
const PLACEMENT_TIMEOUT: Duration = Duration::from_secs(1);

#[test]
fn without_a_coordinator_all_is_local_until_it_comes() {
    // A port that nobody listens on.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut owner = Owner::start(|options, _| options.join = Some(address.to_string()));
    owner.write_until("local compactions", |owner| owner.ended.because("coordinator-unavailable") >= 2);
    assert_eq!(owner.offloaded(), 0);
    let coordinator = Storeless::start("coordinator", |options| options.listen = address);
    owner.write_until("offloaded jobs", |owner| owner.offloaded() >= 2);
    let gone = Instant::now();
    drop(coordinator);
    let before = owner.ended.count(JobOutcome::Fallback);
    owner.write_until("local compactions again", |owner| owner.ended.count(JobOutcome::Fallback) >= before + 2);
    assert!(owner.longest_wait_since(gone) <= one_silence(), "{:?}", owner.longest_wait_since(gone));
    owner.finish();
}

#[test]
fn a_coordinator_that_does_not_answer_costs_no_more_than_its_time() {
    let held = Arc::new(AtomicBool::new(true));
    let hold = held.clone();
    let coordinator = Storeless::start("coordinator", |options| {
        options.limits.placement_queue = 1;
        options.steps = Some(at(Step::Placing, move || {
            while hold.load(Ordering::SeqCst) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }));
    });
    let address = coordinator.federation.address().to_owned();
    let mut owner = Owner::start(|options, store| {
        options.join = Some(address);
        options.policy.placement_timeout = Seconds(PLACEMENT_TIMEOUT.as_secs_f64());
        // What it must not wait for instead.
        options.limits.heartbeat_timeout = Duration::from_secs(10);
        store.max_subcompactions = 4;
    });
    let began = Instant::now();
    // The first question is taken and held, the second waits in the queue, further ones find it
    // full: all end here.
    owner.write_until("local compactions", |owner| owner.ended.because("coordinator-unavailable") >= 4);
    assert_eq!(owner.offloaded(), 0);
    let waited = owner.longest_wait_since(began);
    assert!(waited <= PLACEMENT_TIMEOUT + BUSY_HOST_ALLOWANCE, "{waited:?}");
    owner.check();
    held.store(false, Ordering::SeqCst);
    owner.write_until("offloaded jobs", |owner| owner.offloaded() >= 1);
    owner.finish();
}

#[test]
fn a_question_that_panics_is_not_open_for_ever() {
    let panics = Arc::new(AtomicBool::new(true));
    let still = panics.clone();
    let mut owner = Owner::start(|options, _| {
        // So many questions may be open.
        options.policy.max_placements_outstanding = 2;
        options.steps = Some(at(Step::Seeking, move || {
            assert!(!still.load(Ordering::SeqCst), "broken by the test");
        }));
    });
    let address = owner.federation.address().to_owned();
    let _worker = Storeless::start("worker", |options| options.join = Some(address));
    owner.write_until("panics", |owner| owner.fallbacks("panicked") >= 4);
    assert_eq!(owner.offloaded(), 0);
    panics.store(false, Ordering::SeqCst);
    owner.write_until("offloaded jobs", |owner| owner.offloaded() >= 2);
    owner.finish();
}

#[test]
fn a_dead_workers_jobs_come_back_a_few_at_a_time() {
    let mut owner = Owner::start(|options, store| {
        options.limits.fallback_slots = 1;
        store.max_subcompactions = 4;
        store.background_compactions = 4;
        store.l0_slowdown_trigger = 1_000;
        store.l0_stop_trigger = 1_000;
    });
    let spoiler = Spoiler::start(owner.federation.address(), None, Behaviour::on_offer(|_| vec![Act::Hang]));
    owner.write(1_000);
    wait_until("the worker to be known", || {
        owner.write(200);
        spoiler.streams() > 0
    });
    wait_until("several jobs away", || {
        owner.write(500);
        spoiler.streams() >= 3
    });
    let slots = owner.store().local_slots().unwrap().clone();
    let dead = Instant::now();
    drop(spoiler);
    let most = AtomicUsize::new(0);
    let federation = owner.federation.clone();
    wait_until("the jobs to fail", || {
        most.fetch_max(slots.used(), Ordering::SeqCst);
        federation.statistics().fallbacks.values().sum::<u64>() >= 3
    });
    wait_until("the last to end", || {
        most.fetch_max(slots.used(), Ordering::SeqCst);
        slots.used() == 0 && slots.waiting() == 0
    });
    assert!(most.load(Ordering::SeqCst) <= 1);
    assert!(owner.longest_wait_since(dead) <= one_silence(), "{:?}", owner.longest_wait_since(dead));
    owner.finish();
}

/// An offer that any worker admits, of an owner at `address`.
fn offer(address: &str, token: u8) -> JobOffer {
    JobOffer {
        protocol_version: ecotone_cluster::PROTOCOL_VERSION,
        owner: "stranger".into(),
        owner_address: address.into(),
        session: "session".into(),
        job: u64::from(token),
        token: vec![token; 32],
        store_directory: "/nowhere/store".into(),
        output_name: format!("job-{token}"),
        input: b"no job at all".to_vec(),
        files: vec![InputFile { name: "CURRENT".into(), bytes: 16, content_hash: Vec::new() }],
        input_bytes: 1 << 20,
        deadline_seconds: 60.0,
        block_bytes: 4096,
        counts_references: false,
        samples_keys: false,
        filter_bits_per_key: 0,
        tells_expiry: false,
        bloom_bits_per_key: 10,
        shard: 0,
        epoch: 0,
        move_plan: Vec::new(),
    }
}

async fn first_event(events: &mut tonic::Streaming<JobEvent>) -> Event {
    events.message().await.unwrap().unwrap().event.unwrap()
}

#[test]
fn a_worker_declines_what_it_cannot_do_and_frees_what_its_owner_leaves() {
    let worker = Storeless::start("worker", |options| options.limits.worker_slots = 2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // An owner that takes connections and never answers.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf_address = deaf.local_addr().unwrap().to_string();
    runtime.block_on(async {
        let address = format!("http://{}", worker.federation.address());
        let mut client = WorkerClient::connect(address).await.unwrap();
        let declined = |event| match event {
            Event::Declined(declined) => declined.reason,
            other => common::unexpected("the offer is to be declined", &other),
        };
        let of_another_version = JobOffer { protocol_version: 99, ..offer(&deaf_address, 1) };
        let mut events = client.run(of_another_version).await.unwrap().into_inner();
        assert_eq!(declined(first_event(&mut events).await), "version-mismatch");
        let file = InputFile { name: "x".into(), bytes: 1, content_hash: Vec::new() };
        let too_many = JobOffer { files: vec![file; 100_000], ..offer(&deaf_address, 1) };
        let mut events = client.run(too_many).await.unwrap().into_inner();
        assert_eq!(declined(first_event(&mut events).await), "no-memory");
        let too_large = JobOffer { input_bytes: u64::MAX, ..offer(&deaf_address, 1) };
        let mut events = client.run(too_large).await.unwrap().into_inner();
        assert_eq!(declined(first_event(&mut events).await), "no-disk");

        let mut first = client.run(offer(&deaf_address, 1)).await.unwrap().into_inner();
        assert!(matches!(first_event(&mut first).await, Event::Admitted(_)));
        let mut again = client.run(offer(&deaf_address, 1)).await.unwrap().into_inner();
        declined(first_event(&mut again).await);
        let mut second = client.run(offer(&deaf_address, 2)).await.unwrap().into_inner();
        assert!(matches!(first_event(&mut second).await, Event::Admitted(_)));
        let mut third = client.run(offer(&deaf_address, 3)).await.unwrap().into_inner();
        assert_eq!(declined(first_event(&mut third).await), "no-free-slot");
        assert_eq!((worker.federation.statistics().running_worker_jobs, worker.worker_folders()), (2, 2));
        // Both owners vanish: their streams and their connections end.
        drop((first, second, client));
    });
    drop(runtime);
    drop(deaf);
    let began = Instant::now();
    wait_until("the slots to be free", || worker.federation.statistics().running_worker_jobs == 0);
    wait_until("the folders to be gone", || worker.worker_folders() == 0);
    assert!(began.elapsed() <= one_silence(), "{:?}", began.elapsed());
}

#[test]
fn a_token_opens_the_files_of_its_job_while_the_job_lives_and_nothing_else() {
    // The job is away for so long: enough to ask a few questions.
    let mut owner = Owner::start(|options, _| options.limits.heartbeat_timeout = Duration::from_secs(8));
    let spoiler = Spoiler::start(owner.federation.address(), None, Behaviour::on_offer(|_| vec![Act::Hang]));
    let address = owner.federation.address().to_owned();
    let mut taken = None;
    owner.write_until("an offer", |_| {
        let Some(offer) = spoiler.offers().pop() else { return false };
        taken = Files::connect(&address, &offer.token).ok().map(|files| (offer, files));
        taken.is_some()
    });
    let (offer, mut files) = taken.unwrap();
    let file = offer.files.iter().find(|file| file.name.ends_with(".sst")).unwrap();
    let range = |name: &str, offset, length| Range { file: name.into(), offset, length };
    assert_eq!(files.read(&range(&file.name, 0, 100)).unwrap().len(), 100);
    assert_eq!(files.read(&range(&file.name, file.bytes - 10, 100)).unwrap().len(), 10);
    assert_eq!(files.read(&range(&file.name, u64::MAX, 100)).unwrap().len(), 0);
    let denied =
        |result: std::io::Result<Vec<u8>>| matches!(result, Err(error) if error.kind() == ErrorKind::PermissionDenied);
    let absolute = owner.path.join(&file.name).to_string_lossy().into_owned();
    for name in
        ["STORE", "LOCK", "999999.sst", "", ".", "..", "../store/CURRENT", "./CURRENT", "/etc/passwd", &absolute]
    {
        assert!(denied(files.read(&range(name, 0, 10))), "{name:?}");
    }
    assert!(denied(files.read(&range(&file.name, 0, u32::MAX))), "a range without bound");
    let mut guessed = offer.token.clone();
    guessed[31] ^= 1;
    for token in [guessed, vec![0; 32]] {
        assert!(denied(Files::connect(&address, &token).map(|_| Vec::new())), "a wrong token");
    }
    let version = Files::connect_as(99, &address, &offer.token).map(|_| ()).unwrap_err();
    assert_eq!(version.kind(), ErrorKind::Unsupported, "a wrong version is no wrong token");
    assert_eq!(version.to_string(), ecotone_cluster::PROTOCOL_VERSION.to_string());
    // When the job is over the token opens nothing more, on old connections and new.
    wait_for("the job to be given up", || (owner.fallbacks("silent") > 0).then_some(()));
    wait_until("the token to be withdrawn", || Files::connect(&address, &offer.token).is_err());
    assert!(files.read(&range(&file.name, 0, 10)).is_err());
    drop(spoiler);
    owner.finish();
}

/// A file system of its own, in memory; unmounted when dropped.
struct Tmpfs<'a>(&'a Path);

impl Tmpfs<'_> {
    /// Only root may mount. Without it: `None`, and what is not tested in the output. Root that
    /// cannot mount is a failure, or nobody would notice that disks are never full.
    fn mount(at: &Path, bytes: u64) -> Option<Tmpfs<'_>> {
        std::fs::create_dir_all(at).unwrap();
        let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
        if !is_root {
            eprintln!("SKIPPED: what a full disk does is not tested, because only root may mount a file system for it");
            return None;
        }
        let size = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "ecotone-test"]).arg(at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Tmpfs(at)),
            why => panic!(
                "no tmpfs can be mounted at {}, so a full disk cannot be tested: {why:?}; \
                 allow mounting (CAP_SYS_ADMIN in a container), or run these tests as another user than root to skip it",
                at.display()
            ),
        }
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_at_the_owner_ends_the_offload_and_not_the_store() {
    let mut owner = Owner::start(|_, _| ());
    let session = owner.path.join("session_tmp");
    let Some(tmpfs) = Tmpfs::mount(&session, 32 << 10) else { return };
    let address = owner.federation.address().to_owned();
    let _worker = Storeless::start("worker", |options| options.join = Some(address));
    owner.write_until("failed fetches", |owner| owner.fallbacks("disk-full") >= 2);
    assert_eq!(owner.offloaded(), 0);
    owner.flush();
    owner.compact();
    owner.check();
    assert_eq!(owner.session_folders(), 0);
    drop(tmpfs);
    owner.write_until("offloaded jobs", |owner| owner.offloaded() >= 1);
    owner.finish();
}

#[test]
fn a_full_disk_at_the_worker_ends_the_job_and_not_the_worker() {
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().join("mount");
    let Some(tmpfs) = Tmpfs::mount(&mount, 64 << 20) else { return };
    let mut owner = Owner::start(|_, _| ());
    let address = owner.federation.address().to_owned();
    // The disk fills up after the job was admitted.
    let filler = mount.join("filler");
    let full = Arc::new(AtomicBool::new(true));
    let (fill, is_full) = (filler.clone(), full.clone());
    let worker = Storeless::start("worker", |options| {
        options.join = Some(address);
        options.worker_directory = mount.join("worker");
        options.steps = Some(at(Step::Admitted, move || {
            if is_full.load(Ordering::SeqCst) {
                // Ends with "no space left", as it shall.
                let _ = std::fs::write(&fill, vec![7; 128 << 20]);
            }
        }));
    });
    owner.write_until("a failed job", |owner| owner.fallbacks("worker-failed") >= 1);
    // Now it can notice that there is no space.
    owner.write_until("a declined job", |owner| owner.fallbacks("declined") >= 1);
    owner.check();
    full.store(false, Ordering::SeqCst);
    std::fs::remove_file(&filler).unwrap();
    owner.write_until("offloaded jobs", |owner| owner.offloaded() >= 1);
    wait_until("the worker's folder to be empty", || common::entries(&mount.join("worker")) == 0);
    owner.finish();
    drop(worker);
    drop(tmpfs);
}

#[test]
fn each_measurement_is_learned_once_whether_or_not_the_coordinator_answers() {
    // It takes connections and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let server = Storeless::start("server", |options| options.join = Some(address));
    // A report is under way, and hangs until its connection is lost.
    let report = silent.accept().unwrap();
    for _ in 0..4 {
        server.federation.load_measured();
    }
    assert_eq!(server.federation.models().rate.samples, 5, "the first was measured at the start");
    drop(report);
    // Further reports say again what was measured last, and measure nothing.
    drop((silent.accept().unwrap(), silent.accept().unwrap()));
    assert_eq!(server.federation.models().rate.samples, 5);
}

#[test]
fn a_finished_job_that_is_reported_again_trains_once() {
    let coordinator = Storeless::start("coordinator", |_| ());
    let address = format!("http://{}", coordinator.federation.address());
    let learned = || {
        let models = coordinator.federation.models().models;
        models.iter().filter(|model| model.server.as_str() == "stranger").map(|model| model.samples).max()
    };
    let job = |number| FinishedJob {
        owner: "stranger".into(),
        worker: "stranger".into(),
        job: number,
        input_bytes: 1 << 20,
        output_bytes: 1 << 20,
        seconds: 1.0,
        joules: 1.0,
        input_level: 0,
        output_level: 1,
        number,
        held_bytes: 0,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = CoordinatorClient::connect(address).await.unwrap();
        for (session, numbers, expected) in [
            (7, vec![1, 2], 2),
            // The reply was lost: two come again, with one that ended since.
            (7, vec![1, 2, 3], 3),
            (7, vec![2], 3),
            // The stranger was started anew and counts from the beginning.
            (8, vec![1], 4),
        ] {
            let finished = numbers.into_iter().map(job).collect();
            let request = ReportRequest { load: Some(tempting("stranger")), finished, session, ..Default::default() };
            client.report(request).await.unwrap();
            assert_eq!(learned(), Some(expected));
        }
    });
}
