//! The machine under any sequence of events: every compaction gets exactly one place, every bound
//! holds, nothing breaks.
use crate::common;

use std::collections::BTreeMap;

use common::{MIB, id, idle, report};
use ecotone_policy::PolicyName;
use ecotone_policy::machine::{
    Command, DeclineReason, Event, FailureReason, Holder, JobReport, LoadSample, LocalReason, OffloadOutcome,
    Parameters, PlacementAnswer, PlacementRequest, PolicyCore, Prediction,
};
use ecotone_types::units::{Bytes, BytesPerSecond, Cores, Joules, Seconds, Time, Watts};
use ecotone_types::{JobId, JobPurpose};
use proptest::prelude::*;

/// What a run of the machine has done with one job.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Asking,
    Offloaded,
    Here,
}

/// A driver that does what commands say, and what may go wrong on the way.
#[derive(Clone, Debug)]
enum Step {
    Ready { purpose: JobPurpose, level: i32, mib: u64, l0_tables: u32, deadline: Option<f64> },
    Answer { which: prop::sample::Index, worker: Option<u8> },
    Unavailable { which: prop::sample::Index },
    Installed { which: prop::sample::Index },
    Declined { which: prop::sample::Index },
    Failed { which: prop::sample::Index },
    Finished { which: prop::sample::Index, worker: u8, seconds: f64 },
    Load { server: u8, rate: f64, cores: f64, l0_tables: u32 },
    Request { owner: u8, latest: Option<f64> },
    Wait { seconds: f64 },
}

