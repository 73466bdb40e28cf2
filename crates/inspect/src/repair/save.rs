//! Writes the newest version of each key to the new store.

use std::path::Path;

use ecotone_engine::header::{Header, HeaderError, Kind};
use ecotone_engine::offline::{EntryWriter, compress_values};
use ecotone_engine::{
    CompressionMode, DedupOptions, Durability, ExtensionThreshold, OpenMode, Result, Separation, Store, StoreSettings,
};
use ecotone_rocks::salvage::EntryKind;
use ecotone_valuelog::ValueLog;
use ecotone_valuelog::segment_header::SegmentFormat;

use super::merge::{Merge, Noticed, Version};
use super::report::{LostTable, LostValue, RepairReport, Repairing, shown};
use super::tables::Tables;

/// Entries between two calls of the progress.
const PROGRESS_ENTRIES: u64 = 10_000;

/// Makes the new store in `directory`.
pub(super) fn save(
    directory: &Path,
    merge: Merge,
    tables: &mut Tables,
    values: Option<&ValueLog>,
    leaves_out: impl FnMut(&[u8]) -> bool,
    report: &mut RepairReport,
    progress: &mut impl FnMut(Repairing),
) -> Result<()> {
    // A value is separated in the new store if it was in the old one, whatever its length.
    let separation = values.map(|_| Separation::from_bytes(u32::MAX));
    // Only the whole of it counts, and that is synced. No key is written twice.
    let dedup = DedupOptions { threshold: ExtensionThreshold::Off, ..DedupOptions::default() };
    // Else the new store might not fit where the old one did.
    let compresses = values.is_some_and(has_compressed);
    let value_compression = if compresses { CompressionMode::Zstd } else { CompressionMode::None };
    let durability = Durability::None;
    let options = StoreSettings { separation, dedup, durability, value_compression, ..StoreSettings::default() };
    let store = Store::open(directory, OpenMode::Create, options)?;
    if compresses {
        compress_values(&store, values.and_then(newest_dictionary));
    }
    let filled = fill(&store, merge, tables, values, leaves_out, report, progress);
    let closed = store.close();
    // What kept it from being filled may keep it from being closed; it is removed then.
    filled.and(closed)
}

/// Whether the log is one of compressed values: by its segments, since the file that says so of the
/// store may be what is damaged.
fn has_compressed(values: &ValueLog) -> bool {
    values.segments().iter().any(|segment| match segment.format() {
        Ok(format) => matches!(format, SegmentFormat::Packed(_)),
        Err(_) => matches!(values.dictionary_in(segment), Ok(Some(_))),
    })
}

/// The content of the newest dictionary that can be read, which the newest values were compressed
/// with. Without one the new store trains one from the first values that it is given.
fn newest_dictionary(values: &ValueLog) -> Option<Vec<u8>> {
    let segments = values.segments();
    let newest = segments.iter().rev().find_map(|segment| values.dictionary_in(segment).ok()?)?;
    Some(newest.content().to_vec())
}

fn fill(
    store: &Store,
    mut merge: Merge,
    tables: &mut Tables,
    values: Option<&ValueLog>,
    mut leaves_out: impl FnMut(&[u8]) -> bool,
    report: &mut RepairReport,
    progress: &mut impl FnMut(Repairing),
) -> Result<()> {
    let mut writer = Writer { entries: EntryWriter::new(store), values, scratch: Vec::new() };
    let mut versions = Vec::new();
    let mut lost = Vec::new();
    loop {
        merge.next_key(&mut versions)?;
        for noticed in merge.take_noticed() {
            note(noticed, tables, &mut lost, report);
        }
        let Some(newest) = versions.first() else { break };
        if newest.kind == EntryKind::Delete || tables.tombstones.shadow(newest) || leaves_out(&newest.key) {
            continue;
        }
        let doubtful = tables.doubt.covers(&newest.key, newest.sequence);
        match writer.save_one_of(&versions)? {
            Ok(bytes) => {
                report.saved_entries += 1;
                report.saved_bytes += bytes;
                report.doubtful_entries += u64::from(doubtful);
                if report.saved_entries.is_multiple_of(PROGRESS_ENTRIES) {
                    progress(Repairing::Entries { done: report.saved_entries });
                }
            }
            Err((place, reason)) => report.lost_value(LostValue { key: shown(&newest.key), place, reason }),
        }
    }
    writer.entries.write()?;
    // Leaves nothing to replay, and has every value synced.
    store.flush(true)
}

