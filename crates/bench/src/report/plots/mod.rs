//! The plots of a report. Each function returns the body of a figure: panels with an SVG each.

mod bars;
mod canvas;
mod colocated;
mod energy;
mod models;
mod stalls;
mod store;
mod timeline;

pub(super) use bars::relative;
pub(super) use colocated::colocated;
pub(super) use energy::energy;
pub(super) use models::models;
pub(super) use stalls::stalls;
pub(super) use store::store;
pub(super) use timeline::{input_rate, l0_tables, throughput};

use super::{html::escaped, palette};
use crate::lab::{LabReport, ServerRecording};

/// A panel: a heading, its plot, and a note below.
fn panel(heading: &str, aside: &str, plot: &str, note: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!("<p class=\"note\">{note}</p>") };
    format!("<div class=\"panel\"><h4>{} <span>{}</span></h4>{plot}{note}</div>", escaped(heading), escaped(aside))
}

/// Panels side by side.
fn panels(panels: impl IntoIterator<Item = String>) -> String {
    format!("<div class=\"panels\">{}</div>", panels.into_iter().collect::<String>())
}

/// Panels side by side, twice as wide.
fn wide_panels(panels: impl IntoIterator<Item = String>) -> String {
    format!("<div class=\"panels wide\">{}</div>", panels.into_iter().collect::<String>())
}

/// A panel for each server, with what it recorded under each policy.
fn for_each_server(report: &LabReport, mut one: impl FnMut(&str, &[(usize, &ServerRecording)]) -> String) -> String {
    panels(report.emulated.servers.iter().map(|server| one(&server.name, &recordings(report, &server.name))))
}

/// What a server recorded under each policy, with the policy's place.
fn recordings<'a>(report: &'a LabReport, server: &str) -> Vec<(usize, &'a ServerRecording)> {
    let runs = report.recording.runs.iter().enumerate();
    runs.filter_map(|(place, run)| Some((place, run.servers.iter().find(|one| one.server == server)?))).collect()
}

/// The emulated hardware of a server, in a few words.
fn hardware(report: &LabReport, server: &str) -> String {
    let server = report.emulated.servers.iter().find(|one| one.name == server);
    server.map_or_else(String::new, |server| format!("{} cores of {:.2}", server.cores, server.speed))
}

/// The name of the policy that was run at this place.
fn policy_name(report: &LabReport, place: usize) -> &str {
    report.recording.runs.get(place).map_or("", |run| run.policy.as_str())
}

/// The colour of the policy that was run at this place.
fn policy_colour(report: &LabReport, place: usize) -> palette::Colour {
    palette::policy(policy_name(report, place), place)
}
