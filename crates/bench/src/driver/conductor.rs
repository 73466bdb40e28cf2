//! Runs the phases of a run and its threads.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use ecotone_types::{Duty, DutyObserver};

use super::counters::{LiveKeys, OperationCounts, ThreadCounters};
use super::in_flight::InFlight;
use super::outcome::{LiveData, Outcome, Sum};
use super::schedule::{MonotonicClock, Schedule};
use super::thread::{Executor, run};
use super::thread_state::{Limits, RunContext, ThreadOutcome};
use super::{Phase, RunSnapshot};
use crate::measure::{ProcessUsage, reset_rss_peak};
use crate::target::{STALL_SAMPLE_INTERVAL, Target};
use crate::workload::{Generator, KeyShape, Operation, Preload, ValueSource, Workload, WorkloadOptions};
use crate::{Error, Result};

/// How long a store may take to settle after its load.
const SETTLE_LIMIT: Duration = Duration::from_secs(300);

/// How many operations a thread has under way before the measured part, where the target has
/// sessions: nobody waits for a network then.
const UNMEASURED_PIPELINE: u32 = 64;

const PHASES: [Phase; 5] = [Phase::Loading, Phase::Updating, Phase::Settling, Phase::Measuring, Phase::Finished];

pub(super) struct Conductor {
    target: Arc<dyn Target>,
    options: WorkloadOptions,
    observer: Option<Arc<dyn DutyObserver>>,
    counters: Vec<ThreadCounters>,
    stop: Arc<AtomicBool>,
    phase: AtomicU8,
    loaded: AtomicU64,
    begin: OnceLock<Instant>,
    /// Which keys were put, where the store was empty at the begin.
    live: OnceLock<LiveKeys>,
    stall_ns: AtomicU64,
}

impl std::fmt::Debug for Conductor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conductor").field("target", &self.target.name()).field("options", &self.options).finish()
    }
}

