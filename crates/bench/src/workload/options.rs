//! What a run of a workload consists of, and which wishes are refused.

use serde::{Deserialize, Serialize};

use super::{KeyShape, ValueKind, Workload};
use crate::{Error, Result};

/// Whether the store is filled with all keys before the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preload {
    /// As the workload needs it: all but `fillrandom` and `fillseq` start from a full store.
    #[default]
    Automatic,
    /// The store holds data already and is used as it is; nothing is loaded.
    Existing,
    /// The store was filled with all keys for this workload, and holds nothing else; nothing is
    /// loaded. Only who filled it can say so.
    #[serde(skip)]
    Filled,
}

/// What to run. All counts are totals over the threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkloadOptions {
    /// Which workload.
    pub workload: Workload,
    /// How many keys the key space has. Default 1 000 000, range 1 to 4 294 967 296.
    pub keys: u64,
    /// The width of a key in bytes. Default 16, range 8 to 1024.
    pub key_bytes: u32,
    /// The length of a value in bytes; for `mixgraph` the mean length. Default 1000, range 1 to 4
    /// 194 304.
    pub value_bytes: u32,
    /// What values consist of. Default random bytes.
    pub values: ValueKind,
    /// Stop after so many seconds. Default none, range 0.001 to 1 000 000.
    pub seconds: Option<f64>,
    /// Stop after so many operations. Default: as many as there are keys, unless `seconds` is
    /// given. Of `readwhilewriting` the reads are counted against it, and the writer goes on until
    /// the readers are done.
    pub ops: Option<u64>,
    /// How many threads; for `readwhilewriting` the readers, beside one writer. Default 1, range 1
    /// to 1024.
    pub threads: u32,
    /// Operations per second of all threads together, offered whether or not the store keeps up.
    /// Default none: each thread starts an operation when the one before is done. Range 0.001 to 1
    /// 000 000 000.
    pub rate_ops_per_s: Option<f64>,
    /// For `readwhilewriting` with a rate: the writer's part of it. Default: an equal share per
    /// thread.
    pub write_rate_ops_per_s: Option<f64>,
    /// Of `updates`: how many per cent of the puts update keys of the load; the others insert new
    /// keys. Default 100, range 0 to 100.
    pub update_share_percent: Option<f64>,
    /// Of `updates`: the skew (theta) of a Zipfian by which the keys to update are drawn. Default
    /// none: uniformly. Range 0.01 to 0.999.
    pub zipf_theta: Option<f64>,
    /// Of `seekrandom`: how many entries are read after each seek, the one it lands on included;
    /// together they are one operation. Default 1, as db_bench's `--seek_nexts=0`; range 1 to
    /// 10 000.
    pub scan_entries: Option<u32>,
    /// Puts of uniformly drawn keys between the load and the measured part, in per cent of the
    /// keys: what is read then is no longer in the order in which it was loaded. Default none,
    /// range 0 to 1000.
    pub updates_before_percent: Option<f64>,
    /// Sets every random choice. Default 1.
    pub seed: u64,
    /// Whether the store is filled first.
    pub preload: Preload,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self {
            workload: Workload::FillRandom,
            keys: 1_000_000,
            key_bytes: 16,
            value_bytes: 1000,
            values: ValueKind::Random,
            seconds: None,
            ops: None,
            threads: 1,
            rate_ops_per_s: None,
            write_rate_ops_per_s: None,
            update_share_percent: None,
            zipf_theta: None,
            scan_entries: None,
            updates_before_percent: None,
            seed: 1,
            preload: Preload::Automatic,
        }
    }
}

impl WorkloadOptions {
    /// The most keys: which keys are live is kept as one bit each (512 MiB at this bound).
    pub const MAX_KEYS: u64 = 1 << 32;
    /// The widest key in bytes.
    pub const MAX_KEY_BYTES: u32 = 1024;
    /// The longest value in bytes.
    pub const MAX_VALUE_BYTES: u32 = 4 << 20;
    /// The most threads: beyond, the driver would measure the scheduler.
    pub const MAX_THREADS: u32 = 1024;
    /// The most entries that a seek reads: the most of `mixgraph`, too.
    pub const MAX_SCAN_ENTRIES: u32 = 10_000;
    /// The most updates before the measured part, in per cent of the keys: by then every key was
    /// updated ten times.
    pub const MAX_UPDATES_BEFORE_PERCENT: f64 = 1000.0;
    /// `mixgraph` cuts value sizes at this multiple of their mean: one draw in 200 000 is longer,
    /// and the cut takes 0.02 % from the mean; never beyond [`WorkloadOptions::MAX_VALUE_BYTES`].
    /// (db_bench wraps at `mix_max_value_size`, 1024 bytes, which would give another mean than the
    /// asked one.)
    pub const MIXGRAPH_LONGEST_VALUES: u32 = 64;

