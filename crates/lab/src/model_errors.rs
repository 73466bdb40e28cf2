//! How well a policy predicted, from what servers recorded.

use serde::{Deserialize, Serialize};

use ecotone_server::record::{Job, Outcome, Sample};

use crate::recording::ServerRecording;

/// Trainings from which on a model's error counts; the papers quote theirs after as many.
pub const COUNTED_FROM_TRAININGS: u64 = 20;
/// Seconds that a forecast of the input rate is an average of (ECO-KVS, section VII-C: a window of
/// 3 s).
const RATE_WINDOW_SAMPLES: usize = 3;

/// Relative errors of forecasts, 0.05 being five percent; none where nothing was predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelErrors {
    /// Seconds of a compaction: the mean over jobs predicted after [`COUNTED_FROM_TRAININGS`].
    pub time_error: Option<f64>,
    /// Joules of a compaction, over the same jobs.
    pub energy_error: Option<f64>,
    /// Input rate one second ahead: the mean over calm seconds, those without a stall in them or in
    /// the window that the forecast was made from. While writes stall the rate is what the store
    /// lets in, close to nothing, and a quotient to it says nothing about a forecast of what is
    /// offered.
    pub rate_error: Option<f64>,
    /// The same over all seconds, stalls included: bytes predicted too many or too few, divided by
    /// bytes that came.
    pub rate_error_with_stalls: Option<f64>,
    /// Jobs that `time_error` is the mean of.
    pub jobs: u64,
    /// Calm seconds that `rate_error` is the mean of.
    pub seconds: u64,
}

/// `|predicted - real| / real`; none where nothing real can be divided by.
pub(crate) fn relative_error(predicted: f64, real: f64) -> Option<f64> {
    (real > 0.0 && predicted.is_finite()).then(|| (predicted - real).abs() / real)
}

/// Errors of a job's two forecasts, (time, energy). A job that came home was predicted for another
/// server than the one that ran it, so it says nothing about the model.
pub(crate) fn job_errors(job: &Job) -> (Option<f64>, Option<f64>) {
    if job.outcome == Outcome::Fallback {
        return (None, None);
    }
    (
        job.predicted_seconds.and_then(|predicted| relative_error(predicted, job.seconds)),
        job.predicted_joules.and_then(|predicted| relative_error(predicted, job.joules)),
    )
}

impl ModelErrors {
    /// Computes the errors of a run, all servers together.
    pub fn of(servers: &[ServerRecording]) -> ModelErrors {
        let (mut time, mut energy, mut calm) = (Mean::default(), Mean::default(), Mean::default());
        for job in servers.iter().flat_map(|server| &server.jobs).filter(|job| job.trainings >= COUNTED_FROM_TRAININGS)
        {
            let errors = job_errors(job);
            time.add(errors.0);
            energy.add(errors.1);
        }
        let (mut wrong_bytes, mut real_bytes) = (0.0, 0.0);
        for server in servers {
            for (at, sample) in server.samples.iter().enumerate() {
                let Some(predicted) = sample.input_rate_predicted_bytes_per_s.filter(|rate| rate.is_finite()) else {
                    continue;
                };
                let real = sample.input_rate_bytes_per_s;
                wrong_bytes += (predicted - real).abs();
                real_bytes += real;
                if is_calm(&server.samples, at) {
                    calm.add(relative_error(predicted, real));
                }
            }
        }
        ModelErrors {
            time_error: time.value(),
            energy_error: energy.value(),
            rate_error: calm.value(),
            rate_error_with_stalls: (real_bytes > 0.0).then(|| wrong_bytes / real_bytes),
            jobs: time.count,
            seconds: calm.count,
        }
    }
}

/// Whether writes were not stalled in this second, nor in those its forecast was made from, and the
/// load ran all the while.
fn is_calm(samples: &[Sample], at: usize) -> bool {
    // One more, for the stall time at the beginning of the window; and the load must have begun
    // before it.
    let Some(window) = at.checked_sub(RATE_WINDOW_SAMPLES + 1).map(|from| &samples[from..=at]) else { return false };
    window[0].stall_ms == window[window.len() - 1].stall_ms && window.iter().all(|sample| sample.ops > 0)
}

/// A mean of what there is.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    fn value(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(seconds: f64, predicted: f64, trainings: u64, outcome: Outcome) -> Job {
        Job {
            at_s: 1.0,
            job: 1,
            owner: "a".to_owned(),
            worker: "b".to_owned(),
            input_level: 0,
            output_level: 1,
            input_bytes: 1,
            held_bytes: 0,
            output_bytes: 1,
            seconds,
            joules: seconds,
            predicted_seconds: Some(predicted),
            predicted_joules: None,
            trainings,
            outcome,
            reason: String::new(),
        }
    }

    fn sample(rate: f64, predicted: Option<f64>, stall_ms: f64) -> Sample {
        Sample {
            ops: 1,
            input_rate_bytes_per_s: rate,
            input_rate_predicted_bytes_per_s: predicted,
            stall_ms,
            ..Sample::default()
        }
    }

    fn errors(jobs: Vec<Job>, samples: Vec<Sample>) -> ModelErrors {
        ModelErrors::of(&[ServerRecording { jobs, samples, ..Default::default() }])
    }

    #[test]
    fn errors_of_jobs_count_from_twenty_trainings_and_where_the_foretold_server_ran_them() {
        let jobs = vec![
            job(10.0, 9.0, 20, Outcome::Offloaded),
            job(10.0, 13.0, 21, Outcome::Local),
            job(10.0, 90.0, 19, Outcome::Local),
            job(10.0, 90.0, 99, Outcome::Fallback),
            job(0.0, 1.0, 99, Outcome::Local),
        ];
        let errors = errors(jobs, Vec::new());
        assert_eq!((errors.time_error, errors.jobs, errors.energy_error), (Some(0.2), 2, None));
        assert_eq!((errors.rate_error, errors.rate_error_with_stalls), (None, None));
    }

    #[test]
    fn seconds_near_a_stall_do_not_count_as_calm() {
        let calm = || sample(100.0, Some(110.0), 0.0);
        let mut samples = vec![calm(), calm(), calm(), calm(), calm(), calm()];
        let quiet = errors(Vec::new(), samples.clone());
        // Only the last two have a whole window behind them.
        assert_eq!((quiet.seconds, quiet.rate_error_with_stalls), (2, Some(0.1)));
        assert!((quiet.rate_error.unwrap() - 0.1).abs() < 1e-12);

        // A stall takes out its own second and the three after it.
        samples.push(sample(1.0, Some(100.0), 900.0));
        samples.extend((0..4).map(|_| sample(100.0, Some(120.0), 900.0)));
        let stalled = errors(Vec::new(), samples);
        assert_eq!(stalled.seconds, 3);
        assert!((stalled.rate_error.unwrap() - (0.1 + 0.1 + 0.2) / 3.0).abs() < 1e-12, "{stalled:?}");
        assert!((stalled.rate_error_with_stalls.unwrap() - (6.0 * 10.0 + 99.0 + 4.0 * 20.0) / 1001.0).abs() < 1e-12);
    }

    #[test]
    fn the_windows_of_two_servers_do_not_mix() {
        let server = |rate| ServerRecording { samples: vec![sample(rate, Some(rate), 0.0); 3], ..Default::default() };
        assert_eq!(ModelErrors::of(&[server(1.0), server(1000.0)]).seconds, 0);
    }
}
