//! `repair`: whatever happens to one file of a store, what it saves is right, and what it does not
//! save it says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::random::seeds;
use crate::common::value_of;
use ecotone_engine::{
    Attributes, Compression, Direction, Error, OpenMode, Separation, Store, StoreSettings, WriteOptions,
};
use ecotone_inspect::{ManifestState, RepairReport, repair, repair_leaving_out, verify};
use ecotone_policy::gc::GcParameters;
use ecotone_types::units::Bytes;

/// A value with what stands beside it.
type Stored = (Vec<u8>, Attributes);

/// What a store holds.
type Contents = BTreeMap<Vec<u8>, Stored>;

/// A reproducible sequence of numbers (splitmix64; Steele, Lea, Flood 2014).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

fn options(separated: bool) -> StoreSettings {
    StoreSettings {
        separation: separated.then_some(Separation { min_bytes: 50, segment_bytes: 32 * 1024 }),
        gc: GcParameters {
            begin_ratio: 1.2,
            end_ratio: 1.1,
            min_garbage_bytes: Bytes(32 * 1024),
            ..GcParameters::default()
        },
        block_bytes: 1024,
        target_file_bytes: 64 * 1024,
        compression: Compression::None,
        l0_compaction_trigger: 3,
        ..common::small()
    }
}

/// A store, and all that was ever in it.
#[derive(Default)]
struct Model {
    now: Contents,
    ever: BTreeMap<Vec<u8>, Vec<Stored>>,
    /// What was written, in order.
    writes: Vec<Write>,
}

enum Write {
    Put(Vec<u8>, Stored),
    /// From a key to before a key.
    Delete(Vec<u8>, Vec<u8>),
}

impl Model {
    fn put(&mut self, store: &Store, key: Vec<u8>, value: Vec<u8>, attributes: Attributes) {
        let mut batch = ecotone_engine::Batch::new();
        batch.put_with(&key, &value, &attributes).unwrap();
        store.write(&batch, WriteOptions::default()).unwrap();
        self.now.insert(key.clone(), (value.clone(), attributes));
        self.ever.entry(key.clone()).or_default().push((value.clone(), attributes));
        self.writes.push(Write::Put(key, (value, attributes)));
    }

    fn delete(&mut self, store: &Store, from: Vec<u8>, to: Option<Vec<u8>>) {
        match &to {
            None => store.delete(&from).unwrap(),
            Some(to) => store.delete_range(&from[..]..&to[..]).unwrap(),
        }
        let to = to.unwrap_or_else(|| [&from[..], &[0]].concat());
        self.now.retain(|key, _| *key < from || *key >= to);
        self.writes.push(Write::Delete(from, to));
    }

    /// Whether `contents` is what the store held after some number of writes.
    fn was_once(&self, contents: &Contents) -> bool {
        let mut then = Contents::new();
        let mut equal = contents.is_empty();
        for write in &self.writes {
            match write {
                Write::Put(key, stored) => drop(then.insert(key.clone(), stored.clone())),
                Write::Delete(from, to) => then.retain(|key, _| key < from || key >= to),
            }
            equal |= then.len() == contents.len() && then == *contents;
        }
        equal
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

fn write_some(store: &Store, model: &mut Model, numbers: &mut Numbers, writes: u64) {
    const KEYS: u64 = 3000;
    for _ in 0..writes {
        let number = numbers.below(KEYS);
        match numbers.below(200) {
            0 => model.delete(store, key(number), Some(key(number + numbers.below(30)))),
            1..=15 => model.delete(store, key(number), None),
            kind => {
                let bytes = if kind % 3 == 0 { numbers.below(50) } else { 50 + numbers.below(250) };
                let field = |given: bool, value| given.then_some(1 + value);
                let attributes = Attributes {
                    expires_at_ms: field(kind % 5 == 0, numbers.below(u64::MAX)),
                    version: field(kind % 7 == 0, numbers.below(1000)),
                    type_tag: NonZeroU8::new((kind % 11) as u8),
                };
                let value = value_of(&key(number), model.writes.len() as u64, bytes as usize);
                model.put(store, key(number), value, attributes);
            }
        }
    }
}

/// A store that has seen flushes, compactions, garbage collection and a restart, closed, with a
/// part of it in the WAL only.
fn lived(seed: u64, separated: bool) -> (tempfile::TempDir, PathBuf, Model) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let (mut model, mut numbers) = (Model::default(), Numbers(seed));
    for _ in 0..2 {
        let store = Store::open(&path, OpenMode::CreateOrOpen, options(separated)).unwrap();
        for _ in 0..3 {
            write_some(&store, &mut model, &mut numbers, 1500);
            store.flush(true).unwrap();
            if numbers.below(4) == 0 {
                store.compact(..).unwrap();
            }
        }
        write_some(&store, &mut model, &mut numbers, 300);
        store.close().unwrap();
    }
    (directory, path, model)
}

fn contents(path: &Path) -> Contents {
    let store = Store::open(path, OpenMode::ReadOnly, StoreSettings::default()).unwrap();
    let mut scan = store.scan(.., Direction::Forward, None).unwrap();
    let mut contents = Contents::new();
    while let Some(entry) = scan.next_entry().unwrap() {
        contents.insert(entry.key.to_vec(), (entry.value.to_vec(), entry.attributes));
    }
    contents
}

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    all_files(directory).unwrap()
}

