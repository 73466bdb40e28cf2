//! What a caller may choose about a lab.

use std::{collections::BTreeSet, path::PathBuf, str::FromStr, time::Duration};

use ecotone_policy::policy::PolicyName;

use ecotone_bench::target::resp::{ServerOptions, check_workload};
use ecotone_bench::workload::{ValueKind, Workload};

use crate::error::LabError;
use crate::profile::Profile;

/// Most co-located threads: twice the cores of the papers' largest server.
const MAX_COLOCATED_THREADS: u32 = 16;

/// A lab: which workload, on which servers, under which policies.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// What the servers run.
    pub workload: Workload,
    /// The servers.
    pub profile: Profile,
    /// Policies to run, one after the other, in this order. `local` is the one others are compared
    /// with.
    pub policies: Vec<PolicyName>,
    /// The least length in bytes of values that stores separate from their keys; none: all stay
    /// with them. Every policy runs with each of these, in this order.
    pub separations: Vec<Option<u32>>,
    /// Length of each run.
    pub seconds: u64,
    /// Operations offered to each server; none: as many as it takes.
    pub rate: Option<OfferedRate>,
    /// Co-located busy threads on the first server of tier `high`, growing from 0 to this over each
    /// run.
    pub colocated: u32,
    /// Client threads of each server's workload.
    pub threads: u32,
    /// Keys of each server's store; none: the profile's number for this workload.
    pub keys: Option<u64>,
    /// What values consist of.
    pub values: ValueKind,
    /// Seed of the workload, the same for every policy.
    pub seed: u64,
    /// How the workload reaches the servers.
    pub through: Through,
    /// Whether servers show certificates to each other, as on several machines; else they speak plain
    /// text.
    pub tls: bool,
    /// Where logs, records and the report stay. Stores are removed after each run in any case.
    pub record: Option<PathBuf>,
    /// Where the servers' stores lie; none: in memory where they fit, else on the disk.
    pub stores: Option<PathBuf>,
    /// The program that is started as `PROGRAM serve ...`.
    pub server_program: PathBuf,
    /// How long the lab waits for a server before it calls it hung.
    pub patience: Patience,
}

/// How the workload reaches the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Through {
    /// It runs inside each server's process, as in the papers.
    #[default]
    Inside,
    /// Clients of the lab's own send it over TCP, by the Redis protocol.
    Resp {
        /// Requests that each client thread has under way at once.
        pipeline: u32,
    },
}

impl Through {
    /// The share of the host that is left to the lab's clients, which run outside of the emulated
    /// cores. A request costs a client about as much as it costs the server's thread.
    pub const CLIENTS_HOST_SHARE: f64 = 0.2;

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Through::Inside => "inside",
            Through::Resp { .. } => "resp",
        }
    }

    /// The share of the host that the emulated cores may have.
    pub(crate) const fn servers_host_share(self) -> f64 {
        match self {
            Through::Inside => 1.0,
            Through::Resp { .. } => 1.0 - Self::CLIENTS_HOST_SHARE,
        }
    }
}

/// The name of a run: the policy's, and behind a `+` the least length of a value that is separated,
/// if any is.
pub(crate) fn run_name(policy: PolicyName, separation_min_bytes: Option<u32>) -> String {
    match separation_min_bytes {
        Some(bytes) => format!("{}+{bytes}", policy.name()),
        None => policy.name().to_owned(),
    }
}

/// How long the lab waits for a server before it calls it hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For `ready`, when nothing is loaded first.
    pub ready: Duration,
    /// For `ready`, when the store is loaded first.
    pub load: Duration,
    /// Between two records during the run. Servers report every second; a slow core under load may
    /// be late.
    pub silence: Duration,
    /// For `final`, after the workload's seconds are over. A stalled write may hold a client for a
    /// while.
    pub final_record: Duration,
    /// For the process to end after `stop`.
    pub stop: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            ready: Duration::from_secs(60),
            load: Duration::from_secs(900),
            silence: Duration::from_secs(30),
            final_record: Duration::from_secs(60),
            stop: Duration::from_secs(60),
        }
    }
}

/// Operations offered to each server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OfferedRate {
    /// Operations per second, the same for every server.
    OpsPerS(f64),
    /// A share (0 to 1] of what the server reaches under `local` without limit and with the first
    /// separation, measured first.
    ShareOfLocal(f64),
}

