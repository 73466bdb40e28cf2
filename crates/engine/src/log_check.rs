//! A look at RocksDB's logs before RocksDB reads them: the write-ahead logs and the MANIFEST.
//!
//! RocksDB 11.12 takes the first record that it cannot read for the one that was being written when
//! the machine stopped, and drops it with all that follows. In a WAL that is acknowledged writes;
//! in a MANIFEST, where the length of a record leads beyond the file, or zeros stand where it
//! should begin, whole tables, whose files it then removes. And it never comes back from a record
//! whose type says that its file is a recycled one where the file is none (`db/log_reader.cc`:
//! `ReadPhysicalRecord` returns `kBadRecord` there without going on, and `ReadRecord` asks it
//! again, for ever).
//!
//! So each log is [walked over](crate::log_walk), and where that ends in trouble, it is decided
//! what that is:
//!
//! - what no interrupted write leaves, wherever it is, is damage;
//! - what lies before the [durable end](crate::durable_logs) of the log is damage: no crash takes
//!   that. So is a log that is shorter;
//! - in a MANIFEST of which no durable end is known, what has a whole record behind it is damage:
//!   each is synced before the next one is written, but for some that go together;
//! - all else cannot be told from the torn end that a crash leaves. RocksDB drops it, and it is
//!   said how much that was.
//!
//! Damage is refused here, with file and offset and what would be lost. A durable end may lie
//! within a record: a sync covers what others were appending meanwhile. So a fragment that begins
//! before it and ends behind it may be torn.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::durable_logs::{DurableLogs, LogName};
use crate::log_walk::{HEADER_BYTES, Records, Trouble, Walk, walk};
use crate::offline::survey::first_wal;
use crate::{Error, Result};

/// What there is of logs.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    has_manifest: bool,
    has_wal: bool,
    has_whole_manifest: bool,
    /// WALs that cannot be read to their end, which may be due to a crash.
    pub(crate) torn: Vec<TornEnd>,
    /// Behind the number of the last write that was seen anywhere in the WALs; 0 where there was
    /// none.
    pub(crate) next_write: u64,
}

impl Logs {
    /// Whether RocksDB may refuse a store that has no WAL at all. One whose creation a loss of
    /// power has cut short may have none, and so may a copy.
    pub(crate) const fn may_want_a_wal(&self) -> bool {
        self.has_wal || !self.has_manifest
    }

    /// Whether the MANIFEST is there as far as it was ever durable, and this is known: not that of
    /// a store that was written before durable ends were.
    pub(crate) const fn has_whole_manifest(&self) -> bool {
        self.has_whole_manifest
    }
}

/// Where a WAL cannot be read any further, and what is lost with that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TornEnd {
    /// The number of the WAL.
    pub(crate) wal: u64,
    /// Its file.
    pub(crate) path: PathBuf,
    /// Where the record begins.
    pub(crate) offset: u64,
    /// What is wrong with it.
    pub(crate) detail: &'static str,
    /// What is not read.
    pub(crate) loss: Loss,
}

/// What would be dropped with a record that cannot be read and all that follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Bytes of logs.
    pub(crate) bytes: u64,
    /// Whole records that can be recognised among them.
    pub(crate) records: u64,
    /// The numbers of the writes in them, as far as they can be told.
    pub(crate) writes: Option<Range<u64>>,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {} whole records among them", self.bytes, self.records)?;
        match &self.writes {
            Some(Range { start, end }) => write!(f, ", with {} writes: {start} to {}", end - start, end - 1),
            None => Ok(()),
        }
    }
}

/// A log that was walked over.
struct Walked {
    name: LogName,
    path: PathBuf,
    walk: Walk,
}

