use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::driver::Phase;
use crate::target::{Compression, StoreSettings, TargetKind};
use crate::workload::{Preload, Workload, WorkloadOptions};
use crate::{Error, Result};

fn tiny(workload: Workload, target: TargetKind) -> BenchOptions {
    BenchOptions {
        workload: WorkloadOptions {
            workload,
            keys: 2_000,
            value_bytes: 100,
            ops: Some(3_000),
            threads: 2,
            ..WorkloadOptions::default()
        },
        target,
        ..BenchOptions::default()
    }
}

fn run(options: &BenchOptions) -> Result<BenchReport> {
    run_bench(options, |_| {})
}

fn refusal(options: &BenchOptions) -> String {
    match run(options) {
        Err(Error::Options(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// The names of all fields of a JSON object, those of objects within it behind their own.
fn field_names(json: &serde_json::Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (name, value) in json.as_object().expect("an object") {
        names.insert(name.clone());
        if value.is_object() {
            names.extend(field_names(value).into_iter().map(|inner| format!("{name}.{inner}")));
        }
    }
    names
}

#[test]
fn the_json_has_the_promised_fields_on_both_targets() {
    for target in TargetKind::ALL {
        let report = serde_json::to_value(run(&tiny(Workload::YcsbA, target)).unwrap()).unwrap();
        let names = field_names(&report).into_iter().collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!("fields_of_a_report", names);
        assert_eq!(report["workload"], "ycsb-a");
        assert_eq!(report["target"], target.name());
        assert_eq!(report["ops"], 3_000);
    }
}

#[test]
fn every_workload_runs_on_both_targets_and_finds_what_it_reads() {
    for workload in Workload::ALL {
        for target in TargetKind::ALL {
            let report = run(&tiny(workload, target)).unwrap();
            let counted: u64 = report.ops_by_kind.values().sum();
            assert_eq!(report.ops, counted, "{workload} on {target}");
            assert!(report.ops >= 3_000, "{workload} on {target}: {}", report.ops);
            assert_eq!(report.missed, 0, "{workload} on {target}");
            assert!(report.seconds > 0.0 && report.ops_per_s > 0.0);
            assert!(report.cpu_seconds > 0.0, "{workload} on {target}");
            for (kind, latency) in &report.latency_us {
                let rising = [0.0, latency.p50, latency.p99, latency.p999, latency.max];
                assert!(rising.is_sorted() && latency.p50 > 0.0, "{workload} on {target}, {kind}: {latency:?}");
            }
        }
    }
}

#[test]
fn both_targets_run_the_same_operations() {
    for workload in [Workload::MixGraph, Workload::YcsbD, Workload::YcsbF] {
        let [ours, bare] = TargetKind::ALL.map(|target| run(&tiny(workload, target)).unwrap());
        assert_eq!(ours.ops_by_kind, bare.ops_by_kind, "{workload}");
        assert_eq!(ours.bytes_user, bare.bytes_user, "{workload}");
    }
}

#[test]
fn space_is_measured_against_what_is_live() {
    // Random values that do not shrink, in tables after settling: the directory holds at least the live data.
    for target in TargetKind::ALL {
        let mut options = tiny(Workload::FillSeq, target);
        options.workload.value_bytes = 1_000;
        options.workload.keys = 10_000;
        options.workload.ops = Some(10_000);
        options.store.compression = Compression::None;
        let report = run(&options).unwrap();
        let sar = report.sar.unwrap();
        // 10 MB of data; RocksDB may keep the old log until the next flush.
        assert!((1.0..2.5).contains(&sar), "{target}: {sar}");
        assert_eq!(report.bytes_user, 10_000 * 1_016);
    }
}

#[test]
fn every_byte_of_the_user_reaches_the_device_at_least_once_or_there_is_a_reason() {
    for target in TargetKind::ALL {
        let report = run(&tiny(Workload::FillRandom, target)).unwrap();
        match report.war {
            Some(war) => {
                assert!(war >= 1.0, "{target}: {war}");
                assert_eq!(war, report.bytes_device.unwrap() as f64 / report.bytes_user as f64);
            }
            None => assert!(report.unavailable["bytes_device"].contains("in memory"), "{:?}", report.unavailable),
        }
    }
}

#[test]
fn what_cannot_be_known_is_null_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    for target in TargetKind::ALL {
        let dir = directory.path().join(target.name());
        let first = BenchOptions { dir: Some(dir.clone()), ..tiny(Workload::FillSeq, target) };
        run(&first).unwrap();
        assert!(refusal(&first).contains("is not empty"));

        let again = BenchOptions { dir: Some(dir), use_existing: true, ..tiny(Workload::ReadRandom, target) };
        let report = run(&again).unwrap();
        assert_eq!(report.missed, 0);
        assert_eq!((report.bytes_user, report.war, report.sar), (0, None, None));
        assert!(report.unavailable["war"].contains("wrote nothing"), "{:?}", report.unavailable);
        assert!(report.unavailable["sar"].contains("before the run"), "{:?}", report.unavailable);
    }
}

#[test]
fn options_that_make_no_sense_are_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("store");
    let tiny = || BenchOptions { dir: Some(dir.clone()), ..tiny(Workload::FillRandom, TargetKind::Engine) };

    let mut options = tiny();
    options.workload.threads = 0;
    assert!(refusal(&options).starts_with("threads is 0"));

    let mut options = tiny();
    options.workload.preload = Preload::Existing;
    assert!(refusal(&options).contains("use-existing"));

    let options = BenchOptions { dir: None, use_existing: true, ..tiny() };
    assert!(refusal(&options).contains("needs dir"));

    assert!(!dir.exists());

    let options = BenchOptions { store: StoreSettings { memtable_bytes: 1, ..StoreSettings::default() }, ..tiny() };
    let reason = run(&options).unwrap_err().to_string();
    assert!(reason.contains("memtable_bytes"), "{reason}");

    let existing = BenchOptions { use_existing: true, ..tiny() };
    assert!(existing.validate_comparison(3).is_err());
    assert!(tiny().validate_comparison(0).is_err());
    assert!(tiny().validate_comparison(1001).is_err());
}

#[test]
fn progress_goes_through_the_phases_in_order() {
    let mut options = tiny(Workload::ReadRandom, TargetKind::Engine);
    options.workload.ops = None;
    options.workload.seconds = Some(2.5);
    let mut seen = Vec::new();
    run_bench(&options, |progress| {
        seen.push(match progress {
            BenchProgress::Running(snapshot) => Some(snapshot.phase),
            BenchProgress::SettlingAfter => None,
        });
    })
    .unwrap();
    assert_eq!(seen.last(), Some(&None));
    assert!(seen.iter().filter(|&&phase| phase == Some(Phase::Measuring)).count() >= 2, "{seen:?}");
}

#[test]
fn the_table_shows_what_the_report_holds() {
    let report = run(&tiny(Workload::YcsbF, TargetKind::Rocksdb)).unwrap();
    let text = report_table(&report);
    for expected in ["ycsb-f on rocksdb", "3 000 in", "read_modify_write", "latency of get", "write amplification"] {
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
    }
}

/// A program that stands in for the binary: it notes what it was asked for and prints the prepared report of its target.
fn stand_in(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        r#"test "$0" = "{CHILD_FLAG}" || exit 9
           case "$1" in *'"target":"engine"'*) name=engine ;; *) name=rocksdb ;; esac
           echo "$name" >> {directory}/order; echo "$1" >> {directory}/arguments; cat {directory}/$name"#
    )
}

