//! Whether all bytes of a store are as they were written.
//!
//! Checked are: every block and the checksum of every table; what each table says of the segments that it names, by counting its
//! entries again; every pointer in a table, whether or not a newer version hides it, against the segments there are; every record of
//! every segment; every value that can be read, through its pointer; and the logs, as each opening does ([`crate::log_check`]). What is found
//! is listed; only what keeps the check itself from going on is an error.
//!
//! The store is opened read-only and nothing is changed. It should not be written meanwhile: tables and segments that its
//! process removes are missing, and what it appends lies behind the end that a segment had. That cannot be told from damage, so
//! damage that is found where somebody had the store open for writing meanwhile is [`Error::InUse`]. Who has it open checks a
//! checkpoint of it instead ([`Store::verify_now`]).

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ecotone_rocks_sys::verify::{ExpectedTable, verify_table};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::named::Named;
use crate::directory_lock::Untouched;
use crate::values::record::{self, RECORD_HEADER_BYTES, RecordError};
use crate::values::segment::Segment;
use crate::values::segment_header::SEGMENT_HEADER_BYTES;
use crate::{Direction, Error, OpenMode, Result, Store, StoreOptions};

/// Bytes of a segment that are read at once.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// Entries between two calls of the progress.
const PROGRESS_ENTRIES: u64 = 10_000;

/// Findings that are kept; more are counted only.
const MAX_FINDINGS: usize = 1000;

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
    /// A table says less of a segment than its entries name, or what cannot be read: values are lost with the segment when that is
    /// removed. Do not open the store for writing.
    UnderstatedReferences,
    /// A table says more of a segment than its entries name, and of none less: garbage is kept until the table is compacted. No damage.
    OverstatedReferences,
    /// Entries of a table, perhaps hidden by newer versions, name what no segment has.
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
    /// What is damaged, the first [`MAX_FINDINGS`].
    pub damaged: Vec<Finding>,
    /// How many there are.
    pub damaged_count: u64,
    /// Tables with [overstated references](FindingKind::OverstatedReferences), the first [`MAX_FINDINGS`].
    pub overstated: Vec<Finding>,
    /// How many there are.
    pub overstated_count: u64,
    /// Where segments and logs cannot be walked any further: what a crash leaves behind, or damage. What is named behind it in a segment is read
    /// all the same, and reported as damaged where it is; of a log it is left out.
    pub torn_ends: Vec<Finding>,
}

impl VerifyReport {
    /// Whether nothing is damaged. What tables [overstate](Self::overstated) costs space, and nothing is lost by it.
    pub fn is_sound(&self) -> bool {
        self.damaged_count == 0
    }

    /// Whether the store may lose values that can still be read if it is opened for writing before it is repaired: a table
    /// [understates](FindingKind::UnderstatedReferences) what it names, or one of the findings that are not listed may say so.
    pub fn loses_by_writing(&self) -> bool {
        let understates = |finding: &Finding| finding.kind == FindingKind::UnderstatedReferences;
        self.damaged_count > self.damaged.len() as u64 || self.damaged.iter().any(understates)
    }

    fn damaged(&mut self, place: impl ToString, detail: impl ToString) {
        self.found(FindingKind::Damage, place, detail);
    }

    pub(super) fn found(&mut self, kind: FindingKind, place: impl ToString, detail: impl ToString) {
        let (findings, count) = match kind {
            FindingKind::OverstatedReferences => (&mut self.overstated, &mut self.overstated_count),
            _ => (&mut self.damaged, &mut self.damaged_count),
        };
        *count += 1;
        if findings.len() < MAX_FINDINGS {
            findings.push(Finding { kind, place: place.to_string(), detail: detail.to_string() });
        }
    }

    fn torn_end(&mut self, place: String, detail: String) {
        self.torn_ends.push(Finding { kind: FindingKind::TornEnd, place, detail });
    }
}

/// Checks the store in `directory`. `progress` is called now and then.
///
/// # Errors
///
/// What keeps the store from being opened, or its files from being listed. [`Error::InUse`] where something is damaged and the store was open
/// for writing meanwhile.
pub fn verify(directory: &Path, mut progress: impl FnMut(Checking)) -> Result<VerifyReport> {
    let checked = verify_until(directory, |checking| {
        progress(checking);
        ControlFlow::Continue(())
    });
    // Nobody has ended it.
    checked.map(Option::unwrap_or_default)
}

