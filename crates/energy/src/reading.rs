//! What a meter says: seconds and joules by duty, with their source.

use std::collections::BTreeMap;

use ecotone_types::Duty;
use ecotone_types::units::{Joules, Seconds};
use serde::{Deserialize, Serialize};

/// The key of idle power in [`Reading::energy_joules_by_duty`].
pub const IDLE: &str = "idle";
/// The key of CPU time outside every duty in [`Reading::energy_joules_by_duty`].
pub const UNATTRIBUTED: &str = "unattributed";

/// Where an energy figure comes from. A figure without a source is never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EnergySource {
    /// Computed from CPU time and a [`crate::PowerModel`]; nothing was measured in watts.
    Model,
    /// The processor's own counters (RAPL), through perf events.
    Perf,
    /// The same through the kernel's powercap files.
    Rapl,
    /// A power sensor that the kernel shows under hwmon.
    Hwmon,
    /// The power management chip of a Raspberry Pi 5.
    Pmic,
}

impl EnergySource {
    /// The name used in reports, such as `model`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Perf => "perf",
            Self::Rapl => "rapl",
            Self::Hwmon => "hwmon",
            Self::Pmic => "pmic",
        }
    }
}

/// CPU time and energy of one server since its meter started (or between two readings, see
/// [`Reading::since`]).
///
/// All CPU times are seconds of host CPU; sums of duties and `unattributed_cpu_seconds` give
/// `process_cpu_seconds`. Sums of `energy_joules_by_duty`, its `idle` and `unattributed` included,
/// give `total_joules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Wall-clock seconds.
    pub seconds: f64,
    /// CPU seconds of the whole process.
    pub process_cpu_seconds: f64,
    /// CPU seconds by the name of the duty; every duty is present.
    pub cpu_seconds_by_duty: BTreeMap<String, f64>,
    /// CPU seconds of the process that belong to no duty; never below 0.
    pub unattributed_cpu_seconds: f64,
    /// Seconds that cores were busy, unattributed work included: CPU seconds / the speed of a core
    /// at the time.
    pub busy_core_seconds: f64,
    /// Joules by the name of the duty, and of `idle` and `unattributed`.
    pub energy_joules_by_duty: BTreeMap<String, f64>,
    /// Joules of the server: everything in `energy_joules_by_duty`.
    pub total_joules: f64,
    /// Where the joules come from.
    pub source: EnergySource,
    /// The clock frequency at the time of the reading.
    pub frequency_hz: f64,
    /// Ends of duties that had no begin, and threads that ended inside a duty: mistakes of callers,
    /// shown not hidden.
    pub unbalanced_switches: u64,
}

impl Reading {
    /// CPU seconds of one duty.
    pub fn cpu(&self, duty: Duty) -> Seconds {
        Seconds(self.cpu_seconds_by_duty.get(duty.name()).copied().unwrap_or(0.0))
    }

    /// Joules of one duty, without its share of idle power.
    pub fn energy(&self, duty: Duty) -> Joules {
        Joules(self.energy_joules_by_duty.get(duty.name()).copied().unwrap_or(0.0))
    }

    /// Joules of idle power.
    pub fn idle(&self) -> Joules {
        Joules(self.energy_joules_by_duty.get(IDLE).copied().unwrap_or(0.0))
    }

    /// Joules of CPU time that belongs to no duty.
    pub fn unattributed(&self) -> Joules {
        Joules(self.energy_joules_by_duty.get(UNATTRIBUTED).copied().unwrap_or(0.0))
    }

    /// Joules of the whole server.
    pub fn total(&self) -> Joules {
        Joules(self.total_joules)
    }

    /// The share of CPU time that belongs to no duty, 0 to 1.
    pub fn unattributed_share(&self) -> f64 {
        if self.process_cpu_seconds > 0.0 { self.unattributed_cpu_seconds / self.process_cpu_seconds } else { 0.0 }
    }

    /// What passed between an `earlier` reading of the same meter and this one. Frequency and
    /// source are this one's.
    pub fn since(&self, earlier: &Reading) -> Reading {
        let less = |now: f64, then: f64| (now - then).max(0.0);
        let each = |now: &BTreeMap<String, f64>, then: &BTreeMap<String, f64>| {
            now.iter().map(|(k, v)| (k.clone(), less(*v, then.get(k).copied().unwrap_or(0.0)))).collect()
        };
        Reading {
            seconds: less(self.seconds, earlier.seconds),
            process_cpu_seconds: less(self.process_cpu_seconds, earlier.process_cpu_seconds),
            cpu_seconds_by_duty: each(&self.cpu_seconds_by_duty, &earlier.cpu_seconds_by_duty),
            unattributed_cpu_seconds: less(self.unattributed_cpu_seconds, earlier.unattributed_cpu_seconds),
            busy_core_seconds: less(self.busy_core_seconds, earlier.busy_core_seconds),
            energy_joules_by_duty: each(&self.energy_joules_by_duty, &earlier.energy_joules_by_duty),
            total_joules: less(self.total_joules, earlier.total_joules),
            source: self.source,
            frequency_hz: self.frequency_hz,
            unbalanced_switches: self.unbalanced_switches.saturating_sub(earlier.unbalanced_switches),
        }
    }
}
