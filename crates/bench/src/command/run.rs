//! One run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{BenchOptions, BenchReport};
use crate::driver::{Driver, Outcome, Phase, RunSnapshot};
use crate::measure::{Measured, ProcessUsage, directory_bytes};
use crate::target::{self, Target};
use crate::workload::{OperationKind, Preload};
use crate::{Error, Result};

/// How often a run tells how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// How long a store may take to settle after the measured part.
const SETTLE_LIMIT: Duration = Duration::from_secs(600);

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub enum BenchProgress {
    /// It runs: about once a second.
    Running(RunSnapshot),
    /// The workload has ended; the store finishes what it left to compact.
    SettlingAfter,
}

/// Runs one workload against one target in this process and waits for the end.
///
/// `progress` is called on this thread. The figures of memory and processor time are those of the process: for clean ones nothing
/// else should run in it.
///
/// # Errors
///
/// [`Error::Options`] before anything was written; else what the target or the file system said.
pub fn run_bench(options: &BenchOptions, mut progress: impl FnMut(&BenchProgress)) -> Result<BenchReport> {
    options.validate()?;
    let (directory, _temporary) = directory(options)?;
    let target = target::open(options.target, &directory, options.use_existing, &options.store)?;
    let mut workload = options.workload.clone();
    if options.use_existing {
        workload.preload = Preload::Existing;
    }
    let running = Driver::start(Arc::clone(&target), workload, None)?;
    let outcome = running.join_with_progress(PROGRESS_INTERVAL, |snapshot| {
        if snapshot.phase != Phase::Finished {
            progress(&BenchProgress::Running(*snapshot));
        }
    })?;
    progress(&BenchProgress::SettlingAfter);
    let settling = Instant::now();
    let settled = target.settle(SETTLE_LIMIT)?;
    Ok(report(options, &outcome, &ProcessUsage::now(), target.as_ref(), settled, settling.elapsed()))
}

fn directory(options: &BenchOptions) -> Result<(PathBuf, Option<tempfile::TempDir>)> {
    if let Some(directory) = &options.dir {
        std::fs::create_dir_all(directory).map_err(|error| Error::io("create", directory, error))?;
        return Ok((directory.clone(), None));
    }
    let temporary = tempfile::Builder::new()
        .prefix("ecotone-bench-")
        .tempdir()
        .map_err(|error| Error::io("create a directory in", std::env::temp_dir(), error))?;
    Ok((temporary.path().to_path_buf(), Some(temporary)))
}

fn report(
    options: &BenchOptions,
    outcome: &Outcome,
    end: &ProcessUsage,
    target: &dyn Target,
    settled: bool,
    settling: Duration,
) -> BenchReport {
    let mut reasons = Reasons::default();
    let begin = &outcome.usage_at_begin;
    let ops = outcome.counts.total();
    let bytes_device = reasons.keep("bytes_device", begin.bytes_device_until(end, outcome.bytes_user));
    let war = reasons.keep("war", war(bytes_device, outcome.bytes_user));
    let sar = reasons.keep("sar", sar(target.directory(), outcome));
    let rss_max_bytes = reasons.keep("rss_max_bytes", end.rss_max_bytes.clone());
    let cpu_seconds = end.cpu_seconds - begin.cpu_seconds;
    let cpu_us_per_op = (ops > 0).then(|| cpu_seconds * 1e6 / ops as f64).ok_or_else(|| "no operation ran".to_owned());
    let cpu_us_per_op = reasons.keep("cpu_us_per_op", cpu_us_per_op);
    if !settled {
        let reason = format!(
            "the store still compacted {} s after the run; its later work is not counted",
            SETTLE_LIMIT.as_secs()
        );
        for figure in ["bytes_device", "war", "sar", "cpu_seconds"] {
            reasons.0.entry(figure.to_owned()).or_insert_with(|| reason.clone());
        }
    }
    let by_kind = || OperationKind::ALL.into_iter().filter(|&kind| outcome.counts.of(kind) > 0);
    BenchReport {
        workload: options.workload.workload,
        target: options.target,
        options: options.clone(),
        ops,
        seconds: outcome.seconds,
        ops_per_s: ops as f64 / outcome.seconds,
        ops_by_kind: by_kind().map(|kind| (kind.name().to_owned(), outcome.counts.of(kind))).collect(),
        missed: outcome.missed,
        latency_us: by_kind().filter_map(|kind| Some((kind.name().to_owned(), outcome.latency_us(kind)?))).collect(),
        stall_ms: outcome.stall_ms,
        bytes_user: outcome.bytes_user,
        bytes_device,
        war,
        sar,
        cpu_seconds,
        cpu_us_per_op,
        rss_max_bytes,
        settle_seconds: settling.as_secs_f64(),
        unavailable: reasons.0,
    }
}

/// Reasons by the name of the figure.
#[derive(Default)]
struct Reasons(BTreeMap<String, String>);

impl Reasons {
    fn keep<T>(&mut self, figure: &str, measured: Measured<T>) -> Option<T> {
        measured.map_err(|reason| self.0.insert(figure.to_owned(), reason)).ok()
    }
}

fn war(bytes_device: Option<u64>, bytes_user: u64) -> Measured<f64> {
    let written = bytes_device.ok_or("there is no bytes_device")?;
    if bytes_user == 0 {
        return Err("the workload wrote nothing".into());
    }
    Ok(written as f64 / bytes_user as f64)
}

fn sar(directory: Option<&Path>, outcome: &Outcome) -> Measured<f64> {
    let directory = directory.ok_or("the target has no directory")?;
    let live = outcome.live.ok_or("the store held data before the run, of which nothing is known")?;
    if live.keys == 0 {
        return Err("the store holds no user data".into());
    }
    let bytes = directory_bytes(directory).map_err(|error| error.to_string())?;
    Ok(bytes as f64 / live.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_amplification_needs_both_sides() {
        assert_eq!(war(Some(300), 100), Ok(3.0));
        assert!(war(None, 100).unwrap_err().contains("bytes_device"));
        assert!(war(Some(300), 0).unwrap_err().contains("wrote nothing"));
    }
}