impl FromStr for OfferedRate {
    type Err = LabError;

    /// Reads `2500` (operations per second) or `70%` (of what `local` reaches).
    fn from_str(text: &str) -> Result<Self, LabError> {
        let wrong = || {
            LabError::option(
                "--rate",
                format!(
                    "`{text}` is neither operations per second (2500) nor a share of local above 0 and up to 100 % (70%)"
                ),
            )
        };
        let (number, share) = match text.trim().strip_suffix('%') {
            Some(number) => (number, true),
            None => (text, false),
        };
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        match share {
            true if number > 0.0 && number <= 100.0 => Ok(OfferedRate::ShareOfLocal(number / 100.0)),
            false if number > 0.0 && number.is_finite() => Ok(OfferedRate::OpsPerS(number)),
            _ => Err(wrong()),
        }
    }
}

impl LabOptions {
    /// A lab with the papers' defaults: one client thread, no rate limit, no co-located load;
    /// servers are this program.
    ///
    /// # Errors
    /// [`LabError::Io`] if the running program's path cannot be found.
    pub fn new(
        workload: Workload,
        profile: Profile,
        policies: Vec<PolicyName>,
        seconds: u64,
    ) -> Result<Self, LabError> {
        Ok(LabOptions {
            workload,
            profile,
            policies,
            separations: vec![None],
            seconds,
            rate: None,
            colocated: 0,
            threads: 1,
            keys: None,
            values: ValueKind::default(),
            seed: 1,
            through: Through::default(),
            tls: false,
            record: None,
            stores: None,
            server_program: std::env::current_exe().map_err(LabError::io("cannot find the running program", "."))?,
            patience: Patience::default(),
        })
    }

    /// Whether servers load their stores before they are ready.
    pub fn preloads(&self) -> bool {
        !self.workload.fills()
    }

    /// Client threads that are busy at once on each server.
    pub fn foreground_threads(&self) -> u32 {
        self.workload.driver_threads(self.threads)
    }

    /// Checks what can be known before anything is started.
    ///
    /// # Errors
    /// [`LabError::Option`] that names the option.
    pub fn check(&self) -> Result<(), LabError> {
        if self.policies.is_empty() {
            return Err(LabError::option("--policies", "name at least one policy, such as local,eco"));
        }
        let mut seen = BTreeSet::new();
        for policy in &self.policies {
            if !seen.insert(policy) {
                return Err(LabError::option("--policies", format!("`{}` is named twice", policy.name())));
            }
        }
        let mut seen = BTreeSet::new();
        for separation in &self.separations {
            if !seen.insert(separation) {
                return Err(LabError::option("--separation", "a length is named twice"));
            }
        }
        if self.separations.is_empty() || self.separations.contains(&Some(0)) {
            return Err(LabError::option("--separation", "name lengths of at least 1 byte, or off, such as off,128"));
        }
        if self.seconds == 0 {
            return Err(LabError::option("--seconds", "must be at least 1"));
        }
        if self.threads == 0 {
            return Err(LabError::option("--threads", "must be at least 1"));
        }
        if self.keys == Some(0) {
            return Err(LabError::option("--keys", "must be at least 1"));
        }
        if let Through::Resp { pipeline } = self.through {
            let option = |reason| LabError::option("--through resp", reason);
            check_workload(self.workload).map_err(|error| option(error.to_string()))?;
            if !(1..=ServerOptions::MAX_PIPELINE).contains(&pipeline) {
                return Err(LabError::option(
                    "--pipeline",
                    format!("must be between 1 and {}", ServerOptions::MAX_PIPELINE),
                ));
            }
            if pipeline > 1 && self.rate.is_some() {
                return Err(LabError::option(
                    "--pipeline",
                    "with --rate each operation is sent when it is due: leave it at 1",
                ));
            }
        }
        if self.colocated > MAX_COLOCATED_THREADS {
            return Err(LabError::option("--colocated", format!("must be at most {MAX_COLOCATED_THREADS}")));
        }
        if self.colocated > 0 && self.profile.colocated_server().is_none() {
            return Err(LabError::option("--colocated", "needs a server of tier `high` in the profile"));
        }
        if self.colocated > 0 && self.seconds <= u64::from(self.colocated) {
            return Err(LabError::option("--colocated", "the run must have more seconds than there are steps"));
        }
        Ok(())
    }
}
