//! A job's output tables as they arrive at the owner.
//!
//! The compaction's own thread fetches a table while another thread checks the one before: on a slow owner either takes about
//! as long as the worker's compaction, and a job should last as long as the longest of the three, not as their sum.
//!
//! # Bounds and failure
//!
//! At most [`OUTPUT_TABLES_MAX`] tables and twice the input in bytes; [`RANGES_AHEAD`] ranges on their way; [`CHECKS_WAITING`]
//! tables between the two threads, behind which fetching waits. The first error of either thread ends the job. The checking
//! thread never outlives its [`Outputs`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use ecotone_engine::{ReceivedTable, VerifyError};
use ecotone_policy::duty::Duty;
use tracing::warn;

use crate::error::{Error, Result};
use crate::federation::Shared;
use crate::file_client::FileClient;
use crate::protocol::wire::OutputReady;

/// Ranges of an output table on their way at a time.
const RANGES_AHEAD: usize = 3;
/// Tables that are here and not yet checked. One is enough to keep both threads busy when tables are of one size.
const CHECKS_WAITING: usize = 1;
/// What small tables may add to the outputs of a small job.
const OUTPUT_SLACK_BYTES: u64 = 16 << 20;
/// Output tables of one job: twice the input tables that a worker takes.
const OUTPUT_TABLES_MAX: usize = 8192;

/// The most that a job may write, on either side: no compaction doubles its input.
pub(crate) fn most_output_bytes(input_bytes: u64) -> u64 {
    input_bytes.saturating_mul(2).saturating_add(OUTPUT_SLACK_BYTES)
}

/// The output tables of one job, fetched and checked one by one.
pub(crate) struct Outputs {
    directory: PathBuf,
    chunk_bytes: usize,
    bytes_allowed: u64,
    bytes: u64,
    names: HashSet<String>,
    checker: Checker,
    is_kept: bool,
}

/// All output tables of a job: here, sound and durable.
pub(crate) struct Received {
    /// By name.
    pub(crate) tables: HashMap<String, ReceivedTable>,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
    /// What checking them cost.
    pub(crate) joules: f64,
}

impl Outputs {
    /// For the outputs of a job that reads `input_bytes`; they will lie in `directory`.
    pub(crate) fn new(shared: &Arc<Shared>, directory: PathBuf, input_bytes: u64) -> Result<Outputs> {
        let checker =
            Checker::start(shared.clone()).map_err(|error| Error::io("start a thread for", &directory, error))?;
        Ok(Outputs {
            directory,
            chunk_bytes: shared.options.limits.chunk_bytes,
            bytes_allowed: most_output_bytes(input_bytes),
            bytes: 0,
            names: HashSet::new(),
            checker,
            is_kept: false,
        })
    }

