//! Compactions that are extended to where duplicates are: what hides is freed, nothing else changes, and writers never wait for it.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::offloads::InProcess;
use common::random::Random;
use common::tmpfs::Tmpfs;
use common::{Model, assert_equals, value_of};
use ecotone_engine::{
    Compression, DedupMode, DedupOptions, DedupProperties, Duty, DutyObserver, Error, OpenMode, Separation, SpaceLimits,
    Store, StoreOptions, verify,
};
use ecotone_policy::dedup::{DedupParameters, DedupThreshold};
use ecotone_policy::units::{Bytes, Seconds};
use ecotone_rocks_sys::filesystem::{FileSystemHooks, TapEvent, WriteTap};

/// Far more than any of this takes.
const LONG: Duration = Duration::from_secs(120);

/// So many writes go to each key, in no order.
const ROUNDS: u64 = 4;

/// The name of the thread that checks and merges.
const THREAD: &str = "ecotone-dedup";

/// Merges of whatever is found, without rests.
fn eager(mode: DedupMode) -> DedupOptions {
    DedupOptions {
        mode,
        threshold: Some(DedupThreshold::try_from(30.0).unwrap()),
        parameters: DedupParameters {
            max_merge_bytes: Bytes::from_mib(4),
            min_sampled_duplicates: 4,
            rest_share: 0.0,
            ..DedupParameters::default()
        },
    }
}

/// A tree of four levels below L0, once it is full.
fn options(separated: bool, dedup: DedupOptions) -> StoreOptions {
    StoreOptions {
        memtable_bytes: 256 * 1024,
        level_base_bytes: 1024 * 1024,
        level_multiplier: 2,
        dynamic_levels: false,
        target_file_bytes: 128 * 1024,
        compression: Compression::None,
        separation: separated.then_some(Separation { min_bytes: 32, segment_bytes: 1024 * 1024 }),
        dedup,
        ..StoreOptions::default()
    }
}

/// Keys that fill four levels, and the length of their values.
fn size(separated: bool) -> (usize, usize) {
    if separated { (160_000, 40) } else { (60_000, 100) }
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

/// Writes `rounds` times as many values as there are keys, in an order that the seed determines.
fn overwrite(store: &Store, model: &mut Model, seed: u64, rounds: u64, (keys, bytes): (usize, usize)) {
    let mut random = Random::new(seed);
    for number in 0..keys as u64 * rounds {
        let key = key(random.below(keys));
        let value = value_of(&key, seed ^ number, bytes);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
}

/// Waits until no compaction and no merge is to be made any more.
fn settled(store: &Store) -> Option<DedupProperties> {
    let begin = Instant::now();
    loop {
        // Merges leave compactions behind and these extensions, so it is asked for both between two looks at what was done.
        let compactions = store.counters().compactions;
        let properties = store.properties().unwrap();
        let dedup = store.dedup();
        let is_busy = properties.running_compactions > 0
            || properties.compaction_pending
            || dedup.as_ref().is_some_and(|dedup| dedup.is_busy);
        if !is_busy && store.counters().compactions == compactions {
            return dedup;
        }
        assert!(begin.elapsed() < LONG, "{properties:?} {dedup:?}");
        std::thread::yield_now();
    }
}

/// Entries of all tables for each key that there is, and the deepest level.
fn amplification(store: &Store, model: &Model) -> (f64, u32) {
    let tables = store.live_tables().unwrap();
    let entries: u64 = tables.iter().map(|table| table.entries).sum();
    (entries as f64 / model.len() as f64, tables.iter().map(|table| table.level).max().unwrap())
}

#[test]
fn what_hides_in_deep_levels_is_merged_away_and_no_answer_changes() {
    for separated in [false, true] {
        let mut amplified = Vec::new();
        for mode in [DedupMode::Off, DedupMode::Sample, DedupMode::Filter] {
            let dedup = if mode == DedupMode::Off { DedupOptions::default() } else { eager(mode) };
            let (directory, store) = common::store(options(separated, dedup));
            let mut model = Model::new();
            overwrite(&store, &mut model, 1, ROUNDS, size(separated));
            store.flush(true).unwrap();
            let done = settled(&store);
            let (entries_per_key, deepest) = amplification(&store, &model);
            eprintln!("{separated} {mode} {entries_per_key} {deepest} {done:?} {:?}", store.value_log());
            assert!(deepest >= 4, "{deepest} levels only");
            assert_equals(&store, &model);
            amplified.push(entries_per_key);
            if let Some(done) = done.filter(|_| mode != DedupMode::Off) {
                assert!(done.merges > 0 && done.found_keys > 0 && done.read_bytes > done.written_bytes, "{done:?}");
                // What was expected was there.
                let found = done.found_keys as f64 / done.expected_keys as f64;
                assert!((0.7..1.5).contains(&found), "{done:?}");
                assert_eq!((done.unsampled_tables, done.checks_dropped), (0, 0), "{done:?}");
            }
            store.close().unwrap();
            let path = directory.path().join("store");
            let report = verify(&path, |_| ()).unwrap();
            assert!(report.is_sound(), "{report:?}");
        }
        let [off, sample, filter] = amplified[..] else { unreachable!() };
        assert!(off > 1.2, "nothing hides without it: {off}");
        for with in [sample, filter] {
            assert!(with - 1.0 < 0.6 * (off - 1.0), "{with} entries for each key with it, {off} without");
        }
    }
}