    /// Refuses what makes no sense, with the field's name, its range and what to do.
    pub fn validate(&self) -> Result<()> {
        in_range("keys", self.keys, 1, Self::MAX_KEYS)?;
        in_range("key-bytes", self.key_bytes, KeyShape::MIN_BYTES, Self::MAX_KEY_BYTES)?;
        in_range("value-bytes", self.value_bytes, 1, Self::MAX_VALUE_BYTES)?;
        self.values.validate()?;
        in_range("threads", self.threads, 1, Self::MAX_THREADS)?;
        in_range("ops", self.ops.unwrap_or(1), 1, u64::MAX)?;
        in_range("seconds", self.seconds.unwrap_or(1.0), 0.001, 1e6)?;
        in_range("rate", self.rate_ops_per_s.unwrap_or(1.0), 0.001, 1e9)?;
        if let Some(write_rate) = self.write_rate_ops_per_s {
            if self.workload != Workload::ReadWhileWriting {
                return Err(Error::options(format!(
                    "write-rate is for readwhilewriting only, not for {}; use rate",
                    self.workload
                )));
            }
            let Some(rate) = self.rate_ops_per_s else {
                return Err(Error::options("write-rate is a part of rate; give rate too"));
            };
            in_range("write-rate", write_rate, 0.001, rate - 0.001)?;
        }
        if let Some(entries) = self.scan_entries {
            if self.workload != Workload::SeekRandom {
                return Err(Error::options(format!("scan-entries is for seekrandom only, not for {}", self.workload)));
            }
            in_range("scan-entries", entries, 1, Self::MAX_SCAN_ENTRIES)?;
        }
        if let Some(percent) = self.updates_before_percent {
            if self.workload.fills() {
                return Err(Error::options(format!(
                    "updates-before updates what was loaded, and {} starts from an empty store",
                    self.workload
                )));
            }
            if self.preload != Preload::Automatic {
                return Err(Error::options("updates-before updates what was loaded, and use-existing loads nothing"));
            }
            in_range("updates-before", percent, 0.0, Self::MAX_UPDATES_BEFORE_PERCENT)?;
        }
        self.of_updates("update-share", self.update_share_percent, 0.0, 100.0)?;
        self.of_updates("zipf", self.zipf_theta, 0.01, 0.999)
    }

    fn of_updates(&self, name: &str, value: Option<f64>, least: f64, most: f64) -> Result<()> {
        let Some(value) = value else { return Ok(()) };
        if self.workload != Workload::Updates {
            return Err(Error::options(format!("{name} is for updates only, not for {}", self.workload)));
        }
        in_range(name, value, least, most)
    }

    /// How many per cent of the puts of `updates` update a key.
    pub fn update_share(&self) -> f64 {
        self.update_share_percent.unwrap_or(100.0)
    }

    /// How many entries a seek of `seekrandom` reads.
    pub fn entries_per_seek(&self) -> u32 {
        self.scan_entries.unwrap_or(1)
    }

    /// How many puts of all threads together update what was loaded, before the measured part.
    pub fn updates_before(&self) -> u64 {
        (self.keys as f64 * self.updates_before_percent.unwrap_or(0.0) / 100.0).round() as u64
    }

    /// Whether the driver fills the store before the measured part.
    pub fn preloads(&self) -> bool {
        match self.preload {
            Preload::Automatic => !self.workload.fills(),
            Preload::Existing | Preload::Filled => false,
        }
    }

    /// The number of operations after which to stop, if any: `ops`, else the number of keys unless
    /// `seconds` is given.
    pub fn ops_limit(&self) -> Option<u64> {
        self.ops.or_else(|| self.seconds.is_none().then_some(self.keys))
    }

    /// The longest value that the workload can ask for, in bytes.
    pub fn longest_value_bytes(&self) -> u32 {
        match self.workload {
            Workload::MixGraph => {
                self.value_bytes.saturating_mul(Self::MIXGRAPH_LONGEST_VALUES).min(Self::MAX_VALUE_BYTES)
            }
            _ => self.value_bytes,
        }
    }
}

