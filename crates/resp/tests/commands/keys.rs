//! Keys, whatever they hold: requests and the replies of Redis 7.0.15 to them, large collections,
//! whole scans.

use crate::common;

use std::collections::BTreeSet;

use common::Fixture;
use common::redis::{elements, texts};
use ecotone_keyspace::{Blocking, CollectionId, MAX_KEY_BYTES, Slot, Type, WriteGroup, layout};

#[test]
fn keys_are_counted_told_and_deleted() {
    Fixture::check(WHAT_IS_THERE);
}

#[test]
fn times_are_set_told_and_taken_away() {
    Fixture::check(TIMES);
}

#[test]
fn keys_are_renamed() {
    Fixture::check(RENAMES);
}

#[test]
fn keys_are_copied() {
    Fixture::check(COPIES);
}

#[test]
fn keys_are_found() {
    Fixture::check(SCANS);
}

#[test]
fn all_keys_are_removed() {
    Fixture::check(FLUSHES);
}

/// The elements that `key`, a large collection, has.
fn large(fixture: &Fixture, key: &str) -> (CollectionId, Vec<String>) {
    let id = fixture.change(|keys| {
        let entry = keys.entry(key.as_bytes()).unwrap().unwrap();
        assert!(entry.ends_with(b"common"));
        entry.collection().unwrap().unwrap()
    });
    let values = fixture.elements(id).into_iter().map(|(sub_key, value)| {
        assert_eq!(sub_key, value);
        String::from_utf8_lossy(&value).into_owned()
    });
    (id, values.collect())
}

#[test]
fn a_large_collection_that_is_removed_is_given_up() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for request in ["DEL a", "UNLINK b a", "EXPIRE a -1", "PEXPIREAT a 1", "RENAME b a", "COPY b a REPLACE"] {
        client.ask("SET b 1");
        fixture.plant_large("a", Type::Hash, 3);
        assert_eq!(fixture.reclaimed(), 0);
        assert!(!client.ask(request).starts_with('-'), "{request}");
        assert_eq!(fixture.reclaimed(), 1, "{request}");
    }
    // All of them, at once: nothing is left to reclaim.
    fixture.plant_large("a", Type::Hash, 3);
    let id = fixture.plant_large("b", Type::List, 3);
    client.ask("FLUSHALL");
    assert_eq!(fixture.reclaimed(), 0);
    assert!(fixture.change(|keys| keys.element(id, &[b"1"]).unwrap().is_none()));
}

#[test]
fn a_large_collection_whose_time_is_over_is_removed_with_its_key() {
    // Asked for, or not: then the ledger tells.
    let asked = [Some("HGET a 1"), Some("HSET a 1 1"), Some("HDEL a 1"), Some("RENAME b a"), Some("GET a"), None];
    for request in asked {
        let fixture = Fixture::new();
        let mut client = fixture.client();
        client.ask("SET b 1");
        let id = fixture.plant_large("a", Type::Hash, 700);
        fixture.plant_large("stays", Type::Hash, 3);
        fixture.change(|keys| {
            let entry = keys.entry(b"a").unwrap().unwrap();
            keys.set(b"a", entry.tag, Some(1), &entry).unwrap();
        });
        let keyspace = &fixture.service.keyspace;
        let reclaimed = match request {
            Some(request) => {
                // Often.
                for _ in 0..3 {
                    client.ask(request);
                }
                keyspace.reclaim_collections(100, || true).unwrap().collections
            }
            None => fixture.found_and_reclaimed(),
        };
        assert_eq!(reclaimed, 1, "{request:?}");
        assert_eq!(fixture.elements(id).len(), 0, "{request:?}");
        let store = keyspace.only_store().unwrap();
        let stored = store.get(&layout::key(Slot::of(b"a"), b"a")).unwrap();
        let is_overwritten =
            request.is_some_and(|request| request.starts_with("HSET") || request.starts_with("RENAME"));
        assert_eq!(stored.is_some(), is_overwritten, "{request:?}");
        assert_eq!(fixture.found_and_reclaimed(), 0, "{request:?}");
        assert_eq!(large(&fixture, "stays").1.len(), 3);
    }
}

