//! One keyspace over several stores: the same as over one, but for commands with keys in two.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::random::Random;
use common::redis::{elements, texts};
use common::{Fixture, Shared, TestClient, noise, sharded_keyspace, words};
use ecotone_engine::{Durability, Error as StoreError, SpaceLimits, StoreSettings};
use ecotone_keyspace::{
    Blocking, Keyspace, MAX_LOCAL_SHARDS, OpenShard, ShardError, ShardId, Slot, SlotRanges, Tag, WatchFlag, WriteGroup,
    all_slots,
};

const MIB: u64 = 1 << 20;

/// Shares nothing with others of these.
const CROSSSLOT: &str = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";

fn settings(durability: Durability) -> StoreSettings {
    StoreSettings { durability, ..StoreSettings::default() }.with_separation(128)
}

/// The slots of `count` shards, dealt in runs of `run` by turns.
fn dealt(count: usize, run: u16) -> Vec<SlotRanges> {
    let mut shards = vec![Vec::new(); count];
    for (turn, first) in (0..16_384_u16).step_by(run.into()).enumerate() {
        shards[turn % count].push((first, first.saturating_add(run - 1).min(16_383)));
    }
    shards
}

fn sharded(count: usize, run: u16) -> Fixture {
    Fixture::sharded(tempfile::tempdir().unwrap(), &dealt(count, run), &settings(Durability::None))
}

/// A key by which each of `count` shards, dealt in such runs, has one.
fn key_in(shard: usize, count: usize, run: u16, prefix: &str) -> String {
    let is_there = |key: &String| usize::from(Slot::of(key.as_bytes()).number() / run) % count == shard;
    (0..).map(|number| format!("{prefix}{number}")).find(is_there).unwrap()
}

/// A request whose reply is the same each time. Keys of one kind have one type, most of the time.
fn request(random: &mut Random) -> String {
    let number = random.below(1000);
    let long = "v".repeat(random.below(400));
    let key = |kind: &str, random: &mut Random| format!("{kind}{}", random.below(25));
    let kind = ["s", "h", "z", "l", "t"][random.below(5)];
    let some = key(kind, random);
    let [s, h, z, l, t] = ["s", "h", "z", "l", "t"].map(|kind| key(kind, random));
    match random.below(34) {
        0 => format!("SET {s} {number}"),
        1 => format!("SET {s} x{long}"),
        2 => format!("APPEND {s} {number}"),
        3 => format!("GET {s}"),
        4 => format!("STRLEN {some}"),
        5 => format!("DEL {some}"),
        6 => format!("EXISTS {some}"),
        7 => format!("TYPE {some}"),
        8 => format!("HSET {h} f{} {number} g{number} x{long}", number % 40),
        9 => format!("HDEL {h} f{}", number % 40),
        10 => format!("HGETALL {h}"),
        11 => format!("HLEN {some}"),
        12 => format!("HINCRBY {h} f{} {number}", number % 40),
        13 => format!("ZADD {z} {number} m{} {} n{number}", number % 50, number * 2),
        14 => format!("ZRANGE {z} 0 -1 WITHSCORES"),
        15 => format!("ZRANK {z} m{}", number % 50),
        16 => format!("ZREMRANGEBYSCORE {z} {number} {}", number + 100),
        17 => format!("RPUSH {l} {number} x{long}"),
        18 => format!("LPOP {l}"),
        19 => format!("LRANGE {l} -5 -1"),
        20 => format!("SADD {t} {number} x{number} y{long}"),
        21 => format!("SCARD {t}"),
        22 => format!("SREM {t} {number}"),
        23 => format!("PEXPIREAT {some} 9{number:03}000000000"),
        24 => format!("PEXPIRETIME {some}"),
        25 => format!("PERSIST {some}"),
        26 => format!("RENAME {{{some}}}a {{{some}}}b"),
        27 => format!("COPY {{{some}}}b {{{some}}}a REPLACE"),
        28 => format!("SET {{{some}}}a {number}"),
        29 => "DBSIZE".into(),
        30 => format!("SCAN {} COUNT 7", random.next() >> 34),
        31 => format!("KEYS *{}*", number % 10),
        32 => format!("CLUSTER COUNTKEYSINSLOT {}", Slot::of(some.as_bytes()).number()),
        _ if number < 20 => "FLUSHALL".into(),
        _ => format!("CLUSTER GETKEYSINSLOT {} 5", Slot::of(some.as_bytes()).number()),
    }
}

