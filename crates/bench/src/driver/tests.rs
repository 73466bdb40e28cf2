use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use ecotone_types::Duty;

use super::counters::{LiveKeys, ThreadCounters};
use super::schedule::{Clock, Schedule, TICK_NS};
use super::thread::run;
use super::thread_state::{Limits, RunContext};
use super::*;
use crate::workload::{Generator, KeyOrder, KeyShape, OperationKind, Preload, ValueKind, ValueSource, Workload};

/// A store in memory that counts its calls.
#[derive(Default)]
struct Memory {
    pairs: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    puts: AtomicU64,
    gets: AtomicU64,
    scans: AtomicU64,
    /// Entries that were scanned.
    scanned: AtomicU64,
    settles: AtomicU64,
    questions: AtomicU64,
    /// The put after which all fail; none if zero.
    fails_after: AtomicU64,
    panics: bool,
}

impl Target for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        assert!(!self.panics, "a put that panics");
        let puts = self.puts.fetch_add(1, Ordering::Relaxed);
        let fails_after = self.fails_after.load(Ordering::Relaxed);
        if fails_after > 0 && puts >= fails_after {
            return Err(Error::target("memory", "put", "disk full"));
        }
        self.pairs.lock().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        value.clear();
        Ok(self.pairs.lock().unwrap().get(key).map(|found| value.extend_from_slice(found)).is_some())
    }

    fn seek_scan(&self, key: &[u8], entries: u32) -> Result<u32> {
        self.scans.fetch_add(1, Ordering::Relaxed);
        let pairs = self.pairs.lock().unwrap();
        let scanned = pairs.range(key.to_vec()..).take(entries as usize).count() as u32;
        self.scanned.fetch_add(u64::from(scanned), Ordering::Relaxed);
        Ok(scanned)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.pairs.lock().unwrap().remove(key);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self, _limit: Duration, _stop: &AtomicBool) -> Result<bool> {
        self.settles.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn stall_time(&self) -> Result<Duration> {
        // Every question finds it stalled for another millisecond; the first is before the measured
        // part.
        Ok(Duration::from_millis(self.questions.fetch_add(1, Ordering::Relaxed) + 100))
    }

    fn directory(&self) -> Option<&Path> {
        None
    }
}

fn options(workload: Workload) -> WorkloadOptions {
    WorkloadOptions { workload, keys: 500, value_bytes: 100, ops: Some(1000), threads: 3, ..WorkloadOptions::default() }
}

fn finish(target: &Arc<Memory>, options: WorkloadOptions) -> Result<Outcome> {
    Driver::start(Arc::clone(target) as Arc<dyn Target>, options, None)?.join()
}

#[test]
fn every_workload_runs_exactly_its_operations_and_finds_what_it_reads() {
    for workload in Workload::ALL.into_iter().filter(|&workload| workload != Workload::ReadWhileWriting) {
        let target = Arc::new(Memory::default());
        let outcome = finish(&target, options(workload)).unwrap();
        assert_eq!(outcome.counts.total(), 1000, "{workload}");
        assert_eq!(outcome.missed, 0, "{workload}");
        let loaded = if workload.fills() { 0 } else { 500 };
        assert_eq!(target.puts.load(Ordering::Relaxed) - loaded, outcome.counts.writes(), "{workload}");
        assert_eq!(target.gets.load(Ordering::Relaxed) + target.scans.load(Ordering::Relaxed), outcome.counts.reads());
        assert_eq!(target.settles.load(Ordering::Relaxed), u64::from(loaded > 0), "{workload}");
        for kind in OperationKind::ALL {
            let timed = outcome.latencies(kind).map_or(0, |latencies| latencies.len());
            assert_eq!(timed, outcome.counts.of(kind), "{workload}: {}", kind.name());
        }
        if workload != Workload::MixGraph {
            assert_eq!(outcome.bytes_user, outcome.counts.writes() * 116, "{workload}");
        }
    }
}

