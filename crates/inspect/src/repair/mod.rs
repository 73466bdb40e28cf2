//! Saves what can be saved of a damaged store, and says what was lost.
//!
//! The damaged store is only read: no database is opened in its folder. Tables and WALs are read as
//! files, damage in them is passed over, and every version of every key goes through one merge; the
//! newest of each key is written to a new store, in the order of keys. Nothing but that merge
//! decides what is saved:
//!
//! - [`survey`]: which files there are, and what the MANIFEST says. [`tables`], [`wal`]: what is in
//!   them. [`runs`]: working space for WALs.
//! - [`unlisted`]: which of the tables that no MANIFEST names are a part of the store.
//! - [`merge`], [`ranges`]: the newest version of a key, whether it is deleted, whether it may be
//!   too old.
//! - [`save`]: the new store. [`report`]: what is reported of all this.
//!
//! **A key whose newest value cannot be read is lost.** An older version of it is not saved in its
//! place: a missing value is noticed, and can be had from elsewhere; a stale one is not noticed.
//! Where a *table* is lost its keys are unknown. Then older versions from other tables are saved,
//! and counted as doubtful.
//!
//! The new store is made in a working folder beside its place, checked whole, and renamed: a crash
//! leaves the working folder, never half a store. Memory: a few blocks of each table that overlaps,
//! [`runs`]' 64 MiB, all range deletions, one write.
//!
//! The store must not be open for writing meanwhile.

mod merge;
mod ranges;
pub(crate) mod report;
mod runs;
mod save;
mod tables;
mod unlisted;
mod wal;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_engine::offline::survey::{self, ManifestState, Survey, survey};
use ecotone_engine::offline::{DirectoryLock, has_value_log};
use ecotone_engine::{Error, IDENTITY_FILE, Result, Separation};
use ecotone_io::tap::{Tap, sync_directory};
use ecotone_rocks::salvage::RangeDeletion;
use ecotone_rocks::version::self_test;
use ecotone_valuelog::segment::Segment;
use ecotone_valuelog::segment_header::{self, HeaderError};
use ecotone_valuelog::{ValueLog, log, segment};

use self::merge::Merge;
use self::report::{LostWal, RepairReport, Repairing};
use self::runs::{RUN_BYTES, Runs};
use self::tables::{Tables, open_tables};
use self::wal::{WalEntries, read_wals};
use crate::verify::verify;

/// What the working folder's name ends with.
const WORKING_SUFFIX: &str = ".unfinished";

/// Saves what can be saved of the store in `directory` as a new store in `into`, which must not
/// exist while its parent must. `directory` is only read. `progress` is called now and then.
///
/// # Errors
///
/// [`Error::InvalidArgument`] where `into` cannot be used, or an earlier repair was interrupted
/// there; [`Error::NotFound`] and [`Error::WrongFormat`] where there is no store to repair;
/// [`Error::Locked`] where it is open; what the new store says when it cannot be written. What is
/// wrong with the old one is no error but in the report.
pub fn repair(directory: &Path, into: &Path, progress: impl FnMut(Repairing)) -> Result<RepairReport> {
    repair_leaving_out(directory, into, |_| false, progress)
}

