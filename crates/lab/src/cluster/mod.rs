//! What a federation of servers costs on this machine, and how fast it decides: real processes,
//! at the speed of the host (but for offloaded jobs), measured part by part.
//!
//! Flow: [`ClusterOptions`] -> parts, one after the other ([`Part`]), each with servers of its own
//! -> [`ClusterReport`]. What could not be measured is in [`ClusterReport::unavailable`], with why:
//! no figure stands for what was not done.
//!
//! Invariants. Servers and their folders are gone when the lab ends, also by an error or Ctrl-C.
//! Every wait is bounded by [`ClusterOptions::patience`]. What is compared is measured in turn, in
//! the same minutes.
//!
//! Failure: a server that ends or does not answer ends the lab, with the end of its log.
//!
//! Threads: the caller's; a reader for each server's output, and those of the forwarder.

mod clients;
pub mod copies;
mod decisions;
mod forwarder;
mod idle;
mod report;
mod servers;
mod shards;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

pub use report::{
    BenchmarkCost, ClientsCost, ClusterReport, Commits, Failovers, Idle, IdlePair, IdleServer, ShardsCost, Times,
    TlsCost, text,
};

use crate::error::LabError;
use crate::locked_directory::LockedDirectory;
use crate::process::Interruption;
use crate::scaling::Host;
use servers::Scene;

/// Where servers' folders lie by default: on a disk, by custom.
const DISK: &str = "/var/tmp";
/// The least servers of which one may be lost and the others decide.
const MIN_SERVERS: usize = 3;
/// The most: what a machine can be asked for.
const MAX_SERVERS: usize = 9;

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// How long a federation decides nothing when its leader fails.
    Failover,
    /// How long a change takes.
    Commit,
    /// What servers use while nobody asks for anything.
    Idle,
    /// What cluster mode costs clients.
    Clients,
    /// What encryption costs an offloaded job.
    Tls,
    /// What several shards cost a server.
    Shards,
}

impl Part {
    /// Every part, in the order in which they run.
    pub const ALL: [Part; 6] = [Part::Commit, Part::Idle, Part::Failover, Part::Clients, Part::Tls, Part::Shards];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Failover => "failover",
            Part::Commit => "commit",
            Part::Idle => "idle",
            Part::Clients => "clients",
            Part::Tls => "tls",
            Part::Shards => "shards",
        }
    }
}

impl std::str::FromStr for Part {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Part, LabError> {
        let found = Part::ALL.into_iter().find(|part| part.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Part::ALL.iter().map(|part| part.name()).collect();
            LabError::option("--only", format!("there is no part `{text}`; there are {}", names.join(", ")))
        })
    }
}

/// What is measured, and how often.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The parts.
    pub parts: Vec<Part>,
    /// Servers of the federation.
    pub servers: usize,
    /// How often a leader is killed.
    pub kills: u32,
    /// How often one is stopped (SIGSTOP), and as often cut off one way.
    pub pauses: u32,
    /// Changes that are asked for at the leader, and as many at another server.
    pub commits: u32,
    /// How long idle servers are watched.
    pub idle: Duration,
    /// Rounds of what is compared: clients, TLS, shards.
    pub rounds: u32,
    /// Requests of each run of redis-benchmark.
    pub requests: u32,
    /// Length of a run whose offloaded jobs are timed.
    pub job_seconds: u64,
    /// Shards of the server with several.
    pub shards: u32,
    /// Where servers' folders lie; none: `/var/tmp`.
    pub stores: Option<PathBuf>,
    /// The program that is started as `PROGRAM serve ...`.
    pub server_program: PathBuf,
    /// How long anything may take.
    pub patience: Duration,
}

impl ClusterOptions {
    /// All parts, long enough for figures that may be compared with the goals; servers are this
    /// program.
    ///
    /// # Errors
    /// [`LabError::Io`] if the running program's path cannot be found.
    pub fn new() -> Result<Self, LabError> {
        Ok(ClusterOptions {
            parts: Part::ALL.to_vec(),
            servers: MIN_SERVERS,
            kills: 200,
            pauses: 30,
            commits: 500,
            idle: Duration::from_secs(30),
            rounds: 5,
            requests: 200_000,
            job_seconds: 40,
            shards: 16,
            stores: None,
            server_program: std::env::current_exe().map_err(LabError::io("cannot find the running program", "."))?,
            patience: Duration::from_secs(60),
        })
    }

