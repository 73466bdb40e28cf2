//! Replies about shards with copies on other servers: they wait, in order, as long as the level of
//! their client asks, and nobody else waits with them.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::Fixture;
use common::Shared;
use common::gates::TestGate;
use common::served::{Served, any_port, until};
use common::wire::{Wire, request};
use common::words;
use ecotone_engine::{Durability, StoreSettings};
use ecotone_keyspace::gate::{Level, Refused};
use ecotone_resp::cluster_view::ClusterMode;
use ecotone_resp::copies::MAX_WAIT_FOR_COPIES;
use ecotone_resp::serve::{EventLoops, Listen};
use ecotone_resp::service::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const ALL: [Level; 3] = [Level::One, Level::Quorum, Level::All];
const NO_LEASE: Option<Refused> = Some(Refused::NoLease);
const TOO_FEW: Option<Refused> = Some(Refused::TooFewInSync { in_sync: 1, needed: 2 });

/// The key `b` is in the first shard, `a` in the second.
struct Gated {
    served: Served,
    gates: [Arc<TestGate>; 2],
    host: Arc<common::TestHost>,
}

impl Gated {
    fn new() -> Self {
        Self::with(Durability::None, u64::MAX)
    }

    fn with(durability: Durability, clock_limit_ms: u64) -> Self {
        let (directory, shared) = (tempfile::tempdir().unwrap(), Shared::new());
        let options = StoreSettings { durability, ..StoreSettings::default() };
        let mut shards = [(1, (0, 8191)), (2, (8192, 16_383))]
            .map(|(id, slots)| shared.open(directory.path(), id, vec![slots], &options));
        let gates = [0, 1].map(|index| TestGate::of(&shards[index].store));
        for (shard, gate) in shards.iter_mut().zip(&gates) {
            gate.limit_clock(clock_limit_ms);
            shard.gate = Some(gate.clone());
        }
        let fixture = Fixture::over_shards(directory, shards.into(), durability);
        let host = fixture.host.clone();
        let listen = Listen { addresses: any_port(), event_loops: EventLoops::All(1), ..Listen::default() };
        let limits = Limits { clients: 10_000, ..Limits::default() };
        Self { served: Served::over(fixture, &listen, limits), gates, host }
    }

    fn wire(&self) -> Wire {
        Wire::to(self.served.address())
    }

    /// Waits until replies of so many clients are held.
    fn until_held(&self, clients: usize) {
        let held = &self.served.service.statistics.awaiting_copies;
        until(&format!("the replies of {clients} are held"), || held.load(Ordering::SeqCst) == clients);
    }
}

fn send(wire: &mut Wire, requests: &[&str]) {
    let bytes: Vec<u8> = requests.iter().flat_map(|asked| request(&words(asked))).collect();
    wire.send(&bytes);
}

fn replies(wire: &mut Wire, number: usize) -> Vec<String> {
    (0..number).map(|_| String::from_utf8(wire.reply()).unwrap().trim_end().replace("\r\n", " ")).collect()
}

/// Whether nothing has come that was not read.
fn is_silent(wire: &Wire) -> bool {
    wire.stream.set_nonblocking(true).unwrap();
    let come = wire.stream.peek(&mut [0]);
    wire.stream.set_nonblocking(false).unwrap();
    come.is_err()
}

