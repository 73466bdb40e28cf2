use ecotone_valuelog::pointer::{RecordPointer, SegmentNumber};

use super::*;
use crate::header::{Attributes, PLAIN, encode_separated};
use crate::{Batch, OpenMode, Store, StoreSettings, WriteOptions};

mod of_cached_pointers;

const SPACE: u64 = 8 << 20;

fn put<'c>(key: &'c str, stored: &'c [u8]) -> RowChange<'c> {
    RowChange::Put { key: key.as_bytes(), stored, separated: None }
}

fn changes<'c>(changes: &[(&'c str, Option<&'c str>)]) -> Vec<RowChange<'c>> {
    let change = |(key, value): &(&'c str, Option<&'c str>)| match value {
        Some(value) => put(key, value.as_bytes()),
        None => RowChange::Delete { key: key.as_bytes() },
    };
    changes.iter().map(change).collect()
}

fn begin<'c>(
    rows: &'c RowCache,
    changes: &'c [RowChange<'c>],
) -> Writing<'c, impl Iterator<Item = RowChange<'c>> + Clone> {
    rows.begin_write(changes.iter().copied())
}

fn write(rows: &RowCache, change: &[(&str, Option<&str>)]) {
    begin(rows, &changes(change)).succeed();
}

fn write_stored(rows: &RowCache, key: &str, stored: &[u8]) {
    begin(rows, &[put(key, stored)]).succeed();
}

fn told(rows: &RowCache, key: &str) -> Option<String> {
    rows.get(key.as_bytes()).ok().map(|row| String::from_utf8(row.stored().to_vec()).unwrap())
}

/// Has `key` found with `value`.
fn read(rows: &RowCache, key: &str, value: &str) {
    rows.keep(absent(rows, key), key.as_bytes(), value.as_bytes());
}

fn absent(rows: &RowCache, key: &str) -> Absent {
    rows.get(key.as_bytes()).map(|_| ()).unwrap_err()
}

#[test]
fn what_was_written_or_found_is_told_until_it_is_changed() {
    let rows = RowCache::new(SPACE, false);
    let (a, b) = (absent(&rows, "a"), absent(&rows, "b"));
    rows.keep(a, b"a", b"1");
    rows.keep(b, b"b", b"");
    assert_eq!((told(&rows, "a").as_deref(), told(&rows, "b").as_deref()), (Some("1"), Some("")));
    write(&rows, &[("a", Some("2")), ("b", Some("3")), ("b", Some("4")), ("c", Some("@5")), ("d", Some("@"))]);
    assert_eq!(told(&rows, "a").as_deref(), Some("2"));
    assert_eq!(told(&rows, "b").as_deref(), Some("4"), "the last one of a batch holds");
    assert_eq!(told(&rows, "c").as_deref(), Some("@5"), "there is room");
    assert_eq!(told(&rows, "d"), None, "it has no value");
    write(&rows, &[("a", Some("6")), ("a", None)]);
    assert_eq!(told(&rows, "a"), None);
    rows.forget(b"b");
    assert_eq!(told(&rows, "b"), None);
    let counts = rows.counts();
    assert_eq!((counts.hits, counts.misses), (5, 5));
}

#[test]
fn who_was_told_a_row_keeps_it_over_a_write() {
    let rows = RowCache::new(SPACE, false);
    read(&rows, "a", "@one");
    let bytes = rows.counts().bytes;
    let told_before = rows.get(b"a").ok().unwrap();
    for (number, value) in ["@two", "@six", "@ten", "@more", "@"].into_iter().enumerate() {
        write(&rows, &[("a", Some(value))]);
        assert_eq!(told(&rows, "a").as_deref(), Some(value));
        assert_eq!(told_before.stored(), b"@one");
        assert_eq!(rows.counts().bytes == bytes, number < 3, "{value}: one row, of its length");
    }
}

#[test]
fn while_a_key_is_written_nothing_of_it_is_told_or_kept() {
    let rows = RowCache::new(SPACE, false);
    let before = absent(&rows, "a");
    let change = changes(&[("a", Some("new"))]);
    let writing = begin(&rows, &change);
    // Found before the write, which RocksDB may have done already.
    rows.keep(before, b"a", b"old");
    assert_eq!(told(&rows, "a"), None);
    let meanwhile = absent(&rows, "a");
    rows.keep(meanwhile, b"a", b"old");
    writing.succeed();
    rows.keep(before, b"a", b"old");
    rows.keep(meanwhile, b"a", b"old");
    assert_eq!(told(&rows, "a").as_deref(), Some("new"));
    // One that was told before is not told while it changes.
    let writing = begin(&rows, &change);
    assert_eq!(told(&rows, "a"), None);
    drop(writing);
    assert_eq!(told(&rows, "a"), None, "what became of a write that failed is for RocksDB to say");
}

