//! Sets as they grow: deleted and moved as a whole, combined, scanned and drawn from; and the bytes
//! that are stored.

use crate::common;

use std::collections::BTreeSet;

use common::redis::texts;
use common::{Fixture, TestClient};
use ecotone_resp::execute::Step;

type Members = BTreeSet<Vec<u8>>;

/// The members that `request` returns, none of them twice.
fn members(client: &mut TestClient<'_>, request: &str) -> Members {
    let words = texts(client.ask(request).as_bytes());
    let unique: Members = words.iter().cloned().collect();
    assert_eq!(unique.len(), words.len(), "{request}");
    unique
}

fn numbered(numbers: std::ops::Range<u32>) -> Members {
    numbers.map(|number| format!("m{number}").into_bytes()).collect()
}

fn make(client: &mut TestClient<'_>, key: &str, numbers: std::ops::Range<u32>) {
    let names: Vec<String> = numbers.map(|number| format!("m{number}")).collect();
    assert_eq!(client.ask(&format!("SADD {key} {}", names.join(" "))), format!(":{}\r\n", names.len()));
}

#[test]
fn a_large_set_is_renamed_copied_replaced_and_deleted() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make(&mut client, "a", 0..300);
    client.ask("RENAME a b");
    client.ask("COPY b c");
    assert_eq!(client.ask("SREM b m0 m0 m1 x"), ":2\r\n");
    assert_eq!(client.ask("SADD b m2 new"), ":1\r\n");
    assert_eq!(client.ask("SCARD b"), ":299\r\n");
    assert_eq!(members(&mut client, "SMEMBERS c"), numbered(0..300));
    assert_eq!(fixture.reclaimed(), 0);
    for request in ["SDIFFSTORE c c c", "SINTERSTORE b b b", "SPOP b 1000", "SUNIONSTORE d x", "DEL b"] {
        client.ask(request);
    }
    assert_eq!(client.ask("EXISTS b c d"), ":0\r\n");
    assert_eq!(fixture.reclaimed(), 3);
}

#[test]
fn large_and_small_sets_are_combined() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make(&mut client, "a", 0..2000);
    make(&mut client, "b", 1000..3000);
    make(&mut client, "c", 1500..1520);
    assert_eq!(members(&mut client, "SINTER a b"), numbered(1000..2000));
    assert_eq!(members(&mut client, "SINTER a b c"), numbered(1500..1520));
    assert_eq!(members(&mut client, "SUNION a b c"), numbered(0..3000));
    assert_eq!(members(&mut client, "SDIFF a b c"), numbered(0..1000));
    assert_eq!(client.ask("SINTERCARD 2 a b LIMIT 700"), ":700\r\n");
    assert_eq!(client.ask("SUNIONSTORE a a b"), ":3000\r\n");
    assert_eq!(members(&mut client, "SMEMBERS a"), numbered(0..3000));
    assert_eq!(client.ask("SINTERSTORE a a c"), ":20\r\n");
    assert_eq!(members(&mut client, "SMEMBERS a"), numbered(1500..1520));
}

#[test]
fn members_are_drawn_and_popped_each_once() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make(&mut client, "a", 0..500);
    for count in [1, 50, 400, 500] {
        assert_eq!(members(&mut client, &format!("SRANDMEMBER a {count}")).len(), count);
    }
    let mut popped = members(&mut client, "SPOP a 50");
    popped.extend(members(&mut client, "SPOP a 300"));
    assert_eq!(popped.len(), 350);
    let left = members(&mut client, "SMEMBERS a");
    assert!(left.is_disjoint(&popped));
    popped.extend(left);
    assert_eq!(popped, numbered(0..500));
}

#[test]
fn a_scan_returns_each_member_that_stays_once() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make(&mut client, "a", 0..2000);
    let mut step = 0;
    let found = client.scan("SSCAN a", "COUNT 30", |client| {
        client.ask(&format!("SREM a m{}", 1000 + step));
        client.ask(&format!("SADD a other{step}"));
        step += 1;
    });
    let unique: Members = found.iter().cloned().collect();
    assert_eq!(unique.len(), found.len());
    assert!(unique.is_superset(&numbered(0..1000)));
}

