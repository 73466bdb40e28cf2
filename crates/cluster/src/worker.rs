//! The worker's side of a job.
//!
//! A job is admitted or declined at once; an admitted one runs on a thread of its own, which
//! carries the worker's duty. Its outputs lie in a folder of their own and are kept until the owner
//! has them, has gone, or `output_kept` has passed since the job ended.
//!
//! Of a shard that has a copy here, the input tables that the copy holds are read where they are:
//! those whose content is what the owner names. The rest is fetched.
//!
//! # Failure modes
//!
//! - The owner goes away: the stream of events breaks, the job is cancelled, its folder removed.
//! - This process dies: the next start empties the worker's folder.
//! - A table of the copy is damaged: RocksDB finds it by the checksum of a block. The job begins anew
//!   with the owner's tables, unless the owner has some of its outputs already; then it fails. The
//!   copy's tables are not used again until they were compared.
//! - The disk is full, a range does not come, RocksDB refuses: the owner gets the reason and
//!   compacts locally.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::{
    CancelFlag, Collects, Mover, TableFormat, WorkerError, WorkerOptions, WorkerRequest, run_remote_compaction,
};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_policy::machine::DeclineReason;
use ecotone_transport::exports::Token;
use ecotone_transport::file_client::{FileClient, Peer};
use ecotone_transport::remote_files::OwnerFiles;
use ecotone_transport::wire::job_event::Event;
use ecotone_transport::wire::{Admitted, Declined, Failed, Finished, Heartbeat, JobEvent, JobOffer, OutputReady};
use ecotone_types::{Duty, ServerId};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::copies::{NamedTable, TableContent, number_of};
use crate::error::{Error, Result};
use crate::member::Member;
use crate::steps::Step;
use crate::worker_jobs::{Capacity, WorkerJob, free_bytes};

/// Events of a job that wait for the network. Heartbeats are dropped when it is full; other events
/// wait.
const EVENTS_WAITING: usize = 64;
/// More than that are of no use; of each table so many for each key are in memory.
const MAX_FILTER_BITS: u8 = 20;
/// Longest deadline that an owner can ask for: an hour.
const MAX_DEADLINE_SECONDS: f64 = 3600.0;
/// Longer than any job.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How often a full channel is tried again.
const FULL_CHANNEL_RETRY: Duration = Duration::from_millis(5);
/// How many bytes a job writes between two checks of the free space on the disk.
const DISK_CHECK_BYTES: u64 = 8 << 20;

/// What a stream of job events carries.
pub(crate) type EventSender = mpsc::Sender<std::result::Result<JobEvent, tonic::Status>>;
/// The other end of [`EventSender`].
pub(crate) type EventReceiver = mpsc::Receiver<std::result::Result<JobEvent, tonic::Status>>;

/// Admits or declines an offer and begins the job. Events follow on the returned stream.
pub(crate) fn accept(member: &Arc<Member>, offer: JobOffer) -> EventReceiver {
    let (sender, receiver) = mpsc::channel(EVENTS_WAITING);
    member.step(Step::Offered);
    let capacity = Capacity {
        limits: &member.options.limits,
        load: member.local_load(),
        free_network_bytes_per_s: member.free_network_bytes_per_s(),
    };
    match member.worker.admit(&offer, capacity, &member.exports) {
        Err(error) => {
            debug!(owner = offer.owner, job = offer.job, %error, "declined");
            let (reason, detail) = match error {
                Error::Declined(reason, detail) => (reason, detail),
                other => (DeclineReason::NoDisk, other.to_string()),
            };
            member.statistics.count_declined(reason.name());
            // The channel is new and has capacity.
            let _ = sender.try_send(event(Event::Declined(Declined { reason: reason.name().to_owned(), detail })));
        }
        Ok((token, job)) => {
            let _ = sender.try_send(event(Event::Admitted(Admitted {})));
            member.step(Step::Admitted);
            begin(member.clone(), offer, token, job, sender);
        }
    }
    receiver
}

fn event(event: Event) -> std::result::Result<JobEvent, tonic::Status> {
    Ok(JobEvent { event: Some(event) })
}

