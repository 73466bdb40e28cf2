//! One run against a server.
//!
//! What is not the driver's own to measure is what the server tells (INFO) at the begin of the
//! measured part, at its end (energy, and the space that it takes) and once it has settled (all
//! else). A figure that it does not tell is null, with the reason.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::run::PROGRESS_INTERVAL;
use super::samples::{Samples, Summary};
use super::{BenchOptions, BenchProgress, BenchReport, DuplicateFigures, ServerFigures};
use crate::driver::{Driver, Outcome, Phase};
use crate::measure::{Measured, Reasons, war};
use crate::target::Target;
use crate::target::resp::{RespTarget, ServerInfo, ServerOptions};
use crate::workload::{OperationKind, Preload, WorkloadOptions};
use crate::{Error, Result};

/// As [`super::run_bench`], for options with a server.
pub(super) fn run_served(
    options: &BenchOptions,
    server: &ServerOptions,
    mut progress: impl FnMut(&BenchProgress),
) -> Result<BenchReport> {
    let target = Arc::new(RespTarget::open(server)?);
    if !options.use_existing {
        if !target.is_empty()? {
            return Err(Error::server(
                &server.address,
                "it holds keys, which a run would mix with its own; name an empty one, or use it as it is with --use-existing",
            ));
        }
        // Separately from the measured part, so that the server can be asked in between.
        Driver::fill(Arc::clone(&target) as Arc<dyn Target>, options.workload.clone(), None, Arc::default())?;
    }
    let workload =
        WorkloadOptions { preload: Preload::Existing, updates_before_percent: None, ..options.workload.clone() };
    let before = target.info()?;
    let mut samples = Samples::of(None);
    let running = Driver::start(Arc::clone(&target) as Arc<dyn Target>, workload, None)?;
    let outcome = running.join_with_progress(PROGRESS_INTERVAL, |running| {
        let snapshot = running.snapshot();
        if snapshot.phase == Phase::Measuring {
            samples.take(&snapshot, None, None);
        }
        if snapshot.phase != Phase::Finished {
            progress(&BenchProgress::Running(snapshot));
        }
    })?;
    let summary = samples.finish(&outcome, None, &Err("the server writes, not this process".into()));
    let at_end = target.info()?;
    progress(&BenchProgress::SettlingAfter);
    let settling = Instant::now();
    let settled = target.settle(Duration::from_secs_f64(options.settle_seconds), &AtomicBool::new(false))?;
    let end = End { before, at_end, after: target.info()?, settled, settling: settling.elapsed(), summary };
    Ok(report(options, server, &outcome, end))
}

/// A run when its server has settled.
struct End {
    before: ServerInfo,
    /// Before it settled.
    at_end: ServerInfo,
    after: ServerInfo,
    settled: bool,
    settling: Duration,
    summary: Summary,
}

impl End {
    /// How much a sum of the server's has grown.
    fn growth(&self, field: &str) -> Measured<f64> {
        self.after.growth(&self.before, field).ok_or_else(|| self.silence())
    }

    fn silence(&self) -> String {
        format!("{} does not tell (INFO)", self.after.kind().0)
    }
}

