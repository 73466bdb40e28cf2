//! Options that are a choice among a few, with the names that people write.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// When a write is acknowledged. In all three every write goes to the write-ahead log (WAL) and
/// from there to the operating system before it is acknowledged, so a killed process loses nothing;
/// they differ in what a crash of the machine may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The WAL is never synced for this write. A crash of the machine loses what the kernel had not
    /// yet written back.
    None,
    /// The WAL is synced in the background, so often that a crash of the machine loses at most the
    /// last [`SYNC_INTERVAL`](crate::SYNC_INTERVAL), where the device syncs in a third of that, and
    /// in no more than lately. A failed sync fails every later write.
    #[default]
    #[serde(rename = "everysec")]
    EverySecond,
    /// The WAL is synced before the write is acknowledged; writers that wait together share one
    /// sync.
    Always,
}

/// How tables are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4: little CPU.
    #[default]
    Lz4,
    /// Zstandard: smaller tables, more CPU.
    Zstd,
}

/// How a memtable keeps its entries in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemtableOrder {
    /// A tree with many entries in a node: insertions and lookups take less processor time, an
    /// entry some 15 bytes more.
    #[default]
    Tree,
    /// RocksDB's skip list.
    SkipList,
}

impl Durability {
    /// All of them, the cheapest first.
    pub const ALL: [Durability; 3] = [Durability::None, Durability::EverySecond, Durability::Always];

    /// `none`, `everysec` or `always`.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::EverySecond => "everysec",
            Durability::Always => "always",
        }
    }
}

impl Compression {
    /// All of them, the cheapest first.
    pub const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

    /// `none`, `lz4` or `zstd`.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

impl MemtableOrder {
    /// All of them.
    pub const ALL: [MemtableOrder; 2] = [MemtableOrder::Tree, MemtableOrder::SkipList];

    /// `tree` or `skip-list`.
    pub const fn name(self) -> &'static str {
        match self {
            MemtableOrder::Tree => "tree",
            MemtableOrder::SkipList => "skip-list",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for MemtableOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        by_name("durability", name, &Self::ALL, Self::name)
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        by_name("compression", name, &Self::ALL, Self::name)
    }
}

impl FromStr for MemtableOrder {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        by_name("memtable_order", name, &Self::ALL, Self::name)
    }
}

pub(crate) fn by_name<T: Copy>(
    option: &'static str,
    name: &str,
    all: &[T],
    name_of: fn(T) -> &'static str,
) -> Result<T> {
    all.iter().copied().find(|one| name_of(*one) == name).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|one| name_of(*one)).collect();
        Error::invalid(option, format!("{name:?} is none of {}", names.join(", ")))
    })
}

/// What may be in the directory, and what may be done there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenMode {
    /// Create a store; an error where one exists.
    Create,
    /// Open the store, or create it where there is none.
    CreateOrOpen,
    /// Open the store; an error where there is none.
    Open,
    /// Open the store as it is now, without lock and without writing. Data that another process
    /// writes later is not seen, and tables it removes may be missed: meant for a store that nobody
    /// writes.
    ReadOnly,
}
