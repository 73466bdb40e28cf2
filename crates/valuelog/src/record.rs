//! One value in a segment of format 1, and what both formats have in common
//! ([`crate::packed_record`] is the other).
//!
//! ```text
//!  0          4            8              12         12 + k        12 + k + v
//!  +----------+------------+--------------+----------+-------------+
//!  | crc32c   | key length | value length |   key    |    value    |
//!  | u32      | u32        | u32          |          |             |
//!  +----------+------------+--------------+----------+-------------+
//!             |<------------- what the checksum is over ---------->|
//! ```
//!
//! All numbers are little-endian. Nothing stands between two records. The key is kept so that a
//! pointer that leads to another value is noticed, and so that a value can be relocated or saved
//! without its table.

use std::ops::Range;

/// The longest value, in bytes: the limit of the Redis protocol.
pub const MAX_VALUE_BYTES: usize = 512 * 1024 * 1024;

/// The longest key, in bytes. RocksDB keeps keys whole in its indexes, so long keys cost memory.
pub const MAX_KEY_BYTES: usize = 64 * 1024;

/// What stands before the key.
pub const RECORD_HEADER_BYTES: usize = 12;

/// Why bytes are not the record that was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end before the record does.
    #[error("the record ends after {have} of {need} bytes")]
    Truncated {
        /// Bytes there are.
        have: usize,
        /// Bytes the record has.
        need: usize,
    },
    /// A length that no record has.
    #[error("the record says that its key has {key_bytes} bytes and its value {value_bytes}")]
    Length {
        /// What the record says of its key.
        key_bytes: u32,
        /// What the record says of its value.
        value_bytes: u32,
    },
    /// The bytes are not those that were written.
    #[error("the record's checksum is {stored:#010x}, its bytes have {computed:#010x}")]
    Checksum {
        /// The checksum in the record.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// A whole record, but of another key.
    #[error("the record belongs to another key")]
    AnotherKey,
    /// A packing that no record of format 2 has.
    #[error("the record says that it is packed by {0:#04x}, which this version does not know")]
    Packing(u8),
    /// A length of format 2 that is no number, or not in its only encoding.
    #[error("the record's lengths are not encoded as lengths are")]
    LengthEncoding,
}

/// Where key and value lie in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The key's bytes.
    pub key: Range<usize>,
    /// The value's bytes.
    pub value: Range<usize>,
}

/// The bytes of the record of a key and a value.
pub const fn record_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    RECORD_HEADER_BYTES + key_bytes + value_bytes
}

/// Writes the header of the record of `key` and `value`.
///
/// Lengths are those that a store takes, so they fit.
pub fn encode_header(key: &[u8], value: &[u8]) -> [u8; RECORD_HEADER_BYTES] {
    let mut header = [0; RECORD_HEADER_BYTES];
    header[4..8].copy_from_slice(&(key.len() as u32).to_le_bytes());
    header[8..12].copy_from_slice(&(value.len() as u32).to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&header[4..]), key), value);
    header[..4].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The length of the record that begins `bytes`, as it says itself; its checksum is not looked at.
///
/// # Errors
///
/// [`RecordError::Truncated`] where there is no whole header, [`RecordError::Length`] where it
/// cannot be one.
pub fn announced_bytes(bytes: &[u8]) -> Result<usize, RecordError> {
    let Some(header) = bytes.first_chunk::<RECORD_HEADER_BYTES>() else {
        return Err(RecordError::Truncated { have: bytes.len(), need: RECORD_HEADER_BYTES });
    };
    let (key_bytes, value_bytes) = (number(&header[4..8]), number(&header[8..12]));
    if key_bytes as usize > MAX_KEY_BYTES || value_bytes as usize > MAX_VALUE_BYTES {
        return Err(RecordError::Length { key_bytes, value_bytes });
    }
    Ok(record_bytes(key_bytes as usize, value_bytes as usize))
}

/// Checks the record that begins `bytes`, and says where its parts lie.
///
/// # Errors
///
/// Whatever is wrong with it. Never panics, whatever the bytes are.
pub fn check(bytes: &[u8]) -> Result<Layout, RecordError> {
    let need = announced_bytes(bytes)?;
    let Some(record) = bytes.get(..need) else {
        return Err(RecordError::Truncated { have: bytes.len(), need });
    };
    let (stored, computed) = (number(&record[..4]), crc32c::crc32c(&record[4..]));
    if stored != computed {
        return Err(RecordError::Checksum { stored, computed });
    }
    let key_end = RECORD_HEADER_BYTES + number(&record[4..8]) as usize;
    Ok(Layout { key: RECORD_HEADER_BYTES..key_end, value: key_end..need })
}

