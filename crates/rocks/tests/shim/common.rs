//! What several tests share: small stores and the model that their content is compared with.

use std::collections::BTreeMap;
use std::path::Path;

use rust_rocksdb::{BlockBasedOptions, DB, FileChecksumGenFactory, IteratorMode, Options};

/// What a store should hold.
pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A reproducible sequence of numbers (splitmix64; Steele, Lea, Flood 2014).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

pub fn key(number: u64) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

/// Options of a small store whose files are easy to reason about.
pub fn small_store() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_size(1024);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_block_based_table_factory(&table);
    options.set_file_checksum_gen_factory(&FileChecksumGenFactory::crc32c());
    options.set_disable_auto_compactions(true);
    options.set_write_buffer_size(64 << 20);
    options.set_target_file_size_base(64 << 10);
    options.set_max_bytes_for_level_base(1 << 20);
    options.set_keep_log_file_num(1);
    options
}

/// All that the default column family holds.
pub fn content(db: &DB) -> Model {
    db.iterator(IteratorMode::Start)
        .map(|entry| {
            let (key, value) = entry.expect("reads");
            (key.to_vec(), value.to_vec())
        })
        .collect()
}

pub fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("makes the directory");
    for entry in std::fs::read_dir(from).expect("lists") {
        let entry = entry.expect("lists");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("has a type").is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copies");
        }
    }
}
