//! Ranks in the middle of large sets: what they cost, and that they are right whatever happens to
//! the sets.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ecotone_engine::{Direction, Durability, Error as StoreError, SpaceLimits, StoreSettings};
use ecotone_keyspace::collections::sorted_set::{MAX_MEMBER_BYTES, Member, SortedSet, score};
use ecotone_keyspace::error::Outcome;
use ecotone_keyspace::{Blocking, CommitError, Keys, WriteGroup};
use ecotone_resp::command::{flag, table};
use ecotone_resp::protocol::number::format_double;
use ecotone_resp::service::Limits;

use crate::common::served::Served;
use crate::common::wire::Wire;
use crate::common::{Fixture, TestClient, noise, words};

/// What is asked of the set under `z`, and how many entries of the store were visited for that.
fn visited<T>(fixture: &Fixture, ask: impl FnOnce(&SortedSet<'_>, &mut Keys<'_>) -> Outcome<T>) -> (T, u64) {
    fixture.change(|keys| {
        let set = SortedSet::find(keys, b"z").unwrap().unwrap();
        let before = keys.read_stats().visited;
        let told = ask(&set, keys).unwrap();
        (told, keys.read_stats().visited - before)
    })
}

fn rank(fixture: &Fixture, score: f64, name: &str) -> (u64, u64) {
    visited(fixture, |set, keys| set.rank(keys, &Member { score, name: name.into() }))
}

fn at_rank(fixture: &Fixture, rank: u64, direction: Direction) -> (String, u64) {
    visited(fixture, |set, keys| {
        let mut found = String::new();
        set.visit_ranks(keys, rank, 1, direction, |_, name| {
            found = String::from_utf8(name.to_vec()).unwrap();
            ControlFlow::Continue(())
        })?;
        Ok(found)
    })
}

fn fill(client: &mut TestClient<'_>, members: std::ops::Range<u64>, pair: impl Fn(u64) -> String) {
    let members: Vec<String> = members.map(pair).collect();
    for members in members.chunks(1000) {
        let reply = client.ask(&format!("ZADD z {}", members.join(" ")));
        assert_eq!(reply, format!(":{}\r\n", members.len()));
    }
}

const MANY: u64 = 100_000;

/// Entries that are visited at most for a rank that is known about: the members of two blocks.
const FEW: u64 = 1200;

