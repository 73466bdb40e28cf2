//! A filter of the keys of one table: which keys it may hold, as a property of the table keeps it.
//!
//! ```text
//! version u8 = 1 | blocks u32 | fill u16 | blocks x 32 bytes                                                little-endian
//! ```
//!
//! A split-block Bloom filter. The upper half of a key's hash chooses a block of eight 32-bit
//! words; in each word the lower half, times that word's constant of [`SALTS`], sets the bit that
//! its five uppermost bits name. So a question touches one cache line.
//!
//! `fill` is the share of the bits that are set, in parts of 65535. It follows from the blocks:
//! where it does not, they are damaged.
//!
//! Invariants: a hash that went in is always found; the same hashes in any order give the same
//! bytes.
//!
//! Failure modes: other hashes are found as well, by [`FilterView::false_positive_share`]. Damage
//! that keeps length and fill is not seen; it costs a wrong estimate, no data.

use thiserror::Error;

/// Bits per key at which about 1 % of other keys are found. (Measured by the test
/// `the_default_gives_about_one_percent_of_false_positives`.)
pub const DEFAULT_BITS_PER_KEY: f64 = 10.5;

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 7;
const WORDS: usize = 8;
const BLOCK_BYTES: usize = 4 * WORDS;

/// A property is no longer than a gigabyte, whatever is asked for.
const MAX_BLOCKS: usize = 1 << 25;

/// Odd, without a pattern, and part of the format.
const SALTS: [u32; WORDS] =
    [0xE220_A839, 0x6E78_9E6B, 0x06C4_5D19, 0xF88B_B8A9, 0x1B39_896B, 0x53CB_9F0D, 0x2C82_9ABF, 0xC584_133B];

/// Bytes that are no filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DamagedFilter {
    /// It does not even have a header.
    #[error("a filter of keys has {bytes} bytes, fewer than its header; compact the table to have it written anew")]
    TooShort {
        /// What it has.
        bytes: usize,
    },
    /// Of another layout.
    #[error("a filter of keys has version {version}, but only version 1 is known; a newer program wrote it")]
    Version {
        /// What it says.
        version: u8,
    },
    /// It has more or fewer blocks than it says.
    #[error(
        "a filter of keys says that it has {blocks} blocks, but has {bytes} bytes; compact the table to have it written anew"
    )]
    Length {
        /// What it says.
        blocks: u32,
        /// What it has, with its header.
        bytes: usize,
    },
    /// Its bits are not those that were written.
    #[error(
        "a filter of keys is filled to {found} parts of 65535, but was written with {written}; compact the table to have it written anew"
    )]
    Fill {
        /// What it says.
        written: u16,
        /// What its bits say.
        found: u16,
    },
}

/// The filter of these keys, as bytes. Of `bits_per_key` (0 or less: as 0) it takes as many,
/// rounded up to whole blocks.
pub fn build(hashes: &[u64], bits_per_key: f64) -> Vec<u8> {
    let bits = hashes.len() as f64 * bits_per_key.max(0.0);
    let least = usize::from(!hashes.is_empty());
    let blocks = ((bits / (8 * BLOCK_BYTES) as f64).ceil() as usize).clamp(least, MAX_BLOCKS);
    let mut words = vec![[0_u32; WORDS]; blocks];
    for hash in hashes {
        let block = &mut words[block_of(*hash, blocks)];
        for (word, bit) in block.iter_mut().zip(bits_of(*hash)) {
            *word |= bit;
        }
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + blocks * BLOCK_BYTES);
    bytes.push(VERSION);
    bytes.extend_from_slice(&(blocks as u32).to_le_bytes());
    let set = words.as_flattened().iter().map(|word| u64::from(word.count_ones())).sum();
    bytes.extend_from_slice(&fill(set, blocks).to_le_bytes());
    bytes.extend(words.as_flattened().iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

/// A filter that has been looked at, with its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyFilter {
    bytes: Vec<u8>,
    false_positive_share: f64,
}

impl KeyFilter {
    /// Looks at all of the bytes once.
    ///
    /// # Errors
    ///
    /// [`DamagedFilter`] where they are no filter.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, DamagedFilter> {
        let false_positive_share = FilterView::parse(&bytes)?.false_positive_share;
        Ok(Self { bytes, false_positive_share })
    }

    /// Its bytes, as they were given.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// To be asked. Looks at nothing.
    pub fn view(&self) -> FilterView<'_> {
        let blocks = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        FilterView { blocks: blocks.as_chunks().0, false_positive_share: self.false_positive_share }
    }
}

