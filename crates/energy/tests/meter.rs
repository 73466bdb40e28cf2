//! The meter over real threads: is CPU time attributed to the duty that used it, once, and is the
//! rest shown?

#![allow(clippy::unwrap_used)] // a helper that panics is a failed test

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::{spin, thread_cpu_ns};
use ecotone_energy::{EnergyMeter, PowerModel, Reading};
use ecotone_types::Duty;
use proptest::prelude::*;

/// Tests that look at the CPU time of the whole process must not run beside one another.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Uses up CPU time on the calling thread; returns what it used.
fn burn_ms(ms: u64) -> f64 {
    let start = thread_cpu_ns();
    loop {
        for _ in 0..50 {
            spin();
        }
        let used = thread_cpu_ns() - start;
        if used >= ms * 1_000_000 {
            return used as f64 / 1e9;
        }
    }
}

fn meter() -> Arc<EnergyMeter> {
    EnergyMeter::start(PowerModel::emulated(2.0, 6.0, 0.5).unwrap()).unwrap()
}

fn within(actual: f64, expected: f64, share: f64) {
    assert!((actual - expected).abs() <= share * expected, "{actual} is not within {share} of {expected}");
}

/// What must hold of any reading.
fn books_balance(reading: &Reading) {
    let duties: f64 = reading.cpu_seconds_by_duty.values().sum();
    let parts = duties + reading.unattributed_cpu_seconds;
    // The kernel refreshes counters of running threads at a clock tick, hence some milliseconds.
    assert!((parts - reading.process_cpu_seconds).abs() < 0.02, "{parts} != {}", reading.process_cpu_seconds);
    let joules: f64 = reading.energy_joules_by_duty.values().sum();
    within(reading.total_joules, joules, 1e-9);
    // The model's arithmetic: half a host core each, 6 W busy, 2 W idle.
    within(reading.busy_core_seconds, parts / 0.5, 1e-6);
    within(reading.total_joules, parts / 0.5 * 6.0 + reading.seconds * 2.0, 1e-6);
}

#[test]
fn a_busy_loop_is_attributed_to_its_duty() {
    let _alone = alone();
    let meter = meter();
    meter.begin(Duty::Compaction);
    let used = burn_ms(300);
    meter.end();
    let reading = meter.reading();
    within(reading.cpu(Duty::Compaction).0, used, 0.05);
    within(reading.energy(Duty::Compaction).0, used / 0.5 * 6.0, 0.05);
    assert_eq!(reading.cpu(Duty::Flush).0, 0.0);
    books_balance(&reading);
}

#[test]
fn nested_duties_share_time_without_overlap() {
    let _alone = alone();
    let meter = meter();
    meter.begin(Duty::Compaction);
    let mut outer = burn_ms(100);
    meter.begin(Duty::Gc);
    let inner = burn_ms(200);
    meter.end();
    outer += burn_ms(100);
    meter.end();
    let reading = meter.reading();
    within(reading.cpu(Duty::Compaction).0, outer, 0.05);
    within(reading.cpu(Duty::Gc).0, inner, 0.05);
    books_balance(&reading);
}

