//! Whether a value that does not read right is damaged, or was lost with power.
//!
//! What the kernel had not written when power was lost is missing by sectors, and of a page that it
//! wrote while a record was being copied into it the end may be. What is missing reads as zeros: it
//! lies in space that was reserved and never written. So where one bit alone is not what it was,
//! power has not taken it unless nothing but zeros follows in its sector. Nor has it taken a packed
//! value whose record is whole, and that does not unpack with its dictionary.
//!
//! Failure: of two wrong bits or more, of values that are longer than those that
//! [`record::flipped_bit_of`] examines, of a bit that was cleared with nothing set behind it in its
//! sector, and of a value with zeros where something may be missing, nobody can tell; they pass for
//! a loss of power.

use crate::packed_record::{self, Lengths};
use crate::pointer::RecordPointer;
use crate::record;
use crate::segment::{MAX_DICTIONARY_RECORD_BYTES, Segment};
use crate::segment_header::{self, SEGMENT_HEADER_BYTES, SegmentFormat};
use crate::{Error, Result};

/// What a device writes whole or not at all, at the least.
const SECTOR_BYTES: u64 = 512;

/// Of what a loss of power leaves of a longer record, one in some thousands would look like a
/// flipped bit by chance, wherever something is missing.
const SHORT_RECORD_BYTES: usize = 64 * 1024;

/// So many zeros at the end of a sector of such a record, and more, are taken for an end that was
/// not written. Of a shorter one a sector must be missing whole.
const MISSING_END_BYTES: usize = 8;

/// Whether the value of `key` that `pointer` leads to, and that does not read right, was changed
/// after it was written. `has_dictionary` says whether the dictionary can be had, if it needs one.
///
/// # Errors
///
/// [`Error::Io`] where its bytes cannot be had, and those of `has_dictionary`.
pub fn is_damaged(
    segment: &Segment,
    key: &[u8],
    pointer: RecordPointer,
    has_dictionary: impl FnOnce() -> Result<bool>,
) -> Result<bool> {
    // Where it is ignored it is no reason not to be read.
    if !segment.ignores_header()
        && segment.header()?.is_some_and(|header| segment_header::is_one_but_for_a_bit(&header))
    {
        return Ok(true);
    }
    let (begin, end) = (u64::from(pointer.offset), pointer.end(key.len()));
    let (lengths, record_bytes) = (pointer.packed_lengths(), pointer.record_bytes(key.len()));
    if end > segment.bytes() || (lengths.is_none() && record_bytes > record::MAX_EXAMINED_BYTES) {
        return Ok(false);
    }
    if lengths.is_some() && is_dictionary_damaged(segment)? {
        return Ok(true);
    }
    let Some(bytes) = with_sector(segment, begin, end)? else { return Ok(false) };
    if let Some(layout) = lengths.and_then(|of| packed_record::check_for(&bytes[..record_bytes], key, of).ok()) {
        // It is what was written, and does not unpack: power has taken nothing, unless that is its
        // dictionary.
        return if layout.packing.needs_dictionary() { has_dictionary() } else { Ok(true) };
    }
    Ok(is_flipped(&bytes, begin, record_bytes, key, lengths))
}

