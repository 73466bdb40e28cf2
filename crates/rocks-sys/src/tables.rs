//! Metadata of the tables of a store, as they are now.

use rust_rocksdb::DB;

use crate::Result;

/// One live table. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableMetadata {
    /// The number in its name.
    pub file_number: u64,
    /// Its name without directory, `000123.sst`.
    pub name: String,
    /// Its directory.
    pub directory: std::path::PathBuf,
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
    /// Entries, deletions included. Can be 0 for a table whose properties have not been read since the store was opened.
    pub entries: u64,
    /// Deletions of all kinds.
    pub deletions: u64,
    /// Reads of this table since the store was opened: one of 1024 is counted, before the filter, in memory only.
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
}