#[test]
fn four_stores_answer_as_one_does() {
    for (seed, run) in [(1, 4096), (2, 100), (3, 1)] {
        let (one, four) = (Fixture::new(), sharded(4, run));
        let (mut alone, mut together) = (one.client(), four.client());
        let mut random = Random::new(seed);
        for round in 0..400 {
            // As an event loop does: several requests in a group, which has writes for any store.
            let mut groups = [&one, &four].map(|fixture| WriteGroup::new(fixture.service.keyspace.clone()));
            for _ in 0..1 + random.below(12) {
                let request = request(&mut random);
                let [left, right] = &mut groups;
                let replies = [alone.ask_in(left, &request), together.ask_in(right, &request)];
                assert_eq!(replies[0], replies[1], "seed {seed}, round {round}: {request}");
            }
            for group in &mut groups {
                group.commit(Blocking::Allowed).unwrap();
            }
            if round % 50 == 0 {
                for fixture in [&one, &four] {
                    fixture.found_and_reclaimed();
                    fixture.service.keyspace.stores().for_each(|store| store.flush(true).unwrap());
                }
            }
        }
        let used = four.service.keyspace.stores().filter(|store| store.counters().keys_written > 0).count();
        assert_eq!(used, 4, "all of them were written to");
    }
}

#[test]
fn no_command_has_keys_in_two_stores() {
    let fixture = sharded(4, 64);
    let mut client = fixture.client();
    let [one, same, other] = [(0, "a"), (0, "b"), (3, "c")].map(|(shard, prefix)| key_in(shard, 4, 64, prefix));
    assert_eq!(client.ask(&format!("MSET {one} 1 {same} 2")), "+OK\r\n", "two slots of one shard");
    for request in [
        format!("MSET {one} 1 {other} 2"),
        format!("MGET {one} {other}"),
        format!("RENAME {one} {other}"),
        format!("DEL {one} {same} {other}"),
    ] {
        assert_eq!(client.ask(&request), CROSSSLOT, "{request}");
    }
    assert_eq!(client.ask(&format!("MGET {one} {same}")), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    for (second, refused) in [(&same, false), (&other, true)] {
        client.ask("MULTI");
        assert_eq!(client.ask(&format!("SET {one} 3")), "+QUEUED\r\n");
        assert_eq!(client.ask(&format!("SET {second} 4")), "+QUEUED\r\n");
        assert_eq!(client.ask("EXEC") == CROSSSLOT, refused, "{second}");
    }
    assert_eq!(client.ask(&format!("GET {other}")), "$-1\r\n", "nothing of it was done");
}

#[test]
fn what_needs_one_store_says_what_to_do_with_several() {
    let fixture = sharded(2, 64);
    let mut client = fixture.client();
    for (request, advice) in [("BACKUP BEGIN", "`ecotone cluster backup`"), ("INSPECT START VERIFY", "stop")] {
        let reply = client.ask(request);
        assert!(reply.starts_with("-ERR ") && reply.contains("2 shards") && reply.contains(advice), "{reply}");
    }
    assert_eq!(client.ask("SAVE"), "+OK\r\n");
    assert!(fixture.service.keyspace.stores().all(|store| store.counters().wal_syncs > 0));
}

#[test]
fn a_scan_finds_all_keys_of_all_shards_and_a_flush_leaves_none() {
    let fixture = sharded(5, 3);
    let mut client = fixture.client();
    let names: BTreeSet<Vec<u8>> = (0..3000).map(|number| format!("key:{number}").into_bytes()).collect();
    for name in &names {
        client.send(&[b"SET", name, b"v"]);
    }
    assert_eq!(client.ask("DBSIZE"), ":3000\r\n");
    let found = client.scan("SCAN", "COUNT 17", |_| ());
    assert_eq!(found.len(), names.len(), "each once");
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), names);
    assert_eq!(texts(&client.send(&words("KEYS *"))).len(), names.len());
    let drawn: BTreeSet<Vec<u8>> = (0..200).map(|_| client.send(&words("RANDOMKEY"))).collect();
    assert!(drawn.len() > 100, "keys of all shards are drawn: {}", drawn.len());
    assert_eq!(client.ask("FLUSHALL"), "+OK\r\n");
    assert_eq!((client.ask("DBSIZE").as_str(), client.ask("RANDOMKEY").as_str()), (":0\r\n", "$-1\r\n"));
    assert_eq!(elements(&client.send(&words("SCAN 0"))).unwrap().len(), 2);
    let mut left = 0;
    fixture
        .change(|keys| {
            keys.visit_keys(0, |_, _, _| {
                left += 1;
                ControlFlow::Continue(())
            })
        })
        .unwrap();
    assert_eq!(left, 0);
}

