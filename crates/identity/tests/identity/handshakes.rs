//! Handshakes in memory: who is accepted, and under which name a refusal is counted.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use ecotone_identity::tls::{self, Protocol};
use ecotone_identity::{Authority, Clock, HandshakeFailure, Identity, JoinToken, found};
use ecotone_types::ServerId;
use rustls::{ClientConfig, ClientConnection, Connection, Error, ServerConfig, ServerConnection};
use tempfile::TempDir;

use crate::careless::{self, Careless, anonymous};
use crate::{HOUR, NOW, Set, identity, join, name};

/// A federation of two servers, `a` with the authority and `b`.
struct Two {
    directory: TempDir,
    clock: Arc<Set>,
    authority: Authority,
    a: Arc<Identity>,
    b: Arc<Identity>,
}

fn two() -> Two {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Set::at(NOW));
    let authority = found(&directory.path().join("a"), &name("a"), NOW).unwrap().authority;
    let b = directory.path().join("b");
    join(&authority, 2, &b, "b", NOW).unwrap();
    let (a, b) = (identity(&directory.path().join("a"), &clock), identity(&b, &clock));
    Two { directory, clock, authority, a, b }
}

/// Passes on what `from` has written. Whether that was anything; errors of `to` are kept.
fn pass_on(from: &mut Connection, to: &mut Connection, outcome: &mut Result<(), Error>) -> bool {
    let mut wire = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut wire).unwrap();
    }
    let mut rest = &wire[..];
    while !rest.is_empty() && outcome.is_ok() {
        to.read_tls(&mut rest).unwrap();
        *outcome = to.process_new_packets().map(drop);
    }
    !wire.is_empty()
}

/// Passes on what both sides write, as often as it takes. The first error of each.
fn converse(client: &mut Connection, server: &mut Connection) -> (Result<(), Error>, Result<(), Error>) {
    let (mut of_client, mut of_server) = (Ok(()), Ok(()));
    while pass_on(client, server, &mut of_server) | pass_on(server, client, &mut of_client) {}
    (of_client, of_server)
}

type Outcome = (Result<(), HandshakeFailure>, Result<(), HandshakeFailure>);

