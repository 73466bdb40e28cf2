//! Meter, power manager and history of fake machines, driven as a server drives them; and real
//! threads that are bound.

#![allow(clippy::unwrap_used)] // a helper that panics is a failed test

mod machines;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ecotone_energy::cores::{Affinity, CoreBinder, Unbound};
use ecotone_energy::governors::cpufreq;
use ecotone_energy::{
    CpuUse, Driver, DriverOptions, DutyScope, EnergyMeter, EnergySource, EnergyThread, Governing, MAX_COST_SHARE,
    Placement, PowerModel, PromotionWait, SlowWork, ThreadDuties, machine_model,
};
use ecotone_policy::power::{PowerMode, PowerSettings};
use ecotone_types::units::{Seconds, Time, Watts};
use ecotone_types::{CoreClass, Duty, Task};
use machines::{CPUFREQ, Machine};
use proptest::prelude::*;

#[derive(Default)]
struct Placed(Mutex<Vec<Placement>>);

impl Placed {
    fn last(&self) -> Placement {
        self.0.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

impl CoreBinder for Placed {
    fn enter(&self, _: u32, _: Task) {}
    fn leave(&self, _: u32) {}
    fn place(&self, placement: &Placement) {
        self.0.lock().unwrap().push(placement.clone());
    }
}

fn at(seconds: f64) -> Time {
    Time::from_seconds(seconds)
}

fn settings(mode: PowerMode, cap: Option<f64>) -> PowerSettings {
    PowerSettings { mode, cap: cap.map(Watts) }
}

fn meter_of(root: &Path) -> Arc<EnergyMeter> {
    EnergyMeter::start(machine_model(root, &PowerModel::hardware(5.0, 10.0).unwrap())).unwrap()
}

fn driver(machine: &Machine, binder: Arc<dyn CoreBinder>) -> (Driver, Arc<EnergyMeter>) {
    let meter = meter_of(machine.root());
    let governing = Governing::Machine { root: machine.root().to_path_buf(), record: machine.path("limits") };
    (Driver::start(DriverOptions { meter: meter.clone(), binder, governing }).unwrap(), meter)
}

fn used(pieces: &[(Duty, CoreClass, f64)]) -> Vec<CpuUse> {
    pieces.iter().map(|(duty, class, cpu)| CpuUse { duty: Some(*duty), class: *class, cpu: Seconds(*cpu) }).collect()
}

fn limits(machine: &Machine, policies: &[u32]) -> Vec<u64> {
    policies.iter().map(|policy| machine.limit(*policy)).collect()
}

const INTEL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn all_high_without_a_cap_touches_nothing() {
    let machine = Machine::intel_server();
    let placed = Arc::new(Placed::default());
    let (mut driver, _) = driver(&machine, placed.clone());
    for second in 0..5 {
        driver.close(at(f64::from(second)), 0, PowerSettings::default(), Vec::new());
    }
    assert_eq!(limits(&machine, &INTEL), [2_200_000; 8]);
    assert!(!machine.path("limits").exists() && !machine.path("limits.lock").exists());
    assert!(placed.0.lock().unwrap().is_empty());
    let view = driver.view();
    assert_eq!((view.power.governor, view.power.domains.len()), ("none", 8));
    assert_eq!(view.power.frequency(CoreClass::Fast).map(|hertz| hertz.0), Some(2.2e9));
}

#[test]
fn concerto_slows_cores_and_binds_slow_work_and_gives_all_back() {
    let machine = Machine::intel_server();
    let placed = Arc::new(Placed::default());
    let (mut driver, _) = driver(&machine, placed.clone());
    driver.close(at(0.0), 0, settings(PowerMode::Concerto, None), Vec::new());
    let placement = placed.last();
    let of = |task: Task| placement.cores_of(task).unwrap();
    let (reads, stream) = (of(Duty::Foreground.into()), of(Duty::Replica.into()));
    assert!(!reads.is_empty() && !stream.is_empty() && reads.iter().all(|core| !stream.contains(core)));
    assert_eq!(of(Task { duty: Duty::Compaction, is_deep: true }), stream);
    assert_eq!(of(Task { duty: Duty::Compaction, is_deep: false }), reads);
    for core in &reads {
        assert_eq!(machine.limit(*core), 2_200_000);
    }
    for core in &stream {
        assert_eq!(machine.limit(*core), 800_000);
    }
    assert_eq!(driver.view().power.governor, "cpufreq");

    driver.close(at(1.0), 1, settings(PowerMode::AllLow, None), Vec::new());
    assert_eq!(limits(&machine, &INTEL), [800_000; 8]);
    assert!(!placed.last().is_divided());

    driver.close(at(2.0), 2, settings(PowerMode::AllHigh, None), Vec::new());
    assert_eq!(limits(&machine, &INTEL), [2_200_000; 8]);
    assert!(!machine.path("limits").exists());
}

#[test]
fn cores_of_one_domain_cannot_be_divided_and_stay_fast() {
    let machine = Machine::raspberry_pi_5();
    let placed = Arc::new(Placed::default());
    let (mut driver, _) = driver(&machine, placed.clone());
    driver.close(at(0.0), 0, settings(PowerMode::Concerto, None), Vec::new());
    assert_eq!(machine.limit(0), 2_400_000);
    assert!(!placed.last().is_divided() && !driver.view().power.is_divided);
}

#[test]
fn without_the_right_to_cap_the_server_goes_on() {
    let machine = Machine::amd_desktop();
    machine.break_file("sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq");
    let (mut driver, _) = driver(&machine, Arc::new(Unbound));
    for second in 0..3 {
        driver.close(at(f64::from(second)), 0, settings(PowerMode::Concerto, Some(30.0)), Vec::new());
    }
    let view = driver.view();
    assert_eq!((view.power.governor, view.power.is_cap_kept), ("none", Some(false)));
    assert_eq!(machine.limit(2), 3_600_000);
}

#[test]
fn cores_that_go_offline_take_no_part_and_come_back() {
    let machine = Machine::jetson();
    let placed = Arc::new(Placed::default());
    let (mut driver, _) = driver(&machine, placed.clone());
    let concerto = settings(PowerMode::Concerto, None);
    driver.close(at(0.0), 0, concerto, Vec::new());
    assert!(placed.last().is_divided());
    let (there, away) = (machine.path("sys/devices/system/cpu/cpufreq/policy3"), machine.path("away"));
    std::fs::rename(&there, &away).unwrap();
    driver.close(at(1.0), 1, concerto, Vec::new());
    // What is left cannot be divided: nobody may be bound to cores that are not there.
    assert!(!placed.last().is_divided());
    assert_eq!(machine.limit(0), 1_510_400);
    std::fs::rename(&away, &there).unwrap();
    driver.close(at(12.0), 12, concerto, Vec::new());
    assert!(placed.last().is_divided());
    drop(driver);
    assert_eq!(limits(&machine, &[0, 3]), [1_510_400, 1_510_400]);
}

#[test]
fn cores_that_were_offline_at_the_start_are_governed_once_they_are_there() {
    let machine = Machine::intel_server();
    let (there, away) = (machine.path(&format!("{CPUFREQ}/policy6")), machine.path("away"));
    std::fs::rename(&there, &away).unwrap();
    let (mut driver, _) = driver(&machine, Arc::new(Unbound));
    let low = settings(PowerMode::AllLow, None);
    driver.close(at(0.0), 0, low, Vec::new());
    std::fs::rename(&away, &there).unwrap();
    assert_eq!(machine.limit(6), 2_200_000);
    for second in 1..12 {
        driver.close(at(f64::from(second)), 0, low, Vec::new());
    }
    assert_eq!(limits(&machine, &INTEL), [800_000; 8]);
    assert_eq!(driver.view().power.domains.len(), 8);
    // Killed now, the next start finds its limit in the record.
    assert!(machine.read("limits").contains("policy6 2200000"), "{}", machine.read("limits"));
    drop(driver);
    assert_eq!(limits(&machine, &INTEL), [2_200_000; 8]);
}

#[test]
fn a_core_that_goes_offline_is_counted_no_more() {
    // Of two cores that share a frequency one goes: the domain stays, and draws half.
    let machine = Machine::amd_desktop();
    machine.write("sys/devices/system/cpu/online", "0-7");
    let placed = Arc::new(Placed::default());
    let (mut driver, _) = driver(&machine, placed.clone());
    let capped = settings(PowerMode::AllHigh, Some(1_000.0));
    driver.close(at(0.0), 0, settings(PowerMode::Concerto, None), Vec::new());
    assert!(placed.last().cores.iter().any(|core| core.0 == 1));
    driver.close(at(0.5), 0, capped, Vec::new());
    let whole = driver.view().power.most.unwrap().0;
    machine.write("sys/devices/system/cpu/online", "0,2-7");
    driver.close(at(1.0), 1, capped, Vec::new());
    let less = driver.view().power.most.unwrap().0;
    assert!((whole - less - 10.0).abs() < 0.01, "a fast core draws 10 W: {whole} W before, {less} W after");
    driver.close(at(1.5), 1, settings(PowerMode::Concerto, None), Vec::new());
    let placement = placed.last();
    assert!(placement.is_divided() && placement.cores.iter().all(|core| core.0 != 1), "bound to it: {placement:?}");
    // The other one goes too, and the kernel refuses its files. It goes while caps are written.
    machine.write("sys/devices/system/cpu/online", "2-7");
    machine.break_file(&format!("{CPUFREQ}/policy0/scaling_max_freq"));
    machine.break_file(&format!("{CPUFREQ}/policy0/scaling_cur_freq"));
    for second in 2..5 {
        driver.close(at(f64::from(second)), 0, capped, Vec::new());
        let gone = driver.view().power;
        assert!((less - gone.most.unwrap().0 - 10.0).abs() < 0.01, "{gone:?}");
        assert_eq!((gone.domains[0].reached, gone.domains[0].cap), (None, None));
    }
}

#[test]
fn a_domain_that_went_offline_unseen_is_not_counted_ever_after() {
    // Nobody lists what is online here, and the first sign is a cap that is refused.
    let machine = Machine::intel_server();
    let (mut driver, _) = driver(&machine, Arc::new(Unbound));
    let capped = |watts| settings(PowerMode::AllHigh, Some(watts));
    driver.close(at(0.0), 0, capped(1_000.0), Vec::new());
    let whole = driver.view().power.most.unwrap().0;
    std::fs::rename(machine.path(&format!("{CPUFREQ}/policy3")), machine.path("away")).unwrap();
    // Between a look and its step, as a promotion does.
    driver.promoted(at(0.5), capped(40.0));
    driver.promoted(at(0.6), capped(1_000.0));
    for second in 1..4 {
        driver.close(at(f64::from(second)), 0, capped(1_000.0), Vec::new());
        let less = driver.view().power.most.unwrap().0;
        assert!((whole - less - 10.0).abs() < 0.01, "{whole} W before, {less} W after");
    }
}

#[test]
fn what_is_fast_follows_the_work() {
    let machine = Machine::intel_server();
    let placed = Arc::new(Placed::default());
    let (mut driver, _) = driver(&machine, placed.clone());
    let concerto = settings(PowerMode::Concerto, None);
    let slow = |placed: &Placed| placed.last().cores.iter().filter(|core| core.1 == CoreClass::Slow).count();
    // A server of replicas: streams keep three cores of the highest frequency busy.
    let mut cpu = 0.0;
    for second in 0..40 {
        driver.close(at(f64::from(second)), 0, concerto, used(&[(Duty::Replica, CoreClass::Fast, cpu)]));
        cpu += 3.0;
    }
    let of_replicas = slow(&placed);
    // One of them is promoted: there will be clients.
    driver.promoted(at(40.0), concerto);
    let promoted = slow(&placed);
    assert!(promoted < of_replicas, "{promoted} slow cores after, {of_replicas} before");
    for (core, class) in placed.last().cores {
        assert!(class == CoreClass::Slow || machine.limit(core) == 2_200_000);
    }
    // None comes; it is as before.
    for second in 41..80 {
        driver.close(at(f64::from(second)), 0, concerto, used(&[(Duty::Replica, CoreClass::Fast, cpu)]));
        cpu += 3.0;
    }
    assert_eq!(slow(&placed), of_replicas);
}

/// What the machine draws when all its cores are busy at their limits.
fn most(machine: &Machine, policies: &[u32], cores: f64, meter: &EnergyMeter) -> f64 {
    let model = meter.model();
    let of = |policy: &u32| {
        let hertz = ecotone_types::units::Hertz(machine.limit(*policy) as f64 * 1e3);
        cores * 10.0 * model.p_states().relative_power_at(hertz)
    };
    5.0 + policies.iter().map(of).sum::<f64>()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// By what the machine's own files say: a cap that can be kept is kept, at every moment after it
    /// was set; one that cannot is said; a lower one lets no core run faster.
    #[test]
    fn a_cap_that_can_be_kept_is_kept(
        caps in proptest::collection::vec(1.0..120.0f64, 1..6), mode in 0usize..3, seconds in 1u32..4
    ) {
        let (intel, amd) = (Machine::intel_server(), Machine::amd_desktop());
        for (machine, policies, cores) in [(&intel, &INTEL[..], 1.0), (&amd, &[0, 2, 4, 6][..], 2.0)] {
            let (mut driver, meter) = driver(machine, Arc::new(Unbound));
            let mut before: Option<(f64, Vec<u64>)> = None;
            let mut now = 0.0;
            for cap in &caps {
                for _ in 0..seconds {
                    driver.close(at(now), 0, settings(PowerMode::ALL[mode], Some(*cap)), Vec::new());
                    machine.follow_limits(policies);
                    now += 1.0;
                }
                let watts = most(machine, policies, cores, &meter);
                let view = driver.view();
                if view.power.is_cap_kept == Some(true) {
                    prop_assert!(watts <= cap * 1.001, "{watts} W under a cap of {cap} W");
                } else {
                    let lowest: Vec<u64> = policies.iter().map(|policy| {
                        machine.read(&format!("sys/devices/system/cpu/cpufreq/policy{policy}/cpuinfo_min_freq")).parse().unwrap()
                    }).collect();
                    prop_assert_eq!(limits(machine, policies), lowest);
                    prop_assert!(watts > *cap);
                }
                let now = limits(machine, policies);
                if let Some((cap_before, limits_before)) = &before
                    && cap <= cap_before
                {
                    prop_assert!(now.iter().zip(limits_before).all(|(now, before)| now <= before));
                }
                before = Some((*cap, now));
            }
        }
    }
}

/// A processor that does not do what was asked: the cap is not kept, and nobody says that it is.
#[test]
fn a_cap_is_judged_by_what_was_reached() {
    let machine = Machine::intel_server();
    let (mut driver, _) = driver(&machine, Arc::new(Unbound));
    let capped = settings(PowerMode::AllHigh, Some(30.0));
    let mut now = 0.0;
    let mut close = |driver: &mut Driver, settings| {
        driver.close(at(now), 0, settings, Vec::new());
        now += 1.0;
        driver.view().power
    };
    let before = close(&mut driver, capped);
    assert_eq!(before.is_cap_kept, Some(true), "what cores ran at before says nothing of a cap that is new");
    assert!(before.most.unwrap().0 <= 30.0 * 1.001, "{before:?}");
    machine.follow_limits(&INTEL);
    assert_eq!(close(&mut driver, capped).is_cap_kept, Some(true));
    // One core follows its neighbour's request.
    machine.set_frequency(3, 2_200_000);
    let above = close(&mut driver, capped);
    assert_eq!(above.is_cap_kept, Some(false));
    assert!(above.most.unwrap().0 > 30.0 && above.trouble.unwrap().contains("above what they were set to"));
    machine.follow_limits(&INTEL);
    let again = close(&mut driver, capped);
    assert_eq!((again.is_cap_kept, again.trouble), (Some(true), None));
    // A file that takes no write any more, while a lower cap is asked for.
    machine.break_file(&format!("{CPUFREQ}/policy5/scaling_max_freq"));
    let refused = close(&mut driver, settings(PowerMode::AllHigh, Some(20.0)));
    assert_eq!(refused.is_cap_kept, Some(false));
    assert_eq!(refused.domains[5].cap, None);
    // Without a cap nothing is judged.
    assert_eq!(close(&mut driver, settings(PowerMode::AllLow, None)).is_cap_kept, None);
}

fn within(actual: f64, expected: f64, share: f64) {
    assert!((actual - expected).abs() <= share * expected, "{actual} is not within {share} of {expected}");
}

/// How the joules of a second come to the machine's files.
type Show<'a> = &'a dyn Fn(&Machine, u32, f64);

/// A machine whose four cores are busy by turns: clients on core 0 at 2.2 GHz, deep compactions on
/// core 1 and a stream on core 2, both slow, another process on core 3. Gives what is shown, and the
/// true joules of each.
fn live(machine: &mut Machine, seconds: u32, show: Show<'_>) -> (Driver, Arc<EnergyMeter>, [f64; 4], f64) {
    let (mut driver, meter) = driver(machine, Arc::new(Unbound));
    let wave =
        |second: u32, period: u32, low: f64, high: f64| if (second / period).is_multiple_of(2) { low } else { high };
    let concerto = settings(PowerMode::Concerto, None);
    let (mut cpu, mut truth, mut idle) = ([0.0; 3], [0.0; 4], 0.0);
    driver.close(at(0.0), 0, concerto, Vec::new());
    let table = meter.model().p_states().clone();
    let watts = |khz: u64| 8.0 * table.relative_power_at(ecotone_types::units::Hertz(khz as f64 * 1e3));
    for second in 0..seconds {
        // Which cores are slow follows the work.
        let (slow, fast): (Vec<u32>, Vec<u32>) = INTEL.iter().partition(|core| machine.limit(**core) < 2_200_000);
        INTEL.iter().for_each(|core| machine.set_frequency(*core, machine.limit(*core)));
        let busy = [
            wave(second, 7, 0.2, 0.9),
            wave(second, 11, 0.1, 0.45),
            wave(second, 5, 0.1, 0.5),
            wave(second, 13, 0.0, 0.7),
        ];
        let mut joules = 12.0;
        idle += 12.0;
        // What may run on several cores runs on all of them by turns.
        let cores: [&[u32]; 4] = [&fast[..1], &slow, &slow, &fast[1..2]];
        for (at, cores) in cores.into_iter().enumerate() {
            for core in cores {
                let busy = busy[at] / cores.len() as f64;
                let spent = busy * watts(machine.limit(*core));
                truth[at] += spent;
                joules += spent;
                machine.run(*core, busy, 1.0);
            }
        }
        machine.write_stat();
        show(machine, second, joules);
        (0..3).for_each(|at| cpu[at] += busy[at]);
        let now = used(&[
            (Duty::Foreground, CoreClass::Fast, cpu[0]),
            (Duty::Compaction, CoreClass::Slow, cpu[1]),
            (Duty::Replica, CoreClass::Slow, cpu[2]),
        ]);
        driver.look(at(f64::from(second + 1)));
        driver.close(at(f64::from(second + 1)), u64::from(second), concerto, now);
    }
    (driver, meter, truth, idle)
}

const RANGE: u64 = 262_143_328_850;

#[test]
fn joules_go_to_the_duties_that_used_them_within_five_percent() {
    let mut machine = Machine::intel_server();
    let show = |machine: &Machine, _, joules: f64| machine.use_energy("intel-rapl:0", joules, RANGE);
    let (driver, meter, truth, idle) = live(&mut machine, 900, &show);
    let reading = driver.view().over(meter.reading());
    assert_eq!(reading.source, EnergySource::Rapl);
    within(reading.energy(Duty::Foreground).0, truth[0], 0.05);
    within(reading.energy(Duty::Compaction).0, truth[1], 0.05);
    within(reading.energy(Duty::Replica).0, truth[2], 0.05);
    within(driver.view().others.0, truth[3], 0.05);
    within(reading.idle().0, idle, 0.05);
    within(reading.total_joules, truth[..3].iter().sum::<f64>() + idle, 0.05);
    // Prices of jobs follow the fit.
    within(driver.view().model.1.0, 8.0, 0.05);
    let minutes: Vec<_> = driver.history().minutes().collect();
    let by_minute: f64 = minutes.iter().map(|minute| minute.joules["foreground"]).sum();
    within(by_minute, reading.energy(Duty::Foreground).0, 0.01);
    let slow = minutes[10].cycles["replica"] / minutes[10].cpu_s["replica"];
    within(slow, 0.8e9, 0.001);
    // The same work takes more where all cores are fast: V squared times f, for the time that is left.
    assert!(minutes[10].all_high_joules > minutes[10].joules.values().sum::<f64>());
}

#[test]
fn sums_never_fall_whatever_the_meter_does() {
    let zone = "sys/class/powercap/intel-rapl:0/energy_uj";
    let tricks: [(&str, Show<'_>); 4] = [
        ("vanishes", &|machine, second, joules| match second {
            100 => std::fs::rename(machine.path(zone), machine.path("gone")).unwrap(),
            130 => std::fs::rename(machine.path("gone"), machine.path(zone)).unwrap(),
            101..130 => {}
            _ => machine.use_energy("intel-rapl:0", joules, RANGE),
        }),
        ("freezes", &|machine, second, joules| {
            if !(100..130).contains(&second) {
                machine.use_energy("intel-rapl:0", joules, RANGE);
            }
        }),
        ("jumps", &|machine, second, joules| {
            let much = if second % 40 == 39 { 90_000.0 } else { 0.0 };
            machine.use_energy("intel-rapl:0", joules + much, RANGE);
        }),
        ("is set back", &|machine, second, joules| {
            if second % 50 == 49 {
                machine.write(zone, "17");
            }
            machine.use_energy("intel-rapl:0", joules, RANGE);
        }),
    ];
    for (what, trick) in tricks {
        let mut machine = Machine::intel_server();
        let (driver, meter, truth, idle) = live(&mut machine, 300, trick);
        let reading = driver.view().over(meter.reading());
        let expected = truth[..3].iter().sum::<f64>() + idle;
        assert!((reading.total_joules / expected - 1.0).abs() < 0.12, "{what}: {} of {expected}", reading.total_joules);
        let minutes: Vec<_> = driver.history().minutes().collect();
        let per_minute = |minute: &&&ecotone_energy::Minute| minute.joules.values().sum::<f64>() / minute.seconds;
        assert!(minutes.iter().all(|minute| (12.0..60.0).contains(&per_minute(&minute))), "{what}");
    }
}

#[test]
fn closing_each_second_costs_less_than_half_a_percent_of_a_core() {
    let machine = Machine::intel_server();
    let (mut driver, _) = driver(&machine, Arc::new(Unbound));
    let seconds = 100u32;
    for second in 0..seconds {
        let mode = if second % 20 < 10 { PowerMode::Concerto } else { PowerMode::AllLow };
        driver.look(at(f64::from(second)));
        driver.close(at(f64::from(second)), u64::from(second), settings(mode, Some(60.0)), Vec::new());
    }
    let view = driver.view();
    println!("share of a core: {:.6}", view.cost_share);
    assert!(view.cost > Seconds::ZERO && view.cost_share < MAX_COST_SHARE, "{}", view.cost_share);
}

/// The cores that the calling thread may run on, as the kernel says.
fn mine() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

#[test]
fn a_thread_runs_where_its_task_belongs() {
    let all = mine();
    if std::thread::available_parallelism().unwrap().get() < 2 || !all.starts_with("0-") {
        println!("skipped: needs cores 0 and 1");
        return;
    }
    let meter = EnergyMeter::start(PowerModel::hardware(5.0, 10.0).unwrap()).unwrap();
    let affinity = Arc::new(Affinity::of_this_process().unwrap());
    let duties = ThreadDuties::new(meter.clone(), affinity.clone());
    let slow_work = SlowWork::where_slow(|task| matches!(task.duty, Duty::Replica | Duty::Gc) || task.is_deep);
    let place = |slow: u32| {
        let class = |core| if core == slow { CoreClass::Slow } else { CoreClass::Fast };
        meter.set_slow_work(slow_work);
        affinity.place(&Placement { slow_work, cores: vec![(0, class(0)), (1, class(1))] });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stream = DutyScope::begin(&duties, Duty::Replica);
            assert_eq!(mine(), all, "nobody is bound before cores have classes");
            place(1);
            assert_eq!(mine(), "1", "a thread that is on one moves");
            {
                let _inside = DutyScope::begin(&duties, Duty::Foreground);
                assert_eq!(mine(), "1", "the outermost duty counts");
            }
            place(0);
            assert_eq!(mine(), "0");
        });
    });
    place(1);
    for (duty, is_deep, cores) in [
        (Duty::Foreground, false, "0"),
        (Duty::Compaction, false, "0"),
        (Duty::Compaction, true, "1"),
        (Duty::Gc, false, "1"),
    ] {
        use ecotone_types::DutyObserver;
        if is_deep {
            duties.begin_deep(duty)
        } else {
            duties.begin(duty)
        }
        assert_eq!(mine(), cores, "{duty} {is_deep}");
        duties.end();
        assert_eq!(mine(), all);
    }
    affinity.place(&Placement::default());
    let _stream = DutyScope::begin(&duties, Duty::Replica);
    assert_eq!(mine(), all);
    assert_eq!(affinity.failures(), 0);
}

