//! Servers that show who they are: joining, working for one another, refusing all others, renewing
//! and being removed. Over real sockets, by a clock that the tests set.

use crate::common;

#[path = "../../../identity/tests/common/careless.rs"] // one copy for both crates
mod careless;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::spoiler::tempting;
use common::wire::coordinator_client::CoordinatorClient;
use common::wire::peer_client::PeerClient;
use common::wire::{PlaceRequest, ProbeRequest, ReportRequest};
use common::{Owner, PATIENCE, Storeless, wait_until};
use ecotone_cluster::Options;
use ecotone_identity::join::Joining;
use ecotone_identity::tls::{self, Protocol};
use ecotone_identity::{HandshakeFailure, Identity, JoinToken, MemberId};
use ecotone_transport::connections::{Connections, Timeouts};
use ecotone_transport::peers::Quotas;
use ecotone_transport::security::Security;
use ecotone_transport::under_way::MAX_HANDSHAKES;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tokio::net::TcpSocket;
use tonic::Code;

use crate::made::{HOUR, IDENTITY, Made, NOW, known, members, name, remove};

fn failed(server: &Storeless, why: HandshakeFailure) -> u64 {
    server.federation.statistics().failed_handshakes[why.name()]
}

/// Shakes hands as a client, and goes on until the server has said what it thinks of it.
fn connect(address: &str, config: Arc<ClientConfig>) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let session = ClientConnection::new(config, tls::joining_server_name()).unwrap();
    let mut stream = StreamOwned::new(session, socket);
    // A server of ours speaks first: HTTP/2's settings.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")?;
    stream.read_exact(&mut [0; 9])?;
    Ok(stream)
}

#[test]
fn servers_that_have_joined_compact_for_one_another() {
    let made = Made::by("owner");
    let mut owner = Owner::start(|options, _| made.first(options));
    let address = owner.federation.address().to_owned();
    // Else who joins is told to wait, which counts.
    wait_until("it leads", || owner.federation.membership().unwrap().known().leads());
    let worker = made.member("worker", &address);
    owner.write_until("offloaded jobs", |owner| owner.offloaded() >= 3);
    for statistics in [owner.federation.statistics(), worker.federation.statistics()] {
        assert!(statistics.handshakes >= 4, "{statistics:?}");
        assert!(statistics.failed_handshakes.values().all(|count| *count == 0), "{statistics:?}");
        assert_eq!(statistics.certificate_expiry_s, Some(NOW.plus(24 * HOUR).0));
    }
    assert!(owner.federation.statistics().network_bytes_sent > 0);
    owner.finish();
}

