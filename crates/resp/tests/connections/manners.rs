//! How clients are let go: those that do nothing, take nothing, are killed, or are there when the
//! server stops; and that limits which change hold for who is there.

use crate::common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use common::Fixture;
use common::served::{Served, any_port, until};
use common::wire::{Wire, request};
use ecotone_engine::{Durability, StoreSettings};
use ecotone_keyspace::{Keyspace, Type};
use ecotone_resp::host::{Host, InfoSection};
use ecotone_resp::serve::{EventLoops, Listen, Machine, Server};
use ecotone_resp::service::{Limits, Service};
use parking_lot::Mutex;

const PATIENCE: Duration = Duration::from_secs(120);

fn served(limits: Limits, event_loops: usize) -> Served {
    Served::listening(
        &Listen { addresses: any_port(), event_loops: EventLoops::All(event_loops), ..Listen::default() },
        limits,
    )
}

/// A client that is owed many replies of 1 MiB and takes none. They are asked for by others than
/// `other`.
fn stuck(served: &Served, other: &mut Wire) -> TcpStream {
    other.send(&request(&[b"SET", b"big", &vec![b'x'; 1 << 20]]));
    assert_eq!(other.reply(), b"+OK\r\n");
    let mut stuck = TcpStream::connect(served.address()).unwrap();
    stuck.write_all(&request(&[b"GET", b"big"]).repeat(30)).unwrap();
    let address = stuck.local_addr().unwrap().to_string();
    let owed = || {
        let all = served.service.clients.all();
        let of = all.iter().find(|client| client.address == address);
        of.map_or(0, |client| client.buffers.sending_bytes.load(Ordering::Relaxed))
    };
    // It is sent what fits between the two; the next reply is then owed for as long as it reads
    // nothing.
    until("it is owed something", || owed() > 0);
    stuck
}

/// Reads whatever is there until the end of the connection.
fn until_end(stream: &mut impl Read) -> usize {
    let (mut all, mut piece) = (0, vec![0; 1 << 20]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return all,
            Ok(bytes) => all += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it is not closed"),
            Err(_) => return all,
        }
    }
}

#[test]
fn a_client_that_takes_nothing_is_killed_at_once() {
    let served = served(Limits { send: Duration::from_secs(3600), ..Limits::default() }, 1);
    let mut other = Wire::to(served.address());
    let mut stuck = stuck(&served, &mut other);
    let address = stuck.local_addr().unwrap();
    assert_eq!(other.ask(&format!("CLIENT KILL ADDR {address}")), ":1\r\n");
    served.until_clients(1);
    stuck.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(until_end(&mut stuck) < 30 << 20, "it got all of its replies: nothing was interrupted");
    served.server.stop();
}

#[test]
fn a_slow_client_lives_while_it_takes_something_and_not_longer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let limit = Duration::from_secs(1);
    let listen = Listen { addresses: any_port(), socket: Some(socket.clone()), ..Listen::default() };
    let served = Served::listening(&listen, Limits { send: limit, ..Limits::default() });
    let mut other = Wire::to(served.address());
    // The kernel keeps about 200 KiB for a Unix socket, and says that there is room only when three
    // quarters of it are empty.
    let value = vec![b'x'; 400 << 10];
    other.send(&request(&[b"SET", b"big", &value]));
    assert_eq!(other.reply(), b"+OK\r\n");
    let mut slow = UnixStream::connect(&socket).unwrap();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    slow.write_all(&request(&[b"GET", b"big"])).unwrap();
    let began = Instant::now();
    let whole = value.len() + "$409600\r\n\r\n".len();
    let mut taken = vec![0; whole];
    for piece in taken.chunks_mut(16 << 10) {
        std::thread::sleep(Duration::from_millis(150));
        slow.read_exact(piece).unwrap();
    }
    assert!(taken.ends_with(b"x\r\n") && began.elapsed() > 2 * limit, "{:?}", began.elapsed());
    assert_eq!(served.service.clients.len(), 2);

    let began = Instant::now();
    slow.write_all(&request(&[b"GET", b"big"]).repeat(3)).unwrap();
    served.until_clients(1);
    assert!(began.elapsed() >= limit);
    assert!(until_end(&mut slow) < 3 * whole);
    served.server.stop();
}