#[test]
fn a_large_collection_moves_without_its_elements() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let id = fixture.plant_large("a", Type::SortedSet, 5);
    client.ask("PEXPIREAT a 4102444800000");
    assert_eq!(client.ask("RENAME a b"), "+OK\r\n");
    assert_eq!(client.ask("TYPE b"), "+zset\r\n");
    assert_eq!(client.ask("PEXPIRETIME b"), ":4102444800000\r\n");
    assert_eq!(large(&fixture, "b"), (id, (0..5).map(|number| number.to_string()).collect()));
    assert_eq!(fixture.reclaimed(), 0);
    // On to another one, to where it came from, and over a large one.
    fixture.plant_large("c", Type::Hash, 2);
    for request in ["RENAMENX b a", "RENAME a c"] {
        client.ask(request);
    }
    assert_eq!(large(&fixture, "c").0, id);
    assert_eq!(fixture.reclaimed(), 1);
    assert_eq!(client.ask("DEL c"), ":1\r\n");
    assert_eq!(fixture.reclaimed(), 1);
}

#[test]
fn a_copy_of_a_large_collection_is_another_one() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let id = fixture.plant_large("a", Type::Set, 700);
    client.ask("PEXPIREAT a 4102444800000");
    fixture.plant_large("b", Type::Hash, 5);
    assert_eq!(client.ask("COPY a b"), ":0\r\n");
    assert_eq!(client.ask("COPY a b REPLACE"), ":1\r\n");
    assert_eq!(fixture.reclaimed(), 1);
    assert_eq!(client.ask("PEXPIRETIME b"), ":4102444800000\r\n");
    let (copy, elements) = large(&fixture, "b");
    assert_ne!(copy, id);
    assert_eq!(elements.len(), 700);
    fixture.change(|keys| {
        keys.set_element(id, &[b"new"], b"new").unwrap();
        keys.remove_element(id, &[b"0"]);
    });
    assert_eq!(large(&fixture, "b").1, elements);
    client.ask("DEL a");
    assert_eq!(fixture.reclaimed(), 1);
    assert_eq!(large(&fixture, "b").1, elements);
}

#[test]
fn a_scan_returns_each_key_that_stays_once() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    // Many in one slot, so that some share a place or stand close.
    let names = |range: std::ops::Range<u32>| range.flat_map(|number| [format!("{number}"), format!("{{t}}{number}")]);
    for name in names(0..2000) {
        client.ask(&format!("SET {name} 1"));
    }
    client.ask("SET over 1 PXAT 1");
    let expected: BTreeSet<Vec<u8>> = names(0..2000).map(String::into_bytes).collect();
    for count in [1, 10, 333, 100_000] {
        let mut steps = 1;
        let found = client.scan("SCAN", &format!("COUNT {count}"), |_| steps += 1);
        assert_eq!(found.len(), expected.len());
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
        // Some keys share a place.
        assert!((3900 / count..=4000 / count + 1).contains(&steps), "{steps} steps of {count}");
    }
    assert_eq!(client.scan("SCAN", "MATCH {t}1?", |_| ()).len(), 10);
    // Others come and go meanwhile.
    let mut number = 2000;
    let found = client.scan("SCAN", "COUNT 50", |client| {
        client.ask(&format!("SET {number} 1"));
        client.ask(&format!("DEL {}", number - 3));
        client.ask(&format!("SET {{t}}{number} 1"));
        number += 1;
    });
    let found: BTreeSet<Vec<u8>> = found.into_iter().collect();
    let staying: BTreeSet<Vec<u8>> = names(0..1997).map(String::into_bytes).collect();
    assert!(staying.is_subset(&found));
    // Beyond the last place, as after a cursor of another server.
    for cursor in ["1073741824", "4294967296", "18446744073709551615", "-1"] {
        assert_eq!(client.ask(&format!("SCAN {cursor}")), "*2\r\n$1\r\n0\r\n*0\r\n");
    }
}

