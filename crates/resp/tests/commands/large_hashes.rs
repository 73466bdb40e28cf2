//! Hashes as they grow: across the border between small and large, deleted and moved as a whole,
//! scanned and drawn from; and the bytes that are stored.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use common::redis::texts;
use common::{Fixture, TestClient};
use ecotone_keyspace::collections::by_hash::{self, MAX_NAME_BYTES};
use ecotone_keyspace::collections::{Large, MAX_SMALL_BYTES, MAX_SMALL_ELEMENTS};
use ecotone_keyspace::{Blocking, Tag, Type, WriteGroup};
use ecotone_resp::execute::Step;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn all(client: &mut TestClient<'_>, key: &str) -> Model {
    let words = texts(&client.send(&[b"HGETALL", key.as_bytes()]));
    let found: Model = words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    assert_eq!(found.len() * 2, words.len(), "a field came twice");
    assert_eq!(client.ask(&format!("HLEN {key}")), format!(":{}\r\n", found.len()));
    found
}

/// Makes `key` a large hash: `field0` to `field{n - 1}`, each with its number.
fn make_large(fixture: &Fixture, client: &mut TestClient<'_>, key: &str, fields: usize) {
    let pairs: Vec<String> = (0..fields).map(|number| format!("field{number} {number}")).collect();
    assert_eq!(client.ask(&format!("HSET {key} {}", pairs.join(" "))), format!(":{fields}\r\n"));
    assert!(fixture.large(key).is_some());
}

#[test]
fn a_hash_grows_by_its_fields_and_stays_large_until_it_is_gone() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mut model = Model::new();
    for number in 0..2 * MAX_SMALL_ELEMENTS {
        let (field, value) = (format!("field{number}"), number.to_string());
        assert_eq!(client.ask(&format!("HSET a {field} {value}")), ":1\r\n");
        assert_eq!(client.ask(&format!("HSET a {field} {value}")), ":0\r\n");
        model.insert(field.into(), value.into());
        assert_eq!(fixture.large("a").is_some(), model.len() > MAX_SMALL_ELEMENTS, "{number}");
        if number % 16 == 0 || number.abs_diff(MAX_SMALL_ELEMENTS) < 3 {
            assert_eq!(all(&mut client, "a"), model);
        }
    }
    let before = fixture.large("a").unwrap();
    for number in 0..2 * MAX_SMALL_ELEMENTS {
        assert_eq!(all(&mut client, "a"), model);
        assert_eq!(fixture.large("a").unwrap().id, before.id);
        let field = format!("field{number}");
        assert_eq!(client.ask(&format!("HDEL a {field} {field} x")), ":1\r\n");
        model.remove(field.as_bytes());
    }
    assert_eq!(client.ask("EXISTS a"), ":0\r\n");
    assert_eq!(fixture.reclaimed(), 1);
    // A new one begins small.
    assert_eq!(client.ask("HSET a f 1"), ":1\r\n");
    assert!(fixture.large("a").is_none());
}

#[test]
fn a_hash_grows_by_its_bytes() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    // Beside the value stand its length of two bytes, and the field with its length, one byte each.
    for (bytes, grows) in [(MAX_SMALL_BYTES - 4, false), (MAX_SMALL_BYTES - 3, true), (1 << 20, true)] {
        let value = vec![b'v'; bytes];
        client.ask("HSET a f 1 g 2");
        client.ask("HDEL a g");
        assert_eq!(client.send(&[b"HSET", b"a", b"f", &value]), b":0\r\n");
        assert_eq!(fixture.large("a").is_some(), grows, "{bytes}");
        assert_eq!(all(&mut client, "a"), Model::from([(b"f".to_vec(), value)]));
        // It does not become small again.
        client.ask("HSET a f 1");
        assert_eq!(fixture.large("a").is_some(), grows, "{bytes}");
        assert_eq!(client.ask("HINCRBY a f 1"), ":2\r\n");
        client.ask("DEL a");
    }
}

#[test]
fn many_fields_at_once_make_a_large_hash_at_once() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make_large(&fixture, &mut client, "a", 5000);
    assert_eq!(all(&mut client, "a").len(), 5000);
    // Some are there, some are named twice, some are new.
    client.ask("HSET b field1 x field2 x");
    let pairs: Vec<String> = (0..1000).map(|number| format!("field{} {number}", number % 500)).collect();
    assert_eq!(client.ask(&format!("HSET b {}", pairs.join(" "))), ":498\r\n");
    let expected: Model =
        (500..1000).map(|number| (format!("field{}", number - 500).into(), number.to_string().into())).collect();
    assert_eq!(all(&mut client, "b"), expected);
}

