//! The owner's side of a job: from RocksDB's question to verified, durable tables.
//!
//! [`OwnerSide::run`] is called on the compaction's own thread and blocks it until there is a
//! result or the compaction is to run here. Output tables are fetched and checked while the worker
//! goes on (`outputs`); what RocksDB would check only after success was reported is checked before
//! ([`ecotone_engine::verify_received_outputs`]).
//!
//! # Failure modes
//!
//! Whatever happens, the answer is a result that holds or "run it here". Waits are bounded: for the
//! coordinator by the policy's `placement_timeout`, for a sign of life by `heartbeat_timeout`, for
//! a range by `read_timeout`, for the job by its deadline. Local runs after a failure queue for
//! `fallback_slots`.
//!
//! A job of a shard with copies belongs to the epoch in which its store was opened: once this server
//! is not its primary any more, nothing of what a worker made is taken.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::{
    CompactionFinished, CompactionOffload, RemoteJob, RemoteOutcome, VerifiedResult, verify_received_outputs,
};
use ecotone_policy::machine::{
    Command, Event, FailureReason, Holder, JobReport, LocalReason, OffloadOutcome, Prediction,
};
use ecotone_rocks::remote::RemoteResult;
use ecotone_transport::Error as TransportError;
use ecotone_transport::exports::{Role, Token};
use ecotone_transport::file_client::{FileClient, Peer};
use ecotone_transport::protocol::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION, failed_call};
use ecotone_transport::wire::job_event::Event as WireEvent;
use ecotone_transport::wire::worker_client::WorkerClient;
use ecotone_transport::wire::{Finished, InputFile, JobEvent, JobOffer, ReleaseRequest};
use ecotone_types::units::{Bytes, Joules, Seconds};
use ecotone_types::{JobId, JobPurpose, ServerId};
use parking_lot::Mutex;
use tonic::Streaming;
use tracing::{debug, warn};

use crate::convert;
use crate::coordinator;
use crate::copies::{PrimaryCopy, TableContent, is_held, number_of};
use crate::error::{Error, Result};
use crate::finished_jobs::{JobEnded, JobOutcome};
use crate::member::Member;
use crate::outputs::{Outputs, Received, refused};
use crate::steps::Step;

/// Local compactions whose end is still to come, for which what was predicted is remembered.
/// RocksDB runs few at a time.
const LOCAL_REMEMBERED: usize = 64;

/// Where the policy wants a job.
enum Decision {
    Here(LocalReason),
    Away { worker: ServerId, prediction: Prediction, deadline: Seconds },
}

/// Why and with what expectation a compaction runs here.
struct LocalRun {
    /// RocksDB's number of the whole compaction.
    rocks_job: i32,
    job: JobId,
    purpose: JobPurpose,
    reason: LocalReason,
}

/// The federation's side of one store's compactions. Give it to the store's options.
pub(crate) struct OwnerSide {
    member: Arc<Member>,
    /// Of a shard with copies.
    primary: Option<Arc<dyn PrimaryCopy>>,
    canceled: AtomicBool,
    cancel: tokio::sync::Notify,
    local: Mutex<Vec<LocalRun>>,
}

/// A job whose result RocksDB was given: it is finished when that has taken it.
struct Installing {
    member: Arc<Member>,
    ended: JobEnded,
    report: JobReport,
    worker_address: String,
    output_directory: PathBuf,
    token: Token,
}

/// A finished offload.
struct Offloaded {
    result: VerifiedResult,
    output_bytes: u64,
    joules: f64,
    /// Of the input tables, those that the worker's copy held.
    held_bytes: u64,
    token: Token,
}

impl OwnerSide {
    pub(crate) fn new(member: Arc<Member>, primary: Option<Arc<dyn PrimaryCopy>>) -> OwnerSide {
        OwnerSide {
            member,
            primary,
            canceled: AtomicBool::new(false),
            cancel: tokio::sync::Notify::new(),
            local: Mutex::default(),
        }
    }

