//! Folders with the files of machines, in the layouts that the kernel documents, and a processor
//! behind them whose true joules the test knows.

#![allow(dead_code)] // each test uses some of it

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A folder that plays `/`.
pub struct Machine {
    folder: tempfile::TempDir,
    /// Ticks by processor, user and idle, with what is left of a tick.
    ticks: BTreeMap<u32, (f64, f64)>,
}

impl Machine {
    /// A machine with nothing but processors.
    pub fn bare(processors: u32) -> Self {
        let machine = Self {
            folder: tempfile::tempdir().unwrap(),
            ticks: (0..processors).map(|cpu| (cpu, (0.0, 0.0))).collect(),
        };
        machine.write("proc/sys/kernel/random/boot_id", "2f6f5f0e-5a7e-4d3c-9d2b-0d9a1b2c3d4e");
        machine.write_stat();
        machine
    }

    /// Two sockets with uncore, dram, psys as a zone of its own, and the memory-mapped second view;
    /// a frequency domain for each core (intel_pstate).
    pub fn intel_server() -> Self {
        let machine = Self::bare(8);
        let rapl = "sys/class/powercap";
        for (zone, name) in [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl:0:1", "dram"),
            ("intel-rapl:1", "psys"),
            ("intel-rapl:2", "package-1"),
            ("intel-rapl:2:0", "dram"),
            ("intel-rapl-mmio:0", "package-0"),
        ] {
            machine.write(&format!("{rapl}/{zone}/name"), name);
            machine.write(&format!("{rapl}/{zone}/energy_uj"), "1000000");
            machine.write(&format!("{rapl}/{zone}/max_energy_range_uj"), "262143328850");
        }
        // The control type itself is a folder beside its zones, without a name.
        machine.write(&format!("{rapl}/intel-rapl/enabled"), "1");
        for core in 0..8 {
            machine.policy(core, &[core], (800_000, 2_200_000), "");
        }
        machine
    }

    /// One package with its cores, whose range reads 0; a graphics card with a sensor of its own;
    /// steps of acpi-cpufreq, two threads of a core in one domain.
    pub fn amd_desktop() -> Self {
        let machine = Self::bare(8);
        for (zone, name) in [("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core")] {
            machine.write(&format!("sys/class/powercap/{zone}/name"), name);
            machine.write(&format!("sys/class/powercap/{zone}/energy_uj"), "5000000");
            machine.write(&format!("sys/class/powercap/{zone}/max_energy_range_uj"), "0");
        }
        machine.write("sys/class/hwmon/hwmon0/name", "amdgpu");
        machine.write("sys/class/hwmon/hwmon0/power1_average", "35000000");
        machine.write("sys/class/hwmon/hwmon1/name", "k10temp");
        machine.write("sys/class/hwmon/hwmon1/temp1_input", "45000");
        for domain in 0..4 {
            machine.policy(
                domain * 2,
                &[domain * 2, domain * 2 + 1],
                (1_400_000, 3_600_000),
                "3600000 2800000 1400000 ",
            );
        }
        machine
    }

    /// An Orin module: the input of the module and two of its rails, and the sum of shunts, on one
    /// INA3221; two clusters of three cores.
    pub fn jetson() -> Self {
        let machine = Self::bare(6);
        let chip = "sys/class/hwmon/hwmon3";
        machine.write("sys/class/hwmon/hwmon0/name", "tj-thermal");
        machine.write(&format!("{chip}/name"), "ina3221");
        for (channel, label, mv, ma) in
            [(1, "VDD_IN", 5_000, 1_000), (2, "VDD_CPU_GPU_CV", 5_000, 300), (3, "VDD_SOC", 5_000, 200)]
        {
            machine.write(&format!("{chip}/in{channel}_label"), label);
            machine.write(&format!("{chip}/in{channel}_enable"), "1");
            machine.write(&format!("{chip}/in{channel}_input"), &format!("{mv}"));
            machine.write(&format!("{chip}/curr{channel}_input"), &format!("{ma}"));
        }
        machine.write(&format!("{chip}/in7_label"), "sum of shunt voltages");
        machine.write(&format!("{chip}/in7_input"), "12");
        machine.policy(0, &[0, 1, 2], (115_200, 1_510_400), "115200 729600 1510400 ");
        machine.policy(3, &[3, 4, 5], (115_200, 1_510_400), "115200 729600 1510400 ");
        machine
    }

    /// One domain for all cores, the firmware's program, and a hwmon that knows of undervoltage
    /// only.
    pub fn raspberry_pi_5() -> Self {
        let machine = Self::bare(4);
        machine.write("proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0");
        machine.write("sys/class/hwmon/hwmon0/name", "rpi_volt");
        machine.write("sys/class/hwmon/hwmon0/in0_lcrit_alarm", "0");
        machine.policy(0, &[0, 1, 2, 3], (1_500_000, 2_400_000), "1500000 1600000 2400000 ");
        // Builtins of the shell alone, so that it is quick on a busy machine.
        machine.pmic(
            "echo '   3V3_SYS_A current(1)=0.50000000A'; read -r core < \"${0%/*}/core\"; echo \"  $core\"; \
             echo '  3V3_SYS_V volt(9)=3.30000000V'; echo '  VDD_CORE_V volt(15)=0.80000000V'; \
             echo '  EXT5V_V volt(24)=5.13000000V'; echo '  BATT_V volt(25)=0.00000000V'",
        );
        machine.pmic_core_amperes(1.0);
        machine
    }