    /// Checks what can be known before anything is started.
    ///
    /// # Errors
    /// [`LabError::Option`] that names the option.
    pub fn check(&self) -> Result<(), LabError> {
        if self.parts.is_empty() {
            return Err(LabError::option("--only", "name at least one part, such as failover,commit"));
        }
        if !(MIN_SERVERS..=MAX_SERVERS).contains(&self.servers) {
            return Err(LabError::option("--servers", format!("must be between {MIN_SERVERS} and {MAX_SERVERS}")));
        }
        let at_least_one = [
            ("--kills", self.kills),
            ("--pauses", self.pauses),
            ("--commits", self.commits),
            ("--rounds", self.rounds),
            ("--requests", self.requests),
        ];
        for (option, number) in at_least_one {
            if number == 0 {
                return Err(LabError::option(option, "must be at least 1"));
            }
        }
        if self.shards < 2 {
            return Err(LabError::option("--shards", "must be at least 2: it is compared with one"));
        }
        if self.idle.is_zero() {
            return Err(LabError::option("--idle-seconds", "must be at least 1"));
        }
        if self.job_seconds == 0 {
            return Err(LabError::option("--job-seconds", "must be at least 1"));
        }
        Ok(())
    }

    fn wants(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

/// Measures a federation on this machine; `say` is told what is being done.
///
/// It takes over Ctrl-C while it runs, so that nothing is left behind: one lab of a process at a
/// time.
///
/// # Errors
/// See [`LabError`]; nothing the lab made is left behind.
pub fn run_cluster_lab(options: &ClusterOptions, say: &mut dyn FnMut(&str)) -> Result<ClusterReport, LabError> {
    options.check()?;
    let interruption = Interruption::listen();
    let beneath = options.stores.clone().unwrap_or_else(|| DISK.into());
    let folder = LockedDirectory::make_in(&beneath).map_err(LabError::io("cannot make a directory in", &beneath))?;
    let mut scene = Scene { options, folder: folder.path(), interruption: &interruption, say, places: None };
    let mut report = ClusterReport::of(Host::here(), options, beneath.display().to_string());
    if options.parts.iter().any(|part| matches!(part, Part::Commit | Part::Idle | Part::Failover)) {
        let mut federation = scene.federation("federation", options.servers, false)?;
        if options.wants(Part::Commit) {
            report.commit_ms = Some(decisions::commits(&mut scene, &mut federation)?);
        }
        if options.wants(Part::Idle) {
            let idle = idle::measure(&mut scene, &mut federation)?;
            report.idle_core_share = idle.servers.iter().map(|server| server.core_share).reduce(f64::max);
            report.idle_bytes_per_s =
                idle.pairs.as_ref().map(|pairs| pairs.iter().map(|pair| pair.bytes_per_s).fold(0.0, f64::max));
            if idle.pairs.is_none() {
                report.lacks("idle_bytes_per_s", "there is no `ss` (iproute2), which counts the bytes of connections");
            }
            report.idle = Some(idle);
        }
        if options.wants(Part::Failover) {
            report.leader_failover_ms = Some(decisions::failovers(&mut scene, &mut federation)?);
        }
    }
    if options.wants(Part::Clients) {
        match clients::measure(&mut scene)? {
            Ok(cost) => report.cluster_cost = Some(cost),
            Err(why) => report.lacks("cluster_cost", &why),
        }
    }
    if options.wants(Part::Tls) {
        match tls::measure(&mut scene)? {
            Ok(cost) => report.tls_cost = Some(cost),
            Err(why) => report.lacks("tls_cost", &why),
        }
    }
    if options.wants(Part::Shards) {
        match shards::measure(&mut scene)? {
            Ok(cost) => report.shards_cost = Some(cost),
            Err(why) => report.lacks("shards_cost", &why),
        }
    }
    Ok(report)
}