    /// What the input tables hold, in their order, as far as that is known, and for how long copies
    /// could have had it.
    fn contents(&self, job: &RemoteJob) -> Vec<Option<(TableContent, Duration)>> {
        let content = |name: &str| self.primary.as_ref()?.content_of(number_of(name)?);
        job.input_files
            .iter()
            .map(|table| content(&table.name).filter(|(known, _)| known.bytes == table.bytes))
            .collect()
    }

    /// Who holds how much of a job's input. An estimate: which tables a copy has by now is only known
    /// there.
    fn holders(&self, job: &RemoteJob) -> Vec<Holder> {
        let Some(primary) = &self.primary else { return Vec::new() };
        let held = |known: Option<(TableContent, Duration)>| known.filter(|(_, age)| is_held(*age));
        let held: u64 = self.contents(job).into_iter().filter_map(held).map(|(content, _)| content.bytes).sum();
        let bytes = Bytes(share_of(held, job));
        let mut servers = if bytes > Bytes::ZERO { primary.holders() } else { Vec::new() };
        servers.sort_unstable();
        servers.into_iter().map(|server| Holder { server, bytes }).collect()
    }

    /// The event of a job for the machine.
    fn ready(&self, job: &RemoteJob) -> Event {
        Event::CompactionReady {
            job: JobId(job.id),
            purpose: job.purpose,
            input_bytes: Bytes(job.estimated_bytes),
            input_level: job.input_level,
            output_level: job.output_level,
            l0_tables: job.l0_tables,
            deadline: job.deadline.map(|deadline| Seconds(deadline.as_secs_f64())),
            // Whoever else could merge the tables of a garbage collection, but would need all of
            // them.
            holders: if job.purpose == JobPurpose::Gc && job.moves.is_none() { Vec::new() } else { self.holders(job) },
        }
    }

    fn check_epoch(&self) -> Result<()> {
        if self.primary.as_ref().is_none_or(|primary| primary.is_primary()) { Ok(()) } else { Err(Error::EpochEnded) }
    }

    fn decide(&self, job: &RemoteJob) -> Decision {
        let unplaced = UnplacedJob { side: self, job: JobId(job.id), has_place: false };
        let decision = self.find_place(job);
        unplaced.end();
        decision
    }

    fn find_place(&self, job: &RemoteJob) -> Decision {
        let id = JobId(job.id);
        let mut event = self.ready(job);
        // The machine answers with one command a step; three steps lead to a place.
        for _ in 0..3 {
            let commands = self.member.decide(event);
            let next = commands.into_iter().find_map(|command| match command {
                Command::RunHere { job, reason } if job == id => Some(Err(Decision::Here(reason))),
                Command::Offload { job, worker, prediction, deadline } if job == id => {
                    Some(Err(Decision::Away { worker, prediction, deadline }))
                }
                Command::AskCoordinator { request } if request.job == id => Some(Ok(request)),
                _ => None,
            });
            event = match next {
                Some(Err(decision)) => return decision,
                Some(Ok(request)) => match coordinator::ask(&self.member, request) {
                    Ok(answer) => Event::PlacementAnswered { job: id, answer },
                    Err(error) => {
                        debug!(job = job.id, %error, "no placement");
                        Event::PlacementUnavailable { job: id }
                    }
                },
                None => break,
            };
        }
        Decision::Here(LocalReason::ImplausiblePlacement)
    }

    fn run_here(&self, job: &RemoteJob, reason: LocalReason) -> RemoteOutcome {
        self.member.statistics.count_here(reason);
        let mut local = self.local.lock();
        if local.len() >= LOCAL_REMEMBERED {
            local.remove(0);
        }
        let rocks_job = (job.rocks_job >> 32) as i32;
        local.push(LocalRun { rocks_job, job: JobId(job.id), purpose: job.purpose, reason });
        if reason.is_fallback() { RemoteOutcome::Fallback } else { RemoteOutcome::Local }
    }

