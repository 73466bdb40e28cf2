//! What slow cores for background work save: a primary with two replicas in each mode of
//! `power.mode`, on emulated cores whose quotas follow the P-states of *Concerto*'s Xeon.
//!
//! For each workload the federation's peak is measured in each mode, then the same load, a share of
//! the peak in `all-high`, is offered in each mode, and joules of all three servers are counted until
//! background work has settled. Servers change the speed of their cores themselves: what is measured
//! is the power manager of a running server, by its own model.
//!
//! Beside it: reads at replicas whose event loops are put on slow cores, as they would run there
//! without roles; and the same writes to three servers without copies that each compact, and to one
//! ([`compare`]).
//!
//! Failure: as in the measurement of copies; without the right to make cgroups it does not begin.

mod compare;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ecotone_bench::driver::{Driver, Running};
use ecotone_bench::target::resp::{Reply, RespTarget, ServerInfo};
use ecotone_bench::workload::{Preload, Workload, WorkloadOptions};
use ecotone_energy::PStateTable;
use ecotone_policy::power::{PowerMode, Role};
use ecotone_types::{CoreClass, Duty};

pub use compare::{Comparison, Side};
pub use report::{ConcertoReport, ModeRun, Summary, html, text};

use super::super::ClusterOptions;
use super::super::DISK;
use super::super::report::Times;
use super::super::servers::{Scene, Server};
use super::load::{begin, end, failed, settled_for};
use super::places::Places;
use super::{CopiesOptions, Measurement, SERVERS, SERVERS_SHARE};
use crate::error::LabError;
use crate::locked_directory::LockedDirectory;
use crate::process::Interruption;
use crate::scaling::Host;

/// Connections to the primary.
const CLIENTS: u32 = 16;
const KEY_BYTES: u32 = 16;
/// Values of YCSB: ten fields of 100 bytes.
const YCSB_VALUE_BYTES: u32 = 1000;
/// The peak and reads at replicas are measured for so much of a run.
const SHORT_PART: f64 = 3.0;
/// A change of the mode is in force sooner: servers ask once a second which one it is.
const MODE_LIMIT: Duration = Duration::from_secs(30);
const MODE_LOOK: Duration = Duration::from_millis(50);
/// A server that has done nothing for this part of a run has settled, and after at most
/// [`MAX_QUIET`].
const QUIET_PART: f64 = 0.15;
const MAX_QUIET: Duration = Duration::from_secs(3);
/// A replica that answers no reader by then sends readers to the primary.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
/// Threads that answer clients.
const EVENT_LOOPS: &str = "ecotone-loop";
/// The slowest core of a table has more than the least that a quota can give by this factor.
const SPEED_RESERVE: f64 = 1.1;
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
const PROBE_MS: u64 = 5_000;
/// Keys that are read at replicas, and requests under way.
const READ_KEYS: u32 = 64;
const READS_AT_ONCE: u32 = 16;
/// The most cores of a server: each is a cgroup, and the host has to carry them.
const MAX_CORES: u32 = 16;

/// A workload, as it is called on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// `set`, `get`, `ycsb-a` to `ycsb-f`.
    pub name: &'static str,
    workload: Workload,
    writes: bool,
}

impl Load {
    /// Every workload.
    pub const ALL: [Load; 8] = [
        Load { name: "set", workload: Workload::Overwrite, writes: true },
        Load { name: "get", workload: Workload::ReadRandom, writes: false },
        Load { name: "ycsb-a", workload: Workload::YcsbA, writes: true },
        Load { name: "ycsb-b", workload: Workload::YcsbB, writes: true },
        Load { name: "ycsb-c", workload: Workload::YcsbC, writes: false },
        Load { name: "ycsb-d", workload: Workload::YcsbD, writes: true },
        Load { name: "ycsb-e", workload: Workload::YcsbE, writes: true },
        Load { name: "ycsb-f", workload: Workload::YcsbF, writes: true },
    ];

    fn is_ycsb(self) -> bool {
        self.name.starts_with("ycsb")
    }

    /// What it reads.
    fn keys(self) -> Keys {
        match self.workload {
            // As YCSB's own client of Redis scans: through a sorted set of all keys.
            Workload::YcsbE => Keys::Indexed,
            _ if self.is_ycsb() => Keys::Scattered,
            _ => Keys::InOrder,
        }
    }
}

