//! What the tables of a store name in its value log, by their entries: all versions that are in
//! them, those that newer ones shadow as well.
//!
//! Segments are removed by what tables say of themselves (see [`crate::gc::removal`]). So a table
//! that says less than its entries name gives values away, and one that says more keeps garbage.
//! And as a segment stays while a live table refers to it, every pointer in a live table leads into
//! a segment, also where nobody can read that version any more.
//!
//! A table that says nothing may name anything, which keeps all segments: that is no fault of its
//! own, and `ecotone space` lists it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use ecotone_rocks_sys::properties::{EntryKind, TableCollector};
use ecotone_rocks_sys::tables::collected_properties;
use ecotone_rocks_sys::verify::{ExpectedTable, VerifyError, verify_and_recount_table};
use ecotone_valuelog::ValueLog;
use ecotone_valuelog::pointer::{Pointer, SegmentMap, SegmentNumber};
use ecotone_valuelog::segment::file_name;
use ecotone_valuelog::segment_header::SEGMENT_HEADER_BYTES;
use parking_lot::Mutex;

use super::findings::{FindingKind, VerifyReport};
use crate::error::Printable;
use crate::gc::references::{PROPERTY, decode};
use crate::header::{Header, Kind};
use crate::identity;
use crate::{Error, Result, Store};

/// Segments, and tables, that one finding lists; it counts the others.
const MAX_LISTED: usize = 3;

/// What all tables refer to, as far as they have been checked.
pub(super) struct Named {
    lengths: Arc<SegmentMap<u64>>,
    /// What each table says of itself, by its number; none for one that says nothing.
    properties: HashMap<u64, Vec<u8>>,
    plain_tables_below: u64,
    /// By segment; of a table that cannot be read, what it says.
    segments: BTreeMap<SegmentNumber, NamedSegment>,
}

#[derive(Default)]
struct NamedSegment {
    bytes: u64,
    /// The first tables that refer to it, and how many others do.
    tables: Vec<String>,
    other_tables: usize,
}

impl Named {
    /// Nothing yet of the tables of `store`, whose value log is `log`.
    pub(super) fn begin(store: &Store, log: &ValueLog) -> Result<Self> {
        // Somebody may have appended to it since it was listed, and only then written the tables
        // that were found.
        let length = |path: &Path, listed: u64| path.metadata().map_or(listed, |metadata| metadata.len().max(listed));
        let segments = log.segments().into_iter();
        let lengths = segments.map(|segment| (segment.number(), length(segment.path(), segment.bytes()))).collect();
        let properties = collected_properties(&store.db, &store.family, PROPERTY)
            .map_err(|error| Error::Rocks { detail: error.to_string() })?;
        Ok(Self {
            lengths: Arc::new(lengths),
            properties: properties
                .into_iter()
                .filter_map(|mut table| Some((table.file_number, table.properties.remove(PROPERTY)?)))
                .collect(),
            plain_tables_below: identity::read(store.directory())?.plain_tables_below,
            segments: BTreeMap::new(),
        })
    }

    /// Whether a table refers to the segment.
    pub(super) fn has(&self, segment: SegmentNumber) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Checks the table at `path` as [`ecotone_rocks_sys::verify::verify_table`] does, and what it
    /// names, in one reading.
    pub(super) fn check_table(
        &mut self,
        number: u64,
        path: &Path,
        expected: &ExpectedTable,
        report: &mut VerifyReport,
    ) -> Result<(), VerifyError> {
        let counted = Arc::new(Mutex::new(None));
        let collector =
            Collector { lengths: self.lengths.clone(), of_table: OfTable::default(), counted: counted.clone() };
        let verified = verify_and_recount_table(path, expected, Box::new(collector), &[]);
        let property = self.properties.get(&number);
        let named = match counted.lock().take() {
            Some(OfTable { bytes, dangling }) => {
                let bytes: BTreeMap<_, _> = bytes.into_iter().collect();
                if let Some((kind, detail)) = compare(property, number < self.plain_tables_below, &bytes) {
                    report.found(kind, path.display(), detail);
                }
                for (segment, Dangling { entries, key, first }) in dangling {
                    let ends = self.lengths.get(&segment).copied().unwrap_or(0);
                    let detail = format!(
                        "{entries} of its entries name what segment {segment} of {ends} bytes does not have; the first is key {}, with \
                         {} bytes at offset {}",
                        Printable(&key),
                        first.record_bytes(key.len()),
                        first.offset
                    );
                    report.found(FindingKind::DanglingPointer, path.display(), detail);
                }
                bytes
            }
            None => property.and_then(|property| decode(property)).unwrap_or_default().into_iter().collect(),
        };
        let name = || path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        for (segment, bytes) in named {
            let segment = self.segments.entry(segment).or_default();
            segment.bytes = segment.bytes.saturating_add(bytes);
            if segment.tables.len() < MAX_LISTED { segment.tables.push(name()) } else { segment.other_tables += 1 }
        }
        verified.map(drop)
    }

