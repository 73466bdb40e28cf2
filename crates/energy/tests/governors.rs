//! Caps on frequencies of fake machines, and what is left of them when their process is killed.

#![allow(clippy::unwrap_used)] // a helper that panics is a failed test

mod machines;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ecotone_energy::EnergyError;
use ecotone_energy::governors::{Capped, Cpufreq, FrequencyGovernor, choose, cpufreq};
use ecotone_types::units::Hertz;
use machines::{CPUFREQ, Machine};

fn ghz(ghz: f64) -> Hertz {
    Hertz(ghz * 1e9)
}

#[test]
fn domains_are_as_the_kernel_says() {
    let of = |machine: &Machine| {
        let governor = Cpufreq::open(machine.root(), &machine.path("limits")).unwrap();
        let domains = governor.as_ref().map(|governor| governor.domains().to_vec()).unwrap_or_default();
        domains.iter().map(|domain| (domain.cores.clone(), domain.steps.len())).collect::<Vec<_>>()
    };
    assert_eq!(of(&Machine::intel_server()).len(), 8);
    assert_eq!(of(&Machine::amd_desktop())[1], (vec![2, 3], 3));
    assert_eq!(of(&Machine::jetson()), [(vec![0, 1, 2], 3), (vec![3, 4, 5], 3)]);
    assert_eq!(of(&Machine::raspberry_pi_5()), [(vec![0, 1, 2, 3], 3)]);
    assert!(of(&Machine::bare(4)).is_empty());
}

#[test]
fn a_cap_is_read_back_and_never_above_what_the_operator_allowed() {
    let machine = Machine::intel_server();
    // The operator keeps core 1 at 1.8 GHz and above 1.0.
    machine.write(&format!("{CPUFREQ}/policy1/scaling_max_freq"), "1800000");
    machine.write(&format!("{CPUFREQ}/policy1/scaling_min_freq"), "1000000");
    let governor = Cpufreq::open(machine.root(), &machine.path("limits")).unwrap().unwrap();
    assert_eq!(governor.cap(1, ghz(9.0)).unwrap(), Capped::At(ghz(1.8)));
    assert_eq!(governor.cap(1, ghz(0.1)).unwrap(), Capped::At(ghz(1.0)));
    assert_eq!(governor.cap(1, Hertz(f64::NAN)).unwrap(), Capped::At(ghz(1.8)));
    assert_eq!(governor.cap(0, ghz(1.2)).unwrap(), Capped::At(ghz(1.2)));
    assert_eq!(governor.cap(99, ghz(1.2)).unwrap(), Capped::Offline);
    assert_eq!((machine.limit(0), machine.limit(1)), (1_200_000, 1_800_000));
    // What is reached is the kernel's to say: it follows another core's wish.
    machine.set_frequency(0, 2_000_000);
    assert_eq!(governor.reached(0), Some(ghz(2.0)));
    drop(governor);
    assert_eq!((machine.limit(0), machine.limit(1)), (2_200_000, 1_800_000));
    assert!(!machine.path("limits").exists());
}

#[test]
fn cores_that_go_offline_keep_their_limit_in_the_record() {
    let machine = Machine::intel_server();
    let record = machine.path("limits");
    let (there, away) = (machine.path(&format!("{CPUFREQ}/policy3")), machine.path("away"));
    let governor = Cpufreq::open(machine.root(), &record).unwrap().unwrap();
    governor.cap(3, ghz(1.0)).unwrap();
    governor.cap(4, ghz(1.0)).unwrap();
    std::fs::rename(&there, &away).unwrap();
    assert_eq!(governor.cap(3, ghz(1.4)).unwrap(), Capped::Offline);
    assert_eq!(governor.reached(3), None);
    governor.restore().unwrap();
    assert_eq!(machine.limit(4), 2_200_000);
    drop(governor);
    // They come back as the kernel left them: capped. The next start mends it.
    assert!(record.exists());
    std::fs::rename(&away, &there).unwrap();
    assert_eq!(machine.limit(3), 1_000_000);
    let governor = Cpufreq::open(machine.root(), &record).unwrap().unwrap();
    assert_eq!((machine.limit(3), governor.domains()[3].highest), (2_200_000, ghz(2.2)));
    assert!(!record.exists());
}

