//! What a server without jobs, a pair without jobs, and a federation after twenty of them are
//! predicted to take.
use crate::common;

use common::{MIB, id, idle, report};
use ecotone_policy::machine::{JobReport, Link, LoadSample, ModelKind, ModelParameters};
use ecotone_policy::predictor::{Job, JobClass, Predictor};
use ecotone_policy::prequential::relative_error;
use ecotone_types::units::{Bytes, BytesPerSecond, Seconds, Time, Watts};

const NOW: Time = Time::from_seconds(1.0);
const SIZE: Bytes = Bytes::from_mib(64);
const JOB: Job = Job::new(SIZE, 0);

fn link(bytes_per_s: f64, round_trip: f64) -> Option<Link> {
    Some(Link { bytes_per_s: BytesPerSecond(bytes_per_s), round_trip: Seconds(round_trip) })
}

fn predictor(samples: &[LoadSample]) -> Predictor {
    let mut predictor = Predictor::new(&ModelParameters::default(), 16);
    for sample in samples {
        predictor.observe_load(NOW, sample);
    }
    predictor
}

fn near(actual: f64, expected: f64, tolerance: f64) {
    assert!(relative_error(actual, expected).unwrap() < tolerance, "{actual} is not {expected}");
}

#[test]
fn without_jobs_a_server_is_as_fast_as_its_cores_and_costs_their_power() {
    let fast = LoadSample { core_speed: 2.0, active_watts: Watts(12.0), ..idle("fast") };
    let predictor = predictor(&[fast]);
    let prediction = predictor.local(&id("fast"), JOB).unwrap();
    // 64 MiB at 200 MB/s and 10 ms, halved; 12 W for that long.
    near(prediction.seconds.0, (SIZE.as_f64() / 200e6 + 0.01) / 2.0, 1e-9);
    near(prediction.joules.0, prediction.seconds.0 * 12.0, 1e-9);
    assert_eq!(prediction.samples, 0);
    assert_eq!(predictor.local(&id("stranger"), JOB), None);
}

#[test]
fn without_jobs_a_pair_is_the_worker_and_the_link() {
    let worker = LoadSample { link: link(100e6, 0.001), ..idle("worker") };
    let owner = LoadSample { core_speed: 0.1, link: link(50e6, 0.004), ..idle("owner") };
    let mut predictor = predictor(&[worker, owner]);
    let remote = |predictor: &Predictor| predictor.remote(NOW, &id("worker"), &id("owner"), JOB).unwrap();
    let home = predictor.local(&id("worker"), JOB).unwrap();
    // In and out at the narrower 50 MB/s, eight round trips of 5 ms.
    let added = remote(&predictor).seconds - home.seconds;
    near(added.0, 2.0 * SIZE.as_f64() / 50e6 + 8.0 * 0.005, 1e-9);
    near(remote(&predictor).joules.0, home.joules.0, 1e-9);

    // The owner's compactions turn out to drop half of their input, so that half as much comes
    // back.
    let seconds = predictor.local(&id("owner"), JOB).unwrap().seconds.0;
    for _ in 0..200 {
        let halved = JobReport { output_bytes: Bytes(SIZE.0 / 2), ..report("owner", "owner", SIZE.0, seconds, 0.0) };
        predictor.train(NOW, &halved);
    }
    let home = predictor.local(&id("worker"), JOB).unwrap();
    let added = remote(&predictor).seconds - home.seconds;
    near(added.0, 1.5 * SIZE.as_f64() / 50e6 + 8.0 * 0.005, 1e-6);
}

/// A server that sends all of its jobs away never learns its own speed; the jobs of the others tell
/// what jobs are like.
#[test]
fn a_server_without_jobs_is_compared_by_what_jobs_took_elsewhere() {
    let samples = [("high", 1.0), ("low", 0.2)].map(|(name, speed)| LoadSample { core_speed: speed, ..idle(name) });
    let mut predictor = predictor(&samples);
    for job in 0..40u64 {
        // Three times as slow as the prior says.
        let bytes = (16 << (job % 4)) * MIB;
        let seconds = 3.0 * (bytes as f64 / 200e6 + 0.01);
        predictor.train(NOW, &report("high", "high", bytes, seconds, seconds * 10.0));
    }
    let high = predictor.local(&id("high"), JOB).unwrap().seconds.0;
    let low = predictor.local(&id("low"), JOB).unwrap().seconds.0;
    near(low, 5.0 * high, 0.02);
    near(high, 3.0 * (SIZE.as_f64() / 200e6 + 0.01), 0.02);
}

