//! `ecotone serve`: one server, for clients or with a workload inside it.
//!
//! A workload is driven as `db_bench` does it in the papers, in the server's process; its keys are
//! not those of clients, so a server has one or the other. Under the lab the server speaks
//! [records](ecotone_server::record) on standard output and listens for `start`, `colocated N` and
//! `stop` on standard input; without a workload it counts what clients ask for between `start` and
//! the first `stop`. Whoever started it ends it by a [signal](crate::signals), at any time; a
//! [supervisor](crate::supervisor) is notified of its condition.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ecotone_bench::driver::{Driver, Outcome, Running};
use ecotone_bench::measure::{ProcessUsage, directory_bytes};
use ecotone_bench::target::EngineTarget;
use ecotone_bench::workload::{OperationKind, Preload, ValueKind, Workload, WorkloadOptions};
use ecotone_engine::Store;
use ecotone_server::config::{Config, FILE_VARIABLE, Kind, ValueOrigin, commented_file, keys};
use ecotone_server::record::{Final, Latency, Ready, Record};
use ecotone_server::{
    Allocator, ClientOptions, Daemon, EmulatedCores, Progress, RecordSink, ServeOptions, Sums, Witness,
    raise_descriptor_limit,
};

use crate::allocator::OfProcess;
use crate::log;
use crate::signals::Signals;
use crate::supervisor::{Condition, Supervisor};

/// How often the server checks whether its workload has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Configuration file; what is given here wins over it [default: the one that ECOTONE_CONFIG
    /// names, or none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a configuration file with every key, its default and what it is for, and end
    #[arg(long)]
    pub(crate) print_config: bool,
    #[arg(long, help = help_of("server.dir"))]
    dir: Option<String>,
    #[arg(long, value_name = "ADDRESS,...", help = help_of("clients.listen"))]
    clients: Option<String>,
    #[arg(long, help = help_of("clients.cluster"))]
    cluster: Option<String>,
    #[arg(long, help = help_of("clients.proxy"))]
    proxy: Option<String>,
    #[arg(long, value_name = "ADDRESS,...", help = help_of("http.listen"))]
    http: Option<String>,
    #[arg(long, help = help_of("federation.listen"))]
    listen: Option<String>,
    #[arg(long, help = help_of("federation.announce"))]
    announce: Option<String>,
    #[arg(long, help = help_of("federation.join"))]
    join: Option<String>,
    #[arg(long, help = help_of("federation.token"))]
    token: Option<String>,
    #[arg(long, help = help_of("federation.zone"))]
    zone: Option<String>,
    #[arg(long, help = help_of("federation.witness"))]
    witness: bool,
    #[arg(long, help = help_of("server.name"))]
    name: Option<String>,
    #[arg(long, help = help_of("federation.policy"))]
    policy: Option<String>,
    #[arg(long, help = help_of("server.cores"))]
    cores: Option<String>,
    #[arg(long, help = help_of("federation.worker_slots"))]
    worker_slots: Option<String>,
    #[arg(long, help = help_of("energy.active_watts"))]
    active_watts: Option<String>,
    #[arg(long, help = help_of("energy.idle_watts"))]
    idle_watts: Option<String>,
    #[arg(long, help = help_of("power.mode"))]
    power_mode: Option<String>,
    #[arg(long, help = help_of("federation.network_bytes_per_s"))]
    network_bytes_per_s: Option<String>,
    #[arg(long, help = help_of("store.durability"))]
    durability: Option<String>,
    #[arg(long, help = help_of("store.memory_limit_bytes"))]
    memory_limit: Option<String>,
    #[arg(long = "store-option", value_name = "NAME=VALUE", help = store_option_help())]
    store_options: Vec<String>,

    /// Run this workload inside the server (see `ecotone bench --help` for their names)
    #[arg(long, help_heading = "Workload")]
    workload: Option<String>,
    /// Keys of the workload
    #[arg(long, default_value_t = 1_000_000, help_heading = "Workload")]
    keys: u64,
    /// Bytes of a key
    #[arg(long, default_value_t = 16, help_heading = "Workload")]
    key_bytes: u32,
    /// Bytes of a value
    #[arg(long, default_value_t = 1000, help_heading = "Workload")]
    value_bytes: u32,
    /// What values consist of: random, half, json, text or zeros:SHARE
    #[arg(long, default_value = "random", value_name = "KIND", help_heading = "Workload")]
    values: String,
    /// Threads of the workload
    #[arg(long, default_value_t = 1, help_heading = "Workload")]
    threads: u32,
    /// Operations per second that are offered [default: as many as the store takes]
    #[arg(long, help_heading = "Workload")]
    rate: Option<f64>,
    /// Seconds that the workload runs
    #[arg(long, default_value_t = 60.0, help_heading = "Workload")]
    seconds: f64,
    /// Seed of the workload's random choices
    #[arg(long, default_value_t = 1, help_heading = "Workload")]
    seed: u64,

    /// Speed of one emulated core as a share of a host core (set by the lab)
    #[arg(long, requires = "cgroup", help_heading = "Lab")]
    core_speed: Option<f64>,
    /// The server's cgroup (set by the lab)
    #[arg(long, requires = "core_speed", help_heading = "Lab")]
    cgroup: Option<PathBuf>,
    /// The frequencies of emulated cores: a line for each, megahertz and volts, the highest first
    /// (set by the lab)
    #[arg(long, value_name = "FILE", requires = "core_speed", help_heading = "Lab")]
    p_states: Option<PathBuf>,
    /// Where the files of the machine's meters and frequencies lie (set by tests)
    #[arg(long, hide = true, default_value = "/")]
    machine_root: PathBuf,
    /// Print records as JSON lines: `-` for standard output
    #[arg(long, value_name = "FILE", help_heading = "Lab")]
    records: Option<PathBuf>,
    /// Begin the workload when the line `start` comes on standard input, end at `stop`; without
    /// --workload it is what clients ask for
    #[arg(long, help_heading = "Lab")]
    wait_for_start: bool,
}

