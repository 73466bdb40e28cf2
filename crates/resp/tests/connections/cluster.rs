//! Several servers in one process, with views of the federation that are made by hand: clients that
//! follow redirects, views that change meanwhile, and servers that ask one another.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::StoreSettings;
use ecotone_keyspace::{Blocking, Slot, WriteGroup};
use ecotone_resp::cluster_view::{Cluster, ClusterMode, ClusterView, ServerView, ShardView};
use ecotone_resp::service::{Limits, Service};

use crate::common::redis::{elements, text};
use crate::common::served::Served;
use crate::common::wire::{Wire, request};
use crate::common::{TestClient, words};

const CLUSTER: ClusterMode = ClusterMode { is_cluster: true, is_proxy: false };
const PROXY: ClusterMode = ClusterMode { is_cluster: false, is_proxy: true };

/// How long a client goes on following redirects.
const PATIENCE: Duration = Duration::from_secs(60);

fn id(number: usize) -> String {
    format!("{number:040x}")
}

/// Servers, and where they are.
pub(crate) struct Servers {
    pub(crate) all: Vec<Served>,
    views: Vec<ServerView>,
}

impl Servers {
    pub(crate) fn start(number: usize, mode: ClusterMode) -> Self {
        Self::with(number, mode, &Limits::default())
    }

    fn with(number: usize, mode: ClusterMode, limits: &Limits) -> Self {
        let settings = || StoreSettings::default().with_separation(128);
        let all: Vec<Served> = (0..number).map(|_| Served::with(limits.clone(), settings(), 2)).collect();
        let views = all
            .iter()
            .enumerate()
            .map(|(place, served)| ServerView::at(id(place + 1), "127.0.0.1".into(), served.address().port()));
        let views = views.collect();
        all.iter().for_each(|served| served.service.cluster.set_mode(mode));
        Self { all, views }
    }

    /// Ranges of slots of about the same size, one for each of `owners`, which serves it.
    fn shards(owners: &[usize], epoch: u64) -> Vec<ShardView> {
        let border = |shard: usize| (16_384 * shard / owners.len()) as u16;
        let shard = |(number, owner): (usize, &usize)| ShardView {
            id: id(1000 + number),
            slots: vec![(border(number), border(number + 1) - 1)],
            primary: *owner,
            replicas: Vec::new(),
            epoch,
            written_bytes: 0,
        };
        owners.iter().enumerate().map(shard).collect()
    }

    /// As the server at place `own` sees it.
    fn view(&self, own: usize, owners: &[usize], epoch: u64) -> ClusterView {
        ClusterView::new(self.views.clone(), own, Self::shards(owners, epoch), epoch).unwrap()
    }

    fn publish(&self, own: usize, owners: &[usize], epoch: u64) {
        self.all[own].service.cluster.publish(self.view(own, owners, epoch));
    }

    pub(crate) fn publish_to_all(&self, owners: &[usize], epoch: u64) {
        (0..self.all.len()).for_each(|own| self.publish(own, owners, epoch));
    }

    pub(crate) fn address(&self, place: usize) -> SocketAddr {
        self.all[place].address()
    }
}

/// A client that follows redirects.
struct Follower {
    begins_at: SocketAddr,
    connections: HashMap<SocketAddr, Wire>,
    /// By slot.
    known: HashMap<u16, SocketAddr>,
    redirects: usize,
}

impl Follower {
    fn new(begins_at: SocketAddr) -> Self {
        Self { begins_at, connections: HashMap::new(), known: HashMap::new(), redirects: 0 }
    }

    /// The reply of whoever has the key, which is the second word.
    fn ask(&mut self, words: &str) -> String {
        let slot = Slot::of(words.split(' ').nth(1).unwrap().as_bytes()).number();
        let began = Instant::now();
        loop {
            let address = *self.known.get(&slot).unwrap_or(&self.begins_at);
            let connection = self.connections.entry(address).or_insert_with(|| Wire::to(address));
            let reply = connection.ask(words);
            let Some(moved) = reply.strip_prefix("-MOVED ") else { return reply };
            let (moved, to) = moved.trim_end().split_once(' ').unwrap();
            assert_eq!(moved, slot.to_string(), "{words}: {reply}");
            self.known.insert(slot, to.parse().unwrap());
            self.redirects += 1;
            assert!(began.elapsed() < PATIENCE, "{words} is sent from one to the other");
        }
    }
}

