//! How many keys INFO tells, against how many there are: whatever was deleted, overwritten, tagged,
//! given a time, or collected.

use crate::common;

use std::ops::Range;

use common::Fixture;
use ecotone_engine::{Durability, StoreSettings};
use ecotone_keyspace::{Keyspace, Maintenance, Tag, Type};

/// What is promised.
const MAX_ERROR: f64 = 0.1;

/// `keys` and `expires` of `INFO keyspace`.
fn counted(fixture: &Fixture) -> [u64; 2] {
    let told = fixture.client().ask("INFO keyspace");
    let number = |name: &str| {
        let (_, rest) = told.split_once(name)?;
        rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
    };
    [number("keys=").unwrap_or(0), number("expires=").unwrap_or(0)]
}

fn is_about(fixture: &Fixture, keys: u64, expires: u64, what: &str) {
    let found = counted(fixture);
    let is_near = |found: u64, there: u64| (found as f64 - there as f64).abs() <= there as f64 * MAX_ERROR;
    assert!(
        is_near(found[0], keys) && is_near(found[1], expires),
        "{what}: {found:?} instead of {:?}",
        [keys, expires]
    );
}

fn change(fixture: &Fixture, tag: &str, keys: Range<u32>, expires_at_ms: Option<u64>, sets: bool) {
    fixture.change(|of| {
        for key in keys {
            let key = format!("{tag}{key}");
            if sets {
                of.set(key.as_bytes(), Tag::STRING, expires_at_ms, b"value").unwrap();
            } else {
                assert!(of.delete(key.as_bytes()).unwrap());
            }
        }
    });
}

fn set(fixture: &Fixture, tag: &str, keys: Range<u32>) {
    change(fixture, tag, keys, None, true);
}

fn delete(fixture: &Fixture, tag: &str, keys: Range<u32>) {
    change(fixture, tag, keys, None, false);
}

fn flush(fixture: &Fixture) {
    fixture.service.keyspace.only_store().unwrap().flush(true).unwrap();
}

#[test]
fn what_was_deleted_is_not_counted_whether_tables_know_it_or_not() {
    let fixture = Fixture::new();
    set(&fixture, "", 0..120_000);
    is_about(&fixture, 120_000, 0, "all");
    flush(&fixture);
    delete(&fixture, "", 12_000..120_000);
    is_about(&fixture, 12_000, 0, "a tenth, the deletions in memory");
    flush(&fixture);
    is_about(&fixture, 12_000, 0, "a tenth, the deletions in a table");
    set(&fixture, "", 0..12_000);
    set(&fixture, "", 0..12_000);
    is_about(&fixture, 12_000, 0, "overwritten");
    fixture.client().ask("FLUSHALL");
    is_about(&fixture, 0, 0, "nothing");
    set(&fixture, "", 0..30_000);
    is_about(&fixture, 30_000, 0, "begun anew");
}

#[test]
fn keys_that_share_a_tag_are_counted_wherever_they_are_and_however_many() {
    let fixture = Fixture::new();
    set(&fixture, "{one}", 0..100_000);
    is_about(&fixture, 100_000, 0, "one tag");
    set(&fixture, "", 0..8_000);
    is_about(&fixture, 108_000, 0, "and others without");
    for tag in 0..40 {
        set(&fixture, &format!("{{tag {tag}}}"), 0..2_000);
    }
    is_about(&fixture, 188_000, 0, "40 tags more");
    flush(&fixture);
    delete(&fixture, "{one}", 0..90_000);
    is_about(&fixture, 98_000, 0, "most of the first deleted");
    for tag in 0..40 {
        delete(&fixture, &format!("{{tag {tag}}}"), 0..2_000);
    }
    is_about(&fixture, 18_000, 0, "all of the others deleted");
}

#[test]
fn keys_whose_time_is_over_are_not_counted_and_elements_never_are() {
    let fixture = Fixture::new();
    let now_ms = fixture.service.keyspace.clock().now_ms();
    set(&fixture, "", 0..20_000);
    fixture.plant_large("large", Type::Set, 50_000);
    change(&fixture, "later ", 0..30_000, Some(now_ms + 3_600_000), true);
    change(&fixture, "over ", 0..40_000, Some(1), true);
    is_about(&fixture, 50_001, 30_000, "some are over, some will be");
    // Nobody writes, and time goes by.
    change(&fixture, "soon ", 0..30_000, Some(fixture.service.keyspace.clock().now_ms() + 1_500), true);
    let told = fixture.service.keyspace.clock().now_ms();
    counted(&fixture);
    common::served::until("they are over", || fixture.service.keyspace.clock().now_ms() >= told + 1_600);
    is_about(&fixture, 50_001, 30_000, "others have gone since");
}

/// What a server tells without being asked to count, such as its metrics.
#[test]
fn a_thread_counts_again_once_enough_has_changed_and_after_a_restart() {
    let options = || StoreSettings { durability: Durability::None, ..StoreSettings::default() }.with_separation(128);
    let mut fixture = Fixture::with(options());
    let until_about = |keyspace: &Keyspace, keys: u64| {
        common::served::until(&format!("{keys} keys are counted"), || {
            keyspace
                .cached_key_count()
                .is_some_and(|count| (count.keys as f64 - keys as f64).abs() <= keys as f64 * MAX_ERROR)
        });
    };
    for restarted in [false, true] {
        let keyspace = fixture.service.keyspace.clone();
        assert_eq!(keyspace.cached_key_count(), None);
        let maintenance = Maintenance::of(keyspace.clone(), ()).unwrap();
        until_about(&keyspace, 0);
        if !restarted {
            set(&fixture, "", 0..30_000);
            until_about(&keyspace, 30_000);
            delete(&fixture, "", 0..30_000);
            until_about(&keyspace, 0);
            flush(&fixture);
        }
        drop(maintenance);
        drop(keyspace);
        let Fixture { service, directory, .. } = fixture;
        drop(service);
        fixture = Fixture::at(directory, options());
    }
}