fn thread(root: &Path, record: &Path, mode: PowerMode) -> EnergyThread {
    let meter = meter_of(root);
    let governing = Governing::Machine { root: root.to_path_buf(), record: record.to_path_buf() };
    let driver = Driver::start(DriverOptions { meter: meter.clone(), binder: Arc::new(Unbound), governing }).unwrap();
    EnergyThread::start(driver, meter, move || settings(mode, None)).unwrap()
}

fn until(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < deadline, "{what} has not come in a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_promoted_copy_waits_for_its_cores_and_not_for_long() {
    let machine = Machine::intel_server();
    let concerto = thread(machine.root(), &machine.path("limits"), PowerMode::Concerto);
    until("a cap", || concerto.view().power.is_divided);
    assert_eq!(concerto.promotion().wait(), PromotionWait::AtSpeed);
    // The kernel lets the cores be slow, whatever is asked for.
    INTEL.iter().for_each(|core| machine.set_frequency(*core, 800_000));
    let began = Instant::now();
    assert_eq!(concerto.promotion().wait(), PromotionWait::BelowSpeed);
    let waited = began.elapsed();
    // It cannot be late by more than the machine's scheduler is.
    assert!((Duration::from_millis(50)..Duration::from_millis(500)).contains(&waited), "{waited:?}");
    // What the copy did meanwhile is part of the wait, not before it.
    let pending = concerto.promotion();
    let asked = Instant::now();
    until("the whole wait", || asked.elapsed() > Duration::from_millis(60));
    let began = Instant::now();
    assert_eq!(pending.wait(), PromotionWait::BelowSpeed);
    assert!(began.elapsed() < Duration::from_millis(45), "{:?}", began.elapsed());
    assert_eq!(concerto.promotions(), (3, 2));
    drop(concerto);
    assert_eq!(limits(&machine, &INTEL), [2_200_000; 8]);

    let high = thread(machine.root(), &machine.path("limits"), PowerMode::AllHigh);
    assert_eq!(high.promotion().wait(), PromotionWait::AtSpeed, "nothing is governed, so nothing is waited for");
}