#[test]
fn a_client_that_follows_redirects_finds_all_keys_and_then_asks_the_right_server() {
    let servers = Servers::start(3, CLUSTER);
    servers.publish_to_all(&[0, 1, 2, 1, 0], 1);
    let mut client = Follower::new(servers.address(2));
    for number in 0..500 {
        assert_eq!(client.ask(&format!("SET key:{number} {number}")), "+OK\r\n");
    }
    let redirects = client.redirects;
    assert!(redirects > 100, "{redirects}");
    for number in 0..500 {
        let value = number.to_string();
        assert_eq!(client.ask(&format!("GET key:{number}")), format!("${}\r\n{value}\r\n", value.len()));
    }
    assert_eq!(client.redirects, redirects, "it knows by now");
    // Each server has its own, and counts these alone.
    let sizes: Vec<usize> = (0..3)
        .map(|place| {
            let size = Wire::to(servers.address(place)).ask("DBSIZE");
            size[1..].trim_end().parse().unwrap()
        })
        .collect();
    assert_eq!(sizes.iter().sum::<usize>(), 500);
    assert!(sizes.iter().all(|size| *size > 50), "{sizes:?}");
    // What CLUSTER SLOTS says is where they are.
    let mut first = Wire::to(servers.address(0));
    first.send(&request(&[b"CLUSTER", b"SLOTS"]));
    let reply = first.reply();
    for range in elements(&reply).unwrap() {
        let parts = elements(range).unwrap();
        let number = |answer: &[u8]| String::from_utf8_lossy(text(answer)).parse::<u16>().unwrap();
        let (begin, end, server) = (number(parts[0]), number(parts[1]), elements(parts[2]).unwrap());
        let address = SocketAddr::new("127.0.0.1".parse().unwrap(), number(server[1]));
        for (slot, known) in client.known.iter().filter(|(slot, _)| (begin..=end).contains(*slot)) {
            assert_eq!(*known, address, "slot {slot}");
        }
    }
}

/// Copies what `from` has in `slots` to `to`, past all commands.
fn copy(from: &Service, to: &Service, slots: &[Slot]) {
    let mut reader = TestClient::of(from);
    let mut target = WriteGroup::new(to.keyspace.clone());
    assert!(target.hold(slots, Blocking::Allowed));
    for slot in slots {
        let number = slot.number().to_string();
        let reply = reader.send(&[b"CLUSTER", b"GETKEYSINSLOT", number.as_bytes(), b"100000"]);
        let mut source = WriteGroup::new(from.keyspace.clone());
        for key in crate::common::redis::texts(&reply) {
            let mut keys = source.keys(Blocking::Allowed);
            let entry = keys.string(&key).unwrap().unwrap();
            target.keys(Blocking::Allowed).set(&key, entry.tag, None, &entry).unwrap();
        }
    }
    target.commit(Blocking::Allowed).unwrap();
}

