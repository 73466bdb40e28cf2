//! What a lab that goes well tells its servers, and what it makes of their records.

use std::fs;

use ecotone_bench::workload::ValueKind;
use ecotone_lab::{OfferedRate, PolicyRun, Progress, Quiet, Tick};
use ecotone_server::record::Record;

use crate::surroundings::Bench;

/// Writes down what it is called with.
#[derive(Default)]
struct Diary {
    notes: Vec<String>,
    ticks: Vec<Tick>,
}

impl Progress for Diary {
    fn begin(&mut self, runs: usize, seconds: u64) {
        self.notes.push(format!("{runs} runs of {seconds} s"));
    }
    fn run_begins(&mut self, index: usize, policy: &str) {
        self.notes.push(format!("{index} {policy}"));
    }
    fn workload_begins(&mut self, policy: &str) {
        self.notes.push(format!("{policy} works"));
    }
    fn second(&mut self, tick: &Tick) {
        self.ticks.push(tick.clone());
    }
    fn run_ends(&mut self, index: usize, run: &PolicyRun) {
        self.notes.push(format!("{index} {} done", run.policy));
    }
    fn warning(&mut self, text: &str) {
        self.notes.push(format!("warning: {text}"));
    }
}

#[test]
fn a_calm_lab_collects_from_all_servers_and_leaves_nothing() {
    let bench = Bench::new();
    let mut diary = Diary::default();
    let report = bench.run(&bench.options("calm", &["local", "eco"]), &mut diary).unwrap();
    assert_eq!(
        diary.notes,
        ["2 runs of 2 s", "0 local", "local works", "0 local done", "1 eco", "eco works", "1 eco done"]
    );
    assert_eq!(report.warnings, [] as [String; 0]);
    assert_eq!(report.runs.len(), 2);
    for run in &report.runs {
        assert_eq!(
            run.servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(),
            ["high-1", "medium-1", "low-1"]
        );
        assert_eq!((run.total.ops_per_s, run.total.energy_joules, run.total.offloaded), (3000.0, 6.0, 3));
        assert_eq!(run.total.epo_uj, Some(1000.0));
        // |1 - 2| / 2 and |5 - 4| / 4, of the three jobs predicted after 20 trainings.
        assert_eq!((run.models.time_error, run.models.energy_error, run.models.jobs), (Some(0.5), Some(0.25), 3));
        assert_eq!(run.models.rate_error, None);
    }
    assert_eq!(report.runs[1].total.relative.unwrap().ops_per_s, Some(1.0));
    let samples = &report.recording.runs[1].servers[2].samples;
    assert_eq!(samples.iter().map(|sample| sample.at_s).collect::<Vec<_>>(), [1.0, 2.0], "and nothing after the final");
}

#[test]
fn servers_are_told_what_the_profile_says() {
    let bench = Bench::new();
    let record = bench.directory.join("recorded");
    let mut options = bench.options("calm", &["local-split"]);
    (options.record, options.rate) = (Some(record.clone()), Some("250".parse().unwrap()));
    options.values = ValueKind::Json;
    let report = bench.run(&options, &mut Quiet).unwrap();
    assert_eq!(report.runs[0].total.ops_per_s, 750.0);
    let log = fs::read_to_string(record.join("local-split/low-1.log")).unwrap();
    for argument in [
        "serve --dir ",
        "--listen 127.0.0.1:0 --name low-1 --join 127.0.0.1:4000 --policy local-split --cores 4 --core-speed 0.054",
        "--active-watts 2 --idle-watts 0.7 --worker-slots 1",
        "--store-option memtable_bytes=262144",
        "--store-option l0_slowdown_trigger=20",
        "--store-option max_subcompactions=2",
        "--workload fillrandom --keys 13000 --key-bytes 16 --value-bytes 1000 --values json --threads 1",
        "--rate 250.0 --seconds 2 --seed 3",
        "--wait-for-start --records -",
    ] {
        assert!(log.contains(argument), "no {argument} in {log}");
    }
    assert!(!fs::read_to_string(record.join("local-split/high-1.log")).unwrap().contains("--join"));

    let records = fs::read_to_string(record.join("local-split/low-1.records.jsonl")).unwrap();
    let records: Vec<Record> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(matches!(records[..], [Record::Sample(_), Record::Sample(_), Record::Job(_), Record::Final(_)]));
    assert!(!record.join("local-split/stores").exists(), "stores are not recorded");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(record.join("lab.json")).unwrap()).unwrap();
    assert_eq!(json["runs"][0]["policy"], "local-split");
    assert_eq!(json["values"], "json");

    // Once more into the same directory, but never into a stranger's.
    bench.run(&options, &mut Quiet).unwrap();
    options.record = Some(bench.directory.clone());
    assert!(bench.fails(&options).contains("not empty and was not made by the lab"));
}