/// The same until `progress` breaks: then nothing is known.
///
/// # Errors
///
/// As [`verify`].
pub(super) fn verify_until(
    directory: &Path,
    progress: impl FnMut(Checking) -> ControlFlow<()>,
) -> Result<Option<VerifyReport>> {
    // It may be closed by the time something is found.
    let untouched = Untouched::since_now(directory);
    let in_use = |found: &dyn Fn() -> String| Some(Error::in_use(directory, untouched.writer()?, &found()));
    let mut progress = Progress { tell: progress, is_over: false };
    match check(directory, &mut progress) {
        Err(error @ (Error::Corrupt { .. } | Error::Io { .. } | Error::Rocks { .. })) => {
            Err(in_use(&|| error.to_string()).unwrap_or(error))
        }
        Ok(_) if progress.is_over => Ok(None),
        Ok(report) => match report.damaged.first() {
            Some(first) => in_use(&|| format!("{}: {}", first.place, first.detail)).map_or(Ok(Some(report)), Err),
            None => Ok(Some(report)),
        },
        Err(other) => Err(other),
    }
}

/// Who is told what is being done, and ends it.
struct Progress<P> {
    tell: P,
    is_over: bool,
}

impl<P: FnMut(Checking) -> ControlFlow<()>> Progress<P> {
    /// Breaks for good where nothing more is to be checked.
    fn go_on(&mut self, checking: Checking) -> ControlFlow<()> {
        self.is_over |= (self.tell)(checking).is_break();
        if self.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn check(directory: &Path, progress: &mut Progress<impl FnMut(Checking) -> ControlFlow<()>>) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let store = match Store::open(directory, OpenMode::ReadOnly, StoreOptions::default()) {
        Err(Error::Corrupt { location, detail }) => {
            report.damaged(location.unwrap_or_else(|| directory.display().to_string()), detail);
            // So damaged that nothing else can be looked at but the tables, of which one may be the cause.
            check_table_files(directory, &mut report)?;
            return Ok(report);
        }
        opened => opened?,
    };
    for (place, detail) in std::mem::take(&mut *store.replayed.left_out.lock()) {
        report.torn_end(place, detail);
    }
    let log = store.values.as_ref().map(|values| &values.log);
    let mut named = log.map(|log| Named::begin(&store, log)).transpose()?;
    check_tables(&store, named.as_mut(), &mut report, progress)?;
    if let (Some(log), Some(named)) = (log, named) {
        let segments = log.segments();
        for (done, segment) in segments.iter().enumerate() {
            check_access(segment.path())?;
            let mut go_on = || progress.go_on(Checking::Segment { done, of: segments.len() });
            check_segment(segment, named.has(segment.number()), &mut report, &mut go_on);
            // There may be more of them than this process may have open.
            segment.close();
        }
        named.check_segments(log, &mut report);
    }
    check_entries(&store, &mut report, progress)?;
    Ok(report)
}

/// Without a value log tables name nothing.
fn check_tables(
    store: &Store,
    mut named: Option<&mut Named>,
    report: &mut VerifyReport,
    progress: &mut Progress<impl FnMut(Checking) -> ControlFlow<()>>,
) -> Result<()> {
    let tables = store.live_tables()?;
    for (done, table) in tables.iter().enumerate() {
        if progress.go_on(Checking::Table { done, of: tables.len() }).is_break() {
            break;
        }
        report.tables += 1;
        report.table_bytes += table.bytes;
        let path: PathBuf = store.directory().join(&table.name);
        check_access(&path)?;
        let expected = ExpectedTable {
            file_bytes: Some(table.bytes),
            file_checksum: (!table.file_checksum.is_empty()).then(|| table.file_checksum.clone()),
            ..ExpectedTable::default()
        };
        let verified = match &mut named {
            Some(named) => named.check_table(table.file_number, &path, &expected, report),
            None => verify_table(&path, &expected).map(drop),
        };
        if let Err(error) = verified {
            report.damaged(path.display(), error);
        }
    }
    Ok(())
}

/// Checks the tables that are there, whether or not the store still has them.
fn check_table_files(directory: &Path, report: &mut VerifyReport) -> Result<()> {
    let failed = |error| Error::io("list", directory, &error);
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "sst") {
            continue;
        }
        report.tables += 1;
        report.table_bytes += path.metadata().map_or(0, |metadata| metadata.len());
        check_access(&path)?;
        if let Err(error) = verify_table(&path, &ExpectedTable::default()) {
            report.damaged(path.display(), error);
        }
    }
    Ok(())
}