#[test]
fn of_two_writes_at_a_time_neither_says_what_a_key_has() {
    let rows = RowCache::new(SPACE, false);
    read(&rows, "a", "0");
    let (one, other) = (changes(&[("a", Some("1"))]), changes(&[("a", Some("2"))]));
    let (first, second) = (begin(&rows, &one), begin(&rows, &other));
    second.succeed();
    assert_eq!(told(&rows, "a"), None);
    first.succeed();
    assert_eq!(told(&rows, "a"), None);
    read(&rows, "a", "2");
    write(&rows, &[("a", Some("3"))]);
    assert_eq!(told(&rows, "a").as_deref(), Some("3"));
}

#[test]
fn a_range_that_is_removed_takes_its_rows_and_a_wide_one_all() {
    for (to, takes_all) in [("3", false), ("5", true)] {
        let rows = RowCache::new(SPACE, false);
        let keys: Vec<String> = (0..1000).map(|number| format!("{number:03}")).collect();
        keys.iter().for_each(|key| read(&rows, key, "value"));
        let stale = absent(&rows, "25");
        let removal = [RowChange::DeleteRange { from: b"25", to: to.as_bytes() }, put("300", b"again")];
        let writing = begin(&rows, &removal);
        assert_eq!(told(&rows, "000"), None, "any row may be in the range");
        writing.succeed();
        rows.keep(stale, b"25", b"stale");
        for key in &keys {
            let is_in_range = ("25"..to).contains(&key.as_str());
            let is_there = !is_in_range && !takes_all && key != "300";
            assert_eq!(told(&rows, key).is_some(), is_there, "{key}, {to}");
        }
        assert_eq!(told(&rows, "25"), None);
        if takes_all {
            until_freed(&rows);
        }
        assert_eq!(rows.counts().bytes == 0, takes_all);
        read(&rows, "26", "again");
        assert_eq!(told(&rows, "26").as_deref(), Some("again"));
    }
}