fn all_files(directory: &Path) -> std::io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(all_files(&entry.path())?);
        } else {
            found.insert(entry.path(), fs::read(entry.path())?);
        }
    }
    Ok(found)
}

/// Copies a store, which may be open: a file that goes meanwhile is one that nothing refers to any
/// more, and the copy begins anew.
fn copy(from: &Path, to: &Path) {
    let found = (0..100).find_map(|_| match all_files(from) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        found => Some(found.unwrap()),
    });
    for (path, bytes) in found.expect("files go and go") {
        let path = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Repairs, and checks what holds for every repair: the damaged store is not touched, the new one
/// is sound.
fn repaired(path: &Path) -> (RepairReport, Contents) {
    let into = path.with_extension("saved");
    let before = files(path);
    let report = repair(path, &into, |_| ()).unwrap();
    assert!(files(path) == before, "the damaged store was changed");
    assert!(!path.with_extension("saved.unfinished").exists());
    let found = verify(&into, |_| ()).unwrap();
    assert!(found.is_sound() && found.entries == report.saved_entries, "{found:?}");
    let saved = contents(&into);
    assert_eq!(saved.len() as u64, report.saved_entries);
    fs::remove_dir_all(into).unwrap();
    (report, saved)
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

#[test]
fn a_sound_store_is_saved_whole_and_nothing_is_said_to_be_lost() {
    for separated in [false, true] {
        let (_directory, path, model) = lived(1, separated);
        let (report, saved) = repaired(&path);
        assert!(report.is_complete() && !report.older_may_be_back, "{report:?}");
        assert_eq!((report.doubtful_entries, report.notes.len()), (0, 0), "{report:?}");
        assert!(saved == model.now);
        assert_eq!(report.value_log, separated);
        assert!(report.tables > 0 && report.wals > 0 && (report.segments > 0) == separated, "{report:?}");
        // Opened and closed without a write it has nothing but tables.
        Store::open(&path, OpenMode::Open, options(separated)).unwrap().close().unwrap();
        let (report, saved) = repaired(&path);
        assert!(report.is_complete() && saved == model.now, "{report:?}");
        // The copy is of the same format, and one can go on with it.
        let into = path.with_extension("saved");
        repair(&path, &into, |_| ()).unwrap();
        let format = |path: &Path| fs::read_to_string(path.join("STORE")).unwrap().lines().nth(1).unwrap().to_owned();
        assert_eq!(format(&into), format(&path));
        let store = Store::open(&into, OpenMode::Open, options(separated)).unwrap();
        store.put(b"and then", &[1; 100]).unwrap();
        store.compact(..).unwrap();
        store.close().unwrap();
        assert_eq!(contents(&into).len(), model.now.len() + 1);
    }
}

#[test]
fn copies_of_a_living_store_and_checkpoints_are_saved_whole() {
    for separated in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (path, killed) = (directory.path().join("store"), directory.path().join("killed"));
        let (mut model, mut numbers) = (Model::default(), Numbers(2));
        let store = Store::open(&path, OpenMode::Create, options(separated)).unwrap();
        let checkpoint = |name: &str, model: &Model| {
            let path = directory.path().join(name);
            store.checkpoint(&path).unwrap();
            let (report, saved) = repaired(&path);
            assert!(report.is_complete() && saved == model.now, "{name}: {report:?}");
        };
        checkpoint("empty", &model);
        write_some(&store, &mut model, &mut numbers, 100);
        checkpoint("small", &model);
        write_some(&store, &mut model, &mut numbers, 3000);
        store.flush(true).unwrap();
        checkpoint("flushed", &model);
        write_some(&store, &mut model, &mut numbers, 200);
        // Until no compaction is under way, so that the copy is of one moment.
        store.compact(..).unwrap();
        write_some(&store, &mut model, &mut numbers, 50);
        copy(&path, &killed);
        let (report, saved) = repaired(&killed);
        assert!(report.is_complete() && saved == model.now, "{report:?}");
    }
}

/// What a file is for; RocksDB's own logs, which nobody reads, are for nothing.
fn sort(file: &Path) -> Option<&str> {
    let name = file.file_name().unwrap().to_str().unwrap();
    let sort = file.extension().map_or(name, |extension| extension.to_str().unwrap());
    (!name.starts_with("LOG")).then(|| sort.split('-').next().unwrap())
}

/// Does something to a file; says what.
fn damage(file: &Path, numbers: &mut Numbers) -> (bool, String) {
    let mut bytes = fs::read(file).unwrap();
    let at = numbers.below(bytes.len().max(1) as u64) as usize;
    let kind = if bytes.is_empty() { 0 } else { numbers.below(4) };
    let name = file.file_name().unwrap().display();
    match kind {
        0 => {
            fs::remove_file(file).unwrap();
            (false, format!("{name} is missing"))
        }
        1 => {
            fs::write(file, &bytes[..at]).unwrap();
            (true, format!("{name} is cut to {at} of {}", bytes.len()))
        }
        _ => {
            bytes[at] ^= 1 + numbers.below(255) as u8;
            fs::write(file, &bytes).unwrap();
            (false, format!("{name} has another byte at {at} of {}", bytes.len()))
        }
    }
}

/// A file to be damaged; every sort comes as often as any.
fn victim(store: &Path, numbers: &mut Numbers) -> PathBuf {
    let all: Vec<_> = files(store).into_keys().filter(|file| sort(file).is_some()).collect();
    let sorts: BTreeSet<_> = all.iter().filter_map(|file| sort(file)).collect();
    let chosen = *sorts.iter().nth(numbers.below(sorts.len() as u64) as usize).unwrap();
    let of_sort: Vec<_> = all.iter().filter(|file| sort(file) == Some(chosen)).collect();
    of_sort[numbers.below(of_sort.len() as u64) as usize].clone()
}

/// The identity was made one of a version that nobody knows, which is not guessed.
fn is_refused(damaged: &Path) -> bool {
    let into = damaged.with_extension("tried");
    match repair(damaged, &into, |_| ()) {
        Err(error) => error.to_string().contains("use a newer version"),
        Ok(_) => {
            fs::remove_dir_all(into).unwrap();
            false
        }
    }
}

#[test]
fn whatever_happens_to_one_file_what_is_saved_is_right_and_the_rest_is_told() {
    for seed in seeds(0..4) {
        let (directory, path, model) = lived(100 + seed, seed % 2 == 1);
        let mut numbers = Numbers(seed);
        for round in 0..30 {
            let damaged = directory.path().join("damaged");
            copy(&path, &damaged);
            let file = victim(&damaged, &mut numbers);
            let (is_cut, what) = damage(&file, &mut numbers);
            let context = format!("seed {seed}, round {round}: {what}");
            if file.ends_with("STORE") && is_refused(&damaged) {
                continue;
            }
            let (report, saved) = repaired(&damaged);
            let context = format!("{context}\n{report:?}");
            check_saved(&model, &saved, &report, is_cut && extension(&file) == "log", &context);
            check_one(&model, &saved, &report, extension(&file), &context);
            fs::remove_dir_all(&damaged).unwrap();
        }
    }
}

#[test]
fn damage_in_many_places_is_no_worse() {
    for seed in seeds(0..4) {
        let (directory, path, model) = lived(200 + seed, seed % 2 == 1);
        let mut numbers = Numbers(1000 + seed);
        for round in 0..16 {
            let damaged = directory.path().join("damaged");
            copy(&path, &damaged);
            let mut cut_wal = false;
            let mut whats = Vec::new();
            for _ in 0..2 + numbers.below(4) {
                let file = victim(&damaged, &mut numbers);
                // What has lost its end between two records, and with it the names of other files
                // that are damaged, looks sound.
                let (is_cut, what) = match sort(&file) {
                    Some("MANIFEST") => (false, fs::write(&file, b"").map(|()| "no MANIFEST".to_owned()).unwrap()),
                    Some("STORE") => continue,
                    _ => damage(&file, &mut numbers),
                };
                cut_wal |= is_cut && extension(&file) == "log";
                whats.push(what);
            }
            let (report, saved) = repaired(&damaged);
            check_saved(
                &model,
                &saved,
                &report,
                cut_wal,
                &format!("seed {seed}, round {round}: {whats:?}\n{report:?}"),
            );
            fs::remove_dir_all(&damaged).unwrap();
        }
    }
}

/// What holds whatever was damaged.
fn check_saved(model: &Model, saved: &Contents, report: &RepairReport, cut_wal: bool, context: &str) {
    for (key, stored) in saved {
        let ever = model.ever.get(key).is_some_and(|values| values.contains(stored));
        assert!(ever, "a value that never was, of {}\n{context}", key.escape_ascii());
    }
    let missing = model.now.keys().filter(|key| !saved.contains_key(*key)).count() as u64;
    let stale = saved.iter().filter(|(key, stored)| model.now.get(*key) != Some(stored)).count() as u64;
    if cut_wal && report.is_complete() {
        // Cut between two records: as it was at one moment.
        assert!(model.was_once(saved), "{context}");
        return;
    }
    if missing > 0 {
        assert!(!report.is_complete(), "{missing} are missing, and nothing is said of it\n{context}");
    }
    if stale > 0 {
        assert!(report.older_may_be_back, "{stale} are old, and nothing is said of it\n{context}");
        if report.manifest == ManifestState::Sound && report.lost_wal_count == 0 {
            assert!(report.doubtful_entries >= stale, "{stale} are old, fewer are said to be\n{context}");
        }
    }
    if report.is_complete() {
        assert!(*saved == model.now, "{context}");
    }
}

/// What holds where only one file was damaged: what is lost is what was in it.
fn check_one(model: &Model, saved: &Contents, report: &RepairReport, sort: &str, context: &str) {
    let lost: BTreeSet<_> = report.lost_values.iter().map(|lost| lost.key.as_bytes()).collect();
    match sort {
        "segment" => {
            let told = model.now.keys().all(|key| saved.contains_key(key) != lost.contains(&key[..]));
            let right = saved.iter().all(|(key, stored)| model.now.get(key) == Some(stored));
            assert!(told && right && report.lost_table_count == 0, "{context}");
        }
        "sst" => assert!(lost.is_empty() && report.lost_wal_count == 0, "{context}"),
        "log" => assert!(lost.is_empty() && report.lost_table_count == 0, "{context}"),
        // The data is all there.
        _ => assert!(*saved == model.now, "{context}"),
    }
}

#[test]
fn around_a_damaged_block_everything_is_saved_and_the_gap_is_exact() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path, OpenMode::Create, options(false)).unwrap();
    let mut model = Model::default();
    for number in 0..300 {
        model.put(&store, key(number), value_of(&key(number), number, 100), Attributes::NONE);
    }
    store.flush(true).unwrap();
    store.close().unwrap();
    let table = files(&path).into_keys().find(|file| extension(file) == "sst").unwrap();
    let mut bytes = fs::read(&table).unwrap();
    // Two blocks, with others between them.
    bytes[10_000] ^= 1;
    bytes[20_000] ^= 1;
    fs::write(&table, bytes).unwrap();
    let (report, saved) = repaired(&path);
    let missing: Vec<_> = model.now.keys().filter(|key| !saved.contains_key(*key)).collect();
    assert!((10..40).contains(&missing.len()), "{}", missing.len());
    let [lost] = &report.lost_tables[..] else { panic!("{report:?}") };
    assert_eq!((lost.gaps, lost.entries), (2, Some(missing.len() as u64)), "{lost:?}");
    let (from, to) = (lost.from.as_deref().unwrap().as_bytes(), lost.to.as_deref().unwrap().as_bytes());
    assert!(missing.iter().all(|key| from <= &key[..] && &key[..] <= to), "{lost:?}");
    assert!(model.now.keys().any(|key| from < &key[..] && &key[..] < to && saved.contains_key(key)));
    assert_eq!(report.doubtful_entries, 0, "nothing else is there");
}

