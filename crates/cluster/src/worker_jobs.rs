//! The jobs of other servers that this one runs or keeps outputs of: their admission, their folders
//! and their end.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::CancelFlag;
use ecotone_policy::machine::DeclineReason;
use ecotone_transport::PROTOCOL_VERSION;
use ecotone_transport::exports::{ExportGuard, Exports, Role, Token};
use ecotone_transport::wire::JobOffer;
use ecotone_types::ServerId;
use parking_lot::{Condvar, Mutex};
use rustix::fs::FlockOperation;
use tracing::{info, warn};

use crate::activity::LocalLoad;
use crate::config::{Limits, max_output_bytes};
use crate::error::{Error, Result};

/// How the names of jobs' folders begin.
const JOB_FOLDER: &str = "job-";
/// What a job's folder for links to its inputs is called beyond that.
const HELD_SUFFIX: &str = "held";
/// Input files of one job. RocksDB's largest compactions have some hundreds.
const MAX_INPUT_FILES: usize = 4096;
/// Input tables that a compaction reads at a time, for the estimate of its memory: all of L0 and
/// one table of the next level.
const TABLES_READ_AT_A_TIME: u64 = 40;

/// What this server has to give when a job is offered.
pub(crate) struct Capacity<'a> {
    pub(crate) limits: &'a Limits,
    /// `None` until the load was measured.
    pub(crate) load: Option<LocalLoad>,
    pub(crate) free_network_bytes_per_s: f64,
}

/// All jobs that this server runs or keeps outputs of.
pub(crate) struct WorkerJobs {
    directory: PathBuf,
    /// The folder itself, locked while this process lives: another one must not empty it.
    _lock: File,
    /// Threads that run jobs, and who waits for their end.
    threads: Mutex<usize>,
    thread_ended: Condvar,
    jobs: Mutex<HashMap<Token, Arc<WorkerJob>>>,
    next_folder: AtomicU64,
}

/// A job of another server.
pub(crate) struct WorkerJob {
    /// Of its outputs.
    pub(crate) folder: PathBuf,
    /// Of links to the input tables that a copy here holds; not there where it holds none.
    pub(crate) held_folder: PathBuf,
    memory_bytes: u64,
    input_bytes: u64,
    pub(crate) export: ExportGuard,
    pub(crate) cancel: CancelFlag,
    /// Set when the compaction has ended and the outputs only wait for the owner.
    pub(crate) ended: Mutex<Option<Instant>>,
}

impl WorkerJob {
    pub(crate) fn max_output_bytes(&self) -> u64 {
        max_output_bytes(self.input_bytes)
    }
}

impl Drop for WorkerJob {
    fn drop(&mut self) {
        for folder in [&self.folder, &self.held_folder] {
            if let Err(error) = std::fs::remove_dir_all(folder)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                warn!(folder = %folder.display(), %error, "a finished job's folder could not be removed");
            }
        }
    }
}

impl WorkerJobs {
    /// Takes the folder over and removes what a dead process left there: the folders of jobs, and
    /// nothing else.
    pub(crate) fn open(directory: &Path) -> Result<WorkerJobs> {
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
        Ok(WorkerJobs {
            directory: directory.to_owned(),
            _lock: lock,
            threads: Mutex::new(0),
            thread_ended: Condvar::new(),
            jobs: Mutex::default(),
            next_folder: AtomicU64::new(0),
        })
    }

    pub(crate) fn thread_begins(&self) {
        *self.threads.lock() += 1;
    }

    pub(crate) fn thread_ended(&self) {
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
    pub(crate) fn forget(&self, token: Token) {
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
        let expired = |job: &WorkerJob| job.ended.lock().is_some_and(|at| at.elapsed() > limits.output_kept);
        let orphans: Vec<Arc<WorkerJob>> = {
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

    /// Takes a job if there is capacity for it. Its outputs are exported under its token.
    ///
    /// # Errors
    /// [`Error::Declined`], mostly.
    pub(crate) fn admit(
        &self,
        offer: &JobOffer,
        capacity: Capacity<'_>,
        exports: &Arc<Exports>,
    ) -> Result<(Token, Arc<WorkerJob>)> {
        let Capacity { limits, load, free_network_bytes_per_s } = capacity;
        let declined = |reason, detail: String| Err(Error::Declined(reason, detail));
        if offer.protocol_version != PROTOCOL_VERSION {
            return declined(
                DeclineReason::VersionMismatch,
                format!("protocol version {} instead of {PROTOCOL_VERSION}", offer.protocol_version),
            );
        }
        if offer.files.len() > MAX_INPUT_FILES {
            return declined(
                DeclineReason::NoMemory,
                format!("{} input files, at most {MAX_INPUT_FILES}", offer.files.len()),
            );
        }
        if let Some(load) = load {
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
        if free_network_bytes_per_s <= 0.0 {
            return declined(DeclineReason::NoBandwidth, "its network is busy".into());
        }
        let memory_bytes = 3 * limits.chunk_bytes as u64 * TABLES_READ_AT_A_TIME.min(offer.files.len() as u64);
        let free = free_bytes(&self.directory)
            .map_err(|error| Error::io("ask for the free space of", &self.directory, error))?;

        let token = Token::from_wire(&offer.token)?;
        let owner = ServerId::new(&offer.owner).map_err(|error| Error::Worker(error.to_string()))?;
        let mut jobs = self.jobs.lock();
        // What running jobs have written already is counted twice, on the safe side.
        let reserved = jobs.values().filter(|job| job.ended.lock().is_none()).map(|job| job.max_output_bytes());
        let needed = reserved.fold(max_output_bytes(offer.input_bytes), u64::saturating_add);
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
        let job = Arc::new(WorkerJob {
            held_folder: folder.with_extension(HELD_SUFFIX),
            folder,
            memory_bytes,
            input_bytes: offer.input_bytes,
            export: exports.begin(token, Role::Outputs, owner),
            cancel: CancelFlag::new(),
            ended: Mutex::new(None),
        });
        jobs.insert(token, job.clone());
        Ok((token, job))
    }
}

/// Bytes free for this process on the file system that holds `directory`.
///
/// # Errors
/// The system's, for a folder that is not there or may not be asked about.
pub fn free_bytes(directory: &Path) -> io::Result<u64> {
    let system = rustix::fs::statvfs(directory)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
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
        let first = WorkerJobs::open(&directory).unwrap();
        assert!(!directory.join("job-7").exists());
        assert!(directory.join("photos/cat").exists());
        let second = WorkerJobs::open(&directory).map(|_| ()).unwrap_err();
        assert!(matches!(second, Error::Configuration(_)), "{second}");
        drop(first);
        WorkerJobs::open(&directory).map(|_| ()).unwrap();
    }
}
