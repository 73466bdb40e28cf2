//! What a worker returned, checked whole before RocksDB hears of it.
//!
//! After a job reported success, RocksDB renames its outputs, reads their footers, compares record
//! counts and commits. What it then finds wrong is a background error that stops the store until it
//! is reopened. So everything that it checks is checked here first, and more. A result is refused
//! unless:
//!
//! - it parses, says success, and is for the level of the job;
//! - each output is a file of its own in the job's output directory, carries the promised crc32c,
//!   and holds what was promised: every block, every entry, order, range, counts, size, identity
//!   ([`ecotone_rocks::verify`]);
//! - where the store has a value log, each output says which segments its entries name, by how many
//!   bytes, as they do: what a table does not name is removed;
//! - what an output tells of its keys follows from them; a worker of an earlier version may have
//!   left that out;
//! - the outputs are in ascending order and disjoint, inside the job's `[begin, end)`, and inside
//!   the keys of the inputs;
//! - the entries it claims to have written are those in its outputs (RocksDB:
//!   `VerifyOutputRecordCount`);
//! - the entries it claims to have read are those of the input tables (RocksDB:
//!   `VerifyInputRecordCount`). For one subcompaction of several, only that they are not more: the
//!   sum over all subcompactions is compared when all have ended (`subcompactions`).
//!
//! Every output is read and sealed by itself ([`ReceivedTable::take`]), so that a table that comes
//! early is done with while the worker still writes the next; then their directory is synced. A
//! worker that forges a consistent result is outside the threat model.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ecotone_io::objects::{Crc32c, ObjectDirectory, Unsealed, summary_of};
use ecotone_io::tap::{self, Tap};
use ecotone_rocks::remote::{RemoteOutput, RemoteResult};
use ecotone_rocks::verify::{
    ExpectedTable, FILE_CHECKSUM_FUNCTION, TableSummary, VerifyError as TableError, read_table, recount_table,
};
use ecotone_valuelog::moves::MovePlan;
use ecotone_valuelog::pointer::SegmentNumber;
use parking_lot::Mutex;

use super::RemoteJob;
use crate::collectors::recounting;
use crate::gc::places::{MovedValues, Named, NamedPlace, PlaceCollector};
use crate::table_format::{Collects, TableFormat};

