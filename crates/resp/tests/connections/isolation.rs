//! A transaction over the network while others read: nobody ever sees a part of it.

use crate::common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::redis::elements;
use common::served::Served;
use common::wire::{Wire, request};
use common::words;
use ecotone_engine::{Durability, StoreSettings};
use ecotone_resp::service::Limits;

/// Elements of each large collection.
const ELEMENTS: usize = 300;

/// Memtables are so small that transactions are told from tables as well, and while they are
/// flushed.
const FLUSHED_BYTES: u64 = 64 << 10;

/// Transactions of each of two writers.
const TRANSACTIONS: u64 = 40;

/// One transaction that gives everything there is the mark `mark`: strings, small and large
/// collections, those of one kind in place and those of another deleted and made anew.
fn transaction(mark: &str) -> Vec<u8> {
    let numbered = |prefix: &str| (0..ELEMENTS).map(|number| format!("{prefix}{number}")).collect::<Vec<_>>();
    let fields = numbered("f");
    let members = numbered(&format!("{mark}:"));
    let score = mark.trim_start_matches(['a', 'b']);
    let mut commands: Vec<Vec<&str>> = vec![
        vec!["MULTI"],
        vec!["MSET", "one", mark, "two", mark],
        vec!["HSET", "small", "x", mark, "y", mark],
        [vec!["HSET", "hash"], fields.iter().flat_map(|field| [field.as_str(), mark]).collect()].concat(),
        [vec!["ZADD", "zset"], fields.iter().flat_map(|field| [score, field.as_str()]).collect()].concat(),
        vec!["DEL", "set", "list", "renewed"],
        [vec!["SADD", "set"], members.iter().map(String::as_str).collect()].concat(),
        [vec!["RPUSH", "list"], members.iter().map(|_| mark).collect()].concat(),
        [vec!["HSET", "renewed"], fields.iter().flat_map(|field| [field.as_str(), mark]).collect()].concat(),
    ];
    commands.push(vec!["EXEC"]);
    commands
        .iter()
        .flat_map(|command| request(&command.iter().map(|argument| argument.as_bytes()).collect::<Vec<_>>()))
        .collect()
}

/// How many replies a transaction has.
const REPLIES: usize = 10;

/// The texts in a reply, also in what it holds.
fn texts(reply: &[u8]) -> Vec<String> {
    match elements(reply) {
        Some(elements) => elements.into_iter().flat_map(texts).collect(),
        None => vec![String::from_utf8_lossy(common::redis::text(reply)).into_owned()],
    }
}

