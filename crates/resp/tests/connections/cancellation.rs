//! Work that nobody waits for any more ends, and none keeps others from their keys for long.

use crate::common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::served::{Served, any_port, until};
use common::wire::{Wire, request};
use common::{Fixture, words};
use ecotone_engine::StoreSettings;
use ecotone_keyspace::{Blocking, CancelReason, MAX_LATCH_HOLD, Slot, WriteGroup};
use ecotone_resp::serve::{EventLoops, Listen};
use ecotone_resp::service::Limits;
use tempfile::TempDir;

const ELEMENTS: usize = 500;

/// Large collections of each type, and many keys.
fn fill(fixture: &Fixture) {
    let mut client = fixture.client();
    let numbers: Vec<String> = (0..ELEMENTS).map(|number| format!("{number:03}")).collect();
    let twice = numbers.iter().map(|number| format!("{number} {number}")).collect::<Vec<_>>().join(" ");
    for (begin, elements) in [
        ("HSET hash", &twice),
        ("ZADD sorted", &twice),
        ("SADD set", &numbers.join(" ")),
        ("SADD other", &numbers.join(" ")),
        ("RPUSH list", &numbers.join(" ")),
        ("MSET", &twice),
    ] {
        assert!(!client.ask(&format!("{begin} {elements}")).starts_with('-'), "{begin}");
    }
}

/// Each takes more steps than are done between two looks.
const LONG: &[&str] = &[
    "HRANDFIELD hash -1000",
    "HRANDFIELD hash -1000 WITHVALUES",
    "HRANDFIELD hash 400",
    "SRANDMEMBER set -1000",
    "SRANDMEMBER set 100",
    "ZRANDMEMBER sorted -1000 WITHSCORES",
    "ZRANDMEMBER sorted 100",
    "KEYS *",
    "DBSIZE",
    "SCAN 0 COUNT 100000",
    "HGETALL hash",
    "HKEYS hash",
    "HVALS hash",
    "HSCAN hash 0 COUNT 100000",
    "SMEMBERS set",
    "SSCAN set 0 COUNT 100000",
    "SINTER set other",
    "SUNION set other",
    "SDIFF set other",
    "SINTERCARD 2 set other",
    "SINTERSTORE made set other",
    "SUNIONSTORE made set other",
    "SDIFFSTORE made set nothing",
    "SPOP set 400",
    "ZRANGE sorted 0 -1",
    "ZRANGE sorted 0 -1 REV WITHSCORES",
    "ZRANGEBYSCORE sorted 1 +inf",
    "ZCOUNT sorted 1 +inf",
    "ZRANGEBYLEX sorted [000 +",
    "ZPOPMIN sorted 400",
    "ZREMRANGEBYRANK sorted 0 400",
    "ZREMRANGEBYSCORE sorted 1 400",
    "ZSCAN sorted 0 COUNT 100000",
    "LRANGE list 0 -1",
    "LPOP list 400",
    "LPOS list nothing",
    "LINSERT list BEFORE 250 x",
    "LREM list 0 400",
    "COPY hash made",
    "MEMORY USAGE hash SAMPLES 0",
];