/// A filter in the bytes of a property.
#[derive(Clone, Copy, Debug)]
pub struct FilterView<'a> {
    blocks: &'a [[u8; BLOCK_BYTES]],
    false_positive_share: f64,
}

impl<'a> FilterView<'a> {
    /// Looks at all of the bytes once.
    ///
    /// # Errors
    ///
    /// [`DamagedFilter`] where they are no filter.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DamagedFilter> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(DamagedFilter::TooShort { bytes: bytes.len() });
        };
        let [version, count @ .., fill_low, fill_high] = *header;
        if version != VERSION {
            return Err(DamagedFilter::Version { version });
        }
        let count = u32::from_le_bytes(count);
        let (blocks, []) = rest.as_chunks() else {
            return Err(DamagedFilter::Length { blocks: count, bytes: bytes.len() });
        };
        if blocks.len() as u64 != u64::from(count) {
            return Err(DamagedFilter::Length { blocks: count, bytes: bytes.len() });
        }
        let (mut set, mut positive) = (0, 0.0);
        for block in blocks {
            let ones = words(block).map(u32::count_ones);
            set += u64::from(ones.iter().sum::<u32>());
            positive += ones.iter().map(|ones| f64::from(*ones) / 32.0).product::<f64>();
        }
        let (written, found) = (u16::from_le_bytes([fill_low, fill_high]), fill(set, blocks.len()));
        if written != found {
            return Err(DamagedFilter::Fill { written, found });
        }
        Ok(Self { blocks, false_positive_share: positive / blocks.len().max(1) as f64 })
    }

    /// Whether the table may hold a key of this hash. If not, it does not.
    #[inline]
    pub fn may_hold(&self, hash: u64) -> bool {
        let Some(block) = self.blocks.get(block_of(hash, self.blocks.len())) else { return false };
        words(block).iter().zip(bits_of(hash)).all(|(word, bit)| word & bit != 0)
    }

    /// Which share of the keys that the table does not hold is found, from 0 to 1. Exact for this
    /// filter, as each block counts by its own bits: it is more than the share of bits set would
    /// give, since some blocks are fuller than others.
    pub fn false_positive_share(&self) -> f64 {
        self.false_positive_share
    }
}

fn words(block: &[u8; BLOCK_BYTES]) -> [u32; WORDS] {
    let (words, _) = block.as_chunks();
    std::array::from_fn(|at| u32::from_le_bytes(words[at]))
}

