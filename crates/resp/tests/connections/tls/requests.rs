//! What clients ask for once they are in.

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use ecotone_resp::service::Limits;

use super::common::served::until;
use super::common::wire::{Wire, request};
use super::wire::{TlsWire, VERSIONS, config};
use super::{Asks, place};

#[test]
fn requests_are_carried_out_by_either_version_beside_plain_ones() {
    let place = place(Asks::default());
    let mut plain = Wire::to(place.served.address());
    for (number, version) in VERSIONS.into_iter().enumerate() {
        let mut wire = TlsWire::connect(place.served.tls_address(), config(&place.authority, version, None)).unwrap();
        assert_eq!(wire.ask(&format!("SET k {number}")), "+OK\r\n");
        assert_eq!(plain.ask("GET k"), format!("$1\r\n{number}\r\n"));
        // Longer than all buffers there are, in pieces that fit no record.
        let value: Vec<u8> = (0..12_000_000_u32).map(|at| (at % 251) as u8).collect();
        let whole = [request(&[b"SET", b"big", &value]), request(&[b"GET", b"big"]), request(&[b"PING"])].concat();
        whole.chunks(77_777).for_each(|piece| wire.send(piece));
        assert_eq!(wire.try_reply().unwrap(), b"+OK\r\n");
        let replied = wire.try_reply().unwrap();
        assert!(replied.ends_with(&[&value[..], b"\r\n"].concat()));
        assert_eq!(wire.try_reply().unwrap(), b"+PONG\r\n");
        for number in 0..300 {
            wire.send(&request(&[b"SET", format!("k{number}").as_bytes(), &vec![b'v'; number]]));
        }
        assert!((0..300).all(|_| wire.try_reply().unwrap() == b"+OK\r\n"));
    }
    place.served.server.stop();
}

#[test]
fn many_clients_on_all_event_loops_are_served_and_leave() {
    let place = place(Asks::default());
    let address = place.served.tls_address();
    std::thread::scope(|scope| {
        for client in 0..8 {
            let authority = &place.authority;
            scope.spawn(move || {
                for round in 0..5 {
                    let mut wire = TlsWire::to(address, authority);
                    let key = format!("{client}:{round}");
                    assert_eq!(wire.ask(&format!("SET {key} {round}")), "+OK\r\n");
                    assert_eq!(wire.ask(&format!("GET {key}")), format!("$1\r\n{round}\r\n"));
                }
            });
        }
    });
    place.served.until_clients(0);
    place.served.server.stop();
}

#[test]
fn a_client_takes_its_session_along_to_another_event_loop() {
    let place = place(Asks::default());
    let server = &place.served.server;
    let mut wires = [0, 1].map(|_| TlsWire::to(place.served.tls_address(), &place.authority));
    let ids = wires.each_mut().map(|wire| wire.ask("CLIENT ID"));
    let value: Vec<u8> = (0..100_000_u32).map(|at| (at % 249) as u8).collect();
    for round in 0..200 {
        server.use_event_loops(1 + round % 2);
        for (wire, id) in wires.iter_mut().zip(&ids) {
            // The last of these records ends in the midst of a request.
            let whole = [request(&[b"SET", b"k", &value[round..]]), request(&[b"GET", b"k"])].concat();
            let (first, rest) = whole.split_at(whole.len() - 5);
            wire.send(first);
            assert_eq!(wire.try_reply().unwrap(), b"+OK\r\n");
            wire.send(rest);
            assert!(wire.try_reply().unwrap().ends_with(&[&value[round..], b"\r\n"].concat()));
            assert_eq!(wire.ask("CLIENT ID"), *id);
        }
    }
    place.served.server.stop();
}

#[test]
fn a_password_is_asked_for_by_tls_as_well() {
    let limits = Limits { password: Some("secret".into()), ..Limits::default() };
    let place = place(Asks { limits, ..Asks::default() });
    let connect = || TlsWire::to(place.served.tls_address(), &place.authority);
    let mut wire = connect();
    assert_eq!(wire.ask("GET k"), "-NOAUTH Authentication required.\r\n");
    assert!(wire.ask("AUTH wrong").starts_with("-WRONGPASS"));
    assert!(wire.ask("AUTH secret0").starts_with("-WRONGPASS"));
    assert!(wire.ask("AUTH nobody secret").starts_with("-WRONGPASS"));
    assert_eq!(wire.ask("GET k"), "-NOAUTH Authentication required.\r\n");
    assert_eq!(wire.ask("AUTH secret"), "+OK\r\n");
    assert_eq!(wire.ask("GET k"), "$-1\r\n");
    // A wrong one later takes nothing away, as in Redis.
    assert!(wire.ask("AUTH wrong").starts_with("-WRONGPASS"));
    assert_eq!(wire.ask("GET k"), "$-1\r\n");
    for (long, refused) in [
        (request(&[&[b'x'][..]; 11]), "-ERR Protocol error: unauthenticated multibulk length"),
        (b"*2\r\n$4\r\nAUTH\r\n$16385\r\n".to_vec(), "-ERR Protocol error: unauthenticated bulk length"),
    ] {
        let mut wire = connect();
        wire.send(&long);
        assert!(String::from_utf8(wire.try_reply().unwrap()).unwrap().starts_with(refused));
        assert_eq!(wire.try_reply().unwrap_or_default(), b"", "it is disconnected");
    }
    place.served.server.stop();
}