    /// A compaction of this store has ended. Only those that ran here are reported: the others were
    /// when they were installed.
    pub(crate) fn compaction_finished(&self, event: &CompactionFinished) {
        let run = {
            let mut local = self.local.lock();
            let mut runs = Vec::new();
            local.retain_mut(|run| {
                let ends = run.rocks_job == event.job;
                if ends {
                    runs.push((run.job, run.purpose, run.reason));
                }
                !ends
            });
            runs.into_iter().next()
        };
        let Some((job, purpose, reason)) = run else { return };
        if event.remote || event.error.is_some() || event.input_bytes == 0 || event.seconds <= 0.0 {
            return;
        }
        let own = self.member.name.clone();
        let report = JobReport {
            owner: own.clone(),
            worker: own.clone(),
            job,
            input_bytes: Bytes(event.input_bytes),
            output_bytes: Bytes(event.output_bytes),
            seconds: Seconds(event.seconds),
            joules: Joules(self.member.joules_of(event.cpu_seconds)),
            held_bytes: Bytes::ZERO,
            input_level: event.input_level,
            output_level: event.output_level,
        };
        let outcome = if reason.is_fallback() { JobOutcome::Fallback } else { JobOutcome::Local };
        let ended = JobEnded::of(&report, None, outcome, reason.name());
        if purpose == JobPurpose::Gc {
            // Its bytes are keys, its time is that of copies: the models must not learn from it how
            // long keys take.
            self.member.notify_observer(&ended);
        } else {
            self.member.finished(ended, report);
        }
    }

    fn offload(
        &self,
        job: &RemoteJob,
        worker: &ServerId,
        prediction: Prediction,
        deadline: Seconds,
    ) -> std::result::Result<(VerifiedResult, Installing), OffloadOutcome> {
        let began = Instant::now();
        let before = self.member.thread_use();
        let failed = |reason| OffloadOutcome::Failed { worker: worker.clone(), reason };
        let Some(address) = self.member.address_of(worker) else { return Err(failed(FailureReason::Unreachable)) };
        let mut away = Away {
            side: self,
            job,
            worker,
            worker_address: address,
            until: began + Duration::from_secs_f64(deadline.0.clamp(0.0, 1e6)),
            deadline,
        };
        match away.run() {
            Ok(offloaded) => {
                let own_joules = self.member.thread_use().since(before).joules;
                let report = JobReport {
                    owner: self.member.name.clone(),
                    worker: worker.clone(),
                    job: JobId(job.id),
                    input_bytes: Bytes(job.estimated_bytes),
                    output_bytes: Bytes(offloaded.output_bytes),
                    seconds: Seconds(began.elapsed().as_secs_f64()),
                    joules: Joules(offloaded.joules + own_joules),
                    held_bytes: Bytes(share_of(offloaded.held_bytes, job)),
                    input_level: job.input_level,
                    output_level: job.output_level,
                };
                self.member.statistics.count_held(report.held_bytes.0);
                let ended = JobEnded::of(&report, Some(prediction), JobOutcome::Offloaded, "");
                self.member.step(Step::Installing);
                let installing = Installing {
                    member: self.member.clone(),
                    ended,
                    report,
                    worker_address: away.worker_address,
                    output_directory: job.output_directory(),
                    token: offloaded.token,
                };
                Ok((offloaded.result, installing))
            }
            Err(error) => {
                if error.is_of_connection() {
                    self.member.connections.forget(&away.worker_address);
                }
                let outcome = match error {
                    Error::Declined(reason, _) => OffloadOutcome::Declined { worker: worker.clone(), reason },
                    ref other => failed(failure(other)),
                };
                self.member.statistics.count_fallback(error.kind());
                // Declines are the worker's right and frequent; everything else deserves a line.
                if matches!(outcome, OffloadOutcome::Declined { .. }) {
                    debug!(job = job.id, %worker, %error, "the worker declined; compacting locally");
                } else {
                    warn!(job = job.id, %worker, %error, "an offloaded compaction failed; compacting locally");
                }
                Err(outcome)
            }
        }
    }
}