#[test]
fn limits_that_change_hold_for_who_is_there() {
    let served = served(Limits::default(), 2);
    let change = |limits: Limits| served.service.set_limits(limits);
    let mut wire = Wire::to(served.address());
    let long = request(&[b"SET", b"k", &vec![b'x'; 2 << 20]]);
    wire.send(&long);
    assert_eq!(wire.reply(), b"+OK\r\n");

    change(Limits { argument_bytes: 1 << 20, ..Limits::default() });
    let mut refused = Wire::to(served.address());
    std::mem::swap(&mut refused, &mut wire);
    refused.send(&long[..40]);
    assert!(refused.reply().starts_with(b"-ERR Protocol error: invalid bulk length"));
    assert_eq!(refused.reply(), b"");

    assert_eq!(wire.ask("PING"), "+PONG\r\n");
    change(Limits { output_bytes: 1 << 20, ..Limits::default() });
    wire.send(&request(&[b"GET", b"k"]));
    assert!(wire.reply().starts_with(b"-ERR the reply is longer"), "it would be owed more than it may be");

    // Nobody is stopped while it waits; who waits already is, and not sooner than is due.
    let mut waits = Wire::to(served.address());
    assert_eq!(waits.ask("PING"), "+PONG\r\n");
    let spoke = Instant::now();
    change(Limits { idle: Some(Duration::from_millis(700)), ..Limits::default() });
    assert_eq!(waits.reply(), b"");
    assert!(spoke.elapsed() >= Duration::from_millis(690), "{:?}", spoke.elapsed());
    // What it has waited counts.
    let mut waits = Wire::to(served.address());
    assert_eq!(waits.ask("PING"), "+PONG\r\n");
    change(Limits { idle: Some(Duration::from_secs(3600)), ..Limits::default() });
    change(Limits { idle: None, ..Limits::default() });
    assert_eq!(waits.ask("PING"), "+PONG\r\n");
    change(Limits { idle: Some(Duration::from_nanos(1)), ..Limits::default() });
    assert_eq!(waits.reply(), b"");

    change(Limits { send: Duration::from_secs(3600), ..Limits::default() });
    let mut other = Wire::to(served.address());
    let _stuck = stuck(&served, &mut other);
    change(Limits { send: Duration::from_millis(100), ..Limits::default() });
    served.until_clients(1);
    assert_eq!(other.ask("PING"), "+PONG\r\n");
    served.server.stop();
}

/// A client that draws under the latch of `key` for longer than a test waits, and its number.
fn drawing(served: &Served, command: &str, key: &str) -> (Wire, String) {
    let mut wire = Wire::to(served.address());
    let id = wire.ask("CLIENT ID").trim_matches([':', '\r', '\n']).to_owned();
    let before = served.service.client_memory.load(Ordering::Relaxed);
    wire.send(&request(&common::words(&format!("{command} {key} -50000000"))));
    until("it draws", || served.service.client_memory.load(Ordering::Relaxed) > before + (1 << 20));
    (wire, id)
}

/// Of a thousand elements each, which lie apart.
const COLLECTIONS: [(&str, &str, &str); 3] =
    [("SADD", "set", "SRANDMEMBER"), ("HSET", "hash", "HRANDFIELD"), ("ZADD", "sorted", "ZRANDMEMBER")];

fn fill(wire: &mut Wire) {
    let numbers: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    for (add, key, _) in COLLECTIONS {
        let each = if add == "SADD" { 1 } else { 2 };
        let elements: Vec<&[u8]> =
            numbers.iter().flat_map(|number| std::iter::repeat_n(number.as_bytes(), each)).collect();
        wire.send(&request(&[&[add.as_bytes(), key.as_bytes()], &elements[..]].concat()));
        assert_eq!(wire.reply(), b":1000\r\n");
    }
}

#[test]
fn who_draws_without_end_is_killed_at_once_and_its_key_is_free() {
    let served = served(Limits::default(), 1);
    let mut other = Wire::to(served.address());
    fill(&mut other);
    for (add, key, draw) in COLLECTIONS {
        let (_drawing, id) = drawing(&served, draw, key);
        assert_eq!(other.ask(&format!("CLIENT KILL ID {id}")), ":1\r\n");
        let more = if add == "SADD" { "more" } else { "1 1.5" };
        assert!(other.ask(&format!("{add} {key} {more}")).starts_with(':'), "{add}");
        served.until_clients(1);
    }
    served.server.stop();
}

#[test]
fn who_looks_through_all_keys_is_let_go_when_it_was_killed_or_the_server_stops() {
    let fixture = Fixture::new();
    let keys: Vec<String> = (0..10_000).map(|number| format!("k{number} v")).collect();
    fixture.client().ask(&format!("MSET {}", keys.join(" ")));
    let looks = ["KEYS nothing", "DBSIZE", "SCAN 0 COUNT 100000"];
    for request in looks {
        let mut client = fixture.client();
        client.client.info.kill();
        assert_eq!(client.ask(request), "-ERR the client was killed\r\n", "{request}");
    }
    fixture.service.stops.store(true, Ordering::Relaxed);
    for request in looks {
        let reply = fixture.client().ask(request);
        assert!(reply.starts_with("-ERR the server stops before this is done"), "{request}: {reply}");
    }
}