#[test]
fn replies_are_held_until_copies_have_what_they_tell_of_and_come_in_order() {
    for durability in [Durability::None, Durability::Always] {
        let gated = Gated::with(durability, u64::MAX);
        let (mut wire, mut other) = (gated.wire(), gated.wire());
        assert_eq!(other.ask("SET b{b} 0"), "+OK\r\n");
        gated.gates[0].hold(&[Level::Quorum, Level::All]);
        send(&mut wire, &["ECHO first", "SET b 1", "GET b", "INCR b", "PING"]);
        gated.until_held(1);
        assert!(is_silent(&wire), "also what came before the write waits with it");
        // Nobody else does: not at another shard, and not who asks for less.
        assert_eq!(other.ask("SET a 1"), "+OK\r\n");
        assert_eq!(other.ask("PING"), "+PONG\r\n");
        assert_eq!(other.ask("CLIENT LEVEL one"), "+OK\r\n");
        assert_eq!(other.ask("GET b"), "$1\r\n2\r\n");
        assert_eq!(other.ask("SET b 5"), "+OK\r\n");
        assert!(is_silent(&wire));
        gated.gates[0].release();
        assert_eq!(replies(&mut wire, 5), ["$5 first", "+OK", "$1 1", ":2", "+PONG"]);
        gated.until_held(0);
        // One event loop was enough, and is woken once, however often it waits.
        gated.gates[0].hold(&[Level::Quorum]);
        send(&mut wire, &["DEL b"]);
        gated.until_held(1);
        gated.gates[0].release();
        assert_eq!(replies(&mut wire, 1), [":1"]);
        assert_eq!((gated.gates[0].watchers(), gated.gates[1].watchers()), (1, 0));
    }
}

