//! One run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use ecotone_engine::DedupProperties;

use super::samples::{Samples, Summary};
use super::{BenchOptions, BenchReport, DuplicateFigures};
use crate::driver::{Driver, Outcome, Phase, RunSnapshot};
use crate::measure::{Measured, ProcessUsage, Reasons, directory_bytes, war};
use crate::target::{self, CountedDuplicates, DedupWork, GcWork, Target};
use crate::workload::{OperationKind, Preload, Workload};
use crate::{Error, Result};

/// How often a run tells how far it is.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub enum BenchProgress {
    /// It runs: about once a second.
    Running(RunSnapshot),
    /// The workload has ended; what it left of duplicates is counted.
    CountingDuplicates,
    /// The workload has ended; the store finishes what it left to compact.
    SettlingAfter,
}

/// As [`super::run_bench`], for options without a server.
pub(super) fn run_here(options: &BenchOptions, mut progress: impl FnMut(&BenchProgress)) -> Result<BenchReport> {
    let (directory, _temporary) = directory(options)?;
    let target = target::open(options.target, &directory, options.use_existing, &options.store)?;
    let mut workload = options.workload.clone();
    if options.use_existing {
        workload.preload = Preload::Existing;
    }
    let mut samples = Samples::of(target.directory());
    let running = Driver::start(Arc::clone(&target), workload, None)?;
    let outcome = running.join_with_progress(PROGRESS_INTERVAL, |running| {
        let snapshot = running.snapshot();
        if snapshot.phase == Phase::Measuring {
            samples.take(&snapshot, running.live_data(), duplicates(&*target).as_ref());
        }
        if snapshot.phase != Phase::Finished {
            progress(&BenchProgress::Running(snapshot));
        }
    })?;
    let written = outcome.usage_at_begin.bytes_device_until(&ProcessUsage::now(), outcome.bytes_user);
    let samples = samples.finish(&outcome, duplicates(&*target).as_ref(), &written);
    let counted = match options.store.dedup {
        Some(_) => {
            progress(&BenchProgress::CountingDuplicates);
            let usage = ProcessUsage::now();
            target.count_duplicates()?.map(|counted| (counted, usage.rss_max_bytes))
        }
        None => None,
    };
    progress(&BenchProgress::SettlingAfter);
    let settling = Instant::now();
    let settled = target.settle(Duration::from_secs_f64(options.settle_seconds), &AtomicBool::new(false))?;
    let end = End {
        usage: ProcessUsage::now(),
        gc: target.gc()?,
        counted,
        dedup: target.dedup()?,
        settled,
        settling: settling.elapsed(),
        samples,
    };
    Ok(report(options, &outcome, end, target.directory()))
}