pub(crate) fn run(arguments: &Arguments, config: Config) -> Result<()> {
    for line in config.overridden() {
        tracing::warn!("{line}");
    }
    let workload = arguments.workload()?;
    let sink = arguments.record_sink()?;
    let print = |record: Record| {
        if let Some(sink) = &sink {
            sink(record);
        }
    };
    let mut options = config.serve_options()?;
    raise_descriptor_limit();
    options.emulated = arguments.emulated();
    options.machine_root.clone_from(&arguments.machine_root);
    let (sender, control) = channel();
    let signals = Signals::handle({
        let sender = sender.clone();
        move || drop(sender.send(ControlEvent::Stop))
    })?;
    if arguments.wait_for_start {
        read_lines(sender.clone());
    }
    options.clients = arguments.clients(&config, sender)?;
    if arguments.wait_for_start && workload.is_none() && options.clients.is_none() {
        bail!("--wait-for-start waits for a workload: give --workload or --clients");
    }
    if options.witness && workload.is_some() {
        bail!("a witness has no store, and so no workload: leave out --workload, or --witness (federation.witness)");
    }
    // Nobody monitors a workload by default.
    if workload.is_some() && !config.is_said("http.listen") {
        options.http = None;
    }
    let supervisor = Supervisor::from_environment();
    supervisor.notify("STATUS=opening the store");
    options.opened = Some(signals.opened());
    options.lost_log_lines = Some(Arc::new(log::lost_lines));
    if options.witness {
        return run_witness(&options, &config, &control, &supervisor, print);
    }
    let daemon = start(options, &config, sink.clone())?;
    let name = daemon.name().to_owned();
    let sequences =
        daemon.stores().iter().map(|store| Ok(store.properties()?.last_sequence)).collect::<Result<Vec<_>>>()?;
    let was_empty = sequences.iter().all(|sequence| *sequence == 0);
    if let Some(workload) = workload.as_ref().filter(|workload| workload.preloads()) {
        supervisor.notify("STATUS=filling the store");
        load(&daemon, workload, &signals)?;
        if signals.wanted().load(Ordering::Acquire) {
            return end(daemon, &supervisor);
        }
    }
    let clients = daemon.listening().and_then(|listening| listening.addresses.first()).map(ToString::to_string);
    print(Record::Ready(Ready { server: name.clone(), listen: daemon.address().to_owned(), clients }));
    supervisor.notify(&format!("READY=1\nSTATUS={}", whom_it_serves(&daemon)));
    let watcher = supervisor.watch(condition_of(&daemon))?;
    let mut ends = arguments.wait_for_start && wait_for(&control, &daemon, "start")? == WaitOutcome::End;
    if let Some(workload) = workload.filter(|_| !ends) {
        let (driven, end) = drive(&daemon, workload, was_empty, &control)?;
        ends = end;
        print(Record::Final(final_record(name, driven)));
        if sink.is_none() && !ends {
            let done = "the workload is done; the server goes on until it gets SIGTERM or SIGINT";
            // Nobody may read it any more.
            let _ = writeln!(std::io::stdout(), "{done}");
        }
    } else if arguments.wait_for_start && !ends {
        let (counted, outcome) = watch_clients(&daemon, name, &control)?;
        print(Record::Final(counted));
        ends = outcome == WaitOutcome::End;
    }
    let waited = if ends { Ok(WaitOutcome::End) } else { wait_for(&control, &daemon, "stop") };
    drop(watcher);
    let ended = end(daemon, &supervisor);
    waited.and(ended)
}