fn compare(directory: &Path, options: &BenchOptions, rounds: u32, script: &str) -> Result<Comparison> {
    for target in TargetKind::ALL {
        let mut report = run(&tiny(Workload::FillRandom, target)).unwrap();
        report.ops_per_s = if target == TargetKind::Engine { 90.0 } else { 100.0 };
        report.war = (target == TargetKind::Engine).then_some(3.0);
        std::fs::write(directory.join(target.name()), serde_json::to_vec(&report).unwrap()).unwrap();
    }
    run_compare(options, rounds, Path::new("/bin/sh"), &["-c", script], |_, _| {})
}

#[test]
fn a_comparison_alternates_and_gives_each_run_a_store_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let options =
        BenchOptions { dir: Some(directory.path().join("stores")), ..tiny(Workload::FillRandom, TargetKind::Engine) };
    let comparison = compare(directory.path(), &options, 3, &stand_in(directory.path())).unwrap();
    let order = std::fs::read_to_string(directory.path().join("order")).unwrap();
    assert_eq!(order.split_whitespace().collect::<String>(), "enginerocksdbrocksdbengineenginerocksdb");

    let mut stores = BTreeSet::new();
    for line in std::fs::read_to_string(directory.path().join("arguments")).unwrap().lines() {
        let child: BenchOptions = serde_json::from_str(line).unwrap();
        assert_eq!(child.workload, options.workload);
        assert!(stores.insert(child.dir.unwrap()));
    }

    assert_eq!(comparison.rounds.len(), 3);
    assert_eq!(comparison.median.ops_per_s, Some(0.9));
    assert_eq!(comparison.median.war, None, "one side has none");
    let text = comparison_table(&comparison);
    assert!(text.contains("0.900") && text.contains("median"), "{text}");
}

