//! What can be read of a table that may be damaged, and what a MANIFEST says: for the repair of a
//! store.
//!
//! A [`SalvagedTable`] is read block by block, as its index names them. A block that is damaged is
//! passed over and reported as a [`Item::Gap`]; what comes before and after it is read. Where
//! footer, properties or index are damaged nothing can be read. Nothing is ever written.
//!
//! Entries come as they stand: every version of a key, deletions too, in ascending order of keys,
//! and of one key the newest first. Range deletions come apart from them and reach as far as they
//! were asked to, which may be further than the table: beyond its bounds they say nothing of
//! entries whose sequence numbers were set to 0.
//!
//! Threads: a table is used by one at a time. Memory: the table's index, its range deletions, and
//! what one call returns.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Result;

/// One thing found in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An entry.
    Entry(TableEntry),
    /// Entries that cannot be read.
    Gap(Gap),
}

/// One version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// The user key.
    pub key: Vec<u8>,
    /// Its sequence number; 0 where a compaction has found that it no longer matters.
    pub sequence: u64,
    /// What it is.
    pub kind: EntryKind,
    /// The value; empty for a deletion.
    pub value: Vec<u8>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A value.
    Put,
    /// The key was deleted.
    Delete,
    /// Another of RocksDB's kinds, by its number.
    Other(u64),
}

/// Where entries cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// All of them are behind this key, or are versions of it that are older than those read.
    pub after: Vec<u8>,
    /// None of them is behind this key. `None`: nobody knows.
    pub to: Option<Vec<u8>>,
    /// What is wrong there.
    pub detail: String,
}

/// A deletion of a range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeDeletion {
    /// The first key.
    pub from: Vec<u8>,
    /// The key before which it ends.
    pub to: Vec<u8>,
    /// Its sequence number.
    pub sequence: u64,
}

/// What a table says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDescription {
    /// Its length.
    pub file_bytes: u64,
    /// Entries, deletions of all kinds included.
    pub entries: u64,
    /// Deletions of ranges.
    pub range_deletions: u64,
    /// No entry has a larger sequence number; not known of range deletions. Huge where the table
    /// does not say.
    pub largest_sequence: u64,
    /// The name of the column family that it was written for; empty where it is not known.
    pub column_family: String,
    /// The first key, where it can be read. None where there are range deletions only.
    pub first_key: Option<Vec<u8>>,
    /// A key that none is behind. None where there are range deletions only.
    pub last_key: Option<Vec<u8>>,
    /// What collectors left in it by its name, and what RocksDB keeps beside that.
    pub collected: BTreeMap<String, Vec<u8>>,
    /// Range deletions that can be read, in pieces.
    pub deleted_ranges: Vec<RangeDeletion>,
    /// How many range deletions these pieces are of: fewer than `range_deletions` where their block
    /// is damaged.
    pub range_deletions_read: u64,
}

/// A table that may be damaged, open for reading.
pub struct SalvagedTable {
    handle: read::Handle,
    description: TableDescription,
}

impl SalvagedTable {
    /// Opens the table at `path`, on the local file system.
    ///
    /// # Errors
    ///
    /// Why nothing can be read of it.
    pub fn open(path: &Path) -> Result<Self> {
        read::open(path).map(|(handle, description)| Self { handle, description })
    }

    /// What it says of itself.
    pub fn description(&self) -> &TableDescription {
        &self.description
    }

    /// The next entries and gaps: whole blocks, until `max_bytes` are reached. None at the end.
    ///
    /// # Errors
    ///
    /// Only what keeps it from going on at all, such as a lack of memory.
    pub fn next_items(&mut self, max_bytes: u64) -> Result<Vec<Item>> {
        self.handle.next_items(max_bytes)
    }
}

impl std::fmt::Debug for SalvagedTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SalvagedTable").field("description", &self.description).finish_non_exhaustive()
    }
}

/// One change of a MANIFEST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestEdit {
    /// The number of the column family that it is about.
    pub column_family: u32,
    /// The name of that column family, where this adds it.
    pub added_family: Option<String>,
    /// Of older WALs everything that is of that column family is in tables.
    pub first_wal: Option<u64>,
    /// Numbers of tables that are no longer part of the store, unless they are also in `added`.
    pub removed: Vec<u64>,
    /// Tables that are part of it from now on.
    pub added: Vec<ManifestTable>,
    /// WALs that were synced, with the bytes that were.
    pub synced_wals: Vec<(u64, u64)>,
    /// WALs below this number are no longer part of the store.
    pub wals_removed_below: Option<u64>,
    /// No write with a greater sequence number is in tables.
    pub last_sequence: Option<u64>,
}

/// A table as a MANIFEST names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestTable {
    /// The number in its name.
    pub number: u64,
    /// Its level.
    pub level: u32,
    /// Its length.
    pub bytes: u64,
    /// The smallest user key.
    pub smallest: Vec<u8>,
    /// The largest user key.
    pub largest: Vec<u8>,
    /// Whether its range deletions end before `largest`; otherwise with it.
    pub ends_before_largest: bool,
    /// The largest sequence number.
    pub largest_sequence: u64,
}

/// Decodes one record of a MANIFEST.
///
/// # Errors
///
/// RocksDB's reason.
pub fn manifest_edit(record: &[u8]) -> Result<ManifestEdit> {
    read::manifest_edit(record)
}

