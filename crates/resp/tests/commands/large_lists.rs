//! Lists as they grow: across the border between small and large, deleted and moved as a whole,
//! beside a model; and the bytes that are stored.

use crate::common;

use std::collections::VecDeque;

use common::redis::texts;
use common::{Fixture, TestClient};
use ecotone_keyspace::collections::{Large, MAX_SMALL_BYTES, MAX_SMALL_ELEMENTS};
use ecotone_keyspace::{Tag, Type};
use ecotone_resp::execute::Step;

type Model = VecDeque<Vec<u8>>;

fn all(client: &mut TestClient<'_>, key: &str) -> Model {
    let reply = client.send(&[b"LRANGE", key.as_bytes(), b"0", b"-1"]);
    let found: Model = texts(&reply).into();
    assert_eq!(client.ask(&format!("LLEN {key}")), format!(":{}\r\n", found.len()));
    found
}

/// Makes `key` a large list: 0 to `count` - 1.
fn make_large(fixture: &Fixture, client: &mut TestClient<'_>, key: &str, count: usize) -> Large {
    let numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    assert_eq!(client.ask(&format!("RPUSH {key} {}", numbers.join(" "))), format!(":{count}\r\n"));
    fixture.large(key).unwrap()
}

#[test]
fn a_list_grows_and_stays_large_until_it_is_gone() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for number in 1..=2 * MAX_SMALL_ELEMENTS {
        let end = if number % 3 == 0 { "LPUSH" } else { "RPUSH" };
        assert_eq!(client.ask(&format!("{end} a {number}")), format!(":{number}\r\n"));
        assert_eq!(fixture.large("a").is_some(), number > MAX_SMALL_ELEMENTS, "{number}");
    }
    while client.ask("LLEN a") != ":0\r\n" {
        assert!(fixture.large("a").is_some());
        client.ask("LPOP a");
        client.ask("RPOP a");
    }
    assert_eq!(client.ask("EXISTS a"), ":0\r\n");
    assert_eq!(fixture.reclaimed(), 1);
    // One byte of length stands before the first element, two before a long one.
    for (bytes, grows) in [(MAX_SMALL_BYTES - 4, false), (MAX_SMALL_BYTES - 3, true)] {
        client.send(&[b"RPUSH", b"b", b"x", &vec![b'v'; bytes]]);
        assert_eq!(fixture.large("b").is_some(), grows, "{bytes}");
        client.ask("DEL b");
    }
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

#[test]
fn a_large_list_is_as_its_model() {
    for seed in 0..4 {
        let fixture = Fixture::new();
        let mut client = fixture.client();
        let lay = make_large(&fixture, &mut client, "a", 200);
        let mut model: Model = (0..200).map(|number| number.to_string().into_bytes()).collect();
        let mut state = seed;
        for step in 0..600 {
            let at = (next(&mut state) % model.len() as u64) as usize;
            let (known, new) = (String::from_utf8(model[at].clone()).unwrap(), format!("new{step}"));
            let first = model.iter().position(|element| *element == known.as_bytes()).unwrap();
            match next(&mut state) % 9 {
                0 => {
                    client.ask(&format!("LPUSH a {new} {known}"));
                    model.push_front(new.into());
                    model.push_front(known.into());
                }
                1 => {
                    client.ask(&format!("RPUSH a {new}"));
                    model.push_back(new.into());
                }
                2 => {
                    client.ask("LPOP a");
                    model.pop_front();
                }
                3 => {
                    client.ask("RPOP a 2");
                    model.pop_back();
                    model.pop_back();
                }
                4 => {
                    client.ask(&format!("LSET a {at} {new}"));
                    model[at] = new.into();
                }
                5 => {
                    client.ask(&format!("LINSERT a BEFORE {known} {new}"));
                    model.insert(first, new.into());
                }
                6 => {
                    client.ask(&format!("LINSERT a AFTER {known} {new}"));
                    model.insert(first + 1, new.into());
                }
                7 => {
                    client.ask(&format!("LREM a 0 {known}"));
                    model.retain(|element| *element != known.as_bytes());
                }
                _ => {
                    client.ask("LTRIM a 1 -2");
                    model.pop_front();
                    model.pop_back();
                    client.ask("LMOVE a a LEFT RIGHT");
                    model.rotate_left(1);
                }
            }
            assert_eq!(all(&mut client, "a"), model, "seed {seed} step {step}");
            if model.len() < 20 {
                let more: Vec<String> = (0..100).map(|number| format!("more{step}-{number}")).collect();
                client.ask(&format!("RPUSH a {}", more.join(" ")));
                model.extend(more.into_iter().map(String::into_bytes));
            }
        }
        assert_eq!(fixture.large("a").unwrap().id, lay.id);
        assert_eq!(fixture.elements(lay.id).len(), model.len(), "no entry is left behind");
    }
}

