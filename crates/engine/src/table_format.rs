//! How tables are laid out, and what they say of their entries: alike on owner and worker.

use serde::{Deserialize, Serialize};

/// How tables are laid out: what a worker cannot learn from the owner's OPTIONS file, and must do
/// alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableFormat {
    /// Size of a data block before compression, in bytes.
    pub block_bytes: u64,
    /// Bits per key of the Bloom filter; 0 is none.
    pub bloom_bits_per_key: u32,
    /// What they tell of their entries.
    pub collects: Collects,
}

/// What a table tells of its entries beside RocksDB's own properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Collects {
    /// How many bytes of which segments it refers to: so do the tables of a store with a value log.
    pub references: bool,
    /// A sample of its keys.
    pub samples: bool,
    /// Bits per key of a filter of its keys by the hash of the samples; 0 is none. RocksDB's own
    /// filter is another one.
    pub filter_bits_per_key: u8,
    /// When the first of its values expires.
    pub expiry: bool,
}

impl Collects {
    pub(crate) fn is_any(self) -> bool {
        self != Self::default()
    }
}