#[allow(unsafe_code)] // keeps a handle of the shim, passes byte ranges to it
mod read {
    use std::ffi::c_void;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::ptr::NonNull;

    use super::{EntryKind, Gap, Item, ManifestEdit, ManifestTable, RangeDeletion, TableDescription, TableEntry};
    use crate::buffer::{Fields, call};
    use crate::{Error, Result, ffi};

    const ENTRY: u64 = 0;
    const GAP: u64 = 1;

    /// `ValueType` of RocksDB's `db/dbformat.h`.
    const DELETION: u64 = 0x0;
    const VALUE: u64 = 0x1;
    const SINGLE_DELETION: u64 = 0x7;

    /// A table of the shim, closed when dropped.
    pub struct Handle(NonNull<c_void>);

    impl Drop for Handle {
        fn drop(&mut self) {
            // SAFETY: from `ecotone_salvage_open`, and not used again.
            unsafe { ffi::ecotone_salvage_close(self.0.as_ptr()) }
        }
    }

    pub fn open(path: &Path) -> Result<(Handle, TableDescription)> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.contains(&0) {
            return Err(Error::NulInPath(path.to_owned()));
        }
        let mut table = std::ptr::null_mut();
        // SAFETY: path and `table` live through the call.
        let record = call("open the table", |out| unsafe {
            ffi::ecotone_salvage_open(ffi::Bytes::borrow(bytes), &raw mut table, out)
        })?;
        let mut fields = record.fields("description of a table");
        let handle = Handle(NonNull::new(table).ok_or_else(|| fields.malformed("there is no table"))?);
        let (file_bytes, entries, range_deletions) = (fields.number()?, fields.number()?, fields.number()?);
        let (largest_sequence, column_family) = (fields.number()?, fields.text()?);
        let (any, first_is_known) = (fields.number()? != 0, fields.number()? != 0);
        let (first, last) = (fields.bytes()?.to_vec(), fields.bytes()?.to_vec());
        let description = TableDescription {
            file_bytes,
            entries,
            range_deletions,
            largest_sequence,
            column_family,
            first_key: first_is_known.then_some(first),
            last_key: any.then_some(last),
            collected: fields.list(|fields| Ok((fields.text()?, fields.bytes()?.to_vec())))?.into_iter().collect(),
            range_deletions_read: fields.number()?,
            deleted_ranges: fields.list(|fields| {
                let (from, to) = (fields.bytes()?.to_vec(), fields.bytes()?.to_vec());
                Ok(RangeDeletion { from, to, sequence: fields.number()? })
            })?,
        };
        fields.end()?;
        Ok((handle, description))
    }

    impl Handle {
        pub fn next_items(&mut self, max_bytes: u64) -> Result<Vec<Item>> {
            // SAFETY: the table is open, and borrowed for this call alone.
            let record =
                call("read the table", |out| unsafe { ffi::ecotone_salvage_next(self.0.as_ptr(), max_bytes, out) })?;
            let mut fields = record.fields("items of a table");
            let items = fields.list(|fields| match fields.number()? {
                ENTRY => {
                    let (key, sequence) = (fields.bytes()?.to_vec(), fields.number()?);
                    let kind = match fields.number()? {
                        VALUE => EntryKind::Put,
                        DELETION | SINGLE_DELETION => EntryKind::Delete,
                        other => EntryKind::Other(other),
                    };
                    Ok(Item::Entry(TableEntry { key, sequence, kind, value: fields.bytes()?.to_vec() }))
                }
                GAP => {
                    let (after, to_the_end) = (fields.bytes()?.to_vec(), fields.number()? != 0);
                    let to = fields.bytes()?.to_vec();
                    let detail = String::from_utf8_lossy(fields.bytes()?).into_owned();
                    Ok(Item::Gap(Gap { after, to: (!to_the_end).then_some(to), detail }))
                }
                _ => Err(fields.malformed("an item is neither entry nor gap")),
            })?;
            fields.end()?;
            Ok(items)
        }
    }

    pub fn manifest_edit(record: &[u8]) -> Result<ManifestEdit> {
        // SAFETY: the record lives through the call.
        let said = call("read a record of the MANIFEST", |out| unsafe {
            ffi::ecotone_manifest_edit(ffi::Bytes::borrow(record), out)
        })?;
        let mut fields = said.fields("record of a MANIFEST");
        let (column_family, is_added) = (fields.number()? as u32, fields.number()? != 0);
        let name = fields.bytes()?;
        let edit = ManifestEdit {
            column_family,
            added_family: is_added.then(|| String::from_utf8_lossy(name).into_owned()),
            first_wal: unless_zero(fields.number()?),
            removed: fields.list(Fields::number)?,
            added: fields.list(|fields| {
                Ok(ManifestTable {
                    number: fields.number()?,
                    level: fields.number()? as u32,
                    bytes: fields.number()?,
                    smallest: fields.bytes()?.to_vec(),
                    largest: fields.bytes()?.to_vec(),
                    ends_before_largest: fields.number()? != 0,
                    largest_sequence: fields.number()?,
                })
            })?,
            synced_wals: fields.list(|fields| Ok((fields.number()?, fields.number()?)))?,
            wals_removed_below: unless_zero(fields.number()?),
            last_sequence: unless_zero(fields.number()?),
        };
        fields.end()?;
        Ok(edit)
    }

    fn unless_zero(number: u64) -> Option<u64> {
        (number != 0).then_some(number)
    }
}
