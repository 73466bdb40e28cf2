//! What must hold of every decision, whatever the servers and whatever they have reported.
use crate::common;

use common::{Federation, MIB, Placement, id, idle, report, request};
use ecotone_policy::PolicyName;
use ecotone_policy::machine::{
    Command, Event, JobReport, LoadSample, Parameters, PlacementAnswer, PlacementRequest, PolicyCore, Prediction,
    WhenNoneInTime,
};
use ecotone_policy::server_table::Disabled;
use ecotone_types::units::{Bytes, BytesPerSecond, Cores, Seconds, Tables, Time, Watts};
use ecotone_types::{JobId, ServerId};
use proptest::prelude::*;

const NOW: Time = Time::from_seconds(1.0);
const BYTES: u64 = 64 * MIB;
const OWNER: &str = "server-0";

/// A federation as the coordinator sees it: load samples, and jobs that have finished.
#[derive(Clone, Debug)]
struct Known {
    samples: Vec<LoadSample>,
    reports: Vec<JobReport>,
}

fn known() -> impl Strategy<Value = Known> {
    let server = (0.05f64..4.0, 0.0f64..8.0, 0u32..3, 1.0f64..20.0);
    let servers = prop::collection::vec(server, 2..8);
    servers.prop_flat_map(|servers| {
        let count = servers.len();
        let samples: Vec<LoadSample> = servers
            .into_iter()
            .enumerate()
            .map(|(number, (speed, free_cores, slots, watts))| LoadSample {
                core_speed: speed,
                free_cores: Cores(free_cores),
                worker_slots_free: slots,
                active_watts: Watts(watts),
                ..idle(&format!("server-{number}"))
            })
            .collect();
        let job = (0..count, 0..count, 1u64..512, 0.1f64..20.0, 0.1f64..100.0);
        let jobs = prop::collection::vec(job, 0..40);
        jobs.prop_map(move |jobs| Known {
            samples: samples.clone(),
            reports: jobs
                .into_iter()
                .map(|(owner, worker, mib, seconds, joules)| {
                    report(&format!("server-{owner}"), &format!("server-{worker}"), mib * MIB, seconds, joules)
                })
                .collect(),
        })
    })
}

fn when_none_in_time() -> impl Strategy<Value = WhenNoneInTime> {
    prop::sample::select(&[WhenNoneInTime::Local, WhenNoneInTime::FastestIfFaster][..])
}

fn latest() -> impl Strategy<Value = Option<f64>> {
    prop::option::of(0.01f64..10.0)
}

fn coordinator(known: &Known, policy: PolicyName, when_none_in_time: WhenNoneInTime) -> PolicyCore {
    // Each question below is asked of the same servers, so a placement must not take anything from
    // them.
    let parameters =
        Parameters { policy, when_none_in_time, count_placements_between_samples: false, ..Parameters::default() };
    let mut core = PolicyCore::new(id(OWNER), parameters).unwrap();
    for sample in &known.samples {
        core.handle(NOW, Event::LoadSampled(sample.clone()));
    }
    for report in &known.reports {
        core.handle(NOW, Event::JobFinished(report.clone()));
    }
    core
}

fn ask(core: &mut PolicyCore, request: PlacementRequest) -> Option<(ServerId, Prediction)> {
    let commands = core.handle(NOW, Event::PlacementRequested { request });
    match <[Command; 1]>::try_from(commands).unwrap() {
        [Command::AnswerPlacement { answer: PlacementAnswer::Worker { worker, prediction }, .. }] => {
            Some((worker, prediction))
        }
        [Command::AnswerPlacement { answer: PlacementAnswer::Local { .. }, .. }] => None,
        other => panic!("a question has one answer, not {other:?}"),
    }
}

