//! The worker's side of a job.
//!
//! A job is admitted or declined at once; an admitted one runs on a thread of its own, which carries the worker's duty. Its
//! outputs lie in a folder of their own and are kept until the owner has them, has gone, or [`Limits::output_kept`] has
//! passed since the job ended.
//!
//! # Failure modes
//!
//! - The owner goes away: the stream of events breaks, the job is cancelled, its folder removed.
//! - This process dies: the next start empties the worker's folder.
//! - The disk is full, a range does not come, RocksDB refuses: the owner is told why and compacts locally.

use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::{
    CancelFlag, Collects, TableFormat, WorkerError, WorkerOptions, WorkerRequest, run_remote_compaction,
};
use ecotone_policy::duty::Duty;
use ecotone_policy::machine::DeclineReason;
use ecotone_rocks_sys::filesystem::{TapEvent, WriteTap};
use parking_lot::{Condvar, Mutex};
use rustix::fs::FlockOperation;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::config::Limits;
use crate::disk::free_bytes;
use crate::error::{Error, Result};
use crate::exports::{ExportGuard, Role, Token};
use crate::federation::Shared;
use crate::file_client::{FileClient, Peer};
use crate::outputs::max_output_bytes;
use crate::protocol::PROTOCOL_VERSION;
use crate::protocol::wire::job_event::Event;
use crate::protocol::wire::{Admitted, Declined, Failed, Finished, Heartbeat, JobEvent, JobOffer, OutputReady};
use crate::remote_files::OwnerFiles;
use crate::steps::Step;

/// Events of a job that wait for the network. Heartbeats are dropped when it is full; other events wait.
const EVENTS_WAITING: usize = 64;
/// More than that are of no use; of each table so many for each key are in memory.
const MAX_FILTER_BITS: u8 = 20;
/// Longest deadline that an owner can ask for: an hour.
const DEADLINE_SECONDS_MAX: f64 = 3600.0;
/// Longer than any job.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How often a full channel is tried again.
const FULL_CHANNEL_LOOK: Duration = Duration::from_millis(5);
/// How the names of jobs' folders begin.
const JOB_FOLDER: &str = "job-";
/// How many bytes a job writes between two looks at what is free on the disk.
const DISK_LOOK_BYTES: u64 = 8 << 20;
/// Input files of one job. RocksDB's largest compactions have some hundreds.
const INPUT_FILES_MAX: usize = 4096;
/// Input tables that a compaction reads at a time, for the estimate of its memory: all of L0 and one table of the next level.
const TABLES_READ_AT_A_TIME: u64 = 40;

/// What a stream of job events carries.
pub(crate) type EventSender = mpsc::Sender<std::result::Result<JobEvent, tonic::Status>>;
/// The other end of [`EventSender`].
pub(crate) type EventReceiver = mpsc::Receiver<std::result::Result<JobEvent, tonic::Status>>;

/// All jobs that this server runs or keeps outputs of.
pub(crate) struct WorkerSide {
    directory: PathBuf,
    /// The folder itself, locked while this process lives: another one must not empty it.
    _lock: File,
    /// Threads that run jobs, and who waits for their end.
    threads: Mutex<usize>,
    thread_ended: Condvar,
    jobs: Mutex<HashMap<Token, Arc<Job>>>,
    next_folder: AtomicU64,
}

struct Job {
    folder: PathBuf,
    memory_bytes: u64,
    input_bytes: u64,
    export: ExportGuard,
    cancel: CancelFlag,
    /// Set when the compaction has ended and the outputs only wait for the owner.
    ended: Mutex<Option<Instant>>,
}

impl Job {
    fn max_output_bytes(&self) -> u64 {
        max_output_bytes(self.input_bytes)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!(folder = %self.folder.display(), %error, "a finished job's folder could not be removed");
        }
    }
}

