//! Meters of five machines; meters that fail; and what joules are given to.

#![allow(clippy::unwrap_used)] // a helper that panics is a failed test

mod machines;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use ecotone_energy::meters::{
    Doubt, EventCounter, EventSource, Look, MeterReport, PowerEvent, PowerMeter, Sampler, Work, choose, choose_with,
};
use ecotone_energy::{EnergySource, PStateTable, PowerModel, PowerModelKeys};
use ecotone_types::Duty;
use ecotone_types::units::{Hertz, Seconds, Time};
use machines::Machine;

/// What the operator configured: wrong on purpose, so that nothing is right by it.
fn configured(highest_ghz: f64) -> PowerModel {
    let p_states = PStateTable::xeon_silver_4114().scaled_to(highest_ghz * 1e9).unwrap();
    PowerModel::new(PowerModelKeys { idle_watts: 5.0, active_watts: 10.0, p_states, core_speed: None }).unwrap()
}

fn at(seconds: f64) -> Time {
    Time::from_seconds(seconds)
}

fn work(duty: Option<Duty>, cpu: f64, ghz: f64) -> Work {
    Work { duty, cpu: Seconds(cpu), frequency: Hertz(ghz * 1e9) }
}

fn within(actual: f64, expected: f64, share: f64) {
    assert!((actual - expected).abs() <= share * expected, "{actual} is not within {share} of {expected}");
}

/// Joules so far, those of the first spans included.
fn all(report: &MeterReport) -> f64 {
    report.joules.total().0 + report.held.0
}

fn adds_up(report: &MeterReport) {
    let parts: f64 = Duty::ALL.iter().map(|duty| report.joules.duty(*duty).0).sum();
    within(
        report.joules.total().0,
        parts + report.joules.unattributed + report.joules.others + report.joules.idle,
        1e-9,
    );
}

#[test]
fn each_machine_gets_the_meter_nearest_to_its_processor() {
    let of = |machine: &Machine| {
        let choice = choose(machine.root());
        assert!(choice.unusable.is_empty());
        choice.meter.map(|meter| (meter.label().source, meter.label().covers.clone()))
    };
    let is = |source, covers: &str| Some((source, covers.to_owned()));
    assert_eq!(of(&Machine::intel_server()), is(EnergySource::Rapl, "package-0, package-1"));
    assert_eq!(of(&Machine::amd_desktop()), is(EnergySource::Rapl, "package-0"));
    assert_eq!(of(&Machine::jetson()), is(EnergySource::Hwmon, "VDD_IN"));
    assert_eq!(of(&Machine::raspberry_pi_5()), is(EnergySource::Pmic, "3V3_SYS, VDD_CORE"));
    assert_eq!(of(&Machine::bare(4)), None);

    // A Pi 4 has the program and no meter.
    let pi4 = Machine::raspberry_pi_5();
    pi4.write("proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0");
    assert_eq!(of(&pi4), None);
}

#[test]
fn rails_of_a_module_without_an_input_add_up_and_switched_off_ones_do_not() {
    let machine = Machine::jetson();
    machine.write("sys/class/hwmon/hwmon3/in1_label", "VDD_GPU_SOC");
    machine.write("sys/class/hwmon/hwmon3/in3_enable", "0");
    machine.write("sys/class/hwmon/hwmon4/name", "ina226");
    machine.write("sys/class/hwmon/hwmon4/power1_input", "250000");
    // The machine's own meter would count the rails again.
    machine.write("sys/class/hwmon/hwmon5/name", "power_meter");
    machine.write("sys/class/hwmon/hwmon5/power1_average", "90000000");
    let mut meter = choose(machine.root()).meter.unwrap();
    assert_eq!(meter.label().covers, "VDD_GPU_SOC, VDD_CPU_GPU_CV, ina226");
    meter.look(at(0.0)).unwrap();
    let look = format!("{:?}", meter.look(at(0.1)).unwrap());
    // (5 + 1.5 + 0.25) W for a tenth of a second.
    assert!(look.contains("Joules(0.675"), "{look}");
}

