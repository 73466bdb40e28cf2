//! `ecotone lab concerto`: modes of power on real servers are measured, as briefly as can be.

use std::process::{Command, Output};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    // Two labs would measure each other.
    let _alone = crate::LAB.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(["lab", "concerto"]).args(arguments).env_remove("RUST_LOG").output().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn the_three_modes_are_measured_and_their_joules_add_up() {
    let stores = tempfile::tempdir().unwrap();
    let page = stores.path().join("page.html");
    let least = ["--only", "set,get", "--values", "256", "--seconds", "3", "--keys", "2000", "--cores", "2"];
    let more = ["--json", "--stores", stores.path().to_str().unwrap(), "--report", page.to_str().unwrap()];
    let output = lab(&[&least[..], &more].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("cgroup") && !output.status.success() {
        eprintln!("SKIPPED: nobody may make cgroups here, so nothing has measured modes of power: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["modes"].as_array().unwrap();
    let order: Vec<(&str, &str)> =
        runs.iter().map(|run| (run["workload"].as_str().unwrap(), run["mode"].as_str().unwrap())).collect();
    let modes = ["all-high", "all-low", "concerto"];
    assert_eq!(order, ["set", "get"].map(|workload| modes.map(|mode| (workload, mode))).concat());
    for run in runs {
        let parts: f64 = run["joules_by_duty"].as_object().unwrap().values().map(number).sum();
        let joules = number(&run["joules"]);
        assert!(joules > 0.0 && (parts - joules).abs() < 0.01 * joules, "{run}");
        assert!((number(&run["uj_per_op"]) - joules * 1e6 / number(&run["ops"])).abs() < 1.0, "{run}");
        let mhz = |duty: &str| number(&run["frequency_mhz"][duty]);
        let (clients, stream) = (mhz("foreground"), mhz("replica"));
        match run["mode"].as_str().unwrap() {
            "all-low" => assert!(clients < 1_100.0 && stream < 1_100.0, "{run}"),
            "concerto" => assert!(clients > 2_100.0 && stream < 2_100.0, "{run}"),
            _ => {}
        }
        assert_eq!(run["lag_ms_p99"].is_null(), run["workload"] == "get", "{run}");
    }
    // What a core of the lowest frequency cannot do is seen by clients.
    let peak = |mode: &str| number(&runs.iter().find(|run| run["mode"] == mode).unwrap()["peak_ops_per_s"]);
    assert!(peak("all-low") < peak("all-high"), "{report}");
    assert!(report["summary"].as_array().unwrap().iter().any(|of| of["mode"] == "concerto"), "{report}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("concerto"));
}

#[test]
fn options_that_measure_nothing_are_refused_by_name() {
    for (arguments, named) in [
        (&["--only", "ycsb-z"][..], "--only: there is no workload `ycsb-z`"),
        (&["--cores", "1"], "--cores"),
        (&["--load", "2"], "--load"),
        (&["--seconds", "0"], "--seconds"),
    ] {
        let output = lab(arguments);
        assert!(!output.status.success() && output.stdout.is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(named), "{said}");
    }
}
