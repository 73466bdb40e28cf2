//! A small store, its contents and the model beside it. The tests of the federation use this file,
//! too.

use std::collections::BTreeMap;

use ecotone_engine::{Direction, Store, StoreSettings};

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Options under which a few thousand small writes fill many memtables, tables and levels.
pub fn small() -> StoreSettings {
    StoreSettings {
        memtable_bytes: 64 * 1024,
        level_base_bytes: 1024 * 1024,
        target_file_bytes: 64 * 1024,
        ..StoreSettings::default()
    }
}

pub fn contents(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    store.scan(.., Direction::Forward, None).unwrap().map(Result::unwrap).collect()
}

pub fn assert_equals(store: &Store, model: &Model) {
    let stored = contents(store);
    assert_eq!(stored.len(), model.len(), "number of entries");
    assert!(stored.iter().map(|(k, v)| (k, v)).eq(model.iter()), "entries differ");
}

/// A value that nobody can mistake for another: made from the key and a number, `bytes` long.
pub fn value_of(key: &[u8], number: u64, bytes: usize) -> Vec<u8> {
    let mut state =
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ key.iter().fold(7, |h: u64, b| h.wrapping_mul(31) ^ u64::from(*b));
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Writes `writes` values over `keys` keys in an order that mixes them, and what then is stored
/// into `model`.
pub fn fill(store: &Store, model: &mut Model, seed: u64, writes: u64, keys: u64) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for number in 0..writes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = format!("key{:08}", (state >> 33) % keys).into_bytes();
        if (state >> 20).is_multiple_of(16) {
            store.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let value = value_of(&key, seed ^ number, 100);
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        }
    }
}
