//! The power management chip of a Raspberry Pi 5, which measures volts and amperes of twelve rails.
//!
//! The kernel shows it nowhere; the firmware does, through the program `vcgencmd pmic_read_adc`.
//! Its lines are `VDD_CORE_A current(7)=0.74070000A` and `VDD_CORE_V volt(15)=0.72178200V`: rails
//! that have both are added up. `EXT5V_V` and `BATT_V` are voltages without a current and add
//! nothing. What is fed from 5 V directly is thus not in it.
//!
//! A program is started for each look, so that looks are a second apart at least. One that hangs is
//! ended. Failure: no right to `/dev/vcio` (the group `video` has it) shows as a failed program.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ecotone_types::units::{Seconds, Time, Watts};

use super::integral::Integral;
use super::{Look, MeterLabel, PowerMeter};
use crate::reading::EnergySource;
use crate::{EnergyError, sysfs};

/// Boards whose power chip has these rails.
const BOARDS: [&str; 2] = ["Raspberry Pi 5", "Raspberry Pi Compute Module 5"];

/// How often the program is run.
const INTERVAL: Seconds = Seconds(1.0);

/// Readings farther apart are not joined. Where the program takes long, looks are that far apart.
const MAX_GAP: Seconds = Seconds(35.0);

/// A program that has not ended by then is ended.
const MAX_RUN: Duration = Duration::from_secs(1);

/// How often it is looked after.
const PATIENCE: Duration = Duration::from_millis(1);

/// The most bytes of its output that are read; it writes about one thousand.
const MAX_OUTPUT: u64 = 16 * 1024;

/// The most watts that are believed: the board's supply gives 25.
const MAX_BOARD_WATTS: f64 = 30.0;

/// The chip.
pub struct Pmic {
    label: MeterLabel,
    program: PathBuf,
    integral: Integral,
    last_text: String,
}

impl Pmic {
    /// Opens the chip of the board below `root`; `None` if it is another board or has no program.
    ///
    /// # Errors
    /// [`EnergyError`] if the program fails.
    pub fn open(root: &Path) -> Result<Option<Self>, EnergyError> {
        let board = sysfs::text(&root.join("proc/device-tree/model")).unwrap_or_default();
        let program = root.join("usr/bin/vcgencmd");
        if !BOARDS.iter().any(|known| board.starts_with(known)) || !program.exists() {
            return Ok(None);
        }
        let (_, rails) = watts(&program, &run(&program)?)?;
        let label = MeterLabel {
            source: EnergySource::Pmic,
            covers: rails.join(", "),
            leaves_out: "what is fed from 5 V directly, losses of the chip, peaks between looks a second apart",
            interval: INTERVAL,
            max_watts: Watts(MAX_BOARD_WATTS),
            counts: false,
            runs_program: true,
        };
        Ok(Some(Self { label, program, integral: Integral::new(MAX_GAP), last_text: String::new() }))
    }
}

impl PowerMeter for Pmic {
    fn label(&self) -> &MeterLabel {
        &self.label
    }

    fn look(&mut self, now: Time) -> Result<Look, EnergyError> {
        let text = run(&self.program)?;
        let (watts, _) = watts(&self.program, &text)?;
        let unchanged = text == self.last_text;
        self.last_text = text;
        Ok(self.integral.advance(now, watts).map_or(Look::First, |joules| Look::Grew { joules, unchanged }))
    }
}

/// The output of the program.
fn run(program: &Path) -> Result<String, EnergyError> {
    let failed = |e| EnergyError::system("run", program, e);
    let mut child = Command::new(program)
        .arg("pmic_read_adc")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let ended = wait(&mut child).map_err(failed)?;
    if !ended {
        return Err(EnergyError::Form {
            path: program.to_path_buf(),
            what: format!("it has not ended after {MAX_RUN:?}, or ended with an error"),
        });
    }
    let mut text = String::new();
    if let Some(output) = child.stdout.take() {
        output.take(MAX_OUTPUT).read_to_string(&mut text).map_err(failed)?;
    }
    Ok(text)
}

/// Waits for the program; false if it failed or was ended. Its output fits a pipe, so that it need
/// not be read meanwhile.
fn wait(child: &mut Child) -> std::io::Result<bool> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if start.elapsed() >= MAX_RUN {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(PATIENCE);
    }
}

/// The power of all rails that have a voltage and a current, and their names.
fn watts(program: &Path, text: &str) -> Result<(Watts, Vec<String>), EnergyError> {
    let value = |wanted: &str, unit: char| {
        text.lines().find_map(|line| {
            let (name, value) = line.trim().split_once(' ')?;
            let value = value.split_once('=')?.1.strip_suffix(unit)?.parse::<f64>().ok()?;
            (name == wanted && value.is_finite() && value >= 0.0).then_some(value)
        })
    };
    let (mut sum, mut rails) = (0.0, Vec::new());
    for line in text.lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let Some(rail) = name.strip_suffix("_A") else { continue };
        if let (Some(amps), Some(volts)) = (value(name, 'A'), value(&format!("{rail}_V"), 'V')) {
            sum += amps * volts;
            rails.push(rail.to_owned());
        }
    }
    if rails.is_empty() {
        let what = "its output has no rail with both a voltage and a current".to_owned();
        return Err(EnergyError::Form { path: program.to_path_buf(), what });
    }
    Ok((Watts(sum), rails))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_with_both_readings_add_up() {
        let text = "  3V3_SYS_A current(1)=0.10000000A\n  VDD_CORE_A current(7)=2.00000000A\n   \
                    ALONE_A current(9)=5.0A\n 3V3_SYS_V volt(9)=3.30000000V\n  VDD_CORE_V volt(15)=0.80000000V\n  \
                    EXT5V_V volt(24)=5.10000000V\n  BATT_V volt(25)=nanV\n";
        let (watts, rails) = watts(Path::new("p"), text).unwrap();
        assert!((watts.0 - 1.93).abs() < 1e-9, "{watts}");
        assert_eq!(rails, ["3V3_SYS", "VDD_CORE"]);
        for text in ["", "VCHI initialization failed", "VDD_CORE_A current(7)=-1A\nVDD_CORE_V volt(15)=1V"] {
            assert!(super::watts(Path::new("p"), text).is_err(), "{text:?}");
        }
    }
}
