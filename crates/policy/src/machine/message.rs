//! What servers tell one another.
//!
//! Numbers from a peer are not believed: `problem()` of a message names what
//! is impossible in it, and the machine ignores such a message as a whole.

use serde::{Deserialize, Serialize};

use crate::predictor::Job;
use ecotone_types::units::{Bytes, BytesPerSecond, Cores, Joules, Seconds, Watts};
use ecotone_types::{JobId, JobPurpose, ServerId};

use super::reason::LocalReason;

/// The range of core speeds that is believed, relative to the reference core.
const MIN_CORE_SPEED: f64 = 1e-6;
const MAX_CORE_SPEED: f64 = 1e6;

/// A path between two servers, as measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// What it carries one way. At least 1.
    pub bytes_per_s: BytesPerSecond,
    /// From a question to its answer, without payload. Zero or more.
    pub round_trip: Seconds,
}

/// What a server tells the coordinator, and its own machine, once a second (EdgePilot Algorithm 1;
/// ECO-KVS section VI-B, Monitor and Tracker).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadSample {
    /// The server that speaks.
    pub server: ServerId,
    /// Tables in level 0 now.
    pub l0_tables: u32,
    /// User bytes (keys and values) written in the last second, raw.
    pub input_bytes_per_s: BytesPerSecond,
    /// User bytes written since the server started.
    pub input_bytes_total: Bytes,
    /// Bytes in memtables now, flushed ones excepted.
    pub memtable_bytes: Bytes,
    /// L0 tables that flushes have made since the server started.
    pub flushed_tables_total: u64,
    /// Cores that are idle now.
    pub free_cores: Cores,
    /// All cores of the server.
    pub cores: Cores,
    /// The speed of one core, relative to the reference core of
    /// [`ModelParameters`](super::ModelParameters). From 1e-6 to 1e6.
    pub core_speed: f64,
    /// Bandwidth of the server's network that is unused now.
    pub free_network_bytes_per_s: BytesPerSecond,
    /// The measured path from this server to the coordinator; `None` at the coordinator itself, and
    /// until it has been measured.
    pub link: Option<Link>,
    /// Jobs that it would take from other servers now.
    pub worker_slots_free: u32,
    /// Whether its store delays or stops writes now.
    pub stalled: bool,
    /// Power of one busy core, above idle.
    pub active_watts: Watts,
    /// Power of the server when all its cores are idle.
    pub idle_watts: Watts,
    /// Energy used since the server started, by its best meter.
    pub joules_total: Joules,
}

impl LoadSample {
    /// What is impossible in this sample, if anything.
    pub fn problem(&self) -> Option<&'static str> {
        let checks = [
            (self.input_bytes_per_s.is_plausible(), "the input rate is out of range"),
            (self.free_cores.is_plausible(), "the number of free cores is out of range"),
            (self.cores.is_plausible(), "the number of cores is out of range"),
            ((MIN_CORE_SPEED..=MAX_CORE_SPEED).contains(&self.core_speed), "the core speed is out of range"),
            (self.free_network_bytes_per_s.is_plausible(), "the free bandwidth is out of range"),
            (self.active_watts.is_plausible(), "the active power is out of range"),
            (self.idle_watts.is_plausible(), "the idle power is out of range"),
            (self.joules_total.is_plausible(), "the energy is out of range"),
            (
                self.link.is_none_or(|link| {
                    link.bytes_per_s.is_plausible() && link.bytes_per_s.0 >= 1.0 && link.round_trip.is_plausible()
                }),
                "the link has no bandwidth or an impossible round trip",
            ),
        ];
        checks.into_iter().find_map(|(good, problem)| (!good).then_some(problem))
    }
}

/// A finished (sub)compaction. The owner gives it to its own machine and to the coordinator, each
/// exactly once, whoever ran it: a report that is delivered twice trains twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// Whose store it was.
    pub owner: ServerId,
    /// Who ran it; the owner itself when it was local.
    pub worker: ServerId,
    /// Its number at the owner.
    pub job: JobId,
    /// Bytes of the input tables. More than zero.
    pub input_bytes: Bytes,
    /// Bytes of the output tables.
    pub output_bytes: Bytes,
    /// From the moment it was started or sent until its output was at the owner. More than zero.
    pub seconds: Seconds,
    /// Energy that the worker (and, when local, the owner) used for it; zero when nothing measures
    /// energy: then no energy model learns from it.
    pub joules: Joules,
    /// Of the input, what the worker held in a copy of the shard: it did not travel. At most all of
    /// it; zero for a local job, which needs nobody's.
    #[serde(default)]
    pub held_bytes: Bytes,
    /// Level of the inputs.
    pub input_level: i32,
    /// Level of the outputs.
    pub output_level: i32,
}