/// Votes until a signal comes, or whoever started it says so.
fn run_witness(
    options: &ServeOptions,
    config: &Config,
    control: &Receiver<ControlEvent>,
    supervisor: &Supervisor,
    print: impl Fn(Record),
) -> Result<()> {
    let witness = Witness::start(options).map_err(|error| config.explain(error))?;
    if let Some(opened) = &options.opened {
        opened();
    }
    let (server, listen) = (witness.name().to_owned(), witness.address().to_owned());
    supervisor.notify(&format!("READY=1\nSTATUS=a witness; other servers reach it at {listen}"));
    print(Record::Ready(Ready { server, listen, clients: None }));
    while let Ok(ControlEvent::Line(line)) = control.recv() {
        if line.trim() == "stop" {
            break;
        }
    }
    tracing::info!("the witness stops");
    supervisor.notify("STOPPING=1");
    drop(witness);
    Ok(())
}

/// Prints the configuration file instead of serving.
pub(crate) fn print_config() -> Result<()> {
    std::io::stdout().write_all(commented_file().as_bytes()).context("cannot print the configuration")
}

fn end(daemon: Daemon, supervisor: &Supervisor) -> Result<()> {
    tracing::info!("the server stops");
    supervisor.notify("STOPPING=1\nSTATUS=ending clients and closing the store");
    daemon.stop().context("stopping")
}

/// What comes from outside the process.
enum ControlEvent {
    /// A line on standard input.
    Line(String),
    /// Standard input has ended.
    InputEnded,
    /// A signal, or a client, ends the server.
    Stop,
    /// A thread that serves clients is gone.
    Panicked,
}

/// What came first.
#[derive(PartialEq, Eq)]
enum WaitOutcome {
    /// The word that was waited for.
    Word,
    /// The server is to end.
    End,
}

/// Where clients and those who watch find it, for a supervisor's status.
fn whom_it_serves(daemon: &Daemon) -> String {
    let list = |addresses: Vec<String>| if addresses.is_empty() { "nowhere".into() } else { addresses.join(", ") };
    let clients = daemon.listening().map(|listening| {
        let tls = listening.tls_addresses.iter().map(|address| format!("{address} (TLS)"));
        let socket = listening.socket.iter().map(|path| path.display().to_string());
        listening.addresses.iter().map(ToString::to_string).chain(tls).chain(socket).collect()
    });
    let http = daemon.http_addresses().iter().map(ToString::to_string).collect();
    format!("clients at {}; metrics at {}", list(clients.unwrap_or_default()), list(http))
}

/// How the server is, for who supervises it.
fn condition_of(daemon: &Daemon) -> impl Fn() -> Condition + Send + 'static {
    let (health, serves) = (daemon.health(), whom_it_serves(daemon));
    move || {
        let (hanging, unready) = (health.hanging(), health.unready());
        let status = match (hanging.as_slice(), unready.as_slice()) {
            ([], []) => serves.clone(),
            ([], reasons) => format!("not ready: {}", reasons.join("; ")),
            (reasons, _) => format!("hangs: {}", reasons.join("; ")),
        };
        Condition { lives: hanging.is_empty(), status }
    }
}

fn start(options: ServeOptions, config: &Config, sink: Option<RecordSink>) -> Result<Daemon> {
    Ok(Daemon::start(options, sink).map_err(|error| config.explain(error))?)
}