/// A job that the machine may count as asking. A panic ends the question, too, or it would count
/// for ever.
struct UnplacedJob<'a> {
    side: &'a OwnerSide,
    job: JobId,
    has_place: bool,
}

impl UnplacedJob<'_> {
    fn end(mut self) {
        self.has_place = true;
    }
}

impl Drop for UnplacedJob<'_> {
    fn drop(&mut self) {
        if !self.has_place {
            self.side.member.statistics.count_fallback("panicked");
            // A second panic while the first goes on would end the process.
            let report = || self.side.member.decide(Event::PlacementUnavailable { job: self.job });
            let _ = catch_unwind(AssertUnwindSafe(report));
        }
    }
}

/// A job that the machine counts as away. A panic ends it too, or it would count for ever.
struct UnderWay<'a> {
    side: &'a OwnerSide,
    job: JobId,
    worker: &'a ServerId,
    has_outcome: bool,
}

impl UnderWay<'_> {
    /// The outcome is known to the caller, who reports it to the machine.
    fn end(mut self) {
        self.has_outcome = true;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.has_outcome {
            let outcome = OffloadOutcome::Failed { worker: self.worker.clone(), reason: FailureReason::OwnerFailed };
            self.side.member.statistics.count_fallback("panicked");
            // As in `UnplacedJob`.
            let report = || self.side.member.decide(Event::OffloadEnded { job: self.job, outcome });
            let _ = catch_unwind(AssertUnwindSafe(report));
        }
    }
}

fn failure(error: &Error) -> FailureReason {
    match error {
        Error::Transport(TransportError::Unreachable { .. } | TransportError::Version { .. }) => {
            FailureReason::Unreachable
        }
        Error::Silent { .. } => FailureReason::HeartbeatLost,
        Error::Deadline { .. } => FailureReason::DeadlineMissed,
        // Nor is the worker to blame for what became of the shard.
        Error::Cancelled | Error::EpochEnded => FailureReason::Cancelled,
        Error::BadResult(_) => FailureReason::OutputRefused,
        Error::Worker(_) | Error::Transport(TransportError::Unauthorised(_)) | Error::Declined(..) => {
            FailureReason::WorkerFailed
        }
        Error::Io { .. }
        | Error::Configuration(_)
        | Error::Listen { .. }
        | Error::FederationFull(_)
        | Error::Membership(_)
        | Error::Transport(_) => FailureReason::OwnerFailed,
    }
}

/// One job on its way.
struct Away<'a> {
    side: &'a OwnerSide,
    job: &'a RemoteJob,
    worker: &'a ServerId,
    worker_address: String,
    until: Instant,
    deadline: Seconds,
}

