//! Reports of a lab: tables for a terminal and one self-contained page with plots.
//!
//! Everything here is a pure function of a report and what the caller says about it; nothing reads
//! a clock or a file.

mod matrix;
mod page;
mod papers;
mod plots;
mod tables;

pub use page::html;

use crate::summary::LabReport;

/// The results as a table for a terminal: a row for each server of each policy and one for all of
/// them.
pub fn results_text(report: &LabReport) -> String {
    tables::results(report).text()
}

/// The errors of the models as a table for a terminal.
pub fn models_text(report: &LabReport) -> String {
    tables::models(report).text()
}

/// The results beside the papers' figures, as a table for a terminal; none where the papers have
/// nothing on this workload and these policies.
pub fn papers_text(report: &LabReport) -> Option<String> {
    let table = papers::table(report);
    (!table.is_empty()).then(|| table.text())
}
