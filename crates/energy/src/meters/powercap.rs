//! RAPL through the kernel's powercap files: `/sys/class/powercap/intel-rapl:0/energy_uj`, for
//! processors of AMD as well (kernel: Documentation/power/powercap).
//!
//! Zones are known by the text in their `name`, never by number: `intel-rapl:1` is the second
//! package on one machine and `psys` on another. Counted are packages. Their children (core, uncore,
//! dram) are parts of them in this tree and are never added; `psys` holds the packages and is not
//! added either; `intel-rapl-mmio` shows a package a second time.
//!
//! Failure: since Linux 5.10 the counters are for root; the error says so.

use std::path::{Path, PathBuf};

use ecotone_types::units::{Joules, Seconds, Time, Watts};

use super::counter::{Counter, Growth};
use super::{Look, MeterLabel, PowerMeter};
use crate::reading::EnergySource;
use crate::{EnergyError, sysfs};

/// The most watts of one package that are believed: twice what the largest servers' draw.
const MAX_PACKAGE_WATTS: f64 = 1_000.0;

/// How often the counters are looked at. They wrap after minutes at the earliest.
const INTERVAL: Seconds = Seconds(1.0);

/// The packages of a machine.
pub struct Powercap {
    label: MeterLabel,
    zones: Vec<Zone>,
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
        let mut names: Vec<String> = Vec::new();
        let mut zones = Vec::new();
        for folder in folders {
            let Ok(name) = sysfs::text(&folder.join("name")) else { continue };
            if !name.starts_with("package-") || names.contains(&name) {
                continue;
            }
            let energy = folder.join("energy_uj");
            sysfs::number::<u64>(&energy)?;
            let range = sysfs::number(&folder.join("max_energy_range_uj")).unwrap_or(0);
            zones.push(Zone { energy, counter: Counter::new(range) });
            names.push(name);
        }
        if zones.is_empty() {
            return Ok(None);
        }
        let label = MeterLabel {
            source: EnergySource::Rapl,
            covers: names.join(", "),
            leaves_out: "memory, disks, network cards, fans, losses of the power supply",
            interval: INTERVAL,
            max_watts: Watts(MAX_PACKAGE_WATTS * zones.len() as f64),
            counts: true,
            runs_program: false,
        };
        Ok(Some(Self { label, zones, last: None }))
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
}