/// `false`: a flush gave room back meanwhile, and nothing was refused.
fn a_full_store_fails_its_writes_alone() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let shards = dealt(2, 64);
    let space = SpaceLimits { reserve_bytes: Some(8 * MIB), max_bytes: Some(48 * MIB) };
    let small = StoreSettings { space, memtable_bytes: MIB, ..settings(Durability::None) };
    // Each has a space of its own here: only one of them is small.
    let full = Shared::new().open(directory.path(), 1, shards[0].clone(), &small);
    let roomy = Shared::new().open(directory.path(), 2, shards[1].clone(), &settings(Durability::None));
    let keyspace = Keyspace::open_shards(vec![full.clone(), roomy], Durability::None).unwrap();
    let keys = [0, 1].map(|shard| key_in(shard, 2, 64, "k"));
    let slot = |key: &str| Slot::of(key.as_bytes());
    let mut group = WriteGroup::new(keyspace.clone());
    group.begins(true);
    let touched = keys.each_ref().map(|key| {
        assert!(group.hold(&[slot(key)], Blocking::Allowed));
        group.keys(Blocking::Allowed).set(key.as_bytes(), Tag::STRING, None, &noise(100_000)).unwrap();
        group.take_touched()
    });
    // It fills behind the back of the group.
    assert!((0..10_000_u32).any(|number| full.store.put(&number.to_be_bytes(), &noise(200_000)).is_err()));
    let Err(error) = group.commit(Blocking::Allowed) else { return false };
    assert!(matches!(error.error, StoreError::OutOfSpace { .. }), "{error:?}");
    assert_eq!(touched.map(|shard| error.failed.meets(shard)), [true, false]);
    let is_there = keys.each_ref().map(|key| group.keys(Blocking::Allowed).entry(key.as_bytes()).unwrap().is_some());
    assert_eq!(is_there, [false, true]);
    assert!(keyspace.check_free_space([slot(&keys[1])]).is_ok());
    true
}

#[test]
fn a_store_that_is_full_fails_its_writes_and_no_others() {
    assert!((0..20).any(|_| a_full_store_fails_its_writes_alone()));
}

#[test]
fn a_shard_is_added_while_clients_write_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let shared = Shared::new();
    let options = settings(Durability::EverySecond);
    let first = shared.open(directory.path(), 1, vec![(0, 8191)], &options);
    let keyspace = Keyspace::open_shards(vec![first], options.durability).unwrap();
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let write = |number: u64| {
        let key = format!("key:{number}");
        let mut group = WriteGroup::new(keyspace.clone());
        assert!(group.hold(&[Slot::of(key.as_bytes())], Blocking::Allowed));
        let set = group.keys(Blocking::Allowed).set(key.as_bytes(), Tag::STRING, None, key.as_bytes());
        let is_served = set.is_ok();
        if let Err(failure) = set {
            assert_eq!(failure.reply().as_ref(), b"CLUSTERDOWN Hash slot not served");
        }
        group.commit(Blocking::Allowed).unwrap();
        is_served
    };
    let mut served = BTreeMap::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let (is_over, written, write) = (&is_over, &written, &write);
                scope.spawn(move || {
                    let mut served = BTreeMap::new();
                    for round in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let number = round * 3 + writer;
                        served.insert(number, write(number));
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                    served
                })
            })
            .collect();
        for (id, first, last) in [(2, 8192, 12_000), (3, 12_001, 16_383)] {
            let seen = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) < seen + 500 {
                std::thread::yield_now();
            }
            keyspace.add_shard(shared.open(directory.path(), id, vec![(first, last)], &options)).unwrap();
        }
        let seen = written.load(Ordering::Relaxed);
        while written.load(Ordering::Relaxed) < seen + 500 {
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| served.extend(writer.join().unwrap()));
    });
    assert!(served.values().any(|is_served| !is_served), "some came before their shard");
    assert!(write(1_000_000_000) && write(1_000_000_001) && write(1_000_000_002), "now all slots are here");
    let mut group = WriteGroup::new(keyspace.clone());
    for (number, was_served) in served {
        let key = format!("key:{number}");
        let found = group.keys(Blocking::Allowed).entry(key.as_bytes()).unwrap();
        assert_eq!(found.is_some(), was_served, "{key}");
    }
    let sum: u64 = keyspace.stores().filter(|store| store.counters().keys_written > 0).count() as u64;
    assert_eq!(sum, 3);
}

/// Nobody works with a store for longer.
const WITHIN: Duration = Duration::from_secs(20);