impl WorkerSide {
    /// Takes the folder over and removes what a dead process left there: the folders of jobs, and nothing else.
    pub(crate) fn new(directory: &Path) -> Result<WorkerSide> {
        let io = |error| Error::io("take over the worker's folder", directory, error);
        std::fs::create_dir_all(directory).map_err(io)?;
        let lock = File::open(directory).map_err(io)?;
        if let Err(error) = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            return Err(match error {
                rustix::io::Errno::WOULDBLOCK => Error::Configuration(format!(
                    "{} is in use by another server; give each server a folder of its own (--dir)",
                    directory.display()
                )),
                other => io(other.into()),
            });
        }
        for entry in std::fs::read_dir(directory).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.file_name().to_string_lossy().starts_with(JOB_FOLDER) {
                std::fs::remove_dir_all(entry.path()).map_err(io)?;
            }
        }
        Ok(WorkerSide {
            directory: directory.to_owned(),
            _lock: lock,
            threads: Mutex::new(0),
            thread_ended: Condvar::new(),
            jobs: Mutex::default(),
            next_folder: AtomicU64::new(0),
        })
    }

    fn thread_begins(&self) {
        *self.threads.lock() += 1;
    }

    fn thread_ended(&self) {
        *self.threads.lock() -= 1;
        self.thread_ended.notify_all();
    }

    /// Waits until no thread runs a job, but not beyond `longest`. They were cancelled before.
    pub(crate) fn wait_for_threads(&self, longest: Duration) {
        let until = Instant::now() + longest;
        let mut threads = self.threads.lock();
        while *threads > 0 {
            if self.thread_ended.wait_until(&mut threads, until).timed_out() {
                warn!(threads = *threads, "jobs for other servers are still running while this one ends");
                return;
            }
        }
    }

    /// Forgets a job. Its folder goes when nobody uses it any more.
    fn forget(&self, token: Token) {
        // Dropped after the lock: removing the folder takes time.
        let job = self.jobs.lock().remove(&token);
        drop(job);
    }

    /// Jobs that run now.
    pub(crate) fn running(&self) -> usize {
        self.jobs.lock().values().filter(|job| job.ended.lock().is_none()).count()
    }

    /// The owner has what it wants.
    pub(crate) fn release(&self, token: &[u8]) -> Result<()> {
        let token = Token::from_wire(token)?;
        // Dropped after the lock: removing the folder takes time.
        let job = self.jobs.lock().remove(&token);
        if let Some(job) = job {
            job.cancel.cancel();
        }
        Ok(())
    }

    /// Forgets outputs that no owner came for.
    pub(crate) fn forget_orphans(&self, limits: &Limits) {
        let expired = |job: &Job| job.ended.lock().is_some_and(|at| at.elapsed() > limits.output_kept);
        let orphans: Vec<Arc<Job>> = {
            let mut jobs = self.jobs.lock();
            let tokens: Vec<Token> = jobs.iter().filter(|(_, job)| expired(job)).map(|(token, _)| *token).collect();
            tokens.iter().filter_map(|token| jobs.remove(token)).collect()
        };
        for orphan in orphans {
            info!(folder = %orphan.folder.display(), "no owner came for a finished job's output; it is removed");
        }
    }

    /// Cancels all jobs: the server stops.
    pub(crate) fn cancel_all(&self) {
        for job in self.jobs.lock().values() {
            job.cancel.cancel();
        }
    }

    fn admit(&self, shared: &Shared, offer: &JobOffer) -> Result<(Token, Arc<Job>)> {
        let limits = &shared.options.limits;
        let declined = |reason, detail: String| Err(Error::Declined(reason, detail));
        if offer.protocol_version != PROTOCOL_VERSION {
            return declined(
                DeclineReason::VersionMismatch,
                format!("protocol version {} instead of {PROTOCOL_VERSION}", offer.protocol_version),
            );
        }
        if offer.files.len() > INPUT_FILES_MAX {
            return declined(
                DeclineReason::NoMemory,
                format!("{} input files, at most {INPUT_FILES_MAX}", offer.files.len()),
            );
        }
        let load = shared.local_load();
        if let Some(load) = &load {
            let free = load.free_cores;
            if free < 1.0 {
                return declined(DeclineReason::NoFreeCore, format!("{free:.2} cores are free, a job takes one"));
            }
            // A stalled server's own compactions must never wait for a core.
            if load.stalled && free < 2.0 {
                return declined(
                    DeclineReason::Stalled,
                    format!("its writes are stalled and {free:.2} cores are free"),
                );
            }
        }
        if shared.free_network_bytes_per_s() <= 0.0 {
            return declined(DeclineReason::NoBandwidth, "its network is busy".into());
        }
        let memory_bytes = 3 * limits.chunk_bytes as u64 * TABLES_READ_AT_A_TIME.min(offer.files.len() as u64);
        let free = free_bytes(&self.directory)
            .map_err(|error| Error::io("ask for the free space of", &self.directory, error))?;

        let token = Token::from_wire(&offer.token)?;
        let mut jobs = self.jobs.lock();
        // What running jobs have written already is counted twice, on the safe side.
        let promised = jobs.values().filter(|job| job.ended.lock().is_none()).map(|job| job.max_output_bytes());
        let needed = promised.fold(max_output_bytes(offer.input_bytes), u64::saturating_add);
        let needed = needed.saturating_add(limits.worker_disk_reserve_bytes);
        if free < needed {
            let detail = format!("{free} bytes are free on the disk, this job and those that run may need {needed}");
            return declined(DeclineReason::NoDisk, detail);
        }
        let running = jobs.values().filter(|job| job.ended.lock().is_none());
        let (count, memory) = running.fold((0, 0), |(count, memory), job| (count + 1, memory + job.memory_bytes));
        if count >= limits.worker_slots {
            return declined(DeclineReason::NoFreeSlot, format!("all {} worker slots are taken", limits.worker_slots));
        }
        if memory + memory_bytes > limits.worker_memory_bytes {
            return declined(DeclineReason::NoMemory, format!("{memory_bytes} bytes of memory are not free"));
        }
        if jobs.contains_key(&token) {
            return declined(DeclineReason::NoFreeSlot, "a job with this token is here already".into());
        }
        let folder = self.directory.join(format!("{JOB_FOLDER}{}", self.next_folder.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&folder).map_err(|error| Error::io("create a job's folder", &folder, error))?;
        let job = Arc::new(Job {
            folder,
            memory_bytes,
            input_bytes: offer.input_bytes,
            export: shared.exports.begin(token, Role::Outputs),
            cancel: CancelFlag::new(),
            ended: Mutex::new(None),
        });
        jobs.insert(token, job.clone());
        Ok((token, job))
    }
}

