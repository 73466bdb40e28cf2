//! Where the joules went.

use std::collections::BTreeSet;

use super::{
    super::{
        format::microjoules,
        page::legend,
        palette::{self, INK},
    },
    canvas::{Axis, Frame, Place, plot},
    for_each_server, hardware, panel, policy_name,
};
use crate::lab::LabReport;

/// Height of a bar with the gap to the next.
const BAR_HEIGHT: f64 = 30.0;
/// Share of that height that is filled.
const FILLED: f64 = 0.62;

/// Joules by duty: a bar for each policy on each server, with energy per operation at its end.
pub(in super::super) fn energy(report: &LabReport) -> String {
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
        let sums: Vec<_> = runs.iter().filter_map(|(place, run)| Some((*place, run.sums.as_ref()?))).collect();
        let most = sums.iter().map(|(_, sums)| sums.energy_joules).fold(0.0, f64::max);
        let height = 62.0 + BAR_HEIGHT * sums.len() as f64;
        let name = format!("Energy of {server} by duty");
        let frame = Frame { name: &name, height, left: 68.0, sideways: true, ..Frame::default() };
        // Room for the words at a bar's end.
        let x = Axis::exactly("joules", most * 1.32);
        let mut y = Axis::names("", sums.iter().map(|(place, _)| policy_name(report, *place).to_owned()));
        // The first policy stands at the top.
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
                canvas.words((from.max(sums.energy_joules), middle), Place::Right, &label, INK, 10.5)?;
            }
            Ok(())
        });
        panel(server, &hardware(report, server), &svg, "")
    });
    legend(duties.iter().map(|duty| (*duty, palette::duty(duty)))) + &body
}