/// The same without entries that are derived from all others, and would be wrong for a part of
/// them; their owner derives them anew. `leaves_out` is called with each key that would be saved,
/// in order.
///
/// # Errors
///
/// As [`repair`].
pub fn repair_leaving_out(
    directory: &Path,
    into: &Path,
    leaves_out: impl FnMut(&[u8]) -> bool,
    mut progress: impl FnMut(Repairing),
) -> Result<RepairReport> {
    self_test().map_err(|error| Error::Rocks { detail: error.to_string() })?;
    if !directory.is_dir() {
        let reason = "the directory does not exist";
        return Err(Error::NotFound { directory: directory.to_path_buf(), reason });
    }
    let directory = fs::canonicalize(directory).map_err(|e| Error::io("resolve", directory, &e))?;
    let into = place_of(into, &directory)?;
    let working = WorkingFolder::beside(&into)?;
    // RocksDB's own lock is a file that would have to be written.
    let _lock = DirectoryLock::against_writers(&directory)?;

    let mut report = RepairReport::default();
    let survey = survey(&directory)?;
    if survey.manifest == ManifestState::Missing && survey.tables.is_empty() && survey.wals.is_empty() {
        return Err(Error::NotFound { directory, reason: "it holds neither tables nor logs, so nothing can be saved" });
    }
    let mut tables = open_tables(&survey, &mut report, &mut progress);
    report.manifest = survey.manifest.clone();
    report.notes.extend(survey.notes.iter().cloned());
    let values = source_values(&directory, &survey, &tables, &mut report)?;

    working.create()?;
    let made: Result<()> = (|| {
        let mut runs = Runs::new(&working.0, RUN_BYTES);
        let mut deleted_ranges = Vec::new();
        let mut entries = WalEntries { runs: &mut runs, deleted_ranges: &mut deleted_ranges };
        let gap = read_wals(&survey, values.as_ref(), &mut entries, &mut report, &mut progress)?;
        runs.finish()?;
        judge_unlisted(&mut tables, &runs, &deleted_ranges, gap, &mut report, &mut progress)?;
        tables.add_deleted_ranges(deleted_ranges);
        let merge = Merge::new(std::mem::take(&mut tables.sources), runs.read()?)?;
        let store = working.0.join("store");
        save::save(&store, merge, &mut tables, values.as_ref(), leaves_out, &mut report, &mut progress)?;
        check(&store, report.saved_entries, &mut progress)?;
        let sync = |directory: &Path| {
            sync_directory(directory, &Tap::SILENT).map_err(|error| Error::io("sync", directory, &error))
        };
        sync(&store)?;
        fs::rename(&store, &into).map_err(|e| Error::io("rename the new store to", &into, &e))?;
        into.parent().map_or(Ok(()), sync)
    })();
    working.remove();
    made?;
    let adds = report.unlisted_tables > report.unfinished_tables;
    report.older_may_be_back = !survey.is_sound() || adds || report.lost_table_count > 0 || report.lost_wal_count > 0;
    Ok(report)
}

/// Decides which tables count of those that a sound MANIFEST does not name. `gap`: what is missing
/// before the first WAL unless one of them has it.
fn judge_unlisted(
    tables: &mut Tables,
    runs: &Runs,
    deleted_ranges: &[RangeDeletion],
    gap: Option<LostWal>,
    report: &mut RepairReport,
    progress: &mut impl FnMut(Repairing),
) -> Result<()> {
    if tables.unlisted.is_empty() {
        return Ok(());
    }
    let counting = unlisted::that_count(tables, runs.read()?, deleted_ranges, progress)?;
    let unfinished = tables.unlisted.keys().filter(|number| !counting.contains(number));
    let unfinished: Vec<_> = unfinished.filter_map(|number| Some(tables.known.get(number)?.name.clone())).collect();
    if !unfinished.is_empty() {
        report.unfinished_tables = unfinished.len() as u64;
        let names = survey::listed(&unfinished);
        report
            .notes
            .push(format!("{names} were being written when the process died: all that they hold is in other files"));
    }
    counting.iter().for_each(|number| tables.count(*number));
    if let Some(gap) = gap.filter(|_| counting.is_empty()) {
        report.lost_wal(gap);
    }
    Ok(())
}

/// The absolute path of the new store, checked.
fn place_of(into: &Path, directory: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(into).map_err(|e| Error::io("resolve", into, &e))?;
    if absolute.symlink_metadata().is_ok() {
        return Err(Error::invalid("into", format!("{absolute:?} exists: name a folder that does not")));
    }
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Error::invalid("into", format!("{absolute:?} cannot be the name of a folder")));
    };
    let parent = fs::canonicalize(parent)
        .map_err(|error| Error::invalid("into", format!("its parent {parent:?} cannot be used: {error}")))?;
    if parent.starts_with(directory) {
        return Err(Error::invalid("into", "it lies in the damaged store, which is not written: choose another place"));
    }
    Ok(parent.join(name))
}

