//! The loop of one measured thread.

use std::sync::atomic::Ordering;

use super::counters::ThreadCounters;
use super::in_flight::{InFlight, run_in_flight};
use super::schedule::{Clock, Schedule};
use super::thread_state::{Limits, RunContext, ThreadOutcome, wait};
use crate::Result;
use crate::workload::{Generator, Operation, Values};

/// Runs operations until a limit, a stop or an error.
pub(super) fn run(
    shared: &RunContext<'_>,
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
                    // The last interval belongs to the run: without it a low rate would look higher
                    // than offered.
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

/// Turns operations into calls of the target, with buffers that are used again.
pub(super) struct Executor<'a> {
    shared: &'a RunContext<'a>,
    key: Vec<u8>,
    read: Vec<u8>,
    values: Values<'a>,
}

impl<'a> Executor<'a> {
    pub(super) fn new(shared: &'a RunContext<'a>) -> Self {
        Self { shared, key: shared.shape.buffer(), read: Vec::new(), values: shared.values.values() }
    }

    pub(super) fn execute(&mut self, operation: &Operation, outcome: &mut ThreadOutcome) -> Result<()> {
        let Self { shared, key, read, values } = self;
        shared.shape.write(operation.key(), key);
        match *operation {
            Operation::Put { key: number, value_bytes } => {
                shared.target.put(key, values.next_value(number, value_bytes))?;
                outcome.wrote(key.len(), value_bytes);
                shared.mark(number, outcome);
            }
            Operation::Get { .. } => outcome.missed += u64::from(!shared.target.get(key, read)?),
            Operation::Seek { entries, .. } | Operation::Scan { entries, .. } => {
                shared.target.seek_scan(key, entries)?;
            }
            Operation::ReadModifyWrite { key: number, value_bytes } => {
                let value = values.next_value(number, value_bytes);
                outcome.missed += u64::from(!shared.target.read_modify_write(key, read, value)?);
                outcome.wrote(key.len(), value_bytes);
                shared.mark(number, outcome);
            }
        }
        Ok(())
    }
}
