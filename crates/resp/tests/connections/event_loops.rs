//! Clients are dealt out to event loops, and go from one to another with all that they have.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::served::{any_port, until};
use common::wire::{Wire, request};
use common::{Fixture, words};
use ecotone_engine::{Durability, StoreSettings};
use ecotone_keyspace::Keyspace;
use ecotone_resp::host::{Host, InfoSection};
use ecotone_resp::serve::{EventLoops, Listen, Machine, Server};
use ecotone_resp::service::{Limits, Service};

/// A host that tells by `INFO event_loop` which thread asks.
struct TellsEventLoop;

impl Host for TellsEventLoop {
    fn info(&self, name: &str) -> Vec<InfoSection> {
        let event_loop = std::thread::current().name().unwrap_or_default().to_owned();
        let section = InfoSection { name: "EventLoop", lines: vec![("event_loop".into(), event_loop)] };
        if name == "event_loop" { vec![section] } else { Vec::new() }
    }

    fn settings(&self, _: &dyn Fn(&str) -> bool) -> BTreeMap<String, String> {
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

struct TestServer {
    service: Arc<Service>,
    server: Server,
    directory: tempfile::TempDir,
}

fn place(event_loops: EventLoops, idle_cores: f64) -> TestServer {
    let Fixture { service, directory, .. } = Fixture::with(StoreSettings::default());
    let keyspace = Keyspace::open(service.keyspace.only_store().unwrap().clone(), Durability::EverySecond).unwrap();
    drop(service);
    let service = Arc::new(Service::new(keyspace, Limits::default(), Arc::new(TellsEventLoop)));
    let socket = Some(directory.path().join("socket"));
    let listen = Listen { addresses: any_port(), socket, event_loops, ..Listen::default() };
    let machine = Machine { idle_cores: Some(Box::new(move || Some(idle_cores))), ..Machine::default() };
    let server = Server::start(service.clone(), &listen, machine).unwrap();
    TestServer { service, server, directory }
}

/// A client by TCP or a Unix socket.
struct Asking<S> {
    stream: S,
    /// Came, and was not asked for yet.
    come: Vec<u8>,
}

impl<S: Read + Write> Asking<S> {
    fn of(stream: S) -> Self {
        Self { stream, come: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.come.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8(self.come.drain(..end + 2).collect()).unwrap();
                return line.trim_end().to_owned();
            }
            let mut piece = [0; 4096];
            let bytes = self.stream.read(&mut piece).unwrap();
            assert!(bytes > 0, "disconnected");
            self.come.extend_from_slice(&piece[..bytes]);
        }
    }

    fn ask(&mut self, one: &str) -> String {
        self.send(&request(&words(one)));
        self.line()
    }

    /// The number of its event loop.
    fn event_loop(&mut self) -> usize {
        assert!(self.ask("INFO event_loop").starts_with('$'));
        let lines = [(); 3].map(|()| self.line());
        // The event loop's own thread, or one of those of the event loop that may wait.
        lines[1].rsplit('-').next().unwrap().parse().unwrap()
    }
}

/// Does all that must go along, `rounds` times and until it was on both event loops.
fn goes_to_and_fro<S: Read + Write>(mut client: Asking<S>, name: &str, rounds: usize) {
    let id = client.ask("CLIENT ID");
    assert_eq!(client.ask(&format!("CLIENT SETNAME {name}")), "+OK");
    let mut event_loops = BTreeSet::new();
    let mut round = 0;
    while round < rounds || event_loops.len() < 2 {
        round += 1;
        event_loops.insert(client.event_loop());
        assert_eq!(client.ask(&format!("INCR {name}")), format!(":{round}"));
        // A pipeline of which the last request comes in two pieces, each perhaps on an event loop
        // of its own.
        let whole: Vec<u8> = (0..5).flat_map(|at| request(&words(&format!("ECHO {round}-{at}")))).collect();
        let cut = whole.len() - 7;
        client.send(&whole[..cut]);
        for at in 0..4 {
            assert!(client.line().starts_with('$'));
            assert_eq!(client.line(), format!("{round}-{at}"));
        }
        client.send(&whole[cut..]);
        assert!(client.line().starts_with('$'));
        assert_eq!(client.line(), format!("{round}-4"));
        // A transaction under way, once with a watched key that changes.
        let changes = round % 3 == 0;
        assert_eq!(client.ask(&format!("WATCH {name}:watched")), "+OK");
        if changes {
            assert_eq!(client.ask(&format!("SET {name}:watched {round}")), "+OK");
        }
        assert_eq!(client.ask("MULTI"), "+OK");
        assert_eq!(client.ask("PING"), "+QUEUED");
        assert_eq!(client.ask("CLIENT GETNAME"), "+QUEUED");
        if changes {
            assert_eq!(client.ask("EXEC"), "*-1");
        } else {
            assert_eq!(client.ask("EXEC"), "*2");
            assert_eq!(client.line(), "+PONG");
            assert!(client.line().starts_with('$'));
            assert_eq!(client.line(), name);
        }
        assert_eq!(client.ask("CLIENT ID"), id);
    }
}

#[test]
fn clients_take_everything_along_to_another_event_loop() {
    const ROUNDS: usize = 200;
    const EACH: usize = 3;
    let TestServer { service, server, directory } = place(EventLoops::All(2), 0.0);
    let address = server.listening().addresses[0];
    let socket = directory.path().join("socket");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let deals = scope.spawn(|| {
            let mut event_loops = 1;
            while !is_over.load(Ordering::Relaxed) {
                server.use_event_loops(event_loops);
                event_loops = 3 - event_loops;
                // Not each request on another event loop: several on the same one as well.
                let commands = || service.statistics.commands.load(Ordering::Relaxed);
                let before = commands();
                until("somebody asks", || commands() > before + 50 || is_over.load(Ordering::Relaxed));
            }
        });
        let socket = &socket;
        let clients: Vec<_> = (0..EACH)
            .flat_map(|number| {
                let tcp = move || {
                    let stream = TcpStream::connect(address).unwrap();
                    stream.set_nodelay(true).unwrap();
                    goes_to_and_fro(Asking::of(stream), &format!("tcp:{number}"), ROUNDS);
                };
                let unix = move || {
                    let stream = UnixStream::connect(socket).unwrap();
                    goes_to_and_fro(Asking::of(stream), &format!("unix:{number}"), ROUNDS);
                };
                [scope.spawn(tcp), scope.spawn(unix)]
            })
            .collect();
        let all: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        deals.join().unwrap();
        assert!(all.iter().all(Result::is_ok));
    });
    until("all have left", || service.clients.is_empty());
    server.stop();
}