/// What the reference says of a key, for `--help`.
fn help_of(path: &str) -> String {
    let Some(key) = keys().iter().find(|key| key.path == path) else { return String::new() };
    let about = key.about.trim_end_matches('.');
    let values = match &key.kind {
        Kind::OneOf(_) => format!(": {}", key.kind.range()),
        _ => String::new(),
    };
    match key.default.as_str() {
        "" => format!("{about}{values}"),
        default => format!("{about}{values} [default: {default}]"),
    }
}

fn store_option_help() -> String {
    format!(
        "Further options of the store: {}",
        keys().iter().filter(|key| key.section() == "store").map(|key| key.name()).collect::<Vec<_>>().join(", ")
    ) + ", space_max_bytes and space_reserve_bytes; --print-config says what each is for"
}

impl Arguments {
    fn workload(&self) -> Result<Option<WorkloadOptions>> {
        let Some(name) = &self.workload else { return Ok(None) };
        let options = WorkloadOptions {
            workload: name.parse::<Workload>()?,
            keys: self.keys,
            key_bytes: self.key_bytes,
            value_bytes: self.value_bytes,
            values: self.values.parse::<ValueKind>()?,
            seconds: Some(self.seconds),
            threads: self.threads,
            rate_ops_per_s: self.rate,
            seed: self.seed,
            ..WorkloadOptions::default()
        };
        options.validate()?;
        Ok(Some(options))
    }

    fn record_sink(&self) -> Result<Option<RecordSink>> {
        let Some(path) = &self.records else { return Ok(None) };
        let out: Box<dyn Write + Send> = if path.as_os_str() == "-" {
            Box::new(std::io::stdout())
        } else {
            let file = std::fs::File::create(path)
                .with_context(|| format!("cannot write records to {} (--records)", path.display()))?;
            Box::new(file)
        };
        let out = Mutex::new(out);
        Ok(Some(Arc::new(move |record| {
            let Ok(line) = serde_json::to_string(&record) else { return };
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            // A reader that is gone ends the run with `stop` or the end of input; nothing is to be
            // done here.
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        })))
    }

    fn emulated(&self) -> Option<EmulatedCores> {
        let (cgroup, speed) = (self.cgroup.clone()?, self.core_speed?);
        Some(EmulatedCores { cgroup, speed, p_states: self.p_states.clone() })
    }

    /// The clients that are served; the server ends when `control` says so.
    fn clients(&self, config: &Config, control: Sender<ControlEvent>) -> Result<Option<ClientOptions>> {
        let listens = ["clients.listen", "clients.unix_socket", "clients.tls_listen"];
        if self.workload.is_some() && !listens.iter().any(|path| config.is_said(path)) {
            return Ok(None);
        }
        let Some(listen) = config.listen()? else { return Ok(None) };
        if self.workload.is_some() {
            bail!(
                "a workload writes keys of its own beside which clients cannot be served: leave --workload out, or give --clients off"
            );
        }
        let for_panic = control.clone();
        let panicked = Arc::new(move || drop(for_panic.send(ControlEvent::Panicked)));
        let shut_down = Arc::new(move || {
            // Nobody listens any more: it ends already. What was acknowledged is kept in any case.
            let _ = control.send(ControlEvent::Stop);
        });
        let allocator: Arc<dyn Allocator> = Arc::new(OfProcess);
        Ok(Some(ClientOptions { listen, config: config.clone(), shut_down, panicked, allocator: Some(allocator) }))
    }

