use std::collections::BTreeSet;
use std::path::Path;

use ecotone_engine::{CompressionMode, StoreSettings};

use super::*;
use crate::driver::Phase;
use crate::target::{Compression, DedupKind, DedupSettings, Profile, TargetKind, TargetSettings};
use crate::workload::{Preload, ValueKind, Workload, WorkloadOptions};
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
        store: TargetSettings::for_target(target, Profile::Default, None),
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
fn the_json_has_the_promised_fields_on_all_targets() {
    for target in TargetKind::ALL {
        let report = serde_json::to_value(run(&tiny(Workload::YcsbA, target)).unwrap()).unwrap();
        // Which figures are missing is another question.
        let promised = field_names(&report).into_iter().filter(|name| !name.starts_with("unavailable."));
        let names = promised.collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!("fields_of_a_report", names);
        assert_eq!(report["workload"], "ycsb-a");
        assert_eq!(report["target"], target.name());
        assert_eq!(report["ops"], 3_000);
    }
}

#[test]
fn every_workload_runs_on_all_targets_and_finds_what_it_reads() {
    for workload in Workload::ALL {
        for target in TargetKind::ALL {
            let report = run(&tiny(workload, target)).unwrap();
            let counted: u64 = report.ops_by_kind.values().sum();
            assert_eq!(report.ops, counted, "{workload} on {target}");
            assert!(report.ops >= 3_000, "{workload} on {target}: {}", report.ops);
            assert_eq!(report.missed, 0, "{workload} on {target}");
            assert!(report.seconds > 0.0 && report.ops_per_s > 0.0);
            assert!(report.cpu_seconds > Some(0.0), "{workload} on {target}");
            for (kind, latency) in &report.latency_us {
                let rising = [0.0, latency.p50, latency.p99, latency.p999, latency.max];
                assert!(rising.is_sorted() && latency.p50 > 0.0, "{workload} on {target}, {kind}: {latency:?}");
            }
        }
    }
}

#[test]
fn all_targets_run_the_same_operations() {
    for workload in [Workload::MixGraph, Workload::YcsbD, Workload::YcsbF] {
        let [ours, bare, blobs] = TargetKind::ALL.map(|target| run(&tiny(workload, target)).unwrap());
        for mark in [bare, blobs] {
            assert_eq!(ours.ops_by_kind, mark.ops_by_kind, "{workload}");
            assert_eq!(ours.bytes_user, mark.bytes_user, "{workload}");
        }
    }
}

#[test]
fn a_report_says_how_many_entries_a_seek_read() {
    for target in TargetKind::ALL {
        let mut options = tiny(Workload::SeekRandom, target);
        assert_eq!(run(&options).unwrap().scan_entries, Some(1), "{target}");
        options.workload.scan_entries = Some(50);
        options.workload.updates_before_percent = Some(100.0);
        let report = run(&options).unwrap();
        assert_eq!((report.scan_entries, report.ops), (Some(50), 3_000), "{target}");
        assert_eq!(
            (report.bytes_user, report.missed),
            (0, 0),
            "{target}: what is before the measured part is not in it"
        );
        assert_eq!(serde_json::to_value(&report).unwrap()["scan_entries"], 50);
        assert!(report_table(&report).contains("entries per seek      50"), "{target}");
    }
    assert_eq!(run(&tiny(Workload::YcsbE, TargetKind::Engine)).unwrap().scan_entries, None);
}

#[test]
fn updates_before_are_refused_where_nothing_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = tiny(Workload::SeekRandom, TargetKind::Engine);
    options.workload.updates_before_percent = Some(100.0);
    options.dir = Some(directory.path().to_path_buf());
    options.use_existing = true;
    assert!(refusal(&options).contains("with use-existing nothing is"));
}