/// Keeps what was noticed of a table; `lost` are those that are not at their ends.
fn note(noticed: Noticed, tables: &mut Tables, lost: &mut Vec<(u64, LostTable)>, report: &mut RepairReport) {
    match noticed {
        Noticed::Gap { table, gap } => {
            let Some(known) = tables.known.get(&table) else { return };
            let from = Some(gap.after).filter(|after| !after.is_empty());
            let to = gap.to.as_ref().or(known.to.as_ref()).map(|key| shown(key));
            match lost.iter_mut().find(|(number, _)| *number == table) {
                Some((_, lost)) => (lost.gaps, lost.to) = (lost.gaps + 1, to),
                None => {
                    let from = from.as_ref().max(known.from.as_ref()).map(|key| shown(key));
                    lost.push((table, LostTable { from, to, ..known.lost(gap.detail) }));
                }
            }
            tables.doubt.add(from, false, gap.to, known.newest);
        }
        Noticed::End { table, missing } => {
            let found = lost.iter().position(|(number, _)| *number == table).map(|at| lost.swap_remove(at).1);
            let found = found.or_else(|| {
                let reason = "it has fewer entries than it says".into();
                Some(tables.known.get(&table).filter(|_| missing > 0)?.lost(reason))
            });
            if let Some(found) = found {
                report.lost_table(LostTable { entries: Some(missing), ..found });
            }
        }
    }
}

/// Where a value is that cannot be read, and why.
type Lost = (String, String);

struct Writer<'w> {
    entries: EntryWriter<'w>,
    /// Those of the damaged store.
    values: Option<&'w ValueLog>,
    scratch: Vec<u8>,
}

impl Writer<'_> {
    /// Saves one of versions that are the same: a value may have been copied before the table that
    /// named it was given up.
    fn save_one_of(&mut self, versions: &[Version]) -> Result<Result<u64, Lost>> {
        let mut first_lost = None;
        for version in versions {
            match self.save(version)? {
                Ok(bytes) => return Ok(Ok(bytes)),
                Err(lost) => drop(first_lost.get_or_insert(lost)),
            }
            // Without an age they may differ.
            if version.sequence == 0 {
                break;
            }
        }
        Ok(Err(first_lost.unwrap_or_default()))
    }

    fn save(&mut self, version: &Version) -> Result<Result<u64, Lost>> {
        let Version { key, value: stored, .. } = version;
        if version.kind != EntryKind::Put {
            return Ok(Err((String::new(), "it is of a kind that no store writes".into())));
        }
        let header = match Header::decode(stored) {
            Ok(header) => header,
            Err(reason) => return Ok(Err((String::new(), reason.to_string()))),
        };
        let bytes = match (header.kind, self.values) {
            (Kind::Inline, _) => {
                self.entries.put(key, stored)?;
                stored.len() - header.bytes
            }
            (Kind::Separated(pointer), Some(from)) => {
                let value = match from.read(key, pointer, &mut self.scratch) {
                    Ok(value) => &self.scratch[value],
                    Err(ecotone_valuelog::Error::Corrupt { location, detail }) => {
                        return Ok(Err((location.unwrap_or_default(), detail)));
                    }
                    Err(error) => return Ok(Err((String::new(), error.to_string()))),
                };
                self.entries.put_separated(key, &stored[..header.bytes], value)?;
                value.len()
            }
            (Kind::Separated(_), None) => return Ok(Err((String::new(), HeaderError::NoValueLog.to_string()))),
        };
        Ok(Ok((key.len() + bytes) as u64))
    }
}
