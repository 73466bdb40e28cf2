//! RAPL through the kernel's powercap files: `/sys/class/powercap/intel-rapl:0/energy_uj`, for
//! processors of AMD as well (kernel: Documentation/power/powercap).
//!
//! Zones are known by the text in their `name`, never by number: `intel-rapl:1` is the second
//! package on one machine and `psys` on another. Counted are packages. Their children are never added:
//! `core` and `uncore` are parts of them, and `dram`, which is not, is counted apart. `psys` holds the
//! packages and is not added either; `intel-rapl-mmio` shows a package a second time.
//!
//! Failure: since Linux 5.10 the counters are for root; the error says so.

use std::path::{Path, PathBuf};

use ecotone_types::units::{Joules, Seconds, Time, Watts};

use super::counter::{Counter, Growth};
use super::{Look, MeterLabel, PowerMeter};
use crate::reading::EnergySource;
use crate::{EnergyError, sysfs};

/// The most watts of one package that are believed: twice what the largest servers' draw.
pub(super) const MAX_PACKAGE_WATTS: f64 = 1_000.0;

/// What belongs to the machine and is in no package.
pub(super) const LEAVES_OUT: &str = "memory, disks, network cards, fans, losses of the power supply";

/// How often the counters are looked at. They wrap after minutes at the earliest.
const INTERVAL: Seconds = Seconds(1.0);

/// The packages of a machine.
pub struct Powercap {
    label: MeterLabel,
    zones: Vec<Zone>,
    memory: Vec<Zone>,
    memory_uj: u64,
    last: Option<Time>,
}

struct Zone {
    energy: PathBuf,
    counter: Counter,
}

impl Powercap {
    /// Opens the packages below `root`; `None` if there are none.
    ///
    /// # Errors
    /// [`EnergyError::System`] if there are some and their counters cannot be read.
    pub fn open(root: &Path) -> Result<Option<Self>, EnergyError> {
        let mut folders = sysfs::entries(&root.join("sys/class/powercap"))?;
        // The registers' own interface before the memory-mapped one, which shows the same counter.
        folders.sort_by_key(|folder| sysfs::file_name(folder).contains("-mmio"));
        let zone = |folder: &Path| {
            let range = sysfs::number(&folder.join("max_energy_range_uj")).unwrap_or(0);
            Zone { energy: folder.join("energy_uj"), counter: Counter::new(range) }
        };
        let mut names: Vec<String> = Vec::new();
        let mut zones = Vec::new();
        let mut packages: Vec<String> = Vec::new();
        for folder in &folders {
            let Ok(name) = sysfs::text(&folder.join("name")) else { continue };
            if !name.starts_with("package-") || names.contains(&name) {
                continue;
            }
            let zone = zone(folder);
            sysfs::number::<u64>(&zone.energy)?;
            zones.push(zone);
            names.push(name);
            packages.push(format!("{}:", sysfs::file_name(folder)));
        }
        if zones.is_empty() {
            return Ok(None);
        }
        // `intel-rapl:0:1` is a child of `intel-rapl:0`.
        let is_memory = |folder: &&PathBuf| {
            let of_counted = packages.iter().any(|package| sysfs::file_name(folder).starts_with(package));
            of_counted && sysfs::text(&folder.join("name")).is_ok_and(|name| name == "dram")
        };
        let memory = folders.iter().filter(is_memory).map(|folder| zone(folder)).collect();
        let label = MeterLabel {
            source: EnergySource::Rapl,
            covers: names.join(", "),
            leaves_out: LEAVES_OUT,
            interval: INTERVAL,
            max_watts: Watts(MAX_PACKAGE_WATTS * zones.len() as f64),
            counts: true,
            runs_program: false,
        };
        Ok(Some(Self { label, zones, memory, memory_uj: 0, last: None }))
    }
}

impl PowerMeter for Powercap {
    fn label(&self) -> &MeterLabel {
        &self.label
    }

    fn look(&mut self, now: Time) -> Result<Look, EnergyError> {
        // All are read before any is taken in: a package that cannot be read leaves the books of
        // the others as they were.
        let values = self.zones.iter().map(|zone| sysfs::number::<u64>(&zone.energy)).collect::<Result<Vec<_>, _>>()?;
        let elapsed = self.last.map_or(Seconds::ZERO, |last| now.since(last));
        self.last = Some(now);
        let max_growth = (elapsed.0 * MAX_PACKAGE_WATTS * 1e6) as u64;
        for zone in &mut self.memory {
            // One that cannot be read now gives its joules later.
            let Ok(value) = sysfs::number::<u64>(&zone.energy) else { continue };
            if let Growth::Grew(uj) = zone.counter.advance(value, max_growth) {
                self.memory_uj = self.memory_uj.saturating_add(uj);
            }
        }
        let (mut sum_uj, mut look) = (0u64, None);
        for (zone, value) in self.zones.iter_mut().zip(values) {
            match zone.counter.advance(value, max_growth) {
                Growth::First => look = look.or(Some(Look::First)),
                Growth::Reset => look = Some(Look::Reset),
                Growth::Grew(uj) => sum_uj = sum_uj.saturating_add(uj),
            }
        }
        Ok(look.unwrap_or(Look::Grew { joules: Joules(sum_uj as f64 / 1e6), unchanged: sum_uj == 0 }))
    }

    fn memory(&self) -> Option<Joules> {
        (!self.memory.is_empty()).then_some(Joules(self.memory_uj as f64 / 1e6))
    }
}
