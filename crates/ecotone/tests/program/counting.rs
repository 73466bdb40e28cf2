//! The real program under the lab: what it counts of its clients, from the given begin.

use crate::common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::Connection;
use ecotone_server::record::Record;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests before the workload begins: a load of keys.
const LOADED: u64 = 3000;

/// Requests of the workload.
const ASKED: u64 = 500;

/// Killed should the test fail.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes keys, and counts in `sent` what the server must count.
fn write(client: &mut Connection<TcpStream>, requests: u64, sent: &mut u64) {
    for key in 0..requests {
        let key = format!("key{key:05}");
        client.says(&format!("*3\r\n$3\r\nSET\r\n$8\r\n{key}\r\n$1\r\nv\r\n"), "+OK\r\n");
    }
    *sent += requests;
}

/// The operations that the server says it has carried out in all, as `ecotone top` gets it.
fn operations_total(client: &mut Connection<TcpStream>, sent: &mut u64) -> u64 {
    *sent += 1;
    client.0.write_all(b"*2\r\n$4\r\nINFO\r\n$10\r\nfederation\r\n").unwrap();
    let mut reply = BufReader::new(&client.0);
    let mut length = String::new();
    reply.read_line(&mut length).unwrap();
    let length: usize = length.trim_start_matches('$').trim_end().parse().unwrap();
    let mut text = vec![0; length + 2];
    reply.read_exact(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let (_, behind) = text.split_once("operations_total=").unwrap_or_else(|| panic!("{text}"));
    behind.split([',', '\r']).next().unwrap().parse().unwrap()
}

#[test]
fn requests_count_once_and_those_before_the_begin_are_none_of_the_workload() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.arg("serve").arg("--dir").arg(folder.path().join("data")).args([
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
    ]);
    command.args(["--clients", "127.0.0.1:0", "--wait-for-start", "--records", "-"]).env("RUST_LOG", "warn");
    let mut server = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut input = server.0.stdin.take().unwrap();
    let lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let mut records = lines.map(|line| serde_json::from_str::<Record>(&line.unwrap()).unwrap());
    let Some(Record::Ready(ready)) = records.next() else { panic!("it is not ready") };
    let mut client = Connection(TcpStream::connect(ready.clients.unwrap()).unwrap());
    client.0.set_read_timeout(Some(PATIENCE)).unwrap();

    let mut sent = 0;
    write(&mut client, LOADED, &mut sent);
    input.write_all(b"start\n").unwrap();
    // It has begun with its first record, before the workload does.
    let Some(Record::Sample(first)) = records.next() else { panic!("no sample") };
    assert_eq!(first.ops, 0, "nobody has asked for anything yet");
    write(&mut client, ASKED, &mut sent);
    let mut counted = 0;
    while counted < ASKED {
        let Some(Record::Sample(sample)) = records.next() else { continue };
        assert_eq!((sample.ops, sample.reads), (sample.writes, 0));
        counted += sample.ops;
    }
    assert_eq!(counted, ASKED);

    // Each sample adds what came since the one before, and never more than there was.
    let (expected, began) = (sent, Instant::now());
    while operations_total(&mut client, &mut sent) < expected {
        assert!(began.elapsed() < PATIENCE, "{expected} operations are not reported");
    }
    let reported = operations_total(&mut client, &mut sent);
    assert!(reported <= sent, "{reported} operations of {sent} requests");

    input.write_all(b"stop\n").unwrap();
    let sums = records.find_map(|record| if let Record::Final(sums) = record { Some(sums) } else { None }).unwrap();
    assert_eq!((sums.ops, sums.reads, sums.writes), (ASKED, 0, ASKED));
    drop(input);
    assert!(server.0.wait().unwrap().success());
}
