//! Metadata of the tables of a store, as they are now.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rust_rocksdb::{AsColumnFamilyRef, DB};

use crate::Result;

/// One live table. Sizes are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableMetadata {
    /// The number in its name.
    pub file_number: u64,
    /// Its name without directory, `000123.sst`.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
    /// The column family it belongs to.
    pub column_family: String,
    /// Its level.
    pub level: u32,
    /// Its size.
    pub bytes: u64,
    /// The smallest user key.
    pub smallest_user_key: Vec<u8>,
    /// The largest user key; the end of a range deletion counts although it is not deleted itself.
    pub largest_user_key: Vec<u8>,
    /// The smallest sequence number.
    pub smallest_seqno: u64,
    /// The largest sequence number.
    pub largest_seqno: u64,
    /// Entries, deletions included. Can be 0 for a table whose properties have not been read since
    /// the store was opened.
    pub entries: u64,
    /// Deletions of all kinds.
    pub deletions: u64,
    /// Reads of this table since the store was opened: one of 1024 is counted, before the filter,
    /// in memory only.
    pub reads_sampled: u64,
    /// Whether a compaction is using it.
    pub being_compacted: bool,
    /// Checksum of the whole file, empty when none is kept.
    pub file_checksum: Vec<u8>,
    /// The function of that checksum, `FileChecksumCrc32c` where one is kept.
    pub file_checksum_function: String,
    /// When the file was made, in seconds since 1970, 0 when unknown.
    pub created_s: u64,
}

/// All tables of all column families, in no order.
///
/// # Errors
///
/// [`crate::Error::RocksDb`] when RocksDB cannot say.
pub fn live_tables(db: &DB) -> Result<Vec<TableMetadata>> {
    read::live_tables(db)
}

/// One live table of a column family, as far as it is told for little. Fields are those of
/// [`TableMetadata`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FamilyTable {
    /// The number in its name.
    pub file_number: u64,
    /// Its level.
    pub level: u32,
    /// Its size.
    pub bytes: u64,
    /// The smallest user key.
    pub smallest_user_key: Vec<u8>,
    /// The largest user key.
    pub largest_user_key: Vec<u8>,
    /// Entries, 0 where they are not known.
    pub entries: u64,
    /// Deletions of all kinds, as far as entries are known.
    pub deletions: u64,
    /// Whether a compaction is using it.
    pub being_compacted: bool,
}

/// The tables of a column family, by level: cheaper than [`live_tables`] by what it does not tell.
///
/// # Errors
///
/// [`crate::Error::RocksDb`] when RocksDB cannot say.
pub fn family_tables(db: &DB, column_family: &impl AsColumnFamilyRef) -> Result<Vec<FamilyTable>> {
    read::family_tables(db, column_family)
}

/// About how many entries the memtable that is written to has from the key `first` to the key
/// `last`, of all versions and deletions.
///
/// # Errors
///
/// [`crate::Error::RocksDb`] when RocksDB cannot say.
pub fn memtable_entries(db: &DB, column_family: &impl AsColumnFamilyRef, first: &[u8], last: &[u8]) -> Result<u64> {
    read::memtable_entries(db, column_family, first, last)
}

/// What table collectors left in one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedProperties {
    /// The table's path.
    pub path: PathBuf,
    /// The number in its name.
    pub file_number: u64,
    /// Its entries but for range deletions; 0 for a table that was not asked.
    pub points: u64,
    /// Properties by name; empty for a table that has none of those asked for.
    pub properties: BTreeMap<String, Vec<u8>>,
}

/// What collectors (see [`crate::properties`]) left in each table of a column family, as far as the
/// names begin with `prefix`. Tables that a compaction has just replaced come too, as long as a
/// reader who begins may still be given them. Opens tables that are not open.
///
/// # Errors
///
/// [`crate::Error::RocksDb`] when a table cannot be read.
pub fn collected_properties(
    db: &DB,
    column_family: &impl AsColumnFamilyRef,
    prefix: &str,
) -> Result<Vec<CollectedProperties>> {
    read::collected_properties(db, column_family, prefix, &[])
}

/// The same, without the properties of the tables whose numbers are in `known`, rising: those
/// tables come without any, and are not opened.
///
/// # Errors
///
/// As [`collected_properties`].
pub fn collected_properties_but(
    db: &DB,
    column_family: &impl AsColumnFamilyRef,
    prefix: &str,
    known: &[u64],
) -> Result<Vec<CollectedProperties>> {
    debug_assert!(known.is_sorted(), "they are searched");
    read::collected_properties(db, column_family, prefix, known)
}