#[test]
fn ranks_in_the_middle_take_a_look_at_few_members() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill(&mut client, 0..MANY, |number| format!("{} m{number}", 2 * number));
    let (middle, name) = (MANY / 2, format!("m{}", MANY / 2));
    let middle_score = 2.0 * middle as f64;
    // Near the ends nothing is known, or kept.
    assert_eq!(rank(&fixture, 400.0, "m200").0, 200);
    assert_eq!(at_rank(&fixture, 200, Direction::Reverse).0, format!("m{}", MANY - 201));
    assert_eq!(fixture.service.keyspace.ranks().collections(), 0);
    // Who asks first counts, and not more than twice or so from either end.
    let (found, visits) = rank(&fixture, middle_score, &name);
    assert!(found == middle && (middle..3 * MANY).contains(&visits), "{found} {visits}");
    assert_eq!(fixture.service.keyspace.ranks().collections(), 1);
    let mut visits = 0;
    for number in (0..MANY).step_by(97) {
        visits += rank(&fixture, 2.0 * number as f64, &format!("m{number}")).1;
    }
    assert!(visits < MANY / 97 * FEW / 2 + MANY, "{visits}");
    for number in (0..MANY).step_by(997) {
        let (found, visits) = rank(&fixture, 2.0 * number as f64, &format!("m{number}"));
        assert!(found == number && visits <= FEW, "{number}: {found} {visits}");
        for direction in [Direction::Forward, Direction::Reverse] {
            let (found, visits) = at_rank(&fixture, number, direction);
            let expected = if direction == Direction::Forward { number } else { MANY - 1 - number };
            assert!(found == format!("m{expected}") && visits <= FEW, "{number}: {found} {visits}");
        }
        let range = score::before(number as f64)..score::behind(2.0 * number as f64);
        let (found, visits) = visited(&fixture, |set, keys| set.count(keys, &range));
        assert!(found == number + 1 - number.div_ceil(2) && visits <= 3 * FEW, "{number}: {found} {visits}");
        let ranges = [score::before(6000.0)..score::all().end, score::all().start..score::behind(2e5 - 6002.0)];
        for (range, direction) in ranges.iter().zip([Direction::Forward, Direction::Reverse]) {
            let (found, visits) = visited(&fixture, |set, keys| {
                let mut found = None;
                set.visit_behind(keys, range, direction, number, |score, _| {
                    found = Some(score as u64 / 2);
                    ControlFlow::Break(())
                })?;
                Ok(found)
            });
            let expected = match direction {
                Direction::Forward => Some(3000 + number).filter(|found| *found < MANY),
                Direction::Reverse => (MANY - 3001).checked_sub(number),
            };
            assert!(found == expected && visits <= 3 * FEW, "{number}: {found:?} {visits}");
        }
    }
    // What comes between, and behind all, is counted as it comes.
    fill(&mut client, 0..MANY / 20, |number| format!("{} n{number}", 40 * number + 1));
    fill(&mut client, 0..MANY / 10, |number| format!("{} o{number}", 2 * MANY + number));
    for number in (0..MANY).step_by(997) {
        let (found, visits) = rank(&fixture, 2.0 * number as f64, &format!("m{number}"));
        let between = number.div_ceil(20);
        assert!(found == number + between && visits <= FEW, "{number}: {found} {visits}");
        let (found, visits) = at_rank(&fixture, MANY / 20 + MANY + number / 10, Direction::Forward);
        assert!(found == format!("o{}", number / 10) && visits <= FEW, "{number}: {found} {visits}");
    }
    // An event loop, which steps over few.
    assert_eq!(client.at_once("ZRANK z m50000"), ":52500\r\n");
    assert_eq!(client.at_once("ZRANGE z 52500 52500"), "*1\r\n$6\r\nm50000\r\n");
    assert_eq!(client.at_once("ZCOUNT z 100000 (120000"), ":10500\r\n");
    assert_eq!(client.at_once("ZRANGEBYSCORE z 100000 120000 LIMIT 10499 1"), "*1\r\n$6\r\nm59999\r\n");
    // Half of them go.
    for number in (0..MANY).step_by(1000) {
        let (from, to) = (2 * number, 2 * number + 999);
        client.ask(&format!("ZREMRANGEBYSCORE z {from} {to}"));
    }
    let left = (MANY + MANY / 20) / 2;
    assert_eq!(client.at_once("ZCARD z"), format!(":{}\r\n", left + MANY / 10));
    for number in (500..MANY).step_by(997).filter(|number| number % 1000 >= 500) {
        let (found, visits) = rank(&fixture, 2.0 * number as f64, &format!("m{number}"));
        let before = number / 1000 * 525 + number % 1000 - 500 + (number % 1000 - 500).div_ceil(20);
        assert!(found == before && visits <= FEW, "{number}: {found} {visits}");
    }
    client.ask("DEL z");
    assert_eq!(fixture.service.keyspace.ranks().collections(), 0);
    assert_eq!(fixture.service.keyspace.ranks().bytes(), 0);
}

#[test]
fn who_asks_never_pays_more_than_counting_costs() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill(&mut client, 0..20_000, |number| format!("{number} m{number}"));
    // A short range, in the midst of what nobody knows.
    let range = score::before(10_000.0)..score::behind(10_999.0);
    for _ in 0..3 {
        let (found, visits) = visited(&fixture, |set, keys| set.count(keys, &range));
        assert!(found == 1000 && visits <= 8000, "{visits}");
    }
    let mut visits = 0;
    let last = loop {
        let (_, more) = visited(&fixture, |set, keys| set.count(keys, &range));
        visits += more;
        if more <= 2 * FEW || visits > 100_000 {
            break more;
        }
    };
    assert!(last <= 2 * FEW && visits < 60_000, "{last} {visits}");
}

/// Members and scores of each set.
type Model = HashMap<&'static str, BTreeMap<String, f64>>;

const KEYS: [&str; 3] = ["a", "b", "{a}c"];

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn key(&mut self) -> &'static str {
        KEYS[self.below(KEYS.len() as u64) as usize]
    }

    /// Some that many members have, and some of their own.
    fn score(&mut self, is_one: bool) -> f64 {
        match self.below(12) {
            _ if is_one => 7.0,
            0 => f64::INFINITY,
            1 => f64::NEG_INFINITY,
            2..5 => self.below(5) as f64 - 2.0,
            _ => self.below(100_000) as f64 / 4.0 - 12_000.0,
        }
    }

    fn name(&mut self) -> String {
        let number = self.below(4000);
        format!("{number:04}{}", "-".repeat(number as usize % 50))
    }
}

