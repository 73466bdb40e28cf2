//! Calls RocksDB's own readers and writers of what a compaction service exchanges.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rust_rocksdb::AsRawPtr;

use super::{RemoteInput, RemoteOutput, RemoteResult, RemoteStats};
use crate::buffer::{Buffer, Fields, call_raw};
use crate::{Error, Result, ffi};

const INPUT: &str = "compaction job";
const RESULT: &str = "compaction result";

fn read(what: &'static str, function: impl FnOnce(*mut ffi::Buffer) -> ffi::Code) -> Result<Buffer> {
    match call_raw(function) {
        (ffi::OK, buffer) => Ok(buffer),
        (_, buffer) => Err(Error::Malformed { what, message: buffer.message() }),
    }
}

pub fn parse_input(bytes: &[u8]) -> Result<RemoteInput> {
    // SAFETY: the bytes live through the call.
    let record = read(INPUT, |out| unsafe { ffi::ecotone_parse_remote_input(ffi::Bytes::borrow(bytes), out) })?;
    let mut fields = record.fields(INPUT);
    let input = RemoteInput {
        cf_name: fields.text()?,
        input_files: fields.list(Fields::text)?,
        output_level: level(&mut fields)?,
        begin: optional(&mut fields)?,
        end: optional(&mut fields)?,
        snapshots: fields.list(Fields::number)?,
        db_id: fields.text()?,
        options_file_number: fields.number()?,
        min_manifest_file_number: fields.number()?,
        min_manifest_file_bytes: fields.number()?,
    };
    fields.end()?;
    Ok(input)
}

pub fn parse_result(bytes: &[u8]) -> Result<RemoteResult> {
    // SAFETY: the bytes live through the call.
    let record = read(RESULT, |out| unsafe { ffi::ecotone_parse_remote_result(ffi::Bytes::borrow(bytes), out) })?;
    let mut fields = record.fields(RESULT);
    let succeeded = fields.number()? != 0;
    let words = String::from_utf8_lossy(fields.bytes()?).into_owned();
    let result = RemoteResult {
        status: if succeeded { Ok(()) } else { Err(words) },
        output_path: OsString::from_vec(fields.bytes()?.to_vec()).into(),
        output_level: level(&mut fields)?,
        output_files: fields.list(output)?,
        stats: stats(&mut fields)?,
    };
    fields.end()?;
    Ok(result)
}

pub fn with_output_path(bytes: &[u8], new_path: &Path) -> Result<Vec<u8>> {
    let path = new_path.as_os_str().as_bytes();
    if path.contains(&0) {
        return Err(Error::NulInPath(new_path.to_owned()));
    }
    // SAFETY: both live through the call.
    let written = read(RESULT, |out| unsafe {
        ffi::ecotone_remote_result_with_output_path(ffi::Bytes::borrow(bytes), ffi::Bytes::borrow(path), out)
    })?;
    Ok(written.as_slice().to_vec())
}

pub fn keep_outputs_in_session_directory(options: &mut rust_rocksdb::Options) {
    // SAFETY: the options are borrowed for the call.
    unsafe {
        rust_librocksdb_sys::rocksdb_options_set_use_session_tmp_dir_for_remote_compaction(options.as_raw_ptr(), 1);
    }
}

fn level(fields: &mut Fields<'_>) -> Result<i32> {
    // Sign-extended by the shim.
    let level = fields.number()? as i64;
    i32::try_from(level).map_err(|_| fields.malformed("a level is out of range"))
}

fn optional(fields: &mut Fields<'_>) -> Result<Option<Vec<u8>>> {
    let given = fields.number()? != 0;
    let bytes = fields.bytes()?;
    Ok(given.then(|| bytes.to_vec()))
}

fn output(fields: &mut Fields<'_>) -> Result<RemoteOutput> {
    let file_name = fields.text()?;
    let digits = file_name.strip_suffix(".sst").unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(fields.malformed(&format!("{file_name:?} is no name of a table")));
    }
    Ok(RemoteOutput {
        file_name,
        file_bytes: fields.number()?,
        smallest_seqno: fields.number()?,
        largest_seqno: fields.number()?,
        smallest_internal_key: fields.bytes()?.to_vec(),
        largest_internal_key: fields.bytes()?.to_vec(),
        file_checksum: fields.bytes()?.to_vec(),
        file_checksum_func_name: String::from_utf8_lossy(fields.bytes()?).into_owned(),
        entries: fields.number()?,
        deletions: fields.number()?,
        range_deletions: fields.number()?,
        raw_key_bytes: fields.number()?,
        raw_value_bytes: fields.number()?,
        tail_offset: fields.number()?,
        unique_id: [fields.number()?, fields.number()?],
        paranoid_hash: fields.number()?,
        marked_for_compaction: fields.number()? != 0,
        proximal_level: fields.number()? != 0,
    })
}

fn stats(fields: &mut Fields<'_>) -> Result<RemoteStats> {
    Ok(RemoteStats {
        bytes_read: fields.number()?,
        bytes_written: fields.number()?,
        input_records: fields.number()?,
        input_records_exact: fields.number()? != 0,
        output_records: fields.number()?,
        output_files: fields.number()?,
        output_bytes: fields.number()?,
        elapsed_us: fields.number()?,
        cpu_us: fields.number()?,
        corrupt_keys: fields.number()?,
    })
}
