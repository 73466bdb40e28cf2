//! What encryption costs an offloaded job: two equal servers of the profile `pair`, one of which
//! works for the other, with certificates and without.
//!
//! They have emulated cores: a host of two cores has none that is free for another's job beside its
//! own writer.

use ecotone_bench::workload::Workload;
use ecotone_policy::policy::PolicyName;
use ecotone_server::record::Outcome;

use super::report::{TlsCost, median};
use super::servers::Scene;
use crate::emulation::Cgroups;
use crate::error::LabError;
use crate::lab::run_lab_under;
use crate::options::{LabOptions, OfferedRate};
use crate::profile::Profile;
use crate::progress::Quiet;
use crate::scaling::Host;

/// Writes that leave most of both servers idle.
const WRITES_PER_S: f64 = 4000.0;

/// Seconds for each byte of input, of each L0 compaction that the neighbour ran.
fn jobs(scene: &Scene<'_>, cgroups: &Cgroups, encrypts: bool) -> Result<Vec<f64>, LabError> {
    let workload = "fillrandom"
        .parse::<Workload>()
        .map_err(|error| LabError::Measurement { what: "offloaded jobs".into(), reason: error.to_string() })?;
    let seconds = scene.options.job_seconds;
    // Every L0 compaction goes to the neighbour that it would cost no more.
    let mut options = LabOptions::new(workload, Profile::load("pair")?, vec![PolicyName::EcoTarget], seconds)?;
    options.rate = Some(OfferedRate::OpsPerS(WRITES_PER_S));
    options.tls = encrypts;
    options.server_program.clone_from(&scene.options.server_program);
    let report = run_lab_under(&options, cgroups, Host::here(), scene.interruption, &mut Quiet)?;
    let servers = report.recording.runs.iter().flat_map(|run| &run.servers);
    let jobs = servers.flat_map(|server| &server.jobs);
    let offloaded = jobs.filter(|job| job.outcome == Outcome::Offloaded && job.input_level == 0 && job.input_bytes > 0);
    Ok(offloaded.map(|job| job.seconds / job.input_bytes as f64).collect())
}

/// Why not, where the host lets nobody make emulated cores, or no job left its server.
pub(super) fn measure(scene: &mut Scene<'_>) -> Result<Result<TlsCost, String>, LabError> {
    let cgroups = match Cgroups::make() {
        Ok(cgroups) => cgroups,
        Err(error @ LabError::Emulation { .. }) => return Ok(Err(error.to_string())),
        Err(error) => return Err(error),
    };
    let rounds = scene.options.rounds;
    let (mut plain, mut encrypted) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        (scene.say)(&format!("offloaded jobs, plain and with TLS: round {} of {rounds}", round + 1));
        let order = if round % 2 == 0 { [false, true] } else { [true, false] };
        for encrypts in order {
            let times = jobs(scene, &cgroups, encrypts)?;
            let all = if encrypts { &mut encrypted } else { &mut plain };
            all.push(times);
        }
    }
    if plain.iter().chain(&encrypted).any(Vec::is_empty) {
        let seconds = scene.options.job_seconds;
        return Ok(Err(format!("a run of {seconds} s had no job done by the neighbour; give --job-seconds more")));
    }
    let cost = |(plain, encrypted): (&Vec<f64>, &Vec<f64>)| median(encrypted.clone()) / median(plain.clone()) - 1.0;
    let costs: Vec<f64> = plain.iter().zip(&encrypted).map(cost).collect();
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (plain, encrypted) = (plain.concat(), encrypted.concat());
    Ok(Ok(TlsCost {
        cost: median(costs),
        spread: most - least,
        rounds,
        jobs: plain.len().min(encrypted.len()),
        plain_ns_per_byte: median(plain) * 1e9,
        tls_ns_per_byte: median(encrypted) * 1e9,
    }))
}
