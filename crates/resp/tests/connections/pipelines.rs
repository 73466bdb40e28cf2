//! What a pipeline costs the store: its writes are one batch, one record of the log and one sync;
//! its reads are one lookup.

use crate::common;

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::served::{Served, until};
use common::wire::{Wire, request};
use ecotone_engine::{Counters, Durability, StoreSettings};
use ecotone_keyspace::{Blocking, Slot, Tag, WriteGroup};
use ecotone_resp::service::Limits;

/// Requests of a pipeline.
const DEEP: usize = 16;

/// A server whose store counts nothing but what clients make it do: on one event loop, and nothing
/// is old enough to be noted or reclaimed.
fn served(durability: Durability) -> Served {
    let options = StoreSettings { durability, ..StoreSettings::default() }.with_separation(128);
    Served::with(Limits::default(), options, 1)
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number}").into_bytes()
}

/// One short, one that is kept apart.
fn value(number: usize) -> Vec<u8> {
    vec![b'v'; if number.is_multiple_of(2) { 10 } else { 200 }]
}

fn sets() -> Vec<Vec<u8>> {
    (0..DEEP).map(|number| request(&[b"SET", &key(number), &value(number)])).collect()
}

fn gets() -> Vec<Vec<u8>> {
    (0..DEEP).map(|number| request(&[b"GET", &key(number)])).collect()
}

/// What the store has done when all of `pieces` were sent, each after the replies to the one
/// before.
fn done(served: &Served, pieces: &[Vec<u8>], replies: usize) -> Counters {
    let counters = || served.service.keyspace.only_store().unwrap().counters();
    let before = counters();
    let mut wire = Wire::to(served.address());
    for piece in pieces {
        wire.send(piece);
        for _ in 0..replies {
            let reply = wire.reply();
            assert!(reply == b"+OK\r\n" || reply.ends_with(b"v\r\n"), "{}", reply.escape_ascii());
        }
    }
    let after = counters();
    Counters {
        batches_written: after.batches_written - before.batches_written,
        keys_written: after.keys_written - before.keys_written,
        wal_syncs: after.wal_syncs - before.wal_syncs,
        multi_gets: after.multi_gets - before.multi_gets,
        keys_read: after.keys_read - before.keys_read,
        ..Counters::default()
    }
}

#[test]
fn the_writes_of_a_pipeline_are_one_write_of_the_store_and_one_sync() {
    for durability in [Durability::None, Durability::EverySecond, Durability::Always] {
        let served = served(durability);
        let syncs = u64::from(durability == Durability::Always);
        let pipeline = done(&served, &[sets().concat()], DEEP);
        assert_eq!((pipeline.keys_written, pipeline.batches_written), (DEEP as u64, 1), "{durability:?}");
        // And the same requests one by one, so that it is known what is counted.
        let single = done(&served, &sets(), 1);
        assert_eq!((single.keys_written, single.batches_written), (DEEP as u64, DEEP as u64), "{durability:?}");
        if durability != Durability::EverySecond {
            assert_eq!((pipeline.wal_syncs, single.wal_syncs), (syncs, syncs * DEEP as u64), "{durability:?}");
        }
        served.server.stop();
    }
}

#[test]
fn the_reads_of_a_pipeline_are_one_lookup_and_each_key_is_looked_up_once() {
    let served = served(Durability::None);
    done(&served, &[sets().concat()], DEEP);
    for is_flushed in [false, true] {
        if is_flushed {
            served.service.keyspace.only_store().unwrap().flush(true).unwrap();
            // Into memory: what would wait for the device is read by another thread, where it
            // waits.
            done(&served, &gets(), 1);
        }
        let pipeline = done(&served, &[gets().concat()], DEEP);
        assert_eq!((pipeline.multi_gets, pipeline.keys_read), (1, DEEP as u64), "flushed: {is_flushed}");
        let single = done(&served, &gets(), 1);
        assert_eq!((single.multi_gets, single.keys_read), (0, DEEP as u64), "flushed: {is_flushed}");
    }
    served.server.stop();
}

