//! What copies cost while clients write: throughput, processor time, joules, bytes, lag.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use ecotone_bench::driver::{Driver, Running};
use ecotone_bench::target::Target;
use ecotone_bench::target::resp::{Reply, RespTarget, ServerInfo};
use ecotone_bench::workload::{Preload, Workload, WorkloadOptions};

use super::super::clients::of_shards;
use super::super::report::{Times, median};
use super::super::servers::{Scene, Server};
use super::report::{Costs, LevelThroughput, Throughput};
use super::{Measurement, SERVERS};
use crate::error::LabError;

/// Connections, and requests under way on each.
const CLIENTS: u32 = 50;
const PIPELINE: u32 = 16;
const KEY_BYTES: u32 = 16;
const VALUE_BYTES: u32 = 1000;
/// Runs of throughput are so much shorter than those of costs.
const THROUGHPUT_PART: f64 = 4.0;
/// Costs are compared at so much of what the federation can take: stores alone, of which one slow
/// minute must not become a queue, get the same.
const COSTS_LOAD: f64 = 0.5;
const LAG_LOAD: f64 = 0.7;
/// Between two writes of which it is measured when copies have them.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// How long a probe waits, in milliseconds.
const PROBE_MS: f64 = 5000.0;
/// A new level counts at once; replies that wait by the old one are then gone.
const LEVEL_REST: Duration = Duration::from_millis(500);
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn failed(server: &Server) -> impl Fn(ecotone_bench::Error) -> LabError {
    let name = server.name.clone();
    move |error| LabError::Measurement { what: format!("load on {name}"), reason: error.to_string() }
}

/// Begins to write to a server.
pub(super) fn begin(server: &Server, workload: WorkloadOptions) -> Result<Running, LabError> {
    let target = RespTarget::open(&server.as_target(PIPELINE)).map_err(failed(server))?;
    Driver::start(Arc::new(target), workload, None).map_err(failed(server))
}

/// Waits for the end of a run; writes a second.
pub(super) fn end(scene: &Scene<'_>, server: &Server, running: Running) -> Result<f64, LabError> {
    while !running.is_finished() {
        scene.rest(Duration::from_millis(20))?;
    }
    let outcome = running.join().map_err(failed(server))?;
    Ok(outcome.counts.writes() as f64 / outcome.seconds)
}

/// Waits until a server's store has nothing to do.
pub(super) fn settled(server: &Server) -> Result<(), LabError> {
    wait_settled(server, RespTarget::open(&server.as_target(1)).map_err(failed(server))?)
}

/// The same, once it has done nothing for `quiet`.
pub(super) fn settled_for(server: &Server, quiet: Duration) -> Result<(), LabError> {
    let target = RespTarget::open(&server.as_target(1)).map_err(failed(server))?;
    wait_settled(server, target.with_quiet(quiet))
}

fn wait_settled(server: &Server, target: RespTarget) -> Result<(), LabError> {
    if target.settle(SETTLE_LIMIT, &AtomicBool::new(false)).map_err(failed(server))? {
        return Ok(());
    }
    tracing::warn!("{} still compacts after {} s; its costs lack the rest", server.name, SETTLE_LIMIT.as_secs());
    Ok(())
}

impl Measurement<'_> {
    /// Overwrites of keys that are drawn at random.
    fn workload(&self, seed: u32) -> WorkloadOptions {
        WorkloadOptions {
            workload: Workload::FillRandom,
            keys: self.options.keys.into(),
            key_bytes: KEY_BYTES,
            value_bytes: VALUE_BYTES,
            threads: CLIENTS,
            preload: Preload::Existing,
            seed: seed.into(),
            ..WorkloadOptions::default()
        }
    }

    fn throughput_seconds(&self) -> f64 {
        f64::from(self.options.seconds) / THROUGHPUT_PART
    }

    /// As many writes as a server takes.
    fn saturate(&self, server: &Server, seed: u32) -> Result<f64, LabError> {
        let workload = WorkloadOptions { seconds: Some(self.throughput_seconds()), ..self.workload(seed) };
        end(&self.scene, server, begin(server, workload)?)
    }

    /// As many keys as there are, so that runs overwrite what is there.
    fn fill(&self, servers: &[&Server]) -> Result<(), LabError> {
        let mut runs = Vec::new();
        for server in servers {
            let workload = WorkloadOptions { workload: Workload::FillSeq, threads: 1, ..self.workload(1) };
            runs.push((server, begin(server, workload)?));
        }
        for (server, run) in runs {
            end(&self.scene, server, run)?;
        }
        Ok(())
    }

    fn primary(&self) -> Result<&Server, LabError> {
        let (_, shard) = self.in_sync(SERVERS, None)?;
        self.server(&shard.primary)
    }

    /// Writes a second that the federation takes at its default level.
    fn peak(&mut self) -> Result<f64, LabError> {
        if let Some(peak) = self.peak {
            return Ok(peak);
        }
        (self.scene.say)("looking for the peak");
        let primary = self.primary()?;
        self.fill(&[primary])?;
        let peak = self.saturate(primary, 1)?;
        self.peak = Some(peak);
        Ok(peak)
    }
}

