//! RAPL through perf events: the event source `power` below `/sys/bus/event_source/devices`, for
//! processors of AMD as well (kernel: Documentation/ABI/testing/sysfs-bus-event_source-devices-events).
//!
//! The same counters as [`Powercap`](super::Powercap)'s, but cheaper to read, and counted on by the
//! kernel, so that they never wrap. `energy-pkg` is the processor's packages, one event on one
//! processor of each (`cpumask`); `energy-ram` is memory, which is in no package and is counted
//! apart. Cores, graphics and `energy-psys` are parts of a package, or hold it, and are left out.
//!
//! Failure: opening one takes the capability PERFMON, or `perf_event_paranoid` at 0 or below; the
//! error names the event.

use std::io;
use std::path::{Path, PathBuf};

use ecotone_types::units::{Joules, Seconds, Time, Watts};

use super::powercap::{LEAVES_OUT, MAX_PACKAGE_WATTS};
use super::{Look, MeterLabel, PowerMeter};
use crate::reading::EnergySource;
use crate::{EnergyError, sysfs};

/// How often the events are read.
const INTERVAL: Seconds = Seconds(1.0);
/// The most packages that are looked at.
const MAX_PACKAGES: usize = 64;

/// An event of energy on one processor, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PowerEvent {
    /// The number of its source.
    pub source: u32,
    /// Its number within the source.
    pub config: u64,
    /// The processor.
    pub cpu: u32,
}

/// A counter that was opened; it begins at 0.
pub trait EventCounter: Send {
    /// What it has counted, in the units of its event.
    ///
    /// # Errors
    /// It cannot be read now.
    fn count(&mut self) -> io::Result<u64>;
}

/// What opens events: the kernel, or a test.
pub trait EventSource {
    /// Begins to count an event of the whole machine.
    ///
    /// # Errors
    /// A missing right, or an event that is none.
    fn open(&self, event: PowerEvent) -> io::Result<Box<dyn EventCounter>>;
}

/// The events of a machine.
pub struct PerfEvents {
    label: MeterLabel,
    packages: Vec<Event>,
    memory: Vec<Event>,
    memory_joules: f64,
}

struct Event {
    path: PathBuf,
    counter: Box<dyn EventCounter>,
    joules_per_unit: f64,
    last: Option<u64>,
}

impl Event {
    fn count(&mut self) -> Result<u64, EnergyError> {
        self.counter.count().map_err(|error| EnergyError::system("read", &self.path, error))
    }

    /// Joules since the last count that was taken in; `None` of a counter that fell.
    fn grown(&mut self, now: u64) -> Option<f64> {
        let last = self.last.replace(now).unwrap_or(now);
        Some(now.checked_sub(last)? as f64 * self.joules_per_unit)
    }
}

/// What the files of an event say: its number, and joules by unit.
fn event(folder: &Path, name: &str) -> Result<(u64, f64), EnergyError> {
    let file = |name: String| folder.join("events").join(name);
    let path = file(name.to_owned());
    let form = |path: &Path, what: String| EnergyError::Form { path: path.to_path_buf(), what };
    let said = sysfs::text(&path)?;
    let number = said.strip_prefix("event=").and_then(|number| match number.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => number.parse().ok(),
    });
    let number = number.ok_or_else(|| form(&path, format!("{said:?} is not the number of an event")))?;
    let path = file(format!("{name}.unit"));
    let unit = sysfs::text(&path)?;
    if unit != "Joules" {
        return Err(form(&path, format!("the unit {unit:?} is not Joules")));
    }
    let path = file(format!("{name}.scale"));
    let scale: f64 = sysfs::number(&path)?;
    if !(scale.is_finite() && scale > 0.0) {
        return Err(form(&path, format!("{scale} is no scale")));
    }
    Ok((number, scale))
}

impl PerfEvents {
    /// Opens the events of the machine whose file system begins at `root`, by `source`; `None` if it
    /// has none of energy.
    ///
    /// # Errors
    /// [`EnergyError::System`] if they are there and may not be opened, [`EnergyError::Form`] if
    /// their files say what this crate does not know.
    pub fn open(root: &Path, source: &dyn EventSource) -> Result<Option<Self>, EnergyError> {
        let folder = root.join("sys/bus/event_source/devices/power");
        // AMD's older source of this name counts other things.
        if !folder.join("events/energy-pkg").exists() {
            return Ok(None);
        }
        let number = sysfs::number(&folder.join("type"))?;
        let mask = folder.join("cpumask");
        let cpus = sysfs::processors(&sysfs::text(&mask)?);
        let cpus = cpus.filter(|cpus| (1..=MAX_PACKAGES).contains(&cpus.len())).ok_or_else(|| EnergyError::Form {
            path: mask,
            what: "not a list with a processor of each package".to_owned(),
        })?;
        let of = |name: &str| -> Result<Vec<Event>, EnergyError> {
            let (config, joules_per_unit) = event(&folder, name)?;
            let path = folder.join("events").join(name);
            let open = |cpu: &u32| {
                let counter = source.open(PowerEvent { source: number, config, cpu: *cpu });
                let counter = counter.map_err(|error| EnergyError::system("open the event", &path, error))?;
                Ok(Event { path: path.clone(), counter, joules_per_unit, last: None })
            };
            cpus.iter().map(open).collect()
        };
        let packages = of("energy-pkg")?;
        // Without memory it is a meter all the same.
        let memory = of("energy-ram").unwrap_or_default();
        let on: Vec<String> = cpus.iter().map(u32::to_string).collect();
        let label = MeterLabel {
            source: EnergySource::Perf,
            covers: format!("energy-pkg on processor {}", on.join(", ")),
            leaves_out: LEAVES_OUT,
            interval: INTERVAL,
            max_watts: Watts(MAX_PACKAGE_WATTS * cpus.len() as f64),
            counts: true,
            runs_program: false,
        };
        Ok(Some(Self { label, packages, memory, memory_joules: 0.0 }))
    }
}

impl PowerMeter for PerfEvents {
    fn label(&self) -> &MeterLabel {
        &self.label
    }

    fn look(&mut self, _now: Time) -> Result<Look, EnergyError> {
        // All are read before any is taken in, as of powercap.
        let counts = self.packages.iter_mut().map(Event::count).collect::<Result<Vec<_>, _>>()?;
        for event in &mut self.memory {
            // One that cannot be read now gives its joules later.
            if let Some(joules) = event.count().ok().and_then(|now| event.grown(now)) {
                self.memory_joules += joules;
            }
        }
        let is_first = self.packages.iter().any(|event| event.last.is_none());
        let unchanged = self.packages.iter().zip(&counts).all(|(event, now)| event.last == Some(*now));
        let grown: Vec<Option<f64>> =
            self.packages.iter_mut().zip(counts).map(|(event, now)| event.grown(now)).collect();
        if is_first {
            return Ok(Look::First);
        }
        let joules: Option<f64> = grown.into_iter().sum();
        Ok(joules.map_or(Look::Reset, |joules| Look::Grew { joules: Joules(joules), unchanged }))
    }

    fn memory(&self) -> Option<Joules> {
        (!self.memory.is_empty()).then_some(Joules(self.memory_joules))
    }
}
