//! Emulated cores in the kernel: do threads get the speed they were promised? Needs the right to
//! make cgroups (root); without it each test says on stderr that it measured nothing.

#![allow(clippy::unwrap_used)] // a helper that panics is a failed test

#[path = "../../energy/tests/common/mod.rs"]
mod common;

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::{spin, thread_cpu_ns};
use ecotone_energy::cores::{CgroupCores, CoreBinder, CoreGroups, CpuHierarchy, ThreadGroup};
use ecotone_energy::governors::QuotaGovernor;
use ecotone_energy::{Driver, DriverOptions, DutyScope, EnergyError, EnergyMeter, Governing, PowerModel, ThreadDuties};
use ecotone_lab::{EmulatedServer, LabTree};
use ecotone_policy::power::{PowerMode, PowerSettings, Role};
use ecotone_types::units::Time;
use ecotone_types::{CoreClass, Duty, DutyObserver, Task};

/// How often a measurement is tried on a host too busy to give the threads what their quota allows.
const TRIES: u32 = 6;

/// Of one core, while something is measured. A machine that loses more gives no quota its due,
/// whatever it says of throttling.
const MAX_STOLEN_SHARE: f64 = 0.02;

/// How long threads are watched: 50 periods.
const WATCH: Duration = Duration::from_secs(1);

/// Past the test harness's capture: a skipped measurement must be seen.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A lab, and the right to be the only test that uses the CPU; `None`, said aloud, where cgroups
/// may not be made.
fn lab(test: &str) -> Option<(MutexGuard<'static, ()>, LabTree)> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    match CpuHierarchy::detect().and_then(LabTree::create) {
        Ok(lab) => Some((alone, lab)),
        Err(error) if error.is_missing_right() => {
            say(&format!("SKIPPED {test}: nothing was measured: {error}"));
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

fn thread_id() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok()).unwrap()
}

