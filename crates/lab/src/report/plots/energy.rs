//! Where the joules went.

use std::collections::BTreeSet;

use ecotone_bench::report::canvas::{Axis, Frame, LabelPosition, plot};
use ecotone_bench::report::format::microjoules;
use ecotone_bench::report::palette::{self, INK};
use ecotone_bench::report::{legend, panel};

use super::{for_each_server, hardware, policy_name};
use crate::summary::LabReport;

/// Height of a bar with the gap to the next.
const BAR_HEIGHT: f64 = 30.0;
/// Share of that height that is filled.
const FILLED: f64 = 0.62;

/// Joules by duty: a bar for each policy on each server, with energy per operation at its end.
pub(in crate::report) fn energy(report: &LabReport) -> String {
    let mut duties: Vec<&str> = (report.recording.runs.iter())
        .flat_map(|run| &run.servers)
        .filter_map(|server| server.sums.as_ref())
        .flat_map(|sums| sums.energy_joules_by_duty.iter().filter(|(_, joules)| **joules > 0.0))
        .map(|(duty, _)| duty.as_str())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    duties.sort_by_key(|duty| palette::duty_place(duty));
    let body = for_each_server(report, |server, runs| {
        let sums: Vec<_> = runs.iter().filter_map(|(index, run)| Some((*index, run.sums.as_ref()?))).collect();
        let most = sums.iter().map(|(_, sums)| sums.energy_joules).fold(0.0, f64::max);
        let height = 62.0 + BAR_HEIGHT * sums.len() as f64;
        let name = format!("Energy of {server} by duty");
        let frame = Frame { name: &name, height, left: 68.0, sideways: true, ..Frame::default() };
        // Space for the words at a bar's end.
        let x = Axis::exactly("joules", most * 1.32);
        let mut y = Axis::names("", sums.iter().map(|(index, _)| policy_name(report, *index).to_owned()));
        // The first policy is at the top.
        let last = sums.len().max(1) as f64 - 1.0;
        y.ticks.iter_mut().for_each(|tick| tick.0 = last - tick.0);
        let svg = plot(frame, &x, &y, |canvas| {
            for (row, (_, sums)) in sums.iter().enumerate() {
                let middle = last - row as f64;
                let mut from = 0.0;
                for duty in &duties {
                    let joules = sums.energy_joules_by_duty.get(*duty).copied().unwrap_or(0.0).max(0.0);
                    let corners = ((from, middle - FILLED / 2.0), (from + joules, middle + FILLED / 2.0));
                    canvas.bar(corners.0, corners.1, palette::duty(duty))?;
                    from += joules;
                }
                let epo_uj = (sums.ops > 0).then(|| sums.energy_joules * 1e6 / sums.ops as f64);
                let label = format!("{} µJ/op", microjoules(epo_uj));
                canvas.label((from.max(sums.energy_joules), middle), LabelPosition::Right, &label, INK, 10.5)?;
            }
            Ok(())
        });
        panel(server, &hardware(report, server), &svg, "")
    });
    legend(duties.iter().map(|duty| (*duty, palette::duty(duty)))) + &body
}
