//! The error of a model on what it had not yet seen: each prediction is compared with what came,
//! before the model learns from it ("prequential"). ECO-KVS Figures 10 (c), (d) and 11 (b) plot
//! this error.

/// A greater error counts as this one: a single job of almost no time should not own the mean.
pub const GREATEST_ERROR: f64 = 100.0;

/// Mean relative error of predictions. Bounded: a handful of numbers, however many predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct PrequentialError {
    weight: f64,
    recent: f64,
    sum: f64,
    count: u64,
}

impl PrequentialError {
    /// No predictions yet; the recent error will be taken over about the last `window` of them (at
    /// least 1).
    pub fn new(window: u32) -> Self {
        Self { weight: ema_weight(window), recent: 0.0, sum: 0.0, count: 0 }
    }

    /// Compares a prediction with what came. Nothing is recorded where a relative error has no
    /// meaning: when `actual` is not above zero or either is not finite.
    pub fn record(&mut self, predicted: f64, actual: f64) {
        let Some(error) = relative_error(predicted, actual) else { return };
        self.count += 1;
        self.sum += error;
        // A plain mean until the window is full, so that the first error does not linger.
        let weight = self.weight.max(1.0 / self.count as f64);
        self.recent += weight * (error - self.recent);
    }

    /// Predictions compared so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Exponential mean over about the last `window` errors: 0.05 for 5 %. `None` before the first.
    pub fn recent(&self) -> Option<f64> {
        (self.count > 0).then_some(self.recent)
    }

    /// Mean over all errors. `None` before the first.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// |predicted - actual| / actual, at most [`GREATEST_ERROR`]; `None` when `actual` is not above zero or either is not finite.
pub fn relative_error(predicted: f64, actual: f64) -> Option<f64> {
    let has_meaning = predicted.is_finite() && actual.is_finite() && actual > 0.0;
    has_meaning.then(|| ((predicted - actual) / actual).abs().min(GREATEST_ERROR))
}

/// The weight of the newest value in an exponential moving average over `window` values: 2 /
/// (window + 1).
pub(crate) fn ema_weight(window: u32) -> f64 {
    2.0 / (f64::from(window.max(1)) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recent_error_forgets_and_the_mean_does_not() {
        let mut errors = PrequentialError::new(20);
        assert_eq!((errors.recent(), errors.mean()), (None, None));
        errors.record(2.0, 1.0);
        assert_eq!((errors.recent(), errors.mean()), (Some(1.0), Some(1.0)));
        for _ in 0..99 {
            errors.record(1.0, 1.0);
        }
        assert!(errors.recent().unwrap() < 0.001, "{:?}", errors.recent());
        assert!((errors.mean().unwrap() - 0.01).abs() < 1e-12);
    }

    #[test]
    fn errors_without_meaning_are_left_out() {
        let mut errors = PrequentialError::new(20);
        for (predicted, actual) in [(1.0, 0.0), (1.0, -1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)] {
            errors.record(predicted, actual);
        }
        assert_eq!(errors.count(), 0);
    }

    #[test]
    fn a_job_of_almost_no_time_leaves_the_mean_finite() {
        let mut errors = PrequentialError::new(20);
        errors.record(1.0, f64::MIN_POSITIVE);
        assert_eq!(errors.mean(), Some(GREATEST_ERROR));
    }
}
