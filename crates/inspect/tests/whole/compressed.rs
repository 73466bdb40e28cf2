//! Inspections of stores whose values are compressed with dictionaries, sound ones and such whose
//! dictionaries are damaged.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::appended::{dictionary_record, is_packed};
use crate::common::telemetry::telemetry;
use crate::common::{Model, assert_equals, compressing_early, contents, until, until_compression, value_of};
use ecotone_engine::header::{Header, Kind};
use ecotone_engine::{Codec, CompressionMode, Direction, Error, OpenMode, Separation, Store, StoreSettings};
use ecotone_inspect::{FindingKind, VerifyReport, repair, space, verify};

fn settings() -> StoreSettings {
    let apart = Some(Separation { min_bytes: 50, segment_bytes: 256 * 1024 });
    compressing_early(CompressionMode::Zstd, StoreSettings { separation: apart, ..common::small() })
}

fn put(store: &Store, model: &mut Model, number: u64, value: Vec<u8>) {
    let key = format!("key{number:06}").into_bytes();
    store.put(&key, &value).unwrap();
    model.insert(key, value);
}

/// A closed store with one dictionary, in some segments; every fifth value is stored as it is, and
/// every seventh is with its key.
fn closed() -> (tempfile::TempDir, PathBuf, Model) {
    let (directory, store) = common::store(settings());
    let mut model = Model::new();
    until_compression(
        &store,
        |now| now.installed_dictionaries > 0 && now.written_by == Codec::Zstd,
        |number| put(&store, &mut model, number, telemetry(number, 300)),
    );
    // The first with that dictionary.
    put(&store, &mut model, 1, telemetry(1, 300));
    store.flush(true).unwrap();
    let path = directory.path().join("store");
    store.close().unwrap();
    // By a process that trains no other one.
    let mut once = settings();
    once.compression_parameters.samples.0 = u64::MAX;
    let store = Store::open(&path, OpenMode::Open, once).unwrap();
    assert!(store.value_compression().unwrap().dictionary.is_some());
    ecotone_engine::offline::compress_values(&store, None);
    for number in 0..6_000_u64 {
        let value = match number {
            _ if number % 7 == 0 => telemetry(number, 20),
            _ if number % 5 == 0 => value_of(b"random", number, 300),
            _ => telemetry(1 << 20 | number, 300),
        };
        put(&store, &mut model, number, value);
        if number == 3_000 {
            store.flush(true).unwrap();
        }
    }
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    store.close().unwrap();
    (directory, path, model)
}

/// Segments with a dictionary, and where its record lies.
fn with_dictionary(store: &Path) -> BTreeMap<PathBuf, std::ops::Range<usize>> {
    let values = fs::read_dir(store.join("values")).unwrap().map(|entry| entry.unwrap().path());
    let segments = values.filter(|path| path.extension().is_some_and(|end| end == "segment"));
    let found = segments.filter_map(|path| {
        let record = dictionary_record(&fs::read(&path).unwrap())?;
        Some((path, record))
    });
    found.collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// What is lost of a file.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// A bit, in so many hundredths of it.
    Bit(usize),
    /// The sector that begins with the record.
    Sector,
}

fn lose(path: &Path, record: &std::ops::Range<usize>, loss: Loss) {
    let mut bytes = fs::read(path).unwrap();
    match loss {
        Loss::Bit(share) => bytes[record.start + (record.len() - 1) * share / 100] ^= 0x10,
        // But for the header of the segment.
        Loss::Sector => bytes[32..512].fill(0),
    }
    fs::write(path, bytes).unwrap();
}

const LOSSES: [Loss; 5] = [Loss::Bit(0), Loss::Bit(1), Loss::Bit(50), Loss::Bit(100), Loss::Sector];

/// The keys whose values the segment has, those among them that are compressed first.
fn keys_of(store: &Path, segment: &Path) -> [Vec<Vec<u8>>; 2] {
    use ecotone_rocks::properties::{EntryKind, TableCollector};
    use std::sync::{Arc, Mutex};

    #[derive(Default)]
    struct Keys(Arc<Mutex<[Vec<Vec<u8>>; 2]>>, u32);
    impl TableCollector for Keys {
        fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, _sequence: u64, _file_bytes: u64) {
            if kind == EntryKind::Put
                && let Kind::Separated(pointer) = Header::decode(value).unwrap().kind
                && pointer.segment.0 == self.1
            {
                let is_compressed = pointer.stored_bytes.is_some_and(|stored| stored < pointer.value_bytes);
                self.0.lock().unwrap()[usize::from(!is_compressed)].push(key.to_vec());
            }
        }

        fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
            Vec::new()
        }
    }
    let number = name(segment).trim_end_matches(".segment").parse().unwrap();
    let found = Arc::default();
    let reader = Store::open(store, OpenMode::ReadOnly, StoreSettings::default()).unwrap();
    for table in reader.live_tables().unwrap() {
        let keys = Box::new(Keys(Arc::clone(&found), number));
        let stop = std::sync::atomic::AtomicBool::new(false);
        ecotone_rocks::verify::recount_table(&store.join(&table.name), &stop, keys, &[]).unwrap();
    }
    std::mem::take(&mut *found.lock().unwrap())
}

