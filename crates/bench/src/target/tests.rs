//! All targets, asked the same things.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;
use crate::workload::{ValueKind, ValueSource};

fn small() -> TargetSettings {
    small_for(TargetKind::Engine)
}

fn small_for(kind: TargetKind) -> TargetSettings {
    TargetSettings {
        memtable_bytes: 64 << 10,
        level_base_bytes: 1 << 20,
        target_file_bytes: 64 << 10,
        ..TargetSettings::for_target(kind, Profile::Default, None)
    }
}

fn key(number: u32) -> [u8; 16] {
    let mut key = [b'0'; 16];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key
}

#[test]
fn all_targets_answer_alike() {
    for kind in TargetKind::ALL {
        for durability in Durability::ALL {
            let directory = tempfile::tempdir().unwrap();
            let settings = TargetSettings { durability, ..small_for(kind) };
            let target = open(kind, directory.path(), false, &settings).unwrap();
            assert_eq!(target.name(), kind.name());
            for number in (0..100).step_by(2) {
                target.put(&key(number), &number.to_le_bytes()).unwrap();
            }
            let mut value = vec![9; 9];
            assert!(target.get(&key(42), &mut value).unwrap());
            assert_eq!(value, 42u32.to_le_bytes());
            assert!(!target.get(&key(43), &mut value).unwrap());
            assert!(value.is_empty(), "what was read before is gone");

            // From between two keys, across the end, and with nothing behind.
            assert_eq!(target.seek_scan(&key(43), 10).unwrap(), 10);
            assert_eq!(target.seek_scan(&key(93), 10).unwrap(), 3);
            assert_eq!(target.seek_scan(&key(99), 10).unwrap(), 0);

            assert!(target.read_modify_write(&key(42), &mut value, b"new").unwrap());
            assert_eq!(value, 42u32.to_le_bytes());
            assert!(target.get(&key(42), &mut value).unwrap());
            assert_eq!(value, b"new");

            target.delete(&key(42)).unwrap();
            target.delete(&key(43)).unwrap();
            assert!(!target.get(&key(42), &mut value).unwrap());
            assert_eq!(target.seek_scan(&key(42), 1).unwrap(), 1);
            assert_eq!(target.stall_time().unwrap(), Duration::ZERO);
        }
    }
}

#[test]
fn a_store_can_be_used_again_and_only_when_asked_for() {
    for kind in TargetKind::ALL {
        let directory = tempfile::tempdir().unwrap();
        let target = open(kind, directory.path(), false, &small_for(kind)).unwrap();
        target.put(b"some key", b"value").unwrap();
        drop(target);

        let refusal = open(kind, directory.path(), false, &small_for(kind)).err().unwrap().to_string();
        assert!(refusal.contains("is not empty"), "{refusal}");

        let target = open(kind, directory.path(), true, &small_for(kind)).unwrap();
        let mut value = Vec::new();
        assert!(target.get(b"some key", &mut value).unwrap());
        assert_eq!(value, b"value");

        let nothing = tempfile::tempdir().unwrap();
        assert!(open(kind, nothing.path(), true, &small_for(kind)).is_err());
    }
}

#[test]
fn a_settled_store_has_its_data_in_tables_and_no_debt() {
    for kind in TargetKind::ALL {
        let directory = tempfile::tempdir().unwrap();
        let target = open(kind, directory.path(), false, &small_for(kind)).unwrap();
        // Random bytes do not compress away.
        let source = ValueSource::new(ValueKind::Random, 1, 1000);
        let mut values = source.values();
        for number in 0..5_000u32 {
            let scattered = number.wrapping_mul(2_654_435_761);
            target.put(&key(scattered), values.next_value(number.into(), 1000)).unwrap();
        }
        assert!(target.settle(Duration::from_secs(60), &AtomicBool::new(false)).unwrap());
        let tables: u64 = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| {
                let path = entry.path();
                path.extension().is_some_and(|extension| extension == "sst" || extension == "blob")
            })
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        assert!(tables >= 5_000 * 1_016, "{kind}: {tables} bytes of tables");
    }
}

