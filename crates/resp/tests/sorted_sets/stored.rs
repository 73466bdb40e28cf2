//! What stands in the store, and when a set changes its form.

use std::ops::ControlFlow;

use ecotone_engine::Direction;
use ecotone_resp::collections::{Large, MOST_SMALL_BYTES, MOST_SMALL_ELEMENTS};
use ecotone_resp::keyspace::{Tag, Type};

use crate::common::Fixture;

fn tag(fixture: &Fixture, key: &str) -> Tag {
    fixture.change(|keys| keys.peek(key.as_bytes()).unwrap().unwrap().0)
}

fn large(fixture: &Fixture, key: &str) -> Large {
    fixture.change(|keys| {
        let entry = keys.entry(key.as_bytes()).unwrap().unwrap();
        assert_eq!(entry.tag, Tag::large(Type::SortedSet));
        let (large, rest) = Large::decode(&entry).unwrap();
        assert!(rest.is_empty());
        large
    })
}

/// Sub-keys and values of all elements.
fn elements(fixture: &Fixture, large: Large) -> Vec<(Vec<u8>, Vec<u8>)> {
    fixture.change(|keys| {
        let mut elements = Vec::new();
        keys.visit_all_elements(large.id, Direction::Forward, |sub_key, value| {
            elements.push((sub_key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
        elements
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_small_set_is_these_bytes() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("ZADD z 1 b 1 a -1.5 neg inf i -0 zero");
    assert_eq!(tag(&fixture, "z"), Tag::small(Type::SortedSet));
    let payload = fixture.change(|keys| keys.entry(b"z").unwrap().unwrap().to_vec());
    let expected = [
        "0b4007ffffffffffff6e6567",   // -1.5 neg
        "0c80000000000000007a65726f", // 0 zero
        "09bff000000000000061",       // 1 a
        "09bff000000000000062",       // 1 b
        "09fff000000000000069",       // inf i
    ];
    assert_eq!(hex(&payload), expected.concat());
}

#[test]
fn a_large_set_has_two_entries_for_each_member() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask(&format!("ZADD z -1.5 neg 2 {}", "x".repeat(MOST_SMALL_BYTES)));
    client.ask("ZREMRANGEBYRANK z -1 -1");
    client.ask("ZADD z 1 a");
    let large = large(&fixture, "z");
    assert_eq!(large.elements, 2);
    let elements: Vec<(String, String)> =
        elements(&fixture, large).iter().map(|(sub_key, value)| (hex(sub_key), hex(value))).collect();
    // XXH3 of "a" is e6c632b61e964e1f, of "neg" it begins with a2a2d856.
    let expected = [
        ("6da2a2d8566e6567", "4007ffffffffffff"),
        ("6de6c632b661", "bff0000000000000"),
        ("734007ffffffffffff6e6567", ""),
        ("73bff000000000000061", ""),
    ];
    assert_eq!(elements, expected.map(|(sub_key, value)| (sub_key.to_owned(), value.to_owned())));
}

#[test]
fn a_set_becomes_large_beyond_the_limits_and_stays_so() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for number in 0..MOST_SMALL_ELEMENTS {
        client.ask(&format!("ZADD z {number} {number}"));
        assert_eq!(tag(&fixture, "z"), Tag::small(Type::SortedSet));
    }
    assert_eq!(client.ask("ZADD z 0 0"), ":0\r\n");
    assert_eq!(tag(&fixture, "z"), Tag::small(Type::SortedSet));
    client.ask("ZADD z 5.5 more");
    assert_eq!(large(&fixture, "z").elements, MOST_SMALL_ELEMENTS as u64 + 1);
    assert_eq!(client.ask("ZRANGE z 5 7"), "*3\r\n$1\r\n5\r\n$4\r\nmore\r\n$1\r\n6\r\n");
    client.ask("ZREMRANGEBYRANK z 1 -1");
    let left = large(&fixture, "z");
    assert_eq!((left.elements, elements(&fixture, left).len()), (1, 2));
    // Small again once it was deleted.
    assert_eq!(client.ask("ZREM z 0"), ":1\r\n");
    assert_eq!(client.ask("ZADD z 1 a"), ":1\r\n");
    assert_eq!(tag(&fixture, "z"), Tag::small(Type::SortedSet));
    // By bytes: a length of two bytes, eight of the score, the member.
    let fitting = MOST_SMALL_BYTES - 10 - (1 + 8 + 1);
    client.ask(&format!("ZADD z 1 {}", "x".repeat(fitting)));
    assert_eq!(tag(&fixture, "z"), Tag::small(Type::SortedSet));
    client.ask(&format!("ZADD other 1 a 1 {}", "x".repeat(fitting + 1)));
    assert_eq!(large(&fixture, "other").elements, 2);
}

#[test]
fn an_expiry_stays_when_members_change() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let more = "x".repeat(MOST_SMALL_BYTES);
    client.ask("ZADD z 1 a 2 b 3 c");
    client.ask("PEXPIREAT z 4000000000000");
    for request in ["ZADD z 4 d", "ZINCRBY z 1 a", "ZREM z d", &format!("ZADD z 9 {more}"), "ZADD z 5 e", "ZPOPMIN z"] {
        client.ask(request);
        assert_eq!(client.ask("PEXPIRETIME z"), ":4000000000000\r\n", "{request}");
    }
    assert!(tag(&fixture, "z").is_large);
    assert_eq!(client.ask("PERSIST z"), ":1\r\n");
    assert_eq!(client.ask("ZCARD z"), ":4\r\n");
}

#[test]
fn what_makes_no_sense_is_told() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fixture.plant_large("large", Type::SortedSet, 3);
    fixture.change(|keys| keys.set(b"small", Tag::small(Type::SortedSet), None, b"\x02ab").unwrap());
    let nan = [&[8][..], &[0xFF; 8]].concat();
    fixture.change(|keys| keys.set(b"nan", Tag::small(Type::SortedSet), None, &nan).unwrap());
    for key in ["large", "small", "nan"] {
        let reply = client.ask(&format!("ZRANGE {key} 0 -1"));
        assert!(reply.starts_with("-IOERR"), "{reply}");
        assert_eq!(client.ask(&format!("DEL {key}")), ":1\r\n");
    }
}
