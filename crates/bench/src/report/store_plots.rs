//! One store from second to second.

use super::canvas::{Axis, Frame, plot};
use super::palette;
use super::{panel, wide_panels};
use crate::command::{BenchReport, Sample};

const MIB: f64 = (1 << 20) as f64;

/// Samples that follow sooner, such as the last of a run, would only show how clocks differ.
const MIN_SAMPLE_S: f64 = 0.5;

/// Write amplification, space amplification and throughput of each run, and what newer versions
/// shadow where that is known.
pub(super) fn store(reports: &[BenchReport]) -> String {
    let ratio = |value: fn(&Sample) -> Option<f64>| {
        move |report: &BenchReport| {
            report.samples.iter().filter_map(|sample| Some((sample.seconds, value(sample)?))).collect()
        }
    };
    let hidden = ratio(|sample| sample.shadowed_bytes.map(|bytes| bytes as f64 / MIB));
    let knows = |report: &BenchReport| report.samples.iter().any(|sample| sample.shadowed_bytes.is_some());
    let hidden = (reports.iter().any(knows))
        .then(|| one(reports, "Shadowed by newer versions", "lower is better", "MiB, as estimated", hidden));
    let panels = [
        one(reports, "Space amplification", "lower is better", "SAR", ratio(|sample| sample.sar)),
        one(reports, "Write amplification", "lower is better", "WAR", ratio(|sample| sample.war)),
        one(reports, "Throughput", "higher is better", "operations per second", ops_per_s),
    ];
    wide_panels(panels.into_iter().chain(hidden))
}

fn one(
    reports: &[BenchReport],
    heading: &str,
    aside: &str,
    axis: &str,
    points: impl Fn(&BenchReport) -> Vec<(f64, f64)>,
) -> String {
    let lines: Vec<_> = reports.iter().map(|report| (palette::target(report.target), points(report))).collect();
    let greatest =
        |value: fn(&(f64, f64)) -> f64| lines.iter().flat_map(|(_, points)| points).map(value).fold(0.0, f64::max);
    let name = format!("{heading} over time");
    let frame = Frame { name: &name, width: 560.0, height: 236.0, ..Frame::default() };
    let x = Axis::exactly("seconds since the begin of the measured part", greatest(|point| point.0));
    let y = Axis::from_zero(axis, greatest(|point| point.1));
    let svg = plot(frame, &x, &y, |canvas| {
        lines.iter().try_for_each(|(colour, points)| canvas.line(points.clone(), *colour, 0.9, 1.6))
    });
    panel(heading, aside, &svg, "")
}

/// Operations of each sample by the time since the one before.
fn ops_per_s(report: &BenchReport) -> Vec<(f64, f64)> {
    let (mut seconds, mut ops) = (0.0, 0);
    let mut points = Vec::with_capacity(report.samples.len());
    for sample in &report.samples {
        let passed = sample.seconds - seconds;
        if passed >= MIN_SAMPLE_S {
            points.push((sample.seconds, sample.ops.saturating_sub(ops) as f64 / passed));
            (seconds, ops) = (sample.seconds, sample.ops);
        }
    }
    points
}
