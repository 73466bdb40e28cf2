//! Certificates that are renewed under a server that runs.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::TLS13;

use super::certificates::{Authority, replace};
use super::common::wire::Wire;
use super::wire::{TlsWire, config};
use super::{Asks, place};

/// Connects until what a client sees is so.
fn until_connected(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}");
    }
}

#[test]
fn a_new_certificate_is_shown_and_one_that_cannot_be_used_is_not() {
    let place = place(Asks::default());
    let (address, folder) = (place.served.tls_address(), place.folder.path());
    let mut old = TlsWire::to(address, &place.authority);
    let first = old.shown();

    let second = place.authority.server();
    let der = CertificateDer::from_pem_slice(second.certificate.as_bytes()).unwrap();
    second.write(folder);
    until_connected("the new certificate is shown", || TlsWire::to(address, &place.authority).shown() == der);
    assert_ne!(first, der);
    assert_eq!(old.ask("PING"), "+PONG\r\n", "who is in stays");

    // Nobody is shown what is broken; that it was looked at is seen by what comes after it.
    replace(&folder.join("server.pem"), "-----BEGIN CERTIFICATE-----\nnonsense");
    let began = Instant::now();
    until_connected("time goes by", || {
        assert_eq!(TlsWire::to(address, &place.authority).shown(), der);
        began.elapsed() > Duration::from_secs(3)
    });
    std::fs::remove_file(folder.join("server.key")).unwrap();
    assert_eq!(TlsWire::to(address, &place.authority).ask("PING"), "+PONG\r\n");
    let third = place.authority.server();
    let der = CertificateDer::from_pem_slice(third.certificate.as_bytes()).unwrap();
    third.write(folder);
    until_connected("the third is shown", || TlsWire::to(address, &place.authority).shown() == der);
    place.served.server.stop();
}

#[test]
fn who_asks_is_told_when_certificates_are_over_also_once_they_are_others() {
    let place = place(Asks { certificates: true, ..Asks::default() });
    let ends = &place.served.service.certificate_ends;
    let days = |end_s: Option<i64>| {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        end_s.map(|end_s| (end_s - now_s).div_euclid(86_400))
    };
    assert!(days(ends.certificate_s()) > Some(365) && days(ends.client_ca_s()) > Some(365), "{ends:?}");
    let client = place.authority.client();
    let ask = |what: &str| {
        let config = config(&place.authority, &TLS13, Some(&client));
        TlsWire::connect(place.served.tls_address(), config).and_then(|mut wire| wire.try_ask(what))
    };
    for end in [20, -3] {
        place.authority.server_until(end).write(place.folder.path());
        until_connected("the new end is told", || {
            let _ = ask("PING");
            days(ends.certificate_s()) == Some(end)
        });
    }
    // Nobody takes it any more; who does not look is served all the same.
    assert!(ask("PING").is_err());
    let mut plain = Wire::to(place.served.address());
    let told = plain.ask("INFO server");
    let line = format!("\r\ntls_certificate_expiry_seconds:{}\r\n", ends.certificate_s().unwrap());
    assert!(told.contains(&line) && told.contains("\r\ntls_client_ca_expiry_seconds:"), "{told}");
    place.served.server.stop();
}

#[test]
fn other_authorities_count_for_those_that_come_after() {
    let place = place(Asks { certificates: true, ..Asks::default() });
    let address = place.served.tls_address();
    let other = Authority::new("another");
    let (client, stranger) = (place.authority.client(), other.client());
    let comes_in = |shows| {
        let connected = TlsWire::connect(address, config(&place.authority, &TLS13, Some(shows)));
        connected.and_then(|mut wire| wire.try_ask("PING")).is_ok_and(|answer| answer == "+PONG\r\n")
    };
    assert!(comes_in(&client) && !comes_in(&stranger));
    replace(&place.folder.path().join("ca.pem"), &other.certificate);
    until_connected("the other authority counts", || comes_in(&stranger));
    assert!(!comes_in(&client), "and the first one does not, also not by a session from before");
    place.served.server.stop();
}