#[test]
fn an_old_value_never_takes_the_place_of_a_lost_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let open = || Store::open(&path, OpenMode::CreateOrOpen, options(true)).unwrap();
    for version in 0..2 {
        // Each opening begins a segment of its own.
        let store = open();
        for number in 0..20 {
            store.put(&key(number), &value_of(&key(number), version, 100)).unwrap();
        }
        store.flush(true).unwrap();
        store.close().unwrap();
    }
    let newest = files(&path).into_keys().rfind(|file| extension(file) == "segment").unwrap();
    fs::remove_file(newest).unwrap();
    let (report, saved) = repaired(&path);
    assert_eq!((saved.len(), report.lost_value_count), (0, 20), "{report:?}");
    assert_eq!(report.lost_values[3].key, "key00003");
    assert!(report.lost_values[3].place.contains("segment"), "{report:?}");
    assert!(!report.is_complete() && report.has_losses());
}

#[test]
fn without_current_or_manifest_everything_is_found_again() {
    for separated in [false, true] {
        let (directory, path, model) = lived(7, separated);
        for lost in [&["CURRENT"][..], &["MANIFEST"], &["CURRENT", "MANIFEST"], &["CURRENT", "MANIFEST", "STORE"]] {
            let damaged = directory.path().join("damaged");
            copy(&path, &damaged);
            for file in files(&damaged).into_keys() {
                let name = file.file_name().unwrap().to_str().unwrap();
                if lost.iter().any(|lost| name.starts_with(lost)) {
                    fs::remove_file(file).unwrap();
                }
            }
            let (report, saved) = repaired(&damaged);
            assert!(saved == model.now && !report.has_losses(), "{lost:?}: {report:?}");
            let knows = lost == ["CURRENT"];
            assert_eq!((report.is_complete(), report.older_may_be_back), (knows, !knows), "{lost:?}: {report:?}");
            assert_eq!(report.value_log, separated);
            let notes = usize::from(knows) + usize::from(lost.contains(&"STORE"));
            assert_eq!(report.notes.len(), notes, "{report:?}");
            fs::remove_dir_all(damaged).unwrap();
        }
    }
}

