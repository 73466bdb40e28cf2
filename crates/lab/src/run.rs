//! One policy's run: start the servers, let them work, collect, stop.
//!
//! Invariants: servers are killed and waited for before their emulated cores are removed; the run
//! never outlives its patience; a server that ends, hangs or speaks nonsense ends the run with an
//! error that shows the end of its log. Everything happens on the calling thread, except for the
//! readers of [`ServerProcess`].

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::PathBuf,
    process::Command,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    time::{Duration, Instant},
};

use ecotone_policy::policy::PolicyName;

use ecotone_bench::workload::WorkloadOptions;
use ecotone_server::record::{Outcome, Ready, Record};

use crate::clients::Clients;
use crate::emulation::{EmulatedCores, Emulation};
use crate::error::LabError;
use crate::options::{LabOptions, Through, run_name};
use crate::process::Interruption;
use crate::profile::colocated_steps;
use crate::progress::{Progress, Tick};
use crate::recording::{PolicyRecording, ServerRecording};
use crate::scaling::ScaledProfile;
use crate::server_process::{Event, ServerProcess};
use crate::summary::energy_sources;

/// Records that may wait to be read by the lab before servers' pipes fill.
const EVENT_QUEUE: usize = 1024;
/// Lines of one server that are no records, before it is taken for broken. A library's stray
/// message is no reason to throw a run away.
const MAX_STRANGE_LINES: usize = 100;
/// How long the lab waits for an event before it looks at the clock and at the user's wish to stop.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// The same where the lab's clients are to be missed soon after their end.
const LOOK_AT_CLIENTS: Duration = Duration::from_millis(10);
/// The papers' keys and values.
const KEY_BYTES: u32 = 16;
const VALUE_BYTES: u32 = 1000;
/// The block cache of a store without a limit of memory.
const BLOCK_CACHE_BYTES: u64 = 64 << 20;
/// Between two ticks of progress.
const TICK: Duration = Duration::from_secs(1);

/// What one run is about.
pub(crate) struct Plan<'a> {
    pub(crate) options: &'a LabOptions,
    pub(crate) emulated: &'a ScaledProfile,
    pub(crate) policy: PolicyName,
    /// The least length of a value that stores separate; none: all stay with their keys.
    pub(crate) separation_min_bytes: Option<u32>,
    /// Operations per second by server; a server that is missing gets no limit.
    pub(crate) ops_per_s: &'a BTreeMap<String, f64>,
    /// Logs go here.
    pub(crate) logs: PathBuf,
    /// Stores go here.
    pub(crate) stores: PathBuf,
}

impl Plan<'_> {
    /// The run's name, as in reports and messages.
    fn name(&self) -> String {
        run_name(self.policy, self.separation_min_bytes)
    }
}

/// What one run brought.
pub(crate) struct Outcomes {
    pub(crate) recording: PolicyRecording,
    pub(crate) warnings: Vec<String>,
}

/// Runs one policy.
pub(crate) fn run(
    plan: &Plan<'_>,
    emulation: &dyn Emulation,
    interruption: &Interruption,
    progress: &mut dyn Progress,
) -> Result<Outcomes, LabError> {
    let mut federation = Federation::new(plan, interruption);
    federation.begin(emulation)?;
    progress.workload_begins(&plan.name());
    federation.work(progress)?;
    federation.stop()?;
    for warning in &federation.warnings {
        progress.warning(warning);
    }
    let servers = std::mem::take(&mut federation.servers).into_iter().map(|server| server.recording).collect();
    let recording = PolicyRecording { policy: plan.name(), separation_min_bytes: plan.separation_min_bytes, servers };
    Ok(Outcomes { recording, warnings: std::mem::take(&mut federation.warnings) })
}

/// The servers of a run. Fields are dropped in this order: processes before the cores they run on.
struct Federation<'a> {
    servers: Vec<Server>,
    /// Of each server, where the workload goes through the protocol. After the servers: a client's
    /// wait ends with its server.
    clients: Vec<Clients>,
    cores: Vec<EmulatedCores>,
    events: Receiver<(usize, Event)>,
    sender: SyncSender<(usize, Event)>,
    plan: &'a Plan<'a>,
    interruption: &'a Interruption,
    /// For those that have not joined yet.
    tokens: Vec<OsString>,
    warnings: Vec<String>,
    stopping: bool,
}