#[test]
fn without_the_right_to_write_the_machine_is_left_alone() {
    let machine = Machine::raspberry_pi_5();
    machine.break_file(&format!("{CPUFREQ}/policy0/scaling_max_freq"));
    let error = Cpufreq::open(machine.root(), &machine.path("limits")).err().unwrap();
    assert!(error.to_string().contains("scaling_max_freq"), "{error}");
    let governor = choose(machine.root(), &machine.path("limits"));
    assert_eq!((governor.name(), governor.domains().len()), ("none", 0));
    assert_eq!(governor.cap(0, ghz(1.0)).unwrap(), Capped::Offline);
    governor.restore().unwrap();
    // A place for the record that cannot be written means no caps, either.
    let machine = Machine::raspberry_pi_5();
    assert_eq!(choose(machine.root(), Path::new("/proc/nowhere/limits")).name(), "none");
    assert_eq!(choose(machine.root(), &machine.path("limits")).name(), "cpufreq");
}

#[test]
fn one_process_governs() {
    let machine = Machine::jetson();
    let record = machine.path("limits");
    let first = Cpufreq::open(machine.root(), &record).unwrap().unwrap();
    let before = machine.limit(0);
    first.cap(0, ghz(0.7)).unwrap();
    assert!(matches!(Cpufreq::open(machine.root(), &record), Err(EnergyError::Governed { .. })));
    assert!(matches!(cpufreq::restore(machine.root(), &record), Err(EnergyError::Governed { .. })));
    assert_eq!(machine.limit(0), 700_000, "a refused one undoes nothing");
    // Of a server with another folder: it would take the cap for what was there before.
    let other = machine.path("other/limits");
    std::fs::create_dir(machine.path("other")).unwrap();
    assert!(matches!(Cpufreq::open(machine.root(), &other), Err(EnergyError::Governed { .. })));
    first.restore().unwrap();
    drop(first);
    // A child that another test is starting has all descriptors, and so the lock, until it begins its
    // own program.
    let second = std::iter::repeat_with(|| Cpufreq::open(machine.root(), &other))
        .take(1_000_000)
        .find(|opened| !matches!(opened, Err(EnergyError::Governed { .. })));
    let second = second.unwrap().unwrap().unwrap();
    second.cap(0, ghz(0.7)).unwrap();
    second.restore().unwrap();
    assert_eq!(machine.limit(0), before);
}

#[test]
fn caps_on_every_domain_each_second_cost_less_than_half_a_percent_of_a_core() {
    let machine = Machine::intel_server();
    let governor = Cpufreq::open(machine.root(), &machine.path("limits")).unwrap().unwrap();
    governor.cap(0, ghz(1.0)).unwrap();
    // Processor time of this thread, from the scheduler's own file.
    let cpu_ns = || -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    let (before, seconds) = (cpu_ns(), 100u32);
    for second in 0..seconds {
        for domain in 0..8 {
            governor.cap(domain, ghz(1.0 + f64::from(second % 10) * 0.1)).unwrap();
            governor.reached(domain).unwrap();
        }
    }
    let share = (cpu_ns() - before) as f64 / 1e9 / f64::from(seconds);
    println!("share of a core: {share:.6}");
    assert!(share < 0.005, "{share}");
}

const TREE: &str = "ECOTONE_TEST_TREE";

/// The process that the next test kills; nothing when it is not started by it.
#[test]
fn caps_without_end() {
    let Some(tree) = std::env::var_os(TREE) else { return };
    let tree = Path::new(&tree);
    let governor = Cpufreq::open(tree, &tree.join("limits")).unwrap().unwrap();
    for round in 0u64.. {
        let domain = (round % 8) as usize;
        governor.cap(domain, ghz(0.8 + (round % 13) as f64 * 0.1)).unwrap();
        if round % 40 == 39 {
            governor.restore().unwrap();
        }
    }
}

#[test]
fn limits_come_back_after_sigkill() {
    let machine = Machine::intel_server();
    let record = machine.path("limits");
    for round in 0..8u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "caps_without_end"])
            .env(TREE, machine.root())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !record.exists() {
            assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "the child has not begun");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(u64::from(round * 3)));
        child.kill().unwrap();
        child.wait().unwrap();
        if round % 2 == 0 {
            cpufreq::restore(machine.root(), &record).unwrap();
        } else {
            drop(Cpufreq::open(machine.root(), &record).unwrap());
        }
        let limits: Vec<u64> = (0..8).map(|policy| machine.limit(policy)).collect();
        assert_eq!(limits, [2_200_000; 8], "round {round}");
        assert!(!record.exists());
    }
}
