//! What `ecotone bench` is asked to do.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::target::{StoreSettings, TargetKind};
use crate::workload::{Preload, WorkloadOptions};
use crate::{Error, Result};

/// How many rounds a comparison has unless asked otherwise: the median of five stands two outliers.
pub const DEFAULT_ROUNDS: u32 = 5;

/// One run of a workload against one target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BenchOptions {
    /// What to run. [`WorkloadOptions::preload`] follows from `use_existing`.
    pub workload: WorkloadOptions,
    /// What to run it against. Default `engine`.
    pub target: TargetKind,
    /// Where the store is; empty or missing unless `use_existing`. Default none: a temporary directory, removed afterwards.
    /// The store in a directory that is named here stays.
    pub dir: Option<PathBuf>,
    /// Use the store in `dir` as it is instead of filling an empty one.
    pub use_existing: bool,
    /// How the store is opened.
    pub store: StoreSettings,
}

impl BenchOptions {
    /// The most rounds of a comparison.
    pub const MAX_ROUNDS: u32 = 1000;

    /// Refuses what makes no sense, before anything is written. Impossible store settings are refused by the store when it is
    /// opened, by name as well.
    pub fn validate(&self) -> Result<()> {
        self.workload.validate()?;
        if self.use_existing && self.dir.is_none() {
            return Err(Error::options("use-existing needs dir: where is the store?"));
        }
        if self.workload.preload == Preload::Existing && !self.use_existing {
            return Err(Error::options("to run on a store that is there, set use-existing and dir"));
        }
        Ok(())
    }

    /// As [`BenchOptions::validate`], for a comparison of `rounds` rounds.
    pub fn validate_comparison(&self, rounds: u32) -> Result<()> {
        self.validate()?;
        if self.use_existing {
            return Err(Error::options(
                "a comparison fills a new store for each run: the formats differ, so use-existing cannot be used with compare",
            ));
        }
        if !(1..=Self::MAX_ROUNDS).contains(&rounds) {
            return Err(Error::options(format!("rounds is {rounds}; it must be between 1 and {}", Self::MAX_ROUNDS)));
        }
        Ok(())
    }
}
