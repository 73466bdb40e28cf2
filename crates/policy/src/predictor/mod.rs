//! What a job will take, and cost, on a server: ECO-KVS's Local and Global Predictor (section
//! VI-B), EdgePilot's models behind EdgeCode (section III-C).
//!
//! Each server has a model of time and one of energy over the input bytes of its own jobs, for each
//! class of jobs ([`JobClass`]). For a worker and a remote owner further models start from the
//! worker's own and the measured link, and are then corrected by the jobs that this worker did for
//! this owner. Before any job was seen, a server's model is a prior from its core speed and power,
//! so that a policy can begin in the first minute.
//!
//! **What a worker holds in a copy** of the shard does not travel. The models are of jobs all of whose
//! input does; the price of bytes that need not is taken off a prediction, and added to what such a
//! job took before the models learn from it.
//!
//! **Queued work does not count**, here as in the papers: a prediction is for a worker that starts
//! at once. The server table keeps busy servers out; the models learn from what jobs took when
//! several ran at a time.
//!
//! Bounded: `max_servers` servers and `max_pairs` pairs; the one that learned longest ago is
//! dropped.

mod job;
mod learned;
mod link;
mod models;

use std::collections::BTreeMap;

use crate::edgecode::EdgeCode;
use crate::machine::{JobReport, Link, LoadSample, ModelKind, ModelParameters, ModelSummary, Prediction};
use crate::prequential::ema_weight;
use crate::regression::{Line, Weights};
use ecotone_types::ServerId;
use ecotone_types::units::{Bytes, BytesPerSecond, Joules, Seconds, Time, Watts};

use link::{link_line, travel_price};
use models::{ClassModels, Models};

pub use job::{Job, JobClass};
pub use link::LinkEnds;

/// What a server says of itself and what its own jobs say.
#[derive(Clone, Debug)]
struct ServerModels {
    core_speed: f64,
    active_watts: Watts,
    link: Option<Link>,
    /// Whether it has reported load: without a report and without jobs nothing is known.
    has_reported: bool,
    jobs: ClassModels,
    /// Output bytes for each input byte of its own store's jobs.
    output_ratio: Option<f64>,
    last_report: Time,
}

/// The jobs that a worker did for an owner.
#[derive(Clone, Debug)]
struct PairModels {
    jobs: ClassModels,
    last_trained: Time,
}

/// Worker and owner.
type Pair = (ServerId, ServerId);

/// The models of all servers that this server knows.
#[derive(Clone, Debug)]
pub struct Predictor {
    parameters: ModelParameters,
    max_servers: usize,
    servers: BTreeMap<ServerId, ServerModels>,
    pairs: BTreeMap<Pair, PairModels>,
    /// By what factor jobs took longer than their priors, over all servers with jobs: what is known
    /// of the jobs themselves. It makes the prior of a server without jobs comparable with the
    /// models of the others.
    calibration: f64,
}

impl Predictor {
    /// Knows nothing. `max_servers` is at least 1.
    pub fn new(parameters: &ModelParameters, max_servers: usize) -> Self {
        Self {
            parameters: parameters.clone(),
            max_servers,
            servers: BTreeMap::new(),
            pairs: BTreeMap::new(),
            calibration: 1.0,
        }
    }

    /// Takes what a server says of itself. The sample must be free of problems.
    pub fn observe_load(&mut self, now: Time, sample: &LoadSample) {
        let server = self.server_mut(now, &sample.server);
        server.core_speed = sample.core_speed;
        server.active_watts = sample.active_watts;
        server.link = sample.link;
        server.has_reported = true;
    }