/// A compaction of level 0 merges more sorted runs than a deeper one, which costs it more for each
/// byte.
#[test]
fn jobs_of_both_kinds_are_predicted_each_by_its_own_like() {
    let mut predictor = predictor(&[idle("server")]);
    let job = |megabytes: u64, input_level| JobReport {
        input_level,
        output_level: input_level + 1,
        ..report(
            "server",
            "server",
            megabytes * MIB,
            megabytes as f64 * if input_level == 0 { 0.030 } else { 0.020 },
            1.0,
        )
    };
    predictor.train(NOW, &job(40, 0));
    let deeper = Job { class: JobClass::Deeper, ..JOB };
    near(predictor.local(&id("server"), deeper).unwrap().seconds.0, 64.0 * 0.030, 0.1);
    assert_eq!(predictor.local(&id("server"), deeper).unwrap().samples, 0);
    for megabytes in [20, 70, 30, 50, 90, 25] {
        predictor.train(NOW, &job(megabytes, 1));
        predictor.train(NOW, &job(2 * megabytes, 0));
    }
    near(predictor.local(&id("server"), deeper).unwrap().seconds.0, 64.0 * 0.020, 0.02);
    near(predictor.local(&id("server"), JOB).unwrap().seconds.0, 64.0 * 0.030, 0.02);
}

/// The prior adds transfer to computation, while read-ahead overlaps them: the pair's own jobs
/// correct that.
#[test]
fn twenty_jobs_correct_what_the_prior_of_a_pair_gets_wrong() {
    let worker = LoadSample { core_speed: 2.0, link: link(200e6, 0.001), ..idle("worker") };
    let mut predictor = predictor(&[worker, LoadSample { core_speed: 0.1, ..idle("owner") }]);
    let truth = |bytes: u64| (bytes as f64 / 400e6).max(bytes as f64 / 200e6) + 0.05;
    let mut last = 0.0;
    for job in 0..20u64 {
        let bytes = (8 << (job % 5)) * MIB;
        let wobble = if job % 2 == 0 { 1.05 } else { 0.95 };
        let seconds = truth(bytes) * wobble;
        let before = predictor.train(NOW, &report("owner", "worker", bytes, seconds, seconds * 5.0)).unwrap();
        assert_eq!(before.samples, job);
        last = relative_error(before.seconds.0, truth(bytes)).unwrap();
    }
    assert!(last < 0.05, "{last}");
    let prediction = predictor.remote(NOW, &id("worker"), &id("owner"), JOB).unwrap();
    near(prediction.seconds.0, truth(SIZE.0), 0.05);
    near(prediction.joules.0, truth(SIZE.0) * 5.0, 0.05);
    // What the worker does for one owner says nothing of its own jobs.
    near(predictor.local(&id("worker"), JOB).unwrap().seconds.0, (SIZE.as_f64() / 200e6 + 0.01) / 2.0, 1e-9);
}

#[test]
fn one_odd_job_moves_a_pair_less_than_it_moves_a_server() {
    let mut predictor = predictor(&[idle("worker"), idle("owner")]);
    let before = predictor.remote(NOW, &id("worker"), &id("owner"), JOB).unwrap().seconds.0;
    predictor.train(NOW, &report("owner", "worker", SIZE.0, 8.0 * before, 1.0));
    let after = predictor.remote(NOW, &id("worker"), &id("owner"), JOB).unwrap().seconds.0;
    // One job against a prior of half a job: 8^(2/3) = 4.
    near(after / before, 4.0, 0.01);
    let later = Time::from_seconds(1.0 + 60.0);
    let faded = predictor.remote(later, &id("worker"), &id("owner"), JOB).unwrap().seconds.0;
    // After its half-life, half a job against half a job: 8^(1/2).
    near(faded / before, 8f64.sqrt(), 0.01);
}