#[test]
fn those_who_ask_are_dealt_out_evenly_and_others_stay() {
    let TestServer { server, .. } = place(EventLoops::All(2), 0.0);
    server.use_event_loops(1);
    let connect = || {
        let stream = TcpStream::connect(server.listening().addresses[0]).unwrap();
        Asking::of(stream)
    };
    let mut clients: Vec<_> = (0..16).map(|_| connect()).collect();
    assert!(clients.iter_mut().all(|client| client.event_loop() == 0));
    server.use_event_loops(2);
    // Nobody has gone who has not been answered since.
    assert!(clients.iter_mut().step_by(2).all(|client| client.event_loop() == 0));
    let of_event_loop_1 = |clients: &mut dyn Iterator<Item = &mut Asking<TcpStream>>| {
        clients.map(|client| client.event_loop()).filter(|event_loop| *event_loop == 1).count()
    };
    // An event loop answers a client before it looks whether that one was dealt elsewhere. So
    // whoever it answered last may have a part in a deal that came afterwards, and take its turn
    // among the others.
    let half_of_8 = 3..=5;
    let moved = of_event_loop_1(&mut clients.iter_mut().step_by(2));
    assert!(half_of_8.contains(&moved), "{moved}");
    // Nor without another deal.
    assert_eq!(of_event_loop_1(&mut clients.iter_mut().step_by(2)), moved);
    server.use_event_loops(2);
    assert_eq!(of_event_loop_1(&mut clients.iter_mut().step_by(2)), moved);
    server.use_event_loops(1);
    let still_there = of_event_loop_1(&mut clients.iter_mut().step_by(2));
    assert!((moved - 1..=moved).contains(&still_there), "{still_there} of {moved}");
    assert_eq!(of_event_loop_1(&mut clients.iter_mut()), 0);
    // More than there are is all.
    server.use_event_loops(1000);
    // Sixteen that ask for nothing are on the first event loop; who comes is dealt out all the
    // same.
    let mut late: Vec<_> = (0..8).map(|_| connect()).collect();
    let of_late = of_event_loop_1(&mut late.iter_mut());
    assert!(half_of_8.contains(&of_late), "{of_late}");
    server.stop();
}

