//! Golden table: situation by situation, the decision that the papers give. The table says how it
//! is written.
use crate::common;

use common::{Federation, MIB, Placement, id, idle, report};
use ecotone_policy::machine::{
    Event, FailureReason, Holder, JobReport, Link, LoadSample, OffloadOutcome, Parameters, WhenNoneInTime,
};
use ecotone_types::units::{Bytes, BytesPerSecond, Cores, Seconds, Tables, Time, Watts};
use ecotone_types::{JobId, JobPurpose};

const TABLE: &str = include_str!("../golden/decisions.txt");
const SIZE: u64 = 64 * MIB;

#[derive(Default)]
struct Situation {
    title: String,
    parameters: Parameters,
    servers: Vec<(LoadSample, bool)>,
    jobs: Vec<(String, String, f64, f64)>,
    input_tables_per_s: f64,
    owner: String,
    failed: Option<String>,
    has_coordinator: bool,
    level: i32,
    l0_tables: Option<u32>,
    purpose: JobPurpose,
    space_lasts: Option<Seconds>,
    holders: Vec<Holder>,
    expected: String,
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is not a number"))
}

/// The value after a word, as in `cores 3`.
fn after<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().position(|word| *word == name).map(|at| words[at + 1])
}

fn parse() -> Vec<Situation> {
    let mut situations: Vec<Situation> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if let Some(title) = line.strip_prefix("== ") {
            let title = title.to_string();
            situations.push(Situation { title, owner: "B".into(), has_coordinator: true, ..Situation::default() });
            continue;
        }
        let now = situations.last_mut().expect("a title comes first");
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "policy" => now.parameters.policy = words[1].parse().unwrap(),
            "fastest-if-faster" => now.parameters.when_none_in_time = WhenNoneInTime::FastestIfFaster,
            "margin" => now.parameters.stall_margin_tables = Tables(number(words[1])),
            "no" => now.has_coordinator = false,
            "server" => {
                let mut sample = idle(words[1]);
                sample.free_cores = after(&words, "cores").map_or(sample.free_cores, |n| Cores(number(n)));
                sample.worker_slots_free = after(&words, "slots").map_or(2, number);
                sample.core_speed = after(&words, "speed").map_or(1.0, number);
                sample.active_watts = after(&words, "watts").map_or(sample.active_watts, |n| Watts(number(n)));
                if let Some(link) = after(&words, "link") {
                    sample.link = Some(Link { bytes_per_s: BytesPerSecond(number(link)), round_trip: Seconds(0.0) });
                }
                if let Some(net) = after(&words, "net") {
                    sample.free_network_bytes_per_s = BytesPerSecond(number(net));
                }
                sample.stalled = words.contains(&"stalled");
                now.servers.push((sample, words.contains(&"stale")));
            }
            "local" => now.jobs.push((words[1].into(), words[1].into(), number(words[2]), number(words[3]))),
            "pair" => now.jobs.push((words[2].into(), words[1].into(), number(words[3]), number(words[4]))),
            "input" => now.input_tables_per_s = if words[1] == "none" { 0.0 } else { number(words[1]) },
            "failed" => now.failed = Some(words[1].into()),
            "compaction" => {
                now.owner = after(&words, "owner").unwrap_or("B").into();
                now.level = after(&words, "level").map_or(0, number);
                now.l0_tables = after(&words, "l0").map(number);
            }
            "merge" => {
                now.purpose = JobPurpose::Dedup;
                now.level = after(&words, "level").map_or(1, number);
                now.l0_tables = after(&words, "l0").map(number);
            }
            "gc" => {
                now.purpose = JobPurpose::Gc;
                now.level = after(&words, "level").map_or(1, number);
                now.l0_tables = after(&words, "l0").map(number);
            }
            "holds" => {
                let bytes = Bytes((SIZE as f64 * number::<f64>(words[2])) as u64);
                now.holders.push(Holder { server: id(words[1]), bytes });
            }
            "space" => now.space_lasts = Some(Seconds(number(words[2]))),
            "=>" => now.expected = line[3..].to_string(),
            other => panic!("the table does not know `{other}`"),
        }
    }
    situations
}

