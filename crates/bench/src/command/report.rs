//! The report of one run: its JSON is the command's public face.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{BenchOptions, DuplicateFigures, Sample};
use crate::driver::LatencySummary;
use crate::target::TargetKind;
use crate::target::resp::ServerAddress;
use crate::workload::Workload;

/// The server that a run asked, and what it reported of itself. What it did not report is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerFigures {
    /// Where it is.
    pub address: ServerAddress,
    /// `ecotone`, `redis`, `kvrocks`, `valkey`, `dragonfly` or `unknown`.
    pub kind: String,
    /// Its version; empty of an unknown one.
    pub version: String,
    /// Connections that asked, one for each thread.
    pub connections: u32,
    /// Requests under way on each at once.
    pub pipeline: u32,
    /// What its process had resident in memory at the end, in bytes.
    pub memory_bytes: Option<u64>,
    /// Joules of the measured part, idle power included; what it left to compact is not in it.
    pub energy_joules: Option<f64>,
    /// Where these come from: `rapl`, `hwmon` or `model`.
    pub energy_source: Option<String>,
    /// Energy per operation (EpO) in microjoules.
    pub epo_uj: Option<f64>,
}

/// What one run found. A figure that is not to be had is null, and `unavailable` says why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// The workload.
    pub workload: Workload,
    /// The target.
    pub target: TargetKind,
    /// All options, as they were used.
    pub options: BenchOptions,
    /// Operations of the measured part; a read-modify-write is one.
    pub ops: u64,
    /// Entries that were read after each seek of `seekrandom`, fewer only at the end of the keys;
    /// null of other workloads.
    pub scan_entries: Option<u32>,
    /// How long the measured part took.
    pub seconds: f64,
    /// Their quotient.
    pub ops_per_s: f64,
    /// Operations of the measured part by kind.
    pub ops_by_kind: BTreeMap<String, u64>,
    /// Reads that found nothing. A workload that loads its keys first has none.
    pub missed: u64,
    /// Latencies by kind, in microseconds. With a rate: from when the operation was due, so waiting
    /// behind a stalled store counts.
    pub latency_us: BTreeMap<String, LatencySummary>,
    /// Time in which the store slowed or stopped its writers, in milliseconds.
    pub stall_ms: Option<f64>,
    /// Bytes of keys and values that the measured part put.
    pub bytes_user: u64,
    /// Bytes that the process sent to storage for it, as the kernel counts them (see
    /// [`crate::measure::ProcessUsage::bytes_device`] for what that leaves out), until the store
    /// had settled.
    pub bytes_device: Option<u64>,
    /// Write amplification ratio: `bytes_device / bytes_user`.
    pub war: Option<f64>,
    /// The same within the second half of the measured part: what it comes to when the begin is
    /// over. What the store writes later to settle is not in it.
    pub war_steady: Option<f64>,
    /// Space amplification ratio: bytes of the store's directory by bytes of live user data, after
    /// the store had settled.
    pub sar: Option<f64>,
    /// The same at the end of the measured part, before anything was waited for.
    pub sar_at_end: Option<f64>,
    /// The highest of the measured part, by a sample a second. Null where the store was empty at
    /// the begin.
    pub sar_max: Option<f64>,
    /// The mean over the second half of the measured part.
    pub sar_mean_steady: Option<f64>,
    /// Bytes of values that the store moved out of garbage since it was opened, until it had
    /// settled. 0 where no values are separated.
    pub gc_bytes: Option<u64>,
    /// Processor time of that by `cpu_seconds`.
    pub gc_cpu_share: Option<f64>,
    /// How long writers were made to rest, all threads together, until the store had settled, so
    /// that garbage collection kept up; in milliseconds.
    pub throttled_ms: Option<u64>,
    /// What was found of duplicates.
    #[serde(flatten)]
    pub duplicates: DuplicateFigures,
    /// Processor seconds of the process, from the begin of the measured part until the store had
    /// settled: what the workload left to compact is its cost too. What counting duplicates at the
    /// end took is none of it. Of a server those of its process.
    pub cpu_seconds: Option<f64>,
    /// `cpu_seconds` by `ops`, in microseconds.
    pub cpu_us_per_op: Option<f64>,
    /// The most memory the process held at once from the begin of the measured part, in bytes;
    /// where duplicates were counted at the end, before that.
    pub rss_max_bytes: Option<u64>,
    /// How long the store took to settle after the measured part.
    pub settle_seconds: f64,
    /// The server that was asked; null where the store was opened in this process.
    pub server: Option<ServerFigures>,
    /// The measured part over time: a sample a second, at most 3600.
    pub samples: Vec<Sample>,
    /// Why a figure is null, or less than it says, by its name.
    pub unavailable: BTreeMap<String, String>,
}