#[test]
fn a_panic_leaves_no_cap_and_nobody_bound() {
    let machine = Machine::intel_server();
    let placed = Arc::new(Placed::default());
    let (driver, meter) = driver(&machine, placed.clone());
    let fails = Arc::new(AtomicBool::new(false));
    let flag = fails.clone();
    let thread = EnergyThread::start(driver, meter, move || {
        assert!(!flag.load(Ordering::SeqCst), "the settings cannot be read");
        settings(PowerMode::Concerto, None)
    })
    .unwrap();
    until("a cap", || thread.view().power.is_divided);
    assert!(limits(&machine, &INTEL).contains(&800_000) && placed.last().is_divided());
    fails.store(true, Ordering::SeqCst);
    until("all limits", || limits(&machine, &INTEL) == [2_200_000; 8] && !machine.path("limits").exists());
    assert!(!placed.last().is_divided());
    let power = thread.view().power.clone();
    assert_eq!((power.governor, power.is_divided), ("none", false));
    assert!(power.trouble.unwrap().contains("panicked"));
    // Nobody makes cores fast any more, so nobody waits for it.
    INTEL.iter().for_each(|core| machine.set_frequency(*core, 800_000));
    assert_eq!(thread.promotion().wait(), PromotionWait::AtSpeed);
}

