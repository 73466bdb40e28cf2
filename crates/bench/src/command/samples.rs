//! Write and space amplification over time, from samples that are taken while a workload runs.
//!
//! Invariant: at most [`Samples::MAX`] are kept, over however long a run; beyond, every second one
//! goes and the interval doubles. The highest ratio is that of all samples that were taken.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ecotone_engine::DedupProperties;
use serde::{Deserialize, Serialize};

use crate::driver::{LiveData, Outcome, RunSnapshot};
use crate::measure::{Measured, ProcessUsage, directory_bytes};

/// The store at one moment of the measured part. What is not to be had is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Since the begin of the measured part.
    pub seconds: f64,
    /// Operations until then.
    pub ops: u64,
    /// Bytes of keys and values put until then.
    pub bytes_user: u64,
    /// Bytes that the process has sent to storage since the begin of the measured part.
    pub bytes_device: Option<u64>,
    /// Bytes of the store's directory.
    pub bytes_directory: Option<u64>,
    /// Bytes of live keys and values.
    pub bytes_live: Option<f64>,
    /// `bytes_device / bytes_user`.
    pub war: Option<f64>,
    /// `bytes_directory / bytes_live`.
    pub sar: Option<f64>,
    /// DUP_RATIO of the whole store, as it estimates it.
    pub dup_ratio_estimated: Option<f64>,
    /// Bytes that newer versions shadow, as it estimates them.
    pub shadowed_bytes: Option<u64>,
}

/// What the samples of a run come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Summary {
    pub(super) samples: Vec<Sample>,
    pub(super) sar_at_end: Option<f64>,
    pub(super) sar_max: Option<f64>,
    pub(super) sar_mean_steady: Option<f64>,
    pub(super) war_steady: Option<f64>,
}

/// Takes samples.
#[derive(Debug)]
pub(super) struct Samples {
    directory: Option<PathBuf>,
    kept: Vec<Sample>,
    /// The device's counter of each, since the process began.
    device: Vec<Option<u64>>,
    taken: usize,
    /// Of so many samples one is kept.
    interval: usize,
    sar_max: Option<f64>,
}

impl Samples {
    /// The most that are kept: an hour of seconds.
    const MAX: usize = 3600;

    pub(super) fn of(directory: Option<&Path>) -> Self {
        let directory = directory.map(Path::to_path_buf);
        Self { directory, kept: Vec::new(), device: Vec::new(), taken: 0, interval: 1, sar_max: None }
    }

    /// One sample of a run under way.
    pub(super) fn take(
        &mut self,
        snapshot: &RunSnapshot,
        live: Option<LiveData>,
        duplicates: Option<&DedupProperties>,
    ) {
        let counts = (snapshot.counts.total(), snapshot.bytes_user);
        let (sample, device) = self.measure(snapshot.elapsed, counts, live, duplicates);
        if self.taken.is_multiple_of(self.interval) {
            self.keep(sample, device);
        }
        self.taken += 1;
    }

    fn measure(
        &mut self,
        elapsed: Duration,
        counts: (u64, u64),
        live: Option<LiveData>,
        duplicates: Option<&DedupProperties>,
    ) -> (Sample, Option<u64>) {
        let bytes_directory = self.directory.as_ref().and_then(|directory| directory_bytes(directory).ok());
        let bytes_live = live.map(|live| live.bytes).filter(|bytes| *bytes > 0.0);
        let sar = bytes_directory.zip(bytes_live).map(|(all, live)| all as f64 / live);
        if let Some(sar) = sar {
            self.sar_max = Some(self.sar_max.map_or(sar, |most| most.max(sar)));
        }
        let (ops, bytes_user) = counts;
        let seconds = elapsed.as_secs_f64();
        let sample = Sample {
            seconds,
            ops,
            bytes_user,
            bytes_device: None,
            bytes_directory,
            bytes_live,
            war: None,
            sar,
            dup_ratio_estimated: duplicates.and_then(DedupProperties::ratio),
            shadowed_bytes: duplicates.map(|duplicates| duplicates.shadowed_bytes),
        };
        (sample, ProcessUsage::now().bytes_device.ok())
    }

    fn keep(&mut self, sample: Sample, device: Option<u64>) {
        self.kept.push(sample);
        self.device.push(device);
        if self.kept.len() >= Self::MAX {
            let mut index = 0..;
            self.kept.retain(|_| index.next().is_some_and(|index: usize| index % 2 == 1));
            let mut index = 0..;
            self.device.retain(|_| index.next().is_some_and(|index: usize| index % 2 == 1));
            self.interval *= 2;
        }
    }

