//! What the lab found of copies. Its JSON is the output of `ecotone lab copies --json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::report::Times;
use super::places::Places;
use super::{LINK_MBIT, SERVERS};
use crate::scaling::Host;

/// What was found. What is missing was not asked for, or is in [`CopiesReport::unavailable`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopiesReport {
    /// The machine.
    pub host: Host,
    /// Servers, each with a copy.
    pub servers: usize,
    /// Where their folders lay.
    pub stores: String,
    /// Host cores of each server; none: they were not limited.
    pub quota_cores: Option<f64>,
    /// Link of each server, each way; none: all were on the machine's loopback.
    pub link_mbit: Option<u32>,
    /// Processor time of all servers for each write, by that of as many stores alone.
    pub cpu_ratio: Option<f64>,
    /// The same of modelled joules above idle.
    pub joules_ratio: Option<f64>,
    /// Processor time of a replica by that of its primary.
    pub replica_cpu_share: Option<f64>,
    /// Bytes that went to a replica for each byte of keys and values.
    pub wire_bytes_per_user_byte: Option<f64>,
    /// These in detail.
    pub costs: Option<Costs>,
    /// Throughput of three copies by that of one.
    pub throughput: Option<Throughput>,
    /// From the primary's acknowledgement until both replicas had a write.
    pub lag_ms: Option<Times>,
    /// From SIGKILL of a primary that did not lead to the next acknowledged write.
    pub failover_ms: Option<Times>,
    /// Of one that led the federation.
    pub failover_of_both_ms: Option<Times>,
    /// The longest time without an acknowledged write while a shard was handed over.
    pub switch_over_ms: Option<Times>,
    /// How fast a copy was made, by a plain copy over the same link.
    pub seeding_share_of_link: Option<f64>,
    /// That in detail.
    pub seeding: Option<Seeding>,
    /// What could not be had, and why.
    pub unavailable: BTreeMap<String, String>,
}

impl CopiesReport {
    pub(super) fn of(host: Host, share: f64, places: &Places, stores: String) -> Self {
        let mut unavailable = BTreeMap::new();
        for (what, why) in [("quota_cores", places.no_quota()), ("link_mbit", places.no_network())] {
            if let Some(why) = why {
                unavailable.insert(what.to_owned(), why.to_owned());
            }
        }
        CopiesReport {
            host,
            servers: SERVERS,
            stores,
            quota_cores: places.no_quota().is_none().then_some(share),
            link_mbit: places.no_network().is_none().then_some(LINK_MBIT),
            cpu_ratio: None,
            joules_ratio: None,
            replica_cpu_share: None,
            wire_bytes_per_user_byte: None,
            costs: None,
            throughput: None,
            lag_ms: None,
            failover_ms: None,
            failover_of_both_ms: None,
            switch_over_ms: None,
            seeding_share_of_link: None,
            seeding: None,
            unavailable,
        }
    }

    pub(super) fn lacks(&mut self, figure: &str, why: &str) {
        self.unavailable.insert(figure.to_owned(), why.to_owned());
    }
}

/// Three copies beside three stores alone that were fed the same writes: medians of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Processor time of all servers by that of all stores alone.
    pub cpu_ratio: f64,
    /// Modelled joules above those of idle servers.
    pub joules_ratio: f64,
    /// All modelled joules, for as long as the writes took.
    pub joules_ratio_with_idle: f64,
    /// Processor time of a replica by its primary's.
    pub replica_cpu_share: f64,
    /// Bytes to a replica, headers included, for each byte of keys and values; none where they are
    /// not counted.
    pub wire_bytes_per_user_byte: Option<f64>,
    /// Bytes that a replica was not sent since it made them of what it had, for each byte of keys and
    /// values.
    pub spared_bytes_per_user_byte: f64,
    /// Microseconds of processor time of all servers for each write.
    pub cpu_us_per_op: f64,
    /// Of all stores alone.
    pub cpu_us_per_op_alone: f64,
    /// Writes a second that were offered.
    pub ops_per_s: f64,
    /// Writes of each run.
    pub ops: u64,
    /// Rounds: stores alone, copies.
    pub rounds: u32,
}

/// Medians of the rounds of one copy, each level, one copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// At level `one`, by that of one copy.
    pub one: f64,
    /// At `quorum`.
    pub quorum: f64,
    /// At `all`.
    pub all: f64,
    /// Writes a second.
    pub per_s: LevelThroughput,
    /// How many.
    pub rounds: u32,
}

