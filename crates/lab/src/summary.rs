//! The report's numbers, computed from what servers recorded.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use ecotone_bench::workload::ValueKind;
use ecotone_server::record::Final;

use crate::error::LabError;
use crate::model_errors::ModelErrors;
use crate::profile::{colocated_server, colocated_steps};
use crate::recording::{PolicyRecording, Recording};
use crate::scaling::{Host, ScaledProfile, ScaledServer};

/// What a lab found. Its JSON is the output of `ecotone lab --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabReport {
    /// The profile's name.
    pub profile: String,
    /// The profile's own words.
    pub about: String,
    /// The machine.
    pub host: Host,
    /// The workload's name.
    pub workload: String,
    /// What its values consisted of.
    #[serde(default)]
    pub values: ValueKind,
    /// Length of each run.
    pub seconds: u64,
    /// What was offered to each server.
    pub offered: Offered,
    /// Most co-located threads.
    pub colocated: u32,
    /// The servers as they were emulated.
    pub emulated: ScaledProfile,
    /// Where the stores lay: `memory (/dev/shm)` or a directory.
    #[serde(default)]
    pub stores: String,
    /// How the workload reached the servers: `inside` their processes, or as clients through
    /// `resp`.
    #[serde(default)]
    pub through: String,
    /// One run for each policy and each length of values that are separated, in the order asked
    /// for.
    pub runs: Vec<PolicyRun>,
    /// The saturation run of `local` that `rate: N%` was measured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<PolicyRun>,
    /// What went wrong without ending the lab.
    pub warnings: Vec<String>,
    /// All that the servers recorded, for plots; not part of the JSON.
    #[serde(skip)]
    pub recording: Recording,
}

/// What was offered to each server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offered {
    /// `saturation`, `2500` (op/s) or `70% of local`.
    pub rate: String,
    /// Operations per second by server; empty at saturation.
    pub ops_per_s: BTreeMap<String, f64>,
}

/// One policy's run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyRun {
    /// The policy's name, with `+` and the least length of a value that is separated, where any is:
    /// `eco+128`.
    pub policy: String,
    /// That length in bytes; none where all values stay with their keys.
    #[serde(default)]
    pub separation_min_bytes: Option<u32>,
    /// The servers in the profile's order.
    pub servers: Vec<ServerRun>,
    /// All servers together.
    pub total: Total,
    /// How well the policy predicted.
    pub models: ModelErrors,
}

/// One server's part of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerRun {
    /// The server's name.
    pub name: String,
    /// Its tier.
    pub tier: String,
    /// Operations of its workload.
    pub ops: u64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Gets, seeks and scans per second.
    pub reads_per_s: f64,
    /// Puts and deletes per second.
    pub writes_per_s: f64,
    /// Milliseconds in which writes were slowed or stopped.
    pub stall_ms: f64,
    /// Energy, idle share included.
    pub energy_joules: f64,
    /// Where the joules come from, in the server's word: `model` in the lab.
    #[serde(default)]
    pub energy_source: String,
    /// Energy per operation (EpO) in microjoules; none without operations.
    pub epo_uj: Option<f64>,
    /// Its compactions that a worker ran.
    pub offloaded: u64,
    /// Compactions of others that it ran.
    pub taken: u64,
    /// Compactions of others that it refused.
    pub declined: u64,
    /// Its offloaded compactions that came home, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Processor time in seconds of a host core.
    pub cpu_seconds: f64,
    /// Bytes to and from other servers.
    pub network_bytes: u64,
    /// Most tables seen in level 0.
    pub l0_max: u64,
    /// Bytes of its store's directory when the last operation had ended.
    #[serde(default)]
    pub bytes_directory: Option<u64>,
    /// Bytes of keys and values that live then.
    #[serde(default)]
    pub bytes_live: Option<f64>,
    /// Space amplification ratio (SAR): the one by the other.
    #[serde(default)]
    pub sar_at_end: Option<f64>,
    /// The same figures as quotients to the first run of `local`; none without one, and for that
    /// run itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<Relative>,
}