fn sorted(set: Option<&BTreeMap<String, f64>>) -> Vec<(String, f64)> {
    let mut sorted: Vec<_> = set.into_iter().flatten().map(|(name, score)| (name.clone(), *score)).collect();
    // The map has the names in order already, and the sort keeps it.
    sorted.sort_by(|(_, one), (_, other)| one.partial_cmp(other).unwrap());
    sorted
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn names<'m>(members: impl ExactSizeIterator<Item = &'m (String, f64)>) -> String {
    format!("*{}\r\n{}", members.len(), members.map(|(name, _)| bulk(name)).collect::<String>())
}

fn rank_reply(found: Option<usize>) -> String {
    found.map_or("$-1\r\n".to_owned(), |rank| format!(":{rank}\r\n"))
}

/// A question about the set under `key`, and what the model says to it.
fn question(random: &mut Random, model: &Model, key: &'static str, is_one: bool) -> (String, String) {
    let set = sorted(model.get(key));
    let (name, least, most) = (random.name(), random.score(is_one), random.score(is_one));
    let low = random.below(set.len() as u64 + 2) as usize;
    let high = low + random.below(20) as usize;
    let between: Vec<_> = set.iter().filter(|(_, score)| *score >= least && *score < most).cloned().collect();
    let part = |set: &[(String, f64)], from: usize, to: usize| set[from.min(set.len())..to.min(set.len())].to_vec();
    let turned = |set: &[(String, f64)]| set.iter().rev().cloned().collect::<Vec<_>>();
    let (offset, limit) = (random.below(between.len() as u64 + 3) as usize, random.below(9) as usize);
    match random.below(9) {
        0 => (format!("ZRANK {key} {name}"), rank_reply(set.iter().position(|(other, _)| *other == name))),
        1 => {
            let found = set.iter().rev().position(|(other, _)| *other == name);
            (format!("ZREVRANK {key} {name}"), rank_reply(found))
        }
        2 => (format!("ZRANGE {key} {low} {high}"), names(part(&set, low, high + 1).iter())),
        3 => (format!("ZREVRANGE {key} {low} {high}"), names(part(&turned(&set), low, high + 1).iter())),
        4 => (format!("ZCOUNT {key} {least} ({most}"), format!(":{}\r\n", between.len())),
        5 => {
            let found = part(&between, offset, offset + limit);
            (format!("ZRANGEBYSCORE {key} {least} ({most} LIMIT {offset} {limit}"), names(found.iter()))
        }
        6 => {
            let found = part(&turned(&between), offset, offset + limit);
            (format!("ZREVRANGEBYSCORE {key} ({most} {least} LIMIT {offset} {limit}"), names(found.iter()))
        }
        7 if is_one => {
            let other = random.name();
            let within: Vec<_> = set.iter().filter(|(found, _)| *found >= name && *found < other).cloned().collect();
            let offset = random.below(within.len() as u64 + 3) as usize;
            if random.one_in(2) {
                return (format!("ZLEXCOUNT {key} [{name} ({other}"), format!(":{}\r\n", within.len()));
            }
            let found = part(&turned(&within), offset, offset + limit);
            (format!("ZREVRANGEBYLEX {key} ({other} [{name} LIMIT {offset} {limit}"), names(found.iter()))
        }
        _ => (format!("ZCARD {key}"), format!(":{}\r\n", set.len())),
    }
}