#[test]
fn of_a_damaged_wal_what_stands_before_the_damage_is_saved() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path, OpenMode::Create, options(true)).unwrap();
    let mut model = Model::default();
    let mut numbers = Numbers(3);
    write_some(&store, &mut model, &mut numbers, 200);
    store.close().unwrap();
    let wal = files(&path).into_iter().rfind(|(file, bytes)| extension(file) == "log" && !bytes.is_empty());
    let (file, sound) = wal.unwrap();
    for round in 0..30 {
        let mut bytes = sound.clone();
        let at = numbers.below(bytes.len() as u64) as usize;
        bytes[at] ^= 0x40;
        if round % 3 == 0 {
            // Nothing says where a record ends behind this.
            bytes.truncate(at + 3);
        }
        fs::write(&file, &bytes).unwrap();
        let (report, saved) = repaired(&path);
        assert!(model.was_once(&saved), "{at}: {report:?}");
        let [lost] = &report.lost_wals[..] else { panic!("{report:?}") };
        assert_eq!(lost.wal, file.file_name().unwrap().to_str().unwrap());
        // Zeros at the end may have been set aside.
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        let end = written.max(lost.offset);
        assert!(lost.offset <= at as u64 && lost.offset + lost.bytes == end, "{at}: {lost:?}");
        assert!(at as u64 - lost.offset < 400, "no more is dropped than need be: {at}: {lost:?}");
    }
}

