//! The real program under a supervisor: what it tells, that it goes on where nobody takes its log,
//! and that a signal ends it whatever it waits for.

use crate::common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::{Connection, configuration, serve};
use ecotone_server::record::Record;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Killed should the test fail.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// It is ending: how it did.
    fn ends_soon(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it does not end");
            std::thread::yield_now();
        }
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap().success());
    }
}

/// The next message, its assignments by line.
fn received(socket: &UnixDatagram) -> Vec<String> {
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap().lines().map(str::to_owned).collect()
}

fn supervised(command: &mut Command, notify: &str) -> Running {
    let command = command.env("NOTIFY_SOCKET", notify).env("WATCHDOG_USEC", "200000").env_remove("WATCHDOG_PID");
    Running(command.stderr(Stdio::null()).spawn().unwrap())
}

#[test]
fn a_supervisor_is_told_when_it_serves_that_it_lives_and_when_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let path = folder.path().join("notify");
    let name = format!("ecotone-test-{}", std::process::id());
    let sockets = [
        (path.to_str().unwrap().to_owned(), UnixDatagram::bind(&path).unwrap()),
        (format!("@{name}"), UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap()),
    ];
    for (notify, socket) in sockets {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut running = supervised(&mut serve(&["--config", file.to_str().unwrap()]), &notify);
        assert_eq!(received(&socket), ["STATUS=opening the store"]);
        let ready = received(&socket);
        assert_eq!(ready[0], "READY=1");
        let clients = ready[1].strip_prefix("STATUS=clients at ").unwrap().split(';').next().unwrap();
        // When it says so clients are served.
        let mut client = Connection(TcpStream::connect(clients).unwrap());
        client.says("*1\r\n$4\r\nPING\r\n", "+PONG\r\n");
        let signs = (0..10).filter(|_| received(&socket) == ["WATCHDOG=1"]).count();
        assert!(signs >= 5, "{signs} signs of life");
        running.signal("-TERM");
        loop {
            let said = received(&socket);
            if said[0] == "STOPPING=1" {
                break;
            }
            assert!(said[0] == "WATCHDOG=1" || said[0].starts_with("STATUS="), "{said:?}");
        }
        assert!(running.0.wait().unwrap().success());
    }
}