/// The keys that a store was filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    /// Those of db_bench's workloads.
    InOrder,
    /// Those of YCSB's.
    Scattered,
    /// The same, each of them also in a sorted set.
    Indexed,
}

impl Keys {
    /// Whether a store with these has what a workload with `wanted` reads.
    fn serve(self, wanted: Keys) -> bool {
        self == wanted || self == Keys::Indexed && wanted == Keys::Scattered
    }
}

impl std::str::FromStr for Load {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Load, LabError> {
        let found = Load::ALL.into_iter().find(|load| load.name == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Load::ALL.iter().map(|load| load.name).collect();
            LabError::option("--only", format!("there is no workload `{text}`; there are {}", names.join(", ")))
        })
    }
}

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct ConcertoOptions {
    /// The workloads.
    pub loads: Vec<Load>,
    /// The modes, in this order. What is offered in all of them is a share of the first one's peak.
    pub modes: Vec<PowerMode>,
    /// Whether copies are compared with three servers that each compact, and with one.
    pub compares: bool,
    /// A file with the frequencies of emulated cores ([`PStateTable::parse`]); none: the paper's.
    pub p_states: Option<PathBuf>,
    /// Bytes of values of SET and GET.
    pub values: Vec<u32>,
    /// Length of each run whose joules are counted.
    pub seconds: u32,
    /// Keys of the store.
    pub keys: u32,
    /// Emulated cores of each server.
    pub cores: u32,
    /// The load that is offered, as a share of the peak in the first mode.
    pub load: f64,
    /// Where servers' folders lie; none: `/var/tmp`.
    pub stores: Option<PathBuf>,
    /// The program that is started as `PROGRAM serve ...`.
    pub server_program: PathBuf,
    /// How long anything may take.
    pub patience: Duration,
}

impl ConcertoOptions {
    /// All workloads, within some forty minutes; servers are this program.
    ///
    /// # Errors
    /// [`LabError::Io`] if the running program's path cannot be found.
    pub fn new() -> Result<Self, LabError> {
        Ok(ConcertoOptions {
            loads: Load::ALL.to_vec(),
            modes: PowerMode::ALL.to_vec(),
            compares: true,
            p_states: None,
            values: vec![256, 512, 1024, 2048],
            seconds: 20,
            keys: 50_000,
            cores: 3,
            load: 0.7,
            stores: None,
            server_program: std::env::current_exe().map_err(LabError::io("cannot find the running program", "."))?,
            patience: Duration::from_secs(60),
        })
    }

