//! The real program with the profile for small devices: how much memory it holds under load.

use std::process::{Child, Command, Stdio};

use ecotone_bench::command::BenchReport;

/// What the profile promises.
const MAX_RESIDENT_BYTES: u64 = 128 << 20;

fn bench(workload: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(["bench", workload, "--json"]).args(arguments);
    command.env_remove("MALLOC_CONF").stdout(Stdio::piped()).spawn().unwrap()
}

fn report(child: Child) -> BenchReport {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn resident(report: &BenchReport) -> u64 {
    report.rss_max_bytes.expect("the kernel tells the memory of a process")
}

#[test]
fn a_small_device_has_little_resident_while_values_are_relocated() {
    // 150 MB of updates over 60 MB that live: more garbage than is left alone.
    let load = ["--keys", "60000", "--ops", "300000", "--threads", "8", "--profile", "small-device"];
    let report = report(bench("ycsb-a", &load));
    assert!(report.gc_bytes.unwrap() > 0, "nothing was relocated, so this shows nothing");
    assert!(resident(&report) < MAX_RESIDENT_BYTES, "{} bytes", resident(&report));
}

/// Dictionaries, their samples and what a codec needs are within the bound.
#[test]
fn a_small_device_has_little_resident_while_values_are_compressed() {
    let load =
        ["--values", "json", "--keys", "60000", "--ops", "300000", "--threads", "8", "--profile", "small-device"];
    let report = report(bench("ycsb-a", &load));
    assert!(report.war.is_none_or(|war| war < 0.8), "{:?}: values were not compressed", report.war);
    assert!(resident(&report) < MAX_RESIDENT_BYTES, "{} bytes", resident(&report));
}

#[test]
fn a_small_device_has_little_resident_under_many_readers_and_a_writer() {
    // With their keys, values fill the block cache, and that takes most.
    let load = ["--separation", "off", "--keys", "100000", "--ops", "200000", "--threads", "16", "--profile"];
    let of = |profile| bench("readwhilewriting", &[&load[..], &[profile]].concat());
    let (small, default) = (of("small-device"), of("default"));
    let (small, default) = (resident(&report(small)), resident(&report(default)));
    assert!(small < MAX_RESIDENT_BYTES, "{small} bytes");
    assert!(default > MAX_RESIDENT_BYTES, "{default} bytes: the load is too light to show that the profile holds");
}