#[test]
fn space_is_measured_against_what_is_live() {
    // Random values that do not shrink, in tables after settling: the directory holds at least the
    // live data.
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

    let options = BenchOptions { store: TargetSettings { memtable_bytes: 1, ..TargetSettings::default() }, ..tiny() };
    let reason = run(&options).unwrap_err().to_string();
    assert!(reason.contains("memtable_bytes"), "{reason}");

    let existing = BenchOptions { use_existing: true, ..tiny() };
    let refused = |options: &BenchOptions, baseline: &BenchOptions, rounds| {
        options.validate_comparison(baseline, rounds).unwrap_err().to_string()
    };
    let baseline = tiny().of_baseline(TargetKind::Rocksdb);
    assert!(refused(&existing, &existing.of_baseline(TargetKind::Rocksdb), 3).contains("use-existing"));
    assert!(refused(&tiny(), &baseline, 0).starts_with("rounds is 0"));
    assert!(refused(&tiny(), &baseline, 1001).starts_with("rounds is 1001"));
    assert!(refused(&baseline, &baseline, 1).contains("engine with another"));
    assert!(refused(&tiny(), &tiny(), 1).contains("engine with another"));
    let mut other = baseline.clone();
    other.workload.keys += 1;
    assert!(refused(&tiny(), &other, 1).contains("one workload"));

    let wrong = |change: fn(&mut BenchOptions)| {
        let mut options = tiny();
        change(&mut options);
        refusal(&options)
    };
    assert!(wrong(|o| o.settle_seconds = f64::NAN).starts_with("settle-seconds is NaN"));
    assert!(wrong(|o| o.cores = Some(0.03)).contains("between 0.04 and"));
    assert!(wrong(|o| o.store.blob_gc_age_cutoff = 1.1).starts_with("blob-gc-age-cutoff is 1.1"));
    assert!(wrong(|o| o.target = TargetKind::RocksdbBlob).contains("rocksdb-blob separates values"));
    let mut options = BenchOptions { target: TargetKind::Rocksdb, ..tiny() };
    options.store.separation_min_bytes = Some(128);
    assert!(refusal(&options).contains("the target rocksdb-blob separates them"));
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
            BenchProgress::CountingDuplicates | BenchProgress::SettlingAfter => None,
        });
    })
    .unwrap();
    assert_eq!(seen.last(), Some(&None));
    assert!(seen.iter().filter(|&&phase| phase == Some(Phase::Measuring)).count() >= 2, "{seen:?}");
}

#[test]
fn values_of_each_kind_are_run_and_named_in_the_report() {
    let kinds = [ValueKind::Half, ValueKind::Json, ValueKind::Text, ValueKind::Zeros(0.25)];
    for (kind, name) in kinds.into_iter().zip(["half", "json", "text", "zeros:0.25"]) {
        for target in TargetKind::ALL {
            let mut options = tiny(Workload::MixGraph, target);
            options.workload.values = kind;
            let report = run(&options).unwrap();
            assert_eq!((report.ops, report.missed), (3_000, 0), "{kind} on {target}");
            let json = serde_json::to_value(&report).unwrap();
            assert_eq!(json["options"]["workload"]["values"], name);
            assert_eq!(serde_json::from_value::<BenchReport>(json).unwrap().options, report.options);
        }
    }
}

#[test]
fn the_table_shows_what_the_report_holds() {
    let mut options = tiny(Workload::YcsbF, TargetKind::Rocksdb);
    options.workload.values = ValueKind::Json;
    let report = run(&options).unwrap();
    let text = report_table(&report);
    for expected in
        ["ycsb-f on rocksdb", "json of 100 B", "3 000 in", "read_modify_write", "latency of get", "write amplification"]
    {
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
    }
}

/// A program that stands in for the binary: it notes what it was asked for and prints the prepared
/// report of its target.
fn stand_in(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        r#"test "$0" = "{CHILD_FLAG}" || exit 9
           case "$1" in *'"target":"engine"'*) name=engine ;; *) name=rocksdb ;; esac
           echo "$name" >> {directory}/order; echo "$1" >> {directory}/arguments; cat {directory}/$name"#
    )
}