    /// The event source of energy: packages with processors 0 and 4, and their memory.
    pub fn perf_events(&self) {
        let source = "sys/bus/event_source/devices/power";
        for (file, text) in [
            ("type", "25"),
            ("cpumask", "0,4"),
            ("format/event", "config:0-7"),
            ("events/energy-pkg", "event=0x02"),
            ("events/energy-pkg.unit", "Joules"),
            ("events/energy-pkg.scale", "2.3283064365386962890625e-10"),
            ("events/energy-ram", "event=0x03"),
            ("events/energy-ram.unit", "Joules"),
            ("events/energy-ram.scale", "2.3283064365386962890625e-10"),
            ("events/energy-psys", "event=0x05"),
            ("events/energy-psys.unit", "Joules"),
            ("events/energy-psys.scale", "2.3283064365386962890625e-10"),
        ] {
            self.write(&format!("{source}/{file}"), text);
        }
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.root().join(file)
    }

    pub fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap().trim().to_owned()
    }

    pub fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).unwrap();
    }

    /// Puts a folder where a file was: reading and writing it fails for root too, whom permissions
    /// do not stop.
    pub fn break_file(&self, file: &str) {
        self.remove(file);
        fs::create_dir(self.path(file)).unwrap();
    }

    pub fn pmic(&self, script: &str) {
        let path = "usr/bin/vcgencmd";
        self.write(path, &format!("#!/bin/sh\n[ \"$1\" = pmic_read_adc ] || exit 1\n{script}"));
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn pmic_core_amperes(&self, amperes: f64) {
        self.write("usr/bin/core", &format!("  VDD_CORE_A current(7)={amperes:.8}A"));
    }

    fn policy(&self, number: u32, cores: &[u32], (min, max): (u64, u64), steps: &str) {
        let cores = cores.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let file = |name: &str, text: &str| self.write(&format!("{CPUFREQ}/policy{number}/{name}"), text);
        for name in ["affected_cpus", "related_cpus"] {
            file(name, &cores);
        }
        for (name, khz) in [
            ("cpuinfo_min_freq", min),
            ("cpuinfo_max_freq", max),
            ("scaling_min_freq", min),
            ("scaling_max_freq", max),
            ("scaling_cur_freq", max),
        ] {
            file(name, &khz.to_string());
        }
        if !steps.is_empty() {
            file("scaling_available_frequencies", steps);
        }
    }

    pub fn limit(&self, policy: u32) -> u64 {
        let name = format!("{CPUFREQ}/policy{policy}/scaling_max_freq");
        // Who writes to a file, unlike to the kernel, empties it first.
        let written = std::iter::repeat_with(|| self.read(&name)).take(1_000_000).find(|text| !text.is_empty());
        written.unwrap().parse().unwrap()
    }

    pub fn set_frequency(&self, policy: u32, khz: u64) {
        self.write(&format!("{CPUFREQ}/policy{policy}/scaling_cur_freq"), &khz.to_string());
    }

    /// Cores run at their limits.
    pub fn follow_limits(&self, policies: &[u32]) {
        policies.iter().for_each(|policy| self.set_frequency(*policy, self.limit(*policy)));
    }

    /// Lets a processor be busy for some of a time; [`Machine::write_stat`] shows it.
    pub fn run(&mut self, cpu: u32, busy_s: f64, elapsed_s: f64) {
        if let Some((busy, idle)) = self.ticks.get_mut(&cpu) {
            *busy += busy_s * 100.0;
            *idle += (elapsed_s - busy_s) * 100.0;
        }
    }

    /// Takes a processor offline: it has no line any more.
    pub fn offline(&mut self, cpu: u32) {
        self.ticks.remove(&cpu);
        self.write_stat();
    }

    pub fn online(&mut self, cpu: u32) {
        self.ticks.insert(cpu, (0.0, 0.0));
        self.write_stat();
    }

    pub fn write_stat(&self) {
        let line = |(cpu, (busy, idle)): (&u32, &(f64, f64))| {
            format!("cpu{cpu} {} 0 0 {} 0 0 0 0 0 0\n", *busy as u64, *idle as u64)
        };
        let lines: String = self.ticks.iter().map(line).collect();
        self.write("proc/stat", &format!("cpu  0 0 0 0 0 0 0 0 0 0\n{lines}intr 1\nctxt 1"));
    }

    /// Adds to the counter of a powercap zone, around the end of its range.
    pub fn use_energy(&self, zone: &str, joules: f64, range: u64) {
        let file = format!("sys/class/powercap/{zone}/energy_uj");
        let now: u64 = self.read(&file).parse().unwrap();
        self.write(&file, &((now + (joules * 1e6) as u64) % range).to_string());
    }
}

pub const CPUFREQ: &str = "sys/devices/system/cpu/cpufreq";
