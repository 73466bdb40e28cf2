//! What tables tell of their keys: that they do, here and from workers, and that nothing but
//! estimates rests on it.

use crate::common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use common::offloads::InProcess;
use common::{Model, assert_equals, fill};
use ecotone_engine::{Collects, DedupMode, DedupOptions, OpenMode, Separation, Store, StoreSettings};
use ecotone_inspect::{repair, verify};
use ecotone_rocks::properties::ENTRIES_AT_A_TIME;
use ecotone_rocks::salvage::SalvagedTable;
use twox_hash::XxHash3_64;

fn options(mode: DedupMode, separated: bool) -> StoreSettings {
    StoreSettings {
        dedup: DedupOptions { mode: Some(mode), ..DedupOptions::default() },
        separation: separated.then(|| Separation::from_bytes(50)),
        l0_compaction_trigger: 2,
        ..common::small()
    }
}

/// What of ours each table of a directory carries, sorted.
fn collected(directory: &Path) -> Vec<Vec<String>> {
    let names = |path: PathBuf| {
        let table = SalvagedTable::open(&path).unwrap();
        let names = table.description().collected.keys().filter(|name| name.starts_with("ecotone."));
        names.cloned().collect()
    };
    tables(directory).map(names).collect()
}

fn tables(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "sst"))
}

#[test]
fn tables_tell_what_the_mode_asks_for_and_no_more() {
    let triggered = DedupMode::Triggered { interval: std::time::Duration::from_secs(3600) };
    for (mode, separated, expected) in [
        (DedupMode::Off, false, &[][..]),
        (DedupMode::Sample, false, &["ecotone.samples"]),
        (triggered, false, &["ecotone.samples"]),
        (DedupMode::Filter, false, &["ecotone.filter", "ecotone.samples"]),
        (DedupMode::Off, true, &["ecotone.samples", "ecotone.values"]),
        (DedupMode::Filter, true, &["ecotone.filter", "ecotone.samples", "ecotone.values"]),
    ] {
        let (directory, store) = common::store(options(mode, separated));
        let mut model = Model::new();
        for round in 0..3 {
            fill(&store, &mut model, round, 3_000, 2_000);
            store.flush(true).unwrap();
        }
        store.compact(..).unwrap();
        fill(&store, &mut model, 9, 500, 2_000);
        store.flush(true).unwrap();
        store.close().unwrap();
        let tables = collected(&directory.path().join("store"));
        assert!(tables.len() > 1 && tables.iter().all(|names| names == expected), "{mode} {separated}: {tables:?}");
    }
}

/// Which keys are sampled, and what is told of them, whoever hashes them: for each length that the
/// hash knows another way for.
#[test]
fn the_samples_of_a_table_are_those_of_the_hash_of_its_keys() {
    // One table has all versions.
    let memtable_bytes = 64 * 1024 * 1024;
    let (directory, store) = common::store(StoreSettings { memtable_bytes, ..options(DedupMode::Sample, false) });
    let key = |len: usize, number: usize| {
        let mut key = format!("{len:04}{number:04}").into_bytes();
        key.extend((8..len).map(|at| (at * 31 + number * 7) as u8));
        key
    };
    // The first entries of all are timed, and come whole whatever their keys are.
    for number in 0..u64::from(ENTRIES_AT_A_TIME) {
        store.put(&number.to_be_bytes(), b"timed").unwrap();
    }
    store.flush(true).unwrap();
    let first = tables(&directory.path().join("store")).next().unwrap();
    let keys: BTreeSet<_> = [8, 12, 16, 17, 40, 128, 129, 200, 240, 241, 500, 1024, 1025, 3000]
        .into_iter()
        .flat_map(|len| (0..300).map(move |number| key(len, number)))
        .chain((0..256).map(|byte| vec![byte as u8]))
        .chain((0..500_u16).flat_map(|number| {
            let [high, low] = number.to_be_bytes();
            [vec![high, low], vec![high, low, 7], vec![7, high, low, 7]]
        }))
        .collect();
    for key in &keys {
        store.put(key, b"one").unwrap();
    }
    let snapshot = store.snapshot();
    for key in &keys {
        store.put(key, b"another").unwrap();
    }
    store.flush(true).unwrap();
    drop(snapshot);
    store.close().unwrap();
    let property =
        |path: PathBuf| SalvagedTable::open(&path).unwrap().description().collected["ecotone.samples"].clone();
    // hash, sequence, bytes, segment
    let told: Vec<_> =
        tables(&directory.path().join("store")).filter(|table| *table != first).flat_map(property).collect();
    let told: BTreeSet<_> = told.as_chunks::<24>().0.iter().map(|item| (item[..8].to_vec(), item[16])).collect();
    let hashes = keys.iter().map(|key| XxHash3_64::oneshot(key)).filter(|hash| hash.is_multiple_of(64));
    let header_and_value = 1 + b"another".len() as u8;
    let expected: BTreeSet<_> = hashes.map(|hash| (hash.to_le_bytes().to_vec(), header_and_value)).collect();
    let of_few_bytes = keys.iter().filter(|key| key.len() < 8 && XxHash3_64::oneshot(key).is_multiple_of(64)).count();
    assert!(of_few_bytes > 5, "{of_few_bytes}");
    assert!(expected.len() > 30, "{}", expected.len());
    assert_eq!(told, expected);
}

