//! How busy the whole machine was, each core weighted by the power of the frequency it reached.
//!
//! A meter sees the machine, so the fit needs the machine's processor time and not this process's
//! alone: `/proc/stat` by processor, and `scaling_cur_freq` of each frequency domain at the look.
//! A processor that goes offline has no line; when it comes back its time begins anew. Failure: an
//! unreadable `/proc/stat` gives an error; a frequency that cannot be read counts as the highest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ecotone_types::units::{Hertz, Seconds};

use crate::pstate::PStateTable;
use crate::{EnergyError, sysfs};

/// Clock ticks of `/proc/stat` in a second: part of the kernel's interface on every processor that
/// this runs on (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// The most processors that are looked at.
const MAX_PROCESSORS: usize = 1_024;

/// The counters of a machine at the last look.
#[derive(Debug)]
pub(crate) struct HostLoad {
    root: PathBuf,
    busy_ticks: BTreeMap<u32, u64>,
}

/// What happened between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Span {
    /// Core seconds.
    pub(crate) busy: Seconds,
    /// Core seconds, each weighted by the power of its frequency relative to the highest.
    pub(crate) weighted: Seconds,
    /// Processors that are online.
    pub(crate) processors: usize,
}

impl HostLoad {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), busy_ticks: BTreeMap::new() }
    }

    /// What happened since the last look; nothing at the first.
    pub(crate) fn look(&mut self, table: &PStateTable) -> Result<Span, EnergyError> {
        let path = self.root.join("proc/stat");
        let ticks = busy_ticks(&sysfs::text(&path)?);
        if ticks.is_empty() {
            return Err(EnergyError::Form { path, what: "no line of a processor".to_owned() });
        }
        let weights = self.weights(table);
        let mut span = Span { processors: ticks.len(), ..Span::default() };
        for (processor, now) in &ticks {
            let before = self.busy_ticks.get(processor).copied().unwrap_or(*now);
            let busy = now.saturating_sub(before) as f64 / TICKS_PER_SECOND;
            span.busy += Seconds(busy);
            span.weighted += Seconds(busy * weights.get(processor).copied().unwrap_or(1.0));
        }
        self.busy_ticks = ticks;
        Ok(span)
    }

    /// The relative power of each processor whose frequency is known.
    fn weights(&self, table: &PStateTable) -> BTreeMap<u32, f64> {
        let policies = sysfs::entries(&self.root.join("sys/devices/system/cpu/cpufreq")).unwrap_or_default();
        let mut weights = BTreeMap::new();
        for policy in policies {
            let Ok(khz) = sysfs::number::<f64>(&policy.join("scaling_cur_freq")) else { continue };
            let weight = table.relative_power_at(Hertz(khz * 1e3));
            let processors = sysfs::text(&policy.join("affected_cpus")).unwrap_or_default();
            weights.extend(processors.split_whitespace().filter_map(|cpu| Some((cpu.parse().ok()?, weight))));
        }
        weights
    }
}

/// Ticks that each processor was not idle: user, nice, system, irq, softirq, steal. Time of guests
/// is in user already.
fn busy_ticks(stat: &str) -> BTreeMap<u32, u64> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let processor = fields.next()?.strip_prefix("cpu")?.parse().ok()?;
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let busy = ticks.iter().enumerate().filter(|(i, _)| matches!(i, 0..=2 | 5..=7)).map(|(_, ticks)| *ticks);
        Some((processor, busy.fold(0, u64::saturating_add)))
    };
    stat.lines().filter_map(line).take(MAX_PROCESSORS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_was_not_idle() {
        let stat = "cpu  10 20 30 4000 500 6 7 8 0 0\ncpu0 1 2 3 400 50 6 7 8 0 0\ncpu3 1 0 0 9 9\nintr 1 2\n";
        assert_eq!(busy_ticks(stat), BTreeMap::from([(0, 27), (3, 1)]));
        assert!(busy_ticks("cpu 1 2 3").is_empty());
    }
}