    /// Checks what can be known before anything is started.
    ///
    /// # Errors
    /// [`LabError::Option`] that names the option.
    pub fn check(&self) -> Result<(), LabError> {
        let numbers = [("--seconds", self.seconds), ("--keys", self.keys)];
        if let Some((option, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return Err(LabError::option(option, "must be at least 1"));
        }
        if self.loads.is_empty() && !self.compares {
            return Err(LabError::option("--only", "name at least one workload"));
        }
        if self.values.is_empty() || self.values.contains(&0) {
            return Err(LabError::option("--values", "must be at least 1 byte"));
        }
        if self.modes.is_empty() {
            return Err(LabError::option("--modes", "name at least one mode"));
        }
        self.table()?;
        if !(2..=MAX_CORES).contains(&self.cores) {
            return Err(LabError::option("--cores", format!("must be from 2 to {MAX_CORES}: one fast, one slow")));
        }
        if !(self.load > 0.0 && self.load <= 1.0) {
            return Err(LabError::option("--load", "must be above 0 and at most 1"));
        }
        Ok(())
    }

    /// The frequencies of emulated cores.
    ///
    /// # Errors
    /// [`LabError::Option`] that says what is wrong with the file.
    fn table(&self) -> Result<PStateTable, LabError> {
        let Some(path) = &self.p_states else { return Ok(PStateTable::xeon_silver_4114()) };
        let wrong = |why: String| LabError::option("--p-states", format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let table = PStateTable::parse(&text).map_err(|error| wrong(error.to_string()))?;
        if least_speed(&table) > 1.0 {
            let (low, high) = (table.frequency(table.lowest()).0 / 1e6, table.frequency(0).0 / 1e6);
            return Err(wrong(format!(
                "{low} MHz is too small a part of {high} MHz: quotas cannot give a core so little"
            )));
        }
        Ok(table)
    }

    /// A store of a short run need not rest for long until it has settled.
    fn quiet(&self) -> Duration {
        MAX_QUIET.min(Duration::from_secs_f64(f64::from(self.seconds) * QUIET_PART))
    }

    /// Workloads with the length of their values; those with one length together.
    fn runs(&self) -> Vec<(Load, u32)> {
        let plain = self.values.iter().flat_map(|bytes| {
            let plain = self.loads.iter().filter(|load| !load.is_ycsb());
            plain.map(|load| (*load, *bytes))
        });
        let ycsb = self.loads.iter().filter(|load| load.is_ycsb()).map(|load| (*load, YCSB_VALUE_BYTES));
        plain.chain(ycsb).collect()
    }
}

/// The speed that a core needs at its highest frequency, so that a quota can give the lowest.
fn least_speed(table: &PStateTable) -> f64 {
    crate::scaling::MIN_SPEED * SPEED_RESERVE / table.relative_speed(table.lowest())
}

/// What all servers have used so far.
#[derive(Clone, Debug, Default)]
struct Used {
    joules: f64,
    by_duty: BTreeMap<String, f64>,
}

impl Used {
    fn since(&self, earlier: &Used) -> Used {
        let less = |(duty, joules): (&String, &f64)| {
            (duty.clone(), joules - earlier.by_duty.get(duty).copied().unwrap_or_default())
        };
        Used { joules: self.joules - earlier.joules, by_duty: self.by_duty.iter().map(less).collect() }
    }
}

fn used<'s>(servers: impl IntoIterator<Item = &'s Server>) -> Result<Used, LabError> {
    let mut sum = Used::default();
    for server in servers {
        let info = ServerInfo::parse(&server.text(&["INFO", "energy"])?);
        let number = |field: &str| info.number(field);
        let missing = |field: &str| server.failure(&format!("does not say its {field}"));
        sum.joules += number("energy_joules_total").ok_or_else(|| missing("joules"))?;
        for duty in Duty::ALL.iter().map(|duty| duty.name()).chain(["idle", "unattributed"]) {
            *sum.by_duty.entry(duty.to_owned()).or_default() +=
                number(&format!("energy_joules_{duty}")).ok_or_else(|| missing(duty))?;
        }
    }
    Ok(sum)
}

/// What cores of a class run at on a server, in MHz.
fn frequency(server: &Server, class: CoreClass) -> Result<Option<f64>, LabError> {
    let info = ServerInfo::parse(&server.text(&["INFO", "energy"])?);
    let domains = (0..).map_while(|number| info.text(&format!("domain{number}")));
    let of_class = domains.filter_map(|domain| {
        let field = |name: &str| domain.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        (field("class") == Some(class.name())).then(|| field("hz")?.parse::<f64>().ok()).flatten()
    });
    let all: Vec<f64> = of_class.collect();
    if info.text("domain0").is_none() {
        // Nothing is governed: all run at the highest one.
        return Ok(info.number("frequency_hz").map(|hertz| hertz / 1e6));
    }
    Ok((!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64 / 1e6))
}

impl Measurement<'_> {
    fn at_primary(&self) -> Result<&Server, LabError> {
        let (_, shard) = self.in_sync(SERVERS, None)?;
        self.server(&shard.primary)
    }

    /// Sets the mode, and waits until it is in force everywhere.
    fn mode(&self, mode: PowerMode) -> Result<(), LabError> {
        self.set("power.mode", mode.name())?;
        let until = Instant::now() + MODE_LIMIT;
        for server in &self.federation.servers {
            loop {
                let info = ServerInfo::parse(&server.text(&["INFO", "energy"])?);
                if info.text("power_mode") == Some(mode.name()) {
                    break;
                }
                if Instant::now() >= until {
                    return Err(server.failure(&format!("does not take up the mode {mode}")));
                }
                self.scene.rest(MODE_LOOK)?;
            }
        }
        Ok(())
    }

