//! The tables of a damaged store: each is opened before any is merged.

use std::collections::BTreeMap;

use ecotone_engine::DATA_FAMILY;
use ecotone_engine::offline::REFERENCES_PROPERTY;
use ecotone_engine::offline::survey::{Found, ManifestState, Survey};
use ecotone_rocks::salvage::{ManifestTable, RangeDeletion, SalvagedTable, TableDescription};

use super::merge::TableSource;
use super::ranges::{Bounds, Doubt, Tombstones};
use super::report::{LostTable, RepairReport, Repairing, shown};

/// A table that the MANIFEST lists is taken before one that it does not.
pub(super) const LISTED: u64 = 1 << 63;

/// All tables, as far as they can be read.
#[derive(Default)]
pub(super) struct Tables {
    /// Those that can be read, at least in part.
    pub(super) sources: Vec<TableSource>,
    /// Those of them that a sound MANIFEST does not name, by their numbers: what they delete is
    /// added to the tombstones only if they [count](Self::count).
    pub(super) unlisted: BTreeMap<u64, Unlisted>,
    pub(super) deleted_ranges: Vec<RangeDeletion>,
    pub(super) tombstones: Tombstones,
    pub(super) doubt: Doubt,
    /// For reports of parts that turn out to be lost.
    pub(super) known: BTreeMap<u64, KnownTable>,
    /// Whether one counts references, as tables of a store with a value log do.
    pub(super) counts_references: bool,
    /// Whether one says that it is of the family that holds all data.
    pub(super) is_ours: bool,
}

/// What a table deletes.
#[derive(Default)]
pub(super) struct Unlisted {
    pub(super) deleted_ranges: Vec<RangeDeletion>,
    bounds: Option<Bounds>,
    /// Some of it cannot be read.
    pub(super) is_damaged: bool,
}

/// What MANIFEST and properties say of one table.
pub(super) struct KnownTable {
    pub(super) name: String,
    pub(super) from: Option<Vec<u8>>,
    pub(super) to: Option<Vec<u8>>,
    /// Nothing in it is newer.
    pub(super) newest: u64,
}

/// Opens every table: which can be read, which ranges it deletes, where its keys begin.
pub(super) fn open_tables(survey: &Survey, report: &mut RepairReport, progress: &mut impl FnMut(Repairing)) -> Tables {
    let mut tables = Tables::default();
    for (done, file) in survey.tables.iter().enumerate() {
        progress(Repairing::Table { done, of: survey.tables.len() });
        let listed = survey.listed.get(&file.number);
        match SalvagedTable::open(&file.path) {
            Ok(table) => tables.add(file, table.description(), listed, survey.is_sound(), report),
            // An unfinished output of a process that died: its contents are still in the inputs.
            Err(error) if listed.is_none() && survey.is_sound() => {
                report.notes.push(format!("{} is no part of the store and cannot be read: {error}", file.name()));
            }
            Err(error) => tables.lose(&file.name(), file.bytes, listed, error.to_string(), report),
        }
    }
    for (number, listed) in &survey.listed {
        if survey.tables.binary_search_by_key(number, |table| table.number).is_err() {
            let reason = match survey.manifest {
                ManifestState::Sound => "it is missing",
                _ => "it is missing; the part of the MANIFEST that is lost may have said that it is no longer needed",
            };
            tables.lose(&format!("{number:06}.sst"), listed.bytes, Some(listed), reason.into(), report);
        }
    }
    estimate_entries(&tables.sources, report);
    tables
}

impl Tables {
    /// A table that the MANIFEST does not name is a part of the store: what it deletes is deleted.
    pub(super) fn count(&mut self, number: u64) {
        let Some(Unlisted { deleted_ranges, bounds, .. }) = self.unlisted.remove(&number) else { return };
        for range in deleted_ranges {
            self.tombstones.add(range, bounds.clone());
        }
    }

    /// Adds what WALs delete, and is ready for the merge then.
    pub(super) fn add_deleted_ranges(&mut self, ranges: Vec<RangeDeletion>) {
        for range in ranges {
            // A memtable is above all tables: what has no age is older.
            let everywhere = Bounds { from: range.from.clone(), to: range.to.clone(), ends_before_to: true };
            self.tombstones.add(range, Some(everywhere));
        }
        self.tombstones.begin();
    }

