//! What the modes took, beside what the paper found. Its JSON is the output of `ecotone lab concerto
//! --json`.

use std::collections::BTreeMap;

use ecotone_bench::report::format::escaped;
use ecotone_bench::report::table::Table;
use ecotone_bench::report::{PageHeader, STYLE};
use ecotone_energy::{PState, PStateTable};
use serde::{Deserialize, Serialize};

use super::compare::{Comparison, GOAL_TO_PLAIN, GOAL_TO_SINGLE};
use super::{ConcertoOptions, SERVERS};
use crate::scaling::Host;

/// The mode that all others are compared with.
const BASE: &str = "all-high";

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConcertoReport {
    /// The machine.
    pub host: Host,
    /// A primary, and replicas.
    pub servers: usize,
    /// Emulated cores of each.
    pub cores: u32,
    /// Host cores that one of them has at its highest frequency.
    pub core_speed: f64,
    /// What is offered, as a share of the peak in the first mode.
    pub load: f64,
    /// Where joules come from: the servers' model.
    pub energy_source: String,
    /// The P-states of emulated cores.
    pub p_states: Vec<PState>,
    /// Each workload in each mode.
    pub modes: Vec<ModeRun>,
    /// Each mode by `all-high`, over all workloads of a kind.
    pub summary: Vec<Summary>,
    /// Copies beside servers without; none where that was not asked for.
    pub comparison: Option<Comparison>,
    /// Figures that could not be had, and why.
    pub unavailable: BTreeMap<String, String>,
}

/// A workload in a mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModeRun {
    /// `all-high`, `all-low` or `concerto`.
    pub mode: String,
    /// The workload.
    pub workload: String,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Operations a second at saturation.
    pub peak_ops_per_s: f64,
    /// Operations a second of the run whose joules were counted.
    pub ops_per_s: f64,
    /// How many they were.
    pub ops: u64,
    /// From its begin until background work had settled.
    pub seconds: f64,
    /// Of all servers, idle power included.
    pub joules: f64,
    /// By operation.
    pub uj_per_op: f64,
    /// By duty, and of `idle` and `unattributed`: all of them add up to `joules`.
    pub joules_by_duty: BTreeMap<String, f64>,
    /// From the primary's acknowledgement until both replicas had a write; none without writes.
    pub lag_ms_p99: Option<f64>,
    /// Reads that both replicas answered; none where they do not, or were not asked.
    pub replica_reads_per_s: Option<f64>,
    /// The same with the event loops of replicas on slow cores, in `concerto`.
    pub replica_reads_unseparated_per_s: Option<f64>,
    /// Reads that found nothing: a store that was not filled is not measured.
    pub missed: u64,
    /// What the cores of each duty ran at, on the primary.
    pub frequency_mhz: BTreeMap<String, f64>,
    /// What the same work takes in `all-high`, with cores idle for the rest of this run's time.
    pub race_to_idle_joules: Option<f64>,
}

impl ModeRun {
    fn idle(&self) -> f64 {
        self.joules_by_duty.get("idle").copied().unwrap_or_default()
    }

    fn kind(&self) -> &str {
        if self.workload.starts_with("ycsb") { "ycsb" } else { &self.workload }
    }
}

/// A mode by `all-high`: means over workloads, 0.7 for 70 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The mode.
    pub mode: String,
    /// `set`, `get`, `ycsb` or `all`.
    pub workloads: String,
    /// Joules of an operation.
    pub joules: f64,
    /// The same without idle power.
    pub active_joules: f64,
    /// Operations a second at saturation.
    pub peak_ops: f64,
    /// Reads at replicas.
    pub replica_reads: Option<f64>,
    /// The same, with the event loops of replicas on slow cores.
    pub replica_reads_unseparated: Option<f64>,
    /// The worst p99 of all workloads.
    pub lag_ms_p99: Option<f64>,
    /// In how many of how many workloads it took less than the same work at full speed and idle
    /// afterwards.
    pub beats_race_to_idle: (usize, usize),
    /// What the paper found of joules and throughput.
    pub paper: String,
}

/// The paper's figures by mode and workloads: joules, throughput (Concerto, section 5; it measured no
/// watts, but multiplied the power of cores, from partly estimated voltages, by time).
const PAPER: [(&str, &str, &str); 8] = [
    ("concerto", "set", "joules -27 to -36 %, throughput equal"),
    ("concerto", "get", "joules -27 to -36 %, throughput equal; reads at a slow replica -20 %, separated -3 %"),
    ("concerto", "ycsb", "joules -44 % on average, -51 % at best"),
    ("concerto", "all", "joules -32 % on average"),
    ("all-low", "set", "joules -54 %, throughput -36 %"),
    ("all-low", "get", "joules -54 %, throughput -15 %"),
    ("all-low", "ycsb", "joules -67 %, throughput -20 %"),
    ("all-low", "all", ""),
];

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let all: Vec<f64> = numbers.filter(|number| number.is_finite()).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