/// All servers of a run together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// Operations per second.
    pub ops_per_s: f64,
    /// Gets, seeks and scans per second.
    pub reads_per_s: f64,
    /// Puts and deletes per second.
    pub writes_per_s: f64,
    /// Milliseconds in which writes were slowed or stopped, summed over servers.
    pub stall_ms: f64,
    /// Energy, idle share included.
    pub energy_joules: f64,
    /// Energy per operation in microjoules; none without operations.
    pub epo_uj: Option<f64>,
    /// Compactions that a worker ran.
    pub offloaded: u64,
    /// Offloaded compactions that came home.
    pub fallbacks: u64,
    /// Processor time in seconds of a host core.
    pub cpu_seconds: f64,
    /// Space amplification ratio (SAR): bytes of all directories by those that live.
    #[serde(default)]
    pub sar_at_end: Option<f64>,
    /// The same figures as quotients to the first run of `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<Relative>,
}

/// Quotients to the first run of `local`: 1 is equal. None where `local` has zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Relative {
    /// Operations per second.
    pub ops_per_s: Option<f64>,
    /// Gets, seeks and scans per second.
    pub reads_per_s: Option<f64>,
    /// Puts and deletes per second.
    pub writes_per_s: Option<f64>,
    /// Stall time.
    pub stall_ms: Option<f64>,
    /// Energy per operation.
    pub epo_uj: Option<f64>,
    /// Processor time per operation.
    pub cpu_seconds_per_op: Option<f64>,
}

fn quotient(dividend: f64, divisor: f64) -> Option<f64> {
    (divisor > 0.0).then(|| dividend / divisor)
}

/// Space amplification ratio.
fn sar(bytes_directory: Option<u64>, bytes_live: Option<f64>) -> Option<f64> {
    quotient(bytes_directory? as f64, bytes_live?)
}

/// Microjoules for each operation.
fn epo_uj(energy_joules: f64, ops: u64) -> Option<f64> {
    quotient(energy_joules * 1e6, ops as f64)
}

impl ServerRun {
    fn of(server: &ScaledServer, sums: &Final) -> ServerRun {
        let per_s = |count: u64| quotient(count as f64, sums.seconds).unwrap_or(0.0);
        ServerRun {
            name: server.name.clone(),
            tier: server.tier.clone(),
            ops: sums.ops,
            ops_per_s: per_s(sums.ops),
            reads_per_s: per_s(sums.reads),
            writes_per_s: per_s(sums.writes),
            stall_ms: sums.stall_ms,
            energy_joules: sums.energy_joules,
            energy_source: sums.energy_source.clone(),
            epo_uj: epo_uj(sums.energy_joules, sums.ops),
            offloaded: sums.offloaded,
            taken: sums.taken,
            declined: sums.declined,
            fallbacks: sums.fallbacks.clone(),
            cpu_seconds: sums.cpu_seconds,
            network_bytes: sums.network_bytes_sent + sums.network_bytes_received,
            l0_max: sums.l0_max,
            bytes_directory: sums.bytes_directory,
            bytes_live: sums.bytes_live,
            sar_at_end: sar(sums.bytes_directory, sums.bytes_live),
            relative: None,
        }
    }

    fn relative_to(&self, local: &ServerRun) -> Relative {
        Relative {
            ops_per_s: quotient(self.ops_per_s, local.ops_per_s),
            reads_per_s: quotient(self.reads_per_s, local.reads_per_s),
            writes_per_s: quotient(self.writes_per_s, local.writes_per_s),
            stall_ms: quotient(self.stall_ms, local.stall_ms),
            epo_uj: self.epo_uj.zip(local.epo_uj).and_then(|(own, local)| quotient(own, local)),
            cpu_seconds_per_op: (quotient(self.cpu_seconds, self.ops as f64))
                .zip(quotient(local.cpu_seconds, local.ops as f64))
                .and_then(|(own, local)| quotient(own, local)),
        }
    }
}

impl Total {
    fn of(servers: &[ServerRun]) -> Total {
        let sum = |field: fn(&ServerRun) -> f64| servers.iter().map(field).sum::<f64>();
        let energy_joules = sum(|server| server.energy_joules);
        Total {
            ops_per_s: sum(|server| server.ops_per_s),
            reads_per_s: sum(|server| server.reads_per_s),
            writes_per_s: sum(|server| server.writes_per_s),
            stall_ms: sum(|server| server.stall_ms),
            energy_joules,
            epo_uj: epo_uj(energy_joules, servers.iter().map(|server| server.ops).sum()),
            offloaded: servers.iter().map(|server| server.offloaded).sum(),
            fallbacks: servers.iter().flat_map(|server| server.fallbacks.values()).sum(),
            cpu_seconds: sum(|server| server.cpu_seconds),
            sar_at_end: sar(
                servers.iter().map(|server| server.bytes_directory).sum(),
                servers.iter().map(|server| server.bytes_live).sum(),
            ),
            relative: None,
        }
    }

