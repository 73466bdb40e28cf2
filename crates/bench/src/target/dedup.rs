//! What a benchmark asks of duplicates, and what a target tells of them.

use std::time::Duration;

use ecotone_engine::{DedupMode, DedupOptions, DedupProperties, ExtensionThreshold};
use ecotone_inspect::DuplicateCensus;
use serde::{Deserialize, Serialize};

use crate::measure::Measured;
use crate::{Error, Result};

/// How duplicates are counted while a workload runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DedupKind {
    /// Not at all.
    #[default]
    Off,
    /// By samples of keys, after each compaction.
    Sample,
    /// By filters of the lower levels, after each compaction.
    Filter,
    /// By samples, at fixed intervals: what the extension of compactions is compared with.
    Triggered,
}

impl DedupKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Off, Self::Sample, Self::Filter, Self::Triggered];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Sample => "sample",
            Self::Filter => "filter",
            Self::Triggered => "triggered",
        }
    }
}

impl std::str::FromStr for DedupKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            Error::options(format!("unknown dedup {name:?}; choose one of: {}", Self::ALL.map(Self::name).join(", ")))
        })
    }
}

/// What is done about duplicates, and that they are counted at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DedupSettings {
    /// How they are counted. Default `off`: at the end only.
    pub kind: DedupKind,
    /// The DUP_RATIO up to which compactions are extended, 2 to 100. Default none: duplicates are
    /// only counted.
    pub threshold: Option<f64>,
    /// Of `triggered`: seconds between two checks, 1 to 3600. Default 5.
    pub interval_seconds: Option<f64>,
}

impl DedupSettings {
    const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);

    /// Refuses what does not fit together, by the names of the command line, and sets `options`.
    pub(super) fn set(&self, options: &mut DedupOptions) -> Result<()> {
        let threshold = match (self.threshold, self.kind) {
            (Some(_), DedupKind::Off) => {
                let problem =
                    "threshold needs something that counts duplicates: give dedup as sample, filter or triggered";
                return Err(Error::options(problem));
            }
            (Some(ratio), _) => Some(ratio.try_into().map_err(|_| {
                Error::options(format!("threshold is {ratio}; it must be between 2 and 100 entries for each duplicate"))
            })?),
            (None, _) => None,
        };
        let interval = match (self.interval_seconds, self.kind) {
            (Some(_), kind) if kind != DedupKind::Triggered => {
                let problem = "dedup-interval is for dedup as triggered; the others look after each compaction";
                return Err(Error::options(problem));
            }
            (Some(seconds), _) if !(1.0..=3600.0).contains(&seconds) => {
                return Err(Error::options(format!(
                    "dedup-interval is {seconds}; it must be between 1 and 3600 seconds"
                )));
            }
            (Some(seconds), _) => Duration::from_secs_f64(seconds),
            (None, _) => Self::DEFAULT_INTERVAL,
        };
        options.threshold = threshold.map_or(ExtensionThreshold::Off, ExtensionThreshold::At);
        options.mode = Some(match self.kind {
            DedupKind::Off => DedupMode::Off,
            DedupKind::Sample => DedupMode::Sample,
            DedupKind::Filter => DedupMode::Filter,
            DedupKind::Triggered => DedupMode::Triggered { interval },
        });
        Ok(())
    }
}

/// What a target tells of its duplicates, of one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedDuplicates {
    /// What it estimates; none where it counts none while it runs.
    pub estimate: Option<DedupProperties>,
    /// What its tables hold.
    pub truth: DuplicateCensus,
    /// Processor time that reading the tables took, in seconds.
    pub cpu_seconds: f64,
}

/// What a target has done about duplicates since it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct DedupWork {
    /// In its own words.
    pub properties: DedupProperties,
    /// Processor time of compactions of any kind, in seconds: those that the store needs, those for
    /// garbage collection and those of duplicates.
    pub compaction_cpu_seconds: Measured<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(kind: DedupKind, threshold: Option<f64>, interval_seconds: Option<f64>) -> String {
        let settings = DedupSettings { kind, threshold, interval_seconds };
        settings.set(&mut DedupOptions::default()).unwrap_err().to_string()
    }

    #[test]
    fn what_does_not_fit_together_is_refused_by_the_name_on_the_command_line() {
        assert!(refusal(DedupKind::Off, Some(30.0), None).contains("give dedup as sample"));
        for ratio in [1.9, 100.5, -1.0, f64::NAN] {
            assert!(refusal(DedupKind::Sample, Some(ratio), None).contains("between 2 and 100"), "{ratio}");
        }
        assert!(refusal(DedupKind::Sample, None, Some(5.0)).starts_with("dedup-interval is for dedup as triggered"));
        for seconds in [0.5, 3601.0, f64::INFINITY, f64::NAN] {
            assert!(refusal(DedupKind::Triggered, None, Some(seconds)).contains("between 1 and 3600"), "{seconds}");
        }
        assert!("samples".parse::<DedupKind>().unwrap_err().to_string().contains("off, sample, filter, triggered"));
    }

    #[test]
    fn each_way_is_what_the_store_calls_it() {
        for kind in DedupKind::ALL {
            let settings = DedupSettings { kind: kind.name().parse().unwrap(), ..DedupSettings::default() };
            let mut options = DedupOptions::default();
            settings.set(&mut options).unwrap();
            assert_eq!(options.mode.unwrap().name(), kind.name());
        }
        let settings = DedupSettings { kind: DedupKind::Triggered, threshold: Some(2.0), interval_seconds: Some(1.5) };
        let mut options = DedupOptions::default();
        settings.set(&mut options).unwrap();
        assert_eq!(options.mode, Some(DedupMode::Triggered { interval: Duration::from_millis(1500) }));
        assert_eq!(options.threshold, ExtensionThreshold::At(2.0.try_into().unwrap()));
    }
}