#[test]
fn who_draws_without_end_is_told_that_the_server_stops() {
    for (_, key, draw) in COLLECTIONS {
        let served = served(Limits::default(), 1);
        fill(&mut Wire::to(served.address()));
        let (mut drawing, _) = drawing(&served, draw, key);
        served.server.stop();
        let told = drawing.reply();
        assert!(told.starts_with(b"-ERR the server stops"), "{draw}: {} bytes", told.len());
    }
}

/// A host that keeps who asks it for settings until it is told to go on.
struct Holding {
    asked: Mutex<Sender<()>>,
    goes_on: Mutex<Receiver<()>>,
}

impl Host for Holding {
    fn info(&self, _: &str) -> Vec<InfoSection> {
        Vec::new()
    }

    fn settings(&self, _: &dyn Fn(&str) -> bool) -> BTreeMap<String, String> {
        self.asked.lock().send(()).unwrap();
        self.goes_on.lock().recv().unwrap();
        BTreeMap::new()
    }

    fn is_secret(&self, _: &str) -> bool {
        false
    }

    fn change(&self, _: &[(String, String)]) -> Result<(), String> {
        Ok(())
    }

    fn rewrite(&self) -> Result<(), String> {
        Ok(())
    }

    fn shut_down(&self) {}
}

#[test]
fn a_server_that_stops_waits_for_nobody_whom_it_has_not_heard_yet() {
    let Fixture { service, directory: _directory, .. } = Fixture::with(StoreSettings::default());
    let keyspace = Keyspace::open(service.keyspace.only_store().unwrap().clone(), Durability::EverySecond).unwrap();
    drop(service);
    let ((asked, is_asked), (go_on, goes_on)) = (channel(), channel());
    let host = Holding { asked: Mutex::new(asked), goes_on: Mutex::new(goes_on) };
    let service = Arc::new(Service::new(keyspace, Limits::default(), Arc::new(host)));
    let listen = Listen { addresses: any_port(), event_loops: EventLoops::All(2), ..Listen::default() };
    let server = Server::start(service.clone(), &listen, Machine::default()).unwrap();
    let address = server.listening().addresses[0];
    // One on each event loop; the second event loop is then busy.
    let mut one = Wire::to(address);
    assert_eq!(one.ask("PING"), "+PONG\r\n");
    let mut other = Wire::to(address);
    assert_eq!(other.ask("PING"), "+PONG\r\n");
    other.send(&request(&[b"CONFIG", b"GET", b"maxclients"]));
    is_asked.recv_timeout(PATIENCE).unwrap();
    let mut waiting: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    until("all have come", || service.clients.len() == 42);
    std::thread::scope(|scope| {
        let stops = scope.spawn(|| server.stop());
        // The first event loop has ended, so the second has been told.
        assert_eq!(one.reply(), b"");
        let began = Instant::now();
        go_on.send(()).unwrap();
        stops.join().unwrap();
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    });
    assert_eq!(other.reply(), b"*0\r\n", "what was asked is answered");
    for stream in &mut waiting {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(until_end(stream), 0);
    }
    assert!(service.clients.is_empty());
}

#[test]
fn what_deleted_collections_left_is_removed_until_the_server_stops() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let large = |name: &str| fixture.plant_large(name, Type::Hash, 600);
    for number in 0..12 {
        large(&format!("h{number}"));
    }
    for number in 0..6 {
        assert_eq!(client.ask(&format!("DEL h{number}")), ":1\r\n");
    }
    let keyspace = &fixture.service.keyspace;
    assert_eq!(keyspace.reclaim_collections(100, || false).unwrap().collections, 0);
    let mut left = 3;
    let asked = || {
        left -= 1;
        left >= 0
    };
    assert_eq!(keyspace.reclaim_collections(100, asked).unwrap().collections, 3);
    assert_eq!(keyspace.reclaim_collections(100, || true).unwrap().collections, 3);

    // The same where nobody remembers which there are.
    for number in 6..12 {
        assert_eq!(client.ask(&format!("SET h{number} overwritten")), "+OK\r\n");
    }
    assert!(!keyspace.find_reclaimable(|| false).unwrap());
    assert_eq!(keyspace.reclaimable_collections(), 0);
    let mut left = 4;
    let is_whole = keyspace.find_reclaimable(|| {
        left -= 1;
        left >= 0
    });
    assert!(!is_whole.unwrap());
    let some = keyspace.reclaimable_collections();
    assert!((1..6).contains(&some), "{some}");
    // A command may be reading them: none goes because it was found.
    assert_eq!(fixture.client().ask("DBSIZE"), ":6\r\n");
    assert_eq!(keyspace.reclaimed_collections(), 6);
    assert_eq!(fixture.found_and_reclaimed(), 6);
}
