//! `--cores`: the limit is one of the whole process, so the test starts itself again as one.

use std::process::Command;

use ecotone_bench::command::{BenchOptions, run_bench};
use ecotone_bench::target::TargetKind;
use ecotone_bench::workload::{Workload, WorkloadOptions};
use ecotone_lab::{CoreLimit, LabError};

/// Makes a process do what [`child`] does.
const CHILD: &str = "ECOTONE_TEST_CORE_LIMIT";

#[test]
fn a_limit_holds_for_every_target_and_is_refused_without_the_right_to_make_cgroups() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["core_limit::child", "--exact", "--nocapture", "--test-threads=1"]);
    let ended = child.env(CHILD, "yes").output().unwrap();
    let said = [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
}

/// Not a test of its own: the process that the test above starts. Without its variable it has
/// nothing to do.
#[test]
fn child() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    for target in [TargetKind::Engine, TargetKind::Rocksdb] {
        let workload = WorkloadOptions {
            workload: Workload::FillRandom,
            value_bytes: 100,
            seconds: Some(2.0),
            ..WorkloadOptions::default()
        };
        let options = BenchOptions { workload, target, cores: Some(0.3), ..BenchOptions::default() };
        let limit = match CoreLimit::begin(0.3) {
            Ok(limit) => limit,
            Err(LabError::Cores { cores, reason }) => {
                assert_eq!(cores, 0.3);
                assert!(!reason.is_empty());
                return;
            }
            Err(other) => panic!("{other}"),
        };
        let report = run_bench(&options, |_| {}).unwrap();
        drop(limit);
        let used = report.cpu_seconds.unwrap() / (report.seconds + report.settle_seconds);
        // A thread that writes as fast as it can would take a whole core; quotas stutter by a
        // period or two.
        assert!(used < 0.36, "{target}: {used} cores");
        let group = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        assert!(!group.contains("ecotone-lab"), "the limit is lifted at the end: {group}");
    }
}
