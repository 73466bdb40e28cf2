//! Stand-ins for the federation: what an owner's offload may do, and a worker in the same process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use ecotone_engine::{
    CancelFlag, Collects, CompactionOffload, Mover, RemoteJob, RemoteOutcome, TableFormat, VerifyError, WorkerError,
    WorkerOptions, WorkerRequest, run_remote_compaction, verify_outputs,
};
use ecotone_io::remote_files::{RangedRead, RemoteFiles};
use ecotone_types::JobPurpose;
use ecotone_valuelog::moves::MovePlan;

/// The owner's files, read by ranges, as a worker on another machine reads them: nothing but these
/// reads reaches the owner's directory, and only below it.
pub struct OwnersFiles {
    pub owner: PathBuf,
    pub opened: Mutex<HashMap<String, u64>>,
    pub bytes_read: AtomicU64,
}

impl OwnersFiles {
    pub fn of(owner: &Path) -> Arc<Self> {
        Arc::new(Self { owner: owner.to_path_buf(), opened: Mutex::default(), bytes_read: AtomicU64::new(0) })
    }

    fn inside(&self, path: &Path) -> bool {
        path.starts_with(&self.owner)
    }
}

struct OneFile {
    file: File,
    len: u64,
    files: Arc<AtomicU64>,
}

impl RangedRead for OneFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64)? {
                0 => break,
                read => done += read,
            }
        }
        self.files.fetch_add(done as u64, Ordering::Relaxed);
        Ok(done)
    }
}

pub struct SharedFiles(pub Arc<OwnersFiles>, pub Arc<AtomicU64>);

impl RemoteFiles for SharedFiles {
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        if !self.0.inside(path) {
            return Ok(None);
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        *self.0.opened.lock().unwrap().entry(name).or_default() += 1;
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Some(Arc::new(OneFile { file, len, files: self.1.clone() })))
    }

    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        if !self.0.inside(path) {
            return Ok(None);
        }
        Ok(Some(fs::metadata(path)?.len()))
    }

    fn list(&self, directory: &Path) -> io::Result<Option<Vec<String>>> {
        if !self.0.inside(directory) {
            return Ok(None);
        }
        let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        Ok(Some(names.collect::<io::Result<_>>()?))
    }
}

/// Another list of what was moved than the worker's.
pub type SpoilMoves = fn(&MovePlan, Vec<u8>) -> Vec<u8>;

/// What a spoiler may change between a worker's answer and its check: the folder of the outputs,
/// and the result.
pub type Spoil = dyn Fn(&RemoteJob, &Path, &mut Vec<u8>) + Send + Sync;

/// Runs every job in this process as a worker on another machine would, then fetches and verifies
/// as an owner would.
pub struct InProcess {
    pub worker_directory: PathBuf,
    pub spoil: Option<Box<Spoil>>,
    /// What the worker understands of what its tables are to tell.
    pub as_worker: fn(Collects) -> Collects,
    /// Whether it is asked to move values.
    pub moves_values: bool,
    /// May change what a worker says that it has moved.
    pub spoil_moves: Option<SpoilMoves>,
    pub jobs: AtomicU64,
    pub installed: Arc<AtomicU64>,
    pub not_taken: Arc<AtomicU64>,
    pub refused: Mutex<Vec<VerifyError>>,
    pub worker_errors: Mutex<Vec<WorkerError>>,
    pub local_finished: AtomicU64,
    pub canceled: AtomicBool,
    pub opened: Mutex<Vec<HashMap<String, u64>>>,
    pub seen: Mutex<Vec<RemoteJob>>,
    /// What is not to be run elsewhere.
    pub stayed: Mutex<Vec<RemoteJob>>,
}

impl InProcess {
    pub fn new(worker_directory: &Path) -> Self {
        Self {
            worker_directory: worker_directory.to_path_buf(),
            spoil: None,
            as_worker: |collects| collects,
            moves_values: false,
            spoil_moves: None,
            jobs: AtomicU64::new(0),
            installed: Arc::default(),
            not_taken: Arc::default(),
            refused: Mutex::default(),
            worker_errors: Mutex::default(),
            local_finished: AtomicU64::new(0),
            canceled: AtomicBool::new(false),
            opened: Mutex::default(),
            seen: Mutex::default(),
            stayed: Mutex::default(),
        }
    }

    pub fn spoiled(
        worker_directory: &Path,
        spoil: impl Fn(&RemoteJob, &Path, &mut Vec<u8>) + Send + Sync + 'static,
    ) -> Self {
        Self { spoil: Some(Box::new(spoil)), ..Self::new(worker_directory) }
    }

