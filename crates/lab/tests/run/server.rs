//! The server that a lab under test starts: it says what a server says, and misbehaves as its
//! script says.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, Write},
    path::Path,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use ecotone_server::record::{Final, Job, Outcome, Ready, Record, Sample};

/// Runs of this program as a server find it set. `main` of a test program is not ours, so it is a
/// test that serves.
pub const SERVE: &str = "ECOTONE_LAB_TEST_SERVER";
/// What a server finds set to what it is to do.
pub const CONDUCT: &str = "ECOTONE_LAB_TEST_CONDUCT";

/// All of the like that a server finds; the last one is said by a lab with clients.
const KNOWN: [&str; 3] = [SERVE, CONDUCT, "ECOTONE_CLIENTS_EVENT_LOOPS"];

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
        assert_eq!(self.value("--http"), "off");
        let settings = std::env::vars().filter(|(name, _)| name.starts_with("ECOTONE_") && !KNOWN.contains(&&**name));
        assert_eq!(settings.collect::<Vec<_>>(), [], "settings of somebody else's server");
        let first = self.name == "high-1";
        assert_eq!(self.value("--join"), if first { "" } else { "127.0.0.1:4000" });
        let server = if self.fault == "misnamed" { "someone-else".to_owned() } else { self.name.clone() };
        let listen = if first { "127.0.0.1:4000" } else { "127.0.0.1:4001" }.to_owned();
        self.record(Record::Ready(Ready { server, listen, clients: None }));

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
            held_bytes: 0,
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
            thread::sleep(Duration::from_secs(3));
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