    /// Fills the store with the keys that a workload reads.
    fn fill_with(&self, workload: &WorkloadOptions, keys: Keys, quiet: Duration) -> Result<(), LabError> {
        let primary = self.at_primary()?;
        if keys == Keys::InOrder {
            let fill = WorkloadOptions { workload: Workload::FillSeq, threads: 1, ..workload.clone() };
            end(&self.scene, primary, begin(primary, fill)?)?;
            return settled_for(primary, quiet);
        }
        let target = Arc::new(open(primary, keys)?.with_quiet(quiet));
        let fill = WorkloadOptions { preload: Preload::Automatic, ..workload.clone() };
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let of_thread = stop.clone();
            let filling = scope.spawn(move || Driver::fill(target, fill, None, of_thread));
            let mut rested = Ok(());
            while rested.is_ok() && !filling.is_finished() {
                rested = self.scene.rest(Duration::from_millis(20));
            }
            stop.store(true, Ordering::SeqCst);
            let filled = filling.join().map_err(|_| self.failure("filling the store has panicked".to_owned()))?;
            rested?;
            filled.map(|_| ()).map_err(failed(primary))
        })
    }

    /// The frequency of each duty's cores, in MHz.
    fn frequencies(&self, mode: PowerMode) -> Result<BTreeMap<String, f64>, LabError> {
        let server = self.at_primary()?;
        let (fast, slow) = (frequency(server, CoreClass::Fast)?, frequency(server, CoreClass::Slow)?);
        let of = |duty: Duty| match mode.class(Role::of(duty.into())) {
            CoreClass::Fast => fast.or(slow),
            CoreClass::Slow => slow.or(fast),
        };
        Ok(Duty::ALL.into_iter().filter_map(|duty| Some((duty.name().to_owned(), of(duty)?))).collect())
    }

    /// Operations a second at saturation.
    fn peak_of(&self, workload: WorkloadOptions, keys: Keys) -> Result<f64, LabError> {
        let primary = self.at_primary()?;
        let running = begin_with(primary, workload, keys)?;
        while !running.is_finished() {
            self.scene.rest(Duration::from_millis(20))?;
        }
        let outcome = running.join().map_err(failed(primary))?;
        Ok(outcome.counts.total() as f64 / outcome.seconds)
    }

    /// The same reads with the event loops of replicas on slow cores; none where no core is slow.
    fn unseparated_reads(&self, value_bytes: u32, seconds: f64) -> Result<Option<f64>, LabError> {
        let (_, shard) = self.in_sync(SERVERS, None)?;
        let mut moved: Vec<(&str, Vec<_>)> = Vec::new();
        let mut outcome = Ok(());
        for (name, _) in shard.copies.iter().filter(|copy| copy.0 != shard.primary) {
            let process = self.server(name)?.id();
            match self.places.move_to_slow_cores(name, process, EVENT_LOOPS) {
                Ok(threads) => moved.push((name, threads)),
                Err(error) => outcome = Err(error),
            }
        }
        let is_moved = outcome.is_ok() && moved.iter().all(|of| !of.1.is_empty());
        let reads = if is_moved { self.replica_reads(value_bytes, seconds) } else { Ok(None) };
        moved.iter().for_each(|(name, threads)| self.places.move_back(name, threads));
        outcome.and(reads)
    }

    /// From the acknowledgement of a write until both replicas have it, while a load runs.
    fn probe(&self, running: &ecotone_bench::driver::Running) -> Result<Vec<f64>, LabError> {
        let primary = self.at_primary()?;
        let mut client = primary.connect()?;
        let (replicas, wait) = ((SERVERS - 1).to_string(), PROBE_MS.to_string());
        let mut times = Vec::new();
        while !running.is_finished() {
            client.queue(&[b"SET", b"lab:probe", b"1"]);
            client.queue(&[b"WAIT", replicas.as_bytes(), wait.as_bytes()]);
            let lost = |error| primary.failure(&format!("does not answer a probe: {error}"));
            client.send().map_err(lost)?;
            match client.receive().map_err(lost)? {
                Reply::Status(said) if said == "OK" => {}
                other => return Err(primary.failure(&format!("answers a probe by {other:?}"))),
            }
            let written = Instant::now();
            let held = client.receive().map_err(lost)?;
            let waited = written.elapsed().as_secs_f64() * 1e3;
            let all = matches!(held, Reply::Integer(held) if held >= SERVERS as i64 - 1);
            times.push(if all { waited } else { waited.max(PROBE_MS as f64) });
            self.scene.rest(PROBE_INTERVAL)?;
        }
        Ok(times)
    }

    /// Reads a second that both replicas answer; none where they send readers to the primary.
    fn replica_reads(&self, value_bytes: u32, seconds: f64) -> Result<Option<f64>, LabError> {
        let (_, shard) = self.in_sync(SERVERS, None)?;
        let primary = self.server(&shard.primary)?;
        let key = |number: u32| format!("lab:read:{number}");
        let value = vec![b'v'; value_bytes as usize];
        let mut client = primary.connect()?;
        for number in 0..READ_KEYS {
            let answer = client.ask(&[b"SET", key(number).as_bytes(), &value]);
            answer.map_err(|error| primary.failure(&format!("does not take a value to read: {error}")))?;
        }
        self.in_sync(SERVERS, None)?;
        let replicas = shard.copies.iter().filter(|copy| copy.0 != shard.primary);
        let mut clients = Vec::new();
        for replica in replicas {
            clients.push(self.server(&replica.0)?.connect()?);
        }
        // A copy is opened when somebody reads there, and answers once it is.
        let opened_by = Instant::now() + OPENING_LIMIT;
        for client in &mut clients {
            let lost = |error| self.failure(format!("a replica does not answer: {error}"));
            client.ask(&[b"READONLY"]).map_err(lost)?;
            while !matches!(client.ask(&[b"GET", key(0).as_bytes()]).map_err(lost)?, Reply::Bulk(Some(_))) {
                if Instant::now() >= opened_by {
                    return Ok(None);
                }
                self.scene.rest(MODE_LOOK)?;
            }
        }
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        let read = |mut client: ecotone_bench::target::resp::Client| -> u64 {
            let mut served = 0;
            while Instant::now() < until {
                (0..READS_AT_ONCE).for_each(|number| client.queue(&[b"GET", key(number % READ_KEYS).as_bytes()]));
                if client.send().is_err() {
                    return served;
                }
                for _ in 0..READS_AT_ONCE {
                    match client.receive() {
                        Ok(Reply::Bulk(Some(_))) => served += 1,
                        // MOVED: it serves no reads.
                        Ok(_) => {}
                        Err(_) => return served,
                    }
                }
            }
            served
        };
        let served: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || read(client))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
        });
        Ok((served > 0).then(|| served as f64 / seconds))
    }
}

