//! Which tables refer to which segments, and by how many bytes.
//!
//! A collector counts the references of a table while RocksDB writes it, here or on a worker, and
//! leaves them in it as property [`PROPERTY`], with a sketch of its keys
//! ([`crate::dedup::sketch`]). The sums over the live tables are the referenced bytes of each
//! segment: derived from the tables themselves, so nothing has to be logged and nothing can be
//! forgotten.
//!
//! ```text
//!  property: | segment | bytes | segment | bytes | ...      u32, u64, little-endian; segments rising
//! ```
//!
//! A second property, [`SAVED_PROPERTY`], is by how much the values it references are longer than
//! what is stored of them: u64, little-endian, absent where that is nothing.
//!
//! Entries that are overwritten or deleted count until a compaction has met them; the samples tell
//! how much that is. A table without the property (its collector panicked) may refer to anything:
//! while there is one, no segment can be called unreferenced.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use ecotone_rocks::properties::{EntryKind, TableCollector};
use ecotone_rocks::tables::collected_properties_but;
use ecotone_valuelog::pointer::{SegmentMap, SegmentNumber, SegmentSet};
use rust_rocksdb::{AsColumnFamilyRef, DB};

use crate::dedup::samples::SampledValue;
use crate::dedup::sketch::KeySketch;
use crate::header::{Header, Kind};
use crate::identity::Identity;
use crate::{Error, Result};

/// The name of the property.
pub const PROPERTY: &str = "ecotone.values";

/// The name of the property of compressed values.
pub const SAVED_PROPERTY: &str = "ecotone.values.saved";

const ITEM_BYTES: usize = 12;

/// References that are kept in memory, of all tables together: 64 MiB. Tables beyond them are read
/// again each time.
const MAX_KEPT: usize = 1 << 22;

/// The collector of one table, which also sketches its keys.
pub(crate) fn collector(keys: KeySketch) -> Box<dyn TableCollector> {
    Box::new(ReferenceCollector { bytes: SegmentMap::default(), saved: 0, keys })
}

#[derive(Debug)]
struct ReferenceCollector {
    bytes: SegmentMap<u64>,
    saved: u64,
    keys: KeySketch,
}

impl TableCollector for ReferenceCollector {
    fn begin(&mut self) -> u64 {
        self.keys.begin();
        // Each may name a value.
        0
    }

    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, sequence: u64, _file_bytes: u64) {
        match kind {
            EntryKind::Put => {
                let mut sampled = SampledValue::inline(value.len());
                if let Ok(Header { kind: Kind::Separated(pointer), .. }) = Header::decode(value) {
                    let bytes = pointer.record_bytes(key.len());
                    *self.bytes.entry(pointer.segment).or_default() += bytes as u64;
                    self.saved += u64::from(pointer.saved_bytes());
                    sampled = SampledValue::separated(bytes, pointer.segment);
                }
                self.keys.add(key, Some(sampled), sequence);
            }
            EntryKind::Delete | EntryKind::SingleDelete => self.keys.add(key, None, sequence),
            _ => (),
        }
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        let sorted: BTreeMap<_, _> = self.bytes.drain().collect();
        let mut properties = vec![(PROPERTY.into(), encode(&sorted))];
        if self.saved > 0 {
            properties.push((SAVED_PROPERTY.into(), self.saved.to_le_bytes().to_vec()));
        }
        properties.extend(self.keys.finish());
        properties
    }
}

