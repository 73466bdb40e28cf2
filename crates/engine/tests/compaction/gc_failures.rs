//! Garbage collection that meets what it cannot do: segments that cannot be read, pages that are
//! gone, memory that is used up, candidate sets that wait for compactions which do not come.

use crate::common;

use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::offloads::AdmissionControl;
use common::{Model, assert_equals, fill, until, value_of, warnings};
use ecotone_engine::{Compression, Error, OpenMode, Separation, Store, StoreSettings, ValueLogProperties};
use ecotone_policy::gc::GcParameters;
use ecotone_types::units::Bytes;

const SEGMENT_BYTES: u64 = 64 * 1024;

const VALUE_BYTES: usize = 100;

/// Of a record of these tests, as docs/internals/formats.md has it.
const RECORD_BYTES: u64 = 12 + 9 + VALUE_BYTES as u64;

/// Keys whose values fill a segment, when they are written one after the other.
const KEYS_OF_SEGMENT: u64 = (SEGMENT_BYTES - 32) / RECORD_BYTES;

/// Relocates early, and forcibly all that is worth it at once.
fn relocating() -> StoreSettings {
    StoreSettings {
        separation: Some(Separation { min_bytes: 50, segment_bytes: SEGMENT_BYTES }),
        gc: GcParameters {
            forced_copy_share: 1.0,
            min_garbage_bytes: Bytes(4096),
            // What is forcibly waits for compactions that run anyway, however much garbage there
            // is.
            urgent_ratio: 40.0,
            ..GcParameters::default()
        },
        // So that the keys of one segment are not all in one table with those of all others.
        compression: Compression::None,
        ..common::small()
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Writes a value for each of the keys, in their order, and brings them to the last level.
fn load(store: &Store, keys: Range<u64>) -> Model {
    let mut model = Model::new();
    for number in keys {
        let key = key(number);
        let value = value_of(&key, 0, VALUE_BYTES);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    model
}

/// A store that relocates nothing: otherwise a compaction that meets garbage relocates what lives
/// beside it at once.
fn at_rest(options: StoreSettings) -> StoreSettings {
    StoreSettings { gc: GcParameters { min_garbage_bytes: Bytes(u64::MAX), ..options.gc }, ..options }
}

/// Deletes keys, and makes their values known to be garbage.
fn delete(store: &Store, model: &mut Model, keys: impl Iterator<Item = u64>) {
    let keys: Vec<_> = keys.map(key).collect();
    for key in &keys {
        store.delete(key).unwrap();
        model.remove(key);
    }
    store.flush(true).unwrap();
    store.compact(&keys[0][..]..=&keys[keys.len() - 1][..]).unwrap();
}

/// The keys whose values are in the segment of this number after a load of all keys from 0 on.
fn keys_of(segment: u64) -> Range<u64> {
    (segment - 1) * KEYS_OF_SEGMENT..segment * KEYS_OF_SEGMENT
}

fn segment(store: &Path, number: u64) -> PathBuf {
    store.join(format!("values/{number:06}.segment"))
}

fn live(model: &Model) -> u64 {
    model.len() as u64 * RECORD_BYTES
}

/// Every entry is what it was, or, in the segment of this name, an error that names it. Returns how
/// many are such errors.
fn errors_of(store: &Store, model: &Model, segment: &str) -> u64 {
    let mut errors = 0;
    for (key, value) in model {
        match store.get(key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Err(Error::Corrupt { location: Some(location), .. }) if location.contains(segment) => errors += 1,
            Err(other) => panic!("{other}"),
        }
    }
    errors
}

#[test]
fn a_segment_that_cannot_be_read_is_set_aside_and_the_others_are_relocated() {
    warnings::listen();
    let (directory, store) = common::store(relocating());
    let path = directory.path().join("store");
    let mut model = load(&store, 0..4 * KEYS_OF_SEGMENT);
    store.close().unwrap();
    let damaged = segment(&path, 1);
    let mut bytes = fs::read(&damaged).unwrap();
    // Its header: nothing of it can be read.
    bytes[0] ^= 1;
    fs::write(&damaged, &bytes).unwrap();

    let store = Store::open(&path, OpenMode::Open, relocating()).unwrap();
    delete(&store, &mut model, (0..4 * KEYS_OF_SEGMENT).step_by(2));
    until(&store, |log| log.gc_segments > 0);
    // All of the others go; then the pass comes to no end, and is given up.
    let log = until(&store, |log| log.gc_segments == 0 && !segment(&path, 4).exists());
    assert!((2..4).all(|number| !segment(&path, number).exists()), "{log:?}");
    assert_eq!(log.removed_segments, 3, "{log:?}");
    let attempts = || warnings::about(&path).iter().filter(|said| said.contains("could not be relocated")).count();
    let attempts_before = attempts();
    assert!(attempts_before > 0);

    // What else becomes garbage is relocated all the same, and the damaged one is left alone.
    delete(&store, &mut model, (keys_of(2).start..4 * KEYS_OF_SEGMENT).filter(|number| number % 4 == 3));
    let (before, named) = (store.value_log().unwrap(), live(&model));
    // The damaged one as it is, and what else lives.
    let log = until(&store, |log| log.relocated_bytes > before.relocated_bytes && log.bytes < SEGMENT_BYTES + named);
    assert_eq!(log.referenced_bytes, named);
    let counters = store.counters();
    assert!(counters.compactions < 60, "it is tried again and again: {counters:?}");
    assert_eq!(counters.failed_compactions, 0);
    assert_eq!(attempts(), attempts_before, "it is not left alone");

    assert_eq!(fs::read(&damaged).unwrap(), bytes);
    assert_eq!(errors_of(&store, &model, "000001.segment"), KEYS_OF_SEGMENT / 2);
    let said = warnings::about(&path);
    let told_of = |words: &str| said.iter().any(|it| it.contains(words) && it.contains("000001.segment"));
    assert!(told_of("could not be relocated") && told_of("left alone"), "{said:?}");

    // Whoever brings the file back has lost nothing.
    store.close().unwrap();
    bytes[0] ^= 1;
    fs::write(&damaged, &bytes).unwrap();
    let store = Store::open(&path, OpenMode::Open, relocating()).unwrap();
    assert_equals(&store, &model);
}

/// The segment is cut while it is mapped: the processor's access to its pages is a SIGBUS.
#[test]
fn a_segment_that_is_cut_under_gc_is_an_error_and_no_death() {
    warnings::listen();
    let (directory, store) = common::store(at_rest(relocating()));
    let path = directory.path().join("store");
    // The last one is not relocated.
    let mut model = load(&store, 0..4 * KEYS_OF_SEGMENT);
    delete(&store, &mut model, (0..3 * KEYS_OF_SEGMENT).step_by(2));
    store.close().unwrap();
    let store = Store::open(&path, OpenMode::Open, relocating()).unwrap();
    // The candidate set is chosen. It waits for compactions that run anyway.
    until(&store, |log| log.gc_segments > 0);
    let cut = segment(&path, 2);
    let bytes = fs::read(&cut).unwrap();
    let kept = SEGMENT_BYTES / 2;
    OpenOptions::new().write(true).open(&cut).unwrap().set_len(kept).unwrap();
    store.compact(..).unwrap();

    let lost = errors_of(&store, &model, "000002.segment");
    let behind = keys_of(2).step_by(2).count() as u64 - kept / RECORD_BYTES / 2;
    assert!(lost.abs_diff(behind) <= 1, "{lost} values are lost, {behind} were behind the cut");
    let relocated = store.value_log().unwrap().relocated_bytes / RECORD_BYTES;
    assert!(
        (relocated + lost).abs_diff(3 * KEYS_OF_SEGMENT / 2) <= 1,
        "{relocated} values were relocated, {lost} lost"
    );
    let said = warnings::about(&path);
    let told = said.iter().any(|it| it.contains("could not be relocated") && it.contains("000002.segment at offset"));
    assert!(told, "{said:?}");

    // No pointer was changed to what could not be read, so whoever brings the bytes back has lost
    // nothing.
    fs::write(&cut, bytes).unwrap();
    assert_equals(&store, &model);
    until(&store, |_| !cut.exists());
    assert_equals(&store, &model);
}

#[test]
fn gc_and_appends_go_on_where_no_memory_is_to_be_mapped() {
    // None, and less than two segments.
    for mapped_bytes in [0, SEGMENT_BYTES * 3 / 2] {
        let (_directory, store) =
            common::store(StoreSettings { mapped_bytes, l0_compaction_trigger: 2, ..relocating() });
        let mut model = Model::new();
        for round in 0..8 {
            fill(&store, &mut model, round, 4_000, 2_000);
        }
        store.flush(true).unwrap();
        store.compact(..).unwrap();
        let live: u64 = model.iter().map(|(key, value)| 12 + key.len() as u64 + value.len() as u64).sum();
        until(&store, |log| log.relocated_bytes > 0 && (log.bytes as f64) < 1.7 * live as f64);
        assert_equals(&store, &model);
    }
}

#[test]
fn a_candidate_set_that_waits_gives_way_to_a_cheaper_one_and_both_to_one_forcibly() {
    let options = relocating();
    let options = StoreSettings {
        // Little enough that no two segments fit.
        gc: GcParameters { opportunistic_copy_share: 0.01, ..options.gc },
        ..options
    };
    let (directory, store) = common::store(at_rest(options.clone()));
    let path = directory.path().join("store");
    // Of nearly the same age, so that it is the garbage that decides.
    let (costly, cheap, segments) = (2, 7, 24);
    let mut model = load(&store, 0..segments * KEYS_OF_SEGMENT);
    let part = |number, per_cent| {
        let keys = keys_of(number);
        keys.start..keys.start + (keys.end - keys.start) * per_cent / 100
    };
    for (number, per_cent) in [(costly, 52), (cheap, 60)] {
        delete(&store, &mut model, part(number, per_cent));
    }
    store.close().unwrap();
    let store = Store::open(&path, OpenMode::Open, options).unwrap();
    until(&store, |log| log.referenced_bytes == live(&model));
    // Nobody compacts the tables that refer to the first. Those of the second are compacted, for
    // whatever reason.
    let (first, last) = (key(keys_of(cheap).start), key(keys_of(cheap).end - 1));
    let begin = Instant::now();
    while segment(&path, cheap).exists() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", store.value_log());
        store.compact(&first[..]..=&last[..]).unwrap();
    }
    let log = store.value_log().unwrap();
    assert!(segment(&path, costly).exists() && log.gc_segments == 0, "{log:?}");
    assert_eq!(log.removed_segments, 1, "{log:?}");

    // So much that it is urgent. From here on nothing is compacted but forcibly.
    delete(&store, &mut model, (8..20).flat_map(|number| part(number, 90)));
    assert!(segment(&path, costly).exists());
    until(&store, |log| log.gc_segments > 0);
    until(&store, |log| log.gc_segments == 0 && (log.bytes as f64) < 1.4 * live(&model) as f64);
    let are_left = |numbers: std::ops::Range<u64>| numbers.filter(|number| segment(&path, *number).exists()).count();
    assert!(segment(&path, costly).exists() && are_left(8..20) < 6, "others free more for less");
    assert_equals(&store, &model);
}

#[test]
fn writers_are_slowed_down_where_garbage_is_to_go_and_never_where_it_is_too_little() {
    let writes_until_throttled = |min_garbage: Bytes, max_writes: u64| {
        let (_directory, store) = common::store(StoreSettings {
            gc: GcParameters {
                min_garbage_bytes: min_garbage,
                throttle_ratio: 1.01,
                max_throttle_ratio: 1.02,
                ..GcParameters::default()
            },
            l0_compaction_trigger: 2,
            ..relocating()
        });
        let mut model = Model::new();
        let mut writes = 0;
        while writes < max_writes && store.value_log().unwrap().throttled_ms == 0 {
            fill(&store, &mut model, writes, 1_000, 2_000);
            store.flush(true).unwrap();
            writes += 1_000;
        }
        (writes, store.value_log().unwrap())
    };
    let (writes, with_candidates) = writes_until_throttled(Bytes(4096), 2_000_000);
    assert!(with_candidates.throttled_ms > 0, "{with_candidates:?}");
    // As much garbage, and twice as many writes, but all of it is too little to be relocated.
    let (_, without) = writes_until_throttled(Bytes(u64::MAX), 2 * writes.max(20_000));
    assert_eq!((without.throttled_ms, without.relocated_bytes), (0, 0), "{without:?}");
    assert!(without.bytes > without.referenced_bytes * 2, "{without:?}");
}

/// Replaces every value twice while no compaction can end, and tells what became of one who writes
/// long values then. What is replaced has `value_bytes` each and shadows: no compaction has met it.
fn written_while_shadowed(value_bytes: usize, beneath_a_snapshot: bool) -> ValueLogProperties {
    const KEYS: u64 = 20_000;
    let admission = Arc::new(AdmissionControl::default());
    // What is flushed is what the test says.
    let settings = StoreSettings { memtable_bytes: 8 << 20, l0_compaction_trigger: 2, ..relocating() };
    let (_directory, store) = common::store_with(settings, |builder| builder.offload(admission.clone()));
    let write_all = |version| {
        for number in 0..KEYS {
            store.put(&key(number), &value_of(&key(number), version, value_bytes)).unwrap();
        }
        // By it the round is known that has seen this.
        let last = key(4 * KEYS + version);
        store.put(&last, &value_of(&last, 0, VALUE_BYTES)).unwrap();
        store.flush(true).unwrap();
    };
    let is_long = value_bytes == VALUE_BYTES;
    write_all(0);
    // So that there are segments at all.
    const LONG: u64 = 3 * KEYS_OF_SEGMENT;
    load(&store, KEYS..KEYS + LONG);
    let snapshot = beneath_a_snapshot.then(|| store.snapshot());
    admission.close();
    write_all(1);
    write_all(2);
    until(&store, |log| log.referenced_bytes >= RECORD_BYTES * (LONG + 3 + if is_long { 3 * KEYS } else { 0 }));
    // What follows short ones fills no segment: of a full one that is not flushed a part counts as
    // shadowed, by how many keys were replaced.
    let most = if is_long { KEYS } else { KEYS_OF_SEGMENT / 2 };
    let mut written = 0;
    while written < most && store.value_log().unwrap().throttled_ms == 0 {
        let key = key(2 * KEYS + written);
        store.put(&key, &value_of(&key, 0, VALUE_BYTES)).unwrap();
        written += 1;
    }
    let log = store.value_log().unwrap();
    drop(snapshot);
    admission.open();
    log
}

#[test]
fn writers_are_slowed_down_for_what_shadows_where_a_compaction_will_find_it() {
    let log = written_while_shadowed(VALUE_BYTES, false);
    assert!(log.throttled_ms > 0 && log.relocated_bytes == 0, "{log:?}");
    let log = written_while_shadowed(VALUE_BYTES, true);
    assert_eq!(log.throttled_ms, 0, "a snapshot holds what shadows: {log:?}");
    let log = written_while_shadowed(20, false);
    assert_eq!(log.throttled_ms, 0, "no garbage collection could free short values: {log:?}");
}