impl ConcertoReport {
    pub(super) fn of(host: Host, options: &ConcertoOptions, core_speed: f64, table: &PStateTable) -> Self {
        ConcertoReport {
            host,
            servers: SERVERS,
            cores: options.cores,
            core_speed,
            load: options.load,
            energy_source: "model".to_owned(),
            p_states: table.states().to_vec(),
            modes: Vec::new(),
            summary: Vec::new(),
            comparison: None,
            unavailable: BTreeMap::new(),
        }
    }

    /// The run of the same workload in `all-high`.
    fn base<'a>(modes: &'a [ModeRun], run: &ModeRun) -> Option<&'a ModeRun> {
        let is_base = |other: &&ModeRun| {
            other.mode == BASE && other.workload == run.workload && other.value_bytes == run.value_bytes
        };
        modes.iter().find(is_base)
    }

    /// Compares, once all has been measured.
    pub(super) fn finish(&mut self) {
        let all = self.modes.clone();
        for run in &mut self.modes {
            let Some(base) = Self::base(&all, run).filter(|base| base.seconds > 0.0 && base.ops > 0) else { continue };
            let active = (base.joules - base.idle()) / base.ops as f64 * run.ops as f64;
            run.race_to_idle_joules = Some(active + base.idle() / base.seconds * run.seconds);
        }
        let is_read = |run: &ModeRun| run.kind() == "get" || run.workload == "ycsb-c";
        if self.modes.iter().any(is_read) && self.modes.iter().all(|run| run.replica_reads_per_s.is_none()) {
            let why = "replicas send those who read to the primary, READONLY or not";
            self.unavailable.insert("replica_reads_per_s".to_owned(), why.to_owned());
        }
        for mode in ["concerto", "all-low"] {
            for kind in ["set", "get", "ycsb", "all"] {
                self.summary.extend(self.summed_up(mode, kind));
            }
        }
    }

    fn summed_up(&self, mode: &str, kind: &str) -> Option<Summary> {
        let of_kind = |run: &&ModeRun| run.mode == mode && (kind == "all" || run.kind() == kind);
        let pairs: Vec<(&ModeRun, &ModeRun)> =
            self.modes.iter().filter(of_kind).filter_map(|run| Some((run, Self::base(&self.modes, run)?))).collect();
        let ratio = |of: &dyn Fn(&ModeRun) -> f64| mean(pairs.iter().map(|(run, base)| of(run) / of(base)));
        let reads = pairs.iter().filter_map(|(run, base)| Some(run.replica_reads_per_s? / base.replica_reads_per_s?));
        let slow = pairs
            .iter()
            .filter_map(|(run, base)| Some(run.replica_reads_unseparated_per_s? / base.replica_reads_per_s?));
        let wins = |run: &ModeRun| run.race_to_idle_joules.is_some_and(|race| run.joules < race);
        let paper = PAPER.iter().find(|row| (row.0, row.1) == (mode, kind));
        Some(Summary {
            mode: mode.to_owned(),
            workloads: kind.to_owned(),
            joules: ratio(&|run| run.uj_per_op)?,
            active_joules: ratio(&|run| (run.joules - run.idle()) / run.ops.max(1) as f64)?,
            peak_ops: ratio(&|run| run.peak_ops_per_s)?,
            replica_reads: mean(reads),
            replica_reads_unseparated: mean(slow),
            lag_ms_p99: pairs.iter().filter_map(|(run, _)| run.lag_ms_p99).reduce(f64::max),
            beats_race_to_idle: (pairs.iter().filter(|(run, _)| wins(run)).count(), pairs.len()),
            paper: paper.map_or("", |row| row.2).to_owned(),
        })
    }
}

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

fn runs(report: &ConcertoReport) -> Table {
    let mut table = Table::default()
        .words("workload")
        .numbers("value B")
        .words("mode")
        .numbers("peak op/s")
        .numbers("op/s")
        .numbers("J")
        .numbers("µJ/op")
        .numbers("race to idle J")
        .numbers("lag p99 ms")
        .numbers("replica reads/s")
        .numbers("on slow cores")
        .numbers("MHz foreground")
        .numbers("MHz replica");
    for run in &report.modes {
        let or_none =
            |number: Option<f64>, digits: usize| number.map_or_else(|| "-".into(), |n| format!("{n:.digits$}"));
        let mhz = |duty: &str| or_none(run.frequency_mhz.get(duty).copied(), 0);
        table.row(vec![
            run.workload.clone(),
            run.value_bytes.to_string(),
            run.mode.clone(),
            format!("{:.0}", run.peak_ops_per_s),
            format!("{:.0}", run.ops_per_s),
            format!("{:.1}", run.joules),
            format!("{:.1}", run.uj_per_op),
            or_none(run.race_to_idle_joules, 1),
            or_none(run.lag_ms_p99, 1),
            or_none(run.replica_reads_per_s, 0),
            or_none(run.replica_reads_unseparated_per_s, 0),
            mhz("foreground"),
            mhz("replica"),
        ]);
    }
    table
}

