//! Places of values whose rows had to go.

use super::*;

#[test]
fn places_of_rows_that_had_to_go_are_told_until_they_are_changed() {
    for (bytes, keys) in [(1 << 18, 8000), (1 << 20, 60_000), (2 << 20, 20_000)] {
        let rows = RowCache::new(bytes, true);
        compare_with_truth(&rows, keys, 100_000);
        assert!(cached_pointers(&rows) > 100, "{}", cached_pointers(&rows));
        assert!(rows.counts().bytes <= bytes);
    }
}

#[test]
fn what_a_write_has_replaced_has_no_place() {
    for newer in [stored(None, b"newer"), with_long_header(2)] {
        let rows = RowCache::new(1 << 19, true);
        rows.keep(absent(&rows, "key"), b"key", &stored(Some(1), b"older"));
        write_stored(&rows, "key", &newer);
        // Others have its row go.
        let is_here =
            || rows.shard(XxHash3_64::oneshot(b"key")).lock().rows.peek(&XxHash3_64::oneshot(b"key")).is_some();
        for number in (0..100_000).take_while(|_| is_here()) {
            // Twice: what is asked for once takes nothing from what is asked for often.
            let other = format!("other {number}");
            read(&rows, &other, &"v".repeat(100));
            told(&rows, &other);
        }
        assert!(!is_here());
        assert!(rows.get(b"key").is_err(), "what it had before is told");
    }
}

#[test]
fn places_find_room_whatever_was_here_before_them() {
    const BYTES: u64 = 1 << 19;
    for is_overwritten in [false, true] {
        let rows = RowCache::new(BYTES, true);
        // Short values until there is no room, then pointers: under other keys, or the same ones.
        (0..10_000).for_each(|number| read(&rows, &format!("key {number}"), "@value"));
        for number in 0..20_000 {
            let name = if is_overwritten { "key" } else { "other" };
            write_stored(&rows, &format!("{name} {number}"), &stored(Some(number), b"value"));
            if is_overwritten {
                // Others want the room.
                read(&rows, &format!("more {number}"), "@value");
            }
            assert!(rows.counts().bytes <= BYTES, "{} after {number}", rows.counts().bytes);
        }
        assert!(cached_pointers(&rows) > 500, "{}", cached_pointers(&rows));
    }
}

#[test]
fn a_place_becomes_a_row_when_its_key_is_asked_for() {
    const BYTES: u64 = 1 << 19;
    let rows = RowCache::new(BYTES, true);
    let (keys, all) = (4000, 0..4000_u32);
    let key = |number: u32| format!("key {number}");
    for number in all.clone() {
        rows.keep(absent(&rows, &key(number)), key(number).as_bytes(), &stored(Some(number), b"value"));
    }
    let with_cached_pointers = all.clone().filter(|number| told_pointer(&rows, &key(*number)) == Some(*number)).count();
    let without = RowCache::new(BYTES, false);
    for number in all.clone() {
        without.keep(absent(&without, &key(number)), key(number).as_bytes(), &stored(Some(number), b"value"));
    }
    let rows_alone = all.clone().filter(|number| told_pointer(&without, &key(*number)) == Some(*number)).count();
    assert!(
        with_cached_pointers > keys * 9 / 10 && rows_alone < keys * 9 / 10,
        "{with_cached_pointers} {rows_alone} of {keys}"
    );
    assert!(rows.counts().bytes <= BYTES);
    // A value comes beside it as beside any row.
    let here = key(all.clone().find(|number| told_pointer(&rows, &key(*number)).is_some()).unwrap());
    rows.keep_value(&rows.get(here.as_bytes()).ok().unwrap(), b"value");
    assert_eq!(rows.get(here.as_bytes()).ok().unwrap().value(), Some(&b"value"[..]));
    // What is stored with its key is found in its table: only pointers have places.
    let short = RowCache::new(BYTES, true);
    all.clone().for_each(|number| read(&short, &key(number), "@value"));
    assert_eq!(cached_pointers(&short), 0);
}

#[test]
fn written_pointers_have_places_while_there_is_room() {
    let rows = RowCache::new(1 << 20, true);
    let key = |number: u32| format!("key {number}");
    let write_pointer = |number: u32, segment: u32| {
        write_stored(&rows, &key(number), &stored(Some(segment), b"value"));
    };
    (0..20_000).for_each(|number| write_pointer(number, number));
    // More come than there is room for: those that are here stay.
    let first = (0..5000).filter(|number| told_pointer(&rows, &key(*number)) == Some(*number)).count();
    assert!(first > 4500, "{first}");
    (0..5000).for_each(|number| write_pointer(number, number + 1));
    let told = (0..5000).filter_map(|number| Some((number, told_pointer(&rows, &key(number))?)));
    assert!(told.inspect(|(number, told)| assert_eq!(*told, number + 1)).count() > 4000);
}

#[test]
fn places_outlive_removed_ranges_and_never_tell_what_was_removed() {
    let rows = RowCache::new(1 << 20, true);
    let key = |number: u32| format!("key {number:05}");
    (0..20_000).for_each(|number| {
        write_stored(&rows, &key(number), &stored(Some(number), b"value"));
    });
    remove(&rows, &key(100), &key(200));
    // Beyond what a place can count, and what is remembered.
    for ranges in [0, removed::MAX_RANGES as u64 - 1, 2 * FORGOTTEN_AFTER] {
        (0..ranges).for_each(|number| remove(&rows, &format!("l{number}"), &format!("l{number}x")));
        (100..200).for_each(|number| assert_eq!(told_pointer(&rows, &key(number)), None, "{number} after {ranges}"));
        let here = (0..100).chain(200..1000).filter(|number| told_pointer(&rows, &key(*number)).is_some()).count();
        assert_eq!(here > 800, ranges < removed::MAX_RANGES as u64, "{here} after {ranges}");
    }
    assert_eq!(cached_pointers(&rows), 0);
}