#[test]
fn a_field_is_too_long_where_it_cannot_be_stored() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let (longest, longer) = (vec![b'f'; MAX_NAME_BYTES], vec![b'f'; MAX_NAME_BYTES + 1]);
    let refusal = format!("-ERR the field has {} bytes, the most is {MAX_NAME_BYTES}\r\n", longer.len());
    assert_eq!(client.send(&[b"HSET", b"a", b"x", b"1", &longer, b"1"]), refusal.as_bytes());
    assert_eq!(client.ask("EXISTS a"), ":0\r\n");
    assert_eq!(client.send(&[b"HSET", b"a", b"x", b"1", &longest, b"1"]), b":2\r\n");
    assert_eq!(client.send(&[b"HSET", b"a", b"y", b"1", &longer, b"1"]), refusal.as_bytes());
    assert_eq!(client.ask("HLEN a"), ":2\r\n");
    assert_eq!(client.ask("HEXISTS a y"), ":0\r\n");
    assert_eq!(client.send(&[b"HGET", b"a", &longest]), b"$1\r\n1\r\n");
    for command in ["HGET", "HEXISTS", "HSTRLEN", "HDEL"] {
        let reply = client.send(&[command.as_bytes(), b"a", &longer]);
        assert!(reply == b":0\r\n" || reply == b"$-1\r\n", "{command}");
    }
}

#[test]
fn a_large_hash_is_deleted_renamed_copied_and_expires() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for request in ["DEL a", "UNLINK a", "EXPIRE a -1", "SET a 1 XX", "RENAME s a", "COPY s a REPLACE"] {
        client.ask("SET s 1");
        client.ask("DEL a");
        make_large(&fixture, &mut client, "a", 700);
        let lay = fixture.large("a").unwrap();
        assert!(!client.ask(request).starts_with('-'), "{request}");
        assert_eq!(fixture.elements(lay.id).len(), 700);
        assert_eq!(fixture.reclaimed(), 1, "{request}");
        assert_eq!(fixture.elements(lay.id).len(), 0, "{request}");
    }
    client.ask("DEL a");
    make_large(&fixture, &mut client, "a", 200);
    client.ask("PEXPIREAT a 4102444800000");
    let model = all(&mut client, "a");
    client.ask("RENAME a b");
    assert_eq!(client.ask("COPY b c"), ":1\r\n");
    assert_ne!(fixture.large("b").unwrap().id, fixture.large("c").unwrap().id);
    // Each is changed for itself.
    for request in ["HSET b new 1", "HDEL b field1", "HINCRBY b field2 5", "HSET b field3 x", "HSETNX b more 1"] {
        client.ask(request);
    }
    assert_eq!(all(&mut client, "c"), model);
    assert_eq!(all(&mut client, "b").len(), 201);
    for key in ["b", "c"] {
        assert_eq!(client.ask(&format!("PEXPIRETIME {key}")), ":4102444800000\r\n");
    }
    assert_eq!(fixture.reclaimed(), 0);
    // What has expired is overwritten, and gone soon.
    fixture.change(|keys| {
        let entry = keys.entry(b"c").unwrap().unwrap();
        keys.set(b"c", entry.tag, Some(1), &entry).unwrap();
    });
    let before = elements_of(&fixture, "b");
    assert_eq!(client.ask("HSET c f 1"), ":1\r\n");
    assert_eq!(all(&mut client, "c"), Model::from([(b"f".to_vec(), b"1".to_vec())]));
    assert_eq!(client.ask("PEXPIRETIME c"), ":-1\r\n");
    assert_eq!(fixture.reclaimed(), 1);
    assert_eq!(elements_of(&fixture, "b"), before);
}

fn elements_of(fixture: &Fixture, key: &str) -> usize {
    fixture.elements(fixture.large(key).unwrap().id).len()
}

