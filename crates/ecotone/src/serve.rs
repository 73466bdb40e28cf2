//! `ecotone serve`: one server, with a workload inside it where one is asked for.
//!
//! There is no client protocol yet: as `db_bench` in the papers, the driver runs in the server's process. Under the lab the
//! server speaks [records](ecotone_server::record) on standard output and listens for `start`, `colocated N` and `stop` on standard input.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use ecotone_bench::driver::{Driver, Outcome, Running};
use ecotone_bench::measure::ProcessUsage;
use ecotone_bench::target::EngineTarget;
use ecotone_bench::workload::{OperationKind, Preload, Workload, WorkloadOptions};
use ecotone_engine::DEFAULT_SEPARATION_BYTES;
use ecotone_policy::ids::ServerId;
use ecotone_policy::policy::PolicyName;
use ecotone_server::record::{Final, Latency, Ready, Record};
use ecotone_server::{
    Daemon, EmulatedCores, Progress, RecordSink, ServeOptions, Sums, set_store_option, store_options,
};

use crate::allocator;

/// How often the server looks whether its workload has ended.
const LOOK: Duration = Duration::from_millis(50);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the store, made if it is not there
    #[arg(long)]
    dir: PathBuf,
    /// Address to listen on for other servers; port 0 takes any free one
    #[arg(long, default_value = "127.0.0.1:7411")]
    listen: SocketAddr,
    /// Address under which other servers reach this one, if not the one it listens on
    #[arg(long)]
    advertise: Option<String>,
    /// Coordinator to join (host:port); without it this server coordinates
    #[arg(long)]
    join: Option<String>,
    /// Name of this server, unique in its federation [default: the address that others reach it under]
    #[arg(long)]
    name: Option<String>,
    /// Where compactions run: local, local-split, edgepilot, eco, eco-gate or eco-target
    #[arg(long, default_value = "eco")]
    policy: String,
    /// Cores that this server may use [default: all of this machine]
    #[arg(long)]
    cores: Option<u32>,
    /// Jobs of other servers at a time [default: a quarter of the cores, at least one]
    #[arg(long)]
    worker_slots: Option<u32>,
    /// Watts of one busy core above idle, for the energy model
    #[arg(long, default_value_t = 10.0)]
    active_watts: f64,
    /// Watts of the idle server, for the energy model
    #[arg(long, default_value_t = 5.0)]
    idle_watts: f64,
    /// Bandwidth to other servers each way, in bytes per second
    #[arg(long, default_value_t = 1.25e9)]
    network_bytes_per_s: f64,
    /// When a write is acknowledged: none, everysec or always [default: everysec]
    #[arg(long)]
    durability: Option<String>,
    /// Memory for block cache and memtables of this process, in bytes
    #[arg(long)]
    memory_limit: Option<u64>,
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
    /// Print records as JSON lines: `-` for standard output
    #[arg(long, value_name = "FILE", help_heading = "Lab")]
    records: Option<PathBuf>,
    /// Begin the workload when the line `start` comes on standard input, end at `stop`
    #[arg(long, requires = "workload", help_heading = "Lab")]
    wait_for_start: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let workload = arguments.workload()?;
    let sink = arguments.record_sink()?;
    let tell = |record: Record| {
        if let Some(sink) = &sink {
            sink(record);
        }
    };
    let options = arguments.serve_options()?;
    let name = options.name.as_str().to_owned();
    let lines = arguments.wait_for_start.then(read_lines);
    let stop_signal = stop_signal()?;
    let daemon = Daemon::start(options, sink.clone())?;
    if let Some(workload) = &workload {
        load(&daemon, workload)?;
    }
    tell(Record::Ready(Ready { server: name.clone(), listen: daemon.address().to_owned() }));
    if let Some(lines) = &lines
        && !wait_for(lines, &daemon, "start")?
    {
        return daemon.stop().context("stopping before the workload began");
    }
    if let Some(workload) = workload {
        let (done, sums) = drive(&daemon, workload, lines.as_ref(), &stop_signal)?;
        tell(Record::Final(final_record(name, sums, &done)));
        if sink.is_none() {
            println!("the workload is done; the server goes on until it gets SIGTERM or SIGINT");
        }
    }
    match lines {
        Some(lines) => {
            wait_for(&lines, &daemon, "stop")?;
        }
        None => {
            let _ = stop_signal.recv();
        }
    }
    daemon.stop().context("stopping")
}

fn store_option_help() -> String {
    format!(
        "Further options of the store, as name=value; a wrong name lists all. profile=small-device keeps the process below 128 MiB; \
         separation_min_bytes: values of at least so many bytes are kept apart from their keys, in the value log \
         (default {DEFAULT_SEPARATION_BYTES}; off: none)"
    )
}

