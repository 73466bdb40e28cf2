//! Runs a workload against a target with threads, and times every operation.
//!
//! A run has three phases: the store is filled if the workload reads what it has not written, and
//! updated if that is asked for; it settles (so that the load's compactions are not measured); and
//! then the measured part runs until its seconds, its operations or a stop.
//!
//! Latency is the time of the call, or, in a run at a rate, the time since the operation was due:
//! see the `schedule` module on why.
//!
//! Threads: a conductor runs the phases and watches for stalls; each measured thread runs its own
//! generator and shares only the target, the value pool and one counter line. Each is bound to
//! [`Duty::Foreground`] for as long as it runs. The calling thread is free: a server can run a
//! driver inside itself. Failure: the first error stops all threads and is returned by
//! [`Running::join`]; a panic in a thread does the same.

mod conductor;
mod counters;
mod in_flight;
mod outcome;
mod schedule;
mod thread;
mod thread_state;

#[cfg(test)]
mod tests;

pub use counters::OperationCounts;
pub use outcome::{LatencySummary, LiveData, Outcome};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

#[cfg(doc)]
use ecotone_types::Duty;
use ecotone_types::DutyObserver;

use crate::target::Target;
use crate::workload::WorkloadOptions;
use crate::{Error, Result};
use conductor::Conductor;

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The store is being filled; not measured.
    Loading,
    /// What was loaded is updated; not measured.
    Updating,
    /// The store pays the load's debt of flushes and compactions; not measured.
    Settling,
    /// The workload runs.
    Measuring,
    /// The threads have ended.
    Finished,
}

/// A run at one moment.
#[derive(Clone, Copy, Debug)]
pub struct RunSnapshot {
    /// What it is doing.
    pub phase: Phase,
    /// How many keys the loading phase has put.
    pub loaded: u64,
    /// How long the measured part has run; zero before it.
    pub elapsed: Duration,
    /// Operations of the measured part so far.
    pub counts: OperationCounts,
    /// Bytes of keys and values that the measured part has put so far.
    pub bytes_user: u64,
    /// How long the store was in a stall condition during the measured part, in milliseconds.
    pub stall_ms: f64,
}

/// Starts runs.
#[derive(Debug)]
pub struct Driver;

impl Driver {
    /// Starts a run and returns at once. `observer` is notified of the foreground duty on each
    /// measured thread.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the options are refused. What goes wrong later comes from
    /// [`Running::join`].
    pub fn start(
        target: Arc<dyn Target>,
        options: WorkloadOptions,
        observer: Option<Arc<dyn DutyObserver>>,
    ) -> Result<Running> {
        options.validate()?;
        let conductor = Arc::new(Conductor::new(target, options, observer, Arc::default()));
        // Never sends: that it is dropped, also by a panic, says that the run has ended.
        let (alive, ended) = channel();
        let thread = std::thread::Builder::new()
            .name("bench".into())
            .spawn({
                let conductor = Arc::clone(&conductor);
                move || {
                    let _alive = alive;
                    conductor.run()
                }
            })
            .map_err(|error| Error::options(format!("cannot start a thread: {error}")))?;
        Ok(Running { conductor, thread: Some(thread), ended })
    }

    /// Fills the store with the keys and values that the workload expects, lets it settle, and
    /// returns when that is done: a later run with
    /// [`Preload::Existing`](crate::workload::Preload::Existing) then finds every key. Returns
    /// whether the store settled within the driver's limit. Of a workload that starts from an empty
    /// store nothing is loaded. Once `stop` is set it returns soon, with whatever was loaded by
    /// then.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the options are refused, and the first error of the target.
    pub fn fill(
        target: Arc<dyn Target>,
        options: WorkloadOptions,
        observer: Option<Arc<dyn DutyObserver>>,
        stop: Arc<AtomicBool>,
    ) -> Result<bool> {
        options.validate()?;
        if !options.preloads() {
            return Ok(true);
        }
        Conductor::new(target, options, observer, stop).fill()
    }
}

/// A run that was started. Dropping it stops the run and waits for its threads.
#[derive(Debug)]
pub struct Running {
    conductor: Arc<Conductor>,
    thread: Option<JoinHandle<Result<Outcome>>>,
    ended: Receiver<()>,
}

impl Running {
    /// The run at this moment.
    pub fn snapshot(&self) -> RunSnapshot {
        self.conductor.snapshot()
    }

    /// The user's data in the store at this moment; none if the store held data of which nothing is
    /// known, and before the measured part. Exact where all values have one length; of `mixgraph`
    /// with the asked mean. Counting takes a pass over one bit for each key where the store was
    /// empty at the begin.
    pub fn live_data(&self) -> Option<LiveData> {
        self.conductor.live_data()
    }

    /// Asks the run to end; each thread finishes the operation it is in. Returns at once.
    pub fn stop(&self) {
        self.conductor.stop();
    }

    /// Whether [`Running::join`] would return at once.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end.
    ///
    /// # Errors
    ///
    /// The first error of the target, or [`Error::Panicked`]. A stopped run is no error.
    pub fn join(mut self) -> Result<Outcome> {
        self.wait()
    }

    /// Waits for the end and calls `progress` on this thread every `interval` until then.
    ///
    /// # Errors
    ///
    /// As [`Running::join`].
    pub fn join_with_progress(mut self, interval: Duration, mut progress: impl FnMut(&Running)) -> Result<Outcome> {
        while self.ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            progress(&self);
        }
        self.wait()
    }

    fn wait(&mut self) -> Result<Outcome> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) | None => Err(Error::Panicked),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
            // Nobody is left to report an error to.
            let _ = self.wait();
        }
    }
}
