//! What one command collects, builds and writes takes bounded memory: it is done whole, or refused
//! with the name of the limit and not at all.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::Ordering;

use common::Fixture;
use common::served::{Served, until};
use common::wire::{Wire, request};
use ecotone_engine::StoreSettings;
use ecotone_keyspace::{Blocking, WriteGroup};
use ecotone_resp::execute::{Step, execute};
use ecotone_resp::protocol::reply::{Reply, Version};
use ecotone_resp::service::Limits;

/// Elements of each collection of [`loaded`].
const ELEMENTS: usize = 3000;

/// Bytes of each of them.
const ELEMENT_BYTES: usize = 1000;

fn text(reply: Vec<u8>) -> String {
    String::from_utf8_lossy(&reply).into_owned()
}

fn element(number: usize) -> String {
    format!("{number:0ELEMENT_BYTES$}")
}

/// A server with 3 MB in each of a set, a hash, a sorted set, a list and in strings; `limits` hold
/// from then on.
fn loaded(limits: Limits) -> (Served, Wire) {
    let served = Served::with(Limits::default(), StoreSettings::default().with_separation(128), 1);
    let mut wire = Wire::to(served.address());
    for number in 0..ELEMENTS {
        let (element, score) = (element(number), number.to_string());
        let (element, score, key) = (element.as_bytes(), score.as_bytes(), format!("key{number}"));
        let requests = [
            request(&[b"SADD", b"set", element]),
            request(&[b"HSET", b"hash", score, element]),
            request(&[b"ZADD", b"sorted", score, element]),
            request(&[b"RPUSH", b"list", element]),
            request(&[b"SET", key.as_bytes(), element]),
        ];
        wire.send(&requests.concat());
        (0..5).for_each(|_| assert!(matches!(wire.reply()[0], b':' | b'+')));
    }
    served.service.set_limits(limits);
    (served, wire)
}

fn cardinalities(wire: &mut Wire) -> Vec<String> {
    ["SCARD set", "HLEN hash", "ZCARD sorted", "LLEN list", "EXISTS to"].map(|words| wire.ask(words)).to_vec()
}

/// The bulk strings of an array, in their order.
fn items(reply: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut items) = (reply, Vec::new());
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, behind) = rest.split_at(end + 1);
        rest = behind;
        if let [b'$', length @ .., b'\r', b'\n'] = line {
            let length: usize = std::str::from_utf8(length).unwrap().parse().unwrap();
            items.push(rest[..length].to_vec());
            rest = &rest[length + 2..];
        }
    }
    items
}

