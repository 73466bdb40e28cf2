//! A lab from its options to its report: its runs one after the other.

use std::collections::BTreeMap;

use ecotone_policy::policy::PolicyName;

use crate::directories::LabDirectories;
use crate::emulation::{Cgroups, Emulation};
use crate::error::LabError;
use crate::options::{LabOptions, OfferedRate, run_name};
use crate::process::Interruption;
use crate::progress::Progress;
use crate::recording::{PolicyRecording, Recording};
use crate::run::{Plan, run};
use crate::scaling::{Demand, Host, ScaledProfile};
use crate::summary::{LabReport, Offered, PolicyRun, ServerRun, relate_to_local};

/// The directory of the run that measures what `local` reaches.
const CALIBRATION: &str = "local-at-saturation";

/// Runs the lab on this machine.
///
/// It takes over Ctrl-C while it runs, so that nothing is left behind: one lab of a process at a
/// time.
///
/// # Errors
/// See [`LabError`]; nothing the lab made is left behind, except for logs and records in
/// [`LabOptions::record`].
pub fn run_lab(options: &LabOptions, progress: &mut dyn Progress) -> Result<LabReport, LabError> {
    options.check()?;
    run_lab_on(options, &Cgroups::make()?, Host::here(), progress)
}

/// Runs the lab with emulated cores made by `emulation` on a machine described by `host`.
///
/// # Errors
/// See [`LabError`]; nothing the lab made is left behind, except for logs and records in
/// [`LabOptions::record`].
pub fn run_lab_on(
    options: &LabOptions,
    emulation: &dyn Emulation,
    host: Host,
    progress: &mut dyn Progress,
) -> Result<LabReport, LabError> {
    options.check()?;
    run_lab_under(options, emulation, host, &Interruption::listen(), progress)
}

/// The same for one who listens to the user's wish already.
pub(crate) fn run_lab_under(
    options: &LabOptions,
    emulation: &dyn Emulation,
    host: Host,
    interruption: &Interruption,
    progress: &mut dyn Progress,
) -> Result<LabReport, LabError> {
    let demand = Demand {
        foreground_threads: options.foreground_threads(),
        colocated_threads: options.colocated,
        seconds: options.seconds,
    };
    let share = options.through.servers_host_share();
    let mut emulated = options.profile.scaled_to(host.cores * share, demand)?;
    emulated.host_share *= share;
    let directories = LabDirectories::make(options, host.cores * emulated.host_share)?;

    let mut lab =
        Lab { options, emulation, emulated, interruption, directories, progress, warnings: Vec::new(), index: 0 };
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

    let Lab { emulated, directories, warnings, .. } = lab;
    let report = LabReport {
        profile: options.profile.name.clone(),
        about: options.profile.about.clone(),
        host,
        workload: options.workload.name().to_owned(),
        values: options.values,
        seconds: options.seconds,
        offered,
        colocated: options.colocated,
        emulated,
        stores: directories.stores_text(),
        through: options.through.name().to_owned(),
        runs,
        calibration,
        warnings,
        recording,
    };
    directories.keep(&report)?;
    Ok(report)
}

/// A lab under way.
struct Lab<'a> {
    options: &'a LabOptions,
    emulation: &'a dyn Emulation,
    emulated: ScaledProfile,
    interruption: &'a Interruption,
    directories: LabDirectories,
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
        let logs = self.directories.fresh(directory)?;
        let stores = self.directories.fresh_stores(directory)?;
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
        let outcomes = run(&plan, self.emulation, self.interruption, self.progress)?;
        self.directories.tidy(&logs, &stores, &outcomes.recording)?;
        let summed = PolicyRun::of(&outcomes.recording, &self.emulated)?;
        self.warnings.extend(outcomes.warnings);
        self.progress.run_ends(self.index, &summed);
        self.index += 1;
        Ok((outcomes.recording, summed))
    }
}
