//! One server under the lab: its process, what is said to it, what it prints, its log.
//!
//! A thread for each server reads its standard output and passes what it finds to the lab through a
//! bounded queue, so that a server that floods its output is slowed by its pipe instead of filling
//! the lab's memory. Dropping kills the process and all it started, and waits for it.

use std::{
    ffi::OsString,
    fs::File,
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc::SyncSender,
    thread,
    time::{Duration, Instant},
};

use ecotone_server::record::Record;

use crate::error::LabError;
use crate::process::{self, Signal};

/// Longest line of a server. A `final` with ten thousand stalls stays far below.
const MAX_LINE_BYTES: u64 = 4 << 20;
/// How much of a log's end is shown in an error.
const LOG_TAIL_BYTES: u64 = 4096;
/// How many of the last lines of a log are shown in an error.
const LOG_TAIL_LINES: usize = 25;
/// How long the process may take to end once its output is closed.
const END_AFTER_CLOSE: Duration = Duration::from_secs(2);
/// What begins the names of variables that are settings of a server, or name a file of them.
const SETTINGS_PREFIX: &[u8] = b"ECOTONE_";
/// How often a process is asked whether it has ended.
const POLL: Duration = Duration::from_millis(10);

/// What a server's output brought.
pub(crate) enum Event {
    /// A record.
    Record(Box<Record>),
    /// A line that is no record, shortened.
    Line(String),
    /// The output is closed: the server has ended, or is about to.
    Closed,
}

/// A running server.
pub(crate) struct ServerProcess {
    child: Child,
    input: Option<ChildStdin>,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts `program` with `arguments` and environment `variables`, its errors going to the file
    /// `log`; what it prints arrives in `events` as `(index, event)`. The thread that calls this
    /// must live as long as the server should.
    pub(crate) fn start(
        program: &Path,
        arguments: &[OsString],
        variables: &[(&str, String)],
        log: PathBuf,
        index: usize,
        events: SyncSender<(usize, Event)>,
    ) -> Result<ServerProcess, LabError> {
        let log_file = File::create(&log).map_err(LabError::io("cannot make log", &log))?;
        let mut command = Command::new(program);
        // What a user has set for a server of theirs would make this one another than the report
        // says: a limit, a password, an address.
        let settings = std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(SETTINGS_PREFIX));
        for (name, _) in settings {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file);
        process::bind_to_this_thread(&mut command);
        let mut child = command.spawn().map_err(LabError::io("cannot start server program", program))?;
        let input = child.stdin.take();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || read(output, index, &events));
        }
        Ok(ServerProcess { child, input, log })
    }

    /// Says a line to the server. False if it no longer listens; its end is then about to arrive as
    /// an event.
    pub(crate) fn say(&mut self, line: &str) -> bool {
        let Some(input) = &mut self.input else { return false };
        input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush()).is_ok()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Signals the process, unless it has ended.
    pub(crate) fn signal(&mut self, signal: Signal) {
        // Reaped already, its id may be another's.
        if self.try_end().is_none() {
            process::signal(&self.child, signal);
        }
    }

    /// How it ended; none if it still runs.
    pub(crate) fn try_end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// How it ended, once its output is closed; none if it still runs.
    pub(crate) fn end(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + END_AFTER_CLOSE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
                _ => return None,
            }
        }
    }

    /// The end of its log, for an error.
    pub(crate) fn log_tail(&self) -> String {
        let tail = (|| {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
            std::io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
        })();
        match tail {
            Ok(text) if text.trim().is_empty() => "its log is empty".to_owned(),
            Ok(text) => {
                let lines: Vec<&str> = text.trim_end().lines().collect();
                let lines = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
                format!("its log ends:\n  {}", lines.join("\n  "))
            }
            Err(error) => format!("its log cannot be read: {error}"),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Reaped already, its id may be another's.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            process::kill_group(&self.child);
            if let Err(error) = self.child.wait() {
                tracing::warn!(%error, "cannot wait for a killed server");
            }
        }
    }
}

/// Reads a server's output to its end. Ends early when nobody listens any more.
fn read(output: ChildStdout, index: usize, events: &SyncSender<(usize, Event)>) {
    /// How much of a line that is no record is shown.
    const SHOWN_CHARS: usize = 200;
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match output.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        let event = match serde_json::from_str::<Record>(text) {
            Ok(record) => Event::Record(Box::new(record)),
            Err(error) => Event::Line(format!("`{}` ({error})", text.chars().take(SHOWN_CHARS).collect::<String>())),
        };
        if events.send((index, event)).is_err() {
            return;
        }
    }
    // Nobody listens: the lab has ended already.
    events.send((index, Event::Closed)).ok();
}
