//! A sample of the keys of a table, which it keeps as property [`PROPERTY`]: what [`ecotone_policy::duplicates`] counts by.
//!
//! ```text
//!  property: | hash | sequence | bytes | hash | sequence | bytes | ...      u64, u64, u32, little-endian; in the order of the keys
//! ```
//!
//! `hash` is XXH3 of the key; keys are sampled by it. `sequence` is the number of the write, 0 where RocksDB has forgotten it. `bytes` is the length of the value's record, or of the entry's value where that is
//! inline; [`DELETED`] for a deletion. Of a key with several versions the newest is sampled.
//!
//! Failure: a table without the property, of an earlier version of this program, has no samples.

use ecotone_policy::duplicates::{KeySample, is_sampled};

/// The name of the property.
pub(crate) const PROPERTY: &str = "ecotone.keys";

const ITEM_BYTES: usize = 20;

/// In the place of the bytes. No value is that long.
const DELETED: u32 = u32::MAX;

/// The length of a value or of its record, as samples have it.
pub(crate) fn bytes_of(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX).min(DELETED - 1)
}

/// Samples the keys of one table.
#[derive(Debug, Default)]
pub(crate) struct KeySampler {
    property: Vec<u8>,
}

impl KeySampler {
    /// A key by its hash, in the order of the table; `bytes` as in [`KeySample`].
    #[inline]
    pub(crate) fn add(&mut self, hash: u64, bytes: Option<u32>, sequence: u64) {
        if !is_sampled(hash) {
            return;
        }
        self.property.extend_from_slice(&hash.to_le_bytes());
        self.property.extend_from_slice(&sequence.to_le_bytes());
        self.property.extend_from_slice(&bytes.unwrap_or(DELETED).to_le_bytes());
    }

    pub(crate) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.property)
    }
}

/// The samples of a table, none where the property is not one.
pub(crate) fn decode(property: &[u8]) -> Vec<KeySample> {
    let sample = |item: &[u8; ITEM_BYTES]| {
        let (hash, rest) = item.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let (sequence, rest) = rest.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let bytes = rest.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let bytes = (bytes != DELETED).then_some(bytes);
        KeySample { hash: u64::from_le_bytes(*hash), bytes, sequence: u64::from_le_bytes(*sequence) }
    };
    match property.as_chunks() {
        (items, []) => items.iter().map(sample).filter(|sample| is_sampled(sample.hash)).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedup::sketch::{KeySketch, Sketching};
    use crate::mutation::mutated;
    use crate::offload::Collects;
    use ecotone_policy::duplicates::SAMPLED_ONE_IN;
    use twox_hash::XxHash3_64;

    fn sampled(keys: std::ops::Range<u32>) -> Vec<u8> {
        let mut sketch = KeySketch::new(Collects { samples: true, ..Collects::default() }, Sketching::new(0).into());
        for key in keys {
            for version in 0..2 {
                sketch.add(format!("key{key:08}").as_bytes(), (key % 2 == 0).then_some(key), 7 - version);
            }
        }
        let [(name, property)] = sketch.finish().try_into().expect("one property");
        assert_eq!(name, PROPERTY);
        property
    }

    #[test]
    fn about_one_key_in_so_many_is_sampled_and_the_same_in_every_table() {
        let (first, second) = (decode(&sampled(0..100_000)), decode(&sampled(50_000..150_000)));
        let expected = 100_000.0 / SAMPLED_ONE_IN as f64;
        // Four standard deviations.
        assert!((first.len() as f64 - expected).abs() < 4.0 * expected.sqrt(), "{}", first.len());
        let both = second.iter().filter(|sample| first.contains(sample)).count();
        assert!((both as f64 - expected / 2.0).abs() < 4.0 * (expected / 2.0).sqrt(), "{both}");
        let deleted = first.iter().filter(|sample| sample.bytes.is_none()).count();
        assert!((deleted as f64 - expected / 2.0).abs() < 4.0 * (expected / 2.0).sqrt(), "{deleted}");
        assert!(first.iter().flat_map(|sample| sample.bytes).all(|bytes| bytes < 100_000));
        assert!(first.iter().all(|sample| sample.sequence == 7), "the newest version");
    }

    #[test]
    fn the_hash_is_that_of_earlier_versions() {
        // XXH3_64bits of the empty input with seed 0, from the reference implementation.
        assert_eq!(XxHash3_64::oneshot(b""), 0x2D06_8005_38D3_94C2);
    }

    #[test]
    fn a_mutated_property_is_one_or_is_none() {
        mutated(&[Vec::new(), sampled(0..1000)], |bytes, _| {
            let samples = decode(&bytes);
            assert!(samples.len() <= bytes.len() / ITEM_BYTES);
            assert!(samples.iter().all(|sample| is_sampled(sample.hash)));
        });
    }
}