    /// All tables are checked: whether the segments are there, and can be as long as what is named
    /// of them.
    pub(super) fn check_segments(&self, log: &ValueLog, report: &mut VerifyReport) {
        for (number, NamedSegment { bytes, tables, other_tables }) in &self.segments {
            let tables = listed(tables.join(", "), *other_tables);
            let detail = match self.lengths.get(number) {
                None => format!("it is missing; {bytes} bytes of it are named by {tables}"),
                Some(length) if length < bytes => format!("{bytes} bytes of it are named by {tables}, it has {length}"),
                Some(_) => continue,
            };
            let place = log.directory().join(file_name(*number));
            report.found(FindingKind::DanglingPointer, place.display(), detail);
        }
    }
}

/// Compares what a table says of the segments that it names with what its entries name.
fn compare(
    property: Option<&Vec<u8>>,
    is_plain: bool,
    counted: &BTreeMap<SegmentNumber, u64>,
) -> Option<(FindingKind, String)> {
    let says: BTreeMap<_, _> = match property.map(|property| decode(property)) {
        Some(Some(items)) => items.into_iter().collect(),
        Some(None) => {
            return Some((FindingKind::UnderstatedReferences, format!("its property {PROPERTY} cannot be read")));
        }
        None if is_plain => BTreeMap::new(),
        None => return None,
    };
    let segments: BTreeSet<_> = says.keys().chain(counted.keys()).collect();
    let bytes = |of: &BTreeMap<SegmentNumber, u64>, segment| of.get(segment).copied().unwrap_or(0);
    let (mut shown, mut others, mut understates) = (Vec::new(), 0, false);
    for segment in segments {
        let (said, named) = (bytes(&says, segment), bytes(counted, segment));
        understates |= said < named;
        match said == named {
            true => (),
            false if shown.len() < MAX_LISTED => {
                shown.push(format!("{named} bytes of segment {segment}, it says {said}"))
            }
            false => others += 1,
        }
    }
    if shown.is_empty() {
        return None;
    }
    let (kind, consequence) = if understates {
        (FindingKind::UnderstatedReferences, "segments may be removed while it names them")
    } else {
        (FindingKind::OverstatedReferences, "segments may be kept that nothing refers to")
    };
    Some((kind, format!("its entries name {}: {consequence}", listed(shown.join("; "), others))))
}

fn listed(shown: String, others: usize) -> String {
    if others == 0 { shown } else { format!("{shown} and {others} more") }
}

/// What one table refers to.
#[derive(Default)]
struct OfTable {
    bytes: SegmentMap<u64>,
    /// By segments that are there, and too short.
    dangling: BTreeMap<SegmentNumber, Dangling>,
}

struct Dangling {
    entries: u64,
    /// Of the first one.
    key: Vec<u8>,
    first: Pointer,
}

/// Sees each entry of a table, and leaves what they name where its reader finds it, once all have
/// come.
struct Collector {
    lengths: Arc<SegmentMap<u64>>,
    of_table: OfTable,
    counted: Arc<Mutex<Option<OfTable>>>,
}

impl TableCollector for Collector {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        // A value that cannot be decoded names nothing, here as where the table was written.
        let (EntryKind::Put, Ok(Header { kind: Kind::Separated(pointer), .. })) = (kind, Header::decode(value)) else {
            return;
        };
        *self.of_table.bytes.entry(pointer.segment).or_default() += pointer.record_bytes(key.len()) as u64;
        // A segment that is missing is one finding, whoever names it.
        let Some(length) = self.lengths.get(&pointer.segment) else { return };
        if (pointer.offset as usize) < SEGMENT_HEADER_BYTES || pointer.end(key.len()) > *length {
            let first = || Dangling { entries: 0, key: key.to_vec(), first: pointer };
            self.of_table.dangling.entry(pointer.segment).or_insert_with(first).entries += 1;
        }
    }

    /// Nothing that the table would have to say of itself: what it does say is compared by
    /// [`compare`].
    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        *self.counted.lock() = Some(std::mem::take(&mut self.of_table));
        Vec::new()
    }
}