#[test]
fn each_policy_runs_with_each_separation_and_is_compared_with_the_first_local_run() {
    let bench = Bench::new();
    let record = bench.directory.join("recorded");
    let mut options = bench.options("calm", &["local", "local-split"]);
    (options.record, options.separations) = (Some(record.clone()), vec![None, Some(128)]);
    let mut diary = Diary::default();
    let report = bench.run(&options, &mut diary).unwrap();
    assert_eq!(diary.notes[0], "4 runs of 2 s");
    let runs: Vec<_> = report.runs.iter().map(|run| (run.policy.as_str(), run.separation_min_bytes)).collect();
    let expected = [("local", None), ("local-split", None), ("local+128", Some(128)), ("local-split+128", Some(128))];
    assert_eq!(runs, expected);
    assert_eq!(report.local().unwrap().policy, "local");
    assert_eq!(report.runs.iter().filter(|run| run.total.relative.is_some()).count(), 3);

    let log = |run: &str| fs::read_to_string(record.join(run).join("high-1.log")).unwrap();
    let (plain, separated) = (log("local-split"), log("local-split+128"));
    // A server separates values unless told not to.
    assert!(plain.contains("--store-option separation_min_bytes=off"), "{plain}");
    for argument in [
        "--policy local-split ",
        "--store-option separation_min_bytes=128",
        "--store-option memtable_count=3",
        "--store-option l0_slowdown_trigger=20",
    ] {
        assert!(separated.contains(argument), "no {argument} in {separated}");
    }
    let json: serde_json::Value = serde_json::from_slice(&fs::read(record.join("lab.json")).unwrap()).unwrap();
    assert_eq!(json["runs"][2]["separation_min_bytes"], 128);

    // Alone it is compared with itself separated.
    options.separations = vec![Some(128)];
    let report = bench.run(&options, &mut Quiet).unwrap();
    assert_eq!(report.local().unwrap().policy, "local+128");
    assert!(ecotone_lab::report::results_text(&report).contains("vs local+128"));
    for (wrong, says) in [(vec![], "--separation"), (vec![Some(0)], "at least 1"), (vec![None, None], "named twice")] {
        options.separations = wrong;
        assert!(bench.fails(&options).contains(says));
    }
}

#[test]
fn a_share_of_local_is_measured_first() {
    let bench = Bench::new();
    let mut options = bench.options("calm", &["eco"]);
    options.rate = Some(OfferedRate::ShareOfLocal(0.7));
    let mut diary = Diary::default();
    let report = bench.run(&options, &mut diary).unwrap();
    assert_eq!(diary.notes[..3], ["2 runs of 2 s", "0 local", "local works"]);
    assert_eq!(report.calibration.unwrap().total.ops_per_s, 3000.0);
    assert_eq!((report.runs.len(), report.runs[0].servers[2].ops_per_s), (1, 700.0));
    assert_eq!((report.offered.rate.as_str(), report.offered.ops_per_s["low-1"]), ("70% of local", 700.0));
}

#[test]
fn colocated_threads_grow_in_steps_on_high_only() {
    let bench = Bench::new();
    let mut options = bench.options("loaded", &["eco"]);
    (options.seconds, options.colocated) = (4, 3);
    let mut diary = Diary::default();
    let report = bench.run(&options, &mut diary).unwrap();
    let threads = |server: usize| {
        let samples = &report.recording.runs[0].servers[server].samples;
        samples.iter().map(|sample| sample.colocated_threads).collect::<Vec<_>>()
    };
    assert_eq!((threads(1), threads(2)), (vec![0; 4], vec![0; 4]));
    // Each step lasts a second, as a sample does: which of two neighbours sees it first is open.
    let high = threads(0);
    assert!(high.is_sorted() && high[0] <= 1 && high[3] >= 2, "{high:?}");
    assert_eq!(report.colocated_steps(), [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, 3)]);
    assert!(diary.ticks.len() >= 2 && diary.ticks[0].l0_tables.len() == 3, "{:?}", diary.ticks);
}