/// Sends the owner an event that must not be dropped, and waits for capacity; not for an owner that
/// is gone.
fn send(sender: &EventSender, cancel: &CancelFlag, what: Event) {
    let mut message = event(what);
    while let Err(mpsc::error::TrySendError::Full(back)) = sender.try_send(message) {
        if cancel.is_canceled() {
            return;
        }
        message = back;
        std::thread::sleep(FULL_CHANNEL_RETRY);
    }
}

/// Starts the job's thread and the task that keeps its owner informed.
fn begin(member: Arc<Member>, offer: JobOffer, token: Token, job: Arc<WorkerJob>, sender: EventSender) {
    member.worker.thread_begins();
    let bytes_read = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(tokio::sync::Notify::new());
    member.runtime.spawn(keep_informed(
        member.clone(),
        token,
        job.clone(),
        sender.clone(),
        bytes_read.clone(),
        ended.clone(),
        Instant::now() + Duration::from_secs_f64(offer.deadline_seconds.clamp(0.0, MAX_DEADLINE_SECONDS)),
    ));
    let thread = JobThread { member: member.clone(), token, job: job.clone(), sender: sender.clone(), ended };
    let run = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _duty = member.duty(Duty::Worker);
            run(&member, &offer, &thread.job, &thread.sender, &bytes_read)
        }));
        thread.end(outcome.unwrap_or_else(|_| Err(Error::Worker("it panicked".into()))), &offer);
    };
    // Without a thread everything that it was given is dropped, and with it the job.
    if let Err(error) = std::thread::Builder::new().name("ecotone-worker".into()).spawn(run) {
        warn!(%error, "no thread for a job; it is dropped and its owner compacts locally");
        job.cancel.cancel();
        send(&sender, &job.cancel, Event::Failed(Failed { reason: format!("no thread: {error}") }));
    }
}

/// What the end of a job's thread has to see to. Dropped without an end, it takes the job for ended
/// all the same.
struct JobThread {
    member: Arc<Member>,
    token: Token,
    job: Arc<WorkerJob>,
    sender: EventSender,
    ended: Arc<tokio::sync::Notify>,
}

impl JobThread {
    fn end(self, outcome: Result<Finished>, offer: &JobOffer) {
        *self.job.ended.lock() = Some(Instant::now());
        let last = match outcome {
            Ok(finished) => {
                self.member.statistics.count_taken();
                self.member.step(Step::Compacted);
                Event::Finished(finished)
            }
            Err(error) => {
                debug!(owner = offer.owner, job = offer.job, %error, "a job for another server failed");
                self.member.worker.forget(self.token);
                match error {
                    Error::Declined(reason, detail) => {
                        self.member.statistics.count_declined(reason.name());
                        Event::Declined(Declined { reason: reason.name().to_owned(), detail })
                    }
                    other => Event::Failed(Failed { reason: other.to_string() }),
                }
            }
        };
        // An owner that is gone needs no answer.
        send(&self.sender, &self.job.cancel, last);
    }
}

impl Drop for JobThread {
    fn drop(&mut self) {
        if self.job.ended.lock().replace(Instant::now()).is_none() {
            self.member.worker.forget(self.token);
        }
        self.ended.notify_one();
        self.member.worker.thread_ended();
    }
}