#[test]
fn records_longer_than_a_block_are_read_and_space_set_aside_is_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path, OpenMode::Create, StoreSettings::default()).unwrap();
    let mut model = Model::default();
    for number in 0..40 {
        let bytes = [10, 32_700, 32_768, 70_000, 1][number as usize % 5] + number;
        model.put(&store, key(number), value_of(&key(number), number, bytes as usize), Attributes::NONE);
    }
    store.close().unwrap();
    let wal = files(&path).into_keys().find(|file| extension(file) == "log").unwrap();
    let mut bytes = fs::read(&wal).unwrap();
    for zeros in [0, 3, 5_000, 100_000] {
        bytes.resize(bytes.len() + zeros, 0);
        fs::write(&wal, &bytes).unwrap();
        let (report, saved) = repaired(&path);
        assert!(report.is_complete() && saved == model.now, "{zeros}: {report:?}");
    }
    bytes.push(7);
    fs::write(&wal, &bytes).unwrap();
    let (report, saved) = repaired(&path);
    assert!(report.lost_wal_count == 1 && saved == model.now, "{report:?}");
}

#[test]
fn writes_that_are_missing_between_two_logs_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (path, logs) = (directory.path().join("store"), directory.path().join("logs"));
    fs::create_dir(&logs).unwrap();
    let mut model = Model::default();
    let mut collected = Vec::new();
    for opened in 0..3 {
        let store = Store::open(&path, OpenMode::CreateOrOpen, options(false)).unwrap();
        for number in 0..50 {
            // Each log overwrites half of the one before.
            let number = 25 * opened + number;
            model.put(&store, key(number), value_of(&key(number), opened, 100), Attributes::NONE);
        }
        store.close().unwrap();
        let wal = files(&path).into_keys().rfind(|file| extension(file) == "log").unwrap();
        collected.push(logs.join(wal.file_name().unwrap()));
        fs::copy(wal, collected.last().unwrap()).unwrap();
    }
    fs::copy(path.join("STORE"), logs.join("STORE")).unwrap();
    let (report, saved) = repaired(&logs);
    assert!(!report.has_losses() && saved == model.now, "{report:?}");
    let sound = fs::read(&collected[1]).unwrap();
    // Within a record.
    fs::write(&collected[1], &sound[..sound.len() / 2 - 3]).unwrap();
    let (report, _) = repaired(&logs);
    let [lost] = &report.lost_wals[..] else { panic!("{report:?}") };
    assert!(collected[1].ends_with(&lost.wal) && (20..30).contains(&lost.writes.unwrap()), "{lost:?}");
    fs::remove_file(&collected[1]).unwrap();
    let (report, _) = repaired(&logs);
    let [lost] = &report.lost_wals[..] else { panic!("{report:?}") };
    assert!(collected[2].ends_with(&lost.wal) && lost.writes == Some(50), "{lost:?}");
}