/// What a wide removal took is freed by a thread.
fn until_freed(rows: &RowCache) {
    while rows.freeing.is_under_way.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Reads so many keys, each with its number.
fn read_many(rows: &RowCache, keys: u64) {
    for number in 0..keys {
        let key = format!("{number:08}");
        if told(rows, &key).is_none() {
            read(rows, &key, &key);
        }
    }
}

#[test]
fn rows_that_are_not_freed_yet_and_those_that_come_fit_together() {
    let rows = RowCache::new(SPACE, false);
    // More than there is room for; and half of that, at first.
    let (keys, most) = (SPACE / 128, SPACE);
    read_many(&rows, SPACE / 2 / weight(16));
    let half = rows.counts().bytes;
    assert!(half > SPACE / 3 && half < SPACE * 2 / 3, "{half}");
    // The thread does not get to it.
    let gone = rows.let_go().unwrap();
    assert_eq!(told(&rows, "00000001"), None);
    for _ in 0..3 {
        read_many(&rows, keys);
        write(&rows, &[("written", Some("value"))]);
        let all = rows.counts().bytes;
        assert!(all > SPACE * 3 / 4 && all <= most, "{all}");
    }
    // Another wide removal takes what has come, and lets go of nothing more.
    let came = (0..keys).map(|number| format!("{number:08}")).find(|key| told(&rows, key).is_some()).unwrap();
    remove(&rows, "0", "9");
    assert_eq!(told(&rows, &came), None);
    assert!(rows.let_go().is_none() && rows.counts().bytes <= most);
    drop(gone);
    read_many(&rows, keys);
    let again = rows.counts().bytes;
    assert!(again > SPACE * 3 / 4 && again <= most, "{again}");
    remove(&rows, "0", "9");
    until_freed(&rows);
    assert_eq!(rows.counts().bytes, 0);
}

fn remove(rows: &RowCache, from: &str, to: &str) {
    begin(rows, &[RowChange::DeleteRange { from: from.as_bytes(), to: to.as_bytes() }]).succeed();
}

/// Has what `rows` tell compared with the truth, while keys are written, read and removed. What is
/// written are pointers and values that stand with their keys, each another one, some of them
/// behind a longer header than a place takes.
fn compare_with_truth(rows: &RowCache, keys: u64, steps: u64) {
    let mut truth = std::collections::BTreeMap::new();
    let mut state = 7_u64;
    let mut random = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let (mut told_rows, mut removed_rows, mut failed) = (0, 0, 0);
    for step in 0..steps {
        let key = format!("{:05}", random(keys));
        match random(20) {
            0..=5 => {
                let written = match random(4) {
                    0 => stored(None, step.to_string().as_bytes()),
                    1 => with_long_header(step as u32),
                    _ => stored(Some(step as u32), b"value"),
                };
                let change = [put(&key, &written)];
                let writing = begin(rows, &change);
                if random(10) == 0 {
                    // RocksDB may have it all the same.
                    drop(writing);
                    failed += 1;
                } else {
                    writing.succeed();
                }
                truth.insert(key, written);
            }
            6 => {
                // One in ten is large, and may reach into those with another first byte.
                let length = if random(10) == 0 { 1000 } else { 5 };
                let end = format!("{:05}", key.parse::<u64>().unwrap() + random(length));
                remove(rows, &key, &end);
                let before = truth.len();
                truth.retain(|other, _| !(key.as_str()..end.as_str()).contains(&other.as_str()));
                removed_rows += before - truth.len();
            }
            7 => {
                write(rows, &[(&key, None)]);
                truth.remove(&key);
            }
            8 => rows.forget(key.as_bytes()),
            _ => match (rows.get(key.as_bytes()), truth.get(&key)) {
                (Ok(row), found) => {
                    told_rows += 1;
                    assert_eq!(Some(row.stored()), found.map(Vec::as_slice), "{key} at {step}");
                    if random(2) == 0 && is_pointer(row.stored()) {
                        rows.keep_value(&row, &[b'v'; 1000]);
                    }
                }
                (Err(absent), Some(found)) => rows.keep(absent, key.as_bytes(), found),
                (Err(_), None) => (),
            },
        }
    }
    assert!(told_rows > 1000 && removed_rows > 1000 && failed > 1000, "{told_rows} {removed_rows} {failed}");
    for number in 0..keys {
        let key = format!("{number:05}");
        let hash = XxHash3_64::oneshot(key.as_bytes());
        let mut shard = rows.shard(hash).lock();
        let has_row = shard.rows.peek(&hash).is_some();
        assert!(
            !has_row || shard.cached_pointers.take(rows.tag(key.as_bytes())).is_none(),
            "{key} has a row and a place"
        );
    }
}

/// A pointer behind a header with an expiry and a version, which no place takes.
fn with_long_header(segment: u32) -> Vec<u8> {
    let attributes = Attributes { expires_at_ms: Some(1), version: Some(1), ..Attributes::NONE };
    let mut header = Vec::new();
    crate::header::encode_inline(&attributes, &mut header).unwrap();
    let mut stored = Vec::new();
    let pointer = RecordPointer { segment: SegmentNumber(segment), offset: 4096, value_bytes: 5, stored_bytes: None };
    encode_separated(&header, pointer, &mut stored);
    assert!(stored.len() > cached_pointers::MAX_CACHED_POINTER_BYTES);
    stored
}

/// How many keys have a place and no row.
fn cached_pointers(rows: &RowCache) -> usize {
    rows.shards.iter().map(|shard| shard.lock().cached_pointers.count()).sum()
}

#[test]
fn after_ranges_of_any_size_nothing_is_told_that_was_removed() {
    compare_with_truth(&RowCache::new(SPACE, false), 4000, 60_000);
}

fn told_pointer(rows: &RowCache, key: &str) -> Option<u32> {
    match Header::decode(rows.get(key.as_bytes()).ok()?.stored()).unwrap().kind {
        Kind::Separated(pointer) => Some(pointer.segment.0),
        Kind::Inline => None,
    }
}

#[test]
fn rows_that_are_asked_for_outlive_any_number_of_removed_ranges() {
    let rows = RowCache::new(SPACE, false);
    read(&rows, "often", "value");
    read(&rows, "seldom", "value");
    for number in 0..3 * removed::MAX_RANGES {
        remove(&rows, &format!("k{number:05}"), &format!("k{:05}", number + 1));
        if number % 100 == 0 {
            assert_eq!(told(&rows, "often").as_deref(), Some("value"), "{number}");
        }
    }
    // It may have been in one that is forgotten.
    assert_eq!(told(&rows, "seldom"), None);
    read(&rows, "seldom", "value");
    assert_eq!(told(&rows, "seldom").as_deref(), Some("value"));
}

#[test]
fn a_value_does_not_bring_back_a_row_that_was_removed() {
    let rows = RowCache::new(SPACE, false);
    read(&rows, "key", "pointer");
    let row = rows.get(b"key").ok().unwrap();
    remove(&rows, "kex", "kez");
    rows.keep_value(&row, b"value");
    assert_eq!(told(&rows, "key"), None);
}

#[test]
fn it_takes_what_it_was_given_and_keeps_what_is_read_often() {
    const BYTES: u64 = 1 << 20;
    let rows = RowCache::new(BYTES, false);
    let value = "v".repeat(100);
    let ask = |key: &str| match rows.get(key.as_bytes()) {
        Ok(row) => assert_eq!(row.stored(), value.as_bytes()),
        Err(absent) => rows.keep(absent, key.as_bytes(), value.as_bytes()),
    };
    let often: Vec<String> = (0..500).map(|number| format!("often {number}")).collect();
    for round in 0..100 {
        often.iter().for_each(|key| ask(key));
        (0..1000).for_each(|number| ask(&format!("once {round} {number}")));
        assert!(rows.counts().bytes <= BYTES, "{round}");
    }
    let kept = often.iter().filter(|key| told(&rows, key).is_some()).count();
    assert!(kept > 400, "{kept}");
    assert!(rows.counts().bytes > BYTES / 2);
    // Where there is no room, writes take none from what is read.
    (0..20_000).for_each(|number| write(&rows, &[(&format!("written {number}"), Some(&value))]));
    let kept_after = often.iter().filter(|key| told(&rows, key).is_some()).count();
    assert!(kept_after + 20 > kept, "{kept_after}");
    assert!(rows.counts().bytes <= BYTES);
    let long = "v".repeat(MAX_ROW_BYTES + 1);
    write(&rows, &[("often 0", Some(&long))]);
    assert_eq!(told(&rows, "often 0"), None);
    rows.keep(absent(&rows, "long"), b"long", long.as_bytes());
    assert_eq!(told(&rows, "long"), None);
}

#[test]
fn no_reader_sees_an_older_value_after_a_newer_one() {
    // What RocksDB is to the cache: the truth, changed while the cache is told of it. In the second
    // one rows give way to one another all the time.
    let (roomy, crowded) = (RowCache::new(SPACE, false), RowCache::new(4096, true));
    for rows in [roomy, crowded] {
        const KEYS: usize = 64;
        let truth = [const { AtomicU64::new(0) }; KEYS];
        let keys: Vec<String> = (0..KEYS).map(|number| format!("key {number}")).collect();
        let writing = AtomicU64::new(2);
        let number_of = |row: &Row| match Header::decode(row.stored()).unwrap().kind {
            Kind::Separated(pointer) => u64::from(pointer.segment.0),
            Kind::Inline => std::str::from_utf8(&row.stored()[1..]).unwrap().parse().unwrap(),
        };
        // Pointers, and now and then what has no place.
        let stored_for = |number: u64| match number % 8 {
            7 => stored(None, number.to_string().as_bytes()),
            _ => stored(Some(number as u32), b"value"),
        };
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (rows, truth, keys, writing) = (&rows, &truth, &keys, &writing);
                scope.spawn(move || {
                    for round in 0..40_000 {
                        // Each has keys of its own.
                        let which = round % (KEYS / 2) * 2 + thread;
                        let stored = stored_for(truth[which].load(Ordering::SeqCst) + 1);
                        let change = [put(&keys[which], &stored)];
                        let write = begin(rows, &change);
                        truth[which].fetch_add(1, Ordering::SeqCst);
                        write.succeed();
                    }
                    writing.fetch_sub(1, Ordering::SeqCst);
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut seen = [0; KEYS];
                    while writing.load(Ordering::SeqCst) > 0 {
                        for (which, key) in keys.iter().enumerate() {
                            let found = match rows.get(key.as_bytes()) {
                                Ok(row) => {
                                    rows.keep_value(&row, b"value");
                                    number_of(&row)
                                }
                                Err(absent) => {
                                    let found = truth[which].load(Ordering::SeqCst);
                                    rows.keep(absent, key.as_bytes(), &stored_for(found));
                                    found
                                }
                            };
                            assert!(found >= seen[which], "{found} after {}", seen[which]);
                            seen[which] = found;
                        }
                    }
                });
            }
        });
        for (key, truth) in keys.iter().zip(&truth) {
            if let Ok(row) = rows.get(key.as_bytes()) {
                assert_eq!(number_of(&row), truth.load(Ordering::SeqCst));
            }
        }
        assert_eq!(cached_pointers(&rows) > 0, rows.has_pointers);
    }
}