impl Away<'_> {
    fn run(&mut self) -> Result<Offloaded> {
        let member = &self.side.member;
        self.side.check_epoch()?;
        let token = Token::new()?;
        let export = member.exports.begin(token, Role::Inputs, self.worker.clone());
        let contents: HashMap<&str, TableContent> = (self.job.input_files.iter().map(|table| table.name.as_str()))
            .zip(self.side.contents(self.job))
            .filter_map(|(name, known)| known.map(|(content, _)| (name, content)))
            .collect();
        let mut files = Vec::new();
        for name in self.names()? {
            let bytes = export.add(&name, &self.job.store_directory.join(&name))?;
            let content_hash = contents.get(name.as_str()).map_or(Vec::new(), |content| content.hash_to_wire());
            files.push(InputFile { name, bytes, content_hash });
        }
        let offer = JobOffer {
            protocol_version: PROTOCOL_VERSION,
            owner: member.name.as_str().to_owned(),
            owner_address: member.address(),
            session: self.job.db_session_id.clone(),
            job: self.job.id,
            token: token.to_wire(),
            store_directory: path_text(&self.job.store_directory)?,
            output_name: self.job.output_name(),
            block_bytes: self.job.table_format.block_bytes,
            counts_references: self.job.table_format.collects.references,
            samples_keys: self.job.table_format.collects.samples,
            filter_bits_per_key: self.job.table_format.collects.filter_bits_per_key.into(),
            tells_expiry: self.job.table_format.collects.expiry,
            bloom_bits_per_key: self.job.table_format.bloom_bits_per_key,
            input: self.job.input.clone(),
            files,
            input_bytes: self.job.input_bytes,
            deadline_seconds: self.deadline.0,
            shard: self.side.primary.as_ref().map_or(0, |primary| primary.shard()),
            epoch: self.side.primary.as_ref().map_or(0, |primary| primary.epoch()),
            move_plan: self.job.moves.as_ref().map_or_else(Vec::new, |plan| plan.encode()),
        };
        member.step(Step::Offering);
        let channel =
            self.bounded(async { Ok(member.connections.to(&self.worker_address, Some(self.worker)).await?) })?;
        let mut client = WorkerClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let mut events = self
            .bounded(async { Ok(client.run(offer).await.map_err(|status| self.failed_call(status))?.into_inner()) })?;
        let mut outputs = Outputs::new(member, self.job)?;
        let outcome = self.follow(&mut events, &mut outputs, token).and_then(|finished| {
            let (result, received) = self.accept(&finished, &mut outputs)?;
            self.side.check_epoch()?;
            let joules = finished.joules + received.joules;
            let held_bytes = finished.held_bytes.min(self.job.input_bytes);
            Ok(Offloaded { result, output_bytes: received.bytes, joules, held_bytes, token })
        });
        match &outcome {
            Ok(_) => outputs.keep(),
            Err(_) => release(member, self.worker, &self.worker_address, token),
        }
        outcome
    }

    /// The files the worker needs: the job's tables, and the metadata that says what they are.
    fn names(&self) -> Result<Vec<String>> {
        let current = self.job.store_directory.join("CURRENT");
        let manifest = std::fs::read_to_string(&current)
            .map_err(|error| Error::io("read the current manifest from", &current, error))?;
        let mut names = self.job.request.input_files.clone();
        names.push("CURRENT".into());
        names.push(manifest.trim_end().to_owned());
        names.push(format!("OPTIONS-{:06}", self.job.request.options_file_number));
        // A store that was never named has no such file; RocksDB then does without.
        if self.job.store_directory.join("IDENTITY").exists() {
            names.push("IDENTITY".into());
        }
        Ok(names)
    }

    fn failed_call(&self, status: tonic::Status) -> Error {
        failed_call(format!("worker {}", self.worker_address), &status).into()
    }

    /// Waits for a future of the network, but no longer than the signs of life, the deadline and
    /// the store allow.
    fn bounded<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        let silence = self.side.member.options.limits.heartbeat_timeout;
        let left = self.until.saturating_duration_since(Instant::now());
        self.side.member.runtime.block_on(async {
            let mut cancel = std::pin::pin!(self.side.cancel.notified());
            // Before the flag is read: a cancellation in between must not be missed.
            cancel.as_mut().enable();
            if self.side.canceled.load(Ordering::Acquire) {
                return Err(Error::Cancelled);
            }
            tokio::select! {
                outcome = tokio::time::timeout(silence.min(left), future) => outcome.unwrap_or_else(|_| {
                    if left < silence {
                        Err(Error::Deadline { seconds: self.deadline.0 })
                    } else {
                        Err(Error::Silent { seconds: silence.as_secs_f64() })
                    }
                }),
                () = cancel => Err(Error::Cancelled),
            }
        })
    }

    /// Follows the job's events to its end and fetches tables as they become complete.
    fn follow(&self, events: &mut Streaming<JobEvent>, outputs: &mut Outputs, token: Token) -> Result<Finished> {
        // Connected with the first table: a job that is declined needs none.
        let mut client = None;
        loop {
            // A message that is there already is taken without a wait that could time out, and a
            // worker can send without end.
            if Instant::now() >= self.until {
                return Err(Error::Deadline { seconds: self.deadline.0 });
            }
            let event = self.bounded(async { events.message().await.map_err(|status| self.failed_call(status)) })?;
            let event = event.and_then(|event| event.event).ok_or_else(|| Error::Worker("it hung up".into()))?;
            // Each sign of life is a chance to notice that the job is for nobody any more.
            self.side.check_epoch()?;
            match event {
                WireEvent::Admitted(_) | WireEvent::Heartbeat(_) => {}
                WireEvent::Declined(declined) => {
                    return Err(Error::Declined(convert::decline_from_wire(&declined.reason), declined.detail));
                }
                WireEvent::Failed(failed) => return Err(Error::Worker(failed.reason)),
                WireEvent::OutputReady(table) => {
                    let client = match &client {
                        Some(client) => client,
                        None => client.insert(self.connect(token)?),
                    };
                    outputs.fetch(client, &table, || self.may_go_on())?;
                    self.side.member.step(Step::Fetched);
                }
                WireEvent::Finished(finished) => return Ok(finished),
            }
        }
    }

    fn may_go_on(&self) -> Result<()> {
        if self.side.canceled.load(Ordering::Acquire) {
            Err(Error::Cancelled)
        } else if Instant::now() >= self.until {
            Err(Error::Deadline { seconds: self.deadline.0 })
        } else {
            self.side.check_epoch()
        }
    }

    fn connect(&self, token: Token) -> Result<Arc<FileClient>> {
        let member = &self.side.member;
        // The compaction waits here and not for heartbeats: a worker that is silent is as dead.
        let mut timeouts = member.options.limits.timeouts();
        timeouts.read = timeouts.read.min(timeouts.silence);
        let peer = Peer {
            name: format!("worker {}", self.worker_address),
            address: &self.worker_address,
            server: self.worker,
        };
        let traffic = member.traffic.clone();
        Ok(FileClient::connect((&member.runtime, &member.security), peer, token, &timeouts, traffic, Arc::default())?)
    }

    /// Checks the result against what was fetched and makes it durable.
    fn accept(&self, finished: &Finished, outputs: &mut Outputs) -> Result<(VerifiedResult, Received)> {
        if crc32c::crc32c(&finished.result) != finished.result_crc32c {
            return Err(Error::BadResult("its description was damaged on the way".into()));
        }
        let result = RemoteResult::parse(&finished.result).map_err(|error| Error::BadResult(error.to_string()))?;
        if let Err(status) = result.status {
            return Err(Error::Worker(status));
        }
        let received = outputs.finish(|| self.may_go_on())?;
        // An empty table is one that the worker's compaction finished and then dropped.
        let unnamed = |name: &String| !result.output_files.iter().any(|file| file.file_name == *name);
        let full = received.tables.iter().filter(|(_, table)| !table.is_empty());
        if let Some((unnamed, _)) = full.into_iter().find(|(name, _)| unnamed(name)) {
            return Err(Error::BadResult(format!("the result does not name {unnamed}, which came")));
        }
        self.side.member.step(Step::Verifying);
        let mut verified = verify_received_outputs(self.job, &finished.result, &received.tables).map_err(refused)?;
        if let Some(plan) = &self.job.moves {
            verified = verified.with_moves(plan, &finished.moves).map_err(refused)?;
        }
        Ok((verified, received))
    }
}

