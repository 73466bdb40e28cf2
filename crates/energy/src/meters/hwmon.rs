//! Sensors of power that the kernel shows under `/sys/class/hwmon` (kernel:
//! Documentation/hwmon/ina3221, sysfs-interface).
//!
//! - `ina3221`, of Jetson boards: three channels, `in1_input` in mV times `curr1_input` in mA. Where
//!   a channel is the input of the whole module it is taken alone, since the others are parts of it.
//! - `ina219` and its kin: `power1_input` in uW, each a rail of its own.
//! - `power_meter`, ACPI's: `power1_average` or `power1_input` in uW, of the whole machine.
//!
//! Sensors of graphics cards and power stages are none of these and are not counted. All readings
//! of a look are taken in a row and integrated between looks.

use std::path::{Path, PathBuf};

use ecotone_types::units::{Seconds, Time, Watts};

use super::integral::Integral;
use super::{Look, MeterLabel, PowerMeter};
use crate::reading::EnergySource;
use crate::{EnergyError, sysfs};

/// How often a sensor is looked at: at 1 Hz joules were wrong by up to 80 % (arXiv 2206.10377).
const INTERVAL: Seconds = Seconds(0.1);

/// Readings farther apart are not joined.
const MAX_GAP: Seconds = Seconds(3.0);

/// The most watts that are believed of boards with such sensors, and of a server's ACPI meter.
const MAX_BOARD_WATTS: f64 = 300.0;
const MAX_MACHINE_WATTS: f64 = 4_000.0;

/// Channels of an INA3221 that carry everything the other channels do.
const WHOLE_MODULE: [&str; 2] = ["VDD_IN", "POM_5V_IN"];

/// Chips with one rail each and power in microwatts.
const SINGLE_RAIL: [&str; 7] = ["ina219", "ina220", "ina226", "ina230", "ina231", "ina2xx", "ina238"];

/// ACPI's meter of the machine.
const ACPI: &str = "power_meter";

/// The sensors of a machine.
pub struct Hwmon {
    label: MeterLabel,
    sensors: Vec<Sensor>,
    integral: Integral,
    last_uw: Option<Vec<i64>>,
}

struct Sensor {
    name: String,
    files: Files,
}

enum Files {
    MillivoltsAndMilliamps(PathBuf, PathBuf),
    Microwatts(PathBuf),
}

impl Sensor {
    fn microwatts(&self) -> Result<i64, EnergyError> {
        let (path, uw) = match &self.files {
            Files::MillivoltsAndMilliamps(volts, amps) => {
                let (mv, ma): (i64, i64) = (sysfs::number(volts)?, sysfs::number(amps)?);
                (amps, mv.saturating_mul(ma))
            }
            Files::Microwatts(power) => (power, sysfs::number(power)?),
        };
        if uw < 0 {
            return Err(EnergyError::Form { path: path.clone(), what: format!("{} says {uw} uW", self.name) });
        }
        Ok(uw)
    }
}

impl Hwmon {
    /// Opens the sensors below `root`; `None` if there are none that measure this machine.
    ///
    /// # Errors
    /// [`EnergyError`] if there are some and they cannot be read.
    pub fn open(root: &Path) -> Result<Option<Self>, EnergyError> {
        let (mut channels, mut rails, mut acpi) = (Vec::new(), Vec::new(), Vec::new());
        for chip in sysfs::entries(&root.join("sys/class/hwmon"))? {
            match sysfs::text(&chip.join("name")).as_deref() {
                Ok("ina3221") => channels.extend(ina3221(&chip)),
                Ok(ACPI) => acpi.extend(in_microwatts(&chip, ACPI)),
                Ok(name) if SINGLE_RAIL.contains(&name) => rails.extend(in_microwatts(&chip, name)),
                Ok(_) | Err(_) => {}
            }
        }
        if channels.iter().any(|sensor: &Sensor| WHOLE_MODULE.contains(&sensor.name.as_str())) {
            channels.retain(|sensor| WHOLE_MODULE.contains(&sensor.name.as_str()));
        }
        // A board's rails add up; the machine's own meter would count them again.
        channels.extend(rails);
        let (sensors, leaves_out, max_watts) = if channels.is_empty() {
            acpi.truncate(1);
            (acpi, "nothing of the machine; the meter may average over a second", MAX_MACHINE_WATTS)
        } else {
            (channels, "the carrier board and whatever has no sensor", MAX_BOARD_WATTS)
        };
        for sensor in &sensors {
            sensor.microwatts()?;
        }
        if sensors.is_empty() {
            return Ok(None);
        }
        let label = MeterLabel {
            source: EnergySource::Hwmon,
            covers: sensors.iter().map(|sensor| sensor.name.as_str()).collect::<Vec<_>>().join(", "),
            leaves_out,
            interval: INTERVAL,
            max_watts: Watts(max_watts),
            counts: false,
            runs_program: false,
        };
        Ok(Some(Self { label, sensors, integral: Integral::new(MAX_GAP), last_uw: None }))
    }
}

/// The channels of a chip that are switched on and have both readings.
fn ina3221(chip: &Path) -> Vec<Sensor> {
    let channel = |n: u32| {
        let (volts, amps) = (chip.join(format!("in{n}_input")), chip.join(format!("curr{n}_input")));
        let off = sysfs::text(&chip.join(format!("in{n}_enable"))).is_ok_and(|text| text == "0");
        let name = sysfs::text(&chip.join(format!("in{n}_label"))).unwrap_or_else(|_| format!("channel {n}"));
        (!off && volts.exists() && amps.exists())
            .then_some(Sensor { name, files: Files::MillivoltsAndMilliamps(volts, amps) })
    };
    (1..=3).filter_map(channel).collect()
}

fn in_microwatts(chip: &Path, name: &str) -> Option<Sensor> {
    let file = ["power1_input", "power1_average"].map(|file| chip.join(file)).into_iter().find(|path| path.exists())?;
    let label = sysfs::text(&chip.join("power1_label")).unwrap_or_else(|_| name.to_owned());
    Some(Sensor { name: label, files: Files::Microwatts(file) })
}

impl PowerMeter for Hwmon {
    fn label(&self) -> &MeterLabel {
        &self.label
    }

    fn look(&mut self, now: Time) -> Result<Look, EnergyError> {
        let each = self.sensors.iter().map(Sensor::microwatts).collect::<Result<Vec<_>, _>>()?;
        let watts = Watts(each.iter().map(|&uw| uw as f64).sum::<f64>() / 1e6);
        let joules = self.integral.advance(now, watts);
        let unchanged = self.last_uw.replace(each) == self.last_uw;
        Ok(joules.map_or(Look::First, |joules| Look::Grew { joules, unchanged }))
    }
}
