//! Large sets as keys, and scans of them.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_keyspace::WriteGroup;
use ecotone_keyspace::collections::by_hash::hash_of;
use ecotone_resp::execute::Step;
use ecotone_resp::service::Limits;

use crate::common::redis::texts;
use crate::common::{Fixture, TestClient, words};

const MEMBERS: u32 = 1000;

fn fill(client: &mut TestClient<'_>, key: &str) {
    for hundred in 0..MEMBERS / 100 {
        let pairs: Vec<String> = (0..100).map(|n| format!("{} m{}", hundred * 100 + n, hundred * 100 + n)).collect();
        assert_eq!(client.ask(&format!("ZADD {key} {}", pairs.join(" "))), ":100\r\n");
    }
}

#[test]
fn a_large_set_that_is_gone_leaves_nothing() {
    let all: Vec<String> = (0..MEMBERS).map(|number| format!("m{number}")).collect();
    let removals = [
        "DEL z".to_owned(),
        "GETSET other 1".to_owned(),
        "SET z 1 XX".to_owned(),
        "RENAME other z".to_owned(),
        "PEXPIREAT z 1".to_owned(),
        "ZREMRANGEBYRANK z 0 -1".to_owned(),
        "ZREMRANGEBYSCORE z -inf +inf".to_owned(),
        "ZPOPMAX z 5000".to_owned(),
        format!("ZREM z {}", all.join(" ")),
    ];
    for request in removals {
        let fixture = Fixture::new();
        let mut client = fixture.client();
        client.ask("SET other 1");
        fill(&mut client, "z");
        let id = fixture.large("z").unwrap().id;
        assert_eq!(fixture.elements(id).len(), 2 * MEMBERS as usize);
        let reply = client.ask(&request);
        assert!(!reply.starts_with('-'), "{request}: {reply}");
        let is_gone = !request.starts_with("GETSET");
        let reclaimed = fixture.service.keyspace.reclaim_collections(9, || true).unwrap().collections;
        assert_eq!(reclaimed, u64::from(is_gone), "{request}");
        assert_eq!(fixture.elements(id).len(), if is_gone { 0 } else { 2 * MEMBERS as usize }, "{request}");
        assert_eq!(fixture.found_and_reclaimed(), 0, "{request}");
    }
}

#[test]
fn a_large_set_moves_and_is_copied_whole() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill(&mut client, "z");
    assert_eq!(client.ask("RENAME z moved"), "+OK\r\n");
    assert_eq!(client.ask("COPY moved copied"), ":1\r\n");
    assert_eq!(client.ask("ZADD moved XX CH -1 m500"), ":1\r\n");
    assert_eq!(client.ask("ZREM copied m0"), ":1\r\n");
    assert_eq!(client.ask("ZRANK moved m500"), ":0\r\n");
    assert_eq!(client.ask("ZRANK copied m500"), ":499\r\n");
    assert_eq!(client.ask("ZREVRANK copied m999"), ":0\r\n");
    assert_eq!(client.ask("ZCARD moved"), ":1000\r\n");
    assert_eq!(client.ask("ZCARD copied"), ":999\r\n");
    assert_eq!(client.ask("ZCOUNT copied (10 (20"), ":9\r\n");
    assert_eq!(client.ask("EXPIRE moved 100"), ":1\r\n");
    assert_eq!(client.ask("ZRANGE moved -2 -1"), "*2\r\n$4\r\nm998\r\n$4\r\nm999\r\n");
    assert_eq!(client.ask("ZREVRANGE moved -2 -1"), "*2\r\n$2\r\nm0\r\n$4\r\nm500\r\n");
    assert_eq!(client.ask("ZRANGEBYSCORE moved 500 +inf LIMIT 0 2"), "*2\r\n$4\r\nm501\r\n$4\r\nm502\r\n");
}