impl Conductor {
    pub(super) fn new(
        target: Arc<dyn Target>,
        options: WorkloadOptions,
        observer: Option<Arc<dyn DutyObserver>>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let threads = options.workload.driver_threads(options.threads);
        Self {
            target,
            observer,
            counters: (0..threads).map(|_| ThreadCounters::default()).collect(),
            stop,
            phase: AtomicU8::new(0),
            loaded: AtomicU64::new(0),
            begin: OnceLock::new(),
            live: OnceLock::new(),
            stall_ns: AtomicU64::new(0),
            options,
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> RunSnapshot {
        RunSnapshot {
            phase: PHASES[usize::from(self.phase.load(Ordering::Acquire))],
            loaded: self.loaded.load(Ordering::Relaxed),
            elapsed: self.begin.get().map(Instant::elapsed).unwrap_or_default(),
            counts: self.counts(),
            bytes_user: self.counters.iter().map(ThreadCounters::bytes_user).sum(),
            stall_ms: self.stall_ns.load(Ordering::Relaxed) as f64 / 1e6,
        }
    }

    pub(super) fn live_data(&self) -> Option<LiveData> {
        let options = &self.options;
        self.begin.get()?;
        let begun_with = self.loaded_keys().or_else(|| self.live.get().map(LiveKeys::count))?;
        let keys = begun_with + self.counters.iter().map(ThreadCounters::inserted).sum::<u64>();
        Some(LiveData { keys, bytes: keys as f64 * f64::from(options.key_bytes + options.value_bytes) })
    }

    /// The keys that the store was filled with, where it was filled for this run.
    fn loaded_keys(&self) -> Option<u64> {
        match self.options.preload {
            Preload::Filled => Some(self.options.keys),
            _ => self.options.preloads().then(|| self.loaded.load(Ordering::Relaxed)),
        }
    }

    fn counts(&self) -> OperationCounts {
        let mut counts = OperationCounts::default();
        self.counters.iter().for_each(|counters| counters.add_to(&mut counts));
        counts
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(PHASES.iter().position(|&other| other == phase).unwrap_or(0) as u8, Ordering::Release);
    }

    /// Runs all phases.
    pub(super) fn run(&self) -> Result<Outcome> {
        let values = self.values();
        let mut load = Sum::default();
        let mut settled = false;
        if self.options.preloads() {
            (load, settled) = self.fill_with(&values)?;
        }
        self.enter(Phase::Measuring);
        let outcome = self.measure(&values, load.thread, settled);
        self.enter(Phase::Finished);
        outcome
    }

    /// Runs only the phases before the measured part. Returns whether the store settled.
    pub(super) fn fill(&self) -> Result<bool> {
        let (_, settled) = self.fill_with(&self.values())?;
        self.enter(Phase::Finished);
        Ok(settled)
    }

    fn values(&self) -> ValueSource {
        let options = &self.options;
        ValueSource::new(options.values, options.seed, options.longest_value_bytes())
    }

    fn fill_with(&self, values: &ValueSource) -> Result<(Sum, bool)> {
        let load = self.before(values, Self::load_share)?;
        if self.options.updates_before() > 0 {
            self.enter(Phase::Updating);
            // What is there is the load's keys, whatever is updated.
            self.before(values, Self::update_share)?;
        }
        self.enter(Phase::Settling);
        let settled = !self.stopped() && self.target.settle(SETTLE_LIMIT, &self.stop)?;
        if !settled && !self.stopped() {
            tracing::warn!(
                "the store still compacts its load after {} s; the numbers include some of that work",
                SETTLE_LIMIT.as_secs()
            );
        }
        Ok((load, settled))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Lets all threads do what comes before the measured part.
    fn before(
        &self,
        values: &ValueSource,
        share: fn(&Self, &RunContext<'_>, u32) -> Result<ThreadOutcome>,
    ) -> Result<Sum> {
        let leaders_done = AtomicBool::new(false);
        let shared = self.shared(values, &leaders_done, None);
        let threads = self.options.threads;
        let mut sum = Sum::default();
        std::thread::scope(|scope| {
            let handles = (0..threads)
                .map(|thread| self.spawn(scope, threads, move |conductor| share(conductor, &shared, thread)))
                .collect::<Result<Vec<_>>>();
            for outcome in join_all(handles?)? {
                sum.add(outcome);
            }
            Ok(sum)
        })
    }

    fn load_share(&self, shared: &RunContext<'_>, thread: u32) -> Result<ThreadOutcome> {
        let operations = Generator::preload(&self.options, thread, self.options.threads);
        self.carry_out(shared, operations, || {
            self.loaded.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn update_share(&self, shared: &RunContext<'_>, thread: u32) -> Result<ThreadOutcome> {
        self.carry_out(shared, Generator::updates_before(&self.options, thread, self.options.threads), || ())
    }

    /// Carries out what is not measured, until the end or a stop.
    fn carry_out(
        &self,
        shared: &RunContext<'_>,
        operations: impl Iterator<Item = Operation>,
        done: impl Fn(),
    ) -> Result<ThreadOutcome> {
        let mut outcome = ThreadOutcome::default();
        if let Some(mut in_flight) = InFlight::of(shared, UNMEASURED_PIPELINE)? {
            in_flight.carry_out(operations, &mut outcome, done)?;
            return Ok(outcome);
        }
        let mut executor = Executor::new(shared);
        for operation in operations {
            if self.stopped() {
                break;
            }
            executor.execute(&operation, &mut outcome)?;
            done();
        }
        Ok(outcome)
    }

    fn measure(&self, values: &ValueSource, load: ThreadOutcome, settled: bool) -> Result<Outcome> {
        let options = &self.options;
        let threads = options.workload.driver_threads(options.threads);
        // Of a store that was filled, all is known; of one that held data before, nothing.
        let counts_keys = options.preload == Preload::Automatic && !options.preloads();
        let live = counts_keys.then(|| self.live.get_or_init(|| LiveKeys::new(options.keys)));
        let leaders_done = AtomicBool::new(false);
        let leaders_left = AtomicU32::new(options.threads);
        let shared = self.shared(values, &leaders_done, live);
        let stalled_before = self.target.stall_time()?;
        reset_rss_peak();
        let usage_at_begin = ProcessUsage::now();
        let clock = MonotonicClock::starting_now();
        self.begin.get_or_init(Instant::now);
        let (clock, leaders_left) = (&clock, &leaders_left);
        let mut sum = Sum::default();
        std::thread::scope(|scope| {
            let handles = (0..threads)
                .map(|thread| {
                    self.spawn(scope, threads, move |conductor| {
                        let limits = conductor.limits(thread);
                        let generator = Generator::new(&conductor.options, thread);
                        let schedule = schedule(&conductor.options, thread);
                        let counters = &conductor.counters[thread as usize];
                        let outcome = run(&shared, generator, schedule, limits, counters, clock);
                        if !limits.follows && leaders_left.fetch_sub(1, Ordering::Relaxed) == 1 {
                            shared.leaders_done.store(true, Ordering::Relaxed);
                        }
                        outcome
                    })
                })
                .collect::<Result<Vec<_>>>()?;
            let watched = self.watch_stalls(stalled_before, &handles);
            for outcome in join_all(handles)? {
                sum.add(outcome);
            }
            watched
        })?;
        let sum = sum.thread;
        let live = LiveCount { loaded: self.loaded_keys(), marked: live.map(LiveKeys::count), inserted: sum.inserted };
        Ok(Outcome {
            counts: self.counts(),
            // A run that was stopped before its first operation still has a length.
            seconds: sum.ended_ns.max(1) as f64 / 1e9,
            bytes_user: sum.bytes_user,
            missed: sum.missed,
            stall_ms: self.stall_ns.load(Ordering::Relaxed) as f64 / 1e6,
            usage_at_begin,
            live: live.data(options, &[&load, &sum]),
            settled,
            latencies: sum.latencies,
        })
    }

    fn shared<'a>(
        &'a self,
        values: &'a ValueSource,
        leaders_done: &'a AtomicBool,
        live: Option<&'a LiveKeys>,
    ) -> RunContext<'a> {
        RunContext {
            target: self.target.as_ref(),
            values,
            shape: KeyShape::new(self.options.workload.key_order(), self.options.key_bytes),
            stop: &self.stop,
            leaders_done,
            keys: self.options.keys,
            live,
        }
    }

    fn limits(&self, thread: u32) -> Limits {
        let options = &self.options;
        // Thread 0 of readwhilewriting is the writer: it goes on as long as anyone reads.
        let writers = u32::from(options.workload == Workload::ReadWhileWriting);
        let follows = thread < writers && options.ops_limit().is_some();
        let ops = match options.ops_limit() {
            Some(_) if follows => u64::MAX,
            None => u64::MAX,
            Some(ops) => {
                let (reader, threads) = (u64::from(thread - writers), u64::from(options.threads));
                ops / threads + u64::from(reader < ops % threads)
            }
        };
        let deadline_ns = options.seconds.map_or(u64::MAX, |seconds| (seconds * 1e9) as u64);
        Limits { ops, deadline_ns, follows }
    }

    /// Starts a thread that is foreground while `work` runs, and that stops the run if `work` fails
    /// or panics.
    fn spawn<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        threads: u32,
        work: impl FnOnce(&Self) -> Result<ThreadOutcome> + Send + 'scope,
    ) -> Result<ScopedJoinHandle<'scope, Result<ThreadOutcome>>> {
        std::thread::Builder::new()
            .name("bench-thread".into())
            .spawn_scoped(scope, move || {
                let stop = StopUnlessDone { stop: &self.stop, done: false };
                let _foreground = Foreground::begin(self.observer.as_deref());
                stop.done_if_ok(work(self))
            })
            .map_err(|error| {
                self.stop();
                Error::options(format!("cannot start {threads} threads: {error}; ask for fewer"))
            })
    }

    /// Watches for stalls until all threads have ended.
    fn watch_stalls(
        &self,
        stalled_before: Duration,
        threads: &[ScopedJoinHandle<'_, Result<ThreadOutcome>>],
    ) -> Result<()> {
        loop {
            let ended = threads.iter().all(ScopedJoinHandle::is_finished);
            let stalled = self.target.stall_time().inspect_err(|_| self.stop())?.saturating_sub(stalled_before);
            self.stall_ns.store(stalled.as_nanos() as u64, Ordering::Relaxed);
            if ended {
                return Ok(());
            }
            std::thread::sleep(STALL_SAMPLE_INTERVAL);
        }
    }
}

/// The schedule of one thread, if the run has a rate.
pub(super) fn schedule(options: &WorkloadOptions, thread: u32) -> Option<Schedule> {
    let rate = options.rate_ops_per_s?;
    let threads = options.workload.driver_threads(options.threads);
    Some(match options.write_rate_ops_per_s {
        Some(write_rate) if thread == 0 => Schedule::new(write_rate, 0, 1),
        Some(write_rate) => Schedule::new(rate - write_rate, thread - 1, threads - 1),
        None => Schedule::new(rate, thread, threads),
    })
}

/// Waits for all threads, also after an error, and returns the first one's error if there is any.
fn join_all(handles: Vec<ScopedJoinHandle<'_, Result<ThreadOutcome>>>) -> Result<Vec<ThreadOutcome>> {
    let outcomes: Vec<_> = handles.into_iter().map(|handle| handle.join().unwrap_or(Err(Error::Panicked))).collect();
    outcomes.into_iter().collect()
}

/// What is known of the keys in the store.
struct LiveCount {
    loaded: Option<u64>,
    marked: Option<u64>,
    inserted: u64,
}

impl LiveCount {
    fn data(&self, options: &WorkloadOptions, written: &[&ThreadOutcome]) -> Option<LiveData> {
        let keys = self.loaded.or(self.marked)? + self.inserted;
        let puts: u64 = written.iter().map(|outcome| outcome.puts).sum();
        let value_bytes: u64 = written.iter().map(|outcome| outcome.value_bytes_written).sum();
        let mean_value_bytes = if puts > 0 { value_bytes as f64 / puts as f64 } else { f64::from(options.value_bytes) };
        Some(LiveData { keys, bytes: keys as f64 * (f64::from(options.key_bytes) + mean_value_bytes) })
    }
}

/// The calling thread's duty, ended also by a panic.
struct Foreground<'a>(Option<&'a dyn DutyObserver>);

impl<'a> Foreground<'a> {
    fn begin(observer: Option<&'a dyn DutyObserver>) -> Self {
        if let Some(observer) = observer {
            observer.begin(Duty::Foreground);
        }
        Self(observer)
    }
}

impl Drop for Foreground<'_> {
    fn drop(&mut self) {
        if let Some(observer) = self.0 {
            observer.end();
        }
    }
}

/// Stops the whole run unless a thread ended well.
struct StopUnlessDone<'a> {
    stop: &'a AtomicBool,
    done: bool,
}

impl StopUnlessDone<'_> {
    fn done_if_ok<T>(mut self, result: Result<T>) -> Result<T> {
        self.done = result.is_ok();
        result
    }
}

impl Drop for StopUnlessDone<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}
