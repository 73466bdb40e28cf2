//! Every constant of the policies, with its default, range and source.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::policy::PolicyName;
use ecotone_types::units::{Bytes, BytesPerSecond, Cores, Seconds, Tables};

/// What to do when no server ends before the latest time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenNoneInTime {
    /// Run it on the owner, as ECO-KVS does (section VI-B: only "if the Global System is given a
    /// suitable server").
    #[default]
    Local,
    /// Send it to the fastest enabled server if that is faster than the owner: the stall cannot be
    /// avoided but can be shortened.
    FastestIfFaster,
}

/// Constants of the decisions. Built with [`Default`] and checked by [`Parameters::validate`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// The policy of the federation. Default `eco`.
    pub policy: PolicyName,
    /// WST: the number of L0 tables at which RocksDB slows writes
    /// (`level0_slowdown_writes_trigger`). Default 20, at least 1. ECO-KVS section IV.
    pub stall_threshold_tables: Tables,
    /// The forecast counts a stall from this many tables below the threshold on. Default 0, as
    /// ECO-KVS; zero or more, less than `stall_threshold_tables`.
    pub stall_margin_tables: Tables,
    /// How long an owner waits for the coordinator's answer before it runs a job itself. Default
    /// 0.5 s, more than 0.
    pub placement_timeout: Seconds,
    /// The deadline of an offload is this multiple of its predicted time. Default 4, at least 1.
    pub deadline_multiple: f64,
    /// The least deadline, so that a tiny job is not cancelled for a hiccup of the network. Default
    /// 10 s, more than 0.
    pub min_deadline: Seconds,
    /// The greatest deadline, so that no prediction can hold a compaction for ever. Default 600 s,
    /// at least `min_deadline`.
    pub max_deadline: Seconds,
    /// Questions of one owner that may be unanswered at a time. Default 16, at least 1.
    pub max_placements_outstanding: usize,
    /// Jobs of one owner that may be on workers at a time. Default 8, at least 1.
    pub max_offloads_outstanding: usize,
    /// A garbage collection of fewer entries stays: what a job costs its owner whatever its size is
    /// more than merging them. Default 16,384; measured, with 8 thousand nothing was gained
    /// (decision 0045).
    pub min_gc_entries: u64,
    /// Jobs of one owner that are remembered, so that what was predicted can be compared with what
    /// came. Default 1024, at least `max_placements_outstanding + max_offloads_outstanding + 1`.
    pub max_jobs_remembered: usize,
    /// Servers that a coordinator knows at a time; a further one is ignored until another has been
    /// silent for `forget_after`. Default 256, at least 1.
    pub max_servers: usize,
    /// A server whose last load sample is older than this is disabled. Default 3 s: three missed
    /// reports. More than 0.
    pub stale_after: Seconds,
    /// A server that has been silent for this long loses its entry in the server table. Default
    /// 3600 s, at least `stale_after`.
    pub forget_after: Seconds,
    /// A server is enabled with more free cores than this. Default 1: EdgePilot Algorithm 2 lines 2
    /// and 3. Zero or more.
    pub min_free_cores: Cores,
    /// A server is enabled with more free bandwidth than this. Default 0: EdgePilot Algorithm 2
    /// lines 5 and 6. Zero or more.
    pub min_free_network_bytes_per_s: BytesPerSecond,
    /// Whether a server whose own store is stalled may work for others. Default true: the papers'
    /// server table looks at processor and network only, and an L0 stall comes from one slow
    /// compaction thread while cores are idle.
    pub stalled_servers_may_work: bool,
    /// Whether a job that was placed on a server takes a core and a slot from what its last load
    /// sample said, until the next sample. Default true. Ours: without it all requests of one
    /// second go to the same server, which then declines.
    pub count_placements_between_samples: bool,
    /// How long an owner avoids a worker that declined a job. Default 1 s: until its next load
    /// sample. Zero or more.
    pub avoid_after_decline: Seconds,
    /// How long an owner avoids a worker that failed a job. Default 30 s. Zero or more.
    pub avoid_after_failure: Seconds,
    /// What `eco` and `eco-target` do when no server ends in time. Default `local`, as ECO-KVS.
    pub when_none_in_time: WhenNoneInTime,
    /// Constants of the input rate.
    pub rate: RateParameters,
    /// Constants of the models of time and energy.
    pub models: ModelParameters,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            policy: PolicyName::default(),
            stall_threshold_tables: Tables(20.0),
            stall_margin_tables: Tables::ZERO,
            placement_timeout: Seconds(0.5),
            deadline_multiple: 4.0,
            min_deadline: Seconds(10.0),
            max_deadline: Seconds(600.0),
            max_placements_outstanding: 16,
            max_offloads_outstanding: 8,
            min_gc_entries: 16_384,
            max_jobs_remembered: 1024,
            max_servers: 256,
            stale_after: Seconds(3.0),
            forget_after: Seconds(3600.0),
            min_free_cores: Cores(1.0),
            min_free_network_bytes_per_s: BytesPerSecond(0.0),
            stalled_servers_may_work: true,
            count_placements_between_samples: true,
            avoid_after_decline: Seconds(1.0),
            avoid_after_failure: Seconds(30.0),
            when_none_in_time: WhenNoneInTime::Local,
            rate: RateParameters::default(),
            models: ModelParameters::default(),
        }
    }
}