#[test]
fn servers_and_pairs_are_bounded_and_the_oldest_make_room() {
    let parameters = ModelParameters { max_pairs: 3, ..ModelParameters::default() };
    let mut predictor = Predictor::new(&parameters, 4);
    for minute in 0..50u32 {
        let now = Time::from_seconds(f64::from(minute) * 60.0);
        let worker = format!("server-{minute:02}");
        predictor.observe_load(now, &idle(&worker));
        predictor.train(now, &report("owner", &worker, SIZE.0, 1.0, 1.0));
    }
    let now = Time::from_seconds(3000.0);
    let summaries = predictor.summaries(now);
    let times =
        summaries.iter().filter(|summary| summary.kind == ModelKind::Time && summary.class == JobClass::LevelZero);
    let (pairs, servers): (Vec<_>, Vec<_>) = times.partition(|summary| summary.owner.is_some());
    assert_eq!(servers.iter().map(|s| s.server.as_str()).collect::<Vec<_>>(), ["server-47", "server-48", "server-49"]);
    assert_eq!(pairs.len(), 3);
    assert!(pairs.iter().all(|pair| pair.samples == 1));
}

#[test]
fn what_a_copy_holds_is_neither_waited_for_nor_paid_for() {
    let worker = LoadSample { core_speed: 2.0, active_watts: Watts(12.0), link: link(100e6, 0.001), ..idle("worker") };
    let owner = LoadSample { core_speed: 0.5, active_watts: Watts(4.0), link: link(50e6, 0.004), ..idle("owner") };
    let predictor = predictor(&[worker, owner]);
    let remote = |held: u64| predictor.remote(NOW, &id("worker"), &id("owner"), JOB.holding(Bytes(held))).unwrap();
    let [none, half, all] = [0, SIZE.0 / 2, SIZE.0].map(remote);
    near((none.seconds - all.seconds).0, SIZE.as_f64() / 50e6, 1e-9);
    near((none.seconds - half.seconds).0, SIZE.as_f64() / 50e6 / 2.0, 1e-9);
    // A second of a core of speed 1 for each gigabyte: at 12 W half a second, at 4 W two.
    near((none.joules - all.joules).0, SIZE.as_f64() / 1e9 * (12.0 / 2.0 + 4.0 / 0.5), 1e-9);
    assert_eq!(remote(10 * SIZE.0), all, "nobody holds more than all");
}

#[test]
fn a_job_without_transfer_takes_no_less_than_one_of_the_workers_own() {
    let mut predictor = predictor(&[
        LoadSample { link: link(50e6, 0.001), ..idle("worker") },
        LoadSample { link: link(50e6, 0.001), ..idle("owner") },
    ]);
    // On this pair bytes come while the worker merges: all of it takes little more than merging.
    let own = predictor.local(&id("worker"), JOB).unwrap().seconds.0;
    for _ in 0..200 {
        predictor.train(NOW, &report("owner", "worker", SIZE.0, 1.2 * own, 3.0));
    }
    near(predictor.remote(NOW, &id("worker"), &id("owner"), JOB).unwrap().seconds.0, 1.2 * own, 0.05);
    let held = predictor.remote(NOW, &id("worker"), &id("owner"), JOB.holding(SIZE)).unwrap();
    near(held.seconds.0, own, 1e-9);
}

#[test]
fn jobs_where_a_copy_is_teach_what_such_jobs_take_and_what_others_would() {
    let mut predictor = predictor(&[
        LoadSample { link: link(50e6, 0.001), ..idle("worker") },
        LoadSample { link: link(50e6, 0.001), ..idle("owner") },
    ]);
    for _ in 0..200 {
        let held = JobReport { held_bytes: SIZE, ..report("owner", "worker", SIZE.0, 3.0, 7.0) };
        predictor.train(NOW, &held);
    }
    let remote = |job| predictor.remote(NOW, &id("worker"), &id("owner"), job).unwrap();
    let (held, fetched) = (remote(JOB.holding(SIZE)), remote(JOB));
    near(held.seconds.0, 3.0, 0.05);
    near(held.joules.0, 7.0, 0.05);
    near(fetched.seconds.0, 3.0 + SIZE.as_f64() / 50e6, 0.05);
    near(fetched.joules.0, 7.0 + SIZE.as_f64() / 1e9 * 20.0, 0.05);
    assert!(held.time_error < 0.05, "{held:?}");
    // Nothing was metered: no energy is learned, whatever was saved.
    let mut unmetered = Predictor::new(&ModelParameters::default(), 16);
    unmetered.observe_load(NOW, &idle("worker"));
    let before = unmetered.remote(NOW, &id("worker"), &id("owner"), JOB).unwrap().joules;
    let free = JobReport { held_bytes: SIZE, ..report("owner", "worker", SIZE.0, 9.0, 0.0) };
    unmetered.train(NOW, &free);
    assert_eq!(unmetered.remote(NOW, &id("worker"), &id("owner"), JOB).unwrap().joules, before);
}