fn purpose() -> impl Strategy<Value = JobPurpose> {
    prop::sample::select(&JobPurpose::ALL[..])
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        4 => (purpose(), 0i32..3, 1u64..512, 0u32..30, prop::option::of(-1.0f64..10.0)).prop_map(
            |(purpose, level, mib, l0_tables, deadline)| Step::Ready { purpose, level, mib, l0_tables, deadline }
        ),
        3 => (which(), prop::option::of(0u8..4)).prop_map(|(which, worker)| Step::Answer { which, worker }),
        1 => which().prop_map(|which| Step::Unavailable { which }),
        1 => which().prop_map(|which| Step::Installed { which }),
        1 => which().prop_map(|which| Step::Declined { which }),
        1 => which().prop_map(|which| Step::Failed { which }),
        2 => (which(), 0u8..4, 0.01f64..50.0).prop_map(|(which, worker, seconds)| Step::Finished { which, worker, seconds }),
        2 => (0u8..4, 0.0f64..1e9, 0.0f64..8.0, 0u32..30)
            .prop_map(|(server, rate, cores, l0_tables)| Step::Load { server, rate, cores, l0_tables }),
        1 => (0u8..4, prop::option::of(0.0f64..10.0)).prop_map(|(owner, latest)| Step::Request { owner, latest }),
        2 => (0.0f64..2.0).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

fn name(number: u8) -> String {
    format!("server-{number}")
}

fn prediction(seconds: f64) -> Prediction {
    Prediction { seconds: Seconds(seconds), joules: Joules(seconds), time_error: 0.0, samples: 0 }
}

/// Follows every job of `server-0` through the commands.
struct Driver {
    core: PolicyCore,
    now: f64,
    next_job: u64,
    jobs: BTreeMap<JobId, State>,
    asked_at: BTreeMap<JobId, f64>,
}

impl Driver {
    fn new(parameters: Parameters) -> Self {
        let core = PolicyCore::new(id("server-0"), parameters).unwrap();
        Self { core, now: 0.0, next_job: 0, jobs: BTreeMap::new(), asked_at: BTreeMap::new() }
    }

    fn tell(&mut self, event: Event) -> Result<(), TestCaseError> {
        let commands = self.core.handle(Time::from_seconds(self.now), event);
        for command in commands {
            match command {
                Command::RunHere { job, reason } => {
                    let before = self.jobs.insert(job, State::Here);
                    prop_assert!(before != Some(State::Here), "{job} runs here twice");
                    if before == Some(State::Offloaded) {
                        prop_assert!(matches!(reason, LocalReason::Declined | LocalReason::Failed));
                    }
                }
                Command::AskCoordinator { request } => {
                    prop_assert_eq!(self.jobs.insert(request.job, State::Asking), None);
                    self.asked_at.insert(request.job, self.now);
                    prop_assert!(request.problem(1000).is_none());
                }
                Command::Offload { job, worker, deadline, .. } => {
                    prop_assert_eq!(self.jobs.insert(job, State::Offloaded), Some(State::Asking));
                    prop_assert!(worker != id("server-0"), "a server is no worker for itself");
                    let parameters = self.core.parameters();
                    prop_assert!((parameters.min_deadline..=parameters.max_deadline).contains(&deadline));
                }
                Command::AnswerPlacement { owner, answer: PlacementAnswer::Worker { worker, prediction }, .. } => {
                    prop_assert_ne!(owner, worker);
                    prop_assert!(prediction.is_plausible());
                }
                Command::AnswerPlacement { .. } | Command::Observed(_) => {}
            }
        }
        let count = |state| self.jobs.values().filter(|job| **job == state).count();
        let parameters = self.core.parameters();
        prop_assert!(count(State::Asking) <= parameters.max_placements_outstanding);
        prop_assert!(count(State::Offloaded) <= parameters.max_offloads_outstanding);
        Ok(())
    }

    /// Some job that was ever begun.
    fn any_job(&self, which: prop::sample::Index) -> JobId {
        JobId(if self.next_job == 0 { 0 } else { which.index(self.next_job as usize) as u64 })
    }

    fn end(&mut self, which: prop::sample::Index, outcome: OffloadOutcome) -> Result<(), TestCaseError> {
        let job = self.any_job(which);
        let was_offloaded = self.jobs.get(&job) == Some(&State::Offloaded);
        let is_installed = outcome == OffloadOutcome::Installed;
        self.tell(Event::OffloadEnded { job, outcome })?;
        if was_offloaded {
            if is_installed {
                self.jobs.remove(&job);
            } else {
                prop_assert_eq!(self.jobs.get(&job), Some(&State::Here), "a failed offload runs here");
            }
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ready { purpose, level, mib, l0_tables, deadline } => {
                let job = JobId(self.next_job);
                self.next_job += 1;
                self.tell(Event::CompactionReady {
                    job,
                    purpose,
                    input_bytes: Bytes(mib * MIB),
                    input_level: level,
                    output_level: level + 1,
                    l0_tables: (l0_tables > 0).then_some(l0_tables),
                    deadline: deadline.map(Seconds),
                    holders: Vec::new(),
                })?;
                prop_assert!(self.jobs.contains_key(&job), "{job} got no command");
                let stays = purpose == JobPurpose::Gc;
                prop_assert!(!stays || self.jobs[&job] == State::Here, "{job} has its values here");
                Ok(())
            }
            Step::Answer { which, worker } => {
                let answer = match worker {
                    Some(worker) => PlacementAnswer::Worker { worker: id(&name(worker)), prediction: prediction(2.0) },
                    None => PlacementAnswer::Local { reason: LocalReason::NoneInTime },
                };
                let job = self.any_job(which);
                self.tell(Event::PlacementAnswered { job, answer })?;
                prop_assert_ne!(self.jobs.get(&job), Some(&State::Asking), "an answer ends the question");
                Ok(())
            }
            Step::Unavailable { which } => self.tell(Event::PlacementUnavailable { job: self.any_job(which) }),
            Step::Installed { which } => self.end(which, OffloadOutcome::Installed),
            Step::Declined { which } => {
                let outcome = OffloadOutcome::Declined { worker: id("server-1"), reason: DeclineReason::NoFreeSlot };
                self.end(which, outcome)
            }
            Step::Failed { which } => {
                let outcome = OffloadOutcome::Failed { worker: id("server-2"), reason: FailureReason::HeartbeatLost };
                self.end(which, outcome)
            }
            Step::Finished { which, worker, seconds } => {
                let job = self.any_job(which);
                let finished = report("server-0", &name(worker), 64 * MIB, seconds, seconds * 10.0);
                self.tell(Event::JobFinished(JobReport { job, ..finished }))
            }
            Step::Load { server, rate, cores, l0_tables } => self.tell(Event::LoadSampled(LoadSample {
                input_bytes_per_s: BytesPerSecond(rate),
                free_cores: Cores(cores),
                l0_tables,
                ..idle(&name(server))
            })),
            Step::Request { owner, latest } => {
                self.tell(Event::PlacementRequested { request: common::request(&name(owner), 64 * MIB, latest) })
            }
            Step::Wait { seconds } => {
                self.now += seconds;
                let timeout = self.core.parameters().placement_timeout.0;
                let waited = |job| self.now - self.asked_at[job] >= timeout;
                let asking = self.jobs.iter().filter(|(_, state)| **state == State::Asking).map(|(job, _)| job);
                let timed_out: Vec<_> = asking.filter(|job| waited(job)).copied().collect();
                for job in timed_out {
                    self.tell(Event::PlacementUnavailable { job })?;
                    prop_assert_eq!(self.jobs.get(&job), Some(&State::Here), "an unanswered job runs here");
                }
                Ok(())
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_compaction_gets_exactly_one_place(
        policy in prop::sample::select(&PolicyName::ALL[..]),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let parameters = Parameters {
            policy,
            max_placements_outstanding: 3,
            max_offloads_outstanding: 4,
            max_jobs_remembered: 8,
            max_servers: 3,
            ..Parameters::default()
        };
        let mut driver = Driver::new(parameters);
        for step in steps {
            driver.step(step)?;
        }
        driver.step(Step::Wait { seconds: 10.0 })?;
        prop_assert!(driver.jobs.values().all(|state| *state != State::Asking), "{:?}", driver.jobs);
    }

    /// Numbers from a peer may be anything; none of them may reach a model or a decision.
    #[test]
    fn no_number_from_a_peer_breaks_anything(
        policy in prop::sample::select(&PolicyName::ALL[..]),
        messages in prop::collection::vec((0u8..6, 0u8..3, 0u8..3, prop::array::uniform12(number()), any::<u64>()), 1..60),
    ) {
        let mut core = PolicyCore::new(id("server-0"), Parameters { policy, ..Parameters::default() }).unwrap();
        core.handle(Time::default(), Event::LoadSampled(idle("server-0")));
        core.handle(Time::default(), Event::LoadSampled(idle("server-1")));
        for (kind, one, other, n, bytes) in messages {
            let event = event_of(kind, &name(one), &name(other), n, bytes);
            for command in core.handle(Time::from_seconds(n[0]), event) {
                match command {
                    Command::AnswerPlacement { answer: PlacementAnswer::Worker { prediction, .. }, .. }
                    | Command::Offload { prediction, .. } => {
                        prop_assert!(prediction.is_plausible(), "{prediction:?}");
                    }
                    _ => {}
                }
            }
            for model in core.models().models {
                prop_assert!(model.a.is_finite() && model.a >= 0.0 && model.b.is_finite() && model.b >= 0.0, "{model:?}");
            }
            let rate = core.models().rate;
            prop_assert!(rate.predicted.is_plausible() && rate.input_bytes_per_table > 0.0, "{rate:?}");
        }
    }
}

/// As it fades, the sample's place is taken by the prior, which is greater by more than a float can
/// hold.
#[test]
fn a_job_of_next_to_no_time_breaks_no_model_when_it_is_old() {
    let mut core = edgepilot();
    for seconds in [9.6e-309, 5e-324, 1e18] {
        core.handle(Time::default(), Event::JobFinished(report("b", "a", 6_067_118_496, seconds, 1e18)));
        for now in (1..1000).map(|minutes| Time::from_seconds(60.0 * f64::from(minutes) / 7.0)) {
            core.handle(now, Event::LoadSampled(idle("a")));
            let models = core.models().models;
            assert!(models.iter().all(|model| model.a.is_finite() && model.b.is_finite()), "{seconds}: {models:?}");
        }
    }
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0f64..100.0,
        1 => any::<f64>(),
        1 => prop::sample::select(vec![0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e18, 1e300, 5e-324]),
    ]
}

fn event_of(kind: u8, one: &str, other: &str, n: [f64; 12], bytes: u64) -> Event {
    let prediction = Prediction { seconds: Seconds(n[1]), joules: Joules(n[2]), time_error: n[3], samples: bytes };
    match kind {
        0 => Event::LoadSampled(LoadSample {
            input_bytes_per_s: BytesPerSecond(n[1]),
            input_bytes_total: Bytes(bytes),
            memtable_bytes: Bytes(bytes / 3),
            flushed_tables_total: bytes / 7,
            free_cores: Cores(n[2]),
            cores: Cores(n[3]),
            core_speed: n[4],
            free_network_bytes_per_s: BytesPerSecond(n[5]),
            link: Some(ecotone_policy::machine::Link { bytes_per_s: BytesPerSecond(n[6]), round_trip: Seconds(n[7]) }),
            active_watts: Watts(n[8]),
            idle_watts: Watts(n[9]),
            joules_total: Joules(n[10]),
            ..idle(one)
        }),
        1 => Event::JobFinished(JobReport {
            output_bytes: Bytes(bytes.rotate_left(13)),
            held_bytes: Bytes(bytes.rotate_left(3)),
            ..report(one, other, bytes, n[1], n[2])
        }),
        2 => Event::PlacementRequested {
            request: PlacementRequest {
                local_time: Some(Seconds(n[1])),
                latest: Some(Seconds(n[2])),
                holders: vec![Holder { server: id(other), bytes: Bytes(bytes.rotate_left(5)) }],
                ..common::request(one, bytes, None)
            },
        },
        3 => Event::CompactionReady {
            job: JobId(bytes % 16),
            purpose: JobPurpose::ALL[(bytes % 3) as usize],
            input_bytes: Bytes(bytes),
            input_level: 0,
            output_level: 1,
            l0_tables: Some(u32::MAX),
            deadline: Some(Seconds(n[3])),
            holders: vec![Holder { server: id(other), bytes: Bytes(bytes.rotate_left(7)) }],
        },
        4 => Event::PlacementAnswered {
            job: JobId(bytes % 16),
            answer: PlacementAnswer::Worker { worker: id(other), prediction },
        },
        _ => Event::PlacementUnavailable { job: JobId(bytes % 16) },
    }
}

fn ready(job: u64) -> Event {
    Event::CompactionReady {
        job: JobId(job),
        purpose: JobPurpose::Compaction,
        input_bytes: Bytes::from_mib(64),
        input_level: 0,
        output_level: 1,
        l0_tables: Some(19),
        deadline: None,
        holders: Vec::new(),
    }
}

fn edgepilot() -> PolicyCore {
    PolicyCore::new(id("a"), Parameters { policy: PolicyName::EdgePilot, ..Parameters::default() }).unwrap()
}

fn worker_b(seconds: f64) -> PlacementAnswer {
    PlacementAnswer::Worker { worker: id("b"), prediction: prediction(seconds) }
}

#[test]
fn what_comes_late_or_twice_changes_nothing() {
    let mut core = edgepilot();
    let now = Time::default();
    assert!(matches!(core.handle(now, ready(1))[..], [Command::AskCoordinator { .. }]));
    assert!(core.handle(now, ready(1)).is_empty(), "the same number while it is under way");
    assert_eq!(core.models().ignored_messages_total, 1);
    let late = Time::from_seconds(1.5);
    let unanswered = Command::RunHere { job: JobId(1), reason: LocalReason::CoordinatorUnavailable };
    assert_eq!(core.handle(late, Event::PlacementUnavailable { job: JobId(1) }), [unanswered]);
    let answered = Event::PlacementAnswered { job: JobId(1), answer: worker_b(2.0) };
    assert!(core.handle(late, answered).is_empty(), "it runs here already");
    assert!(core.handle(late, Event::PlacementUnavailable { job: JobId(1) }).is_empty());
    let failed = OffloadOutcome::Failed { worker: id("b"), reason: FailureReason::Unreachable };
    assert!(core.handle(late, Event::OffloadEnded { job: JobId(1), outcome: failed }).is_empty());
    assert!(core.handle(late, Event::PlacementUnavailable { job: JobId(99) }).is_empty(), "a job nobody knows");
}

#[test]
fn an_answer_that_names_the_owner_or_makes_no_sense_is_refused() {
    let answers = [
        PlacementAnswer::Worker { worker: id("a"), prediction: prediction(1.0) },
        worker_b(f64::NAN),
        worker_b(-1.0),
        worker_b(f64::INFINITY),
    ];
    for (job, answer) in answers.into_iter().enumerate() {
        let mut core = edgepilot();
        let job = JobId(job as u64);
        core.handle(Time::default(), ready(job.0));
        let commands = core.handle(Time::default(), Event::PlacementAnswered { job, answer: answer.clone() });
        let refused = Command::RunHere { job, reason: LocalReason::ImplausiblePlacement };
        assert_eq!(commands, [refused], "{answer:?}");
    }
}

#[test]
fn a_deadline_is_a_multiple_of_the_prediction_within_bounds() {
    for (predicted, deadline) in [(0.01, 10.0), (10.0, 40.0), (1e6, 600.0)] {
        let mut core = edgepilot();
        core.handle(Time::default(), ready(1));
        let answered = Event::PlacementAnswered { job: JobId(1), answer: worker_b(predicted) };
        let [Command::Offload { deadline: given, .. }] = core.handle(Time::default(), answered)[..] else {
            panic!("it is offloaded")
        };
        assert_eq!(given, Seconds(deadline));
    }
}

#[test]
fn a_report_may_overtake_the_end_of_its_offload_and_a_prediction_is_kept_for_it() {
    for report_comes_first in [true, false] {
        let mut core = edgepilot();
        let now = Time::default();
        core.handle(now, Event::LoadSampled(idle("b")));
        core.handle(now, ready(1));
        core.handle(now, Event::PlacementAnswered { job: JobId(1), answer: worker_b(2.0) });
        let finished = Event::JobFinished(JobReport { job: JobId(1), ..report("a", "b", 64 * MIB, 2.5, 20.0) });
        let installed = Event::OffloadEnded { job: JobId(1), outcome: OffloadOutcome::Installed };
        let events = if report_comes_first { [finished, installed] } else { [installed, finished] };
        let commands: Vec<_> = events.into_iter().flat_map(|event| core.handle(now, event)).collect();
        let [Command::Observed(observation)] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!(observation.at_decision, Some(prediction(2.0)));
        assert_eq!(observation.before_training.unwrap().samples, 0);
        // The number is free again.
        assert_eq!(core.handle(now, ready(1)).len(), 1);
    }
}

#[test]
fn a_failed_offload_is_observed_with_what_was_predicted_for_home() {
    let mut core = edgepilot();
    let now = Time::default();
    core.handle(now, Event::LoadSampled(idle("a")));
    core.handle(now, ready(1));
    core.handle(now, Event::PlacementAnswered { job: JobId(1), answer: worker_b(77.0) });
    let outcome = OffloadOutcome::Failed { worker: id("b"), reason: FailureReason::OutputRefused };
    core.handle(now, Event::OffloadEnded { job: JobId(1), outcome });
    let finished = JobReport { job: JobId(1), ..report("a", "a", 64 * MIB, 0.4, 4.0) };
    let commands = core.handle(now, Event::JobFinished(finished));
    let [Command::Observed(observation)] = &commands[..] else { panic!("{commands:?}") };
    let predicted = observation.at_decision.unwrap().seconds.0;
    assert!((predicted - 0.3455).abs() < 0.001, "64 MiB at 200 MB/s and 10 ms: {predicted}");
}

#[test]
fn the_error_is_reported_training_by_training_and_falls() {
    let mut core = edgepilot();
    core.handle(Time::default(), Event::LoadSampled(idle("a")));
    let mut errors = Vec::new();
    for job in 0..30u64 {
        // Twice as slow as the prior says, of sizes from 8 to 128 MiB.
        let bytes = (8 * MIB) << (job % 5);
        let seconds = 2.0 * bytes as f64 / 200e6;
        let finished = JobReport { job: JobId(job), ..report("a", "a", bytes, seconds, seconds * 30.0) };
        let commands = core.handle(Time::default(), Event::JobFinished(finished));
        let [Command::Observed(observation)] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!(observation.before_training.unwrap().samples, job);
        errors.push((observation.time_error().unwrap(), observation.energy_error().unwrap()));
    }
    assert!(errors[0].0 > 0.3 && errors[0].1 > 0.5, "the prior was wrong: {:?}", errors[0]);
    assert!(errors[20..].iter().all(|(time, energy)| *time < 0.01 && *energy < 0.01), "{errors:?}");
    let samples: Vec<u64> = core.models().models.iter().map(|model| model.samples).collect();
    assert_eq!(samples, [30, 30, 0, 0], "time and energy of jobs from level 0, then of deeper ones");
}

#[test]
fn energy_that_nothing_measured_trains_no_energy_model() {
    let mut core = edgepilot();
    core.handle(Time::default(), Event::LoadSampled(idle("a")));
    let finished = report("a", "a", 64 * MIB, 1.0, 0.0);
    let commands = core.handle(Time::default(), Event::JobFinished(finished));
    let [Command::Observed(observation)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(observation.energy_error(), None);
    let samples: Vec<u64> = core.models().models.iter().map(|model| model.samples).collect();
    assert_eq!(samples[..2], [1, 0], "time has learned, energy has not");
}

#[test]
fn a_parameter_out_of_range_is_refused_by_name() {
    let refused = |parameters: Parameters| PolicyCore::new(id("a"), parameters).unwrap_err().to_string();
    let message = refused(Parameters { deadline_multiple: 0.5, ..Parameters::default() });
    assert_eq!(
        message,
        "policy parameter `deadline_multiple` is 0.5, but must be at least 1 and finite; correct it in the configuration"
    );
    let mut parameters = Parameters::default();
    parameters.models.forgetting = f64::NAN;
    assert!(refused(parameters).contains("`models.forgetting` is NaN"));
    for sizes in [[0.0, 4.0], [4.0, 0.25], [1.0, 1.0], [1.0, f64::INFINITY]] {
        let mut parameters = Parameters::default();
        parameters.models.shape_prior_sizes = sizes;
        assert!(refused(parameters).contains("`models.shape_prior_sizes`"), "{sizes:?}");
    }
    let mut parameters = Parameters::default();
    parameters.models.max_output_ratio = 0.0;
    assert!(refused(parameters).contains("`models.max_output_ratio`"));
    let mut parameters = Parameters::default();
    parameters.models.output_ratio_window_jobs = 0;
    assert!(refused(parameters).contains("`models.output_ratio_window_jobs`"));
    let parameters = Parameters { stale_after: Seconds(0.0), ..Parameters::default() };
    assert!(refused(parameters).contains("`stale_after`"));
    assert!(Parameters::default().validate().is_ok());
}