fn compare(directory: &Path, options: &BenchOptions, rounds: u32, script: &str) -> Result<Comparison> {
    for target in [TargetKind::Engine, TargetKind::Rocksdb] {
        let mut report = run(&tiny(Workload::FillRandom, target)).unwrap();
        report.ops_per_s = if target == TargetKind::Engine { 90.0 } else { 100.0 };
        report.war = (target == TargetKind::Engine).then_some(3.0);
        std::fs::write(directory.join(target.name()), serde_json::to_vec(&report).unwrap()).unwrap();
    }
    let baseline = options.of_baseline(TargetKind::Rocksdb);
    run_compare(options, &baseline, rounds, Path::new("/bin/sh"), &["-c", script], |_, _| {})
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
    assert!(text.contains("random of 100 B"), "{text}");
    assert!(text.contains("0.900") && text.contains("median") && text.contains("engine / rocksdb "), "{text}");
    let json = serde_json::to_value(&comparison).unwrap();
    assert_eq!(json["rounds"][1]["rocksdb"]["ops_per_s"], 100.0);
    assert_eq!(json["rounds"][1]["engine"]["ops_per_s"], 90.0);
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
    let report = run(&child_options(&serde_json::to_string(&options).unwrap()).unwrap()).unwrap();
    let report: BenchReport = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(report.options, options);
    assert!(matches!(child_options("{\"keyz\":1}"), Err(Error::Options(reason)) if reason.contains("keyz")));
}

#[test]
fn medians_leave_out_the_outliers() {
    let report = run(&tiny(Workload::FillRandom, TargetKind::Engine)).unwrap();
    let round = |ops_per_s: f64| ComparedRound {
        engine: BenchReport { ops_per_s, ..report.clone() },
        baseline: BenchReport { ops_per_s: 100.0, stall_ms: Some(0.0), ..report.clone() },
    };
    let comparison = Comparison::of([10.0, 99.0, 101.0, 103.0, 900.0].map(round).to_vec());
    let of = |ratios: &Ratios| ratios.ops_per_s.unwrap();
    assert_eq!([&comparison.least, &comparison.median, &comparison.greatest].map(of), [0.1, 1.01, 9.0]);
    assert_eq!(comparison.median.stall_ms, None, "nothing can be said relative to zero");
    assert_eq!(of(&Comparison::of([98.0, 102.0].map(round).to_vec()).median), 1.0);
    assert_eq!(Comparison::of(Vec::new()).median, Ratios::default());
}

/// What is measured must have the sizes that users get.
#[test]
fn a_store_is_opened_with_the_sizes_of_its_profile_and_layout() {
    for profile in Profile::ALL {
        let opened = |kind, separated| {
            let settings = TargetSettings::for_target(kind, profile, separated);
            settings.store_options().unwrap()
        };
        let options = StoreSettings { value_compression: CompressionMode::Auto, ..profile.settings() };
        assert_eq!(opened(TargetKind::Engine, None), options);
        assert_eq!(opened(TargetKind::Rocksdb, Some(500)), options);
        assert_eq!(opened(TargetKind::Engine, Some(500)), options.with_separation(500));
        let blobs = TargetSettings::for_target(TargetKind::RocksdbBlob, profile, Some(500)).store_options().unwrap();
        let plain = profile.settings();
        assert_eq!((blobs.memtable_bytes, blobs.memtable_count), (plain.memtable_bytes, plain.memtable_count));
    }
}

#[test]
fn a_mark_has_the_sizes_that_suit_it_and_all_else_of_ours() {
    let mut ours = tiny(Workload::Updates, TargetKind::Engine);
    ours.store =
        TargetSettings { memory_limit_bytes: Some(1 << 30), ..TargetSettings::of_profile(Profile::Default, Some(500)) };
    ours.store.blob_gc_force_threshold = 0.5;
    ours.store.compression = Compression::Zstd;
    ours.cores = Some(0.5);
    let plain = ours.of_baseline(TargetKind::Rocksdb);
    assert_eq!(plain.store.memtable_bytes, 2 * ours.store.memtable_bytes);
    assert_eq!((plain.store.separation_min_bytes, plain.store.memory_limit_bytes), (None, Some(1 << 30)));
    assert_eq!((plain.cores, &plain.workload), (Some(0.5), &ours.workload));
    assert_eq!(plain.store.compression, Compression::Zstd);
    let blobs = ours.of_baseline(TargetKind::RocksdbBlob);
    assert_eq!(blobs.store.target_file_bytes, ours.store.target_file_bytes);
    assert_eq!(blobs.store.memtable_bytes, plain.store.memtable_bytes, "values wait there for their flush");
    assert_eq!((blobs.store.separation_min_bytes, blobs.store.blob_gc_force_threshold), (Some(500), 0.5));
    for mark in [plain, blobs] {
        ours.validate_comparison(&mark, 1).unwrap();
    }
    let unsaid = tiny(Workload::Updates, TargetKind::Engine).of_baseline(TargetKind::RocksdbBlob);
    assert_eq!(unsaid.store.separation_min_bytes, Some(TargetSettings::MIN_BLOB_BYTES));
}