#[test]
fn who_watches_a_hash_is_told_of_every_change() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    make_large(&fixture, &mut one, "large", 200);
    one.ask("HSET small field1 1 field2 2 field3 3");
    for key in ["small", "large"] {
        for (change, reply) in [
            ("HSET K field1 5", "*-1\r\n"),
            ("HINCRBY K field1 5", "*-1\r\n"),
            ("HSETNX K new 5", "*-1\r\n"),
            ("HDEL K field2", "*-1\r\n"),
            ("HSETNX K new 5", "*0\r\n"),
            ("HDEL K field2", "*0\r\n"),
            ("HGETALL K", "*0\r\n"),
        ] {
            one.ask(&format!("WATCH {key}"));
            other.ask(&change.replace('K', key));
            one.ask("MULTI");
            assert_eq!(one.ask("EXEC"), reply, "{change} {key}");
        }
    }
}

/// The fields that a scan returns; `between` is called after each step but the last.
fn scan(client: &mut TestClient<'_>, options: &str, between: impl FnMut(&mut TestClient<'_>)) -> Vec<Vec<u8>> {
    client.scan("HSCAN a", options, between).into_iter().step_by(2).collect()
}

#[test]
fn a_scan_returns_each_field_that_stays_once() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make_large(&fixture, &mut client, "a", 3000);
    let stay: BTreeSet<Vec<u8>> = (0..2000).map(|number| format!("field{number}").into()).collect();
    for options in ["", "COUNT 1", "COUNT 7", "COUNT 500", "COUNT 100000", "MATCH field* COUNT 50"] {
        let mut step = 0;
        let found = scan(&mut client, options, |client| {
            // Fields come, go and change meanwhile.
            step += 1;
            client.ask(&format!("HDEL a field{}", 2000 + step % 1000));
            client.ask(&format!("HSET a other{step} 1 field{} {step}", step % 2000));
        });
        let unique: BTreeSet<Vec<u8>> = found.iter().cloned().collect();
        assert_eq!(found.len(), unique.len(), "a field came twice: {options}");
        assert!(unique.is_superset(&stay), "{options}");
    }
    let found = scan(&mut client, "MATCH field19?", |_| {});
    assert_eq!(found.len(), 10);
    // No field stands behind the last hash.
    for cursor in ["4294967297", "18446744073709551615"] {
        assert_eq!(client.ask(&format!("HSCAN a {cursor}")), "*2\r\n$1\r\n0\r\n*0\r\n");
    }
}

#[test]
fn all_fields_of_a_large_hash_are_drawn() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make_large(&fixture, &mut client, "a", 300);
    let fields: BTreeSet<Vec<u8>> = all(&mut client, "a").into_keys().collect();
    for (count, least) in [(1, 1), (10, 10), (100, 100), (101, 101), (299, 299), (300, 300), (5000, 300)] {
        let drawn = texts(&client.send(&[b"HRANDFIELD", b"a", count.to_string().as_bytes()]));
        let unique: BTreeSet<Vec<u8>> = drawn.iter().cloned().collect();
        assert_eq!((drawn.len(), unique.len()), (least, least));
        assert!(unique.is_subset(&fields));
    }
    assert_eq!(texts(&client.send(&[b"HRANDFIELD", b"a", b"-1000"])).len(), 1000);
    let drawn = texts(&client.send(&[b"HRANDFIELD", b"a", b"-20", b"WITHVALUES"]));
    assert_eq!(drawn.len(), 40);
    assert!(drawn.chunks(2).all(|pair| pair[0] == [b"field", &pair[1][..]].concat()));
    // Nobody is left out for ever: the rarest waits behind a gap of about 1/300² of all hashes.
    let (mut seen, mut rounds) = (BTreeSet::new(), 0);
    while seen.len() < 290 {
        seen.extend(texts(&client.send(&[b"HRANDFIELD", b"a", b"-1000"])));
        rounds += 1;
        assert!(rounds < 1000, "only {} fields are drawn", seen.len());
    }
}