/// Every server that could be given the job, found by asking for a worker while all others are
/// avoided.
fn candidates(core: &mut PolicyCore, known: &Known) -> Vec<(ServerId, Prediction)> {
    let names: Vec<ServerId> = known.samples.iter().map(|sample| sample.server.clone()).collect();
    let one = |name: &ServerId| {
        let avoid = names.iter().filter(|other| *other != name).cloned().collect();
        ask(core, PlacementRequest { avoid, ..request(OWNER, BYTES, None) })
    };
    names.iter().filter_map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_worker_is_late_while_one_is_in_time_and_none_in_time_is_cheaper(
        known in known(),
        policy in prop::sample::select(&[PolicyName::Eco, PolicyName::EcoTarget][..]),
        when in when_none_in_time(),
        latest in latest(),
    ) {
        let mut core = coordinator(&known, policy, when);
        let candidates = candidates(&mut core, &known);
        let in_time: Vec<_> = candidates
            .iter()
            .filter(|(_, prediction)| latest.is_none_or(|latest| prediction.seconds < Seconds(latest)))
            .collect();
        match ask(&mut core, request(OWNER, BYTES, latest)) {
            Some((worker, prediction)) if in_time.is_empty() => {
                prop_assert_eq!(when, WhenNoneInTime::FastestIfFaster, "{} is late", worker);
                for (name, other) in &candidates {
                    prop_assert!(prediction.seconds <= other.seconds, "{name} is faster than {worker}");
                }
            }
            Some((worker, prediction)) => {
                prop_assert!(in_time.iter().any(|(name, _)| *name == worker), "{worker} is late or unknown");
                for (name, other) in in_time {
                    prop_assert!(prediction.joules <= other.joules, "{name} costs less than {worker}");
                }
            }
            None => prop_assert!(in_time.is_empty(), "{in_time:?} would have been in time"),
        }
    }

    #[test]
    fn an_enabled_server_has_a_core_and_a_slot_and_is_never_the_owner(
        known in known(),
        policy in prop::sample::select(&PolicyName::ALL[..]),
        when in when_none_in_time(),
        latest in latest(),
    ) {
        let mut core = coordinator(&known, policy, when);
        if let Some((worker, _)) = ask(&mut core, request(OWNER, BYTES, latest)) {
            prop_assert!(policy.may_offload());
            prop_assert_ne!(worker.as_str(), OWNER);
            let sample = known.samples.iter().find(|sample| sample.server == worker).unwrap();
            prop_assert!(sample.free_cores > Cores(1.0) && sample.worker_slots_free > 0);
        }
    }

    #[test]
    fn decisions_do_not_depend_on_the_order_in_which_servers_reported(
        (known, shuffled) in known().prop_flat_map(|known| {
            let samples = Just(known.samples.clone()).prop_shuffle();
            (Just(known), samples)
        }),
        policy in prop::sample::select(&PolicyName::ALL[..]),
        when in when_none_in_time(),
        latest in latest(),
    ) {
        let mut one = coordinator(&known, policy, when);
        let mut other = coordinator(&Known { samples: shuffled, ..known.clone() }, policy, when);
        let question = request(OWNER, BYTES, latest);
        prop_assert_eq!(ask(&mut one, question.clone()), ask(&mut other, question));
    }

    /// Jobs of different servers may be reported in any order too, as long as each server's own
    /// order is kept.
    #[test]
    fn decisions_do_not_depend_on_whose_jobs_were_reported_first(
        known in known(),
        policy in prop::sample::select(&PolicyName::ALL[..]),
        when in when_none_in_time(),
        latest in latest(),
    ) {
        let mut by_owner = known.clone();
        by_owner.reports.sort_by(|one, other| one.owner.cmp(&other.owner));
        let (mut one, mut other) = (coordinator(&known, policy, when), coordinator(&by_owner, policy, when));
        let one = ask(&mut one, request(OWNER, BYTES, latest)).map(|(worker, _)| worker);
        prop_assert_eq!(one, ask(&mut other, request(OWNER, BYTES, latest)).map(|(worker, _)| worker));
    }

    /// With priors alone, after one load sample each, a slow server under pressure is helped by a
    /// fast idle one.
    #[test]
    fn a_policy_that_may_offload_does_so_from_the_first_minute(
        policy in prop::sample::select(&PolicyName::ALL[..]),
        slow in 0.05f64..0.5,
        times_faster in 2.0f64..20.0,
        memtable_mib in 4u64..128,
        when_none_in_time in when_none_in_time(),
    ) {
        let mut parameters = Parameters { policy, when_none_in_time, ..Parameters::default() };
        parameters.rate.prior_input_bytes_per_table = Bytes::from_mib(memtable_mib);
        let mut federation = Federation::new(&["fast", "slow"], &parameters);
        federation.load(LoadSample { core_speed: slow * times_faster, ..idle("fast") });
        // The compaction takes the slow server about 0.336 s / speed; ten tables come in meanwhile.
        let seconds = 0.336 / slow;
        let rate = BytesPerSecond(10.0 * parameters.rate.prior_input_bytes_per_table.as_f64() / seconds);
        federation.load(LoadSample { core_speed: slow, input_bytes_per_s: rate, ..idle("slow") });
        let place = federation.ready("slow", 1, BYTES, 0, Some(12));
        let is_offloaded = matches!(&place, Placement::Worker { worker, .. } if worker.as_str() == "fast");
        // Eight of the ten tables fit below the threshold: a worker has 80 % of the local time, its
        // network included.
        prop_assert_eq!(is_offloaded, policy.may_offload(), "{}", place);
    }
}