#[test]
fn a_plain_store_whose_tables_tell_of_their_keys_is_still_a_plain_store() {
    let (directory, store) = common::store(options(DedupMode::Filter, false));
    let path = directory.path().join("store");
    let mut model = Model::new();
    fill(&store, &mut model, 1, 6_000, 2_000);
    store.flush(true).unwrap();
    store.close().unwrap();
    assert!(verify(&path, |_| ()).unwrap().is_sound());

    // By the identity, and by the files alone.
    for (name, has_identity) in [("first", true), ("second", false)] {
        if !has_identity {
            fs::remove_file(path.join("STORE")).unwrap();
        }
        let into = directory.path().join(name);
        let report = repair(&path, &into, |_| ()).unwrap();
        assert!(!report.value_log && report.is_complete(), "{report:?}");
        assert_eq!(report.saved_entries, model.len() as u64);
        assert!(verify(&into, |_| ()).unwrap().is_sound());
        let store = Store::open(&into, OpenMode::Open, options(DedupMode::Off, false)).unwrap();
        assert_equals(&store, &model);
    }
}

#[test]
fn a_store_goes_on_when_the_mode_changes_or_its_values_move_out() {
    let (directory, store) = common::store(options(DedupMode::Off, false));
    let path = directory.path().join("store");
    let mut model = Model::new();
    fill(&store, &mut model, 1, 3_000, 2_000);
    store.close().unwrap();
    for (round, (mode, separated)) in [
        (DedupMode::Sample, false),
        (DedupMode::Filter, false),
        (DedupMode::Off, false),
        (DedupMode::Filter, true),
        (DedupMode::Off, true),
    ]
    .into_iter()
    .enumerate()
    {
        let store = Store::open(&path, OpenMode::Open, options(mode, separated)).unwrap();
        fill(&store, &mut model, 10 + round as u64, 2_000, 2_000);
        store.flush(true).unwrap();
        assert_equals(&store, &model);
        if let Some(values) = store.value_log() {
            assert!(values.bytes > 0);
        }
        store.close().unwrap();
        assert!(verify(&path, |_| ()).unwrap().is_sound());
    }
}

/// Compacts a store elsewhere, by workers that are told to collect `as_worker` of what they are
/// asked for. Returns whether each table that came carried samples, and how many were refused.
fn compacted_elsewhere(
    mode: DedupMode,
    separated: bool,
    as_worker: fn(Collects) -> Collects,
) -> (Vec<Vec<String>>, usize) {
    let worker = tempfile::tempdir().unwrap();
    let came = Arc::<Mutex<Vec<Vec<String>>>>::default();
    let seen = came.clone();
    let mut offload = InProcess::spoiled(worker.path(), move |_, outputs, _| {
        seen.lock().unwrap().extend(collected(outputs));
    });
    offload.as_worker = as_worker;
    let offload = Arc::new(offload);
    let settings = StoreSettings { background_compactions: 4, ..options(mode, separated) };
    let (directory, store) = common::store_with(settings, |builder| builder.offload(offload.clone()));
    let mut model = Model::new();
    for round in 0..2 {
        fill(&store, &mut model, round, 6_000, 2_000);
        store.flush(true).unwrap();
        store.compact(..).unwrap();
    }
    assert_equals(&store, &model);
    store.close().unwrap();
    assert_eq!(*offload.worker_errors.lock().unwrap(), []);
    let refused = offload.refused.lock().unwrap().len();
    assert_eq!(refused > 0, offload.installed.load(Ordering::Relaxed) == 0);
    assert!(verify(&directory.path().join("store"), |_| ()).unwrap().is_sound());
    let came = came.lock().unwrap().clone();
    assert!(!came.is_empty());
    (came, refused)
}

/// The owner counts again, so a table that is taken tells what it would have told had it been
/// written here.
#[test]
fn a_worker_tells_of_the_keys_what_the_owner_would() {
    for separated in [false, true] {
        let (came, refused) = compacted_elsewhere(DedupMode::Filter, separated, |collects| collects);
        assert_eq!(refused, 0);
        let expected = ["ecotone.filter", "ecotone.samples", "ecotone.values"];
        let expected = if separated { &expected[..] } else { &expected[..2] };
        assert!(came.iter().all(|names| names == expected), "{came:?}");
    }
}

/// A worker of an earlier version does not know what it is asked for.
#[test]
fn a_table_without_a_sketch_is_taken() {
    let (came, refused) = compacted_elsewhere(DedupMode::Filter, false, |_| Collects::default());
    assert_eq!(refused, 0);
    assert!(came.iter().all(Vec::is_empty), "{came:?}");

    let without_filter = |collects| Collects { filter_bits_per_key: 0, ..collects };
    let (came, refused) = compacted_elsewhere(DedupMode::Filter, true, without_filter);
    assert_eq!(refused, 0);
    assert!(came.iter().all(|names| names == &["ecotone.samples", "ecotone.values"]), "{came:?}");
}

/// It is not missing, it is another one than the keys of the table have.
#[test]
fn a_table_with_a_wrong_sketch_is_refused() {
    let sparse = |collects| Collects { filter_bits_per_key: 3, ..collects };
    let (_, refused) = compacted_elsewhere(DedupMode::Filter, false, sparse);
    assert!(refused > 0);
}
