//! The lab against a server that speaks the protocol of records but stores nothing: this program itself, started again.
//!
//! What the server does is said by the lab's script: `calm`, `dies`, `hangs` and so on. Emulated cores are folders, so
//! that these tests need no rights and see whether they were removed.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use ecotone_bench::{
    lab::{
        EmulatedCores, Emulation, Host, LabError, LabOptions, LabReport, OfferedRate, PolicyRun, Profile, Progress,
        Quiet, Tick, run_lab, run_lab_on,
    },
    record::{Final, Job, Outcome, Ready, Record, Sample},
    workload::Workload,
};

/// Runs of this program as a server find it set. `main` of a test program is not ours, so it is a test that serves.
const SERVE: &str = "ECOTONE_LAB_TEST_SERVER";
/// What a server finds set to what it is to do.
const CONDUCT: &str = "ECOTONE_LAB_TEST_CONDUCT";
/// Runs of this program as a lab find it set to the place of the lab.
const LAB: &str = "ECOTONE_LAB_TEST_LAB";

/// Makes folders instead of cores. They remove themselves, and note whether their server was gone by then.
struct Folders {
    root: PathBuf,
    orphans: Arc<Mutex<Vec<String>>>,
}

struct Folder {
    path: PathBuf,
    orphans: Arc<Mutex<Vec<String>>>,
}