#[test]
fn the_live_data_is_what_the_store_holds() {
    for workload in Workload::ALL.into_iter().filter(|&workload| workload != Workload::MixGraph) {
        let target = Arc::new(Memory::default());
        let half = (workload == Workload::Updates).then_some(50.0);
        let live = finish(&target, WorkloadOptions { update_share_percent: half, ..options(workload) });
        let live = live.unwrap().live.unwrap();
        let held = target.pairs.lock().unwrap().len() as u64;
        assert_eq!(live.keys, held, "{workload}");
        assert_eq!(live.bytes, held as f64 * 116.0, "{workload}");
    }
    let target = Arc::new(Memory::default());
    let existing = WorkloadOptions { preload: Preload::Existing, ..options(Workload::Overwrite) };
    assert_eq!(finish(&target, existing).unwrap().live, None);
    assert_eq!(target.puts.load(Ordering::Relaxed), 1000);
    // Of one that was filled for it all is known.
    for workload in [Workload::Overwrite, Workload::YcsbD, Workload::ReadRandom] {
        let target = Arc::new(Memory::default());
        let filled = Driver::fill(target.clone(), options(workload), None, Arc::default()).unwrap();
        assert!(filled && target.puts.load(Ordering::Relaxed) == 500);
        let run = finish(&target, WorkloadOptions { preload: Preload::Filled, ..options(workload) }).unwrap();
        let held = target.pairs.lock().unwrap().len() as u64;
        assert_eq!(run.live, Some(LiveData { keys: held, bytes: held as f64 * 116.0 }), "{workload}");
        assert_eq!(
            target.puts.load(Ordering::Relaxed),
            500 + run.counts.writes(),
            "{workload}: nothing is loaded again"
        );
    }
}

#[test]
fn a_seek_reads_as_many_entries_as_are_asked_for_and_is_one_operation() {
    for entries in [None, Some(1), Some(50)] {
        let target = Arc::new(Memory::default());
        // Of 500 keys the last ones have fewer behind them.
        let seeks = WorkloadOptions { scan_entries: entries, ..options(Workload::SeekRandom) };
        let outcome = finish(&target, seeks).unwrap();
        assert_eq!((outcome.counts.total(), target.scans.load(Ordering::Relaxed)), (1000, 1000));
        let mean = target.scanned.load(Ordering::Relaxed) as f64 / 1000.0;
        match entries {
            Some(50) => assert!((45.0..50.0).contains(&mean), "{mean}"),
            _ => assert_eq!(mean, 1.0),
        }
    }
}

