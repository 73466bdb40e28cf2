//! Every version of every key, of all tables and runs, in the order of keys; of each key the
//! newest.
//!
//! A table is opened when the merge comes to its first key and closed behind its last, so only
//! tables that overlap are open at a time: those of level 0, and one for each deeper level.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::vec::IntoIter;

use ecotone_engine::Result;
use ecotone_rocks::salvage::{EntryKind, Gap, Item, SalvagedTable, TableEntry};

use super::runs::Run;

/// Bytes that are read of a table at once, a block at least.
const READ_BYTES: u64 = 256 * 1024;

/// A table that is to be merged.
#[derive(Debug, Clone)]
pub(super) struct TableSource {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// No key lies before it.
    pub(super) first_key: Vec<u8>,
    /// How many entries it has.
    pub(super) entries: u64,
    /// Of two versions that are otherwise equal that of the greater one is taken.
    pub(super) precedence: u64,
}

/// A version of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) key: Vec<u8>,
    pub(super) sequence: u64,
    pub(super) kind: EntryKind,
    pub(super) value: Vec<u8>,
    /// Of the table that has it; 0 for a run.
    pub(super) precedence: u64,
    reader: usize,
}

/// The greatest is the next: the least key, of that the newest.
impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.key.cmp(&self.key))
            .then(self.sequence.cmp(&other.sequence))
            .then(self.precedence.cmp(&other.precedence))
            .then(other.reader.cmp(&self.reader))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What was noticed about a table while it was merged.
pub(super) enum Noticed {
    /// A part of it cannot be read.
    Gap {
        /// The number of the table.
        table: u64,
        /// The part.
        gap: Gap,
    },
    /// It has been read to its end.
    End {
        /// The number of the table.
        table: u64,
        /// How many of its entries could not be read.
        missing: u64,
    },
}

enum Reader {
    Table { table: SalvagedTable, source: TableSource, items: IntoIter<Item>, read: u64 },
    Run(Run),
    Done,
}

/// See the module.
pub(super) struct Merge {
    /// Tables that are not open yet, the next one last.
    waiting: Vec<TableSource>,
    readers: Vec<Reader>,
    /// The next version of each reader.
    next: BinaryHeap<Version>,
    noticed: Vec<Noticed>,
}

impl Merge {
    pub(super) fn new(mut tables: Vec<TableSource>, runs: Vec<Run>) -> Result<Self> {
        tables.sort_by(|one, other| other.first_key.cmp(&one.first_key));
        let readers: Vec<_> = runs.into_iter().map(Reader::Run).collect();
        let mut merge = Self { waiting: tables, readers, next: BinaryHeap::new(), noticed: Vec::new() };
        for reader in 0..merge.readers.len() {
            merge.advance(reader)?;
        }
        Ok(merge)
    }

    /// The newest version of the next key, and others that are as new; none after the last key.
    /// Errors are those of runs.
    pub(super) fn next_key(&mut self, versions: &mut Vec<Version>) -> Result<()> {
        self.next_versions(versions, |newest, version| newest.sequence == version.sequence)
    }

    /// All versions of the next key but those that are not `wanted` beside the newest, from the
    /// newest on; none after the last key.
    pub(super) fn next_versions(
        &mut self,
        versions: &mut Vec<Version>,
        wanted: impl Fn(&Version, &Version) -> bool,
    ) -> Result<()> {
        versions.clear();
        self.open_tables()?;
        while let Some(next) = self.next.peek()
            && versions.first().is_none_or(|newest| newest.key == next.key)
        {
            let Some(version) = self.next.pop() else { break };
            self.advance(version.reader)?;
            if versions.first().is_none_or(|newest| wanted(newest, &version)) {
                versions.push(version);
            }
        }
        Ok(())
    }

    /// What was noticed since the last call, of parts that lie behind the key that was returned
    /// last, or begin with it.
    pub(super) fn take_noticed(&mut self) -> Vec<Noticed> {
        std::mem::take(&mut self.noticed)
    }

    /// Opens the tables that may have the next key.
    fn open_tables(&mut self) -> Result<()> {
        loop {
            let next = self.next.peek();
            let due = self.waiting.pop_if(|table| next.is_none_or(|next| table.first_key <= next.key));
            let Some(source) = due else { return Ok(()) };
            match SalvagedTable::open(&source.path) {
                Ok(table) => {
                    // Places of readers that are done are used again.
                    let free = self.readers.iter().position(|reader| matches!(reader, Reader::Done));
                    let place = free.unwrap_or_else(|| {
                        self.readers.push(Reader::Done);
                        self.readers.len() - 1
                    });
                    self.readers[place] = Reader::Table { table, source, items: Vec::new().into_iter(), read: 0 };
                    self.advance(place)?;
                }
                // It could be opened before.
                Err(error) => {
                    let gap = Gap { after: source.first_key, to: None, detail: error.to_string() };
                    self.noticed.push(Noticed::Gap { table: source.number, gap });
                    self.noticed.push(Noticed::End { table: source.number, missing: source.entries });
                }
            }
        }
    }

    /// Puts the next version of a reader among the others.
    fn advance(&mut self, place: usize) -> Result<()> {
        let (entry, precedence) = match &mut self.readers[place] {
            Reader::Done => return Ok(()),
            Reader::Run(run) => (run.next_entry()?, 0),
            Reader::Table { table, source, items, read } => {
                let entry = next_entry(table, source.number, items, &mut self.noticed);
                *read += u64::from(entry.is_some());
                if entry.is_none() {
                    let missing = source.entries.saturating_sub(*read);
                    self.noticed.push(Noticed::End { table: source.number, missing });
                }
                (entry, source.precedence)
            }
        };
        match entry {
            None => self.readers[place] = Reader::Done,
            Some(TableEntry { key, sequence, kind, value }) => {
                self.next.push(Version { key, sequence, kind, value, precedence, reader: place });
            }
        }
        Ok(())
    }
}

/// The next entry of a table.
fn next_entry(
    table: &mut SalvagedTable,
    number: u64,
    items: &mut IntoIter<Item>,
    noticed: &mut Vec<Noticed>,
) -> Option<TableEntry> {
    let mut last_key = Vec::new();
    loop {
        match items.next() {
            Some(Item::Entry(entry)) => return Some(entry),
            Some(Item::Gap(gap)) => {
                last_key.clone_from(&gap.after);
                noticed.push(Noticed::Gap { table: number, gap });
            }
            None => match table.next_items(READ_BYTES) {
                Ok(next) if next.is_empty() => return None,
                Ok(next) => *items = next.into_iter(),
                Err(error) => {
                    let gap = Gap { after: last_key, to: None, detail: error.to_string() };
                    noticed.push(Noticed::Gap { table: number, gap });
                    return None;
                }
            },
        }
    }
}
