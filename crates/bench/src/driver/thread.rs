//! The loop of one measured thread.

use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;

use super::clock::Clock;
use super::counters::{LiveKeys, ThreadCounters};
use super::in_flight::{InFlight, run_in_flight};
use super::pacing::Schedule;
use crate::Result;
use crate::target::Target;
use crate::workload::{Generator, KeyShape, Operation, OperationKind, ValuePool};

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
pub(super) struct Shared<'a> {
    pub(super) target: &'a dyn Target,
    pub(super) values: &'a ValuePool,
    pub(super) shape: KeyShape,
    pub(super) stop: &'a AtomicBool,
    /// Stop of the followers: set when the last leader is done (see [`Limits::follows`]).
    pub(super) leaders_done: &'a AtomicBool,
    /// How many keys the options count.
    pub(super) keys: u64,
    /// Which of them were put; none where all are known to be there, or nothing is known.
    pub(super) live: Option<&'a LiveKeys>,
}

impl Shared<'_> {
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

/// Runs operations until a limit, a stop or an error.
pub(super) fn run(
    shared: &Shared<'_>,
    mut generator: Generator,
    mut schedule: Option<Schedule>,
    limits: Limits,
    counters: &ThreadCounters,
    clock: &impl Clock,
) -> Result<ThreadOutcome> {
    if let Some(in_flight) = InFlight::of(shared, shared.target.pipeline())? {
        return run_in_flight(shared, in_flight, generator, schedule, limits, counters, clock);
    }
    let mut outcome = ThreadOutcome::default();
    let mut executor = Executor::new(shared);
    let mut done = 0;
    while done < limits.ops && !shared.stop.load(Ordering::Relaxed) {
        if limits.follows && shared.leaders_done.load(Ordering::Relaxed) {
            break;
        }
        let operation = generator.next_operation();
        let begin_ns = match &mut schedule {
            Some(schedule) => {
                let due_ns = schedule.next_due_ns();
                if !wait(shared, limits, clock, due_ns.min(limits.deadline_ns)) {
                    break;
                }
                if due_ns >= limits.deadline_ns {
                    // The last interval belongs to the run: without it a low rate would look higher than offered.
                    outcome.ended_ns = limits.deadline_ns;
                    break;
                }
                due_ns
            }
            None => clock.now_ns(),
        };
        executor.execute(&operation, &mut outcome)?;
        outcome.ended_ns = clock.now_ns();
        let kind = operation.kind();
        outcome.timed(kind, outcome.ended_ns.saturating_sub(begin_ns));
        counters.count(kind);
        counters.show(outcome.bytes_user, outcome.inserted);
        done += 1;
        if outcome.ended_ns >= limits.deadline_ns {
            break;
        }
    }
    Ok(outcome)
}

/// Waits until an operation is due. Returns `false` when the thread shall end instead.
pub(super) fn wait(shared: &Shared<'_>, limits: Limits, clock: &impl Clock, due_ns: u64) -> bool {
    while clock.now_ns() < due_ns {
        if shared.stop.load(Ordering::Relaxed) || limits.follows && shared.leaders_done.load(Ordering::Relaxed) {
            return false;
        }
        clock.wait_until(due_ns);
    }
    true
}

/// Turns operations into calls of the target, with buffers that are used again.
pub(super) struct Executor<'a> {
    shared: &'a Shared<'a>,
    key: Vec<u8>,
    read: Vec<u8>,
    /// Where in the pool the next value begins.
    position: u64,
}

impl<'a> Executor<'a> {
    pub(super) fn new(shared: &'a Shared<'a>) -> Self {
        Self { shared, key: shared.shape.buffer(), read: Vec::new(), position: 0 }
    }

    pub(super) fn execute(&mut self, operation: &Operation, outcome: &mut ThreadOutcome) -> Result<()> {
        let Self { shared, key, read, position } = self;
        shared.shape.write(operation.key(), key);
        match *operation {
            Operation::Put { key: number, value_bytes } => {
                shared.target.put(key, shared.values.value(*position, value_bytes))?;
                *position += u64::from(value_bytes);
                outcome.wrote(key.len(), value_bytes);
                shared.mark(number, outcome);
            }
            Operation::Get { .. } => outcome.missed += u64::from(!shared.target.get(key, read)?),
            Operation::Seek { entries, .. } | Operation::Scan { entries, .. } => {
                shared.target.seek_scan(key, entries)?;
            }
            Operation::ReadModifyWrite { key: number, value_bytes } => {
                let value = shared.values.value(*position, value_bytes);
                outcome.missed += u64::from(!shared.target.read_modify_write(key, read, value)?);
                *position += u64::from(value_bytes);
                outcome.wrote(key.len(), value_bytes);
                shared.mark(number, outcome);
            }
        }
        Ok(())
    }
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