#[test]
fn a_store_is_given_back_once_nobody_works_with_it_and_another_has_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let shared = Shared::new();
    let options = settings(Durability::None);
    let keyspace = Keyspace::open_shards(Vec::new(), options.durability).unwrap();
    let slot = Slot::of(b"k");
    let mut client = WriteGroup::new(keyspace.clone());
    let watched = WatchFlag::default();
    keyspace.watches().add(b"k", &watched);
    // More often than there are places; the last one before is of another shard and has the place.
    for round in 0..MAX_LOCAL_SHARDS as u64 + 10 {
        let id = 1 + (round % 3) as u32;
        keyspace.add_shard(shared.open(directory.path(), id, all_slots(), &options)).unwrap();
        // From a row, where there is one, and of no other store.
        for _ in 0..2 {
            let found = client.keys(Blocking::Allowed).entry(b"k").unwrap().map(|entry| entry.to_vec());
            let before = round.checked_sub(3).map(|before| before.to_le_bytes().to_vec());
            assert_eq!(found, before, "round {round}");
        }
        assert!(client.hold(&[slot], Blocking::Allowed));
        client.keys(Blocking::Allowed).set(b"k", Tag::STRING, None, &round.to_le_bytes()).unwrap();
        let number = client.keys(Blocking::Allowed).new_collection(b"k").unwrap().number;
        assert!(number <= (1 + round / 3) << 16, "numbers are a store's own: {number}");
        client.commit(Blocking::Allowed).unwrap();
        // Who has looked at it and has not gone on yet is waited for.
        let _ = client.keys(Blocking::Allowed).entry(b"k").unwrap();
        let held = (round % 16 == 0).then(|| keyspace.held());
        if let Some(held) = held {
            let refused = keyspace.take_shard(ShardId(id), Duration::from_millis(1));
            assert!(matches!(refused, Err(ShardError::InUse(of)) if of == ShardId(id)), "{refused:?}");
            assert!(client.keys(Blocking::Allowed).entry(b"k").is_err(), "it is served no more");
            let again = shared.open(&directory.path().join("other"), id, all_slots(), &options);
            assert!(matches!(keyspace.add_shard(again), Err(ShardError::Held(_))), "nor another in its place");
            assert_eq!(held.iter().count(), 1);
        }
        client.rest();
        let store = keyspace.take_shard(ShardId(id), WITHIN).unwrap();
        Arc::try_unwrap(store).unwrap().close().unwrap();
        assert!(watched.is_set());
    }
}

#[test]
fn slots_change_hands_only_where_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let shared = Shared::new();
    let options = settings(Durability::None);
    let open = |id, slots: SlotRanges| shared.open(directory.path(), id, slots, &options);
    let keyspace = Keyspace::open_shards(vec![open(1, all_slots())], options.durability).unwrap();
    let slot = Slot::of(b"k").number();
    let set = |value: &[u8]| {
        let mut group = WriteGroup::new(keyspace.clone());
        assert!(group.hold(&[Slot::of(b"k")], Blocking::Allowed));
        group.keys(Blocking::Allowed).set(b"k", Tag::STRING, None, value).unwrap();
        group.commit(Blocking::Allowed).unwrap();
    };
    let get = || {
        let mut group = WriteGroup::new(keyspace.clone());
        // Twice: the second time from a row.
        let _ = group.keys(Blocking::Allowed).entry(b"k").unwrap();
        group.keys(Blocking::Allowed).entry(b"k").unwrap().map(|entry| entry.to_vec())
    };
    set(b"of 1");
    let others: SlotRanges = vec![(0, slot - 1), (slot + 1, 16_383)];
    assert!(matches!(keyspace.set_slots(ShardId(1), &others), Err(ShardError::NotEmpty(at, _)) if at == slot));
    let second = open(2, vec![(slot, slot)]);
    assert!(matches!(keyspace.add_shard(second.clone()), Err(ShardError::Taken(at, ShardId(1))) if at == slot));
    assert_eq!(get().as_deref(), Some(&b"of 1"[..]));
    // Others are empty, and go.
    keyspace.set_slots(ShardId(1), &[(slot, slot)]).unwrap();
    assert_eq!(keyspace.held_slots(), [(ShardId(1), slot, slot)]);
    // With all that is in it, and with its rows.
    let first = keyspace.take_shard(ShardId(1), WITHIN).unwrap();
    assert!(keyspace.stores().next().is_none());
    keyspace.add_shard(second).unwrap();
    assert_eq!(get(), None);
    set(b"of 2");
    assert_eq!(get().as_deref(), Some(&b"of 2"[..]));
    // It is held again in the same life.
    drop(keyspace.take_shard(ShardId(2), WITHIN).unwrap());
    assert!(matches!(keyspace.take_shard(ShardId(2), WITHIN), Err(ShardError::NotHeld(_))));
    first.give_rows_up(false);
    keyspace.add_shard(OpenShard { id: ShardId(1), slots: all_slots(), store: first, gate: None }).unwrap();
    assert_eq!(get().as_deref(), Some(&b"of 1"[..]));
    assert!(matches!(keyspace.set_slots(ShardId(1), &[(5, 4)]), Err(ShardError::Range(5, 4))));
    let again = OpenShard { id: ShardId(1), slots: Vec::new(), store: keyspace.only_store().unwrap(), gate: None };
    assert!(matches!(keyspace.add_shard(again), Err(ShardError::Held(_))));
    const { assert!(MAX_LOCAL_SHARDS >= 64) }
}