#[test]
fn what_a_group_has_written_is_found_before_it_is_committed() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("MSET a 1 b 1 c 1");
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    client.ask("MULTI");
    for request in
        ["DEL a b", "SET d 1", "SET b 1", "KEYS *", "DBSIZE", "SCAN 0", "FLUSHALL", "SET e 1", "KEYS *", "RANDOMKEY"]
    {
        client.ask(request);
    }
    let reply = client.send_in(&mut group, &[b"EXEC"]);
    let answers = elements(&reply).unwrap();
    let sorted = |answer: &[u8]| texts(answer).into_iter().collect::<BTreeSet<_>>();
    let expected: BTreeSet<Vec<u8>> = ["b", "c", "d"].map(|name| name.as_bytes().to_vec()).into();
    assert_eq!(sorted(answers[3]), expected);
    assert_eq!(answers[4], b":3\r\n");
    assert_eq!(sorted(elements(answers[5]).unwrap()[1]), expected);
    assert_eq!(answers[8], b"*1\r\n$1\r\ne\r\n");
    assert_eq!(answers[9], b"$1\r\ne\r\n");
    drop(group);
    // Never committed.
    assert_eq!(client.ask("DBSIZE"), ":3\r\n");
}

#[test]
fn a_transaction_that_names_a_large_copy_is_whole() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fixture.plant_large("a", Type::Set, 10);
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    for request in ["MULTI", "SET s 1", "COPY a b", "DEL a", "RENAME b a"] {
        client.ask(request);
    }
    assert_eq!(client.send_in(&mut group, &[b"EXEC"]), b"*4\r\n+OK\r\n:1\r\n:1\r\n+OK\r\n");
    group.commit(Blocking::Allowed).unwrap();
    assert_eq!(large(&fixture, "a").1.len(), 10);
    assert_eq!(fixture.reclaimed(), 1);
}

#[test]
fn any_key_is_drawn_sooner_or_later() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("MSET a 1 b 1 c 1 d 1");
    client.ask("SET over 1 PXAT 1");
    let drawn: BTreeSet<String> = (0..2000).map(|_| client.ask("RANDOMKEY")).collect();
    assert_eq!(drawn, ["a", "b", "c", "d"].map(|key| format!("$1\r\n{key}\r\n")).into());
    // Those of one hash tag are all in one slot, beside which nearly all of the places are.
    let tagged: Vec<String> = (0..100).map(|number| format!("{{tag}}{number} 1")).collect();
    client.ask(&format!("MSET {}", tagged.join(" ")));
    let drawn: BTreeSet<String> = (0..5000).map(|_| client.ask("RANDOMKEY")).collect();
    assert!(drawn.len() > 100, "{} of 104 were drawn", drawn.len());
}

const WHAT_IS_THERE: &[(&str, &str)] = &[
    ("EXISTS a", ":0\r\n"),
    ("TYPE a", "+none\r\n"),
    ("MSET a 1 b 2 c 3", "+OK\r\n"),
    ("EXISTS a b c d", ":3\r\n"),
    ("EXISTS a a a", ":3\r\n"),
    ("TOUCH a b d a", ":3\r\n"),
    ("EXISTS", "-ERR wrong number of arguments for 'exists' command\r\n"),
    ("TOUCH", "-ERR wrong number of arguments for 'touch' command\r\n"),
    ("TYPE", "-ERR wrong number of arguments for 'type' command\r\n"),
    ("TYPE a b", "-ERR wrong number of arguments for 'type' command\r\n"),
    ("TYPE a", "+string\r\n"),
    ("DBSIZE", ":3\r\n"),
    ("DBSIZE x", "-ERR wrong number of arguments for 'dbsize' command\r\n"),
    ("DEL a a d", ":1\r\n"),
    ("DEL", "-ERR wrong number of arguments for 'del' command\r\n"),
    ("UNLINK b d c", ":2\r\n"),
    ("UNLINK", "-ERR wrong number of arguments for 'unlink' command\r\n"),
    ("DBSIZE", ":0\r\n"),
];