#[test]
fn fields_of_one_hash_are_told_apart() {
    // Found by trying: the upper halves of their XXH3 are the same.
    let (one, other) = collision();
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make_large(&fixture, &mut client, "a", 200);
    client.ask(&format!("HSET a {one} 1 {other} 2"));
    assert_eq!(client.ask(&format!("HMGET a {one} {other}")), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    let found = scan(&mut client, "COUNT 1", |_| {});
    assert_eq!((found.len(), found.into_iter().collect::<BTreeSet<_>>().len()), (202, 202));
    let fields: Vec<String> = (0..200).map(|number| format!("field{number}")).collect();
    client.ask(&format!("HDEL a {}", fields.join(" ")));
    let drawn: BTreeSet<Vec<u8>> = texts(&client.send(&[b"HRANDFIELD", b"a", b"-100"])).into_iter().collect();
    assert_eq!(drawn, BTreeSet::from([one.into_bytes(), other.into_bytes()]));
}

/// Two fields with the same hash.
fn collision() -> (String, String) {
    let mut seen = std::collections::HashMap::new();
    for number in 0_u64.. {
        let field = format!("c{number}");
        if let Some(known) = seen.insert(by_hash::hash_of(field.as_bytes()), field.clone()) {
            return (known, field);
        }
    }
    unreachable!("there are more numbers than hashes")
}

#[test]
fn endless_draws_are_refused() {
    let fixture = Fixture::new();
    let mut limits = (**fixture.service.limits.read()).clone();
    limits.output_bytes = 10_000;
    *fixture.service.limits.write() = limits.into();
    let mut client = fixture.client();
    client.ask("HSET a f 1");
    let refusal =
        "-ERR the reply would take more than 10000 bytes (clients.max_output_bytes); ask for fewer fields\r\n";
    assert_eq!(client.ask("HRANDFIELD a -9223372036854775807"), refusal);
    make_large(&fixture, &mut client, "b", 300);
    assert_eq!(client.ask("HRANDFIELD b -4611686018427387903 WITHVALUES"), refusal);
    assert_eq!(texts(&client.send(&[b"HRANDFIELD", b"b", b"-100"])).len(), 100);
}

#[test]
fn a_group_sees_what_it_has_written_and_a_failure_leaves_nothing() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    let pairs: Vec<String> = (0..200).map(|number| format!("field{number} {number}")).collect();
    assert_eq!(client.ask_in(&mut group, &format!("HSET a {}", pairs.join(" "))), ":200\r\n");
    assert_eq!(client.ask_in(&mut group, "HSET a field7 x"), ":0\r\n");
    assert_eq!(client.ask_in(&mut group, "HINCRBY a field7 1"), "-ERR hash value is not an integer\r\n");
    assert_eq!(client.ask_in(&mut group, "HDEL a field8 field8 field9"), ":2\r\n");
    assert_eq!(client.ask_in(&mut group, "HMGET a field7 field8"), "*2\r\n$1\r\nx\r\n$-1\r\n");
    let long = "f".repeat(MAX_NAME_BYTES + 1);
    assert!(client.ask_in(&mut group, &format!("HSET a field7 y new 1 {long} 1")).starts_with("-ERR the field has"));
    assert_eq!(client.ask_in(&mut group, "HMGET a field7 new"), "*2\r\n$1\r\nx\r\n$-1\r\n");
    assert_eq!(client.ask_in(&mut group, "HLEN a"), ":198\r\n");
    group.commit(Blocking::Allowed).unwrap();
    drop(group);
    assert_eq!(all(&mut client, "a").len(), 198);
}

#[test]
fn who_reads_fields_together_sees_no_half_of_a_change() {
    const CHANGES: u32 = 2000;
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make_large(&fixture, &mut client, "a", 200);
    client.ask("HSET a one 0 other 0");
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut writer = fixture.client();
            for number in 1..=CHANGES {
                writer.ask(&format!("HSET a one {number} other {number}"));
            }
        });
        let mut last = String::new();
        while last != CHANGES.to_string() {
            let fields = texts(&client.ask("HMGET a one other").into_bytes());
            assert_eq!(fields[0], fields[1]);
            let whole = all_now(&mut client);
            assert_eq!(whole[&b"one"[..]], whole[&b"other"[..]]);
            last = String::from_utf8(fields[0].clone()).unwrap();
        }
    });
}

fn all_now(client: &mut TestClient<'_>) -> Model {
    let words = texts(&client.send(&[b"HGETALL", b"a"]));
    words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

#[test]
fn stored_bytes_that_make_no_sense_are_told() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let (small, large) = (Tag::small(Type::Hash), Tag::large(Type::Hash));
    let lay = Large { id: fixture.change(|keys| keys.new_collection(b"a").unwrap()), elements: 1 };
    let mut payload = Vec::new();
    lay.encode(&mut payload);
    payload.push(0);
    let stored: [(Tag, &[u8]); 4] = [(small, b"\x01f"), (small, b"\x05f"), (large, b""), (large, &payload)];
    for (tag, bytes) in stored {
        fixture.change(|keys| keys.set(b"a", tag, None, bytes).unwrap());
        for request in ["HGETALL a", "HGET a g", "HLEN a", "HSET a g 1", "HDEL a g", "HSCAN a 0", "HRANDFIELD a -2"] {
            assert!(client.ask(request).starts_with("-IOERR "), "{request} {bytes:?}");
        }
        let kept = fixture.change(|keys| keys.entry(b"a").unwrap().unwrap().to_vec());
        assert_eq!(kept, bytes, "it is left as it was");
    }
}

