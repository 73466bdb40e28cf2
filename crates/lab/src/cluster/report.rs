//! What the lab found of a federation. Its JSON is the output of `ecotone lab cluster --json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ClusterOptions;
use crate::scaling::Host;

/// What was found. What is missing was not asked for, or is in [`ClusterReport::unavailable`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// The machine.
    pub host: Host,
    /// Servers of the federation.
    pub servers: usize,
    /// Where their folders lay.
    pub stores: String,
    /// How long the federation decided nothing.
    pub leader_failover_ms: Option<Failovers>,
    /// How long a change took.
    pub commit_ms: Option<Commits>,
    /// Processor time of the busiest server while nobody asked for anything, in cores.
    pub idle_core_share: Option<f64>,
    /// What the pair that spoke most sent both ways.
    pub idle_bytes_per_s: Option<f64>,
    /// Both in detail.
    pub idle: Option<Idle>,
    /// What cluster mode costs clients.
    pub cluster_cost: Option<ClientsCost>,
    /// What encryption costs an offloaded job.
    pub tls_cost: Option<TlsCost>,
    /// What several shards cost a server.
    pub shards_cost: Option<ShardsCost>,
    /// Figures that could not be had, and why.
    pub unavailable: BTreeMap<String, String>,
}

impl ClusterReport {
    pub(super) fn of(host: Host, options: &ClusterOptions, stores: String) -> Self {
        ClusterReport {
            host,
            servers: options.servers,
            stores,
            leader_failover_ms: None,
            commit_ms: None,
            idle_core_share: None,
            idle_bytes_per_s: None,
            idle: None,
            cluster_cost: None,
            tls_cost: None,
            shards_cost: None,
            unavailable: BTreeMap::new(),
        }
    }

    pub(super) fn lacks(&mut self, figure: &str, why: &str) {
        self.unavailable.insert(figure.to_owned(), why.to_owned());
    }
}

/// Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Half of them are at most this.
    pub p50: f64,
    /// 99 of 100 are; of fewer than 100 the longest.
    pub p99: f64,
    /// How many there are.
    pub n: usize,
}

impl Times {
    /// Of at least one time.
    pub(super) fn of(mut times: Vec<f64>) -> Times {
        times.sort_by(f64::total_cmp);
        Times { p50: quantile(&times, 0.5), p99: quantile(&times, 0.99), n: times.len() }
    }
}

/// The least of the sorted numbers that is not below the share `quantile` of them; of none, 0.
fn quantile(sorted: &[f64], quantile: f64) -> f64 {
    let rank = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

/// The median of some numbers.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let lower = quantile(&numbers, 0.5);
    // Of an even count, between the two in the middle.
    match numbers.len() {
        0 => 0.0,
        count if count % 2 == 0 => f64::midpoint(lower, numbers[count / 2]),
        _ => lower,
    }
}

/// From the failure of a leader until a change that was asked for at another server is durable on
/// most voters and known there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failovers {
    /// Of the killed leaders, which the goal is about.
    #[serde(flatten)]
    pub killed: Times,
    /// By what happened to the leader: `killed`, `paused` (SIGSTOP), `cut_one_way` (it is heard, and
    /// hears nobody).
    pub kinds: BTreeMap<String, Times>,
}

/// From the request (FEDERATION SET) to its answer, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commits {
    /// All of them.
    #[serde(flatten)]
    pub all: Times,
    /// Those asked at the leader.
    pub at_leader: Times,
    /// Those asked at another server.
    pub at_another: Times,
}

/// What servers used while nobody asked for anything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// How long they were watched.
    pub seconds: f64,
    /// Each server of the federation.
    pub servers: Vec<IdleServer>,
    /// A server without a federation, in the same seconds.
    pub alone_core_share: f64,
    /// Pairs of servers that spoke; none where this machine does not count that.
    pub pairs: Option<Vec<IdlePair>>,
}

/// An idle server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdleServer {
    /// Its name.
    pub name: String,
    /// Whether it led.
    pub leads: bool,
    /// Processor time of its process, in cores.
    pub core_share: f64,
    /// How often its threads waited for something and were woken, each second.
    pub wakes_per_s: f64,
}

/// Two servers that speak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdlePair {
    /// Their names.
    pub servers: [String; 2],
    /// Payload of their TCP connections, both ways: that of TLS and all in it, no headers of TCP.
    pub bytes_per_s: f64,
}

/// Cluster mode beside the same server alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientsCost {
    /// SET.
    pub set: BenchmarkCost,
    /// GET.
    pub get: BenchmarkCost,
    /// Rounds: alone, cluster, alone.
    pub rounds: u32,
    /// Requests of each run.
    pub requests: u32,
}

/// A server beside another one, by one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkCost {
    /// Requests a second of the one it is compared with: the median.
    pub base_per_s: f64,
    /// Of what is compared.
    pub per_s: f64,
    /// What share of the throughput it costs: the median of the rounds. Below zero it is faster.
    pub cost: f64,
    /// How far two runs of the same server in one round are apart, as a share: the median.
    pub spread: f64,
}