const TIMES: &[(&str, &str)] = &[
    ("TTL a", ":-2\r\n"),
    ("PTTL a", ":-2\r\n"),
    ("EXPIRETIME a", ":-2\r\n"),
    ("PEXPIRETIME a", ":-2\r\n"),
    ("PERSIST a", ":0\r\n"),
    ("EXPIRE a 100", ":0\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("TTL a", ":-1\r\n"),
    ("PTTL a", ":-1\r\n"),
    ("EXPIRETIME a", ":-1\r\n"),
    ("PEXPIRETIME a", ":-1\r\n"),
    ("PERSIST a", ":0\r\n"),
    ("PEXPIREAT a 4102444800499", ":1\r\n"),
    ("PEXPIRETIME a", ":4102444800499\r\n"),
    ("EXPIRETIME a", ":4102444800\r\n"),
    ("PEXPIREAT a 4102444800500", ":1\r\n"),
    ("EXPIRETIME a", ":4102444801\r\n"),
    ("PERSIST a", ":1\r\n"),
    ("PERSIST a", ":0\r\n"),
    ("EXPIREAT a 4102444800", ":1\r\n"),
    ("EXPIRETIME a", ":4102444800\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("GET a", "$1\r\n1\r\n"),
    ("EXPIREAT a 4102444800 NX", ":0\r\n"),
    ("EXPIREAT a 4102444801 XX", ":1\r\n"),
    ("EXPIREAT a 4102444801 GT", ":0\r\n"),
    ("EXPIREAT a 4102444800 gt", ":0\r\n"),
    ("EXPIREAT a 4102444802 GT", ":1\r\n"),
    ("EXPIREAT a 4102444802 LT", ":0\r\n"),
    ("EXPIREAT a 4102444803 lt XX", ":0\r\n"),
    ("EXPIREAT a 4102444801 LT xx LT", ":1\r\n"),
    ("PERSIST a", ":1\r\n"),
    ("EXPIREAT a 4102444801 XX", ":0\r\n"),
    ("EXPIREAT a 4102444801 GT", ":0\r\n"),
    ("EXPIREAT a 4102444801 XX LT", ":0\r\n"),
    ("EXPIREAT a 4102444801 LT", ":1\r\n"),
    ("PERSIST a", ":1\r\n"),
    ("EXPIREAT a 4102444801 NX", ":1\r\n"),
    ("EXPIREAT a 4102444801 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"),
    ("EXPIREAT a 4102444801 NX GT", "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"),
    ("EXPIREAT a 4102444801 LT NX", "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"),
    ("EXPIREAT a 4102444801 GT LT", "-ERR GT and LT options at the same time are not compatible\r\n"),
    ("EXPIREAT a 4102444801 XX GT LT", "-ERR GT and LT options at the same time are not compatible\r\n"),
    ("EXPIREAT a 4102444801 EX", "-ERR Unsupported option EX\r\n"),
    ("EXPIREAT a x EX", "-ERR Unsupported option EX\r\n"),
    ("EXPIREAT a 4102444801 NX XX EX", "-ERR Unsupported option EX\r\n"),
    ("EXPIREAT a x NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"),
    ("EXPIRE a x", "-ERR value is not an integer or out of range\r\n"),
    ("EXPIRE a 1.5", "-ERR value is not an integer or out of range\r\n"),
    ("EXPIRE a ", "-ERR value is not an integer or out of range\r\n"),
    ("EXPIRE missing x", "-ERR value is not an integer or out of range\r\n"),
    ("EXPIRE missing 9223372036854775807", "-ERR invalid expire time in 'expire' command\r\n"),
    ("EXPIRE a 9223372036854775807", "-ERR invalid expire time in 'expire' command\r\n"),
    ("EXPIRE a 9223372036854775", "-ERR invalid expire time in 'expire' command\r\n"),
    ("EXPIRE a -9223372036854775808", "-ERR invalid expire time in 'expire' command\r\n"),
    ("EXPIRE a -9223372036854776", "-ERR invalid expire time in 'expire' command\r\n"),
    ("PEXPIRE a 9223372036854775807", "-ERR invalid expire time in 'pexpire' command\r\n"),
    ("EXPIREAT a 9223372036854776", "-ERR invalid expire time in 'expireat' command\r\n"),
    ("EXPIREAT a -9223372036854775808", "-ERR invalid expire time in 'expireat' command\r\n"),
    ("PEXPIREAT a 9223372036854775807", ":1\r\n"),
    ("PEXPIRETIME a", ":9223372036854775807\r\n"),
    ("EXPIRETIME a", ":9223372036854776\r\n"),
    ("EXPIRE a", "-ERR wrong number of arguments for 'expire' command\r\n"),
    ("TTL", "-ERR wrong number of arguments for 'ttl' command\r\n"),
    ("TTL a b", "-ERR wrong number of arguments for 'ttl' command\r\n"),
    ("PTTL", "-ERR wrong number of arguments for 'pttl' command\r\n"),
    ("EXPIRETIME", "-ERR wrong number of arguments for 'expiretime' command\r\n"),
    ("PEXPIRETIME", "-ERR wrong number of arguments for 'pexpiretime' command\r\n"),
    ("PERSIST", "-ERR wrong number of arguments for 'persist' command\r\n"),
    ("EXPIRE a -1", ":1\r\n"),
    ("GET a", "$-1\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("EXPIRE a 0", ":1\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("PEXPIRE a -9223372036854775808", ":1\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("EXPIREAT a 1", ":1\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("PEXPIREAT a -1 XX", ":0\r\n"),
    ("PEXPIREAT a -1 GT", ":0\r\n"),
    ("PEXPIREAT a -1 LT", ":1\r\n"),
    ("EXISTS a", ":0\r\n"),
];

const RENAMES: &[(&str, &str)] = &[
    ("RENAME a b", "-ERR no such key\r\n"),
    ("RENAMENX a b", "-ERR no such key\r\n"),
    ("RENAME a a", "-ERR no such key\r\n"),
    ("RENAMENX a a", "-ERR no such key\r\n"),
    ("SET a 1 PXAT 4102444800000", "+OK\r\n"),
    ("RENAME a a", "+OK\r\n"),
    ("RENAMENX a a", ":0\r\n"),
    ("RENAME a b", "+OK\r\n"),
    ("GET b", "$1\r\n1\r\n"),
    ("PEXPIRETIME b", ":4102444800000\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("SET c 1", "+OK\r\n"),
    ("RENAMENX b c", ":0\r\n"),
    ("RENAMENX b d", ":1\r\n"),
    ("PEXPIRETIME d", ":4102444800000\r\n"),
    ("RENAME c d", "+OK\r\n"),
    ("PEXPIRETIME d", ":-1\r\n"),
    ("RENAME d", "-ERR wrong number of arguments for 'rename' command\r\n"),
    ("RENAMENX d", "-ERR wrong number of arguments for 'renamenx' command\r\n"),
    ("RENAME d e f", "-ERR wrong number of arguments for 'rename' command\r\n"),
    ("RPUSH l x", ":1\r\n"),
    ("RENAME l d", "+OK\r\n"),
    ("TYPE d", "+list\r\n"),
    ("EXISTS l", ":0\r\n"),
];

const COPIES: &[(&str, &str)] = &[
    ("COPY a b", ":0\r\n"),
    ("COPY a a", "-ERR source and destination objects are the same\r\n"),
    ("SET a 1 PXAT 4102444800000", "+OK\r\n"),
    ("COPY a a", "-ERR source and destination objects are the same\r\n"),
    ("COPY a a REPLACE", "-ERR source and destination objects are the same\r\n"),
    ("COPY a b", ":1\r\n"),
    ("GET b", "$1\r\n1\r\n"),
    ("PEXPIRETIME b", ":4102444800000\r\n"),
    ("SET a 2", "+OK\r\n"),
    ("COPY a b", ":0\r\n"),
    ("GET b", "$1\r\n1\r\n"),
    ("COPY a b replace", ":1\r\n"),
    ("GET b", "$1\r\n2\r\n"),
    ("PEXPIRETIME b", ":-1\r\n"),
    ("COPY a c DB 0", ":1\r\n"),
    ("COPY a d db 0 REPLACE replace", ":1\r\n"),
    ("COPY a e DB 1", "-ERR DB index is out of range\r\n"),
    ("COPY a e DB -1", "-ERR DB index is out of range\r\n"),
    ("COPY a e DB x", "-ERR value is not an integer or out of range\r\n"),
    ("COPY a e DB", "-ERR syntax error\r\n"),
    ("COPY a e DB 99999999999", "-ERR value is out of range, value must between -2147483648 and 2147483647\r\n"),
    ("COPY a e DB 99999999999999999999", "-ERR value is not an integer or out of range\r\n"),
    ("COPY a e NX", "-ERR syntax error\r\n"),
    ("COPY a", "-ERR wrong number of arguments for 'copy' command\r\n"),
    ("RPUSH l x", ":1\r\n"),
    ("COPY l a", ":0\r\n"),
    ("COPY l a REPLACE", ":1\r\n"),
    ("TYPE a", "+list\r\n"),
    ("TYPE l", "+list\r\n"),
];

const SCANS: &[(&str, &str)] = &[
    ("SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("RPUSH l x", ":1\r\n"),
    ("SCAN 0 MATCH a", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n"),
    ("SCAN 0 match a TYPE string", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n"),
    ("SCAN 0 TYPE LIST", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nl\r\n"),
    ("SCAN 0 TYPE nothing", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("SCAN 0 TYPE string TYPE list MATCH x MATCH * COUNT 5 COUNT 100", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nl\r\n"),
    ("SCAN 0 COUNT 9223372036854775807 MATCH b", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("SCAN +0 MATCH a", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n"),
    ("SCAN -0 MATCH a", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n"),
    ("SCAN 00 MATCH a", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n"),
    ("SCAN  MATCH a", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n"),
    ("SCAN x", "-ERR invalid cursor\r\n"),
    ("SCAN  0", "-ERR syntax error\r\n"),
    ("SCAN 0x", "-ERR invalid cursor\r\n"),
    ("SCAN 1.5", "-ERR invalid cursor\r\n"),
    ("SCAN -", "-ERR invalid cursor\r\n"),
    ("SCAN +", "-ERR invalid cursor\r\n"),
    ("SCAN 18446744073709551616", "-ERR invalid cursor\r\n"),
    ("SCAN -18446744073709551616", "-ERR invalid cursor\r\n"),
    ("SCAN x COUNT x", "-ERR invalid cursor\r\n"),
    ("SCAN 0 COUNT", "-ERR syntax error\r\n"),
    ("SCAN 0 MATCH", "-ERR syntax error\r\n"),
    ("SCAN 0 TYPE", "-ERR syntax error\r\n"),
    ("SCAN 0 COUNT 0", "-ERR syntax error\r\n"),
    ("SCAN 0 COUNT -1", "-ERR syntax error\r\n"),
    ("SCAN 0 COUNT x", "-ERR value is not an integer or out of range\r\n"),
    ("SCAN 0 COUNT 9223372036854775808", "-ERR value is not an integer or out of range\r\n"),
    ("SCAN 0 x 1", "-ERR syntax error\r\n"),
    ("SCAN 0 NOVALUES", "-ERR syntax error\r\n"),
    ("SCAN 0 MATCH a b", "-ERR syntax error\r\n"),
    ("SCAN", "-ERR wrong number of arguments for 'scan' command\r\n"),
    ("KEYS a", "*1\r\n$1\r\na\r\n"),
    ("KEYS x*", "*0\r\n"),
    ("KEYS ", "*0\r\n"),
    ("KEYS [k-m]", "*1\r\n$1\r\nl\r\n"),
    ("KEYS", "-ERR wrong number of arguments for 'keys' command\r\n"),
    ("KEYS a b", "-ERR wrong number of arguments for 'keys' command\r\n"),
    ("RANDOMKEY x", "-ERR wrong number of arguments for 'randomkey' command\r\n"),
    ("DEL a", ":1\r\n"),
    ("RANDOMKEY", "$1\r\nl\r\n"),
    ("DEL l", ":1\r\n"),
    ("RANDOMKEY", "$-1\r\n"),
];

const FLUSHES: &[(&str, &str)] = &[
    ("FLUSHDB", "+OK\r\n"),
    ("FLUSHALL", "+OK\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("FLUSHDB x", "-ERR syntax error\r\n"),
    ("FLUSHALL x", "-ERR syntax error\r\n"),
    ("FLUSHDB SYNC ASYNC", "-ERR syntax error\r\n"),
    ("FLUSHALL SYNC SYNC", "-ERR syntax error\r\n"),
    ("GET a", "$1\r\n1\r\n"),
    ("FLUSHDB sync", "+OK\r\n"),
    ("GET a", "$-1\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("FLUSHALL ASYNC", "+OK\r\n"),
    ("DBSIZE", ":0\r\n"),
    ("KEYS *", "*0\r\n"),
];

/// C reads a cursor up to where a string ends.
#[test]
fn a_cursor_ends_at_a_byte_that_is_zero() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("SADD s m");
    let whole: [&[u8]; 4] = [b"0", b"0\0", b"0\0x", b"\0x"];
    for cursor in whole {
        assert_eq!(client.send(&[b"SCAN", cursor]), b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\ns\r\n", "{cursor:?}");
        assert_eq!(client.send(&[b"SSCAN", b"s", cursor]), b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\nm\r\n", "{cursor:?}");
        for command in [b"HSCAN", b"ZSCAN"] {
            assert_eq!(client.send(&[command, b"none", cursor]), b"*2\r\n$1\r\n0\r\n*0\r\n", "{cursor:?}");
        }
    }
    let invalid: [&[u8]; 3] = [b"x\0", b"+\x000", b"0 \0"];
    for cursor in invalid {
        assert_eq!(client.send(&[b"SCAN", cursor]), b"-ERR invalid cursor\r\n", "{cursor:?}");
    }
}

#[test]
fn a_key_that_is_too_long_is_not_there_and_cannot_be_written() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("SET short v");
    client.ask("SADD set m");
    let long = vec![b'k'; MAX_KEY_BYTES + 1];
    let long = &long[..];
    let absent: [(&[&[u8]], &str); 27] = [
        (&[b"GET", long], "$-1\r\n"),
        (&[b"EXISTS", long, b"short"], ":1\r\n"),
        (&[b"TOUCH", long], ":0\r\n"),
        (&[b"DEL", long, b"nothing"], ":0\r\n"),
        (&[b"UNLINK", long], ":0\r\n"),
        (&[b"TTL", long], ":-2\r\n"),
        (&[b"PEXPIRETIME", long], ":-2\r\n"),
        (&[b"TYPE", long], "+none\r\n"),
        (&[b"MGET", b"short", long, b"nothing", long, b"short"], "*5\r\n$1\r\nv\r\n$-1\r\n$-1\r\n$-1\r\n$1\r\nv\r\n"),
        (&[b"MGET", long, b"short"], "*2\r\n$-1\r\n$1\r\nv\r\n"),
        (&[b"STRLEN", long], ":0\r\n"),
        (&[b"GETDEL", long], "$-1\r\n"),
        (&[b"GETEX", long, b"PERSIST"], "$-1\r\n"),
        (&[b"EXPIRE", long, b"10"], ":0\r\n"),
        (&[b"PERSIST", long], ":0\r\n"),
        (&[b"RENAME", long, b"short"], "-ERR no such key\r\n"),
        (&[b"COPY", long, b"other"], ":0\r\n"),
        (&[b"MEMORY", b"USAGE", long], "$-1\r\n"),
        (&[b"HGETALL", long], "*0\r\n"),
        (&[b"HDEL", long, b"f"], ":0\r\n"),
        (&[b"LPOP", long], "$-1\r\n"),
        (&[b"LPUSHX", long, b"e"], ":0\r\n"),
        (&[b"SINTER", b"set", long], "*0\r\n"),
        (&[b"SUNION", b"set", long], "*1\r\n$1\r\nm\r\n"),
        (&[b"ZCARD", long], ":0\r\n"),
        (&[b"SET", long, b"v", b"XX"], "$-1\r\n"),
        (&[b"WATCH", long], "+OK\r\n"),
    ];
    for (request, reply) in absent {
        let name = String::from_utf8_lossy(request[0]);
        assert_eq!(String::from_utf8_lossy(&client.send(request)), reply, "{name}");
    }
    let refusal = format!("-ERR the key has {} bytes, the most is {MAX_KEY_BYTES}\r\n", long.len());
    let refused: [&[&[u8]]; 13] = [
        &[b"SET", long, b"v"],
        &[b"SET", long, b"v", b"NX", b"GET"],
        &[b"SETNX", long, b"v"],
        &[b"MSET", b"other", b"v", long, b"v"],
        &[b"GETSET", long, b"v"],
        &[b"INCR", long],
        &[b"APPEND", long, b"v"],
        &[b"RENAME", b"short", long],
        &[b"COPY", b"short", long],
        &[b"HSET", long, b"f", b"v"],
        &[b"RPUSH", long, b"e"],
        &[b"SMOVE", b"set", long, b"m"],
        &[b"ZADD", long, b"1", b"m"],
    ];
    for request in refused {
        let name = String::from_utf8_lossy(request[0]);
        assert_eq!(String::from_utf8_lossy(&client.send(request)), refusal, "{name}");
    }
    // Nothing of what was refused was done.
    assert_eq!(client.ask("EXISTS short set other"), ":2\r\n");
    assert_eq!(client.ask("SCARD set"), ":1\r\n");
}

#[test]
fn a_million_elements_are_deleted_and_reclaimed_by_as_few_writes_as_a_thousand() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let written = || fixture.service.keyspace.only_store().unwrap().properties().unwrap().last_sequence;
    let mut writes_of = |elements: usize| {
        for first in (0..elements).step_by(10_000) {
            let last = elements.min(first + 10_000);
            let members: Vec<_> = (first..last).map(|member| member.to_string()).collect();
            assert_eq!(client.ask(&format!("SADD k {}", members.join(" "))), format!(":{}\r\n", last - first));
        }
        let before = written();
        assert_eq!(client.ask("DEL k"), ":1\r\n");
        let deleted = written();
        assert_eq!(fixture.reclaimed(), 1);
        [deleted - before, written() - deleted]
    };
    let of_thousand = writes_of(1000);
    assert!(of_thousand.iter().all(|writes| (1..5).contains(writes)), "{of_thousand:?}");
    assert_eq!(writes_of(1_000_000), of_thousand);
}
