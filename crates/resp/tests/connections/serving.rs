//! Connections: what clients may do to the server and to each other.

use crate::common;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::served::{Served, any_port, until};
use common::wire::{Wire, request};
use common::{Fixture, noise};
use ecotone_engine::{Durability, SpaceLimits, StoreSettings};
use ecotone_resp::serve::Listen;
use ecotone_resp::service::Limits;

fn plain() -> Served {
    Served::with(Limits::default(), StoreSettings::default().with_separation(128), 2)
}

#[test]
fn requests_in_a_row_are_answered_in_their_order_however_they_come() {
    let served = plain();
    let mut all = Vec::new();
    let mut expected = Vec::new();
    for number in 0..2000_usize {
        let value = vec![b'a' + (number % 26) as u8; number % 300];
        let key = format!("key{}", number % 7);
        all.extend(request(&[b"SET", key.as_bytes(), &value]));
        expected.extend_from_slice(b"+OK\r\n");
        all.extend(request(&[b"GET", key.as_bytes()]));
        expected.extend(format!("${}\r\n", value.len()).into_bytes());
        expected.extend([&value[..], b"\r\n"].concat());
    }
    for piece in [1 << 20, 7919, 4096, 97] {
        let mut wire = Wire::to(served.address());
        std::thread::scope(|scope| {
            let mut sending = wire.stream.try_clone().unwrap();
            let all = &all;
            scope.spawn(move || all.chunks(piece).for_each(|piece| sending.write_all(piece).unwrap()));
            let mut replied = vec![0; expected.len()];
            wire.stream.read_exact(&mut replied).unwrap();
            assert!(replied == expected, "in pieces of {piece}");
        });
    }
    served.server.stop();
}

#[test]
fn a_client_that_takes_nothing_is_owed_little_and_holds_up_nobody() {
    let limits = Limits { send: Duration::from_secs(1), ..Limits::default() };
    let served = Served::with(limits, StoreSettings::default(), 1);
    let mut other = Wire::to(served.address());
    let big = vec![b'x'; 1 << 20];
    other.send(&request(&[b"SET", b"big", &big]));
    assert_eq!(other.reply(), b"+OK\r\n");
    // It asks for 200 MiB and reads nothing.
    let slow = Wire::to(served.address());
    let mut asking = slow.stream.try_clone().unwrap();
    asking.set_nonblocking(true).unwrap();
    let _ = asking.write(&request(&[b"GET", b"big"]).repeat(200));
    let owed = || {
        served
            .service
            .clients
            .all()
            .iter()
            .map(|client| client.buffers.sending_bytes.load(std::sync::atomic::Ordering::Relaxed))
            .max()
    };
    until("the slow client is owed something", || owed() >= Some(big.len()));
    let began = Instant::now();
    let mut asked = 0;
    while served.service.clients.len() > 1 {
        assert!(owed() < Some(4 << 20), "{:?}", owed());
        assert_eq!(other.ask("GET none"), "$-1\r\n");
        asked += 1;
        assert!(began.elapsed() < Duration::from_secs(120), "it is disconnected in the end");
    }
    assert!(asked > 100, "{asked}");
    served.server.stop();
}