#[test]
fn a_write_amid_the_reads_of_a_pipeline_ends_their_row_and_begins_another() {
    let served = served(Durability::None);
    done(&served, &[sets().concat()], DEEP);
    let (first, second) = (gets()[..8].concat(), gets()[8..].concat());
    let amid = request(&[b"SET", &key(9), &value(9)]);
    let pipeline = done(&served, &[[first, amid, second].concat()], DEEP + 1);
    assert_eq!((pipeline.multi_gets, pipeline.keys_read), (2, DEEP as u64));
    assert_eq!((pipeline.batches_written, pipeline.keys_written), (1, 1));
    served.server.stop();
}

#[test]
fn a_request_that_reads_many_keys_looks_them_up_at_once() {
    let served = served(Durability::None);
    done(&served, &[sets().concat()], DEEP);
    let mut arguments = vec![b"MGET".to_vec()];
    arguments.extend((0..DEEP).map(key));
    let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    let before = served.service.keyspace.only_store().unwrap().counters();
    let mut wire = Wire::to(served.address());
    wire.send(&request(&arguments));
    assert!(wire.reply().starts_with(format!("*{DEEP}\r\n").as_bytes()));
    let after = served.service.keyspace.only_store().unwrap().counters();
    assert_eq!((after.multi_gets - before.multi_gets, after.keys_read - before.keys_read), (1, DEEP as u64));
    served.server.stop();
}

/// Sends all of `bytes` before it reads anything.
fn sends_all_then_reads(served: &Served, bytes: &[u8], replies: usize) -> Vec<Vec<u8>> {
    let mut wire = Wire::to(served.address());
    wire.stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    wire.send(bytes);
    (0..replies).map(|_| wire.reply()).collect()
}

#[test]
fn who_sends_all_before_it_reads_anything_gets_all_replies() {
    let served = served(Durability::EverySecond);
    // More than kernels keep for two sockets, either way.
    let (requests, long) = (10_000, vec![b'x'; 4000]);
    let echoes = request(&[b"ECHO", &long]).repeat(requests);
    for reply in sends_all_then_reads(&served, &echoes, requests) {
        assert!(reply.starts_with(b"$4000\r\nxxx") && reply.len() == 4009);
    }
    let increments = request(&[b"INCRBY", b"counter", b"1"]).repeat(300_000);
    let replies = sends_all_then_reads(&served, &increments, 300_000);
    assert!(replies.iter().zip(1..).all(|(reply, count)| *reply == format!(":{count}\r\n").into_bytes()));
    until("what waited is given back", || served.service.client_memory.load(Ordering::Relaxed) < 100_000);
    served.server.stop();
}

#[test]
fn who_never_reads_may_send_no_more_than_it_may_be_owed() {
    let limits = Limits { output_bytes: 2 << 20, ..Limits::default() };
    let served = Served::with(limits, StoreSettings::default(), 1);
    let mut asking = std::net::TcpStream::connect(served.address()).unwrap();
    asking.set_nonblocking(true).unwrap();
    let echoes = request(&[b"ECHO", &[b'x'; 60_000]]).repeat(100);
    let mut other = Wire::to(served.address());
    let (mut sent, mut refused_in_a_row) = (0, 0);
    // Until neither the kernel nor the server takes more, however often others are served
    // meanwhile.
    while refused_in_a_row < 1000 {
        match asking.write(&echoes) {
            Ok(bytes) => (sent, refused_in_a_row) = (sent + bytes, 0),
            Err(_) => refused_in_a_row += 1,
        }
        assert_eq!(other.ask("GET none"), "$-1\r\n");
        let kept = served.service.client_memory.load(Ordering::Relaxed);
        assert!(kept <= 3 << 20, "{kept} bytes are kept");
        assert!(sent < 1 << 30, "there is no end");
    }
    served.server.stop();
}

/// Others take the processor for a while now and then; who is held up by the server is so every
/// time.
const TRIES: usize = 3;