/// A change, and what the model says to it.
fn change(random: &mut Random, model: &mut Model, is_one: bool) -> (String, String) {
    let (key, name, score) = (random.key(), random.name(), random.score(is_one));
    let all = sorted(model.get(key));
    let set = model.entry(key).or_default();
    let low = random.below(all.len() as u64 + 1) as usize;
    let made = match random.below(24) {
        0..9 => {
            let many = if random.one_in(3) { 60 } else { 2 };
            let (mut request, mut added) = (format!("ZADD {key}"), 0);
            for _ in 0..many {
                let (name, score) = (random.name(), random.score(is_one));
                request += &format!(" {score} {name}");
                added += usize::from(set.insert(name, score).is_none());
            }
            (request, format!(":{added}\r\n"))
        }
        9 if !is_one => {
            let sum = set.get(&name).unwrap_or(&0.0) + 3.5;
            set.insert(name.clone(), sum);
            (format!("ZINCRBY {key} 3.5 {name}"), bulk(&format_double(sum).to_string()))
        }
        10..14 => (format!("ZREM {key} {name}"), format!(":{}\r\n", usize::from(set.remove(&name).is_some()))),
        14 => {
            let gone = &all[low..(low + 30).min(all.len())];
            gone.iter().for_each(|(name, _)| _ = set.remove(name));
            (format!("ZREMRANGEBYRANK {key} {low} {}", low + 29), format!(":{}\r\n", gone.len()))
        }
        15 => {
            let gone: Vec<_> = all.iter().filter(|(_, other)| *other >= score && *other <= score + 50.0).collect();
            let gone = if is_one { Vec::new() } else { gone };
            gone.iter().for_each(|(name, _)| _ = set.remove(name));
            let least = if is_one { 8.0 } else { score };
            (format!("ZREMRANGEBYSCORE {key} {least} {}", least + 50.0), format!(":{}\r\n", gone.len()))
        }
        16 => {
            let popped = &all[..3.min(all.len())];
            popped.iter().for_each(|(name, _)| _ = set.remove(name));
            let told: String =
                popped.iter().map(|(name, score)| bulk(name) + &bulk(&format_double(*score).to_string())).collect();
            (format!("ZPOPMIN {key} 3"), format!("*{}\r\n{told}", 2 * popped.len()))
        }
        17 => {
            // What it has done is undone.
            let longer = "x".repeat(MAX_MEMBER_BYTES + 1);
            let text = format!("-ERR the member has {} bytes, the most is {MAX_MEMBER_BYTES}\r\n", longer.len());
            (format!("ZADD {key} {score} {name} 1 new {} {name} 2 {longer}", score + 1.0), text)
        }
        18 if random.one_in(4) && !all.is_empty() => {
            let to = random.key();
            if to != key {
                let set = model.remove(key).unwrap();
                model.insert(to, set);
            }
            (format!("RENAME {key} {to}"), "+OK\r\n".into())
        }
        19 if random.one_in(8) => {
            let reply = format!(":{}\r\n", u8::from(!all.is_empty()));
            model.remove(key);
            (format!("DEL {key}"), reply)
        }
        20 if random.one_in(8) && !all.is_empty() => {
            let to = random.key();
            if to == key {
                return question(random, model, key, is_one);
            }
            let set = set.clone();
            model.insert(to, set);
            (format!("COPY {key} {to} REPLACE"), ":1\r\n".into())
        }
        21 if random.one_in(60) => {
            model.clear();
            ("FLUSHALL".into(), "+OK\r\n".into())
        }
        _ => return question(random, model, key, is_one),
    };
    model.retain(|_, set| !set.is_empty());
    made
}

/// Asks for what was decided, alone or as a transaction, and compares.
fn step(random: &mut Random, model: &mut Model, is_one: bool, mut ask: impl FnMut(&str) -> String) {
    let many = if random.one_in(5) { 1 + random.below(6) } else { 1 };
    let mut requests = Vec::new();
    for _ in 0..many {
        let key = random.key();
        requests.push(match random.one_in(2) {
            true => question(random, model, key, is_one),
            false => change(random, model, is_one),
        });
    }
    if many == 1 {
        let (request, reply) = &requests[0];
        assert_eq!(ask(request), *reply, "{request}");
        return;
    }
    assert_eq!(ask("MULTI"), "+OK\r\n");
    for (request, _) in &requests {
        assert_eq!(ask(request), "+QUEUED\r\n", "{request}");
    }
    let replies: String = requests.iter().map(|(_, reply)| reply.as_str()).collect();
    assert_eq!(ask("EXEC"), format!("*{}\r\n{replies}", requests.len()), "{requests:?}");
}

/// All members by their ranks and all ranks by their members.
fn compare_all(fixture: &Fixture, model: &Model, seed: u64) {
    let mut client = fixture.client();
    for key in KEYS {
        let set = sorted(model.get(key));
        assert_eq!(client.ask(&format!("ZRANGE {key} 0 -1")), names(set.iter()), "seed {seed}: {key}");
        for (rank, (name, _)) in set.iter().enumerate().step_by(31) {
            assert_eq!(client.ask(&format!("ZRANK {key} {name}")), format!(":{rank}\r\n"), "seed {seed}: {key} {name}");
            let found = client.ask(&format!("ZRANGE {key} {rank} {rank}"));
            assert_eq!(found, names(set[rank..=rank].iter()), "seed {seed}: {key} {rank}");
        }
    }
}