/// Like [`check`], for a record that must be the whole of `bytes` and must belong to `key`. Says
/// where its value lies.
///
/// # Errors
///
/// As [`check`], and [`RecordError::AnotherKey`].
pub fn check_for(bytes: &[u8], key: &[u8]) -> Result<Range<usize>, RecordError> {
    let layout = check(bytes)?;
    if layout.value.end != bytes.len() || bytes[layout.key] != *key {
        return Err(RecordError::AnotherKey);
    }
    Ok(layout.value)
}

/// Of longer records it is not asked which bit is wrong: of two that differ by chance one in 30
/// would seem to differ by one bit.
pub const MAX_EXAMINED_BYTES: usize = 16 * 1024 * 1024;

/// Which bit of `bytes` would have to be another for them to be a whole record of `key`, counted
/// from the least of the first byte on, if one alone. Of other damage to a record of 1 MiB one in
/// 500 looks so.
pub fn flipped_bit_of(bytes: &[u8], key: &[u8]) -> Option<usize> {
    let value = bytes.get(RECORD_HEADER_BYTES + key.len()..)?;
    let lengths = [(key.len() as u32).to_le_bytes(), (value.len() as u32).to_le_bytes()].concat();
    flipped_bit_behind(bytes, &[&lengths[..], key].concat())
}

