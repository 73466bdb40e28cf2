//! What clients pay: redis-benchmark against one server beside another.

use std::process::{Command, Stdio};
use std::time::Instant;

use super::report::{BenchmarkCost, ClientsCost, median};
use super::servers::{Scene, Server};
use crate::error::LabError;

/// The program, of Redis.
const PROGRAM: &str = "redis-benchmark";
/// Keys are drawn of so many.
const KEYS: &str = "100000";
/// Bytes of a value.
const VALUE_BYTES: &str = "100";

/// Requests a second.
#[derive(Clone, Copy)]
struct Throughput {
    set: f64,
    get: f64,
}

/// One run; none where there is no redis-benchmark. It speaks to each server as to one alone, also to
/// one in cluster mode: its own mode for clusters wants two masters at least.
fn benchmark(scene: &Scene<'_>, server: &Server) -> Result<Option<Throughput>, LabError> {
    let Some((host, port)) = server.clients().rsplit_once(':') else {
        return Err(server.failure("serves no clients"));
    };
    let requests = scene.options.requests.to_string();
    let mut command = Command::new(PROGRAM);
    command.args(["-h", host, "-p", port, "-t", "set,get", "-n", &requests, "-r", KEYS, "-d", VALUE_BYTES]);
    command.args(["--threads", "1", "--csv"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LabError::io("cannot start", PROGRAM)(error)),
    };
    let until = Instant::now() + scene.options.patience;
    while child.try_wait().map_err(LabError::io("cannot wait for", PROGRAM))?.is_none() {
        let late = Instant::now() >= until;
        if late || scene.interruption.wanted() {
            // It is waited for below.
            let _ = child.kill();
            let _ = child.wait();
            return Err(if late {
                server.failure("takes too long for redis-benchmark")
            } else {
                LabError::Interrupted
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = child.wait_with_output().map_err(LabError::io("cannot wait for", PROGRAM))?;
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let of = |test: &str| read_rate(&printed, test);
    match (of("SET"), of("GET")) {
        (Some(set), Some(get)) => Ok(Some(Throughput { set, get })),
        _ => Err(LabError::Measurement {
            what: format!("clients of {} by {PROGRAM}", server.name),
            reason: format!("{}{}", printed.trim(), said.trim()),
        }),
    }
}

/// Requests a second of `test` in what redis-benchmark prints with `--csv`.
fn read_rate(printed: &str, test: &str) -> Option<f64> {
    let of_test = printed.lines().find_map(|line| line.strip_prefix(&format!("\"{test}\",\"")))?;
    of_test.split('"').next()?.parse::<f64>().ok().filter(|rate| *rate > 0.0)
}

/// Rounds, each of the base, the other one, and the base again: so a host that changes its speed
/// takes part in both.
pub(super) fn compare(
    scene: &mut Scene<'_>,
    what: &str,
    base: &Server,
    other: &Server,
) -> Result<Option<(BenchmarkCost, BenchmarkCost)>, LabError> {
    let rounds = scene.options.rounds;
    let mut measured = Vec::new();
    // The first one warms both up.
    for round in 0..=rounds {
        (scene.say)(&format!("{what}: round {round} of {rounds}"));
        let Some(before) = benchmark(scene, base)? else { return Ok(None) };
        let Some(between) = benchmark(scene, other)? else { return Ok(None) };
        let Some(after) = benchmark(scene, base)? else { return Ok(None) };
        if round > 0 {
            measured.push([before, between, after]);
        }
    }
    let cost = |of: fn(&Throughput) -> f64| {
        let base = |[before, _, after]: &[Throughput; 3]| f64::midpoint(of(before), of(after));
        BenchmarkCost {
            base_per_s: median(measured.iter().map(base).collect()),
            per_s: median(measured.iter().map(|[_, between, _]| of(between)).collect()),
            cost: median(measured.iter().map(|round| 1.0 - of(&round[1]) / base(round)).collect()),
            spread: median(measured.iter().map(|round| (of(&round[0]) / of(&round[2]) - 1.0).abs()).collect()),
        }
    };
    Ok(Some((cost(|run| run.set), cost(|run| run.get))))
}

/// A federation of one, as a cluster, beside a server alone. Why not, where there is no
/// redis-benchmark.
pub(super) fn measure(scene: &mut Scene<'_>) -> Result<Result<ClientsCost, String>, LabError> {
    let folder = scene.folder.join("clients");
    let alone = scene.start(&folder, "single", &["--cluster", "off"])?;
    let cluster = of_shards(scene, "cluster", 1)?;
    let compared = compare(scene, "clients of a cluster", &alone, &cluster)?;
    Ok(compared.map_or_else(
        || Err(format!("there is no {PROGRAM} (of Redis)")),
        |(set, get)| Ok(ClientsCost { set, get, rounds: scene.options.rounds, requests: scene.options.requests }),
    ))
}

/// A federation of one server with so many shards, in cluster mode.
pub(super) fn of_shards(scene: &Scene<'_>, name: &str, shards: u32) -> Result<Server, LabError> {
    let folder = scene.folder.join("clients");
    scene.init(&folder, name)?;
    let server = scene.start(&folder, name, &["--cluster", "on"])?;
    server.json(&["FEDERATION", "CREATE", &shards.to_string()])?;
    let until = Instant::now() + scene.options.patience;
    while !server.text(&["CLUSTER", "INFO"])?.contains("cluster_state:ok") {
        scene.goes_on()?;
        if Instant::now() >= until {
            return Err(server.failure("serves no slots"));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_from_what_redis_benchmark_prints() {
        // As redis-benchmark 7.0 prints it.
        let printed = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\"\n\
                       \"SET\",\"123456.79\",\"0.205\",\"0.088\"\n\"GET\",\"200000.00\",\"0.2\",\"0.1\"\n";
        assert_eq!(read_rate(printed, "SET"), Some(123_456.79));
        assert_eq!(read_rate(printed, "GET"), Some(200_000.0));
        assert_eq!(read_rate("\"SET\",\"0.00\"\n", "SET"), None);
        assert_eq!(read_rate("Could not connect\n", "SET"), None);
    }
}