/// Refuses a store with a log that is damaged.
///
/// # Errors
///
/// [`Error::Corrupt`] names file and offset; [`Error::Io`] where a log cannot be read.
pub(crate) fn check(directory: &Path) -> Result<Logs> {
    // First, so that of a store that is in use no more is awaited than there is.
    let durable = DurableLogs::read(directory)?;
    let walked = walk_all(directory)?;
    let wals = walked.iter().filter(|log| matches!(log.name, LogName::Wal(_)));
    let mut logs = Logs {
        has_manifest: wals.clone().count() < walked.len(),
        has_wal: wals.clone().count() > 0,
        has_whole_manifest: walked.iter().any(|log| {
            let durable_bytes = durable.bytes_of(log.name);
            let is_reached = durable_bytes > 0 && log.walk.bytes >= durable_bytes;
            matches!(log.name, LogName::Manifest(_)) && log.walk.trouble.is_none() && is_reached
        }),
        next_write: wals.clone().filter_map(|wal| last_write(&wal.walk)).max().unwrap_or(0),
        torn: Vec::new(),
    };
    for (at, log) in walked.iter().enumerate() {
        let Walked { name, path, walk } = log;
        let durable_bytes = durable.bytes_of(*name);
        let location = |offset| Some(format!("{} at offset {offset}", path.display()));
        if let Some(damage) = damage(*name, walk, durable_bytes) {
            if is_needed_no_more(directory, *name)? {
                tracing::warn!(log = ?path, offset = damage.at, reason = damage.detail, "the log is damaged, and all that it held is in tables");
                continue;
            }
            let lost = loss(&walked, at, damage.record, durable_bytes);
            let detail = format!("{}; to go on would lose {lost}; ecotone repair saves the rest", damage.detail);
            return Err(Error::Corrupt { location: location(damage.at), detail });
        }
        let Some(trouble) = &walk.trouble else { continue };
        match name {
            LogName::Wal(wal) => logs.torn.push(TornEnd {
                wal: *wal,
                path: path.clone(),
                offset: trouble.record,
                detail: trouble.detail,
                loss: loss(&walked, at, trouble.record, 0),
            }),
            LogName::Manifest(_) => tracing::warn!(
                manifest = ?path,
                offset = trouble.record,
                dropped_bytes = trouble.behind.bytes,
                reason = trouble.detail,
                "the end of the MANIFEST cannot be read, which was not known to be durable: as after a crash it is left out"
            ),
        }
    }
    if let Some(missing) = durable.newest_wal()
        && !walked.iter().any(|log| matches!(log.name, LogName::Wal(wal) if wal >= missing))
    {
        let path = directory.join(format!("{missing:06}.log"));
        let detail = format!(
            "it is missing, and no newer one is there; {} bytes of it were durable; ecotone repair saves the rest",
            durable.bytes_of(LogName::Wal(missing))
        );
        return Err(Error::Corrupt { location: Some(path.display().to_string()), detail });
    }
    Ok(logs)
}

/// Whether all that a WAL holds is in tables, by a sound MANIFEST: a kill between the record that
/// says so and the removal leaves it.
fn is_needed_no_more(directory: &Path, name: LogName) -> Result<bool> {
    match name {
        LogName::Manifest(_) => Ok(false),
        LogName::Wal(wal) => Ok(first_wal(directory)?.is_some_and(|first| wal < first)),
    }
}

/// The MANIFEST that is in force and the WALs, in the order of their numbers.
fn walk_all(directory: &Path) -> Result<Vec<Walked>> {
    let mut walked = Vec::new();
    for (name, path) in files(directory).map_err(|error| Error::io("list", directory, &error))? {
        let records = if matches!(name, LogName::Wal(_)) { Records::Writes } else { Records::Any };
        match File::open(&path).and_then(|log| walk(log, records)) {
            Ok(walk) => walked.push(Walked { name, path, walk }),
            // Removed meanwhile, by the process that writes the store.
            Err(error) if error.kind() == ErrorKind::NotFound => (),
            Err(error) => return Err(Error::io("read", &path, &error)),
        }
    }
    Ok(walked)
}

fn files(directory: &Path) -> io::Result<Vec<(LogName, PathBuf)>> {
    let current = fs::read_to_string(directory.join("CURRENT")).unwrap_or_default();
    let mut logs = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        let Some(name) = LogName::of(&path) else { continue };
        let is_in_force = matches!(name, LogName::Wal(_)) || entry.file_name().to_str() == Some(current.trim_end());
        if is_in_force && entry.file_type()?.is_file() {
            logs.push((name, path));
        }
    }
    logs.sort();
    Ok(logs)
}

/// Damage: where it is, where the record begins, and what it is.
#[derive(Debug, PartialEq, Eq)]
struct Damage {
    at: u64,
    record: u64,
    detail: String,
}

