//! What `ecotone bench` is asked to do.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use ecotone_energy::cores::{MAX_CORES, MIN_CORE_SPEED};
use serde::{Deserialize, Serialize};

use crate::target::resp::{ServerOptions, check_workload};
use crate::target::{TargetKind, TargetSettings};
use crate::workload::{Preload, WorkloadOptions};
use crate::{Error, Result};

/// What the process may be limited to, in host cores. The least is the kernel's least quota in the
/// longest period that does not look like a stall.
pub const CORE_LIMITS: RangeInclusive<f64> = MIN_CORE_SPEED..=MAX_CORES as f64;

/// How many rounds a comparison has unless asked otherwise: the median of five withstands two
/// outliers.
pub const DEFAULT_ROUNDS: u32 = 5;

/// One run of a workload against one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BenchOptions {
    /// What to run. [`WorkloadOptions::preload`] follows from `use_existing`.
    pub workload: WorkloadOptions,
    /// What to run it against. Default `engine`.
    pub target: TargetKind,
    /// Of the target `resp`: the server. Default none.
    pub server: Option<ServerOptions>,
    /// Where the store is; empty or missing unless `use_existing`. Default none: a temporary
    /// directory, removed afterwards. The store in a directory that is named here stays.
    pub dir: Option<PathBuf>,
    /// Use the store in `dir` as it is instead of filling an empty one.
    pub use_existing: bool,
    /// How the store is opened.
    pub store: TargetSettings,
    /// How long to wait, after the measured part, until compactions and GC have ended. Default 600,
    /// range 0 to 86 400.
    pub settle_seconds: f64,
    /// Processor time for the whole process, in cores of the machine; 0.04 to 256. Default none: no
    /// limit. Whoever calls [`run_bench`](super::run_bench) sets it first.
    pub cores: Option<f64>,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self {
            workload: WorkloadOptions::default(),
            target: TargetKind::default(),
            server: None,
            dir: None,
            use_existing: false,
            store: TargetSettings::default(),
            settle_seconds: 600.0,
            cores: None,
        }
    }
}

impl BenchOptions {
    /// The most rounds of a comparison.
    pub const MAX_ROUNDS: u32 = 1000;
    /// The longest wait for a store to settle: a day.
    pub const MAX_SETTLE_SECONDS: f64 = 86_400.0;

    /// Refuses what makes no sense, before anything is written. Impossible store settings are
    /// refused by the store when it is opened, by name as well.
    pub fn validate(&self) -> Result<()> {
        self.workload.validate()?;
        self.store.validate_for(self.target)?;
        self.validate_server()?;
        if !(0.0..=Self::MAX_SETTLE_SECONDS).contains(&self.settle_seconds) {
            let (seconds, most) = (self.settle_seconds, Self::MAX_SETTLE_SECONDS);
            return Err(Error::options(format!("settle-seconds is {seconds}; it must be between 0 and {most}")));
        }
        if let Some(cores) = self.cores
            && !CORE_LIMITS.contains(&cores)
        {
            let (least, most) = (CORE_LIMITS.start(), CORE_LIMITS.end());
            return Err(Error::options(format!("cores is {cores}; it must be between {least} and {most}")));
        }
        if self.use_existing && self.workload.updates_before_percent.is_some() {
            return Err(Error::options("updates-before updates what was loaded, and with use-existing nothing is"));
        }
        if self.use_existing && self.dir.is_none() && self.server.is_none() {
            return Err(Error::options("use-existing needs dir: where is the store?"));
        }
        if self.workload.preload == Preload::Existing && !self.use_existing {
            return Err(Error::options("to run on a store that is there, set use-existing and dir"));
        }
        Ok(())
    }

    fn validate_server(&self) -> Result<()> {
        let Some(server) = &self.server else {
            return match self.target {
                TargetKind::Resp => Err(Error::options("the target resp needs a server: resp://HOST:PORT")),
                _ => Ok(()),
            };
        };
        if self.target != TargetKind::Resp {
            return Err(Error::options(format!("{} runs in this process and asks no server", self.target)));
        }
        server.validate()?;
        check_workload(self.workload.workload)?;
        if self.workload.rate_ops_per_s.is_some() && server.pipeline > 1 {
            return Err(Error::options(
                "with a rate each operation is sent when it is due, one at a time on a connection: leave pipeline at 1, and give as many \
                 threads as may wait at once",
            ));
        }
        let not_ours = |name: &str| {
            Err(Error::options(format!("{name} is for stores that are opened here; a server has its own settings")))
        };
        match self {
            Self { dir: Some(_), .. } => not_ours("dir"),
            Self { cores: Some(_), .. } => not_ours("cores"),
            Self { store, .. } if *store != TargetSettings::for_target(TargetKind::Resp, store.profile, None) => {
                not_ours("what is set of the store")
            }
            _ => Ok(()),
        }
    }

    /// The same run against a mark: `baseline` with the sizes that suit it, the durability and the
    /// compression of our store, and the rest as it is. The length of values that are separated is ours too, where the
    /// mark separates any.
    pub fn of_baseline(&self, baseline: TargetKind) -> Self {
        let separation = self.store.separation_min_bytes.filter(|_| baseline != TargetKind::Rocksdb);
        let sizes = TargetSettings::for_target(baseline, self.store.profile, separation);
        Self {
            target: baseline,
            store: TargetSettings {
                durability: self.store.durability,
                memory_limit_bytes: self.store.memory_limit_bytes,
                compression: self.store.compression,
                blob_gc_age_cutoff: self.store.blob_gc_age_cutoff,
                blob_gc_force_threshold: self.store.blob_gc_force_threshold,
                blob_compression: self.store.blob_compression,
                ..sizes
            },
            ..self.clone()
        }
    }

    /// As [`BenchOptions::validate`], for `rounds` rounds of this run of our store beside that of
    /// `baseline`.
    pub fn validate_comparison(&self, baseline: &BenchOptions, rounds: u32) -> Result<()> {
        if [self.target, baseline.target].contains(&TargetKind::Resp) {
            return Err(Error::options(
                "a comparison opens both stores itself; run servers one after the other, each with target",
            ));
        }
        self.validate()?;
        baseline.validate()?;
        if self.target != TargetKind::Engine || baseline.target == TargetKind::Engine {
            return Err(Error::options("a comparison is one of engine with another target"));
        }
        if !self.store.options.is_empty() {
            return Err(Error::options(
                "store-option is for the target engine, and a comparison opens both stores alike: leave it out",
            ));
        }
        if self.workload != baseline.workload {
            return Err(Error::options("a comparison runs one workload on both targets"));
        }
        if self.use_existing || baseline.use_existing {
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