    /// What was said of the settings: by the file, the environment and the command line, of which
    /// the last wins.
    pub(crate) fn config(&self) -> Result<Config> {
        let named = || std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty());
        let file = self.config.clone().or_else(|| named().map(PathBuf::from));
        let mut config = Config::load(file.as_deref(), std::env::vars_os())?;
        let given = [
            ("--dir", "server.dir", &self.dir),
            ("--clients", "clients.listen", &self.clients),
            ("--cluster", "clients.cluster", &self.cluster),
            ("--proxy", "clients.proxy", &self.proxy),
            ("--http", "http.listen", &self.http),
            ("--listen", "federation.listen", &self.listen),
            ("--announce", "federation.announce", &self.announce),
            ("--join", "federation.join", &self.join),
            ("--token", "federation.token", &self.token),
            ("--zone", "federation.zone", &self.zone),
            ("--witness", "federation.witness", &self.witness.then(|| "true".to_owned())),
            ("--name", "server.name", &self.name),
            ("--policy", "federation.policy", &self.policy),
            ("--cores", "server.cores", &self.cores),
            ("--worker-slots", "federation.worker_slots", &self.worker_slots),
            ("--active-watts", "energy.active_watts", &self.active_watts),
            ("--idle-watts", "energy.idle_watts", &self.idle_watts),
            ("--power-mode", "power.mode", &self.power_mode),
            ("--network-bytes-per-s", "federation.network_bytes_per_s", &self.network_bytes_per_s),
        ];
        for (argument, path, value) in given {
            if let Some(value) = value {
                config.set(path, value, ValueOrigin::Argument(argument.into()))?;
            }
        }
        for assignment in &self.store_options {
            config.set_store_option(assignment, ValueOrigin::Argument("--store-option".into()))?;
        }
        // They have names of their own, which win.
        for (argument, path, value) in [
            ("--durability", "store.durability", &self.durability),
            ("--memory-limit", "store.memory_limit_bytes", &self.memory_limit),
        ] {
            if let Some(value) = value {
                config.set(path, value, ValueOrigin::Argument(argument.into()))?;
            }
        }
        Ok(config)
    }
}

/// Fills the store before workloads that read what they did not write, with the keys that they
/// read; or until a signal comes.
fn load(daemon: &Daemon, workload: &WorkloadOptions, signals: &Signals) -> Result<()> {
    let target = Arc::new(EngineTarget::of(store_of_workload(daemon)?));
    Driver::fill(target, workload.clone(), Some(daemon.duties()), signals.wanted().clone())
        .context("filling the store")?;
    Ok(())
}

/// A workload inside the server works with one store.
fn store_of_workload(daemon: &Daemon) -> Result<Arc<Store>> {
    daemon.only_store().context("a workload inside the server needs exactly one shard there")
}

/// What the folders of all stores take; `None` where one cannot be read.
fn bytes_of_stores(daemon: &Daemon) -> Option<u64> {
    daemon.stores().iter().map(|store| directory_bytes(store.directory()).ok()).sum()
}

/// What a workload did, and what the server knows of the time until it ended.
struct Driven {
    done: Outcome,
    sums: Sums,
    bytes_directory: Option<u64>,
}

/// Runs the workload. Besides what it did: whether the server is to end, too.
fn drive(
    daemon: &Daemon,
    mut workload: WorkloadOptions,
    was_empty: bool,
    control: &Receiver<ControlEvent>,
) -> Result<(Driven, bool)> {
    // Whoever opened the store has loaded what the workload reads.
    workload.preload = match (workload.preloads(), was_empty) {
        (true, true) => Preload::Filled,
        (false, true) => Preload::Automatic,
        (_, false) => Preload::Existing,
    };
    let target = Arc::new(EngineTarget::of(store_of_workload(daemon)?));
    // The mutex is for sharing only: the monitor samples once a second.
    let running = Arc::new(Mutex::new(Driver::start(target, workload, Some(daemon.duties()))?));
    let watched = Arc::downgrade(&running);
    daemon.begin_workload(move || watched.upgrade().map(|running| progress(&lock(&running))).unwrap_or_default());
    let mut ends = false;
    while !lock(&running).is_finished() {
        match control.recv_timeout(CHECK_INTERVAL) {
            Ok(ControlEvent::Line(line)) => obey(daemon, &line, &lock(&running))?,
            Ok(ControlEvent::InputEnded | ControlEvent::Stop | ControlEvent::Panicked) => {
                ends = true;
                lock(&running).stop();
            }
            // Who waits for signals holds a sender for ever.
            Err(_) => {}
        }
    }
    let sums = daemon.sums();
    let bytes_directory = bytes_of_stores(daemon);
    let mut running = running;
    // The monitor holds it only for the moment of a sample.
    let running = loop {
        match Arc::try_unwrap(running) {
            Ok(running) => break running.into_inner().unwrap_or_else(PoisonError::into_inner),
            Err(shared) => running = shared,
        }
        std::thread::yield_now();
    };
    let done = running.join().context("the workload failed")?;
    Ok((Driven { done, sums, bytes_directory }, ends))
}