/// Whether a log is damaged whose first so many bytes are known to be durable.
fn damage(name: LogName, walk: &Walk, durable_bytes: u64) -> Option<Damage> {
    let is_before_its_durable_end = |trouble: &Trouble| {
        trouble.at + HEADER_BYTES as u64 <= durable_bytes && trouble.end.is_none_or(|end| end <= durable_bytes)
    };
    match &walk.trouble {
        Some(trouble) if trouble.is_damage => {
            Some(Damage { at: trouble.at, record: trouble.record, detail: trouble.detail.into() })
        }
        _ if walk.bytes < durable_bytes => {
            let (at, record) = walk.trouble.as_ref().map_or((walk.bytes, walk.bytes), |it| (it.at, it.record));
            Some(Damage {
                at,
                record,
                detail: format!("the file has {} bytes, and {durable_bytes} were durable", walk.bytes),
            })
        }
        Some(trouble) if is_before_its_durable_end(trouble) => Some(Damage {
            at: trouble.at,
            record: trouble.record,
            detail: format!("{}, and the first {durable_bytes} bytes of the file were durable", trouble.detail),
        }),
        // Nothing is written so, and no record that was written there is so short.
        None if walk.end + HEADER_BYTES as u64 <= durable_bytes => Some(Damage {
            at: walk.end,
            record: walk.end,
            detail: format!("nothing but zeros follows, and the first {durable_bytes} bytes of the file were durable"),
        }),
        Some(trouble) if durable_bytes == 0 && matches!(name, LogName::Manifest(_)) && trouble.behind.records > 0 => {
            let detail = format!("{}, and whole records stand behind it", trouble.detail);
            Some(Damage { at: trouble.at, record: trouble.record, detail })
        }
        _ => None,
    }
}

/// What is lost where of the log at `at`, of which so many bytes were durable, and of those behind
/// it, nothing is kept from `record` on.
fn loss(logs: &[Walked], at: usize, record: u64, durable_bytes: u64) -> Loss {
    let Walked { name, walk, .. } = &logs[at];
    let behind = walk.trouble.as_ref().map(|trouble| trouble.behind.clone()).unwrap_or_default();
    let before = logs[..at].iter().rev().find_map(|log| log.walk.writes.as_ref());
    let next = walk.writes.as_ref().or(before).map(|writes| writes.end);
    // RocksDB reads no further WAL where one lacks its end, unless the next goes on with the very
    // next write: then the store has been opened since, without what is torn. The MANIFEST stands
    // before them here.
    let behind_it = logs[at + 1..].iter().find_map(|log| log.walk.writes.as_ref()).map(|writes| writes.start);
    let goes_on = behind_it.is_some() && behind_it == next;
    let later = if matches!(name, LogName::Wal(_)) && !goes_on { &logs[at + 1..] } else { &[] };
    let last = later.iter().map(|log| &log.walk).chain([walk]).filter_map(last_write).max();
    Loss {
        bytes: behind.bytes.max(durable_bytes.saturating_sub(record))
            + later.iter().map(|log| log.walk.sound_bytes).sum::<u64>(),
        records: behind.records + later.iter().map(|log| log.walk.records).sum::<u64>(),
        writes: next.zip(last).map(|(next, last)| next..last).filter(|writes| !writes.is_empty()),
    }
}

