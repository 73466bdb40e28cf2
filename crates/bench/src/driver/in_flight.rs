//! The loop of one measured thread whose target has sessions: several operations may be under way.
//!
//! An operation's latency is from when it was handed to the session (or was due) until its answer
//! was read. Those that fit are begun together and sent with one call, as clients with pipelines
//! do; so the wait of the last one for the first is in its latency.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::counters::ThreadCounters;
use super::schedule::{Clock, Schedule};
use super::thread_state::{Limits, RunContext, ThreadOutcome, wait};
use crate::target::{Request, Session};
use crate::workload::{Generator, Operation, OperationKind, Values};
use crate::{Error, Result};

/// No more is begun beside what waits to be sent: replies are read before the server's own buffers
/// are full of them.
const MAX_UNSENT_BYTES: usize = 256 << 10;

/// The operations that a thread has under way.
pub(super) struct InFlight<'a> {
    shared: &'a RunContext<'a>,
    session: Box<dyn Session>,
    depth: usize,
    begun: VecDeque<Begun>,
    key: Vec<u8>,
    values: Values<'a>,
}

struct Begun {
    operation: Operation,
    begin_ns: u64,
}

impl<'a> InFlight<'a> {
    /// None where the target has no sessions. `depth` operations may be under way at once.
    pub(super) fn of(shared: &'a RunContext<'a>, depth: u32) -> Result<Option<Self>> {
        let Some(session) = shared.target.session()? else { return Ok(None) };
        let (key, depth) = (shared.shape.buffer(), depth.max(1) as usize);
        let (begun, values) = (VecDeque::with_capacity(depth), shared.values.values());
        Ok(Some(Self { shared, session, depth, begun, key, values }))
    }

    pub(super) fn has_room(&self) -> bool {
        self.begun.len() < self.depth && self.session.unsent_bytes() < MAX_UNSENT_BYTES
    }

    pub(super) fn begin(&mut self, operation: Operation, begin_ns: u64) -> Result<()> {
        let Self { shared, session, key, values, .. } = self;
        shared.shape.write(operation.key(), key);
        let request = match operation {
            Operation::Put { key: number, value_bytes } => {
                Request::Put { key, value: values.next_value(number, value_bytes) }
            }
            Operation::ReadModifyWrite { key: number, value_bytes } => {
                Request::ReadModifyWrite { key, value: values.next_value(number, value_bytes) }
            }
            Operation::Get { .. } => Request::Get { key },
            Operation::Scan { entries, .. } => Request::Scan { key, entries },
            Operation::Seek { .. } => return Err(Error::options("a target that answers later has no seeks")),
        };
        session.begin(request, self.depth == 1)?;
        self.begun.push_back(Begun { operation, begin_ns });
        Ok(())
    }

    /// Waits for the oldest operation; none is under way: none.
    pub(super) fn finish(&mut self, outcome: &mut ThreadOutcome) -> Result<Option<(OperationKind, u64)>> {
        let Some(Begun { operation, begin_ns }) = self.begun.pop_front() else { return Ok(None) };
        let found = self.session.finish()?;
        match operation {
            Operation::Put { key, value_bytes } | Operation::ReadModifyWrite { key, value_bytes } => {
                outcome.missed += u64::from(!found);
                outcome.wrote(self.key.len(), value_bytes);
                self.shared.mark(key, outcome);
            }
            _ => outcome.missed += u64::from(!found),
        }
        Ok(Some((operation.kind(), begin_ns)))
    }

    /// Whether the oldest operation has its answer already.
    fn is_answered(&self) -> Result<bool> {
        Ok(!self.begun.is_empty() && self.session.is_answered()?)
    }

    /// Carries out all of `operations`, and calls `done` for each. Ends early at a stop.
    pub(super) fn carry_out(
        &mut self,
        operations: impl Iterator<Item = Operation>,
        outcome: &mut ThreadOutcome,
        done: impl Fn(),
    ) -> Result<()> {
        let stop = self.shared.stop;
        let mut operations = operations.take_while(|_| !stop.load(Ordering::Relaxed));
        loop {
            while self.has_room() {
                let Some(operation) = operations.next() else { break };
                self.begin(operation, 0)?;
            }
            if self.finish(outcome)?.is_none() {
                return Ok(());
            }
            done();
        }
    }
}

/// Runs operations until a limit, a stop or an error, and waits for those that are under way then.
pub(super) fn run_in_flight(
    shared: &RunContext<'_>,
    mut in_flight: InFlight<'_>,
    mut generator: Generator,
    mut schedule: Option<Schedule>,
    limits: Limits,
    counters: &ThreadCounters,
    clock: &impl Clock,
) -> Result<ThreadOutcome> {
    let mut outcome = ThreadOutcome::default();
    let (mut begun, mut is_over) = (0, false);
    loop {
        while !is_over && in_flight.has_room() {
            is_over = begun >= limits.ops
                || shared.stop.load(Ordering::Relaxed)
                || limits.follows && shared.leaders_done.load(Ordering::Relaxed);
            if is_over {
                break;
            }
            let operation = generator.next_operation();
            let begin_ns = match &mut schedule {
                // Runs at a rate have one operation under way, so nothing is unanswered while the
                // next one is waited for.
                Some(schedule) => {
                    let due_ns = schedule.next_due_ns();
                    is_over = !wait(shared, limits, clock, due_ns.min(limits.deadline_ns));
                    if due_ns >= limits.deadline_ns && !is_over {
                        // The last interval belongs to the run: without it a low rate would look
                        // higher than offered.
                        outcome.ended_ns = limits.deadline_ns;
                        is_over = true;
                    }
                    due_ns
                }
                None => clock.now_ns(),
            };
            if is_over {
                break;
            }
            in_flight.begin(operation, begin_ns)?;
            begun += 1;
        }
        loop {
            let Some((kind, begin_ns)) = in_flight.finish(&mut outcome)? else { return Ok(outcome) };
            outcome.ended_ns = clock.now_ns();
            outcome.timed(kind, outcome.ended_ns.saturating_sub(begin_ns));
            counters.count(kind);
            counters.show(outcome.bytes_user, outcome.inserted);
            is_over |= outcome.ended_ns >= limits.deadline_ns;
            if !in_flight.is_answered()? {
                break;
            }
        }
    }
}
