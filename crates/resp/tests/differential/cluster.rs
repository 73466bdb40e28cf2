//! A server of a federation beside one of a Redis cluster: the same slots, the same neighbour, and
//! the same replies.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use ecotone_resp::cluster_view::{ClusterMode, ClusterView, ServerView, ShardView};

use crate::common::redis::{RealRedis, RedisClient, elements, texts};
use crate::common::{Fixture, TestClient, words};

/// How long Redis may take to agree with itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// The slots from this on are the neighbour's.
const BORDER: u16 = 8192;

/// A server of a cluster that says to be at this port. Nobody listens there: what it serves comes
/// by its socket, and only servers speak to one another by TCP.
struct Node {
    redis: RealRedis,
    port: u16,
    bus_port: u16,
    id: String,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Node {
    fn start(port: u16) -> Self {
        let bus_port = free_port();
        let (told, bus) = (port.to_string(), bus_port.to_string());
        let redis = RealRedis::start_with(&[
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus,
            "--cluster-announce-ip",
            "127.0.0.1",
            "--cluster-announce-port",
            &told,
            "--cluster-announce-bus-port",
            &bus,
            "--bind",
            "127.0.0.1",
        ]);
        let id = redis.new_client().send(&[b"CLUSTER", b"MYID"]);
        let id = String::from_utf8(crate::common::redis::text(&id).to_vec()).unwrap();
        Self { redis, port, bus_port, id }
    }

    fn view(&self) -> ServerView {
        ServerView { bus_port: self.bus_port, ..ServerView::at(self.id.clone(), "127.0.0.1".into(), self.port) }
    }

    fn ask(&self, request: &str) -> String {
        String::from_utf8(self.redis.new_client().send(&words(request))).unwrap()
    }

    /// Waits until it says so.
    fn until(&self, request: &str, says: &str) {
        let began = Instant::now();
        while !self.ask(request).contains(says) {
            assert!(began.elapsed() < PATIENCE, "{request} does not say {says:?}: {}", self.ask(request));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn ours(servers: Vec<ServerView>, shards: Vec<ShardView>, epoch: u64) -> Fixture {
    let fixture = Fixture::new();
    fixture.service.cluster.publish(ClusterView::new(servers, 0, shards, epoch).unwrap());
    fixture.service.cluster.set_mode(ClusterMode { is_cluster: true, is_proxy: false });
    fixture
}

fn shard(number: usize, slots: (u16, u16), primary: usize, epoch: u64) -> ShardView {
    ShardView {
        id: format!("{number:040x}"),
        slots: vec![slots],
        primary,
        replicas: Vec::new(),
        epoch,
        written_bytes: 0,
    }
}

fn compare(ours: &mut TestClient<'_>, theirs: &mut RedisClient, requests: &[&str]) {
    for request in requests {
        let words = words(request);
        let (own, real) = (ours.send(&words), theirs.send(&words));
        let shown = |reply: &[u8]| String::from_utf8_lossy(reply).into_owned();
        assert_eq!(shown(&own), shown(&real), "{request}");
    }
}

#[test]
fn one_server_with_all_slots_tells_of_itself_as_redis_does() {
    let node = Node::start(6379);
    assert_eq!(node.ask("CLUSTER ADDSLOTSRANGE 0 16383"), "+OK\r\n");
    node.until("CLUSTER INFO", "cluster_state:ok");
    let fixture = ours(vec![node.view()], vec![shard(1, (0, 16_383), 0, 0)], 0);
    for version in [2, 3] {
        let (mut own, mut real) = (fixture.client(), node.redis.client(version));
        own.ask(&format!("HELLO {version}"));
        compare(
            &mut own,
            &mut real,
            &[
                "FLUSHALL",
                "CLUSTER INFO",
                "CLUSTER MYID",
                "CLUSTER NODES",
                "CLUSTER SLOTS",
                "CLUSTER SHARDS",
                "CLUSTER LINKS",
                "CLUSTER KEYSLOT a",
                "CLUSTER KEYSLOT {a}",
                "CLUSTER KEYSLOT foo{}{bar}",
                "CLUSTER KEYSLOT foo{{bar}}zap",
                "CLUSTER KEYSLOT foo{bar",
                "CLUSTER KEYSLOT",
                "CLUSTER COUNTKEYSINSLOT 15495",
                "SET a 1",
                "CLUSTER COUNTKEYSINSLOT 15495",
                "CLUSTER COUNTKEYSINSLOT 016383",
                "CLUSTER COUNTKEYSINSLOT 16384",
                "CLUSTER COUNTKEYSINSLOT -1",
                "CLUSTER COUNTKEYSINSLOT x",
                "CLUSTER COUNTKEYSINSLOT 9223372036854775808",
                "CLUSTER GETKEYSINSLOT 15495 10",
                "CLUSTER GETKEYSINSLOT 15495 0",
                "CLUSTER GETKEYSINSLOT 15495 -1",
                "CLUSTER GETKEYSINSLOT 16384 1",
                "CLUSTER GETKEYSINSLOT x -1",
                "CLUSTER GETKEYSINSLOT -1 x",
                "CLUSTER GETKEYSINSLOT 1",
                "CLUSTER COUNT-FAILURE-REPORTS nobody",
                "CLUSTER REPLICAS nobody",
                "CLUSTER SLAVES nobody",
                "CLUSTER nothing",
                "CLUSTER",
                "CLUSTER INFO x",
                "READONLY",
                "READWRITE",
                "ASKING",
                "READONLY x",
                "SELECT 0",
                "SELECT 1",
                "SELECT x",
                "INFO cluster_nothing",
                "ROLE",
            ],
        );
        for request in ["COUNT-FAILURE-REPORTS", "REPLICAS"] {
            compare(&mut own, &mut real, &[&format!("CLUSTER {request} {}", node.id)]);
        }
        // Of several keys the order is each server's own.
        compare(&mut own, &mut real, &["MSET {x}1 1 {x}2 2 {x}3 3"]);
        let slot = own.ask("CLUSTER KEYSLOT x");
        let request = format!("CLUSTER GETKEYSINSLOT {} 100", &slot[1..slot.len() - 2]);
        let sorted = |reply: Vec<u8>| texts(&reply).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(sorted(own.send(&words(&request))), sorted(real.send(&words(&request))));
        // Both say that they are of a cluster, and what of HELP is ours is Redis'.
        for client in [own.ask("HELLO"), String::from_utf8(real.send(&[b"HELLO"])).unwrap()] {
            assert!(client.contains("mode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"), "{client}");
        }
        let help = |reply: Vec<u8>| texts(&reply).into_iter().collect::<BTreeSet<_>>();
        let (own, real) = (help(own.send(&[b"CLUSTER", b"HELP"])), help(real.send(&[b"CLUSTER", b"HELP"])));
        // Redis has the last two from 7.2 on.
        let beyond: Vec<String> =
            own.difference(&real).map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        assert!(
            beyond.iter().all(|line| ["MYSHARDID", "    Return the node's shard id."].contains(&line.as_str())),
            "{beyond:?}"
        );
    }
}

#[test]
fn requests_for_two_servers_are_answered_as_by_a_cluster_of_two() {
    let (first, second) = (Node::start(7001), Node::start(7002));
    let last = BORDER - 1;
    assert_eq!(first.ask(&format!("CLUSTER ADDSLOTSRANGE 0 {last}")), "+OK\r\n");
    assert_eq!(second.ask(&format!("CLUSTER ADDSLOTSRANGE {BORDER} 16000")), "+OK\r\n");
    assert_eq!(first.ask("CONFIG SET cluster-require-full-coverage no"), "+OK\r\n");
    // Different epochs, or they would be made so at some time.
    assert_eq!(first.ask("CLUSTER SET-CONFIG-EPOCH 1"), "+OK\r\n");
    assert_eq!(second.ask("CLUSTER SET-CONFIG-EPOCH 2"), "+OK\r\n");
    let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", second.port, second.bus_port);
    assert_eq!(first.ask(&meet), "+OK\r\n");
    first.until("CLUSTER SLOTS", &second.id);
    first.until("CLUSTER INFO", "cluster_state:ok");
    let fixture =
        ours(vec![first.view(), second.view()], vec![shard(1, (0, last), 0, 1), shard(2, (BORDER, 16_000), 1, 2)], 2);
    for version in [2, 3] {
        let (mut own, mut real) = (fixture.client(), first.redis.client(version));
        own.ask(&format!("HELLO {version}"));
        compare(
            &mut own,
            &mut real,
            &[
                "FLUSHALL",
                // b and c are of the first, a of the second, and the slot of {key16333} is nobody's.
                "SET b 1",
                "GET b",
                "GET a",
                "SET a 1",
                "SET {b}x 2",
                "MGET b {b}x",
                "MGET b c",
                "MGET b a",
                "MGET a b",
                "MGET a {a}x",
                "MSET b 1 c 2",
                "MSETNX a 1 b 1",
                "DEL b a",
                "RENAME b a",
                "RENAME b {b}y",
                "COPY {b}y a",
                "COPY {b}y {b}z DB 1",
                "SINTERSTORE b a c",
                "SINTERCARD 2 a b",
                "SINTERCARD 1 a",
                "SINTERCARD x a",
                "ZADD a 1 x",
                "LMOVE a b LEFT LEFT",
                "MEMORY USAGE a",
                "WATCH a",
                "WATCH b {b}x",
                "WATCH b c",
                "UNWATCH",
                "GET",
                "SET a",
                "NOTHING a",
                "EXISTS {b}y a",
                "TYPE a",
                "EXPIRE a 1",
                "SCAN 0 COUNT 100 MATCH nothing",
                "DBSIZE",
                "KEYS {b}y",
                "MULTI",
                "GET b",
                "GET a",
                "GET b",
                "EXEC",
                "MULTI",
                "GET b",
                "GET c",
                "EXEC",
                "EXEC",
                "MULTI",
                "MGET b c",
                "EXEC",
                "MULTI",
                "SET b 1",
                "GET b",
                "DBSIZE",
                "EXEC",
                "MULTI",
                "DISCARD",
                "MULTI",
                "GET a",
                "DISCARD",
                "READONLY",
                "GET a",
                "READWRITE",
                "ASKING",
                "GET a",
                "SELECT 3",
                "CLUSTER KEYSLOT a",
                "COMMAND GETKEYS MSET a 1 b 2",
                "COMMAND GETKEYS SINTERCARD 2 a b",
                "COMMAND GETKEYS GET a",
                "COMMAND GETKEYS MGET a b",
                "COMMAND GETKEYSANDFLAGS SET a 1",
            ],
        );
        // A slot that nobody has.
        let key = (0..).map(|number| format!("key{number}"));
        let unserved = key.clone().find(|key| ecotone_keyspace::Slot::of(key.as_bytes()).number() > 16_000).unwrap();
        compare(
            &mut own,
            &mut real,
            &[&format!("GET {unserved}"), &format!("MGET {unserved} b"), &format!("MGET b {unserved}")],
        );
        // Each key where Redis has it.
        let many: Vec<String> = key.take(300).map(|key| format!("GET {key}")).collect();
        compare(&mut own, &mut real, &many.iter().map(String::as_str).collect::<Vec<_>>());
        // What changes by itself is compared without it.
        let slots = |reply: &[u8]| elements(reply).unwrap().into_iter().map(<[u8]>::to_vec).collect::<BTreeSet<_>>();
        let request = words("CLUSTER SLOTS");
        assert_eq!(slots(&own.send(&request)), slots(&real.send(&request)));
        let lines = |reply: &[u8]| {
            let text = String::from_utf8_lossy(reply).into_owned();
            let lines = text.lines().filter(|line| line.contains(" connected")).map(|line| {
                let mut fields: Vec<String> = line.split(' ').map(str::to_owned).collect();
                // When it was asked, and when it answered.
                fields.drain(4..6);
                fields[0] = fields[0].trim_start_matches("txt:").to_owned();
                fields.join(" ")
            });
            lines.collect::<BTreeSet<_>>()
        };
        let request = words("CLUSTER NODES");
        assert_eq!(lines(&own.send(&request)), lines(&real.send(&request)));
    }
}