/// Every key is updated five or ten times in a small store, so that most of what was written is
/// garbage.
fn updates(target: TargetKind) -> BenchOptions {
    let mut options = tiny(Workload::Updates, target);
    options.workload.value_bytes = 1_000;
    options.workload.keys = 20_000;
    // RocksDB's compactions and those of BlobDB need no more to show what they cost.
    options.workload.ops = Some(if target == TargetKind::Engine { 200_000 } else { 100_000 });
    options.store = TargetSettings {
        memtable_bytes: 1 << 20,
        level_base_bytes: 4 << 20,
        target_file_bytes: 1 << 20,
        compression: Compression::None,
        blob_gc_force_threshold: 0.5,
        ..TargetSettings::for_target(target, Profile::Default, (target != TargetKind::Rocksdb).then_some(100))
    };
    options
}

#[test]
fn updates_tell_what_garbage_costs() {
    for target in TargetKind::ALL {
        let options = updates(target);
        let ops = options.workload.ops.unwrap();
        let report = run(&options).unwrap();
        assert_eq!((report.ops, report.missed), (ops, 0));
        let [settled, at_end, most, steady] =
            [report.sar, report.sar_at_end, report.sar_max, report.sar_mean_steady].map(Option::unwrap);
        for sar in [settled, at_end, most, steady] {
            assert!((1.0..20.0).contains(&sar), "{target}: {sar}");
        }
        assert!(most >= at_end && most >= steady, "{target}");
        let last = report.samples.last().unwrap();
        assert_eq!((last.ops, last.bytes_user, last.sar), (ops, report.bytes_user, Some(at_end)));
        assert!(report.samples.is_sorted_by_key(|sample| sample.ops));
        if let Some(war) = report.war {
            assert!(war >= 1.0, "{target}: {war}");
            assert!(report.samples.iter().all(|sample| sample.war.is_some()));
        }
        let (bytes, share) = (report.gc_bytes.unwrap(), report.gc_cpu_share);
        match target {
            TargetKind::Engine => {
                assert!(bytes > 0, "nine tenths of 200 MB were garbage");
                let share = share.unwrap();
                assert!(share > 0.0 && share < 1.0, "{share}");
                // Of 200 MB most was garbage. Less than 16 MiB of it is left alone, and the segment
                // that is being written stays.
                let left = (settled - 1.35) * last.bytes_live.unwrap();
                assert!(left < f64::from(128 << 20), "GC was not waited for: {left} bytes too many");
            }
            TargetKind::Rocksdb | TargetKind::Resp => assert_eq!((bytes, share), (0, Some(0.0))),
            TargetKind::RocksdbBlob => {
                assert!(bytes > 0);
                assert!(share.is_none() && report.unavailable["gc_cpu_share"].contains("does not tell"));
            }
        }
        let text = report_table(&report);
        assert_eq!(text.contains("moved by GC"), target != TargetKind::Rocksdb, "{text}");
        assert!(text.contains("before settling"), "{text}");
    }
}

#[test]
fn inserted_keys_are_live() {
    let mut options = tiny(Workload::Updates, TargetKind::Engine);
    options.workload.update_share_percent = Some(0.0);
    let report = run(&options).unwrap();
    assert_eq!(report.samples.last().unwrap().bytes_live, Some(5_000.0 * 116.0), "2000 loaded and 3000 inserted");
}