/// An offloaded job with TLS beside one without, on two equal emulated servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlsCost {
    /// By how large a share of its time a job takes longer: the median of the rounds, each of the
    /// medians of its jobs.
    pub cost: f64,
    /// How far the least and the greatest cost of a round are apart.
    pub spread: f64,
    /// Time of jobs for each byte of their input, the median of all, without TLS.
    pub plain_ns_per_byte: f64,
    /// And with it.
    pub tls_ns_per_byte: f64,
    /// Rounds of one run each.
    pub rounds: u32,
    /// Jobs of all runs of one kind, the fewer of both.
    pub jobs: usize,
}

/// Several shards on one server beside one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardsCost {
    /// How many.
    pub shards: u32,
    /// SET.
    pub set: BenchmarkCost,
    /// GET.
    pub get: BenchmarkCost,
    /// Resident memory of each further shard of an idle, empty server.
    pub resident_bytes_per_shard: f64,
    /// From the start of the process until it serves, with what the benchmark wrote: one shard.
    pub opening_ms_one: f64,
    /// And so many.
    pub opening_ms: f64,
    /// What was in the server's folder then.
    pub bytes: u64,
}

fn times_text(what: &str, times: &Times) -> String {
    format!("  {what:<28}{:>9.1}{:>9.1}{:>7}\n", times.p50, times.p99, times.n)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn cost_text(what: &str, cost: &BenchmarkCost) -> String {
    format!(
        "  {what:<28}{:>12.0}{:>12.0}{:>10}{:>10}\n",
        cost.base_per_s,
        cost.per_s,
        percent(cost.cost),
        percent(cost.spread)
    )
}

/// The report for people.
pub fn text(report: &ClusterReport) -> String {
    let mut text = format!("{} servers on {} ({} cores)\n", report.servers, report.host.cpu, report.host.cores);
    if report.leader_failover_ms.is_some() || report.commit_ms.is_some() {
        text += "\nMilliseconds                        p50      p99      n\n";
    }
    if let Some(failovers) = &report.leader_failover_ms {
        for (kind, times) in &failovers.kinds {
            text += &times_text(&format!("leader {}", kind.replace('_', " ")), times);
        }
    }
    if let Some(commits) = &report.commit_ms {
        text += &times_text("change asked at the leader", &commits.at_leader);
        text += &times_text("change asked at another", &commits.at_another);
    }
    if let Some(idle) = &report.idle {
        text += &format!("\nIdle for {:.0} s                  of a core   wakes/s\n", idle.seconds);
        for server in &idle.servers {
            let name = if server.leads { format!("{} (leads)", server.name) } else { server.name.clone() };
            text += &format!("  {name:<28}{:>10}{:>10.0}\n", percent(server.core_share), server.wakes_per_s);
        }
        text += &format!("  {:<28}{:>10}\n", "without a federation", percent(idle.alone_core_share));
        for pair in idle.pairs.iter().flatten() {
            text += &format!("  {:<28}{:>10.0} B/s\n", pair.servers.join(" and "), pair.bytes_per_s);
        }
    }
    let heading =
        |what: &str| format!("\n{what:<30}{:>12}{:>12}{:>10}{:>10}\n", "without/s", "with/s", "cost", "spread");
    if let Some(cost) = &report.cluster_cost {
        text += &heading("Cluster mode");
        text += &cost_text("SET", &cost.set);
        text += &cost_text("GET", &cost.get);
    }
    if let Some(cost) = &report.tls_cost {
        text += &format!(
            "\nTLS costs an offloaded job {} of its time (rounds {} apart): {:.1} instead of {:.1} ns for each byte, {} jobs\n",
            percent(cost.cost),
            percent(cost.spread),
            cost.tls_ns_per_byte,
            cost.plain_ns_per_byte,
            cost.jobs
        );
    }
    if let Some(cost) = &report.shards_cost {
        text += &heading(&format!("{} shards instead of one", cost.shards));
        text += &cost_text("SET", &cost.set);
        text += &cost_text("GET", &cost.get);
        text += &format!(
            "  each {:.1} MiB resident; opened in {:.0} ms, one in {:.0} ms ({:.0} MiB)\n",
            cost.resident_bytes_per_shard / f64::from(1 << 20),
            cost.opening_ms,
            cost.opening_ms_one,
            cost.bytes as f64 / f64::from(1 << 20)
        );
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
    fn p99_of_few_is_the_longest_and_of_many_leaves_one_in_a_hundred_out() {
        let few = Times::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((few.p50, few.p99, few.n), (2.0, 3.0, 3));
        let many = Times::of((1..=200).map(f64::from).collect());
        assert_eq!((many.p50, many.p99, many.n), (100.0, 198.0, 200));
    }

    #[test]
    fn a_median_of_an_even_count_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![5.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![7.0]), 7.0);
    }
}