#[test]
fn a_child_that_fails_or_babbles_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let options = tiny(Workload::FillRandom, TargetKind::Engine);
    let error = |script| compare(directory.path(), &options, 1, script).unwrap_err().to_string();
    let failed = error("exit 3");
    assert!(failed.contains("engine") && failed.contains('3'), "{failed}");
    assert!(error("echo hello").contains("is no report"));
}

#[test]
fn a_child_takes_its_options_as_json_and_returns_its_report() {
    let options = tiny(Workload::SeekRandom, TargetKind::Rocksdb);
    let report = run_child(&serde_json::to_string(&options).unwrap(), |_| {}).unwrap();
    let report: BenchReport = serde_json::from_str(&report).unwrap();
    assert_eq!(report.options, options);
    assert!(matches!(run_child("{\"keyz\":1}", |_| {}), Err(Error::Options(reason)) if reason.contains("keyz")));
}

#[test]
fn medians_leave_out_the_outliers() {
    let report = run(&tiny(Workload::FillRandom, TargetKind::Engine)).unwrap();
    let round = |ops_per_s: f64| ComparedRound {
        engine: BenchReport { ops_per_s, ..report.clone() },
        rocksdb: BenchReport { ops_per_s: 100.0, stall_ms: 0.0, ..report.clone() },
    };
    let comparison = Comparison::of([10.0, 99.0, 101.0, 103.0, 900.0].map(round).to_vec());
    let of = |ratios: &Ratios| ratios.ops_per_s.unwrap();
    assert_eq!([&comparison.least, &comparison.median, &comparison.greatest].map(of), [0.1, 1.01, 9.0]);
    assert_eq!(comparison.median.stall_ms, None, "nothing can be said relative to zero");
    assert_eq!(of(&Comparison::of([98.0, 102.0].map(round).to_vec()).median), 1.0);
    assert_eq!(Comparison::of(Vec::new()).median, Ratios::default());
}

#[test]
fn options_survive_their_json() {
    let options = BenchOptions {
        dir: Some("/somewhere".into()),
        store: StoreSettings { memory_limit_bytes: Some(1 << 30), ..StoreSettings::default() },
        ..tiny(Workload::MixGraph, TargetKind::Rocksdb)
    };
    let json = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<BenchOptions>(&json).unwrap(), options);
    assert_eq!(serde_json::from_str::<BenchOptions>("{}").unwrap(), BenchOptions::default());
}