/// Admits or declines an offer and begins the job. Events follow on the returned stream.
pub(crate) fn accept(shared: &Arc<Shared>, offer: JobOffer) -> EventReceiver {
    let (sender, receiver) = mpsc::channel(EVENTS_WAITING);
    shared.step(Step::Offered);
    match shared.worker.admit(shared, &offer) {
        Err(error) => {
            debug!(owner = offer.owner, job = offer.job, %error, "declined");
            let (reason, detail) = match error {
                Error::Declined(reason, detail) => (reason, detail),
                other => (DeclineReason::NoDisk, other.to_string()),
            };
            shared.statistics.count_declined(reason.name());
            // The channel is new and has room.
            let _ = sender.try_send(event(Event::Declined(Declined { reason: reason.name().to_owned(), detail })));
        }
        Ok((token, job)) => {
            let _ = sender.try_send(event(Event::Admitted(Admitted {})));
            shared.step(Step::Admitted);
            begin(shared.clone(), offer, token, job, sender);
        }
    }
    receiver
}

fn event(event: Event) -> std::result::Result<JobEvent, tonic::Status> {
    Ok(JobEvent { event: Some(event) })
}

/// Tells the owner something that must not be dropped, and waits for room; not for an owner that is gone.
fn tell(sender: &EventSender, cancel: &CancelFlag, what: Event) {
    let mut message = event(what);
    while let Err(mpsc::error::TrySendError::Full(back)) = sender.try_send(message) {
        if cancel.is_canceled() {
            return;
        }
        message = back;
        std::thread::sleep(FULL_CHANNEL_LOOK);
    }
}