    fn add(
        &mut self,
        file: &Found,
        description: &TableDescription,
        listed: Option<&ManifestTable>,
        is_manifest_sound: bool,
        report: &mut RepairReport,
    ) {
        if !description.column_family.is_empty() && description.column_family != DATA_FAMILY {
            return;
        }
        self.is_ours |= description.column_family == DATA_FAMILY;
        self.counts_references |= description.collected.contains_key(REFERENCES_PROPERTY);
        report.tables += 1;
        report.table_bytes += file.bytes;
        report.unlisted_tables += u64::from(listed.is_none());
        let bounds = listed.map(bounds_of).or_else(|| {
            let (from, to) = (description.first_key.clone()?, description.last_key.clone()?);
            Some(Bounds { from, to, ends_before_to: false })
        });
        let lost_ranges = description.range_deletions.saturating_sub(description.range_deletions_read);
        let deleted_ranges = description.deleted_ranges.clone();
        if listed.is_none() && is_manifest_sound {
            self.unlisted.insert(file.number, Unlisted { deleted_ranges, bounds, is_damaged: lost_ranges > 0 });
        } else {
            for range in deleted_ranges {
                self.deleted_ranges.push(range.clone());
                self.tombstones.add(range, bounds.clone());
            }
        }
        let known = KnownTable {
            name: file.name(),
            from: listed.map(|listed| listed.smallest.clone()).or_else(|| description.first_key.clone()),
            to: listed.map(|listed| listed.largest.clone()).or_else(|| description.last_key.clone()),
            // Without the MANIFEST that of a lost deletion of a range is not known.
            newest: listed.map_or(description.largest_sequence, |listed| listed.largest_sequence),
        };
        if lost_ranges > 0 {
            let reason = "the block with its deletions of ranges is damaged: what they deleted is back".into();
            report.lost_table(LostTable { entries: Some(lost_ranges), ..known.lost(reason) });
            let newest = listed.map_or(u64::MAX, |listed| listed.largest_sequence);
            let (from, to) = listed.map(|listed| (listed.smallest.clone(), listed.largest.clone())).unzip();
            self.doubt.add(from, true, to, newest);
        }
        if description.last_key.is_some() {
            self.sources.push(TableSource {
                number: file.number,
                path: file.path.clone(),
                first_key: known.from.clone().unwrap_or_default(),
                entries: description.entries.saturating_sub(description.range_deletions),
                precedence: file.number | if listed.is_some() { LISTED } else { 0 },
            });
        }
        self.known.insert(file.number, known);
    }

    /// A table of which nothing can be read.
    fn lose(
        &mut self,
        name: &str,
        bytes: u64,
        listed: Option<&ManifestTable>,
        reason: String,
        report: &mut RepairReport,
    ) {
        let known = KnownTable {
            name: name.to_owned(),
            from: listed.map(|listed| listed.smallest.clone()),
            to: listed.map(|listed| listed.largest.clone()),
            newest: listed.map_or(u64::MAX, |listed| listed.largest_sequence),
        };
        // Its bytes for now; see `estimate_entries`.
        report.lost_table(LostTable { entries: Some(bytes), gaps: 0, ..known.lost(reason) });
        self.doubt.add(known.from, true, known.to, known.newest);
    }
}

impl KnownTable {
    /// The report of a part that is lost, anywhere in the table.
    pub(super) fn lost(&self, reason: String) -> LostTable {
        let [from, to] = [&self.from, &self.to].map(|key| key.as_deref().map(shown));
        LostTable { table: self.name.clone(), reason, from, to, entries: None, gaps: 1 }
    }
}

fn bounds_of(listed: &ManifestTable) -> Bounds {
    Bounds { from: listed.smallest.clone(), to: listed.largest.clone(), ends_before_to: listed.ends_before_largest }
}

/// Whole tables that are lost hold about as many entries for each byte as those that can be read.
fn estimate_entries(sources: &[TableSource], report: &mut RepairReport) {
    let entries: u64 = sources.iter().map(|source| source.entries).sum();
    let read_bytes = report.table_bytes;
    for lost in report.lost_tables.iter_mut().filter(|lost| lost.gaps == 0) {
        let estimate = |bytes: u64| (bytes as f64 * entries as f64 / read_bytes as f64).ceil() as u64;
        lost.entries = lost.entries.filter(|_| entries > 0 && read_bytes > 0).map(estimate);
    }
}
