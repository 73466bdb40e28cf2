//! What a server under the lab prints: one JSON object a line on its standard output.
//!
//! The order of a run is: one [`Ready`]; then, after the line `start` on the server's standard
//! input, a [`Sample`] each second and a [`Job`] for every finished compaction that the server
//! owns; one [`Final`] when the workload's seconds are over, or, where the workload is what clients
//! ask for, at the first `stop`. The server keeps working for others until it reads `stop` or the
//! end of its standard input.
//!
//! All times are seconds since `start` on the server's own clock, all sizes bytes, all energies
//! joules. A reader ignores fields it does not know, so that servers may add some. This file
//! depends on serde alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One line of a server's standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// The server listens and its data are loaded.
    Ready(Ready),
    /// One second of load.
    Sample(Sample),
    /// A compaction that this server owns is finished, wherever it ran.
    Job(Job),
    /// The workload is over; the sums of the whole run.
    Final(Final),
}

/// The server listens and, if the workload needs it, its store is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The server's name, as given by `--name`.
    pub server: String,
    /// The address others join at, such as `127.0.0.1:41231`.
    pub listen: String,
    /// The address of clients; none where none are served over TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<String>,
}

/// The load of a server over one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When this second ended.
    pub at_s: f64,
    /// Operations of the workload finished in this second, reads and writes.
    pub ops: u64,
    /// Gets, seeks and scans among them.
    pub reads: u64,
    /// Puts and deletes among them.
    pub writes: u64,
    /// Tables in level 0 at the end of the second.
    pub l0_tables: u64,
    /// Milliseconds in which writes were slowed or stopped, since the workload began.
    pub stall_ms: f64,
    /// Milliseconds by which single writes were delayed, summed over writers, since the workload
    /// began.
    pub delayed_ms: f64,
    /// Bytes written by the workload in this second.
    pub input_rate_bytes_per_s: f64,
    /// What was forecast for this second one second earlier; absent before there is a forecast.
    #[serde(default)]
    pub input_rate_predicted_bytes_per_s: Option<f64>,
    /// Emulated cores that were busy, as a mean over the second.
    pub busy_cores: f64,
    /// Emulated cores that were free, as a mean over the second.
    pub free_cores: f64,
    /// Co-located busy threads that share this server's cores.
    pub colocated_threads: u64,
    /// Energy used since the workload began, idle share included.
    pub energy_joules: f64,
    /// Jobs of other servers that this one runs at the end of the second.
    pub running_worker_jobs: u64,
    /// Bytes that RocksDB estimates compactions still have to rewrite.
    pub pending_compaction_bytes: u64,
}

/// How a compaction came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Placed on the owner and run there.
    Local,
    /// Run by a worker, fetched and installed.
    Offloaded,
    /// Placed on a worker, but in the end run by the owner.
    Fallback,
}

/// One finished compaction, reported by its owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// When the job was finished.
    pub at_s: f64,
    /// The job's number, unique on its owner.
    pub job: u64,
    /// The server whose store was compacted.
    pub owner: String,
    /// The server that ran it; the owner itself when it was local.
    pub worker: String,
    /// Level of the inputs nearest to memory.
    pub input_level: u32,
    /// Level the outputs went to.
    pub output_level: u32,
    /// Bytes read.
    pub input_bytes: u64,
    /// Of these, what was not sent, since the worker held it in a copy of the shard.
    #[serde(default)]
    pub held_bytes: u64,
    /// Bytes written.
    pub output_bytes: u64,
    /// From placement to installation.
    pub seconds: f64,
    /// Energy of the job on the server that ran it.
    pub joules: f64,
    /// What the policy's model foretold for the chosen server.
    #[serde(default)]
    pub predicted_seconds: Option<f64>,
    /// What the policy's model foretold for the chosen server.
    #[serde(default)]
    pub predicted_joules: Option<f64>,
    /// Samples the chosen server's model had learned from when it foretold.
    #[serde(default)]
    pub trainings: u64,
    /// Where it was run in the end.
    pub outcome: Outcome,
    /// Why it was placed there, or why it fell back.
    #[serde(default)]
    pub reason: String,
}

/// Latencies of one kind of operation, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The slowest operation.
    pub max: f64,
}

/// The sums of a server's run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Final {
    /// The server's name.
    pub server: String,
    /// Operations of the workload.
    pub ops: u64,
    /// Gets, seeks and scans among them.
    pub reads: u64,
    /// Puts and deletes among them.
    pub writes: u64,
    /// Gets that found nothing. Workloads read only what was loaded or written, so any is a fault.
    #[serde(default)]
    pub missed: u64,
    /// Seconds the workload ran.
    pub seconds: f64,
    /// Milliseconds in which writes were slowed or stopped.
    pub stall_ms: f64,
    /// The length of each single stall in milliseconds.
    #[serde(default)]
    pub stalls: Vec<f64>,
    /// Energy used, idle share included.
    pub energy_joules: f64,
    /// Where the joules come from; `model` in the lab.
    pub energy_source: String,
    /// The same energy by duty, with `idle` and `unattributed`.
    #[serde(default)]
    pub energy_joules_by_duty: BTreeMap<String, f64>,
    /// Processor time of the process, in seconds of a host core.
    pub cpu_seconds: f64,
    /// Compactions of this server that a worker ran.
    pub offloaded: u64,
    /// Compactions of others that this server ran.
    pub taken: u64,
    /// Compactions of others that this server refused.
    pub declined: u64,
    /// Offloaded compactions that came home, by reason.
    #[serde(default)]
    pub fallbacks: BTreeMap<String, u64>,
    /// Bytes this server sent to others.
    pub network_bytes_sent: u64,
    /// Bytes this server received from others.
    pub network_bytes_received: u64,
    /// Latencies by kind of operation.
    #[serde(default)]
    pub latency_us: BTreeMap<String, Latency>,
    /// Bytes of keys and values that the workload wrote.
    pub bytes_user: u64,
    /// Bytes the process wrote to the device, by the kernel's count; none where the kernel counts
    /// none, as of a store in memory.
    #[serde(default)]
    pub bytes_device: Option<u64>,
    /// Bytes of the store's directory when the last operation had ended, before anything was waited
    /// for.
    #[serde(default)]
    pub bytes_directory: Option<u64>,
    /// Bytes of keys and values that live then; none where nobody knows, as of a store that was not
    /// empty before.
    #[serde(default)]
    pub bytes_live: Option<f64>,
    /// Most tables in level 0.
    pub l0_max: u64,
    /// How often a thread could not be put on its emulated core. A run with any is not valid.
    #[serde(default)]
    pub core_failures: u64,
}