/// Host CPU seconds per second of each of several threads that spin for [`WATCH`], each begun by
/// `enter` and ended by `leave`.
fn shares(threads: usize, enter: impl Fn(usize) + Sync, leave: impl Fn(usize) + Sync) -> Vec<f64> {
    let stop = AtomicBool::new(false);
    let ready = std::sync::Barrier::new(threads + 1);
    thread::scope(|scope| {
        let spinning: Vec<_> = (0..threads)
            .map(|number| {
                let (stop, ready, enter, leave) = (&stop, &ready, &enter, &leave);
                scope.spawn(move || {
                    enter(number);
                    ready.wait();
                    let (start, cpu) = (Instant::now(), thread_cpu_ns());
                    while !stop.load(Ordering::Relaxed) {
                        spin();
                    }
                    let share = (thread_cpu_ns() - cpu) as f64 / start.elapsed().as_nanos() as f64;
                    leave(number);
                    share
                })
            })
            .collect();
        ready.wait();
        thread::sleep(WATCH); // the length of the measurement, not a synchronisation
        stop.store(true, Ordering::Relaxed);
        spinning.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Measures until the quota, and not a busy host, was the limit; `None`, said aloud, if the host
/// never let it.
fn measured<T>(test: &str, mut attempt: impl FnMut() -> (T, f64)) -> Option<T> {
    for _ in 0..TRIES {
        let (begun, stolen_s) = (Instant::now(), stolen_cpu_s());
        let (result, throttled_share) = attempt();
        let stolen_share = (stolen_cpu_s() - stolen_s) / begun.elapsed().as_secs_f64();
        if throttled_share > 0.9 && stolen_share < MAX_STOLEN_SHARE {
            return Some(result);
        }
    }
    say(&format!("SKIPPED {test}: this host is too busy to give a quota its due; nothing was measured"));
    None
}

/// Processor seconds of this machine that its host gave to others.
fn stolen_cpu_s() -> f64 {
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().and_then(|all| all.split_whitespace().nth(8)).and_then(|ticks| ticks.parse().ok());
    ticks.unwrap_or(0.0) / TICKS_PER_S
}

/// The share of recent periods in which a group ran out of quota.
fn throttled_since(groups: &CoreGroups, group: ThreadGroup, before: ecotone_energy::cores::GroupUsage) -> f64 {
    let now = groups.usage(group).unwrap();
    (now.throttled_periods - before.throttled_periods) as f64 / ((now.periods - before.periods) as f64).max(1.0)
}

fn near(actual: f64, expected: f64) {
    assert!((actual - expected).abs() <= 0.15 * expected, "{actual:.4} of a host core instead of {expected:.4}");
}

#[test]
fn a_busy_thread_gets_the_speed_of_one_core() {
    let Some((_alone, lab)) = lab("one core") else { return };
    for (name, speed) in [("quarter", 0.25), ("low", 0.07)] {
        let server = EmulatedServer::create(&lab, name, 2, speed).unwrap();
        let cores = CgroupCores::open(server.folder()).unwrap();
        let share = measured("one core", || {
            let before = server.groups().usage(ThreadGroup::Core(0)).unwrap();
            let shares = shares(1, |_| cores.enter(thread_id(), Duty::Foreground.into()), |_| cores.leave(thread_id()));
            (shares[0], throttled_since(server.groups(), ThreadGroup::Core(0), before))
        });
        if let Some(share) = share {
            say(&format!("a core of {speed}: measured {share:.4} of a host core"));
            near(share, speed);
        }
        assert_eq!(cores.failures(), 0);
    }
}

#[test]
fn two_busy_threads_have_a_core_each_and_the_server_has_no_more_than_its_cores() {
    let Some((_alone, lab)) = lab("two cores") else { return };
    let server = EmulatedServer::create(&lab, "two", 2, 0.2).unwrap();
    let cores = CgroupCores::open(server.folder()).unwrap();
    let enter = |_| cores.enter(thread_id(), Duty::Foreground.into());
    let leave = |_| cores.leave(thread_id());
    let result = measured("two cores", || {
        let before = [0, 1].map(|core| server.groups().usage(ThreadGroup::Core(core)).unwrap());
        let shares = shares(2, enter, leave);
        let held = [0, 1].map(|core| throttled_since(server.groups(), ThreadGroup::Core(core as u32), before[core]));
        (shares, held[0].min(held[1]))
    });
    for share in result.into_iter().flatten() {
        near(share, 0.2);
    }

    // A third thread is busy in `rest` (a network runtime, say): the three together get two cores,
    // not three.
    let rest = server.groups().path(ThreadGroup::Rest);
    let total = measured("sum of a server", || {
        let before = server.groups().server_usage().unwrap();
        let shares = shares(
            3,
            |number| if number == 2 { move_thread(&rest) } else { enter(number) },
            |number| {
                if number < 2 {
                    leave(number)
                }
            },
        );
        let now = server.groups().server_usage().unwrap();
        let held = (now.throttled_periods - before.throttled_periods) as f64 / (now.periods - before.periods) as f64;
        (shares.iter().sum::<f64>(), held)
    });
    if let Some(total) = total {
        near(total, 0.4);
    }
}

/// Moves the calling thread into a group by hand.
fn move_thread(group: &Path) {
    let file = ["tasks", "cgroup.threads"].map(|name| group.join(name)).into_iter().find(|f| f.exists()).unwrap();
    std::fs::write(file, thread_id().to_string()).unwrap();
}

#[test]
fn more_busy_threads_than_cores_share_them() {
    let Some((_alone, lab)) = lab("shared core") else { return };
    let server = EmulatedServer::create(&lab, "shared", 1, 0.3).unwrap();
    let cores = CgroupCores::open(server.folder()).unwrap();
    let result = measured("shared core", || {
        let before = server.groups().usage(ThreadGroup::Core(0)).unwrap();
        let shares = shares(3, |_| cores.enter(thread_id(), Duty::Foreground.into()), |_| cores.leave(thread_id()));
        (shares, throttled_since(server.groups(), ThreadGroup::Core(0), before))
    });
    if let Some(shares) = result {
        near(shares.iter().sum(), 0.3);
        assert!(shares.iter().all(|&share| share > 0.02), "one thread was starved: {shares:?}");
    }
    assert_eq!(cores.busy_cores(), 0);
}

#[test]
fn a_thread_is_on_a_core_during_a_duty_and_in_rest_after_it() {
    let Some((_alone, lab)) = lab("groups") else { return };
    let server = EmulatedServer::create(&lab, "groups", 2, 0.5).unwrap();
    let cores = Arc::new(CgroupCores::open(server.folder()).unwrap());
    let meter = EnergyMeter::start(PowerModel::emulated(1.0, 5.0, 0.5).unwrap()).unwrap();
    let duties = ThreadDuties::new(meter, cores.clone());
    let on = |group| server.groups().threads(group).unwrap();
    thread::scope(|scope| {
        scope
            .spawn(|| {
                let me = thread_id();
                let flush = DutyScope::begin(&duties, Duty::Flush);
                assert_eq!(on(ThreadGroup::Core(0)), [me]);
                let network = DutyScope::begin(&duties, Duty::Transport);
                assert_eq!(on(ThreadGroup::Core(0)), [me]);
                drop(network);
                assert_eq!(cores.busy_cores(), 1);
                drop(flush);
                assert_eq!(on(ThreadGroup::Core(0)), [0_u32; 0]);
                assert_eq!(on(ThreadGroup::Rest), [me]);
                drop(DutyScope::begin(&duties, Duty::Transport));
                assert_eq!(on(ThreadGroup::Rest), [me]);
            })
            .join()
            .unwrap();
    });
    assert_eq!(cores.failures(), 0);
}

#[test]
fn threads_that_die_on_a_core_or_are_born_there_do_not_block_it() {
    let Some((_alone, lab)) = lab("strays") else { return };
    let server = EmulatedServer::create(&lab, "strays", 1, 0.5).unwrap();
    let cores = CgroupCores::open(server.folder()).unwrap();
    // Dies without leaving.
    thread::spawn({
        let folder = server.folder().to_path_buf();
        move || drop(CgroupCores::open(&folder).map(|c| c.enter(thread_id(), Duty::Foreground.into())))
    })
    .join()
    .unwrap();
    // Has ended before it could be placed: no failure of the kernel, and no core is lost to it.
    let beyond_all_ids = 1 << 23;
    cores.enter(beyond_all_ids, Duty::Foreground.into());
    assert_eq!((cores.failures(), cores.busy_cores()), (0, 0));
    let (child_id, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let me = thread_id();
            cores.enter(me, Duty::Foreground.into());
            scope.spawn(|| {
                child_id.store(u64::from(thread_id()), Ordering::SeqCst);
                while !stop.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
            });
            while child_id.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            let child = child_id.load(Ordering::SeqCst) as u32;
            assert!(
                server.groups().threads(ThreadGroup::Core(0)).unwrap().contains(&child),
                "threads inherit their group"
            );
            assert_eq!(cores.gather_strays().unwrap(), 1);
            assert_eq!(server.groups().threads(ThreadGroup::Core(0)).unwrap(), [me]);
            assert_eq!(server.groups().threads(ThreadGroup::Rest).unwrap(), [child]);
            cores.leave(me);
            stop.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn a_governor_slows_the_core_and_the_meter_keeps_pace() {
    let Some((_alone, lab)) = lab("governor") else { return };
    let server = EmulatedServer::create(&lab, "governor", 1, 0.4).unwrap();
    let cores = Arc::new(CgroupCores::open(server.folder()).unwrap());
    let model = PowerModel::emulated(1.0, 5.0, 0.4).unwrap();
    let meter = EnergyMeter::start(model.clone()).unwrap();
    let duties = ThreadDuties::new(meter.clone(), cores);
    let governor = QuotaGovernor::new(meter.clone(), server.groups().clone()).unwrap();
    for p_state in [0, 6, 3, 0] {
        governor.set_p_state(p_state).unwrap();
        assert_eq!(governor.p_state(), p_state);
        let speed = model.core_speed(p_state);
        assert!((server.groups().speed().unwrap() - speed).abs() < 0.001);
        let result = measured("governor", || {
            let before = (meter.reading(), server.groups().usage(ThreadGroup::Core(0)).unwrap());
            let shares = shares(
                1,
                |_| duties.begin(Duty::Compaction),
                |_| {
                    duties.end();
                },
            );
            let spent = meter.reading().since(&before.0);
            ((shares[0], spent), throttled_since(server.groups(), ThreadGroup::Core(0), before.1))
        });
        let Some((share, spent)) = result else { continue };
        near(share, speed);
        // A core that is busy all the time is busy one second a second, at any frequency.
        near(spent.cpu(Duty::Compaction).0 / speed, WATCH.as_secs_f64());
        let watts = model.active_watts(p_state).0;
        near(spent.energy(Duty::Compaction).0, watts * WATCH.as_secs_f64());
    }
}

/// Busy threads of every role, while the server is promoted, demoted, and goes through all modes: at
/// every look each is on a core of the speed that its role has.
#[test]
fn threads_are_on_cores_of_their_roles_while_copies_are_promoted_and_demoted() {
    let Some((_alone, lab)) = lab("roles") else { return };
    let server = EmulatedServer::create(&lab, "roles", 4, 0.2).unwrap();
    let cores = Arc::new(CgroupCores::open(server.folder()).unwrap());
    let meter = EnergyMeter::start(PowerModel::emulated(1.0, 5.0, 0.2).unwrap()).unwrap();
    let duties = ThreadDuties::new(meter.clone(), cores.clone());
    let governing = Governing::Emulated(server.groups().clone());
    let mut driver = Driver::start(DriverOptions { meter: meter.clone(), binder: cores.clone(), governing }).unwrap();
    let tasks = Duty::ALL.into_iter().filter(|duty| *duty != Duty::Transport);
    let tasks: Vec<Task> = tasks.flat_map(|duty| [false, true].map(|is_deep| Task { duty, is_deep })).collect();
    let (is_over, threads) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for task in &tasks {
            scope.spawn(|| {
                if task.is_deep {
                    duties.begin_deep(task.duty)
                } else {
                    duties.begin(task.duty)
                }
                threads.lock().unwrap().push((thread_id(), *task));
                while !is_over.load(Ordering::Relaxed) {
                    spin();
                }
                duties.end();
            });
        }
        let looks = || {
            while threads.lock().unwrap().len() < tasks.len() {
                thread::sleep(Duration::from_millis(1));
            }
            let groups = server.groups();
            let looked = |mode: PowerMode, when: &str| {
                let group_of = |thread: u32| {
                    let on = |core: &u32| groups.threads(ThreadGroup::Core(*core)).unwrap().contains(&thread);
                    (0..groups.cores()).find(on).unwrap_or_else(|| panic!("{when}: a thread is on no core"))
                };
                for (thread, task) in threads.lock().unwrap().iter() {
                    let is_fast = groups.core_speed(group_of(*thread)).unwrap() > 0.19;
                    let class = mode.class(Role::of(*task));
                    assert_eq!(is_fast, class == CoreClass::Fast, "{when}, {mode}: {task:?}");
                }
            };
            let mut now = 0.0;
            for round in 0..3 {
                for mode in [PowerMode::Concerto, PowerMode::AllLow, PowerMode::AllHigh, PowerMode::Concerto] {
                    let settings = PowerSettings { mode, cap: None };
                    driver.close(Time::from_seconds(now), 0, settings, meter.cpu());
                    looked(mode, &format!("round {round}"));
                    driver.promoted(Time::from_seconds(now + 0.5), settings);
                    looked(mode, &format!("round {round}, promoted"));
                    // Nobody comes: as before.
                    driver.close(Time::from_seconds(now + 20.0), 0, settings, meter.cpu());
                    looked(mode, &format!("round {round}, demoted"));
                    now += 21.0;
                }
            }
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(looks));
        is_over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_eq!(cores.failures(), 0);
}

fn sleeper() -> Child {
    Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_server_process_is_adopted_and_its_groups_go_when_it_ends() {
    let Some((_alone, lab)) = lab("adoption") else { return };
    let server = EmulatedServer::create(&lab, "adoption", 1, 0.5).unwrap();
    let mut child = sleeper();
    server.groups().adopt(child.id()).unwrap();
    assert_eq!(server.groups().threads(ThreadGroup::Rest).unwrap(), [child.id()]);
    let (server_folder, lab_folder) = (server.folder().to_path_buf(), lab.folder().to_path_buf());
    child.kill().unwrap();
    child.wait().unwrap();
    drop(server);
    assert!(!server_folder.exists());
    drop(lab);
    assert!(!lab_folder.exists());
}

#[test]
fn trees_of_dead_labs_are_removed_unless_something_still_runs_there() {
    let Some((_alone, lab)) = lab("stale trees") else { return };
    // Two processes that have ended lend their ids.
    let dead = [sleeper(), sleeper()].map(|mut child| {
        child.kill().unwrap();
        child.wait().unwrap();
        child.id()
    });
    let base = lab.folder().parent().unwrap();
    let [empty, occupied] = dead.map(|id| base.join(format!("ecotone-lab-{id}")));
    let mut child = sleeper();
    for folder in [&empty, &occupied] {
        std::fs::create_dir_all(folder.join("low/core-0")).unwrap();
    }
    let foreign = base.join(format!("someone-elses-{}", std::process::id()));
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(occupied.join("low/cgroup.procs"), child.id().to_string()).unwrap();

    let next = LabTree::create(lab.hierarchy().clone()).unwrap();
    assert!(!empty.exists(), "the tree of a dead lab is removed");
    assert!(lab.folder().exists(), "the tree of a living lab stays");
    assert!(foreign.exists(), "what is not ours stays");
    assert!(occupied.exists());
    let reported = next.stale().iter().find(|tree| tree.folder == occupied).expect("reported");
    assert_eq!(reported.processes, [child.id()]);
    drop(next);

    child.kill().unwrap();
    child.wait().unwrap();
    let last = LabTree::create(lab.hierarchy().clone()).unwrap();
    assert!(!occupied.exists(), "once its processes are gone the tree goes too");
    drop(last);
    std::fs::remove_dir(foreign).unwrap();
}

#[test]
fn impossible_servers_are_refused_before_anything_is_made() {
    let Some((_alone, lab)) = lab("refusals") else { return };
    let refused = |name: &str, cores, speed| EmulatedServer::create(&lab, name, cores, speed).expect_err(name);
    for name in ["", "..", "a/b", "with space", &"x".repeat(65)] {
        assert!(matches!(refused(name, 1, 0.5), EnergyError::Server { .. }), "{name:?}");
    }
    assert!(matches!(refused("none", 0, 0.5), EnergyError::Server { .. }));
    assert!(matches!(refused("many", 257, 0.5), EnergyError::Server { .. }));
    assert!(matches!(refused("slow", 1, 0.01), EnergyError::CoreSpeed { .. }));
    let first = EmulatedServer::create(&lab, "twice", 1, 0.5).unwrap();
    assert!(matches!(refused("twice", 1, 0.5), EnergyError::Server { .. }));
    assert!(first.folder().exists(), "the refusal leaves the first one alone");
    let below = std::fs::read_dir(lab.folder()).unwrap().flatten().filter(|e| e.path().is_dir()).count();
    assert_eq!(below, 1);
}