#[test]
fn strangers_are_refused_named_and_counted() {
    let made = Made::by("coordinator");
    let coordinator = made.coordinator();
    let address = coordinator.federation.address().to_owned();
    let refused = |why: HandshakeFailure, attempt: &dyn Fn() -> bool| {
        let before = failed(&coordinator, why);
        assert!(!attempt(), "{} was let in", why.name());
        wait_until(why.name(), || failed(&coordinator, why) == before + 1);
    };
    let in_plain_text = |first: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(first).unwrap();
        let mut answer = Vec::new();
        // An alert of TLS, and the end: neither settings of HTTP/2 nor a status.
        stream.read_to_end(&mut answer).map_or(0, |_| answer.len()) > 7
    };
    refused(HandshakeFailure::PlainText, &|| in_plain_text(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
    refused(HandshakeFailure::PlainText, &|| in_plain_text(&[&b"ECOF\x01\0\0\0"[..], &[7; 32]].concat()));
    let with = |config: ClientConfig, protocol: &[u8]| {
        let mut config = config;
        config.alpn_protocols = vec![protocol.to_vec()];
        connect(&address, Arc::new(config)).is_ok()
    };
    let anonymous = || careless::anonymous(&rustls::version::TLS13);
    for protocol in [Protocol::Calls, Protocol::Files] {
        refused(HandshakeFailure::NoCertificate, &|| with(anonymous(), protocol.alpn()));
        refused(HandshakeFailure::Incompatible, &|| {
            with(careless::anonymous(&rustls::version::TLS12), protocol.alpn())
        });
    }
    refused(HandshakeFailure::UnknownProtocol, &|| with(anonymous(), b"http/1.1"));

    let foreign = Made::by("coordinator");
    let of_foreign = careless::showing(&foreign.identity("coordinator"));
    refused(HandshakeFailure::ForeignAuthority, &|| connect(&address, of_foreign.clone()).is_ok());

    let member = made.joined("member", &address);
    let of_member = careless::showing(&member);
    assert!(connect(&address, of_member.clone()).is_ok());
    // Made by an authority whose clock is ahead.
    let early = NOW.plus(HOUR / 2);
    let joining = Joining::begin(&made.folder("early").join(IDENTITY), made.token(), name("early")).unwrap();
    let number = MemberId::from_number(known(&coordinator.federation).map.next_member);
    let issued = made.authority.issue(number, &name("early"), &joining.request, early).unwrap();
    joining.end(&issued, number, 1, early).unwrap();
    let of_early = careless::showing(&made.identity("early"));
    refused(HandshakeFailure::NotYetValid, &|| connect(&address, of_early.clone()).is_ok());
    // A day later the coordinator has renewed its certificate, and the member has not.
    made.clock.set(NOW.plus(25 * HOUR));
    let renewed = NOW.plus(49 * HOUR).0;
    wait_until("a renewal", || coordinator.federation.statistics().certificate_expiry_s == Some(renewed));
    refused(HandshakeFailure::Expired, &|| connect(&address, of_member.clone()).is_ok());
}

#[test]
fn nobody_joins_but_with_a_token_of_this_federation_that_is_good() {
    let made = Made::by("coordinator");
    let coordinator = made.coordinator();
    let address = coordinator.federation.address().to_owned();
    let refused = |token: JoinToken, called: &str, at: &str, reason: &str, says: &[&str]| {
        let error = made.join_with(token, called, at).unwrap_err().to_string();
        assert!(error.contains(&format!("({reason})")), "{reason}: {error}");
        for said in says {
            assert!(error.contains(said), "{said}: {error}");
        }
    };
    // Guessed: the fingerprint is no secret.
    let token = made.token();
    let fingerprint = token.to_string().split('-').nth(2).unwrap().to_owned();
    let guessed: JoinToken = format!("eco1-{}-{fingerprint}", "0".repeat(2 * token.secret().len())).parse().unwrap();
    refused(guessed, "b", &address, "unknown-token", &["cluster token"]);
    let joined = made.join_with(token.clone(), "b", &address).unwrap();
    refused(token, "c", &address, "refused", &["spent", "cluster token"]);
    // A second folder of a server that is there.
    std::fs::remove_dir_all(made.folder("b")).unwrap();
    refused(made.token(), "b", &address, "refused", &["another server has this name"]);
    let stale = made.token();
    made.clock.set(NOW.plus(HOUR));
    refused(stale, "d", &address, "expired-token", &["hour"]);
    // Of another federation: the new server notices, and says nothing to this one.
    let foreign = Made::by("coordinator");
    let error = made.join_with(foreign.token(), "e", &address).unwrap_err().to_string();
    assert!(error.contains("another federation"), "{error}");
    wait_until("the refusal", || failed(&coordinator, HandshakeFailure::RefusedByPeer) == 1);
    assert_eq!(members(&coordinator), 2);
    wait_until("the refusals", || failed(&coordinator, HandshakeFailure::NotEnrolled) == 4);
    // A server that does not lead says who does.
    let member = made.member("f", &address);
    wait_until("it to know who leads", || known(&member.federation).leader.is_some());
    let through = made.join_with(made.token(), "g", member.federation.address()).unwrap();
    assert!(through.member > joined.member);
    wait_until("all to know it", || members(&coordinator) == 4 && members(&member) == 4);
    assert_eq!(failed(&coordinator, HandshakeFailure::NotEnrolled), 4);
}

#[test]
fn who_begins_handshakes_and_does_not_go_on_is_bounded_and_cut_off() {
    let made = Made::by("coordinator");
    let coordinator = made.coordinator();
    let address = coordinator.federation.address().to_owned();
    let silent: Vec<_> = (0..MAX_HANDSHAKES + 3).map(|_| TcpStream::connect(&address).unwrap()).collect();
    wait_until("the refusal of those too many", || failed(&coordinator, HandshakeFailure::TooMany) >= 3);
    let all = MAX_HANDSHAKES as u64;
    wait_until("the end of the others", || failed(&coordinator, HandshakeFailure::TimedOut) == all);
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    }
    made.joined("member", &address);
}

