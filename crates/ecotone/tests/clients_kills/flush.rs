//! A flush of everything, under load, and a kill at any moment of it: all that was there before is
//! gone for good, and all that came after stays.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::client::Client;
use crate::common::{Server, configuration};
use crate::families::{members, named, number, padded};
use crate::is_sound;

/// Requests from one flush to the next: the collections become large on the way.
const FLUSHED_EVERY: u64 = 800;

/// Kills of a server in each durability.
const KILLS: u64 = 4;

/// What one client asks for, as its `number`th request. Every second flush is one of a transaction
/// that writes as well.
fn requests(number: u64) -> Vec<String> {
    match number % FLUSHED_EVERY {
        0 if number.is_multiple_of(2 * FLUSHED_EVERY) => {
            ["MULTI".into(), "FLUSHALL".into(), format!("SET after {number}"), "EXEC".into()].into()
        }
        0 => vec!["FLUSHALL".into()],
        step => vec![match step % 5 {
            0 => format!("SET string{} {}", step % 50, padded(number)),
            1 => format!("HSET hash m{number} {}", padded(number)),
            2 => format!("SADD set m{number}"),
            3 => format!("RPUSH list m{number}"),
            _ => format!("ZADD zset {number} m{number}"),
        }],
    }
}

/// What there is after so many of these: strings, and members of collections.
fn contents(last: u64) -> BTreeMap<String, Vec<String>> {
    let flushed = last / FLUSHED_EVERY * FLUSHED_EVERY;
    let mut contents: BTreeMap<String, Vec<String>> = BTreeMap::new();
    if flushed > 0 && flushed.is_multiple_of(2 * FLUSHED_EVERY) {
        contents.insert("after".into(), vec![flushed.to_string()]);
    }
    for number in flushed + 1..=last {
        let step = number % FLUSHED_EVERY;
        match step % 5 {
            0 => _ = contents.insert(format!("string{}", step % 50), vec![number.to_string()]),
            kind => {
                let key = ["hash", "set", "list", "zset"][kind as usize - 1];
                contents.entry(key.into()).or_default().push(format!("m{number}"));
            }
        }
    }
    contents
}

/// The same as a server has it; what the other client writes is left out.
fn found(client: &mut Client) -> BTreeMap<String, Vec<String>> {
    let keys = client.ask("KEYS [^b]*").unwrap();
    let mut contents = BTreeMap::new();
    for key in keys.split(' ').filter(|key| !key.is_empty()) {
        let held = match &client.ask(&format!("TYPE {key}")).unwrap()[..] {
            "string" => vec![number(&client.ask(&format!("GET {key}")).unwrap()).to_string()],
            _ => members(client, key),
        };
        contents.insert(key.to_owned(), held);
    }
    contents
}

/// What another client, which writes keys `b1` on, each once, got acknowledged before a flush was
/// asked for and when it was done.
#[derive(Clone, Copy)]
struct Beside {
    before: u64,
    after: u64,
}

/// What was acknowledged to both before the server was gone.
struct Acknowledged {
    /// Requests of the one that flushes.
    acknowledged: u64,
    /// Of its last flush that was acknowledged.
    flushed: Option<Beside>,
    /// Keys of the other one before a flush that was not acknowledged.
    before_unknown: Option<u64>,
    /// Keys of the other one.
    beside: u64,
}

