//! What one client asks for takes bounded memory, and no time or room of others.

use crate::common;

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::served::Served;
use common::wire::{Wire, request};
use common::{Fixture, noise, words};
use ecotone_engine::{SpaceLimits, StoreSettings};
use ecotone_resp::execute::Step;
use ecotone_resp::service::{DebugCommand, Limits};

fn served(limits: Limits, options: StoreSettings) -> Served {
    Served::with(limits, options, 1)
}

fn text(reply: Vec<u8>) -> String {
    String::from_utf8_lossy(&reply).into_owned()
}

#[test]
fn a_reply_that_is_too_long_is_refused_before_it_is_made_and_the_client_goes_on() {
    let limits = Limits { output_bytes: 4 << 20, ..Limits::default() };
    let served = served(limits, StoreSettings::default().with_separation(128));
    let mut wire = Wire::to(served.address());
    let big = vec![b'x'; 1 << 20];
    wire.send(&request(&[b"SET", b"big", &big]));
    assert_eq!(wire.reply(), b"+OK\r\n");
    for index in 0..6 {
        let field = format!("field{index}");
        wire.send(&request(&[b"HSET", b"hash", field.as_bytes(), &big]));
        assert_eq!(wire.reply(), b":1\r\n");
    }
    let many = [&[&b"MGET"[..]], &[&b"big"[..]; 900][..]].concat();
    for too_much in [request(&many), request(&[b"HGETALL", b"hash"]), request(&[b"HVALS", b"hash"])] {
        wire.send(&[request(&[b"PING"]), too_much, request(&[b"STRLEN", b"big"])].concat());
        assert_eq!(wire.reply(), b"+PONG\r\n");
        let refused = text(wire.reply());
        assert!(
            refused.starts_with("-ERR the reply is longer") && refused.contains("clients.max_output_bytes"),
            "{refused}"
        );
        assert_eq!(wire.reply(), b":1048576\r\n");
    }
    // In a transaction each reply counts, and what does not fit takes nothing with it but itself.
    let transaction =
        [request(&[b"MULTI"]), request(&[b"GET", b"big"]).repeat(6), request(&[b"INCR", b"n"]), request(&[b"EXEC"])];
    wire.send(&transaction.concat());
    assert_eq!(wire.reply(), b"+OK\r\n");
    (0..7).for_each(|_| assert_eq!(wire.reply(), b"+QUEUED\r\n"));
    let replies = text(wire.reply());
    assert!(replies.starts_with("*7\r\n$1048576\r\n") && replies.ends_with(":1\r\n"));
    assert_eq!(replies.matches("-ERR the reply is longer").count(), 3);
    // What would have changed something is not done.
    assert_eq!(wire.ask("GETDEL big").len(), big.len() + 12);
    served.server.stop();
}