#[test]
fn what_takes_long_is_not_done_while_others_wait() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    make_large(&fixture, &mut client, "a", 3000);
    for request in ["HGETALL a", "HKEYS a", "HVALS a", "HSCAN a 0 COUNT 2000", "HRANDFIELD a 2000", "HRANDFIELD a -500"]
    {
        assert_eq!(client.step_at_once(request), Step::WouldBlock, "{request}");
    }
    for request in ["HLEN a", "HGET a field1", "HSET a field1 2", "HSCAN a 0", "HRANDFIELD a", "HRANDFIELD a 5"] {
        assert!(matches!(client.step_at_once(request), Step::Done { .. }), "{request}");
    }
}

#[test]
fn patterns_that_take_long_are_not_matched_while_others_wait() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let (name, pattern) = ([b'a'; 30_000], [&b"*"[..], &[b'a'; 10_000], b"b"].concat());
    for (add, scan) in [("HSET", "HSCAN"), ("SADD", "SSCAN"), ("ZADD", "ZSCAN")] {
        for number in 0..20 {
            let key = add.as_bytes();
            let member = [&name[..], number.to_string().as_bytes()].concat();
            let arguments =
                if add == "ZADD" { [add.as_bytes(), key, b"1", &member] } else { [add.as_bytes(), key, &member, b"1"] };
            client.send(&arguments);
        }
        let scan = scan.as_bytes();
        let long = [scan, add.as_bytes(), b"0", b"MATCH", &pattern, b"COUNT", b"1000"];
        assert_eq!(client.step_of(&long), Step::WouldBlock);
        assert!(matches!(client.step_of(&[scan, add.as_bytes(), b"0", b"MATCH", b"b*"]), Step::Done { .. }));
        // Elsewhere a step ends early, and says where the next one begins.
        let reply = String::from_utf8(client.send(&long)).unwrap();
        assert!(reply.ends_with("*0\r\n") && !reply.contains("$1\r\n0\r\n"), "{reply}");
    }
}

/// The bytes of `docs/internals/formats.md`, section "Keys and collections".
#[test]
fn hashes_are_stored_as_these_bytes() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("HSET small f 1 field value gone x");
    client.ask("HDEL small gone");
    assert_eq!(fixture.stored(b"k\x1C\x36\x3D\x9Csmall"), (1, b"\x01f\x011\x05field\x05value".to_vec()));
    // A length from 128 on takes two bytes.
    client.send(&[b"HSET", b"small", b"f", &[b'v'; 200], b"field", b""]);
    let packed = [&b"\x01f\xC8\x01"[..], &[b'v'; 200], b"\x05field\x00"].concat();
    assert_eq!(fixture.stored(b"k\x1C\x36\x3D\x9Csmall"), (1, packed));

    // The second large one: it has the number 2.
    client.send(&[b"HSET", b"first", b"f", &[b'v'; 5000]]);
    client.send(&[b"HSET", b"large", b"gone", &[b'v'; 5000], b"f", b"1", b"field", b"value"]);
    client.ask("HDEL large gone");
    let collection = b"\x25\x47\0\0\0\0\0\0\0\x02";
    let key = (0x81, [&collection[..], b"\0\0\0\0\0\0\0\x02"].concat());
    assert_eq!(fixture.stored(b"k\x25\x47\xFE\x2Clarge"), key);
    // The upper half of XXH3-64 with seed 0, then the field.
    let element = |sub_key: &[u8]| fixture.stored(&[b"e", &collection[..], sub_key].concat());
    assert_eq!(element(b"\x33\xC1\x55\x90f"), (0, b"1".to_vec()));
    assert_eq!(element(b"\x20\xBE\x52\xB1field"), (0, b"value".to_vec()));
    assert_eq!(fixture.stored(&[b"c", &collection[..]].concat()), (0, b"large".to_vec()));
    assert_eq!(elements_of(&fixture, "large"), 2);
}
