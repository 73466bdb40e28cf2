//! What changes from second to second.

use ecotone_bench::report::canvas::{Axis, Frame, plot};
use ecotone_bench::report::palette::{Colour, MARK};
use ecotone_bench::report::panel;
use ecotone_server::record::Sample;

use super::{for_each_server, hardware, policy_colour};
use crate::summary::LabReport;

/// Seconds of the mean that is drawn over the single seconds.
const SMOOTHED_OVER_S: usize = 5;
/// Shorter samples are not drawn.
const MIN_SAMPLE_S: f64 = 0.5;
/// The colour of what was predicted.
const PREDICTED: Colour = Colour(0xd6, 0x2e, 0x74);
/// The colour of what came.
const REAL: Colour = Colour(0x64, 0x74, 0x8b);

/// Operations per second of each server; a faint line for single seconds, a strong one for their
/// mean.
pub(in crate::report) fn throughput(report: &LabReport) -> String {
    for_each_server(report, |server, runs| {
        let series: Vec<(usize, Vec<(f64, f64)>)> =
            runs.iter().map(|(index, run)| (*index, ops_per_s(&run.samples))).collect();
        let most = series.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(0.0, f64::max);
        let frame = Frame { name: &format!("Throughput of {server} over time"), ..Frame::default() };
        let axes =
            (Axis::exactly("seconds since start", length(report)), Axis::from_zero("operations per second", most));
        let svg = plot(frame, &axes.0, &axes.1, |canvas| {
            for (index, points) in &series {
                canvas.line(points.clone(), policy_colour(report, *index), 0.22, 1.0)?;
            }
            for (index, points) in &series {
                canvas.line(smoothed(points), policy_colour(report, *index), 1.0, 2.0)?;
            }
            Ok(())
        });
        panel(server, &hardware(report, server), &svg, "")
    })
}

/// Tables in level 0 of each server, with the stall threshold.
pub(in crate::report) fn l0_tables(report: &LabReport) -> String {
    let threshold = f64::from(report.emulated.store.l0_slowdown_trigger);
    for_each_server(report, |server, runs| {
        let tables = runs.iter().flat_map(|(_, run)| &run.samples).map(|sample| sample.l0_tables as f64);
        let most = tables.fold(threshold * 1.15, f64::max);
        let frame = Frame { name: &format!("Tables in level 0 of {server} over time"), ..Frame::default() };
        let axes = (Axis::exactly("seconds since start", length(report)), Axis::from_zero("tables in level 0", most));
        let svg = plot(frame, &axes.0, &axes.1, |canvas| {
            for (index, run) in runs {
                let points = run.samples.iter().map(|sample| (sample.at_s, sample.l0_tables as f64)).collect();
                canvas.line(points, policy_colour(report, *index), 0.95, 1.6)?;
            }
            canvas.dashes((0.0, threshold), (length(report), threshold), MARK)
        });
        panel(server, &hardware(report, server), &svg, "")
    })
}

/// Input rate of each server, real and as predicted one second before, under the last policy that
/// predicted any. With that policy's name; none if no policy did.
pub(in crate::report) fn input_rate(report: &LabReport) -> Option<(String, String)> {
    let predicts = |sample: &Sample| sample.input_rate_predicted_bytes_per_s.is_some();
    let index = (report.recording.runs.iter())
        .rposition(|run| run.servers.iter().any(|server| server.samples.iter().any(predicts)))?;
    let body = for_each_server(report, |server, runs| {
        let Some((_, run)) = runs.iter().find(|(one, _)| *one == index) else { return String::new() };
        const MEGABYTE: f64 = 1e6;
        let real: Vec<(f64, f64)> =
            run.samples.iter().map(|sample| (sample.at_s, sample.input_rate_bytes_per_s / MEGABYTE)).collect();
        let predicted: Vec<(f64, f64)> = (run.samples.iter())
            .filter_map(|sample| Some((sample.at_s, sample.input_rate_predicted_bytes_per_s? / MEGABYTE)))
            .collect();
        let most = real.iter().chain(&predicted).map(|point| point.1).fold(0.0, f64::max);
        let frame = Frame { name: &format!("Input rate of {server}, real and predicted"), ..Frame::default() };
        let axes = (Axis::exactly("seconds since start", length(report)), Axis::from_zero("input rate, MB/s", most));
        let svg = plot(frame, &axes.0, &axes.1, |canvas| {
            canvas.below(&real, REAL, 0.18)?;
            canvas.line(real.clone(), REAL, 0.9, 1.2)?;
            canvas.line(predicted.clone(), PREDICTED, 1.0, 1.6)
        });
        panel(server, &hardware(report, server), &svg, "")
    });
    let legend = ecotone_bench::report::legend([("real", REAL), ("predicted one second before", PREDICTED)]);
    Some((super::policy_name(report, index).to_owned(), legend + &body))
}

/// The end of the horizontal axis.
fn length(report: &LabReport) -> f64 {
    report.seconds as f64
}

/// Operations of each sample by the time since the one before. A much shorter one, such as at the
/// very start, would only show how the clocks of driver and monitor differ.
fn ops_per_s(samples: &[Sample]) -> Vec<(f64, f64)> {
    let mut before = 0.0;
    let mut points = Vec::with_capacity(samples.len());
    for sample in samples {
        let seconds = sample.at_s - before;
        before = sample.at_s;
        if seconds >= MIN_SAMPLE_S {
            points.push((sample.at_s, sample.ops as f64 / seconds));
        }
    }
    points
}

/// The mean of each point and its neighbours, of equally many on both sides.
fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let reach = SMOOTHED_OVER_S / 2;
    (0..points.len())
        .map(|at| {
            let reach = reach.min(at).min(points.len() - 1 - at);
            let window = &points[at - reach..=at + reach];
            (points[at].0, window.iter().map(|point| point.1).sum::<f64>() / window.len() as f64)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_by_real_time_between_samples() {
        let sample = |at_s, ops| Sample { at_s, ops, ..Sample::default() };
        let points =
            ops_per_s(&[sample(0.01, 0), sample(1.01, 100), sample(3.01, 100), sample(3.01, 7), sample(3.51, 100)]);
        let points: Vec<(f64, f64)> = points.into_iter().map(|(at_s, rate)| (at_s, rate.round())).collect();
        assert_eq!(points, [(1.01, 100.0), (3.01, 50.0), (3.51, 200.0)]);
    }

    #[test]
    fn smoothing_keeps_ends_and_level() {
        let points: Vec<(f64, f64)> =
            [0.0, 10.0, 0.0, 10.0, 0.0].into_iter().enumerate().map(|(x, y)| (x as f64, y)).collect();
        let smooth = smoothed(&points);
        assert_eq!((smooth[0], smooth[2].1, smooth[4]), ((0.0, 0.0), 4.0, (4.0, 0.0)));
        assert!(smoothed(&[]).is_empty());
    }
}
