//! Workloads, baselines, the lab of unequal servers, reports and plots.
//!
//! What must never be here: anything a server needs to serve. The lab talks to servers only through their command line,
//! their standard input and the records they print ([`record`]).

pub mod lab;
pub mod record;
pub mod report;