/// What this process may not open, or cannot for want of descriptors, is not damaged: nobody knows what it is.
fn check_access(path: &Path) -> Result<()> {
    let is_refused = |error: &std::io::Error| {
        let errno = Errno::from_io_error(error);
        matches!(errno, Some(Errno::ACCESS | Errno::PERM | Errno::MFILE | Errno::NFILE))
    };
    match File::open(path) {
        Err(error) if is_refused(&error) => Err(Error::io("open", path, &error)),
        // Whoever reads it says what is wrong with it.
        _ => Ok(()),
    }
}

/// Walks over all records. Behind one that is damaged nobody knows where the next begins, so the walk ends there. Of a segment
/// that no table names a loss of power may have taken the header as well.
fn check_segment(
    segment: &Segment,
    is_named: bool,
    report: &mut VerifyReport,
    go_on: &mut impl FnMut() -> ControlFlow<()>,
) {
    report.segments += 1;
    report.segment_bytes += segment.bytes();
    let end = segment.bytes();
    let mut offset = SEGMENT_HEADER_BYTES as u64;
    let mut chunk = Vec::new();
    while offset < end && go_on().is_continue() {
        let wanted = (end - offset).min(CHUNK_BYTES as u64) as usize;
        chunk.resize(wanted, 0);
        match segment.read(offset, &mut chunk) {
            Err(Error::Corrupt { location: Some(place), detail }) if !is_named => {
                return report.torn_end(place, detail);
            }
            Err(error) => return report.damaged(segment.path().display(), error),
            Ok(()) => (),
        }
        let mut within = 0;
        let stop = loop {
            match record::check(&chunk[within..]) {
                Ok(layout) => {
                    report.records += 1;
                    within += layout.value.end;
                    if within == chunk.len() {
                        break None;
                    }
                }
                Err(error) => break Some(error),
            }
        };
        offset += within as u64;
        match stop {
            None => (),
            Some(RecordError::Truncated { .. }) if wanted == CHUNK_BYTES && within > 0 => (),
            // A record that is longer than what is read at once.
            Some(RecordError::Truncated { need, .. }) if offset + need as u64 <= end && need > RECORD_HEADER_BYTES => {
                chunk.resize(need, 0);
                let read = segment.read(offset, &mut chunk).map_err(|error| error.to_string());
                if let Err(error) =
                    read.and_then(|()| record::check(&chunk).map(drop).map_err(|error| error.to_string()))
                {
                    return report.damaged(format!("{} at offset {offset}", segment.path().display()), error);
                }
                report.records += 1;
                offset += need as u64;
            }
            // Space that was reserved by a process that was killed, or is at work.
            Some(_) if segment.is_zero_from(offset).unwrap_or(false) => return,
            // What is named behind it is found when the entries are read.
            Some(error) => {
                let place = format!("{} at offset {offset}", segment.path().display());
                let detail = format!("{error}; {} bytes follow", end - offset);
                return report.torn_end(place, detail);
            }
        }
    }
}

fn check_entries(
    store: &Store,
    report: &mut VerifyReport,
    progress: &mut Progress<impl FnMut(Checking) -> ControlFlow<()>>,
) -> Result<()> {
    // A scan ends at an error; it is taken up behind the key that caused it.
    let mut from = Vec::new();
    if progress.go_on(Checking::Entries { done: 0 }).is_break() {
        return Ok(());
    }
    loop {
        let mut scan = store.scan(from.as_slice().., Direction::Forward, None)?;
        let error = loop {
            match scan.next_entry() {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {
                    report.entries += 1;
                    if report.entries.is_multiple_of(PROGRESS_ENTRIES)
                        && progress.go_on(Checking::Entries { done: report.entries }).is_break()
                    {
                        return Ok(());
                    }
                }
                Err(error) => break error,
            }
        };
        match &error {
            Error::Corrupt { location, detail } => {
                report.damaged(location.as_deref().unwrap_or("the entries"), detail);
            }
            Error::Io { path, .. } => report.damaged(path.display(), &error),
            other => report.damaged("the entries", other),
        }
        let Some(behind) = scan.key_at_error() else { return Ok(()) };
        from = behind;
        from.push(0);
    }
}