#[test]
fn writes_that_are_missing_between_the_tables_and_the_first_log_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (path, earlier) = (directory.path().join("store"), directory.path().join("earlier"));
    let mut model = Model::default();
    let log_of = |path| files(path).into_keys().rfind(|file| extension(file) == "log").unwrap();
    for opened in 0..3 {
        if opened == 2 {
            copy(&path, &earlier);
        }
        let store = Store::open(&path, OpenMode::CreateOrOpen, options(false)).unwrap();
        for number in 0..50 {
            let number = 25 * opened + number;
            model.put(&store, key(number), value_of(&key(number), opened, 100), Attributes::NONE);
        }
        store.close().unwrap();
    }
    // As where a process died before a memtable was flushed: two logs, of which the tables know
    // neither.
    let (first, second) = (log_of(&earlier), log_of(&path));
    fs::copy(&second, earlier.join(second.file_name().unwrap())).unwrap();
    let (report, saved) = repaired(&earlier);
    assert!(report.is_complete() && saved == model.now, "{report:?}");
    fs::remove_file(&first).unwrap();
    let (report, _) = repaired(&earlier);
    let [lost] = &report.lost_wals[..] else { panic!("{report:?}") };
    assert!(second.ends_with(&lost.wal) && lost.writes == Some(50), "{lost:?}");
}

