//! The real program on a device whose clock is set back while it is off: keys that clients have
//! found gone stay gone.

use crate::{client, common};

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use client::Client;
use common::{Server, configuration, serve};
use ecotone_engine::{OpenMode, Store, StoreSettings};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const LOOKS_EVERY: Duration = Duration::from_millis(20);

const HOUR_MS: u64 = 3_600_000;
const DAY_S: u64 = 86_400;

const WARNING: &str = "the system's clock is behind the latest time of this store";

fn system_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A server that is started again and again over one store, each time with the clock that it finds.
struct Device {
    folder: tempfile::TempDir,
    configuration: PathBuf,
    /// What sets back the clock of a program that loads it.
    clock: PathBuf,
}

impl Device {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let configuration = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
        let clock = folder.path().join("system_clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients_kills/system_clock.c");
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-Wall", "-o"]).args([&clock, &source]).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Self { folder, configuration, clock }
    }

    /// Starts it with a clock that is a day behind.
    fn start_behind(&self, trusts_system_clock: bool) -> Server {
        let mut command = serve(&["--config", self.configuration.to_str().unwrap()]);
        command.env("LD_PRELOAD", &self.clock).env("ECOTONE_TEST_BEHIND_S", DAY_S.to_string());
        command.env("ECOTONE_CLIENTS_TRUST_SYSTEM_CLOCK", trusts_system_clock.to_string());
        let server = Server::start(command);
        let now_s: u64 = Client::of(&server).ask("TIME").unwrap().split(' ').next().unwrap().parse().unwrap();
        let behind_s = system_ms() / 1000 - now_s;
        assert!(behind_s.abs_diff(DAY_S) < PATIENCE.as_secs(), "its clock is {behind_s} s behind");
        server
    }

    /// The latest time that is noted in the store, which a server has open.
    fn noted_ms(&self) -> Option<u64> {
        // It may remove a table while this opens it.
        let store =
            Store::open(&self.folder.path().join("data/store"), OpenMode::ReadOnly, StoreSettings::default()).ok()?;
        let noted = store.get(b"mclock").unwrap()?;
        Some(u64::from_be_bytes(noted[..].try_into().unwrap()))
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        // To look may be work, and what is awaited needs the processor.
        std::thread::sleep(LOOKS_EVERY);
    }
}

/// Writes keys of which some go at once, and sees them gone. Some of these are older than a version
/// of theirs that would have stayed.
fn see_gone(client: &mut Client) {
    for request in [
        "SET gone v".to_owned(),
        "SET gone v PX 20".to_owned(),
        format!("RPUSH list {}", vec!["element"; 300].join(" ")),
        "PEXPIRE list 20".to_owned(),
        "HSET hash field v".to_owned(),
        "PEXPIRE hash 20".to_owned(),
        format!("SET left v PX {HOUR_MS}"),
        "SET kept v".to_owned(),
    ] {
        client.ask(&request).unwrap();
    }
    until("they go", || client.ask("EXISTS gone list hash").unwrap() == "0");
}

fn are_gone(client: &mut Client) {
    assert_eq!(client.ask("EXISTS gone list hash").unwrap(), "0");
    assert_eq!(client.ask("MGET gone left kept").unwrap(), "nothing v v");
    assert_eq!(client.ask("LLEN list").unwrap(), "0");
    assert_eq!(client.ask("HGETALL hash").unwrap(), "");
    assert_eq!(client.ask("DBSIZE").unwrap(), "2");
    let left_ms: u64 = client.ask("PTTL left").unwrap().parse().unwrap();
    assert!(left_ms < HOUR_MS, "{left_ms}");
}

#[test]
fn what_was_seen_gone_when_the_time_was_noted_stays_gone_over_a_kill_and_a_clock_set_back() {
    let device = Device::new();
    let mut server = Server::with(&device.configuration);
    see_gone(&mut Client::of(&server));
    let gone_ms = system_ms();
    until("the time is noted", || device.noted_ms() >= Some(gone_ms));
    server.signal("-KILL");
    server.child.wait().unwrap();

    for _ in 0..2 {
        let mut server = device.start_behind(false);
        assert!(server.said.contains(WARNING) && server.said.contains("clients.trust_system_clock"), "{}", server.said);
        are_gone(&mut Client::of(&server));
        server.signal("-KILL");
        server.child.wait().unwrap();
    }
    // With a clock that is right.
    let server = Server::with(&device.configuration);
    assert!(!server.said.contains(WARNING), "{}", server.said);
    are_gone(&mut Client::of(&server));
    server.terminate();

    // Who says that the clock is right now gets it, and keys live as much longer.
    let server = device.start_behind(true);
    assert!(!server.said.contains(WARNING), "{}", server.said);
    let mut client = Client::of(&server);
    let left_ms: u64 = client.ask("PTTL left").unwrap().parse().unwrap();
    assert!(left_ms > DAY_S * 1000 && left_ms < DAY_S * 1000 + HOUR_MS, "{left_ms}");
    drop(client);
    server.terminate();
}

#[test]
fn what_was_seen_gone_stays_gone_over_an_orderly_end_and_a_clock_set_back() {
    let device = Device::new();
    let server = Server::with(&device.configuration);
    see_gone(&mut Client::of(&server));
    server.terminate();
    let server = device.start_behind(false);
    assert!(server.said.contains(WARNING), "{}", server.said);
    let mut client = Client::of(&server);
    are_gone(&mut client);
    // And time goes on.
    client.ask("SET brief v PX 20").unwrap();
    until("it goes", || client.ask("EXISTS brief").unwrap() == "0");
    drop(client);
    server.terminate();
}