/// Measures the modes on this machine; `say` is called with what is being done.
///
/// It takes over Ctrl-C while it runs, so that nothing is left behind: one lab of a process at a
/// time.
///
/// # Errors
/// See [`LabError`]; nothing the lab made is left behind.
pub fn run_concerto_lab(options: &ConcertoOptions, say: &mut dyn FnMut(&str)) -> Result<ConcertoReport, LabError> {
    options.check()?;
    let interruption = Interruption::listen();
    let beneath = options.stores.clone().unwrap_or_else(|| DISK.into());
    let folder = LockedDirectory::make_in(&beneath).map_err(LabError::io("cannot make a directory in", &beneath))?;
    let (host, table) = (Host::here(), options.table()?);
    // Each server has its cores, and one more for threads without one.
    let speed = host.cores * SERVERS_SHARE / SERVERS as f64 / f64::from(options.cores + 1);
    let speed = speed.clamp(least_speed(&table), 1.0);
    let places = Places::emulate(options.cores, speed, options.p_states.clone())?;
    let cluster = ClusterOptions {
        server_program: options.server_program.clone(),
        patience: options.patience,
        ..ClusterOptions::new()?
    };
    let copies = CopiesOptions { keys: options.keys, seconds: options.seconds, ..CopiesOptions::new()? };
    let mut scene =
        Scene { options: &cluster, folder: folder.path(), interruption: &interruption, say, places: Some(&places) };
    let federation = scene.federation("concerto", SERVERS, false)?;
    let mut measurement = Measurement { options: &copies, places: &places, scene, federation, peak: None };
    measurement.set("replication.copies", &SERVERS.to_string())?;
    // As Redis does: a write is acknowledged by the primary.
    measurement.set("replication.level", "one")?;
    let leader = measurement.federation.settled(&measurement.scene)?;
    measurement.federation.servers[leader].json(&["FEDERATION", "CREATE", "1"])?;
    measurement.in_sync(SERVERS, None)?;
    let mut report = ConcertoReport::of(host, options, speed, &table);
    let mut filled: Option<(u32, Keys)> = None;
    for (load, value_bytes) in options.runs() {
        let workload = workload_of(options, load.workload, value_bytes);
        let keys = load.keys();
        if !filled.is_some_and(|(bytes, with)| bytes == value_bytes && with.serve(keys)) {
            (measurement.scene.say)(&format!("filling the store with values of {value_bytes} bytes"));
            measurement.mode(PowerMode::AllHigh)?;
            measurement.fill_with(&workload, keys, options.quiet())?;
            filled = Some((value_bytes, keys));
        }
        let mut first_peak = None;
        for mode in &options.modes {
            (measurement.scene.say)(&format!("{} of {value_bytes} bytes, {mode}", load.name));
            measurement.mode(*mode)?;
            let run = measure(&mut measurement, options, (load, value_bytes), *mode, &workload, first_peak)?;
            first_peak.get_or_insert(run.peak_ops_per_s);
            report.modes.push(run);
        }
    }
    read_replicas(&mut measurement, options, &mut report.modes)?;
    if options.compares {
        report.comparison = Some(compare::run(&mut measurement, options)?);
    }
    measurement.mode(PowerMode::AllHigh)?;
    report.finish();
    Ok(report)
}