/// Where the new store is made.
struct WorkingFolder(PathBuf);

impl WorkingFolder {
    fn beside(into: &Path) -> Result<Self> {
        let mut path = into.as_os_str().to_owned();
        path.push(WORKING_SUFFIX);
        let path = PathBuf::from(path);
        if path.symlink_metadata().is_ok() {
            let reason = format!("{path:?} is left from a repair that was interrupted: remove it and begin anew");
            return Err(Error::invalid("into", reason));
        }
        Ok(Self(path))
    }

    fn create(&self) -> Result<()> {
        fs::create_dir(&self.0).map_err(|error| Error::io("create the directory", &self.0, &error))
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = ?self.0, %error, "the working folder of the repair could not be removed");
        }
    }
}

/// The value log of the damaged store, where it has one. Decides whether it has: by its identity,
/// or by what only such a store leaves behind.
fn source_values(
    directory: &Path,
    survey: &Survey,
    tables: &Tables,
    report: &mut RepairReport,
) -> Result<Option<ValueLog>> {
    let found = segment::list(&directory.join(log::VALUES_DIRECTORY))?;
    let has_traces = !found.is_empty() || tables.counts_references;
    report.value_log = match has_value_log(directory)? {
        Ok(has) if has || !has_traces => has,
        Ok(_) => {
            report.notes.push(format!("{IDENTITY_FILE} says nothing of a value log, and there is one: it was taken"));
            true
        }
        Err(reason) => {
            if !(tables.is_ours || survey.names_data_family || !found.is_empty()) {
                let reason = format!(
                    "{reason}, and no other file says that this is a store: if it is one, put the file {IDENTITY_FILE} \
                     back as docs/internals/formats.md shows it, into a copy of the folder"
                );
                return Err(Error::WrongFormat { directory: directory.to_path_buf(), reason });
            }
            let layout = if has_traces { "a store with a value log" } else { "a store without a value log" };
            report.notes.push(format!("{IDENTITY_FILE} is missing or damaged; the files are those of {layout}"));
            has_traces
        }
    };
    report.segments = found.len() as u64;
    report.segment_bytes = found.iter().map(|(_, bytes)| bytes).sum();
    // Nothing is appended to it.
    let segment_bytes = Separation::from_bytes(u32::MAX).segment_bytes;
    let values = report.value_log.then(|| ValueLog::open(directory, segment_bytes, Tap::SILENT)).transpose()?;
    let values = values.map(ValueLog::ignoring_headers);
    report.notes.extend(values.as_ref().and_then(note_of_headers));
    Ok(values)
}

/// What is found behind a damaged header is saved, so it is reported nowhere else.
fn note_of_headers(values: &ValueLog) -> Option<String> {
    let is_damaged = |segment: &Arc<Segment>| {
        let header = segment.header().ok().flatten();
        header.is_some_and(|header| {
            matches!(segment_header::check(&header, segment.number()), Err(HeaderError::Damaged(_)))
        })
    };
    let mut damaged = values.segments().into_iter().filter(is_damaged);
    let first = damaged.next()?;
    let (first, others) = (first.path().display(), damaged.count());
    let others = if others > 0 { format!(", and that of {others} other segments") } else { String::new() };
    Some(format!("the header of {first} is damaged{others}: what stands behind it is read by checksums of its own"))
}

/// Reads the new store back, whole.
fn check(store: &Path, entries: u64, progress: &mut impl FnMut(Repairing)) -> Result<()> {
    let found = verify(store, |checking| progress(Repairing::Result(checking)))?;
    let (location, detail) = match found.damaged.first() {
        Some(damaged) => (Some(damaged.place.clone()), damaged.detail.clone()),
        None if found.entries == entries => return Ok(()),
        None => (None, format!("{entries} entries were written, {} are there", found.entries)),
    };
    Err(Error::Corrupt { location, detail: format!("{detail}: the new store does not read back; use another device") })
}