#[test]
fn a_value_is_told_with_its_pointer_until_that_is_changed() {
    let rows = RowCache::new(SPACE, false);
    let row = |key: &str| rows.get(key.as_bytes()).ok().unwrap();
    let value = |key: &str| row(key).value().map(|value| String::from_utf8(value.to_vec()).unwrap());
    write(&rows, &[("a", Some("pointer")), ("b", Some("other"))]);
    assert_eq!(value("a"), None);
    let before = row("a");
    rows.keep_value(&before, b"the value");
    assert_eq!((told(&rows, "a").as_deref(), value("a").as_deref()), (Some("pointer"), Some("the value")));
    assert_eq!(value("b"), None);
    assert!(rows.counts().bytes > before.bytes.len() as u64 + "the value".len() as u64);
    // Of what stood there before, though it looks the same.
    write(&rows, &[("a", Some("pointer"))]);
    assert_eq!(value("a"), None);
    rows.keep_value(&before, b"an older value");
    assert_eq!(value("a"), None);
    let row_now = row("a");
    rows.forget(b"a");
    rows.keep_value(&row_now, b"a value");
    assert_eq!(told(&rows, "a"), None, "a value alone is of no use");
    let b = row("b");
    rows.keep_value(&b, &[b'v'; MAX_VALUE_BYTES + 1]);
    assert_eq!(value("b"), None);
    rows.keep_value(&b, &[b'v'; MAX_VALUE_BYTES]);
    assert_eq!(value("b").map(|value| value.len()), Some(MAX_VALUE_BYTES));
}