fn compared(report: &ConcertoReport) -> Table {
    let mut table = Table::default()
        .words("mode by all-high")
        .words("workloads")
        .numbers("joules")
        .numbers("without idle")
        .numbers("peak")
        .numbers("replica reads")
        .numbers("on slow cores")
        .numbers("lag p99 ms")
        .words("beats race to idle")
        .words("Concerto, on Redis");
    for of in &report.summary {
        table.row(vec![
            of.mode.clone(),
            of.workloads.clone(),
            percent(of.joules),
            percent(of.active_joules),
            percent(of.peak_ops),
            of.replica_reads.map_or_else(|| "-".into(), percent),
            of.replica_reads_unseparated.map_or_else(|| "-".into(), percent),
            of.lag_ms_p99.map_or_else(|| "-".into(), |lag| format!("{lag:.1}")),
            format!("{} of {}", of.beats_race_to_idle.0, of.beats_race_to_idle.1),
            of.paper.clone(),
        ]);
    }
    table
}

fn sides(comparison: &Comparison) -> Table {
    let mut table = Table::default()
        .words("the same writes to")
        .numbers("s")
        .numbers("J")
        .numbers("J without idle")
        .numbers("µJ/op");
    for (name, side) in [
        ("three copies in concerto", &comparison.copies),
        ("three plain servers that each compact", &comparison.plain),
        ("one server", &comparison.single),
    ] {
        table.row(vec![
            name.to_owned(),
            format!("{:.1}", side.seconds),
            format!("{:.1}", side.joules),
            format!("{:.1}", side.active_joules),
            format!("{:.1}", side.uj_per_op),
        ]);
    }
    table
}

fn ratios(of: &Comparison) -> String {
    format!(
        "{} writes of {} bytes at {:.0} a second. Joules of an operation by those of three plain servers: {:.2}, {:.2} without idle (goal: at \
         most {GOAL_TO_PLAIN}). Energy efficiency by that of one server: {:.2}, {:.2} without idle (goal: at least {GOAL_TO_SINGLE})",
        of.ops,
        of.value_bytes,
        of.offered_ops_per_s,
        of.copies_to_plain,
        of.copies_to_plain_active,
        of.efficiency_to_single,
        of.efficiency_to_single_active,
    )
}

fn about(report: &ConcertoReport) -> String {
    format!(
        "a primary and {} replicas, each with {} emulated cores of {:.3} host cores, on {} ({} cores); joules are the servers' own, by the \
         model, of all servers until background work had settled, at {:.0} % of the peak in the first mode",
        report.servers - 1,
        report.cores,
        report.core_speed,
        report.host.cpu,
        report.host.cores,
        report.load * 100.0
    )
}

/// The report for people.
pub fn text(report: &ConcertoReport) -> String {
    let mut text = format!("{}\n", about(report));
    for (is_empty, table) in [(report.modes.is_empty(), runs(report)), (report.summary.is_empty(), compared(report))] {
        if !is_empty {
            text += &format!("\n{}", table.text());
        }
    }
    if let Some(comparison) = &report.comparison {
        text += &format!("\n{}\n{}\n", sides(comparison).text(), ratios(comparison));
    }
    for (figure, why) in &report.unavailable {
        text += &format!("\nnote: no {figure}: {why}\n");
    }
    text
}