impl Arguments {
    fn workload(&self) -> Result<Option<WorkloadOptions>> {
        let Some(name) = &self.workload else { return Ok(None) };
        let options = WorkloadOptions {
            workload: name.parse::<Workload>()?,
            keys: self.keys,
            key_bytes: self.key_bytes,
            value_bytes: self.value_bytes,
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
            // A reader that is gone ends the run with `stop` or the end of input; nothing is to be done here.
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        })))
    }

    fn serve_options(&self) -> Result<ServeOptions> {
        let (mut store, profile) = store_options(&self.store_options)?;
        allocator::suit(profile);
        let asked = |name: &str| self.store_options.iter().any(|one| one.split('=').next() == Some(name));
        // What was asked for wins over the policy, also where it is RocksDB's default.
        let max_subcompactions = asked("max_subcompactions").then_some(store.max_subcompactions);
        if let Some(durability) = &self.durability {
            set_store_option(&mut store, &format!("durability={durability}"))?;
        }
        if let Some(bytes) = self.memory_limit {
            set_store_option(&mut store, &format!("memory_limit_bytes={bytes}"))?;
        }
        let cores = match self.cores {
            Some(cores) => cores,
            None => ecotone_power::host_cores()?.floor().max(1.0) as u32,
        };
        let emulated = match (&self.cgroup, self.core_speed) {
            (Some(cgroup), Some(speed)) => Some(EmulatedCores { cgroup: cgroup.clone(), speed }),
            _ => None,
        };
        let address = self.advertise.clone().unwrap_or_else(|| self.listen.to_string());
        let name = self.name.clone().unwrap_or(address);
        Ok(ServeOptions {
            directory: self.dir.clone(),
            listen: self.listen,
            advertise: self.advertise.clone(),
            join: self.join.clone(),
            name: ServerId::new(name).context("--name")?,
            policy: self.policy.parse::<PolicyName>().context("--policy")?,
            cores,
            emulated,
            active_watts: self.active_watts,
            idle_watts: self.idle_watts,
            worker_slots: self.worker_slots,
            network_bytes_per_s: self.network_bytes_per_s,
            max_subcompactions,
            store,
        })
    }
}

/// Fills the store before workloads that read what they did not write: with the keys that they read.
fn load(daemon: &Daemon, workload: &WorkloadOptions) -> Result<()> {
    let target = Arc::new(EngineTarget::of(daemon.store().clone()));
    Driver::fill(target, workload.clone(), Some(daemon.duties())).context("filling the store")?;
    Ok(())
}

fn drive(
    daemon: &Daemon,
    mut workload: WorkloadOptions,
    lines: Option<&Receiver<String>>,
    stop: &Receiver<()>,
) -> Result<(Outcome, Sums)> {
    workload.preload = Preload::Existing;
    let target = Arc::new(EngineTarget::of(daemon.store().clone()));
    // The mutex is for sharing only: the monitor looks once a second.
    let running = Arc::new(Mutex::new(Driver::start(target, workload, Some(daemon.duties()))?));
    let watched = Arc::downgrade(&running);
    daemon.begin_workload(move || watched.upgrade().map(|running| progress(&lock(&running))).unwrap_or_default());
    while !lock(&running).is_finished() {
        match lines {
            Some(lines) => match lines.recv_timeout(LOOK) {
                Ok(line) => obey(daemon, &line, &lock(&running))?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    lock(&running).stop();
                    std::thread::sleep(LOOK);
                }
            },
            None => {
                if stop.recv_timeout(LOOK).is_ok() {
                    lock(&running).stop();
                }
            }
        }
    }
    let sums = daemon.sums();
    let mut running = running;
    // The monitor holds it only for the moment of a sample.
    let running = loop {
        match Arc::try_unwrap(running) {
            Ok(running) => break running.into_inner().unwrap_or_else(PoisonError::into_inner),
            Err(shared) => running = shared,
        }
        std::thread::yield_now();
    };
    Ok((running.join().context("the workload failed")?, sums))
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
        _ => tracing::warn!(line, "unknown line on standard input; known are start, stop and colocated N"),
    }
    Ok(())
}

/// Waits for `word`, obeying `colocated N` meanwhile. False at `stop` (when another word is waited for) and at the end of input.
fn wait_for(lines: &Receiver<String>, daemon: &Daemon, word: &str) -> Result<bool> {
    while let Ok(line) = lines.recv() {
        match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            [said] if said == word => return Ok(true),
            ["stop"] => return Ok(false),
            ["colocated", count] => {
                daemon.set_colocated(count.parse().with_context(|| format!("colocated {count:?}"))?)?;
            }
            _ => {}
        }
    }
    Ok(false)
}

fn read_lines() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Receives once when the process is told to end.
fn stop_signal() -> Result<Receiver<()>> {
    let (sender, receiver) = channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("ecotone-signals".into()).spawn(move || {
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut terminate), Ok(mut interrupt)) =
                (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
            else {
                return;
            };
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                let _ = sender.send(());
            }
        });
    })?;
    Ok(receiver)
}

fn final_record(server: String, sums: Sums, done: &Outcome) -> Final {
    let latency_us = OperationKind::ALL.into_iter().filter_map(|kind| {
        let summary = done.latency_us(kind)?;
        let latency = Latency { p50: summary.p50, p99: summary.p99, p999: summary.p999, max: summary.max };
        Some((kind.name().to_owned(), latency))
    });
    Final {
        server,
        ops: done.counts.total(),
        reads: done.counts.reads(),
        writes: done.counts.writes(),
        missed: done.missed,
        seconds: done.seconds,
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
        latency_us: latency_us.collect(),
        bytes_user: done.bytes_user,
        bytes_device: done.usage_at_begin.bytes_device_until(&ProcessUsage::now(), done.bytes_user).ok(),
        l0_max: sums.l0_tables_max,
        core_failures: sums.core_failures,
    }
}
