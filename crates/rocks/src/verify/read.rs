//! Calls the reading in C++ and names what it found.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::{TableSummary, VerifyError};
use crate::buffer::{Buffer, Fields, call_raw};
use crate::properties::trampolines::{Collector, entry};
use crate::{Result, ffi};

pub fn read_table(path: &Path, stop: &AtomicBool) -> std::result::Result<TableSummary, VerifyError> {
    let out = read(path, stop, std::ptr::null())?;
    let mut fields = out.fields(SUMMARY);
    summary(&mut fields).and_then(|summary| fields.end().map(|()| summary)).map_err(|error| unreadable(path, &error))
}

pub fn recount_table(
    path: &Path,
    stop: &AtomicBool,
    mut collector: Collector,
    may_lack: &[&str],
) -> std::result::Result<TableSummary, VerifyError> {
    let recount = ffi::Recount { collector: (&raw mut collector).cast(), add: entry };
    let out = read(path, stop, &raw const recount)?;
    let mut fields = out.fields(SUMMARY);
    let read = summary(&mut fields).and_then(|summary| {
        let properties = fields.list(|fields| Ok((fields.bytes()?, fields.bytes()?)))?;
        fields.end()?;
        Ok((summary, properties))
    });
    let (summary, properties) = read.map_err(|error| unreadable(path, &error))?;
    for (name, counted) in collector.finish() {
        let file = path.to_owned();
        match properties.iter().find(|(found, _)| *found == name.as_bytes()) {
            None if may_lack.contains(&name.as_str()) => (),
            None => return Err(VerifyError::Foreign { file, what: format!("it lacks the property {name}") }),
            Some((_, property)) if *property != counted => {
                let what = format!("its property {name} does not say what its entries amount to");
                return Err(VerifyError::CountMismatch { file, what });
            }
            Some(_) => (),
        }
    }
    Ok(summary)
}

/// What the reading gives back, in its errors.
const SUMMARY: &str = "summary of a table";

fn unreadable(path: &Path, error: &crate::Error) -> VerifyError {
    VerifyError::Io { file: path.to_owned(), what: error.to_string() }
}

/// `recount` is null, or shows the entries to a collector that lives through the call.
fn read(path: &Path, stop: &AtomicBool, recount: *const ffi::Recount) -> std::result::Result<Buffer, VerifyError> {
    let file = || path.to_owned();
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&0) {
        return Err(VerifyError::Io { file: file(), what: "the path holds a NUL byte".to_owned() });
    }
    let stop = stop.as_ptr().cast_const();
    // SAFETY: path, flag and collector live through the call, which reads the flag atomically and
    // calls from this thread.
    let (code, out) = call_raw(|out| unsafe { ffi::ecotone_read_table(ffi::Bytes::borrow(bytes), stop, recount, out) });
    if code == ffi::OK {
        return Ok(out);
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

fn summary(fields: &mut Fields<'_>) -> Result<TableSummary> {
    Ok(TableSummary {
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
    })
}