    /// Learns from a finished job, and returns what the models said of it just before. The report
    /// must be free of problems.
    pub fn train(&mut self, now: Time, report: &JobReport) -> Option<Prediction> {
        let job = report.shape();
        let before = self.predict(now, &report.worker, &report.owner, job);
        // The models are of jobs all of whose input travels.
        let travelled = self.predict(now, &report.worker, &report.owner, job.holding(Bytes::ZERO));
        let saved = self.saved(&report.worker, &report.owner, job);
        let is_metered = report.joules > Joules::ZERO;
        let joules = if is_metered { report.joules + saved.1 } else { report.joules };
        let ratio = (report.output_bytes.as_f64() / report.input_bytes.as_f64()).min(self.parameters.max_output_ratio);
        let weight = ema_weight(self.parameters.output_ratio_window_jobs);
        let owner = self.server_mut(now, &report.owner);
        owner.output_ratio = Some(owner.output_ratio.map_or(ratio, |mean| mean + weight * (ratio - mean)));
        // The worker must be known too, or its models could not be the base of the pair's.
        self.server_mut(now, &report.worker);
        let models = if report.is_local() {
            &mut self.server_mut(now, &report.worker).jobs
        } else {
            &mut self.pair_mut(now, &report.worker, &report.owner).jobs
        };
        let predicted = travelled.map(|before| (before.seconds, before.joules));
        models.of_mut(job.class).learn(now, job.input_bytes, (report.seconds + saved.0, joules), predicted);
        if report.is_local() {
            self.calibrate();
        }
        before
    }

    /// What a job of `owner` takes on `worker`, which may be the owner itself. `None` when the
    /// worker has neither reported load nor finished a job.
    pub fn predict(&self, now: Time, worker: &ServerId, owner: &ServerId, job: Job) -> Option<Prediction> {
        if worker == owner { self.local(worker, job) } else { self.remote(now, worker, owner, job) }
    }

    /// What a job of its own takes on a server.
    pub fn local(&self, server: &ServerId, job: Job) -> Option<Prediction> {
        let models = self.known(server)?;
        Some(prediction(
            job,
            self.time_line(models, job.class),
            self.energy_line(models, job.class),
            models.jobs.of(job.class),
            models.jobs.of(job.class).time.samples,
        ))
    }

    /// What a job of `owner` takes on another server. What that holds of the input in a copy is
    /// neither waited for nor paid for; but a job that need not wait for bytes takes no less than one
    /// of the worker's own, since a compaction reads while it merges.
    pub fn remote(&self, now: Time, worker: &ServerId, owner: &ServerId, job: Job) -> Option<Prediction> {
        let models = self.known(worker)?;
        let pair = self.pairs.get(&(worker.clone(), owner.clone()));
        let travels = prediction(
            job,
            self.pair_time_line(now, models, worker, owner, job.class),
            self.pair_energy_line(now, models, pair, job.class),
            pair.map_or(&models.jobs, |pair| &pair.jobs).of(job.class),
            pair.map_or(0, |pair| pair.jobs.of(job.class).time.samples),
        );
        if job.held_bytes == Bytes::ZERO {
            return Some(travels);
        }
        let (seconds, joules) = self.saved(worker, owner, job);
        let own = Seconds(self.time_line(models, job.class).at(job.input_bytes));
        Some(Prediction {
            seconds: (travels.seconds - seconds).max(own.min(travels.seconds)),
            joules: (travels.joules - joules).max(Joules::ZERO),
            ..travels
        })
    }

    /// What it would take to send what the worker holds in a copy.
    fn saved(&self, worker: &ServerId, owner: &ServerId, job: Job) -> (Seconds, Joules) {
        if job.held_bytes == Bytes::ZERO {
            return (Seconds::ZERO, Joules::ZERO);
        }
        let ends = [worker, owner].map(|server| self.known(server));
        let links = LinkEnds { worker: ends[0].and_then(|end| end.link), owner: ends[1].and_then(|end| end.link) };
        let cores = ends.into_iter().flatten().map(|end| (end.core_speed, end.active_watts));
        let price = travel_price(&self.parameters, links, cores);
        let bytes = job.held_bytes.as_f64();
        (Seconds(price.seconds_per_byte * bytes), Joules(price.joules_per_byte * bytes))
    }

