//! The real program as a benchmark of the real program: through the Redis protocol, and as the
//! lab's clients.

use crate::common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use common::{Server, configuration, serve};
use ecotone_bench::target::resp::{Connection, Credentials, RespTarget, ServerAddress, ServerOptions};
use ecotone_bench::workload::{KeyOrder, KeyShape};
use ecotone_server::record::Record;
use serde_json::Value;

fn ecotone(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(arguments).env_remove("RUST_LOG");
    command
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let output = ecotone(arguments).output().unwrap();
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// Has the server at `address` flush all that it holds.
fn save(address: &str, password: &str) {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(format!("AUTH {password}\r\nSAVE\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut answers = String::new();
    connection.read_to_string(&mut answers).unwrap();
    assert_eq!(answers, "+OK\r\n+OK\r\n+OK\r\n");
}

#[test]
fn a_server_is_filled_and_read_and_holds_every_key() {
    const KEYS: u64 = 5_000;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let file =
        configuration(folder.path(), &format!("listen = \"127.0.0.1:0\"\nunix_socket = {:?}\n", socket.display()));
    let mut command = serve(&["--config", file.to_str().unwrap()]);
    command.env("ECOTONE_CLIENTS_PASSWORD", "s@cret");
    let server = Server::start(command);
    let (tcp, _) = server.listening.split_once(", ").unwrap();
    let (target, keys) = (format!("resp://{tcp}"), KEYS.to_string());
    let bench = |workload: &str, more: &[&str]| {
        let mut command = ecotone(&["bench", workload, "--json", "--keys", &keys, "--threads", "2"]);
        command.args(["--value-bytes", "500"]).args(more);
        command.env("ECOTONE_BENCH_PASSWORD", "s@cret");
        command.output().unwrap()
    };

    let page = folder.path().join("page.html");
    let with_password = format!("resp://:s@cret@{tcp}");
    let page_argument = page.to_str().unwrap();
    let filled = bench("fillseq", &["--target", &with_password, "--pipeline", "16", "--report", page_argument]);
    let filled = report(&filled);
    assert_eq!((&filled["ops"], &filled["ops_by_kind"]["put"]), (&KEYS.into(), &KEYS.into()));
    assert_eq!((&filled["server"]["kind"], &filled["server"]["address"]), (&"ecotone".into(), &target.clone().into()));
    assert_eq!((&filled["server"]["connections"], &filled["server"]["pipeline"]), (&2.into(), &16.into()));
    assert_eq!(filled["bytes_user"], KEYS * 516);
    for figure in ["ops_per_s", "cpu_seconds"] {
        assert!(filled[figure].as_f64().unwrap() > 0.0, "{figure}: {filled}");
    }
    for figure in ["energy_joules", "epo_uj", "memory_bytes"] {
        assert!(filled["server"][figure].as_f64().unwrap() > 0.0, "{figure}: {filled}");
    }
    assert_eq!(filled["server"]["energy_source"], "model");
    assert!(filled["stall_ms"].as_f64().unwrap() >= 0.0);
    // On a file system in memory the kernel counts nothing.
    assert!(filled["war"].as_f64().is_none_or(|war| war >= 1.0), "{filled}");
    assert!(filled["latency_us"]["put"]["p50"].as_f64().unwrap() > 0.0);
    assert!(!filled.to_string().contains("s@cret") && !std::fs::read_to_string(&page).unwrap().contains("s@cret"));

    let address = ServerAddress::Tcp(tcp.to_owned());
    let options = ServerOptions { credentials: Some(Credentials::password("s@cret")), ..ServerOptions::new(address) };
    let asked = RespTarget::open(&options).unwrap();
    let shape = KeyShape::new(KeyOrder::Number, 16);
    let all: Vec<Vec<u8>> = (0..KEYS)
        .map(|number| {
            let mut key = shape.buffer();
            shape.write(number, &mut key);
            key
        })
        .collect();
    for keys in all.chunks(500) {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        assert!(asked.multi_get(&keys).unwrap().iter().all(|value| value.as_ref().is_some_and(|of| of.len() == 500)));
    }

    // Over the socket, one at a time, at a rate.
    let unix = format!("unix://{}", socket.display());
    let at_rate = ["--target", &unix, "--use-existing", "--seconds", "1", "--rate", "500"];
    let reads: Vec<Value> = (0..3).map(|_| report(&bench("readrandom", &at_rate))).collect();
    // What is due at the end is left out, which on a busy machine may be more than a few; so the
    // best of three counts.
    let read = reads.iter().max_by_key(|read| read["ops"].as_u64()).unwrap();
    assert_eq!((&read["missed"], &read["options"]["use_existing"]), (&0.into(), &true.into()));
    assert!((450..=550).contains(&read["ops"].as_u64().unwrap()), "{read}");

    // What it takes beside its data can be told once some of that is in tables.
    let why = filled["unavailable"]["sar_at_end"].as_str().unwrap_or_default();
    assert!(filled["sar_at_end"].is_null() && why.contains("flushed nothing"), "{filled}");
    save(tcp, "s@cret");
    let overwritten = report(&bench("overwrite", &["--target", &unix, "--use-existing", "--ops", "1000"]));
    for figure in ["sar", "sar_at_end"] {
        assert!(overwritten[figure].as_f64().unwrap() >= 1.0, "{figure}: {overwritten}");
    }

    let again = bench("fillseq", &["--target", &target]);
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(said.contains(&target) && said.contains("it holds keys"), "{said}");
    let said = refusal(&["bench", "readrandom", "--use-existing", "--target", &target]);
    assert!(said.contains("NOAUTH") && said.contains("ECOTONE_BENCH_PASSWORD"), "{said}");
    let said = refusal(&["bench", "readrandom", "--target", &format!("resp://:wrong@{tcp}")]);
    assert!(said.contains("WRONGPASS") && !said.contains("wrong@"), "{said}");
    server.terminate();
    let said = refusal(&["bench", "readrandom", "--target", &target]);
    assert!(said.contains(&target) && said.contains("cannot be reached") && said.contains("start it"), "{said}");
}

#[test]
fn what_a_server_cannot_be_asked_is_refused_with_the_reason() {
    let target = "resp://127.0.0.1:1";
    for (arguments, says) in [
        (&["bench", "ycsb-e", "--target", target][..], "SCAN visits keys in no order"),
        (&["bench", "mixgraph", "--target", target], "SCAN visits keys in no order"),
        (&["bench", "fillseq", "--target", target, "--dir", "/tmp/x"], "--dir is for stores"),
        (&["bench", "fillseq", "--target", target, "--durability", "none"], "--durability is for stores"),
        (&["bench", "fillseq", "--target", target, "--separation", "off"], "--separation is for stores"),
        (&["bench", "fillseq", "--target", target, "--cores", "1"], "--cores is for stores"),
        (&["bench", "fillseq", "--target", target, "--pipeline", "0"], "between 1 and 1024"),
        (&["bench", "fillseq", "--target", target, "--pipeline", "2", "--rate", "5"], "leave pipeline at 1"),
        (&["bench", "fillseq", "--target", target, "--compare"], "cannot be used with"),
        (&["bench", "fillseq", "--compare", "--baseline", target], "run servers one after the other"),
        (&["bench", "fillseq", "--pipeline", "2"], "--pipeline is for servers"),
        (&["bench", "fillseq", "--values", "xml"], "random, half, json, text, zeros:SHARE"),
        (&["bench", "fillseq", "--values", "zeros:2"], "between 0 and 1"),
        (&["lab", "fillseq", "--values", "xml"], "random, half, json, text, zeros:SHARE"),
        (&["bench", "fillseq", "--use-existing"], "--use-existing needs --dir"),
        (&["bench", "fillseq", "--target", "redis"], "resp://HOST:PORT"),
        (&["bench", "fillseq", "--target", "resp://nowhere"], "there is no port"),
        (&["lab", "ycsb-e", "--through", "resp"], "SCAN visits keys in no order"),
        (&["lab", "fillseq", "--pipeline", "2"], "--pipeline is for --through resp"),
        (&["lab", "fillseq", "--through", "resp", "--pipeline", "2", "--rate", "70%"], "leave it at 1"),
        (
            &["serve", "--dir", "/nonexistent/dir", "--clients", "off", "--wait-for-start"],
            "give --workload or --clients",
        ),
    ] {
        let said = refusal(arguments);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn a_server_under_the_lab_counts_what_clients_ask_between_start_and_stop() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(&["--dir", folder.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    command.args(["--clients", "127.0.0.1:0", "--wait-for-start", "--records", "-"]).stderr(Stdio::null());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut records = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Record>(&line.unwrap()).unwrap());
    let Some(Record::Ready(ready)) = records.next() else { panic!("it is not ready") };
    let address = ServerAddress::Tcp(ready.clients.unwrap());
    let mut client = Connection::open(&address, None).unwrap();
    let mut ask = |parts: &[&[u8]], times: u32| {
        for _ in 0..times {
            client.ask(parts).unwrap();
        }
    };
    // What is loaded is no part of the workload, and what is no request of data neither.
    ask(&[b"SET", b"key", b"loaded"], 50);
    input.write_all(b"start\n").unwrap();
    // The first sample says that it has begun.
    assert!(matches!(records.next(), Some(Record::Sample(_))));
    ask(&[b"SET", b"key", b"value"], 30);
    ask(&[b"GET", b"key"], 20);
    ask(&[b"GET", b"none"], 7);
    ask(&[b"PING"], 100);
    input.write_all(b"stop\n").unwrap();
    let sums = records.find_map(|record| if let Record::Final(sums) = record { Some(sums) } else { None }).unwrap();
    assert_eq!((sums.ops, sums.reads, sums.writes, sums.missed), (57, 27, 30, 7));
    assert!(sums.seconds > 0.0 && sums.energy_joules > 0.0 && sums.cpu_seconds > 0.0, "{sums:?}");
    // It goes on to work for others until it is told again.
    ask(&[b"PING"], 1);
    input.write_all(b"stop\n").unwrap();
    assert_eq!(records.count(), 0);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_lab_drives_its_servers_through_the_protocol() {
    let folder = tempfile::tempdir().unwrap();
    for (workload, more) in [("fillrandom", &["--pipeline", "4"][..]), ("ycsb-f", &["--threads", "2"])] {
        let record = folder.path().join(workload);
        let mut command = ecotone(&["lab", workload, "--profile", "pair", "--policies", "local", "--seconds", "3"]);
        command.args(["--keys", "2000", "--through", "resp", "--json"]).args(more);
        command.args(["--record", record.to_str().unwrap()]);
        let output = command.output().unwrap();
        if String::from_utf8_lossy(&output.stderr).contains("cannot make emulated cores") {
            eprintln!("nobody may make cgroups here: nothing is tested");
            return;
        }
        let lab = report(&output);
        assert_eq!((&lab["through"], &lab["warnings"]), (&"resp".into(), &Value::Array(Vec::new())), "{lab}");
        for server in lab["runs"][0]["servers"].as_array().unwrap() {
            for figure in ["ops", "ops_per_s", "writes_per_s", "energy_joules", "epo_uj", "cpu_seconds"] {
                assert!(server[figure].as_f64().unwrap() > 0.0, "{figure}: {server}");
            }
            let name = server["name"].as_str().unwrap();
            let records = std::fs::read_to_string(record.join("local").join(format!("{name}.records.jsonl"))).unwrap();
            let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let sampled: u64 =
                records.iter().filter(|of| of["type"] == "sample").filter_map(|of| of["ops"].as_u64()).sum();
            assert!(sampled > 0, "{name} counted nothing while it worked");
            let sums = records.iter().find(|of| of["type"] == "final").unwrap();
            assert_eq!((&sums["missed"], &sums["core_failures"]), (&0.into(), &0.into()), "{name}");
            let kind = if workload == "ycsb-f" { "read_modify_write" } else { "put" };
            assert!(sums["latency_us"][kind]["p99"].as_f64().unwrap() > 0.0, "{name}: {sums}");
        }
    }
}
