//! How a core speed becomes a CPU quota.

use crate::EnergyError;

/// The kernel refuses quotas below 1 ms (`min_cfs_quota_period`).
const MIN_QUOTA_US: u64 = 1_000;

/// The usual period. Short, so that a slow core is slow evenly and not in bursts of 100 ms (the
/// kernel's default).
const PERIOD_US: u64 = 20_000;

/// The longest period: beyond it a core would stand still for so long that it looks like a stall.
const MAX_PERIOD_US: u64 = 25_000;

/// The least speed of an emulated core, in host cores: least quota / longest period.
pub const MIN_CORE_SPEED: f64 = MIN_QUOTA_US as f64 / MAX_PERIOD_US as f64;

/// Quota and period of a cgroup. Longer periods go with slower cores, so between any two speeds
/// quota and period move the ratio the same way; a change in two steps never leaves the range
/// between old and new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreQuota {
    /// CPU microseconds per period.
    pub quota_us: u64,
    /// Length of a period in microseconds.
    pub period_us: u64,
}

impl CoreQuota {
    /// The quota of one core of `speed` host cores.
    ///
    /// # Errors
    /// [`EnergyError::CoreSpeed`] below [`MIN_CORE_SPEED`], above 1, or not a number.
    pub fn for_speed(speed: f64) -> Result<Self, EnergyError> {
        if !(MIN_CORE_SPEED..=1.0).contains(&speed) {
            return Err(EnergyError::CoreSpeed {
                speed,
                min: MIN_CORE_SPEED,
                min_quota_us: MIN_QUOTA_US,
                max_period_us: MAX_PERIOD_US,
            });
        }
        // Both casts are of small positive numbers: periods of at most 25 000.
        let period_us = PERIOD_US.max((MIN_QUOTA_US as f64 / speed).ceil() as u64).min(MAX_PERIOD_US);
        let quota_us = ((speed * period_us as f64).round() as u64).max(MIN_QUOTA_US);
        Ok(Self { quota_us, period_us })
    }

    /// The quota of `cores` such cores together.
    #[must_use]
    pub fn times(self, cores: u32) -> Self {
        Self { quota_us: self.quota_us * u64::from(cores), period_us: self.period_us }
    }

    /// The speed this quota gives, in host cores.
    pub fn speed(self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_labs_three_tiers() {
        let of = |speed| CoreQuota::for_speed(speed).unwrap();
        assert_eq!(of(0.24), CoreQuota { quota_us: 4_800, period_us: 20_000 });
        assert_eq!(of(0.07), CoreQuota { quota_us: 1_400, period_us: 20_000 });
        assert_eq!(of(0.04), CoreQuota { quota_us: 1_000, period_us: 25_000 });
        assert_eq!(of(1.0), CoreQuota { quota_us: 20_000, period_us: 20_000 });
        assert_eq!(of(0.24).times(8), CoreQuota { quota_us: 38_400, period_us: 20_000 });
    }

    #[test]
    fn speeds_that_the_kernel_cannot_give_are_refused() {
        for speed in [0.0, -1.0, 0.039, 1.01, f64::NAN, f64::INFINITY] {
            let message = CoreQuota::for_speed(speed).expect_err("out of range").to_string();
            assert!(message.contains("at least 0.04"), "{message}");
        }
    }

    proptest! {
        #[test]
        fn the_quota_gives_the_speed(speed in MIN_CORE_SPEED..=1.0) {
            let quota = CoreQuota::for_speed(speed).unwrap();
            prop_assert!((quota.speed() - speed).abs() <= 0.0005 * speed.max(0.1), "{quota:?} for {speed}");
            prop_assert!(quota.quota_us >= MIN_QUOTA_US);
            prop_assert!((PERIOD_US..=MAX_PERIOD_US).contains(&quota.period_us));
        }
    }
}
