//! What a pipeline costs the store: its writes are one batch, one record of the log and one sync; its reads are one lookup.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use common::served::Served;
use common::wire::{Wire, request};
use ecotone_engine::{Counters, Durability, StoreOptions};
use ecotone_resp::service::Limits;

/// Requests of a pipeline.
const DEEP: usize = 16;

/// A server whose store counts nothing but what clients make it do: on one lane, and nothing is old enough to be noted or reclaimed.
fn served(durability: Durability) -> Served {
    let options = StoreOptions { durability, ..StoreOptions::default() }.with_separation(128);
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

/// What the store has done when all of `pieces` were sent, each after the replies to the one before.
fn done(served: &Served, pieces: &[Vec<u8>], replies: usize) -> Counters {
    let counters = || served.service.keyspace.store().counters();
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
            served.service.keyspace.store().flush(true).unwrap();
            // Into memory: what would wait for the device is read by another thread, where it waits.
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
    let before = served.service.keyspace.store().counters();
    let mut wire = Wire::to(served.address());
    wire.send(&request(&arguments));
    assert!(wire.reply().starts_with(format!("*{DEEP}\r\n").as_bytes()));
    let after = served.service.keyspace.store().counters();
    assert_eq!((after.multi_gets - before.multi_gets, after.keys_read - before.keys_read), (1, DEEP as u64));
    served.server.stop();
}
