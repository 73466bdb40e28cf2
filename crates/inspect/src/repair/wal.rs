//! What the write-ahead logs hold that may be in no table.
//!
//! Each WAL is read up to its first damage; the rest of the file is dropped, so that the store is
//! as it was at one moment, as far as possible. So is the rest behind a value that was not known to
//! be durable and cannot be read, as replay does after a loss of power.
//!
//! Sequence numbers rise by one from write to write. Where one WAL does not begin where the one
//! before it ends, or the first not where the tables end, writes are missing. Three losses are
//! witnessed by nothing: the end of the newest WAL, cut off right between two records; the newest
//! WAL where an older one is there, and where the MANIFEST is damaged, or does not name all tables,
//! the oldest of several WALs, if they were never synced.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use ecotone_engine::header::{Header, Kind};
use ecotone_engine::offline::log_file::LogFile;
use ecotone_engine::offline::survey::{Found, Survey};
use ecotone_engine::offline::{Printable, Record, records, sequences};
use ecotone_engine::{Error, Result};
use ecotone_rocks::salvage::{EntryKind, RangeDeletion, TableEntry};
use ecotone_valuelog::ValueLog;

use super::report::{LostWal, RepairReport, Repairing};
use super::runs::Runs;

/// Where entries of the WALs go.
pub(super) struct WalEntries<'r> {
    pub(super) runs: &'r mut Runs,
    pub(super) deleted_ranges: &'r mut Vec<RangeDeletion>,
}

/// Reads all WALs. Errors are those of the working space; what is wrong with a WAL is in the
/// report. But where writes are missing between the tables that the MANIFEST names and the first
/// WAL, while there are others that may hold them, that is returned.
pub(super) fn read_wals(
    survey: &Survey,
    values: Option<&ValueLog>,
    into: &mut WalEntries<'_>,
    report: &mut RepairReport,
    progress: &mut impl FnMut(Repairing),
) -> Result<Option<LostWal>> {
    let first_is_missing = report_missing(survey, report);
    let tables_are_known = survey.is_sound() && !first_is_missing;
    // A table that the MANIFEST does not name may hold writes behind those that it knows of.
    let mut follows_tables = report.unlisted_tables > 0;
    let mut behind_tables = None;
    // The write that follows the last one read, and whether it is known that some are missing
    // there.
    let mut next: Option<(u64, bool)> = tables_are_known.then_some((survey.last_sequence + 1, false));
    for (done, wal) in survey.wals.iter().enumerate() {
        progress(Repairing::Wal { done, of: survey.wals.len() });
        report.wals += 1;
        report.wal_bytes += wal.bytes;
        let mut log = match LogFile::open(&wal.path) {
            Ok(log) => log,
            Err(error) => {
                report.lost_wal(lost(wal, 0, format!("it cannot be opened: {error}")));
                next = next.map(|(next, _)| (next, true));
                continue;
            }
        };
        let damage = loop {
            let (offset, batch) = match log.next_record() {
                Ok(Some(found)) => found,
                Ok(None) => break None,
                Err(damage) => break Some((damage.offset, damage.detail)),
            };
            let (first, behind) = match read_batch(batch, survey.data_family, values, into) {
                Ok(sequences) => sequences,
                Err(Unreadable::Wal(detail)) => break Some((offset, detail)),
                Err(Unreadable::WorkingSpace(error)) => return Err(error),
            };
            if let Some((next, known)) = next
                && first > next
            {
                if follows_tables && !known {
                    behind_tables = Some(gap_before(wal, first - next));
                } else {
                    report_gap(wal, first - next, known, report);
                }
            }
            follows_tables = false;
            next = Some((behind, false));
        };
        if let Some((offset, detail)) = damage {
            report.lost_wal(lost(wal, offset, detail));
            next = next.map(|(next, _)| (next, true));
        } else if let Some(synced) = survey.synced_wals.get(&wal.number)
            && *synced > log.written_bytes()
        {
            let written = log.written_bytes();
            report.lost_wal(lost(wal, wal.bytes, format!("{synced} bytes of it were synced, it has {written}")));
            next = next.map(|(next, _)| (next, true));
        }
    }
    Ok(behind_tables)
}

/// WALs that must be there and are not: any at all where one is named, and those that were synced.
/// A store that was opened and not written names a WAL that it never made, and has one of a greater
/// number. Returns whether one of them precedes all that are there.
fn report_missing(survey: &Survey, report: &mut RepairReport) -> bool {
    let is_there = |number: u64| survey.wals.iter().any(|wal| wal.number == number);
    let first = (survey.wals.is_empty() && survey.first_wal != 0).then_some(survey.first_wal);
    let synced = survey.synced_wals.keys().copied();
    let synced = synced.filter(|number| *number >= survey.first_wal && first != Some(*number) && !is_there(*number));
    let first_there = survey.wals.first().map_or(u64::MAX, |wal| wal.number);
    let mut first_is_missing = false;
    for number in first.into_iter().chain(synced) {
        first_is_missing |= number < first_there;
        let reason = "the MANIFEST names it, and it is missing".into();
        report.lost_wal(LostWal { wal: format!("{number:06}.log"), offset: 0, bytes: 0, writes: None, reason });
    }
    first_is_missing
}

