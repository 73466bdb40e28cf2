//! The report of a repair: what was read, saved and lost. The names of fields are those of the JSON
//! that `ecotone repair` prints.

use ecotone_engine::offline::survey::ManifestState;
use serde::Serialize;

use crate::findings::{Checking, list};

/// What a repair is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repairing {
    /// It opens a table.
    Table {
        /// How many are done.
        done: usize,
        /// How many there are.
        of: usize,
    },
    /// It reads a write-ahead log.
    Wal {
        /// How many are done.
        done: usize,
        /// How many there are.
        of: usize,
    },
    /// It compares tables that the MANIFEST does not name with the others.
    Unlisted {
        /// Keys that were compared.
        keys: u64,
    },
    /// It saves entries.
    Entries {
        /// How many are saved.
        done: u64,
    },
    /// It checks the new store.
    Result(Checking),
}

/// A table, or a part of one, that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostTable {
    /// The name of the file.
    pub table: String,
    /// What is wrong.
    pub reason: String,
    /// Nothing that is lost lies before this key (escaped). `None`: unknown.
    pub from: Option<String>,
    /// Nothing that is lost lies behind this key (escaped). `None`: unknown.
    pub to: Option<String>,
    /// Entries that are lost, overwritten ones and deletions included. Exact for a part of a table,
    /// estimated by the size of the file for a whole one. `None`: unknown.
    pub entries: Option<u64>,
    /// Places of the table that are damaged; 0 where none of it could be read.
    pub gaps: u64,
}

/// A key whose newest value could not be read. Nothing was saved for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostValue {
    /// The key, escaped.
    pub key: String,
    /// The file, with an offset where one is known.
    pub place: String,
    /// What is wrong there.
    pub reason: String,
}

/// A part of a write-ahead log that was dropped: all from the damage to the end of that file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostWal {
    /// The name of the file.
    pub wal: String,
    /// Where it begins.
    pub offset: u64,
    /// Bytes dropped. What was set aside behind them and not written does not count.
    pub bytes: u64,
    /// Writes dropped, where a later WAL shows how many.
    pub writes: Option<u64>,
    /// What is wrong.
    pub reason: String,
}

/// What a repair read, saved and lost. Of what is lost the first thousand of each sort are listed,
/// and all are counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// Whether the store has a value log.
    pub value_log: bool,
    /// Whether the MANIFEST says which tables there should be.
    pub manifest: ManifestState,
    /// Tables read, at least in part.
    pub tables: u64,
    /// Bytes of these files.
    pub table_bytes: u64,
    /// Tables read of which the MANIFEST says nothing: what a crash leaves behind, or what a
    /// damaged MANIFEST has forgotten.
    pub unlisted_tables: u64,
    /// Those of them that hold nothing but what others do: what a flush or a compaction was writing
    /// when the process died.
    pub unfinished_tables: u64,
    /// Segments found.
    pub segments: u64,
    /// Their bytes.
    pub segment_bytes: u64,
    /// Write-ahead logs read.
    pub wals: u64,
    /// Their bytes.
    pub wal_bytes: u64,
    /// Entries of the new store.
    pub saved_entries: u64,
    /// Bytes of their keys and values.
    pub saved_bytes: u64,
    /// Tables and parts of them that are lost.
    pub lost_tables: Vec<LostTable>,
    /// How many there are.
    pub lost_table_count: u64,
    /// Keys whose values are lost.
    pub lost_values: Vec<LostValue>,
    /// How many there are.
    pub lost_value_count: u64,
    /// Parts of write-ahead logs that are lost.
    pub lost_wals: Vec<LostWal>,
    /// How many there are.
    pub lost_wal_count: u64,
    /// Saved entries that may be older than they should be, or deleted: they lie where a table lost
    /// entries that were newer.
    pub doubtful_entries: u64,
    /// Whether deleted keys or overwritten values may be back, because their deletion or newer
    /// version may be lost.
    pub older_may_be_back: bool,
    /// Anything else that a user should read.
    pub notes: Vec<String>,
}

impl RepairReport {
    /// Whether anything is certainly lost.
    pub fn has_losses(&self) -> bool {
        self.lost_table_count > 0 || self.lost_value_count > 0 || self.lost_wal_count > 0
    }

    /// Whether all that the store held has certainly been saved: nothing is lost, and the MANIFEST,
    /// which alone says what there should be, is sound.
    pub fn is_complete(&self) -> bool {
        !self.has_losses() && self.manifest == ManifestState::Sound
    }

    pub(super) fn lost_table(&mut self, lost: LostTable) {
        list(&mut self.lost_tables, &mut self.lost_table_count, lost);
    }

    pub(super) fn lost_value(&mut self, lost: LostValue) {
        list(&mut self.lost_values, &mut self.lost_value_count, lost);
    }

    pub(super) fn lost_wal(&mut self, lost: LostWal) {
        list(&mut self.lost_wals, &mut self.lost_wal_count, lost);
    }
}

/// A key as a report names it: escaped, and whole.
pub(super) fn shown(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}