#[test]
fn who_is_on_another_event_loop_is_killed_and_stopped_like_anybody() {
    let TestServer { service, server, .. } = place(EventLoops::All(2), 0.0);
    server.use_event_loops(1);
    let mut wires: Vec<_> = (0..4).map(|_| Wire::to(server.listening().addresses[0])).collect();
    assert!(wires.iter_mut().all(|wire| wire.ask("PING") == "+PONG\r\n"));
    server.use_event_loops(2);
    assert!(wires.iter_mut().all(|wire| wire.ask("PING") == "+PONG\r\n"));
    let id = wires[1].ask("CLIENT ID").trim()[1..].to_owned();
    assert_eq!(wires[0].ask(&format!("CLIENT KILL ID {id}")), ":1\r\n");
    assert_eq!(wires[1].reply(), b"");
    until("it has left", || service.clients.len() == 3);
    // Limits that change reach those who have moved.
    service.set_limits(Limits { idle: Some(Duration::from_nanos(1)), ..Limits::default() });
    assert!([0, 2, 3].iter().all(|at| wires[*at].reply().is_empty()));
    // Also those who were just going, whichever event loop is told first.
    for _ in 0..20 {
        service.set_limits(Limits::default());
        let mut wire = Wire::to(server.listening().addresses[0]);
        assert_eq!(wire.ask("PING"), "+PONG\r\n");
        wire.send(&request(&words("PING")));
        server.use_event_loops(1);
        server.use_event_loops(2);
        service.set_limits(Limits { idle: Some(Duration::from_nanos(1)), ..Limits::default() });
        while !wire.reply().is_empty() {}
    }
    service.set_limits(Limits::default());
    let mut wire = Wire::to(server.listening().addresses[0]);
    assert_eq!(wire.ask("PING"), "+PONG\r\n");
    server.use_event_loops(1);
    assert_eq!(wire.ask("PING"), "+PONG\r\n");
    server.stop();
    assert_eq!(wire.reply(), b"");
    assert!(service.clients.is_empty());
}

/// Keeps one event loop busy for as long as `is_over` says so, by what is dear to carry out and
/// cheap to ask for.
fn load(server: &Server, is_over: &AtomicBool) {
    let mut wire = Wire::to(server.listening().addresses[0]);
    let pipeline = request(&words("SDIFF set set")).repeat(200);
    while !is_over.load(Ordering::Relaxed) {
        wire.send(&pipeline);
        (0..200).for_each(|_| assert_eq!(wire.reply(), b"*0\r\n"));
    }
}

#[test]
fn more_event_loops_are_tried_under_load_where_a_core_is_free_and_given_back_without() {
    for idle_cores in [4.0, 0.0] {
        let TestServer { service, server, .. } = place(EventLoops::UpTo(2), idle_cores);
        let event_loops = || service.statistics.event_loops.load(Ordering::Relaxed);
        assert_eq!(event_loops(), 1);
        let mut wire = Wire::to(server.listening().addresses[0]);
        (0..100).for_each(|member| assert_eq!(wire.ask(&format!("SADD set member:{member}")), ":1\r\n"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| load(&server, &is_over))));
            let commands = || service.statistics.commands.load(Ordering::Relaxed);
            if idle_cores > 0.0 {
                until("two event loops serve", || event_loops() == 2);
            } else {
                until("much was asked", || commands() > 20_000 || event_loops() == 2);
                assert_eq!(event_loops(), 1);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        until("one is enough", || event_loops() == 1);
        assert!(wire.ask("INFO clients").contains("event_loops_in_use:1\r\n"));
        server.stop();
    }
}