#[test]
fn what_takes_long_ends_without_a_trace_once_its_client_has_gone() {
    let fixture = Fixture::new();
    fill(&fixture);
    let many = |command: &str| {
        (0..ELEMENTS).map(|number| format!(" {number:03}")).fold(command.to_owned(), |all, one| all + &one)
    };
    let mut long: Vec<String> = LONG.iter().map(|request| (*request).to_owned()).collect();
    long.extend(
        [
            "MGET",
            "EXISTS",
            "TOUCH",
            "DEL",
            "UNLINK",
            "HMGET hash",
            "HDEL hash",
            "SMISMEMBER set",
            "SREM set",
            "ZMSCORE sorted",
        ]
        .map(many),
    );
    let states = |client: &mut common::TestClient<'_>| {
        ["DBSIZE", "HLEN hash", "SCARD set", "ZCARD sorted", "LLEN list", "EXISTS made"].map(|ask| client.ask(ask))
    };
    let mut other = fixture.client();
    let before = states(&mut other);
    for request in &long {
        let mut client = fixture.client();
        client.client.info.cancellation.cancel(CancelReason::Gone);
        let reply = client.ask(request);
        assert_eq!(reply, "-ERR the client has gone\r\n", "{}", &request[..request.len().min(80)]);
        assert_eq!(states(&mut other), before, "{}", &request[..request.len().min(80)]);
    }
    // All of a transaction, or nothing: here each of its commands is short.
    let mut client = fixture.client();
    client.ask("MULTI");
    (0..200).for_each(|number| _ = client.ask(&format!("SET made:{number} 1")));
    client.client.info.cancellation.cancel(CancelReason::Gone);
    assert_eq!(client.ask("EXEC"), "-ERR the client has gone\r\n");
    assert_eq!(states(&mut other), before);
    // What is short is carried out, as Redis carries out all that it has received.
    assert_eq!(client.ask("SET made 1"), "+OK\r\n");
    assert_eq!(fixture.client().ask("GET made"), "$1\r\n1\r\n");
}

/// Keys with long names, and a pattern that takes minutes to be matched with all of them.
fn slow_pattern(wire: &mut Wire) -> Vec<u8> {
    const NAME_BYTES: usize = 16 * 1024;
    let name = vec![b'a'; NAME_BYTES];
    for batch in 0..20 {
        let names: Vec<Vec<u8>> =
            (0..100).map(|number| [&name, format!(":{batch}:{number}").as_bytes()].concat()).collect();
        let pairs: Vec<&[u8]> = names.iter().flat_map(|name| [name.as_slice(), b"v"]).collect();
        wire.send(&request(&[&[&b"MSET"[..]], &pairs[..]].concat()));
        assert_eq!(wire.reply(), b"+OK\r\n");
    }
    [&b"*"[..], &name[..NAME_BYTES / 2], b"b"].concat()
}

/// One that is reached by a Unix socket as well, in a folder of its own.
fn served() -> (Served, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let socket = Some(folder.path().join("s"));
    let listen = Listen { addresses: any_port(), socket, event_loops: EventLoops::All(1), ..Listen::default() };
    (Served::listening(&listen, Limits::default()), folder)
}

/// A client of the Unix socket that has sent this.
fn sends(served: &Served, request: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(served.server.listening().socket.as_ref().unwrap()).unwrap();
    stream.write_all(request).unwrap();
    stream
}

/// Whether any request is carried out elsewhere.
fn works(served: &Served) -> bool {
    served.service.statistics.waiting.load(Ordering::Relaxed) > 0
}

#[test]
fn who_leaves_lets_its_work_go_and_others_have_their_keys() {
    let (served, _folder) = served();
    let mut other = Wire::to(served.address());
    let pattern = slow_pattern(&mut other);
    let looks = request(&[b"KEYS", &pattern]);
    // It would write at the end, and has all latches until then.
    let writes = [request(&[b"MULTI"]), request(&[b"SET", b"left", b"1"]), looks.clone(), request(&[b"EXEC"])].concat();
    for request in [&looks, &writes] {
        let mut leaving = Wire::to(served.address());
        leaving.send(request);
        until("it is carried out", || works(&served));
        drop(leaving);
        until("it has ended", || !works(&served));

        let leaving = sends(&served, request);
        until("it is carried out", || works(&served));
        drop(leaving);
        until("it has ended", || !works(&served));
    }
    served.until_clients(1);
    assert_eq!(other.ask("EXISTS left"), ":0\r\n");
    assert_eq!(other.ask("SET left 2"), "+OK\r\n");
    served.server.stop();
}