#[allow(unsafe_code)] // passes the store's handle to the shim
mod read {
    use super::*;
    use crate::{buffer, ffi};
    use rust_rocksdb::AsRawPtr;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    pub fn live_tables(db: &DB) -> Result<Vec<TableMetadata>> {
        // SAFETY: the handle is used only during the call, while `db` is borrowed.
        let record = buffer::call("list its live tables", |out| unsafe {
            ffi::ecotone_live_tables(db.as_raw_ptr().cast(), out)
        })?;
        let mut fields = record.fields("list of live tables");
        let tables = fields.list(|fields| {
            Ok(TableMetadata {
                file_number: fields.number()?,
                name: fields.text()?,
                directory: OsString::from_vec(fields.bytes()?.to_vec()).into(),
                column_family: fields.text()?,
                level: fields.number()? as u32,
                bytes: fields.number()?,
                smallest_user_key: fields.bytes()?.to_vec(),
                largest_user_key: fields.bytes()?.to_vec(),
                smallest_seqno: fields.number()?,
                largest_seqno: fields.number()?,
                entries: fields.number()?,
                deletions: fields.number()?,
                reads_sampled: fields.number()?,
                being_compacted: fields.number()? != 0,
                file_checksum: fields.bytes()?.to_vec(),
                file_checksum_function: fields.text()?,
                created_s: fields.number()?,
            })
        })?;
        fields.end()?;
        Ok(tables)
    }

    pub fn family_tables(db: &DB, column_family: &impl AsColumnFamilyRef) -> Result<Vec<FamilyTable>> {
        // SAFETY: both handles are used only during the call, while they are borrowed.
        let record = buffer::call("list the tables of a column family", |out| unsafe {
            ffi::ecotone_family_tables(db.as_raw_ptr().cast(), column_family.inner().cast(), out)
        })?;
        let mut fields = record.fields("list of the tables of a column family");
        let tables = fields.list(|fields| {
            Ok(FamilyTable {
                file_number: fields.number()?,
                level: fields.number()? as u32,
                bytes: fields.number()?,
                smallest_user_key: fields.bytes()?.to_vec(),
                largest_user_key: fields.bytes()?.to_vec(),
                entries: fields.number()?,
                deletions: fields.number()?,
                being_compacted: fields.number()? != 0,
            })
        })?;
        fields.end()?;
        Ok(tables)
    }

    pub fn memtable_entries(db: &DB, column_family: &impl AsColumnFamilyRef, first: &[u8], last: &[u8]) -> Result<u64> {
        let (first, last) = (ffi::Bytes::borrow(first), ffi::Bytes::borrow(last));
        // SAFETY: both handles are used only during the call, while they are borrowed; so are the
        // keys.
        let record = buffer::call("count the entries of a memtable", |out| unsafe {
            ffi::ecotone_memtable_entries(db.as_raw_ptr().cast(), column_family.inner().cast(), first, last, out)
        })?;
        let mut fields = record.fields("entries of a memtable");
        let entries = fields.number()?;
        fields.end()?;
        Ok(entries)
    }

    pub fn collected_properties(
        db: &DB,
        column_family: &impl AsColumnFamilyRef,
        prefix: &str,
        known: &[u64],
    ) -> Result<Vec<CollectedProperties>> {
        let prefix = ffi::Bytes::borrow(prefix.as_bytes());
        // SAFETY: both handles are used only during the call, while they are borrowed; so are the
        // prefix and the numbers.
        let record = buffer::call("read the properties of its tables", |out| unsafe {
            let (db, family) = (db.as_raw_ptr().cast(), column_family.inner().cast());
            ffi::ecotone_collected_properties(db, family, prefix, known.as_ptr(), known.len(), out)
        })?;
        let mut fields = record.fields("properties of tables");
        let tables = fields.list(|fields| {
            let path = OsString::from_vec(fields.bytes()?.to_vec()).into();
            let file_number = fields.number()?;
            let points = fields.number()?;
            let pairs = fields.list(|fields| Ok((fields.text()?, fields.bytes()?.to_vec())))?;
            Ok(CollectedProperties { path, file_number, points, properties: pairs.into_iter().collect() })
        })?;
        fields.end()?;
        Ok(tables)
    }
}