#[test]
fn a_store_that_began_empty_has_no_highest_ratio_but_one_at_the_end() {
    let report = run(&tiny(Workload::FillRandom, TargetKind::Engine)).unwrap();
    assert!(report.sar.is_some() && report.sar_at_end.is_some() && report.sar_max.is_none());
    assert!(report.unavailable["sar_max"].contains("was empty"), "{:?}", report.unavailable);
}

#[test]
fn options_survive_their_json() {
    let options = BenchOptions {
        dir: Some("/somewhere".into()),
        store: TargetSettings { memory_limit_bytes: Some(1 << 30), ..TargetSettings::default() },
        ..tiny(Workload::MixGraph, TargetKind::Rocksdb)
    };
    let json = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<BenchOptions>(&json).unwrap(), options);
    assert_eq!(serde_json::from_str::<BenchOptions>("{}").unwrap(), BenchOptions::default());
}

#[test]
fn what_counting_and_merging_duplicates_did_is_reported_whichever_way() {
    for (kind, threshold) in [
        (DedupKind::Sample, None),
        (DedupKind::Sample, Some(50.0)),
        (DedupKind::Filter, Some(50.0)),
        (DedupKind::Triggered, Some(50.0)),
    ] {
        let mut options = tiny(Workload::Updates, TargetKind::Engine);
        (options.workload.keys, options.workload.ops) = (20_000, Some(40_000));
        options.store.memtable_bytes = 64 << 10;
        options.store.options =
            ["level_base_bytes=1048576", "target_file_bytes=131072", "level_multiplier=2", "dynamic_levels=false"]
                .map(str::to_owned)
                .to_vec();
        options.store.dedup = Some(DedupSettings { kind, threshold, ..DedupSettings::default() });
        let report = run(&options).unwrap();
        let found = &report.duplicates;
        assert!(found.dedup_cpu_share.is_some_and(|share| share > 0.0), "{kind:?} {found:?}");
        let (estimated, counted) = (found.shadowed_bytes_estimated.unwrap(), found.shadowed_bytes_true.unwrap());
        // One key in 64: a few hundred samples, whose error is reported.
        let error = 5.0 * found.dup_ratio_error.unwrap_or(1.0);
        assert!((estimated as f64 - counted as f64).abs() <= error * counted.max(1) as f64, "{kind:?} {found:?}");
        assert!(found.dup_ratio_estimated.is_some() && found.dup_ratio_true.is_some(), "{kind:?} {found:?}");
        // At intervals none need come in so short a run.
        assert!(kind == DedupKind::Triggered || found.dedup_checks > Some(0), "{kind:?} {found:?}");
        assert_eq!(found.dedup_unsampled_tables, Some(0), "{kind:?}");
        assert!(threshold.is_some() || found.dedup_merges == Some(0), "{found:?}");
    }
}

/// Tables of level 0 that nothing compacts, so that much is shadowed for certain.
fn updates_at_rest(separation: Option<u32>) -> BenchOptions {
    let mut options = tiny(Workload::Updates, TargetKind::Engine);
    options.workload.ops = Some(20_000);
    options.store = TargetSettings::for_target(TargetKind::Engine, Profile::Default, separation);
    options.store.memtable_bytes = 64 << 10;
    options.store.options =
        ["l0_compaction_trigger=1000", "l0_slowdown_trigger=1000", "l0_stop_trigger=1000"].map(str::to_owned).to_vec();
    options.store.dedup = Some(DedupSettings::default());
    options
}