/// Why a result was refused. Every kind means: remove the outputs, and let the job fall back to a
/// local one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The bytes are no result, or one that no honest worker makes.
    #[error("malformed result: {0}")]
    Malformed(String),
    /// The worker says itself that it failed.
    #[error("the worker failed: {0}")]
    WorkerFailed(String),
    /// The result is for something else than this job.
    #[error("not a result of this job: {0}")]
    Foreign(String),
    /// The outputs overlap or are not in ascending order, or leave the range of the job.
    #[error("misordered outputs: {0}")]
    Misordered(String),
    /// Records were lost or added on the way.
    #[error("record counts do not match: {0}")]
    Counts(String),
    /// A table is damaged or not the one promised.
    #[error(transparent)]
    Table(#[from] ecotone_rocks::verify::VerifyError),
    /// The file system of the store failed, which is no fault of the worker.
    #[error("cannot {action} {path:?}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// The proof that the outputs of one job are complete, checked and durable. Only [`verify_outputs`]
/// makes it.
#[derive(Debug)]
pub struct VerifiedResult {
    job: u64,
    moved: Option<MovedValues>,
    places: Vec<NamedPlace>,
    bytes: Vec<u8>,
    result: Box<RemoteResult>,
}

impl VerifiedResult {
    /// The same, with what the worker has moved as `plan`, the one of the same job, says. Without
    /// it such a job has no result.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Malformed`].
    pub fn with_moves(mut self, plan: &MovePlan, moved: &[u8]) -> Result<Self, VerifyError> {
        let places = std::mem::take(&mut self.places);
        self.moved = Some(MovedValues::decode(moved, plan, places).map_err(VerifyError::Malformed)?);
        Ok(self)
    }

    pub(crate) fn moved(&self) -> Option<&MovedValues> {
        self.moved.as_ref()
    }

    /// The job it is for.
    pub fn job(&self) -> u64 {
        self.job
    }

    /// What the worker said.
    pub fn result(&self) -> &RemoteResult {
        &self.result
    }

    /// Bytes of all outputs.
    pub fn output_bytes(&self) -> u64 {
        self.result.output_files.iter().map(|output| output.file_bytes).sum()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// An output table that has come, is sound and durable. Whether it is the one promised is seen when
/// the result has come, too.
#[derive(Debug)]
pub struct ReceivedTable {
    crc32c: u32,
    summary: TableSummary,
    collects: Collects,
    named: Named,
}

/// What the output tables of a job must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedTables {
    /// How they are laid out.
    pub format: TableFormat,
    /// The numbers of segments that values may be moved to, the last one excluded.
    pub moved: Option<(u32, u32)>,
}

impl From<TableFormat> for ExpectedTables {
    fn from(format: TableFormat) -> Self {
        Self { format, moved: None }
    }
}

impl ReceivedTable {
    /// Reads the whole of `table`, which was to be as `expected`, and seals it. Its checksum is
    /// that of the whole as it was received; what was written is still checked: every block carries
    /// a checksum of its own. Reading ends soon, with an error, when another thread sets `stop`;
    /// sealing does not.
    pub fn take(
        table: Unsealed<Crc32c>,
        expected: impl Into<ExpectedTables>,
        stop: &AtomicBool,
    ) -> Result<ReceivedTable, VerifyError> {
        let expected = expected.into();
        let path = table.path().to_path_buf();
        let (summary, named) = Self::read(&path, expected, stop)?;
        let crc32c = table.seal().map_err(|error| failed("sync", &path, error))?.checksum;
        Ok(ReceivedTable { crc32c, summary, collects: expected.format.collects, named })
    }

    /// The same of one that has come whole, in another way.
    fn adopt(directory: &ObjectDirectory, name: &str, expected: ExpectedTables) -> Result<ReceivedTable, VerifyError> {
        let path = directory.path().join(name);
        let whole = directory.open(name).and_then(|object| summary_of::<Crc32c>(&object));
        let crc32c = whole.map_err(|error| TableError::Io { file: path.clone(), what: error.to_string() })?.checksum;
        let (summary, named) = Self::read(&path, expected, &AtomicBool::new(false))?;
        directory.adopt(name).map_err(|error| failed("sync", &path, error))?;
        Ok(ReceivedTable { crc32c, summary, collects: expected.format.collects, named })
    }

    fn read(
        path: &Path,
        ExpectedTables { format, moved }: ExpectedTables,
        stop: &AtomicBool,
    ) -> Result<(TableSummary, Named), VerifyError> {
        if !format.collects.is_any() {
            return Ok((read_table(path, stop)?, Named::default()));
        }
        let (collector, may_lack) = recounting(format.collects);
        let Some((first, end)) = moved else {
            return Ok((recount_table(path, stop, collector, &may_lack)?, Named::default()));
        };
        let named = Arc::<Mutex<Named>>::default();
        let collector = PlaceCollector { next: collector, numbers: first..end, named: named.clone() };
        let summary = recount_table(path, stop, Box::new(collector), &may_lack)?;
        let named = std::mem::take(&mut *named.lock());
        Ok((summary, named))
    }

    /// Whether nothing is in it. A compaction may finish such a table and then drop it.
    pub fn is_empty(&self) -> bool {
        self.summary.entries == 0
    }
}

/// Checks everything that [`run_remote_compaction`](crate::run_remote_compaction) returned for
/// `job`, whose output files must lie in [`RemoteJob::output_directory`], and makes them durable.
///
/// Reads every output twice: once for its checksum as a file, once for its entries. Whoever
/// received the files piece by piece saves the first by [`verify_received_outputs`].
pub fn verify_outputs(job: &RemoteJob, result: &[u8]) -> Result<VerifiedResult, VerifyError> {
    let parsed = RemoteResult::parse(result).map_err(malformed)?;
    check_claims(job, &parsed)?;
    let mut tables = HashMap::new();
    let objects = ObjectDirectory::new(job.output_directory(), Tap::SILENT);
    for output in &parsed.output_files {
        let table = ReceivedTable::adopt(&objects, &output.file_name, job.expected_tables())?;
        tables.insert(output.file_name.clone(), table);
    }
    verify_received_outputs(job, result, &tables)
}

/// As [`verify_outputs`], for outputs that were taken one by one as they came; `received` has them
/// by name.
pub fn verify_received_outputs(
    job: &RemoteJob,
    result: &[u8],
    received: &HashMap<String, ReceivedTable>,
) -> Result<VerifiedResult, VerifyError> {
    let directory = job.output_directory();
    let parsed = RemoteResult::parse(result).map_err(malformed)?;
    let bytes = RemoteResult::with_output_path(result, &directory).map_err(malformed)?;
    check_claims(job, &parsed)?;
    check_internal_counts(&bytes, parsed.stats.output_records)?;
    let mut places = Vec::new();
    for output in &parsed.output_files {
        let name = &output.file_name;
        let table = received.get(name).ok_or_else(|| VerifyError::Foreign(format!("{name} did not come")))?;
        // RocksDB keeps a file's crc32c with the highest byte first.
        if table.crc32c.to_be_bytes() != output.file_checksum[..] {
            let what = "it has another checksum than was promised".to_owned();
            return Err(TableError::Foreign { file: directory.join(name), what }.into());
        }
        if job.table_format.collects.references && !table.collects.references {
            return Err(VerifyError::Foreign(format!("{name} was taken for a table of a store without a value log")));
        }
        let expected = ExpectedTable::of_output(output, job.request.begin.as_deref(), job.request.end.as_deref());
        table.summary.check(&directory.join(name), &expected)?;
        let is_input = |segment: &&SegmentNumber| job.named_segments.binary_search(segment).is_ok();
        if let Some(segment) = table.named.others.iter().find(|segment| !is_input(segment)) {
            return Err(VerifyError::Foreign(format!("{name} names segment {segment}, which no input does")));
        }
        places.extend_from_slice(&table.named.places);
    }
    // A compaction may leave nothing, and then nobody made the directory.
    if !parsed.output_files.is_empty() {
        make_directories_durable(job, &directory)?;
    }
    Ok(VerifiedResult { job: job.id, moved: None, places, bytes, result: Box::new(parsed) })
}

fn malformed(error: ecotone_rocks::Error) -> VerifyError {
    VerifyError::Malformed(error.to_string())
}

/// All that can be checked without reading a table.
fn check_claims(job: &RemoteJob, result: &RemoteResult) -> Result<(), VerifyError> {
    if let Err(reason) = &result.status {
        return Err(VerifyError::WorkerFailed(reason.clone()));
    }
    if result.output_level != job.output_level {
        return Err(VerifyError::Foreign(format!(
            "outputs for level {}, the job is for level {}",
            result.output_level, job.output_level
        )));
    }
    let mut names = HashSet::new();
    for output in &result.output_files {
        let name = &output.file_name;
        if !names.insert(name) {
            return Err(VerifyError::Malformed(format!("{name} is named twice")));
        }
        if output.proximal_level {
            return Err(VerifyError::Foreign(format!("{name} is for a level that the job does not write")));
        }
        if output.file_checksum_func_name != FILE_CHECKSUM_FUNCTION || output.file_checksum.is_empty() {
            return Err(VerifyError::Foreign(format!(
                "{name} has a checksum of {:?}, the store keeps {FILE_CHECKSUM_FUNCTION}",
                output.file_checksum_func_name
            )));
        }
    }
    check_order(job, &result.output_files)?;
    check_counts(job, result)
}

/// The counts that RocksDB really compares. Next to the job's own counts a result carries RocksDB's
/// internal ones: the owner takes the records written from there, and adds the records of the input
/// tables to the records read there, which a worker leaves at 0
/// (`CompactionJob::UpdateInternalStatsFromInputFiles`, `VerifyOutputRecordCount`).
///
/// `bytes` were written by this process's RocksDB: text of `name=number;` in blocks of braces,
/// every string in hex.
fn check_internal_counts(bytes: &[u8], written: u64) -> Result<(), VerifyError> {
    let text = String::from_utf8_lossy(bytes);
    let count = |block: &str, name: &str| -> Option<u64> {
        let (_, rest) = text.split_once(&format!("{block}={{"))?;
        let (block, _) = rest.split_once('}')?;
        block.split(';').find_map(|field| field.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    for (block, name, expected) in [
        ("output_level_stats", "num_input_records", 0),
        ("output_level_stats", "num_output_records", written),
        ("proximal_level_stats", "num_input_records", 0),
        ("proximal_level_stats", "num_output_records", 0),
    ] {
        match count(block, name) {
            Some(found) if found == expected => {}
            found => {
                let found = found.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
                return Err(VerifyError::Counts(format!("{name} of {block} says {found}, and should {expected}")));
            }
        }
    }
    Ok(())
}

/// RocksDB's footer of a key that ends a table with a range deletion that goes on beyond it: the
/// greatest sequence number and `kTypeRangeDeletion`, in 8 bytes, little-endian (db/dbformat.h,
/// `kRangeTombstoneSentinel`).
const RANGE_DELETION_SENTINEL: u64 = (((1 << 56) - 1) << 8) | 0xF;

/// A user key and its footer of sequence number and kind.
fn split_key<'a>(internal: &'a [u8], name: &str) -> Result<(&'a [u8], u64), VerifyError> {
    match internal.split_last_chunk::<8>() {
        Some((user_key, footer)) => Ok((user_key, u64::from_le_bytes(*footer))),
        None => Err(VerifyError::Malformed(format!("{name} has a bound that is no internal key"))),
    }
}

fn check_order(job: &RemoteJob, outputs: &[RemoteOutput]) -> Result<(), VerifyError> {
    let mut before: Option<(&[u8], u64, &str)> = None;
    for output in outputs {
        let name = output.file_name.as_str();
        let (first, first_footer) = split_key(&output.smallest_internal_key, name)?;
        let (last, last_footer) = split_key(&output.largest_internal_key, name)?;
        // The rule of RocksDB's own check (db/version_builder.cc): tables are apart in internal
        // keys. Versions of one user key that a snapshot keeps may lie in two tables, the newer
        // ones, with the greater footer, in the first.
        if let Some((end, footer, previous)) = before {
            let apart = end < first || (end == first && footer > first_footer);
            if !apart {
                return Err(VerifyError::Misordered(format!("{name} does not begin after {previous} ends")));
            }
        }
        if first > last {
            return Err(VerifyError::Misordered(format!("{name} ends before it begins")));
        }
        if job.request.begin.as_deref().is_some_and(|begin| first < begin) {
            return Err(VerifyError::Misordered(format!("{name} begins before the range of the job")));
        }
        if let Some((least, greatest)) = &job.key_bounds
            && (first < least.as_slice() || last > greatest.as_slice())
        {
            return Err(VerifyError::Foreign(format!("{name} has keys beyond those of the inputs")));
        }
        let open_end = last_footer == RANGE_DELETION_SENTINEL;
        if job.request.end.as_deref().is_some_and(|end| last > end || (last == end && !open_end)) {
            return Err(VerifyError::Misordered(format!("{name} ends after the range of the job")));
        }
        before = Some((last, last_footer, name));
    }
    Ok(())
}

fn check_counts(job: &RemoteJob, result: &RemoteResult) -> Result<(), VerifyError> {
    let mut written: u64 = 0;
    for output in &result.output_files {
        let points = output.entries.checked_sub(output.range_deletions).ok_or_else(|| {
            VerifyError::Malformed(format!("{} has more range deletions than entries", output.file_name))
        })?;
        written = written.saturating_add(points);
    }
    if result.stats.output_records != written {
        return Err(VerifyError::Counts(format!(
            "{} records are said to be written, {written} are in the outputs",
            result.stats.output_records
        )));
    }
    let Some(inputs) = job.input_records.filter(|_| result.stats.input_records_exact) else {
        return Ok(());
    };
    let read = result.stats.input_records;
    let fits = if job.is_subcompaction() { read <= inputs } else { read == inputs };
    if !fits {
        return Err(VerifyError::Counts(format!("{read} records are said to be read, the inputs hold {inputs}")));
    }
    Ok(())
}

/// Syncs the outputs' directory and those that lead to it from the store.
fn make_directories_durable(job: &RemoteJob, directory: &Path) -> Result<(), VerifyError> {
    sync(directory)?;
    if let Some(session) = directory.parent() {
        sync(session)?;
    }
    sync(&job.store_directory)
}

fn sync(path: &Path) -> Result<(), VerifyError> {
    tap::sync_directory(path, &Tap::SILENT).map_err(|error| failed("sync", path, error))
}

fn failed(action: &'static str, path: &Path, error: io::Error) -> VerifyError {
    VerifyError::Io { action, path: path.to_path_buf(), error }
}