/// The whole page.
pub fn html(report: &ConcertoReport, header: &PageHeader<'_>) -> String {
    let beside = report.comparison.as_ref().map_or_else(String::new, |comparison| {
        let (table, ratios) = (sides(comparison).html(), ratios(comparison));
        format!("<h2>Beside servers without copies</h2>{table}<p>{}.</p>", escaped(&ratios))
    });
    let notes: String = report
        .unavailable
        .iter()
        .map(|(figure, why)| format!("<p class=\"note\">No {}: {}.</p>", escaped(figure), escaped(why)))
        .collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Ecotone lab: modes of power</title><style>{STYLE}</style></head>\n<body><main><h1>Modes of power</h1>\
         <p>{}.</p><p class=\"note\">{}, {}</p><h2>By all-high</h2>{}{beside}<h2>Each workload</h2>{}{notes}</main>\
         <footer>Ecotone lab. Joules come from a model, not from a meter. Servers were emulated on one machine.</footer></body></html>\n",
        escaped(&about(report)),
        escaped(header.command),
        escaped(header.date),
        compared(report).html(),
        runs(report).html(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::compare::Side;
    use super::*;

    fn run(mode: &str, workload: &str, joules: f64, idle: f64, seconds: f64, peak: f64) -> ModeRun {
        ModeRun {
            mode: mode.to_owned(),
            workload: workload.to_owned(),
            value_bytes: 256,
            peak_ops_per_s: peak,
            ops_per_s: 100.0,
            ops: 1000,
            seconds,
            joules,
            uj_per_op: joules * 1e3,
            joules_by_duty: BTreeMap::from([("idle".to_owned(), idle), ("foreground".to_owned(), joules - idle)]),
            lag_ms_p99: (workload == "set").then_some(joules),
            replica_reads_per_s: (workload == "get").then_some(peak),
            replica_reads_unseparated_per_s: (workload == "get" && mode == "concerto").then_some(peak * 0.8),
            missed: 0,
            frequency_mhz: BTreeMap::new(),
            race_to_idle_joules: None,
        }
    }

    fn report() -> ConcertoReport {
        let options = ConcertoOptions::new().unwrap();
        let mut report = ConcertoReport::of(Host::here(), &options, 0.2, &PStateTable::xeon_silver_4114());
        report.modes = vec![
            run("all-high", "set", 100.0, 40.0, 10.0, 1000.0),
            run("concerto", "set", 70.0, 44.0, 11.0, 980.0),
            run("all-high", "ycsb-c", 50.0, 40.0, 10.0, 2000.0),
            run("concerto", "ycsb-c", 49.0, 40.0, 10.0, 2000.0),
            run("all-high", "get", 10.0, 4.0, 10.0, 3000.0),
            run("concerto", "get", 8.0, 4.0, 10.0, 2940.0),
        ];
        report.finish();
        report
    }

    #[test]
    fn a_mode_is_compared_workload_by_workload() {
        let report = report();
        // 60 J for the work, and 4 W for 11 s.
        assert!((report.modes[1].race_to_idle_joules.unwrap() - 104.0).abs() < 1e-9);
        let of = |workloads: &str| report.summary.iter().find(|of| of.mode == "concerto" && of.workloads == workloads);
        let set = of("set").unwrap();
        assert!((set.joules - 0.7).abs() < 1e-9 && (set.active_joules - 26.0 / 60.0).abs() < 1e-9);
        assert!((set.peak_ops - 0.98).abs() < 1e-9 && set.lag_ms_p99 == Some(70.0));
        let all = of("all").unwrap();
        assert!((all.joules - (0.7 + 0.98 + 0.8) / 3.0).abs() < 1e-9);
        assert_eq!(all.beats_race_to_idle, (3, 3));
        assert!(report.summary.iter().all(|of| of.mode != "all-low"), "nobody ran it");
        // Reads at replicas are compared with those of all-high, on fast cores and on slow ones.
        let get = of("get").unwrap();
        assert!((get.replica_reads.unwrap() - 0.98).abs() < 1e-9);
        assert!((get.replica_reads_unseparated.unwrap() - 0.98 * 0.8).abs() < 1e-9);
        assert!(report.unavailable.is_empty());
        let mut none = report.clone();
        none.modes.iter_mut().for_each(|run| run.replica_reads_per_s = None);
        none.finish();
        assert!(none.unavailable.contains_key("replica_reads_per_s"));
    }

    #[test]
    fn text_and_page_have_every_run_and_the_papers_figures() {
        let mut report = report();
        let side =
            |servers, joules: f64| Side { servers, seconds: 9.0, joules, active_joules: joules, uj_per_op: joules };
        report.comparison = Some(Comparison {
            value_bytes: 1024,
            ops: 700,
            offered_ops_per_s: 70.0,
            copies: side(3, 30.0),
            plain: side(3, 90.0),
            single: side(1, 25.0),
            copies_to_plain: 0.333,
            copies_to_plain_active: 0.25,
            efficiency_to_single: 0.833,
            efficiency_to_single_active: 0.9,
        });
        report.unavailable.insert("replica_reads_per_s".to_owned(), "nobody answers".to_owned());
        let header = PageHeader { command: "ecotone lab concerto <&>", date: "today" };
        for shown in [text(&report), html(&report, &header)] {
            assert_eq!(shown.matches("ycsb-c").count(), 2);
            assert!(shown.contains("-44 % on average") && shown.contains("replica_reads_per_s"));
            assert!(shown.contains("three plain servers: 0.33, 0.25 without idle (goal: at most 0.35)"), "{shown}");
            assert!(shown.contains("one server: 0.83, 0.90 without idle (goal: at least 0.79)"), "{shown}");
            assert!(!shown.contains("<&>"));
        }
    }
}