    fn work(&self, job: &RemoteJob) -> Result<(PathBuf, Vec<u8>, Vec<u8>), WorkerError> {
        let output_directory = self.worker_directory.join(job.output_name());
        fs::create_dir_all(&output_directory).unwrap();
        let files = OwnersFiles::of(&job.store_directory);
        let mover = job.moves.as_ref().map(|plan| Mover::new(&plan.encode()).unwrap());
        let collects = (self.as_worker)(job.table_format.collects);
        let result = run_remote_compaction(WorkerRequest {
            store_directory: job.store_directory.clone(),
            output_name: job.output_name(),
            output_directory: output_directory.clone(),
            input: &job.input,
            files: Arc::new(SharedFiles(files.clone(), Arc::default())),
            tap: None,
            mover: mover.clone(),
            cancel: CancelFlag::new(),
            options: WorkerOptions::new(TableFormat { collects, ..job.table_format }),
        })?;
        self.opened.lock().unwrap().push(files.opened.lock().unwrap().clone());
        let mut moved = mover.map(|mover| mover.moved()).unwrap_or_default();
        if let (Some(spoil), Some(plan)) = (self.spoil_moves, &job.moves) {
            moved = spoil(plan, moved);
        }
        Ok((output_directory, result, moved))
    }
}

impl CompactionOffload for InProcess {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.seen.lock().unwrap().push(job.clone());
        let (worker_output, mut result, moved) = match self.work(&job) {
            Ok(done) => done,
            Err(error) => {
                self.worker_errors.lock().unwrap().push(error);
                return RemoteOutcome::Fallback;
            }
        };
        let fetched = job.output_directory();
        fs::create_dir_all(&fetched).unwrap();
        for entry in fs::read_dir(&worker_output).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), fetched.join(entry.file_name())).unwrap();
        }
        fs::remove_dir_all(&worker_output).unwrap();
        if let Some(spoil) = &self.spoil {
            spoil(&job, &fetched, &mut result);
        }
        let verified = verify_outputs(&job, &result);
        match verified.and_then(|it| if let Some(plan) = &job.moves { it.with_moves(plan, &moved) } else { Ok(it) }) {
            Ok(result) => {
                let (installed, not_taken) = (self.installed.clone(), self.not_taken.clone());
                let on_installed = Box::new(move |ok| {
                    let count = if ok { installed } else { not_taken };
                    count.fetch_add(1, Ordering::Relaxed);
                    fs::remove_dir_all(fetched).unwrap();
                });
                RemoteOutcome::Installed { result, on_installed }
            }
            Err(error) => {
                self.refused.lock().unwrap().push(error);
                fs::remove_dir_all(&fetched).unwrap();
                RemoteOutcome::Fallback
            }
        }
    }

    fn moves_values(&self, _entries: u64) -> bool {
        self.moves_values
    }

    fn stays(&self, job: &RemoteJob) {
        self.stayed.lock().unwrap().push(job.clone());
    }

    fn cancel_all(&self) {
        self.canceled.store(true, Ordering::Relaxed);
    }

    fn local_finished(&self, _job: u64) {
        self.local_finished.fetch_add(1, Ordering::Relaxed);
    }
}

/// Replaces a number in the text that RocksDB makes of a result: the first field of this name after
/// `section`.
pub fn edit(result: &mut Vec<u8>, section: &str, field: &str, change: impl Fn(u64) -> u64) {
    let text: String = result.iter().map(|byte| char::from(*byte)).collect();
    let from = text.find(section).unwrap_or_else(|| panic!("{section} in {text}"));
    let named = format!("{field}=");
    // Not the end of a longer name.
    let whole = |at: &usize| text[..*at].ends_with([';', '{']);
    let begin = text[from..].match_indices(&named).map(|(at, _)| from + at).find(whole).unwrap() + named.len();
    let digits = text[begin..].bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[begin..begin + digits].parse().unwrap();
    result.splice(begin..begin + digits, change(number).to_string().into_bytes());
}

/// Has another one run the compactions of some purposes, and leaves the others here.
pub struct Only<T> {
    pub worker: Arc<T>,
    takes: fn(JobPurpose) -> bool,
}

impl<T> Only<T> {
    pub fn of(worker: Arc<T>, takes: fn(JobPurpose) -> bool) -> Arc<Self> {
        Arc::new(Self { worker, takes })
    }
}

impl<T: CompactionOffload> CompactionOffload for Only<T> {
    fn run(&self, job: RemoteJob) -> RemoteOutcome {
        if (self.takes)(job.purpose) { self.worker.run(job) } else { RemoteOutcome::Local }
    }
    fn moves_values(&self, entries: u64) -> bool {
        self.worker.moves_values(entries)
    }
    fn stays(&self, job: &RemoteJob) {
        self.worker.stays(job);
    }
    fn cancel_all(&self) {
        self.worker.cancel_all();
    }
    fn local_finished(&self, job: u64) {
        self.worker.local_finished(job);
    }
}

/// Compactions wait at it while it is closed, and run here then. It is open until it is closed, and
/// when the store closes.
#[derive(Default)]
pub struct AdmissionControl {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl AdmissionControl {
    pub fn close(&self) {
        *self.is_closed.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.is_closed.lock().unwrap() = false;
        self.opened.notify_all();
    }
}

impl CompactionOffload for AdmissionControl {
    fn run(&self, _job: RemoteJob) -> RemoteOutcome {
        let is_closed = self.is_closed.lock().unwrap();
        drop(self.opened.wait_while(is_closed, |is_closed| *is_closed).unwrap());
        RemoteOutcome::Local
    }

    fn cancel_all(&self) {
        self.open();
    }
}