/// Says how many writes are missing before `wal`.
fn report_gap(wal: &Found, writes: u64, known: bool, report: &mut RepairReport) {
    if known {
        // What was dropped before it is in the report already; where the list is full it is not the
        // last one there.
        if report.lost_wals.len() as u64 == report.lost_wal_count
            && let Some(last) = report.lost_wals.last_mut()
        {
            last.writes = Some(writes);
        }
        return;
    }
    report.lost_wal(gap_before(wal, writes));
}

fn gap_before(wal: &Found, writes: u64) -> LostWal {
    let reason = "writes before its begin are missing".into();
    LostWal { wal: wal.name(), offset: 0, bytes: 0, writes: Some(writes), reason }
}

fn lost(wal: &Found, offset: u64, reason: String) -> LostWal {
    // What cannot be read may hold anything.
    let end = written_end(wal, offset).unwrap_or(wal.bytes);
    LostWal { wal: wal.name(), offset, bytes: end.saturating_sub(offset), writes: None, reason }
}

/// Behind the last byte from `offset` on that is not zero: what was set aside and not written is
/// no loss.
fn written_end(wal: &Found, offset: u64) -> io::Result<u64> {
    let mut log = File::open(&wal.path)?;
    let mut at = log.seek(SeekFrom::Start(offset))?;
    let (mut end, mut buffer) = (at, vec![0; 64 * 1024]);
    loop {
        let read = match log.read(&mut buffer)? {
            0 => return Ok(end),
            read => &buffer[..read],
        };
        if let Some(last) = read.iter().rposition(|byte| *byte != 0) {
            end = at + last as u64 + 1;
        }
        at += read.len() as u64;
    }
}

/// Why a batch was not taken.
enum Unreadable {
    /// It is damaged, or what it names is.
    Wal(String),
    /// It could not be kept.
    WorkingSpace(Error),
}

/// Takes a batch, whole or not at all. Returns the sequence number of its first write, and that
/// behind its last.
fn read_batch(
    batch: &[u8],
    data_family: u32,
    values: Option<&ValueLog>,
    into: &mut WalEntries<'_>,
) -> Result<(u64, u64), Unreadable> {
    let wal = |detail: &str| Unreadable::Wal(detail.to_owned());
    let numbers =
        sequences(batch).map_err(|_| wal("a record is too short for a batch, or has an impossible number"))?;
    let found: Vec<_> = records(batch).collect::<Result<_, _>>().map_err(|_| wal("a batch cannot be read"))?;
    if found.len() as u64 != numbers.end - numbers.start || found.contains(&Record::Other) {
        return Err(wal("a batch holds what no store writes"));
    }
    if let Some(values) = values {
        let mut scratch = Vec::new();
        for record in &found {
            check_value(values, record, data_family, &mut scratch)?;
        }
    }
    for (record, sequence) in found.into_iter().zip(numbers.clone()) {
        let entry =
            |key: &[u8], kind, value: &[u8]| TableEntry { key: key.into(), sequence, kind, value: value.into() };
        let entry = match record {
            Record::Put { family, key, value } if family == data_family => entry(key, EntryKind::Put, value),
            Record::Delete { key } => entry(key, EntryKind::Delete, &[]),
            Record::DeleteRange { from, to } => {
                into.deleted_ranges.push(RangeDeletion { from: from.into(), to: to.into(), sequence });
                continue;
            }
            Record::Put { .. } | Record::Other => continue,
        };
        into.runs.add(entry).map_err(Unreadable::WorkingSpace)?;
    }
    Ok((numbers.start, numbers.end))
}

/// A value that need not have been durable must be there: else this and all behind it never reached
/// the device.
fn check_value(
    values: &ValueLog,
    record: &Record<'_>,
    data_family: u32,
    scratch: &mut Vec<u8>,
) -> Result<(), Unreadable> {
    let Record::Put { family, key, value } = record else { return Ok(()) };
    let Ok(Header { kind: Kind::Separated(pointer), .. }) = Header::decode(value) else { return Ok(()) };
    if *family != data_family || values.was_durable(key, pointer) {
        return Ok(());
    }
    match values.read(key, pointer, scratch) {
        // Trouble of the device, or want of memory, is no sign that it never got there. That value
        // alone is listed when it is asked for.
        Ok(_) | Err(ecotone_valuelog::Error::Io { .. } | ecotone_valuelog::Error::NoMemory { .. }) => Ok(()),
        Err(error) => match values.is_damaged(key, pointer) {
            Ok(false) => {
                let lost = format!("the value of key {} was not durable and is lost: {error}", Printable(key));
                Err(Unreadable::Wal(lost))
            }
            // Nor is what was written and changed after.
            Ok(true) | Err(_) => Ok(()),
        },
    }
}
