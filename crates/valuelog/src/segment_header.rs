//! What begins a segment.
//!
//! ```text
//!  0            8         12        16      20           28        32
//!  +------------+---------+---------+-------+------------+---------+ - - - - -
//!  | "ECOVALUE" | format  | segment | level | dictionary | crc32c  | records
//!  |            | u32     | u32     | u32   | u64        | u32     |
//!  +------------+---------+---------+-------+------------+---------+ - - - - -
//!  |<------- what the checksum is over ------------------>|
//! ```
//!
//! All numbers are little-endian. The level is 0 in a segment that users' writes went to; in one of
//! relocated values it is one more than the level that they came to rest in.
//!
//! The dictionary is 0 in format 1. In format 2 it is the name of the one that is the first record
//! behind the header, or 0 where there is none.

use crate::compression::dictionary::DictionaryId;
use crate::packed_record;
use crate::pointer::SegmentNumber;
use crate::record::{self, RecordError, flipped_bit};

/// The length of a segment's header.
pub const SEGMENT_HEADER_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"ECOVALUE";
const DICTIONARY_AT: usize = 20;
const CHECKSUM_AT: usize = SEGMENT_HEADER_BYTES - 4;

/// Why bytes are not the header that was looked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// They are not those of a header.
    #[error("{0}")]
    Damaged(&'static str),
    /// They are, but of another segment, or of another version of this program.
    #[error("{0}")]
    Another(String),
}

/// Which records a segment holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentFormat {
    /// Values as they are ([`crate::record`]).
    Plain,
    /// Values packed or as they are ([`crate::packed_record`]), with that dictionary, if with any.
    Packed(Option<DictionaryId>),
}

impl SegmentFormat {
    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            Self::Plain => 1,
            Self::Packed(_) => 2,
        }
    }

    /// Its dictionary, if it has one.
    pub fn dictionary(self) -> Option<DictionaryId> {
        match self {
            Self::Plain => None,
            Self::Packed(dictionary) => dictionary,
        }
    }

    /// The length of the record that begins `bytes`, once it is checked.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with it.
    pub fn check_record(self, bytes: &[u8]) -> Result<usize, RecordError> {
        match self {
            Self::Plain => record::check(bytes).map(|layout| layout.value.end),
            Self::Packed(_) => packed_record::check(bytes).map(|layout| layout.stored.end),
        }
    }
}

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Which records follow.
    pub format: SegmentFormat,
    /// The level that the values were relocated to, if they were.
    pub resting_level: Option<u32>,
}

/// The header of a segment that users' writes go to, or of one of values that were relocated to a
/// level.
pub fn encode(number: SegmentNumber, says: SegmentHeader) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut header = [0; SEGMENT_HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&says.format.number().to_le_bytes());
    header[12..16].copy_from_slice(&number.0.to_le_bytes());
    header[16..20].copy_from_slice(&says.resting_level.map_or(0, |level| level + 1).to_le_bytes());
    let dictionary = says.format.dictionary().map_or(0, DictionaryId::get);
    header[DICTIONARY_AT..CHECKSUM_AT].copy_from_slice(&dictionary.to_le_bytes());
    let checksum = crc32c::crc32c(&header[..CHECKSUM_AT]);
    header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Checks the header of this segment, and returns what it says.
///
/// # Errors
///
/// [`HeaderError`] tells damage from what another segment or version has.
pub fn check(found: &[u8; SEGMENT_HEADER_BYTES], number: SegmentNumber) -> Result<SegmentHeader, HeaderError> {
    if found[..8] != *MAGIC {
        return Err(HeaderError::Damaged("it does not begin as a segment does"));
    }
    if checksum_difference(found) != 0 {
        return Err(HeaderError::Damaged("the checksum of its header does not match"));
    }
    let dictionary = u64::from(field(found, DICTIONARY_AT + 4)) << 32 | u64::from(field(found, DICTIONARY_AT));
    let format = match field(found, 8) {
        1 if dictionary == 0 => SegmentFormat::Plain,
        1 => return Err(HeaderError::Another("its header sets bytes that this version does not know".into())),
        2 => SegmentFormat::Packed(DictionaryId::decode(dictionary)),
        format => {
            let reason = format!("its format is {format}, this version reads 1 and 2: use a newer version");
            return Err(HeaderError::Another(reason));
        }
    };
    let says = SegmentNumber(field(found, 12));
    if says != number {
        return Err(HeaderError::Another(format!("its header says that it is segment {says}")));
    }
    Ok(SegmentHeader { format, resting_level: field(found, 16).checked_sub(1) })
}

