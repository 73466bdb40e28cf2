//! Who worked for whom: for each policy a table of owners and workers.

use std::{collections::BTreeMap, fmt::Write};

use ecotone_bench::report::format::{bytes, escaped};
use ecotone_bench::report::palette;

use crate::recording::PolicyRecording;
use crate::summary::LabReport;

/// Compactions that one server ran for another, or for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    jobs: u64,
    input_bytes: u64,
}

/// A table for each policy under which anyone worked for another: a row for each owner, a column
/// for each worker, numbers and bytes of compactions in the cells, the more the darker. Policies
/// under which nobody did are named in a line.
pub(super) fn who_worked_for_whom(report: &LabReport) -> String {
    let mut at_home: Vec<String> = Vec::new();
    let names: Vec<&str> = report.emulated.servers.iter().map(|server| server.name.as_str()).collect();
    let mut text = String::from("<div class=\"panels matrices\">");
    for (index, run) in report.recording.runs.iter().enumerate() {
        let work = work(run);
        let away = work.iter().filter(|((owner, worker), _)| owner != worker).map(|(_, work)| work.jobs);
        let Some(most) = away.max() else {
            let jobs: u64 = work.values().map(|work| work.jobs).sum();
            at_home.push(format!("<b>{}</b> ({jobs})", escaped(&run.policy)));
            continue;
        };
        let colour = palette::policy(&run.policy, index);
        let policy = escaped(&run.policy);
        // Writing to a string cannot fail.
        let _ = write!(text, "<div class=\"panel\"><h4><i style=\"background:{}\"></i>{policy}</h4>", colour.css());
        text += "<table class=\"matrix\"><thead><tr><th>owner \\ worker</th>";
        for name in &names {
            let _ = write!(text, "<th>{}</th>", escaped(name));
        }
        text += "</tr></thead><tbody>";
        for owner in &names {
            let _ = write!(text, "<tr><th>{}</th>", escaped(owner));
            for worker in &names {
                text += &cell(work.get(&(*owner, *worker)).copied(), owner == worker, most, colour);
            }
            text += "</tr>";
        }
        text += "</tbody></table></div>";
    }
    text += "</div>";
    if !at_home.is_empty() {
        let _ = write!(text, "<p>All compactions ran at home under {}.</p>", at_home.join(", "));
    }
    text
}

fn cell(work: Option<Work>, own: bool, most: u64, colour: palette::Colour) -> String {
    let Some(work) = work else { return "<td class=\"none\">·</td>".to_owned() };
    let words = format!("<b>{}</b><small>{}</small>", work.jobs, bytes(work.input_bytes));
    if own {
        return format!("<td class=\"own\">{words}</td>");
    }
    // Light enough at its strongest for dark words on it.
    let strength = 0.12 + 0.43 * work.jobs as f64 / most as f64;
    format!("<td style=\"background:{}\">{words}</td>", colour.css_with(strength))
}

/// Compactions by (owner, worker).
fn work(run: &PolicyRecording) -> BTreeMap<(&str, &str), Work> {
    let mut work = BTreeMap::<(&str, &str), Work>::new();
    for job in run.servers.iter().flat_map(|server| &server.jobs) {
        let one = work.entry((&job.owner, &job.worker)).or_default();
        one.jobs += 1;
        one.input_bytes += job.input_bytes;
    }
    work
}