/// Reads at replicas, of all workloads that only read. Last: a replica that is read catches up for a
/// while afterwards, which belongs to no other run's joules.
fn read_replicas(
    measurement: &mut Measurement<'_>,
    options: &ConcertoOptions,
    runs: &mut [ModeRun],
) -> Result<(), LabError> {
    let short = short_part(options);
    let reads = |run: &ModeRun| Load::ALL.iter().any(|load| load.name == run.workload && !load.writes);
    for mode in &options.modes {
        let mut of_mode = runs.iter_mut().filter(|run| run.mode == mode.name() && reads(run)).peekable();
        if of_mode.peek().is_none() {
            continue;
        }
        (measurement.scene.say)(&format!("reads at replicas, {mode}"));
        measurement.mode(*mode)?;
        for run in of_mode {
            run.replica_reads_per_s = measurement.replica_reads(run.value_bytes, short)?;
            if *mode == PowerMode::Concerto {
                run.replica_reads_unseparated_per_s = measurement.unseparated_reads(run.value_bytes, short)?;
            }
        }
    }
    Ok(())
}

/// How long peaks and reads at replicas are measured, in seconds.
fn short_part(options: &ConcertoOptions) -> f64 {
    (f64::from(options.seconds) / SHORT_PART).max(1.0)
}

fn workload_of(options: &ConcertoOptions, workload: Workload, value_bytes: u32) -> WorkloadOptions {
    WorkloadOptions {
        workload,
        keys: options.keys.into(),
        key_bytes: KEY_BYTES,
        value_bytes,
        threads: CLIENTS,
        preload: Preload::Existing,
        ..WorkloadOptions::default()
    }
}

/// How a load with these keys reaches a server.
fn open(server: &Server, keys: Keys) -> Result<RespTarget, LabError> {
    let opened = match keys {
        Keys::Indexed => RespTarget::open_indexed(&server.as_target(1)),
        _ => RespTarget::open(&server.as_target(1)),
    };
    opened.map_err(failed(server))
}

fn begin_with(server: &Server, workload: WorkloadOptions, keys: Keys) -> Result<Running, LabError> {
    if keys != Keys::Indexed {
        return begin(server, workload);
    }
    Driver::start(Arc::new(open(server, keys)?), workload, None).map_err(failed(server))
}