#[test]
fn a_client_that_takes_nothing_can_be_killed_and_one_that_does_is_not_ended_by_its_time() {
    let limits = Limits { send: Duration::from_secs(3600), ..Limits::default() };
    let place = place(Asks { limits, ..Asks::default() });
    let mut plain = Wire::to(place.served.address());
    plain.send(&request(&[b"SET", b"big", &vec![b'x'; 1 << 20]]));
    assert_eq!(plain.reply(), b"+OK\r\n");
    let mut stuck = TlsWire::to(place.served.tls_address(), &place.authority);
    stuck.send(&request(&[b"GET", b"big"]).repeat(30));
    let clients = &place.served.service.clients;
    let owed = || {
        clients.all().iter().any(|client| client.buffers.sending_bytes.load(std::sync::atomic::Ordering::Relaxed) > 0)
    };
    until("it is owed something", owed);
    let address = stuck.0.get_ref().sock.local_addr().unwrap();
    assert_eq!(plain.ask(&format!("CLIENT KILL {address}")), "+OK\r\n");
    place.served.until_clients(1);

    // It takes a tenth of its replies at a time, slower than its limit is for all of them.
    place.served.service.set_limits(Limits { send: Duration::from_secs(1), ..Limits::default() });
    let mut slow = TlsWire::to(place.served.tls_address(), &place.authority);
    slow.send(&request(&[b"GET", b"big"]).repeat(24));
    let (began, mut taken) = (Instant::now(), 0);
    let mut piece = vec![0; 1 << 20];
    while taken < 24 * ((1 << 20) + 12) {
        std::thread::sleep(Duration::from_millis(60));
        taken += slow.0.read(&mut piece[..]).unwrap();
        let rest = (24 * ((1 << 20) + 12) - taken).min(piece.len());
        if rest > 0 {
            slow.0.read_exact(&mut piece[..rest]).unwrap();
            taken += rest;
        }
    }
    assert!(began.elapsed() > Duration::from_secs(1), "it was slower than its limit");
    assert_eq!(slow.ask("PING"), "+PONG\r\n");
    place.served.server.stop();
}

#[test]
fn a_server_that_stops_says_so_by_tls() {
    let place = place(Asks::default());
    let mut wire = TlsWire::to(place.served.tls_address(), &place.authority);
    assert_eq!(wire.ask("PING"), "+PONG\r\n");
    place.served.server.stop();
    // An end that nobody else can have made: without the word of TLS this is an error.
    assert_eq!(wire.0.read(&mut [0; 1]).unwrap(), 0);
    let _ = wire.0.get_mut().flush();
}

#[test]
fn redis_cli_comes_in() {
    let place = place(Asks { certificates: true, ..Asks::default() });
    let client = place.authority.client();
    let (certificate, key) = (place.folder.path().join("client.pem"), place.folder.path().join("client.key"));
    std::fs::write(&certificate, &client.certificate).unwrap();
    std::fs::write(&key, &client.key).unwrap();
    let port = place.served.tls_address().port().to_string();
    let ask = |shows: bool, words: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert"]).arg(place.folder.path().join("ca.pem"));
        if shows {
            command.arg("--cert").arg(&certificate).arg("--key").arg(&key);
        }
        let output = command.args(words).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (said, refused) = ask(true, &["SET", "k", "by redis-cli"]);
    if refused.contains("Unrecognized option") {
        eprintln!("this redis-cli was built without TLS");
        return;
    }
    assert_eq!(said, "OK\n", "{refused}");
    assert_eq!(ask(true, &["GET", "k"]).0, "by redis-cli\n");
    let (said, refused) = ask(false, &["GET", "k"]);
    assert!(!said.contains("by redis-cli") && !(said.clone() + &refused).is_empty(), "{said} {refused}");
    place.served.server.stop();
}