    /// The lines that EdgeCode compares. `None` when one of the servers is not known.
    pub fn edge_code(&self, now: Time, worker: &ServerId, owner: &ServerId, class: JobClass) -> Option<EdgeCode> {
        let models = self.known(worker)?;
        Some(EdgeCode {
            owner: self.time_line(self.known(owner)?, class),
            network: self.pair_time_line(now, models, worker, owner, class),
        })
    }

    /// `compaction_perf` of EdgePilot Algorithm 1: input bytes that a server compacts in a second,
    /// at the reference size, from level 0.
    pub fn compaction_bytes_per_s(&self, server: &ServerId) -> Option<BytesPerSecond> {
        let reference = self.parameters.reference_bytes;
        let seconds = self.time_line(self.known(server)?, JobClass::LevelZero).at(reference);
        (seconds > 0.0).then(|| reference / Seconds(seconds))
    }

    /// All models, ordered by server, owner, class and kind; those of servers before those of
    /// pairs.
    pub fn summaries(&self, now: Time) -> Vec<ModelSummary> {
        let servers = self.servers.iter().filter(|(_, models)| models.is_known()).flat_map(|(server, models)| {
            JobClass::ALL.into_iter().flat_map(move |class| {
                let learned = models.jobs.of(class);
                [
                    learned.time.summary(server, None, class, ModelKind::Time, self.time_line(models, class)),
                    learned.energy.summary(server, None, class, ModelKind::Energy, self.energy_line(models, class)),
                ]
            })
        });
        let pairs = self.pairs.iter().filter_map(|((worker, owner), pair)| {
            let models = self.known(worker)?;
            Some(JobClass::ALL.into_iter().flat_map(move |class| {
                let learned = pair.jobs.of(class);
                let time = self.pair_time_line(now, models, worker, owner, class);
                let energy = self.pair_energy_line(now, models, Some(pair), class);
                [
                    learned.time.summary(worker, Some(owner), class, ModelKind::Time, time),
                    learned.energy.summary(worker, Some(owner), class, ModelKind::Energy, energy),
                ]
            }))
        });
        servers.chain(pairs.flatten()).collect()
    }

    fn known(&self, server: &ServerId) -> Option<&ServerModels> {
        self.servers.get(server).filter(|models| models.is_known())
    }

    /// What a server's jobs would take if nothing but its core speed were known.
    fn uncalibrated_prior(&self, models: &ServerModels) -> Line {
        let p = &self.parameters;
        Line { a: 1.0 / p.reference_bytes_per_s.0, b: p.reference_job_seconds.0 }.scaled(1.0 / models.core_speed)
    }

    fn time_line(&self, models: &ServerModels, class: JobClass) -> Line {
        models.jobs.line(|models| &models.time, class, self.uncalibrated_prior(models).scaled(self.calibration))
    }

    /// The prior of energy is active power x time: a compaction keeps one core busy (ECO-KVS
    /// section IV: it is CPU-intensive, and what network and memory add is negligible).
    fn energy_line(&self, models: &ServerModels, class: JobClass) -> Line {
        let prior = self.time_line(models, class).scaled(models.active_watts.0);
        models.jobs.line(|models| &models.energy, class, prior)
    }

    fn pair_time_line(
        &self,
        now: Time,
        models: &ServerModels,
        worker: &ServerId,
        owner: &ServerId,
        class: JobClass,
    ) -> Line {
        let owner_models = self.servers.get(owner);
        let ends = LinkEnds { worker: models.link, owner: owner_models.and_then(|owner| owner.link) };
        let ratio = owner_models.and_then(|owner| owner.output_ratio).unwrap_or(self.parameters.prior_output_ratio);
        let base = self.time_line(models, class).plus(link_line(&self.parameters, ends, ratio));
        match self.pairs.get(&(worker.clone(), owner.clone())) {
            Some(pair) => pair.jobs.of(class).time.aged_line(now, self.parameters.pair_half_life, base),
            None => base,
        }
    }