/// What a handshake comes to, for the client and for the server.
fn handshake(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Outcome {
    let mut client = Connection::from(ClientConnection::new(client, tls::joining_server_name()).unwrap());
    let mut server = Connection::from(ServerConnection::new(server).unwrap());
    let (of_client, of_server) = converse(&mut client, &mut server);
    if of_client.is_ok() && of_server.is_ok() {
        assert!(!client.is_handshaking() && !server.is_handshaking());
        assert_eq!(client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    }
    let failure = |outcome: Result<(), Error>| outcome.map_err(|error| HandshakeFailure::of(&error));
    (failure(of_client), failure(of_server))
}

fn to(client: &Arc<Identity>, expected: Option<&str>, server: &Arc<Identity>) -> Outcome {
    let expected = expected.map(name);
    let config = tls::client_config(client, Protocol::Calls, expected).unwrap();
    handshake(config, tls::server_config(server, Protocol::Calls).unwrap())
}

/// The client refuses, and the server hears of it.
fn refused_by_client(why: HandshakeFailure) -> Outcome {
    (Err(why), Err(HandshakeFailure::RefusedByPeer))
}

/// The server refuses, and the client hears of it.
fn refused_by_server(why: HandshakeFailure) -> Outcome {
    (Err(HandshakeFailure::RefusedByPeer), Err(why))
}

#[test]
fn servers_of_one_federation_accept_each_other_and_none_else() {
    let two = two();
    assert_eq!(to(&two.a, None, &two.b), (Ok(()), Ok(())));
    assert_eq!(to(&two.b, Some("a"), &two.a), (Ok(()), Ok(())));
    assert_eq!(to(&two.b, Some("c"), &two.a), refused_by_client(HandshakeFailure::OtherServer));
    let foreign = found(&two.directory.path().join("x"), &name("a"), NOW).unwrap().authority;
    let x = identity(&two.directory.path().join("x"), &two.clock);
    assert_ne!(foreign.federation(), two.authority.federation());
    assert_eq!(to(&x, None, &two.a), refused_by_client(HandshakeFailure::ForeignAuthority));
    // A client that takes every server.
    let careless = careless::showing(&x);
    let refused = handshake(careless, tls::server_config(&two.a, Protocol::Calls).unwrap());
    assert_eq!(refused, refused_by_server(HandshakeFailure::ForeignAuthority));
}

#[test]
fn a_certificate_is_good_for_its_day_and_a_little_before() {
    let two = two();
    let both_at = |now| {
        two.clock.set(now);
        to(&two.a, None, &two.b).0
    };
    for (now, expected) in [
        (NOW.minus(301), Err(HandshakeFailure::NotYetValid)),
        (NOW.minus(300), Ok(())),
        (NOW.plus(24 * HOUR), Ok(())),
        (NOW.plus(24 * HOUR + 1), Err(HandshakeFailure::Expired)),
    ] {
        assert_eq!(both_at(now), expected, "at {now:?}");
    }
    // The server finds it as well, where the client's clock is wrong.
    let slow: Arc<Set> = Set::at(NOW);
    let a = Arc::new(Identity::open(&two.directory.path().join("a"), slow).unwrap().unwrap());
    assert_eq!(to(&a, None, &two.b), refused_by_server(HandshakeFailure::Expired));
}

#[test]
fn a_removed_server_is_refused_from_then_on_by_clients_and_servers() {
    let two = two();
    assert!(two.a.set_members(3, [1].into()) && !two.a.set_members(3, [1].into()));
    assert_eq!(to(&two.a, None, &two.b), refused_by_client(HandshakeFailure::Removed));
    assert_eq!(to(&two.b, None, &two.a), refused_by_server(HandshakeFailure::Removed));
    assert!(!two.a.may_stay(&two.b.own(), NOW) && two.a.may_stay(&two.a.own(), NOW));
    // Who knows less lets nobody in again.
    assert!(!two.a.set_members(2, [1].into()) && !two.a.set_members(1, [].into()));
    assert_eq!(to(&two.b, None, &two.a), refused_by_server(HandshakeFailure::Removed));
    assert!(two.a.set_members(4, [1, 2].into()));
    assert_eq!(to(&two.b, None, &two.a), (Ok(()), Ok(())));
    assert!(!two.a.may_stay(&two.b.own(), NOW.plus(24 * HOUR + 1)), "its certificate has ended");
}

#[test]
fn a_server_that_joined_later_than_is_known_is_accepted_and_one_with_an_old_number_is_not() {
    let two = two();
    for (number, called) in [(6, "lost"), (7, "later")] {
        join(&two.authority, number, &two.directory.path().join(called), called, NOW).unwrap();
    }
    let of = |called: &str| identity(&two.directory.path().join(called), &two.clock);
    // Numbers up to 6 were given; 3 to 6 are of servers that are forgotten.
    assert!(two.a.set_members(7, [1, 2].into()));
    assert_eq!(to(&two.a, None, &of("lost")), refused_by_client(HandshakeFailure::Removed));
    assert_eq!(to(&of("lost"), None, &two.a), refused_by_server(HandshakeFailure::Removed));
    assert_eq!(to(&of("later"), None, &two.a), (Ok(()), Ok(())));
    assert_eq!(to(&two.b, None, &two.a), (Ok(()), Ok(())));
    assert!(two.a.set_members(8, [1, 2].into()));
    assert_eq!(to(&of("later"), None, &two.a), refused_by_server(HandshakeFailure::Removed));
}

#[test]
fn a_renewed_certificate_is_shown_without_a_new_configuration() {
    let two = two();
    let config = tls::server_config(&two.a, Protocol::Calls).unwrap();
    let client = tls::client_config(&two.b, Protocol::Calls, None).unwrap();
    let now = NOW.plus(20 * HOUR);
    two.clock.set(now);
    for identity in [&two.a, &two.b] {
        two.authority.renew(identity).unwrap();
    }
    // The former certificates are long over.
    two.clock.set(NOW.plus(40 * HOUR));
    assert_eq!(handshake(client, config), (Ok(()), Ok(())));
}

#[test]
fn nobody_without_a_certificate_gets_further_than_to_the_authority() {
    let two = two();
    let mut anonymous = anonymous(&rustls::version::TLS13);
    for protocol in Protocol::ALL {
        anonymous.alpn_protocols = vec![protocol.alpn().to_vec()];
        let server = tls::server_config(&two.a, protocol).unwrap();
        let expected = match protocol {
            Protocol::Enroll => (Ok(()), Ok(())),
            _ => refused_by_server(HandshakeFailure::NoCertificate),
        };
        assert_eq!(handshake(Arc::new(anonymous.clone()), server), expected, "{protocol:?}");
    }
    // What it names otherwise is spoken nowhere.
    for names in [vec![], vec![b"http/1.1".to_vec()], vec![b"h2c".to_vec()]] {
        assert_eq!(Protocol::named(names.iter().map(Vec::as_slice)), None);
    }
    anonymous.alpn_protocols = vec![b"http/1.1".to_vec()];
    let refused = handshake(Arc::new(anonymous), tls::server_config(&two.a, Protocol::Calls).unwrap());
    assert_eq!(refused.1, Err(HandshakeFailure::UnknownProtocol));
}

#[test]
fn tls_1_2_is_refused() {
    let two = two();
    let mut old = anonymous(&rustls::version::TLS12);
    old.alpn_protocols = vec![b"h2".to_vec()];
    for protocol in Protocol::ALL {
        let refused = handshake(Arc::new(old.clone()), tls::server_config(&two.a, protocol).unwrap());
        assert_eq!(refused.1, Err(HandshakeFailure::Incompatible), "{protocol:?}");
        assert_eq!(refused.0, Err(HandshakeFailure::Incompatible), "{protocol:?}");
    }
}

#[test]
fn a_new_server_speaks_to_the_federation_of_its_token_only() {
    let two = two();
    let foreign = found(&two.directory.path().join("x"), &name("a"), NOW).unwrap().authority;
    let clock: Arc<dyn Clock> = two.clock.clone();
    let joins = |token: &JoinToken, server: &Arc<Identity>| {
        let client = tls::joining_config(token, &clock).unwrap();
        handshake(client, tls::server_config(server, Protocol::Enroll).unwrap())
    };
    let token = two.authority.issue_token(NOW).unwrap();
    assert_eq!(joins(&token, &two.a), (Ok(()), Ok(())));
    // Any server of the federation is one of the federation.
    assert_eq!(joins(&token, &two.b), (Ok(()), Ok(())));
    let of_foreign = foreign.issue_token(NOW).unwrap();
    assert_eq!(joins(&of_foreign, &two.a), refused_by_client(HandshakeFailure::ForeignAuthority));
    two.clock.set(NOW.plus(25 * HOUR));
    assert_eq!(joins(&token, &two.a), refused_by_client(HandshakeFailure::Expired));
}

#[test]
fn a_certificate_that_has_ended_is_good_enough_to_ask_for_the_next_one() {
    let two = two();
    // A server that was off for a month; the one that keeps the authority was not.
    let now = NOW.plus(30 * 24 * HOUR);
    two.clock.set(now);
    two.authority.renew(&two.a).unwrap();
    let with = |protocol| {
        let client = tls::client_config(&two.b, protocol, None).unwrap();
        handshake(client, tls::server_config(&two.a, protocol).unwrap())
    };
    assert_eq!(with(Protocol::Calls), refused_by_server(HandshakeFailure::Expired));
    assert_eq!(with(Protocol::Files), refused_by_server(HandshakeFailure::Expired));
    assert_eq!(with(Protocol::Enroll), (Ok(()), Ok(())));
    // Unless it was removed meanwhile.
    two.a.set_members(3, [1].into());
    assert_eq!(with(Protocol::Enroll), refused_by_server(HandshakeFailure::Removed));
}

#[test]
fn a_certificate_that_is_not_valid_yet_is_good_enough_to_ask_for_the_next_one() {
    let two = two();
    // Whoever gave it has a clock that was a month ahead.
    two.clock.set(NOW.plus(30 * 24 * HOUR));
    two.authority.renew(&two.b).unwrap();
    two.clock.set(NOW);
    assert!(!two.b.is_valid_now() && two.a.is_valid_now());
    assert!(two.b.renewal_is_due() && !two.a.renewal_is_due());
    let with = |protocol| {
        let client = tls::client_config(&two.b, protocol, None).unwrap();
        handshake(client, tls::server_config(&two.a, protocol).unwrap())
    };
    assert_eq!(with(Protocol::Calls), refused_by_server(HandshakeFailure::NotYetValid));
    assert_eq!(with(Protocol::Enroll), (Ok(()), Ok(())));
    two.authority.renew(&two.b).unwrap();
    assert_eq!(with(Protocol::Calls), (Ok(()), Ok(())));
    two.a.set_members(3, [1].into());
    assert_eq!(with(Protocol::Enroll), refused_by_server(HandshakeFailure::Removed));
}

#[test]
fn a_request_shows_the_same_key_however_often_it_is_made() {
    let two = two();
    let folder = two.directory.path().join("new");
    let token = two.authority.issue_token(NOW).unwrap();
    let begin = || ecotone_identity::join::Joining::begin(&folder, token.clone(), name("new")).unwrap().request;
    let key = |request: &[u8]| ecotone_identity::requested_key(request).unwrap();
    assert_eq!(key(&begin()), key(&begin()));
    assert_ne!(key(&begin()), key(&two.b.begin_renewal().unwrap().request));
    assert!(ecotone_identity::requested_key(b"none").is_err());
}

/// A certificate that the authority made in `folder` has signed, and that says something else.
fn forged(folder: &Path, dns: &str, called: &ServerId) -> Arc<ClientConfig> {
    use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
    let parts = pem::parse_many(crate::seals::opened(folder)).unwrap();
    let key = KeyPair::try_from(parts[0].contents().to_vec()).unwrap();
    let certificate = parts[1].contents().to_vec().into();
    let issuer = Issuer::from_ca_cert_der(&certificate, key).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, called.as_str());
    params.subject_alt_names = vec![SanType::DnsName(dns.try_into().unwrap())];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let signed = params.signed_by(&key, &issuer).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Careless))
        .with_client_auth_cert(
            vec![signed.der().clone()],
            rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

#[test]
fn a_certificate_of_another_federation_is_refused_whoever_has_signed_it() {
    let two = two();
    let folder = two.directory.path().join("a");
    let shown =
        |dns: &str| handshake(forged(&folder, dns, &name("b")), tls::server_config(&two.a, Protocol::Calls).unwrap()).1;
    let own = two.authority.federation();
    assert_eq!(shown(&format!("0000000000000001.{own}.ecotone")), Ok(()));
    let other = "0000000000000001.0000000000000002.ecotone";
    assert_eq!(shown(other), Err(HandshakeFailure::OtherFederation));
    for dns in [
        "localhost",
        "ecotone",
        &format!("{own}.ecotone"),
        &format!("x.{own}.ecotone"),
        &format!("0000000000000001.{own}.com"),
    ] {
        assert_eq!(shown(dns), Err(HandshakeFailure::BadCertificate), "{dns}");
    }
}

#[test]
fn what_was_sent_in_one_handshake_is_of_no_use_in_another() {
    let two = two();
    let server = tls::server_config(&two.a, Protocol::Calls).unwrap();
    let config = tls::client_config(&two.b, Protocol::Calls, None).unwrap();
    let mut client = Connection::from(ClientConnection::new(config, tls::joining_server_name()).unwrap());
    let mut first = Connection::from(ServerConnection::new(server.clone()).unwrap());
    // All that the client says, up to its first words behind the handshake.
    let mut recorded = Vec::new();
    let mut said = 0;
    while said < 2 {
        while client.wants_write() {
            let from = recorded.len();
            client.write_tls(&mut recorded).unwrap();
            let mut wire = &recorded[from..];
            while !wire.is_empty() {
                first.read_tls(&mut wire).unwrap();
                first.process_new_packets().unwrap();
            }
        }
        let mut wire = Vec::new();
        while first.wants_write() {
            first.write_tls(&mut wire).unwrap();
        }
        let mut wire = &wire[..];
        while !wire.is_empty() {
            client.read_tls(&mut wire).unwrap();
            client.process_new_packets().unwrap();
        }
        if !client.is_handshaking() {
            said += 1;
            std::io::Write::write_all(&mut client.writer(), b"a call").unwrap();
        }
    }
    let mut heard = [0; 6];
    first.reader().read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"a call");

    let mut second = Connection::from(ServerConnection::new(server).unwrap());
    let mut wire = &recorded[..];
    let mut outcome = Ok(());
    while !wire.is_empty() && outcome.is_ok() {
        second.read_tls(&mut wire).unwrap();
        outcome = second.process_new_packets().map(drop);
        // It answers, and the replay does not listen.
        while second.wants_write() {
            second.write_tls(&mut Vec::new()).unwrap();
        }
    }
    assert_eq!(outcome.map_err(|error| HandshakeFailure::of(&error)), Err(HandshakeFailure::Undecryptable));
    assert!(second.reader().read(&mut heard).is_err() && second.peer_certificates().is_none());
}