impl Emulation for Folders {
    fn create(&self, server: &str, _cores: u32, speed: f64) -> Result<EmulatedCores, String> {
        if speed > 1.0 {
            return Err("no such core".to_owned());
        }
        let path = self.root.join(server);
        fs::create_dir(&path).map_err(|error| error.to_string())?;
        let guard = Folder { path: path.clone(), orphans: self.orphans.clone() };
        Ok(EmulatedCores { path, guard: Box::new(guard) })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A server writes its processes' ids there, as it would enter a cgroup. A killed one needs a moment to end.
        let deadline = Instant::now() + Duration::from_secs(3);
        let ids = fs::read_to_string(self.path.join("ids")).unwrap_or_default();
        for id in ids.lines() {
            while lives(id) {
                if Instant::now() > deadline {
                    self.orphans.lock().unwrap().push(id.to_owned());
                    break;
                }
                thread::yield_now();
            }
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn lives(id: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

/// A lab's surroundings, and whether it left them clean.
struct Bench {
    place: PathBuf,
    emulation: Folders,
    _guard: Option<tempfile::TempDir>,
}

impl Bench {
    fn new() -> Bench {
        let guard = tempfile::tempdir().unwrap();
        for folder in ["cores", "stores"] {
            fs::create_dir(guard.path().join(folder)).unwrap();
        }
        let bench = Bench::at(guard.path().to_owned());
        Bench { _guard: Some(guard), ..bench }
    }

    fn at(place: PathBuf) -> Bench {
        Bench { emulation: Folders { root: place.join("cores"), orphans: Arc::default() }, place, _guard: None }
    }

    fn options(&self, conduct: &str, policies: &[&str]) -> LabOptions {
        let profile = Profile::load("three-tier").unwrap();
        let policies = policies.iter().map(|policy| policy.parse().unwrap()).collect();
        let mut options = LabOptions::new(Workload::FillRandom, profile, policies, 2).unwrap();
        options.stores = Some(self.place.join("stores"));
        options.server_program = self.program(conduct);
        options
    }

    /// A script that starts this program again as a server. What the test's frame prints is kept from the lab: records go
    /// to the third descriptor.
    fn program(&self, conduct: &str) -> PathBuf {
        let path = self.place.join("server.sh");
        let own = std::env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\nexport {SERVE}=\"$*\" {CONDUCT}={conduct}\nexec '{}' --exact serves --nocapture 3>&1 >/dev/null\n",
            own.display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    fn run(&self, options: &LabOptions, progress: &mut dyn Progress) -> Result<LabReport, LabError> {
        let host = Host { cores: 2.0, ..Host::default() };
        let result = run_lab_on(options, &self.emulation, host, progress);
        assert_eq!(*self.emulation.orphans.lock().unwrap(), [] as [String; 0], "servers outlived their cores");
        for folder in ["cores", "stores"] {
            let left: Vec<_> = fs::read_dir(self.place.join(folder)).unwrap().flatten().collect();
            assert!(left.is_empty(), "left behind: {left:?}");
        }
        result
    }

    fn fails(&self, options: &LabOptions) -> String {
        let begin = Instant::now();
        let error = self.run(options, &mut Quiet).unwrap_err().to_string();
        assert!(begin.elapsed() < Duration::from_secs(60), "it took {:?}", begin.elapsed());
        error
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The server.

/// Not a test but the server, when this program was started as one.
#[test]
fn serves() {
    let Ok(arguments) = std::env::var(SERVE) else { return };
    let server = Server::new(arguments.split(' ').map(str::to_owned).collect());
    std::process::exit(server.serve());
}

struct Server {
    arguments: Vec<String>,
    name: String,
    /// What the one server that misbehaves does.
    fault: String,
    /// What all do.
    conduct: String,
    records: File,
}

impl Server {
    fn new(arguments: Vec<String>) -> Server {
        let records = OpenOptions::new().write(true).open("/proc/self/fd/3").unwrap();
        let mut server = Server {
            arguments,
            name: String::new(),
            fault: String::new(),
            conduct: std::env::var(CONDUCT).unwrap(),
            records,
        };
        server.name = server.value("--name");
        server.fault = if server.name == "medium-1" { server.conduct.clone() } else { String::new() };
        server
    }

    fn value(&self, key: &str) -> String {
        let at = self.arguments.iter().position(|argument| argument == key);
        at.and_then(|at| self.arguments.get(at + 1)).cloned().unwrap_or_default()
    }

    fn enter(&self, process: u32) {
        let cores = self.value("--cgroup");
        // A cgroup takes a process as a folder takes a note.
        let group = Path::new(&cores).join("rest/cgroup.procs");
        let path = if group.exists() { group } else { Path::new(&cores).join("ids") };
        // In one write: a cgroup takes no second one, not even for the end of the line.
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(format!("{process}\n").as_bytes()).unwrap();
    }

    fn print(&self, line: &str) {
        (&self.records).write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn record(&self, record: Record) {
        self.print(&serde_json::to_string(&record).unwrap());
    }

    /// Hangs, with a child of its own that holds its output open.
    fn hang(&self) -> ! {
        self.enter(std::process::Command::new("sleep").arg("1000").spawn().unwrap().id());
        loop {
            thread::park();
        }
    }

    fn serve(&self) -> i32 {
        self.enter(std::process::id());
        fs::create_dir_all(self.value("--dir")).unwrap();
        eprintln!("arguments: {}", self.arguments.join(" "));
        match self.fault.as_str() {
            "refuses" => {
                eprintln!("error: no such workload");
                return 2;
            }
            "never-ready" => self.hang(),
            "chatters" => self.print("hello from a library"),
            "babbles" => (0..500).for_each(|number| self.print(&format!("line {number}"))),
            _ => {}
        }
        let first = self.name == "high-1";
        assert_eq!(self.value("--join"), if first { "" } else { "127.0.0.1:4000" });
        let server = if self.fault == "misnamed" { "someone-else".to_owned() } else { self.name.clone() };
        let listen = if first { "127.0.0.1:4000" } else { "127.0.0.1:4001" }.to_owned();
        self.record(Record::Ready(Ready { server, listen }));

        let lines = lines();
        assert_eq!(lines.recv().unwrap(), "start");
        let rate: f64 = self.value("--rate").parse().unwrap_or(1000.0);
        let seconds: u64 = self.value("--seconds").parse().unwrap();
        let mut colocated_threads = 0;
        for second in 1..=seconds {
            match (self.fault.as_str(), second) {
                ("dies", 2) => {
                    eprintln!("thread 'main' panicked: disk on fire");
                    return 101;
                }
                ("hangs", 2) => self.hang(),
                _ => {}
            }
            // A tenth of real time is enough, unless the lab has something to say on the way.
            let real = self.conduct == "loaded";
            thread::sleep(Duration::from_millis(if real { 1000 } else { 100 }));
            let said = lines.try_iter().filter_map(|line| line.strip_prefix("colocated ")?.parse().ok());
            colocated_threads = said.last().unwrap_or(colocated_threads);
            let (at_s, ops) = (second as f64, rate as u64);
            self.record(Record::Sample(Sample { at_s, ops, l0_tables: 3, colocated_threads, ..Sample::default() }));
        }
        self.record(Record::Job(Job {
            at_s: 1.0,
            job: 7,
            owner: self.name.clone(),
            worker: "high-1".to_owned(),
            input_level: 0,
            output_level: 1,
            input_bytes: 9,
            output_bytes: 8,
            seconds: 2.0,
            joules: 4.0,
            predicted_seconds: Some(1.0),
            predicted_joules: Some(5.0),
            trainings: 20,
            outcome: Outcome::Offloaded,
            reason: "forecast".to_owned(),
        }));
        if self.fault == "forgets" {
            self.hang();
        }
        if self.conduct == "leaves" && self.fault.is_empty() {
            // The one that leaves must be missed before all are told to stop.
            thread::sleep(Duration::from_millis(800));
        }
        let ops = (rate * seconds as f64) as u64;
        self.record(Record::Final(Final {
            server: self.name.clone(),
            ops,
            writes: ops,
            seconds: seconds as f64,
            energy_joules: 2.0,
            offloaded: 1,
            core_failures: u64::from(self.fault == "unbound"),
            missed: u64::from(self.fault == "misses"),
            energy_source: if self.fault == "metered" { "rapl" } else { "model" }.to_owned(),
            ..Final::default()
        }));
        // Work for others goes on, but is no part of the measurement.
        self.record(Record::Sample(Sample { at_s: 99.0, ..Sample::default() }));
        if self.fault == "leaves" {
            return 0;
        }
        assert!(lines.iter().any(|line| line == "stop"), "the lab went away without a word");
        match self.fault.as_str() {
            "lingers" => self.hang(),
            "breaks-late" => 3,
            _ => 0,
        }
    }
}

/// What the lab says, until it stops listening.
fn lines() -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || std::io::stdin().lock().lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
    lines
}

// ---------------------------------------------------------------------------------------------------------------------
// The tests.

/// Writes down what it is told.
#[derive(Default)]
struct Diary {
    told: Vec<String>,
    ticks: Vec<Tick>,
}

impl Progress for Diary {
    fn begin(&mut self, runs: usize, seconds: u64) {
        self.told.push(format!("{runs} runs of {seconds} s"));
    }
    fn run_begins(&mut self, index: usize, policy: &str) {
        self.told.push(format!("{index} {policy}"));
    }
    fn workload_begins(&mut self, policy: &str) {
        self.told.push(format!("{policy} works"));
    }
    fn second(&mut self, tick: &Tick) {
        self.ticks.push(tick.clone());
    }
    fn run_ends(&mut self, index: usize, run: &PolicyRun) {
        self.told.push(format!("{index} {} done", run.policy));
    }
    fn warning(&mut self, text: &str) {
        self.told.push(format!("warning: {text}"));
    }
}

#[test]
fn a_calm_lab_collects_from_all_servers_and_leaves_nothing() {
    let bench = Bench::new();
    let mut diary = Diary::default();
    let report = bench.run(&bench.options("calm", &["local", "eco"]), &mut diary).unwrap();
    assert_eq!(
        diary.told,
        ["2 runs of 2 s", "0 local", "local works", "0 local done", "1 eco", "eco works", "1 eco done"]
    );
    assert_eq!(report.warnings, [] as [String; 0]);
    assert_eq!(report.runs.len(), 2);
    for run in &report.runs {
        assert_eq!(
            run.servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(),
            ["high-1", "medium-1", "low-1"]
        );
        assert_eq!((run.total.ops_per_s, run.total.energy_joules, run.total.offloaded), (3000.0, 6.0, 3));
        assert_eq!(run.total.epo_uj, Some(1000.0));
        // |1 - 2| / 2 and |5 - 4| / 4, of the three jobs foretold after 20 trainings.
        assert_eq!((run.models.time_error, run.models.energy_error, run.models.jobs), (Some(0.5), Some(0.25), 3));
        assert_eq!(run.models.rate_error, None);
    }
    assert_eq!(report.runs[1].total.relative.unwrap().ops_per_s, Some(1.0));
    let samples = &report.recording.runs[1].servers[2].samples;
    assert_eq!(samples.iter().map(|sample| sample.at_s).collect::<Vec<_>>(), [1.0, 2.0], "and nothing after the final");
}

#[test]
fn servers_are_told_what_the_profile_says() {
    let bench = Bench::new();
    let record = bench.place.join("recorded");
    let mut options = bench.options("calm", &["local-split"]);
    (options.record, options.rate) = (Some(record.clone()), Some("250".parse().unwrap()));
    let report = bench.run(&options, &mut Quiet).unwrap();
    assert_eq!(report.runs[0].total.ops_per_s, 750.0);
    let log = fs::read_to_string(record.join("local-split/low-1.log")).unwrap();
    for argument in [
        "serve --dir ",
        "--listen 127.0.0.1:0 --name low-1 --join 127.0.0.1:4000 --policy local-split --cores 4 --core-speed 0.054",
        "--active-watts 2 --idle-watts 0.7 --worker-slots 1",
        "--store-option memtable_bytes=262144",
        "--store-option l0_slowdown_trigger=20",
        "--store-option max_subcompactions=2",
        "--workload fillrandom --keys 13000 --key-bytes 16 --value-bytes 1000 --threads 1 --rate 250.0 --seconds 2 --seed 3",
        "--wait-for-start --records -",
    ] {
        assert!(log.contains(argument), "no {argument} in {log}");
    }
    assert!(!fs::read_to_string(record.join("local-split/high-1.log")).unwrap().contains("--join"));

    let records = fs::read_to_string(record.join("local-split/low-1.records.jsonl")).unwrap();
    let records: Vec<Record> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(matches!(records[..], [Record::Sample(_), Record::Sample(_), Record::Job(_), Record::Final(_)]));
    assert!(!record.join("local-split/stores").exists(), "stores are not recorded");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(record.join("lab.json")).unwrap()).unwrap();
    assert_eq!(json["runs"][0]["policy"], "local-split");

    // Once more into the same place, but never into a stranger's.
    bench.run(&options, &mut Quiet).unwrap();
    options.record = Some(bench.place.clone());
    assert!(bench.fails(&options).contains("not empty and was not made by the lab"));
}

#[test]
fn a_share_of_local_is_measured_first() {
    let bench = Bench::new();
    let mut options = bench.options("calm", &["eco"]);
    options.rate = Some(OfferedRate::ShareOfLocal(0.7));
    let mut diary = Diary::default();
    let report = bench.run(&options, &mut diary).unwrap();
    assert_eq!(diary.told[..3], ["2 runs of 2 s", "0 local", "local works"]);
    assert_eq!(report.calibration.unwrap().total.ops_per_s, 3000.0);
    assert_eq!((report.runs.len(), report.runs[0].servers[2].ops_per_s), (1, 700.0));
    assert_eq!((report.offered.rate.as_str(), report.offered.ops_per_s["low-1"]), ("70% of local", 700.0));
}

#[test]
fn colocated_threads_grow_in_steps_on_high_only() {
    let bench = Bench::new();
    let mut options = bench.options("loaded", &["eco"]);
    (options.seconds, options.colocated) = (4, 3);
    let mut diary = Diary::default();
    let report = bench.run(&options, &mut diary).unwrap();
    let threads = |server: usize| {
        let samples = &report.recording.runs[0].servers[server].samples;
        samples.iter().map(|sample| sample.colocated_threads).collect::<Vec<_>>()
    };
    assert_eq!((threads(1), threads(2)), (vec![0; 4], vec![0; 4]));
    // Each step lasts a second, as a sample does: which of two neighbours sees it first is open.
    let high = threads(0);
    assert!(high.is_sorted() && high[0] <= 1 && high[3] >= 2, "{high:?}");
    assert_eq!(report.colocated_steps(), [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, 3)]);
    assert!(diary.ticks.len() >= 2 && diary.ticks[0].l0_tables.len() == 3, "{:?}", diary.ticks);
}

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
    options.patience.silence = Duration::from_millis(800);
    let error = bench.fails(&options);
    assert!(error.contains("server medium-1") && error.contains("hangs: no record for 1 s"), "{error}");
}

#[test]
fn a_server_that_is_never_ready_is_an_error() {
    let bench = Bench::new();
    let mut options = bench.options("never-ready", &["eco"]);
    options.patience.ready = Duration::from_millis(800);
    assert!(bench.fails(&options).contains("server medium-1 under policy eco: is not ready in time"));
}

#[test]
fn a_server_that_forgets_its_final_record_is_an_error() {
    let bench = Bench::new();
    let mut options = bench.options("forgets", &["eco"]);
    (options.seconds, options.patience.final_record) = (1, Duration::from_millis(300));
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
    options.patience.stop = Duration::from_millis(300);
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
fn without_a_server_program_nothing_is_left_behind() {
    let bench = Bench::new();
    let mut options = bench.options("calm", &["eco"]);
    options.server_program = PathBuf::from("/nonexistent/ecotone");
    assert!(bench.fails(&options).contains("/nonexistent/ecotone"));
}

#[test]
fn a_lab_whose_cores_cannot_be_made_stops() {
    let bench = Bench::new();
    fs::create_dir(bench.emulation.root.join("low-1")).unwrap();
    let host = Host { cores: 2.0, ..Host::default() };
    let error = run_lab_on(&bench.options("calm", &["eco"]), &bench.emulation, host, &mut Quiet).unwrap_err();
    assert!(matches!(error, LabError::Emulation { .. }), "{error}");
    assert!(error.to_string().contains("without it the servers would be equal"), "{error}");
}

/// Not a test but a lab, when this program was started as one.
#[test]
fn labs() {
    let Ok(place) = std::env::var(LAB) else { return };
    let bench = Bench::at(PathBuf::from(place));
    let error = bench.run(&bench.options("hangs", &["eco"]), &mut Quiet).unwrap_err();
    eprintln!("the lab says: {error}");
    std::process::exit(7);
}

/// Starts a lab as a process of its own, ends it with `signal` once one of its servers hangs, and returns what it said
/// and how it ended. Its servers are gone by then.
fn ended_by(signal: &str, bench: &Bench) -> (String, Option<i32>) {
    let lab = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "labs", "--nocapture"])
        .env(LAB, &bench.place)
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
    (options.profile, options.record) = (Profile::parse(&text, "pair").unwrap(), Some(bench.place.join("recorded")));
    match run_lab(&options, &mut Quiet) {
        Ok(report) => {
            assert_eq!(report.runs[0].total.ops_per_s, 2000.0);
            let log = fs::read_to_string(bench.place.join("recorded/eco/low-1.log")).unwrap();
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