    /// Fetches a table and hands it to the checking thread. `may_go_on` is asked before every range.
    pub(crate) fn fetch(
        &mut self,
        client: &FileClient,
        table: &OutputReady,
        may_go_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let number = table.file.strip_suffix(".sst").unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Error::BadResult(format!("{:?} is no name of a table", table.file)));
        }
        self.bytes = self.bytes.saturating_add(table.bytes);
        let full = self.names.len() >= OUTPUT_TABLES_MAX || self.bytes > self.bytes_allowed;
        if full || !self.names.insert(table.file.clone()) {
            return Err(Error::BadResult(format!("table {} of {} bytes is one too many", table.file, table.bytes)));
        }
        let path = self.directory.join(&table.file);
        let io = |error| Error::io("write a fetched table to", &path, error);
        std::fs::create_dir_all(&self.directory).map_err(io)?;
        let mut file = File::create(&path).map_err(io)?;

        let mut ranges = VecDeque::new();
        let mut asked = 0;
        let mut written = 0;
        let mut crc32c = 0;
        while written < table.bytes {
            while asked < table.bytes && ranges.len() < RANGES_AHEAD {
                let length = (table.bytes - asked).min(self.chunk_bytes as u64) as usize;
                ranges.push_back((client.begin(&table.file, asked, length), length));
                asked += length as u64;
            }
            may_go_on()?;
            let Some((range, length)) = ranges.pop_front() else { break };
            let data = client.wait(range).map_err(|error| Error::unreachable("worker", error))?;
            if data.len() != length {
                return Err(Error::BadResult(format!("table {} is shorter than {} bytes", table.file, table.bytes)));
            }
            // While the bytes are in the processor's cache; later they would have to be read again.
            crc32c = crc32c::crc32c_append(crc32c, &data);
            file.write_all(&data).map_err(io)?;
            client.recycle(data);
            written += length as u64;
        }
        self.checker.check(Arrived { name: table.file.clone(), path, crc32c })
    }

    /// Waits until every table is checked.
    pub(crate) fn finish(&mut self) -> Result<Received> {
        let (tables, joules) = self.checker.end()?;
        Ok(Received { tables, bytes: self.bytes, joules })
    }

    /// RocksDB takes the tables over.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Outputs {
    /// Removes what came, unless it is kept: the compaction runs here after all.
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.checker.give_up.store(true, Ordering::Release);
        // What it found no longer matters.
        let _ = self.checker.end();
        if let Err(error) = std::fs::remove_dir_all(&self.directory)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            let directory = self.directory.display();
            warn!(%directory, %error, "fetched tables of a failed job could not be removed");
        }
    }
}

/// A table that is here.
struct Arrived {
    name: String,
    path: PathBuf,
    crc32c: u32,
}

type Checked = Result<(HashMap<String, ReceivedTable>, f64)>;

/// The thread that checks tables.
struct Checker {
    arrived: Option<SyncSender<Arrived>>,
    give_up: Arc<AtomicBool>,
    thread: Option<JoinHandle<Checked>>,
}

impl Checker {
    fn start(shared: Arc<Shared>) -> std::io::Result<Checker> {
        let (sender, receiver) = sync_channel(CHECKS_WAITING);
        let give_up = Arc::new(AtomicBool::new(false));
        let inside = give_up.clone();
        let thread = std::thread::Builder::new().name("ecotone-check".into()).spawn(move || {
            let duty = shared.duty(Duty::Compaction);
            let before = shared.thread_use();
            let tables = check_all(&receiver, &inside);
            let joules = shared.thread_use().since(before).joules;
            drop(duty);
            tables.map(|tables| (tables, joules))
        })?;
        Ok(Checker { arrived: Some(sender), give_up, thread: Some(thread) })
    }

    fn check(&mut self, table: Arrived) -> Result<()> {
        let taken = self.arrived.as_ref().is_some_and(|arrived| arrived.send(table).is_ok());
        // The thread ends early only with an error.
        if taken { Ok(()) } else { self.end().map(|_| ()) }
    }

    fn end(&mut self) -> Checked {
        drop(self.arrived.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(checked)) => checked,
            _ => Err(Error::BadResult("its tables could not be checked".into())),
        }
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.give_up.store(true, Ordering::Release);
        let _ = self.end();
    }
}

fn check_all(arrived: &Receiver<Arrived>, give_up: &AtomicBool) -> Result<HashMap<String, ReceivedTable>> {
    let mut tables = HashMap::new();
    for table in arrived {
        if give_up.load(Ordering::Acquire) {
            return Err(Error::Cancelled);
        }
        tables.insert(table.name, ReceivedTable::take(&table.path, table.crc32c).map_err(refused)?);
    }
    Ok(tables)
}

/// Tells a worker's fault from one of this server's disk.
pub(crate) fn refused(error: VerifyError) -> Error {
    match error {
        VerifyError::Io { action, path, error } => Error::io(action, &path, error),
        other => Error::BadResult(other.to_string()),
    }
}
