//! Writes the newest version of each key to the new store.

use std::path::Path;

use ecotone_rocks_sys::salvage::EntryKind;
use ecotone_valuelog::ValueLog;
use ecotone_valuelog::segment::InFlight;
use rust_rocksdb::WriteBatch;

use super::merge::{Merge, Noticed, Version};
use super::report::{LostTable, LostValue, RepairReport, Repairing, shown};
use super::tables::Tables;
use crate::header::{Header, HeaderError, Kind};
use crate::options::Separation;
use crate::{DedupOptions, Durability, ExtensionThreshold, OpenMode, Result, Store, StoreOptions};

/// Bytes that are written at once, one entry at least.
const BATCH_BYTES: usize = 1024 * 1024;

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
    // Values are separated in the new store if they did in the old one, whatever their lengths; so
    // no length is one by itself.
    let separation = values.map(|_| Separation::from_bytes(u32::MAX));
    // Nothing but the whole of it counts, and that is synced.
    // There is nothing to be found twice.
    let dedup = DedupOptions { threshold: ExtensionThreshold::Off, ..DedupOptions::default() };
    let options = StoreOptions { separation, dedup, durability: Durability::None, ..StoreOptions::default() };
    let store = Store::open(directory, OpenMode::Create, options)?;
    let filled = fill(&store, merge, tables, values, leaves_out, report, progress);
    let closed = store.close();
    // Why it could not be filled may be why it cannot be closed, and nobody keeps it then.
    filled.and(closed)
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
    let mut writer = Writer { store, values, batch: WriteBatch::default(), in_flight: Vec::new(), scratch: Vec::new() };
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
    writer.write()?;
    // Leaves nothing to replay, and has every value synced.
    store.flush(true)
}

/// Keeps what was noticed of a table; `lost` are those that are not at their ends.
fn note(noticed: Noticed, tables: &mut Tables, lost: &mut Vec<(u64, LostTable)>, report: &mut RepairReport) {
    match noticed {
        Noticed::Gap { table, gap } => {
            let Some(known) = tables.known.get(&table) else { return };
            let from = Some(gap.after).filter(|after| !after.is_empty());
            match lost.iter_mut().find(|(number, _)| *number == table) {
                Some((_, lost)) => {
                    lost.gaps += 1;
                    lost.to = known.lost(String::new(), &None, &gap.to, None, 0).to;
                }
                None => lost.push((table, known.lost(gap.detail, &from, &gap.to, None, 1))),
            }
            tables.doubt.add(from, false, gap.to, known.newest);
        }
        Noticed::End { table, missing } => {
            let found = lost.iter().position(|(number, _)| *number == table).map(|at| lost.swap_remove(at).1);
            let found = found.or_else(|| {
                let reason = "it has fewer entries than it says".into();
                let known = tables.known.get(&table).filter(|_| missing > 0)?;
                Some(known.lost(reason, &None, &None, None, 1))
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
    store: &'w Store,
    /// Those of the damaged store.
    values: Option<&'w ValueLog>,
    batch: WriteBatch,
    in_flight: Vec<InFlight>,
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
            // Of these nobody knows whether they are the same.
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
        let bytes = match (header.kind, self.values, &self.store.values) {
            (Kind::Inline, _, _) => {
                self.batch.put_cf(&self.store.family, key, stored);
                stored.len() - header.bytes
            }
            (Kind::Separated(pointer), Some(from), Some(to)) => {
                let value = match from.read(key, pointer, &mut self.scratch) {
                    Ok(value) => value,
                    Err(ecotone_valuelog::Error::Corrupt { location, detail }) => {
                        return Ok(Err((location.unwrap_or_default(), detail)));
                    }
                    Err(error) => return Ok(Err((String::new(), error.to_string()))),
                };
                let value = &self.scratch[value];
                let mut pointing = Vec::new();
                self.in_flight.push(to.separate(key, &stored[..header.bytes], value, &mut pointing)?);
                self.batch.put_cf(&self.store.family, key, pointing);
                value.len()
            }
            (Kind::Separated(_), _, _) => return Ok(Err((String::new(), HeaderError::NoValueLog.to_string()))),
        };
        if self.batch.size_in_bytes() >= BATCH_BYTES {
            self.write()?;
        }
        Ok(Ok((key.len() + bytes) as u64))
    }

    /// Writes what is in the batch.
    fn write(&mut self) -> Result<()> {
        self.store.db.write_opt(&self.batch, &self.store.write_unsynced).map_err(|error| self.store.failure(&error))?;
        self.batch.clear();
        // Their pointers are in RocksDB.
        self.in_flight.clear();
        Ok(())
    }
}