#[test]
fn a_meter_that_may_not_be_read_is_named_and_the_next_is_taken() {
    let machine = Machine::amd_desktop();
    machine.break_file("sys/class/powercap/intel-rapl:0/energy_uj");
    machine.write("sys/class/hwmon/hwmon5/name", "power_meter");
    machine.write("sys/class/hwmon/hwmon5/power1_average", "90000000");
    let choice = choose(machine.root());
    assert_eq!(choice.meter.unwrap().label().covers, "power_meter");
    let (source, error) = &choice.unusable[0];
    assert_eq!((choice.unusable.len(), *source), (1, EnergySource::Rapl));
    assert!(error.to_string().contains("intel-rapl:0/energy_uj"), "{error}");
}

/// By the number of an event and its processor, what it has counted; none: that cannot be read.
type Counts = BTreeMap<(u64, u32), Option<u64>>;

/// Perf events as a test has them.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Counts>>);

const PACKAGE: u64 = 2;
const MEMORY: u64 = 3;

impl Events {
    fn of_two_packages() -> Self {
        let events = Self::default();
        [(PACKAGE, 0), (PACKAGE, 4), (MEMORY, 0), (MEMORY, 4)].into_iter().for_each(|event| events.set(event, Some(0)));
        events
    }

    fn set(&self, event: (u64, u32), count: Option<u64>) {
        self.0.lock().unwrap().insert(event, count);
    }

    /// In units of 2^-32 J.
    fn add(&self, event: (u64, u32), joules: f64) {
        if let Some(Some(count)) = self.0.lock().unwrap().get_mut(&event) {
            *count += (joules * 4_294_967_296.0) as u64;
        }
    }
}

struct Counter(Events, (u64, u32));

impl EventCounter for Counter {
    fn count(&mut self) -> io::Result<u64> {
        self.0.0.lock().unwrap()[&self.1].ok_or_else(|| io::Error::other("gone"))
    }
}

impl EventSource for Events {
    fn open(&self, event: PowerEvent) -> io::Result<Box<dyn EventCounter>> {
        assert_eq!(event.source, 25);
        let at = (event.config, event.cpu);
        let is_there = self.0.lock().unwrap().contains_key(&at);
        is_there.then(|| Box::new(Counter(self.clone(), at)) as _).ok_or(io::ErrorKind::PermissionDenied.into())
    }
}

