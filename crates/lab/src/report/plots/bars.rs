//! How each policy compares with `local`, as in the papers' bar charts.

use ecotone_bench::report::canvas::{Axis, Frame, LabelPosition, plot};
use ecotone_bench::report::palette::{self, INK, MARK};
use ecotone_bench::report::{panel, wide_panels};

use crate::summary::LabReport;
use crate::summary::PolicyRun;
use crate::summary::Relative;

/// Share of a group's width that its bars take.
const FILLED: f64 = 0.82;
/// Narrower bars have no space for a number.
const MIN_LABELLED_WIDTH: f64 = 26.0;
/// Bars beyond this are cut, with their number above, so that one outlier does not flatten the
/// rest.
const MAX: f64 = 2.0;

/// Throughput, stall time and energy per operation of each server and of all, as quotients to
/// `local`. Empty without a run of `local`, or with nothing to compare.
pub(in crate::report) fn relative(report: &LabReport) -> String {
    let runs: Vec<(usize, &PolicyRun)> =
        report.runs.iter().enumerate().filter(|(_, run)| run.total.relative.is_some()).collect();
    if runs.is_empty() {
        return String::new();
    }
    let mixed = report.runs.iter().any(|run| run.total.reads_per_s > 0.0 && run.total.writes_per_s > 0.0);
    let mut plots = Vec::new();
    let mut add = |heading: &str, aside: &str, value: fn(&Relative) -> Option<f64>| {
        plots.push(panel(heading, aside, &grouped(report, &runs, heading, value), ""));
    };
    if mixed {
        add("Writes per second", "higher is better", |relative| relative.writes_per_s);
        add("Reads per second", "higher is better", |relative| relative.reads_per_s);
    } else {
        add("Throughput", "higher is better", |relative| relative.ops_per_s);
    }
    add("Energy per operation", "lower is better", |relative| relative.epo_uj);
    add("Stall time", "lower is better", |relative| relative.stall_ms);
    add("Processor time per operation", "lower is better", |relative| relative.cpu_seconds_per_op);
    wide_panels(plots)
}

fn grouped(
    report: &LabReport,
    runs: &[(usize, &PolicyRun)],
    name: &str,
    value: fn(&Relative) -> Option<f64>,
) -> String {
    let mut groups: Vec<String> = report.emulated.servers.iter().map(|server| server.name.clone()).collect();
    groups.push("total".to_owned());
    let quotient = |run: &PolicyRun, group: usize| {
        let server = run.servers.get(group).and_then(|server| server.relative.as_ref());
        let relative = if group + 1 == groups.len() { run.total.relative.as_ref() } else { server };
        relative.and_then(value)
    };
    let values = runs.iter().flat_map(|(_, run)| (0..groups.len()).filter_map(|group| quotient(run, group)));
    let most = values.fold(1.15, f64::max).min(MAX);
    let frame = Frame { name: &format!("{name} relative to local"), width: 560.0, height: 236.0, ..Frame::default() };
    let x = Axis::names("", groups.clone());
    let y = Axis::from_zero("relative to local", most * 1.04);
    let width = FILLED / runs.len() as f64;
    let shown_width = width * (frame.width - frame.left) / groups.len() as f64;
    plot(frame, &x, &y, |canvas| {
        let mut labels = Vec::new();
        for group in 0..groups.len() {
            for (order, (index, run)) in runs.iter().enumerate() {
                let from = group as f64 - FILLED / 2.0 + order as f64 * width;
                let middle = from + width / 2.0;
                let Some(quotient) = quotient(run, group) else {
                    labels.push(((middle, 0.0), "-".to_owned()));
                    continue;
                };
                let top = quotient.min(most);
                let gap = width * 0.08;
                canvas.bar((from + gap, 0.0), (from + width - gap, top), palette::policy(&run.policy, *index))?;
                if shown_width >= MIN_LABELLED_WIDTH {
                    // Whole percents are what fits above a bar. Adding zero takes the sign from a
                    // rounded `-0`.
                    let label = format!("{:+.0}%", ((quotient - 1.0) * 100.0).round() + 0.0);
                    labels.push(((middle, top), label));
                }
            }
        }
        canvas.dashes((x.from, 1.0), (x.to, 1.0), MARK)?;
        // Above everything, or the red line would cross them out.
        labels.iter().try_for_each(|(at, label)| canvas.label(*at, LabelPosition::Above, label, INK, 9.5))
    })
}