/// One server of a run.
struct Server {
    process: ServerProcess,
    ready: Option<Ready>,
    recording: ServerRecording,
    last_report: Instant,
    strange_lines: usize,
    closed: bool,
}

impl Server {
    fn finished(&self) -> bool {
        self.recording.sums.is_some()
    }
}

impl<'a> Federation<'a> {
    fn new(plan: &'a Plan<'a>, interruption: &'a Interruption) -> Self {
        let (sender, events) = sync_channel(EVENT_QUEUE);
        let servers = Vec::new();
        Federation {
            servers,
            clients: Vec::new(),
            cores: Vec::new(),
            events,
            sender,
            plan,
            interruption,
            tokens: Vec::new(),
            warnings: Vec::new(),
            stopping: false,
        }
    }

    /// Starts the coordinator, then the others, and waits until all are ready.
    fn begin(&mut self, emulation: &dyn Emulation) -> Result<(), LabError> {
        for server in &self.plan.emulated.servers {
            let cores = emulation.create(&server.name, server.cores, server.speed);
            self.cores.push(cores.map_err(|reason| LabError::Emulation { reason })?);
        }
        let patience = &self.plan.options.patience;
        let patience = if self.plan.options.preloads() { patience.load } else { patience.ready };
        let mut coordinator = None;
        for index in 0..self.plan.emulated.servers.len() {
            self.start(index, coordinator.as_deref())?;
            if index == 0 {
                self.wait_until_ready(Instant::now() + patience)?;
                coordinator = self.servers[0].ready.as_ref().map(|ready| ready.listen.clone());
            }
        }
        self.wait_until_ready(Instant::now() + patience)?;
        if let Through::Resp { pipeline } = self.plan.options.through {
            self.connect(pipeline)?;
            self.load(Instant::now() + patience)?;
        }
        Ok(())
    }

    /// Connects the lab's clients to all servers.
    fn connect(&mut self, pipeline: u32) -> Result<(), LabError> {
        for index in 0..self.servers.len() {
            let address = self.servers[index].ready.as_ref().and_then(|ready| ready.clients.clone());
            let address = address.ok_or_else(|| self.failure(index, "serves no clients"))?;
            let clients = Clients::connect(&address, pipeline, self.workload(index));
            self.clients.push(clients.map_err(|error| self.failure(index, &error.to_string()))?);
        }
        Ok(())
    }

    /// Lets clients fill all stores at once, where the workload reads what it did not write.
    fn load(&mut self, deadline: Instant) -> Result<(), LabError> {
        for index in 0..self.clients.len() {
            self.clients[index].fill().map_err(|error| self.failure(index, &error.to_string()))?;
        }
        for index in 0..self.clients.len() {
            while !self.clients[index].has_filled() {
                if Instant::now() >= deadline {
                    return Err(self.failure(index, "is not loaded in time"));
                }
                self.take_event()?;
            }
            self.clients[index].filled().map_err(|error| self.failure(index, &format!("cannot be loaded: {error}")))?;
        }
        Ok(())
    }

    /// The workload of a server's clients.
    fn workload(&self, index: usize) -> WorkloadOptions {
        let (options, server) = (self.plan.options, &self.plan.emulated.servers[index]);
        WorkloadOptions {
            workload: options.workload,
            keys: self.keys(),
            key_bytes: KEY_BYTES,
            value_bytes: VALUE_BYTES,
            values: options.values,
            seconds: Some(options.seconds as f64),
            threads: options.threads,
            rate_ops_per_s: self.plan.ops_per_s.get(&server.name).copied(),
            seed: self.seed(index),
            ..WorkloadOptions::default()
        }
    }

    fn keys(&self) -> u64 {
        let (options, workload) = (self.plan.options, &self.plan.emulated.workload);
        options.keys.unwrap_or(if options.preloads() { workload.keys_loaded } else { workload.keys_filled })
    }

    /// Servers must not write the same keys in the same order, or they would stall in step.
    fn seed(&self, index: usize) -> u64 {
        self.plan.options.seed.wrapping_add(index as u64)
    }

