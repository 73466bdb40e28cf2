//! What copies of a shard cost and how fast one takes over: three real servers that hold one shard
//! together, beside the same stores as servers alone that are fed the same writes.
//!
//! Flow: [`CopiesOptions`] -> parts ([`Part`]), all with one federation -> [`CopiesReport`]. What
//! could not be measured is in [`CopiesReport::unavailable`], with why.
//!
//! Invariants. Each server has a quota of processor time and a link of its own ([`places`]), where
//! the machine permits them. What is compared is measured in turn, with the same quotas. Servers,
//! folders, cgroups and namespaces are gone at the end, also by an error or Ctrl-C; every wait is
//! bounded by [`CopiesOptions::patience`].
//!
//! Failure: as in the measurement of a federation.
//!
//! Threads: the caller's; those of the driver of load, and one for a client that writes on while a
//! shard is handed over.

mod client;
pub mod concerto;
mod failures;
mod load;
pub(super) mod places;
mod report;
mod seeding;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

pub use report::{CopiesReport, Costs, LevelThroughput, Seeding, Throughput, text};

use super::servers::{Federation, Scene, Server};
use super::{ClusterOptions, DISK};
use crate::error::LabError;
use crate::locked_directory::LockedDirectory;
use crate::process::Interruption;
use crate::scaling::Host;
use places::Places;

/// Servers, each of which holds a copy.
const SERVERS: usize = 3;
/// Of the host, for all servers; the rest is for clients.
const SERVERS_SHARE: f64 = 0.8;
/// The most of a host core for a server: more than a shard needs would not be noticed.
const MAX_SHARE: f64 = 2.0;
/// Links of all parts but that of seeding, where a link is to be the limit.
const LINK_MBIT: u32 = 1000;
/// How long a shard may be too busy to be handed over.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at the copies.
const LOOK: Duration = Duration::from_millis(20);

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Writes a second at each level, beside one copy.
    Throughput,
    /// Processor time, joules and bytes of copies, beside stores that compact for themselves.
    Costs,
    /// By how much copies are behind.
    Lag,
    /// How long nobody writes when the primary is killed.
    Failover,
    /// And when that is the leader of the federation, too.
    Both,
    /// How long nobody writes while a shard is handed over.
    SwitchOver,
    /// How fast a copy is made.
    Seeding,
}