#[test]
fn a_string_grows_no_longer_than_an_argument_may_be() {
    let served = Served::with(Limits { argument_bytes: 1 << 20, ..Limits::default() }, StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    let refusal = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";
    assert_eq!(wire.ask("SETRANGE key 1048576 x"), refusal);
    assert_eq!(wire.ask("SETRANGE key 9223372036854775807 x"), refusal);
    assert_eq!(wire.ask("EXISTS key"), ":0\r\n");
    assert_eq!(wire.ask("SETRANGE key 1048575 x"), ":1048576\r\n");
    assert_eq!(wire.ask("APPEND key x"), refusal);
    assert_eq!(wire.ask("SETRANGE key 1048575 y"), ":1048576\r\n");
    assert_eq!(wire.ask("GETRANGE key -2 -1"), "$2\r\n\0y\r\n");
    served.server.stop();
}

#[test]
fn what_a_command_builds_is_refused_where_there_is_no_memory_for_it() {
    let served = Served::with(Limits { memory_bytes: 16 << 20, ..Limits::default() }, StoreSettings::default(), 1);
    let mut wires: Vec<Wire> = (0..8).map(|_| Wire::to(served.address())).collect();
    let wire = &mut wires[0];
    let refused = wire.ask("SETRANGE key 536870911 x");
    assert!(refused.starts_with("-ERR ") && refused.contains("clients.max_memory_bytes"), "{refused}");
    assert_eq!(wire.ask("EXISTS key"), ":0\r\n");
    assert_eq!(wire.ask("SETRANGE key 4000000 x"), ":4000001\r\n");
    // What was written is committed, and no longer in memory.
    until("it is given back", || served.service.client_memory.load(Ordering::Relaxed) < 1 << 20);
    // One at a time there would be room for it.
    let grow = request(&[b"APPEND", b"key", b"x"]);
    for wire in &mut wires {
        wire.send(&grow.repeat(10));
    }
    let replies: Vec<String> =
        wires.iter_mut().flat_map(|wire| (0..10).map(|_| text(wire.reply())).collect::<Vec<_>>()).collect();
    let done = replies.iter().filter(|reply| reply.starts_with(':')).count();
    assert!(done > 0);
    assert!(replies.iter().all(|reply| reply.starts_with(':') || reply.contains("clients.max_memory_bytes")));
    assert_eq!(wires[0].ask("STRLEN key"), format!(":{}\r\n", 4_000_001 + done));
    served.server.stop();
    assert!(served.service.client_memory.load(Ordering::Relaxed) < 1 << 20);
}

#[test]
fn what_moves_many_bytes_is_not_done_while_others_wait_for_the_thread() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("SETRANGE long 3000000 x");
    for number in 0..300 {
        let member = format!("{number:020000}");
        client.ask(&format!("SADD set {member}"));
        client.ask(&format!("ZADD sorted {number} {member}"));
        client.ask(&format!("HSET hash {member} 1"));
        client.ask(&format!("RPUSH list {member}"));
    }
    for words in [
        "SETRANGE new 3000000 x",
        "APPEND long x",
        "EXPIRE long 1000",
        "RENAME long other",
        "GETEX long EX 1000",
        "SSCAN set 0 COUNT 1000",
        "HSCAN hash 0 COUNT 1000",
        "ZSCAN sorted 0 COUNT 1000",
        "SPOP set 200",
        "SUNIONSTORE to set",
        "ZPOPMIN sorted 200",
        "ZREMRANGEBYRANK sorted 0 200",
        "COPY set to",
        "LREM list 1 00",
    ] {
        let words = words.replace(" 00", &format!(" {:020000}", 150));
        let arguments: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let mut group = WriteGroup::new(fixture.service.keyspace.clone());
        let mut reply = Reply::new(Version::Resp2);
        let step = execute(&fixture.service, &mut client.client, &mut group, &arguments, &mut reply, Blocking::Never);
        assert_eq!(step, Step::WouldBlock, "{words:.40}");
        assert!(group.is_empty() && reply.is_empty(), "{words:.40}");
    }
    assert!(fixture.service.client_memory.load(Ordering::Relaxed) == 0);
}

#[test]
fn many_small_writes_are_committed_before_they_take_much_together() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    let mut write = |number: usize| {
        let key = format!("key{number}");
        let arguments = [&b"SETRANGE"[..], key.as_bytes(), b"60000", b"x"];
        let mut reply = Reply::new(Version::Resp2);
        let step = execute(&fixture.service, &mut client.client, &mut group, &arguments, &mut reply, Blocking::Allowed);
        (step, group.bytes())
    };
    let (step, bytes) = (0..200).map(&mut write).find(|(step, _)| *step == Step::Latched).unwrap();
    assert!(step == Step::Latched && bytes > 1 << 20 && bytes < 4 << 20, "{bytes}");
    group.commit(Blocking::Allowed).unwrap();
    let mut reply = Reply::new(Version::Resp2);
    let arguments = [&b"SETRANGE"[..], b"key", b"60000", b"x"];
    let step = execute(&fixture.service, &mut client.client, &mut group, &arguments, &mut reply, Blocking::Allowed);
    assert_eq!(step, Step::Done { depends: true });
}

#[test]
fn a_scan_ends_its_step_where_the_reply_would_be_too_long_and_misses_nothing() {
    let (served, mut wire) = loaded(Limits { output_bytes: 1 << 20, ..Limits::default() });
    for (begin, each, expected) in [
        (
            "SCAN",
            1,
            (0..ELEMENTS)
                .map(|number| format!("key{number}"))
                .chain(["set", "hash", "sorted", "list"].map(String::from))
                .collect::<BTreeSet<_>>(),
        ),
        ("SSCAN set", 1, (0..ELEMENTS).map(element).collect()),
        ("HSCAN hash", 2, (0..ELEMENTS).map(|number| number.to_string()).collect()),
        ("ZSCAN sorted", 2, (0..ELEMENTS).map(element).collect()),
    ] {
        let (mut cursor, mut found, mut steps) = ("0".to_owned(), Vec::new(), 0);
        loop {
            let reply = wire.ask(&format!("{begin} {cursor} COUNT 1000000000"));
            assert!(reply.starts_with("*2\r\n") && reply.len() < 1 << 20, "{begin}: {:.100}", reply);
            let mut answers = items(reply.as_bytes()).into_iter().map(|item| String::from_utf8(item).unwrap());
            cursor = answers.next().unwrap();
            found.extend(answers.step_by(each));
            steps += 1;
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found.len(), expected.len(), "{begin}: each once");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected, "{begin}");
        assert!(steps > 1 || begin == "SCAN", "{begin}");
    }
    served.server.stop();
}