#[test]
fn a_reader_waits_for_what_was_written_before_it_and_for_nothing_later() {
    let gated = Gated::new();
    let (mut writer, mut reader) = (gated.wire(), gated.wire());
    assert_eq!(writer.ask("CLIENT LEVEL one"), "+OK\r\n");
    gated.gates[0].hold(&[Level::Quorum]);
    assert_eq!(writer.ask("SET b 1"), "+OK\r\n");
    let written = gated.gates[0].number();
    send(&mut reader, &["GET b"]);
    gated.until_held(1);
    assert_eq!(writer.ask("SET b 2"), "+OK\r\n");
    assert!(is_silent(&reader));
    gated.gates[0].reach(Level::Quorum, written);
    assert_eq!(replies(&mut reader, 1), ["$1 1"]);
    // The same with what reads many keys, with what tells that a key was written, and with an error.
    for (asked, reply) in [
        ("SCAN 0 COUNT 100", "*2 $1 0 *1 $1 b"),
        ("KEYS *", "*1 $1 b"),
        ("DBSIZE", ":1"),
        ("EXISTS b", ":1"),
        ("LLEN b", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
    ] {
        assert_eq!(writer.ask("SET b 2"), "+OK\r\n");
        send(&mut reader, &[asked]);
        gated.until_held(1);
        assert!(is_silent(&reader), "{asked}");
        gated.gates[0].reach(Level::Quorum, gated.gates[0].number());
        assert_eq!(replies(&mut reader, 1), [reply], "{asked}");
    }
    // How the server is can be asked whatever copies have.
    assert_eq!(writer.ask("SET b 2"), "+OK\r\n");
    assert!(reader.ask("INFO keyspace").contains("keys=1"));
    assert!(reader.ask("INFO replication").contains("\r\nclients_awaiting_copies:0\r\n"));
    // Transactions: those that read, and those that only tell that somebody wrote.
    gated.gates[0].release();
    assert_eq!(reader.ask("WATCH b"), "+OK\r\n");
    gated.gates[0].hold(&[Level::Quorum]);
    assert_eq!(writer.ask("SET b 3"), "+OK\r\n");
    send(&mut reader, &["MULTI", "PING", "EXEC", "MULTI", "GET b", "EXEC"]);
    gated.until_held(1);
    gated.gates[0].release();
    assert_eq!(replies(&mut reader, 6), ["+OK", "+QUEUED", "*-1", "+OK", "+QUEUED", "*1 $1 3"]);
}

#[test]
fn a_transaction_waits_as_a_whole() {
    let gated = Gated::new();
    let mut wire = gated.wire();
    gated.gates[0].hold(&[Level::Quorum]);
    send(&mut wire, &["MULTI", "SET b 1", "INCR b", "EXEC"]);
    gated.until_held(1);
    assert!(is_silent(&wire));
    gated.gates[0].refuse(&ALL, Some(Refused::NotPrimary));
    let told = replies(&mut wire, 4);
    assert_eq!(told[..3], ["+OK", "+QUEUED", "+QUEUED"]);
    assert!(told[3].starts_with("-CLUSTERDOWN ") && told[3].ends_with("the outcome of the write is unknown"));
    gated.gates[0].refuse(&ALL, None);
    gated.gates[0].release();
    assert_eq!(wire.ask("GET b"), "$1\r\n2\r\n", "it was written all the same");
}

#[test]
fn a_pipeline_over_two_shards_waits_for_both_and_each_answers_for_its_own() {
    let gated = Gated::new();
    let mut wire = gated.wire();
    let [first, second] = &gated.gates;
    first.hold(&[Level::Quorum]);
    second.hold(&[Level::Quorum]);
    send(&mut wire, &["SET a 1", "SET b 1", "GET a"]);
    gated.until_held(1);
    second.release();
    gated.until_held(1);
    assert!(is_silent(&wire));
    first.release();
    assert_eq!(replies(&mut wire, 3), ["+OK", "+OK", "$1 1"]);
    // One is lost meanwhile, and the other is not.
    first.hold(&[Level::Quorum]);
    send(&mut wire, &["SET a 2", "SET b 2", "ECHO 1", "GET b", "GET a"]);
    gated.until_held(1);
    first.refuse(&ALL, NO_LEASE);
    let told = replies(&mut wire, 5);
    assert_eq!([&told[0], &told[2], &told[4]], ["+OK", "$1 1", "$1 2"]);
    assert!(told[1].starts_with("-CLUSTERDOWN ") && told[1].contains("unknown"), "{}", told[1]);
    assert!(told[3].starts_with("-CLUSTERDOWN ") && !told[3].contains("unknown"), "{}", told[3]);
    let errors = gated.wire().ask("INFO errorstats");
    assert!(errors.contains("errorstat_CLUSTERDOWN:count=2"), "{errors}");
}

#[test]
fn the_level_of_each_command_is_that_of_its_client_then() {
    let gated = Gated::new();
    let mut wire = gated.wire();
    gated.gates[0].refuse(&[Level::All], TOO_FEW);
    send(
        &mut wire,
        &["CLIENT LEVEL all", "SET b 1", "GET b", "CLIENT LEVEL One", "SET b 2", "CLIENT LEVEL default", "GET b"],
    );
    let told = replies(&mut wire, 7);
    assert_eq!([&told[0], &told[3], &told[4], &told[5], &told[6]], ["+OK", "+OK", "+OK", "+OK", "$1 2"]);
    let needs = "1 copies are in sync, and this level needs 2";
    assert_eq!(told[1], format!("-NOREPLICAS Not enough good replicas to write. {needs}"));
    assert_eq!(told[2], format!("-NOREPLICAS Not enough good replicas to read. {needs}"));
    // Only what was asked for at the level that is held waits; what comes before it waits with it.
    gated.gates[0].hold(&[Level::All]);
    gated.gates[0].refuse(&[Level::All], None);
    send(&mut wire, &["SET b 3", "CLIENT LEVEL all", "INCR b"]);
    gated.until_held(1);
    gated.gates[0].refuse(&[Level::All], NO_LEASE);
    let told = replies(&mut wire, 3);
    assert_eq!(told[..2], ["+OK", "+OK"]);
    assert!(told[2].contains("the outcome of the write is unknown"), "{}", told[2]);
    // It is shown where it is set, and reset.
    gated.gates[0].refuse(&[Level::All], None);
    let level = |wire: &mut Wire, asked: &str| {
        let list = wire.ask(asked);
        list.split([' ', '\n']).find_map(|field| field.strip_prefix("level=").map(str::to_owned))
    };
    assert_eq!(level(&mut wire, "CLIENT INFO").as_deref(), Some("all"));
    let unknown = "-ERR Unknown level 'two': it is one, quorum, all or default\r\n";
    assert_eq!(wire.ask("CLIENT LEVEL two"), unknown);
    assert_eq!(level(&mut gated.wire(), "CLIENT LIST").as_deref(), Some("all"));
    assert_eq!(wire.ask("RESET"), "+RESET\r\n");
    assert_eq!(level(&mut wire, "CLIENT LIST"), None);
}

#[test]
fn what_would_be_refused_is_not_written() {
    let gated = Gated::new();
    let mut wire = gated.wire();
    for (refused, word) in
        [(NO_LEASE, "-CLUSTERDOWN "), (Some(Refused::NotPrimary), "-CLUSTERDOWN "), (TOO_FEW, "-NOREPLICAS ")]
    {
        gated.gates[0].refuse(&ALL, refused);
        let before = gated.gates[0].number();
        for asked in ["SET b 1", "DEL b", "MSET b 1 b{b} 2", "FLUSHALL"] {
            let told = wire.ask(asked);
            assert!(told.starts_with(word) && !told.contains("unknown"), "{asked}: {told}");
        }
        send(&mut wire, &["MULTI", "SET b 1", "EXEC"]);
        let told = replies(&mut wire, 3);
        assert!(told[1].starts_with(word), "{}", told[1]);
        assert_eq!(told[2], "-EXECABORT Transaction discarded because of previous errors.");
        assert_eq!(gated.gates[0].number(), before);
        assert!(wire.ask("GET b").starts_with(word));
        // The other shard, and what reads none, are as ever.
        assert_eq!(wire.ask("SET a 1"), "+OK\r\n");
        assert_eq!(wire.ask("PING"), "+PONG\r\n");
    }
    // It is lost between MULTI and EXEC.
    gated.gates[0].refuse(&ALL, None);
    assert_eq!(wire.ask("SET b 1"), "+OK\r\n");
    send(&mut wire, &["MULTI", "SET b 2"]);
    assert_eq!(replies(&mut wire, 2), ["+OK", "+QUEUED"]);
    gated.gates[0].refuse(&ALL, NO_LEASE);
    let told = wire.ask("EXEC");
    assert!(told.starts_with("-EXECABORT Transaction discarded because of: CLUSTERDOWN "), "{told}");
    assert_eq!(wire.ask("EXEC"), "-ERR EXEC without MULTI\r\n");
    gated.gates[0].refuse(&ALL, None);
    assert_eq!(wire.ask("GET b"), "$1\r\n1\r\n");
}

#[test]
fn a_reply_that_waits_too_long_tells_that_the_outcome_is_unknown() {
    let gated = Gated::new();
    let (mut wire, mut other) = (gated.wire(), gated.wire());
    gated.gates[0].hold(&[Level::Quorum]);
    let began = Instant::now();
    send(&mut wire, &["SET b 1", "PING"]);
    gated.until_held(1);
    send(&mut other, &["SET a 1", "EXISTS b"]);
    gated.until_held(2);
    let told = replies(&mut wire, 2);
    assert!(told[0].starts_with("-TIMEOUT the outcome is unknown: "), "{}", told[0]);
    assert_eq!(told[1], "+PONG");
    assert!(began.elapsed() >= MAX_WAIT_FOR_COPIES, "{:?}", began.elapsed());
    let told = replies(&mut other, 2);
    assert!(told[0] == "+OK" && told[1].starts_with("-TIMEOUT "), "{told:?}");
    gated.until_held(0);
    gated.gates[0].release();
    assert_eq!(wire.ask("GET b"), "$1\r\n1\r\n");
}

#[test]
fn a_watch_fails_in_another_epoch() {
    let gated = Gated::new();
    let mut wire = gated.wire();
    for (begin, end) in [(None, "*1 +OK"), (Some(0), "*-1"), (Some(1), "*-1"), (None, "*1 +OK")] {
        send(&mut wire, &["WATCH b", "WATCH a", "MULTI", "SET b 1"]);
        assert_eq!(replies(&mut wire, 4), ["+OK", "+OK", "+OK", "+QUEUED"]);
        if let Some(shard) = begin {
            gated.gates[shard].begin_epoch();
        }
        assert_eq!(wire.ask("EXEC").trim_end().replace("\r\n", " "), end);
    }
}

#[test]
fn what_was_written_in_an_epoch_that_is_over_is_unknown() {
    let gated = Gated::new();
    let mut wire = gated.wire();
    gated.gates[0].hold(&[Level::Quorum]);
    send(&mut wire, &["SET b 1"]);
    gated.until_held(1);
    gated.gates[0].begin_epoch();
    let told = replies(&mut wire, 1);
    assert!(told[0].starts_with("-CLUSTERDOWN ") && told[0].contains("unknown"), "{}", told[0]);
    gated.gates[0].release();
    assert_eq!(wire.ask("SET b 2"), "+OK\r\n");
}

#[test]
fn wait_counts_copies_of_what_its_client_has_written() {
    let gated = Gated::new();
    let (mut wire, mut fresh) = (gated.wire(), gated.wire());
    let gate = &gated.gates[0];
    gated.gates[1].set_copies(&[(u64::MAX, u64::MAX); 3]);
    gate.set_copies(&[(0, 0), (0, 0)]);
    // Of one that has written nothing: how many there are, of the shard that has the fewest.
    assert_eq!(fresh.ask("WAIT 0 0"), ":2\r\n");
    assert_eq!(wire.ask("SET b 1"), "+OK\r\n");
    assert_eq!(wire.ask("WAIT 0 0"), ":0\r\n");
    let began = Instant::now();
    assert_eq!(wire.ask("WAIT 1 30"), ":0\r\n");
    assert!(began.elapsed() >= Duration::from_millis(30));
    let written = gate.number();
    gate.set_copies(&[(written, 0), (0, 0)]);
    assert_eq!(wire.ask("WAIT 1 0"), ":1\r\n");
    assert_eq!(wire.ask("WAIT 2 20"), ":1\r\n");
    assert_eq!(wire.ask("WAITAOF 0 1 20"), "*2\r\n:0\r\n:0\r\n", "it has it in memory only");
    // In a pipeline the write comes before, and what comes behind waits.
    send(&mut wire, &["SET b 2", "WAIT 2 0", "PING"]);
    assert_eq!(replies(&mut wire, 1), ["+OK"]);
    assert!(is_silent(&wire));
    gate.set_copies(&[(written + 1, written + 1), (written + 1, 0)]);
    assert_eq!(replies(&mut wire, 2), [":2", "+PONG"]);
    assert_eq!(wire.ask("WAITAOF 0 1 0"), "*2\r\n:0\r\n:1\r\n");
    assert_eq!(wire.ask("WAITAOF 0 2 20"), "*2\r\n:0\r\n:1\r\n");
    // This server's own log is waited for where there is one.
    gated.host.settings.lock().insert("appendonly".into(), "yes".into());
    assert_eq!(wire.ask("WAITAOF 1 1 0"), "*2\r\n:1\r\n:1\r\n");
    // Within a transaction nothing waits, and what it writes itself is not counted.
    send(&mut wire, &["MULTI", "SET b 3", "WAIT 3 0", "WAITAOF 0 5 0", "EXEC"]);
    assert_eq!(replies(&mut wire, 5)[4], "*3 +OK :2 *2 :0 :1");
    assert_eq!(wire.ask("WAIT 0 0"), ":0\r\n");
    // Writes to two shards are in as many copies as the one is in that has fewer.
    gate.set_copies(&[(u64::MAX, 0), (u64::MAX, 0)]);
    assert_eq!(wire.ask("SET a 1"), "+OK\r\n");
    assert_eq!(wire.ask("WAIT 0 0"), ":2\r\n");
    // What was written in another epoch is in none that is known; that is told once.
    gate.begin_epoch();
    assert_eq!(wire.ask("WAIT 1 10"), ":0\r\n");
    assert_eq!(wire.ask("WAIT 0 0"), ":3\r\n", "only the other shard's write is left");
    // One that waits for ever ends with its connection.
    assert_eq!(wire.ask("SET b 4"), "+OK\r\n");
    gate.set_copies(&[]);
    send(&mut wire, &["WAIT 1 0"]);
    assert_eq!(fresh.ask("PING"), "+PONG\r\n");
    drop(wire);
    gated.served.until_clients(1);
}

#[test]
fn who_goes_while_its_reply_waits_holds_nobody_up() {
    let gated = Gated::new();
    let (mut gone, mut stays, mut other) = (gated.wire(), gated.wire(), gated.wire());
    gated.gates[0].hold(&[Level::Quorum]);
    send(&mut gone, &["SET b 1"]);
    send(&mut stays, &["SET b{b} 1"]);
    gated.until_held(2);
    drop(gone);
    assert_eq!(other.ask("SET a 1"), "+OK\r\n");
    gated.gates[0].release();
    assert_eq!(replies(&mut stays, 1), ["+OK"]);
    gated.served.until_clients(2);
    assert_eq!(other.ask("GET b"), "$1\r\n1\r\n");
}

#[test]
fn thousands_that_wait_cost_no_thread() {
    const CLIENTS: usize = 2000;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let gated = Gated::new();
    let mut clients: Vec<Wire> = (0..CLIENTS).map(|_| gated.wire()).collect();
    gated.gates[0].hold(&[Level::Quorum]);
    for (number, client) in clients.iter_mut().enumerate() {
        send(client, &[&format!("SET b{{b}}{number} {number}")]);
    }
    gated.until_held(CLIENTS);
    let statistics = &gated.served.service.statistics;
    assert_eq!(statistics.blocking_requests.load(Ordering::SeqCst), 0);
    let mut other = gated.wire();
    assert_eq!(other.ask("GET a"), "$-1\r\n");
    gated.gates[0].release();
    for client in &mut clients {
        assert_eq!(replies(client, 1), ["+OK"]);
    }
    assert_eq!(other.ask("DBSIZE"), format!(":{CLIENTS}\r\n"));
}

#[test]
fn keys_expire_by_a_clock_that_copies_know() {
    let began_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let gated = Gated::with(Durability::None, began_ms);
    let mut wire = gated.wire();
    assert_eq!(wire.ask("SET b 1 PX 20"), "+OK\r\n");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(wire.ask("PTTL b"), ":20\r\n", "the clock stands still");
    gated.gates[0].limit_clock(began_ms + 3_600_000);
    assert_eq!(wire.ask("PTTL b"), ":20\r\n", "the other gate holds it");
    gated.gates[1].limit_clock(began_ms + 3_600_000);
    assert_eq!(wire.ask("EXISTS b"), ":0\r\n");
}

#[test]
fn a_client_asks_the_server_to_take_over() {
    let gated = Gated::new();
    let mut wire = gated.wire();
    assert_eq!(wire.ask("CLUSTER FAILOVER"), "-ERR This instance has cluster support disabled\r\n");
    gated.served.service.cluster.set_mode(ClusterMode { is_cluster: true, is_proxy: false });
    assert_eq!(wire.ask("CLUSTER FAILOVER NOW"), "-ERR syntax error\r\n");
    for (asked, force) in [("", false), (" FORCE", true), (" takeover", true)] {
        assert_eq!(wire.ask(&format!("CLUSTER FAILOVER{asked}")), "+OK\r\n");
        assert_eq!(gated.host.failed_over.lock().pop(), Some(force));
    }
    gated.host.settings.lock().insert("refuses-failover".into(), "there is no copy".into());
    assert_eq!(wire.ask("CLUSTER FAILOVER"), "-ERR there is no copy\r\n");
}