#[test]
fn updates_before_the_measured_part_are_made_and_not_measured() {
    for workload in [Workload::SeekRandom, Workload::Overwrite] {
        let target = Arc::new(Memory::default());
        let updated = WorkloadOptions { updates_before_percent: Some(130.0), ..options(workload) };
        let outcome = finish(&target, updated).unwrap();
        let puts = target.puts.load(Ordering::Relaxed);
        assert_eq!(puts, 500 + 650 + outcome.counts.writes(), "{workload}");
        assert_eq!(outcome.bytes_user, outcome.counts.writes() * 116, "{workload}");
        assert_eq!(outcome.live.unwrap().keys, 500, "{workload}");
        assert_eq!(target.settles.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn a_load_that_is_told_to_stop_ends_soon_and_nothing_settles() {
    let target = Arc::new(Memory::default());
    let endless = WorkloadOptions { keys: u64::from(u32::MAX), ..options(Workload::ReadRandom) };
    let stop = Arc::new(AtomicBool::new(false));
    let filling = std::thread::spawn({
        let (target, stop) = (Arc::clone(&target), Arc::clone(&stop));
        move || Driver::fill(target, endless, None, stop)
    });
    while target.puts.load(Ordering::Relaxed) == 0 {
        assert!(!filling.is_finished(), "it does not load");
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(!filling.join().unwrap().unwrap());
    assert_eq!(target.settles.load(Ordering::Relaxed), 0);
}

#[test]
fn readwhilewriting_counts_the_reads_and_its_writer_ends_with_them() {
    let target = Arc::new(Memory::default());
    let outcome = finish(&target, options(Workload::ReadWhileWriting)).unwrap();
    assert_eq!(outcome.counts.reads(), 1000);
    assert_eq!(target.puts.load(Ordering::Relaxed), 500 + outcome.counts.writes());
}

#[test]
fn one_seed_leaves_one_store() {
    let contents = |seed| {
        let target = Arc::new(Memory::default());
        // One thread: the order in which threads overwrite each other is the scheduler's.
        finish(&target, WorkloadOptions { seed, threads: 1, ..options(Workload::MixGraph) }).unwrap();
        std::mem::take(&mut *target.pairs.lock().unwrap())
    };
    assert_eq!(contents(7), contents(7));
    assert_ne!(contents(7), contents(8));
}

#[test]
fn the_first_error_stops_all_threads_and_comes_back() {
    for fails_after in [100, 600] {
        let target = Arc::new(Memory { fails_after: AtomicU64::new(fails_after), ..Memory::default() });
        let error = finish(&target, WorkloadOptions { ops: None, seconds: Some(1e6), ..options(Workload::Overwrite) });
        assert_eq!(error.unwrap_err().to_string(), "memory failed at put: disk full");
    }
}

#[test]
fn a_panic_stops_all_threads_and_is_an_error() {
    let target = Arc::new(Memory { panics: true, ..Memory::default() });
    let outcome = finish(&target, WorkloadOptions { ops: None, seconds: Some(1e6), ..options(Workload::FillRandom) });
    assert!(matches!(outcome, Err(Error::Panicked)), "{outcome:?}");
}

#[test]
fn refused_options_start_nothing() {
    let target = Arc::new(Memory::default());
    let error = finish(&target, WorkloadOptions { threads: 0, ..options(Workload::FillRandom) }).unwrap_err();
    assert!(matches!(error, Error::Options(_)), "{error}");
    assert_eq!(target.puts.load(Ordering::Relaxed), 0);
}

#[test]
fn a_run_without_end_stops_when_asked_and_shows_itself_meanwhile() {
    let target = Arc::new(Memory::default());
    let options = WorkloadOptions { ops: None, seconds: Some(1e6), ..options(Workload::YcsbF) };
    let running = Driver::start(Arc::clone(&target) as Arc<dyn Target>, options, None).unwrap();
    let mut last = 0;
    // Ends by itself only if all of this comes to be seen.
    loop {
        let snapshot = running.snapshot();
        assert!(snapshot.counts.total() >= last);
        last = snapshot.counts.total();
        if snapshot.counts.reads() > 100 && snapshot.counts.writes() > 100 && snapshot.stall_ms > 0.0 {
            // Each thread may be one behind.
            assert!(snapshot.bytes_user >= 90 * 116, "{}", snapshot.bytes_user);
            assert_eq!(running.live_data(), Some(LiveData { keys: 500, bytes: 500.0 * 116.0 }));
            assert_eq!((snapshot.phase, snapshot.loaded), (Phase::Measuring, 500));
            assert!(!snapshot.elapsed.is_zero());
            break;
        }
        std::thread::yield_now();
    }
    assert!(!running.is_finished());
    running.stop();
    let outcome = running.join().unwrap();
    assert!(outcome.counts.total() >= last);
    assert_eq!(outcome.stall_ms, (target.questions.load(Ordering::Relaxed) - 1) as f64);
}

#[test]
fn progress_is_called_until_the_end_on_the_calling_thread() {
    let target = Arc::new(Memory::default());
    let options = WorkloadOptions { ops: None, seconds: Some(0.2), ..options(Workload::ReadRandom) };
    let running = Driver::start(target as Arc<dyn Target>, options, None).unwrap();
    let caller = std::thread::current().id();
    let mut calls = 0;
    let outcome = running.join_with_progress(Duration::from_millis(10), |_| {
        assert_eq!(std::thread::current().id(), caller);
        calls += 1;
    });
    assert!(calls >= 2, "{calls}");
    assert!(outcome.unwrap().seconds >= 0.2);
}

#[test]
fn dropping_a_run_ends_its_threads() {
    let target = Arc::new(Memory::default());
    let options = WorkloadOptions { ops: None, seconds: Some(1e6), ..options(Workload::FillRandom) };
    drop(Driver::start(Arc::clone(&target) as Arc<dyn Target>, options, None).unwrap());
    assert_eq!(Arc::strong_count(&target), 1);
}

#[test]
fn each_measured_thread_is_foreground_from_begin_to_end() {
    struct Recorder(Mutex<mpsc::Sender<(std::thread::ThreadId, Option<Duty>)>>);
    impl DutyObserver for Recorder {
        fn begin(&self, duty: Duty) {
            self.0.lock().unwrap().send((std::thread::current().id(), Some(duty))).unwrap();
        }
        fn end(&self) {
            self.0.lock().unwrap().send((std::thread::current().id(), None)).unwrap();
        }
    }
    let (sender, seen) = mpsc::channel();
    let target = Arc::new(Memory::default());
    let observer: Arc<dyn DutyObserver> = Arc::new(Recorder(Mutex::new(sender)));
    let running = Driver::start(target as Arc<dyn Target>, options(Workload::FillRandom), Some(observer)).unwrap();
    running.join().unwrap();
    let mut threads: BTreeMap<String, Vec<Option<Duty>>> = BTreeMap::new();
    for (thread, duty) in seen.try_iter() {
        threads.entry(format!("{thread:?}")).or_default().push(duty);
    }
    assert_eq!(threads.len(), 3);
    assert!(threads.values().all(|duties| duties == &[Some(Duty::Foreground), None]), "{threads:?}");
}

/// A clock on which only waiting and the store take time.
#[derive(Default)]
struct FakeClock(AtomicU64);

impl Clock for FakeClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn wait_until(&self, due_ns: u64) {
        self.0.fetch_max(due_ns, Ordering::Relaxed);
    }
}

/// A store whose puts take some time of a fake clock; the first also takes `pause_ns`.
struct Slow<'a> {
    clock: &'a FakeClock,
    put_ns: u64,
    pause_ns: AtomicU64,
}

impl Target for Slow<'_> {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn put(&self, _: &[u8], _: &[u8]) -> Result<()> {
        self.clock.0.fetch_add(self.put_ns + self.pause_ns.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
    fn get(&self, _: &[u8], _: &mut Vec<u8>) -> Result<bool> {
        Ok(false)
    }
    fn seek_scan(&self, _: &[u8], _: u32) -> Result<u32> {
        Ok(0)
    }
    fn delete(&self, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn settle(&self, _: Duration, _: &AtomicBool) -> Result<bool> {
        Ok(true)
    }
    fn stall_time(&self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }
    fn directory(&self) -> Option<&Path> {
        None
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// Ten seconds of puts at a rate on the fake clock: operations, seconds, latencies in nanoseconds.
fn ten_paced_seconds(rate: f64, put_ns: u64, pause_ns: u64) -> (u64, f64, hdrhistogram::Histogram<u64>) {
    let clock = FakeClock::default();
    let target = Slow { clock: &clock, put_ns, pause_ns: AtomicU64::new(pause_ns) };
    let (stop, leaders_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let options = WorkloadOptions { seconds: Some(10.0), ..options(Workload::FillRandom) };
    let values = ValueSource::new(ValueKind::Random, 1, 100);
    let shared = RunContext {
        target: &target,
        values: &values,
        shape: KeyShape::new(KeyOrder::Number, 16),
        stop: &stop,
        leaders_done: &leaders_done,
        keys: options.keys,
        live: None,
    };
    let limits = Limits { ops: u64::MAX, deadline_ns: 10 * SECOND_NS, follows: false };
    let schedule = Schedule::new(rate, 0, 1);
    let counters = ThreadCounters::default();
    let outcome = run(&shared, Generator::new(&options, 0), Some(schedule), limits, &counters, &clock).unwrap();
    let latencies = outcome.latencies[OperationKind::Put.index()].clone().unwrap();
    (latencies.len(), outcome.ended_ns as f64 / SECOND_NS as f64, latencies)
}

#[test]
fn a_store_that_keeps_up_gets_the_offered_rate_for_the_whole_time() {
    for rate in [1.0, 100.0, 20_000.0] {
        let (ops, seconds, latencies) = ten_paced_seconds(rate, 1_000, 0);
        assert_eq!(ops, (10.0 * rate) as u64);
        assert!((seconds - 10.0).abs() < 1e-6, "{seconds}");
        // No more than the others of its tick come before an operation.
        assert!(latencies.max() <= 1_000 * (1 + (rate * TICK_NS as f64 / 1e9) as u64), "{}", latencies.max());
    }
}

#[test]
fn a_pause_is_charged_to_every_operation_that_was_due_in_it() {
    // A pause of one second at 1000 op/s: a thousand operations were due meanwhile and waited half
    // a second on average.
    let (ops, _, latencies) = ten_paced_seconds(1_000.0, 1_000, SECOND_NS);
    assert_eq!(ops, 10_000);
    let waited = latencies.count_between(TICK_NS, 2 * SECOND_NS);
    assert!((990..=1010).contains(&waited), "{waited}");
    let p95 = latencies.value_at_quantile(0.95) as f64 / SECOND_NS as f64;
    assert!((p95 - 0.5).abs() < 0.02, "{p95}");
}

#[test]
fn a_store_that_is_too_slow_is_not_hidden() {
    // 1000 op/s offered, 500 possible: half is done, and latency grows to half the run.
    let (ops, seconds, latencies) = ten_paced_seconds(1_000.0, 2_000_000, 0);
    assert_eq!(ops, 5_000);
    assert!((seconds - 10.0).abs() < 0.01);
    assert!(latencies.max() as f64 > 4.9 * SECOND_NS as f64, "{}", latencies.max());
}

#[test]
fn the_writer_of_readwhilewriting_gets_its_part_of_the_rate_and_the_readers_the_rest() {
    let options = |write_rate| WorkloadOptions {
        rate_ops_per_s: Some(4_000.0),
        write_rate_ops_per_s: write_rate,
        ..options(Workload::ReadWhileWriting)
    };
    let in_a_second = |options: &WorkloadOptions, thread| {
        let mut schedule = super::conductor::schedule(options, thread).unwrap();
        std::iter::from_fn(|| Some(schedule.next_due_ns())).take_while(|&due| due < SECOND_NS).count()
    };
    let rates = |options: WorkloadOptions| [0, 1, 2, 3].map(|thread| in_a_second(&options, thread));
    // One more or less: an operation may fall on the very end of the second.
    let close = |rates: [usize; 4], expected: [usize; 4]| {
        assert!(rates.iter().zip(expected).all(|(rate, expected)| rate.abs_diff(expected) <= 1), "{rates:?}");
    };
    close(rates(options(None)), [1_000; 4]);
    close(rates(options(Some(400.0))), [400, 1_200, 1_200, 1_200]);
    assert!(super::conductor::schedule(&WorkloadOptions::default(), 0).is_none());
}

#[test]
fn live_keys_are_counted_once_each_across_word_borders() {
    let live = LiveKeys::new(130);
    for key in [0, 63, 64, 129, 129, 0] {
        live.mark(key);
    }
    assert_eq!(live.count(), 4);
}

/// A store that does nothing.
struct Nothing;

impl Target for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }
    fn put(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn get(&self, _: &[u8], _: &mut Vec<u8>) -> Result<bool> {
        Ok(true)
    }
    fn seek_scan(&self, _: &[u8], entries: u32) -> Result<u32> {
        Ok(entries)
    }
    fn delete(&self, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn settle(&self, _: Duration, _: &AtomicBool) -> Result<bool> {
        Ok(true)
    }
    fn stall_time(&self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }
    fn directory(&self) -> Option<&Path> {
        None
    }
}

#[test]
fn the_driver_itself_costs_little_beside_a_store() {
    for workload in [Workload::FillRandom, Workload::MixGraph, Workload::YcsbA, Workload::YcsbD, Workload::YcsbF] {
        let options = WorkloadOptions { workload, ops: Some(1_000_000), ..WorkloadOptions::default() };
        let outcome = Driver::start(Arc::new(Nothing), options, None).unwrap().join().unwrap();
        let ns_per_op = outcome.seconds * 1e9 / outcome.counts.total() as f64;
        println!("{workload}: {ns_per_op:.0} ns per operation");
        // About 100 on an idle machine; a put costs RocksDB several thousand. Time for tests that
        // run beside this one.
        assert!(ns_per_op < 2_000.0, "{workload}: {ns_per_op}");
    }
}
