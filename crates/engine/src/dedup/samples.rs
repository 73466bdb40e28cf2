//! A sample of the keys of a table, which it keeps as property [`PROPERTY`]: what
//! [`ecotone_policy::duplicates`] counts by.
//!
//! ```text
//!  property: | hash | sequence | bytes | segment | hash | ...      u64, u64, u32, u32, little-endian; in the order of the keys
//! ```
//!
//! `hash` is XXH3 of the key; keys are sampled by it. `sequence` is the number of the write, 0
//! where RocksDB has forgotten it. `bytes` is the length of the value's record, or of the entry's
//! value where that is inline; [`DELETED`] for a deletion. `segment` is where the record lies;
//! [`INLINE`] where there is none. Of a key with several versions the newest is sampled.
//!
//! Failure: a table without the property, of an earlier version of this program, has no samples.

use ecotone_policy::duplicates::{KeySample, is_sampled};

use ecotone_valuelog::pointer::SegmentNumber;

/// The name of the property.
pub const PROPERTY: &str = "ecotone.samples";

const ITEM_BYTES: usize = 24;

/// In the place of the bytes. No value is that long.
const DELETED: u32 = u32::MAX;

/// In the place of the segment. Numbers are given out from 1 on, and so many never are.
const INLINE: u32 = u32::MAX;

/// A value as samples have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampledValue {
    bytes: u32,
    segment: Option<SegmentNumber>,
}

impl SampledValue {
    /// One beside its key.
    pub(crate) fn inline(len: usize) -> Self {
        Self { bytes: u32::try_from(len).unwrap_or(u32::MAX).min(DELETED - 1), segment: None }
    }

    /// One whose record of so many bytes lies in `segment`.
    pub(crate) fn separated(record_bytes: usize, segment: SegmentNumber) -> Self {
        Self { segment: Some(segment), ..Self::inline(record_bytes) }
    }
}

/// Samples the keys of one table.
#[derive(Debug, Default)]
pub(crate) struct KeySampler {
    property: Vec<u8>,
}

impl KeySampler {
    /// A key by its hash, in the order of the table.
    #[inline]
    pub(crate) fn add(&mut self, hash: u64, value: Option<SampledValue>, sequence: u64) {
        if !is_sampled(hash) {
            return;
        }
        let bytes = value.map_or(DELETED, |value| value.bytes);
        let segment = value.and_then(|value| value.segment).map_or(INLINE, |segment| segment.0);
        self.property.extend_from_slice(&hash.to_le_bytes());
        self.property.extend_from_slice(&sequence.to_le_bytes());
        self.property.extend_from_slice(&bytes.to_le_bytes());
        self.property.extend_from_slice(&segment.to_le_bytes());
    }

    pub(crate) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.property)
    }
}

/// The samples of a table, none where the property is not one.
pub fn decode(property: &[u8]) -> Vec<KeySample> {
    let sample = |item: &[u8; ITEM_BYTES]| {
        let (hash, rest) = item.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let (sequence, rest) = rest.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let (bytes, rest) = rest.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let bytes = Some(u32::from_le_bytes(*bytes)).filter(|bytes| *bytes != DELETED);
        let segment = rest.first_chunk().map_or(INLINE, |segment| u32::from_le_bytes(*segment));
        KeySample {
            hash: u64::from_le_bytes(*hash),
            bytes,
            segment: Some(segment).filter(|segment| bytes.is_some() && *segment != INLINE),
            sequence: u64::from_le_bytes(*sequence),
        }
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
    use crate::table_format::Collects;
    use ecotone_policy::duplicates::SAMPLED_ONE_IN;
    use twox_hash::XxHash3_64;

    fn value_of(key: u32) -> Option<SampledValue> {
        match key % 4 {
            0 => Some(SampledValue::inline(key as usize)),
            2 => Some(SampledValue::separated(key as usize, SegmentNumber(key / 1000))),
            _ => None,
        }
    }

    fn sampled(keys: std::ops::Range<u32>) -> Vec<u8> {
        let mut sketch = KeySketch::new(Collects { samples: true, ..Collects::default() }, Sketching::new(0).into());
        for key in keys {
            for version in 0..2 {
                sketch.add(format!("key{key:08}").as_bytes(), value_of(key), 7 - version);
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
        let segments = first.iter().filter_map(|sample| Some((sample.bytes? / 1000, sample.segment?)));
        let segments: Vec<_> = segments.collect();
        assert!(segments.iter().all(|(expected, segment)| expected == segment));
        assert!((segments.len() as f64 - expected / 4.0).abs() < 4.0 * (expected / 4.0).sqrt(), "{}", segments.len());
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
