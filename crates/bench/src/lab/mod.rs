//! The lab: real servers of unequal speed on one machine, driven with the papers' workloads under one policy after another.
//!
//! Flow: [`Profile`] -> [`ScaledProfile`] (speeds that fit this host) -> for each policy, and each length of values that are kept
//! apart, a run (emulated cores, server
//! processes, their records) -> [`LabReport`].
//!
//! Invariants. A run never compares unequal servers that were equal: without emulated cores the lab stops. Whatever a run
//! makes (processes, cgroups, stores) is gone when it ends, also by an error or Ctrl-C. Every wait is bounded by
//! [`Patience`]. Energy in a report is what servers computed from their model, and says so.
//!
//! Threads: the lab runs on the caller's thread; one thread for each server reads its output. Where the workload goes through the
//! protocol, each server has client threads in this process, outside of all emulated cores.

mod cgroups;
mod clients;
mod colocated;
mod emulation;
mod error;
mod host;
mod model_errors;
mod options;
mod own_directory;
mod place;
mod process;
mod profile;
mod progress;
mod recording;
mod run;
mod scaling;
mod server_process;
mod summary;

use std::collections::BTreeMap;

pub use cgroups::Cgroups;
pub use emulation::{EmulatedCores, Emulation};
pub use error::LabError;
pub use host::Host;
pub(crate) use model_errors::job_errors;
pub use model_errors::{COUNTED_FROM_TRAININGS, ModelErrors};
pub use options::{LabOptions, OfferedRate, Patience, Through};
pub use profile::{Profile, ServerProfile, StoreSettings, WorkloadSizes};
pub use progress::{Progress, Quiet, Tick};
pub use recording::{PolicyRecording, Recording, ServerRecording};
pub use scaling::{Demand, HOST_SHARE, MIN_SPEED, ScaledProfile, ScaledServer};
pub use summary::{LabReport, Offered, PolicyRun, Relative, ServerRun, Total, relate_to_local};

use ecotone_policy::policy::PolicyName;

use options::run_name;
use place::Place;
use process::Interruption;
use run::{Plan, run};

/// The directory of the run that measures what `local` reaches.
const CALIBRATION: &str = "local-at-saturation";

/// Runs the lab on this machine.
///
/// It takes over Ctrl-C while it runs, so that nothing is left behind: one lab of a process at a time.
///
/// # Errors
/// See [`LabError`]; nothing the lab made is left behind, except for logs and records in [`LabOptions::record`].
pub fn run_lab(options: &LabOptions, progress: &mut dyn Progress) -> Result<LabReport, LabError> {
    options.check()?;
    run_lab_on(options, &Cgroups::make()?, Host::here(), progress)
}

/// Runs the lab with emulated cores made by `emulation` on a machine described by `host`.
///
/// # Errors
/// See [`LabError`]; nothing the lab made is left behind, except for logs and records in [`LabOptions::record`].
pub fn run_lab_on(
    options: &LabOptions,
    emulation: &dyn Emulation,
    host: Host,
    progress: &mut dyn Progress,
) -> Result<LabReport, LabError> {
    options.check()?;
    let demand = Demand {
        foreground_threads: options.foreground_threads(),
        colocated_threads: options.colocated,
        seconds: options.seconds,
    };
    let share = options.through.servers_host_share();
    let mut emulated = options.profile.scaled_to(host.cores * share, demand)?;
    emulated.host_share *= share;
    let interruption = Interruption::listen();
    let place = Place::make(options, host.cores * emulated.host_share)?;

    let mut lab = Lab { options, emulation, emulated, interruption, place, progress, warnings: Vec::new(), index: 0 };
    let measured_first = matches!(options.rate, Some(OfferedRate::ShareOfLocal(_)));
    let runs_wanted = options.policies.len() * options.separations.len() + usize::from(measured_first);
    lab.progress.begin(runs_wanted, options.seconds);

    let mut offered = Offered { rate: "saturation".to_owned(), ops_per_s: BTreeMap::new() };
    let mut calibration = None;
    match options.rate {
        None => {}
        Some(OfferedRate::OpsPerS(rate)) => {
            offered.rate = format!("{rate} op/s");
            offered.ops_per_s = lab.emulated.servers.iter().map(|server| (server.name.clone(), rate)).collect();
        }
        Some(OfferedRate::ShareOfLocal(share)) => {
            let first = options.separations.first().copied().flatten();
            let (_, local) = lab.run(PolicyName::Local, first, CALIBRATION, &BTreeMap::new())?;
            offered.rate = format!("{:.0}% of local", share * 100.0);
            // A limit of zero would mean none.
            let limit = |server: &ServerRun| (server.ops_per_s * share).max(1.0);
            offered.ops_per_s = local.servers.iter().map(|server| (server.name.clone(), limit(server))).collect();
            calibration = Some(local);
        }
    }

    let mut recording = Recording::default();
    let mut runs = Vec::with_capacity(runs_wanted);
    for &separation in &options.separations {
        for &policy in &options.policies {
            let name = run_name(policy, separation);
            let (records, run) = lab.run(policy, separation, &name, &offered.ops_per_s)?;
            recording.runs.push(records);
            runs.push(run);
        }
    }
    relate_to_local(&mut runs);

    let Lab { emulated, place, warnings, .. } = lab;
    let report = LabReport {
        profile: options.profile.name.clone(),
        about: options.profile.about.clone(),
        host,
        workload: options.workload.name().to_owned(),
        seconds: options.seconds,
        offered,
        colocated: options.colocated,
        emulated,
        stores: place.stores_text(),
        through: options.through.name().to_owned(),
        runs,
        calibration,
        warnings,
        recording,
    };
    place.keep(&report)?;
    Ok(report)
}

/// A lab under way.
struct Lab<'a> {
    options: &'a LabOptions,
    emulation: &'a dyn Emulation,
    emulated: ScaledProfile,
    interruption: Interruption,
    place: Place,
    progress: &'a mut dyn Progress,
    warnings: Vec<String>,
    index: usize,
}

impl Lab<'_> {
    fn run(
        &mut self,
        policy: PolicyName,
        separation_min_bytes: Option<u32>,
        directory: &str,
        ops_per_s: &BTreeMap<String, f64>,
    ) -> Result<(PolicyRecording, PolicyRun), LabError> {
        let logs = self.place.fresh(directory)?;
        let stores = self.place.fresh_stores(directory)?;
        self.progress.run_begins(self.index, &run_name(policy, separation_min_bytes));
        let plan = Plan {
            options: self.options,
            emulated: &self.emulated,
            policy,
            separation_min_bytes,
            ops_per_s,
            logs: logs.clone(),
            stores: stores.clone(),
        };
        let outcomes = run(&plan, self.emulation, &self.interruption, self.progress)?;
        self.place.tidy(&logs, &stores, &outcomes.recording)?;
        let summed = PolicyRun::of(&outcomes.recording, &self.emulated)?;
        self.warnings.extend(outcomes.warnings);
        self.progress.run_ends(self.index, &summed);
        self.index += 1;
        Ok((outcomes.recording, summed))
    }
}