/// Constants of the input rate (ECO-KVS section VII-D).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateParameters {
    /// Samples in the window of the exponential moving average; its weight is 2 / (window + 1).
    /// Default 3, at least 1.
    pub window_samples: u32,
    /// Whether seconds in which writes were stalled leave the average as it is. Default true. Ours:
    /// what a stalled store lets in says nothing of what is offered to it.
    pub hold_while_stalled: bool,
    /// How many of the last flushed tables tell how much user input fills one table. Default 32, at
    /// least 1.
    pub flush_window_tables: u32,
    /// User input that fills one L0 table while no flush has been seen: RocksDB's
    /// `write_buffer_size`. Default 64 MiB, at least 1.
    pub prior_input_bytes_per_table: Bytes,
    /// How many of the last predictions the mean error is taken over. Default 20, at least 1.
    pub error_window_samples: u32,
}

impl Default for RateParameters {
    fn default() -> Self {
        Self {
            window_samples: 3,
            hold_while_stalled: true,
            flush_window_tables: 32,
            prior_input_bytes_per_table: Bytes::from_mib(64),
            error_window_samples: 20,
        }
    }
}

/// What a training sample's weight in the least squares is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weighting {
    /// One over the square of the input bytes: the relative error is made least. Times of jobs
    /// scatter in proportion to their size; the tests show that this predicts jobs of all sizes
    /// better under such noise.
    #[default]
    Relative,
    /// The same for all: ordinary least squares, where the largest jobs rule.
    Absolute,
}

/// Constants of the models y = a x + b of time and energy over input bytes (ECO-KVS section VI-B,
/// Local Predictor).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelParameters {
    /// Each further sample multiplies the weight of all before it by this. Default 0.98: about the
    /// last 50 jobs count. More than 0, at most 1.
    pub forgetting: f64,
    /// The weight of a sample. Default `relative`.
    pub weighting: Weighting,
    /// Under `relative`, smaller jobs weigh as if they had this size: their fixed part rules, not
    /// their bytes. Default 1 MiB, at least 1.
    pub weight_floor_bytes: Bytes,
    /// The size at which servers are compared and in which bytes are counted inside the models.
    /// Default 64 MiB, the size of ECO-KVS section VI-C. At least 1.
    pub reference_bytes: Bytes,
    /// How many samples the level of a server's prior counts as. Default 0.05: the first job
    /// outweighs the guess. More than 0.
    pub server_prior_samples: f64,
    /// How many samples the level of a pair's prior (worker's model plus link) counts as. Default
    /// 0.5: it rests on measurements, and one odd job should not shut a worker out. More than 0.
    pub pair_prior_samples: f64,
    /// How many samples the shape of a prior (the ratio of b to a) counts as. Default 0.1: it
    /// decides only while all jobs have about the same size. More than 0.
    pub shape_prior_samples: f64,
    /// The two sizes at which the shape of a prior is put into the sums, as multiples of
    /// `reference_bytes`. Default 0.25 and 4: they span the sizes of usual compactions. More than
    /// 0, the first less than the second.
    pub shape_prior_sizes: [f64; 2],
    /// The samples of a pair lose half of their weight in this time, so that a worker that was once
    /// slow is tried again. Default 60 s, more than 0.
    pub pair_half_life: Seconds,
    /// How many of the last predictions the mean error is taken over. Default 20, at least 1:
    /// ECO-KVS section VII-C reports errors after 20 trainings.
    pub error_window_samples: u32,
    /// Input bytes that a core of speed 1 compacts in a second: the prior. Default 200 MB/s,
    /// uncompressed. More than 0.
    pub reference_bytes_per_s: BytesPerSecond,
    /// The fixed time of a job on a core of speed 1: the prior. Default 0.01 s. Zero or more.
    pub reference_job_seconds: Seconds,
    /// Bandwidth of a link that has not been measured: the prior. Default 125 MB/s (1 Gb/s). More
    /// than 0.
    pub prior_link_bytes_per_s: BytesPerSecond,
    /// Round trip of a link that has not been measured: the prior. Default 1 ms. Zero or more.
    pub prior_round_trip: Seconds,
    /// Round trips that an offload waits for and that do not depend on its size: offer, open, list,
    /// finish. Default 8, zero or more.
    pub round_trips_per_job: f64,
    /// Bytes that a core of speed 1 encrypts and sends, or receives and decrypts, in a second: what a
    /// byte that need not travel saves at each end in joules. Default 1 GB/s: AES-GCM and two copies
    /// through the kernel. More than 0. Ours: the papers' servers share their storage.
    pub transport_bytes_per_s: BytesPerSecond,
    /// Output bytes for each input byte while no job of the owner has been seen: the prior.
    /// Default 1. Zero or more.
    pub prior_output_ratio: f64,
    /// The jobs over which an owner's ratio of output to input bytes is averaged. Default 20, at
    /// least 1: enough to smooth single jobs, few enough to follow a workload.
    pub output_ratio_window_jobs: u32,
    /// The greatest ratio of output to input bytes that is believed. Default 2, more than 0: a
    /// compaction merges and does not invent.
    pub max_output_ratio: f64,
    /// Pairs of worker and owner that are remembered; the one that learned longest ago is dropped.
    /// Default 4096, at least 1.
    pub max_pairs: usize,
}