/// What the target estimates now. A target that fails shows that in its operations.
fn duplicates(target: &dyn Target) -> Option<DedupProperties> {
    target.dedup().ok().flatten().map(|work| work.properties)
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

/// A run when its store has settled.
struct End {
    usage: ProcessUsage,
    gc: Option<GcWork>,
    /// Where duplicates were counted, with the most memory that was held before that.
    counted: Option<(CountedDuplicates, Measured<u64>)>,
    dedup: Option<DedupWork>,
    settled: bool,
    settling: Duration,
    samples: Summary,
}

fn report(options: &BenchOptions, outcome: &Outcome, end: End, directory: Option<&Path>) -> BenchReport {
    let mut reasons = Reasons::default();
    let begin = &outcome.usage_at_begin;
    let ops = outcome.counts.total();
    let bytes_device = reasons.keep("bytes_device", begin.bytes_device_until(&end.usage, outcome.bytes_user));
    let war = reasons.keep("war", war(bytes_device, outcome.bytes_user));
    let sar = reasons.keep("sar", sar(directory, outcome));
    let rss_max_bytes = end.counted.as_ref().map_or(&end.usage.rss_max_bytes, |(_, before)| before);
    let rss_max_bytes = reasons.keep("rss_max_bytes", rss_max_bytes.clone());
    let counting_seconds = end.counted.as_ref().map_or(0.0, |(counted, _)| counted.cpu_seconds);
    let cpu_seconds = end.usage.cpu_seconds - begin.cpu_seconds - counting_seconds;
    let duplicates = match &options.store.dedup {
        Some(_) => {
            let counted = end.counted.as_ref().map(|(counted, _)| counted).ok_or("the target cannot tell".to_owned());
            DuplicateFigures::of(counted, end.dedup.as_ref(), &mut reasons)
        }
        None => DuplicateFigures::default(),
    };
    let cpu_us_per_op = (ops > 0).then(|| cpu_seconds * 1e6 / ops as f64).ok_or_else(|| "no operation ran".to_owned());
    let cpu_us_per_op = reasons.keep("cpu_us_per_op", cpu_us_per_op);
    let Summary { samples, sar_at_end, sar_max, sar_mean_steady, war_steady } = end.samples;
    // An empty store has a ratio too, but of what its first second happened to leave in files.
    let filled = options.workload.workload.fills() && !options.use_existing;
    let sar_max = sar_max.filter(|_| !filled).ok_or_else(|| match filled {
        true => "the store was empty at the begin".to_owned(),
        false => unknown_sar(outcome),
    });
    let sar_max = reasons.keep("sar_max", sar_max);
    let sar_at_end = reasons.keep("sar_at_end", sar_at_end.ok_or_else(|| unknown_sar(outcome)));
    let sar_mean_steady = reasons.keep("sar_mean_steady", sar_mean_steady.ok_or_else(|| unknown_sar(outcome)));
    let war_steady = reasons.keep(
        "war_steady",
        war_steady.ok_or_else(|| match war {
            None => "there is no war".to_owned(),
            Some(_) => "the run was too short: its second half needs two samples, one a second".to_owned(),
        }),
    );
    let gc_bytes = end.gc.as_ref().map_or(0, |work| work.bytes);
    let throttled_ms = end.gc.as_ref().map_or(0, |work| work.throttled_ms);
    let gc_cpu_share = match end.gc.map_or(Ok(0.0), |work| work.cpu_seconds) {
        Ok(seconds) if cpu_seconds > 0.0 => Ok(seconds / cpu_seconds),
        Ok(_) => Err("there is no cpu_seconds".into()),
        Err(reason) => Err(reason),
    };
    let gc_cpu_share = reasons.keep("gc_cpu_share", gc_cpu_share);
    if !end.settled {
        let reason = format!(
            "the store was still at work {} s after the run; its later work is not counted",
            options.settle_seconds
        );
        for figure in ["bytes_device", "war", "sar", "cpu_seconds"] {
            reasons.0.entry(figure.to_owned()).or_insert_with(|| reason.clone());
        }
    }
    let by_kind = || OperationKind::ALL.into_iter().filter(|&kind| outcome.counts.of(kind) > 0);
    let seeks = options.workload.workload == Workload::SeekRandom;
    BenchReport {
        workload: options.workload.workload,
        target: options.target,
        options: options.clone(),
        ops,
        scan_entries: seeks.then(|| options.workload.entries_per_seek()),
        seconds: outcome.seconds,
        ops_per_s: ops as f64 / outcome.seconds,
        ops_by_kind: by_kind().map(|kind| (kind.name().to_owned(), outcome.counts.of(kind))).collect(),
        missed: outcome.missed,
        latency_us: by_kind().filter_map(|kind| Some((kind.name().to_owned(), outcome.latency_us(kind)?))).collect(),
        stall_ms: Some(outcome.stall_ms),
        bytes_user: outcome.bytes_user,
        bytes_device,
        war,
        war_steady,
        sar,
        sar_at_end,
        sar_max,
        sar_mean_steady,
        gc_bytes: Some(gc_bytes),
        gc_cpu_share,
        throttled_ms: Some(throttled_ms),
        duplicates,
        cpu_seconds: Some(cpu_seconds),
        cpu_us_per_op,
        rss_max_bytes,
        settle_seconds: end.settling.as_secs_f64(),
        server: None,
        samples,
        unavailable: reasons.0,
    }
}

/// Why a ratio of space is not known.
fn unknown_sar(outcome: &Outcome) -> String {
    let reason = match outcome.live {
        None => "the store held data before the run, of which nothing is known",
        Some(live) if live.keys == 0 => "the store holds no user data",
        Some(_) => "the store's directory could not be read",
    };
    reason.to_owned()
}

fn sar(directory: Option<&Path>, outcome: &Outcome) -> Measured<f64> {
    let directory = directory.ok_or("the target has no directory")?;
    let live = outcome.live.filter(|live| live.keys > 0).ok_or_else(|| unknown_sar(outcome))?;
    let bytes = directory_bytes(directory).map_err(|error| error.to_string())?;
    Ok(bytes as f64 / live.bytes)
}