#[test]
fn an_identity_that_is_lost_is_derived_and_one_that_is_newer_respected() {
    let (directory, path, model) = lived(8, true);
    let into = directory.path().join("into");
    for text in ["", "ecotone store\n", "ecotone store\nformat 2\n", "ecotone store\nformat 1\n", "\u{1}\u{2}"] {
        fs::write(path.join("STORE"), text).unwrap();
        let (report, saved) = repaired(&path);
        assert!(saved == model.now && report.value_log && report.notes.len() == 1, "{text:?}: {report:?}");
    }
    fs::write(path.join("STORE"), "ecotone store\nformat 4\n").unwrap();
    let error = repair(&path, &into, |_| ()).unwrap_err();
    assert!(matches!(&error, Error::WrongFormat { reason, .. } if reason.contains("repair the copy")), "{error}");

    // What is no store of ours stays what it is.
    let foreign = directory.path().join("foreign");
    drop(rust_rocksdb::DB::open_default(&foreign).unwrap());
    let error = repair(&foreign, &into, |_| ()).unwrap_err();
    assert!(
        matches!(&error, Error::WrongFormat { reason, .. } if reason.contains("put the file STORE back")),
        "{error}"
    );
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(matches!(repair(&empty, &into, |_| ()), Err(Error::NotFound { .. })));
    assert!(matches!(repair(&directory.path().join("none"), &into, |_| ()), Err(Error::NotFound { .. })));
    assert!(!into.exists());
}

#[test]
fn a_place_that_cannot_be_used_is_refused_before_anything_is_done() {
    let (directory, path, _) = lived(9, true);
    let before = files(directory.path());
    let refused = |into: &Path, words: &str| {
        let error = repair(&path, into, |_| ()).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { field: "into", .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(files(directory.path()) == before);
    };
    refused(&path, "exists");
    refused(&path.join("within"), "lies in the damaged store");
    refused(&path.join("session_tmp/within"), "lies in the damaged store");
    refused(&directory.path().join("no/parent"), "parent");
    let open = Store::open(&path, OpenMode::Open, options(true)).unwrap();
    let error = repair(&path, &directory.path().join("saved"), |_| ()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    open.close().unwrap();
    let before = files(directory.path());
    let refused = |into: &Path, words: &str| {
        let error = repair(&path, into, |_| ()).unwrap_err();
        assert!(error.to_string().contains(words) && files(directory.path()) == before, "{error}");
    };
    fs::create_dir(directory.path().join("saved.unfinished")).unwrap();
    refused(&directory.path().join("saved"), "interrupted: remove it");
}

#[test]
fn what_its_owner_finds_anew_is_left_out_and_nothing_else() {
    for separated in [false, true] {
        let (_directory, path, model) = lived(1, separated);
        let left_out = model.now.keys().nth(model.now.len() / 2).unwrap().clone();
        let mut told = Vec::new();
        let into = path.with_extension("saved");
        let leaves_out = |key: &[u8]| {
            told.push(key.to_vec());
            *key == *left_out
        };
        let report = repair_leaving_out(&path, &into, leaves_out, |_| ()).unwrap();
        assert!(report.is_complete(), "{report:?}");
        assert!(told.iter().eq(model.now.keys()), "all are told, in their order");
        let mut expected = model.now;
        expected.remove(&left_out);
        assert!(contents(&into) == expected);
    }
}
