//! Offloading to a server whose cores are more and more taken by others.

use ecotone_bench::report::canvas::{Axis, Frame, LabelPosition, plot};
use ecotone_bench::report::palette::INK;
use ecotone_bench::report::{panel, wide_panels};
use ecotone_server::record::Outcome;

use super::policy_colour;
use crate::recording::PolicyRecording;
use crate::summary::LabReport;

/// Share of a step's width that its bars take.
const FILLED: f64 = 0.8;

/// Jobs of others that the loaded server began in each step of the load, for each policy that
/// offloads. None without co-located load.
pub(in crate::report) fn colocated(report: &LabReport) -> Option<String> {
    let server = report.colocated_server()?;
    let counts: Vec<(usize, Vec<u64>)> = (report.recording.runs.iter().enumerate())
        .map(|(index, run)| (index, taken_in_steps(run, server, &report.colocated_steps())))
        .filter(|(index, taken)| {
            let offloaded = report.runs.get(*index).is_some_and(|run| run.total.offloaded > 0);
            offloaded || taken.iter().any(|count| *count > 0)
        })
        .collect();
    let most = counts.iter().flat_map(|(_, taken)| taken).copied().max().unwrap_or(0) as f64;
    let frame = Frame {
        name: &format!("Jobs taken by {server} as co-located load grows"),
        width: 760.0,
        height: 250.0,
        ..Frame::default()
    };
    let x =
        Axis::names("co-located busy threads", report.colocated_steps().iter().map(|(_, threads)| threads.to_string()));
    let y = Axis::from_zero("jobs of others it began", most);
    let width = FILLED / counts.len().max(1) as f64;
    let svg = plot(frame, &x, &y, |canvas| {
        for (order, (index, taken)) in counts.iter().enumerate() {
            for (step, count) in taken.iter().enumerate() {
                let from = step as f64 - FILLED / 2.0 + order as f64 * width;
                let gap = width * 0.08;
                canvas.bar((from + gap, 0.0), (from + width - gap, *count as f64), policy_colour(report, *index))?;
                canvas.label(
                    (from + width / 2.0, *count as f64),
                    LabelPosition::Above,
                    &count.to_string(),
                    INK,
                    10.0,
                )?;
            }
        }
        Ok(())
    });
    let step_s = report.seconds as f64 / f64::from(report.colocated + 1);
    let body = panel(server, &format!("each step lasts {step_s:.0} s"), &svg, "");
    Some(wide_panels([body]).replace("panels wide", "panels single"))
}

/// How many jobs of others the server began in each step.
fn taken_in_steps(run: &PolicyRecording, server: &str, steps: &[(f64, u32)]) -> Vec<u64> {
    let mut taken = vec![0; steps.len()];
    let jobs = run.servers.iter().flat_map(|one| &one.jobs);
    for job in jobs.filter(|job| job.outcome == Outcome::Offloaded && job.worker == server && job.owner != server) {
        let began_s = job.at_s - job.seconds;
        let step = steps.iter().rposition(|(at_s, _)| *at_s <= began_s).unwrap_or(0);
        taken[step] += 1;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::ServerRecording;
    use ecotone_server::record::Job;

    #[test]
    fn a_job_counts_in_the_step_in_which_it_began() {
        let job = |at_s, seconds, worker: &str, outcome| Job {
            at_s,
            seconds,
            worker: worker.to_owned(),
            owner: "low-1".to_owned(),
            job: 1,
            input_level: 0,
            output_level: 1,
            input_bytes: 1,
            held_bytes: 0,
            output_bytes: 1,
            joules: 1.0,
            predicted_seconds: None,
            predicted_joules: None,
            trainings: 0,
            outcome,
            reason: String::new(),
        };
        let jobs = vec![
            job(11.0, 2.0, "high-1", Outcome::Offloaded),
            job(12.0, 2.0, "high-1", Outcome::Offloaded),
            job(12.0, 2.0, "medium-1", Outcome::Offloaded),
            job(1.0, 2.0, "high-1", Outcome::Offloaded),
            job(29.0, 2.0, "high-1", Outcome::Fallback),
        ];
        let server = ServerRecording { server: "low-1".to_owned(), jobs, ..Default::default() };
        let run = PolicyRecording { policy: "eco".to_owned(), servers: vec![server], ..PolicyRecording::default() };
        assert_eq!(taken_in_steps(&run, "high-1", &[(0.0, 0), (10.0, 1), (20.0, 2)]), [2, 1, 0]);
    }
}
