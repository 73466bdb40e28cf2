//! Who gets in and who does not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ecotone_resp::serve::{TlsFile, TlsFiles};
use ecotone_resp::service::Limits;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConnection, SupportedProtocolVersion};

use super::certificates::{Authority, Issued, self_signed};
use super::common::served::until;
use super::common::wire::Wire;
use super::wire::{TlsWire, VERSIONS, config};
use super::{Asks, TestServer, files, place};

/// Everything that comes until the end, or an error, which is one.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let (mut all, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return all,
            Ok(bytes) => all.extend_from_slice(&piece[..bytes]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it hangs"),
            Err(_) => return all,
        }
    }
}

#[test]
fn a_client_that_trusts_another_authority_stays_away() {
    let place = place(Asks::default());
    for version in VERSIONS {
        let other = config(&Authority::new("another"), version, None);
        let refused = TlsWire::connect(place.served.tls_address(), other).err().unwrap().to_string();
        assert!(refused.contains("UnknownIssuer"), "{refused}");
    }
    place.served.until_clients(0);
    assert_eq!(TlsWire::to(place.served.tls_address(), &place.authority).ask("PING"), "+PONG\r\n");
    place.served.server.stop();
}

/// What a client comes to that shows `shows`. By TLS 1.3 it learns only after its first request
/// that it is not let in.
fn comes_in(
    place: &TestServer,
    version: &'static SupportedProtocolVersion,
    shows: Option<&Issued>,
) -> Result<(), String> {
    let connected = TlsWire::connect(place.served.tls_address(), config(&place.authority, version, shows));
    let answer = connected.and_then(|mut wire| wire.try_ask("PING"));
    match answer {
        Ok(answer) if answer == "+PONG\r\n" => Ok(()),
        Ok(answer) => Err(format!("not let in, and told {answer:?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn where_certificates_are_asked_for_only_those_of_the_authority_count() {
    let place = place(Asks { certificates: true, ..Asks::default() });
    for version in VERSIONS {
        comes_in(&place, version, Some(&place.authority.client())).unwrap();
        for (what, wrong) in [
            ("none", None),
            ("one of itself", Some(self_signed())),
            ("one that is over", Some(place.authority.expired_client())),
            ("one of another authority", Some(Authority::new("another").client())),
            ("one of another authority of that name", Some(Authority::new("ours").client())),
            ("one for servers", Some(place.authority.server())),
        ] {
            assert!(comes_in(&place, version, wrong.as_ref()).is_err(), "with {what} by {version:?}");
        }
    }
    place.served.until_clients(0);
    place.served.server.stop();
}

/// The kernel puts an acknowledgement off for so long at least, in the hope for an answer that
/// takes it along.
const DELAYED_ACKNOWLEDGEMENT: Duration = Duration::from_millis(40);

/// A client without TCP_NODELAY sends its first command when what it said last in the handshake is
/// acknowledged.
#[test]
fn the_first_command_waits_for_no_delayed_acknowledgement() {
    for certificates in [true, false] {
        let place = place(Asks { certificates, ..Asks::default() });
        for version in VERSIONS {
            let client = place.authority.client();
            let first_command = || {
                let config = config(&place.authority, version, certificates.then_some(&client));
                let mut wire = TlsWire::connect_as(place.served.tls_address(), config, false).unwrap();
                let began = Instant::now();
                assert_eq!(wire.ask("PING"), "+PONG\r\n");
                began.elapsed()
            };
            // Each of them is late where it waits; where it does not, a busy machine does not make
            // all of them late.
            let best = (0..20).map(|_| first_command()).min().unwrap();
            assert!(best < DELAYED_ACKNOWLEDGEMENT * 3 / 4, "{best:?} by {version:?}, certificates: {certificates}");
        }
        place.served.server.stop();
    }
}

#[test]
fn who_does_not_speak_tls_is_told_and_closed() {
    let place = place(Asks::default());
    for spoken in [&b"PING\r\n"[..], b"*1\r\n$4\r\nPING\r\n", b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &[0xff; 20_000]] {
        let mut stream = TcpStream::connect(place.served.tls_address()).unwrap();
        let _ = stream.write_all(spoken);
        let told = rest(&mut stream);
        // An alert, if anything.
        assert!(told.is_empty() || told[0] == 0x15, "{told:?}");
    }
    place.served.until_clients(0);
    place.served.server.stop();
}

#[test]
fn versions_of_tls_that_are_known_to_be_broken_are_refused() {
    let place = place(Asks::default());
    // The hello of a client that speaks no later version than `minor`: a random number, no session,
    // ciphers, no compression, and then the curves, their points and the signatures it knows (RFC
    // 5246, section 7.4.1.2; RFC 8422). All but the version is good enough for TLS 1.2.
    let hello = |minor: u8| {
        let extensions =
            [&[0, 10, 0, 4, 0, 2, 0, 29][..], &[0, 11, 0, 2, 1, 0], &[0, 13, 0, 6, 0, 4, 4, 3, 8, 4]].concat();
        let ciphers = [0, 0, 4, 0xC0, 0x2B, 0xC0, 0x2F, 1, 0];
        let body = [&[3, minor][..], &[7; 32], &ciphers, &[0, extensions.len() as u8], &extensions].concat();
        let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
        [&[0x16, 3, 1, 0, message.len() as u8][..], &message].concat()
    };
    // SSL 3, TLS 1.0 and TLS 1.1.
    for minor in 0..3 {
        let mut stream = TcpStream::connect(place.served.tls_address()).unwrap();
        stream.write_all(&hello(minor)).unwrap();
        // A fatal alert, protocol_version or handshake_failure (RFC 8446, section 6), and nothing
        // else.
        let told = rest(&mut stream);
        assert!(
            told.len() == 7 && told[0] == 0x15 && told[5] == 2 && [70, 40].contains(&told[6]),
            "3.{minor}: {told:?}"
        );
    }
    let mut stream = TcpStream::connect(place.served.tls_address()).unwrap();
    stream.write_all(&hello(3)).unwrap();
    let mut told = [0; 6];
    stream.read_exact(&mut told).unwrap();
    assert_eq!((told[0], told[5]), (0x16, 2), "TLS 1.2 is answered by the hello of the server");
    drop(stream);
    place.served.until_clients(0);
    place.served.server.stop();
}

#[test]
fn tls_at_a_plain_address_is_a_protocol_error() {
    let place = place(Asks::default());
    let name = "localhost".try_into().unwrap();
    let mut hello = Vec::new();
    let mut client = ClientConnection::new(config(&place.authority, &TLS13, None).into(), name).unwrap();
    client.write_tls(&mut hello).unwrap();
    for first in [hello.len(), 1] {
        let mut stream = TcpStream::connect(place.served.address()).unwrap();
        stream.write_all(&hello[..first]).unwrap();
        let told = String::from_utf8(rest(&mut stream)).unwrap();
        assert!(told.starts_with("-ERR Protocol error: TLS") && told.ends_with("\r\n"), "{told}");
    }
    // In the middle such a byte is one like others.
    let mut wire = Wire::to(place.served.address());
    assert_eq!(wire.ask("SET k \u{16}\u{3}\u{1}"), "+OK\r\n");
    assert_eq!(wire.ask("GET k"), "$3\r\n\u{16}\u{3}\u{1}\r\n");
    place.served.server.stop();
}

#[test]
fn a_handshake_without_end_takes_a_seat_and_no_longer_than_it_may() {
    let limits = Limits { clients: 2, ..Limits::default() };
    let within = Duration::from_secs(2);
    let place = place(Asks { limits, handshake_within: within, ..Asks::default() });
    let mut hello = Vec::new();
    let name = "localhost".try_into().unwrap();
    let mut client = ClientConnection::new(config(&place.authority, &TLS12, None).into(), name).unwrap();
    client.write_tls(&mut hello).unwrap();
    let began = Instant::now();
    // One says nothing, one half of what it should.
    let mut silent = TcpStream::connect(place.served.tls_address()).unwrap();
    let mut halting = TcpStream::connect(place.served.tls_address()).unwrap();
    halting.write_all(&hello[..hello.len() / 2]).unwrap();
    place.served.until_clients(2);
    let mut third = TcpStream::connect(place.served.address()).unwrap();
    assert_eq!(rest(&mut third), b"-ERR max number of clients reached\r\n");
    let mut fourth = TcpStream::connect(place.served.tls_address()).unwrap();
    assert_eq!(rest(&mut fourth), b"");
    assert!(place.served.service.clients.len() == 2 || began.elapsed() >= within);
    assert_eq!(rest(&mut silent), b"");
    rest(&mut halting);
    assert!(began.elapsed() >= within, "they were given their time");
    place.served.until_clients(0);
    assert_eq!(TlsWire::to(place.served.tls_address(), &place.authority).ask("PING"), "+PONG\r\n");
    place.served.server.stop();
}

#[test]
fn a_handshake_holds_up_neither_others_nor_the_end() {
    let place = place(Asks::default());
    let mut silent: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(place.served.tls_address()).unwrap()).collect();
    place.served.until_clients(50);
    assert_eq!(TlsWire::to(place.served.tls_address(), &place.authority).ask("PING"), "+PONG\r\n");
    let mut plain = Wire::to(place.served.address());
    assert_eq!(plain.ask("PING"), "+PONG\r\n");
    // One of them by its address, as any client.
    let victim = silent[0].local_addr().unwrap();
    assert_eq!(plain.ask(&format!("CLIENT KILL {victim}")), "+OK\r\n");
    assert_eq!(rest(&mut silent[0]), b"");
    let began = Instant::now();
    place.served.server.stop();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(rest(&mut silent[1]), b"");
}

#[test]
fn files_that_cannot_be_used_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    let good = files(folder.path(), &authority, true);
    good.check().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let missing = folder.path().join("missing.pem");
    let empty = file("empty.pem", "");
    let cut = file("cut.pem", &authority.server().certificate.replace("-----END", "-----"));
    let nonsense = file("nonsense.pem", "-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n");
    let other_key = file("other.key", &authority.server().key);
    let locked = file("locked.key", &authority.server().key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"));
    let long = file("long.pem", &" ".repeat(5 << 20));
    let version_1 = file("version-1.pem", &authority.server().of_version_1().certificate);
    let certificate = |path: &std::path::Path| TlsFiles { certificate: path.into(), ..good.clone() };
    let key = |path: &std::path::Path| TlsFiles { key: path.into(), ..good.clone() };
    let client_ca = |path: &std::path::Path| TlsFiles { client_ca: Some(path.into()), ..good.clone() };
    for (files, of, says) in [
        (certificate(&missing), TlsFile::Certificate, "No such file"),
        (certificate(folder.path()), TlsFile::Certificate, "cannot be read"),
        (certificate(&empty), TlsFile::Certificate, "no certificate in it"),
        (certificate(&good.key), TlsFile::Certificate, "no certificate in it"),
        (certificate(&cut), TlsFile::Certificate, "no PEM"),
        (certificate(&nonsense), TlsFile::Certificate, "cannot be used"),
        (certificate(&long), TlsFile::Certificate, "longer than"),
        (certificate(&version_1), TlsFile::Certificate, "of X.509 version 1; X.509 version 3 is needed"),
        (key(&missing), TlsFile::Key, "No such file"),
        (key(&good.certificate), TlsFile::Key, "no private key in it"),
        (key(&locked), TlsFile::Key, "no private key in it"),
        (key(&other_key), TlsFile::Key, "does not belong to the certificate"),
        (client_ca(&missing), TlsFile::ClientCa, "No such file"),
        (client_ca(&empty), TlsFile::ClientCa, "no certificate in it"),
        (client_ca(&nonsense), TlsFile::ClientCa, "cannot be used"),
    ] {
        let error = files.check().unwrap_err();
        assert_eq!(error.file, of, "{error}");
        assert!(error.reason.contains(says), "{says:?} is not in {error}");
        assert!(error.to_string().starts_with(error.path.to_str().unwrap()), "{error}");
    }
}

/// Ticks of the kernel's clock as it tells them in /proc.
const TICKS_PER_SECOND: u64 = 100;

/// Seconds until the kernel asks the client of `stream` whether it is still there; `None`: it will
/// not, or does something else first.
fn asked_in_s(stream: &TcpStream) -> Option<u64> {
    let port = |address: std::io::Result<std::net::SocketAddr>| format!(":{:04X}", address.unwrap().port());
    let (ours, theirs) = (port(stream.local_addr()), port(stream.peer_addr()));
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let timer = sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields[1].ends_with(&theirs) && fields[2].ends_with(&ours);
        is_it.then(|| fields[5].to_owned())
    })?;
    let ticks = timer.strip_prefix("02:")?;
    Some(u64::from_str_radix(ticks, 16).unwrap() / TICKS_PER_SECOND)
}

#[test]
fn clients_that_are_silent_are_asked_whether_they_are_still_there() {
    let place = place(Asks::default());
    for address in [place.served.address(), place.served.tls_address()] {
        let stream = TcpStream::connect(address).unwrap();
        until("it will be asked", || asked_in_s(&stream).is_some());
        let asked_in_s = asked_in_s(&stream).unwrap();
        assert!((200..=300).contains(&asked_in_s), "in {asked_in_s} s");
    }
}