/// Strangers at many addresses take all places, again and again, and say nothing.
#[test]
fn idle_strangers_keep_no_server_out() {
    const ADDRESSES: u8 = 10;
    let made = Made::by("coordinator");
    // Were strangers counted as connections, there would be none for servers.
    let coordinator = made.coordinator_with(|options| options.limits.connections = 16);
    let address = coordinator.federation.address().to_owned();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let to: SocketAddr = address.parse().unwrap();
            let mut strangers = VecDeque::new();
            while !is_over.load(Ordering::Relaxed) {
                for last in 2..2 + ADDRESSES {
                    let from = SocketAddr::from(([127, 0, 0, last], 0));
                    // None where all ports of the address are used up for now.
                    let stranger = runtime.block_on(async {
                        let socket = TcpSocket::new_v4()?;
                        socket.bind(from)?;
                        socket.connect(to).await
                    });
                    strangers.extend(stranger.ok());
                }
                // As many as there are places are under way here at any time.
                strangers.drain(..strangers.len().saturating_sub(2 * MAX_HANDSHAKES));
            }
        });
        let end = OnDrop(&is_over);
        wait_until("all places to be taken", || failed(&coordinator, HandshakeFailure::TooMany) > 0);
        let member = made.member("member", &address);
        wait_until("it to know who leads", || known(&member.federation).leader.is_some());
        wait_until("both to know it", || members(&coordinator) == 2 && members(&member) == 2);
        drop(end);
    });
}

/// Says that something is over, also where a test fails.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_a_server_said_to_join_is_of_no_use_to_who_has_recorded_it() {
    let made = Made::by("coordinator");
    let coordinator = made.coordinator();
    let address = coordinator.federation.address().to_owned();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let through = between.local_addr().unwrap().to_string();
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let (to, record) = (address.clone(), recorded.clone());
    let recorder = std::thread::spawn(move || {
        let (mut client, _) = between.accept().unwrap();
        let mut server = TcpStream::connect(to).unwrap();
        let (mut client_out, mut server_in) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let back = std::thread::spawn(move || {
            let _ = std::io::copy(&mut server_in, &mut client_out);
            let _ = client_out.shutdown(std::net::Shutdown::Both);
        });
        let mut buffer = [0; 4096];
        while let Ok(read) = client.read(&mut buffer)
            && read > 0
        {
            record.lock().unwrap().extend_from_slice(&buffer[..read]);
            server.write_all(&buffer[..read]).unwrap();
        }
        let _ = server.shutdown(std::net::Shutdown::Both);
        back.join().unwrap();
    });
    made.join_with(made.token(), "b", &through).unwrap();
    recorder.join().unwrap();
    let before = known(&coordinator.federation).map.clone();
    let recorded = recorded.lock().unwrap();
    // All at once, and as a client does: its hello, and the rest when the server has answered.
    let hello = 5 + usize::from(u16::from_be_bytes([recorded[3], recorded[4]]));
    for (first, why) in [(recorded.len(), HandshakeFailure::TimedOut), (hello, HandshakeFailure::Undecryptable)] {
        let mut replay = TcpStream::connect(&address).unwrap();
        replay.set_read_timeout(Some(PATIENCE)).unwrap();
        replay.write_all(&recorded[..first]).unwrap();
        replay.read_exact(&mut [0]).unwrap();
        replay.write_all(&recorded[first..]).unwrap();
        // Until it hangs up, whatever it says before.
        let _ = replay.read_to_end(&mut Vec::new());
        wait_until(why.name(), || failed(&coordinator, why) == 1);
    }
    assert_eq!(known(&coordinator.federation).map, before);
}