#[test]
fn a_large_list_is_deleted_renamed_copied_and_expires() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for request in ["DEL a", "EXPIRE a -1", "RENAME s a", "LTRIM a 1 0", "LPOP a 9999", "SET a 1 XX"] {
        client.ask("SET s 1");
        client.ask("DEL a");
        let lay = make_large(&fixture, &mut client, "a", 700);
        assert!(!client.ask(request).starts_with('-'), "{request}");
        assert_eq!((fixture.reclaimed(), fixture.elements(lay.id).len()), (1, 0), "{request}");
    }
    client.ask("DEL a");
    make_large(&fixture, &mut client, "a", 200);
    client.ask("PEXPIREAT a 4102444800000");
    let model = all(&mut client, "a");
    client.ask("RENAME a b");
    assert_eq!(client.ask("COPY b c"), ":1\r\n");
    for request in ["LPUSH b x", "LREM b 1 50", "LINSERT b AFTER 100 y", "LSET b 7 z", "RPOP b"] {
        client.ask(request);
    }
    assert_eq!(all(&mut client, "c"), model);
    for key in ["b", "c"] {
        assert_eq!(client.ask(&format!("PEXPIRETIME {key}")), ":4102444800000\r\n");
    }
    assert_eq!(fixture.reclaimed(), 0);
}

#[test]
fn what_takes_long_is_not_done_while_others_wait() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make_large(&fixture, &mut client, "a", 5000);
    for request in ["LRANGE a 0 -1", "LTRIM a 2000 -1", "LPOP a 2000", "LREM a 0 x", "LINSERT a AFTER 2500 x"] {
        assert_eq!(client.step_at_once(request), Step::WouldBlock, "{request}");
    }
    for request in ["LLEN a", "LINDEX a 2500", "LSET a 2500 x", "LRANGE a 2000 2010", "LPOP a", "LINSERT a AFTER 5 x"] {
        assert!(matches!(client.step_at_once(request), Step::Done { .. }), "{request}");
    }
}

/// The bytes of `docs/internals/formats.md`, section "Lists".
#[test]
fn lists_are_stored_as_these_bytes() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let entry = |key: &str| {
        fixture.change(|keys| {
            let entry = keys.entry(key.as_bytes()).unwrap().unwrap();
            (entry.tag, entry.to_vec())
        })
    };
    client.ask("RPUSH small two three");
    client.ask("LPUSH small one");
    assert_eq!(entry("small"), (Tag::small(Type::List), b"\x03one\x03two\x05three".to_vec()));
    let lay = make_large(&fixture, &mut client, "large", 130);
    client.ask("LPUSH large first");
    client.ask("RPOP large 2");
    let mut payload = Vec::new();
    Large { id: lay.id, elements: 129 }.encode(&mut payload);
    payload.extend_from_slice(b"\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x80\0\0\0\0\0\0\x80");
    assert_eq!(entry("large"), (Tag::large(Type::List), payload));
    let stored = fixture.elements(lay.id);
    assert_eq!(stored.len(), 129);
    assert_eq!(stored[0], (b"\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF".to_vec(), b"first".to_vec()));
    assert_eq!(stored[1], (b"\x80\0\0\0\0\0\0\0".to_vec(), b"0".to_vec()));
}