/// 0 where there are none.
#[inline]
fn block_of(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

#[inline]
fn bits_of(hash: u64) -> [u32; WORDS] {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

fn fill(set: u64, blocks: usize) -> u16 {
    let bits = (blocks * BLOCK_BYTES * 8).max(1) as u64;
    (set * u64::from(u16::MAX) / bits) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duplicates::is_sampled;
    use proptest::prelude::*;

    #[test]
    fn a_filter_that_is_kept_answers_as_its_bytes_do() {
        for keys in [0, 1, 5_000] {
            let hashes: Vec<u64> = (0..keys).map(|key: u64| key.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
            let bytes = build(&hashes, DEFAULT_BITS_PER_KEY);
            let (kept, parsed) = (KeyFilter::parse(bytes.clone()).unwrap(), FilterView::parse(&bytes).unwrap());
            assert_eq!(kept.bytes(), bytes);
            assert_eq!(kept.view().false_positive_share(), parsed.false_positive_share());
            assert!(hashes.iter().all(|hash| kept.view().may_hold(*hash)));
            assert!((0..20_000).all(|other: u64| {
                let hash = other.wrapping_mul(0xD134_2543_DE82_EF95);
                kept.view().may_hold(hash) == parsed.may_hold(hash)
            }));
        }
        assert_eq!(KeyFilter::parse(vec![VERSION]).unwrap_err(), DamagedFilter::TooShort { bytes: 1 });
    }

    /// A hash in which nothing is to be seen.
    fn hash(key: u64) -> u64 {
        let mut mixed = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn hashes(keys: std::ops::Range<u64>) -> Vec<u64> {
        keys.map(hash).collect()
    }

    /// Of hashes that are not in the filter, those that it finds.
    fn found(filter: &FilterView<'_>, others: impl Iterator<Item = u64>) -> f64 {
        let (mut asked, mut positive) = (0_u32, 0_u32);
        for hash in others {
            asked += 1;
            positive += u32::from(filter.may_hold(hash));
        }
        f64::from(positive) / f64::from(asked)
    }

    #[test]
    fn what_went_in_is_found_and_the_order_leaves_no_trace() {
        for count in [0, 1, 2, 100, 50_000] {
            let mut hashes = hashes(0..count);
            let bytes = build(&hashes, DEFAULT_BITS_PER_KEY);
            let filter = FilterView::parse(&bytes).unwrap();
            assert!(hashes.iter().all(|hash| filter.may_hold(*hash)));
            hashes.reverse();
            assert_eq!(build(&hashes, DEFAULT_BITS_PER_KEY), bytes);
        }
        assert!(!FilterView::parse(&build(&[], 10.0)).unwrap().may_hold(7), "an empty table holds nothing");
    }

    #[test]
    fn the_default_gives_about_one_percent_of_false_positives() {
        let keys = hashes(0..100_000);
        let mut shares = Vec::new();
        for bits_per_key in [8.0, 9.0, 9.5, 10.0, 10.5, 11.0, 12.0, 16.0, DEFAULT_BITS_PER_KEY] {
            let bytes = build(&keys, bits_per_key);
            let filter = FilterView::parse(&bytes).unwrap();
            let measured = found(&filter, (1_000_000..2_000_000).map(hash));
            // A million questions: four standard deviations of 1 % are 4 % of it.
            assert!((filter.false_positive_share() / measured - 1.0).abs() < 0.15, "{bits_per_key}: {measured}");
            println!("{bits_per_key} bits: {measured:.5}, foretold {:.5}", filter.false_positive_share());
            shares.push(measured);
        }
        let of_default = shares.pop().unwrap();
        assert!((0.0085..0.0115).contains(&of_default), "{of_default}");
        assert!(shares.is_sorted_by(|more, fewer| more > fewer), "{shares:?}");
    }

    #[test]
    fn sampled_keys_are_told_apart_as_well_as_others() {
        // Their lowest bits are all the same.
        let bytes = build(&hashes(0..200_000), DEFAULT_BITS_PER_KEY);
        let filter = FilterView::parse(&bytes).unwrap();
        let measured = found(&filter, (1_000_000..21_000_000).map(hash).filter(|hash| is_sampled(*hash)));
        assert!((measured / filter.false_positive_share() - 1.0).abs() < 0.1, "{measured}");
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        // Two keys, one block: block 0 whatever the upper half. The lower halves 0 and 1 set bit 0
        // and the bit of the five uppermost bits of each constant: 0xE220_A839 >> 27 = 28,
        // 0x6E78_9E6B >> 27 = 13, and so on.
        let bytes = build(&[0, 1], 1.0);
        let (header, words) = bytes.split_at(7);
        let expected: [u32; 8] = [28, 13, 0, 31, 3, 10, 5, 24].map(|bit| 1 | 1 << bit);
        assert_eq!(words, expected.map(u32::to_le_bytes).as_flattened());
        // 15 of 256 bits: 3839.9 parts of 65535.
        assert_eq!(header, [1, 1, 0, 0, 0, 0xFF, 0x0E]);
    }

    #[test]
    fn damage_is_refused_by_its_kind() {
        let bytes = build(&hashes(0..1000), 10.0);
        let parse = |bytes: &[u8]| FilterView::parse(bytes).map(|_| ());
        assert_eq!(parse(&bytes[..6]), Err(DamagedFilter::TooShort { bytes: 6 }));
        let cut = &bytes[..bytes.len() - 32];
        assert!(matches!(parse(cut), Err(DamagedFilter::Length { .. })));
        assert!(matches!(parse(&bytes[..bytes.len() - 1]), Err(DamagedFilter::Length { .. })));
        let mut other = bytes.clone();
        other[0] = 2;
        assert_eq!(parse(&other), Err(DamagedFilter::Version { version: 2 }));
        let mut other = bytes.clone();
        other[40..60].fill(0xFF);
        assert!(matches!(parse(&other), Err(DamagedFilter::Fill { .. })));
    }

    proptest! {
        #[test]
        fn changed_bytes_are_a_filter_or_are_refused(
            keys in 0_u64..200,
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
            cut in proptest::option::of(any::<proptest::sample::Index>()),
            more in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = build(&hashes(0..keys), 10.0);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes.extend(more);
            if let Ok(filter) = FilterView::parse(&bytes) {
                prop_assert!((0.0..=1.0).contains(&filter.false_positive_share()));
                for hash in hashes(0..50).into_iter().chain([0, u64::MAX]) {
                    filter.may_hold(hash);
                }
            }
        }
    }
}