fn grew(meter: &mut dyn PowerMeter, second: f64) -> f64 {
    match meter.look(at(second)).unwrap() {
        Look::Grew { joules, .. } => joules.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn perf_events_come_before_powercap_and_memory_is_counted_apart() {
    let machine = Machine::intel_server();
    machine.perf_events();
    let events = Events::of_two_packages();
    let choice = choose_with(machine.root(), &events);
    assert!(choice.unusable.is_empty());
    let mut meter = choice.meter.unwrap();
    let label = meter.label().clone();
    assert_eq!((label.source.name(), label.covers.as_str()), ("perf", "energy-pkg on processor 0, 4"));
    assert_eq!((label.counts, label.max_watts.0), (true, 2_000.0));
    events.add((PACKAGE, 0), 1_000.0);
    assert_eq!(meter.look(at(0.0)).unwrap(), Look::First, "what was used before is nobody's");
    events.add((PACKAGE, 0), 30.0);
    events.add((PACKAGE, 4), 20.0);
    events.add((MEMORY, 0), 4.0);
    within(grew(&mut *meter, 1.0), 50.0, 1e-6);
    within(meter.memory().unwrap().0, 4.0, 1e-6);
    assert!(matches!(meter.look(at(2.0)).unwrap(), Look::Grew { unchanged: true, .. }));
    // One package that cannot be read leaves the books as they were; nothing of the gap is lost.
    events.add((PACKAGE, 0), 7.0);
    events.set((PACKAGE, 4), None);
    assert!(meter.look(at(3.0)).unwrap_err().to_string().contains("energy-pkg"));
    events.set((PACKAGE, 4), Some(20 << 32));
    within(grew(&mut *meter, 4.0), 7.0, 1e-6);
    events.set((PACKAGE, 4), Some(0));
    assert_eq!(meter.look(at(5.0)).unwrap(), Look::Reset);
}

#[test]
fn perf_events_that_may_not_be_opened_leave_powercap() {
    let machine = Machine::intel_server();
    machine.perf_events();
    let choice = choose_with(machine.root(), &Events::default());
    assert_eq!(choice.meter.unwrap().label().source, EnergySource::Rapl);
    let (source, error) = &choice.unusable[0];
    assert_eq!((choice.unusable.len(), *source), (1, EnergySource::Perf));
    assert!(error.is_missing_right() && error.to_string().contains("events/energy-pkg"), "{error}");

    // Without memory's counter it is a meter all the same, which says nothing of memory.
    let events = Events::default();
    [(PACKAGE, 0), (PACKAGE, 4)].into_iter().for_each(|event| events.set(event, Some(0)));
    let meter = choose_with(machine.root(), &events).meter.unwrap();
    assert_eq!((meter.label().source, meter.memory()), (EnergySource::Perf, None));

    // Files that say what nobody knows are no joules.
    let source = "sys/bus/event_source/devices/power";
    for (file, text) in [
        ("events/energy-pkg", "event=0x02,umask=1"),
        ("events/energy-pkg.unit", "Watts"),
        ("events/energy-pkg.scale", "-1"),
        ("events/energy-pkg.scale", "nan"),
        ("cpumask", ""),
        ("cpumask", "4-0"),
        ("type", "power"),
    ] {
        let machine = Machine::intel_server();
        machine.perf_events();
        machine.write(&format!("{source}/{file}"), text);
        let choice = choose_with(machine.root(), &Events::of_two_packages());
        assert_eq!(choice.meter.unwrap().label().source, EnergySource::Rapl, "{file}: {text}");
        assert!(choice.unusable[0].1.to_string().contains(file), "{}", choice.unusable[0].1);
    }
    // AMD's older source of this name has other events.
    let other = Machine::amd_desktop();
    other.write(&format!("{source}/events/power-pkg"), "event=0x01");
    assert!(choose_with(other.root(), &Events::default()).unusable.is_empty());
}

#[test]
fn powercap_counts_memory_apart_and_over_its_wraps() {
    const RANGE: u64 = 65_532_610_987;
    let machine = Machine::intel_server();
    for zone in ["intel-rapl:0:1", "intel-rapl:2:0"] {
        machine.write(&format!("sys/class/powercap/{zone}/max_energy_range_uj"), &RANGE.to_string());
        machine.write(&format!("sys/class/powercap/{zone}/energy_uj"), &(RANGE - 1_000_000).to_string());
    }
    // The memory-mapped view of a package has its memory a second time.
    machine.write("sys/class/powercap/intel-rapl-mmio:0:0/name", "dram");
    machine.write("sys/class/powercap/intel-rapl-mmio:0:0/energy_uj", "0");
    let mut meter = choose(machine.root()).meter.unwrap();
    assert_eq!(meter.label().source, EnergySource::Rapl);
    meter.look(at(0.0)).unwrap();
    machine.use_energy("intel-rapl:0", 40.0, 262_143_328_850);
    machine.use_energy("intel-rapl:0:1", 3.0, RANGE);
    machine.use_energy("intel-rapl:2:0", 2.0, RANGE);
    machine.write("sys/class/powercap/intel-rapl-mmio:0:0/energy_uj", "3000000");
    within(grew(&mut *meter, 1.0), 40.0, 1e-6);
    within(meter.memory().unwrap().0, 5.0, 1e-6);
    // While one is gone the packages are measured on.
    machine.remove("sys/class/powercap/intel-rapl:0:1/energy_uj");
    machine.use_energy("intel-rapl:0", 10.0, 262_143_328_850);
    within(grew(&mut *meter, 2.0), 10.0, 1e-6);
    within(meter.memory().unwrap().0, 5.0, 1e-6);
    // A desktop without such a counter says nothing of memory.
    let desktop = Machine::amd_desktop();
    assert_eq!(choose(desktop.root()).meter.unwrap().memory(), None);
}

#[test]
fn joules_of_perf_events_are_given_to_duties_as_those_of_powercap() {
    let mut machine = Machine::intel_server();
    machine.perf_events();
    let events = Events::of_two_packages();
    let truth = Truth { idle: 41.0, active: 7.0, table: PStateTable::xeon_silver_4114() };
    let show_to = events.clone();
    let meter = choose_with(machine.root(), &events).meter;
    let show = move |_: &Machine, _, joules: f64| {
        show_to.add((PACKAGE, 0), joules * 0.75);
        show_to.add((PACKAGE, 4), joules * 0.25);
        show_to.add((MEMORY, 4), 1.5);
    };
    let (report, by_core, idle) = live_with(&mut machine, meter, [2.2; 4], &truth, 300, 1, &show);
    assert_eq!(report.source, EnergySource::Perf);
    adds_up(&report);
    within(all(&report), by_core.iter().sum::<f64>() + idle, 1e-3);
    fair(&report, by_core, idle);
    within(report.memory.unwrap().0, 450.0, 0.01);
}

/// A load that goes up and down, in busy seconds of each second: foreground on core 0, compaction on
/// core 1, GC on core 2, something else on core 3.
fn load(second: u32) -> [f64; 4] {
    let wave = |period: u32, low: f64, high: f64| if (second / period).is_multiple_of(2) { low } else { high };
    [wave(7, 0.2, 0.9), wave(11, 0.0, 1.0), wave(5, 0.1, 0.6), wave(13, 0.0, 0.7)]
}

/// The truth behind a fake machine: idle watts, and watts of a busy core at a frequency.
struct Truth {
    idle: f64,
    active: f64,
    table: PStateTable,
}

impl Truth {
    fn core(&self, busy: f64, ghz: f64) -> f64 {
        busy * self.active * self.table.relative_power_at(Hertz(ghz * 1e9))
    }
}

/// How the joules of a second come to the machine's files.
type Show<'a> = &'a dyn Fn(&Machine, u32, f64);

/// Runs a machine for some seconds and gives the report and the true joules by duty and of idle.
fn live(
    machine: &mut Machine,
    ghz: [f64; 4],
    truth: &Truth,
    seconds: u32,
    looks_per_second: u32,
    show: Show<'_>,
) -> (MeterReport, [f64; 4], f64) {
    let meter = choose(machine.root()).meter;
    live_with(machine, meter, ghz, truth, seconds, looks_per_second, show)
}

/// The same with a meter that is given.
fn live_with(
    machine: &mut Machine,
    meter: Option<Box<dyn PowerMeter>>,
    ghz: [f64; 4],
    truth: &Truth,
    seconds: u32,
    looks_per_second: u32,
    show: Show<'_>,
) -> (MeterReport, [f64; 4], f64) {
    let duties = [Some(Duty::Foreground), Some(Duty::Compaction), Some(Duty::Gc), None];
    let mut sampler = Sampler::with(machine.root(), &configured(2.2), meter);
    let mut by_core = [0.0; 4];
    sampler.look(at(0.0));
    sampler.close(at(0.0), &[]);
    for second in 0..seconds {
        let busy = load(second);
        let mut joules = truth.idle;
        for core in 0..4 {
            let used = truth.core(busy[core], ghz[core]);
            by_core[core] += used;
            joules += used;
            machine.run(core as u32, busy[core], 1.0);
        }
        machine.write_stat();
        for look in 1..=looks_per_second {
            show(machine, second, joules / f64::from(looks_per_second));
            sampler.look(at(f64::from(second) + f64::from(look) / f64::from(looks_per_second)));
        }
        // What runs on core 3 is another process.
        let mine: Vec<Work> = (0..3).map(|core| work(duties[core], busy[core], ghz[core])).collect();
        sampler.close(at(f64::from(second + 1)), &mine);
    }
    let report = sampler.report();
    adds_up(&report);
    (report, by_core, truth.idle * f64::from(seconds))
}

fn fair(report: &MeterReport, by_core: [f64; 4], idle: f64) {
    // The share that was promised, of every part.
    within(report.joules.duty(Duty::Foreground).0, by_core[0], 0.05);
    within(report.joules.duty(Duty::Compaction).0, by_core[1], 0.05);
    within(report.joules.duty(Duty::Gc).0, by_core[2], 0.05);
    within(report.joules.others, by_core[3], 0.05);
    within(report.joules.idle, idle, 0.05);
}

#[test]
fn joules_of_a_server_are_given_out_within_five_percent() {
    let mut machine = Machine::intel_server();
    // GC runs at 1.0 GHz, and takes longer for it; the operator's table has the voltages right and
    // both watts wrong.
    let ghz = [2.2, 2.2, 1.0, 2.2];
    machine.set_frequency(2, 1_000_000);
    let truth = Truth { idle: 41.0, active: 7.0, table: PStateTable::xeon_silver_4114() };
    // The second package does nothing but idle; psys, the children and the second view of the first
    // package grow as well, and count for nothing.
    let show = |machine: &Machine, _: u32, joules: f64| {
        let range = 262_143_328_850;
        machine.use_energy("intel-rapl:0", joules - 15.0, range);
        machine.use_energy("intel-rapl:2", 15.0, range);
        for zone in ["intel-rapl:0:0", "intel-rapl:0:1", "intel-rapl:1", "intel-rapl:2:0", "intel-rapl-mmio:0"] {
            machine.use_energy(zone, joules, range);
        }
    };
    let (report, by_core, idle) = live(&mut machine, ghz, &truth, 600, 1, &show);
    fair(&report, by_core, idle);
    within(report.joules.total().0, by_core.iter().sum::<f64>() + idle, 1e-3);
    assert_eq!((report.source, report.doubt), (EnergySource::Rapl, None));
    assert!(report.measured_share > 0.99);
    // The fitted model is the truth, and says how well it predicts.
    within(report.model.idle.0, 41.0, 0.02);
    within(report.model.active.0, 7.0, 0.05);
    assert!(report.error.unwrap() < 0.02, "{:?}", report.error);
}

#[test]
fn a_counter_of_unknown_range_wraps_and_nothing_is_lost() {
    let mut machine = Machine::amd_desktop();
    let range = 65_536_000_000;
    machine.write("sys/class/powercap/intel-rapl:0/energy_uj", &(range - 5_000_000_000u64).to_string());
    for domain in [0, 2, 4, 6] {
        machine.set_frequency(domain, 2_200_000);
    }
    let truth = Truth { idle: 30.0, active: 20.0, table: PStateTable::xeon_silver_4114() };
    let show = |machine: &Machine, _: u32, joules: f64| machine.use_energy("intel-rapl:0", joules, range);
    let (report, by_core, idle) = live(&mut machine, [2.2; 4], &truth, 600, 1, &show);
    assert!(
        machine.read("sys/class/powercap/intel-rapl:0/energy_uj").parse::<u64>().unwrap() < range - 5_000_000_000,
        "it wrapped"
    );
    fair(&report, by_core, idle);
    assert_eq!(report.faults, Default::default());
}

#[test]
fn joules_of_a_jetson_are_integrated_at_ten_hertz() {
    let mut machine = Machine::jetson();
    for domain in [0, 3] {
        machine.set_frequency(domain, 2_200_000);
    }
    let truth = Truth { idle: 4.0, active: 1.5, table: PStateTable::xeon_silver_4114() };
    // Power over a tenth of a second as volts and amperes; the module's input is at 5 V.
    let show = |machine: &Machine, _: u32, joules: f64| {
        machine.write("sys/class/hwmon/hwmon3/curr1_input", &format!("{:.0}", joules * 10.0 / 5.0 * 1e3));
    };
    let (report, by_core, idle) = live(&mut machine, [2.2; 4], &truth, 300, 10, &show);
    fair(&report, by_core, idle);
    assert_eq!((report.source, report.doubt), (EnergySource::Hwmon, None));
    assert_eq!(report.interval, Seconds(0.1));
    assert!(report.leaves_out.contains("carrier board"));
}

#[test]
fn joules_of_a_pi_come_from_its_program_as_often_as_its_cost_allows() {
    let machine = Machine::raspberry_pi_5();
    let mut sampler = Sampler::start(machine.root(), &configured(2.4));
    sampler.close(at(0.0), &[]);
    let mut now = 0.0;
    for step in 0..12 {
        // 1.65 W of the other rail and 0.8 V x (2 or 4 A).
        machine.pmic_core_amperes(if step % 2 == 0 { 2.0 } else { 4.0 });
        now += sampler.interval().unwrap().0;
        sampler.close(at(now), &[work(Some(Duty::Flush), 0.5, 2.4)]);
    }
    let report = sampler.report();
    adds_up(&report);
    assert_eq!((report.source, report.faults), (EnergySource::Pmic, Default::default()));
    // The mean of both, 1.65 + 2.4 W; the first stretch begins at 1 A.
    within(all(&report) / now, 4.05, 0.1);
    // A program's whole time is its cost, and looks keep far enough apart for it.
    assert!(report.cost.0 > 0.0 && report.cost.0 / now < 0.02, "{} s in {now} s", report.cost.0);
}

#[test]
fn a_program_that_hangs_or_fails_is_ended_and_filled_in() {
    let machine = Machine::raspberry_pi_5();
    let mut sampler = Sampler::start(machine.root(), &configured(2.4));
    sampler.close(at(0.0), &[]);
    for (step, script) in ["exec sleep 30", "exit 3", "echo nothing", "exit 3"].into_iter().enumerate() {
        machine.pmic(script);
        let start = std::time::Instant::now();
        sampler.look(at(step as f64 * 40.0 + 40.0));
        assert!(start.elapsed().as_secs_f64() < 10.0);
    }
    sampler.close(at(161.0), &[]);
    let report = sampler.report();
    assert_eq!((report.doubt, report.faults.lost), (Some(Doubt::Lost), 4));
    assert_eq!(report.measured_share, 0.0);
    assert!(all(&report) > 0.0);
    adds_up(&report);
}

/// A server's meter that fails for a while: `fail` is asked each second what the counter does.
fn with_faults(fail: impl Fn(&Machine, u32, f64) -> bool) -> (MeterReport, f64) {
    let mut machine = Machine::intel_server();
    machine.write("sys/class/powercap/intel-rapl:0/energy_uj", "1000000000");
    let truth = Truth { idle: 40.0, active: 7.0, table: PStateTable::xeon_silver_4114() };
    let show = |machine: &Machine, second: u32, joules: f64| {
        if !fail(machine, second, joules) {
            machine.use_energy("intel-rapl:0", joules, 262_143_328_850);
        }
    };
    let (report, by_core, idle) = live(&mut machine, [2.2; 4], &truth, 400, 1, &show);
    (report, by_core.iter().sum::<f64>() + idle)
}

#[test]
fn a_meter_that_vanishes_and_comes_back_loses_nothing() {
    let counter = "sys/class/powercap/intel-rapl:0/energy_uj";
    let away = "sys/class/powercap/intel-rapl:0/away";
    let (report, truth) = with_faults(|machine, second, joules| {
        match second {
            100 => std::fs::rename(machine.path(counter), machine.path(away)).unwrap(),
            160 => std::fs::rename(machine.path(away), machine.path(counter)).unwrap(),
            _ => {}
        }
        let gone = (100..160).contains(&second);
        if gone {
            // It counts on while it cannot be seen.
            let now: f64 = machine.read(away).parse().unwrap();
            machine.write(away, &format!("{:.0}", now + joules * 1e6));
        }
        gone
    });
    assert_eq!((report.faults.lost, report.doubt), (60, None));
    within(report.joules.total().0, truth, 0.01);
}

#[test]
fn a_meter_that_freezes_is_filled_in_by_the_fitted_model() {
    let (report, truth) = with_faults(|_, second, _| (200..300).contains(&second));
    // It never shows what it did not count.
    assert_eq!(report.faults.frozen, 100);
    within(report.joules.total().0, truth, 0.02);
    assert!(report.measured_share < 0.8, "{}", report.measured_share);
    // And one that stays frozen says so.
    let (report, truth) = with_faults(|_, second, _| second >= 200);
    assert_eq!(report.doubt, Some(Doubt::Frozen));
    within(report.joules.total().0, truth, 0.02);
}

#[test]
fn a_meter_that_jumps_or_is_set_back_is_filled_in() {
    let counter = "sys/class/powercap/intel-rapl:0/energy_uj";
    let (report, truth) = with_faults(|machine, second, _| {
        match second {
            150 => machine.use_energy("intel-rapl:0", 90_000.0, 262_143_328_850),
            250 => machine.write(counter, "7"),
            _ => return false,
        }
        true
    });
    assert_eq!((report.faults.jumped, report.faults.reset, report.doubt), (1, 1, None));
    within(report.joules.total().0, truth, 0.01);
}

#[test]
fn a_meter_that_says_the_same_at_every_load_is_doubted() {
    let (report, _) = with_faults(|machine, _, _| {
        machine.use_energy("intel-rapl:0", 55.0, 262_143_328_850);
        true
    });
    assert_eq!(report.doubt, Some(Doubt::IgnoresLoad), "{report:?}");
}

#[test]
fn a_machine_with_nothing_has_the_models_figures_and_says_so() {
    let mut machine = Machine::bare(4);
    let truth = Truth { idle: 5.0, active: 10.0, table: PStateTable::xeon_silver_4114() };
    let (report, by_core, idle) = live(&mut machine, [2.2; 4], &truth, 100, 1, &|_, _, _| {});
    assert_eq!((report.source, report.measured_share, report.looks), (EnergySource::Model, 0.0, 0));
    assert_eq!((report.error, report.doubt), (None, None));
    fair(&report, by_core, idle);
}

#[test]
fn processors_that_go_and_come_change_nothing_that_was_counted() {
    let mut machine = Machine::intel_server();
    let mut sampler = Sampler::start(machine.root(), &configured(2.2));
    sampler.close(at(0.0), &[]);
    let mut last = 0.0;
    for second in 1..=30u32 {
        match second {
            10 => machine.offline(3),
            // Its counters begin at zero.
            20 => machine.online(3),
            _ => {}
        }
        machine.run(0, 0.5, 1.0);
        machine.run(3, 0.5, 1.0);
        machine.write_stat();
        machine.use_energy("intel-rapl:0", 30.0, 262_143_328_850);
        sampler.close(at(f64::from(second)), &[work(Some(Duty::Flush), 0.5, 2.2)]);
        let report = sampler.report();
        adds_up(&report);
        assert!(all(&report) > last);
        last = all(&report);
    }
    within(last, 900.0, 1e-6);
}

#[test]
fn looking_costs_less_than_half_a_percent_of_a_core() {
    // Real files at real speed: what a second of looks at the dearest tree costs.
    let machine = Machine::intel_server();
    let mut sampler = Sampler::start(machine.root(), &configured(2.2));
    sampler.close(at(0.0), &[]);
    let seconds = 200;
    for second in 1..=seconds {
        machine.use_energy("intel-rapl:0", 30.0, 262_143_328_850);
        sampler.close(at(f64::from(second)), &[work(Some(Duty::Flush), 0.5, 2.2)]);
    }
    let rapl = sampler.report().cost.0 / f64::from(seconds);

    let machine = Machine::jetson();
    let mut sampler = Sampler::start(machine.root(), &configured(1.5));
    sampler.close(at(0.0), &[]);
    for tenth in 1..=seconds * 10 {
        sampler.look(at(f64::from(tenth) / 10.0));
        if tenth % 10 == 0 {
            sampler.close(at(f64::from(tenth) / 10.0), &[work(Some(Duty::Flush), 0.5, 1.5)]);
        }
    }
    let hwmon = sampler.report().cost.0 / f64::from(seconds);
    println!("share of a core: rapl {rapl:.5}, hwmon {hwmon:.5}");
    assert!(rapl < 0.005 && hwmon < 0.005, "{rapl} {hwmon}");
}

#[test]
fn the_first_minute_is_given_out_when_loads_have_differed_or_it_is_over() {
    let machine = &mut Machine::intel_server();
    let mut sampler = Sampler::start(machine.root(), &configured(2.2));
    sampler.close(at(0.0), &[]);
    for second in 1..=70u32 {
        // A load that never changes.
        machine.run(0, 0.5, 1.0);
        machine.write_stat();
        machine.use_energy("intel-rapl:0", 30.0, 262_143_328_850);
        sampler.close(at(f64::from(second)), &[work(Some(Duty::Flush), 0.5, 2.2)]);
        let report = sampler.report();
        let given = if second <= 60 { 0.0 } else { f64::from(second) * 30.0 };
        assert!((report.joules.total().0 - given).abs() < 1e-6, "{report:?}");
        within(all(&report), f64::from(second) * 30.0, 1e-9);
    }
}
