//! The references of tables into the value log, counted from their entries: all versions that are
//! in them, shadowed ones included.
//!
//! Segments are removed by the references that tables state of themselves (`engine`,
//! `gc/removal.rs`). So a table that states fewer than its entries have gives values away, and one
//! that states more keeps garbage. And as a segment stays while a live table references it, every
//! pointer in a live table leads into a segment, also where that version can no longer be read.
//!
//! A table that states nothing may reference anything, which keeps all segments: that is no fault
//! of its own, and `ecotone space` lists it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use ecotone_engine::header::{Header, Kind};
use ecotone_engine::offline::{
    Printable, REFERENCES_PROPERTY, decode_references, plain_tables_below, table_properties,
};
use ecotone_engine::{Result, Store};
use ecotone_rocks::properties::{EntryKind, TableCollector};
use ecotone_rocks::verify::{ExpectedTable, VerifyError, verify_and_recount_table};
use ecotone_valuelog::ValueLog;
use ecotone_valuelog::pointer::{RecordPointer, SegmentMap, SegmentNumber, SegmentSet};
use ecotone_valuelog::segment::file_name;
use ecotone_valuelog::segment_header::SEGMENT_HEADER_BYTES;
use parking_lot::Mutex;

use crate::findings::{FindingKind, VerifyReport};

/// Segments, and tables, that one finding lists; it counts the others.
const MAX_LISTED: usize = 3;

/// The references of all tables that have been checked.
pub(crate) struct CountedReferences {
    lengths: Arc<SegmentMap<u64>>,
    /// What each table states of itself, by its number.
    stated: HashMap<u64, Option<Vec<u8>>>,
    plain_tables_below: u64,
    /// By segment; those of a table that cannot be read as it states them.
    segments: BTreeMap<SegmentNumber, SegmentReferences>,
}

#[derive(Default)]
struct SegmentReferences {
    bytes: u64,
    /// Whether values among them are compressed.
    are_compressed: bool,
    /// The first tables that reference it, and how many others do.
    tables: Vec<String>,
    other_tables: usize,
}

impl CountedReferences {
    /// Nothing yet of the tables of `store`, whose value log is `log`.
    pub(crate) fn begin(store: &Store, log: &ValueLog) -> Result<Self> {
        // A writer may have appended to it since it was listed, and only then written the tables
        // that were found.
        let length = |path: &Path, listed: u64| path.metadata().map_or(listed, |metadata| metadata.len().max(listed));
        let segments = log.segments().into_iter();
        let lengths = segments.map(|segment| (segment.number(), length(segment.path(), segment.bytes()))).collect();
        Ok(Self {
            lengths: Arc::new(lengths),
            stated: table_properties(store, REFERENCES_PROPERTY)?,
            plain_tables_below: plain_tables_below(store)?,
            segments: BTreeMap::new(),
        })
    }

    /// Whether a table references the segment.
    pub(crate) fn has(&self, segment: SegmentNumber) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Whether a table references a compressed value of the segment.
    pub(crate) fn has_compressed(&self, segment: SegmentNumber) -> bool {
        self.segments.get(&segment).is_some_and(|segment| segment.are_compressed)
    }

