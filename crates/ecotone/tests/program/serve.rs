//! The real program: two servers that form a federation and run a workload, and one benchmark.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use ecotone_server::record::{Final, Record};

/// A server, killed should the test fail.
pub(super) struct Server {
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

    pub(super) fn with(directory: &Path, name: &str, arguments: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
        command.arg("serve").arg("--dir").arg(directory.join(name)).args(["--listen", "127.0.0.1:0", "--name", name]);
        command.args(["--clients", "off", "--records", "-"]).args(arguments);
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

    pub(super) fn address(&mut self) -> String {
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
    pub(super) fn terminate(mut self) {
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
        assert!(samples > 0, "{name} printed nothing while it worked");
        assert!(sums.ops > 0 && sums.seconds > 1.0, "{sums:?}");
        assert_eq!(sums.missed, 0, "{name} read keys that were never loaded");
        assert_eq!(sums.ops, sums.reads + sums.writes);
        assert!(sums.bytes_device != Some(0) && !sums.energy_source.is_empty(), "{sums:?}");
        // 2000 keys, all of which are written sooner or later.
        let (directory, live) = (sums.bytes_directory.unwrap() as f64, sums.bytes_live.unwrap());
        assert!((1_000_000.0..=2_032_000.0).contains(&live) && directory > live / 2.0, "{directory} bytes for {live}");
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

#[test]
fn what_lives_is_not_told_of_a_store_that_held_data_before() {
    let directory = tempfile::tempdir().unwrap();
    for is_new in [true, false] {
        let mut server = Server::start(directory.path(), "only", "overwrite", None);
        server.address();
        let (sums, _) = server.sums();
        assert!(sums.bytes_directory.is_some() && sums.bytes_live.is_some() == is_new, "{sums:?}");
        server.terminate();
    }
}

/// The store in `directory` of a server that has run.
fn serve_once(directory: &Path, arguments: &[&str]) -> PathBuf {
    let mut server = Server::with(directory, "only", arguments);
    server.address();
    server.terminate();
    directory.join("only/store")
}

/// What RocksDB was opened with, as it writes it down itself.
fn rocksdb_option(store: &Path, name: &str) -> String {
    let files = std::fs::read_dir(store).unwrap().map(|file| file.unwrap().path());
    let options = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("OPTIONS-")).max();
    let text = std::fs::read_to_string(options.unwrap()).unwrap();
    let found = text.lines().rev().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
    found.unwrap().to_owned()
}

fn subcompactions(arguments: &[&str]) -> String {
    rocksdb_option(&serve_once(tempfile::tempdir().unwrap().path(), arguments), "max_subcompactions")
}

#[test]
fn a_split_that_is_asked_for_wins_over_the_policy() {
    assert_eq!(subcompactions(&["--policy", "local"]), "1");
    assert_eq!(subcompactions(&["--policy", "local", "--store-option", "max_subcompactions=3"]), "3");
    let split = ["--policy", "local-split", "--cores", "8"];
    assert_ne!(subcompactions(&split), "1");
    assert_eq!(subcompactions(&[&split[..], &["--store-option", "max_subcompactions=1"]].concat()), "1");
}

/// The second line of the file that tells what the store is.
fn format(store: &Path) -> String {
    std::fs::read_to_string(store.join("STORE")).unwrap().lines().nth(1).unwrap().to_owned()
}

/// Bytes in the segments of a store that nobody has open.
fn segment_bytes(store: &Path) -> u64 {
    let Ok(files) = std::fs::read_dir(store.join("values")) else { return 0 };
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn values_are_kept_apart_unless_it_is_turned_off() {
    let directory = tempfile::tempdir().unwrap();
    let load = ["--workload", "fillrandom", "--keys", "2000", "--seconds", "1"];
    let fill = |option: &[&str]| {
        let mut server = Server::with(directory.path(), "only", &[&load[..], option].concat());
        server.address();
        assert!(server.sums().0.writes > 0);
        server.terminate();
        directory.path().join("only/store")
    };
    // A store from before begins to separate new values when it is opened with the default.
    let store = fill(&["--store-option", "separation_min_bytes=off"]);
    assert_eq!((format(&store).as_str(), segment_bytes(&store)), ("format 1", 0));
    assert_eq!(rocksdb_option(&store, "write_buffer_size"), (64 << 20).to_string());
    let store = fill(&[]);
    assert_eq!(format(&store), "format 3");
    assert!(segment_bytes(&store) > 1 << 20, "{} bytes", segment_bytes(&store));
    // Without compression it would be one of format 2.
    std::fs::remove_dir_all(&store).unwrap();
    let store = fill(&["--store-option", "value_compression=none"]);
    assert_eq!(format(&store), "format 2");
    assert!(segment_bytes(&store) > 1 << 20, "{} bytes", segment_bytes(&store));
    assert_eq!(rocksdb_option(&store, "write_buffer_size"), (8 << 20).to_string());
    // With the profile for little memory the same holds, and what is asked for wins.
    let longer = ["--store-option", "profile=small-device", "--store-option", "separation_min_bytes=4096"];
    fill(&longer);
    assert_eq!(rocksdb_option(&store, "write_buffer_size"), (4 << 20).to_string());
}

#[test]
fn a_length_that_is_none_is_refused_and_nothing_is_made() {
    let directory = tempfile::tempdir().unwrap();
    for wrong in ["0", "some", "128B"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
        command.arg("serve").arg("--dir").arg(directory.path().join("refused")).args(["--listen", "127.0.0.1:0"]);
        let out = command.args(["--store-option", &format!("separation_min_bytes={wrong}")]).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success());
        assert!(said.contains("separation_min_bytes") && said.contains("or off"), "{said}");
        assert!(!directory.path().join("refused").exists());
    }
}

/// What `ecotone bench` prints of a small run.
fn bench(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(["bench", "fillrandom", "--keys", "5000", "--ops", "5000"]).args(arguments);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_benchmark_keeps_values_apart_unless_it_is_turned_off() {
    let apart = |arguments: &[&str]| {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        let report = bench(&[&["--json", "--dir", store.to_str().unwrap()], arguments].concat());
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        (report["options"]["store"]["separation_min_bytes"].as_u64(), segment_bytes(&store) > 5_000_000)
    };
    let default = u64::from(ecotone_engine::DEFAULT_SEPARATION_BYTES);
    assert_eq!(apart(&[]), (Some(default), true));
    assert_eq!(apart(&["--profile", "small-device"]), (Some(default), true));
    assert_eq!(apart(&["--separation", "1001"]), (Some(1001), false));
    assert_eq!(apart(&["--separation", "off"]), (None, false));
    assert_eq!(apart(&["--target", "rocksdb"]), (None, false));
    assert_eq!(apart(&["--target", "rocksdb-blob"]), (Some(128), false));
}

#[test]
fn a_comparison_says_what_each_side_ran_with() {
    let default = ecotone_engine::DEFAULT_SEPARATION_BYTES;
    let lines = |arguments: &[&str]| {
        let text = bench(&[&["--compare", "--rounds", "1"], arguments].concat());
        text.lines().take(3).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let [separated, plain] = [
        format!("values of {default} B or more separated; 3 memtables of 32.0 MiB, level 1 256.0 MiB, tables 4.0 MiB"),
        "values with their keys; 2 memtables of 64.0 MiB, level 1 256.0 MiB, tables 64.0 MiB".to_owned(),
    ];
    let half = "values half of 1 000 B".to_owned();
    assert_eq!(lines(&[]), [format!("engine {separated}"), format!("rocksdb {plain}"), half]);
    let random = "values random of 1 000 B".to_owned();
    assert_eq!(
        lines(&["--separation", "off", "--values", "random"]),
        [format!("engine {plain}"), format!("rocksdb {plain}"), random]
    );
}

#[test]
fn what_is_asked_of_blobdb_without_one_is_refused() {
    let asked = ["--blob-gc-force-threshold", "1", "--settle-seconds", "0"];
    for without in [&[][..], &["--target", "rocksdb"], &["--compare", "--rounds", "1"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
        let out = command.args(["bench", "fillrandom", "--ops", "1"]).args(asked).args(without).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success());
        assert!(
            said.contains("--blob-gc-force-threshold is for BlobDB") && said.contains("--baseline rocksdb-blob"),
            "{said}"
        );
    }
    bench(&[&asked[..], &["--target", "rocksdb-blob"]].concat());
    bench(&[&asked[..], &["--compare", "--rounds", "1", "--baseline", "rocksdb-blob"]].concat());
}

#[test]
fn a_threshold_of_duplicates_can_be_off() {
    let threshold = |arguments: &[&str]| {
        let report: serde_json::Value = serde_json::from_str(&bench(&[&["--json"], arguments].concat())).unwrap();
        let dedup = &report["options"]["store"]["dedup"];
        (dedup["kind"].as_str().map(str::to_owned), dedup["threshold"].as_f64())
    };
    assert_eq!(threshold(&[]), (None, None));
    assert_eq!(threshold(&["--threshold", "20"]), (Some("sample".to_owned()), Some(20.0)));
    assert_eq!(threshold(&["--threshold", "off"]), (Some("off".to_owned()), None));
    assert_eq!(threshold(&["--threshold", "off", "--dedup", "filter"]), (Some("filter".to_owned()), None));
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
