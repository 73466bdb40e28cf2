//! Whether all bytes of a store are as they were written.
//!
//! Checked are: every block and the checksum of every table; the references into the value log that
//! each table states, by counting its entries again; every pointer in a table, shadowed or not,
//! against the segments there are; every record of every segment; every value that can be read,
//! through its pointer; and the logs, as each opening does. What is found is listed; only what
//! keeps the check itself from going on is an error.
//!
//! The store is opened read-only and nothing is changed. It should not be written meanwhile: tables
//! and segments that its process removes are missing, and what it appends lies behind the end that
//! a segment had. That cannot be distinguished from damage, so damage that is found where somebody
//! had the store open for writing meanwhile is [`Error::InUse`].
//!
//! The process that has a store open for writing checks a checkpoint of it instead
//! ([`verify_running`]): the store as it was at one moment, whose files are those of the store by a
//! second name. It is checked as a closed store is, and nothing that is written or removed
//! meanwhile can be taken for damage.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ecotone_engine::offline::{self, CheckedCopy, Untouched};
use ecotone_engine::{Direction, Error, OpenMode, Result, Store, StoreSettings};
use ecotone_rocks::verify::{ExpectedTable, verify_table};
use ecotone_valuelog::ValueLog;
use ecotone_valuelog::compression::WITHOUT_DICTIONARY;
use ecotone_valuelog::record::RecordError;
use ecotone_valuelog::segment::Segment;
use ecotone_valuelog::segment_header::{SEGMENT_HEADER_BYTES, SegmentFormat};
use rustix::io::Errno;

use crate::findings::{Checking, Finding, VerifyReport};
use crate::references::CountedReferences;

/// Bytes of a segment that are read at once, unless a record is longer.
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
    let checked = verify_until(directory, &mut |checking| {
        progress(checking);
        ControlFlow::Continue(())
    });
    // It is never ended early.
    checked.map(Option::unwrap_or_default)
}

/// Checks `store`, which this process has open for writing, as it is now, while it is read and
/// written. `progress` is called now and then, and ends the check where it breaks: `None` then.
/// Flushes, and begins another segment.
///
/// # Errors
///
/// [`Error::Busy`] while another check runs; [`Error::DiskFull`] where there is no space for a
/// flush; what keeps the checkpoint from being made, or read.
pub fn verify_running(
    store: &Store,
    mut progress: impl FnMut(Checking) -> ControlFlow<()>,
) -> Result<Option<VerifyReport>> {
    let copy = CheckedCopy::of(store)?;
    let report = verify_until(copy.path(), &mut progress)?;
    let names = (copy.path().display().to_string(), store.directory().display().to_string());
    Ok(report.map(|mut report| {
        let VerifyReport { damaged, overstated, torn_ends, .. } = &mut report;
        for Finding { place, detail, .. } in damaged.iter_mut().chain(overstated).chain(torn_ends) {
            *place = place.replace(&names.0, &names.1);
            *detail = detail.replace(&names.0, &names.1);
        }
        report
    }))
}

type Progress<'p> = &'p mut dyn FnMut(Checking) -> ControlFlow<()>;

/// As [`verify`], until `progress` breaks: `None` then.
fn verify_until(directory: &Path, progress: Progress<'_>) -> Result<Option<VerifyReport>> {
    // It may be closed by the time something is found.
    let untouched = Untouched::since_now(directory);
    let in_use = |found: &dyn Fn() -> String| Some(Error::in_use(directory, untouched.writer()?, &found()));
    let mut check = Check { progress, is_over: false, report: VerifyReport::default() };
    match check.store(directory) {
        Err(error @ (Error::Corrupt { .. } | Error::Io { .. } | Error::Rocks { .. })) => {
            Err(in_use(&|| error.to_string()).unwrap_or(error))
        }
        Ok(()) if check.is_over => Ok(None),
        Ok(()) => match check.report.damaged.first() {
            Some(first) => in_use(&|| format!("{}: {}", first.place, first.detail)).map_or(Ok(Some(check.report)), Err),
            None => Ok(Some(check.report)),
        },
        Err(other) => Err(other),
    }
}

/// A check that runs, and its report so far.
struct Check<'p> {
    progress: Progress<'p>,
    is_over: bool,
    report: VerifyReport,
}