fn in_range<T: PartialOrd + std::fmt::Display>(name: &str, value: T, least: T, most: T) -> Result<()> {
    // Written so that a NaN is refused.
    if value >= least && value <= most {
        return Ok(());
    }
    Err(Error::options(format!("{name} is {value}; it must be between {least} and {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut WorkloadOptions)) -> String {
        let mut options = WorkloadOptions::default();
        change(&mut options);
        options.validate().expect_err("must be refused").to_string()
    }

    #[test]
    fn defaults_are_the_papers_and_pass() {
        let options = WorkloadOptions::default();
        options.validate().unwrap();
        assert_eq!((options.key_bytes, options.value_bytes), (16, 1000));
        assert_eq!(options.ops_limit(), Some(options.keys));
        assert_eq!(WorkloadOptions { seconds: Some(1.0), ..options }.ops_limit(), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        assert!(refusal(|o| o.keys = 0).starts_with("keys is 0"));
        assert!(refusal(|o| o.key_bytes = 7).contains("between 8 and"));
        assert!(refusal(|o| o.value_bytes = 0).starts_with("value-bytes"));
        assert!(refusal(|o| o.values = ValueKind::Zeros(1.5)).contains("1.5; it must be between 0 and 1"));
        assert!(refusal(|o| o.values = ValueKind::Zeros(f64::NAN)).contains("NaN"));
        assert!(refusal(|o| o.threads = 0).starts_with("threads"));
        assert!(refusal(|o| o.ops = Some(0)).starts_with("ops"));
        assert!(refusal(|o| o.seconds = Some(0.0)).starts_with("seconds"));
        assert!(refusal(|o| o.seconds = Some(f64::NAN)).starts_with("seconds is NaN"));
        assert!(refusal(|o| o.rate_ops_per_s = Some(-1.0)).starts_with("rate"));
        assert!(refusal(|o| o.rate_ops_per_s = Some(f64::INFINITY)).starts_with("rate"));
        assert!(refusal(|o| o.write_rate_ops_per_s = Some(1.0)).contains("readwhilewriting"));
        assert!(
            refusal(|o| {
                o.workload = Workload::ReadWhileWriting;
                o.write_rate_ops_per_s = Some(1.0);
            })
            .contains("give rate too")
        );
        assert!(
            refusal(|o| {
                o.workload = Workload::ReadWhileWriting;
                o.rate_ops_per_s = Some(100.0);
                o.write_rate_ops_per_s = Some(100.0);
            })
            .starts_with("write-rate is 100")
        );
        let updates = |change: fn(&mut WorkloadOptions)| {
            refusal(|o| {
                o.workload = Workload::Updates;
                change(o);
            })
        };
        assert!(updates(|o| o.update_share_percent = Some(100.5)).starts_with("update-share is 100.5"));
        assert!(updates(|o| o.update_share_percent = Some(-1.0)).contains("between 0 and 100"));
        assert!(updates(|o| o.update_share_percent = Some(f64::NAN)).starts_with("update-share is NaN"));
        assert!(updates(|o| o.zipf_theta = Some(1.0)).contains("between 0.01 and 0.999"));
        assert!(refusal(|o| o.update_share_percent = Some(50.0)).contains("for updates only, not for fillrandom"));
        assert!(refusal(|o| o.zipf_theta = Some(0.9)).contains("for updates only"));
        let seeks = |change: fn(&mut WorkloadOptions)| {
            refusal(|o| {
                o.workload = Workload::SeekRandom;
                change(o);
            })
        };
        assert!(seeks(|o| o.scan_entries = Some(0)).starts_with("scan-entries is 0"));
        assert!(seeks(|o| o.scan_entries = Some(10_001)).contains("between 1 and 10000"));
        assert!(refusal(|o| o.scan_entries = Some(1)).contains("for seekrandom only, not for fillrandom"));
        assert!(seeks(|o| o.updates_before_percent = Some(-1.0)).starts_with("updates-before is -1"));
        assert!(seeks(|o| o.updates_before_percent = Some(f64::NAN)).contains("between 0 and 1000"));
        assert!(refusal(|o| o.updates_before_percent = Some(100.0)).contains("fillrandom starts from an empty store"));
        let existing = seeks(|o| {
            o.updates_before_percent = Some(100.0);
            o.preload = Preload::Existing;
        });
        assert!(existing.contains("use-existing"), "{existing}");
    }

    #[test]
    fn an_unknown_field_is_refused() {
        let error = serde_json::from_str::<WorkloadOptions>(r#"{"keyz": 5}"#).unwrap_err();
        assert!(error.to_string().contains("keyz"));
    }
}