/// Sends signs of life and cancels the job when its owner has gone.
async fn keep_informed(
    member: Arc<Member>,
    token: Token,
    job: Arc<WorkerJob>,
    sender: EventSender,
    bytes_read: Arc<AtomicU64>,
    ended: Arc<tokio::sync::Notify>,
    deadline: Instant,
) {
    let mut deadline = deadline;
    let mut beat = tokio::time::interval(member.options.limits.heartbeat_interval);
    loop {
        tokio::select! {
            () = ended.notified() => {
                // The owner lets go of the stream when it has what it wants, or has given up.
                let _ = tokio::time::timeout(member.options.limits.output_kept, sender.closed()).await;
                member.worker.forget(token);
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
                    member.worker.forget(token);
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
    member: &Arc<Member>,
    offer: &JobOffer,
    job: &Arc<WorkerJob>,
    sender: &EventSender,
    bytes_read: &Arc<AtomicU64>,
) -> Result<Finished> {
    check_epoch(member, offer)?;
    let began = Instant::now();
    let before = member.thread_use();
    let owner = ServerId::new(&offer.owner).map_err(|error| Error::Worker(error.to_string()))?;
    let client = FileClient::connect(
        (&member.runtime, &member.security),
        Peer { name: format!("owner {owner}"), address: &offer.owner_address, server: &owner },
        Token::from_wire(&offer.token)?,
        &member.options.limits.timeouts(),
        member.traffic.clone(),
        bytes_read.clone(),
    )?;
    let format = table_format(offer);
    let mover =
        if offer.move_plan.is_empty() { None } else { Some(Mover::new(&offer.move_plan).map_err(Error::Worker)?) };
    let mut held = Held::find(member, offer, job);
    let tap = Arc::new(OutputTap {
        job: job.clone(),
        sender: sender.clone(),
        member: member.clone(),
        written: AtomicU64::new(0),
        announced: AtomicU64::new(0),
    });
    let store_directory = PathBuf::from(&offer.store_directory);
    let chunk_bytes = member.options.limits.chunk_bytes;
    let result = loop {
        let files = OwnerFiles::new(store_directory.clone(), &offer.files, client.clone(), chunk_bytes);
        let outcome = run_remote_compaction(WorkerRequest {
            store_directory: store_directory.clone(),
            output_name: offer.output_name.clone(),
            output_directory: job.folder.clone(),
            input: &offer.input,
            files: Arc::new(files.with_files_here(held.paths.clone())),
            tap: Some(tap.clone()),
            mover: mover.clone(),
            cancel: job.cancel.clone(),
            options: WorkerOptions::new(format),
        });
        match outcome {
            Ok(result) => break result,
            // Who reads its own files cannot blame the owner's. What the owner has fetched cannot be
            // taken back.
            Err(WorkerError::Corrupt(detail)) if !held.paths.is_empty() => {
                warn!(owner = offer.owner, job = offer.job, detail, "a table of this server's copy is damaged");
                held.distrust(member, offer);
                held = Held::default();
                if tap.announced.load(Ordering::Relaxed) > 0 {
                    return Err(Error::Worker(detail));
                }
                empty(&job.folder)?;
                tap.written.store(0, Ordering::Relaxed);
                mover.iter().for_each(|mover| mover.reset());
            }
            Err(WorkerError::Declined(detail)) => return Err(Error::Declined(DeclineReason::StaleInput, detail)),
            Err(WorkerError::Canceled) => return Err(Error::Cancelled),
            Err(other) => return Err(Error::Worker(other.to_string())),
        }
    };
    check_epoch(member, offer)?;
    keep_outputs(member, offer, &job.folder);
    let used = member.thread_use().since(before);
    Ok(Finished {
        result_crc32c: crc32c::crc32c(&result),
        result,
        compaction_seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: used.cpu_seconds,
        joules: used.joules,
        input_bytes_read: client.bytes_received(),
        held_bytes: held.bytes,
        moves: mover.map_or_else(Vec::new, |mover| mover.moved()),
    })
}

fn table_format(offer: &JobOffer) -> TableFormat {
    TableFormat {
        block_bytes: offer.block_bytes,
        bloom_bits_per_key: offer.bloom_bits_per_key,
        collects: Collects {
            references: offer.counts_references,
            samples: offer.samples_keys || offer.counts_references,
            filter_bits_per_key: u8::try_from(offer.filter_bits_per_key)
                .map_or(MAX_FILTER_BITS, |bits| bits.min(MAX_FILTER_BITS)),
            expiry: offer.tells_expiry,
        },
    }
}

/// A job of an epoch that has ended, as far as the copy here knows, is for nobody.
fn check_epoch(member: &Member, offer: &JobOffer) -> Result<()> {
    let epoch = member.held_copies().filter(|_| offer.shard > 0).and_then(|copies| copies.epoch_of(offer.shard));
    if epoch.is_some_and(|epoch| epoch > offer.epoch) {
        let detail = format!("shard {} is beyond epoch {} of the job", offer.shard, offer.epoch);
        return Err(Error::Declined(DeclineReason::StaleInput, detail));
    }
    Ok(())
}

/// The input tables of a job that this server's copy of the shard holds.
#[derive(Default)]
struct Held {
    /// By name: links of the job's own, so nothing that becomes of the copy takes them away.
    paths: HashMap<String, PathBuf>,
    contents: Vec<TableContent>,
    bytes: u64,
}

impl Held {
    fn find(member: &Member, offer: &JobOffer, job: &WorkerJob) -> Held {
        let Some(copies) = member.held_copies().filter(|_| offer.shard > 0) else { return Held::default() };
        let named = offer.files.iter().filter_map(|file| {
            // So that no name leads out of the folder.
            number_of(&file.name)?;
            let content = TableContent::from_wire(file.bytes, &file.content_hash)?;
            Some((file.name.clone(), NamedTable { content, link: job.held_folder.join(&file.name) }))
        });
        let (names, tables): (Vec<String>, Vec<NamedTable>) = named.unzip();
        if tables.is_empty() {
            return Held::default();
        }
        if let Err(error) = std::fs::create_dir(&job.held_folder) {
            debug!(folder = %job.held_folder.display(), %error, "no folder for links: all input is fetched");
            return Held::default();
        }
        let mut held = Held::default();
        for ((name, table), is_held) in names.into_iter().zip(&tables).zip(copies.link(offer.shard, &tables)) {
            // Whatever the copy has compared: RocksDB would look for the end of a table where the owner's is.
            let is_whole = || std::fs::metadata(&table.link).is_ok_and(|file| file.len() == table.content.bytes);
            if is_held && is_whole() {
                held.bytes += table.content.bytes;
                held.contents.push(table.content);
                held.paths.insert(name, table.link.clone());
            }
        }
        held
    }

    /// One of them, at least, cannot be read: the job goes on with the owner's, and so does the next.
    fn distrust(&self, member: &Member, offer: &JobOffer) {
        if let Some(copies) = member.held_copies() {
            self.contents.iter().for_each(|content| copies.distrust(offer.shard, *content));
        }
    }
}

/// Removes what a job has written that nobody was told of.
fn empty(folder: &Path) -> Result<()> {
    let failed = |error| Error::io("empty a job's folder", folder, error);
    std::fs::remove_dir_all(folder).and_then(|()| std::fs::create_dir(folder)).map_err(failed)
}

/// Offers the tables that a job has made to the copy here: it wants them soon, if the owner takes
/// them.
fn keep_outputs(member: &Member, offer: &JobOffer, folder: &Path) {
    let Some(copies) = member.held_copies().filter(|_| offer.shard > 0) else { return };
    let Ok(made) = std::fs::read_dir(folder) else { return };
    let tables = made.flatten().map(|entry| entry.path());
    for table in tables.filter(|path| path.extension().is_some_and(|end| end == "sst")) {
        copies.keep(offer.shard, &table);
    }
}

/// Lets the owner fetch each output table as soon as it is complete, and stops a job that writes
/// far more than it reads.
struct OutputTap {
    job: Arc<WorkerJob>,
    sender: EventSender,
    member: Arc<Member>,
    written: AtomicU64,
    /// Tables that the owner was told of.
    announced: AtomicU64,
}

impl OutputTap {
    fn complete(&self, path: &Path, bytes: u64) -> Result<()> {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
        self.job.export.add(name, &self.job.folder.join(name))?;
        self.member.step(Step::OutputReady);
        self.announced.fetch_add(1, Ordering::Relaxed);
        // An owner that is gone is noticed by the task that keeps it informed.
        send(&self.sender, &self.job.cancel, Event::OutputReady(OutputReady { file: name.to_owned(), bytes }));
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
                let reserve = self.member.options.limits.worker_disk_reserve_bytes;
                if before / DISK_CHECK_BYTES != written / DISK_CHECK_BYTES && free_bytes(&self.job.folder)? < reserve {
                    return Err(std::io::ErrorKind::StorageFull.into());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