#[test]
fn requests_of_one_second_are_spread_and_not_all_sent_to_one_server() {
    let parameters = Parameters { policy: PolicyName::EdgePilot, ..Parameters::default() };
    let mut federation = Federation::new(&["a", "b", "owner"], &parameters);
    federation.load(LoadSample { core_speed: 4.0, worker_slots_free: 2, ..idle("a") });
    federation.load(LoadSample { core_speed: 3.0, worker_slots_free: 1, ..idle("b") });
    federation.load(LoadSample { core_speed: 0.1, ..idle("owner") });
    let mut places = Vec::new();
    for job in 0..4 {
        places.push(federation.ready("owner", job, BYTES, 0, None).to_string());
    }
    assert_eq!(places, ["offload a", "offload a", "offload b", "here no-server-enabled"]);
    // The next sample says what the worker really has.
    federation.load(LoadSample { core_speed: 4.0, worker_slots_free: 1, ..idle("a") });
    assert_eq!(federation.ready("owner", 4, BYTES, 0, None).to_string(), "offload a");
}

#[test]
fn a_worker_that_was_slow_once_is_tried_again() {
    let parameters = Parameters { policy: PolicyName::EdgePilot, ..Parameters::default() };
    let mut federation = Federation::new(&["fast", "slow"], &parameters);
    let load = |federation: &mut Federation| {
        federation.load(idle("fast"));
        federation.load(LoadSample { core_speed: 0.2, ..idle("slow") });
    };
    load(&mut federation);
    assert_eq!(federation.ready("slow", 1, BYTES, 0, None).to_string(), "offload fast");
    // It takes a hundred times as long as thought.
    for job in 1..4 {
        let late = report("slow", "fast", BYTES, 40.0, 10.0);
        federation.finished(JobReport { job: JobId(job), ..late });
    }
    assert_eq!(federation.ready("slow", 10, BYTES, 0, None).to_string(), "here not-faster");
    federation.now = Time::from_seconds(1800.0);
    load(&mut federation);
    assert_eq!(federation.ready("slow", 11, BYTES, 0, None).to_string(), "offload fast");
}

#[test]
fn a_server_that_is_silent_gets_no_work_until_it_reports_again() {
    let parameters = Parameters { policy: PolicyName::EdgePilot, ..Parameters::default() };
    let mut federation = Federation::new(&["fast", "slow"], &parameters);
    federation.load(idle("fast"));
    federation.load(LoadSample { core_speed: 0.2, ..idle("slow") });
    federation.now = Time::from_seconds(1.0 + parameters.stale_after.0 + 0.1);
    federation.load(LoadSample { core_speed: 0.2, ..idle("slow") });
    assert_eq!(federation.ready("slow", 1, BYTES, 0, None).to_string(), "here no-server-enabled");
    federation.load(idle("fast"));
    assert_eq!(federation.ready("slow", 2, BYTES, 0, None).to_string(), "offload fast");
}