/// What a reader asks, how many texts it must get, and what of each text is the mark.
type Question = (&'static str, usize, fn(usize, &str) -> Option<&str>);

const ALL: fn(usize, &str) -> Option<&str> = |_, text| Some(text);

/// The mark of a member of the set.
const OF_MEMBER: fn(usize, &str) -> Option<&str> = |_, text| Some(text.split(':').next().unwrap_or(text));

/// The marks in a reply of names, each with what it has.
const OF_PAIRS: fn(usize, &str) -> Option<&str> = |index, text| (index % 2 == 1).then_some(text);

const QUESTIONS: [Question; 17] = [
    ("MGET one two", 2, ALL),
    ("HVALS small", 2, ALL),
    ("HVALS hash", ELEMENTS, ALL),
    ("HGETALL hash", 2 * ELEMENTS, OF_PAIRS),
    ("HMGET hash f0 f150 f299", 3, ALL),
    ("ZRANGE zset 0 -1 WITHSCORES", 2 * ELEMENTS, OF_PAIRS),
    ("SMEMBERS set", ELEMENTS, OF_MEMBER),
    ("SRANDMEMBER set 60", 60, OF_MEMBER),
    ("SRANDMEMBER set -60", 60, OF_MEMBER),
    ("HRANDFIELD renewed 60 WITHVALUES", 120, OF_PAIRS),
    ("HRANDFIELD hash -60 WITHVALUES", 120, OF_PAIRS),
    ("ZRANDMEMBER zset 60 WITHSCORES", 120, OF_PAIRS),
    ("ZRANDMEMBER zset -60 WITHSCORES", 120, OF_PAIRS),
    ("LRANGE list 0 -1", ELEMENTS, ALL),
    ("HVALS renewed", ELEMENTS, ALL),
    ("EXISTS one two small hash zset set list renewed", 1, ALL),
    ("SCARD set", 1, ALL),
];

/// Keys of each writer in [`a_transaction_sees_the_same_keys_from_its_first_look_to_its_last`].
const KEYS: usize = 200;

#[test]
fn a_transaction_sees_the_same_keys_from_its_first_look_to_its_last() {
    let options =
        StoreSettings { durability: Durability::None, memtable_bytes: FLUSHED_BYTES, ..StoreSettings::default() };
    let served = Served::with(Limits::default(), options, 2);
    let address = served.address();
    let (reading, counts) = (AtomicBool::new(true), &mut BTreeSet::new());
    std::thread::scope(|scope| {
        let reading = &reading;
        for writer in 0..2 {
            scope.spawn(move || {
                let mut wire = Wire::to(address);
                let keys: Vec<String> = (0..KEYS).map(|number| format!("{writer}:{number}")).collect();
                for (command, key) in ["SET", "DEL"].into_iter().cycle().flat_map(|command| {
                    let keys = &keys;
                    keys.iter().map(move |key| (command, key))
                }) {
                    if !reading.load(Ordering::Acquire) {
                        break;
                    }
                    let reply = wire.ask(&if command == "SET" { format!("SET {key} 1") } else { format!("DEL {key}") });
                    assert!(!reply.starts_with('-'), "{reply}");
                }
            });
        }
        let reader = scope.spawn(|| {
            let mut wire = Wire::to(address);
            for _ in 0..200 {
                for command in ["MULTI", "DBSIZE", "KEYS *", "SCAN 0 COUNT 1000", "DBSIZE"] {
                    wire.ask(command);
                }
                wire.send(&request(&[b"EXEC"]));
                let reply = wire.reply();
                let looks = elements(&reply).unwrap();
                let scanned = elements(looks[2]).unwrap()[1];
                let numbers = [
                    texts(looks[0])[0].parse::<usize>().unwrap(),
                    elements(looks[1]).unwrap().len(),
                    elements(scanned).unwrap().len(),
                    texts(looks[3])[0].parse().unwrap(),
                ];
                assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
                counts.insert(numbers[0]);
            }
        });
        let read = reader.join();
        reading.store(false, Ordering::Release);
        read.unwrap();
    });
    // They did write meanwhile.
    assert!(counts.len() > 5, "{counts:?}");
    served.server.stop();
}

#[test]
fn a_reader_never_sees_a_part_of_a_transaction() {
    let options =
        StoreSettings { durability: Durability::None, memtable_bytes: FLUSHED_BYTES, ..StoreSettings::default() }
            .with_separation(128);
    let served = Served::with(Limits::default(), options, 2);
    let address = served.address();
    let write = |wire: &mut Wire, mark: &str| {
        wire.send(&transaction(mark));
        for reply in 0..REPLIES {
            let told = wire.reply();
            let begin = if reply == REPLIES - 1 { b'*' } else { b'+' };
            assert!(told.first() == Some(&begin), "{}", String::from_utf8_lossy(&told));
        }
    };
    write(&mut Wire::to(address), "a0");
    let (writing, seen) = (AtomicBool::new(true), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (writing, seen, write) = (&writing, &seen, &write);
        for _ in 0..4 {
            scope.spawn(move || {
                let mut wire = Wire::to(address);
                let mut marks = BTreeSet::new();
                let mut was_last = false;
                while !was_last {
                    // One round more, when all is written.
                    was_last = !writing.load(Ordering::Acquire);
                    for (question, count, mark) in &QUESTIONS {
                        wire.send(&request(&words(question)));
                        let found = texts(&wire.reply());
                        assert_eq!(found.len(), *count, "{question}");
                        let found: BTreeSet<&str> =
                            found.iter().enumerate().filter_map(|(index, text)| mark(index, text)).collect();
                        assert_eq!(found.len(), 1, "{question}: {found:?} are of several transactions");
                        marks.extend(found.into_iter().map(str::to_owned));
                    }
                    // Keys of several types, in one transaction of the reader's.
                    for question in ["MULTI", "GET one", "HGET hash f7", "LINDEX list 299", "HGET renewed f299"] {
                        wire.ask(question);
                    }
                    wire.send(&request(&[b"EXEC"]));
                    let found: BTreeSet<String> = texts(&wire.reply()).into_iter().collect();
                    assert_eq!(found.len(), 1, "{found:?} are of several transactions");
                }
                seen.fetch_max(marks.len() as u64, Ordering::Relaxed);
            });
        }
        let writers: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|writer| {
                scope.spawn(move || {
                    let mut wire = Wire::to(address);
                    (1..=TRANSACTIONS).for_each(|number| write(&mut wire, &format!("{writer}{number}")));
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        writing.store(false, Ordering::Release);
        ended.into_iter().for_each(|writer| writer.unwrap());
    });
    // They did read while it was written.
    assert!(seen.into_inner() > TRANSACTIONS / 4);
    served.server.stop();
}
