//! What a run found.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::OperationCounts;
use super::thread_state::{Latencies, ThreadOutcome};
use crate::measure::ProcessUsage;
use crate::workload::OperationKind;

/// Latencies of one kind of operation, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The median.
    pub p50: f64,
    /// 99 % were no slower.
    pub p99: f64,
    /// 99.9 % were no slower.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

impl LatencySummary {
    fn of(latencies: &Latencies) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        Self {
            p50: us(latencies.value_at_quantile(0.5)),
            p99: us(latencies.value_at_quantile(0.99)),
            p999: us(latencies.value_at_quantile(0.999)),
            max: us(latencies.max()),
        }
    }
}

/// The user's data that a store holds after a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LiveData {
    /// Distinct keys.
    pub keys: u64,
    /// Their bytes and those of their values. Exact where all values have one length; of `mixgraph`
    /// the keys times the mean of all that was written.
    pub bytes: f64,
}

/// What a run found.
#[derive(Debug)]
pub struct Outcome {
    /// Operations by kind.
    pub counts: OperationCounts,
    /// From the begin of the measured part to the end of its last operation.
    pub seconds: f64,
    /// Bytes of keys and values that the measured part put.
    pub bytes_user: u64,
    /// Reads of the measured part that found nothing.
    pub missed: u64,
    /// How long the store was in a stall condition during the measured part, in milliseconds;
    /// sampled.
    pub stall_ms: f64,
    /// What the process had used when the measured part began.
    pub usage_at_begin: ProcessUsage,
    /// The user's data in the store at the end; none if the store held data of which nothing is
    /// known.
    pub live: Option<LiveData>,
    /// Whether the store had settled when the measured part began; `false` also if that was not
    /// waited for.
    pub settled: bool,
    pub(super) latencies: [Option<Latencies>; OperationKind::ALL.len()],
}

impl Outcome {
    /// The latencies of one kind, in nanoseconds; none if there were no such operations.
    pub fn latencies(&self, kind: OperationKind) -> Option<&Histogram<u64>> {
        self.latencies[kind.index()].as_ref()
    }

    /// The latencies of one kind in short, in microseconds.
    pub fn latency_us(&self, kind: OperationKind) -> Option<LatencySummary> {
        self.latencies(kind).map(LatencySummary::of)
    }
}

/// The sum over the threads of a run.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) thread: ThreadOutcome,
}

impl Sum {
    pub(super) fn add(&mut self, other: ThreadOutcome) {
        let sum = &mut self.thread;
        for (sum, latencies) in sum.latencies.iter_mut().zip(other.latencies) {
            match (sum.as_mut(), latencies) {
                (Some(sum), Some(latencies)) => {
                    // Both have the same bounds, and values beyond them were cut when they were
                    // recorded.
                    let added = sum.add(&latencies);
                    debug_assert!(added.is_ok());
                }
                (None, latencies) => *sum = latencies,
                (Some(_), None) => {}
            }
        }
        sum.bytes_user += other.bytes_user;
        sum.value_bytes_written += other.value_bytes_written;
        sum.puts += other.puts;
        sum.inserted += other.inserted;
        sum.missed += other.missed;
        sum.ended_ns = sum.ended_ns.max(other.ended_ns);
    }
}
