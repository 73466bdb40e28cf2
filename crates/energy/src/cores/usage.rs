//! What a cgroup has used and how often it was held back.

use std::fs;
use std::path::Path;

use ecotone_types::units::Seconds;

use crate::EnergyError;

/// Counters of a group since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupUsage {
    /// CPU time; `None` where the kernel keeps it in another hierarchy (v1 with `cpuacct` mounted
    /// separately).
    pub cpu: Option<Seconds>,
    /// Quota periods in which the group had something to run.
    pub periods: u64,
    /// Periods in which it ran out of quota.
    pub throttled_periods: u64,
    /// Time for which threads were held back, summed over CPUs.
    pub throttled: Seconds,
}

impl GroupUsage {
    /// Reads the counters of a group's folder, v1 or v2.
    ///
    /// # Errors
    /// [`EnergyError::Cgroup`] if `cpu.stat` cannot be read, [`EnergyError::Form`] if it lacks the
    /// counters.
    pub fn read(group: &Path) -> Result<Self, EnergyError> {
        let path = group.join("cpu.stat");
        let text = fs::read_to_string(&path).map_err(|e| EnergyError::cgroup("read", &path, e))?;
        let usage_ns = fs::read_to_string(group.join("cpuacct.usage")).ok().and_then(|t| t.trim().parse::<f64>().ok());
        Self::parse(&text, usage_ns).ok_or_else(|| EnergyError::Form {
            path,
            what: "no nr_periods, nr_throttled and throttled time".to_owned(),
        })
    }

    fn parse(stat: &str, usage_ns: Option<f64>) -> Option<Self> {
        let value = |key: &str| {
            stat.lines().find_map(|line| line.split_once(' ').filter(|(k, _)| *k == key)?.1.trim().parse::<u64>().ok())
        };
        // v1 counts nanoseconds, v2 microseconds.
        let throttled = match value("throttled_usec") {
            Some(us) => Seconds(us as f64 / 1e6),
            None => Seconds(value("throttled_time")? as f64 / 1e9),
        };
        let cpu = value("usage_usec").map(|us| us as f64 / 1e6).or(usage_ns.map(|ns| ns / 1e9)).map(Seconds);
        Some(Self { cpu, periods: value("nr_periods")?, throttled_periods: value("nr_throttled")?, throttled })
    }

    /// The share of periods in which the quota, and not the work or the host, was the limit: 0 to
    /// 1.
    pub fn throttled_share(&self) -> f64 {
        if self.periods == 0 { 0.0 } else { self.throttled_periods as f64 / self.periods as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_say_the_same() {
        let v1 = "nr_periods 50\nnr_throttled 40\nthrottled_time 1500000000\nnr_bursts 0\nburst_time 0\n";
        let v2 = "usage_usec 250000\nuser_usec 200000\nsystem_usec 50000\nnr_periods 50\nnr_throttled 40\n\
                  throttled_usec 1500000\nnr_bursts 0\nburst_usec 0\n";
        let expected =
            GroupUsage { cpu: Some(Seconds(0.25)), periods: 50, throttled_periods: 40, throttled: Seconds(1.5) };
        assert_eq!(GroupUsage::parse(v1, Some(250_000_000.0)), Some(expected));
        assert_eq!(GroupUsage::parse(v2, None), Some(expected));
        assert_eq!(GroupUsage::parse(v1, None).unwrap().cpu, None);
        assert!((expected.throttled_share() - 0.8).abs() < 1e-12);
        assert_eq!(GroupUsage::default().throttled_share(), 0.0);
    }

    #[test]
    fn a_file_without_the_counters_is_refused() {
        let group = tempfile::tempdir().unwrap();
        assert!(matches!(GroupUsage::read(group.path()), Err(EnergyError::Cgroup { .. })));
        fs::write(group.path().join("cpu.stat"), "usage_usec 5\n").unwrap();
        assert!(matches!(GroupUsage::read(group.path()), Err(EnergyError::Form { .. })));
    }
}