#[test]
fn ranks_are_right_whatever_happens_to_the_sets() {
    // As much as it takes, so little that sets push each other out and are known in part, and
    // nothing.
    for (seed, max_bytes) in [16 << 20, 6000, 2500, 0, 16 << 20, 3500].into_iter().enumerate() {
        let (seed, is_one) = (seed as u64, seed >= 4);
        let options =
            || StoreSettings { memtable_bytes: 256 << 10, durability: Durability::None, ..StoreSettings::default() };
        let mut fixture = Fixture::with(options());
        let (mut random, mut model) = (Random(seed), Model::default());
        for round in 0..4 {
            fixture.service.keyspace.ranks().limit_to(max_bytes);
            let mut client = fixture.client();
            for key in KEYS {
                let mut request = format!("ZADD {key}");
                let set = model.entry(key).or_default();
                for _ in 0..700 {
                    let (name, score) = (random.name(), random.score(is_one));
                    request += &format!(" {score} {name}");
                    set.insert(name, score);
                }
                client.ask(&request);
            }
            // An event loop, which hands on what takes long.
            let mut group = WriteGroup::new(fixture.service.keyspace.clone());
            for _ in 0..120 {
                step(&mut random, &mut model, is_one, |request| client.ask_in(&mut group, request));
                if random.one_in(6) {
                    group.commit(Blocking::Allowed).unwrap();
                }
            }
            group.commit(Blocking::Allowed).unwrap();
            drop(group);
            // What is not committed has never been, whatever was asked meanwhile.
            for _ in 0..3 {
                let before = model.clone();
                let mut lost = WriteGroup::new(fixture.service.keyspace.clone());
                for _ in 0..12 {
                    step(&mut random, &mut model, is_one, |request| {
                        String::from_utf8(client.try_in(&mut lost, &words(request)).unwrap()).unwrap()
                    });
                }
                drop(lost);
                model = before;
                for _ in 0..12 {
                    step(&mut random, &mut model, is_one, |request| client.ask(request));
                }
            }
            assert!(fixture.service.keyspace.ranks().bytes() <= max_bytes);
            if round % 2 == 1 {
                compare_all(&fixture, &model, seed);
                drop(client);
                let Fixture { service, directory, .. } = fixture;
                drop(service);
                fixture = Fixture::at(directory, options());
                assert_eq!(fixture.service.keyspace.ranks().collections(), 0);
                compare_all(&fixture, &model, seed);
            }
        }
    }
}

/// Whether a store that had become full did not take what a group had written, and counted.
fn a_full_store_takes_nothing() -> bool {
    let space = SpaceLimits { max_bytes: Some(48 << 20), reserve_bytes: Some(8 << 20) };
    let fixture = Fixture::with(StoreSettings { space, memtable_bytes: 2 << 20, ..StoreSettings::default() });
    let mut client = fixture.client();
    fill(&mut client, 0..3000, |number| format!("{number} m{number}"));
    assert_eq!(client.ask("ZRANK z m1500"), ":1500\r\n");
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    for number in 0..100 {
        let reply = client.try_in(&mut group, &words(&format!("ZADD z {number}.5 n{number}"))).unwrap();
        assert_eq!(reply, b":1\r\n");
    }
    assert_eq!(client.try_in(&mut group, &words("ZRANK z m1500")).unwrap(), b":1600\r\n");
    let (store, value) = (fixture.service.keyspace.only_store().unwrap(), noise(256 * 1024));
    assert!((0..10_000_u32).any(|number| store.put(&number.to_be_bytes(), &value).is_err()));
    match group.commit(Blocking::Allowed) {
        Err(CommitError { error: StoreError::OutOfSpace { .. }, .. }) => {
            assert_eq!(fixture.service.keyspace.ranks().collections(), 0);
            assert_eq!(client.ask("ZRANK z m1500"), ":1500\r\n");
            assert_eq!(client.ask("ZRANGE z 1500 1500"), names([("m1500".to_owned(), 0.0)].iter()));
            true
        }
        outcome => {
            outcome.unwrap();
            assert_eq!(client.ask("ZRANK z m1500"), ":1600\r\n");
            false
        }
    }
}

