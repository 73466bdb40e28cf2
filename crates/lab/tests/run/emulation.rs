//! Cores that can and cannot be emulated.

use std::{fs, path::Path};

use ecotone_lab::{Host, LabError, Profile, Quiet, run_lab, run_lab_on};

use crate::surroundings::Bench;

#[test]
fn a_lab_whose_cores_cannot_be_made_stops() {
    let bench = Bench::new();
    fs::create_dir(bench.emulation.root.join("low-1")).unwrap();
    let host = Host { cores: 2.0, ..Host::default() };
    let error = run_lab_on(&bench.options("calm", &["eco"]), &bench.emulation, host, &mut Quiet).unwrap_err();
    assert!(matches!(error, LabError::Emulation { .. }), "{error}");
    assert!(error.to_string().contains("without it the servers would be equal"), "{error}");
}

#[test]
fn on_this_machine_the_lab_makes_cgroups_and_removes_them_or_says_that_it_may_not() {
    let server = |name: &str| {
        format!(
            "[[servers]]\nname = \"{name}\"\ntier = \"high\"\ncores = 2\nspeed = 0.1\nactive_watts = 1\nidle_watts = 0\nworker_slots = 1\n"
        )
    };
    let text = format!("name = \"pair\"\n{}{}", server("high-1"), server("low-1"));
    let bench = Bench::new();
    let mut options = bench.options("calm", &["eco"]);
    (options.profile, options.record) =
        (Profile::parse(&text, "pair").unwrap(), Some(bench.directory.join("recorded")));
    match run_lab(&options, &mut Quiet) {
        Ok(report) => {
            assert_eq!(report.runs[0].total.ops_per_s, 2000.0);
            let log = fs::read_to_string(bench.directory.join("recorded/eco/low-1.log")).unwrap();
            let group = log.split("--cgroup ").nth(1).unwrap().split(' ').next().unwrap();
            assert!(group.ends_with("/low-1") && !Path::new(group).exists(), "{group}");
            assert!(!Path::new(group).parent().unwrap().exists(), "the lab's own group is left: {group}");
        }
        Err(error) => {
            assert!(matches!(error, LabError::Emulation { .. }), "{error}");
            assert!(error.to_string().contains("the right to make cpu cgroups"), "{error}");
        }
    }
}