fn encode(bytes: &BTreeMap<SegmentNumber, u64>) -> Vec<u8> {
    let item = |(segment, bytes): (&SegmentNumber, &u64)| [&segment.0.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
    bytes.iter().flat_map(item).collect()
}

/// The segments that a table references, and bytes of each; `None` where the property cannot be
/// decoded.
pub fn decode(property: &[u8]) -> Option<Vec<(SegmentNumber, u64)>> {
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

/// Which segments tables refer to, by the number of the table.
pub(crate) type TableReferences = BTreeMap<u64, Vec<u32>>;

/// What all live tables of one moment refer to.
#[derive(Debug, Default)]
pub struct References {
    /// Bytes of records that a table refers to, by segment.
    pub bytes: BTreeMap<SegmentNumber, u64>,
    /// What each table refers to, by its number.
    tables: BTreeMap<u64, Vec<(SegmentNumber, u64)>>,
    /// What the values that a table refers to were longer before they were compressed, by its number;
    /// only of those where that is something.
    saved: BTreeMap<u64, u64>,
    /// Tables that are not kept until the next time.
    surplus: Vec<u64>,
    /// Tables that were written before there was a value log.
    plain: BTreeSet<u64>,
    /// Tables that do not say what they refer to, by their numbers.
    silent: BTreeMap<u64, String>,
}

impl References {
    /// Counts all tables there are. Opens those that are not open.
    pub(crate) fn count(db: &DB, family: &impl AsColumnFamilyRef, identity: Identity) -> Result<Self> {
        let mut references = Self::default();
        references.update(db, family, identity)?;
        Ok(references)
    }

    /// Looks at the tables that came since the last time, and forgets those that are gone.
    pub(crate) fn update(&mut self, db: &DB, family: &impl AsColumnFamilyRef, identity: Identity) -> Result<()> {
        for table in self.surplus.drain(..) {
            self.tables.remove(&table);
            self.saved.remove(&table);
        }
        // Those that are silent are asked again, for their names; they are few.
        let known: BTreeSet<_> = self.tables.keys().chain(&self.plain).copied().collect();
        let known: Vec<_> = known.into_iter().collect();
        let live = collected_properties_but(db, family, PROPERTY, &known)
            .map_err(|error| Error::Rocks { detail: error.to_string() })?;
        let numbers: HashSet<_> = live.iter().map(|table| table.file_number).collect();
        self.tables.retain(|number, _| numbers.contains(number));
        self.saved.retain(|number, _| numbers.contains(number));
        self.plain.retain(|number| numbers.contains(number));
        self.silent.clear();
        let mut kept: usize = self.tables.values().map(Vec::len).sum();
        for mut table in live {
            if known.binary_search(&table.file_number).is_ok() {
                continue;
            }
            let saved = table.properties.remove(SAVED_PROPERTY).and_then(|saved| saved.try_into().ok());
            if let Some(saved) = saved {
                self.saved.insert(table.file_number, u64::from_le_bytes(saved));
            }
            match table.properties.remove(PROPERTY).and_then(|property| decode(&property)) {
                Some(items) => {
                    kept += items.len();
                    if kept > MAX_KEPT {
                        self.surplus.push(table.file_number);
                    }
                    self.tables.insert(table.file_number, items);
                }
                // Written before there was a value log.
                None if table.file_number < identity.plain_tables_below => {
                    self.plain.insert(table.file_number);
                }
                None => {
                    self.silent.insert(table.file_number, table.path.display().to_string());
                }
            }
        }
        self.bytes.clear();
        for (segment, bytes) in self.tables.values().flatten() {
            let sum = self.bytes.entry(*segment).or_default();
            // A table that overstates must not make a segment look unnamed.
            *sum = sum.saturating_add(*bytes);
        }
        Ok(())
    }

    /// The segments of the candidate set that tables refer to, by the number of the table; only of
    /// those that name any.
    pub(crate) fn references(&self, candidates: &SegmentSet) -> TableReferences {
        let named = |items: &Vec<(SegmentNumber, u64)>| {
            let candidates = items.iter().filter(|(segment, _)| candidates.contains(segment));
            candidates.map(|(segment, _)| segment.0).collect::<Vec<_>>()
        };
        let tables = self.tables.iter().map(|(number, items)| (*number, named(items)));
        tables.filter(|(_, segments)| !segments.is_empty()).collect()
    }

    /// By how much the values that tables refer to are longer than what is stored of them, in bytes.
    pub fn saved_bytes(&self) -> u64 {
        self.saved.values().fold(0, |sum, saved| sum.saturating_add(*saved))
    }

    /// Tables that do not say what they refer to.
    pub fn silent_tables(&self) -> Vec<String> {
        self.silent.values().cloned().collect()
    }
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