impl Check<'_> {
    /// Reports the progress. Breaks for good once the caller has ended the check.
    fn go_on(&mut self, checking: Checking) -> ControlFlow<()> {
        self.is_over |= (self.progress)(checking).is_break();
        if self.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn store(&mut self, directory: &Path) -> Result<()> {
        let store = match Store::open(directory, OpenMode::ReadOnly, StoreSettings::default()) {
            Err(Error::Corrupt { location, detail }) => {
                self.report.damaged(location.unwrap_or_else(|| directory.display().to_string()), detail);
                // So damaged that nothing else can be checked but the tables, of which one may be
                // the cause.
                return self.table_files(directory);
            }
            opened => opened?,
        };
        for (place, detail) in offline::left_out_by_replay(&store) {
            self.report.torn_end(place, detail);
        }
        let log = offline::value_log(&store);
        let mut references = log.map(|log| CountedReferences::begin(&store, log)).transpose()?;
        self.tables(&store, references.as_mut())?;
        if let (Some(log), Some(references)) = (log, references) {
            let segments = log.segments();
            for (done, segment) in segments.iter().enumerate() {
                check_access(segment.path())?;
                let progress = Checking::Segment { done, of: segments.len() };
                self.segment(log, segment, &references, progress);
                // There may be more of them than this process may have open.
                segment.close();
            }
            references.check_segments(log, &mut self.report);
        }
        self.entries(&store)
    }

    /// Without a value log tables reference nothing.
    fn tables(&mut self, store: &Store, mut references: Option<&mut CountedReferences>) -> Result<()> {
        let tables = store.live_tables()?;
        for (done, table) in tables.iter().enumerate() {
            if self.go_on(Checking::Table { done, of: tables.len() }).is_break() {
                break;
            }
            let expected = ExpectedTable {
                file_bytes: Some(table.bytes),
                file_checksum: (!table.file_checksum.is_empty()).then(|| table.file_checksum.clone()),
                ..ExpectedTable::default()
            };
            let references = references.as_deref_mut().map(|references| (references, table.file_number));
            self.table(&store.directory().join(&table.name), table.bytes, &expected, references)?;
        }
        Ok(())
    }

    /// Checks the tables that are there, whether or not the store still has them.
    fn table_files(&mut self, directory: &Path) -> Result<()> {
        let failed = |error| Error::io("list", directory, &error);
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "sst") {
                let bytes = path.metadata().map_or(0, |metadata| metadata.len());
                self.table(&path, bytes, &ExpectedTable::default(), None)?;
            }
        }
        Ok(())
    }

    fn table(
        &mut self,
        path: &Path,
        bytes: u64,
        expected: &ExpectedTable,
        references: Option<(&mut CountedReferences, u64)>,
    ) -> Result<()> {
        self.report.tables += 1;
        self.report.table_bytes += bytes;
        check_access(path)?;
        let verified = match references {
            Some((references, number)) => references.check_table(number, path, expected, &mut self.report),
            None => verify_table(path, expected).map(drop),
        };
        if let Err(error) = verified {
            self.report.damaged(path.display(), error);
        }
        Ok(())
    }

    /// Walks over all records, and ends at one that is damaged: where the next begins is unknown
    /// then. Of a segment without references a loss of power may have taken the header as well.
    fn segment(&mut self, log: &ValueLog, segment: &Arc<Segment>, references: &CountedReferences, progress: Checking) {
        let end = segment.bytes();
        self.report.segments += 1;
        self.report.segment_bytes += end;
        // A segment whose header cannot be read is one of those that reading it will tell.
        let format = segment.format().unwrap_or(SegmentFormat::Plain);
        let mut offset = SEGMENT_HEADER_BYTES as u64;
        let (mut chunk, mut wanted) = (Vec::new(), CHUNK_BYTES);
        while offset < end && self.go_on(progress).is_continue() {
            chunk.resize((end - offset).min(wanted as u64) as usize, 0);
            match segment.read(offset, &mut chunk) {
                Err(error) if wanted > CHUNK_BYTES => {
                    let place = format!("{} at offset {offset}", segment.path().display());
                    return self.report.damaged(place, error);
                }
                Err(ecotone_valuelog::Error::Corrupt { location: Some(place), detail })
                    if !references.has(segment.number()) =>
                {
                    return self.report.torn_end(place, detail);
                }
                Err(error) => return self.report.damaged(segment.path().display(), error),
                Ok(()) => (),
            }
            let mut within = 0;
            let stop = loop {
                match format.check_record(&chunk[within..]) {
                    Ok(bytes) => {
                        // A dictionary is the first one, and nobody's value.
                        let is_first = within as u64 + offset == SEGMENT_HEADER_BYTES as u64;
                        self.report.records += u64::from(!is_first || format.dictionary().is_none());
                        within += bytes;
                        if within == chunk.len() {
                            break None;
                        }
                    }
                    Err(error) => break Some(error),
                }
            };
            offset += within as u64;
            let place = || format!("{} at offset {offset}", segment.path().display());
            match stop {
                None => wanted = CHUNK_BYTES,
                // The next chunk begins with it.
                Some(RecordError::Truncated { .. }) if chunk.len() >= CHUNK_BYTES && within > 0 => wanted = CHUNK_BYTES,
                // It is longer than a chunk.
                Some(RecordError::Truncated { need, .. }) if offset + need as u64 <= end && need > chunk.len() => {
                    wanted = need;
                }
                // Space that was reserved by a process that was killed, or is at work.
                Some(_) if segment.is_zero_from(offset).unwrap_or(false) => return,
                Some(error) if chunk.len() > CHUNK_BYTES => return self.report.damaged(place(), error),
                // A loss of power takes no dictionary of values that a table references, and needs it.
                Some(error)
                    if references.has_compressed(segment.number())
                        && offset == SEGMENT_HEADER_BYTES as u64
                        && format.dictionary().is_some()
                        && log.dictionary_in(segment).is_ok() =>
                {
                    let detail = format!(
                        "the dictionary of its values is damaged: {error}; that of another segment stands in for it"
                    );
                    return self.report.damaged(place(), detail);
                }
                // What is referenced behind it is found when the entries are read.
                Some(error) => {
                    return self.report.torn_end(place(), format!("{error}; {} bytes follow", end - offset));
                }
            }
        }
    }

    fn entries(&mut self, store: &Store) -> Result<()> {
        let mut without_dictionary = BTreeMap::new();
        let read = self.read_entries(store, &mut without_dictionary);
        for (segment, WithoutDictionary { values, place, reason }) in without_dictionary {
            self.report.values_without_dictionary += values;
            let detail = format!("{values} values need its dictionary: {reason}; the first is {place}");
            self.report.damaged(segment, detail);
        }
        read
    }

    /// Values that need a dictionary that cannot be read are counted by the paths of their segments.
    fn read_entries(
        &mut self,
        store: &Store,
        without_dictionary: &mut BTreeMap<String, WithoutDictionary>,
    ) -> Result<()> {
        // A scan ends at an error; it is taken up behind the key that caused it.
        let mut from = Vec::new();
        if self.go_on(Checking::Entries { done: 0 }).is_break() {
            return Ok(());
        }
        loop {
            let mut scan = store.scan(from.as_slice().., Direction::Forward, None)?;
            let error = loop {
                match scan.next_entry() {
                    Ok(None) => return Ok(()),
                    Ok(Some(_)) => {
                        self.report.entries += 1;
                        let done = self.report.entries;
                        if done.is_multiple_of(PROGRESS_ENTRIES) && self.go_on(Checking::Entries { done }).is_break() {
                            return Ok(());
                        }
                    }
                    Err(error) => break error,
                }
            };
            match &error {
                Error::Corrupt { location: Some(place), detail } if detail.starts_with(WITHOUT_DICTIONARY) => {
                    let segment = place.rsplit_once(" at offset ").map_or(&**place, |(segment, _)| segment);
                    let first = || WithoutDictionary {
                        values: 0,
                        place: place.clone(),
                        reason: detail[WITHOUT_DICTIONARY.len()..].to_owned(),
                    };
                    without_dictionary.entry(segment.to_owned()).or_insert_with(first).values += 1;
                }
                Error::Corrupt { location, detail } => {
                    self.report.damaged(location.as_deref().unwrap_or("the entries"), detail);
                }
                Error::Io { path, .. } => self.report.damaged(path.display(), &error),
                other => self.report.damaged("the entries", other),
            }
            let Some(behind) = offline::key_at_error(&scan) else { return Ok(()) };
            from = behind;
            from.push(0);
        }
    }
}

/// Values of one segment that cannot be read because its dictionary cannot.
struct WithoutDictionary {
    values: u64,
    /// Of the first one.
    place: String,
    /// What is wrong with the dictionary.
    reason: String,
}

/// What this process may not open, or cannot for want of descriptors, is not damaged: its state is
/// unknown.
fn check_access(path: &Path) -> Result<()> {
    let is_refused = |error: &std::io::Error| {
        let errno = Errno::from_io_error(error);
        matches!(errno, Some(Errno::ACCESS | Errno::PERM | Errno::MFILE | Errno::NFILE))
    };
    match File::open(path) {
        Err(error) if is_refused(&error) => Err(Error::io("open", path, &error)),
        // Any other error is reported by who reads it.
        _ => Ok(()),
    }
}
