//! `ecotone bench`: one run, or a comparison of our store with another target, as text and as JSON.
//!
//! The command line itself is the binary's. A comparison runs each target in a process of its own,
//! so that memory and processor time are its own: the binary starts itself again with
//! [`CHILD_FLAG`] and one argument, and runs the [`child_options`] in it.

mod compare;
mod duplicates;
mod options;
mod report;
mod run;
mod samples;
mod served;
mod table;

pub use compare::{CHILD_FLAG, ComparedRound, Comparison, Ratios, child_options, run_compare};
pub use duplicates::DuplicateFigures;
pub use options::{BenchOptions, CORE_LIMITS, DEFAULT_ROUNDS};
pub use report::{BenchReport, ServerFigures};
pub use run::BenchProgress;
pub use samples::Sample;
pub use table::{comparison_table, report_table};

use crate::Result;

/// Runs one workload against one target and waits for the end: a store in this process, or a
/// server.
///
/// `progress` is called on this thread. The figures of memory and processor time of a store in this
/// process are those of the process: for clean ones nothing else should run in it.
///
/// # Errors
///
/// [`Error::Options`](crate::Error::Options) before anything was written; else what the target or
/// the file system said.
pub fn run_bench(options: &BenchOptions, progress: impl FnMut(&BenchProgress)) -> Result<BenchReport> {
    options.validate()?;
    match &options.server {
        Some(server) => served::run_served(options, server, progress),
        None => run::run_here(options, progress),
    }
}

#[cfg(test)]
mod tests;
