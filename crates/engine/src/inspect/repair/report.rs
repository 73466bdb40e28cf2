//! What a repair says: what was read, saved and lost.

use serde::Serialize;

use crate::inspect::findings::Checking;

/// Lost tables, values and parts of WALs that are listed; more are counted only.
const MAX_LISTED: usize = 1000;

/// What a repair is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repairing {
    /// It looks at a table.
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

/// What was known of which tables there should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ManifestState {
    /// All that the MANIFEST says was read.
    Sound,
    /// A part of it was read, or nobody knows whether it is the right one. Tables of which it says
    /// nothing were found by listing the folder; one that is missing may not be noticed.
    Damaged(String),
    /// There is none: all tables were found by listing the folder, and nobody knows whether one is
    /// missing.
    #[default]
    Missing,
}

/// A table, or a part of one, that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostTable {
    /// The name of the file.
    pub table: String,
    /// What is wrong.
    pub reason: String,
    /// Nothing that is lost lies before this key (escaped). `None`: nobody knows.
    pub from: Option<String>,
    /// Nothing that is lost lies behind this key (escaped). `None`: nobody knows.
    pub to: Option<String>,
    /// Entries that are lost, overwritten ones and deletions included. Exact for a part of a table,
    /// estimated by the size of the file for a whole one. `None` where nothing tells.
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
    /// Bytes dropped.
    pub bytes: u64,
    /// Writes dropped, where a later WAL tells.
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
    /// What was known of which tables there should be.
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
    /// Whether keys that were deleted may be back, or values that were overwritten: what said so
    /// may be among what is lost.
    pub older_may_be_back: bool,
    /// What else is worth knowing.
    pub notes: Vec<String>,
}

impl RepairReport {
    /// Whether something is known to be lost.
    pub fn has_losses(&self) -> bool {
        self.lost_table_count > 0 || self.lost_value_count > 0 || self.lost_wal_count > 0
    }

    /// Whether all that the store held is known to have been saved: nothing is lost, and the
    /// MANIFEST, which alone tells what there should be, is sound.
    pub fn is_complete(&self) -> bool {
        !self.has_losses() && self.manifest == ManifestState::Sound
    }

    pub(super) fn lost_table(&mut self, lost: LostTable) {
        count(&mut self.lost_tables, &mut self.lost_table_count, lost);
    }

    pub(super) fn lost_value(&mut self, lost: LostValue) {
        count(&mut self.lost_values, &mut self.lost_value_count, lost);
    }

    pub(super) fn lost_wal(&mut self, lost: LostWal) {
        count(&mut self.lost_wals, &mut self.lost_wal_count, lost);
    }
}

fn count<T>(listed: &mut Vec<T>, all: &mut u64, lost: T) {
    *all += 1;
    if listed.len() < MAX_LISTED {
        listed.push(lost);
    }
}

/// A key as a report names it: escaped, and whole.
pub(super) fn shown(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}