#[test]
fn a_long_duty_shows_while_it_runs() {
    let _alone = alone();
    let meter = meter();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            meter.begin(Duty::Worker);
            while !stop.load(Ordering::Relaxed) {
                spin();
            }
            meter.end();
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut last = 0.0;
        while last < 0.2 {
            let seen = meter.reading().cpu(Duty::Worker).0;
            assert!(seen >= last, "a reading fell from {last} to {seen}");
            assert!(Instant::now() < deadline, "after a minute the open duty shows {seen} s only");
            last = seen;
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    books_balance(&meter.reading());
}

#[test]
fn threads_that_end_leave_their_time_behind_and_no_slot() {
    let _alone = alone();
    let meter = meter();
    let mut used = 0.0;
    for _ in 0..4 {
        used += thread::scope(|scope| {
            let worker = scope.spawn(|| {
                meter.begin(Duty::Flush);
                let used = burn_ms(50);
                meter.end();
                used
            });
            worker.join().unwrap()
        });
    }
    // One more ends in the middle of its duty: its time counts, and so does the mistake.
    used += thread::scope(|scope| {
        let worker = scope.spawn(|| {
            meter.begin(Duty::Flush);
            burn_ms(50)
        });
        worker.join().unwrap()
    });
    // A scope is left before the thread's destructors have run: wait for them.
    let deadline = Instant::now() + Duration::from_secs(60);
    while meter.threads() > 0 {
        assert!(Instant::now() < deadline, "{} slots of dead threads remain", meter.threads());
        thread::yield_now();
    }
    let reading = meter.reading();
    within(reading.cpu(Duty::Flush).0, used, 0.05);
    assert_eq!(reading.unbalanced_switches, 1);
    books_balance(&reading);
}

#[test]
fn work_outside_duties_is_shown_as_unattributed() {
    let _alone = alone();
    let meter = meter();
    let outside = burn_ms(200);
    meter.begin(Duty::Foreground);
    let inside = burn_ms(100);
    meter.end();
    let reading = meter.reading();
    within(reading.cpu(Duty::Foreground).0, inside, 0.05);
    // Other threads of the test process may add a little, never take away.
    assert!(reading.unattributed_cpu_seconds >= 0.95 * outside, "{reading:?}");
    within(reading.unattributed_cpu_seconds, outside, 0.15);
    assert!(reading.unattributed_share() > 0.5);
    assert!(reading.unattributed().0 > 0.0);
    books_balance(&reading);
}

#[test]
fn ends_without_begin_change_nothing_and_are_counted() {
    let _alone = alone();
    let meter = meter();
    meter.end();
    meter.begin(Duty::Tiering);
    meter.end();
    meter.end();
    meter.begin(Duty::Coding);
    let used = burn_ms(60);
    assert_eq!(meter.current_duty(), Some(Duty::Coding));
    meter.end();
    let reading = meter.reading();
    within(reading.cpu(Duty::Coding).0, used, 0.05);
    assert_eq!(reading.unbalanced_switches, 2);
}

#[test]
fn a_lower_frequency_prices_only_what_comes_after() {
    let _alone = alone();
    let meter = meter();
    meter.begin(Duty::Replica);
    let fast = burn_ms(100);
    meter.set_p_state(6);
    let slow = burn_ms(100);
    meter.end();
    let reading = meter.reading();
    // 1.0 of 2.2 GHz: an emulated core is busy 2.2 times as long, at 0.7396 / 2.662 of the power.
    let expected = fast / 0.5 * 6.0 + slow / 0.5 * 2.2 * 6.0 * 0.7396 / 2.662;
    within(reading.energy(Duty::Replica).0, expected, 0.05);
    assert!((reading.frequency_hz - 1.0e9).abs() < 1.0);
    assert_eq!(meter.p_state(), 6);
}

#[test]
fn the_cost_of_one_job_is_the_difference_of_two_looks() {
    let _alone = alone();
    let meter = meter();
    meter.begin(Duty::Worker);
    burn_ms(50);
    let before = meter.thread_use();
    let used = burn_ms(150);
    let after = meter.thread_use();
    meter.end();
    within((after.cpu - before.cpu).0, used, 0.05);
    within((after.energy - before.energy).0, used / 0.5 * 6.0, 0.05);
    // Another thread has used nothing.
    let elsewhere = thread::scope(|scope| scope.spawn(|| meter.thread_use()).join().unwrap());
    assert_eq!(elsewhere.cpu.0, 0.0);
}

#[test]
fn two_meters_do_not_disturb_one_another() {
    let _alone = alone();
    let (one, two) = (meter(), meter());
    one.begin(Duty::Flush);
    two.begin(Duty::Compaction);
    let used = burn_ms(80);
    one.end();
    two.end();
    within(one.reading().cpu(Duty::Flush).0, used, 0.05);
    within(two.reading().cpu(Duty::Compaction).0, used, 0.05);
    assert_eq!(one.reading().cpu(Duty::Compaction).0, 0.0);
    drop(one);
    two.begin(Duty::Flush);
    two.end();
    assert_eq!(two.reading().unbalanced_switches, 0);
}

#[test]
fn switches_while_a_thread_is_torn_down_harm_nothing() {
    struct SwitchesInItsDestructor(Arc<EnergyMeter>);
    impl Drop for SwitchesInItsDestructor {
        fn drop(&mut self) {
            self.0.begin(Duty::Tiering);
            self.0.end();
        }
    }
    thread_local! {
        static EARLY: std::cell::RefCell<Option<SwitchesInItsDestructor>> = const { std::cell::RefCell::new(None) };
        static LATE: std::cell::RefCell<Option<SwitchesInItsDestructor>> = const { std::cell::RefCell::new(None) };
    }
    let _alone = alone();
    let meter = meter();
    let worker = thread::spawn({
        let meter = meter.clone();
        move || {
            // One is destroyed before the meter's own thread-local and one after it, in whichever
            // order.
            EARLY.with(|slot| *slot.borrow_mut() = Some(SwitchesInItsDestructor(meter.clone())));
            meter.begin(Duty::Flush);
            meter.end();
            LATE.with(|slot| *slot.borrow_mut() = Some(SwitchesInItsDestructor(meter)));
        }
    });
    worker.join().unwrap();
    assert_eq!(meter.threads(), 0);
    books_balance(&meter.reading());
}

#[derive(Clone, Debug)]
enum Act {
    Begin(usize),
    End,
    Burn(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![(0..Duty::ALL.len()).prop_map(Act::Begin), Just(Act::End), (1u8..60).prop_map(Act::Burn),];
    proptest::collection::vec(act, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Three threads change duty at random, while the main thread reads all the time: no reading
    /// ever falls or exceeds the process, and in the end each thread's whole life inside duties is
    /// there.
    #[test]
    fn random_switches_never_lose_or_double_count(plans in proptest::array::uniform3(acts())) {
        let _alone = alone();
        let meter = meter();
        let finished = Barrier::new(plans.len() + 1);
        let running = AtomicBool::new(true);
        let used: f64 = thread::scope(|scope| {
            let workers: Vec<_> = plans.iter().map(|plan| {
                let (meter, finished) = (&meter, &finished);
                scope.spawn(move || {
                    // A base duty around everything, so that the thread's whole time belongs to
                    // some duty.
                    let start = thread_cpu_ns();
                    meter.begin(Duty::Foreground);
                    let mut depth = 0u32;
                    for act in plan {
                        match act {
                            Act::Begin(index) => { meter.begin(Duty::ALL[*index]); depth += 1; }
                            Act::End if depth > 0 => { meter.end(); depth -= 1; }
                            Act::End => {}
                            Act::Burn(n) => (0..*n).for_each(|_| spin()),
                        }
                    }
                    (0..=depth).for_each(|_| { meter.end(); });
                    let used = (thread_cpu_ns() - start) as f64 / 1e9;
                    finished.wait();
                    used
                })
            }).collect();
            let reader = scope.spawn(|| {
                let mut last = meter.reading();
                while running.load(Ordering::Relaxed) {
                    let now = meter.reading();
                    for (duty, cpu) in &now.cpu_seconds_by_duty {
                        assert!(*cpu >= last.cpu_seconds_by_duty[duty]);
                    }
                    assert!(now.total_joules >= last.total_joules);
                    assert!(now.cpu_seconds_by_duty.values().sum::<f64>() <= now.process_cpu_seconds + 0.02);
                    last = now;
                }
            });
            finished.wait();
            running.store(false, Ordering::Relaxed);
            reader.join().unwrap();
            workers.into_iter().map(|w| w.join().unwrap()).sum()
        });
        let reading = meter.reading();
        let attributed: f64 = reading.cpu_seconds_by_duty.values().sum();
        // schedstat is brought up to date at clock ticks, so each thread may differ by one of those
        // (4 ms).
        prop_assert!((attributed - used).abs() <= 0.05 * used + 3.0 * 0.004, "{} of {}", attributed, used);
        prop_assert_eq!(reading.unbalanced_switches, 0);
        books_balance(&reading);
    }
}
