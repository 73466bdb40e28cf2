//! The real program: two servers that form a federation and run a workload, and one benchmark.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use ecotone_server::record::{Final, Record};

/// A server, killed should the test fail.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(directory: &Path, name: &str, workload: &str, coordinator: Option<&str>) -> Server {
        let mut arguments = vec!["--workload", workload, "--keys", "2000", "--seconds", "2"];
        if let Some(address) = coordinator {
            arguments.extend(["--join", address]);
        }
        Server::with(directory, name, &arguments)
    }

    fn with(directory: &Path, name: &str, arguments: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
        command.arg("serve").arg("--dir").arg(directory.join(name)).args(["--listen", "127.0.0.1:0", "--name", name]);
        command.args(["--records", "-"]).args(arguments);
        let mut child = command.env("RUST_LOG", "warn").stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Server { child, output }
    }

    /// The next record; every line must be one.
    fn record(&mut self) -> Option<Record> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    fn address(&mut self) -> String {
        match self.record() {
            Some(Record::Ready(ready)) => ready.listen,
            other => panic!("not ready but {other:?}"),
        }
    }

    /// The sums, and how many samples came before them.
    fn sums(&mut self) -> (Final, usize) {
        let mut samples = 0;
        loop {
            match self.record() {
                Some(Record::Final(sums)) => return (sums, samples),
                Some(Record::Sample(_)) => samples += 1,
                Some(_) => {}
                None => panic!("it ended without its sums"),
            }
        }
    }

    /// Ends it as a supervisor does.
    fn terminate(mut self) {
        let said = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(said.success());
        while self.record().is_some() {}
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn two_servers_run(workload: &str) -> [Final; 2] {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Server::start(directory.path(), "first", workload, None);
    let address = first.address();
    let mut second = Server::start(directory.path(), "second", workload, Some(&address));
    assert_ne!(second.address(), address);
    let sums = [("first", first.sums()), ("second", second.sums())].map(|(name, (sums, samples))| {
        assert_eq!(sums.server, name);
        assert!(samples > 0, "{name} told nothing while it worked");
        assert!(sums.ops > 0 && sums.seconds > 1.0, "{sums:?}");
        assert_eq!(sums.missed, 0, "{name} read keys that were never loaded");
        assert_eq!(sums.ops, sums.reads + sums.writes);
        assert!(sums.bytes_device != Some(0) && !sums.energy_source.is_empty(), "{sums:?}");
        sums
    });
    second.terminate();
    first.terminate();
    sums
}

#[test]
fn a_federation_fills_its_stores() {
    for sums in two_servers_run("fillrandom") {
        assert_eq!(sums.reads, 0);
    }
}

#[test]
fn a_federation_reads_what_it_loaded() {
    for sums in two_servers_run("ycsb-a") {
        assert!(sums.reads > 0 && sums.writes > 0, "{sums:?}");
    }
}

/// What RocksDB was opened with, as it writes it down itself.
fn subcompactions(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::with(directory.path(), "only", arguments);
    server.address();
    server.terminate();
    let files = std::fs::read_dir(directory.path().join("only/store")).unwrap().map(|file| file.unwrap().path());
    let options = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("OPTIONS-")).max();
    let text = std::fs::read_to_string(options.unwrap()).unwrap();
    text.lines().find_map(|line| line.trim().strip_prefix("max_subcompactions=")).unwrap().to_owned()
}

#[test]
fn a_split_that_is_asked_for_wins_over_the_policy() {
    assert_eq!(subcompactions(&["--policy", "local"]), "1");
    assert_eq!(subcompactions(&["--policy", "local", "--store-option", "max_subcompactions=3"]), "3");
    let split = ["--policy", "local-split", "--cores", "8"];
    assert_ne!(subcompactions(&split), "1");
    assert_eq!(subcompactions(&[&split[..], &["--store-option", "max_subcompactions=1"]].concat()), "1");
}

#[test]
fn a_benchmark_prints_one_object_with_every_figure() {
    let out = Command::new(env!("CARGO_BIN_EXE_ecotone"))
        .args(["bench", "fillrandom", "--seconds", "1", "--json"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    for figure in [
        "workload",
        "target",
        "options",
        "ops",
        "seconds",
        "ops_per_s",
        "latency_us",
        "stall_ms",
        "bytes_user",
        "bytes_device",
        "war",
        "sar",
        "cpu_seconds",
        "rss_max_bytes",
    ] {
        assert!(report.get(figure).is_some(), "no {figure} in {report}");
    }
    assert_eq!(report["workload"], "fillrandom");
    for quantile in ["p50", "p99", "p999", "max"] {
        assert!(report["latency_us"]["put"][quantile].as_f64().unwrap() > 0.0, "put {quantile}: {report}");
    }
}