/// Writes a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelThroughput {
    /// Of a shard with one copy.
    pub single: f64,
    /// Of one with three at level `one`.
    pub one: f64,
    /// At `quorum`.
    pub quorum: f64,
    /// At `all`.
    pub all: f64,
}

/// How a copy was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seeding {
    /// Bytes a second by those of a plain copy.
    pub share_of_link: f64,
    /// From the first bytes until it was in sync.
    pub bytes_per_s: f64,
    /// Of a plain copy by TCP over the same link.
    pub plain_bytes_per_s: f64,
    /// Bytes that went over the link.
    pub bytes: u64,
    /// The link.
    pub mbit: u32,
}

/// A figure and its goal.
enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

fn line(what: &str, figure: f64, unit: &str, goal: &Goal) -> String {
    let (word, limit, met) = match *goal {
        Goal::AtMost(limit) => ("at most", limit, figure <= limit),
        Goal::AtLeast(limit) => ("at least", limit, figure >= limit),
    };
    let met = if met { "met" } else { "NOT MET" };
    let precision = if unit == "ms" { 1 } else { 3 };
    let figure = format!("{figure:.precision$}{}{unit}", if unit.is_empty() { "" } else { " " });
    format!("  {what:<46}{figure:>12}   {word} {limit:<6} {met}\n")
}

/// The report for people, with the goals.
pub fn text(report: &CopiesReport) -> String {
    use Goal::{AtLeast, AtMost};
    let mut text = format!("{} copies on {} ({} cores)\n", report.servers, report.host.cpu, report.host.cores);
    if let Some(cores) = report.quota_cores {
        text += &format!("each server: {cores:.2} of a core");
        text += &report.link_mbit.map_or_else(|| "\n".into(), |mbit| format!(", a link of {mbit} Mbit/s\n"));
    }
    text += "\n";
    let lines = [
        ("processor time by stores alone", report.cpu_ratio, AtMost(0.5)),
        ("modelled joules by stores alone", report.joules_ratio, AtMost(0.5)),
        ("processor time of a replica by its primary's", report.replica_cpu_share, AtMost(0.15)),
        ("bytes on the wire for each of the user's", report.wire_bytes_per_user_byte, AtMost(1.25)),
        ("throughput at `one` by one copy", report.throughput.as_ref().map(|of| of.one), AtLeast(0.9)),
        ("throughput at `all` by one copy", report.throughput.as_ref().map(|of| of.all), AtLeast(0.8)),
        ("seeding by a plain copy", report.seeding_share_of_link, AtLeast(0.8)),
    ];
    for (what, figure, goal) in &lines {
        text += &figure.map(|figure| line(what, figure, "", goal)).unwrap_or_default();
    }
    if let Some(throughput) = &report.throughput {
        text += &format!("  {:<46}{:>12.3}\n", "throughput at `quorum` by one copy", throughput.quorum);
        text += &format!("  {:<46}{:>12.0}\n", "writes a second with one copy", throughput.per_s.single);
    }
    if let Some(costs) = &report.costs {
        text += &format!(
            "  {:<46}{:>12.3}\n  {:<46}{:>12.1} (stores alone: {:.1})\n",
            "joules with those of idle servers",
            costs.joules_ratio_with_idle,
            "microseconds of processor time for a write",
            costs.cpu_us_per_op,
            costs.cpu_us_per_op_alone
        );
    }
    let times = [
        ("lag at 70 % of the peak", &report.lag_ms, None, 50.0),
        ("switch-over", &report.switch_over_ms, None, 100.0),
        ("failover", &report.failover_ms, Some(1000.0), 2000.0),
        ("failover of leader and primary", &report.failover_of_both_ms, None, 4000.0),
    ];
    for (what, times, p50, p99) in times {
        let Some(times) = times else { continue };
        let half = format!("{what}, p50 of {}", times.n);
        text += &match p50 {
            Some(goal) => line(&half, times.p50, "ms", &AtMost(goal)),
            None => format!("  {half:<46}{:>9.1} ms\n", times.p50),
        };
        text += &line(&format!("{what}, p99"), times.p99, "ms", &AtMost(p99));
    }
    for (figure, why) in &report.unavailable {
        text += &format!("\nnote: no {figure}: {why}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_up_to_its_limit() {
        let is_met = |figure, goal| !line("lag", figure, "ms", &goal).contains("NOT MET");
        assert!(is_met(50.0, Goal::AtMost(50.0)) && !is_met(50.1, Goal::AtMost(50.0)));
        assert!(is_met(0.8, Goal::AtLeast(0.8)) && !is_met(0.79, Goal::AtLeast(0.8)));
    }
}