/// Writes all keys once to the federation.
pub(super) fn filled(measurement: &Measurement<'_>) -> Result<(), LabError> {
    measurement.fill(&[measurement.primary()?])
}

/// Throughput at each level beside one copy, in turn.
pub(super) fn throughput(measurement: &mut Measurement<'_>) -> Result<Throughput, LabError> {
    const LEVELS: [&str; 3] = ["one", "quorum", "all"];
    let rounds = measurement.options.rounds;
    (measurement.scene.say)("filling a server with one copy, and one with three");
    let single = of_shards(&measurement.scene, "single", 1)?;
    let primary = measurement.primary()?.name.clone();
    measurement.fill(&[&single, measurement.server(&primary)?])?;
    let mut measured: [Vec<f64>; 3] = Default::default();
    let mut ratios: [Vec<f64>; 3] = Default::default();
    let mut alone = Vec::new();
    // The first one warms up.
    for round in 0..=rounds {
        let mut level_rates = [0.0; 3];
        (measurement.scene.say)(&format!("throughput: round {round} of {rounds}, one copy"));
        let before = measurement.saturate(&single, round)?;
        for (level, rate) in LEVELS.iter().zip(&mut level_rates) {
            (measurement.scene.say)(&format!("throughput: round {round} of {rounds}, level {level}"));
            measurement.set("replication.level", level)?;
            measurement.scene.rest(LEVEL_REST)?;
            *rate = measurement.saturate(measurement.primary()?, round)?;
            if round == 0 {
                break;
            }
        }
        if round == 0 {
            continue;
        }
        let after = measurement.saturate(&single, round)?;
        let base = f64::midpoint(before, after);
        alone.push(base);
        for (level, rate) in level_rates.into_iter().enumerate() {
            measured[level].push(rate);
            ratios[level].push(rate / base);
        }
    }
    measurement.set("replication.level", "quorum")?;
    measurement.scene.rest(LEVEL_REST)?;
    let [one, quorum, all] = ratios.map(median);
    let per_s = measured.map(median);
    measurement.peak = Some(per_s[1]);
    let [one_per_s, quorum_per_s, all_per_s] = per_s;
    let per_s = LevelThroughput { single: median(alone), one: one_per_s, quorum: quorum_per_s, all: all_per_s };
    Ok(Throughput { one, quorum, all, per_s, rounds })
}

/// What a server has used so far.
#[derive(Clone, Copy)]
struct Used {
    cpu_seconds: f64,
    joules: f64,
    idle_joules: f64,
    /// Of a primary: what copies made of what they had; 0 where there are none.
    spared_bytes: f64,
}

fn used(server: &Server) -> Result<Used, LabError> {
    let info = ServerInfo::parse(&server.text(&["INFO"])?);
    let number = |field: &str| info.number(field).ok_or_else(|| server.failure(&format!("does not say its {field}")));
    Ok(Used {
        cpu_seconds: info.cpu_seconds().ok_or_else(|| server.failure("does not say its processor time"))?,
        joules: number("energy_joules_total")?,
        idle_joules: number("energy_joules_idle")?,
        spared_bytes: info.number("copies_spared_bytes_total").unwrap_or(0.0),
    })
}

/// What servers used by the same writes, each by itself.
struct Spent {
    cpu_seconds: Vec<f64>,
    active_joules: f64,
    joules: f64,
    spared_bytes: f64,
}

impl Spent {
    fn cpu(&self) -> f64 {
        self.cpu_seconds.iter().sum()
    }
}

/// Feeds `fed` and measures `all`, until nobody has anything left to do.
fn feed(
    measurement: &Measurement<'_>,
    fed: &[&Server],
    all: &[&Server],
    workload: &WorkloadOptions,
) -> Result<Spent, LabError> {
    let before = all.iter().map(|server| used(server)).collect::<Result<Vec<_>, _>>()?;
    let mut runs = Vec::new();
    for server in fed {
        runs.push((server, begin(server, workload.clone())?));
    }
    for (server, run) in runs {
        end(&measurement.scene, server, run)?;
    }
    for server in fed {
        settled(server)?;
    }
    let after = all.iter().map(|server| used(server)).collect::<Result<Vec<_>, _>>()?;
    let growth = |of: fn(&Used) -> f64| after.iter().zip(&before).map(move |(after, before)| of(after) - of(before));
    let joules = growth(|used| used.joules).sum();
    Ok(Spent {
        cpu_seconds: growth(|used| used.cpu_seconds).collect(),
        active_joules: growth(|used| used.joules - used.idle_joules).sum(),
        joules,
        spared_bytes: growth(|used| used.spared_bytes).sum(),
    })
}

