//! Unmodified cluster clients against the real program in cluster mode, each against a real Redis
//! in cluster mode first: what is wrong with a script fails there.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Server, configuration, serve};
use crate::redis::RealRedis;

const PASSWORD: &str = "the password of a test";

/// Fewer checks than this are no session.
const MIN_CHECKS: usize = 8;

/// Time a script may take.
const SECONDS: &str = "120";

/// How long Redis may take to serve all slots.
const PATIENCE: Duration = Duration::from_secs(60);

fn script(name: &str) -> String {
    format!("{}/tests/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A Redis that has all slots, and the port where it serves clients.
fn real() -> (RealRedis, u16) {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port, bus_port) = (free(), free());
    let (told, bus) = (port.to_string(), bus_port.to_string());
    let redis = RealRedis::start_with(&[
        "--cluster-enabled",
        "yes",
        "--port",
        &told,
        "--cluster-port",
        &bus,
        "--bind",
        "127.0.0.1",
        "--cluster-announce-ip",
        "127.0.0.1",
        "--requirepass",
        PASSWORD,
    ]);
    let mut client = redis.new_client();
    client.send(&[b"AUTH", PASSWORD.as_bytes()]);
    assert_eq!(client.send(&[b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"16383"]), b"+OK\r\n");
    let began = Instant::now();
    while !String::from_utf8_lossy(&client.send(&[b"CLUSTER", b"INFO"])).contains("cluster_state:ok") {
        assert!(began.elapsed() < PATIENCE, "Redis does not serve its slots");
        std::thread::sleep(Duration::from_millis(50));
    }
    (redis, port)
}

/// The names of the checks that a script has made of the server at `address`.
fn checks(command: &[&str], environment: &[(&str, &str)], address: &str) -> Vec<String> {
    let mut started = Command::new("timeout");
    started.arg(SECONDS).args(command).args([address, PASSWORD]).envs(environment.iter().copied());
    let output = started.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{command:?} at {address}: {}\n{printed}{}(what is missing is installed by: make setup)",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let checks: Vec<String> = printed.lines().filter_map(|line| line.strip_prefix("ok ")).map(str::to_owned).collect();
    assert_eq!(printed.lines().last().unwrap(), format!("{} checks", checks.len()));
    assert!(checks.len() >= MIN_CHECKS, "{printed}");
    checks
}

fn own() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), &format!("listen = \"127.0.0.1:0\"\npassword = {PASSWORD:?}\n"));
    let server = Server::start(serve(&["--config", file.to_str().unwrap(), "--cluster", "on"]));
    (folder, server)
}

fn is_served_alike(command: &[&str], environment: &[(&str, &str)]) {
    let (real, port) = real();
    let of_redis = checks(command, environment, &format!("127.0.0.1:{port}"));
    drop(real);
    let (_folder, server) = own();
    assert_eq!(checks(command, environment, &server.listening), of_redis);
    server.terminate();
}

#[test]
fn redis_py_finds_a_cluster() {
    is_served_alike(&["/usr/bin/python3", &script("cluster.py")], &[]);
}

#[test]
fn node_redis_finds_a_cluster() {
    is_served_alike(&["node", &script("cluster.js")], &[("NODE_PATH", "/usr/share/nodejs")]);
}

#[test]
fn a_server_keeps_its_id_and_tells_what_is_announced() {
    let folder = tempfile::tempdir().unwrap();
    let more = "listen = \"127.0.0.1:0\"\ncluster = \"on\"\nannounce_hostname = \"edge-7.example\"\nannounce_port = 7000\n\
                preferred_endpoint = \"hostname\"\n";
    let file = configuration(folder.path(), more);
    let my_id = || {
        let server = Server::with(&file);
        let mut client = server.connect();
        client.says("CONFIG GET cluster-enabled\r\n", "*2\r\n$15\r\ncluster-enabled\r\n$3\r\nyes\r\n");
        client.says(
            "*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n",
            "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$14\r\nedge-7.example\r\n:7000\r\n$40\r\n",
        );
        let mut id = [0; 40];
        std::io::Read::read_exact(&mut client.0, &mut id).unwrap();
        client.says("", "\r\n*2\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n");
        server.terminate();
        id
    };
    let first = my_id();
    assert!(first.iter().all(u8::is_ascii_hexdigit) && first != [b'0'; 40]);
    assert_eq!(my_id(), first);
}