#[test]
fn a_removed_server_is_cut_off_within_a_second_by_all() {
    let made = Made::by("coordinator");
    // Long enough that nobody else hangs up.
    let patient = |options: &mut Options| options.limits.heartbeat_timeout = Duration::from_secs(60);
    let coordinator = made.coordinator_with(patient);
    let address = coordinator.federation.address().to_owned();
    made.joined("stays", &address);
    let stays = Storeless::start("stays", |options| {
        made.being("stays", Some(&address), options);
        patient(options);
    });
    wait_until("the reports", || stays.federation.servers().len() == 2);
    let going = made.joined("goes", &address);
    let goes = careless::showing(&going);
    let open = [coordinator.federation.address(), stays.federation.address()]
        .map(|address| connect(address, goes.clone()).unwrap());
    let readers = open.map(|mut stream| {
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            Instant::now()
        })
    });
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    let removed = Instant::now();
    remove(&coordinator, &going);
    for reader in readers {
        let cut = reader.join().unwrap();
        assert!(cut.duration_since(removed) < Duration::from_secs(1), "{:?}", cut.duration_since(removed));
    }
    for server in [&coordinator, &stays] {
        assert!(connect(server.federation.address(), goes.clone()).is_err());
        wait_until("the refusal", || failed(server, HandshakeFailure::Removed) == 1);
    }
    // The one that was not removed is as it was.
    let servers = stays.federation.servers();
    assert!(servers.iter().any(|server| server.is_coordinator && server.silent_for < Duration::from_secs(5)));
}

/// A connection of `identity` of its own, beside those of its server.
fn connections(identity: &Arc<Identity>) -> (Arc<Security>, Connections) {
    let timeouts =
        Timeouts { connect: Duration::from_secs(10), read: Duration::from_secs(10), silence: Duration::from_secs(60) };
    let security = Security::new(Some(identity.clone()), Quotas::with_rate(1e9));
    (security.clone(), Connections::new(identity.own().name, timeouts, security))
}

#[test]
fn a_server_speaks_for_itself_only() {
    let made = Made::by("coordinator");
    let coordinator = made.coordinator();
    let address = coordinator.federation.address().to_owned();
    let (_, edge) = connections(&made.joined("edge", &address));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = CoordinatorClient::new(edge.to(&address, Some(&name("coordinator"))).await.unwrap());
        let report = |called: &str| ReportRequest { load: Some(tempting(called)), ..ReportRequest::default() };
        client.report(report("edge")).await.unwrap();
        for forged in [client.report(report("fog")).await.map(drop), {
            let request = PlaceRequest { owner: "fog".into(), ..PlaceRequest::default() };
            client.place(request).await.map(drop)
        }] {
            let forged = forged.unwrap_err();
            assert_eq!(forged.code(), Code::PermissionDenied, "{forged}");
            assert!(forged.message().contains("edge") && forged.message().contains("fog"), "{forged}");
        }
        let other = edge.to(&address, Some(&name("fog"))).await.map(drop).unwrap_err().to_string();
        assert!(other.contains("coordinator") && other.contains("fog"), "{other}");
    });
}