impl Part {
    /// Every part, in the order in which they run.
    pub const ALL: [Part; 7] =
        [Part::Throughput, Part::Costs, Part::Lag, Part::SwitchOver, Part::Failover, Part::Both, Part::Seeding];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Throughput => "throughput",
            Part::Costs => "costs",
            Part::Lag => "lag",
            Part::Failover => "failover",
            Part::Both => "both",
            Part::SwitchOver => "switch-over",
            Part::Seeding => "seeding",
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
pub struct CopiesOptions {
    /// The parts.
    pub parts: Vec<Part>,
    /// Rounds of what is compared: throughput, costs.
    pub rounds: u32,
    /// Length of the runs whose costs are compared; runs of throughput have a quarter of it.
    pub seconds: u32,
    /// How often the primary is killed; a quarter as often while it leads.
    pub kills: u32,
    /// How often the shard is handed over.
    pub switches: u32,
    /// Keys that are written again and again.
    pub keys: u32,
    /// The link over which a copy is seeded, in Mbit/s.
    pub seeding_mbit: u32,
    /// Where servers' folders lie; none: `/var/tmp`.
    pub stores: Option<PathBuf>,
    /// The program that is started as `PROGRAM serve ...`.
    pub server_program: PathBuf,
    /// How long anything may take.
    pub patience: Duration,
}

impl CopiesOptions {
    /// All parts, within some eight minutes; servers are this program.
    ///
    /// # Errors
    /// [`LabError::Io`] if the running program's path cannot be found.
    pub fn new() -> Result<Self, LabError> {
        Ok(CopiesOptions {
            parts: Part::ALL.to_vec(),
            rounds: 3,
            seconds: 20,
            kills: 20,
            switches: 20,
            keys: 100_000,
            seeding_mbit: 100,
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
            return Err(LabError::option("--only", "name at least one part, such as failover,lag"));
        }
        let at_least_one = [
            ("--rounds", self.rounds),
            ("--seconds", self.seconds),
            ("--kills", self.kills),
            ("--switches", self.switches),
            ("--keys", self.keys),
            ("--seeding-mbit", self.seeding_mbit),
        ];
        for (option, number) in at_least_one {
            if number == 0 {
                return Err(LabError::option(option, "must be at least 1"));
            }
        }
        Ok(())
    }

    fn wants(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

/// The federation that is measured, and how.
struct Measurement<'a> {
    options: &'a CopiesOptions,
    places: &'a Places,
    scene: Scene<'a>,
    federation: Federation,
    /// Writes a second that the federation takes at its default level, once known.
    peak: Option<f64>,
}

/// What the leader says of the one shard.
struct Shard {
    id: String,
    primary: String,
    /// Servers with a copy, and whether it is in sync and has all that is needed to be counted.
    copies: Vec<(String, bool)>,
}

impl Measurement<'_> {
    fn server(&self, name: &str) -> Result<&Server, LabError> {
        let found = self.federation.servers.iter().find(|server| server.name == name);
        found.ok_or_else(|| self.failure(format!("no server is called `{name}`")))
    }

    fn failure(&self, reason: String) -> LabError {
        LabError::Measurement { what: "copies".into(), reason }
    }

    /// What the leader, by its index, says.
    fn shard_by(&self, leader: usize) -> Result<Option<Shard>, LabError> {
        let status = self.federation.servers[leader].json(&["FEDERATION", "STATUS"])?;
        Ok(read_shard(&status))
    }

    /// Waits until so many copies are all in sync, and `primary`, if one is named, is the primary.
    /// Also who leads.
    fn in_sync(&self, copies: usize, primary: Option<&str>) -> Result<(usize, Shard), LabError> {
        let until = Instant::now() + self.scene.options.patience;
        loop {
            let leader = self.federation.settled(&self.scene)?;
            if let Some(shard) = self.shard_by(leader)? {
                let good = shard.copies.iter().filter(|(_, in_sync)| *in_sync).count();
                let is_primary = primary.is_none_or(|primary| shard.primary == primary);
                if good == copies && shard.copies.len() == copies && !shard.primary.is_empty() && is_primary {
                    return Ok((leader, shard));
                }
            }
            if Instant::now() >= until {
                let status = self.federation.servers[leader].text(&["FEDERATION", "STATUS"])?;
                let server = &self.federation.servers[leader];
                return Err(server.failure(&format!("sees no {copies} copies in sync in time: {status}")));
            }
            self.scene.rest(LOOK)?;
        }
    }

    /// Changes a setting of the federation.
    fn set(&self, name: &str, value: &str) -> Result<(), LabError> {
        let leader = self.federation.settled(&self.scene)?;
        self.federation.servers[leader].json(&["FEDERATION", "SET", name, value]).map(drop)
    }

    /// Hands the shard over. It is refused while a change of the shard is under way.
    fn hand_over(&self, leader: usize, shard: &Shard, to: &str) -> Result<(), LabError> {
        let until = Instant::now() + HAND_OVER_PATIENCE;
        loop {
            let answer = self.federation.servers[leader].json(&["FEDERATION", "SWITCHOVER", &shard.id, "TO", to]);
            match answer {
                Err(_) if Instant::now() < until => self.scene.rest(LOOK)?,
                answer => return answer.map(drop),
            }
        }
    }
}

fn read_shard(status: &Value) -> Option<Shard> {
    let shard = status["shards"].get(0)?;
    let copies = shard["copies"].as_array()?.iter().map(|copy| {
        let good = copy["in_sync"] == true && copy["silent"] == false && copy["whole"] == true;
        (copy["server"].as_str().unwrap_or_default().to_owned(), good)
    });
    Some(Shard {
        id: shard["shard"].to_string(),
        primary: shard["primary"].as_str().unwrap_or_default().to_owned(),
        copies: copies.collect(),
    })
}

/// Measures copies on this machine; `say` is called with what is being done.
///
/// It takes over Ctrl-C while it runs, so that nothing is left behind: one lab of a process at a
/// time.
///
/// # Errors
/// See [`LabError`]; nothing the lab made is left behind.
pub fn run_copies_lab(options: &CopiesOptions, say: &mut dyn FnMut(&str)) -> Result<CopiesReport, LabError> {
    options.check()?;
    let interruption = Interruption::listen();
    let beneath = options.stores.clone().unwrap_or_else(|| DISK.into());
    let folder = LockedDirectory::make_in(&beneath).map_err(LabError::io("cannot make a directory in", &beneath))?;
    let host = Host::here();
    let share = (host.cores * SERVERS_SHARE / SERVERS as f64).clamp(crate::scaling::MIN_SPEED, MAX_SHARE);
    let places = Places::make(share, LINK_MBIT);
    let cluster = ClusterOptions {
        rounds: options.rounds,
        server_program: options.server_program.clone(),
        patience: options.patience,
        ..ClusterOptions::new()?
    };
    let mut report = CopiesReport::of(host, share, &places, beneath.display().to_string());
    let mut scene =
        Scene { options: &cluster, folder: folder.path(), interruption: &interruption, say, places: Some(&places) };
    let federation = scene.federation("copies", SERVERS, false)?;
    let mut measurement = Measurement { options, places: &places, scene, federation, peak: None };
    measurement.set("replication.copies", &SERVERS.to_string())?;
    let leader = measurement.federation.settled(&measurement.scene)?;
    measurement.federation.servers[leader].json(&["FEDERATION", "CREATE", "1"])?;
    measurement.in_sync(SERVERS, None)?;
    for part in Part::ALL.into_iter().filter(|part| options.wants(*part)) {
        measure(&mut measurement, part, &mut report)?;
    }
    Ok(report)
}

fn measure(measurement: &mut Measurement<'_>, part: Part, report: &mut CopiesReport) -> Result<(), LabError> {
    match part {
        Part::Throughput => report.throughput = Some(load::throughput(measurement)?),
        Part::Costs => {
            let costs = load::costs(measurement)?;
            report.cpu_ratio = Some(costs.cpu_ratio);
            report.joules_ratio = Some(costs.joules_ratio);
            report.replica_cpu_share = Some(costs.replica_cpu_share);
            report.wire_bytes_per_user_byte = costs.wire_bytes_per_user_byte;
            report.costs = Some(costs);
        }
        Part::Lag => report.lag_ms = Some(load::lag(measurement)?),
        Part::SwitchOver => report.switch_over_ms = Some(failures::switch_overs(measurement)?),
        Part::Failover => report.failover_ms = Some(failures::failovers(measurement, false)?),
        Part::Both => report.failover_of_both_ms = Some(failures::failovers(measurement, true)?),
        Part::Seeding => match seeding::measure(measurement)? {
            Ok(seeding) => {
                report.seeding_share_of_link = Some(seeding.share_of_link);
                report.seeding = Some(seeding);
            }
            Err(why) => report.lacks("seeding_share_of_link", &why),
        },
    }
    if part == Part::Costs && report.wire_bytes_per_user_byte.is_none() {
        report.lacks("wire_bytes_per_user_byte", "bytes are counted at links, which servers here have not");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_is_read_from_what_a_leader_says() {
        let copy = |server: &str, in_sync: bool, silent: bool| serde_json::json!({"server": server, "in_sync": in_sync, "silent": silent, "whole": true});
        let copies = [copy("a", true, false), copy("b", false, false), copy("c", true, true)];
        let status = serde_json::json!({"shards": [{"shard": 7, "primary": "a", "copies": copies}]});
        let shard = read_shard(&status).unwrap();
        assert_eq!((shard.id.as_str(), shard.primary.as_str()), ("7", "a"));
        let good: Vec<bool> = shard.copies.iter().map(|copy| copy.1).collect();
        assert_eq!(good, [true, false, false]);
        // Nobody is the primary meanwhile.
        let status = serde_json::json!({"shards": [{"shard": 7, "primary": null, "copies": []}]});
        assert_eq!(read_shard(&status).unwrap().primary, "");
        assert!(read_shard(&serde_json::json!({"shards": []})).is_none());
    }
}