impl JobReport {
    /// The job as the models see it.
    pub fn shape(&self) -> Job {
        Job::new(self.input_bytes, self.input_level).holding(self.held_bytes)
    }

    /// Whether the owner ran it itself.
    pub fn is_local(&self) -> bool {
        self.owner == self.worker
    }

    /// What is impossible in this report, if anything.
    pub fn problem(&self) -> Option<&'static str> {
        let checks = [
            (self.input_bytes > Bytes::ZERO, "the job read nothing"),
            (self.held_bytes <= self.input_bytes, "the worker held more than the job read"),
            (self.seconds.is_plausible() && self.seconds.0 > 0.0, "the job took no time or for ever"),
            (self.joules.is_plausible(), "the energy is out of range"),
        ];
        checks.into_iter().find_map(|(good, problem)| (!good).then_some(problem))
    }
}

/// What a model says about a job before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Time from start to output at the owner. Zero or more.
    pub seconds: Seconds,
    /// Energy at the worker. Zero or more.
    pub joules: Joules,
    /// Mean relative error of the time model's recent predictions, 0.05 for 5 %; zero while it has
    /// none.
    pub time_error: f64,
    /// Finished jobs that the time model has learned from; 0 means that this is a prior.
    pub samples: u64,
}

impl Prediction {
    /// Whether its numbers are finite and not negative.
    pub fn is_plausible(&self) -> bool {
        self.seconds.is_plausible()
            && self.joules.is_plausible()
            && self.time_error.is_finite()
            && self.time_error >= 0.0
    }
}

/// An owner asks the coordinator for a worker (ECO-KVS section VI-B, Offloader).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementRequest {
    /// Whose store it is.
    pub owner: ServerId,
    /// The job's number at the owner.
    pub job: JobId,
    /// What it is for.
    pub purpose: JobPurpose,
    /// Bytes of the input tables.
    pub input_bytes: Bytes,
    /// Level of the inputs.
    pub input_level: i32,
    /// Level of the outputs.
    pub output_level: i32,
    /// What the owner's own model says it takes at home; `None` while it has no model.
    pub local_time: Option<Seconds>,
    /// T_max of ECO-KVS, or what is left until the job's own deadline where that is less: a worker
    /// must be predicted to take less than that. `None`: there is no deadline.
    pub latest: Option<Seconds>,
    /// Workers that declined or failed a job of this owner a short while ago.
    pub avoid: Vec<ServerId>,
    /// Other jobs of this owner that are on workers, or may be: their answers are awaited.
    pub away: u32,
    /// Servers with a copy of the shard. What they hold does not travel.
    pub holders: Vec<Holder>,
}

/// A server that holds some of a job's input, in a copy of the shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The server.
    pub server: ServerId,
    /// How much of the input it holds, as far as the owner knows.
    pub bytes: Bytes,
}

impl PlacementRequest {
    /// The job as the models see it, on a server without a copy.
    pub fn shape(&self) -> Job {
        Job::new(self.input_bytes, self.input_level)
    }

    /// The same on this server.
    pub fn shape_on(&self, worker: &ServerId) -> Job {
        let held = self.holders.iter().find(|holder| holder.server == *worker);
        self.shape().holding(held.map_or(Bytes::ZERO, |holder| holder.bytes))
    }

    /// What is impossible in this request, if anything. `max_servers` bounds the list of servers to
    /// avoid.
    pub fn problem(&self, max_servers: usize) -> Option<&'static str> {
        let checks = [
            (self.input_bytes > Bytes::ZERO, "the job reads nothing"),
            (self.local_time.is_none_or(Seconds::is_plausible), "the local time is out of range"),
            (self.latest.is_none_or(Seconds::is_plausible), "the latest time is out of range"),
            (self.holders.len() <= max_servers, "more servers hold copies than a federation may have"),
            (
                self.holders.iter().all(|holder| holder.bytes <= self.input_bytes),
                "a copy holds more than the job reads",
            ),
            (self.avoid.len() <= max_servers, "it avoids more servers than a federation may have"),
        ];
        checks.into_iter().find_map(|(good, problem)| (!good).then_some(problem))
    }
}

/// The coordinator's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementAnswer {
    /// Send it there.
    Worker {
        /// The chosen worker; never the owner.
        worker: ServerId,
        /// What is expected of it.
        prediction: Prediction,
    },
    /// Run it at home.
    Local {
        /// Why.
        reason: LocalReason,
    },
}