#[test]
fn a_full_server_table_hears_the_servers_it_knows_and_no_others() {
    let parameters = Parameters { max_servers: 2, policy: PolicyName::EdgePilot, ..Parameters::default() };
    let mut core = PolicyCore::new(id("a"), parameters).unwrap();
    for name in ["a", "b", "c"] {
        core.handle(NOW, Event::LoadSampled(LoadSample { core_speed: 9.0, ..idle(name) }));
    }
    assert_eq!(core.models().ignored_messages_total, 1);
    let (worker, _) =
        ask(&mut core, PlacementRequest { local_time: Some(Seconds(9.0)), ..request("z", BYTES, None) }).unwrap();
    assert_ne!(worker, id("c"));
    // Once the others have been silent for long enough, the newcomer has a place.
    let later = Time::from_seconds(2.0 + 3600.0);
    core.handle(later, Event::LoadSampled(idle("c")));
    assert_eq!(core.models().ignored_messages_total, 1);
}

#[test]
fn who_watches_sees_the_forecast_and_the_table_that_decide() {
    let parameters = Parameters::default();
    let stale = Time::from_seconds(1.0 + parameters.stale_after.0 + 0.1);
    let wst = parameters.stall_threshold_tables - parameters.stall_margin_tables;
    let mut core = PolicyCore::new(id("a"), parameters).unwrap();
    assert_eq!(core.stall_forecast(), None);
    assert_eq!(core.takes_jobs(NOW, &id("a")), Err(Disabled::Unknown));
    core.handle(NOW, Event::LoadSampled(LoadSample { l0_tables: 14, ..idle("a") }));
    core.handle(NOW, Event::LoadSampled(LoadSample { l0_tables: 99, worker_slots_free: 0, ..idle("b") }));
    let forecast = core.stall_forecast().unwrap();
    assert_eq!((forecast.current, forecast.threshold), (Tables(14.0), wst));
    assert_eq!(core.takes_jobs(NOW, &id("a")), Ok(()));
    assert_eq!(core.takes_jobs(NOW, &id("b")), Err(Disabled::NoFreeSlot));
    assert_eq!(core.takes_jobs(stale, &id("a")), Err(Disabled::Stale));
}

#[test]
fn an_owner_that_the_coordinator_has_not_heard_of_is_taken_at_its_word() {
    let parameters = Parameters { policy: PolicyName::EdgePilot, ..Parameters::default() };
    let mut core = PolicyCore::new(id("a"), parameters).unwrap();
    core.handle(NOW, Event::LoadSampled(idle("a")));
    let ask_with = |core: &mut PolicyCore, local: f64| {
        ask(core, PlacementRequest { local_time: Some(Seconds(local)), ..request("stranger", BYTES, None) })
    };
    assert!(ask_with(&mut core, 60.0).is_some());
    assert!(ask_with(&mut core, 0.01).is_none());
}

/// Small jobs follow one another faster than servers report: what is over must not fill the worker
/// until its next report.
#[test]
fn a_job_that_is_over_gives_its_slot_back_before_the_next_report() {
    let parameters = Parameters { policy: PolicyName::EcoTarget, ..Parameters::default() };
    let mut core = PolicyCore::new(id("coordinator"), parameters).unwrap();
    for sample in [LoadSample { worker_slots_free: 1, ..idle("worker") }, idle("a"), idle("b")] {
        core.handle(
            NOW,
            Event::LoadSampled(LoadSample {
                core_speed: if sample.server == id("worker") { 2.0 } else { 0.1 },
                ..sample
            }),
        );
    }
    let place = |core: &mut PolicyCore, owner: &str, away: u32| {
        let avoid = vec![id("a"), id("b")];
        ask(core, PlacementRequest { away, avoid, ..request(owner, BYTES, None) }).is_some()
    };
    assert!(place(&mut core, "a", 0));
    assert!(!place(&mut core, "b", 0), "its only slot is taken");
    assert!(!place(&mut core, "a", 1), "the first job still runs");
    let impossible = PlacementRequest { local_time: Some(Seconds(f64::NAN)), ..request("a", BYTES, None) };
    assert!(ask(&mut core, PlacementRequest { away: 0, ..impossible }).is_none());
    assert_eq!(core.models().ignored_messages_total, 1);
    assert!(!place(&mut core, "b", 0), "a message with an impossible number frees nothing");
    assert!(place(&mut core, "a", 0), "the first job is over");
    assert!(!place(&mut core, "b", 0), "what another owner says frees nothing of a's");
}
