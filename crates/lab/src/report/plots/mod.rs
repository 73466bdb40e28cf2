//! The plots of a report. Each function returns the body of a figure: panels with an SVG each.

mod bars;
mod colocated;
mod energy;
mod models;
mod stalls;
mod timeline;

pub(super) use bars::relative;
pub(super) use colocated::colocated;
pub(super) use energy::energy;
pub(super) use models::models;
pub(super) use stalls::stalls;
pub(super) use timeline::{input_rate, l0_tables, throughput};

use ecotone_bench::report::palette;
use ecotone_bench::report::panels;

use crate::recording::ServerRecording;
use crate::summary::LabReport;

/// A panel for each server, with what it recorded under each policy.
fn for_each_server(report: &LabReport, mut one: impl FnMut(&str, &[(usize, &ServerRecording)]) -> String) -> String {
    panels(report.emulated.servers.iter().map(|server| one(&server.name, &recordings(report, &server.name))))
}

/// What a server recorded under each policy, with the policy's index.
fn recordings<'a>(report: &'a LabReport, server: &str) -> Vec<(usize, &'a ServerRecording)> {
    let runs = report.recording.runs.iter().enumerate();
    runs.filter_map(|(index, run)| Some((index, run.servers.iter().find(|one| one.server == server)?))).collect()
}

/// The emulated hardware of a server, in a few words.
fn hardware(report: &LabReport, server: &str) -> String {
    let server = report.emulated.servers.iter().find(|one| one.name == server);
    server.map_or_else(String::new, |server| format!("{} cores of {:.2}", server.cores, server.speed))
}

/// The name of the policy that was run at this index.
fn policy_name(report: &LabReport, index: usize) -> &str {
    report.recording.runs.get(index).map_or("", |run| run.policy.as_str())
}

/// The colour of the policy that was run at this index.
fn policy_colour(report: &LabReport, index: usize) -> palette::Colour {
    palette::policy(policy_name(report, index), index)
}
