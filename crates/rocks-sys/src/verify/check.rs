//! Calls the verification in C++ and names what it found.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{ExpectedTable, TableSummary, VerifyError};
use crate::buffer::call_raw;
use crate::{Result, ffi};

pub fn verify_table(path: &Path, expected: &ExpectedTable) -> std::result::Result<TableSummary, VerifyError> {
    let file = || path.to_owned();
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&0) {
        return Err(VerifyError::Io { file: file(), what: "the path holds a NUL byte".to_owned() });
    }
    let expected = raw(expected);
    // SAFETY: path and expectation live through the call.
    let (code, out) =
        call_raw(|out| unsafe { ffi::ecotone_verify_table(ffi::Bytes::borrow(bytes), &raw const expected, out) });
    if code == ffi::OK {
        return summary(&out).map_err(|error| VerifyError::Io { file: file(), what: error.to_string() });
    }
    let (file, what) = (file(), out.message());
    Err(match code {
        ffi::NOT_A_TABLE => VerifyError::NotATable { file, what },
        ffi::CORRUPTION => VerifyError::Corrupt { file, what },
        ffi::OUT_OF_RANGE => VerifyError::OutOfRange { file, what },
        ffi::MISORDERED => VerifyError::Misordered { file, what },
        ffi::COUNT_MISMATCH => VerifyError::CountMismatch { file, what },
        ffi::FOREIGN => VerifyError::Foreign { file, what },
        _ => VerifyError::Io { file, what },
    })
}

pub fn file_checksum(path: &Path) -> io::Result<[u8; 4]> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path holds a NUL byte"));
    }
    let mut crc = 0;
    // SAFETY: the path lives through the call.
    let (code, out) =
        call_raw(|out| unsafe { ffi::ecotone_file_checksum(ffi::Bytes::borrow(bytes), &raw mut crc, out) });
    match code {
        ffi::OK => Ok(crc.to_be_bytes()),
        ffi::NOT_FOUND => Err(io::Error::new(io::ErrorKind::NotFound, out.message())),
        _ => Err(io::Error::other(out.message())),
    }
}

fn summary(out: &crate::buffer::Buffer) -> Result<TableSummary> {
    let mut fields = out.fields("summary of a table");
    let summary = TableSummary {
        file_bytes: fields.number()?,
        entries: fields.number()?,
        deletions: fields.number()?,
        range_deletions: fields.number()?,
        raw_key_bytes: fields.number()?,
        raw_value_bytes: fields.number()?,
        smallest_seqno: fields.number()?,
        largest_seqno: fields.number()?,
        unique_id: [fields.number()?, fields.number()?],
    };
    fields.end()?;
    Ok(summary)
}

fn raw(expected: &ExpectedTable) -> ffi::ExpectedTable {
    let mut given = 0;
    let mut note = |field: u32, is_given: bool| given |= if is_given { field } else { 0 };
    note(ffi::EXPECT_FILE_BYTES, expected.file_bytes.is_some());
    note(ffi::EXPECT_BEGIN, expected.begin.is_some());
    note(ffi::EXPECT_END, expected.end.is_some());
    note(ffi::EXPECT_SMALLEST_KEY, expected.smallest_internal_key.is_some());
    note(ffi::EXPECT_LARGEST_KEY, expected.largest_internal_key.is_some());
    note(ffi::EXPECT_SMALLEST_SEQNO, expected.smallest_seqno.is_some());
    note(ffi::EXPECT_LARGEST_SEQNO, expected.largest_seqno.is_some());
    note(ffi::EXPECT_ENTRIES, expected.entries.is_some());
    note(ffi::EXPECT_DELETIONS, expected.deletions.is_some());
    note(ffi::EXPECT_RANGE_DELETIONS, expected.range_deletions.is_some());
    note(ffi::EXPECT_RAW_KEY_BYTES, expected.raw_key_bytes.is_some());
    note(ffi::EXPECT_RAW_VALUE_BYTES, expected.raw_value_bytes.is_some());
    note(ffi::EXPECT_TAIL_OFFSET, expected.tail_offset.is_some());
    note(ffi::EXPECT_UNIQUE_ID, expected.unique_id.is_some());
    note(ffi::EXPECT_FILE_CHECKSUM, expected.file_checksum.is_some());
    let bytes = |field: &Option<Vec<u8>>| field.as_deref().map_or(ffi::Bytes::NONE, ffi::Bytes::borrow);
    ffi::ExpectedTable {
        given,
        file_bytes: expected.file_bytes.unwrap_or_default(),
        begin: bytes(&expected.begin),
        end: bytes(&expected.end),
        smallest_internal_key: bytes(&expected.smallest_internal_key),
        largest_internal_key: bytes(&expected.largest_internal_key),
        smallest_seqno: expected.smallest_seqno.unwrap_or_default(),
        largest_seqno: expected.largest_seqno.unwrap_or_default(),
        entries: expected.entries.unwrap_or_default(),
        deletions: expected.deletions.unwrap_or_default(),
        range_deletions: expected.range_deletions.unwrap_or_default(),
        raw_key_bytes: expected.raw_key_bytes.unwrap_or_default(),
        raw_value_bytes: expected.raw_value_bytes.unwrap_or_default(),
        tail_offset: expected.tail_offset.unwrap_or_default(),
        unique_id: expected.unique_id.unwrap_or_default(),
        file_checksum: bytes(&expected.file_checksum),
    }
}
