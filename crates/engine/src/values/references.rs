//! Which tables refer to which segments, and by how many bytes.
//!
//! A collector counts the references of a table while RocksDB writes it, here or on a worker, and leaves them in it as
//! property [`PROPERTY`]. The sums over the live tables are the referenced bytes of each segment: derived from the tables
//! themselves, so nothing has to be logged and nothing can be forgotten.
//!
//! ```text
//!  property: | segment | bytes | segment | bytes | ...      u32, u64, little-endian; segments rising
//! ```
//!
//! Entries that are overwritten or deleted count until a compaction has met them. A table without the property (its
//! collector panicked) may refer to anything: while there is one, no segment can be called unreferenced.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use ecotone_rocks_sys::properties::{EntryKind, TableCollector, TableCollectorFactory, TableContext};
use ecotone_rocks_sys::tables::collected_properties;
use rust_rocksdb::{AsColumnFamilyRef, DB};

use super::pointer::SegmentNumber;
use crate::header::{Header, Kind};
use crate::identity::Identity;
use crate::{Error, Result};

/// The name of the property.
pub(crate) const PROPERTY: &str = "ecotone.values";

const ITEM_BYTES: usize = 12;

/// Makes a collector for each table.
#[derive(Debug)]
pub(crate) struct ReferenceCollectors;

/// A factory, to be shared.
pub(crate) fn collectors() -> Arc<dyn TableCollectorFactory> {
    Arc::new(ReferenceCollectors)
}

impl TableCollectorFactory for ReferenceCollectors {
    fn collector(&self, _context: TableContext) -> Option<Box<dyn TableCollector>> {
        Some(Box::<ReferenceCollector>::default())
    }
}

#[derive(Debug, Default)]
struct ReferenceCollector {
    bytes: HashMap<SegmentNumber, u64>,
}

impl TableCollector for ReferenceCollector {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        if kind == EntryKind::Put
            && let Ok(Header { kind: Kind::Separated(pointer), .. }) = Header::decode(value)
        {
            *self.bytes.entry(pointer.segment).or_default() += pointer.record_bytes(key.len()) as u64;
        }
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        let sorted: BTreeMap<_, _> = self.bytes.drain().collect();
        vec![(PROPERTY.into(), encode(&sorted))]
    }
}

fn encode(bytes: &BTreeMap<SegmentNumber, u64>) -> Vec<u8> {
    let item = |(segment, bytes): (&SegmentNumber, &u64)| [&segment.0.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
    bytes.iter().flat_map(item).collect()
}

fn decode(property: &[u8]) -> Option<Vec<(SegmentNumber, u64)>> {
    if !property.len().is_multiple_of(ITEM_BYTES) {
        return None;
    }
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    let items: Vec<_> = property
        .chunks_exact(ITEM_BYTES)
        .map(|item| (SegmentNumber(number(&item[..4]) as u32), number(&item[4..])))
        .collect();
    items.is_sorted_by(|one, other| one.0 < other.0).then_some(items)
}

/// The referenced bytes of each segment, over all live tables of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct References {
    /// Bytes of records that a table names, by segment.
    pub(crate) bytes: BTreeMap<SegmentNumber, u64>,
    /// Bytes of records that each table names, by its number.
    pub(crate) of_table: HashMap<u64, u64>,
    /// Numbers of the tables that name a segment of the cohort.
    pub(crate) naming_cohort: HashSet<u64>,
    /// Tables that do not say what they refer to.
    pub(crate) silent_tables: Vec<String>,
}

impl References {
    /// Counts anew. Opens tables that are not open.
    pub(crate) fn count(
        db: &DB,
        family: &impl AsColumnFamilyRef,
        identity: Identity,
        cohort: &HashSet<SegmentNumber>,
    ) -> Result<Self> {
        let tables =
            collected_properties(db, family, PROPERTY).map_err(|error| Error::Rocks { detail: error.to_string() })?;
        let mut references = Self::default();
        for table in tables {
            let number = file_number(&table.path);
            match table.properties.get(PROPERTY).and_then(|property| decode(property)) {
                Some(items) => {
                    if items.iter().any(|(segment, _)| cohort.contains(segment)) {
                        references.naming_cohort.extend(number);
                    }
                    let all = items.iter().map(|(_, bytes)| bytes).sum();
                    references.of_table.extend(number.map(|number| (number, all)));
                    for (segment, bytes) in items {
                        let sum = references.bytes.entry(segment).or_default();
                        // A table that overstates must not make a segment look unnamed.
                        *sum = sum.saturating_add(bytes);
                    }
                }
                // Written before there was a value log.
                None if number.is_some_and(|number| number < identity.plain_tables_below) => (),
                None => references.silent_tables.push(table.path.display().to_string()),
            }
        }
        Ok(references)
    }
}

/// The number in the name of a table.
fn file_number(table: &Path) -> Option<u64> {
    table.file_stem()?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;
    use proptest::prelude::*;

    #[test]
    fn a_mutated_property_is_one_or_is_refused() {
        let items =
            |items: &[(u32, u64)]| encode(&items.iter().map(|(it, bytes)| (SegmentNumber(*it), *bytes)).collect());
        mutated(&[Vec::new(), items(&[(7, 100)]), items(&[(1, 10), (2, u64::MAX), (u32::MAX, 5)])], |bytes, _| {
            if let Some(items) = decode(&bytes) {
                assert_eq!(encode(&items.into_iter().collect()), bytes);
            }
        });
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(bytes: BTreeMap<u32, u64>) {
            let bytes: BTreeMap<_, _> = bytes.into_iter().map(|(segment, bytes)| (SegmentNumber(segment), bytes)).collect();
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes.into_iter().collect()));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            if let Some(items) = decode(&bytes) {
                prop_assert_eq!(encode(&items.into_iter().collect()), bytes);
            }
        }
    }
}