#[test]
fn what_a_command_collects_and_writes_is_refused_where_there_is_no_memory_for_it() {
    let (served, mut wire) = loaded(Limits { memory_bytes: 2 << 20, ..Limits::default() });
    let before = cardinalities(&mut wire);
    assert_eq!(before, [":3000\r\n", ":3000\r\n", ":3000\r\n", ":3000\r\n", ":0\r\n"]);
    let (first, middle) = (element(0), element(ELEMENTS / 2));
    let requests = [
        "SPOP set 2500",
        "SPOP set 3000",
        "SRANDMEMBER set 2500",
        "SRANDMEMBER set -2500",
        "SRANDMEMBER set 9000",
        "HRANDFIELD hash 2500 WITHVALUES",
        "HRANDFIELD hash 9000 WITHVALUES",
        "HRANDFIELD hash -2500 WITHVALUES",
        "ZRANDMEMBER sorted 2500",
        "ZRANDMEMBER sorted 9000",
        "ZRANDMEMBER sorted -2500",
        "LPOP list 2500",
        "RPOP list 2999",
        "ZPOPMIN sorted 2500",
        "ZPOPMAX sorted 2999",
        "ZREMRANGEBYRANK sorted 1 2990",
        "ZREMRANGEBYSCORE sorted 1 2990",
        "SUNIONSTORE to set",
        "SDIFFSTORE to set none",
        "SINTERSTORE set set set",
        "COPY set to",
        "COPY hash to",
        "COPY list to",
        "COPY sorted to",
        &format!("LINSERT list BEFORE {middle} x"),
        &format!("LREM list 1 {middle}"),
    ];
    for words in requests {
        let refused = wire.ask(words);
        assert!(
            refused.starts_with("-ERR ") && refused.contains("clients.max_memory_bytes"),
            "{words:.40}: {refused:.200}"
        );
        assert_eq!(cardinalities(&mut wire), before, "{words:.40}");
    }
    // What fits is done.
    assert_eq!(items(wire.ask("SPOP set 100").as_bytes()).len(), 100);
    assert_eq!(items(wire.ask("SRANDMEMBER set 100").as_bytes()).len(), 100);
    assert_eq!(items(wire.ask("LPOP list 100").as_bytes()).len(), 100);
    assert_eq!(items(wire.ask("ZPOPMIN sorted 100").as_bytes()).len(), 200);
    assert_eq!(wire.ask(&format!("LREM list 1 {first}")), ":0\r\n");
    let after = [":2900\r\n", ":3000\r\n", ":2900\r\n", ":2900\r\n", ":0\r\n"];
    assert_eq!(cardinalities(&mut wire), after);
    served.server.stop();
    assert!(served.service.client_memory.load(Ordering::Relaxed) < 1 << 20);
}

