//! What slow cores for background work save: a primary with two replicas in each mode of
//! `power.mode`, on emulated cores whose quotas follow the P-states of *Concerto*'s Xeon.
//!
//! For each workload the federation's peak is measured in each mode, then the same load, a share of
//! the peak in `all-high`, is offered in each mode, and joules of all three servers are counted until
//! background work has settled. Servers change the speed of their cores themselves: what is measured
//! is the power manager of a running server, by its own model.
//!
//! Failure: as in the measurement of copies; without the right to make cgroups it does not begin.

mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ecotone_bench::target::resp::{Reply, ServerInfo};
use ecotone_bench::workload::{Preload, Workload, WorkloadOptions};
use ecotone_policy::power::{PowerMode, Role};
use ecotone_types::{CoreClass, Duty};

pub use report::{ConcertoReport, ModeRun, Summary, html, text};

use super::super::ClusterOptions;
use super::super::DISK;
use super::super::report::Times;
use super::super::servers::{Scene, Server};
use super::load::{begin, end, settled};
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
/// After a change of the mode: servers ask once a second which one is in force.
const MODE_REST: Duration = Duration::from_millis(2_500);
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

    /// Why clients of the Redis protocol cannot do it.
    fn is_impossible(self) -> Option<&'static str> {
        let scans = self.workload == Workload::YcsbE;
        scans.then_some("it scans keys in their order, which the Redis protocol does not offer")
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
    /// Bytes of values of SET and GET.
    pub values: Vec<u32>,
    /// Length of each run whose joules are counted.
    pub seconds: u32,
    /// Keys of the store.
    pub keys: u32,
    /// Emulated cores of each server.
    pub cores: u32,
    /// The load that is offered, as a share of the peak in `all-high`.
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
        if self.loads.is_empty() || self.values.is_empty() || self.values.contains(&0) {
            return Err(LabError::option("--only", "name at least one workload, and values of at least 1 byte"));
        }
        if !(2..=MAX_CORES).contains(&self.cores) {
            return Err(LabError::option("--cores", format!("must be from 2 to {MAX_CORES}: one fast, one slow")));
        }
        if !(self.load > 0.0 && self.load <= 1.0) {
            return Err(LabError::option("--load", "must be above 0 and at most 1"));
        }
        Ok(())
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

fn used(servers: &[Server]) -> Result<Used, LabError> {
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

    fn mode(&self, mode: PowerMode) -> Result<(), LabError> {
        self.set("power.mode", mode.name())?;
        self.scene.rest(MODE_REST)
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

    fn run_to_end(&self, workload: WorkloadOptions) -> Result<(f64, u64), LabError> {
        let primary = self.at_primary()?;
        let running = begin(primary, workload)?;
        while !running.is_finished() {
            self.scene.rest(Duration::from_millis(20))?;
        }
        let outcome = running.join().map_err(super::load::failed(primary))?;
        let all = outcome.counts.total();
        Ok((all as f64 / outcome.seconds, all))
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
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        let replicas = shard.copies.iter().filter(|copy| copy.0 != shard.primary);
        let mut clients = Vec::new();
        for replica in replicas {
            clients.push(self.server(&replica.0)?.connect()?);
        }
        let read = |mut client: ecotone_bench::target::resp::Client| -> u64 {
            let mut served = 0;
            if client.ask(&[b"READONLY"]).is_err() {
                return 0;
            }
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
    let host = Host::here();
    // Each server has its cores, and one more for threads without one.
    let speed = host.cores * SERVERS_SHARE / SERVERS as f64 / f64::from(options.cores + 1);
    let speed = speed.clamp(crate::scaling::MIN_SPEED * 2.5, 1.0);
    let places = Places::emulate(options.cores, speed)?;
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
    let mut report = ConcertoReport::of(host, options, speed);
    let mut filled = None;
    for (load, value_bytes) in options.runs() {
        let workload = WorkloadOptions {
            workload: load.workload,
            keys: options.keys.into(),
            key_bytes: KEY_BYTES,
            value_bytes,
            threads: CLIENTS,
            preload: Preload::Existing,
            ..WorkloadOptions::default()
        };
        if let Some(why) = load.is_impossible() {
            report.unavailable.insert(load.name.to_owned(), why.to_owned());
            continue;
        }
        if filled != Some(value_bytes) {
            (measurement.scene.say)(&format!("filling the store with values of {value_bytes} bytes"));
            measurement.mode(PowerMode::AllHigh)?;
            let fill = WorkloadOptions { workload: Workload::FillSeq, threads: 1, ..workload.clone() };
            let primary = measurement.at_primary()?;
            end(&measurement.scene, primary, begin(primary, fill)?)?;
            settled(measurement.at_primary()?)?;
            filled = Some(value_bytes);
        }
        let mut peak_of_high = None;
        for mode in PowerMode::ALL {
            (measurement.scene.say)(&format!("{} of {value_bytes} bytes, {mode}", load.name));
            measurement.mode(mode)?;
            let run = measure(&mut measurement, options, (load, value_bytes), mode, &workload, peak_of_high)?;
            peak_of_high.get_or_insert(run.peak_ops_per_s);
            report.modes.push(run);
        }
    }
    measurement.mode(PowerMode::AllHigh)?;
    report.finish();
    Ok(report)
}

fn measure(
    measurement: &mut Measurement<'_>,
    options: &ConcertoOptions,
    (load, value_bytes): (Load, u32),
    mode: PowerMode,
    workload: &WorkloadOptions,
    peak_of_high: Option<f64>,
) -> Result<ModeRun, LabError> {
    let seconds = f64::from(options.seconds);
    let short = (seconds / SHORT_PART).max(1.0);
    let (peak, _) = measurement.run_to_end(WorkloadOptions { seconds: Some(short), ..workload.clone() })?;
    settled(measurement.at_primary()?)?;
    let replica_reads_per_s = match load.writes {
        true => None,
        false => measurement.replica_reads(value_bytes, short)?,
    };
    let rate = peak_of_high.unwrap_or(peak) * options.load;
    let offered = WorkloadOptions {
        ops: Some(((rate * seconds) as u64).max(1)),
        rate_ops_per_s: Some(rate),
        seed: 2,
        ..workload.clone()
    };
    let before = used(&measurement.federation.servers)?;
    let began = Instant::now();
    let primary = measurement.at_primary()?;
    let running = begin(primary, offered)?;
    let lag = if load.writes { measurement.probe(&running)? } else { Vec::new() };
    while !running.is_finished() {
        measurement.scene.rest(Duration::from_millis(20))?;
    }
    let outcome = running.join().map_err(super::load::failed(primary))?;
    settled(primary)?;
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
        replica_reads_per_s,
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
        assert!(refused(&|of| of.loads.clear()).contains("--only"));
    }
}