/// Starts the job's thread and the task that keeps its owner informed.
fn begin(shared: Arc<Shared>, offer: JobOffer, token: Token, job: Arc<Job>, sender: EventSender) {
    shared.worker.thread_begins();
    let bytes_read = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(tokio::sync::Notify::new());
    shared.runtime.spawn(keep_informed(
        shared.clone(),
        token,
        job.clone(),
        sender.clone(),
        bytes_read.clone(),
        ended.clone(),
        Instant::now() + Duration::from_secs_f64(offer.deadline_seconds.clamp(0.0, DEADLINE_SECONDS_MAX)),
    ));
    let thread = JobThread { shared: shared.clone(), token, job: job.clone(), sender: sender.clone(), ended };
    let run = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _duty = shared.duty(Duty::Worker);
            run(&shared, &offer, &thread.job, &thread.sender, &bytes_read)
        }));
        thread.end(outcome.unwrap_or_else(|_| Err(Error::Worker("it panicked".into()))), &offer);
    };
    // Without a thread everything that it was given is dropped, and with it the job.
    if let Err(error) = std::thread::Builder::new().name("ecotone-worker".into()).spawn(run) {
        warn!(%error, "no thread for a job; it is dropped and its owner compacts locally");
        job.cancel.cancel();
        tell(&sender, &job.cancel, Event::Failed(Failed { reason: format!("no thread: {error}") }));
    }
}

/// What the end of a job's thread has to see to. Dropped without an end, it takes the job for ended all the same.
struct JobThread {
    shared: Arc<Shared>,
    token: Token,
    job: Arc<Job>,
    sender: EventSender,
    ended: Arc<tokio::sync::Notify>,
}

impl JobThread {
    fn end(self, outcome: Result<Finished>, offer: &JobOffer) {
        *self.job.ended.lock() = Some(Instant::now());
        let last = match outcome {
            Ok(finished) => {
                self.shared.statistics.count_taken();
                self.shared.step(Step::Compacted);
                Event::Finished(finished)
            }
            Err(error) => {
                debug!(owner = offer.owner, job = offer.job, %error, "a job for another server failed");
                self.shared.worker.forget(self.token);
                match error {
                    Error::Declined(reason, detail) => {
                        self.shared.statistics.count_declined(reason.name());
                        Event::Declined(Declined { reason: reason.name().to_owned(), detail })
                    }
                    other => Event::Failed(Failed { reason: other.to_string() }),
                }
            }
        };
        // An owner that is gone needs no answer.
        tell(&self.sender, &self.job.cancel, last);
    }
}

impl Drop for JobThread {
    fn drop(&mut self) {
        if self.job.ended.lock().replace(Instant::now()).is_none() {
            self.shared.worker.forget(self.token);
        }
        self.ended.notify_one();
        self.shared.worker.thread_ended();
    }
}

/// Sends signs of life and cancels the job when its owner has gone.
async fn keep_informed(
    shared: Arc<Shared>,
    token: Token,
    job: Arc<Job>,
    sender: EventSender,
    bytes_read: Arc<AtomicU64>,
    ended: Arc<tokio::sync::Notify>,
    deadline: Instant,
) {
    let mut deadline = deadline;
    let mut beat = tokio::time::interval(shared.options.limits.heartbeat_interval);
    loop {
        tokio::select! {
            () = ended.notified() => {
                // The owner lets go of the stream when it has what it wants, or has given up.
                let _ = tokio::time::timeout(shared.options.limits.output_kept, sender.closed()).await;
                shared.worker.forget(token);
                return;
            }
            () = tokio::time::sleep_until(deadline.into()) => {
                // Its owner has given it up by now, or should have.
                job.cancel.cancel();
                deadline += FOREVER;
            }
            () = sender.closed() => {
                // Before the end, only a failed or cancelled owner hangs up.
                if job.ended.lock().is_none() {
                    job.cancel.cancel();
                    shared.worker.forget(token);
                    debug!(folder = %job.folder.display(), "the owner hung up; its job is cancelled");
                }
                return;
            }
            _ = beat.tick() => {
                let heartbeat = Heartbeat { input_bytes_read: bytes_read.load(Ordering::Relaxed) };
                let _ = sender.try_send(event(Event::Heartbeat(heartbeat)));
            }
        }
    }
}

