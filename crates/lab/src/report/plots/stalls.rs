//! How long single stalls are.

use ecotone_bench::report::canvas::{Axis, Frame, LabelPosition, plot};
use ecotone_bench::report::format::escaped;
use ecotone_bench::report::palette::INK;
use ecotone_bench::report::panel;

use super::{for_each_server, hardware, policy_colour, policy_name};
use crate::recording::ServerRecording;
use crate::summary::LabReport;

/// The share of stalls that are no longer than so long, for each server. The horizontal axis is
/// logarithmic.
pub(in crate::report) fn stalls(report: &LabReport) -> String {
    for_each_server(report, |server, runs| {
        let curves: Vec<(usize, Vec<(f64, f64)>)> =
            runs.iter().map(|(index, run)| (*index, distribution(durations(run)))).collect();
        let longest = curves.iter().filter_map(|(_, curve)| curve.last()).map(|point| point.0).fold(2.0, f64::max);
        let decades = longest.ceil();
        let ticks = (0..=decades as i32).map(|decade| (f64::from(decade), duration(decade))).collect();
        let x = Axis { title: "length of a stall".to_owned(), from: 0.0, to: decades, ticks };
        let mut y = Axis::exactly("share of stalls that are no longer", 1.03);
        y.ticks = [0, 25, 50, 75, 100].map(|percent| (f64::from(percent) / 100.0, format!("{percent} %"))).to_vec();
        let frame = Frame { name: &format!("Distribution of stall lengths on {server}"), ..Frame::default() };
        let stalled = curves.iter().any(|(_, curve)| !curve.is_empty());
        let svg = plot(frame, &x, &y, |canvas| {
            for (index, curve) in &curves {
                canvas.line(curve.clone(), policy_colour(report, *index), 0.95, 2.0)?;
                if let Some(end) = curve.last() {
                    canvas.dot(*end, policy_colour(report, *index), 1.0, 3.2)?;
                }
            }
            if !stalled {
                canvas.label((decades / 2.0, 0.45), LabelPosition::Above, "no stall under any policy", INK, 12.0)?;
            }
            Ok(())
        });
        let counts = runs.iter().map(|(index, run)| {
            let count = durations(run).len();
            let policy = escaped(policy_name(report, *index));
            let total_s = run.sums.as_ref().map_or(0.0, |sums| sums.stall_ms / 1e3);
            if count == 0 { format!("{policy}: none") } else { format!("{policy}: {count} ({total_s:.1} s)") }
        });
        let note = if stalled { counts.collect::<Vec<_>>().join(" · ") } else { String::new() };
        panel(server, &hardware(report, server), &svg, &note)
    })
}

fn durations(run: &ServerRecording) -> &[f64] {
    run.sums.as_ref().map_or(&[], |sums| &sums.stalls)
}

/// Steps of (decimal logarithm of milliseconds, share of stalls no longer); what is below a
/// millisecond counts as one.
fn distribution(durations_ms: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted: Vec<f64> =
        durations_ms.iter().copied().filter(|one| one.is_finite()).map(|one| one.max(1.0)).collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let mut steps = Vec::with_capacity(2 * sorted.len());
    for (index, duration) in sorted.iter().enumerate() {
        steps.push((duration.log10(), index as f64 / count));
        steps.push((duration.log10(), (index + 1) as f64 / count));
    }
    steps
}

/// A power of ten of milliseconds in words.
fn duration(decade: i32) -> String {
    if decade < 3 {
        format!("{} ms", 10i64.pow(decade.max(0) as u32))
    } else {
        format!("{} s", 10i64.pow(decade as u32 - 3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_rises_from_zero_to_one() {
        assert_eq!(distribution(&[1000.0, 10.0]), [(1.0, 0.0), (1.0, 0.5), (3.0, 0.5), (3.0, 1.0)]);
        assert_eq!(distribution(&[0.1]), [(0.0, 0.0), (0.0, 1.0)]);
        assert!(distribution(&[]).is_empty() && distribution(&[f64::NAN]).is_empty());
    }

    #[test]
    fn decades_read_well() {
        assert_eq!([0, 2, 3, 5].map(duration), ["1 ms", "100 ms", "1 s", "100 s"]);
    }
}
