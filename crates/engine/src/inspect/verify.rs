//! Whether all bytes of a store are as they were written.
//!
//! Checked are: every block and the checksum of every table; what each table says of the segments
//! that it names, by counting its entries again; every pointer in a table, whether or not a newer
//! version shadows it, against the segments there are; every record of every segment; every value
//! that can be read, through its pointer; and the logs, as each opening does
//! ([`crate::log_check`]). What is found is listed; only what keeps the check itself from going on
//! is an error.
//!
//! The store is opened read-only and nothing is changed. It should not be written meanwhile: tables
//! and segments that its process removes are missing, and what it appends lies behind the end that
//! a segment had. That cannot be told from damage, so damage that is found where somebody had the
//! store open for writing meanwhile is [`Error::InUse`]. Who has it open checks a checkpoint of it
//! instead ([`Store::verify_now`]).

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ecotone_rocks_sys::verify::{ExpectedTable, verify_table};
use ecotone_valuelog::record::{self, RECORD_HEADER_BYTES, RecordError};
use ecotone_valuelog::segment::Segment;
use ecotone_valuelog::segment_header::SEGMENT_HEADER_BYTES;
use rustix::io::Errno;

use super::findings::{Checking, VerifyReport};
use super::named::Named;
use crate::directory_lock::Untouched;
use crate::{Direction, Error, OpenMode, Result, Store, StoreOptions};

/// Bytes of a segment that are read at once.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// Entries between two calls of the progress.
const PROGRESS_ENTRIES: u64 = 10_000;

/// Checks the store in `directory`. `progress` is called now and then.
///
/// # Errors
///
/// What keeps the store from being opened, or its files from being listed. [`Error::InUse`] where
/// something is damaged and the store was open for writing meanwhile.
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
            // So damaged that nothing else can be looked at but the tables, of which one may be the
            // cause.
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

/// Without a value log tables refer to nothing.
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

/// What this process may not open, or cannot for want of descriptors, is not damaged: nobody knows
/// what it is.
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

/// Walks over all records. Behind one that is damaged nobody knows where the next begins, so the
/// walk ends there. Of a segment that no table refers to a loss of power may have taken the header
/// as well.
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
            Err(ecotone_valuelog::Error::Corrupt { location: Some(place), detail }) if !is_named => {
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