#[test]
fn reads_and_writes_of_sockets_are_counted() {
    let served = Served::with(Limits::default(), StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    for _ in 0..3 {
        assert_eq!(wire.ask("PING"), "+PONG\r\n");
    }
    // What is asked has been received, and is not replied yet.
    let told = wire.ask("INFO stats");
    assert!(told.contains("\r\ntotal_reads_processed:4\r\n"), "{told}");
    assert!(told.contains("\r\ntotal_writes_processed:3\r\n"), "{told}");
    served.server.stop();
}

#[test]
fn turns_of_event_loops_and_where_they_listen_are_told() {
    let socket = tempfile::tempdir().unwrap();
    let listen = Listen { addresses: any_port(), socket: Some(socket.path().join("s")), ..Listen::default() };
    let served = Served::listening(&listen, Limits::default());
    let mut wire = Wire::to(served.address());
    let mut told = |name: &str| -> u64 {
        let info = wire.ask("INFO stats");
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap().parse().unwrap()
    };
    let names = ["eventloop_cycles", "eventloop_duration_sum", "eventloop_duration_cmd_sum"];
    let before = names.map(&mut told);
    // Each request is a turn, at least.
    (0..100).for_each(|_| _ = told(names[0]));
    let after = names.map(&mut told);
    assert!(after[0] >= before[0] + 100, "{before:?} {after:?}");
    assert!(after[1] > before[1] && after[2] > before[2], "{before:?} {after:?}");
    // Measured over a second at least, and told of the one before.
    until("they are measured", || told("instantaneous_eventloop_cycles_per_sec") > 0);
    assert!(told("instantaneous_eventloop_duration_usec") > 0);
    assert_eq!(wire.ask("CONFIG RESETSTAT"), "+OK\r\n");
    let info = wire.ask("INFO everything");
    let again = info.lines().find_map(|line| line.strip_prefix("eventloop_cycles:")).unwrap().parse::<u64>().unwrap();
    assert!(again < after[0], "{again}");
    let port = served.address().port();
    let path = socket.path().join("s").display().to_string();
    for line in [format!("listener0:name=tcp,bind=127.0.0.1,port={port}"), format!("listener1:name=unix,bind={path}")] {
        assert!(info.lines().any(|own| own == line), "{line} in {info}");
    }
    served.server.stop();
}

#[test]
fn what_is_beyond_a_limit_is_refused_with_a_reason() {
    let limits = Limits {
        clients: 2,
        argument_bytes: 1000,
        request_bytes: 5000,
        transaction_bytes: 300,
        idle: Some(Duration::from_millis(300)),
        ..Limits::default()
    };
    let served = Served::with(limits, StoreSettings::default(), 1);
    let mut one = Wire::to(served.address());
    assert_eq!(one.ask("SET k v"), "+OK\r\n");
    let _two = Wire::to(served.address());
    until("both are there", || served.service.clients.len() == 2);
    let mut three = Wire::to(served.address());
    assert_eq!(three.reply(), b"-ERR max number of clients reached\r\n");
    assert_eq!(three.reply(), b"");
    // One that sends nothing goes; who is active stays.
    until("the idle one is gone", || {
        served.service.clients.all().iter().all(|client| client.id == 1) || served.service.clients.is_empty()
    });
    let mut long = Wire::to(served.address());
    long.send(&request(&[b"SET", b"k", &[b'x'; 1001]]));
    let refused = String::from_utf8(long.reply()).unwrap();
    assert!(refused.starts_with("-ERR Protocol error: invalid bulk length"), "{refused}");
    assert_eq!(long.reply(), b"");
    let mut many = Wire::to(served.address());
    many.send(&request(&[&[b'x'; 999][..]; 4]));
    assert!(many.reply().starts_with(b"-ERR unknown command"));
    let mut many = Wire::to(served.address());
    let whole = request(&[&[b'x'; 999][..]; 8]);
    many.send(&whole[..whole.len() - 1]);
    let refused = String::from_utf8(many.reply()).unwrap();
    assert!(refused.contains("longer than 5000 bytes"), "{refused}");
    // Whole as well, and behind one that was carried out.
    for before in ["", "*1\r\n$4\r\nPING\r\n", "*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$2\r\n50\r\n"] {
        let mut many = Wire::to(served.address());
        many.send(&[before.as_bytes(), &whole].concat());
        if !before.is_empty() {
            let reply = many.reply();
            assert!(reply.starts_with(b"+PONG") || reply.starts_with(b":0"), "{reply:?}");
        }
        let refused = String::from_utf8(many.reply()).unwrap();
        assert!(refused.contains("longer than 5000 bytes"), "{refused}");
        assert_eq!(many.reply(), b"");
    }
    let mut queued = Wire::to(served.address());
    queued.ask("MULTI");
    assert_eq!(queued.ask(&format!("SET k {}", "v".repeat(90))), "+QUEUED\r\n");
    assert!(queued.ask("SET k v12345").starts_with("-ERR the transaction is too long"));
    assert!(queued.ask("EXEC").starts_with("-EXECABORT"));
    served.server.stop();
}

#[test]
fn a_password_is_asked_for_and_what_comes_before_it_is_kept_short() {
    let limits = Limits { password: Some("secret".into()), ..Limits::default() };
    let served = Served::with(limits, StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    assert_eq!(wire.ask("GET k"), "-NOAUTH Authentication required.\r\n");
    let mut long = Wire::to(served.address());
    long.send(&request(&[&[b'x'][..]; 11]));
    assert!(long.reply().starts_with(b"-ERR Protocol error: unauthenticated multibulk length"));
    let mut long = Wire::to(served.address());
    long.send(b"*1\r\n$16385\r\n");
    assert!(long.reply().starts_with(b"-ERR Protocol error: unauthenticated bulk length"));
    served.server.stop();
}

#[test]
fn clients_without_the_password_keep_little_however_many_they_are() {
    let limits = Limits { password: Some("secret".into()), memory_bytes: 1 << 20, ..Limits::default() };
    let served = Served::with(limits, StoreSettings::default(), 1);
    // Each sends most of what a request may have before the password, and waits.
    let begun = [&b"*10\r\n"[..], &[&b"$16000\r\n"[..], &[b'x'; 16_000], b"\r\n"].concat().repeat(6)].concat();
    let mut all: Vec<Wire> = (0..100).map(|_| Wire::to(served.address())).collect();
    for wire in &mut all {
        // Who is refused may be gone before it has sent all.
        let _ = wire.stream.write_all(&begun);
    }
    until("nearly all are refused", || served.service.clients.len() < 15);
    let kept = served.service.client_memory.load(Ordering::Relaxed);
    assert!(kept < 2 << 20, "{kept}");
    // Who knows it goes on.
    let mut known = Wire::to(served.address());
    assert_eq!(known.ask("AUTH secret"), "+OK\r\n");
    assert_eq!(known.ask("SET k v"), "+OK\r\n");
    served.server.stop();
}

#[test]
fn what_a_web_page_sends_is_not_carried_out() {
    let served = plain();
    let mut wire = Wire::to(served.address());
    for begin in ["POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: store\r\n", "host: x\r\n"] {
        let mut page = Wire::to(served.address());
        page.send(format!("{begin}Content-Length: 16\r\n\r\nSET pwned yes\r\n\r\n").as_bytes());
        let mut replies = Vec::new();
        page.stream.read_to_end(&mut replies).unwrap();
        assert!(!replies.windows(3).any(|it| it == b"+OK"), "{}", replies.escape_ascii());
        assert_eq!(wire.ask("GET pwned"), "$-1\r\n");
    }
    served.server.stop();
}

#[test]
fn writes_that_cannot_be_committed_are_errors_and_reads_go_on() {
    let space = SpaceLimits { max_bytes: Some(48 << 20), reserve_bytes: Some(8 << 20) };
    let options = StoreSettings { space, memtable_bytes: 2 << 20, ..StoreSettings::default() };
    let served = Served::with(Limits::default(), options, 1);
    let mut wire = Wire::to(served.address());
    assert_eq!(wire.ask("SET first 1"), "+OK\r\n");
    let value = noise(256 * 1024);
    let refused = (0..10_000).find_map(|number| {
        // A pipeline with reads between: each gets its own answer.
        let key = format!("key{number}");
        wire.send(
            &[request(&[b"GET", b"first"]), request(&[b"SET", key.as_bytes(), &value]), request(&[b"GET", b"first"])]
                .concat(),
        );
        assert_eq!(wire.reply(), b"$1\r\n1\r\n");
        let answer = wire.reply();
        assert_eq!(wire.reply(), b"$1\r\n1\r\n");
        (answer != b"+OK\r\n").then_some((key, answer))
    });
    let (key, answer) = refused.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("-OOM ") && answer.contains("space.max_bytes"), "{answer}");
    assert_eq!(wire.ask(&format!("GET {key}")), "$-1\r\n");
    served.server.stop();
}

#[test]
fn a_transaction_that_finds_no_room_is_refused_as_a_whole() {
    const TRANSACTIONS: usize = 100;
    let space = SpaceLimits { max_bytes: Some(48 << 20), reserve_bytes: Some(8 << 20) };
    let options = StoreSettings { space, memtable_bytes: 2 << 20, ..StoreSettings::default() };
    let served = Served::with(Limits::default(), options, 1);
    // All are queued while there is room. What comes first in each takes none, and would be done
    // alone.
    let queued = |number| {
        let mut wire = Wire::to(served.address());
        assert_eq!(wire.ask(&format!("SET kept{number} 1")), "+OK\r\n");
        assert_eq!(wire.ask("MULTI"), "+OK\r\n");
        assert_eq!(wire.ask(&format!("DEL kept{number}")), "+QUEUED\r\n");
        assert_eq!(wire.ask(&format!("SET more{number} 1")), "+QUEUED\r\n");
        wire
    };
    let transactions: Vec<_> = (0..TRANSACTIONS).map(queued).collect();
    let (mut other, mut keys) = (Wire::to(served.address()), 0..);
    let mut fill = |bytes| {
        let value = noise(bytes);
        keys.by_ref().find(|number: &u32| {
            let key = format!("key{number}");
            other.send(&request(&[b"SET", key.as_bytes(), &value]));
            other.reply() != b"+OK\r\n"
        });
    };
    // Flushes and compactions may give room back after a write was refused: then a transaction is
    // carried out. What was written stays, so that happens less and less.
    let refused = transactions.into_iter().enumerate().find_map(|(number, mut wire)| {
        // Where a long value finds no room a short one may.
        [256 << 10, 4 << 10, 1].into_iter().for_each(&mut fill);
        let reply = wire.ask("EXEC");
        let is_refused = reply.starts_with("-EXECABORT Transaction discarded because of: OOM ");
        assert!(is_refused || reply.starts_with("*2\r\n"), "{reply}");
        is_refused.then_some((number, wire))
    });
    let (number, mut wire) = refused.expect("the store is never full for long");
    assert_eq!(wire.ask(&format!("GET kept{number}")), "$1\r\n1\r\n");
    assert_eq!(wire.ask(&format!("GET more{number}")), "$-1\r\n");
    assert_eq!(wire.ask("EXEC"), "-ERR EXEC without MULTI\r\n");
    served.server.stop();
}

#[test]
fn in_each_durability_a_write_is_answered_and_there_after_a_restart() {
    for durability in [Durability::None, Durability::EverySecond, Durability::Always] {
        let options = StoreSettings { durability, ..StoreSettings::default() }.with_separation(128);
        let served = Served::with(Limits::default(), options.clone(), 2);
        let address = served.address();
        let Served { server, service, directory } = served;
        std::thread::scope(|scope| {
            for client in 0..8 {
                scope.spawn(move || {
                    let mut wire = Wire::to(address);
                    for number in 0..50 {
                        let key = format!("{client}:{number}");
                        assert_eq!(wire.ask(&format!("SET {key} {}", "v".repeat(number * 10 + 1))), "+OK\r\n");
                    }
                });
            }
        });
        server.stop();
        drop(service);
        let fixture = Fixture::at(directory, options);
        let mut client = fixture.client();
        for key in ["0:0", "7:49", "3:20"] {
            assert!(client.ask(&format!("GET {key}")).ends_with("v\r\n"), "{durability:?} {key}");
        }
    }
}

#[test]
fn a_server_that_stops_sends_what_it_owes_and_owes_nothing_that_it_did_not_do() {
    const CLIENTS: usize = 6;
    for durability in [Durability::EverySecond, Durability::Always] {
        let options = StoreSettings { durability, ..StoreSettings::default() }.with_separation(128);
        let served = Served::with(Limits::default(), options.clone(), 2);
        let address = served.address();
        let Served { server, service, directory } = served;
        let told = [const { AtomicU64::new(0) }; CLIENTS];
        // Each sends without end, and counts what it is told, until the server has closed the
        // connection.
        let counts: Vec<usize> = std::thread::scope(|scope| {
            let told = &told;
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    scope.spawn(move || {
                        let mut wire = Wire::to(address);
                        let mut sending = wire.stream.try_clone().unwrap();
                        scope.spawn(move || {
                            for number in 0.. {
                                let key = format!("{client}:{number}");
                                let value = vec![b'v'; number % 300];
                                if sending.write_all(&request(&[b"SET", key.as_bytes(), &value])).is_err() {
                                    return;
                                }
                            }
                        });
                        let (mut count, mut is_refused) = (0, false);
                        loop {
                            match &wire.reply()[..] {
                                b"" => return count,
                                // It waited for others, and was not done.
                                reply if reply.starts_with(b"-ERR the server stops") => {
                                    is_refused = true;
                                    continue;
                                }
                                reply => assert_eq!((reply, is_refused), (&b"+OK\r\n"[..], false)),
                            }
                            count += 1;
                            told[client].fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            until("all clients are told of writes", || told.iter().all(|told| told.load(Ordering::Relaxed) > 300));
            server.stop();
            assert!(std::net::TcpStream::connect(address).is_err());
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        drop(service);
        let fixture = Fixture::at(directory, options);
        let mut client = fixture.client();
        for (number, count) in counts.iter().enumerate() {
            for write in 0..*count {
                let length = format!(":{}\r\n", write % 300);
                assert_eq!(client.ask(&format!("STRLEN {number}:{write}")), length, "{durability:?} {number}:{write}");
            }
        }
        // And what nobody was told of was not begun: a server that stops leaves no client in doubt.
        assert_eq!(client.ask("DBSIZE"), format!(":{}\r\n", counts.iter().sum::<usize>()), "{durability:?}");
    }
}

#[test]
fn latches_are_given_back_by_commands_that_write_nothing_or_have_to_wait() {
    let served = plain();
    // On two event loops.
    let (mut one, mut other) = (Wire::to(served.address()), Wire::to(served.address()));
    for round in 0..20 {
        assert!(one.ask("MGET x y").starts_with("*2\r\n"));
        assert_eq!(other.ask(&format!("SET x {round}")), "+OK\r\n");
        assert_eq!(one.ask("WATCH x"), "+OK\r\n");
        assert_eq!(other.ask("SET x other"), "+OK\r\n");
        one.ask("MULTI");
        assert_eq!(one.ask("EXEC"), "*-1\r\n");
        assert_eq!(other.ask("DEL x"), ":1\r\n");
    }
    // A large hash is copied by a thread that waits, for a latch that the event loop has had.
    let fields: Vec<String> = (0..300).map(|number| format!("f{number} v")).collect();
    assert_eq!(one.ask(&format!("HSET h {}", fields.join(" "))), ":300\r\n");
    for copy in 0..5 {
        assert_eq!(one.ask(&format!("COPY h copy{copy}")), ":1\r\n");
    }
    // Within a transaction, whose own writes are no reason to give it up when it is tried again.
    assert_eq!(one.ask("WATCH k"), "+OK\r\n");
    one.ask("MULTI");
    one.ask("SET k 1");
    one.ask("COPY h copied");
    assert_eq!(one.ask("EXEC"), "*2\r\n+OK\r\n:1\r\n");
    served.server.stop();
}

#[test]
fn a_transaction_that_concerns_no_key_is_answered_though_nobody_writes() {
    let served = plain();
    let mut wire = Wire::to(served.address());
    for _ in 0..3 {
        wire.ask("MULTI");
        assert_eq!(wire.ask("EXEC"), "*0\r\n");
    }
    wire.ask("MULTI");
    wire.ask("SINTERCARD 0 a");
    assert_eq!(wire.ask("EXEC"), "*1\r\n-ERR numkeys should be greater than 0\r\n");
    wire.ask("MULTI");
    wire.ask("PING");
    wire.ask("TIME");
    assert!(wire.ask("EXEC").starts_with("*2\r\n+PONG\r\n"));
    served.server.stop();
}

#[test]
fn requests_that_cannot_be_understood_count_as_errors() {
    let served = plain();
    for malformed in ["*1\r\n+PING\r\n", "*x\r\n"] {
        let mut wire = Wire::to(served.address());
        wire.send(malformed.as_bytes());
        assert!(wire.reply().starts_with(b"-ERR Protocol error"));
    }
    let info = Wire::to(served.address()).ask("INFO everything");
    for line in ["errorstat_ERR:count=2", "total_error_replies:2"] {
        assert!(info.lines().any(|it| it == line), "{line} in\n{info}");
    }
    served.server.stop();
}

#[test]
fn who_leaves_while_it_waits_gives_its_place_to_others() {
    let served = Served::with(Limits { clients: 1, ..Limits::default() }, StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    // What comes behind it is kept meanwhile.
    wire.send(&[request(&[b"WAIT", b"1", b"3600000"]), request(&[b"PING"])].concat());
    served.until_clients(1);
    drop(wire);
    served.until_clients(0);
    assert_eq!(Wire::to(served.address()).ask("PING"), "+PONG\r\n");
    served.server.stop();
}

#[test]
fn so_does_who_leaves_while_no_more_of_it_may_be_kept() {
    let limits = Limits { clients: 1, output_bytes: 128 << 10, ..Limits::default() };
    let served = Served::with(limits, StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    wire.send(&request(&[b"WAIT", b"1", b"3600000"]));
    served.until_clients(1);
    // Its end stands behind what nobody reads: it may send no more once half of its limit is taken.
    // The rest is in the kernel's hands.
    wire.send(&request(&[b"PING"]).repeat(7_000));
    drop(wire);
    served.until_clients(0);
    assert_eq!(Wire::to(served.address()).ask("PING"), "+PONG\r\n");
    served.server.stop();
}

#[test]
fn a_transaction_that_is_begun_anew_counts_once() {
    let served = plain();
    let mut wire = Wire::to(served.address());
    let fields: Vec<String> = (0..300).map(|number| format!("f{number} v")).collect();
    wire.ask(&format!("HSET h {}", fields.join(" ")));
    wire.ask("CONFIG RESETSTAT");
    wire.ask("MULTI");
    // The last command has to wait, when the others have been carried out.
    for command in ["SET a 1", "INCR h", "GET a", "GET none", "COPY h copy"] {
        assert_eq!(wire.ask(command), "+QUEUED\r\n");
    }
    let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    assert_eq!(wire.ask("EXEC"), format!("*5\r\n+OK\r\n{wrong_type}$1\r\n1\r\n$-1\r\n:1\r\n"));
    assert!(served.service.statistics.blocking_requests.load(Ordering::Relaxed) > 0, "it was not begun anew");
    let info = wire.ask("INFO everything");
    for (command, calls, failed) in [("set", 1, 0), ("incr", 1, 1), ("get", 2, 0), ("copy", 1, 0), ("exec", 1, 0)] {
        let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).unwrap();
        let expected = (format!(":calls={calls},"), format!(",failed_calls={failed}"));
        assert!(line.contains(&expected.0) && line.ends_with(&expected.1), "{line}");
    }
    for line in ["errorstat_WRONGTYPE:count=1", "total_error_replies:1", "keyspace_hits:2", "keyspace_misses:1"] {
        assert!(info.lines().any(|it| it == line), "{line} in\n{info}");
    }
    served.server.stop();
}

#[test]
fn clients_that_want_the_same_keys_in_pipelines_all_get_their_answers() {
    for durability in [Durability::EverySecond, Durability::Always] {
        let options = StoreSettings { durability, ..StoreSettings::default() }.with_separation(128);
        let served = Served::with(Limits::default(), options, 2);
        let address = served.address();
        std::thread::scope(|scope| {
            for client in 0..8_u64 {
                scope.spawn(move || {
                    let mut wire = Wire::to(address);
                    let mut seen = 0;
                    for round in 0..25 {
                        let own = format!("own{client}");
                        let value = round.to_string();
                        let pipeline = [
                            request(&[b"INCR", b"shared"]),
                            request(&[b"SET", own.as_bytes(), value.as_bytes()]),
                            request(&[b"MGET", b"a", b"b"]),
                            request(&[b"MSET", b"a", value.as_bytes(), b"b", value.as_bytes()]),
                            request(&[b"GET", own.as_bytes()]),
                        ];
                        wire.send(&pipeline.concat());
                        let counted = String::from_utf8(wire.reply()).unwrap();
                        let counted: u64 = counted.trim_start_matches(':').trim().parse().unwrap();
                        assert!(counted > seen, "{counted} after {seen}");
                        seen = counted;
                        assert_eq!(wire.reply(), b"+OK\r\n");
                        let both = String::from_utf8(wire.reply()).unwrap();
                        let both: Vec<&str> = both.lines().skip(1).filter(|line| !line.starts_with('$')).collect();
                        assert!(both.len() != 1 && both.first() == both.last(), "both are of one moment: {both:?}");
                        assert_eq!(wire.reply(), b"+OK\r\n");
                        assert_eq!(wire.reply(), format!("${}\r\n{value}\r\n", value.len()).into_bytes());
                    }
                });
            }
        });
        assert_eq!(Wire::to(address).ask("GET shared"), "$3\r\n200\r\n");
        served.server.stop();
    }
}