#[test]
fn one_that_reads_long_values_for_short_replies_holds_up_nobody() {
    let served = served(Durability::EverySecond);
    let mut other = Wire::to(served.address());
    other.send(&request(&[b"SET", b"long", &vec![b'x'; 2_000_000]]));
    assert_eq!(other.reply(), b"+OK\r\n");
    let mut asking: Vec<Wire> = (0..5).map(|_| Wire::to(served.address())).collect();
    let carried_out = || served.service.statistics.commands.load(Ordering::Relaxed);
    let waited: Vec<(Duration, Duration)> = (0..TRIES)
        .map(|_| {
            let before = carried_out();
            let began = Instant::now();
            for wire in &mut asking {
                wire.send(&request(&[b"GETRANGE", b"long", b"5", b"5"]).repeat(1000));
            }
            let mut longest = Duration::ZERO;
            let mut answers = 0;
            while carried_out() < before + 5000 + answers {
                let asked = Instant::now();
                assert_eq!(other.ask("PING"), "+PONG\r\n");
                longest = longest.max(asked.elapsed());
                answers += 1;
            }
            let all = began.elapsed();
            for wire in &mut asking {
                (0..1000).for_each(|_| assert_eq!(wire.reply(), b"$1\r\nx\r\n"));
            }
            (longest, all)
        })
        .collect();
    // Each of the five in turn has had one round before: it takes a five hundredth of all, and ten
    // times as much is allowed.
    assert!(waited.iter().any(|(longest, all)| *longest < *all / 10), "{waited:?}");
    served.server.stop();
}

#[test]
fn what_is_read_before_it_is_synced_is_not_told() {
    let served = served(Durability::Always);
    let keyspace = &served.service.keyspace;
    let mut group = WriteGroup::new(keyspace.clone());
    assert!(group.hold(&[Slot::of(b"k")], Blocking::Never));
    group.keys(Blocking::Never).set(b"k", Tag::STRING, None, b"v").unwrap();
    let written = group.commit(Blocking::Never).unwrap();
    let mut wire = Wire::to(served.address());
    let syncs = || keyspace.only_store().unwrap().counters().wal_syncs;
    let readers = [
        ("GET k", "$1\r\nv\r\n"),
        ("GETEX k", "$1\r\nv\r\n"),
        ("SETNX k other", ":0\r\n"),
        ("LPUSH k element", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
        ("COPY k k2", ":0\r\n"),
    ];
    wire.ask("SET k2 v");
    for (request, reply) in readers {
        let before = syncs();
        assert_eq!(wire.ask(request), reply);
        assert_eq!(syncs(), before + 1, "{request} has waited for a sync");
    }
    // Also where it is read in one round, and what comes behind it in another, on a thread that has
    // waited for its latch.
    let mut holder = WriteGroup::new(keyspace.clone());
    assert!(holder.hold(&[Slot::of(b"k")], Blocking::Never));
    let before = syncs();
    wire.send(&[request(&[b"SETNX", b"k", b"other"]), request(&[b"INFO", b"server"])].concat());
    until("it waits", || served.service.statistics.waiting.load(Ordering::Relaxed) == 1);
    drop(holder);
    assert_eq!(wire.reply(), b":0\r\n");
    assert!(wire.reply().starts_with(b"$"));
    assert!(syncs() > before, "it has waited for a sync");
    // Who reads nothing has nothing to wait for.
    let before = syncs();
    for request in ["PING", "ECHO k", "TIME", "CLIENT ID", "MULTI", "SETNX k other", "GET"] {
        wire.ask(request);
    }
    assert_eq!(syncs(), before);
    wire.ask("DISCARD");
    wire.ask("MULTI");
    wire.ask("SETNX k other");
    let before = syncs();
    assert_eq!(wire.ask("EXEC"), "*1\r\n:0\r\n");
    assert_eq!(syncs(), before + 1);
    drop(written.unsynced);
    assert_eq!(wire.ask("GET k"), "$1\r\nv\r\n");
    assert_eq!(syncs(), before + 1, "and need not any more");
    served.server.stop();
}
