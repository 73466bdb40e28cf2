//! Redis' own tools against a federation of three servers: `redis-cli -c`, `redis-cli --cluster`
//! and `redis-benchmark --cluster`.

use std::process::{Command, Output};

use ecotone_resp::cluster_view::ClusterMode;

use super::cluster::Servers;

/// Time a tool may take.
const SECONDS: &str = "120";

fn servers() -> Servers {
    let servers = Servers::start(3, ClusterMode { is_cluster: true, is_proxy: false });
    servers.publish_to_all(&[0, 1, 2, 0], 1);
    servers
}

fn run(command: &[&str]) -> Output {
    let output = Command::new("timeout").arg(SECONDS).args(command).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}(what is missing is installed by: make setup)",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn printed(command: &[&str]) -> String {
    String::from_utf8(run(command).stdout).unwrap()
}

#[test]
fn redis_cli_follows_redirects() {
    let servers = servers();
    let port = servers.address(1).port().to_string();
    let cli = |words: &[&str]| printed(&[&["redis-cli", "-c", "-p", &port], words].concat());
    for number in 0..20 {
        let (key, value) = (format!("key:{number}"), format!("value {number}"));
        assert_eq!(cli(&["SET", &key, &value]), "OK\n");
        assert_eq!(cli(&["GET", &key]), format!("{value}\n"));
    }
    let sizes: i64 = (0..3)
        .map(|place| {
            let port = servers.address(place).port().to_string();
            printed(&["redis-cli", "-p", &port, "DBSIZE"]).trim().parse::<i64>().unwrap()
        })
        .sum();
    assert_eq!(sizes, 20);
}

#[test]
fn redis_cli_checks_the_federation_and_is_content() {
    let servers = servers();
    let address = servers.address(2).to_string();
    for number in 0..30 {
        printed(&[
            "redis-cli",
            "-c",
            "-p",
            &servers.address(0).port().to_string(),
            "SET",
            &format!("key:{number}"),
            "v",
        ]);
    }
    let check = printed(&["redis-cli", "--cluster", "check", &address]);
    for says in [
        "[OK] 30 keys in 3 masters.",
        "[OK] All nodes agree about slots configuration.",
        "[OK] All 16384 slots covered.",
    ] {
        assert!(check.contains(says), "{says:?} is not in {check}");
    }
    let info = printed(&["redis-cli", "--cluster", "info", &address]);
    assert!(info.contains("[OK] 30 keys in 3 masters."), "{info}");
    // It asks all servers.
    let pong = printed(&["redis-cli", "--cluster", "call", &address, "PING"]);
    assert_eq!(pong.matches("PONG").count(), 3, "{pong}");
}

#[test]
fn redis_benchmark_spreads_its_load() {
    let servers = servers();
    let port = servers.address(0).port().to_string();
    let measured = printed(&[
        "redis-benchmark",
        "--cluster",
        "-p",
        &port,
        "-n",
        "3000",
        "-c",
        "6",
        "-r",
        "1000",
        "-P",
        "4",
        "-t",
        "set,get,incr,lpush",
        "--csv",
    ]);
    for name in ["SET", "GET", "INCR", "LPUSH"] {
        assert!(measured.contains(&format!("\"{name}\",")), "{measured}");
    }
    for place in 0..3 {
        let asked = servers.all[place].service.statistics.commands.load(std::sync::atomic::Ordering::Relaxed);
        assert!(asked > 1000, "server {place} was asked {asked} times");
        let moved = servers.all[place].service.statistics.errors_by_word.lock().get("MOVED").copied();
        assert_eq!(moved, None, "it knows where slots are");
    }
}