fn decide(situation: &Situation) -> (Placement, Federation) {
    let mut names: Vec<&str> = situation.servers.iter().map(|(sample, _)| sample.server.as_str()).collect();
    if !names.contains(&situation.owner.as_str()) {
        names.push(&situation.owner);
    }
    let mut federation = Federation::new(&names, &situation.parameters);
    for (sample, _) in situation.servers.iter().filter(|(_, stale)| *stale) {
        federation.load(sample.clone());
    }
    federation.now = Time::from_seconds(10.0);
    // Jobs of level 0 and those below it have models of their own.
    let known_level = if situation.purpose == JobPurpose::Compaction { 0 } else { situation.level };
    for (owner, worker, seconds, joules) in &situation.jobs {
        // Jobs of several sizes on one line through the origin: the model is then that line.
        for _ in 0..40 {
            for share in [0.5, 1.0, 2.0] {
                let bytes = (SIZE as f64 * share) as u64;
                let finished = report(owner, worker, bytes, seconds * share, joules * share);
                federation.finished(JobReport { input_level: known_level, ..finished });
            }
        }
    }
    for (sample, _) in situation.servers.iter().filter(|(_, stale)| !stale) {
        let mut sample = sample.clone();
        if sample.server.as_str() == situation.owner {
            // No flush has been seen, so the prior of 64 MiB for each table holds.
            sample.input_bytes_per_s = BytesPerSecond(situation.input_tables_per_s * SIZE as f64);
        }
        federation.load(sample);
    }
    if !situation.has_coordinator {
        federation.coordinator = None;
    }
    if let Some(worker) = &situation.failed {
        fail_one_job(&mut federation, &situation.owner, worker);
    }
    let event = Event::CompactionReady {
        job: JobId(2),
        purpose: situation.purpose,
        input_bytes: Bytes(SIZE),
        input_level: situation.level,
        output_level: situation.level + 1,
        l0_tables: situation.l0_tables,
        deadline: situation.space_lasts,
        holders: situation.holders.clone(),
    };
    let place = federation.place(&situation.owner, event);
    (place, federation)
}

/// Gives `worker` a job of `owner`, which fails.
fn fail_one_job(federation: &mut Federation, owner: &str, worker: &str) {
    let place = federation.ready(owner, 1, SIZE, 0, Some(14));
    assert!(matches!(&place, Placement::Worker { worker: chosen, .. } if chosen.as_str() == worker), "{place}");
    let outcome = OffloadOutcome::Failed { worker: id(worker), reason: FailureReason::HeartbeatLost };
    let now = federation.now;
    let commands = federation.core(&id(owner)).handle(now, Event::OffloadEnded { job: JobId(1), outcome });
    assert_eq!(commands.len(), 1);
}

#[test]
fn every_situation_is_decided_as_the_papers_say() {
    let situations = parse();
    assert!(situations.len() > 30, "the table was read: {} situations", situations.len());
    let mut wrong = Vec::new();
    for situation in &situations {
        let (place, federation) = decide(situation);
        let mut words = situation.expected.split(", ");
        let latest = federation.last_request.as_ref().map(|request| request.latest);
        let as_expected = words.next() == Some(&place.to_string())
            && words.all(|word| match word.strip_prefix("latest ") {
                Some(seconds) => {
                    latest.flatten().is_some_and(|latest| (latest.0 - number::<f64>(seconds)).abs() < 0.001)
                }
                None => word == "no deadline" && latest == Some(None),
            });
        if !as_expected {
            wrong.push(format!(
                "{}\n  expected {}\n  got      {place}, latest {latest:?}",
                situation.title, situation.expected
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} situations:\n{}", wrong.len(), situations.len(), wrong.join("\n"));
}

#[test]
fn an_offload_says_what_is_expected_and_when_to_give_up() {
    let situation = &parse()[0];
    let (Placement::Worker { prediction, deadline, .. }, _) = decide(situation) else { panic!("it is offloaded") };
    assert!((prediction.seconds.0 - 1.8).abs() < 0.02, "{prediction:?}");
    assert!((prediction.joules.0 - 34.0).abs() < 0.4, "{prediction:?}");
    assert_eq!(prediction.samples, 120);
    // Four times 1.8 s is less than the least deadline.
    assert_eq!(deadline, Seconds(10.0));
    assert_eq!(Bytes(SIZE), Bytes::from_mib(64));
}
