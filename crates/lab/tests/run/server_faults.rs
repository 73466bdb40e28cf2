//! Servers that fail, and what the lab then says.

use std::{path::PathBuf, time::Duration};

use ecotone_bench::workload::Workload;
use ecotone_lab::{Quiet, Through};

use crate::surroundings::Bench;

/// No sound server keeps the lab waiting for so long, also where the disk pauses.
const UNLIKE_A_SOUND_ONE: Duration = Duration::from_secs(5);

#[test]
fn a_server_that_refuses_its_arguments_is_an_error_with_its_words() {
    let bench = Bench::new();
    let error = bench.fails(&bench.options("refuses", &["eco"]));
    assert!(
        error.starts_with("server medium-1 under policy eco: ended (exit status: 2) before it was ready"),
        "{error}"
    );
    assert!(error.contains("error: no such workload"), "{error}");
}

#[test]
fn a_server_that_dies_ends_the_lab_with_its_last_words() {
    let bench = Bench::new();
    let error = bench.fails(&bench.options("dies", &["local", "eco"]));
    assert!(
        error.starts_with("server medium-1 under policy local: ended (exit status: 101) during the run"),
        "{error}"
    );
    assert!(error.contains("disk on fire"), "{error}");
}

#[test]
fn a_server_that_leaves_before_stop_is_an_error() {
    let bench = Bench::new();
    let error = bench.fails(&bench.options("leaves", &["eco"]));
    assert!(error.contains("before it was told to"), "{error}");
}

#[test]
fn a_server_that_hangs_is_killed_with_all_its_children() {
    let bench = Bench::new();
    let mut options = bench.options("hangs", &["eco"]);
    options.patience.silence = UNLIKE_A_SOUND_ONE;
    let error = bench.fails(&options);
    assert!(error.contains("server medium-1") && error.contains("hangs: no record for 5 s"), "{error}");
}

#[test]
fn a_server_that_is_never_ready_is_an_error() {
    let bench = Bench::new();
    let mut options = bench.options("never-ready", &["eco"]);
    options.patience.ready = UNLIKE_A_SOUND_ONE;
    assert!(bench.fails(&options).contains("server medium-1 under policy eco: is not ready in time"));
}

#[test]
fn a_server_that_forgets_its_final_record_is_an_error() {
    let bench = Bench::new();
    let mut options = bench.options("forgets", &["eco"]);
    (options.seconds, options.patience.final_record) = (1, UNLIKE_A_SOUND_ONE);
    let error = bench.fails(&options);
    assert!(error.contains("medium-1") && error.contains("there is no final record"), "{error}");
}

#[test]
fn a_stray_line_is_a_warning_and_a_flood_of_them_an_error() {
    let bench = Bench::new();
    let report = bench.run(&bench.options("chatters", &["eco"]), &mut Quiet).unwrap();
    assert_eq!(report.warnings.len(), 1);
    assert!(report.warnings[0].contains("medium-1") && report.warnings[0].contains("hello from a library"));
    let error = bench.fails(&bench.options("babbles", &["eco"]));
    assert!(error.contains("printed 101 lines that are no records") && error.contains("line 100"), "{error}");
}

#[test]
fn a_server_that_is_another_is_an_error() {
    let bench = Bench::new();
    assert!(bench.fails(&bench.options("misnamed", &["eco"])).contains("calls itself someone-else"));
}

#[test]
fn what_goes_wrong_after_the_numbers_are_complete_is_a_warning() {
    let bench = Bench::new();
    let mut options = bench.options("lingers", &["eco"]);
    options.patience.stop = UNLIKE_A_SOUND_ONE;
    let report = bench.run(&options, &mut Quiet).unwrap();
    assert!(
        report.warnings[0].contains("medium-1") && report.warnings[0].contains("was killed"),
        "{:?}",
        report.warnings
    );
    let report = bench.run(&bench.options("breaks-late", &["eco"]), &mut Quiet).unwrap();
    assert!(report.warnings[0].contains("exit status: 3"), "{:?}", report.warnings);
    let report = bench.run(&bench.options("unbound", &["eco"]), &mut Quiet).unwrap();
    assert!(report.warnings[0].contains("this run is not valid"), "{:?}", report.warnings);
    let report = bench.run(&bench.options("misses", &["eco"]), &mut Quiet).unwrap();
    assert!(report.warnings[0].contains("medium-1 under policy eco: 1 reads found no key"), "{:?}", report.warnings);
    let report = bench.run(&bench.options("metered", &["eco"]), &mut Quiet).unwrap();
    assert!(report.warnings[0].contains("different sources (model, rapl)"), "{:?}", report.warnings);
    assert_eq!(report.runs[0].servers[1].energy_source, "rapl");
}

#[test]
fn servers_that_serve_no_clients_cannot_be_driven_through_the_protocol() {
    let bench = Bench::new();
    let mut options = bench.options("calm", &["eco"]);
    options.through = Through::Resp { pipeline: 1 };
    assert!(bench.fails(&options).contains("server high-1 under policy eco: serves no clients"));
    options.through = Through::Resp { pipeline: 1025 };
    assert!(bench.fails(&options).contains("--pipeline: must be between 1 and 1024"));
    (options.workload, options.through) = (Workload::SeekRandom, Through::Resp { pipeline: 1 });
    assert!(bench.fails(&options).starts_with("--through resp: seekrandom reads keys in their order"));
}

#[test]
fn without_a_server_program_nothing_is_left_behind() {
    let bench = Bench::new();
    let mut options = bench.options("calm", &["eco"]);
    options.server_program = PathBuf::from("/nonexistent/ecotone");
    assert!(bench.fails(&options).contains("/nonexistent/ecotone"));
}