    fn start(&mut self, index: usize, coordinator: Option<&str>) -> Result<(), LabError> {
        let (plan, name) = (self.plan, &self.plan.emulated.servers[index].name);
        let log = plan.logs.join(format!("{name}.log"));
        let mut arguments = self.arguments(index, coordinator);
        if plan.options.tls {
            arguments.extend(self.identity(index)?);
        }
        let variables = match plan.options.through {
            Through::Inside => Vec::new(),
            // As many threads for clients as the workload inside a server would have.
            Through::Resp { .. } => {
                vec![("ECOTONE_CLIENTS_EVENT_LOOPS", plan.options.foreground_threads().to_string())]
            }
        };
        let program = &plan.options.server_program;
        let process = ServerProcess::start(program, &arguments, &variables, log, index, self.sender.clone())?;
        self.servers.push(Server {
            process,
            ready: None,
            recording: ServerRecording { server: name.clone(), ..Default::default() },
            last_report: Instant::now(),
            strange_lines: 0,
            closed: false,
        });
        Ok(())
    }

    /// Makes the federation with its first server, and before that one runs a token for each other
    /// one: what it joins with.
    fn identity(&mut self, index: usize) -> Result<Vec<OsString>, LabError> {
        if index > 0 {
            // As many as there are others.
            return Ok(self.tokens.pop().map(|token| ["--token".into(), token]).into_iter().flatten().collect());
        }
        let servers = &self.plan.emulated.servers;
        let first = self.plan.stores.join(&servers[0].name);
        let init: [OsString; 5] =
            ["init".into(), "--dir".into(), first.clone().into(), "--name".into(), servers[0].name.clone().into()];
        self.cluster(&init)?;
        for _ in 1..servers.len() {
            let token = self.cluster(&["token".into(), first.clone().into()])?;
            self.tokens.push(token.trim().into());
        }
        Ok(Vec::new())
    }