#[test]
fn a_process_that_is_not_the_supervised_one_gives_no_signs_of_life() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = serve(&["--config", file.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1");
    let mut running = Running(command.stderr(Stdio::null()).spawn().unwrap());
    while received(&socket)[0] != "READY=1" {}
    assert!(received(&socket)[0].starts_with("STATUS="));
    running.signal("-TERM");
    while received(&socket)[0] != "STOPPING=1" {}
    assert!(running.0.wait().unwrap().success());
}

/// A server whose log goes to `log` and cannot be written once it serves, which is when `ready` is
/// called. More than wait to be written.
const MORE_LINES: usize = 5000;

fn serves_without_a_log(format: &str, log: Stdio, ready: impl FnOnce()) {
    serves_with_output(format, log, Stdio::null(), 4, ready);
}

fn serves_with_output(format: &str, log: Stdio, output: Stdio, lines: usize, ready: impl FnOnce()) {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = serve(&["--config", file.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", &path).env("ECOTONE_SERVER_LOG_FORMAT", format).stderr(log).stdout(output);
    let mut running = Running(command.spawn().unwrap());
    // The pipe of the log is open for as long as this is.
    drop(command);
    assert_eq!(received(&socket), ["STATUS=opening the store"]);
    let status = received(&socket)[1].clone();
    let clients = status.strip_prefix("STATUS=clients at ").unwrap().split(';').next().unwrap();
    ready();
    let connect = || {
        let stream = TcpStream::connect(clients).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(stream)
    };
    let mut stays = connect();
    stays.says("*1\r\n$4\r\nPING\r\n", "+PONG\r\n");
    for line in 0..lines {
        // Of each there is a line in the log.
        let mut takes_it_for_tls = connect().0;
        takes_it_for_tls.write_all(b"\x16\x03\x01\x00\x05hello\r\n").unwrap();
        // What it is sent, and that it is reset, does not matter here.
        let _ = takes_it_for_tls.read_to_end(&mut Vec::new());
        stays.says("*1\r\n$4\r\nPING\r\n", "+PONG\r\n");
        if line % 1000 < 4 {
            connect().says("*1\r\n$4\r\nPING\r\n", "+PONG\r\n");
        }
    }
    running.signal("-TERM");
    assert!(running.ends_soon().success(), "{format}");
}

#[test]
fn a_log_that_cannot_be_written_is_lost_and_nothing_else() {
    for format in ["json", "text"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        serves_without_a_log(format, full.into(), || {});
        let (reader, writer) = std::io::pipe().unwrap();
        serves_without_a_log(format, writer.into(), || drop(reader));
    }
}

#[test]
fn a_log_that_nobody_reads_holds_up_nobody() {
    for format in ["json", "text"] {
        let (reader, writer) = std::io::pipe().unwrap();
        let log = writer.try_clone().unwrap();
        let mut filler = writer;
        // From the moment on in which it serves: of 64 KiB the last four are filled as soon as
        // there is space.
        let fill = || {
            filler.write_all(&[b'.'; 56 * 1024]).unwrap();
            std::thread::spawn(move || while filler.write_all(&[b'.'; 16]).is_ok() {});
        };
        // Standard output goes the same way where both are one pipe.
        let output = log.try_clone().unwrap();
        serves_with_output(format, log.into(), output.into(), MORE_LINES, fill);
        drop(reader);
    }
}

#[test]
fn a_refusal_that_nobody_reads_is_in_the_exit_status() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let status = serve(&["--config", "/there/is/none"]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let printed = serve(&["--print-config"]).stdout(full).stderr(Stdio::null()).status().unwrap();
    assert_eq!(printed.code(), Some(1));
}

/// A server with a workload that waits for `start` on a standard input that stays open.
fn waiting(folder: &std::path::Path) -> (Running, BufReader<std::process::ChildStdout>) {
    let mut command = serve(&["--workload", "fillrandom", "--keys", "1000", "--seconds", "600", "--wait-for-start"]);
    command.arg("--dir").arg(folder.join("data")).args(["--listen", "127.0.0.1:0", "--records", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut records = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    records.read_line(&mut line).unwrap();
    assert!(matches!(serde_json::from_str(&line).unwrap(), Record::Ready(_)), "{line}");
    (Running(child), records)
}

#[test]
fn a_signal_ends_a_server_that_opens_its_store() {
    for signal in ["-TERM", "-INT"] {
        let folder = tempfile::tempdir().unwrap();
        let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
        let store = folder.path().join("data/store");
        std::fs::create_dir_all(&store).unwrap();
        // A file that never says what the store is, as on a device that does not answer.
        assert!(Command::new("mkfifo").arg(store.join("STORE")).status().unwrap().success());
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut running = supervised(&mut serve(&["--config", file.to_str().unwrap()]), path.to_str().unwrap());
        assert_eq!(received(&socket), ["STATUS=opening the store"]);
        running.signal(signal);
        assert!(running.ends_soon().success());
    }
}

#[test]
fn a_signal_ends_a_server_that_fills_its_store_and_closes_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // More keys than can be filled in while anybody waits.
    let mut command = serve(&["--workload", "readrandom", "--keys", "4000000000", "--listen", "127.0.0.1:0"]);
    command.arg("--dir").arg(folder.path().join("data"));
    let mut running = supervised(&mut command, path.to_str().unwrap());
    assert_eq!(received(&socket), ["STATUS=opening the store"]);
    assert_eq!(received(&socket), ["STATUS=filling the store"]);
    running.signal("-TERM");
    assert_eq!(received(&socket)[0], "STOPPING=1", "it is not ready first");
    assert!(running.ends_soon().success());
}

#[test]
fn a_signal_ends_a_server_that_waits_for_its_start() {
    for signal in ["-TERM", "-INT"] {
        let folder = tempfile::tempdir().unwrap();
        let (mut running, mut records) = waiting(folder.path());
        running.signal(signal);
        let mut rest = String::new();
        records.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "it has done nothing");
        assert!(running.0.wait().unwrap().success());
    }
}

#[test]
fn a_signal_ends_a_server_under_its_workload_and_its_sums_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let (mut running, records) = waiting(folder.path());
    running.0.stdin.as_mut().unwrap().write_all(b"start\n").unwrap();
    let mut records = records.lines().map(|line| serde_json::from_str::<Record>(&line.unwrap()).unwrap());
    let works = |record| matches!(record, Record::Sample(sample) if sample.ops > 0);
    assert!(records.by_ref().any(works), "it does nothing");
    running.signal("-TERM");
    let last = records.last().unwrap();
    assert!(matches!(&last, Record::Final(sums) if sums.ops > 0), "{last:?}");
    assert!(running.0.wait().unwrap().success());
}
