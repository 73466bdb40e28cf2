//! A job's output tables as they arrive at the owner.
//!
//! The compaction's own thread fetches a table while another thread checks the one before: on a
//! slow owner either takes about as long as the worker's compaction, and a job should last as long
//! as the longest of the three, not as their sum.
//!
//! # Bounds and failure
//!
//! At most [`MAX_OUTPUT_TABLES`] tables and twice the input in bytes; [`RANGES_AHEAD`] ranges on
//! their way; [`CHECKS_WAITING`] tables between the two threads, behind which fetching waits. The
//! first error of either thread ends the job. The checking thread never outlives its [`Outputs`]:
//! it stops in the middle of a table when that is given up. Whoever waits for it checks every
//! [`CHECK_POLL_INTERVAL`] whether the job may go on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ecotone_engine::{ExpectedTables, ReceivedTable, RemoteJob, VerifyError};
use ecotone_io::objects::{Crc32c, ObjectDirectory, Unsealed};
use ecotone_io::tap::Tap;
use ecotone_rocks::verify::VerifyError as TableError;
use ecotone_transport::file_client::FileClient;
use ecotone_transport::wire::OutputReady;
use ecotone_types::Duty;
use tracing::warn;

use crate::config::max_output_bytes;
use crate::error::{Error, Result};
use crate::member::Member;

/// Ranges of an output table on their way at a time.
const RANGES_AHEAD: usize = 3;
/// Tables that are here and not yet checked. One is enough to keep both threads busy when tables
/// are of one size.
const CHECKS_WAITING: usize = 1;
/// How long a job that may not go on can wait for the checking thread: much less than anybody
/// notices.
const CHECK_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Output tables of one job: twice the input tables that a worker takes.
const MAX_OUTPUT_TABLES: usize = 8192;

/// The output tables of one job, fetched and checked one by one.
pub(crate) struct Outputs {
    directory: ObjectDirectory,
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
    /// For the outputs of a job.
    pub(crate) fn new(member: &Arc<Member>, job: &RemoteJob) -> Result<Outputs> {
        let directory = ObjectDirectory::new(job.output_directory(), Tap::SILENT);
        let checker = Checker::start(member.clone(), job.expected_tables())
            .map_err(|error| Error::io("start a thread for", directory.path(), error))?;
        Ok(Outputs {
            directory,
            chunk_bytes: member.options.limits.chunk_bytes,
            bytes_allowed: max_output_bytes(job.input_bytes),
            bytes: 0,
            names: HashSet::new(),
            checker,
            is_kept: false,
        })
    }

    /// Fetches a table and hands it to the checking thread. `may_go_on` is asked before every
    /// range.
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
        let full = self.names.len() >= MAX_OUTPUT_TABLES || self.bytes > self.bytes_allowed;
        if full || !self.names.insert(table.file.clone()) {
            return Err(Error::BadResult(format!("table {} of {} bytes is one too many", table.file, table.bytes)));
        }
        let io = |error| Error::io("write a fetched table to", &self.directory.path().join(&table.file), error);
        self.directory.make().map_err(io)?;
        let mut object = self.directory.create(&table.file).map_err(io)?;

        let mut ranges = VecDeque::new();
        let mut asked = 0;
        while object.bytes() < table.bytes {
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
            object.append(&data).map_err(io)?;
            client.recycle(data);
        }
        self.checker.check(Arrived { name: table.file.clone(), object }, may_go_on)
    }

    /// Waits until every table is checked, as long as `may_go_on`.
    pub(crate) fn finish(&mut self, may_go_on: impl Fn() -> Result<()>) -> Result<Received> {
        let (tables, joules) = self.checker.end(may_go_on)?;
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
        self.checker.stop();
        if let Err(error) = std::fs::remove_dir_all(self.directory.path())
            && error.kind() != std::io::ErrorKind::NotFound
        {
            let directory = self.directory.path().display();
            warn!(%directory, %error, "fetched tables of a failed job could not be removed");
        }
    }
}

/// A table that is here.
struct Arrived {
    name: String,
    object: Unsealed<Crc32c>,
}

type Checked = Result<(HashMap<String, ReceivedTable>, f64)>;

/// The thread that checks tables.
struct Checker {
    /// `None` when no more will come.
    arrived: Option<Sender<Arrived>>,
    /// One message for each table that the thread takes; closed when it has ended.
    taken: Receiver<()>,
    /// Tables that it has not taken yet.
    waiting: usize,
    give_up: Arc<AtomicBool>,
    thread: Option<JoinHandle<Checked>>,
}

impl Checker {
    fn start(member: Arc<Member>, expected: ExpectedTables) -> std::io::Result<Checker> {
        Checker::spawn(move |arrived, taken, give_up| {
            let duty = member.duty(Duty::Compaction);
            let before = member.thread_use();
            let tables = check_all(&arrived, &taken, expected, give_up);
            let joules = member.thread_use().since(before).joules;
            drop(duty);
            tables.map(|tables| (tables, joules))
        })
    }