#[test]
fn who_only_reads_keeps_nobody_from_its_keys_and_who_writes_not_for_long() {
    let (served, _folder) = served();
    let mut other = Wire::to(served.address());
    let pattern = slow_pattern(&mut other);
    let looks = request(&[b"KEYS", &pattern]);
    let mut reading = Wire::to(served.address());
    reading.send(&[request(&[b"MULTI"]), request(&[b"MGET", b"a", b"b"]), looks.clone(), request(&[b"EXEC"])].concat());
    until("it is carried out", || works(&served));
    assert_eq!(other.ask("MSET a 1 b 1"), "+OK\r\n");
    assert!(works(&served), "it reads on");
    drop(reading);
    until("it has ended", || !works(&served));

    let mut writing = Wire::to(served.address());
    let began = Instant::now();
    writing.send(&[request(&[b"MULTI"]), request(&[b"SET", b"a", b"2"]), looks, request(&[b"EXEC"])].concat());
    until("it is carried out", || works(&served));
    // What waits for it is done.
    assert_eq!(other.ask("GETSET a 3"), "$1\r\n1\r\n");
    let replies: Vec<Vec<u8>> = (0..4).map(|_| writing.reply()).collect();
    assert!(began.elapsed() >= MAX_LATCH_HOLD, "{:?}", began.elapsed());
    let told = String::from_utf8_lossy(&replies[3]);
    assert!(told.starts_with("-ERR the request has kept others from its keys for 5 s"), "{told}");
    assert_eq!(writing.ask("GET a"), "$1\r\n3\r\n", "the client goes on");
    served.server.stop();
}

#[test]
fn who_waits_for_a_latch_and_leaves_waits_no_more() {
    let (served, _folder) = served();
    let mut holding = WriteGroup::new(served.service.keyspace.clone());
    assert!(holding.hold(&[Slot::of(b"a")], Blocking::Never));
    let leaving = sends(&served, &request(&[b"INCR", b"a"]));
    until("it waits", || works(&served));
    drop(leaving);
    served.until_clients(0);
    drop(holding);
    assert_eq!(Wire::to(served.address()).ask("EXISTS a"), ":0\r\n");
    served.server.stop();
}

#[test]
fn what_was_sent_before_a_client_closed_its_side_is_answered() {
    let (served, _folder) = served();
    let mut other = Wire::to(served.address());
    other.send(&request(&words(&(0..1000).fold("MSET".to_owned(), |all, number| format!("{all} k{number} v")))));
    assert_eq!(other.reply(), b"+OK\r\n");
    // Some of it is carried out at once, some elsewhere, some waits.
    let mut wire = Wire::to(served.address());
    let one =
        ["PING", "DBSIZE", "SET a 1", "KEYS k1", "INCR a", "WAIT 0 0"].map(|words| request(&common::words(words)));
    wire.send(&one.concat().repeat(200));
    wire.stream.shutdown(Shutdown::Write).unwrap();
    for round in 0..200 {
        let replies: Vec<u8> = (0..6).flat_map(|_| wire.reply()).collect();
        let keys = if round == 0 { 1000 } else { 1001 };
        let expected = format!("+PONG\r\n:{keys}\r\n+OK\r\n*1\r\n$2\r\nk1\r\n:2\r\n:0\r\n");
        assert_eq!(String::from_utf8_lossy(&replies), expected, "{round}");
    }
    assert_eq!(wire.reply(), b"");

    // What takes too long is told to who still reads.
    let pattern = slow_pattern(&mut other);
    let mut wire = Wire::to(served.address());
    wire.send(&[request(&[b"KEYS", &pattern]), request(&[b"PING"])].concat());
    wire.stream.shutdown(Shutdown::Write).unwrap();
    let told = String::from_utf8(wire.reply()).unwrap();
    assert!(told.starts_with("-ERR the client has closed its side") && told.contains("keep it open"), "{told}");
    assert_eq!(wire.reply(), b"+PONG\r\n");
    let mut rest = Vec::new();
    wire.stream.read_to_end(&mut rest).unwrap();
    served.server.stop();
}