/// Of bytes of all input tables of a compaction, those that one of its subcompactions reads.
fn share_of(bytes: u64, job: &RemoteJob) -> u64 {
    if job.input_bytes == 0 {
        return 0;
    }
    let share = u128::from(bytes) * u128::from(job.estimated_bytes) / u128::from(job.input_bytes);
    u64::try_from(share).map_or(job.estimated_bytes, |share| share.min(job.estimated_bytes))
}

fn path_text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Error::Configuration(format!("{} is not UTF-8; its store cannot be compacted elsewhere", path.display()))
    })
}

impl CompactionOffload for OwnerSide {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        self.member.step(Step::Asked);
        let id = JobId(job.id);
        match self.decide(&job) {
            Decision::Here(reason) => {
                if reason.is_fallback() {
                    self.member.statistics.count_fallback(reason.name());
                }
                self.run_here(&job, reason)
            }
            Decision::Away { worker, prediction, deadline } => {
                let under_way = UnderWay { side: self, job: id, worker: &worker, has_outcome: false };
                let outcome = self.offload(&job, &worker, prediction, deadline);
                under_way.end();
                match outcome {
                    // The machine hears of the end when RocksDB has taken the tables.
                    Ok((result, installing)) => {
                        RemoteOutcome::Installed { result, on_installed: Box::new(move |ok| installing.end(ok)) }
                    }
                    Err(outcome) => {
                        let reason = match outcome {
                            OffloadOutcome::Declined { .. } => LocalReason::Declined,
                            _ => LocalReason::Failed,
                        };
                        self.member.decide(Event::OffloadEnded { job: id, outcome });
                        self.run_here(&job, reason)
                    }
                }
            }
        }
    }

    fn moves_values(&self, entries: u64) -> bool {
        // Which input tables they hold is asked once there is a job.
        let parameters = &self.member.options.policy;
        parameters.policy.may_offload()
            && entries >= parameters.min_gc_entries
            && self.primary.as_ref().is_some_and(|primary| primary.is_primary() && !primary.holders().is_empty())
    }

    fn stays(&self, job: &RemoteJob) {
        // The machine gives one command for such a job, and learns nothing that would have to be
        // taken back.
        for command in self.member.decide(self.ready(job)) {
            if let Command::RunHere { reason, .. } = command {
                self.run_here(job, reason);
            }
        }
    }

    fn cancel_all(&self) {
        self.canceled.store(true, Ordering::Release);
        self.cancel.notify_waiters();
    }
}