#[test]
fn the_longest_string_can_be_read_wherever_it_is_asked_for() {
    let default = Limits::default();
    assert!(default.argument_bytes + Limits::AROUND_LONGEST_BYTES <= default.output_bytes);
    let argument_bytes = 3 << 20;
    let limits = Limits { argument_bytes, output_bytes: argument_bytes + Limits::AROUND_LONGEST_BYTES, ..default };
    let served = served(limits, StoreSettings::default());
    let mut wire = Wire::to(served.address());
    let big = noise(argument_bytes);
    // One byte less than what is sent before the next request is carried out.
    let before = vec![b'b'; Limits::ROUND_REPLY_BYTES - 1 - "$262143\r\n\r\n".len()];
    // With what MULTI is replied it comes to as much.
    let less = vec![b'l'; before.len() - 100];
    for (key, value) in [("big", &big), ("before", &before), ("less", &less)] {
        wire.send(&request(&[b"SET", key.as_bytes(), value]));
        assert_eq!(wire.reply(), b"+OK\r\n");
    }
    let bulk = |value: &[u8]| [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
    let get = |key: &str| request(&[b"GET", key.as_bytes()]);
    assert_eq!(bulk(&before).len(), Limits::ROUND_REPLY_BYTES - 1);
    wire.send(&get("big"));
    assert!(wire.reply() == bulk(&big));
    wire.send(&[get("before"), get("big"), get("before")].concat());
    for value in [&before, &big, &before] {
        assert!(wire.reply() == bulk(value), "a reply behind others");
    }
    let transaction = [request(&[b"MULTI"]), get("big"), request(&[b"EXEC"])].concat();
    wire.send(&transaction);
    (0..2).for_each(|_| assert!(wire.reply().starts_with(b"+")));
    assert!(wire.reply() == [b"*1\r\n", &bulk(&big)[..]].concat(), "within a transaction");
    // All of it together.
    let transaction = [request(&[b"MULTI"]), get("less"), get("big"), get("less"), request(&[b"EXEC"])].concat();
    wire.send(&[get("less"), transaction].concat());
    assert!(wire.reply() == bulk(&less));
    (0..4).for_each(|_| assert!(wire.reply().starts_with(b"+")));
    let told = wire.reply();
    assert!(told.starts_with(&[b"*3\r\n", &bulk(&less)[..], &bulk(&big)[..]].concat()), "{} bytes", told.len());
    served.server.stop();
}

#[test]
fn all_clients_together_keep_no_more_than_they_may() {
    let limits = Limits { memory_bytes: 4 << 20, ..Limits::default() };
    let served = served(limits, StoreSettings::default());
    let mut small = Wire::to(served.address());
    assert_eq!(small.ask("SET a 1"), "+OK\r\n");
    // Each sends the better part of a large request, and waits.
    let part = [&b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$3000000\r\n"[..], &vec![b'x'; 1_500_000]].concat();
    let mut large: Vec<Wire> = (0..8).map(|_| Wire::to(served.address())).collect();
    for wire in &mut large {
        // Who is refused may be gone before it has sent all.
        let _ = wire.stream.write_all(&part);
    }
    let began = Instant::now();
    while served.service.clients.len() > 3 {
        assert_eq!(small.ask("INCR a").as_bytes()[0], b':', "who is small goes on");
        assert!(began.elapsed() < Duration::from_secs(120), "{} clients", served.service.clients.len());
    }
    assert!(served.service.client_memory.load(Ordering::Relaxed) < 8 << 20);
    // A transaction takes memory as well.
    assert_eq!(small.ask("MULTI"), "+OK\r\n");
    let argument = vec![b'y'; 100_000];
    let answers: Vec<String> = (0..50)
        .map(|_| {
            small.send(&request(&[b"SET", b"c", &argument]));
            text(small.reply())
        })
        .collect();
    assert_eq!(answers[0], "+QUEUED\r\n");
    assert!(answers.last().unwrap().contains("clients.max_memory_bytes"), "{answers:?}");
    assert!(small.ask("EXEC").starts_with("-EXECABORT"));
    drop(large);
    let began = Instant::now();
    while served.service.clients.len() > 1 {
        assert!(began.elapsed() < Duration::from_secs(120));
        std::thread::yield_now();
    }
    small.send(&request(&[b"SET", b"c", &vec![b'z'; 3_000_000]]));
    assert_eq!(small.reply(), b"+OK\r\n", "there is room again");
    served.server.stop();
    assert!(served.service.client_memory.load(Ordering::Relaxed) < 1 << 20, "who is gone keeps nothing");
}

#[test]
fn who_is_idle_takes_no_memory_from_others() {
    let served = served(Limits { memory_bytes: 1 << 20, ..Limits::default() }, StoreSettings::default());
    let value = vec![b'x'; 15_000];
    // Each has had a request and a reply of a length for which memory is kept.
    let idle: Vec<Wire> = (0..100)
        .map(|_| {
            let mut wire = Wire::to(served.address());
            wire.send(&request(&[b"SET", b"k", &value]));
            assert_eq!(wire.reply(), b"+OK\r\n");
            wire.send(&request(&[b"GET", b"k"]));
            assert!(wire.reply().len() > value.len());
            wire
        })
        .collect();
    let kept = served.service.client_memory.load(Ordering::Relaxed);
    assert!(kept < 3 << 18, "{kept}");
    let mut other = Wire::to(served.address());
    other.send(&request(&[b"SET", b"k", &vec![b'x'; 100_000]]));
    assert_eq!(other.reply(), b"+OK\r\n");
    other.send(&request(&[b"GET", b"k"]));
    assert!(other.reply().len() > 100_000);
    drop(idle);
    served.server.stop();
}

#[test]
fn what_takes_long_holds_no_latch_of_what_was_written_before_it() {
    let limits = Limits { debug_command: DebugCommand::Yes, ..Limits::default() };
    let served = served(limits, StoreSettings::default());
    let (mut slow, mut other) = (Wire::to(served.address()), Wire::to(served.address()));
    // KEYS goes to a thread that may wait, and what follows stays with it.
    slow.send(
        &[request(&[b"KEYS", b"*"]), request(&[b"SET", b"a", b"1"]), request(&[b"DEBUG", b"SLEEP", b"60"])].concat(),
    );
    assert_eq!(slow.reply(), b"*0\r\n");
    assert_eq!(slow.reply(), b"+OK\r\n");
    let began = Instant::now();
    assert_eq!(other.ask("INCR a"), ":2\r\n");
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    served.server.stop();
}

#[test]
fn a_full_store_takes_what_makes_it_smaller() {
    let options = StoreSettings {
        space: SpaceLimits { max_bytes: Some(96 << 20), ..SpaceLimits::default() },
        memtable_bytes: 1 << 20,
        ..StoreSettings::default()
    }
    .with_separation(128);
    let served = served(Limits::default(), options);
    let (mut wire, mut other) = (Wire::to(served.address()), Wire::to(served.address()));
    for words in ["HSET hash a 1 b 2", "RPUSH list 1 2 3", "SADD set 1 2", "ZADD sorted 1 a 2 b", "SET string 1"] {
        assert!(wire.ask(words).starts_with([':', '+']), "{words}");
    }
    let value = noise(256 * 1024);
    let is_refused = |wire: &mut Wire, key: &str| {
        wire.send(&request(&[b"SET", key.as_bytes(), &value]));
        text(wire.reply()).starts_with("-OOM ")
    };
    assert!((0..10_000).any(|number| is_refused(&mut wire, &format!("key{number}"))));
    // Together with what is refused, on one event loop and so in one group.
    for (words, answer) in [
        ("HDEL hash a", ":1\r\n"),
        ("LPOP list", "$1\r\n1\r\n"),
        ("SREM set 1", ":1\r\n"),
        ("ZREM sorted a", ":1\r\n"),
        ("EXPIRE string 1000", ":1\r\n"),
        ("DEL string", ":1\r\n"),
    ] {
        other.send(&request(&[b"SET", b"more", &value]));
        assert_eq!(wire.ask(words), answer, "{words}");
        assert!(text(other.reply()).starts_with("-OOM "));
    }
    // As in Redis a transaction with a refused command is none. There may be room in between, so
    // until one is refused.
    let refused = (0..10_000).any(|_| {
        let _ = is_refused(&mut wire, "more");
        assert_eq!(wire.ask("MULTI"), "+OK\r\n");
        let refused = wire.ask("SET more 1").starts_with("-OOM ");
        assert_eq!(wire.ask("EXEC").starts_with("-EXECABORT"), refused);
        refused
    });
    assert!(refused);
    served.server.stop();
}

#[test]
fn reads_in_a_row_are_as_reads_one_by_one() {
    let served = served(Limits::default(), StoreSettings::default().with_separation(128));
    let mut wire = Wire::to(served.address());
    let big = vec![b'v'; 700_000];
    for index in 0..8 {
        let key = format!("big{index}");
        wire.send(&request(&[b"SET", key.as_bytes(), &big]));
        assert_eq!(wire.reply(), b"+OK\r\n");
    }
    for index in 0..300 {
        assert_eq!(wire.ask(&format!("HSET large field{index} {index}")), ":1\r\n");
        assert_eq!(wire.ask(&format!("SET key{index} value{index} EX 1000")), "+OK\r\n");
    }
    assert_eq!(wire.ask("RPUSH list a"), ":1\r\n");
    let mut requests: Vec<String> = Vec::new();
    for index in 0..300 {
        requests.push(format!("GET key{index}"));
        requests.push(format!("STRLEN big{}", index % 9));
        requests.push(format!("HGET large field{index}"));
        // And not TTL, which another second changes.
        requests.push(format!("EXPIRETIME key{}", index * 2));
        requests.push(format!("TYPE key{index}"));
        requests.push("GET list".into());
        requests.push(format!("GET none{index}"));
        if index % 7 == 0 {
            requests.push(format!("APPEND key{} x", index + 1));
            requests.push(format!("GET key{}", index + 1));
            requests.push("MGET key1 none key2 large key1".into());
        }
    }
    let parts = |one: &str| request(&words(one));
    // One by one, on keys that the row does not change.
    let is_write = |words: &str| words.starts_with("APPEND");
    for words in requests.iter().filter(|words| is_write(words)) {
        wire.ask(words);
    }
    let alone: Vec<Vec<u8>> = requests
        .iter()
        .filter(|words| !is_write(words))
        .map(|words| {
            wire.send(&parts(words));
            wire.reply()
        })
        .collect();
    let row: Vec<u8> = requests.iter().filter(|words| !is_write(words)).flat_map(|words| parts(words)).collect();
    wire.send(&row);
    for (words, alone) in requests.iter().filter(|words| !is_write(words)).zip(&alone) {
        assert_eq!(text(wire.reply()), text(alone.clone()), "{words}");
    }
    // What a pipeline has written, its reads behind it see.
    wire.send(
        &[
            parts("SET key1 old"),
            parts("GET key1"),
            parts("GET key2"),
            parts("SET key2 new"),
            parts("GET key2"),
            parts("GET key1"),
        ]
        .concat(),
    );
    let seen: Vec<String> = (0..6).map(|_| text(wire.reply())).collect();
    assert_eq!(
        (seen[1].as_str(), seen[4].as_str(), seen[5].as_str()),
        ("$3\r\nold\r\n", "$3\r\nnew\r\n", "$3\r\nold\r\n")
    );
    served.server.stop();
}

#[test]
fn who_asks_for_endless_picks_gets_an_error() {
    let served = served(Limits { output_bytes: 1 << 20, ..Limits::default() }, StoreSettings::default());
    let (mut wire, mut other) = (Wire::to(served.address()), Wire::to(served.address()));
    for words in ["SADD set a", "HSET hash a 1", "ZADD sorted 1 a"] {
        assert_eq!(wire.ask(words), ":1\r\n");
    }
    for endless in ["SRANDMEMBER set", "HRANDFIELD hash", "ZRANDMEMBER sorted"] {
        let endless = format!("{endless} -4611686018427387903");
        wire.send(&[request(&[b"PING"]), request(&[b"PING"]), request(&words(&endless)), request(&[b"PING"])].concat());
        assert_eq!(other.ask("PING"), "+PONG\r\n", "others go on");
        let replies: Vec<String> = (0..4).map(|_| text(wire.reply())).collect();
        assert!(replies[2].starts_with("-ERR "), "{replies:?}");
        assert_eq!(replies[3], "+PONG\r\n");
    }
    served.server.stop();
}

#[test]
fn of_many_different_members_all_are_told_or_none() {
    const MEMBERS: usize = 100_000;
    let served = served(
        Limits { argument_bytes: 1 << 20, output_bytes: 1 << 20, ..Limits::default() },
        StoreSettings::default(),
    );
    let mut wire = Wire::to(served.address());
    let members: Vec<String> = (0..MEMBERS).map(|number| format!("{number:010}")).collect();
    for members in members.chunks(1000) {
        let pairs: Vec<&[u8]> = members.iter().flat_map(|member| [member.as_bytes(), member.as_bytes()]).collect();
        let members: Vec<&[u8]> = members.iter().map(String::as_bytes).collect();
        for (begin, arguments) in
            [(["ZADD", "sorted"], &pairs), (["HSET", "hash"], &pairs), (["SADD", "set"], &members)]
        {
            wire.send(&request(&[&begin.map(str::as_bytes)[..], arguments].concat()));
            assert_eq!(wire.reply(), b":1000\r\n");
        }
    }
    for ask in ["ZRANDMEMBER sorted", "HRANDFIELD hash", "SRANDMEMBER set"] {
        // Each takes 17 bytes. All of them, and a part that is drawn one by one.
        let told = wire.ask(&format!("{ask} 50000"));
        assert!(told.starts_with("*50000\r\n") && told.len() == 50_000 * 17 + 8, "{ask}: {} bytes", told.len());
        let told = wire.ask(&format!("{ask} 20000"));
        assert!(told.starts_with("*20000\r\n") && told.len() == 20_000 * 17 + 8, "{ask}: {} bytes", told.len());
        for too_many in [62_000, MEMBERS, 2 * MEMBERS] {
            let refused = wire.ask(&format!("{ask} {too_many}"));
            assert!(
                refused.starts_with("-ERR the reply is longer") && refused.contains("clients.max_output_bytes"),
                "{ask} {too_many}: {}",
                &refused[..refused.len().min(200)]
            );
        }
    }
    served.server.stop();
}

#[test]
fn a_transaction_that_writes_without_end_is_refused_and_leaves_nothing() {
    let served = served(Limits { memory_bytes: 64 << 20, ..Limits::default() }, StoreSettings::default());
    let mut wire = Wire::to(served.address());
    assert_eq!(wire.ask("SET kept 1"), "+OK\r\n");
    // Large enough to have entries of its own.
    let members: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let add = [&[&b"SADD"[..], b"set"][..], &members.iter().map(String::as_bytes).collect::<Vec<_>>()].concat();
    wire.send(&request(&add));
    assert_eq!(wire.reply(), b":1000\r\n");
    let too_much = request(&[b"SETRANGE", b"key", b"20000000", b"x"]).repeat(20);
    let flush = request(&[b"FLUSHALL"]);
    let drop_set = request(&[b"DEL", b"set"]);
    for (commands, queued) in [
        (too_much.clone(), 21),
        // What removes all keys is taken back like everything else.
        ([flush.clone(), too_much.clone()].concat(), 22),
        ([drop_set, flush.clone(), request(&[b"SET", b"kept", b"2"]), flush, too_much].concat(), 25),
    ] {
        let transaction = [
            request(&[b"MULTI"]),
            request(&[b"INCR", b"kept"]),
            commands,
            request(&[b"EXEC"]),
            request(&[b"MGET", b"kept", b"key"]),
            request(&[b"SISMEMBER", b"set", b"999"]),
            request(&[b"DBSIZE"]),
        ];
        wire.send(&transaction.concat());
        (0..=queued).for_each(|_| assert!(wire.reply().starts_with(b"+")));
        let refused = text(wire.reply());
        assert!(refused.starts_with("-ERR the transaction writes more than 67108864 bytes"), "{refused}");
        assert_eq!(text(wire.reply()), "*2\r\n$1\r\n1\r\n$-1\r\n");
        assert_eq!(text(wire.reply()), ":1\r\n");
        assert_eq!(text(wire.reply()), ":2\r\n");
    }
    served.server.stop();
}

#[test]
fn what_was_sent_is_not_kept_and_what_is_short_is_told_whole() {
    let served = served(Limits { memory_bytes: 2 << 20, ..Limits::default() }, StoreSettings::default());
    let mut small = Wire::to(served.address());
    let value = vec![b'v'; 1 << 20];
    small.send(&request(&[b"SET", b"big", &value]));
    assert_eq!(small.reply(), b"+OK\r\n");
    assert_eq!(small.ask("SET short 1"), "+OK\r\n");
    let mut takers: Vec<Wire> = (0..4).map(|_| Wire::to(served.address())).collect();
    for taker in &mut takers {
        // Each could not be told if those before it still were charged for what they have.
        taker.send(&request(&[b"GET", b"big"]));
        assert_eq!(taker.reply().len(), value.len() + 12);
    }
    // Now most of it is taken by one who does not go on.
    let mut part = Wire::to(served.address());
    part.send(&[&b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1900000\r\n"[..], &vec![b'x'; 1_800_000]].concat());
    common::served::until("it is charged for what it has sent", || {
        served.service.client_memory.load(Ordering::Relaxed) > 1_700_000
    });
    let kib = vec![b'k'; 1024];
    small.send(&request(&[b"SET", b"kib", &kib]));
    assert_eq!(small.reply(), b"+OK\r\n");
    let pipeline = [
        request(&[b"GET", b"kib"]).repeat(300),
        request(&[b"MULTI"]),
        request(&[b"SET", b"a", b"1"]),
        request(&[b"SET", b"b", b"2"]),
        request(&[b"EXEC"]),
        request(&[b"INCR", b"short"]),
    ];
    small.send(&pipeline.concat());
    (0..300).for_each(|_| assert_eq!(small.reply().len(), 1024 + 9));
    let rest: Vec<String> = (0..5).map(|_| text(small.reply())).collect();
    assert_eq!(rest, ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n+OK\r\n", ":2\r\n"]);
    served.server.stop();
}

#[test]
fn words_as_long_as_a_request_are_refused_in_few_words_and_such_patterns_match_what_they_say() {
    const MIB: usize = 1 << 20;
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("SET a 1");
    client.ask("HSET h f v");
    client.ask("ZADD z 1 m");
    let long = vec![b'x'; MIB];
    let requests = [
        "EXPIRE a 1 LONG",
        "EXPIRE missing 1 LONG",
        "SET a 1 LONG",
        "GETEX a LONG",
        "COPY a b LONG",
        "SCAN 0 LONG 1",
        "ZADD z LONG 1 m",
        "ZRANGE z 0 1 LONG",
        "HELLO 3 LONG",
        "CLIENT LIST TYPE LONG",
        "CLIENT SETINFO LONG v",
        "CLIENT KILL USER LONG",
        "CLIENT KILL LONG 1",
        "CLIENT NO-EVICT LONG",
        "ACL CAT LONG",
        "COMMAND LIST FILTERBY LONG x",
        "CONFIG SET LONG 1",
        "CONFIG SET requirepass LONG",
        "SHUTDOWN LONG",
        "LONG",
        "CLIENT LONG",
    ];
    fixture.host.settings.lock().insert("requirepass".into(), String::new());
    for request in requests {
        let arguments: Vec<&[u8]> =
            words(request).into_iter().map(|word| if word == b"LONG" { long.as_slice() } else { word }).collect();
        let reply = client.send(&arguments);
        assert!(reply.len() < 1200, "{request}: {} bytes", reply.len());
        assert!(reply.starts_with(b"-"), "{request}: {}", reply.escape_ascii());
    }
    // No name, key, field or member is so long.
    client.ask("SADD s m");
    let replies = [
        ("CONFIG GET LONG", "*0\r\n"),
        ("COMMAND LIST FILTERBY PATTERN LONG", "*0\r\n"),
        ("KEYS LONG", "*0\r\n"),
        ("SCAN 0 MATCH LONG", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("HSCAN h 0 MATCH LONG", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("SSCAN s 0 MATCH LONG", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("ZSCAN z 0 MATCH LONG", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ];
    // Some patterns are as long and match what is short.
    let (stars, set) = (vec![b'*'; MIB], [&b"["[..], &vec![b'f'; MIB], b"-z]"].concat());
    for (request, empty) in replies {
        for (pattern, is_empty) in
            [(&long, true), (&vec![b'?'; MIB], true), (&stars, false), (&set, request.contains("CO"))]
        {
            let arguments: Vec<&[u8]> = words(request)
                .into_iter()
                .map(|word| if word == b"LONG" { pattern.as_slice() } else { word })
                .collect();
            let reply = String::from_utf8(client.send(&arguments)).unwrap();
            let begin = String::from_utf8_lossy(&pattern[..3]);
            assert!(!reply.starts_with('-'), "{request} {begin}");
            assert_eq!(reply == empty, is_empty, "{request} {begin}: {}", &reply[..reply.len().min(200)]);
        }
    }
    // To read one that is longer still takes too long for others to wait for it.
    assert_eq!(client.step_of(&[b"HSCAN", b"h", b"0", b"MATCH", &vec![b'*'; 5 * MIB]]), Step::WouldBlock);
    // Not one that is as long as a name that is asked for by itself may be.
    let section = client.send(&[b"INFO", long.as_slice()]);
    assert_eq!(section, b"$0\r\n\r\n", "{}", section.escape_ascii());
    assert!(client.ask("KEYS a").starts_with("*1\r\n"));
}
