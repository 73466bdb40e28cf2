//! What several tests share.
#![allow(dead_code, missing_docs)] // each test uses its part

mod contents;
pub mod offloads;

use std::sync::Arc;

use ecotone_engine::{OpenMode, Store, StoreOptions};
use tempfile::TempDir;

pub use contents::*;

/// Options under which a few thousand small writes fill many memtables, tables and levels.
pub fn small() -> StoreOptions {
    StoreOptions {
        memtable_bytes: 64 * 1024,
        level_base_bytes: 1024 * 1024,
        target_file_bytes: 64 * 1024,
        ..StoreOptions::default()
    }
}

pub fn store(options: StoreOptions) -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
    (directory, store)
}

pub fn shared(options: StoreOptions) -> (TempDir, Arc<Store>) {
    let (directory, store) = store(options);
    (directory, Arc::new(store))
}
