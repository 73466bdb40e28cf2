//! Labs that are ended from outside.

use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use ecotone_lab::Quiet;

use crate::surroundings::{Bench, lives};

/// Runs of this program as a lab find it set to the directory of the lab.
const LAB: &str = "ECOTONE_LAB_TEST_LAB";

/// Not a test but a lab, when this program was started as one.
#[test]
fn labs() {
    let Ok(directory) = std::env::var(LAB) else { return };
    let bench = Bench::at(PathBuf::from(directory));
    let error = bench.run(&bench.options("hangs", &["eco"]), &mut Quiet).unwrap_err();
    eprintln!("the lab says: {error}");
    std::process::exit(7);
}

/// Runs of this program as a user's shell find it set to the directory of a lab that runs to its
/// end.
const SHELL: &str = "ECOTONE_LAB_TEST_SHELL";

/// Not a test but a lab under the variables of a user, when this program was started as one.
#[test]
fn labs_with_variables() {
    let Ok(directory) = std::env::var(SHELL) else { return };
    let bench = Bench::at(PathBuf::from(directory));
    let report = bench.run(&bench.options("calm", &["eco"]), &mut Quiet).unwrap();
    assert_eq!(report.warnings, [""; 0]);
}

#[test]
fn what_a_user_has_set_for_another_server_reaches_none_of_the_lab() {
    let bench = Bench::new();
    let lab = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "interruption::labs_with_variables"])
        .env(SHELL, &bench.directory)
        .env("ECOTONE_CONFIG", "/etc/ecotone/ecotone.toml")
        .env("ECOTONE_CLIENTS_PASSWORD", "secret")
        .env("ECOTONE_STORE_MEMORY_LIMIT_BYTES", "64M")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&lab.stdout).into_owned() + &String::from_utf8_lossy(&lab.stderr);
    assert!(lab.status.success(), "{said}");
}

/// Starts a lab as a process of its own, ends it with `signal` once one of its servers hangs, and
/// returns what it said and how it ended. Its servers are gone by then.
fn ended_by(signal: &str, bench: &Bench) -> (String, Option<i32>) {
    // Tests that a shell runs behind itself inherit that SIGINT is ignored. The lab of a user who
    // presses Ctrl-C does not.
    let lab = std::process::Command::new("env")
        .arg("--default-signal=INT")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "interruption::labs", "--nocapture"])
        .env(LAB, &bench.directory)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let ids = |server: &str| -> Vec<String> {
        let text = fs::read_to_string(bench.emulation.root.join(server).join("ids")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    // The second process of the server that hangs is what it started when it began to hang.
    while ids("medium-1").len() < 2 {
        assert!(Instant::now() < deadline, "the lab does not start");
        thread::yield_now();
    }
    let servers: Vec<String> = ["high-1", "low-1", "medium-1"].into_iter().flat_map(ids).take(3).collect();
    assert!(std::process::Command::new("kill").args([signal, &lab.id().to_string()]).status().unwrap().success());
    let output = lab.wait_with_output().unwrap();
    while servers.iter().any(|id| lives(id)) {
        assert!(Instant::now() < deadline, "servers outlive their lab");
        thread::yield_now();
    }
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

#[test]
fn a_user_who_interrupts_the_lab_finds_nothing_left() {
    for signal in ["-INT", "-TERM"] {
        let bench = Bench::new();
        let (said, code) = ended_by(signal, &bench);
        assert!(said.contains("the lab says: interrupted") && code == Some(7), "{code:?}: {said}");
    }
}

#[test]
fn servers_die_with_a_lab_that_is_killed() {
    let bench = Bench::new();
    assert_eq!(ended_by("-KILL", &bench).1, None);
    // What a lab that is killed cannot do: its helpers, here a sleeping process, are ended by hand.
    let ids = fs::read_to_string(bench.emulation.root.join("medium-1/ids")).unwrap();
    let _ = std::process::Command::new("kill").arg("-KILL").arg(ids.lines().last().unwrap()).status();
}