/// The newest option file of a directory as `section/name -> value`.
fn written_options(directory: &Path) -> BTreeMap<String, String> {
    let newest = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("OPTIONS-"))
        .max()
        .unwrap();
    let mut section = String::new();
    let mut options = BTreeMap::new();
    for line in std::fs::read_to_string(newest).unwrap().lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.to_owned();
        } else if let Some((name, value)) = line.split_once('=') {
            options.insert(format!("{section}/{name}"), value.to_owned());
        }
    }
    options
}

#[test]
fn rocksdb_wrote_down_the_same_options_for_our_store_and_the_bare_one() {
    let settings = [
        TargetSettings::default(),
        TargetSettings {
            memory_limit_bytes: Some(64 << 20),
            max_subcompactions: 3,
            background_flushes: 2,
            background_compactions: 4,
            compression: Compression::Zstd,
            bloom_bits_per_key: 0,
            ..small()
        },
        TargetSettings { compression: Compression::None, durability: Durability::Always, ..TargetSettings::default() },
        TargetSettings::of_profile(Profile::SmallDevice, None),
    ];
    for settings in settings {
        let [ours, bare] = [TargetKind::Engine, TargetKind::Rocksdb].map(|kind| {
            let directory = tempfile::tempdir().unwrap();
            drop(open(kind, directory.path(), false, &settings).unwrap());
            written_options(directory.path())
        });
        assert!(ours.len() > 100, "{ours:?}");
        let differing: BTreeSet<&str> = ours
            .keys()
            .chain(bare.keys())
            .filter(|name| ours.get(*name) != bare.get(*name))
            .map(String::as_str)
            .collect();
        let expected = [
            // Where remote compactions keep their outputs: the bare target has none.
            "[DBOptions]/use_session_tmp_dir_for_remote_compaction",
            // Whether a crash has taken a part of the WAL out of its middle is looked at when a
            // store is opened.
            "[DBOptions]/track_and_verify_wals",
            "[DBOptions]/wal_filter",
            // Memtables that are trees take one writer at a time.
            "[DBOptions]/allow_concurrent_memtable_write",
            // RocksDB's own family, which is empty in both: ours gives the size of memtables there
            // as well, by which RocksDB allocates WALs ahead.
            "[CFOptions \"default\"]/write_buffer_size",
            "[CFOptions \"default\"]/arena_block_size",
            // After how long what rests above the last level is rewritten: ours does that only
            // where expired values are reclaimed.
            "[CFOptions \"data\"]/ttl",
            // How much is read when a store is opened: another server opens ours when one is lost.
            "[DBOptions]/max_manifest_file_size",
        ];
        assert!(differing.is_subset(&BTreeSet::from(expected)) && differing.contains(expected[0]), "{differing:?}");
    }
}

#[test]
fn blobdb_differs_from_the_bare_target_in_its_own_options_only() {
    let of = |kind, settings: &TargetSettings| {
        let directory = tempfile::tempdir().unwrap();
        drop(open(kind, directory.path(), false, settings).unwrap());
        written_options(directory.path())
    };
    let settings = TargetSettings {
        blob_gc_age_cutoff: 0.5,
        blob_gc_force_threshold: 0.75,
        blob_compression: Compression::Zstd,
        ..TargetSettings::for_target(TargetKind::RocksdbBlob, Profile::Default, Some(200))
    };
    let blobs = of(TargetKind::RocksdbBlob, &settings);
    let bare = of(TargetKind::Rocksdb, &TargetSettings { separation_min_bytes: None, ..settings });
    let differing: BTreeMap<&str, &str> = blobs
        .iter()
        .filter(|(name, value)| bare.get(*name) != Some(value))
        .filter_map(|(name, value)| Some((name.strip_prefix("[CFOptions \"data\"]/")?, value.as_str())))
        .collect();
    let expected = [
        ("blob_compression_type", "kZSTD"),
        ("blob_file_size", "67108864"),
        ("blob_garbage_collection_age_cutoff", "0.500000"),
        ("blob_garbage_collection_force_threshold", "0.750000"),
        ("enable_blob_files", "true"),
        ("enable_blob_garbage_collection", "true"),
        ("min_blob_size", "200"),
    ];
    assert_eq!(differing, BTreeMap::from(expected));
}
