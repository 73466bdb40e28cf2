//! Progress for people: on a terminal, and nothing at all in a pipe.

use std::time::Duration;

use ecotone_lab::{PolicyRun, Progress, Tick};
use indicatif::{ProgressBar, ProgressStyle};

/// A line that says what is being done.
pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    pub(crate) fn start() -> Spinner {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        Spinner(bar)
    }

    pub(crate) fn say(&self, what: String) {
        self.0.set_message(what);
    }

    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Bars of a lab: one for the run, with what its servers do.
pub(crate) struct LabBars {
    bar: ProgressBar,
    runs: usize,
    policy: String,
}

impl LabBars {
    pub(crate) fn new() -> LabBars {
        let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} s  {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        LabBars { bar: ProgressBar::new(1).with_style(style), runs: 0, policy: String::new() }
    }
}

impl Progress for LabBars {
    fn begin(&mut self, runs: usize, seconds: u64) {
        self.runs = runs;
        self.bar.set_length(seconds);
    }

    fn run_begins(&mut self, index: usize, policy: &str) {
        self.policy = format!("[{}/{}] {policy:<12}", index + 1, self.runs);
        self.bar.set_prefix(self.policy.clone());
        self.bar.set_position(0);
        self.bar.set_message("starting servers");
    }

    fn second(&mut self, tick: &Tick) {
        self.bar.set_position(tick.elapsed_s as u64);
        let tables: Vec<String> = tick.l0_tables.iter().map(u64::to_string).collect();
        self.bar.set_message(format!(
            "{:.0} op/s, L0 {}, {} offloaded",
            tick.ops_per_s,
            tables.join("/"),
            tick.offloaded
        ));
    }

    fn run_ends(&mut self, _index: usize, run: &PolicyRun) {
        self.bar.println(format!(
            "{} {:.0} op/s, {:.1} s stalled, {} uJ/op ({})",
            self.policy,
            run.total.ops_per_s,
            run.total.stall_ms / 1e3,
            run.total.epo_uj.map_or_else(|| "-".into(), |epo_uj| format!("{epo_uj:.0}")),
            run.energy_source()
        ));
    }

    fn warning(&mut self, text: &str) {
        self.bar.suspend(|| eprintln!("ecotone: {text}"));
    }
}

impl Drop for LabBars {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