impl Default for ModelParameters {
    fn default() -> Self {
        Self {
            forgetting: 0.98,
            weighting: Weighting::Relative,
            weight_floor_bytes: Bytes::from_mib(1),
            reference_bytes: Bytes::from_mib(64),
            server_prior_samples: 0.05,
            pair_prior_samples: 0.5,
            shape_prior_samples: 0.1,
            shape_prior_sizes: [0.25, 4.0],
            pair_half_life: Seconds(60.0),
            error_window_samples: 20,
            reference_bytes_per_s: BytesPerSecond(200e6),
            reference_job_seconds: Seconds(0.01),
            prior_link_bytes_per_s: BytesPerSecond(125e6),
            prior_round_trip: Seconds(0.001),
            round_trips_per_job: 8.0,
            transport_bytes_per_s: BytesPerSecond(1e9),
            prior_output_ratio: 1.0,
            output_ratio_window_jobs: 20,
            max_output_ratio: 2.0,
            max_pairs: 4096,
        }
    }
}

impl Parameters {
    /// Checks every range.
    ///
    /// # Errors
    /// [`Error::Parameter`] names the first parameter outside its range.
    pub fn validate(&self) -> Result<()> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let not_negative = |value: f64| value.is_finite() && value >= 0.0;
        let above = "more than 0 and finite";
        let from_zero = "0 or more and finite";
        let from_one = "at least 1";

