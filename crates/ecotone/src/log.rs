//! The log, on standard error.
//!
//! Who reads it may be slow, or have stopped reading: then a write waits, and so would every thread
//! of a server that logs something. So a server [hands its lines](background) to a thread that
//! writes them. Commands that are over soon write them themselves.
//!
//! Bounds: [`MAX_LINES`] wait; what is logged beyond them is lost and counted
//! (`ecotone_log_lines_lost_total`). At its end the process waits for the lines that are left, for
//! [`MAX_WAIT`].
//!
//! Failure: a line that cannot be written is lost. The device may be full, or who read it gone, and
//! whoever logs goes on all the same. So are the last lines of a process that is killed.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written: those of a busy minute.
const MAX_LINES: usize = 4096;

/// How long a process that ends waits for who reads them.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// How often it is tried to ask for that.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Lines to be written by a thread, where there is one.
static LINES: OnceLock<Lines> = OnceLock::new();

static LOST: AtomicU64 = AtomicU64::new(0);

enum LogEntry {
    Line(Vec<u8>),
    /// Answers once all lines before it are written.
    WhenWritten(Sender<()>),
}

/// Takes lines for the thread. Never waits.
#[derive(Clone)]
struct Lines(SyncSender<LogEntry>);

impl Write for Lines {
    /// A line, or several, whole.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        if self.0.try_send(LogEntry::Line(line.to_vec())).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Lines that were lost.
pub(crate) fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Logs what RUST_LOG says or else `level` from now on, as text.
pub(crate) fn directly(level: &str) {
    begin(level, "text", std::io::stderr);
}

/// The same as `text` or `json`, by a thread where one is to be had. Call [`flush`] at the end.
pub(crate) fn background(level: &str, format: &str) {
    let (sender, entries) = sync_channel(MAX_LINES);
    match std::thread::Builder::new().name("ecotone-log".into()).spawn(move || write(&entries)) {
        Ok(_) => {
            let lines = LINES.get_or_init(|| Lines(sender)).clone();
            begin(level, format, lines);
        }
        Err(_) => begin(level, format, std::io::stderr),
    }
}

/// Says something that is not logged, behind what was.
pub(crate) fn say(line: &str) {
    let line = format!("{line}\n");
    // The exit status says so, too, where nobody reads.
    let _ = match LINES.get() {
        Some(lines) => lines.clone().write_all(line.as_bytes()),
        None => std::io::stderr().write_all(line.as_bytes()),
    };
}

/// Waits until what was logged is written, for [`MAX_WAIT`] at most.
pub(crate) fn flush() {
    let Some(Lines(lines)) = LINES.get() else { return };
    let until = Instant::now() + MAX_WAIT;
    let (written, answer) = channel();
    let mut question = LogEntry::WhenWritten(written);
    while let Err(TrySendError::Full(refused)) = lines.try_send(question) {
        if Instant::now() >= until {
            return;
        }
        question = refused;
        std::thread::sleep(RETRY_INTERVAL);
    }
    let _ = answer.recv_timeout(until.saturating_duration_since(Instant::now()));
}

fn write(entries: &Receiver<LogEntry>) {
    for entry in entries {
        match entry {
            LogEntry::Line(line) => drop(std::io::stderr().write_all(&line)),
            LogEntry::WhenWritten(written) => drop(written.send(())),
        }
    }
}

fn begin(level: &str, format: &str, writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level)))
        .with_ansi(std::io::stderr().is_terminal())
        // It would be reported on standard error, which panics where that cannot be written.
        .log_internal_errors(false)
        .with_writer(writer);
    match format {
        "json" => log.json().flatten_event(true).init(),
        _ => log.init(),
    }
    if LINES.get().is_some() || format == "json" {
        // By the same way as all lines, and an object where they are.
        std::panic::set_hook(Box::new(|panic| {
            let backtrace = std::backtrace::Backtrace::capture();
            tracing::error!(%panic, %backtrace, "a thread panicked");
        }));
    }
}