impl Installing {
    /// RocksDB has taken the tables (`ok`), or has not.
    fn end(self, ok: bool) {
        let Self { member, ended, report, worker_address, output_directory, token } = self;
        let outcome = if ok {
            OffloadOutcome::Installed
        } else {
            member.statistics.count_fallback("not-installed");
            OffloadOutcome::Failed { worker: report.worker.clone(), reason: FailureReason::OwnerFailed }
        };
        let job = report.job;
        member.decide(Event::OffloadEnded { job, outcome });
        member.step(Step::Installed);
        release(&member, &report.worker, &worker_address, token);
        if let Err(error) = std::fs::remove_dir_all(&output_directory)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!(job = job.0, %error, "the emptied folder of an offloaded compaction could not be removed");
        }
        if ok {
            member.finished(ended, report);
        }
    }
}

/// Lets the worker forget the job. Nobody waits for it; a worker that does not get the message
/// forgets in time.
fn release(member: &Arc<Member>, worker: &ServerId, address: &str, token: Token) {
    let (of_task, worker, address) = (member.clone(), worker.clone(), address.to_owned());
    member.runtime.spawn(async move {
        let request = ReleaseRequest { token: token.to_wire() };
        let release = async {
            if let Ok(channel) = of_task.connections.to(&address, Some(&worker)).await {
                let _ = WorkerClient::new(channel).release(request).await;
            }
        };
        // Were there no limit, a worker that never answers would use up the connection's calls.
        let _ = tokio::time::timeout(of_task.options.limits.heartbeat_timeout, release).await;
    });
}
