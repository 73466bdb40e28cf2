//! What the papers published, beside what the lab measured.
//!
//! Sources: "ECO-KVS" (energy-aware compaction offloading) and "EdgePilot" (compaction offloading
//! in edge federations), with the figure or section of each number. Both ran 600 s with values of
//! 1000 B on RocksDB 8.3.2. They differ on EdgePilot, partly because Low has 2.0 GHz in its own
//! paper and 1.5 GHz in the other: so each row names its source.

use ecotone_bench::report::format::{change, percent};
use ecotone_bench::report::table::Table;

use crate::summary::{LabReport, PolicyRun, ServerRun, Total};

/// What a published figure is about.
#[derive(Clone, Copy)]
enum Measure {
    Throughput,
    Reads,
    Writes,
    Stall,
    Epo,
    TimeError,
    EnergyError,
    RateError,
}

/// Which servers a published figure is about.
#[derive(Clone, Copy)]
enum Scope {
    /// The first server of a tier.
    Tier(&'static str),
    /// All servers together.
    Total,
}

/// One published figure.
struct Published {
    workload: &'static str,
    policy: &'static str,
    /// The policy it is compared with; for errors of models the policy itself.
    against: &'static str,
    scope: Scope,
    measure: Measure,
    figure: &'static str,
    source: &'static str,
}

const LOW: Scope = Scope::Tier("low");
const MEDIUM: Scope = Scope::Tier("medium");

#[rustfmt::skip] // One figure a line, as a table.
const PUBLISHED: &[Published] = &[
    row("fillrandom", "edgepilot", "local", MEDIUM, Measure::Throughput, "+14 %", "EdgePilot, Fig. 8(a)"),
    row("fillrandom", "edgepilot", "local", LOW, Measure::Throughput, "+21 %", "EdgePilot, Fig. 8(a)"),
    row("fillrandom", "edgepilot", "local", Scope::Total, Measure::Throughput, "+17 % (about +7 % in ECO-KVS)", "EdgePilot, section I"),
    row("fillrandom", "edgepilot", "local", MEDIUM, Measure::Stall, "-99.6 %", "EdgePilot, Fig. 9(a)"),
    row("fillrandom", "edgepilot", "local", LOW, Measure::Stall, "-100 %", "EdgePilot, Fig. 9(a)"),
    row("fillrandom", "edgepilot", "local", Scope::Total, Measure::Stall, "-71 %", "EdgePilot, section I"),
    row("fillrandom", "eco", "local", LOW, Measure::Throughput, "+21 %", "ECO-KVS, Fig. 7(a)"),
    row("fillrandom", "eco", "local", Scope::Total, Measure::Throughput, "+10 %", "ECO-KVS, Fig. 7(a)"),
    row("fillrandom", "eco", "local", LOW, Measure::Stall, "none left", "ECO-KVS, Fig. 7(b)"),
    row("fillrandom", "eco", "local", MEDIUM, Measure::Stall, "up to -85 %", "ECO-KVS, Fig. 7(b)"),
    row("fillrandom", "eco", "edgepilot", LOW, Measure::Throughput, "+6 %", "ECO-KVS, Fig. 7(a)"),
    row("fillrandom", "eco", "edgepilot", Scope::Total, Measure::Throughput, "+3 %", "ECO-KVS, Fig. 7(a)"),
    row("fillrandom", "eco", "edgepilot", MEDIUM, Measure::Epo, "up to -18 %", "ECO-KVS, Fig. 7(c)"),
    row("fillrandom", "eco", "edgepilot", Scope::Total, Measure::Epo, "-5 %", "ECO-KVS, Fig. 7(c)"),
    row("fillrandom", "eco-gate", "edgepilot", Scope::Total, Measure::Epo, "-3 %", "ECO-KVS, Fig. 12(b)"),
    row("fillrandom", "eco-target", "edgepilot", Scope::Total, Measure::Epo, "-2 %", "ECO-KVS, Fig. 12(b)"),
    row("fillrandom", "eco-gate", "edgepilot", LOW, Measure::Throughput, "+5 %", "ECO-KVS, Fig. 12(a)"),
    row("fillrandom", "eco", "eco", Scope::Total, Measure::TimeError, "3.9 %", "ECO-KVS, Fig. 10(c)"),
    row("fillrandom", "eco", "eco", Scope::Total, Measure::EnergyError, "4.2 %", "ECO-KVS, Fig. 10(d)"),
    row("fillrandom", "eco", "eco", Scope::Total, Measure::RateError, "3.6 %", "ECO-KVS, Fig. 11(b)"),
    row("readwhilewriting", "edgepilot", "local", LOW, Measure::Reads, "+61 % (+122 % in ECO-KVS)", "EdgePilot, Fig. 8(c)"),
    row("readwhilewriting", "edgepilot", "local", MEDIUM, Measure::Writes, "+14 %", "EdgePilot, Fig. 8(b)"),
    row("readwhilewriting", "edgepilot", "local", LOW, Measure::Writes, "+20 %", "EdgePilot, Fig. 8(b)"),
    row("readwhilewriting", "edgepilot", "local", MEDIUM, Measure::Stall, "-99.5 %", "EdgePilot, Fig. 9(b)"),
    row("readwhilewriting", "edgepilot", "local", LOW, Measure::Stall, "none left", "EdgePilot, Fig. 9(b)"),
    row("readwhilewriting", "eco", "local", LOW, Measure::Reads, "+34 %", "ECO-KVS, Fig. 8(b)"),
    row("readwhilewriting", "eco", "local", Scope::Total, Measure::Epo, "-8 %", "ECO-KVS, Fig. 8(c)"),
    row("readwhilewriting", "eco", "local", MEDIUM, Measure::Epo, "up to -28 %", "ECO-KVS, Fig. 8(c)"),
    row("readwhilewriting", "eco", "edgepilot", Scope::Total, Measure::Epo, "-6 %", "ECO-KVS, Fig. 8(c)"),
    row("mixgraph", "edgepilot", "local", Scope::Total, Measure::Throughput, "equal", "EdgePilot, Fig. 8(d)"),
    row("mixgraph", "eco", "local", Scope::Total, Measure::Throughput, "equal", "ECO-KVS, Fig. 9(a)"),
    row("mixgraph", "eco", "local", LOW, Measure::Epo, "up to -9 %", "ECO-KVS, Fig. 9(b)"),
    row("mixgraph", "eco", "edgepilot", LOW, Measure::Epo, "up to -20 %", "ECO-KVS, Fig. 9(b)"),
    row("mixgraph", "eco", "edgepilot", Scope::Total, Measure::Epo, "-6 %", "ECO-KVS, Fig. 9(b)"),
];

const fn row(
    workload: &'static str,
    policy: &'static str,
    against: &'static str,
    scope: Scope,
    measure: Measure,
    figure: &'static str,
    source: &'static str,
) -> Published {
    Published { workload, policy, against, scope, measure, figure, source }
}

/// The published figures of this workload whose policies were run, each beside what the lab
/// measured.
pub(super) fn table(report: &LabReport) -> Table {
    let mut table = (Table::default().words("policy").words("against").words("server").words("figure"))
        .numbers("measured")
        .numbers("published")
        .words("source");
    for one in PUBLISHED.iter().filter(|one| one.workload == report.workload) {
        let run = |policy: &str| report.runs.iter().find(|run| run.policy == policy);
        let (Some(own), Some(against)) = (run(one.policy), run(one.against)) else { continue };
        let Some(measured) = one.measured(own, against) else { continue };
        let error = one.policy == one.against;
        table.row(vec![
            one.policy.to_owned(),
            if error { String::new() } else { one.against.to_owned() },
            match one.scope {
                Scope::Tier(tier) => first(own, tier).map_or(tier, |server| &server.name).to_owned(),
                Scope::Total => "total".to_owned(),
            },
            one.measure.name().to_owned(),
            measured,
            one.figure.to_owned(),
            one.source.to_owned(),
        ]);
    }
    table
}

fn first<'a>(run: &'a PolicyRun, tier: &str) -> Option<&'a ServerRun> {
    run.servers.iter().find(|server| server.tier == tier)
}