fn report(options: &BenchOptions, server: &ServerOptions, outcome: &Outcome, end: End) -> BenchReport {
    let mut reasons = Reasons::default();
    let ops = outcome.counts.total();
    let by_kind = || OperationKind::ALL.into_iter().filter(|&kind| outcome.counts.of(kind) > 0);
    let stall_ms = reasons.keep("stall_ms", end.growth("stall_ms_total"));
    let bytes_device = end.growth("device_written_bytes_total").map(|bytes| bytes as u64);
    let bytes_device = reasons.keep("bytes_device", not_in_memory(bytes_device, outcome.bytes_user));
    let war = reasons.keep("war", war(bytes_device, outcome.bytes_user));
    let space_amplification = |info: &ServerInfo| {
        info.number("space_amplification_estimate").ok_or_else(|| match info.is_ecotone() {
            true => "the server has flushed nothing yet of which it could estimate it".to_owned(),
            false => end.silence(),
        })
    };
    let sar = reasons.keep("sar", space_amplification(&end.after));
    let sar_at_end = reasons.keep("sar_at_end", space_amplification(&end.at_end));
    let cpu_seconds = end.after.cpu_seconds().zip(end.before.cpu_seconds()).map(|(after, before)| after - before);
    let cpu_seconds = reasons.keep("cpu_seconds", cpu_seconds.ok_or_else(|| end.silence()));
    let per_op = |figure: Option<f64>| figure.filter(|_| ops > 0).map(|figure| figure * 1e6 / ops as f64);
    let cpu_us_per_op = per_op(cpu_seconds).ok_or_else(|| "there is no cpu_seconds, or no operation ran".to_owned());
    let cpu_us_per_op = reasons.keep("cpu_us_per_op", cpu_us_per_op);
    // Not until it has settled: that is mostly a wait, and its idle power is no cost of the
    // workload.
    let energy_joules = end.at_end.growth(&end.before, "energy_joules_total").ok_or_else(|| end.silence());
    let energy_joules = reasons.keep("server.energy_joules", energy_joules);
    let gc_bytes = reasons.keep("gc_bytes", end.growth("value_log_relocated_bytes_total"));
    let throttled_ms = reasons.keep("throttled_ms", end.growth("value_log_throttled_ms_total"));
    for figure in ["war_steady", "sar_max", "sar_mean_steady", "gc_cpu_share", "rss_max_bytes"] {
        let _: Option<()> = reasons.keep(figure, Err("it is not asked of a server".into()));
    }
    let _: Option<()> = reasons.keep("options.store", Err("the server has opened its store itself".into()));
    if !end.settled {
        let reason = format!("the server was still at work {} s after the run", options.settle_seconds);
        for figure in ["bytes_device", "war", "sar", "cpu_seconds"] {
            reasons.0.entry(figure.to_owned()).or_insert_with(|| reason.clone());
        }
    }
    let (kind, version) = end.after.kind();
    let figures = ServerFigures {
        address: server.address.clone(),
        kind: kind.to_owned(),
        version: version.to_owned(),
        connections: options.workload.workload.driver_threads(options.workload.threads),
        pipeline: server.pipeline,
        memory_bytes: end.after.number("used_memory_rss").map(|bytes| bytes as u64),
        energy_joules,
        energy_source: end.after.text("energy_source").map(str::to_owned),
        epo_uj: per_op(energy_joules),
    };
    BenchReport {
        workload: options.workload.workload,
        target: options.target,
        options: options.clone(),
        ops,
        scan_entries: None,
        seconds: outcome.seconds,
        ops_per_s: ops as f64 / outcome.seconds,
        ops_by_kind: by_kind().map(|kind| (kind.name().to_owned(), outcome.counts.of(kind))).collect(),
        missed: outcome.missed,
        latency_us: by_kind().filter_map(|kind| Some((kind.name().to_owned(), outcome.latency_us(kind)?))).collect(),
        stall_ms,
        bytes_user: outcome.bytes_user,
        bytes_device,
        war,
        war_steady: None,
        sar,
        sar_at_end,
        sar_max: None,
        sar_mean_steady: None,
        gc_bytes: gc_bytes.map(|bytes| bytes as u64),
        gc_cpu_share: None,
        throttled_ms: throttled_ms.map(|ms| ms as u64),
        duplicates: DuplicateFigures::default(),
        cpu_seconds,
        cpu_us_per_op,
        rss_max_bytes: None,
        settle_seconds: end.settling.as_secs_f64(),
        server: Some(figures),
        samples: end.summary.samples,
        unavailable: reasons.0,
    }
}

/// A counter that stands still while the user writes says nothing.
fn not_in_memory(bytes: Measured<u64>, bytes_user: u64) -> Measured<u64> {
    match bytes {
        Ok(0) if bytes_user > 0 => Err("the server's kernel counted no byte to a device".into()),
        bytes => bytes,
    }
}
