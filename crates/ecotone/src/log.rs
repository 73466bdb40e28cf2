//! The log, on standard error.
//!
//! Who reads it may be slow, or have stopped reading: then a write waits, and so would every thread of a server that logs something. So a server
//! [hands its lines](background) to a thread that writes them. Commands that are over soon write them themselves.
//!
//! Bounds: [`MOST_LINES`] wait; what is logged beyond them is lost and counted (`ecotone_log_lines_lost_total`).
//!
//! Failure: a line that cannot be written is lost. The device may be full, or who read it gone, and whoever logs goes on all the same.

use std::io::{IsTerminal, Write};

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written: those of a busy minute.
const MOST_LINES: usize = 4096;

/// What a server logs. When it is dropped the lines that wait are written, if that takes no longer than a second.
pub(crate) struct Log {
    lines: NonBlocking,
    _writes: WorkerGuard,
}

impl Log {
    /// Says something that is not logged.
    pub(crate) fn say(&mut self, line: &str) {
        // Who is told nothing sees the exit status.
        let _ = self.lines.write_all(format!("{line}\n").as_bytes());
    }

    /// Counts the lines that were lost.
    pub(crate) fn lost_lines(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let lost = self.lines.error_counter();
        move || lost.dropped_lines() as u64
    }
}

/// Logs what RUST_LOG says or else `level` from now on, as text.
pub(crate) fn directly(level: &str) {
    begin(level, "text", std::io::stderr);
}

/// The same as `text` or `json`, by a thread. Nobody waits for it.
pub(crate) fn background(level: &str, format: &str) -> Log {
    let (lines, writes) = NonBlockingBuilder::default()
        .buffered_lines_limit(MOST_LINES)
        .lossy(true)
        .thread_name("ecotone-log")
        .finish(std::io::stderr());
    begin(level, format, lines.clone());
    Log { lines, _writes: writes }
}

fn begin(level: &str, format: &str, writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level)))
        .with_ansi(std::io::stderr().is_terminal())
        // It would be told of on standard error by what panics where that cannot be written.
        .log_internal_errors(false)
        .with_writer(writer);
    match format {
        "json" => {
            log.json().flatten_event(true).init();
            // Every line is an object, also that of a panic.
            std::panic::set_hook(Box::new(|panic| {
                let backtrace = std::backtrace::Backtrace::capture();
                tracing::error!(%panic, %backtrace, "a thread panicked");
            }));
        }
        _ => log.init(),
    }
}
