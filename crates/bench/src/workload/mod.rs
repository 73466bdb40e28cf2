//! The published workloads as pure generators of operations.
//!
//! Invariants: the operations of a thread depend on the options, the seed and the thread's number
//! only, never on time, on the store's answers or on other threads; every key number lies in the
//! range the workload names. A generator does no IO and allocates nothing per operation.

mod distribution;
mod generator;
mod keys;
mod options;
mod random;
mod values;

pub use distribution::{GeneralizedPareto, ScatteredZipfian, ScrambledZipfian, Zipfian};
pub use generator::Generator;
pub use keys::{KeyOrder, KeyShape};
pub use options::{Preload, WorkloadOptions};
pub use random::{Random, mix64};
pub use values::{ValueKind, ValueSource, Values};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A workload by its published name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// db_bench: puts of uniformly drawn keys into an empty store.
    #[serde(rename = "fillrandom")]
    FillRandom,
    /// db_bench: puts in key order into an empty store.
    #[serde(rename = "fillseq")]
    FillSeq,
    /// db_bench: puts of uniformly drawn keys into a full store.
    #[serde(rename = "overwrite")]
    Overwrite,
    /// db_bench: gets of uniformly drawn keys.
    #[serde(rename = "readrandom")]
    ReadRandom,
    /// db_bench: one thread puts, all others get; keys uniformly drawn.
    #[serde(rename = "readwhilewriting")]
    ReadWhileWriting,
    /// db_bench: 25 % puts, 50 % gets, 25 % seeks with scans; Generalized Pareto value sizes and
    /// scan lengths.
    #[serde(rename = "mixgraph")]
    MixGraph,
    /// db_bench: seeks to uniformly drawn keys, each reading the pair it lands on, or as many as
    /// are asked for.
    #[serde(rename = "seekrandom")]
    SeekRandom,
    /// YCSB core A: 50 % reads, 50 % updates, scrambled Zipfian.
    YcsbA,
    /// YCSB core B: 95 % reads, 5 % updates, scrambled Zipfian.
    YcsbB,
    /// YCSB core C: reads, scrambled Zipfian.
    YcsbC,
    /// YCSB core D: 95 % reads of the latest keys, 5 % inserts.
    YcsbD,
    /// YCSB core E: 95 % scans of 1 to 100 pairs, 5 % inserts, scrambled Zipfian.
    YcsbE,
    /// YCSB core F: 50 % reads, 50 % read-modify-writes, scrambled Zipfian.
    YcsbF,
    /// Puts into a full store, of which a share updates keys of the load, uniformly or by a
    /// Zipfian, and the rest inserts new ones: the update proportion of "Deduplication Adapted
    /// CaseDB for Edge Computing", Fig. 4.
    Updates,
}

impl Workload {
    /// All workloads in the order in which they are listed to a user.
    pub const ALL: [Workload; 14] = [
        Workload::FillRandom,
        Workload::FillSeq,
        Workload::Overwrite,
        Workload::ReadRandom,
        Workload::ReadWhileWriting,
        Workload::MixGraph,
        Workload::SeekRandom,
        Workload::YcsbA,
        Workload::YcsbB,
        Workload::YcsbC,
        Workload::YcsbD,
        Workload::YcsbE,
        Workload::YcsbF,
        Workload::Updates,
    ];

    /// The published name, as on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Workload::FillRandom => "fillrandom",
            Workload::FillSeq => "fillseq",
            Workload::Overwrite => "overwrite",
            Workload::ReadRandom => "readrandom",
            Workload::ReadWhileWriting => "readwhilewriting",
            Workload::MixGraph => "mixgraph",
            Workload::SeekRandom => "seekrandom",
            Workload::YcsbA => "ycsb-a",
            Workload::YcsbB => "ycsb-b",
            Workload::YcsbC => "ycsb-c",
            Workload::YcsbD => "ycsb-d",
            Workload::YcsbE => "ycsb-e",
            Workload::YcsbF => "ycsb-f",
            Workload::Updates => "updates",
        }
    }

    /// Whether the workload starts from an empty store, so that nothing is loaded first.
    pub fn fills(self) -> bool {
        matches!(self, Workload::FillRandom | Workload::FillSeq)
    }

    /// How many threads the driver runs when the user asks for `threads`: `readwhilewriting` adds
    /// its writer to the readers.
    pub fn driver_threads(self, threads: u32) -> u32 {
        threads + u32::from(self == Workload::ReadWhileWriting)
    }

    /// How key numbers become bytes: YCSB scatters them, db_bench does not. Those of `updates` are
    /// scattered, so that new keys fall between old ones.
    pub fn key_order(self) -> KeyOrder {
        match self {
            Workload::YcsbA
            | Workload::YcsbB
            | Workload::YcsbC
            | Workload::YcsbD
            | Workload::YcsbE
            | Workload::YcsbF
            | Workload::Updates => KeyOrder::Scattered,
            _ => KeyOrder::Number,
        }
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}