#[test]
fn what_a_full_store_did_not_take_is_not_counted() {
    // A flush may give room back at any moment: then it is taken.
    assert!((0..20).any(|_| a_full_store_takes_nothing()));
}

/// What is noted while others move members, whose number stays the same, must be right once they
/// rest.
#[test]
fn what_counts_no_members_is_read_from_a_snapshot_by_transactions_too() {
    let uncounting = ["zscore", "zmscore", "zcard", "zscan", "zrandmember"];
    for command in table::all().filter(|command| command.group == "sorted-set" && command.has(flag::READONLY)) {
        assert_eq!(command.has(flag::COUNTS_RANKS), !uncounting.contains(&command.name), "{}", command.name);
    }
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill(&mut client, 0..10_000, |number| format!("{number} m{number}"));
    // Where one of them needed the latch after all it would be carried out for ever.
    let questions = [
        "ZSCORE z m5000",
        "ZMSCORE z m1 m5000 none",
        "ZCARD z",
        "ZSCAN z 0",
        "ZRANDMEMBER z 9000",
        "ZRANDMEMBER z -5000",
    ];
    for question in questions {
        client.ask(question);
    }
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    questions.iter().for_each(|question| assert_eq!(client.ask(question), "+QUEUED\r\n"));
    let replies = client.ask("EXEC");
    assert!(
        replies.starts_with("*6\r\n$4\r\n5000\r\n*3\r\n$1\r\n1\r\n$4\r\n5000\r\n$-1\r\n:10000\r\n"),
        "{}",
        &replies[..60]
    );
    assert_eq!(fixture.service.keyspace.ranks().collections(), 0);
}

#[test]
fn ranks_that_were_asked_for_while_members_moved_are_right() {
    const MEMBERS: u64 = 30_000;
    for round in 0..4_u64 {
        let served = Served::with(Limits::default(), StoreSettings::default(), 2);
        let address = served.address();
        let mut wire = Wire::to(address);
        for begin in (0..MEMBERS).step_by(1000) {
            let pairs: Vec<String> = (begin..begin + 1000).map(|number| format!("{number} m{number}")).collect();
            assert_eq!(wire.ask(&format!("ZADD z {}", pairs.join(" "))), ":1000\r\n");
        }
        let (is_over, moves) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for mover in 0..2 {
                let (is_over, moves) = (&is_over, &moves);
                scope.spawn(move || {
                    let mut wire = Wire::to(address);
                    let mut random = Random(round * 2 + mover);
                    while !is_over.load(Ordering::Relaxed) {
                        let (score, member) = (random.below(MEMBERS), random.below(MEMBERS));
                        assert_eq!(wire.ask(&format!("ZADD z {score}.5 m{member}")), ":0\r\n");
                        moves.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let mut random = Random(100 + round);
            while moves.load(Ordering::Relaxed) < 100 {
                std::thread::yield_now();
            }
            for ask in 0..20 {
                let (rank, member) = (random.below(MEMBERS), random.below(MEMBERS));
                let reply = match (round + ask) % 4 {
                    0 => wire.ask(&format!("ZRANK z m{member}")),
                    1 => wire.ask(&format!("ZCOUNT z {} {}", rank / 2, MEMBERS - rank / 3)),
                    2 => wire.ask(&format!("ZRANGE z {rank} {rank}")),
                    _ => {
                        wire.ask("MULTI");
                        wire.ask(&format!("ZRANK z m{member}"));
                        wire.ask("EXEC")
                    }
                };
                assert!(reply.starts_with([':', '*']), "{reply}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        wire.ask("ZREMRANGEBYRANK z 10000 10000");
        let all = wire.ask("ZRANGE z 0 -1");
        let members: Vec<&str> = all.split("\r\n").filter(|line| line.starts_with('m')).collect();
        assert_eq!(members.len() as u64, MEMBERS - 1);
        for (rank, member) in members.iter().enumerate().step_by(37) {
            assert_eq!(wire.ask(&format!("ZRANK z {member}")), format!(":{rank}\r\n"), "round {round}");
            let range = wire.ask(&format!("ZRANGE z {rank} {rank}"));
            assert_eq!(range, format!("*1\r\n${}\r\n{member}\r\n", member.len()), "round {round}");
        }
        served.server.stop();
    }
}