/// Counts what clients ask for from now until `stop`.
fn watch_clients(daemon: &Daemon, server: String, control: &Receiver<ControlEvent>) -> Result<(Final, WaitOutcome)> {
    let (began, usage) = (Instant::now(), ProcessUsage::now());
    let written_before = daemon.counters().user_bytes();
    let before = daemon.begin_requests().context("no clients are served")?;
    let outcome = wait_for(control, daemon, "stop")?;
    let (sums, seconds) = (daemon.sums(), began.elapsed().as_secs_f64());
    let asked = daemon.requests().unwrap_or_default().since(&before);
    let bytes_user = daemon.counters().user_bytes().saturating_sub(written_before);
    let bytes_directory = bytes_of_stores(daemon);
    let progress = asked.progress();
    let counted = Final {
        ops: progress.ops,
        reads: progress.reads,
        writes: progress.writes,
        missed: asked.missed,
        seconds,
        bytes_user,
        bytes_device: usage.bytes_device_until(&ProcessUsage::now(), bytes_user).ok(),
        bytes_directory,
        ..of_sums(server, sums)
    };
    Ok((counted, outcome))
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn progress(running: &Running) -> Progress {
    let counts = running.snapshot().counts;
    Progress { ops: counts.total(), reads: counts.reads(), writes: counts.writes() }
}

fn obey(daemon: &Daemon, line: &str, running: &Running) -> Result<()> {
    match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
        ["stop"] => running.stop(),
        ["colocated", count] => daemon.set_colocated(count.parse().with_context(|| format!("colocated {count:?}"))?)?,
        [] => {}
        _ => tracing::warn!(line, "unknown line on standard input; there are start, stop and colocated N"),
    }
    Ok(())
}

/// Waits for the line `word`, obeying `colocated N` meanwhile. The server is to end at a signal, at
/// the end of input, and at `stop`; with an error where a thread that serves clients is gone.
fn wait_for(control: &Receiver<ControlEvent>, daemon: &Daemon, word: &str) -> Result<WaitOutcome> {
    loop {
        let line = match control.recv() {
            Ok(ControlEvent::Line(line)) => line,
            Ok(ControlEvent::Panicked) => {
                bail!("a thread that serves clients panicked; to serve all of them again, start anew")
            }
            Ok(ControlEvent::InputEnded | ControlEvent::Stop) | Err(_) => return Ok(WaitOutcome::End),
        };
        match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            [said] if said == word => return Ok(WaitOutcome::Word),
            ["stop"] => return Ok(WaitOutcome::End),
            ["colocated", count] => {
                daemon.set_colocated(count.parse().with_context(|| format!("colocated {count:?}"))?)?;
            }
            _ => {}
        }
    }
}

fn read_lines(control: Sender<ControlEvent>) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if control.send(ControlEvent::Line(line)).is_err() {
                return;
            }
        }
        let _ = control.send(ControlEvent::InputEnded);
    });
}

fn final_record(server: String, driven: Driven) -> Final {
    let Driven { done, sums, bytes_directory } = driven;
    let latency_us = OperationKind::ALL.into_iter().filter_map(|kind| {
        let summary = done.latency_us(kind)?;
        let latency = Latency { p50: summary.p50, p99: summary.p99, p999: summary.p999, max: summary.max };
        Some((kind.name().to_owned(), latency))
    });
    Final {
        ops: done.counts.total(),
        reads: done.counts.reads(),
        writes: done.counts.writes(),
        missed: done.missed,
        seconds: done.seconds,
        latency_us: latency_us.collect(),
        bytes_user: done.bytes_user,
        bytes_device: done.usage_at_begin.bytes_device_until(&ProcessUsage::now(), done.bytes_user).ok(),
        bytes_directory,
        bytes_live: done.live.map(|live| live.bytes),
        ..of_sums(server, sums)
    }
}

/// What the server itself knows of a run.
fn of_sums(server: String, sums: Sums) -> Final {
    Final {
        server,
        stall_ms: sums.stall_ms,
        stalls: sums.stalls_ms,
        energy_joules: sums.energy.total_joules,
        energy_source: sums.energy.source.name().to_owned(),
        energy_joules_by_duty: sums.energy.energy_joules_by_duty,
        cpu_seconds: sums.energy.process_cpu_seconds,
        offloaded: sums.offloaded,
        taken: sums.taken,
        declined: sums.declined.values().sum(),
        fallbacks: sums.fallbacks,
        network_bytes_sent: sums.network_bytes_sent,
        network_bytes_received: sums.network_bytes_received,
        l0_max: sums.l0_tables_max,
        core_failures: sums.core_failures,
        ..Final::default()
    }
}