/// The bytes from `begin` to `end`, with what stands behind them in their last sector; `None` where
/// the file ends before.
fn with_sector(segment: &Segment, begin: u64, end: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; (end.next_multiple_of(SECTOR_BYTES).min(segment.bytes()) - begin) as usize];
    match segment.read(begin, &mut bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(Error::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the first record of a segment was changed after it was written, where that is its
/// dictionary.
///
/// # Errors
///
/// [`Error::Io`] where its bytes cannot be had.
pub fn is_dictionary_damaged(segment: &Segment) -> Result<bool> {
    let (begin, bytes) = (SEGMENT_HEADER_BYTES as u64, segment.bytes());
    let Some(id) = segment.format().ok().and_then(SegmentFormat::dictionary) else { return Ok(false) };
    let end = bytes.min(begin + MAX_DICTIONARY_RECORD_BYTES as u64);
    if end <= begin {
        return Ok(false);
    }
    let Some(mut found) = with_sector(segment, begin, end)? else { return Ok(false) };
    let Some((flipped, record_bytes)) = packed_record::flipped_bit_of_dictionary(&mut found, id) else {
        return Ok(false);
    };
    found.truncate(((begin + record_bytes as u64).next_multiple_of(SECTOR_BYTES) - begin) as usize);
    Ok(is_there(&found, begin, record_bytes, Some(flipped)))
}

/// Of the bytes of a segment from `begin` on, whether the first so many are the record of `key` but
/// for one bit, which is not missing.
fn is_flipped(bytes: &[u8], begin: u64, record_bytes: usize, key: &[u8], lengths: Option<Lengths>) -> bool {
    let record = &bytes[..record_bytes];
    let flipped = match lengths {
        None => record::flipped_bit_of(record, key),
        Some(lengths) => packed_record::flipped_bit_of(record, key, lengths),
    };
    is_there(bytes, begin, record_bytes, flipped)
}

/// Whether one bit is wrong in the first so many of these bytes, and is not missing.
fn is_there(bytes: &[u8], begin: u64, record_bytes: usize, flipped: Option<usize>) -> bool {
    let record = &bytes[..record_bytes];
    let lacks_an_end = || match record_bytes > SHORT_RECORD_BYTES {
        true => lacks_an_end(record, begin, MISSING_END_BYTES),
        false => lacks_an_end(bytes, begin, SECTOR_BYTES as usize),
    };
    flipped.is_some_and(|bit| !is_zero_to_sector_end(bytes, begin, bit / 8) && !lacks_an_end())
}

/// Whether nothing but zeros stands from the byte `at` on in its sector.
fn is_zero_to_sector_end(bytes: &[u8], begin: u64, at: usize) -> bool {
    let to_end = SECTOR_BYTES - (begin + at as u64) % SECTOR_BYTES;
    bytes[at..].iter().take(to_end as usize).all(|byte| *byte == 0)
}

/// Whether one of the sectors that these bytes lie in ends, as far as they reach, as where so many
/// bytes, or all that there are, were not written.
fn lacks_an_end(bytes: &[u8], begin: u64, missing: usize) -> bool {
    let of_first = (SECTOR_BYTES - begin % SECTOR_BYTES) as usize;
    let (first, rest) = bytes.split_at(of_first.min(bytes.len()));
    let mut parts = std::iter::once(first).chain(rest.chunks(SECTOR_BYTES as usize));
    parts.any(|part| part[part.len().saturating_sub(missing)..].iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(key: &[u8], value: &[u8]) -> Vec<u8> {
        [&record::encode_header(key, value)[..], key, value].concat()
    }

    /// Values with few bits: of others hardly any loss looks like one bit.
    fn sparse(bits: &[prop::sample::Index], bytes: usize) -> Vec<u8> {
        let mut value = vec![0; bytes];
        for bit in bits.iter().map(|bit| bit.index(bytes * 8)) {
            value[bit / 8] |= 1 << (bit % 8);
        }
        value
    }

    proptest! {
        #[test]
        fn what_a_loss_of_power_takes_is_no_damage(
            bits in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            bytes in 1_usize..2000,
            begin in 32_u64..2000,
            cut: prop::sample::Index,
            sectors: u8,
        ) {
            let (key, value) = (b"key", sparse(&bits, bytes));
            let mut record = encoded(key, &value);
            // Each sector of some is missing, and of one all from some byte on.
            for (at, byte) in record.iter_mut().enumerate() {
                if sectors >> ((begin + at as u64) / 512 % 8) & 1 == 1 {
                    *byte = 0;
                }
            }
            let cut = cut.index(record.len());
            let end = cut + 512 - (begin as usize + cut) % 512;
            record.iter_mut().take(end).skip(cut).for_each(|byte| *byte = 0);
            prop_assert!(!is_flipped(&record, begin, record.len(), key, None));
        }

        #[test]
        fn a_flipped_bit_is_damage_where_more_follows(
            bits in prop::collection::vec(any::<prop::sample::Index>(), 4..40),
            bytes in 1_usize..900,
            begin in 32_u64..2000,
            flipped: prop::sample::Index,
        ) {
            let (key, value) = (b"key", sparse(&bits, bytes));
            let mut record = encoded(key, &value);
            let flipped = flipped.index(record.len() * 8);
            record[flipped / 8] ^= 1 << (flipped % 8);
            let len = record.len();
            let sector_ends = 512 - (begin as usize + flipped / 8) % 512;
            let follows = |bytes: &[u8]| bytes[flipped / 8..].iter().take(sector_ends).any(|byte| *byte != 0);
            // A sector that was never anything but zeros might have been lost as well.
            let of_first = (512 - begin as usize % 512).min(len);
            let lost = [&record[..of_first]].into_iter().chain(record[of_first..].chunks(512));
            prop_assume!(lost.into_iter().all(|part| part.iter().any(|byte| *byte != 0)));
            prop_assert_eq!(is_flipped(&record, begin, len, key, None), follows(&record));
            // The next record may stand in the same sector.
            record.extend_from_slice(&encoded(b"another", b"value"));
            prop_assert_eq!(is_flipped(&record, begin, len, key, None), follows(&record));
        }
    }

    /// What a loss of power leaves may have the checksum of a flipped bit by chance.
    #[test]
    fn a_long_value_that_lacks_sectors_is_not_damaged_whatever_its_checksum_says() {
        let (key, begin) = (b"key", 1000);
        for (bytes, lost) in
            [(1 << 20, 700 * 1024..900 * 1024), (1 << 20, 300_000..300_100), (100_000, 99_000..100_000)]
        {
            let value: Vec<u8> = (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect();
            let mut record = encoded(key, &value);
            let of_sector = |at: usize| (begin as usize + at).next_multiple_of(512) - begin as usize;
            let len = record.len();
            record[of_sector(lost.start) - 20..of_sector(lost.end).min(len)].fill(0);
            assert!(!is_flipped(&record, begin, len, key, None));
            // By the checksum of what is left, but for one bit of a sector that is there.
            let mut flipped = record.clone();
            flipped[5000] ^= 4;
            let checksum = crc32c::crc32c(&flipped[4..]);
            record[..4].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(record::flipped_bit_of(&record, key), Some(5000 * 8 + 2));
            assert!(!is_flipped(&record, begin, len, key, None));
        }
        let value = vec![7; 1 << 20];
        let mut record = encoded(key, &value);
        record[500_000] ^= 1;
        assert!(is_flipped(&record, begin, record.len(), key, None), "nothing is missing");
    }
}
