//! Our store and a mark, side by side.
//!
//! Runs alternate in the order A B, B A, A B ... so that a machine that grows slower or faster
//! meanwhile favours neither. Each run has a process and a new store of its own. What is reported
//! are medians over the rounds of the ratio within a round: our store by the mark.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::{BenchOptions, BenchReport};
use crate::target::TargetKind;
use crate::{Error, Result};

/// The hidden flag with which the binary starts itself for one run; its argument is for
/// [`child_options`].
pub const CHILD_FLAG: &str = "--run-options";

/// The reports of one round. In JSON each is under the name of its target.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedRound {
    /// Our store.
    pub engine: BenchReport,
    /// The mark: RocksDB with nothing of ours in between, with BlobDB or without.
    pub baseline: BenchReport,
}

impl Serialize for ComparedRound {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        for report in [&self.engine, &self.baseline] {
            map.serialize_entry(report.target.name(), report)?;
        }
        map.end()
    }
}

/// Ratios of our store by the mark; null where either side has no figure or the mark's is zero.
/// Below 1 our store is better in all but `ops_per_s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// Of throughput.
    pub ops_per_s: Option<f64>,
    /// Of processor time per operation.
    pub cpu_us_per_op: Option<f64>,
    /// Of the time in a stall condition.
    pub stall_ms: Option<f64>,
    /// Of write amplification.
    pub war: Option<f64>,
    /// Of space amplification.
    pub sar: Option<f64>,
    /// Of space amplification at the end of the measured part.
    pub sar_at_end: Option<f64>,
    /// Of the highest space amplification.
    pub sar_max: Option<f64>,
    /// Of the memory peak.
    pub rss_max_bytes: Option<f64>,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// All runs.
    pub rounds: Vec<ComparedRound>,
    /// The median over the rounds of each ratio.
    pub median: Ratios,
    /// The least of each ratio.
    pub least: Ratios,
    /// The greatest of each ratio.
    pub greatest: Ratios,
}

/// Runs `ours`, of the target `engine`, and `baseline`, of another, in `rounds` rounds, each run as
/// a child process `program arguments... --run-options JSON` whose standard output is the report of
/// [`run_bench`](super::run_bench) as JSON. For `ecotone bench` that is the own executable and
/// `["bench"]`.
///
/// `progress` is called before each run: its round (from 1) and target.
///
/// # Errors
///
/// [`Error::Options`] before anything ran; [`Error::Child`] if a run failed (its own message went
/// to standard error).
pub fn run_compare(
    ours: &BenchOptions,
    baseline: &BenchOptions,
    rounds: u32,
    program: &Path,
    arguments: &[&str],
    mut progress: impl FnMut(u32, TargetKind),
) -> Result<Comparison> {
    ours.validate_comparison(baseline, rounds)?;
    let reports = (1..=rounds)
        .map(|round| {
            let mut run = |options: &BenchOptions| {
                progress(round, options.target);
                run_in_child(options, round, program, arguments)
            };
            Ok(if round % 2 == 1 {
                let engine = run(ours)?;
                ComparedRound { engine, baseline: run(baseline)? }
            } else {
                let baseline = run(baseline)?;
                ComparedRound { engine: run(ours)?, baseline }
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Comparison::of(reports))
}

/// The options of the run that [`run_compare`] asks of a child process, from the argument of
/// [`CHILD_FLAG`].
///
/// # Errors
///
/// [`Error::Options`] if the argument holds none.
pub fn child_options(argument: &str) -> Result<BenchOptions> {
    serde_json::from_str(argument)
        .map_err(|error| Error::options(format!("{CHILD_FLAG} does not hold the options of a run: {error}")))
}

fn run_in_child(options: &BenchOptions, round: u32, program: &Path, arguments: &[&str]) -> Result<BenchReport> {
    let target = options.target;
    let failed = |reason: String| Error::Child { target: target.name(), reason };
    let directory = options.dir.as_ref().map(|directory| directory.join(format!("{target}-{round}")));
    let _removed = directory.clone().map(RemovedAtEnd);
    let options = BenchOptions { dir: directory, ..options.clone() };
    let json = serde_json::to_string(&options).map_err(|error| failed(error.to_string()))?;
    let output = Command::new(program)
        .args(arguments)
        .arg(CHILD_FLAG)
        .arg(json)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::io("start", program, error))?;
    if !output.status.success() {
        return Err(failed(format!("it ended with {}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(format!("its output is no report: {error}")))
}

/// A store that nobody needs after its run: the disk must hold one of them, not all.
struct RemovedAtEnd(PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {} after its run: {error}", self.0.display());
        }
    }
}

impl ComparedRound {
    /// The ratios of one round.
    pub fn ratios(&self) -> Ratios {
        let ratio = |figure: fn(&BenchReport) -> Option<f64>| {
            let (ours, mark) = (figure(&self.engine)?, figure(&self.baseline)?);
            (mark > 0.0).then(|| ours / mark)
        };
        Ratios {
            ops_per_s: ratio(|report| Some(report.ops_per_s)),
            cpu_us_per_op: ratio(|report| report.cpu_us_per_op),
            stall_ms: ratio(|report| report.stall_ms),
            war: ratio(|report| report.war),
            sar: ratio(|report| report.sar),
            sar_at_end: ratio(|report| report.sar_at_end),
            sar_max: ratio(|report| report.sar_max),
            rss_max_bytes: ratio(|report| report.rss_max_bytes.map(|bytes| bytes as f64)),
        }
    }
}

impl Comparison {
    /// Sums up the rounds.
    pub fn of(rounds: Vec<ComparedRound>) -> Self {
        let ratios: Vec<Ratios> = rounds.iter().map(ComparedRound::ratios).collect();
        let summed = |sum: fn(&[f64]) -> f64| {
            let of = |figure: fn(&Ratios) -> Option<f64>| {
                let mut figures: Vec<f64> = ratios.iter().filter_map(figure).collect();
                figures.sort_by(f64::total_cmp);
                (!figures.is_empty()).then(|| sum(&figures))
            };
            Ratios {
                ops_per_s: of(|ratios| ratios.ops_per_s),
                cpu_us_per_op: of(|ratios| ratios.cpu_us_per_op),
                stall_ms: of(|ratios| ratios.stall_ms),
                war: of(|ratios| ratios.war),
                sar: of(|ratios| ratios.sar),
                sar_at_end: of(|ratios| ratios.sar_at_end),
                sar_max: of(|ratios| ratios.sar_max),
                rss_max_bytes: of(|ratios| ratios.rss_max_bytes),
            }
        };
        Self {
            median: summed(|sorted| {
                let middle = sorted.len() / 2;
                if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
            }),
            least: summed(|sorted| sorted[0]),
            greatest: summed(|sorted| sorted[sorted.len() - 1]),
            rounds,
        }
    }
}