/// The bytes of `docs/internals/formats.md`, section "Keys and collections".
#[test]
fn sets_are_stored_as_these_bytes() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("SADD small f gone field");
    client.ask("SREM small gone");
    assert_eq!(fixture.stored(b"k\x1C\x36\x3D\x9Csmall"), (3, b"\x01f\x05field".to_vec()));
    client.send(&[b"SADD", b"large", &[b'v'; 5000], b"f", b"field"]);
    client.send(&[b"SREM", b"large", &[b'v'; 5000]]);
    let collection = b"\x25\x47\0\0\0\0\0\0\0\x01";
    let key = (0x83, [&collection[..], b"\0\0\0\0\0\0\0\x02"].concat());
    assert_eq!(fixture.stored(b"k\x25\x47\xFE\x2Clarge"), key);
    let element = |sub_key: &[u8]| fixture.stored(&[b"e", &collection[..], sub_key].concat());
    assert_eq!(element(b"\x33\xC1\x55\x90f"), (0, Vec::new()));
    assert_eq!(element(b"\x20\xBE\x52\xB1field"), (0, Vec::new()));
    assert_eq!(fixture.stored(&[b"c", &collection[..]].concat()), (0, b"large".to_vec()));
}

/// Removes all but the last `left` in the order of their hashes: a draw has to get past most of
/// what was there.
fn leave_the_last(client: &mut TestClient<'_>, key: &str, left: usize) -> Members {
    let all = texts(client.ask(&format!("SMEMBERS {key}")).as_bytes());
    let (gone, stay) = all.split_at(all.len() - left);
    for some in gone.chunks(1000) {
        let words: Vec<&[u8]> =
            [&b"SREM"[..], key.as_bytes()].into_iter().chain(some.iter().map(Vec::as_slice)).collect();
        client.send(&words);
    }
    stay.iter().cloned().collect()
}

#[test]
fn a_set_that_is_drawn_empty_loses_what_its_draws_would_step_over() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    // What is left stays large, or becomes small.
    for (left, popped) in [(300, 60), (90, 60)] {
        client.ask("DEL a");
        fixture.reclaimed();
        make(&mut client, "a", 0..4000);
        client.ask("PEXPIREAT a 4102444800000");
        let mut stay = leave_the_last(&mut client, "a", left);
        let id = fixture.large("a").unwrap().id;
        for _ in 0..popped {
            let member = texts(client.ask("SPOP a 1").as_bytes()).remove(0);
            assert!(stay.remove(&member));
        }
        assert_ne!(fixture.large("a").map(|large| large.id), Some(id), "{left}");
        assert_eq!(fixture.large("a").is_some(), left > 128);
        assert_eq!((fixture.reclaimed(), fixture.elements(id).len()), (1, 0));
        assert_eq!(members(&mut client, "SMEMBERS a"), stay);
        assert_eq!(client.ask("SCARD a"), format!(":{}\r\n", stay.len()));
        assert_eq!(client.ask("PEXPIRETIME a"), ":4102444800000\r\n");
        // Where others wait as well.
        client.at_once("SPOP a");
        assert_eq!(members(&mut client, "SPOP a 1000").len(), stay.len() - 1);
    }
}

#[test]
fn what_was_removed_counts_where_others_wait() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make(&mut client, "a", 0..4000);
    let all = texts(client.ask("SMEMBERS a").as_bytes());
    // Nowhere many in a row.
    for some in all.chunks(40) {
        let words: Vec<&[u8]> = [&b"SREM"[..], b"a"].into_iter().chain(some[1..].iter().map(Vec::as_slice)).collect();
        client.send(&words);
    }
    assert_eq!(client.step_at_once("SMEMBERS a"), Step::WouldBlock);
    assert_eq!(members(&mut client, "SMEMBERS a").len(), 100);
    client.at_once("SSCAN a 0");
    client.at_once("SRANDMEMBER a");
}