#[test]
fn certificates_are_renewed_under_running_calls_and_none_fails() {
    let made = Made::by("coordinator");
    let coordinator = made.coordinator();
    let address = coordinator.federation.address().to_owned();
    let identity = made.joined("member", &address);
    let member = Storeless::start("member", |options| {
        made.being("member", Some(&address), options);
        options.identity = Some(identity.clone());
    });
    let (_, caller) = connections(&identity);
    let caller = Arc::new(caller);
    let (ends, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let calling = runtime.spawn({
        let (caller, address) = (caller.clone(), address.clone());
        let (ends, calls) = (ends.clone(), calls.clone());
        async move {
            while !ends.load(Ordering::SeqCst) {
                let channel = caller.to(&address, Some(&name("coordinator"))).await.unwrap();
                let request = ProbeRequest { payload: vec![7; 1000], reply_bytes: 1000 };
                PeerClient::new(channel).probe(request).await.unwrap();
                calls.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let more_calls = || {
        let before = calls.load(Ordering::SeqCst);
        wait_until("calls", || calls.load(Ordering::SeqCst) > before + 10 || calling.is_finished());
    };
    more_calls();
    // Long after the first certificates have ended.
    for half_days in 1..=5 {
        let now = NOW.plus(half_days * 13 * HOUR);
        made.clock.set(now);
        let end = now.plus(24 * HOUR).0;
        for server in [&coordinator, &member] {
            wait_until("a renewal", || server.federation.statistics().certificate_expiry_s == Some(end));
        }
        runtime.block_on(caller.renew());
        more_calls();
    }
    ends.store(true, Ordering::SeqCst);
    runtime.block_on(calling).unwrap();
    let folder = made.folder("member").join(IDENTITY);
    assert_eq!(Identity::open(&folder, made.clock.clone()).unwrap().unwrap().own(), identity.own());
    for server in [&coordinator, &member] {
        let failed = server.federation.statistics().failed_handshakes;
        assert!(failed.values().all(|count| *count == 0), "{failed:?}");
    }
}

#[test]
fn a_server_that_was_off_for_a_month_comes_back_by_itself_unless_it_was_removed() {
    let made = Made::by("coordinator");
    let coordinator = made.coordinator();
    let address = coordinator.federation.address().to_owned();
    let [returns, removed] = ["returns", "removed"].map(|called| made.joined(called, &address));
    let now = NOW.plus(30 * 24 * HOUR);
    made.clock.set(now);
    let end = now.plus(24 * HOUR).0;
    wait_until("a renewal", || coordinator.federation.statistics().certificate_expiry_s == Some(end));
    remove(&coordinator, &removed);
    let returned = made.start("returns", &address);
    wait_until("a renewal", || returned.federation.statistics().certificate_expiry_s == Some(end));
    wait_until("its reports", || coordinator.federation.servers().iter().any(|server| server.name == name("returns")));
    assert!(returns.own().ends < now);
    let gone = made.start("removed", &address);
    wait_until("the refusal", || failed(&coordinator, HandshakeFailure::Removed) > 0);
    assert!(gone.federation.statistics().certificate_expiry_s < Some(end));
    assert!(coordinator.federation.servers().iter().all(|server| server.name != name("removed")));
}

#[test]
fn a_server_without_identity_stays_on_its_own_machine() {
    let folder = tempfile::tempdir().unwrap();
    let start = |change: &dyn Fn(&mut Options)| {
        let mut options = common::options("server", folder.path());
        change(&mut options);
        let started = ecotone_cluster::Federation::start(options, common::duties(), Arc::new(common::Ended::default()));
        started.map(drop)
    };
    start(&|_| ()).unwrap();
    let everywhere = |options: &mut Options| {
        options.listen = "0.0.0.0:0".parse().unwrap();
        options.announce = Some("edge:7411".into());
    };
    let refused = start(&everywhere).unwrap_err().to_string();
    assert!(refused.contains("ecotone cluster init") && refused.contains("--token"), "{refused}");
    for join in ["10.0.0.5:7411", "edge:7411", "[2001:db8::1]:7411"] {
        let refused = start(&|options: &mut Options| options.join = Some(join.into())).unwrap_err().to_string();
        assert!(refused.contains(join) && refused.contains("ecotone cluster token"), "{refused}");
    }
    let made = Made::by("first");
    start(&|options| {
        made.first(options);
        options.name = None;
        everywhere(options);
    })
    .unwrap();
    let refused = start(&|options| made.first(options)).unwrap_err().to_string();
    assert!(refused.contains("server") && refused.contains("first"), "{refused}");
}
