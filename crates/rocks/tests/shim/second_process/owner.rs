//! The owner: gives each compaction to a process of its own, serves it the files of that job and no
//! others, verifies and installs what it sends back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ecotone_rocks::filesystem::PathRemap;
use ecotone_rocks::remote::{RemoteInput, RemoteResult};
use ecotone_rocks::verify::{ExpectedTable, verify_table};
use rust_rocksdb::{CompactionService, CompactionServiceJobInfo, CompactionServiceJobStatus, ScheduleResponse};

use super::wire::{Operation, join, receive_request, send_answer, split};

/// What one job did.
#[derive(Debug)]
pub struct JobReport {
    pub input: RemoteInput,
    pub result: RemoteResult,
    /// How often the worker opened each table.
    pub opened: BTreeMap<String, u64>,
    /// Bytes of tables that it read.
    pub table_bytes_read: u64,
    /// Bytes of the input tables.
    pub input_bytes: u64,
}

pub struct Owner {
    /// What RocksDB calls the store.
    pub name: PathBuf,
    /// Where it lies.
    pub directory: PathBuf,
    /// Whether compactions are given away.
    pub offload: AtomicBool,
    next_job: AtomicU64,
    waiting: Mutex<HashMap<String, Vec<u8>>>,
    pub reports: Mutex<Vec<JobReport>>,
    pub failures: Mutex<Vec<String>>,
}

impl Owner {
    pub fn new(name: PathBuf, directory: PathBuf) -> Self {
        Self {
            name,
            directory,
            offload: AtomicBool::new(false),
            next_job: AtomicU64::new(1),
            waiting: Mutex::new(HashMap::new()),
            reports: Mutex::new(Vec::new()),
            failures: Mutex::new(Vec::new()),
        }
    }

    /// Runs one job in a process of its own; the bytes for RocksDB.
    fn run(&self, job: &str, input_bytes: &[u8]) -> io::Result<Vec<u8>> {
        let input = RemoteInput::parse(input_bytes).map_err(io::Error::other)?;
        let meeting = tempfile::tempdir()?;
        let socket = meeting.path().join("owner.sock");
        let listener = UnixListener::bind(&socket)?;
        let mut worker = Process(
            Command::new(std::env::current_exe()?)
                .args(["second_process::worker_process", "--exact", "--nocapture"])
                .env(super::WORKER_SOCKET, &socket)
                .env(super::WORKER_JOB, job)
                .stdout(Stdio::null())
                .spawn()?,
        );
        let (mut stream, _) = listener.accept()?;
        let mut service = Service { owner: self, input: &input, opened: BTreeMap::new(), table_bytes_read: 0 };
        let incoming = Path::new("incoming").join(job);
        let result = service.serve(&mut stream, input_bytes, &self.directory.join(&incoming))?;
        let status = worker.0.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("the worker ended with {status}")));
        }

        let parsed = RemoteResult::parse(&result).map_err(io::Error::other)?;
        parsed.status.clone().map_err(io::Error::other)?;
        for output in &parsed.output_files {
            let expected = ExpectedTable::of_output(output, input.begin.as_deref(), input.end.as_deref());
            let file = self.directory.join(&incoming).join(&output.file_name);
            let found = verify_table(&file, &expected).map_err(io::Error::other)?;
            assert_eq!((found.entries, found.file_bytes), (output.entries, output.file_bytes));
            std::fs::File::open(&file)?.sync_all()?;
        }
        let (opened, table_bytes_read) = (service.opened, service.table_bytes_read);
        let sizes =
            input.input_files.iter().map(|file| std::fs::metadata(self.directory.join(file)).map(|it| it.len()));
        let input_bytes = sizes.sum::<io::Result<u64>>()?;
        let report = JobReport { input, result: parsed, opened, table_bytes_read, input_bytes };
        self.reports.lock().expect("not poisoned").push(report);
        RemoteResult::with_output_path(&result, &self.name.join(&incoming)).map_err(io::Error::other)
    }
}

/// A child that does not outlive the job.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended, unless the job failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Service<'a> {
    owner: &'a Owner,
    input: &'a RemoteInput,
    opened: BTreeMap<String, u64>,
    table_bytes_read: u64,
}