impl std::str::FromStr for Workload {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Workload::ALL.into_iter().find(|workload| workload.name() == name).ok_or_else(|| {
            let names = Workload::ALL.map(Workload::name).join(", ");
            Error::options(format!("unknown workload {name:?}; choose one of: {names}"))
        })
    }
}

/// One operation of a workload. Keys are numbers; [`KeyShape`] makes bytes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Write a value of `value_bytes` bytes.
    Put {
        /// The key's number.
        key: u64,
        /// The length of the value in bytes.
        value_bytes: u32,
    },
    /// Read one value.
    Get {
        /// The key's number.
        key: u64,
    },
    /// Seek to a key and read up to `entries` pairs from there; db_bench's seek.
    Seek {
        /// The key's number.
        key: u64,
        /// How many pairs to read, at least 1.
        entries: u32,
    },
    /// Read up to `entries` pairs from a key on; YCSB's scan.
    Scan {
        /// The key's number.
        key: u64,
        /// How many pairs to read, at least 1.
        entries: u32,
    },
    /// Read a value and write another in its place.
    ReadModifyWrite {
        /// The key's number.
        key: u64,
        /// The length of the new value in bytes.
        value_bytes: u32,
    },
}

/// The kinds of operations that are counted and timed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// [`Operation::Put`].
    Put,
    /// [`Operation::Get`].
    Get,
    /// [`Operation::Seek`].
    Seek,
    /// [`Operation::Scan`].
    Scan,
    /// [`Operation::ReadModifyWrite`].
    ReadModifyWrite,
}

impl OperationKind {
    /// All kinds, in the order of [`OperationKind::index`].
    pub const ALL: [OperationKind; 5] = [
        OperationKind::Put,
        OperationKind::Get,
        OperationKind::Seek,
        OperationKind::Scan,
        OperationKind::ReadModifyWrite,
    ];

    /// The kind's index in [`OperationKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The kind's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Put => "put",
            OperationKind::Get => "get",
            OperationKind::Seek => "seek",
            OperationKind::Scan => "scan",
            OperationKind::ReadModifyWrite => "read_modify_write",
        }
    }

    /// Whether the kind reads. A read-modify-write both reads and writes.
    pub fn reads(self) -> bool {
        self != OperationKind::Put
    }

    /// Whether the kind writes. A read-modify-write both reads and writes.
    pub fn writes(self) -> bool {
        matches!(self, OperationKind::Put | OperationKind::ReadModifyWrite)
    }
}

impl Operation {
    /// The operation's kind.
    pub fn kind(&self) -> OperationKind {
        match self {
            Operation::Put { .. } => OperationKind::Put,
            Operation::Get { .. } => OperationKind::Get,
            Operation::Seek { .. } => OperationKind::Seek,
            Operation::Scan { .. } => OperationKind::Scan,
            Operation::ReadModifyWrite { .. } => OperationKind::ReadModifyWrite,
        }
    }

    /// The number of the key it starts at.
    pub fn key(&self) -> u64 {
        match *self {
            Operation::Put { key, .. }
            | Operation::Get { key }
            | Operation::Seek { key, .. }
            | Operation::Scan { key, .. }
            | Operation::ReadModifyWrite { key, .. } => key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_and_is_its_serialised_form() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse::<Workload>().unwrap(), workload);
            assert_eq!(serde_json::to_string(&workload).unwrap(), format!("\"{workload}\""));
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_choices() {
        let message = "ycsb-g".parse::<Workload>().unwrap_err().to_string();
        assert!(message.contains("\"ycsb-g\""), "{message}");
        assert!(message.contains("fillrandom") && message.contains("ycsb-f"), "{message}");
        assert!("FillRandom".parse::<Workload>().is_err());
    }

    #[test]
    fn the_index_of_a_kind_is_its_place() {
        for (index, kind) in OperationKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
        }
    }
}
