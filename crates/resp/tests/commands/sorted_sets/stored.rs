//! What stands in the store, and when a set changes its form.

use ecotone_keyspace::collections::sorted_set::score;
use ecotone_keyspace::collections::{Large, MAX_SMALL_BYTES, MAX_SMALL_ELEMENTS};
use ecotone_keyspace::{Tag, Type};

use crate::common::Fixture;

fn tag(fixture: &Fixture, key: &str) -> Tag {
    fixture.change(|keys| keys.peek(key.as_bytes()).unwrap().unwrap().0)
}

fn large(fixture: &Fixture, key: &str) -> Large {
    fixture.change(|keys| {
        let entry = keys.entry(key.as_bytes()).unwrap().unwrap();
        assert_eq!(entry.tag, Tag::large(Type::SortedSet));
        Large::decode(&entry).unwrap().0
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

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

#[test]
fn a_queue_is_popped_from_without_stepping_over_what_was_popped() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for index in 0..6000 {
        // Scores alike, and scores that differ.
        client.ask(&format!("ZADD queue {} member{index:05}", index / 100));
    }
    let rest = || {
        fixture.change(|keys| {
            let entry = keys.entry(b"queue").unwrap().unwrap();
            Large::decode(&entry).unwrap().1.to_vec()
        })
    };
    assert!(rest().is_empty(), "nothing was taken yet");
    let popped =
        |index: i32| format!("*2\r\n{}{}", bulk(&format!("member{index:05}")), bulk(&(index / 100).to_string()));
    for index in 0..2900 {
        assert_eq!(client.at_once("ZPOPMIN queue"), popped(index));
        assert_eq!(client.at_once("ZPOPMAX queue"), popped(5999 - index));
    }
    assert_eq!(client.at_once("ZRANGE queue 0 0"), "*1\r\n$11\r\nmember02900\r\n");
    assert_eq!(client.at_once("ZREVRANGEBYSCORE queue +inf -inf LIMIT 0 1"), "*1\r\n$11\r\nmember03099\r\n");
    let end = |place: &[u8]| [&[place.len() as u8], place].concat();
    let (first, behind) = (score::place(28.0, b"member02899\0"), score::place(31.0, b"member03100"));
    assert_eq!(rest(), [end(&first), end(&behind)].concat());
    // What comes back to the ends is found.
    client.ask("ZADD queue -5 first 99 last");
    assert_eq!(client.at_once("ZRANGE queue 0 0"), "*1\r\n$5\r\nfirst\r\n");
    assert_eq!(client.at_once("ZRANGE queue -1 -1"), "*1\r\n$4\r\nlast\r\n");
    assert_eq!(client.ask("ZREMRANGEBYRANK queue 0 100"), client.ask("ZCOUNT queue (29 +inf"));
    assert_eq!(client.ask("ZREMRANGEBYSCORE queue (30 +inf"), client.ask("ZCARD none").replace('0', "1"));
    assert_eq!(client.at_once("ZRANGE queue -1 -1"), "*1\r\n$11\r\nmember03099\r\n");
}

#[test]
fn first_members_are_removed_by_name_without_stepping_over_those_before() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for index in 0..6000 {
        client.ask(&format!("ZADD queue {index} member{index:05}"));
    }
    for index in 0..2900 {
        // As a queue of delayed jobs is used: one is done, the last one is put off.
        let (first, last) = (format!("member{index:05}"), format!("member{:05}", 5999 - index));
        assert_eq!(client.at_once("ZRANGEBYSCORE queue -inf +inf LIMIT 0 1"), format!("*1\r\n{}", bulk(&first)));
        assert_eq!(client.at_once(&format!("ZREM queue {first}")), ":1\r\n");
        assert_eq!(client.at_once("ZREVRANGE queue 0 0"), format!("*1\r\n{}", bulk(&last)));
        assert_eq!(client.at_once(&format!("ZADD queue CH 2950 {last}")), ":1\r\n");
    }
    assert_eq!(client.at_once("ZCARD queue"), ":3100\r\n");
    // What comes back to the ends is found.
    client.ask("ZADD queue -5 first 9999 last");
    assert_eq!(client.at_once("ZRANGE queue 0 0"), "*1\r\n$5\r\nfirst\r\n");
    assert_eq!(client.at_once("ZRANGE queue -1 -1"), "*1\r\n$4\r\nlast\r\n");
}

#[test]
fn one_member_is_put_off_time_and_again() {
    let fixture = Fixture::new();
    for name in ["hot", "other", "third"] {
        let mut client = fixture.client();
        let pairs: Vec<_> = (0..200).map(|number| format!("1000000 rest{number:03}")).collect();
        client.ask(&format!("ZADD {name}:queue {}", pairs.join(" ")));
        for time in 0..6000 {
            assert_eq!(
                client.at_once(&format!("ZADD {name}:queue {time} {name}")),
                format!(":{}\r\n", u8::from(time == 0))
            );
            assert_eq!(client.at_once(&format!("ZRANGE {name}:queue 0 0")), format!("*1\r\n{}", bulk(name)));
        }
    }
}

#[test]
fn a_large_set_has_two_entries_for_each_member() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask(&format!("ZADD z -1.5 neg 2 {}", "x".repeat(MAX_SMALL_BYTES)));
    client.ask("ZREMRANGEBYRANK z -1 -1");
    client.ask("ZADD z 1 a");
    let large = large(&fixture, "z");
    assert_eq!(large.elements, 2);
    let elements: Vec<(String, String)> =
        fixture.elements(large.id).iter().map(|(sub_key, value)| (hex(sub_key), hex(value))).collect();
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
    for number in 0..MAX_SMALL_ELEMENTS {
        client.ask(&format!("ZADD z {number} {number}"));
        assert_eq!(tag(&fixture, "z"), Tag::small(Type::SortedSet));
    }
    assert_eq!(client.ask("ZADD z 0 0"), ":0\r\n");
    assert_eq!(tag(&fixture, "z"), Tag::small(Type::SortedSet));
    client.ask("ZADD z 5.5 more");
    assert_eq!(large(&fixture, "z").elements, MAX_SMALL_ELEMENTS as u64 + 1);
    assert_eq!(client.ask("ZRANGE z 5 7"), "*3\r\n$1\r\n5\r\n$4\r\nmore\r\n$1\r\n6\r\n");
    client.ask("ZREMRANGEBYRANK z 1 -1");
    let left = large(&fixture, "z");
    assert_eq!((left.elements, fixture.elements(left.id).len()), (1, 2));
    // Small again once it was deleted.
    assert_eq!(client.ask("ZREM z 0"), ":1\r\n");
    assert_eq!(client.ask("ZADD z 1 a"), ":1\r\n");
    assert_eq!(tag(&fixture, "z"), Tag::small(Type::SortedSet));
    // By bytes: a length of two bytes, eight of the score, the member.
    let fitting = MAX_SMALL_BYTES - 10 - (1 + 8 + 1);
    client.ask(&format!("ZADD z 1 {}", "x".repeat(fitting)));
    assert_eq!(tag(&fixture, "z"), Tag::small(Type::SortedSet));
    client.ask(&format!("ZADD other 1 a 1 {}", "x".repeat(fitting + 1)));
    assert_eq!(large(&fixture, "other").elements, 2);
}

#[test]
fn an_expiry_stays_when_members_change() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let more = "x".repeat(MAX_SMALL_BYTES);
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