fn measure(
    measurement: &mut Measurement<'_>,
    options: &ConcertoOptions,
    (load, value_bytes): (Load, u32),
    mode: PowerMode,
    workload: &WorkloadOptions,
    first_peak: Option<f64>,
) -> Result<ModeRun, LabError> {
    let (seconds, keys) = (f64::from(options.seconds), load.keys());
    let short = WorkloadOptions { seconds: Some(short_part(options)), ..workload.clone() };
    let peak = measurement.peak_of(short, keys)?;
    settled_for(measurement.at_primary()?, options.quiet())?;
    let rate = first_peak.unwrap_or(peak) * options.load;
    let offered = WorkloadOptions {
        ops: Some(((rate * seconds) as u64).max(1)),
        rate_ops_per_s: Some(rate),
        seed: 2,
        ..workload.clone()
    };
    let before = used(&measurement.federation.servers)?;
    let began = Instant::now();
    let primary = measurement.at_primary()?;
    let running = begin_with(primary, offered, keys)?;
    let lag = if load.writes { measurement.probe(&running)? } else { Vec::new() };
    while !running.is_finished() {
        measurement.scene.rest(Duration::from_millis(20))?;
    }
    let outcome = running.join().map_err(failed(primary))?;
    settled_for(primary, options.quiet())?;
    measurement.in_sync(SERVERS, None)?;
    let elapsed = began.elapsed().as_secs_f64();
    let spent = used(&measurement.federation.servers)?.since(&before);
    let ops = outcome.counts.total();
    Ok(ModeRun {
        mode: mode.name().to_owned(),
        workload: load.name.to_owned(),
        value_bytes,
        peak_ops_per_s: peak,
        ops_per_s: ops as f64 / outcome.seconds,
        ops,
        seconds: elapsed,
        joules: spent.joules,
        uj_per_op: spent.joules * 1e6 / ops.max(1) as f64,
        joules_by_duty: spent.by_duty,
        lag_ms_p99: (!lag.is_empty()).then(|| Times::of(lag).p99),
        replica_reads_per_s: None,
        replica_reads_unseparated_per_s: None,
        missed: outcome.missed,
        frequency_mhz: measurement.frequencies(mode)?,
        race_to_idle_joules: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ConcertoOptions {
        ConcertoOptions::new().unwrap()
    }

    #[test]
    fn workloads_with_one_length_of_values_come_together() {
        let mut options = options();
        options.values = vec![256, 2048];
        let lengths: Vec<u32> = options.runs().iter().map(|run| run.1).collect();
        assert_eq!(lengths, [256, 256, 2048, 2048, 1000, 1000, 1000, 1000, 1000, 1000]);
        assert_eq!("ycsb-e".parse::<Load>().unwrap().workload, Workload::YcsbE);
        assert!("ycsb-g".parse::<Load>().is_err());
        // A scan needs the index, and what is filled with it has all that the others read.
        let keys = |name: &str| name.parse::<Load>().unwrap().keys();
        assert!(keys("ycsb-e").serve(keys("ycsb-f")) && !keys("ycsb-d").serve(keys("ycsb-e")));
        assert!(!keys("ycsb-a").serve(keys("get")) && keys("set").serve(keys("get")));
    }

    #[test]
    fn what_cannot_be_measured_is_refused_by_its_option() {
        let refused = |change: &dyn Fn(&mut ConcertoOptions)| {
            let mut options = options();
            change(&mut options);
            options.check().unwrap_err().to_string()
        };
        assert!(refused(&|of| of.cores = 1).contains("--cores"));
        assert!(refused(&|of| of.load = 1.5).contains("--load"));
        assert!(refused(&|of| of.seconds = 0).contains("--seconds"));
        let nothing = |of: &mut ConcertoOptions| {
            of.loads.clear();
            of.compares = false;
        };
        assert!(refused(&nothing).contains("--only"));
        assert!(refused(&|of| of.values = vec![0]).contains("--values"));
        assert!(refused(&|of| of.modes.clear()).contains("--modes"));
        assert!(refused(&|of| of.p_states = Some("/nowhere/at/all".into())).contains("--p-states: /nowhere/at/all"));
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, named) in
            [("2200 1.1\n2300 1.0\n", "highest frequency first"), ("5000 1.2\n1 0.5\n", "too small a part")]
        {
            std::fs::write(file.path(), text).unwrap();
            let said = refused(&|of| of.p_states = Some(file.path().to_owned()));
            assert!(said.contains("--p-states") && said.contains(named), "{said}");
        }
        std::fs::write(file.path(), "1500 1.0\n600 0.8\n").unwrap();
        let own = ConcertoOptions { p_states: Some(file.path().to_owned()), ..options() };
        assert_eq!(own.table().unwrap().frequency(0).0, 1.5e9);
    }
}