impl Service<'_> {
    /// Answers until the worker is done; its result.
    fn serve(&mut self, stream: &mut UnixStream, input: &[u8], incoming: &Path) -> io::Result<Vec<u8>> {
        std::fs::create_dir_all(incoming)?;
        loop {
            let (operation, body) = receive_request(stream)?;
            let answer = match operation {
                Operation::Job => Some(join(self.owner.name.as_os_str().as_bytes(), input)),
                Operation::Open => self.file(&body).map(|path| {
                    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                    if name.ends_with(".sst") {
                        *self.opened.entry(name).or_default() += 1;
                    }
                    len_of(&path)
                }),
                Operation::Size => self.file(&body).map(|path| len_of(&path)),
                Operation::List => Some(self.names().join("\n").into_bytes()),
                Operation::Read => self.read(&body)?,
                Operation::Output => {
                    let (name, bytes) = split(&body);
                    std::fs::write(incoming.join(String::from_utf8_lossy(name).as_ref()), bytes)?;
                    Some(Vec::new())
                }
                Operation::Done => {
                    send_answer(stream, Some(&[]))?;
                    return Ok(body);
                }
            };
            send_answer(stream, answer.as_deref())?;
        }
    }

    /// The files of this job: its inputs, and what says how to read them.
    fn names(&self) -> Vec<String> {
        let mut allowed: BTreeSet<String> = self.input.input_files.iter().cloned().collect();
        allowed.insert("CURRENT".to_owned());
        allowed.insert(format!("OPTIONS-{:06}", self.input.options_file_number));
        std::fs::read_dir(&self.owner.directory)
            .expect("lists")
            .map(|entry| entry.expect("lists").file_name().to_string_lossy().into_owned())
            .filter(|name| allowed.contains(name) || name.starts_with("MANIFEST-"))
            .collect()
    }

    fn file(&self, path: &[u8]) -> Option<PathBuf> {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let name = path.strip_prefix(&self.owner.name).ok()?.to_str()?;
        self.names().iter().any(|allowed| allowed == name).then(|| self.owner.directory.join(name))
    }

    fn read(&mut self, body: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let (offset, rest) = body.split_first_chunk::<8>().expect("an offset");
        let (len, path) = rest.split_first_chunk::<8>().expect("a length");
        let Some(path) = self.file(path) else { return Ok(None) };
        let mut bytes = vec![0; u64::from_le_bytes(*len) as usize];
        std::fs::File::open(&path)?.read_exact_at(&mut bytes, u64::from_le_bytes(*offset))?;
        if path.extension().is_some_and(|extension| extension == "sst") {
            self.table_bytes_read += bytes.len() as u64;
        }
        Ok(Some(bytes))
    }
}

fn len_of(path: &Path) -> Vec<u8> {
    std::fs::metadata(path).expect("exists").len().to_le_bytes().to_vec()
}

/// The owner's own remap: RocksDB's name for the store leads to where it lies.
pub struct StoreElsewhere(pub Arc<Owner>);

impl PathRemap for StoreElsewhere {
    fn map(&self, path: &Path) -> Option<PathBuf> {
        Some(self.0.directory.join(path.strip_prefix(&self.0.name).ok()?))
    }
}

/// Gives compactions away; whatever goes wrong is recorded and done locally.
pub struct Offloading(pub Arc<Owner>);

impl CompactionService for Offloading {
    fn name(&self) -> &CStr {
        c"second-process"
    }

    fn schedule(&self, _info: &CompactionServiceJobInfo<'_>, input: &[u8]) -> ScheduleResponse {
        if !self.0.offload.load(Ordering::SeqCst) {
            return ScheduleResponse::from_status(CompactionServiceJobStatus::UseLocal);
        }
        let job = format!("job-{}", self.0.next_job.fetch_add(1, Ordering::SeqCst));
        self.0.waiting.lock().expect("not poisoned").insert(job.clone(), input.to_vec());
        ScheduleResponse::scheduled(&job, CompactionServiceJobStatus::Success).expect("no NUL in it")
    }

    fn wait(&self, job: &CStr, result: &mut Vec<u8>) -> CompactionServiceJobStatus {
        let job = job.to_string_lossy();
        let input = self.0.waiting.lock().expect("not poisoned").remove(job.as_ref()).expect("scheduled before");
        match self.0.run(&job, &input) {
            Ok(bytes) => {
                *result = bytes;
                CompactionServiceJobStatus::Success
            }
            Err(error) => {
                self.0.failures.lock().expect("not poisoned").push(error.to_string());
                CompactionServiceJobStatus::UseLocal
            }
        }
    }
}