/// What is stored in the place of a value that is separated, or with a value that does not.
fn stored(segment: Option<u32>, payload: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    match segment {
        Some(segment) => {
            let value_bytes = payload.len() as u32;
            let pointer =
                RecordPointer { segment: SegmentNumber(segment), offset: 4096, value_bytes, stored_bytes: None };
            encode_separated(&[PLAIN], pointer, &mut stored);
        }
        None => stored.extend([&[PLAIN], payload].concat()),
    }
    stored
}

#[test]
fn a_row_that_had_its_value_has_the_one_that_was_written() {
    let rows = RowCache::new(SPACE, false);
    let value = |key: &str| rows.get(key.as_bytes()).ok().unwrap().value().map(<[u8]>::to_vec);
    let keys = ["a", "b", "c", "d", "e"];
    for key in keys {
        rows.keep(absent(&rows, key), key.as_bytes(), &stored(Some(1), b"old"));
        if key != "b" {
            rows.keep_value(&rows.get(key.as_bytes()).ok().unwrap(), b"old");
        }
    }
    // The values of a batch, one of which stays with its key; a deletion comes between them.
    let long = [b'l'; MAX_VALUE_BYTES + 1];
    let puts: [(&str, Option<u32>, &[u8]); 4] =
        [("a", Some(2), b"new a"), ("b", Some(2), b"new b"), ("d", None, b"new d"), ("e", Some(3), &long)];
    let written = puts.map(|(_, segment, payload)| stored(segment, payload));
    let mut batch: Vec<_> = puts
        .iter()
        .zip(&written)
        .map(|((key, segment, payload), stored)| RowChange::Put {
            key: key.as_bytes(),
            stored,
            separated: segment.map(|_| *payload),
        })
        .collect();
    batch.insert(1, RowChange::Delete { key: b"c" });
    begin(&rows, &batch).succeed();
    for (key, segment, payload) in puts {
        assert_eq!(rows.get(key.as_bytes()).ok().unwrap().stored(), stored(segment, payload), "{key}");
    }
    assert_eq!(value("a").as_deref(), Some(b"new a".as_slice()));
    assert_eq!(value("b"), None, "nobody has read it");
    assert_eq!(told(&rows, "c"), None);
    assert_eq!(value("d"), None, "it stands with its key");
    assert_eq!(value("e"), None, "it is too long");
    // A single one.
    let pointer = stored(Some(4), b"newer");
    let single = |value| [RowChange::Put { key: b"a", stored: &pointer, separated: Some(value) }];
    begin(&rows, &single(b"newer")).succeed();
    assert_eq!(value("a").as_deref(), Some(b"newer".as_slice()));
    // Of two at a time nobody knows which was the last.
    let (one, other) = (single(b"one"), single(b"other"));
    let (first, second) = (begin(&rows, &one), begin(&rows, &other));
    first.succeed();
    second.succeed();
    assert!(rows.get(b"a").is_err());
    rows.keep(absent(&rows, "a"), b"a", &pointer);
    drop(begin(&rows, &single(b"never")));
    assert!(rows.get(b"a").is_err(), "it failed");
}

