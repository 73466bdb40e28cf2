//! A regression together with its count of samples and the error of its predictions.

use crate::machine::{ModelKind, ModelSummary};
use crate::prequential::PrequentialError;
use crate::regression::{Line, Regression, Weights};
use ecotone_types::ServerId;
use ecotone_types::units::{Bytes, Seconds, Time};

use super::job::JobClass;

/// A model that has learned from jobs.
#[derive(Clone, Debug)]
pub(super) struct Learned {
    regression: Regression,
    pub(super) errors: PrequentialError,
    /// Jobs that it has learned from.
    pub(super) samples: u64,
    last_learned: Time,
}

impl Learned {
    pub(super) fn new(weights: Weights, error_window: u32, now: Time) -> Self {
        Self {
            regression: Regression::new(weights),
            errors: PrequentialError::new(error_window),
            samples: 0,
            last_learned: now,
        }
    }

    /// Compares what was predicted with what came, then learns from it.
    pub(super) fn learn(&mut self, now: Time, bytes: Bytes, actual: f64, predicted: Option<f64>) {
        if let Some(predicted) = predicted {
            self.errors.record(predicted, actual);
        }
        self.regression.learn(bytes, actual);
        self.samples += 1;
        self.last_learned = now;
    }

    pub(super) fn line(&self, prior: Line) -> Line {
        self.regression.line(prior)
    }

    /// The line when samples lose half of their weight every `half_life` since the last of them.
    pub(super) fn aged_line(&self, now: Time, half_life: Seconds, prior: Line) -> Line {
        let mut aged = self.regression;
        aged.fade((-(now.since(self.last_learned) / half_life)).exp2());
        aged.line(prior)
    }

    pub(super) fn summary(
        &self,
        server: &ServerId,
        owner: Option<&ServerId>,
        class: JobClass,
        kind: ModelKind,
        line: Line,
    ) -> ModelSummary {
        ModelSummary {
            server: server.clone(),
            owner: owner.cloned(),
            class,
            kind,
            samples: self.samples,
            a: line.a,
            b: line.b,
            recent_error: self.errors.recent(),
            mean_error: self.errors.mean(),
        }
    }
}
