//! `ecotone bench`: one run, or a comparison of our store with another target, as text and as JSON.
//!
//! The command line itself is the binary's. A comparison runs each target in a process of its own, so that memory and
//! processor time are its own: the binary starts itself again with [`CHILD_FLAG`] and one argument, and passes that argument to
//! [`run_child`].

mod compare;
mod cores;
mod duplicates;
mod options;
mod report;
mod run;
mod samples;
mod served;
mod table;

pub use compare::{CHILD_FLAG, ComparedRound, Comparison, Ratios, run_child, run_compare};
pub use duplicates::DuplicateFigures;
pub use options::{BenchOptions, DEFAULT_ROUNDS};
pub use report::{BenchReport, ServerFigures};
pub use run::{BenchProgress, run_bench};
pub use samples::Sample;
pub use table::{comparison_table, report_table};

#[cfg(test)]
mod tests;