#[test]
fn values_take_no_more_than_there_is() {
    const BYTES: u64 = 4 << 20;
    let rows = RowCache::new(BYTES, false);
    let value = [b'v'; MAX_VALUE_BYTES];
    for number in 0..5_000 {
        let key = format!("key {number}");
        read(&rows, &key, "pointer");
        let Ok(row) = rows.get(key.as_bytes()) else { continue };
        rows.keep_value(&row, &value);
        assert!(rows.counts().bytes <= BYTES, "{number}");
    }
    let kept = (0..5_000).filter_map(|number| rows.get(format!("key {number}").as_bytes()).ok());
    assert!(kept.filter(|row| row.value().is_some()).count() > 500);
}

#[test]
fn a_value_that_is_large_for_its_cache_costs_no_row() {
    let rows = RowCache::new(4096, false);
    read(&rows, "a", "pointer");
    let row = rows.get(b"a").ok().unwrap();
    rows.keep_value(&row, &[b'v'; MAX_VALUE_BYTES]);
    assert_eq!(told(&rows, "a").as_deref(), Some("pointer"));
    assert_eq!(rows.get(b"a").ok().unwrap().value(), None);
}

#[test]
fn a_row_that_leads_to_a_segment_that_has_gone_is_asked_of_rocksdb() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreSettings { row_cache_bytes: Some(SPACE), ..StoreSettings::separated(128) };
    let store = Store::open(directory.path(), OpenMode::Create, options).unwrap();
    let value = [b'v'; 300];
    store.put(b"key", &value).unwrap();
    let rows = store.rows.as_ref().unwrap();
    let stale = |key: &[u8]| {
        rows.forget(key);
        let absent = rows.get(key).map(|_| ()).unwrap_err();
        rows.keep(absent, key, &stored(Some(999), &value));
    };
    stale(b"key");
    assert_eq!(store.try_get(b"key").unwrap().as_deref(), Some(&value[..]));
    assert_ne!(told_pointer(rows, "key"), Some(999));
    stale(b"key");
    {
        let found = store.multi_get_first(&[b"key"], true).remove(0).unwrap();
        assert_eq!(found.as_deref(), Some(&value[..]));
    }
    stale(b"gone");
    assert_eq!(store.try_get(b"gone").unwrap().as_deref(), None);
    store.close().unwrap();
}

#[test]
fn a_store_tells_its_rows_the_values_that_it_writes() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreSettings { row_cache_bytes: Some(SPACE), ..StoreSettings::separated(128) };
    let store = Store::open(directory.path(), OpenMode::Create, options).unwrap();
    let of_row = |key: &[u8]| store.rows.as_ref().unwrap().get(key).ok().unwrap().value().map(<[u8]>::to_vec);
    let (long, short) = (|byte: u8| vec![byte; 300], b"short");
    let keys: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    for key in keys {
        store.put(key, &long(b'1')).unwrap();
        assert_eq!(of_row(key), None);
        assert_eq!(store.get(key).unwrap().as_deref(), Some(&*long(b'1')));
        assert_eq!(of_row(key), Some(long(b'1')));
    }
    store.put(b"a", &long(b'2')).unwrap();
    assert_eq!(of_row(b"a"), Some(long(b'2')));
    let mut batch = Batch::new();
    batch.put(b"a", &long(b'3')).unwrap();
    batch.delete(b"b").unwrap();
    batch.put(b"c", short).unwrap();
    let attributes = Attributes { expires_at_ms: Some(u64::MAX), ..Attributes::NONE };
    batch.put_with(b"d", &long(b'4'), &attributes).unwrap();
    store.write(&batch, WriteOptions::default()).unwrap();
    assert_eq!((of_row(b"a"), of_row(b"c"), of_row(b"d")), (Some(long(b'3')), None, Some(long(b'4'))));
    assert_eq!(store.get(b"c").unwrap().as_deref(), Some(&short[..]));
    assert_eq!(store.get(b"d").unwrap().unwrap().attributes(), &attributes);
    store.close().unwrap();
}