        let wst = self.stall_threshold_tables.0;
        check(wst.is_finite() && wst >= 1.0, "stall_threshold_tables", &wst, "at least 1 and finite")?;
        let margin = self.stall_margin_tables;
        check(
            not_negative(margin.0) && margin.0 < wst,
            "stall_margin_tables",
            &margin,
            "0 or more and less than `stall_threshold_tables`",
        )?;
        check(positive(self.placement_timeout.0), "placement_timeout", &self.placement_timeout, above)?;
        let multiple = self.deadline_multiple;
        check(multiple.is_finite() && multiple >= 1.0, "deadline_multiple", &multiple, "at least 1 and finite")?;
        check(positive(self.min_deadline.0), "min_deadline", &self.min_deadline, above)?;
        let max_deadline = self.max_deadline;
        check(
            max_deadline.0.is_finite() && max_deadline >= self.min_deadline,
            "max_deadline",
            &max_deadline,
            "at least `min_deadline` and finite",
        )?;
        let (placements, offloads) = (self.max_placements_outstanding, self.max_offloads_outstanding);
        check(placements >= 1, "max_placements_outstanding", &placements, from_one)?;
        check(offloads >= 1, "max_offloads_outstanding", &offloads, from_one)?;
        check(
            self.max_jobs_remembered > placements.saturating_add(offloads),
            "max_jobs_remembered",
            &self.max_jobs_remembered,
            "more than `max_placements_outstanding` and `max_offloads_outstanding` together",
        )?;
        check(self.max_servers >= 1, "max_servers", &self.max_servers, from_one)?;
        check(positive(self.stale_after.0), "stale_after", &self.stale_after, above)?;
        check(
            self.forget_after.0.is_finite() && self.forget_after >= self.stale_after,
            "forget_after",
            &self.forget_after,
            "at least `stale_after` and finite",
        )?;
        check(not_negative(self.min_free_cores.0), "min_free_cores", &self.min_free_cores, from_zero)?;
        let network = self.min_free_network_bytes_per_s;
        check(not_negative(network.0), "min_free_network_bytes_per_s", &network, from_zero)?;
        check(not_negative(self.avoid_after_decline.0), "avoid_after_decline", &self.avoid_after_decline, from_zero)?;
        check(not_negative(self.avoid_after_failure.0), "avoid_after_failure", &self.avoid_after_failure, from_zero)?;
        self.rate.validate()?;
        self.models.validate()
    }
}

impl RateParameters {
    fn validate(&self) -> Result<()> {
        let from_one = "at least 1";
        check(self.window_samples >= 1, "rate.window_samples", &self.window_samples, from_one)?;
        check(self.flush_window_tables >= 1, "rate.flush_window_tables", &self.flush_window_tables, from_one)?;
        let table = self.prior_input_bytes_per_table;
        check(table.0 >= 1, "rate.prior_input_bytes_per_table", &table, from_one)?;
        check(self.error_window_samples >= 1, "rate.error_window_samples", &self.error_window_samples, from_one)
    }
}

impl ModelParameters {
    fn validate(&self) -> Result<()> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let not_negative = |value: f64| value.is_finite() && value >= 0.0;
        let above = "more than 0 and finite";
        let from_zero = "0 or more and finite";
        let from_one = "at least 1";

        let forgetting = self.forgetting;
        check(forgetting > 0.0 && forgetting <= 1.0, "models.forgetting", &forgetting, "more than 0 and at most 1")?;
        check(self.weight_floor_bytes.0 >= 1, "models.weight_floor_bytes", &self.weight_floor_bytes, from_one)?;
        check(self.reference_bytes.0 >= 1, "models.reference_bytes", &self.reference_bytes, from_one)?;
        for (name, value) in [
            ("models.server_prior_samples", self.server_prior_samples),
            ("models.pair_prior_samples", self.pair_prior_samples),
            ("models.shape_prior_samples", self.shape_prior_samples),
            ("models.pair_half_life", self.pair_half_life.0),
            ("models.reference_bytes_per_s", self.reference_bytes_per_s.0),
            ("models.prior_link_bytes_per_s", self.prior_link_bytes_per_s.0),
            ("models.transport_bytes_per_s", self.transport_bytes_per_s.0),
            ("models.max_output_ratio", self.max_output_ratio),
        ] {
            check(positive(value), name, &value, above)?;
        }
        for (name, value) in [
            ("models.reference_job_seconds", self.reference_job_seconds.0),
            ("models.prior_round_trip", self.prior_round_trip.0),
            ("models.round_trips_per_job", self.round_trips_per_job),
            ("models.prior_output_ratio", self.prior_output_ratio),
        ] {
            check(not_negative(value), name, &value, from_zero)?;
        }
        check(self.error_window_samples >= 1, "models.error_window_samples", &self.error_window_samples, from_one)?;
        let [small, large] = self.shape_prior_sizes;
        check(
            positive(small) && large.is_finite() && small < large,
            "models.shape_prior_sizes",
            &format_args!("{small} and {large}"),
            "more than 0 and finite, the first less than the second",
        )?;
        let window = self.output_ratio_window_jobs;
        check(window >= 1, "models.output_ratio_window_jobs", &window, from_one)?;
        check(self.max_pairs >= 1, "models.max_pairs", &self.max_pairs, from_one)
    }
}

fn check(good: bool, name: &'static str, value: &dyn fmt::Display, expected: &'static str) -> Result<()> {
    if good { Ok(()) } else { Err(Error::Parameter { name, value: value.to_string(), expected }) }
}