    /// The prior is the worker's own energy: while bytes are under way its core rests.
    fn pair_energy_line(&self, now: Time, models: &ServerModels, pair: Option<&PairModels>, class: JobClass) -> Line {
        let base = self.energy_line(models, class);
        let half_life = self.parameters.pair_half_life;
        pair.map_or(base, |pair| pair.jobs.of(class).energy.aged_line(now, half_life, base))
    }

    /// The geometric mean, over the servers and classes with jobs, of how their models at the
    /// reference size compare with their priors.
    fn calibrate(&mut self) {
        let reference = self.parameters.reference_bytes;
        let (mut sum, mut count) = (0.0, 0u32);
        for models in self.servers.values() {
            let prior = self.uncalibrated_prior(models);
            let learned = JobClass::ALL.map(|class| &models.jobs.of(class).time);
            for learned in learned.into_iter().filter(|learned| learned.samples > 0) {
                let ratio = learned.line(prior).at(reference) / prior.at(reference);
                if ratio.is_finite() && ratio > 0.0 {
                    sum += ratio.ln();
                    count += 1;
                }
            }
        }
        self.calibration = if count > 0 { (sum / f64::from(count)).exp() } else { 1.0 };
    }

    fn server_mut(&mut self, now: Time, server: &ServerId) -> &mut ServerModels {
        if self.servers.len() >= self.max_servers && !self.servers.contains_key(server) {
            let oldest = self.servers.iter().min_by(|(_, one), (_, other)| by_time(one.last_report, other.last_report));
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.servers.remove(&oldest);
                self.pairs.retain(|(worker, owner), _| *worker != oldest && *owner != oldest);
            }
        }
        let parameters = &self.parameters;
        let models = self.servers.entry(server.clone()).or_insert_with(|| ServerModels::new(parameters, now));
        models.last_report = now;
        models
    }

    fn pair_mut(&mut self, now: Time, worker: &ServerId, owner: &ServerId) -> &mut PairModels {
        let key = (worker.clone(), owner.clone());
        if self.pairs.len() >= self.parameters.max_pairs && !self.pairs.contains_key(&key) {
            let oldest = self.pairs.iter().min_by(|(_, one), (_, other)| by_time(one.last_trained, other.last_trained));
            if let Some(oldest) = oldest.map(|(pair, _)| pair.clone()) {
                self.pairs.remove(&oldest);
            }
        }
        let parameters = &self.parameters;
        let models = self.pairs.entry(key).or_insert_with(|| PairModels::new(parameters, now));
        models.last_trained = now;
        models
    }
}

fn prediction(job: Job, time: Line, energy: Line, learned: &Models, samples: u64) -> Prediction {
    Prediction {
        seconds: Seconds(time.at(job.input_bytes)),
        joules: Joules(energy.at(job.input_bytes)),
        time_error: learned.time.errors.recent().unwrap_or(0.0),
        samples,
    }
}

fn by_time(one: Time, other: Time) -> std::cmp::Ordering {
    one.0.0.total_cmp(&other.0.0)
}

impl ServerModels {
    fn new(parameters: &ModelParameters, now: Time) -> Self {
        let weights = Weights::of_server(parameters);
        Self {
            core_speed: 1.0,
            active_watts: Watts::ZERO,
            link: None,
            has_reported: false,
            jobs: ClassModels::new(weights, parameters.error_window_samples, now),
            output_ratio: None,
            last_report: now,
        }
    }

    fn is_known(&self) -> bool {
        self.has_reported || self.jobs.samples() > 0
    }
}

impl PairModels {
    fn new(parameters: &ModelParameters, now: Time) -> Self {
        let weights = Weights::of_pair(parameters);
        Self { jobs: ClassModels::new(weights, parameters.error_window_samples, now), last_trained: now }
    }
}