    /// Carries out `ecotone cluster ...`: what it printed.
    fn cluster(&self, arguments: &[OsString]) -> Result<String, LabError> {
        let failed = |what: String| LabError::Server {
            server: self.plan.emulated.servers[0].name.clone(),
            policy: self.plan.policy.name().to_owned(),
            what: "got no identity".to_owned(),
            log: what,
        };
        let output = Command::new(&self.plan.options.server_program).arg("cluster").args(arguments).output();
        let output = output.map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
        }
    }

    /// The command line of a server.
    fn arguments(&self, index: usize, coordinator: Option<&str>) -> Vec<OsString> {
        let (options, server) = (self.plan.options, &self.plan.emulated.servers[index]);
        let mut arguments: Vec<OsString> = vec!["serve".into()];
        let mut put = |key: &str, value: OsString| arguments.extend([key.into(), value]);
        put("--dir", self.plan.stores.join(&server.name).into());
        let is_inside = options.through == Through::Inside;
        put("--clients", if is_inside { "off" } else { "127.0.0.1:0" }.into());
        // Nobody watches them, and the first of them would take the address of a server beside the
        // lab.
        put("--http", "off".into());
        put("--listen", "127.0.0.1:0".into());
        put("--name", server.name.as_str().into());
        if let Some(address) = coordinator {
            put("--join", address.into());
        }
        put("--policy", self.plan.policy.name().into());
        put("--cores", server.cores.to_string().into());
        put("--core-speed", format!("{:.6}", server.speed).into());
        put("--cgroup", self.cores[index].path.clone().into());
        put("--active-watts", server.active_watts.to_string().into());
        put("--idle-watts", server.idle_watts.to_string().into());
        put("--worker-slots", server.worker_slots.to_string().into());
        let store = &self.plan.emulated.store;
        let options_of_store = match self.plan.separation_min_bytes {
            Some(bytes) => {
                put("--store-option", format!("separation_min_bytes={bytes}").into());
                store.separated().options()
            }
            None => {
                put("--store-option", "separation_min_bytes=off".into());
                store.options()
            }
        };
        for option in options_of_store {
            put("--store-option", option.into());
        }
        if self.plan.policy == PolicyName::LocalSplit {
            put("--store-option", format!("max_subcompactions={}", server.subcompactions).into());
        }
        if is_inside {
            put("--workload", options.workload.name().into());
            put("--keys", self.keys().to_string().into());
            put("--key-bytes", KEY_BYTES.to_string().into());
            put("--value-bytes", VALUE_BYTES.to_string().into());
            put("--values", options.values.to_string().into());
            put("--threads", options.threads.to_string().into());
            if let Some(rate) = self.plan.ops_per_s.get(&server.name) {
                put("--rate", format!("{rate:.1}").into());
            }
            put("--seconds", options.seconds.to_string().into());
            put("--seed", self.seed(index).to_string().into());
        } else {
            // A server with clients takes a share of the host's memory unless told; one with the
            // workload inside has this.
            let memtables = store.memtable_count.map_or(2, u64::from) * store.memtable_bytes.unwrap_or(64 << 20);
            put("--memory-limit", (BLOCK_CACHE_BYTES + memtables).to_string().into());
        }
        arguments.push("--wait-for-start".into());
        arguments.extend(["--records".into(), "-".into()]);
        arguments
    }

    fn wait_until_ready(&mut self, deadline: Instant) -> Result<(), LabError> {
        while let Some(slow) = self.servers.iter().position(|server| server.ready.is_none()) {
            if Instant::now() >= deadline {
                return Err(self.failure(slow, "is not ready in time"));
            }
            self.take_event()?;
        }
        Ok(())
    }

    /// Starts the workload everywhere at once and waits for its end.
    fn work(&mut self, progress: &mut dyn Progress) -> Result<(), LabError> {
        let options = self.plan.options;
        let begin = Instant::now();
        for server in &mut self.servers {
            // A server that does not listen has ended: its `Closed` is on its way.
            server.process.say("start");
            server.last_report = begin;
        }
        for index in 0..self.clients.len() {
            self.clients[index].start().map_err(|error| self.failure(index, &error.to_string()))?;
        }
        let end = begin + Duration::from_secs(options.seconds) + options.patience.final_record;
        let mut steps = colocated_steps(options.seconds, options.colocated).into_iter().skip(1).peekable();
        let mut next_tick = begin + TICK;
        while let Some(slow) = self.servers.iter().position(|server| !server.finished()) {
            let now = Instant::now();
            let silent = |server: &Server| !server.finished() && now - server.last_report > options.patience.silence;
            if let Some(hung) = self.servers.iter().position(silent) {
                let seconds = options.patience.silence.as_secs_f64();
                return Err(self.failure(hung, &format!("hangs: no record for {seconds:.0} s")));
            }
            if now >= end {
                return Err(self.failure(slow, "hangs: its workload is over and there is no final record"));
            }
            self.end_clients()?;
            while let Some((_, threads)) = steps.next_if(|(at_s, _)| (now - begin).as_secs_f64() >= *at_s) {
                if let Some(index) = options.profile.colocated_server() {
                    self.servers[index].process.say(&format!("colocated {threads}"));
                }
            }
            if now >= next_tick {
                next_tick += TICK;
                progress.second(&self.tick((now - begin).as_secs_f64()));
            }
            self.take_event()?;
        }
        Ok(())
    }

    /// Tells the servers whose clients have ended: they then sum up.
    fn end_clients(&mut self) -> Result<(), LabError> {
        for index in 0..self.clients.len() {
            match self.clients[index].ended() {
                Ok(false) => {}
                Ok(true) => {
                    self.servers[index].process.say("stop");
                }
                Err(error) => {
                    // That it has ended, and why, says more than that its clients lost it.
                    self.take_event()?;
                    return Err(self.failure(index, &format!("lost its clients: {error}")));
                }
            }
        }
        Ok(())
    }

    fn tick(&self, elapsed_s: f64) -> Tick {
        let last = |server: &Server| server.recording.samples.last().cloned().unwrap_or_default();
        let jobs = self.servers.iter().flat_map(|server| &server.recording.jobs);
        Tick {
            elapsed_s: elapsed_s.min(self.plan.options.seconds as f64),
            seconds: self.plan.options.seconds,
            ops_per_s: self.servers.iter().map(|server| last(server).ops as f64).sum(),
            l0_tables: self.servers.iter().map(|server| last(server).l0_tables).collect(),
            offloaded: jobs.filter(|job| job.outcome == Outcome::Offloaded).count() as u64,
        }
    }

    /// Stops all servers. The numbers are complete by now, so what goes wrong here is a warning.
    fn stop(&mut self) -> Result<(), LabError> {
        self.stopping = true;
        for server in &mut self.servers {
            server.process.say("stop");
        }
        let deadline = Instant::now() + self.plan.options.patience.stop;
        while self.servers.iter().any(|server| !server.closed) && Instant::now() < deadline {
            self.take_event()?;
        }
        for server in &self.servers {
            let (name, policy) = (&server.recording.server, self.plan.name());
            let (failures, missed) =
                server.recording.sums.as_ref().map_or((0, 0), |sums| (sums.core_failures, sums.missed));
            if missed > 0 {
                self.warnings.push(format!(
                    "server {name} under policy {policy}: {missed} reads found no key; its store did not hold what its \
                     workload reads, and this run is not valid"
                ));
            }
            if failures > 0 {
                self.warnings.push(format!(
                    "server {name} under policy {policy}: {failures} times a thread did not get its emulated core; \
                     this run is not valid"
                ));
            }
        }
        let sums = self.servers.iter().filter_map(|server| server.recording.sums.as_ref());
        let sources = energy_sources(sums.map(|sums| sums.energy_source.as_str()));
        if sources.contains(',') {
            self.warnings.push(format!(
                "policy {}: servers take their joules from different sources ({sources}); do not compare or add them",
                self.plan.name()
            ));
        }
        for server in &mut self.servers {
            let what = match (server.closed, server.process.end()) {
                (true, Some(status)) if status.success() => continue,
                (_, Some(status)) => format!("ended with {status} after `stop`"),
                (_, None) => "did not end after `stop` and was killed".to_owned(),
            };
            let (name, log) = (&server.recording.server, server.process.log_tail());
            self.warnings.push(format!("server {name} under policy {}: {what}; {log}", self.plan.name()));
        }
        Ok(())
    }

    /// Waits a moment for an event and takes it in.
    fn take_event(&mut self) -> Result<(), LabError> {
        if self.interruption.wanted() {
            return Err(LabError::Interrupted);
        }
        let look_around = if self.clients.is_empty() { LOOK_AROUND } else { LOOK_AT_CLIENTS };
        let (index, event) = match self.events.recv_timeout(look_around) {
            Ok(event) => event,
            // Never disconnected: `self.sender` lives.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let server = &mut self.servers[index];
        server.last_report = Instant::now();
        match event {
            Event::Record(record) => match *record {
                Record::Ready(ready) if ready.server != server.recording.server => {
                    let what = format!("calls itself {}", ready.server);
                    return Err(self.failure(index, &what));
                }
                Record::Ready(ready) => server.ready = Some(ready),
                // What is done for others after the workload is no part of the measurement.
                _ if server.finished() => {}
                Record::Final(sums) if index < self.clients.len() => {
                    let (sums, warning) = self.clients[index].complete(sums);
                    let (name, policy) = (&server.recording.server, self.plan.name());
                    self.warnings
                        .extend(warning.map(|warning| format!("server {name} under policy {policy}: {warning}")));
                    server.recording.add(Record::Final(sums));
                }
                Record::Sample(sample) if index < self.clients.len() => {
                    server.recording.add(Record::Sample(self.clients[index].complete_second(sample)));
                }
                record => server.recording.add(record),
            },
            Event::Line(line) => {
                server.strange_lines += 1;
                let (count, name) = (server.strange_lines, &server.recording.server);
                if count == 1 {
                    let policy = self.plan.name();
                    self.warnings
                        .push(format!("server {name} under policy {policy} printed a line that is no record: {line}"));
                } else if count > MAX_STRANGE_LINES {
                    return Err(
                        self.failure(index, &format!("printed {count} lines that are no records, the last one {line}"))
                    );
                }
            }
            Event::Closed => {
                server.closed = true;
                if !self.stopping {
                    let when = match (&server.ready, server.finished()) {
                        (None, _) => "before it was ready",
                        (_, false) => "during the run",
                        (_, true) => "before it was told to",
                    };
                    let how = server
                        .process
                        .end()
                        .map_or_else(|| "closed its output".to_owned(), |status| format!("ended ({status})"));
                    return Err(self.failure(index, &format!("{how} {when}")));
                }
            }
        }
        Ok(())
    }

    fn failure(&self, index: usize, what: &str) -> LabError {
        let server = &self.servers[index];
        LabError::Server {
            server: server.recording.server.clone(),
            policy: self.plan.name(),
            what: what.to_owned(),
            log: server.process.log_tail(),
        }
    }
}
