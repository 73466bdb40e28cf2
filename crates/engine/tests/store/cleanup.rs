//! Ranges that churn are cleaned up where scans step over what is gone, and nowhere else. What is
//! judged is what scans step over, not how long that takes.

use crate::common;

use std::time::{Duration, Instant};

use common::random::with_seeds;
use common::store;
use ecotone_engine::{Direction, Store, StoreSettings};

/// How long a cleanup may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The least that a cleanup costs, in entries that were stepped over before (`cleanup::plan`).
const MIN_COST: u64 = 40_000;

const LIVE: u32 = 500;

/// The key of a family that comes as the one with this number.
fn key(family: &str, number: u32) -> Vec<u8> {
    let place = match family {
        "first" => number,
        "last" => 9_999_999 - number,
        // In no order.
        _ => number.wrapping_mul(0x9E37_79B1) >> 12,
    };
    format!("{family}/{place:07}/{number}").into_bytes()
}

/// Reads up to `most` keys of the family: how many entries that steps over.
fn skipped(store: &Store, family: &str, direction: Direction, most: usize) -> u64 {
    let (from, to) = (format!("{family}/").into_bytes(), format!("{family}0").into_bytes());
    let mut scan = store.scan(from.as_slice()..to.as_slice(), direction, None).unwrap();
    let mut found = 0;
    while found < most && scan.next_key().unwrap().is_some() {
        found += 1;
    }
    scan.skipped()
}

/// Reads time and again until a read steps over no more than twice what lives: it costs three times
/// as much as one of a fresh range at most.
fn read_until_it_is_cheap(store: &Store, family: &str, direction: Direction, most: usize) {
    let began = Instant::now();
    while skipped(store, family, direction, most) > 2 * u64::from(LIVE) {
        assert!(began.elapsed() < PATIENCE, "{family} {direction:?}: {:?}", store.counters());
        std::thread::yield_now();
    }
}

/// Writes `entries` keys of which the last 500 stay, and each other is removed 500 later.
fn churn(store: &Store, family: &str, from: u32, entries: u32) {
    for number in from..from + entries {
        store.put(&key(family, number), b"value").unwrap();
        if number >= LIVE {
            store.delete(&key(family, number - LIVE)).unwrap();
        }
    }
}

#[test]
fn however_long_a_range_churns_reads_of_it_are_cheap_again() {
    let (_directory, store) = store(StoreSettings::default());
    let mut from = 0;
    with_seeds(4, |_| {
        for (family, direction, most) in [
            ("scattered", Direction::Forward, usize::MAX),
            ("first", Direction::Forward, 1),
            ("last", Direction::Reverse, 10),
        ] {
            churn(&store, family, from, 8_000);
            read_until_it_is_cheap(&store, family, direction, most);
        }
        from += 8_000;
        // What cleans up was paid for by who stepped over it.
        let counters = store.counters();
        assert!(counters.range_cleanups > 0 && counters.skipped_entries >= MIN_COST * counters.range_cleanups);
    });
    for family in ["scattered", "first", "last"] {
        let left = (0..from).filter(|number| store.get(&key(family, *number)).unwrap().is_some());
        assert!(left.eq(from - LIVE..from), "nothing else is gone");
    }
}

#[test]
fn versions_that_are_shadowed_are_cleaned_up_as_well() {
    let (_directory, store) = store(StoreSettings::default());
    for version in 0..40 {
        for number in 0..LIVE {
            store.put(&key("overwritten", number), &[version]).unwrap();
        }
    }
    read_until_it_is_cheap(&store, "overwritten", Direction::Forward, usize::MAX);
    assert!((0..LIVE).all(|number| store.get(&key("overwritten", number)).unwrap().as_deref() == Some(&[39][..])));
}

#[test]
fn tables_that_came_before_are_rid_of_what_was_removed_from_them() {
    let options = StoreSettings { target_file_bytes: 64 * 1024, ..StoreSettings::default() };
    let (_directory, store) = store(options);
    // Far down, with others beside them that nobody reads.
    for family in ["a", "read", "z"] {
        (0..20_000).for_each(|number| store.put(&key(family, number), &[7; 50]).unwrap());
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    for family in ["a", "read", "z"] {
        (LIVE..20_000).for_each(|number| store.delete(&key(family, number)).unwrap());
    }
    store.flush(true).unwrap();
    read_until_it_is_cheap(&store, "read", Direction::Forward, usize::MAX);
    assert!(skipped(&store, "read", Direction::Reverse, usize::MAX) <= 2 * u64::from(LIVE));
}

#[test]
fn what_nobody_scans_is_left_alone_and_what_cannot_go_costs_no_more_than_it_throttled() {
    let (_directory, store) = store(StoreSettings::default());
    churn(&store, "unread", 0, 30_000);
    assert_eq!(store.counters().range_cleanups, 0);
    // A snapshot keeps all that is removed after it was made.
    (0..5_000).for_each(|number| store.put(&key("kept", number), b"value").unwrap());
    let snapshot = store.snapshot();
    (LIVE..5_000).for_each(|number| store.delete(&key("kept", number)).unwrap());
    for _ in 0..200 {
        skipped(&store, "kept", Direction::Forward, usize::MAX);
    }
    let counters = store.counters();
    assert!(counters.skipped_entries >= MIN_COST * counters.range_cleanups, "{counters:?}");
    let (from, to) = (b"kept/".as_slice(), b"kept0".as_slice());
    assert_eq!(snapshot.scan(from..to, Direction::Forward).unwrap().count(), 5_000);
    drop(snapshot);
    read_until_it_is_cheap(&store, "kept", Direction::Forward, usize::MAX);
}

#[test]
fn a_store_is_closed_while_it_cleans_up() {
    let (_directory, store) = store(StoreSettings::default());
    churn(&store, "churned", 0, 20_000);
    for _ in 0..8 {
        skipped(&store, "churned", Direction::Forward, usize::MAX);
    }
    store.close().unwrap();
}
