//! `ecotone lab copies`: copies of a shard on real servers are measured, as briefly as can be.

use std::process::{Command, Output};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    // Two labs would measure each other.
    let _alone = crate::LAB.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(["lab", "copies"]).args(arguments).env_remove("RUST_LOG").output().unwrap()
}

fn report(arguments: &[&str]) -> Value {
    let stores = tempfile::tempdir().unwrap();
    let least = ["--rounds", "1", "--seconds", "2", "--kills", "1", "--switches", "1", "--keys", "2000"];
    let more = ["--json", "--stores", stores.path().to_str().unwrap()];
    let output = lab(&[arguments, &least, &more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(&stores).unwrap().count(), 0, "the lab left something");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn who_takes_over_and_how_far_copies_are_behind_is_measured() {
    let report = report(&["--only", "lag,switch-over,both,seeding", "--seeding-mbit", "20"]);
    for (figure, n) in [("switch_over_ms", Some(1)), ("failover_of_both_ms", Some(1)), ("lag_ms", None)] {
        let times = &report[figure];
        let (p50, p99) = (number(&times["p50"]), number(&times["p99"]));
        assert!(p50 > 0.0 && p50 <= p99 && n.is_none_or(|n| times["n"] == n), "{figure}: {times}");
    }
    // Nobody takes over before a primary was missed, and its promises have ended.
    assert!(number(&report["failover_of_both_ms"]["p50"]) > 200.0, "{report}");
    if report["link_mbit"].is_null() {
        assert!(report["unavailable"]["seeding_share_of_link"].is_string(), "{report}");
    } else {
        let seeding = &report["seeding"];
        // A copy of 2000 values of random bytes, over a link that no copy can be faster than.
        assert!(number(&seeding["bytes"]) > 1e6, "{seeding}");
        let share = number(&report["seeding_share_of_link"]);
        assert!(share > 0.0 && share < 1.5, "{seeding}");
    }
    for other in ["failover_ms", "throughput", "costs", "cpu_ratio"] {
        assert!(report[other].is_null() && report["unavailable"][other].is_null(), "{other}: {report}");
    }
}

#[test]
fn what_copies_cost_is_measured_beside_stores_alone() {
    let report = report(&["--only", "throughput,costs"]);
    let throughput = &report["throughput"];
    for level in ["one", "quorum", "all"] {
        let (ratio, per_s) = (number(&throughput[level]), &throughput["per_s"]);
        let of_one_copy = number(&per_s[level]) / number(&per_s["single"]);
        assert!((ratio - of_one_copy).abs() < 1e-9 && ratio > 0.0, "of one round: {throughput}");
    }
    let costs = &report["costs"];
    for ratio in ["cpu_ratio", "joules_ratio", "replica_cpu_share"] {
        assert!(number(&report[ratio]) > 0.0 && report[ratio] == costs[ratio], "{ratio}: {report}");
    }
    let cpu = number(&costs["cpu_us_per_op"]) / number(&costs["cpu_us_per_op_alone"]);
    assert!((cpu - number(&report["cpu_ratio"])).abs() < 1e-9, "of one round: {costs}");
    // Less than once in so short a run: what is still on its way at its end is not counted.
    match report["wire_bytes_per_user_byte"].as_f64() {
        Some(wire) => assert!(wire > 0.0, "{report}"),
        None => assert!(report["unavailable"]["wire_bytes_per_user_byte"].is_string(), "{report}"),
    }
}

#[test]
fn options_that_measure_nothing_are_refused_by_name() {
    for (arguments, named) in [
        (&["--only", "failovers"][..], "--only: there is no part `failovers`"),
        (&["--kills", "0"], "--kills"),
        (&["--seconds", "0"], "--seconds"),
        (&["--keys", "0"], "--keys"),
    ] {
        let output = lab(arguments);
        assert!(!output.status.success() && output.stdout.is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(named), "{said}");
    }
}