fn run(
    shared: &Arc<Shared>,
    offer: &JobOffer,
    job: &Arc<Job>,
    sender: &EventSender,
    bytes_read: &Arc<AtomicU64>,
) -> Result<Finished> {
    let began = Instant::now();
    let before = shared.thread_use();
    let client = FileClient::connect(
        &shared.runtime,
        Peer { name: format!("owner {}", offer.owner), address: &offer.owner_address },
        Token::from_wire(&offer.token)?,
        &shared.options.limits,
        shared.traffic.clone(),
        bytes_read.clone(),
    )?;
    let store_directory = PathBuf::from(&offer.store_directory);
    let files =
        OwnerFiles::new(store_directory.clone(), &offer.files, client.clone(), shared.options.limits.chunk_bytes);
    let format = TableFormat {
        block_bytes: offer.block_bytes,
        bloom_bits_per_key: offer.bloom_bits_per_key,
        collects: Collects {
            references: offer.counts_references,
            samples: offer.samples_keys || offer.counts_references,
            filter_bits_per_key: u8::try_from(offer.filter_bits_per_key)
                .map_or(MAX_FILTER_BITS, |bits| bits.min(MAX_FILTER_BITS)),
            expiry: offer.tells_expiry,
        },
    };
    let result = run_remote_compaction(WorkerRequest {
        store_directory,
        output_name: offer.output_name.clone(),
        output_directory: job.folder.clone(),
        input: &offer.input,
        files: Arc::new(files),
        tap: Some(Arc::new(OutputTap {
            job: job.clone(),
            sender: sender.clone(),
            shared: shared.clone(),
            written: AtomicU64::new(0),
        })),
        cancel: job.cancel.clone(),
        options: WorkerOptions::new(format),
    })
    .map_err(|error| match error {
        WorkerError::Declined(detail) => Error::Declined(DeclineReason::StaleInput, detail),
        WorkerError::Canceled => Error::Cancelled,
        other => Error::Worker(other.to_string()),
    })?;
    let used = shared.thread_use().since(before);
    Ok(Finished {
        result_crc32c: crc32c::crc32c(&result),
        result,
        compaction_seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: used.cpu_seconds,
        joules: used.joules,
        input_bytes_read: client.bytes_received(),
    })
}

/// Lets the owner fetch each output table as soon as it is complete, and stops a job that writes far more than it reads.
struct OutputTap {
    job: Arc<Job>,
    sender: EventSender,
    shared: Arc<Shared>,
    written: AtomicU64,
}

impl OutputTap {
    fn complete(&self, path: &Path, bytes: u64) -> Result<()> {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
        self.job.export.add(name, &self.job.folder.join(name))?;
        self.shared.step(Step::OutputReady);
        // An owner that is gone is seen by the task that keeps it informed.
        tell(&self.sender, &self.job.cancel, Event::OutputReady(OutputReady { file: name.to_owned(), bytes }));
        Ok(())
    }
}

impl WriteTap for OutputTap {
    fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
        match event {
            TapEvent::Closed { path, len } if path.extension().is_some_and(|end| end == "sst") => {
                self.complete(path, len).map_err(std::io::Error::other)
            }
            TapEvent::Appended { bytes, .. } => {
                let before = self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                let written = before + bytes.len() as u64;
                if written > self.job.max_output_bytes() {
                    return Err(std::io::Error::other("the job's output is larger than twice its input"));
                }
                // This server's own store may lie on the same disk.
                let reserve = self.shared.options.limits.worker_disk_reserve_bytes;
                if before / DISK_LOOK_BYTES != written / DISK_LOOK_BYTES && free_bytes(&self.job.folder)? < reserve {
                    return Err(std::io::ErrorKind::StorageFull.into());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folders_of_jobs_are_emptied_and_only_by_one_process() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("worker");
        std::fs::create_dir_all(directory.join("job-7")).unwrap();
        std::fs::create_dir_all(directory.join("photos")).unwrap();
        std::fs::write(directory.join("job-7/000001.sst"), "left behind").unwrap();
        std::fs::write(directory.join("photos/cat"), "not ours").unwrap();
        let first = WorkerSide::new(&directory).unwrap();
        assert!(!directory.join("job-7").exists());
        assert!(directory.join("photos/cat").exists());
        let second = WorkerSide::new(&directory).map(|_| ()).unwrap_err();
        assert!(matches!(second, Error::Configuration(_)), "{second}");
        drop(first);
        WorkerSide::new(&directory).map(|_| ()).unwrap();
    }
}
