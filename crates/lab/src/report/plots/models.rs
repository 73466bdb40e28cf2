//! How the models' errors fall as they learn.

use std::collections::BTreeMap;

use ecotone_bench::report::canvas::{Axis, Frame, LabelPosition, plot};
use ecotone_bench::report::palette::{AXIS, INK, MARK};
use ecotone_bench::report::{panel, wide_panels};
use ecotone_server::record::Job;

use super::policy_colour;
use crate::model_errors::COUNTED_FROM_TRAININGS;
use crate::model_errors::job_errors;
use crate::summary::LabReport;

/// Trainings whose mean is one point of the strong line.
const BIN_TRAININGS: u64 = 5;
/// Least range of the horizontal axis, so that few jobs do not look like many.
const MIN_TRAININGS: f64 = 40.0;
/// The vertical axis ends here at the latest; what is above is drawn at its edge.
const MAX_PERCENT: f64 = 100.0;
/// What ECO-KVS reports after 20 trainings, section VII-C, Fig. 10(c) and (d).
const PUBLISHED_PERCENT: [f64; 2] = [3.9, 4.2];

/// The error of every forecast of time and of energy by how many jobs its model had learned from.
pub(in crate::report) fn models(report: &LabReport) -> String {
    let time = errors(report, "Time of a compaction", PUBLISHED_PERCENT[0], |job| job_errors(job).0);
    let energy = errors(report, "Energy of a compaction", PUBLISHED_PERCENT[1], |job| job_errors(job).1);
    wide_panels([time, energy])
}

fn errors(report: &LabReport, heading: &str, published_percent: f64, error: fn(&Job) -> Option<f64>) -> String {
    let series: Vec<(usize, Vec<(u64, f64)>)> = (report.recording.runs.iter().enumerate())
        .map(|(index, run)| {
            let jobs = run.servers.iter().flat_map(|server| &server.jobs);
            (index, jobs.filter_map(|job| Some((job.trainings, error(job)? * 100.0))).collect())
        })
        .collect();
    let means: Vec<(usize, Vec<(f64, f64)>)> = series.iter().map(|(index, points)| (*index, binned(points))).collect();
    let trainings =
        series.iter().flat_map(|(_, points)| points).map(|point| point.0 as f64).fold(MIN_TRAININGS, f64::max);
    let highest = means.iter().flat_map(|(_, line)| line).map(|point| point.1).fold(12.0, f64::max);
    let most = (highest * 1.3).min(MAX_PERCENT);
    let frame =
        Frame { name: &format!("{heading}: error of forecasts"), width: 560.0, height: 250.0, ..Frame::default() };
    let x = Axis::exactly("jobs the model had learned from", trainings);
    let y = Axis::from_zero("error of the forecast, %", most);
    let any = series.iter().any(|(_, points)| !points.is_empty());
    let svg = plot(frame, &x, &y, |canvas| {
        for (index, points) in &series {
            for (trainings, percent) in points {
                canvas.dot((*trainings as f64, percent.min(y.to)), policy_colour(report, *index), 0.28, 2.0)?;
            }
        }
        let counted = COUNTED_FROM_TRAININGS as f64;
        canvas.dashes((counted, 0.0), (counted, y.to), AXIS)?;
        canvas.label((counted, y.to * 0.95), LabelPosition::Right, "counted from here", INK, 10.0)?;
        canvas.dashes((0.0, published_percent), (trainings, published_percent), MARK)?;
        for (index, line) in means {
            let line: Vec<(f64, f64)> = line.into_iter().map(|(at, percent)| (at, percent.min(y.to))).collect();
            for point in &line {
                canvas.dot(*point, policy_colour(report, index), 1.0, 2.6)?;
            }
            canvas.line(line, policy_colour(report, index), 1.0, 2.0)?;
        }
        if !any {
            canvas.label((trainings / 2.0, most / 2.0), LabelPosition::Above, "nothing was predicted", INK, 12.0)?;
        }
        Ok(())
    });
    panel(heading, &format!("red: {published_percent} % in ECO-KVS"), &svg, "")
}

/// Means of equally wide ranges of trainings, at their middles.
fn binned(points: &[(u64, f64)]) -> Vec<(f64, f64)> {
    let mut bins = BTreeMap::<u64, (f64, u64)>::new();
    for (trainings, percent) in points {
        let bin = bins.entry(trainings / BIN_TRAININGS).or_default();
        *bin = (bin.0 + percent, bin.1 + 1);
    }
    let middle = |bin: u64| (bin * BIN_TRAININGS) as f64 + (BIN_TRAININGS - 1) as f64 / 2.0;
    bins.into_iter().map(|(bin, (sum, count))| (middle(bin), sum / count as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_means_at_their_middle() {
        assert_eq!(binned(&[(0, 10.0), (4, 20.0), (5, 1.0), (23, 3.0)]), [(2.0, 15.0), (7.0, 1.0), (22.0, 3.0)]);
    }
}