#[test]
fn a_number_whose_reply_cannot_fit_is_refused_before_anything_is_done() {
    let fixture = Fixture::with(StoreSettings::default());
    fill(&fixture);
    fixture.service.set_limits(Limits { argument_bytes: 1024, output_bytes: 2000, ..Limits::default() });
    let mut client = fixture.client();
    client.ask("SADD few a bb");
    client.ask("HSET pairs f vv");
    client.ask("ZADD scores 1 a");
    // On an event loop: it would have to wait for what it refuses.
    for (request, is_refused) in [
        ("HRANDFIELD hash -334", true),
        ("HRANDFIELD hash -167 WITHVALUES", true),
        ("SRANDMEMBER set -334", true),
        ("ZRANDMEMBER sorted -334", true),
        ("ZRANDMEMBER sorted -1000000000000", true),
        ("HRANDFIELD hash 400", true),
        ("SRANDMEMBER set 400", true),
        ("ZRANDMEMBER sorted 400", true),
        ("HGETALL hash", true),
        ("HKEYS hash", true),
        ("SMEMBERS set", true),
        ("SPOP set 400", true),
        ("LRANGE list 0 -1", true),
        ("LPOP list 400", true),
        ("ZRANGE sorted 0 -1", true),
        ("ZPOPMAX sorted 400", true),
        ("HRANDFIELD hash -3", false),
        ("LRANGE list 0 50", false),
        ("SPOP set 3", false),
        ("LPOP list 3", false),
    ] {
        let reply = client.at_once(request);
        assert_eq!(
            reply.starts_with("-ERR the reply would take more than 2000 bytes"),
            is_refused,
            "{request}: {reply}"
        );
    }
    // The shortest element is known where all are at hand: seven bytes here, fifteen with a value
    // of two.
    for (fits, too_many) in [
        ("SRANDMEMBER few -250", "SRANDMEMBER few -286"),
        ("HRANDFIELD pairs -132 WITHVALUES", "HRANDFIELD pairs -134 WITHVALUES"),
        ("ZRANDMEMBER scores -280", "ZRANDMEMBER scores -286"),
    ] {
        assert!(client.ask(fits).starts_with('*'), "{fits}");
        let refused = client.ask(too_many);
        assert!(refused.starts_with("-ERR the reply would take more"), "{too_many}: {refused}");
    }
}

#[test]
fn of_what_is_read_once_each_is_drawn_as_often() {
    const EACH: usize = 200;
    let fixture = Fixture::new();
    fill(&fixture);
    let mut client = fixture.client();
    for (request, answers) in [
        ("HRANDFIELD hash", 1),
        ("HRANDFIELD hash WITHVALUES", 2),
        ("SRANDMEMBER set", 1),
        ("ZRANDMEMBER sorted", 1),
        ("ZRANDMEMBER sorted WITHSCORES", 2),
    ] {
        let (draw, with) = request.split_at(request.find(" WITH").unwrap_or(request.len()));
        let began = Instant::now();
        let reply = client.send(&words(&format!("{draw} -{}{with}", EACH * ELEMENTS)));
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        let texts = common::redis::texts(&reply);
        assert_eq!(texts.len(), answers * EACH * ELEMENTS, "{request}");
        let mut times = vec![0_usize; ELEMENTS];
        for drawn in texts.chunks(answers) {
            let number: usize = std::str::from_utf8(&drawn[0]).unwrap().parse().unwrap();
            times[number] += 1;
            if let [_, beside] = drawn {
                let beside = std::str::from_utf8(beside).unwrap();
                assert_eq!(beside.parse::<usize>().unwrap(), number, "{request}");
            }
        }
        // A deviation of 14 is usual.
        assert!(times.iter().all(|times| (EACH / 2..2 * EACH).contains(times)), "{request}: {times:?}");
    }
}
