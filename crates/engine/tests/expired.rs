//! Values whose time is over: compactions remove them where asked to, in either layout.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use common::contents;
use ecotone_engine::{Attributes, Separation, Store, StoreOptions, WriteOptions};

/// Of each kind.
const VALUES: u64 = 100;

/// Values with their keys, and values apart.
fn layouts() -> [StoreOptions; 2] {
    let plain = StoreOptions { reclaim_expired: true, ..common::small() };
    let separation = Some(Separation { min_bytes: 50, segment_bytes: 64 * 1024 });
    [plain.clone(), StoreOptions { separation, ..plain }]
}

/// Values long and short, with and without other attributes, whose time is over, and as many whose time comes or that have none. One table.
fn write(store: &Store) {
    let mut batch = store.batch();
    for number in 0..VALUES {
        let over = Attributes { expires_at_ms: Some(1 + number), ..Attributes::NONE };
        batch.put_with(format!("over{number}").as_bytes(), &[1; 100], &over).unwrap();
        let short = Attributes { expires_at_ms: Some(1 + number), version: Some(7), type_tag: None };
        batch.put_with(format!("short{number}").as_bytes(), &[1; 10], &short).unwrap();
        let typed = Attributes { type_tag: 3.try_into().ok(), ..over };
        batch.put_with(format!("typed{number}").as_bytes(), &[1; 10], &typed).unwrap();
        let later = Attributes { expires_at_ms: Some(u64::MAX), ..Attributes::NONE };
        batch.put_with(format!("later{number}").as_bytes(), &[2; 100], &later).unwrap();
        batch.put(format!("never{number}").as_bytes(), &[3; 10]).unwrap();
    }
    store.write(&batch, WriteOptions::default()).unwrap();
    store.flush(true).unwrap();
}

/// How many are left whose time is over. All others must be there.
fn over_left(store: &Store) -> u64 {
    let (alive, over): (Vec<_>, Vec<_>) =
        contents(store).into_iter().partition(|(key, _)| key.starts_with(b"later") || key.starts_with(b"never"));
    assert_eq!(alive.len() as u64, 2 * VALUES);
    for (key, value) in alive {
        assert_eq!(value, if key.starts_with(b"later") { vec![2; 100] } else { vec![3; 10] });
    }
    over.len() as u64
}

#[test]
fn values_whose_time_is_over_are_reclaimed_where_asked_for_and_only_there() {
    for options in layouts() {
        for reclaim_expired in [false, true] {
            let (_directory, store) = common::store(StoreOptions { reclaim_expired, ..options.clone() });
            // It does not appear again where the newer one goes.
            store.put(b"over7", b"older").unwrap();
            store.flush(true).unwrap();
            write(&store);
            store.compact(..).unwrap();
            let removed = if reclaim_expired { 3 * VALUES } else { 0 };
            assert_eq!((over_left(&store), store.counters().expired_values), (3 * VALUES - removed, removed));
            assert_eq!(store.get(b"over7").unwrap().is_some(), !reclaim_expired);
        }
    }
}