    /// The workload has ended; the last sample is taken now, before the store settles.
    /// `bytes_device` tells whether the counter of device bytes means anything here.
    pub(super) fn finish(
        mut self,
        outcome: &Outcome,
        duplicates: Option<&DedupProperties>,
        bytes_device: &Measured<u64>,
    ) -> Summary {
        let ended = Duration::from_secs_f64(outcome.seconds);
        let early = self.kept.partition_point(|sample| sample.seconds < outcome.seconds);
        self.kept.truncate(early);
        self.device.truncate(early);
        let counts = (outcome.counts.total(), outcome.bytes_user);
        let (last, device) = self.measure(ended, counts, outcome.live, duplicates);
        let sar_at_end = last.sar;
        self.kept.push(last);
        self.device.push(device);
        if let (Ok(_), Ok(begin)) = (bytes_device, &outcome.usage_at_begin.bytes_device) {
            for (sample, device) in self.kept.iter_mut().zip(&self.device) {
                sample.bytes_device = device.map(|device| device.saturating_sub(*begin));
                sample.war = ratio(sample.bytes_device, Some(sample.bytes_user));
            }
        }
        let steady = &self.kept[self.kept.partition_point(|sample| sample.seconds < outcome.seconds / 2.0)..];
        Summary {
            sar_at_end,
            sar_max: self.sar_max,
            sar_mean_steady: mean_sar(steady),
            war_steady: steady.first().zip(steady.last()).and_then(|(first, last)| {
                let device = last.bytes_device?.checked_sub(first.bytes_device?);
                ratio(device, last.bytes_user.checked_sub(first.bytes_user))
            }),
            samples: self.kept,
        }
    }
}

fn ratio(dividend: Option<u64>, divisor: Option<u64>) -> Option<f64> {
    let (dividend, divisor) = (dividend?, divisor?);
    (divisor > 0).then(|| dividend as f64 / divisor as f64)
}

/// The mean over time; samples need not lie equally far apart.
fn mean_sar(samples: &[Sample]) -> Option<f64> {
    if let [only] = samples {
        return only.sar;
    }
    let (mut area, mut seconds) = (0.0, 0.0);
    for pair in samples.windows(2) {
        let width = pair[1].seconds - pair[0].seconds;
        area += width * (pair[0].sar? + pair[1].sar?) / 2.0;
        seconds += width;
    }
    (seconds > 0.0).then(|| area / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, sar: f64) -> Sample {
        Sample {
            seconds,
            ops: 0,
            bytes_user: 0,
            bytes_device: None,
            bytes_directory: None,
            bytes_live: None,
            war: None,
            sar: Some(sar),
            dup_ratio_estimated: None,
            shadowed_bytes: None,
        }
    }

    #[test]
    fn the_number_of_samples_is_bounded_and_they_stay_in_order() {
        let mut samples = Samples::of(None);
        for second in 0..20_000 {
            if samples.taken.is_multiple_of(samples.interval) {
                samples.keep(sample(f64::from(second), 1.0), Some(0));
            }
            samples.taken += 1;
        }
        assert!((Samples::MAX / 2..Samples::MAX).contains(&samples.kept.len()), "{}", samples.kept.len());
        assert_eq!(samples.kept.len(), samples.device.len());
        let gaps = samples.kept.windows(2).map(|pair| pair[1].seconds - pair[0].seconds);
        assert!(gaps.clone().all(|gap| (1.0..=16.0).contains(&gap)), "{:?}", gaps.collect::<Vec<_>>());
        assert!(samples.kept.last().is_some_and(|last| last.seconds > 19_980.0));
    }

    #[test]
    fn the_mean_is_one_over_time() {
        assert_eq!(mean_sar(&[]), None);
        assert_eq!(mean_sar(&[sample(1.0, 3.0)]), Some(3.0));
        assert_eq!(mean_sar(&[sample(0.0, 1.0), sample(9.0, 1.0), sample(10.0, 3.0)]), Some(1.1));
    }

    #[test]
    fn the_highest_ratio_is_not_lost_with_the_sample() {
        let directory = tempfile::tempdir().unwrap();
        let mut samples = Samples::of(Some(directory.path()));
        let live = Some(LiveData { keys: 1, bytes: 100.0 });
        for bytes in [100usize, 500, 200] {
            std::fs::write(directory.path().join("file"), vec![0; bytes]).unwrap();
            let (one, _) = samples.measure(Duration::ZERO, (0, 0), live, None);
            assert_eq!(one.sar, Some(bytes as f64 / 100.0));
        }
        assert_eq!((samples.kept.len(), samples.sar_max), (0, Some(5.0)));
    }
}