/// The findings about a segment.
fn about<'r>(report: &'r VerifyReport, segment: &Path) -> Vec<&'r ecotone_inspect::Finding> {
    report.damaged.iter().filter(|finding| finding.place.contains(&name(segment))).collect()
}

#[test]
fn a_sound_store_is_sound_and_tells_what_its_values_would_take() {
    let (_directory, path, model) = closed();
    let report = verify(&path, |_| ()).unwrap();
    assert!(report.is_sound() && report.torn_ends.is_empty(), "{report:?}");
    assert_eq!((report.entries, report.values_without_dictionary), (model.len() as u64, 0));
    let store = Store::open(&path, OpenMode::ReadOnly, settings()).unwrap();
    let found = space(&store).unwrap();
    let of_values: u64 = model.values().filter(|value| value.len() >= 50).map(|value| value.len() as u64).sum();
    let with_heads = found.uncompressed_bytes();
    // Each record has its key and at most 12 bytes beside its value.
    assert!(with_heads > of_values && with_heads < of_values + model.len() as u64 * 22, "{with_heads} of {of_values}");
    assert!(found.compression_ratio().unwrap() > 1.5);
    assert_eq!(serde_json::to_value(&found).unwrap()["saved_bytes"], found.saved_bytes);
}

#[test]
fn the_dictionary_of_another_segment_stands_in_for_a_damaged_one() {
    let (directory, path, model) = closed();
    let segments = with_dictionary(&path);
    assert!(segments.len() > 2, "{segments:?}");
    let (segment, record) = segments.iter().find(|(segment, _)| !keys_of(&path, segment)[0].is_empty()).unwrap();
    let sound = fs::read(segment).unwrap();
    for loss in LOSSES {
        lose(segment, record, loss);
        let report = verify(&path, |_| ()).unwrap();
        assert_eq!((report.entries, report.values_without_dictionary), (model.len() as u64, 0), "{loss:?}");
        let [finding] = about(&report, segment)[..] else { panic!("{loss:?}: {report:?}") };
        assert!(finding.kind == FindingKind::Damage && finding.detail.contains("stands in"), "{finding:?}");
        for mode in [OpenMode::ReadOnly, OpenMode::Open] {
            let store = Store::open(&path, mode, settings()).unwrap();
            assert_equals(&store, &model);
            store.close().unwrap();
        }
        fs::write(segment, &sound).unwrap();
    }
    // Nor does a repair lose anything.
    lose(segment, record, LOSSES[2]);
    let into = directory.path().join("saved");
    let report = repair(&path, &into, |_| ()).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_equals(&Store::open(&into, OpenMode::Open, settings()).unwrap(), &model);
}