#[test]
fn duplicates_are_counted_at_the_end_of_the_measured_part_where_they_are_asked_for() {
    for (separation, value_bytes) in [(None, 101), (Some(100), 7 + 16 + 100)] {
        let options = updates_at_rest(separation);
        let report = run(&options).unwrap();
        let found = &report.duplicates;
        // 22,000 puts of 2,000 keys in many tables: versions of one key that met in a memtable are
        // one.
        let (ratio, hidden) = (found.dup_ratio_true.unwrap(), found.shadowed_bytes_true.unwrap());
        assert!(ratio > 1.0 && ratio < 3.0, "{ratio}");
        assert!(hidden.is_multiple_of(value_bytes) && hidden > 2_000 * value_bytes, "{hidden}");
        let entries = ratio * (hidden / value_bytes) as f64;
        let keys = entries - (hidden / value_bytes) as f64;
        assert!((keys - 2_000.0).abs() < 0.5, "all that is not shadowed is live: {keys}");
        let text = report_table(&report);
        assert!(text.contains(&format!("one in {ratio:.1} entries")), "{text}");
        for (figure, value) in
            [("dup_ratio_estimated", found.dup_ratio_estimated), ("dedup_cpu_share", found.dedup_cpu_share)]
        {
            assert!(value.is_some() || report.unavailable.contains_key(figure), "{figure}");
        }
        // Not asked for: neither figures nor reasons.
        let mut options = options;
        options.store.dedup = None;
        let report = run(&options).unwrap();
        assert_eq!(report.duplicates, DuplicateFigures::default());
        assert!(!report.unavailable.keys().any(|figure| figure.starts_with("dup")), "{:?}", report.unavailable);
    }
}

#[test]
fn figures_of_duplicates_stand_beside_the_others_and_are_read_back() {
    let report = run(&updates_at_rest(None)).unwrap();
    let json = serde_json::to_string(&report).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    // The last of 53 bits may differ after reading.
    let (read, counted) = (value["dup_ratio_true"].as_f64().unwrap(), report.duplicates.dup_ratio_true.unwrap());
    assert!((read / counted - 1.0).abs() < 1e-12, "{read} for {counted}");
    assert!(value["dedup_merges"].is_null() && value["samples"][0].get("shadowed_bytes").is_some());
    let read = serde_json::from_str::<BenchReport>(&json).unwrap();
    assert_eq!(read.duplicates.shadowed_bytes_true, report.duplicates.shadowed_bytes_true);
    assert_eq!(read.options, report.options);
}

#[test]
fn what_is_of_our_store_alone_is_refused_elsewhere() {
    for target in [TargetKind::Rocksdb, TargetKind::RocksdbBlob] {
        let mut options = tiny(Workload::Updates, target);
        options.store.separation_min_bytes = target.default_separation();
        options.store.dedup = Some(DedupSettings::default());
        assert!(refusal(&options).contains(&format!("dedup is for the target engine; {target}")));
        options.store.dedup = None;
        options.store.options = vec!["level_multiplier=4".to_owned()];
        assert!(refusal(&options).contains("store-option is for the target engine"));
    }
    let mut options = updates_at_rest(None);
    let baseline = options.of_baseline(TargetKind::Rocksdb);
    assert!((baseline.store.dedup.is_none(), baseline.store.options.is_empty()) == (true, true));
    let refused = options.validate_comparison(&baseline, 1).unwrap_err().to_string();
    assert!(refused.contains("opens both stores alike"), "{refused}");
    for (assignment, says) in [
        ("durability=none", "has a name of its own here: durability"),
        ("compression=zstd", "has a name of its own here: compression"),
        ("dedup=sample", "has a name of its own here: dedup"),
        ("level_multiplier", "name=value"),
        ("levels=4", "there is no store option"),
        ("level_multiplier=1", "2 to 1000"),
    ] {
        options.store.options = vec![assignment.to_owned()];
        assert!(refusal(&options).contains(says), "{assignment}: {}", refusal(&options));
    }
    options.store.options = ["level_multiplier=4", "dynamic_levels=false"].map(str::to_owned).to_vec();
    let opened = options.store.store_options().unwrap();
    assert_eq!((opened.level_multiplier, opened.dynamic_levels), (4, false));
    options.store.options.push("level_multiplier=5".to_owned());
    assert!(refusal(&options).contains("level_multiplier is given twice"));
    options.store.options.clear();
    options.store.dedup = Some(DedupSettings { threshold: Some(30.0), ..DedupSettings::default() });
    assert!(refusal(&options).contains("threshold needs something that counts"));
}
