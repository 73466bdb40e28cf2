//! What a measured thread is given and what it found, whichever loop it runs.

use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;

use super::counters::LiveKeys;
use super::schedule::Clock;
use crate::target::Target;
use crate::workload::{KeyShape, OperationKind, ValueSource};

/// Latencies of one kind of operation, in nanoseconds.
pub(super) type Latencies = Histogram<u64>;

/// Three significant digits; latencies beyond an hour count as an hour.
const LATENCY_DIGITS: u8 = 3;
const LONGEST_LATENCY_NS: u64 = 3_600_000_000_000;

pub(super) fn new_latencies() -> Latencies {
    #[allow(clippy::expect_used)] // The bounds are constants that the histogram accepts.
    Histogram::new_with_bounds(1, LONGEST_LATENCY_NS, LATENCY_DIGITS).expect("constant bounds are valid")
}

/// What all threads of a run share.
#[derive(Clone, Copy)]
pub(super) struct RunContext<'a> {
    pub(super) target: &'a dyn Target,
    pub(super) values: &'a ValueSource,
    pub(super) shape: KeyShape,
    pub(super) stop: &'a AtomicBool,
    /// Stop of the followers: set when the last leader is done (see [`Limits::follows`]).
    pub(super) leaders_done: &'a AtomicBool,
    /// How many keys the options count.
    pub(super) keys: u64,
    /// Which of them were put; none where all are known to be there, or nothing is known.
    pub(super) live: Option<&'a LiveKeys>,
}

impl RunContext<'_> {
    pub(super) fn mark(&self, key: u64, outcome: &mut ThreadOutcome) {
        if key >= self.keys {
            outcome.inserted += 1;
        } else if let Some(live) = self.live {
            live.mark(key);
        }
    }
}

/// When a thread stops by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// After so many operations.
    pub(super) ops: u64,
    /// At this moment of the clock.
    pub(super) deadline_ns: u64,
    /// Whether it ends when the leaders are done: the writer of `readwhilewriting`.
    pub(super) follows: bool,
}

/// What one thread found.
#[derive(Debug, Default)]
pub(super) struct ThreadOutcome {
    pub(super) latencies: [Option<Latencies>; OperationKind::ALL.len()],
    pub(super) bytes_user: u64,
    pub(super) value_bytes_written: u64,
    pub(super) puts: u64,
    /// Keys beyond those that the options count: each is put once.
    pub(super) inserted: u64,
    pub(super) missed: u64,
    pub(super) ended_ns: u64,
}

/// Waits until an operation is due. Returns `false` when the thread shall end instead.
pub(super) fn wait(shared: &RunContext<'_>, limits: Limits, clock: &impl Clock, due_ns: u64) -> bool {
    while clock.now_ns() < due_ns {
        if shared.stop.load(Ordering::Relaxed) || limits.follows && shared.leaders_done.load(Ordering::Relaxed) {
            return false;
        }
        clock.wait_until(due_ns);
    }
    true
}

impl ThreadOutcome {
    pub(super) fn timed(&mut self, kind: OperationKind, latency_ns: u64) {
        self.latencies[kind.index()].get_or_insert_with(new_latencies).saturating_record(latency_ns);
    }

    pub(super) fn wrote(&mut self, key_bytes: usize, value_bytes: u32) {
        self.puts += 1;
        self.value_bytes_written += u64::from(value_bytes);
        self.bytes_user += key_bytes as u64 + u64::from(value_bytes);
    }
}
