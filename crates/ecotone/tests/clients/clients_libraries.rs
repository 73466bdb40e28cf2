//! Unmodified clients: three libraries of three languages, `redis-cli` and `redis-benchmark`, each
//! against the real Redis server first. What is wrong with a script fails there, so what fails here
//! afterwards is wrong with ours.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Server, configuration};
use crate::redis::RealRedis;

const PASSWORD: &str = "the password of a test";

/// Fewer checks than this are no session.
const MIN_CHECKS: usize = 55;

/// Time a script may take.
const SECONDS: &str = "120";

/// A server with a password over TCP and, where `redis-benchmark` needs one, a socket.
fn own(folder: &Path) -> (Server, PathBuf) {
    let socket = folder.join("socket");
    let more = format!(
        "listen = \"127.0.0.1:0\"\nunix_socket = {:?}\npassword = {PASSWORD:?}\n[store]\nmemtable_bytes = 1048576\n",
        socket.display()
    );
    (Server::with(&configuration(folder, &more)), socket)
}

fn real() -> RealRedis {
    RealRedis::start_with(&["--requirepass", PASSWORD])
}

fn script(name: &str) -> String {
    format!("{}/tests/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// What `command` prints. It must end well and in time.
fn output(command: &[&str], environment: &[(&str, &str)]) -> String {
    let mut started = Command::new("timeout");
    started.arg(SECONDS).args(command).envs(environment.iter().copied());
    let output = started.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{printed}{}(what is missing is installed by: make setup)",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

/// The names of the checks that a script has made of the server at `address`.
fn checks(command: &[&str], environment: &[(&str, &str)], address: &str) -> Vec<String> {
    let printed = output(&[command, &[address, PASSWORD]].concat(), environment);
    let checks: Vec<String> = printed.lines().filter_map(|line| line.strip_prefix("ok ")).map(str::to_owned).collect();
    assert_eq!(printed.lines().last().unwrap(), format!("{} checks", checks.len()));
    assert!(checks.len() >= MIN_CHECKS, "{printed}");
    checks
}

fn is_served_alike(command: &[&str], environment: &[(&str, &str)]) {
    let real = real();
    let of_redis = checks(command, environment, real.socket().to_str().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = own(folder.path());
    let addresses = server.listening.split(", ").next().unwrap().to_owned();
    assert_eq!(checks(command, environment, &addresses), of_redis);
    // Over what it has left, once more: a session begins with an empty database.
    assert_eq!(checks(command, environment, &addresses), of_redis);
    server.terminate();
}

#[test]
fn redis_py_is_served_as_by_redis() {
    is_served_alike(&["/usr/bin/python3", &script("session.py")], &[]);
}

#[test]
fn node_redis_is_served_as_by_redis() {
    is_served_alike(&["node", &script("session.js")], &[("NODE_PATH", "/usr/share/nodejs")]);
}

#[test]
fn hiredis_is_served_as_by_redis() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("session");
    let program = program.to_str().unwrap();
    let source = script("session.c");
    output(&["cc", "-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-o", program, &source, "-lhiredis", "-lm"], &[]);
    is_served_alike(&[program], &[]);
}

/// Runs all that `redis-benchmark` runs by default: the names of its measurements.
fn benchmark(socket: &Path, more: &[&str]) -> Vec<String> {
    let socket = socket.to_str().unwrap();
    let command = ["redis-benchmark", "-s", socket, "-a", PASSWORD, "-n", "1000", "--csv"];
    let printed = output(&[&command, more].concat(), &[]);
    let mut names = Vec::new();
    for line in printed.lines() {
        let columns: Vec<&str> = line.trim_matches('"').split("\",\"").collect();
        assert!(line.starts_with('"') && columns.len() == 8, "{line:?} in {printed}");
        if columns[1] != "rps" {
            assert!(columns[1].parse::<f64>().unwrap() > 0.0, "{line}");
        }
        names.push(columns[0].to_owned());
    }
    names
}

#[test]
fn all_that_redis_benchmark_measures_by_default_is_served() {
    let real = real();
    let folder = tempfile::tempdir().unwrap();
    let (server, socket) = own(folder.path());
    for more in [&[][..], &["-P", "16", "-r", "10000"], &["-3", "-c", "5"]] {
        let of_redis = benchmark(&real.socket(), more);
        assert!(of_redis.len() > 15 && of_redis.iter().any(|name| name.contains("LRANGE_600")), "{of_redis:?}");
        assert_eq!(benchmark(&socket, more), of_redis, "{more:?}");
    }
    server.terminate();
}

/// What `redis-cli` says that is given `input`: its lines, sorted, since a scan has no order.
fn cli(socket: &Path, arguments: &[&str], input: &[u8]) -> Vec<String> {
    let mut command = Command::new("timeout");
    command.args([SECONDS, "redis-cli", "--no-auth-warning", "-a", PASSWORD, "-s"]).arg(socket).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{arguments:?}: {}: {said}", output.status);
    let mut lines: Vec<_> = said.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Requests in the form of the protocol, for `redis-cli --pipe`.
fn piped() -> Vec<u8> {
    let mut requests: Vec<String> = (0..300).map(|number| format!("SET key:{number} {number}")).collect();
    requests.push(format!("SET longest {}", "x".repeat(5000)));
    for (kind, command) in [("hash", "HSET"), ("set", "SADD"), ("list", "RPUSH"), ("zset", "ZADD")] {
        // Two of each kind, of which one is the larger, packed and not.
        for elements in [3, 400] {
            let each = |element: i32| match kind {
                "hash" => format!("f{element} {element}"),
                "zset" => format!("{element} m{element}"),
                _ => format!("m{element}"),
            };
            let elements: Vec<_> = (0..elements).map(each).collect();
            requests.push(format!("{command} {kind}:{} {}", elements.len(), elements.join(" ")));
        }
    }
    let encode = |request: &String| {
        let words: Vec<_> = request.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{}", words.len(), words.concat())
    };
    requests.iter().map(encode).collect::<String>().into_bytes()
}

#[test]
fn redis_cli_is_served_as_by_redis() {
    let real = real();
    let folder = tempfile::tempdir().unwrap();
    let (server, socket) = own(folder.path());
    let both = |arguments: &[&str], input: &[u8]| {
        let of_redis = cli(&real.socket(), arguments, input);
        assert!(!of_redis.is_empty(), "{arguments:?}");
        let ours = cli(&socket, arguments, input);
        (of_redis, ours)
    };
    let alike = |arguments: &[&str], input: &[u8]| {
        let (of_redis, ours) = both(arguments, input);
        assert_eq!(ours, of_redis, "{arguments:?}");
    };
    let (of_redis, ours) = both(&["--pipe"], &piped());
    assert!(ours.contains(&"errors: 0, replies: 309".to_owned()), "{ours:?}");
    assert_eq!(ours, of_redis);
    alike(&["--scan"], b"");
    alike(&["--scan", "--pattern", "key:1*"], b"");
    // What it says of its progress depends on the order of the scan.
    let summary = |lines: Vec<String>| {
        let found = lines.into_iter().filter(|line| !line.starts_with('[')).collect::<Vec<_>>();
        assert!(found.iter().any(|line| line.starts_with("Biggest") && line.contains("zset:400")), "{found:?}");
        found
    };
    let (of_redis, ours) = both(&["--bigkeys"], b"");
    assert_eq!(summary(ours), summary(of_redis));
    let (_, ours) = both(&["--memkeys"], b"");
    assert!(ours.iter().any(|line| line.starts_with("Biggest")), "{ours:?}");
    for arguments in [
        &["-3", "hgetall", "hash:3"][..],
        &["-3", "zrange", "zset:3", "0", "-1", "withscores"],
        &["--json", "hgetall", "hash:3"],
        &["--json", "zrange", "zset:3", "0", "-1", "withscores"],
        &["--csv", "lrange", "list:3", "0", "-1"],
        &["-r", "5", "incr", "counter"],
        &["-x", "set", "from-input"],
        &["get", "from-input"],
    ] {
        alike(arguments, b"what comes on standard input");
    }
    // A session, line by line.
    alike(&[], b"MULTI\nINCR counter\nGET counter\nEXEC\nGET\nnonsense\nPING\n");
    server.terminate();
}