#[test]
fn without_any_dictionary_what_needs_it_is_lost_and_named_and_nothing_else() {
    let (directory, path, model) = closed();
    let segments = with_dictionary(&path);
    let mut needing = Vec::new();
    let mut per_segment = BTreeMap::new();
    for segment in segments.keys() {
        let [compressed, _] = keys_of(&path, segment);
        // What was overwritten long ago may not have gone yet.
        if !compressed.is_empty() {
            per_segment.insert(segment, compressed.len());
            needing.extend(compressed);
        }
    }
    assert!(per_segment.len() > 1 && needing.len() > 1000);
    let sound: Vec<_> = segments.keys().map(|path| (path, fs::read(path).unwrap())).collect();
    for (round, loss) in LOSSES.into_iter().enumerate() {
        segments.iter().for_each(|(path, record)| lose(path, record, loss));
        let mut left = model.clone();
        needing.iter().for_each(|key| drop(left.remove(key)));
        let reader = Store::open(&path, OpenMode::ReadOnly, settings()).unwrap();
        for (key, value) in &model {
            match reader.get(key) {
                Ok(found) => assert!(left.contains_key(key) && found.as_deref() == Some(&value[..]), "{loss:?}"),
                Err(Error::Corrupt { location: Some(location), detail }) => {
                    assert!(!left.contains_key(key) && detail.contains("dictionary"), "{loss:?}: {detail}");
                    assert!(segments.keys().any(|path| location.contains(&name(path))), "{location}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        drop(reader);
        let report = verify(&path, |_| ()).unwrap();
        assert_eq!(report.values_without_dictionary, needing.len() as u64, "{loss:?}");
        assert_eq!((report.entries, report.damaged_count), (left.len() as u64, per_segment.len() as u64), "{report:?}");
        assert!(!report.is_sound() && !report.loses_by_writing());
        for (segment, values) in &per_segment {
            let [finding] = about(&report, segment)[..] else { panic!("{report:?}") };
            assert!(finding.detail.starts_with(&format!("{values} values need its dictionary")), "{finding:?}");
        }
        // Whoever writes it loses no more: what cannot be read stays where it is.
        if round == 2 {
            let store = Store::open(&path, OpenMode::Open, settings()).unwrap();
            store.compact(..).unwrap();
            for (key, value) in &left {
                assert_eq!(store.get(key).unwrap().as_deref(), Some(&value[..]));
            }
            store.close().unwrap();
            let into = directory.path().join("saved");
            let report = repair(&path, &into, |_| ()).unwrap();
            assert_eq!((report.lost_value_count, report.saved_entries), (needing.len() as u64, left.len() as u64));
            let named: Vec<_> = report.lost_values.iter().map(|lost| lost.key.as_bytes()).collect();
            assert!(named.iter().all(|key| needing.iter().any(|needing| needing == key)));
            assert_equals(&Store::open(&into, OpenMode::Open, settings()).unwrap(), &left);
        }
        sound.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    }
    assert!(verify(&path, |_| ()).unwrap().is_sound());
}

fn format(store: &Path) -> String {
    fs::read_to_string(store.join("STORE")).unwrap().lines().nth(1).unwrap().to_owned()
}

fn segment_bytes(store: &Path) -> u64 {
    let values = fs::read_dir(store.join("values")).unwrap().map(|entry| entry.unwrap().path());
    let segments = values.filter(|path| path.extension().is_some_and(|end| end == "segment"));
    segments.map(|path| fs::metadata(path).unwrap().len()).sum()
}

#[test]
fn what_is_saved_is_compressed_as_well_also_where_the_identity_is_damaged() {
    let (directory, path, model) = closed();
    let before = {
        let store = Store::open(&path, OpenMode::ReadOnly, settings()).unwrap();
        space(&store).unwrap()
    };
    for (case, identity) in [None, Some("ecotone stoqe\n"), Some("")].into_iter().enumerate() {
        if let Some(identity) = identity {
            fs::write(path.join("STORE"), identity).unwrap();
        }
        let into = directory.path().join(format!("saved-{case}"));
        let report = repair(&path, &into, |_| ()).unwrap();
        assert_eq!((report.saved_entries, report.lost_value_count), (model.len() as u64, 0), "{report:?}");
        assert_eq!(format(&into), "format 3");
        let store = Store::open(&into, OpenMode::Open, settings()).unwrap();
        assert_equals(&store, &model);
        let log = until(&store, |log| log.saved_bytes > 0);
        assert!(log.referenced_bytes < before.referenced_bytes() * 11 / 10, "{log:?} {before:?}");
        store.close().unwrap();
        assert!(segment_bytes(&into) < before.segment_bytes() * 12 / 10);
    }
}

#[test]
fn a_repair_of_values_that_are_not_compressed_compresses_none() {
    let mut plain = settings();
    plain.value_compression = CompressionMode::None;
    let (directory, store) = common::store(plain.clone());
    let mut model = Model::new();
    for number in 0..500 {
        put(&store, &mut model, number, telemetry(number, 300));
    }
    let path = directory.path().join("store");
    store.close().unwrap();
    let into = directory.path().join("saved");
    assert!(repair(&path, &into, |_| ()).unwrap().is_complete());
    assert_eq!(format(&into), "format 2");
    let segments = fs::read_dir(into.join("values")).unwrap().map(|entry| entry.unwrap().path());
    let segments: Vec<_> = segments.filter(|path| path.extension().is_some_and(|end| end == "segment")).collect();
    assert!(!segments.is_empty() && segments.iter().all(|path| !is_packed(&fs::read(path).unwrap())));
    let store = Store::open(&into, OpenMode::Open, plain).unwrap();
    assert!(contents(&store).into_iter().eq(model));
    assert_eq!(store.scan(.., Direction::Reverse, None).unwrap().count(), 500);
}