    fn spawn(
        check: impl FnOnce(Receiver<Arrived>, Sender<()>, &AtomicBool) -> Checked + Send + 'static,
    ) -> std::io::Result<Checker> {
        let (arrived, to_check) = channel();
        let (takes, taken) = channel();
        let give_up = Arc::new(AtomicBool::new(false));
        let inside = give_up.clone();
        let thread =
            std::thread::Builder::new().name("ecotone-check".into()).spawn(move || check(to_check, takes, &inside))?;
        Ok(Checker { arrived: Some(arrived), taken, waiting: 0, give_up, thread: Some(thread) })
    }

    /// Hands a table over as soon as fewer than [`CHECKS_WAITING`] wait.
    fn check(&mut self, table: Arrived, may_go_on: impl Fn() -> Result<()>) -> Result<()> {
        while self.waiting >= CHECKS_WAITING {
            if !self.wait_for_a_take(&may_go_on)? {
                return self.end(may_go_on).map(|_| ());
            }
        }
        let is_sent = self.arrived.as_ref().is_some_and(|arrived| arrived.send(table).is_ok());
        self.waiting += 1;
        // The thread ends early only with an error.
        if is_sent { Ok(()) } else { self.end(may_go_on).map(|_| ()) }
    }

    /// Waits until the thread takes a table; `false` when it has ended.
    fn wait_for_a_take(&mut self, may_go_on: impl Fn() -> Result<()>) -> Result<bool> {
        loop {
            match self.taken.recv_timeout(CHECK_POLL_INTERVAL) {
                Ok(()) => {
                    self.waiting -= 1;
                    return Ok(true);
                }
                Err(RecvTimeoutError::Timeout) => may_go_on()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
    }

    fn end(&mut self, may_go_on: impl Fn() -> Result<()>) -> Checked {
        drop(self.arrived.take());
        while self.wait_for_a_take(&may_go_on)? {}
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(checked)) => checked,
            _ => Err(Error::BadResult("its tables could not be checked".into())),
        }
    }

    /// Stops the thread, wherever it is. What it found no longer matters.
    fn stop(&mut self) {
        self.give_up.store(true, Ordering::Relaxed);
        let _ = self.end(|| Ok(()));
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn check_all(
    arrived: &Receiver<Arrived>,
    taken: &Sender<()>,
    expected: ExpectedTables,
    give_up: &AtomicBool,
) -> Result<HashMap<String, ReceivedTable>> {
    let mut tables = HashMap::new();
    for table in arrived {
        // Nobody hears it only once the job has been given up.
        let _ = taken.send(());
        let received = ReceivedTable::take(table.object, expected, give_up).map_err(refused)?;
        tables.insert(table.name, received);
    }
    Ok(tables)
}

/// Distinguishes a worker's fault from one of this server's disk.
pub(crate) fn refused(error: VerifyError) -> Error {
    match error {
        VerifyError::Io { action, path, error } => Error::io(action, &path, error),
        VerifyError::Table(TableError::Stopped { .. }) => Error::Cancelled,
        other => Error::BadResult(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use ecotone_engine::{Collects, TableFormat};

    use super::*;

    fn table() -> Arrived {
        let directory = tempfile::tempdir().unwrap();
        let objects = ObjectDirectory::new(directory.path(), Tap::SILENT);
        // Its file goes with its directory.
        Arrived { name: "000001.sst".into(), object: objects.create("000001.sst").unwrap() }
    }

    /// A thread that is busy with its first table until that is given up.
    fn busy() -> Checker {
        Checker::spawn(|arrived, taken, give_up| {
            let first = arrived.recv();
            taken.send(()).unwrap();
            while first.is_ok() && !give_up.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Err(Error::Cancelled)
        })
        .unwrap()
    }

    /// Lets a job go on for two checks.
    fn twice() -> impl Fn() -> Result<()> {
        let checks = AtomicUsize::new(0);
        move || if checks.fetch_add(1, Ordering::Relaxed) < 2 { Ok(()) } else { Err(Error::Cancelled) }
    }

    #[test]
    fn a_job_that_is_cancelled_does_not_wait_for_a_table_that_is_being_checked() {
        // While a further table waits to be checked, and when all have come.
        let mut checker = busy();
        for _ in 0..=CHECKS_WAITING {
            checker.check(table(), || Ok(())).unwrap();
        }
        assert!(matches!(checker.check(table(), twice()), Err(Error::Cancelled)));
        drop(checker);

        let mut checker = busy();
        checker.check(table(), || Ok(())).unwrap();
        assert!(matches!(checker.end(twice()), Err(Error::Cancelled)));
        drop(checker);
    }

    #[test]
    fn what_the_thread_found_is_told_to_whoever_hands_it_a_table() {
        let mut checker = Checker::spawn(|arrived, taken, give_up| {
            let collects = Collects { references: true, samples: true, ..Collects::default() };
            let format = TableFormat { block_bytes: 4096, bloom_bits_per_key: 10, collects };
            let tables = check_all(&arrived, &taken, format.into(), give_up)?;
            Ok((tables, 0.0))
        })
        .unwrap();
        // There is no such file.
        let reported = (0..3).find_map(|_| checker.check(table(), || Ok(())).err());
        assert!(matches!(reported, Some(Error::BadResult(_))), "{reported:?}");
    }
}