#[test]
fn a_command_that_fails_leaves_a_large_set_as_it_was() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill(&mut client, "z");
    let id = fixture.large("z").unwrap().id;
    let longer = "x".repeat(70_000);
    let reply = client.ask(&format!("ZADD z 1 new 2 m7 3 {longer}"));
    assert!(reply.starts_with("-ERR the member has"), "{reply}");
    assert_eq!(client.ask("ZSCORE z m7"), "$1\r\n7\r\n");
    assert_eq!(client.ask("ZSCORE z new"), "$-1\r\n");
    assert_eq!((client.ask("ZCARD z").as_str(), fixture.elements(id).len()), (":1000\r\n", 2 * MEMBERS as usize));
}

#[test]
fn a_range_goes_no_further_than_its_limit() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for thousand in 0..5 {
        let pairs: Vec<String> = (0..1000).map(|n| format!("{n} m{}", thousand * 1000 + n)).collect();
        client.ask(&format!("ZADD z {}", pairs.join(" ")));
    }
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    for request in [
        "ZRANGEBYSCORE z 1 +inf LIMIT 0 100",
        "ZREVRANGEBYSCORE z 900 -inf LIMIT 10 100",
        "ZRANGE z 0 99",
        "ZRANGE z -100 -1",
        "ZREVRANGE z 4900 -1",
        "ZCOUNT z 7 8",
        "ZPOPMAX z 100",
        "ZSCAN z 0 COUNT 100",
        "ZCOUNT z -inf +inf",
        "ZLEXCOUNT z - +",
        "ZRANK z m7",
        "ZRANK z m4990",
        "ZREVRANK z m7",
        "ZREVRANK z m4990",
        "ZRANDMEMBER z 10",
        "ZREMRANGEBYSCORE z 10 12",
    ] {
        let step = client.step_in(&mut group, request);
        assert!(matches!(step, Step::Done { .. }), "{request}: {step:?}");
    }
    // Who never waits gives up after a thousand entries or so.
    for request in ["ZRANGE z 0 -1", "ZRANK z m500", "ZREMRANGEBYRANK z 0 4000", "ZRANGE z 2000 2001"] {
        assert_eq!(client.step_in(&mut group, request), Step::WouldBlock, "{request}");
    }
}

#[test]
fn ranks_are_counted_from_either_end() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    // Five of each score.
    for part in 0..5 {
        let pairs: Vec<String> = (0..1000).map(|n| format!("{n} m{n}-{part}")).collect();
        client.ask(&format!("ZADD z {}", pairs.join(" ")));
    }
    client.ask("ZREMRANGEBYRANK z 0 9");
    client.ask("ZPOPMAX z 3");
    let all = texts(client.ask("ZRANGE z 0 -1").as_bytes());
    let last = all.len() - 1;
    let near = [255, 256, 257, 511, 512, 767, 768, 769, 2493];
    let ranks = (0..=last).step_by(97).chain(near).chain(near.map(|rank| last - rank)).chain([1, last - 1, last]);
    for rank in ranks {
        let name = String::from_utf8_lossy(&all[rank]);
        assert_eq!(client.ask(&format!("ZRANK z {name}")), format!(":{rank}\r\n"), "{name}");
        assert_eq!(client.ask(&format!("ZREVRANK z {name}")), format!(":{}\r\n", last - rank), "{name}");
    }
    assert_eq!(client.ask("ZCOUNT z -inf +inf"), format!(":{}\r\n", all.len()));
    assert_eq!(client.ask("ZCOUNT z -inf (inf"), format!(":{}\r\n", all.len()));
    assert_eq!(client.ask("ZLEXCOUNT z - +"), format!(":{}\r\n", all.len()));
}

/// Goes through `z`, with `between` after each step but the last. How often each member was
/// returned.
fn scan(client: &mut TestClient<'_>, options: &str, between: impl FnMut(&mut TestClient<'_>)) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for member in client.scan("ZSCAN z", options, between).into_iter().step_by(2) {
        *found.entry(String::from_utf8(member).unwrap()).or_default() += 1;
    }
    found
}