/// Whether it would be one if one of its bits were another. A loss of power takes it whole or not
/// at all: it lies within a sector.
pub fn is_one_but_for_a_bit(found: &[u8; SEGMENT_HEADER_BYTES]) -> bool {
    let difference = checksum_difference(found);
    difference.is_power_of_two() || flipped_bit(difference, CHECKSUM_AT).is_some()
}

fn checksum_difference(found: &[u8; SEGMENT_HEADER_BYTES]) -> u32 {
    field(found, CHECKSUM_AT) ^ crc32c::crc32c(&found[..CHECKSUM_AT])
}

fn field(found: &[u8; SEGMENT_HEADER_BYTES], at: usize) -> u32 {
    found[at..at + 4].iter().rev().fold(0, |number: u32, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;

    const PLAIN: SegmentHeader = SegmentHeader { format: SegmentFormat::Plain, resting_level: None };

    fn packed(dictionary: u64, resting_level: Option<u32>) -> SegmentHeader {
        SegmentHeader { format: SegmentFormat::Packed(DictionaryId::decode(dictionary)), resting_level }
    }

    #[test]
    fn the_bytes_of_a_header_never_change() {
        let bytes = encode(SegmentNumber(0x0102), SegmentHeader { resting_level: Some(2), ..PLAIN });
        assert_eq!(bytes[..28], *b"ECOVALUE\x01\0\0\0\x02\x01\0\0\x03\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(bytes[28..], crc32c::crc32c(&bytes[..28]).to_le_bytes());
        let bytes = encode(SegmentNumber(7), packed(0x0807_0605_0403_0201, None));
        assert_eq!(bytes[..28], *b"ECOVALUE\x02\0\0\0\x07\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(bytes[28..], crc32c::crc32c(&bytes[..28]).to_le_bytes());
    }

    #[test]
    fn a_mutated_header_is_one_or_is_refused() {
        let originals = [
            encode(SegmentNumber(7), PLAIN).to_vec(),
            encode(SegmentNumber(u32::MAX), SegmentHeader { resting_level: Some(6), ..PLAIN }).to_vec(),
            encode(SegmentNumber(8), packed(0, None)).to_vec(),
            encode(SegmentNumber(9), packed(u64::MAX, Some(3))).to_vec(),
        ];
        mutated(&originals, |mut bytes, random| {
            if bytes.len() == SEGMENT_HEADER_BYTES && random.once_in(2) {
                let checksum = crc32c::crc32c(&bytes[..28]);
                bytes[28..].copy_from_slice(&checksum.to_le_bytes());
            }
            let Ok(found) = <&[u8; SEGMENT_HEADER_BYTES]>::try_from(&bytes[..]) else { return };
            let number = SegmentNumber(u32::from_le_bytes([found[12], found[13], found[14], found[15]]));
            if let Ok(says) = check(found, number) {
                assert_eq!(encode(number, says), *found);
                assert!(check(found, SegmentNumber(number.0 ^ 1)).is_err());
            }
        });
    }

    #[test]
    fn a_format_of_a_later_version_is_told_from_damage() {
        let mut bytes = encode(SegmentNumber(7), PLAIN);
        bytes[8] = 3;
        let checksum = crc32c::crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&checksum.to_le_bytes());
        let refused = check(&bytes, SegmentNumber(7)).unwrap_err();
        assert!(matches!(&refused, HeaderError::Another(reason) if reason.contains("newer version")), "{refused}");
    }

    #[test]
    fn a_flipped_bit_is_told_from_a_header_that_never_reached_the_device() {
        let sound = encode(SegmentNumber(12_345), packed(77, Some(4)));
        assert!(!is_one_but_for_a_bit(&sound), "nothing is wrong with it");
        assert!(!is_one_but_for_a_bit(&[0; SEGMENT_HEADER_BYTES]));
        let flip = |bit: usize, header: &mut [u8]| header[bit / 8] ^= 1 << (bit % 8);
        for one in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut bad = sound;
            flip(one, &mut bad);
            assert!(is_one_but_for_a_bit(&bad), "bit {one}");
            for other in (0..one).step_by(7) {
                let mut worse = bad;
                flip(other, &mut worse);
                assert!(!is_one_but_for_a_bit(&worse), "bits {one} and {other}");
            }
        }
    }
}