    /// Checks the table at `path` as [`ecotone_rocks::verify::verify_table`] does, and its
    /// references, in one reading.
    pub(crate) fn check_table(
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
        let stated = self.stated.get(&number).and_then(Option::as_deref);
        let referenced = match counted.lock().take() {
            Some(OfTable { bytes, compressed, dangling }) => {
                for segment in compressed {
                    self.segments.entry(segment).or_default().are_compressed = true;
                }
                let bytes: BTreeMap<_, _> = bytes.into_iter().collect();
                if let Some((kind, detail)) = compare(stated, number < self.plain_tables_below, &bytes) {
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
            None => stated.and_then(decode_references).unwrap_or_default().into_iter().collect(),
        };
        let name = || path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        for (segment, bytes) in referenced {
            let segment = self.segments.entry(segment).or_default();
            segment.bytes = segment.bytes.saturating_add(bytes);
            if segment.tables.len() < MAX_LISTED { segment.tables.push(name()) } else { segment.other_tables += 1 }
        }
        verified.map(drop)
    }

    /// All tables are checked: whether the segments are there, and long enough for what is
    /// referenced.
    pub(crate) fn check_segments(&self, log: &ValueLog, report: &mut VerifyReport) {
        for (number, SegmentReferences { bytes, tables, other_tables, .. }) in &self.segments {
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

/// Compares the references that a table states with those of its entries.
fn compare(
    stated: Option<&[u8]>,
    is_plain: bool,
    counted: &BTreeMap<SegmentNumber, u64>,
) -> Option<(FindingKind, String)> {
    let stated: BTreeMap<_, _> = match stated.map(decode_references) {
        Some(Some(items)) => items.into_iter().collect(),
        Some(None) => {
            let detail = format!("its property {REFERENCES_PROPERTY} cannot be read");
            return Some((FindingKind::UnderstatedReferences, detail));
        }
        None if is_plain => BTreeMap::new(),
        None => return None,
    };
    let bytes = |of: &BTreeMap<SegmentNumber, u64>, segment| of.get(segment).copied().unwrap_or(0);
    let segments: BTreeSet<_> = stated.keys().chain(counted.keys()).collect();
    let differing: Vec<_> = segments
        .into_iter()
        .map(|segment| (segment, bytes(&stated, segment), bytes(counted, segment)))
        .filter(|(_, said, named)| said != named)
        .collect();
    if differing.is_empty() {
        return None;
    }
    let (kind, consequence) = if differing.iter().any(|(_, said, named)| said < named) {
        (FindingKind::UnderstatedReferences, "segments may be removed while it names them")
    } else {
        (FindingKind::OverstatedReferences, "segments may be kept that nothing refers to")
    };
    let shown: Vec<_> = (differing.iter().take(MAX_LISTED))
        .map(|(segment, said, named)| format!("{named} bytes of segment {segment}, it says {said}"))
        .collect();
    let shown = listed(shown.join("; "), differing.len() - shown.len());
    Some((kind, format!("its entries name {shown}: {consequence}")))
}

fn listed(shown: String, others: usize) -> String {
    if others == 0 { shown } else { format!("{shown} and {others} more") }
}

/// The references of one table.
#[derive(Default)]
struct OfTable {
    bytes: SegmentMap<u64>,
    /// Segments whose compressed values it references.
    compressed: SegmentSet,
    /// By segments that are there, and too short.
    dangling: BTreeMap<SegmentNumber, Dangling>,
}

struct Dangling {
    entries: u64,
    /// Of the first one.
    key: Vec<u8>,
    first: RecordPointer,
}

/// Counts the references of a table's entries, and leaves them in `counted` once all have come.
struct Collector {
    lengths: Arc<SegmentMap<u64>>,
    of_table: OfTable,
    counted: Arc<Mutex<Option<OfTable>>>,
}

impl TableCollector for Collector {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        // A value that cannot be decoded references nothing, here as where the table was written.
        let (EntryKind::Put, Ok(Header { kind: Kind::Separated(pointer), .. })) = (kind, Header::decode(value)) else {
            return;
        };
        *self.of_table.bytes.entry(pointer.segment).or_default() += pointer.record_bytes(key.len()) as u64;
        if pointer.saved_bytes() > 0 {
            self.of_table.compressed.insert(pointer.segment);
        }
        // A segment that is missing is one finding for all tables.
        let Some(length) = self.lengths.get(&pointer.segment) else { return };
        if (pointer.offset as usize) < SEGMENT_HEADER_BYTES || pointer.end(key.len()) > *length {
            let first = || Dangling { entries: 0, key: key.to_vec(), first: pointer };
            self.of_table.dangling.entry(pointer.segment).or_insert_with(first).entries += 1;
        }
    }

    /// No properties: those of the table are compared by [`compare`].
    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        *self.counted.lock() = Some(std::mem::take(&mut self.of_table));
        Vec::new()
    }
}