#[test]
fn a_governor_that_comes_later_is_found_and_not_sought_each_second() {
    let machine = Machine::intel_server();
    let (there, away) = (machine.path(CPUFREQ), machine.path("away"));
    std::fs::rename(&there, &away).unwrap();
    let (mut driver, _) = driver(&machine, Arc::new(Unbound));
    let low = settings(PowerMode::AllLow, Some(70.0));
    let mut close = |second: f64| {
        driver.close(at(second), 0, low, Vec::new());
        driver.view().power
    };
    let none = close(0.0);
    assert_eq!((none.governor, none.is_cap_kept), ("none", Some(false)));
    std::fs::rename(&away, &there).unwrap();
    assert_eq!(close(9.0).governor, "none", "it was just looked for");
    let found = close(11.0);
    assert_eq!((found.governor, found.is_cap_kept), ("cpufreq", Some(true)));
    assert_eq!(limits(&machine, &INTEL), [800_000; 8]);
    drop(driver);

    // In vain it is looked for more and more seldom, and never less than every eleven minutes.
    let machine = Machine::bare(2);
    machine.write(&format!("{CPUFREQ}/policy0/scaling_max_freq"), "no number");
    let (mut driver, _) = self::driver(&machine, Arc::new(Unbound));
    let lock = machine.path("limits.lock");
    let mut looks = Vec::new();
    for second in (0..4_000u32).step_by(10) {
        driver.close(at(f64::from(second)), 0, low, Vec::new());
        if lock.exists() {
            looks.push(second);
            std::fs::remove_file(&lock).unwrap();
        }
    }
    let gaps: Vec<u32> = looks.windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(gaps, [10, 20, 40, 80, 160, 320, 640, 640, 640, 640, 640]);
}

const TREE: &str = "ECOTONE_TEST_TREE";

/// The process that the next test kills; nothing when it is not started by it.
#[test]
fn a_server_in_concerto() {
    let Some(tree) = std::env::var_os(TREE) else { return };
    let tree = Path::new(&tree);
    let thread = thread(tree, &tree.join("limits"), PowerMode::Concerto);
    loop {
        thread.promotion().wait();
    }
}

#[test]
fn a_killed_server_leaves_limits_that_the_next_one_restores() {
    let machine = Machine::intel_server();
    let record = machine.path("limits");
    for round in 0..4u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_server_in_concerto"])
            .env(TREE, machine.root())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        until("the record", || record.exists());
        std::thread::sleep(Duration::from_millis(round * 5));
        child.kill().unwrap();
        child.wait().unwrap();
        if round % 2 == 0 {
            // It wants nothing of the frequencies, and mends them all the same.
            drop(thread(machine.root(), &record, PowerMode::AllHigh));
        } else {
            cpufreq::restore(machine.root(), &record).unwrap();
        }
        assert_eq!(limits(&machine, &INTEL), [2_200_000; 8], "round {round}");
        assert!(!record.exists());
    }
}