/// The folder that the child process of the next test writes in.
const CHILD: &str = "ECOTONE_TEST_SHARDS_CHILD";

/// Writes of one group: a key in each of the shards.
const SHARDS: usize = 4;

fn numbered(directory: &Path) -> Arc<Keyspace> {
    sharded_keyspace(directory, &dealt(SHARDS, 512), &settings(Durability::EverySecond))
}

/// Not a test by itself: the process that is killed.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let keyspace = numbered(&directory);
    let mut out = std::io::stdout();
    for number in 0_u64.. {
        let mut group = WriteGroup::new(keyspace.clone());
        for shard in 0..SHARDS {
            let key = key_in(shard, SHARDS, 512, &format!("{number}:{shard}:"));
            assert!(group.hold(&[Slot::of(key.as_bytes())], Blocking::Allowed));
            let value = noise(if number.is_multiple_of(3) { 500 } else { 20 });
            group.keys(Blocking::Allowed).set(key.as_bytes(), Tag::STRING, None, &value).unwrap();
        }
        group.commit(Blocking::Allowed).unwrap();
        writeln!(out, "done {number}").unwrap();
    }
}

#[test]
fn what_was_acknowledged_is_in_all_shards_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for kill in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shards::child_that_writes_until_it_is_killed", "--nocapture", "--test-threads=1"])
            .env(CHILD, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut done = 0;
        for line in lines {
            let Ok(line) = line else { break };
            if let Some(number) = line.rsplit_once("done ").and_then(|(_, number)| number.parse::<u64>().ok()) {
                done = number;
            }
            if done == 200 + 150 * kill {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(done >= 200, "it was killed, and did not fail: {done}");
        acknowledged = acknowledged.max(done);
        let keyspace = numbered(directory.path());
        let mut group = WriteGroup::new(keyspace.clone());
        for number in 0..=acknowledged {
            for shard in 0..SHARDS {
                let key = key_in(shard, SHARDS, 512, &format!("{number}:{shard}:"));
                let found = group.keys(Blocking::Allowed).entry(key.as_bytes()).unwrap().unwrap();
                assert_eq!(*found, noise(if number.is_multiple_of(3) { 500 } else { 20 }), "{key}");
            }
        }
    }
}

#[test]
fn writes_of_several_stores_are_synced_before_they_are_told() {
    let shards = dealt(3, 64);
    let fixture = Fixture::sharded(tempfile::tempdir().unwrap(), &shards, &settings(Durability::Always));
    let keyspace = &fixture.service.keyspace;
    let syncs = || keyspace.stores().map(|store| store.counters().wal_syncs).collect::<Vec<_>>();
    let mut client: TestClient<'_> = fixture.client();
    let mut group = WriteGroup::new(keyspace.clone());
    for shard in [0, 2] {
        client.ask_in(&mut group, &format!("SET {} v", key_in(shard, 3, 64, "k")));
    }
    let before = syncs();
    // An event loop commits without waiting, and has the sync made elsewhere.
    let committed = group.commit(Blocking::Never).unwrap();
    assert!(committed.unsynced.is_some() && keyspace.has_unsynced());
    assert_eq!(syncs(), before);
    keyspace.sync_unsynced().unwrap();
    let after = syncs();
    assert_eq!([0, 1, 2].map(|shard| after[shard] > before[shard]), [true, false, true]);
    drop(committed);
    assert!(!keyspace.has_unsynced());
    // Who may wait has waited for it.
    for shard in [0, 1] {
        client.ask_in(&mut group, &format!("SET {} w", key_in(shard, 3, 64, "k")));
    }
    assert!(group.commit(Blocking::Allowed).unwrap().unsynced.is_none() && !keyspace.has_unsynced());
    let last = syncs();
    assert_eq!([0, 1, 2].map(|shard| last[shard] > after[shard]), [true, true, false]);
}