#[test]
fn a_client_that_follows_redirects_loses_nothing_while_shards_move() {
    const WRITERS: usize = 4;
    const KEYS: usize = 40;
    const MOVES: usize = 12;
    let servers = Servers::start(3, CLUSTER);
    let mut owners = vec![0, 1, 2, 0];
    servers.publish_to_all(&owners, 1);
    let (ends, moved_meanwhile) = (AtomicBool::new(false), AtomicBool::new(false));
    let redirects: usize = std::thread::scope(|scope| {
        let write = |writer: usize| {
            let mut client = Follower::new(servers.address(writer % 3));
            let mut last = vec![0_u64; KEYS];
            let mut round = 0;
            while !ends.load(Ordering::Relaxed) || round == 0 {
                round += 1;
                for (number, last) in last.iter_mut().enumerate() {
                    let key = format!("{writer}:{number}");
                    // Reads, writes and transactions; each change is found by the next.
                    match (number + round) % 3 {
                        0 => assert_eq!(client.ask(&format!("GET {key}")), bulk(*last), "{key}"),
                        1 => {
                            *last += 1;
                            assert_eq!(client.ask(&format!("INCR {key}")), format!(":{last}\r\n"), "{key}");
                        }
                        _ => {
                            *last += 1;
                            assert_eq!(client.ask(&format!("SET {key} {last}")), "+OK\r\n", "{key}");
                        }
                    }
                }
            }
            for (number, last) in last.iter().enumerate() {
                assert_eq!(client.ask(&format!("GET {writer}:{number}")), bulk(*last));
            }
            client.redirects
        };
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        for (epoch, turn) in (2..).zip(0..MOVES) {
            let shard = turn % owners.len();
            let (from, to) = (owners[shard], (owners[shard] + 1) % 3);
            let (first, last) = Servers::shards(&owners, epoch)[shard].slots[0];
            let slots: Vec<Slot> = (first..=last).map(|slot| Slot::new(slot).unwrap()).collect();
            owners[shard] = to;
            // The one that had it lets go first; all that it has acknowledged is there then.
            servers.publish(from, &owners, epoch);
            assert!(Cluster::fence(&servers.all[from].service.keyspace, &slots));
            copy(&servers.all[from].service, &servers.all[to].service, &slots);
            servers.publish(to, &owners, epoch);
            servers.publish((0..3).find(|other| *other != from && *other != to).unwrap(), &owners, epoch);
            moved_meanwhile.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(30));
        }
        ends.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert!(moved_meanwhile.load(Ordering::Relaxed) && redirects > MOVES, "{redirects}");
}

fn bulk(number: u64) -> String {
    if number == 0 {
        return "$-1\r\n".into();
    }
    let text = number.to_string();
    format!("${}\r\n{text}\r\n", text.len())
}

#[test]
fn a_request_that_waits_while_its_shard_goes_is_redirected() {
    let servers = Servers::start(2, CLUSTER);
    servers.publish_to_all(&[0], 1);
    let service = &servers.all[0].service;
    for held in [&b"a"[..], b"{a}b"] {
        servers.publish_to_all(&[0], 1);
        // Somebody holds the latch that it needs.
        let mut group = WriteGroup::new(service.keyspace.clone());
        assert!(group.hold(&[Slot::of(held)], Blocking::Allowed));
        let mut client = Wire::to(servers.address(0));
        client.send(&request(&words("SET a 1")));
        crate::common::served::until("it waits", || service.statistics.waiting.load(Ordering::Relaxed) > 0);
        servers.publish_to_all(&[1], 2);
        group.commit(Blocking::Allowed).unwrap();
        let moved = format!("-MOVED 15495 {}\r\n", servers.address(1));
        assert_eq!(String::from_utf8(client.reply()).unwrap(), moved);
        // So is a transaction.
        servers.publish_to_all(&[0], 3);
        let mut group = WriteGroup::new(service.keyspace.clone());
        assert!(group.hold(&[Slot::of(held)], Blocking::Allowed));
        assert_eq!(client.ask("MULTI"), "+OK\r\n");
        assert_eq!(client.ask("SET a 2"), "+QUEUED\r\n");
        client.send(&request(&words("EXEC")));
        crate::common::served::until("it waits", || service.statistics.waiting.load(Ordering::Relaxed) > 0);
        servers.publish_to_all(&[1], 4);
        group.commit(Blocking::Allowed).unwrap();
        assert_eq!(String::from_utf8(client.reply()).unwrap(), moved);
        servers.publish_to_all(&[0], 5);
        assert_eq!(client.ask("EXISTS a"), ":0\r\n");
    }
}

#[test]
fn pipelines_without_cluster_support_are_served_by_any_server() {
    for (version, nothing) in [(2, "$-1\r\n"), (3, "_\r\n")] {
        let servers = Servers::start(3, PROXY);
        servers.publish_to_all(&[0, 1, 2], 1);
        let mut client = Wire::to(servers.address(1));
        client.ask(&format!("HELLO {version}"));
        let (mut requests, mut replies) = (Vec::new(), String::new());
        let mut add = |words: &str, reply: &str| {
            requests.extend(request(&crate::common::words(words)));
            replies.push_str(reply);
        };
        for number in 0..2000 {
            add(&format!("SET key:{number} {number}"), "+OK\r\n");
            add(&format!("APPEND key:{number} +"), &format!(":{}\r\n", number.to_string().len() + 1));
            let value = format!("{number}+");
            add(&format!("GET key:{number}"), &format!("${}\r\n{value}\r\n", value.len()));
            add(&format!("GET none:{number}"), nothing);
            if number % 100 == 0 {
                // Between them what is for this server alone, and what is wrong.
                add("PING", "+PONG\r\n");
                add(&format!("INCR key:{number}"), "-ERR value is not an integer or out of range\r\n");
                add("ECHO here", "$4\r\nhere\r\n");
                let fields = if version == 2 { "*2" } else { "%1" };
                add(&format!("HSET hash:{number} f v"), ":1\r\n");
                add(&format!("HGETALL hash:{number}"), &format!("{fields}\r\n$1\r\nf\r\n$1\r\nv\r\n"));
            }
        }
        std::thread::scope(|scope| {
            let mut stream = client.stream.try_clone().unwrap();
            scope.spawn(move || stream.write_all(&requests).unwrap());
            let mut got = vec![0; replies.len()];
            client.stream.read_exact(&mut got).unwrap();
            assert!(String::from_utf8(got).unwrap() == replies, "replies are as of one server, in order");
        });
        // Each key is where it belongs.
        let mut direct = Follower::new(servers.address(0));
        for place in 0..3 {
            servers.all[place].service.cluster.set_mode(CLUSTER);
        }
        for number in 0..2000 {
            let value = format!("{number}+");
            assert_eq!(direct.ask(&format!("GET key:{number}")), format!("${}\r\n{value}\r\n", value.len()));
        }
        let forwarded = servers.all[1].service.statistics.forwarded.load(Ordering::Relaxed);
        assert!(forwarded > 4000, "{forwarded}");
        assert_eq!(servers.all[1].service.statistics.forwards_failed.load(Ordering::Relaxed), 0);
        assert_eq!(servers.all[0].service.statistics.forwarded.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn what_is_not_one_request_to_one_server_is_not_forwarded() {
    let servers = Servers::start(2, PROXY);
    servers.publish_to_all(&[0, 1], 1);
    let mut client = Wire::to(servers.address(0));
    let moved = format!("-MOVED 15495 {}\r\n", servers.address(1));
    for (words, reply) in [
        // Together elsewhere, and apart.
        ("MSET a 1 foo 2", "+OK\r\n"),
        ("MGET foo a", "*2\r\n$1\r\n2\r\n$1\r\n1\r\n"),
        ("MGET a b", "-CROSSSLOT Keys in request don't hash to the same slot\r\n"),
        ("WATCH a", &moved),
        ("MULTI", "+OK\r\n"),
        ("SET b 1", "+QUEUED\r\n"),
        ("GET a", &moved),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"),
        // A client that follows redirects is told.
        ("GET a", "$1\r\n1\r\n"),
        ("CLIENT CAPA nothing redirect", "+OK\r\n"),
        ("GET a", &moved),
        ("RESET", "+RESET\r\n"),
        ("GET a", "$1\r\n1\r\n"),
    ] {
        assert_eq!(client.ask(words), reply, "{words}");
    }
    // Two servers that take each other for the owner do not pass it on for ever.
    servers.publish(1, &[0, 0], 2);
    let back = format!("-MOVED 15495 {}\r\n", servers.address(0));
    assert_eq!(client.ask("GET a"), back);
    // What was forwarded is not repeated inside of a longer value's bound.
    servers.publish(1, &[0, 1], 3);
    let value = "v".repeat(9 << 20);
    let refused = client.ask(&format!("SET a {value}"));
    assert!(refused.starts_with("-ERR a request of more than 8388608 bytes is not forwarded"), "{refused:.200}");
    let value = "v".repeat(7 << 20);
    assert_eq!(client.ask(&format!("SET a {value}")), "+OK\r\n");
    assert!(client.ask("GET a") == format!("${}\r\n{value}\r\n", value.len()));
}

#[test]
fn servers_give_one_another_the_password_that_both_have() {
    let limits = |password: &str| Limits { password: Some(password.into()), ..Limits::default() };
    let servers = Servers::with(2, PROXY, &limits("one"));
    servers.publish_to_all(&[0, 1], 1);
    let mut client = Wire::to(servers.address(0));
    assert!(client.ask("GET a").starts_with("-NOAUTH"));
    assert_eq!(client.ask("AUTH one"), "+OK\r\n");
    assert_eq!(client.ask("SET a 1"), "+OK\r\n");
    servers.all[1].service.set_limits(limits("another"));
    servers.all[0].service.set_limits(limits("one"));
    // The connection that it has goes on; one that is new does not.
    let mut others: Vec<Wire> = (0..2).map(|_| Wire::to(servers.address(0))).collect();
    let replies: Vec<String> = others
        .iter_mut()
        .map(|client| {
            client.ask("HELLO 3 AUTH default one");
            client.ask("GET a")
        })
        .collect();
    for reply in replies {
        let named = format!("-CLUSTERDOWN server {} at {}", id(2), servers.address(1));
        assert!(reply.starts_with(&named) && reply.contains("clients.password"), "{reply}");
        assert!(reply.contains("WRONGPASS") && reply.trim_end().ends_with("nothing was done"), "{reply}");
    }
}

#[test]
fn a_server_that_does_not_answer_is_named_and_holds_up_nobody_else() {
    let servers = Servers::start(1, PROXY);
    // One that takes connections and says nothing, and a port where nobody is.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let at = |number: usize, address: SocketAddr| ServerView::at(id(number), "127.0.0.1".into(), address.port());
    let all = vec![servers.views[0].clone(), at(2, silent.local_addr().unwrap()), at(3, gone)];
    let view = ClusterView::new(all, 0, Servers::shards(&[0, 1, 2], 1), 1).unwrap();
    servers.all[0].service.cluster.publish(view);
    let mut client = Wire::to(servers.address(0));
    let began = Instant::now();
    // b is here, c of the silent one, a of the one that is gone.
    let refused = client.ask("GET a");
    assert!(refused.starts_with(&format!("-CLUSTERDOWN server {} at {gone} cannot be asked: ", id(3))), "{refused}");
    assert!(refused.trim_end().ends_with("nothing was done"), "{refused}");
    let mut waiting = Wire::to(servers.address(0));
    waiting.send(&request(&words("SET c 1")));
    // All other clients, of whatever event loop, are served meanwhile.
    let mut others: Vec<Wire> = (0..4).map(|_| Wire::to(servers.address(0))).collect();
    for number in 0..200 {
        assert_eq!(others[number % 4].ask(&format!("SET {{b}}{number} v")), "+OK\r\n");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let refused = String::from_utf8(waiting.reply()).unwrap();
    assert!(
        refused.starts_with(&format!("-CLUSTERDOWN server {} at ", id(2))) && refused.contains("did not answer"),
        "{refused}"
    );
    // The same where it goes silent later: whether the request was carried out is not known then.
    let speaks_once = std::thread::spawn(move || {
        let mut greeted = Vec::new();
        for stream in silent.incoming().flatten().take(4) {
            greeted.push(stream.try_clone().unwrap());
            std::thread::spawn(move || {
                let (mut stream, mut bytes) = (stream, [0; 4096]);
                let mut read = 0;
                while let Ok(more @ 1..) = stream.read(&mut bytes) {
                    read += more;
                    // To the greeting alone.
                    if read < 100 {
                        let _ = stream.write_all(b"+OK\r\n");
                    }
                }
            });
        }
        greeted
    });
    let refused = client.ask(&format!("SET c {}", "v".repeat(1000)));
    assert!(
        refused.contains("did not answer within 5 s; whether it has carried out this command is not known"),
        "{refused}"
    );
    assert_eq!(client.ask("GET {b}1"), "$1\r\nv\r\n");
    drop(speaks_once);
    let failed = servers.all[0].service.statistics.forwards_failed.load(Ordering::Relaxed);
    assert_eq!(failed, 3);
}
