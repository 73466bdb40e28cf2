//! What the models know, for reports and metrics.

use serde::{Deserialize, Serialize};

use crate::predictor::JobClass;
use ecotone_types::ServerId;
use ecotone_types::units::BytesPerSecond;

/// What a model predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// Seconds of a job.
    Time,
    /// Joules of a job.
    Energy,
}

/// One model y = a x + b, with x in input bytes and y in seconds or joules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSummary {
    /// The server that runs the jobs.
    pub server: ServerId,
    /// Whose jobs they are, for the model of a pair; `None` for the server's own jobs.
    pub owner: Option<ServerId>,
    /// Of which jobs it is.
    pub class: JobClass,
    /// What it predicts.
    pub kind: ModelKind,
    /// Jobs that it has learned from; 0 means that this is a prior.
    pub samples: u64,
    /// Seconds or joules for each input byte. Zero or more.
    pub a: f64,
    /// Seconds or joules for each job. Zero or more.
    pub b: f64,
    /// Mean relative error of the recent predictions, each made before the model learned from that
    /// job: 0.05 for 5 %. `None` before the first.
    pub recent_error: Option<f64>,
    /// The same over all predictions.
    pub mean_error: Option<f64>,
}

/// The input rate of this server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateSummary {
    /// Predicted for the next second.
    pub predicted: BytesPerSecond,
    /// Samples seen.
    pub samples: u64,
    /// User input that fills one L0 table, by recent flushes.
    pub input_bytes_per_table: f64,
    /// Mean relative error of the recent predictions of the next second: 0.05 for 5 %. `None`
    /// before the first.
    pub recent_error: Option<f64>,
    /// The same over all predictions.
    pub mean_error: Option<f64>,
}

/// What a server's machine knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    /// Servers' own models, then those of pairs; ordered by server, owner, class and kind.
    pub models: Vec<ModelSummary>,
    /// The input rate of this server.
    pub rate: RateSummary,
    /// Messages that were ignored since the start, because a number in them was impossible or a
    /// limit was reached.
    pub ignored_messages_total: u64,
}
