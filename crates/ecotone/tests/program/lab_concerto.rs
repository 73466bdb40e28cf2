//! `ecotone lab concerto`: modes of power on real servers are measured, as briefly as can be.

use std::process::{Command, Output};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    // Two labs would measure each other.
    let _alone = crate::LAB.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    start(arguments)
}

fn start(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(["lab", "concerto"]).args(arguments).env_remove("RUST_LOG").output().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn modes_are_measured_and_their_joules_add_up() {
    let stores = tempfile::tempdir().unwrap();
    let (page, table) = (stores.path().join("page.html"), stores.path().join("p-states"));
    std::fs::write(&table, "# made up\n2000 1.10\n1500 0.98\n1000 0.86\n").unwrap();
    let least = ["--only", "get,ycsb-e", "--modes", "concerto", "--values", "256", "--seconds", "1", "--keys", "400"];
    let places = ["--cores", "3", "--p-states", table.to_str().unwrap(), "--stores", stores.path().to_str().unwrap()];
    let output = lab(&[&least[..], &places, &["--json", "--report", page.to_str().unwrap()]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("cgroup") && !output.status.success() {
        eprintln!("SKIPPED: nobody may make cgroups here, so nothing has measured modes of power: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [get, scans] = &report["modes"].as_array().unwrap()[..] else { panic!("{report}") };
    for (run, workload) in [(get, "get"), (scans, "ycsb-e")] {
        assert_eq!((&run["workload"], &run["mode"]), (&workload.into(), &"concerto".into()));
        let parts: f64 = run["joules_by_duty"].as_object().unwrap().values().map(number).sum();
        let joules = number(&run["joules"]);
        assert!(joules > 0.0 && (parts - joules).abs() < 0.01 * joules, "{run}");
        assert!((number(&run["uj_per_op"]) - joules * 1e6 / number(&run["ops"])).abs() < 1.0, "{run}");
        // The table that was given, of which applying a stream gets the lower part.
        let mhz = |duty: &str| number(&run["frequency_mhz"][duty]);
        assert!((1_900.0..2_100.0).contains(&mhz("foreground")) && mhz("replica") < 1_900.0, "{run}");
        assert_eq!(run["missed"], 0, "it reads what was filled: {run}");
    }
    assert!(get["lag_ms_p99"].is_null() && number(&scans["lag_ms_p99"]) > 0.0, "{report}");
    // What roles are for: readers of a replica notice slow cores, were they put there.
    let reads = |field: &str| number(&get[field]);
    assert!(reads("replica_reads_unseparated_per_s") < reads("replica_reads_per_s"), "{get}");
    assert_eq!(number(&report["p_states"][2]["frequency_hz"]), 1e9);
    assert!(std::fs::read_to_string(&page).unwrap().contains("ycsb-e"));
}

#[test]
fn options_that_measure_nothing_are_refused_by_name() {
    for (arguments, named) in [
        (&["--only", "ycsb-z"][..], "--only: there is no workload `ycsb-z`"),
        (&["--cores", "1"], "--cores"),
        (&["--load", "2"], "--load"),
        (&["--seconds", "0"], "--seconds"),
        (&["--modes", "fast"], "--modes"),
        (&["--p-states", "/nowhere/at/all"], "--p-states: /nowhere/at/all"),
    ] {
        // It ends before it measures anything.
        let output = start(arguments);
        assert!(!output.status.success() && output.stdout.is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(named), "{said}");
    }
}