impl Published {
    /// What the lab measured; none where the profile has no such server.
    fn measured(&self, own: &PolicyRun, against: &PolicyRun) -> Option<String> {
        let model = match self.measure {
            Measure::TimeError => Some(own.models.time_error),
            Measure::EnergyError => Some(own.models.energy_error),
            Measure::RateError => Some(own.models.rate_error),
            _ => None,
        };
        if let Some(error) = model {
            return Some(percent(error));
        }
        let value = |run: &PolicyRun| match self.scope {
            Scope::Total => self.measure.of_total(&run.total),
            Scope::Tier(tier) => first(run, tier).and_then(|server| self.measure.of_server(server)),
        };
        let (own, against) = (value(own)?, value(against)?);
        if against == 0.0 {
            // Such as stalls, where `local` had none either.
            return Some(if own == 0.0 { "none, as before" } else { "more than none" }.to_owned());
        }
        Some(change(Some(own / against)))
    }
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Measure::Throughput => "throughput",
            Measure::Reads => "reads",
            Measure::Writes => "writes",
            Measure::Stall => "stall time",
            Measure::Epo => "energy per operation",
            Measure::TimeError => "error of predicted time",
            Measure::EnergyError => "error of predicted energy",
            Measure::RateError => "error of predicted input rate",
        }
    }

    fn of_total(self, total: &Total) -> Option<f64> {
        match self {
            Measure::Throughput => Some(total.ops_per_s),
            Measure::Reads => Some(total.reads_per_s),
            Measure::Writes => Some(total.writes_per_s),
            Measure::Stall => Some(total.stall_ms),
            Measure::Epo => total.epo_uj,
            Measure::TimeError | Measure::EnergyError | Measure::RateError => None,
        }
    }

    fn of_server(self, server: &ServerRun) -> Option<f64> {
        match self {
            Measure::Throughput => Some(server.ops_per_s),
            Measure::Reads => Some(server.reads_per_s),
            Measure::Writes => Some(server.writes_per_s),
            Measure::Stall => Some(server.stall_ms),
            Measure::Epo => server.epo_uj,
            Measure::TimeError | Measure::EnergyError | Measure::RateError => None,
        }
    }
}