/// The same of bytes that begin with a checksum and what is `known`.
pub(crate) fn flipped_bit_behind(bytes: &[u8], known: &[u8]) -> Option<usize> {
    if bytes.len() > MAX_EXAMINED_BYTES {
        return None;
    }
    let value_begins = 4 + known.len();
    let (stored, value) = bytes.first_chunk::<4>().zip(bytes.get(value_begins..))?;
    let computed = crc32c::crc32c_append(crc32c::crc32c(known), value);
    let difference = u32::from_le_bytes(*stored) ^ computed;
    let mut differing = known.iter().zip(&bytes[4..]).map(|(known, found)| known ^ found).zip(4..);
    match differing.find(|(flipped, _)| *flipped != 0) {
        Some((flipped, at)) => {
            let is_alone = flipped.is_power_of_two() && differing.all(|(flipped, _)| flipped == 0) && difference == 0;
            is_alone.then(|| at * 8 + flipped.trailing_zeros() as usize)
        }
        None if difference.is_power_of_two() => Some(difference.trailing_zeros() as usize),
        None => flipped_bit(difference, value.len()).map(|bit| value_begins * 8 + bit),
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// What a loss of power leaves differs from what was written by sectors, and damage of a medium or
/// of memory by single bits: this tells one from the other where a checksum does not match.
///
/// Which bit of so many bytes, flipped, makes this difference of their checksums; bits are counted
/// from the least of the first byte on. A checksum is linear, so the difference depends on the bit
/// alone, and each further bit behind it takes it one step of the shift register on.
pub fn flipped_bit(difference: u32, bytes: usize) -> Option<usize> {
    // CRC-32C, reflected.
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let mut of_last = POLYNOMIAL;
    (0..bytes * 8).rev().find(|_| {
        let found = of_last == difference;
        of_last = of_last >> 1 ^ if of_last & 1 == 1 { POLYNOMIAL } else { 0 };
        found
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;
    use proptest::prelude::*;

    fn encode(key: &[u8], value: &[u8]) -> Vec<u8> {
        [&encode_header(key, value)[..], key, value].concat()
    }

    #[test]
    fn the_bytes_of_a_record_never_change() {
        // The checksum was computed with another implementation of crc32c (Castagnoli).
        let record = encode(b"key", b"value");
        assert_eq!(record[4..], *b"\x03\0\0\0\x05\0\0\0keyvalue");
        assert_eq!(record[..4], crc32c_bit_by_bit(&record[4..]).to_le_bytes());
    }

    fn crc32c_bit_by_bit(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0_u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0x82F6_3B78 & (crc & 1).wrapping_neg()))
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(key: Vec<u8>, value: Vec<u8>, behind: Vec<u8>) {
            let record = encode(&key, &value);
            prop_assert_eq!(record.len(), record_bytes(key.len(), value.len()));
            prop_assert_eq!(&record[check_for(&record, &key).unwrap()], &value[..]);
            let in_segment = [&record[..], &behind].concat();
            let layout = check(&in_segment).unwrap();
            prop_assert_eq!((&in_segment[layout.key], &in_segment[layout.value]), (&key[..], &value[..]));
        }

        #[test]
        fn one_flipped_bit_is_told_from_other_damage(
            key in proptest::collection::vec(any::<u8>(), 0..40),
            value in proptest::collection::vec(any::<u8>(), 1..200),
            bits: [proptest::sample::Index; 2],
            lost: proptest::sample::Index,
        ) {
            let record = encode(&key, &value);
            prop_assert_eq!(flipped_bit_of(&record, &key), None, "nothing is wrong with it");
            let [one, other] = bits.map(|bit| bit.index(record.len() * 8));
            let flip = |bit: usize, record: &mut Vec<u8>| record[bit / 8] ^= 1 << (bit % 8);
            let mut flipped = record.clone();
            flip(one, &mut flipped);
            prop_assert_eq!(flipped_bit_of(&flipped, &key), Some(one));
            flip(other, &mut flipped);
            prop_assert_eq!(flipped_bit_of(&flipped, &key), None, "two, or none");
            // As from a sector that was not written.
            let mut cut = record.clone();
            cut[lost.index(record.len())..].fill(0);
            let bits: u32 = record.iter().zip(&cut).map(|(one, other)| (one ^ other).count_ones()).sum();
            prop_assert_eq!(flipped_bit_of(&cut, &key).is_some(), bits == 1);
        }

        #[test]
        fn a_flipped_bit_is_noticed(key in proptest::collection::vec(any::<u8>(), 0..40), value in proptest::collection::vec(any::<u8>(), 0..200), bit: proptest::sample::Index) {
            let mut record = encode(&key, &value);
            let bit = bit.index(record.len() * 8);
            record[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(check_for(&record, &key).is_err());
        }

        #[test]
        fn a_cut_record_is_noticed(key in proptest::collection::vec(any::<u8>(), 0..40), value in proptest::collection::vec(any::<u8>(), 0..200), at: proptest::sample::Index) {
            let record = encode(&key, &value);
            let cut = &record[..at.index(record.len())];
            let truncated = matches!(check(cut), Err(RecordError::Truncated { .. }));
            prop_assert!(truncated);
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes: Vec<u8>, key: Vec<u8>) {
            if let Ok(value) = check_for(&bytes, &key) {
                prop_assert_eq!(encode(&key, &bytes[value]), bytes);
            }
        }
    }

    #[test]
    fn a_mutated_record_is_one_or_is_refused() {
        let records = [encode(b"", b""), encode(b"key", b"value"), encode(&[1; 40], &[2; 300])];
        mutated(&records, |mut bytes, random| {
            // Half of them as one who knows the format would write them.
            if let Ok(need) = announced_bytes(&bytes)
                && need <= bytes.len()
                && random.once_in(2)
            {
                let checksum = crc32c::crc32c(&bytes[4..need]);
                bytes[..4].copy_from_slice(&checksum.to_le_bytes());
            }
            if let Ok(Layout { key, value }) = check(&bytes) {
                assert_eq!(encode(&bytes[key.clone()], &bytes[value.clone()]), bytes[..value.end]);
                assert_eq!(check_for(&bytes[..value.end], &bytes[key]), Ok(value));
            }
        });
    }

    #[test]
    fn the_record_of_another_key_is_refused() {
        let record = encode(b"ab", b"c");
        assert_eq!(check_for(&record, b"a"), Err(RecordError::AnotherKey));
        assert_eq!(check_for(&[&record[..], b"x"].concat(), b"ab"), Err(RecordError::AnotherKey));
    }

    #[test]
    fn the_bit_is_found_by_what_it_does_to_the_checksum() {
        let bytes: Vec<u8> = (0..200).map(|byte| byte * 7).collect();
        let sound = crc32c::crc32c(&bytes);
        assert_eq!(flipped_bit(0, bytes.len()), None);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(flipped_bit(sound ^ crc32c::crc32c(&bad), bytes.len()), Some(bit));
        }
    }
}
