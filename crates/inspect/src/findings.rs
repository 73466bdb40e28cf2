//! The report of a check: what is being checked, and what was found. The names of fields and kinds
//! are those of the JSON that `ecotone verify` prints.

use serde::{Deserialize, Serialize};

/// Findings, or losses, of a kind that a report lists; more are counted only.
const MAX_LISTED: usize = 1000;

/// What is being checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checking {
    /// A table.
    Table {
        /// How many are done.
        done: usize,
        /// How many there are.
        of: usize,
    },
    /// A segment.
    Segment {
        /// How many are done.
        done: usize,
        /// How many there are.
        of: usize,
    },
    /// The entries, each with its value.
    Entries {
        /// How many are done.
        done: u64,
    },
}

/// What is wrong about a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingKind {
    /// Bytes that are not those that were written, or are missing.
    Damage,
    /// A table states fewer references to a segment than its entries have, or cannot be read:
    /// values are lost with the segment when that is removed. Do not open the store for writing.
    UnderstatedReferences,
    /// A table states more references to a segment than its entries have, and fewer to none:
    /// garbage is kept until the table is compacted. No damage.
    OverstatedReferences,
    /// Entries of a table, perhaps shadowed by newer versions, reference what no segment has.
    DanglingPointer,
    /// The end of a segment or of a log that cannot be walked any further.
    TornEnd,
}

impl FindingKind {
    /// As JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Damage => "damage",
            Self::UnderstatedReferences => "understated-references",
            Self::OverstatedReferences => "overstated-references",
            Self::DanglingPointer => "dangling-pointer",
            Self::TornEnd => "torn-end",
        }
    }
}

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What kind of thing is wrong.
    pub kind: FindingKind,
    /// The file, with an offset where one is known.
    pub place: String,
    /// What is wrong there.
    pub detail: String,
}

/// What was checked and found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Tables checked.
    pub tables: u64,
    /// Their bytes.
    pub table_bytes: u64,
    /// Segments checked.
    pub segments: u64,
    /// Their bytes.
    pub segment_bytes: u64,
    /// Records in them.
    pub records: u64,
    /// Entries whose values were read.
    pub entries: u64,
    /// What is damaged, the first thousand.
    pub damaged: Vec<Finding>,
    /// How many there are.
    pub damaged_count: u64,
    /// Values that cannot be read because the dictionary of their segment cannot. All of one segment
    /// are one of the findings.
    #[serde(default)]
    pub values_without_dictionary: u64,
    /// Tables with [overstated references](FindingKind::OverstatedReferences), the first thousand.
    pub overstated: Vec<Finding>,
    /// How many there are.
    pub overstated_count: u64,
    /// Where segments and logs cannot be walked any further: what a crash leaves behind, or damage.
    /// What is named behind it in a segment is read all the same, and reported as damaged where it
    /// is; of a log it is left out.
    pub torn_ends: Vec<Finding>,
}

impl VerifyReport {
    /// Whether nothing is damaged. What tables [overstate](Self::overstated) costs space only.
    pub fn is_sound(&self) -> bool {
        self.damaged_count == 0
    }

    /// Whether the store may lose values that can still be read if it is opened for writing before
    /// it is repaired: a table [understates](FindingKind::UnderstatedReferences) its references, or
    /// one that is not listed may.
    pub fn loses_by_writing(&self) -> bool {
        let understates = |finding: &Finding| finding.kind == FindingKind::UnderstatedReferences;
        self.damaged_count > self.damaged.len() as u64 || self.damaged.iter().any(understates)
    }

    pub(crate) fn damaged(&mut self, place: impl ToString, detail: impl ToString) {
        self.found(FindingKind::Damage, place, detail);
    }

    pub(crate) fn found(&mut self, kind: FindingKind, place: impl ToString, detail: impl ToString) {
        let (findings, count) = match kind {
            FindingKind::OverstatedReferences => (&mut self.overstated, &mut self.overstated_count),
            _ => (&mut self.damaged, &mut self.damaged_count),
        };
        list(findings, count, Finding { kind, place: place.to_string(), detail: detail.to_string() });
    }

    pub(crate) fn torn_end(&mut self, place: String, detail: String) {
        self.torn_ends.push(Finding { kind: FindingKind::TornEnd, place, detail });
    }
}

/// Lists `item` while the list is short enough, and counts it in any case.
pub(crate) fn list<T>(listed: &mut Vec<T>, count: &mut u64, item: T) {
    *count += 1;
    if listed.len() < MAX_LISTED {
        listed.push(item);
    }
}
