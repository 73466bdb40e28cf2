//! Calls the reading in C++ and names what it found.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::{TableSummary, VerifyError};
use crate::buffer::{Buffer, call_raw};
use crate::{Result, ffi};

pub fn read_table(path: &Path, stop: &AtomicBool) -> std::result::Result<TableSummary, VerifyError> {
    let file = || path.to_owned();
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&0) {
        return Err(VerifyError::Io { file: file(), what: "the path holds a NUL byte".to_owned() });
    }
    let stop = stop.as_ptr().cast_const();
    // SAFETY: path and flag live through the call, which reads the flag atomically.
    let (code, out) = call_raw(|out| unsafe { ffi::ecotone_read_table(ffi::Bytes::borrow(bytes), stop, out) });
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
        ffi::STOPPED => VerifyError::Stopped { file, what },
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

fn summary(out: &Buffer) -> Result<TableSummary> {
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
        tail_offset: fields.number()?,
        unique_id: [fields.number()?, fields.number()?],
        first_key: fields.bytes()?.to_vec(),
        last_key: fields.bytes()?.to_vec(),
        deleted_begin: fields.bytes()?.to_vec(),
        deleted_end: fields.bytes()?.to_vec(),
    };
    fields.end()?;
    Ok(summary)
}