/// Behind the number of the last write that can be seen in a WAL.
fn last_write(walk: &Walk) -> Option<u64> {
    let behind = walk.trouble.as_ref().and_then(|trouble| trouble.behind.next_write);
    walk.writes.as_ref().map(|writes| writes.end).max(behind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_walk::Behind;

    const WAL: LogName = LogName::Wal(4);

    fn ends_at(bytes: u64, trouble: Trouble) -> Walk {
        Walk {
            bytes,
            end: trouble.at,
            sound_bytes: trouble.record,
            writes: Some(1..9),
            trouble: Some(trouble),
            ..Walk::default()
        }
    }

    fn trouble(record: u64, at: u64, end: Option<u64>) -> Trouble {
        let behind = Behind { bytes: 500, records: 3, next_write: Some(12) };
        Trouble { record, at, end, detail: "it", is_damage: false, behind }
    }

    fn is_damage(name: LogName, walk: &Walk, durable_bytes: u64) -> bool {
        damage(name, walk, durable_bytes).is_some()
    }

    #[test]
    fn what_begins_before_the_durable_end_is_damaged_unless_it_may_end_behind_it() {
        let unknown = ends_at(4000, trouble(1000, 1000, None));
        for (durable_bytes, expected) in [(0, false), (1000, false), (1006, false), (1007, true), (4000, true)] {
            assert_eq!(is_damage(WAL, &unknown, durable_bytes), expected, "{durable_bytes}");
        }
        // It was being appended while others were synced.
        let torn = ends_at(4000, trouble(1000, 1000, Some(1500)));
        for (durable_bytes, expected) in [(1000, false), (1100, false), (1499, false), (1500, true), (1501, true)] {
            assert_eq!(is_damage(WAL, &torn, durable_bytes), expected, "{durable_bytes}");
        }
        // Of a record of several parts an earlier one is whole.
        let part = ends_at(90_000, trouble(1000, 65_536, Some(65_600)));
        assert!(!is_damage(WAL, &part, 65_536) && !is_damage(WAL, &part, 65_599) && is_damage(WAL, &part, 65_600));
    }

    #[test]
    fn a_file_that_is_shorter_than_what_was_durable_is_damaged_wherever_it_ends() {
        let whole = Walk { bytes: 1000, end: 1000, sound_bytes: 1000, ..Walk::default() };
        assert!(!is_damage(WAL, &whole, 1000) && is_damage(WAL, &whole, 1001));
        let torn = ends_at(1000, trouble(900, 900, Some(5000)));
        assert!(!is_damage(WAL, &torn, 1000) && is_damage(WAL, &torn, 1001));
    }

    #[test]
    fn zeros_up_to_the_end_of_the_file_are_damage_where_records_were_durable() {
        let zeros = Walk { bytes: 4096, end: 1000, sound_bytes: 1000, ..Walk::default() };
        for (durable_bytes, expected) in [(0, false), (1000, false), (1006, false), (1007, true), (4096, true)] {
            assert_eq!(is_damage(WAL, &zeros, durable_bytes), expected, "{durable_bytes}");
        }
    }

    #[test]
    fn without_a_durable_end_only_a_manifest_is_damaged_by_what_stands_behind() {
        let hole = ends_at(4000, trouble(1000, 1000, None));
        assert!(is_damage(LogName::Manifest(5), &hole, 0) && !is_damage(LogName::Manifest(5), &hole, 1000));
        assert!(!is_damage(WAL, &hole, 0));
        let mut last = trouble(1000, 1000, None);
        last.behind.records = 0;
        assert!(!is_damage(LogName::Manifest(5), &ends_at(4000, last), 0));
    }

    #[test]
    fn what_is_lost_is_in_later_wals_too() {
        let log = |name, walk| Walked { name, path: PathBuf::new(), walk };
        let sound = |writes: Range<u64>| Walk {
            bytes: 300,
            end: 300,
            sound_bytes: 300,
            records: writes.end - writes.start,
            writes: Some(writes),
            trouble: None,
        };
        let logs = [
            log(LogName::Manifest(5), ends_at(4000, trouble(100, 100, None))),
            log(LogName::Wal(6), Walk { writes: Some(5..9), ..ends_at(2000, trouble(1000, 1000, None)) }),
            log(LogName::Wal(7), sound(12..20)),
            log(LogName::Wal(8), sound(20..21)),
        ];
        assert_eq!(loss(&logs, 1, 1000, 0), Loss { bytes: 1100, records: 12, writes: Some(9..21) });
        // It ends before that.
        assert_eq!(loss(&logs, 3, 300, 350), Loss { bytes: 50, records: 0, writes: None });
        assert_eq!(loss(&logs, 0, 100, 0).records, 3);
        // The store was opened without what is torn, and written to.
        let gone_on = [
            log(LogName::Wal(6), Walk { writes: Some(5..9), ..ends_at(2000, trouble(1000, 1000, None)) }),
            log(LogName::Wal(7), sound(9..20)),
        ];
        assert_eq!(loss(&gone_on, 0, 1000, 0), Loss { bytes: 500, records: 3, writes: Some(9..12) });
        assert_eq!(
            loss(&logs, 1, 1000, 0).to_string(),
            "1100 bytes, 12 whole records among them, with 12 writes: 9 to 20"
        );
    }
}