    fn relative_to(&self, local: &Total) -> Relative {
        Relative {
            ops_per_s: quotient(self.ops_per_s, local.ops_per_s),
            reads_per_s: quotient(self.reads_per_s, local.reads_per_s),
            writes_per_s: quotient(self.writes_per_s, local.writes_per_s),
            stall_ms: quotient(self.stall_ms, local.stall_ms),
            epo_uj: self.epo_uj.zip(local.epo_uj).and_then(|(own, local)| quotient(own, local)),
            // Runs are of one length, so quotients of rates are quotients of counts.
            cpu_seconds_per_op: (quotient(self.cpu_seconds, self.ops_per_s))
                .zip(quotient(local.cpu_seconds, local.ops_per_s))
                .and_then(|(own, local)| quotient(own, local)),
        }
    }
}

/// The different names among `names`, in alphabetical order, joined with `, `.
pub(crate) fn energy_sources<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

impl PolicyRun {
    /// Where the joules of this run come from; several names, joined with `, `, should the servers
    /// disagree.
    pub fn energy_source(&self) -> String {
        energy_sources(self.servers.iter().map(|server| server.energy_source.as_str()))
    }

    /// Sums up a run.
    ///
    /// # Errors
    /// [`LabError::Server`] if a server left no final record.
    pub fn of(recording: &PolicyRecording, emulated: &ScaledProfile) -> Result<PolicyRun, LabError> {
        let mut servers = Vec::with_capacity(emulated.servers.len());
        for server in &emulated.servers {
            let sums = recording.servers.iter().find(|one| one.server == server.name).and_then(|one| one.sums.as_ref());
            let sums = sums.ok_or_else(|| LabError::Server {
                server: server.name.clone(),
                policy: recording.policy.clone(),
                what: "left no final record".to_owned(),
                log: String::new(),
            })?;
            servers.push(ServerRun::of(server, sums));
        }
        let models = ModelErrors::of(&recording.servers);
        Ok(PolicyRun {
            policy: recording.policy.clone(),
            separation_min_bytes: recording.separation_min_bytes,
            total: Total::of(&servers),
            servers,
            models,
        })
    }
}

/// Writes into every run how it compares with the first run of `local`, if there is one.
pub fn relate_to_local(runs: &mut [PolicyRun]) {
    let Some(local) = first_local(runs).cloned() else { return };
    for run in runs.iter_mut().filter(|run| run.policy != local.policy) {
        for (server, local) in run.servers.iter_mut().zip(&local.servers) {
            server.relative = Some(server.relative_to(local));
        }
        run.total.relative = Some(run.total.relative_to(&local.total));
    }
}

/// The run that others are compared with.
fn first_local(runs: &[PolicyRun]) -> Option<&PolicyRun> {
    runs.iter().find(|run| run.policy.split('+').next() == Some("local"))
}

impl LabReport {
    /// The run of `local` that others are compared with, if there is one: of several the first.
    pub fn local(&self) -> Option<&PolicyRun> {
        first_local(&self.runs)
    }

    /// Where the joules come from; several names, joined with `, `, should the servers disagree.
    pub fn energy_source(&self) -> String {
        let names = self.runs.iter().flat_map(|run| &run.servers).map(|server| server.energy_source.as_str());
        energy_sources(names)
    }

    /// The server that gets the co-located threads, if there are any.
    pub fn colocated_server(&self) -> Option<&str> {
        let tiers = self.emulated.servers.iter().map(|server| server.tier.as_str());
        let index = colocated_server(tiers).filter(|_| self.colocated > 0)?;
        Some(&self.emulated.servers[index].name)
    }

    /// The steps of the co-located load: at which second from the start how many threads run.
    pub fn colocated_steps(&self) -> Vec<(f64, u32)> {
        colocated_steps(self.seconds, self.colocated)
    }
}
