//! The same writes to three copies in `concerto`, to three servers without copies that each compact,
//! and to one server: what copies that do not compact save, and what they cost.
//!
//! The three are plain: every value lies in the tables, as RocksDB has it unless told otherwise. All
//! have the same emulated cores, at their highest frequency but for the copies', and are fed in turn.

use std::time::{Duration, Instant};

use ecotone_bench::workload::{Workload, WorkloadOptions};
use ecotone_policy::power::PowerMode;
use serde::{Deserialize, Serialize};

use super::{ConcertoOptions, Keys, Measurement, SERVERS, short_part, used, workload_of};
use crate::cluster::copies::load::{begin, end, failed, settled_for};
use crate::cluster::servers::Server;
use crate::error::LabError;

/// The most joules of an operation that copies may take, by those of plain servers.
pub const GOAL_TO_PLAIN: f64 = 0.35;
/// The least energy efficiency of copies, by that of one server.
pub const GOAL_TO_SINGLE: f64 = 0.79;

/// What one of the three took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// How many servers.
    pub servers: usize,
    /// From the first write until background work had settled.
    pub seconds: f64,
    /// Of all of them, idle power included.
    pub joules: f64,
    /// Without idle power.
    pub active_joules: f64,
    /// Joules by operation, idle power included.
    pub uj_per_op: f64,
}

/// Copies beside servers without.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Writes that each side got.
    pub ops: u64,
    /// Writes a second that were offered to each.
    pub offered_ops_per_s: f64,
    /// A primary and its replicas in `concerto`.
    pub copies: Side,
    /// As many plain servers that get the same writes, and each compact.
    pub plain: Side,
    /// One server.
    pub single: Side,
    /// Joules of an operation: copies by plain servers.
    pub copies_to_plain: f64,
    /// The same without idle power.
    pub copies_to_plain_active: f64,
    /// Energy efficiency, operations by joule: copies by one server.
    pub efficiency_to_single: f64,
    /// The same without idle power.
    pub efficiency_to_single_active: f64,
}

impl Comparison {
    fn of(value_bytes: u32, (ops, offered_ops_per_s): (u64, f64), [copies, plain, single]: [Side; 3]) -> Self {
        Self {
            value_bytes,
            ops,
            offered_ops_per_s,
            copies_to_plain: copies.joules / plain.joules,
            copies_to_plain_active: copies.active_joules / plain.active_joules,
            efficiency_to_single: single.joules / copies.joules,
            efficiency_to_single_active: single.active_joules / copies.active_joules,
            copies,
            plain,
            single,
        }
    }
}

/// Feeds `fed` the same writes and counts what `all` take.
fn feed(
    measurement: &Measurement<'_>,
    fed: &[&Server],
    all: &[&Server],
    workload: &WorkloadOptions,
    quiet: Duration,
) -> Result<Side, LabError> {
    let before = used(all.iter().copied())?;
    let began = Instant::now();
    let mut runs = Vec::new();
    for server in fed {
        runs.push((server, begin(server, workload.clone())?));
    }
    let mut ops = 0;
    for (server, running) in runs {
        while !running.is_finished() {
            measurement.scene.rest(Duration::from_millis(20))?;
        }
        ops = running.join().map_err(failed(server))?.counts.total();
    }
    for server in fed {
        settled_for(server, quiet)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let spent = used(all.iter().copied())?.since(&before);
    Ok(Side {
        servers: all.len(),
        seconds,
        joules: spent.joules,
        active_joules: spent.joules - spent.by_duty.get("idle").copied().unwrap_or_default(),
        uj_per_op: spent.joules * 1e6 / ops.max(1) as f64,
    })
}

/// Measures all three.
pub(super) fn run(measurement: &mut Measurement<'_>, options: &ConcertoOptions) -> Result<Comparison, LabError> {
    let value_bytes = options.values[options.values.len() / 2];
    let (seconds, quiet) = (f64::from(options.seconds), options.quiet());
    let workload = workload_of(options, Workload::Overwrite, value_bytes);
    (measurement.scene.say)("copies beside plain servers: filling");
    measurement.mode(PowerMode::AllHigh)?;
    measurement.fill_with(&workload, Keys::InOrder, quiet)?;
    let folder = measurement.scene.folder.join("alone");
    let plain = ["--cluster", "off", "--store-option", "separation_min_bytes=off"];
    let mut servers = Vec::new();
    for number in 1..=SERVERS {
        servers.push(measurement.scene.start(&folder, &format!("plain{number}"), &plain)?);
    }
    let single = measurement.scene.start(&folder, "single", &["--cluster", "off"])?;
    for server in servers.iter().chain([&single]) {
        let fill = WorkloadOptions { workload: Workload::FillSeq, threads: 1, ..workload.clone() };
        end(&measurement.scene, server, begin(server, fill)?)?;
        settled_for(server, quiet)?;
    }
    let short = WorkloadOptions { seconds: Some(short_part(options)), ..workload.clone() };
    let peak = measurement.peak_of(short, Keys::InOrder)?;
    settled_for(measurement.at_primary()?, quiet)?;
    let rate = peak * options.load;
    let ops = ((rate * seconds) as u64).max(1);
    let offered = WorkloadOptions { ops: Some(ops), rate_ops_per_s: Some(rate), seed: 3, ..workload };
    (measurement.scene.say)("three plain servers");
    let plain: Vec<&Server> = servers.iter().collect();
    let plain = feed(measurement, &plain, &plain, &offered, quiet)?;
    (measurement.scene.say)("one server");
    let single = feed(measurement, &[&single], &[&single], &offered, quiet)?;
    (measurement.scene.say)("three copies in concerto");
    measurement.mode(PowerMode::Concerto)?;
    let all: Vec<&Server> = measurement.federation.servers.iter().collect();
    let copies = feed(measurement, &[measurement.at_primary()?], &all, &offered, quiet)?;
    measurement.in_sync(SERVERS, None)?;
    Ok(Comparison::of(value_bytes, (ops, rate), [copies, plain, single]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_goals() {
        let side = |servers, joules: f64, idle: f64| Side {
            servers,
            seconds: 10.0,
            joules,
            active_joules: joules - idle,
            uj_per_op: joules * 1e3,
        };
        let sides = [side(3, 50.0, 30.0), side(3, 150.0, 30.0), side(1, 40.0, 10.0)];
        let found = Comparison::of(1024, (1000, 100.0), sides);
        assert!((found.copies_to_plain - 1.0 / 3.0).abs() < 1e-9 && found.copies_to_plain < GOAL_TO_PLAIN);
        assert!((found.copies_to_plain_active - 20.0 / 120.0).abs() < 1e-9);
        // Operations by joule: fewer where joules are more.
        assert!((found.efficiency_to_single - 0.8).abs() < 1e-9 && found.efficiency_to_single > GOAL_TO_SINGLE);
        assert!((found.efficiency_to_single_active - 1.5).abs() < 1e-9);
    }
}