/// Both go on from there until the server is killed, after so many more requests of the one that
/// flushes.
fn kill_under_load(server: &Server, last: u64, beside_last: u64, after: u64) -> Acknowledged {
    let (written, beside) = (AtomicU64::new(0), AtomicU64::new(beside_last));
    std::thread::scope(|scope| {
        let (written, beside) = (&written, &beside);
        let other = scope.spawn(move || {
            let mut client = Client::of(server);
            for number in beside_last + 1.. {
                if client.ask(&format!("SET b{number} {}", padded(number))).is_none() {
                    return;
                }
                beside.store(number, Ordering::SeqCst);
            }
        });
        let flusher = scope.spawn(move || {
            let mut client = Client::of(server);
            let mut acks = Acknowledged { acknowledged: last, flushed: None, before_unknown: None, beside: 0 };
            loop {
                let number = acks.acknowledged + 1;
                let before = beside.load(Ordering::SeqCst);
                let is_flush = number.is_multiple_of(FLUSHED_EVERY);
                for request in requests(number) {
                    if client.ask(&request).is_none() {
                        acks.before_unknown = is_flush.then_some(before);
                        return acks;
                    }
                }
                if is_flush {
                    acks.flushed = Some(Beside { before, after: beside.load(Ordering::SeqCst) });
                }
                acks.acknowledged = number;
                written.fetch_add(1, Ordering::SeqCst);
            }
        });
        while written.load(Ordering::SeqCst) < after {
            std::thread::yield_now();
        }
        server.signal("-KILL");
        let acks = flusher.join().unwrap();
        other.join().unwrap();
        Acknowledged { beside: beside.load(Ordering::SeqCst), ..acks }
    })
}

/// Sees that those keys beside are there that must be, and none that must not.
fn check_beside(client: &mut Client, gone: u64, there: RangeInclusive<u64>) {
    let keys = client.ask("KEYS b*").unwrap();
    let found: BTreeMap<u64, &str> =
        keys.split(' ').filter_map(|key| Some((key.get(1..)?.parse().ok()?, key))).collect();
    if let Some(back) = found.keys().find(|number| **number <= gone) {
        panic!("b{back} is there, and all up to b{gone} were there before the last flush");
    }
    let lost: Vec<String> = named("b", there.filter(|number| !found.contains_key(number)));
    assert!(lost.is_empty(), "written after the last flush, and not there: {lost:?}");
    for (written, key) in found.iter().step_by(37) {
        assert_eq!(number(&client.ask(&format!("GET {key}")).unwrap()), *written);
    }
}

#[test]
fn what_was_flushed_is_gone_for_good_and_what_came_after_stays() {
    for durability in ["none", "everysec", "always"] {
        let folder = tempfile::tempdir().unwrap();
        let more =
            format!("listen = \"127.0.0.1:0\"\n[store]\ndurability = \"{durability}\"\nmemtable_bytes = 1048576\n");
        let file = configuration(folder.path(), &more);
        let (mut last, mut beside, mut gone) = (0, 0, 0);
        for kill in 0..KILLS {
            // Every second time when a flush is about to be asked for.
            let to_flush = FLUSHED_EVERY - 1 - last % FLUSHED_EVERY;
            let after = if kill % 2 == 0 { FLUSHED_EVERY + FLUSHED_EVERY / 2 } else { to_flush };
            let acks = kill_under_load(&Server::with(&file), last, beside, after);
            let server = Server::with(&file);
            let mut client = Client::of(&server);
            let found = found(&mut client);
            let is_one_more = found == contents(acks.acknowledged + 1);
            last = acks.acknowledged + u64::from(is_one_more);
            assert!(
                found == contents(last),
                "{durability}: {} requests were acknowledged; {found:?} is there, {:?} should be",
                acks.acknowledged,
                contents(last)
            );
            let mut there = acks.flushed.map_or(beside, |flushed| flushed.after);
            gone = acks.flushed.map_or(gone, |flushed| flushed.before);
            if let Some(before) = acks.before_unknown.filter(|_| is_one_more) {
                // What was acknowledged to the other client since may have come before it or after
                // it.
                (gone, there) = (before, acks.beside);
            }
            // The one that was under way when the flush was through may have come before it.
            check_beside(&mut client, gone, there + 2..=acks.beside);
            drop(client);
            beside = acks.beside + 1;
            server.terminate();
        }
        assert!(last > 3 * FLUSHED_EVERY, "{durability}: there were flushes, {last}");
        is_sound(folder.path());
    }
}