#[test]
fn a_scan_returns_what_is_there_all_the_time_exactly_once() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill(&mut client, "z");
    for options in ["", "COUNT 1", "COUNT 77", "COUNT 100000"] {
        let mut step = 0;
        let found = scan(&mut client, options, |client| {
            // Members come, go and change their scores.
            step += 1;
            client.ask(&format!("ZADD z {step} passing{step} {} m{}", step * 3, step % MEMBERS));
            client.ask(&format!("ZREM z passing{}", step - 1));
        });
        let stayed = found.iter().filter(|(name, _)| name.starts_with('m'));
        assert!(stayed.clone().all(|(_, times)| *times == 1), "{options}");
        assert_eq!(stayed.count(), MEMBERS as usize, "{options}");
    }
    let found = scan(&mut client, "MATCH m99? COUNT 10", |_| ());
    assert_eq!(found.len(), 10);
    assert_eq!(client.ask("ZSCAN z 18446744073709551615"), "*2\r\n$1\r\n0\r\n*0\r\n");
    assert_eq!(client.ask("ZSCAN z 4294967296"), "*2\r\n$1\r\n0\r\n*0\r\n");
}

#[test]
fn members_are_drawn_from_a_large_set() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill(&mut client, "z");
    let mut drawn = |request: &str| texts(&client.send(&words(request)));
    let all: BTreeSet<Vec<u8>> = (0..MEMBERS).map(|number| format!("m{number}").into_bytes()).collect();
    for count in [1, 10, 300, 600, 999, 1000, 2000] {
        let members = drawn(&format!("ZRANDMEMBER z {count}"));
        let different: BTreeSet<_> = members.iter().cloned().collect();
        assert_eq!((members.len(), different.len()), (count.min(1000), count.min(1000)));
        assert!(different.is_subset(&all));
    }
    let members = drawn("ZRANDMEMBER z -5000");
    let different: BTreeSet<_> = members.iter().cloned().collect();
    assert_eq!(members.len(), 5000);
    // With the same chance for all 993 of them.
    assert!(different.is_subset(&all) && different.len() > 950, "{}", different.len());
    for pair in drawn("ZRANDMEMBER z 50 WITHSCORES").chunks(2) {
        assert_eq!(pair[0], [b"m", &pair[1][..]].concat());
    }
}

#[test]
fn members_of_one_hash_are_drawn_like_others() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill(&mut client, "z");
    assert_eq!(hash_of(b"m22816"), hash_of(b"m54788"));
    client.ask("ZADD z -1 m22816 -2 m54788");
    let count = |reply: &str, member: &str| reply.matches(&format!("\r\n{member}\r\n")).count();
    let reply = client.ask("ZRANDMEMBER z -100000");
    let mean = 100_000 / (MEMBERS as usize + 2);
    for member in ["m22816", "m54788"] {
        assert!((mean / 4..mean * 4).contains(&count(&reply, member)), "{member}: {}", count(&reply, member));
    }
    // Alone in what was a large set they have the same chance.
    assert_eq!(client.ask("ZREMRANGEBYSCORE z 0 +inf"), format!(":{MEMBERS}\r\n"));
    let reply = client.ask("ZRANDMEMBER z -1000");
    assert_eq!(count(&reply, "m22816") + count(&reply, "m54788"), 1000);
    assert!((400..600).contains(&count(&reply, "m22816")), "{}", count(&reply, "m22816"));
}

#[test]
fn members_are_drawn_again_as_often_as_the_reply_may_be_long() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("ZADD small 1 a 2 b");
    fill(&mut client, "z");
    // More than 2^20, as with sets and hashes.
    assert_eq!(texts(&client.send(&words("ZRANDMEMBER small -1048577"))).len(), 1_048_577);
    fixture.service.set_limits(Limits { output_bytes: 10_000, ..Limits::default() });
    let refusal =
        "-ERR the reply would take more than 10000 bytes (clients.max_output_bytes); ask for fewer members\r\n";
    for key in ["small", "z"] {
        assert_eq!(client.ask(&format!("ZRANDMEMBER {key} -9223372036854775807")), refusal);
        assert_eq!(client.ask(&format!("ZRANDMEMBER {key} -4611686018427387903 WITHSCORES")), refusal);
        assert_eq!(texts(&client.send(&words(&format!("ZRANDMEMBER {key} -100")))).len(), 100);
    }
}
