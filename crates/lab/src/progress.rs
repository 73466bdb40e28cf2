//! What the lab tells while it runs.

use crate::summary::PolicyRun;

/// A listener to a running lab. All calls come from the thread that called
/// [`run_lab`](crate::run_lab), at most a few a second; each should return at once. Every method
/// does nothing unless written otherwise.
pub trait Progress {
    /// The lab begins: `runs` runs of `seconds` each, without the time to start and stop servers.
    fn begin(&mut self, _runs: usize, _seconds: u64) {}
    /// Run number `index` (from 0) begins to start its servers.
    fn run_begins(&mut self, _index: usize, _policy: &str) {}
    /// All servers are ready and the workload begins.
    fn workload_begins(&mut self, _policy: &str) {}
    /// One more second of the workload has passed.
    fn second(&mut self, _tick: &Tick) {}
    /// A run is over.
    fn run_ends(&mut self, _index: usize, _run: &PolicyRun) {}
    /// Something the user should know that does not end the lab.
    fn warning(&mut self, _text: &str) {}
}

/// One second of a run, all servers together.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Seconds since `start`.
    pub elapsed_s: f64,
    /// Length of the run.
    pub seconds: u64,
    /// Operations per second of all servers, by their latest samples.
    pub ops_per_s: f64,
    /// Tables in level 0 of each server, in the profile's order, by their latest samples.
    pub l0_tables: Vec<u64>,
    /// Compactions run by workers so far.
    pub offloaded: u64,
}

/// Tells nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {}
