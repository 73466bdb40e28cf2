//! What several tests share.
#![allow(dead_code, missing_docs)] // each test uses its part

pub mod appended;
mod contents;
pub mod disk;
pub mod merging;
pub mod offloads;
pub mod random;
pub mod rounds;
#[path = "../../../valuelog/tests/common/telemetry.rs"]
pub mod telemetry;
pub mod tmpfs;
pub mod warnings;
pub mod writes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_engine::{
    CompressionMode, CompressionProperties, DedupMode, DedupOptions, ExtensionThreshold, OpenMode, Separation, Store,
    StoreBuilder, StoreSettings, ValueLogProperties,
};
use ecotone_policy::compression::{PARAMETERS, Parameters};
use ecotone_policy::dedup::{DedupParameters, DedupThreshold};
use ecotone_policy::gc::GcParameters;
use ecotone_types::units::Bytes;
use tempfile::TempDir;
use writes::LONG_BYTES;

pub use contents::*;

/// Short segments, and garbage collection that begins early and often, so that whatever is done to
/// a store meets it.
pub fn collecting_early(segment_bytes: u64) -> StoreSettings {
    StoreSettings {
        separation: Some(Separation { min_bytes: LONG_BYTES, segment_bytes }),
        l0_compaction_trigger: 2,
        gc: GcParameters {
            begin_ratio: 1.1,
            end_ratio: 1.05,
            min_garbage_bytes: Bytes(segment_bytes),
            ..GcParameters::default()
        },
        ..small()
    }
}

/// Values are compressed soon, by a dictionary that is trained from a few dozen of them and replaced
/// when they have changed. What processor time it takes is no matter, so that nothing depends on how
/// busy the machine is.
pub fn compressing_early(mode: CompressionMode, settings: StoreSettings) -> StoreSettings {
    let compression_parameters = Parameters {
        samples: Bytes(16 * 1024),
        window: Bytes(8 * 1024),
        rest: Bytes(64 * 1024),
        max_rest: Bytes(256 * 1024),
        written_byte_ns: 1e6,
        relocated_byte_ns: 1e6,
        dictionaries: u64::MAX,
        ..PARAMETERS
    };
    StoreSettings { value_compression: mode, compression_parameters, ..settings }
}

/// Merges of whatever is found, as small as they can be, without rests.
pub fn dedup_eagerly(mode: DedupMode) -> DedupOptions {
    DedupOptions {
        mode: Some(mode),
        threshold: ExtensionThreshold::At(DedupThreshold::try_from(DedupThreshold::GREATEST).unwrap()),
        parameters: DedupParameters {
            max_merge_bytes: Bytes::from_mib(1),
            min_sampled_duplicates: 1,
            rest_share: 0.0,
            ..DedupParameters::default()
        },
        ..DedupOptions::default()
    }
}

pub fn store(settings: StoreSettings) -> (TempDir, Store) {
    store_with(settings, |builder| builder)
}

/// The same with what the test has beside its settings.
pub fn store_with(settings: StoreSettings, with: impl FnOnce(StoreBuilder) -> StoreBuilder) -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let builder = Store::builder(&directory.path().join("store")).mode(OpenMode::Create).settings(settings);
    let store = with(builder).open().unwrap();
    (directory, store)
}

pub fn shared(settings: StoreSettings) -> (TempDir, Arc<Store>) {
    let (directory, store) = store(settings);
    (directory, Arc::new(store))
}

/// A directory in memory where there is one, for stores whose disk is made up: its syncs cost
/// nothing.
pub fn directory_in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Waits until what the value log holds is as wanted. GC runs on a thread of its own.
pub fn until(store: &Store, wanted: impl Fn(&ValueLogProperties) -> bool) -> ValueLogProperties {
    let begin = Instant::now();
    loop {
        let properties = store.value_log().unwrap();
        if wanted(&properties) {
            return properties;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{properties:?}");
        std::thread::yield_now();
    }
}

/// The same of how values are compressed, which a thread of its own decides. `step` is called until
/// then, with how often it was before.
pub fn until_compression(
    store: &Store,
    wanted: impl Fn(&CompressionProperties) -> bool,
    mut step: impl FnMut(u64),
) -> CompressionProperties {
    let begin = Instant::now();
    for number in 0.. {
        let properties = store.value_compression().unwrap();
        if wanted(&properties) {
            return properties;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{properties:?}");
        step(number);
        std::thread::yield_now();
    }
    unreachable!("numbers do not end")
}

/// Panics that a test makes by the hundred print nothing any more, by the end of what they say:
/// their backtraces would shadow what another test says. Others' are printed as before.
pub fn hide_panics(end: &'static str) {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload_as_str().is_some_and(|said| said.ends_with(end)) {
            others(panic);
        }
    }));
}

/// Writes so many keys in their order, each with a value of 100 bytes, and flushes them.
pub fn numbered(store: &Store, keys: u64) -> Model {
    let mut model = Model::new();
    for number in 0..keys {
        let key = format!("key{number:06}").into_bytes();
        let value = value_of(&key, 0, 100);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    store.flush(true).unwrap();
    model
}

/// Deletes every second of them, and flushes that.
pub fn halve(store: &Store, model: &mut Model) {
    let gone: Vec<_> = model.keys().step_by(2).cloned().collect();
    for key in gone {
        store.delete(&key).unwrap();
        model.remove(&key);
    }
    store.flush(true).unwrap();
}