#[test]
fn a_set_that_is_named_often_takes_no_more_memory_than_there_is() {
    let served = Served::with(Limits { memory_bytes: 8 << 20, ..Limits::default() }, StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    for number in 0..100 {
        assert_eq!(wire.ask(&format!("SADD s {number:020}")), ":1\r\n");
    }
    let named = |times: usize| request(&[&[&b"SUNION"[..]], &vec![&b"s"[..]; times][..]].concat());
    wire.send(&named(20_000));
    let refused = text(wire.reply());
    assert!(refused.contains("clients.max_memory_bytes"), "{refused:.200}");
    served.service.set_limits(Limits::default());
    wire.send(&named(20_000));
    assert_eq!(items(&wire.reply()).len(), 100);
    served.server.stop();
}

#[test]
fn many_empty_arguments_are_counted_before_their_request_is_whole() {
    let served = Served::with(Limits { memory_bytes: 8 << 20, ..Limits::default() }, StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    let begin = [&b"*1000000\r\n"[..], &b"$0\r\n\r\n".repeat(300_000)].concat();
    // Who is refused may be gone before it has sent all.
    let _ = wire.stream.write_all(&begin);
    let refused = text(wire.reply());
    assert!(refused.contains("clients.max_memory_bytes"), "{refused}");
    let mut wire = Wire::to(served.address());
    wire.send(&[&b"*20001\r\n$3\r\nDEL\r\n"[..], &b"$1\r\nk\r\n".repeat(20_000)].concat());
    assert_eq!(wire.reply(), b":0\r\n");
    assert_eq!(wire.ask("PING"), "+PONG\r\n");
    until("what it took is given back", || served.service.client_memory.load(Ordering::Relaxed) < 256 << 10);
    served.server.stop();
}

#[test]
fn names_of_clients_are_short() {
    let served = Served::with(Limits::default(), StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    let (most, more) = ("n".repeat(256), "n".repeat(257));
    for words in ["CLIENT SETNAME", "CLIENT SETINFO LIB-NAME", "CLIENT SETINFO LIB-VER"] {
        assert_eq!(wire.ask(&format!("{words} {most}")), "+OK\r\n", "{words}");
        let refused = wire.ask(&format!("{words} {more}"));
        assert!(refused.starts_with("-ERR ") && refused.contains("256 bytes"), "{refused}");
    }
    assert!(wire.ask(&format!("HELLO 2 SETNAME {more}")).contains("256 bytes"));
    assert!(wire.ask(&format!("HELLO 2 SETNAME {most}")).starts_with('*'));
    assert_eq!(wire.ask("CLIENT GETNAME"), format!("$256\r\n{most}\r\n"));
    served.server.stop();
}

#[test]
fn a_list_of_clients_with_the_same_one_again_and_again_is_refused() {
    let served = Served::with(Limits { memory_bytes: 4 << 20, ..Limits::default() }, StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    let id = wire.ask("CLIENT ID");
    let id = id.trim_start_matches(':').trim_end();
    wire.send(&request(&[&[&b"CLIENT"[..], b"LIST", b"ID"], &vec![id.as_bytes(); 50_000][..]].concat()));
    let refused = text(wire.reply());
    assert!(refused.contains("clients.max_memory_bytes"), "{refused:.200}");
    assert!(wire.ask("CLIENT LIST").contains("id="));
    served.server.stop();
}

#[test]
fn each_refusal_names_its_limit() {
    let limits = Limits { request_bytes: 1 << 20, transaction_bytes: 4000, ..Limits::default() };
    let served = Served::with(limits, StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    let keys: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
    let refused = wire.ask(&format!("WATCH {}", keys.join(" ")));
    assert!(refused.contains("clients.transaction_bytes"), "{refused}");
    assert_eq!(wire.ask("MULTI"), "+OK\r\n");
    let refused = wire.ask(&format!("SET key {}", "v".repeat(5000)));
    assert!(refused.contains("clients.transaction_bytes"), "{refused}");
    assert_eq!(wire.ask("DISCARD"), "+OK\r\n");
    let _ =
        wire.stream.write_all(&[&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000\r\n"[..], &vec![b'v'; 1_500_000]].concat());
    let refused = text(wire.reply());
    assert!(refused.contains("clients.max_request_bytes"), "{refused}");
    served.server.stop();
}

#[test]
fn a_transaction_for_which_there_is_no_memory_leaves_nothing() {
    let served = Served::with(Limits { memory_bytes: 8 << 20, ..Limits::default() }, StoreSettings::default(), 1);
    let mut wire = Wire::to(served.address());
    assert_eq!(wire.ask("SET kept 1"), "+OK\r\n");
    let transaction = [
        request(&[b"MULTI"]),
        request(&[b"INCR", b"kept"]),
        request(&[b"SETRANGE", b"key", b"6000000", b"x"]),
        request(&[b"EXEC"]),
    ];
    wire.send(&transaction.concat());
    (0..3).for_each(|_| assert!(wire.reply().starts_with(b"+")));
    let refused = text(wire.reply());
    assert!(
        refused.starts_with("-ERR the transaction writes more than") && refused.contains("clients.max_memory_bytes"),
        "{refused}"
    );
    assert_eq!(wire.ask("MGET kept key"), "*2\r\n$1\r\n1\r\n$-1\r\n");
    served.server.stop();
}