/// The same writes to three copies and to three stores that compact for themselves, in turn.
pub(super) fn costs(measurement: &mut Measurement<'_>) -> Result<Costs, LabError> {
    let rate = measurement.peak()? * COSTS_LOAD;
    let ops = ((rate * f64::from(measurement.options.seconds)) as u64).max(1);
    let user_bytes = ops as f64 * f64::from(KEY_BYTES + VALUE_BYTES);
    let folder = measurement.scene.folder.join("alone");
    let mut alone = Vec::new();
    for number in 1..=SERVERS {
        alone.push(measurement.scene.start(&folder, &format!("a{number}"), &["--cluster", "off"])?);
    }
    let alone: Vec<&Server> = alone.iter().collect();
    measurement.fill(&alone)?;
    measurement.fill(&[measurement.primary()?])?;
    let rounds = measurement.options.rounds;
    let (mut cpu, mut joules, mut with_idle) = (Vec::new(), Vec::new(), Vec::new());
    let (mut replicas, mut wire, mut spared) = (Vec::new(), Vec::new(), Vec::new());
    let (mut copies_us, mut alone_us) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let workload =
            WorkloadOptions { ops: Some(ops), rate_ops_per_s: Some(rate), ..measurement.workload(100 + round) };
        (measurement.scene.say)(&format!("costs: round {round} of {rounds}, stores alone"));
        let base = feed(measurement, &alone, &alone, &workload)?;
        (measurement.scene.say)(&format!("costs: round {round} of {rounds}, copies"));
        let primary = measurement.primary()?;
        let all: Vec<&Server> = measurement.federation.servers.iter().collect();
        let received = |server: &&Server| measurement.places.received(&server.name);
        let bytes_before: Vec<Option<u64>> = all.iter().map(received).collect();
        let with = feed(measurement, &[primary], &all, &workload)?;
        let bytes_after: Vec<Option<u64>> = all.iter().map(received).collect();
        cpu.push(with.cpu() / base.cpu());
        joules.push(with.active_joules / base.active_joules);
        with_idle.push(with.joules / base.joules);
        copies_us.push(with.cpu() * 1e6 / ops as f64);
        alone_us.push(base.cpu() * 1e6 / ops as f64);
        let mut of_primary = 0.0;
        let mut of_replicas = Vec::new();
        for (index, server) in all.iter().enumerate() {
            if server.name == primary.name {
                of_primary = with.cpu_seconds[index];
                continue;
            }
            of_replicas.push(with.cpu_seconds[index]);
            // Nobody else speaks to a replica.
            if let (Some(after), Some(before)) = (bytes_after[index], bytes_before[index]) {
                wire.push(after.saturating_sub(before) as f64 / user_bytes);
            }
        }
        spared.push(with.spared_bytes / of_replicas.len() as f64 / user_bytes);
        replicas.push(of_replicas.iter().sum::<f64>() / of_replicas.len() as f64 / of_primary);
    }
    Ok(Costs {
        cpu_ratio: median(cpu),
        joules_ratio: median(joules),
        joules_ratio_with_idle: median(with_idle),
        replica_cpu_share: median(replicas),
        wire_bytes_per_user_byte: (!wire.is_empty()).then(|| median(wire)),
        spared_bytes_per_user_byte: median(spared),
        cpu_us_per_op: median(copies_us),
        cpu_us_per_op_alone: median(alone_us),
        ops_per_s: rate,
        ops,
        rounds,
    })
}

/// From the acknowledgement of a write by the primary alone until both replicas have it.
pub(super) fn lag(measurement: &mut Measurement<'_>) -> Result<Times, LabError> {
    let rate = measurement.peak()? * LAG_LOAD;
    measurement.set("replication.level", "one")?;
    measurement.scene.rest(LEVEL_REST)?;
    (measurement.scene.say)("lag of copies");
    let primary = measurement.primary()?;
    let seconds = Some(f64::from(measurement.options.seconds));
    let workload = WorkloadOptions { seconds, rate_ops_per_s: Some(rate), ..measurement.workload(200) };
    let running = begin(primary, workload)?;
    let mut client = primary.connect()?;
    let mut times = Vec::new();
    let replicas = (SERVERS - 1).to_string();
    let milliseconds = format!("{PROBE_MS:.0}");
    while !running.is_finished() {
        client.queue(&[b"SET", b"lab:probe", b"1"]);
        client.queue(&[b"WAIT", replicas.as_bytes(), milliseconds.as_bytes()]);
        let lost = |error| primary.failure(&format!("does not answer a probe: {error}"));
        client.send().map_err(lost)?;
        match client.receive().map_err(lost)? {
            Reply::Status(said) if said == "OK" => {}
            other => return Err(primary.failure(&format!("answers a probe by {other:?}"))),
        }
        let written = Instant::now();
        let held = client.receive().map_err(lost)?;
        let waited = written.elapsed().as_secs_f64() * 1e3;
        // Without all replicas it is at least as late as it was waited for.
        let all = matches!(held, Reply::Integer(held) if held >= SERVERS as i64 - 1);
        times.push(if all { waited } else { waited.max(PROBE_MS) });
        measurement.scene.rest(PROBE_INTERVAL)?;
    }
    end(&measurement.scene, primary, running)?;
    measurement.set("replication.level", "quorum")?;
    Ok(Times::of(times))
}
