//! `ecotone lab cluster`: a real federation is measured, as briefly as can be.

use std::process::{Command, Output};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    // Two labs would measure each other.
    let _alone = crate::LAB.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(["lab", "cluster"]).args(arguments).env_remove("RUST_LOG").output().unwrap()
}

fn report(arguments: &[&str]) -> Value {
    let output = lab(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Times that belong together.
fn assert_times(times: &Value, n: u64) {
    let (p50, p99) = (times["p50"].as_f64().unwrap(), times["p99"].as_f64().unwrap());
    assert!(p50 > 0.0 && p50 <= p99 && times["n"] == n, "{times}");
}

#[test]
fn decisions_and_idleness_of_a_federation_are_measured_and_nothing_is_left() {
    let stores = tempfile::tempdir().unwrap();
    let parts = ["--only", "commit,idle,failover", "--commits", "3", "--kills", "2", "--pauses", "1"];
    let where_and_how_long = ["--idle-seconds", "2", "--stores", stores.path().to_str().unwrap()];
    let report = report(&[&parts[..], &where_and_how_long].concat());
    assert_eq!(report["servers"], 3);
    let commits = &report["commit_ms"];
    assert_times(commits, 6);
    assert_times(&commits["at_leader"], 3);
    assert_times(&commits["at_another"], 3);
    let failovers = &report["leader_failover_ms"];
    assert_times(failovers, 2);
    let kinds: Vec<&String> = failovers["kinds"].as_object().unwrap().keys().collect();
    assert_eq!(kinds, ["cut_one_way", "killed", "paused"]);
    for (kind, n) in [("killed", 2), ("paused", 1), ("cut_one_way", 1)] {
        assert_times(&failovers["kinds"][kind], n);
        // Nobody decides before others have missed the leader: 325 ms at the least, less what passed
        // since its last heartbeat, of one each 100 ms.
        let p50 = failovers["kinds"][kind]["p50"].as_f64().unwrap();
        assert!(p50 > 200.0, "{kind}: {p50} ms are no election");
    }

    let idle = &report["idle"];
    let servers = idle["servers"].as_array().unwrap();
    let shares: Vec<f64> = servers.iter().map(|server| server["core_share"].as_f64().unwrap()).collect();
    assert_eq!(shares.len(), 3);
    assert!(shares.iter().all(|share| *share > 0.0 && *share < 2.0), "{idle}");
    assert_eq!(report["idle_core_share"].as_f64().unwrap(), shares.iter().copied().fold(0.0, f64::max));
    assert_eq!(servers.iter().filter(|server| server["leads"] == true).count(), 1);
    assert!(idle["alone_core_share"].as_f64().unwrap() > 0.0);
    match idle["pairs"].as_array() {
        // Followers hear from the leader, and answer.
        Some(pairs) => assert!(pairs.len() >= 2 && report["idle_bytes_per_s"].as_f64().unwrap() > 0.0, "{idle}"),
        None => assert!(report["unavailable"]["idle_bytes_per_s"].is_string(), "{report}"),
    }
    for other in ["cluster_cost", "tls_cost", "shards_cost"] {
        assert!(report[other].is_null() && report["unavailable"][other].is_null(), "{other}: {report}");
    }
    assert_eq!(std::fs::read_dir(&stores).unwrap().count(), 0, "the lab left something");
}

#[test]
fn what_cluster_mode_and_shards_cost_is_measured_or_said_why_not() {
    let stores = tempfile::tempdir().unwrap();
    let parts = ["--only", "clients,shards", "--rounds", "1", "--requests", "2000", "--shards", "2"];
    let report = report(&[&parts[..], &["--stores", stores.path().to_str().unwrap()]].concat());
    for figure in ["cluster_cost", "shards_cost"] {
        let cost = &report[figure];
        if cost.is_null() {
            assert!(report["unavailable"][figure].as_str().is_some_and(|why| !why.is_empty()), "{report}");
            continue;
        }
        for command in ["set", "get"] {
            let of = |field: &str| cost[command][field].as_f64().unwrap();
            assert!(of("base_per_s") > 0.0 && of("per_s") > 0.0 && of("spread") >= 0.0, "{cost}");
            assert!((of("cost") - (1.0 - of("per_s") / of("base_per_s"))).abs() < 1e-9, "of one round: {cost}");
        }
    }
    assert!(report["leader_failover_ms"].is_null() && report["commit_ms"].is_null());
}

#[test]
fn options_that_measure_nothing_are_refused_by_name() {
    for (arguments, named) in [
        (&["--only", "failovers"][..], "--only: there is no part `failovers`"),
        (&["--kills", "0"], "--kills"),
        (&["--servers", "2"], "--servers"),
        (&["--shards", "1"], "--shards"),
        (&["--idle-seconds", "0"], "--idle-seconds"),
    ] {
        let output = lab(arguments);
        assert!(!output.status.success() && output.stdout.is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(named), "{said}");
    }
}
